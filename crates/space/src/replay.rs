//! From space map entries to free ranges.

use base::{bail, RangeSet, Result};

/// One space map entry in bytes; offsets relative to the vdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmOp {
    /// Free or alloc.
    pub free: bool,
    pub offset: u64,
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

/// Changes of one metaslab that are only in log space maps so far (pool format §16.4): an alloc
/// cancels a pending free of the same bytes and the other way round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unflushed {
    pub allocs: RangeSet,
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
