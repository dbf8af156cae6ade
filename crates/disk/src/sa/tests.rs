use super::*;
use crate::bytes::junk::Junk;

fn registry() -> Registry {
    Registry::load([]).unwrap()
}

/// The attributes of a plain file in the usual order.
fn file(z: &ZplAttrs, projid: bool) -> Attrs {
    let mut a = Attrs::new();
    for (i, n) in [z.mode, z.size, z.gen, z.uid, z.gid, z.parent, z.flags]
        .into_iter()
        .enumerate()
    {
        a.set_u64(n, i as u64 + 1);
    }
    for n in [z.atime, z.mtime, z.ctime, z.crtime] {
        a.set_u64_pair(n, [100 + u64::from(n), 7]);
    }
    a.set_u64(z.links, 1);
    if projid {
        a.set_u64(z.projid, 42);
    }
    a.set_u64(z.dacl_count, 3);
    a.set(
        z.dacl_aces,
        crate::acl::encode_v1(&crate::acl::trivial(0o644, false)),
    );
    a
}

#[test]
fn registry_numbers() {
    let mut r = registry();
    assert_eq!(r.number("ZPL_GID"), Some(13));
    assert_eq!(r.number("ZPL_DXATTR"), Some(20));
    assert_eq!(r.zpl().projid, 21);
    let new = r.take_new();
    assert_eq!(new.len(), 22);
    assert!(!r.has_new());
    // Values as real file systems have them: ZPL_DACL_ACES is number 19, swap class 4, variable.
    assert_eq!(new[19].encode(), 0x40013);
    assert_eq!(new[0].encode(), 0x10000000);
    // Older software: no DXATTR, no PROJID, a foreign attribute in between.
    let old = new[..20].iter().map(|i| (i.name.clone(), i.encode()));
    let mut r = Registry::load(old.chain([("ZPL_SEQ".to_string(), 20 | 8 << 24)])).unwrap();
    assert_eq!((r.zpl().dxattr, r.zpl().projid), (21, 22));
    assert_eq!(r.take_new().len(), 2);
    assert!(Registry::load([("A".into(), 3)]).is_err());
    assert!(Registry::load([("A".into(), 30), ("B".into(), 30)]).is_err());
    assert!(Registry::load([("ZPL_UID".into(), 40 | 8 << 24)]).is_err());
    assert!(Registry::load([("A".into(), 0xffff)]).is_err());
}

#[test]
fn plain_file() {
    let r = registry();
    let z = r.zpl();
    for (projid, size) in [(false, 168), (true, 176)] {
        let mut l = Layouts::default();
        let a = file(&z, projid);
        let p = pack(&a, &r, &mut l, 320).unwrap();
        assert_eq!(p.bonus.len(), size);
        assert!(p.spill.is_none());
        assert_eq!(p.bonus[..8], [0x5a, 0x50, 0x2f, 0, 2, 4, 24, 0]);
        // Fixed positions after the header.
        for (at, n) in [(0, z.mode), (8, z.size), (48, z.flags), (120, z.links)] {
            let v = u64_at(&p.bonus, 8 + at).unwrap();
            assert_eq!(Some(v), a.get_u64(n).unwrap());
        }
        assert_eq!(parse(&p.bonus, None, &r, &l).unwrap(), a);
        let found = find(&p.bonus, &r, &l, z.dacl_aces).unwrap().unwrap();
        assert_eq!(found.len(), 24);
        assert_eq!(find(&p.bonus, &r, &l, z.dxattr).unwrap(), None);
        let new = l.take_new();
        assert_eq!(new.len(), 1);
        assert_eq!(new[0].0, 2);
        let again = Layouts::load(new).unwrap();
        assert_eq!(parse(&p.bonus, None, &r, &again).unwrap(), a);
    }
}

/// Growing an attribute byte by byte over every limit: always the same attributes back, the bonus
/// never reaches into the spill pointer when there is a spill.
#[test]
fn spill() {
    let r = registry();
    let z = r.zpl();
    for space in [320, 832, 1856, 16192] {
        let mut l = Layouts::default();
        let mut spilled = false;
        for n in (0..space + 700).step_by(if space > 1000 { 53 } else { 1 }) {
            let mut a = file(&z, true);
            a.set(z.dxattr, vec![9; n]);
            a.set_u64(z.xattr, 5);
            let p = pack(&a, &r, &mut l, space).unwrap();
            assert_eq!(parse(&p.bonus, p.spill.as_deref(), &r, &l).unwrap(), a);
            assert!(p.bonus.len() <= space);
            // Two variable lengths need a header of 16 bytes: 8 more than with one.
            let total = 176 + 8 + n.div_ceil(8) * 8 + 8; // xattr comes last
            assert_eq!(p.spill.is_some(), total > space, "space {space}, {n} bytes");
            if let Some(s) = &p.spill {
                spilled = true;
                assert_eq!(p.bonus.len(), space - 128);
                assert_eq!(s.len() % 512, 0);
            }
        }
        assert!(spilled);
        assert!(l.take_new().len() <= 5);
    }
}

#[test]
fn limits() {
    let r = registry();
    let z = r.zpl();
    let mut l = Layouts::default();
    let mut a = Attrs::new();
    a.set(z.dxattr, vec![0; MAX_ATTR]);
    a.set(z.symlink, vec![0; MAX_ATTR - 500]);
    let p = pack(&a, &r, &mut l, 320).unwrap();
    assert_eq!(parse(&p.bonus, p.spill.as_deref(), &r, &l).unwrap(), a);
    a.set(z.symlink, vec![0; MAX_ATTR]);
    let e = pack(&a, &r, &mut l, 320).unwrap_err();
    assert_eq!(e.kind, base::Kind::FileTooBig);
    a.set(z.symlink, vec![0; MAX_ATTR + 1]);
    assert!(pack(&a, &r, &mut l, 320).is_err());
    let mut a = Attrs::new();
    a.set(z.mode, vec![0; 7]);
    assert!(pack(&a, &r, &mut l, 320).is_err());
    a.set(500, vec![]);
    assert!(pack(&a, &r, &mut l, 320).is_err());
    // Nothing at all is layout 1, and 0 in an old header means the same.
    let mut p = pack(&Attrs::new(), &r, &mut l, 320).unwrap();
    assert_eq!(p.bonus, [0x5a, 0x50, 0x2f, 0, 1, 4, 0, 0]);
    p.bonus[4] = 0;
    assert!(parse(&p.bonus, None, &r, &l).unwrap().list.is_empty());
    // All numbers in use.
    for n in 0..1022u16 {
        l.number_for(&[n, 1, 2, n]).ok();
    }
    assert!(l.number_for(&[9, 9, 9]).is_err());
}

#[test]
fn foreign_byte_order() {
    let r = registry();
    let z = r.zpl();
    let mut l = Layouts::default();
    let mut a = file(&z, true);
    a.set(z.symlink, b"target".to_vec());
    let p = pack(&a, &r, &mut l, 320).unwrap();
    let mut b = p.bonus.clone();
    // As the other byte order stores it: magic, info, lengths, attributes by class.
    let places = index(&b, &r, &l).unwrap();
    b[0..4].reverse();
    b[4..6].reverse();
    swap_u16s(&mut b[6..16]);
    for (n, range) in places {
        match r.get(n).unwrap().swap {
            0 => swap_u64s(&mut b[range]),
            4 => b[range].chunks_exact_mut(8).for_each(|e| {
                e[0..2].reverse();
                e[2..4].reverse();
                e[4..8].reverse();
            }),
            _ => {}
        }
    }
    assert!(parse(&b, None, &r, &l).is_err());
    assert!(to_little_endian(&mut b, &r, &l).unwrap());
    assert_eq!(b, p.bonus);
    assert!(!to_little_endian(&mut b, &r, &l).unwrap());
}

#[test]
fn hostile() {
    let r = registry();
    let z = r.zpl();
    let mut l = Layouts::default();
    let mut a = file(&z, true);
    a.set(z.symlink, b"target".to_vec());
    a.set(z.dxattr, vec![1; 30]);
    let good = pack(&a, &r, &mut l, 320).unwrap().bonus;
    Junk(10).torment(&good, 3000, |b| {
        let _ = parse(b, Some(b), &r, &l);
        let mut c = b.to_vec();
        let _ = to_little_endian(&mut c, &r, &l);
        if c.len() >= 4 {
            c[..4].copy_from_slice(&MAGIC.to_be_bytes());
            let _ = to_little_endian(&mut c, &r, &l);
        }
    });
}
