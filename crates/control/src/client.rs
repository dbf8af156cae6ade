//! The client side of the socket: connects (starting the daemon if need be), sends a call, waits for the answer.

use crate::wire::{self, Framed};
use crate::{path, server};
use api::{ApiError, Reply, Request, Version};
use base::{io_text, Kind};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// File name of the daemon.
pub const DAEMON: &str = "zfs-fuse";

/// Exit status of a daemon that a command started and that found another one in its place: the
/// command only has to wait for that one. People and scripts see 1, as of any failure.
pub const ALREADY_RUNNING: u8 = 3;

/// Environment variable that tells a daemon that a command started it.
const STARTED_BY_COMMAND: &str = "ZFS_FUSE_STARTED_BY_COMMAND";

/// Environment variable by which a script says that commands start no daemon.
pub const NO_START_VARIABLE: &str = "ZFS_FUSE_NO_START";

/// Whether a command started this daemon.
pub fn started_by_command() -> bool {
    std::env::var_os(STARTED_BY_COMMAND).is_some()
}

fn may_not_start() -> bool {
    std::env::var_os(NO_START_VARIABLE).is_some_and(|v| !v.is_empty())
}

/// A connection to the daemon.
#[derive(Debug)]
pub struct Client {
    framed: Framed,
}

impl Client {
    /// Connects to the daemon of this user (see [`path::socket_path`]). One that is just starting is waited
    /// for; if none runs, one is started, unless [`NO_START_VARIABLE`] is set.
    pub fn connect() -> Result<Client, ApiError> {
        let socket = path::socket_path();
        match connect_starting(&socket)? {
            Some(client) => Ok(client),
            None if may_not_start() => {
                Err(ApiError::sentence(
                    Kind::NotFound,
                    format!(
                        "the zfs-fuse daemon is not running, and {NO_START_VARIABLE} forbids to start it"
                    ),
                )
                .hint("Start it by hand: zfs-fuse"))
            }
            None => start_and_connect(&socket),
        }
    }

    /// Connects if a daemon runs.
    pub fn connect_running() -> Result<Option<Client>, ApiError> {
        Client::connect_at(&path::socket_path())
    }

    /// Connects if a daemon of this user serves or is starting, or if it has pools to import once it is started.
    pub fn connect_for_its_pools() -> Result<Option<Client>, ApiError> {
        match connect_starting(&path::socket_path())? {
            None if path::cache_path().exists() && !may_not_start() => Client::connect().map(Some),
            running => Ok(running),
        }
    }

    /// Connects to a socket; none if nobody listens there.
    pub fn connect_at(socket: &Path) -> Result<Option<Client>, ApiError> {
        path::check_dir(socket)?;
        let stream = match UnixStream::connect(socket) {
            Ok(stream) => stream,
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::NotFound
                        | io::ErrorKind::ConnectionRefused
                        | io::ErrorKind::NotADirectory
                ) =>
            {
                return Ok(None)
            }
            Err(e) => {
                return Err(ApiError::sentence(
                    base::Error::from(io::Error::from(e.kind())).kind,
                    format!(
                        "cannot connect to the daemon at '{}': {}",
                        socket.display(),
                        io_text(&e)
                    ),
                )
                .hint("Run the command as the user whose daemon it is, or as root."))
            }
        };
        let owner = server::peer_of(&stream)?.uid;
        if owner != 0 && owner != rustix::process::geteuid().as_raw() {
            return Err(ApiError::sentence(
                Kind::Access,
                format!(
                    "the daemon at '{}' runs as another user (uid {owner})",
                    socket.display()
                ),
            )
            .hint(format!(
                "Set {} to the socket of your own daemon.",
                path::SOCKET_VARIABLE
            )));
        }
        let mut framed = Framed::new(stream, wire::MAX_REPLY);
        framed.take_descriptors();
        Ok(Some(Client { framed }))
    }

    /// Asks and waits; lists that come in chunks are put together, progress is dropped.
    pub fn call(&mut self, request: &Request) -> Result<Reply, ApiError> {
        self.call_with(request, &mut |_| {})
    }

    /// As [`Client::call`]; progress messages are handed to `progress`.
    pub fn call_with(
        &mut self,
        request: &Request,
        progress: &mut dyn FnMut(api::Progress),
    ) -> Result<Reply, ApiError> {
        self.call_streaming(request, &mut drop, progress)
    }

    /// As [`Client::call_with`]; the command's end of a stream is handed to `attach` when it comes, before the answer.
    pub fn call_streaming(
        &mut self,
        request: &Request,
        attach: &mut dyn FnMut(OwnedFd),
        progress: &mut dyn FnMut(api::Progress),
    ) -> Result<Reply, ApiError> {
        let mut so_far: Option<Reply> = None;
        self.exchange(request, attach, &mut |reply| match reply {
            Reply::Progress(p) => progress(p),
            reply => so_far = Some(join(so_far.take(), reply)),
        })?;
        so_far.ok_or_else(|| ApiError::sentence(Kind::Invalid, "the daemon gave no answer"))
    }

    /// Asks; every part of the answer is handed to `take` when it comes, so that none is kept.
    pub fn call_in_parts(
        &mut self,
        request: &Request,
        take: &mut dyn FnMut(Reply),
    ) -> Result<(), ApiError> {
        self.exchange(request, &mut drop, take)
    }

    fn exchange(
        &mut self,
        request: &Request,
        attach: &mut dyn FnMut(OwnedFd),
        take: &mut dyn FnMut(Reply),
    ) -> Result<(), ApiError> {
        let lost = |e: io::Error| {
            let text = format!("lost the connection to the daemon: {}", io_text(&e));
            ApiError::sentence(Kind::Io, text)
                .hint("The request may have been carried out: check before repeating it.")
        };
        self.framed
            .write(&wire::encode_call(request, true)?)
            .map_err(lost)?;
        loop {
            let frame = self
                .framed
                .read()
                .and_then(|f| f.ok_or_else(|| io::ErrorKind::UnexpectedEof.into()))
                .map_err(lost)?;
            let (answer, continues) = wire::decode_reply(&frame).map_err(|e| {
                ApiError::sentence(
                    Kind::Invalid,
                    format!("the daemon's answer is not understood: {e}"),
                )
                .hint("Command and daemon are of different versions: restart the daemon.")
            })?;
            match answer? {
                Reply::Stream => self.framed.descriptor().into_iter().for_each(&mut *attach),
                answer => take(answer),
            }
            if !continues {
                return Ok(());
            }
        }
    }

    /// Version of the daemon.
    pub fn version(&mut self) -> Result<Version, ApiError> {
        match self.call(&Request::Version {})? {
            Reply::Version(v) => Ok(v),
            other => Err(unexpected(&other)),
        }
    }
}

/// The daemon answered something that does not belong to the request.
pub fn unexpected(reply: &Reply) -> ApiError {
    let text = format!("{reply:?}");
    let word: String = text.chars().take_while(|c| c.is_alphanumeric()).collect();
    ApiError::sentence(
        Kind::Invalid,
        format!("the daemon gave a wrong answer: {word}"),
    )
    .hint("Command and daemon are of different versions: restart the daemon.")
}

/// Two parts of an answer as one; of answers that have no parts the second one.
pub fn join(so_far: Option<Reply>, next: Reply) -> Reply {
    match (so_far, next) {
        (Some(Reply::Datasets(mut a)), Reply::Datasets(b)) => {
            a.found.extend(b.found);
            a.failed.extend(b.failed);
            Reply::Datasets(a)
        }
        (Some(Reply::Pools(mut a)), Reply::Pools(b)) => {
            a.found.extend(b.found);
            a.failed.extend(b.failed);
            Reply::Pools(a)
        }
        (Some(Reply::Holds(mut a)), Reply::Holds(b)) => {
            a.found.extend(b.found);
            a.failed.extend(b.failed);
            Reply::Holds(a)
        }
        (Some(Reply::Mounts(mut a)), Reply::Mounts(b)) => {
            a.extend(b);
            Reply::Mounts(a)
        }
        (Some(Reply::History(mut a)), Reply::History(b)) => {
            a.extend(b);
            Reply::History(a)
        }
        (_, next) => next,
    }
}

/// Looks for the daemon beside the running command, then in PATH and the places of system
/// commands.
pub fn find_daemon() -> Option<PathBuf> {
    let mut places = Vec::new();
    if let Ok(exe) = std::env::current_exe() {
        places.extend(exe.parent().map(Path::to_path_buf));
    }
    if let Some(path) = std::env::var_os("PATH") {
        places.extend(std::env::split_paths(&path).filter(|p| p.is_absolute()));
    }
    let usual = [
        "/usr/local/bin",
        "/usr/local/sbin",
        "/usr/bin",
        "/usr/sbin",
        "/sbin",
    ];
    places.extend(usual.map(PathBuf::from));
    places.into_iter().map(|p| p.join(DAEMON)).find(|p| {
        use std::os::unix::fs::PermissionsExt;
        p.metadata()
            .is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    })
}

/// Seconds to wait for the socket: ZFS_MODULE_TIMEOUT, 10 if unset, for ever if negative.
fn patience() -> Option<Duration> {
    let seconds = std::env::var("ZFS_MODULE_TIMEOUT")
        .ok()
        .and_then(|v| v.parse::<i64>().ok())
        .unwrap_or(10);
    u64::try_from(seconds).ok().map(Duration::from_secs)
}

/// Connects to a daemon that serves, or that is about to: while somebody holds the lock, somebody will.
fn connect_starting(socket: &Path) -> Result<Option<Client>, ApiError> {
    let deadline = patience().map(|p| Instant::now() + p);
    loop {
        if let Some(client) = Client::connect_at(socket)? {
            return Ok(Some(client));
        }
        if !path::is_locked(socket) {
            // It may have begun to serve between the two questions.
            return Client::connect_at(socket);
        }
        if deadline.is_some_and(|d| Instant::now() >= d) {
            return Err(ApiError::sentence(
                Kind::Again,
                format!(
                    "a zfs-fuse daemon is starting or ending, but does not answer at '{}'",
                    socket.display()
                ),
            )
            .hint("Try again later; ZFS_MODULE_TIMEOUT says how many seconds to wait for it."));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn start_and_connect(socket: &Path) -> Result<Client, ApiError> {
    let by_hand = "Start it by hand: zfs-fuse";
    let daemon = find_daemon().ok_or_else(|| {
        ApiError::sentence(
            Kind::NotFound,
            "the zfs-fuse daemon is not running, and no 'zfs-fuse' was found beside this command or in PATH",
        )
        .hint("Install it, or start it by hand.")
    })?;
    // It goes to the background by itself once it serves; its parent's exit tells so. The
    // complaint, if any, is on its standard error.
    let output = Command::new(&daemon)
        .env(STARTED_BY_COMMAND, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .map_err(|e| {
            ApiError::sentence(
                base::Error::from(io::Error::from(e.kind())).kind,
                format!(
                    "cannot start the daemon '{}': {}",
                    daemon.display(),
                    io_text(&e)
                ),
            )
            .hint(by_hand)
        })?;
    let deadline = patience().map(|p| Instant::now() + p);
    loop {
        if let Some(client) = Client::connect_at(socket)? {
            return Ok(client);
        }
        // Another command may have started one at the same moment: that one will answer soon.
        let raced = output.status.code() == Some(i32::from(ALREADY_RUNNING));
        if !(output.status.success() || raced) || deadline.is_some_and(|d| Instant::now() >= d) {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    let complaint = complaint.trim();
    Err(ApiError::sentence(
        Kind::Io,
        if complaint.is_empty() {
            format!(
                "the daemon '{}' was started but does not answer at '{}'",
                daemon.display(),
                socket.display()
            )
        } else {
            format!("the zfs-fuse daemon did not start: {complaint}")
        },
    )
    .hint(by_hand))
}
