//! zfs-fuse 0.7 of Debian's package, with its defaults.

use super::{System, World};
use crate::child;
use crate::device::drop_caches;
use crate::stream_commands::{self, Variables};
use base::{bail, Result};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use testkit::{OldZfsFuse, TempDir};

const POOL: &str = "benchold";

pub struct Old {
    world: Arc<World>,
    dir: TempDir,
    mnt: PathBuf,
    daemon: Option<OldZfsFuse>,
    settled: u64,
}

impl Old {
    pub fn new(world: Arc<World>) -> Result<Old> {
        let dir = TempDir::new("bench-old")?;
        let mnt = dir.path().join("mnt");
        std::fs::create_dir(&mnt)?;
        std::fs::create_dir(dir.path().join("disks"))?;
        // Its import looks at everything in a folder; this one has nothing but our device.
        std::os::unix::fs::symlink(world.device.path(), dir.path().join("disks/disk"))?;
        Ok(Old {
            world,
            dir,
            mnt,
            daemon: None,
            settled: 0,
        })
    }

    fn daemon(&self) -> Result<&OldZfsFuse> {
        match &self.daemon {
            Some(d) => Ok(d),
            None => bail!(Io, "the old daemon is not running"),
        }
    }

    /// An administrator's command, with limited patience.
    fn admin(&self, program: &str, args: &[&str]) -> Result<()> {
        self.asked(program, args).map(drop)
    }

    /// The same, and what it said.
    fn asked(&self, program: &str, args: &[&str]) -> Result<String> {
        let mut c = self.daemon()?.command(program);
        Ok(child::run(c.args(args), child::PATIENCE, false)?.out)
    }
}

impl System for Old {
    fn make(&mut self) -> Result<()> {
        self.end()?;
        self.world.device.wipe()?;
        let d = OldZfsFuse::start()?;
        if !d.outside(&self.world.folder.to_string_lossy()).exists() {
            bail!(
                Unsupported,
                "{} is not seen in its private root folder; choose another --folder",
                self.world.folder.display()
            );
        }
        self.daemon = Some(d);
        let at = self.mnt.to_string_lossy().into_owned();
        let device = self.world.device.path().to_string();
        let plain = ["create", "-f", "-m", &at, POOL, &device];
        // What a careful administrator of its day would have done on disks of 4 KiB sectors.
        let aligned = ["create", "-f", "-o", "ashift=12", "-m", &at, POOL, &device];
        self.admin("zpool", &aligned)
            .or_else(|_| self.admin("zpool", &plain))
    }

    fn dir(&self) -> &Path {
        &self.mnt
    }

    fn outside(&self) -> PathBuf {
        match &self.daemon {
            Some(d) => d.outside(&self.mnt.to_string_lossy()),
            None => self.mnt.clone(),
        }
    }

    fn command(&self, program: &OsStr) -> Command {
        match &self.daemon {
            Some(d) => {
                let mut c = d.command("env");
                c.arg(program);
                c
            }
            None => Command::new(program),
        }
    }

    fn cold(&mut self) -> Result<()> {
        self.admin("zpool", &["export", POOL])?;
        drop_caches()?;
        let disks = self.dir.path().join("disks");
        self.admin("zpool", &["import", "-d", &disks.to_string_lossy(), POOL])
    }

    /// It has no command for this, but changing a property waits for a transaction group.
    fn settle(&mut self) -> Result<()> {
        self.settled += 1;
        let value = format!("bench:settled={}", self.settled);
        self.admin("zfs", &["set", &value, POOL])
    }

    fn daemon(&self) -> Option<u32> {
        self.daemon.as_ref().map(OldZfsFuse::pid)
    }

    fn deduplicate(&mut self) -> Result<()> {
        self.admin("zfs", &["set", "dedup=on", POOL])
    }

    fn set_records(&mut self, bytes: u64) -> Result<()> {
        self.admin("zfs", &["set", &format!("recordsize={bytes}"), POOL])
    }

    /// It has no command that waits.
    fn scrub(&self) -> Result<()> {
        self.admin("zpool", &["scrub", POOL])?;
        while self
            .asked("zpool", &["status", POOL])?
            .contains("in progress")
        {
            if child::interrupted() {
                bail!(Interrupted, "interrupted");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn streams(&self) -> Variables {
        stream_commands::of_pool(POOL)
    }

    fn end(&mut self) -> Result<()> {
        if self.daemon.is_none() {
            return Ok(());
        }
        let exported = self.admin("zpool", &["export", POOL]);
        if let Some(d) = self.daemon.take() {
            // Whether it ends well is not what is measured.
            let _ = d.stop();
        }
        exported
    }
}

impl Drop for Old {
    fn drop(&mut self) {
        let _ = self.end();
    }
}
