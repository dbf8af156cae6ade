//! Random changes of files whose records are not in memory, held against a copy: with records of every kind, with and without
//! compression and encryption, through the kernel, over exports and kills.

use rustix::fs::{fallocate, FallocateFlags};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use system_tests::{Dice, Rig};

const SIZE: u64 = 3 << 20;
const ROUNDS: u64 = 6;
const CHANGES: u64 = 70;

/// A file and what must be in it.
struct Twin {
    path: PathBuf,
    content: Vec<u8>,
    /// As of the last fsync.
    synced: Vec<u8>,
}

impl Twin {
    fn change(&mut self, dice: &mut Dice) {
        let f = File::options()
            .read(true)
            .write(true)
            .open(&self.path)
            .unwrap();
        for _ in 0..CHANGES {
            let at = dice.below(SIZE);
            match dice.below(20) {
                0 => {
                    f.set_len(at).unwrap();
                    self.content.resize(at as usize, 0);
                }
                1 => {
                    let len = 1 + dice.below(200_000);
                    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    fallocate(&f, how, at, len).unwrap();
                    let size = self.content.len();
                    let (from, to) = (at as usize, (at + len) as usize);
                    self.content[from.min(size)..to.min(size)].fill(0);
                }
                2 => {
                    f.sync_all().unwrap();
                    self.synced = self.content.clone();
                }
                3..6 => {
                    let from = at as usize % self.content.len().max(1);
                    let want = &self.content[from..self.content.len().min(from + 50_000)];
                    let mut got = vec![0; want.len()];
                    f.read_exact_at(&mut got, from as u64).unwrap();
                    assert!(got == want, "{}", self.path.display());
                }
                n => {
                    // Whole pages are not read by the kernel.
                    let (at, len) = match n % 3 {
                        0 => (at & !4095, 4096),
                        1 => (at & !4095, 4096 * (1 + dice.below(40))),
                        _ => (at, 1 + dice.below(9000)),
                    };
                    let bytes = dice.bytes(len as usize);
                    f.write_all_at(&bytes, at).unwrap();
                    let end = at as usize + bytes.len();
                    if self.content.len() < end {
                        self.content.resize(end, 0);
                    }
                    self.content[at as usize..end].copy_from_slice(&bytes);
                }
            }
        }
        f.sync_all().unwrap();
        self.synced = self.content.clone();
    }
}

#[test]
fn pieces_written_over_cold_records_are_what_was_written() {
    let Some(mut rig) = Rig::new("pieces") else {
        return;
    };
    let image = rig.image("disk", 1 << 30);
    let (mnt, disks) = (rig.mnt(), rig.disks());
    let (at, disks) = (mnt.to_str().unwrap(), disks.to_str().unwrap());
    rig.start();
    rig.zpool(&["create", "-m", at, "tank", &image]);
    let key = rig.path().join("key");
    fs::write(&key, "5a".repeat(32)).unwrap();
    let location = format!("keylocation=file://{}", key.display());
    let sealed = ["encryption=on", "keyformat=hex", &location];
    let kinds: [(&str, &[&str]); 6] = [
        ("r512", &["recordsize=512"]),
        ("r4k", &["recordsize=4K", "compression=zstd"]),
        ("r128k", &["recordsize=128K", "compression=off"]),
        ("r128kz", &["recordsize=128K", "compression=zstd"]),
        ("r1m", &["recordsize=1M"]),
        ("sealed", &sealed),
    ];
    let mut dice = Dice::new(33);
    let mut twins = Vec::new();
    for (name, options) in kinds {
        let fs = format!("tank/{name}");
        let mut args = vec!["create"];
        for o in options {
            args.extend(["-o", o]);
        }
        args.push(&fs);
        rig.zfs(&args);
        let path = mnt.join(name).join("file");
        let content = dice.bytes(SIZE as usize);
        fs::write(&path, &content).unwrap();
        let synced = content.clone();
        twins.push(Twin {
            path,
            content,
            synced,
        });
    }
    rig.zpool(&["export", "tank"]);
    for round in 0..ROUNDS {
        rig.zpool(&["import", "-l", "-d", disks, "tank"]);
        for t in &mut twins {
            let got = fs::read(&t.path).unwrap();
            assert!(got == t.synced, "{} in round {round}", t.path.display());
        }
        rig.zpool(&["export", "tank"]);
        rig.zpool(&["import", "-l", "-d", disks, "tank"]);
        for t in &mut twins {
            t.change(&mut dice);
        }
        match round % 2 {
            0 => rig.zpool(&["export", "tank"]),
            _ => {
                rig.kill();
                rig.start();
                rig.zpool(&["export", "tank"])
            }
        };
    }
    rig.stop();
}
