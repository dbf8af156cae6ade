//! Network block devices: disks that another program serves, at `nbd://HOST/EXPORT` or `nbd+unix:///EXPORT?socket=PATH`.
//!
//! **A server that comes back.** What was written since the last flush is kept in memory, at most 64 MiB: a server that was
//! started again may have lost it. When a connection breaks, another one is made, and what is kept is sent again, in its order, before
//! anything else; then the requests that were under way. So a flush covers what it is to cover, whatever server carries it out. The same is done
//! behind a flush that the server refuses: what it was to cover may be lost, and the next flush of that server may not tell.
//!
//! **A server that stays away.** For thirty seconds (`ZFS_FUSE_NBD_PATIENCE`) requests wait for it. Then they fail, and so does each further one after one attempt to
//! connect, at most once a second. The engine takes that as it takes a disk that fails: it goes on without the device, or the pool is
//! suspended. Nothing that was kept is given up: it is sent when the server is there again, as long as the device is open.
//!
//! Where the server says that a flush covers several connections, four are made.
//!
//! **Who may name one.** An image says in its labels where the other devices of its pool are. A stranger's image must not make this process
//! connect to whatever it likes: an address is opened only after a user or a cache file has named it ([`allow`]).

use crate::batch::{blame, gather, plan_of_allowed, scatter, shape, Cells, Piece};
use crate::timing::Timing;
use crate::{usage, CpuPool};
use base::sync::{CondvarExt, MutexExt};
use base::{bail, Block, Error, Kind, RangeSet, Result, SECTOR};
use env::{Access, Cpu, Disk, Geometry, Op, Watch};
use nbd::client::{Address, Connection, Failure, Info};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bytes that are kept; with more the writer flushes first.
const MOST_KEPT: u64 = 64 << 20;
/// Connections where several are allowed.
const CONNECTIONS: usize = 4;
/// How long an attempt to connect may take, and how long it is until the next one.
const CONNECTING: Duration = Duration::from_secs(5);
const BETWEEN: Duration = Duration::from_millis(200);
/// The same once the server has been given up.
const BETWEEN_LATE: Duration = Duration::from_secs(1);
/// Bytes of a trim.
const MOST_TRIMMED: u64 = 1 << 30;
/// Bytes of a block that a pool goes by.
const MOST_PREFERRED: u32 = 64 << 10;

/// The addresses that may be opened.
static ALLOWED: Mutex<BTreeSet<Address>> = Mutex::new(BTreeSet::new());
/// Those open to the exclusion of others in this process. Other processes are not known of: the protocol has no locks.
static EXCLUSIVE: Mutex<BTreeSet<Address>> = Mutex::new(BTreeSet::new());

/// How long requests wait for a server that has gone, and for a reply.
fn patience() -> Duration {
    static PATIENCE: LazyLock<Duration> = LazyLock::new(|| {
        let given = std::env::var("ZFS_FUSE_NBD_PATIENCE").ok();
        let seconds = given.and_then(|v| v.parse().ok()).filter(|s| *s > 0);
        Duration::from_secs(seconds.unwrap_or(30))
    });
    *PATIENCE
}

/// A user, or a file that only the owner of this process writes, has named the address: it may be opened from now on. Nothing is done about
/// paths.
pub fn allow(address: &str) {
    if let Some(address) = base::is_network_device(address).then(|| Address::parse(address)) {
        // One that has no meaning is refused when it is opened.
        ALLOWED.acquire().extend(address.ok());
    }
}

/// A number that all ways to write an address have in common; `None`: it is none. A host by its name and by its number are two.
pub fn identity(address: &str) -> Option<u64> {
    let address = Address::parse(address).ok()?;
    let mut hash = DefaultHasher::new();
    address.hash(&mut hash);
    Some(hash.finish())
}

/// An export that is open.
pub(crate) struct RemoteDisk {
    url: String,
    address: Address,
    writable: bool,
    /// It is in [`EXCLUSIVE`].
    exclusive: bool,
    /// What the server said first.
    info: Info,
    size: AtomicU64,
    link: Mutex<Link>,
    changed: Condvar,
    kept: Mutex<Kept>,
    turn: AtomicUsize,
    threads: Arc<CpuPool>,
    /// How long requests wait for a server that has gone, and for a reply.
    patience: Duration,
}

/// The connections, all or none.
#[derive(Default)]
struct Link {
    up: Option<Arc<Vec<Connection>>>,
    connecting: bool,
    /// When they went.
    down_since: Option<Instant>,
    last_try: Option<Instant>,
    why: String,
}

/// Writes that the next flush covers.
#[derive(Default)]
struct Kept {
    next: u64,
    bytes: u64,
    writes: BTreeMap<u64, Write>,
}

#[derive(Clone)]
struct Write {
    offset: u64,
    data: Block,
    /// Its reply has come.
    done: bool,
}

impl RemoteDisk {
    /// Connects.
    ///
    /// # Errors
    /// `NotPermitted`: nobody has named the address. `Busy`: it is open here to the exclusion of others. `ReadOnly`. Others: those of connecting and of
    /// the negotiation.
    pub(crate) fn open(url: &str, access: Access, threads: Arc<CpuPool>) -> Result<RemoteDisk> {
        RemoteDisk::connected(url, access, threads, patience()).map_err(|e| e.context(url))
    }

    fn connected(
        url: &str,
        access: Access,
        threads: Arc<CpuPool>,
        patience: Duration,
    ) -> Result<RemoteDisk> {
        let address = Address::parse(url)?;
        if !ALLOWED.acquire().contains(&address) {
            bail!(
                NotPermitted,
                "a label names this address, and no user has: name it with -d"
            );
        }
        let _use = usage::begin();
        let first = Connection::open(&address, CONNECTING, patience)?;
        let info = first.info();
        let writable = access != Access::Read;
        if writable && info.read_only {
            bail!(ReadOnly, "the server gives it for reading only");
        }
        let exclusive = access == Access::Exclusive;
        if exclusive && !EXCLUSIVE.acquire().insert(address.clone()) {
            bail!(
                Busy,
                "device or resource busy: a pool that is imported here has it"
            );
        }
        // From here on the drop takes it out again.
        let disk = RemoteDisk {
            url: url.to_string(),
            address,
            writable,
            exclusive,
            info,
            size: AtomicU64::new(info.size),
            link: Mutex::default(),
            changed: Condvar::new(),
            kept: Mutex::default(),
            turn: AtomicUsize::new(0),
            threads,
            patience,
        };
        let all = disk.further(vec![first]);
        disk.link.acquire().up = Some(Arc::new(all));
        Ok(disk)
    }

    /// Makes all connections, and sends what is kept again.
    fn connect(&self) -> Result<Arc<Vec<Connection>>> {
        let all = self.further(vec![self.open_one()?]);
        self.send_again(&all)?;
        Ok(Arc::new(all))
    }

    fn open_one(&self) -> Result<Connection> {
        let c = Connection::open(&self.address, CONNECTING, self.patience)?;
        let (size, before) = (c.info().size, self.size.load(Ordering::Relaxed));
        if size < before {
            bail!(Io, "the export had {before} bytes, and has {size} now");
        }
        if c.info().read_only && self.writable {
            bail!(ReadOnly, "the server gives it for reading only now");
        }
        let (now, was) = (c.info(), self.info);
        if now.least > was.least.max(SECTOR as u32) || now.most < was.most.min(nbd::CHUNK as u32) {
            bail!(
                Io,
                "the server took requests of {} to {} bytes, and takes {} to {} now",
                was.least,
                was.most,
                now.least,
                now.most
            );
        }
        if was.flushes && !now.flushes {
            bail!(Io, "the server took flushes, and takes none now");
        }
        self.size.store(size, Ordering::Relaxed);
        Ok(c)
    }

    /// As many connections as are worth it and the server gives. The server of each says whether a flush covers the others.
    fn further(&self, mut all: Vec<Connection>) -> Vec<Connection> {
        let covers = all.iter().all(|c| c.info().multi);
        while covers && self.exclusive && all.len() < CONNECTIONS {
            match self.open_one() {
                Ok(c) if c.info().multi => all.push(c),
                Ok(_) | Err(_) => break,
            }
        }
        all
    }

    /// Sends what is kept. Writes that overlap are sent one after the other.
    fn send_again(&self, all: &[Connection]) -> Result<()> {
        let writes: Vec<Write> = self.kept.acquire().writes.values().cloned().collect();
        let mut at = 0;
        while at < writes.len() {
            let mut together = RangeSet::new();
            let begin = at;
            while let Some(w) = writes.get(at) {
                let end = w.offset + w.data.len() as u64;
                if together.overlaps(w.offset, end) {
                    break;
                }
                together.insert(w.offset, end);
                at += 1;
            }
            let failed = Mutex::new(None);
            self.threads.par_for(at - begin, &|i| {
                let w = &writes[begin + i];
                let c = &all[i % all.len()];
                if let Err(e) = self.in_requests(w.offset, &w.data, |at, part| c.write(at, part)) {
                    failed.acquire().get_or_insert(e);
                }
            });
            match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
                None => {}
                Some(Failure::Lost(why)) => bail!(Io, "{why}"),
                Some(Failure::Refused(e)) => {
                    return Err(e.context("what was written before the server went is refused now"))
                }
            }
        }
        Ok(())
    }

    /// The connections, which are made if there are none.
    fn link(&self) -> Result<Arc<Vec<Connection>>> {
        let mut link = self.link.acquire();
        loop {
            if let Some(up) = &link.up {
                return Ok(up.clone());
            }
            let away = link.down_since.get_or_insert_with(Instant::now).elapsed();
            let late = away > self.patience;
            let gone = |link: &Link| {
                Error::new(
                    Kind::Io,
                    format!(
                        "the server is away for {} seconds: {}",
                        away.as_secs(),
                        link.why
                    ),
                )
            };
            let between = if late { BETWEEN_LATE } else { BETWEEN };
            let wait = link
                .last_try
                .map_or(Duration::ZERO, |t| between.saturating_sub(t.elapsed()));
            if link.connecting || !wait.is_zero() {
                if late {
                    return Err(gone(&link));
                }
                let wait = if link.connecting { BETWEEN } else { wait };
                link = self.changed.wait_acquire_timeout(link, wait);
                continue;
            }
            link.connecting = true;
            drop(link);
            let made = self.connect();
            link = self.link.acquire();
            (link.connecting, link.last_try) = (false, Some(Instant::now()));
            match made {
                Ok(all) => {
                    (link.up, link.down_since) = (Some(all), None);
                    tracing::info!("{}: the server is there again", self.url);
                }
                Err(e) => {
                    link.why = e.to_string();
                    if late {
                        self.changed.notify_all();
                        return Err(gone(&link));
                    }
                }
            }
            self.changed.notify_all();
        }
    }

    /// These connections are of no use any more.
    fn lost(&self, which: &Arc<Vec<Connection>>, why: String) {
        let mut link = self.link.acquire();
        if link.up.as_ref().is_some_and(|up| Arc::ptr_eq(up, which)) {
            tracing::warn!("{}: {why}", self.url);
            link.up = None;
            link.down_since = Some(Instant::now());
            link.why = why;
        }
    }

    /// Has a request carried out, by as many connections as it takes.
    fn carry_out<R>(
        &self,
        ask: impl Fn(&Connection) -> std::result::Result<R, Failure>,
    ) -> Result<R> {
        let begin = Instant::now();
        loop {
            let up = self.link()?;
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            match ask(&up[turn % up.len()]) {
                Ok(done) => return Ok(done),
                Err(Failure::Refused(e)) => return Err(e),
                Err(Failure::Lost(why)) => {
                    self.lost(&up, why.clone());
                    // Its server comes back, and goes again with each attempt.
                    if begin.elapsed() > self.patience {
                        bail!(Io, "{why}");
                    }
                }
            }
        }
    }

    fn check(&self, write: bool, offset: u64, len: u64) -> Result<()> {
        let unit = u64::from(self.sector());
        if write && !self.writable {
            bail!(ReadOnly, "{}: opened for reading", self.url);
        }
        if offset % unit != 0 || len % unit != 0 {
            bail!(
                Invalid,
                "{}: transfer of {len} at {offset} is not in sectors",
                self.url
            );
        }
        let size = self.size.load(Ordering::Relaxed);
        if offset.checked_add(len).is_none_or(|end| end > size) {
            bail!(
                Io,
                "{}: {len} bytes at {offset} are beyond the end",
                self.url
            );
        }
        Ok(())
    }

    fn sector(&self) -> u32 {
        self.info.least.max(SECTOR as u32)
    }

    /// How many bytes may go in a request.
    fn most(&self) -> usize {
        let unit = self.sector() as usize;
        let most = (self.info.most as usize).min(nbd::CHUNK);
        (most / unit * unit).max(unit)
    }

    /// Calls `write` with parts that the server takes in one request each, until one fails.
    fn in_requests<E>(
        &self,
        offset: u64,
        data: &[u8],
        mut write: impl FnMut(u64, &[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let mut at = offset;
        for part in data.chunks(self.most()) {
            write(at, part)?;
            at += part.len() as u64;
        }
        Ok(())
    }

    fn read_raw(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut at = offset;
        for part in buf.chunks_mut(self.most()) {
            let data = self.carry_out(|c| c.read(at, part.len()))?;
            part.copy_from_slice(&data);
            at += part.len() as u64;
        }
        Ok(())
    }

    fn write_raw(&self, offset: u64, data: Block) -> Result<()> {
        let keeps = self.info.flushes;
        if keeps && self.kept.acquire().bytes + data.len() as u64 > MOST_KEPT {
            self.flush_raw()?;
        }
        // Before it is sent: a server that goes behind its reply must find it here.
        let number = keeps.then(|| {
            let mut kept = self.kept.acquire();
            let number = kept.next;
            kept.next += 1;
            kept.bytes += data.len() as u64;
            let write = Write {
                offset,
                data: data.clone(),
                done: false,
            };
            kept.writes.insert(number, write);
            number
        });
        let done = self.in_requests(offset, &data, |at, part| {
            self.carry_out(|c| c.write(at, part))
        });
        let mut kept = self.kept.acquire();
        if let Some(number) = number {
            match &done {
                Ok(()) => {
                    if let Some(w) = kept.writes.get_mut(&number) {
                        w.done = true;
                    }
                }
                // Nobody takes it for written.
                Err(_) => kept.forget(number),
            }
        }
        done
    }

    fn flush_raw(&self) -> Result<()> {
        let covered: Vec<u64> = {
            let kept = self.kept.acquire();
            let done = kept.writes.iter().filter(|(_, w)| w.done);
            done.map(|(n, _)| *n).collect()
        };
        if let Err(e) = self.carry_out(|c| c.flush()) {
            // Which of the writes it was to cover are lost is not known, and the next flush may not tell of them. They are kept: sent again
            // over new connections they are covered by that.
            let up = self.link.acquire().up.take();
            drop(up);
            return Err(e);
        }
        let mut kept = self.kept.acquire();
        covered.into_iter().for_each(|n| kept.forget(n));
        Ok(())
    }

    fn run_piece(&self, cells: &Cells, piece: &Piece) -> Result<()> {
        let mut buf = vec![0; piece.len];
        if piece.write {
            gather(cells, piece, &mut buf);
            self.write_raw(piece.offset, Arc::new(buf))
        } else {
            self.read_raw(piece.offset, &mut buf)?;
            scatter(cells, piece, &buf);
            Ok(())
        }
    }

    fn run_batch(&self, ops: Vec<Op>, watch: Option<&dyn Watch>) -> Vec<(Op, Result<()>)> {
        let begin = Instant::now();
        let _use = usage::begin();
        let allowed = |op: &Op| {
            let (write, offset, len) = shape(op);
            self.check(write, offset, len as u64)
        };
        let mut results: Vec<Result<()>> = ops.iter().map(allowed).collect();
        let pieces = plan_of_allowed(&ops, &results);
        let cells: Vec<Mutex<Op>> = ops.into_iter().map(Mutex::new).collect();
        let timing = Timing::new(watch, &pieces, begin);
        let failures = Mutex::new(Vec::new());
        self.threads.par_for(pieces.len(), &|i| {
            timing.started(i);
            let done = self.run_piece(&cells, &pieces[i]);
            timing.ended(i);
            if let Err(e) = done {
                failures.acquire().push((i, e));
            }
        });
        let failures = failures
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        let again = |p: &Piece| self.run_piece(&cells, p);
        let error = |e: Error, p: &Piece| self.error(e, p.write, p.offset, p.len);
        blame(&pieces, failures, &mut results, &again, &error);
        cells
            .into_iter()
            .map(|c| c.into_inner().unwrap_or_else(PoisonError::into_inner))
            .zip(results)
            .collect()
    }

    fn error(&self, e: Error, write: bool, offset: u64, len: usize) -> Error {
        let verb = if write { "write" } else { "read" };
        e.context(format!("{verb} of {len} bytes at {offset}"))
            .context(&self.url)
    }
}

impl Kept {
    fn forget(&mut self, number: u64) {
        if let Some(w) = self.writes.remove(&number) {
            self.bytes -= w.data.len() as u64;
        }
    }
}

impl Drop for RemoteDisk {
    fn drop(&mut self) {
        if self.exclusive {
            EXCLUSIVE.acquire().remove(&self.address);
        }
    }
}

impl Disk for RemoteDisk {
    fn geometry(&self) -> Geometry {
        let logical = self.sector();
        let unit = u64::from(logical);
        Geometry {
            size: self.size.load(Ordering::Relaxed) / unit * unit,
            logical_sector: logical,
            physical_sector: self
                .info
                .preferred
                .clamp(logical, MOST_PREFERRED.max(logical)),
            is_block: true,
            can_discard: self.info.trims && self.writable,
        }
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let _use = usage::begin();
        self.check(false, offset, buf.len() as u64)?;
        let len = buf.len();
        self.read_raw(offset, buf)
            .map_err(|e| self.error(e, false, offset, len))
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        let _use = usage::begin();
        self.check(true, offset, buf.len() as u64)?;
        self.write_raw(offset, Arc::new(buf.to_vec()))
            .map_err(|e| self.error(e, true, offset, buf.len()))
    }

    fn flush(&self) -> Result<()> {
        if !self.writable {
            return Ok(());
        }
        let _use = usage::begin();
        self.flush_raw()
            .map_err(|e| e.context(format!("{}: flush", self.url)))
    }

    fn batch(&self, ops: Vec<Op>) -> Vec<(Op, Result<()>)> {
        self.run_batch(ops, None)
    }

    fn batch_watched(&self, ops: Vec<Op>, watch: &dyn Watch) -> Vec<(Op, Result<()>)> {
        self.run_batch(ops, Some(watch))
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        if !self.info.trims {
            bail!(Unsupported, "{}: the server does not trim", self.url);
        }
        let _use = usage::begin();
        self.check(true, offset, len)?;
        let mut at = offset;
        while at < offset + len {
            let n = MOST_TRIMMED.min(offset + len - at);
            self.carry_out(|c| c.trim(at, n as u32))
                .map_err(|e| e.context(format!("{}: discard {n} at {at}", self.url)))?;
            at += n;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
