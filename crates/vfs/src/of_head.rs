//! [`OfHead`]: the snapshots and volumes that the `.zfs` of a head shows, and what is done to them there, through `admin`.

use crate::snapshots::{Content, Figures, Key, Snapdir, Snapshots, Volume};
use admin::datasets::{destroy, objsets, rename, snapshots};
use admin::registry::objset_type_in;
use admin::{head, Admin, PoolEntry};
use api::{DatasetDestroy, Peer, SnapshotCreate};
use base::{Kind, Result};
use dsl::Dataset;
use pool::Pool;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use zap::Zap;
use zpl::Time;

/// The snapshots of one head, and the volumes beside the file systems below it.
pub struct OfHead {
    admin: Weak<Admin>,
    entry: Weak<PoolEntry>,
    pool: Arc<Pool>,
    ds: Arc<Dataset>,
    /// User and group of the process.
    owner: (u32, u32),
    /// Properties overridden for the mount, and so for its snapshots.
    temporary: Vec<(String, String)>,
    /// The mount goes by force: nobody waits for a command any more.
    forced: Arc<AtomicBool>,
}

impl OfHead {
    /// Those of a dataset of a pool. `forced`: the mount goes by force, and whoever waits in it for a command is let go.
    pub fn new(
        admin: &Arc<Admin>,
        entry: &Arc<PoolEntry>,
        ds: &Arc<Dataset>,
        temporary: Vec<(String, String)>,
        forced: Arc<AtomicBool>,
    ) -> OfHead {
        OfHead {
            owner: admin.process.user(),
            admin: Arc::downgrade(admin),
            entry: Arc::downgrade(entry),
            pool: entry.pool.clone(),
            ds: ds.clone(),
            temporary,
            forced,
        }
    }

    /// Who administers the pool, if this caller may have it done: whoever may make requests of the daemon.
    /// What root's daemon is asked for takes the permissions that the commands take; of the caller's groups
    /// only the one he acts with is known here.
    fn admin_for(&self, peer: Peer) -> Result<Arc<Admin>> {
        let own = self.owner.0;
        if self.ds.is_snapshot() {
            return Err(Kind::ReadOnly.into());
        }
        if own != 0 && peer.uid != 0 && peer.uid != own {
            return Err(Kind::NotPermitted.into());
        }
        self.admin.upgrade().ok_or(Kind::ReadOnly.into())
    }

    fn full(&self, name: &str) -> String {
        format!("{}@{name}", self.ds.full_name())
    }

    /// Heads of the volumes directly below.
    fn heads(&self) -> Result<Vec<(String, Arc<Dataset>)>> {
        let mut out = Vec::new();
        for dir in self.ds.dir().children()? {
            let Ok(head) = dir.head() else { continue };
            if objset_type_in(&self.pool, &head).is_ok_and(|t| t == disk::os_type::ZVOL) {
                out.push((dir.name(), head));
            }
        }
        Ok(out)
    }
}

/// A system call has no words for what a command says.
fn kind(e: api::ApiError) -> base::Error {
    Kind::from_errno(e.code).into()
}

fn key(ds: &Dataset) -> Key {
    Key {
        object: ds.object(),
        guid: ds.phys().guid,
    }
}

/// A volume or a snapshot of one, to read its bytes. What is not open is read as it is on disk.
/// `Kind::NotFound` if the dataset is no volume.
fn open_volume(pool: &Pool, ds: &Dataset) -> Result<Volume> {
    Ok(Volume {
        bytes: pool::Volume::new(objsets::look_into_pool(pool, ds)?)?,
        snapshot: ds.is_snapshot(),
    })
}

impl Snapshots for OfHead {
    fn snapdir(&self) -> Snapdir {
        if self.ds.is_snapshot() {
            return Snapdir::Disabled;
        }
        match pool::prop_number(&self.ds, "snapdir") {
            Ok(1) => Snapdir::Visible,
            Ok(2) => Snapdir::Disabled,
            _ => Snapdir::Hidden,
        }
    }

    fn list(&self) -> Result<Vec<(String, u64)>> {
        self.ds.snapshot_names()
    }

    fn count(&self) -> u64 {
        self.ds.snapshot_count().unwrap_or(0)
    }

    fn changed(&self) -> Option<Time> {
        let dn = self.pool.dsl().mos().hold(self.ds.dir().object()).ok()?;
        if dn.info().obj_type != disk::ObjType::ZAP_METADATA {
            return None;
        }
        let v = Zap::new(&dn).get_value("com.ixsystems:snapshots_changed");
        let v = v.ok()??.ints();
        Some(Time {
            sec: i64::try_from(*v.first()?).ok()?,
            nsec: v.get(1).copied().unwrap_or(0).min(999_999_999) as u32,
        })
    }

    fn find(&self, name: &str) -> Result<Key> {
        if name.starts_with(['%', '$']) {
            return Err(Kind::NotFound.into());
        }
        let ds = self.ds.snapshot_named(name)?.ok_or(Kind::NotFound)?;
        Ok(key(&ds))
    }

    fn has_volumes(&self) -> Result<bool> {
        Ok(!self.heads()?.is_empty())
    }

    fn volumes(&self) -> Result<Vec<(String, u64)>> {
        let mut out = Vec::new();
        for (name, head) in self.heads()? {
            let snapshots = head.snapshot_names()?;
            out.push((name.clone(), head.object()));
            let full = |(snap, object)| (format!("{name}@{snap}"), object);
            out.extend(snapshots.into_iter().map(full));
        }
        Ok(out)
    }

    fn find_volume(&self, name: &str) -> Result<Key> {
        if name.contains(['%', '$', '/', '#']) {
            return Err(Kind::NotFound.into());
        }
        let full = format!("{}/{name}", self.ds.full_name());
        Ok(key(&*self.pool.dsl().dataset(&full)?))
    }

    fn owner(&self) -> (u32, u32) {
        self.owner
    }

    fn figures(&self, object: u64) -> Option<Figures> {
        let p = self.pool.dsl().dataset_by_object(object).ok()?.phys();
        Some(Figures {
            created: i64::try_from(p.creation_time).unwrap_or(0),
            referenced: p.referenced_bytes,
        })
    }

    fn open(&self, wanted: Key) -> Result<Content> {
        // The object may have become something else since.
        let ds = match self.pool.dsl().dataset_by_object(wanted.object) {
            Err(e) if e.is_wrong_content() => return Err(Kind::Stale.into()),
            found => found?,
        };
        if ds.phys().guid != wanted.guid {
            return Err(Kind::Stale.into());
        }
        // A volume lies in a directory of its own.
        match ds.dir().object() == self.ds.dir().object() {
            true => head::open_snapshot(&self.pool, &ds, &self.temporary).map(Content::Files),
            false => open_volume(&self.pool, &ds).map(Content::Volume),
        }
    }

    fn close(&self, object: u64) {
        // A mount of its own may use it as well.
        let mounted = self.entry.upgrade().and_then(|e| e.mounted(object));
        if mounted.is_none() {
            self.pool.close_dataset(object);
        }
    }

    fn create(&self, name: &str, peer: Peer) -> Result<()> {
        let admin = self.admin_for(peer)?;
        let _ended = admin::cancel::ended_by(self.forced.clone());
        let full = self.full(name);
        let request = SnapshotCreate {
            command: format!("zfs snapshot {full}"),
            names: vec![full],
            ..SnapshotCreate::default()
        };
        let lost = snapshots::create(&admin, peer, &request).map_err(kind)?;
        // A system call has no words for it.
        lost.iter().for_each(|what| tracing::warn!("{what}"));
        Ok(())
    }

    fn destroy(&self, name: &str, peer: Peer) -> Result<()> {
        // Lists and ranges are for the command.
        if name.contains([',', '%']) {
            return Err(Kind::Invalid.into());
        }
        self.find(name)?;
        let admin = self.admin_for(peer)?;
        let _ended = admin::cancel::ended_by(self.forced.clone());
        let full = self.full(name);
        let request = DatasetDestroy {
            command: format!("zfs destroy {full}"),
            name: full,
            ..DatasetDestroy::default()
        };
        let done = destroy::destroy(&admin, peer, &request);
        let done = done.map_err(kind)?;
        match done.failed.first() {
            Some((_, e)) => Err(kind(e.clone())),
            None => Ok(()),
        }
    }

    fn rename(&self, name: &str, to: &str, peer: Peer) -> Result<()> {
        let admin = self.admin_for(peer)?;
        let _ended = admin::cancel::ended_by(self.forced.clone());
        let (from, to) = (self.full(name), self.full(to));
        let command = format!("zfs rename {from} {to}");
        let done = rename::rename(&admin, peer, &from, &to, rename::How::default(), command);
        done.map(drop).map_err(kind)
    }
}
