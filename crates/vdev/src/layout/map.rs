//! Where the bytes of a block lie on the children of a RAID-Z vdev (pool format §9.1, §10).
//!
//! A block is a list of *stripes*, each with its own parity. Plain RAID-Z has one stripe per block;
//! a RAID-Z that was widened has one stripe per row for blocks that are older than the widening.

use base::{bail, Result};

/// Greatest ashift of the format.
pub const MAX_SHIFT: u32 = 16;

/// One column of a stripe: contiguous bytes on one child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Col {
    /// Index of the child.
    pub child: usize,
    /// Byte offset in the child's data area.
    pub offset: u64,
    /// Bytes, the zeros at the end of a data column included.
    pub size: usize,
    /// Where a data column's bytes belong in the block; 0 for parity.
    pub at: usize,
    /// How many bytes of the block it holds; the rest of the column is zeros that take part in
    /// parity. 0 for parity.
    pub data: usize,
}

/// Columns that share parity; the first `nparity` are the parity columns P, Q, R.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stripe {
    /// Parity columns, then data columns.
    pub cols: Vec<Col>,
}

/// How far a RAID-Z that is being widened is rearranged (pool format §10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reflow {
    /// Byte offset of the vdev up to which sectors are at their new places, as the uberblock on disk says.
    pub done: u64,
    /// Byte offset, at least `done`, up to which sectors were copied to their new places. From `done` on the old places count still,
    /// and writes go to both.
    pub next: u64,
    /// Those sectors are still in the children's boot areas: the scratch area is in use.
    pub scratch: bool,
}

/// Where the rows of a block lie that was written when the vdev had fewer children than now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Widened {
    /// Children then and now.
    pub logical: usize,
    /// Children now.
    pub physical: usize,
    /// One per stripe.
    pub rows: Vec<Row>,
    /// Parity and first data column have changed places.
    pub swapped: bool,
    /// New places of sectors that were copied there, while the old ones count still: writes go there as well.
    pub also: Vec<Also>,
}

/// A second place of a column of one sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Also {
    /// Number of the stripe.
    pub stripe: usize,
    /// Column of the stripe.
    pub column: usize,
    /// Index of the child.
    pub child: usize,
    /// Byte offset in the child's data area.
    pub offset: u64,
}

/// One row of a [`Widened`] block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Number of its first sector in the order of the vdev.
    pub first: u64,
    /// It is in the boot areas: offsets are to be taken from there, not from the data areas.
    pub scratch: bool,
    /// Columns it lacks behind the ones it has (a last row may be shorter): nowhere, and zeros for
    /// parity.
    pub absent: usize,
}

/// The whole layout of one block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    /// Columns of parity, 1 to 3.
    pub nparity: usize,
    /// The stripes in the order of the block's bytes.
    pub stripes: Vec<Stripe>,
    /// Allocated sectors that carry nothing, as (child, offset).
    pub skips: Vec<(usize, u64)>,
    /// Bytes of one sector.
    pub sector: usize,
    /// Bytes of the block rounded up to whole sectors.
    pub len: usize,
    /// What is special about it if the vdev had fewer children when it was written.
    pub widened: Option<Widened>,
}

impl Map {
    /// Whether stripe `s` is in the boot areas of the children.
    pub(crate) fn in_scratch(&self, s: usize) -> bool {
        let row = self.widened.as_ref().and_then(|w| w.rows.get(s));
        row.is_some_and(|r| r.scratch)
    }

    /// Whether a part of stripe `s` is at two places at this moment.
    pub(crate) fn is_copied(&self, s: usize) -> bool {
        let also = self.widened.as_ref().map(|w| &w.also);
        also.is_some_and(|a| a.iter().any(|a| a.stripe == s))
    }

    /// How many columns of zeros without a place stripe `s` has behind its columns.
    pub(crate) fn absent(&self, s: usize) -> usize {
        let row = self.widened.as_ref().and_then(|w| w.rows.get(s));
        row.map_or(0, |r| r.absent)
    }

    /// Widths the vdev had since the block was written, the present one not included: a child that
    /// was bad then has spread what it spoilt over the children there are now.
    pub(crate) fn former_widths(&self) -> std::ops::Range<usize> {
        self.widened
            .as_ref()
            .map_or(0..0, |w| w.logical..w.physical)
    }

    /// The child that column `c` of stripe `s` was on when the vdev had `width` children.
    pub(crate) fn former_child(&self, s: usize, c: usize, width: usize) -> Option<usize> {
        let w = self.widened.as_ref()?;
        let c = match c {
            0 | 1 if w.swapped => 1 - c,
            c => c,
        };
        let k = w.rows.get(s)?.first + c as u64;
        Some((k % width.max(1) as u64) as usize)
    }
}

/// Layout of a block of `psize` bytes at byte offset `offset` of a RAID-Z vdev.
///
/// `logical` is the number of children when the block was born, `physical` the number now;
/// `reflow` is given while the vdev is being widened. Errors (`Damaged`): impossible widths, an offset that is not in sectors, an empty block.
pub fn raidz(
    physical: usize,
    logical: usize,
    nparity: usize,
    ashift: u32,
    offset: u64,
    psize: usize,
    reflow: Option<Reflow>,
) -> Result<Map> {
    let most = physical.saturating_sub(usize::from(reflow.is_some()));
    if nparity == 0 || logical <= nparity || most < logical || ashift > MAX_SHIFT {
        bail!(
            Damaged,
            "RAID-Z of {logical} in {physical} children with parity {nparity}"
        );
    }
    if psize == 0 || psize > base::MAX_BLOCK || offset % (1 << ashift) != 0 {
        bail!(Damaged, "block of {psize} bytes at {offset:#x} of RAID-Z");
    }
    let sector = 1usize << ashift;
    let s = psize.div_ceil(sector);
    if physical == logical {
        Ok(even(logical, nparity, ashift, offset, s))
    } else {
        let widths = (physical, logical, nparity);
        Ok(widened(widths, ashift, offset, s, reflow))
    }
}

/// Where sector `k` of the vdev is: child and byte offset.
fn place(k: u64, width: usize, ashift: u32) -> (usize, u64) {
    let w = width as u64;
    ((k % w) as usize, (k / w) << ashift)
}

/// RAID-Z1 exchanges parity and first data column in every other MiB.
fn rotates(nparity: usize, offset: u64) -> bool {
    nparity == 1 && offset & (1 << 20) != 0
}

fn swap_places(cols: &mut [Col]) {
    if let [a, b, ..] = cols {
        std::mem::swap(&mut a.child, &mut b.child);
        std::mem::swap(&mut a.offset, &mut b.offset);
    }
}

fn even(width: usize, nparity: usize, ashift: u32, offset: u64, s: usize) -> Map {
    let sector = 1usize << ashift;
    let b = offset >> ashift;
    let (q, r) = (s / (width - nparity), s % (width - nparity));
    let big = if r == 0 { 0 } else { r + nparity };
    let used = if q == 0 { big } else { width };
    let mut at = 0;
    let mut cols: Vec<Col> = (0..used)
        .map(|c| {
            let (child, offset) = place(b + c as u64, width, ashift);
            let size = (q + usize::from(c < big)) * sector;
            let data = if c < nparity { 0 } else { size };
            let col = Col {
                child,
                offset,
                size,
                at: if c < nparity { 0 } else { at },
                data,
            };
            at += data;
            col
        })
        .collect();
    if rotates(nparity, offset) {
        swap_places(&mut cols);
    }
    let total = s + nparity * (q + usize::from(r != 0));
    let skips = (total..total.next_multiple_of(nparity + 1))
        .map(|k| place(b + k as u64, width, ashift))
        .collect();
    Map {
        nparity,
        stripes: vec![Stripe { cols }],
        skips,
        sector,
        len: s * sector,
        widened: None,
    }
}

/// A block born when the vdev had fewer children: its sectors keep their order, so each of its rows
/// lies across the present rows.
fn widened(
    (physical, logical, nparity): (usize, usize, usize),
    ashift: u32,
    offset: u64,
    s: usize,
    reflow: Option<Reflow>,
) -> Map {
    let done = reflow.map_or(u64::MAX, |r| r.done >> ashift);
    let next = reflow.map_or(0, |r| r.next >> ashift);
    let scratch = reflow.is_some_and(|r| r.scratch);
    let swapped = rotates(nparity, offset);
    let sector = 1usize << ashift;
    let b = offset >> ashift;
    let per_row = logical - nparity;
    let (q, r) = (s / per_row, s % per_row);
    let big = if r == 0 { 0 } else { r + nparity };
    let total = s + nparity * (q + usize::from(r != 0));
    let rows = total.div_ceil(logical);
    let columns = total.min(logical);
    let moved = |first: u64| first + columns as u64 <= done;
    let places = (0..rows)
        .map(|i| {
            let first = b + (i * logical) as u64;
            Row {
                first,
                scratch: scratch && moved(first),
                absent: match i + 1 == rows && big != 0 {
                    true => columns - big.min(columns),
                    false => 0,
                },
            }
        })
        .collect();
    let mut also = Vec::new();
    let stripes = (0..rows)
        .map(|i| {
            let first = b + (i * logical) as u64;
            let last = i + 1 == rows && big != 0;
            if !moved(first) {
                let here = (0..columns).filter(|c| !last || *c < big);
                let copied = here.filter(|c| first + (*c as u64) < next);
                also.extend(copied.map(|c| {
                    let (child, offset) = place(first + c as u64, physical, ashift);
                    Also {
                        stripe: i,
                        // Who is where there.
                        column: if swapped && c < 2 { 1 - c } else { c },
                        child,
                        offset,
                    }
                }));
            }
            // A row moves as a whole.
            let width = physical - usize::from(!moved(first));
            let mut cols: Vec<Col> = (0..columns)
                .filter(|c| !last || *c < big)
                .map(|c| {
                    let (child, offset) = place(first + c as u64, width, ashift);
                    let at = match c.checked_sub(nparity) {
                        None => 0,
                        Some(d) if c < big || r == 0 => d * rows + i,
                        Some(d) => r * rows + (d - r) * (rows - 1) + i,
                    };
                    Col {
                        child,
                        offset,
                        size: sector,
                        at: at * sector,
                        data: if c < nparity { 0 } else { sector },
                    }
                })
                .collect();
            if swapped {
                swap_places(&mut cols);
            }
            Stripe { cols }
        })
        .collect();
    // Skipped sectors need not be written, and between old and new places they better are not.
    let skips = Vec::new();
    Map {
        nparity,
        stripes,
        skips,
        sector,
        len: s * sector,
        widened: Some(Widened {
            logical,
            physical,
            rows: places,
            swapped,
            also,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Every layout covers the block once, never uses a place twice, takes exactly the allocated
    /// sectors, and has at most one column of a stripe on a child.
    #[test]
    fn places_are_disjoint_and_complete() {
        for ashift in [9, 12] {
            let sec = 1u64 << ashift;
            for (nparity, logical) in (1..=3).flat_map(|p| (p + 1..=8).map(move |w| (p, w))) {
                for physical in logical..=logical + 2 {
                    for s in 1..=40usize {
                        for start in [0, 1, 5, (1 << 20 >> ashift), (3 << 20 >> ashift) + 3] {
                            let m = raidz(
                                physical,
                                logical,
                                nparity,
                                ashift,
                                start * sec,
                                s << ashift,
                                None,
                            )
                            .unwrap();
                            let mut places = HashSet::new();
                            let mut filled = vec![0u8; s];
                            for st in &m.stripes {
                                let kids: HashSet<_> = st.cols.iter().map(|c| c.child).collect();
                                assert_eq!(kids.len(), st.cols.len());
                                for (i, c) in st.cols.iter().enumerate() {
                                    assert!(c.child < physical && c.size > 0);
                                    assert!(c.size <= st.cols[0].size);
                                    for k in 0..c.size as u64 / sec {
                                        assert!(places.insert((c.child, c.offset + k * sec)));
                                        if i >= nparity {
                                            filled[c.at / sec as usize + k as usize] += 1;
                                        }
                                    }
                                }
                            }
                            assert!(filled.iter().all(|f| *f == 1));
                            let asize = crate::size::raidz_asize(
                                m.len as u64,
                                ashift,
                                logical as u64,
                                nparity as u64,
                            );
                            for p in &m.skips {
                                assert!(places.insert(*p));
                            }
                            if physical > logical {
                                let used = places.len() as u64;
                                assert!((used..=used + nparity as u64).contains(&(asize / sec)));
                                let own: HashSet<_> = (start..start + asize / sec)
                                    .map(|k| place(k, physical, ashift))
                                    .collect();
                                assert!(places.is_subset(&own));
                                continue;
                            }
                            assert_eq!(places.len() as u64, asize / sec);
                            // The same sectors of the vdev as the allocation.
                            for k in start..start + asize / sec {
                                assert!(places.contains(&place(k, physical, ashift)));
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn parity_and_data_change_places_every_mib_for_single_parity_only() {
        let child = |p, off| raidz(4, 4, p, 9, off, 4096, None).unwrap().stripes[0].cols[0].child;
        assert_eq!(
            (child(1, 0), child(1, 1 << 20), child(1, 1 << 21)),
            (0, 1, 0)
        );
        assert_eq!((child(2, 0), child(2, 1 << 20)), (0, 0));
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(raidz(3, 3, 0, 9, 0, 512, None).is_err());
        assert!(raidz(3, 3, 3, 9, 0, 512, None).is_err());
        assert!(raidz(2, 3, 1, 9, 0, 512, None).is_err());
        assert!(raidz(3, 3, 1, 60, 0, 512, None).is_err());
        assert!(raidz(3, 3, 1, 9, 7, 512, None).is_err());
        assert!(raidz(3, 3, 1, 9, 0, 0, None).is_err());
        assert!(raidz(3, 3, 1, 9, 0, usize::MAX, None).is_err());
        // Far away is no nonsense here: whoever knows the size checks it.
        raidz(3, 3, 1, 9, !511, 4096, None).unwrap_or_else(|_| panic!("a layout"));
    }
}
