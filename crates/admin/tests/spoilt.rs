//! Streams that end in the middle leave nothing in memory. Alone in its process, whose memory it looks at.

use admin::alone::{self, Alone, MemoryDoor, MemoryMount};
use admin::commands::{Commands, ROOT};
use admin::datasets::{receive, send};
use admin::{pools, Admin};
use api::{Receive, Send};
use std::path::Path;
use std::sync::Arc;
use zpl::{Cred, New, WriteOpts};

/// Streams of a round.
const ROUND: usize = 150;
/// Bytes of the file that is sent.
const SIZE: usize = 1 << 20;

/// Bytes of memory that this process has.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[test]
fn spoilt_streams_leave_nothing_in_memory() {
    let (env, disks) = env_sim::mem_env(7);
    disks.add("/dev/a", 80 << 20);
    // The disk is in memory, too, and filled by the first rounds.
    let tunables = pool::Tunables {
        cache_bytes: 8 << 20,
        ..pool::Tunables::default()
    };
    let process = Arc::new(Alone::new(env.clone(), tunables));
    let door = Arc::new(MemoryDoor::default());
    let admin = Admin::new(env, alone::settings(), door, process);
    pools::create::create(&admin, ROOT, alone::pool_on("p", "/dev/a")).unwrap();
    let commands = Commands(admin.clone());
    commands.create("p/a", &[]).unwrap();
    {
        let all = admin.find("p").unwrap().all_mounts();
        let m = all.iter().find(|m| m.path == Path::new("/p/a")).unwrap();
        let m: &MemoryMount = m.mount.as_any().downcast_ref().unwrap();
        let inside = m.head.enter();
        let (root, cred) = (inside.zfs.root().unwrap(), Cred::root());
        let new = New::file(0o100644, 0o22);
        let file = inside.zfs.create(&root, b"f", &new, &cred).unwrap();
        let mut x = 7u64;
        let mut noise = || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 24) as u8
        };
        let data: Vec<u8> = (0..SIZE).map(|_| noise()).collect();
        inside
            .zfs
            .write(&file, 0, &data[..], WriteOpts::default())
            .unwrap();
    }
    commands.snapshot("p/a@s").unwrap();
    let ask = Send {
        target: "p/a@s".into(),
        ..Send::default()
    };
    let mut stream = Vec::new();
    send::send(&admin, ROOT, &ask, Some(&mut stream), &mut |_| {}).unwrap();
    let round = || {
        for n in 0..ROUND {
            let mut bad = stream.clone();
            match n % 2 {
                // Cut off, or with a byte that is wrong.
                0 => bad.truncate(SIZE * 3 / 4),
                _ => bad[SIZE * 3 / 4] ^= 1,
            }
            let ask = Receive {
                target: format!("p/spoilt{n}"),
                ..Receive::default()
            };
            receive::receive(&admin, ROOT, &ask, &bad[..], &mut |_| {}).unwrap_err();
        }
        for _ in 0..3 {
            admin.find("p").unwrap().pool.sync().unwrap();
        }
        resident()
    };
    let rounds: Vec<u64> = (0..4).map(|_| round() >> 10).collect();
    eprintln!("KiB: {rounds:?}");
    // A quarter of a MiB for each stream would be 37 MiB.
    let more = rounds[3].saturating_sub(rounds[2]);
    assert!(more < 12 << 10, "KiB: {rounds:?}");
}
