//! Suspending a file system in service, and resuming it as another state of it: a rollback, a receive.
//!
//! 1. While it is suspended every request that concerns the head waits (`gate.rs`); nothing uses its object set.
//! 2. After it was resumed as another state the clients of every door have forgotten whatever may not be true of it:
//!    attributes, pages, listings and names.
//! 3. Pages that were in a client's cache never reach the new state: a page holds bytes of the old one
//!    beside those that were written. Until the pages of a node are dropped, those that are written back
//!    are taken and thrown away, as if they had been written before the suspension, and `write(2)` waits.
//! 4. Clients with a write-back cache keep size and times of regular files, and take no others from the
//!    server. A node whose file differs in these and that nobody has open is retired: whoever looks the
//!    file up gets another node. Who has it open goes on: the size is set by a truncation through the
//!    client that changes nothing here, with the modification time ([`Subscriber::tell`]); the change time cannot
//!    be set. So the node is retired with its last open description. Where nothing can be truncated (the
//!    mount of an ordinary user, a read-only one) a file may only grow; handles of one that shrinks fail
//!    with ESTALE.
//! 5. The inode of a directory that was removed stays removed for clients: nothing can be in it. When
//!    the directory is back its node is retired.
//!
//! Telling makes clients wait for requests and for locks that requests hold. So they are told
//! when requests are let in again, and by a thread that serves none.

use crate::door::{Door, Served};
use crate::nodes::{KnownNode, What, ROOT};
use crate::subscriber::{Subscriber, Truth};
use base::mutation::{mutated, Mutation};
use base::sync::MutexExt;
use base::{bail, Result};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use zpl::{Time, Zfs, Znode};

/// How often pages of one node are dropped at most, while the client goes on to write some back.
const ROUNDS: usize = 5;

/// What a client with a write-back cache keeps of a regular file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Told {
    size: u64,
    mtime: Time,
    ctime: Time,
}

impl Told {
    fn of(z: &Znode) -> Told {
        let f = z.fixed();
        Told {
            size: f.size,
            mtime: f.mtime,
            ctime: f.ctime,
        }
    }
}

/// An open file of which a client keeps what is not true.
struct Wrong {
    node: KnownNode,
    /// The size the client has, if that is known.
    size: Option<u64>,
}

/// The names of a directory that clients know.
struct Names {
    node: KnownNode,
    /// Objects by name; none: they could not be read.
    names: Option<BTreeMap<Vec<u8>, u64>>,
}

fn names(zfs: &Zfs, dir: &Znode) -> Result<BTreeMap<Vec<u8>, u64>> {
    let mut out = BTreeMap::new();
    zfs.names(dir, |name, object| {
        out.insert(name.to_vec(), object);
        Ok(true)
    })?;
    Ok(out)
}

/// What the clients of a door may know, noted while the former state can be read.
struct Stock {
    door: Arc<Door>,
    listings: Vec<Names>,
    told: HashMap<u64, Told>,
}

/// What has changed for the clients of a door.
struct Changes {
    known: Vec<KnownNode>,
    /// Sizes, as clients have them, of open files that differ.
    differ: HashMap<u64, u64>,
    /// Objects whose nodes lead nowhere.
    gone: HashSet<u64>,
}

/// A suspended file system. It goes on as it is when this is dropped.
pub struct Suspended {
    served: Arc<Served>,
    zfs: Arc<Zfs>,
    stock: Vec<Stock>,
    /// Requests are let in again.
    running: bool,
}

impl Served {
    /// Keeps requests out of the file system and waits for those that are in. What clients have in
    /// their write-back caches stays there: have it written out before, or it is lost
    /// when another state takes the place of this one. Not to be called by a thread that serves
    /// requests.
    ///
    /// # Errors
    /// It is suspended already.
    pub fn suspend(self: &Arc<Self>) -> Result<Suspended> {
        let mut suspending = self.suspending.acquire();
        if std::mem::replace(&mut *suspending, true) {
            bail!(Busy, "the file system is suspended already");
        }
        drop(suspending);
        let mut s = Suspended {
            zfs: self.gate.close(),
            served: self.clone(),
            stock: Vec::new(),
            running: false,
        };
        let Suspended { zfs, stock, .. } = &mut s;
        self.each_door(|door| stock.push(Stock::take(door, zfs)));
        Ok(s)
    }
}

impl Stock {
    fn take(door: Arc<Door>, zfs: &Zfs) -> Stock {
        let (mut listings, mut told) = (Vec::new(), HashMap::new());
        let keeps = door.keeps_times.load(Ordering::Relaxed);
        for node in door.nodes.known() {
            let z = || door.nodes.get(zfs, node.id);
            match node.what {
                What::Directory if !door.served.names.is_zero() => listings.push(Names {
                    node,
                    names: z().and_then(|z| names(zfs, &z)).ok(),
                }),
                What::Regular if keeps => {
                    if let Ok(z) = z() {
                        told.insert(node.id, Told::of(&z));
                    }
                }
                _ => {}
            }
        }
        Stock {
            door,
            listings,
            told,
        }
    }

    /// The nodes of the door mean objects of another state from now on.
    fn lead(&self, zfs: &Zfs, root: &Arc<Znode>) -> Changes {
        let door = &self.door;
        let known = door.nodes.known();
        let keeps = door.keeps_times.load(Ordering::Relaxed);
        let differ = RefCell::new(HashMap::new());
        let nowhere = door.nodes.replace(zfs, root, &known, |n, z| match n.what {
            What::Directory => !n.unlinked,
            What::Regular if keeps => match self.told.get(&n.id) {
                Some(before) if *before == Told::of(z) => true,
                Some(before) if n.open => {
                    differ.borrow_mut().insert(n.id, before.size);
                    true
                }
                _ => false,
            },
            _ => true,
        });
        let files = known.iter().filter(|n| n.what == What::Regular);
        door.stale.set(files.map(|n| n.id));
        Changes {
            differ: differ.into_inner(),
            gone: nowhere.iter().map(|n| n.object).collect(),
            known,
        }
    }
}

impl Suspended {
    /// The suspended file system.
    pub fn zfs(&self) -> &Arc<Zfs> {
        &self.zfs
    }

    fn let_in(&mut self) {
        let gate = &self.served.gate;
        gate.open();
        for stock in &self.stock {
            if let Some(zfs) = gate.try_enter() {
                stock.door.forget_noted(&zfs);
            }
        }
        self.running = true;
    }

    /// Goes on with another state of the file system. The nodes that clients know mean the objects of the
    /// same number and generation in it, also those it keeps without links; requests for others fail with
    /// `Stale`. Call [`Zfs::start`] of it afterwards, and [`Zfs::stop`] of the former one never.
    ///
    /// Returns when clients have forgotten what may not be true any more. Not to be called by a thread that serves requests.
    ///
    /// # Errors
    /// The root directory cannot be read; the file system goes on as it was.
    pub fn resume(mut self, zfs: Arc<Zfs>) -> Result<()> {
        let root = zfs.root()?;
        let served = self.served.clone();
        served.keep_doomed(&zfs);
        let stock = std::mem::take(&mut self.stock);
        let mut changes: Vec<_> = stock.iter().map(|s| s.lead(&zfs, &root)).collect();
        served.ctl.set_root(root.object);
        served.gate.replace(zfs.clone());
        // Doors that were opened meanwhile. Those that are opened from now on begin with this state.
        served.each_door(|door| {
            if !stock.iter().any(|s| Arc::ptr_eq(&s.door, &door)) {
                door.lead_to(&zfs, &root);
            }
        });
        self.stock = stock;
        self.let_in();
        for (stock, changes) in self.stock.iter().zip(&mut changes) {
            let door = &stock.door;
            match door.clients() {
                Some(clients) => {
                    door.drop_contents(&**clients, &zfs, changes);
                    drop_names(&**clients, &zfs, &stock.listings, &changes.gone);
                }
                None => changes.known.iter().for_each(|n| door.stale.clean(n.id)),
            }
        }
        Ok(())
    }
}

impl Drop for Suspended {
    fn drop(&mut self) {
        if !self.running {
            self.let_in();
        }
        *self.served.suspending.acquire() = false;
    }
}

impl Door {
    /// Has clients forget attributes, pages and listings of all nodes they know, and tells them of those
    /// open files that differ. Objects of nodes that have to be retired meanwhile are
    /// added to those that are gone.
    fn drop_contents(&self, clients: &dyn Subscriber, zfs: &Arc<Zfs>, changes: &mut Changes) {
        let keeps = self.keeps_times.load(Ordering::Relaxed);
        // Without attributes they ask before they take a write.
        for n in &changes.known {
            clients.attributes(n.id);
        }
        let mut wrong = Vec::new();
        for n in &changes.known {
            let thrown_away = self.drop_pages_of(clients, n.id);
            let size = changes.differ.get(&n.id).copied();
            match thrown_away && keeps {
                false if size.is_none() => self.stale.clean(n.id),
                true if !n.open => {
                    self.give_up(n, &mut changes.gone);
                    self.stale.clean(n.id);
                }
                // The client may have changed it with what was thrown away.
                thrown_away => wrong.push(Wrong {
                    node: *n,
                    size: size.filter(|_| !thrown_away),
                }),
            }
        }
        self.tell_of(clients, zfs, &wrong, &mut changes.gone);
    }

    /// Has clients drop the pages of a node; whether some were written back and thrown away.
    fn drop_pages_of(&self, clients: &dyn Subscriber, node: u64) -> bool {
        let mut thrown_away = false;
        for _ in 0..ROUNDS {
            clients.content(node, None);
            if !self.stale.take_dropped(node) {
                break;
            }
            thrown_away = true;
        }
        thrown_away
    }

    fn give_up(&self, n: &KnownNode, gone: &mut HashSet<u64>) {
        self.nodes.retire(n.id, n.object, n.generation);
        gone.insert(n.object);
    }

    /// Tells clients size and modification time of open files. Those they cannot be told of are retired.
    fn tell_of(
        &self,
        clients: &dyn Subscriber,
        zfs: &Arc<Zfs>,
        wrong: &[Wrong],
        gone: &mut HashSet<u64>,
    ) {
        let (mut files, mut truths) = (Vec::new(), Vec::new());
        for w in wrong {
            match self.nodes.get(zfs, w.node.id) {
                Ok(z) => {
                    let now = Told::of(&z);
                    truths.push(Truth {
                        node: w.node.id,
                        generation: w.node.generation,
                        size: now.size,
                        mtime: now.mtime,
                    });
                    files.push((w, z));
                }
                Err(_) => {
                    self.give_up(&w.node, gone);
                    self.stale.clean(w.node.id);
                }
            }
        }
        let done = clients.tell(&truths, &|thread| self.stale.set_teller(thread));
        for ((w, z), told) in files.into_iter().zip(done) {
            if told || is_as_long(clients, zfs, w, &z) {
                self.nodes.distrust(w.node.id);
            } else {
                self.give_up(&w.node, gone);
            }
            clients.content(w.node.id, None);
            self.stale.clean(w.node.id);
        }
    }
}

/// Whether a client's size of a file is right, or could be made so: a byte put into its cache makes
/// a file as long as that, never shorter.
fn is_as_long(clients: &dyn Subscriber, zfs: &Zfs, w: &Wrong, z: &Arc<Znode>) -> bool {
    let now = Told::of(z).size;
    let mut last = [0];
    match w.size {
        Some(size) if size == now => true,
        Some(size) if size < now => {
            zfs.read(z, now - 1, &mut last).is_ok() && clients.grow(w.node.id, now - 1, &last)
        }
        _ => false,
    }
}

/// Has clients forget names that lead elsewhere, or to what is gone, and those they took for free.
fn drop_names(clients: &dyn Subscriber, zfs: &Zfs, listings: &[Names], gone: &HashSet<u64>) {
    if mutated(Mutation::NamesUnpublished) {
        return;
    }
    for l in listings {
        let dir = zfs.get_generation(l.node.object, l.node.generation);
        let dir = match l.node.id {
            ROOT => zfs.root(),
            _ => dir,
        };
        // A directory that is gone, or cannot be read, has no names any more.
        let now = dir.and_then(|z| names(zfs, &z)).unwrap_or_default();
        let Some(before) = &l.names else {
            // It is not known which there were.
            clients.all_names();
            continue;
        };
        let other = |(name, object): (&Vec<u8>, &u64)| {
            let same = now.get(name) == Some(object) && !gone.contains(object);
            (!same).then(|| name.clone())
        };
        let new = now.keys().filter(|n| !before.contains_key(*n)).cloned();
        for name in before.iter().filter_map(other).chain(new) {
            clients.name(l.node.id, &name);
        }
    }
}
