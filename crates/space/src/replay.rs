//! Computes the free ranges of a metaslab from the entries of its space map.

use crate::MsChange;
use base::{bail, RangeSet, Result, Txg};
use disk::spacemap::{entries, Entry, Writer};

/// One space map entry in bytes; offsets relative to the vdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmOp {
    /// Free or alloc.
    pub free: bool,
    /// Bytes from the start of the vdev's allocatable space.
    pub offset: u64,
    /// Bytes; never 0.
    pub len: u64,
}

/// Free ranges of the region `[start, end)` after all entries in order, beginning with everything
/// free (pool format §16.3). `Kind::Damaged` for an entry outside the region, an alloc of space
/// that is allocated or a free of space that is free.
pub fn replay(
    start: u64,
    end: u64,
    ops: impl IntoIterator<Item = Result<SmOp>>,
) -> Result<RangeSet> {
    let mut free = RangeSet::new();
    free.insert(start, end);
    for op in ops {
        apply(&mut free, start, end, op?)?;
    }
    Ok(free)
}

/// One more entry on top of `free`.
pub fn apply(free: &mut RangeSet, start: u64, end: u64, op: SmOp) -> Result<()> {
    let to = match op.offset.checked_add(op.len) {
        Some(to) if op.offset >= start && to <= end && op.len > 0 => to,
        _ => bail!(
            Damaged,
            "space map entry {:#x}+{:#x} outside of {start:#x}..{end:#x}",
            op.offset,
            op.len
        ),
    };
    let (done, what) = if op.free {
        // Checked first: a damaged map must not change the set on the way to the error.
        if free.overlaps(op.offset, to) {
            (0, "frees free space")
        } else {
            (free.insert(op.offset, to), "")
        }
    } else if free.contains(op.offset, to) {
        (free.remove(op.offset, to), "")
    } else {
        (0, "allocates allocated space")
    };
    if done != op.len {
        bail!(
            Damaged,
            "space map entry {:#x}+{:#x} {what}",
            op.offset,
            op.len
        );
    }
    Ok(())
}

/// The entries of a metaslab's space map (any whole blocks of it) as bytes of the vdev: `shift` of
/// the map (ashift), `start` of the metaslab. Debug entries are passed over.
pub fn map_ops(data: &[u8], shift: u32, start: u64) -> impl Iterator<Item = Result<SmOp>> + '_ {
    entries(data).filter_map(move |e| match e {
        Ok(Entry::Debug { .. }) => None,
        Ok(Entry::Range(r)) => Some(to_op(&r, shift, start)),
        Err(e) => Some(Err(e)),
    })
}

/// The entries of a log space map (any whole blocks of it) with their vdevs (pool format §16.4).
pub fn log_ops(data: &[u8]) -> impl Iterator<Item = Result<(u64, SmOp)>> + '_ {
    entries(data).filter_map(|e| match e {
        Ok(Entry::Debug { .. }) => None,
        Ok(Entry::Range(r)) => {
            Some(to_op(&r, base::SECTOR_SHIFT, 0).map(|op| (u64::from(r.vdev), op)))
        }
        Err(e) => Some(Err(e)),
    })
}

fn to_op(r: &disk::spacemap::Range, shift: u32, start: u64) -> Result<SmOp> {
    let (s, e) = r.bytes(shift)?;
    match start.checked_add(s) {
        Some(offset) if start.checked_add(e).is_some() => Ok(SmOp {
            free: r.free,
            offset,
            len: e - s,
        }),
        _ => bail!(Damaged, "space map entry out of range: {r:?}"),
    }
}

/// Appends a set of changes to a metaslab's own map: allocs, then frees, each after a debug entry.
/// `start` of the metaslab, `shift` of the map.
pub fn write_map(
    w: &mut Writer,
    (allocs, frees): (&RangeSet, &RangeSet),
    start: u64,
    shift: u32,
    pass: u64,
    txg: Txg,
) -> Result<()> {
    for (free, set) in [(false, allocs), (true, frees)] {
        if set.is_empty() {
            continue;
        }
        w.debug(free, pass, txg);
        for (s, e) in set.iter() {
            w.range(free, (s - start) >> shift, (e - s) >> shift, None)?;
        }
    }
    Ok(())
}

/// Appends the changes of a sync pass to a log space map (shift 9, vdev offsets, two-word entries).
pub fn write_log(w: &mut Writer, changes: &[MsChange], pass: u64, txg: Txg) -> Result<()> {
    let shift = base::SECTOR_SHIFT;
    for c in changes {
        for (free, set) in [(false, &c.allocs), (true, &c.frees)] {
            if set.is_empty() {
                continue;
            }
            w.debug(free, pass, txg);
            for (s, e) in set.iter() {
                w.range(free, s >> shift, (e - s) >> shift, Some(c.vdev as u32))?;
            }
        }
    }
    Ok(())
}

/// A condensed map (pool format §16.3): one alloc of all the region, then its free ranges.
pub fn write_condensed(
    w: &mut Writer,
    (start, end): (u64, u64),
    free: &RangeSet,
    shift: u32,
    pass: u64,
    txg: Txg,
) -> Result<()> {
    let mut all = RangeSet::new();
    all.insert(start, end);
    write_map(w, (&all, free), start, shift, pass, txg)
}

/// Whether a map of `length` bytes is worth rewriting: at least twice what it would be condensed,
/// and more than four blocks.
pub fn should_condense(length: u64, block_size: u64, free: &RangeSet) -> bool {
    // A word or two per free range, and the head.
    let optimal = 8 * (free.len() as u64 + 4);
    length > 4 * block_size.max(512) && length >= 2 * optimal
}

/// Changes of one metaslab that are only in log space maps so far (pool format §16.4): an alloc
/// cancels a pending free of the same bytes and the other way round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unflushed {
    /// Ranges allocated since the metaslab's own map was written (vdev offsets).
    pub allocs: RangeSet,
    /// Ranges freed since then.
    pub frees: RangeSet,
}

impl Unflushed {
    /// Takes in a log entry. `Kind::Damaged` if the bytes are pending the same way already.
    pub fn add(&mut self, op: SmOp) -> Result<()> {
        let Some(end) = op.offset.checked_add(op.len) else {
            bail!(Damaged, "log space map entry at {:#x}", op.offset);
        };
        let (here, there) = if op.free {
            (&mut self.frees, &mut self.allocs)
        } else {
            (&mut self.allocs, &mut self.frees)
        };
        if here.overlaps(op.offset, end) {
            bail!(
                Damaged,
                "log space map repeats {:#x}+{:#x}",
                op.offset,
                op.len
            );
        }
        let rest = there.gaps(op.offset, end);
        there.remove(op.offset, end);
        for (s, e) in rest {
            here.insert(s, e);
        }
        Ok(())
    }

    /// Whether the metaslab's own map is up to date.
    pub fn is_empty(&self) -> bool {
        self.allocs.is_empty() && self.frees.is_empty()
    }

    /// Pending allocs minus pending frees, bytes.
    pub fn net(&self) -> i64 {
        self.allocs.total() as i64 - self.frees.total() as i64
    }

    /// Puts the changes on top of what the metaslab's own map says.
    pub fn apply_to(&self, free: &mut RangeSet, start: u64, end: u64) -> Result<()> {
        let ops = |set: &RangeSet, free| {
            set.iter()
                .map(|(s, e)| SmOp {
                    free,
                    offset: s,
                    len: e - s,
                })
                .collect::<Vec<_>>()
        };
        for op in ops(&self.frees, true)
            .into_iter()
            .chain(ops(&self.allocs, false))
        {
            apply(free, start, end, op)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(free: bool, offset: u64, len: u64) -> Result<SmOp> {
        Ok(SmOp { free, offset, len })
    }

    #[test]
    fn in_order() {
        let r = replay(
            100,
            200,
            [op(false, 100, 50), op(true, 110, 10), op(false, 115, 5)],
        )
        .unwrap();
        assert_eq!(r.iter().collect::<Vec<_>>(), [(110, 115), (150, 200)]);
    }

    #[test]
    fn refuses_nonsense() {
        for bad in [
            vec![op(false, 0, 10), op(false, 9, 2)],
            vec![op(true, 0, 1)],
            vec![op(false, 0, 10), op(true, 5, 6)],
            vec![op(false, 99, 2)],
            vec![op(false, u64::MAX, 2)],
            vec![op(false, 5, 0)],
        ] {
            let e = replay(0, 100, bad).unwrap_err();
            assert_eq!(e.kind, base::Kind::Damaged);
        }
    }

    #[test]
    fn unflushed_cancels() {
        let mut u = Unflushed::default();
        u.add(op(false, 0, 10).unwrap()).unwrap();
        u.add(op(true, 5, 10).unwrap()).unwrap();
        assert_eq!(u.allocs.iter().collect::<Vec<_>>(), [(0, 5)]);
        assert_eq!(u.frees.iter().collect::<Vec<_>>(), [(10, 15)]);
        assert_eq!(u.net(), 0);
        assert!(u.add(op(false, 4, 2).unwrap()).is_err());
        let mut free = RangeSet::new();
        free.insert(0, 5);
        u.apply_to(&mut free, 0, 20).unwrap();
        assert_eq!(free.iter().collect::<Vec<_>>(), [(10, 15)]);
        u.add(op(true, 0, 5).unwrap()).unwrap();
        u.add(op(false, 10, 5).unwrap()).unwrap();
        assert!(u.is_empty());
    }
}
