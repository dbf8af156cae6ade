//! Words for what is on disk, as OpenZFS's zdb 2.3 writes them.

use base::sizes;
use disk::{BlkPtr, Compression, ObjType};
use std::fmt::Write as _;
use std::io::Write;

/// Names of the object types 0…53.
const TYPES: [&str; 54] = [
    "unallocated",
    "object directory",
    "object array",
    "packed nvlist",
    "packed nvlist size",
    "bpobj",
    "bpobj header",
    "SPA space map header",
    "SPA space map",
    "ZIL intent log",
    "DMU dnode",
    "DMU objset",
    "DSL directory",
    "DSL directory child map",
    "DSL dataset snap map",
    "DSL props",
    "DSL dataset",
    "ZFS znode",
    "ZFS V0 ACL",
    "ZFS plain file",
    "ZFS directory",
    "ZFS master node",
    "ZFS delete queue",
    "zvol object",
    "zvol prop",
    "other uint8[]",
    "other uint64[]",
    "other ZAP",
    "persistent error log",
    "SPA history",
    "SPA history offsets",
    "Pool properties",
    "DSL permissions",
    "ZFS ACL",
    "ZFS SYSACL",
    "FUID table",
    "FUID table size",
    "DSL dataset next clones",
    "scan work queue",
    "ZFS user/group/project used",
    "ZFS user/group/project quota",
    "snapshot refcount tags",
    "DDT ZAP algorithm",
    "DDT statistics",
    "System attributes",
    "SA master node",
    "SA attr registration",
    "SA attr layouts",
    "scan translations",
    "deduplicated block",
    "DSL deadlist map",
    "DSL deadlist map hdr",
    "DSL dir clones",
    "bpobj subobj",
];

/// Names of the types that say themselves how they are swapped.
const CLASSES: [&str; 10] = [
    "uint8", "uint16", "uint32", "uint64", "zap", "dnode", "objset", "znode", "oldacl", "acl",
];

/// Rows of the table of `-bb` behind the types.
pub const DEFERRED: usize = 54;
pub const DITTO: usize = 55;
pub const OTHER: usize = 56;
pub const TOTAL: usize = 57;
/// Rows of that table.
pub const ROWS: usize = 58;

/// Name of a row of the table of `-bb`.
pub fn row_name(row: usize) -> &'static str {
    match row {
        DEFERRED => "deferred free",
        DITTO => "dedup ditto",
        OTHER => "other",
        TOTAL => "Total",
        n => TYPES.get(n).copied().unwrap_or("UNKNOWN"),
    }
}

/// Name of an object type.
pub fn type_name(t: ObjType) -> &'static str {
    if t.0 & 0x80 != 0 {
        return CLASSES
            .get(t.0 as usize & 0x1f)
            .copied()
            .unwrap_or("UNKNOWN");
    }
    TYPES.get(t.0 as usize).copied().unwrap_or("UNKNOWN")
}

/// How numbers are shown: scaled, or with `-P` as they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Numbers {
    pub plain: bool,
}

impl Numbers {
    pub fn nice(&self, n: u64) -> String {
        match self.plain {
            true => n.to_string(),
            false => sizes::nice(n, false),
        }
    }

    /// With the unit also where nothing is scaled: `512B`.
    pub fn nice_bytes(&self, n: u64) -> String {
        match self.plain {
            true => n.to_string(),
            false => sizes::nice(n, true),
        }
    }
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut s, b| {
        let _ = write!(s, "{b:02x}");
        s
    })
}

fn checksum_words(bp: &BlkPtr) -> String {
    let c = bp.checksum();
    format!("{:016x}:{:016x}:{:016x}:{:016x}", c[0], c[1], c[2], c[3])
}

/// A block pointer in full.
pub fn bp(bp: &BlkPtr) -> String {
    let head = format!("[L{} {}]", bp.level(), type_name(bp.obj_type()));
    if bp.is_embedded() && !bp.is_redacted() {
        return format!(
            "EMBEDDED {head} et={} {} size={:x}L/{:x}P birth={}L",
            bp.embedded_type(),
            bp.compress().name().unwrap_or("unknown"),
            bp.lsize(),
            bp.psize(),
            bp.logical_birth()
        );
    }
    if bp.is_hole() || bp.is_redacted() {
        let what = if bp.is_redacted() { "REDACTED" } else { "HOLE" };
        let lsize = bp.lsize().max(512);
        return format!(
            "{what} {head} size={lsize:x}L birth={}L",
            bp.logical_birth()
        );
    }
    let mut out = String::new();
    for (i, d) in bp.dvas().iter().enumerate() {
        let _ = write!(
            out,
            "DVA[{i}]=<{}:{:x}:{:x}{}> ",
            d.vdev(),
            d.offset(),
            d.asize(),
            if d.is_gang() && i > 0 { ":G" } else { "" }
        );
    }
    if bp.is_encrypted() {
        let _ = write!(
            out,
            "salt={:x} iv={:x}:{:x} ",
            bp.words[4],
            bp.words[5],
            bp.words[11] >> 32
        );
    }
    let crypt = match (bp.uses_crypt(), bp.level() > 0, bp.is_encrypted()) {
        (false, ..) => "unencrypted",
        (_, true, _) => "indirect-MAC",
        (_, _, true) => "encrypted",
        _ => "authenticated",
    };
    let compression = match bp.compress() {
        Compression::OFF => "uncompressed",
        c => c.name().unwrap_or("unknown"),
    };
    let copies = match bp.dvas().len() {
        0 => "zero",
        1 => "single",
        2 => "double",
        _ => "triple",
    };
    let _ = write!(
        out,
        "{head} {} {compression} {crypt} {} {} {} {copies} size={:x}L/{:x}P birth={}L/{}P fill={}",
        bp.checksum_alg().name().unwrap_or("unknown"),
        if bp.is_little_endian() { "LE" } else { "BE" },
        if bp.is_gang() { "gang" } else { "contiguous" },
        if bp.is_dedup() { "dedup" } else { "unique" },
        bp.lsize(),
        bp.psize(),
        bp.logical_birth(),
        bp.physical_birth(),
        bp.fill(),
    );
    let _ = write!(out, " cksum={}", checksum_words(bp));
    out
}

/// A block pointer in short, as lists of indirect blocks show it, with its first `copies` addresses.
pub fn bp_short(bp: &BlkPtr, copies: usize) -> String {
    if bp.is_embedded() && !bp.is_redacted() {
        return format!(
            "EMBEDDED et={} {:x}L/{:x}P B={}",
            bp.embedded_type(),
            bp.lsize(),
            bp.psize(),
            bp.logical_birth()
        );
    }
    let mut out = String::new();
    for d in bp.dvas().iter().take(copies) {
        let _ = write!(out, "{}:{:x}:{:x} ", d.vdev(), d.offset(), d.asize());
    }
    // Where one address is shown, a hole has it, too.
    if bp.is_hole() && copies == 1 {
        out.push_str("0:0:0 ");
    }
    if bp.is_hole() || bp.is_redacted() {
        let mut s = format!("{out}{:x}L B={}", bp.lsize().max(512), bp.logical_birth());
        if bp.is_redacted() {
            s.push_str(" REDACTED");
        }
        return s;
    }
    let _ = write!(
        out,
        "{:x}L/{:x}P F={} B={}/{} cksum={}",
        bp.lsize(),
        bp.psize(),
        bp.fill(),
        bp.logical_birth(),
        bp.physical_birth(),
        checksum_words(bp)
    );
    out
}

/// As [`bp_short`], in lists that also have blocks that were freed.
pub fn bp_listed(bp: &BlkPtr, copies: usize, freed: bool) -> String {
    let mut text = bp_short(bp, copies);
    if let (true, Some(at)) = (freed, text.find(" cksum=")) {
        text.insert_str(at, " FREE");
    }
    text
}

/// A histogram from its first to its last bucket in use; buckets are numbered from `shift`.
pub fn histogram(out: &mut dyn Write, counts: &[u64], shift: usize) -> std::io::Result<()> {
    const WIDTH: u64 = 40;
    let first = counts.iter().position(|c| *c > 0);
    let last = counts.iter().rposition(|c| *c > 0);
    let (Some(first), Some(last)) = (first, last) else {
        return Ok(());
    };
    let most = counts.iter().copied().max().unwrap_or(0).max(WIDTH);
    for (i, n) in counts.iter().enumerate().take(last + 1).skip(first) {
        let bar = (u128::from(*n) * u128::from(WIDTH)).div_ceil(u128::from(most));
        writeln!(
            out,
            "\t\t\t{:3}: {n:6} {}",
            i + shift,
            "*".repeat(bar as usize)
        )?;
    }
    Ok(())
}

/// Day and time in this machine's zone: `Fri Nov 20 12:41:24 2026`.
pub fn time(seconds: u64) -> String {
    cli::time::ctime(seconds, &cli::time::zone())
}

/// A name from disk: what would disturb a terminal is escaped.
pub fn text(name: &[u8]) -> String {
    let mut out = String::new();
    for c in String::from_utf8_lossy(name).chars() {
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Txg;

    #[test]
    fn histograms() {
        let show = |c: &[u64]| {
            let mut out = Vec::new();
            histogram(&mut out, c, 9).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(show(&[0, 0]), "");
        assert_eq!(
            show(&[0, 1, 0, 2]),
            "\t\t\t 10:      1 *\n\t\t\t 11:      0 \n\t\t\t 12:      2 **\n"
        );
        // A bar is never empty for something, and never longer than 40.
        assert_eq!(
            show(&[80, 1]),
            format!(
                "\t\t\t  9:     80 {}\n\t\t\t 10:      1 *\n",
                "*".repeat(40)
            )
        );
    }

    #[test]
    fn pointers() {
        let hole = BlkPtr::HOLE;
        assert_eq!(bp(&hole), "HOLE [L0 unallocated] size=200L birth=0L");
        let e = BlkPtr::embedded(
            ObjType::PLAIN_FILE_CONTENTS,
            0,
            512,
            Compression::LZ4,
            b"abc",
            Txg::new(7),
        );
        assert_eq!(bp_short(&e, 3), "EMBEDDED et=0 200L/3P B=7");
    }
}
