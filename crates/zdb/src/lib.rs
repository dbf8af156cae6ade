//! `zdb`: shows what is on the disks of a pool, and verifies it. Never writes.
//!
//! The program is [`program`]; tests of pools that are open use [`walk`].
#![forbid(unsafe_code)]

mod attrs;
mod block;
mod blocks;
mod config;
mod context;
mod copies;
mod dedup;
mod fmt;
mod iostats;
mod key;
mod labels;
mod object;
mod path;
mod pending;
mod raw;
mod refcounts;
mod sets;
mod spaces;
mod zil_dump;

use base::{bail, Error, Kind, Result, Txg};
use cli::args::{Bad, Parsed};
use cli::harmless::{harmless, Harmless};
use cli::zdb_table::ZDB;
use disk::mos_keys;
use disk::{NvList, Uberblock};
use fmt::Numbers;
use pool::{OpenOptions, Pool};
use std::cell::Cell;
use std::io::{BufWriter, Write};
use std::process::ExitCode;
use std::sync::Arc;
use vdev::{discover, keys};
use zap::Zap;

/// Behind the name of a pool whose checkpoint is shown.
const CHECKPOINTED: &str = "_CHECKPOINTED_UNIVERSE";

/// Uberblocks this much older than the newest are still tried by `-F`.
const REWIND: u64 = 3;

/// Runs a command line (without the name of the program); gives the exit status.
pub fn program(args: &[String]) -> ExitCode {
    let parsed = match Parsed::read("", &ZDB, args) {
        Ok(p) => p,
        Err(Bad::Help | Bad::ShortHelp) => {
            print!("{}", cli::help::program(&ZDB));
            return ExitCode::SUCCESS;
        }
        Err(Bad::Usage(complaint)) => return usage(&complaint),
        Err(Bad::NotBuilt(sentence)) => {
            eprintln!("{}", harmless(&sentence));
            return ExitCode::FAILURE;
        }
    };
    if parsed.has("version") {
        println!("zfs-fuse-zdb-{}", env!("CARGO_PKG_VERSION"));
        return ExitCode::SUCCESS;
    }
    // What goes wrong with devices is zdb's to tell; the engine's other events only on request.
    match logging::filter("error,env-linux=warn") {
        Ok(filter) => logging::start("zdb", logging::To::Stderr, filter),
        Err(e) => return usage(&format!("zdb: {e}")),
    }
    let raw = parsed.has("R") && parsed.operands.iter().any(|o| is_raw(o));
    let buffer = BufWriter::new(std::io::stdout().lock());
    let mut out: Box<dyn Write> = match raw {
        true => Box::new(buffer),
        false => Box::new(Harmless(buffer)),
    };
    let done = run(&parsed, &mut *out);
    let flushed = out.flush();
    match done {
        Ok(code) if flushed.is_ok() => ExitCode::from(code),
        Ok(_) => ExitCode::FAILURE,
        Err(e) if e.kind == Kind::Invalid => usage(&format!("zdb: {e}")),
        Err(e) => {
            eprintln!("zdb: {}", harmless(&e.to_string()));
            ExitCode::FAILURE
        }
    }
}

/// Whether an operand of `-R` (vdev:offset:size:flags) asks for the bytes as they are.
fn is_raw(operand: &str) -> bool {
    operand.split(':').nth(3).is_some_and(|f| f.contains('r'))
}

fn usage(complaint: &str) -> ExitCode {
    eprintln!("{}", harmless(complaint));
    eprint!("{}", cli::help::usage(&ZDB));
    ExitCode::from(2)
}

/// How often a switch was given.
fn times(args: &Parsed, key: &str) -> usize {
    args.in_order().filter(|(k, _)| *k == key).count()
}

/// A run on one pool.
pub(crate) struct Session {
    pub pool: Arc<Pool>,
    pub num: Numbers,
    /// Found by its devices, not through a cache file.
    pub exported: bool,
    /// What it was found with.
    pub config: NvList,
    args: Parsed,
    /// The switches that count as given where none that shows something was: of a pool nearly all, of a dataset
    /// those that show datasets.
    implied: &'static str,
    /// With `-k`: the uberblock of the state shown.
    kept: Option<Uberblock>,
    code: Cell<u8>,
}

impl Session {
    /// How often a switch was given.
    pub fn times(&self, letter: char) -> usize {
        times(&self.args, letter.encode_utf8(&mut [0; 4]))
    }

    pub fn has(&self, letter: char) -> bool {
        self.times(letter) > 0
    }

    /// The degree of detail of what a switch shows: how often it was given, and `-v` for all of them.
    pub fn depth(&self, letter: char) -> usize {
        match self.times(letter) {
            0 if self.implied.contains(letter) => 1 + self.times('v').max(1),
            0 => 0,
            n => n + self.times('v'),
        }
    }

    /// The exit status will be at least this.
    pub fn fail(&self, code: u8) {
        // Trouble with space (2) outranks blocks that cannot be read (3).
        let rank = |c: u8| [0, 1, 3, 2].get(c as usize).copied().unwrap_or(c);
        if rank(code) > rank(self.code.get()) {
            self.code.set(code);
        }
    }

    /// Says what is wrong and remembers it.
    pub fn complain(&self, out: &mut dyn Write, text: &str, code: u8) -> Result<()> {
        self.fail(code);
        Ok(writeln!(out, "{text}")?)
    }

    pub fn number(&self, text: &str) -> Result<u64> {
        let bad = |_| Error::new(Kind::Invalid, format!("'{text}' is not a number"));
        text.parse().map_err(bad)
    }

    fn directory(&self, key: &str) -> Result<Option<zap::Value>> {
        Zap::new(&*self.pool.mos().hold(1)?).get_value(key)
    }

    /// The salt of checksums that have one.
    pub fn salt(&self) -> Option<[u8; 32]> {
        let v = self.directory(mos_keys::CHECKSUM_SALT).ok()??;
        let bytes: Vec<u8> = v.ints().iter().map(|b| *b as u8).collect();
        bytes.try_into().ok()
    }

    /// The uberblock kept by a checkpoint.
    pub fn checkpoint(&self) -> Result<Option<Uberblock>> {
        checkpoint(&self.pool)
    }
}

/// The uberblock kept by the checkpoint of a pool.
fn checkpoint(pool: &Pool) -> Result<Option<Uberblock>> {
    let directory = pool.mos().hold(1)?;
    let Some(v) = Zap::new(&*directory).get_value(mos_keys::CHECKPOINT)? else {
        return Ok(None);
    };
    let mut b: Vec<u8> = v.ints().iter().flat_map(|w| w.to_le_bytes()).collect();
    b.resize(b.len().max(disk::uberblock::UBERBLOCK_SIZE), 0);
    Uberblock::decode(&b).map(Some)
}

fn run(args: &Parsed, out: &mut dyn Write) -> Result<u8> {
    let operand = |i: usize| args.operands.get(i).map(String::as_str);
    if args.has("B") {
        bail!(
            Unsupported,
            "-B is not supported: streams are made by 'zfs send'"
        );
    }
    if args.has("x") && args.has("l") {
        bail!(Invalid, "-x copies what is read of a pool, not of a device");
    }
    if let Some(o) = args.all("o").next() {
        let name = o.split('=').next().unwrap_or(o);
        bail!(
            Unsupported,
            "-o {name} is not supported: there are no variables of libzpool here"
        );
    }
    for n in args.all("I") {
        if n.parse::<u64>().is_err() {
            bail!(Invalid, "'{n}' is not a number of operations");
        }
    }
    if let Some(words) = args.get("E") {
        block::embedded(words, out)?;
        return Ok(0);
    }
    if args.has("l") {
        let Some(device) = operand(0) else {
            bail!(Invalid, "-l needs a device");
        };
        return labels::show(args, device, out);
    }
    let lone_config = args.in_order().all(|(k, _)| matches!(k, "C" | "U" | "A"));
    if operand(0).is_none() && lone_config {
        let (list, _) = cache_file(args)?;
        config::cache(&list, out)?;
        return Ok(0);
    }
    let Some(target) = operand(0) else {
        bail!(Invalid, "name a pool or a device");
    };
    let s = open(args, target)?;
    let kept = target_of_checkpoint(target);
    let target = if args.has("k") { kept.as_str() } else { target };
    let rest = args.operands.get(1..).unwrap_or_default();
    if let Some(text) = args.get("K") {
        if args.has("N") {
            bail!(
                Unsupported,
                "-K needs the name of a dataset, not its number"
            );
        }
        key::unlock(&s.pool, target, text, out)?;
    }
    let done = show(&s, target, rest, out);
    if s.depth('s') > 0 && done.is_ok() {
        iostats::show(&s, out)?;
    }
    if s.has('G') {
        out.flush()?;
        eprintln!("\nZFS_DBGMSG: nothing is kept");
    }
    // Nobody replays or claims what a pool that is only looked at holds.
    let _ = s.pool.close();
    done.map(|()| s.code.get())
}

fn show(s: &Session, target: &str, rest: &[String], out: &mut dyn Write) -> Result<()> {
    match (s.has('O'), s.has('r'), rest) {
        (true, _, [path]) => return path::show(s, target, path, out),
        (_, true, [path, to]) => return path::copy(s, target, path, to, out),
        (true, ..) => bail!(Invalid, "-O needs a dataset and a path"),
        (_, true, _) => bail!(Invalid, "-r needs a dataset, a path and a destination"),
        _ => {}
    }
    if s.has('R') {
        return block::show(s, rest, out);
    }
    if s.has('S') {
        return dedup::simulate(s, out);
    }
    // Each part is tried, also if one before could not be read.
    let mut part = |shown: bool, f: &mut dyn FnMut(&mut dyn Write) -> Result<()>| match shown {
        true => match f(out) {
            Err(e) if e.kind == Kind::Invalid => Err(e),
            Err(e) => {
                out.flush()?;
                eprintln!("zdb: {}", harmless(&e.to_string()));
                s.fail(1);
                Ok(())
            }
            Ok(()) => Ok(()),
        },
        false => Ok(()),
    };
    let on = |letter: char| s.depth(letter) > 0;
    part(s.depth('C') > 1, &mut |out| config::found(s, out))?;
    part(on('C'), &mut |out| config::trusted(s, out))?;
    part(on('u'), &mut |out| labels::uberblock(s, out))?;
    part(on('D'), &mut |out| dedup::show(s, out))?;
    part(on('T'), &mut |out| dedup::references(s, out))?;
    let sets = on('d') || on('i') || s.has('N');
    part(on('m') || s.depth('d') > 2 && rest.is_empty(), &mut |out| {
        spaces::show(s, if sets { &[] } else { rest }, out)
    })?;
    part(on('M'), &mut |out| spaces::groups(s, out))?;
    let other = "CuDTmMbcshy".chars().any(on);
    let named = target.contains(['/', '@', '#']) && !other;
    part(sets || named, &mut |out| sets::show(s, target, rest, out))?;
    part(s.has('y'), &mut |out| livelists(s, out))?;
    part(on('b') || on('c'), &mut |out| blocks::walk(s, out))?;
    part(on('h'), &mut |out| config::history(s, out))?;
    part(rest.is_empty(), &mut |out| labels::checkpoint(s, out))
}

/// `-y`: livelists of clones that are being destroyed: nothing allocated or freed twice.
fn livelists(s: &Session, out: &mut dyn Write) -> Result<()> {
    let mos = s.pool.mos();
    let Some(object) = Zap::new(&*mos.hold(1)?).get(mos_keys::DELETED_CLONES)? else {
        return Ok(writeln!(out, "Verifying deleted livelist entries: none")?);
    };
    writeln!(out, "Verifying deleted livelist entries")?;
    for e in Zap::new(&*mos.hold(object)?).iter() {
        let list = zap::parse_hex_key(&e?.name)?;
        let mut open = std::collections::HashMap::new();
        let mut wrong = Vec::new();
        dsl::Deadlist::open(mos, list)?.for_each(mos, &mut |bp| {
            let key = (bp.dva(0).vdev(), bp.dva(0).offset(), bp.birth());
            let n: &mut i64 = open.entry(key).or_default();
            *n += if disk::dsl::bpobj_entry_is_free(bp) {
                -1
            } else {
                1
            };
            if *n > 1 {
                wrong.push(format!("double ALLOC: {}", fmt::bp(bp)));
            }
            Ok(())
        })?;
        for (key, n) in open.iter().filter(|(_, n)| **n < 0) {
            wrong.push(format!("FREE without ALLOC ({n}): {}:{:x}", key.0, key.1));
        }
        for line in wrong {
            s.complain(out, &format!("livelist {list}: {line}"), 2)?;
        }
    }
    Ok(())
}

/// `target` in the state that a checkpoint keeps: its pool has a name of its own then, as OpenZFS's zdb gives it.
fn target_of_checkpoint(target: &str) -> String {
    let end = target.find(['/', '@', '#']).unwrap_or(target.len());
    let (pool, rest) = target.split_at(end);
    format!("{pool}{CHECKPOINTED}{rest}")
}

/// The pool that `target` (a pool, or a dataset in it) names, opened for reading.
fn open(args: &Parsed, target: &str) -> Result<Session> {
    let name = target.split(['/', '@', '#']).next().unwrap_or(target);
    let mut env = env_linux::linux_env();
    if let Some(folder) = args.get("x") {
        env.disks = Arc::new(copies::Copying::new(env.disks, folder));
    }
    let exported = args.has("e") || args.has("p");
    if args.has("V") && !exported {
        bail!(Invalid, "-V is only for pools that are not imported (-e)");
    }
    let config = match exported {
        true => found(args, name, &env)?,
        false => cached(args, name)?,
    };
    let txg =
        match args.get("t") {
            Some(t) => Some(t.parse().map(Txg::new).map_err(|_| {
                Error::new(Kind::Invalid, format!("'{t}' is not a transaction group"))
            })?),
            None => None,
        };
    let mut kept = None;
    if args.has("k") {
        // The state shown does not know that it is one to go back to.
        let now = OpenOptions {
            readonly: true,
            missing_log: true,
            ..OpenOptions::default()
        };
        let pool = Pool::open(env.clone(), &config, now)?;
        kept = checkpoint(&pool)?;
        let _ = pool.close();
    }
    let options = |txg| OpenOptions {
        readonly: true,
        missing_log: true,
        checkpoint: args.has("k"),
        name: args.has("k").then(|| target_of_checkpoint(name)),
        temporary: args.has("k"),
        txg,
        ..OpenOptions::default()
    };
    let pool = match Pool::open(env.clone(), &config, options(txg)) {
        Err(e) if args.has("F") || args.has("X") => older(
            &env,
            &config,
            txg.unwrap_or(Txg::MAX),
            args.has("X"),
            &options,
        )
        .ok_or(e)?,
        r => r?,
    };
    let display = "lCudDTimMhbcsOrRSyN";
    let asked = args.in_order().any(|(k, _)| display.contains(k));
    let implied = match (asked, target.contains(['/', '@', '#'])) {
        (true, _) => "",
        (false, true) => "di",
        (false, false) => "uCdhisDbm",
    };
    Ok(Session {
        pool,
        kept,
        num: Numbers {
            plain: args.has("P"),
        },
        exported,
        config,
        implied,
        args: args.clone(),
        code: Cell::new(0),
    })
}

/// The newest older state that can be opened.
fn older(
    env: &env::Env,
    config: &NvList,
    limit: Txg,
    far: bool,
    options: &dyn Fn(Option<Txg>) -> OpenOptions,
) -> Option<Arc<Pool>> {
    let tree = Pool::peek(env, config).ok()?;
    let mut at = tree.best_uberblock(limit)?.0.txg;
    let newest = at;
    while !at.is_none() {
        at = tree.best_uberblock(at.before(1))?.0.txg;
        if !far && newest.since(at) > REWIND {
            return None;
        }
        if let Ok(p) = Pool::open(env.clone(), config, options(Some(at))) {
            eprintln!("zdb: showing the state of transaction group {at}");
            return Some(p);
        }
    }
    None
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

fn cache_file(args: &Parsed) -> Result<(NvList, String)> {
    let file = match args.get("U") {
        Some(f) => f.into(),
        None => control::path::cache_to_read(),
    };
    let shown = file.display().to_string();
    let bytes = std::fs::read(&file).map_err(|e| {
        Error::from(e).context(format!(
            "cache file {shown} (for a pool that is not imported use -e)"
        ))
    })?;
    let list = NvList::unpack(&bytes).map_err(|e| e.context(shown.clone()))?;
    Ok((list, shown))
}

fn cached(args: &Parsed, name: &str) -> Result<NvList> {
    let (list, shown) = cache_file(args)?;
    match list.get_nvlist(name) {
        Some(config) if config.contains(keys::pool::VDEV_TREE) => Ok(config.clone()),
        _ => bail!(
            NotFound,
            "no pool '{name}' in the cache file {shown}; for a pool that is not imported use -e"
        ),
    }
}
