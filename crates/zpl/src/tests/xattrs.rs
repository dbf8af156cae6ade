//! Extended attributes and POSIX ACLs.

use super::*;
use crate::acl::{PosixAcl, XATTR_ACCESS, XATTR_DEFAULT};
use crate::attr::mode;
use disk::xattr::{tag, PosixAce, NO_ID};

fn acl(list: &[(u16, u16, u32)]) -> Vec<u8> {
    PosixAcl {
        list: list
            .iter()
            .map(|&(tag, perm, id)| PosixAce { tag, perm, id })
            .collect(),
    }
    .encode()
}

#[test]
fn set_get_list_remove() {
    for how in [XattrMode::Sa, XattrMode::Dir] {
        let fs = Fs::new();
        fs.zfs.set_props(|p| p.xattr = how);
        let c = Cred::root();
        let f = fs.file("f", b"");
        let set = |n: &[u8], v: &[u8], fl| fs.zfs.setxattr(&f, n, v, fl, false, &c);
        assert!(!f.may_have_xattrs());
        assert_eq!(kind(fs.zfs.getxattr(&f, b"user.a", &c)), Kind::NoData);
        assert_eq!(kind(set(b"user.a", b"1", XATTR_REPLACE)), Kind::NoData);
        set(b"user.a", b"1", XATTR_CREATE).unwrap();
        assert_eq!(kind(set(b"user.a", b"1", XATTR_CREATE)), Kind::Exists);
        set(b"user.a", b"two", XATTR_REPLACE).unwrap();
        set(b"user.empty", b"", 0).unwrap();
        set(b"trusted.t", b"t", 0).unwrap();
        set(b"security.selinux", b"label", 0).unwrap();
        let sizes = [100, 3000, 32_768, 32_769, 65_536];
        for n in sizes {
            set(format!("user.v{n}").as_bytes(), &vec![n as u8; n], 0).unwrap();
        }
        assert_eq!(kind(set(b"user.big", &[0; 65_537], 0)), Kind::ArgTooBig);
        assert_eq!(kind(set(b"wrong", b"", 0)), Kind::Unsupported);
        let ctime = fs.zfs.getattr(&f).ctime;
        set(b"user.a", b"three", 0).unwrap();
        assert!(fs.zfs.getattr(&f).ctime > ctime);
        drop(f);
        let fs = fs.remount();
        let f = fs.at("f").unwrap();
        let get = |n: &[u8]| fs.zfs.getxattr(&f, n, &c);
        assert_eq!(get(b"user.a").unwrap(), b"three");
        assert_eq!(get(b"user.empty").unwrap(), b"");
        assert_eq!(get(b"trusted.t").unwrap(), b"t");
        for n in sizes {
            let v = get(format!("user.v{n}").as_bytes()).unwrap();
            assert!(v == vec![n as u8; n], "{how:?} {n}");
        }
        assert_eq!(fs.zfs.listxattr(&f, &c).unwrap().len(), 4 + sizes.len());
        let u = Cred::user(5, 5, &[]);
        assert_eq!(kind(fs.zfs.getxattr(&f, b"trusted.t", &u)), Kind::NoData);
        assert!(!fs
            .zfs
            .listxattr(&f, &u)
            .unwrap()
            .contains(&b"trusted.t".to_vec()));
        assert_eq!(
            kind(fs.zfs.setxattr(&f, b"trusted.t", b"", 0, false, &u)),
            Kind::NotPermitted
        );
        assert_eq!(
            kind(fs.zfs.setxattr(&f, b"user.a", b"", 0, false, &u)),
            Kind::Access
        );
        for n in fs.zfs.listxattr(&f, &c).unwrap() {
            fs.zfs.removexattr(&f, &n, &c).unwrap();
            assert_eq!(kind(fs.zfs.removexattr(&f, &n, &c)), Kind::NoData);
        }
        assert!(fs.zfs.listxattr(&f, &c).unwrap().is_empty());
        let n = fs.rig.os.object_count();
        drop(f);
        fs.unlink("f").unwrap();
        fs.zfs.reap().unwrap();
        // The file, and the attribute directory that stays once it was made.
        assert_eq!(fs.rig.os.object_count(), n - 2, "{how:?}");
    }
}

/// Their space counts as that of the file's owner.
#[test]
fn attributes_in_a_hidden_directory_follow_a_chown() {
    let fs = Fs::new();
    fs.zfs.set_props(|p| p.xattr = XattrMode::Dir);
    let c = Cred::root();
    let f = fs.file("f", b"");
    fs.zfs
        .setxattr(&f, b"user.a", &[1; 40_000], 0, false, &c)
        .unwrap();
    let chown = |uid, gid| {
        let set = SetAttr {
            uid,
            gid,
            ..SetAttr::default()
        };
        fs.zfs.setattr(&f, &set, &c).unwrap();
    };
    let owners = || -> Vec<(u32, u32)> {
        let hidden = fs.zfs.xattr_objects(&f).unwrap();
        let owner = |z: &Arc<Znode>| (z.fixed().uid32(), z.fixed().gid32());
        hidden.iter().map(owner).collect()
    };
    chown(Some(7), Some(8));
    assert_eq!(owners(), [(7, 8), (7, 8)]);
    chown(None, Some(9));
    assert_eq!(owners(), [(7, 9), (7, 9)]);
}

#[test]
fn between_the_forms() {
    let fs = Fs::new();
    let c = Cred::root();
    let f = fs.file("f", b"");
    for i in 0..40 {
        let how = if i % 2 == 0 {
            XattrMode::Dir
        } else {
            XattrMode::Sa
        };
        fs.zfs.set_props(|p| {
            p.xattr = how;
            p.xattr_compat = i % 3 == 0;
        });
        for n in 0..3 {
            let name = format!("user.{n}");
            let v = vec![i as u8; (i * 997 * (n + 1)) % 40_000];
            fs.zfs
                .setxattr(&f, name.as_bytes(), &v, 0, false, &c)
                .unwrap();
            assert!(fs.zfs.getxattr(&f, name.as_bytes(), &c).unwrap() == v);
        }
        let mut l = fs.zfs.listxattr(&f, &c).unwrap();
        l.sort();
        assert_eq!(l, [b"user.0", b"user.1", b"user.2"], "round {i}");
    }
    fs.check_tree();
}

#[test]
fn only_files_and_directories_have_user_attributes() {
    let fs = Fs::new();
    let c = Cred::root();
    let s = fs.make("s", New::symlink(b"t")).unwrap();
    assert_eq!(
        kind(fs.zfs.setxattr(&s, b"user.x", b"", 0, false, &c)),
        Kind::NotPermitted
    );
    fs.zfs
        .setxattr(&s, b"trusted.x", b"1", 0, false, &c)
        .unwrap();
    assert_eq!(fs.zfs.readlink(&s).unwrap(), b"t");
    drop(s);
    let fs = fs.remount();
    let s = fs.at("s").unwrap();
    assert_eq!(fs.zfs.readlink(&s).unwrap(), b"t");
    assert_eq!(fs.zfs.getxattr(&s, b"trusted.x", &c).unwrap(), b"1");
    fs.zfs.set_props(|p| p.xattr = XattrMode::Off);
    let f = fs.file("f", b"");
    assert_eq!(
        kind(fs.zfs.setxattr(&f, b"user.x", b"", 0, false, &c)),
        Kind::Unsupported
    );
    assert_eq!(kind(fs.zfs.getxattr(&f, b"user.x", &c)), Kind::Unsupported);
}

#[test]
fn access_acl_and_mode() {
    let fs = Fs::new();
    let c = Cred::root();
    let f = fs.file("f", b"");
    let list = acl(&[
        (tag::USER_OBJ, 6, NO_ID),
        (tag::USER, 6, 10),
        (tag::GROUP_OBJ, 4, NO_ID),
        (tag::MASK, 6, NO_ID),
        (tag::OTHER, 0, NO_ID),
    ]);
    fs.zfs
        .setxattr(&f, XATTR_ACCESS, &list, 0, false, &c)
        .unwrap();
    assert_eq!(f.mode() & mode::PERM, 0o660);
    let named = Cred::user(10, 10, &[]);
    fs.zfs.access(&f, 6, &named).unwrap();
    assert_eq!(
        kind(fs.zfs.access(&f, 4, &Cred::user(11, 11, &[]))),
        Kind::Access
    );
    // chmod sets the mask, not the group entry.
    let chmod = |bits| {
        let s = SetAttr {
            mode: Some(bits),
            ..SetAttr::default()
        };
        fs.zfs.setattr(&f, &s, &c).unwrap();
    };
    chmod(0o604);
    let got = PosixAcl::decode(&fs.zfs.getxattr(&f, XATTR_ACCESS, &c).unwrap()).unwrap();
    assert_eq!(got.mode(), 0o604);
    assert_eq!(got.list[2].perm, 4);
    assert_eq!(kind(fs.zfs.access(&f, 4, &named)), Kind::Access);
    chmod(0o640);
    fs.zfs.access(&f, 4, &named).unwrap();
    // A list that says no more than the mode is not kept.
    let plain = PosixAcl::from_mode(0o751).encode();
    fs.zfs
        .setxattr(&f, XATTR_ACCESS, &plain, 0, false, &c)
        .unwrap();
    assert_eq!(f.mode() & mode::PERM, 0o751);
    assert_eq!(kind(fs.zfs.getxattr(&f, XATTR_ACCESS, &c)), Kind::NoData);
    let r = fs.zfs.setxattr(&f, XATTR_ACCESS, b"junk!", 0, false, &c);
    assert_eq!(kind(r), Kind::Invalid);
    let r = fs.zfs.setxattr(&f, XATTR_DEFAULT, &list, 0, false, &c);
    assert_eq!(kind(r), Kind::Access);
    let r = fs.zfs.setxattr(&f, XATTR_ACCESS, &list, 0, false, &named);
    assert_eq!(kind(r), Kind::NotPermitted);
    fs.zfs.set_props(|p| p.acltype = AclType::Off);
    assert_eq!(
        kind(fs.zfs.getxattr(&f, XATTR_ACCESS, &c)),
        Kind::Unsupported
    );
}

#[test]
fn default_acl_is_inherited() {
    let fs = Fs::new();
    let c = Cred::root();
    let d = fs.dir("d");
    let list = acl(&[
        (tag::USER_OBJ, 7, NO_ID),
        (tag::USER, 7, 10),
        (tag::GROUP_OBJ, 5, NO_ID),
        (tag::MASK, 7, NO_ID),
        (tag::OTHER, 5, NO_ID),
    ]);
    fs.zfs
        .setxattr(&d, XATTR_DEFAULT, &list, 0, false, &c)
        .unwrap();
    // The umask does not count below a default ACL.
    let f = fs.make("d/f", New::file(mode::REG | 0o666, 0o077)).unwrap();
    assert_eq!(f.mode() & mode::PERM, 0o664);
    let got = PosixAcl::decode(&fs.zfs.getxattr(&f, XATTR_ACCESS, &c).unwrap()).unwrap();
    assert_eq!(
        got.list.iter().map(|e| e.perm).collect::<Vec<_>>(),
        [6, 7, 5, 6, 4]
    );
    let s = fs.make("d/s", New::dir(0o777, 0o077)).unwrap();
    assert_eq!(s.mode() & mode::PERM, 0o775);
    assert_eq!(fs.zfs.getxattr(&s, XATTR_DEFAULT, &c).unwrap(), list);
    let l = fs.make("d/l", New::symlink(b"x")).unwrap();
    assert!(!l.may_have_xattrs());
    drop((f, s, l, d));
    let fs = fs.remount();
    let f = fs.at("d/f").unwrap();
    fs.zfs.access(&f, 6, &Cred::user(10, 1, &[])).unwrap();
    assert_eq!(
        kind(fs.zfs.access(&f, 2, &Cred::user(11, 1, &[]))),
        Kind::Access
    );
    fs.zfs
        .removexattr(&fs.at("d").unwrap(), XATTR_DEFAULT, &c)
        .unwrap();
    let g = fs.make("d/g", New::file(mode::REG | 0o666, 0o077)).unwrap();
    assert_eq!(g.mode() & mode::PERM, 0o600);
}
