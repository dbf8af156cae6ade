//! How fast a pool grows, shrinks and gives back what is free, compared with the devices.

use super::sequential::Pass;
use super::At;
use crate::child;
use crate::device::warm_memory;
use crate::systems::ours::{Ours, POOL};
use crate::systems::System;
use base::Result;
use std::time::{Duration, Instant};

impl At<'_> {
    /// A RAID-Z of three devices gets a fourth. Its rate is that of the data, of which each of three devices holds a half
    /// (with parity). Beside it: three devices are read to there while all four are written as far as the data reach afterwards.
    pub(super) fn expansion(&mut self) -> Result<()> {
        let mut ours = self.ours()?;
        warm_memory(1 << 30)?;
        let paths = self.paths();
        let reads = paths[..3].iter().map(|device| Pass {
            device,
            write: false,
            bytes: self.o.size / 2,
        });
        let writes = paths.iter().map(|device| Pass {
            device,
            write: true,
            bytes: self.o.size / 8 * 3,
        });
        let rate = self.rate(&reads.chain(writes).collect::<Vec<_>>())?;
        let vdevs: Vec<&str> = std::iter::once("raidz1")
            .chain(paths[..3].iter().map(String::as_str))
            .collect();
        self.filled(&mut ours, &vdevs)?;
        let args = ["attach", "-f", "-w", POOL, "raidz1-0", &paths[3]];
        let daemon = ours.daemon();
        self.timed("expansion", rate, daemon, || ours.admin("zpool", &args))?;
        ours.end()
    }

    /// One of two devices is removed, so half of the data are copied. The rate is that of what is copied. Beside it: one device
    /// is read while the other one is written.
    pub(super) fn removal(&mut self) -> Result<()> {
        let mut ours = self.ours()?;
        warm_memory(1 << 30)?;
        let paths = self.paths();
        let bytes = self.o.size / 2;
        let passes = [(&paths[1], false), (&paths[0], true)].map(|(device, write)| Pass {
            device,
            write,
            bytes,
        });
        let rate = self.rate(&passes)? / 2.0;
        self.filled(&mut ours, &[&paths[0], &paths[1]])?;
        let args = ["remove", "-w", POOL, &paths[1]];
        let daemon = ours.daemon();
        let share = 0.5;
        self.timed_part("removal", rate, share, daemon, || {
            ours.admin("zpool", &args)
        })?;
        ours.end()
    }

    /// What a deleted file held is trimmed. The rate is that of what is free afterwards. Beside it: `blkdiscard` of as many bytes.
    pub(super) fn trim(&mut self) -> Result<()> {
        let mut ours = self.ours()?;
        warm_memory(1 << 30)?;
        let paths = self.paths();
        let share = self.world.device.size() as f64 / self.o.size as f64;
        let start = Instant::now();
        let length = self.world.device.size().to_string();
        let discard = ["--force", "--length", &length, &paths[0]];
        let mut c = std::process::Command::new("blkdiscard");
        child::run(c.args(discard), Duration::from_secs(60), true)?;
        let rate = self.world.device.size() as f64 / 1e6 / start.elapsed().as_secs_f64();
        // Making the pool writes the holes again.
        self.filled(&mut ours, &[&paths[0]])?;
        for n in 0.. {
            if std::fs::remove_file(ours.dir().join(format!("fill{n}"))).is_err() {
                break;
            }
        }
        ours.settle()?;
        // What was just freed may be allocated again after two more txgs.
        for _ in 0..3 {
            ours.admin("zpool", &["sync", POOL])?;
        }
        let daemon = ours.daemon();
        let args = ["trim", "-w", POOL];
        self.timed_part("trim", rate, share, daemon, || ours.admin("zpool", &args))?;
        ours.end()
    }

    /// What is free is written. The rate is that of what is free. Beside it: the device is written.
    pub(super) fn initialize(&mut self) -> Result<()> {
        let mut ours = self.ours()?;
        warm_memory(1 << 30)?;
        let paths = self.paths();
        let free = self.world.device.size() - self.o.size;
        let share = free as f64 / self.o.size as f64;
        let pass = Pass {
            device: &paths[0],
            write: true,
            bytes: free,
        };
        let rate = self.rate(&[pass])? * share;
        self.filled(&mut ours, &[&paths[0]])?;
        let daemon = ours.daemon();
        let args = ["initialize", "-w", POOL];
        self.timed_part("initialize", rate, share, daemon, || {
            ours.admin("zpool", &args)
        })?;
        ours.end()
    }

    /// A pool of these vdevs that holds the data, none of them cached.
    fn filled(&self, ours: &mut Ours, vdevs: &[&str]) -> Result<()> {
        self.pool_of(ours, "128K", vdevs)?;
        self.fill(ours)?;
        self.cold(ours)
    }
}
