//! Scrub and resilver, on pools in memory.

mod mistakes;
mod resilver;
mod scrub;
mod world;
