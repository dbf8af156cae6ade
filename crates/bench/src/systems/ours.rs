//! Our own daemon, as it is shipped: no options.

use super::{System, World};
use crate::child::{self, interrupted};
use crate::device::drop_caches;
use crate::stream_commands::{self, Variables};
use base::{bail, Result};
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::TempDir;

pub const PROGRAMS: [&str; 3] = ["zfs-fuse", "zpool", "zfs"];
/// Name of the pool.
pub const POOL: &str = "benchpool";

/// A command may have ten thousand snapshots to look after.
const PATIENCE: Duration = Duration::from_secs(600);

pub struct Ours {
    world: Arc<World>,
    compression: &'static str,
    dir: TempDir,
    mnt: PathBuf,
    /// The folder under test.
    place: PathBuf,
    /// The folder is a file system in a view, beside the one that the view begins with.
    view: bool,
    daemon: Option<Child>,
    /// Options of the daemon beside those that every one has.
    pub options: Vec<String>,
}

impl Ours {
    /// With the programs in a folder, which are copied.
    pub fn new(world: Arc<World>, programs: &Path, compression: &'static str) -> Result<Ours> {
        let dir = TempDir::new("bench-ours")?;
        for d in ["bin", "run", "mnt"] {
            std::fs::create_dir(dir.path().join(d))?;
        }
        for p in PROGRAMS {
            // A build that goes on meanwhile must not change what is measured.
            std::fs::copy(programs.join(p), dir.path().join("bin").join(p))?;
        }
        let mnt = dir.path().join("mnt");
        Ok(Ours {
            world,
            compression,
            dir,
            place: mnt.clone(),
            mnt,
            view: false,
            daemon: None,
            options: Vec::new(),
        })
    }

    /// The same in a view of the pool.
    pub fn in_view(mut self) -> Ours {
        self.place = self.mnt.join("in");
        self.view = true;
        self
    }

    fn own(&self, program: &str) -> Command {
        let run = self.dir.path().join("run");
        let mut c = Command::new(self.dir.path().join("bin").join(program));
        c.env("XDG_RUNTIME_DIR", &run)
            .env("ZFS_FUSE_SOCKET", run.join("control.sock"))
            .env("ZFS_FUSE_CACHE", run.join("zpool.cache"))
            .env("LC_ALL", "C.UTF-8");
        c
    }

    /// Runs one of our commands.
    pub fn admin(&self, program: &str, args: &[&str]) -> Result<()> {
        let mut c = self.own(program);
        child::run(c.args(args), PATIENCE, false).map(drop)
    }

    fn start(&mut self) -> Result<()> {
        let log = File::create(self.dir.path().join("log"))?;
        let mut c = self.own("zfs-fuse");
        c.arg("--no-daemon")
            .args(&self.options)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        self.daemon = Some(child::spawn(&mut c)?);
        let socket = self.dir.path().join("run/control.sock");
        let begin = Instant::now();
        while UnixStream::connect(&socket).is_err() {
            let gone = match &mut self.daemon {
                Some(d) => !matches!(d.try_wait(), Ok(None)),
                None => true,
            };
            if gone || begin.elapsed() > Duration::from_secs(30) {
                let log = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
                bail!(Io, "our daemon did not start: {}", log.trim());
            }
            if interrupted() {
                bail!(Interrupted, "interrupted");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// The daemon runs, and the device is blank.
    pub fn begin(&mut self) -> Result<()> {
        self.end()?;
        self.world.device.wipe()?;
        self.start()
    }

    /// Makes the pool.
    pub fn create(&self) -> Result<()> {
        let at = self.mnt.to_string_lossy().into_owned();
        let compression = format!("compression={}", self.compression);
        let device = self.world.device.path();
        let how = ["create", "-f", "-o", "ashift=12", "-O", &compression];
        let view: &[&str] = match self.view {
            true => &["-O", "zfs-fuse:view=on"],
            false => &[],
        };
        let place = ["-m", &at, POOL, device];
        self.admin("zpool", &[&how[..], view, &place].concat())?;
        match self.view {
            true => self.admin("zfs", &["create", &format!("{POOL}/in")]),
            false => Ok(()),
        }
    }

    pub fn export(&self) -> Result<()> {
        self.admin("zpool", &["export", POOL])
    }

    pub fn import(&self) -> Result<()> {
        self.admin("zpool", &["import", "-d", self.world.device.path(), POOL])
    }
}

impl System for Ours {
    fn make(&mut self) -> Result<()> {
        self.begin()?;
        self.create()
    }

    fn dir(&self) -> &Path {
        &self.place
    }

    fn cold(&mut self) -> Result<()> {
        self.export()?;
        drop_caches()?;
        self.import()
    }

    fn settle(&mut self) -> Result<()> {
        super::syncfs(&self.mnt)?;
        self.admin("zpool", &["sync", POOL])
    }

    fn daemon(&self) -> Option<u32> {
        self.daemon.as_ref().map(Child::id)
    }

    fn deduplicate(&mut self) -> Result<()> {
        match self.admin("zfs", &["set", "dedup=on", POOL]) {
            // Our commands end with 1 also for what is not built yet, and say so.
            Err(e) => bail!(Unsupported, "{e}"),
            Ok(()) => Ok(()),
        }
    }

    fn set_records(&mut self, bytes: u64) -> Result<()> {
        self.admin("zfs", &["set", &format!("recordsize={bytes}"), POOL])
    }

    fn scrub(&self) -> Result<()> {
        self.admin("zpool", &["scrub", "-w", POOL])
    }

    fn streams(&self) -> Variables {
        let mut all = stream_commands::of_pool(POOL);
        let c = self.own("zfs");
        let bin = self.dir.path().join("bin");
        for (_, line) in &mut all {
            let mut own = String::new();
            for (name, value) in c.get_envs() {
                let value = value.unwrap_or_default().to_string_lossy();
                own.push_str(&format!("{}={value} ", name.to_string_lossy()));
            }
            *line = format!("{own}{}/{line}", bin.display());
        }
        all
    }

    fn end(&mut self) -> Result<()> {
        let Some(mut d) = self.daemon.take() else {
            return Ok(());
        };
        let exported = self.admin("zpool", &["export", POOL]);
        let willing = child::stop(&mut d);
        super::unmount(&self.mnt)?;
        if !willing {
            bail!(Io, "our daemon had to be killed");
        }
        exported
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        if let Err(e) = self.end() {
            eprintln!("bench: {e}");
        }
    }
}
