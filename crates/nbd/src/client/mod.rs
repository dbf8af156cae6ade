//! The client's side: one connection to an export, over which any number of threads ask at the same time.
//!
//! [`Address`] is where the export is. [`Connection::open`] negotiates with [`option::GO`](crate::numbers::option), or
//! with the older EXPORT_NAME where the server does not know that. Replies are simple ones: the client asks for no structured ones. A thread
//! of the connection takes the replies and hands each to whoever waits for it, in whatever order they come.
//!
//! A connection that has failed once stays so: [`Failure::Lost`]. Whoever has it opens another one.

mod address;
mod connection;
mod handshake;

#[cfg(test)]
mod tests;

pub use address::Address;
pub use connection::{Connection, Failure, Streams};

/// What the server says of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Bytes.
    pub size: u64,
    /// Bytes of the smallest request: a power of two, 1 to 64 KiB.
    pub least: u32,
    /// Bytes in which it is best read and written: a power of two, at least `least`.
    pub preferred: u32,
    /// Bytes of the largest read or write; at least [`crate::CHUNK`] or `least`.
    pub most: u32,
    /// Nothing can be written.
    pub read_only: bool,
    /// Flushes are carried out. Without, whatever a reply was sent for is on stable storage.
    pub flushes: bool,
    /// Trims are carried out.
    pub trims: bool,
    /// A flush of one connection covers what was written over others.
    pub multi: bool,
}
