//! The engine panics on purpose, at random ones of the places marked by `base::mutation::panic_point`.
//! Whatever it was doing, nothing acknowledged is lost, and nothing half done ever reaches the disks.

use base::mutation::{mutate, panic_at, points_passed};
use env_sim::SeededRng;
use sim::op::Op;
use sim::oracle::Oracle;
use sim::panics;
use sim::rig::Layout;
use sim::trace::{self, Extra, Trace};
use sim::world::{Outcome, World};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Once;
use vdev::GroupKind;

/// Operations of a trace.
const STEPS: usize = 60;

/// Panics on purpose are not worth a message.
fn quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let tell = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let text = info.payload().downcast_ref::<String>();
            if !text.is_some_and(|t| t.starts_with("made on purpose")) {
                tell(info);
            }
        }));
    });
}

/// A trace of a seed without power cuts and faults.
fn trace_of(seed: u64) -> Trace {
    let mut t = trace::run_seed(seed, STEPS, &Extra::default()).trace;
    t.ops.retain(|op| {
        !matches!(
            op,
            Op::Cut { .. } | Op::Device { .. } | Op::Fault { .. } | Op::Refuse(_)
        )
    });
    t
}

/// What the trace does without a panic: the oracle after each operation, and how many marked places
/// had been passed by then.
fn undisturbed(t: &Trace) -> Vec<(Oracle, u64)> {
    let mut w = World::new(t.layout, t.seed).unwrap();
    panic_at(0);
    let mut out = Vec::new();
    for op in &t.ops {
        w.apply(op).unwrap();
        out.push((w.oracle.clone(), points_passed()));
    }
    mutate(None);
    w.forget();
    out
}

/// Whether an operation that says "done" promises that something is on disk.
fn promises(op: &Op) -> bool {
    match op {
        Op::Write { sync, .. } => *sync,
        Op::Fsync { .. } | Op::FsyncAll { .. } | Op::Sync | Op::Remount { .. } | Op::Reimport => {
            true
        }
        Op::Snapshot { .. } | Op::Clone { .. } | Op::Rollback { .. } | Op::Set { .. } => true,
        Op::CreateFs { .. } | Op::DestroyFs { .. } | Op::DestroySnapshot { .. } => true,
        _ => false,
    }
}

/// Panics at the `n`th marked place of a trace. True if the pool was stopped by it.
fn panicked(t: &Trace, n: u64, known: &[(Oracle, u64)]) -> Result<bool, String> {
    let mut w = World::new(t.layout, t.seed)?;
    panic_at(n);
    let mut ops = t.ops.iter().zip(known);
    let (op, oracle) = loop {
        let Some((op, (oracle, _))) = ops.next() else {
            return Err("no panic came".into());
        };
        match catch_unwind(AssertUnwindSafe(|| w.apply(op))) {
            Ok(r) => r.map_err(|e| format!("before the panic: {e}"))?,
            Err(_) => break (op, oracle),
        };
    };
    mutate(None);
    let said = |e: String| format!("'{op}' panicked: {e}");
    let stopped = w.pool().is_some_and(|p| p.suspended().is_some());
    let mut oracle = oracle.clone();
    match w.pool().map(|p| p.sync()) {
        Some(Ok(_)) if stopped => return Err(said("a pool that was stopped wrote a txg".into())),
        Some(Err(e)) if !stopped => return Err(said(format!("not stopped, but: {e}"))),
        Some(Err(_)) => oracle.take_back(false),
        // Everything before is on disk now.
        Some(Ok(_)) => oracle.take_back(true),
        // It panicked while it was imported again.
        None => oracle.take_back(false),
    }
    if stopped {
        // Nothing may be promised any more, and nothing may hang.
        let asked = [Op::Sync].into_iter().chain(ops.map(|(op, _)| op.clone()));
        for op in asked.take(12) {
            let r = catch_unwind(AssertUnwindSafe(|| w.apply(&op)));
            match r.map_err(panics::said).map_err(&said)? {
                Ok(Outcome::Done) if promises(&op) => {
                    return Err(said(format!("'{op}' was acknowledged afterwards")));
                }
                _ => {}
            }
        }
    }
    w.died(&oracle, n).map_err(&said)?;
    // Life goes on with what is left.
    for op in t.ops.iter().take(10) {
        w.apply(op).map_err(&said)?;
    }
    w.died(&w.oracle.clone(), n + 1).map_err(&said)?;
    w.forget();
    Ok(stopped)
}

/// Each seed with panics at so many places.
fn survive(seeds: std::ops::Range<u64>, places: u64) {
    quiet();
    let mut stopped = 0;
    for seed in seeds {
        let t = trace_of(seed);
        let known = undisturbed(&t);
        let all = known.last().map_or(0, |k| k.1);
        assert!(all > 0, "seed {seed} passes no marked place");
        let rng = SeededRng::new(seed);
        for _ in 0..places {
            let n = 1 + rng.below(all);
            match panicked(&t, n, &known) {
                Ok(s) => stopped += u64::from(s),
                Err(e) => panic!("seed {seed}, place {n} of {all}: {e}\n{t}"),
            }
        }
    }
    assert!(stopped > 0, "no panic stopped a pool");
}

#[test]
fn a_panic_at_a_random_place_loses_nothing_that_was_acknowledged() {
    survive(1..5, 3);
}

#[test]
fn a_panic_at_other_random_places_loses_nothing_either() {
    survive(20..24, 3);
}

/// Reads of a file that is not in memory panic at each place on their way, one after the other.
#[test]
fn a_panic_of_a_reader_stops_no_pool_and_leaves_no_file_unreadable() {
    quiet();
    let mut w = World::new(Layout::new(GroupKind::Mirror, 2), 3).unwrap();
    let run = |w: &mut World, line: &str| {
        let op: Op = line.parse().unwrap();
        catch_unwind(AssertUnwindSafe(|| w.apply(&op)))
            .map(|r| assert_eq!(r.unwrap(), Outcome::Done, "{line}"))
    };
    run(&mut w, "create . a 644").unwrap();
    run(&mut w, "write . a 0 300000 2").unwrap();
    let mut n = 1;
    loop {
        run(&mut w, "reimport").unwrap();
        panic_at(n);
        let read = run(&mut w, "read . a");
        mutate(None);
        if let Some(why) = w.pool().unwrap().suspended() {
            // Behind the reading: the time of the access is a change.
            assert!(
                why.to_string().contains("a transaction of txg"),
                "place {n}: {why}"
            );
            break;
        }
        for line in [
            "read . a",
            "write . a 5 1000 3",
            "fsync . a",
            "chmod . a 600",
            "sync",
        ] {
            run(&mut w, line).unwrap();
        }
        if read.is_ok() {
            break;
        }
        n += 1;
    }
    assert!(n > 3, "a read passes {n} places");
    w.died(&w.oracle.clone(), 1).unwrap();
    w.forget();
}

#[test]
fn a_task_that_panics_stops_the_pool_and_the_log_is_replayed_at_the_next_import() {
    quiet();
    let mut w = World::new(Layout::new(GroupKind::Single, 1), 4).unwrap();
    let run = |w: &mut World, line: &str| w.apply(&line.parse().unwrap());
    for line in [
        "create . a 644",
        "fsync . a",
        "sync",
        "write . a 0 5000 2",
        "fsync . a",
    ] {
        assert_eq!(run(&mut w, line), Ok(Outcome::Done), "{line}");
    }
    let pool = w.pool().unwrap().clone();
    let died = catch_unwind(AssertUnwindSafe(|| {
        pool.task(|_, _| -> base::Result<()> {
            std::panic::panic_any("made on purpose: a task".to_string())
        })
    }));
    assert!(died.is_err());
    let why = pool.suspended().unwrap();
    assert!(why.to_string().contains("was synced"), "{why}");
    let kind = |r: base::Result<()>| r.unwrap_err().kind;
    assert_eq!(kind(pool.task(|_, _| Ok(()))), base::Kind::Suspended);
    assert_eq!(kind(pool.sync().map(drop)), base::Kind::Suspended);
    for line in ["fsync . a", "create . b 644", "write . a 0 10 3"] {
        let e = run(&mut w, line).unwrap_err();
        assert!(e.contains("internal error"), "{line}: {e}");
    }
    drop(pool);
    // What was acknowledged is there, although its txg never reached the disk.
    let mut oracle = w.oracle.clone();
    oracle.take_back(false);
    w.died(&oracle, 2).unwrap();
    assert_eq!(run(&mut w, "read . a"), Ok(Outcome::Done));
    assert_eq!(run(&mut w, "sync"), Ok(Outcome::Done));
    w.forget();
}

/// With the number of seeds in the environment variable `PANIC_SEEDS`.
#[test]
#[ignore = "for a long run"]
fn many_panics_lose_nothing() {
    let n = std::env::var("PANIC_SEEDS").map_or(100, |n| n.parse().unwrap());
    survive(1000..1000 + n, 16);
}
