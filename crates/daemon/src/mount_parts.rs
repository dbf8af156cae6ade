//! What the mounts of this door have in common, whether the kernel has one for the file system or for a view it hangs in.

use crate::nfs_slot::Slot;
use admin::door;
use base::sync::MutexExt;
use base::{bail, Result};
use dsl::Dataset;
use fuse::holders::Holders;
use fuse_zpl::{Adapter, Ending, Left, Written};
use pool::Pool;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use vfs::{Ctldir, Served};
use zpl::Zfs;

/// What all mounted file systems have.
pub struct Parts {
    /// Its pool.
    pub pool: Arc<Pool>,
    /// The file system.
    pub ds: Arc<Dataset>,
    /// Its `.zfs`.
    pub ctl: Arc<Ctldir>,
    /// What serves it, until its end.
    pub adapter: Weak<Adapter>,
    /// The way in for clients of NFS.
    pub nfs: Arc<Slot>,
    /// What the kernel keeps of what was written.
    pub written: Written,
    /// What got lost at the end, in words.
    pub lost: Mutex<Option<String>>,
    /// It goes by force: system calls on it that wait for commands end.
    pub forced: Arc<AtomicBool>,
}

impl Parts {
    /// Of a mount that begins.
    pub fn new(
        (pool, ds): (&Arc<Pool>, &Arc<Dataset>),
        adapter: &Arc<Adapter>,
        written: Written,
        forced: Arc<AtomicBool>,
    ) -> Parts {
        Parts {
            pool: pool.clone(),
            ds: ds.clone(),
            ctl: adapter.served().ctl().clone(),
            adapter: Arc::downgrade(adapter),
            nfs: Arc::default(),
            written,
            lost: Mutex::default(),
            forced,
        }
    }

    /// Of the same file system, mounted at another place.
    pub fn at(&self, mount: &fuse::Mount) -> Parts {
        Parts {
            pool: self.pool.clone(),
            ds: self.ds.clone(),
            ctl: self.ctl.clone(),
            adapter: self.adapter.clone(),
            nfs: self.nfs.clone(),
            written: self.written.at(mount),
            lost: Mutex::default(),
            forced: self.forced.clone(),
        }
    }

    /// The file system in service; none after its end.
    pub fn served(&self) -> Option<Arc<Served>> {
        Some(self.adapter.upgrade()?.served().clone())
    }

    /// Whether files are open for writing.
    pub fn has_writers(&self) -> bool {
        let adapter = self.adapter.upgrade();
        adapter.is_some_and(|a| !a.door().writers().nodes().is_empty())
    }

    /// It goes by force from now on, or does not.
    pub fn set_forced(&self, forced: bool) {
        self.forced.store(forced, Ordering::SeqCst);
    }

    /// Takes what the kernel keeps of written data, before requests fail. What could not be taken is logged, and told by
    /// [`admin::door::Mount::lost`].
    pub fn write_out_for_the_end(&self) -> Option<Ending<'_>> {
        let files = self.written.files();
        if files == 0 {
            return None;
        }
        let (ending, done) = match self.pool.suspended() {
            None => {
                let (ending, done) = self.written.end();
                (Some(ending), done)
            }
            // It would get no further than memory.
            Some(_) => {
                let why = "I/O of the pool is suspended".to_string();
                (None, Err(Left { files, why }))
            }
        };
        if let Err(left) = done {
            let text = format!("{}: {left}", self.ds.full_name());
            crate::log::error(&text);
            *self.lost.acquire() = Some(text);
        }
        ending
    }

    /// [`admin::Mount::write_out`]
    pub fn write_out(&self) -> std::result::Result<(), String> {
        self.written.take().map_err(|left| left.to_string())
    }

    /// [`admin::Mount::suspend`]
    pub fn suspend(&self) -> Result<Box<dyn door::Held>> {
        match self.served() {
            Some(served) => Ok(Box::new(Held(served.suspend()?))),
            None => bail!(Busy, "{}: the mount has just ended", self.ds.full_name()),
        }
    }

    /// Has the kernel ask again for attributes that it keeps for a moment: the space files take is known.
    pub fn synced(&self) {
        if let Some(served) = self.served() {
            served.synced();
        }
    }

    /// [`admin::Mount::follow_props`]
    pub fn follow_props(&self) {
        if let Some(served) = self.served() {
            served.properties_changed();
        }
    }
}

/// The processes that keep a mount busy, as the end of a sentence. Other users are not told what others do.
pub fn told(users: &Holders) -> String {
    match admin::datasets::rights::is_for_stranger() {
        true => String::new(),
        false => users.to_string(),
    }
}

/// A mount whose requests wait.
struct Held(vfs::Suspended);

impl door::Held for Held {
    fn resume(self: Box<Self>, zfs: &Arc<Zfs>) -> Result<()> {
        self.0.resume(zfs.clone())
    }
}
