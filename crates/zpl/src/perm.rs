//! Permission checks: credentials, mode bits, sticky directories, the rules of chmod and chown.

use crate::attr::mode;
use base::{Kind, Result};
use disk::xattr::{tag, PosixAce, PosixAcl};
use std::sync::Arc;

/// Permission wanted, as in `access(2)`.
pub const R: u32 = 4;
/// See [`R`].
pub const W: u32 = 2;
/// See [`R`].
pub const X: u32 = 1;

/// Who asks.
#[derive(Clone)]
pub struct Cred {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Tells whether the caller is in a supplementary group. Asked only when the answer matters,
    /// because on FUSE it costs a look at the caller's process. `None`: in no other group.
    pub groups: Option<Arc<dyn Fn(u32) -> bool + Send + Sync>>,
    /// Has the capabilities of root (CAP_FOWNER, CAP_DAC_OVERRIDE, CAP_CHOWN, CAP_FSETID …).
    pub privileged: bool,
    /// Permissions were checked before, as the kernel does for FUSE (`default_permissions`): the POSIX
    /// layer checks only what the kernel cannot know. Otherwise it checks everything.
    pub checked: bool,
}

impl Cred {
    /// Root, who is not checked: everything is allowed.
    pub fn root() -> Cred {
        Cred {
            uid: 0,
            gid: 0,
            groups: None,
            privileged: true,
            checked: true,
        }
    }

    /// An ordinary user with the given supplementary groups, whom nobody has checked yet; uid 0 is
    /// privileged.
    pub fn user(uid: u32, gid: u32, groups: &[u32]) -> Cred {
        let groups = groups.to_vec();
        Cred {
            uid,
            gid,
            groups: Some(Arc::new(move |g| groups.contains(&g))),
            privileged: uid == 0,
            checked: false,
        }
    }

    /// The same user, checked by somebody else already.
    pub fn already_checked(self) -> Cred {
        Cred {
            checked: true,
            ..self
        }
    }

    /// Whether the caller is in the group.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.as_ref().is_some_and(|f| f(gid))
    }

    /// Owner of the object, or privileged.
    pub fn owns(&self, uid: u32) -> bool {
        self.privileged || self.uid == uid
    }
}

/// Checks `want` (bits of [`R`], [`W`], [`X`]) against mode bits and, if there is one, the POSIX ACL.
pub fn access(
    cred: &Cred,
    want: u32,
    m: u32,
    uid: u32,
    gid: u32,
    acl: Option<&PosixAcl>,
) -> Result<()> {
    if cred.privileged {
        // Root may not execute what nobody may execute.
        if want & X != 0 && !mode::is_dir(m) && m & 0o111 == 0 {
            return Err(Kind::Access.into());
        }
        return Ok(());
    }
    let granted = if cred.uid == uid {
        m >> 6
    } else if let Some(acl) = acl {
        return if permits(acl, cred, gid, want) {
            Ok(())
        } else {
            Err(Kind::Access.into())
        };
    } else if cred.in_group(gid) {
        m >> 3
    } else {
        m
    };
    if granted & want == want {
        Ok(())
    } else {
        Err(Kind::Access.into())
    }
}

/// Whether somebody who is not the owner has all of `want` by a list.
fn permits(list: &PosixAcl, cred: &Cred, gid: u32, want: u32) -> bool {
    let perm_of = |t| list.list.iter().find(|e| e.tag == t).map(|e| e.perm);
    let mask = perm_of(tag::MASK).unwrap_or(7);
    let has = |p: u16| u32::from(p) & want == want;
    let user = |e: &&PosixAce| e.tag == tag::USER && e.id == cred.uid;
    if let Some(e) = list.list.iter().find(user) {
        return has(e.perm & mask);
    }
    let mut member = false;
    for e in &list.list {
        let mine = match e.tag {
            tag::GROUP_OBJ => cred.in_group(gid),
            tag::GROUP => cred.in_group(e.id),
            _ => false,
        };
        if mine {
            member = true;
            if has(e.perm & mask) {
                return true;
            }
        }
    }
    !member && has(perm_of(tag::OTHER).unwrap_or(0))
}

/// Removing or renaming an entry of a sticky directory is for the owner of the entry, the owner of
/// the directory, and root.
pub fn sticky(cred: &Cred, dir_mode: u32, dir_uid: u32, child_uid: u32) -> Result<()> {
    if dir_mode & mode::STICKY == 0 || cred.owns(dir_uid) || cred.uid == child_uid {
        Ok(())
    } else {
        Err(Kind::NotPermitted.into())
    }
}

/// The mode a file has after an unprivileged write: set-user-id goes, set-group-id goes if the group
/// may execute (without that bit it means mandatory locking, and stays).
pub fn killed_suid(m: u32) -> u32 {
    if !mode::is_reg(m) {
        return m;
    }
    let mut out = m & !mode::SUID;
    if m & 0o010 != 0 {
        out &= !mode::SGID;
    }
    out
}

/// The mode after a chown by anybody, as Linux has it: whatever is not a directory loses
/// set-user-id, and set-group-id if the group may execute or the caller has nothing to do with the
/// group.
pub fn mode_after_chown(cred: &Cred, m: u32, gid: u32) -> u32 {
    if mode::is_dir(m) {
        return m;
    }
    let mut out = m & !mode::SUID;
    if m & 0o010 != 0 || !(cred.privileged || cred.in_group(gid)) {
        out &= !mode::SGID;
    }
    out
}

/// May `cred` chmod an object of `uid`/`gid` to `new` permission bits? Returns the bits to be set:
/// set-group-id is taken away from who is not in the group.
pub fn chmod(cred: &Cred, uid: u32, gid: u32, new: u32) -> Result<u32> {
    if !cred.owns(uid) {
        return Err(Kind::NotPermitted.into());
    }
    let mut bits = new & mode::PERM;
    if !cred.privileged && bits & mode::SGID != 0 && !cred.in_group(gid) {
        bits &= !mode::SGID;
    }
    Ok(bits)
}

/// May `cred` give an object of `uid`/`gid` to the new ids?
pub fn chown(
    cred: &Cred,
    uid: u32,
    gid: u32,
    to_uid: Option<u32>,
    to_gid: Option<u32>,
) -> Result<()> {
    if cred.privileged {
        return Ok(());
    }
    let uid_ok = to_uid.is_none_or(|u| u == uid && cred.uid == uid);
    let gid_ok = to_gid.is_none_or(|g| cred.uid == uid && (g == gid || cred.in_group(g)));
    if uid_ok && gid_ok {
        Ok(())
    } else {
        Err(Kind::NotPermitted.into())
    }
}

/// Mode and group of something created in a directory: a set-group-id directory gives its group to
/// everything and its bit to directories; a group-executable set-group-id file is only for members
/// of that group.
pub fn inherit_group(cred: &Cred, dir_mode: u32, dir_gid: u32, m: u32) -> (u32, u32) {
    if dir_mode & mode::SGID == 0 {
        return (m, cred.gid);
    }
    if mode::is_dir(m) {
        return (m | mode::SGID, dir_gid);
    }
    let both = mode::SGID | 0o010;
    if m & both == both && !cred.privileged && !cred.in_group(dir_gid) {
        return (m & !mode::SGID, dir_gid);
    }
    (m, dir_gid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permission_algorithm() {
        use disk::xattr::NO_ID;
        let list = [
            (tag::USER_OBJ, 7, NO_ID),
            (tag::USER, 7, 10),
            (tag::GROUP_OBJ, 4, NO_ID),
            (tag::GROUP, 2, 20),
            (tag::MASK, 6, NO_ID),
            (tag::OTHER, 1, NO_ID),
        ];
        let a = PosixAcl {
            list: list
                .iter()
                .map(|&(tag, perm, id)| PosixAce { tag, perm, id })
                .collect(),
        };
        let named = Cred::user(10, 1, &[]);
        assert!(permits(&a, &named, 99, 6));
        assert!(!permits(&a, &named, 99, 1), "limited by the mask");
        let group = Cred::user(11, 99, &[20]);
        assert!(permits(&a, &group, 99, 4));
        assert!(permits(&a, &group, 99, 2));
        assert!(!permits(&a, &group, 99, 6), "no single entry grants both");
        assert!(
            !permits(&a, &group, 99, 1),
            "others do not count for members"
        );
        let other = Cred::user(12, 1, &[]);
        assert!(permits(&a, &other, 99, 1));
        assert!(!permits(&a, &other, 99, 4));
    }

    #[test]
    fn classes_are_exclusive() {
        // An owner without the bit is refused even if others have it.
        let u = Cred::user(7, 8, &[9]);
        let m = mode::REG;
        assert!(access(&u, R, m | 0o044, 7, 8, None).is_err());
        assert!(access(&u, R, m | 0o404, 1, 8, None).is_err());
        assert!(access(&u, R, m | 0o040, 1, 9, None).is_ok());
        assert!(access(&u, R, m | 0o004, 1, 1, None).is_ok());
        for perm in 0..0o1000 {
            for want in 0..8 {
                let ok = |uid, gid, shift: u32| {
                    assert_eq!(
                        access(&u, want, m | perm, uid, gid, None).is_ok(),
                        (perm >> shift) & want == want
                    );
                };
                ok(7, 8, 6);
                ok(1, 8, 3);
                ok(1, 9, 3);
                ok(1, 1, 0);
            }
        }
        let root = Cred::root();
        assert!(access(&root, R | W, m, 7, 8, None).is_ok());
        assert!(access(&root, X, m | 0o644, 7, 8, None).is_err());
        assert!(access(&root, X, mode::DIR | 0o600, 7, 8, None).is_ok());
    }

    #[test]
    fn sticky_rule() {
        let u = Cred::user(7, 8, &[]);
        assert!(sticky(&u, mode::DIR | 0o1777, 0, 7).is_ok());
        assert!(sticky(&u, mode::DIR | 0o1777, 7, 0).is_ok());
        assert!(sticky(&u, mode::DIR | 0o1777, 0, 1).is_err());
        assert!(sticky(&u, mode::DIR | 0o777, 0, 1).is_ok());
        assert!(sticky(&Cred::root(), mode::DIR | 0o1777, 5, 1).is_ok());
    }

    #[test]
    fn chown_and_chmod() {
        let u = Cred::user(7, 8, &[9]);
        assert!(chown(&u, 7, 8, Some(7), Some(9)).is_ok());
        assert!(chown(&u, 7, 8, None, Some(10)).is_err());
        assert!(chown(&u, 7, 8, Some(1), None).is_err());
        assert!(chown(&u, 1, 8, None, Some(8)).is_err());
        assert!(chown(&u, 7, 55, None, Some(55)).is_ok());
        assert_eq!(chmod(&u, 7, 9, 0o6755).unwrap(), 0o6755);
        assert_eq!(chmod(&u, 7, 10, 0o6755).unwrap(), 0o4755);
        assert!(chmod(&u, 1, 9, 0o644).is_err());
        assert_eq!(
            mode_after_chown(&u, mode::REG | 0o6755, 8),
            mode::REG | 0o755
        );
        assert_eq!(
            mode_after_chown(&u, mode::REG | 0o6745, 8),
            mode::REG | 0o2745
        );
        assert_eq!(
            mode_after_chown(&u, mode::DIR | 0o6755, 8),
            mode::DIR | 0o6755
        );
    }

    #[test]
    fn groups_from_directories() {
        let u = Cred::user(7, 8, &[]);
        let d = mode::DIR | 0o2775;
        assert_eq!(
            inherit_group(&u, d, 5, mode::DIR | 0o755),
            (mode::DIR | 0o2755, 5)
        );
        assert_eq!(
            inherit_group(&u, d, 5, mode::REG | 0o2755),
            (mode::REG | 0o755, 5)
        );
        assert_eq!(
            inherit_group(&u, d, 5, mode::REG | 0o2745),
            (mode::REG | 0o2745, 5)
        );
        assert_eq!(
            inherit_group(&u, mode::DIR | 0o775, 5, mode::REG | 0o644),
            (mode::REG | 0o644, 8)
        );
    }
}
