//! A disk in memory that fails in every way a disk can, and notes what reached it.

use crate::origin::{Origins, Watcher};
use base::sync::MutexExt;
use base::{Error, Kind, Result};
use env::{Disk, Geometry, Op};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

const CHUNK: u64 = 64 << 10;

/// What reached one of several disks.
#[derive(Clone, Debug)]
pub enum Event {
    /// A write.
    Write {
        /// Number of the disk.
        disk: usize,
        /// First byte.
        offset: u64,
        /// The bytes.
        data: base::Block,
    },
    /// A flush that ended here; it covers what was written before event number `begun`.
    Flush {
        /// Number of the disk.
        disk: usize,
        /// Number of the event at which it began.
        begun: usize,
    },
    /// What is on the medium changed by itself.
    Rot {
        /// Number of the disk.
        disk: usize,
        /// First byte.
        offset: u64,
        /// The bytes that are there now.
        data: Vec<u8>,
    },
}

/// Everything that reached a set of disks, in order; for pulling the plug afterwards.
#[derive(Default)]
pub struct Journal(Mutex<Vec<Event>>);

impl Journal {
    /// Number of events.
    pub fn len(&self) -> usize {
        self.0.acquire().len()
    }

    /// Whether nothing has reached the disks.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What happened so far; the journal begins anew.
    pub fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.0.acquire())
    }
}

/// A sparse disk in memory.
pub struct MemDisk {
    chunks: Mutex<BTreeMap<u64, Arc<Vec<u8>>>>,
    /// Where what is on it came from, and who wants to know what of that is read.
    watch: Mutex<Option<(Origins, Arc<Watcher>)>>,
    /// Where writes and flushes are noted, and under which number.
    journal: Mutex<Option<(Arc<Journal>, usize)>>,
    /// How long a flush takes, microseconds of the real clock.
    pub flush_time: AtomicU64,
    /// Writes and flushes that still work; all later ones fail. Negative: no limit.
    pub left: AtomicI64,
    size: AtomicU64,
    /// Logical and physical sector size.
    pub logical_sector: AtomicU32,
    /// See `logical_sector`.
    pub physical_sector: AtomicU32,
    /// Every read fails.
    pub fail_reads: AtomicBool,
    /// Every write fails.
    pub fail_writes: AtomicBool,
    /// Every flush fails.
    pub fail_flush: AtomicBool,
    /// It cannot be opened.
    pub gone: AtomicBool,
    /// It has stopped answering: every transfer fails at once.
    pub dead: AtomicBool,
    /// Transfers of any kind after which it is dead. Negative: no limit.
    pub dies_after: AtomicI64,
    /// So many of the next reads fail, and writes, each once.
    pub read_errors: AtomicU64,
    /// So many reads still work before `read_errors` begins.
    pub spared_reads: AtomicU64,
    /// See `read_errors`.
    pub write_errors: AtomicU64,
    /// So many of the next writes are acknowledged and never happen.
    pub phantom: AtomicU64,
    /// The next write lands so many bytes further on (wherever that is on the disk).
    pub misdirect: Mutex<Option<i64>>,
    /// A transfer takes this long, by the clock of [`MemDisk::stall`].
    pub delay_ns: AtomicU64,
    clock: Mutex<Option<Arc<crate::ManualClock>>>,
    /// Reads that touch these byte ranges fail, until the range is written.
    pub bad_ranges: Mutex<base::RangeSet>,
    /// Writes that touch these byte ranges fail.
    pub unwritable: Mutex<base::RangeSet>,
    /// Flushes so far.
    pub flushes: AtomicU64,
    /// Transfers, reads and writes.
    pub reads: AtomicU64,
    /// See `reads`.
    pub writes: AtomicU64,
    pub(crate) open_exclusive: AtomicU64,
}

impl MemDisk {
    /// A disk of `size` bytes, all zeros, with sectors of 512 bytes.
    pub fn new(size: u64) -> Arc<MemDisk> {
        Arc::new(MemDisk {
            chunks: Mutex::new(BTreeMap::new()),
            watch: Mutex::new(None),
            journal: Mutex::new(None),
            flush_time: AtomicU64::new(0),
            left: AtomicI64::new(-1),
            size: AtomicU64::new(size),
            logical_sector: AtomicU32::new(512),
            physical_sector: AtomicU32::new(512),
            fail_reads: AtomicBool::new(false),
            fail_writes: AtomicBool::new(false),
            fail_flush: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            dies_after: AtomicI64::new(-1),
            read_errors: AtomicU64::new(0),
            spared_reads: AtomicU64::new(0),
            write_errors: AtomicU64::new(0),
            phantom: AtomicU64::new(0),
            misdirect: Mutex::new(None),
            delay_ns: AtomicU64::new(0),
            clock: Mutex::new(None),
            bad_ranges: Mutex::new(base::RangeSet::new()),
            unwritable: Mutex::new(base::RangeSet::new()),
            flushes: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            open_exclusive: AtomicU64::new(0),
        })
    }

    /// A disk of the same size and content, without faults; shares memory until one changes.
    pub fn fork(&self) -> Arc<MemDisk> {
        let new = MemDisk::new(self.size.load(Relaxed));
        *new.chunks.acquire() = self.chunks.acquire().clone();
        *new.watch.acquire() = self.watch.acquire().clone();
        new.logical_sector
            .store(self.logical_sector.load(Relaxed), Relaxed);
        new.physical_sector
            .store(self.physical_sector.load(Relaxed), Relaxed);
        new
    }

    /// From now on what is read of what `origins` names is told to `watcher`: each sector once, and
    /// not after it was written. That holds for forks, too, which tell the same watcher.
    pub fn watch(&self, origins: Origins, watcher: &Arc<Watcher>) {
        *self.watch.acquire() = Some((origins, watcher.clone()));
    }

    /// From now on every write and flush that works is noted as one of disk `number`.
    pub fn record(&self, journal: &Arc<Journal>, number: usize) {
        *self.journal.acquire() = Some((journal.clone(), number));
    }

    fn note(&self, event: impl FnOnce(usize) -> Event) {
        if let Some((journal, number)) = &*self.journal.acquire() {
            journal.0.acquire().push(event(*number));
        }
    }

    /// Whether the disk is worn out ([`MemDisk::left`]).
    fn worn_out(&self) -> bool {
        let one_less = |n: i64| if n > 0 { Some(n - 1) } else { None };
        match self.left.load(Relaxed) {
            n if n < 0 => false,
            _ => self.left.fetch_update(Relaxed, Relaxed, one_less).is_err(),
        }
    }

    /// Every transfer from now on moves `clock` on by `ns` nanoseconds.
    pub fn stall(&self, clock: &Arc<crate::ManualClock>, ns: u64) {
        *self.clock.acquire() = Some(clock.clone());
        self.delay_ns.store(ns, Relaxed);
    }

    /// No faults any more; what they did stays done.
    pub fn well(&self) {
        for on in [
            &self.fail_reads,
            &self.fail_writes,
            &self.fail_flush,
            &self.gone,
            &self.dead,
        ] {
            on.store(false, Relaxed);
        }
        for n in [
            &self.read_errors,
            &self.spared_reads,
            &self.write_errors,
            &self.phantom,
            &self.delay_ns,
        ] {
            n.store(0, Relaxed);
        }
        self.left.store(-1, Relaxed);
        self.dies_after.store(-1, Relaxed);
        *self.misdirect.acquire() = None;
        *self.bad_ranges.acquire() = base::RangeSet::new();
        *self.unwritable.acquire() = base::RangeSet::new();
    }

    /// What every transfer does first: takes its time, or fails.
    fn answer(&self) -> Result<()> {
        match self.delay_ns.load(Relaxed) {
            0 => {}
            ns => {
                if let Some(c) = &*self.clock.acquire() {
                    c.pass(ns);
                }
            }
        }
        if self.dies_after.load(Relaxed) >= 0 && self.dies_after.fetch_sub(1, Relaxed) == 0 {
            self.dead.store(true, Relaxed);
        }
        match self.dead.load(Relaxed) {
            true => Err(Error::new(Kind::Io, "the device does not answer")),
            false => Ok(()),
        }
    }

    /// The end of the writing of `offset`: where it really goes, `None` for nowhere.
    fn lands(&self, offset: u64, len: u64) -> Option<u64> {
        if one_of(&self.phantom) {
            return None;
        }
        let Some(shift) = self.misdirect.acquire().take() else {
            return Some(offset);
        };
        let last = self.size.load(Relaxed).saturating_sub(len);
        let sector = u64::from(self.logical_sector.load(Relaxed));
        Some(offset.saturating_add_signed(shift).min(last) / sector * sector)
    }

    /// All that was written, without the holes: `(offset, bytes)`.
    pub fn for_each_chunk(&self, f: &mut dyn FnMut(u64, &[u8])) {
        if let Some((origins, watcher)) = &mut *self.watch.acquire() {
            origins.taken(0, self.size.load(Relaxed), watcher);
        }
        for (i, c) in self.chunks.acquire().iter() {
            f(i * CHUNK, c);
        }
    }

    /// Changes the size in bytes.
    pub fn resize(&self, size: u64) {
        self.size.store(size, Relaxed);
    }

    fn check(&self, offset: u64, len: usize) -> Result<()> {
        let sector = u64::from(self.logical_sector.load(Relaxed));
        if offset % sector != 0 || len as u64 % sector != 0 {
            return Err(Error::new(Kind::Invalid, "not in sectors"));
        }
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.size.load(Relaxed) => Ok(()),
            _ => Err(Error::new(Kind::Io, "past the end")),
        }
    }

    /// Reads without faults and rules.
    pub fn peek(&self, offset: u64, buf: &mut [u8]) {
        if let Some((origins, watcher)) = &mut *self.watch.acquire() {
            origins.taken(offset, offset + buf.len() as u64, watcher);
        }
        let chunks = self.chunks.acquire();
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let (index, skip) = (at / CHUNK, (at % CHUNK) as usize);
            let n = (buf.len() - done).min(CHUNK as usize - skip);
            match chunks.get(&index) {
                Some(c) => buf[done..done + n].copy_from_slice(&c[skip..skip + n]),
                None => buf[done..done + n].fill(0),
            }
            done += n;
        }
    }

    /// Writes without faults and rules.
    pub fn poke(&self, offset: u64, buf: &[u8]) {
        if let Some((origins, watcher)) = &mut *self.watch.acquire() {
            origins.written(offset, offset + buf.len() as u64, watcher);
        }
        let mut chunks = self.chunks.acquire();
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let (index, skip) = (at / CHUNK, (at % CHUNK) as usize);
            let n = (buf.len() - done).min(CHUNK as usize - skip);
            let chunk = chunks
                .entry(index)
                .or_insert_with(|| Arc::new(vec![0; CHUNK as usize]));
            Arc::make_mut(chunk)[skip..skip + n].copy_from_slice(&buf[done..done + n]);
            done += n;
        }
    }

    /// Inverts every byte that was ever written from `offset` (rounded down to 64 KiB) on.
    pub fn corrupt_written(&self, offset: u64) {
        let chunks = self.chunks.acquire();
        let written: Vec<u64> = chunks.range(offset / CHUNK..).map(|(i, _)| *i).collect();
        drop(chunks);
        for i in written {
            self.corrupt(i * CHUNK, CHUNK as usize);
        }
    }

    /// Inverts every byte of a range.
    pub fn corrupt(&self, offset: u64, len: usize) {
        let mut data = vec![0; len];
        self.peek(offset, &mut data);
        data.iter_mut().for_each(|x| *x = !*x);
        self.poke(offset, &data);
        self.note(|disk| Event::Rot { disk, offset, data });
    }
}

/// Takes one from what is left, if anything is.
fn one_of(left: &AtomicU64) -> bool {
    let less = |n: u64| n.checked_sub(1);
    left.fetch_update(Relaxed, Relaxed, less).is_ok()
}

/// What a discard leaves at a byte.
fn garbage(at: u64) -> u8 {
    let mixed = (at ^ 0x7269_6d6d_6564).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8 | 1
}

fn injected() -> Error {
    Error::new(Kind::Io, "injected fault")
}

impl Disk for MemDisk {
    fn geometry(&self) -> Geometry {
        Geometry {
            size: self.size.load(Relaxed),
            logical_sector: self.logical_sector.load(Relaxed),
            physical_sector: self.physical_sector.load(Relaxed),
            is_block: false,
            can_discard: true,
        }
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        base::mutation::panic_point("a read of a disk");
        self.reads.fetch_add(1, Relaxed);
        self.check(offset, buf.len())?;
        let end = offset + buf.len() as u64;
        self.answer()?;
        if !one_of(&self.spared_reads) && one_of(&self.read_errors)
            || self.fail_reads.load(Relaxed)
            || self.bad_ranges.acquire().overlaps(offset, end)
        {
            return Err(injected());
        }
        self.peek(offset, buf);
        Ok(())
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        base::mutation::panic_point("a write to a disk");
        self.writes.fetch_add(1, Relaxed);
        self.check(offset, buf.len())?;
        self.answer()?;
        let end = offset + buf.len() as u64;
        if one_of(&self.write_errors)
            || self.fail_writes.load(Relaxed)
            || self.unwritable.acquire().overlaps(offset, end)
            || self.worn_out()
        {
            return Err(injected());
        }
        let Some(offset) = self.lands(offset, buf.len() as u64) else {
            return Ok(());
        };
        self.bad_ranges
            .acquire()
            .remove(offset, offset + buf.len() as u64);
        self.poke(offset, buf);
        self.note(|disk| Event::Write {
            disk,
            offset,
            data: Arc::new(buf.to_vec()),
        });
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        base::mutation::panic_point("a flush of a disk");
        self.flushes.fetch_add(1, Relaxed);
        self.answer()?;
        if self.fail_flush.load(Relaxed) || self.worn_out() {
            return Err(injected());
        }
        let begun = self.journal.acquire().as_ref().map_or(0, |(j, _)| j.len());
        match self.flush_time.load(Relaxed) {
            0 => {}
            t => std::thread::sleep(std::time::Duration::from_micros(t)),
        }
        self.note(|disk| Event::Flush { disk, begun });
        Ok(())
    }

    fn batch(&self, ops: Vec<Op>) -> Vec<(Op, Result<()>)> {
        base::mutation::panic_point("a batch of a disk");
        ops.into_iter()
            .map(|mut op| {
                let r = match &mut op {
                    Op::Read { offset, buf } => self.read(*offset, buf),
                    Op::Write { offset, bufs } => match &bufs[..] {
                        [one] => self.write(*offset, one),
                        _ => {
                            let all: Vec<&[u8]> = bufs.iter().map(|b| &b[..]).collect();
                            self.write(*offset, &all.concat())
                        }
                    },
                };
                (op, r)
            })
            .collect()
    }

    /// Fills with garbage what was ever written there: whoever discarded something of value finds out.
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        base::mutation::panic_point("a discard of a disk");
        self.check(offset, len as usize)?;
        self.answer()?;
        if one_of(&self.write_errors) || self.fail_writes.load(Relaxed) || self.worn_out() {
            return Err(injected());
        }
        let end = offset + len;
        let written: Vec<u64> = {
            let chunks = self.chunks.acquire();
            let range = chunks.range(offset / CHUNK..end.div_ceil(CHUNK));
            range.map(|(i, _)| *i).collect()
        };
        for i in written {
            let (from, to) = ((i * CHUNK).max(offset), ((i + 1) * CHUNK).min(end));
            let data: Vec<u8> = (from..to).map(garbage).collect();
            self.poke(from, &data);
            self.note(|disk| Event::Write {
                disk,
                offset: from,
                data: Arc::new(data),
            });
        }
        Ok(())
    }
}
