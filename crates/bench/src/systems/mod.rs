//! The file systems that are compared, each made afresh on the same device.

pub mod kernel;
mod old;
pub mod ours;
mod passthrough;

use crate::device::Device;
use crate::options::Options;
use crate::stream_commands::Variables;
use base::{bail, Result};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Options with which the passthrough gives what a mount of ours gives: whoever may not do something
/// does not get it done, and the kernel gathers small writes.
const CHECKED: &str = ",default_permissions,writeback";

/// A way to have a file system on the device. What it made goes away with its value.
pub trait System {
    /// Makes an empty file system and mounts it.
    fn make(&mut self) -> Result<()>;

    /// The mounted folder, as a command of [`System::command`] sees it.
    fn dir(&self) -> &Path;

    /// The same folder as this process sees it.
    fn outside(&self) -> PathBuf {
        self.dir().to_path_buf()
    }

    /// A command that sees the folder.
    fn command(&self, program: &OsStr) -> Command {
        Command::new(program)
    }

    /// Forgets everything that is cached: unmounts (exports), drops the kernel's caches, mounts
    /// (imports) again.
    fn cold(&mut self) -> Result<()>;

    /// Brings everything written so far to the device.
    fn settle(&mut self) -> Result<()>;

    /// Process id of the daemon, if there is one.
    fn daemon(&self) -> Option<u32> {
        None
    }

    /// Turns deduplication on for what is written from now on.
    ///
    /// Errors: unsupported where there is none.
    fn deduplicate(&mut self) -> Result<()> {
        bail!(Unsupported, "has no deduplication")
    }

    /// Files written from now on have records of so many bytes.
    ///
    /// Errors: unsupported where that cannot be chosen.
    fn set_records(&mut self, bytes: u64) -> Result<()> {
        bail!(Unsupported, "has no records of {bytes} bytes")
    }

    /// Reads and verifies everything, and returns when that is done.
    ///
    /// Errors: unsupported where there is no such thing.
    fn scrub(&self) -> Result<()> {
        bail!(Unsupported, "has no scrub")
    }

    /// How its snapshots are made, sent and received; nothing where there are none.
    fn streams(&self) -> Variables {
        Vec::new()
    }

    /// Unmounts and ends the daemon. Also done, without regard to errors, when the value goes.
    fn end(&mut self) -> Result<()>;
}

/// What systems need.
pub struct World {
    pub device: Device,
    /// Folder of the image, the archives and what is compiled.
    pub folder: PathBuf,
    /// Folder of our programs.
    pub programs: PathBuf,
    /// Folder of the programs of another build.
    pub before: Option<PathBuf>,
}

/// The system of this name, nothing made yet.
///
/// Errors: unsupported with the reason why it cannot be had here.
pub fn open(name: &str, world: &Arc<World>) -> Result<Box<dyn System>> {
    let w = world.clone();
    Ok(match name {
        "ext4" => Box::new(kernel::Kernel::new(w, &kernel::EXT4)?),
        "xfs" => Box::new(kernel::Kernel::new(w, &kernel::XFS)?),
        "btrfs" => Box::new(kernel::Kernel::new(w, &kernel::BTRFS)?),
        "zfs-fuse-0.7" => Box::new(old::Old::new(w)?),
        "passthrough" => Box::new(passthrough::Passthrough::new(w, "")?),
        "passthrough-checked" => Box::new(passthrough::Passthrough::new(w, CHECKED)?),
        "ours" => Box::new(ours::Ours::new(w, &world.programs, "lz4")?),
        "ours-off" => Box::new(ours::Ours::new(w, &world.programs, "off")?),
        "ours-view" => Box::new(ours::Ours::new(w, &world.programs, "lz4")?.in_view()),
        "before" => Box::new(ours::Ours::new(w, programs_of(name, world)?, "lz4")?),
        _ => bail!(Invalid, "no system {name}"),
    })
}

/// Our programs: those of the option, or the release build.
///
/// Errors: unsupported if there is none.
pub fn programs(o: &Options) -> Result<PathBuf> {
    let dir = match (&o.programs, std::env::var_os("CARGO_TARGET_DIR")) {
        (Some(d), _) => d.clone(),
        (None, Some(t)) => PathBuf::from(t).join("release"),
        (None, None) => testkit::packages::workspace().join("target/release"),
    };
    for p in ours::PROGRAMS {
        if !dir.join(p).is_file() {
            bail!(
                Unsupported,
                "{} has no {p}: build with cargo build --release, or give --programs",
                dir.display()
            );
        }
    }
    Ok(dir.canonicalize()?)
}

/// Checks that a run can be made here, and makes the folder of its images. Returns that folder and the one of our programs,
/// which is empty if `ours` is not among the systems.
///
/// Errors: unsupported without root, or without programs.
pub fn ready(o: &Options) -> Result<(PathBuf, PathBuf)> {
    if !rustix::process::geteuid().is_root() {
        bail!(Unsupported, "mounting and loop devices need root");
    }
    crate::child::watch_signals()?;
    std::fs::create_dir_all(&o.folder)?;
    let programs = match o.systems.iter().any(|s| s.starts_with("ours")) {
        true => programs(o)?,
        false => PathBuf::new(),
    };
    Ok((o.folder.canonicalize()?, programs))
}

/// Folder of the programs of `ours` or `before`.
///
/// Errors: unsupported if it was not given.
pub fn programs_of<'w>(system: &str, world: &'w World) -> Result<&'w Path> {
    match (system, &world.before) {
        ("before", Some(dir)) => Ok(dir),
        ("before", None) => bail!(Unsupported, "needs --before DIR"),
        _ => Ok(&world.programs),
    }
}

/// Unmounts, also if somebody still looks at it for a moment.
fn unmount(dir: &Path) -> Result<()> {
    let at = dir.to_string_lossy();
    let mut last = None;
    for _ in 0..20 {
        if !is_mounted(dir) {
            return Ok(());
        }
        match crate::child::run(
            Command::new("umount").arg(&*at),
            crate::child::PATIENCE,
            false,
        ) {
            Ok(_) => return Ok(()),
            Err(e) => last = Some(e),
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    crate::child::tidy("umount", &["-l", &at]);
    match last {
        Some(e) => Err(e),
        None => Ok(()),
    }
}

/// As in /proc/self/mounts, where blanks are written as octal numbers.
fn is_mounted(dir: &Path) -> bool {
    let want = dir.to_string_lossy().replace(' ', "\\040");
    let text = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    text.lines().any(|l| l.split(' ').nth(1) == Some(&*want))
}

/// Writes what the kernel holds of the file system at a folder.
fn syncfs(dir: &Path) -> Result<()> {
    let f = std::fs::File::open(dir)?;
    rustix::fs::syncfs(&f).map_err(|e| base::Error::from(std::io::Error::from(e)))
}
