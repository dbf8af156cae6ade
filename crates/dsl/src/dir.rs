//! DSL directories (data format §7.1).

use crate::core::{is_zapified, Core};
use crate::prop_values::{load, own_value, OwnProps};
use base::sync::MutexExt;
use base::{Error, Result};
use disk::dsl::DslDirPhys;
use disk::ObjType;
use dmu::{Dnode, Tx};
use std::sync::{Arc, Mutex};
use zap::Zap;

/// A node of the name space: one file system or volume with its snapshots, or a hidden one. Shared;
/// changed only by the syncing thread.
pub struct Dir {
    pub(crate) core: Arc<Core>,
    pub(crate) dn: Arc<Dnode>,
    st: Mutex<DirState>,
}

struct DirState {
    phys: DslDirPhys,
    name: String,
    parent: Option<Arc<Dir>>,
    props: Option<Arc<OwnProps>>,
}

impl Dir {
    pub(crate) fn open(
        core: &Arc<Core>,
        object: u64,
        name: &str,
        parent: Option<Arc<Dir>>,
    ) -> Result<Arc<Dir>> {
        let dn = core.hold(object)?;
        if dn.info().bonus_type != ObjType::DSL_DIR {
            return Err(Error::damaged(format!(
                "object {object} is no DSL directory"
            )));
        }
        let phys = DslDirPhys::decode(&dn.bonus())?;
        if phys.parent_obj != parent.as_ref().map_or(0, |p| p.object()) {
            return Err(Error::damaged(format!(
                "DSL directory {object} has another parent"
            )));
        }
        Ok(Arc::new(Dir {
            core: core.clone(),
            dn,
            st: Mutex::new(DirState {
                phys,
                name: name.to_string(),
                parent,
                props: None,
            }),
        }))
    }

    /// Whether the object is as it was when it was opened, and not freed.
    pub(crate) fn is_as_stored(&self) -> Result<bool> {
        let stored = DslDirPhys::decode(&self.dn.bonus())?;
        Ok(!self.dn.is_freed() && stored == self.phys())
    }

    /// Number of its MOS object.
    pub fn object(&self) -> u64 {
        self.dn.object()
    }

    /// The bonus structure as it is now.
    pub fn phys(&self) -> DslDirPhys {
        self.st.acquire().phys.clone()
    }

    /// The directory above; `None` for the root.
    pub fn parent(&self) -> Option<Arc<Dir>> {
        self.st.acquire().parent.clone()
    }

    /// Last component of its name (the pool's name at the root).
    pub fn name(&self) -> String {
        self.st.acquire().name.clone()
    }

    /// `pool/a/b`.
    pub fn full_name(&self) -> String {
        let mut parts = vec![self.name()];
        let mut at = self.parent();
        while let Some(d) = at {
            parts.push(d.name());
            at = d.parent();
        }
        parts.reverse();
        parts.join("/")
    }

    /// Number of components above it.
    pub fn depth(&self) -> usize {
        let mut n = 0;
        let mut at = self.parent();
        while let Some(d) = at {
            n += 1;
            at = d.parent();
        }
        n
    }

    /// Changes the bonus structure.
    pub(crate) fn update<R>(&self, tx: &Tx, f: impl FnOnce(&mut DslDirPhys) -> R) -> Result<R> {
        self.core.need_syncing(tx)?;
        let mut st = self.st.acquire();
        let r = f(&mut st.phys);
        let b = st.phys.encode();
        self.dn.set_bonus(tx, &b)?;
        Ok(r)
    }

    pub(crate) fn set_place(&self, name: &str, parent: Option<Arc<Dir>>) {
        let mut st = self.st.acquire();
        st.name = name.to_string();
        st.parent = parent;
    }

    pub(crate) fn cache_props(&self, p: Option<Arc<OwnProps>>) {
        self.st.acquire().props = p;
    }

    /// The properties that the directory itself has.
    pub(crate) fn own_props(&self) -> Result<Arc<OwnProps>> {
        if let Some(p) = self.st.acquire().props.clone() {
            return Ok(p);
        }
        let p = Arc::new(match self.phys().props_zapobj {
            0 => OwnProps::new(),
            o => load(&self.core.hold(o)?)?,
        });
        self.cache_props(Some(p.clone()));
        Ok(p)
    }

    /// An integer property of the directory itself.
    pub(crate) fn own_int(&self, name: &str) -> Option<u64> {
        own_value(&*self.own_props().ok()?, name).and_then(|(v, _)| v.int())
    }

    /// The ZAP name → child directory.
    pub(crate) fn children_zap(&self) -> Result<Arc<Dnode>> {
        let o = self.phys().child_dir_zapobj;
        self.core.hold(o)
    }

    /// The first word of an entry of the directory's own ZAP, if it has one.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn first_word(&self, key: &str) -> Result<Option<u64>> {
        if !is_zapified(&self.dn) {
            return Ok(None);
        }
        let value = Zap::new(&self.dn).get_value(key)?;
        Ok(value.and_then(|v| v.ints().first().copied()))
    }

    /// One of the integers of a zapified directory.
    pub(crate) fn extra(&self, key: &str) -> Result<Option<u64>> {
        match is_zapified(&self.dn) {
            true => Zap::new(&self.dn).get(key),
            false => Ok(None),
        }
    }
}
