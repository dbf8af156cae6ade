//! What doors tell each other: what one has changed, and what another still has to hand on.
//!
//! 1. A request publishes after it has left the gate, and asks before it enters: a client that is told, or asked, may send requests
//!    that wait there.
//! 2. A door is not told of what came through it: its clients know.
//! 3. A client with a write-back cache of its own that keeps sizes of files ([`Door::keeps_times`]) is told that the attributes have
//!    changed, and need not believe it. So two doors to one file system through which the same file is written at the same time
//!    want clients that do not.

use crate::door::Door;
use crate::nodes::ROOT;
use std::sync::Arc;

/// What a request has changed, by the ids of its own door.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change<'a> {
    /// Attributes of a node.
    Attributes(u64),
    /// The content of a node, and so its attributes.
    Content(u64),
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
            let (Change::Attributes(node) | Change::Content(node) | Change::Name(node, _)) =
                *change;
            self.others(node, |d, id| {
                let Some(clients) = d.clients() else { return };
                match change {
                    Change::Attributes(_) => clients.attributes(id),
                    Change::Content(_) => clients.content(id, None),
                    Change::Name(_, name) => {
                        clients.name(id, name);
                        clients.content(id, None);
                    }
                }
            });
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
