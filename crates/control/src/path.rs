//! Paths of the control socket, and checks of who owns the folders that lead to it.

use api::ApiError;
use base::{io_text, Kind};
use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Environment variable that names another socket.
pub const SOCKET_VARIABLE: &str = "ZFS_FUSE_SOCKET";

/// A path as it is meant now: the daemon leaves the directory it was started in.
pub fn from_here(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

/// Path of the control socket: `ZFS_FUSE_SOCKET` if set (one that is relative is meant from the
/// current directory, which the daemon leaves); root: `/run/zfs-fuse/control.sock`; other
/// users: `$XDG_RUNTIME_DIR/zfs-fuse/control.sock`, or `/tmp/zfs-fuse-UID/control.sock` without
/// such a directory.
pub fn socket_path() -> PathBuf {
    let env = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty());
    pick(
        env(SOCKET_VARIABLE).map(|p| from_here(p.into())),
        rustix::process::geteuid().as_raw(),
        env("XDG_RUNTIME_DIR").map(PathBuf::from),
    )
}

/// Environment variable that names another socket of root's daemon, for ordinary users. Set but empty: root's
/// daemon is not asked.
pub const SYSTEM_SOCKET_VARIABLE: &str = "ZFS_FUSE_SYSTEM_SOCKET";

/// Socket of root's daemon.
const SYSTEM_SOCKET: &str = "/run/zfs-fuse/control.sock";

/// Whether this process, a daemon, is the one of the system: root's, at its usual socket. It alone registers with what there is once
/// on a machine.
pub fn is_system_daemon() -> bool {
    let own = std::env::var_os(SOCKET_VARIABLE).is_some_and(|v| !v.is_empty());
    !own && rustix::process::geteuid().is_root()
}

/// Where an ordinary user asks root's daemon about pools that the user's own daemon does not have. None for
/// root, and with `ZFS_FUSE_SOCKET`, which names the one daemon to be asked.
pub fn system_socket() -> Option<PathBuf> {
    let env = |name: &str| std::env::var_os(name);
    pick_system(
        env(SOCKET_VARIABLE).is_some_and(|v| !v.is_empty()),
        rustix::process::geteuid().as_raw(),
        env(SYSTEM_SOCKET_VARIABLE).map(PathBuf::from),
    )
}

fn pick_system(one_named: bool, uid: u32, named: Option<PathBuf>) -> Option<PathBuf> {
    if one_named || uid == 0 {
        return None;
    }
    let path = named.unwrap_or_else(|| SYSTEM_SOCKET.into());
    (!path.as_os_str().is_empty()).then(|| from_here(path))
}

/// The lock of the daemon that serves, or is about to serve, a socket: a file beside the socket.
pub fn lock_path(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_os_string();
    name.push(".lock");
    PathBuf::from(name)
}

/// Whether a daemon holds the lock of the socket: it serves there, or is starting or ending.
pub fn is_locked(socket: &Path) -> bool {
    use rustix::fs::{flock, FlockOperation};
    // A file that cannot be opened belongs to another user, whose daemon is not asked for.
    let Ok(file) = fs::File::open(lock_path(socket)) else {
        return false;
    };
    // Had for a moment, the lock is in the way of a daemon that wants it; daemons try more than once.
    flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(rustix::io::Errno::WOULDBLOCK)
}

/// Cache file of root's daemon.
const SYSTEM_CACHE: &str = "/var/lib/zfs/zpool.cache";

/// Environment variable that names another cache file.
pub const CACHE_VARIABLE: &str = "ZFS_FUSE_CACHE";

/// The file in which the daemon remembers its pools: `ZFS_FUSE_CACHE` if set; root:
/// `/var/lib/zfs/zpool.cache`, as zfs-fuse 0.7 has it; other users:
/// `$XDG_STATE_HOME/zfs-fuse/zpool.cache`, or below `~/.local/state` without that variable.
pub fn cache_path() -> PathBuf {
    let env = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty());
    pick_cache(
        env(CACHE_VARIABLE).map(|p| from_here(p.into())),
        rustix::process::geteuid().as_raw(),
        env("XDG_STATE_HOME").map(PathBuf::from),
        env("HOME").map(PathBuf::from),
    )
}

/// The cache file for a program that only reads it: that of root's daemon for ordinary users without one of their own.
pub fn cache_to_read() -> PathBuf {
    let own = cache_path();
    match own.exists() || system_socket().is_none() {
        true => own,
        false => SYSTEM_CACHE.into(),
    }
}

fn pick_cache(
    named: Option<PathBuf>,
    uid: u32,
    state: Option<PathBuf>,
    home: Option<PathBuf>,
) -> PathBuf {
    if let Some(path) = named {
        return path;
    }
    if uid == 0 {
        return SYSTEM_CACHE.into();
    }
    let base = state
        .filter(|d| d.is_absolute())
        .or_else(|| home.map(|h| h.join(".local/state")));
    match base {
        Some(dir) => dir.join("zfs-fuse/zpool.cache"),
        None => format!("/tmp/zfs-fuse-{uid}/zpool.cache").into(),
    }
}

fn pick(named: Option<PathBuf>, uid: u32, runtime: Option<PathBuf>) -> PathBuf {
    if let Some(path) = named {
        return path;
    }
    if uid == 0 {
        return SYSTEM_SOCKET.into();
    }
    match runtime {
        Some(dir) if dir.is_absolute() && dir.is_dir() => dir.join("zfs-fuse/control.sock"),
        _ => format!("/tmp/zfs-fuse-{uid}/control.sock").into(),
    }
}

/// Makes the directory of the socket (mode 0700; 0755 for root, whose daemon answers everybody's
/// questions) and makes sure nobody else can put a socket of theirs there.
pub fn prepare_dir(socket: &Path) -> Result<(), ApiError> {
    let dir = match socket.parent() {
        Some(d) if !d.as_os_str().is_empty() => d,
        _ => return Ok(()),
    };
    let uid = rustix::process::geteuid().as_raw();
    let mode = if uid == 0 { 0o755 } else { 0o700 };
    let made = fs::DirBuilder::new().mode(mode).create(dir);
    // Whatever umask takes away of it: root's must let others in.
    let made = made.and_then(|()| fs::set_permissions(dir, PermissionsExt::from_mode(mode)));
    match made {
        Ok(()) => {}
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(e) => {
            return Err(ApiError::sentence(
                Kind::Access,
                format!(
                    "cannot make the directory '{}': {}",
                    dir.display(),
                    io_text(&e)
                ),
            )
            .hint(format!(
                "Set {SOCKET_VARIABLE} to a path in a directory you own."
            )))
        }
    }
    check_dir(socket)
}

/// Refuses a socket directory that belongs to somebody else or that others may write to.
pub fn check_dir(socket: &Path) -> Result<(), ApiError> {
    let dir = match socket.parent() {
        Some(d) if !d.as_os_str().is_empty() => d,
        _ => return Ok(()),
    };
    let meta = match fs::symlink_metadata(dir) {
        Ok(m) => m,
        Err(_) => return Ok(()), // nothing there: nothing to be fooled by
    };
    let uid = rustix::process::geteuid().as_raw();
    let owner_ok = meta.uid() == uid || meta.uid() == 0;
    // A sticky directory (/tmp) keeps others from replacing what is ours.
    let mode_ok = meta.mode() & 0o022 == 0 || meta.mode() & 0o1000 != 0;
    if meta.is_dir() && owner_ok && mode_ok {
        return Ok(());
    }
    if meta.file_type().is_symlink() && owner_ok {
        return Ok(());
    }
    Err(ApiError::sentence(
        Kind::Access,
        format!(
            "the directory '{}' of the control socket belongs to another user or is writable by others",
            dir.display()
        ),
    )
    .hint(format!("{}{SOCKET_VARIABLE} to a path in a directory you own.", {
        // Others' files may be in a directory that is not the daemon's alone.
        let name = dir.file_name().and_then(|n| n.to_str());
        match name.is_some_and(|n| n.starts_with("zfs-fuse")) {
            true => "Remove it, or set ",
            false => "Set ",
        }
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_directory_of_the_daemon_is_to_be_removed() {
        let top = std::env::temp_dir().join(format!("zt-open-{}", std::process::id()));
        for (name, advice) in [("zfs-fuse-7", "Remove it, or set "), ("shared", "Set ")] {
            let dir = top.join(name);
            fs::create_dir_all(&dir).unwrap();
            fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
            let refused = check_dir(&dir.join("control.sock")).unwrap_err();
            let hint = refused.hint.unwrap();
            assert!(hint.starts_with(advice), "{name}: {hint}");
        }
        fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn places() {
        let p = |n: Option<&str>, u, r: Option<&str>| {
            pick(n.map(PathBuf::from), u, r.map(PathBuf::from))
                .to_string_lossy()
                .into_owned()
        };
        assert_eq!(p(Some("/x/s"), 0, None), "/x/s");
        let here = std::env::current_dir().unwrap();
        assert_eq!(from_here("x/../s".into()), here.join("x/../s"));
        assert_eq!(from_here("/s".into()), Path::new("/s"));
        assert_eq!(p(None, 0, Some("/tmp")), "/run/zfs-fuse/control.sock");
        assert_eq!(p(None, 7, Some("/tmp")), "/tmp/zfs-fuse/control.sock");
        assert_eq!(p(None, 7, Some("/no/such")), "/tmp/zfs-fuse-7/control.sock");
        assert_eq!(p(None, 7, Some("tmp")), "/tmp/zfs-fuse-7/control.sock");
        assert_eq!(p(None, 7, None), "/tmp/zfs-fuse-7/control.sock");
    }

    #[test]
    fn roots_daemon_as_others_see_it() {
        let p = |one, uid, named: Option<&str>| pick_system(one, uid, named.map(PathBuf::from));
        assert_eq!(p(false, 7, None), Some(SYSTEM_SOCKET.into()));
        assert_eq!(p(false, 7, Some("/x")), Some("/x".into()));
        for (one, uid, named) in [(true, 7, None), (false, 0, None), (false, 7, Some(""))] {
            assert_eq!(p(one, uid, named), None);
        }
    }

    #[test]
    fn cache_places() {
        let p = |n: Option<&str>, u, s: Option<&str>, h: Option<&str>| {
            let path = |x: Option<&str>| x.map(PathBuf::from);
            pick_cache(path(n), u, path(s), path(h))
                .to_string_lossy()
                .into_owned()
        };
        assert_eq!(p(Some("/x/c"), 7, None, None), "/x/c");
        assert_eq!(
            p(None, 0, Some("/s"), Some("/h")),
            "/var/lib/zfs/zpool.cache"
        );
        assert_eq!(
            p(None, 7, Some("/s"), Some("/h")),
            "/s/zfs-fuse/zpool.cache"
        );
        let home = "/h/.local/state/zfs-fuse/zpool.cache";
        assert_eq!(p(None, 7, None, Some("/h")), home);
        assert_eq!(p(None, 7, Some("s"), Some("/h")), home);
        assert_eq!(p(None, 7, None, None), "/tmp/zfs-fuse-7/zpool.cache");
    }

    #[test]
    fn directory_of_others_is_refused() {
        let base = std::env::temp_dir().join(format!("zfs-api-dir-{}", std::process::id()));
        let _ = fs::remove_dir_all(&base);
        fs::create_dir(&base).unwrap();
        let socket = base.join("d/control.sock");
        prepare_dir(&socket).unwrap();
        prepare_dir(&socket).unwrap();
        fs::set_permissions(base.join("d"), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(prepare_dir(&socket).is_err());
        fs::write(base.join("f"), b"").unwrap();
        assert!(check_dir(&base.join("f/control.sock")).is_err());
        fs::remove_dir_all(&base).unwrap();
    }
}
