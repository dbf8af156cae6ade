//! How the leaves are doing: counters and latencies, writes that are not flushed.

pub(crate) mod copying;
pub(crate) mod io_counts;
pub(crate) mod repairs;
pub(crate) mod unflushed;
