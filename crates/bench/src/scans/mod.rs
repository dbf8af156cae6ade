//! `bench scans`: how fast a pool is scrubbed, resilvered, rebuilt and changed in shape, compared with the devices, and what
//! such jobs cost the programs beside them.

mod beside;
mod sequential;
mod shape;
mod slow;
mod table;

use crate::child::interrupted;
use crate::data::Supply;
use crate::device::{drop_caches, warm_memory, Device};
use crate::machine;
use crate::options::{self, is_given, Options};
use crate::systems::ours::{Ours, POOL};
use crate::systems::{self, System, World};
use crate::usage::Meter;
use base::{bail, Kind, Result};
use beside::Job;
use sequential::{seconds, Pass};
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use table::Results;

pub const USAGE: &str = "\
usage: cargo xtask bench scans [OPTION]...
  --rows A,B         of scrub (records of 1 MiB on one device), scrub-128k, scrub-8k (records that were written
                     again in another order), resilver and rebuild (a side of a mirror of two is replaced),
                     expansion (of a RAID-Z of three by a fourth device), removal (of one of two devices),
                     trim, initialize, pgbench (without and beside each of these jobs), slow (a cold tree and
                     pgbench on a slow device: alone, with a cache device, with a special one); default: all
  --systems A,B      of ours, before and, in scrub-128k and scrub-8k, zfs-fuse-0.7; default: zfs-fuse-0.7 ours
  --full             2 GiB of data, pgbench for 60 seconds, three rounds
  --rounds N         how often everything is repeated; tables have medians (3)
  --size BYTES       of the data (256M); four devices of a little more are made
  --seconds N        length of a run of pgbench (10)
  --folder DIR       where the images of the devices lie; default: target/bench
  --programs DIR     our programs; default: target/release
  --before DIR       programs of another build of ours: the system 'before'
  --out DIR          where the results go; default: target/bench/scans
";

const NAMES: [&str; 11] = [
    "scrub",
    "scrub-128k",
    "scrub-8k",
    "resilver",
    "rebuild",
    "expansion",
    "removal",
    "trim",
    "initialize",
    "pgbench",
    "slow",
];

/// Bytes of a file.
const FILE: u64 = 64 << 20;

fn options(args: &[String]) -> Result<Option<Options>> {
    let command = options::Command {
        name: "scans",
        usage: USAGE,
        rows: &NAMES,
        useless: &["--large", "--device", "--limit"],
    };
    let Some(mut o) = Options::of_command(args, &command)? else {
        return Ok(None);
    };
    if !is_given(args, "--systems") {
        o.systems = ["zfs-fuse-0.7", "ours"].map(String::from).to_vec();
    }
    let known = ["zfs-fuse-0.7", "ours", "before"];
    if let Some(s) = o.systems.iter().find(|s| !known.contains(&s.as_str())) {
        bail!(Invalid, "{s} has no part in this\n{USAGE}");
    }
    if !is_given(args, "--size") {
        o.size = if o.full { 2 << 30 } else { 256 << 20 };
    }
    if !is_given(args, "--seconds") {
        o.seconds = if o.full { 60 } else { 10 };
    }
    Ok(Some(o))
}

/// What a row has at hand.
struct At<'a> {
    o: &'a Options,
    world: Arc<World>,
    /// Three devices beside the world's own.
    more: &'a [Device; 3],
    results: &'a mut Results,
    system: &'a str,
}

/// The command; false if something could not be measured for another reason than that it cannot be run here.
pub fn run(args: &[String]) -> Result<bool> {
    let Some(o) = options(args)? else {
        return Ok(true);
    };
    let (folder, programs) = systems::ready(&o)?;
    eprintln!("bench: preparing four devices");
    let bytes = (o.size / 4 * 5 + (256 << 20)).max(1280 << 20);
    let device = Device::on_image(&folder, bytes)?;
    let more = [
        Device::on_image(&folder, bytes)?,
        Device::on_image(&folder, bytes)?,
        Device::on_image(&folder, bytes)?,
    ];
    let world = Arc::new(World {
        device,
        folder,
        programs,
        before: o.before.clone(),
    });
    std::fs::create_dir_all(world.folder.join("scratch"))?;
    let mut results = Results::new(machine::describe(), o.size, o.seconds);
    let done = rounds(&o, &world, &more, &mut results);
    let sound = results.sound;
    std::fs::create_dir_all(&o.out)?;
    let text = results.report();
    std::fs::write(o.out.join("scans.md"), &text)?;
    let json = serde_json::to_string_pretty(&results.json()).unwrap_or_default();
    std::fs::write(o.out.join("scans.json"), json)?;
    println!("{text}");
    eprintln!("bench: written to {}", o.out.display());
    done.map(|()| sound)
}

fn rounds(
    o: &Options,
    world: &Arc<World>,
    more: &[Device; 3],
    results: &mut Results,
) -> Result<()> {
    for _ in 0..o.rounds {
        for row in NAMES.iter().filter(|n| o.wants(n)) {
            for system in &o.systems {
                let mut at = At {
                    o,
                    world: world.clone(),
                    more,
                    results: &mut *results,
                    system,
                };
                let done = match *row {
                    "scrub" => at.scrub("1M"),
                    "scrub-128k" => at.scrub("128K"),
                    "scrub-8k" => at.scrub("8K"),
                    "resilver" => at.replace("resilver", &[]),
                    "rebuild" => at.replace("rebuild", &["-s"]),
                    "expansion" => at.expansion(),
                    "removal" => at.removal(),
                    "trim" => at.trim(),
                    "initialize" => at.initialize(),
                    "slow" => at.slow(),
                    _ => Job::ALL.into_iter().try_for_each(|job| at.pgbench(job)),
                };
                let Err(e) = done else { continue };
                if e.kind == Kind::Interrupted {
                    return Err(e);
                }
                results.missing(row, system, &e);
            }
        }
    }
    Ok(())
}

impl At<'_> {
    /// Our programs; unsupported for another system.
    fn ours(&self) -> Result<Ours> {
        match self.system {
            "zfs-fuse-0.7" => bail!(Unsupported, "is compared in scrub-128k and scrub-8k only"),
            name => {
                let programs = systems::programs_of(name, &self.world)?;
                Ours::new(self.world.clone(), programs, "lz4")
            }
        }
    }

    /// A pool of ours on `vdevs`, which are wiped.
    fn pool_of(&self, ours: &mut Ours, record: &str, vdevs: &[&str]) -> Result<()> {
        ours.begin()?;
        for d in self.more {
            d.wipe()?;
        }
        let at = ours.dir().to_string_lossy().into_owned();
        let record = format!("recordsize={record}");
        let mut args = vec!["create", "-f", "-o", "ashift=12", "-O", "compression=lz4"];
        args.extend(["-O", &record, "-m", &at, POOL]);
        args.extend(vdevs);
        ours.admin("zpool", &args)
    }

    /// Exports, forgets what is cached, imports.
    fn cold(&self, ours: &Ours) -> Result<()> {
        ours.export()?;
        drop_caches()?;
        let mut args = vec!["import", "-d", self.world.device.path()];
        for d in self.more {
            args.extend(["-d", d.path()]);
        }
        args.push(POOL);
        ours.admin("zpool", &args)
    }

    /// Megabytes of the row's data in a second, if the devices did nothing but these passes for them.
    fn rate(&self, passes: &[Pass<'_>]) -> Result<f64> {
        Ok(self.o.size as f64 / 1e6 / seconds(passes)?)
    }

    /// The paths of all devices.
    fn paths(&self) -> Vec<String> {
        let all = std::iter::once(&self.world.device).chain(self.more);
        all.map(|d| d.path().to_string()).collect()
    }

    /// Runs a scan over all data; its rate beside that of the devices, and the daemon's peak.
    fn timed(
        &mut self,
        row: &str,
        device: f64,
        daemon: Option<u32>,
        scan: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        self.timed_part(row, device, 1.0, daemon, scan)
    }

    /// The same for a scan that moves so many times the data.
    fn timed_part(
        &mut self,
        row: &str,
        device: f64,
        share: f64,
        daemon: Option<u32>,
        scan: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        if interrupted() {
            bail!(Interrupted, "interrupted");
        }
        let meter = daemon.map(Meter::start);
        let start = Instant::now();
        scan()?;
        let seconds = start.elapsed().as_secs_f64();
        let usage = meter.and_then(|m| m.read());
        let rate = self.o.size as f64 * share / 1e6 / seconds.max(1e-9);
        eprintln!(
            "bench: {row} on {}: {rate:.0} MB/s, the devices {device:.0} MB/s",
            self.system
        );
        self.results.scan(row, self.system, rate, device, usage);
        Ok(())
    }

    /// All blocks of a pool on one device are scrubbed.
    fn scrub(&mut self, record: &str) -> Result<()> {
        let row = match record {
            "1M" => "scrub",
            "8K" => "scrub-8k",
            _ => "scrub-128k",
        };
        warm_memory(1 << 30)?;
        let device = self.world.device.path().to_string();
        let read = |bytes| {
            let pass = Pass {
                device: &device,
                write: false,
                bytes,
            };
            self.rate(&[pass])
        };
        if self.system == "zfs-fuse-0.7" {
            if record == "1M" {
                bail!(Unsupported, "has no records of {record}");
            }
            let mut old = systems::open(self.system, &self.world)?;
            old.make()?;
            if record == "8K" {
                old.set_records(8 << 10)?;
            }
            self.fill(old.as_mut())?;
            if record == "8K" {
                self.scatter(old.as_mut(), 8 << 10)?;
            }
            old.cold()?;
            let rate = read(self.o.size)?;
            self.timed(row, rate, old.daemon(), || old.scrub())?;
            return old.end();
        }
        let mut ours = self.ours()?;
        self.pool_of(&mut ours, record, &[&device])?;
        self.fill(&mut ours)?;
        if record == "8K" {
            self.scatter(&mut ours, 8 << 10)?;
        }
        self.cold(&ours)?;
        let rate = read(self.o.size)?;
        self.timed(row, rate, ours.daemon(), || ours.scrub())?;
        ours.end()
    }

    /// A side of a mirror of two is replaced.
    fn replace(&mut self, row: &str, how: &[&str]) -> Result<()> {
        let mut ours = self.ours()?;
        warm_memory(1 << 30)?;
        let device = self.world.device.path().to_string();
        let [side, new, _] = self.more.each_ref().map(|d| d.path().to_string());
        // The new device is filled while the others are read.
        let passes = [(&device, false), (&new, true)];
        let bytes = self.o.size;
        let rate = self.rate(&passes.map(|(device, write)| Pass {
            device,
            write,
            bytes,
        }))?;
        self.pool_of(&mut ours, "1M", &["mirror", &device, &side])?;
        self.fill(&mut ours)?;
        self.cold(&ours)?;
        let mut args = vec!["replace", "-f", "-w"];
        args.extend(how);
        args.extend([POOL, &side, &new]);
        let daemon = ours.daemon();
        self.timed(row, rate, daemon, || ours.admin("zpool", &args))?;
        // A rebuild is followed by a scrub.
        ours.admin("zpool", &["wait", "-t", "scrub,resilver", POOL])?;
        ours.end()
    }

    /// Files of incompressible data.
    fn fill(&self, system: &mut dyn System) -> Result<()> {
        fill(&system.outside(), self.o.size)?;
        system.settle()
    }

    /// Writes all records of the files again, so that records that follow one another in a file do not on the device: one
    /// eighth of them, drawn by chance, after the other.
    fn scatter(&self, system: &mut dyn System, record: u64) -> Result<()> {
        for pass in 0..PASSES {
            scatter(&system.outside(), self.o.size, record, pass)?;
            system.settle()?;
        }
        Ok(())
    }
}

/// Passes in which records are written again.
const PASSES: u64 = 8;

/// Whether a record is written in a pass: each is in one, by chance.
fn is_in(pass: u64, record: u64) -> bool {
    (record.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % PASSES == pass
}

fn scatter(dir: &Path, bytes: u64, record: u64, pass: u64) -> Result<()> {
    let mut supply = Supply::new(pass, 1 << 20);
    let (mut left, mut n, mut number) = (bytes, 0, 0);
    while left > 0 {
        let f = File::options()
            .write(true)
            .open(dir.join(format!("fill{n}")))?;
        let of_this = left.min(FILE);
        left -= of_this;
        n += 1;
        for at in (0..of_this).step_by(record as usize) {
            if interrupted() {
                bail!(Interrupted, "interrupted");
            }
            if is_in(pass, number) {
                let len = record.min(of_this - at) as usize;
                f.write_all_at(supply.block(len), at)?;
            }
            number += 1;
        }
        f.sync_all()?;
    }
    Ok(())
}

fn fill(dir: &Path, bytes: u64) -> Result<()> {
    let mut supply = Supply::new(7, 1 << 20);
    let (mut left, mut n) = (bytes, 0);
    while left > 0 {
        let mut f = File::create(dir.join(format!("fill{n}")))?;
        let mut of_this = left.min(FILE);
        left -= of_this;
        n += 1;
        while of_this > 0 {
            if interrupted() {
                bail!(Interrupted, "interrupted");
            }
            let len = of_this.min(1 << 20);
            f.write_all(supply.block(len as usize))?;
            of_this -= len;
        }
        f.sync_all()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options> {
        let args: Vec<String> = line.split_whitespace().map(str::to_string).collect();
        options(&args).map(|o| o.expect("no help was asked for"))
    }

    #[test]
    fn its_own_defaults() {
        let o = parse("").unwrap();
        assert_eq!((o.rounds, o.size, o.seconds), (3, 256 << 20, 10));
        assert_eq!(o.systems, ["zfs-fuse-0.7", "ours"]);
        assert!(o.out.ends_with("scans"));
        let o = parse("--full --rows resilver,scrub --systems ours").unwrap();
        assert_eq!((o.size, o.seconds), (2 << 30, 60));
        assert!(o.wants("scrub-128k") && o.wants("resilver") && !o.wants("pgbench"));
        for record in 0..1000 {
            let passes = (0..PASSES).filter(|p| is_in(*p, record));
            assert_eq!(passes.count(), 1);
        }
        for bad in ["--systems ext4", "--rows fsync", "--device /dev/null"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
