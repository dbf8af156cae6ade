//! `zdb` on pools whose lists lead anywhere: it says so, and ends.

use disk::dsl::BpobjPhys;
use disk::ObjType;
use std::process::Command;
use testkit::{fixture, or_skip};

/// A list of blocks to be freed that is in itself, twice.
#[test]
fn a_list_in_itself() {
    let Some(dir) = or_skip(fixture::unpack("single")) else {
        return;
    };
    let at = dir.path().to_str().unwrap();
    let env = env_linux::linux_env();
    let images: Vec<String> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().path().to_str().unwrap().to_string())
        .collect();
    let found = vdev::discover(&env, &images).pools.remove(0);
    let pool = pool::Pool::open(env, &found.config, pool::OpenOptions::default()).unwrap();
    pool.task(|p, tx| {
        let list = zap::Zap::new(&p.mos.hold(1)?).get("sync_bplist")?.unwrap();
        let new = dmu::NewObject {
            obj_type: ObjType::BPOBJ_SUBOBJ,
            block_size: 4096,
            ..dmu::NewObject::default()
        };
        let inner = p.mos.alloc(tx, &new)?;
        inner.write(tx, 0, &u64::to_le_bytes(list).repeat(2))?;
        let dn = p.mos.hold(list)?;
        let mut phys = BpobjPhys::decode(&dn.bonus())?;
        (phys.subobjs, phys.num_subobjs) = (inner.object(), 2);
        dn.set_bonus(tx, &phys.encode())
    })
    .unwrap();
    pool.close().unwrap();
    let out = Command::new("timeout")
        .args(["120", env!("CARGO_BIN_EXE_zdb"), "-e", "-p", at])
        .args(["-ddd", &found.name])
        .output()
        .unwrap();
    let text = [&out.stdout[..], &out.stderr[..]].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("or in itself"), "{}: {text}", out.status);
}
