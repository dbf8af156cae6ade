//! The znode: one file, directory or other object in memory, with its attributes and locks.

use crate::attr::{flag, mode, Attr, Time};
use crate::lock::RangeLock;
use crate::sa::SaTables;
use base::sync::{MutexExt, RwLockExt};
use base::{bail, Error, Kind, Result};
use disk::acl::Ace;
use disk::bytes::u64_at;
use disk::sa::{Attrs, Packed, ZplAttrs};
use disk::types::ObjType;
use disk::znode::{ZnodeAcl, ZnodePhys};
use dmu::{Dnode, Tx};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};

/// Length of a legacy znode without what follows it (data format §18).
pub const LEGACY_LEN: usize = 264;
/// Where the ACL is in a legacy znode.
pub const LEGACY_ACL: usize = 176;
/// Most bytes of an NFSv4 list in an object of its own.
const MAX_LIST: u32 = 64 << 10;
/// User and group shown for ids of foreign domains.
pub const NOBODY: u32 = 65534;

/// The twelve attributes every object has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fixed {
    /// As `st_mode`.
    pub mode: u64,
    /// Bytes of the content; of a directory its entries and 2.
    pub size: u64,
    /// Txg of creation.
    pub gen: u64,
    /// Owner, a FUID.
    pub uid: u64,
    /// Group, a FUID.
    pub gid: u64,
    /// Object of the parent directory.
    pub parent: u64,
    /// [`disk::znode::flag`]
    pub flags: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of an attribute.
    pub ctime: Time,
    /// Creation.
    pub crtime: Time,
    /// Number of names.
    pub links: u64,
}

impl Fixed {
    /// `st_mode`.
    pub fn mode32(&self) -> u32 {
        self.mode as u32
    }
    /// The id Linux knows; ids of foreign domains (high half not 0) belong to nobody.
    pub fn uid32(&self) -> u32 {
        if self.uid >> 32 == 0 {
            self.uid as u32
        } else {
            NOBODY
        }
    }
    /// See [`uid32`](Fixed::uid32).
    pub fn gid32(&self) -> u32 {
        if self.gid >> 32 == 0 {
            self.gid as u32
        } else {
            NOBODY
        }
    }
    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        mode::is_dir(self.mode as u32)
    }

    /// Content changed: mtime, ctime and, where the file system has such flags, ARCHIVE and
    /// AV_MODIFIED (data format §24).
    pub fn touch_content(&mut self, now: Time, fuids: bool) {
        self.mtime = now;
        self.ctime = now;
        if fuids {
            self.flags |= flag::ARCHIVE | flag::AV_MODIFIED;
        }
    }

    /// Attributes changed: ctime and ARCHIVE.
    pub fn touch_state(&mut self, now: Time, fuids: bool) {
        self.ctime = now;
        if fuids {
            self.flags |= flag::ARCHIVE;
        }
    }

    /// Puts the twelve into a set, in the order every set begins with (§5, pitfall 4).
    pub(crate) fn put(&self, n: &ZplAttrs, list: &mut Attrs) {
        let t = |t: Time| [t.sec as u64, u64::from(t.nsec)];
        list.set_u64(n.mode, self.mode);
        list.set_u64(n.size, self.size);
        list.set_u64(n.gen, self.gen);
        list.set_u64(n.uid, self.uid);
        list.set_u64(n.gid, self.gid);
        list.set_u64(n.parent, self.parent);
        list.set_u64(n.flags, self.flags);
        list.set_u64_pair(n.atime, t(self.atime));
        list.set_u64_pair(n.mtime, t(self.mtime));
        list.set_u64_pair(n.ctime, t(self.ctime));
        list.set_u64_pair(n.crtime, t(self.crtime));
        list.set_u64(n.links, self.links);
    }
}

/// Offsets in a bonus of mode, size, gen, uid, gid, parent, flags, atime, mtime, ctime, crtime, links.
type Offsets = [u16; 12];

const LEGACY_OFFSETS: Offsets = [72, 80, 64, 128, 136, 88, 120, 0, 16, 32, 48, 96];

fn decode_fixed(b: &[u8], at: &Offsets) -> Result<Fixed> {
    let w = |i: usize| u64_at(b, at[i] as usize);
    let t =
        |i: usize| -> Result<Time> { Ok(Time::from_words(w(i)?, u64_at(b, at[i] as usize + 8)?)) };
    Ok(Fixed {
        mode: w(0)?,
        size: w(1)?,
        gen: w(2)?,
        uid: w(3)?,
        gid: w(4)?,
        parent: w(5)?,
        flags: w(6)?,
        atime: t(7)?,
        mtime: t(8)?,
        ctime: t(9)?,
        crtime: t(10)?,
        links: w(11)?,
    })
}

/// Writes the attributes over a bonus whose offsets were checked when it was decoded.
fn encode_fixed(f: &Fixed, b: &mut [u8], at: &Offsets) {
    let words = [
        (0, f.mode),
        (1, f.size),
        (2, f.gen),
        (3, f.uid),
        (4, f.gid),
        (5, f.parent),
        (6, f.flags),
        (11, f.links),
    ];
    for (i, v) in words {
        let o = at[i] as usize;
        b[o..o + 8].copy_from_slice(&v.to_le_bytes());
    }
    for (i, t) in [(7, f.atime), (8, f.mtime), (9, f.ctime), (10, f.crtime)] {
        let o = at[i] as usize;
        b[o..o + 16].copy_from_slice(&t.to_bytes());
    }
}

/// How the attributes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As system attributes.
    Sa,
    /// As a legacy znode (ZPL versions 1 to 4).
    Legacy,
}

/// Attributes beyond the twelve that are looked at often.
#[derive(Clone, Debug, Default)]
pub struct Extra {
    /// Project id; 0 for none.
    pub projid: u64,
    /// Device number, as stored.
    pub rdev: u64,
    /// Object of the xattr directory, 0 = none.
    pub xattr: u64,
    /// Packed nvlist of extended attributes.
    pub dxattr: Option<Arc<Vec<u8>>>,
}

pub(crate) struct State {
    /// The attributes every object has.
    pub f: Fixed,
    /// How they are stored.
    pub form: Form,
    at: Offsets,
    /// The bonus as stored, little-endian.
    pub raw: Vec<u8>,
    has_spill: bool,
    extra: Extra,
}

/// Objects whose last user has gone and whose last link was gone before.
#[derive(Default)]
pub(crate) struct Reaper {
    list: Mutex<Vec<u64>>,
    n: AtomicUsize,
    /// Objects without links that somebody uses by their numbers ([`Znode::keep_by_number`]).
    kept: Mutex<HashSet<u64>>,
}

impl Reaper {
    /// Whether the object is used by its number.
    pub fn is_kept(&self, object: u64) -> bool {
        self.kept.acquire().contains(&object)
    }
    /// Nobody uses the object by its number any more; whether somebody did.
    pub fn let_go(&self, object: u64) -> bool {
        let mut kept = self.kept.acquire();
        let was = kept.remove(&object);
        // There may have been millions.
        if kept.capacity() > 1024 && kept.len() < kept.capacity() / 8 {
            let n = kept.len() * 2;
            kept.shrink_to(n);
        }
        was
    }
    /// Takes the numbers of all objects that are used by their number.
    pub fn take_kept(&self) -> HashSet<u64> {
        std::mem::take(&mut *self.kept.acquire())
    }
    /// Queues an object to be freed.
    pub fn push(&self, object: u64) {
        self.list.acquire().push(object);
        self.n.fetch_add(1, Ordering::Release);
    }
    /// Whether no object waits to be freed.
    pub fn is_empty(&self) -> bool {
        self.n.load(Ordering::Acquire) == 0
    }
    /// Takes an object that waits to be freed.
    pub fn pop(&self) -> Option<u64> {
        if self.is_empty() {
            return None;
        }
        let o = self.list.acquire().pop()?;
        self.n.fetch_sub(1, Ordering::Release);
        Some(o)
    }
}

/// One object in use. Kept alive by whoever refers to it (the door holds one for every node the
/// kernel knows and every open file); when the last reference to an object without links goes, the
/// object is queued to be freed.
pub struct Znode {
    /// Object number.
    pub object: u64,
    /// Transaction group of creation.
    pub gen: u64,
    /// The object.
    pub dnode: Arc<Dnode>,
    state: RwLock<State>,
    /// Data of the file.
    pub(crate) range: RangeLock,
    /// Entries of the directory: shared for looking, exclusive for changing.
    pub(crate) ns: RwLock<()>,
    /// Extended attributes (and ACLs with the mode).
    pub(crate) xlock: RwLock<()>,
    /// On the delete queue, to be freed when this goes.
    pub(crate) doomed: AtomicBool,
    /// Was listed with the attributes of what is in it.
    pub(crate) listed: AtomicBool,
    cache: Arc<Cache>,
}

impl Drop for Znode {
    fn drop(&mut self) {
        self.cache.forget(self.object);
        if *self.doomed.get_mut() && !self.cache.reaper.is_kept(self.object) {
            self.cache.reaper.push(self.object);
        }
    }
}

impl Znode {
    /// Reads the attributes of an object.
    pub(crate) fn load(
        dnode: Arc<Dnode>,
        tables: Option<&SaTables>,
        cache: &Arc<Cache>,
    ) -> Result<Znode> {
        let state = State::load(&dnode, tables)
            .map_err(|e| e.context(format!("object {}", dnode.object())))?;
        Ok(Znode {
            object: dnode.object(),
            gen: state.f.gen,
            dnode,
            state: RwLock::new(state),
            range: RangeLock::default(),
            ns: RwLock::new(()),
            xlock: RwLock::new(()),
            doomed: AtomicBool::new(false),
            listed: AtomicBool::new(false),
            cache: cache.clone(),
        })
    }

    /// The object, which has no links, is used by its number until [`crate::Zfs::let_go`]: it stays although
    /// no znode of it does, at the cost of a few bytes.
    pub fn keep_by_number(&self) {
        self.cache.reaper.kept.acquire().insert(self.object);
    }

    /// The twelve fixed attributes.
    pub fn fixed(&self) -> Fixed {
        self.state.acquire_read().f
    }

    /// `st_mode`.
    pub fn mode(&self) -> u32 {
        self.state.acquire_read().f.mode as u32
    }

    /// Bytes of the content.
    pub fn size(&self) -> u64 {
        self.state.acquire_read().f.size
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        mode::is_dir(self.mode())
    }

    /// How its attributes are stored.
    pub fn form(&self) -> Form {
        self.state.acquire_read().form
    }

    /// The less frequent attributes.
    pub fn extra(&self) -> Extra {
        self.state.acquire_read().extra.clone()
    }

    /// Without links: on the delete queue, to be freed when its last user is gone.
    pub fn is_doomed(&self) -> bool {
        self.doomed.load(Ordering::Acquire)
    }

    /// Whether something of it is not on disk yet, so that the space it takes is not known.
    pub fn is_changing(&self) -> bool {
        self.dnode.is_dirty()
    }

    /// Whether there can be extended attributes at all.
    pub fn may_have_xattrs(&self) -> bool {
        let e = &self.state.acquire_read().extra;
        e.xattr != 0 || e.dxattr.is_some()
    }

    /// Changes fixed attributes. The closure sees the present ones and may refuse.
    pub(crate) fn update<R>(
        &self,
        tx: &Tx,
        change: impl FnOnce(&mut Fixed) -> Result<R>,
    ) -> Result<R> {
        base::mutation::panic_point("changing attributes");
        let mut st = self.state.acquire_write();
        let mut f = st.f;
        let r = change(&mut f)?;
        if f != st.f {
            let mut raw = st.raw.clone();
            encode_fixed(&f, &mut raw, &st.at);
            self.dnode.set_bonus(tx, &raw)?;
            st.raw = raw;
            st.f = f;
        }
        Ok(r)
    }

    /// Changes fixed attributes and any others of an object stored as system attributes.
    pub(crate) fn rewrite(
        &self,
        tx: &Tx,
        tables: &SaTables,
        change: impl FnOnce(&mut Fixed, &mut Attrs) -> Result<()>,
    ) -> Result<()> {
        let mut st = self.state.acquire_write();
        if st.form == Form::Legacy {
            self.convert(tx, tables, &mut st)?;
        }
        let mut f = st.f;
        let mut list = tables.load(&self.dnode)?;
        change(&mut f, &mut list)?;
        f.put(tables.numbers(tx)?, &mut list);
        self.store(tx, tables, &mut st, list)
    }

    fn store(&self, tx: &Tx, tables: &SaTables, st: &mut State, list: Attrs) -> Result<()> {
        let room = self.dnode.bonus_capacity(false);
        let Packed { bonus, spill } = tables.pack(tx, &list, room)?;
        match spill {
            Some(s) => {
                // The bonus must be short enough before the spill pointer takes its place.
                self.dnode.set_bonus(tx, &bonus)?;
                self.dnode.set_spill(tx, Some(s))?;
                st.has_spill = true;
            }
            None => {
                if st.has_spill {
                    self.dnode.set_spill(tx, None)?;
                }
                self.dnode.set_bonus(tx, &bonus)?;
                st.has_spill = false;
            }
        }
        st.at = sa_offsets(tables, &tables.index(&bonus)?)?;
        st.f = decode_fixed(&bonus, &st.at)?;
        st.extra = Extra::from_list(tables.zpl(), &list);
        st.raw = bonus;
        st.form = Form::Sa;
        Ok(())
    }

    /// Makes system attributes of a legacy znode (data format §18).
    fn convert(&self, tx: &Tx, tables: &SaTables, st: &mut State) -> Result<()> {
        let mut f = st.f;
        if mode::is_lnk(f.mode as u32) {
            bail!(
                Unsupported,
                "a symbolic link of an old file system version stays as it is"
            );
        }
        let phys = ZnodePhys::decode(&st.raw)?;
        let aces = self.read_legacy_aces(&phys)?;
        if phys.acl.object != 0 {
            self.dnode.objset()?.free(tx, phys.acl.object)?;
        }
        let stamp = (f.flags & flag::BONUS_SCANSTAMP != 0)
            .then(|| st.raw.get(LEGACY_LEN..LEGACY_LEN + 32).map(<[u8]>::to_vec))
            .flatten();
        f.flags &= !flag::BONUS_SCANSTAMP;
        let n = tables.numbers(tx)?;
        let mut list = Attrs::new();
        f.put(n, &mut list);
        let extra = st.extra.clone();
        if mode::is_dev(f.mode as u32) {
            list.set_u64(n.rdev, extra.rdev);
        }
        list.set_u64(n.dacl_count, aces.len() as u64);
        list.set(n.dacl_aces, disk::acl::encode_v1(&aces));
        if extra.xattr != 0 {
            list.set_u64(n.xattr, extra.xattr);
        }
        if let Some(s) = stamp {
            list.set(n.scanstamp, s);
        }
        self.dnode.set_bonus_type(tx, ObjType::SA)?;
        self.store(tx, tables, st, list)
    }

    fn read_legacy_aces(&self, phys: &ZnodePhys) -> Result<Vec<Ace>> {
        let external = match phys.acl.object {
            0 => None,
            object => {
                let dn = self.dnode.objset()?.hold(object)?;
                let mut b = vec![0; phys.acl.size.min(MAX_LIST) as usize];
                dn.read(0, &mut b)?;
                Some(b)
            }
        };
        phys.acl.aces(external.as_deref())
    }

    /// The NFSv4 list of a legacy znode.
    pub(crate) fn legacy_aces(&self) -> Result<Vec<Ace>> {
        let phys = ZnodePhys::decode(&self.raw())?;
        self.read_legacy_aces(&phys)
    }

    /// Sets the xattr directory of a legacy znode.
    pub(crate) fn set_legacy_xattr(&self, tx: &Tx, object: u64) -> Result<()> {
        let mut st = self.state.acquire_write();
        let mut raw = st.raw.clone();
        raw[104..112].copy_from_slice(&object.to_le_bytes());
        self.dnode.set_bonus(tx, &raw)?;
        st.raw = raw;
        st.extra.xattr = object;
        Ok(())
    }

    /// Replaces the ACL of a legacy znode along with fixed attributes.
    pub(crate) fn set_legacy_acl(
        &self,
        tx: &Tx,
        acl: ZnodeAcl,
        change: impl FnOnce(&mut Fixed),
    ) -> Result<()> {
        let mut st = self.state.acquire_write();
        let mut f = st.f;
        change(&mut f);
        let mut phys = ZnodePhys::decode(&st.raw)?;
        phys.acl = acl;
        let mut raw = st.raw.clone();
        raw.splice(..LEGACY_LEN, phys.encode());
        encode_fixed(&f, &mut raw, &st.at);
        self.dnode.set_bonus(tx, &raw)?;
        st.raw = raw;
        st.f = f;
        Ok(())
    }

    /// The bonus as stored (tests, legacy symlinks).
    pub(crate) fn raw(&self) -> Vec<u8> {
        self.state.acquire_read().raw.clone()
    }

    /// External ACL object of a legacy znode, 0 = none.
    pub(crate) fn legacy_acl_object(&self) -> u64 {
        let st = self.state.acquire_read();
        match st.form {
            Form::Legacy => u64_at(&st.raw, LEGACY_ACL).unwrap_or(0),
            Form::Sa => 0,
        }
    }

    /// What `stat` shows.
    pub fn attr(&self, devices: DeviceForm) -> Attr {
        let info = self.dnode.info();
        let st = self.state.acquire_read();
        let f = &st.f;
        Attr {
            ino: self.object,
            generation: f.gen as u32,
            mode: f.mode32(),
            nlink: f.links,
            uid: f.uid32(),
            gid: f.gid32(),
            rdev: rdev_to_linux(st.extra.rdev, devices),
            size: f.size,
            // A damaged dnode may claim any number of bytes.
            blocks: info.used.saturating_add(256) / 512 + u64::from(info.slots),
            blksize: info.block_size as u32,
            atime: f.atime,
            mtime: f.mtime,
            ctime: f.ctime,
            btime: f.crtime,
            fs_flags: crate::attr::fs_flag::from_znode(f.flags),
            projid: st.extra.projid as u32,
        }
    }
}

/// How a file system stores device numbers. Linux software stores its own major << 20 | minor; old
/// zfs-fuse stored the kernel's 32-bit form (12 bits major, 20 bits minor, low byte of the minor first);
/// other systems have the major in the high word, which tells itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceForm {
    /// File systems with system attributes: what OpenZFS stores.
    Modern,
    /// Older file systems in pools that OpenZFS wrote last. Minors up to 255 in the old form are known
    /// all the same: read as the new one their major would be 0.
    Mixed,
    /// Older file systems in other pools: written, and in doubt read, as old zfs-fuse does.
    Old,
}

impl DeviceForm {
    /// Of a file system with or without system attributes in a pool whose last uberblock named
    /// `software` as the version of the software (0 in pools of old zfs-fuse).
    pub fn of(uses_sa: bool, software: u64) -> DeviceForm {
        match (uses_sa, software >= 5000) {
            (true, _) => DeviceForm::Modern,
            (false, true) => DeviceForm::Mixed,
            (false, false) => DeviceForm::Old,
        }
    }
}

/// Device number as stored → the kernel's 32-bit form.
pub fn rdev_to_linux(stored: u64, form: DeviceForm) -> u64 {
    let (major, minor) = if stored >> 32 != 0 {
        (stored >> 32, stored & 0xffff_ffff)
    } else {
        let old = match form {
            DeviceForm::Modern => false,
            DeviceForm::Mixed => stored >> 20 == 0,
            DeviceForm::Old => true,
        };
        if old && stored >> 8 & 0xfff != 0 {
            return stored;
        }
        (stored >> 20, stored & 0xf_ffff)
    };
    minor & 0xff | (major & 0xfff) << 8 | (minor & 0xfff00) << 12
}

/// The kernel's 32-bit form → device number as stored; the inverse of [`rdev_to_linux`].
pub fn rdev_from_linux(dev: u64, form: DeviceForm) -> u64 {
    let (major, minor) = (dev >> 8 & 0xfff, dev & 0xff | dev >> 12 & 0xfff00);
    if form == DeviceForm::Old && major != 0 {
        return dev & 0xffff_ffff;
    }
    major << 20 | minor
}

/// Number of an attribute and where it is in its buffer.
type AttrRange = (u16, std::ops::Range<usize>);

impl Extra {
    fn from_places(n: &ZplAttrs, b: &[u8], places: &[AttrRange]) -> Extra {
        let find = |a: u16| {
            let p = places.iter().find(|p| p.0 == a)?;
            b.get(p.1.clone())
        };
        let word = |a: u16| find(a).and_then(|v| u64_at(v, 0).ok()).unwrap_or(0);
        Extra {
            projid: word(n.projid),
            rdev: word(n.rdev),
            xattr: word(n.xattr),
            dxattr: find(n.dxattr).map(|v| Arc::new(v.to_vec())),
        }
    }

    fn from_list(n: &ZplAttrs, list: &Attrs) -> Extra {
        let word = |a: u16| list.get_u64(a).ok().flatten().unwrap_or(0);
        Extra {
            projid: word(n.projid),
            rdev: word(n.rdev),
            xattr: word(n.xattr),
            dxattr: list.get(n.dxattr).map(|b| Arc::new(b.to_vec())),
        }
    }
}

fn sa_offsets(t: &SaTables, places: &[AttrRange]) -> Result<Offsets> {
    let n = t.zpl();
    let front = [
        n.mode, n.size, n.gen, n.uid, n.gid, n.parent, n.flags, n.atime, n.mtime, n.ctime,
        n.crtime, n.links,
    ];
    let mut at = Offsets::default();
    for (o, a) in at.iter_mut().zip(front) {
        let p = places
            .iter()
            .find(|p| p.0 == a)
            .ok_or_else(|| Error::damaged(format!("attribute {a} is missing")))?;
        *o = p.1.start as u16;
    }
    Ok(at)
}

impl State {
    fn load(dn: &Dnode, tables: Option<&SaTables>) -> Result<State> {
        let info = dn.info();
        let mut raw = dn.bonus();
        let s = match info.bonus_type {
            ObjType::ZNODE => {
                if raw.len() < LEGACY_LEN {
                    bail!(Damaged, "znode of {} bytes", raw.len());
                }
                let f = decode_fixed(&raw, &LEGACY_OFFSETS)?;
                let extra = Extra {
                    rdev: u64_at(&raw, 112)?,
                    xattr: u64_at(&raw, 104)?,
                    ..Extra::default()
                };
                State {
                    f,
                    form: Form::Legacy,
                    at: LEGACY_OFFSETS,
                    raw,
                    has_spill: false,
                    extra,
                }
            }
            ObjType::SA => {
                let t = tables.ok_or_else(|| {
                    Error::damaged("system attributes in a file system that has none")
                })?;
                t.to_native(&mut raw)?;
                let places = t.index(&raw)?;
                let at = sa_offsets(t, &places)?;
                let f = decode_fixed(&raw, &at)?;
                let has_spill = dn.spill()?.is_some();
                let extra = if has_spill {
                    Extra::from_list(t.zpl(), &t.load(dn)?)
                } else {
                    Extra::from_places(t.zpl(), &raw, &places)
                };
                State {
                    f,
                    form: Form::Sa,
                    at,
                    raw,
                    has_spill,
                    extra,
                }
            }
            other => bail!(NotFound, "an object with bonus {other:?} is no file"),
        };
        // Without a type nothing above could treat it.
        if s.f.gen == 0 || !mode::is_valid(s.f.mode as u32) {
            bail!(
                Damaged,
                "znode of mode {:o}, generation {}",
                s.f.mode,
                s.f.gen
            );
        }
        Ok(s)
    }
}

const SHARDS: usize = 32;

/// All znodes in use, by object number. Holds no reference of its own.
pub(crate) struct Cache {
    /// Objects that are to be freed.
    pub reaper: Reaper,
    shards: Vec<Mutex<HashMap<u64, Weak<Znode>>>>,
    /// Loading of one object happens once at a time.
    loading: Vec<Mutex<()>>,
}

impl Default for Cache {
    fn default() -> Cache {
        Cache {
            reaper: Reaper::default(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            loading: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }
}

impl Cache {
    /// The znode of the object, if it is in use.
    pub fn get(&self, object: u64) -> Option<Arc<Znode>> {
        self.shards[object as usize % SHARDS]
            .acquire()
            .get(&object)?
            .upgrade()
    }

    /// The znode, loaded if it is not in use yet.
    pub fn get_or_load(
        &self,
        object: u64,
        load: impl FnOnce() -> Result<Znode>,
    ) -> Result<Arc<Znode>> {
        if let Some(z) = self.get(object) {
            return Ok(z);
        }
        let _one = self.loading[object as usize % SHARDS].acquire();
        if let Some(z) = self.get(object) {
            return Ok(z);
        }
        let z = Arc::new(load()?);
        self.put(&z);
        Ok(z)
    }

    fn put(&self, z: &Arc<Znode>) {
        let mut m = self.shards[z.object as usize % SHARDS].acquire();
        m.insert(z.object, Arc::downgrade(z));
    }

    /// The znode of an object goes; another one may have taken its place already.
    fn forget(&self, object: u64) {
        let mut m = self.shards[object as usize % SHARDS].acquire();
        if m.get(&object).is_some_and(|w| w.strong_count() == 0) {
            m.remove(&object);
            let n = m.len();
            if m.capacity() > 1024 && n * 4 < m.capacity() {
                m.shrink_to(n * 2);
            }
        }
    }

    /// How many objects are in use.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.shards.iter().map(|s| s.acquire().len()).sum()
    }

    /// All znodes in use.
    pub fn all(&self) -> Vec<Arc<Znode>> {
        self.shards
            .iter()
            .flat_map(|s| {
                let m = s.acquire();
                m.values().filter_map(Weak::upgrade).collect::<Vec<_>>()
            })
            .collect()
    }
}

/// A name that cannot be an entry: `.` and `..` are not stored, others are impossible.
pub fn check_name(name: &[u8], max: usize, utf8only: bool) -> Result<()> {
    if name.is_empty() {
        return Err(Kind::NotFound.into());
    }
    if name.contains(&b'/') || name.contains(&0) {
        return Err(Kind::Invalid.into());
    }
    if name.len() > max {
        return Err(Kind::NameTooLong.into());
    }
    if utf8only && std::str::from_utf8(name).is_err() {
        return Err(Kind::BadName.into());
    }
    Ok(())
}
