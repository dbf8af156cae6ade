//! Which bytes of an encrypted dataset's blocks are authenticated and which are encrypted (pool format §15). No cipher is in here.
//! Bytes that are authenticated but not encrypted ("AAD") are collected into a buffer; encrypted ones are given as ranges of the block.

use crate::blkptr::{BlkPtr, BP_SIZE};
use crate::bytes::u64_at;
use crate::dnode::{objset, DNODE_CORE, DNODE_SIZE};
use crate::types::ObjType;
use crate::zil::{CHAIN_SIZE, CHAIN_TRAILER};
use base::{bail, Result};
use std::ops::Range;

/// Bytes of a nonce.
pub const IV_SIZE: usize = 12;
/// Bytes of a block's salt, from which its key is derived.
pub const SALT_SIZE: usize = 8;
/// Bytes of the MAC kept in a block pointer.
pub const MAC_SIZE: usize = 16;
/// Bytes of each of the two MACs of an object set.
pub const OBJSET_MAC_SIZE: usize = 32;
/// Offset of the two MACs in an object set block.
pub const OBJSET_MACS: usize = 720;
/// Newest format of keys; version 0 is from before the first release.
pub const KEY_VERSION: u64 = 1;

/// Names in a DSL crypto key object (pool format §15.2).
pub mod keys {
    /// `u64`: number of the cipher suite.
    pub const SUITE: &str = "DSL_CRYPTO_SUITE";
    /// `u64`: random; identifies the master key.
    pub const GUID: &str = "DSL_CRYPTO_GUID";
    /// `u64`: format of the key, [`KEY_VERSION`](super::KEY_VERSION) or 0. Missing: 0.
    pub const VERSION: &str = "DSL_CRYPTO_VERSION";
    /// DSL directory of the encryption root.
    pub const ROOT_DIR: &str = "DSL_CRYPTO_ROOT_DDOBJ";
    /// Datasets (clones) sharing the key.
    pub const REFCOUNT: &str = "DSL_CRYPTO_REFCOUNT";
    /// Bytes: nonce under which the two keys are wrapped.
    pub const IV: &str = "DSL_CRYPTO_IV";
    /// Bytes: MAC of the two wrapped keys.
    pub const MAC: &str = "DSL_CRYPTO_MAC";
    /// Bytes: the wrapped master key.
    pub const MASTER_KEY: &str = "DSL_CRYPTO_MASTER_KEY_1";
    /// Bytes: the wrapped key of HMACs.
    pub const HMAC_KEY: &str = "DSL_CRYPTO_HMAC_KEY_1";
    /// `u64`: form of the user's key; 1 raw, 2 hex, 3 passphrase.
    pub const KEYFORMAT: &str = "keyformat";
    /// `u64`: salt of the derivation from a passphrase; 0 for other forms.
    pub const PBKDF2_SALT: &str = "pbkdf2salt";
    /// `u64`: iterations of the derivation from a passphrase; 0 for other forms.
    pub const PBKDF2_ITERS: &str = "pbkdf2iters";
    /// Entry of the zapified DSL directory: object of the key.
    pub const DIR_ENTRY: &str = "com.datto:crypto_key_obj";
    /// Entry of a zapified snapshot: identifies its set of IVs for raw incremental receives.
    pub const IVSET_GUID: &str = "com.datto:ivset_guid";
}

/// The parts of a partly encrypted block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// Authenticated, in clear.
    pub aad: Vec<u8>,
    /// Ranges of the block that are encrypted, ascending.
    pub encrypted: Vec<Range<usize>>,
}

impl Parts {
    /// The encrypted parts of a block in one piece.
    pub fn gather(&self, block: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.encrypted.iter().map(|r| r.len()).sum());
        for r in &self.encrypted {
            out.extend_from_slice(block.get(r.clone()).unwrap_or_default());
        }
        out
    }

    /// Puts the pieces back.
    pub fn scatter(&self, block: &mut [u8], data: &[u8]) {
        let mut rest = data;
        for r in &self.encrypted {
            let (head, tail) = rest.split_at(r.len().min(rest.len()));
            if let Some(to) = block.get_mut(r.clone()).filter(|b| b.len() == head.len()) {
                to.copy_from_slice(head);
            }
            rest = tail;
        }
    }
}

/// Appends the record by which a pointer is authenticated: 32 bytes, in version 0 24.
pub fn pointer_record(bp: &BlkPtr, version: u64, out: &mut Vec<u8>) {
    let mac = if bp.obj_type() == ObjType::OBJSET {
        [0; MAC_SIZE]
    } else {
        bp.mac()
    };
    out.extend_from_slice(&bp.portable_prop(version).to_le_bytes());
    out.extend_from_slice(&mac);
    if version != 0 {
        out.extend_from_slice(&[0; 8]);
    }
}

/// What the MAC of an indirect block is computed over: the records of its pointers. `block` is
/// uncompressed, in little-endian words.
pub fn indirect_records(block: &[u8], version: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(block.len() / 4);
    for b in block.chunks_exact(BP_SIZE) {
        if let Ok(bp) = BlkPtr::read(b, false) {
            pointer_record(&bp, version, &mut out);
        }
    }
    out
}

/// Appends core and pointers of the dnode at the start of `dn` (which ends with its last slot) and
/// returns where its bonus is. `swap`: of the other byte order.
fn dnode_records(dn: &[u8], swap: bool, version: u64, out: &mut Vec<u8>) -> Result<Range<usize>> {
    let Some(core) = dn.get(..DNODE_CORE) else {
        bail!(Damaged, "dnode cut short");
    };
    let nblkptr = core[3] as usize;
    let spill = core[7] & crate::dnode::flags::SPILL_BLKPTR;
    let at = DNODE_CORE + nblkptr * BP_SIZE;
    let end = dn.len() - if spill != 0 { BP_SIZE } else { 0 };
    if nblkptr > 3 || at > end {
        bail!(Damaged, "dnode with {nblkptr} pointers");
    }
    let first = out.len();
    out.extend_from_slice(core);
    let c = &mut out[first..];
    c[7] = spill;
    if swap {
        c[8..10].reverse();
        c[10..12].reverse();
        c[16..24].reverse();
    }
    c[24..32].fill(0);
    for b in dn[DNODE_CORE..at].chunks_exact(BP_SIZE) {
        pointer_record(&BlkPtr::read(b, swap)?, version, out);
    }
    if spill != 0 {
        pointer_record(&BlkPtr::read(&dn[end..], swap)?, version, out);
    }
    Ok(at..end)
}

/// Parts of a block of dnodes as it lies on disk; `swap` if it is of the other byte order.
pub fn dnode_block(block: &[u8], swap: bool, version: u64) -> Result<Parts> {
    let mut p = Parts::default();
    let mut at = 0;
    while at < block.len() {
        let slots = block.get(at + 12).map_or(0, |n| *n as usize) + 1;
        let Some(dn) = block.get(at..at + slots * DNODE_SIZE) else {
            bail!(Damaged, "dnode reaches beyond its block");
        };
        let bonus = dnode_records(dn, swap, version, &mut p.aad)?;
        let len = [dn[10], dn[11]];
        if dn[0] != 0 && ObjType(dn[4]).is_encrypted() && len != [0, 0] {
            p.encrypted.push(at + bonus.start..at + bonus.end);
        } else {
            p.aad.extend_from_slice(&dn[bonus]);
        }
        at += slots * DNODE_SIZE;
    }
    Ok(p)
}

/// Parts of a log block (slim form) as it lies on disk.
pub fn zil_block(block: &[u8], swap: bool) -> Result<Parts> {
    let Some(chain) = block.get(..CHAIN_SIZE) else {
        bail!(Damaged, "log block of {} bytes", block.len());
    };
    let mut p = Parts {
        aad: chain[..CHAIN_TRAILER].to_vec(),
        encrypted: Vec::new(),
    };
    let word = |at: usize| -> Result<u64> {
        let w = u64_at(block, at)?;
        Ok(if swap { w.swap_bytes() } else { w })
    };
    let end = usize::try_from(word(CHAIN_TRAILER - 8)?).unwrap_or(usize::MAX);
    if end < CHAIN_SIZE || end > block.len() {
        bail!(Damaged, "log block: {end} bytes used");
    }
    let mut at = CHAIN_SIZE;
    while at + crate::zil::RECORD_HEADER <= end {
        let len = usize::try_from(word(at + 8)?).unwrap_or(usize::MAX);
        // A record shorter than what is fixed of its type, or longer than the block.
        if len > end - at || len < crate::zil::RECORD_HEADER {
            break;
        }
        let body = at + crate::zil::RECORD_HEADER;
        p.aad.extend_from_slice(&block[at..body]);
        let rec_end = at + len;
        match word(at)? {
            9 if len >= 192 => {
                p.encrypted.push(body..at + 64);
                p.aad.extend_from_slice(&block[at + 64..at + 192]);
                p.encrypted.push(at + 192..rec_end);
            }
            24 if len >= 72 => {
                p.encrypted.push(body..at + 64);
                p.aad.extend_from_slice(&block[at + 64..rec_end]);
            }
            _ => p.encrypted.push(body..rec_end),
        }
        at = rec_end;
    }
    p.encrypted.retain(|r| !r.is_empty());
    Ok(p)
}

/// What the two MACs of an object set are computed over. The second is `None` where there is no
/// complete accounting: that MAC is then zero.
///
/// `block` is in little-endian words.
pub fn objset_records(block: &[u8], version: u64) -> Result<(Vec<u8>, Option<Vec<u8>>)> {
    if block.len() < objset::SIZE_V1 {
        bail!(Damaged, "object set of {} bytes", block.len());
    }
    // The one number that is authenticated in big-endian order (found on real pools).
    let mut portable = u64_at(block, objset::OS_TYPE)?.to_be_bytes().to_vec();
    // No flag of an object set is portable.
    portable.extend_from_slice(&[0; 8]);
    dnode_records(&block[..DNODE_SIZE], false, version, &mut portable)?;
    let flags = u64_at(block, objset::OS_FLAGS)?;
    let dnodes: Vec<&[u8]> = [objset::USERUSED, objset::GROUPUSED, objset::PROJECTUSED]
        .iter()
        // The third is only there in the largest form.
        .filter(|at| **at != objset::PROJECTUSED || block.len() >= objset::SIZE_V3)
        .filter_map(|at| block.get(*at..at + DNODE_SIZE))
        .filter(|d| d[0] != 0)
        .collect();
    let counted = [objset::USERUSED, objset::GROUPUSED]
        .iter()
        .any(|at| block.get(*at).is_some_and(|b| *b != 0));
    if flags & objset::USERACCT_COMPLETE == 0 || !counted {
        return Ok((portable, None));
    }
    let mut local = flags.to_le_bytes().to_vec();
    for d in dnodes {
        dnode_records(d, false, version, &mut local)?;
    }
    Ok((portable, Some(local)))
}

impl BlkPtr {
    /// Sets the X bit: the block is encrypted, authenticated or an indirect block with a MAC of MACs.
    pub fn set_crypt(&mut self) {
        self.set_bits(61, 1, 1);
    }

    fn raw_word(&self, i: usize) -> [u8; 8] {
        if self.is_little_endian() {
            self.words[i].to_le_bytes()
        } else {
            self.words[i].to_be_bytes()
        }
    }

    /// Salt of an encrypted block, as bytes.
    pub fn salt(&self) -> [u8; SALT_SIZE] {
        self.raw_word(4)
    }

    /// Nonce of an encrypted block.
    pub fn iv(&self) -> [u8; IV_SIZE] {
        let mut iv = [0; IV_SIZE];
        iv[..8].copy_from_slice(&self.raw_word(5));
        let high = (self.words[11] >> 32) as u32;
        iv[8..].copy_from_slice(&if self.is_little_endian() {
            high.to_le_bytes()
        } else {
            high.to_be_bytes()
        });
        iv
    }

    /// MAC in the second half of the checksum.
    pub fn mac(&self) -> [u8; MAC_SIZE] {
        let mut mac = [0; MAC_SIZE];
        mac[..8].copy_from_slice(&self.raw_word(14));
        mac[8..].copy_from_slice(&self.raw_word(15));
        mac
    }

    /// Puts salt and nonce into a pointer with the X bit, in the order of its block.
    pub fn set_salt_iv(&mut self, salt: &[u8; SALT_SIZE], iv: &[u8; IV_SIZE]) {
        let mut low = [0; 8];
        low.copy_from_slice(&iv[..8]);
        let high = [iv[8], iv[9], iv[10], iv[11]];
        let high = match self.is_little_endian() {
            true => u32::from_le_bytes(high),
            false => u32::from_be_bytes(high),
        };
        self.words[4] = self.word_of(salt);
        self.words[5] = self.word_of(&low);
        self.words[11] = self.words[11] & 0xffff_ffff | u64::from(high) << 32;
    }

    fn word_of(&self, bytes: &[u8; 8]) -> u64 {
        match self.is_little_endian() {
            true => u64::from_le_bytes(*bytes),
            false => u64::from_be_bytes(*bytes),
        }
    }

    /// Puts the MAC into a pointer, in the order of its block.
    pub fn set_mac(&mut self, mac: &[u8; MAC_SIZE]) {
        for (i, b) in mac.chunks_exact(8).enumerate() {
            let b = b.try_into().unwrap_or([0; 8]);
            self.words[14 + i] = self.word_of(&b);
        }
    }

    /// The property word with what differs between pools blanked out.
    fn portable_prop(&self, version: u64) -> u64 {
        let mut bp = *self;
        if version == 0 {
            bp.set_bits(62, 1, 0);
            bp.set_bits(40, 8, 0);
            bp.set_bits(16, 16, 0);
            return bp.prop();
        }
        if bp.is_hole() {
            return 0;
        }
        if bp.level() != 0 {
            bp.set_bits(63, 1, 0);
            bp.set_bits(32, 7, 0);
            bp.set_bits(16, 16, 0);
        }
        bp.set_bits(62, 1, 0);
        bp.set_bits(40, 8, 0);
        bp.prop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Checksum, Compression};
    use base::Txg;

    fn noise(n: usize, seed: &mut u64) -> Vec<u8> {
        (0..n)
            .map(|_| {
                *seed = seed
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                (*seed >> 33) as u8
            })
            .collect()
    }

    #[test]
    fn salt_iv_and_mac_come_back_and_leave_the_fill_alone() {
        let mut bp = BlkPtr::new(
            ObjType::PLAIN_FILE_CONTENTS,
            0,
            131072,
            4096,
            Compression::LZ4,
            Checksum::FLETCHER4,
            Txg::new(9),
        );
        bp.set_crypt();
        bp.set_dva(0, crate::Dva::new(0, 512, 512, false));
        let iv = *b"abcdefghijkl";
        bp.set_salt_iv(b"saltsalt", &iv);
        bp.set_mac(b"0123456789abcdef");
        bp.set_fill(17);
        assert!(bp.is_encrypted());
        assert_eq!((bp.fill(), bp.salt(), bp.iv()), (17, *b"saltsalt", iv));
        assert_eq!(bp.mac(), *b"0123456789abcdef");
        assert_eq!(&bp.to_bytes()[32..48], b"saltsaltabcdefgh");
    }

    #[test]
    fn hostile_blocks_end_in_errors() {
        let mut seed = 3;
        for _ in 0..3000 {
            let mut b = noise(4096, &mut seed);
            let _ = objset_records(&b, 1);
            let _ = dnode_block(&b, seed & 1 == 0, seed >> 40 & 1);
            b[136..144].copy_from_slice(&(seed >> 51).to_le_bytes());
            b[192..200].copy_from_slice(&(seed >> 54).to_le_bytes());
            if let Ok(p) = zil_block(&b, false) {
                assert!(p.encrypted.iter().all(|r| r.end <= b.len()));
            }
        }
        assert!(dnode_block(&[0; 700], false, 1).is_err());
        assert!(zil_block(&[0; 100], false).is_err());
    }

    #[test]
    fn free_dnodes_are_all_in_clear() {
        let p = dnode_block(&[0; 1024], false, 1).unwrap();
        assert_eq!((p.aad.len(), p.encrypted.len()), (1024, 0));
    }
}
