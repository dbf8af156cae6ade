//! What other software wrote wrongly is read as far as it can be, named, and not made worse.

use admin::alone::{self, Alone, MemoryDoor, MemoryMount};
use admin::commands::{Commands, ROOT};
use admin::datasets::{create, keys, mount, receive, send};
use admin::{pools, Admin};
use api::{ImportScan, PoolGet, PoolImport, Receive, Secret, Send};
use base::mutation::{mutate, Mutation};
use base::Kind;
use env_sim::MemDisks;
use std::path::Path;
use std::sync::Arc;
use zap::{Value, Zap};
use zpl::{Cred, New, WriteOpts};

struct World {
    admin: Arc<Admin>,
    disks: Arc<MemDisks>,
}

fn on(env: env::Env, disks: Arc<MemDisks>, ivsets_unchecked: bool) -> World {
    let process = Arc::new(Alone::new(env.clone(), pool::Tunables::default()));
    let settings = admin::Settings {
        ivsets_unchecked,
        ..alone::settings()
    };
    let door = Arc::new(MemoryDoor::default());
    World {
        admin: Admin::new(env, settings, door, process),
        disks,
    }
}

fn world(ivsets_unchecked: bool) -> World {
    let (env, disks) = env_sim::mem_env(7);
    disks.add("/dev/a", 128 << 20);
    let w = on(env, disks, ivsets_unchecked);
    pools::create::create(&w.admin, ROOT, alone::pool_on("p", "/dev/a")).unwrap();
    w
}

impl World {
    fn pool(&self) -> Arc<pool::Pool> {
        self.admin.find("p").unwrap().pool.clone()
    }

    fn commands(&self) -> Commands {
        Commands(self.admin.clone())
    }

    /// Exports the pool and imports it.
    fn again(self, ivsets_unchecked: bool) -> World {
        let how = pools::Leave::default();
        pools::leave(&self.admin, ROOT, "p", how, "zpool export p").unwrap();
        let w = on(self.admin.env.clone(), self.disks.clone(), ivsets_unchecked);
        w.import().unwrap();
        w
    }

    fn import(&self) -> admin::Answer<api::Imported> {
        let ask = PoolImport {
            pool: "p".into(),
            search: ImportScan {
                places: vec!["/dev/a".into()],
                ..ImportScan::default()
            },
            props: vec![("cachefile".into(), "none".into())],
            ..PoolImport::default()
        };
        pools::import::import(&self.admin, ROOT, ask, &|| false)
    }

    fn errata(&self) -> u64 {
        let ask = PoolGet {
            pools: vec!["p".into()],
            tree: true,
            ..PoolGet::default()
        };
        pools::get::get(&self.admin, admin::commands::ROOT, &ask).found[0]
            .facts
            .errata
    }

    fn encrypted(&self, name: &str) -> admin::Answer<api::Created> {
        let props = [("encryption", "on"), ("keyformat", "raw")];
        let ask = api::DatasetCreate {
            name: name.into(),
            props: props.map(|(n, v)| (n.into(), v.into())).to_vec(),
            key: Some(key()),
            ..api::DatasetCreate::default()
        };
        create::create(&self.admin, ROOT, &ask)
    }

    fn mount(&self, name: &str) {
        mount::mount(&self.admin, ROOT, name, &[], false, false, None).unwrap();
    }

    fn write(&self, place: &str, name: &str, data: &[u8]) -> base::Result<()> {
        self.at(place, |m| {
            let inside = m.head.enter();
            let (root, cred) = (inside.zfs.root()?, Cred::root());
            let new = New::file(0o100644, 0o22);
            let file = inside.zfs.create(&root, name.as_bytes(), &new, &cred)?;
            inside.zfs.write(&file, 0, data, WriteOpts::default())?;
            Ok(())
        })
    }

    fn read(&self, place: &str, name: &str) -> Vec<u8> {
        self.at(place, |m| {
            let inside = m.head.enter();
            let (root, cred) = (inside.zfs.root().unwrap(), Cred::root());
            let file = inside.zfs.lookup(&root, name.as_bytes(), &cred).unwrap();
            let mut data = vec![0; 1 << 20];
            let n = inside.zfs.read(&file, 0, &mut data).unwrap();
            data.truncate(n);
            data
        })
    }

    fn at<R>(&self, place: &str, work: impl FnOnce(&MemoryMount) -> R) -> R {
        let all = self.admin.find("p").unwrap().all_mounts();
        let m = all.iter().find(|m| m.path == Path::new(place)).unwrap();
        work(m.mount.as_any().downcast_ref().unwrap())
    }

    fn send(&self, name: &str, from: Option<&str>, raw: bool) -> admin::Answer<Vec<u8>> {
        let ask = Send {
            target: name.into(),
            from: from.map(Into::into),
            raw,
            ..Send::default()
        };
        let mut stream = Vec::new();
        send::send(&self.admin, ROOT, &ask, Some(&mut stream), &mut |_| {})?;
        Ok(stream)
    }

    fn receive(&self, to: &str, stream: &[u8]) -> admin::Answer<()> {
        let ask = Receive {
            target: to.into(),
            ..Receive::default()
        };
        receive::receive(&self.admin, ROOT, &ask, stream, &mut |_| {}).map(drop)
    }
}

fn key() -> Secret {
    Secret::new(vec![7; 32])
}

fn numbers() -> Vec<u8> {
    (0..90_000u32).flat_map(u32::to_le_bytes).collect()
}

/// The object of a dataset's key has no version then, and all MACs are of the first format.
fn first_format() -> World {
    let w = world(false);
    w.pool().dsl().make_old_keys(true);
    w.encrypted("p/e").unwrap();
    w.write("/p/e", "f", &numbers()).unwrap();
    w.commands().snapshot("p/e@s").unwrap();
    w.write("/p/e", "g", b"more").unwrap();
    w.commands().snapshot("p/e@t").unwrap();
    let pool = w.pool();
    let object = pool
        .dsl()
        .dir("p/e")
        .unwrap()
        .key_object()
        .unwrap()
        .unwrap();
    let dn = pool.mos().hold(object.object).unwrap();
    assert_eq!(Zap::new(&dn).get("DSL_CRYPTO_VERSION").unwrap(), None);
    drop((dn, pool));
    let w = w.again(false);
    assert_eq!(w.errata(), 3);
    keys::load(&w.admin, ROOT, "p/e", &key(), false).unwrap();
    w.mount("p/e");
    w
}

#[test]
fn datasets_of_the_first_format_of_encryption_are_read_and_not_written() {
    let w = first_format();
    assert_eq!(w.read("/p/e", "f"), numbers());
    assert!(w.at("/p/e", |m| m.options().read_only));
    let e = w.write("/p/e", "h", b"new").unwrap_err();
    assert_eq!(e.kind, Kind::ReadOnly, "{e}");
    // Whoever makes a new one has the newest format.
    w.encrypted("p/n").unwrap();
    w.write("/p/n", "f", b"new").unwrap();
    let w = w.again(false);
    keys::load(&w.admin, ROOT, "p/e", &key(), false).unwrap();
    keys::load(&w.admin, ROOT, "p/n", &key(), false).unwrap();
    w.mount("p/e");
    w.mount("p/n");
    assert_eq!(w.read("/p/e", "f"), numbers());
    assert_eq!(w.read("/p/n", "f"), b"new");
}

#[test]
fn datasets_of_the_first_format_of_encryption_are_sent_decrypted_alone() {
    let w = first_format();
    let first = w.send("p/e@s", None, false).unwrap();
    w.receive("p/copy", &first).unwrap();
    let more = w.send("p/e@t", Some("p/e@s"), false).unwrap();
    w.receive("p/copy", &more).unwrap();
    assert_eq!(w.read("/p/copy", "f"), numbers());
    assert_eq!(w.read("/p/copy", "g"), b"more");
    let e = w.send("p/e@s", None, true).unwrap_err();
    assert!(e.message.contains("errata 3"), "{e:?}");
    // Nothing is written into one of them.
    w.commands().destroy("p/e@t").unwrap();
    let ask = Receive {
        target: "p/e".into(),
        force: true,
        ..Receive::default()
    };
    let done = receive::receive(&w.admin, ROOT, &ask, &more[..], &mut |_| {});
    let e = done.map(drop).unwrap_err();
    assert!(e.message.contains("errata 3"), "{e:?}");
}

/// Raw streams of the first format, whole and increments, are neither sent nor received. What they protect does not say enough.
#[test]
fn raw_increments_of_the_first_format_of_encryption_are_refused() {
    let w = world(false);
    w.pool().dsl().make_old_keys(true);
    w.encrypted("p/e").unwrap();
    w.write("/p/e", "f", &numbers()).unwrap();
    w.commands().snapshot("p/e@s").unwrap();
    w.write("/p/e", "g", b"more").unwrap();
    w.commands().snapshot("p/e@t").unwrap();
    // Software of that time sent them.
    let whole = w.send("p/e@s", None, true).unwrap();
    let more = w.send("p/e@t", Some("p/e@s"), true).unwrap();
    let w = w.again(false);
    keys::load(&w.admin, ROOT, "p/e", &key(), false).unwrap();
    w.mount("p/e");
    for from in [None, Some("p/e@s")] {
        let e = w.send("p/e@t", from, true).unwrap_err();
        assert!(e.message.contains("errata 3"), "{from:?}: {e:?}");
    }
    let e = w.receive("p/copy", &whole).unwrap_err();
    assert!(e.message.contains("errata 3"), "{e:?}");
    assert!(w.pool().dsl().dir("p/copy").is_err());
    // Its keys had no version at all.
    let e = dsl::ReceivedKey::from_list(&disk::NvList::new())
        .err()
        .unwrap();
    assert!(e.to_string().contains("errata 3"), "{e}");
    w.commands().destroy("p/e@t").unwrap();
    let ask = Receive {
        target: "p/e".into(),
        force: true,
        ..Receive::default()
    };
    let done = receive::receive(&w.admin, ROOT, &ask, &more[..], &mut |_| {});
    let e = done.map(drop).unwrap_err();
    assert!(e.message.contains("errata 3"), "{e:?}");
    assert_eq!(w.read("/p/e", "f"), numbers());
    assert_eq!(w.read("/p/e", "g"), b"more");
    // Decrypted, an increment goes on from what is there of another copy, and is encrypted there anew.
    w.commands().snapshot("p/e@u").unwrap();
    let whole = w.send("p/e@s", None, false).unwrap();
    let more = w.send("p/e@u", Some("p/e@s"), false).unwrap();
    w.encrypted("p/new").unwrap();
    w.receive("p/new/copy", &whole).unwrap();
    w.receive("p/new/copy", &more).unwrap();
    assert_eq!(w.read("/p/new/copy", "f"), numbers());
    assert_eq!(w.read("/p/new/copy", "g"), b"more");
    assert!(!w
        .pool()
        .dsl()
        .dir("p/new/copy")
        .unwrap()
        .has_old_keys()
        .unwrap());
    let raw = w.send("p/new/copy@u", Some("p/new/copy@s"), true);
    raw.unwrap();
}

/// As software before wrote it: a file of large blocks of which none was ever written, in a file system that does not count as
/// one with such blocks.
#[test]
fn a_raw_stream_with_large_blocks_that_nobody_counted_is_refused() {
    let w = world(false);
    mutate(Some(Mutation::UnwrittenLargeBlocks));
    let props = [
        ("encryption", "on"),
        ("keyformat", "raw"),
        ("recordsize", "1M"),
        ("compression", "lz4"),
    ];
    let ask = api::DatasetCreate {
        name: "p/e".into(),
        props: props.map(|(n, v)| (n.into(), v.into())).to_vec(),
        key: Some(key()),
        ..api::DatasetCreate::default()
    };
    create::create(&w.admin, ROOT, &ask).unwrap();
    w.write("/p/e", "f", &vec![0; 1_100_000]).unwrap();
    w.commands().snapshot("p/e@s").unwrap();
    mutate(None);
    let e = w.send("p/e@s", None, true).unwrap_err();
    let named = ["none of which was ever written", "bs=1M", "send without -w"];
    assert!(named.iter().all(|n| e.message.contains(n)), "{e:?}");
    // Both ways that it names.
    let plain = w.send("p/e@s", None, false).unwrap();
    w.receive("p/copy", &plain).unwrap();
    assert_eq!(w.read("/p/copy", "f"), vec![0; 1 << 20]);
    let noise: Vec<u8> = (0..2u32 << 18)
        .flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes())
        .collect();
    w.write("/p/e", "g", &noise).unwrap();
    w.commands().snapshot("p/e@t").unwrap();
    let raw = w.send("p/e@t", None, true).unwrap();
    w.receive("p/raw", &raw).unwrap();
    keys::load(&w.admin, ROOT, "p/raw", &key(), false).unwrap();
    w.mount("p/raw");
    assert_eq!(w.read("/p/raw", "f"), vec![0; 1 << 20]);
    assert_eq!(w.read("/p/raw", "g"), noise[..1 << 20]);
}

/// Forgets the guid of a snapshot's set of IVs, as software of before 2019 never had one.
fn forget_ivset(w: &World, snap: &str) {
    let object = w.pool().dsl().dataset(snap).unwrap().object();
    w.pool()
        .task(move |pool, tx| {
            Zap::new(&pool.mos().hold(object)?).remove(tx, "com.datto:ivset_guid")
        })
        .unwrap();
}

#[test]
fn raw_increments_without_guids_of_ivs_are_received_only_when_asked_for() {
    for unchecked in [false, true] {
        let w = world(unchecked);
        w.encrypted("p/e").unwrap();
        w.write("/p/e", "f", &numbers()).unwrap();
        w.commands().snapshot("p/e@s").unwrap();
        let first = w.send("p/e@s", None, true).unwrap();
        w.receive("p/copy", &first).unwrap();
        w.write("/p/e", "g", b"more").unwrap();
        w.commands().snapshot("p/e@t").unwrap();
        forget_ivset(&w, "p/e@s");
        let w = w.again(unchecked);
        let more = w.send("p/e@t", Some("p/e@s"), true).unwrap();
        let done = w.receive("p/copy", &more);
        if unchecked {
            done.unwrap();
            keys::load(&w.admin, ROOT, "p/copy", &key(), false).unwrap();
            w.mount("p/copy");
            assert_eq!(w.read("/p/copy", "g"), b"more");
        } else {
            let e = done.unwrap_err();
            let named = e.message.contains("zfs-disable-ivset-guid-check");
            assert!(named && e.message.contains("errata 4"), "{e:?}");
        }
    }
}

#[test]
fn encrypted_datasets_are_not_made_where_snapshots_get_no_guids_of_ivs() {
    let w = world(false);
    assert_eq!(w.errata(), 0);
    w.pool()
        .task(|pool, tx| {
            let directory = pool.mos().hold(1)?;
            for list in ["features_for_read", "features_for_write"] {
                let object = Zap::new(&directory).get(list)?.unwrap();
                let list = pool.mos().hold(object)?;
                Zap::new(&list).remove_if(tx, "com.datto:bookmark_v2")?;
            }
            Ok(())
        })
        .unwrap();
    let w = w.again(false);
    assert_eq!(w.errata(), 4);
    let e = w.encrypted("p/e").unwrap_err();
    assert!(e.message.contains("bookmark_v2"), "{e:?}");
    w.commands().create("p/plain", &[]).unwrap();
}

/// A record of the newest scan with a word too many.
fn long_record(w: &World, destroying: bool) {
    w.pool()
        .task(move |pool, tx| {
            let words = [&[1, 2][..], &[0; 23]].concat();
            let directory = pool.mos().hold(1)?;
            Zap::new(&directory).update(tx, "scan", &Value::u64s(&words))?;
            if destroying {
                pool.dsl()
                    .features()
                    .activate(tx, "com.delphix:async_destroy", 1)?;
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_long_record_of_a_scan_is_told_until_the_next_scrub() {
    let w = world(false);
    long_record(&w, false);
    let w = w.again(false);
    assert_eq!(w.errata(), 1);
    let scrub = api::PoolScrub {
        pool: "p".into(),
        action: api::ScrubAction::Start,
        since_last: false,
        start: None,
        end: None,
        command: "zpool scrub p".into(),
    };
    pools::scan::scrub(&w.admin, ROOT, &scrub).unwrap();
    w.pool().sync().unwrap();
    assert_eq!(w.errata(), 0);
}

#[test]
fn a_long_record_of_a_scan_forbids_to_go_on_with_a_destroy() {
    let w = world(false);
    long_record(&w, true);
    let how = pools::Leave::default();
    pools::leave(&w.admin, ROOT, "p", how, "zpool export p").unwrap();
    let w = on(w.admin.env.clone(), w.disks.clone(), false);
    let e = w.import().unwrap_err();
    assert!(e.message.contains("errata 2"), "{e:?}");
}
