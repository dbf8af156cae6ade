//! Scrub and resilver, on pools in memory.

mod resilver;
mod scrub;
mod world;
