//! `zdb` on pools whose lists lead anywhere: it says so, and ends.

use disk::dsl::BpobjPhys;
use disk::{Compression, ObjType};
use std::process::Command;
use testkit::{fixture, or_skip};

/// Lists of blocks to be freed, each twice in the one before, and one that is in itself: what would be
/// followed further than anybody can wait.
#[test]
fn lists_in_lists() {
    for (nested, in_itself) in [(40, false), (0, true)] {
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
        pool.task(move |p, tx| {
            let mut list = zap::Zap::new(&p.mos().hold(1)?)
                .get("sync_bplist")?
                .unwrap();
            for _ in 0..nested {
                let next =
                    dsl::Bpobj::create_with(p.mos(), tx, 5000, false, 4096, Compression::INHERIT)?
                        .object();
                twice(p, tx, list, next)?;
                list = next;
            }
            match in_itself {
                true => twice(p, tx, list, list),
                false => Ok(()),
            }
        })
        .unwrap();
        pool.close().unwrap();
        for what in ["-ddd", "-bcc"] {
            let out = Command::new("timeout")
                .args(["120", env!("CARGO_BIN_EXE_zdb"), "-e", "-p", at])
                .args([what, &found.name])
                .output()
                .unwrap();
            let text = [&out.stdout[..], &out.stderr[..]].concat();
            let text = String::from_utf8_lossy(&text);
            assert!(text.contains("in two lists"), "{}: {text}", out.status);
        }
    }
}

/// Puts `inner` into the list `outer`, twice.
fn twice(p: &pool::Pool, tx: &dmu::Tx, outer: u64, inner: u64) -> base::Result<()> {
    let new = dmu::NewObject {
        obj_type: ObjType::BPOBJ_SUBOBJ,
        block_size: 4096,
        ..dmu::NewObject::default()
    };
    let lists = p.mos().alloc(tx, &new)?;
    lists.write(tx, 0, &u64::to_le_bytes(inner).repeat(2))?;
    let dn = p.mos().hold(outer)?;
    let mut phys = BpobjPhys::decode(&dn.bonus())?;
    (phys.subobjs, phys.num_subobjs) = (lists.object(), 2);
    dn.set_bonus(tx, &phys.encode())
}
