//! What a fast device beside a slow one is worth: as a cache, and for metadata and small blocks.
//!
//! The slow device is the first one, which the kernel's block throttle (`blkio` of cgroup v1) holds to so many reads and
//! writes a second for the daemon.

use super::At;
use crate::child::{self, interrupted};
use crate::device::warm_memory;
use crate::measure::Measure;
use crate::rows::ROWS;
use crate::systems::ours::{Ours, POOL};
use crate::systems::System;
use base::{bail, Result};
use rustix::fs::{major, minor, stat};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// Reads, and writes, of the slow device in a second: a disk that turns.
const PER_SECOND: u32 = 150;

/// Ceiling of the daemon's cache, MiB: less than the tree takes, so that something leaves it.
const MEMORY: u32 = 16;

/// A group of the kernel's block throttle; it goes with the value, when the daemon has ended.
struct Throttle(PathBuf);

impl Throttle {
    /// Holds the process to [`PER_SECOND`] transfers of the device.
    ///
    /// Errors: unsupported where the kernel has no such groups.
    fn of(process: u32, device: &str) -> Result<Throttle> {
        let all = PathBuf::from("/sys/fs/cgroup/blkio");
        if !all.join("blkio.throttle.read_iops_device").exists() {
            bail!(Unsupported, "{}: no block throttle here", all.display());
        }
        let group = Throttle(all.join(format!("zfs-fuse-bench.{}", std::process::id())));
        fs::create_dir(&group.0)?;
        let number = stat(device).map_err(std::io::Error::from)?.st_rdev;
        let (major, minor) = (major(number), minor(number));
        for way in ["read", "write"] {
            let file = group.0.join(format!("blkio.throttle.{way}_iops_device"));
            fs::write(file, format!("{major}:{minor} {PER_SECOND}"))?;
        }
        fs::write(group.0.join("cgroup.procs"), process.to_string())?;
        Ok(group)
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        // Fails as long as a process is in it. What the row left, if it failed, goes to the group above.
        let above = self.0.with_file_name("cgroup.procs");
        for process in fs::read_to_string(self.0.join("cgroup.procs"))
            .unwrap_or_default()
            .lines()
        {
            let _ = fs::write(&above, process);
        }
        let group = self.0.display();
        if let Err(e) = fs::remove_dir(&self.0) {
            eprintln!("bench: {group} stays: {e}");
        }
    }
}

impl At<'_> {
    /// A tree is walked and read cold, and pgbench runs: on the slow device alone, with a cache device, with a special one.
    pub(super) fn slow(&mut self) -> Result<()> {
        let paths = self.paths();
        let kinds: [(&str, &[&str]); 3] = [
            ("alone", &[]),
            ("cache", &["cache", &paths[1]]),
            ("special", &["special", &paths[1]]),
        ];
        for (kind, more) in kinds {
            // Declared before the daemon, so that the daemon has ended when the group is removed, on every way out.
            let throttle;
            let mut ours = self.ours()?;
            ours.options.push(format!("--max-arc-size={MEMORY}"));
            warm_memory(1 << 30)?;
            let vdevs = [&[paths[0].as_str()], more].concat();
            self.pool_of(&mut ours, "128K", &vdevs)?;
            if kind == "special" {
                ours.admin("zfs", &["set", "special_small_blocks=16K", POOL])?;
            }
            self.phases(&ours, "tree", &["untar"])?;
            let Some(daemon) = ours.daemon() else {
                bail!(Io, "our daemon has ended");
            };
            throttle = Throttle::of(daemon, &paths[0])?;
            if kind == "cache" {
                // The cache is fed by what leaves memory.
                ours.admin("zfs", &["set", "secondarycache=all", POOL])?;
                self.cold(&ours)?;
                // What is in memory at the end of one pass leaves it in the next. It is read slowly, as later: a cache device takes no
                // more in a second than an eighth of the memory.
                for _ in 0..2 {
                    self.phases(&ours, "tree", &["walk", "read"])?;
                    std::thread::sleep(Duration::from_secs(3));
                }
            }
            self.cold(&ours)?;
            for m in self.phases(&ours, "tree", &["walk"])? {
                self.results.slow(kind, self.system, "walk", m.value());
            }
            self.cold(&ours)?;
            for m in self.phases(&ours, "tree", &["read"])? {
                self.results.slow(kind, self.system, "read", m.value());
            }
            let tpcb = self.transactions(&ours)?;
            self.results.slow(kind, self.system, "pgbench", tpcb);
            ours.end()?;
            drop(throttle);
            if interrupted() {
                bail!(Interrupted, "interrupted");
            }
        }
        Ok(())
    }

    /// Runs phases of a row of the yardstick, without anything between them.
    fn phases(&self, ours: &Ours, row: &str, names: &[&str]) -> Result<Vec<Measure>> {
        let Some(row) = ROWS.iter().find(|r| r.name == row) else {
            bail!(NotFound, "the yardstick has no row {row}");
        };
        let mut all = Vec::new();
        for phase in row.phases.iter().filter(|p| names.contains(&p.name)) {
            let mut c = ours.command(std::env::current_exe()?.as_os_str());
            c.args(self.work(ours).arguments(row, phase));
            let said = child::run(&mut c, Duration::from_secs(600), true)?;
            all.extend(Measure::parse_all(&said.out)?);
        }
        Ok(all)
    }
}
