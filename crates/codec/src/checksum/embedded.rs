//! Checksums that live inside the region they cover: labels, uberblocks, gang headers and intent
//! log blocks (pool format §2.2, §12, §26.2).
//!
//! The region is hashed with a *verifier* in the place of the checksum, so that the right bytes in
//! the wrong place do not pass. The verifier is (device offset, 0, 0, 0) for labels, (vdev, offset,
//! birth txg, 0) for gang headers, and the words of the leading block pointer for the intent log.

use super::{be_words, Checksum, Fletcher2, Fletcher4, Words};
use base::{bail, Result};
use sha2::Digest;

/// First word of the 40 bytes of an embedded checksum.
pub const EMBEDDED_MAGIC: u64 = 0x0210_da7a_b10c_7a11;
/// Magic and four words.
pub const EMBEDDED_SIZE: usize = 40;
/// The structure at the start (zilog2) or end (zilog) of an intent log block.
pub const ZILOG_CHAIN_SIZE: usize = 184;

/// Offset of the used-bytes word in a chain structure.
const NUSED_AT: usize = 136;
/// Offset of the embedded checksum in a chain structure.
const CHAIN_EMBEDDED_AT: usize = 144;
/// Intent log blocks are written, and summed, in units of this.
const ZILOG_UNIT: u64 = 4096;

/// Where the embedded checksum of a region is and what it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbeddedAt {
    /// Offset of the magic.
    pub at: usize,
    /// Number of bytes covered, from the start of the region.
    pub covered: usize,
    /// The magic is byte-swapped: a big-endian machine wrote it.
    pub swapped: bool,
    /// The four words found, as numbers in the writer's order.
    pub found: Words,
}

fn word(region: &[u8], at: usize) -> Option<u64> {
    let b = region.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(b.try_into().ok()?))
}

fn tail_at(alg: Checksum, len: usize) -> Result<usize> {
    let at = match alg {
        Checksum::LABEL | Checksum::GANG_HEADER | Checksum::ZILOG => len.checked_sub(EMBEDDED_SIZE),
        Checksum::ZILOG2 => (len >= ZILOG_CHAIN_SIZE).then_some(CHAIN_EMBEDDED_AT),
        _ => bail!(Invalid, "checksum algorithm {alg} is not an embedded one"),
    };
    match at {
        Some(at) => Ok(at),
        None => bail!(Damaged, "{len} bytes are too few for an embedded checksum"),
    }
}

fn covered(alg: Checksum, len: usize, nused: u64) -> Result<usize> {
    if alg != Checksum::ZILOG2 {
        return Ok(len);
    }
    let used = nused
        .checked_next_multiple_of(ZILOG_UNIT)
        .filter(|&u| nused >= ZILOG_CHAIN_SIZE as u64 && u <= len as u64);
    match used {
        Some(u) => Ok(u as usize),
        None => bail!(Damaged, "log block of {len} bytes claims to use {nused}"),
    }
}

/// Finds the embedded checksum of `region` (the whole label part, gang header or log block).
///
/// Errors: damage if there is no magic, or a zilog2 block claims to use more than it has.
pub fn embedded_at(alg: Checksum, region: &[u8]) -> Result<EmbeddedAt> {
    let at = tail_at(alg, region.len())?;
    let get = |i: usize| word(region, at + 8 * i).unwrap_or(0);
    let swapped = match get(0) {
        EMBEDDED_MAGIC => false,
        m if m == EMBEDDED_MAGIC.swap_bytes() => true,
        _ => bail!(Damaged, "no embedded checksum"),
    };
    let order = |w: u64| if swapped { w.swap_bytes() } else { w };
    let nused = order(word(region, NUSED_AT).unwrap_or(0));
    Ok(EmbeddedAt {
        at,
        covered: covered(alg, region.len(), nused)?,
        swapped,
        found: [1, 2, 3, 4].map(|i| order(get(i))),
    })
}

/// Hash of the covered bytes with the verifier in the place of the words and the magic as is.
fn sum(alg: Checksum, region: &[u8], p: &EmbeddedAt, verifier: &Words) -> Words {
    let mut v = [0; 32];
    for (b, w) in v.chunks_exact_mut(8).zip(verifier) {
        b.copy_from_slice(&if p.swapped {
            w.to_be_bytes()
        } else {
            w.to_le_bytes()
        });
    }
    let head = region.get(..p.at + 8).unwrap_or_default();
    let tail = region
        .get(p.at + EMBEDDED_SIZE..p.covered)
        .unwrap_or_default();
    match alg {
        Checksum::ZILOG2 => {
            let mut f = Fletcher4::new(p.swapped);
            f.update(head);
            f.update(&v);
            f.update(tail);
            f.words()
        }
        Checksum::ZILOG => {
            let mut f = Fletcher2::new(p.swapped);
            f.update(head);
            f.update(&v);
            f.update(tail);
            f.words()
        }
        _ => {
            let mut h = super::bodies::begun(head);
            h.update(v);
            h.update(tail);
            be_words(&h.finalize())
        }
    }
}

/// What the embedded checksum of `region` should be, and where it is. The magic must be in place.
pub fn compute_embedded(
    alg: Checksum,
    region: &[u8],
    verifier: &Words,
) -> Result<(Words, EmbeddedAt)> {
    let p = embedded_at(alg, region)?;
    Ok((sum(alg, region, &p, verifier), p))
}

/// Checks the embedded checksum of `region`; `Ok(true)` says that it is right and that a
/// big-endian machine wrote it.
///
/// Errors: damage as in [`embedded_at`]; `Kind::Checksum` if it does not match.
pub fn verify_embedded(alg: Checksum, region: &[u8], verifier: &Words) -> Result<bool> {
    let (want, p) = compute_embedded(alg, region, verifier)?;
    if want != p.found {
        bail!(Checksum, "embedded checksum does not match");
    }
    Ok(p.swapped)
}

/// [`verify_embedded`] for intent log blocks of encrypted datasets, whose words 2 and 3 are the
/// MAC (§13.3), and for headers of encrypted gangs, where they are 0. Gives the byte order and the
/// MAC words; the caller has to check these.
pub fn verify_embedded_mac(
    alg: Checksum,
    region: &[u8],
    verifier: &Words,
) -> Result<(bool, [u64; 2])> {
    let (sum, p) = compute_embedded(alg, region, verifier)?;
    let mac = [p.found[2], p.found[3]];
    if super::with_mac(alg, sum, mac) != p.found {
        bail!(Checksum, "embedded checksum does not match");
    }
    Ok((p.swapped, mac))
}

fn put(region: &mut [u8], at: usize, words: &[u64]) {
    for (b, w) in region
        .get_mut(at..)
        .unwrap_or_default()
        .chunks_exact_mut(8)
        .zip(words)
    {
        b.copy_from_slice(&w.to_le_bytes());
    }
}

fn write(alg: Checksum, region: &mut [u8], verifier: &Words, mac: bool) -> Result<Words> {
    let at = tail_at(alg, region.len())?;
    put(region, at, &[EMBEDDED_MAGIC]);
    let (mut sum, p) = compute_embedded(alg, region, verifier)?;
    if mac {
        sum = super::with_mac(alg, sum, [p.found[2], p.found[3]]);
    }
    put(region, p.at + 8, &sum);
    Ok(sum)
}

/// Puts magic and checksum into `region` (little-endian) and returns the words. For zilog2 the
/// used-bytes word must be set already; only the bytes it covers need to be written.
pub fn embed(alg: Checksum, region: &mut [u8], verifier: &Words) -> Result<Words> {
    write(alg, region, verifier, false)
}

/// [`embed`] for intent log blocks of encrypted datasets and headers of encrypted gangs: words 2 and 3
/// of the embedded checksum hold the MAC (or 0) already and keep it.
pub fn embed_keep_mac(alg: Checksum, region: &mut [u8], verifier: &Words) -> Result<Words> {
    write(alg, region, verifier, true)
}
