//! Mounting and unmounting: as root by system calls, otherwise through `fusermount3`.

use std::ffi::{CString, OsString};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use base::{bail, io_text, Cause, Error, Kind, Result};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{self, AddressFamily, SocketType};
use serde::{Deserialize, Serialize};

use crate::acts::Backing;
use crate::chosen::acts;
use crate::file_table::receive;
use crate::holders;
use crate::mount_point::{check_way_here, Bare, Kept, MountPoint, NoMountPoint};
use crate::mount_table::{mounted, parse_mountinfo, MountInfo};
use crate::path_helper::{Limit, LIMIT, SHORT};
use crate::question::{ask, plain, raw, Done, Job, Raw};

const HELPER: &str = "fusermount3";

/// How access times are meant to be kept. The kernel leaves them to the file system for FUSE; the
/// choice is shown in /proc/mounts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Atime {
    /// After a change, or once a day.
    #[default]
    Relatime,
    /// Never.
    Noatime,
    /// At every access.
    Strictatime,
}

/// How to mount.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MountOptions {
    /// What /proc/mounts shows as the source: `pool/dataset`.
    pub fsname: String,
    /// Shown behind "fuse.": `zfs`.
    pub subtype: String,
    /// Nothing can be changed.
    pub read_only: bool,
    /// Set-id bits have no effect.
    pub nosuid: bool,
    /// Device files cannot be opened.
    pub nodev: bool,
    /// Files cannot be executed.
    pub noexec: bool,
    /// When access times change.
    pub atime: Atime,
    /// Directories have no access times.
    pub nodiratime: bool,
    /// Every write is followed by an fsync of the kernel's.
    pub sync: bool,
    /// Shown in /proc/mounts; changes of directories never wait in the kernel.
    pub dirsync: bool,
    /// The kernel keeps times that alone have changed in memory for longer.
    pub lazytime: bool,
    /// SELinux options as they are given to mount(2): `context=…` and the like.
    pub contexts: Vec<String>,
    /// Others than the user who mounts may use it. For ordinary users /etc/fuse.conf must allow it.
    pub allow_other: bool,
    /// The kernel checks permissions by owner, group and mode.
    pub default_permissions: bool,
    /// Largest read in bytes, if not the kernel's choice.
    pub max_read: Option<u32>,
}

impl MountOptions {
    /// What a dataset gets: permissions checked by the kernel, open to all users if we are root.
    pub fn new(fsname: impl Into<String>) -> MountOptions {
        MountOptions {
            fsname: fsname.into(),
            subtype: "zfs".into(),
            read_only: false,
            nosuid: false,
            nodev: false,
            noexec: false,
            atime: Atime::Relatime,
            nodiratime: false,
            sync: false,
            dirsync: false,
            lazytime: false,
            contexts: Vec::new(),
            allow_other: is_root(),
            default_permissions: true,
            max_read: None,
        }
    }

    fn flags(&self) -> MountFlags {
        let mut f = match self.atime {
            Atime::Relatime => MountFlags::RELATIME,
            Atime::Noatime => MountFlags::NOATIME,
            Atime::Strictatime => MountFlags::STRICTATIME,
        };
        f.set(MountFlags::RDONLY, self.read_only);
        f.set(MountFlags::NOSUID, self.nosuid);
        f.set(MountFlags::NODEV, self.nodev);
        f.set(MountFlags::NOEXEC, self.noexec);
        f.set(MountFlags::NODIRATIME, self.nodiratime);
        f.set(MountFlags::SYNCHRONOUS, self.sync);
        f.set(MountFlags::DIRSYNC, self.dirsync);
        f.set(MountFlags::LAZYTIME, self.lazytime);
        f
    }
}

/// How to unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unmount {
    /// Fails with [`Kind::Busy`] while something is in use.
    Normal,
    /// Takes it out of the tree now; the session ends when the last user is gone.
    Lazy,
    /// Fails all requests under way, takes it out of the tree and ends the session.
    Force,
}

/// A mount made by [`mount`]. Dropping it does not unmount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    #[serde(with = "raw")]
    path: PathBuf,
    dev: (u32, u32),
    /// Id of the mount, 0 where the kernel does not tell it.
    id: u64,
    /// As in the table. Device number and id are given to another mount as soon as this one is gone.
    #[serde(with = "raw")]
    source: OsString,
    by_helper: bool,
}

/// How long something may count as in use that is not.
const IN_USE: Duration = Duration::from_millis(500);
/// How long changed options may take once the mount was reached: the kernel writes out first.
const WRITING: Duration = Duration::from_secs(300);

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Mounts on a directory and returns the connection, which a session serves. The mount answers
/// to nobody until the session runs.
pub fn mount(target: &Path, options: &MountOptions) -> Result<(OwnedFd, Mount)> {
    let target = std::path::absolute(target).map_err(|e| fail(&e, target, "mount point"))?;
    let place = MountPoint::find(&target, None, false).map_err(|e| e.error)?;
    mount_at(&place, options)
}

/// The same on a directory that was found before.
pub fn mount_at(place: &MountPoint, options: &MountOptions) -> Result<(OwnedFd, Mount)> {
    if options.fsname.is_empty() || options.fsname.contains('\0') {
        bail!(Invalid, "mount: bad source name {:?}", options.fsname);
    }
    let subtype_ok = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if options.subtype.is_empty() || !options.subtype.chars().all(subtype_ok) {
        bail!(Invalid, "mount: bad subtype {:?}", options.subtype);
    }
    let job = MountOn(place.bare(), options.clone());
    let (mount, mut files) = ask(place.path(), Limit::of(LIMIT), job, &place.descriptors())?;
    match files.pop() {
        Some(fd) => Ok((fd, mount)),
        None => bail!(Io, "mounting: the connection got lost"),
    }
}

/// [`mount_at`]. Comes with the place, and goes with the connection.
#[derive(Serialize, Deserialize)]
pub(crate) struct MountOn(Bare, MountOptions);

impl Job for MountOn {
    const NAME: &'static str = "mount";
    type Answer = Mount;

    fn run(self, files: Vec<OwnedFd>) -> Done<Mount> {
        let place = self.0.with(files).ok_or(Error::from(Kind::BadHandle));
        match place.and_then(|place| mount_here(&place, &self.1)) {
            Ok((fd, mount)) => (Ok(mount), vec![fd]),
            Err(e) => plain(Err(e)),
        }
    }
}

/// [`mount_again`]. Comes with the place and then the connection.
#[derive(Serialize, Deserialize)]
pub(crate) struct MountAgain(Bare, MountOptions);

impl Job for MountAgain {
    const NAME: &'static str = "mount again";
    type Answer = Mount;

    fn run(self, mut files: Vec<OwnedFd>) -> Done<Mount> {
        let device = files.pop();
        let both = self.0.with(files).zip(device);
        let both = both.ok_or(Error::from(Kind::BadHandle));
        plain(both.and_then(|(place, device)| mount_again_here(&place, &self.1, &device)))
    }
}

/// Only walks to a mount.
#[derive(Serialize, Deserialize)]
pub(crate) struct Reach(Mount);

impl Job for Reach {
    const NAME: &'static str = "reach";
    type Answer = ();

    fn run(self, _: Vec<OwnedFd>) -> Done<()> {
        plain(self.0.place().map(drop))
    }
}

/// Whether a way to a mount is one that only root can change.
#[derive(Serialize, Deserialize)]
pub(crate) struct Way {
    mount: Mount,
    path: Raw,
    own: Vec<(u32, u32)>,
    hung: Vec<Raw>,
}

impl Job for Way {
    const NAME: &'static str = "way";
    type Answer = ();

    fn run(self, _: Vec<OwnedFd>) -> Done<()> {
        let hung: Vec<PathBuf> = self.hung.iter().map(Raw::path).collect();
        let kept = Kept {
            own: &self.own,
            hung: &hung,
        };
        let Mount { dev, id, .. } = self.mount;
        plain(check_way_here(&self.path.path(), (dev, id), &kept))
    }
}

/// The root directory of a mount.
#[derive(Serialize, Deserialize)]
pub(crate) struct Root(Mount);

impl Job for Root {
    const NAME: &'static str = "root";
    type Answer = ();

    fn run(self, _: Vec<OwnedFd>) -> Done<()> {
        match self.0.open_root() {
            Ok(root) => (Ok(()), vec![root.into()]),
            Err(e) => plain(Err(e.into())),
        }
    }
}

/// [`Mount::unmount`]
#[derive(Serialize, Deserialize)]
pub(crate) struct TakeAway(Mount, Unmount);

impl Job for TakeAway {
    const NAME: &'static str = "unmount";
    type Answer = ();

    fn run(self, _: Vec<OwnedFd>) -> Done<()> {
        plain(self.0.unmount_once(self.1))
    }
}

/// [`Mount::remount`]
#[derive(Serialize, Deserialize)]
pub(crate) struct Remount(Mount, MountOptions);

impl Job for Remount {
    const NAME: &'static str = "remount";
    type Answer = ();

    fn run(self, _: Vec<OwnedFd>) -> Done<()> {
        plain(self.0.remount_here(&self.1))
    }
}

fn mount_here(place: &MountPoint, options: &MountOptions) -> Result<(OwnedFd, Mount)> {
    let path = place.path();
    let looking = |e: io::Error| fail(&e, path, "looking at the new mount");
    let below = place.identity().map_err(looking)?;
    let (fd, by_helper) = if is_root() {
        match mount_direct(place, options) {
            // Root without the capability (a container): the helper may still be allowed to.
            Err(e) if e.kind == Kind::NotPermitted && find_helper().is_some() => {
                (mount_by_helper(path, options)?, true)
            }
            r => (r?, false),
        }
    } else {
        (mount_by_helper(path, options)?, true)
    };
    // The directory may have been moved since it was found, and the mount with it.
    let top = place.identity_on_top();
    let (dev, id) = match top {
        Ok((dev, id)) if dev != below.0 => (dev, id),
        moved => {
            // Without its connection it is a dead mount, which is taken away where it is found.
            drop(fd);
            drop_stray(options);
            moved.map_err(looking)?;
            bail!(Busy, "{} was moved while it was mounted on", path.display());
        }
    };
    let mount = Mount {
        path: path.to_path_buf(),
        dev,
        id,
        source: options.fsname.clone().into(),
        by_helper,
    };
    Ok((fd, mount))
}

/// Takes away the newest mount of a source.
fn drop_stray(options: &MountOptions) {
    let all = mounted(&options.subtype).unwrap_or_default();
    let newest = all.iter().rev().find(|m| m.source == *options.fsname);
    if let Some(info) = newest {
        let _ = Mount::found(info).unmount(Unmount::Lazy);
    }
}

fn fail(e: &io::Error, path: &Path, what: &str) -> Error {
    let kind = Kind::from_errno(e.raw_os_error().unwrap_or(libc::EIO));
    Error::new(kind, format!("{what} {}: {}", path.display(), io_text(e)))
}

fn open_device() -> Result<OwnedFd> {
    acts().open_fuse().map_err(|e| {
        let hint = match e.raw_os_error() {
            Some(libc::ENOENT) | Some(libc::ENODEV) | Some(libc::ENXIO) => {
                " (is the fuse module loaded, and the device passed into this container?)"
            }
            Some(libc::EACCES) | Some(libc::EPERM) => " (ordinary users need mode 0666 on it)",
            _ => "",
        };
        let kind = Kind::from_errno(e.raw_os_error().unwrap_or(libc::EIO));
        Error::new(
            kind,
            format!("cannot open /dev/fuse: {}{hint}", io_text(&e)),
        )
    })
}

/// Mounts a file system that is being served once more: it was unmounted lazily, and files of it are
/// still open. The kernel takes the connection for the same file system, with all it caches. Root
/// only, from Linux 5.15 on.
pub fn mount_again(
    place: &MountPoint,
    options: &MountOptions,
    connection: BorrowedFd<'_>,
) -> Result<Mount> {
    if !is_root() {
        bail!(Unsupported, "only root can mount a connection again");
    }
    let job = MountAgain(place.bare(), options.clone());
    let mut files = place.descriptors();
    files.push(connection);
    Ok(ask(place.path(), Limit::of(LIMIT), job, &files)?.0)
}

fn mount_again_here(place: &MountPoint, options: &MountOptions, device: &OwnedFd) -> Result<Mount> {
    mount_connection(device, place, options)?;
    let (dev, id) = place
        .identity_on_top()
        .map_err(|e| fail(&e, place.path(), "looking at the new mount"))?;
    Ok(Mount {
        path: place.path().to_path_buf(),
        dev,
        id,
        source: options.fsname.clone().into(),
        by_helper: false,
    })
}

fn mount_direct(place: &MountPoint, o: &MountOptions) -> Result<OwnedFd> {
    let fd = open_device()?;
    mount_connection(&fd, place, o)?;
    Ok(fd)
}

fn mount_connection(
    fd: &impl std::os::fd::AsRawFd,
    place: &MountPoint,
    o: &MountOptions,
) -> Result<()> {
    // The source travels beside the options, so commas and blanks in it need no escaping; the
    // kernel escapes blanks in /proc/mounts.
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={}",
        fd.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw()
    );
    if o.default_permissions {
        data.push_str(",default_permissions");
    }
    if o.allow_other {
        data.push_str(",allow_other");
    }
    if let Some(n) = o.max_read {
        data.push_str(&format!(",max_read={n}"));
    }
    for c in &o.contexts {
        data.push(',');
        data.push_str(c);
    }
    let data = CString::new(data).map_err(|_| Error::from(Kind::Invalid))?;
    let fstype = format!("fuse.{}", o.subtype);
    rustix::mount::mount(
        o.fsname.as_str(),
        place.by_descriptor(),
        fstype.as_str(),
        o.flags(),
        data.as_c_str(),
    )
    .map_err(|e| {
        fail(
            &e.into(),
            place.path(),
            &format!("mounting {} on", o.fsname),
        )
    })
}

/// Where the helper is, looking also where a daemon with a bare PATH would miss it.
fn find_helper() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let extra = ["/usr/bin", "/bin", "/usr/local/bin", "/run/wrappers/bin"];
    std::env::split_paths(&path)
        .chain(extra.iter().map(PathBuf::from))
        .map(|d| d.join(HELPER))
        .find(|p| p.is_file())
}

fn helper() -> Result<Command> {
    match find_helper() {
        Some(p) => Ok(Command::new(p)),
        None => bail!(
            Unsupported,
            "mounting as an ordinary user needs {HELPER}, which is not installed (package fuse3)"
        ),
    }
}

/// `fsname` for the helper's option list: comma and backslash are escaped by a backslash.
fn escape(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    for c in s.chars() {
        if c == ',' || c == '\\' {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

fn helper_options(o: &MountOptions) -> String {
    let mut s = format!("fsname={},subtype={}", escape(&o.fsname), o.subtype);
    let mut add = |on: bool, w: &str| {
        if on {
            s.push(',');
            s.push_str(w);
        }
    };
    add(o.read_only, "ro");
    add(o.nosuid, "nosuid");
    add(o.nodev, "nodev");
    add(o.noexec, "noexec");
    // The helper knows noatime only; strictatime would differ in /proc/mounts and nowhere else.
    add(o.atime == Atime::Noatime, "noatime");
    add(o.nodiratime, "nodiratime");
    add(o.sync, "sync");
    add(o.dirsync, "dirsync");
    add(o.lazytime, "lazytime");
    add(o.default_permissions, "default_permissions");
    add(o.allow_other, "allow_other");
    if let Some(n) = o.max_read {
        add(true, &format!("max_read={n}"));
    }
    s
}

fn mount_by_helper(path: &Path, o: &MountOptions) -> Result<OwnedFd> {
    if let Some(c) = o.contexts.first() {
        bail!(NotPermitted, "only root can mount with '{c}'");
    }
    let mut cmd = helper()?;
    if !Path::new("/dev/fuse").exists() {
        // The helper would say so too, but less clearly.
        open_device()?;
    }
    let (ours, theirs) = net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        net::SocketFlags::CLOEXEC,
        None,
    )
    .map_err(io::Error::from)?;
    // The helper sends the device over the descriptor named in its environment. As its standard
    // input it gets there without a moment in which other children could inherit it.
    let mut child = cmd
        .arg("-o")
        .arg(helper_options(o))
        .arg("--")
        .arg(path)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| Error::new(Kind::Io, format!("starting {HELPER}: {}", io_text(&e))))?;
    drop(cmd); // holds the other end of the socket
    let fd = receive(ours.as_fd()).map(|files| files.into_iter().next());
    let mut said = String::new();
    if let Some(mut e) = child.stderr.take() {
        let _ = e.read_to_string(&mut said);
    }
    let status = child.wait()?;
    match fd {
        Ok(Some(fd)) if status.success() => Ok(fd),
        Ok(_) => {
            let why = said.trim();
            let kind = if why.contains("ermission") || why.contains("allow") {
                Kind::NotPermitted
            } else {
                Kind::Io
            };
            let e = Error::new(
                kind,
                format!(
                    "{HELPER} could not mount {} on {}: {}",
                    o.fsname,
                    path.display(),
                    if why.is_empty() {
                        "it gave no reason"
                    } else {
                        why
                    }
                ),
            );
            // What the helper prints is all there is to go by.
            Err(match why.contains("failed to access mountpoint") {
                true => e.because(Cause::HiddenMountPoint),
                false => e,
            })
        }
        Err(e) => bail!(Io, "talking to {HELPER}: {}", io_text(&e)),
    }
}

impl Mount {
    /// A mount found in the table, such as one left behind by a daemon that died.
    pub fn found(info: &MountInfo) -> Mount {
        Mount {
            path: info.path.clone(),
            dev: info.dev,
            id: info.id,
            source: info.source.clone(),
            by_helper: !is_root(),
        }
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether an unprivileged helper made it.
    pub fn by_helper(&self) -> bool {
        self.by_helper
    }

    /// Whether it is still to be seen in the tree.
    pub fn is_mounted(&self) -> Result<bool> {
        Ok(crate::mount_table::contains(
            self.dev,
            self.id,
            &self.path,
            &self.source,
        )?)
    }

    /// Major and minor number of what its files are on.
    pub fn device(&self) -> (u32, u32) {
        self.dev
    }

    /// Its line in the table of mounts.
    fn in_table(&self) -> Result<Option<MountInfo>> {
        let table = std::fs::read("/proc/self/mountinfo")?;
        let same = |m: &MountInfo| match self.id {
            0 => m.dev == self.dev && m.path == self.path,
            // A mount that was made when this one had gone may have its numbers.
            id => {
                let ours = m.path == self.path || m.source == self.source;
                m.dev == self.dev && m.id == id && ours
            }
        };
        let mut all = table.split(|&b| b == b'\n').filter_map(parse_mountinfo);
        Ok(all.find(same))
    }

    fn place_at(&self, path: &Path) -> std::result::Result<Option<MountPoint>, NoMountPoint> {
        let place = MountPoint::without_links(path)?;
        let same = |(dev, id): ((u32, u32), u64)| {
            dev == self.dev && (id == self.id || id == 0 || self.id == 0)
        };
        Ok(place.identity().is_ok_and(same).then_some(place))
    }

    /// The mount as it is reached now; `None` if it is gone. The way to it may have been renamed, but
    /// no link is followed to it.
    ///
    /// Errors: busy, if something is mounted over it; why it cannot be reached.
    fn place(&self) -> Result<Option<MountPoint>> {
        // The table of all mounts is long where there are many, and there each of them is unmounted.
        if let Ok(Some(place)) = self.place_at(&self.path) {
            return Ok(Some(place));
        }
        let Some(info) = self.in_table()? else {
            return Ok(None);
        };
        match self.place_at(&info.path) {
            Ok(Some(place)) => Ok(Some(place)),
            Ok(None) => bail!(
                Busy,
                "{}: something else is mounted over it",
                info.path.display()
            ),
            Err(e) => Err(e.error),
        }
    }

    /// Has the kernel read ahead by so many bytes, however little it does for others; to be called
    /// before the session runs. Where this may not be set (not root), it stays as it is.
    pub fn set_read_ahead(&self, bytes: u32) {
        acts().set_backing(self.dev, Backing::ReadAhead, bytes >> 10);
    }

    /// Percent of the machine's limit of data that are not written yet which the kernel may hold of
    /// this mount; 1 to begin with. Where this may not be set (not root), it stays as it is.
    pub fn set_most_dirty(&self, percent: u32) {
        acts().set_backing(self.dev, Backing::MostDirty, percent);
    }

    /// Takes the mount away. The session must be running (or its descriptor closed) for
    /// [`Unmount::Normal`]: the kernel first writes out what it has cached. Not being mounted any
    /// more is no error. What is in use is asked for again for half a second: a file of a process that
    /// has just ended, or a path that another program just walks, counts for a moment.
    ///
    /// Errors: busy; again, if the way there does not answer. [`Unmount::Force`] has failed all requests even then.
    pub fn unmount(&self, how: Unmount) -> Result<()> {
        let start = Instant::now();
        if how == Unmount::Force {
            self.abort();
        }
        let time = match how {
            Unmount::Force => SHORT,
            _ => LIMIT,
        };
        // What is left then is writing out.
        let gone = || matches!(self.is_mounted(), Ok(false));
        let mut looked = false;
        loop {
            let limit = Limit {
                time,
                beyond: &gone,
            };
            let job = TakeAway(self.clone(), how);
            match ask(&self.path, limit, job, &[]).map(drop) {
                Err(e) if e.kind == Kind::Busy && start.elapsed() < IN_USE => {
                    // Copies in other mount namespaces do not go by waiting.
                    if !std::mem::replace(&mut looked, true)
                        && holders::of(&[self.dev]).are_elsewhere()
                    {
                        return Err(e);
                    }
                    std::thread::sleep(IN_USE / 20);
                }
                r => return r,
            }
        }
    }

    /// Walks to the mount and does nothing there.
    ///
    /// Errors: again, if the way there does not answer.
    pub fn reach(&self) -> Result<()> {
        match ask(&self.path, Limit::of(LIMIT), Reach(self.clone()), &[]) {
            Err(e) if e.kind == Kind::Again => Err(e),
            _ => Ok(()),
        }
    }

    /// Refuses if others than root could have `path` lead elsewhere than into this mount: now, or as soon as they like. A
    /// directory on the way belongs to root, and only root writes it; or it is on a mount with one of the device numbers `own`,
    /// and what comes next is mounted there, or is one of the places `hung`, which cannot be renamed.
    ///
    /// Errors: which directory; again, if the way there does not answer.
    pub fn check_way(&self, path: &Path, own: Vec<(u32, u32)>, hung: &[&Path]) -> Result<()> {
        let job = Way {
            mount: self.clone(),
            path: path.into(),
            own,
            hung: hung.iter().map(|p| Raw::from(*p)).collect(),
        };
        ask(path, Limit::of(LIMIT), job, &[]).map(drop)
    }

    fn unmount_once(&self, how: Unmount) -> Result<()> {
        let Some(place) = self.place()? else {
            return Ok(());
        };
        if self.by_helper {
            drop(place);
            return self.unmount_by_helper(how);
        }
        let flags = match how {
            Unmount::Normal => UnmountFlags::NOFOLLOW,
            Unmount::Lazy => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
            Unmount::Force => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH | UnmountFlags::FORCE,
        };
        // By its name in the parent directory, which nobody can rename while it is mounted on; a
        // descriptor of the mount itself would make it busy.
        let target = place.leave();
        match rustix::mount::unmount(target.by_parent(), flags) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::INVAL) if !self.is_mounted()? => Ok(()),
            Err(e) => Err(fail(&e.into(), &self.path, "unmounting")),
        }
    }

    fn unmount_by_helper(&self, how: Unmount) -> Result<()> {
        let mut cmd = helper()?;
        cmd.arg("-u");
        if how != Unmount::Normal {
            cmd.arg("-z");
        }
        let out = cmd
            .arg("--")
            .arg(&self.path)
            .stdin(Stdio::null())
            .output()
            .map_err(|e| Error::new(Kind::Io, format!("starting {HELPER}: {}", io_text(&e))))?;
        if out.status.success() || !self.is_mounted()? {
            return Ok(());
        }
        let why = String::from_utf8_lossy(&out.stderr);
        let kind = if why.contains("busy") {
            Kind::Busy
        } else {
            Kind::Io
        };
        Err(Error::new(
            kind,
            format!("unmounting {}: {}", self.path.display(), why.trim()),
        ))
    }

    /// Its root directory. Fails if something else is mounted over it, it is gone from its place, or the way there does not
    /// answer.
    pub fn root(&self) -> Result<std::fs::File> {
        let job = Root(self.clone());
        let (_, mut files) = ask(&self.path, Limit::of(LIMIT), job, &[])?;
        match files.pop() {
            Some(root) => Ok(root.into()),
            None => bail!(NotFound, "{}: no root", self.path.display()),
        }
    }

    /// The same here. Fails if something else is mounted over it or it is gone from its place.
    pub fn open_root(&self) -> io::Result<std::fs::File> {
        use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if !matches!(self.place_at(&self.path), Ok(Some(_))) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let root = rustix::fs::open(&self.path, flags, Mode::empty())?;
        let at = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let s = rustix::fs::statx(&root, c"", at, StatxFlags::empty())?;
        match (s.stx_dev_major, s.stx_dev_minor) == self.dev {
            true => Ok(root.into()),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// How many requests wait for the daemon or are being served, as far as that may be known.
    pub fn requests_waiting(&self) -> Option<u64> {
        acts().requests_waiting(self.dev)
    }

    /// Fails everything that waits for the daemon; whether that could be done: by root, and by the
    /// owner of the mount where the FUSE control file system is mounted.
    pub fn abort(&self) -> bool {
        acts().abort(self.dev)
    }

    /// Changes `ro`, `nosuid`, `nodev`, `noexec` and the atime option of the mount to what
    /// `options` says; everything else stays. Root only: the helper cannot do it.
    pub fn remount(&self, options: &MountOptions) -> Result<()> {
        if self.by_helper {
            bail!(
                Unsupported,
                "{}: mount options of an ordinary user's mount change with the next mount only",
                self.path.display()
            );
        }
        self.reach()?;
        let job = Remount(self.clone(), options.clone());
        ask(&self.path, Limit::of(WRITING), job, &[]).map(drop)
    }

    fn remount_here(&self, options: &MountOptions) -> Result<()> {
        let Some(place) = self.place()? else {
            bail!(Busy, "{} is not mounted", self.path.display());
        };
        rustix::mount::mount_remount(place.by_descriptor(), options.flags(), c"")
            .map_err(|e| fail(&e.into(), &self.path, "changing mount options of"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_for_the_helper() {
        let mut o = MountOptions::new("tank/a,b\\c d");
        o.allow_other = false;
        o.read_only = true;
        o.atime = Atime::Noatime;
        o.max_read = Some(4096);
        assert_eq!(
            helper_options(&o),
            "fsname=tank/a\\,b\\\\c d,subtype=zfs,ro,noatime,default_permissions,max_read=4096"
        );
    }

    #[test]
    fn bad_names_are_refused() {
        let here = std::env::temp_dir();
        for name in ["", "a\0b"] {
            let e = mount(&here, &MountOptions::new(name)).unwrap_err();
            assert_eq!(e.kind, Kind::Invalid);
        }
        let e = mount(Path::new("/nonexistent/x"), &MountOptions::new("t")).unwrap_err();
        assert_eq!(e.kind, Kind::NotFound);
    }
}
