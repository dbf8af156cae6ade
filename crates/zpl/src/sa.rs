//! The system-attribute tables of one file system: registry and layouts in memory, kept in step with
//! their ZAPs (data format §19). The coding of attribute sets is in `disk::sa`.

use crate::names;
use base::sync::RwLockExt;
use base::{Error, Result};
use disk::sa::{self, Attrs, Layouts, Packed, Registry, ZplAttrs};
use disk::types::ObjType;
use dmu::{Dnode, NewObject, Objset, Tx};
use std::sync::{Arc, RwLock};

struct Inner {
    /// Object numbers of the registry and layout ZAPs, once they exist.
    objects: Option<(u64, u64)>,
    registry: Registry,
    layouts: Layouts,
}

/// Registry and layouts of a mounted file system.
pub struct SaTables {
    os: Arc<Objset>,
    master: u64,
    inner: RwLock<Inner>,
    zpl: ZplAttrs,
}

impl SaTables {
    /// Reads the tables that `master` (the SA master object) names; they may not exist yet.
    pub fn open(os: &Arc<Objset>, master: u64) -> Result<SaTables> {
        let dn = os.hold(master)?;
        let objects = names::lookup(&dn, b"REGISTRY")?.zip(names::lookup(&dn, b"LAYOUTS")?);
        let mut entries = Vec::new();
        let mut lists = Vec::new();
        if let Some((r, l)) = objects {
            let dn = os.hold(r)?;
            names::each(&dn, |name, value| {
                let v = value.first().copied().unwrap_or(0);
                entries.push((String::from_utf8_lossy(name).into_owned(), v));
                Ok(())
            })?;
            let dn = os.hold(l)?;
            names::each(&dn, |name, value| {
                let num: u16 = std::str::from_utf8(name)
                    .ok()
                    .and_then(|s| s.parse().ok())
                    .ok_or_else(|| Error::damaged("attribute layout with a strange name"))?;
                lists.push((num, value.iter().map(|v| *v as u16).collect()));
                Ok(())
            })?;
        }
        let registry = Registry::load(entries)?;
        Ok(SaTables {
            os: os.clone(),
            master,
            zpl: registry.zpl(),
            inner: RwLock::new(Inner {
                objects,
                registry,
                layouts: Layouts::load(lists)?,
            }),
        })
    }

    /// Numbers of the attributes in this file system.
    pub fn zpl(&self) -> &ZplAttrs {
        &self.zpl
    }

    /// Numbers of the attributes, all of them registered on disk.
    pub fn numbers(&self, tx: &Tx) -> Result<&ZplAttrs> {
        let done = {
            let i = self.inner.acquire_read();
            i.objects.is_some() && !i.registry.has_new()
        };
        if !done {
            let mut i = self.inner.acquire_write();
            self.store_new(tx, &mut i)?;
        }
        Ok(&self.zpl)
    }

    /// Writes what the tables have and their ZAPs have not. This happens a few times in the life of
    /// a file system, so holding the lock over the I/O does no harm.
    fn store_new(&self, tx: &Tx, i: &mut Inner) -> Result<()> {
        let (r, l) = match i.objects {
            Some(o) => o,
            None => {
                let make = |obj_type| {
                    let new = NewObject {
                        obj_type,
                        ..NewObject::default()
                    };
                    names::create(&self.os, tx, &new, 0)
                };
                let r = make(ObjType::SA_ATTR_REGISTRATION)?.object();
                let l = make(ObjType::SA_ATTR_LAYOUTS)?.object();
                let master = self.os.hold(self.master)?;
                names::add(&master, tx, b"REGISTRY", r)?;
                names::add(&master, tx, b"LAYOUTS", l)?;
                i.objects = Some((r, l));
                (r, l)
            }
        };
        if i.registry.has_new() {
            let dn = self.os.hold(r)?;
            for a in i.registry.take_new() {
                names::update(&dn, tx, a.name.as_bytes(), a.encode())?;
            }
        }
        if i.layouts.has_new() {
            let dn = self.os.hold(l)?;
            for (num, list) in i.layouts.take_new() {
                names::add_u16s(&dn, tx, num.to_string().as_bytes(), &list)?;
            }
        }
        Ok(())
    }

    /// Lays attributes out for a bonus of `room` bytes; stores layouts not seen before.
    pub fn pack(&self, tx: &Tx, attrs: &Attrs, room: usize) -> Result<Packed> {
        let mut g = self.inner.acquire_write();
        let i = &mut *g;
        let p = sa::pack(attrs, &i.registry, &mut i.layouts, room)?;
        if i.objects.is_none() || i.registry.has_new() || i.layouts.has_new() {
            self.store_new(tx, i)?;
        }
        Ok(p)
    }

    /// Where the attributes of a little-endian buffer are.
    pub fn index(&self, b: &[u8]) -> Result<Vec<(u16, std::ops::Range<usize>)>> {
        let i = self.inner.acquire_read();
        sa::index(b, &i.registry, &i.layouts)
    }

    /// Turns a buffer of the other byte order around.
    pub fn to_native(&self, b: &mut [u8]) -> Result<()> {
        let i = self.inner.acquire_read();
        sa::to_little_endian(b, &i.registry, &i.layouts).map(|_| ())
    }

    /// Attributes of bonus and spill of an object, in order.
    pub fn load(&self, dn: &Dnode) -> Result<Attrs> {
        let mut bonus = dn.bonus();
        self.to_native(&mut bonus)?;
        let spill = match dn.spill()? {
            Some(b) => {
                let mut b = b.to_vec();
                self.to_native(&mut b)?;
                Some(b)
            }
            None => None,
        };
        let i = self.inner.acquire_read();
        sa::parse(&bonus, spill.as_deref(), &i.registry, &i.layouts)
    }
}
