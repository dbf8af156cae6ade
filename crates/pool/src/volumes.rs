//! Volumes: replay of the intent logs that a crash left, before a volume is read, snapshotted or sent.

use crate::datasets::OpenSet;
use crate::Pool;
use base::mutation::{mutated, Mutation};
use base::sync::MutexExt;
use base::{bail, Error, Kind, Result};
use disk::volume::{DATA, PROPS, SIZE};
use disk::zil::{Body, Record};
use dmu::{Dnode, Need, Objset};
use dsl::Dataset;
use std::ops::Range;
use std::sync::Arc;
use zap::Zap;
use zil::{Replayer, Zil};

/// The bytes of a volume, or of a snapshot of one.
pub struct Volume {
    dnode: Arc<Dnode>,
    /// Dnodes do not keep their object set.
    _os: Arc<Objset>,
    size: u64,
}

impl Volume {
    /// Of the object set of a volume, or of a snapshot of one.
    ///
    /// # Errors
    /// `Kind::NotFound`: it is the object set of something else. Those of reading the two objects.
    pub fn new(os: Arc<Objset>) -> Result<Volume> {
        if os.os_type() != disk::os_type::ZVOL {
            return Err(Kind::NotFound.into());
        }
        Ok(Volume {
            size: Zap::new(&os.hold(PROPS)?).get(SIZE)?.unwrap_or(0),
            dnode: os.hold(DATA)?,
            _os: os,
        })
    }

    /// Size when it was opened, bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes in a block.
    pub fn block_size(&self) -> u64 {
        self.dnode.info().block_size as u64
    }

    /// Hands on the blocks of `len` bytes from `offset`, as far as the volume reaches. Returns the number of bytes.
    ///
    /// # Errors
    /// Those of reading the blocks.
    pub fn read(
        &self,
        offset: u64,
        len: usize,
        put: &mut dyn FnMut(&base::Block, Range<usize>),
    ) -> Result<usize> {
        let n = (len as u64).min(self.size.saturating_sub(offset)) as usize;
        if n > 0 {
            self.dnode.read_blocks(offset, n, put)?;
        }
        Ok(n)
    }

    /// Where data (or a hole) begins at or after `offset`; `None`: nowhere before the end.
    ///
    /// # Errors
    /// Those of reading block pointers.
    pub fn seek(&self, offset: u64, data: bool) -> Result<Option<u64>> {
        if offset >= self.size {
            return Ok(None);
        }
        match self.dnode.seek(offset, data)? {
            Some(at) if at < self.size => Ok(Some(at.max(offset))),
            _ if data => Ok(None),
            _ => Ok(Some(self.size)),
        }
    }
}

struct Redo<'a> {
    set: &'a OpenSet,
    zil: &'a Zil,
    size: u64,
    /// Ranges whose freeing was put off: a deliberate mistake.
    late: Vec<(u64, u64)>,
}

impl Redo<'_> {
    fn free(&self, offset: u64, len: u64) -> Result<()> {
        let data = self.set.os.hold(DATA)?;
        if is_damaged(data.check_free(offset, len))? {
            return Ok(());
        }
        let tx = self.set.os.tx(Need::freeing())?;
        data.free_range(&tx, offset, len)?;
        self.zil.replayed(tx.txg());
        Ok(())
    }
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
                let (at, n) = (record.data_offset, len as u64);
                let checked = data.check_write(at, n);
                if is_damaged(checked.and_then(|()| data.check_edges(at, n)))? {
                    return Ok(());
                }
                // Into the slop space, if need be: the log goes when it is replayed.
                let tx = os.tx(Need {
                    bytes: n + (16 << 10),
                    ..Need::freeing()
                })?;
                data.write(&tx, record.data_offset, &record.data[..len])?;
                self.zil.replayed(tx.txg());
            }
            Body::Truncate { offset, length, .. } => {
                let len = length.min(self.size.saturating_sub(offset));
                match mutated(Mutation::DiscardReplayedLate) {
                    true => self.late.push((offset, len)),
                    false => self.free(offset, len)?,
                }
            }
            _ => bail!(
                Unsupported,
                "a record of type {} in the log of a volume",
                record.raw.ty
            ),
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let late = std::mem::take(&mut self.late);
        late.into_iter().try_for_each(|(at, n)| self.free(at, n))
    }
}

/// Whether what a record is to change is damaged, which is on record then: it is passed over, and those behind it are not. An
/// error of a device is no damage: what is passed over now is lost.
fn is_damaged(checked: Result<()>) -> Result<bool> {
    match checked {
        Err(e) if e.is_wrong_content() => Ok(true),
        r => r.map(|()| false),
    }
}

impl Pool {
    /// Replays the logs of volumes that opening the pool found something in, as far as their keys
    /// are loaded; to be called again when keys have been. Returns what failed, with names.
    pub fn replay_volumes(&self) -> Vec<(String, Error)> {
        let mut failed = Vec::new();
        let lock = || self.sets.logged.acquire();
        let mut later = Vec::new();
        let list = std::mem::take(&mut *lock());
        for ds in list {
            match self.replay_volume(&ds) {
                Ok(true) => {}
                Ok(false) => later.push(ds),
                Err(e) if e.kind == Kind::NotFound => {}
                Err(e) if e.may_pass() || self.open_set(ds.object()).is_some() => {
                    // Its log is still there, or what was replayed is not on disk.
                    failed.push((ds.full_name(), e));
                    later.push(ds);
                }
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
        // Until all of it is on disk; also behind an error, for what was replayed before.
        set.os.set_replaying(true);
        let r = self.replay_into(&set);
        // What was replayed so far must be on disk before the log is opened once more. A set whose txg waits stays open: its
        // log knows what was replayed.
        self.sync()?;
        set.os.set_replaying(false);
        self.close_dataset(ds.object());
        r.map(|()| true)
    }

    fn replay_into(&self, set: &OpenSet) -> Result<()> {
        let Some(zil) = set.zil().filter(|z| z.needs_replay()) else {
            return Ok(());
        };
        let size = Volume::new(set.os.clone())?.size();
        let late = Vec::new();
        let mut redo = Redo {
            set,
            zil,
            size,
            late,
        };
        let done = zil.replay(&mut redo)?;
        if let Some((seq, ty, e)) = done.failed {
            return Err(e.context(format!(
                "intent log record {seq} (type {ty}) cannot be replayed"
            )));
        }
        Ok(())
    }
}
