use super::*;
use crate::bytes::junk::Junk;

/// The nvlist of a one-disk pool's label as OpenZFS 2.3 wrote it.
const LABEL: &[u8] = include_bytes!("../../testdata/label-single.bin");

/// One of every type, with names and strings of every length modulo 8.
fn everything() -> NvList {
    let mut inner = NvList::new();
    inner.set("x", 7u64).set_flag("present");
    let mut l = NvList::new();
    l.set("version", 5000u64);
    l.set_flag("b");
    for (name, v) in [
        ("by", Value::Byte(200)),
        ("i16", Value::Int16(-2)),
        ("u16x", Value::Uint16(65535)),
        ("i32xx", Value::Int32(-3)),
        ("u32xxx", Value::Uint32(u32::MAX)),
        ("i64xxxx", Value::Int64(i64::MIN)),
        ("u64xxxxx", Value::Uint64(u64::MAX)),
        ("string", Value::from("abcd")),
        ("string2", Value::from("")),
        ("raw", Value::RawString(vec![0xff, 0xfe, b'x'])),
        ("bytes", Value::ByteArray(vec![1, 2, 3, 4, 5])),
        ("a16", Value::Int16Array(vec![-1, 2, 3])),
        ("au16", Value::Uint16Array(vec![1])),
        ("a32", Value::Int32Array(vec![-1, 1])),
        ("au32", Value::Uint32Array(vec![])),
        ("a64", Value::Int64Array(vec![-1, 1, 2])),
        ("au64", Value::from(vec![1u64, u64::MAX])),
        ("as", Value::from(vec!["a".to_string(), "bcd".into()])),
        ("hr", Value::HrTime(-5)),
        ("list", Value::from(inner.clone())),
        (
            "lists",
            Value::from(vec![inner.clone(), NvList::new(), inner]),
        ),
        ("nolists", Value::from(Vec::<NvList>::new())),
        ("bv", Value::from(true)),
        ("i8", Value::Int8(-4)),
        ("u8", Value::Uint8(4)),
        ("ab", Value::BooleanArray(vec![true, false, true])),
        ("a8", Value::Int8Array(vec![-1, 5])),
        ("au8", Value::Uint8Array(vec![9, 8, 7])),
        ("d", Value::Double(1.5)),
    ] {
        l.set(name, v);
    }
    l
}

#[test]
fn real_label_decodes_and_encodes_to_the_same_bytes() {
    let (l, n) = NvList::decode(LABEL).unwrap();
    assert_eq!(l.flag, UNIQUE_NAME);
    assert_eq!(l.get_u64("version"), Some(5000));
    assert_eq!(l.get_str("name"), Some("lagoon0"));
    assert_eq!(l.need_u64("pool_guid").unwrap(), 16607993458144630312);
    let tree = l.need_nvlist("vdev_tree").unwrap();
    assert_eq!(tree.get_str("path"), Some("/fixtures/single/d0.img"));
    assert_eq!(tree.get_u64("ashift"), Some(9));
    let features = l.get_nvlist("features_for_read").unwrap();
    assert_eq!(features.len(), 3);
    assert_eq!(features.get_bool("com.delphix:hole_birth"), Some(true));
    // Byte for byte what OpenZFS wrote, the decoded-size words included.
    assert_eq!(l.pack_xdr(), &LABEL[..n]);
    assert_eq!(n, LABEL.len());
    assert!(l
        .dump(4)
        .contains("\n        path: '/fixtures/single/d0.img'\n"));
}

#[test]
fn sizes_of_a_pair() {
    let mut l = NvList::new();
    l.set("version", 1u64);
    let b = l.pack_xdr();
    assert_eq!(b[12..20], [0, 0, 0, 36, 0, 0, 0, 32]);
    assert_eq!(b.len(), 12 + 36 + 8);
    let b = l.pack_native();
    assert_eq!(b[12..16], [32, 0, 0, 0]);
    assert_eq!(b.len(), 12 + 32 + 4);
}

#[test]
fn every_type_survives_both_encodings() {
    let l = everything();
    for b in [l.pack_xdr(), l.pack_native()] {
        let mut long = b.clone();
        long.extend_from_slice(&[0xaa; 9]);
        let (back, n) = NvList::decode(&long).unwrap();
        assert_eq!(back, l);
        assert_eq!(n, b.len());
    }
}

/// A native list of a big-endian writer: every field of a one-pair list swapped by hand.
#[test]
fn big_endian_native() {
    let mut b = vec![0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    b.extend_from_slice(&32u32.to_be_bytes());
    b.extend_from_slice(&2u16.to_be_bytes());
    b.extend_from_slice(&[0; 2]);
    b.extend_from_slice(&1u32.to_be_bytes());
    b.extend_from_slice(&8u32.to_be_bytes());
    b.extend_from_slice(b"a\0\0\0\0\0\0\0");
    b.extend_from_slice(&77u64.to_be_bytes());
    b.extend_from_slice(&[0; 4]);
    let (l, n) = NvList::decode(&b).unwrap();
    assert_eq!((l.get_u64("a"), n), (Some(77), b.len()));
}

#[test]
fn set_replaces_in_place_and_remove_removes() {
    let mut l = NvList::new();
    l.set("a", 1u64).set("b", 2u64).set("a", "x");
    assert_eq!(l.iter().map(|p| p.0).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(l.get_str("a"), Some("x"));
    assert_eq!(l.get_u64("a"), None);
    assert_eq!(l.remove("a"), Some(Value::from("x")));
    assert_eq!(l.remove("a"), None);
    assert!(l.need_u64("a").is_err());
}

#[test]
fn nesting_is_limited() {
    for (depth, good) in [(MAX_NESTING, true), (MAX_NESTING + 1, false)] {
        let mut l = NvList::new();
        for _ in 1..depth {
            let mut outer = NvList::new();
            outer.set("l", l);
            l = outer;
        }
        assert_eq!(NvList::decode(&l.pack_xdr()).is_ok(), good);
        assert_eq!(NvList::decode(&l.pack_native()).is_ok(), good);
    }
}

#[test]
fn huge_counts_do_not_allocate() {
    for kind in 0..40u32 {
        for count in [2, 0x1000_0000, 0x7fff_ffff, u32::MAX] {
            let mut x = vec![1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
            for w in [64, 64, 1, 0x6100_0000, kind, count, count, 0, 0, 0, 0] {
                x.extend_from_slice(&u32::to_be_bytes(w));
            }
            let _ = NvList::decode(&x);
            let mut x = vec![0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];
            for w in [48, 2, count, kind, 0x61, 0, 0, 0, 0, 0, 0, 0, 0] {
                x.extend_from_slice(&u32::to_le_bytes(w));
            }
            let _ = NvList::decode(&x);
        }
    }
}

#[test]
fn hostile_bytes_are_errors() {
    let mut junk = Junk(1);
    let l = everything();
    for good in [l.pack_xdr(), l.pack_native(), LABEL.to_vec()] {
        for n in 0..good.len() {
            assert!(NvList::decode(&good[..n]).is_err(), "prefix {n}");
        }
        junk.torment(&good, 4000, |b| {
            if let Ok((l, n)) = NvList::decode(b) {
                assert!(n <= b.len());
                let _ = l.dump(0);
                assert!(NvList::decode(&l.pack_xdr()).is_ok());
                assert!(NvList::decode(&l.pack_native()).is_ok());
            }
        });
    }
}
