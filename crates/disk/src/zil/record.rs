//! Log records (pool format §26.4).

use super::tx_type::TxType;
use crate::blkptr::{BlkPtr, BP_SIZE};
use crate::bytes::{slice_at, u32_at, u64_at, up8};
use crate::fuid;
use base::{bail, Result, Txg};

/// Bytes of the header of every record: type, length, txg, sequence.
pub const RECORD_HEADER: usize = 32;

/// Bits of the mask of a SETATTR record, as Linux has them.
pub mod setattr {
    /// The mode.
    pub const MODE: u64 = 0x1;
    /// The owner.
    pub const UID: u64 = 0x2;
    /// The group.
    pub const GID: u64 = 0x4;
    /// The size.
    pub const SIZE: u64 = 0x8;
    /// The time of the last access.
    pub const ATIME: u64 = 0x10;
    /// The time of the last change of the content.
    pub const MTIME: u64 = 0x20;
    /// The time of the last change of an attribute.
    pub const CTIME: u64 = 0x40;
    /// An xvattr section follows.
    pub const XVATTR: u64 = 1 << 31;
}

/// Bits of [`Xvattr::attrs`] and of the first word of [`Xvattr::request`].
pub mod xat {
    /// Time of creation.
    pub const CREATETIME: u64 = 0x1;
    /// [`flag::ARCHIVE`](crate::znode::flag::ARCHIVE).
    pub const ARCHIVE: u64 = 0x2;
    /// [`flag::SYSTEM`](crate::znode::flag::SYSTEM).
    pub const SYSTEM: u64 = 0x4;
    /// [`flag::READONLY`](crate::znode::flag::READONLY).
    pub const READONLY: u64 = 0x8;
    /// [`flag::HIDDEN`](crate::znode::flag::HIDDEN).
    pub const HIDDEN: u64 = 0x10;
    /// [`flag::NOUNLINK`](crate::znode::flag::NOUNLINK).
    pub const NOUNLINK: u64 = 0x20;
    /// [`flag::IMMUTABLE`](crate::znode::flag::IMMUTABLE).
    pub const IMMUTABLE: u64 = 0x40;
    /// [`flag::APPENDONLY`](crate::znode::flag::APPENDONLY).
    pub const APPENDONLY: u64 = 0x80;
    /// [`flag::NODUMP`](crate::znode::flag::NODUMP).
    pub const NODUMP: u64 = 0x100;
    /// [`flag::OPAQUE`](crate::znode::flag::OPAQUE); OpenZFS records it as [`APPENDONLY`].
    pub const OPAQUE: u64 = 0x200;
    /// [`flag::AV_QUARANTINED`](crate::znode::flag::AV_QUARANTINED).
    pub const AV_QUARANTINED: u64 = 0x400;
    /// [`flag::AV_MODIFIED`](crate::znode::flag::AV_MODIFIED).
    pub const AV_MODIFIED: u64 = 0x800;
    /// The stamp of a virus scanner, 32 bytes.
    pub const SCANSTAMP: u64 = 0x1000;
    /// [`flag::REPARSE`](crate::znode::flag::REPARSE).
    pub const REPARSE: u64 = 0x2000;
    /// Txg of creation.
    pub const GEN: u64 = 0x4000;
    /// [`flag::OFFLINE`](crate::znode::flag::OFFLINE).
    pub const OFFLINE: u64 = 0x8000;
    /// [`flag::SPARSE`](crate::znode::flag::SPARSE).
    pub const SPARSE: u64 = 0x10000;
    /// [`flag::PROJINHERIT`](crate::znode::flag::PROJINHERIT).
    pub const PROJINHERIT: u64 = 0x20000;
    /// The project id.
    pub const PROJID: u64 = 0x40000;
}

/// Largest request bitmap accepted, words; current software writes 3.
const MAX_BITMAP: usize = 64;

/// System attributes of a file (flags and the like) in a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xvattr {
    /// Which attributes are meant.
    pub request: Vec<u32>,
    /// Their values, see [`xat`].
    pub attrs: u64,
    /// Time of creation: seconds, nanoseconds.
    pub crtime: [u64; 2],
    /// First 8 bytes: project id, if that is requested.
    pub scanstamp: [u8; 32],
}

/// ACL in a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogAcl {
    /// Version 1 entries (version 0 in an ACL_V0 record).
    pub aces: Vec<u8>,
    /// Number of entries.
    pub ace_count: u64,
    /// File flags that belong to the ACL.
    pub flags: u64,
    /// FUIDs the entries refer to.
    pub fuids: Vec<u64>,
    /// Domains the FUIDs refer to, counted from 1.
    pub domains: Vec<Vec<u8>>,
}

/// What a [`Create`] makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateKind {
    /// Anything but the following: files, devices, sockets, pipes.
    File,
    /// A directory.
    Dir,
    /// Extended attribute directory of `parent`.
    XattrDir,
    /// A symbolic link.
    Symlink,
}

/// CREATE, MKDIR, MKXATTR, SYMLINK and their forms with ACL and attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Create {
    /// What is created.
    pub kind: CreateKind,
    /// Directory (file for an xattr directory).
    pub parent: u64,
    /// Object of the new file.
    pub object: u64,
    /// Dnode slots, at least 1.
    pub slots: u32,
    /// Type and permissions, as `st_mode`.
    pub mode: u64,
    /// Owner, a FUID.
    pub uid: u64,
    /// Group, a FUID.
    pub gid: u64,
    /// txg of creation.
    pub gen: u64,
    /// Time of creation: seconds, nanoseconds.
    pub crtime: [u64; 2],
    /// Device number of a device file.
    pub rdev: u64,
    /// Further attributes, if the record has them.
    pub xvattr: Option<Xvattr>,
    /// ACL, if the record has one.
    pub acl: Option<LogAcl>,
    /// Domains of uid and gid where there is no ACL to list them.
    pub domains: Vec<Vec<u8>>,
    /// Name in `parent`.
    pub name: Vec<u8>,
    /// Symbolic links only.
    pub target: Vec<u8>,
}

/// Data of a WRITE record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteData {
    /// The whole block has been written to the main pool.
    Indirect(BlkPtr),
    /// The bytes are in the record.
    Inline(Vec<u8>),
    /// No data and no pointer: zeros.
    Zeros,
}

/// The changes a record can describe. Names are bytes without NUL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Creates a file, directory, link or extended attribute directory.
    Create(Box<Create>),
    /// REMOVE, or RMDIR if `dir`.
    Remove {
        /// True: RMDIR.
        dir: bool,
        /// Directory object.
        parent: u64,
        /// Name in it.
        name: Vec<u8>,
    },
    /// LINK: a further name for a file.
    Link {
        /// Directory object of the new name.
        parent: u64,
        /// Object of the file.
        object: u64,
        /// The new name.
        name: Vec<u8>,
    },
    /// RENAME, or RENAME_EXCHANGE if `exchange`.
    Rename {
        /// Both names are exchanged, instead of the target being replaced.
        exchange: bool,
        /// Directory object of the old name.
        source_dir: u64,
        /// Directory object of the new name.
        target_dir: u64,
        /// Old name.
        source: Vec<u8>,
        /// New name.
        target: Vec<u8>,
    },
    /// RENAME_WHITEOUT: a rename that leaves a whiteout under the old name.
    RenameWhiteout {
        /// Directory object of the old name.
        source_dir: u64,
        /// Directory object of the new name.
        target_dir: u64,
        /// Object of the whiteout.
        object: u64,
        /// Its dnode slots.
        slots: u32,
        /// Its mode, as `st_mode`.
        mode: u64,
        /// Its owner, a FUID.
        uid: u64,
        /// Its group, a FUID.
        gid: u64,
        /// Txg of its creation.
        gen: u64,
        /// Time of its creation: seconds, nanoseconds.
        crtime: [u64; 2],
        /// Its device number.
        rdev: u64,
        /// Old name.
        source: Vec<u8>,
        /// New name.
        target: Vec<u8>,
    },
    /// WRITE: a range of a file or volume.
    Write {
        /// Object number.
        object: u64,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// The bytes, or where they are.
        data: WriteData,
    },
    /// WRITE2: only makes the file at least `offset + length` long.
    Extend {
        /// Object number.
        object: u64,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// TRUNCATE: frees a range.
    Truncate {
        /// Object number.
        object: u64,
        /// First byte.
        offset: u64,
        /// Bytes; 0: to the end of the file.
        length: u64,
    },
    /// SETATTR: the attributes in `mask`. Fields that it does not name mean nothing.
    SetAttr {
        /// Object number.
        object: u64,
        /// See [`setattr`].
        mask: u64,
        /// As `st_mode`.
        mode: u64,
        /// A FUID.
        uid: u64,
        /// A FUID.
        gid: u64,
        /// Bytes.
        size: u64,
        /// Seconds, nanoseconds.
        atime: [u64; 2],
        /// Seconds, nanoseconds.
        mtime: [u64; 2],
        /// Further attributes, with [`setattr::XVATTR`].
        xvattr: Option<Xvattr>,
        /// Domains of uid and gid.
        domains: Vec<Vec<u8>>,
    },
    /// ACL_V0: replaces the ACL of a file of ZPL version 1 or 2.
    AclV0 {
        /// Object number.
        object: u64,
        /// Number of entries.
        ace_count: u64,
        /// Entries of 12 bytes.
        aces: Vec<u8>,
    },
    /// ACL: replaces the ACL.
    Acl {
        /// Object number.
        object: u64,
        /// The new ACL.
        acl: LogAcl,
    },
    /// An empty value removes the attribute.
    SetSaXattr {
        /// Object number.
        object: u64,
        /// Name of the attribute.
        name: Vec<u8>,
        /// Its value.
        value: Vec<u8>,
    },
    /// CLONE_RANGE: a range that refers to blocks of another file.
    CloneRange {
        /// Object number.
        object: u64,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Bytes of a block of the file.
        block_size: u64,
        /// Pointers of the blocks, in the order of the range.
        bps: Vec<BlkPtr>,
    },
    /// A type this software does not know: replay has to stop here.
    Unknown {
        /// Its number, without the bit of [`Record::ignore_case`].
        txtype: u64,
        /// All bytes behind the header.
        body: Vec<u8>,
    },
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Txg in which the change was made; once it is on disk the record is not needed.
    pub txg: Txg,
    /// Strictly ascending along the chain.
    pub seq: u64,
    /// The request ignored the case of names.
    pub ignore_case: bool,
    /// The change.
    pub body: Body,
}

const OBJECT_MASK: u64 = (1 << 48) - 1;

fn pair(b: &[u8], at: usize) -> Result<[u64; 2]> {
    Ok([u64_at(b, at)?, u64_at(b, at + 8)?])
}

fn foid(object: u64, slots: u32) -> u64 {
    (object & OBJECT_MASK) | (u64::from(slots.clamp(1, 256)) - 1) << 56
}

/// Reads the parts of variable length behind the fixed fields of a record.
struct Tail<'a> {
    b: &'a [u8],
    at: usize,
}

impl<'a> Tail<'a> {
    fn bytes(&mut self, n: usize) -> Result<&'a [u8]> {
        let s = slice_at(self.b, self.at, n)?;
        self.at += n;
        Ok(s)
    }

    /// Text up to a NUL.
    fn string(&mut self) -> Result<Vec<u8>> {
        let rest = self.b.get(self.at..).unwrap_or(&[]);
        let Some(n) = rest.iter().position(|&c| c == 0) else {
            bail!(Damaged, "log record: text without end");
        };
        self.at += n + 1;
        Ok(rest[..n].to_vec())
    }

    fn strings(&mut self, n: u64) -> Result<Vec<Vec<u8>>> {
        // Each takes at least its NUL.
        if n > (self.b.len() - self.at.min(self.b.len())) as u64 {
            bail!(Damaged, "log record: {n} domains");
        }
        (0..n).map(|_| self.string()).collect()
    }

    /// Domains of records that have no count: as many as the ids refer to.
    fn domains(&mut self, ids: [u64; 2]) -> Result<Vec<Vec<u8>>> {
        let n = ids.into_iter().map(fuid::index).max().unwrap_or(0);
        self.strings(u64::from(n))
    }

    fn xvattr(&mut self) -> Result<Xvattr> {
        let n = u32_at(self.b, self.at)? as usize;
        if n == 0 || n > MAX_BITMAP {
            bail!(Damaged, "log record: attribute bitmap of {n} words");
        }
        self.at += 4;
        let request = self
            .bytes(4 * n)?
            .chunks_exact(4)
            .map(|w| u32_at(w, 0))
            .collect::<Result<Vec<u32>>>()?;
        let fixed = self.bytes(56)?;
        let mut scanstamp = [0; 32];
        scanstamp.copy_from_slice(slice_at(fixed, 24, 32)?);
        Ok(Xvattr {
            request,
            attrs: u64_at(fixed, 0)?,
            crtime: pair(fixed, 8)?,
            scanstamp,
        })
    }

    /// ACEs, FUIDs and domains; the five words at `words` say how many.
    fn acl(&mut self, words: usize) -> Result<LogAcl> {
        let [ace_count, domains, fuids, size, flags] = {
            let mut w = [0; 5];
            for (i, w) in w.iter_mut().enumerate() {
                *w = u64_at(self.b, words + 8 * i)?;
            }
            w
        };
        if size > self.b.len() as u64 || fuids > self.b.len() as u64 / 8 {
            bail!(Damaged, "log record: ACL of {size} bytes");
        }
        let aces = self.bytes(size as usize)?.to_vec();
        self.bytes(up8(aces.len()) - aces.len())?;
        let fuids = self
            .bytes(8 * fuids as usize)?
            .chunks_exact(8)
            .map(|w| u64_at(w, 0))
            .collect::<Result<Vec<u64>>>()?;
        Ok(LogAcl {
            aces,
            ace_count,
            flags,
            fuids,
            domains: self.strings(domains)?,
        })
    }
}

/// Builds a record.
struct Out {
    b: Vec<u8>,
}

impl Out {
    fn words(&mut self, w: &[u64]) {
        for v in w {
            self.b.extend_from_slice(&v.to_le_bytes());
        }
    }

    fn string(&mut self, s: &[u8]) {
        let end = s.iter().position(|&c| c == 0).unwrap_or(s.len());
        self.b.extend_from_slice(&s[..end]);
        self.b.push(0);
    }

    fn xvattr(&mut self, x: &Xvattr) {
        self.b
            .extend_from_slice(&(x.request.len() as u32).to_le_bytes());
        for w in &x.request {
            self.b.extend_from_slice(&w.to_le_bytes());
        }
        self.words(&[x.attrs, x.crtime[0], x.crtime[1]]);
        self.b.extend_from_slice(&x.scanstamp);
    }

    fn acl_words(&mut self, a: &LogAcl) {
        self.words(&[
            a.ace_count,
            a.domains.len() as u64,
            a.fuids.len() as u64,
            a.aces.len() as u64,
            a.flags,
        ]);
    }

    fn acl_data(&mut self, a: &LogAcl) {
        self.b.extend_from_slice(&a.aces);
        let pad = up8(a.aces.len()) - a.aces.len();
        self.b.resize(self.b.len() + pad, 0);
        self.words(&a.fuids);
        a.domains.iter().for_each(|d| self.string(d));
    }
}

impl Record {
    /// Decodes the record at the start of `b` and returns it with its length.
    pub fn decode(b: &[u8]) -> Result<(Record, usize)> {
        let txtype = u64_at(b, 0)?;
        let len = u64_at(b, 8)?;
        if len < RECORD_HEADER as u64 || len > b.len() as u64 || len % 8 != 0 {
            bail!(Damaged, "log record of {len} bytes");
        }
        let b = &b[..len as usize];
        let record = Record {
            txg: Txg::new(u64_at(b, 16)?),
            seq: u64_at(b, 24)?,
            ignore_case: txtype >> 63 != 0,
            body: body(b, txtype & !(1 << 63))?,
        };
        Ok((record, b.len()))
    }

    /// Encodes the record, padded with zeros to a multiple of 8.
    pub fn encode(&self) -> Vec<u8> {
        let mut o = Out {
            b: vec![0; RECORD_HEADER],
        };
        let txtype = self.body.put(&mut o);
        let mut b = o.b;
        b.resize(up8(b.len()), 0);
        let len = b.len() as u64;
        let header = [
            txtype | u64::from(self.ignore_case) << 63,
            len,
            self.txg.number(),
            self.seq,
        ];
        for (w, v) in b.chunks_exact_mut(8).zip(header) {
            w.copy_from_slice(&v.to_le_bytes());
        }
        b
    }
}

fn body(b: &[u8], txtype: u64) -> Result<Body> {
    let w = |i: usize| u64_at(b, 32 + 8 * i);
    let mut t = Tail { b, at: 0 };
    let Some(ty) = TxType::of(txtype) else {
        return Ok(Body::Unknown {
            txtype,
            body: slice_at(b, 32, b.len() - 32)?.to_vec(),
        });
    };
    let (kind, has_acl, has_attr) = match ty {
        TxType::Create => (CreateKind::File, false, false),
        TxType::Mkdir => (CreateKind::Dir, false, false),
        TxType::Mkxattr => (CreateKind::XattrDir, false, false),
        TxType::Symlink => (CreateKind::Symlink, false, false),
        TxType::CreateAcl => (CreateKind::File, true, false),
        TxType::CreateAttr => (CreateKind::File, false, true),
        TxType::CreateAclAttr => (CreateKind::File, true, true),
        TxType::MkdirAcl => (CreateKind::Dir, true, false),
        TxType::MkdirAttr => (CreateKind::Dir, false, true),
        TxType::MkdirAclAttr => (CreateKind::Dir, true, true),
        _ => return other(b, ty),
    };
    t.at = if has_acl { 144 } else { 104 };
    let xvattr = if has_attr { Some(t.xvattr()?) } else { None };
    let (uid, gid) = (w(3)?, w(4)?);
    let (acl, domains) = if has_acl {
        (Some(t.acl(104)?), Vec::new())
    } else {
        (None, t.domains([uid, gid])?)
    };
    Ok(Body::Create(Box::new(Create {
        kind,
        parent: w(0)?,
        object: w(1)? & OBJECT_MASK,
        slots: (w(1)? >> 56) as u32 + 1,
        mode: w(2)?,
        uid,
        gid,
        gen: w(5)?,
        crtime: pair(b, 80)?,
        rdev: w(8)?,
        xvattr,
        acl,
        domains,
        name: t.string()?,
        target: if kind == CreateKind::Symlink {
            t.string()?
        } else {
            Vec::new()
        },
    })))
}

fn other(b: &[u8], ty: TxType) -> Result<Body> {
    let w = |i: usize| u64_at(b, 32 + 8 * i);
    let tail = |at: usize| Tail { b, at };
    Ok(match ty {
        TxType::Remove | TxType::Rmdir => Body::Remove {
            dir: ty == TxType::Rmdir,
            parent: w(0)?,
            name: tail(40).string()?,
        },
        TxType::Link => Body::Link {
            parent: w(0)?,
            object: w(1)?,
            name: tail(48).string()?,
        },
        TxType::Rename | TxType::RenameExchange => {
            let mut t = tail(48);
            Body::Rename {
                exchange: ty == TxType::RenameExchange,
                source_dir: w(0)?,
                target_dir: w(1)?,
                source: t.string()?,
                target: t.string()?,
            }
        }
        TxType::RenameWhiteout => {
            let mut t = tail(112);
            Body::RenameWhiteout {
                source_dir: w(0)?,
                target_dir: w(1)?,
                object: w(2)? & OBJECT_MASK,
                slots: (w(2)? >> 56) as u32 + 1,
                mode: w(3)?,
                uid: w(4)?,
                gid: w(5)?,
                gen: w(6)?,
                crtime: pair(b, 88)?,
                rdev: w(9)?,
                source: t.string()?,
                target: t.string()?,
            }
        }
        _ => return change(b, ty),
    })
}

/// Records of changes to a file that is there.
fn change(b: &[u8], ty: TxType) -> Result<Body> {
    let w = |i: usize| u64_at(b, 32 + 8 * i);
    let tail = |at: usize| Tail { b, at };
    Ok(match ty {
        TxType::Write => {
            let length = w(2)?;
            let bp = BlkPtr::read(slice_at(b, 64, BP_SIZE)?, false)?;
            let data = if !bp.is_hole() {
                WriteData::Indirect(bp)
            } else if b.len() == 192 {
                WriteData::Zeros
            } else if length > b.len() as u64 {
                bail!(Damaged, "log record: write of {length} bytes");
            } else {
                WriteData::Inline(slice_at(b, 192, length as usize)?.to_vec())
            };
            Body::Write {
                object: w(0)?,
                offset: w(1)?,
                length,
                data,
            }
        }
        TxType::Truncate => Body::Truncate {
            object: w(0)?,
            offset: w(1)?,
            length: w(2)?,
        },
        TxType::Setattr => {
            let (mask, uid, gid) = (w(1)?, w(3)?, w(4)?);
            let mut t = tail(112);
            let xvattr = if mask & setattr::XVATTR != 0 {
                Some(t.xvattr()?)
            } else {
                None
            };
            Body::SetAttr {
                object: w(0)?,
                mask,
                mode: w(2)?,
                uid,
                gid,
                size: w(5)?,
                atime: pair(b, 80)?,
                mtime: pair(b, 96)?,
                xvattr,
                domains: t.domains([uid, gid])?,
            }
        }
        TxType::AclV0 => {
            let n = w(1)?;
            if n > b.len() as u64 {
                bail!(Damaged, "log record: {n} old ACEs");
            }
            let size = n as usize * crate::acl::ACE_V0_SIZE;
            Body::AclV0 {
                object: w(0)?,
                ace_count: n,
                aces: slice_at(b, 48, size)?.to_vec(),
            }
        }
        TxType::Acl => Body::Acl {
            object: w(0)?,
            acl: tail(80).acl(40)?,
        },
        TxType::Write2 => Body::Extend {
            object: w(0)?,
            offset: w(1)?,
            length: w(2)?,
        },
        TxType::SetSaXattr => {
            let size = w(1)?;
            if size > b.len() as u64 {
                bail!(Damaged, "log record: attribute of {size} bytes");
            }
            let mut t = tail(48);
            Body::SetSaXattr {
                object: w(0)?,
                name: t.string()?,
                value: t.bytes(size as usize)?.to_vec(),
            }
        }
        TxType::CloneRange => {
            let n = w(4)?;
            if n > b.len() as u64 / BP_SIZE as u64 {
                bail!(Damaged, "log record: {n} cloned blocks");
            }
            let bps = slice_at(b, 72, n as usize * BP_SIZE)?;
            Body::CloneRange {
                object: w(0)?,
                offset: w(1)?,
                length: w(2)?,
                block_size: w(3)?,
                bps: bps
                    .chunks_exact(BP_SIZE)
                    .map(|b| BlkPtr::read(b, false))
                    .collect::<Result<_>>()?,
            }
        }
        // `body` decodes the others.
        _ => Body::Unknown {
            txtype: ty.number(),
            body: slice_at(b, 32, b.len() - 32)?.to_vec(),
        },
    })
}

impl Body {
    /// Type number on disk.
    pub fn txtype(&self) -> u64 {
        let ty = match self {
            Body::Create(c) => match (c.kind, c.acl.is_some(), c.xvattr.is_some()) {
                (CreateKind::XattrDir, ..) => TxType::Mkxattr,
                (CreateKind::Symlink, ..) => TxType::Symlink,
                (CreateKind::File, false, false) => TxType::Create,
                (CreateKind::File, true, false) => TxType::CreateAcl,
                (CreateKind::File, false, true) => TxType::CreateAttr,
                (CreateKind::File, true, true) => TxType::CreateAclAttr,
                (CreateKind::Dir, false, false) => TxType::Mkdir,
                (CreateKind::Dir, true, false) => TxType::MkdirAcl,
                (CreateKind::Dir, false, true) => TxType::MkdirAttr,
                (CreateKind::Dir, true, true) => TxType::MkdirAclAttr,
            },
            Body::Remove { dir: false, .. } => TxType::Remove,
            Body::Remove { dir: true, .. } => TxType::Rmdir,
            Body::Link { .. } => TxType::Link,
            Body::Rename {
                exchange: false, ..
            } => TxType::Rename,
            Body::Write { .. } => TxType::Write,
            Body::Truncate { .. } => TxType::Truncate,
            Body::SetAttr { .. } => TxType::Setattr,
            Body::AclV0 { .. } => TxType::AclV0,
            Body::Acl { .. } => TxType::Acl,
            Body::Extend { .. } => TxType::Write2,
            Body::SetSaXattr { .. } => TxType::SetSaXattr,
            Body::Rename { exchange: true, .. } => TxType::RenameExchange,
            Body::RenameWhiteout { .. } => TxType::RenameWhiteout,
            Body::CloneRange { .. } => TxType::CloneRange,
            Body::Unknown { txtype, .. } => return *txtype,
        };
        ty.number()
    }

    /// Name of the type as `zdb -i` prints it.
    pub fn type_name(&self) -> &'static str {
        match self.txtype() {
            0 => "TX_COMMIT",
            n => TxType::of(n).map_or("TX_UNKNOWN", TxType::name),
        }
    }

    /// Object of the types that may be logged out of order: if it no longer exists, replay skips
    /// the record.
    pub fn out_of_order_object(&self) -> Option<u64> {
        match self {
            Body::Write { object, .. }
            | Body::Extend { object, .. }
            | Body::Truncate { object, .. }
            | Body::SetAttr { object, .. }
            | Body::AclV0 { object, .. }
            | Body::Acl { object, .. }
            | Body::SetSaXattr { object, .. }
            | Body::CloneRange { object, .. } => Some(*object),
            _ => None,
        }
    }

    /// Appends everything behind the header; returns the type number.
    fn put(&self, o: &mut Out) -> u64 {
        match self {
            Body::Create(c) => {
                o.words(&[
                    c.parent,
                    foid(c.object, c.slots),
                    c.mode,
                    c.uid,
                    c.gid,
                    c.gen,
                    c.crtime[0],
                    c.crtime[1],
                    c.rdev,
                ]);
                // Extended attribute directories and links have neither.
                let plain = matches!(c.kind, CreateKind::XattrDir | CreateKind::Symlink);
                let acl = c.acl.as_ref().filter(|_| !plain);
                if let Some(a) = acl {
                    o.acl_words(a);
                }
                if let Some(x) = c.xvattr.as_ref().filter(|_| !plain) {
                    o.xvattr(x);
                }
                match acl {
                    Some(a) => o.acl_data(a),
                    None => c.domains.iter().for_each(|d| o.string(d)),
                }
                o.string(&c.name);
                if c.kind == CreateKind::Symlink {
                    o.string(&c.target);
                }
            }
            Body::Remove { parent, name, .. } => {
                o.words(&[*parent]);
                o.string(name);
            }
            Body::Link {
                parent,
                object,
                name,
            } => {
                o.words(&[*parent, *object]);
                o.string(name);
            }
            Body::Rename {
                source_dir,
                target_dir,
                source,
                target,
                ..
            } => {
                o.words(&[*source_dir, *target_dir]);
                o.string(source);
                o.string(target);
            }
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
            } => {
                o.words(&[*source_dir, *target_dir, foid(*object, *slots)]);
                o.words(&[*mode, *uid, *gid, *gen, crtime[0], crtime[1], *rdev]);
                o.string(source);
                o.string(target);
            }
            _ => self.put_change(o),
        }
        self.txtype()
    }

    /// Puts what changes a file that is there.
    fn put_change(&self, o: &mut Out) {
        match self {
            // Put by the caller.
            Body::Create(_)
            | Body::Remove { .. }
            | Body::Link { .. }
            | Body::Rename { .. }
            | Body::RenameWhiteout { .. } => {}
            Body::Write {
                object,
                offset,
                length,
                data,
            } => {
                o.words(&[*object, *offset, *length, 0]);
                let bp = match data {
                    WriteData::Indirect(bp) => bp.to_bytes(),
                    _ => [0; BP_SIZE],
                };
                o.b.extend_from_slice(&bp);
                if let WriteData::Inline(d) = data {
                    o.b.extend_from_slice(d);
                }
            }
            Body::Extend {
                object,
                offset,
                length,
            } => {
                o.words(&[*object, *offset, *length, 0]);
                o.b.extend_from_slice(&[0; BP_SIZE]);
            }
            Body::Truncate {
                object,
                offset,
                length,
            } => o.words(&[*object, *offset, *length]),
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
                domains,
            } => {
                // The bit and the section must agree, or a reader takes one for the other.
                let mask =
                    mask & !setattr::XVATTR | if xvattr.is_some() { setattr::XVATTR } else { 0 };
                o.words(&[*object, mask, *mode, *uid, *gid, *size]);
                o.words(&[atime[0], atime[1], mtime[0], mtime[1]]);
                if let Some(x) = xvattr {
                    o.xvattr(x);
                }
                domains.iter().for_each(|d| o.string(d));
            }
            Body::AclV0 {
                object,
                ace_count,
                aces,
            } => {
                o.words(&[*object, *ace_count]);
                o.b.extend_from_slice(aces);
            }
            Body::Acl { object, acl } => {
                o.words(&[*object]);
                o.acl_words(acl);
                o.acl_data(acl);
            }
            Body::SetSaXattr {
                object,
                name,
                value,
            } => {
                o.words(&[*object, value.len() as u64]);
                o.string(name);
                o.b.extend_from_slice(value);
            }
            Body::CloneRange {
                object,
                offset,
                length,
                block_size,
                bps,
            } => {
                o.words(&[*object, *offset, *length, *block_size, bps.len() as u64]);
                bps.iter()
                    .for_each(|bp| o.b.extend_from_slice(&bp.to_bytes()));
            }
            Body::Unknown { body, .. } => o.b.extend_from_slice(body),
        }
    }
}
