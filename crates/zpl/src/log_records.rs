//! Records of this layer to and from their form in the log (pool format §26.4).

use crate::attr::{flag, Time};
use crate::log::{Extended, Made, NewFile, Record, RenameKind};
use base::{Error, Kind, Result};
use disk::zil::{setattr, xat, Body, Create, CreateKind, Xvattr};

/// Words of the attribute bitmap that current software writes.
const BITMAP: usize = 3;

/// Bits of a SETATTR mask as Solaris has them; the old zfs-fuse writes these.
mod solaris {
    pub const MODE: u64 = 0x2;
    pub const UID: u64 = 0x4;
    pub const GID: u64 = 0x8;
    pub const SIZE: u64 = 0x80;
    pub const ATIME: u64 = 0x100;
    pub const MTIME: u64 = 0x200;
    pub const CTIME: u64 = 0x400;
    pub const XVATTR: u64 = 0x10000;
}

/// Znode flags and the attributes that stand for them.
const FLAGS: [(u64, u64); 12] = [
    (flag::READONLY, xat::READONLY),
    (flag::HIDDEN, xat::HIDDEN),
    (flag::SYSTEM, xat::SYSTEM),
    (flag::ARCHIVE, xat::ARCHIVE),
    (flag::IMMUTABLE, xat::IMMUTABLE),
    (flag::NOUNLINK, xat::NOUNLINK),
    (flag::APPENDONLY, xat::APPENDONLY),
    (flag::NODUMP, xat::NODUMP),
    (flag::REPARSE, xat::REPARSE),
    (flag::OFFLINE, xat::OFFLINE),
    (flag::SPARSE, xat::SPARSE),
    (flag::PROJINHERIT, xat::PROJINHERIT),
];

fn pair(t: Time) -> [u64; 2] {
    [t.sec as u64, u64::from(t.nsec)]
}

fn unpair(t: [u64; 2]) -> Time {
    Time::from_words(t[0], t[1])
}

/// SETATTR mask in the bits of Linux. Linux always says CTIME (0x40) or MODE (0x1), which in Solaris'
/// numbering are never set; Solaris' own high bits are never set by Linux. What is left are masks of
/// pools without feature flags, which Solaris' descendants write.
fn linux_mask(mask: u64, pool_version: u64) -> u64 {
    let linux = setattr::MODE | setattr::CTIME | setattr::XVATTR;
    let high = solaris::SIZE | solaris::ATIME | solaris::MTIME | solaris::CTIME | solaris::XVATTR;
    if mask & linux != 0 || (mask & high == 0 && pool_version > 28) {
        return mask;
    }
    [
        (solaris::MODE, setattr::MODE),
        (solaris::UID, setattr::UID),
        (solaris::GID, setattr::GID),
        (solaris::SIZE, setattr::SIZE),
        (solaris::ATIME, setattr::ATIME),
        (solaris::MTIME, setattr::MTIME),
        (solaris::CTIME, setattr::CTIME),
        (solaris::XVATTR, setattr::XVATTR),
    ]
    .iter()
    .filter(|m| mask & m.0 != 0)
    .fold(0, |a, m| a | m.1)
}

fn to_xvattr(e: &Extended) -> Xvattr {
    let (mut request, mut attrs) = (0, 0);
    if let Some(f) = e.flags {
        for (bits, bit) in FLAGS {
            if e.mask & bits == 0 {
                continue;
            }
            request |= bit;
            if f & bits != 0 {
                attrs |= bit;
            }
        }
    }
    let mut scanstamp = [0; 32];
    if let Some(p) = e.projid {
        request |= xat::PROJID;
        attrs |= xat::PROJID;
        scanstamp[..8].copy_from_slice(&u64::from(p).to_le_bytes());
    }
    let mut words = vec![0; BITMAP];
    words[0] = request as u32;
    Xvattr {
        request: words,
        attrs,
        crtime: [0; 2],
        scanstamp,
    }
}

/// The part of an attribute section that Linux can set. `old` are the object's flags as they are.
fn from_xvattr(x: &Xvattr) -> Extended {
    let request = u64::from(x.request.first().copied().unwrap_or(0));
    let mut mask = 0;
    let mut set = 0;
    for (bits, bit) in FLAGS {
        if request & bit != 0 {
            mask |= bits;
            if x.attrs & bit != 0 {
                set |= bits;
            }
        }
    }
    let mut word = [0; 8];
    word.copy_from_slice(&x.scanstamp[..8]);
    Extended {
        flags: (mask != 0).then_some(set),
        mask,
        projid: (request & xat::PROJID != 0).then_some(u64::from_le_bytes(word) as u32),
    }
}

impl Record {
    /// The record's form in the log. `None` for writes (their data decide), and for what no record
    /// can say: the txg must be waited for then.
    pub fn to_body(&self) -> Option<Body> {
        Some(match self.clone() {
            Record::Create {
                how,
                dir,
                name,
                new,
                target,
            } => create_body(how, dir, name, new, target),
            Record::Remove {
                dir, name, is_dir, ..
            } => Body::Remove {
                dir: is_dir,
                parent: dir,
                name,
            },
            Record::Link { dir, object, name } => Body::Link {
                parent: dir,
                object,
                name,
            },
            Record::Rename {
                kind,
                from_dir,
                to_dir,
                from,
                to,
                ..
            } => match kind {
                RenameKind::Plain | RenameKind::Exchange(_) => Body::Rename {
                    exchange: kind != RenameKind::Plain,
                    source_dir: from_dir,
                    target_dir: to_dir,
                    source: from,
                    target: to,
                },
                RenameKind::Whiteout(w) => whiteout_body([from_dir, to_dir], [from, to], w),
            },
            Record::Write { .. } => return None,
            Record::Truncate {
                object,
                offset,
                len,
            } => Body::Truncate {
                object,
                offset,
                length: len,
            },
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
                let mask = [
                    (mode.is_some(), setattr::MODE),
                    (uid.is_some(), setattr::UID),
                    (gid.is_some(), setattr::GID),
                    (size.is_some(), setattr::SIZE),
                    (atime.is_some(), setattr::ATIME),
                    (mtime.is_some(), setattr::MTIME),
                    (extended.is_some(), setattr::XVATTR),
                ]
                .iter()
                .filter(|m| m.0)
                .fold(setattr::CTIME, |a, m| a | m.1);
                // There is no place for ctime in the record; replay sets the time it happens.
                let _ = ctime;
                Body::SetAttr {
                    object,
                    mask,
                    mode: u64::from(mode.unwrap_or(0)),
                    uid: u64::from(uid.unwrap_or(0)),
                    gid: u64::from(gid.unwrap_or(0)),
                    size: size.unwrap_or(0),
                    atime: atime.map_or([0; 2], pair),
                    mtime: mtime.map_or([0; 2], pair),
                    xvattr: extended.as_ref().map(to_xvattr),
                    domains: Vec::new(),
                }
            }
            Record::SetAcl {
                object,
                aces,
                count,
                flags,
            } => Body::Acl {
                object,
                acl: disk::zil::LogAcl {
                    aces,
                    ace_count: count,
                    flags,
                    ..Default::default()
                },
            },
            // An empty value would mean removal.
            Record::SetSaXattr { value: Some(v), .. } if v.is_empty() => return None,
            Record::SetSaXattr {
                object,
                name,
                value,
            } => Body::SetSaXattr {
                object,
                name,
                value: value.unwrap_or_default(),
            },
        })
    }

    /// The records that a log record amounts to, to be replayed in this order. A write comes without
    /// its data.
    pub fn from_body(body: Body, pool_version: u64) -> Result<Vec<Record>> {
        match body {
            Body::Create(c) => Ok(created(*c)),
            Body::Remove { .. }
            | Body::Link { .. }
            | Body::Rename { .. }
            | Body::RenameWhiteout { .. } => Ok(vec![changed_names(body)?]),
            body => Ok(vec![changed_object(body, pool_version)?]),
        }
    }
}

fn create_body(how: Made, dir: u64, name: Vec<u8>, new: NewFile, target: Vec<u8>) -> Body {
    Body::Create(Box::new(Create {
        kind: match how {
            Made::File => CreateKind::File,
            Made::Dir => CreateKind::Dir,
            Made::XattrDir => CreateKind::XattrDir,
            Made::Symlink => CreateKind::Symlink,
        },
        parent: dir,
        object: new.object,
        slots: u32::from(new.slots),
        mode: new.mode,
        uid: new.uid,
        gid: new.gid,
        gen: new.gen,
        crtime: pair(new.crtime),
        rdev: new.rdev,
        xvattr: None,
        acl: None,
        domains: Vec::new(),
        name,
        target,
    }))
}

/// The record of a rename that leaves the whiteout `w` under the old name.
fn whiteout_body(
    [source_dir, target_dir]: [u64; 2],
    [source, target]: [Vec<u8>; 2],
    w: NewFile,
) -> Body {
    Body::RenameWhiteout {
        source_dir,
        target_dir,
        object: w.object,
        slots: u32::from(w.slots),
        mode: w.mode,
        uid: w.uid,
        gid: w.gid,
        gen: w.gen,
        crtime: pair(w.crtime),
        rdev: w.rdev,
        source,
        target,
    }
}

/// The error for a record that no replay of a file system knows.
fn unknown(body: &Body) -> Error {
    let reason = format!("log record {body:?} is not for a file system");
    Error::new(Kind::Unsupported, reason)
}

/// What a CREATE record amounts to: the object, its ACL, its attributes.
fn created(c: Create) -> Vec<Record> {
    let mut out = vec![Record::Create {
        how: match c.kind {
            CreateKind::File => Made::File,
            CreateKind::Dir => Made::Dir,
            CreateKind::XattrDir => Made::XattrDir,
            CreateKind::Symlink => Made::Symlink,
        },
        dir: c.parent,
        name: c.name,
        new: NewFile {
            object: c.object,
            slots: c.slots.clamp(1, 32) as u8,
            mode: c.mode,
            uid: c.uid,
            gid: c.gid,
            gen: c.gen,
            crtime: unpair(c.crtime),
            rdev: c.rdev,
        },
        target: c.target,
    }];
    if let Some(a) = c.acl {
        out.push(Record::SetAcl {
            object: c.object,
            aces: a.aces,
            count: a.ace_count,
            flags: a.flags,
        });
    }
    if let Some(x) = c.xvattr {
        out.push(Record::SetAttr {
            object: c.object,
            mode: None,
            uid: None,
            gid: None,
            size: None,
            atime: None,
            mtime: None,
            ctime: None,
            extended: Some(from_xvattr(&x)),
        });
    }
    out
}

/// The record that removes, links or renames; anything else is an error.
fn changed_names(body: Body) -> Result<Record> {
    Ok(match body {
        Body::Remove { dir, parent, name } => Record::Remove {
            dir: parent,
            name,
            is_dir: dir,
            object: 0,
        },
        Body::Link {
            parent,
            object,
            name,
        } => Record::Link {
            dir: parent,
            object,
            name,
        },
        Body::Rename {
            exchange,
            source_dir,
            target_dir,
            source,
            target,
        } => Record::Rename {
            kind: if exchange {
                RenameKind::Exchange(0)
            } else {
                RenameKind::Plain
            },
            from_dir: source_dir,
            to_dir: target_dir,
            from: source,
            to: target,
            object: 0,
        },
        Body::RenameWhiteout {
            source_dir,
            target_dir,
            object,
            slots,
            mode,
            uid,
            gid,
            gen,
            crtime,
            rdev,
            source,
            target,
        } => Record::Rename {
            kind: RenameKind::Whiteout(NewFile {
                object,
                slots: slots.clamp(1, 32) as u8,
                mode,
                uid,
                gid,
                gen,
                crtime: unpair(crtime),
                rdev,
            }),
            from_dir: source_dir,
            to_dir: target_dir,
            from: source,
            to: target,
            object: 0,
        },
        other => return Err(unknown(&other)),
    })
}

/// The record that changes contents or attributes of one object; anything else is an error.
fn changed_object(body: Body, pool_version: u64) -> Result<Record> {
    Ok(match body {
        Body::Write {
            object,
            offset,
            length,
            ..
        } => Record::Write {
            object,
            gen: 0,
            offset,
            len: length,
            block: 0,
            sync: false,
        },
        Body::Truncate {
            object,
            offset,
            length,
        } => Record::Truncate {
            object,
            offset,
            len: length,
        },
        Body::SetAttr {
            object,
            mask,
            mode,
            uid,
            gid,
            size,
            atime,
            mtime,
            xvattr,
            ..
        } => {
            let mask = linux_mask(mask, pool_version);
            let on = |bit| mask & bit != 0;
            Record::SetAttr {
                object,
                mode: on(setattr::MODE).then_some(mode as u32),
                uid: on(setattr::UID).then_some(uid as u32),
                gid: on(setattr::GID).then_some(gid as u32),
                size: on(setattr::SIZE).then_some(size),
                atime: on(setattr::ATIME).then(|| unpair(atime)),
                // A new size comes with the time it was set, whether or not the mask says so.
                mtime: (on(setattr::MTIME) || on(setattr::SIZE) && mtime != [0; 2])
                    .then(|| unpair(mtime)),
                ctime: None,
                extended: xvattr.as_ref().map(from_xvattr),
            }
        }
        Body::AclV0 {
            object,
            ace_count,
            aces,
        } => {
            let list = disk::acl::decode_v0(&aces)?;
            Record::SetAcl {
                object,
                aces: disk::acl::encode_v1(&list),
                count: ace_count,
                flags: 0,
            }
        }
        Body::Acl { object, acl } => Record::SetAcl {
            object,
            aces: acl.aces,
            count: acl.ace_count,
            flags: acl.flags,
        },
        Body::SetSaXattr {
            object,
            name,
            value,
        } => Record::SetSaXattr {
            object,
            name,
            value: (!value.is_empty()).then_some(value),
        },
        other => return Err(unknown(&other)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Txg;

    #[test]
    fn there_and_back() {
        let new = NewFile {
            object: 77,
            slots: 2,
            mode: 0o100644,
            uid: 1,
            gid: 2,
            gen: 99,
            crtime: Time::new(-5, 6),
            rdev: 8,
        };
        let attr = |mode, extended| Record::SetAttr {
            object: 5,
            mode,
            uid: Some(3),
            gid: None,
            size: Some(9),
            atime: Some(Time::new(1, 2)),
            mtime: None,
            ctime: None,
            extended,
        };
        let records = [
            Record::Create {
                how: Made::Symlink,
                dir: 4,
                name: b"n".to_vec(),
                new: new.clone(),
                target: b"t".to_vec(),
            },
            Record::Remove {
                dir: 4,
                name: b"n".to_vec(),
                is_dir: true,
                object: 0,
            },
            Record::Link {
                dir: 4,
                object: 5,
                name: b"n".to_vec(),
            },
            Record::Rename {
                kind: RenameKind::Whiteout(new),
                from_dir: 1,
                to_dir: 2,
                from: b"a".to_vec(),
                to: b"b".to_vec(),
                object: 0,
            },
            Record::Truncate {
                object: 1,
                offset: 2,
                len: 3,
            },
            attr(Some(0o4755), None),
            attr(
                None,
                Some(Extended {
                    flags: Some(flag::NODUMP | flag::HIDDEN),
                    mask: flag::NODUMP | flag::HIDDEN | flag::SYSTEM | flag::SPARSE,
                    projid: Some(42),
                }),
            ),
            Record::SetAcl {
                object: 3,
                aces: vec![7; 24],
                count: 3,
                flags: 4,
            },
            Record::SetSaXattr {
                object: 3,
                name: b"user.x".to_vec(),
                value: Some(b"v".to_vec()),
            },
        ];
        for r in records {
            let body = r.to_body().unwrap();
            let raw = disk::zil::Record {
                txg: Txg::new(1),
                seq: 2,
                ignore_case: false,
                body,
            };
            let (back, _) = disk::zil::Record::decode(&raw.encode()).unwrap();
            assert_eq!(Record::from_body(back.body, 5000).unwrap(), [r]);
        }
    }

    #[test]
    fn masks_of_both_worlds() {
        // chmod, chown, utimes as Linux logs them.
        for m in [0x41, 0x46, 0x70] {
            assert_eq!(linux_mask(m, 23), m);
            assert_eq!(linux_mask(m, 5000), m);
        }
        // The same as Solaris logs them.
        assert_eq!(linux_mask(0x2, 23), setattr::MODE);
        assert_eq!(linux_mask(0xc, 23), setattr::UID | setattr::GID);
        assert_eq!(linux_mask(0x300, 23), setattr::ATIME | setattr::MTIME);
        assert_eq!(linux_mask(0x300, 5000), setattr::ATIME | setattr::MTIME);
        assert_eq!(linux_mask(0x2, 5000), setattr::UID);
    }
}
