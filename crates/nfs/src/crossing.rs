//! File systems that are mounted inside a shared one.
//!
//! 1. The name of a mount point cannot be made, removed or renamed by clients. The kernel would take away what is mounted there.
//!    Nor can a directory be removed or replaced in which something is mounted.
//! 2. A name leads into the file system that is mounted there if the outer one is shared with `crossmnt` or the inner one with
//!    `nohide`, the inner one is shared, and the client may have it. Otherwise it leads to the directory below the mount.
//! 3. A listing has each mount point once, without handle and attributes, which would be those of the directory below. A mount
//!    point that the outer file system does not have (in a view) is listed if it can be crossed.

use crate::context::{By, Cx, Held};
use crate::exports::{access, Export, Inside};
use crate::handle::{FileSystem, Handle};
use base::{Kind, Result};
use vfs::{Lookup, Place, ROOT};
use zpl::Attr;

/// Positions in a listing behind all that the directory itself has. Those have fewer bits, or all of them.
pub const TAIL: u64 = 1 << 62;

/// The root of another file system.
pub struct Crossed {
    pub handle: Handle,
    pub attr: Attr,
}

/// A mount point in a directory.
pub struct Point {
    pub name: Vec<u8>,
    /// What is mounted there.
    pub fs: FileSystem,
}

impl Point {
    /// Position behind it in a listing.
    pub fn position(&self) -> u64 {
        TAIL | self.fs.number() >> 2
    }
}

impl Cx<'_> {
    /// The mount points in a directory, those of one name or all.
    pub fn points(&self, dir: &Held<'_>, name: Option<&[u8]>) -> Vec<Point> {
        let mut inside = self.shared.exports.inside(self.export.fs, name);
        inside.retain(|i| self.is_in(i, dir));
        let point = |mut i: Inside| {
            let name = i.way.pop()?;
            Some(Point { name, fs: i.fs })
        };
        inside.into_iter().filter_map(point).collect()
    }

    /// Whether a mount point is in a directory.
    fn is_in(&self, inside: &Inside, dir: &Held<'_>) -> bool {
        let by = By::nobody(self.client, &self.export.opened);
        let mut node = ROOT;
        let above = inside.way.len().saturating_sub(1);
        let mut held = Vec::new();
        for name in &inside.way[..above] {
            match self.door.lookup(&by, node, name) {
                Ok(Lookup::Found(entry)) => {
                    node = entry.node;
                    held.push(self.held(entry));
                }
                _ => return false,
            }
        }
        node == dir.entry.node
    }

    /// Refuses a name that something is mounted at.
    pub fn not_mounted(&self, dir: &Held<'_>, name: &[u8], otherwise: Kind) -> Result<()> {
        match self.points(dir, Some(name)).is_empty() {
            true => Ok(()),
            false => Err(otherwise.into()),
        }
    }

    /// Refuses the name of a directory in which something is mounted: in a view that is nothing on the disk, which would keep the
    /// directory from being removed.
    pub fn holds_nothing(&self, dir: &Held<'_>, name: &[u8], otherwise: Kind) -> Result<()> {
        let by = By::nobody(self.client, &self.export.opened);
        let Lookup::Found(entry) = self.door.lookup(&by, dir.entry.node, name)? else {
            return Ok(());
        };
        let there = self.held(entry);
        let place = self.door.place(&there.entry);
        let holds = |p: &Place| self.shared.exports.holds_mounts(self.export.fs, p);
        match place.as_ref().is_some_and(holds) {
            true => Err(otherwise.into()),
            false => Ok(()),
        }
    }

    /// The shared file system that a client comes to at a mount point, if it may.
    fn beyond(&self, fs: FileSystem) -> Option<Export> {
        let beyond = self.shared.exports.find(fs)?;
        let crossed =
            self.export.share.other("crossmnt").is_some() || beyond.share.other("nohide").is_some();
        access(&beyond.share, self.client.address, &self.shared.names).filter(|_| crossed)?;
        Some(beyond)
    }

    /// Whether a client comes to what is mounted somewhere.
    pub fn can_cross(&self, point: &Point) -> bool {
        self.beyond(point.fs).is_some()
    }

    /// What a name leads to in another file system.
    pub fn cross(&self, dir: &Held<'_>, name: &[u8]) -> Option<Crossed> {
        let point = self.points(dir, Some(name)).pop()?;
        let beyond = self.beyond(point.fs)?;
        let door = beyond.opened.enter()?;
        let by = By::nobody(self.client, &beyond.opened);
        let Lookup::Found(entry) = door.lookup(&by, ROOT, b".").ok()? else {
            return None;
        };
        let place = door.place(&entry);
        door.forget(entry.node, 1);
        Some(Crossed {
            handle: Handle {
                fs: beyond.fs,
                place: place?,
            },
            attr: entry.attr,
        })
    }
}
