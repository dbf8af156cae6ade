//! A place in a traversal (object, level, block), and the order in which a traversal visits places.

use disk::dnode::DNODES_PER_BLOCK;

/// Level of the object set block itself.
pub const ROOT_LEVEL: i64 = -1;
/// Block id of spill blocks.
pub const SPILL_BLKID: u64 = u64::MAX - 1;
/// Object number of the meta-dnode.
pub const META_DNODE: u64 = 0;
/// The accounting objects count down from here: user used, group used, project used.
const LOWEST_ACCOUNTING: u64 = u64::MAX - 2;
/// Object set number in the bookmarks of trees that are being destroyed.
pub const DESTROYED_OBJSET: u64 = u64::MAX;

/// Which block of an object set, as a `zbookmark_phys` names it (data format §11.2).
///
/// On disk: four 64-bit words, object set, object, level, block id. The object set is not part of this
/// type, since a traversal visits one object set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Zbookmark {
    /// Object number; [`META_DNODE`] is the meta-dnode, `u64::MAX - 2 ..= u64::MAX` the accounting objects.
    pub object: u64,
    /// [`ROOT_LEVEL`] for the object set block, 0 for data, more for indirect blocks.
    pub level: i64,
    /// Number of the block among those of its level; [`SPILL_BLKID`] for a spill block.
    pub blkid: u64,
}

/// How the blocks of one object are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// log2 of the number of block pointers in an indirect block.
    pub epbs: u32,
    /// Bytes of an indirect block.
    pub indirect_size: usize,
}

impl Zbookmark {
    /// The object set block.
    pub const ROOT: Zbookmark = Zbookmark {
        object: META_DNODE,
        level: ROOT_LEVEL,
        blkid: 0,
    };

    /// The words on disk, for a tree that is being destroyed.
    pub fn destroyed_words(self) -> [u64; 4] {
        [DESTROYED_OBJSET, self.object, self.level as u64, self.blkid]
    }

    /// From the words on disk; `None` for all zeros, which means the beginning.
    pub fn from_words(w: [u64; 4]) -> Option<Zbookmark> {
        match w {
            [0, 0, 0, 0] => None,
            [_, object, level, blkid] => Some(Zbookmark {
                object,
                level: level as i64,
                blkid,
            }),
        }
    }

    /// Half-open range of level-0 blocks below this place.
    fn range(self, s: Shape) -> (u128, u128) {
        let shift = (self.level.clamp(0, 16) as u32 * s.epbs).min(63);
        let first = u128::from(self.blkid) << shift;
        (first, first + (1u128 << shift))
    }

    /// Whether this place and everything below it comes before `r`. `s` is the shape of the object that
    /// has this place.
    ///
    /// The same for both orders of visiting: a place whose subtree contains `r` is not before it.
    pub(crate) fn before(self, r: Zbookmark, s: Shape) -> bool {
        if r.level == ROOT_LEVEL {
            return self.level != ROOT_LEVEL;
        }
        if self.level == ROOT_LEVEL {
            return false;
        }
        if self.object == r.object {
            return self != r && self.range(s).1 <= r.range(s).0;
        }
        if self.object == META_DNODE {
            // The dnodes of the block come before `r` if all their numbers are smaller.
            return self.range(s).1 * u128::from(DNODES_PER_BLOCK) <= u128::from(r.object);
        }
        if r.object == META_DNODE {
            // All objects of the dnode block at `r`, and of those before it.
            let end = r.range(s).1 * u128::from(DNODES_PER_BLOCK);
            return u128::from(self.object) < end && self.object < LOWEST_ACCOUNTING;
        }
        self.object < r.object
    }

    /// Whether `r` is this place or below it.
    pub(crate) fn contains(self, r: Zbookmark, s: Shape) -> bool {
        if self == r || self.level == ROOT_LEVEL {
            return true;
        }
        if r.level == ROOT_LEVEL || self.blkid == SPILL_BLKID {
            return false;
        }
        let (start, end) = self.range(s);
        if self.object == r.object {
            // The spill block hangs on the dnode itself.
            let (first, last) = r.range(s);
            return r.blkid != SPILL_BLKID && self.level > r.level && start <= first && last <= end;
        }
        let per = u128::from(DNODES_PER_BLOCK);
        let object = u128::from(r.object);
        self.object == META_DNODE
            && r.object < LOWEST_ACCOUNTING
            && (start * per..end * per).contains(&object)
    }
}
