//! Scrub and resilver, on pools in memory.

mod errors;
mod mistakes;
mod rebuild;
mod resilver;
mod scrub;
mod world;
