//! The simulator's command line; see `USAGE`.
#![forbid(unsafe_code)]

use sim::alike::AUDIT;
use sim::check::Care;
use sim::foreign::Foreign;
use sim::gen;
use sim::points::{self, Count, Effort};
use sim::trace::{self, Extra, Trace};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use testkit::OpenZfs;

/// Blocks of many sizes come and go.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const USAGE: &str = "\
usage: cargo xtask sim [OPTION]...
  --seed N        run this seed (again): its trace is the same each time
  --seeds A..B    run seeds A to B-1
  --minutes M     fresh seeds for M minutes
  --steps N       operations per seed (300)
  --images N      further images judged at each power cut of a seed or a trace (30)
  --draid         seeds on dRAIDs only; with --points: scripts on dRAIDs only
  --grow          seeds on pools that grow and shrink only
  --shrink        cut a failing trace down to a small one and write it to sim-SEED.txt
  --replay FILE   run a trace
  --points        crash points of all scripts on all layouts, once; with --minutes: again and again
  --subsets N     with --points or --soak: random images of what is not flushed, at each point (6)
  --soak M        seeds and crash points in turn for M minutes; a line for docs/testing.md
  --zdb PROGRAM   OpenZFS's zdb judges, too: of each seed the end and one in so many of the images
                  at power cuts, of scripts one image at one in so many points; '-' for the zdb
                  that the tests fetch
  --zdb-every N   how many those are (8)
  --keep DIR      images in which zdb finds something are left there
  --print         print the trace of each seed
Exit status: 0 if nothing was found, 1 if something was, 2 for usage.
";

#[derive(Default)]
struct Options {
    seeds: Option<(u64, u64)>,
    minutes: Option<f64>,
    soak: bool,
    points: bool,
    shrink: bool,
    draid: bool,
    grow: bool,
    print: bool,
    replay: Option<PathBuf>,
    steps: usize,
    subsets: usize,
    images: usize,
    zdb: Option<PathBuf>,
    zdb_every: u64,
    keep: Option<PathBuf>,
}

fn options(args: &[String]) -> Result<Options, String> {
    let mut o = Options {
        steps: 300,
        subsets: 6,
        images: 30,
        zdb_every: 8,
        ..Options::default()
    };
    let mut args = args.iter();
    while let Some(a) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{a} needs a value"));
        let bad = |v: &str| format!("'{v}' is no value for {a}");
        match a.as_str() {
            "--seed" => {
                let v = value()?;
                let n: u64 = v.parse().map_err(|_| bad(v))?;
                o.seeds = Some((n, n.checked_add(1).ok_or_else(|| bad(v))?));
            }
            "--seeds" => {
                let v = value()?;
                let range = v.split_once("..");
                let range = range.and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
                o.seeds = Some(range.ok_or_else(|| bad(v))?);
            }
            "--minutes" | "--soak" => {
                let v = value()?;
                let m: f64 = v.parse().map_err(|_| bad(v))?;
                if !(0.0..=1e6).contains(&m) {
                    return Err(bad(v));
                }
                o.minutes = Some(m);
                o.soak |= a == "--soak";
            }
            "--steps" => {
                let v = value()?;
                o.steps = v.parse().map_err(|_| bad(v))?;
            }
            "--subsets" => {
                let v = value()?;
                o.subsets = v.parse().map_err(|_| bad(v))?;
            }
            "--images" => {
                let v = value()?;
                o.images = v.parse().map_err(|_| bad(v))?;
            }
            "--zdb" => o.zdb = Some(PathBuf::from(value()?)),
            "--zdb-every" => {
                let v = value()?;
                o.zdb_every = v.parse().map_err(|_| bad(v))?;
            }
            "--keep" => o.keep = Some(PathBuf::from(value()?)),
            "--replay" => o.replay = Some(PathBuf::from(value()?)),
            "--shrink" => o.shrink = true,
            "--draid" => o.draid = true,
            "--grow" => o.grow = true,
            "--points" => o.points = true,
            "--print" => o.print = true,
            _ => return Err(format!("unknown option '{a}'")),
        }
    }
    Ok(o)
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|a| a == "-h" || a == "--help") {
        print!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    // Labels hardly change from image to image.
    codec::checksum::remember_bodies(64 << 20);
    match options(&args).and_then(|o| run(&o)) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(e) => {
            eprint!("sim: {e}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Sums of a run.
#[derive(Default)]
struct Total {
    seeds: u64,
    operations: u64,
    refused: u64,
    images: u64,
    apart: u64,
    events: u64,
    faults: u64,
    findings: u64,
}

fn run(o: &Options) -> Result<u64, String> {
    let mut t = Total::default();
    let foreign = match &o.zdb {
        Some(program) => {
            let zdb = match program.as_os_str() == "-" {
                true => OpenZfs::get().map_err(|e| e.to_string())?,
                false => OpenZfs::installed(program),
            };
            Some(Arc::new(Foreign::new(zdb, o.zdb_every, o.keep.clone())))
        }
        None => None,
    };
    let extra = Extra {
        images: o.images,
        foreign: foreign.clone(),
    };
    if let Some(file) = &o.replay {
        let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
        let ran = trace::replay(&text.parse::<Trace>()?, &extra);
        report(o, &extra, &mut t, &ran);
        return Ok(t.findings);
    }
    let started = Instant::now();
    let end = o.minutes.map(|m| Duration::from_secs_f64(m * 60.0));
    let go_on = || end.is_none_or(|e| started.elapsed() < e);
    // Fresh seeds: nothing else depends on the time.
    let fresh = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    let (mut seed, last) = match (o.seeds, end) {
        (Some((a, b)), _) => (a, b),
        (None, Some(_)) => (fresh << 20, u64::MAX),
        (None, None) => (1, if o.points { 2 } else { 21 }),
    };
    while seed < last && go_on() {
        if !o.points {
            let layout = match (o.draid, o.grow) {
                (true, _) => gen::draid(seed),
                (_, true) => gen::growing(seed),
                _ => gen::layout(seed),
            };
            let ran = trace::run_on(layout, seed, o.steps, &extra);
            report(o, &extra, &mut t, &ran);
        }
        if o.points || o.soak {
            points(seed, o, foreign.as_deref(), &mut t, &go_on);
        }
        seed += 1;
    }
    let minutes = started.elapsed().as_secs_f64() / 60.0;
    let Total {
        seeds,
        operations,
        refused,
        images,
        apart,
        events,
        faults,
        findings,
    } = t;
    let asked = match &foreign {
        Some(z) => format!(", {} images judged by OpenZFS's zdb", z.judged()),
        None => String::new(),
    };
    println!(
        "{minutes:.1} minutes: {seeds} seeds, {operations} operations ({refused} refused for \
         space), {events} writes and flushes, {faults} faults, {images} images \
         ({apart} of them differ in what is read of them){asked}, {findings} findings"
    );
    if o.soak {
        println!(
            "| {minutes:.0} | {seeds} | {operations} | {events} | {faults} | {images} | \
             {apart} | {findings} |"
        );
    }
    Ok(t.findings)
}

fn report(o: &Options, extra: &Extra, t: &mut Total, ran: &trace::Ran) {
    let seed = ran.trace.seed;
    t.seeds += 1;
    t.operations += ran.counts.operations;
    t.refused += ran.counts.refused;
    t.images += ran.counts.images;
    t.apart += ran.counts.apart;
    t.events += ran.counts.events;
    t.faults += ran.counts.faults;
    if o.print {
        print!("{}", ran.trace);
    }
    if !o.soak || ran.finding.is_some() {
        println!(
            "seed {seed}: {}, {} operations, {} images, {} faults, trace {:016x}",
            ran.trace.layout, ran.counts.operations, ran.counts.images, ran.counts.faults, ran.hash
        );
    }
    let Some(finding) = &ran.finding else {
        return;
    };
    t.findings += 1;
    println!("FOUND with seed {seed}: {finding}");
    let zdb = match &o.zdb {
        Some(p) => format!(" --zdb {} --zdb-every {}", p.display(), o.zdb_every),
        None => String::new(),
    };
    let draid = if o.draid { " --draid" } else { "" };
    let grow = if o.grow { " --grow" } else { "" };
    println!(
        "  again: cargo xtask sim{draid}{grow} --seed {seed} --steps {} --images {}{zdb} --shrink",
        o.steps, o.images
    );
    if o.shrink {
        let small = trace::shrink(&ran.trace, finding, extra, 400, &|s| println!("  {s}"));
        let finding = trace::replay(&small, extra).finding.unwrap_or_default();
        let first = finding.lines().next().unwrap_or_default();
        let file = format!("sim-{seed}.txt");
        match std::fs::write(&file, format!("# {first}\n{small}")) {
            Ok(()) => println!(
                "  {} lines in {}",
                small.ops.len(),
                Path::new(&file).display()
            ),
            Err(e) => println!("  {file}: {e}\n{small}"),
        }
    }
}

/// Crash points of one seed: all scripts on all layouts, or one of each when soaking.
fn points(
    seed: u64,
    o: &Options,
    foreign: Option<&Foreign>,
    t: &mut Total,
    go_on: &dyn Fn() -> bool,
) {
    let effort = Effort {
        subsets: o.subsets,
        every: 1,
        care: Care::Full,
        audit: AUDIT,
        foreign,
    };
    let mut layouts = points::layouts();
    layouts.retain(|l| !o.draid || l.spares() > 0);
    let n = points::SCRIPTS.len() * layouts.len();
    let all = if o.soak { 1 } else { n };
    for i in 0..all {
        let i = (seed as usize).wrapping_add(i) % n;
        let script = &points::SCRIPTS[i % points::SCRIPTS.len()];
        let layout = layouts[i / points::SCRIPTS.len()];
        let mut count = Count::default();
        let begun = Instant::now();
        // Findings of one kind are counted, and the first of them is shown.
        let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
        let mut found = |e: String| {
            let n = kinds.entry(trace::class(&e)).or_default();
            *n += 1;
            if *n == 1 {
                println!("FOUND {e}");
            }
            true
        };
        points::run_all(script, layout, seed, effort, &mut count, go_on, &mut found);
        t.images += count.images;
        t.apart += count.apart;
        t.events += count.events;
        t.operations += count.operations;
        t.findings += kinds.len() as u64;
        if !o.soak {
            let per = count.images as f64 / begun.elapsed().as_secs_f64().max(1e-9);
            println!(
                "{} on {layout}: {} events, {} images ({} apart), {per:.0} each second",
                script.name, count.events, count.images, count.apart
            );
        }
        for (kind, n) in kinds.iter().filter(|(_, n)| **n > 1) {
            println!("  {n} images with findings like '{kind}'");
        }
        if !go_on() {
            return;
        }
    }
}
