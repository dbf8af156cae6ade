//! The memory budget: one limit for everything the daemon holds, divided among its pools.
//!
//! `--max-arc-size` is that ceiling. Half of it is for cached blocks, a quarter for changes not yet on
//! disk; both are shared evenly by the pools. A sixteenth is for znodes kept for the kernel. The
//! rest is what allocation wastes.

use pool::Tunables;

/// A znode and its dnode, bytes.
const ZNODE: u64 = 2560;

/// Shares of the ceiling for each of `pools` pools.
pub fn tunables(ceiling: u64, pools: usize) -> Tunables {
    let n = pools.max(1) as u64;
    Tunables {
        cache_bytes: ceiling / 2 / n,
        dirty_max: (ceiling / 4 / n).clamp(1 << 20, 1 << 30),
        ..Tunables::default()
    }
}

/// How many znodes are kept for nodes the kernel knows.
pub fn znodes(ceiling: u64) -> usize {
    (ceiling / 16 / ZNODE) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_stay_below_the_ceiling() {
        for ceiling in [16u64 << 20, 64 << 20, 1 << 30, 16 << 30] {
            for n in [0, 1, 2, 5] {
                let t = tunables(ceiling, n);
                let all = (t.cache_bytes + t.dirty_max) * n.max(1) as u64;
                assert!(
                    all + znodes(ceiling) as u64 * ZNODE <= ceiling * 13 / 16 + ((n as u64) << 20)
                );
            }
        }
    }
}
