//! Health of leaves: counters and latencies, reports of single transfers, writes not yet flushed.

pub(crate) mod copying;
pub(crate) mod io_counts;
pub(crate) mod repairs;
pub(crate) mod reports;
pub(crate) mod unflushed;
