//! What the clients do: each has a connection and a thread, and waits for a reply before it makes the next call.

use crate::child::interrupted;
use crate::data::{Numbers, Supply};
use base::{bail, Error, Kind, Result};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use testkit::nfs::{Answer, Client, Tcp};

/// Clients at a time.
pub const CLIENTS: u64 = 4;
/// Bytes of a read or a write.
const PIECE: usize = 256 << 10;
/// Bytes of a small write, and of a small file.
const SMALL: usize = 4 << 10;
/// Small files of a client.
const FILES: u64 = 500;
/// Bytes of a reply of READDIRPLUS.
const LISTING: u32 = 32 << 10;
/// FILE_SYNC
const STABLE: u32 = 2;

/// Where a server is.
#[derive(Clone, Debug)]
pub struct Place {
    pub nfs: SocketAddr,
    pub mount: SocketAddr,
    /// What is mounted.
    pub path: String,
}

impl Place {
    fn client(at: SocketAddr) -> Result<Client<Tcp>> {
        Ok(Client::new(Tcp::connect(at)?))
    }

    /// The handle of the root.
    pub fn root(&self) -> Result<Vec<u8>> {
        done("MNT", Place::client(self.mount)?.mount(&self.path))
    }
}

fn done<T>(what: &str, answer: Answer<T>) -> Result<T> {
    answer.map_err(|e| Error::new(Kind::Io, format!("{what}: the server says {e}")))
}

/// One client.
struct One {
    number: u64,
    c: Client<Tcp>,
    root: Vec<u8>,
}

impl One {
    /// The file of its data.
    fn data(&mut self) -> Result<Vec<u8>> {
        let name = format!("data{}", self.number);
        Ok(done("LOOKUP", self.c.lookup(&self.root, &name))?.0)
    }

    /// The folder of its small files.
    fn folder(&mut self) -> Result<Vec<u8>> {
        let name = format!("files{}", self.number);
        Ok(done("LOOKUP", self.c.lookup(&self.root, &name))?.0)
    }
}

/// The rows, in their order.
pub struct Load {
    size: u64,
    time: Duration,
    place: Place,
}

impl Load {
    /// `size`: bytes of all data.
    pub fn new(size: u64, seconds: u64, place: Place) -> Load {
        Load {
            size,
            time: Duration::from_secs(seconds),
            place,
        }
    }

    /// Runs a row: megabytes or calls a second.
    ///
    /// # Errors
    /// The server refuses a call, or gives something else than was written.
    pub fn row(&mut self, row: &str) -> Result<f64> {
        match row {
            "write" => self.rate(1e6, |one| self.write(one)),
            "read-cold" | "read" => self.rate(1e6, |one| self.read(one)),
            "write-sync" => self.rate(1.0, |one| self.write_sync(one)),
            "create" => self.rate(1.0, create),
            "list" => self.rate(1.0, |one| self.list(one)),
            "getattr" => self.rate(1.0, |one| self.getattr(one)),
            "lookup-read" => self.rate(1.0, |one| self.lookup_read(one)),
            "remove" => self.rate(1.0, remove),
            _ => bail!(Invalid, "no row {row}"),
        }
    }

    /// What all clients do together in a second, in units of so many.
    fn rate(&self, unit: f64, work: impl Fn(&mut One) -> Result<u64> + Sync) -> Result<f64> {
        let root = self.place.root()?;
        let mut all = Vec::new();
        for number in 0..CLIENTS {
            let (c, root) = (Place::client(self.place.nfs)?, root.clone());
            all.push(One { number, c, root });
        }
        let begin = Instant::now();
        let counts: Vec<Result<u64>> = std::thread::scope(|s| {
            let threads: Vec<_> = all.iter_mut().map(|one| s.spawn(|| work(one))).collect();
            let joined = threads.into_iter().map(|t| t.join());
            joined
                .map(|j| j.unwrap_or_else(|_| bail!(Io, "a client gave up: see above")))
                .collect()
        });
        let seconds = begin.elapsed().as_secs_f64().max(1e-9);
        let mut sum = 0;
        for count in counts {
            sum += count?;
        }
        Ok(sum as f64 / unit / seconds)
    }

    /// Bytes of a client's data, in whole pieces.
    fn share(&self) -> u64 {
        (self.size / CLIENTS).max(PIECE as u64) / PIECE as u64 * PIECE as u64
    }

    /// Counts how often something is done until the time is up.
    fn until_over(&self, mut what: impl FnMut() -> Result<u64>) -> Result<u64> {
        let begin = Instant::now();
        let mut sum = 0;
        while begin.elapsed() < self.time {
            if interrupted() {
                bail!(Interrupted, "interrupted");
            }
            sum += what()?;
        }
        Ok(sum)
    }

    fn write(&self, one: &mut One) -> Result<u64> {
        let mut supply = Supply::new(one.number, PIECE);
        let name = format!("data{}", one.number);
        let (file, _) = done("CREATE", one.c.create(&one.root, &name, 0o644, false))?;
        let (mut at, mut verifiers) = (0, Vec::new());
        while at < self.share() {
            let block = supply.block(PIECE);
            let (n, _, verifier) = done("WRITE", one.c.write(&file, at, block, 0))?;
            if n as usize != PIECE {
                bail!(Io, "WRITE took {n} bytes of {PIECE}");
            }
            at += u64::from(n);
            verifiers.push(verifier);
        }
        verifiers.push(done("COMMIT", one.c.commit(&file))?);
        verifiers.dedup();
        match verifiers.len() {
            1 => Ok(at),
            _ => bail!(Io, "the server was another one when it committed"),
        }
    }

    fn read(&self, one: &mut One) -> Result<u64> {
        let file = one.data()?;
        let mut at = 0;
        while at < self.share() {
            let (bytes, _) = done("READ", one.c.read(&file, at, PIECE as u32))?;
            if bytes.len() != PIECE {
                bail!(Io, "READ gave {} bytes of {PIECE}", bytes.len());
            }
            at += bytes.len() as u64;
        }
        Ok(at)
    }

    fn write_sync(&self, one: &mut One) -> Result<u64> {
        let file = one.data()?;
        let mut supply = Supply::new(one.number + CLIENTS, SMALL);
        let mut numbers = Numbers::new(one.number);
        self.until_over(|| {
            let at = numbers.below(self.share() / SMALL as u64) * SMALL as u64;
            let (_, how, _) = done("WRITE", one.c.write(&file, at, supply.block(SMALL), STABLE))?;
            match how {
                STABLE => Ok(1),
                _ => bail!(Io, "WRITE is not stable"),
            }
        })
    }

    fn list(&self, one: &mut One) -> Result<u64> {
        let folder = one.folder()?;
        self.until_over(|| {
            let all = done("READDIRPLUS", one.c.readdirplus(&folder, LISTING))?;
            match all.len() as u64 {
                n if n == FILES + 2 => Ok(n),
                n => bail!(Io, "READDIRPLUS has {n} names of {}", FILES + 2),
            }
        })
    }

    fn getattr(&self, one: &mut One) -> Result<u64> {
        let folder = one.folder()?;
        let all = done("READDIRPLUS", one.c.readdirplus(&folder, LISTING))?;
        let handles: Vec<Vec<u8>> = all.into_iter().filter_map(|e| e.2).collect();
        let mut numbers = Numbers::new(one.number);
        self.until_over(|| {
            let at = numbers.below(handles.len() as u64) as usize;
            let Some(handle) = handles.get(at) else {
                bail!(Io, "READDIRPLUS gave no handles");
            };
            done("GETATTR", one.c.getattr(handle)).map(|_| 1)
        })
    }

    fn lookup_read(&self, one: &mut One) -> Result<u64> {
        let folder = one.folder()?;
        let mut numbers = Numbers::new(one.number);
        self.until_over(|| {
            let name = format!("f{}", numbers.below(FILES));
            let (file, _) = done("LOOKUP", one.c.lookup(&folder, &name))?;
            let (bytes, _) = done("READ", one.c.read(&file, 0, SMALL as u32))?;
            match bytes.len() {
                SMALL => Ok(1),
                n => bail!(Io, "READ gave {n} bytes of {SMALL}"),
            }
        })
    }
}

/// Small files, each stable before the next one begins.
fn create(one: &mut One) -> Result<u64> {
    let name = format!("files{}", one.number);
    let (folder, _) = done("MKDIR", one.c.mkdir(&one.root, &name, 0o755))?;
    let mut supply = Supply::new(one.number + 2 * CLIENTS, SMALL);
    for n in 0..FILES {
        if interrupted() {
            bail!(Interrupted, "interrupted");
        }
        let created = one.c.create(&folder, &format!("f{n}"), 0o644, true);
        let (file, _) = done("CREATE", created)?;
        done("WRITE", one.c.write(&file, 0, supply.block(SMALL), STABLE))?;
    }
    Ok(FILES)
}

fn remove(one: &mut One) -> Result<u64> {
    let folder = one.folder()?;
    for n in 0..FILES {
        if interrupted() {
            bail!(Interrupted, "interrupted");
        }
        done("REMOVE", one.c.remove(&folder, &format!("f{n}")))?;
    }
    Ok(FILES)
}
