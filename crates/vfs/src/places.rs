//! What a node means beyond the life of a door: for clients whose file handles outlive it, and the daemon.
//!
//! A [`Place`] names an object by its number and generation, of the head or of a snapshot. The client may have made it up:
//! [`Door::find`] believes nothing of it, and leads nowhere but into the head and into snapshots that `.zfs` shows.

use crate::answers::Entry;
use crate::caller::Caller;
use crate::ctldir::{self, Dir};
use crate::door::Door;
use crate::snapshots::Key;
use base::{Kind, Result};
use zpl::attr::flag;

/// Where an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// An object of the head.
    Head {
        /// Object number.
        object: u64,
        /// Generation of the object.
        generation: u32,
    },
    /// A directory of `.zfs` itself.
    Control(Dir),
    /// An object of a snapshot.
    Snapshot {
        /// The snapshot.
        key: Key,
        /// Object number.
        object: u64,
        /// Generation of the object.
        generation: u32,
    },
}

/// What an object that is not to be had through a handle is for its client.
fn stale(e: base::Error) -> base::Error {
    match e.kind {
        Kind::Io | Kind::Checksum | Kind::Suspended | Kind::NoMemory => e,
        _ => Kind::Stale.into(),
    }
}

impl Door {
    /// The place of a node that was just found; none of a volume.
    pub fn place(&self, e: &Entry) -> Option<Place> {
        if !ctldir::is_ours(e.node) {
            let (object, generation) = self.nodes.object_of(e.node)?;
            return Some(Place::Head { object, generation });
        }
        match self.served.ctl.node(e.node).ok()? {
            ctldir::Node::Dir(dir) => Some(Place::Control(dir)),
            ctldir::Node::File(tree, z) => Some(Place::Snapshot {
                key: tree.key(),
                object: z.object,
                generation: z.gen as u32,
            }),
            ctldir::Node::Volume(..) => None,
        }
    }

    /// The node of a place; clients have one more lookup of it.
    ///
    /// # Errors
    /// `Kind::Stale` if there is no such object, or another one; `Kind::Io` if it cannot be read.
    pub fn find(&self, by: &dyn Caller, place: &Place) -> Result<Entry> {
        match *place {
            Place::Head { object, generation } => {
                let zfs = self.served.gate.enter(by)?;
                let z = zfs.get_generation(object, generation).map_err(stale)?;
                // Directories of extended attributes, and what is in them, have no names.
                if z.fixed().flags & flag::XATTR != 0 {
                    return Err(Kind::Stale.into());
                }
                Ok(self.entry(&zfs, &z))
            }
            Place::Control(_) if self.is_ctl_off() => Err(Kind::Stale.into()),
            Place::Control(dir) => Ok(self.dir_entry(dir)),
            Place::Snapshot {
                key,
                object,
                generation,
            } => {
                if self.is_ctl_off() {
                    return Err(Kind::Stale.into());
                }
                let tree = self.served.ctl.shown(key).map_err(stale)?;
                let zfs = tree.zfs().ok_or(Kind::Stale)?;
                let z = zfs.get_generation(object, generation).map_err(stale)?;
                if z.fixed().flags & flag::XATTR != 0 {
                    return Err(Kind::Stale.into());
                }
                self.file_entry(&tree, &z)
            }
        }
    }

    /// Has the clients of other doors hand on what they have written to a file and keep: what is asked of it next is true.
    pub fn collect_written(&self, node: u64) {
        if !ctldir::is_ours(node) {
            self.collect(node);
        }
    }
}
