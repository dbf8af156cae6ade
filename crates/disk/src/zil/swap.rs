//! Log records of the other byte order: words are swapped, names, entries of ACLs and data are not
//! (or by their own rules).

use crate::acl;
use crate::blkptr::BP_SIZE;
use crate::bytes::{slice_at, swap_u32s, swap_u64s, u32_at, u64_at, up8};
use base::{bail, Result};

/// Puts the record at the start of `b` into little endian and returns its length.
pub fn record_to_little_endian(b: &mut [u8]) -> Result<usize> {
    slice_at(b, 0, 32)?;
    swap_u64s(&mut b[..32]);
    let len = u64_at(b, 8)?;
    if len < 32 || len > b.len() as u64 || len % 8 != 0 {
        bail!(Damaged, "log record of {len} bytes");
    }
    let b = &mut b[..len as usize];
    let fixed = match u64_at(b, 0)? & !(1 << 63) {
        1..=4 | 15 | 18 => 104,
        5 | 6 => 40,
        7 | 8 | 12 | 21 | 22 => 48,
        9 | 20 => 192,
        10 => 56,
        11 => 112,
        13 => 80,
        14 | 16 | 17 | 19 => 144,
        23 => 112,
        24 => 72,
        // Unknown types are not interpreted.
        _ => 32,
    };
    if fixed > b.len() {
        bail!(Damaged, "log record of {len} bytes");
    }
    swap_u64s(&mut b[32..fixed]);
    let mut at = fixed;
    let txtype = u64_at(b, 0)? & !(1 << 63);
    if matches!(txtype, 15 | 16 | 18 | 19)
        || txtype == 11 && u64_at(b, 40)? & super::setattr::XVATTR != 0
    {
        slice_at(b, at, 4)?;
        b[at..at + 4].reverse();
        let n = u32_at(b, at)? as usize;
        if n > 64 {
            bail!(Damaged, "log record: attribute bitmap of {n} words");
        }
        slice_at(b, at, 4 + 4 * n + 56)?;
        swap_u32s(&mut b[at + 4..at + 4 + 4 * n]);
        swap_u64s(&mut b[at + 4 + 4 * n..at + 4 + 4 * n + 24]);
        at += 4 + 4 * n + 56;
    }
    match txtype {
        12 => acl::swap_v0(&mut b[at..]),
        13 | 14 | 16 | 17 | 19 => {
            let words = if txtype == 13 { 40 } else { 104 };
            let (fuids, size) = (u64_at(b, words + 16)?, u64_at(b, words + 24)?);
            if size > len || fuids > len / 8 {
                bail!(Damaged, "log record: ACL of {size} bytes");
            }
            let (size, fuids) = (size as usize, 8 * fuids as usize);
            slice_at(b, at, up8(size) + fuids)?;
            acl::swap_v1(&mut b[at..at + size]);
            swap_u64s(&mut b[at + up8(size)..at + up8(size) + fuids]);
        }
        24 => {
            let n = u64_at(b, 64)?.min(len) as usize;
            slice_at(b, at, n * BP_SIZE)?;
            swap_u64s(&mut b[at..at + n * BP_SIZE]);
        }
        _ => {}
    }
    Ok(len as usize)
}
