//! Writing what is there already takes no space, where checksums prove that it is the same.

use admin::alone::{self, Alone, MemoryDoor, MemoryMount};
use admin::commands::{Commands, ROOT};
use admin::datasets::{receive, send};
use admin::{pools, Admin};
use api::{Receive, Send};
use std::path::Path;
use std::sync::Arc;
use zpl::{Cred, New, WriteOpts};

const SIZE: usize = 2 << 20;

struct World(Arc<Admin>);

impl World {
    fn new() -> World {
        let (env, disks) = env_sim::mem_env(7);
        disks.add("/dev/a", 256 << 20);
        let process = Arc::new(Alone::new(env.clone(), pool::Tunables::default()));
        let door = Arc::new(MemoryDoor::default());
        let admin = Admin::new(env, alone::settings(), door, process);
        pools::create::create(&admin, ROOT, alone::pool_on("p", "/dev/a")).unwrap();
        World(admin)
    }

    fn commands(&self) -> Commands {
        Commands(self.0.clone())
    }

    fn create(&self, name: &str, props: &[(&str, &str)]) {
        self.commands().create(name, &[]).unwrap();
        for (prop, value) in props {
            self.commands().set(name, prop, value).unwrap();
        }
    }

    /// Writes a file of `data`, and the txg.
    fn write(&self, fs: &str, data: &[u8]) {
        let entry = self.0.find("p").unwrap();
        let all = entry.all_mounts();
        let place = format!("/{fs}");
        let m = all.iter().find(|m| m.path == Path::new(&place)).unwrap();
        let m: &MemoryMount = m.mount.as_any().downcast_ref().unwrap();
        let inside = m.head.enter();
        let (root, cred) = (inside.zfs.root().unwrap(), Cred::root());
        let file = inside.zfs.lookup(&root, b"f", &cred).or_else(|_| {
            let new = New::file(0o100644, 0o22);
            inside.zfs.create(&root, b"f", &new, &cred)
        });
        let file = file.unwrap();
        for (n, part) in data.chunks(256 << 10).enumerate() {
            let at = (n * (256 << 10)) as u64;
            inside
                .zfs
                .write(&file, at, part, WriteOpts::default())
                .unwrap();
        }
        drop(inside);
        entry.pool.sync().unwrap();
    }

    /// Bytes that the file system has for itself since its newest snapshot.
    fn own(&self, fs: &str) -> u64 {
        let dsl = self.0.find("p").unwrap().pool.dsl().clone();
        dsl.dataset(fs).unwrap().phys().unique_bytes
    }
}

/// Half of it can be compressed.
fn content(seed: u64) -> Vec<u8> {
    let mut x = seed | 1;
    let mut noise = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 24) as u8
    };
    (0..SIZE)
        .map(|i| match (i / (128 << 10) % 2, i % 64) {
            (0, _) | (_, ..16) => noise(),
            _ => 0,
        })
        .collect()
}

/// What writing the same again takes.
fn written_again(props: &[(&str, &str)], between: &[(&str, &str)]) -> u64 {
    let w = World::new();
    w.create("p/a", props);
    w.write("p/a", &content(1));
    w.commands().snapshot("p/a@s").unwrap();
    for (prop, value) in between {
        w.commands().set("p/a", prop, value).unwrap();
    }
    w.write("p/a", &content(1));
    w.own("p/a")
}

#[test]
fn equal_blocks_of_strong_checksums_are_not_written_again() {
    for strong in ["sha256", "sha512", "skein", "edonr", "blake3"] {
        let own = written_again(&[("checksum", strong)], &[]);
        assert!(own < 128 << 10, "{strong}: {own}");
    }
}

#[test]
fn equal_blocks_are_written_again_where_that_changes_how_they_are_stored() {
    let strong = ("checksum", "sha256");
    for (props, between) in [
        (&[("checksum", "fletcher4")][..], &[][..]),
        (&[strong, ("compression", "off")], &[]),
        (&[strong], &[("checksum", "sha512")]),
        (&[strong], &[("copies", "2")]),
        (&[strong], &[("dedup", "on")]),
        (
            &[strong, ("compression", "lz4")],
            &[("compression", "zstd")],
        ),
    ] {
        let own = written_again(props, between);
        assert!(own > 256 << 10, "{props:?}, then {between:?}: {own}");
    }
}

#[test]
fn a_changed_block_is_written_and_its_equal_neighbours_are_not() {
    let w = World::new();
    w.create("p/a", &[("checksum", "sha256")]);
    let mut data = content(1);
    w.write("p/a", &data);
    w.commands().snapshot("p/a@s").unwrap();
    data[128 << 10..256 << 10].copy_from_slice(&content(9)[..128 << 10]);
    w.write("p/a", &data);
    let own = w.own("p/a");
    assert!((128 << 10..384 << 10).contains(&own), "{own}");
}

#[test]
fn a_stream_of_what_is_there_already_takes_no_space() {
    let w = World::new();
    // There it is written again.
    w.create("p/a", &[("checksum", "fletcher4")]);
    w.write("p/a", &content(1));
    w.commands().snapshot("p/a@s").unwrap();
    w.write("p/a", &content(1));
    assert!(w.own("p/a") > 1 << 20);
    w.commands().snapshot("p/a@t").unwrap();
    let copy = |snap: &str, from: Option<&str>| {
        let ask = Send {
            target: snap.into(),
            from: from.map(Into::into),
            ..Send::default()
        };
        let mut stream = Vec::new();
        send::send(&w.0, ROOT, &ask, Some(&mut stream), &mut |_| {}).unwrap();
        assert!(stream.len() > SIZE);
        let ask = Receive {
            target: "p/b".into(),
            props: vec![("checksum".into(), "blake3".into())],
            ..Receive::default()
        };
        receive::receive(&w.0, ROOT, &ask, &stream[..], &mut |_| {}).unwrap();
    };
    copy("p/a@s", None);
    let used = || {
        let dsl = w.0.find("p").unwrap().pool.dsl().clone();
        dsl.dir("p/b").unwrap().phys().used_bytes
    };
    let before = used();
    copy("p/a@t", Some("p/a@s"));
    let after = used();
    assert!(after < before + (256 << 10), "{before} {after}");
}
