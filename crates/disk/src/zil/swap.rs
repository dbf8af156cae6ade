//! Byte-swapping of log records: words are swapped, names and data are not, entries of ACLs by their own
//! rules.

use super::tx_type::TxType as T;
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
    let ty = T::of(u64_at(b, 0)? & !(1 << 63));
    let fixed = match ty {
        Some(T::Create | T::Mkdir | T::Mkxattr | T::Symlink | T::CreateAttr | T::MkdirAttr) => 104,
        Some(T::Remove | T::Rmdir) => 40,
        Some(T::Link | T::Rename | T::AclV0 | T::SetSaXattr | T::RenameExchange) => 48,
        Some(T::Write | T::Write2) => 192,
        Some(T::Truncate) => 56,
        Some(T::Setattr) => 112,
        Some(T::Acl) => 80,
        Some(T::CreateAcl | T::CreateAclAttr | T::MkdirAcl | T::MkdirAclAttr) => 144,
        Some(T::RenameWhiteout) => 112,
        Some(T::CloneRange) => 72,
        // Unknown types are not interpreted.
        _ => 32,
    };
    if fixed > b.len() {
        bail!(Damaged, "log record of {len} bytes");
    }
    swap_u64s(&mut b[32..fixed]);
    let mut at = fixed;
    if matches!(
        ty,
        Some(T::CreateAttr | T::CreateAclAttr | T::MkdirAttr | T::MkdirAclAttr)
    ) || ty == Some(T::Setattr) && u64_at(b, 40)? & super::setattr::XVATTR != 0
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
    match ty {
        Some(T::AclV0) => acl::swap_v0(&mut b[at..]),
        Some(T::Acl | T::CreateAcl | T::CreateAclAttr | T::MkdirAcl | T::MkdirAclAttr) => {
            let words = if ty == Some(T::Acl) { 40 } else { 104 };
            let (fuids, size) = (u64_at(b, words + 16)?, u64_at(b, words + 24)?);
            if size > len || fuids > len / 8 {
                bail!(Damaged, "log record: ACL of {size} bytes");
            }
            let (size, fuids) = (size as usize, 8 * fuids as usize);
            slice_at(b, at, up8(size) + fuids)?;
            acl::swap_v1(&mut b[at..at + size]);
            swap_u64s(&mut b[at + up8(size)..at + up8(size) + fuids]);
        }
        Some(T::CloneRange) => {
            let n = u64_at(b, 64)?.min(len) as usize;
            slice_at(b, at, n * BP_SIZE)?;
            swap_u64s(&mut b[at..at + n * BP_SIZE]);
        }
        _ => {}
    }
    Ok(len as usize)
}
