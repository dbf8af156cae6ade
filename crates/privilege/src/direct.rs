//! [`Direct`]: the acts done by this process.

use std::fs::{self, File};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;

use base::{io_text, Error, Kind, Result};

use crate::acts::{Answer, Backing, Device, Opening, Privilege, Program, Question, Ran, Replacing};
use crate::file_table::open_with_own_files;
use crate::path_helper::{ask_helper, in_processes};
use crate::programs;
use crate::sys;

/// The kernel's switch for FUSE over io_uring.
const URING: &str = "/sys/module/fuse/parameters/enable_uring";
/// How long processors may take to wake up.
const WAKEUP_LATENCY: &str = "/dev/cpu_dma_latency";

/// With the rights of this process.
pub struct Direct;

/// A file of the connection of a mount in the FUSE control file system.
fn of_connection((major, minor): Device, file: &str) -> String {
    let number = (u64::from(major) << 20) | u64::from(minor);
    format!("/sys/fs/fuse/connections/{number}/{file}")
}

impl Privilege for Direct {
    fn ask(&self, q: &Question<'_>) -> Result<Answer> {
        let invalid = |text: String| Error::new(Kind::Invalid, text);
        if !in_processes() {
            let (run, body) = (q.run, &q.body);
            let run = |files| match run(body, files) {
                Some((bytes, files)) => (Some(bytes), files),
                None => (None, Vec::new()),
            };
            let (bytes, files) = open_with_own_files(q.files, run);
            let bytes = bytes.ok_or_else(|| invalid(format!("{}: not understood", q.name)))?;
            return Ok((bytes, files));
        }
        let message = serde_json::to_vec(&(q.name, &q.body)).map_err(|e| invalid(e.to_string()))?;
        let (bytes, files) = ask_helper(q.path, q.user, &q.limit, &message, q.files)?;
        Ok((bytes, Ok(files)))
    }

    fn open_fuse(&self) -> io::Result<OwnedFd> {
        sys::open_device()
    }

    fn another_channel(&self, of: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        sys::clone_channel(of)
    }

    fn offer_uring(&self) -> std::result::Result<bool, String> {
        let now = fs::read_to_string(URING)
            .map_err(|_| "this kernel has no FUSE over io_uring (Linux 6.14 has)".to_string())?;
        if now.trim() == "Y" {
            return Ok(false);
        }
        fs::write(URING, "Y").map(|()| true).map_err(|e| {
            format!(
                "it is off in {URING} and cannot be turned on: {}",
                io_text(&e)
            )
        })
    }

    fn set_backing(&self, (major, minor): Device, what: Backing, value: u32) {
        let what = match what {
            Backing::ReadAhead => "read_ahead_kb",
            Backing::MostDirty => "max_ratio",
        };
        let file = format!("/sys/class/bdi/{major}:{minor}/{what}");
        let _ = fs::write(file, value.to_string());
    }

    fn requests_waiting(&self, mount: Device) -> Option<u64> {
        let file = of_connection(mount, "waiting");
        fs::read_to_string(file).ok()?.trim().parse().ok()
    }

    fn abort(&self, mount: Device) -> bool {
        fs::write(of_connection(mount, "abort"), "1").is_ok()
    }

    fn open_wakeup_latency(&self) -> io::Result<File> {
        File::options().write(true).open(WAKEUP_LATENCY)
    }

    fn open_device(&self, path: &Path, how: Opening) -> io::Result<File> {
        let mut flags = 0;
        if how.direct {
            flags |= libc::O_DIRECT;
        }
        if how.exclusive {
            flags |= libc::O_EXCL;
        }
        File::options()
            .read(true)
            .write(how.write)
            .custom_flags(flags)
            .open(path)
    }

    fn listen(&self, path: &Path, mode: u32) -> io::Result<UnixListener> {
        let listener = UnixListener::bind(path)?;
        // Where the kernel cannot, descriptors are dropped when they are read past.
        let _ = sys::refuse_descriptors(listener.as_fd());
        match fs::set_permissions(path, fs::Permissions::from_mode(mode)) {
            Ok(()) => Ok(listener),
            Err(e) => {
                let _ = fs::remove_file(path);
                Err(e)
            }
        }
    }

    fn listen_at(&self, address: SocketAddr) -> io::Result<TcpListener> {
        TcpListener::bind(address)
    }

    fn run(&self, program: &Program<'_>) -> io::Result<Ran> {
        programs::run(program)
    }

    fn replace_file(&self, path: &Path, content: &[u8], how: Replacing<'_>) -> io::Result<()> {
        let folder = folder_of(path);
        fs::create_dir_all(folder)?;
        fs::write(how.meanwhile, content)?;
        if let Some(mode) = how.mode {
            fs::set_permissions(how.meanwhile, fs::Permissions::from_mode(mode))?;
        }
        if how.durable {
            File::open(how.meanwhile)?.sync_all()?;
        }
        fs::rename(how.meanwhile, path)?;
        match how.durable {
            true => File::open(folder)?.sync_all(),
            false => Ok(()),
        }
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn open_lock(&self, folder: &Path, name: &str) -> io::Result<OwnedFd> {
        use rustix::fs::{open, Mode, OFlags};
        fs::create_dir_all(folder)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(open(folder.join(name), flags, Mode::RUSR | Mode::WUSR)?)
    }
}

/// The folder a file is in.
fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}
