//! The device under test: one image file on a loop device, the same for every system.

use crate::child::{self, sh, tidy};
use base::{bail, Result};
use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A block device; image and loop device go away with the value.
pub struct Device {
    path: String,
    size: u64,
    image: Option<PathBuf>,
    /// Whether the loop device goes past the page cache of the file system the image lies on.
    pub direct: bool,
    /// Whether every block of the image has its place on the disk below.
    full: bool,
}

impl Device {
    /// Writes an image of `size` bytes in full (a hole would have to be filled by whoever comes
    /// first) and makes a loop device of it.
    pub fn on_image(folder: &Path, size: u64) -> Result<Device> {
        let mut d = Device::of(folder, size, Device::fill)?;
        d.full = true;
        Ok(d)
    }

    /// The same, but the image is one hole: for sizes that no disk here has.
    pub fn on_hole(folder: &Path, size: u64) -> Result<Device> {
        Device::of(folder, size, |d, image| {
            Ok(File::create(image)?.set_len(d.size)?)
        })
    }

    fn of(folder: &Path, size: u64, fill: impl Fn(&Device, &Path) -> Result<()>) -> Result<Device> {
        static IMAGES: AtomicU32 = AtomicU32::new(0);
        let (pid, n) = (std::process::id(), IMAGES.fetch_add(1, Relaxed));
        let image = folder.join(format!("bench.{pid}.{n}.img"));
        let mut d = Device {
            path: String::new(),
            size,
            image: Some(image.clone()),
            direct: true,
            full: false,
        };
        fill(&d, &image)?;
        d.attach(&image)?;
        Ok(d)
    }

    fn attach(&mut self, image: &Path) -> Result<()> {
        let Some(name) = image.to_str() else {
            bail!(Invalid, "{}: not a plain path", image.display());
        };
        let looped = sh("losetup", &["--find", "--show", "--direct-io=on", name]).or_else(|_| {
            self.direct = false;
            sh("losetup", &["--find", "--show", name])
        });
        match looped {
            Ok(text) => self.path = text.trim().to_string(),
            Err(e) => bail!(Unsupported, "no loop device: {e}"),
        }
        Ok(())
    }

    /// A device that is there already.
    pub fn given(path: &Path) -> Result<Device> {
        let mut f = File::options().read(true).write(true).open(path)?;
        let size = f.seek(SeekFrom::End(0))?;
        Ok(Device {
            path: path.to_string_lossy().into_owned(),
            size,
            image: None,
            direct: true,
            full: false,
        })
    }

    fn fill(&self, image: &Path) -> Result<()> {
        let mut f = File::create(image)?;
        let zeros = vec![0; 4 << 20];
        let mut left = self.size;
        while left > 0 {
            if crate::child::interrupted() {
                bail!(Interrupted, "interrupted");
            }
            let n = left.min(zeros.len() as u64);
            f.write_all(&zeros[..n as usize])?;
            left -= n;
        }
        f.sync_all()?;
        Ok(())
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    /// Writes zeros where the image has become a hole or was marked as never written: a loop device
    /// does that when zeros are asked for, as `mkfs` does for ext4's journal and tables. Who writes
    /// there next, which may be another system, would wait for the file system below to change its
    /// extents, with every flush. Nothing may be mounted.
    pub fn mend(&self) -> Result<()> {
        let Some(image) = self.image.as_ref().filter(|_| self.full) else {
            return Ok(());
        };
        let read = File::open(image)?;
        let mut write = File::options().write(true).open(&self.path)?;
        let zeros = vec![0; 1 << 20];
        let mut at = 0;
        while let Some(hole) = holes::after(&read, at, self.size)? {
            write.seek(SeekFrom::Start(hole.start))?;
            let mut left = (hole.end - hole.start) as usize;
            while left > 0 {
                let n = left.min(zeros.len());
                write.write_all(&zeros[..n])?;
                left -= n;
            }
            at = hole.end;
        }
        if at > 0 {
            write.sync_all()?;
        }
        Ok(())
    }

    /// Overwrites both ends, where file systems and pools have their signatures, and whatever has
    /// become a hole. Nothing may be mounted.
    pub fn wipe(&self) -> Result<()> {
        self.mend()?;
        let mut f = File::options().write(true).open(&self.path)?;
        let zeros = vec![0; 4 << 20];
        f.write_all(&zeros)?;
        f.seek(SeekFrom::Start(self.size.saturating_sub(4 << 20)))?;
        f.write_all(&zeros)?;
        f.sync_all()?;
        Ok(())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if let Some(image) = &self.image {
            if !self.path.is_empty() && !tidy("losetup", &["--detach", &self.path]) {
                eprintln!("bench: {} could not be detached", self.path);
            }
            // Nothing useful can be done about a failure here.
            let _ = std::fs::remove_file(image);
        }
    }
}

mod holes {
    use base::Result;
    use rustix::fs::{seek, SeekFrom};
    use std::fs::File;
    use std::io;
    use std::ops::Range;

    /// The next part of the first `size` bytes, from `at` on, that has never been written.
    pub fn after(f: &File, at: u64, size: u64) -> Result<Option<Range<u64>>> {
        if at >= size {
            return Ok(None);
        }
        let start = seek(f, SeekFrom::Hole(at)).map_err(io::Error::from)?;
        if start >= size {
            return Ok(None);
        }
        let end = match seek(f, SeekFrom::Data(start)) {
            Ok(end) => end.min(size),
            Err(rustix::io::Errno::NXIO) => size,
            Err(e) => return Err(io::Error::from(e).into()),
        };
        Ok(Some(start..end))
    }
}

/// Takes `bytes` of memory, or a quarter of what is available, and gives them back. A virtual machine
/// hands free memory to its host after some seconds, and whoever takes it next waits for the host,
/// milliseconds for each MiB: that would be the system that comes after a slow one.
///
/// A process of its own does it, as huge pages: the kernel keeps those apart from small ones, and what
/// asks for them (the daemon does) would get others than those that were just in use.
pub fn warm_memory(bytes: u64) -> Result<()> {
    let available = std::fs::read_to_string("/proc/meminfo").ok().and_then(|s| {
        let line = s.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
        let kib = line.split_ascii_whitespace().next()?;
        kib.parse::<u64>().ok()
    });
    let bytes = available.map_or(0, |kib| bytes.min(kib * 1024 / 4));
    let mut c = std::process::Command::new(std::env::current_exe()?);
    c.args(["warm", &bytes.to_string()]);
    // glibc's allocator asks for huge pages then.
    c.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
    child::run(&mut c, child::PATIENCE, true).map(drop)
}

/// What the process of [`warm_memory`] does.
pub fn warm(args: &[String]) -> Result<bool> {
    let bytes = args.first().and_then(|a| a.parse::<usize>().ok());
    std::hint::black_box(vec![1u8; bytes.unwrap_or(0)]);
    Ok(true)
}

/// Empties the kernel's caches of clean pages, names and inodes.
pub fn drop_caches() -> Result<()> {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{fallocate, FallocateFlags};
    use std::os::unix::fs::FileExt as _;

    #[test]
    fn finds_holes() {
        let dir = testkit::TempDir::new("bench-holes").unwrap();
        let path = dir.path().join("image");
        let f = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .unwrap();
        f.write_all_at(&vec![1; 4 << 20], 0).unwrap();
        f.sync_all().unwrap();
        assert_eq!(holes::after(&f, 0, 4 << 20).unwrap(), None);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if fallocate(&f, punch, 1 << 20, 2 << 20).is_err() {
            eprintln!("no holes here");
            return;
        }
        assert_eq!(
            holes::after(&f, 0, 4 << 20).unwrap(),
            Some(1 << 20..3 << 20)
        );
        assert_eq!(holes::after(&f, 3 << 20, 4 << 20).unwrap(), None);
        f.set_len(6 << 20).unwrap();
        let end = holes::after(&f, 3 << 20, 6 << 20).unwrap();
        assert_eq!(end, Some(4 << 20..6 << 20));
        assert_eq!(holes::after(&f, 6 << 20, 6 << 20).unwrap(), None);
    }
}
