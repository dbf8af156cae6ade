//! User, group and project quotas (data format §23): refused when what is used already reaches the
//! limit. The superuser is not exempt.

use crate::names;
use crate::space_info::{Space, Usage, Whose};
use crate::zfs::Zfs;
use base::{Kind, Result};
use disk::types::ObjType;
use dmu::{NewObject, Objset, Tx};
use std::sync::atomic::Ordering;
use zap::Zap;

/// Names of the quota maps in the master node.
pub const NAMES: [&str; 6] = [
    "userquota@",
    "groupquota@",
    "projectquota@",
    "userobjquota@",
    "groupobjquota@",
    "projectobjquota@",
];

/// Names of the quotas for ids without an own entry.
const DEFAULTS: [&str; 6] = [
    "defaultuserquota",
    "defaultgroupquota",
    "defaultprojectquota",
    "defaultuserobjquota",
    "defaultgroupobjquota",
    "defaultprojectobjquota",
];

/// Sets the limit of an id (in hexadecimal digits) in the map of that name (one of [`NAMES`]); 0 takes
/// it away. File systems in use are told by [`Zfs::reload_quotas`].
pub fn set_quota(os: &Objset, tx: &Tx, name: &str, id: &str, limit: u64) -> Result<()> {
    let master = os.hold(crate::zfs::MASTER_NODE)?;
    let map = match (names::lookup(&master, name.as_bytes())?, limit) {
        (Some(o), _) => os.hold(o)?,
        (None, 0) => return Ok(()),
        (None, _) => {
            let new = NewObject {
                obj_type: ObjType::USERGROUP_QUOTA,
                ..NewObject::default()
            };
            let dn = names::create(os, tx, &new, 0)?;
            names::add(&master, tx, name.as_bytes(), dn.object())?;
            dn
        }
    };
    match limit {
        0 => match names::remove(&map, tx, id.as_bytes()) {
            Err(e) if e.kind == Kind::NotFound => Ok(()),
            r => r,
        },
        n => names::update(&map, tx, id.as_bytes(), n),
    }
}

/// Project of objects that have none.
pub const DEFAULT_PROJECT: u64 = 0;

impl Zfs {
    /// The limit for an id, if there is one.
    pub fn quota(&self, whose: Whose, objects: bool, id: u64) -> Result<Option<u64>> {
        let i = whose as usize + if objects { 3 } else { 0 };
        let map = self.quotas[i].load(Ordering::Relaxed);
        let mut limit = None;
        if map != 0 {
            let dn = self.os.hold(map)?;
            limit = names::lookup(&dn, format!("{id:x}").as_bytes())?;
        }
        if limit.is_none() && self.default_quotas.load(Ordering::Relaxed) {
            let master = self.os.hold(crate::zfs::MASTER_NODE)?;
            limit = names::lookup(&master, DEFAULTS[i].as_bytes())?;
        }
        Ok(limit.filter(|l| *l != 0))
    }

    /// Reads anew where the quota maps are; call after they were changed.
    pub fn reload_quotas(&self) -> Result<()> {
        let master = self.os.hold(crate::zfs::MASTER_NODE)?;
        for (q, name) in self.quotas.iter().zip(NAMES) {
            let map = names::lookup(&master, name.as_bytes())?.unwrap_or(0);
            // A map stays when the last quota in it is taken away.
            let count = || Zap::new(&self.os.hold(map)?).count();
            let empty = map == 0 || matches!(count(), Ok(0));
            q.store(if empty { 0 } else { map }, Ordering::Relaxed);
        }
        let mut any = false;
        for name in DEFAULTS {
            any |= names::lookup(&master, name.as_bytes())?.is_some_and(|v| v != 0);
        }
        self.default_quotas.store(any, Ordering::Relaxed);
        Ok(())
    }

    /// Whether users, groups or projects have limits here.
    pub fn has_quotas(&self) -> bool {
        self.default_quotas.load(Ordering::Relaxed)
            || self.quotas.iter().any(|q| q.load(Ordering::Relaxed) != 0)
    }

    /// `Kind::Quota` if one of the ids is at its limit; `objects` for making an object.
    pub(crate) fn check_quota(
        &self,
        uid: u64,
        gid: u64,
        project: u64,
        objects: bool,
    ) -> Result<()> {
        if !self.has_quotas() {
            return Ok(());
        }
        let ids = [
            (Whose::User, uid),
            (Whose::Group, gid),
            (Whose::Project, project),
        ];
        for (whose, id) in ids {
            if whose == Whose::Project && id == DEFAULT_PROJECT {
                continue;
            }
            self.check_one_quota(whose, id, objects)?;
        }
        Ok(())
    }

    pub(crate) fn check_one_quota(&self, whose: Whose, id: u64, objects: bool) -> Result<()> {
        // What was logged was allowed when it was done; more may be used by now.
        if !self.has_quotas() || self.is_replaying() {
            return Ok(());
        }
        let space = self.quota(whose, false, id)?;
        let count = if objects {
            self.quota(whose, true, id)?
        } else {
            None
        };
        if space.is_none() && count.is_none() {
            return Ok(());
        }
        if let Some(Usage { bytes, objects }) = self.space.usage(whose, id)? {
            if space.is_some_and(|l| bytes >= l) || count.is_some_and(|l| objects >= l) {
                return Err(Kind::Quota.into());
            }
        }
        Ok(())
    }

    /// Bytes that may about still be written to a file, by the dataset and by the quotas of its owner,
    /// as of the last synced transaction group.
    pub fn room(&self, z: &crate::znode::Znode) -> Result<u64> {
        let mut room = self.space.space().available;
        if !self.has_quotas() {
            return Ok(room);
        }
        let f = z.fixed();
        let ids = [
            (Whose::User, f.uid),
            (Whose::Group, f.gid),
            (Whose::Project, z.extra().projid),
        ];
        for (whose, id) in ids {
            if whose == Whose::Project && id == DEFAULT_PROJECT {
                continue;
            }
            if let Some(limit) = self.quota(whose, false, id)? {
                let used = self.space.usage(whose, id)?.unwrap_or_default();
                room = room.min(limit.saturating_sub(used.bytes));
            }
        }
        Ok(room)
    }

    /// Narrows the figures to what a project may use.
    pub(crate) fn project_space(&self, id: u64, s: &mut Space) -> Result<()> {
        let used = self.space.usage(Whose::Project, id)?.unwrap_or_default();
        if let Some(limit) = self.quota(Whose::Project, false, id)? {
            s.referenced = used.bytes;
            s.available = s.available.min(limit.saturating_sub(used.bytes));
        }
        if let Some(limit) = self.quota(Whose::Project, true, id)? {
            s.objects = used.objects;
            s.objects_free = s.objects_free.min(limit.saturating_sub(used.objects));
        }
        Ok(())
    }
}
