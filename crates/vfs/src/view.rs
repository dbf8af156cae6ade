//! [`View`]: file systems in service as one tree. Each hangs at a name of a directory of another one, as a mount would, but nothing is
//! mounted: one door to the outside serves all of them.
//!
//! 1. A node of a view is (file system, node of its door); `view_ids.rs` makes one number of both. The first file system is the one
//!    the view begins with, and never goes.
//! 2. What hangs at a name shadows what the directory has under it. The directory need not have the name, and is not changed.
//! 3. A directory without rights and content, which no disk has ([`Empty`]), stands where a directory on the way is missing, and for a
//!    file system that cannot be shown (locked).
//! 4. A request is inside the file system it is for ([`View::with`]). [`View::end`] waits for those that are in, and refuses others:
//!    with `Stale`, without waiting, since a request that is in may wait for one that comes.
//! 5. A number is given again when the clients have forgotten all nodes of the file system that had it. A file system has the number
//!    of its dataset whenever that is free, so that handles of its files go on after a restart (`view_ids.rs`).
//!
//! Names and links never lead from one file system to another: the caller compares [`At::number`]. Clients are told of names that
//! come and go, with no lock held.
//!
//! # Lock order
//! The gates of members, of two at most → the table. The numbers of snapshots are locked last.

use crate::answers::{Attrs, Entry};
use crate::caller::{Caller, Nobody};
use crate::ctldir;
use crate::directories::BRIEF;
use crate::door::Door;
use crate::nodes::ROOT;
use crate::subscriber::Subscriber;
use crate::view_ids::{self, inode, salt, ViewIds, ViewRoot, ViewTrees, COUNTED_FROM, MOST};
use base::sync::{CondvarExt, MutexExt, RwLockExt};
use base::{Error, Kind, Result};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, RwLock};
use std::time::{Duration, Instant};
use zpl::{Attr, Time, Zfs, Znode};

/// Positions in a listing behind all that the directory itself has: its entries use fewer bits, or all of them.
const TAIL: u64 = 1 << 62;
/// How long clients may take to forget the nodes of a file system that has ended, when it is mounted again.
const FORGETTING: Duration = Duration::from_millis(200);

/// What a view is made of: something with a door.
pub trait Within: Send + Sync + 'static {
    /// The door.
    fn door(&self) -> &Arc<Door>;
}

/// A directory that is on no disk.
pub struct Empty {
    ino: u64,
    since: Time,
    owner: (u32, u32),
    /// Whether it still stands for something; none: for what hangs in it.
    stands: Option<Box<dyn Fn() -> bool + Send + Sync>>,
}

enum State<M> {
    Files(Arc<M>),
    Empty(Empty),
    Ended,
}

/// One place of a view: a file system, or an empty directory.
struct Member<M> {
    number: u32,
    /// Its dataset object; 0: the first one.
    dataset: u64,
    /// Lookups that the clients have of its nodes.
    lookups: AtomicU64,
    /// Files are not to be executed.
    noexec: AtomicBool,
    /// It has been more than a number that is taken.
    joined: AtomicBool,
    state: RwLock<State<M>>,
}

/// A directory in which something hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Spot {
    member: u32,
    /// Object and generation; 0 for the root.
    object: u64,
    generation: u32,
}

impl Spot {
    fn root(member: u32) -> Spot {
        Spot {
            member,
            object: 0,
            generation: 0,
        }
    }
}

struct Table<M> {
    /// By number.
    members: HashMap<u32, Arc<Member<M>>>,
    /// Where the search for a counted number begins.
    next: u32,
    /// Numbers by directory and name.
    hung: HashMap<Spot, BTreeMap<Vec<u8>, u32>>,
    /// The other way round.
    places: HashMap<u32, (Spot, Vec<u8>)>,
}

/// File systems as one tree.
pub struct View<M> {
    first: Arc<M>,
    table: RwLock<Table<M>>,
    /// How many hang somewhere, and how many of them not in a root.
    hung: AtomicUsize,
    deep: AtomicUsize,
    pub(crate) trees: ViewTrees,
    /// A file system that has ended is forgotten.
    forgotten: (Mutex<()>, Condvar),
    clients: OnceLock<Arc<dyn Subscriber>>,
    owner: (u32, u32),
}

/// What a node of a view is.
pub struct At<'a, M> {
    /// The number of its file system.
    pub number: u32,
    /// The file system; none: the node is an empty directory.
    pub files: Option<&'a Arc<M>>,
    /// The node there.
    pub node: u64,
    dataset: u64,
    noexec: bool,
    member: Option<&'a Arc<Member<M>>>,
    empty: Option<&'a Empty>,
}

impl<M> At<'_, M> {
    /// The inode number in the view of an object of the same file system.
    pub fn ino(&self, ino: u64) -> u64 {
        inode(self.dataset, ctldir::is_ours(self.node), ino)
    }

    /// The generation in the view of an object of the same file system.
    pub fn generation(&self, generation: u64) -> u64 {
        // Of a directory that is on no disk the number is made of its place.
        let dataset = self.empty.map_or(self.dataset, |e| e.ino);
        generation ^ u64::from(salt(self.number, dataset))
    }

    /// Files are not to be executed.
    pub fn is_noexec(&self) -> bool {
        self.noexec
    }
}

/// Where something is to hang.
pub struct Spare {
    spot: Spot,
    name: Vec<u8>,
    /// The directory has something under the name that is hidden from now on.
    pub shadows: bool,
    /// Whose directory it is, or the one it is in.
    pub owner: u32,
}

impl Spare {
    fn again(&self) -> Spare {
        Spare {
            name: self.name.clone(),
            ..*self
        }
    }
}

/// What a directory has under a name.
enum Found {
    Missing,
    Directory(Arc<Znode>),
    Other,
}

/// A name that is listed in a directory beside its own entries.
pub struct Extra {
    /// The name.
    pub name: Vec<u8>,
    /// Inode number.
    pub ino: u64,
    /// Node of the view.
    pub node: u64,
    /// Position behind it.
    pub next: u64,
}

impl<M: Within> View<M> {
    /// A view of one file system so far. `owner`: user and group of directories that are on no disk.
    pub fn new(first: Arc<M>, trees: ViewRoot, owner: (u32, u32)) -> Arc<View<M>> {
        Arc::new(View {
            first,
            table: RwLock::new(Table {
                members: HashMap::new(),
                next: COUNTED_FROM,
                hung: HashMap::new(),
                places: HashMap::new(),
            }),
            hung: AtomicUsize::new(0),
            deep: AtomicUsize::new(0),
            trees: trees.0,
            forgotten: Default::default(),
            clients: OnceLock::new(),
            owner,
        })
    }

    /// Whom to tell of changes, by nodes of the view. The first one set stays.
    pub fn subscribe(&self, clients: Arc<dyn Subscriber>) {
        let _ = self.clients.set(clients);
    }

    /// The file system that the view begins with.
    pub fn first(&self) -> &Arc<M> {
        &self.first
    }

    /// Every file system but the first.
    pub fn others(&self) -> Vec<Arc<M>> {
        let numbered = self.numbered_others().into_iter();
        numbered.map(|(_, files)| files).collect()
    }

    /// The same with their numbers.
    pub(crate) fn numbered_others(&self) -> Vec<(u32, Arc<M>)> {
        let members = self.table.acquire_read().members.clone();
        let files = members
            .values()
            .filter_map(|m| match &*m.state.try_acquire_read()? {
                State::Files(files) => Some((m.number, files.clone())),
                _ => None,
            });
        files.collect()
    }

    fn member(&self, number: u32) -> Option<Arc<Member<M>>> {
        self.table.acquire_read().members.get(&number).cloned()
    }

    /// Does something with a node, inside its file system.
    ///
    /// # Errors
    /// `Kind::Stale`: the file system is gone; and those of `f`.
    #[inline]
    pub fn with<R, E: From<Kind>>(
        &self,
        node: u64,
        f: impl FnOnce(&At<'_, M>) -> std::result::Result<R, E>,
    ) -> std::result::Result<R, E> {
        let inside = self.trees.inside(node);
        let (number, node) = inside.or_else(|| self.met(node)).ok_or(Kind::Stale)?;
        if number == 0 {
            return f(&At {
                number,
                files: Some(&self.first),
                node,
                dataset: 0,
                noexec: false,
                member: None,
                empty: None,
            });
        }
        let member = self.member(number).ok_or(Kind::Stale)?;
        let state = member.state.try_acquire_read().ok_or(Kind::Stale)?;
        let (files, empty) = match &*state {
            State::Files(files) => (Some(files), None),
            State::Empty(empty) => (None, Some(empty)),
            State::Ended => return Err(Kind::Stale.into()),
        };
        f(&At {
            number,
            files,
            node,
            dataset: member.dataset,
            noexec: member.noexec.load(Ordering::Relaxed),
            member: Some(&member),
            empty,
        })
    }

    /// A node that was found in the file system of `at`, as clients of the view know it, with its inode number: one lookup.
    ///
    /// # Errors
    /// `Kind::Overflow`: it has no id in a view.
    pub fn entered(&self, at: &At<'_, M>, node: u64, ino: u64) -> Result<(u64, u64)> {
        let Some(id) = self.trees.outside(at.number, node) else {
            if let Some(files) = at.files {
                files.door().forget(node, 1);
            }
            return Err(Kind::Overflow.into());
        };
        if let Some(member) = at.member {
            member.lookups.fetch_add(1, Ordering::Relaxed);
        }
        Ok((id, inode(at.dataset, ctldir::is_ours(node), ino)))
    }

    /// The ids of a file system in the view.
    pub fn ids(&self, number: u32) -> ViewIds {
        let dataset = self.member(number).map_or(0, |m| m.dataset);
        ViewIds::new(number, salt(number, dataset), &self.trees)
    }

    /// Clients drop lookups of a node, also of a file system that is gone.
    pub fn forget(&self, id: u64, lookups: u64) {
        let Some((number, node)) = self.trees.inside(id) else {
            return;
        };
        if number == 0 {
            return self.first.door().forget(node, lookups);
        }
        let Some(member) = self.member(number) else {
            return;
        };
        let less = |n: u64| Some(n.saturating_sub(lookups));
        let _ = member
            .lookups
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        if let Some(State::Files(files)) = member.state.try_acquire_read().as_deref() {
            files.door().forget(node, lookups);
        };
        if self.drop_ended(&member) {
            let _waits = self.forgotten.0.acquire();
            self.forgotten.1.notify_all();
        }
    }

    /// The number of one that has ended, and of which clients know nothing, is free. Whether it is now.
    fn drop_ended(&self, member: &Arc<Member<M>>) -> bool {
        let is_over = |m: &Member<M>| {
            m.lookups.load(Ordering::Relaxed) == 0
                && matches!(m.state.try_acquire_read().as_deref(), Some(State::Ended))
        };
        if !is_over(member) {
            return false;
        }
        let mut table = self.table.acquire_write();
        // Until it has joined, one that begins looks like one that has ended.
        let is_it = |m: &Arc<Member<M>>| Arc::ptr_eq(m, member);
        let found = table.members.get(&member.number).is_some_and(is_it);
        if found && member.joined.load(Ordering::Acquire) {
            table.members.remove(&member.number);
        }
        found
    }

    fn spot(&self, at: &At<'_, M>) -> Option<Spot> {
        if self.hung.load(Ordering::Acquire) == 0 || ctldir::is_ours(at.node) {
            return None;
        }
        if at.node == ROOT {
            return Some(Spot::root(at.number));
        }
        if self.deep.load(Ordering::Acquire) == 0 {
            return None;
        }
        let (object, generation) = at.files?.door().nodes.object_of(at.node)?;
        Some(Spot {
            member: at.number,
            object,
            generation,
        })
    }

    /// The root, as a node of the view, of what hangs at a name of a directory.
    pub fn child(&self, at: &At<'_, M>, name: &[u8]) -> Option<u64> {
        let spot = self.spot(at)?;
        let number = *self.table.acquire_read().hung.get(&spot)?.get(name)?;
        match self.is_standing(number) {
            true => Some(view_ids::root(number)),
            false => {
                self.remove(number);
                self.end_if_idle(number);
                None
            }
        }
    }

    fn is_standing(&self, number: u32) -> bool {
        let stands = |m: Arc<Member<M>>| match m.state.try_acquire_read().as_deref() {
            Some(State::Empty(e)) => e.stands.as_ref().is_none_or(|stands| stands()),
            _ => true,
        };
        self.member(number).is_some_and(stands) || self.has_children(number)
    }

    fn has_children(&self, number: u32) -> bool {
        let table = self.table.acquire_read();
        table.hung.keys().any(|spot| spot.member == number)
    }

    /// Whether something hangs in a directory other than the root of a file system, or in this one.
    pub fn is_place(&self, at: &At<'_, M>) -> bool {
        self.spot(at)
            .is_some_and(|spot| self.table.acquire_read().hung.contains_key(&spot))
    }

    /// The same of an object by its number in the file system with this number, other than its root.
    pub fn holds(&self, number: u32, (object, generation): (u64, u32)) -> bool {
        let spot = Spot {
            member: number,
            object,
            generation,
        };
        self.has_places() && self.table.acquire_read().hung.contains_key(&spot)
    }

    /// Whether any directory that is not the root of a file system has something hanging in it.
    pub fn has_places(&self) -> bool {
        self.deep.load(Ordering::Acquire) != 0
    }

    /// What hangs in a directory, behind a position, in the order of positions.
    pub fn extras(&self, at: &At<'_, M>, position: u64) -> Vec<Extra> {
        let Some(spot) = self.spot(at) else {
            return Vec::new();
        };
        let from = match position >> 32 == TAIL >> 32 {
            true => position - TAIL,
            false => 0,
        };
        let hung = self.table.acquire_read().hung.get(&spot).cloned();
        let mut hung: Vec<_> = hung.unwrap_or_default().into_iter().collect();
        hung.retain(|(_, number)| u64::from(*number) > from && self.is_standing(*number));
        hung.sort_by_key(|(_, number)| *number);
        let extra = |(name, number): (Vec<u8>, u32)| Extra {
            name,
            ino: self.root_ino(number),
            node: view_ids::root(number),
            next: TAIL + u64::from(number),
        };
        hung.into_iter().map(extra).collect()
    }

    /// The names of what hangs in a directory.
    pub fn names(&self, at: &At<'_, M>) -> HashSet<Vec<u8>> {
        let Some(spot) = self.spot(at) else {
            return HashSet::new();
        };
        let hung = self.table.acquire_read().hung.get(&spot).cloned();
        let mut hung = hung.unwrap_or_default();
        hung.retain(|_, number| self.is_standing(*number));
        hung.into_keys().collect()
    }

    /// Whether a position is behind all that a directory itself has.
    pub fn is_behind(position: u64) -> bool {
        position >> 32 == TAIL >> 32
    }

    fn root_ino(&self, number: u32) -> u64 {
        let Some(member) = self.member(number) else {
            return 0;
        };
        let state = member.state.try_acquire_read();
        match state.as_deref() {
            Some(State::Files(files)) => {
                let root = files.door().served.gate.current().root_object();
                inode(member.dataset, false, root)
            }
            Some(State::Empty(empty)) => empty.ino,
            _ => 0,
        }
    }

    /// The root of what hangs somewhere.
    ///
    /// # Errors
    /// Those of reading it.
    pub fn root_entry(&self, by: &dyn Caller, at: &At<'_, M>) -> Result<Entry> {
        let Some(files) = at.files else {
            let attr = self.empty_attr(at);
            return Ok(Entry {
                node: ROOT,
                generation: 0,
                attr,
                keep_attr: BRIEF,
                keep_name: BRIEF,
            });
        };
        match files.door().lookup_head(by, ROOT, b".")? {
            crate::Lookup::Found(entry) => Ok(entry),
            crate::Lookup::Missing(_) => Err(Kind::Stale.into()),
        }
    }

    /// Attributes of an empty directory.
    pub fn empty_attrs(&self, at: &At<'_, M>) -> Attrs {
        Attrs {
            attr: self.empty_attr(at),
            keep: BRIEF,
        }
    }

    fn empty_attr(&self, at: &At<'_, M>) -> Attr {
        let of = |e: &Empty| (e.ino, e.since, e.owner);
        let (ino, time, (uid, gid)) = at.empty.map_or_else(Default::default, of);
        Attr {
            ino,
            size: 2,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            mode: 0o040_555,
            nlink: 2,
            uid,
            gid,
            blksize: 512,
            ..Attr::default()
        }
    }

    /// The directory that the root of a file system hangs in, as a node of the view. Clients may ask for it by a handle, without
    /// knowing it yet.
    pub fn above(&self, number: u32) -> Option<u64> {
        let spot = self.table.acquire_read().places.get(&number)?.0;
        if spot.object == 0 {
            return Some(view_ids::root(spot.member));
        }
        let files = self.files(spot.member)?;
        let node = files
            .door()
            .nodes
            .lasting_id(spot.object, spot.generation)?;
        self.trees.outside(spot.member, node)
    }

    /// A directory as a node of the view, if clients know it.
    fn node_of(&self, spot: Spot) -> Option<u64> {
        if spot.object == 0 {
            return Some(view_ids::root(spot.member));
        }
        let files = self.files(spot.member)?;
        let node = files.door().nodes.id_of(spot.object, spot.generation)?;
        self.trees.outside(spot.member, node)
    }

    fn files(&self, number: u32) -> Option<Arc<M>> {
        if number == 0 {
            return Some(self.first.clone());
        }
        let member = self.member(number)?;
        let state = member.state.try_acquire_read()?;
        match &*state {
            State::Files(files) => Some(files.clone()),
            _ => None,
        }
    }

    /// Looks for the place of a path, from the root of the view. `user`: whose directory it must be. `overlay`: it may have something
    /// in it. Directories that are missing on the way are there from now on.
    ///
    /// # Errors
    /// There is no such place.
    pub fn spare(&self, path: &[&[u8]], overlay: bool, user: Option<u32>) -> Result<Spare> {
        let Some((last, way)) = path.split_last() else {
            return Err(Error::new(Kind::Busy, "it is the root of the view"));
        };
        let mut spot = Spot::root(0);
        for name in way {
            spot = self.step(spot, name)?;
        }
        let name = last.to_vec();
        let hung = |t: &Table<M>| t.hung.get(&spot).and_then(|m| m.get(&name)).copied();
        let there = hung(&self.table.acquire_read());
        if there.is_some_and(|number| self.files(number).is_some()) {
            return Err(Error::new(
                Kind::Busy,
                "another file system is mounted there",
            ));
        }
        let found = self.look(spot, &name)?;
        let (owner, filled) = match &found {
            Found::Missing => (self.owner_of(spot)?, false),
            Found::Directory(z) => (z.fixed().uid32(), !self.is_empty(spot, z)?),
            Found::Other => return Err(not_a_directory(&name)),
        };
        if user.is_some_and(|uid| uid != owner) {
            let text = "the directory is not yours";
            return Err(Error::new(Kind::NotPermitted, text));
        }
        if filled && !overlay {
            return Err(Error::sentence(Kind::NotEmpty, "directory is not empty"));
        }
        Ok(Spare {
            spot,
            name,
            shadows: filled,
            owner,
        })
    }

    /// The directory of a name; one that is missing is there from now on.
    fn step(&self, spot: Spot, name: &[u8]) -> Result<Spot> {
        let hung = |t: &Table<M>| t.hung.get(&spot).and_then(|m| m.get(name)).copied();
        let there = hung(&self.table.acquire_read());
        if let Some(number) = there {
            return Ok(Spot::root(number));
        }
        match self.look(spot, name)? {
            Found::Directory(z) => Ok(Spot {
                member: spot.member,
                object: z.object,
                generation: z.gen as u32,
            }),
            Found::Other => Err(not_a_directory(name)),
            Found::Missing => {
                let spare = Spare {
                    spot,
                    name: name.to_vec(),
                    shadows: false,
                    owner: self.owner.0,
                };
                Ok(Spot::root(self.hang_empty(spare, None)?))
            }
        }
    }

    fn directory(zfs: &Zfs, spot: Spot) -> Result<Arc<Znode>> {
        match spot.object {
            0 => zfs.root(),
            object => zfs.get_generation(object, spot.generation),
        }
    }

    fn look(&self, spot: Spot, name: &[u8]) -> Result<Found> {
        if matches!(name, b"." | b"..") || name == ctldir::NAME && spot.object == 0 {
            return Ok(Found::Other);
        }
        let Some(files) = self.files(spot.member) else {
            return Ok(Found::Missing);
        };
        let zfs = files.door().served.gate.enter(&Nobody)?;
        let dir = Self::directory(&zfs, spot)?;
        match zfs.lookup(&dir, name, &zpl::Cred::root()) {
            Ok(z) if z.is_dir() => Ok(Found::Directory(z)),
            Ok(_) => Ok(Found::Other),
            Err(e) if e.kind == Kind::NotFound => Ok(Found::Missing),
            Err(e) => Err(e),
        }
    }

    fn owner_of(&self, spot: Spot) -> Result<u32> {
        let Some(files) = self.files(spot.member) else {
            return Ok(self.owner.0);
        };
        let zfs = files.door().served.gate.enter(&Nobody)?;
        Ok(Self::directory(&zfs, spot)?.fixed().uid32())
    }

    fn is_empty(&self, spot: Spot, dir: &Znode) -> Result<bool> {
        let Some(files) = self.files(spot.member) else {
            return Ok(true);
        };
        let zfs = files.door().served.gate.enter(&Nobody)?;
        let mut empty = true;
        zfs.names(dir, |_, _| {
            empty = false;
            Ok(false)
        })?;
        Ok(empty)
    }

    /// A number for a file system that is to be part of the view: that of its dataset, or a counted one.
    ///
    /// # Errors
    /// There is none left.
    fn number(&self, dataset: u64, state: State<M>) -> Result<u32> {
        let own = u32::try_from(dataset)
            .ok()
            .filter(|n| (1..COUNTED_FROM).contains(n));
        if let Some(own) = own {
            self.wait_for(own);
        }
        let mut table = self.table.acquire_write();
        let own = own.filter(|n| !table.members.contains_key(n));
        let number = match own {
            Some(own) => own,
            None => {
                let from = table.next;
                let mut all = (from..MOST).chain(COUNTED_FROM..from);
                let free = all.find(|n| !table.members.contains_key(n));
                let free = free.ok_or_else(|| {
                    let text = "too many file systems have come and gone in the view: unmount it and mount it again";
                    Error::new(Kind::NoSpace, text)
                })?;
                table.next = if free + 1 < MOST {
                    free + 1
                } else {
                    COUNTED_FROM
                };
                free
            }
        };
        let joined = !matches!(state, State::Ended);
        let member = Member {
            number,
            dataset,
            lookups: AtomicU64::new(0),
            noexec: AtomicBool::new(false),
            joined: AtomicBool::new(joined),
            state: RwLock::new(state),
        };
        table.members.insert(number, Arc::new(member));
        Ok(number)
    }

    /// Waits a moment until clients have forgotten the nodes of the file system that has had a number.
    fn wait_for(&self, number: u32) {
        let begin = Instant::now();
        let mut waits = self.forgotten.0.acquire();
        while let Some(member) = self.member(number) {
            let ended = matches!(
                member.state.try_acquire_read().as_deref(),
                Some(State::Ended)
            );
            if !ended || begin.elapsed() >= FORGETTING {
                return;
            }
            waits = self
                .forgotten
                .1
                .wait_acquire_timeout(waits, FORGETTING / 10);
        }
    }

    /// Makes a file system part of the view. `make` is given the ids it has there. It hangs nowhere yet.
    ///
    /// # Errors
    /// There are too many; those of `make`.
    pub fn join(
        &self,
        dataset: u64,
        make: impl FnOnce(ViewIds) -> Result<Arc<M>>,
    ) -> Result<(u32, Arc<M>)> {
        let number = self.number(dataset, State::Ended)?;
        let made = make(self.ids(number));
        if let Some(member) = self.member(number) {
            member.joined.store(true, Ordering::Release);
            match &made {
                Ok(files) => *member.state.acquire_write() = State::Files(files.clone()),
                Err(_) => drop(self.drop_ended(&member)),
            }
        }
        Ok((number, made?))
    }

    /// Hangs a file system at its place: it is seen from now on. What hid there that is on no disk goes.
    ///
    /// # Errors
    /// Something else hangs there by now.
    pub fn hang(&self, spare: Spare, number: u32) -> Result<()> {
        let before = {
            let table = self.table.acquire_read();
            let names = table.hung.get(&spare.spot);
            names.and_then(|n| n.get(&spare.name)).copied()
        };
        if let Some(before) = before.filter(|n| self.files(*n).is_none()) {
            self.move_children(before, number);
            self.remove(before);
            self.end(before);
        }
        self.put(spare, number)
    }

    /// What hangs in the root of one hangs in that of another one from now on.
    fn move_children(&self, from: u32, to: u32) {
        let mut table = self.table.acquire_write();
        let Some(names) = table.hung.remove(&Spot::root(from)) else {
            return;
        };
        for (name, number) in &names {
            table.places.insert(*number, (Spot::root(to), name.clone()));
        }
        table.hung.entry(Spot::root(to)).or_default().extend(names);
    }

    fn hang_empty(
        &self,
        spare: Spare,
        stands: Option<Box<dyn Fn() -> bool + Send + Sync>>,
    ) -> Result<u32> {
        let fixed = self.first.door().served.gate.current().root()?.fixed();
        let empty = Empty {
            ino: self.empty_ino(&spare),
            since: fixed.crtime,
            owner: self.owner,
            stands,
        };
        let number = self.number(0, State::Empty(empty))?;
        self.hang(spare, number)?;
        Ok(number)
    }

    /// The inode number of a directory that is on no disk: it is made of its place, with a bit that no other has.
    fn empty_ino(&self, spare: &Spare) -> u64 {
        let above = match spare.spot {
            Spot {
                member, object: 0, ..
            } => self.root_ino(member),
            Spot { member, object, .. } => {
                inode(self.member(member).map_or(0, |m| m.dataset), false, object)
            }
        };
        let above = above.to_le_bytes();
        let bytes = above.iter().chain(&spare.name);
        // FNV-1a
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325, |h: u64, b| {
            (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3)
        });
        hash | 1 << 63
    }

    /// Hangs an empty directory at a place, as long as `stands` says that it stands for something.
    ///
    /// # Errors
    /// Those of [`View::hang`].
    pub fn stand(&self, spare: Spare, stands: Box<dyn Fn() -> bool + Send + Sync>) -> Result<()> {
        self.hang_empty(spare, Some(stands)).map(drop)
    }

    fn put(&self, spare: Spare, number: u32) -> Result<()> {
        let Spare { spot, name, .. } = spare;
        let mut table = self.table.acquire_write();
        let names = table.hung.entry(spot).or_default();
        if names.contains_key(&name) {
            return Err(Error::new(
                Kind::Busy,
                "another file system is mounted there",
            ));
        }
        names.insert(name.clone(), number);
        table.places.insert(number, (spot, name.clone()));
        self.hung.fetch_add(1, Ordering::Release);
        if spot.object != 0 {
            self.deep.fetch_add(1, Ordering::Release);
        }
        drop(table);
        self.tell(spot, &name);
        Ok(())
    }

    /// Clients are told that a name of a directory leads elsewhere.
    fn tell(&self, spot: Spot, name: &[u8]) {
        if let Some((clients, node)) = self.clients.get().zip(self.node_of(spot)) {
            clients.name(node, name);
            clients.content(node, None);
        }
    }

    /// Whether it hangs somewhere.
    pub fn is_hung(&self, number: u32) -> bool {
        self.table.acquire_read().places.contains_key(&number)
    }

    /// Whether a file system hangs in a directory of another one that is not its root, or in one that does.
    pub fn hangs_in_a_directory(&self, number: u32, of: u32) -> bool {
        let table = self.table.acquire_read();
        let mut at = table.places.get(&number).map(|(spot, _)| *spot);
        while let Some(spot) = at {
            if spot.member == of {
                return spot.object != 0;
            }
            at = table.places.get(&spot.member).map(|(spot, _)| *spot);
        }
        false
    }

    /// Takes a file system from its place: nobody finds it any more. What is open in it goes on. Others that hang in its root stay
    /// at their places, in an empty directory. Returns where it hung.
    ///
    /// # Errors
    /// Busy: another one hangs in one of its directories.
    pub fn unhang(&self, number: u32) -> Result<Spare> {
        if let Some(name) = self.first_in(number) {
            let name = String::from_utf8_lossy(&name).into_owned();
            let text = format!("another file system is mounted in it, at '{name}'");
            return Err(Error::new(Kind::Busy, text));
        }
        let spare = self.remove(number).ok_or(Kind::Invalid)?;
        match self.has_children(number) {
            true => {
                let empty = self.hang_empty(spare.again(), None)?;
                self.move_children(number, empty);
            }
            false => self.tell(spare.spot, &spare.name),
        }
        Ok(spare)
    }

    fn first_in(&self, number: u32) -> Option<Vec<u8>> {
        let table = self.table.acquire_read();
        let inside = table.hung.iter().find(|(spot, names)| {
            spot.member == number
                && spot.object != 0
                && names.values().any(|n| self.files_in(&table, *n))
        });
        inside.and_then(|(_, names)| names.keys().next().cloned())
    }

    /// Whether a number is that of a file system, or of an empty directory with one below it.
    fn files_in(&self, table: &Table<M>, number: u32) -> bool {
        let member = table.members.get(&number);
        let is_empty = member.is_some_and(|m| {
            matches!(m.state.try_acquire_read().as_deref(), Some(State::Empty(_)))
        });
        let below = table.hung.get(&Spot::root(number));
        !is_empty || below.is_some_and(|names| names.values().any(|n| self.files_in(table, *n)))
    }

    /// The same, whatever hangs in it.
    pub fn take_away(&self, number: u32) -> Option<Spare> {
        let spare = self.remove(number)?;
        self.tell(spare.spot, &spare.name);
        Some(spare)
    }

    /// The same. Clients are not told: a request for the directory may be what this is done for.
    fn remove(&self, number: u32) -> Option<Spare> {
        let mut table = self.table.acquire_write();
        let (spot, name) = table.places.remove(&number)?;
        if let Some(names) = table.hung.get_mut(&spot) {
            names.remove(&name);
            if names.is_empty() {
                table.hung.remove(&spot);
            }
        }
        self.hung.fetch_sub(1, Ordering::Release);
        if spot.object != 0 {
            self.deep.fetch_sub(1, Ordering::Release);
        }
        Some(Spare {
            spot,
            name,
            shadows: false,
            owner: self.owner.0,
        })
    }

    /// Empty directories on the way to a place go, as far as nothing hangs in them.
    pub fn tidy(&self, spare: &Spare) {
        let mut spot = spare.spot;
        while spot.member != 0 && spot.object == 0 {
            let number = spot.member;
            let empty = self.member(number).is_some_and(|m| {
                matches!(m.state.try_acquire_read().as_deref(),
                    Some(State::Empty(e)) if e.stands.is_none())
            });
            if !empty || self.has_children(number) {
                return;
            }
            let Some(above) = self.take_away(number) else {
                return;
            };
            let _ = self.end(number);
            spot = above.spot;
        }
    }

    /// Files of it are not to be executed, or may be.
    pub fn set_noexec(&self, number: u32, noexec: bool) {
        if let Some(member) = self.member(number) {
            member.noexec.store(noexec, Ordering::Relaxed);
        }
    }

    /// Ends a file system's part in the view: waits for requests that are in, and refuses others. Whether it was part until now.
    pub fn end(&self, number: u32) -> bool {
        let Some(member) = self.member(number) else {
            return false;
        };
        debug_assert_eq!(member.number, number);
        let before = std::mem::replace(&mut *member.state.acquire_write(), State::Ended);
        self.drop_ended(&member);
        !matches!(before, State::Ended)
    }

    /// The same, if no request is in. A request that is may be the caller's own.
    fn end_if_idle(&self, number: u32) {
        let Some(member) = self.member(number) else {
            return;
        };
        let Some(mut state) = member.state.try_acquire_write() else {
            return;
        };
        *state = State::Ended;
        drop(state);
        self.drop_ended(&member);
    }
}

fn not_a_directory(name: &[u8]) -> Error {
    let name = String::from_utf8_lossy(name);
    Error::new(Kind::NotDir, format!("'{name}' is no directory"))
}
