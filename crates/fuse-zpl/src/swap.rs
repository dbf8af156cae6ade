//! Suspending a mounted file system, and resuming it as another state of it: a rollback, a receive.
//!
//! 1. While it is suspended every request that concerns the head waits ([`crate::gate`]); nothing uses
//!    its object set.
//! 2. After it was resumed as another state the kernel has forgotten whatever may not be true of it:
//!    attributes, pages, listings and names.
//! 3. Pages that were in the kernel's cache never reach the new state: a page holds bytes of the old one
//!    beside those that were written. Until the pages of a node are dropped, those that are written back
//!    are taken and thrown away, as if they had been written before the suspension, and `write(2)` waits.
//! 4. Kernels with a write-back cache keep size and times of regular files, and take no others from the
//!    daemon. A node whose file differs in these and that nobody has open is retired: whoever looks the
//!    file up gets another node. Who has it open goes on: the size is set by a truncation through the
//!    mount that changes nothing here, with the modification time ([`fuse::tell`]); the change time cannot
//!    be set. So the node is retired with its last open description. Where nothing can be truncated (the
//!    mount of an ordinary user, a read-only one) a file may only grow; handles of one that shrinks fail
//!    with ESTALE.
//! 5. The inode of a directory that was removed stays removed for the kernel: nothing can be in it. When
//!    the directory is back its node is retired.
//!
//! Notifications make the kernel wait for requests and for locks that requests hold. So they are sent
//! when requests are let in again, and by a thread that serves none.

use crate::adapter::Adapter;
use crate::nodes::{KnownNode, What};
use base::sync::MutexExt;
use base::{bail, Result};
use fuse::Notifier;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use zpl::{Time, Zfs, Znode};

/// How often pages of one node are dropped at most, while the kernel goes on to write some back.
const ROUNDS: usize = 5;

/// What a kernel with a write-back cache keeps of a regular file.
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

/// An open file of which the kernel keeps what is not true.
struct Wrong {
    node: KnownNode,
    /// The size the kernel has, if that is known.
    size: Option<u64>,
}

/// The names of a directory the kernel knows.
struct Listing {
    node: KnownNode,
    /// Objects by name; none: they could not be read.
    names: Option<HashMap<Vec<u8>, u64>>,
}

fn names(zfs: &Zfs, dir: &Znode) -> Result<HashMap<Vec<u8>, u64>> {
    let mut out = HashMap::new();
    zfs.names(dir, |name, object| {
        out.insert(name.to_vec(), object);
        Ok(true)
    })?;
    Ok(out)
}

/// A suspended file system. It goes on as it is when this is dropped.
pub struct Suspended {
    adapter: Arc<Adapter>,
    zfs: Arc<Zfs>,
    listings: Vec<Listing>,
    told: HashMap<u64, Told>,
    /// Requests are let in again.
    running: bool,
}

impl Adapter {
    /// Keeps requests out of the file system and waits for those that are in. What the kernel has in
    /// its page cache stays there: have it written out before ([`crate::Written::take`]), or it is lost
    /// when another state takes the place of this one. Not to be called by a thread that serves
    /// requests.
    ///
    /// Errors: it is suspended already.
    pub fn suspend(self: &Arc<Self>) -> Result<Suspended> {
        let mut suspending = self.suspending.acquire();
        if std::mem::replace(&mut *suspending, true) {
            bail!(Busy, "the file system is suspended already");
        }
        drop(suspending);
        let mut s = Suspended {
            zfs: self.gate.close(),
            adapter: self.clone(),
            listings: Vec::new(),
            told: HashMap::new(),
            running: false,
        };
        s.take_stock();
        Ok(s)
    }

    /// Handles dropped lookups of a node.
    pub(crate) fn forget_node(&self, zfs: &Zfs, node: u64, nlookup: u64) {
        if self.nodes.forget(zfs, node, nlookup) {
            let _ = zfs.reap();
        }
    }

    /// Handles the lookups that were dropped while the file system was suspended.
    pub(crate) fn forget_noted(&self, zfs: &Zfs) {
        for (node, nlookup) in self.gate.forgotten() {
            self.forget_node(zfs, node, nlookup);
        }
    }
}

impl Suspended {
    /// The suspended file system.
    pub fn zfs(&self) -> &Arc<Zfs> {
        &self.zfs
    }

    fn let_in(&mut self) {
        let a = &self.adapter;
        a.gate.open();
        if let Some(zfs) = a.gate.try_enter() {
            a.forget_noted(&zfs);
        }
        self.running = true;
    }

    /// Notes what the kernel may know, while this state can be read.
    fn take_stock(&mut self) {
        let a = &self.adapter;
        let keeps = a.kernel_keeps_times.load(Ordering::Relaxed);
        for node in a.nodes.known() {
            let z = || a.nodes.get(&self.zfs, node.id);
            match node.what {
                What::Directory if !a.names.is_zero() => self.listings.push(Listing {
                    node,
                    names: z().and_then(|z| names(&self.zfs, &z)).ok(),
                }),
                What::Regular if keeps => {
                    if let Ok(z) = z() {
                        self.told.insert(node.id, Told::of(&z));
                    }
                }
                _ => {}
            }
        }
    }

    /// Goes on with another state of the file system. The nodes the kernel knows mean the objects of the
    /// same number and generation in it, also those it keeps without links; requests for others fail with
    /// ESTALE. Call [`Zfs::start`] of it afterwards, and [`Zfs::stop`] of the former one never.
    ///
    /// Through `mount` the kernel is told of open files. Returns when it has forgotten what may not be
    /// true any more. Not to be called by a thread that serves requests.
    ///
    /// Errors: the root directory cannot be read; the file system goes on as it was.
    pub fn resume(mut self, zfs: Arc<Zfs>, mount: &fuse::Mount) -> Result<()> {
        let root = zfs.root()?;
        let a = self.adapter.clone();
        let known = a.nodes.known();
        a.nodes.keep_doomed(&zfs);
        let told = std::mem::take(&mut self.told);
        let keeps = a.kernel_keeps_times.load(Ordering::Relaxed);
        let differ = RefCell::new(HashMap::new());
        let nowhere = a.nodes.replace(&zfs, &root, &known, |n, z| match n.what {
            What::Directory => !n.unlinked,
            What::Regular if keeps => match told.get(&n.id) {
                Some(before) if *before == Told::of(z) => true,
                Some(before) if n.open => {
                    differ.borrow_mut().insert(n.id, before.size);
                    true
                }
                _ => false,
            },
            _ => true,
        });
        let differ = differ.into_inner();
        let files = known.iter().filter(|n| n.what == What::Regular);
        a.stale.set(files.map(|n| n.id));
        a.ctl.set_root(root.object);
        a.gate.replace(zfs.clone());
        self.let_in();
        let mut gone: HashSet<u64> = nowhere.iter().map(|n| n.object).collect();
        match a.notifier.get() {
            Some(kernel) => {
                a.drop_contents(kernel, mount, &zfs, (&known, &differ), &mut gone);
                a.drop_names(kernel, &zfs, &self.listings, &gone);
            }
            None => known.iter().for_each(|n| a.stale.clean(n.id)),
        }
        Ok(())
    }
}

impl Drop for Suspended {
    fn drop(&mut self) {
        if !self.running {
            self.let_in();
        }
        *self.adapter.suspending.acquire() = false;
    }
}

impl Adapter {
    /// Has the kernel forget attributes, pages and listings of all nodes it knows, and tells it of those
    /// open files that differ (their sizes before). Objects of nodes that have to be retired meanwhile are
    /// added to `gone`. Failures mean that the mount has ended, or pages the kernel cannot get rid of
    /// because nobody takes them.
    fn drop_contents(
        &self,
        kernel: &Notifier,
        mount: &fuse::Mount,
        zfs: &Arc<Zfs>,
        (known, differ): (&[KnownNode], &HashMap<u64, u64>),
        gone: &mut HashSet<u64>,
    ) {
        let keeps = self.kernel_keeps_times.load(Ordering::Relaxed);
        // Without attributes it asks before it takes a write.
        for n in known {
            let _ = kernel.inval_inode(n.id, -1, 0);
        }
        let mut wrong = Vec::new();
        for n in known {
            let thrown_away = self.drop_pages_of(kernel, n.id);
            let size = differ.get(&n.id).copied();
            match thrown_away && keeps {
                false if size.is_none() => self.stale.clean(n.id),
                true if !n.open => {
                    self.give_up(n, gone);
                    self.stale.clean(n.id);
                }
                // The kernel may have changed it with what was thrown away.
                thrown_away => wrong.push(Wrong {
                    node: *n,
                    size: size.filter(|_| !thrown_away),
                }),
            }
        }
        self.tell_of(kernel, mount, zfs, &wrong, gone);
    }

    /// Has the kernel drop the pages of a node; whether some were written back and thrown away.
    fn drop_pages_of(&self, kernel: &Notifier, node: u64) -> bool {
        let mut thrown_away = false;
        for _ in 0..ROUNDS {
            let _ = kernel.inval_inode(node, 0, 0);
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

    /// Tells the kernel size and modification time of open files. Those it cannot be told of are retired.
    fn tell_of(
        &self,
        kernel: &Notifier,
        mount: &fuse::Mount,
        zfs: &Arc<Zfs>,
        wrong: &[Wrong],
        gone: &mut HashSet<u64>,
    ) {
        let (mut files, mut truths) = (Vec::new(), Vec::new());
        for w in wrong {
            match self.nodes.get(zfs, w.node.id) {
                Ok(z) => {
                    let now = Told::of(&z);
                    truths.push(fuse::Truth {
                        file: (w.node.id, w.node.generation),
                        size: now.size,
                        mtime: crate::convert::time(now.mtime),
                    });
                    files.push((w, z));
                }
                Err(_) => {
                    self.give_up(&w.node, gone);
                    self.stale.clean(w.node.id);
                }
            }
        }
        let done = fuse::tell(mount, &truths, &|thread| self.stale.set_teller(thread));
        for ((w, z), told) in files.into_iter().zip(done) {
            if told.is_ok() || self.is_as_long(kernel, zfs, w, &z) {
                self.nodes.distrust(w.node.id);
            } else {
                self.give_up(&w.node, gone);
            }
            let _ = kernel.inval_inode(w.node.id, 0, 0);
            self.stale.clean(w.node.id);
        }
    }

    /// Whether the kernel's size of a file is right, or could be made so: a byte put into its cache makes
    /// a file as long as that, never shorter.
    fn is_as_long(&self, kernel: &Notifier, zfs: &Zfs, w: &Wrong, z: &Arc<Znode>) -> bool {
        let now = Told::of(z).size;
        let mut last = [0];
        match w.size {
            Some(size) if size == now => true,
            Some(size) if size < now => {
                zfs.read(z, now - 1, &mut last).is_ok()
                    && kernel.store(w.node.id, now - 1, &last).is_ok()
            }
            _ => false,
        }
    }

    /// Has the kernel forget names that lead elsewhere, or to what is gone, and those it took for free.
    fn drop_names(&self, kernel: &Notifier, zfs: &Zfs, listings: &[Listing], gone: &HashSet<u64>) {
        for l in listings {
            let dir = zfs.get_generation(l.node.object, l.node.generation);
            let dir = match l.node.id {
                fuse::ROOT => zfs.root(),
                _ => dir,
            };
            // A directory that is gone, or cannot be read, has no names any more.
            let now = dir.and_then(|z| names(zfs, &z)).unwrap_or_default();
            let Some(before) = &l.names else {
                // It is not known which there were.
                let _ = kernel.inc_epoch();
                continue;
            };
            let other = |(name, object): (&Vec<u8>, &u64)| {
                let same = now.get(name) == Some(object) && !gone.contains(object);
                (!same).then(|| name.clone())
            };
            let new = now.keys().filter(|n| !before.contains_key(*n)).cloned();
            for name in before.iter().filter_map(other).chain(new) {
                let _ = kernel.inval_entry(l.node.id, &name);
            }
        }
    }
}
