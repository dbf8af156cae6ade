//! `bench growth`: the cost of operations at sizes ten times apart.

mod curves;
mod history;
mod parts;

use crate::child::interrupted;
use crate::device::Device;
use crate::options::{self, is_given, Options};
use crate::systems::{self, World};
use crate::usage::Meter;
use crate::{machine, plot};
use base::{bail, Kind, Result};
use curves::{Cost, Curves};
use std::sync::Arc;
use std::time::Instant;

pub const USAGE: &str = "\
usage: cargo xtask bench growth [OPTION]...
  --rows A,B         of directory (files in it), snapshots (of one file system), spread (snapshots of
                     many, 100 of each), filesystems, both (file systems with ten snapshots
                     each), pool (its size); default: all
  --systems A,B      of those of 'bench'; default: ext4 btrfs ours. Those of others run only 'directory',
                     and btrfs 'snapshots'
  --full             10,000 snapshots of one file system, and 100,000 of many, too
  --rounds N         how often everything is repeated; the best counts (2)
  --limit SECONDS    what would begin later is not run
  --folder DIR       where the images lie, which are sparse; default: target/bench
  --programs DIR     our programs; default: target/release
  --out DIR          where the results go; default: target/bench/growth
";

/// A row: one quantity that grows.
struct Part {
    name: &'static str,
    about: &'static str,
    sizes: &'static [u64],
    /// With `--full` only.
    more: &'static [u64],
    /// Bytes of the image; none: the size itself.
    image: Option<u64>,
    /// Systems on which it runs beside ours.
    others: &'static [&'static str],
    run: fn(&mut At<'_>, &Arc<World>) -> Result<()>,
}

const PARTS: &[Part] = &[
    Part {
        name: "directory",
        about: "files in one directory",
        sizes: &[1_000, 10_000, 100_000],
        more: &[],
        image: Some(8 << 30),
        others: &["ext4", "xfs", "btrfs", "zfs-fuse-0.7", "passthrough"],
        run: parts::files,
    },
    Part {
        name: "snapshots",
        about: "snapshots of one file system",
        sizes: &[10, 100, 1_000],
        more: &[10_000],
        image: Some(16 << 30),
        others: &["btrfs"],
        run: history::of_one,
    },
    Part {
        name: "spread",
        about: "snapshots of one pool, a hundred of each file system",
        sizes: &[100, 1_000, 10_000],
        more: &[100_000],
        image: Some(16 << 30),
        others: &[],
        run: history::of_many,
    },
    Part {
        name: "filesystems",
        about: "file systems of one pool, all mounted",
        sizes: &[10, 100, 1_000],
        more: &[],
        image: Some(16 << 30),
        others: &[],
        run: parts::filesystems,
    },
    Part {
        name: "both",
        about: "file systems with ten snapshots each",
        sizes: &[10, 100, 1_000],
        more: &[],
        image: Some(16 << 30),
        others: &[],
        run: parts::both,
    },
    Part {
        name: "pool",
        about: "GiB of the pool, a sparse image",
        sizes: &[1, 10, 100, 1_024],
        more: &[],
        image: None,
        others: &[],
        run: parts::pool,
    },
];

/// Where a measurement belongs.
struct At<'a> {
    curves: &'a mut Curves,
    part: &'static str,
    system: &'a str,
    size: u64,
}

impl At<'_> {
    /// Measures one step, and the memory of the daemon in it.
    fn step(
        &mut self,
        name: &str,
        cost: Cost,
        daemon: Option<u32>,
        job: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        if interrupted() {
            bail!(Interrupted, "interrupted");
        }
        let meter = daemon.map(Meter::start);
        let start = Instant::now();
        job().map_err(|e| e.context(name))?;
        let seconds = start.elapsed().as_secs_f64();
        let peak = meter.and_then(|m| m.read()).map(|u| u.peak_bytes);
        let (part, system, size) = (self.part, self.system, self.size);
        self.curves
            .add((part, name, system), cost, size, seconds, peak);
        eprintln!("bench: {part} {size} on {system}: {name}: {seconds:.4} s");
        Ok(())
    }
}

fn options(args: &[String]) -> Result<Option<Options>> {
    let names: Vec<&str> = PARTS.iter().map(|p| p.name).collect();
    let command = options::Command {
        name: "growth",
        usage: USAGE,
        rows: &names,
        useless: &["--size", "--large", "--seconds", "--device"],
    };
    let Some(mut o) = Options::of_command(args, &command)? else {
        return Ok(None);
    };
    if !is_given(args, "--systems") {
        o.systems = ["ext4", "btrfs", "ours"].map(String::from).to_vec();
    }
    if !is_given(args, "--rounds") {
        o.rounds = 2;
    }
    if !is_given(args, "--limit") {
        o.limit = None;
    }
    Ok(Some(o))
}

/// The command; false if something could not be measured for another reason than that it cannot be
/// run here.
pub fn run(args: &[String]) -> Result<bool> {
    let Some(o) = options(args)? else {
        return Ok(true);
    };
    let (folder, programs) = systems::ready(&o)?;
    let mut curves = Curves::new(
        PARTS.iter().map(|p| (p.name, p.about)).collect(),
        machine::describe(),
    );
    let (begin, mut sound) = (Instant::now(), true);
    let mut all = || -> Result<()> {
        for _ in 0..o.rounds {
            for part in PARTS.iter().filter(|p| o.wants(p.name)) {
                let more = if o.full { part.more } else { &[] };
                for size in part.sizes.iter().chain(more) {
                    for system in &o.systems {
                        let own = system.starts_with("ours") || system == "before";
                        if !own && !part.others.contains(&system.as_str()) {
                            continue;
                        }
                        let late = o.limit.is_some_and(|l| begin.elapsed().as_secs() >= l);
                        let done = match late {
                            true => Err(base::Error::new(
                                Kind::Unsupported,
                                "the time was over (--limit)",
                            )),
                            false => {
                                let bytes = part.image.unwrap_or(size << 30);
                                let mut at = At {
                                    curves: &mut curves,
                                    part: part.name,
                                    system,
                                    size: *size,
                                };
                                Device::on_hole(&folder, bytes).and_then(|device| {
                                    let world = Arc::new(World {
                                        device,
                                        folder: folder.clone(),
                                        programs: programs.clone(),
                                        before: o.before.clone(),
                                    });
                                    (part.run)(&mut at, &world)
                                })
                            }
                        };
                        let Err(e) = done else { continue };
                        if e.kind == Kind::Interrupted {
                            return Err(e);
                        }
                        sound &= e.kind == Kind::Unsupported;
                        let what = format!("{} {size} on {system}: {e}", part.name);
                        eprintln!("bench: not run: {what}");
                        curves.missing.push(what);
                    }
                }
            }
        }
        Ok(())
    };
    let done = all();
    std::fs::create_dir_all(&o.out)?;
    let text = curves.report();
    std::fs::write(o.out.join("growth.md"), &text)?;
    let json = serde_json::to_string_pretty(&curves.json()).unwrap_or_default();
    std::fs::write(o.out.join("growth.json"), json)?;
    let title = "What one costs, in multiples of what it cost at the first size";
    if let Some(svg) = plot::growth(title, &curves.panels()) {
        std::fs::write(o.out.join("growth.svg"), svg)?;
    }
    println!("{text}");
    eprintln!("bench: written to {}", o.out.display());
    done.map(|()| sound)
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
        assert_eq!((o.rounds, o.limit, o.full), (2, None, false));
        assert_eq!(o.systems, ["ext4", "btrfs", "ours"]);
        assert!(o.out.ends_with("growth"));
        let o = parse("--rows pool,snap --rounds=1 --limit 9 --systems ours --full").unwrap();
        assert_eq!((o.rounds, o.limit, o.full), (1, Some(9), true));
        assert!(o.wants("pool") && o.wants("snapshots") && !o.wants("directory"));
        assert_eq!(o.systems, ["ours"]);
        assert!(parse("--rows fsync").is_err());
        assert!(parse("--size 1G").is_err());
    }

    /// The table says ten times as many from column to column.
    #[test]
    fn sizes_grow() {
        for p in PARTS {
            let all: Vec<u64> = p.sizes.iter().chain(p.more).copied().collect();
            assert!(all.windows(2).all(|w| w[1] >= 10 * w[0]), "{}", p.name);
        }
    }
}
