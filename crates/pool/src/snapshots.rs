//! Creation of snapshots: a snapshot has every change made before it, and no later one.
//!
//! 1. A head is written out before its root pointer is taken. If it were written afterwards in the
//!    same txg, the snapshot would have the old pointer, and blocks born in the txg would belong
//!    to neither: incremental streams leave them out, and destroying leaks them.
//! 2. All snapshots of one request are made in one txg, or none.
//! 3. Before pool version 27 the intent log of the head is emptied first and stays empty until its
//!    txg is on disk.

use crate::logstore::Store;
use crate::Pool;
use base::{bail_about, Kind, Result};
use dmu::Tx;
use dsl::{Caller, CreateArgs, Dataset, Dir};
use std::sync::Arc;
use zil::{Header, Left, Zil};

/// Txgs in which a snapshot is tried again because there is one of the same txg already: each time
/// another request made progress.
const ATTEMPTS: usize = 100;
/// Pool version from which on a snapshot may be made of a file system with an intent log.
const FAST_SNAPSHOTS: u64 = 27;

/// Logs that stay empty until this is dropped.
#[derive(Default)]
pub(crate) struct Quiet(Vec<Arc<Zil>>);

impl Quiet {
    /// Takes a log that was paused.
    pub fn keep(&mut self, zil: &Arc<Zil>) {
        self.0.push(zil.clone());
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        for zil in &self.0 {
            zil.resume();
        }
    }
}

/// What an intent log that is not in use has on disk; see [`Pool::left_log`].
pub struct LeftLog(Option<(Store, Left)>);

impl LeftLog {
    /// Frees it, in syncing context.
    pub fn free(&self, tx: &Tx) -> Result<()> {
        match &self.0 {
            Some((store, left)) => left.free(store, tx.txg()),
            None => Ok(()),
        }
    }
}

impl Pool {
    /// Makes snapshots (head, name behind the `@`) in one txg and returns when it is on disk. What
    /// was written to the object sets before is in them. `also` runs in the same txg afterwards, for
    /// the history; its error is returned, though the snapshots are there.
    ///
    /// Errors: those of [`dsl::Dsl::check_snapshots`]; `Kind::Busy` if a log was not replayed yet (pools
    /// before version 27). No snapshot was made then.
    pub fn snapshot(
        &self,
        list: Vec<(Arc<Dataset>, String)>,
        also: impl Fn(&Pool, &Tx) -> Result<()> + Clone + Send + 'static,
    ) -> Result<()> {
        self.snapshot_for(Caller::root(), list, also)
    }

    /// The same for a caller who may be bound by limits ([`dsl::Dsl::check_snapshot_limits`]).
    pub fn snapshot_for(
        &self,
        who: Caller,
        list: Vec<(Arc<Dataset>, String)>,
        also: impl Fn(&Pool, &Tx) -> Result<()> + Clone + Send + 'static,
    ) -> Result<()> {
        let mut last = Kind::Again.into();
        for _ in 0..ATTEMPTS {
            let _quiet = self.quiet(&list)?;
            let (who, list, also) = (who.clone(), list.clone(), also.clone());
            let made = self.task(move |pool, tx| {
                pool.dsl().check_snapshot_limits(&list, &who)?;
                pool.snapshot_in(tx, &list)?;
                also(pool, tx)
            });
            match made {
                Err(e) if e.kind == Kind::Again => last = e,
                made => return made,
            }
        }
        Err(last)
    }

    /// The same in syncing context. `Kind::Again`: possible in the next txg.
    pub fn snapshot_in(&self, tx: &Tx, list: &[(Arc<Dataset>, String)]) -> Result<()> {
        self.dsl().check_snapshots(list)?;
        for (head, _) in list {
            self.write_out(tx, head)?;
        }
        self.dsl().snapshot_all(tx, list).map(|_| ())
    }

    /// Whether the object set of a dataset is open.
    pub fn is_open(&self, ds: &Dataset) -> bool {
        self.open_set(ds.object()).is_some()
    }

    /// What the intent log of a head that nobody uses has on disk. A log that a crash left behind, and that goes with the head's
    /// content, is freed in the txg that takes the content away ([`LeftLog::free`]): a crash before leaves both.
    ///
    /// Errors: those of devices. What cannot be read otherwise has no log that could be found.
    pub fn left_log(&self, head: &Arc<Dataset>) -> Result<LeftLog> {
        let none = || Ok(LeftLog(None));
        if head.phys().bp.is_hole() {
            return none();
        }
        let os = match self
            .own_policy(head)
            .and_then(|p| head.open_objset(p, true))
        {
            Ok(os) => os,
            Err(e) if e.kind == Kind::Io => return Err(e),
            Err(_) => return none(),
        };
        let header = Header::decode(&os.zil_header())?;
        if header.log.is_hole() {
            return none();
        }
        let store = Store::new(self.me()?, os);
        let left = Left::of(&store, &header)?;
        Ok(LeftLog(Some((store, left))))
    }

    /// Makes a head what its newest snapshot is, in syncing context. Nobody may use the head's object set;
    /// its intent log is empty afterwards, and what it had is freed. See [`dsl::Dsl::rollback`].
    pub fn rollback(&self, tx: &Tx, head: &Arc<Dataset>) -> Result<()> {
        if self.is_open(head) {
            bail_about!(Busy, head.full_name(), "dataset is busy");
        }
        if let Some(snap) = head.prev()? {
            self.root_is_readable(&snap)?;
        }
        let log = self.left_log(head)?;
        self.dsl().rollback(tx, head)?;
        self.clear_log(tx, head)?;
        self.or_stop(log.free(tx))
    }

    /// Makes the clone `name` of a snapshot in `parent`, in syncing context, with an empty intent log. See
    /// [`dsl::Dsl::create_clone`].
    pub fn clone_in(
        &self,
        tx: &Tx,
        parent: &Arc<Dir>,
        name: &str,
        origin: &Arc<Dataset>,
        args: CreateArgs,
    ) -> Result<Arc<Dataset>> {
        self.root_is_readable(origin)?;
        let ds = self.dsl().create_clone(tx, parent, name, origin, args)?;
        self.clear_log(tx, &ds)?;
        Ok(ds)
    }

    /// Asked before a change that has to rewrite the root block of a snapshot's object set.
    fn root_is_readable(&self, snap: &Dataset) -> Result<()> {
        match snap.phys().bp {
            bp if bp.is_hole() => Ok(()),
            bp => self.zio().read(&bp).map(drop),
        }
    }

    /// The log of a new object set is empty; the blocks its header names belong to the one it was made
    /// of. A failure leaves a dataset behind that must not reach the disk, so it stops the pool.
    fn clear_log(&self, tx: &Tx, ds: &Arc<Dataset>) -> Result<()> {
        let opened = self
            .own_policy(ds)
            .and_then(|policy| ds.open_objset(policy, false));
        match opened {
            Ok(os) => {
                os.set_zil_header(tx, Header::default().encode());
                Ok(())
            }
            Err(e) => {
                self.stop_for_good(e.clone());
                Err(e)
            }
        }
    }

    /// Writes what the txg has of a head so far.
    fn write_out(&self, tx: &Tx, head: &Arc<Dataset>) -> Result<()> {
        let taken = head.phys().prev_snap_txg >= tx.txg();
        let late = base::mutation::mutated(base::mutation::Mutation::SnapshotOfDirtySet);
        let Some(os) = head.objset().filter(|_| !taken && !late) else {
            return Ok(());
        };
        if os.is_dirty_in(tx.txg()) {
            self.pre_sync(tx, &os)?;
            self.sync_dataset(tx, &os)?;
        }
        Ok(())
    }

    /// Empties the intent logs of these heads where the pool's version wants it.
    fn quiet(&self, list: &[(Arc<Dataset>, String)]) -> Result<Quiet> {
        let mut quiet = Quiet::default();
        if self.version() >= FAST_SNAPSHOTS {
            return Ok(quiet);
        }
        for (head, _) in list {
            let set = self.open_set(head.object());
            let Some(zil) = set.as_ref().and_then(|s| s.zil()) else {
                if !self.has_no_log(head)? {
                    bail_about!(
                        Busy,
                        head.full_name(),
                        "its intent log has not been replayed: mount it first"
                    );
                }
                continue;
            };
            zil.pause()?;
            quiet.keep(zil);
        }
        if !quiet.0.is_empty() {
            // Waits as long as it takes: the logs go on only when what they had is on disk.
            self.task(|_, _| Ok(()))?;
        }
        Ok(quiet)
    }

    fn has_no_log(&self, head: &Arc<Dataset>) -> Result<bool> {
        if head.phys().bp.is_hole() {
            return Ok(true);
        }
        let os = head.open_objset(self.write_policy(head)?, true)?;
        Ok(os.zil_header().iter().all(|b| *b == 0))
    }
}
