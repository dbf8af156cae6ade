//! Puts blocks written by a big-endian machine into little-endian order (data format §2.4): after
//! this nobody above needs to know where a pool came from.

use base::Result;
use disk::dnode::{self, DNODE_SIZE};
use disk::{ObjType, SwapClass, BP_SIZE};

fn words<const N: usize>(b: &mut [u8]) {
    for w in b.chunks_exact_mut(N) {
        w.reverse();
    }
}

/// Swaps a decompressed block of type `ty` at `level` in place.
pub fn block(ty: ObjType, level: u8, b: &mut [u8]) -> Result<()> {
    if level > 0 {
        words::<8>(b);
        return Ok(());
    }
    class(ty.swap_class(), b);
    Ok(())
}

fn class(c: SwapClass, b: &mut [u8]) {
    match c {
        SwapClass::U8 => {}
        SwapClass::U16 => words::<2>(b),
        SwapClass::U32 => words::<4>(b),
        SwapClass::U64 => words::<8>(b),
        SwapClass::Zap => zap(b),
        SwapClass::Dnode => {
            let mut at = 0;
            while at + DNODE_SIZE <= b.len() {
                let slots = if b[at] == 0 {
                    1
                } else {
                    b[at + 12] as usize + 1
                };
                let end = (at + slots * DNODE_SIZE).min(b.len());
                one_dnode(&mut b[at..end]);
                at = end;
            }
        }
        SwapClass::Objset => {
            for at in [0, 1024, 1536, 2048] {
                if at + DNODE_SIZE <= b.len() {
                    one_dnode(&mut b[at..at + DNODE_SIZE]);
                }
            }
            let end = b.len().min(720);
            if end >= 720 {
                words::<8>(&mut b[512..720]);
            }
        }
        SwapClass::Znode => znode(b),
        SwapClass::OldAcl => b.chunks_exact_mut(12).for_each(old_ace),
        SwapClass::Acl => acl(b),
    }
}

fn one_dnode(d: &mut [u8]) {
    if d.len() < DNODE_SIZE || d[0] == 0 {
        d.fill(0);
        return;
    }
    d[8..10].reverse();
    d[10..12].reverse();
    words::<8>(&mut d[16..32]);
    let nblkptr = (d[3] as usize).clamp(1, 3);
    let bonus_at = 64 + nblkptr * BP_SIZE;
    words::<8>(&mut d[64..bonus_at]);
    let mut end = d.len();
    if d[7] & dnode::flags::SPILL_BLKPTR != 0 {
        end -= BP_SIZE;
        words::<8>(&mut d[end..]);
    }
    if bonus_at < end {
        let ty = ObjType(d[4]);
        class(ty.swap_class(), &mut d[bonus_at..end]);
    }
}

fn znode(b: &mut [u8]) {
    if b.len() < 264 {
        return;
    }
    words::<8>(&mut b[..176]);
    // ACL: external object, count, version, size/count, then the entries.
    b[176..184].reverse();
    b[184..188].reverse();
    b[188..190].reverse();
    b[190..192].reverse();
    let version = u16::from_le_bytes([b[188], b[189]]);
    if version == 0 {
        b[192..264].chunks_exact_mut(12).for_each(old_ace);
    } else {
        acl(&mut b[192..264]);
    }
}

fn old_ace(a: &mut [u8]) {
    a[0..4].reverse();
    a[4..8].reverse();
    a[8..10].reverse();
    a[10..12].reverse();
}

fn acl(b: &mut [u8]) {
    let mut at = 0;
    while at + 8 <= b.len() {
        b[at..at + 2].reverse();
        b[at + 2..at + 4].reverse();
        b[at + 4..at + 8].reverse();
        let ty = u16::from_le_bytes([b[at], b[at + 1]]);
        let flags = u16::from_le_bytes([b[at + 2], b[at + 3]]);
        let abstract_who = matches!(flags & 0x7040, 0x1000 | 0x2040 | 0x4000);
        let size = match ty {
            5..=8 => 48,
            0 | 1 if abstract_who => 8,
            _ => 16,
        };
        if size >= 16 && at + 16 <= b.len() {
            b[at + 8..at + 16].reverse();
        }
        at += size;
    }
}

fn zap(b: &mut [u8]) {
    if b.len() < 64 {
        return;
    }
    b[..8].reverse();
    let kind = u64::from_le_bytes(b[..8].try_into().unwrap_or([0; 8]));
    match kind {
        0x8000_0000_0000_0003 => {
            words::<8>(&mut b[8..24]);
            for e in b[64..].chunks_exact_mut(64) {
                e[..8].reverse();
                e[8..12].reverse();
            }
        }
        0x8000_0000_0000_0000 => leaf(b),
        // The header, and pointer-table blocks, are words throughout.
        _ => words::<8>(&mut b[8..]),
    }
}

fn leaf(b: &mut [u8]) {
    let size = b.len();
    if size < 1024 || !size.is_power_of_two() {
        return;
    }
    words::<8>(&mut b[8..24]);
    b[24..28].reverse();
    words::<2>(&mut b[28..36]);
    let buckets = size / 32;
    let chunks_at = 48 + 2 * buckets;
    words::<2>(&mut b[48..chunks_at]);
    for c in b[chunks_at..].chunks_exact_mut(24) {
        match c[0] {
            252 => {
                words::<2>(&mut c[2..12]);
                c[12..16].reverse();
                c[16..24].reverse();
            }
            251 => c[22..24].reverse(),
            253 => c[22..24].reverse(),
            _ => {}
        }
    }
}
