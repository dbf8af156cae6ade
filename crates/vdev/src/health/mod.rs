//! How the leaves are doing: counters and latencies, reports of single transfers, writes that are not flushed, devices given up.

pub(crate) mod abandon;
pub(crate) mod copying;
pub(crate) mod io_counts;
pub(crate) mod repairs;
pub(crate) mod reports;
pub(crate) mod unflushed;
