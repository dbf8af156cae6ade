//! Keys of encrypted datasets: key objects in the MOS (pool format §15.2), encryption roots, and the
//! keys that are loaded.
//!
//! Keys of format version 0 are from before the first release. What they protect is read, and never written: MACs of that
//! format cover fields that differ from pool to pool (errata 3).
//!
//! A dataset's keys lie in the MOS wrapped under the key of its *encryption root*, itself or a directory
//! above it. Loading a key puts the root's wrapping key here; the keys of datasets are unwrapped as
//! they are opened, shared by all who use them, and wiped when the last has gone.

use crate::core::Core;
use crate::{Dataset, Dir, Dsl};
use base::sync::MutexExt;
use base::{bail, bail_about, Error, Kind, Result};
use codec::crypt::{DatasetKey, Suite, Wrapped, WrappingKey};
use disk::crypt::keys;
use disk::ObjType;
use dmu::Tx;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use zap::{Value, Zap};
use zio::Crypt;

/// The per-dataset feature.
pub const ENCRYPTION: &str = disk::feature::guid::ENCRYPTION;

/// `keyformat` by on-disk number.
pub mod keyformat {
    /// 32 bytes.
    pub const RAW: u64 = 1;
    /// 64 hexadecimal digits.
    pub const HEX: u64 = 2;
    /// A passphrase, from which PBKDF2 derives the key.
    pub const PASSPHRASE: u64 = 3;
}

/// How a wrapping key is made from what the user knows; the properties of that name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyParams {
    /// See [`keyformat`].
    pub format: u64,
    /// `pbkdf2salt` and `pbkdf2iters`, 0 unless it is a passphrase.
    pub salt: u64,
    /// Iterations of PBKDF2.
    pub iterations: u64,
}

/// A DSL crypto key object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyObject {
    /// Number of the MOS object.
    pub object: u64,
    /// DSL directory of the encryption root.
    pub root: u64,
    /// Datasets (clones) sharing it.
    pub refcount: u64,
    /// The keys of the dataset, encrypted under the wrapping key.
    pub wrapped: Wrapped,
    /// How the wrapping key is made.
    pub params: KeyParams,
}

impl KeyObject {
    /// Whether its format is from before the first release, so that what it protects is not written.
    pub fn is_old(&self) -> bool {
        self.wrapped.version < disk::crypt::KEY_VERSION
    }
}

/// A key that a raw stream brought, wrapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedKey {
    /// The keys of the dataset, encrypted under the sender's wrapping key.
    pub wrapped: Wrapped,
    /// How the wrapping key is made.
    pub params: KeyParams,
}

impl ReceivedKey {
    /// From the list in the BEGIN record (data format §30.7).
    ///
    /// Errors: invalid, if something is missing or has the wrong size.
    pub fn from_list(list: &disk::NvList) -> Result<ReceivedKey> {
        let bad = |name: &str| Error::new(Kind::Invalid, format!("raw stream: no valid {name}"));
        let num = |name: &str| list.get_u64(name).ok_or_else(|| bad(name));
        fn bytes<const N: usize>(list: &disk::NvList, name: &str) -> Result<[u8; N]> {
            let b = match list.get(name) {
                Some(disk::nvlist::Value::Uint8Array(b)) => b.as_slice(),
                Some(disk::nvlist::Value::ByteArray(b)) => b.as_slice(),
                _ => &[],
            };
            let none = || Error::new(Kind::Invalid, format!("raw stream: no valid {name}"));
            b.try_into().map_err(|_| none())
        }
        // That format had no such word.
        let version = list.get_u64(keys::VERSION).unwrap_or(0);
        if version < disk::crypt::KEY_VERSION {
            bail!(
                Unsupported,
                "raw streams of the first format of encryption are not received (errata 3): send without -w"
            );
        }
        if version > disk::crypt::KEY_VERSION {
            bail!(Unsupported, "unknown version {version} of encryption keys");
        }
        let params = KeyParams {
            format: num("keyformat")?,
            salt: list.get_u64("pbkdf2salt").unwrap_or(0),
            iterations: list.get_u64("pbkdf2iters").unwrap_or(0),
        };
        if !(keyformat::RAW..=keyformat::PASSPHRASE).contains(&params.format) {
            return Err(bad("keyformat"));
        }
        Ok(ReceivedKey {
            wrapped: Wrapped {
                suite: Suite::new(num(keys::SUITE)?).map_err(|_| bad(keys::SUITE))?,
                guid: num(keys::GUID)?,
                version,
                iv: bytes(list, keys::IV)?,
                mac: bytes(list, keys::MAC)?,
                master: bytes(list, keys::MASTER_KEY)?,
                hmac: bytes(list, keys::HMAC_KEY)?,
            },
            params,
        })
    }
}

/// How a new dataset is to be encrypted.
pub enum NewKey {
    /// Under the key of the parent's encryption root, which must be loaded.
    Inherit(Suite),
    /// As a new encryption root.
    Root {
        /// Cipher and key length.
        suite: Suite,
        /// The wrapping key.
        key: Arc<WrappingKey>,
        /// How the wrapping key is made.
        params: KeyParams,
        /// Property `keylocation`.
        location: String,
    },
}

/// Keys that are loaded.
#[derive(Default)]
pub(crate) struct KeyStore {
    /// By directory of the encryption root.
    wrapping: Mutex<HashMap<u64, (Arc<WrappingKey>, KeyParams)>>,
    /// Unwrapped and in use, by key object, with the root.
    open: Mutex<HashMap<u64, (u64, Weak<DatasetKey>)>>,
    /// A key of the first format has been seen.
    seen_old: AtomicBool,
    /// New keys are of the first format.
    makes_old: AtomicBool,
}

fn read_key(core: &Core, object: u64) -> Result<KeyObject> {
    let dn = core.hold(object)?;
    let zap = Zap::new(&dn);
    let need = |name: &str| -> Result<Value> {
        zap.get_value(name)?
            .ok_or_else(|| Error::damaged(format!("key object {object} has no {name}")))
    };
    let number = |name: &str| need(name)?.to_u64();
    fn bytes<const N: usize>(v: &Value, what: &str) -> Result<[u8; N]> {
        let all = v.ints();
        let b: Vec<u8> = all.iter().filter_map(|x| u8::try_from(*x).ok()).collect();
        <[u8; N]>::try_from(b)
            .map_err(|_| Error::damaged(format!("{what} of {} bytes in a key object", all.len())))
    }
    // The first format had no number.
    let version = zap.get(keys::VERSION)?.unwrap_or(0);
    if version > disk::crypt::KEY_VERSION {
        bail!(Unsupported, "unknown version {version} of encryption keys");
    }
    if version < disk::crypt::KEY_VERSION {
        core.keys.seen_old.store(true, Ordering::Relaxed);
    }
    let optional = |name: &str| zap.get(name).map(|v| v.unwrap_or(0));
    Ok(KeyObject {
        object,
        root: number(keys::ROOT_DIR)?,
        refcount: number(keys::REFCOUNT)?,
        wrapped: Wrapped {
            suite: Suite::new(number(keys::SUITE)?)?,
            guid: number(keys::GUID)?,
            version,
            iv: bytes(&need(keys::IV)?, keys::IV)?,
            mac: bytes(&need(keys::MAC)?, keys::MAC)?,
            master: bytes(&need(keys::MASTER_KEY)?, keys::MASTER_KEY)?,
            hmac: bytes(&need(keys::HMAC_KEY)?, keys::HMAC_KEY)?,
        },
        params: KeyParams {
            format: optional(keys::KEYFORMAT)?,
            salt: optional(keys::PBKDF2_SALT)?,
            iterations: optional(keys::PBKDF2_ITERS)?,
        },
    })
}

impl Core {
    /// Stores (again) what depends on the wrapping key.
    fn put_key(
        &self,
        tx: &Tx,
        object: u64,
        root: u64,
        wrapped: &Wrapped,
        params: &KeyParams,
    ) -> Result<()> {
        let dn = self.hold(object)?;
        let zap = Zap::new(&dn);
        for (name, v) in [
            (keys::SUITE, wrapped.suite.number()),
            (keys::ROOT_DIR, root),
            (keys::GUID, wrapped.guid),
            (keys::KEYFORMAT, params.format),
            (keys::PBKDF2_ITERS, params.iterations),
            (keys::PBKDF2_SALT, params.salt),
        ] {
            zap.update_u64(tx, name, v)?;
        }
        if wrapped.version != 0 {
            zap.update_u64(tx, keys::VERSION, wrapped.version)?;
        }
        for (name, b) in [
            (keys::IV, &wrapped.iv[..]),
            (keys::MAC, &wrapped.mac),
            (keys::MASTER_KEY, &wrapped.master),
            (keys::HMAC_KEY, &wrapped.hmac),
        ] {
            zap.update(tx, name, &Value::bytes(b))?;
        }
        Ok(())
    }

    /// Makes `ds`, just made and still without an object set, an encrypted one. `new`: as wanted;
    /// for a clone nothing, it shares the key of its origin.
    pub(crate) fn encrypt_new(
        self: &Arc<Self>,
        tx: &Tx,
        ds: &Arc<Dataset>,
        new: Option<&NewKey>,
    ) -> Result<()> {
        let dir = ds.dir();
        let Some(new) = new else {
            let Some(origin) = dir.origin()? else {
                return Ok(());
            };
            let Some(object) = origin.dir().key_object_number()? else {
                return Ok(());
            };
            Zap::new(&self.hold(object)?).increment(tx, keys::REFCOUNT, 1)?;
            self.zapify(tx, &dir.dn)?;
            return Zap::new(&dir.dn).add_u64(tx, keys::DIR_ENTRY, object);
        };
        let rng = self.dmu().env.rng.clone();
        let random = |b: &mut [u8]| rng.fill(b);
        let (suite, root, wkey, params) = match new {
            NewKey::Inherit(suite) => {
                let parent = match dir.parent() {
                    Some(p) => p.key_object()?,
                    None => None,
                };
                let Some(k) = parent else {
                    bail_about!(Invalid, dir.full_name(), "the parent is not encrypted");
                };
                let Some((w, p)) = self.keys.wrapping.acquire().get(&k.root).cloned() else {
                    bail_about!(Access, dir.full_name(), "the parent's key is not loaded");
                };
                (*suite, k.root, w, p)
            }
            NewKey::Root {
                suite, key, params, ..
            } => (*suite, dir.object(), key.clone(), *params),
        };
        let version = match self.keys.makes_old.load(Ordering::Relaxed) {
            true => 0,
            false => disk::crypt::KEY_VERSION,
        };
        let key = DatasetKey::generate_as(suite, version, &random);
        let wrapped = key.wrap(&wkey, &random)?;
        let dn = self.new_zap(tx, ObjType::ZAP_METADATA, 0)?;
        Zap::new(&dn).add_u64(tx, keys::REFCOUNT, 1)?;
        self.put_key(tx, dn.object(), root, &wrapped, &params)?;
        self.zapify(tx, &dir.dn)?;
        Zap::new(&dir.dn).add_u64(tx, keys::DIR_ENTRY, dn.object())?;
        if let NewKey::Root { location, .. } = new {
            let props = self.hold(dir.phys().props_zapobj)?;
            Zap::new(&props).update(tx, "keylocation", &Value::string(location))?;
            dir.cache_props(None);
            self.keys
                .wrapping
                .acquire()
                .insert(dir.object(), (wkey, params));
        }
        ds.activate_feature(tx, ENCRYPTION)
    }

    /// Makes `ds`, just made and still without an object set, one whose key a raw stream brought.
    pub(crate) fn encrypt_received(
        self: &Arc<Self>,
        tx: &Tx,
        ds: &Arc<Dataset>,
        key: &ReceivedKey,
    ) -> Result<()> {
        let dir = ds.dir();
        let dn = self.new_zap(tx, ObjType::ZAP_METADATA, 0)?;
        Zap::new(&dn).add_u64(tx, keys::REFCOUNT, 1)?;
        self.put_key(tx, dn.object(), dir.object(), &key.wrapped, &key.params)?;
        self.zapify(tx, &dir.dn)?;
        Zap::new(&dir.dn).add_u64(tx, keys::DIR_ENTRY, dn.object())?;
        let props = self.hold(dir.phys().props_zapobj)?;
        Zap::new(&props).update(tx, "keylocation", &Value::string("prompt"))?;
        dir.cache_props(None);
        ds.activate_feature(tx, ENCRYPTION)
    }

    /// The sender may have changed the key that wraps those of a dataset.
    pub(crate) fn rewrap_received(
        self: &Arc<Self>,
        tx: &Tx,
        dir: &Dir,
        key: &ReceivedKey,
    ) -> Result<()> {
        let Some(have) = dir.key_object()? else {
            bail_about!(Invalid, dir.full_name(), "it is not encrypted");
        };
        if have.wrapped == key.wrapped {
            return Ok(());
        }
        if have.root != dir.object() {
            let root = self.dir(have.root)?.key_object()?;
            let loaded = self.keys.wrapping.acquire().get(&have.root).cloned();
            // Salts differ from key to key, but for those that are no passphrases.
            let same = root.is_some_and(|r| r.params == key.params)
                && loaded.is_none_or(|(wrapping, _)| key.wrapped.unwrap(&wrapping).is_ok());
            if !same {
                // No longer under the key of a directory above.
                self.put_key(tx, have.object, dir.object(), &key.wrapped, &key.params)?;
                return self.become_root(tx, dir, have.object);
            }
        }
        self.put_key(tx, have.object, have.root, &key.wrapped, &key.params)?;
        self.keys.wrapping.acquire().remove(&dir.object());
        Ok(())
    }

    /// A directory has a wrapping key of its own from now on, which is to be asked for.
    fn become_root(&self, tx: &Tx, dir: &Dir, key_object: u64) -> Result<()> {
        let zap = self.hold(key_object)?;
        Zap::new(&zap).update_u64(tx, keys::ROOT_DIR, dir.object())?;
        let props = self.hold(dir.phys().props_zapobj)?;
        Zap::new(&props).update(tx, "keylocation", &Value::string("prompt"))?;
        dir.cache_props(None);
        if let Some(open) = self.keys.open.acquire().get_mut(&key_object) {
            open.0 = dir.object();
        }
        Ok(())
    }

    /// A directory goes, and with it its share of a key.
    pub(crate) fn drop_key(&self, tx: &Tx, dir: &Dir) -> Result<()> {
        let Some(object) = dir.key_object_number()? else {
            return Ok(());
        };
        self.keys.wrapping.acquire().remove(&dir.object());
        let dn = self.hold(object)?;
        let zap = Zap::new(&dn);
        let count = match zap.get(keys::REFCOUNT) {
            // Who else uses it is not known any more: it stays.
            Err(e) if e.is_wrong_content() => return Ok(()),
            count => count?.unwrap_or(1),
        };
        match count {
            0 | 1 => self.free_object(tx, object),
            n => zap.update_u64(tx, keys::REFCOUNT, n - 1),
        }
    }

    /// A clone that was promoted becomes the encryption root in place of the file system it came
    /// from, if that was one, for all that use its key.
    pub(crate) fn move_encryption_root(
        self: &Arc<Self>,
        tx: &Tx,
        from: &Arc<Dir>,
        to: &Arc<Dir>,
    ) -> Result<()> {
        let Some(key) = from.key_object()?.filter(|k| k.root == from.object()) else {
            return Ok(());
        };
        // Clones, and what is below them, may lie anywhere.
        let mut below = vec![self.root()?];
        let mut objects = std::collections::BTreeSet::from([key.object]);
        while let Some(dir) = below.pop() {
            if let Some(k) = dir.key_object()?.filter(|k| k.root == from.object()) {
                objects.insert(k.object);
            }
            below.extend(dir.children()?);
        }
        for o in &objects {
            let dn = self.hold(*o)?;
            Zap::new(&dn).update_u64(tx, keys::ROOT_DIR, to.object())?;
        }
        let (old, new) = (from.phys().props_zapobj, to.phys().props_zapobj);
        let old = self.hold(old)?;
        if let Some(location) = Zap::new(&old).get_value("keylocation")? {
            Zap::new(&self.hold(new)?).update(tx, "keylocation", &location)?;
            Zap::new(&old).remove(tx, "keylocation")?;
        }
        from.cache_props(None);
        to.cache_props(None);
        let mut loaded = self.keys.wrapping.acquire();
        if let Some(k) = loaded.remove(&from.object()) {
            loaded.insert(to.object(), k);
        }
        for (_, (root, _)) in self.keys.open.acquire().iter_mut() {
            if *root == from.object() {
                *root = to.object();
            }
        }
        Ok(())
    }

    /// The keys of a dataset, unwrapped. `None`: they are not loaded. What is in use stays usable when a raw stream brings the same
    /// keys under another wrapping key, which nobody has loaded here.
    fn dataset_key(&self, k: &KeyObject) -> Result<Option<Arc<DatasetKey>>> {
        let loaded = self.keys.wrapping.acquire().get(&k.root).cloned();
        let mut open = self.keys.open.acquire();
        if let Some(key) = open.get(&k.object).and_then(|(_, w)| w.upgrade()) {
            return Ok(Some(key));
        }
        let Some((w, _)) = loaded else {
            return Ok(None);
        };
        let key = Arc::new(k.wrapped.unwrap(&w).map_err(|e| {
            let o = k.object;
            e.context(format!("key object {o} does not fit its encryption root"))
        })?);
        open.retain(|_, (_, w)| w.strong_count() > 0);
        open.insert(k.object, (k.root, Arc::downgrade(&key)));
        Ok(Some(key))
    }
}

impl Dir {
    /// The MOS object where its keys are, which clones share with their origin; `None` if it is not encrypted.
    pub fn key_object_number(&self) -> Result<Option<u64>> {
        Ok(self.extra(keys::DIR_ENTRY)?.filter(|o| *o != 0))
    }

    /// Where its keys are; `None` if it is not encrypted.
    pub fn key_object(&self) -> Result<Option<KeyObject>> {
        self.key_object_number()?
            .map(|o| read_key(&self.core, o))
            .transpose()
    }

    /// Whether its data are encrypted.
    pub fn is_encrypted(&self) -> Result<bool> {
        Ok(self.key_object_number()?.is_some())
    }

    /// Whether its data are encrypted in the first format, and so are not to be written.
    pub fn has_old_keys(&self) -> Result<bool> {
        let old = self.key_object()?.is_some_and(|k| k.is_old());
        Ok(old && !self.core.keys.makes_old.load(Ordering::Relaxed))
    }

    /// The directory whose key it uses; `None` if it is not encrypted.
    pub fn encryption_root(&self) -> Result<Option<Arc<Dir>>> {
        match self.key_object()? {
            Some(k) => self.core.dir(k.root).map(Some),
            None => Ok(None),
        }
    }

    /// Whether the key it uses is loaded; `None` if it is not encrypted.
    pub fn key_loaded(&self) -> Result<Option<bool>> {
        Ok(self
            .key_object()?
            .map(|k| self.core.keys.wrapping.acquire().contains_key(&k.root)))
    }
}

impl Dataset {
    /// How its blocks are to be read and written now.
    pub fn crypt(&self) -> Result<Crypt> {
        match self.dir().key_object()? {
            None => Ok(Crypt::Plain),
            Some(k) => Ok(match self.core.dataset_key(&k)? {
                Some(key) => Crypt::Key(key),
                None => Crypt::Locked,
            }),
        }
    }
}

impl Dsl {
    /// Whether keys of the first format have been seen since the pool was opened.
    pub fn has_seen_old_keys(&self) -> bool {
        self.core.keys.seen_old.load(Ordering::Relaxed)
    }

    /// Makes pools like those of the first format, for tests: while it is `on`, new keys are of that format, and what they
    /// protect can be written.
    pub fn make_old_keys(&self, on: bool) {
        self.core.keys.makes_old.store(on, Ordering::Relaxed);
    }

    /// Loads the key of an encryption root, or only tries it. `Kind::Access`: it is not the right one;
    /// `Kind::Exists`: one is loaded already; `Kind::Invalid`: this is no encryption root.
    pub fn load_key(&self, dir: &Arc<Dir>, key: WrappingKey, check_only: bool) -> Result<()> {
        let name = dir.full_name();
        let Some(k) = dir.key_object()? else {
            bail!(Invalid, "'{name}' is not encrypted");
        };
        if k.root != dir.object() {
            bail!(Invalid, "'{name}' is not an encryption root");
        }
        let mut loaded = self.core.keys.wrapping.acquire();
        if loaded.contains_key(&k.root) && !check_only {
            bail!(Exists, "Key already loaded for '{name}'");
        }
        match k.wrapped.unwrap(&key) {
            Ok(_) => {}
            Err(e) if e.kind == Kind::Checksum => {
                bail!(Access, "Incorrect key provided for '{name}'")
            }
            Err(e) => return Err(e),
        }
        if !check_only {
            loaded.insert(k.root, (Arc::new(key), k.params));
            tracing::debug!(dataset = name, "key is loaded");
        }
        Ok(())
    }

    /// Forgets the key of an encryption root. `Kind::Busy`: datasets use it; `Kind::Access`: none is
    /// loaded.
    pub fn unload_key(&self, dir: &Arc<Dir>) -> Result<()> {
        let name = dir.full_name();
        if !dir.is_encrypted()? {
            bail!(Invalid, "'{name}' is not encrypted");
        }
        let mut loaded = self.core.keys.wrapping.acquire();
        if !loaded.contains_key(&dir.object()) {
            bail!(Access, "Key already unloaded for '{name}'");
        }
        let mut open = self.core.keys.open.acquire();
        open.retain(|_, (_, w)| w.strong_count() > 0);
        if open.values().any(|(root, _)| *root == dir.object()) {
            bail!(Busy, "'{name}' is busy");
        }
        loaded.remove(&dir.object());
        drop((open, loaded));
        tracing::debug!(dataset = name, "key is unloaded");
        // Decrypted blocks are not to outlive the key.
        self.core.dmu().zio.cache.clear();
        Ok(())
    }

    /// Wraps the keys of `root` and of all below that use its key under a new one. `dir` becomes an
    /// encryption root if it is none. The key in use must be loaded.
    pub fn change_key(
        &self,
        tx: &Tx,
        dir: &Arc<Dir>,
        key: WrappingKey,
        params: KeyParams,
        location: Option<&str>,
    ) -> Result<()> {
        self.core.need_syncing(tx)?;
        let key = Arc::new(key);
        self.rewrap(tx, dir, dir.object(), &key, &params)?;
        if let Some(l) = location {
            let props = self.core.hold(dir.phys().props_zapobj)?;
            Zap::new(&props).update(tx, "keylocation", &Value::string(l))?;
            dir.cache_props(None);
        }
        self.core
            .keys
            .wrapping
            .acquire()
            .insert(dir.object(), (key, params));
        Ok(())
    }

    /// Makes an encryption root use the key of its parent's root. Both must be loaded.
    pub fn inherit_key(&self, tx: &Tx, dir: &Arc<Dir>) -> Result<()> {
        self.core.need_syncing(tx)?;
        let name = dir.full_name();
        let above = match dir.parent() {
            Some(p) => p.key_object()?,
            None => None,
        };
        let Some(above) = above else {
            bail!(Invalid, "'{name}': the parent is not encrypted");
        };
        let Some((key, params)) = self.core.keys.wrapping.acquire().get(&above.root).cloned()
        else {
            bail!(Access, "'{name}': the parent's key is not loaded");
        };
        self.rewrap(tx, dir, above.root, &key, &params)?;
        let props = self.core.hold(dir.phys().props_zapobj)?;
        Zap::new(&props).remove_if(tx, "keylocation")?;
        dir.cache_props(None);
        self.core.keys.wrapping.acquire().remove(&dir.object());
        Ok(())
    }

    /// Makes a directory that was received raw use the encryption root of its parent: it did so on the
    /// sending side. `Kind::Invalid`: the parent's root wraps with another key, or is none.
    pub fn rejoin_root(&self, tx: &Tx, dir: &Arc<Dir>) -> Result<()> {
        self.core.need_syncing(tx)?;
        let name = dir.full_name();
        let (own, above) = (
            dir.key_object()?,
            match dir.parent() {
                Some(p) => p.key_object()?,
                None => None,
            },
        );
        let (Some(own), Some(above)) = (own, above) else {
            bail!(Invalid, "'{name}': it or its parent is not encrypted");
        };
        if own.root != dir.object() || own.params != above.params {
            bail!(Invalid, "'{name}': its parent has another key");
        }
        let zap = self.core.hold(own.object)?;
        Zap::new(&zap).update_u64(tx, keys::ROOT_DIR, above.root)?;
        let props = self.core.hold(dir.phys().props_zapobj)?;
        Zap::new(&props).remove_if(tx, "keylocation")?;
        dir.cache_props(None);
        self.core.keys.wrapping.acquire().remove(&dir.object());
        Ok(())
    }

    /// Makes a directory that was received raw an encryption root, if it is none: it is one on the sending side.
    pub fn split_root(&self, tx: &Tx, dir: &Arc<Dir>) -> Result<()> {
        self.core.need_syncing(tx)?;
        match dir.key_object()? {
            // A clone goes where its origin goes.
            Some(own) if own.root != dir.object() && dir.origin()?.is_none() => {
                self.core.become_root(tx, dir, own.object)
            }
            _ => Ok(()),
        }
    }

    /// Puts the keys of `dir`, and of those below (and clones) that use the same root and would keep
    /// using it through `dir`, under `key` of `root`.
    fn rewrap(
        &self,
        tx: &Tx,
        dir: &Arc<Dir>,
        root: u64,
        key: &WrappingKey,
        params: &KeyParams,
    ) -> Result<()> {
        let name = dir.full_name();
        let Some(top) = dir.key_object()? else {
            bail!(Invalid, "'{name}' is not encrypted");
        };
        let rng = self.core.dmu().env.rng.clone();
        let random = |b: &mut [u8]| rng.fill(b);
        let mut found: HashMap<u64, KeyObject> = HashMap::new();
        // Of a root everything that uses its key, wherever it is: clones and promoted clones may lie
        // elsewhere.
        let is_root = top.root == dir.object();
        let from = match is_root {
            true => self.root()?,
            false => dir.clone(),
        };
        self.walk(&from, &mut |d| {
            if let Some(k) = d.key_object()? {
                // A clone shares its origin's key, and goes where that goes.
                let own = is_root || d.object() == dir.object() || d.origin()?.is_none();
                if k.root == top.root && own {
                    found.entry(k.object).or_insert(k);
                }
            }
            Ok(())
        })?;
        let mut new = Vec::new();
        for k in found.into_values() {
            let Some(open) = self.core.dataset_key(&k)? else {
                bail!(Access, "'{name}': its key is not loaded");
            };
            new.push((k.object, open.wrap(key, &random)?));
        }
        let core = &self.core;
        for (object, wrapped) in new {
            core.must(core.put_key(tx, object, root, &wrapped, params))?;
            if let Some(o) = core.keys.open.acquire().get_mut(&object) {
                o.0 = root;
            }
        }
        Ok(())
    }
}
