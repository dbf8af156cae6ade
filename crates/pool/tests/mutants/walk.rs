//! Looks at everything a pool has, believing nothing.

use dmu::Objset;
use env::Env;
use pool::{OpenOptions, Pool, Tunables};
use std::collections::HashSet;
use std::sync::Arc;
use zap::Zap;
use zpl::{Cred, Mount, NoLog, Props, Space, SpaceInfo, Zfs};

/// Objects of a set, files of a file system, entries of a directory or ZAP looked at.
const MOST: usize = 3000;
/// Bytes of an object or file read at its beginning and at its end.
const BYTES: u64 = 64 << 10;

struct Figures;

impl SpaceInfo for Figures {
    fn space(&self) -> Space {
        Space::default()
    }
    fn read_only(&self) -> bool {
        true
    }
}

fn mount(env: &Env, version: u64) -> Mount {
    Mount {
        clock: env.clock.clone(),
        props: Props {
            readonly: true,
            ..Props::default()
        },
        space: Arc::new(Figures),
        log: Arc::new(NoLog),
        pool_version: version,
        software_version: 5000,
    }
}

/// Opens and walks every pool on the devices; whether one could be opened.
pub fn everything(env: &Env, paths: &[String]) -> bool {
    let mut opened = false;
    for found in vdev::discover(env, paths).pools {
        let options = OpenOptions {
            readonly: true,
            missing_log: true,
            tunables: Tunables {
                cache_bytes: 16 << 20,
                dirty_max: 16 << 20,
                ..Tunables::default()
            },
            ..OpenOptions::default()
        };
        let Ok(p) = Pool::open(env.clone(), &found.config, options) else {
            continue;
        };
        opened = true;
        let _ = p.history_records();
        let _ = p.stored_props();
        let _ = p.scan_state();
        for top in p.tree().tops().iter() {
            for ms in 0..p.space().metaslab_count(top.id()).min(64) {
                let _ = p.maps().load(top.id(), ms);
            }
        }
        objects(p.mos());
        if let Ok(root) = p.dsl().root() {
            let mut sets = Vec::new();
            let _ = p.dsl().walk(&root, &mut |d| {
                if let Ok(head) = d.head() {
                    sets.extend(head.snapshots().into_iter().flatten().map(|(_, s)| s));
                    sets.push(head);
                }
                Ok(())
            });
            for ds in sets.iter().take(200) {
                let _ = ds.full_name();
                let _ = pool::prop_number(ds, "recordsize");
                let _ = ds.deadlist();
                if let Ok(set) = p.open_dataset(ds) {
                    objects(&set.os);
                    files(env, &set.os, p.version());
                }
            }
        }
        let _ = p.damaged_objects();
        let _ = p.close();
    }
    opened
}

fn objects(os: &Arc<Objset>) {
    let mut at = 0;
    for _ in 0..MOST {
        match os.next_object(at) {
            Ok(Some(o)) if o > at => at = o,
            // Damage somewhere in the list: go on behind it.
            Err(_) => {
                at += 32;
                if at > 1 << 16 {
                    return;
                }
                continue;
            }
            _ => return,
        }
        let Ok(dn) = os.hold(at) else { continue };
        let info = dn.info();
        let _ = dn.bonus();
        let _ = dn.spill();
        let mut buf = vec![0; BYTES as usize];
        let size = info.max_blkid.saturating_mul(info.block_size as u64);
        let _ = dn.read(0, &mut buf);
        if size < 1 << 60 {
            let _ = dn.read(size, &mut buf);
        }
        let _ = dn.seek(0, true);
        let _ = dn.seek(0, false);
        for e in Zap::new(&dn).iter().take(MOST) {
            if e.is_err() {
                break;
            }
        }
        let _ = Zap::new(&dn).get("ROOT");
    }
}

fn files(env: &Env, os: &Arc<Objset>, version: u64) {
    let Ok(zfs) = Zfs::open(os, mount(env, version)) else {
        return;
    };
    let Ok(root) = zfs.root() else { return };
    let cred = Cred {
        checked: true,
        uid: 0,
        gid: 0,
        groups: None,
        privileged: true,
    };
    let mut seen = HashSet::new();
    let mut todo = vec![root];
    while let Some(z) = todo.pop() {
        if !seen.insert(z.object) || seen.len() > MOST {
            continue;
        }
        let a = zfs.getattr(&z);
        let _ = zfs.path_of(z.object);
        for name in zfs.listxattr(&z, &cred).unwrap_or_default() {
            let _ = zfs.getxattr(&z, &name, &cred);
        }
        let _ = zfs.posix_acl(&z, false);
        let _ = zfs.readlink(&z);
        let mut buf = vec![0; BYTES as usize];
        let _ = zfs.read(&z, 0, &mut buf);
        let _ = zfs.read(&z, a.size.saturating_sub(BYTES / 2), &mut buf);
        let _ = zfs.seek(&z, 0, false);
        if !z.is_dir() {
            continue;
        }
        let mut names = Vec::new();
        let _ = zfs.readdir(&z, 0, |e| {
            names.push(e.name.to_vec());
            Ok(names.len() < MOST)
        });
        for name in names {
            if let Ok(child) = zfs.lookup(&z, &name, &cred) {
                todo.push(child);
            }
        }
    }
}
