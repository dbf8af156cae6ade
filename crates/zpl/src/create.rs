//! The first objects of a new file system (data format §6.1), and making of objects in general.

use crate::acl;
use crate::attr::{flag, mode, Time};
use crate::log::NewFile;
use crate::names;
use crate::nfs4::List;
use crate::sa::SaTables;
use crate::zfs::{max_zpl_version, Zfs, MASTER_NODE, VERSION_FUID, VERSION_SA};
use crate::znode::{Fixed, Znode};
use base::{bail, Result};
use disk::sa::Attrs;
use disk::types::ObjType;
use disk::znode::ZnodePhys;
use dmu::{NewObject, Objset, Tx};
use std::sync::Arc;

/// What a new file system is made with.
#[derive(Clone, Copy, Debug)]
pub struct FsOptions {
    /// ZPL version, 1–5, not newer than the pool allows.
    pub version: u64,
    /// Pool version (1–28, or 5000).
    pub pool_version: u64,
    /// Normalization flags: 0, 0x10 formD, 0x50 formC, 0x20 formKD, 0x60 formKC.
    pub normalization: u64,
    /// Names must be UTF-8.
    pub utf8only: bool,
    /// 0 sensitive, 1 insensitive, 2 mixed.
    pub casesensitivity: u64,
    /// Feature project_quota is enabled.
    pub project_quota: bool,
    /// Owner of the root directory.
    pub uid: u32,
    /// Group of the root directory.
    pub gid: u32,
    /// Time of creation.
    pub now: Time,
}

impl FsOptions {
    /// The defaults for a pool of this version.
    pub fn new(pool_version: u64, now: Time) -> FsOptions {
        FsOptions {
            version: max_zpl_version(pool_version),
            pool_version,
            normalization: 0,
            utf8only: false,
            casesensitivity: 0,
            project_quota: false,
            uid: 0,
            gid: 0,
            now,
        }
    }
}

/// Makes the objects of an empty file system in an empty object set. The caller activates the
/// features that go with it.
pub fn create_fs(os: &Arc<Objset>, tx: &Tx, o: &FsOptions) -> Result<()> {
    if o.version == 0 || o.version > max_zpl_version(o.pool_version) {
        bail!(
            Unsupported,
            "file system version {} in a pool of version {}",
            o.version,
            o.pool_version
        );
    }
    let zap = |obj_type| NewObject {
        obj_type,
        ..NewObject::default()
    };
    let master = os.claim(tx, MASTER_NODE, &zap(ObjType::MASTER_NODE))?;
    names::init(&master, tx, 0)?;
    names::add(&master, tx, b"VERSION", o.version)?;
    if o.version >= VERSION_FUID {
        let utf8 = u64::from(o.utf8only || o.normalization != 0);
        names::add(&master, tx, b"utf8only", utf8)?;
        names::add(&master, tx, b"normalization", o.normalization)?;
        names::add(&master, tx, b"casesensitivity", o.casesensitivity)?;
    } else if o.normalization != 0 || o.casesensitivity != 0 || o.utf8only {
        bail!(
            Unsupported,
            "name rules need file system version {VERSION_FUID}"
        );
    }
    let sa = if o.version >= VERSION_SA {
        let dn = names::create(os, tx, &zap(ObjType::SA_MASTER_NODE), 0)?;
        names::add(&master, tx, b"SA_ATTRS", dn.object())?;
        Some(dn.object())
    } else {
        None
    };
    let queue = names::create(os, tx, &zap(ObjType::UNLINKED_SET), 0)?;
    names::add(&master, tx, b"DELETE_QUEUE", queue.object())?;

    let tables = match sa {
        Some(object) => Some(SaTables::open(os, object)?),
        None => None,
    };
    let norm = o.normalization | if o.casesensitivity != 0 { 2 } else { 0 };
    let spec = Spec {
        mode: mode::DIR | 0o755,
        uid: u64::from(o.uid),
        gid: u64::from(o.gid),
        gen: tx.txg().number(),
        times: o.now,
        size: 2,
        links: 2,
        parent: None,
        flags: flag::ACL_AUTO_INHERIT,
        projid: o.project_quota.then_some(0),
        rdev: 0,
        target: &[],
        slots: 1,
        object: None,
        fuids: o.version >= VERSION_FUID,
        list: None,
    };
    let dn = make(os, tx, tables.as_ref(), &spec)?;
    names::init(&dn, tx, norm)?;
    names::add(&master, tx, b"ROOT", dn.object())
}

/// What an object is made with.
pub(crate) struct Spec<'a> {
    /// Type and permission bits.
    pub mode: u32,
    /// Owner, a FUID.
    pub uid: u64,
    /// Group, a FUID.
    pub gid: u64,
    /// Txg of creation.
    pub gen: u64,
    /// All four times.
    pub times: Time,
    /// As it is stored.
    pub size: u64,
    /// As it is stored.
    pub links: u64,
    /// `None`: itself.
    pub parent: Option<u64>,
    /// Flags besides those of the ACL and of versions with FUIDs.
    pub flags: u64,
    /// A project id attribute is to be there.
    pub projid: Option<u64>,
    /// As stored.
    pub rdev: u64,
    /// Of a symbolic link.
    pub target: &'a [u8],
    /// Dnode slots of 512 bytes.
    pub slots: u8,
    /// The number it must have (replay), or any.
    pub object: Option<u64>,
    /// The file system has FUIDs.
    pub fuids: bool,
    /// What the mode says, if `None`. Its flags come besides `flags`; its mode is `mode`.
    pub list: Option<List>,
}

/// Allocates an object and gives it its attributes. Directories still have to be made a ZAP.
pub(crate) fn make(
    os: &Arc<Objset>,
    tx: &Tx,
    tables: Option<&SaTables>,
    s: &Spec<'_>,
) -> Result<Arc<dmu::Dnode>> {
    let trivial;
    let acl = match &s.list {
        Some(list) => list,
        None => {
            trivial = List::trivial(s.mode);
            &trivial
        }
    };
    let mut flags = s.flags | acl.flags;
    if s.fuids {
        flags |= flag::ARCHIVE | flag::AV_MODIFIED;
    }
    if s.projid.is_some() {
        flags |= flag::PROJID;
    }
    let f = Fixed {
        mode: u64::from(s.mode),
        size: s.size,
        gen: s.gen,
        uid: s.uid,
        gid: s.gid,
        parent: s.parent.unwrap_or(0),
        flags,
        atime: s.times,
        mtime: s.times,
        ctime: s.times,
        crtime: s.times,
        links: s.links,
    };
    let new = NewObject {
        obj_type: if mode::is_dir(s.mode) {
            ObjType::DIRECTORY_CONTENTS
        } else {
            ObjType::PLAIN_FILE_CONTENTS
        },
        slots: s.slots.max(1),
        ..NewObject::default()
    };
    match tables {
        Some(t) => make_sa(os, tx, t, s, acl, f, new),
        None => make_legacy(os, tx, s, acl, f, new),
    }
}

fn alloc(os: &Arc<Objset>, tx: &Tx, s: &Spec<'_>, new: &NewObject) -> Result<Arc<dmu::Dnode>> {
    match s.object {
        Some(n) => os.claim(tx, n, new),
        None => os.alloc(tx, new),
    }
}

/// An object whose attributes are a `znode_phys` in the bonus buffer (file systems before version 5).
fn make_legacy(
    os: &Arc<Objset>,
    tx: &Tx,
    s: &Spec<'_>,
    acl: &List,
    mut f: Fixed,
    mut new: NewObject,
) -> Result<Arc<dmu::Dnode>> {
    let stored = acl::legacy(os, tx, &acl.aces, s.fuids)?;
    let raw = |f: &Fixed| {
        let w = |t: Time| [t.sec as u64, u64::from(t.nsec)];
        let mut b = ZnodePhys {
            atime: w(f.atime),
            mtime: w(f.mtime),
            ctime: w(f.ctime),
            crtime: w(f.crtime),
            gen: f.gen,
            mode: f.mode,
            size: f.size,
            parent: f.parent,
            links: f.links,
            xattr: 0,
            rdev: s.rdev,
            flags: f.flags,
            uid: f.uid,
            gid: f.gid,
            acl: stored.clone(),
        }
        .encode();
        // A short target follows the znode, a long one is the content of the object.
        if b.len() + s.target.len() <= 320 {
            b.extend_from_slice(s.target);
        }
        b
    };
    new.bonus_type = ObjType::ZNODE;
    new.bonus = raw(&f);
    let long = new.bonus.len() == crate::znode::LEGACY_LEN && !s.target.is_empty();
    if long {
        new.block_size = s.target.len().next_multiple_of(512);
    }
    let dn = alloc(os, tx, s, &new)?;
    if s.parent.is_none() {
        f.parent = dn.object();
        dn.set_bonus(tx, &raw(&f))?;
    }
    if long {
        dn.write(tx, 0, s.target)?;
    }
    Ok(dn)
}

/// An object whose attributes are system attributes, in the bonus buffer and a spill block.
fn make_sa(
    os: &Arc<Objset>,
    tx: &Tx,
    t: &SaTables,
    s: &Spec<'_>,
    acl: &List,
    mut f: Fixed,
    mut new: NewObject,
) -> Result<Arc<dmu::Dnode>> {
    let n = t.numbers(tx)?;
    let mut list = Attrs::new();
    let build = |f: &Fixed, list: &mut Attrs| {
        f.put(n, list);
        if let Some(p) = s.projid {
            list.set_u64(n.projid, p);
        }
        if mode::is_dev(s.mode) {
            list.set_u64(n.rdev, s.rdev);
        }
        list.set_u64(n.dacl_count, acl.aces.len() as u64);
        list.set(n.dacl_aces, disk::acl::encode_v1(&acl.aces));
        if mode::is_lnk(s.mode) {
            list.set(n.symlink, s.target.to_vec());
        }
    };
    build(&f, &mut list);
    let room = usize::from(new.slots) * 512 - disk::dnode::DNODE_CORE - disk::BP_SIZE;
    let mut packed = t.pack(tx, &list, room)?;
    new.bonus_type = ObjType::SA;
    new.bonus = packed.bonus;
    let dn = alloc(os, tx, s, &new)?;
    if s.parent.is_none() {
        f.parent = dn.object();
        build(&f, &mut list);
        packed = t.pack(tx, &list, room)?;
        dn.set_bonus(tx, &packed.bonus)?;
    }
    if let Some(spill) = packed.spill {
        dn.set_spill(tx, Some(spill))?;
    }
    Ok(dn)
}

impl Zfs {
    /// Makes an object of this file system and its znode.
    pub(crate) fn make_znode(&self, tx: &Tx, s: &Spec<'_>) -> Result<Arc<Znode>> {
        let dn = make(&self.os, tx, self.sa.as_ref(), s)?;
        if mode::is_dir(s.mode) {
            names::init(&dn, tx, self.norm)?;
        }
        self.cache.get_or_load(dn.object(), || {
            Znode::load(dn.clone(), self.sa.as_ref(), &self.cache)
        })
    }

    pub(crate) fn new_file(&self, z: &Znode) -> NewFile {
        let f = z.fixed();
        NewFile {
            object: z.object,
            slots: z.dnode.info().slots,
            mode: f.mode,
            uid: f.uid,
            gid: f.gid,
            gen: f.gen,
            crtime: f.crtime,
            rdev: z.extra().rdev,
        }
    }
}
