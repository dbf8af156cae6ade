//! Mount points: directories reached without following a link that somebody else planted.
//!
//! Root mounts on paths whose components may belong to ordinary users, or to the files of a pool
//! that came from elsewhere. Whoever owns a directory can replace what is in it at any moment.
//!
//! # Invariants
//! 1. The kernel follows no link: each component is opened with `O_NOFOLLOW` relative to the
//!    descriptor of the one before.
//! 2. A symbolic link is followed only if root or the user of this process owns it and nobody else
//!    can have moved it to where it is.
//! 3. Below an alternate root, absolute links begin at that root and `..` ends there.
//! 4. What is done with a mount point is done with its descriptor, or with its name in the
//!    descriptor of its parent. The path is for messages.
//! 5. A mount point may lie in another mount of this process, or in a file system that does not answer. So
//!    everything is done by a process or thread of its own ([`crate::path_helper`]). Functions whose names end in
//!    `_here` are what it does.
//!
//! Start at [`MountPoint::find`], which is in [`crate::place`] with all that is asked of a process of its own.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use crate::file_table::with_own_files;
use crate::question::Raw;
use base::{io_text, Error, Kind};
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, RawMode, Stat, StatxFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// File systems whose directories belong to users though no user made them: proc, sysfs, cgroup, cgroup2,
/// securityfs, debugfs, tracefs, bpf, devpts, mqueue, configfs, binfmt_misc, fusectl.
const KERNEL_FILES: [u64; 13] = [
    0x9fa0,
    0x6265_6572,
    0x0027_e0eb,
    0x6367_7270,
    0x7363_6673,
    0x6462_6720,
    0x7472_6163,
    0xcafe_4a11,
    0x1cd1,
    0x1980_0202,
    0x6265_6570,
    0x4249_4e4d,
    0x6573_5543,
];

/// Mode of directories made to be mounted on.
const MADE: RawMode = 0o755;
/// Mode of one that is closed: no rights. The sticky bit, which means nothing without rights, tells it from a directory that
/// somebody else closed.
const CLOSED: RawMode = 0o1000;
/// Mode of a closed one while it is mounted on.
const OWN: RawMode = 0o700;

/// Changes of the rights of a directory.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Rights {
    /// [`MountPoint::open_up`]
    OpenUp,
    /// [`MountPoint::close_up`]
    CloseUp,
    /// [`MountPoint::leave_open`]
    LeaveOpen,
}

/// Links followed on one path; the kernel's own limit.
const MAX_LINKS: usize = 40;

/// What kept a mount point from being found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Trouble {
    /// A component could not be looked at.
    Look,
    /// A missing directory could not be made.
    Create,
    /// A link was refused.
    Link,
    /// The mount point, or a component before it, is no directory.
    NotDirectory,
    /// It is not the directory of the user it is wanted for.
    Owner,
}

/// Why a mount point could not be had.
#[derive(Clone, Debug)]
pub struct NoMountPoint {
    /// What kind of failure it is.
    pub trouble: Trouble,
    /// With the path concerned.
    pub error: Error,
}

/// A directory to mount on.
#[derive(Debug)]
pub struct MountPoint {
    pub(crate) dir: OwnedFd,
    /// The directory it is in, and its name there; none for the root directory.
    parent: Option<(OwnedFd, OsString)>,
    path: PathBuf,
    /// The alternate root without links, if there is one.
    root: Option<PathBuf>,
    /// Directories made on the way, outermost first: where, and their names.
    pub(crate) made: Vec<(OwnedFd, OsString)>,
    /// The user it was looked for.
    user: Option<u32>,
    /// Whose directory it was when it was found.
    pub(crate) owner: Option<u32>,
    /// Its device number and the id of its mount.
    pub(crate) identity: Option<((u32, u32), u64)>,
}

/// A [`MountPoint`] without its descriptors: of the directory, of its parent if there is a name, and of
/// the places of those made.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Bare {
    name: Option<Raw>,
    path: Raw,
    root: Option<Raw>,
    made: Vec<Raw>,
    user: Option<u32>,
}

impl Bare {
    /// Removes what was made, without the descriptors. It is the end of the path, in which nothing is a
    /// link: what lies in a directory just made is missing.
    pub(crate) fn remove_made(&self) {
        for (place, name) in self.path.path().ancestors().zip(self.made.iter().rev()) {
            if place.file_name() == Some(&name.name()) {
                remove_here(place);
            }
        }
    }

    /// `None`: there are not as many as it had.
    pub(crate) fn with(self, files: Vec<OwnedFd>) -> Option<MountPoint> {
        let mut files = files.into_iter();
        let dir = files.next()?;
        let parent = match self.name {
            Some(name) => Some((files.next()?, name.name())),
            None => None,
        };
        let mut made = Vec::new();
        for name in self.made {
            made.push((files.next()?, name.name()));
        }
        Some(MountPoint {
            dir,
            parent,
            path: self.path.path(),
            root: self.root.map(|r| r.path()),
            made,
            user: self.user,
            owner: None,
            identity: None,
        })
    }
}

/// Which links a walk follows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Links {
    Trusted,
    None,
}

/// An open directory of a walk and its name in the one before.
struct Level {
    dir: OwnedFd,
    name: OsString,
}

/// What a component is.
enum Found {
    Dir(OwnedFd),
    Link(OwnedFd, Stat),
    Other,
}

fn refuse(trouble: Trouble, kind: Kind, text: String) -> NoMountPoint {
    NoMountPoint {
        trouble,
        error: Error::new(kind, text),
    }
}

pub(crate) fn failed(trouble: Trouble, path: &Path, e: Errno) -> NoMountPoint {
    let kind = Kind::from_errno(e.raw_os_error());
    let text = format!("{}: {}", path.display(), io_text(&e.into()));
    refuse(trouble, kind, text)
}

const LOOK: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn open_dir(dir: BorrowedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    // As a directory, which has the kernel mount what an automounter offers there.
    fs::openat(dir, name, LOOK | OFlags::DIRECTORY, Mode::empty())
}

fn look(dir: BorrowedFd, name: &OsStr) -> Result<Found, Errno> {
    match open_dir(dir, name) {
        Ok(fd) => return Ok(Found::Dir(fd)),
        Err(Errno::NOTDIR | Errno::LOOP) => {}
        Err(e) => return Err(e),
    }
    let fd = fs::openat(dir, name, LOOK, Mode::empty())?;
    let stat = fs::fstat(&fd)?;
    Ok(match FileType::from_raw_mode(stat.st_mode as RawMode) {
        FileType::Directory => Found::Dir(fd),
        FileType::Symlink => Found::Link(fd, stat),
        _ => Found::Other,
    })
}

/// Whose links are followed: those of root, of this process's user, and of whoever owns the root
/// directory (which is what root is called in a user namespace that does not map it).
fn is_trusted(uid: u32, root: &Stat) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw() || uid == root.st_uid
}

/// Whether only trusted users can put something into a directory, or take another's out of it.
fn is_guarded(dir: &Stat, root: &Stat) -> bool {
    let own_group = dir.st_gid == rustix::process::getegid().as_raw() || dir.st_gid == 0;
    let others_write = dir.st_mode & 0o002 != 0 || (dir.st_mode & 0o020 != 0 && !own_group);
    let sticky = dir.st_mode & 0o1000 != 0;
    is_trusted(dir.st_uid, root) && (!others_write || sticky)
}

/// Device number of a directory and id of its mount (0: the kernel does not tell it), without a
/// request to its daemon.
fn identity(dir: BorrowedFd) -> io::Result<((u32, u32), u64)> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH;
    let s = fs::statx(dir, "", flags, StatxFlags::MNT_ID)?;
    let id = match s.stx_mask & StatxFlags::MNT_ID.bits() {
        0 => 0,
        _ => s.stx_mnt_id,
    };
    Ok(((s.stx_dev_major, s.stx_dev_minor), id))
}

/// The parts of a path that lead somewhere, in order.
fn parts(path: &Path) -> impl DoubleEndedIterator<Item = OsString> + '_ {
    path.components().filter_map(|c| match c {
        Component::Normal(n) => Some(n.to_os_string()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    })
}

struct Walk {
    /// The first is where absolute links begin; its name is not used.
    levels: Vec<Level>,
    /// Path of the first.
    base: PathBuf,
    links: Links,
    create: Create,
    made: Vec<(OwnedFd, OsString)>,
}

/// Which missing directories a walk makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Create {
    Never,
    Always,
    /// One, in a directory of this user.
    In(u32),
}

impl Walk {
    fn path(&self) -> PathBuf {
        let mut path = self.base.clone();
        path.extend(self.levels.iter().skip(1).map(|l| l.name.as_os_str()));
        path
    }

    fn here(&self) -> BorrowedFd<'_> {
        match self.levels.last() {
            Some(l) => l.dir.as_fd(),
            None => fs::CWD,
        }
    }

    fn run(&mut self, path: &Path) -> Result<(), NoMountPoint> {
        let mut todo: VecDeque<OsString> = parts(path).collect();
        let mut followed = 0;
        while let Some(name) = todo.pop_front() {
            if name == ".." {
                if self.levels.len() > 1 {
                    self.levels.pop();
                }
                continue;
            }
            let place = self.path().join(&name);
            let found = match look(self.here(), &name) {
                Err(Errno::NOENT) if self.create != Create::Never => self.make(&name, &place)?,
                r => r.map_err(|e| failed(Trouble::Look, &place, e))?,
            };
            match found {
                Found::Dir(dir) => self.levels.push(Level { dir, name }),
                Found::Link(link, stat) => {
                    followed += 1;
                    if followed > MAX_LINKS {
                        return Err(failed(Trouble::Look, &place, Errno::LOOP));
                    }
                    let target = self.follow(&link, &stat, &place)?;
                    if target.is_absolute() {
                        self.levels.truncate(1);
                    }
                    for part in parts(&target).rev() {
                        todo.push_front(part);
                    }
                }
                Found::Other => {
                    let text = format!("{} is not a directory", place.display());
                    return Err(refuse(Trouble::NotDirectory, Kind::NotDir, text));
                }
            }
        }
        Ok(())
    }

    /// Makes a directory; what is there afterwards need not be it.
    fn make(&mut self, name: &OsStr, place: &Path) -> Result<Found, NoMountPoint> {
        let create = |e| failed(Trouble::Create, place, e);
        if let Create::In(uid) = self.create {
            let holder = fs::fstat(self.here()).map_err(create)?;
            if holder.st_uid != uid || !self.made.is_empty() {
                return Err(create(Errno::ACCESS));
            }
        }
        match fs::mkdirat(self.here(), name, Mode::from_raw_mode(MADE)) {
            Ok(()) => {
                let parent = self.here().try_clone_to_owned();
                self.made
                    .extend(parent.ok().map(|p| (p, name.to_os_string())));
            }
            Err(Errno::EXIST) => {}
            Err(e) => return Err(create(e)),
        }
        look(self.here(), name).map_err(create)
    }

    /// Where a link leads, if it is one to be followed.
    fn follow(&self, link: &OwnedFd, stat: &Stat, place: &Path) -> Result<PathBuf, NoMountPoint> {
        let trouble = |e| failed(Trouble::Look, place, e);
        let text = |why: String| {
            let text = format!(
                "the symbolic link '{}' is not followed: {why}",
                place.display()
            );
            refuse(Trouble::Link, Kind::NotPermitted, text)
        };
        if self.links == Links::None {
            return Err(text("there was a directory before".into()));
        }
        let root = fs::stat("/").map_err(trouble)?;
        if !is_trusted(stat.st_uid, &root) {
            return Err(text(format!("it belongs to user {}", stat.st_uid)));
        }
        let holder = fs::fstat(self.here()).map_err(trouble)?;
        if !is_guarded(&holder, &root) {
            let dir = place.parent().unwrap_or(place);
            return Err(text(format!(
                "users other than its owner can change the directory '{}'",
                dir.display()
            )));
        }
        let target = fs::readlinkat(link, "", Vec::new()).map_err(trouble)?;
        Ok(OsString::from_vec(target.into_bytes()).into())
    }
}

fn walk(
    levels: Vec<Level>,
    base: PathBuf,
    path: &Path,
    links: Links,
    create: Create,
) -> Result<Walk, NoMountPoint> {
    let mut walk = Walk {
        levels,
        base,
        links,
        create,
        made: Vec::new(),
    };
    match walk.run(path) {
        Ok(()) => Ok(walk),
        Err(e) => {
            remove_made(&walk.made);
            Err(e)
        }
    }
}

fn remove_made(made: &[(OwnedFd, OsString)]) {
    for (dir, name) in made.iter().rev() {
        let _ = fs::unlinkat(dir, name, AtFlags::REMOVEDIR);
    }
}

fn from_root(path: &Path, links: Links, create: Create) -> Result<Walk, NoMountPoint> {
    let top = Path::new("/");
    let dir = fs::open(top, LOOK | OFlags::DIRECTORY, Mode::empty())
        .map_err(|e| failed(Trouble::Look, top, e))?;
    let first = Level {
        dir,
        name: OsString::new(),
    };
    walk(vec![first], top.into(), path, links, create)
}

/// Directories whose names keep their meaning though others may write the directory they are in.
pub(crate) struct Kept<'a> {
    /// Device numbers of mounts in which what is mounted cannot be renamed.
    pub own: &'a [(u32, u32)],
    /// Paths in them that cannot be renamed, either.
    pub hung: &'a [PathBuf],
}

/// See [`crate::Mount::check_way`]. To be called by [`with_own_files`].
pub(crate) fn check_way_here(
    path: &Path,
    mount: ((u32, u32), u64),
    kept: &Kept<'_>,
) -> Result<(), Error> {
    let walk = from_root(path, Links::None, Create::Never).map_err(|e| e.error)?;
    let at = |e: io::Error| Error::from(e).context(path.display().to_string());
    let root = fs::stat("/").map_err(|e| at(e.into()))?;
    let mut place = walk.base.clone();
    let mut last = None;
    for (holder, inner) in walk.levels.iter().zip(&walk.levels[1..]) {
        let stat = fs::fstat(&holder.dir).map_err(|e| at(e.into()))?;
        let outer = identity(holder.dir.as_fd()).map_err(at)?;
        let here = identity(inner.dir.as_fd()).map_err(at)?;
        let owner = fs::fstat(&inner.dir).map_err(|e| at(e.into()))?.st_uid;
        let others_write = stat.st_mode & 0o022 != 0;
        let sticky = stat.st_mode & 0o1000 != 0;
        // Of what is covered by a mount in a sticky directory it is not known whose it is.
        let stays = !others_write || sticky && outer == here && is_trusted(owner, &root);
        let is_roots = is_trusted(stat.st_uid, &root) && stays;
        let holder = place.clone();
        place.push(&inner.name);
        let is_kept = kept.own.contains(&outer.0) && (outer != here || kept.hung.contains(&place));
        if !is_roots && !is_kept {
            let text = format!(
                "users other than root can change the directory '{}', through which '{}' is reached",
                holder.display(),
                path.display()
            );
            return Err(Error::new(Kind::NotPermitted, text));
        }
        last = Some(here);
    }
    let same =
        |(dev, id): ((u32, u32), u64)| dev == mount.0 && (id == mount.1 || id == 0 || mount.1 == 0);
    match last.is_some_and(same) {
        true => Ok(()),
        false => {
            let text = format!("'{}' does not lead to the file system", path.display());
            Err(Error::new(Kind::NotFound, text))
        }
    }
}

impl MountPoint {
    pub(crate) fn search_at(
        path: &Path,
        root: Option<&Path>,
        create: Create,
    ) -> Result<MountPoint, NoMountPoint> {
        match create {
            Create::In(uid) => MountPoint::search_for(path, root, uid),
            create => MountPoint::search(path, root, create),
        }
    }

    fn search_for(path: &Path, root: Option<&Path>, uid: u32) -> Result<MountPoint, NoMountPoint> {
        let found = MountPoint::search(path, root, Create::In(uid))?;
        let refused = |text: &str| {
            let text = format!("the directory '{}' {text}", found.path.display());
            refuse(Trouble::Owner, Kind::NotPermitted, text)
        };
        let no = match fs::fstatfs(&found.dir) {
            Ok(s) if KERNEL_FILES.contains(&(s.f_type as u64)) => {
                Some(refused("is in a file system of the kernel"))
            }
            Err(e) => Some(failed(Trouble::Look, &found.path, e)),
            Ok(_) if !found.is_new() && found.stored_owner() != Some(uid) => {
                Some(refused(&format!("does not belong to user {uid}")))
            }
            Ok(_) => None,
        };
        match no {
            None => Ok(MountPoint {
                user: Some(uid),
                ..found
            }),
            Some(e) => {
                remove_made(&found.made);
                Err(e)
            }
        }
    }

    pub(crate) fn into_bare(self) -> (Bare, Vec<OwnedFd>) {
        let bare = self.bare();
        let (above, _) = self.parent.unzip();
        let places = self.made.into_iter().map(|(dir, _)| dir);
        let files = [self.dir].into_iter().chain(above).chain(places);
        (bare, files.collect())
    }

    /// It without its descriptors.
    pub(crate) fn bare(&self) -> Bare {
        Bare {
            name: self.parent.as_ref().map(|(_, name)| name.into()),
            path: self.path.as_path().into(),
            root: self.root.as_deref().map(Raw::from),
            made: self.made.iter().map(|(_, name)| name.into()).collect(),
            user: self.user,
        }
    }

    /// Its descriptors, in the order of [`Bare::with`].
    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let above = self.parent.iter().map(|(dir, _)| dir.as_fd());
        let places = self.made.iter().map(|(dir, _)| dir.as_fd());
        let all = [self.dir.as_fd()].into_iter().chain(above).chain(places);
        all.collect()
    }

    fn search(
        path: &Path,
        root: Option<&Path>,
        create: Create,
    ) -> Result<MountPoint, NoMountPoint> {
        let Some(root) = root else {
            return Ok(MountPoint::of(
                from_root(path, Links::Trusted, create)?,
                None,
            ));
        };
        let below = path.strip_prefix(root).map_err(|_| {
            let text = format!("{} is not below {}", path.display(), root.display());
            refuse(Trouble::Look, Kind::Invalid, text)
        })?;
        let mut outer = from_root(root, Links::Trusted, create)?;
        let base = outer.path();
        // What is above the alternate root is not to be seen from below.
        let levels = outer.levels.split_off(outer.levels.len() - 1);
        let inner = walk(levels, base.clone(), below, Links::Trusted, create);
        let mut inner = inner.inspect_err(|_| remove_made(&outer.made))?;
        inner.made.splice(0..0, outer.made);
        if inner.levels.len() == 1 {
            // The root itself: its parent is wanted, too.
            let mut at = from_root(&base, Links::None, Create::Never)?;
            at.made = inner.made;
            return Ok(MountPoint::of(at, Some(base)));
        }
        Ok(MountPoint::of(inner, Some(base)))
    }

    /// The directory at a path in which nothing is a link. To be called by [`with_own_files`].
    pub(crate) fn without_links(path: &Path) -> Result<MountPoint, NoMountPoint> {
        Ok(MountPoint::of(
            from_root(path, Links::None, Create::Never)?,
            None,
        ))
    }

    fn of(mut walk: Walk, root: Option<PathBuf>) -> MountPoint {
        let path = walk.path();
        let last = walk.levels.pop().expect("a walk has its first level");
        let parent = walk.levels.pop().map(|p| (p.dir, last.name));
        MountPoint {
            dir: last.dir,
            parent,
            path,
            root,
            made: walk.made,
            user: None,
            owner: None,
            identity: None,
        }
    }

    /// Whose directory it is; one that was made for a user is this user's. None: it is not to be told.
    pub fn owner(&self) -> Option<u32> {
        self.user.or(self.owner)
    }

    pub(crate) fn stored_owner(&self) -> Option<u32> {
        Some(fs::fstat(&self.dir).ok()?.st_uid)
    }

    /// Where it is, without links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The alternate root it was looked for in, without links.
    pub fn root(&self) -> Option<&Path> {
        self.root.as_deref()
    }

    /// Whether it had to be made.
    pub fn is_new(&self) -> bool {
        !self.made.is_empty()
    }

    pub(crate) fn is_empty_here(dir: &OwnedFd) -> io::Result<bool> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = fs::openat(dir, ".", flags, Mode::empty())?;
        for entry in fs::Dir::new(dir)? {
            if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(crate) fn undo_here(&self) {
        remove_made(&self.made);
    }

    pub(crate) fn change_rights_here(dir: &OwnedFd, to: Rights) -> io::Result<bool> {
        let stat = fs::fstat(dir)?;
        let now = stat.st_mode as RawMode & 0o7777;
        let own = stat.st_uid == rustix::process::geteuid().as_raw();
        let mode = match to {
            Rights::OpenUp => (now == CLOSED).then_some(OWN),
            Rights::CloseUp => own.then_some(CLOSED),
            Rights::LeaveOpen => (now == OWN).then_some(MADE),
        };
        let Some(mode) = mode else { return Ok(false) };
        let path = format!("/proc/thread-self/fd/{}", dir.as_raw_fd());
        fs::chmod(path, Mode::from_raw_mode(mode))?;
        Ok(true)
    }

    /// A path of this thread that leads to the directory itself, and to nothing else.
    pub(crate) fn by_descriptor(&self) -> PathBuf {
        format!("/proc/thread-self/fd/{}", self.dir.as_raw_fd()).into()
    }

    /// Lets go of the directory itself and keeps its name in its parent.
    pub(crate) fn leave(self) -> NameInParent {
        NameInParent(self.parent)
    }

    /// Device number and mount id of the directory itself.
    pub(crate) fn identity(&self) -> io::Result<((u32, u32), u64)> {
        self.identity.map_or_else(|| identity(self.dir.as_fd()), Ok)
    }

    /// Device number and mount id of what is on top of it now.
    pub(crate) fn identity_on_top(&self) -> io::Result<((u32, u32), u64)> {
        match &self.parent {
            Some((dir, name)) => with_own_files(&[dir.as_fd()], || {
                identity(open_dir(dir.as_fd(), name)?.as_fd())
            }),
            None => self.identity(),
        }
    }
}

/// A directory by its name in the one it is in; none: the root directory.
pub(crate) struct NameInParent(Option<(OwnedFd, OsString)>);

impl NameInParent {
    /// A path of this thread whose last component must not be followed.
    pub(crate) fn by_parent(&self) -> PathBuf {
        match &self.0 {
            Some((dir, name)) => {
                PathBuf::from(format!("/proc/thread-self/fd/{}", dir.as_raw_fd())).join(name)
            }
            None => "/".into(),
        }
    }
}

/// Removes the directory of a former mount if it is empty, and if what is at the path is no link.
pub(crate) fn remove_here(path: &Path) {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return;
    };
    if let Ok(parent) = MountPoint::without_links(parent) {
        let _ = fs::unlinkat(&parent.dir, name, AtFlags::REMOVEDIR);
    }
}

pub(crate) fn objection_here(place: &Path) -> Option<String> {
    let unusable = |e: io::Error| Some(format!("cannot be used: {}", io_text(&e)));
    match std::fs::symlink_metadata(place) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => unusable(e),
        Ok(m) if m.is_dir() => match std::fs::read_dir(place) {
            Ok(mut list) => {
                let first = list.next();
                first.map(|_| "exists and is not empty".to_string())
            }
            Err(e) => unusable(e),
        },
        Ok(_) => Some("exists and is not a directory".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path_helper::Walker;
    use std::os::unix::fs::{lchown, symlink, PermissionsExt};
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A folder that goes away again.
    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Folder {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let n = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("zfs-mount-point-{}-{n}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir(&path).unwrap();
            Folder(path.canonicalize().unwrap())
        }

        fn dir(&self, name: &str) -> PathBuf {
            let path = self.0.join(name);
            std::fs::create_dir_all(&path).unwrap();
            path
        }

        fn link(&self, name: &str, target: impl AsRef<Path>) -> PathBuf {
            let path = self.0.join(name);
            symlink(target, &path).unwrap();
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn found(path: &Path, root: Option<&Path>) -> Result<PathBuf, (Trouble, String)> {
        MountPoint::find(path, root, false)
            .map(|p| p.path().to_path_buf())
            .map_err(|e| (e.trouble, e.error.to_string()))
    }

    #[test]
    fn parents_made_in_vain_are_removed_however_many_they_are() {
        let f = Folder::new();
        // More than one message carries descriptors for.
        let deep = f.0.join("a/".repeat(300));
        let e = MountPoint::find(&deep, None, true).unwrap_err();
        assert_eq!(e.trouble, Trouble::Look);
        assert_eq!(std::fs::read_dir(&f.0).unwrap().count(), 0);
        let few = f.0.join("a/".repeat(200));
        MountPoint::find(&few, None, true).unwrap().undo();
        assert_eq!(std::fs::read_dir(&f.0).unwrap().count(), 0);
    }

    #[test]
    fn a_way_that_others_can_change_is_refused() {
        let f = Folder::new();
        let place = f.dir("a/b/c");
        let here = |path: &Path| {
            let found = MountPoint::without_links(path).map_err(|e| e.error)?;
            Ok::<_, Error>(found.identity().unwrap())
        };
        let mine = here(&place).unwrap();
        let check = |path: &Path, own: &[(u32, u32)], hung: &[PathBuf]| {
            check_way_here(path, mine, &Kept { own, hung }).map_err(|e| e.kind)
        };
        assert_eq!(check(&place, &[], &[]), Ok(()));
        // It may be elsewhere, or behind a link.
        assert_eq!(check(Path::new("/proc"), &[], &[]), Err(Kind::NotFound));
        let link = f.link("l", f.0.join("a"));
        assert_eq!(check(&link.join("b/c"), &[], &[]), Err(Kind::NotPermitted));
        let change = |mode: u32| {
            let dir = f.0.join("a/b");
            std::fs::set_permissions(dir, PermissionsExt::from_mode(mode)).unwrap();
        };
        for mode in [0o777, 0o775] {
            change(mode);
            assert_eq!(check(&place, &[], &[]), Err(Kind::NotPermitted), "{mode:o}");
        }
        // In a file system of ours names of what hangs there stay.
        assert_eq!(check(&place, &[mine.0], &[]), Err(Kind::NotPermitted));
        assert_eq!(
            check(&place, &[mine.0], std::slice::from_ref(&place)),
            Ok(())
        );
        change(0o1777);
        assert_eq!(check(&place, &[], &[]), Ok(()));
        if !rustix::process::geteuid().is_root() {
            return;
        }
        lchown(&place, Some(65_534), None).unwrap();
        assert_eq!(check(&place, &[], &[]), Err(Kind::NotPermitted));
        change(0o755);
        assert_eq!(check(&place, &[], &[]), Ok(()));
        lchown(f.0.join("a/b"), Some(65_534), None).unwrap();
        assert_eq!(check(&place, &[], &[]), Err(Kind::NotPermitted));
    }

    #[test]
    fn a_closed_directory_is_opened_for_a_mount_and_closed_again() {
        let f = Folder::new();
        let place = f.0.join("a/b");
        let mode = || std::fs::metadata(&place).unwrap().permissions().mode() & 0o7777;
        let p = MountPoint::find(&place, None, true).unwrap();
        assert!(!p.open_up().unwrap() && mode() == MADE);
        assert!(p.close_up().unwrap() && mode() == CLOSED);
        if !rustix::process::geteuid().is_root() {
            assert!(std::fs::write(place.join("x"), "").is_err());
        }
        let again = MountPoint::find(&place, None, true).unwrap();
        assert!(again.open_up().unwrap() && mode() == OWN);
        assert!(again.is_empty().unwrap());
        assert!(again.leave_open().unwrap() && mode() == MADE);
        // What somebody else closed is not opened.
        std::fs::set_permissions(&place, PermissionsExt::from_mode(0o0)).unwrap();
        assert!(!again.open_up().unwrap() && mode() == 0);
        std::fs::set_permissions(&place, PermissionsExt::from_mode(0o755)).unwrap();
        // One that was made in vain goes, closed or not.
        assert!(p.close_up().unwrap());
        p.undo();
        assert_eq!(std::fs::read_dir(&f.0).unwrap().count(), 0);
    }

    /// The directories of fusectl belong to the users of connections, who did not make them.
    #[test]
    fn nobody_mounts_on_the_control_files_of_fuse() {
        use std::process::Command;
        let f = Folder::new();
        let place = f.dir("ctl");
        let mut mount = Command::new("mount");
        mount.args(["-t", "fusectl", "none"]).arg(&place);
        if !mount.output().is_ok_and(|o| o.status.success()) {
            eprintln!("skipped: fusectl cannot be mounted here");
            return;
        }
        let root = Walker {
            uid: 0,
            groups: Vec::new(),
        };
        let found = MountPoint::find_for(&place, None, &root);
        let refused = found.map(|p| p.path().to_path_buf()).unwrap_err();
        let gone = Command::new("umount").arg("-l").arg(&place).status();
        assert!(gone.is_ok_and(|s| s.success()));
        assert_eq!(refused.trouble, Trouble::Owner);
        let text = refused.error.to_string();
        assert!(text.contains("file system of the kernel"), "{text}");
    }

    #[test]
    fn own_links_are_followed() {
        let f = Folder::new();
        let (a, b) = (f.dir("a/x"), f.dir("b"));
        f.link("b/abs", &a);
        f.link("b/rel", "../a/./x/../x");
        for name in ["abs", "rel"] {
            assert_eq!(found(&b.join(name), None), Ok(a.clone()));
        }
        f.link("loop", "loop");
        assert_eq!(found(&f.0.join("loop"), None).unwrap_err().0, Trouble::Look);
        std::fs::write(f.0.join("file"), "").unwrap();
        let e = found(&f.0.join("file"), None).unwrap_err();
        assert_eq!(e.0, Trouble::NotDirectory);
        assert_eq!(found(Path::new("/"), None), Ok("/".into()));
    }

    #[test]
    fn links_others_own_or_could_have_put_there_are_refused() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return;
        }
        let f = Folder::new();
        let target = f.dir("target");
        let link = f.link("theirs", &target);
        lchown(&link, Some(65534), Some(65534)).unwrap();
        let (trouble, text) = found(&link, None).unwrap_err();
        assert_eq!(trouble, Trouble::Link);
        assert!(text.contains("belongs to user 65534"), "{text}");
        // A link of root's that lies in a directory of somebody else can have been moved there.
        let dir = f.dir("home");
        let moved = f.link("home/roots", &target);
        assert_eq!(found(&moved, None), Ok(target.clone()));
        lchown(&dir, Some(65534), None).unwrap();
        assert_eq!(found(&moved, None).unwrap_err().0, Trouble::Link);
        lchown(&dir, Some(0), None).unwrap();
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o777)).unwrap();
        assert_eq!(found(&moved, None).unwrap_err().0, Trouble::Link);
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o1777)).unwrap();
        assert_eq!(found(&moved, None), Ok(target));
    }

    #[test]
    fn nothing_leads_out_of_an_alternate_root() {
        let f = Folder::new();
        let root = f.dir("root");
        f.dir("root/etc/x");
        f.dir("etc/x");
        f.link("root/abs", "/etc");
        f.link("root/up", "../../../../etc");
        let below = root.join("etc/x");
        for name in ["abs/x", "up/x", "../etc/../../etc/x", "abs/../../../etc/x"] {
            let got = found(&root.join(name), Some(&root));
            assert_eq!(got, Ok(below.clone()), "{name}");
        }
        assert_eq!(found(&root, Some(&root)), Ok(root.clone()));
        assert_eq!(found(&root.join("up/.."), Some(&root)), Ok(root.clone()));
        // The alternate root itself may be reached by a link.
        let link = f.link("link", &root);
        assert_eq!(found(&link.join("abs/x"), Some(&link)), Ok(below));
    }

    #[test]
    fn directories_made_for_nothing_are_removed() {
        let f = Folder::new();
        let path = f.0.join("a/b/c");
        let place = MountPoint::find(&path, None, true).unwrap();
        assert!(place.is_new() && place.is_empty().unwrap());
        assert_eq!(place.path(), path);
        place.undo();
        assert!(!f.0.join("a").exists());
        // Also when a later component cannot be had.
        std::fs::write(f.0.join("file"), "").unwrap();
        f.link("root-link", f.0.join("file"));
        let e = MountPoint::find(&f.0.join("d/../root-link/x"), None, true).unwrap_err();
        assert_eq!(e.trouble, Trouble::NotDirectory);
        assert!(!f.0.join("d").exists());
    }

    #[test]
    fn no_directory_is_removed_through_a_link() {
        let f = Folder::new();
        let victim = f.dir("victim/empty");
        f.link("link", f.0.join("victim"));
        remove_here(&f.0.join("link/empty"));
        assert!(victim.exists());
        remove_here(&victim);
        assert!(!victim.exists());
    }
}
