//! `ztest`: one pool of image files under attack. Many threads change files of several file systems,
//! disks rot within what the layout bears, the process is killed at random; what was acknowledged as
//! durable must be there afterwards, and a walk over all blocks must find no fault.
//!
//! The program starts itself again for every pass, so that a kill ends just the pass.
#![forbid(unsafe_code)]

mod acks;
mod block;
mod child;
mod damage;
mod desk;
mod keys;
mod layout;
mod lives;
mod logs;
mod options;
mod refusals;
mod scans;
mod shapes;
mod splits;
mod tables;
mod troubles;
mod unlucky;
mod work;

use options::{Options, USAGE};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// A small generator (xorshift*): the same seed, the same numbers.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % n.max(1)
    }
}

/// Where acknowledgements are kept.
fn acks_file(o: &Options) -> PathBuf {
    o.folder.join(format!("{}.acks", o.pool))
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args_os()
        .skip(1)
        .map(|a| a.to_string_lossy().into_owned())
        .collect();
    let o = match Options::read(&args) {
        Ok(Some(o)) => o,
        Ok(None) => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(e) => {
            eprint!("ztest: {e}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match logging::filter("error,env-linux=warn") {
        Ok(filter) => logging::start("ztest", logging::To::Stderr, filter),
        Err(e) => {
            eprintln!("ztest: {e}");
            return ExitCode::from(2);
        }
    }
    let done = match o.job.as_deref() {
        None => parent(&o, &args),
        Some(job) => child::run(&o, job),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("ztest: {e}");
            ExitCode::FAILURE
        }
    }
}

/// The sums of a run.
#[derive(Default)]
struct Tally {
    pools: u64,
    passes: u64,
    kills: u64,
    /// Imports while reads failed.
    unlucky: u64,
    /// Imports with a file system damaged.
    damaged: u64,
}

fn parent(o: &Options, args: &[String]) -> Result<(), String> {
    let seed = o.seed.unwrap_or_else(|| {
        std::time::UNIX_EPOCH
            .elapsed()
            .map_or(1, |d| d.as_nanos() as u64)
    });
    println!("ztest: seed {seed}, {} s", o.time);
    let mut dice = Dice::new(seed);
    let mut tally = Tally::default();
    let start = Instant::now();
    let whole = Duration::from_secs(o.time);
    for n in 0..o.pools {
        let until = start + whole * (n as u32 + 1) / o.pools as u32;
        one_pool(o, args, &mut dice, &mut tally, until).map_err(|e| {
            format!(
                "{e}\nztest: seed {seed}; the images are left in {}",
                o.folder.display()
            )
        })?;
    }
    println!(
        "ztest: {} pools, {} passes, {} kills, {} imports while reads failed, {} with a file system damaged, {} s: \
         nothing lost, no fault found",
        tally.pools,
        tally.passes,
        tally.kills,
        tally.unlucky,
        tally.damaged,
        start.elapsed().as_secs()
    );
    Ok(())
}

fn one_pool(
    o: &Options,
    args: &[String],
    dice: &mut Dice,
    tally: &mut Tally,
    until: Instant,
) -> Result<(), String> {
    let fresh = !(o.existing && tally.pools == 0);
    let mut redundant = false;
    // Where disks rot, which ones must be there is not known any more: their devices stay.
    let decays = dice.below(2) == 0;
    if fresh {
        if !layout::images(o).is_empty() {
            return Err(format!(
                "images of a pool '{}' are in {} already; give -E to go on with them",
                o.pool,
                o.folder.display()
            ));
        }
        let l = layout::Layout::by_chance(o, dice);
        redundant = l.is_redundant();
        println!(
            "ztest: {} x {:?} of {} disks, sectors of 2^{}",
            l.tops, l.kind, l.width, l.ashift
        );
        desk::create_pool(o, &l).map_err(|e| e.to_string())?;
    } else if layout::images(o).is_empty() {
        return Err(format!(
            "no images of '{}' in {}",
            o.pool,
            o.folder.display()
        ));
    }
    tally.pools += 1;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let time = left.min(Duration::from_secs(1 + dice.below(o.pass)));
        let kill = dice.below(100) < o.kill;
        let seed = dice.below(u64::MAX >> 12);
        let rot = redundant && decays && dice.below(2) == 0;
        let disks = match (rot, redundant && !decays) {
            (true, _) => child::ROT,
            (false, true) => child::CHANGES,
            (false, false) => 0,
        };
        // One that is killed would go on for longer.
        let asked = if kill { time * 2 } else { time };
        let job = format!("work,{seed},{},{disks}", asked.as_millis());
        let mut c = start(args, &job)?;
        if kill {
            std::thread::sleep(time);
            let ended = c.try_wait().map_err(|e| e.to_string())?;
            if let Some(s) = ended.filter(|s| !s.success()) {
                return Err(format!("pass {} failed: {s}", tally.passes + 1));
            }
            if ended.is_none() {
                c.kill().map_err(|e| e.to_string())?;
                tally.kills += 1;
            }
            c.wait().map_err(|e| e.to_string())?;
        } else {
            finish(c, &format!("pass {}", tally.passes + 1))?;
        }
        tally.passes += 1;
        if o.verbose {
            println!(
                "ztest: pass {} {}",
                tally.passes,
                if kill { "killed" } else { "ended" }
            );
        }
        if damage::is_there(o) {
            finish(
                start(args, "damaged")?,
                "the import with one file system damaged",
            )?;
            tally.damaged += 1;
        }
        // Where a disk rots, nothing makes up for another one that fails.
        if kill && !decays && dice.below(2) == 0 {
            let job = format!("unlucky,{}", dice.below(u64::MAX >> 12));
            finish(start(args, &job)?, "the import while reads fail")?;
            tally.unlucky += 1;
        }
        finish(start(args, "judge")?, "the walk over all blocks")?;
        if let Some(zdb) = &o.zdb {
            judge(o, zdb)?;
        }
        if Instant::now() >= until {
            break;
        }
    }
    // What the last kill left is opened and compared too.
    finish(start(args, "work,1,0,0")?, "the last look")?;
    for image in layout::images(o) {
        std::fs::remove_file(&image).map_err(|e| format!("{}: {e}", image.display()))?;
    }
    let _ = std::fs::remove_file(acks_file(o));
    Ok(())
}

fn start(args: &[String], job: &str) -> Result<Child, String> {
    let program = std::env::current_exe().map_err(|e| format!("where this program is: {e}"))?;
    Command::new(program)
        .args(args)
        .args(["--job", job])
        .stdin(Stdio::null())
        .spawn()
        .map_err(|e| format!("another process: {e}"))
}

fn finish(mut c: Child, what: &str) -> Result<(), String> {
    let s = c.wait().map_err(|e| e.to_string())?;
    match s.success() {
        true => Ok(()),
        false => Err(format!("{what} failed: {s}")),
    }
}

/// Another implementation's `zdb`.
fn judge(o: &Options, zdb: &Path) -> Result<(), String> {
    let out = Command::new(zdb)
        .args(["-e", "-p"])
        .arg(&o.folder)
        .args(["-bcc", &o.pool])
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("{}: {e}", zdb.display()))?;
    match out.status.success() {
        true => Ok(()),
        false => Err(format!(
            "{} is not content: {}\n{}{}",
            zdb.display(),
            out.status,
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        )),
    }
}
