//! Distributed RAID (pool format §11): fixed groups of columns spread over all children by
//! pseudo-random permutations, with the spare capacity spread as well.

use crate::draid_maps::{permutations, SEEDS};
use crate::map::{Col, Map, Stripe, MAX_SHIFT};
use base::{bail, Result};
use std::sync::Arc;

/// Height of a row of the layout on one child, bytes.
pub const ROW: u64 = 16 << 20;
/// Reserved at the end of each child, bytes.
const RESERVED: u64 = 32 << 20;

/// Everything derived from the configuration of one dRAID.
#[derive(Debug, PartialEq, Eq)]
pub struct Draid {
    children: usize,
    ndata: usize,
    nparity: usize,
    /// Children without spares.
    disks: usize,
    /// Columns of a group.
    group: usize,
    /// Groups of a slice.
    groups: u64,
    /// Row by row `children` entries.
    base: Arc<Vec<u8>>,
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 {
        a
    } else {
        gcd(b, a % b)
    }
}

/// Number of groups of a slice for a new dRAID.
pub fn groups_for(children: u64, ndata: u64, nparity: u64, nspares: u64) -> u64 {
    let (g, n) = (ndata + nparity, children.saturating_sub(nspares).max(1));
    n / gcd(g, n).max(1)
}

impl Draid {
    /// Derives the layout. Errors (`Damaged`): numbers outside the limits of the format or not
    /// fitting each other.
    pub fn new(
        children: usize,
        ndata: u64,
        nparity: usize,
        nspares: u64,
        groups: u64,
    ) -> Result<Draid> {
        let need = ndata.saturating_add(nparity as u64).saturating_add(nspares);
        if !(2..=255).contains(&children)
            || !(1..=3).contains(&nparity)
            || ndata == 0
            || nspares > 100
            || need > children as u64
        {
            bail!(
                Damaged,
                "dRAID of {children}: {ndata} data, {nparity} parity, {nspares} spares"
            );
        }
        let (disks, group) = (children - nspares as usize, ndata as usize + nparity);
        if groups == 0 || groups > 65536 || groups * group as u64 % disks as u64 != 0 {
            bail!(
                Damaged,
                "dRAID of {disks} disks with {groups} groups of {group}"
            );
        }
        let base = permutation_map(children)?;
        Ok(Draid {
            children,
            ndata: ndata as usize,
            nparity,
            disks,
            group,
            groups,
            base,
        })
    }

    /// Sectors an allocation is a multiple of.
    pub fn group_width(&self) -> u64 {
        self.group as u64
    }

    /// Allocatable bytes with children of at least `child` allocatable bytes.
    pub fn asize(&self, child: u64) -> u64 {
        let usable = child.saturating_sub(RESERVED) / ROW * ROW;
        let unit = self.group as u64 * ROW;
        usable.saturating_mul(self.disks as u64) / unit * unit
    }

    /// Child at position `x` under permutation number `perm`.
    fn child(&self, perm: u64, x: usize) -> usize {
        let c = self.children as u64;
        let p = perm % (permutations(self.children) as u64 * c);
        let (row, shift) = ((p / c) as usize, (p % c) as usize);
        let entry = self.base.get(row * self.children + x).copied().unwrap_or(0);
        (usize::from(entry) + shift) % self.children
    }

    /// Child that holds byte `offset` of distributed spare `spare`; the offset there is the same.
    pub fn spare_child(&self, spare: u64, offset: u64) -> Result<usize> {
        if spare >= (self.children - self.disks) as u64 {
            bail!(Damaged, "distributed spare {spare} does not exist");
        }
        let slice = ROW * self.rows_per_slice();
        Ok(self.child(offset / slice, self.children - 1 - spare as usize))
    }

    fn rows_per_slice(&self) -> u64 {
        self.group as u64 * self.groups / self.disks as u64
    }

    /// Layout of a block of `psize` bytes at byte offset `offset`.
    pub fn map(&self, ashift: u32, offset: u64, psize: usize) -> Result<Map> {
        if ashift > MAX_SHIFT || psize == 0 || psize > base::MAX_BLOCK {
            bail!(Damaged, "block of {psize} bytes on dRAID");
        }
        let sector = 1usize << ashift;
        if offset % ((self.group as u64) << ashift) != 0 {
            bail!(
                Damaged,
                "block at {offset:#x} of dRAID is not at the start of a row"
            );
        }
        let s = psize.div_ceil(sector);
        let mut stripes = Vec::new();
        let (mut at, mut left) = (offset, s);
        while left > 0 {
            let size = self.group as u64 * ROW;
            // What is left of the group, in rows.
            let rows = (size - at % size) / ((self.group as u64) << ashift);
            let fits = usize::try_from(rows)
                .unwrap_or(usize::MAX)
                .saturating_mul(self.ndata);
            let here = left.min(fits);
            stripes.push(self.stripe(ashift, at, here, (s - left) * sector));
            left -= here;
            at = (at / size + 1).saturating_mul(size);
        }
        Ok(Map {
            nparity: self.nparity,
            stripes,
            skips: Vec::new(),
            sector,
            len: s * sector,
            widened: None,
        })
    }

    /// `s` data sectors of a block, those from byte `from` of it on, at `offset` in one group.
    fn stripe(&self, ashift: u32, offset: u64, s: usize, from: usize) -> Stripe {
        let sector = 1usize << ashift;
        let g = self.group as u64;
        let group = offset / (g * ROW);
        let (perm, gamma) = (group / self.groups, group % self.groups);
        let n = self.disks as u64;
        let start = gamma * g % n;
        let row = perm * self.rows_per_slice() + gamma * g / n;
        let u = (offset % (g * ROW)) >> ashift;
        let place = row.saturating_mul(ROW).saturating_add((u / g) << ashift);
        let (q, r) = (s / self.ndata, s % self.ndata);
        let big = if r == 0 { 0 } else { r + self.nparity };
        // Every column is written to the full height, with zeros after its data.
        let size = (q + usize::from(r != 0)) * sector;
        let mut at = from;
        let cols = (0..self.group)
            .map(|i| {
                let x = start as usize + i;
                let wrapped = x >= self.disks;
                let offset = place.saturating_add(if wrapped { ROW } else { 0 });
                let child = self.child(perm, x % self.disks);
                let parity = i < self.nparity;
                let data = if parity {
                    0
                } else {
                    (q + usize::from(i < big)) * sector
                };
                let col = Col {
                    child,
                    offset,
                    size,
                    at: if parity { 0 } else { at },
                    data,
                };
                at += data;
                col
            })
            .collect();
        Stripe { cols }
    }
}

/// The base permutations for a number of children, checked against the known sum.
fn permutation_map(children: usize) -> Result<Arc<Vec<u8>>> {
    let Some(&(seed, sum)) = children.checked_sub(2).and_then(|i| SEEDS.get(i)) else {
        bail!(Damaged, "dRAID with {children} children");
    };
    let rows = permutations(children);
    let mut rng = Generator {
        s0: 0xd_7a1d_5eed,
        s1: seed,
    };
    let mut row: Vec<u8> = (0..children).map(|i| i as u8).collect();
    let mut map = Vec::with_capacity(rows * children);
    for _ in 0..rows {
        for j in (1..children).rev() {
            let k = (rng.next() % (j as u64 + 1)) as usize;
            row.swap(j, k);
        }
        map.extend_from_slice(&row);
    }
    let mut f = codec::checksum::Fletcher4::new(false);
    f.update(&map);
    if f.words()[0] != sum {
        bail!(Damaged, "dRAID map for {children} children is wrong");
    }
    Ok(Arc::new(map))
}

/// The generator of the permutations (pool format §11.1).
struct Generator {
    s0: u64,
    s1: u64,
}

impl Generator {
    fn next(&mut self) -> u64 {
        let result = self
            .s0
            .wrapping_add(self.s1)
            .rotate_left(17)
            .wrapping_add(self.s0);
        self.s1 ^= self.s0;
        self.s0 = self.s0.rotate_left(49) ^ self.s1 ^ (self.s1 << 21);
        self.s1 = self.s1.rotate_left(28);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn all_maps_have_the_known_sums() {
        for children in 2..=255 {
            permutation_map(children).unwrap();
        }
        assert!(permutation_map(1).is_err() && permutation_map(256).is_err());
    }

    /// Blocks one after the other never share a place, fill rows completely, and have at most one
    /// column of a stripe on a child.
    #[test]
    fn places_are_disjoint() {
        for (children, ndata, nparity, nspares) in [
            (9, 4, 2, 1),
            (11, 3, 2, 2),
            (7, 2, 1, 1),
            (6, 3, 3, 0),
            (5, 1, 1, 3),
        ] {
            let groups = groups_for(children as u64, ndata, nparity as u64, nspares);
            let d = Draid::new(children, ndata, nparity, nspares, groups).unwrap();
            let ashift = 12;
            let group = d.group_width() * ROW;
            // Around a group boundary, and far enough for several permutations.
            for base in [0, group - (d.group_width() << 12) * 2, group * groups * 3] {
                let mut at = base;
                let mut places = HashSet::new();
                for s in 1..30usize {
                    let m = d.map(ashift, at, s << 12).unwrap();
                    let mut filled = vec![0; s];
                    let mut sectors = 0;
                    for st in &m.stripes {
                        let kids: HashSet<_> = st.cols.iter().map(|c| c.child).collect();
                        assert_eq!(kids.len(), st.cols.len());
                        for (i, c) in st.cols.iter().enumerate() {
                            assert_eq!(c.size, st.cols[0].size);
                            for k in 0..c.size >> 12 {
                                assert!(places.insert((c.child, c.offset + ((k as u64) << 12))));
                                sectors += 1;
                                if i >= nparity && k < c.data >> 12 {
                                    filled[(c.at >> 12) + k] += 1;
                                }
                            }
                        }
                    }
                    assert!(filled.iter().all(|f| *f == 1));
                    let asize =
                        crate::size::draid_asize((s << 12) as u64, ashift, ndata, nparity as u64);
                    assert_eq!(sectors << 12, asize);
                    at += asize;
                }
            }
            assert!(d.map(12, 4096, 4096).is_err());
        }
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(Draid::new(256, 4, 2, 1, 4).is_err());
        assert!(Draid::new(9, 4, 4, 1, 4).is_err());
        assert!(Draid::new(9, 0, 2, 1, 4).is_err());
        assert!(Draid::new(9, 7, 2, 1, 4).is_err());
        assert!(Draid::new(9, 4, 2, 1, 3).is_err());
        assert!(Draid::new(9, u64::MAX, 2, 1, 4).is_err());
        let d = Draid::new(9, 4, 2, 1, 4).unwrap();
        assert_eq!(d.asize((64 << 20) - 0x480000), 100_663_296);
        assert!(d.spare_child(1, 0).is_err());
        drop(d.map(12, u64::MAX / (6 << 12) * (6 << 12), 1 << 20));
    }
}
