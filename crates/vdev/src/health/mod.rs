//! Health of leaves: counters and latencies, writes not yet flushed, abandoned devices.

pub(crate) mod copying;
pub(crate) mod io_counts;
pub(crate) mod repairs;
pub(crate) mod unflushed;
