//! The device under test: one image file on a loop device, the same for every system.

use crate::child::{sh, tidy};
use base::{bail, Result};
use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

/// A block device; image and loop device go away with the value.
pub struct Device {
    path: String,
    size: u64,
    image: Option<PathBuf>,
    /// Whether the loop device goes past the page cache of the file system the image lies on.
    pub direct: bool,
}

impl Device {
    /// Writes an image of `size` bytes in full (a hole would have to be filled by whoever comes
    /// first) and makes a loop device of it.
    pub fn on_image(folder: &Path, size: u64) -> Result<Device> {
        Device::of(folder, size, Device::fill)
    }

    /// The same, but the image is one hole: for sizes that no disk here has.
    pub fn on_hole(folder: &Path, size: u64) -> Result<Device> {
        Device::of(folder, size, |d, image| {
            Ok(File::create(image)?.set_len(d.size)?)
        })
    }

    fn of(folder: &Path, size: u64, fill: impl Fn(&Device, &Path) -> Result<()>) -> Result<Device> {
        let image = folder.join(format!("bench.{}.img", std::process::id()));
        let mut d = Device {
            path: String::new(),
            size,
            image: Some(image.clone()),
            direct: true,
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

    /// Overwrites both ends, where file systems and pools have their signatures.
    pub fn wipe(&self) -> Result<()> {
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

/// Takes `bytes` of memory, or a quarter of what is available, and gives them back. A virtual machine
/// hands free memory to its host after some seconds, and whoever takes it next waits for the host,
/// milliseconds for each MiB: that would be the system that comes after a slow one.
pub fn warm_memory(bytes: u64) {
    let available = std::fs::read_to_string("/proc/meminfo").ok().and_then(|s| {
        let line = s.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
        let kib = line.split_ascii_whitespace().next()?;
        kib.parse::<u64>().ok()
    });
    let bytes = available.map_or(0, |kib| bytes.min(kib * 1024 / 4));
    std::hint::black_box(vec![1u8; bytes as usize]);
}

/// Empties the kernel's caches of clean pages, names and inodes.
pub fn drop_caches() -> Result<()> {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3")?;
    Ok(())
}
