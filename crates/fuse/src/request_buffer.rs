//! Buffers that requests are read into.

use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;

use base::Block;
use zerocopy::FromBytes;

use crate::abi::{self, op};
use crate::dispatch::Message;
use crate::sys::{self, Pages, PAGE};

/// What comes before the data of a WRITE.
const HEAD: usize = size_of::<abi::InHeader>() + size_of::<abi::WriteIn>();
/// Data of large writes is read to blocks of this size: what the file system can keep as a block
/// without copying it if the write is of whole blocks, and the record size most files have.
const BLOCK: usize = 128 << 10;
/// With so many bytes a request is a large write, and the next one is likely to be one, too.
const LARGE: usize = 2 * BLOCK;
/// Most blocks of one request.
const MOST: usize = 64;

/// Memory for one request.
pub(crate) struct RequestBuffer {
    /// The request, or what of it is not in `blocks`; placed so that the data of a WRITE begins on a
    /// page.
    pages: Pages,
    start: usize,
    /// Bytes of the request in `pages`.
    len: usize,
    /// The last request was a large write.
    large: bool,
    /// Blocks that the largest request takes; 0: never used.
    most: usize,
    /// Empty ones.
    spare: Vec<Vec<u8>>,
    /// The data of the request, if they are here.
    blocks: Vec<Block>,
}

impl RequestBuffer {
    /// Memory of its own, which is taken as it is touched: there are many mounts, and most requests are
    /// short.
    pub fn new(max_write: usize) -> io::Result<RequestBuffer> {
        // Room for the largest write, and for the largest xattr whatever the write size.
        // As much as may be read into blocks: other requests are put together here again.
        let room = max_write.max(BLOCK).next_multiple_of(BLOCK);
        let pages = Pages::new((room + 2 * PAGE).next_multiple_of(PAGE))?;
        pages.done();
        let most = room / BLOCK;
        Ok(RequestBuffer {
            pages,
            start: PAGE - HEAD,
            len: 0,
            large: false,
            most: if most > MOST { 0 } else { most },
            spare: Vec::new(),
            blocks: Vec::new(),
        })
    }

    /// Takes a request from the device, in place of the one before. 0: there will be none.
    pub fn read(&mut self, mut device: &File) -> io::Result<usize> {
        for b in self.blocks.drain(..) {
            // Those that were kept by somebody stay theirs.
            if let Ok(mut b) = Arc::try_unwrap(b) {
                b.clear();
                self.spare.push(b);
            }
        }
        if self.large && self.most > 0 {
            return self.read_to_blocks(device);
        }
        self.len = 0;
        let n = device.read(&mut self.pages.all()[self.start..])?;
        self.len = n;
        self.large = n >= LARGE && self.is_write();
        Ok(n)
    }

    fn read_to_blocks(&mut self, device: &File) -> io::Result<usize> {
        self.spare
            .resize_with(self.most, || Vec::with_capacity(BLOCK));
        self.len = 0;
        let end = self.start + HEAD;
        let head = &mut self.pages.all()[self.start..end];
        let n = sys::read_scattered(device, head, &mut self.spare, BLOCK)?;
        self.len = n.min(HEAD);
        let used = n.saturating_sub(HEAD).div_ceil(BLOCK);
        if self.is_write() {
            self.blocks.extend(self.spare.drain(..used).map(Arc::new));
        } else {
            let mut at = end;
            for b in &self.spare[..used] {
                self.pages.all()[at..at + b.len()].copy_from_slice(b);
                at += b.len();
            }
            self.len = n;
        }
        self.large = n >= LARGE && self.is_write();
        if !self.large {
            self.spare = Vec::new();
        }
        Ok(n)
    }

    fn is_write(&self) -> bool {
        let head = abi::InHeader::read_from_prefix(self.bytes());
        head.is_ok_and(|(h, _)| h.opcode == op::WRITE)
    }

    /// The request but for the data that are in blocks.
    pub fn bytes(&self) -> &[u8] {
        self.pages.bytes(self.start, self.len)
    }

    /// The request; `None`: it has no head.
    pub fn message(&self) -> Option<Message<'_>> {
        let m = Message::read(self.bytes())?;
        Some(Message {
            blocks: &self.blocks,
            ..m
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{socketpair, AddressFamily, SocketFlags, SocketType};
    use std::io::Write;
    use zerocopy::IntoBytes;

    /// A device whose requests are messages of a socket.
    fn device() -> (File, File) {
        let (a, b) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::empty(),
            None,
        )
        .unwrap();
        for s in [&a, &b] {
            rustix::net::sockopt::set_socket_send_buffer_size(s, 4 << 20).unwrap();
        }
        (File::from(a), File::from(b))
    }

    fn request(opcode: u32, data: usize, seed: u8) -> Vec<u8> {
        let head = abi::InHeader {
            opcode,
            len: (HEAD + data) as u32,
            ..Default::default()
        };
        let mut m = head.as_bytes().to_vec();
        m.resize(HEAD, 9);
        m.extend((0..data).map(|i| (i / 1000) as u8 ^ seed));
        m
    }

    /// All bytes of the request that was read, and in how many blocks they came.
    fn got(i: &RequestBuffer) -> (Vec<u8>, usize) {
        let m = i.message().unwrap();
        let mut all = i.bytes().to_vec();
        m.blocks.iter().for_each(|b| all.extend_from_slice(b));
        (all, m.blocks.len())
    }

    #[test]
    fn large_writes_after_one_another_come_in_blocks() {
        let (mut kernel, dev) = device();
        let mut i = RequestBuffer::new(512 << 10).unwrap();
        // Data, and how many blocks it comes in.
        let each = [
            (op::WRITE, 512 << 10, 0),
            (op::WRITE, 512 << 10, 4),
            (op::WRITE, (300 << 10) + 7, 3),
            (op::WRITE, 256 << 10, 2),
            // Not known before it is read.
            (op::SETXATTR, 60_000, 0),
            (op::WRITE, 512 << 10, 0),
            (op::WRITE, 100, 1),
            (op::WRITE, 512 << 10, 0),
            (op::GETATTR, 0, 0),
            (op::WRITE, 0, 0),
        ];
        for (n, (opcode, len, blocks)) in each.into_iter().enumerate() {
            let sent = request(opcode, len, n as u8);
            assert_eq!(kernel.write(&sent).unwrap(), sent.len());
            assert_eq!(i.read(&dev).unwrap(), sent.len());
            let (all, in_blocks) = got(&i);
            assert!(all == sent, "request {n}");
            assert_eq!(in_blocks, blocks, "request {n}");
            assert_eq!(i.message().unwrap().head.opcode, opcode);
        }
    }

    /// The kernel fills what it is offered, whatever the largest write is.
    #[test]
    fn many_forgets_after_a_large_write() {
        let (mut kernel, dev) = device();
        let mut i = RequestBuffer::new(400 << 10).unwrap();
        let forgets = 512 << 10;
        for (n, (opcode, len)) in [(op::WRITE, 400 << 10), (op::BATCH_FORGET, forgets)]
            .into_iter()
            .enumerate()
        {
            let sent = request(opcode, len, n as u8);
            kernel.write_all(&sent).unwrap();
            assert_eq!(i.read(&dev).unwrap(), sent.len());
            assert!(got(&i) == (sent, 0));
        }
    }

    #[test]
    fn kept_blocks_stay_as_they_are_and_others_are_used_again() {
        let (mut kernel, dev) = device();
        let mut i = RequestBuffer::new(512 << 10).unwrap();
        let mut kept = Vec::new();
        for n in 0..6 {
            let sent = request(op::WRITE, 512 << 10, n);
            kernel.write_all(&sent).unwrap();
            i.read(&dev).unwrap();
            if let Some(b) = i.message().unwrap().blocks.get(1) {
                kept.push((b.clone(), sent[HEAD + BLOCK..HEAD + 2 * BLOCK].to_vec()));
            }
        }
        assert_eq!(kept.len(), 5);
        assert!(kept.iter().all(|(b, as_sent)| **b == *as_sent));
        // The end of it.
        drop(kernel);
        assert_eq!(i.read(&dev).unwrap(), 0);
        assert!(i.message().is_none());
    }

    #[test]
    fn writes_larger_than_any_number_of_blocks_come_in_one_piece() {
        let (mut kernel, dev) = device();
        let mut i = RequestBuffer::new(9 << 20).unwrap();
        for n in 0..3 {
            let sent = request(op::WRITE, 512 << 10, n);
            kernel.write_all(&sent).unwrap();
            i.read(&dev).unwrap();
            assert!(got(&i) == (sent, 0));
        }
    }
}
