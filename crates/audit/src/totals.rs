//! Totals of an audit: counts and sizes of blocks by type, level and size.

use crate::Audit;
use disk::{BlkPtr, Dva, ObjType};
use std::collections::BTreeMap;

/// Blocks of as many 512-byte sectors or more are counted together: those of more than 128 KiB.
pub const MOST_SECTORS: usize = 257;
/// Object types with a number of their own.
const TYPES: u8 = 54;

/// What a block is counted as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Row {
    /// By number of the object type.
    Type(u8),
    /// Freed, but not free yet.
    Deferred,
    /// Of a type without a number of its own.
    Other,
    /// All blocks.
    Total,
}

impl Row {
    pub(crate) fn of(t: ObjType) -> Row {
        match t.0 {
            n if n < TYPES => Row::Type(n),
            _ => Row::Other,
        }
    }
}

/// Sums over blocks.
#[derive(Clone, Default)]
pub struct Sum {
    /// Number of blocks.
    pub blocks: u64,
    /// Logical bytes.
    pub lsize: u64,
    /// Physical bytes.
    pub psize: u64,
    /// Allocated bytes, all copies and parity included.
    pub asize: u64,
    /// DVAs that are gangs.
    pub gangs: u64,
    /// Blocks with several copies on one vdev, and in one metaslab.
    pub same_vdev: u64,
    /// Blocks with several copies in one metaslab.
    pub same_metaslab: u64,
    /// Blocks by 512-byte sectors of PSIZE, at most [`MOST_SECTORS`].
    pub sectors: BTreeMap<usize, u64>,
}

impl Sum {
    /// Adds another sum.
    pub fn merge(&mut self, o: Sum) {
        self.blocks += o.blocks;
        self.lsize += o.lsize;
        self.psize += o.psize;
        self.asize += o.asize;
        self.gangs += o.gangs;
        self.same_vdev += o.same_vdev;
        self.same_metaslab += o.same_metaslab;
        for (sectors, n) in o.sectors {
            *self.sectors.entry(sectors).or_default() += n;
        }
    }
}

/// Number and bytes of blocks by the power of two of a size.
pub struct Sizes(pub [(u64, u64); 64]);

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes([(0, 0); 64])
    }
}

impl Sizes {
    fn add(&mut self, n: u64) {
        let bin = &mut self.0[(63 - n.max(1).leading_zeros()) as usize];
        bin.0 += 1;
        bin.1 += n;
    }
}

/// All that is counted.
#[derive(Default)]
pub struct Totals {
    /// By level (`None`: all levels) and row.
    pub sums: BTreeMap<(Option<u8>, Row), Sum>,
    /// By PSIZE, LSIZE, ASIZE.
    pub sizes: [Sizes; 3],
    /// Embedded pointers by type and bytes.
    pub embedded: BTreeMap<u8, BTreeMap<usize, u64>>,
    /// Further pointers to blocks met already: bytes and number, by dedup and by cloning.
    pub deduped: (u64, u64),
    /// See `deduped`.
    pub cloned: (u64, u64),
}

impl Totals {
    /// The sum over all blocks.
    pub fn all(&self) -> Sum {
        self.sums
            .get(&(None, Row::Total))
            .cloned()
            .unwrap_or_default()
    }

    /// Adds what was counted in a tree that is being destroyed.
    pub(crate) fn merge(&mut self, below: Totals) {
        for (key, s) in below.sums {
            self.sums.entry(key).or_default().merge(s);
        }
        for (to, from) in self.sizes.iter_mut().zip(&below.sizes) {
            for (a, b) in to.0.iter_mut().zip(from.0) {
                *a = (a.0 + b.0, a.1 + b.1);
            }
        }
        for (kind, sizes) in below.embedded {
            let own = self.embedded.entry(kind).or_default();
            for (bytes, n) in sizes {
                *own.entry(bytes).or_default() += n;
            }
        }
    }
}

impl Audit<'_> {
    pub(crate) fn count(&mut self, bp: &BlkPtr, row: Row) {
        let embedded = bp.is_embedded();
        let (lsize, psize, asize) = match embedded {
            true => (bp.lsize() as u64, 0, 0),
            false => (bp.lsize() as u64, bp.psize() as u64, bp.asize()),
        };
        let dvas = bp.dvas();
        let vdev = |i: usize| dvas.get(i).map(Dva::vdev);
        let same_vdev = (0..dvas.len()).any(|i| (0..i).any(|j| vdev(i) == vdev(j)));
        let same_metaslab = same_vdev && self.same_metaslab(&dvas);
        let add = |s: &mut Sum| {
            s.blocks += 1;
            s.lsize += lsize;
            s.psize += psize;
            s.asize += asize;
            s.gangs += dvas.iter().filter(|d| d.is_gang()).count() as u64;
            s.same_vdev += u64::from(same_vdev);
            s.same_metaslab += u64::from(same_metaslab);
            let sectors = (psize >> 9) as usize;
            *s.sectors.entry(sectors.min(MOST_SECTORS)).or_default() += 1;
        };
        let level = Some(bp.level());
        let t = &mut self.totals;
        for key in [
            (level, row),
            (None, row),
            (level, Row::Total),
            (None, Row::Total),
        ] {
            add(t.sums.entry(key).or_default());
        }
        if embedded {
            let kind = t.embedded.entry(bp.embedded_type()).or_default();
            *kind.entry(bp.psize()).or_default() += 1;
            return;
        }
        for (s, n) in t.sizes.iter_mut().zip([psize, lsize, asize]) {
            s.add(n);
        }
        // Several pointers may lead to blocks of dedup tables and to cloned ones.
        if bp.level() == 0 && (bp.is_dedup() || self.shared_allowed) {
            let d = bp.dva(0);
            if !self.known.insert((d.vdev(), d.offset())) {
                let sum = match bp.is_dedup() {
                    true => &mut t.deduped,
                    false => &mut t.cloned,
                };
                *sum = (sum.0 + asize, sum.1 + 1);
            }
        }
    }

    fn same_metaslab(&self, dvas: &[Dva]) -> bool {
        let place = |d: &Dva| {
            let top = self.pool.tree().top(d.vdev()).ok()?;
            Some((d.vdev(), d.offset().checked_shr(top.metaslab_shift())?))
        };
        (0..dvas.len()).any(|i| (0..i).any(|j| place(&dvas[i]) == place(&dvas[j])))
    }
}
