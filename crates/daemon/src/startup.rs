//! Becoming a daemon: one instance per socket, into the background, ready, and a clean end.
//!
//! Going to the background is done by starting the program anew, not by fork: the launcher waits
//! until the new process says that it serves (a line on its standard output), and passes on what
//! it complains about before that on standard error.

use base::{bail, Error, Kind, Result};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Environment variable that tells a process that it is the one in the background.
const CHILD: &str = "ZFS_FUSE_BACKGROUND";
/// What it says when it serves.
const READY: &str = "ready";

/// True in the process that is to serve in the background.
pub fn is_background_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Starts this program anew in the background and waits until it serves. Returns the exit status
/// for the launcher.
pub fn launch(args: &[String]) -> Result<u8> {
    let exe = std::env::current_exe().map_err(|e| Error::from(e).context("own program file"))?;
    let mut child = Command::new(exe);
    // It leaves the directory from which these may be meant.
    for name in [api::path::SOCKET_VARIABLE, api::path::CACHE_VARIABLE] {
        if let Some(path) = std::env::var_os(name).filter(|p| !p.is_empty()) {
            child.env(name, api::path::absolute(path));
        }
    }
    let mut child = child
        .args(args)
        .env(CHILD, "1")
        .stdin(Stdio::null())
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
    _file: File,
}

/// Takes the lock beside the socket. The file holds the process id of the owner.
pub fn lock(socket: &Path) -> Result<Lock> {
    let path = lock_path(socket);
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(|e| Error::from(e).context(format!("cannot open '{}'", path.display())))?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
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
        Err(e) => return Err(std::io::Error::from(e).into()),
    }
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())?;
    Ok(Lock { _file: file })
}

fn lock_path(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_os_string();
    name.push(".lock");
    PathBuf::from(name)
}

/// Opens the control socket; the lock must be held. Root's may be asked by everybody (who may
/// change things is decided by the caller's credentials), a user's only by the user.
pub fn listen(socket: &Path, _lock: &Lock) -> Result<UnixListener> {
    match fs::remove_file(socket) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            return Err(Error::from(e).context(format!("cannot replace '{}'", socket.display())))
        }
        _ => {}
    }
    let listener = UnixListener::bind(socket)
        .map_err(|e| Error::from(e).context(format!("cannot listen at '{}'", socket.display())))?;
    let mode = if rustix::process::geteuid().is_root() {
        0o666
    } else {
        0o600
    };
    fs::set_permissions(socket, fs::Permissions::from_mode(mode))?;
    Ok(listener)
}

/// A file with the process id, removed when dropped.
#[derive(Debug)]
pub struct PidFile(PathBuf);

impl PidFile {
    pub fn write(path: &Path) -> Result<PidFile> {
        fs::write(path, format!("{}\n", std::process::id())).map_err(|e| {
            Error::from(e).context(format!("cannot write the pid file '{}'", path.display()))
        })?;
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
        api::path::prepare_dir(&socket).unwrap();
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
