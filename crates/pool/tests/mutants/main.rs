//! Whole images with mistakes in them: sectors full of something else, and blocks that say nonsense
//! under a right checksum. Whatever they hold, opening and walking them ends, without a panic, without
//! taking memory without bound.
//!
//! The same seeds every time. `ZFS_FUSE_MUTANTS` (default: a few seconds' worth) says how many mutants
//! are made of each fixture and in each way; `ZFS_FUSE_MUTANT=FIXTURE:WAY:SEED` makes one only, to
//! look at a finding.

mod forge;
mod walk;

use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::or_skip;
use vdev::testing::{mem_env, MemDisk, SeededRng};

/// Longest time for one mutant. Walking one takes well below a second.
const PATIENCE: Duration = Duration::from_secs(120);
/// Address space of a process that looks at mutants, KiB.
const MEMORY: u64 = 3 << 20;
/// How long the short run takes at most for one fixture in one way.
const SHORT: Duration = Duration::from_millis(3500);

/// Fixtures and in which ways they are changed.
const SUBJECTS: [(&str, &[Way]); 6] = [
    ("single", &[Way::Blocks, Way::Sectors]),
    ("legacy-v15", &[Way::Blocks]),
    ("snapshots", &[Way::Blocks]),
    ("xattrs", &[Way::Blocks]),
    ("raidz1-3", &[Way::Sectors]),
    ("mirror-degraded", &[Way::Sectors]),
];

/// Mutants that once did harm: `fixture:way:number`.
const FOUND: [&str; 1] = [
    // A dnode that claims to take almost 2^64 bytes: stat overflowed.
    "single:Blocks:409",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Any sectors, labels among them; sometimes the image ends early.
    Sectors,
    /// Content of blocks, with checksums made right up to the uberblock.
    Blocks,
}

/// One fixture in memory.
struct Subject {
    disks: Vec<Arc<MemDisk>>,
    blocks: Vec<forge::Block>,
}

fn load(name: &str) -> Option<Subject> {
    let dir = or_skip(testkit::fixture::unpack(name))?;
    let mut disks = Vec::new();
    for n in 0..16 {
        let Ok(mut file) = std::fs::File::open(dir.path().join(format!("d{n}.img"))) else {
            continue;
        };
        let disk = MemDisk::new(file.metadata().expect("size").len());
        let mut at = 0;
        let mut buf = vec![0; 1 << 16];
        loop {
            use std::io::Read;
            let n = file.read(&mut buf).expect("image");
            if n == 0 {
                break;
            }
            if buf[..n].iter().any(|b| *b != 0) {
                disk.poke(at, &buf[..n]);
            }
            at += n as u64;
        }
        disks.push(disk);
    }
    Some(Subject {
        disks,
        blocks: Vec::new(),
    })
}

/// Changes copies of the disks.
fn mutate(s: &Subject, way: Way, dice: &SeededRng) -> Vec<Arc<MemDisk>> {
    let disks: Vec<_> = s.disks.iter().map(|d| d.fork()).collect();
    match way {
        Way::Sectors => forge::sectors(&disks, dice),
        Way::Blocks => forge::block(&disks[0], &s.blocks, dice),
    }
    disks
}

fn seed_of(fixture: &str, way: Way, n: u64) -> u64 {
    let name = fixture
        .bytes()
        .fold(7u64, |h, b| h.wrapping_mul(31) + u64::from(b));
    name.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (n << 1) ^ u64::from(way == Way::Blocks)
}

/// The process that does it: `FIXTURE:WAY:FIRST:COUNT`.
fn work(order: &str) {
    let parts: Vec<&str> = order.split(':').collect();
    let &[fixture, way, first, count] = &parts[..] else {
        panic!("order {order}");
    };
    let way = match way {
        "Blocks" => Way::Blocks,
        _ => Way::Sectors,
    };
    let (first, count): (u64, u64) = (first.parse().unwrap(), count.parse().unwrap());
    let Some(mut s) = load(fixture) else { return };
    if way == Way::Blocks {
        s.blocks = forge::collect(&s.disks);
        assert!(s.blocks.len() > 50, "{} blocks", s.blocks.len());
    }
    // Who takes too long is named.
    let now = Arc::new(AtomicU64::new(first));
    let began = Arc::new(std::sync::Mutex::new(Instant::now()));
    let (n2, b2, what) = (now.clone(), began.clone(), format!("{fixture}:{way:?}"));
    std::thread::spawn(move || loop {
        std::thread::sleep(Duration::from_secs(1));
        if b2.lock().unwrap().elapsed() > PATIENCE {
            eprintln!("{what}:{} does not end", n2.load(Ordering::Relaxed));
            std::process::abort();
        }
    });
    let start = Instant::now();
    let short = std::env::var_os("ZFS_FUSE_MUTANTS").is_none();
    let (mut done, mut opened) = (0, 0);
    for n in first..first + count {
        now.store(n, Ordering::Relaxed);
        *began.lock().unwrap() = Instant::now();
        let dice = SeededRng::new(seed_of(fixture, way, n));
        let disks = mutate(&s, way, &dice);
        let (env, all) = mem_env(1);
        for (i, d) in disks.into_iter().enumerate() {
            all.put(&format!("/d{i}"), d);
        }
        let r = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            walk::everything(&env, &all.paths())
        }));
        match r {
            Ok(o) => opened += u64::from(o),
            Err(_) => {
                eprintln!("mutant {fixture}:{way:?}:{n} panics");
                std::process::exit(3);
            }
        }
        done += 1;
        if short && start.elapsed() > SHORT {
            break;
        }
    }
    println!("{fixture} {way:?}: {done} mutants, {opened} opened");
}

#[test]
fn mutants() {
    if let Ok(order) = std::env::var("ZFS_FUSE_MUTANT_ORDER") {
        return work(&order);
    }
    let count = std::env::var("ZFS_FUSE_MUTANTS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(40u64);
    let mut orders = Vec::new();
    match std::env::var("ZFS_FUSE_MUTANT") {
        Ok(one) => orders.push(format!("{one}:1")),
        Err(_) => {
            orders.extend(FOUND.iter().map(|m| format!("{m}:1")));
            for (fixture, ways) in SUBJECTS {
                orders.extend(ways.iter().map(|w| format!("{fixture}:{w:?}:0:{count}")));
            }
        }
    }
    let me = std::env::current_exe().expect("this program");
    for order in orders {
        // The limit of memory is the process's: what would take it all ends it.
        let out = Command::new("sh")
            .arg("-c")
            .arg(format!("ulimit -v {MEMORY}; exec \"$0\" \"$@\""))
            .arg(&me)
            .args(["mutants", "--exact", "--nocapture", "--test-threads=1"])
            .env("ZFS_FUSE_MUTANT_ORDER", &order)
            .output()
            .expect("another process of this program");
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        );
        assert!(out.status.success(), "{order}: {}\n{said}", out.status);
        for line in said.lines().filter(|l| l.contains(" mutants, ")) {
            println!("{line}");
        }
    }
}
