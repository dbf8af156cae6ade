//! The space of blocks, and its comparison with the space maps.

use crate::{Audit, Finding, Origin, Sink};
use base::mutation::{mutated, Mutation};
use base::{Error, RangeSet, Result};
use disk::{BlkPtr, Dva};

/// Gangs within gangs.
const GANG_DEPTH: u32 = 3;
const GANG_HEADER: u64 = 512;
/// Removed vdevs whose blocks went to vdevs that were removed later.
const MOST_MOVES: u32 = 16;
/// Metaslabs whose free space is kept while trees are visited that are being destroyed.
const MOST_FREE: usize = 256;

/// What a comparison found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// Bytes that the space maps say are allocated.
    pub allocated: u64,
    /// Bytes of leaked space, less bytes in use but free.
    pub missing: i64,
    /// Number of findings.
    pub findings: u64,
}

impl Audit<'_> {
    /// Whether the space maps say that a block's space is allocated.
    pub(crate) fn is_allocated(&mut self, bp: &BlkPtr) -> bool {
        let d = bp.dva(0);
        if bp.is_embedded() {
            return true;
        }
        let Ok(top) = self.pool.tree().top(d.vdev()) else {
            return false;
        };
        let ms = d.offset().checked_shr(top.metaslab_shift()).unwrap_or(0);
        let pool = self.pool;
        let key = (d.vdev(), ms);
        if self.free.len() >= MOST_FREE && !self.free.contains_key(&key) {
            self.free.clear();
        }
        let free = self
            .free
            .entry(key)
            .or_insert_with(|| pool.maps().load(d.vdev(), ms).unwrap_or_default());
        !free.overlaps(d.offset(), d.offset().saturating_add(512))
    }

    /// Notes the space of a block; of a gang, of its headers and members. `maybe`: the maps may say
    /// that it is free.
    pub(crate) fn space(&mut self, bp: &BlkPtr, maybe: bool, origin: Origin, sink: Sink) {
        if bp.is_hole() || bp.is_embedded() {
            return;
        }
        if let Err(error) = bp.sanity(self.pool.tree().tops().len() as u64) {
            return sink(Finding::Malformed { origin, error });
        }
        self.gang(bp, maybe, origin, 0, sink);
    }

    pub(crate) fn gang(
        &mut self,
        bp: &BlkPtr,
        maybe: bool,
        origin: Origin,
        depth: u32,
        sink: Sink,
    ) {
        let gang = bp.is_gang() && depth <= GANG_DEPTH;
        // Further pointers lead to the same members.
        let mut met = bp.is_dedup();
        for d in bp.dvas() {
            let size = match (gang, self.pool.tree().top(d.vdev())) {
                (true, Ok(top)) => top.asize_for(GANG_HEADER),
                _ => d.asize(),
            };
            let new = self.mark(&d, size, maybe, 0);
            met &= new == 0;
            if new < size && !maybe && !self.shared_allowed && !bp.is_dedup() {
                sink(Finding::Shared { origin, bp: *bp });
            }
        }
        if !gang || met {
            return;
        }
        let header = (0..bp.dvas().len()).find_map(|i| self.pool.zio().gang_header(bp, i).ok());
        match header {
            Some(children) => {
                for c in children.iter().filter(|c| !c.is_hole()) {
                    self.gang(c, maybe, origin, depth + 1, sink);
                }
            }
            None => {
                let error = Error::damaged(format!("gang header of {bp:?}"));
                sink(Finding::Malformed { origin, error });
            }
        }
    }

    /// Marks a range; of a removed device, where it went. Returns how many bytes were not marked before.
    fn mark(&mut self, d: &Dva, size: u64, maybe: bool, depth: u32) -> u64 {
        if let (Ok(top), true) = (self.pool.tree().top(d.vdev()), depth < MOST_MOVES) {
            if let Some(map) = top.indirect().filter(|_| !top.is_concrete()) {
                // What cannot be resolved is new nowhere, which is a finding.
                let pieces = map.resolve(d.offset(), size as usize).unwrap_or_default();
                let mut new = 0;
                for p in pieces {
                    let to = Dva::new(p.vdev, p.offset, p.len as u64, false);
                    new += self.mark(&to, p.len as u64, maybe, depth + 1);
                }
                return new;
            }
        }
        let (start, end) = (d.offset(), d.offset().saturating_add(size));
        let map = match maybe {
            true => &mut self.maybe,
            false => &mut self.seen,
        };
        map.entry(d.vdev()).or_default().insert(start, end)
    }

    /// Compares the space of the blocks visited with the space maps.
    ///
    /// # Errors
    /// A space map that cannot be loaded.
    pub fn compare(&self, sink: Sink) -> Result<Compared> {
        let none = RangeSet::new();
        let (mut leaked, mut lost) = (RangeSet::new(), RangeSet::new());
        let mut out = Compared::default();
        for top in self.pool.tree().tops().iter().filter(|t| t.is_concrete()) {
            let vdev = top.id();
            let seen = self.seen.get(&vdev).unwrap_or(&none);
            let maybe = self.maybe.get(&vdev).unwrap_or(&none);
            for ms in 0..self.pool.space().metaslab_count(vdev) {
                let (start, end) = self.pool.space().metaslab_bounds(vdev, ms)?;
                let free = self.pool.maps().load(vdev, ms)?;
                leaked.clear();
                for (s, e) in free.gaps(start, end) {
                    leaked.insert(s, e);
                }
                out.allocated += leaked.total();
                for set in [seen, maybe] {
                    for (s, e) in parts(set, start, end) {
                        leaked.remove(s, e);
                    }
                }
                lost.clear();
                for (s, e) in parts(seen, start, end) {
                    for (fs, fe) in parts(&free, s, e) {
                        lost.insert(fs, fe);
                    }
                }
                out.missing += leaked.total() as i64 - lost.total() as i64;
                if mutated(Mutation::LeaksPassed) {
                    leaked.clear();
                }
                for (start, end) in leaked.iter() {
                    out.findings += 1;
                    sink(Finding::Leaked { vdev, start, end });
                }
                for (start, end) in lost.iter() {
                    out.findings += 1;
                    sink(Finding::Free { vdev, start, end });
                }
            }
        }
        Ok(out)
    }
}

/// The ranges of a set inside `start..end`, cut to it.
fn parts(set: &RangeSet, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
    let mut at = start;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let (s, e) = set.next_from(at).filter(|(s, _)| *s < end)?;
        at = e;
        Some((s.max(start), e.min(end)))
    })
}
