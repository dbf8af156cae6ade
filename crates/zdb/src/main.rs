//! `zdb`: shows what is on the disks of a pool, and verifies it. Never writes.
#![forbid(unsafe_code)]

mod blocks;
mod dump;
mod labels;

use base::{bail, Error, Kind, Result};
use cli::args::{Bad, Parsed};
use cli::zdb_table::ZDB;
use disk::NvList;
use pool::{OpenOptions, Pool};
use std::io::{BufWriter, Write};
use std::process::ExitCode;
use std::sync::Arc;
use vdev::{discover, keys};

/// Something is wrong with the pool (and has been said).
const DAMAGED: u8 = 2;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args_os()
        .skip(1)
        .map(|a| a.to_string_lossy().into_owned())
        .collect();
    let parsed = match Parsed::read("", &ZDB, &args) {
        Ok(p) => p,
        Err(Bad::Help) => {
            print!("{}", cli::help::program(&ZDB));
            return ExitCode::SUCCESS;
        }
        Err(Bad::Usage(complaint)) => return usage(&complaint),
        Err(Bad::NotBuilt(sentence)) => {
            eprintln!("{sentence}");
            return ExitCode::FAILURE;
        }
    };
    if parsed.has("V") {
        println!("zfs-fuse-zdb-{}", env!("CARGO_PKG_VERSION"));
        return ExitCode::SUCCESS;
    }
    let Some(target) = parsed.operands.first() else {
        return usage("zdb: name a pool or a device");
    };
    let mut out = BufWriter::new(std::io::stdout().lock());
    let done = run(&parsed, target, &mut out);
    let flushed = out.flush();
    match done {
        Ok(code) if flushed.is_ok() => ExitCode::from(code),
        Ok(_) => ExitCode::FAILURE,
        Err(e) if e.kind == Kind::Invalid => usage(&format!("zdb: {e}")),
        Err(e) => {
            eprintln!("zdb: {e}");
            ExitCode::FAILURE
        }
    }
}

fn usage(complaint: &str) -> ExitCode {
    eprintln!("{complaint}");
    eprint!("{}", cli::help::usage(&ZDB));
    ExitCode::from(2)
}

/// How often a switch was given.
fn times(args: &Parsed, key: &str) -> usize {
    args.in_order().filter(|(k, _)| *k == key).count()
}

fn run(args: &Parsed, target: &str, out: &mut dyn Write) -> Result<u8> {
    if args.has("l") {
        return labels::show(args, target, out);
    }
    let pool = open(args, target)?;
    let mut code = 0;
    let datasets = times(args, "d");
    let blocks = times(args, "b").max(args.has("c") as usize);
    let other = ["u", "C", "h", "m"].iter().any(|k| args.has(k));
    let nothing = datasets == 0 && blocks == 0 && !other;
    if args.has("C") || nothing {
        dump::config(&pool, out)?;
    }
    if args.has("u") || nothing {
        labels::uberblock(&pool, out)?;
    }
    if args.has("h") {
        dump::history(&pool, out)?;
    }
    if args.has("m") {
        dump::metaslabs(&pool, out)?;
    }
    if datasets > 0 || target.contains('/') {
        let rest = args.operands.get(1..).unwrap_or_default();
        code = code.max(dump::datasets(&pool, target, rest, datasets.max(1), out)?);
    }
    if blocks > 0 {
        code = code.max(blocks::walk(
            &pool,
            blocks,
            times(args, "c"),
            !args.has("L"),
            out,
        )?);
    }
    Ok(code)
}

/// The pool that `target` (a pool, or a dataset in it) names, opened for reading.
fn open(args: &Parsed, target: &str) -> Result<Arc<Pool>> {
    let name = target.split(['/', '@']).next().unwrap_or(target);
    let env = env_linux::linux_env();
    let config = if args.has("e") || args.has("p") {
        found(args, name, &env)?
    } else {
        cached(args, name)?
    };
    let txg =
        match args.get("t") {
            Some(t) => Some(t.parse().map_err(|_| {
                Error::new(Kind::Invalid, format!("'{t}' is not a transaction group"))
            })?),
            None => None,
        };
    let options = OpenOptions {
        readonly: true,
        missing_log: true,
        txg,
        ..OpenOptions::default()
    };
    Pool::open(env, &config, options)
}

fn found(args: &Parsed, name: &str, env: &env::Env) -> Result<NvList> {
    let mut paths = Vec::new();
    for p in args.all("p") {
        paths.extend(env_linux::find::candidates(p)?);
    }
    if !args.has("p") {
        paths = env_linux::find::default_candidates();
    }
    let guid = name.parse::<u64>().ok();
    let mut pools: Vec<_> = discover(env, &paths)
        .pools
        .into_iter()
        .filter(|p| p.name == name || guid == Some(p.guid))
        .collect();
    match (pools.pop(), pools.len()) {
        (Some(p), 0) => Ok(p.config),
        (Some(_), n) => bail!(
            Exists,
            "{} pools are called '{name}'; use the guid of one",
            n + 1
        ),
        (None, _) => bail!(NotFound, "no device of a pool '{name}' was found"),
    }
}

fn cached(args: &Parsed, name: &str) -> Result<NvList> {
    let file = match args.get("U") {
        Some(f) => f.into(),
        None => api::path::cache_path(),
    };
    let shown = file.display();
    let bytes = std::fs::read(&file).map_err(|e| {
        Error::from(e).context(format!(
            "cache file {shown} (for a pool that is not imported use -e)"
        ))
    })?;
    let list = NvList::unpack(&bytes).map_err(|e| e.context(shown.to_string()))?;
    match list.get_nvlist(name) {
        Some(config) if config.contains(keys::pool::VDEV_TREE) => Ok(config.clone()),
        _ => bail!(
            NotFound,
            "no pool '{name}' in the cache file {shown}; for a pool that is not imported use -e"
        ),
    }
}
