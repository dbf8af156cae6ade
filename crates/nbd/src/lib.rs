//! Network block devices: both sides of the protocol (fixed newstyle negotiation; the server's has structured replies and block
//! status). The client's side is [`client`].
//!
//! [`serve`] speaks with one client until the client leaves, through any pair of streams. What is served are [`Exports`]: their
//! names are listed, and one of them is opened for the connection. Several threads serve one connection: each takes the next
//! request from the stream, carries it out, and sends the reply, so that a client which asks for several things at once is
//! answered in the order in which they are done.
//!
//! All numbers of the protocol are big-endian. Names and values are those of the protocol's document (`doc/proto.md` of the
//! nbd project).
//!
//! Memory for one connection: [`CHUNK`] bytes and a little for each thread, whatever the client asks for.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod client;
mod negotiate;
mod numbers;
mod tls;
mod transmit;

#[cfg(test)]
mod tests;

pub use numbers::{CHUNK, MAX_NAME, MAX_REQUEST};
pub use tls::ServerTls;

use base::Result;
use std::io::{Read, Write};
use std::sync::Arc;

/// A part of an export that is data, or a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where it ends, bytes; behind where it was looked for.
    pub end: u64,
    /// There are data; otherwise zeros are read, and nothing is allocated.
    pub data: bool,
}

/// A block device that clients read and write. Offsets and lengths are bytes; what reaches beyond [`Export::size`] is refused before
/// one of these is called, unless the size shrinks meanwhile. A change is on stable storage after the next [`Export::flush`], or at
/// once with `fua`.
pub trait Export: Send + Sync {
    /// Bytes, now.
    fn size(&self) -> u64;
    /// Bytes in which it is best read and written: a power of two, 512 to 32 MiB.
    fn block_size(&self) -> u32;
    /// Nothing can be changed.
    fn is_read_only(&self) -> bool;
    /// Fills `buf`, at most [`CHUNK`] bytes.
    ///
    /// # Errors
    /// Those of the device; the content of `buf` does not matter then.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()>;
    /// Writes at most [`CHUNK`] bytes.
    ///
    /// # Errors
    /// Those of the device; any part may be written then.
    fn write(&self, offset: u64, data: &[u8], fua: bool) -> Result<()>;
    /// Everything whose reply was sent before is on stable storage afterwards.
    ///
    /// # Errors
    /// Those of the device.
    fn flush(&self) -> Result<()>;
    /// The bytes are not needed any more; what is read there later is undefined.
    ///
    /// # Errors
    /// Those of the device.
    fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<()>;
    /// The bytes are zeros from now on.
    ///
    /// # Errors
    /// Those of the device.
    fn zero(&self, offset: u64, len: u64, fua: bool) -> Result<()>;
    /// What begins at `offset`, which is before the end.
    ///
    /// # Errors
    /// Those of the device.
    fn extent(&self, offset: u64) -> Result<Extent>;
    /// The bytes will be read soon.
    fn cache(&self, offset: u64, len: u64);
}

/// What a server has to offer.
pub trait Exports: Sync {
    /// Names of all exports.
    ///
    /// # Errors
    /// Those of finding them.
    fn names(&self) -> Result<Vec<String>>;
    /// Opens one for a connection.
    ///
    /// # Errors
    /// `Kind::NotFound`: there is none of this name. `Kind::Access`, `Kind::NotPermitted`: the client may not have it. Others: it cannot
    /// be had now. The words go to the client.
    fn open(&self, name: &str) -> Result<Arc<dyn Export>>;
}

/// How a connection is served.
pub struct Options<'a> {
    /// Threads that carry out its requests, at least one.
    pub threads: usize,
    /// Called when the client has chosen an export, before its first request: what was to hold for the negotiation only (a time
    /// limit, say) ends.
    pub chosen: &'a (dyn Fn() + Sync),
    /// Clients must begin TLS before anything else.
    pub tls: Option<&'a ServerTls>,
    /// Ends the streams: called when something went wrong, so that no thread waits for the client any more.
    pub hang_up: &'a (dyn Fn() + Sync),
}

/// Serves one client until it leaves, says nonsense, or the streams end.
///
/// # Errors
/// Those of the streams, and what the client did wrong, for the log.
pub fn serve<R: Read + Send, W: Write + Send>(
    mut from: R,
    mut to: W,
    exports: &dyn Exports,
    options: &Options<'_>,
) -> Result<()> {
    let mut so = negotiate::begin(&mut from, &mut to)?;
    let Some(tls) = options.tls else {
        let agreed = so.choose(&mut from, &mut to, exports)?;
        return transmit(from, to, agreed, options);
    };
    if !so.wants_tls(&mut from, &mut to)? {
        return Ok(());
    }
    let (mut from, mut to) = tls.accept(from, to)?;
    let agreed = so.choose(&mut from, &mut to, exports)?;
    transmit(from, to, agreed, options)
}

fn transmit<R: Read + Send, W: Write + Send>(
    from: R,
    to: W,
    agreed: Option<negotiate::Agreed>,
    options: &Options<'_>,
) -> Result<()> {
    let Some(agreed) = agreed else {
        return Ok(());
    };
    (options.chosen)();
    transmit::run(from, to, &agreed, options)
}
