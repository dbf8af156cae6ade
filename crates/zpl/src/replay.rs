//! Replay: applies the records of the intent log to the file system (pool format §26.3, §26.4).

use crate::attr::{mode, SetAttr, SetTime};
use crate::dir::{New, Replayed};
use crate::file::WriteOpts;
use crate::log::{Extended, Made, NewFile, Record, RenameKind};
use crate::perm::Cred;
use crate::rename::flags;
use crate::zfs::Zfs;
use crate::znode::Znode;
use base::sync::RwLockExt;
use base::{Kind, Result, Txg};
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// Where a replayed write gets its bytes from.
pub enum ReplayData<'a> {
    /// The record's own bytes.
    Copied(&'a [u8]),
    /// A whole block of the file, written before the crash; the record covers a part of it.
    Block {
        /// Where the block begins in the file, bytes.
        offset: u64,
        /// All bytes of the block.
        data: &'a [u8],
    },
}

impl Zfs {
    /// Between these the log is replayed: nothing is logged, `readonly` does not count.
    pub fn begin_replay(&self) {
        self.replaying.store(true, Ordering::Release);
    }

    /// See [`Zfs::begin_replay`].
    pub fn end_replay(&self) {
        self.replaying.store(false, Ordering::Release);
    }

    /// Replays one record; `data` belongs to writes. Records about objects that no longer exist
    /// succeed where the format says they may be out of order.
    pub fn replay(&self, rec: &Record, data: Option<ReplayData<'_>>) -> Result<()> {
        let r = self.replay_one(rec, data);
        let may_be_gone = matches!(
            rec,
            Record::Write { .. }
                | Record::Truncate { .. }
                | Record::SetAttr { .. }
                | Record::SetAcl { .. }
                | Record::SetSaXattr { .. }
        );
        match r {
            Err(e) if may_be_gone && matches!(e.kind, Kind::NotFound | Kind::Stale) => Ok(()),
            // It was refused, or cannot be done any more, because of damage in that file, which is on
            // record. The others must not wait for it. An error of a device is no damage: it may be gone
            // the next time, and what is passed over now is lost.
            Err(e) if may_be_gone && e.is_wrong_content() => Ok(()),
            r => r,
        }
    }

    fn replay_one(&self, rec: &Record, data: Option<ReplayData<'_>>) -> Result<()> {
        let root = Cred::root();
        match rec {
            Record::Create { .. } => self.replay_create(rec, &root),
            Record::Remove {
                dir, name, is_dir, ..
            } => {
                let d = self.get(*dir)?;
                if *is_dir {
                    self.rmdir(&d, name, &root)
                } else {
                    self.unlink(&d, name, &root)
                }
            }
            Record::Link { dir, object, name } => {
                let d = self.get(*dir)?;
                self.link(&self.get(*object)?, &d, name, &root)
            }
            Record::Rename {
                kind,
                from_dir,
                to_dir,
                from,
                to,
                ..
            } => {
                let (f, t) = (self.get(*from_dir)?, self.get(*to_dir)?);
                let (how, whiteout) = match kind {
                    RenameKind::Plain => (0, None),
                    RenameKind::Exchange(_) => (flags::EXCHANGE, None),
                    RenameKind::Whiteout(n) => (flags::WHITEOUT, Some(replayed(n))),
                };
                self.rename_as(&f, from, &t, to, how, whiteout.as_ref(), &root)
            }
            Record::Write {
                object,
                offset,
                len,
                ..
            } => self.replay_write(*object, *offset, *len, data),
            Record::Truncate {
                object,
                offset,
                len,
            } => {
                let z = self.get(*object)?;
                if *len == 0 {
                    self.set_size(&z, *offset, false)
                } else {
                    let _g = z.range.whole();
                    self.zero_range(&z, *offset, offset.saturating_add(*len))
                }
            }
            Record::SetAttr {
                object,
                mode,
                uid,
                gid,
                size,
                atime,
                mtime,
                ctime,
                extended,
            } => {
                let z = self.get(*object)?;
                let set = SetAttr {
                    mode: *mode,
                    uid: *uid,
                    gid: *gid,
                    size: *size,
                    atime: atime.map(SetTime::To),
                    mtime: mtime.map(SetTime::To),
                    ctime: *ctime,
                    ..SetAttr::default()
                };
                if set != SetAttr::default() {
                    self.setattr(&z, &set, &root)?;
                }
                if let Some(Extended {
                    flags,
                    mask,
                    projid,
                }) = extended
                {
                    if let Some(f) = flags {
                        self.change_flags(&z, *f, *mask)?;
                    }
                    if let Some(p) = projid {
                        self.set_project(&z, *p, &root)?;
                    }
                }
                Ok(())
            }
            Record::SetAcl {
                object,
                aces,
                flags,
                ..
            } => {
                let z = self.get(*object)?;
                let tx = self.tx_write(aces.len() as u64 + (32 << 10))?;
                self.set_nfs4_acl(&tx, &z, aces, *flags)?;
                self.record(&tx, rec.clone());
                Ok(())
            }
            Record::SetSaXattr {
                object,
                name,
                value,
            } => {
                let z = self.get(*object)?;
                match self.xattr_store(&z, name, value.as_deref()) {
                    Err(e) if e.kind == Kind::NoData => Ok(()),
                    r => r,
                }
            }
        }
    }

    fn replay_create(&self, rec: &Record, root: &Cred) -> Result<()> {
        let Record::Create {
            how,
            dir,
            name,
            new,
            target,
        } = rec
        else {
            return Err(Kind::Invalid.into());
        };
        let d = self.get(*dir)?;
        if self.was_created(&d, *how, name, new)? {
            return Ok(());
        }
        let r = replayed(new);
        if *how == Made::XattrDir {
            let _x = d.xlock.acquire_write();
            let tx = self.tx_meta()?;
            let spec = self.hidden_replay(&d, &r);
            let x = self.make_znode(&tx, &spec)?;
            self.set_xattr_dir(&tx, &d, x.object)?;
            self.record(&tx, rec.clone());
            return Ok(());
        }
        if d.fixed().flags & crate::attr::flag::XATTR != 0 {
            return self.replay_hidden_file(&d, name, &r, new.mode as u32, rec);
        }
        let what = New {
            mode: new.mode as u32,
            umask: 0,
            rdev: 0,
            target,
            replay: Some(&r),
        };
        self.create(&d, name, &what, root).map(|_| ())
    }

    /// Whether an earlier replay, which did not come to the end of the record, has made the object.
    fn was_created(&self, d: &Arc<Znode>, how: Made, name: &[u8], new: &NewFile) -> Result<bool> {
        let found = match how {
            Made::XattrDir => d.extra().xattr,
            _ => self.find(d, name)?.map_or(0, |(object, _)| object),
        };
        Ok(found == new.object && found != 0 && self.get_any(found)?.fixed().gen == new.gen)
    }

    fn replay_write(
        &self,
        object: u64,
        offset: u64,
        len: u64,
        data: Option<ReplayData<'_>>,
    ) -> Result<()> {
        let z = self.get(object)?;
        if !mode::is_reg(z.mode()) {
            return Err(Kind::NotFound.into());
        }
        let zeros;
        let (at, bytes) = match data {
            Some(ReplayData::Copied(b)) => (offset, b),
            Some(ReplayData::Block { offset, data }) => (offset, data),
            None => {
                zeros = vec![0; len.min(base::MAX_BLOCK as u64) as usize];
                (offset, &zeros[..])
            }
        };
        // A whole block is written; the file ends where the record says. Both are one transaction, so that
        // a replay that was interrupted leaves nothing that a second one would take for the size.
        let opts = WriteOpts {
            most: Some(offset.saturating_add(len)),
            ..WriteOpts::default()
        };
        let mut done = 0;
        while done < bytes.len() {
            match self.write(&z, at + done as u64, &bytes[done..], opts)? {
                0 => return Err(Kind::NoSpace.into()),
                n => done += n,
            }
        }
        Ok(())
    }

    /// Extends the size without writing (records of writes whose data came with an earlier block).
    pub fn replay_extend(&self, object: u64, end: u64) -> Result<()> {
        let z = match self.get(object) {
            Err(e) if matches!(e.kind, Kind::NotFound | Kind::Stale) => return Ok(()),
            r => r?,
        };
        if z.size() < end {
            self.set_size_only(&z, end)?;
        }
        Ok(())
    }

    /// Zeroes what a file has in memory and on disk between its end and `end`.
    pub(crate) fn clean_behind(&self, object: u64, end: u64) -> Result<()> {
        let z = self.get(object)?;
        let _g = z.range.whole();
        let size = z.size();
        if mode::is_reg(z.mode()) && size < end {
            z.dnode.check_free(size, u64::MAX)?;
            let tx = self.tx_free()?;
            z.dnode.free_range(&tx, size, u64::MAX)?;
        }
        Ok(())
    }

    fn set_size_only(&self, z: &crate::Znode, size: u64) -> Result<()> {
        let tx = self.tx_meta()?;
        z.update(&tx, |f| {
            f.size = size;
            Ok(())
        })?;
        let rec = Record::Truncate {
            object: z.object,
            offset: size,
            len: 0,
        };
        self.record(&tx, rec);
        Ok(())
    }
}

fn replayed(n: &NewFile) -> Replayed {
    Replayed {
        object: n.object,
        slots: n.slots,
        uid: n.uid,
        gid: n.gid,
        gen: Txg::new(n.gen),
        crtime: n.crtime,
        rdev: n.rdev,
    }
}
