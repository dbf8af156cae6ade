//! `zpool reguid`: a pool gets another guid, which is that of the root of its devices (pool format §6.5).
//!
//! Labels, configuration and the sum of guids in the uberblock change with one txg. After a crash between the labels that are
//! written before the uberblock and those behind it, discovery decides by the uberblock (`vdev::discover`).
//!
//! No device leaves the pool with that txg. Its labels are changed when the txg is on disk; after a crash in between they would name
//! a pool of the old guid, which is nowhere.

use crate::Pool;
use base::sync::MutexExt;
use base::{bail, Kind, Result};
use dmu::Tx;
use std::sync::atomic::Ordering::Relaxed;
use vdev::State;

/// Txgs in which devices that leave have left.
const TRIES: usize = 8;

impl Pool {
    /// Gives the pool another guid, a random one if `guid` is none; returns it.
    ///
    /// # Errors
    /// A checkpoint exists or is being discarded; `Kind::NoDevice`: a device is not there; `Kind::Exists`: the pool or a device
    /// of it has that guid; `Kind::Invalid`: it is 0; `Kind::Busy`: devices are leaving the pool. Nothing was changed then.
    pub fn reguid(&self, guid: Option<u64>) -> Result<u64> {
        self.writable()?;
        let random = || loop {
            match self.env.rng.u64() {
                0 => {}
                guid => return guid,
            }
        };
        let guid = guid.unwrap_or_else(random);
        if guid == 0 {
            bail!(Invalid, "a guid is not 0");
        }
        for _ in 0..TRIES {
            match self.change_guid(guid) {
                Err(e) if e.kind == Kind::Again => self.sync().map(drop)?,
                done => return done,
            }
        }
        bail!(Busy, "devices are leaving the pool")
    }

    fn change_guid(&self, guid: u64) -> Result<u64> {
        self.task(move |pool, tx| {
            pool.without_checkpoint()?;
            if !pool.vdevs.left.acquire().is_empty() {
                bail!(Again, "a device leaves the pool");
            }
            let (tree, old) = (pool.tree(), pool.guid());
            if tree.state().0 != State::Healthy {
                bail!(NoDevice, "one or more devices is currently unavailable");
            }
            if guid == old || tree.find(guid).is_some() {
                bail!(Exists, "guid {guid} is in use");
            }
            tree.set_guid(guid);
            pool.vdevs.renamed.store(tx.txg().number(), Relaxed);
            pool.dirty_config();
            let text = format!("old={old} new={guid}");
            pool.or_stop(pool.log_internal(tx, "guid change", &text))?;
            Ok(guid)
        })
    }

    /// Whether a device may leave the pool with this txg.
    pub(crate) fn may_leave(&self, tx: &Tx) -> Result<()> {
        match self.vdevs.renamed.load(Relaxed) == tx.txg().number() {
            true => bail!(Busy, "the pool is getting another guid: try again"),
            false => Ok(()),
        }
    }
}
