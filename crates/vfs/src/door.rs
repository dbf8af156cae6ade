//! [`Served`], the file system in service, and [`Door`], one way in: the state that their operations share.

use crate::admission::Admission;
use crate::answers::FOREVER;
use crate::caller::Caller;
use crate::control_gate::{ControlGate, Ended};
use crate::control_lists::ControlLists;
use crate::ctldir::{self, Ctldir, Dir, Line, SharedLists, Tree};
use crate::fresh::Fresh;
use crate::gate::{Gate, Running};
use crate::nodes::{Forgotten, Nodes};
use crate::overtaking::UnderWay;
use crate::page_reads::PageReads;
use crate::power::Power;
use crate::snapshots::{Snapshots, Volume};
use crate::stale::Stale;
use crate::subscriber::Subscriber;
use crate::writers::Writers;
use base::sync::{MutexExt, ReadGuard, RwLockExt};
use base::{Kind, Result};
use env::Clock;
use pool::Pool;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock, Weak};
use std::time::Duration;
use zpl::{Zfs, Znode};

/// A file system in service: the head, which can be changed, and below `.zfs` what can only be read.
pub struct Served {
    pub(crate) gate: Gate,
    pub(crate) admission: Admission,
    pub(crate) ctl: Arc<Ctldir>,
    /// Asked by requests that come through a mount of the control directory itself.
    control: ControlGate,
    /// How long a name may be remembered, also as one that does not exist. Not at all where several
    /// spellings mean one name (case is ignored, or names are normalized): a change made under one
    /// of them would leave the others behind at clients.
    pub(crate) names: Duration,
    /// Nothing changes as long as it is in service: the pool is in use read-only.
    pub(crate) unchanging: bool,
    /// What is not shown of programs and devices.
    pub(crate) power: Power,
    /// Listings of open directories of the control directory: they must not change while they are
    /// read.
    pub(crate) lists: Mutex<HashMap<u64, Arc<Vec<Line>>>>,
    pub(crate) shared: SharedLists,
    pub(crate) handles: AtomicU64,
    /// Writes past the caches of clients.
    pub(crate) under_way: UnderWay,
    /// Held from a suspension to its end.
    pub(crate) suspending: Mutex<bool>,
    clock: Arc<dyn Clock>,
    doors: Arc<Doors>,
}

/// The doors of one file system. Mostly there is one, which is found without a lock.
#[derive(Default)]
struct Doors {
    first: OnceLock<Weak<Door>>,
    /// Further ones.
    more: RwLock<Vec<Weak<Door>>>,
    /// How many have been opened beside the first.
    others: AtomicUsize,
    /// How many are open.
    open: AtomicUsize,
}

impl Doors {
    fn add(&self, door: &Arc<Door>) {
        self.open.fetch_add(1, Ordering::SeqCst);
        if self.first.set(Arc::downgrade(door)).is_err() {
            let mut more = self.more.acquire_write();
            more.retain(|d| d.strong_count() > 0);
            more.push(Arc::downgrade(door));
            self.others.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn each(&self, mut f: impl FnMut(Arc<Door>)) {
        if let Some(door) = self.first.get().and_then(Weak::upgrade) {
            f(door);
        }
        if self.others.load(Ordering::SeqCst) != 0 {
            let more: Vec<_> = self.more.acquire_read().clone();
            more.iter().filter_map(Weak::upgrade).for_each(f);
        }
    }
}

/// One way into a file system in service, with what its clients know of it.
pub struct Door {
    pub(crate) served: Arc<Served>,
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) writers: Arc<Writers>,
    pub(crate) fresh: Fresh,
    pub(crate) page_reads: PageReads,
    /// Nodes of which clients may have pages of a file system that was replaced.
    pub(crate) stale: Stale,
    subscriber: OnceLock<Arc<dyn Subscriber>>,
    /// Clients keep the times and sizes of regular files and say when they changed one.
    pub(crate) keeps_times: AtomicBool,
    /// Whether the control directory was visible when the root was last listed.
    pub(crate) listed_visible: AtomicBool,
    /// Clients open directories without asking.
    pub(crate) lists_unasked: AtomicBool,
    pub(crate) control_lists: ControlLists,
    /// Lookups that clients dropped while the file system was suspended: node, count.
    forgotten: Mutex<Vec<(u64, u64)>>,
    closed: AtomicBool,
}

/// What a node id means.
pub(crate) enum Node<'a> {
    /// Object of the head.
    Object(Running<'a>, Arc<Znode>),
    /// Directory of the control directory.
    Dir(Dir),
    /// Object of a snapshot.
    File(Arc<Tree>, Arc<Znode>),
    Volume(Arc<Tree>, Arc<Volume>),
}

impl Node<'_> {
    /// The object, of the head or of a snapshot, in its file system; the error for what is none.
    #[inline]
    pub fn object(&self, other: Kind) -> Result<(&Arc<Zfs>, &Arc<Znode>)> {
        match self {
            Node::Object(zfs, z) => Ok((zfs, z)),
            Node::File(t, z) => Ok((t.zfs().ok_or(other)?, z)),
            Node::Dir(_) | Node::Volume(..) => Err(other.into()),
        }
    }
}

impl Served {
    /// Puts `zfs`, a file system of `pool`, into service. Its snapshots come `from` there.
    pub fn new(zfs: Arc<Zfs>, pool: &Arc<Pool>, from: Box<dyn Snapshots>) -> Arc<Served> {
        let names = match zfs.has_exact_names() {
            true => FOREVER,
            false => Duration::ZERO,
        };
        let clock = pool.env.clock.clone();
        let ctl = Ctldir::new(from, clock.clone(), &zfs);
        let served = Served {
            ctl: Arc::new(ctl),
            admission: Admission::new(pool.clone()),
            control: ControlGate::default(),
            names,
            unchanging: pool.is_readonly(),
            power: Power::default(),
            lists: Mutex::default(),
            shared: SharedLists::default(),
            handles: AtomicU64::new(FIRST_LISTING),
            suspending: Mutex::default(),
            under_way: UnderWay::default(),
            clock,
            doors: Arc::default(),
            gate: Gate::new(zfs),
        };
        served.keep_doomed(&served.gate.current());
        Arc::new(served)
    }

    /// From now on objects of `zfs` that lose their last link stay while a client knows them.
    pub(crate) fn keep_doomed(&self, zfs: &Zfs) {
        let doors = self.doors.clone();
        zfs.set_keeper(Box::new(move |z| doors.each(|d| d.nodes.pin(z))));
    }

    /// The control directory.
    pub fn ctl(&self) -> &Arc<Ctldir> {
        &self.ctl
    }

    /// The file system, whether or not it is suspended.
    pub fn zfs(&self) -> Arc<Zfs> {
        self.gate.current()
    }

    /// Nothing changes as long as it is in service.
    pub fn is_unchanging(&self) -> bool {
        self.unchanging
    }

    /// Lets a request of a mount of the control directory itself in, as long as the result lives.
    ///
    /// # Errors
    /// Service has ended.
    pub fn enter_control(&self) -> std::result::Result<ReadGuard<'_, bool>, Ended> {
        self.control.enter()
    }

    /// Requests for the head fail from now on, also those that wait, until service ends. Not to be called by a thread that serves
    /// requests.
    pub fn cut_off(&self) {
        self.gate.cut_off();
    }

    /// Every open door.
    pub(crate) fn each_door(&self, f: impl FnMut(Arc<Door>)) {
        self.doors.each(f);
    }

    /// Whether there has ever been a second door.
    #[inline]
    pub(crate) fn has_others(&self) -> bool {
        self.doors.others.load(Ordering::Relaxed) != 0
    }

    /// A mount lets programs with set-id bits or capabilities, and devices, have power: to be told before it does.
    pub fn grant(&self, programs: bool, devices: bool) {
        if self.power.grant(programs, devices) {
            self.forget_attributes();
        }
    }

    /// From now on clients do not learn of this power, as far as a mount has had it; of what is not named here they do. Not to be
    /// called by a thread that serves requests.
    pub fn withhold(&self, programs: bool, devices: bool) {
        if self.power.withhold(programs, devices) {
            self.forget_attributes();
        }
    }

    /// A txg is on disk: clients ask again for attributes that they keep for a moment, since the space that files take is known.
    /// Not to be called by a thread that serves requests.
    pub fn synced(&self) {
        self.each_door(|door| {
            if let Some(clients) = door.clients() {
                door.fresh.forget(&**clients);
            }
        });
    }

    /// Other properties hold: what a listing shows, or which access times change by it, may be different. Not to be called by a
    /// thread that serves requests.
    pub fn properties_changed(&self) {
        self.each_door(|door| door.properties_changed());
    }

    fn forget_attributes(&self) {
        self.each_door(|door| {
            if let Some(clients) = door.clients() {
                door.nodes
                    .known()
                    .iter()
                    .for_each(|n| clients.attributes(n.id));
            }
        });
    }
}

/// Below it are the handles of files.
const FIRST_LISTING: u64 = 2;

impl Door {
    /// Opens a door to a file system in service. It stays open until [`Door::close`].
    ///
    /// # Errors
    /// The root directory cannot be read.
    pub fn open_to(served: &Arc<Served>) -> Result<Arc<Door>> {
        Door::open_with(served, false)
    }

    /// The same for a file system that is part of a [`crate::View`].
    ///
    /// # Errors
    /// The root directory cannot be read.
    pub fn open_in_view(served: &Arc<Served>) -> Result<Arc<Door>> {
        Door::open_with(served, true)
    }

    fn open_with(served: &Arc<Served>, in_view: bool) -> Result<Arc<Door>> {
        let mut zfs = served.gate.current();
        let root = zfs.root()?;
        let door = Arc::new(Door {
            nodes: Arc::new(Nodes::new(&root, in_view)),
            writers: Arc::default(),
            fresh: Fresh::new(served.clock.clone()),
            page_reads: PageReads::default(),
            stale: Stale::default(),
            subscriber: OnceLock::new(),
            keeps_times: AtomicBool::new(false),
            listed_visible: AtomicBool::new(false),
            lists_unasked: AtomicBool::new(false),
            control_lists: ControlLists::default(),
            forgotten: Mutex::default(),
            closed: AtomicBool::new(false),
            served: served.clone(),
        });
        served.doors.add(&door);
        // It may have been resumed as another state meanwhile, by somebody who did not see this door.
        loop {
            let now = served.gate.current();
            if Arc::ptr_eq(&now, &zfs) {
                return Ok(door);
            }
            match now.root() {
                Ok(root) => door.lead_to(&now, &root),
                Err(e) => {
                    door.close();
                    return Err(e);
                }
            }
            zfs = now;
        }
    }

    /// The nodes of a door that no client has used mean objects of this state.
    pub(crate) fn lead_to(&self, zfs: &Zfs, root: &Arc<Znode>) {
        let known = self.nodes.known();
        self.nodes.replace(zfs, root, &known, |_, _| true);
    }

    /// Whom to tell of changes. The first one set stays.
    pub fn subscribe(&self, clients: Arc<dyn Subscriber>) {
        let _ = self.subscriber.set(clients);
    }

    /// The clients, if they want to be told.
    pub(crate) fn clients(&self) -> Option<&Arc<dyn Subscriber>> {
        self.subscriber.get()
    }

    /// What it leads to.
    pub fn served(&self) -> &Arc<Served> {
        &self.served
    }

    /// Clients keep the times and sizes of regular files in a write-back cache, and say when they changed one.
    pub fn keeps_times(&self, keeps: bool) {
        self.keeps_times.store(keeps, Ordering::Relaxed);
    }

    /// Whether clients need not say when they open a file: nothing is written, and no access time changes.
    pub fn needs_no_open(&self) -> bool {
        self.served.unchanging && !self.served.gate.current().props().direct
    }

    /// The files that are open for writing.
    pub fn writers(&self) -> Arc<Writers> {
        self.writers.clone()
    }

    /// The clients are gone, and no request is under way. With the last door service ends, and what was unlinked but open is freed.
    pub fn close(&self) {
        if self.closed.swap(true, Ordering::SeqCst) {
            return;
        }
        let served = &self.served;
        let last = served.doors.open.fetch_sub(1, Ordering::SeqCst) == 1;
        if last {
            served.control.end();
            served.lists.acquire().clear();
            served.ctl.close_all();
        }
        let known = match last {
            true => Vec::new(),
            false => self.nodes.known(),
        };
        self.control_lists.clear();
        self.nodes.clear();
        self.writers.clear();
        let zfs = served.gate.current();
        if last {
            zfs.let_all_go();
            // What was unlinked but open goes now; a failure leaves it on the queue for the next time.
            let _ = zfs.stop();
            return;
        }
        for n in known.iter().filter(|n| n.unlinked) {
            if !self.is_known_elsewhere(n.object, n.generation) {
                zfs.let_go(n.object);
            }
        }
        let _ = zfs.reap();
    }

    /// Finds what a node means; an object of the head as soon as the file system runs.
    #[inline]
    pub(crate) fn resolve(&self, by: &dyn Caller, node: u64) -> Result<Node<'_>> {
        if !ctldir::is_ours(node) {
            let (zfs, z) = self.head(by, node)?;
            return Ok(Node::Object(zfs, z));
        }
        Ok(match self.served.ctl.node(node)? {
            ctldir::Node::Dir(d) => Node::Dir(d),
            ctldir::Node::File(t, z) => Node::File(t, z),
            ctldir::Node::Volume(t, v) => Node::Volume(t, v),
        })
    }

    /// An object of the head, as soon as the file system runs.
    #[inline]
    pub(crate) fn head(&self, by: &dyn Caller, node: u64) -> Result<(Running<'_>, Arc<Znode>)> {
        let zfs = self.served.gate.enter(by)?;
        let z = self.nodes.get(&zfs, node)?;
        Ok((zfs, z))
    }

    /// Whether a client of another door knows an object.
    fn is_known_elsewhere(&self, object: u64, generation: u32) -> bool {
        if !self.served.has_others() {
            return false;
        }
        let mut known = false;
        self.served.each_door(|d| {
            let other = !std::ptr::eq(&*d, self);
            known |= other && d.nodes.id_of(object, generation).is_some();
        });
        known
    }

    /// Handles dropped lookups of a node.
    pub(crate) fn forget_node(&self, zfs: &Zfs, node: u64, nlookup: u64) {
        let Some(Forgotten { unlinked, doomed }) = self.nodes.forget(node, nlookup) else {
            return;
        };
        let freed = unlinked.is_some_and(|(object, gen)| {
            !self.is_known_elsewhere(object, gen) && zfs.let_go(object)
        });
        if freed || doomed {
            let _ = zfs.reap();
        }
    }

    /// Handles the lookups that were dropped while the file system was suspended.
    pub(crate) fn forget_noted(&self, zfs: &Zfs) {
        let noted = std::mem::take(&mut *self.forgotten.acquire());
        for (node, nlookup) in noted {
            self.forget_node(zfs, node, nlookup);
        }
    }

    /// Whether a client has a file of it open.
    pub fn has_open_files(&self) -> bool {
        self.nodes.known().iter().any(|n| n.open)
    }

    /// Clients drop `nlookup` of the lookups that they were given for a node.
    pub fn forget(&self, node: u64, nlookup: u64) {
        if ctldir::is_ours(node) {
            return;
        }
        match self.served.gate.try_enter() {
            Some(zfs) => self.forget_node(&zfs, node, nlookup),
            None => {
                self.forgotten.acquire().push((node, nlookup));
                // The file system may run again by now.
                if let Some(zfs) = self.served.gate.try_enter() {
                    self.forget_noted(&zfs);
                }
            }
        }
    }
}
