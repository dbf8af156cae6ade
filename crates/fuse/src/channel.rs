//! Sends replies to the kernel: through a descriptor of `/dev/fuse`, or in a buffer of io_uring.

use std::fs::File;
use std::io::{self, IoSlice, Write};

use zerocopy::IntoBytes;

use crate::abi::OutHeader;
use crate::reply::ReadBuf;
use crate::types::Errno;

/// The kernel takes at most this many pieces in one writev (UIO_MAXIOV).
const MAX_IOV: usize = 1024;

/// Takes the answer to one request.
pub(crate) trait Answer {
    /// Answers with data in up to three pieces.
    fn ok(&self, unique: u64, parts: &[&[u8]]) -> io::Result<()>;
    /// Answers with an error.
    fn err(&self, unique: u64, e: Errno) -> io::Result<()>;
    /// Answers a read.
    fn data(&self, unique: u64, data: &ReadBuf) -> io::Result<()>;
}

/// The error as the kernel takes it; anything but 1..=511 would leave the request unanswered.
pub(crate) fn negative(e: Errno) -> i32 {
    if (1..512).contains(&e.0) {
        -e.0
    } else {
        -libc::EIO
    }
}

/// A descriptor of the device.
pub(crate) struct Channel<'a> {
    /// The device.
    pub file: &'a File,
}

impl Answer for Channel<'_> {
    fn ok(&self, unique: u64, parts: &[&[u8]]) -> io::Result<()> {
        let mut iov = [IoSlice::new(&[]); 4];
        let mut len = 16;
        let mut n = 1;
        for p in parts.iter().take(3) {
            len += p.len();
            iov[n] = IoSlice::new(p);
            n += 1;
        }
        let head = OutHeader {
            len: len as u32,
            error: 0,
            unique,
        };
        iov[0] = IoSlice::new(head.as_bytes());
        self.send(&iov[..n], len)
    }

    fn err(&self, unique: u64, e: Errno) -> io::Result<()> {
        let head = OutHeader {
            len: 16,
            error: negative(e),
            unique,
        };
        self.send(&[IoSlice::new(head.as_bytes())], 16)
    }

    fn data(&self, unique: u64, data: &ReadBuf) -> io::Result<()> {
        let n = data.slice_count();
        if n <= 3 {
            let mut parts: [&[u8]; 3] = [&[]; 3];
            let mut i = 0;
            data.each(|s| {
                if let Some(p) = parts.get_mut(i) {
                    *p = s;
                }
                i += 1;
            });
            return self.ok(unique, &parts[..n]);
        }
        if n >= MAX_IOV {
            return self.ok(unique, &[&data.to_vec()]);
        }
        let len = 16 + data.len();
        let head = OutHeader {
            len: len as u32,
            error: 0,
            unique,
        };
        let mut iov = Vec::with_capacity(n + 1);
        iov.push(IoSlice::new(head.as_bytes()));
        data.each(|s| iov.push(IoSlice::new(s)));
        self.send(&iov, len)
    }
}

impl Channel<'_> {
    fn send(&self, iov: &[IoSlice<'_>], len: usize) -> io::Result<()> {
        let mut file = self.file;
        loop {
            return match file.write_vectored(iov) {
                Ok(n) if n == len => Ok(()),
                Ok(_) => Err(io::Error::other("the kernel took only part of an answer")),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => Err(e),
            };
        }
    }
}
