//! Volumes: replay of the intent logs that a crash left, before a volume is read, snapshotted or sent.

use crate::datasets::OpenSet;
use crate::Pool;
use base::sync::MutexExt;
use base::{bail, Error, Kind, Result};
use disk::zil::{Body, Record};
use dmu::Need;
use dsl::Dataset;
use std::sync::Arc;
use zap::Zap;
use zil::{Replayer, Zil};

/// The object with the content, and the one that says how much of it there is.
const DATA: u64 = 1;
const PROPS: u64 = 2;

struct Redo<'a> {
    set: &'a OpenSet,
    zil: &'a Zil,
    size: u64,
}

impl Replayer for Redo<'_> {
    fn object_exists(&mut self, object: u64) -> Result<bool> {
        Ok(object == DATA)
    }

    fn replay(&mut self, record: &zil::Record) -> Result<()> {
        let os = &self.set.os;
        let data = os.hold(DATA)?;
        match Record::decode(&record.raw.bytes)?.0.body {
            Body::Write { .. } => {
                // The volume may be smaller than it was.
                let room = self.size.saturating_sub(record.data_offset);
                let len = (record.data.len() as u64).min(room) as usize;
                let tx = os.tx(Need::bytes(len as u64 + (16 << 10)))?;
                data.write(&tx, record.data_offset, &record.data[..len])?;
                self.zil.replayed(tx.txg());
            }
            Body::Truncate { offset, length, .. } => {
                let len = length.min(self.size.saturating_sub(offset));
                let tx = os.tx(Need::freeing())?;
                data.free_range(&tx, offset, len)?;
                self.zil.replayed(tx.txg());
            }
            _ => bail!(
                Unsupported,
                "a record of type {} in the log of a volume",
                record.raw.ty
            ),
        }
        Ok(())
    }
}

impl Pool {
    /// Replays the logs of volumes that opening the pool found something in, as far as their keys
    /// are loaded; to be called again when keys have been. Returns what failed, with names.
    pub fn replay_volumes(&self) -> Vec<(String, Error)> {
        let mut failed = Vec::new();
        let lock = || self.logged.acquire();
        let mut later = Vec::new();
        let list = std::mem::take(&mut *lock());
        for ds in list {
            match self.replay_volume(&ds) {
                Ok(true) => {}
                Ok(false) => later.push(ds),
                Err(e) if e.kind == Kind::NotFound => {}
                Err(e) => failed.push((ds.full_name(), e)),
            }
        }
        lock().extend(later);
        failed
    }

    /// `Ok(false)`: its key is not loaded.
    fn replay_volume(&self, ds: &Arc<Dataset>) -> Result<bool> {
        if matches!(ds.crypt()?, zio::Crypt::Locked) {
            return Ok(false);
        }
        let set = self.open_dataset(ds)?;
        let r = self.replay_into(&set);
        self.close_dataset(ds.object());
        r.map(|()| true)
    }

    fn replay_into(&self, set: &OpenSet) -> Result<()> {
        let Some(zil) = set.zil().filter(|z| z.needs_replay()) else {
            return Ok(());
        };
        let size = Zap::new(&set.os.hold(PROPS)?).get("size")?.unwrap_or(0);
        let done = zil.replay(&mut Redo { set, zil, size })?;
        self.sync()?;
        if let Some((seq, ty, e)) = done.failed {
            return Err(e.context(format!(
                "intent log record {seq} (type {ty}) cannot be replayed"
            )));
        }
        Ok(())
    }
}
