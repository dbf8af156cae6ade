//! File systems of the kernel, with their own defaults.

use super::{syncfs, unmount, System, World};
use crate::child::sh;
use crate::device::drop_caches;
use crate::stream_commands::{self, Variables};
use base::Result;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use testkit::TempDir;

/// How one is made. No discards: they would punch holes into the image, which the next system would
/// have to fill. No tables left to be initialised in the background.
pub struct Kind {
    fs: &'static str,
    mkfs: &'static [&'static str],
}

pub const EXT4: Kind = Kind {
    fs: "ext4",
    mkfs: &[
        "mkfs.ext4",
        "-q",
        "-F",
        "-E",
        "nodiscard,lazy_itable_init=0,lazy_journal_init=0",
    ],
};
pub const XFS: Kind = Kind {
    fs: "xfs",
    mkfs: &["mkfs.xfs", "-q", "-f", "-K"],
};
pub const BTRFS: Kind = Kind {
    fs: "btrfs",
    mkfs: &["mkfs.btrfs", "-q", "-f", "-K"],
};

pub struct Kernel {
    world: Arc<World>,
    kind: &'static Kind,
    _dir: TempDir,
    mnt: PathBuf,
}

impl Kernel {
    pub fn new(world: Arc<World>, kind: &'static Kind) -> Result<Kernel> {
        let dir = TempDir::new("bench-mnt")?;
        let mnt = dir.path().join("mnt");
        std::fs::create_dir(&mnt)?;
        Ok(Kernel {
            world,
            kind,
            _dir: dir,
            mnt,
        })
    }

    fn mount(&self) -> Result<()> {
        let at = self.mnt.to_string_lossy();
        let device = self.world.device.path();
        // A file system from which the kernel would discard blocks as it frees them would win or
        // lose by the image's holes.
        let options = match self.kind.fs {
            "btrfs" => "nodiscard",
            _ => "defaults",
        };
        sh("mount", &["-t", self.kind.fs, "-o", options, device, &at]).map(drop)
    }
}

impl System for Kernel {
    fn make(&mut self) -> Result<()> {
        self.world.device.wipe()?;
        let (program, args) = self.kind.mkfs.split_first().unwrap_or((&"false", &[]));
        let mut args = args.to_vec();
        args.push(self.world.device.path());
        sh(program, &args)?;
        self.world.device.mend()?;
        self.mount()
    }

    fn dir(&self) -> &Path {
        &self.mnt
    }

    fn cold(&mut self) -> Result<()> {
        unmount(&self.mnt)?;
        drop_caches()?;
        self.mount()
    }

    fn settle(&mut self) -> Result<()> {
        syncfs(&self.mnt)
    }

    fn streams(&self) -> Variables {
        match self.kind.fs {
            "btrfs" => stream_commands::of_btrfs(&self.mnt),
            _ => Variables::new(),
        }
    }

    fn end(&mut self) -> Result<()> {
        unmount(&self.mnt)
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        let _ = self.end();
    }
}
