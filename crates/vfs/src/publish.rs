//! What doors tell each other: what one has changed, and what another still has to hand on.
//!
//! 1. A request publishes after it has left the gate, and asks before it enters: a client that is told, or asked, may send requests
//!    that wait there.
//! 2. A door is not told of what came through it: its clients know, but for one who was killed while he waited
//!    ([`Door::outcome_unknown`]).
//! 3. A client with a write-back cache that keeps sizes and times of regular files ([`Door::keeps_times`]) believes nobody else about
//!    them. So the node of a file that another door has changed is retired: who comes by its name gets another node, with what is
//!    true. One that is open goes on: what it lacks at the end is put into the client's cache, and it is retired with its last open
//!    description. If another door has cut it off it is retired at once, and open descriptions of it fail with ESTALE.

use crate::door::Door;
use crate::nodes::ROOT;
use crate::subscriber::Subscriber;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// What a request has changed, by the ids of its own door.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// Attributes of a node.
    Attributes(u64),
    /// The content of a node, and so its attributes.
    Content(u64),
    /// The size of a file was set, and so its content and attributes changed.
    Size(u64),
    /// A name of a directory, and so the directory and what the name leads to.
    Name(u64, &'a [u8]),
}

impl Door {
    /// Every other door with the id that it has for a node of this one.
    fn others(&self, node: u64, mut f: impl FnMut(&Arc<Door>, u64)) {
        let Some((object, generation)) = self.nodes.object_of(node) else {
            return;
        };
        self.served.each_door(|d| {
            let id = match node {
                ROOT => Some(ROOT),
                _ => d.nodes.id_of(object, generation),
            };
            if let Some(id) = id.filter(|_| !std::ptr::eq(&*d, self)) {
                f(&d, id);
            }
        });
    }

    /// Tells the clients of the other doors what a request has changed.
    #[inline]
    pub(crate) fn publish(&self, changes: &[Change<'_>]) {
        if self.served.has_others() {
            self.tell_others(changes);
        }
    }

    #[cold]
    fn tell_others(&self, changes: &[Change<'_>]) {
        for change in changes {
            let (Change::Attributes(node)
            | Change::Content(node)
            | Change::Size(node)
            | Change::Name(node, _)) = *change;
            self.others(node, |d, id| d.tell(id, change));
        }
    }

    /// Tells the clients of this door of a change of another one, or of one of their own whose outcome they were not told.
    fn tell(&self, id: u64, change: &Change<'_>) {
        let Some(clients) = self.clients() else {
            return;
        };
        match change {
            Change::Attributes(_) => clients.attributes(id),
            Change::Content(_) | Change::Size(_) => clients.content(id, None),
            Change::Name(_, name) => {
                clients.name(id, name);
                clients.content(id, None);
            }
        }
        if !matches!(change, Change::Name(..)) {
            self.outdate(&**clients, id, matches!(change, Change::Size(_)));
        }
    }

    /// A client has gone away from a request that has come to its end, and was not told how it ended. The clients are told of what
    /// it may have changed as if another door had.
    pub fn outcome_unknown(&self, change: &Change<'_>) {
        let (Change::Attributes(node)
        | Change::Content(node)
        | Change::Size(node)
        | Change::Name(node, _)) = *change;
        self.tell(node, change);
    }

    /// Clients that keep size and times of a node by themselves get a new node, as soon as may be.
    fn outdate(&self, clients: &dyn Subscriber, id: u64, cut: bool) {
        if !self.keeps_times.load(Ordering::Relaxed) {
            return;
        }
        match self.nodes.outdate(id) {
            // Who asks for attributes is told that it is stale, and comes by its name again.
            Some(true) => clients.attributes(id),
            Some(false) if cut => {
                if let Some((object, generation)) = self.nodes.object_of(id) {
                    self.nodes.retire(id, object, generation);
                }
                clients.attributes(id);
            }
            Some(false) => self.grow_at(clients, id),
            None => {}
        }
    }

    /// Puts the last byte of an open file into the cache of clients: they know then that it is as long.
    fn grow_at(&self, clients: &dyn Subscriber, id: u64) {
        let mut last = [0];
        let end = {
            let Some(zfs) = self.served.gate.try_enter() else {
                return;
            };
            let Ok(z) = self.nodes.get(&zfs, id) else {
                return;
            };
            let size = z.size();
            let read = size > 0 && zfs.read(&z, size - 1, &mut last).is_ok_and(|n| n == 1);
            read.then(|| size - 1)
        };
        if let Some(end) = end {
            clients.grow(id, end, &last);
        }
    }

    /// Has the clients of other doors hand on what they have written to a node and keep.
    #[inline]
    pub(crate) fn collect(&self, node: u64) {
        if self.served.has_others() {
            self.collect_from_others(node);
        }
    }

    #[cold]
    fn collect_from_others(&self, node: u64) {
        self.others(node, |d, id| d.settle(id));
    }

    /// Has clients write out (and forget) the pages of a node that may have newer ones than we.
    pub(crate) fn settle(&self, node: u64) {
        if let Some(clients) = self.clients().filter(|_| self.writers.is_open(node)) {
            clients.content(node, None);
        }
    }
}
