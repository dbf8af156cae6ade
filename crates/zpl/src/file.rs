//! Content of files: reading, writing, size, holes (data format §24).

use crate::attr::{flag, mode, relatime_wants, SetAttr};
use crate::log::{DataSource, Record};
use crate::perm::{self, Cred, R, W};
use crate::props::{Props, SyncMode};
use crate::zfs::Zfs;
use crate::znode::{Fixed, Znode};
use crate::Time;
use base::{Block, Data, Error, Kind, Result};
use dmu::Tx;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// After so long reading changes atime under `relatime`, whatever happened since.
pub const A_DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Largest file.
pub const MAX_SIZE: u64 = i64::MAX as u64;
/// Data written in one transaction.
const WRITE_CHUNK: usize = 4 << 20;
/// Data freed in one transaction.
const FREE_CHUNK: u64 = 1 << 30;

/// How a write is meant.
#[derive(Clone, Copy, Debug, Default)]
pub struct WriteOpts {
    /// At the end of the file, wherever that is by then; the offset is ignored.
    pub append: bool,
    /// O_SYNC or O_DSYNC.
    pub sync: bool,
    /// The caller lacks the privilege to keep set-id bits.
    pub kill_suidgid: bool,
    /// From a write-back page cache: whether it was allowed was decided when it was written, and who
    /// wrote it sets the times itself.
    pub cached: bool,
    /// The file grows to this size at most, though more is written.
    pub most: Option<u64>,
}

/// fallocate(2) modes.
pub mod falloc {
    /// `FALLOC_FL_KEEP_SIZE`
    pub const KEEP_SIZE: u32 = 1;
    /// `FALLOC_FL_PUNCH_HOLE`
    pub const PUNCH_HOLE: u32 = 2;
    /// `FALLOC_FL_ZERO_RANGE`
    pub const ZERO_RANGE: u32 = 0x10;
}

/// The block size the first block of a file gets when the file is to reach `end`, or `None` if it
/// stays as it is (data format §24).
pub(crate) fn grown_block(
    block: usize,
    max_blkid: u64,
    size: u64,
    recordsize: usize,
    end: u64,
) -> Option<usize> {
    let bs = block as u64;
    if end <= bs || max_blkid > 0 || size > bs || (block.is_power_of_two() && block >= recordsize) {
        return None;
    }
    let limit = if block > recordsize {
        // Left over from a larger recordsize.
        block.next_power_of_two() as u64
    } else {
        recordsize as u64
    };
    let new = end.next_multiple_of(512).min(limit) as usize;
    (new > block).then_some(new)
}

impl Zfs {
    fn must_reg(f: &Fixed) -> Result<()> {
        match f.mode32() & mode::FMT {
            mode::REG => Ok(()),
            mode::DIR => Err(Kind::IsDir.into()),
            _ => Err(Kind::Invalid.into()),
        }
    }

    /// What open(2) has to check besides the kernel: flags that forbid writing, and everything if the
    /// kernel does not check.
    pub fn open_file(
        &self,
        z: &Znode,
        read: bool,
        write: bool,
        append: bool,
        truncate: bool,
        cred: &Cred,
    ) -> Result<()> {
        let f = z.fixed();
        let want = if read { R } else { 0 } | if write || truncate { W } else { 0 };
        self.check(z, want, cred)?;
        if write || truncate {
            if f.is_dir() {
                return Err(Kind::IsDir.into());
            }
            if mode::is_reg(f.mode32()) {
                self.writable()?;
                // READONLY is what a mode without write permission is: it does not keep root out.
                let readonly = f.flags & flag::READONLY != 0 && !cred.privileged;
                if readonly || f.flags & flag::IMMUTABLE != 0 {
                    return Err(Kind::NotPermitted.into());
                }
                if f.flags & flag::APPENDONLY != 0 && (!append || truncate) {
                    return Err(Kind::NotPermitted.into());
                }
            }
        }
        Ok(())
    }

    /// Fills `buf` from `offset`; returns how many bytes, fewer only at the end of the file.
    pub fn read(&self, z: &Znode, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        self.read_blocks(z, offset, buf.len(), &mut |b, r| {
            let n = r.len();
            buf[done..done + n].copy_from_slice(&b[r]);
            done += n;
        })
    }

    /// Like [`Zfs::read`] without copying: `put` gets the blocks and what of them is meant, in
    /// order. After an error it may have got some.
    pub fn read_blocks(
        &self,
        z: &Znode,
        offset: u64,
        len: usize,
        put: &mut dyn FnMut(&Block, Range<usize>),
    ) -> Result<usize> {
        Self::must_reg(&z.fixed())?;
        let end = offset.saturating_add(len as u64);
        let n = {
            let _g = z.range.read(offset, end);
            let size = z.size();
            if offset >= size {
                0
            } else {
                let n = (size - offset).min(len as u64) as usize;
                z.dnode.read_blocks(offset, n, put)?;
                n
            }
        };
        self.accessed(z);
        Ok(n)
    }

    /// Sets atime after a read, if the properties want it. Never fails the read: on a full or
    /// read-only pool the time stays.
    pub(crate) fn accessed(&self, z: &Znode) {
        self.touch_atime(z);
    }

    /// Whether reading would change atime now.
    pub fn atime_due(&self, z: &Znode) -> bool {
        self.next_atime(z).is_some()
    }

    /// How long reading will leave atime as it is, if neither the object nor the properties change: not at all if it would change it
    /// now, and a day at most.
    pub fn atime_due_after(&self, z: &Znode) -> Duration {
        let p = self.props();
        let f = z.fixed();
        if !self.has_atime(&p, &f) {
            return A_DAY;
        }
        let now = self.now();
        if !p.relatime || relatime_wants(f.atime, f.mtime, f.ctime, now) {
            return Duration::ZERO;
        }
        // Seconds are what relatime looks at.
        let age = now.sec.saturating_sub(f.atime.sec).max(0).unsigned_abs();
        A_DAY.saturating_sub(Duration::from_secs(age))
    }

    /// Whether reading may change atime at all.
    fn has_atime(&self, p: &Props, f: &Fixed) -> bool {
        p.atime && !p.readonly && !self.is_read_only() && f.links > 0 && (p.diratime || !f.is_dir())
    }

    fn next_atime(&self, z: &Znode) -> Option<Time> {
        let p = self.props();
        let f = z.fixed();
        if !self.has_atime(&p, &f) {
            return None;
        }
        let now = self.now();
        let wanted = if p.relatime {
            relatime_wants(f.atime, f.mtime, f.ctime, now)
        } else {
            f.atime != now
        };
        wanted.then_some(now)
    }

    /// The same, for a door whose client reads from memory of its own: to be called when that begins.
    /// Returns whether atime changed.
    pub fn touch_atime(&self, z: &Znode) -> bool {
        let Some(now) = self.next_atime(z) else {
            return false;
        };
        // Reading must not wait for devices that cannot be written.
        if self.os.dmu().zio.devices_away() {
            return false;
        }
        let Ok(tx) = self.tx_meta() else { return false };
        // The object may be going away at this moment; its time does not matter then.
        z.update(&tx, |f| {
            f.atime = now;
            Ok(())
        })
        .is_ok()
    }

    /// Writes `data`; returns how many bytes. If something fails after some were written, their
    /// number is returned and the failure shows with the next call.
    pub fn write<'a>(
        &self,
        z: &Znode,
        offset: u64,
        data: impl Into<Data<'a>>,
        o: WriteOpts,
    ) -> Result<usize> {
        let data: Data<'a> = data.into();
        let p = self.writable_since(o.cached)?;
        let f = z.fixed();
        Self::must_reg(&f)?;
        // READONLY keeps files from being opened for writing; who has one open goes on.
        let fixed = self.forbids(f.flags, flag::IMMUTABLE)
            || self.forbids(f.flags, flag::APPENDONLY) && !o.append && offset < f.size;
        if fixed && !o.cached {
            return Err(Kind::NotPermitted.into());
        }
        if data.is_empty() {
            return Ok(0);
        }
        // Clients of NFS name any place there is a number for.
        if !o.append && offset >= MAX_SIZE {
            return Err(Kind::FileTooBig.into());
        }
        self.check_quota(f.uid, f.gid, z.extra().projid, false)?;
        let wait = p.sync != SyncMode::Disabled && (o.sync || p.sync == SyncMode::Always);
        let mut done = 0;
        {
            // Growing the first block and appending concern the whole file.
            let grows = |end| {
                let i = z.dnode.info();
                grown_block(i.block_size, i.max_blkid, z.size(), p.recordsize, end).is_some()
            };
            let end = offset.saturating_add(data.len() as u64).min(MAX_SIZE);
            let _g = if o.append || grows(end) {
                z.range.whole()
            } else {
                z.range.write(offset, end)
            };
            let start = if o.append { z.size() } else { offset };
            if start >= MAX_SIZE {
                return Err(Kind::FileTooBig.into());
            }
            let room = (MAX_SIZE - start).min(usize::MAX as u64) as usize;
            let data = data.slice(0..data.len().min(room));
            while done < data.len() {
                let n = (data.len() - done).min(WRITE_CHUNK);
                let part = data.slice(done..done + n);
                let r = self.write_chunk(z, &p, start + done as u64, part, &o, wait);
                match r {
                    Ok(()) => done += n,
                    Err(_) if done > 0 => break,
                    Err(e) => return Err(e),
                }
            }
        }
        if !self.cache.reaper.is_empty() {
            self.reap()?;
        }
        if wait && !self.is_replaying() {
            self.commit(Some(z.object))?;
        }
        Ok(done)
    }

    fn write_chunk(
        &self,
        z: &Znode,
        p: &Props,
        offset: u64,
        data: Data,
        o: &WriteOpts,
        wait: bool,
    ) -> Result<()> {
        let end = offset + data.len() as u64;
        z.dnode.check_write(offset, data.len() as u64)?;
        match wait || self.is_replaying() {
            // In a commit that takes the record of this write along the others would wait for the reading.
            true => z.dnode.check_edges(offset, data.len() as u64)?,
            false => z.dnode.keep_up(offset, data.len() as u64)?,
        }
        let tx = self.tx_write(data.len() as u64)?;
        self.grow_block(&tx, z, p, end)?;
        z.dnode.write(&tx, offset, data)?;
        let now = self.now();
        let fuids = self.fuids();
        let (gen, killed) = z.update(&tx, |f| {
            f.size = f.size.max(end.min(o.most.unwrap_or(u64::MAX)));
            if !o.cached {
                f.touch_content(now, fuids);
            } else if fuids {
                f.flags |= flag::ARCHIVE | flag::AV_MODIFIED;
            }
            let killed = o.kill_suidgid && kill_bits(f);
            Ok((f.gen, killed.then_some(f.mode32())))
        })?;
        let rec = Record::Write {
            object: z.object,
            gen,
            offset,
            len: data.len() as u64,
            block: z.dnode.info().block_size as u32,
            sync: wait,
        };
        self.record(&tx, rec);
        self.record_killed(&tx, z, killed);
        Ok(())
    }

    /// Grows the first block for a file that is to reach `end`. The whole file is locked if it does.
    fn grow_block(&self, tx: &Tx, z: &Znode, p: &Props, end: u64) -> Result<()> {
        let i = z.dnode.info();
        match grown_block(i.block_size, i.max_blkid, z.size(), p.recordsize, end) {
            Some(new) => z.dnode.set_block_size(tx, new),
            None => Ok(()),
        }
    }

    /// Sets the size: frees what is cut off, or extends by a hole. Times change even if the size
    /// does not.
    pub(crate) fn set_size(&self, z: &Znode, size: u64, kill_suidgid: bool) -> Result<()> {
        let p = self.writable()?;
        let f = z.fixed();
        Self::must_reg(&f)?;
        if size > MAX_SIZE {
            return Err(Kind::FileTooBig.into());
        }
        if self.forbids(f.flags, flag::IMMUTABLE | flag::APPENDONLY) {
            return Err(Kind::NotPermitted.into());
        }
        let _g = z.range.whole();
        base::cancel::may_change()?;
        let old = z.size();
        if size < old {
            z.dnode.check_free(size, u64::MAX)?;
            self.free_long(z, size, u64::MAX)?;
        }
        let tx = if size < old {
            self.tx_free()?
        } else {
            self.tx_meta()?
        };
        if size < old {
            z.dnode.free_range(&tx, size, u64::MAX)?;
        } else if size > old {
            self.grow_block(&tx, z, &p, size)?;
        }
        let now = self.now();
        let killed = z.update(&tx, |f| {
            f.size = size;
            if size == 0 {
                f.flags &= !flag::SPARSE;
            }
            f.touch_content(now, self.fuids());
            let killed = kill_suidgid && kill_bits(f);
            Ok(killed.then_some(f.mode32()))
        })?;
        let rec = Record::Truncate {
            object: z.object,
            offset: size,
            len: 0,
        };
        self.record(&tx, rec);
        self.record_killed(&tx, z, killed);
        Ok(())
    }

    /// Logs the mode that a change of content left, if it took set-id bits away: the record of the content does not say that.
    fn record_killed(&self, tx: &Tx, z: &Znode, mode: Option<u32>) {
        if let Some(m) = mode {
            let set = SetAttr {
                mode: Some(m & mode::PERM),
                ..SetAttr::default()
            };
            self.record(tx, Record::set_attr(z, &set));
        }
    }

    /// Frees the bulk of a long range in several transactions, so that none gets too large; leaves at
    /// most the last chunk to the caller.
    pub(crate) fn free_long(&self, z: &Znode, start: u64, end: u64) -> Result<()> {
        let i = z.dnode.info();
        let end = end.min((i.max_blkid + 1).saturating_mul(i.block_size as u64));
        if end.saturating_sub(start) <= FREE_CHUNK {
            return Ok(());
        }
        let mut at = start;
        loop {
            let Some(data) = z.dnode.seek(at, true)?.filter(|d| *d < end) else {
                return Ok(());
            };
            let next = data.saturating_add(FREE_CHUNK).min(end);
            if next == end || z.dnode.seek(next, true)?.is_none_or(|d| d >= end) {
                return Ok(());
            }
            let tx = self.tx_free()?;
            z.dnode.free_range(&tx, data, next - data)?;
            at = next;
        }
    }

    /// fallocate(2): punches holes, zeroes ranges, or checks that there is space (nothing is
    /// reserved: a copy-on-write file system could not keep the promise).
    pub fn fallocate(&self, z: &Znode, offset: u64, len: u64, how: u32) -> Result<()> {
        use falloc::*;
        let p = self.writable()?;
        let f = z.fixed();
        Self::must_reg(&f)?;
        if len == 0 {
            return Err(Kind::Invalid.into());
        }
        let end = match offset.checked_add(len) {
            Some(e) if e <= MAX_SIZE => e,
            _ => return Err(Kind::FileTooBig.into()),
        };
        if f.flags & flag::IMMUTABLE != 0 {
            return Err(Kind::NotPermitted.into());
        }
        match how {
            m if m == PUNCH_HOLE | KEEP_SIZE || m == ZERO_RANGE || m == ZERO_RANGE | KEEP_SIZE => {
                if f.flags & flag::APPENDONLY != 0 {
                    return Err(Kind::NotPermitted.into());
                }
                {
                    let _g = z.range.whole();
                    base::cancel::may_change()?;
                    self.zero_range(z, offset, end)?;
                }
                if m == ZERO_RANGE && end > z.size() {
                    self.extend(z, &p, end)?;
                }
            }
            0 | KEEP_SIZE => {
                // A little more than asked, for metadata.
                let space = self.space.space();
                if space.available < len.saturating_add(len / 10) {
                    return Err(Kind::NoSpace.into());
                }
                self.check_quota(f.uid, f.gid, z.extra().projid, false)?;
                if how == 0 && end > z.size() {
                    self.extend(z, &p, end)?;
                }
            }
            _ => return Err(Kind::Unsupported.into()),
        }
        self.finish(Some(z.object))
    }

    fn extend(&self, z: &Znode, p: &Props, end: u64) -> Result<()> {
        let _g = z.range.whole();
        if end <= z.size() {
            return Ok(());
        }
        let tx = self.tx_meta()?;
        self.grow_block(&tx, z, p, end)?;
        let now = self.now();
        z.update(&tx, |f| {
            f.size = end;
            f.touch_content(now, self.fuids());
            Ok(())
        })?;
        let rec = Record::Truncate {
            object: z.object,
            offset: end,
            len: 0,
        };
        self.record(&tx, rec);
        Ok(())
    }

    /// Frees `[start, end)` of the file; the size stays.
    pub(crate) fn zero_range(&self, z: &Znode, start: u64, end: u64) -> Result<()> {
        let end = end.min(z.size());
        let now = self.now();
        if start < end {
            z.dnode.check_free(start, end - start)?;
            self.free_long(z, start, end)?;
        }
        let tx = self.tx_free()?;
        if start < end {
            z.dnode.free_range(&tx, start, end - start)?;
        }
        z.update(&tx, |f| {
            f.touch_content(now, self.fuids());
            Ok(())
        })?;
        if start < end {
            let rec = Record::Truncate {
                object: z.object,
                offset: start,
                len: end - start,
            };
            self.record(&tx, rec);
        }
        Ok(())
    }

    /// SEEK_DATA (`data`) and SEEK_HOLE. `Kind::NoDevice` (ENXIO) past the end, and for data if only
    /// a hole follows. The end of the file counts as a hole.
    pub fn seek(&self, z: &Znode, offset: u64, data: bool) -> Result<u64> {
        Self::must_reg(&z.fixed())?;
        let _g = z.range.read(offset, u64::MAX);
        let size = z.size();
        if offset >= size {
            return Err(Kind::NoDevice.into());
        }
        let i = z.dnode.info();
        let past = (i.max_blkid + 1).saturating_mul(i.block_size as u64);
        match z.dnode.seek(offset, data)? {
            Some(at) if at < size => Ok(at.max(offset)),
            _ if data => Err(Kind::NoDevice.into()),
            // Behind the last block there is nothing but hole.
            None => Ok(past.max(offset).min(size)),
            _ => Ok(size),
        }
    }

    /// Copies a range inside the file system; returns how many bytes, fewer at the end of the source.
    pub fn copy_range(
        &self,
        from: &Arc<Znode>,
        from_at: u64,
        to: &Arc<Znode>,
        to_at: u64,
        len: u64,
    ) -> Result<u64> {
        Self::must_reg(&from.fixed())?;
        Self::must_reg(&to.fixed())?;
        let overlap = from.object == to.object
            && from_at < to_at.saturating_add(len)
            && to_at < from_at.saturating_add(len);
        if overlap {
            return Err(Kind::Invalid.into());
        }
        if to_at > MAX_SIZE {
            return Err(Kind::FileTooBig.into());
        }
        let len = len.min(from.size().saturating_sub(from_at));
        let mut buf = vec![0; len.min(1 << 20) as usize];
        let mut done = 0;
        while done < len {
            let n = (len - done).min(buf.len() as u64) as usize;
            let got = self.read(from, from_at + done, &mut buf[..n])?;
            if got == 0 {
                break;
            }
            match self.write(to, to_at + done, &buf[..got], WriteOpts::default()) {
                Ok(w) => done += w as u64,
                Err(_) if done > 0 => break,
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    /// truncate(2) and ftruncate(2).
    pub fn truncate(&self, z: &Znode, size: u64, cred: &Cred) -> Result<()> {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        self.setattr(z, &set, cred).map(|_| ())
    }
}

/// Takes the set-id bits away that do not outlive a write by somebody without privileges; whether there were any.
fn kill_bits(f: &mut Fixed) -> bool {
    let before = f.mode;
    f.mode = u64::from(perm::killed_suid(f.mode32()));
    f.mode != before
}

impl DataSource for Zfs {
    fn log_read(&self, object: u64, gen: u64, offset: u64, buf: &mut [u8]) -> Result<()> {
        let z = self.get_any(object)?;
        if z.gen != gen {
            return Err(Kind::NotFound.into());
        }
        // Most were read before the commit began. Others got into the log behind a rename, or by a commit of somebody else.
        let end = offset.saturating_add(buf.len() as u64);
        if !z.dnode.read_rests_of(offset..end) {
            let text = format!(
                "the rest of a block of object {object} that was changed in part cannot be read"
            );
            return Err(Error::new(Kind::Io, text));
        }
        z.dnode.read(offset, buf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_block_grows() {
        const R: usize = 128 << 10;
        // One byte to a record: rounded up to 512.
        assert_eq!(grown_block(512, 0, 0, R, 1), None);
        assert_eq!(grown_block(512, 0, 0, R, 513), Some(1024));
        assert_eq!(grown_block(1024, 0, 1024, R, 5000), Some(5120));
        assert_eq!(grown_block(1536, 0, 1400, R, 1 << 40), Some(R));
        assert_eq!(grown_block(R, 0, 100, R, 1 << 40), None);
        // More than one block: fixed.
        assert_eq!(grown_block(512, 1, 1024, R, 4096), None);
        assert_eq!(grown_block(512, 0, 513, R, 4096), None);
        // From a larger recordsize, not a power of two.
        assert_eq!(grown_block(3 << 9, 0, 1500, 512, 5000), Some(2048));
        assert_eq!(grown_block(2048, 0, 1500, 512, 5000), None);
        for size in (0..70_000u64).step_by(37) {
            let b = grown_block(512, 0, 0, R, size).unwrap_or(512);
            assert_eq!(b as u64, size.max(1).next_multiple_of(512));
        }
    }
}
