//! Simulated devices in memory for tests: `env-sim` under a short name.

pub use env_sim::*;
