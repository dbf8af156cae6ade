//! Legacy znode: the 264-byte bonus (type 17) of files in ZPL versions 1–4 (data format §18), and the
//! file flags that both forms share.

use crate::acl::{self, Ace};
use crate::bytes::{put_u16, put_u32, put_u64, slice_at, swap_u64s, u16_at, u32_at, u64_at};
use base::{bail, Result};

/// Bytes of a znode; a symlink target or scan stamp may follow in the bonus.
pub const ZNODE_SIZE: usize = 264;
/// Offset and size of the ACL part.
const ACL_AT: usize = 176;
/// Bytes of ACEs that fit into the znode itself.
pub const EMBEDDED_ACES: usize = 72;

/// Bits of a file's flags attribute (data format §18).
pub mod flag {
    /// Extended attribute directory, or a file in one.
    pub const XATTR: u64 = 0x1;
    /// The ACL has entries that new files inherit.
    pub const INHERIT_ACE: u64 = 0x2;
    /// The ACL stands for the mode and no more.
    pub const ACL_TRIVIAL: u64 = 0x4;
    /// The ACL has entries with GUIDs (types 5 to 8).
    pub const ACL_OBJ_ACE: u64 = 0x8;
    /// The ACL does not take part in automatic inheritance.
    pub const ACL_PROTECTED: u64 = 0x10;
    /// The ACL came from a default; stored for other systems.
    pub const ACL_DEFAULTED: u64 = 0x20;
    /// The ACL was inherited automatically.
    pub const ACL_AUTO_INHERIT: u64 = 0x40;
    /// A scan stamp follows the znode in the bonus.
    pub const BONUS_SCANSTAMP: u64 = 0x80;
    /// Everybody may execute the file, so searching a directory needs no look at the ACL.
    pub const NO_EXECS_DENIED: u64 = 0x100;
    /// DOS attribute "read-only": content cannot be changed.
    pub const READONLY: u64 = 1 << 32;
    /// DOS attribute "hidden".
    pub const HIDDEN: u64 = 1 << 33;
    /// DOS attribute "system".
    pub const SYSTEM: u64 = 1 << 34;
    /// DOS attribute "archive": changed since the last backup.
    pub const ARCHIVE: u64 = 1 << 35;
    /// Nothing of the file can be changed (`chattr +i`).
    pub const IMMUTABLE: u64 = 1 << 36;
    /// The file cannot be removed or renamed.
    pub const NOUNLINK: u64 = 1 << 37;
    /// The file can only grow (`chattr +a`).
    pub const APPENDONLY: u64 = 1 << 38;
    /// Not to be backed up (`chattr +d`).
    pub const NODUMP: u64 = 1 << 39;
    /// The directory is opaque in a union mount.
    pub const OPAQUE: u64 = 1 << 40;
    /// A virus scanner has forbidden access.
    pub const AV_QUARANTINED: u64 = 1 << 41;
    /// Changed since the last virus scan.
    pub const AV_MODIFIED: u64 = 1 << 42;
    /// A reparse point of Windows.
    pub const REPARSE: u64 = 1 << 43;
    /// Windows attribute "offline".
    pub const OFFLINE: u64 = 1 << 44;
    /// Windows attribute "sparse".
    pub const SPARSE: u64 = 1 << 45;
    /// New files in the directory get its project.
    pub const PROJINHERIT: u64 = 1 << 46;
    /// A PROJID attribute is present.
    pub const PROJID: u64 = 1 << 47;
}

/// The ACL part of a znode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZnodeAcl {
    /// Object that holds the ACEs, or 0: they are embedded.
    pub object: u64,
    /// 0 (12-byte ACEs) or 1.
    pub version: u16,
    /// Bytes of all ACEs.
    pub size: u32,
    /// Number of ACEs.
    pub count: u32,
    /// Embedded ACEs.
    pub embedded: [u8; EMBEDDED_ACES],
}

impl Default for ZnodeAcl {
    fn default() -> ZnodeAcl {
        ZnodeAcl {
            object: 0,
            version: 1,
            size: 0,
            count: 0,
            embedded: [0; EMBEDDED_ACES],
        }
    }
}

impl ZnodeAcl {
    fn decode(b: &[u8]) -> Result<ZnodeAcl> {
        let word = u32_at(b, 8)?;
        let version = u16_at(b, 12)?;
        let half = u16_at(b, 14)?;
        // Version 0 has the number of entries where version 1 has the size.
        let (size, count) = match version {
            0 => (word.saturating_mul(acl::ACE_V0_SIZE as u32), word),
            1 => (word, u32::from(half)),
            v => bail!(Damaged, "znode: ACL version {v}"),
        };
        let mut embedded = [0; EMBEDDED_ACES];
        embedded.copy_from_slice(slice_at(b, 16, EMBEDDED_ACES)?);
        Ok(ZnodeAcl {
            object: u64_at(b, 0)?,
            version,
            size,
            count,
            embedded,
        })
    }

    fn encode(&self, b: &mut [u8]) {
        put_u64(b, 0, self.object);
        let (word, half) = if self.version == 0 {
            (self.count, self.size as u16)
        } else {
            (self.size, self.count as u16)
        };
        put_u32(b, 8, word);
        put_u16(b, 12, self.version);
        put_u16(b, 14, half);
        b[16..16 + EMBEDDED_ACES].copy_from_slice(&self.embedded);
    }

    /// Describes `aces` in that version; returns the bytes for an external object if they do not
    /// fit (the caller sets `object`).
    pub fn from_aces(aces: &[Ace], version: u16) -> (ZnodeAcl, Option<Vec<u8>>) {
        let b = if version == 0 {
            acl::encode_v0(aces)
        } else {
            acl::encode_v1(aces)
        };
        let mut a = ZnodeAcl {
            version,
            size: b.len() as u32,
            count: aces.len() as u32,
            ..ZnodeAcl::default()
        };
        if b.len() <= EMBEDDED_ACES {
            a.embedded[..b.len()].copy_from_slice(&b);
            (a, None)
        } else {
            (a, Some(b))
        }
    }

    /// The entries; `external` is the data of [`ZnodeAcl::object`] if that is not 0.
    pub fn aces(&self, external: Option<&[u8]>) -> Result<Vec<Ace>> {
        let b = external.unwrap_or(&self.embedded);
        let b = slice_at(b, 0, self.size as usize)?;
        let aces = if self.version == 0 {
            acl::decode_v0(b)?
        } else {
            acl::decode_v1(b)?
        };
        if aces.len() != self.count as usize {
            bail!(Damaged, "ACL of {} entries, not {}", aces.len(), self.count);
        }
        Ok(aces)
    }
}

/// Legacy znode. Times are seconds (signed) and nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZnodePhys {
    /// Time of the last access.
    pub atime: [u64; 2],
    /// Time of the last change of the content.
    pub mtime: [u64; 2],
    /// Time of the last change of an attribute.
    pub ctime: [u64; 2],
    /// Time of creation.
    pub crtime: [u64; 2],
    /// txg of creation.
    pub gen: u64,
    /// As st_mode.
    pub mode: u64,
    /// Bytes of the content; of a directory the number of entries + 2.
    pub size: u64,
    /// Parent directory object.
    pub parent: u64,
    /// Number of names.
    pub links: u64,
    /// Extended attribute directory or 0.
    pub xattr: u64,
    /// Device number of a device file.
    pub rdev: u64,
    /// See [`flag`].
    pub flags: u64,
    /// FUID from ZPL version 3.
    pub uid: u64,
    /// FUID from ZPL version 3.
    pub gid: u64,
    /// The ACL, or where it is.
    pub acl: ZnodeAcl,
}

impl ZnodePhys {
    /// Decodes 264 bytes, little-endian. `Damaged`: they are cut short.
    pub fn decode(b: &[u8]) -> Result<ZnodePhys> {
        let time = |at| -> Result<[u64; 2]> { Ok([u64_at(b, at)?, u64_at(b, at + 8)?]) };
        Ok(ZnodePhys {
            atime: time(0)?,
            mtime: time(16)?,
            ctime: time(32)?,
            crtime: time(48)?,
            gen: u64_at(b, 64)?,
            mode: u64_at(b, 72)?,
            size: u64_at(b, 80)?,
            parent: u64_at(b, 88)?,
            links: u64_at(b, 96)?,
            xattr: u64_at(b, 104)?,
            rdev: u64_at(b, 112)?,
            flags: u64_at(b, 120)?,
            uid: u64_at(b, 128)?,
            gid: u64_at(b, 136)?,
            acl: ZnodeAcl::decode(slice_at(b, ACL_AT, ZNODE_SIZE - ACL_AT)?)?,
        })
    }

    /// The 264 bytes, little-endian.
    pub fn encode(&self) -> Vec<u8> {
        let mut b = vec![0; ZNODE_SIZE];
        for (at, t) in [
            (0, self.atime),
            (16, self.mtime),
            (32, self.ctime),
            (48, self.crtime),
        ] {
            put_u64(&mut b, at, t[0]);
            put_u64(&mut b, at + 8, t[1]);
        }
        for (i, v) in [
            self.gen,
            self.mode,
            self.size,
            self.parent,
            self.links,
            self.xattr,
            self.rdev,
            self.flags,
            self.uid,
            self.gid,
        ]
        .into_iter()
        .enumerate()
        {
            put_u64(&mut b, 64 + 8 * i, v);
        }
        self.acl.encode(&mut b[ACL_AT..]);
        b
    }
}

/// Puts a znode bonus of the other byte order into little endian (swap class "znode"); what follows
/// the znode is text and stays.
pub fn swap(b: &mut [u8]) {
    if b.len() < ZNODE_SIZE {
        return;
    }
    swap_u64s(&mut b[..ACL_AT + 8]);
    b[184..188].reverse();
    b[188..190].reverse();
    b[190..192].reverse();
    let version = u16::from_le_bytes([b[188], b[189]]);
    if version == 0 {
        acl::swap_v0(&mut b[192..ZNODE_SIZE]);
    } else {
        acl::swap_v1(&mut b[192..ZNODE_SIZE]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::junk::Junk;

    fn sample(version: u16) -> ZnodePhys {
        let (acl, external) = ZnodeAcl::from_aces(&acl::trivial(0o644, false), version);
        assert!(external.is_none());
        ZnodePhys {
            atime: [1, 2],
            mtime: [3, 4],
            ctime: [5, 6],
            crtime: [7, 8],
            gen: 9,
            mode: 0o100644,
            size: 11,
            parent: 12,
            links: 13,
            xattr: 14,
            rdev: 15,
            flags: 16,
            uid: 17,
            gid: 18,
            acl,
        }
    }

    #[test]
    fn both_acl_versions() {
        for version in [0, 1] {
            let z = sample(version);
            let b = z.encode();
            assert_eq!(b.len(), 264);
            assert_eq!(u64_at(&b, 136).unwrap(), 18);
            let back = ZnodePhys::decode(&b).unwrap();
            assert_eq!(back, z);
            let aces = back.acl.aces(None).unwrap();
            assert_eq!(aces, acl::trivial(0o644, false));
        }
        let b = sample(0).encode();
        assert_eq!((b[184], b[190]), (3, 36));
        let b = sample(1).encode();
        assert_eq!((b[184], b[188], b[190]), (24, 1, 3));
    }

    #[test]
    fn large_acls_go_outside() {
        let named = Ace {
            who: 5,
            mask: 1,
            ..Ace::default()
        };
        let aces = vec![named; 5];
        let (mut a, external) = ZnodeAcl::from_aces(&aces, 1);
        a.object = 77;
        let external = external.unwrap();
        assert_eq!(external.len(), 80);
        assert_eq!(a.aces(Some(&external)).unwrap(), aces);
        assert!(a.aces(Some(&external[1..])).is_err());
        assert!(a.aces(None).is_err());
    }

    #[test]
    fn foreign_byte_order() {
        for version in [0, 1] {
            let z = sample(version);
            let mut b = z.encode();
            // As a big-endian writer stores it.
            swap_u64s(&mut b[..184]);
            b[184..188].reverse();
            b[188..190].reverse();
            b[190..192].reverse();
            let mut at = 192;
            for _ in 0..3 {
                let widths: &[usize] = if version == 0 {
                    &[4, 4, 2, 2]
                } else {
                    &[2, 2, 4]
                };
                for &w in widths {
                    b[at..at + w].reverse();
                    at += w;
                }
            }
            swap(&mut b);
            assert_eq!(ZnodePhys::decode(&b).unwrap(), z);
        }
    }

    #[test]
    fn hostile() {
        Junk(9).torment(&sample(1).encode(), 1000, |b| {
            if let Ok(z) = ZnodePhys::decode(b) {
                let _ = z.acl.aces(None);
                let _ = z.acl.aces(Some(b));
                assert_eq!(ZnodePhys::decode(&z.encode()).unwrap(), z);
            }
            swap(&mut b.to_vec());
        });
    }
}
