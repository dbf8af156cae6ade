//! A volume in service: its bytes read, written and freed through the intent log, whatever door clients come through.
//!
//! A volume has two objects: 1 has its bytes, 2 is a ZAP with its `size` (data format §26). Its log records are those that OpenZFS writes
//! and replays: a write of object 1, and a truncation that frees a range of it.
//!
//! 1. Whatever was acknowledged by [`Zvol::flush`], or written with `fua` or `sync=always`, is in the log or in a txg on disk.
//! 2. Writes that overlap are carried out one after the other, and logged in that order.
//! 3. While the volume is suspended (a rollback, a receive) requests wait; they go on in what is there afterwards.
//! 4. Calls that change something wait while the pool waits for its devices, before they take any lock.
//!
//! Lock order: state of the volume → byte ranges → transaction. Nothing waits for the log while it holds a byte range.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

use base::mutation::{mutated, Mutation};
use base::sync::{ReadGuard, RwLockExt, WriteGuard};
use base::{bail, Kind, Result};
use disk::volume::{DATA, PROPS, SIZE};
use dmu::{Dnode, Need, Objset, Tx};
use dsl::Dataset;
use pool::{prop_number, Admits, OpenSet, Pool};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;
use zap::Zap;
use zio::Crypt;
use zpl::{IntentLog, RangeLock, Record, ZilLog};

/// Bytes that are freed in one transaction.
const FREE_CHUNK: u64 = 1 << 30;
/// Metadata that a write is reckoned to take, bytes.
const METADATA: u64 = 16 << 10;
/// How often whoever waits for a pool looks whether it was told to stop waiting.
const TICK: Duration = Duration::from_millis(100);
/// Numbers of the values of `sync` (properties.md).
const SYNC_ALWAYS: u64 = 1;
const SYNC_DISABLED: u64 = 2;

/// What one state of the volume has open.
#[derive(Clone)]
struct Opened {
    os: Arc<Objset>,
    data: Arc<Dnode>,
    /// None: it cannot be written.
    log: Option<Arc<ZilLog>>,
    set: Option<Arc<OpenSet>>,
}

/// A volume, or a snapshot of one, in service.
pub struct Zvol {
    ds: Arc<Dataset>,
    pool: Arc<Pool>,
    /// Requests hold it for reading, a suspension for writing. None: it could not be opened again, or was closed.
    opened: RwLock<Option<Opened>>,
    range: RangeLock,
    /// Bytes.
    size: AtomicU64,
    /// `volblocksize`, bytes.
    block: AtomicU32,
    read_only: AtomicBool,
    /// Number of the value of `sync`.
    sync: AtomicU64,
    /// Those who wait for the pool are to give up.
    ending: AtomicBool,
}

impl Zvol {
    /// Opens a volume, or a snapshot of one. Its log must have been replayed ([`Pool::replay_volumes`]).
    ///
    /// # Errors
    /// `Kind::NotFound`: it is no volume. `Kind::Busy`: it is incomplete, open already, or its log waits to be replayed. `Kind::Access`: its
    /// key is not loaded. Those of reading it.
    pub fn open(pool: &Arc<Pool>, ds: &Arc<Dataset>) -> Result<Arc<Zvol>> {
        if ds.is_inconsistent() {
            bail!(
                Busy,
                "the volume is incomplete: a receive or destroy was interrupted"
            );
        }
        if pool.is_open(ds) {
            bail!(Busy, "the volume is open already");
        }
        let opened = Opened::new(pool, ds)?;
        let zvol = Zvol {
            ds: ds.clone(),
            pool: pool.clone(),
            opened: RwLock::new(Some(opened)),
            range: RangeLock::default(),
            size: AtomicU64::new(0),
            block: AtomicU32::new(0),
            read_only: AtomicBool::new(true),
            sync: AtomicU64::new(0),
            ending: AtomicBool::new(false),
        };
        if let Err(e) = zvol.refresh() {
            zvol.close()?;
            return Err(e);
        }
        Ok(Arc::new(zvol))
    }

    /// The dataset.
    pub fn dataset(&self) -> &Arc<Dataset> {
        &self.ds
    }

    /// Size now, bytes.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// `volblocksize`, bytes.
    pub fn block_size(&self) -> u32 {
        self.block.load(Ordering::Acquire)
    }

    /// Nothing can be changed: a snapshot, `readonly=on`, or a pool that is only read.
    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    /// Properties changed, the size among them.
    ///
    /// # Errors
    /// Those of reading them; what holds stays.
    pub fn refresh(&self) -> Result<()> {
        let opened = self.opened.acquire_read();
        let Some(o) = opened.as_ref() else {
            return Err(Kind::Stale.into());
        };
        let size = o.size()?;
        let read_only = o.log.is_none() || prop_number(&self.ds, "readonly")? != 0;
        let sync = prop_number(&self.ds, "sync")?;
        if let Some(log) = &o.log {
            log.set_throughput(prop_number(&self.ds, "logbias")? != 0);
        }
        self.size.store(size, Ordering::Release);
        self.block.store(o.block_size(), Ordering::Release);
        self.read_only.store(read_only, Ordering::Release);
        self.sync.store(sync, Ordering::Release);
        Ok(())
    }

    fn enter(&self) -> Result<Inside<'_>> {
        let gate = self.opened.acquire_read();
        match gate.as_ref() {
            Some(o) => {
                let o = o.clone();
                Ok(Inside { o, _gate: gate })
            }
            None => bail!(Stale, "the volume was closed"),
        }
    }

    /// Lets a call in that changes something.
    fn admit(&self) -> Result<()> {
        if self.is_read_only() {
            bail!(ReadOnly, "the volume is read-only");
        }
        loop {
            match self.pool.admits() {
                Admits::Now => return Ok(()),
                Admits::Never => return Err(Kind::Suspended.into()),
                Admits::Later if self.ending.load(Ordering::Acquire) => {
                    return Err(Kind::Suspended.into())
                }
                Admits::Later => self.pool.wait_for_turn(TICK),
            }
        }
    }

    /// From now on nobody waits for the pool: calls that would fail.
    pub fn stop_waiting(&self) {
        self.ending.store(true, Ordering::Release);
    }

    fn check(&self, offset: u64, len: u64) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.size() => Ok(()),
            _ => bail!(Invalid, "beyond the end of the volume"),
        }
    }

    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// `Kind::Invalid`: beyond the end. `Kind::Stale`: the volume was closed. Those of reading blocks.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let inside = self.enter()?;
        self.check(offset, buf.len() as u64)?;
        inside.o.data.read(offset, buf)
    }

    /// Where the data or the hole at `offset` ends, at most at the end of the volume; true: data.
    ///
    /// # Errors
    /// Those of reading block pointers.
    pub fn extent(&self, offset: u64) -> Result<(u64, bool)> {
        let inside = self.enter()?;
        let size = self.size();
        self.check(offset, 1)?;
        let at = |data| inside.o.data.seek(offset, data);
        match at(true)? {
            Some(data) if data <= offset => {
                // Behind the last block of the object there is nothing.
                let i = inside.o.data.info();
                let behind = i
                    .max_blkid
                    .saturating_add(1)
                    .saturating_mul(i.block_size as u64);
                Ok((at(false)?.unwrap_or(behind).min(size), true))
            }
            Some(data) => Ok((data.min(size), false)),
            None => Ok((size, false)),
        }
    }

    /// Reads ahead: the bytes will be wanted soon. An error shows when they are.
    pub fn cache(&self, offset: u64, len: u64) {
        let Ok(inside) = self.enter() else { return };
        let len = len.min(self.size().saturating_sub(offset)).min(32 << 20);
        let _ = inside
            .o
            .data
            .read_blocks(offset, len as usize, &mut |_, _| {});
    }

    /// Writes `data` at `offset`; with `fua` it is on stable storage afterwards.
    ///
    /// # Errors
    /// `Kind::Invalid`: beyond the end. `Kind::ReadOnly`, `Kind::NoSpace`, `Kind::Suspended`. `Kind::Stale`: the volume was closed. Those of
    /// reading the rest of a block that is written in part.
    pub fn write(&self, offset: u64, data: &[u8], fua: bool) -> Result<()> {
        self.admit()?;
        let inside = self.enter()?;
        let len = data.len() as u64;
        self.check(offset, len)?;
        if data.is_empty() {
            return Ok(());
        }
        let o = &inside.o;
        let wait = self.must_wait(fua);
        {
            let _range = self.range.write(offset, offset + len);
            o.data.check_write(offset, len)?;
            o.data.check_edges(offset, len)?;
            let tx = o.os.tx(Need::bytes(len + METADATA))?;
            o.data.write(&tx, offset, data)?;
            let record = Record::Write {
                object: DATA,
                gen: 0,
                offset,
                len,
                block: o.block_size(),
                sync: wait,
            };
            o.log(&tx, record);
        }
        match wait && !mutated(Mutation::ForcedWriteUnlogged) {
            true => o.commit(),
            false => Ok(()),
        }
    }

    fn must_wait(&self, fua: bool) -> bool {
        match self.sync.load(Ordering::Acquire) {
            SYNC_ALWAYS => true,
            SYNC_DISABLED => false,
            _ => fua,
        }
    }

    /// The bytes are zeros from now on. Whole blocks are freed, as far as no snapshot has them.
    ///
    /// # Errors
    /// As [`Zvol::write`].
    pub fn zero(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        self.admit()?;
        let inside = self.enter()?;
        self.check(offset, len)?;
        self.free(&inside.o, offset, offset + len, fua)
    }

    /// The bytes are not needed any more: blocks that lie in the range as a whole are freed, and read as zeros.
    ///
    /// # Errors
    /// As [`Zvol::write`].
    pub fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        self.admit()?;
        let inside = self.enter()?;
        self.check(offset, len)?;
        let block = u64::from(inside.o.block_size());
        let start = offset.next_multiple_of(block);
        let end = (offset + len) / block * block;
        self.free(&inside.o, start, end, fua)
    }

    fn free(&self, o: &Opened, start: u64, end: u64, fua: bool) -> Result<()> {
        let wait = self.must_wait(fua);
        let mut at = start;
        while at < end {
            // Where there are holes there is nothing to do.
            let _range = self.range.write(at, end);
            let next = match o.data.seek(at, true)? {
                Some(data) if data < end => data.max(at),
                _ => break,
            };
            let len = (end - next).min(FREE_CHUNK);
            o.data.check_free(next, len)?;
            let tx = o.os.tx(Need::freeing())?;
            o.data.free_range(&tx, next, len)?;
            let record = Record::Truncate {
                object: DATA,
                offset: next,
                len,
            };
            o.log(&tx, record);
            at = next + len;
        }
        match wait {
            true => o.commit(),
            false => Ok(()),
        }
    }

    /// Everything that was written before is on stable storage afterwards.
    ///
    /// # Errors
    /// Those of writing the log, or the txg. `Kind::Stale`: the volume was closed.
    pub fn flush(&self) -> Result<()> {
        let inside = self.enter()?;
        match self.sync.load(Ordering::Acquire) {
            SYNC_DISABLED => Ok(()),
            _ => inside.o.commit(),
        }
    }

    /// Ends what is under way, puts everything on disk and closes the object set, so that the dataset can be replaced. Requests wait until
    /// [`Suspended::resume`], or until what is returned is dropped, which does the same.
    ///
    /// # Errors
    /// What [`Zvol::close`] says; the volume goes on being served as it was then.
    pub fn suspend(self: &Arc<Self>) -> Result<Suspended<'_>> {
        let mut gate = self.opened.acquire_write();
        let Some(o) = gate.take() else {
            bail!(Stale, "the volume was closed");
        };
        if let Err(e) = o.settle(&self.pool) {
            *gate = Some(o);
            return Err(e);
        }
        o.close(&self.pool, &self.ds);
        Ok(Suspended { zvol: self, gate })
    }

    /// Puts everything on disk, empties the log, and closes the volume. Further calls fail with `Kind::Stale`. Once closed, it does nothing.
    ///
    /// # Errors
    /// Those of writing the txg; the volume is closed all the same.
    pub fn close(&self) -> Result<()> {
        let Some(o) = self.opened.acquire_write().take() else {
            return Ok(());
        };
        let settled = o.settle(&self.pool);
        o.close(&self.pool, &self.ds);
        settled
    }
}

/// A volume in which nothing happens until this is resumed, or dropped, which does the same.
pub struct Suspended<'a> {
    zvol: &'a Zvol,
    gate: WriteGuard<'a, Option<Opened>>,
}

impl Suspended<'_> {
    /// Goes on in what the dataset is now.
    ///
    /// # Errors
    /// It cannot be opened: calls fail with `Kind::Stale` until the volume is closed.
    pub fn resume(mut self) -> Result<()> {
        self.reopen()?;
        let zvol = self.zvol;
        drop(self);
        zvol.refresh()
    }

    fn reopen(&mut self) -> Result<()> {
        let opened = Opened::new(&self.zvol.pool, &self.zvol.ds)?;
        self.zvol.size.store(opened.size()?, Ordering::Release);
        *self.gate = Some(opened);
        Ok(())
    }
}

impl Drop for Suspended<'_> {
    fn drop(&mut self) {
        if self.gate.is_none() {
            if let Err(e) = self.reopen() {
                tracing::error!("{}: {e}", self.zvol.ds.full_name());
            }
        }
    }
}

/// A request is under way.
struct Inside<'a> {
    o: Opened,
    _gate: ReadGuard<'a, Option<Opened>>,
}

impl Opened {
    fn new(pool: &Arc<Pool>, ds: &Arc<Dataset>) -> Result<Opened> {
        if ds.is_snapshot() {
            let os = ds.open_objset(pool.own_policy(ds)?, true)?;
            return Opened::of(os, None, pool);
        }
        if matches!(ds.crypt()?, Crypt::Locked) {
            bail!(Access, "encryption key not loaded");
        }
        let set = pool.open_dataset(ds)?;
        Opened::of(set.os.clone(), Some(set), pool).inspect_err(|_| {
            pool.close_dataset(ds.object());
        })
    }

    fn of(os: Arc<Objset>, set: Option<Arc<OpenSet>>, pool: &Pool) -> Result<Opened> {
        if os.os_type() != disk::os_type::ZVOL {
            return Err(Kind::NotFound.into());
        }
        let zil = set.as_ref().and_then(|s| s.zil());
        if zil.is_some_and(|z| z.needs_replay()) {
            bail!(
                Busy,
                "the intent log of the volume could not be replayed yet"
            );
        }
        if let Some(zil) = zil {
            zil.start()?;
        }
        let log = zil.map(|z| Arc::new(ZilLog::new(z.clone(), &os, pool.has_log_device())));
        let data = os.hold(DATA)?;
        Ok(Opened { os, data, log, set })
    }

    fn size(&self) -> Result<u64> {
        Ok(Zap::new(&self.os.hold(PROPS)?).get(SIZE)?.unwrap_or(0))
    }

    fn block_size(&self) -> u32 {
        self.data.info().block_size as u32
    }

    fn log(&self, tx: &Tx, record: Record) {
        if let Some(log) = &self.log {
            log.log(tx, record);
        }
    }

    fn commit(&self) -> Result<()> {
        match &self.log {
            Some(log) => log.commit(Some(DATA)),
            None => Ok(()),
        }
    }

    /// Everything on disk, the log empty.
    fn settle(&self, pool: &Pool) -> Result<()> {
        let Some(zil) = self.set.as_ref().and_then(|s| s.zil()) else {
            return Ok(());
        };
        if self.os.newest_dirty() > pool.synced_txg() {
            pool.sync()?;
        }
        if !zil.has_no_blocks() {
            zil.destroy()?;
            pool.sync()?;
        }
        Ok(())
    }

    fn close(&self, pool: &Pool, ds: &Dataset) {
        if self.set.is_some() {
            pool.close_dataset(ds.object());
        }
    }
}
