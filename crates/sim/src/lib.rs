//! The simulator: the real engine and POSIX layer on simulated disks, with an oracle, judges and power cuts.
//!
//! Everything is drawn from a seed and happens on one thread: which pool, which operations in which
//! order, which faults, where the power goes and what of the unflushed writes is left. An oracle in
//! memory knows what must be there; judges look at every image ([`check`]). See `docs/testing.md`
//! and `docs/fault-model.md`.
#![forbid(unsafe_code)]

pub mod alike;
pub mod check;
pub mod cut;
mod desk;
mod differs;
pub mod foreign;
pub mod found;
pub mod gen;
mod hash;
pub mod keys;
pub mod left_log;
pub mod lineage;
pub mod op;
pub mod oracle;
pub mod owners;
pub mod panics;
pub mod points;
pub mod refuse;
pub mod rig;
pub mod rights;
pub mod served;
pub mod shape;
mod sources;
pub mod trace;
pub mod world;
