//! Changes of the NFSv4 ACL of an object by chmod, inheritance and removal. Nearly every ACL says no more than
//! the mode (flag ACL_TRIVIAL) and is handled elsewhere.

use crate::attr::{flag, mode};
use crate::perm::Cred;
use crate::props::{AclInherit, AclMode};
use crate::znode::Fixed;
use disk::acl::{self, ace_flag, ace_mask, ace_type, Ace};

/// Flags of a znode that describe its list.
pub(crate) const ALL_FLAGS: u64 =
    flag::INHERIT_ACE | flag::ACL_TRIVIAL | flag::ACL_OBJ_ACE | WIDE_FLAGS | flag::NO_EXECS_DENIED;
/// Those that do not follow from the entries.
pub(crate) const WIDE_FLAGS: u64 =
    flag::ACL_PROTECTED | flag::ACL_DEFAULTED | flag::ACL_AUTO_INHERIT;
const INHERITABLE: u16 = ace_flag::FILE_INHERIT | ace_flag::DIR_INHERIT;
/// Everything about inheritance in the flags of an entry.
const INHERITANCE: u16 =
    INHERITABLE | ace_flag::NO_PROPAGATE | ace_flag::INHERIT_ONLY | ace_flag::INHERITED;

/// A list about to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct List {
    /// The entries in order.
    pub aces: Vec<Ace>,
    /// Of the znode, as far as they belong to the list ([`ALL_FLAGS`]).
    pub flags: u64,
    /// Type and permission bits with this list.
    pub mode: u32,
}

impl List {
    /// The list that says what a mode says.
    pub fn trivial(m: u32) -> List {
        let mut flags = flag::ACL_TRIVIAL;
        if m & 0o111 == 0o111 {
            flags |= flag::NO_EXECS_DENIED;
        }
        List {
            aces: acl::trivial(m, mode::is_dir(m)),
            flags,
            mode: m,
        }
    }

    /// A list for an object with the type, set-id and sticky bits of `m`; the permission bits are
    /// what the list says. `flags`: the wide ones.
    pub fn of(aces: Vec<Ace>, m: u32, uid: u64, gid: u64, flags: u64) -> List {
        let mut flags = flags & WIDE_FLAGS;
        if mode::is_dir(m) && aces.iter().any(|a| a.flags & INHERITABLE != 0) {
            flags |= flag::INHERIT_ACE;
        }
        if aces.iter().any(|a| a.guids.is_some()) {
            flags |= flag::ACL_OBJ_ACE;
        }
        if acl::is_trivial(&aces) {
            flags |= flag::ACL_TRIVIAL;
        }
        if acl::no_execs_denied(&aces, uid, gid) {
            flags |= flag::NO_EXECS_DENIED;
        }
        List {
            mode: m & !0o777 | acl::mode_of(&aces, uid, gid),
            aces,
            flags,
        }
    }
}

fn is_named(a: &Ace) -> bool {
    !matches!(
        a.flags & ace_flag::WHO_MASK,
        ace_flag::OWNER | ace_flag::OWNING_GROUP | ace_flag::EVERYONE
    )
}

/// Entries that say a mode, around the others: what they deny and what only the owner gets comes
/// first, what they allow last. `replace`: entries of owner@, group@ and everyone@ give way to those
/// of the mode, but for what a directory hands on. `trim`: nobody else gets more than the group.
fn with_mode(old: &[Ace], m: u32, replace: bool, trim: bool) -> Vec<Ace> {
    let is_dir = mode::is_dir(m);
    let mut out = acl::trivial(m, is_dir);
    // The last three are the allowances of owner@, group@ and everyone@.
    let tail = out.split_off(out.len() - 3);
    let group = tail[1].mask;
    for a in old {
        let mut a = a.clone();
        if replace && !is_named(&a) {
            if !is_dir || a.flags & INHERITABLE == 0 {
                continue;
            }
            a.flags |= ace_flag::INHERIT_ONLY;
        }
        if trim && a.ty == ace_type::ALLOW && a.flags & ace_flag::INHERIT_ONLY == 0 {
            a.mask &= group;
        }
        out.push(a);
    }
    out.extend(tail);
    out
}

/// The list after a chmod to `m` (with the type) of an object of `uid` and `gid`; `flags` are those
/// of its znode. [`AclMode::Restricted`], where a chmod went through all the same, takes nothing
/// away.
pub(crate) fn chmod(old: &[Ace], m: u32, uid: u64, gid: u64, flags: u64, how: AclMode) -> List {
    let aces = match how {
        AclMode::Discard => acl::trivial(m, mode::is_dir(m)),
        AclMode::Groupmask => with_mode(old, m, true, true),
        AclMode::Passthrough | AclMode::Restricted => with_mode(old, m, true, false),
    };
    List::of(aces, m, uid, gid, flags)
}

/// Whether an object of type `m` gets an entry of its directory.
fn is_inherited(a: &Ace, m: u32) -> bool {
    if mode::is_dir(m) && a.flags & ace_flag::DIR_INHERIT != 0 {
        return true;
    }
    // A directory hands on what is for files, unless that ends here.
    a.flags & ace_flag::FILE_INHERIT != 0
        && !(mode::is_dir(m) && a.flags & ace_flag::NO_PROPAGATE != 0)
}

/// The list of an object about to be made with mode `m` (umask applied) in a directory with entries
/// `parent`.
pub(crate) fn inherit(
    parent: &[Ace],
    m: u32,
    uid: u64,
    gid: u64,
    how: AclInherit,
    aclmode: AclMode,
) -> List {
    let is_dir = mode::is_dir(m);
    let passes = matches!(how, AclInherit::Passthrough | AclInherit::PassthroughX);
    let mut says_mode = true;
    let mut own = Vec::new();
    for a in parent {
        let allows = a.ty == ace_type::ALLOW;
        let skip = match how {
            AclInherit::Discard => true,
            AclInherit::NoAllow => allows,
            _ => false,
        };
        if skip || mode::is_lnk(m) || !is_inherited(a, m) {
            continue;
        }
        let mut a = a.clone();
        let for_this = mode::is_reg(m) || is_dir && a.flags & ace_flag::DIR_INHERIT != 0;
        if passes && !is_named(&a) && for_this {
            says_mode = false;
        }
        if allows && !is_dir && how == AclInherit::PassthroughX && m & 0o111 == 0 {
            a.mask &= !ace_mask::EXECUTE;
        }
        if allows && how == AclInherit::Restricted {
            a.mask &= !(ace_mask::WRITE_ACL | ace_mask::WRITE_OWNER);
        }
        if !is_dir || a.flags & ace_flag::NO_PROPAGATE != 0 {
            a.flags &= !INHERITANCE;
        } else if a.flags & ace_flag::DIR_INHERIT == 0 {
            a.flags |= ace_flag::INHERIT_ONLY;
        } else {
            a.flags &= !ace_flag::INHERIT_ONLY;
        }
        a.flags |= ace_flag::INHERITED;
        own.push(a);
    }
    if aclmode == AclMode::Restricted && !own.is_empty() {
        says_mode = false;
    }
    let mut flags = 0;
    if says_mode {
        if is_dir {
            flags |= flag::ACL_AUTO_INHERIT;
        }
        let trim = aclmode == AclMode::Groupmask && !passes;
        own = with_mode(&own, m, false, trim);
    }
    List::of(own, m, uid, gid, flags)
}

/// What a list says about any of several rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// One of them is denied.
    Denied,
    /// Every one is granted.
    Granted,
    Silent,
}

/// Goes through a list for the rights in `want`; for each the first entry that is about the caller
/// decides.
pub(crate) fn verdict(aces: &[Ace], f: &Fixed, cred: &Cred, want: u32) -> Verdict {
    let mut left = want;
    let mut denied = false;
    for a in aces {
        let hit = a.mask & left;
        if hit == 0 || a.ty > ace_type::DENY || f.is_dir() && a.flags & ace_flag::INHERIT_ONLY != 0
        {
            continue;
        }
        // Ids of foreign domains are nobody's.
        let id = u32::try_from(a.who).ok();
        let mine = match a.flags & ace_flag::WHO_MASK {
            ace_flag::EVERYONE => true,
            ace_flag::OWNER => u64::from(cred.uid) == f.uid,
            ace_flag::OWNING_GROUP => u32::try_from(f.gid).is_ok_and(|g| cred.in_group(g)),
            ace_flag::IDENTIFIER_GROUP => id.is_some_and(|g| cred.in_group(g)),
            0 => id == Some(cred.uid),
            _ => false,
        };
        if mine {
            denied |= a.ty == ace_type::DENY;
            left &= !hit;
            if left == 0 {
                break;
            }
        }
    }
    match (denied, left) {
        (true, _) => Verdict::Denied,
        (false, 0) => Verdict::Granted,
        _ => Verdict::Silent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: u32 = mode::REG;
    const DIR: u32 = mode::DIR;
    const F: u16 = ace_flag::FILE_INHERIT;
    const D: u16 = ace_flag::DIR_INHERIT;
    const N: u16 = ace_flag::NO_PROPAGATE;
    const I: u16 = ace_flag::INHERIT_ONLY;
    const H: u16 = ace_flag::INHERITED;
    const READ: u32 = ace_mask::READ_DATA;
    const WRITE: u32 = ace_mask::WRITE_DATA | ace_mask::APPEND_DATA;
    const EXEC: u32 = ace_mask::EXECUTE;

    fn ace(ty: u16, flags: u16, mask: u32, who: u64) -> Ace {
        Ace {
            ty,
            flags,
            mask,
            who,
            guids: None,
        }
    }

    fn user(flags: u16, mask: u32, who: u64) -> Ace {
        ace(ace_type::ALLOW, flags, mask, who)
    }

    fn everyone(flags: u16, mask: u32) -> Ace {
        ace(ace_type::ALLOW, ace_flag::EVERYONE | flags, mask, 0)
    }

    /// Entries that are not those of a mode.
    fn named(l: &List) -> Vec<Ace> {
        l.aces.iter().filter(|a| is_named(a)).cloned().collect()
    }

    #[test]
    fn chmod_by_aclmode() {
        let mut old = vec![user(0, READ | WRITE | EXEC, 7)];
        old.push(ace(ace_type::DENY, 0, WRITE, 8));
        old.extend(acl::trivial(0o755, false));
        let m = FILE | 0o4640;
        let do_it = |how| chmod(&old, m, 0, 0, flag::ACL_PROTECTED, how);
        let l = do_it(AclMode::Discard);
        assert_eq!(l.aces, acl::trivial(0o640, false));
        assert_eq!(l.flags, flag::ACL_TRIVIAL | flag::ACL_PROTECTED);
        assert_eq!(l.mode, m);
        for how in [AclMode::Passthrough, AclMode::Restricted] {
            let l = do_it(how);
            assert_eq!(named(&l), old[..2]);
            assert_eq!(l.aces.len(), 5);
            assert_eq!((l.mode, l.flags), (m, flag::ACL_PROTECTED));
        }
        let l = do_it(AclMode::Groupmask);
        assert_eq!(named(&l), [user(0, READ, 7), old[1].clone()]);
        // The same again changes nothing.
        assert_eq!(chmod(&l.aces, m, 0, 0, l.flags, AclMode::Groupmask), l);
    }

    #[test]
    fn chmod_of_a_directory_keeps_what_it_hands_on() {
        let old = [
            user(F | D, READ, 7),
            everyone(F, WRITE),
            everyone(0, EXEC),
            ace(ace_type::ALLOW, ace_flag::OWNER | D | I, WRITE, 0),
        ];
        let l = chmod(&old, DIR | 0o1750, 0, 0, 0, AclMode::Passthrough);
        assert_eq!(l.aces.len(), 3 + 3);
        assert_eq!(l.aces[0], old[0]);
        assert_eq!(l.aces[1], everyone(F | I, WRITE));
        assert_eq!(l.aces[2], old[3]);
        assert_eq!(l.mode, DIR | 0o1750);
        assert_eq!(l.flags, flag::INHERIT_ACE);
        // What is only handed on is not trimmed.
        let l = chmod(&old[3..], DIR | 0o700, 0, 0, 0, AclMode::Groupmask);
        assert_eq!(l.aces[0], old[3]);
        // A file hands nothing on.
        let l = chmod(&old[1..], FILE | 0o640, 0, 0, 0, AclMode::Passthrough);
        assert_eq!(l, List::trivial(FILE | 0o640));
    }

    #[test]
    fn denials_of_the_mode_come_first() {
        let l = chmod(
            &[user(0, READ, 7)],
            FILE | 0o407,
            0,
            0,
            0,
            AclMode::Passthrough,
        );
        let shape: Vec<(u16, u16)> = l
            .aces
            .iter()
            .map(|a| (a.ty, a.flags & ace_flag::WHO_MASK))
            .collect();
        let (allow, deny) = (ace_type::ALLOW, ace_type::DENY);
        assert_eq!(
            shape,
            [
                (allow, ace_flag::OWNER),
                (deny, ace_flag::OWNER),
                (deny, ace_flag::OWNING_GROUP),
                (allow, 0),
                (allow, ace_flag::OWNER),
                (allow, ace_flag::OWNING_GROUP),
                (allow, ace_flag::EVERYONE),
            ]
        );
        assert_eq!(l.mode, FILE | 0o407);
    }

    #[test]
    fn entries_for_files_and_directories() {
        let parent = [
            user(F, READ, 1),
            user(D, READ, 2),
            user(F | D, READ, 3),
            user(F | N, READ, 4),
            user(D | N, READ, 5),
            user(F | D | I, READ, 6),
            user(0, READ, 7),
            user(F | D | H, READ, 8),
        ];
        let get = |m| {
            let l = inherit(&parent, m, 0, 0, AclInherit::Passthrough, AclMode::Discard);
            (named(&l), l)
        };
        let (list, l) = get(FILE | 0o644);
        let want = |ids: &[u64]| -> Vec<Ace> { ids.iter().map(|&u| user(H, READ, u)).collect() };
        assert_eq!(list, want(&[1, 3, 4, 6, 8]));
        assert_eq!((l.mode, l.flags), (FILE | 0o644, 0));
        assert_eq!(l.aces[5..], acl::trivial(0o644, false)[..]);
        let (list, l) = get(DIR | 0o755);
        assert_eq!(
            list,
            [
                user(F | I | H, READ, 1),
                user(D | H, READ, 2),
                user(F | D | H, READ, 3),
                user(H, READ, 5),
                user(F | D | H, READ, 6),
                user(F | D | H, READ, 8),
            ]
        );
        assert_eq!(l.mode, DIR | 0o755);
        assert_eq!(
            l.flags,
            flag::INHERIT_ACE | flag::ACL_AUTO_INHERIT | flag::NO_EXECS_DENIED
        );
        let (list, l) = get(mode::LNK | 0o777);
        assert!(list.is_empty());
        assert_eq!(l, List::trivial(mode::LNK | 0o777));
    }

    #[test]
    fn aclinherit() {
        let all = READ | WRITE | EXEC | ace_mask::WRITE_ACL | ace_mask::WRITE_OWNER;
        let parent = [
            user(F | D, all, 1),
            ace(ace_type::DENY, F | D, WRITE, 2),
            everyone(F | D, READ | EXEC),
        ];
        let get = |m, how| inherit(&parent, m, 0, 0, how, AclMode::Discard);
        let m = FILE | 0o640;
        assert_eq!(get(m, AclInherit::Discard), List::trivial(m));
        let deny = ace(ace_type::DENY, H, WRITE, 2);
        let l = get(m, AclInherit::NoAllow);
        assert_eq!(named(&l), std::slice::from_ref(&deny));
        let l = get(m, AclInherit::Restricted);
        let cut = all & !(ace_mask::WRITE_ACL | ace_mask::WRITE_OWNER);
        assert_eq!(named(&l), [user(H, cut, 1), deny.clone()]);
        // What everyone@ got counts before what the mode says.
        assert_eq!(l.mode, FILE | 0o755);
        // With entries for everyone@ there is nothing to say about the mode.
        let l = get(m, AclInherit::Passthrough);
        assert_eq!(
            l.aces,
            [user(H, all, 1), deny.clone(), everyone(H, READ | EXEC)]
        );
        assert_eq!((l.mode, l.flags), (FILE | 0o555, flag::NO_EXECS_DENIED));
        let l = get(m, AclInherit::PassthroughX);
        assert_eq!(l.aces, [user(H, all & !EXEC, 1), deny, everyone(H, READ)]);
        assert_eq!(l.mode, FILE | 0o444);
        let l = get(FILE | 0o700, AclInherit::PassthroughX);
        assert_eq!(l.mode, FILE | 0o555);
        // A device is no regular file: it gets its mode, too.
        let l = get(mode::FIFO | 0o600, AclInherit::Passthrough);
        assert_eq!(l.aces.len(), 3 + 3);
    }

    #[test]
    fn aclmode_counts_at_creation() {
        let parent = [user(F, READ | WRITE, 1)];
        let get = |how, aclmode| inherit(&parent, FILE | 0o640, 5, 6, how, aclmode);
        let l = get(AclInherit::Restricted, AclMode::Groupmask);
        assert_eq!(named(&l), [user(H, READ, 1)]);
        let l = get(AclInherit::Passthrough, AclMode::Groupmask);
        assert_eq!(named(&l), [user(H, READ | WRITE, 1)]);
        // Restricted: the entries stand alone.
        let l = get(AclInherit::Passthrough, AclMode::Restricted);
        assert_eq!(l.aces, [user(H, READ | WRITE, 1)]);
        assert_eq!(l.mode, FILE);
        // Nothing inherited: the mode.
        let l = inherit(
            &[],
            FILE | 0o640,
            5,
            6,
            AclInherit::Passthrough,
            AclMode::Restricted,
        );
        assert_eq!(l, List::trivial(FILE | 0o640));
    }

    #[test]
    fn verdicts() {
        let f = |m: u32| Fixed {
            mode: u64::from(m),
            uid: 10,
            gid: 20,
            ..Fixed::default()
        };
        let file = f(FILE);
        let me = Cred::user(7, 9, &[30]);
        let d = ace_mask::DELETE;
        let deny = |flags, who| ace(ace_type::DENY, flags, d, who);
        let group = ace_flag::IDENTIFIER_GROUP;
        let is = |list: &[Ace], want| assert_eq!(verdict(list, &file, &me, d), want, "{list:?}");
        is(&[], Verdict::Silent);
        is(&[deny(0, 7)], Verdict::Denied);
        is(&[deny(0, 8), deny(0, 1 << 32 | 7)], Verdict::Silent);
        is(&[deny(group, 30)], Verdict::Denied);
        is(&[deny(group, 31)], Verdict::Silent);
        is(&[deny(ace_flag::OWNER, 0)], Verdict::Silent);
        is(&[deny(ace_flag::EVERYONE, 0)], Verdict::Denied);
        is(
            &[user(0, d, 7), deny(ace_flag::EVERYONE, 0)],
            Verdict::Granted,
        );
        let mine = Fixed {
            uid: 7,
            gid: 30,
            ..file
        };
        assert_eq!(
            verdict(&[deny(ace_flag::OWNER, 0)], &mine, &me, d),
            Verdict::Denied
        );
        let of_group = [deny(ace_flag::OWNING_GROUP, 0)];
        assert_eq!(verdict(&of_group, &mine, &me, d), Verdict::Denied);
        // Entries that a directory only hands on do not count for itself.
        let only = [deny(ace_flag::EVERYONE | F | I, 0)];
        assert_eq!(verdict(&only, &f(DIR), &me, d), Verdict::Silent);
        // One of two.
        let two = ace_mask::DELETE_CHILD | ace_mask::WRITE_DATA;
        let list = [user(0, ace_mask::WRITE_DATA, 7)];
        assert_eq!(verdict(&list, &f(DIR), &me, two), Verdict::Silent);
    }
}
