//! The driver: runs a target with many inputs, and reports panics, hangs and large allocations.

use crate::blame::blamed;
use crate::mutate::{mutate, Random};
use crate::{Corpus, Target, MAX_MEMORY, MAX_TIME, MEMORY};
use base::sync::MutexExt;
use std::collections::BTreeMap;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

/// When to stop.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub executions: u64,
    pub time: Duration,
}

/// Something that must not happen.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Where it panicked, or what took too much.
    pub what: String,
    pub input: Vec<u8>,
}

/// What came of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub executions: u64,
    pub time: Duration,
    /// Different ones by what they are, each with the shortest input seen.
    pub findings: BTreeMap<String, Vec<u8>>,
}

/// What the last panic said; set also where somebody catches it.
static PANIC: Mutex<Option<String>> = Mutex::new(None);
static PANICKED: AtomicBool = AtomicBool::new(false);
static HOOK: Once = Once::new();

fn hook() {
    HOOK.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            let at = info
                .location()
                .map(|l| format!("{}:{}", l.file(), l.line()));
            let text = match info.payload().downcast_ref::<&str>() {
                Some(t) => t.to_string(),
                None => info
                    .payload()
                    .downcast_ref::<String>()
                    .cloned()
                    .unwrap_or_default(),
            };
            let text = format!("panic at {}: {text}", at.unwrap_or_default());
            *PANIC.acquire() = Some(text);
            PANICKED.store(true, Relaxed);
        }));
    });
}

/// Runs one input; says what went wrong.
pub fn execute(t: &Target, input: &[u8]) -> Option<String> {
    hook();
    PANICKED.store(false, Relaxed);
    MEMORY.reset_peak_usage();
    let before = MEMORY.current_usage();
    let start = Instant::now();
    let done = catch_unwind(AssertUnwindSafe(|| (t.run)(input)));
    let took = start.elapsed();
    let memory = MEMORY.peak_usage().saturating_sub(before);
    if done.is_err() || PANICKED.load(Relaxed) {
        let said = PANIC.acquire().take();
        return Some(said.unwrap_or_else(|| "panic".into()));
    }
    if memory > MAX_MEMORY {
        return Some(format!("{} MiB of memory", memory >> 20));
    }
    // Other work on the machine must not look like a hang: what is slow is tried again.
    if took > MAX_TIME {
        let start = Instant::now();
        (t.run)(input);
        if start.elapsed() > MAX_TIME {
            return Some(format!("{} seconds", took.as_secs()));
        }
    }
    None
}

/// Ends the process, with the input saved, if one execution does not come back at all.
struct Watch {
    number: Arc<AtomicU64>,
    input: Arc<Mutex<Vec<u8>>>,
}

impl Watch {
    fn start(name: &'static str) -> Watch {
        let w = Watch {
            number: Arc::new(AtomicU64::new(0)),
            input: Arc::default(),
        };
        let (number, input) = (Arc::downgrade(&w.number), w.input.clone());
        std::thread::spawn(move || {
            let (mut last, mut since) = (u64::MAX, Instant::now());
            while let Some(n) = number.upgrade() {
                let now = n.load(Relaxed);
                drop(n);
                if now != last {
                    (last, since) = (now, Instant::now());
                } else if since.elapsed() > MAX_TIME * 12 {
                    let file = format!("hang-{name}");
                    let b = input.acquire();
                    let _ = std::fs::write(&file, &*b);
                    eprintln!("{name}: an execution does not end; its input is in {file}");
                    std::process::exit(3);
                }
                std::thread::sleep(Duration::from_millis(500));
            }
        });
        w
    }
}

/// Runs a target with mutations of its good inputs, until a limit is reached.
pub fn run(t: &Target, corpus: &Corpus, seed: u64, limits: Limits) -> Outcome {
    let seeds = corpus.of(t);
    let mut out = Outcome::default();
    let start = Instant::now();
    let watch = Watch::start(t.name);
    let mut r = Random::new(seed);
    let mut input = Vec::new();
    let mut next = seeds.iter();
    while out.executions < limits.executions && start.elapsed() < limits.time {
        // First what is good, then what is not.
        match next.next() {
            Some(s) => {
                input.clear();
                input.extend_from_slice(&s[..s.len().min(t.max)]);
            }
            None => mutate(&mut r, &seeds, t.max, &mut input),
        }
        {
            let mut kept = watch.input.acquire();
            kept.clear();
            kept.extend_from_slice(&input);
        }
        if let Some(what) = execute(t, &input) {
            let wrong = blamed();
            let wrong = wrong.as_ref().unwrap_or(&input);
            let kept = out.findings.entry(what).or_insert_with(|| wrong.clone());
            if wrong.len() < kept.len() {
                kept.clone_from(wrong);
            }
        }
        out.executions += 1;
        watch.number.store(out.executions, Relaxed);
    }
    out.time = start.elapsed();
    out
}
