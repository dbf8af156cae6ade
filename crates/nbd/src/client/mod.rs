//! The client's side: one connection to an export, over which any number of threads ask at the same time.
//!
//! [`Address`] is where the export is. [`Connection::open`] negotiates with the option GO, or
//! with the older EXPORT_NAME where the server does not know that. Replies are simple ones: the client asks for no structured ones. A thread
//! of the connection takes the replies and hands each to whoever waits for it, in whatever order they come.
//!
//! A connection that has failed once stays so: [`Failure::Lost`]. Whoever has it opens another one.

mod address;
mod connection;
mod handshake;
mod info;

#[cfg(test)]
pub(crate) mod tests;

pub use address::{Address, Place, Secure};
pub use connection::{Connection, Failure, Streams};
pub use info::Info;
