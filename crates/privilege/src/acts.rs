//! [`Privilege`]: the acts of this program that need rights.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use base::Result;

use crate::path_helper::Limit;

/// Bytes and descriptors, of which some may have got lost.
pub type Answer = (Vec<u8>, io::Result<Vec<OwnedFd>>);

/// What is done with a path or mount: a `question::Job` as it travels.
pub struct Question<'a> {
    /// Name of the job.
    pub name: &'static str,
    /// The job, as text.
    pub body: String,
    /// The path that is walked.
    pub path: &'a Path,
    /// The ordinary user whose path it is.
    pub user: Option<u32>,
    /// What goes with it.
    pub files: &'a [BorrowedFd<'a>],
    /// How long the answer may take.
    pub limit: Limit<'a>,
    /// Does the job in this process; none: the text is not understood.
    pub run: fn(&str, Vec<OwnedFd>) -> Option<(Vec<u8>, Vec<OwnedFd>)>,
}

/// Major and minor number of a mount's files.
pub type Device = (u32, u32);

/// A setting of what the kernel takes for the device below a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Kilobytes that are read ahead.
    ReadAhead,
    /// Percent of the machine's limit of data that are not written yet.
    MostDirty,
}

/// How a device is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opening {
    /// For writing, too.
    pub write: bool,
    /// Past the page cache.
    pub direct: bool,
    /// A block device, to the exclusion of mounts and of others who open it so.
    pub exclusive: bool,
}

/// A program that is run with nothing as its standard input.
#[derive(Clone, Debug)]
pub struct Program<'a> {
    /// Where it is.
    pub path: &'a Path,
    /// What it is told.
    pub arguments: Vec<&'a OsStr>,
    /// All of its environment; none: that of this process.
    pub environment: Option<Vec<(String, String)>>,
    /// Whether what it prints is wanted.
    pub output: bool,
    /// A program that takes longer is ended.
    pub limit: Option<Duration>,
}

impl<'a> Program<'a> {
    /// With these arguments, for as long as it takes.
    pub fn new(path: &'a Path, arguments: &'a [&'a str]) -> Program<'a> {
        Program {
            path,
            arguments: arguments.iter().map(|a| OsStr::new(*a)).collect(),
            environment: None,
            output: false,
            limit: None,
        }
    }
}

/// What became of a program.
#[derive(Debug)]
pub enum Ran {
    /// It has ended.
    Ended(Output),
    /// It was ended.
    TookTooLong,
}

impl Ran {
    /// What it left.
    ///
    /// Errors: it took too long.
    pub fn output(self) -> io::Result<Output> {
        match self {
            Ran::Ended(output) => Ok(output),
            Ran::TookTooLong => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

/// How a file takes the place of another one.
#[derive(Clone, Copy, Debug)]
pub struct Replacing<'a> {
    /// What it is called until then, in the same folder.
    pub meanwhile: &'a Path,
    /// Permission bits; none: those of new files.
    pub mode: Option<u32>,
    /// Whether it is on stable storage afterwards.
    pub durable: bool,
}

/// The acts that need rights. [`crate::Direct`] does them in this process; a process that has given its rights up has another one
/// do them. Arguments and results are data and descriptors, so that they can travel.
pub trait Privilege: Send + Sync {
    /// Mounts, unmounts, finds and makes mount points, looks who keeps a mount busy.
    ///
    /// Errors: again, if the path does not answer in time; the system's. Those of the job are in the answer.
    fn ask(&self, question: &Question<'_>) -> Result<Answer>;

    /// A connection to the kernel's FUSE that is not mounted yet.
    fn open_fuse(&self) -> io::Result<OwnedFd>;

    /// One more channel of a mounted connection: requests that are read from it are answered on it.
    fn another_channel(&self, of: BorrowedFd<'_>) -> io::Result<OwnedFd>;

    /// Has the kernel offer io_uring to mounts made from now on; whether that was off.
    ///
    /// Errors: why it does not, for a message.
    fn offer_uring(&self) -> std::result::Result<bool, String>;

    /// Changes a setting of a mount; where this may not be done, it stays as it is.
    fn set_backing(&self, mount: Device, what: Backing, value: u32);

    /// How many requests of a mount wait for the daemon or are being served, as far as that may be known.
    fn requests_waiting(&self, mount: Device) -> Option<u64>;

    /// Fails everything that waits for the daemon of a mount; whether that could be done.
    fn abort(&self, mount: Device) -> bool;

    /// The file through which a process says how long processors may take to wake up.
    fn open_wakeup_latency(&self) -> io::Result<File>;

    /// Opens a block device or an image file.
    fn open_device(&self, path: &Path, how: Opening) -> io::Result<File>;

    /// Listens at a path where nothing is, with these permission bits. Clients cannot send descriptors, where the kernel can refuse
    /// them.
    fn listen(&self, path: &Path, mode: u32) -> io::Result<UnixListener>;

    /// Listens at an address of the network.
    fn listen_at(&self, address: SocketAddr) -> io::Result<TcpListener>;

    /// Runs a program to its end.
    ///
    /// Errors: it cannot be started, or waited for.
    fn run(&self, program: &Program<'_>) -> io::Result<Ran>;

    /// Puts a file into the place of another one, whole or not at all. Its folder is made if it is missing.
    fn replace_file(&self, path: &Path, content: &[u8], how: Replacing<'_>) -> io::Result<()>;

    /// Removes a file.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Makes a folder with what is missing above it, and opens the file in it that is locked by whoever changes others there. Only the
    /// owner can open that.
    fn open_lock(&self, folder: &Path, name: &str) -> io::Result<OwnedFd>;
}
