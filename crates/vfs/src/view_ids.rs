//! Node ids and inode numbers of a [`crate::View`]: which file system, and which node or object of it.
//!
//! A node id of a view, by its two highest bits:
//!
//! | Bits 63, 62 | Bits below |
//! |---|---|
//! | 0, any | 14 bits: number of the file system; 9 bits of the generation; 40 bits: object, or 1 for the root |
//! | 1, 0 | 14 bits: number of the file system; 48 bits: an id that its door has counted |
//! | 1, 1 | 22 bits: number of a snapshot or volume in this view; 40 bits: object in it. 0: a directory of `.zfs`; 14 bits: number of the file system; 8 bits: which |
//!
//! The root of the file system with number 0 is node 1. What does not fit has no id in a view (`Kind::Overflow`).
//!
//! An inode number is the object number of the first file system (number 0). In the others the dataset is mixed in, as it is in
//! snapshots: no two objects of the pool have one, and an object has the same as long as its dataset has its object in the pool.

use crate::ctldir::{self, MOST_TREES, OURS};
use crate::nodes::{COUNTED, GENERATIONS_IN_VIEW, OBJECT_BITS, ROOT};
use base::sync::RwLockExt;
use std::collections::HashMap;
use std::sync::{Arc, RwLock};

/// Bits of an object number in an id, as in those of snapshots.
const OBJECTS: u32 = ctldir::OBJECT_BITS;
const OBJECT_MASK: u64 = (1 << OBJECTS) - 1;
/// Where the number of the file system begins in an id without bit 63.
const FILES: u32 = 49;
/// The same in a counted id.
const COUNTED_FILES: u32 = 48;
/// The same in the id of a directory of `.zfs`.
const CONTROL_FILES: u32 = 8;
/// Inode numbers that are kept free below the largest object number.
const CONTROL_INOS: u64 = 8;
/// How many file systems a view has room for.
pub(crate) const MOST: u16 = 1 << 14;

#[derive(Default)]
struct Trees {
    /// File system, and number there, by number in the view (from 1).
    list: Vec<(u16, u64)>,
    known: HashMap<(u16, u64), u64>,
}

/// The snapshots and volumes that somebody has looked into, numbered for one view.
#[derive(Clone, Default)]
pub(crate) struct ViewTrees(Arc<RwLock<Trees>>);

impl ViewTrees {
    fn number(&self, of: (u16, u64)) -> Option<u64> {
        if let Some(n) = self.0.acquire_read().known.get(&of) {
            return Some(*n);
        }
        let mut trees = self.0.acquire_write();
        if let Some(n) = trees.known.get(&of) {
            return Some(*n);
        }
        if trees.list.len() + 1 >= MOST_TREES {
            return None;
        }
        trees.list.push(of);
        let n = trees.list.len() as u64;
        trees.known.insert(of, n);
        Some(n)
    }

    fn of(&self, number: u64) -> Option<(u16, u64)> {
        let at = usize::try_from(number.checked_sub(1)?).ok()?;
        self.0.acquire_read().list.get(at).copied()
    }

    /// The file system and its node that an id of the view means.
    pub(crate) fn inside(&self, id: u64) -> Option<(u16, u64)> {
        const NUMBER: u64 = MOST as u64 - 1;
        let object = id & OBJECT_MASK;
        if id & COUNTED == 0 {
            let number = (id >> FILES & NUMBER) as u16;
            let generation = id >> OBJECTS & u64::from(GENERATIONS_IN_VIEW);
            return Some((number, object | generation << OBJECT_BITS));
        }
        if id & OURS != OURS {
            let number = (id >> COUNTED_FILES & NUMBER) as u16;
            return Some((number, COUNTED | id & ((1 << COUNTED_FILES) - 1)));
        }
        match (id & !OURS) >> OBJECTS {
            0 => {
                let number = (object >> CONTROL_FILES & NUMBER) as u16;
                Some((number, OURS | object & ((1 << CONTROL_FILES) - 1)))
            }
            tree => {
                let (number, tree) = self.of(tree)?;
                Some((number, OURS | tree << OBJECTS | object))
            }
        }
    }
}

/// The ids of one file system in a view.
#[derive(Clone)]
pub struct ViewIds {
    number: u16,
    trees: ViewTrees,
}

impl ViewIds {
    pub(crate) fn new(number: u16, trees: &ViewTrees) -> ViewIds {
        ViewIds {
            number,
            trees: trees.clone(),
        }
    }

    /// The id that a node of the file system has in the view; none: it does not fit.
    pub fn outside(&self, node: u64) -> Option<u64> {
        let number = u64::from(self.number);
        if node == ROOT {
            return Some(number << FILES | ROOT);
        }
        if node & COUNTED == 0 {
            let object = node & ((1 << OBJECT_BITS) - 1);
            let generation = node >> OBJECT_BITS;
            let fits = object <= OBJECT_MASK && generation <= u64::from(GENERATIONS_IN_VIEW);
            return fits.then_some(number << FILES | generation << OBJECTS | object);
        }
        if !ctldir::is_ours(node) {
            let count = node & !COUNTED;
            return (count >> COUNTED_FILES == 0)
                .then_some(COUNTED | number << COUNTED_FILES | count);
        }
        let object = node & OBJECT_MASK;
        match (node & !OURS) >> OBJECTS {
            0 => Some(OURS | number << CONTROL_FILES | object),
            tree => {
                let tree = self.trees.number((self.number, tree))?;
                Some(OURS | tree << OBJECTS | object)
            }
        }
    }

    /// Id of the root of the file system.
    pub fn root(&self) -> u64 {
        u64::from(self.number) << FILES | ROOT
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
        (Some(which), _) => ctldir::inode(dataset, OBJECT_MASK - CONTROL_INOS - which),
        // Those of snapshots have the snapshot mixed in already.
        (None, true) => ino,
        (None, false) => ctldir::inode(dataset, ino),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ctldir::{dir_id, Dir};
    use std::collections::HashSet;

    #[test]
    fn an_id_leads_back_to_its_file_system_and_node() {
        let trees = ViewTrees::default();
        let snapshot = |tree: u64, object: u64| OURS | tree << OBJECTS | object;
        let nodes = [
            ROOT,
            7,
            OBJECT_MASK,
            7 | 0x1ff << OBJECT_BITS,
            COUNTED,
            COUNTED | 12_345,
            dir_id(Dir::Root),
            dir_id(Dir::Snapshots),
            dir_id(Dir::Volumes),
            snapshot(1, 34),
            snapshot(2, 34),
            snapshot(MOST_TREES as u64 - 1, OBJECT_MASK),
        ];
        let mut seen = HashSet::new();
        for number in [0, 1, 2, 500, MOST - 1] {
            let ids = ViewIds::new(number, &trees);
            for node in nodes {
                let id = ids.outside(node).unwrap();
                assert_eq!(trees.inside(id), Some((number, node)), "{number} {node:x}");
                assert!(seen.insert(id), "{number} {node:x}: {id:x}");
            }
            assert_eq!(ids.outside(ROOT), Some(ids.root()));
        }
        assert_eq!(ViewIds::new(0, &trees).root(), ROOT);
    }

    #[test]
    fn what_does_not_fit_has_no_id() {
        let trees = ViewTrees::default();
        let ids = ViewIds::new(3, &trees);
        assert_eq!(ids.outside(OBJECT_MASK + 1), None);
        assert_eq!(ids.outside(7 | 0x200 << OBJECT_BITS), None);
        assert_eq!(ids.outside(COUNTED | 1 << COUNTED_FILES), None);
        // Nobody was told of such a snapshot.
        assert_eq!(trees.inside(OURS | 77 << OBJECTS | 1), None);
    }

    #[test]
    fn inode_numbers_of_file_systems_and_snapshots_differ() {
        let control = [
            0xffff_ffff_ffff,
            0xffff_ffff_fffe,
            0xffff_ffff_fffd,
            0x1_ffff_ffff_fffe,
        ];
        let objects: HashSet<u64> = (1..300).chain([OBJECT_MASK - 16]).collect();
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
