//! Measures batches on a device or image file: io_uring against threads, in turn.
//!
//! `cargo run --release -p env-linux --example batches -- PATH [SIZE_MIB] [ROUNDS]`: PATH is a block
//! device (its content is lost) or a file, which is made anew for each round: with all of its
//! blocks written, or as one hole.

use env::{Access, Disks, Op};
use env_linux::disk::{IoUring, LinuxDisks, Options};
use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const MIB: u64 = 1 << 20;

/// A way to use a device: bytes of a transfer, transfers of a batch, how they lie.
struct Row {
    name: &'static str,
    write: bool,
    len: u64,
    batch: u64,
    random: bool,
    hole: bool,
}

fn main() {
    let mut args = std::env::args().skip(1);
    let path = args.next().expect("PATH");
    let size = args.next().map_or(512, |a| a.parse().expect("MiB")) * MIB;
    let rounds: u32 = args.next().map_or(3, |a| a.parse().expect("rounds"));
    let row = |name, write, len, batch, random, hole| Row {
        name,
        write,
        len,
        batch,
        random,
        hole,
    };
    let rows = [
        row("write 1M x32 sequential, hole", true, MIB, 32, false, true),
        row("write 1M x32 sequential", true, MIB, 32, false, false),
        row(
            "write 128K x32 random, hole",
            true,
            128 << 10,
            32,
            true,
            true,
        ),
        row("write 128K x32 random", true, 128 << 10, 32, true, false),
        row("write 8K x64 random, hole", true, 8 << 10, 64, true, true),
        row("write 8K x64 random", true, 8 << 10, 64, true, false),
        row("write 8K x4 random", true, 8 << 10, 4, true, false),
        row("read 1M x8 sequential", false, MIB, 8, false, false),
        row("read 128K x32 random", false, 128 << 10, 32, true, false),
        row("read 8K x64 random", false, 8 << 10, 64, true, false),
        row("read 8K x4 random", false, 8 << 10, 4, true, false),
        row("read 8K x2 random", false, 8 << 10, 2, true, false),
    ];
    let block = std::fs::metadata(&path).is_ok_and(|m| !m.is_file());
    println!(
        "{:32} {:>13} {:>13}  (MB/s; CPU s per GB)",
        "", "io_uring", "threads"
    );
    for r in rows.iter().filter(|r| !(block && r.hole)) {
        let mut best = [(0.0f64, 0.0f64); 2];
        let mut fresh = false;
        for _ in 0..rounds {
            for (i, io_uring) in [IoUring::Files, IoUring::Nothing].into_iter().enumerate() {
                if !block && (r.hole || !fresh) {
                    make(&path, size, r.hole);
                    fresh = true;
                }
                let options = Options {
                    io_uring,
                    direct: true,
                };
                let seen = run(&path, size, r, options);
                if seen.0 > best[i].0 {
                    best[i] = seen;
                }
            }
        }
        let cell = |(speed, cpu): (f64, f64)| format!("{speed:>7.0} {cpu:>5.2}");
        println!("{:32} {} {}", r.name, cell(best[0]), cell(best[1]));
    }
}

fn make(path: &str, size: u64, hole: bool) {
    let _ = std::fs::remove_file(path);
    let mut f = File::create(path).expect("image");
    if hole {
        return f.set_len(size).expect("size");
    }
    let bytes = vec![7; MIB as usize];
    (0..size / MIB).for_each(|_| f.write_all(&bytes).expect("image"));
    f.sync_all().expect("image");
}

/// Processor seconds of this process and its kernel threads.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("stat");
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .expect("stat")
        .split_whitespace()
        .collect();
    (fields[11].parse::<f64>().expect("utime") + fields[12].parse::<f64>().expect("stime")) / 100.0
}

/// Bytes a second and processor seconds a gigabyte.
fn run(path: &str, size: u64, r: &Row, options: Options) -> (f64, f64) {
    let disk = LinuxDisks::with_options(options)
        .open(path, Access::Exclusive)
        .expect("open");

    let data = Arc::new(vec![9u8; r.len as usize]);
    let slots = size / r.len;
    let (mut at, mut seed, mut moved) = (0, 1u64, 0);
    let (begin, cpu) = (Instant::now(), cpu_seconds());
    while moved < size && begin.elapsed().as_secs_f64() < 1.5 {
        let ops = (0..r.batch)
            .map(|_| {
                seed = seed
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                at = if r.random {
                    (seed >> 33) % slots
                } else {
                    (at + 1) % slots
                };
                let offset = at * r.len;
                match r.write {
                    true => Op::Write {
                        offset,
                        bufs: vec![data.clone()],
                    },
                    false => Op::Read {
                        offset,
                        buf: vec![0; r.len as usize],
                    },
                }
            })
            .collect();
        for (_, result) in disk.batch(ops) {
            result.expect("transfer");
        }
        moved += r.batch * r.len;
    }
    if r.write {
        disk.flush().expect("flush");
    }
    let (time, cpu) = (begin.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    (moved as f64 / 1e6 / time, cpu / (moved as f64 / 1e9))
}
