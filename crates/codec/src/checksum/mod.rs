//! Block checksums (pool format §13): the table of algorithms, the plain functions over a block, and
//! (in `embedded`) the checksums that live inside the region they cover.

mod bodies;
mod edonr;
mod embedded;
mod fletcher;
mod skein;

pub use bodies::remember_bodies;
pub use embedded::{
    compute_embedded, embed, embed_keep_mac, embedded_at, verify_embedded, verify_embedded_mac,
    EmbeddedAt, EMBEDDED_MAGIC, EMBEDDED_SIZE, ZILOG_CHAIN_SIZE,
};
pub use fletcher::{Fletcher2, Fletcher4};

use base::{bail, Result};
pub use disk::Checksum;
use sha2::Digest;

/// The four words of a checksum, as numbers in the writer's byte order.
pub type Words = [u64; 4];

/// Property value bit: duplicates are verified byte by byte (`dedup=sha256,verify`).
pub const DEDUP_VERIFY: u64 = 1 << 8;

struct Info {
    metadata: bool,
    dedup: bool,
    nopwrite: bool,
    salted: bool,
    embedded: bool,
}

const fn info(metadata: bool, dedup: bool, nopwrite: bool, salted: bool, embedded: bool) -> Info {
    Info {
        metadata,
        dedup,
        nopwrite,
        salted,
        embedded,
    }
}

#[rustfmt::skip]
static TABLE: [Info; Checksum::ALL.len()] = [
    //                  metadata dedup nopwrite salted embedded
    info(/* inherit */ false, false, false, false, false),
    info(/* on */ false, false, false, false, false),
    info(/* off */ false, false, false, false, false),
    info(/* label */ true,  false, false, false, true),
    info(/* gang_header */ true,  false, false, false, true),
    info(/* zilog */ false, false, false, false, true),
    info(/* fletcher2 */ false, false, false, false, false),
    info(/* fletcher4 */ true,  false, false, false, false),
    info(/* sha256 */ true,  true,  true,  false, false),
    info(/* zilog2 */ false, false, false, false, true),
    info(/* noparity */ false, false, false, false, false),
    info(/* sha512 */ true,  true,  true,  false, false),
    info(/* skein */ true,  true,  true,  true,  false),
    info(/* edonr */ true,  false, true,  true,  false),
    info(/* blake3 */ true,  true,  true,  true,  false),
];

fn get(alg: Checksum) -> Option<&'static Info> {
    TABLE.get(usize::from(alg.number()))
}

/// Strong enough for metadata; a dataset whose checksum is not has its metadata under
/// [`Checksum::FLETCHER4`].
pub fn is_metadata_strong(alg: Checksum) -> bool {
    get(alg).is_some_and(|i| i.metadata)
}

/// Collision resistant enough that equal checksums are taken for equal blocks without comparing
/// them. Also decides how MACs are folded into checksum words, see [`with_mac`].
pub fn is_dedup(alg: Checksum) -> bool {
    get(alg).is_some_and(|i| i.dedup)
}

/// May a write be dropped when the old block has the same checksum?
pub fn is_nopwrite(alg: Checksum) -> bool {
    get(alg).is_some_and(|i| i.nopwrite)
}

/// Depends on the pool's salt.
pub fn is_salted(alg: Checksum) -> bool {
    get(alg).is_some_and(|i| i.salted)
}

/// The checksum lives inside the region it covers, see [`embed`].
pub fn is_embedded(alg: Checksum) -> bool {
    get(alg).is_some_and(|i| i.embedded)
}

/// Checksum of `data` under algorithm `alg`.
///
/// `swapped` says that a big-endian machine wrote the data (bit B of its block pointer is clear);
/// the words are then the numbers that machine stored. `salt` is the pool's salt (MOS directory
/// entry `org.illumos:checksum_salt`), used by the salted algorithms only. For embedded algorithms
/// this is the function they are built on. Fletcher sums a last incomplete element as if followed
/// by zeros.
///
/// Errors: an id out of range is damage; [`Checksum::INHERIT`] is invalid; [`Checksum::EDONR`] of a big-endian writer
/// is unsupported because the reference's result is undefined (§13.2).
pub fn compute(alg: Checksum, data: &[u8], swapped: bool, salt: &[u8; 32]) -> Result<Words> {
    Ok(match alg {
        Checksum::OFF | Checksum::NOPARITY => [0; 4],
        Checksum::ON | Checksum::FLETCHER4 | Checksum::ZILOG2 => {
            let mut f = Fletcher4::new(swapped);
            f.update(data);
            f.words()
        }
        Checksum::FLETCHER2 | Checksum::ZILOG => {
            let mut f = Fletcher2::new(swapped);
            f.update(data);
            f.words()
        }
        Checksum::SHA256 | Checksum::LABEL | Checksum::GANG_HEADER => {
            be_words(&sha2::Sha256::digest(data))
        }
        Checksum::SHA512 => native_words(&sha2::Sha512_256::digest(data), swapped),
        Checksum::SKEIN => native_words(&skein::mac_512_256(salt, data), swapped),
        Checksum::EDONR if swapped => bail!(Unsupported, "Edon-R checksum of a big-endian writer"),
        Checksum::EDONR => native_words(&edonr::salted_512(salt, data), false),
        Checksum::BLAKE3 => native_words(blake3::keyed_hash(salt, data).as_bytes(), swapped),
        Checksum::INHERIT => bail!(Invalid, "checksum algorithm was not resolved"),
        _ => bail!(Damaged, "checksum algorithm {alg} is unknown"),
    })
}

/// Whether `data` has the checksum `want`; arguments as in [`compute`].
pub fn verify(
    alg: Checksum,
    data: &[u8],
    swapped: bool,
    salt: &[u8; 32],
    want: &Words,
) -> Result<bool> {
    Ok(match alg {
        Checksum::OFF | Checksum::NOPARITY => true,
        _ => compute(alg, data, swapped, salt)? == *want,
    })
}

/// The words stored for an encrypted block (§13.3): the MAC takes words 2 and 3; for algorithms
/// without the dedup flag what it displaces is folded into words 0 and 1. Applied to a computed
/// checksum it gives what must be on disk.
pub fn with_mac(alg: Checksum, computed: Words, mac: [u64; 2]) -> Words {
    let mut w = computed;
    if !is_dedup(alg) {
        w[0] ^= w[2];
        w[1] ^= w[3];
    }
    [w[0], w[1], mac[0], mac[1]]
}

/// 32 bytes as four big-endian numbers.
fn be_words(digest: &[u8]) -> Words {
    native_words(digest, true)
}

/// 32 bytes as four numbers in the writer's byte order.
fn native_words(digest: &[u8], big_endian: bool) -> Words {
    let mut out = [0; 4];
    for (w, c) in out.iter_mut().zip(digest.chunks_exact(8)) {
        let mut b = [0; 8];
        b.copy_from_slice(c);
        *w = if big_endian {
            u64::from_be_bytes(b)
        } else {
            u64::from_le_bytes(b)
        };
    }
    out
}

#[cfg(test)]
mod tests;
