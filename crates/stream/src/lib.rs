//! Send streams (data format §30): what `zfs send` writes and `zfs receive` reads.
//!
//! * [`Reader`] takes the records of a stream or package from any `std::io::Read`, bounds them, and verifies
//!   their running checksum.
//! * [`send`](mod@send) makes the stream of a snapshot.
//! * [`Writer`] writes records to any `std::io::Write`, with their checksums.
//! * [`Applier`] applies the records of a stream to an object set, [`Healer`] puts right with them what is
//!   damaged in one.
//! * [`Package`] and [`BeginList`] are the lists in BEGIN records.
//! * [`token`] has the tokens with which an interrupted receive goes on.
//!
//! 1. A record is handed out only when its values make sense ([`disk::stream::Record::check`]) and the
//!    checksum of the record behind it has confirmed its payload.
//! 2. Memory for a payload is bounded by the type of the record; a list grows only with what has come.
//! 3. A reader takes no byte from its input that is behind the end of its stream.
//!
//! Start reading at [`Reader::next`].
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod apply;
mod heal;
mod image;
mod package;
mod reader;
pub mod redact;
pub mod send;
pub mod token;
mod writer;

pub use apply::{Applier, Rules};
pub use heal::{HealedBlock, Healer};
pub use image::Image;
pub use package::{BeginList, FileSystem, Package};
pub use reader::{Item, Reader};
pub use send::Sink;
pub use token::ResumeToken;
pub use writer::Writer;
