//! One cache device: where it is written next, what it holds, its header and its log blocks (pool format §28).
//!
//! Invariants:
//!
//! 1. A block is in the index only while its bytes are on the device: the entry goes before the range is written again, and comes
//!    when the write has ended.
//! 2. The header says how far ranges were given up before one of them is written again. So after a crash no log block is believed
//!    whose blocks may be gone.
//! 3. Nothing is flushed: what a power cut takes away fails its checksum, and is read from the pool.

use super::index::{BlockKey, Index};
use base::sync::MutexExt;
use base::{bail, roundup, Result};
use codec::checksum::{embed, verify_embedded};
use codec::{checksum, compress};
use disk::l2arc::{self, Header, LogEntry, LogPtr};
use disk::{Checksum, Compression, NvList};
use env::{Access, Disk, Env, Op};
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use vdev::{keys, Stats};

/// Bytes of one write.
const WRITE: usize = 1 << 20;
/// Most log blocks that are followed: more than the largest device that is believed has.
const MAX_LOGS: usize = 1 << 20;

/// So much behind what a pass writes is given up and discarded with it (`l2arc_trim_ahead`), but no larger part of the device than one of
/// so many.
const AHEAD: u64 = 64 << 20;
const AHEAD_PART: u64 = 8;
/// No discard is larger.
const LARGEST_DISCARD: u64 = 128 << 20;
/// What the header says of a device that was discarded wholly.
const TRIM_COMPLETE: u64 = 4;

/// A cached block on the device.
struct Held {
    at: u64,
    asize: u64,
    key: BlockKey,
}

/// What a pass writes: an entry whose place is still open, and the bytes.
pub(super) struct Fresh {
    pub key: BlockKey,
    pub entry: LogEntry,
    pub raw: Vec<u8>,
}

#[derive(Default)]
struct Hand {
    /// Offset of the next write, and up to which ranges were given up.
    at: u64,
    evict: u64,
    first_sweep: bool,
    /// Blocks on the device, those first that will be overwritten first.
    held: VecDeque<Held>,
    /// Entries that are in no log block yet; where the first of their blocks is, and the bytes of all.
    open: Vec<LogEntry>,
    payload: (u64, u64),
    newest: [LogPtr; 2],
    logs: VecDeque<LogPtr>,
}

/// An open cache device.
pub(super) struct CacheDevice {
    pub guid: u64,
    disk: Arc<dyn Disk>,
    ashift: u32,
    start: u64,
    end: u64,
    entries: u64,
    pub stats: Stats,
    hand: Mutex<Hand>,
    /// As in [`Header::trim`]. A leaf lock.
    trim: Mutex<(u64, u64)>,
    /// It is about to be closed: what takes long ends early.
    pub leaving: AtomicBool,
    used: AtomicU64,
    /// A write failed: nothing is read or written any more.
    pub broken: AtomicBool,
    /// What a former import left on it has not been looked at yet.
    pub unread: AtomicBool,
    /// It is an image file.
    pub is_file: bool,
    /// What is going to be overwritten is discarded before.
    pub discards: AtomicBool,
}

fn overlaps(l: &LogPtr, from: u64, to: u64, (start, end): (u64, u64)) -> bool {
    let meets = |a: u64, b: u64| a < to && b > from;
    let behind = l.at.saturating_add(l.asize());
    match l.payload_at <= l.at {
        true => meets(l.payload_at, behind),
        // Its blocks go on at the other end.
        false => meets(l.payload_at, end) || meets(start, behind),
    }
}

/// Whether `x` lies between two offsets, going round at the end of the area.
fn between(from: u64, to: u64, x: u64) -> bool {
    match from <= to {
        true => from <= x && x <= to,
        false => x <= to || from <= x,
    }
}

impl CacheDevice {
    /// Opens the device that is listed as `listed`, if its labels say that it is this cache device.
    pub fn open(env: &Env, listed: &NvList, writable: bool) -> Result<CacheDevice> {
        let guid = listed.get_u64(keys::GUID).unwrap_or(0);
        let path = listed.get_str(keys::PATH).unwrap_or_default();
        let access = match writable {
            true => Access::Exclusive,
            false => Access::Read,
        };
        let disk = env.disks.open(path, access)?;
        let labels = vdev::label::read_labels(&*disk);
        let own = labels.copies.iter().flatten().any(|l| {
            l.get_u64(keys::GUID) == Some(guid)
                && l.get_u64(keys::pool::STATE) == Some(keys::pool::STATE_L2CACHE)
        });
        if !own {
            bail!(Damaged, "{path} has no label of the cache device");
        }
        let size = disk.geometry().size;
        let ashift = listed.get_u64(keys::ASHIFT).unwrap_or(9).clamp(9, 16) as u32;
        let start = l2arc::HEADER_AT + l2arc::header_size(ashift);
        let end = disk::label::DATA_START + disk::label::leaf_asize(size);
        let end = end >> ashift << ashift;
        if end <= start {
            bail!(Overflow, "{path} is too small for a cache device");
        }
        let hand = Hand {
            at: start,
            evict: start,
            first_sweep: true,
            ..Hand::default()
        };
        Ok(CacheDevice {
            guid,
            disk,
            ashift,
            start,
            end,
            entries: l2arc::entries_per_block(end - start),
            stats: Stats::default(),
            hand: Mutex::new(hand),
            trim: Mutex::default(),
            leaving: AtomicBool::new(false),
            used: AtomicU64::new(0),
            broken: AtomicBool::new(false),
            unread: AtomicBool::new(true),
            is_file: listed.get_str(keys::TYPE) == Some("file"),
            discards: AtomicBool::new(false),
        })
    }

    /// Whether the device can be told that it holds nothing.
    pub fn can_discard(&self) -> bool {
        self.disk.geometry().can_discard
    }

    /// When all of it was discarded, seconds since 1970.
    pub fn trimmed(&self) -> Option<u64> {
        let (time, state) = *self.trim.acquire();
        (state == TRIM_COMPLETE).then_some(time)
    }

    /// Discards all that can hold blocks, before there are any: whoever feeds the device does, and nobody else. That takes long, so no lock
    /// of the device is held, and it ends early if the device is about to be closed.
    ///
    /// # Errors
    /// The device failed, and is not used any more. One that cannot be told, or fails to discard, is no error.
    pub fn trim_whole(&self, pool: u64, now: u64) -> Result<()> {
        if !self.discard(self.start, self.end) {
            return Ok(());
        }
        let h = self.hand.acquire();
        *self.trim.acquire() = (now, TRIM_COMPLETE);
        self.write_header(pool, &h)
    }

    /// Tells the device that a range holds nothing. Returns whether it did it.
    fn discard(&self, from: u64, to: u64) -> bool {
        let mut at = from;
        while at < to {
            if self.leaving.load(Ordering::Acquire) {
                return false;
            }
            let n = LARGEST_DISCARD.min(to - at);
            match self.disk.discard(at, n) {
                Ok(()) => {
                    self.stats.trim_ops.fetch_add(1, Ordering::Relaxed);
                    self.stats.trim_bytes.fetch_add(n, Ordering::Relaxed);
                }
                Err(e) if e.kind == base::Kind::Unsupported => return false,
                Err(_) => {
                    self.stats.trim_errors.fetch_add(1, Ordering::Relaxed);
                    return false;
                }
            }
            at += n;
        }
        true
    }

    /// Bytes that can be cached, and those in use.
    pub fn space(&self) -> (u64, u64) {
        (self.end - self.start, self.used.load(Ordering::Relaxed))
    }

    /// Bytes of the device.
    pub fn size(&self) -> u64 {
        self.disk.geometry().size
    }

    /// Whether nothing was overwritten yet.
    pub fn is_filling(&self) -> bool {
        self.hand.acquire().first_sweep
    }

    pub fn asize(&self, psize: u64) -> u64 {
        roundup(psize, 1 << self.ashift)
    }

    /// Whether it can be used.
    pub fn works(&self) -> bool {
        !self.broken.load(Ordering::Acquire)
    }

    fn header(&self, pool: u64, h: &Hand) -> Header {
        Header {
            pool,
            vdev: self.guid,
            entries: self.entries,
            evict: h.evict,
            first_sweep: h.first_sweep,
            start: self.start,
            end: self.end,
            newest: h.newest,
            log_bytes: h.logs.iter().map(LogPtr::asize).sum(),
            log_count: h.logs.len() as u64,
            trim: *self.trim.acquire(),
        }
    }

    fn write_header(&self, pool: u64, h: &Hand) -> Result<()> {
        let mut b = self.header(pool, h).encode(self.ashift);
        embed(Checksum::LABEL, &mut b, &[l2arc::HEADER_AT, 0, 0, 0])?;
        self.write(l2arc::HEADER_AT, b)
    }

    fn write(&self, at: u64, bytes: Vec<u8>) -> Result<()> {
        let add = |n: &AtomicU64, by: u64| n.fetch_add(by, Ordering::Relaxed);
        let mut ops = Vec::new();
        let mut offset = at;
        for part in bytes.chunks(WRITE) {
            ops.push(Op::Write {
                offset,
                bufs: vec![Arc::new(part.to_vec())],
            });
            offset += part.len() as u64;
        }
        add(&self.stats.write_ops, ops.len() as u64);
        let mut failed = None;
        for (_, r) in self.disk.batch(ops) {
            if let Err(e) = r {
                add(&self.stats.write_errors, 1);
                failed = Some(e);
            }
        }
        add(&self.stats.write_bytes, bytes.len() as u64);
        match failed {
            None => Ok(()),
            Some(e) => {
                self.broken.store(true, Ordering::Release);
                Err(e)
            }
        }
    }

    /// Lets go of what lies between two offsets.
    fn give_up(&self, h: &mut Hand, from: u64, to: u64, index: &Index) {
        while let Some(f) = h.held.front().filter(|f| f.at >= from && f.at < to) {
            index.remove(&f.key, self.guid, f.at);
            self.used.fetch_sub(f.asize, Ordering::Relaxed);
            h.held.pop_front();
        }
        let area = (self.start, self.end);
        let used = &self.used;
        h.logs.retain(|l| {
            let gone = overlaps(l, from, to, area);
            if gone {
                used.fetch_sub(l.asize(), Ordering::Relaxed);
            }
            !gone
        });
    }

    /// Makes the next `need` bytes behind the hand free, and some more if it discards. Returns what was given up, if something may have been.
    fn make_room(&self, h: &mut Hand, need: u64, index: &Index) -> Option<(u64, u64)> {
        if h.at + need > self.end {
            let at = h.at;
            self.give_up(h, at, self.end, index);
            h.at = self.start;
            h.evict = self.start;
            h.first_sweep = false;
        }
        if h.first_sweep {
            return None;
        }
        let ahead = match self.discards.load(Ordering::Relaxed) {
            true => AHEAD.min((self.end - self.start) / AHEAD_PART),
            false => 0,
        };
        let ahead = ahead >> self.ashift << self.ashift;
        let (from, to) = (h.at, (h.at + need + ahead).min(self.end));
        self.give_up(h, from, to, index);
        let before = h.evict.max(from);
        h.evict = h.evict.max(to);
        Some((before, h.evict))
    }

    /// Gives up the oldest blocks until the index holds at most `most`.
    pub fn shrink(&self, index: &Index, most: usize) {
        let mut h = self.hand.acquire();
        while index.len() > most {
            let Some(f) = h.held.pop_front() else { return };
            index.remove(&f.key, self.guid, f.at);
            self.used.fetch_sub(f.asize, Ordering::Relaxed);
        }
    }

    /// The log block of the open entries, at `at`: its bytes, padded. The chain in `h` goes on with it.
    fn log_block(&self, h: &mut Hand, at: u64) -> Result<Vec<u8>> {
        let plain = l2arc::encode_log(&h.newest[1], &h.open);
        let unit = 1usize << self.ashift;
        let packed = compress::compress(Compression::LZ4, 0, &plain, plain.len() - unit);
        let (kind, mut bytes) = match packed {
            Some(b) if roundup(b.len() as u64, unit as u64) < plain.len() as u64 => {
                (Compression::LZ4, b)
            }
            _ => (Compression::OFF, plain),
        };
        bytes.resize(roundup(bytes.len() as u64, unit as u64) as usize, 0);
        let sum = checksum::compute(Checksum::FLETCHER4, &bytes, false, &[0; 32])?;
        let ptr = LogPtr::new(at, bytes.len() as u64, kind, h.payload, sum);
        h.newest = [ptr, h.newest[0]];
        h.logs.push_back(ptr);
        h.open.clear();
        self.used.fetch_add(ptr.asize(), Ordering::Relaxed);
        Ok(bytes)
    }

    /// Writes blocks behind the hand and lists them in the index; one pass. Only the thread that feeds calls it.
    ///
    /// # Errors
    /// The device failed, and is not used any more.
    pub fn write_pass(&self, pool: u64, fresh: Vec<Fresh>, index: &Index) -> Result<()> {
        let mut guard = self.hand.acquire();
        let h = &mut *guard;
        let data: u64 = fresh.iter().map(|f| self.asize(f.raw.len() as u64)).sum();
        let logs = match self.entries {
            0 => 0,
            n => (h.open.len() + fresh.len()) as u64 / n,
        };
        let need = data + logs * l2arc::LOG_SIZE as u64;
        if fresh.is_empty() || need > self.end - self.start {
            return Ok(());
        }
        if let Some((from, to)) = self.make_room(h, need, index) {
            self.write_header(pool, h)?;
            if self.discards.load(Ordering::Relaxed) {
                self.discard(from, to);
            }
        }
        let begin = h.at;
        let mut bytes: Vec<u8> = Vec::with_capacity(need as usize);
        let mut written = Vec::with_capacity(fresh.len());
        for mut f in fresh {
            let at = begin + bytes.len() as u64;
            let asize = self.asize(f.raw.len() as u64);
            f.entry.at = at;
            bytes.append(&mut f.raw);
            bytes.resize((at - begin + asize) as usize, 0);
            written.push((f.key, f.entry, asize));
            if self.entries == 0 {
                continue;
            }
            if h.open.is_empty() {
                h.payload = (at, 0);
            }
            h.payload.1 += asize;
            h.open.push(f.entry);
            if h.open.len() as u64 >= self.entries {
                let block = self.log_block(h, begin + bytes.len() as u64)?;
                bytes.extend_from_slice(&block);
            }
        }
        h.at = begin + bytes.len() as u64;
        self.write(begin, bytes)?;
        for (key, entry, asize) in written {
            h.held.push_back(Held {
                at: entry.at,
                asize,
                key,
            });
            self.used.fetch_add(asize, Ordering::Relaxed);
            index.insert(key, self.guid, entry.at, entry.psize);
        }
        self.write_header(pool, h)
    }

    fn read(&self, at: u64, len: u64) -> Result<Vec<u8>> {
        self.stats.read_ops.fetch_add(1, Ordering::Relaxed);
        self.stats.read_bytes.fetch_add(len, Ordering::Relaxed);
        let mut buf = vec![0; len as usize];
        let read = self.disk.read(at, &mut buf);
        if read.is_err() {
            self.stats.read_errors.fetch_add(1, Ordering::Relaxed);
        }
        read.map(|()| buf)
    }

    /// Reads cached blocks, given by offset and PSIZE, in one batch.
    pub fn read_many(&self, places: &[(u64, u64)]) -> Vec<Result<Vec<u8>>> {
        let ops = places.iter().map(|(at, psize)| Op::Read {
            offset: *at,
            buf: vec![0; self.asize(*psize) as usize],
        });
        let add = |n: &AtomicU64, by: u64| n.fetch_add(by, Ordering::Relaxed);
        add(&self.stats.read_ops, places.len() as u64);
        let mut out = Vec::new();
        for ((op, r), (_, psize)) in self.disk.batch(ops.collect()).into_iter().zip(places) {
            add(&self.stats.read_bytes, self.asize(*psize));
            out.push(match (op, r) {
                (Op::Read { mut buf, .. }, Ok(())) => {
                    buf.truncate(*psize as usize);
                    Ok(buf)
                }
                (_, r) => {
                    add(&self.stats.read_errors, 1);
                    Err(r.err().unwrap_or(base::Kind::Io.into()))
                }
            });
        }
        out
    }

    /// Takes over what a former import left: the header, then the log blocks from the newest to the oldest. What does not fit is
    /// passed over, and the device begins empty. Returns whether there is a header of the pool.
    pub fn rebuild(&self, pool: u64, index: &Index, most: usize) -> bool {
        let Some(header) = self.read_header(pool) else {
            return false;
        };
        let mut h = self.hand.acquire();
        *self.trim.acquire() = header.trim;
        let newest = header.newest[0];
        h.at = match newest.is_none() {
            true => self.start,
            false => newest.at.saturating_add(newest.asize()),
        };
        let whole = h.at % (1 << self.ashift) == 0;
        if !whole || h.at < self.start || h.at > self.end || header.evict > self.end {
            h.at = self.start;
            return true;
        }
        h.evict = header.evict.max(self.start);
        h.first_sweep = header.first_sweep;
        h.newest = header.newest;
        let mut next = header.newest;
        let mut found: Vec<(LogPtr, Vec<LogEntry>)> = Vec::new();
        let mut seen = BTreeSet::new();
        let mut count = index.len();
        while self.is_valid(&next[0], &h) && found.len() < MAX_LOGS && count < most {
            let Ok((older, entries)) = self.read_log(&next[0]) else {
                break;
            };
            // A chain that leads to a block again goes round.
            if !seen.insert(next[0].at) {
                break;
            }
            count += entries.len();
            found.push((next[0], entries));
            next = [next[1], older];
        }
        for (ptr, entries) in found.into_iter().rev() {
            for e in entries.iter().filter(|e| self.fits(e)) {
                let key = BlockKey::new(&e.dva, e.birth);
                let asize = self.asize(e.psize);
                if index.insert_older(key, self.guid, e.at, e.psize) {
                    h.held.push_back(Held {
                        at: e.at,
                        asize,
                        key,
                    });
                    self.used.fetch_add(asize, Ordering::Relaxed);
                }
            }
            self.used.fetch_add(ptr.asize(), Ordering::Relaxed);
            h.logs.push_back(ptr);
        }
        true
    }

    fn read_header(&self, pool: u64) -> Option<Header> {
        let b = self
            .read(l2arc::HEADER_AT, l2arc::header_size(self.ashift))
            .ok()?;
        let at = [l2arc::HEADER_AT, 0, 0, 0];
        let sealed = verify_embedded(Checksum::LABEL, &b, &at).is_ok();
        let header = Header::decode(&b).ok().filter(|_| sealed)?;
        let own = header.pool == pool
            && header.vdev == self.guid
            && header.entries == self.entries
            && (header.start, header.end) == (self.start, self.end);
        own.then_some(header)
    }

    /// Whether a log block and its payload lie in the area, and not where the hand may have been since.
    fn is_valid(&self, l: &LogPtr, h: &Hand) -> bool {
        let last = l.at.saturating_add(l.asize()).saturating_sub(1);
        let inside = |x: u64| x >= self.start && x < self.end;
        let given_up = |x: u64| between(h.at, h.evict, x);
        let crossed = between(l.payload_at, last, h.at) || between(l.payload_at, last, h.evict);
        !l.is_none()
            && inside(l.at)
            && inside(last)
            && inside(l.payload_at)
            && l.asize() <= l2arc::LOG_SIZE as u64
            && l.asize() % (1 << self.ashift) == 0
            && (h.first_sweep || !(crossed || given_up(l.payload_at) || given_up(last)))
    }

    fn read_log(&self, l: &LogPtr) -> Result<(LogPtr, Vec<LogEntry>)> {
        let b = self.read(l.at, l.asize())?;
        let sum = checksum::compute(Checksum::FLETCHER4, &b, false, &[0; 32])?;
        if sum != l.checksum {
            bail!(Checksum, "log block of a cache device");
        }
        let plain = match l.compression() {
            Compression::OFF => b,
            alg => compress::decompress(alg, &b, l2arc::LOG_SIZE)?,
        };
        l2arc::decode_log(&plain, self.entries)
    }

    fn fits(&self, e: &LogEntry) -> bool {
        let end = e.at.saturating_add(self.asize(e.psize));
        e.dva.is_valid()
            && e.at >= self.start
            && end <= self.end
            && e.at % (1 << self.ashift) == 0
            && e.psize <= base::MAX_BLOCK as u64
    }
}

#[cfg(test)]
mod tests;
