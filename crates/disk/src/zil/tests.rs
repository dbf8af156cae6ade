use super::*;
use crate::bytes::junk::Junk;
use crate::bytes::swap_u64s;
use crate::Checksum;

/// Log blocks of OpenZFS 2.3, up to the bytes used: names, a mixture, a cloned range, an exchange, a
/// logged extended attribute, a setattr, an indirect write.
const REAL: [&[u8]; 7] = [
    include_bytes!("../../testdata/zil-names.bin"),
    include_bytes!("../../testdata/zil-mixed.bin"),
    include_bytes!("../../testdata/zil-clone.bin"),
    include_bytes!("../../testdata/zil-exchange.bin"),
    include_bytes!("../../testdata/zil-saxattr.bin"),
    include_bytes!("../../testdata/zil-setattr.bin"),
    include_bytes!("../../testdata/zil-indirect.bin"),
];

fn real_records(block: &[u8]) -> Vec<Record> {
    let chain = ZilChain::decode(block, true).unwrap();
    assert_eq!(chain.nused as usize, block.len());
    records(&block[chain.records(true)])
        .map(|r| r.unwrap())
        .collect()
}

#[test]
fn real_blocks_decode_and_encode_to_the_same_bytes() {
    let mut types = std::collections::BTreeSet::new();
    for block in REAL {
        let mut at = CHAIN_SIZE;
        let mut last = 0;
        for r in real_records(block) {
            assert!(r.seq > last && !r.ignore_case);
            last = r.seq;
            types.insert(r.body.txtype());
            let b = r.encode();
            // Padding is undefined, so compare what it decodes to, and the length.
            assert_eq!(b.len() as u64, u64_at(block, at + 8).unwrap());
            let (again, n) = Record::decode(&b).unwrap();
            assert_eq!((again, n), (r, b.len()));
            at += b.len();
        }
        assert_eq!(at, block.len());
        let chain = ZilChain::decode(block, true).unwrap();
        let mut copy = block.to_vec();
        chain.encode_into(&mut copy, true).unwrap();
        assert_eq!(copy[..CHAIN_TRAILER], block[..CHAIN_TRAILER]);
        // The next pointer continues the identity of this block.
        assert_eq!(chain.next.checksum_alg(), Checksum::ZILOG2);
    }
    let want = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 21, 22, 24];
    assert_eq!(types.into_iter().collect::<Vec<_>>(), want);
}

#[test]
fn real_contents() {
    let names = real_records(REAL[0]);
    match &names[1].body {
        Body::Rename { source, target, .. } => {
            assert_eq!((&source[..], &target[..]), (&b"name1"[..], &b"renamed"[..]))
        }
        b => panic!("{b:?}"),
    }
    match &names[4].body {
        Body::Create(c) => {
            assert_eq!(c.kind, CreateKind::Symlink);
            assert_eq!((c.object, c.slots, c.mode), (38, 1, 0o120777));
            assert_eq!(c.target, b"some/target");
        }
        b => panic!("{b:?}"),
    }
    match &real_records(REAL[4])[0].body {
        Body::SetSaXattr { name, value, .. } => {
            assert_eq!(
                (&name[..], &value[..]),
                (&b"user.logged"[..], &b"value 3"[..])
            )
        }
        b => panic!("{b:?}"),
    }
    match &real_records(REAL[6])[1].body {
        Body::Write {
            data: WriteData::Indirect(bp),
            ..
        } => assert_eq!(bp.obj_type().0, 19),
        b => panic!("{b:?}"),
    }
    let clone = real_records(REAL[2]);
    match &clone[1].body {
        Body::CloneRange { bps, length, .. } => {
            assert_eq!(bps.len(), 2);
            assert!(*length > 0);
        }
        b => panic!("{b:?}"),
    }
}

fn xvattr() -> Xvattr {
    Xvattr {
        request: vec![xat::IMMUTABLE as u32, 0, 0],
        attrs: xat::IMMUTABLE,
        crtime: [1, 2],
        scanstamp: [3; 32],
    }
}

fn log_acl() -> LogAcl {
    let mut aces = crate::acl::trivial(0o640, false);
    aces.push(crate::acl::Ace {
        who: 1 << 32 | 5,
        mask: 1,
        ..crate::acl::Ace::default()
    });
    LogAcl {
        aces: crate::acl::encode_v1(&aces),
        ace_count: 4,
        flags: 4,
        fuids: vec![1 << 32 | 5, 2 << 32 | 6],
        domains: vec![b"S-1".to_vec(), b"S-22".to_vec()],
    }
}

fn create(kind: CreateKind, acl: bool, attr: bool) -> Body {
    Body::Create(Box::new(Create {
        kind,
        parent: 4,
        object: 77,
        slots: 2,
        mode: 0o644,
        uid: 1 << 32 | 9,
        gid: 7,
        gen: 8,
        crtime: [9, 10],
        rdev: 11,
        xvattr: attr.then(xvattr),
        acl: acl.then(log_acl),
        domains: if acl { vec![] } else { vec![b"S-9".to_vec()] },
        name: b"name\xff".to_vec(),
        target: if kind == CreateKind::Symlink {
            b"to".to_vec()
        } else {
            vec![]
        },
    }))
}

/// One of every type, in every form.
fn every_body() -> Vec<Body> {
    let mut all = vec![
        create(CreateKind::XattrDir, false, false),
        create(CreateKind::Symlink, false, false),
    ];
    for kind in [CreateKind::File, CreateKind::Dir] {
        for (acl, attr) in [(false, false), (true, false), (false, true), (true, true)] {
            all.push(create(kind, acl, attr));
        }
    }
    let n = |s: &str| s.as_bytes().to_vec();
    for flag in [false, true] {
        all.push(Body::Remove {
            dir: flag,
            parent: 1,
            name: n("a"),
        });
        all.push(Body::Rename {
            exchange: flag,
            source_dir: 1,
            target_dir: 2,
            source: n("abc"),
            target: n("defg"),
        });
        all.push(Body::SetAttr {
            object: 1,
            mask: if flag { setattr::XVATTR | 1 } else { 1 },
            mode: 2,
            uid: 2 << 32,
            gid: 4,
            size: 5,
            atime: [6, 7],
            mtime: [8, 9],
            xvattr: flag.then(xvattr),
            domains: vec![n("S-1"), n("S-2")],
        });
    }
    all.push(Body::Link {
        parent: 1,
        object: 2,
        name: n("l"),
    });
    all.push(Body::RenameWhiteout {
        source_dir: 1,
        target_dir: 2,
        object: 3,
        slots: 4,
        mode: 5,
        uid: 6,
        gid: 7,
        gen: 8,
        crtime: [9, 10],
        rdev: 11,
        source: n("s"),
        target: n("t"),
    });
    let bp = BlkPtr::from_bytes(&[0x21; 128], false);
    for data in [
        WriteData::Indirect(bp),
        WriteData::Inline(vec![5; 13]),
        WriteData::Zeros,
    ] {
        all.push(Body::Write {
            object: 1,
            offset: 2,
            length: 13,
            data,
        });
    }
    all.push(Body::Extend {
        object: 1,
        offset: 2,
        length: 3,
    });
    all.push(Body::Truncate {
        object: 1,
        offset: 2,
        length: 3,
    });
    all.push(Body::AclV0 {
        object: 1,
        ace_count: 2,
        aces: vec![3; 24],
    });
    all.push(Body::Acl {
        object: 1,
        acl: log_acl(),
    });
    all.push(Body::SetSaXattr {
        object: 1,
        name: n("user.x"),
        value: vec![0, 1, 2],
    });
    all.push(Body::CloneRange {
        object: 1,
        offset: 2,
        length: 3,
        block_size: 4,
        bps: vec![bp; 3],
    });
    all.push(Body::Unknown {
        txtype: 99,
        body: vec![1; 16],
    });
    all
}

#[test]
fn every_type_comes_back() {
    let mut types = std::collections::BTreeSet::new();
    for (i, body) in every_body().into_iter().enumerate() {
        types.insert(body.txtype());
        let r = Record {
            txg: Txg::new(5),
            seq: i as u64,
            ignore_case: i % 2 == 0,
            body,
        };
        let b = r.encode();
        assert_eq!(b.len() % 8, 0);
        let mut long = b.clone();
        long.extend_from_slice(&[0xaa; 7]);
        assert_eq!(Record::decode(&long).unwrap(), (r, b.len()));
    }
    assert_eq!(types.len(), 25);
}

/// Foreign records: swap the fixed words by hand for a few types whose layout is all words.
#[test]
fn foreign_byte_order() {
    for body in every_body() {
        let all_words = matches!(
            body,
            Body::Truncate { .. } | Body::CloneRange { .. } | Body::Extend { .. }
        );
        let r = Record {
            txg: Txg::new(5),
            seq: 6,
            ignore_case: false,
            body,
        };
        let good = r.encode();
        let mut b = good.clone();
        if all_words {
            swap_u64s(&mut b);
            assert_eq!(record_to_little_endian(&mut b).unwrap(), good.len());
            assert_eq!(b, good);
        } else if let Body::SetSaXattr { .. } = r.body {
            swap_u64s(&mut b[..48]);
            record_to_little_endian(&mut b).unwrap();
            assert_eq!(b, good);
        } else if let Body::Acl { acl, .. } = &r.body {
            let size = acl.aces.len();
            swap_u64s(&mut b[..80]);
            for at in [80, 88, 96, 104] {
                b[at..at + 2].reverse();
                b[at + 2..at + 4].reverse();
                b[at + 4..at + 8].reverse();
            }
            b[112..120].reverse();
            assert_eq!(size, 40);
            swap_u64s(&mut b[120..136]);
            record_to_little_endian(&mut b).unwrap();
            assert_eq!(b, good);
        }
    }
}

#[test]
fn header_and_chain() {
    let h = ZilHeader {
        claim_txg: Txg::new(1),
        replay_seq: 2,
        log: BlkPtr::from_bytes(&[9; 128], false),
        claim_blk_seq: 3,
        flags: ZilHeader::REPLAY_NEEDED | ZilHeader::CLAIM_LR_SEQ_VALID,
        claim_lr_seq: 5,
    };
    assert_eq!(ZilHeader::decode(&h.encode()).unwrap(), h);
    for slim in [true, false] {
        let mut block = vec![7; 4096];
        let c = ZilChain {
            next: h.log,
            nused: 1000,
        };
        c.encode_into(&mut block, slim).unwrap();
        assert_eq!(ZilChain::decode(&block, slim).unwrap(), c);
        let at = if slim { 0 } else { 4096 - 184 };
        assert_eq!(chain_offset(4096, slim), Some(at));
        assert_eq!(u64_at(&block, at + 136).unwrap(), 1000);
        assert_eq!(block[at + 144..at + 184], [0; 40]);
        let bad = ZilChain {
            nused: if slim { 183 } else { 4096 - 183 },
            ..c
        };
        bad.encode_into(&mut block, slim).unwrap();
        assert!(ZilChain::decode(&block, slim).is_err());
        assert!(ZilChain::decode(&block[..183], slim).is_err());
    }
    assert_eq!(slim_written(184, 131072), 4096);
    assert_eq!(slim_written(4097, 131072), 8192);
    assert_eq!(slim_written(u64::MAX, 4096), 4096);
}

#[test]
fn hostile() {
    let mut junk = Junk(14);
    for body in every_body() {
        let r = Record {
            txg: Txg::new(1),
            seq: 2,
            ignore_case: false,
            body,
        };
        junk.torment(&r.encode(), 300, |b| {
            let _ = Record::decode(b);
            // Also with the length made to fit, so that the bodies are reached.
            let mut c = b[..b.len() & !7].to_vec();
            if c.len() >= 32 {
                let len = c.len() as u64;
                put_u64(&mut c, 8, len);
                if let Ok((r, n)) = Record::decode(&c) {
                    assert_eq!(n, c.len());
                    let _ = (r.encode(), r.body.type_name());
                }
                let _ = record_to_little_endian(&mut c);
                let mut d = c.clone();
                put_u64(&mut d, 8, len.swap_bytes());
                put_u64(&mut d, 0, r.body.txtype().swap_bytes());
                let _ = record_to_little_endian(&mut d);
            }
        });
    }
    for block in REAL {
        junk.torment(block, 100, |b| {
            for slim in [true, false] {
                if let Ok(c) = ZilChain::decode(b, slim) {
                    for _ in records(&b[c.records(slim)]) {}
                }
            }
            let _ = ZilHeader::decode(b);
        });
    }
}
