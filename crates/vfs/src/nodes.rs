//! The nodes that the clients of a door know.
//!
//! They may know millions, so one costs a few words here and no more: its id says which
//! object of which generation it is. Znodes are kept for those in use lately, up to a limit that
//! all doors share; for the others they are loaded again when a request comes. An object without
//! links, whose last users the clients are, stays by its number.

use base::mutation::{mutated, Mutation};
use base::sync::MutexExt;
use base::Kind;
use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use zpl::{Zfs, Znode};

/// Node id of the root of the head, at every door.
pub const ROOT: u64 = 1;
const SHARDS: usize = 16;
/// Znodes every shard may keep whatever the other doors do.
const LEAST: usize = 4;
/// Object numbers have 48 bits; above them are bits of the generation.
pub(crate) const OBJECT_BITS: u32 = 48;
/// Bits of the generation that an id holds.
const GENERATIONS: u32 = 0x7fff;
/// The same at a door that is part of a view, whose ids name a file system, too (`view_ids.rs`).
pub(crate) const GENERATIONS_IN_VIEW: u32 = 0x1f;
/// Bits of object numbers there. Objects that need more have counted ids.
pub(crate) const OBJECTS_IN_VIEW: u32 = 34;
/// An id from a counter: object and generation did not make a unique one, or did not fit.
pub(crate) const COUNTED: u64 = 1 << 63;

/// How many znodes are kept for the nodes of clients, and how many may be. Memory is one for the
/// whole process, and so are these.
static KEPT: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(16 << 10);

/// Sets how many znodes all doors together keep.
pub fn set_limit(most: usize) {
    MOST.store(most, Ordering::Relaxed);
}

#[derive(Clone, Copy)]
struct Known {
    generation: u32,
    /// Saturates; a node that was looked up so often stays until the door is closed.
    lookups: u32,
    /// Open descriptions; saturates as well. Of a directory, which is opened without a message: 1 if clients may have a listing
    /// of it.
    opens: u32,
    what: What,
    /// Without links when it was last seen: the object stays until the clients forget it.
    unlinked: bool,
    /// Requests for it fail: clients keep of it what is not true any more. Its object has another
    /// id for whoever looks it up.
    retired: bool,
    /// Clients keep times of it that are not those of its object. It is retired with its last
    /// open description.
    untrue: bool,
}

/// What a node is, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Directory,
    Regular,
    Other,
}

/// A node that clients know, by the object it means.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KnownNode {
    /// Node id, as clients have it.
    pub id: u64,
    /// Object number.
    pub object: u64,
    /// Generation of the object.
    pub generation: u32,
    /// Kind of the node.
    pub what: What,
    /// Clients saw its last link go.
    pub unlinked: bool,
    /// Somebody has it open.
    pub open: bool,
}

struct Kept {
    z: Arc<Znode>,
    /// Used since the hand last came by.
    used: bool,
}

#[derive(Default)]
struct Shard {
    known: HashMap<u64, Known>,
    kept: HashMap<u64, Kept>,
    /// Kept nodes in the order the hand visits them; may hold ids that are gone.
    ring: VecDeque<u64>,
}

impl Known {
    fn is_listed(&self) -> bool {
        self.what == What::Directory && self.opens != 0
    }
}

impl Shard {
    /// Takes the marks of all directories that have one.
    fn unlist(&mut self, mut each: impl FnMut(u64)) {
        for (id, k) in self.known.iter_mut().filter(|(_, k)| k.is_listed()) {
            k.opens = 0;
            each(*id);
        }
    }
}

/// Counted ids, and back.
#[derive(Default)]
struct Counted {
    ids: HashMap<(u64, u32), u64>,
    objects: HashMap<u64, u64>,
}

fn what(z: &Znode) -> What {
    match z.mode() {
        m if zpl::attr::mode::is_dir(m) => What::Directory,
        m if zpl::attr::mode::is_reg(m) => What::Regular,
        _ => What::Other,
    }
}

/// A node that all clients of a door have forgotten.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Forgotten {
    /// The object, if it had no links when it was last seen, and its generation.
    pub unlinked: Option<(u64, u32)>,
    /// Its znode was kept here, and its object has no links.
    pub doomed: bool,
}

/// The nodes of one door.
pub struct Nodes {
    /// Object of the root.
    root: AtomicU64,
    /// Bits of the generation that go into ids.
    generations: u32,
    /// The largest object that does.
    most_object: u64,
    shards: [Mutex<Shard>; SHARDS],
    counted: Mutex<Counted>,
    next: AtomicU64,
    hash: RandomState,
}

impl Nodes {
    /// Knows the root only. `in_view`: ids leave room for the number of a file system.
    pub fn new(root: &Arc<Znode>, in_view: bool) -> Nodes {
        let n = Nodes {
            root: root.object.into(),
            generations: match in_view {
                true => GENERATIONS_IN_VIEW,
                false => GENERATIONS,
            },
            most_object: match in_view {
                true => (1 << OBJECTS_IN_VIEW) - 1,
                false => (1 << OBJECT_BITS) - 1,
            },
            shards: Default::default(),
            counted: Mutex::default(),
            next: AtomicU64::new(COUNTED),
            hash: RandomState::new(),
        };
        n.enter(root);
        n
    }

    fn shard(&self, id: u64) -> &Mutex<Shard> {
        &self.shards[self.hash.hash_one(id) as usize % SHARDS]
    }

    /// The id object and generation make. Never that of the root, because object 1 is no file.
    fn id(&self, object: u64, generation: u32) -> u64 {
        if object == self.root.load(Ordering::Relaxed) {
            return ROOT;
        }
        object | u64::from(generation & self.generations) << OBJECT_BITS
    }

    /// The same, or a counted id for an object that does not fit.
    fn first_id(&self, object: u64, generation: u32) -> u64 {
        match object <= self.most_object {
            true => self.id(object, generation),
            false => self.counted_id(object, generation),
        }
    }

    fn object(&self, id: u64) -> Option<u64> {
        match id {
            ROOT => Some(self.root.load(Ordering::Relaxed)),
            _ if id & COUNTED == 0 => Some(id & ((1 << OBJECT_BITS) - 1)),
            _ => self.counted.acquire().objects.get(&id).copied(),
        }
    }

    /// An id nobody has. Object numbers come back after their objects are gone, ids do not while
    /// clients may still have them.
    fn counted_id(&self, object: u64, generation: u32) -> u64 {
        let mut c = self.counted.acquire();
        if let Some(id) = c.ids.get(&(object, generation)) {
            return *id;
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        c.ids.insert((object, generation), id);
        c.objects.insert(id, object);
        id
    }

    /// The node id of a znode, with one more lookup.
    pub fn enter(&self, z: &Arc<Znode>) -> u64 {
        let generation = z.gen as u32;
        let mut id = self.first_id(z.object, generation);
        loop {
            let mut s = self.shard(id).acquire();
            let k = s.known.entry(id).or_insert_with(|| Known {
                generation,
                lookups: 0,
                opens: 0,
                what: what(z),
                unlinked: false,
                retired: false,
                untrue: false,
            });
            if k.generation != generation || k.retired {
                // With the lock: what is retired is not buried before it has a successor.
                id = self.counted_id(z.object, generation);
                drop(s);
                continue;
            }
            if id & COUNTED != 0 && !self.is_current(id, z.object, generation) {
                // Forgotten since the id was found.
                if k.lookups == 0 {
                    s.known.remove(&id);
                }
                drop(s);
                id = self.first_id(z.object, generation);
                continue;
            }
            k.lookups = k.lookups.saturating_add(1);
            let out = self.keep(&mut s, id, z);
            drop(s);
            drop(out);
            return id;
        }
    }

    /// Keeps the znode of a known node; returns those that have to go for it.
    fn keep(&self, s: &mut Shard, id: u64, z: &Arc<Znode>) -> Vec<Arc<Znode>> {
        let mut out = Vec::new();
        if z.is_doomed() {
            // Nothing more is needed to find it again.
            z.keep_by_number();
            if let Some(k) = s.known.get_mut(&id) {
                k.unlinked = true;
            }
        }
        match s.kept.get_mut(&id) {
            Some(k) => {
                k.used = true;
                if !Arc::ptr_eq(&k.z, z) {
                    out.push(std::mem::replace(&mut k.z, z.clone()));
                }
            }
            None => {
                let kept = Kept {
                    z: z.clone(),
                    used: false,
                };
                s.kept.insert(id, kept);
                s.ring.push_back(id);
                KEPT.fetch_add(1, Ordering::Relaxed);
            }
        }
        while s.ring.len() > LEAST && KEPT.load(Ordering::Relaxed) > MOST.load(Ordering::Relaxed) {
            let Some(at) = s.ring.pop_front() else { break };
            match s.kept.get_mut(&at) {
                None => {}
                Some(k) if k.used => {
                    k.used = false;
                    s.ring.push_back(at);
                }
                Some(_) => {
                    out.extend(s.kept.remove(&at).map(|k| k.z));
                    KEPT.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
        out
    }

    /// The znode of a node; `Stale` if the id does not lead anywhere any more.
    pub fn get(&self, zfs: &Zfs, id: u64) -> base::Result<Arc<Znode>> {
        let generation = {
            let mut s = self.shard(id).acquire();
            let s = &mut *s;
            if let Some(k) = s.kept.get_mut(&id) {
                k.used = true;
                return Ok(k.z.clone());
            }
            match s.known.get(&id) {
                Some(k) if !k.retired => k.generation,
                _ => return Err(Kind::Stale.into()),
            }
        };
        let object = self.object(id).ok_or(Kind::Stale)?;
        let z = match mutated(Mutation::IdOfAnyGeneration) {
            true => zfs.get(object)?,
            false => zfs.get_generation(object, generation)?,
        };
        let mut s = self.shard(id).acquire();
        let out = match s.known.get(&id) {
            Some(k) if !k.retired => self.keep(&mut s, id, &z),
            _ => Vec::new(),
        };
        drop(s);
        drop(out);
        Ok(z)
    }

    /// The same for an id that a client has from a file handle (name_to_handle_at(2), an NFS
    /// server), perhaps of an earlier mount, and may have forgotten since. Which generation was meant
    /// the client checks, as far as the id does not say it.
    pub fn revive(&self, zfs: &Zfs, id: u64) -> base::Result<Arc<Znode>> {
        match self.get(zfs, id) {
            Err(e) if e.kind == Kind::Stale && id & COUNTED == 0 => {}
            r => return r,
        }
        if self.shard(id).acquire().known.contains_key(&id) {
            return Err(Kind::Stale.into());
        }
        let object = self.object(id).ok_or(Kind::Stale)?;
        match zfs.get(object) {
            Ok(z) if self.id(object, z.gen as u32) == id => Ok(z),
            Err(e) if e.kind == Kind::Io => Err(e),
            // What is there now is another file, or none.
            _ => Err(Kind::Stale.into()),
        }
    }

    /// Clients are to have one more open description of a node. False if it was retired meanwhile: what is written to it would
    /// go nowhere.
    #[must_use]
    pub(crate) fn opened(&self, id: u64) -> bool {
        match self.shard(id).acquire().known.get_mut(&id) {
            Some(k) if k.retired => false,
            Some(k) => {
                k.opens = k.opens.saturating_add(1);
                true
            }
            None => true,
        }
    }

    /// Whether clients may have a listing of the directory.
    pub(crate) fn is_listed(&self, id: u64) -> bool {
        let s = self.shard(id).acquire();
        s.known.get(&id).is_some_and(Known::is_listed)
    }

    /// Clients may have a listing of the directory from now on, or have none. Returns what was before.
    pub(crate) fn set_listed(&self, id: u64, listed: bool) -> bool {
        match self.shard(id).acquire().known.get_mut(&id) {
            Some(k) if k.what == What::Directory => {
                std::mem::replace(&mut k.opens, u32::from(listed)) != 0
            }
            _ => false,
        }
    }

    /// The directories of which clients may have a listing, which is to be dropped.
    pub(crate) fn take_listed(&self) -> Vec<u64> {
        let mut out = Vec::new();
        for s in &self.shards {
            s.acquire().unlist(|id| out.push(id));
        }
        out.sort_unstable();
        out
    }

    /// One less. With the last one goes a node of which clients keep untrue times.
    pub(crate) fn closed(&self, id: u64) {
        let mut s = self.shard(id).acquire();
        let Some(k) = s.known.get_mut(&id) else {
            return;
        };
        if k.opens < u32::MAX {
            k.opens = k.opens.saturating_sub(1);
        }
        let generation = (k.untrue && k.opens == 0 && !k.retired).then_some(k.generation);
        // Under the lock: whoever opens it meanwhile opens its successor.
        k.retired |= generation.is_some();
        drop(s);
        if let (Some(generation), Some(object)) = (generation, self.object(id)) {
            self.retire(id, object, generation);
        }
    }

    /// Clients keep times of the node that are not those of its object.
    pub(crate) fn distrust(&self, id: u64) {
        if let Some(k) = self.shard(id).acquire().known.get_mut(&id) {
            k.untrue = true;
        }
    }

    /// A regular file has another size or other times than clients keep of it. The node is retired, at once or, if it is open,
    /// with its last open description; whether it was. None: it is no regular file, or retired already.
    pub(crate) fn outdate(&self, id: u64) -> Option<bool> {
        let mut s = self.shard(id).acquire();
        let k = s.known.get_mut(&id)?;
        if k.what != What::Regular || k.retired {
            return None;
        }
        k.untrue = true;
        if k.opens > 0 {
            return Some(false);
        }
        // Under the lock: whoever opens it meanwhile opens its successor.
        k.retired = true;
        let generation = k.generation;
        drop(s);
        if let Some(object) = self.object(id) {
            self.retire(id, object, generation);
        }
        Some(true)
    }

    /// An object has lost its last link: if a client knows it, it stays until forgotten.
    pub fn pin(&self, z: &Arc<Znode>) {
        let generation = z.gen as u32;
        let mut id = self.id(z.object, generation);
        loop {
            let mut s = self.shard(id).acquire();
            match s.known.get(&id) {
                Some(k) if k.generation == generation && !k.retired => {
                    let out = self.keep(&mut s, id, z);
                    drop(s);
                    drop(out);
                    return;
                }
                // Known by another id, or one that does not fit.
                known if id & COUNTED == 0 && (known.is_some() || z.object > self.most_object) => {
                    drop(s);
                    match self.counted.acquire().ids.get(&(z.object, generation)) {
                        Some(other) => id = *other,
                        None => return,
                    }
                }
                _ => return,
            }
        }
    }

    /// Clients drop lookups of a node. Some if these were the last.
    pub(crate) fn forget(&self, id: u64, nlookup: u64) -> Option<Forgotten> {
        if id == ROOT {
            return None;
        }
        let mut s = self.shard(id).acquire();
        let k = s.known.get_mut(&id)?;
        if k.lookups == u32::MAX {
            return None;
        }
        k.lookups = k
            .lookups
            .saturating_sub(nlookup.min(u64::from(u32::MAX)) as u32);
        if k.lookups > 0 {
            return None;
        }
        let (generation, unlinked) = (k.generation, k.unlinked);
        if k.retired && self.has_successor(id, generation) {
            // While clients know the object by another id, they must not get this one again.
            return None;
        }
        let object = unlinked.then(|| self.object(id)).flatten();
        s.known.remove(&id);
        // Millions may have been known once.
        if s.known.capacity() > 1024 && s.known.len() < s.known.capacity() / 8 {
            let n = s.known.len() * 2;
            s.known.shrink_to(n);
        }
        let gone = s.kept.remove(&id);
        if gone.is_some() {
            KEPT.fetch_sub(1, Ordering::Relaxed);
        }
        if s.ring.len() > s.kept.len() * 2 + 64 {
            let Shard { ring, kept, .. } = &mut *s;
            ring.retain(|id| kept.contains_key(id));
        }
        let mut current = None;
        if id & COUNTED != 0 {
            // With the lock of the node: nobody is given the id while it is forgotten.
            let mut c = self.counted.acquire();
            let object = c.objects.remove(&id);
            current = object.filter(|o| c.ids.get(&(*o, generation)) == Some(&id));
            if let Some(object) = current {
                c.ids.remove(&(object, generation));
            }
        }
        drop(s);
        if let Some(object) = current {
            self.bury(self.id(object, generation));
        }
        Some(Forgotten {
            unlinked: object.map(|o| (o, generation)),
            doomed: gone.is_some_and(|k| k.z.is_doomed()),
        })
    }

    /// Whether the object of a node has a later id.
    fn has_successor(&self, id: u64, generation: u32) -> bool {
        id & COUNTED == 0
            && self.object(id).is_some_and(|object| {
                let c = self.counted.acquire();
                c.ids.contains_key(&(object, generation))
            })
    }

    /// Whether a counted id is the one that the object has now.
    fn is_current(&self, id: u64, object: u64, generation: u32) -> bool {
        let c = self.counted.acquire();
        c.ids.get(&(object, generation)) == Some(&id)
    }

    /// Forgets a retired node that clients have forgotten, if its object has no later id.
    fn bury(&self, id: u64) {
        let mut s = self.shard(id).acquire();
        let known = s.known.get(&id);
        if known
            .is_some_and(|k| k.retired && k.lookups == 0 && !self.has_successor(id, k.generation))
        {
            s.known.remove(&id);
        }
    }

    /// The id by which clients know an object.
    pub(crate) fn id_of(&self, object: u64, generation: u32) -> Option<u64> {
        let first = self.id(object, generation);
        let later = || {
            let c = self.counted.acquire();
            c.ids.get(&(object, generation)).copied()
        };
        let is_it = |id: u64| {
            let s = self.shard(id).acquire();
            let known = s.known.get(&id);
            known.is_some_and(|k| k.generation == generation && !k.retired)
        };
        match is_it(first) {
            true => Some(first),
            false => later().filter(|id| is_it(*id)),
        }
    }

    /// The same, or the id that they get when they ask for it; none: it would be a counted one.
    pub(crate) fn lasting_id(&self, object: u64, generation: u32) -> Option<u64> {
        let made = || (object <= self.most_object).then(|| self.id(object, generation));
        self.id_of(object, generation).or_else(made)
    }

    /// Object and generation of a node that clients know.
    pub(crate) fn object_of(&self, id: u64) -> Option<(u64, u32)> {
        let known = self.shard(id).acquire().known.get(&id).copied();
        Some((self.object(id)?, known?.generation))
    }

    /// Every node that clients know but those that are retired, by id.
    pub(crate) fn known(&self) -> Vec<KnownNode> {
        let mut out = Vec::new();
        for s in &self.shards {
            let s = s.acquire();
            let live = s.known.iter().filter(|(_, k)| !k.retired);
            out.extend(live.map(|(id, k)| KnownNode {
                id: *id,
                object: *id,
                generation: k.generation,
                what: k.what,
                unlinked: k.unlinked,
                open: k.opens > 0 && k.what != What::Directory,
            }));
        }
        out.retain_mut(|n| match self.object(n.id) {
            Some(object) => {
                n.object = object;
                true
            }
            None => false,
        });
        out.sort_unstable_by_key(|n| n.id);
        out
    }

    /// Another state of the file system takes the place of the one before. Nodes go on with the
    /// objects of the same numbers and generations, also with those that have no links there. `known` are
    /// all of them.
    ///
    /// `fits` says whether what clients keep of a node is true of its object. Returns the nodes
    /// that lead nowhere from now on: their objects are gone, or they do not fit and are retired.
    pub(crate) fn replace(
        &self,
        zfs: &Zfs,
        root: &Arc<Znode>,
        known: &[KnownNode],
        fits: impl Fn(&KnownNode, &Znode) -> bool,
    ) -> Vec<KnownNode> {
        self.root.store(root.object, Ordering::Relaxed);
        for s in &self.shards {
            let mut s = s.acquire();
            s.ring.clear();
            let kept = std::mem::take(&mut s.kept);
            KEPT.fetch_sub(kept.len(), Ordering::Relaxed);
            s.unlist(|_| ());
            drop(s);
            drop(kept);
        }
        let mut nowhere = Vec::new();
        for n in known {
            if n.id == ROOT {
                if let Some(k) = self.shard(n.id).acquire().known.get_mut(&n.id) {
                    k.generation = root.gen as u32;
                }
                continue;
            }
            match zfs.adopt(n.object, n.generation) {
                Ok(z) if fits(n, &z) => {
                    if let Some(k) = self.shard(n.id).acquire().known.get_mut(&n.id) {
                        k.unlinked = z.is_doomed();
                    }
                }
                Ok(_) => {
                    self.retire(n.id, n.object, n.generation);
                    nowhere.push(*n);
                }
                Err(_) => nowhere.push(*n),
            }
        }
        nowhere
    }

    /// Requests for a node fail from now on; its object has another id when it is looked up.
    pub(crate) fn retire(&self, id: u64, object: u64, generation: u32) {
        let mut s = self.shard(id).acquire();
        if let Some(k) = s.known.get_mut(&id) {
            k.retired = true;
        }
        let gone = s.kept.remove(&id);
        if gone.is_some() {
            KEPT.fetch_sub(1, Ordering::Relaxed);
        }
        drop(s);
        drop(gone);
        if id & COUNTED != 0 {
            let mut c = self.counted.acquire();
            if c.ids.get(&(object, generation)) == Some(&id) {
                c.ids.remove(&(object, generation));
            }
        }
    }

    /// The clients are gone: nothing is known any more.
    pub fn clear(&self) {
        for s in &self.shards {
            let gone = std::mem::take(&mut *s.acquire());
            KEPT.fetch_sub(gone.kept.len(), Ordering::Relaxed);
        }
        *self.counted.acquire() = Counted::default();
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Millions of files may be known, so this is a size that counts: two words beside the id.
    #[test]
    fn a_node_that_clients_know_costs_three_words() {
        assert!(size_of::<(u64, Known)>() <= 24);
    }
}
