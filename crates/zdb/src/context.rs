//! The context in which an object is shown: its object set and what is known of it.

use crate::raw::Set;
use crate::Session;
use base::{Error, Result};
use disk::sa::{Layouts, Registry};
use dmu::{Dnode, Objset};
use std::cell::OnceCell;
use std::sync::Arc;
use zap::Zap;

/// Object of the master node.
const MASTER: u64 = 1;

/// The object set an object is in.
pub struct Ctx<'a> {
    pub s: &'a Session,
    pub set: &'a Set<'a>,
    /// The engine's view, for what lies in objects; none if it cannot be opened.
    pub os: Option<Arc<Objset>>,
    sa: OnceCell<Result<Tables>>,
}

impl<'a> Ctx<'a> {
    pub fn mos(s: &'a Session, set: &'a Set<'a>) -> Ctx<'a> {
        Ctx {
            s,
            set,
            os: Some(s.pool.mos().clone()),
            sa: OnceCell::new(),
        }
    }

    pub fn dataset(s: &'a Session, set: &'a Set<'a>, os: Option<Arc<Objset>>) -> Ctx<'a> {
        Ctx {
            s,
            set,
            os,
            sa: OnceCell::new(),
        }
    }

    /// The tables of system attributes.
    pub fn sa(&self) -> &Result<Tables> {
        self.sa.get_or_init(|| Tables::open(self.os.as_ref()))
    }

    pub fn hold(&self, object: u64) -> Result<Arc<Dnode>> {
        match &self.os {
            Some(os) => os.hold(object),
            None => Err(Error::damaged("the object set cannot be opened")),
        }
    }

    /// Blocks are encrypted, and there is no key.
    pub fn is_locked(&self) -> bool {
        self.set.is_locked()
    }
}

/// The tables of a file system.
pub struct Tables {
    pub root: u64,
    /// `None`: an old file system.
    pub sa: Option<(Registry, Layouts)>,
}

impl Tables {
    fn open(os: Option<&Arc<Objset>>) -> Result<Tables> {
        let os = os.ok_or_else(|| Error::damaged("not open"))?;
        let master = os.hold(MASTER)?;
        let root = Zap::new(&*master).lookup("ROOT")?;
        let Some(object) = Zap::new(&*master).get("SA_ATTRS")? else {
            return Ok(Tables { root, sa: None });
        };
        let dn = os.hold(object)?;
        let mut entries = Vec::new();
        let mut lists = Vec::new();
        if let Some(o) = Zap::new(&*dn).get("REGISTRY")? {
            for e in Zap::new(&*os.hold(o)?).iter() {
                let e = e?;
                entries.push((e.text(), e.value.as_u64().unwrap_or(0)));
            }
        }
        if let Some(o) = Zap::new(&*dn).get("LAYOUTS")? {
            for e in Zap::new(&*os.hold(o)?).iter() {
                let e = e?;
                let number = e.text().parse::<u16>();
                let number = number.map_err(|_| Error::damaged("layout with a strange name"))?;
                lists.push((number, e.value.ints().iter().map(|v| *v as u16).collect()));
            }
        }
        Ok(Tables {
            root,
            sa: Some((Registry::load(entries)?, Layouts::load(lists)?)),
        })
    }
}
