//! Replay: applies the records of a claimed log when its dataset is mounted (pool format §26.3, §26.4).

use crate::chain::persist;
use crate::header::{limits, FLAG_LR_SEQ_VALID};
use crate::log::note_replayed;
use crate::{tx, walk, RawRecord, Zil, WRITE_HEADER};
use base::mutation::{mutated, Mutation};
use base::{bail, Block, Error, Result};
use disk::bytes::u64_at;
use std::sync::Arc;

/// A record to apply.
#[derive(Clone, Debug)]
pub struct Record {
    /// The record as it was logged.
    pub raw: RawRecord,
    /// Data of a write record ([`tx::WRITE`]); empty otherwise.
    pub data: Block,
    /// File offset of `data`. With an indirect record `data` is the whole block that contains the
    /// range: all of it is written, but the file ends at max(old end, offset + length of the
    /// record).
    pub data_offset: u64,
    /// End of file the record asks for, at least (write records).
    pub end: u64,
}

/// Applies records; implemented by the file system and by volumes.
pub trait Replayer {
    /// Whether an object exists: records of the kinds [`tx::is_out_of_order`] about others are
    /// passed over.
    fn object_exists(&mut self, object: u64) -> Result<bool>;
    /// Applies the record and, while the transaction holds its txg, calls [`Zil::log`] (as the operation
    /// does anyway) or [`Zil::replayed`]. Records that may take several transactions (those of the kinds
    /// [`tx::is_out_of_order`], and those that create) may come again after a part of them was applied:
    /// the rest must be done then.
    fn replay(&mut self, record: &Record) -> Result<()>;
    /// Sees a record that an earlier replay, which did not come to its end, has applied.
    fn seen_before(&mut self, _raw: &RawRecord) {}
    /// All is applied that can be; the log is given up next, with the same txg or a later one. If that does not come about, the next
    /// replay calls this again, and [`Replayer::seen_before`] before it for each record.
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// What a replay did.
#[derive(Clone, Debug, Default)]
pub struct Replayed {
    /// Records applied.
    pub applied: u64,
    /// Records that were not to be applied: replayed before, or on objects that are gone.
    pub skipped: u64,
    /// Where it stopped early: sequence and type of the record, and why.
    pub failed: Option<(u64, u64, Error)>,
}

impl Zil {
    /// Replays a claimed log in order and then destroys it: the blocks are freed with the open
    /// txg, for which the caller should wait before relying on the log. A record that fails
    /// twice ends the replay ([`Replayed::failed`]); what follows it is lost.
    ///
    /// Errors: what may pass ([`Error::may_pass`]), a device that is not read above all. The log stays
    /// as it is then, and a later replay goes on behind the last record that was applied. Before that the
    /// caller has the txg written, and opens the log anew.
    pub fn replay(&self, replayer: &mut dyn Replayer) -> Result<Replayed> {
        let mut out = Replayed::default();
        if !self.needs_replay() {
            self.start()?;
            return Ok(out);
        }
        if !self.opts.enabled {
            bail!(Unsupported, "replaying the intent log of this dataset");
        }
        let (h, noted) = {
            let st = self.lock();
            // What an earlier replay did is in the header on disk, or waits for its txg.
            let waiting = st.replayed.values().copied().max().unwrap_or(0);
            (st.header, st.header.replay_seq.max(waiting))
        };
        if h.flags & FLAG_LR_SEQ_VALID != 0 && noted > h.claim_lr_seq {
            // An earlier replay came to the end ([`Replayer::finish`] was done, too), and could not free the log.
            self.dispose()?;
            return Ok(out);
        }
        let r = walk(
            &*self.store,
            &h.log,
            limits(&h),
            &mut |_| Ok(true),
            &mut |raw| {
                if raw.seq <= noted || raw.txg < h.claim_txg {
                    replayer.seen_before(raw);
                    return Ok(true);
                }
                if mutated(Mutation::ReplaySkips) && raw.seq % 3 == 1 {
                    return Ok(true);
                }
                match self.replay_one(replayer, raw) {
                    Ok(true) => out.applied += 1,
                    Ok(false) => out.skipped += 1,
                    Err(_) if mutated(Mutation::ReplayDropsUnread) => out.skipped += 1,
                    Err(e) if e.may_pass() => {
                        return Err(e.context(format!("log record {}", raw.seq)));
                    }
                    Err(e) => {
                        out.failed = Some((raw.seq, raw.ty, e));
                        return Ok(false);
                    }
                }
                Ok(true)
            },
        );
        self.lock().replaying = None;
        let end = r?;
        let claimed = h.flags & FLAG_LR_SEQ_VALID != 0 && !end.stopped;
        if claimed && end.lr_seq < h.claim_lr_seq {
            let (last, dataset) = (h.claim_lr_seq, self.opts.dataset);
            tracing::warn!(
                dataset,
                "log is damaged: record {} is the last of {last}",
                end.lr_seq
            );
        }
        persist(&mut || replayer.finish())?;
        let (dataset, applied, skipped) = (self.opts.dataset, out.applied, out.skipped);
        tracing::debug!(dataset, applied, skipped, failed = ?out.failed, "log is replayed");
        if !self.dispose()? {
            // Nothing of it is replayed again, whatever becomes of the objects until it can be freed. The number is
            // above that of the last record: with that one alone, `finish` is not known to be done.
            let end = h.claim_lr_seq.max(end.lr_seq).saturating_add(1);
            let note = &mut |txg| note_replayed(&mut self.lock(), txg, end);
            self.store.dirty(note)?;
        }
        Ok(out)
    }

    fn replay_one(&self, replayer: &mut dyn Replayer, raw: &RawRecord) -> Result<bool> {
        // What takes several transactions counts as done when all of them are.
        let repeatable = tx::is_out_of_order(raw.ty) || tx::is_creation(raw.ty);
        let counts = if repeatable { raw.seq - 1 } else { raw.seq };
        self.lock().replaying = Some(counts);
        if tx::is_out_of_order(raw.ty) && !persist(&mut || replayer.object_exists(raw.object()))? {
            return Ok(false);
        }
        if raw.ty == tx::CLONE_RANGE {
            self.replay_clone(replayer, raw)?;
        } else {
            let record = persist(&mut || self.record(raw))?;
            self.apply(replayer, &record)?;
        }
        if repeatable {
            self.lock().replaying = Some(raw.seq);
            self.store.dirty(&mut |txg| self.replayed(txg))?;
        }
        Ok(true)
    }

    fn apply(&self, replayer: &mut dyn Replayer, record: &Record) -> Result<()> {
        match replayer.replay(record) {
            Ok(()) => Ok(()),
            // What failed came behind it.
            Err(_) if self.is_noted(record.raw.seq) => Ok(()),
            Err(_) => {
                // Deferred work may have been in the way: once more on a quiet pool.
                self.store.wait_synced()?;
                replayer.replay(record)
            }
        }
    }

    /// Whether a transaction has applied the record.
    fn is_noted(&self, seq: u64) -> bool {
        let st = self.lock();
        st.header.replay_seq >= seq || st.replayed.values().any(|s| *s >= seq)
    }

    /// A clone-range record as write records, one per block: its content is what counts.
    fn replay_clone(&self, replayer: &mut dyn Replayer, raw: &RawRecord) -> Result<()> {
        let word = |at| u64_at(&raw.bytes, at);
        let (offset, length, unit) = (word(40)?, word(48)?, word(56)?);
        let bps = raw.clone_bps();
        let fits = unit > 0
            && unit <= base::MAX_BLOCK as u64
            && length <= unit * bps.len() as u64
            && offset
                .checked_add(length)
                .is_some_and(|e| e <= i64::MAX as u64);
        if !fits {
            bail!(Damaged, "clone record at {offset:#x}+{length:#x}");
        }
        let mut at = 0;
        for bp in bps {
            let n = unit.min(length - at) as usize;
            if n == 0 {
                break;
            }
            let mut data = if bp.is_hole() {
                vec![0; n]
            } else {
                persist(&mut || self.store.read_data(&bp))?.to_vec()
            };
            data.resize(n, 0);
            let body = disk::zil::Body::Write {
                object: raw.object(),
                offset: offset + at,
                length: n as u64,
                data: disk::zil::WriteData::Zeros,
            };
            let bytes = disk::zil::Record {
                txg: raw.txg,
                seq: raw.seq,
                ignore_case: false,
                body,
            }
            .encode();
            let record = Record {
                raw: RawRecord {
                    ty: tx::WRITE,
                    bytes,
                    ..raw.clone()
                },
                data: Arc::new(data),
                data_offset: offset + at,
                end: offset + at + n as u64,
            };
            at += n as u64;
            self.apply(replayer, &record)?;
        }
        Ok(())
    }

    fn record(&self, raw: &RawRecord) -> Result<Record> {
        let mut rec = Record {
            raw: raw.clone(),
            data: Block::default(),
            data_offset: 0,
            end: 0,
        };
        if !matches!(raw.ty, tx::WRITE | tx::WRITE2) {
            return Ok(rec);
        }
        let offset = u64_at(&raw.bytes, 40)?;
        let length = u64_at(&raw.bytes, 48)?;
        rec.end = match offset.checked_add(length) {
            Some(end) if end <= i64::MAX as u64 => end,
            _ => bail!(Damaged, "write record at {offset:#x}+{length:#x}"),
        };
        rec.data_offset = offset;
        if raw.ty == tx::WRITE2 {
            return Ok(rec);
        }
        let body = raw.bytes.get(WRITE_HEADER..).unwrap_or_default();
        if let Some(bp) = raw.write_bp() {
            let data = self.store.read_data(&bp)?;
            let size = data.len() as u64;
            if size == 0 {
                bail!(Damaged, "indirect write record with an empty block");
            }
            // Blocks of one file are all of one size; the range lies inside one.
            rec.data_offset = offset / size * size;
            if rec.end > rec.data_offset + size {
                bail!(Damaged, "write record beyond its block");
            }
            rec.data = data;
        } else if body.is_empty() {
            if length > base::MAX_BLOCK as u64 {
                bail!(Damaged, "write record of {length} zeros");
            }
            rec.data = Arc::new(vec![0; length as usize]);
        } else {
            let data = usize::try_from(length).ok().and_then(|n| body.get(..n));
            rec.data = match data {
                Some(d) => Arc::new(d.to_vec()),
                None => bail!(Damaged, "write record cut short"),
            };
        }
        Ok(rec)
    }
}
