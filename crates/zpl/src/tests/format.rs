//! The shape of what is on disk (data format §6.1, §18–§24).

use super::*;
use crate::attr::{flag, mode, SetTime};
use disk::types::ObjType;
use zap::Zap;

/// User, group and project where the accounting looks for them, whatever the layout (§2.9).
fn owner(b: &[u8]) -> Option<(u64, u64, u64)> {
    let w = |at: usize| u64::from_le_bytes(b[8 + at..16 + at].try_into().unwrap());
    let project = if w(48) & flag::PROJID != 0 { w(128) } else { 0 };
    Some((w(24), w(32), project))
}

fn owner_legacy(b: &[u8]) -> Option<(u64, u64, u64)> {
    let w = |at: usize| u64::from_le_bytes(b[at..8 + at].try_into().unwrap());
    Some((w(128), w(136), 0))
}

#[test]
fn fresh_file_system() {
    let fs = Fs::with(5000, |o| o.project_quota = true).remount();
    let os = &fs.rig.os;
    let master = os.hold(1).unwrap();
    assert_eq!(master.info().obj_type, ObjType::MASTER_NODE);
    let word = |n: &str| Zap::new(&*master).get(n).unwrap();
    assert_eq!(word("VERSION"), Some(5));
    for n in ["utf8only", "normalization", "casesensitivity"] {
        assert_eq!(word(n), Some(0));
    }
    let sa = os.hold(word("SA_ATTRS").unwrap()).unwrap();
    assert_eq!(sa.info().obj_type, ObjType::SA_MASTER_NODE);
    let queue = os.hold(word("DELETE_QUEUE").unwrap()).unwrap();
    assert_eq!(queue.info().obj_type, ObjType::UNLINKED_SET);
    let reg = os.hold(Zap::new(&*sa).lookup("REGISTRY").unwrap()).unwrap();
    assert_eq!(reg.info().obj_type, ObjType::SA_ATTR_REGISTRATION);
    let r = Zap::new(&*reg);
    assert_eq!(r.iter().count(), 22);
    // Number, swap class, length (§19.1).
    assert_eq!(r.lookup("ZPL_ATIME").unwrap(), 16 << 24);
    assert_eq!(r.lookup("ZPL_DACL_ACES").unwrap(), 19 | 4 << 16);
    assert_eq!(r.lookup("ZPL_PROJID").unwrap(), 21 | 8 << 24);
    let lay = os.hold(Zap::new(&*sa).lookup("LAYOUTS").unwrap()).unwrap();
    assert_eq!(lay.info().obj_type, ObjType::SA_ATTR_LAYOUTS);
    let two = Zap::new(&*lay).get_value("2").unwrap().unwrap();
    assert_eq!(two.size, 2);
    assert_eq!(
        two.ints(),
        [5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 21, 16, 19]
    );
    let root = os.hold(word("ROOT").unwrap()).unwrap();
    let i = root.info();
    assert_eq!(
        (i.obj_type, i.bonus_type),
        (ObjType::DIRECTORY_CONTENTS, ObjType::SA)
    );
    let b = root.bonus();
    assert_eq!(b.len(), 176);
    assert_eq!(b[..8], [0x5a, 0x50, 0x2f, 0, 2, 4, 24, 0]);
    let w = |at: usize| u64::from_le_bytes(b[8 + at..16 + at].try_into().unwrap());
    assert_eq!((w(0), w(8), w(24), w(32)), (0o40755, 2, 0, 0));
    assert_eq!(w(16), 4, "generation is the txg of creation");
    assert_eq!(w(40), root.object());
    assert_eq!(w(48), 0x840800000144);
    assert_eq!((w(120), w(128), w(136)), (2, 0, 3));
    assert_eq!(owner(&b), Some((0, 0, 0)));
    assert_eq!(os.object_count(), 6);
}

#[test]
fn without_projects_and_with_name_rules() {
    let fs = Fs::with(5000, |o| {
        o.normalization = 0x50;
        o.casesensitivity = 1;
    });
    assert_eq!(fs.root().raw().len(), 168);
    assert_eq!(fs.root().fixed().flags, 0x40800000144);
    fs.file("Straße-É", b"x");
    assert_eq!(fs.get(&fs.at("straße-e\u{301}").unwrap()), b"x");
    assert_eq!(
        kind(fs.make("STRAßE-é", New::file(mode::REG, 0))),
        Kind::Exists
    );
    fs.rename("straße-é", "STRASSE", 0).unwrap();
    assert_eq!(fs.list(""), ["STRASSE"]);
    // The case of a name can be changed.
    fs.rename("strasse", "Strasse", 0).unwrap();
    assert_eq!(fs.list(""), ["Strasse"]);
    let c = Cred::root();
    let bad = fs
        .zfs
        .create(&fs.root(), b"\xff", &New::file(mode::REG, 0), &c);
    assert_eq!(kind(bad), Kind::BadName);
    fs.unlink("STRASSE").unwrap();
    fs.check_tree();
    let fs = fs.remount();
    assert!(fs.zfs.utf8only);
    assert!(fs.list("").is_empty());
}

#[test]
fn mixed_case() {
    let fs = Fs::with(5000, |o| o.casesensitivity = 2);
    fs.file("a", b"1");
    fs.file("A", b"2");
    assert_eq!(fs.get(&fs.at("a").unwrap()), b"1");
    assert_eq!(fs.get(&fs.at("A").unwrap()), b"2");
    fs.unlink("A").unwrap();
    assert_eq!(kind(fs.at("A")), Kind::NotFound);
    assert_eq!(fs.list(""), ["a"]);
}

#[test]
fn flags_of_new_objects() {
    let fs = Fs::with(5000, |o| o.project_quota = true);
    let d = fs.dir("d");
    let f = fs.file("f", b"");
    let base = flag::ARCHIVE | flag::AV_MODIFIED | flag::ACL_TRIVIAL | flag::PROJID;
    assert_eq!(f.fixed().flags, base);
    assert_eq!(
        d.fixed().flags,
        base | flag::ACL_AUTO_INHERIT | flag::NO_EXECS_DENIED
    );
    // Every set of a fresh regular file is 176 bytes with layout 2.
    assert_eq!(f.raw().len(), 176);
    assert_eq!(f.raw()[4..6], [2, 4]);
    // chmod to a mode whose trivial list is longer, and back.
    let c = Cred::root();
    for (bits, aces) in [(0o057u32, 5), (0o644, 3), (0o705, 5), (0o777, 3)] {
        let set = SetAttr {
            mode: Some(bits),
            ..SetAttr::default()
        };
        fs.zfs.setattr(&f, &set, &c).unwrap();
        let n = fs.zfs.sa.as_ref().unwrap().zpl();
        let list = fs.zfs.sa.as_ref().unwrap().load(&f.dnode).unwrap();
        assert_eq!(list.get_u64(n.dacl_count).unwrap(), Some(aces), "{bits:o}");
        let b = list.get(n.dacl_aces).unwrap();
        let list = disk::acl::decode_v1(b).unwrap();
        assert_eq!(disk::acl::mode_of(&list, 0, 0), bits);
        assert_eq!(f.fixed().flags & flag::NO_EXECS_DENIED != 0, bits == 0o777);
    }
}

#[test]
fn block_sizes() {
    let fs = Fs::new();
    let size_of = |z: &Znode| z.dnode.info().block_size;
    let f = fs.file("f", b"x");
    assert_eq!(size_of(&f), 512);
    fs.put(&f, 0, &[1; 513]);
    assert_eq!(size_of(&f), 1024);
    fs.put(&f, 0, &[1; 5000]);
    assert_eq!(size_of(&f), 5120);
    fs.put(&f, 100_000, &[1; 100_000]);
    assert_eq!(size_of(&f), 128 << 10);
    let mut want = vec![1; 5000];
    want.resize(100_000, 0);
    want.resize(200_000, 1);
    assert!(fs.get(&f) == want);
    let g = fs.file("g", b"");
    fs.zfs.truncate(&g, 3000, &Cred::root()).unwrap();
    assert_eq!(size_of(&g), 3072);
    fs.zfs.set_props(|p| p.recordsize = 4096);
    fs.put(&g, 3000, &[2; 3000]);
    assert_eq!(size_of(&g), 4096);
    fs.put(&f, 300_000, b"y");
    assert_eq!(size_of(&f), 128 << 10);
    fs.zfs.set_props(|p| p.recordsize = 1 << 20);
    let h = fs.file("h", &vec![3; 3 << 20]);
    assert_eq!(size_of(&h), 1 << 20);
    let fs = fs.remount();
    assert!(fs.get(&fs.at("h").unwrap()) == vec![3; 3 << 20]);
}

#[test]
fn project_ids() {
    let fs = Fs::with(5000, |o| o.project_quota = true);
    let c = Cred::root();
    let d = fs.dir("d");
    fs.zfs.set_project(&d, 42, &c).unwrap();
    fs.zfs
        .set_fs_flags(&d, attr::fs_flag::PROJINHERIT, &c)
        .unwrap();
    let f = fs.file("d/f", b"");
    assert_eq!(fs.zfs.getattr(&f).projid, 42);
    assert_eq!(fs.zfs.getattr(&f).fs_flags, attr::fs_flag::PROJINHERIT);
    assert_eq!(owner(&f.dnode.bonus()), Some((0, 0, 42)));
    let g = fs.file("g", b"");
    assert_eq!(kind(fs.link(&g, "d/g")), Kind::CrossDevice);
    assert_eq!(kind(fs.rename("g", "d/g", 0)), Kind::CrossDevice);
    fs.zfs.set_project(&g, 42, &c).unwrap();
    fs.rename("g", "d/g", 0).unwrap();
    // An object of a time without projects.
    fs.zfs.set_props(|p| p.project_quota = false);
    let old = fs.file("old", b"");
    assert_eq!(old.raw().len(), 168);
    fs.zfs.set_props(|p| p.project_quota = true);
    fs.zfs.set_project(&old, 7, &c).unwrap();
    assert_eq!(owner(&old.dnode.bonus()), Some((0, 0, 7)));
    assert_eq!(fs.zfs.getattr(&old).projid, 7);
}

#[test]
fn a_change_of_project_moves_the_extended_attributes_along() {
    let fs = Fs::with(5000, |o| o.project_quota = true);
    let c = Cred::root();
    fs.zfs.set_props(|p| p.xattr = XattrMode::Dir);
    let f = fs.file("f", b"");
    fs.zfs
        .setxattr(&f, b"user.a", &[7; 5000], 0, false, &c)
        .unwrap();
    fs.zfs.setxattr(&f, b"user.b", b"b", 0, false, &c).unwrap();
    fs.zfs.set_project(&f, 42, &c).unwrap();
    let hidden = fs.zfs.xattr_objects(&f).unwrap();
    assert_eq!(hidden.len(), 3);
    for z in &hidden {
        assert_eq!(owner(&z.dnode.bonus()), Some((0, 0, 42)));
    }
    drop((f, hidden));
    let fs = fs.remount();
    let f = fs.at("f").unwrap();
    assert_eq!(fs.zfs.getxattr(&f, b"user.b", &c).unwrap(), b"b");
    for z in fs.zfs.xattr_objects(&f).unwrap() {
        assert_eq!(fs.zfs.getattr(&z).projid, 42);
    }
}

#[test]
fn dnode_sizes_and_spill() {
    let fs = Fs::new();
    let c = Cred::root();
    fs.zfs.set_props(|p| p.dnode_slots = 2);
    let f = fs.file("f", b"");
    assert_eq!(f.dnode.info().slots, 2);
    let big = vec![9; 20_000];
    fs.zfs
        .setxattr(&f, b"user.big", &big, 0, false, &c)
        .unwrap();
    assert!(f.dnode.spill().unwrap().is_some());
    fs.put(&f, 0, b"data");
    drop(f);
    let fs = fs.remount();
    let f = fs.at("f").unwrap();
    assert_eq!(fs.zfs.getxattr(&f, b"user.big", &c).unwrap(), big);
    assert_eq!(f.raw().len(), 1024 - 192 - 128);
    fs.zfs.removexattr(&f, b"user.big", &c).unwrap();
    assert!(f.dnode.spill().unwrap().is_none());
    assert_eq!(fs.get(&f), b"data");
    drop(f);
    let fs = fs.remount();
    let f = fs.at("f").unwrap();
    assert!(f.dnode.spill().unwrap().is_none());
    assert_eq!(f.raw().len(), 168);
}

/// Every old version: made, used, mounted again.
#[test]
fn legacy_versions() {
    for (pool, zpl) in [(1u64, 1u64), (8, 2), (9, 3), (23, 4), (28, 4)] {
        let fs = Fs::with(pool, |o| o.version = zpl);
        let c = Cred::root();
        assert!(fs.zfs.sa.is_none());
        let f = fs.file("f", b"old content");
        assert_eq!(f.dnode.info().bonus_type, ObjType::ZNODE);
        assert_eq!(f.form(), Form::Legacy);
        fs.dir("d");
        for len in [1, 55, 56, 57, 600, 4095] {
            fs.make(&format!("d/s{len}"), New::symlink(&vec![b't'; len]))
                .unwrap();
        }
        fs.make("dev", New::device(mode::CHR | 0o600, 0, 0x103))
            .unwrap();
        fs.link(&f, "d/f2").unwrap();
        for bits in [0o057u32, 0o6755, 0o644] {
            let set = SetAttr {
                mode: Some(bits),
                mtime: Some(SetTime::To(Time::new(1, 2))),
                ..SetAttr::default()
            };
            assert_eq!(fs.zfs.setattr(&f, &set, &c).unwrap().mode & 0o7777, bits);
        }
        fs.zfs
            .setxattr(&f, b"user.x", b"in a directory", 0, false, &c)
            .unwrap();
        fs.zfs.setxattr(&f, b"user.y", b"2", 0, false, &c).unwrap();
        assert_eq!(f.fixed().flags >> 32 != 0, zpl >= 3);
        drop(f);
        let n = fs.rig.os.object_count();
        let fs = fs.remount();
        let f = fs.at("d/f2").unwrap();
        assert_eq!(fs.get(&f), b"old content");
        assert_eq!(fs.zfs.getattr(&f).mtime, Time::new(1, 2));
        assert_eq!(fs.zfs.getattr(&f).nlink, 2);
        assert_eq!(
            fs.zfs.getxattr(&f, b"user.x", &c).unwrap(),
            b"in a directory"
        );
        assert_eq!(fs.zfs.listxattr(&f, &c).unwrap().len(), 2);
        assert_eq!(fs.zfs.getattr(&fs.at("dev").unwrap()).rdev, 0x103);
        for len in [1, 55, 56, 57, 600, 4095] {
            let z = fs.at(&format!("d/s{len}")).unwrap();
            assert_eq!(fs.zfs.readlink(&z).unwrap(), vec![b't'; len], "ZPL {zpl}");
        }
        fs.check_tree();
        assert_eq!(fs.rig.os.object_count(), n);
        drop(f);
        fs.unlink("f").unwrap();
        fs.unlink("d/f2").unwrap();
        fs.zfs.reap().unwrap();
        // The file, its attribute directory and two attributes.
        assert_eq!(fs.rig.os.object_count(), n - 4);
        let b = fs.root().dnode.bonus();
        assert_eq!(owner_legacy(&b), Some((0, 0, 0)));
    }
    let rig = Rig::new(2, 64 << 20, WritePolicy::default());
    let tx = rig.tx();
    let mut o = FsOptions::new(23, Time::default());
    o.version = 5;
    assert_eq!(kind(create_fs(&rig.os, &tx, &o)), Kind::Unsupported);
}

/// Device numbers in the forms of both Linux implementations.
#[test]
fn device_numbers() {
    use crate::znode::{rdev_from_linux, rdev_to_linux, DeviceForm};
    use DeviceForm::*;
    let form = |major: u64, minor: u64| minor & 0xff | major << 8 | (minor & 0xfff00) << 12;
    assert_eq!(DeviceForm::of(true, 0), Modern);
    assert_eq!(DeviceForm::of(false, 5000), Mixed);
    assert_eq!(DeviceForm::of(false, 28), Old);
    for (major, minor) in [
        (1, 3),
        (8, 0),
        (8, 300),
        (259, 3),
        (4000, 70_000),
        (0, 0),
        (0, 9),
    ] {
        let dev = form(major, minor);
        let (old, new) = (dev, major << 20 | minor);
        for f in [Modern, Mixed, Old] {
            let stored = rdev_from_linux(dev, f);
            assert_eq!(rdev_to_linux(stored, f), dev, "{major}:{minor} {f:?}");
            assert_eq!(stored, if f == Old && major != 0 { old } else { new });
        }
        // What the other one left in the pool.
        if minor < 256 && major != 0 {
            assert_eq!(rdev_to_linux(new, Old), dev);
            assert_eq!(rdev_to_linux(old, Mixed), dev);
        }
        // Other systems.
        if major != 0 {
            for f in [Modern, Mixed, Old] {
                assert_eq!(rdev_to_linux(major << 32 | minor, f), dev);
            }
        }
    }
}
