//! Scrub and resilver, on pools in memory.

mod dates;
mod errors;
mod expansion;
mod labels;
mod mistakes;
mod progress;
mod rebuild;
mod resilver;
mod scrub;
mod wear;
mod world;
