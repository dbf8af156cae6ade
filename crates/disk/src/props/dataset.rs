//! Properties of datasets, in the order in which `zfs get all` prints them.

use super::Class::{Inherit, Local, Once, OnceDefault, ReadOnly};
use super::Number as N;
use super::Store::{BlockSize, Computed, CryptoKey, MasterNode, Props, PropsAndDir, Volume};
use super::{Class, Default, Kind, Prop, Store, Types, Word, UNLIMITED};

const ON_OFF: Kind = Kind::Index(&[("on", 1), ("off", 0)]);
const YES_NO: Kind = Kind::Index(&[("yes", 1), ("no", 0)]);
const ANY: Kind = Kind::Number(N::Any);
const CACHE: Kind = Kind::Index(&[("all", 2), ("none", 0), ("metadata", 1)]);

/// Level of zstd in the stored number: above the 7 bits of the algorithm.
const fn zstd(level: u64) -> u64 {
    16 + (level << 7)
}

const CHECKSUM: Kind = Kind::Index(&[
    ("on", 1),
    ("off", 2),
    ("fletcher2", 6),
    ("fletcher4", 7),
    ("sha256", 8),
    ("noparity", 10),
    ("sha512", 11),
    ("skein", 12),
    ("edonr", 13),
    ("blake3", 14),
]);

const DEDUP: Kind = Kind::Index(&[
    ("on", 1),
    ("off", 2),
    ("verify", 1 + 256),
    ("sha256", 8),
    ("sha256,verify", 8 + 256),
    ("sha512", 11),
    ("sha512,verify", 11 + 256),
    ("skein", 12),
    ("skein,verify", 12 + 256),
    ("edonr,verify", 13 + 256),
    ("blake3", 14),
    ("blake3,verify", 14 + 256),
]);

#[rustfmt::skip]
const COMPRESSION: Kind = Kind::Index(&[
    ("on", 1), ("off", 2), ("lzjb", 3),
    ("gzip", 10), ("gzip-1", 5), ("gzip-2", 6), ("gzip-3", 7), ("gzip-4", 8), ("gzip-5", 9),
    ("gzip-6", 10), ("gzip-7", 11), ("gzip-8", 12), ("gzip-9", 13),
    ("zle", 14), ("lz4", 15), ("zstd", zstd(0)),
    ("zstd-1", zstd(1)), ("zstd-2", zstd(2)), ("zstd-3", zstd(3)), ("zstd-4", zstd(4)),
    ("zstd-5", zstd(5)), ("zstd-6", zstd(6)), ("zstd-7", zstd(7)), ("zstd-8", zstd(8)),
    ("zstd-9", zstd(9)), ("zstd-10", zstd(10)), ("zstd-11", zstd(11)), ("zstd-12", zstd(12)),
    ("zstd-13", zstd(13)), ("zstd-14", zstd(14)), ("zstd-15", zstd(15)), ("zstd-16", zstd(16)),
    ("zstd-17", zstd(17)), ("zstd-18", zstd(18)), ("zstd-19", zstd(19)),
    ("zstd-fast", zstd(103)), ("zstd-fast-1", zstd(103)), ("zstd-fast-2", zstd(104)),
    ("zstd-fast-3", zstd(105)), ("zstd-fast-4", zstd(106)), ("zstd-fast-5", zstd(107)),
    ("zstd-fast-6", zstd(108)), ("zstd-fast-7", zstd(109)), ("zstd-fast-8", zstd(110)),
    ("zstd-fast-9", zstd(111)), ("zstd-fast-10", zstd(112)), ("zstd-fast-20", zstd(113)),
    ("zstd-fast-30", zstd(114)), ("zstd-fast-40", zstd(115)), ("zstd-fast-50", zstd(116)),
    ("zstd-fast-60", zstd(117)), ("zstd-fast-70", zstd(118)), ("zstd-fast-80", zstd(119)),
    ("zstd-fast-90", zstd(120)), ("zstd-fast-100", zstd(121)), ("zstd-fast-500", zstd(122)),
    ("zstd-fast-1000", zstd(123)),
]);

const ENCRYPTION: &[Word] = &[
    ("aes-256-gcm", 8),
    ("on", 8),
    ("off", 2),
    ("aes-128-ccm", 3),
    ("aes-192-ccm", 4),
    ("aes-256-ccm", 5),
    ("aes-128-gcm", 6),
    ("aes-192-gcm", 7),
];

const NONE: Default = Default::None;
const fn num(n: u64) -> Default {
    Default::Number(n)
}
const fn text(t: &'static str) -> Default {
    Default::Text(t)
}

const fn row(
    name: &'static str,
    column: &'static str,
    types: &str,
    kind: Kind,
    class: Class,
    store: Store,
    default: Default,
) -> Prop {
    Prop {
        name,
        column,
        kind,
        class,
        types: Types::of(types),
        default,
        store,
        hidden: false,
        only: None,
    }
}

/// A read-only row.
const fn ro(name: &'static str, column: &'static str, types: &str, kind: Kind) -> Prop {
    row(name, column, types, kind, ReadOnly, Computed, NONE)
}

/// A read-only row that is not part of `all`.
const fn hidden(name: &'static str, types: &str, kind: Kind) -> Prop {
    let mut p = row(name, name, types, kind, ReadOnly, Computed, NONE);
    p.hidden = true;
    p
}

/// A row of which this version lets only some values be set.
const fn only(mut p: Prop, values: &'static [&'static str]) -> Prop {
    p.only = Some(values);
    p
}

/// All of them. The last column of restrictions, `only`, is what this software does not do yet.
#[rustfmt::skip]
pub static DATASET: &[Prop] = &[
    ro("type", "TYPE", "FVSB", Kind::Index(&[("filesystem", 1), ("volume", 4), ("snapshot", 2), ("bookmark", 16)])),
    ro("creation", "CREATION", "FVSB", ANY),
    ro("used", "USED", "FVS", ANY),
    ro("available", "AVAIL", "FV", ANY),
    ro("referenced", "REFER", "FVSB", ANY),
    ro("compressratio", "RATIO", "FVSB", ANY),
    ro("mounted", "MOUNTED", "F", YES_NO),
    ro("origin", "ORIGIN", "FV", Kind::Text),
    row("quota", "QUOTA", "F", Kind::Number(N::SizeOrNone), Local, PropsAndDir, num(0)),
    row("reservation", "RESERV", "FV", Kind::Number(N::SizeNone0), Local, PropsAndDir, num(0)),
    row("volsize", "VOLSIZE", "VS", ANY, Local, Volume, NONE),
    row("volblocksize", "VOLBLOCK", "V", Kind::Number(N::Block), Once, BlockSize, num(16384)),
    row("recordsize", "RECSIZE", "F", Kind::Number(N::Block), Inherit, Props, num(131072)),
    row("mountpoint", "MOUNTPOINT", "F", Kind::Text, Inherit, Props, text("/")),
    row("sharenfs", "SHARENFS", "F", Kind::Text, Inherit, Props, text("off")),
    row("checksum", "CHECKSUM", "FV", CHECKSUM, Inherit, Props, num(1)),
    row("compression", "COMPRESS", "FV", COMPRESSION, Inherit, Props, num(1)),
    row("atime", "ATIME", "F", ON_OFF, Inherit, Props, num(1)),
    row("devices", "DEVICES", "FS", ON_OFF, Inherit, Props, num(1)),
    row("exec", "EXEC", "FS", ON_OFF, Inherit, Props, num(1)),
    row("setuid", "SETUID", "FS", ON_OFF, Inherit, Props, num(1)),
    row("readonly", "RDONLY", "FV", ON_OFF, Inherit, Props, num(0)),
    only(row("zoned", "ZONED", "F", ON_OFF, Inherit, Props, num(0)), &["off"]),
    row("snapdir", "SNAPDIR", "F", Kind::Index(&[("disabled", 2), ("hidden", 0), ("visible", 1)]), Inherit, Props, num(0)),
    row("aclmode", "ACLMODE", "F", Kind::Index(&[("discard", 0), ("groupmask", 2), ("passthrough", 3), ("restricted", 4)]), Inherit, Props, num(0)),
    row("aclinherit", "ACLINHERIT", "F", Kind::Index(&[("discard", 0), ("noallow", 1), ("restricted", 4), ("passthrough", 3), ("passthrough-x", 5)]), Inherit, Props, num(4)),
    ro("createtxg", "CREATETXG", "FVSB", ANY),
    row("canmount", "CANMOUNT", "F", Kind::Index(&[("on", 1), ("off", 0), ("noauto", 2)]), Local, Props, num(1)),
    row("xattr", "XATTR", "FS", Kind::Index(&[("on", 2), ("sa", 2), ("off", 0), ("dir", 1)]), Inherit, Props, num(2)),
    row("copies", "COPIES", "FV", Kind::Index(&[("1", 1), ("2", 2), ("3", 3)]), Inherit, Props, num(1)),
    row("version", "VERSION", "FS", Kind::Index(&[("1", 1), ("2", 2), ("3", 3), ("4", 4), ("5", 5), ("current", 5)]), Local, MasterNode, num(5)),
    row("utf8only", "UTF8ONLY", "FS", ON_OFF, Once, MasterNode, num(0)),
    row("normalization", "NORMALIZATION", "FS", Kind::Index(&[("none", 0), ("formC", 0x50), ("formD", 0x10), ("formKC", 0x60), ("formKD", 0x20)]), Once, MasterNode, num(0)),
    row("casesensitivity", "CASE", "FS", Kind::Index(&[("sensitive", 0), ("insensitive", 1), ("mixed", 2)]), Once, MasterNode, num(0)),
    row("vscan", "VSCAN", "F", ON_OFF, Inherit, Props, num(0)),
    row("nbmand", "NBMAND", "FS", ON_OFF, Inherit, Props, num(0)),
    row("sharesmb", "SHARESMB", "F", Kind::Text, Inherit, Props, text("off")),
    row("refquota", "REFQUOTA", "F", Kind::Number(N::SizeOrNone), Local, Props, num(0)),
    row("refreservation", "REFRESERV", "FV", Kind::Number(N::SizeNoneAuto), Local, Props, num(0)),
    ro("guid", "GUID", "FVSB", ANY),
    row("primarycache", "PRIMARYCACHE", "FVS", CACHE, Inherit, Props, num(2)),
    row("secondarycache", "SECONDARYCACHE", "FVS", CACHE, Inherit, Props, num(2)),
    ro("usedbysnapshots", "USEDSNAP", "FV", ANY),
    ro("usedbydataset", "USEDDS", "FV", ANY),
    ro("usedbychildren", "USEDCHILD", "FV", ANY),
    ro("usedbyrefreservation", "USEDREFRESERV", "FV", ANY),
    ro("defer_destroy", "DEFER_DESTROY", "S", ON_OFF),
    ro("userrefs", "USERREFS", "S", ANY),
    row("logbias", "LOGBIAS", "FV", Kind::Index(&[("latency", 0), ("throughput", 1)]), Inherit, Props, num(0)),
    ro("objsetid", "OBJSETID", "FVS", ANY),
    row("dedup", "DEDUP", "FV", DEDUP, Inherit, Props, num(2)),
    only(row("mlslabel", "MLSLABEL", "FVS", Kind::Text, Inherit, Props, text("none")), &["none"]),
    row("sync", "SYNC", "FV", Kind::Index(&[("standard", 0), ("always", 1), ("disabled", 2)]), Inherit, Props, num(0)),
    row("dnodesize", "DNSIZE", "F", Kind::Index(&[("legacy", 0), ("auto", 1), ("1k", 1024), ("2k", 2048), ("4k", 4096), ("8k", 8192), ("16k", 16384)]), Inherit, Props, num(0)),
    ro("refcompressratio", "REFRATIO", "FVS", ANY),
    ro("written", "WRITTEN", "FVS", ANY),
    ro("clones", "CLONES", "S", Kind::Text),
    ro("logicalused", "LUSED", "FV", ANY),
    ro("logicalreferenced", "LREFER", "FVSB", ANY),
    row("volmode", "VOLMODE", "FV", Kind::Index(&[("default", 0), ("full", 1), ("geom", 1), ("dev", 2), ("none", 3)]), Inherit, Props, num(0)),
    row("filesystem_limit", "FSLIMIT", "F", Kind::Number(N::CountOrNone), Local, Props, num(UNLIMITED)),
    row("snapshot_limit", "SSLIMIT", "FV", Kind::Number(N::CountOrNone), Local, Props, num(UNLIMITED)),
    ro("filesystem_count", "FSCOUNT", "F", Kind::Number(N::CountOrNone)),
    ro("snapshot_count", "SSCOUNT", "FV", Kind::Number(N::CountOrNone)),
    row("snapdev", "SNAPDEV", "FV", Kind::Index(&[("hidden", 0), ("visible", 1)]), Inherit, Props, num(0)),
    row("acltype", "ACLTYPE", "FS", Kind::Index(&[("off", 0), ("nfsv4", 2), ("posix", 1), ("noacl", 0), ("posixacl", 1)]), Inherit, Props, num(0)),
    only(row("context", "CONTEXT", "FVS", Kind::Text, Local, Props, text("none")), &["none"]),
    only(row("fscontext", "FSCONTEXT", "FVS", Kind::Text, Local, Props, text("none")), &["none"]),
    only(row("defcontext", "DEFCONTEXT", "FVS", Kind::Text, Local, Props, text("none")), &["none"]),
    only(row("rootcontext", "ROOTCONTEXT", "FVS", Kind::Text, Local, Props, text("none")), &["none"]),
    row("relatime", "RELATIME", "F", ON_OFF, Inherit, Props, num(1)),
    row("redundant_metadata", "REDUND_MD", "FV", Kind::Index(&[("all", 0), ("most", 1), ("some", 2), ("none", 3)]), Inherit, Props, num(0)),
    row("overlay", "OVERLAY", "F", ON_OFF, Inherit, Props, num(1)),
    ro("receive_resume_token", "RESUMETOK", "FV", Kind::Text),
    row("encryption", "ENCRYPTION", "FVS", Kind::Index(ENCRYPTION), Once, CryptoKey, num(2)),
    row("keylocation", "KEYLOCATION", "FV", Kind::Text, Local, Props, text("none")),
    row("keyformat", "KEYFORMAT", "FV", Kind::Index(&[("none", 0), ("raw", 1), ("hex", 2), ("passphrase", 3)]), OnceDefault, CryptoKey, num(0)),
    row("pbkdf2iters", "PBKDF2ITERS", "FV", Kind::Number(N::Iterations), OnceDefault, CryptoKey, num(0)),
    ro("encryptionroot", "ENCROOT", "FVS", Kind::Text),
    ro("keystatus", "KEYSTATUS", "FVS", Kind::Index(&[("none", 0), ("unavailable", 1), ("available", 2)])),
    row("special_small_blocks", "SPECIAL_SMALL_BLOCKS", "FV", Kind::Number(N::SmallBlock), Inherit, Props, num(0)),
    ro("redact_snaps", "RSNAPS", "FVSB", Kind::Text),
    ro("snapshots_changed", "SNAPSHOTS_CHANGED", "FV", ANY),
    row("prefetch", "PREFETCH", "FVS", CACHE, Inherit, Props, num(2)),
    row("volthreading", "VOLTHREADING", "V", ON_OFF, Local, Props, num(1)),
    row("direct", "DIRECT", "F", Kind::Index(&[("disabled", 0), ("standard", 1), ("always", 2)]), Inherit, Props, num(1)),
    row("longname", "LONGNAME", "F", ON_OFF, Inherit, Props, num(0)),
    row("defaultuserquota", "DEFAULTUSERQUOTA", "F", Kind::Number(N::SizeNone0), Local, MasterNode, num(0)),
    row("defaultgroupquota", "DEFAULTGROUPQUOTA", "F", Kind::Number(N::SizeNone0), Local, MasterNode, num(0)),
    row("defaultprojectquota", "DEFAULTPROJECTQUOTA", "F", Kind::Number(N::SizeNone0), Local, MasterNode, num(0)),
    row("defaultuserobjquota", "DEFAULTUSEROBJQUOTA", "F", Kind::Number(N::SizeNone0), Local, MasterNode, num(0)),
    row("defaultgroupobjquota", "DEFAULTGROUPOBJQUOTA", "F", Kind::Number(N::SizeNone0), Local, MasterNode, num(0)),
    row("defaultprojectobjquota", "DEFAULTPROJECTOBJQUOTA", "F", Kind::Number(N::SizeNone0), Local, MasterNode, num(0)),
    hidden("name", "FVSB", Kind::Text),
    hidden("numclones", "S", ANY),
    hidden("useraccounting", "FS", YES_NO),
    hidden("unique", "FVS", ANY),
    hidden("inconsistent", "FVS", YES_NO),
    hidden("ivsetguid", "SB", ANY),
    hidden("prevsnap", "FV", Kind::Text),
    hidden("keyguid", "FVS", ANY),
    hidden("redacted", "FVS", ANY),
    hidden("remaptxg", "FV", ANY),
];
