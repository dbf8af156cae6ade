//! NFSv4 lists that say more than a mode, as other systems make them.

use super::*;
use crate::attr::{flag, mode, SetTime};
use crate::nfs4::{List, ALL_FLAGS};
use crate::props::{AclInherit, AclMode};
use crate::znode::Form;
use disk::acl::{self, ace_flag, ace_mask, ace_type, Ace};

const F: u16 = ace_flag::FILE_INHERIT;
const D: u16 = ace_flag::DIR_INHERIT;
const RW: u32 = ace_mask::READ_DATA | ace_mask::WRITE_DATA | ace_mask::APPEND_DATA;

fn user(ty: u16, flags: u16, mask: u32, who: u64) -> Ace {
    Ace {
        ty,
        flags,
        mask,
        who,
        guids: None,
    }
}

/// Entries for users, then those of a mode: what `setfacl -m` of FreeBSD leaves.
fn foreign(first: &[Ace], perm: u32, is_dir: bool) -> Vec<Ace> {
    let mut aces = first.to_vec();
    aces.extend(acl::trivial(perm, is_dir));
    aces
}

/// Gives an object a list, as another system would have.
pub fn put(fs: &Fs, z: &Znode, aces: &[Ace]) {
    let tx = fs.zfs.tx_write(64 << 10).unwrap();
    let flags = z.fixed().flags;
    fs.zfs
        .set_nfs4_acl(&tx, z, &acl::encode_v1(aces), flags)
        .unwrap();
}

fn list(fs: &Fs, z: &Znode) -> Vec<Ace> {
    let aces = fs.zfs.nfs4_acl(z).unwrap();
    let f = z.fixed();
    if z.form() == Form::Sa {
        let t = fs.zfs.sa.as_ref().unwrap();
        let a = t.load(&z.dnode).unwrap();
        assert_eq!(
            a.get_u64(t.zpl().dacl_count).unwrap(),
            Some(aces.len() as u64)
        );
    }
    let want = List::of(aces.clone(), f.mode32(), f.uid, f.gid, f.flags);
    assert_eq!(f.flags & ALL_FLAGS, want.flags, "flags of the list");
    aces
}

fn set(fs: &Fs, z: &Znode, change: impl FnOnce(&mut SetAttr), c: &Cred) -> Result<u32> {
    let mut s = SetAttr::default();
    change(&mut s);
    fs.zfs.setattr(z, &s, c).map(|a| a.mode & 0o7777)
}

fn chmod(fs: &Fs, z: &Znode, bits: u32) -> Result<u32> {
    set(fs, z, |s| s.mode = Some(bits), &Cred::root())
}

fn acl_fs() -> Fs {
    let fs = Fs::new();
    fs.zfs.set_props(|p| p.acltype = AclType::Off);
    fs
}

/// A list stays as it is, byte for byte, through everything that is not about modes.
#[test]
fn foreign_lists_stay() {
    for pool in [5000, 23, 8] {
        let fs = Fs::with(pool, |_| ());
        fs.zfs.set_props(|p| p.acltype = AclType::Off);
        let c = Cred::root();
        let f = fs.file("f", b"content");
        let many: Vec<Ace> = (0..40)
            .map(|i| user(i % 2, 0, RW, 1000 + u64::from(i)))
            .collect();
        let want = foreign(&many, 0o640, false);
        put(&fs, &f, &want);
        assert_eq!(f.mode(), mode::REG | 0o640);
        assert_eq!(f.fixed().flags & flag::ACL_TRIVIAL, 0);
        fs.dir("d");
        fs.put(&f, 3, &[9; 70_000]);
        fs.zfs.truncate(&f, 5, &c).unwrap();
        fs.rename("f", "d/g", 0).unwrap();
        fs.link(&f, "h").unwrap();
        set(&fs, &f, |s| s.mtime = Some(SetTime::Now), &c).unwrap();
        set(&fs, &f, |s| s.gid = Some(77), &c).unwrap();
        fs.zfs
            .setxattr(&f, b"user.x", &[1; 300], 0, false, &c)
            .unwrap();
        assert_eq!(list(&fs, &f), want);
        // Set-id bits that a write takes away are no chmod.
        fs.zfs.set_props(|p| p.aclmode = AclMode::Passthrough);
        chmod(&fs, &f, 0o4640).unwrap();
        let with_bit = list(&fs, &f);
        fs.zfs.set_props(|p| p.aclmode = AclMode::Discard);
        set(&fs, &f, |s| s.kill_suidgid = true, &c).unwrap();
        assert_eq!(f.mode(), mode::REG | 0o640);
        assert_eq!(list(&fs, &f), with_bit);
        drop(f);
        let fs = fs.remount();
        let f = fs.at("h").unwrap();
        assert_eq!(list(&fs, &f), with_bit);
        assert_eq!(with_bit, want);
        // Without it the object that held it goes, too.
        let n = fs.rig.os.object_count();
        chmod(&fs, &f, 0o640).unwrap();
        assert_eq!(list(&fs, &f), acl::trivial(0o640, false));
        let outside = u64::from(pool != 5000);
        assert_eq!(fs.rig.os.object_count(), n - outside);
        put(&fs, &f, &want);
        assert_eq!(fs.rig.os.object_count(), n);
        put(&fs, &f, &want);
        assert_eq!(fs.rig.os.object_count(), n);
        // Here and in the hidden directory: the file, its list, and where attributes are files,
        // their directory and the attribute.
        drop(f);
        fs.unlink("h").unwrap();
        fs.unlink("d/g").unwrap();
        fs.zfs.reap().unwrap();
        let xattrs = if pool == 5000 { 0 } else { 2 };
        assert_eq!(fs.rig.os.object_count(), n - 1 - outside - xattrs);
    }
}

#[test]
fn chmod_follows_aclmode() {
    let fs = acl_fs();
    let f = fs.file("f", b"");
    let named = [
        user(ace_type::ALLOW, 0, RW, 7),
        user(ace_type::DENY, 0, RW, 8),
    ];
    let old = foreign(&named, 0o666, false);
    let get = |how: AclMode, bits: u32| -> Result<Vec<Ace>> {
        put(&fs, &f, &old);
        fs.zfs.set_props(|p| p.aclmode = how);
        assert_eq!(chmod(&fs, &f, bits)?, bits);
        Ok(list(&fs, &f))
    };
    let (r, w) = (ace_mask::READ_DATA, named[1].clone());
    assert_eq!(
        get(AclMode::Passthrough, 0o600).unwrap(),
        foreign(&named, 0o600, false)
    );
    let trimmed = [user(ace_type::ALLOW, 0, r, 7), w];
    assert_eq!(
        get(AclMode::Groupmask, 0o640).unwrap(),
        foreign(&trimmed, 0o640, false)
    );
    assert_eq!(kind(get(AclMode::Restricted, 0o640)), Kind::NotPermitted);
    assert_eq!(list(&fs, &f), old);
    // Also where the mode is the same already.
    assert_eq!(
        get(AclMode::Discard, 0o666).unwrap(),
        acl::trivial(0o666, false)
    );
    // Nothing is restricted about a list that says what the mode says.
    fs.zfs.set_props(|p| p.aclmode = AclMode::Restricted);
    assert_eq!(chmod(&fs, &f, 0o705).unwrap(), 0o705);
    assert_eq!(list(&fs, &f), acl::trivial(0o705, false));
}

#[test]
fn new_objects_inherit() {
    let fs = acl_fs();
    let d = fs.dir("d");
    let named = user(ace_type::ALLOW, F | D, RW, 7);
    put(&fs, &d, &foreign(std::slice::from_ref(&named), 0o755, true));
    assert_ne!(d.fixed().flags & flag::INHERIT_ACE, 0);
    let own = |flags: u16| user(ace_type::ALLOW, flags | ace_flag::INHERITED, RW, 7);
    let f = fs.file("d/f", b"");
    assert_eq!(list(&fs, &f), foreign(&[own(0)], 0o644, false));
    assert_eq!(f.mode(), mode::REG | 0o644);
    let s = fs.dir("d/s");
    let in_dir = foreign(&[own(F | D)], 0o755, true);
    assert_eq!(list(&fs, &s), in_dir);
    assert_ne!(s.fixed().flags & flag::ACL_AUTO_INHERIT, 0);
    let l = fs.make("d/l", New::symlink(b"x")).unwrap();
    assert_eq!(list(&fs, &l), acl::trivial(0o777, false));
    let t = fs
        .zfs
        .tmpfile(&s, &New::file(mode::REG | 0o666, 0o27), &Cred::root())
        .unwrap();
    assert_eq!(list(&fs, &t), foreign(&[own(0)], 0o640, false));
    // The owner of the new file, whom an entry names, gets what it says by the mode.
    put(&fs, &d, &[user(ace_type::ALLOW, F, ace_mask::EXECUTE, 7)]);
    let c = Cred::user(7, 7, &[]).already_checked();
    let new = New::file(mode::REG | 0o640, 0);
    let z = fs.make_as("d/mine", new, &c).unwrap();
    assert_eq!(z.mode(), mode::REG | 0o740);
    list(&fs, &z);
    for (how, n) in [(AclInherit::Discard, 3), (AclInherit::NoAllow, 3)] {
        fs.zfs.set_props(|p| p.aclinherit = how);
        let z = fs.file(&format!("d/{how:?}"), b"");
        assert_eq!(list(&fs, &z).len(), n);
    }
    drop((d, f, s, l, t, z));
    let fs = fs.remount();
    assert_eq!(list(&fs, &fs.at("d/s").unwrap()), in_dir);
    // What inherits through two levels.
    let deep = fs.file("d/s/deep", b"");
    assert_eq!(list(&fs, &deep), acl::trivial(0o644, false), "discard");
    fs.zfs.set_props(|p| p.aclinherit = AclInherit::Passthrough);
    let deep = fs.file("d/s/deeper", b"");
    assert_eq!(list(&fs, &deep), foreign(&[own(0)], 0o644, false));
    fs.check_tree();
}

/// The mode of a file is what POSIX ACLs say, where they count.
#[test]
fn posix_acls_have_the_mode() {
    let fs = Fs::new();
    let d = fs.dir("d");
    let all = Ace {
        flags: ace_flag::EVERYONE | F | D,
        mask: RW | ace_mask::EXECUTE,
        ..Ace::default()
    };
    put(&fs, &d, &foreign(&[all], 0o755, true));
    fs.zfs.set_props(|p| p.aclinherit = AclInherit::Passthrough);
    let new = New::file(mode::REG | 0o666, 0o77);
    let f = fs.make("d/f", new).unwrap();
    assert_eq!(f.mode(), mode::REG | 0o600);
    assert_eq!(f.fixed().flags & flag::NO_EXECS_DENIED, 0);
    assert_eq!(fs.zfs.nfs4_acl(&f).unwrap().len(), 1);
}

#[test]
fn chown_changes_whom_entries_name() {
    let fs = acl_fs();
    let f = fs.file("f", b"");
    let named = [user(ace_type::DENY, 0, ace_mask::WRITE_DATA, 7)];
    let want = foreign(&named, 0o664, false);
    put(&fs, &f, &want);
    let c = Cred::root();
    assert_eq!(f.mode(), mode::REG | 0o664);
    assert_eq!(set(&fs, &f, |s| s.uid = Some(7), &c).unwrap(), 0o464);
    assert_eq!(list(&fs, &f), want);
    assert_eq!(set(&fs, &f, |s| s.uid = Some(8), &c).unwrap(), 0o664);
    assert_eq!(list(&fs, &f), want);
    // Also where a set-id bit goes with it.
    fs.zfs.set_props(|p| p.aclmode = AclMode::Passthrough);
    chmod(&fs, &f, 0o4664).unwrap();
    assert_eq!(set(&fs, &f, |s| s.uid = Some(7), &c).unwrap(), 0o464);
    assert_eq!(set(&fs, &f, |s| s.uid = Some(8), &c).unwrap(), 0o664);
    fs.zfs.set_props(|p| p.acltype = AclType::Posix);
    assert_eq!(set(&fs, &f, |s| s.uid = Some(7), &c).unwrap(), 0o664);
}

/// Who is denied to delete does not, whatever the mode of the directory says.
#[test]
fn denied_deletion() {
    let fs = acl_fs();
    let c = Cred::user(7, 7, &[]);
    let deny = |mask| [user(ace_type::DENY, 0, mask, 7)];
    let d = fs.dir("d");
    chmod(&fs, &d, 0o777).unwrap();
    for c in [c.clone(), c.already_checked()] {
        let f = fs.file("d/f", b"");
        put(&fs, &f, &foreign(&deny(ace_mask::DELETE), 0o666, false));
        let unlink = |c: &Cred| fs.zfs.unlink(&d, b"f", c);
        assert_eq!(kind(unlink(&c)), Kind::NotPermitted);
        assert_eq!(kind(fs.rename_as("d/f", "d/g", 0, &c)), Kind::NotPermitted);
        fs.file("d/other", b"");
        let over = fs.rename_as("d/other", "d/f", 0, &c);
        assert_eq!(kind(over), Kind::NotPermitted);
        // Others, and root, may.
        fs.rename_as("d/f", "d/g", 0, &Cred::user(8, 8, &[]))
            .unwrap();
        fs.rename("d/g", "d/f", 0).unwrap();
        unlink(&Cred::root()).unwrap();
        // By the list of the directory; what the file itself grants comes first.
        let no_child = foreign(&deny(ace_mask::DELETE_CHILD), 0o777, true);
        put(&fs, &d, &no_child);
        assert_eq!(kind(fs.zfs.unlink(&d, b"other", &c)), Kind::NotPermitted);
        fs.make_as("d/new", New::dir(0o755, 0), &c).unwrap();
        assert_eq!(kind(fs.zfs.rmdir(&d, b"new", &c)), Kind::NotPermitted);
        let o = fs.at("d/other").unwrap();
        let grant = user(ace_type::ALLOW, 0, ace_mask::DELETE, 7);
        put(&fs, &o, &foreign(&[grant], 0o666, false));
        fs.zfs.unlink(&d, b"other", &c).unwrap();
        fs.rmdir("d/new").unwrap();
        put(&fs, &d, &acl::trivial(0o777, true));
    }
}

/// A damaged list keeps nothing from being read, and what needs it fails by name.
#[test]
fn damaged_lists() {
    let fs = acl_fs();
    let d = fs.dir("d");
    let f = fs.file("d/f", b"here");
    let grant = user(ace_type::ALLOW, F, RW, 7);
    put(&fs, &d, &foreign(&[grant], 0o755, true));
    let tables = fs.zfs.sa.as_ref().unwrap();
    let tx = fs.rig.tx();
    d.rewrite(&tx, tables, |_, list| {
        list.set(tables.zpl().dacl_aces, vec![1, 2, 3]);
        Ok(())
    })
    .unwrap();
    drop(tx);
    assert_eq!(fs.get(&fs.at("d/f").unwrap()), b"here");
    let e = fs
        .make("d/g", New::file(mode::REG | 0o644, 0))
        .err()
        .unwrap();
    assert_eq!(e.kind, Kind::Damaged);
    assert!(e.to_string().contains("access list"), "{e}");
    // chmod brings it back into order.
    chmod(&fs, &d, 0o755).unwrap();
    assert_eq!(list(&fs, &d), acl::trivial(0o755, true));
    fs.file("d/g", b"");
    drop(f);
}
