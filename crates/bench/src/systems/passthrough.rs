//! libfuse's example `passthrough_ll` over ext4: what FUSE itself costs. The example comes with
//! Debian's `libfuse3-dev`; it is compiled into the work folder when it is first wanted.

use super::kernel::{Kernel, EXT4};
use super::{syncfs, unmount, System, World};
use crate::child::{self, interrupted, sh};
use base::{bail, Result};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::TempDir;

const SOURCE: &str = "/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c";

pub struct Passthrough {
    below: Kernel,
    program: PathBuf,
    /// Further options, each behind a comma.
    options: &'static str,
    _dir: TempDir,
    mnt: PathBuf,
    daemon: Option<Child>,
}

impl Passthrough {
    pub fn new(world: Arc<World>, options: &'static str) -> Result<Passthrough> {
        let program = compile(&world.folder)?;
        let dir = TempDir::new("bench-pass")?;
        let mnt = dir.path().join("mnt");
        std::fs::create_dir(&mnt)?;
        Ok(Passthrough {
            below: Kernel::new(world, &EXT4)?,
            program,
            options,
            _dir: dir,
            mnt,
            daemon: None,
        })
    }

    fn start(&mut self) -> Result<()> {
        let below = self.below.dir().display();
        let source = format!("source={below},allow_other{}", self.options);
        let mut c = Command::new(&self.program);
        c.args(["-f", "-o", &source])
            .arg(&self.mnt)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.daemon = Some(child::spawn(&mut c)?);
        let begin = Instant::now();
        while !super::is_mounted(&self.mnt) {
            if begin.elapsed() > Duration::from_secs(30) || interrupted() {
                bail!(Io, "passthrough_ll did not mount");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn leave(&mut self) -> Result<()> {
        let left = unmount(&self.mnt);
        if let Some(mut d) = self.daemon.take() {
            child::stop(&mut d);
        }
        left
    }
}

fn compile(folder: &Path) -> Result<PathBuf> {
    let program = folder.join("passthrough_ll");
    if program.is_file() {
        return Ok(program);
    }
    if !Path::new(SOURCE).is_file() {
        bail!(Unsupported, "there is no {SOURCE} (package libfuse3-dev)");
    }
    let flags = sh("pkg-config", &["--cflags", "--libs", "fuse3"])?;
    let to = program.to_string_lossy();
    let mut args = vec!["-O2", "-o", &to, SOURCE];
    args.extend(flags.split_whitespace());
    match sh("cc", &args) {
        Ok(_) => Ok(program),
        Err(e) => bail!(Unsupported, "passthrough_ll does not compile: {e}"),
    }
}

impl System for Passthrough {
    fn make(&mut self) -> Result<()> {
        self.end()?;
        self.below.make()?;
        self.start()
    }

    fn dir(&self) -> &Path {
        &self.mnt
    }

    fn cold(&mut self) -> Result<()> {
        self.leave()?;
        self.below.cold()?;
        self.start()
    }

    fn settle(&mut self) -> Result<()> {
        syncfs(&self.mnt)?;
        self.below.settle()
    }

    fn daemon(&self) -> Option<u32> {
        self.daemon.as_ref().map(Child::id)
    }

    fn end(&mut self) -> Result<()> {
        self.leave()?;
        self.below.end()
    }
}

impl Drop for Passthrough {
    fn drop(&mut self) {
        let _ = self.end();
    }
}
