//! The command's end of a stream: bytes between the daemon's socket and a file of the command.
//!
//! 1. The daemon never sees the file. A file that does not answer stops the command alone.
//! 2. Of an input no byte behind the end of a stream is taken: the next command reads the next stream.
//! 3. Where the kernel can it moves pages (`splice`), so that each byte is copied once on each side.
//!
//! Start at [`Carrier`].

use api::{ApiError, Reply};
use base::sync::MutexExt;
use disk::stream::{is_swapped, HeaderType, Record, RECORD};
use rustix::event::{poll, PollFd, PollFlags};
use rustix::fs::{FileType, RawMode};
use rustix::io::Errno;
use rustix::pipe::{splice, PipeFlags, SpliceFlags};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Bytes moved at a time, and those a pipe is asked to hold.
const CHUNK: usize = 1 << 20;
/// Payloads from this size on are moved without copying.
const WORTH_MOVING: u64 = 16 << 10;

/// Standard output, as a file of its own.
pub fn stdout() -> io::Result<File> {
    Ok(io::stdout().as_fd().try_clone_to_owned()?.into())
}

/// Standard input, as a file of its own.
pub fn stdin() -> io::Result<File> {
    Ok(io::stdin().as_fd().try_clone_to_owned()?.into())
}

enum Job {
    /// Everything into the file.
    Out(File),
    /// The pieces of a volume into the file.
    Pieces(File),
    /// One stream, or package of streams, from the file.
    In(File),
}

/// Carries a stream beside the thread that talks to the daemon.
pub struct Carrier {
    job: Option<Job>,
    inwards: bool,
    thread: Option<JoinHandle<()>>,
    /// What was wrong with the command's file.
    failed: Arc<Mutex<Option<io::Error>>>,
}

impl Carrier {
    fn new(job: Job) -> Carrier {
        Carrier {
            inwards: matches!(job, Job::In(_)),
            job: Some(job),
            thread: None,
            failed: Arc::default(),
        }
    }

    /// Writes what comes to a file.
    pub fn to(file: File) -> Carrier {
        Carrier::new(Job::Out(file))
    }

    /// Writes the pieces of a volume ([`api::Request::VolumeRead`]) to a file; holes stay holes where that is possible.
    pub fn pieces_to(file: File) -> Carrier {
        Carrier::new(Job::Pieces(file))
    }

    /// Reads a stream from a file.
    pub fn from(file: File) -> Carrier {
        Carrier::new(Job::In(file))
    }

    /// Begins to carry: the daemon has sent the other end.
    pub fn attach(&mut self, end: OwnedFd) {
        let Some(job) = self.job.take() else { return };
        let failed = self.failed.clone();
        let carry = move || {
            let end = UnixStream::from(end);
            let done = match job {
                Job::Out(file) => Mover::new(&end, &file)
                    .and_then(|mut m| m.run(None))
                    .map(drop),
                Job::Pieces(file) => pieces(&end, file),
                Job::In(file) => feed(&file, &end),
            };
            *failed.acquire() = done.err();
        };
        match std::thread::Builder::new().spawn(carry) {
            Ok(thread) => self.thread = Some(thread),
            Err(e) => *self.failed.acquire() = Some(e),
        }
    }

    /// Waits until what came is written, and returns the answer; or what `told` makes of the failure of the command's file, if
    /// the daemon does not know better.
    pub fn end(
        self,
        answer: Result<Reply, ApiError>,
        told: impl FnOnce(io::Error) -> ApiError,
    ) -> Result<Reply, ApiError> {
        if !self.inwards {
            if let Some(thread) = self.thread {
                let _ = thread.join();
            }
        }
        let failed = self.failed.acquire().take();
        match (answer, failed) {
            // The daemon read all that it wanted.
            (Ok(reply), _) if self.inwards => Ok(reply),
            (Err(e), Some(f)) if f.kind() == io::ErrorKind::BrokenPipe => Err(e),
            (_, Some(f)) => Err(told(f)),
            (answer, None) => answer,
        }
    }
}

/// How bytes are moved.
enum Way {
    /// One of the two is a pipe.
    Direct,
    /// Through a pipe: its reading end and its writing end.
    Through(OwnedFd, OwnedFd),
    Copy(Vec<u8>),
}

/// Moves bytes from one file to another.
struct Mover<'a> {
    from: BorrowedFd<'a>,
    to: BorrowedFd<'a>,
    way: Way,
}

impl<'a> Mover<'a> {
    fn new(from: &'a impl AsFd, to: &'a impl AsFd) -> io::Result<Mover<'a>> {
        let (from, to) = (from.as_fd(), to.as_fd());
        let way = if is_pipe(from) || is_pipe(to) {
            Way::Direct
        } else {
            let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
            let _ = rustix::pipe::fcntl_setpipe_size(&writer, CHUNK);
            Way::Through(reader, writer)
        };
        // Fewer changes between the two that use it; more than the system allows is not needed.
        for end in [from, to] {
            if is_pipe(end) {
                let _ = rustix::pipe::fcntl_setpipe_size(end, CHUNK);
            }
        }
        Ok(Mover { from, to, way })
    }

    /// Moves `len` bytes, or everything; returns how many there were.
    fn run(&mut self, len: Option<u64>) -> io::Result<u64> {
        let mut done = 0;
        while len.is_none_or(|len| done < len) {
            let most = len.map_or(CHUNK as u64, |len| (len - done).min(CHUNK as u64));
            match self.step(most as usize)? {
                0 => break,
                n => done += n as u64,
            }
        }
        Ok(done)
    }

    fn step(&mut self, most: usize) -> io::Result<usize> {
        let copied = || Way::Copy(vec![0; CHUNK]);
        match &mut self.way {
            Way::Direct => match moved(self.from, self.to, most) {
                Err(Errno::INVAL) => self.way = copied(),
                r => return Ok(r?),
            },
            Way::Through(reader, writer) => {
                let n = match moved(self.from, writer.as_fd(), most) {
                    Err(Errno::INVAL) => {
                        self.way = copied();
                        return self.step(most);
                    }
                    r => r?,
                };
                let mut left = n;
                while left > 0 {
                    match moved(reader.as_fd(), self.to, left) {
                        // Appended files and terminals.
                        Err(Errno::INVAL) => {
                            let mut rest = vec![0; left];
                            let mut all = 0;
                            while all < left {
                                all += read(reader.as_fd(), &mut rest[all..])?;
                            }
                            write_all(self.to, &rest)?;
                            self.way = copied();
                            return Ok(n);
                        }
                        r => left -= r?,
                    }
                }
                return Ok(n);
            }
            Way::Copy(buf) => {
                let n = read(self.from, &mut buf[..most])?;
                write_all(self.to, &buf[..n])?;
                return Ok(n);
            }
        }
        self.step(most)
    }
}

fn is_pipe(fd: BorrowedFd<'_>) -> bool {
    rustix::pipe::fcntl_getpipe_size(fd).is_ok()
}

/// Waits for both: either may be one that does not wait by itself.
fn wait(from: Option<BorrowedFd<'_>>, to: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
    let sides = [(from, PollFlags::IN), (to, PollFlags::OUT)];
    for (fd, event) in sides {
        let Some(fd) = fd else { continue };
        match poll(&mut [PollFd::from_borrowed_fd(fd, event)], None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn moved(from: BorrowedFd<'_>, to: BorrowedFd<'_>, most: usize) -> Result<usize, Errno> {
    loop {
        match splice(from, None, to, None, most, SpliceFlags::MOVE) {
            Err(Errno::AGAIN) => wait(Some(from), Some(to))?,
            Err(Errno::INTR) => {}
            r => return r,
        }
    }
}

fn read(from: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<usize> {
    loop {
        match rustix::io::read(from, &mut *buf) {
            Err(Errno::AGAIN) => wait(Some(from), None)?,
            Err(Errno::INTR) => {}
            r => return Ok(r?),
        }
    }
}

fn write_all(to: BorrowedFd<'_>, mut rest: &[u8]) -> io::Result<()> {
    while !rest.is_empty() {
        match rustix::io::write(to, rest) {
            Ok(n) => rest = &rest[n..],
            Err(Errno::AGAIN) => wait(None, Some(to))?,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Where in a stream or package of streams the next record is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Start,
    /// Behind the BEGIN of a package.
    Header,
    /// Between the streams of a package.
    Between,
    Stream {
        packed: bool,
    },
    End,
}

/// Finds the end of a stream. It verifies nothing: the daemon does.
struct Shape {
    place: Place,
    swapped: bool,
}

impl Shape {
    /// Bytes behind a record; `None`: this is no stream.
    fn follow(&mut self, header: &[u8; RECORD]) -> Option<u64> {
        if matches!(self.place, Place::Start | Place::Between) {
            match is_swapped(header) {
                Ok(swapped) => self.swapped = swapped,
                // The last END of a package.
                Err(_) if self.place == Place::Between => {}
                Err(_) => return None,
            }
        }
        let record = Record::decode(header, self.swapped).ok()?;
        record.check().ok()?;
        self.place = match (self.place, &record) {
            (Place::Start, Record::Begin(b)) if b.header_type == HeaderType::Compound => {
                Place::Header
            }
            (Place::Start, Record::Begin(_)) => Place::Stream { packed: false },
            (Place::Between, Record::Begin(_)) => Place::Stream { packed: true },
            (Place::Header | Place::Stream { packed: true }, Record::End(_)) => Place::Between,
            (Place::Between | Place::Stream { packed: false }, Record::End(_)) => Place::End,
            (Place::Stream { packed }, _) => Place::Stream { packed },
            _ => return None,
        };
        Some(record.payload())
    }
}

/// One stream, or package of streams, from a file to the daemon. Errors are those of the file: a daemon that does not read on
/// says why.
fn feed(from: &File, to: &UnixStream) -> io::Result<()> {
    let mut shape = Shape {
        place: Place::Start,
        swapped: false,
    };
    let mut mover = Mover::new(from, to)?;
    let mut small = vec![0; WORTH_MOVING as usize + RECORD];
    let mut header = [0; RECORD];
    // Bytes in front of the next header.
    let mut payload = 0;
    loop {
        if payload >= WORTH_MOVING {
            match mover.run(Some(payload)) {
                Ok(n) if n == payload => payload = 0,
                Ok(_) => return Ok(()),
                Err(e) if is_of_socket(&e) => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        let behind = match shape.place {
            Place::End => 0,
            _ => RECORD,
        };
        let want = payload as usize + behind;
        let mut have = 0;
        while have < want {
            let n = read(from.as_fd(), &mut small[have..want])?;
            if n == 0 {
                let _ = write_all(to.as_fd(), &small[..have]);
                return Ok(());
            }
            have += n;
        }
        if write_all(to.as_fd(), &small[..want]).is_err() || behind == 0 {
            return Ok(());
        }
        header.copy_from_slice(&small[payload as usize..want]);
        match shape.follow(&header) {
            Some(n) => payload = n,
            None => {
                // The daemon says what is wrong with it.
                let _ = mover.run(None);
                return Ok(());
            }
        }
        if shape.place == Place::End && payload == 0 {
            return Ok(());
        }
    }
}

/// Whether the daemon has ended the stream.
fn is_of_socket(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::NotConnected
    )
}

/// The pieces of a volume into a file.
fn pieces(mut from: &UnixStream, mut to: File) -> io::Result<()> {
    let meta = rustix::fs::fstat(&to)?;
    let is_file = FileType::from_raw_mode(meta.st_mode as RawMode) == FileType::RegularFile;
    let start = match is_file {
        true => to.stream_position()?,
        false => 0,
    };
    // Zeros may be left out where there is nothing yet. Standard output may be a file in which something is already.
    let sparse = is_file && start >= meta.st_size as u64;
    let zeros = vec![0; if sparse { 0 } else { CHUNK }];
    let (mut at, source) = (start, from);
    let output = to.try_clone()?;
    let mut mover = Mover::new(source, &output)?;
    loop {
        let mut head = [0; 16];
        // Where the daemon ends early it says why.
        if from.read_exact(&mut head).is_err() {
            return Ok(());
        }
        let (hole, len) = head.split_at(8);
        let number = |b: &[u8]| u64::from_le_bytes(b.try_into().unwrap_or_default());
        let (hole, len) = (number(hole), number(len));
        at += hole;
        if sparse {
            to.seek(SeekFrom::Start(at))?;
        } else {
            let mut left = hole;
            while left > 0 {
                let n = left.min(CHUNK as u64);
                write_all(to.as_fd(), &zeros[..n as usize])?;
                left -= n;
            }
        }
        if len == 0 {
            if sparse {
                to.set_len(at)?;
            }
            return to.flush();
        }
        if mover.run(Some(len))? < len {
            return Ok(());
        }
        at += len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use disk::stream::{Begin, End, Write as Data};

    fn file(bytes: &[u8]) -> File {
        let fd = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut f = File::from(fd);
        f.write_all(bytes).unwrap();
        f.seek(SeekFrom::Start(0)).unwrap();
        f
    }

    /// What the daemon gets, and what is left of the input.
    fn fed(mut input: File) -> (Vec<u8>, Vec<u8>) {
        let (here, mut there) = UnixStream::pair().unwrap();
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            there.read_to_end(&mut all).unwrap();
            all
        });
        feed(&input, &here).unwrap();
        drop(here);
        let mut rest = Vec::new();
        input.read_to_end(&mut rest).unwrap();
        (reader.join().unwrap(), rest)
    }

    fn record(r: Record, payload: usize) -> Vec<u8> {
        let mut bytes = r.encode(false).to_vec();
        bytes.extend((0..payload).map(|n| n as u8));
        bytes
    }

    fn data(len: usize) -> Vec<u8> {
        let r = Data {
            object: 2,
            obj_type: 19,
            logical_size: len as u64,
            ..Data::default()
        };
        record(Record::Write(r), len)
    }

    fn begin(header_type: HeaderType, list_len: u32) -> Vec<u8> {
        let b = Begin {
            header_type,
            list_len,
            to_name: b"p/a@s".to_vec(),
            ..Begin::default()
        };
        record(Record::Begin(b), list_len as usize)
    }

    fn end() -> Vec<u8> {
        record(Record::End(End::default()), 0)
    }

    fn stream() -> Vec<u8> {
        let one = [begin(HeaderType::Substream, 40), data(512), data(128 << 10)];
        [one.concat(), data(4096), data(40_000), end()].concat()
    }

    fn through_a_pipe(bytes: Vec<u8>) -> File {
        let (reader, mut writer) = io::pipe().unwrap();
        std::thread::spawn(move || writer.write_all(&bytes).unwrap());
        OwnedFd::from(reader).into()
    }

    #[test]
    fn no_byte_behind_a_stream_or_package_is_taken() {
        let package = [
            begin(HeaderType::Compound, 20_000),
            end(),
            stream(),
            stream(),
            end(),
        ];
        for first in [stream(), package.concat()] {
            let both = [&first[..], b"the next one"].concat();
            for input in [file(&both), through_a_pipe(both)] {
                let (got, rest) = fed(input);
                assert!(got == first, "{} of {} bytes", got.len(), first.len());
                assert_eq!(rest, b"the next one");
            }
        }
    }

    #[test]
    fn what_is_no_stream_or_ends_early_is_passed_on_as_it_is() {
        let whole = stream();
        for len in [
            0,
            1,
            RECORD,
            RECORD + 700,
            whole.len() - RECORD - 1,
            whole.len() - 1,
        ] {
            let part = &whole[..len];
            for input in [file(part), through_a_pipe(part.to_vec())] {
                assert!(fed(input).0 == part, "{len}");
            }
        }
        let noise = vec![b'x'; 3 * CHUNK + 5];
        for input in [file(&noise), through_a_pipe(noise.clone())] {
            assert!(fed(input).0 == noise);
        }
    }

    #[test]
    fn a_daemon_that_ends_the_stream_ends_its_carrier() {
        let (here, there) = UnixStream::pair().unwrap();
        drop(there);
        feed(&file(&stream()), &here).unwrap();
        let (here, there) = UnixStream::pair().unwrap();
        let long: Vec<u8> = std::iter::repeat_n(data(100_000), 50).flatten().collect();
        let all = [begin(HeaderType::Substream, 0), long].concat();
        let carrier = std::thread::spawn(move || feed(&through_a_pipe(all), &here));
        let mut first = [0; 1000];
        (&there).read_exact(&mut first).unwrap();
        drop(there);
        carrier.join().unwrap().unwrap();
    }

    #[test]
    fn everything_is_written_to_files_appended_files_and_pipes() {
        let noise: Vec<u8> = (0..3 * CHUNK + 77).map(|n| (n / 7) as u8).collect();
        let path = std::env::temp_dir().join(format!("zfs-carrier-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let appended = || {
            File::options()
                .append(true)
                .create(true)
                .open(&path)
                .unwrap()
        };
        appended().write_all(b"before").unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        let piped = std::thread::spawn(move || {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).unwrap();
            all
        });
        let plain = file(b"");
        for to in [
            plain.try_clone().unwrap(),
            appended(),
            File::from(OwnedFd::from(writer)),
        ] {
            let (here, mut there) = UnixStream::pair().unwrap();
            let mut carrier = Carrier::to(to);
            carrier.attach(here.into());
            there.write_all(&noise).unwrap();
            drop(there);
            let done = carrier.end(Ok(Reply::Done), |e| panic!("{e}"));
            assert_eq!(done, Ok(Reply::Done));
        }
        assert!(piped.join().unwrap() == noise);
        let mut all = Vec::new();
        let mut plain = plain;
        plain.seek(SeekFrom::Start(0)).unwrap();
        plain.read_to_end(&mut all).unwrap();
        assert!(all == noise);
        let text = std::fs::read(&path).unwrap();
        assert!(text[..6] == *b"before" && text[6..] == noise);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_file_that_cannot_be_written_is_told_unless_the_daemon_knows_better() {
        let run = |answer: Result<Reply, ApiError>, to: File| {
            let (here, mut there) = UnixStream::pair().unwrap();
            let mut carrier = Carrier::to(to);
            carrier.attach(here.into());
            let _ = there.write_all(b"bytes");
            drop(there);
            carrier.end(answer, |e| {
                ApiError::sentence(base::Kind::Io, e.kind().to_string())
            })
        };
        let full = || File::options().write(true).open("/dev/full").unwrap();
        let refused = ApiError::sentence(base::Kind::Busy, "refused");
        for answer in [Ok(Reply::Done), Err(refused.clone())] {
            let e = run(answer, full()).unwrap_err();
            assert!(e.message.contains("no storage space"), "{e:?}");
        }
        let broken = || {
            let (reader, writer) = io::pipe().unwrap();
            drop(reader);
            File::from(OwnedFd::from(writer))
        };
        assert_eq!(run(Err(refused.clone()), broken()), Err(refused));
        assert!(run(Ok(Reply::Done), broken()).is_err());
    }

    #[test]
    fn holes_of_volumes_stay_holes_where_nothing_was() {
        let mut sent = Vec::new();
        for (hole, bytes) in [(0u64, &b"one"[..]), (5, b"two"), (1 << 20, b"")] {
            sent.extend(hole.to_le_bytes());
            sent.extend((bytes.len() as u64).to_le_bytes());
            sent.extend(bytes);
        }
        let want = [&b"one\0\0\0\0\0two"[..], &vec![0; 1 << 20]].concat();
        let old = vec![b'o'; 2 << 20];
        for before in [&b""[..], &old] {
            let mut to = file(before);
            let (here, mut there) = UnixStream::pair().unwrap();
            let mut carrier = Carrier::pieces_to(to.try_clone().unwrap());
            carrier.attach(here.into());
            there.write_all(&sent).unwrap();
            drop(there);
            carrier.end(Ok(Reply::Done), |e| panic!("{e}")).unwrap();
            let mut all = Vec::new();
            to.seek(SeekFrom::Start(0)).unwrap();
            to.read_to_end(&mut all).unwrap();
            assert!(all[..want.len()] == want);
            assert!(all[want.len()..].iter().all(|b| *b == b'o'));
        }
    }
}
