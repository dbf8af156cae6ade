//! Node ids and inode numbers of a [`crate::View`]: which file system, and which node or object of it.
//!
//! A node id of a view, by its two highest bits:
//!
//! | Bits 63, 62 | Bits below |
//! |---|---|
//! | 0, any | 24 bits: number of the file system; 5 bits of the generation; 34 bits: object, or 1 for the root |
//! | 1, 0 | 24 bits: number of the file system; 38 bits: an id that its door has counted |
//! | 1, 1 | 22 bits: number of a snapshot or volume in this view, its dataset object as in `ctldir.rs`; 40 bits: object in it. 0: a directory of `.zfs`; 24 bits: number of the file system; 8 bits: which |
//!
//! 1. The file system that the view begins with has number 0, and its root is node 1.
//! 2. Another file system has the number of its dataset object, if that is below [`COUNTED_FROM`]. So an id means the same file in
//!    every view of the pool that begins with the same file system, in whatever order its file systems are mounted.
//! 3. Numbers from [`COUNTED_FROM`] are given one after the other: to datasets of larger objects, to directories that are on no disk,
//!    and to a file system that is mounted again while clients hold nodes of its last mount. What a client kept of them over a restart
//!    leads nowhere: the dataset is mixed into their generations ([`ViewIds::generation`]).
//! 4. An object that does not fit gets a counted id from its door (`nodes.rs`). What does not fit then has no id in a view
//!    (`Kind::Overflow`).
//!
//! An inode number is the object number of the first file system (number 0). In the others the dataset is mixed in, as it is in
//! snapshots: no two objects of the pool have one, and an object has the same as long as its dataset has its object in the pool.

use crate::ctldir::{self, Numbers, OURS};
use crate::nodes::{COUNTED, GENERATIONS_IN_VIEW, OBJECTS_IN_VIEW, OBJECT_BITS, ROOT};
use base::sync::RwLockExt;
use std::sync::{Arc, RwLock};

/// Bits of an object number in an id of a snapshot's node.
const TREE_OBJECTS: u32 = ctldir::OBJECT_BITS;
const TREE_OBJECT_MASK: u64 = (1 << TREE_OBJECTS) - 1;
/// Bits of an object number in an id without bit 63.
const OBJECTS: u32 = OBJECTS_IN_VIEW;
const OBJECT_MASK: u64 = (1 << OBJECTS) - 1;
/// Where the number of the file system begins in an id without bit 63.
const FILES: u32 = 39;
/// The same in a counted id.
const COUNTED_FILES: u32 = 38;
/// The same in the id of a directory of `.zfs`.
const CONTROL_FILES: u32 = 8;
/// Inode numbers that are kept free below the largest object number.
const CONTROL_INOS: u64 = 8;
/// Numbers are below it.
pub(crate) const MOST: u32 = 1 << 24;
/// Numbers below it are those of dataset objects.
pub(crate) const COUNTED_FROM: u32 = 1 << 23;

/// The snapshots and volumes that somebody has looked into, by file system and number there, numbered for one view: those that have
/// the number of their dataset object there have it here, too.
#[derive(Clone, Default)]
pub(crate) struct ViewTrees(Arc<RwLock<Numbers<(u32, u64)>>>);

impl ViewTrees {
    fn number(&self, of: (u32, u64)) -> Option<u64> {
        let known = self.0.acquire_read().known(&of);
        known.or_else(|| self.0.acquire_write().give(of, of.1))
    }

    fn of(&self, number: u64) -> Option<(u32, u64)> {
        self.0.acquire_read().of(number)
    }

    /// The dataset object that an id of the view names, if it is that of a snapshot or volume into which nobody has looked since the
    /// mount: a client may have kept it over a restart.
    pub(crate) fn unseen(&self, id: u64) -> Option<u64> {
        let tree = (id & !OURS) >> TREE_OBJECTS;
        let is_one = id & OURS == OURS && (1..ctldir::COUNTED_FROM).contains(&tree);
        (is_one && self.of(tree).is_none()).then_some(tree)
    }

    /// A snapshot or volume of a file system is seen, by its dataset object.
    pub(crate) fn see(&self, file_system: u32, object: u64) {
        let _ = self.number((file_system, object));
    }

    /// The file system and its node that an id of the view means.
    pub(crate) fn inside(&self, id: u64) -> Option<(u32, u64)> {
        const NUMBER: u64 = MOST as u64 - 1;
        if id & COUNTED == 0 {
            let number = (id >> FILES & NUMBER) as u32;
            let generation = id >> OBJECTS & u64::from(GENERATIONS_IN_VIEW);
            return Some((number, id & OBJECT_MASK | generation << OBJECT_BITS));
        }
        if id & OURS != OURS {
            let number = (id >> COUNTED_FILES & NUMBER) as u32;
            return Some((number, COUNTED | id & ((1 << COUNTED_FILES) - 1)));
        }
        let object = id & TREE_OBJECT_MASK;
        match (id & !OURS) >> TREE_OBJECTS {
            0 => {
                let number = (object >> CONTROL_FILES & NUMBER) as u32;
                Some((number, OURS | object & ((1 << CONTROL_FILES) - 1)))
            }
            tree => {
                let (number, tree) = self.of(tree)?;
                Some((number, OURS | tree << TREE_OBJECTS | object))
            }
        }
    }

    /// The id that a node of a file system has in the view; none: it does not fit.
    pub(crate) fn outside(&self, number: u32, node: u64) -> Option<u64> {
        let files = u64::from(number);
        if node == ROOT {
            return Some(root(number));
        }
        if node & COUNTED == 0 {
            let object = node & ((1 << OBJECT_BITS) - 1);
            let generation = node >> OBJECT_BITS;
            let fits = object <= OBJECT_MASK && generation <= u64::from(GENERATIONS_IN_VIEW);
            return fits.then_some(files << FILES | generation << OBJECTS | object);
        }
        if !ctldir::is_ours(node) {
            let count = node & !COUNTED;
            return (count >> COUNTED_FILES == 0)
                .then_some(COUNTED | files << COUNTED_FILES | count);
        }
        let object = node & TREE_OBJECT_MASK;
        match (node & !OURS) >> TREE_OBJECTS {
            0 => Some(OURS | files << CONTROL_FILES | object),
            tree => {
                let tree = self.number((number, tree))?;
                Some(OURS | tree << TREE_OBJECTS | object)
            }
        }
    }
}

/// Id of the root of a file system.
pub(crate) fn root(number: u32) -> u64 {
    u64::from(number) << FILES | ROOT
}

/// What is mixed into the generations of a file system: nothing where its number says which dataset it is.
pub(crate) fn salt(number: u32, dataset: u64) -> u32 {
    match number < COUNTED_FROM {
        true => 0,
        // The multiplier of a linear congruential generator (Knuth): close numbers get salts that differ in many bits.
        false => (dataset.wrapping_mul(6_364_136_223_846_793_005) >> 32) as u32 | 1,
    }
}

/// The ids of one file system in a view.
#[derive(Clone)]
pub struct ViewIds {
    number: u32,
    salt: u32,
    trees: ViewTrees,
}

impl ViewIds {
    pub(crate) fn new(number: u32, salt: u32, trees: &ViewTrees) -> ViewIds {
        ViewIds {
            number,
            salt,
            trees: trees.clone(),
        }
    }

    /// The id that a node of the file system has in the view; none: it does not fit.
    pub fn outside(&self, node: u64) -> Option<u64> {
        self.trees.outside(self.number, node)
    }

    /// The generation that an object has for clients of the view.
    pub fn generation(&self, generation: u32) -> u32 {
        generation ^ self.salt
    }

    /// Id of the root of the file system.
    pub fn root(&self) -> u64 {
        root(self.number)
    }
}

/// The ids of a view that is to be made: its first file system is made with [`ViewRoot::ids`].
#[derive(Clone, Default)]
pub struct ViewRoot(pub(crate) ViewTrees);

impl ViewRoot {
    /// The ids of the first file system.
    pub fn ids(&self) -> ViewIds {
        ViewIds::new(0, 0, &self.0)
    }
}

/// The inode number, in the view, of an object that has `ino` in its own file system, which is `dataset` of the pool (0: the first of
/// the view). `ours`: it was found below `.zfs`.
pub(crate) fn inode(dataset: u64, ours: bool, ino: u64) -> u64 {
    if dataset == 0 {
        return ino;
    }
    match (ctldir::control_ino(ino), ours) {
        // Above all objects, and below those of the first file system.
        (Some(which), _) => ctldir::inode(dataset, TREE_OBJECT_MASK - CONTROL_INOS - which),
        // Those of snapshots have the snapshot mixed in already.
        (None, true) => ino,
        (None, false) => ctldir::inode(dataset, ino),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ctldir::{dir_id, Dir, MOST_TREES};
    use std::collections::HashSet;

    #[test]
    fn an_id_leads_back_to_its_file_system_and_node() {
        let trees = ViewTrees::default();
        let snapshot = |tree: u64, object: u64| OURS | tree << TREE_OBJECTS | object;
        let nodes = [
            ROOT,
            7,
            OBJECT_MASK,
            7 | 0x1f << OBJECT_BITS,
            COUNTED,
            COUNTED | 12_345,
            dir_id(Dir::Root),
            dir_id(Dir::Snapshots),
            dir_id(Dir::Volumes),
            snapshot(1, 34),
            snapshot(2, 34),
            snapshot(MOST_TREES as u64 - 1, TREE_OBJECT_MASK),
        ];
        let mut seen = HashSet::new();
        for number in [0, 1, 2, 500, COUNTED_FROM, MOST - 1] {
            let ids = ViewIds::new(number, 0, &trees);
            for node in nodes {
                let id = ids.outside(node).unwrap();
                assert_eq!(trees.inside(id), Some((number, node)), "{number} {node:x}");
                assert!(seen.insert(id), "{number} {node:x}: {id:x}");
            }
            assert_eq!(ids.outside(ROOT), Some(ids.root()));
        }
        assert_eq!(ViewIds::new(0, 0, &trees).root(), ROOT);
    }

    #[test]
    fn what_does_not_fit_has_no_id() {
        let trees = ViewTrees::default();
        let ids = ViewIds::new(3, 0, &trees);
        assert_eq!(ids.outside(OBJECT_MASK + 1), None);
        assert_eq!(ids.outside(7 | 0x20 << OBJECT_BITS), None);
        assert_eq!(ids.outside(COUNTED | 1 << COUNTED_FILES), None);
        // Nobody was told of such a snapshot.
        assert_eq!(trees.inside(OURS | 77 << TREE_OBJECTS | 1), None);
    }

    #[test]
    fn generations_tell_datasets_with_counted_numbers_apart() {
        assert_eq!(salt(54, 54), 0);
        let salts: HashSet<u32> = (1 << 23..(1 << 23) + 1000)
            .map(|dataset| salt(COUNTED_FROM, dataset))
            .collect();
        assert!(salts.len() > 990 && !salts.contains(&0), "{}", salts.len());
    }

    #[test]
    fn inode_numbers_of_file_systems_and_snapshots_differ() {
        let control = [
            0xffff_ffff_ffff,
            0xffff_ffff_fffe,
            0xffff_ffff_fffd,
            0x1_ffff_ffff_fffe,
        ];
        let objects: HashSet<u64> = (1..300).chain([TREE_OBJECT_MASK - 16]).collect();
        let mut seen = HashSet::new();
        for dataset in [0, 21, 54, 255, 310, 387, (1 << 20) + 3] {
            for object in objects.iter().chain(&control) {
                assert!(
                    seen.insert(inode(dataset, false, *object)),
                    "{dataset} {object}"
                );
            }
        }
        // Those of snapshots are what they are.
        for snapshot in [22, 55, 388] {
            for object in &objects {
                let ino = ctldir::inode(snapshot, *object);
                assert_eq!(inode(54, true, ino), ino);
                assert!(seen.insert(ino), "{snapshot} {object}");
            }
        }
        assert_eq!(inode(54, true, control[0]), inode(54, false, control[0]));
    }
}
