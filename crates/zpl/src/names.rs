//! Names of files: the operations on directory ZAPs that the POSIX layer uses.

use base::{Kind, Result};
use dmu::{Dnode, NewObject, Objset, Tx};
use std::sync::Arc;
use zap::{Match, Value, Zap};

/// A new object that is an empty ZAP.
pub fn create(os: &Objset, tx: &Tx, new: &NewObject, norm: u64) -> Result<Arc<Dnode>> {
    let dn = os.alloc(tx, new)?;
    init(&dn, tx, norm)?;
    Ok(dn)
}

/// Makes an object without content an empty ZAP.
pub fn init(dn: &Dnode, tx: &Tx, norm: u64) -> Result<()> {
    Zap::new(dn).create(tx, norm)
}

/// First integer of an entry.
pub fn lookup(dn: &Dnode, name: &[u8]) -> Result<Option<u64>> {
    Ok(Zap::new(dn)
        .longname(true)
        .get_value(name)?
        .map(|v| v.as_u64().or(v.ints().first().copied()).unwrap_or(0)))
}

/// Value and stored name of the entry a directory of those rules finds for a name.
pub fn find(dn: &Dnode, name: &[u8], norm: u64, mixed: bool) -> Result<Option<(u64, Vec<u8>)>> {
    let how = match (norm, mixed) {
        (0, _) => Match::Exact,
        (_, true) => Match::NormalizedCase,
        (_, false) => Match::Normalized,
    };
    Ok(Zap::new(dn).longname(true).find(name, how)?.map(|f| {
        let v = f.value.as_u64().or(f.value.ints().first().copied());
        (v.unwrap_or(0), f.name)
    }))
}

/// `Kind::Exists` if there is an entry of that name.
pub fn add(dn: &Dnode, tx: &Tx, name: &[u8], v: u64) -> Result<()> {
    Zap::new(dn).longname(true).add_u64(tx, name, v)
}

/// Sets the value of a name, which need not exist.
pub fn update(dn: &Dnode, tx: &Tx, name: &[u8], v: u64) -> Result<()> {
    Zap::new(dn).longname(true).update_u64(tx, name, v)
}

/// Adds a name with an array of 16-bit integers.
pub fn add_u16s(dn: &Dnode, tx: &Tx, name: &[u8], v: &[u16]) -> Result<()> {
    Zap::new(dn).add(tx, name, &Value::u16s(v))
}

/// `Kind::NotFound` if there is none.
pub fn remove(dn: &Dnode, tx: &Tx, name: &[u8]) -> Result<()> {
    Zap::new(dn).longname(true).remove(tx, name)
}

/// Number of entries.
pub fn count(dn: &Dnode) -> Result<u64> {
    Zap::new(dn).count()
}

/// All entries.
pub fn each(dn: &Dnode, mut f: impl FnMut(&[u8], &[u64]) -> Result<()>) -> Result<()> {
    for e in Zap::new(dn).iter() {
        let e = e?;
        f(&e.name, &e.value.ints())?;
    }
    Ok(())
}

/// Entries from a cookie on, until `f` says stop: name, value, cookie of the next.
pub fn walk(
    dn: &Dnode,
    cookie: u64,
    mut f: impl FnMut(&[u8], u64, u64) -> Result<bool>,
) -> Result<()> {
    for e in Zap::new(dn).cursor(cookie) {
        let e = e?;
        let v = e.value.as_u64().or(e.value.ints().first().copied());
        if !f(&e.name, v.unwrap_or(0), e.next)? {
            break;
        }
    }
    Ok(())
}

/// The error a name gives that a directory does not have.
pub fn missing<T>() -> Result<T> {
    Err(Kind::NotFound.into())
}
