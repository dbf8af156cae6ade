//! Start and end of the daemon: one instance per socket, into the background, readiness, a clean end.
//!
//! Going to the background is done by starting the program anew, not by fork: the launcher waits
//! until the new process says that it serves (a line on its standard output), and passes on what
//! it complains about before that on standard error.

use base::{bail, Error, Kind, Result};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Environment variable that tells a process that it is the one in the background.
const CHILD: &str = "ZFS_FUSE_BACKGROUND";
/// What it says when it serves.
const READY: &str = "ready";

/// A command asks for the lock for a moment only: whoever does not get it tries again for this long.
const CONTENTION: Duration = Duration::from_millis(300);
/// A daemon that a command started lets one go first that somebody starts by hand at the same moment.
const COURTESY: Duration = Duration::from_millis(200);

/// True in the process that is to serve in the background.
pub fn is_background_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Starts this program anew in the background and waits until it serves. Returns the exit status
/// for the launcher. The lock goes to the new process as its standard input, so that no other daemon
/// and no command comes between.
pub fn launch(args: &[String], lock: Lock) -> Result<u8> {
    let exe = std::env::current_exe().map_err(|e| Error::from(e).context("own program file"))?;
    let mut child = Command::new(exe);
    // It leaves the directory in which these are meant.
    for name in [
        control::path::SOCKET_VARIABLE,
        control::path::CACHE_VARIABLE,
    ] {
        if let Some(path) = std::env::var_os(name).filter(|v| !v.is_empty()) {
            child.env(name, control::path::from_here(path.into()));
        }
    }
    let mut child = child
        .args(args)
        .env(CHILD, "1")
        .stdin(Stdio::from(lock.file))
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| Error::from(e).context("cannot start the background process"))?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut line)?;
    }
    if line.trim_end() == READY {
        return Ok(0);
    }
    // It ended before it served; what went wrong is on standard error already.
    let status = child.wait()?;
    Ok(status
        .code()
        .and_then(|c| u8::try_from(c).ok())
        .filter(|c| *c != 0)
        .unwrap_or(1))
}

/// The background process leaves its terminal and directory.
pub fn detach() -> Result<()> {
    // Fails only for the leader of a group, which has a session of its own then.
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/")?;
    Ok(())
}

/// As many open files as allowed, and not the first to be killed when memory runs out: all file
/// systems hang on this process.
pub fn raise_limits() {
    use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
    let files = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: files.maximum,
        maximum: files.maximum,
    };
    let _ = setrlimit(Resource::Nofile, most);
    // Root may; for others the score stays as it is.
    let _ = fs::write("/proc/self/oom_score_adj", "-1000");
}

/// Tells whoever waits that the daemon serves: the launcher, and systemd.
pub fn ready() -> Result<()> {
    notify("READY=1");
    if !is_background_child() {
        return Ok(());
    }
    {
        let mut out = std::io::stdout().lock();
        // The launcher may have been killed meanwhile; the daemon serves all the same.
        let _ = writeln!(out, "{READY}").and_then(|()| out.flush());
    }
    let null = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null).map_err(std::io::Error::from)?;
    rustix::stdio::dup2_stderr(&null).map_err(std::io::Error::from)?;
    Ok(())
}

/// Sends a state to the service manager, if one wants to know.
pub fn notify(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let path = path.to_string_lossy().into_owned();
    let address = match path.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    if let (Ok(socket), Ok(address)) = (UnixDatagram::unbound(), address) {
        let _ = socket.send_to_addr(state.as_bytes(), &address);
    }
}

/// Keeps a second daemon from starting; given up when dropped (or when the process ends).
#[derive(Debug)]
pub struct Lock {
    file: File,
}

impl Lock {
    /// The file holds the process id of the owner.
    fn sign(mut file: File) -> Result<Lock> {
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())?;
        Ok(Lock { file })
    }

    /// The lock that the launcher took for this process.
    pub fn inherited(socket: &Path) -> Result<Option<Lock>> {
        let there = fs::metadata(control::path::lock_path(socket));
        let file = File::from(std::io::stdin().as_fd().try_clone_to_owned()?);
        let same = |a: &fs::Metadata, b: &fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
        if !there.is_ok_and(|t| file.metadata().is_ok_and(|f| same(&t, &f))) {
            return Ok(None);
        }
        rustix::stdio::dup2_stdin(File::open("/dev/null")?).map_err(std::io::Error::from)?;
        Lock::sign(file).map(Some)
    }
}

/// Takes the lock beside the socket for the daemon that is being started.
pub fn lock(socket: &Path) -> Result<Lock> {
    must_be_socket(socket)?;
    if control::client::started_by_command() {
        let end = Instant::now() + COURTESY;
        while Instant::now() < end && !control::path::is_locked(socket) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let path = control::path::lock_path(socket);
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(|e| Error::from(e).context(format!("cannot open '{}'", path.display())))?;
    let end = Instant::now() + CONTENTION;
    let locked = loop {
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(20));
            }
            r => break r,
        }
    };
    match locked {
        Ok(()) => Lock::sign(file),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut pid = String::new();
            let _ = file.read_to_string(&mut pid);
            let pid = pid.trim();
            bail!(
                Busy,
                "another zfs-fuse daemon{} already serves '{}'; stop that one first",
                if pid.is_empty() {
                    String::new()
                } else {
                    format!(" (process {pid})")
                },
                socket.display()
            );
        }
        Err(e) => Err(std::io::Error::from(e).into()),
    }
}

/// Refuses a path at which there is something other than a socket: it is not ours to remove.
fn must_be_socket(socket: &Path) -> Result<()> {
    match fs::symlink_metadata(socket) {
        Ok(meta) if !meta.file_type().is_socket() => bail!(
            Exists,
            "cannot listen at '{}': something other than a socket is there; it is left as it is\n\
             Set {} to another path, or remove what is there.",
            socket.display(),
            control::path::SOCKET_VARIABLE
        ),
        _ => Ok(()),
    }
}

/// Removes a socket that nobody answers on. The lock must be held.
fn remove_dead(socket: &Path) -> Result<()> {
    must_be_socket(socket)?;
    let cannot = |e: std::io::Error| {
        Error::from(e).context(format!("cannot replace '{}'", socket.display()))
    };
    match UnixStream::connect(socket) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => {
            fs::remove_file(socket).map_err(cannot)
        }
        Err(e) => Err(cannot(e)),
        Ok(_) => bail!(
            Busy,
            "another program serves at '{}'; set {} to another path, or stop that one first",
            socket.display(),
            control::path::SOCKET_VARIABLE
        ),
    }
}

/// Opens the control socket; the lock must be held. Root's may be asked by everybody (who may
/// change things is decided by the caller's credentials), a user's only by the user.
pub fn listen(socket: &Path, _lock: &Lock) -> Result<UnixListener> {
    remove_dead(socket)?;
    let mode = if rustix::process::geteuid().is_root() {
        0o666
    } else {
        0o600
    };
    privilege::acts()
        .listen(socket, mode)
        .map_err(|e| Error::from(e).context(format!("cannot listen at '{}'", socket.display())))
}

/// Takes the control socket away at the end, if it is still a socket.
pub fn unlisten(socket: &Path, _lock: &Lock) {
    if must_be_socket(socket).is_ok() {
        let _ = fs::remove_file(socket);
    }
}

/// A file with the process id, removed when dropped.
#[derive(Debug)]
pub struct PidFile(PathBuf);

impl PidFile {
    /// Writes it. A file that is there must be one that such a daemon left: nothing but a number.
    pub fn write(path: &Path) -> Result<PidFile> {
        let fail = |e: std::io::Error| {
            Error::from(e).context(format!("cannot write the pid file '{}'", path.display()))
        };
        let ours = || -> std::io::Result<bool> {
            if !fs::symlink_metadata(path)?.is_file() {
                return Ok(false);
            }
            let mut text = Vec::new();
            File::open(path)?.take(32).read_to_end(&mut text)?;
            let text = text.trim_ascii();
            Ok(text.len() <= 20 && text.iter().all(u8::is_ascii_digit))
        };
        match ours() {
            Ok(true) => fs::remove_file(path).map_err(fail)?,
            Ok(false) => bail!(
                Exists,
                "cannot write the pid file '{}': there is something else; give another path, or \
                 remove it",
                path.display()
            ),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(fail(e)),
        }
        // Made anew, so that no link planted meanwhile is followed.
        let mut file = File::create_new(path).map_err(fail)?;
        writeln!(file, "{}", std::process::id()).map_err(fail)?;
        Ok(PidFile(path.to_path_buf()))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Asks the daemon to end; cloned to whoever may.
#[derive(Clone, Debug)]
pub struct Stop(std::sync::mpsc::SyncSender<()>);

impl Stop {
    /// Ends [`Stopped::wait`]; more than once does no harm.
    pub fn ask(&self) {
        let _ = self.0.try_send(());
    }
}

/// Waits for the end.
#[derive(Debug)]
pub struct Stopped(std::sync::mpsc::Receiver<()>);

impl Stopped {
    /// Returns when somebody asked the daemon to end.
    pub fn wait(&self) {
        let _ = self.0.recv();
    }
}

/// The switch and its waiting side; SIGTERM and SIGINT press it (SIGHUP too in the foreground,
/// when the terminal goes away). To be called before other threads start.
pub fn stop_switch(foreground: bool) -> Result<(Stop, Stopped)> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let (send, receive) = std::sync::mpsc::sync_channel(1);
    let stop = Stop(send);
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let by_signal = stop.clone();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for signal in signals.forever() {
                if signal != SIGHUP || foreground {
                    by_signal.ask();
                }
            }
        })?;
    Ok((stop, Stopped(receive)))
}

/// An error that is the user's to read.
pub fn refusal(e: api::ApiError) -> Error {
    let kind = Kind::from_errno(e.code);
    match e.hint {
        Some(hint) => Error::new(kind, format!("{}\n{hint}", e.message)),
        None => Error::new(kind, e.message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_daemon_per_socket() {
        let dir = std::env::temp_dir().join(format!("zfs-fuse-start-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let socket = dir.join("control.sock");
        control::path::prepare_dir(&socket).unwrap();
        let first = lock(&socket).unwrap();
        let listener = listen(&socket, &first).unwrap();
        let e = lock(&socket).unwrap_err();
        assert_eq!(e.kind, Kind::Busy);
        assert!(
            e.to_string()
                .contains(&format!("(process {})", std::process::id())),
            "{e}"
        );
        // The next one takes over, the dead one's socket notwithstanding.
        drop((first, listener));
        let second = lock(&socket).unwrap();
        listen(&socket, &second).unwrap();
        let pid = PidFile::write(&dir.join("pid")).unwrap();
        assert!(dir.join("pid").exists());
        drop(pid);
        assert!(!dir.join("pid").exists());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_pid_file_replaces_nothing_but_a_pid_file() {
        let dir = std::env::temp_dir().join(format!("zfs-fuse-pid-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).unwrap();
        let (file, link, old) = (dir.join("file"), dir.join("link"), dir.join("old"));
        fs::write(&file, b"precious").unwrap();
        fs::write(&old, b"123\n").unwrap();
        std::os::unix::fs::symlink(&old, &link).unwrap();
        for wrong in [&file, &link, &dir] {
            let e = PidFile::write(wrong).unwrap_err();
            assert_eq!(e.kind, Kind::Exists, "{e}");
        }
        assert_eq!(fs::read(&file).unwrap(), b"precious");
        assert_eq!(fs::read(&old).unwrap(), b"123\n");
        let pid = PidFile::write(&old).unwrap();
        let text = fs::read_to_string(&old).unwrap();
        assert_eq!(text.trim(), std::process::id().to_string());
        drop(pid);
        assert!(!old.exists());
        fs::remove_dir_all(&dir).unwrap();
    }

    /// What the service manager waits for before it kills the daemon.
    #[test]
    fn a_stop_may_take_as_long_as_writing_out_may() {
        let unit = include_str!("../../../tools/zfs-fuse.service.in");
        let line = unit.lines().find_map(|l| l.strip_prefix("TimeoutStopSec="));
        let seconds: u64 = line.unwrap().parse().unwrap();
        assert!(seconds > fuse_zpl::MOST.as_secs());
    }

    #[test]
    fn only_sockets_that_nobody_answers_on_are_removed() {
        let dir = std::env::temp_dir().join(format!("zfs-fuse-listen-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).unwrap();
        let (file, link, path) = (dir.join("file"), dir.join("link"), dir.join("sock"));
        fs::write(&file, b"precious").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let held = lock(&path).unwrap();
        for wrong in [&file, &link, &dir] {
            let e = lock(wrong).unwrap_err();
            assert_eq!(e.kind, Kind::Exists, "{e}");
            assert!(e.to_string().contains("other than a socket"), "{e}");
            assert!(listen(wrong, &held).is_err());
            unlisten(wrong, &held);
        }
        assert_eq!(fs::read(&file).unwrap(), b"precious");
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert!(!dir.join("file.lock").exists() && !dir.join("link.lock").exists());
        // Somebody who does not care for the lock listens there.
        let other = UnixListener::bind(&path).unwrap();
        assert_eq!(listen(&path, &held).unwrap_err().kind, Kind::Busy);
        assert!(path.exists());
        drop(other);
        let ours = listen(&path, &held).unwrap();
        UnixStream::connect(&path).unwrap();
        drop(ours);
        unlisten(&path, &held);
        assert!(!path.exists());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn switch() {
        let (stop, stopped) = stop_switch(false).unwrap();
        stop.ask();
        stop.ask();
        stopped.wait();
    }

    #[test]
    fn notification() {
        let path = std::env::temp_dir().join(format!("zfs-fuse-notify-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        let socket = UnixDatagram::bind(&path).unwrap();
        let address = SocketAddr::from_pathname(&path).unwrap();
        UnixDatagram::unbound()
            .unwrap()
            .send_to_addr(b"READY=1", &address)
            .unwrap();
        let mut buf = [0; 16];
        assert_eq!(socket.recv(&mut buf).unwrap(), 7);
        fs::remove_file(&path).unwrap();
    }
}
