//! A few power cuts of each kind of layout; `make soak` makes hundreds.

use system_tests::number;
use system_tests::power_cuts::{live, Layout, Plan, LAYOUTS};

/// A seed of its own for each run would make a test that fails now and then; `power-cuts` does that.
fn plan(layout: Layout, seed: u64) -> Plan {
    Plan {
        layout,
        seed,
        cuts: 2 * number("ZFS_FUSE_TEST_SCALE", 1),
        work: 900,
        faults: true,
        lies: false,
        verbose: true,
    }
}

fn nothing_is_lost(layouts: &[&str]) {
    for (seed, l) in LAYOUTS.iter().enumerate() {
        if !layouts.contains(&l.name) {
            continue;
        }
        let Some(outcome) = live(&plan(*l, 100 + seed as u64)) else {
            return;
        };
        assert!(
            outcome.findings.is_empty(),
            "{}",
            outcome.findings.join("\n")
        );
    }
}

#[test]
fn power_cuts_lose_nothing_acknowledged_without_redundancy() {
    nothing_is_lost(&["single", "log"]);
}

#[test]
fn power_cuts_lose_nothing_acknowledged_on_mirror_and_raidz() {
    nothing_is_lost(&["mirror", "raidz2"]);
}

/// Otherwise the tests above prove nothing.
#[test]
fn disks_that_lose_flushed_writes_are_found() {
    let plan = Plan {
        cuts: 10,
        faults: false,
        lies: true,
        ..plan(LAYOUTS[0], 7)
    };
    if let Some(outcome) = live(&plan) {
        assert!(
            !outcome.findings.is_empty(),
            "{} cuts and nothing was missed",
            outcome.cuts
        );
    }
}
