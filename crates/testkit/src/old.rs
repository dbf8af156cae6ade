//! The old zfs-fuse 0.7, from Debian's package.
//!
//! Its daemon uses fixed places (`/var/run/zfs/zfs_socket`, `/var/lock/zfs`, `/var/lib/zfs`,
//! `/zfs-kstat`) and mounts its file systems from the root folder down. It is therefore given a
//! mount namespace and a root folder of its own: a `tmpfs` into which everything of the real root
//! is bound except `/etc`, `/run` and the parts of `/var` it writes to. Paths of images are the
//! same inside and outside; nothing it mounts is seen outside, and all of it vanishes with the
//! daemon.

use crate::packages::{get, Programs, Set};
use crate::run::{all_text, output, TempDir};
use base::{bail, Result};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Builds the private root and becomes the daemon. Arguments: root, library path, daemon.
const ENTER: &str = r#"
set -e
root=$1; libs=$2; daemon=$3
# A copy of a mount of somebody else here would keep its file system busy there.
grep -E '^[^ ]+ [^ ]+ fuse' /proc/mounts | cut -d' ' -f2 | tac | while read -r at; do
    umount -l "$at" || true
done
mount -t tmpfs -o mode=755 none "$root"
bind() {
    for e in "$1"/*; do
        case $e in /etc|/var|/run|/zfs-kstat|/var/run|/var/lock|/var/lib) continue;; esac
        if [ -L "$e" ]; then ln -s "$(readlink "$e")" "$root$e"
        elif [ -d "$e" ]; then mkdir -p "$root$e"; mount --rbind "$e" "$root$e"
        fi
    done
}
bind ''
bind /var
mkdir -p "$root/etc/zfs" "$root/run/lock" "$root/var/lib/zfs" "$root/var/lib/nfs"
for f in passwd group nsswitch.conf ld.so.cache ld.so.conf ld.so.conf.d alternatives; do
    if [ -e "/etc/$f" ]; then cp -RL "/etc/$f" "$root/etc/" 2>/dev/null || true; fi
done
ln -s /proc/self/mounts "$root/etc/mtab"
ln -s ../run "$root/var/run"
ln -s ../run/lock "$root/var/lock"
cd "$root"
exec chroot "$root" env LD_LIBRARY_PATH="$libs" "$daemon" -n
"#;

const PATIENCE: Duration = Duration::from_secs(15);

/// A running daemon of zfs-fuse 0.7. It ends with its value; pools that are still imported are
/// then left as a crash would leave them, so export first.
#[derive(Debug)]
pub struct OldZfsFuse {
    tools: Programs,
    daemon: Child,
    log: PathBuf,
    _dir: TempDir,
}

impl OldZfsFuse {
    /// Starts a daemon that knows of no pool.
    ///
    /// Errors: unsupported without root, `/dev/fuse` or the package.
    pub fn start() -> Result<OldZfsFuse> {
        if !is_root() || !Path::new("/dev/fuse").exists() {
            bail!(Unsupported, "the old zfs-fuse needs root and /dev/fuse");
        }
        let tools = get(Set::ZfsFuse)?;
        let Some(program) = tools.find("zfs-fuse") else {
            bail!(Unsupported, "the package has no zfs-fuse");
        };
        let dir = TempDir::new("old-zfs-fuse")?;
        let root = dir.path().join("root");
        std::fs::create_dir(&root)?;
        let log = dir.path().join("log");
        let log_file = std::fs::File::create(&log)?;
        let daemon = Command::new("unshare")
            .args([
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-c",
                ENTER,
                "sh",
            ])
            .arg(&root)
            .arg(libraries(&tools))
            .arg(program)
            .stdin(Stdio::null())
            .stdout(log_file.try_clone()?)
            .stderr(log_file)
            .spawn()?;
        let mut old = OldZfsFuse {
            tools,
            daemon,
            log,
            _dir: dir,
        };
        old.wait_ready()?;
        Ok(old)
    }

    fn wait_ready(&mut self) -> Result<()> {
        // exec keeps the process id from unshare to the daemon
        let process = Path::new("/proc").join(self.daemon.id().to_string());
        let socket = process.join("root").join("run/zfs/zfs_socket");
        let start = Instant::now();
        while !socket.exists() {
            if self.daemon.try_wait()?.is_some() || start.elapsed() > PATIENCE {
                bail!(
                    Unsupported,
                    "the old zfs-fuse did not start: {}",
                    self.log()
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Process id of the daemon.
    pub fn pid(&self) -> u32 {
        self.daemon.id()
    }

    /// What the daemon has printed so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// A command that will run where the daemon lives and sees its mounts. `zpool` and `zfs` are
    /// the old ones.
    pub fn command(&self, program: &str) -> Command {
        let own = self.tools.find(program);
        let mut c = Command::new("nsenter");
        c.arg("--target").arg(self.daemon.id().to_string()).args([
            "--mount",
            "--root",
            "env",
            "--chdir=/",
        ]);
        let mut dirs: Vec<PathBuf> = ["zpool", "zfs"]
            .iter()
            .filter_map(|p| self.tools.find(p)?.parent().map(Path::to_path_buf))
            .collect();
        dirs.dedup();
        dirs.extend(std::env::split_paths(
            &std::env::var_os("PATH").unwrap_or_default(),
        ));
        let path = std::env::join_paths(dirs).unwrap_or_default();
        let mut assign = std::ffi::OsString::from("PATH=");
        assign.push(path);
        c.arg(assign);
        let mut assign = std::ffi::OsString::from("LD_LIBRARY_PATH=");
        assign.push(libraries(&self.tools));
        c.arg(assign);
        c.arg(own.unwrap_or_else(|| program.into()));
        c
    }

    /// Runs a program there; its output, or an error with all it said.
    pub fn run(&self, program: &str, args: &[&str]) -> Result<String> {
        let mut c = self.command(program);
        let out = output(c.args(args))?;
        if !out.status.success() {
            bail!(Io, "{}", all_text(&c, &out));
        }
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    }

    /// The old `zpool`.
    pub fn zpool(&self, args: &[&str]) -> Result<String> {
        self.run("zpool", args)
    }

    /// The old `zfs`.
    pub fn zfs(&self, args: &[&str]) -> Result<String> {
        self.run("zfs", args)
    }

    /// A shell script that sees the mounted file systems.
    pub fn sh(&self, script: &str) -> Result<String> {
        self.run("sh", &["-ec", script])
    }

    /// A path of a mounted file system as this process can open it.
    pub fn outside(&self, path: &str) -> PathBuf {
        format!("/proc/{}/root{path}", self.daemon.id()).into()
    }

    /// Asks the daemon to end and waits for it.
    pub fn stop(mut self) -> Result<()> {
        if self.end() {
            return Ok(());
        }
        bail!(Io, "the old zfs-fuse had to be killed: {}", self.log())
    }

    /// Whether it ended by itself.
    fn end(&mut self) -> bool {
        let pid = self.daemon.id().to_string();
        let _ = output(Command::new("kill").args(["-TERM", &pid]));
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if !matches!(self.daemon.try_wait(), Ok(None)) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        false
    }
}

impl Drop for OldZfsFuse {
    fn drop(&mut self) {
        if matches!(self.daemon.try_wait(), Ok(None)) {
            self.end();
        }
    }
}

fn libraries(tools: &Programs) -> std::ffi::OsString {
    std::env::join_paths(tools.libraries()).unwrap_or_default()
}

fn is_root() -> bool {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    text.lines()
        .filter_map(|l| l.strip_prefix("Uid:"))
        .any(|l| l.split_whitespace().nth(1) == Some("0"))
}
