//! NFSv4 ACLs as stored (data format §22): version 0 and version 1 entries, the trivial ACL of a
//! mode and the mode of an ACL.

use crate::bytes::{put_u16, put_u32, put_u64, slice_at, u16_at, u32_at, u64_at};
use base::{bail, Result};

/// Entry types that matter for access; others are kept but ignored.
pub mod ace_type {
    /// Grants the rights in the mask.
    pub const ALLOW: u16 = 0;
    /// Denies them.
    pub const DENY: u16 = 1;
    /// Asks for an audit record; stored, never acted on.
    pub const AUDIT: u16 = 2;
    /// Asks for an alarm; stored, never acted on.
    pub const ALARM: u16 = 3;
    /// First and last of the types with two 16-byte GUIDs.
    pub const ALLOW_OBJECT: u16 = 5;
    /// See [`ALLOW_OBJECT`].
    pub const ALARM_OBJECT: u16 = 8;
}

/// Bits of [`Ace::flags`].
pub mod ace_flag {
    /// New files in the directory inherit the entry.
    pub const FILE_INHERIT: u16 = 0x1;
    /// New directories in the directory inherit the entry.
    pub const DIR_INHERIT: u16 = 0x2;
    /// An inherited entry is not inherited further.
    pub const NO_PROPAGATE: u16 = 0x4;
    /// The entry is only for inheritance; it does not apply to the directory itself.
    pub const INHERIT_ONLY: u16 = 0x8;
    /// The entry names a group, not a user.
    pub const IDENTIFIER_GROUP: u16 = 0x40;
    /// The entry came from the parent directory.
    pub const INHERITED: u16 = 0x80;
    /// owner@: the entry is about the owner of the file.
    pub const OWNER: u16 = 0x1000;
    /// group@; stored together with [`IDENTIFIER_GROUP`].
    pub const GROUP: u16 = 0x2000;
    /// everyone@: the entry is about all users.
    pub const EVERYONE: u16 = 0x4000;
    /// The bits that say whom an entry is about.
    pub const WHO_MASK: u16 = OWNER | GROUP | EVERYONE | IDENTIFIER_GROUP;
    /// group@ as it is stored: the entry is about the group of the file.
    pub const OWNING_GROUP: u16 = GROUP | IDENTIFIER_GROUP;
}

/// Bits of [`Ace::mask`].
pub mod ace_mask {
    /// Read a file, list a directory.
    pub const READ_DATA: u32 = 0x1;
    /// Write a file, add a file to a directory.
    pub const WRITE_DATA: u32 = 0x2;
    /// Append to a file, add a directory to a directory.
    pub const APPEND_DATA: u32 = 0x4;
    /// Read extended attributes.
    pub const READ_NAMED_ATTRS: u32 = 0x8;
    /// Write extended attributes.
    pub const WRITE_NAMED_ATTRS: u32 = 0x10;
    /// Execute a file, search a directory.
    pub const EXECUTE: u32 = 0x20;
    /// Delete entries of a directory, whatever the ACLs of the files say.
    pub const DELETE_CHILD: u32 = 0x40;
    /// Read attributes (`stat`).
    pub const READ_ATTRIBUTES: u32 = 0x80;
    /// Set times and other attributes.
    pub const WRITE_ATTRIBUTES: u32 = 0x100;
    /// Delete the file itself.
    pub const DELETE: u32 = 0x10000;
    /// Read the ACL.
    pub const READ_ACL: u32 = 0x20000;
    /// Write the ACL and the mode.
    pub const WRITE_ACL: u32 = 0x40000;
    /// Change owner and group.
    pub const WRITE_OWNER: u32 = 0x80000;
    /// Synchronous access; has no effect here.
    pub const SYNCHRONIZE: u32 = 0x100000;
}

/// One access control entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ace {
    /// See [`ace_type`].
    pub ty: u16,
    /// See [`ace_flag`].
    pub flags: u16,
    /// See [`ace_mask`].
    pub mask: u32,
    /// FUID of the user or group; 0 for owner@, group@, everyone@.
    pub who: u64,
    /// Object types only: object type and inherited object type GUIDs.
    pub guids: Option<Box<[u8; 32]>>,
}

/// Bytes of a version 0 entry.
pub const ACE_V0_SIZE: usize = 12;

/// Bytes of a version 1 entry with that type and flags.
fn v1_size(ty: u16, flags: u16) -> usize {
    let abstract_who = matches!(
        flags & ace_flag::WHO_MASK,
        ace_flag::OWNER | ace_flag::OWNING_GROUP | ace_flag::EVERYONE
    );
    match ty {
        ace_type::ALLOW_OBJECT..=ace_type::ALARM_OBJECT => 48,
        ace_type::ALLOW | ace_type::DENY if abstract_who => 8,
        _ => 16,
    }
}

/// Decodes version 1 entries; `b` must hold exactly whole entries.
pub fn decode_v1(b: &[u8]) -> Result<Vec<Ace>> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < b.len() {
        let head = slice_at(b, at, 8)?;
        let (ty, flags) = (u16_at(head, 0)?, u16_at(head, 2)?);
        let size = v1_size(ty, flags);
        let e = slice_at(b, at, size)?;
        out.push(Ace {
            ty,
            flags,
            mask: u32_at(e, 4)?,
            who: if size >= 16 { u64_at(e, 8)? } else { 0 },
            guids: if size == 48 {
                let mut g = Box::new([0; 32]);
                g.copy_from_slice(slice_at(e, 16, 32)?);
                Some(g)
            } else {
                None
            },
        });
        at += size;
    }
    Ok(out)
}

/// Encodes version 1 entries one after another.
pub fn encode_v1(aces: &[Ace]) -> Vec<u8> {
    let mut out = Vec::new();
    for a in aces {
        let size = v1_size(a.ty, a.flags);
        let start = out.len();
        out.resize(start + size, 0);
        let e = &mut out[start..];
        put_u16(e, 0, a.ty);
        put_u16(e, 2, a.flags);
        put_u32(e, 4, a.mask);
        if size >= 16 {
            put_u64(e, 8, a.who);
        }
        if size == 48 {
            if let Some(g) = &a.guids {
                e[16..48].copy_from_slice(&g[..]);
            }
        }
    }
    out
}

/// Decodes the version 0 entries in `b` (12 bytes each).
pub fn decode_v0(b: &[u8]) -> Result<Vec<Ace>> {
    if b.len() % ACE_V0_SIZE != 0 {
        bail!(Damaged, "old ACL of {} bytes", b.len());
    }
    b.chunks_exact(ACE_V0_SIZE)
        .map(|e| {
            let flags = u16_at(e, 8)?;
            let ty = u16_at(e, 10)?;
            Ok(Ace {
                ty,
                flags,
                mask: u32_at(e, 4)?,
                // owner@ and the like have no id; some software left −1 there, some 0.
                who: if v1_size(ty, flags) == 8 {
                    0
                } else {
                    u64::from(u32_at(e, 0)?)
                },
                guids: None,
            })
        })
        .collect()
}

/// Encodes version 0 entries; ids are cut to 32 bits (that version knows no domains).
pub fn encode_v0(aces: &[Ace]) -> Vec<u8> {
    let mut out = vec![0; aces.len() * ACE_V0_SIZE];
    for (e, a) in out.chunks_exact_mut(ACE_V0_SIZE).zip(aces) {
        let who = if v1_size(a.ty, a.flags) == 8 {
            0
        } else {
            a.who as u32
        };
        put_u32(e, 0, who);
        put_u32(e, 4, a.mask);
        put_u16(e, 8, a.flags);
        put_u16(e, 10, a.ty);
    }
    out
}

/// Puts version 1 entries of the other byte order into little endian; stops at an incomplete entry.
pub fn swap_v1(b: &mut [u8]) {
    let mut at = 0;
    while at + 8 <= b.len() {
        b[at..at + 2].reverse();
        b[at + 2..at + 4].reverse();
        b[at + 4..at + 8].reverse();
        let ty = u16::from_le_bytes([b[at], b[at + 1]]);
        let flags = u16::from_le_bytes([b[at + 2], b[at + 3]]);
        let size = v1_size(ty, flags);
        if at + size > b.len() {
            return;
        }
        if size >= 16 {
            b[at + 8..at + 16].reverse();
        }
        at += size;
    }
}

/// Puts version 0 entries of the other byte order into little endian.
pub fn swap_v0(b: &mut [u8]) {
    for e in b.chunks_exact_mut(ACE_V0_SIZE) {
        e[0..4].reverse();
        e[4..8].reverse();
        e[8..10].reverse();
        e[10..12].reverse();
    }
}

const OWNER_ALWAYS: u32 = ace_mask::WRITE_ATTRIBUTES
    | ace_mask::WRITE_OWNER
    | ace_mask::WRITE_ACL
    | ace_mask::WRITE_NAMED_ATTRS
    | EVERYONE_ALWAYS;
const EVERYONE_ALWAYS: u32 = ace_mask::READ_ACL
    | ace_mask::READ_ATTRIBUTES
    | ace_mask::READ_NAMED_ATTRS
    | ace_mask::SYNCHRONIZE;

/// Mask bits of three permission bits (4 read, 2 write, 1 execute).
fn mask_of(rwx: u32, is_dir: bool) -> u32 {
    let mut m = 0;
    if rwx & 4 != 0 {
        m |= ace_mask::READ_DATA;
    }
    if rwx & 2 != 0 {
        m |= ace_mask::WRITE_DATA | ace_mask::APPEND_DATA;
        if is_dir {
            m |= ace_mask::DELETE_CHILD;
        }
    }
    if rwx & 1 != 0 {
        m |= ace_mask::EXECUTE;
    }
    m
}

/// The trivial ACL of permission bits `mode` (data format §22.3).
pub fn trivial(mode: u32, is_dir: bool) -> Vec<Ace> {
    let (owner, group, other) = (mode >> 6 & 7, mode >> 3 & 7, mode & 7);
    let allow0 = owner & !group & other;
    let deny1 = !owner & (group | other);
    let deny2 = !group & other;
    let mut out = Vec::new();
    let mut push = |ty, flags, mask| {
        out.push(Ace {
            ty,
            flags,
            mask,
            ..Ace::default()
        })
    };
    if allow0 != 0 {
        push(ace_type::ALLOW, ace_flag::OWNER, mask_of(allow0, is_dir));
    }
    if deny1 != 0 {
        push(ace_type::DENY, ace_flag::OWNER, mask_of(deny1, is_dir));
    }
    if deny2 != 0 {
        let mask = mask_of(deny2, is_dir);
        push(ace_type::DENY, ace_flag::OWNING_GROUP, mask);
    }
    for (who, always, rwx) in [
        (ace_flag::OWNER, OWNER_ALWAYS, owner),
        (ace_flag::OWNING_GROUP, EVERYONE_ALWAYS, group),
        (ace_flag::EVERYONE, EVERYONE_ALWAYS, other),
    ] {
        push(ace_type::ALLOW, who, always | mask_of(rwx, is_dir));
    }
    out
}

/// The nine permission bits an ACL amounts to: for each of owner, group and other the first entry
/// that mentions a permission decides. `uid` and `gid` are the FUIDs of the file.
pub fn mode_of(aces: &[Ace], uid: u64, gid: u64) -> u32 {
    let mut seen = 0;
    let mut mode = 0;
    for a in aces {
        if a.flags & ace_flag::INHERIT_ONLY != 0 || a.ty > ace_type::DENY {
            continue;
        }
        let classes = match a.flags & ace_flag::WHO_MASK {
            ace_flag::OWNER => 0o700,
            ace_flag::OWNING_GROUP => 0o070,
            ace_flag::EVERYONE => 0o777,
            0 if a.who == uid => 0o700,
            ace_flag::IDENTIFIER_GROUP if a.who == gid => 0o070,
            _ => continue,
        };
        for (mask, bits) in [
            (ace_mask::READ_DATA, 0o444),
            (ace_mask::WRITE_DATA, 0o222),
            (ace_mask::EXECUTE, 0o111),
        ] {
            if a.mask & mask != 0 {
                let new = bits & classes & !seen;
                seen |= new;
                if a.ty == ace_type::ALLOW {
                    mode |= new;
                }
            }
        }
    }
    mode
}

/// Whether an ACL counts as saying nothing that its mode does not say (flag ACL_TRIVIAL): only
/// owner@, group@ and everyone@, nothing to be inherited, and none of the rights that no mode gives
/// or takes.
pub fn is_trivial(aces: &[Ace]) -> bool {
    use ace_mask::*;
    const INHERITANCE: u16 = ace_flag::FILE_INHERIT
        | ace_flag::DIR_INHERIT
        | ace_flag::NO_PROPAGATE
        | ace_flag::INHERIT_ONLY;
    const OF_OWNER: u32 = WRITE_OWNER | WRITE_ACL | WRITE_ATTRIBUTES | WRITE_NAMED_ATTRS;
    aces.iter().all(|a| {
        let has = |mask| a.mask & mask != 0;
        let who = a.flags & ace_flag::WHO_MASK;
        let of_mode = matches!(
            who,
            ace_flag::OWNER | ace_flag::OWNING_GROUP | ace_flag::EVERYONE
        );
        let hides = a.ty == ace_type::DENY && has(READ_ACL | READ_ATTRIBUTES);
        let like_owner = a.ty == ace_type::ALLOW && who != ace_flag::OWNER && has(OF_OWNER);
        let deletes = has(DELETE) || has(DELETE_CHILD) && !has(WRITE_DATA);
        of_mode && a.flags & INHERITANCE == 0 && !hides && !like_owner && !deletes
    })
}

/// Whether execute (search) is granted to everyone (flag NO_EXECS_DENIED).
pub fn no_execs_denied(aces: &[Ace], uid: u64, gid: u64) -> bool {
    let denied = aces.iter().any(|a| {
        a.ty == ace_type::DENY
            && a.flags & ace_flag::INHERIT_ONLY == 0
            && a.mask & ace_mask::EXECUTE != 0
    });
    !denied && mode_of(aces, uid, gid) & 0o111 == 0o111
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::junk::Junk;

    #[test]
    fn example_0644() {
        let aces = trivial(0o644, false);
        let masks: Vec<u32> = aces.iter().map(|a| a.mask).collect();
        assert_eq!(masks, [0x1E019F, 0x120089, 0x120089]);
        let b = encode_v1(&aces);
        assert_eq!(b.len(), 24);
        assert_eq!(b[..8], [0, 0, 0, 0x10, 0x9f, 1, 0x1e, 0]);
        assert_eq!(b[8..12], [0, 0, 0x40, 0x20]);
    }

    /// For every mode, the trivial ACL means exactly that mode, survives both codecs, and is
    /// recognised as trivial.
    #[test]
    fn every_mode() {
        for is_dir in [false, true] {
            for mode in 0..0o1000 {
                let aces = trivial(mode, is_dir);
                assert_eq!(mode_of(&aces, 5, 6), mode, "{mode:o}");
                assert!(is_trivial(&aces));
                assert_eq!(decode_v1(&encode_v1(&aces)).unwrap(), aces);
                assert_eq!(decode_v0(&encode_v0(&aces)).unwrap(), aces);
                let exec = no_execs_denied(&aces, 5, 6);
                assert_eq!(exec, mode & 0o111 == 0o111, "{mode:o}");
                let mut b = encode_v1(&aces);
                let want = b.clone();
                swap_v1(&mut b);
                assert_ne!(b, want);
            }
        }
    }

    #[test]
    fn all_shapes() {
        let user = Ace {
            mask: 1,
            who: 1 << 32 | 7,
            ..Ace::default()
        };
        let group = Ace {
            flags: ace_flag::IDENTIFIER_GROUP,
            mask: 2,
            who: 6,
            ..Ace::default()
        };
        let object = Ace {
            ty: ace_type::ALLOW_OBJECT,
            mask: 3,
            who: 9,
            guids: Some(Box::new([4; 32])),
            ..Ace::default()
        };
        let audit = Ace {
            ty: ace_type::AUDIT,
            flags: ace_flag::EVERYONE,
            mask: 3,
            ..Ace::default()
        };
        let aces = vec![user.clone(), group, object, audit];
        let b = encode_v1(&aces);
        assert_eq!(b.len(), 16 + 16 + 48 + 16);
        assert_eq!(decode_v1(&b).unwrap(), aces);
        assert!(decode_v1(&b[..b.len() - 1]).is_err());
        assert!(!is_trivial(&aces));
        // Named entries count for the owner and the owning group.
        assert_eq!(mode_of(&aces, 1 << 32 | 7, 6), 0o420);
        assert_eq!(mode_of(&aces, 1, 1), 0);
        // Swapping back and forth: swap by hand as a foreign writer would store it.
        let mut foreign = b.clone();
        for (at, n) in [(0, 2), (2, 2), (4, 4), (8, 8)] {
            foreign[at..at + n].reverse();
        }
        let mut native = foreign[..16].to_vec();
        swap_v1(&mut native);
        assert_eq!(decode_v1(&native).unwrap(), [user]);
    }

    #[test]
    fn what_is_trivial() {
        let with = |change: fn(&mut Ace)| {
            let mut aces = trivial(0o640, true);
            change(&mut aces[1]);
            is_trivial(&aces)
        };
        assert!(is_trivial(&[]));
        assert!(with(|_| ()));
        // Old software says the same with more or fewer bits.
        assert!(
            !with(|a| a.ty = ace_type::DENY),
            "nobody is denied to read the list"
        );
        assert!(with(|a| a.mask = ace_mask::EXECUTE));
        assert!(with(
            |a| a.mask |= ace_mask::WRITE_DATA | ace_mask::DELETE_CHILD
        ));
        assert!(with(|a| a.flags |= ace_flag::INHERITED));
        assert!(!with(|a| a.flags |= ace_flag::FILE_INHERIT));
        assert!(!with(|a| a.flags = 0));
        assert!(!with(|a| a.mask |= ace_mask::DELETE));
        assert!(!with(|a| a.mask |= ace_mask::DELETE_CHILD));
        assert!(!with(|a| a.mask |= ace_mask::WRITE_ACL));
    }

    #[test]
    fn hostile() {
        let good = encode_v1(&trivial(0o421, true));
        Junk(8).torment(&good, 2000, |b| {
            if let Ok(aces) = decode_v1(b) {
                assert_eq!(encode_v1(&aces), b);
                let _ = (mode_of(&aces, 0, 0), is_trivial(&aces));
            }
            let _ = decode_v0(b);
            let mut c = b.to_vec();
            swap_v1(&mut c);
            swap_v0(&mut c);
        });
    }
}
