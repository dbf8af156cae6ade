//! The operations of [`Zap`](crate::Zap): look up, add, update, remove, iterate; micro and fat ZAPs alike.

use crate::mem::MemStore;
use crate::micro::{self, Micro, Room, MAX_MICRO_NAME};
use crate::table::CopyChecked;
use crate::value::{hex_key, Key};
use crate::{norm, normalize, Store, Value, Zap};
use base::sync::{ReadGuard, RwLockExt, WriteGuard};
use base::{bail, Error, Kind, Result};
use disk::bytes::put_u64;

/// How names are compared in a ZAP with normflags (in one without, every lookup is exact).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// Byte for byte.
    Exact,
    /// By normalized form with all normflags (case ignored if they hold TOUPPER).
    Normalized,
    /// By normalized form, but case matters.
    NormalizedCase,
}

impl Match {
    /// The flags names are normalized with before they are compared; `None`: not at all.
    pub(crate) fn form(self, normflags: u64) -> Option<u64> {
        match self {
            Match::Exact => None,
            Match::Normalized => Some(normflags),
            Match::NormalizedCase => Some(normflags & !norm::TOUPPER),
        }
    }
}

/// What a lookup found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The integers of the entry.
    pub value: Value,
    /// The name as stored (it may differ from the one looked up by normalized form).
    pub name: Vec<u8>,
    /// Collision differentiator.
    pub cd: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Fails if the key exists.
    Add,
    /// Replaces the value if the key exists.
    Update,
}

/// A key ready for a leaf.
pub(crate) struct Prepared {
    /// Hash of the key.
    pub hash: u64,
    /// Bytes of the key as the leaf stores them.
    pub stored: Vec<u8>,
    /// Number of integers of the key.
    pub ints: usize,
}

impl<S: Store> Clone for Zap<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: Store> Copy for Zap<'_, S> {}

impl<'a, S: Store> Zap<'a, S> {
    /// The ZAP in `store`; nothing is read yet.
    pub fn new(store: &'a S) -> Zap<'a, S> {
        Zap {
            store,
            max_name: crate::MAX_NAME,
            max_micro: crate::MAX_MICRO,
        }
    }

    /// Names up to 1023 bytes (directories with feature `longname` active).
    pub fn longname(mut self, on: bool) -> Self {
        self.max_name = match on {
            true => crate::MAX_LONG_NAME,
            false => crate::MAX_NAME,
        };
        self
    }

    /// Microzap up to 1 MiB (feature `large_microzap` active).
    pub fn large_micro(mut self, on: bool) -> Self {
        self.max_micro = match on {
            true => crate::MAX_LARGE_MICRO,
            false => crate::MAX_MICRO,
        };
        self
    }

    /// Errors: suspended, for a thread that does not wait for a lock that may stay taken.
    pub(crate) fn read_lock(&self) -> Result<ReadGuard<'a, ()>> {
        base::sync::shared_unless_stuck(self.store.lock()).ok_or_else(|| {
            Error::new(
                Kind::Suspended,
                "it is being changed by a txg that waits for its devices",
            )
        })
    }

    pub(crate) fn write_lock(&self) -> WriteGuard<'a, ()> {
        self.store.lock().acquire_write()
    }

    fn salt(&self, tx: &S::Tx) -> u64 {
        // Spread whatever identifies the object over the word; must not be zero, so odd.
        let z = self.store.seed(tx).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) | 1
    }

    /// Makes the object an empty microzap. `normflags`: [`norm`].
    pub fn create(&self, tx: &S::Tx, normflags: u64) -> Result<()> {
        let _lock = self.write_lock();
        let salt = self.salt(tx);
        self.store.index().forget();
        self.store
            .modify(tx, 0, |b| micro::init(b, salt, normflags))
    }

    /// Makes the object an empty fat ZAP with its present block size (a power of two).
    /// `flags`: [`crate::flags`].
    pub fn create_fat(&self, tx: &S::Tx, normflags: u64, flags: u64) -> Result<()> {
        let _lock = self.write_lock();
        crate::leaf::Geo::of(self.store.block_size())?;
        let salt = self.salt(tx);
        self.fat_init(tx, salt, normflags, flags)
    }

    /// Finds an entry.
    pub fn find<'k>(&self, key: impl Into<Key<'k>>, how: Match) -> Result<Option<Found>> {
        let _lock = self.read_lock()?;
        self.find_locked(key.into(), how)
    }

    fn find_locked(&self, key: Key<'_>, how: Match) -> Result<Option<Found>> {
        let b = self.store.block(0)?;
        if !Self::is_micro(&b)? {
            drop(b);
            return self.fat_find(key, how);
        }
        let Key::Name(name) = key else {
            bail!(Invalid, "wrong kind of key for this ZAP");
        };
        let m = Micro::open(&b)?;
        let e = match how.form(m.normflags) {
            Some(form) if m.normflags != 0 => {
                let want = normalize(name, form);
                m.find(self.store.index(), name, |n| normalize(n, form) == want)
            }
            _ => self.exact(m, name),
        };
        Ok(e.map(|e| Found {
            value: Value::u64(e.value),
            name: e.name.to_vec(),
            cd: e.cd,
        }))
    }

    /// The entry of exactly this name.
    fn exact<'b>(&self, m: Micro<'b>, name: &[u8]) -> Option<micro::MicroEntry<'b>> {
        if name.is_empty() || name.len() > MAX_MICRO_NAME {
            return None;
        }
        m.find(self.store.index(), name, |n| n == name)
    }

    /// The value of an exact key.
    pub fn get_value<'k>(&self, key: impl Into<Key<'k>>) -> Result<Option<Value>> {
        Ok(self.find(key, Match::Exact)?.map(|f| f.value))
    }

    /// The 64-bit integer of an exact key; `Kind::Invalid` if the value is something else.
    pub fn get<'k>(&self, key: impl Into<Key<'k>>) -> Result<Option<u64>> {
        self.get_value(key)?.map(|v| v.to_u64()).transpose()
    }

    /// Like [`get`](Self::get), `Kind::NotFound` if there is none.
    pub fn lookup<'k>(&self, key: impl Into<Key<'k>>) -> Result<u64> {
        self.get(key)?.ok_or_else(|| Kind::NotFound.into())
    }

    /// Whether there is an entry of exactly this key.
    pub fn contains<'k>(&self, key: impl Into<Key<'k>>) -> Result<bool> {
        Ok(self.find(key, Match::Exact)?.is_some())
    }

    /// Adds an entry; `Kind::Exists` if the key is there.
    pub fn add<'k>(&self, tx: &S::Tx, key: impl Into<Key<'k>>, v: &Value) -> Result<()> {
        let _lock = self.write_lock();
        self.put(tx, key.into(), v, Mode::Add)
    }

    /// Adds an entry or replaces its value.
    pub fn update<'k>(&self, tx: &S::Tx, key: impl Into<Key<'k>>, v: &Value) -> Result<()> {
        let _lock = self.write_lock();
        self.put(tx, key.into(), v, Mode::Update)
    }

    /// [`add`](Self::add) of one integer of 8 bytes.
    pub fn add_u64<'k>(&self, tx: &S::Tx, key: impl Into<Key<'k>>, v: u64) -> Result<()> {
        self.add(tx, key, &Value::u64(v))
    }

    /// [`update`](Self::update) with one integer of 8 bytes.
    pub fn update_u64<'k>(&self, tx: &S::Tx, key: impl Into<Key<'k>>, v: u64) -> Result<()> {
        self.update(tx, key, &Value::u64(v))
    }

    fn put(&self, tx: &S::Tx, key: Key<'_>, v: &Value, mode: Mode) -> Result<()> {
        base::mutation::panic_point("adding to a directory or list");
        let b = self.store.block(0)?;
        if !Self::is_micro(&b)? {
            drop(b);
            return self.fat_put(tx, key, v, mode, None);
        }
        let Key::Name(name) = key else {
            bail!(Invalid, "wrong kind of key for this ZAP");
        };
        if name.is_empty() || name.contains(&0) {
            bail!(Invalid, "empty name, or a NUL in it");
        }
        if name.len() >= self.max_name {
            bail!(NameTooLong, "name of {} bytes in a ZAP", name.len());
        }
        let m = Micro::open(&b)?;
        let old = self.exact(m, name).map(|e| e.at);
        if old.is_some() && mode == Mode::Add {
            bail!(Exists, "ZAP entry exists");
        }
        if let (Some(value), true) = (v.as_u64(), name.len() <= MAX_MICRO_NAME) {
            if let Some(at) = old {
                drop(b);
                return self.store.modify(tx, 0, |b| put_u64(b, at, value));
            }
            let h = m.hash(name);
            let put = |at, cd| {
                self.store
                    .modify(tx, 0, |b| micro::put(b, at, name, value, cd))?;
                self.store.index().follow(|i| i.put(at, h, cd));
                Ok(())
            };
            match m.room(self.store.index(), name) {
                Room::At { at, cd } => {
                    drop(b);
                    return put(at, cd);
                }
                Room::Full { cd } if b.len() + 512 <= self.max_micro => {
                    let size = b.len();
                    drop(b);
                    self.store.set_block_size(tx, size + 512)?;
                    self.store.index().follow(|i| i.grow(size + 512));
                    // The first slot past the old entries.
                    return put(size / micro::ENTRY * micro::ENTRY, cd);
                }
                Room::Full { .. } | Room::TooManyCollisions => {}
            }
        }
        drop(b);
        self.upgrade_locked(tx)?;
        self.fat_put(tx, key, v, mode, None)
    }

    /// Converts a microzap to a fat ZAP (nothing happens if it is one).
    pub fn upgrade(&self, tx: &S::Tx) -> Result<()> {
        let _lock = self.write_lock();
        match Self::is_micro(&self.store.block(0)?)? {
            true => self.upgrade_locked(tx),
            false => Ok(()),
        }
    }

    /// The fat ZAP is made in memory first: a name that finds no place there must not cost the others.
    fn upgrade_locked(&self, tx: &S::Tx) -> Result<()> {
        let b = self.store.block(0)?;
        let m = Micro::open(&b)?;
        let size = 1 << crate::FAT_SHIFT;
        let made = MemStore::new(size);
        let fat = Zap {
            store: &made,
            max_name: self.max_name,
            max_micro: self.max_micro,
        };
        fat.fat_init(&(), m.salt, m.normflags, 0)?;
        for e in m.entries() {
            let v = Value::u64(e.value);
            let put = fat.fat_put(&(), Key::Name(e.name), &v, Mode::Add, Some(e.cd));
            put.map_err(|e| match e.kind {
                Kind::Exists => Error::damaged("microzap with one name twice"),
                _ => e,
            })?;
        }
        self.store.index().forget();
        if b.len() != size {
            self.store.set_block_size(tx, size)?;
        }
        // Block 0 is in memory and the others are new, so none of them is read from a device.
        for (blk, content) in made.blocks() {
            self.store
                .modify(tx, blk, |b| b.copy_from_slice_checked(&content))??;
        }
        Ok(())
    }

    /// Removes an exact key; `Kind::NotFound` if it is not there.
    pub fn remove<'k>(&self, tx: &S::Tx, key: impl Into<Key<'k>>) -> Result<()> {
        let _lock = self.write_lock();
        match self.remove_locked(tx, key.into())? {
            true => Ok(()),
            false => Err(Kind::NotFound.into()),
        }
    }

    /// Removes an exact key if it is there; says whether it was.
    pub fn remove_if<'k>(&self, tx: &S::Tx, key: impl Into<Key<'k>>) -> Result<bool> {
        let _lock = self.write_lock();
        self.remove_locked(tx, key.into())
    }

    /// Removes the entry a [`find`](Self::find) with the same arguments finds.
    pub fn remove_match(&self, tx: &S::Tx, name: &[u8], how: Match) -> Result<()> {
        let _lock = self.write_lock();
        let found = self.find_locked(Key::Name(name), how)?;
        let found = found.ok_or_else(|| Error::from(Kind::NotFound))?;
        self.remove_locked(tx, Key::Name(&found.name)).map(|_| ())
    }

    fn remove_locked(&self, tx: &S::Tx, key: Key<'_>) -> Result<bool> {
        base::mutation::panic_point("removing from a directory or list");
        let b = self.store.block(0)?;
        if !Self::is_micro(&b)? {
            drop(b);
            return self.fat_remove(tx, key);
        }
        let Key::Name(name) = key else {
            bail!(Invalid, "wrong kind of key for this ZAP");
        };
        let m = Micro::open(&b)?;
        let Some((at, cd)) = self.exact(m, name).map(|e| (e.at, e.cd)) else {
            return Ok(false);
        };
        let h = m.hash(name);
        drop(b);
        self.store
            .modify(tx, 0, |b| b[at..at + micro::ENTRY].fill(0))?;
        self.store.index().follow(|i| i.remove(at, h, cd));
        Ok(true)
    }

    /// Adds `delta` to an integer that starts at 0 and is removed when it is 0 again; the new value.
    pub fn increment<'k>(&self, tx: &S::Tx, key: impl Into<Key<'k>>, delta: i64) -> Result<u64> {
        let key = key.into();
        let _lock = self.write_lock();
        let old = match self.find_locked(key, Match::Exact)? {
            Some(f) => f.value.to_u64()?,
            None => 0,
        };
        let new = old.wrapping_add_signed(delta);
        match (new, old) {
            (0, 0) => {}
            (0, _) => {
                self.remove_locked(tx, key)?;
            }
            _ => self.put(tx, key, &Value::u64(new), Mode::Update)?,
        }
        Ok(new)
    }

    /// Number of entries.
    pub fn count(&self) -> Result<u64> {
        let _lock = self.read_lock()?;
        let b = self.store.block(0)?;
        match Self::is_micro(&b)? {
            true => Ok(Micro::open(&b)?.entries().count() as u64),
            false => Ok(crate::table::Hdr::parse(&b)?.num_entries),
        }
    }

    /// The ZAP's normflags.
    pub fn normflags(&self) -> Result<u64> {
        let _lock = self.read_lock()?;
        let b = self.store.block(0)?;
        match Self::is_micro(&b)? {
            true => Ok(Micro::open(&b)?.normflags),
            false => Ok(crate::table::Hdr::parse(&b)?.normflags),
        }
    }

    /// Adds the entry hex(v) → v.
    pub fn add_int(&self, tx: &S::Tx, v: u64) -> Result<()> {
        self.add_u64(tx, &hex_key(v), v)
    }

    /// Removes the entry hex(v).
    pub fn remove_int(&self, tx: &S::Tx, v: u64) -> Result<()> {
        self.remove(tx, &hex_key(v))
    }

    /// Whether there is an entry hex(v).
    pub fn contains_int(&self, v: u64) -> Result<bool> {
        self.contains(&hex_key(v))
    }

    /// Adds the entry hex(k) → v.
    pub fn add_int_key(&self, tx: &S::Tx, k: u64, v: u64) -> Result<()> {
        self.add_u64(tx, &hex_key(k), v)
    }

    /// Adds the entry hex(k) → v, or replaces its value.
    pub fn update_int_key(&self, tx: &S::Tx, k: u64, v: u64) -> Result<()> {
        self.update_u64(tx, &hex_key(k), v)
    }

    /// The value of the entry hex(k).
    pub fn get_int_key(&self, k: u64) -> Result<Option<u64>> {
        self.get(&hex_key(k))
    }

    /// Name of an entry whose value is `v` (masked with `mask`): a scan.
    pub fn name_of(&self, v: u64, mask: u64) -> Result<Option<Vec<u8>>> {
        for e in self.iter() {
            let e = e?;
            if e.value.as_u64().is_some_and(|x| x & mask == v) {
                return Ok(Some(e.name));
            }
        }
        Ok(None)
    }
}

/// Makes a new object with an empty microzap.
pub fn create_object(
    os: &dmu::Objset,
    tx: &dmu::Tx,
    obj_type: disk::ObjType,
    normflags: u64,
) -> Result<std::sync::Arc<dmu::Dnode>> {
    let new = dmu::NewObject {
        obj_type,
        ..Default::default()
    };
    create_with(os, tx, &new, normflags)
}

/// Makes a new object as described (block size 0 = 512) with an empty microzap.
pub fn create_with(
    os: &dmu::Objset,
    tx: &dmu::Tx,
    new: &dmu::NewObject,
    normflags: u64,
) -> Result<std::sync::Arc<dmu::Dnode>> {
    let dn = os.alloc(tx, new)?;
    Zap::new(&dn).create(tx, normflags)?;
    Ok(dn)
}
