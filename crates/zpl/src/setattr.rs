//! Changing attributes: chmod, chown, times, size, chattr flags, project ids.

use crate::acl::XATTR_ACCESS;
use crate::attr::{dos_flag, flag, fs_flag, mode, Attr, SetAttr, SetTime};
use crate::log::{Extended, Record};
use crate::perm::{self, Cred, W};
use crate::props::AclMode;
use crate::space_info::Whose;
use crate::zfs::Zfs;
use crate::znode::Znode;
use base::sync::RwLockExt;
use base::{bail, Error, Kind, Result};

impl Zfs {
    /// What stat(2) shows.
    pub fn getattr(&self, z: &Znode) -> Attr {
        z.attr(self.devices)
    }

    /// Changes what `set` says, all of it or (if a rule forbids something) nothing; returns the
    /// attributes afterwards.
    pub fn setattr(&self, z: &Znode, set: &SetAttr, cred: &Cred) -> Result<Attr> {
        let p = self.writable_since(set.written_back)?;
        let f = z.fixed();
        let m = f.mode32();
        let (uid, gid) = (f.uid32(), f.gid32());
        let explicit = |t: Option<SetTime>| matches!(t, Some(SetTime::To(_)));
        // A kernel that keeps the times itself says what "now" is: the new ctime, to the nanosecond.
        let now = |t: Option<SetTime>| set.ctime.is_some_and(|c| t == Some(SetTime::To(c)));
        let sets_times = explicit(set.atime) || explicit(set.mtime) && !now(set.mtime);
        let touches = set.atime.is_some() || set.mtime.is_some();
        let of_owner = set.mode.is_some() || set.uid.is_some() || set.gid.is_some() || sets_times;
        let free = set.written_back;
        let forbids = |flag| !free && self.forbids(f.flags, flag);
        if forbids(flag::IMMUTABLE) && (of_owner || touches || set.size.is_some()) {
            return Err(Kind::NotPermitted.into());
        }
        if forbids(flag::APPENDONLY) && (of_owner || set.size.is_some()) {
            return Err(Kind::NotPermitted.into());
        }
        if f.flags & flag::READONLY != 0 && set.size.is_some() && !cred.privileged {
            return Err(Kind::NotPermitted.into());
        }
        if set.size.is_some() {
            match m & mode::FMT {
                mode::REG => {}
                mode::DIR => return Err(Kind::IsDir.into()),
                _ => return Err(Kind::Invalid.into()),
            }
        }
        let mut bits = set.mode.map(|b| b & mode::PERM);
        if bits.is_some() && mode::is_lnk(m) {
            bail!(Unsupported, "symbolic links have no mode of their own");
        }
        let plain = f.flags & flag::ACL_TRIVIAL != 0;
        if bits.is_some() && p.aclmode == AclMode::Restricted && !plain && !self.is_replaying() {
            return Err(Error::new(
                Kind::NotPermitted,
                "aclmode=restricted, and the list says more than the mode",
            ));
        }
        if !cred.checked {
            if let Some(b) = bits {
                let group = set.gid.unwrap_or(gid);
                bits = Some(perm::chmod(cred, uid, group, b)?);
            }
            perm::chown(cred, uid, gid, set.uid, set.gid)?;
            if sets_times && !free && !cred.owns(uid) {
                return Err(Kind::NotPermitted.into());
            }
            if touches && !sets_times && !cred.owns(uid) {
                self.access(z, W, cred)?;
            }
            if set.size.is_some() && !set.through_handle {
                self.access(z, W, cred)?;
            }
        }
        let new_uid = set.uid.filter(|u| *u != uid || f.uid >> 32 != 0);
        let new_gid = set.gid.filter(|g| *g != gid || f.gid >> 32 != 0);
        if new_uid.is_some() || new_gid.is_some() {
            let u = new_uid.map_or(f.uid, u64::from);
            let g = new_gid.map_or(f.gid, u64::from);
            // Only who gets the file can be over the limit by it.
            self.check_owner_quota(new_uid.map(|_| u), new_gid.map(|_| g))?;
            // Before the file itself, as with projects: its record does it again after a crash.
            for hidden in self.xattr_objects(z)? {
                self.move_owner(&hidden, u, g)?;
            }
        }
        if let Some(size) = set.size {
            let kill = set.kill_suidgid || (!cred.checked && !cred.privileged);
            self.set_size(z, size, kill)?;
        }
        // A request that names nothing (but ctime) is what remains of chown(-1, -1), which clears
        // set-id bits like any other chown.
        let nothing = SetAttr {
            ctime: None,
            ..*set
        } == SetAttr::default();
        let changes_owner = set.uid.is_some() || set.gid.is_some() || nothing;
        if bits.is_none() && changes_owner {
            let killed = perm::mode_after_chown(cred, m, gid);
            if killed != m {
                bits = Some(killed & mode::PERM);
            }
        }
        let rest = bits.is_some() || changes_owner || touches || set.ctime.is_some();
        let kill_only = set.kill_suidgid && set.size.is_none() && bits.is_none();
        if rest || kill_only {
            if kill_only {
                bits = crate::acl::killed(&f);
            }
            self.apply(z, set, bits, new_uid, new_gid)?;
        }
        self.finish(Some(z.object))?;
        Ok(self.getattr(z))
    }

    fn apply(
        &self,
        z: &Znode,
        set: &SetAttr,
        bits: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<()> {
        let now = self.now();
        let fuids = self.fuids();
        let _x = z.xlock.acquire_write();
        // Read before the transaction begins.
        let acl = match bits {
            Some(_) => self.posix_acl(z, false)?,
            None => None,
        };
        let p = self.props();
        let f = z.fixed();
        let new_uid = uid.map_or(f.uid, u64::from);
        let new_gid = gid.map_or(f.gid, u64::from);
        let list = match bits {
            Some(b) => self.list_after_chmod(&p, z, b, new_uid, new_gid)?,
            None => None,
        };
        let by_owner = match list {
            Some(_) => None,
            None => self.mode_after_chown(&p, z, new_uid, new_gid)?,
        };
        let tx = match &list {
            Some(l) if l.flags & flag::ACL_TRIVIAL == 0 => self.tx_write(64 << 10)?,
            _ => self.tx_meta()?,
        };
        let time = |t: SetTime| match t {
            SetTime::Now => now,
            SetTime::To(t) => t,
        };
        let more = |f: &mut crate::znode::Fixed| {
            if let Some(u) = uid {
                f.uid = u64::from(u);
            }
            if let Some(g) = gid {
                f.gid = u64::from(g);
            }
            if let Some(t) = set.atime {
                f.atime = time(t);
            }
            if let Some(t) = set.mtime {
                f.mtime = time(t);
                if fuids {
                    f.flags |= flag::ARCHIVE | flag::AV_MODIFIED;
                }
            }
            if let Some((perm, execs)) = by_owner {
                f.mode = f.mode & !0o777 | u64::from(perm);
                f.flags = f.flags & !flag::NO_EXECS_DENIED | execs;
            }
            f.touch_state(set.ctime.unwrap_or(now), fuids);
        };
        match bits {
            Some(b) => {
                self.change_mode(&tx, z, b, list, more)?;
                if let Some(mut a) = acl {
                    a.chmod(b);
                    self.xattr_put(&tx, z, XATTR_ACCESS, Some(&a.encode()))?;
                }
            }
            None => z.update(&tx, |f| {
                more(f);
                Ok(())
            })?,
        }
        let logged = SetAttr {
            mode: bits,
            uid: uid.or(set.uid),
            gid: gid.or(set.gid),
            size: None,
            ..*set
        };
        self.record(&tx, Record::set_attr(z, &logged));
        Ok(())
    }

    /// `chattr` flags. Only root may change immutable and append-only.
    pub fn set_fs_flags(&self, z: &Znode, flags: u32, cred: &Cred) -> Result<()> {
        self.writable()?;
        let f = z.fixed();
        if !cred.owns(f.uid32()) {
            return Err(Kind::NotPermitted.into());
        }
        if flags & !fs_flag::ALL != 0 {
            bail!(Unsupported, "flags {flags:#x} are not known");
        }
        let old = fs_flag::from_znode(f.flags);
        let guarded = fs_flag::IMMUTABLE | fs_flag::APPEND;
        if (old ^ flags) & guarded != 0 && !cred.privileged {
            return Err(Kind::NotPermitted.into());
        }
        if !self.fuids() {
            bail!(Unsupported, "flags need file system version 3");
        }
        if flags & fs_flag::PROJINHERIT != 0 && !self.uses_sa() {
            bail!(Unsupported, "projects need file system version 5");
        }
        let mask = fs_flag::to_znode(0, fs_flag::ALL);
        self.change_flags(z, fs_flag::to_znode(0, flags), mask)
    }

    /// DOS flags, [`dos_flag`].
    pub fn dos_flags(&self, z: &Znode) -> u64 {
        z.fixed().flags & dos_flag::ALL
    }

    /// Sets the DOS flags. Only root may change immutable and append-only.
    pub fn set_dos_flags(&self, z: &Znode, flags: u64, cred: &Cred) -> Result<()> {
        self.writable()?;
        if flags & !dos_flag::ALL != 0 {
            bail!(Unsupported, "flags {flags:#x} are not known");
        }
        let f = z.fixed();
        let guarded = flag::IMMUTABLE | flag::APPENDONLY;
        if (f.flags ^ flags) & guarded != 0 && !cred.privileged {
            return Err(Kind::NotPermitted.into());
        }
        if !cred.owns(f.uid32()) {
            return Err(Kind::Access.into());
        }
        if !self.fuids() {
            bail!(Unsupported, "flags need file system version 3");
        }
        self.change_flags(z, flags, dos_flag::ALL)
    }

    /// Sets the flags of `mask` to `flags`, without any check.
    pub(crate) fn change_flags(&self, z: &Znode, flags: u64, mask: u64) -> Result<()> {
        let now = self.now();
        let tx = self.tx_meta()?;
        z.update(&tx, |f| {
            f.flags = f.flags & !mask | flags & mask;
            f.touch_state(now, true);
            // What touching has set counts less than what was asked for.
            f.flags = f.flags & !mask | flags & mask;
            Ok(())
        })?;
        self.record(&tx, Record::extended(z, Some((flags, mask)), None));
        drop(tx);
        self.finish(Some(z.object))
    }

    /// Project id (`chattr -p`).
    pub fn set_project(&self, z: &Znode, project: u32, cred: &Cred) -> Result<()> {
        let p = self.writable()?;
        let f = z.fixed();
        if !cred.owns(f.uid32()) {
            return Err(Kind::NotPermitted.into());
        }
        if project == u32::MAX {
            return Err(Kind::Invalid.into());
        }
        if !p.project_quota {
            bail!(Unsupported, "feature project_quota is not enabled");
        }
        let id = u64::from(project);
        let had = f.flags & flag::PROJID != 0 && z.extra().projid == id;
        if !had && id != crate::quota::DEFAULT_PROJECT {
            self.check_one_quota(Whose::Project, id, true)?;
        }
        // Before the file itself: what a crash leaves undone is done by trying again, or by the
        // record of the file.
        for hidden in self.xattr_objects(z)? {
            self.move_project(&hidden, project, false)?;
        }
        self.move_project(z, project, true)?;
        self.finish(Some(z.object))
    }

    fn move_project(&self, z: &Znode, project: u32, logged: bool) -> Result<()> {
        let tables = self.tables()?;
        let _x = z.xlock.acquire_write();
        let now = self.now();
        let tx = self.tx_meta()?;
        z.rewrite(&tx, tables, |f, list| {
            let n = tables.numbers(&tx)?;
            f.touch_state(now, true);
            if f.flags & flag::PROJID != 0 {
                list.set_u64(n.projid, u64::from(project));
            } else {
                // The id has a fixed place right behind the twelve (§19.3).
                list.remove(n.projid);
                let at = list
                    .list
                    .iter()
                    .position(|a| a.0 == n.links)
                    .map_or(0, |i| i + 1);
                list.list
                    .insert(at, (n.projid, u64::from(project).to_le_bytes().to_vec()));
                f.flags |= flag::PROJID;
            }
            Ok(())
        })?;
        if logged {
            self.record(&tx, Record::extended(z, None, Some(project)));
        }
        Ok(())
    }

    /// Has what hides behind a file (its directory of extended attributes, and the files in it) belong to
    /// the file's owner, so that the space counts as his.
    fn move_owner(&self, z: &Znode, uid: u64, gid: u64) -> Result<()> {
        let _x = z.xlock.acquire_write();
        let f = z.fixed();
        if (f.uid, f.gid) == (uid, gid) {
            return Ok(());
        }
        let tx = self.tx_meta()?;
        z.update(&tx, |f| {
            (f.uid, f.gid) = (uid, gid);
            Ok(())
        })
    }

    fn check_owner_quota(&self, uid: Option<u64>, gid: Option<u64>) -> Result<()> {
        for (whose, id) in [(Whose::User, uid), (Whose::Group, gid)] {
            if let Some(id) = id {
                self.check_one_quota(whose, id, true)?;
            }
        }
        Ok(())
    }
}

impl Record {
    /// `flags`: values and which flags are meant.
    fn extended(z: &Znode, flags: Option<(u64, u64)>, projid: Option<u32>) -> Record {
        Record::SetAttr {
            object: z.object,
            mode: None,
            uid: None,
            gid: None,
            size: None,
            atime: None,
            mtime: None,
            ctime: None,
            extended: Some(Extended {
                flags: flags.map(|f| f.0),
                mask: flags.map_or(0, |f| f.1),
                projid,
            }),
        }
    }
}
