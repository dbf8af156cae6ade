//! Sums over vdevs and metaslabs, for `zpool list`, `zpool status` and the checks of free space.

use crate::metaslab::{Hist, State};
use crate::top::Top;
use crate::{Class, Inner, Space};
use base::Result;

/// How fragmented free space in segments of 2^(9+i) bytes counts, percent; larger segments count 0
/// (the weights of ZFS).
const FRAG: [u64; 16] = [
    100, 100, 98, 95, 90, 80, 70, 60, 50, 40, 30, 20, 15, 10, 5, 0,
];

/// Slop limits (pool format §16.7).
const SLOP_MAX: u64 = 128 << 30;
const SLOP_MIN: u64 = 128 << 20;

/// One top-level vdev. Bytes are raw (parity included).
#[derive(Clone, Debug)]
pub struct VdevStats {
    /// Number of the vdev, as in a DVA.
    pub id: u64,
    /// What is allocated on it.
    pub class: Class,
    /// Sum of all metaslabs, the embedded log included.
    pub size: u64,
    /// Bytes in use.
    pub allocated: u64,
    /// Freed but not yet allocatable.
    pub deferred: u64,
    /// Percent; `None` while some metaslab's histogram is unknown.
    pub fragmentation: Option<u64>,
    /// Largest free segment in loaded metaslabs.
    pub largest_free: u64,
    /// Number of metaslabs.
    pub metaslabs: u64,
    /// Number of metaslabs whose free ranges are in memory.
    pub loaded: u64,
    /// Part of `size` and `allocated` that is the embedded log.
    pub embedded_size: u64,
    /// Bytes in use by the embedded log.
    pub embedded_allocated: u64,
    /// As in [`TopSpec`](crate::TopSpec): 512 where nothing is deflated.
    pub deflate_ratio: u64,
}

/// All vdevs of a class, embedded log metaslabs left out (they are a row of their own).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassStats {
    /// Raw bytes of all metaslabs.
    pub size: u64,
    /// Raw bytes in use.
    pub allocated: u64,
    /// Raw bytes freed but not yet allocatable.
    pub deferred: u64,
    /// The same three deflated: bytes / 512 × ratio of the vdev.
    pub dsize: u64,
    /// `allocated`, deflated.
    pub dallocated: u64,
    /// `deferred`, deflated.
    pub ddeferred: u64,
}

/// The whole pool.
#[derive(Clone, Debug)]
pub struct Stats {
    /// One entry for each top-level vdev, in the order of their numbers.
    pub vdevs: Vec<VdevStats>,
    /// Vdevs of the normal class.
    pub normal: ClassStats,
    /// Log devices.
    pub log: ClassStats,
    /// Special devices.
    pub special: ClassStats,
    /// Dedup devices.
    pub dedup: ClassStats,
    /// The metaslabs of normal vdevs that are set aside for the log.
    pub embedded_log: ClassStats,
    /// Of the normal class, percent, vdevs weighted by size.
    pub fragmentation: Option<u64>,
    /// Deflated bytes ordinary writes must leave (pool format §16.7).
    pub slop: u64,
}

/// Slop space for `space` deflated bytes of the normal class with `embedded` deflated bytes of
/// embedded log: 1/32, at most 128 GiB, less the embedded log (but by no more than half), at least
/// the smaller of 128 MiB and half of the space.
pub fn slop(space: u64, embedded: u64) -> u64 {
    let s = (space / 32).min(SLOP_MAX);
    let s = s - embedded.min(s / 2);
    s.max((space / 2).min(SLOP_MIN))
}

/// Percent for one histogram; 0 if nothing is free.
fn fragmentation(h: &Hist) -> u64 {
    let (mut space, mut weighted) = (0u128, 0u128);
    for (i, &n) in h.iter().enumerate().filter(|(_, n)| **n > 0) {
        let bytes = (n as u128) << i;
        let weight = FRAG[i.saturating_sub(9).min(FRAG.len() - 1)];
        space += bytes;
        weighted += bytes * weight as u128;
    }
    if space == 0 {
        return 0;
    }
    (weighted / space) as u64
}

impl ClassStats {
    fn add(&mut self, top: &Top, embedded: bool) {
        let a = &top.acct[embedded as usize];
        let deflate = |bytes: u64| (bytes / 512).saturating_mul(top.spec.deflate_ratio);
        self.size += a.size;
        self.allocated += a.allocated;
        self.deferred += a.deferred;
        self.dsize += deflate(a.size);
        self.dallocated += deflate(a.allocated);
        self.ddeferred += deflate(a.deferred);
    }
}

impl Inner {
    fn dataset_space(&self) -> u64 {
        let mut out = ClassStats::default();
        let counts = |t: &&Top| t.spec.class == Class::Normal && t.allocating;
        for t in self.tops.values().filter(counts) {
            out.add(t, false);
        }
        out.dsize
    }
}

impl Space {
    /// Sums of one class: cheap, no histograms.
    pub fn class_stats(&self, class: Class) -> ClassStats {
        let inner = self.lock();
        let mut out = ClassStats::default();
        for t in inner.tops.values().filter(|t| t.spec.class == class) {
            out.add(t, false);
        }
        out
    }

    /// Bytes freed that are not allocatable yet, in all classes.
    pub fn deferred(&self) -> u64 {
        let inner = self.lock();
        let tops = inner.tops.values();
        tops.map(|t| t.acct[0].deferred + t.acct[1].deferred).sum()
    }

    /// Sums of the embedded log metaslabs.
    pub fn embedded_stats(&self) -> ClassStats {
        let inner = self.lock();
        let mut out = ClassStats::default();
        for t in inner.tops.values() {
            out.add(t, true);
        }
        out
    }

    /// Deflated bytes that datasets can be given: the normal class without vdevs that are not
    /// allocated from (what is on them may have to find room elsewhere). Special and dedup vdevs do
    /// not count: what is on them is charged all the same. Cheap.
    pub fn dataset_space(&self) -> u64 {
        self.lock().dataset_space()
    }

    /// Slop space now, deflated bytes: cheap.
    pub fn slop_space(&self) -> u64 {
        slop(self.dataset_space(), self.embedded_stats().dsize)
    }

    /// Deflated bytes of the normal class that can be given out at once, beyond slop space: cheap.
    pub fn room(&self) -> u64 {
        let slop = self.slop_space();
        let inner = self.lock();
        let mut out = ClassStats::default();
        let counts = |t: &&Top| t.spec.class == Class::Normal && t.allocating;
        for t in inner.tops.values().filter(counts) {
            out.add(t, false);
        }
        out.dsize
            .saturating_sub(out.dallocated)
            .saturating_sub(out.ddeferred)
            .saturating_sub(slop)
    }

    /// Everything, histograms included.
    pub fn stats(&self) -> Stats {
        let inner = self.lock();
        let mut s = Stats {
            vdevs: Vec::new(),
            normal: ClassStats::default(),
            log: ClassStats::default(),
            special: ClassStats::default(),
            dedup: ClassStats::default(),
            embedded_log: ClassStats::default(),
            fragmentation: None,
            slop: 0,
        };
        let (mut weighted, mut weight, mut known) = (0u128, 0u128, true);
        for (&id, t) in &inner.tops {
            match t.spec.class {
                Class::Normal => s.normal.add(t, false),
                Class::Log => s.log.add(t, false),
                Class::Special => s.special.add(t, false),
                Class::Dedup => s.dedup.add(t, false),
            }
            s.embedded_log.add(t, true);
            let mut frag = Some(0);
            let mut largest = 0;
            let mut loaded = 0;
            for m in &t.ms {
                let f = m.known_hist().map(|h| fragmentation(&h));
                frag = frag.zip(f).map(|(a, b)| a + b);
                if let State::Loaded(tree) = &m.state {
                    loaded += 1;
                    largest = largest.max(tree.largest());
                }
            }
            let frag = frag.map(|f| f / t.ms.len().max(1) as u64);
            let size = t.acct[0].size + t.acct[1].size;
            if t.spec.class == Class::Normal {
                known &= frag.is_some();
                weighted += frag.unwrap_or(0) as u128 * size as u128;
                weight += size as u128;
            }
            s.vdevs.push(VdevStats {
                id,
                class: t.spec.class,
                size,
                allocated: t.acct[0].allocated + t.acct[1].allocated,
                deferred: t.acct[0].deferred + t.acct[1].deferred,
                fragmentation: frag,
                largest_free: largest,
                metaslabs: t.ms.len() as u64,
                loaded,
                embedded_size: t.acct[1].size,
                embedded_allocated: t.acct[1].allocated,
                deflate_ratio: t.spec.deflate_ratio,
            });
        }
        if known && weight > 0 {
            s.fragmentation = Some((weighted / weight) as u64);
        }
        s.slop = slop(inner.dataset_space(), s.embedded_log.dsize);
        s
    }

    /// Whether a metaslab is kept for the intent log. Cheap.
    pub fn is_embedded_log(&self, vdev: u64, ms: u64) -> bool {
        self.lock().ms(vdev, ms).is_ok_and(|m| m.embedded)
    }

    /// Bounds of a metaslab in vdev offsets, and bytes in use there. Cheap.
    pub fn metaslab_use(&self, vdev: u64, ms: u64) -> Result<(u64, u64, u64)> {
        let mut inner = self.lock();
        let m = inner.ms(vdev, ms)?;
        Ok((m.start, m.end, m.allocated))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slop_sizes() {
        assert_eq!(slop(64 << 20, 0), 32 << 20);
        assert_eq!(slop(1 << 30, 0), 128 << 20);
        assert_eq!(slop(32 << 30, 0), 1 << 30);
        assert_eq!(slop(32 << 30, 512 << 20), 512 << 20);
        assert_eq!(slop(32 << 30, 16 << 30), 512 << 20);
        assert_eq!(slop(1 << 50, 0), 128 << 30);
    }

    #[test]
    fn what_datasets_can_be_given() {
        let space = Space::new();
        for (id, class) in [Class::Normal, Class::Normal, Class::Special, Class::Dedup]
            .into_iter()
            .enumerate()
        {
            let spec = crate::TopSpec {
                id: id as u64,
                asize: 1 << 30,
                ashift: 12,
                ms_shift: 24,
                class,
                deflate_ratio: 512,
                children: 1,
                align: 0,
            };
            space.add_top(spec).unwrap();
        }
        assert_eq!(space.dataset_space(), 2 << 30);
        assert_eq!(space.slop_space(), slop(2 << 30, 0));
        space.set_allocating(1, false).unwrap();
        assert_eq!(space.dataset_space(), 1 << 30);
        assert_eq!(space.stats().slop, slop(1 << 30, 0));
        assert_eq!(space.class_stats(Class::Normal).size, 2 << 30);
        space.set_allocating(1, true).unwrap();
        assert_eq!(space.dataset_space(), 2 << 30);
    }

    #[test]
    fn fragmentation_weights() {
        let mut h = [0; 64];
        assert_eq!(fragmentation(&h), 0);
        h[30] = 1;
        assert_eq!(fragmentation(&h), 0);
        h = [0; 64];
        h[9] = 7;
        assert_eq!(fragmentation(&h), 100);
        h = [0; 64];
        h[17] = 1;
        assert_eq!(fragmentation(&h), 50);
    }
}
