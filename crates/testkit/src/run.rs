//! Running programs, and temporary folders.

use base::{bail, Result};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU64, Ordering};

/// Runs to the end; an error only if it could not be started.
pub(crate) fn output(cmd: &mut Command) -> Result<Output> {
    cmd.output().map_err(|e| {
        let kind = match e.kind() {
            std::io::ErrorKind::NotFound => base::Kind::Unsupported,
            _ => base::Error::from(e).kind,
        };
        base::Error::new(kind, format!("cannot run {:?}", cmd.get_program()))
    })
}

/// Runs to the end; its standard output, or an error with all it said.
pub(crate) fn stdout(cmd: &mut Command) -> Result<String> {
    let out = output(cmd)?;
    if !out.status.success() {
        bail!(Io, "{}", all_text(cmd, &out));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Command line, exit status and everything printed.
pub(crate) fn all_text(cmd: &Command, out: &Output) -> String {
    format!(
        "{cmd:?}: {}\n{}{}",
        out.status,
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    )
}

/// A new folder that goes away with its value.
#[derive(Debug)]
pub struct TempDir(PathBuf);

impl TempDir {
    /// A folder in the system's temporary folder.
    pub fn new(name: &str) -> Result<TempDir> {
        TempDir::inside(&std::env::temp_dir(), name)
    }

    pub(crate) fn inside(parent: &Path, name: &str) -> Result<TempDir> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = parent.join(format!("{name}.{}.{n}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        Ok(TempDir(dir))
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Creates a sparse file of `size` bytes to serve as a disk.
    pub fn image(&self, name: &str, size: u64) -> Result<PathBuf> {
        let path = self.0.join(name);
        std::fs::File::create(&path)?.set_len(size)?;
        Ok(path)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // Nothing useful can be done about a failure here.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
