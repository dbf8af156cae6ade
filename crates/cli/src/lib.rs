//! The library of the commands: tables of subcommands, flags and properties, from which parsing, `--help`,
//! manual pages and completions are made; names, numbers and dates as text; columns and JSON.
//!
//! Facts about names, columns and exit codes follow the command reference; the sections cited in
//! comments are those of that document.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod args;
mod backend;
pub mod colour;
pub mod columns;
pub mod complete;
pub mod confirm;
pub mod daemon_table;
pub mod daemons;
pub mod dedup_table;
pub mod examples;
pub mod get;
pub mod harmless;
pub mod help;
pub mod json;
pub mod keys;
pub mod manual;
pub mod names;
pub mod props;
pub mod run;
pub mod suggest;
pub mod table;
pub mod time;
pub mod value;
pub mod vdevs;
pub mod zdb_table;
pub mod zfs_table;
pub mod zpool_table;
pub mod zstream_table;

pub use args::Parsed;
pub use backend::Backend;
pub use run::{Cx, Fail, Outcome};
pub use table::{Flag, Sub, Tool};
