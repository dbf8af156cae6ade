//! Structures of real pools made by OpenZFS 2.3: decoded, looked at, encoded to the same bytes.

use base::Txg;
use disk::dsl::{BpobjPhys, DslDatasetPhys, DslDirPhys, Used};
use disk::history::{self, HistoryPhys};
use disk::sa::{self, Layouts, Registry};
use disk::spacemap::{self, Entry, SpaceMapPhys};
use disk::znode::ZnodePhys;
use disk::{acl, xattr, NvList};

macro_rules! data {
    ($name:literal) => {
        include_bytes!(concat!("../testdata/", $name)).as_slice()
    };
}

#[test]
fn config_of_the_mos() {
    let b = data!("config-single.bin");
    let (l, n) = NvList::decode(b).unwrap();
    assert_eq!(n, b.len());
    assert_eq!(l.pack_xdr(), b);
    let tree = l.need_nvlist("vdev_tree").unwrap();
    assert_eq!(tree.get_str("type"), Some("root"));
    let children = tree.get_nvlist_array("children").unwrap();
    assert_eq!(children.len(), 1);
    assert_eq!(children[0].get_u64("ashift"), Some(9));
    assert_eq!(l.get_bool("com.delphix:has_per_vdev_zaps"), Some(true));
}

#[test]
fn dsl_bonuses() {
    let b = data!("dsl-dir.bin");
    let d = DslDirPhys::decode(b).unwrap();
    assert_eq!(d.encode(), b);
    assert_eq!((d.head_dataset_obj, d.flags), (144, 1));
    assert_eq!(d.used(Used::Head), d.used_bytes);
    let b = data!("dsl-dataset.bin");
    let d = DslDatasetPhys::decode(b).unwrap();
    assert_eq!(d.encode(), b);
    assert_eq!(
        (d.dir_obj, d.prev_snap_txg, d.creation_txg),
        (141, Txg::new(1), Txg::new(8))
    );
    assert_eq!(
        (d.referenced_bytes, d.uncompressed_bytes),
        (1942016, 10318336)
    );
    assert!(!d.is_snapshot());
    assert_eq!(d.bp.obj_type().0, 11);
    // A deadlist of a version 28 pool with 11 entries.
    let mut b = [0; 48];
    b[0] = 11;
    b[9] = 0xf0;
    b[17] = 0x78;
    b[25] = 0x78;
    let p = BpobjPhys::decode(&b).unwrap();
    assert_eq!((p.num_blkptrs, p.bytes, p.comp), (11, 0xf000, 0x7800));
    assert_eq!(p.encode(), b);
}

#[test]
fn history_records() {
    let b = data!("history-single.bin");
    let h = HistoryPhys::decode(&b[..40]).unwrap();
    assert_eq!(h.encode(), b[..40]);
    assert_eq!((h.pool_create_len, h.bof, h.eof), (12336, 12336, 28792));
    assert_eq!(HistoryPhys::new(184549376).phys_max_off, h.phys_max_off);
    let mut rest = &b[40..];
    let mut records = Vec::new();
    while let Some((l, n)) = history::unpack_record(rest).unwrap() {
        assert_eq!(history::pack_record(&l), rest[..n]);
        records.push(l);
        rest = &rest[n..];
    }
    assert!(!records.is_empty());
    assert!(records[0].get_u64(history::keys::TIME).is_some());
    assert!(records[0].get_str(history::keys::HOSTNAME).is_some());
    // OpenZFS's zdb and zpool end with an assertion at an internal record that says nothing.
    let internal = |r: &&disk::NvList| r.contains(history::keys::INTERNAL_NAME);
    assert!(records.iter().filter(internal).count() > 0);
    for r in records.iter().filter(internal) {
        assert!(r.get_str(history::keys::INTERNAL_STR).is_some(), "{r:?}");
    }
}

#[test]
fn space_map() {
    let b = data!("spacemap-single.bin");
    let s = SpaceMapPhys::decode(&b[..320]).unwrap();
    assert_eq!(s.encode(), b[..320]);
    assert_eq!(s.length as usize, b.len() - 320);
    let mut allocated = base::RangeSet::new();
    let mut w = spacemap::Writer::new(131072, 0, true);
    let mut log = Vec::new();
    for e in spacemap::entries(&b[320..]) {
        match e.unwrap() {
            Entry::Debug { free, pass, txg } => w.debug(free, pass.into(), txg),
            Entry::Range(r) => {
                w.range(r.free, r.offset, r.run, None).unwrap();
                log.push(r);
            }
        }
    }
    assert_eq!(w.finish(), b[320..]);
    // The replay must be consistent: no double allocation, no free of free space, and in the end
    // as much allocated as the bonus says.
    for r in log {
        let (start, end) = r.bytes(9).unwrap();
        assert!(end <= 1 << 24);
        let changed = if r.free {
            allocated.remove(start, end)
        } else {
            allocated.insert(start, end)
        };
        assert_eq!(changed, end - start);
    }
    assert_eq!(allocated.total() as i64, s.alloc);
}

/// Attribute numbers in the order of a file: MODE SIZE GEN UID GID PARENT FLAGS, times, LINKS,
/// PROJID, DACL_COUNT, DACL_ACES.
const FILE: [u16; 15] = [5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 21, 16, 19];

fn layouts(own: &[(u16, &[u16])]) -> Layouts {
    Layouts::load(own.iter().map(|(n, l)| (*n, l.to_vec()))).unwrap()
}

#[test]
fn system_attributes() {
    let r = Registry::load([]).unwrap();
    let z = r.zpl();
    // Links have no project id.
    let mut link = FILE.to_vec();
    link.retain(|n| *n != z.projid);
    link.push(z.symlink);
    let mut l = layouts(&[(2, &FILE), (4, &link)]);
    let b = data!("sa-symlink-177.bin");
    let a = sa::parse(b, None, &r, &l).unwrap();
    assert_eq!(a.get(z.symlink), Some(&b"z"[..]));
    assert_eq!(a.get_u64(z.size).unwrap(), Some(1));
    assert_eq!(a.get_u64(z.mode).unwrap(), Some(0o120777));
    let aces = acl::decode_v1(a.get(z.dacl_aces).unwrap()).unwrap();
    assert_eq!(aces, acl::trivial(0o777, false));
    let p = sa::pack(&a, &r, &mut l, 320).unwrap();
    assert_eq!((p.bonus.as_slice(), p.spill), (b, None));
    assert!(!l.has_new());

    // Extended attributes in the bonus of a large dnode, and in a spill block.
    let mut inline = FILE.to_vec();
    inline.push(z.dxattr);
    let mut l = layouts(&[(2, &FILE), (3, &inline), (4, &[z.dxattr])]);
    let b = data!("sa-bonus-332.bin");
    let a = sa::parse(b, None, &r, &l).unwrap();
    let p = sa::pack(&a, &r, &mut l, 832).unwrap();
    assert_eq!((p.bonus.as_slice(), p.spill), (b, None));
    let x = a.get(z.dxattr).unwrap();
    let list = xattr::SaXattrs::unpack(x).unwrap();
    assert_eq!(list.pack(), x);
    assert!(list.list.iter().all(|(n, _)| n.starts_with(b"user.")));

    let (bonus, spill) = (data!("sa-bonus-704.bin"), data!("sa-spill-704.bin"));
    let a = sa::parse(bonus, Some(spill), &r, &l).unwrap();
    let p = sa::pack(&a, &r, &mut l, 832).unwrap();
    // Bytes of the bonus behind its last attribute are left over from earlier contents.
    let used = 8 + 136 + 8 + 24;
    assert_eq!(p.bonus.len(), bonus.len());
    assert_eq!(p.bonus[..used], bonus[..used]);
    assert_eq!(p.spill.as_ref().map(Vec::len), Some(spill.len()));
    assert_eq!(sa::parse(&p.bonus, p.spill.as_deref(), &r, &l).unwrap(), a);
    assert!(!l.has_new());
    let x = a.get(z.dxattr).unwrap();
    assert_eq!(xattr::SaXattrs::unpack(x).unwrap().pack(), x);
}

#[test]
fn znodes() {
    for (b, version) in [
        (data!("znode-legacy-v1.bin"), 0),
        (data!("znode-legacy-v28.bin"), 1),
    ] {
        let z = ZnodePhys::decode(b).unwrap();
        assert_eq!(z.encode(), b);
        assert_eq!((z.mode, z.links, z.acl.version), (0o100644, 1, version));
        let aces = z.acl.aces(None).unwrap();
        assert_eq!(aces, acl::trivial(0o644, false));
        let (again, external) = disk::znode::ZnodeAcl::from_aces(&aces, version);
        assert_eq!((again, external), (z.acl, None));
    }
}
