//! Scrub and resilver, on pools in memory.

mod errors;
mod mistakes;
mod resilver;
mod scrub;
mod world;
