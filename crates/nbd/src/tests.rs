//! A client of a few lines against an export in memory.

use crate::numbers::*;
use crate::{serve, Export, Exports, Extent, Options};
use base::sync::MutexExt;
use base::{Error, Kind, Result};
use std::io::{Cursor, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

const BLOCK: u64 = 4096;

/// Blocks of zeros are holes.
struct Memory {
    bytes: Mutex<Vec<u8>>,
    read_only: bool,
    flushed: AtomicU32,
    /// Reads from here on fail.
    bad: u64,
}

impl Export for Memory {
    fn size(&self) -> u64 {
        self.bytes.acquire().len() as u64
    }
    fn block_size(&self) -> u32 {
        BLOCK as u32
    }
    fn is_read_only(&self) -> bool {
        self.read_only
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        assert!(buf.len() <= CHUNK);
        if offset + buf.len() as u64 > self.bad {
            return Err(Error::new(Kind::Io, "a bad sector"));
        }
        let at = offset as usize;
        buf.copy_from_slice(&self.bytes.acquire()[at..at + buf.len()]);
        Ok(())
    }
    fn write(&self, offset: u64, data: &[u8], fua: bool) -> Result<()> {
        assert!(data.len() <= CHUNK);
        let at = offset as usize;
        self.bytes.acquire()[at..at + data.len()].copy_from_slice(data);
        if fua {
            self.flush()?;
        }
        Ok(())
    }
    fn flush(&self) -> Result<()> {
        self.flushed.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
    fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        self.zero(offset, len, fua)
    }
    fn zero(&self, offset: u64, len: u64, _fua: bool) -> Result<()> {
        self.bytes.acquire()[offset as usize..(offset + len) as usize].fill(0);
        Ok(())
    }
    fn extent(&self, offset: u64) -> Result<Extent> {
        let bytes = self.bytes.acquire();
        let data = |block: u64| {
            let at = (block * BLOCK) as usize;
            bytes[at..at + BLOCK as usize].iter().any(|b| *b != 0)
        };
        let first = offset / BLOCK;
        let last = bytes.len() as u64 / BLOCK;
        let is = data(first);
        let end = (first + 1..last).find(|b| data(*b) != is).unwrap_or(last);
        Ok(Extent {
            end: end * BLOCK,
            data: is,
        })
    }
    fn cache(&self, _offset: u64, _len: u64) {}
}

struct Shelf(Vec<(&'static str, Arc<Memory>)>);

impl Exports for Shelf {
    fn names(&self) -> Result<Vec<String>> {
        Ok(self.0.iter().map(|(n, _)| n.to_string()).collect())
    }
    fn open(&self, name: &str) -> Result<Arc<dyn Export>> {
        if name == "locked" {
            return Err(Error::new(Kind::Access, "encryption key not loaded"));
        }
        match self.0.iter().find(|(n, _)| *n == name) {
            Some((_, m)) => Ok(m.clone()),
            None => Err(Error::new(Kind::NotFound, "there is no such export")),
        }
    }
}

fn memory(blocks: u64) -> Arc<Memory> {
    Arc::new(Memory {
        bytes: Mutex::new(vec![0; (blocks * BLOCK) as usize]),
        read_only: false,
        flushed: AtomicU32::new(0),
        bad: u64::MAX,
    })
}

/// The other end.
struct Client(UnixStream);

impl Client {
    fn say(&mut self, parts: &[&[u8]]) {
        self.0.write_all(&parts.concat()).unwrap();
    }
    fn u16(&mut self) -> u16 {
        u16_from(&mut self.0).unwrap()
    }
    fn u32(&mut self) -> u32 {
        u32_from(&mut self.0).unwrap()
    }
    fn u64(&mut self) -> u64 {
        u64_from(&mut self.0).unwrap()
    }
    fn take(&mut self, n: usize) -> Vec<u8> {
        let mut b = vec![0; n];
        self.0.read_exact(&mut b).unwrap();
        b
    }
    fn option(&mut self, number: u32, data: &[u8]) {
        self.say(&[
            &IHAVEOPT.to_be_bytes(),
            &number.to_be_bytes(),
            &(data.len() as u32).to_be_bytes(),
            data,
        ]);
    }
    /// Kind and data of a reply to an option.
    fn reply(&mut self, number: u32) -> (u32, Vec<u8>) {
        assert_eq!(self.u64(), REPLY_OPTION);
        assert_eq!(self.u32(), number);
        let kind = self.u32();
        let len = self.u32() as usize;
        (kind, self.take(len))
    }
    fn hello(&mut self, flags: u32) {
        assert_eq!(self.u64(), NBDMAGIC);
        assert_eq!(self.u64(), IHAVEOPT);
        assert_eq!(self.u16(), 3);
        self.say(&[&flags.to_be_bytes()]);
    }
    /// Size and flags of the export.
    fn go(&mut self, name: &str, structured: bool, status: bool) -> (u64, u16) {
        self.hello(3);
        if structured {
            self.option(option::STRUCTURED_REPLY, &[]);
            assert_eq!(self.reply(option::STRUCTURED_REPLY).0, reply::ACK);
        }
        if status {
            self.option(option::SET_META_CONTEXT, &query(name, &[ALLOCATION]));
            let (kind, data) = self.reply(option::SET_META_CONTEXT);
            assert_eq!(
                (kind, &data[4..]),
                (reply::META_CONTEXT, ALLOCATION.as_bytes())
            );
            assert_eq!(self.reply(option::SET_META_CONTEXT).0, reply::ACK);
        }
        self.option(option::GO, &wish(name));
        let mut found = (0, 0);
        loop {
            let (kind, data) = self.reply(option::GO);
            match kind {
                reply::ACK => return found,
                reply::INFO if data[..2] == [0, 0] => {
                    let mut rest = &data[2..];
                    found = (u64_from(&mut rest).unwrap(), u16_from(&mut rest).unwrap());
                }
                reply::INFO => {}
                e => panic!("{e:#x} {}", String::from_utf8_lossy(&data)),
            }
        }
    }
    fn request(&mut self, flags: u16, command: u16, cookie: u64, offset: u64, len: u32) {
        self.say(&[
            &REQUEST.to_be_bytes(),
            &flags.to_be_bytes(),
            &command.to_be_bytes(),
            &cookie.to_be_bytes(),
            &offset.to_be_bytes(),
            &len.to_be_bytes(),
        ]);
    }
    /// Error of a simple reply.
    fn simple(&mut self, cookie: u64) -> u32 {
        assert_eq!(self.u32(), REPLY_SIMPLE);
        let e = self.u32();
        assert_eq!(self.u64(), cookie);
        e
    }
    /// Flags, kind and data of a part.
    fn part(&mut self, cookie: u64) -> (u16, u16, Vec<u8>) {
        assert_eq!(self.u32(), REPLY_PART);
        let (flags, kind) = (self.u16(), self.u16());
        assert_eq!(self.u64(), cookie);
        let len = self.u32() as usize;
        (flags, kind, self.take(len))
    }
}

fn query(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut out = (name.len() as u32).to_be_bytes().to_vec();
    out.extend(name.as_bytes());
    out.extend((queries.len() as u32).to_be_bytes());
    for q in queries {
        out.extend((q.len() as u32).to_be_bytes());
        out.extend(q.as_bytes());
    }
    out
}

fn wish(name: &str) -> Vec<u8> {
    let mut out = (name.len() as u32).to_be_bytes().to_vec();
    out.extend(name.as_bytes());
    out.extend([0, 1, 0, info::BLOCK_SIZE as u8]);
    out
}

/// A served client, and how its connection ended.
fn with(shelf: Shelf, work: impl FnOnce(&mut Client)) -> Result<()> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        let server = scope.spawn(move || {
            let end = || drop(ours.shutdown(std::net::Shutdown::Both));
            let options = Options {
                threads: 3,
                chosen: &|| {},
                tls: None,
                hang_up: &end,
            };
            let r = serve(&ours, &ours, &shelf, &options);
            end();
            r
        });
        let mut client = Client(theirs);
        work(&mut client);
        drop(client);
        server.join().unwrap()
    })
}

#[test]
fn what_is_written_is_read() {
    let m = memory(1024);
    let shelf = Shelf(vec![("tank/v", m.clone())]);
    with(shelf, |c| {
        let (size, flags) = c.go("tank/v", false, false);
        assert_eq!(size, 4 << 20);
        assert!(flags & export::SEND_FUA != 0 && flags & export::READ_ONLY == 0);
        assert_eq!(flags & export::SEND_DF, 0);
        // Across a boundary of chunks, with more than one chunk.
        let data: Vec<u8> = (0..2_500_000u32).map(|n| (n % 251) as u8).collect();
        c.request(flag::FUA, command::WRITE, 7, 1_000_000, data.len() as u32);
        c.say(&[&data]);
        assert_eq!(c.simple(7), 0);
        assert!(m.flushed.load(Ordering::SeqCst) > 0);
        c.request(0, command::READ, 8, 1_000_000, data.len() as u32);
        assert_eq!(c.simple(8), 0);
        assert!(c.take(data.len()) == data);
        c.request(0, command::FLUSH, 9, 0, 0);
        assert_eq!(c.simple(9), 0);
        c.request(0, command::WRITE_ZEROES, 10, 1_000_000, 5);
        assert_eq!(c.simple(10), 0);
        c.request(0, command::READ, 11, 999_999, 8);
        assert_eq!(c.simple(11), 0);
        assert_eq!(c.take(8), [0, 0, 0, 0, 0, 0, 5, 6]);
        c.request(0, command::DISC, 12, 0, 0);
    })
    .unwrap();
}

#[test]
fn holes_are_told_and_not_sent() {
    let m = memory(1024);
    m.bytes.acquire()[8192..8200].fill(1);
    with(Shelf(vec![("v", m)]), |c| {
        c.go("v", true, true);
        c.request(0, command::BLOCK_STATUS, 1, 0, 4 << 20);
        let (flags, kind, data) = c.part(1);
        assert_eq!((flags, kind), (part::DONE, part::BLOCK_STATUS));
        let words: Vec<u32> = data
            .chunks(4)
            .map(|c| u32::from_be_bytes(c.try_into().unwrap()))
            .collect();
        assert_eq!(words, [1, 8192, 3, 4096, 0, (4 << 20) - 12288, 3]);
        c.request(flag::REQ_ONE, command::BLOCK_STATUS, 2, 100, 20_000);
        assert_eq!(c.part(2).2[4..], [0, 0, 31, 156, 0, 0, 0, 3]);
        c.request(0, command::READ, 3, 0, 4 << 20);
        let (flags, kind, data) = c.part(3);
        assert_eq!((flags, kind), (0, part::OFFSET_HOLE));
        assert_eq!(data, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0]);
        let (_, kind, data) = c.part(3);
        assert_eq!((kind, data.len()), (part::OFFSET_DATA, 8 + 4096));
        assert_eq!(data[..9], [0, 0, 0, 0, 0, 0, 32, 0, 1]);
        assert_eq!(c.part(3).0, part::DONE);
        c.request(flag::DF, command::READ, 4, 8000, 400);
        let (flags, kind, data) = c.part(4);
        assert_eq!(
            (flags, kind, data.len()),
            (part::DONE, part::OFFSET_DATA, 408)
        );
    })
    .unwrap();
}

#[test]
fn a_part_that_cannot_be_read_is_an_error() {
    let mut m = memory(1024);
    Arc::get_mut(&mut m).unwrap().bad = 2 << 20;
    m.bytes.acquire().fill(1);
    with(Shelf(vec![("v", m.clone())]), |c| {
        c.go("v", true, false);
        c.request(0, command::READ, 1, 0, 4 << 20);
        assert_eq!(c.part(1).1, part::OFFSET_DATA);
        assert_eq!(c.part(1).1, part::OFFSET_DATA);
        let (flags, kind, data) = c.part(1);
        assert_eq!((flags, kind), (part::DONE, part::ERROR));
        assert_eq!(data[..4], error::EIO.to_be_bytes());
        assert!(String::from_utf8_lossy(&data[6..]).contains("a bad sector"));
        // The connection goes on.
        c.request(0, command::READ, 2, 0, 512);
        assert_eq!(c.part(2).2.len(), 8 + 512);
    })
    .unwrap();
    // Without parts the reply has begun: the connection ends.
    let ended = with(Shelf(vec![("v", m)]), |c| {
        c.go("v", false, false);
        c.request(0, command::READ, 1, 0, 4 << 20);
        let mut all = Vec::new();
        c.0.read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), 16 + (2 << 20));
    });
    assert_eq!(ended.unwrap_err().kind, Kind::Io);
}

#[test]
fn refusals_change_nothing() {
    let m = memory(4);
    let read_only = Arc::new(Memory {
        bytes: Mutex::new(vec![1; 4096]),
        read_only: true,
        flushed: AtomicU32::new(0),
        bad: u64::MAX,
    });
    let shelf = Shelf(vec![("v", m.clone()), ("v@s", read_only)]);
    with(shelf, |c| {
        let (_, flags) = c.go("v@s", false, false);
        assert!(flags & export::READ_ONLY != 0 && flags & export::SEND_TRIM == 0);
        for command in [command::WRITE, command::TRIM, command::WRITE_ZEROES] {
            c.request(0, command, 5, 0, 16);
            if command == command::WRITE {
                c.say(&[&[9; 16]]);
            }
            assert_eq!(c.simple(5), error::EPERM);
        }
        c.request(0, command::READ, 6, 4000, 200);
        assert_eq!(c.simple(6), error::EINVAL);
        c.request(0, command::READ, 7, u64::MAX, 200);
        assert_eq!(c.simple(7), error::EINVAL);
        c.request(0, command::READ, 7, 0, u32::MAX);
        assert_eq!(c.simple(7), error::EOVERFLOW);
        c.request(0, 99, 8, 0, 0);
        assert_eq!(c.simple(8), error::EINVAL);
        c.request(1 << 9, command::FLUSH, 9, 0, 0);
        assert_eq!(c.simple(9), error::EINVAL);
        c.request(0, command::BLOCK_STATUS, 10, 0, 512);
        assert_eq!(c.simple(10), error::EINVAL);
    })
    .unwrap();
    with(Shelf(vec![("v", m.clone())]), |c| {
        c.go("v", false, false);
        c.request(0, command::WRITE, 1, 16_000, 1000);
        c.say(&[&[9; 1000]]);
        assert_eq!(c.simple(1), error::ENOSPC);
        assert!(m.bytes.acquire().iter().all(|b| *b == 0));
        c.request(0, command::WRITE, 1, 0, MAX_REQUEST + 1);
        assert_eq!(c.0.read(&mut [0; 1]).unwrap_or(0), 0, "it hangs up");
    })
    .unwrap_err();
}

#[test]
fn options() {
    let shelf = || Shelf(vec![("a", memory(1)), ("b@s", memory(1))]);
    with(shelf(), |c| {
        c.hello(3);
        c.option(option::LIST, &[]);
        assert_eq!(
            c.reply(option::LIST),
            (reply::SERVER, b"\0\0\0\x01a".to_vec())
        );
        assert_eq!(c.reply(option::LIST).1, b"\0\0\0\x03b@s");
        assert_eq!(c.reply(option::LIST).0, reply::ACK);
        c.option(option::LIST, b"x");
        assert_eq!(c.reply(option::LIST).0, reply::ERR_INVALID);
        c.option(11, &[]);
        assert_eq!(c.reply(11).0, reply::ERR_UNSUP);
        c.option(77, &vec![0; 100_000]);
        assert_eq!(c.reply(77).0, reply::ERR_TOO_BIG);
        c.option(option::SET_META_CONTEXT, &query("a", &[ALLOCATION]));
        assert_eq!(c.reply(option::SET_META_CONTEXT).0, reply::ERR_INVALID);
        c.option(option::LIST_META_CONTEXT, &query("a", &["base:"]));
        assert_eq!(c.reply(option::LIST_META_CONTEXT).0, reply::META_CONTEXT);
        assert_eq!(c.reply(option::LIST_META_CONTEXT).0, reply::ACK);
        for wrong in [
            &[0, 0, 0, 9, b'a'][..],
            &[0, 0, 0, 1, b'a', 0, 2, 0, 0],
            &[],
        ] {
            c.option(option::INFO, wrong);
            assert_eq!(c.reply(option::INFO).0, reply::ERR_INVALID);
        }
        c.option(option::INFO, &wish("none"));
        assert_eq!(c.reply(option::INFO).0, reply::ERR_UNKNOWN);
        c.option(option::GO, &wish("locked"));
        let (kind, words) = c.reply(option::GO);
        assert_eq!(
            (kind, &words[..]),
            (reply::ERR_POLICY, &b"encryption key not loaded"[..])
        );
        c.option(option::INFO, &wish("a"));
        assert_eq!(c.reply(option::INFO).1[2..10], 4096u64.to_be_bytes());
        assert_eq!(c.reply(option::INFO).1[..2], info::BLOCK_SIZE.to_be_bytes());
        assert_eq!(c.reply(option::INFO).0, reply::ACK);
        c.option(option::ABORT, &[]);
        assert_eq!(c.reply(option::ABORT).0, reply::ACK);
    })
    .unwrap();
    // The oldest way, with 124 zeros.
    with(shelf(), |c| {
        c.hello(1);
        c.option(option::EXPORT_NAME, b"a");
        assert_eq!(c.u64(), 4096);
        c.u16();
        assert_eq!(c.take(124), [0; 124]);
        c.request(0, command::READ, 1, 0, 4);
        assert_eq!(c.simple(1), 0);
        c.take(4);
    })
    .unwrap();
    with(shelf(), |c| {
        c.hello(1);
        c.option(option::EXPORT_NAME, b"none");
        assert_eq!(c.0.read(&mut [0; 1]).unwrap_or(0), 0);
    })
    .unwrap_err();
}

/// Bytes of any kind end the connection, or are answered: no panic, and no end that does not come.
#[test]
fn any_bytes() {
    let mut seed = 88172645463325252u64;
    let mut draw = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for round in 0..3000u64 {
        let mut input = 3u32.to_be_bytes().to_vec();
        for _ in 0..draw() % 5 {
            input.extend(IHAVEOPT.to_be_bytes());
            input.extend(((draw() % 12) as u32).to_be_bytes());
            let data = match draw() % 4 {
                0 => wish("v"),
                1 => query("v", &[ALLOCATION, "base:"]),
                2 => b"v".to_vec(),
                _ => (0..draw() % 40).map(|_| draw() as u8).collect(),
            };
            input.extend((data.len() as u32).to_be_bytes());
            input.extend(data);
        }
        for _ in 0..draw() % 6 {
            input.extend(REQUEST.to_be_bytes());
            input.extend(((draw() % 32) as u16).to_be_bytes());
            input.extend(((draw() % 9) as u16).to_be_bytes());
            input.extend(draw().to_be_bytes());
            input.extend((draw() % 70_000).to_be_bytes());
            input.extend(((draw() % 70_000) as u32).to_be_bytes());
        }
        if round % 3 == 0 {
            let at = (draw() % input.len() as u64) as usize;
            input[at] ^= 1 << (draw() % 8);
        }
        input.resize(input.len() + (draw() % 3 * 40_000) as usize, 7);
        let options = Options {
            threads: 1,
            chosen: &|| {},
            tls: None,
            hang_up: &|| {},
        };
        let _ = serve(
            Cursor::new(input),
            std::io::sink(),
            &Shelf(vec![("v", memory(16))]),
            &options,
        );
    }
}

/// The data of a write that is refused are passed over, whatever its offset: what follows is a request again.
#[test]
fn a_write_beyond_all_offsets_leaves_the_stream_in_order() {
    let shelf = Shelf(vec![("v", memory(16))]);
    with(shelf, |c| {
        c.go("v", false, false);
        let data = vec![0x25; 2 * CHUNK + 5];
        c.request(0, command::WRITE, 1, u64::MAX - 9, data.len() as u32);
        c.say(&[&data]);
        assert_ne!(c.simple(1), 0);
        c.request(0, command::READ, 2, 0, 512);
        assert_eq!(c.simple(2), 0);
        assert_eq!(c.take(512), [0; 512]);
        c.request(0, command::DISC, 3, 0, 0);
    })
    .unwrap();
}
