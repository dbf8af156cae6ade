//! Fuzz targets for every decoder of bytes from outside, the good inputs they begin with, and a
//! driver of mutations that needs no special compiler. `docs/fuzzing.md` says how to use them.
//!
//! A target takes any bytes and has to come back: no panic, no overflow, within [`MAX_TIME`] and
//! [`MAX_MEMORY`].
#![forbid(unsafe_code)]

mod apply;
mod blame;
mod corpus;
mod driver;
mod mutate;
mod nfs_calls;
mod streams;
mod targets;

pub use corpus::Corpus;
pub use driver::{run, Finding, Limits, Outcome};
pub use mutate::{mutate, Random};
pub use targets::{target, Target, TARGETS};

use peak_alloc::PeakAlloc;
use std::time::Duration;

/// Counts what executions allocate.
#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Longest execution.
pub const MAX_TIME: Duration = Duration::from_secs(5);
/// Most memory of one execution, bytes: the largest block there is, several times.
pub const MAX_MEMORY: usize = 160 << 20;
