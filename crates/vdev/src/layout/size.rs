//! Sizes: what a block takes, how large metaslabs are (pool format §5.5, §8).

use crate::map::MAX_SHIFT;

/// Allocated bytes of a block of `psize` bytes on a plain vdev or mirror.
pub fn plain_asize(psize: u64, ashift: u32) -> u64 {
    base::roundup(psize, 1 << ashift.min(MAX_SHIFT))
}

/// Allocated bytes of a block of `psize` bytes on RAID-Z of `width` children: data, parity for
/// every row, and skip sectors up to a multiple of parity + 1.
pub fn raidz_asize(psize: u64, ashift: u32, width: u64, nparity: u64) -> u64 {
    let ashift = ashift.min(MAX_SHIFT);
    let data = psize.div_ceil(1 << ashift);
    let per_row = width.saturating_sub(nparity).max(1);
    let all = data + nparity * data.div_ceil(per_row);
    base::roundup(all, nparity + 1) << ashift
}

/// Allocated bytes of a block of `psize` bytes on dRAID: whole rows of a group.
pub fn draid_asize(psize: u64, ashift: u32, ndata: u64, nparity: u64) -> u64 {
    let ashift = ashift.min(MAX_SHIFT);
    let rows = psize.div_ceil(ndata.max(1) << ashift);
    (rows * (ndata + nparity)) << ashift
}

/// Deflation ratio of a top-level vdev: deflated bytes are sectors times this. 512 (identity) for
/// plain vdevs. `asize_128k` is what a block of 128 KiB takes.
pub fn deflate_ratio(asize_128k: u64) -> u64 {
    (128u64 << 10) / (asize_128k / 512).max(1)
}

/// Most metaslabs of a top-level vdev. It has so many when it was made on 64 MiB and grew to 32 TiB; a configuration with more is
/// damaged.
pub const MOST_METASLABS: u64 = 1 << 21;

/// log2 of the metaslab size for a new top-level vdev of `asize` bytes.
pub fn metaslab_shift(asize: u64) -> u32 {
    let bits = |per: u64| asize.checked_div(per).unwrap_or(0).max(1).ilog2() + 1;
    let count = asize >> 29;
    let mut shift = if count < 16 {
        bits(16)
    } else if count > 200 {
        bits(200)
    } else {
        29
    };
    shift = shift.max(24);
    if shift > 34 {
        shift = 34;
        if asize >> 34 > 131_072 {
            shift = bits(131_072);
        }
    }
    shift
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_block_takes() {
        assert_eq!(plain_asize(1, 9), 512);
        assert_eq!(plain_asize(513, 12), 4096);
        // 3 wide, single parity: 8 data + 4 parity sectors, already even.
        assert_eq!(raidz_asize(4096, 9, 3, 1), 12 * 512);
        // One sector: one parity.
        assert_eq!(raidz_asize(512, 9, 3, 1), 2 * 512);
        assert_eq!(raidz_asize(1024, 9, 5, 1), 4 * 512);
        assert_eq!(raidz_asize(512, 12, 5, 2), 3 * 4096);
        assert_eq!(raidz_asize(4 * 4096, 12, 5, 2), 9 * 4096);
        assert_eq!(draid_asize(1, 12, 3, 2), 5 * 4096);
        assert_eq!(deflate_ratio(128 << 10), 512);
        assert_eq!(deflate_ratio(raidz_asize(128 << 10, 9, 3, 1)), 131072 / 384);
    }

    #[test]
    fn metaslab_shifts() {
        // Those of real pools.
        assert_eq!(metaslab_shift(237_502_464), 24);
        assert_eq!(metaslab_shift(95_944_704), 24);
        assert_eq!(metaslab_shift(397_934_592), 25);
        assert_eq!(metaslab_shift(16 << 29), 29);
        assert_eq!(metaslab_shift(200 << 29), 29);
        assert_eq!(metaslab_shift(1 << 40), 33);
        assert_eq!(metaslab_shift(1 << 50), 34);
        assert_eq!(metaslab_shift(1 << 52), 36);
        assert_eq!(metaslab_shift(0), 24);
    }
}
