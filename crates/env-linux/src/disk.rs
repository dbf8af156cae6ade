//! Block devices and image files.
//!
//! Everything goes past the page cache (O_DIRECT) where the file system allows it: the engine has
//! its own cache, and what was acknowledged should be on the device, not in memory. Buffers of any
//! alignment are accepted and copied through aligned ones.

#[cfg(test)]
mod tests;

use crate::aligned::Aligned;
use crate::batch::{
    blame, cut, fits, gather, plan_of_allowed, scatter, shape, Cells, Piece, MOST, PIECE,
};
use crate::remote::RemoteDisk;
use crate::timing::Timing;
use crate::uring::{past_end, Left, Target};
use crate::{part, sys, uring, usage, CpuPool};
use base::sync::MutexExt;
use base::{Error, Kind, Result};
use env::{Access, Cpu, Disk, Geometry, Op, Watch};
use privilege::{acts, Opening};
use rustix::io::{preadv, pwritev, Errno};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Opens devices and files by path.
pub struct LinuxDisks {
    options: Options,
    /// Runs batches that do not go over io_uring. Its threads start at the first such batch.
    threads: Arc<CpuPool>,
    /// Open images of whole disks, by what makes two names the same file, and whether for writing.
    images: Mutex<HashMap<(u64, u64, bool), Weak<dyn Disk>>>,
    /// How often an exclusive open may still wait for a device in use, until one succeeds.
    patience: AtomicU32,
}

/// Waits for devices in use, and how long each is: a second in all, however many devices there are.
/// A process that was killed holds its devices until the kernel has ended its transfers, which may be
/// behind the moment at which others see it gone.
const WAITS: u32 = 40;

const WAIT: Duration = Duration::from_millis(25);

/// Threads for one batch, beside the caller's.
const DEPTH: usize = 8;

/// What batches go over io_uring, where the kernel allows it; the others are done by threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoUring {
    /// None.
    Nothing,
    /// Those of block devices.
    Devices,
    /// Those of regular files, too. The kernel passes writes that need space to workers of its own; on
    /// Linux 6.18 under heavy load some were never begun, and a ring waited for them for ever.
    Files,
}

/// How devices are driven.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What batches go over io_uring.
    pub io_uring: IoUring,
    /// Use O_DIRECT where the file system allows it.
    pub direct: bool,
}

impl Default for LinuxDisks {
    fn default() -> LinuxDisks {
        LinuxDisks::new()
    }
}

impl LinuxDisks {
    /// With the options of the environment (`ZFS_FUSE_NO_IO_URING`, `ZFS_FUSE_IO_URING_FILES`,
    /// `ZFS_FUSE_NO_DIRECT`).
    pub fn new() -> LinuxDisks {
        let unset = |name| std::env::var_os(name).is_none_or(|v| v.is_empty() || v == "0");
        LinuxDisks::with_options(Options {
            io_uring: match (
                unset("ZFS_FUSE_NO_IO_URING"),
                unset("ZFS_FUSE_IO_URING_FILES"),
            ) {
                (false, _) => IoUring::Nothing,
                (true, true) => IoUring::Devices,
                (true, false) => IoUring::Files,
            },
            direct: unset("ZFS_FUSE_NO_DIRECT"),
        })
    }

    /// Devices driven as `options` say.
    pub fn with_options(options: Options) -> LinuxDisks {
        LinuxDisks {
            options,
            threads: Arc::new(CpuPool::elastic("zfs-io", DEPTH)),
            images: Mutex::default(),
            patience: AtomicU32::new(WAITS),
        }
    }

    fn open_disk(&self, path: &str, access: Access) -> Result<LinuxDisk> {
        loop {
            let r = LinuxDisk::open(path, access, self.options, self.threads.clone());
            match &r {
                Err(e) if e.kind == Kind::Busy && access == Access::Exclusive => {
                    let less = |left: u32| left.checked_sub(1);
                    let (order, left) = (Ordering::Relaxed, &self.patience);
                    if left.fetch_update(order, order, less).is_err() {
                        return r;
                    }
                    std::thread::sleep(WAIT);
                }
                Ok(_) if access == Access::Exclusive => {
                    self.patience.store(WAITS, Ordering::Relaxed);
                    return r;
                }
                _ => return r,
            }
        }
    }
}

impl env::Disks for LinuxDisks {
    /// Refusals: `Busy` when an exclusive open meets a mount, another holder or another daemon's
    /// lock, which are waited for a second at most; `Invalid` for what is neither block device nor
    /// regular file. A path of the form [`part::split`] knows is a partition of an image, unless there
    /// is a file of that name. The address of a network block device is opened if it was named before ([`crate::remote::allow`]).
    fn open(&self, path: &str, access: Access) -> Result<Arc<dyn Disk>> {
        if base::is_network_device(path) {
            let disk = RemoteDisk::open(path, access, self.threads.clone())?;
            return Ok(Arc::new(disk));
        }
        if let Some((image, number)) = part::split(path) {
            if std::fs::symlink_metadata(path).is_err() {
                return self
                    .image(image, access)
                    .and_then(|disk| part::open(disk, number))
                    .map_err(|e| e.context(path));
            }
        }
        let disk = self.open_disk(path, access).map_err(|e| e.context(path))?;
        Ok(Arc::new(disk))
    }
}

impl LinuxDisks {
    /// A whole disk, opened once for all of its partitions.
    fn image(&self, path: &str, access: Access) -> Result<Arc<dyn Disk>> {
        let meta = std::fs::metadata(path)?;
        use std::os::unix::fs::FileTypeExt;
        if !meta.is_file() && !meta.file_type().is_block_device() {
            return Err(Error::new(
                Kind::Invalid,
                "neither a regular file nor a block device",
            ));
        }
        let key = (meta.dev(), meta.ino(), access != Access::Read);
        let mut open = self.images.acquire();
        open.retain(|_, disk| disk.strong_count() > 0);
        if let Some(disk) = open.get(&key).and_then(Weak::upgrade) {
            return Ok(disk);
        }
        let disk = self.open_disk(path, access)?;
        let disk: Arc<dyn Disk> = Arc::new(disk);
        open.insert(key, Arc::downgrade(&disk));
        Ok(disk)
    }
}

struct LinuxDisk {
    file: File,
    path: String,
    is_block: bool,
    /// Bytes of an image file when it was opened.
    size_at_open: u64,
    direct: bool,
    writable: bool,
    /// Whether batches go over io_uring; for good no more once a ring hung.
    io_uring: AtomicBool,
    logical: u32,
    physical: u32,
    can_discard: AtomicBool,
    /// Memory and lengths that are multiples of this many bytes need no copy for direct transfers.
    align: usize,
    threads: Arc<CpuPool>,
    /// The file behind a loop device, locked.
    _backing: Option<Arc<File>>,
}

impl LinuxDisk {
    fn open(
        path: &str,
        access: Access,
        options: Options,
        threads: Arc<CpuPool>,
    ) -> Result<LinuxDisk> {
        // Looked at before opening: opening a pipe or a tape has effects.
        let kind = std::fs::metadata(path)?.file_type();
        if !kind.is_block_device() && !kind.is_file() {
            return Err(Error::new(
                Kind::Invalid,
                "neither a block device nor a regular file",
            ));
        }
        let is_block = kind.is_block_device();
        // The kernel lets such a device be opened for writing, and refuses every write.
        if is_block
            && access != Access::Read
            && device_is_read_only(std::fs::metadata(path)?.rdev())
        {
            return Err(Error::new(Kind::ReadOnly, "the device is read-only"));
        }
        let open = |direct: bool| -> io::Result<File> {
            let how = Opening {
                write: access != Access::Read,
                direct,
                exclusive: is_block && access == Access::Exclusive,
            };
            acts().open_device(Path::new(path), how)
        };
        let mut direct = options.direct;
        let mut file = match open(direct) {
            Err(e) if direct && e.raw_os_error() == Some(libc::EINVAL) => {
                direct = false;
                open(false)
            }
            other => other,
        }
        .map_err(|e| match e.raw_os_error() {
            Some(libc::EBUSY) => busy(),
            _ => e.into(),
        })?;
        if direct && !direct_works(&file, is_block) {
            // Closed first: an exclusive device cannot be opened twice.
            drop(file);
            direct = false;
            file = open(false)?;
        }
        if !is_block && access == Access::Exclusive {
            sys::lock_whole(&file).map_err(|e| match e.raw_os_error() {
                Some(libc::EAGAIN | libc::EACCES) => busy(),
                _ => Error::from(e).context("cannot lock"),
            })?;
        }
        let backing = match is_block && access == Access::Exclusive {
            true => crate::loops::lock_backing(&file)?,
            false => None,
        };
        let (logical, physical) = if is_block {
            let logical = sys::logical_sector(&file)?;
            (
                logical,
                sys::physical_sector(&file).unwrap_or(logical).max(logical),
            )
        } else {
            // A file is addressed by the byte; ZFS takes files as 512-byte devices.
            (512, 512)
        };
        // Where the kernel does not say, pages are enough for everything.
        let align = match sys::dio_align(&file) {
            Some((mem, offset)) if mem > 0 && offset > 0 => mem.max(offset),
            _ => 4096,
        };
        let align = align.max(logical).next_power_of_two() as usize;
        let can_discard = if is_block {
            device_discards(file.metadata()?.rdev())
        } else {
            true
        };
        let size_at_open = match is_block {
            true => 0,
            false => file.metadata()?.len(),
        };
        Ok(LinuxDisk {
            file,
            size_at_open,
            path: path.to_string(),
            is_block,
            direct,
            writable: access != Access::Read,
            // Buffered transfers copy on the submitting thread, where threads do better.
            io_uring: AtomicBool::new(match options.io_uring {
                IoUring::Nothing => false,
                IoUring::Devices => direct && is_block,
                IoUring::Files => direct,
            }),
            logical,
            physical,
            can_discard: AtomicBool::new(can_discard),
            align,
            threads,
            _backing: backing,
        })
    }

    fn size(&self) -> io::Result<u64> {
        if self.is_block {
            sys::block_size(&self.file)
        } else {
            Ok(self.file.metadata()?.len())
        }
    }

    /// Whether an image file is still all of what was opened: what somebody else cut off or deleted is
    /// not on stable storage, whatever the kernel says of the rest.
    fn check_file(&self) -> Result<()> {
        if self.is_block {
            return Ok(());
        }
        let now = self.file.metadata()?;
        let what = if now.len() < self.size_at_open {
            format!(
                "was truncated from {} to {} bytes",
                self.size_at_open,
                now.len()
            )
        } else if now.nlink() == 0 {
            "was deleted".to_string()
        } else {
            return Ok(());
        };
        Err(Error::new(
            Kind::Io,
            format!("{}: the file {what} while it is in use", self.path),
        ))
    }

    /// Fails early and clearly instead of with EINVAL or a bad descriptor.
    fn check(&self, write: bool, offset: u64, len: usize) -> Result<()> {
        if write && !self.writable {
            return Err(Error::new(
                Kind::ReadOnly,
                format!("{}: opened for reading", self.path),
            ));
        }
        let unit = u64::from(self.logical);
        if (self.direct || self.is_block) && (offset % unit != 0 || len as u64 % unit != 0) {
            return Err(Error::new(
                Kind::Invalid,
                format!(
                    "{}: transfer of {len} at {offset} is not in sectors",
                    self.path
                ),
            ));
        }
        if i64::try_from(offset)
            .ok()
            .and_then(|o| o.checked_add(len as i64))
            .is_none()
        {
            return Err(Error::new(
                Kind::Invalid,
                format!("{}: offset {offset}", self.path),
            ));
        }
        Ok(())
    }

    fn error(&self, e: io::Error, write: bool, offset: u64, len: usize) -> Error {
        let verb = if write { "write" } else { "read" };
        Error::from(e)
            .context(format!("{verb} of {len} bytes at {offset}"))
            .context(&self.path)
    }

    /// Fills `buf`, which satisfies direct I/O.
    fn read_raw(&self, mut offset: u64, mut buf: &mut [u8]) -> io::Result<()> {
        while !buf.is_empty() {
            match self.file.read_at(buf, offset) {
                Ok(0) => return Err(past_end(false)),
                Ok(n) => {
                    let n = if self.direct && n < buf.len() {
                        n & !511
                    } else {
                        n
                    };
                    if n == 0 {
                        return Err(past_end(false));
                    }
                    buf = &mut buf[n..];
                    offset += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Writes `buf`, which satisfies direct I/O.
    fn write_raw(&self, mut offset: u64, mut buf: &[u8]) -> io::Result<()> {
        while !buf.is_empty() {
            match self.file.write_at(buf, offset) {
                Ok(n) => {
                    let n = if self.direct && n < buf.len() {
                        n & !511
                    } else {
                        n
                    };
                    if n == 0 {
                        return Err(past_end(true));
                    }
                    buf = &buf[n..];
                    offset += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Whether the kernel transfers from or to this memory as it is.
    fn takes(&self, memory: &[u8]) -> bool {
        !self.direct || fits(memory.as_ptr() as usize, memory.len(), self.align)
    }

    /// One piece of a batch on the calling thread.
    fn run_piece(&self, cells: &Cells, piece: &Piece) -> io::Result<()> {
        if self.run_in_place(cells, piece)? {
            return Ok(());
        }
        with_bounce(piece.len, |buf| {
            if piece.write {
                gather(cells, piece, buf);
                self.write_raw(piece.offset, buf)
            } else {
                self.read_raw(piece.offset, buf)?;
                scatter(cells, piece, buf);
                Ok(())
            }
        })
    }

    /// One piece of a batch in one call and without a copy, if its memory allows that. Returns
    /// whether all of it was transferred; what ended short says why when it is tried with a copy.
    fn run_in_place(&self, cells: &Cells, piece: &Piece) -> io::Result<bool> {
        if piece.parts.len() > MOST {
            return Ok(false);
        }
        let moved = if piece.write {
            let mut bufs = Vec::new();
            for part in &piece.parts {
                if let Op::Write { bufs: from, .. } = &*cells[part.op].acquire() {
                    cut(from, part.at, part.len, |b, range| {
                        bufs.push((b.clone(), range));
                    });
                }
            }
            let slices: Vec<IoSlice> = bufs
                .iter()
                .map(|(b, range)| IoSlice::new(&b[range.clone()]))
                .collect();
            if slices.len() > MOST || !slices.iter().all(|s| self.takes(s)) {
                return Ok(false);
            }
            pwritev(&self.file, &slices, piece.offset)
        } else {
            let mut cells: Vec<_> = piece.parts.iter().map(|p| cells[p.op].acquire()).collect();
            let mut slices = Vec::with_capacity(cells.len());
            for (part, cell) in piece.parts.iter().zip(&mut cells) {
                match &mut **cell {
                    // Of a longer operation other pieces may be under way, on other threads.
                    Op::Read { buf, .. } if buf.len() == part.len && self.takes(buf) => {
                        slices.push(IoSliceMut::new(buf));
                    }
                    _ => return Ok(false),
                }
            }
            preadv(&self.file, &mut slices, piece.offset)
        };
        match moved {
            Ok(n) => Ok(n == piece.len),
            Err(Errno::INTR | Errno::INVAL) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }
}

fn busy() -> Error {
    Error::new(
        Kind::Busy,
        "device or resource busy: in use by another program, file system or loop device",
    )
}

/// Calls `f` with a page-aligned buffer of `len` (at most one piece) that the thread keeps.
fn with_bounce<R>(len: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
    thread_local! {
        static BOUNCE: RefCell<Option<Aligned>> = const { RefCell::new(None) };
    }
    BOUNCE.with_borrow_mut(|slot| {
        if slot.as_ref().is_none_or(|b| b.capacity() < len) {
            *slot = Some(Aligned::new(len.max(128 << 10)));
        }
        match slot {
            Some(b) => f(&mut b[..len]),
            None => f(&mut Aligned::new(len)[..len]),
        }
    })
}

/// Whether the open file takes direct transfers of 512 bytes (a device: of its sectors). Files on a
/// coarser file system go through the page cache instead, since mixing both ways on one file
/// can lose data.
fn direct_works(file: &File, is_block: bool) -> bool {
    if is_block {
        return true;
    }
    match sys::dio_align(file) {
        Some((mem, offset)) => (1..=4096).contains(&mem) && (1..=512).contains(&offset),
        // Older kernels do not say: try a read that a coarse file system must refuse.
        None => match file.read_at(&mut Aligned::new(512)[..512], 512) {
            Ok(_) => true,
            Err(e) => e.raw_os_error() != Some(libc::EINVAL),
        },
    }
}

/// The directory of a block device in sysfs.
pub(crate) fn sysfs(rdev: u64) -> PathBuf {
    let (major, minor) = sys::major_minor(rdev);
    PathBuf::from(format!("/sys/dev/block/{major}:{minor}"))
}

fn device_is_read_only(rdev: u64) -> bool {
    std::fs::read_to_string(sysfs(rdev).join("ro")).is_ok_and(|s| s.trim() == "1")
}

fn device_discards(rdev: u64) -> bool {
    let dir = sysfs(rdev);
    // A partition has no queue of its own: its disk's counts.
    ["queue/discard_max_bytes", "../queue/discard_max_bytes"]
        .iter()
        .find_map(|f| std::fs::read_to_string(dir.join(f)).ok())
        .and_then(|s| s.trim().parse::<u64>().ok())
        .is_some_and(|n| n > 0)
}

impl LinuxDisk {
    fn run_batch(&self, ops: Vec<Op>, watch: Option<&dyn Watch>) -> Vec<(Op, Result<()>)> {
        let begin = Instant::now();
        let _use = usage::begin();
        let mut results: Vec<Result<()>> = ops
            .iter()
            .map(|op| {
                let (write, offset, len) = shape(op);
                self.check(write, offset, len)
            })
            .collect();
        let pieces = plan_of_allowed(&ops, &results);
        let cells: Vec<Mutex<Op>> = ops.into_iter().map(Mutex::new).collect();
        let timing = Timing::new(watch, &pieces, begin);
        let mut failures: Vec<(usize, io::Error)> = Vec::new();
        let mut left = Left::Unused;
        if pieces.len() > 1 && self.io_uring.load(Ordering::Relaxed) {
            let target = Target {
                fd: self.file.as_raw_fd(),
                name: &self.path,
                align: self.align,
                limit: uring::LIMIT,
            };
            let mut failed = |i, e| failures.push((i, e));
            left = uring::run(&target, &pieces, &cells, &timing, &mut failed);
        }
        let left = match left {
            Left::Nothing => Vec::new(),
            Left::Unused => (0..pieces.len()).collect(),
            Left::Stuck(left) => {
                self.io_uring.store(false, Ordering::Relaxed);
                left
            }
        };
        if !left.is_empty() {
            let list = Mutex::new(failures);
            self.threads.par_for(left.len(), &|i| {
                timing.started(left[i]);
                let r = self.run_piece(&cells, &pieces[left[i]]);
                timing.ended(left[i]);
                if let Err(e) = r {
                    list.acquire().push((left[i], e));
                }
            });
            failures = list.into_inner().unwrap_or_else(PoisonError::into_inner);
        }
        let error = |e, p: &Piece| self.error(e, p.write, p.offset, p.len);
        let again = |p: &Piece| self.run_piece(&cells, p);
        blame(&pieces, failures, &mut results, &again, &error);
        cells
            .into_iter()
            .map(|c| c.into_inner().unwrap_or_else(PoisonError::into_inner))
            .zip(results)
            .collect()
    }
}

impl Disk for LinuxDisk {
    fn geometry(&self) -> Geometry {
        Geometry {
            // A device that is gone has no bytes; its transfers will say why.
            size: self.size().unwrap_or(0),
            logical_sector: self.logical,
            physical_sector: self.physical,
            is_block: self.is_block,
            can_discard: self.can_discard.load(Ordering::Relaxed),
        }
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let _use = usage::begin();
        self.check(false, offset, buf.len())?;
        let total = buf.len();
        let fail = |e| self.error(e, false, offset, total);
        if self.takes(buf) {
            return self.read_raw(offset, buf).map_err(fail);
        }
        let mut at = offset;
        for chunk in buf.chunks_mut(PIECE) {
            with_bounce(chunk.len(), |b| {
                self.read_raw(at, b)?;
                chunk.copy_from_slice(b);
                Ok(())
            })
            .map_err(fail)?;
            at += chunk.len() as u64;
        }
        Ok(())
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        let _use = usage::begin();
        self.check(true, offset, buf.len())?;
        let fail = |e| self.error(e, true, offset, buf.len());
        if self.takes(buf) {
            return self.write_raw(offset, buf).map_err(fail);
        }
        let mut at = offset;
        for chunk in buf.chunks(PIECE) {
            with_bounce(chunk.len(), |b| {
                b.copy_from_slice(chunk);
                self.write_raw(at, b)
            })
            .map_err(fail)?;
            at += chunk.len() as u64;
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        if !self.writable {
            return Ok(());
        }
        let _use = usage::begin();
        let r = if self.is_block {
            self.file.sync_all()
        } else {
            self.file.sync_data()
        };
        r.map_err(|e| Error::from(e).context(format!("{}: flush", self.path)))?;
        self.check_file()
    }

    fn batch(&self, ops: Vec<Op>) -> Vec<(Op, Result<()>)> {
        self.run_batch(ops, None)
    }

    fn batch_watched(&self, ops: Vec<Op>, watch: &dyn Watch) -> Vec<(Op, Result<()>)> {
        self.run_batch(ops, Some(watch))
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        self.check(true, offset, 0)?;
        let r = if self.is_block {
            sys::discard_device(&self.file, offset, len)
        } else {
            sys::punch_hole(&self.file, offset, len)
        };
        if let Err(e) = &r {
            if e.raw_os_error() == Some(libc::EOPNOTSUPP) {
                self.can_discard.store(false, Ordering::Relaxed);
            }
        }
        r.map_err(|e| Error::from(e).context(format!("{}: discard {len} at {offset}", self.path)))
    }
}
