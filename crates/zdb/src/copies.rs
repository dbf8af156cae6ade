//! `-x`: copies every block that is read into sparse files, on which zdb can be run elsewhere.

use base::sync::MutexExt;
use base::{bail, Error, Result};
use env::{Access, Disk, Disks, Geometry, Op};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Devices that are copied as they are read.
pub struct Copying {
    disks: Arc<dyn Disks>,
    folder: PathBuf,
    /// By path of the device.
    files: Mutex<HashMap<String, Arc<File>>>,
}

impl Copying {
    pub fn new(disks: Arc<dyn Disks>, folder: &str) -> Copying {
        Copying {
            disks,
            folder: folder.into(),
            files: Mutex::default(),
        }
    }

    /// The file for a device. One that is there already, a device itself perhaps, stays as it is.
    fn file(&self, path: &str, size: u64) -> Result<Arc<File>> {
        let mut files = self.files.acquire();
        if let Some(f) = files.get(path) {
            return Ok(f.clone());
        }
        let Some(name) = Path::new(path).file_name() else {
            bail!(Invalid, "{path} has no name to call its copy by");
        };
        let to = self.folder.join(name);
        let made = OpenOptions::new().write(true).create_new(true).open(&to);
        let file = made
            .and_then(|f| f.set_len(size).map(|()| Arc::new(f)))
            .map_err(|e| Error::from(e).context(format!("copy of {path}, {}", to.display())))?;
        files.insert(path.to_string(), file.clone());
        Ok(file)
    }
}

impl Disks for Copying {
    fn open(&self, path: &str, access: Access) -> Result<Arc<dyn Disk>> {
        let disk = self.disks.open(path, access)?;
        // Who looks for devices passes over those that cannot be opened.
        let file = self
            .file(path, disk.geometry().size)
            .inspect_err(|e| eprintln!("zdb: {}", cli::harmless::harmless(&e.to_string())))?;
        Ok(Arc::new(Copied { disk, file }))
    }
}

struct Copied {
    disk: Arc<dyn Disk>,
    file: Arc<File>,
}

impl Copied {
    fn keep(&self, offset: u64, buf: &[u8]) -> Result<()> {
        let done = self.file.write_all_at(buf, offset);
        done.map_err(|e| Error::from(e).context("copying what was read"))
    }
}

impl Disk for Copied {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.disk.read(offset, buf)?;
        self.keep(offset, buf)
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<()> {
        bail!(ReadOnly, "zdb does not write")
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn batch(&self, ops: Vec<Op>) -> Vec<(Op, Result<()>)> {
        let mut done = self.disk.batch(ops);
        for (op, r) in &mut done {
            if let (Op::Read { offset, buf }, Ok(())) = (&*op, &*r) {
                *r = self.keep(*offset, buf);
            }
        }
        done
    }

    fn discard(&self, _: u64, _: u64) -> Result<()> {
        bail!(ReadOnly, "zdb does not write")
    }
}
