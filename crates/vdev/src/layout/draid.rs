//! Distributed RAID (pool format §11): fixed groups of columns spread over all children by
//! pseudo-random permutations, with the spare capacity spread as well.

use super::draid_maps::{permutations, SEEDS};
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
    /// Width of a slice: all children, or with failure domains those of one failure group.
    children: usize,
    /// Failure groups; 1 without failure domains.
    fgroups: usize,
    ndata: usize,
    nparity: usize,
    nspares: usize,
    /// Children without spares.
    disks: usize,
    /// Columns of a group.
    group: usize,
    /// Groups of a slice, over all failure groups.
    groups: u64,
    /// Row by row `children` entries.
    base: Arc<Vec<u8>>,
}

/// Where a group lies: its failure group, its number there, and how many disks share the rows.
struct GroupPosition {
    fgroup: u64,
    gamma: u64,
    disks: u64,
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
            fgroups: 1,
            ndata: ndata as usize,
            nparity,
            nspares: nspares as usize,
            disks,
            group,
            groups,
            base,
        })
    }

    /// The same with failure domains (pool format §11.4): `width` children altogether, of which
    /// slices are `children` wide; `groups` counts all failure groups.
    pub fn with_domains(
        width: usize,
        children: usize,
        ndata: u64,
        nparity: usize,
        nspares: u64,
        groups: u64,
    ) -> Result<Draid> {
        if children == width {
            return Draid::new(width, ndata, nparity, nspares, groups);
        }
        let wrong = || {
            Err(base::Error::damaged(format!(
                "dRAID of {width} in failure groups of {children}: {ndata} data, {nparity} parity, \
                 {nspares} spares, {groups} groups"
            )))
        };
        if !(2..=255).contains(&children)
            || width > 255
            || width % children != 0
            || !(1..=3).contains(&nparity)
            || !(1..=255).contains(&ndata)
            || nspares > 100
            || groups == 0
            || groups > 65536
        {
            return wrong();
        }
        let fgroups = width / children;
        let (nspares, group) = (nspares as usize, ndata as usize + nparity);
        // Spares of the failure groups that have most.
        let most = nspares.div_ceil(fgroups);
        if group + most > children {
            return wrong();
        }
        let d = Draid {
            children,
            fgroups,
            ndata: ndata as usize,
            nparity,
            nspares,
            disks: width - nspares,
            group,
            groups,
            base: Arc::new(domain_map(children, fgroups)?),
        };
        // Every failure group must fill the same number of rows.
        let (g, rows) = (group as u64, d.rows_per_slice());
        let fits = |groups: u64, disks: u64| groups > 0 && groups * g == rows * disks;
        let (few, many) = (d.least_groups(), d.least_disks());
        let ok = if nspares % fgroups == 0 {
            groups % fgroups as u64 == 0 && fits(few, many)
        } else {
            let short = (nspares % fgroups) as u64;
            let all = few * short + (few + 1) * (fgroups as u64 - short);
            all == groups && fits(few, many) && fits(few + 1, many + 1)
        };
        if !ok {
            return wrong();
        }
        Ok(d)
    }

    /// Groups of a slice, and disks, of the first failure group, which has the most spares.
    fn least_groups(&self) -> u64 {
        self.groups / self.fgroups as u64
    }

    fn least_disks(&self) -> u64 {
        (self.disks / self.fgroups) as u64
    }

    /// Where group `gamma` of a slice lies.
    fn place(&self, gamma: u64) -> GroupPosition {
        let (few, disks) = (self.least_groups(), self.least_disks());
        let short = (self.nspares % self.fgroups) as u64;
        if short == 0 || gamma < short * few {
            return GroupPosition {
                fgroup: gamma / few,
                gamma: gamma % few,
                disks,
            };
        }
        let rest = gamma - short * few;
        GroupPosition {
            fgroup: short + rest / (few + 1),
            gamma: rest % (few + 1),
            disks: disks + 1,
        }
    }

    /// Sectors an allocation is a multiple of.
    pub fn group_width(&self) -> u64 {
        self.group as u64
    }

    /// Allocatable bytes with children of at least `child` allocatable bytes.
    pub fn asize(&self, child: u64) -> u64 {
        let usable = child.saturating_sub(RESERVED) / ROW * ROW;
        let mut unit = self.group as u64 * ROW;
        if self.fgroups > 1 {
            unit *= self.groups;
        }
        usable.saturating_mul(self.disks as u64) / unit * unit
    }

    /// Child at position `x` under permutation number `perm` (with failure domains: that of the slice
    /// times their number, plus that of the failure group).
    fn child(&self, perm: u64, x: usize) -> usize {
        let c = self.children as u64;
        if self.fgroups > 1 {
            let f = self.fgroups as u64;
            let rows = self.base.len() as u64 / c;
            let p = perm % (rows * c);
            let row = (p / (c * f) * f + perm % f) as usize;
            let column = (x + (p % c) as usize) % self.children;
            let entry = self.base.get(row * self.children + column);
            return entry.copied().unwrap_or(0).into();
        }
        let p = perm % (permutations(self.children) as u64 * c);
        let (row, shift) = ((p / c) as usize, (p % c) as usize);
        let entry = self.base.get(row * self.children + x).copied().unwrap_or(0);
        (usize::from(entry) + shift) % self.children
    }

    /// Child that holds byte `offset` of distributed spare `spare`; the offset there is the same.
    pub fn spare_child(&self, spare: u64, offset: u64) -> Result<usize> {
        if spare >= self.nspares as u64 {
            bail!(Damaged, "distributed spare {spare} does not exist");
        }
        let (slice, f) = (ROW * self.rows_per_slice(), self.fgroups as u64);
        let perm = offset / slice * f + spare % f;
        Ok(self.child(perm, self.children - 1 - (spare / f) as usize))
    }

    /// Children without spares.
    pub(crate) fn disks(&self) -> u64 {
        self.disks as u64
    }

    /// Adds what whole rows within the vdev's range `[start, end)` take on one child.
    pub(crate) fn on_child(
        &self,
        child: usize,
        ashift: u32,
        (start, end): (u64, u64),
        out: &mut base::RangeSet,
    ) {
        let g = self.group as u64;
        let (row, size) = (g << ashift, g * ROW);
        let mut at = start.next_multiple_of(row);
        let end = end / row * row;
        while at < end {
            let group = at / size;
            let stop = ((group + 1) * size).min(end);
            let rows = (at % size / row, (stop - 1) % size / row + 1);
            for (c, place) in self.columns(group) {
                if c == child {
                    out.insert(place + (rows.0 << ashift), place + (rows.1 << ashift));
                }
            }
            at = stop;
        }
    }

    /// The columns of a group, parity first: child, and where its part begins there.
    fn columns(&self, group: u64) -> impl Iterator<Item = (usize, u64)> + '_ {
        let slice = group / self.groups;
        let GroupPosition {
            fgroup,
            gamma,
            disks: n,
        } = self.place(group % self.groups);
        let g = self.group as u64;
        let perm = slice * self.fgroups as u64 + fgroup;
        let start = (gamma * g % n) as usize;
        let row = slice * self.rows_per_slice() + gamma * g / n;
        let n = n as usize;
        (0..self.group).map(move |i| {
            let x = start + i;
            let row = row.saturating_add(u64::from(x >= n));
            (self.child(perm, x % n), row.saturating_mul(ROW))
        })
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
        let u = (offset % (g * ROW)) >> ashift;
        let down = (u / g) << ashift;
        let (q, r) = (s / self.ndata, s % self.ndata);
        let big = if r == 0 { 0 } else { r + self.nparity };
        // Every column is written to the full height, with zeros after its data.
        let size = (q + usize::from(r != 0)) * sector;
        let mut at = from;
        let cols = self
            .columns(group)
            .enumerate()
            .map(|(i, (child, place))| {
                let offset = place.saturating_add(down);
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

/// The permutations for `fgroups` failure groups of `children` each (pool format §11.4): every block of
/// that many rows of the plain map gives each failure group one row, and spreads over them the children
/// that have the same place.
fn domain_map(children: usize, fgroups: usize) -> Result<Vec<u8>> {
    let plain = permutation_map(children)?;
    let rows = permutations(children) / fgroups * fgroups;
    let mut map = plain.get(..rows * children).unwrap_or(&[]).to_vec();
    let seed = children.checked_sub(2).and_then(|i| SEEDS.get(i));
    let mut rng = Generator {
        s0: 0xd_7a1d_5eed,
        s1: seed.map_or(0, |s| s.0),
    };
    for block in map.chunks_exact_mut(fgroups * children) {
        for j in 0..children {
            let value = block[j];
            // Place of that value in each row; they are permutations of the same numbers.
            let mut at = vec![j];
            for k in 1..fgroups {
                let row = &block[k * children..(k + 1) * children];
                let Some(c) = row.iter().position(|v| *v == value) else {
                    bail!(Damaged, "dRAID map for failure groups of {children}");
                };
                at.push(k * children + c);
            }
            for (k, &i) in at.iter().enumerate() {
                // At most 255 children altogether.
                block[i] = block[i].wrapping_add((k * children) as u8);
            }
            for k in (1..fgroups).rev() {
                let l = (rng.next() % (k as u64 + 1)) as usize;
                block.swap(at[k], at[l]);
            }
        }
    }
    Ok(map)
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

    /// The same with failure domains: every place of some slices belongs to one column or one spare, and
    /// the columns of a stripe are in different domains (children of the same number in each failure
    /// group's range).
    #[test]
    fn places_with_failure_domains() {
        for (fgroups, children, ndata, nparity, nspares) in [
            (2usize, 9usize, 4u64, 2usize, 2u64),
            (3, 8, 3, 2, 4),
            (2, 7, 3, 1, 1),
            (5, 6, 2, 2, 0),
        ] {
            let g = ndata + nparity as u64;
            let f = fgroups as u64;
            let width = fgroups * children;
            let low = (width as u64 - nspares) / f;
            let short = nspares % f;
            let groups = if short == 0 {
                f * groups_for(low, ndata, nparity as u64, 0)
            } else {
                let k = (1..)
                    .find(|k| k * g % low == 0 && (k + 1) * g % (low + 1) == 0)
                    .unwrap();
                k * short + (k + 1) * (f - short)
            };
            let d = Draid::with_domains(width, children, ndata, nparity, nspares, groups).unwrap();
            let mut places = HashSet::new();
            let slice = ROW * d.rows_per_slice();
            // One sector of each row: every place of some slices is used once.
            for group in 0..3 * groups {
                let m = d.map(12, group * g * ROW, 4096).unwrap();
                let kids: HashSet<_> = m.stripes[0].cols.iter().map(|c| c.child).collect();
                assert_eq!(kids.len() as u64, g);
                let domains: HashSet<_> = kids.iter().map(|k| k % children).collect();
                assert_eq!(domains.len(), kids.len());
                for c in &m.stripes[0].cols {
                    assert!(c.child < width);
                    assert!(places.insert((c.child, c.offset)), "{c:?}");
                }
            }
            for at in (0..3 * slice).step_by(ROW as usize) {
                for spare in 0..nspares {
                    assert!(places.insert((d.spare_child(spare, at).unwrap(), at)));
                }
            }
            assert_eq!(places.len() as u64, width as u64 * 3 * slice / ROW);
            assert!(
                Draid::with_domains(width, children, ndata, nparity, nspares, groups + 1).is_err()
            );
            assert!(
                Draid::with_domains(width + 1, children, ndata, nparity, nspares, groups).is_err()
            );
        }
        assert!(Draid::with_domains(18, 9, 8, 2, 0, 2).is_err());
        let plain = Draid::with_domains(9, 9, 4, 2, 1, 4).unwrap();
        assert_eq!(plain, Draid::new(9, 4, 2, 1, 4).unwrap());
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
