//! Directories: finding, making, linking and removing names.

use crate::attr::{flag, mode};
use crate::create::Spec;
use crate::log::{Made, Record};
use crate::names;
use crate::perm::{self, Cred, W, X};
use crate::zfs::Zfs;
use crate::znode::{check_name, rdev_from_linux, Znode};
use base::sync::{MutexExt, RwLockExt, WriteGuard};
use base::{bail, Error, Kind, Result, Txg};
use dmu::Tx;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// Bits of a directory entry that are the object number.
pub(crate) const OBJECT_MASK: u64 = (1 << 48) - 1;
/// Most links of a file.
pub const LINK_MAX: u64 = (1 << 31) - 1;
/// Longest target of a symbolic link.
pub const SYMLINK_MAX: usize = 4095;

/// Something to be made.
#[derive(Clone, Copy, Debug, Default)]
pub struct New<'a> {
    /// Type and permission bits, umask not applied.
    pub mode: u32,
    /// Permission bits that the caller's umask takes away.
    pub umask: u32,
    /// Device number in the kernel's 32-bit form.
    pub rdev: u64,
    /// Of a symbolic link.
    pub target: &'a [u8],
    /// Only in replay.
    pub(crate) replay: Option<&'a Replayed>,
}

impl<'a> New<'a> {
    /// Type and permission bits as given, umask as given.
    pub fn file(mode: u32, umask: u32) -> New<'a> {
        New {
            mode,
            umask,
            ..New::default()
        }
    }

    /// A directory.
    pub fn dir(perm: u32, umask: u32) -> New<'a> {
        New::file(mode::DIR | perm & mode::PERM, umask)
    }

    /// A device file, pipe or socket.
    pub fn device(mode: u32, umask: u32, rdev: u64) -> New<'a> {
        New {
            mode,
            umask,
            rdev,
            ..New::default()
        }
    }

    /// A symbolic link to `target`.
    pub fn symlink(target: &'a [u8]) -> New<'a> {
        New {
            mode: mode::LNK | 0o777,
            target,
            ..New::default()
        }
    }
}

/// What a log record says of an object made before the crash.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replayed {
    /// Its number.
    pub object: u64,
    /// Its dnode slots.
    pub slots: u8,
    /// Owner, a FUID.
    pub uid: u64,
    /// Group, a FUID.
    pub gid: u64,
    /// Txg of creation.
    pub gen: Txg,
    /// Time of creation.
    pub crtime: crate::attr::Time,
    /// As stored.
    pub rdev: u64,
}

/// Exclusive locks on the entries of several directories, taken in order of object numbers.
pub(crate) fn lock_dirs<'a>(dirs: &[&'a Arc<Znode>]) -> Vec<WriteGuard<'a, ()>> {
    let mut list: Vec<&'a Arc<Znode>> = dirs.to_vec();
    list.sort_by_key(|z| z.object);
    list.dedup_by_key(|z| z.object);
    list.iter().map(|z| z.ns.acquire_write()).collect()
}

/// Flags that forbid removing or renaming an object.
const STAYS: u64 = flag::IMMUTABLE | flag::APPENDONLY | flag::NOUNLINK;

impl Zfs {
    pub(crate) fn must_dir(z: &Znode) -> Result<()> {
        if z.is_dir() {
            Ok(())
        } else {
            Err(Kind::NotDir.into())
        }
    }

    /// The object a name leads to. `.` and `..` are understood too.
    pub fn lookup(&self, dir: &Arc<Znode>, name: &[u8], cred: &Cred) -> Result<Arc<Znode>> {
        Self::must_dir(dir)?;
        self.check(dir, X, cred)?;
        match name {
            b"." => return Ok(dir.clone()),
            b".." => return self.get_any(dir.fixed().parent),
            _ => check_name(name, self.name_max_found(), self.utf8only)?,
        }
        let _g = dir.ns.acquire_read();
        match self.find(dir, name)? {
            Some((object, _)) => self
                .get_any(object)
                .map_err(|e| e.context(format!("entry of directory {}", dir.object))),
            None => names::missing(),
        }
    }

    /// Object and stored name of an entry.
    pub(crate) fn find(&self, dir: &Znode, name: &[u8]) -> Result<Option<(u64, Vec<u8>)>> {
        let norm = if dir.fixed().flags & flag::XATTR != 0 {
            0
        } else {
            self.norm
        };
        Ok(names::find(&dir.dnode, name, norm, self.case == 2)?.map(|(v, n)| (v & OBJECT_MASK, n)))
    }

    fn entry_value(&self, object: u64, m: u32) -> u64 {
        if self.version >= 2 {
            object | u64::from(m >> 12 & 15) << 60
        } else {
            object
        }
    }

    /// Adds an entry and does the directory's share: SIZE, LINKS, times.
    pub(crate) fn entry_add(&self, tx: &Tx, dir: &Znode, name: &[u8], z: &Znode) -> Result<()> {
        let m = z.mode();
        names::add(&dir.dnode, tx, name, self.entry_value(z.object, m))?;
        if name.len() > 255 {
            self.space.long_name_made();
        }
        let now = self.now();
        dir.update(tx, |f| {
            f.size += 1;
            if mode::is_dir(m) {
                f.links += 1;
            }
            f.touch_content(now, self.fuids());
            Ok(())
        })
    }

    /// Removes an entry and does the directory's share.
    pub(crate) fn entry_remove(
        &self,
        tx: &Tx,
        dir: &Znode,
        stored: &[u8],
        is_dir: bool,
    ) -> Result<()> {
        names::remove(&dir.dnode, tx, stored)?;
        let now = self.now();
        dir.update(tx, |f| {
            f.size = f.size.saturating_sub(1).max(2);
            if is_dir {
                f.links = f.links.saturating_sub(1).max(2);
            }
            f.touch_content(now, self.fuids());
            Ok(())
        })
    }

    /// Makes an entry lead to `z` instead of what it leads to (a directory, if `was_dir`).
    pub(crate) fn entry_replace(
        &self,
        tx: &Tx,
        dir: &Znode,
        stored: &[u8],
        name: &[u8],
        z: &Znode,
        was_dir: bool,
    ) -> Result<()> {
        if stored != name {
            // Equal only after normalization: the new spelling is kept.
            self.entry_remove(tx, dir, stored, was_dir)?;
            return self.entry_add(tx, dir, name, z);
        }
        let m = z.mode();
        names::update(&dir.dnode, tx, name, self.entry_value(z.object, m))?;
        let now = self.now();
        dir.update(tx, |f| {
            f.links = f.links + u64::from(mode::is_dir(m)) - u64::from(was_dir && f.links > 2);
            f.touch_content(now, self.fuids());
            Ok(())
        })
    }

    /// Takes away one link of an object; without any left it goes on the delete queue.
    pub(crate) fn link_drop(&self, tx: &Tx, z: &Znode) -> Result<()> {
        base::mutation::panic_point("dropping a link");
        let now = self.now();
        let _g = self.last_links.acquire();
        let left = z.update(tx, |f| {
            f.links = if f.is_dir() {
                0
            } else {
                f.links.saturating_sub(1)
            };
            f.touch_state(now, self.fuids());
            Ok(f.links)
        })?;
        if left == 0 {
            self.queue_add(tx, z)?;
        }
        Ok(())
    }

    pub(crate) fn queue_add(&self, tx: &Tx, z: &Znode) -> Result<()> {
        names::update(
            &self.unlinked,
            tx,
            format!("{:x}", z.object).as_bytes(),
            z.object,
        )?;
        z.doomed.store(true, Ordering::Release);
        if let Some(k) = self.keeper.get() {
            // The znode in use for the object; another one (of a drained queue) has no users.
            if let Some(z) = self.cache.get(z.object).filter(|z| z.is_doomed()) {
                k(&z);
            }
        }
        Ok(())
    }

    /// Refuses what flags of a directory forbid; `removing` also counts for renaming away.
    pub(crate) fn may_change_dir(&self, dir: &Znode, removing: bool) -> Result<()> {
        let f = dir.fixed();
        if f.links == 0 {
            return Err(Kind::NotFound.into());
        }
        let bad = flag::IMMUTABLE | if removing { flag::APPENDONLY } else { 0 };
        if self.forbids(f.flags, bad) {
            return Err(Kind::NotPermitted.into());
        }
        Ok(())
    }

    /// May the entry that leads to `z` be taken away from `dir`?
    pub(crate) fn may_remove(&self, dir: &Znode, z: &Znode, cred: &Cred) -> Result<()> {
        let (d, f) = (dir.fixed(), z.fixed());
        if !cred.checked {
            perm::sticky(cred, d.mode32(), d.uid32(), f.uid32())?;
        }
        if self.forbids(f.flags, STAYS) {
            return Err(Kind::NotPermitted.into());
        }
        // In a directory marked so nothing can be removed either.
        if self.forbids(d.flags, flag::NOUNLINK) {
            return Err(Kind::Access.into());
        }
        self.lists_permit_removal(dir, z, cred)
    }

    /// Makes an object of any type under a name.
    pub fn create(
        &self,
        dir: &Arc<Znode>,
        name: &[u8],
        new: &New<'_>,
        cred: &Cred,
    ) -> Result<Arc<Znode>> {
        self.writable()?;
        Self::must_dir(dir)?;
        self.check(dir, W | X, cred)?;
        if matches!(name, b"." | b"..") {
            return Err(Kind::Exists.into());
        }
        check_name(name, self.name_max(), self.utf8only)?;
        if dir.object == self.root_object() && name == b".zfs" {
            return Err(Kind::Exists.into());
        }
        let prepared = self.prepare(dir, new, cred)?;
        let z = {
            let _g = dir.ns.acquire_write();
            self.may_change_dir(dir, false)?;
            if self.find(dir, name)?.is_some() {
                return Err(Kind::Exists.into());
            }
            if mode::is_dir(new.mode) && dir.fixed().links >= LINK_MAX {
                return Err(Kind::TooManyLinks.into());
            }
            let tx = self.tx_create(&prepared)?;
            let links = if mode::is_dir(new.mode) { 2 } else { 1 };
            let z = self.make_prepared(&tx, dir, new, &prepared, links)?;
            if let Err(e) = self.entry_add(&tx, dir, name, &z) {
                if z.legacy_acl_object() != 0 {
                    self.os.free(&tx, z.legacy_acl_object())?;
                }
                self.os.free(&tx, z.object)?;
                return Err(e);
            }
            let how = match new.mode & mode::FMT {
                mode::DIR => Made::Dir,
                mode::LNK => Made::Symlink,
                _ => Made::File,
            };
            let rec = Record::Create {
                how,
                dir: dir.object,
                name: name.to_vec(),
                new: self.new_file(&z),
                target: new.target.to_vec(),
            };
            self.record(&tx, rec);
            self.put_acls(&tx, &z, &prepared)?;
            z
        };
        self.finish(Some(z.object))?;
        Ok(z)
    }

    /// Makes a file without a name; it goes when it is closed, unless it is linked before.
    pub fn tmpfile(&self, dir: &Arc<Znode>, new: &New<'_>, cred: &Cred) -> Result<Arc<Znode>> {
        self.writable()?;
        Self::must_dir(dir)?;
        self.check(dir, W | X, cred)?;
        if !mode::is_reg(new.mode) {
            return Err(Kind::Invalid.into());
        }
        let prepared = self.prepare(dir, new, cred)?;
        self.may_change_dir(dir, false)?;
        let tx = self.tx_create(&prepared)?;
        let z = self.make_prepared(&tx, dir, new, &prepared, 0)?;
        self.queue_add(&tx, &z)?;
        self.put_acls(&tx, &z, &prepared)?;
        Ok(z)
    }

    /// One more name for an object.
    pub fn link(&self, z: &Arc<Znode>, dir: &Arc<Znode>, name: &[u8], cred: &Cred) -> Result<()> {
        let p = self.writable()?;
        Self::must_dir(dir)?;
        self.check(dir, W | X, cred)?;
        if matches!(name, b"." | b"..") {
            return Err(Kind::Exists.into());
        }
        check_name(name, self.name_max(), self.utf8only)?;
        let mut made_of_nothing = None;
        {
            let _g = dir.ns.acquire_write();
            if self.find(dir, name)?.is_some() {
                return Err(Kind::Exists.into());
            }
            self.may_change_dir(dir, false)?;
            let f = z.fixed();
            let stays = self.forbids(f.flags, flag::IMMUTABLE | flag::APPENDONLY);
            if f.is_dir() || f.flags & flag::XATTR != 0 || stays {
                return Err(Kind::NotPermitted.into());
            }
            self.same_project(dir, z)?;
            if f.links >= LINK_MAX {
                return Err(Kind::TooManyLinks.into());
            }
            if f.links == 0 && !z.doomed.load(Ordering::Acquire) {
                return Err(Kind::NotFound.into());
            }
            let tx = self.tx_meta()?;
            self.entry_add(&tx, dir, name, z)?;
            let now = self.now();
            {
                let _g = self.last_links.acquire();
                let before = z.update(&tx, |f| {
                    let before = f.links;
                    f.links += 1;
                    f.parent = dir.object;
                    f.touch_state(now, self.fuids());
                    Ok(before)
                })?;
                if before == 0 {
                    let key = format!("{:x}", z.object);
                    names::remove(&self.unlinked, &tx, key.as_bytes())?;
                    z.doomed.store(false, Ordering::Release);
                    self.cache.reaper.let_go(z.object);
                    made_of_nothing = Some(tx.txg());
                }
            }
            let rec = Record::Link {
                dir: dir.object,
                object: z.object,
                name: name.to_vec(),
            };
            match made_of_nothing {
                // The log knows nothing of a file that had no name until now. Others may rename or remove
                // the name as soon as the locks are free, and their records must not come before it.
                Some(_) => self.log().unlogged(&tx),
                None => self.record(&tx, rec),
            }
        }
        if let Some(txg) = made_of_nothing {
            if p.sync != crate::props::SyncMode::Disabled {
                self.log().wait(txg)?;
            }
        }
        self.finish(Some(z.object))
    }

    /// Removes a name of something that is not a directory.
    pub fn unlink(&self, dir: &Arc<Znode>, name: &[u8], cred: &Cred) -> Result<()> {
        self.writable()?;
        Self::must_dir(dir)?;
        self.check(dir, W | X, cred)?;
        if matches!(name, b"." | b"..") {
            return Err(Kind::IsDir.into());
        }
        check_name(name, self.name_max_found(), self.utf8only)?;
        let z = {
            let _g = dir.ns.acquire_write();
            let Some((object, stored)) = self.find(dir, name)? else {
                return names::missing();
            };
            let z = self.get_any(object)?;
            self.may_change_dir(dir, true)?;
            self.may_remove(dir, &z, cred)?;
            if z.is_dir() {
                return Err(Kind::IsDir.into());
            }
            let tx = self.tx_remove()?;
            self.entry_remove(&tx, dir, &stored, false)?;
            self.link_drop(&tx, &z)?;
            let rec = Record::Remove {
                dir: dir.object,
                name: stored,
                is_dir: false,
                object,
            };
            self.record(&tx, rec);
            z
        };
        let object = z.object;
        drop(z);
        self.finish(Some(object))
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, dir: &Arc<Znode>, name: &[u8], cred: &Cred) -> Result<()> {
        self.writable()?;
        Self::must_dir(dir)?;
        self.check(dir, W | X, cred)?;
        match name {
            b"." => return Err(Kind::Invalid.into()),
            b".." => return Err(Kind::NotEmpty.into()),
            _ => check_name(name, self.name_max_found(), self.utf8only)?,
        }
        let z = loop {
            let Some((object, _)) = self.find(dir, name)? else {
                return names::missing();
            };
            let z = self.get_any(object)?;
            if !z.is_dir() {
                return Err(Kind::NotDir.into());
            }
            let locks = lock_dirs(&[dir, &z]);
            // What the name leads to may have changed before the locks were held.
            let stored = match self.find(dir, name)? {
                Some((o, stored)) if o == object => stored,
                _ => {
                    drop(locks);
                    continue;
                }
            };
            self.may_change_dir(dir, true)?;
            self.may_remove(dir, &z, cred)?;
            if z.size() != 2 {
                return Err(Kind::NotEmpty.into());
            }
            let tx = self.tx_remove()?;
            self.entry_remove(&tx, dir, &stored, true)?;
            self.link_drop(&tx, &z)?;
            let rec = Record::Remove {
                dir: dir.object,
                name: stored,
                is_dir: true,
                object,
            };
            self.record(&tx, rec);
            drop(locks);
            break z;
        };
        let object = z.object;
        drop(z);
        self.finish(Some(object))
    }

    /// Linking or moving into a directory with an inherited project needs the same project.
    pub(crate) fn same_project(&self, dir: &Znode, z: &Znode) -> Result<()> {
        let inherits = self.forbids(dir.fixed().flags, flag::PROJINHERIT);
        if inherits && dir.extra().projid != z.extra().projid {
            bail!(CrossDevice, "another project");
        }
        Ok(())
    }

    /// Looks up ids, mode and ACLs of something to be made; refuses what quotas forbid.
    fn prepare(&self, dir: &Arc<Znode>, new: &New<'_>, cred: &Cred) -> Result<Prepared> {
        if !mode::is_valid(new.mode) {
            return Err(Kind::Invalid.into());
        }
        if mode::is_lnk(new.mode) {
            if new.target.is_empty() {
                return Err(Kind::NotFound.into());
            }
            if new.target.len() > SYMLINK_MAX {
                return Err(Kind::NameTooLong.into());
            }
        }
        let d = dir.fixed();
        let inherits = d.flags & flag::PROJINHERIT != 0;
        let projid = if inherits { dir.extra().projid } else { 0 };
        let p = self.props();
        if let Some(r) = new.replay {
            let list = self.inherited_list(&p, dir, new.mode, r.uid, r.gid)?;
            return Ok(Prepared {
                mode: list.as_ref().map_or(new.mode, |l| l.mode),
                list,
                uid: r.uid,
                gid: r.gid,
                projid,
                inherits,
                access: None,
                default: None,
            });
        }
        let (m, access, default) = self.inherited(dir, new.mode, new.umask)?;
        let (m, gid) = perm::inherit_group(cred, d.mode32(), d.gid32(), m);
        let (uid, gid) = (u64::from(cred.uid), u64::from(gid));
        self.check_quota(uid, gid, projid, true)?;
        let list = self.inherited_list(&p, dir, m, uid, gid)?;
        Ok(Prepared {
            mode: list.as_ref().map_or(m, |l| l.mode),
            list,
            uid,
            gid,
            projid,
            inherits,
            access,
            default,
        })
    }

    fn tx_create(&self, p: &Prepared) -> Result<Tx> {
        match p.list {
            // It may need a block of its own.
            Some(_) => self.tx_write(96 << 10),
            None => self.tx_meta(),
        }
    }

    fn make_prepared(
        &self,
        tx: &Tx,
        dir: &Znode,
        new: &New<'_>,
        p: &Prepared,
        links: u64,
    ) -> Result<Arc<Znode>> {
        let props = self.props();
        let plain = mode::is_reg(p.mode) || mode::is_dir(p.mode);
        let mut flags = 0;
        if p.inherits && plain {
            flags |= flag::PROJINHERIT;
        }
        if mode::is_dir(p.mode) && p.list.is_none() {
            flags |= flag::ACL_AUTO_INHERIT;
        }
        let legacy = !self.uses_sa();
        let spec = Spec {
            mode: p.mode,
            uid: p.uid,
            gid: p.gid,
            gen: new.replay.map_or(tx.txg().number(), |r| r.gen.number()),
            times: new.replay.map_or_else(|| self.now(), |r| r.crtime),
            size: match p.mode & mode::FMT {
                mode::DIR => 2,
                mode::LNK => new.target.len() as u64,
                _ => 0,
            },
            links,
            parent: Some(dir.object),
            flags,
            // Only files and directories have one as a rule (as in pools of OpenZFS).
            projid: (!legacy && (props.project_quota && plain || p.projid != 0))
                .then_some(p.projid),
            rdev: new
                .replay
                .map_or_else(|| rdev_from_linux(new.rdev, self.devices), |r| r.rdev),
            target: new.target,
            slots: new.replay.map_or(props.dnode_slots, |r| r.slots),
            object: new.replay.map(|r| r.object),
            fuids: self.fuids(),
            list: p.list.clone(),
        };
        self.make_znode(tx, &spec)
    }

    /// Gives a new object the ACLs it inherits, in the transaction that makes it.
    fn put_acls(&self, tx: &Tx, z: &Znode, p: &Prepared) -> Result<()> {
        for (name, acl) in [
            (crate::acl::XATTR_ACCESS, &p.access),
            (crate::acl::XATTR_DEFAULT, &p.default),
        ] {
            if let Some(a) = acl {
                self.xattr_put(tx, z, name, Some(&a.encode()))?;
            }
        }
        Ok(())
    }

    /// The target of a symbolic link.
    pub fn readlink(&self, z: &Znode) -> Result<Vec<u8>> {
        let f = z.fixed();
        if !mode::is_lnk(f.mode32()) {
            return Err(Kind::Invalid.into());
        }
        let mut target = match z.form() {
            crate::znode::Form::Sa => {
                let t = self.tables()?;
                let mut list = t.load(&z.dnode)?;
                list.remove(t.zpl().symlink)
                    .ok_or_else(|| Error::damaged("symbolic link without a target"))?
            }
            crate::znode::Form::Legacy => {
                let raw = z.raw();
                let len = f.size.min(SYMLINK_MAX as u64 + 1) as usize;
                match raw.get(crate::znode::LEGACY_LEN..crate::znode::LEGACY_LEN + len) {
                    Some(t) => t.to_vec(),
                    None => {
                        let mut b = vec![0; len];
                        z.dnode.read(0, &mut b)?;
                        b
                    }
                }
            }
        };
        target.truncate(f.size as usize);
        self.accessed(z);
        Ok(target)
    }
}

/// Ids, mode and ACLs of something about to be made.
struct Prepared {
    mode: u32,
    /// The NFSv4 list, if it is not what the mode says.
    list: Option<crate::nfs4::List>,
    uid: u64,
    gid: u64,
    projid: u64,
    /// The directory hands its project on.
    inherits: bool,
    access: Option<disk::xattr::PosixAcl>,
    default: Option<disk::xattr::PosixAcl>,
}
