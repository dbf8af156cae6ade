//! Encryption of datasets (pool format §15): suites, wrapping keys, master keys, block keys, MACs.
//!
//! A dataset's [`DatasetKey`] encrypts blocks under keys derived from its master key and a salt. It is
//! stored wrapped by a [`WrappingKey`], which comes from the user. All keys are wiped when dropped, and
//! none can be printed.

use aes::cipher::KeyInit;
use aes::{Aes128, Aes192, Aes256};
use base::sync::MutexExt;
use base::{bail, Cause, Error, Kind, Result};
use ccm::aead::AeadInOut;
use ccm::consts::{U12, U16};
use ccm::Ccm;
use hmac::{Hmac, Mac};
use sha1::Sha1;
use sha2::{Digest, Sha512};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use zeroize::Zeroizing;

/// Bytes of a wrapping key whatever the suite.
pub const WRAPPING_KEY_SIZE: usize = 32;
/// Bytes of the place for a master key; suites use the first 16, 24 or 32.
pub const MASTER_KEY_SIZE: usize = 32;
/// Bytes of the key for MACs of what is not encrypted.
pub const HMAC_KEY_SIZE: usize = 64;
/// Bytes of a nonce.
pub const IV_SIZE: usize = 12;
/// Bytes of the salt a block key is derived with.
pub const SALT_SIZE: usize = 8;
/// Bytes of the MAC of a block.
pub const MAC_SIZE: usize = 16;
/// Blocks encrypted under one salt before a new one is drawn: far from where random nonces of 96 bits
/// would be likely to repeat.
pub const SALT_USES: u64 = 400_000_000;
/// Block keys kept ready.
const CIPHERS: usize = 64;
/// Bytes of a SHA-1.
const SHA1_SIZE: usize = 20;

/// Nonce of a block.
pub type Iv = [u8; IV_SIZE];
/// Salt of a block.
pub type Salt = [u8; SALT_SIZE];
/// MAC of a block.
pub type MacBytes = [u8; MAC_SIZE];

/// Cipher and mode by on-disk number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Suite(u64);

impl Suite {
    /// What "on" means: aes-256-gcm.
    pub const DEFAULT: Suite = Suite(8);

    /// 3…5: AES-128/192/256-CCM; 6…8: the same in GCM.
    pub fn new(n: u64) -> Result<Suite> {
        match n {
            3..=8 => Ok(Suite(n)),
            _ => bail!(Damaged, "unknown encryption suite {n}"),
        }
    }

    /// The number on disk.
    pub fn number(self) -> u64 {
        self.0
    }

    /// Bytes of master and block keys.
    pub fn key_size(self) -> usize {
        [16, 24, 32][(self.0 as usize - 3) % 3]
    }

    /// GCM, not CCM.
    pub fn is_gcm(self) -> bool {
        self.0 >= 6
    }

    /// The value of property `encryption`.
    pub fn name(self) -> &'static str {
        [
            "aes-128-ccm",
            "aes-192-ccm",
            "aes-256-ccm",
            "aes-128-gcm",
            "aes-192-gcm",
            "aes-256-gcm",
        ][self.0 as usize - 3]
    }
}

#[cfg(feature = "aws-lc")]
use aws_lc::Gcm;
#[cfg(not(feature = "aws-lc"))]
use pure::Gcm;

/// GCM of AWS-LC. Keys are in its memory, which it wipes when it frees it; the process has that memory locked
/// (`env_linux::keep_crypto_memory`).
#[cfg(feature = "aws-lc")]
mod aws_lc {
    use super::{Iv, MacBytes};
    use aws_lc_rs::aead::{Aad, LessSafeKey, Nonce, UnboundKey};
    use aws_lc_rs::aead::{AES_128_GCM, AES_192_GCM, AES_256_GCM};

    pub struct Gcm(LessSafeKey);

    impl Gcm {
        pub fn new(key: &[u8]) -> Option<Gcm> {
            let suite = match key.len() {
                16 => &AES_128_GCM,
                24 => &AES_192_GCM,
                _ => &AES_256_GCM,
            };
            let key = UnboundKey::new(suite, key).ok()?;
            Some(Gcm(LessSafeKey::new(key)))
        }

        pub fn seal(&self, iv: &Iv, aad: &[u8], data: &mut [u8]) -> Option<MacBytes> {
            let iv = Nonce::assume_unique_for_key(*iv);
            let mac = self.0.seal_in_place_separate_tag(iv, Aad::from(aad), data);
            mac.ok().and_then(|mac| mac.as_ref().try_into().ok())
        }

        pub fn open(&self, iv: &Iv, aad: &[u8], data: &mut [u8], mac: &MacBytes) -> bool {
            let iv = Nonce::assume_unique_for_key(*iv);
            let aad = Aad::from(aad);
            self.0
                .open_in_place_separate_tag(iv, aad, mac, data)
                .is_ok()
        }
    }
}

/// GCM in pure Rust, for builds that have to be quick. Keys are locked in memory where the process can.
#[cfg(not(feature = "aws-lc"))]
mod pure {
    use super::{open_with, seal_with, Iv, MacBytes};
    use aes::cipher::KeyInit;
    use aes::{Aes128, Aes192, Aes256};
    use aes_gcm::AesGcm;
    use ccm::consts::U12;

    enum Keyed {
        Aes128(AesGcm<Aes128, U12>),
        Aes192(AesGcm<Aes192, U12>),
        Aes256(AesGcm<Aes256, U12>),
    }

    pub struct Gcm(Box<Keyed>);

    impl Gcm {
        pub fn new(key: &[u8]) -> Option<Gcm> {
            let keyed = Box::new(match key.len() {
                16 => Keyed::Aes128(AesGcm::new_from_slice(key).ok()?),
                24 => Keyed::Aes192(AesGcm::new_from_slice(key).ok()?),
                _ => Keyed::Aes256(AesGcm::new_from_slice(key).ok()?),
            });
            base::keep::keep(&*keyed);
            Some(Gcm(keyed))
        }

        pub fn seal(&self, iv: &Iv, aad: &[u8], data: &mut [u8]) -> Option<MacBytes> {
            match &*self.0 {
                Keyed::Aes128(c) => seal_with(c, iv, aad, data),
                Keyed::Aes192(c) => seal_with(c, iv, aad, data),
                Keyed::Aes256(c) => seal_with(c, iv, aad, data),
            }
        }

        pub fn open(&self, iv: &Iv, aad: &[u8], data: &mut [u8], mac: &MacBytes) -> bool {
            match &*self.0 {
                Keyed::Aes128(c) => open_with(c, iv, aad, data, mac),
                Keyed::Aes192(c) => open_with(c, iv, aad, data, mac),
                Keyed::Aes256(c) => open_with(c, iv, aad, data, mac),
            }
        }
    }
}

fn seal_with<C: AeadInOut<NonceSize = U12, TagSize = U16>>(
    c: &C,
    iv: &Iv,
    aad: &[u8],
    data: &mut [u8],
) -> Option<MacBytes> {
    let mac = c.encrypt_inout_detached(iv.into(), aad, data.into());
    mac.ok().map(Into::into)
}

fn open_with<C: AeadInOut<NonceSize = U12, TagSize = U16>>(
    c: &C,
    iv: &Iv,
    aad: &[u8],
    data: &mut [u8],
    mac: &MacBytes,
) -> bool {
    c.decrypt_inout_detached(iv.into(), aad, data.into(), mac.into())
        .is_ok()
}

/// Keys ready for use.
enum Cipher {
    Gcm(Gcm),
    Ccm128(Box<Ccm<Aes128, U16, U12>>),
    Ccm192(Box<Ccm<Aes192, U16, U12>>),
    Ccm256(Box<Ccm<Aes256, U16, U12>>),
}

impl Cipher {
    fn new(suite: Suite, key: &[u8]) -> Result<Cipher> {
        let wrong = || Error::new(Kind::Invalid, "key of a wrong length");
        let bad = |_| wrong();
        match suite.0 {
            3 => return Cipher::kept(Ccm::new_from_slice(key).map_err(bad)?, Cipher::Ccm128),
            4 => return Cipher::kept(Ccm::new_from_slice(key).map_err(bad)?, Cipher::Ccm192),
            5 => return Cipher::kept(Ccm::new_from_slice(key).map_err(bad)?, Cipher::Ccm256),
            _ => {}
        }
        match key.len() == suite.key_size() {
            true => Gcm::new(key).map(Cipher::Gcm).ok_or_else(wrong),
            false => Err(wrong()),
        }
    }

    /// What is made of a key is as good as the key.
    fn kept<T>(cipher: T, wrap: impl FnOnce(Box<T>) -> Cipher) -> Result<Cipher> {
        let cipher = Box::new(cipher);
        base::keep::keep(&*cipher);
        Ok(wrap(cipher))
    }

    /// The cipher for wrapping: the suite's mode, but always 256 bits.
    fn wrapping(suite: Suite, key: &WrappingKey) -> Result<Cipher> {
        Cipher::new(Suite(if suite.is_gcm() { 8 } else { 5 }), &key.0[..])
    }

    fn seal(&self, iv: &Iv, aad: &[u8], data: &mut [u8]) -> Result<MacBytes> {
        match self {
            Cipher::Gcm(key) => key.seal(iv, aad, data),
            Cipher::Ccm128(c) => seal_with(&**c, iv, aad, data),
            Cipher::Ccm192(c) => seal_with(&**c, iv, aad, data),
            Cipher::Ccm256(c) => seal_with(&**c, iv, aad, data),
        }
        .ok_or_else(|| Error::new(Kind::Invalid, "block too long for its cipher"))
    }

    /// `data` is garbage after an error.
    fn open(&self, iv: &Iv, aad: &[u8], data: &mut [u8], mac: &MacBytes) -> Result<()> {
        let good = match self {
            Cipher::Gcm(key) => key.open(iv, aad, data, mac),
            Cipher::Ccm128(c) => open_with(&**c, iv, aad, data, mac),
            Cipher::Ccm192(c) => open_with(&**c, iv, aad, data, mac),
            Cipher::Ccm256(c) => open_with(&**c, iv, aad, data, mac),
        };
        if !good {
            let e = Error::new(Kind::Checksum, "authentication failed");
            return Err(e.because(Cause::NotAuthentic));
        }
        Ok(())
    }
}

/// A key at a fixed place, locked in memory where the process can, and wiped when dropped.
type Kept<const N: usize> = Box<Zeroizing<[u8; N]>>;

/// Room for a key, zeros.
fn kept<const N: usize>() -> Kept<N> {
    let key = Box::new(Zeroizing::new([0; N]));
    base::keep::keep(&**key);
    key
}

/// Iterations of PBKDF2 between two questions whether to go on: some milliseconds.
const ITERATIONS_AT_ONCE: u32 = 1 << 14;

/// The user's key, under which keys of datasets are stored.
pub struct WrappingKey(Kept<WRAPPING_KEY_SIZE>);

impl WrappingKey {
    /// From 32 bytes (keyformats raw and hex).
    pub fn from_bytes(key: &[u8]) -> Result<WrappingKey> {
        let mut k = kept();
        if key.len() != k.len() {
            bail!(Invalid, "a raw key has {WRAPPING_KEY_SIZE} bytes");
        }
        k.copy_from_slice(key);
        Ok(WrappingKey(k))
    }

    /// From a passphrase: PBKDF2-HMAC-SHA1. `salt` and `iterations` are the properties `pbkdf2salt` and
    /// `pbkdf2iters`.
    pub fn from_passphrase(passphrase: &[u8], salt: u64, iterations: u64) -> Result<WrappingKey> {
        WrappingKey::from_passphrase_until(passphrase, salt, iterations, &|| false)
    }

    /// The same; ends with [`Kind::Interrupted`] soon after `cancelled` says so. The number of
    /// iterations may come from a hostile pool and take an hour.
    pub fn from_passphrase_until(
        passphrase: &[u8],
        salt: u64,
        iterations: u64,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<WrappingKey> {
        // More would be hours, whoever wrote such a number.
        let Some(rounds) = u32::try_from(iterations).ok().filter(|n| *n > 0) else {
            bail!(Damaged, "{iterations} iterations of PBKDF2");
        };
        // RFC 8018, 5.2. The crate pbkdf2 has no way to stop between iterations.
        let Ok(prf) = Hmac::<Sha1>::new_from_slice(passphrase) else {
            bail!(Invalid, "passphrase");
        };
        let mut k: Kept<WRAPPING_KEY_SIZE> = kept();
        for (part, n) in k.chunks_mut(SHA1_SIZE).zip(1u32..) {
            let mut mac = prf.clone();
            mac.update(&salt.to_le_bytes());
            mac.update(&n.to_be_bytes());
            let mut u = Zeroizing::new(<[u8; SHA1_SIZE]>::from(mac.finalize().into_bytes()));
            let mut sum = u.clone();
            for round in 1..rounds {
                if round % ITERATIONS_AT_ONCE == 0 && cancelled() {
                    bail!(
                        Interrupted,
                        "making the key from the passphrase was cancelled"
                    );
                }
                let mut mac = prf.clone();
                mac.update(&u[..]);
                *u = mac.finalize().into_bytes().into();
                sum.iter_mut().zip(u.iter()).for_each(|(s, u)| *s ^= u);
            }
            part.copy_from_slice(&sum[..part.len()]);
        }
        Ok(WrappingKey(k))
    }

    /// The 32 bytes.
    pub fn bytes(&self) -> &[u8; WRAPPING_KEY_SIZE] {
        &self.0
    }
}

impl std::fmt::Debug for WrappingKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WrappingKey")
    }
}

/// A dataset's keys as they are stored (pool format §15.2).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wrapped {
    /// Suite of the blocks; keys are wrapped in its mode with 256 bits.
    pub suite: Suite,
    /// Of the key, shared by a dataset and its clones; authenticated.
    pub guid: u64,
    /// Of the format: 1, or 0 for pools from before the first release.
    pub version: u64,
    /// Nonce of the wrapping.
    pub iv: Iv,
    /// MAC of the wrapping.
    pub mac: MacBytes,
    /// Encrypted; only the suite's key length is used.
    pub master: [u8; MASTER_KEY_SIZE],
    /// Encrypted.
    pub hmac: [u8; HMAC_KEY_SIZE],
}

impl Wrapped {
    fn aad(&self) -> Vec<u8> {
        let mut aad = self.guid.to_le_bytes().to_vec();
        if self.version != 0 {
            aad.extend_from_slice(&self.suite.0.to_le_bytes());
            aad.extend_from_slice(&self.version.to_le_bytes());
        }
        aad
    }

    /// The keys themselves. `Kind::Checksum`: the wrapping key is not the one they were wrapped with.
    pub fn unwrap(&self, key: &WrappingKey) -> Result<DatasetKey> {
        let n = self.suite.key_size();
        let mut data = Zeroizing::new(Vec::with_capacity(n + HMAC_KEY_SIZE));
        data.extend_from_slice(&self.master[..n]);
        data.extend_from_slice(&self.hmac);
        let cipher = Cipher::wrapping(self.suite, key)?;
        cipher.open(&self.iv, &self.aad(), &mut data, &self.mac)?;
        let mut master = kept();
        master[..n].copy_from_slice(&data[..n]);
        let mut hmac: Kept<HMAC_KEY_SIZE> = kept();
        hmac.copy_from_slice(&data[n..]);
        Ok(DatasetKey::build(
            self.suite,
            self.guid,
            self.version,
            master,
            hmac,
        ))
    }
}

/// The salt new blocks use, and for how many more.
struct Current {
    salt: Salt,
    left: u64,
}

/// The keys of a dataset and its clones.
pub struct DatasetKey {
    suite: Suite,
    guid: u64,
    version: u64,
    master: Kept<MASTER_KEY_SIZE>,
    hmac: Kept<HMAC_KEY_SIZE>,
    ciphers: Mutex<HashMap<Salt, Arc<Cipher>>>,
    current: Mutex<Option<Current>>,
}

impl std::fmt::Debug for DatasetKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DatasetKey({}, {:x})", self.suite.name(), self.guid)
    }
}

impl DatasetKey {
    fn build(
        suite: Suite,
        guid: u64,
        version: u64,
        master: Kept<MASTER_KEY_SIZE>,
        hmac: Kept<HMAC_KEY_SIZE>,
    ) -> DatasetKey {
        DatasetKey {
            suite,
            guid,
            version,
            master,
            hmac,
            ciphers: Mutex::default(),
            current: Mutex::default(),
        }
    }

    /// New random keys of the newest format; `random` fills a buffer.
    pub fn generate(suite: Suite, random: &dyn Fn(&mut [u8])) -> DatasetKey {
        DatasetKey::generate_as(suite, disk::crypt::KEY_VERSION, random)
    }

    /// New random keys of that format version.
    pub fn generate_as(suite: Suite, version: u64, random: &dyn Fn(&mut [u8])) -> DatasetKey {
        let mut master: Kept<MASTER_KEY_SIZE> = kept();
        random(&mut master[..suite.key_size()]);
        let mut hmac: Kept<HMAC_KEY_SIZE> = kept();
        random(&mut hmac[..]);
        let mut guid = [0; 8];
        while guid == [0; 8] {
            random(&mut guid);
        }
        DatasetKey::build(suite, u64::from_le_bytes(guid), version, master, hmac)
    }

    /// Suite of the blocks.
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// Guid of the key, as stored.
    pub fn guid(&self) -> u64 {
        self.guid
    }

    /// Format version: 1, or 0 for pools from before the first release.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The keys under a wrapping key, for storing.
    pub fn wrap(&self, key: &WrappingKey, random: &dyn Fn(&mut [u8])) -> Result<Wrapped> {
        let n = self.suite.key_size();
        let mut w = Wrapped {
            suite: self.suite,
            guid: self.guid,
            version: self.version,
            iv: [0; IV_SIZE],
            mac: [0; MAC_SIZE],
            master: [0; MASTER_KEY_SIZE],
            hmac: [0; HMAC_KEY_SIZE],
        };
        random(&mut w.iv);
        let mut data = Zeroizing::new(Vec::with_capacity(n + HMAC_KEY_SIZE));
        data.extend_from_slice(&self.master[..n]);
        data.extend_from_slice(&self.hmac[..]);
        let cipher = Cipher::wrapping(self.suite, key)?;
        w.mac = cipher.seal(&w.iv, &w.aad(), &mut data)?;
        w.master[..n].copy_from_slice(&data[..n]);
        w.hmac.copy_from_slice(&data[n..]);
        Ok(w)
    }

    fn cipher(&self, salt: &Salt) -> Result<Arc<Cipher>> {
        let mut map = self.ciphers.acquire();
        if let Some(c) = map.get(salt) {
            return Ok(c.clone());
        }
        let n = self.suite.key_size();
        let mut key = Zeroizing::new([0; MASTER_KEY_SIZE]);
        hkdf::Hkdf::<Sha512>::new(None, &self.master[..n])
            .expand(salt, &mut key[..n])
            .map_err(|_| Error::new(Kind::Invalid, "block key"))?;
        let c = Arc::new(Cipher::new(self.suite, &key[..n])?);
        if map.len() >= CIPHERS {
            map.clear();
        }
        map.insert(*salt, c.clone());
        Ok(c)
    }

    /// Salt for the next block to be written.
    pub fn next_salt(&self, random: &dyn Fn(&mut [u8])) -> Salt {
        let mut c = self.current.acquire();
        match &mut *c {
            Some(c) if c.left > 0 => {
                c.left -= 1;
                c.salt
            }
            _ => {
                let mut salt = [0; SALT_SIZE];
                random(&mut salt);
                *c = Some(Current {
                    salt,
                    left: SALT_USES - 1,
                });
                salt
            }
        }
    }

    /// Encrypts in place; `aad` is authenticated as well.
    pub fn encrypt(&self, salt: &Salt, iv: &Iv, aad: &[u8], data: &mut [u8]) -> Result<MacBytes> {
        self.cipher(salt)?.seal(iv, aad, data)
    }

    /// Decrypts in place. `Kind::Checksum`: this is not what was encrypted; `data` is garbage then.
    pub fn decrypt(
        &self,
        salt: &Salt,
        iv: &Iv,
        aad: &[u8],
        data: &mut [u8],
        mac: &MacBytes,
    ) -> Result<()> {
        self.cipher(salt)?.open(iv, aad, data, mac)
    }

    /// HMAC-SHA512 under the dataset's key for MACs.
    pub fn hmac(&self, data: &[u8]) -> [u8; 64] {
        // Any length of key will do for HMAC.
        match Hmac::<Sha512>::new_from_slice(&self.hmac[..]) {
            Ok(mut m) => {
                m.update(data);
                m.finalize().into_bytes().into()
            }
            Err(_) => [0; 64],
        }
    }

    /// MAC of a level-0 block that is authenticated and in clear.
    pub fn block_mac(&self, data: &[u8]) -> MacBytes {
        first(&self.hmac(data))
    }
}

/// How the blocks of an object set are to be treated.
#[derive(Clone, Debug, Default)]
pub enum Crypt {
    /// Not encrypted.
    #[default]
    Plain,
    /// Encrypted, without a key: what is in clear can be read, nothing but headers can be written.
    Locked,
    /// Encrypted, without a key: written as a raw stream brings it, with keys of that format version.
    Raw(u64),
    /// Encrypted, with its key.
    Key(Arc<DatasetKey>),
}

impl Crypt {
    /// The key, if there is one at hand.
    pub fn key(&self) -> Option<&Arc<DatasetKey>> {
        match self {
            Crypt::Key(k) => Some(k),
            _ => None,
        }
    }

    /// The dataset is encrypted, with a key at hand or without.
    pub fn is_encrypted(&self) -> bool {
        !matches!(self, Crypt::Plain)
    }
}

fn first(long: &[u8; 64]) -> MacBytes {
    let mut mac = [0; MAC_SIZE];
    mac.copy_from_slice(&long[..MAC_SIZE]);
    mac
}

/// MAC of an indirect block: plain SHA-512 over the records of its pointers, cut to 16 bytes.
pub fn indirect_mac(records: &[u8]) -> MacBytes {
    let mut long = [0; 64];
    long.copy_from_slice(&Sha512::digest(records));
    first(&long)
}

/// Whether two MACs are equal, in a time that does not depend on where they differ.
pub fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |d, (a, b)| d | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(s: &str) -> Vec<u8> {
        (0..s.len() / 2)
            .map(|i| u8::from_str_radix(&s[2 * i..2 * i + 2], 16).unwrap())
            .collect()
    }

    fn counter() -> impl Fn(&mut [u8]) {
        let n = std::cell::Cell::new(1u8);
        move |b: &mut [u8]| {
            for x in b {
                *x = n.get();
                n.set(n.get().wrapping_mul(37).wrapping_add(11));
            }
        }
    }

    #[test]
    fn passphrases_are_stretched_as_rfc_6070_says() {
        // RFC 6070 has no salt of eight bytes; this one is from Python's hashlib.
        let k = WrappingKey::from_passphrase(b"correct horse", 0x0123456789abcdef, 1000).unwrap();
        assert_eq!(
            k.bytes()[..],
            hex("0e04113a4aa3b52efccf3068ae04bdd55b253e1ccb28ce98bb427e6cd045055d")[..]
        );
        let asked = std::cell::Cell::new(0);
        let cancelled = || asked.replace(asked.get() + 1) == 2;
        let hour = u64::from(u32::MAX);
        let e = WrappingKey::from_passphrase_until(b"x", 1, hour, &cancelled).unwrap_err();
        assert_eq!((e.kind, asked.get()), (Kind::Interrupted, 3));
        assert!(WrappingKey::from_passphrase(b"x", 1, 0).is_err());
        assert!(WrappingKey::from_passphrase(b"x", 1, u64::MAX).is_err());
    }

    #[test]
    fn gcm_as_in_nist_test_case_16() {
        let c = Cipher::new(
            Suite(8),
            &hex("feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308"),
        )
        .unwrap();
        let iv: Iv = hex("cafebabefacedbaddecaf888").try_into().unwrap();
        let aad = hex("feedfacedeadbeeffeedfacedeadbeefabaddad2");
        let mut p = hex(
            "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72\
             1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39",
        );
        let mac = c.seal(&iv, &aad, &mut p).unwrap();
        assert_eq!(mac[..], hex("76fc6ece0f4e1768cddf8853bb2d551b")[..]);
        assert_eq!(p[..8], hex("522dc1f099567d07")[..]);
    }

    /// The pure Rust crate as the judge, over lengths around those of its and the other's inner loops.
    #[test]
    fn gcm_is_what_another_implementation_makes_of_it() {
        use aes_gcm::aead::AeadInOut;
        fn judge<C: KeyInit + AeadInOut<NonceSize = U12, TagSize = U16>>(n: u64, len: usize) {
            let key: Vec<u8> = (0..Suite(n).key_size())
                .map(|i| (i * 7 + len) as u8)
                .collect();
            let iv: Iv = std::array::from_fn(|i| (i * len) as u8);
            let aad = &vec![0x5a; len % 70];
            let plain: Vec<u8> = (0..len).map(|i| ((i * i) >> 3) as u8).collect();
            let (mut ours, mut theirs) = (plain.clone(), plain.clone());
            let ours_key = Cipher::new(Suite(n), &key).unwrap();
            let mac = ours_key.seal(&iv, aad, &mut ours).unwrap();
            let judge = C::new_from_slice(&key).unwrap();
            let other = judge
                .encrypt_inout_detached((&iv).into(), aad, (&mut theirs[..]).into())
                .unwrap();
            assert_eq!((&ours, &mac[..]), (&theirs, &other[..]), "{n} {len}");
            ours_key.open(&iv, aad, &mut theirs, &mac).unwrap();
            assert_eq!(theirs, plain);
            let mut bent = mac;
            bent[len % 16] ^= 1 << (len % 8);
            let e = ours_key.open(&iv, aad, &mut ours, &bent).unwrap_err();
            assert_eq!(e.kind, Kind::Checksum);
        }
        for len in (0..70).chain([127, 128, 129, 255, 256, 257, 511, 513, 4096, 70001]) {
            judge::<aes_gcm::AesGcm<Aes128, U12>>(6, len);
            judge::<aes_gcm::AesGcm<Aes192, U12>>(7, len);
            judge::<aes_gcm::AesGcm<Aes256, U12>>(8, len);
        }
    }

    #[test]
    fn a_key_of_a_wrong_length_is_refused() {
        for n in 3..=8 {
            let right = Suite(n).key_size();
            for len in [0, 8, 16, 24, 32, 33] {
                let e = Cipher::new(Suite(n), &vec![1; len]).err().map(|e| e.kind);
                assert_eq!(e, (len != right).then_some(Kind::Invalid), "{n} {len}");
            }
        }
    }

    #[test]
    fn every_suite_wraps_and_encrypts() {
        let random = counter();
        for n in 3..=8 {
            let suite = Suite::new(n).unwrap();
            let user = WrappingKey::from_bytes(&[n as u8; 32]).unwrap();
            let key = DatasetKey::generate(suite, &random);
            let w = key.wrap(&user, &random).unwrap();
            let again = w.unwrap(&user).unwrap();
            assert_eq!(again.master, key.master);
            assert_eq!(again.hmac, key.hmac);
            let other = WrappingKey::from_bytes(&[99; 32]).unwrap();
            assert_eq!(w.unwrap(&other).unwrap_err().kind, Kind::Checksum);
            let mut bent = w.clone();
            bent.guid ^= 1;
            assert!(bent.unwrap(&user).is_err());

            let (salt, iv) = ([7; 8], [9; 12]);
            let mut data = vec![5u8; 1000];
            let mac = key.encrypt(&salt, &iv, b"aad", &mut data).unwrap();
            assert_ne!(data, vec![5u8; 1000]);
            let cipher = data.clone();
            again.decrypt(&salt, &iv, b"aad", &mut data, &mac).unwrap();
            assert_eq!(data, vec![5u8; 1000]);
            for (aad, iv) in [(&b"aae"[..], iv), (b"aad", [8; 12])] {
                let mut d = cipher.clone();
                assert!(key.decrypt(&salt, &iv, aad, &mut d, &mac).is_err());
            }
        }
        assert!(Suite::new(2).is_err() && Suite::new(9).is_err());
    }

    #[test]
    fn nobody_prints_a_key() {
        let k = WrappingKey::from_bytes(&[0x41; 32]).unwrap();
        let d = DatasetKey::generate(Suite::DEFAULT, &|b| b.fill(0x41));
        let text = format!("{k:?} {d:?}");
        assert!(!text.contains("65") && !text.contains("AAAA"), "{text}");
    }
}
