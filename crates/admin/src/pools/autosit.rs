//! Slow devices of a RAID-Z or dRAID sit out: reads make up for them from parity (vdev properties `sit_out` and `autosit`).
//!
//! The fault agent looks every few seconds. Where `autosit` is on, it compares the mean latencies that the reads of the devices of a
//! group had since they were compared before, once each device was read often enough. A device whose mean is far above the median of the
//! others in several comparisons running sits out for some minutes. The rest of the group still has parity then: no more devices sit out than there is parity.

use crate::events::{self, Events, EREPORT};
use pool::Pool;
use std::collections::HashMap;
use std::sync::Arc;
use vdev::{Vdev, VdevKind};

/// How long a device sits out, nanoseconds (OpenZFS's `vdev_read_sit_out_secs`).
const SIT_OUT: u64 = 600 * 1_000_000_000;
/// Comparisons running in which a device must have been slow.
const LOOKS: u32 = 3;
/// A mean of fewer reads says nothing.
const LEAST_READS: u64 = 16;
/// A device is slow if its mean is this many times the median of the others.
const FACTOR: u64 = 4;
/// No mean below this is slow, nanoseconds.
const LEAST: u64 = 5_000_000;

/// The moment until which a device sits out that begins to do so at `now`, monotonic nanoseconds.
pub(super) fn until(now: u64) -> u64 {
    now.saturating_add(SIT_OUT).max(1)
}

/// What is known of the latencies of a pool's devices.
#[derive(Default)]
pub(super) struct Autosit {
    /// Reads by latency, by leaf, at the comparison before.
    before: HashMap<u64, Vec<u64>>,
    /// Comparisons running in which a leaf was slow.
    slow: HashMap<u64, u32>,
}

impl Autosit {
    /// Ends what has lasted long enough, and has slow devices sit out.
    pub(super) fn look(&mut self, events: &Events, pool: &Pool, now: u64) {
        for leaf in pool.tree().leaves() {
            let until = leaf.sits_out();
            if until != 0 && now >= until {
                leaf.sit_out(0);
            }
        }
        let all = pool.tree().all();
        let is_group =
            |v: &Vdev| matches!(v.kind(), VdevKind::Raidz { .. } | VdevKind::Draid { .. });
        let leaves = pool.tree().leaves();
        self.before
            .retain(|guid, _| leaves.iter().any(|l| l.guid() == *guid));
        for group in all.iter().filter(|v| is_group(v)) {
            if !pool.is_autosit(group.guid()) {
                continue;
            }
            let Some(means) = self.means(group) else {
                continue;
            };
            let slow = slowest(&means);
            self.slow.retain(|guid, _| {
                Some(*guid) == slow || !group.children().iter().any(|c| c.guid() == *guid)
            });
            let Some(guid) = slow else { continue };
            let looks = self.slow.entry(guid).or_default();
            *looks += 1;
            if *looks < LOOKS {
                continue;
            }
            self.slow.remove(&guid);
            // Refused where as many devices as there is parity sit out.
            if pool.sit_out(guid, until(now)).is_ok() {
                if let Ok((_, leaf)) = pool.tree().leaf_of(guid) {
                    events.post(EREPORT, "sitout", pool, events::of_vdev(pool, &leaf));
                }
            }
        }
    }

    /// Mean latencies of the reads of a group's devices, but those that sit out, since this last gave any; none while one of the
    /// devices was read too seldom to say.
    fn means(&mut self, group: &Vdev) -> Option<Vec<(u64, u64)>> {
        let read = |c: &&Arc<Vdev>| c.kind().is_leaf() && c.sits_out() == 0;
        let figures = group.children().iter().filter(read);
        let reads: Vec<(u64, Vec<u64>)> = figures
            .filter_map(|leaf| {
                let [reads, _] = leaf.io_figures()?.disk_wait;
                Some((leaf.guid(), reads))
            })
            .collect();
        let mut means = Vec::new();
        for (guid, now) in &reads {
            let before = self.before.entry(*guid).or_insert_with(|| now.clone());
            means.extend(mean(before, now).map(|mean| (*guid, mean)));
        }
        if means.len() < reads.len() {
            return None;
        }
        self.before.extend(reads);
        Some(means)
    }
}

/// Mean latency of the reads since `before`, nanoseconds; none if there were too few. Bucket n counts 2^n to 2^(n+1)-1 ns.
fn mean(before: &[u64], now: &[u64]) -> Option<u64> {
    let (mut count, mut sum) = (0u64, 0u128);
    for (n, (now, before)) in now.iter().zip(before).enumerate() {
        let new = now.saturating_sub(*before);
        count += new;
        sum += u128::from(new) * (3u128 << n) / 2;
    }
    (count >= LEAST_READS).then(|| (sum / u128::from(count)) as u64)
}

/// The device that is far slower than the others, of which there must be two.
fn slowest(means: &[(u64, u64)]) -> Option<u64> {
    let (guid, most) = means.iter().max_by_key(|(_, mean)| *mean).copied()?;
    let mut others: Vec<u64> = means
        .iter()
        .filter(|(g, _)| *g != guid)
        .map(|(_, mean)| *mean)
        .collect();
    others.sort_unstable();
    let median = *others.get(others.len() / 2).filter(|_| others.len() >= 2)?;
    (most >= LEAST && most > median.saturating_mul(FACTOR)).then_some(guid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_count_what_came_since() {
        let before = vec![0, 0, 0, 100];
        assert_eq!(mean(&before, &[0, 0, 0, 115]), None);
        assert_eq!(mean(&before, &[0, 0, 0, 116]), Some(12));
        assert_eq!(mean(&before, &[0, 0, 8, 108]), Some(9));
    }

    #[test]
    fn only_a_device_far_from_the_others_is_slow() {
        let ms = |list: &[u64]| -> Vec<(u64, u64)> {
            let all = list.iter().enumerate();
            all.map(|(i, n)| (i as u64 + 1, n * 1_000_000)).collect()
        };
        assert_eq!(slowest(&ms(&[5, 6, 40, 5])), Some(3));
        assert_eq!(slowest(&ms(&[5, 6, 20, 5])), None);
        // Fast devices differ by more than that.
        assert_eq!(slowest(&ms(&[0, 0, 4, 0])), None);
        assert_eq!(slowest(&ms(&[5, 40])), None);
        assert_eq!(slowest(&[]), None);
    }
}
