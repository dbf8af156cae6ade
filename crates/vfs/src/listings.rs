//! Listings that clients keep of directories which they open without asking
//! ([`Door::lists_unasked`]). Such a client is a kernel.
//!
//! Nobody hears of a listing that comes from the kernel's cache. So:
//!
//! 1. The kernel keeps a listing of a directory of the head only while listing would not change the access time. A READDIR marks the
//!    node. When the kernel asks for the attributes of a marked node whose access time is due, the listing is dropped.
//! 2. The kernel asks for attributes before it opens a directory (it checks permissions), as soon as those it has are out of date.
//!    They are valid until the access time is due, for a day at most. Whatever makes it due sooner (a change of attributes, other
//!    properties) has the kernel forget them.
//! 3. A change of names makes the kernel drop the listing by itself.
//! 4. Attributes of directories of `.zfs` are never valid: each opening of one asks, and gets a new listing.
//! 5. A listing of such a directory stays as it was at its first READDIR. The position says in which list the next one goes on.
//!
//! Dropping a listing waits for no request, since nothing of it is ever written back. It is done outside of the gate all the same.

use crate::control_lists::List;
use crate::ctldir::Dir;
use crate::door::{Door, Node};
use base::sync::MutexExt;
use base::Result;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;
use zpl::{Cred, Zfs, Znode};

impl Door {
    /// From now on clients open directories without asking: handle 0 is everywhere, and they ask for the attributes of a directory
    /// before they use a listing they have.
    pub fn lists_unasked(&self, unasked: bool) {
        self.lists_unasked.store(unasked, Ordering::Relaxed);
    }

    fn is_unasked(&self) -> bool {
        self.lists_unasked.load(Ordering::Relaxed)
    }

    /// The list of a directory of `.zfs` that is open under a handle (0: under none), its number, and the first line wanted.
    pub(crate) fn control_list(&self, dir: Dir, fh: u64, at: u64) -> Result<(u64, List, usize)> {
        let served = &self.served;
        let new = || Ok(served.shared.share(dir, served.ctl.list(dir)?));
        if fh == 0 {
            return self.control_lists.at(at, new);
        }
        let list = served.lists.acquire().get(&fh).cloned();
        let list = list.map_or_else(new, Ok)?;
        Ok((0, list, usize::try_from(at).unwrap_or(usize::MAX)))
    }

    /// The kernel is about to get a part of a directory's listing.
    pub(crate) fn listing_begins(&self, n: &Node<'_>, node: u64, fh: u64) {
        if !self.is_unasked() {
            return;
        }
        match n {
            Node::Object(..) => {
                self.nodes.set_listed(node, true);
            }
            Node::Dir(d) if fh == 0 => self.control_lists.listed(*d),
            _ => {}
        }
    }

    /// The part was read, and is about to be answered. Where the access time is due all the same (the directory was opened with
    /// O_NOATIME, or each listing counts), the next opening is to ask.
    pub(crate) fn listing_ends(&self, n: &Node<'_>, node: u64, noatime: bool) {
        let Node::Object(zfs, z) = n else {
            return;
        };
        if !noatime {
            zfs.touch_atime(z);
        }
        if self.is_unasked() && zfs.atime_due(z) {
            self.ask_again(node);
        }
    }

    /// How long attributes of a directory may be valid.
    pub(crate) fn listing_ttl(&self, zfs: &Zfs, node: u64, z: &Znode) -> Duration {
        if !self.is_unasked() || !z.is_dir() {
            return Duration::MAX;
        }
        match zfs.atime_due_after(z) {
            Duration::ZERO if self.nodes.is_listed(node) => Duration::ZERO,
            // Listing it comes first, and is heard of.
            Duration::ZERO => zpl::A_DAY,
            after => after,
        }
    }

    /// Whether clients have a listing of the node that is to be dropped ([`Door::drop_listing`]), since one asks for its attributes.
    pub(crate) fn take_old_listing(&self, n: &Node<'_>, node: u64) -> bool {
        if !self.is_unasked() {
            return false;
        }
        match n {
            Node::Object(zfs, z) => {
                z.is_dir()
                    && self.nodes.is_listed(node)
                    && zfs.atime_due(z)
                    && self.nodes.set_listed(node, false)
            }
            Node::Dir(d) => self.control_lists.take_listed(*d),
            _ => false,
        }
    }

    /// Has the kernel drop the listing of a node that the request being served keeps in use.
    pub(crate) fn drop_listing(&self, node: u64) {
        if let Some(clients) = self.clients() {
            clients.content(node, None);
        }
    }

    /// Names in a directory have changed on behalf of the kernel, which drops its listing by itself.
    pub(crate) fn names_changed(&self, node: u64) {
        if self.is_unasked() {
            self.nodes.set_listed(node, false);
        }
    }

    /// Attributes of a node have changed in a request whose answer has none.
    pub(crate) fn attributes_changed(&self, node: u64) {
        if self.is_unasked() && self.nodes.is_listed(node) {
            self.ask_again(node);
        }
    }

    /// The same for what has a new name, which changes the attributes of directories, too.
    pub(crate) fn moved(&self, zfs: &Zfs, dir: &Arc<Znode>, name: &[u8]) {
        // Each directory in it is a link to it.
        if !self.is_unasked() || dir.fixed().links <= 2 {
            return;
        }
        let Ok(z) = zfs.lookup(dir, name, &Cred::root()) else {
            return;
        };
        if let Some(node) = z
            .is_dir()
            .then(|| self.nodes.id_of(z.object, z.gen as u32))
            .flatten()
        {
            self.attributes_changed(node);
        }
    }

    fn ask_again(&self, node: u64) {
        if let Some(clients) = self.clients() {
            clients.attributes(node);
        }
    }

    /// Other properties hold: what a listing shows, or which access times change by it, may be different. Not to be called by a
    /// thread that serves requests.
    pub(crate) fn properties_changed(&self) {
        if !self.is_unasked() {
            return;
        }
        for n in self.nodes.take_listed() {
            self.drop_listing(n);
        }
    }
}
