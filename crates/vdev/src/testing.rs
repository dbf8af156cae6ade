//! The world in memory that tests use, under the name they know it by.

pub use env_sim::*;
