//! The checkpoint of a simulated pool: taken, discarded, gone back to; and a new guid, which it forbids.

use super::lineage::must_fail;
use super::{desk, text, Outcome, World};
use crate::check::Opened;
use crate::op::Op;
use crate::rig;
use base::{Kind, Result};
use std::sync::Arc;

impl World {
    /// Takes the checkpoint. A file is emptied just before, as another thread may do it: the checkpoint has the file, and what
    /// is freed of it in the same txg must not be used again.
    pub(super) fn checkpoint(&mut self, fs: &str, path: &str) -> Result<Outcome> {
        let Some(pool) = self.pool().cloned() else {
            return Ok(Outcome::Nothing);
        };
        if self.object(fs, path).is_none() {
            return Ok(Outcome::Nothing);
        }
        pool.prove_devices()?;
        let (kept, newest) = (self.oracle.keep(), pool.synced_txg());
        self.posix(&Op::Truncate {
            fs: fs.into(),
            path: path.into(),
            size: 0,
        })?;
        let done = pool.take_checkpoint();
        if self.oracle.now().checkpoint.is_some() {
            let what = "a second checkpoint";
            return must_fail(done.map(drop), &[Kind::Exists], what);
        }
        match done {
            Ok(txg) if txg == newest => {
                let pos = self.pos();
                self.oracle
                    .administered(pos, |a, _| a.checkpoint = Some(Arc::new(kept)));
                Ok(Outcome::Done)
            }
            // A txg was written in between, for its own reasons: nobody knows what it had of the file.
            Ok(_) => {
                desk(&self.opened)?.discard_checkpoint()?;
                Ok(Outcome::Done)
            }
            // One is being discarded, or there is no room.
            Err(e) if matches!(e.kind, Kind::Busy | Kind::NoSpace) => Ok(Outcome::Refused),
            Err(e) => Err(e),
        }
    }

    /// Discards it; its space is freed in the txgs that follow.
    pub(super) fn discard(&mut self) -> Result<Outcome> {
        if self.pool().is_none() {
            return Ok(Outcome::Nothing);
        }
        let done = desk(&self.opened)?.discard_checkpoint();
        if self.oracle.now().checkpoint.is_none() {
            let what = "a checkpoint that is not there is discarded";
            return must_fail(done, &[Kind::NotFound, Kind::Busy], what);
        }
        done?;
        let pos = self.pos();
        self.oracle.administered(pos, |a, _| a.checkpoint = None);
        Ok(Outcome::Done)
    }

    /// Gives the pool another guid.
    pub(super) fn reguid(&mut self) -> Result<Outcome> {
        if self.pool().is_none() {
            return Ok(Outcome::Nothing);
        }
        let done = desk(&self.opened)?.reguid();
        if self.oracle.now().checkpoint.is_some() {
            let what = "a new guid in spite of the checkpoint";
            return must_fail(done, &[Kind::Exists], what);
        }
        match done {
            // A device is not there or lacks something, or a checkpoint is being discarded.
            Err(e) if matches!(e.kind, Kind::NoDevice | Kind::Busy) => Ok(Outcome::Refused),
            Err(e) => Err(e),
            Ok(()) => {
                let pos = self.pos();
                self.oracle.ack_all(pos);
                // The labels do not belong to what was before.
                if let Some(pool) = self.pool() {
                    self.first = pool.synced_txg();
                }
                Ok(Outcome::Done)
            }
        }
    }

    /// Goes back to it, for good, if no device ever failed. The journal begins anew.
    pub(super) fn rewind(&mut self) -> std::result::Result<Outcome, String> {
        let Some(kept) = self.oracle.now().checkpoint.clone() else {
            return Ok(Outcome::Nothing);
        };
        if self.counts.faults > 0 || self.pool().is_none() {
            return Ok(Outcome::Nothing);
        }
        self.export()?;
        // An import does not wait for devices.
        self.waiting.disarm();
        self.comparable.clear();
        let seed = self.next_seed();
        let o = Opened::import_at(&self.disks, &self.layout, seed, &self.clock, true);
        let o = o.map_err(text)?;
        let found = o.judge(&kept.oracle(), &o.trees()?, 0)?;
        o.pool.sync().map_err(text)?;
        let events = self.journal.take();
        self.hash.events(&events);
        self.counts.events += events.len() as u64;
        let (journal, base) = rig::start_journal(&self.disks);
        (self.journal, self.base) = (journal, base);
        self.imported = 0;
        // What older uberblocks lead to is free.
        self.first = o.pool.synced_txg();
        let half = self.oracle.half.take();
        self.oracle = o.adopt(&found)?;
        self.oracle.half = half;
        self.opened = Some(o);
        self.lend_patience();
        let pos = self.pos();
        self.oracle.ack_all(pos);
        Ok(Outcome::Done)
    }
}
