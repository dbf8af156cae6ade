//! `bench nfs`: the daemon's NFS server beside Ganesha over ext4, asked by the same clients: `testkit`'s, which the kernel's caches
//! do not come between.
//!
//! Everything runs in network and mount namespaces of its own, so that the servers, and the port mapper that Ganesha needs, find
//! their ports free.

mod servers;
mod work;

use crate::child::{interrupted, sh};
use crate::device::{warm_memory, Device};
use crate::machine;
use crate::markdown::{short, table};
use crate::options::{self, Options};
use crate::stats::{geometric_mean, median, spread};
use crate::systems::{self, World};
use crate::usage::{Meter, Usage};
use base::{bail, Error, Kind, Result};
use serde_json::json;
use servers::Server;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use work::Load;

const USAGE: &str = "\
usage: cargo xtask bench nfs [OPTION]...
  --rows A,B         of write, read-cold, read, write-sync, create, list, getattr, lookup-read, remove; default: all.
                     Rows of files need create, rows that read need write: these run in any case
  --full             1 GiB of data, 10 seconds, three rounds
  --rounds N         how often everything is repeated; tables have medians (3)
  --size BYTES       of the data (64M)
  --seconds N        length of the rows that last a given time (1)
  --folder DIR       where the image of the disk lies; default: target/bench
  --programs DIR     our programs; default: target/release
  --out DIR          where the results go; default: target/bench/nfs
Ganesha and rpcbind are fetched from the distribution's packages and unpacked, not installed.
";

/// Name and unit.
const ROWS: [(&str, &str); 9] = [
    ("write", "MB/s"),
    ("read-cold", "MB/s"),
    ("read", "MB/s"),
    ("write-sync", "1/s"),
    ("create", "1/s"),
    ("list", "1/s"),
    ("getattr", "1/s"),
    ("lookup-read", "1/s"),
    ("remove", "1/s"),
];

/// Ours, and what it is compared with.
const SYSTEMS: [&str; 2] = ["ours", "ganesha"];

/// The process is in namespaces of its own already.
const APART: &str = "ZFS_FUSE_BENCH_APART";

fn options(args: &[String]) -> Result<Option<Options>> {
    let command = options::Command {
        name: "nfs",
        usage: USAGE,
        rows: &ROWS.map(|r| r.0),
        useless: &["--large", "--device", "--limit", "--systems", "--before"],
    };
    Options::of_command(args, &command)
}

/// The command; false if something could not be measured.
///
/// # Errors
/// The options are wrong; the devices or the namespaces cannot be had.
pub fn run(args: &[String]) -> Result<bool> {
    let Some(o) = options(args)? else {
        return Ok(true);
    };
    if std::env::var_os(APART).is_none() {
        // Before the network is gone.
        if let Err(e) = testkit::packages::get(testkit::packages::Set::Ganesha) {
            eprintln!("bench: {e}");
        }
        let mut c = Command::new("unshare");
        c.args(["--net", "--mount", "--"])
            .arg(std::env::current_exe()?)
            .arg("nfs")
            .args(args)
            .env(APART, "1");
        return Ok(c.status()?.success());
    }
    sh("ip", &["link", "set", "lo", "up"])?;
    sh("mount", &["-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run"])?;
    has_user_of_mapper()?;
    let (folder, programs) = systems::ready(&o)?;
    eprintln!("bench: preparing the device");
    let device = Device::on_image(&folder, (o.size * 4).max(2 << 30))?;
    let world = Arc::new(World {
        device,
        folder,
        programs,
        before: None,
    });
    let mut results = Results::default();
    let done = rounds(&o, &world, &mut results);
    report(&o.out, &results, &o)?;
    done.map(|()| results.missing.is_empty())
}

/// All rounds, by row and system.
#[derive(Default)]
struct Results {
    values: BTreeMap<(&'static str, &'static str), Vec<f64>>,
    usage: BTreeMap<(&'static str, &'static str), Vec<Usage>>,
    missing: Vec<String>,
}

/// Debian's port mapper serves as the user `_rpc`, whom its package makes, and ends where there is none: in this mount namespace there is.
fn has_user_of_mapper() -> Result<()> {
    const USERS: &str = "/etc/passwd";
    let mut users = std::fs::read_to_string(USERS)?;
    if users.lines().any(|u| u.starts_with("_rpc:")) {
        return Ok(());
    }
    users.push_str("_rpc:x:65533:65534::/run/rpcbind:/usr/sbin/nologin\n");
    let more = "/run/passwd";
    std::fs::write(more, users)?;
    sh("mount", &["--bind", more, USERS]).map(drop)
}

fn rounds(o: &Options, world: &Arc<World>, results: &mut Results) -> Result<()> {
    for round in 0..o.rounds as usize {
        // Neither is always the one that comes after the other.
        for n in 0..SYSTEMS.len() {
            let system = SYSTEMS[(round + n) % SYSTEMS.len()];
            let Err(e) = one(o, world, system, results) else {
                continue;
            };
            if e.kind == Kind::Interrupted {
                return Err(e);
            }
            eprintln!("bench: not run: {system}: {e}");
            results.missing.push(format!("{system}: {e}"));
        }
    }
    Ok(())
}

/// All rows on one new file system.
fn one(o: &Options, world: &Arc<World>, system: &'static str, r: &mut Results) -> Result<()> {
    warm_memory(1 << 30)?;
    let mut server: Box<dyn Server> = match system {
        "ours" => Box::new(servers::Own::new(world)?),
        _ => Box::new(servers::Ganesha::new(world)?),
    };
    server.make()?;
    let mut load = Load::new(o.size, o.seconds, server.place());
    for (row, unit) in ROWS {
        if interrupted() {
            bail!(Interrupted, "interrupted");
        }
        if row == "read-cold" {
            server.cold()?;
        }
        // What later rows stand on.
        if !o.wants(row) && !matches!(row, "write" | "create") {
            continue;
        }
        let meter = server.daemon().map(Meter::start);
        let value = load.row(row).map_err(|e| e.context(row))?;
        let usage = meter.and_then(|m| m.read());
        if !o.wants(row) {
            continue;
        }
        eprintln!("bench: {row} on {system}: {} {unit}", short(value));
        r.values.entry((row, system)).or_default().push(value);
        r.usage.entry((row, system)).or_default().extend(usage);
    }
    server.end()
}

fn report(out: &Path, r: &Results, o: &Options) -> Result<()> {
    let mut text = String::from("# NFS: our server beside Ganesha over ext4\n\n");
    let mut facts: Vec<(&str, String)> = machine::describe();
    facts.push(("data", format!("{} MiB", o.size >> 20)));
    facts.push(("rows of", format!("{} s", o.seconds)));
    facts.push(("clients", work::CLIENTS.to_string()));
    let head = |names: &[&str]| names.iter().map(|n| n.to_string()).collect::<Vec<_>>();
    let cells = facts.iter().map(|(k, v)| vec![k.to_string(), v.clone()]);
    table(&mut text, &head(&["Fact", "Value"]), cells);
    let of = |row, system| r.values.get(&(row, system)).map_or(&[][..], Vec::as_slice);
    let mut quotients = Vec::new();
    let mut lines = Vec::new();
    for (row, unit) in ROWS {
        let mut line = vec![row.to_string(), unit.to_string()];
        for system in SYSTEMS {
            line.push(match (median(of(row, system)), spread(of(row, system))) {
                (Some(m), Some(s)) => format!("{} ±{:.0} %", short(m), s * 100.0),
                _ => "–".into(),
            });
        }
        let quotient = median(of(row, SYSTEMS[0])).zip(median(of(row, SYSTEMS[1])));
        let quotient = quotient.map(|(a, b)| a / b.max(f64::MIN_POSITIVE));
        quotients.extend(quotient);
        line.push(quotient.map_or("–".into(), short));
        for system in SYSTEMS {
            let all: Vec<f64> = r
                .usage
                .get(&(row, system))
                .into_iter()
                .flatten()
                .map(|u| u.cpu_seconds)
                .collect();
            line.push(median(&all).map_or("–".into(), short));
        }
        lines.push(line);
    }
    let names = [
        "Row",
        "unit",
        "ours",
        "Ganesha",
        "ours ÷ Ganesha",
        "processor s, ours",
        "Ganesha",
    ];
    table(&mut text, &head(&names), lines.into_iter());
    if let Some(mean) = geometric_mean(&quotients) {
        text.push_str(&format!(
            "Geometric mean of ours ÷ Ganesha: {}\n\n",
            short(mean)
        ));
    }
    for m in &r.missing {
        text.push_str(&format!("* not run: {m}\n"));
    }
    let values = r
        .values
        .iter()
        .map(|((row, system), v)| json!({"row": row, "system": system, "values": v}));
    let facts: BTreeMap<_, _> = facts.into_iter().collect();
    let all = json!({"facts": facts, "rows": values.collect::<Vec<_>>(), "missing": r.missing});
    std::fs::create_dir_all(out)?;
    std::fs::write(out.join("nfs.md"), &text)?;
    let all =
        serde_json::to_string_pretty(&all).map_err(|e| Error::new(Kind::Io, e.to_string()))?;
    std::fs::write(out.join("nfs.json"), all)?;
    println!("{text}");
    eprintln!("bench: written to {}", out.display());
    Ok(())
}
