//! Tests of ZAPs on objects of a pool: through syncs, closing and opening again.

use crate::{create_object, flags, norm, Value, Zap};
use disk::ObjType;
use dmu::testing::Rig;
use dmu::WritePolicy;

#[test]
fn on_disk_and_back() {
    let mut rig = Rig::new(2, 512 << 20, WritePolicy::default());
    let tx = rig.tx();
    let small = create_object(&rig.os, &tx, ObjType::ZAP_OTHER, norm::TOUPPER).unwrap();
    let large = create_object(&rig.os, &tx, ObjType::DIRECTORY_CONTENTS, 0).unwrap();
    let words = rig
        .os
        .alloc(
            &tx,
            &dmu::NewObject {
                obj_type: ObjType::ZAP_OTHER,
                block_size: 4096,
                ..Default::default()
            },
        )
        .unwrap();
    Zap::new(&small).add_u64(&tx, "Name", 1).unwrap();
    Zap::new(&words)
        .create_fat(&tx, 0, flags::HASH64 | flags::UINT64_KEY)
        .unwrap();
    drop(tx);
    let (small, large, words) = (small.object(), large.object(), words.object());
    for round in 0..4u64 {
        let tx = rig.tx();
        let dn = rig.os.hold(large).unwrap();
        for i in 0..3000u64 {
            Zap::new(&dn)
                .add_u64(&tx, &format!("r{round}-{i}"), round * 10_000 + i)
                .unwrap();
        }
        for i in 0..1000u64 {
            if round > 0 {
                Zap::new(&dn)
                    .remove(&tx, &format!("r{}-{i}", round - 1))
                    .unwrap();
            }
        }
        let w = rig.os.hold(words).unwrap();
        for i in 0..500u64 {
            Zap::new(&w)
                .add(&tx, &[round, i][..], &Value::bytes(&[round as u8; 30]))
                .unwrap();
        }
        drop((tx, dn, w));
        if round % 2 == 0 {
            rig.sync();
        }
        rig = rig.reopen();
    }
    let dn = rig.os.hold(large).unwrap();
    let zap = Zap::new(&dn);
    assert_eq!(zap.count().unwrap(), 4 * 3000 - 3 * 1000);
    assert_eq!(zap.iter().filter(|e| e.is_ok()).count(), 9000);
    assert_eq!(zap.get("r3-999").unwrap(), Some(30_999));
    assert_eq!(zap.get("r2-999").unwrap(), None);
    let dn = rig.os.hold(small).unwrap();
    assert_eq!(Zap::new(&dn).get("Name").unwrap(), Some(1));
    let dn = rig.os.hold(words).unwrap();
    assert_eq!(Zap::new(&dn).count().unwrap(), 2000);
    let v = Zap::new(&dn).get_value(&[2u64, 77][..]).unwrap().unwrap();
    assert_eq!(v.data, [2; 30]);
}
