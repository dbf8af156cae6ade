//! The outputs of events: standard error, the journal, syslog.
//!
//! The rooms emit events (`tracing`), with the pool, txg and device as fields. They do no I/O for it. A program calls
//! [`start`] once; without that, events go nowhere. One event is one line of text, with its fields behind it, or one
//! record of the journal.
//!
//! 1. Text that leaves the program has no character a terminal acts on: names come from labels of foreign devices.
//! 2. An event that is filtered out costs one comparison. Levels below debug are not built into release builds.
//! 3. An error or a warning is never lost while there is a standard error.
//!
//! `filter` reads `ZFS_FUSE_LOG`, `text` makes lines of events.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod filter;
mod text;

pub use filter::{filter, Filter, VARIABLE};

use text::{Sink, Text};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Where the events go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// Standard error. When systemd has connected that to the journal: the journal, by its own protocol, which keeps
    /// levels and fields.
    Stderr,
    /// The system's log: the journal, or syslog (`/dev/log`) where there is none. Where there is neither, standard error
    /// gets warnings and errors.
    System,
}

/// Sends the events of `program` that pass `filter` to `to`. The first call of a process counts; later ones do nothing.
pub fn start(program: &'static str, to: To, filter: Filter) {
    let journal = match to {
        To::Stderr if !text::stderr_is_journal() => None,
        _ => text::journal(program),
    };
    let sink = match to {
        To::Stderr => Sink::Stderr,
        To::System => Sink::Syslog,
    };
    // Both layers are made here, so that the types of both cases are one.
    let text = journal.is_none().then(|| Text::new(program, sink));
    let _ = tracing_subscriber::registry()
        .with(filter.targets())
        .with(journal)
        .with(text)
        .try_init();
}
