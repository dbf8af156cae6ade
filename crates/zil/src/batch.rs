//! One round of a commit: packs records into log blocks, writes the blocks of the chain, flushes once.

use crate::chain::{is_slim, log_pointer, successor, Builder, UNIT};
use crate::itx::{Body, Form, Itx};
use crate::{tx, Indirect, Wanted, Zil, CHAIN_SIZE, RECORD_HEADER, WRITE_HEADER};
use base::{bail, Block, Error, Kind, Result, Txg};
use disk::bytes::put_u64;
use disk::BlkPtr;
use std::collections::VecDeque;
use std::sync::Arc;

/// Where data that need several records are cut: at multiples of this in the object. Each sector of 512 or 4096 bytes, which programs write
/// on disks as one, is then replayed whole or not at all.
const SECTOR: usize = 4096;
/// Blocks of files written in place together.
const TOGETHER: usize = 128;
/// Bytes of log blocks that are written together.
const HOLD: usize = 8 << 20;
/// How often a round takes along what came since it began.
const CATCH_UP: u32 = 8;

pub(crate) struct Batch<'a> {
    zil: &'a Zil,
    block: Builder,
    /// Sequence number of the newest record.
    pub lr_seq: u64,
    /// Records written.
    pub records: u64,
    /// Blocks written, in order; of the last ones the data are in `held`.
    pub written: Vec<BlkPtr>,
    held: Vec<(BlkPtr, Block)>,
    /// Bytes in `held`.
    holding: usize,
    /// Ranges whose blocks are still to be written in place, and what became of those before them.
    wanted: VecDeque<Wanted>,
    placed: VecDeque<Result<Indirect>>,
    /// Bytes written.
    pub bytes: usize,
    /// Bytes of records.
    pub total: usize,
    /// Bytes of records still to come, estimated.
    ahead: usize,
    /// Size of recent batches.
    guess: usize,
}

fn up8(n: usize) -> usize {
    n.div_ceil(8) * 8
}

/// What a change will take in the log, about.
fn estimate(itx: &Itx) -> usize {
    match &itx.body {
        Body::Record(b) => up8(b.len()),
        Body::Unlogged => 0,
        Body::Write {
            form: Form::Indirect { .. },
            ..
        } => WRITE_HEADER,
        Body::Write { length, .. } => {
            WRITE_HEADER.saturating_add(up8(usize::try_from(*length).unwrap_or(usize::MAX / 4)))
        }
    }
}

impl<'a> Batch<'a> {
    /// `first`: the allocated, unwritten last block of the chain.
    pub fn new(zil: &'a Zil, first: BlkPtr, lr_seq: u64, guess: usize) -> Batch<'a> {
        Batch {
            zil,
            block: Builder::new(first),
            lr_seq,
            records: 0,
            written: Vec::new(),
            held: Vec::new(),
            holding: 0,
            wanted: VecDeque::new(),
            placed: VecDeque::new(),
            bytes: 0,
            total: 0,
            ahead: 0,
            guess,
        }
    }

    /// Writes all. An error means that some of it may not be on disk.
    ///
    /// Where an object is gone whose data were to be logged, its name may be in the log already, and
    /// what took it away came after this round began: a file renamed over by the next one, say. A crash
    /// would leave the name without the data. So what came since goes along, and none of it counts
    /// before all of it is there.
    pub fn run(&mut self, itxs: Vec<(Txg, Itx)>) -> Result<()> {
        base::mutation::panic_point("a round of the log");
        let mut gone = self.append(itxs)?;
        let mut whole = false;
        for _ in 0..CATCH_UP {
            if !gone {
                break;
            }
            whole = true;
            let later = self.zil.lock().take_ordered();
            gone = self.append(later)?;
        }
        if self.block.max_txg.is_none() && self.written.is_empty() {
            return Ok(());
        }
        if !self.block.max_txg.is_none() {
            self.close(self.guess, 0)?;
        }
        if whole && self.held.len() > 1 {
            // Nothing leads to the others before the first is there.
            let others = self.held.split_off(1);
            self.zil.store.write_blocks(&others)?;
            self.zil.store.flush()?;
        }
        self.send()?;
        self.zil.store.flush()
    }

    /// Records into blocks. Returns whether an object was gone whose data were wanted.
    fn append(&mut self, itxs: Vec<(Txg, Itx)>) -> Result<bool> {
        self.ahead = itxs
            .iter()
            .fold(0, |n, (_, i)| n.saturating_add(estimate(i)));
        self.wanted = itxs.iter().filter_map(|(t, i)| wanted(*t, i)).collect();
        let mut gone = false;
        for (txg, itx) in itxs {
            let size = estimate(&itx);
            match self.one(txg, itx) {
                // So is the need for its records.
                Err(e) if e.kind == Kind::NotFound => gone = true,
                r => r?,
            }
            self.ahead = self.ahead.saturating_sub(size);
        }
        Ok(gone)
    }

    /// What became of the block of the next indirect write.
    fn place(&mut self) -> Result<Indirect> {
        if self.placed.is_empty() {
            let n = self.wanted.len().min(TOGETHER);
            let list: Vec<Wanted> = self.wanted.drain(..n).collect();
            self.placed.extend(self.zil.store.write_indirect(&list));
        }
        let none = || Err(Error::damaged("a block of a write was not placed"));
        self.placed.pop_front().unwrap_or_else(none)
    }

    /// Writes the blocks that are held back.
    fn send(&mut self) -> Result<()> {
        base::mutation::panic_point("sending blocks of the log");
        self.holding = 0;
        let held = std::mem::take(&mut self.held);
        match held.is_empty() {
            true => Ok(()),
            false => self.zil.store.write_blocks(&held),
        }
    }

    fn one(&mut self, txg: Txg, itx: Itx) -> Result<()> {
        match itx.body {
            Body::Record(b) => self.record(b, txg),
            Body::Unlogged => bail!(
                Unsupported,
                "a change of txg {txg} that no record describes"
            ),
            Body::Write {
                generation,
                offset,
                length,
                form,
            } => {
                if length == 0 {
                    return Ok(());
                }
                match form {
                    Form::Copied(data) => self.data(itx.object, offset, length, txg, &|at, buf| {
                        let at = (at - offset) as usize;
                        match data.get(at..at + buf.len()) {
                            Some(d) => buf.copy_from_slice(d),
                            None => bail!(Invalid, "write record with too little data"),
                        }
                        Ok(())
                    }),
                    Form::NeedCopy => self.copy(itx.object, generation, offset, length, txg),
                    Form::Indirect { .. } => match self.place()? {
                        Indirect::At(bp) => {
                            let mut b = write_record(tx::WRITE, itx.object, offset, length, 0);
                            b[64..WRITE_HEADER].copy_from_slice(&bp.to_bytes());
                            self.record(b, txg)
                        }
                        Indirect::OnDisk => {
                            let b = write_record(tx::WRITE2, itx.object, offset, length, 0);
                            self.record(b, txg)
                        }
                        Indirect::Copy => self.copy(itx.object, generation, offset, length, txg),
                    },
                }
            }
        }
    }

    fn copy(
        &mut self,
        object: u64,
        generation: u64,
        offset: u64,
        len: u64,
        txg: Txg,
    ) -> Result<()> {
        let store = self.zil.store.clone();
        self.data(object, offset, len, txg, &|at, buf| {
            store.current_data(object, generation, at, buf)
        })
    }

    /// Write records with data, cut at the last end of a sector before a block ends.
    fn data(
        &mut self,
        object: u64,
        offset: u64,
        length: u64,
        txg: Txg,
        fetch: &dyn Fn(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let (mut at, mut left) = (offset, length);
        while left > 0 {
            let want = usize::try_from(left).unwrap_or(usize::MAX / 4);
            let fits = |room: usize| {
                let room = room.saturating_sub(WRITE_HEADER);
                room >= want || room >= SECTOR
            };
            if !fits(self.block.room()) {
                let all = self.ahead.max(WRITE_HEADER.saturating_add(want));
                self.close(all, WRITE_HEADER + want.min(SECTOR) + 8)?;
            }
            let room = (self.block.room() - WRITE_HEADER) / 8 * 8;
            let n = match want <= room {
                true => want,
                false => room - (at.wrapping_add(room as u64) % SECTOR as u64) as usize,
            };
            let mut b = write_record(tx::WRITE, object, at, n as u64, n);
            fetch(at, &mut b[WRITE_HEADER..WRITE_HEADER + n])?;
            self.record(b, txg)?;
            at += n as u64;
            left -= n as u64;
        }
        Ok(())
    }

    /// Appends a whole record.
    fn record(&mut self, mut b: Vec<u8>, txg: Txg) -> Result<()> {
        b.resize(up8(b.len()).max(RECORD_HEADER), 0);
        if b.len() + CHAIN_SIZE > self.zil.opts.max_block {
            bail!(ArgTooBig, "log record of {} bytes", b.len());
        }
        if self.block.room() < b.len() {
            self.close(self.ahead.max(b.len()), b.len())?;
        }
        self.lr_seq += 1;
        let len = b.len() as u64;
        put_u64(&mut b, 8, len);
        put_u64(&mut b, 16, txg.number());
        put_u64(&mut b, 24, self.lr_seq);
        self.block.push(&b, txg);
        self.total += b.len();
        self.records += 1;
        Ok(())
    }

    /// Writes the block and goes on with a new one for `want` bytes of records; at least for `min`.
    /// The next block is allocated before this one is written, since this one names it.
    fn close(&mut self, want: usize, min: usize) -> Result<()> {
        let opts = &self.zil.opts;
        let size = |n: usize| {
            let n = n.saturating_add(CHAIN_SIZE).min(opts.max_block);
            n.div_ceil(UNIT) * UNIT
        };
        let store = &self.zil.store;
        let old = self.block.bp;
        let id = successor(&old.checksum());
        let alloc = |size: usize| -> Result<BlkPtr> {
            let mut next = None;
            store.alloc_block(size, &mut |dva, txg| {
                let bp = log_pointer(&**store, dva, size, is_slim(&old), txg, &id);
                // The txg is still open: its sync will see the block, and wait for what names it.
                self.zil.lock().note_next(bp, txg);
                next = Some(bp);
            })?;
            next.ok_or_else(|| Error::damaged("a log block was not noted"))
        };
        let (wanted, least) = (size(want), size(min));
        let next = match alloc(wanted) {
            Err(e) if e.kind == Kind::NoSpace && least < wanted => alloc(least)?,
            r => r?,
        };
        let block = std::mem::replace(&mut self.block, Builder::new(next));
        if let Some(l) = self.zil.lock().lwb(&old) {
            l.max_txg = block.max_txg;
        }
        let data = block.finish(&next, &store.crypt())?;
        self.bytes += data.len();
        self.holding += data.len();
        self.held.push((old, Arc::new(data)));
        self.written.push(old);
        match self.holding >= HOLD {
            true => self.send(),
            false => Ok(()),
        }
    }
}

/// The block to be written in place for an indirect write.
fn wanted(txg: Txg, itx: &Itx) -> Option<Wanted> {
    match itx.body {
        Body::Write {
            generation,
            offset,
            length,
            form: Form::Indirect { .. },
        } if length > 0 => Some(Wanted {
            object: itx.object,
            generation,
            offset,
            length,
            txg,
        }),
        _ => None,
    }
}

/// A write record with `data` bytes of room, all zero.
fn write_record(ty: u64, object: u64, offset: u64, length: u64, data: usize) -> Vec<u8> {
    let mut b = vec![0; WRITE_HEADER + up8(data)];
    put_u64(&mut b, 0, ty);
    put_u64(&mut b, 32, object);
    put_u64(&mut b, 40, offset);
    put_u64(&mut b, 48, length);
    b
}
