//! Encryption, authentication and decryption of blocks (pool format §15.3).

pub use codec::crypt::Crypt;

use base::{bail, Block, Cause, Error, Kind, Result, Txg};
use codec::checksum;
use codec::crypt::{self, DatasetKey, Iv, MacBytes, Salt};
use disk::crypt::{dnode_block, indirect_records, KEY_VERSION};
use disk::{BlkPtr, Checksum, Compression, ObjType};
use std::sync::Arc;

/// What it takes to write into an encrypted dataset.
#[derive(Clone, Copy)]
pub struct Seal<'a> {
    /// Not needed for object sets.
    pub key: Option<&'a DatasetKey>,
    /// Format version of the keys, where indirect blocks are written without one.
    pub raw: Option<u64>,
    /// Fills a buffer with unpredictable bytes.
    pub random: &'a (dyn Fn(&mut [u8]) + Sync),
}

/// What goes into the pointer.
#[derive(Clone, Copy)]
pub(crate) enum Sealed {
    /// Object sets: their MACs are inside.
    Inside,
    Mac(MacBytes),
    Encrypted(Salt, Iv, MacBytes),
}

impl Sealed {
    /// Marks the pointer and adds salt and nonce; the MAC is part of the checksum.
    pub fn mark(&self, bp: &mut BlkPtr) {
        bp.set_crypt();
        if let Sealed::Encrypted(salt, iv, _) = self {
            bp.set_salt_iv(salt, iv);
        }
    }

    /// The words kept in the pointer: a shorter checksum and the MAC.
    pub fn words(&self, alg: Checksum, sum: checksum::Words, big_endian: bool) -> checksum::Words {
        let mac = match self {
            Sealed::Inside => return sum,
            Sealed::Mac(m) | Sealed::Encrypted(_, _, m) => m,
        };
        let mut bp = BlkPtr::new(ObjType::NONE, 0, 512, 512, Compression::OFF, alg, Txg::NONE);
        bp.set_big_endian(big_endian);
        bp.set_mac(mac);
        let w = bp.checksum();
        checksum::with_mac(alg, sum, [w[2], w[3]])
    }
}

/// Seals the bytes to be stored of one block. `whole` is the block before compression.
pub(crate) fn seal(
    s: &Seal,
    ty: ObjType,
    level: u8,
    whole: &Block,
    data: Block,
) -> Result<(Block, Sealed)> {
    if level == 0 && ty == ObjType::OBJSET {
        return Ok((data, Sealed::Inside));
    }
    if let (true, Some(version)) = (level > 0, s.raw) {
        let mac = crypt::indirect_mac(&indirect_records(whole, version));
        return Ok((data, Sealed::Mac(mac)));
    }
    let Some(key) = s.key else {
        bail!(
            Access,
            "an encrypted dataset cannot be written without its key"
        );
    };
    if level > 0 {
        let mac = crypt::indirect_mac(&indirect_records(whole, key.version()));
        return Ok((data, Sealed::Mac(mac)));
    }
    if !ty.is_encrypted() {
        let mac = key.block_mac(&data);
        return Ok((data, Sealed::Mac(mac)));
    }
    let salt = key.next_salt(s.random);
    let mut iv = [0; crypt::IV_SIZE];
    (s.random)(&mut iv);
    let mut out = data.to_vec();
    let mac = if ty == ObjType::DNODE {
        let parts = dnode_block(&out, false, key.version())?;
        let mut secret = parts.gather(&out);
        let mac = key.encrypt(&salt, &iv, &parts.aad, &mut secret)?;
        parts.scatter(&mut out, &secret);
        mac
    } else {
        key.encrypt(&salt, &iv, &[], &mut out)?
    };
    Ok((Arc::new(out), Sealed::Encrypted(salt, iv, mac)))
}

/// Undoes [`seal`] for level-0 blocks, in place.
pub(crate) fn open(bp: &BlkPtr, key: &DatasetKey, raw: &mut [u8]) -> Result<()> {
    if !bp.is_encrypted() {
        return match crypt::same(&key.block_mac(raw), &bp.mac()) {
            true => Ok(()),
            false => {
                let e = Error::new(Kind::Checksum, "authentication failed");
                Err(e.because(Cause::NotAuthentic))
            }
        };
    }
    let (salt, iv, mac) = (bp.salt(), bp.iv(), bp.mac());
    if bp.obj_type() != ObjType::DNODE {
        return key.decrypt(&salt, &iv, &[], raw, &mac);
    }
    let parts = dnode_block(raw, !bp.is_little_endian(), key.version())?;
    let mut secret = parts.gather(raw);
    key.decrypt(&salt, &iv, &parts.aad, &mut secret, &mac)?;
    parts.scatter(raw, &secret);
    Ok(())
}

/// Checks the MAC of an indirect block, which takes no key. `data` is uncompressed, little-endian.
pub(crate) fn check_indirect(bp: &BlkPtr, data: &[u8]) -> Result<()> {
    // Which version the key has is not known here; old ones are rare.
    let fits = |v| crypt::same(&crypt::indirect_mac(&indirect_records(data, v)), &bp.mac());
    match fits(KEY_VERSION) || fits(0) {
        true => Ok(()),
        false => Err(Error::new(Kind::Checksum, "MAC of an indirect block")),
    }
}
