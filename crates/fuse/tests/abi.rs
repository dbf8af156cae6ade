//! The bytes on the wire, with a socket in the place of the device: no mount, no privileges.

mod common;

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;

use common::memfs::MemFs;
use fuse::abi::{init, op, InHeader, InitIn, InitOut, OutHeader};
use fuse::*;
use rustix::net::{socketpair, AddressFamily, SocketFlags, SocketType};
use zerocopy::{FromBytes, IntoBytes};

/// The kernel's end.
struct Kernel {
    socket: Option<UnixStream>,
    run: Option<JoinHandle<base::Result<End>>>,
    handle: Handle,
    unique: u64,
}

impl Kernel {
    fn new(config: Config) -> Kernel {
        let (a, b): (OwnedFd, OwnedFd) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let session = Session::new(Arc::new(MemFs::new()), b, config);
        let handle = session.handle();
        let socket = UnixStream::from(a);
        socket
            .set_read_timeout(Some(std::time::Duration::from_secs(20)))
            .unwrap();
        Kernel {
            socket: Some(socket),
            run: Some(std::thread::spawn(move || session.run())),
            handle,
            unique: 0,
        }
    }

    fn send(&mut self, opcode: u32, nodeid: u64, body: &[u8]) {
        self.unique += 2;
        let h = InHeader {
            len: (40 + body.len()) as u32,
            opcode,
            unique: self.unique,
            nodeid,
            ..InHeader::default()
        };
        let msg = [h.as_bytes(), body].concat();
        self.socket.as_ref().unwrap().write_all(&msg).unwrap();
    }

    fn receive(&mut self) -> (i32, Vec<u8>) {
        let mut buf = vec![0; 300_000];
        let n = self.socket.as_ref().unwrap().read(&mut buf).unwrap();
        let (h, _) = OutHeader::read_from_prefix(&buf[..n]).unwrap();
        assert_eq!((h.len as usize, h.unique), (n, self.unique));
        (h.error, buf[16..n].to_vec())
    }

    fn ask(&mut self, opcode: u32, nodeid: u64, body: &[u8]) -> (i32, Vec<u8>) {
        self.send(opcode, nodeid, body);
        self.receive()
    }

    fn init(&mut self, major: u32, minor: u32, flags: u64) -> (i32, Vec<u8>) {
        let i = InitIn {
            major,
            minor,
            max_readahead: 1 << 17,
            flags: flags as u32,
        };
        let mut body = i.as_bytes().to_vec();
        if flags & init::INIT_EXT != 0 {
            body.extend(((flags >> 32) as u32).to_ne_bytes());
            body.extend([0; 44]);
        }
        self.ask(op::INIT, 0, &body)
    }

    fn end(&mut self) -> base::Result<End> {
        self.socket = None;
        self.run.take().unwrap().join().unwrap()
    }
}

#[test]
fn negotiation() {
    let mut k = Kernel::new(common::config());
    let (e, b) = k.init(7, 45, u64::MAX);
    assert_eq!((e, b.len()), (0, 64));
    let (o, _) = InitOut::read_from_prefix(&b).unwrap();
    // The kernel takes the least of this and what the mount is set to.
    assert_eq!((o.major, o.minor, o.max_readahead), (7, 45, 2 << 20));
    let flags = o.flags as u64 | (o.flags2 as u64) << 32;
    let n = loop {
        if let Some(n) = k.handle.negotiated() {
            break n;
        }
    };
    assert_eq!(n.flags, flags);
    for off in [
        init::POSIX_LOCKS,
        init::FLOCK_LOCKS,
        init::AUTO_INVAL_DATA,
        init::NO_OPEN_SUPPORT,
        init::HANDLE_KILLPRIV,
        init::PASSTHROUGH,
        init::OVER_IO_URING,
        1 << 31,
        1 << 63,
    ] {
        assert_eq!(flags & off, 0, "{off:#x}");
    }
    assert_eq!(o.max_pages as u32 * 4096, o.max_write);
    assert_eq!(k.end().unwrap(), End::Unmounted);
}

#[test]
fn an_older_kernel() {
    let mut k = Kernel::new(common::config());
    let old = init::ASYNC_READ | init::BIG_WRITES | init::MAX_PAGES;
    let (e, b) = k.init(7, 31, old);
    assert_eq!(e, 0);
    let (o, _) = InitOut::read_from_prefix(&b).unwrap();
    assert_eq!((o.flags as u64, o.flags2), (old, 0));
    // SETXATTR has its old form.
    let body = [&3u32.to_ne_bytes()[..], &[0; 4], b"user.a\0", b"xyz"].concat();
    assert_eq!(k.ask(op::SETXATTR, ROOT, &body), (0, vec![]));
    let get = [&10u32.to_ne_bytes()[..], &[0; 4], b"user.a\0"].concat();
    assert_eq!(k.ask(op::GETXATTR, ROOT, &get), (0, b"xyz".to_vec()));
    k.end().unwrap();
}

#[test]
fn refused_versions() {
    for (major, minor) in [(6, 45), (7, 27), (7, 8)] {
        let mut k = Kernel::new(common::config());
        assert_eq!(k.init(major, minor, 0).0, -libc::EPROTO);
        assert_eq!(k.end().unwrap_err().kind, base::Kind::Unsupported);
    }
    // A newer major version asks again.
    let mut k = Kernel::new(common::config());
    let (e, b) = k.init(8, 0, 0);
    assert_eq!((e, &b[..4]), (0, &7u32.to_ne_bytes()[..]));
    assert_eq!(k.init(7, 45, 0).0, 0);
    k.end().unwrap();
}

#[test]
fn anything_before_init_is_refused() {
    let mut k = Kernel::new(common::config());
    assert_eq!(k.ask(op::LOOKUP, ROOT, b"a\0").0, -libc::EIO);
    assert_eq!(k.init(7, 45, 0).0, 0);
    let (e, b) = k.ask(op::LOOKUP, ROOT, b"a\0");
    assert_eq!((e, b.len()), (0, 128)); // a negative entry
    assert_eq!(k.end().unwrap(), End::Unmounted);
}

#[test]
fn short_and_strange_messages() {
    let mut k = Kernel::new(common::config());
    k.init(7, 45, u64::MAX);
    let mut seed = 7u64;
    for round in 0..2000u64 {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(round);
        let opcode = (seed >> 33) as u32 % 60;
        let len = (seed >> 40) as usize % 120;
        if matches!(
            opcode,
            op::FORGET | op::BATCH_FORGET | op::INTERRUPT | op::NOTIFY_REPLY
        ) {
            continue; // no answer, unless malformed
        }
        // Node 0 is nobody's, so that nothing large is made.
        let body: Vec<u8> = (0..len)
            .map(|i| (seed >> (i % 57)) as u8 & if i % 3 == 0 { 0xff } else { 0 })
            .collect();
        let (e, b) = k.ask(opcode, 0, &body);
        assert!(
            (-511..=0).contains(&e) && (e == 0 || b.is_empty()),
            "{opcode}"
        );
    }
    // Forgetting more than is there, a count that lies.
    k.send(op::BATCH_FORGET, 0, &[255; 8]);
    // Nothing of it kept the session from serving.
    assert_eq!(k.ask(op::LOOKUP, ROOT, b"a\0").0, 0);
    assert_eq!(k.ask(99_999, ROOT, b"").0, -libc::ENOSYS);
    assert_eq!(k.ask(op::LOOKUP, ROOT, b"no end").0, -libc::EIO);
    assert_eq!(k.end().unwrap(), End::Unmounted);
}

#[test]
fn copies_with_the_narrow_and_the_wide_answer() {
    let mut k = Kernel::new(common::config());
    k.init(7, 45, u64::MAX);
    let create = [
        &(libc::O_RDWR as u32).to_ne_bytes()[..],
        &(libc::S_IFREG | 0o644).to_ne_bytes(),
        &[0; 8],
        b"f\0",
    ]
    .concat();
    let (e, b) = k.ask(op::CREATE, ROOT, &create);
    assert_eq!((e, b.len()), (0, 128 + 16));
    let node = u64::from_ne_bytes(b[..8].try_into().unwrap());
    let write = abi::WriteIn {
        size: 5,
        ..Default::default()
    };
    let body = [write.as_bytes(), b"12345"].concat();
    let (e, b) = k.ask(op::WRITE, node, &body);
    assert_eq!((e, &b[..4]), (0, &5u32.to_ne_bytes()[..]));
    let copy = abi::CopyFileRangeIn {
        nodeid_out: node,
        off_out: 5,
        len: 1 << 40,
        ..Default::default()
    };
    let (e, b) = k.ask(op::COPY_FILE_RANGE_64, node, copy.as_bytes());
    assert_eq!((e, b), (0, 5u64.to_ne_bytes().to_vec()));
    let (e, b) = k.ask(op::COPY_FILE_RANGE, node, copy.as_bytes());
    assert_eq!((e, b), (0, 10u64.to_ne_bytes().to_vec())); // 32 bits and padding
    let read = abi::ReadIn {
        fh: node,
        size: 100,
        ..Default::default()
    };
    let (e, b) = k.ask(op::READ, node, read.as_bytes());
    assert_eq!((e, &b[..]), (0, &b"123451234512345"[..]));
    k.end().unwrap();
}
