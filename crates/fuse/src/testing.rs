//! Requests without a mount, for tests of what reads them.

use crate::channel::Channel;
use crate::dispatch::{serve, Message, Scratch};
use crate::{Filesystem, Negotiated};
use std::fs::File;
use std::io;

/// Serves one request as if the kernel had sent it; the answer is written to `answers`.
///
/// Errors: the message is too short to be a request, or the answer cannot be written.
pub fn request(fs: &dyn Filesystem, answers: &File, message: &[u8]) -> io::Result<()> {
    let agreed = Negotiated {
        minor: crate::wire::MINOR,
        flags: u64::MAX,
        offered: u64::MAX,
        max_write: 1 << 20,
        max_readahead: 1 << 20,
        max_pages: 256,
    };
    let chan = Channel { file: answers };
    let Some(message) = Message::read(message) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    serve(fs, &agreed, &chan, &message, &mut Scratch::new())
}
