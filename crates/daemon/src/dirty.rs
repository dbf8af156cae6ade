//! The limit of written data that the kernel may cache for each mount.
//!
//! Under the write-back cache the kernel answers a write by itself and sends the data later, at the
//! latest when the file is closed or synced. For FUSE it keeps a hundredth of what it would keep of
//! a file system of its own (`max_ratio` and `strict_limit` of the mount's backing device,
//! Documentation/ABI/testing/sysfs-class-bdi of Linux), so random writes to files that stay open go
//! out at once and one by one. Here each mount gets more of it, in percent of the machine's limit:
//! as long as it is a small part of the room that is left, since a lack of it is told of only when the
//! data come here, and of what the daemon itself may hold.
//!
//! Only root may say so; elsewhere it stays as it is.

use crate::door;
use admin::{Mounted, PoolEntry};
use rustix::param::page_size;
use std::fs;
use std::time::{Duration, Instant};

/// How often it is looked, at most.
const EVERY: Duration = Duration::from_secs(1);
/// What the kernel begins with, and most that a mount gets (percent).
const LEAST: u64 = 1;
const MOST: u64 = 20;
/// The part of the room that all mounts of a pool may promise together.
const ROOM: u64 = 4;

/// Looks after the mounts of one pool.
#[derive(Default)]
pub struct Dirty {
    last: Option<Instant>,
    /// The youngest mount that was given its share: another one does not wait.
    newest: Option<u64>,
}

impl Dirty {
    /// Gives each mount its share, if it is time to. `ceiling`: bytes the daemon may hold.
    pub fn look(&mut self, entry: &PoolEntry, ceiling: u64) {
        let mounts = entry.all_mounts();
        let newest = mounts.last().map(|m| m.sequence);
        if newest == self.newest && self.last.is_some_and(|l| l.elapsed() < EVERY) {
            return;
        }
        self.last = Some(Instant::now());
        self.newest = newest;
        let Some(limit) = (if mounts.is_empty() { None } else { limit() }) else {
            return;
        };
        let share_of = |m: &Mounted| match m.zfs().has_quotas() {
            // A quota of a user is noticed as late as a lack of room, and how much of it is left depends
            // on who writes.
            true => LEAST,
            false => share(m.ds.available().bytes, mounts.len(), ceiling, limit),
        };
        for m in &mounts {
            if let Some(own) = door::of(m) {
                let shown = mounts.iter().filter(|other| own.shows(other));
                let least = shown.map(|m| share_of(m)).min();
                let share = share_of(m);
                own.set_most_dirty(least.map_or(share, |least| share.min(least)) as u32);
            }
        }
    }
}

/// Bytes of written data at which the kernel makes all writers wait.
fn limit() -> Option<u64> {
    threshold(&fs::read_to_string("/proc/vmstat").ok()?).map(|pages| pages * page_size() as u64)
}

/// The same in pages, from `/proc/vmstat`.
fn threshold(vmstat: &str) -> Option<u64> {
    let mut lines = vmstat.lines();
    let pages = lines.find_map(|l| l.strip_prefix("nr_dirty_threshold "))?;
    pages.trim().parse().ok()
}

/// Percent of `limit` for one of `mounts` mounts of which one has so much room.
fn share(available: u64, mounts: usize, ceiling: u64, limit: u64) -> u64 {
    let bytes = (available / ROOM / mounts.max(1) as u64).min(ceiling);
    let percent = u128::from(bytes) * 100 / u128::from(limit.max(1));
    (percent.min(u128::from(MOST)) as u64).max(LEAST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_mount_promises_more_than_its_part_of_the_room() {
        let g = 1u64 << 30;
        assert_eq!(share(100 * g, 1, g, 5 * g), 20);
        assert_eq!(share(100 * g, 100, g, 5 * g), 5);
        assert_eq!(share(5 * g, 5, g, 5 * g), 5);
        assert_eq!(share(g / 4, 1, g, 5 * g), 1);
        assert_eq!(share(0, 0, g, 0), 1);
        assert_eq!(share(u64::MAX, 1, u64::MAX, 1), 20);
        // A daemon that may hold little does not let the kernel hold much.
        assert_eq!(share(100 * g, 1, 64 << 20, 5 * g), 1);
    }

    #[test]
    fn the_kernels_limit_is_among_its_figures() {
        let text = "nr_dirty 1\nnr_dirty_threshold 1211896\nnr_dirty_background_threshold 6\n";
        assert_eq!(threshold(text), Some(1_211_896));
        assert_eq!(threshold("nr_dirty 1\n"), None);
        assert!(limit().is_some_and(|l| l > 1 << 20));
    }
}
