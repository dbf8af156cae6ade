//! Threads that keep processors from halting while mounts are busy.
//!
//! Where the kernel has no cpuidle driver, as in many virtual machines, an idle processor halts, which there is an exit to the
//! host. Every request and every answer wakes a thread, as a rule on such a processor. A thread of the lowest priority (nice
//! 19) on each processor, which does nothing but pause, keeps all of them from halting. It gets 1.5 % of a processor that
//! others want, and its pauses leave the core to the other processor of the same core.
//!
//! Besides, the kernel moves a thread that is woken to an idle processor, if there is one. There is none then, so whoever
//! waits for an answer stays on its processor, and a thread of the daemon that serves there (see [`crate::ring`]) takes turns
//! with it: nobody has to be woken on another processor.
//!
//! On a machine of many processors that costs more than it gives, so it is for [`FEWEST`] to [`MOST`] of them.

use crate::sys::{self, CpuSet};
use base::sync::{CondvarExt, MutexExt};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, Once};

/// One processor does not have to be kept from halting: who waits for an answer leaves it to the thread that gives it.
const FEWEST: usize = 2;
/// Processors that are kept awake at most.
const MOST: usize = 4;
/// Pauses between two looks whether to go on.
const PAUSES: u32 = 64;
/// The lowest priority of a thread that is no idle one. (A processor with idle ones only is an idle one.)
const NICE: i32 = 19;

/// Whether processors are kept awake.
static ON: AtomicBool = AtomicBool::new(false);
/// Whether they are whenever mounts are busy.
static WANTED: AtomicBool = AtomicBool::new(false);
static GATE: Mutex<()> = Mutex::new(());
static CALL: Condvar = Condvar::new();

/// The processors that this process may use, if they are as many as can be kept awake.
fn processors() -> Option<Vec<usize>> {
    let set = sys::cores_allowed().ok()?;
    let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|c| set.is_set(*c)).collect();
    (FEWEST..=MOST).contains(&all.len()).then_some(all)
}

/// Whether this machine is one for it.
pub(crate) fn is_possible() -> bool {
    processors().is_some()
}

/// Whether processors are kept awake whenever mounts are busy.
pub(crate) fn is_wanted() -> bool {
    WANTED.load(SeqCst)
}

pub(crate) fn want(wanted: bool) {
    WANTED.store(wanted, SeqCst);
}

/// Whether processors are kept awake at this moment.
pub(crate) fn is_on() -> bool {
    ON.load(Relaxed)
}

/// Keeps processors awake from now on, or no more.
pub(crate) fn keep(on: bool) {
    static THREADS: Once = Once::new();
    if on {
        THREADS.call_once(|| {
            for core in processors().unwrap_or_default() {
                // Without one of them, one processor halts as before.
                let _ = std::thread::Builder::new()
                    .name("fuse-awake".into())
                    .spawn(move || stay(core));
            }
        });
    }
    // Under the lock, so that nobody begins to wait in between.
    let gate = GATE.acquire();
    ON.store(on, SeqCst);
    drop(gate);
    if on {
        CALL.notify_all();
    }
}

/// Keeps one processor awake for as long as the process lives.
fn stay(core: usize) {
    if sys::bind_to_core(core).is_err() || sys::be_nice(NICE).is_err() {
        return;
    }
    loop {
        let mut gate = GATE.acquire();
        while !ON.load(SeqCst) {
            gate = CALL.wait_acquire(gate);
        }
        drop(gate);
        while is_on() {
            for _ in 0..PAUSES {
                std::hint::spin_loop();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// Ticks of processor time of the threads that keep processors awake.
    fn ticks() -> u64 {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let of = |stat: String| {
            let (head, rest) = stat.rsplit_once(')')?;
            let mut fields = rest.split_whitespace().skip(11);
            let both = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
            head.ends_with("fuse-awake").then_some(both)
        };
        tasks
            .filter_map(|t| std::fs::read_to_string(t.ok()?.path().join("stat")).ok())
            .filter_map(of)
            .sum()
    }

    #[test]
    fn processors_are_busy_while_they_are_kept_awake_and_idle_afterwards() {
        if !is_possible() {
            return eprintln!("skipped: not as many processors as can be kept awake");
        }
        keep(true);
        let begin = Instant::now();
        while ticks() == 0 && begin.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(ticks() > 0);
        keep(false);
        std::thread::sleep(Duration::from_millis(100));
        let before = ticks();
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(ticks(), before);
    }
}
