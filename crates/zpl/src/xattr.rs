//! Extended attributes: names, the two stored forms, and the rules about who may (data format §21).

use crate::acl::{XATTR_ACCESS, XATTR_DEFAULT};
use crate::attr::{flag, mode};
use crate::create::Spec;
use crate::dir::{Replayed, OBJECT_MASK};
use crate::log::{Made, Record};
use crate::names;
use crate::perm::{Cred, R, W};
use crate::props::{AclType, XattrMode};
use crate::zfs::Zfs;
use crate::znode::{Form, Znode};
use base::sync::RwLockExt;
use base::{bail, Kind, Result};
use disk::xattr::SaXattrs;
use dmu::Tx;
use std::sync::Arc;

/// Longest name, namespace included.
pub const NAME_MAX: usize = 255;
/// Longest value.
pub const VALUE_MAX: usize = 64 << 10;
/// Flags of setxattr(2).
pub const XATTR_CREATE: u32 = 1;
/// See [`XATTR_CREATE`].
pub const XATTR_REPLACE: u32 = 2;

/// What a name belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Space {
    User,
    Trusted,
    Security,
    AccessAcl,
    DefaultAcl,
}

/// The namespace of a name; refuses those that do not exist.
fn space_of(name: &[u8]) -> Result<Space> {
    if name.len() > NAME_MAX {
        return Err(Kind::Range.into());
    }
    let rest = |p: &[u8]| name.strip_prefix(p).is_some_and(|r| !r.is_empty());
    if name == XATTR_ACCESS {
        Ok(Space::AccessAcl)
    } else if name == XATTR_DEFAULT {
        Ok(Space::DefaultAcl)
    } else if rest(b"user.") {
        // `user.` + a reserved prefix could not be told from that prefix where the namespace is
        // not stored.
        let bare = &name[5..];
        if has_known_prefix(bare) {
            return Err(Kind::Invalid.into());
        }
        Ok(Space::User)
    } else if rest(b"trusted.") {
        Ok(Space::Trusted)
    } else if rest(b"security.") {
        Ok(Space::Security)
    } else if matches!(name, b"user." | b"trusted." | b"security.") {
        Err(Kind::Invalid.into())
    } else {
        Err(Kind::Unsupported.into())
    }
}

fn has_known_prefix(name: &[u8]) -> bool {
    [
        &b"freebsd:"[..],
        b"security.",
        b"system.",
        b"trusted.",
        b"user.",
    ]
    .iter()
    .any(|p| name.starts_with(p))
}

/// The other form a user attribute may be stored under: with and without `user.`.
fn twin(stored: &[u8]) -> Option<Vec<u8>> {
    if let Some(bare) = stored.strip_prefix(b"user.") {
        return Some(bare.to_vec());
    }
    (!has_known_prefix(stored)).then(|| [b"user.", stored].concat())
}

/// A stored name as Linux lists it; `None` for what belongs to other systems.
fn listed(stored: &[u8]) -> Option<Vec<u8>> {
    if stored.starts_with(b"freebsd:") {
        None
    } else if has_known_prefix(stored) {
        Some(stored.to_vec())
    } else {
        Some([b"user.", stored].concat())
    }
}

impl Zfs {
    /// The value of an attribute.
    pub fn getxattr(&self, z: &Znode, name: &[u8], cred: &Cred) -> Result<Vec<u8>> {
        let space = space_of(name)?;
        let p = self.props();
        match space {
            Space::User => {
                if p.xattr == XattrMode::Off {
                    return Err(Kind::Unsupported.into());
                }
                let m = z.mode();
                if !mode::is_reg(m) && !mode::is_dir(m) {
                    return Err(Kind::NoData.into());
                }
                self.check(z, R, cred)?;
            }
            Space::Trusted if !cred.privileged => return Err(Kind::NoData.into()),
            Space::AccessAcl | Space::DefaultAcl if p.acltype != AclType::Posix => {
                return Err(Kind::Unsupported.into())
            }
            _ => {}
        }
        if !z.may_have_xattrs() {
            return Err(Kind::NoData.into());
        }
        match self.xattr_raw(z, name)? {
            Some(v) => Ok(v),
            None => Err(Kind::NoData.into()),
        }
    }

    /// Names of all attributes the caller may know of.
    pub fn listxattr(&self, z: &Znode, cred: &Cred) -> Result<Vec<Vec<u8>>> {
        let p = self.props();
        let mut out: Vec<Vec<u8>> = Vec::new();
        if !z.may_have_xattrs() {
            return Ok(out);
        }
        let _x = z.xlock.acquire_read();
        let mut put = |stored: &[u8]| {
            let Some(n) = listed(stored) else { return };
            let hidden = match space_of(&n) {
                Ok(Space::Trusted) => !cred.privileged,
                Ok(Space::AccessAcl | Space::DefaultAcl) => p.acltype != AclType::Posix,
                Ok(Space::User) => p.xattr == XattrMode::Off,
                Ok(Space::Security) => false,
                Err(_) => true,
            };
            if !hidden && !out.contains(&n) {
                out.push(n);
            }
        };
        let extra = z.extra();
        if let Some(b) = &extra.dxattr {
            for (n, _) in &SaXattrs::unpack(b)?.list {
                put(n);
            }
        }
        if extra.xattr != 0 {
            let dir = self.get_any(extra.xattr)?;
            names::each(&dir.dnode, |n, _| {
                put(n);
                Ok(())
            })?;
        }
        Ok(out)
    }

    /// Sets an attribute. `flags`: [`XATTR_CREATE`], [`XATTR_REPLACE`]; `kill_sgid` as FUSE asks for
    /// with an access ACL.
    pub fn setxattr(
        &self,
        z: &Znode,
        name: &[u8],
        value: &[u8],
        flags: u32,
        kill_sgid: bool,
        cred: &Cred,
    ) -> Result<()> {
        let space = self.may_set(z, name, cred)?;
        if value.len() > VALUE_MAX {
            return Err(Kind::ArgTooBig.into());
        }
        if flags & (XATTR_CREATE | XATTR_REPLACE) != 0 {
            let there = z.may_have_xattrs() && self.xattr_raw(z, name)?.is_some();
            if flags & XATTR_CREATE != 0 && there {
                return Err(Kind::Exists.into());
            }
            if flags & XATTR_REPLACE != 0 && !there {
                return Err(Kind::NoData.into());
            }
        }
        match space {
            Space::AccessAcl | Space::DefaultAcl => {
                self.set_posix_acl(z, name, Some(value), kill_sgid, cred)?
            }
            _ => self.xattr_store(z, name, Some(value))?,
        }
        self.finish(Some(z.object))
    }

    /// Removes an attribute; `Kind::NoData` if there is none.
    pub fn removexattr(&self, z: &Znode, name: &[u8], cred: &Cred) -> Result<()> {
        match self.may_set(z, name, cred)? {
            Space::AccessAcl | Space::DefaultAcl => {
                self.set_posix_acl(z, name, None, false, cred)?
            }
            _ => {
                if !z.may_have_xattrs() {
                    return Err(Kind::NoData.into());
                }
                self.xattr_store(z, name, None)?
            }
        }
        self.finish(Some(z.object))
    }

    fn may_set(&self, z: &Znode, name: &[u8], cred: &Cred) -> Result<Space> {
        let space = space_of(name)?;
        let p = self.writable()?;
        let f = z.fixed();
        if f.flags & (flag::IMMUTABLE | flag::APPENDONLY) != 0 {
            return Err(Kind::NotPermitted.into());
        }
        match space {
            Space::User => {
                if p.xattr == XattrMode::Off {
                    return Err(Kind::Unsupported.into());
                }
                let m = f.mode32();
                if !mode::is_reg(m) && !mode::is_dir(m) {
                    return Err(Kind::NotPermitted.into());
                }
                if !cred.checked
                    && mode::is_dir(m)
                    && m & mode::STICKY != 0
                    && !cred.owns(f.uid32())
                {
                    return Err(Kind::NotPermitted.into());
                }
                self.check(z, W, cred)?;
            }
            Space::Trusted if !cred.privileged => return Err(Kind::NotPermitted.into()),
            Space::Security if !cred.checked && !cred.privileged => {
                return Err(Kind::NotPermitted.into())
            }
            Space::AccessAcl | Space::DefaultAcl if p.acltype != AclType::Posix => {
                bail!(Unsupported, "acltype is not posix")
            }
            _ => {}
        }
        Ok(space)
    }

    /// The stored value of a full name, without any check.
    pub(crate) fn xattr_raw(&self, z: &Znode, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let extra = z.extra();
        if extra.dxattr.is_none() && extra.xattr == 0 {
            return Ok(None);
        }
        let list = match &extra.dxattr {
            Some(b) => SaXattrs::unpack(b)?,
            None => SaXattrs::default(),
        };
        let mut forms = vec![name.to_vec()];
        if name.starts_with(b"user.") {
            forms.extend(twin(name));
        }
        for n in &forms {
            if let Some(v) = list.get(n) {
                return Ok(Some(v.to_vec()));
            }
            if extra.xattr != 0 {
                if let Some(v) = self.dir_get(extra.xattr, n)? {
                    return Ok(Some(v));
                }
            }
        }
        Ok(None)
    }

    fn dir_get(&self, dir: u64, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let dir = self.get_any(dir)?;
        let Some(v) = names::lookup(&dir.dnode, name)? else {
            return Ok(None);
        };
        let file = self.get_any(v & OBJECT_MASK)?;
        let size = file.size();
        if size > 16 << 20 {
            bail!(ArgTooBig, "extended attribute of {size} bytes");
        }
        let mut b = vec![0; size as usize];
        file.dnode.read(0, &mut b)?;
        Ok(Some(b))
    }

    /// Sets or removes an attribute, without any check.
    pub(crate) fn xattr_store(&self, z: &Znode, name: &[u8], value: Option<&[u8]>) -> Result<()> {
        let bytes = value.map_or(0, |v| v.len() as u64);
        if value.is_some() {
            let f = z.fixed();
            self.check_quota(f.uid, f.gid, z.extra().projid, false)?;
        }
        let _x = z.xlock.acquire_write();
        let tx = match value {
            Some(_) => self.tx_write(bytes + (64 << 10))?,
            None => self.tx_remove()?,
        };
        let had = self.xattr_put(&tx, z, name, value)?;
        if value.is_none() && !had {
            return Err(Kind::NoData.into());
        }
        Ok(())
    }

    /// Sets or removes an attribute inside a transaction; the caller has `xlock` (or the object is
    /// new). Returns whether there was one before.
    pub(crate) fn xattr_put(
        &self,
        tx: &Tx,
        z: &Znode,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<bool> {
        let p = self.props();
        let is_user = name.starts_with(b"user.");
        let stored = match name.strip_prefix(b"user.") {
            Some(bare) if p.xattr_compat => bare.to_vec(),
            _ => name.to_vec(),
        };
        let other = if is_user { twin(&stored) } else { None };
        let extra = z.extra();
        let mut had = false;
        let mut in_sa = match &extra.dxattr {
            Some(b) => SaXattrs::unpack(b)?,
            None => SaXattrs::default(),
        };
        // Wherever it was, under either form of its name.
        let mut sa_changed = false;
        for n in other.iter().chain([&stored]) {
            let replaces = value.is_some() && n == &stored;
            if in_sa.remove(n) {
                had = true;
                sa_changed = true;
                if !replaces {
                    self.log_sa(tx, z, n, None);
                }
            }
        }
        // A record of this kind was made for this form, whatever the property says by now.
        let sa_possible = (p.xattr != XattrMode::Dir || self.is_replaying())
            && self.uses_sa()
            && (z.form() == Form::Sa || !mode::is_lnk(z.mode()));
        let before = in_sa.clone();
        let to_sa = value.filter(|v| {
            in_sa.set(&stored, v.to_vec());
            sa_possible && in_sa.fits()
        });
        let mut placed = false;
        if to_sa.is_some() {
            match self.store_sa(tx, z, &in_sa) {
                Ok(()) => {
                    self.log_sa(tx, z, &stored, value);
                    placed = true;
                    sa_changed = false;
                }
                // Together with other attributes it is too much for a spill block.
                Err(e) if e.kind == Kind::FileTooBig => {}
                Err(e) => return Err(e),
            }
        }
        if sa_changed {
            self.store_sa(tx, z, &before)?;
            if value.is_some() {
                self.log_sa(tx, z, &stored, None);
            }
        }
        if extra.xattr != 0 {
            let dir = self.get_any(extra.xattr)?;
            for n in other.iter().chain([&stored]) {
                let keep = value.is_some() && !placed && n == &stored;
                if let Some(v) = names::lookup(&dir.dnode, n)? {
                    had = true;
                    if !keep {
                        let file = self.get_any(v & OBJECT_MASK)?;
                        self.entry_remove(tx, &dir, n, false)?;
                        self.link_drop(tx, &file)?;
                        let rec = Record::Remove {
                            dir: dir.object,
                            name: n.clone(),
                            is_dir: false,
                            object: file.object,
                        };
                        self.record(tx, rec);
                    }
                }
            }
        }
        if let (Some(v), false) = (value, placed) {
            self.dir_put(tx, z, &stored, v)?;
        }
        let now = self.now();
        z.update(tx, |f| {
            f.touch_state(now, self.fuids());
            Ok(())
        })?;
        Ok(had)
    }

    fn log_sa(&self, tx: &Tx, z: &Znode, name: &[u8], value: Option<&[u8]>) {
        let rec = Record::SetSaXattr {
            object: z.object,
            name: name.to_vec(),
            value: value.map(<[u8]>::to_vec),
        };
        self.record(tx, rec);
    }

    fn store_sa(&self, tx: &Tx, z: &Znode, list: &SaXattrs) -> Result<()> {
        let tables = self.tables()?;
        z.rewrite(tx, tables, |_, attrs| {
            let n = tables.numbers(tx)?.dxattr;
            if list.list.is_empty() {
                attrs.remove(n);
            } else {
                attrs.set(n, list.pack());
            }
            Ok(())
        })
    }

    /// Writes an attribute as a file in the hidden directory of the object.
    fn dir_put(&self, tx: &Tx, z: &Znode, name: &[u8], value: &[u8]) -> Result<()> {
        let dir = self.xattr_dir(tx, z)?;
        let now = self.now();
        let file = match names::lookup(&dir.dnode, name)? {
            Some(v) => {
                let file = self.get_any(v & OBJECT_MASK)?;
                file.dnode.free_range(tx, 0, u64::MAX)?;
                let rec = Record::Truncate {
                    object: file.object,
                    offset: 0,
                    len: 0,
                };
                self.record(tx, rec);
                file
            }
            None => {
                let f = z.fixed();
                let file = self.make_znode(
                    tx,
                    &self.hidden(tx.txg().number(), mode::REG | 0o644, &f, &dir, 0),
                )?;
                self.entry_add(tx, &dir, name, &file)?;
                let rec = Record::Create {
                    how: Made::File,
                    dir: dir.object,
                    name: name.to_vec(),
                    new: self.new_file(&file),
                    target: Vec::new(),
                };
                self.record(tx, rec);
                file
            }
        };
        let i = file.dnode.info();
        let len = value.len().next_multiple_of(512).max(512);
        if len > i.block_size && i.max_blkid == 0 && len <= self.props().recordsize.max(512) {
            file.dnode.set_block_size(tx, len)?;
        }
        // A value longer than a record needs a block size that may repeat.
        if value.len() > file.dnode.info().block_size
            && !file.dnode.info().block_size.is_power_of_two()
        {
            let size = file.dnode.info().block_size.next_power_of_two();
            file.dnode.set_block_size(tx, size)?;
        }
        file.dnode.write(tx, 0, value)?;
        let gen = file.update(tx, |f| {
            f.size = value.len() as u64;
            f.touch_content(now, self.fuids());
            Ok(f.gen)
        })?;
        if !value.is_empty() {
            let rec = Record::Write {
                object: file.object,
                gen,
                offset: 0,
                len: value.len() as u64,
                block: file.dnode.info().block_size as u32,
                // Ordered: an fsync of the object must bring its attributes along.
                sync: true,
            };
            self.record(tx, rec);
        }
        Ok(())
    }

    fn hidden<'a>(
        &self,
        gen: u64,
        m: u32,
        owner: &crate::znode::Fixed,
        parent: &Znode,
        dir_entries: u64,
    ) -> Spec<'a> {
        let dir = mode::is_dir(m);
        Spec {
            mode: m,
            uid: owner.uid,
            gid: owner.gid,
            gen,
            times: self.now(),
            size: dir_entries,
            links: if dir { 2 } else { 1 },
            parent: Some(parent.object),
            flags: flag::XATTR | if dir { flag::ACL_AUTO_INHERIT } else { 0 },
            projid: (self.uses_sa() && self.props().project_quota).then_some(parent.extra().projid),
            rdev: 0,
            target: &[],
            slots: 1,
            object: None,
            fuids: self.fuids(),
            list: None,
        }
    }

    /// The hidden directory as a log record has it.
    pub(crate) fn hidden_replay<'a>(&self, owner: &Znode, r: &Replayed) -> Spec<'a> {
        self.hidden_of(mode::DIR | mode::STICKY | 0o777, owner, r)
    }

    fn hidden_of<'a>(&self, m: u32, parent: &Znode, r: &Replayed) -> Spec<'a> {
        let mut f = parent.fixed();
        (f.uid, f.gid) = (r.uid, r.gid);
        let size = if mode::is_dir(m) { 2 } else { 0 };
        Spec {
            gen: r.gen.number(),
            times: r.crtime,
            slots: r.slots,
            object: Some(r.object),
            ..self.hidden(r.gen.number(), m, &f, parent, size)
        }
    }

    /// Makes a file in a hidden directory as a log record has it.
    pub(crate) fn replay_hidden_file(
        &self,
        dir: &Znode,
        name: &[u8],
        r: &Replayed,
        m: u32,
        rec: &Record,
    ) -> Result<()> {
        let tx = self.tx_meta()?;
        let file = self.make_znode(&tx, &self.hidden_of(m, dir, r))?;
        self.entry_add(&tx, dir, name, &file)?;
        self.record(&tx, rec.clone());
        Ok(())
    }

    /// The hidden directory and the files in it, if there are any.
    pub(crate) fn xattr_objects(&self, z: &Znode) -> Result<Vec<Arc<Znode>>> {
        let dir = match z.extra().xattr {
            0 => return Ok(Vec::new()),
            object => self.get_any(object)?,
        };
        let mut objects = Vec::new();
        self.readdir(&dir, 0, |e| {
            if e.name != b"." && e.name != b".." {
                objects.push(e.object);
            }
            Ok(true)
        })?;
        let files = objects.into_iter().map(|o| self.get_any(o));
        let mut all = files.collect::<Result<Vec<_>>>()?;
        all.push(dir);
        Ok(all)
    }

    /// The hidden directory, made if there is none.
    pub(crate) fn xattr_dir(&self, tx: &Tx, z: &Znode) -> Result<Arc<Znode>> {
        let have = z.extra().xattr;
        if have != 0 {
            return self.get_any(have);
        }
        let f = z.fixed();
        let spec = self.hidden(
            tx.txg().number(),
            mode::DIR | mode::STICKY | 0o777,
            &f,
            z,
            2,
        );
        let dir = self.make_znode(tx, &spec)?;
        self.set_xattr_dir(tx, z, dir.object)?;
        let rec = Record::Create {
            how: Made::XattrDir,
            dir: z.object,
            name: Vec::new(),
            new: self.new_file(&dir),
            target: Vec::new(),
        };
        self.record(tx, rec);
        Ok(dir)
    }

    pub(crate) fn set_xattr_dir(&self, tx: &Tx, z: &Znode, object: u64) -> Result<()> {
        match z.form() {
            Form::Legacy => z.set_legacy_xattr(tx, object),
            Form::Sa => {
                let tables = self.tables()?;
                z.rewrite(tx, tables, |_, attrs| {
                    attrs.set_u64(tables.numbers(tx)?.xattr, object);
                    Ok(())
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_their_spaces() {
        assert_eq!(space_of(b"user.a").unwrap(), Space::User);
        assert_eq!(space_of(b"trusted.a").unwrap(), Space::Trusted);
        assert_eq!(space_of(b"security.selinux").unwrap(), Space::Security);
        assert_eq!(space_of(XATTR_ACCESS).unwrap(), Space::AccessAcl);
        assert_eq!(space_of(XATTR_DEFAULT).unwrap(), Space::DefaultAcl);
        for (n, k) in [
            (&b"user."[..], Kind::Invalid),
            (b"user.trusted.x", Kind::Invalid),
            (b"system.nfs4_acl", Kind::Unsupported),
            (b"plain", Kind::Unsupported),
        ] {
            assert_eq!(space_of(n).unwrap_err().kind, k);
        }
        let long = [&b"user."[..], &[b'x'; 251]].concat();
        assert_eq!(space_of(&long).unwrap_err().kind, Kind::Range);
        assert!(space_of(&long[..255]).is_ok());
        assert_eq!(listed(b"plain").unwrap(), b"user.plain");
        assert_eq!(listed(b"security.x").unwrap(), b"security.x");
        assert_eq!(listed(b"freebsd:system:x"), None);
        assert_eq!(twin(b"user.x").unwrap(), b"x");
        assert_eq!(twin(b"x").unwrap(), b"user.x");
        assert_eq!(twin(b"trusted.x"), None);
    }
}
