//! What is asked about mount points, of processes or threads of their own ([`crate::path_helper`]).

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use base::{Error, Kind};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::mount_point::{self, failed, Bare, Create, MountPoint, NoMountPoint, Rights, Trouble};
use crate::path_helper::{as_walker, Limit, Walker, LIMIT, SHORT};
use crate::question::{ask, plain, Done, Job, Raw, Told};

/// How long [`probe`] may take: a folder may have many files.
const PROBING: Duration = Duration::from_secs(20);

/// [`MountPoint::find`], [`MountPoint::find_for`].
#[derive(Serialize, Deserialize)]
pub(crate) struct Find {
    path: Raw,
    root: Option<Raw>,
    create: Create,
    walker: Option<Walker>,
}

/// A place without its descriptors, its owner and its identity.
type Found = (Bare, Option<u32>, Option<((u32, u32), u64)>);

impl Job for Find {
    const NAME: &'static str = "find";
    type Answer = Result<Found, (Trouble, Told)>;

    fn user(&self) -> Option<u32> {
        self.walker.as_ref().map(|w| w.uid)
    }

    fn run(self, _: Vec<OwnedFd>) -> Done<Self::Answer> {
        let (path, root) = (self.path.path(), self.root.map(|r| r.path()));
        let search = || MountPoint::search_at(&path, root.as_deref(), self.create);
        match as_walker(self.walker.as_ref(), search) {
            Ok(found) => {
                let (owner, identity) = (found.stored_owner(), found.identity().ok());
                let (bare, files) = found.into_bare();
                (Ok(Ok((bare, owner, identity))), files)
            }
            Err(e) => (Ok(Err((e.trouble, e.error.into()))), Vec::new()),
        }
    }

    fn lost(answer: &Self::Answer) {
        if let Ok((bare, ..)) = answer {
            bare.remove_made();
        }
    }
}

/// Whether a directory is empty. Comes with it.
#[derive(Serialize, Deserialize)]
pub(crate) struct IsEmpty;

impl Job for IsEmpty {
    const NAME: &'static str = "is empty";
    type Answer = bool;

    fn run(self, files: Vec<OwnedFd>) -> Done<bool> {
        let empty = |dir| MountPoint::is_empty_here(dir).map_err(Error::from);
        plain(
            files
                .first()
                .ok_or(Error::from(Kind::BadHandle))
                .and_then(empty),
        )
    }
}

/// [`MountPoint::open_up`] and the like. Comes with the directory.
#[derive(Serialize, Deserialize)]
pub(crate) struct ChangeRights(Rights);

impl Job for ChangeRights {
    const NAME: &'static str = "change rights";
    type Answer = bool;

    fn run(self, files: Vec<OwnedFd>) -> Done<bool> {
        let change = |dir| MountPoint::change_rights_here(dir, self.0).map_err(Error::from);
        plain(
            files
                .first()
                .ok_or(Error::from(Kind::BadHandle))
                .and_then(change),
        )
    }
}

/// [`MountPoint::undo`]. Comes with the place.
#[derive(Serialize, Deserialize)]
pub(crate) struct Undo(Bare);

impl Job for Undo {
    const NAME: &'static str = "undo";
    type Answer = ();

    fn run(self, files: Vec<OwnedFd>) -> Done<()> {
        if let Some(place) = self.0.with(files) {
            place.undo_here();
        }
        plain(Ok(()))
    }
}

/// [`remove_mount_point`]
#[derive(Serialize, Deserialize)]
pub(crate) struct RemoveDir(Raw);

impl Job for RemoveDir {
    const NAME: &'static str = "remove";
    type Answer = ();

    fn run(self, _: Vec<OwnedFd>) -> Done<()> {
        mount_point::remove_here(&self.0.path());
        plain(Ok(()))
    }
}

/// [`is_dead`]
#[derive(Serialize, Deserialize)]
pub(crate) struct IsDead(Raw);

impl Job for IsDead {
    const NAME: &'static str = "is dead";
    type Answer = bool;

    fn run(self, _: Vec<OwnedFd>) -> Done<bool> {
        let asked = rustix::fs::statfs(self.0.path());
        plain(Ok(matches!(asked, Err(Errno::NOTCONN))))
    }
}

/// [`objection`]
#[derive(Serialize, Deserialize)]
pub(crate) struct Objection(Raw);

impl Job for Objection {
    const NAME: &'static str = "objection";
    type Answer = Option<String>;

    fn run(self, _: Vec<OwnedFd>) -> Done<Option<String>> {
        plain(Ok(mount_point::objection_here(&self.0.path())))
    }
}

/// [`probe`]
#[derive(Serialize, Deserialize)]
pub(crate) struct Probe(Raw);

impl Job for Probe {
    const NAME: &'static str = "probe";
    type Answer = ();

    fn run(self, _: Vec<OwnedFd>) -> Done<()> {
        let path = self.0.path();
        match std::fs::metadata(&path) {
            Ok(m) if m.is_dir() => {
                let all = std::fs::read_dir(&path).into_iter().flatten().flatten();
                all.for_each(|e| read_something(&e.path()));
            }
            _ => read_something(&path),
        }
        plain(Ok(()))
    }
}

/// Reads the first byte of an ordinary file.
fn read_something(path: &Path) {
    if std::fs::metadata(path).is_ok_and(|m| m.is_file()) {
        if let Ok(mut file) = std::fs::File::open(path) {
            let _ = file.read(&mut [0]);
        }
    }
}

/// Why there is no mount point, if the question itself failed.
fn no_mount_point(e: Error) -> NoMountPoint {
    NoMountPoint {
        trouble: Trouble::Look,
        error: e,
    }
}

impl MountPoint {
    /// Finds the directory at an absolute path and, with `create`, makes what is missing of it.
    /// With a `root`, which must be a prefix of `path`, no link leads out of that root. Directories
    /// made here are removed again by [`MountPoint::undo`], and when the search fails.
    pub fn find(
        path: &Path,
        root: Option<&Path>,
        create: bool,
    ) -> Result<MountPoint, NoMountPoint> {
        let create = match create {
            true => Create::Always,
            false => Create::Never,
        };
        MountPoint::fetched(path, root, create, None)
    }

    /// The same for an ordinary user: the directory must be this user's. One that is missing is made if it
    /// is in a directory of this user.
    ///
    /// Errors: [`Trouble::Owner`] also where the directory is in a file system of the kernel itself, whose
    /// directories belong to the users of processes.
    pub fn find_for(
        path: &Path,
        root: Option<&Path>,
        walker: &Walker,
    ) -> Result<MountPoint, NoMountPoint> {
        MountPoint::fetched(path, root, Create::In(walker.uid), Some(walker))
    }

    /// Has it searched, and takes the descriptors over.
    fn fetched(
        path: &Path,
        root: Option<&Path>,
        create: Create,
        walker: Option<&Walker>,
    ) -> Result<MountPoint, NoMountPoint> {
        let job = Find {
            path: path.into(),
            root: root.map(Raw::from),
            create,
            walker: walker.cloned(),
        };
        let asked = ask(path, Limit::of(LIMIT), job, &[]);
        let (found, files) = asked.map_err(no_mount_point)?;
        match found {
            Ok((bare, owner, identity)) => match bare.with(files) {
                Some(mut found) => {
                    (found.owner, found.identity) = (owner, identity);
                    Ok(found)
                }
                None => Err(failed(Trouble::Look, path, Errno::BADF)),
            },
            Err((trouble, told)) => Err(NoMountPoint {
                trouble,
                error: told.into(),
            }),
        }
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> base::Result<bool> {
        Ok(ask(self.path(), Limit::of(LIMIT), IsEmpty, &[self.dir.as_fd()])?.0)
    }

    /// Removes the directories that were made for it, as far as they are empty.
    pub fn undo(self) {
        if !self.made.is_empty() {
            // One that does not answer keeps them.
            let job = Undo(self.bare());
            let _ = ask(self.path(), Limit::of(LIMIT), job, &self.descriptors());
        }
    }

    /// Opens a closed directory for its owner, so that it can be looked into and mounted on; whether it was closed.
    ///
    /// # Errors
    /// Of the system: it belongs to somebody else, say.
    pub fn open_up(&self) -> base::Result<bool> {
        self.change_rights(Rights::OpenUp)
    }

    /// Takes all rights of the directory itself away, if it belongs to this process's user: what is written to the path
    /// while nothing is mounted there fails, for everybody but root. Mounts on it do not matter.
    ///
    /// # Errors
    /// As [`MountPoint::open_up`].
    pub fn close_up(&self) -> base::Result<bool> {
        self.change_rights(Rights::CloseUp)
    }

    /// Makes one that was opened with [`MountPoint::open_up`] a directory like others.
    ///
    /// # Errors
    /// As [`MountPoint::open_up`].
    pub fn leave_open(&self) -> base::Result<bool> {
        self.change_rights(Rights::LeaveOpen)
    }

    fn change_rights(&self, to: Rights) -> base::Result<bool> {
        let job = ChangeRights(to);
        Ok(ask(self.path(), Limit::of(LIMIT), job, &[self.dir.as_fd()])?.0)
    }
}

/// Removes the directory of a former mount if it is empty, and if what is at the path is no link.
pub fn remove_mount_point(path: &Path) {
    // One that does not answer keeps it.
    let _ = ask(path, Limit::of(LIMIT), RemoveDir(path.into()), &[]);
}

/// Walks to where something is to be mounted.
///
/// Errors: again, if a file system on the way there does not answer. Whatever else is wrong there is none.
pub fn reach(path: &Path, root: Option<&Path>, walker: Option<&Walker>) -> base::Result<()> {
    match MountPoint::fetched(path, root, Create::Never, walker) {
        Err(e) if e.error.kind == Kind::Again => Err(e.error),
        _ => Ok(()),
    }
}

/// Why the root of a new pool cannot be mounted at a place, as the end of a sentence that begins with the place.
pub fn objection(place: &Path) -> Option<String> {
    match ask(place, Limit::of(LIMIT), Objection(place.into()), &[]) {
        Ok((text, _)) => text,
        Err(e) => Some(format!("cannot be used: {e}")),
    }
}

/// Asks whether a path answers, before this process opens it, lists it or reads it: an ordinary file is read, as is each in a
/// folder. What else is wrong with it is no error.
///
/// Errors: again, if a file system on the way there does not answer.
pub fn probe(path: &Path) -> base::Result<()> {
    match ask(path, Limit::of(PROBING), Probe(path.into()), &[]) {
        Err(e) if e.kind == Kind::Again => Err(e),
        _ => Ok(()),
    }
}

/// Whether the kernel says that the mount at a place has no daemon. One that does not answer in time is taken to be alive.
pub fn is_dead(place: &Path) -> bool {
    let asked = ask(place, Limit::of(SHORT), IsDead(place.into()), &[]);
    matches!(asked, Ok((true, _)))
}
