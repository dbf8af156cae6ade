use super::*;
use crate::bytes::junk::Junk;

/// One record of each type, every field with another value.
pub(crate) fn all() -> Vec<Record> {
    vec![
        Record::Begin(Begin {
            header_type: HeaderType::Compound,
            features: feature::RAW | feature::LARGE_MICROZAP | 1 << 55,
            reserved: 0,
            creation_time: 3,
            objset_type: 2,
            flags: begin_flag::SPILL_BLOCK,
            to_guid: 5,
            from_guid: 6,
            to_name: b"p/f@s".to_vec(),
            list_len: 16,
        }),
        Record::Object(Object {
            object: 1,
            obj_type: 19,
            bonus_type: 44,
            block_size: 512,
            bonus_len: 168,
            checksum_type: 2,
            compress: 15,
            slots: 1,
            flags: record_flag::OBJECT_SPILL,
            raw_bonus_len: 320,
            to_guid: 7,
            indirect_shift: 17,
            levels: 2,
            block_pointers: 3,
            max_block: 9,
        }),
        Record::FreeObjects(FreeObjects {
            first: 1,
            count: 2,
            to_guid: 3,
        }),
        Record::Write(Write {
            object: 1,
            obj_type: 19,
            offset: 2 << 40,
            logical_size: 131_072,
            to_guid: 4,
            checksum_type: 7,
            flags: record_flag::CHECKSUM_DEDUP,
            compression: 15,
            key: [5, 6, 7, 8, 9],
            compressed_size: 4096,
            salt: [1, 2, 3, 4, 5, 6, 7, 8],
            iv: [9; 12],
            mac: [10; 16],
        }),
        Record::Free(Free {
            object: 1,
            offset: 2,
            length: u64::MAX,
            to_guid: 3,
        }),
        Record::End(End {
            checksum: [1, 2, 3, 4],
            to_guid: 5,
        }),
        Record::WriteByRef(WriteByRef {
            object: 1,
            offset: 2,
            length: 3,
            to_guid: 4,
            ref_guid: 5,
            ref_object: 6,
            ref_offset: 7,
            checksum_type: 8,
            flags: 9,
            key: [10, 11, 12, 13, 14],
        }),
        Record::Spill(Spill {
            object: 1,
            length: 1024,
            to_guid: 2,
            flags: record_flag::SPILL_UNMODIFIED,
            compression: 3,
            compressed_size: 512,
            salt: [4; 8],
            iv: [5; 12],
            mac: [6; 16],
            obj_type: 44,
        }),
        Record::WriteEmbedded(WriteEmbedded {
            object: 1,
            offset: 2,
            length: 512,
            to_guid: 3,
            compression: 4,
            etype: 0,
            lsize: 512,
            psize: 41,
        }),
        Record::ObjectRange(ObjectRange {
            first: 32,
            slots: 32,
            to_guid: 1,
            salt: [2; 8],
            iv: [3; 12],
            mac: [4; 16],
            flags: record_flag::RAW_BYTESWAP,
        }),
        Record::Redact(Redact {
            object: 1,
            offset: 2,
            length: 3,
            to_guid: 4,
        }),
    ]
}

#[test]
fn every_record_is_the_same_after_encoding_in_both_byte_orders() {
    for swapped in [false, true] {
        for (i, r) in all().into_iter().enumerate() {
            let b = r.encode(swapped);
            assert_eq!(r.number() as usize, i);
            assert_eq!(Record::decode(&b, swapped).unwrap(), r);
            assert_eq!(stored_checksum(&b, swapped), [0; 4], "{}", r.name());
            if i > 0 {
                let mut b = b;
                store_checksum(&mut b, [1, 2, 3, 1 << 60], swapped);
                assert_eq!(stored_checksum(&b, swapped), [1, 2, 3, 1 << 60]);
                assert_eq!(Record::decode(&b, swapped).unwrap(), r);
            }
        }
    }
}

#[test]
fn first_record_tells_the_byte_order() {
    for swapped in [false, true] {
        let b = Record::Begin(Begin::default()).encode(swapped);
        assert_eq!(is_swapped(&b).unwrap(), swapped);
        assert_eq!(
            Record::decode(&b, !swapped).unwrap_err().kind,
            base::Kind::Invalid
        );
    }
    assert!(is_swapped(&[0; RECORD]).is_err());
}

/// Offsets are written down here once more, from data §30.2.
#[test]
fn fields_are_where_the_format_has_them() {
    let b = all()[3].encode(false);
    assert_eq!(b[0], 3);
    assert_eq!(b[16], 19);
    assert_eq!(b[24..32], (2u64 << 40).to_le_bytes());
    assert_eq!(b[32..40], 131_072u64.to_le_bytes());
    assert_eq!((b[48], b[49], b[50]), (7, 1, 15));
    assert_eq!(b[88], 9);
    assert_eq!(b[96..104], 4096u64.to_le_bytes());
    assert_eq!(b[104..112], [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(b[112..124], [9; 12]);
    assert_eq!(b[124..140], [10; 16]);
    assert_eq!(b[140..], [0; RECORD - 140]);
    let b = all()[7].encode(true);
    assert_eq!(b[3], 7);
    assert_eq!(b[84..88], 44u32.to_be_bytes());
    assert_eq!(b[68..84], [6; 16]);
}

#[test]
fn payloads_are_bounded() {
    let sizes: Vec<u64> = all().iter().map(Record::payload).collect();
    assert_eq!(sizes, [16, 320, 0, 4096, 0, 0, 0, 512, 48, 0, 0]);
    let too_long = [
        Record::Begin(Begin {
            list_len: (MAX_LIST + 1) as u32,
            ..Begin::default()
        }),
        Record::Object(Object {
            raw_bonus_len: u32::MAX,
            ..Object::default()
        }),
        Record::Object(Object {
            bonus_len: u32::MAX,
            ..Object::default()
        }),
        Record::Write(Write {
            logical_size: (16 << 20) + 1,
            ..Write::default()
        }),
        Record::Write(Write {
            compression: 15,
            compressed_size: u64::MAX,
            ..Write::default()
        }),
        Record::Spill(Spill {
            length: 1 << 40,
            ..Spill::default()
        }),
        Record::WriteEmbedded(WriteEmbedded {
            psize: 113,
            ..WriteEmbedded::default()
        }),
    ];
    for r in too_long {
        assert!(Record::decode(&r.encode(false), false).is_err(), "{r:?}");
    }
}

#[test]
fn values_without_sense_are_refused() {
    for r in all() {
        match r {
            Record::Begin(b) => {
                assert_eq!(b.unknown_features(), 1 << 55);
                let e = Record::Begin(b).check().unwrap_err();
                assert_eq!(e.kind, base::Kind::Unsupported);
            }
            r => r.check().unwrap(),
        }
    }
    let bad = [
        Record::Begin(Begin {
            header_type: HeaderType::Other(3),
            ..Begin::default()
        }),
        Record::Object(Object {
            object: 1,
            obj_type: 300,
            block_size: 512,
            ..Object::default()
        }),
        Record::Object(Object {
            object: 1,
            obj_type: 19,
            block_size: 700,
            ..Object::default()
        }),
        Record::FreeObjects(FreeObjects {
            first: u64::MAX,
            count: 2,
            to_guid: 0,
        }),
        Record::Write(Write {
            object: 1,
            obj_type: 19,
            offset: u64::MAX - 3,
            logical_size: 512,
            ..Write::default()
        }),
        Record::Free(Free {
            object: 1,
            offset: 2,
            length: u64::MAX - 1,
            to_guid: 0,
        }),
        Record::Spill(Spill {
            length: 100,
            ..Spill::default()
        }),
    ];
    for r in bad {
        assert_eq!(r.check().unwrap_err().kind, base::Kind::Invalid, "{r:?}");
    }
}

#[test]
fn hostile_records_give_errors() {
    let mut junk = Junk(1);
    for r in all() {
        junk.torment(&r.encode(false), 300, |b| {
            let mut a = [0; RECORD];
            let n = b.len().min(RECORD);
            a[..n].copy_from_slice(&b[..n]);
            if let Ok(r) = Record::decode(&a, false) {
                let _ = r.check();
                assert!(r.payload() <= r.payload_limit() as u64);
            }
        });
    }
}

/// The field of a name ends with a zero byte; where there is none, its last byte is not part of the name.
#[test]
fn a_name_that_fills_its_field_is_cut() {
    let mut b = Record::Begin(Begin::default()).encode(false);
    b[56..312].fill(b'n');
    let Record::Begin(begin) = Record::decode(&b, false).unwrap() else {
        panic!("another record");
    };
    assert_eq!(begin.to_name, [b'n'; 255]);
    let again = Record::Begin(begin.clone()).encode(false);
    assert_eq!(Record::decode(&again, false).unwrap(), Record::Begin(begin));
}
