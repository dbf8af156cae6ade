//! How a block of an object is to be stored: from the policy of its object set and the fields of its dnode.

use crate::shape::WritePolicy;
use codec::checksum;
use disk::{Checksum, Compression, ObjType};
use zio::{Crypt, WriteSpec};

/// From this pass on metadata is no longer compressed, so that sizes stop changing and the passes
/// converge (pool format §3).
const PASS_DONT_COMPRESS: u32 = 8;

/// Fields that decide how an object's blocks are written.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    /// Type of the content.
    pub obj_type: ObjType,
    /// Compression in the dnode.
    pub compress: Compression,
    /// Checksum in the dnode.
    pub checksum: Checksum,
    /// log2 of the bytes of an indirect block.
    pub indblkshift: u8,
}

/// How a block of an object is to be stored in a sync pass.
pub(crate) fn spec_for(
    p: &WritePolicy,
    pass: u32,
    s: &Shape,
    ty: ObjType,
    level: u8,
    spill: bool,
) -> WriteSpec {
    let meta = level > 0 || spill || ty.is_metadata();
    let mut comp = if meta {
        p.meta_compress
    } else if s.compress > Compression::ON {
        s.compress
    } else {
        p.compress
    };
    if meta && !spill && s.compress == Compression::OFF && level == 0 {
        comp = Compression::OFF;
    }
    let mut sum = if s.checksum > Checksum::ON {
        s.checksum
    } else {
        p.checksum
    };
    if meta && (!checksum::is_metadata_strong(sum) || p.is_mos) {
        sum = Checksum::FLETCHER4;
    }
    let dedup = p.dedup.filter(|_| !meta);
    if let Some(strong) = dedup {
        sum = strong;
    }
    let file = matches!(ty, ObjType::PLAIN_FILE_CONTENTS | ObjType::UINT64_OTHER);
    let mut copies = p.copies;
    if p.is_mos {
        copies = 3;
        if pass >= PASS_DONT_COMPRESS {
            comp = Compression::OFF;
        }
    } else if meta {
        let critical = ty.is_metadata()
            && ty != ObjType::DIRECTORY_CONTENTS
            && ty != ObjType::SA
            && (ty != ObjType::DNODE || level > 0);
        let more = match p.redundant_metadata {
            0 => true,
            1 => level >= 2 || ty.is_metadata() || spill,
            2 => critical,
            _ => false,
        };
        copies = (copies + more as u8).min(3);
    }
    let gang_copies = if meta || p.redundant_metadata == 0 {
        copies + 1
    } else {
        copies
    };
    WriteSpec {
        obj_type: ty,
        level,
        compress: comp,
        zstd_level: p.zstd_level,
        checksum: sum,
        copies: copies.min(p.max_copies),
        gang_copies: gang_copies.min(3).min(p.max_copies),
        embed: p.embedded_data,
        hole_birth: p.hole_birth,
        dedup: dedup.is_some(),
        // A checksum that is no proof of sameness is none in a table either.
        verify: p.dedup_verify || !checksum::is_dedup(sum),
        small: match file || ty == ObjType::ZVOL {
            true => p.special_small,
            false => 0,
        },
    }
}

/// Blocks of encrypted types have no place for a third copy.
pub(crate) fn with_nonce(mut spec: WriteSpec, crypt: &Crypt) -> WriteSpec {
    if crypt.is_encrypted() && spec.obj_type.is_encrypted() {
        spec.copies = spec.copies.min(2);
        spec.gang_copies = spec.gang_copies.min(2);
    }
    spec
}
