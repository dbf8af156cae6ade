//! What the tests of the whole system share: a [`Rig`] with a daemon, sockets, disks and mounts of
//! its own, trees of files with everything a file system can hold ([`tree`]), writers that
//! remember what `fsync` promised them ([`load`]).
//!
//! The programs under test are those of the build that runs the tests, or those in the folder that
//! `ZFS_FUSE_TEST_BIN` names. `ZFS_FUSE_TEST_SCALE` (default 1) multiplies numbers of files,
//! `ZFS_FUSE_TEST_KILLS` (default 5) says how often the plug is pulled.
#![forbid(unsafe_code)]

mod administrator;
pub mod certificates;
pub mod faulty_disks;
mod group;
pub mod handed;
pub mod load;
pub mod manifest;
pub mod power_cuts;
pub mod programs;
mod rig;
pub mod stalled;
pub mod tree;

pub use faulty_disks::FaultyDisks;
pub use group::Group;
pub use rig::{is_root, on_terminal, signal, until, users_can_mount, wait, Rig, Said};
pub use stalled::StalledFiles;

/// A number from the environment, or the default.
pub fn number(variable: &str, default: u64) -> u64 {
    let text = std::env::var(variable).unwrap_or_default();
    text.trim().parse().unwrap_or(default)
}

/// Numbers that look random and are the same in every run (xorshift64*).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// From 0 up to, not including, `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.draw() % n.max(1)
    }

    /// Bytes; a third of the calls gives such as compress well, a third such as do not.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(len + 64);
        let style = self.below(3);
        while out.len() < len {
            match style {
                0 => out.extend_from_slice(&self.draw().to_le_bytes()),
                1 => {
                    let line = format!("line {} of a text that repeats itself\n", self.below(50));
                    out.extend_from_slice(line.as_bytes());
                }
                _ if self.below(4) == 0 => out.resize(out.len() + 700, 0),
                _ => (0..40).for_each(|_| out.extend_from_slice(&self.draw().to_be_bytes())),
            }
        }
        out.truncate(len);
        out
    }
}

/// A short number that differs if the bytes differ (FNV-1a, 64 bits, over eight bytes at a time).
pub fn hash(bytes: &[u8]) -> u64 {
    let mut h = 0xcbf2_9ce4_8422_2325 ^ bytes.len() as u64;
    for c in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..c.len()].copy_from_slice(c);
        h = (h ^ u64::from_le_bytes(word)).wrapping_mul(0x100_0000_01b3);
        h ^= h >> 29;
    }
    h
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// The tools themselves, on whatever file system the temporary folder is on.
    #[test]
    fn trees_and_writers() {
        let dir = testkit::TempDir::new("zt-tools").unwrap();
        let root = dir.path().join("tree");
        std::fs::create_dir(&root).unwrap();
        let kinds = tree::Kinds {
            xattrs: false,
            acls: false,
            huge: false,
        };
        tree::write(&root, 200, 3, kinds).unwrap();
        let before = tree::describe(&root).unwrap();
        assert!(before.len() > 250);
        tree::assert_same(&before, &tree::describe(&root).unwrap(), "nothing done");
        std::fs::write(root.join("many/entry-00000001"), "x").unwrap();
        let after = tree::describe(&root).unwrap();
        assert!(std::panic::catch_unwind(|| tree::assert_same(&before, &after, "")).is_err());

        let stop = AtomicBool::new(false);
        let mut writer = load::Writer::new(dir.path().join("writer"), 1).unwrap();
        std::thread::scope(|s| {
            s.spawn(|| writer.work(&stop));
            s.spawn(|| load::disturb(dir.path(), 5, &stop));
            std::thread::sleep(std::time::Duration::from_millis(500));
            stop.store(true, Ordering::Relaxed);
        });
        assert!(writer.done > 0 && !writer.files.is_empty());
        writer.verify().unwrap();
        let name = writer.files.keys().next().unwrap().clone();
        std::fs::write(dir.path().join("writer").join(&name), "other").unwrap();
        assert!(writer.verify().is_err());
    }
}
