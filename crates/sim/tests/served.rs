//! A file system in service, simulated. The same seed gives the same trace, and mistakes made on purpose are found.

use base::mutation::{mutate, Mutation};
use sim::served::live;

/// Steps of a life.
const STEPS: u64 = 300;
/// Lives in which a mistake must be found.
const LIVES: u64 = 12;

#[test]
fn lives_of_two_doors_show_what_the_model_says() {
    let lives = std::env::var("ZFS_FUSE_TEST_SERVED_LIVES")
        .ok()
        .and_then(|n| n.parse().ok());
    for seed in 1..=lives.unwrap_or(LIVES) {
        live(seed, STEPS).unwrap_or_else(|e| panic!("{e}"));
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let one = live(5, STEPS).unwrap();
    assert!(one.len() as u64 > STEPS / 2, "{} lines", one.len());
    assert_eq!(one, live(5, STEPS).unwrap());
    assert_ne!(one, live(6, STEPS).unwrap());
}

fn is_found(which: Mutation) {
    mutate(Some(which));
    let found = (1..=LIVES).find_map(|seed| live(seed, STEPS).err());
    mutate(None);
    let found = found.unwrap_or_else(|| panic!("{which:?} was not found"));
    eprintln!("{which:?}: {}", found.lines().next().unwrap_or(""));
}

#[test]
fn a_gate_that_lets_requests_in_is_found() {
    is_found(Mutation::GateLetsIn);
}

#[test]
fn ids_that_lead_to_any_generation_are_found() {
    is_found(Mutation::IdOfAnyGeneration);
}

#[test]
fn a_control_directory_that_keeps_a_destroyed_snapshot_open_is_found() {
    is_found(Mutation::ControlKeepsOpen);
}

#[test]
fn names_that_clients_are_not_told_of_are_found() {
    is_found(Mutation::NamesUnpublished);
}
