//! Cache devices: a second level behind the block cache (L2ARC, pool format §28).
//!
//! A block that leaves the block cache, and that a reader had asked for, is written to one of the devices: with the bytes it has in
//! the pool, compressed and encrypted. A read that misses the block cache looks here first. Whatever is found is verified by the
//! checksum of the block pointer. A device that fails, lies or is missing costs a read from the pool, never an error.
//!
//! The daemon calls [`Pool::feed_caches`] every second. One pass writes what has gathered since the one before, at most `PASS`
//! bytes, and `BOOST` more until the device has been full once. Devices take turns.
//!
//! Devices that are told of freed space (property `autotrim`) are discarded wholly before the first block is written to them. With
//! `autotrim=on`, what is going to be overwritten is discarded ahead of the writes, too.
//!
//! Where to start: `device.rs` for what is on a device, `index.rs` for what is known of it in memory. What the index takes is taken
//! off the budget of the block cache.
//!
//! Locks: `feeding`, then `devices`, then those of a device, then those of the index and the queue.

mod device;
mod index;

use crate::spares::is_called;
use crate::Pool;
use base::sync::{MutexExt, RwLockExt};
use base::{bail, Result};
use device::{CacheDevice, Fresh};
use disk::l2arc::LogEntry;
use disk::NvList;
use dmu::Tx;
use index::{BlockKey, Index, Place, HEADER};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use vdev::{keys, Stats};
use zio::{ReadOne, SecondLevel, Victim, Zio};

/// Bytes that a pass writes, and more of them until the device has been full once.
const PASS: u64 = 32 << 20;
const BOOST: u64 = 32 << 20;
/// Part of the budget of the block cache that the index may take.
const INDEX_PART: u64 = 4;

/// How a cache device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheState {
    /// It is used.
    Online,
    /// It was taken out of use (`zpool offline`).
    Offline,
    /// It cannot be opened.
    Missing,
    /// What is there is no cache device of the pool.
    Foreign,
    /// It failed a write.
    Broken,
}

/// A cache device as commands show it.
pub struct CacheFigures {
    /// How it is.
    pub state: CacheState,
    /// Bytes of the device, those that can hold blocks, and those that do.
    pub physical: u64,
    /// See `physical`.
    pub size: u64,
    /// See `physical`.
    pub used: u64,
    /// Counters since it was opened.
    pub stats: Stats,
    /// When all of it was discarded, seconds since 1970; whether it can be told of what holds nothing.
    pub trimmed: Option<u64>,
    /// See `trimmed`.
    pub can_discard: bool,
}

/// How often the devices had a block, and what was written.
#[derive(Debug, Default)]
pub struct CacheCounters {
    /// Reads answered by a cache device.
    pub hits: AtomicU64,
    /// Reads that a cache device did not have.
    pub misses: AtomicU64,
    /// Bytes of these blocks, as they are stored.
    pub read_bytes: AtomicU64,
    /// Bytes of the blocks written to cache devices.
    pub written_bytes: AtomicU64,
    /// Blocks that a cache device had wrong.
    pub wrong: AtomicU64,
}

/// The cache devices of a pool.
#[derive(Default)]
pub(crate) struct CacheDevices {
    devices: RwLock<Vec<Arc<CacheDevice>>>,
    /// Devices of the list that are not open, by guid.
    others: Mutex<HashMap<u64, CacheState>>,
    /// Whose turn it is.
    feeding: Mutex<usize>,
    index: Index,
    /// Most blocks in the index.
    most: AtomicU64,
    pub counters: CacheCounters,
}

impl CacheDevices {
    fn list(&self) -> Vec<Arc<CacheDevice>> {
        self.devices.acquire_read().clone()
    }

    fn find(&self, guid: u64) -> Option<Arc<CacheDevice>> {
        self.list().into_iter().find(|d| d.guid == guid)
    }

    /// Closes a device; what is on it stays there. A pass under way ends, the discard of a whole device early.
    fn close(&self, guid: u64) {
        if let Some(d) = self.find(guid) {
            d.leaving.store(true, Ordering::Release);
        }
        let _one = self.feeding.acquire();
        self.devices.acquire_write().retain(|d| d.guid != guid);
        self.index.drop_device(guid);
    }

    /// Blocks that are somewhere on the devices, of these; in order.
    fn places(&self, reqs: &[ReadOne]) -> Vec<Option<(BlockKey, Place)>> {
        let place = |r: &ReadOne| {
            let key = BlockKey::new(&r.dva, r.birth);
            let place = self.index.get(&key).filter(|p| p.psize == r.psize as u64)?;
            Some((key, place))
        };
        reqs.iter().map(place).collect()
    }
}

impl SecondLevel for CacheDevices {
    fn look(&self, reqs: &[ReadOne]) -> Vec<Option<Vec<u8>>> {
        let places = self.places(reqs);
        let mut out: Vec<Option<Vec<u8>>> = reqs.iter().map(|_| None).collect();
        for device in self.list().iter().filter(|d| d.works()) {
            let here = |(i, p): (usize, &Option<(BlockKey, Place)>)| {
                let (key, place) = (*p)?;
                (place.device == device.guid).then_some((i, key, place))
            };
            let wanted: Vec<_> = places.iter().enumerate().filter_map(here).collect();
            if wanted.is_empty() {
                continue;
            }
            let ranges: Vec<(u64, u64)> = wanted.iter().map(|w| (w.2.at, w.2.psize)).collect();
            for ((i, key, place), got) in wanted.into_iter().zip(device.read_many(&ranges)) {
                match got {
                    Ok(raw) if (reqs[i].verify)(&raw) => out[i] = Some(raw),
                    // A pass may have written something else there meanwhile: no entry is left then.
                    other => {
                        if self.index.remove(&key, device.guid, place.at) {
                            self.counters.wrong.fetch_add(1, Ordering::Relaxed);
                            if other.is_ok() {
                                let n = &device.stats.checksum_errors;
                                n.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    }
                }
            }
        }
        let hits = out.iter().flatten().count() as u64;
        let bytes: usize = out.iter().flatten().map(Vec::len).sum();
        self.counters
            .read_bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
        self.counters.hits.fetch_add(hits, Ordering::Relaxed);
        let misses = reqs.len() as u64 - hits;
        self.counters.misses.fetch_add(misses, Ordering::Relaxed);
        out
    }
}

/// What is written of a block; none if it need not or cannot be.
fn fresh(zio: &Zio, v: &Victim, known: &Index) -> Option<Fresh> {
    let bp = &v.bp;
    let key = BlockKey::new(&bp.dva(0), bp.physical_birth());
    if known.get(&key).is_some() {
        return None;
    }
    let raw = zio.victim_bytes(v)?;
    let entry = LogEntry {
        dva: bp.dva(0),
        birth: bp.physical_birth(),
        lsize: bp.lsize() as u64,
        psize: bp.psize() as u64,
        compression: bp.compress(),
        metadata: bp.level() > 0 || bp.obj_type().is_metadata(),
        protected: bp.uses_crypt(),
        at: 0,
    };
    Some(Fresh { key, entry, raw })
}

impl Pool {
    /// Cache devices, as they are at this moment; none if `guid` is not on the list.
    pub fn cache_figures(&self, guid: u64) -> Option<CacheFigures> {
        let caches = &self.vdevs.caches;
        let Some(d) = caches.find(guid) else {
            let state = caches.others.acquire().get(&guid).copied()?;
            return Some(CacheFigures {
                state,
                physical: 0,
                size: 0,
                used: 0,
                stats: Stats::default(),
                trimmed: None,
                can_discard: state != CacheState::Missing,
            });
        };
        let stats = Stats::default();
        stats.copy_from(&d.stats);
        let (size, used) = d.space();
        Some(CacheFigures {
            state: match d.works() {
                true => CacheState::Online,
                false => CacheState::Broken,
            },
            physical: d.size(),
            size,
            used,
            stats,
            trimmed: d.trimmed(),
            can_discard: d.can_discard(),
        })
    }

    /// Guid of the cache device that is called so.
    pub fn cache_named(&self, name: &str) -> Option<u64> {
        let aux = self.aux_devices();
        let found = aux.l2cache.iter().find(|c| is_called(c, name));
        found.and_then(|c| c.get_u64(keys::GUID))
    }

    /// Hits, misses and writes of all cache devices since the import.
    pub fn cache_counters(&self) -> &CacheCounters {
        &self.vdevs.caches.counters
    }

    /// Bytes that the blocks on all cache devices take there, and those that the list of these blocks takes in memory.
    pub fn cache_sizes(&self) -> (u64, u64) {
        let caches = &self.vdevs.caches;
        let used = caches.list().iter().map(|d| d.space().1).sum();
        (used, caches.index.len() as u64 * HEADER)
    }

    /// Forgets the errors of a cache device, or of all, and has broken ones tried again.
    pub fn clear_caches(&self, guid: Option<u64>) {
        let devices = self.vdevs.caches.list().into_iter();
        for d in devices.filter(|d| guid.is_none_or(|g| g == d.guid)) {
            d.stats.clear_errors();
            if !d.works() {
                self.vdevs.caches.close(d.guid);
            }
        }
        self.follow_caches();
    }

    /// Opens the cache devices of the list that are not open, and closes those that left it.
    pub fn follow_caches(&self) {
        let caches = &self.vdevs.caches;
        let aux = self.aux_devices();
        let guid = |c: &NvList| c.get_u64(keys::GUID).unwrap_or(0);
        let is_offline = |c: &NvList| c.get_u64(keys::OFFLINE).is_some_and(|n| n != 0);
        for d in caches.list() {
            let listed = aux.l2cache.iter().find(|c| guid(c) == d.guid);
            if listed.is_none_or(is_offline) {
                caches.close(d.guid);
            }
        }
        let mut others = HashMap::new();
        for c in &aux.l2cache {
            if is_offline(c) {
                others.insert(guid(c), CacheState::Offline);
                continue;
            }
            if caches.find(guid(c)).is_some() {
                continue;
            }
            match CacheDevice::open(&self.env, c, !self.is_readonly()) {
                Ok(d) => caches.devices.acquire_write().push(Arc::new(d)),
                Err(e) => {
                    let state = match e.kind {
                        base::Kind::Damaged => CacheState::Foreign,
                        _ => CacheState::Missing,
                    };
                    tracing::warn!(pool = %self.name(), error = %e, "a cache device is not used");
                    others.insert(guid(c), state);
                }
            }
        }
        *caches.others.acquire() = others;
        let any = !caches.devices.acquire_read().is_empty();
        if any {
            self.zio().set_second_level(caches.clone());
        }
        self.zio().victims.set_wanted(any && !self.is_readonly());
        self.size_caches();
    }

    /// Closes the cache devices: the pool is left.
    pub(crate) fn close_caches(&self) {
        self.zio().victims.set_wanted(false);
        for d in self.vdevs.caches.list() {
            self.vdevs.caches.close(d.guid);
        }
    }

    /// Takes what the index takes off the budget of the block cache.
    fn size_caches(&self) {
        let caches = &self.vdevs.caches;
        let most = self.zio().cache.budget() / INDEX_PART / HEADER;
        caches.most.store(most, Ordering::Relaxed);
        let taken = caches.index.len() as u64 * HEADER;
        self.zio().cache.set_lent(taken);
    }

    /// One pass: takes over what former imports left on the devices, then writes what has left the block cache since the pass
    /// before. Called every second, by one thread.
    pub fn feed_caches(&self) {
        let caches = &self.vdevs.caches;
        let mut turn = caches.feeding.acquire();
        let devices: Vec<_> = caches.list().into_iter().filter(|d| d.works()).collect();
        if devices.is_empty() {
            return;
        }
        let most = caches.most.load(Ordering::Relaxed) as usize;
        let guid = self.guid();
        for d in devices.iter().filter(|d| d.unread.load(Ordering::Acquire)) {
            let known = d.rebuild(guid, &caches.index, most);
            if !known && self.autotrims(d.is_file) {
                if let Err(e) = d.trim_whole(guid, self.seconds()) {
                    tracing::warn!(pool = %self.name(), error = %e, "a cache device failed and is not used any more");
                }
            }
            d.unread.store(false, Ordering::Release);
        }
        for d in &devices {
            d.discards.store(self.autotrims(false), Ordering::Relaxed);
        }
        if !self.is_readonly() {
            *turn += 1;
            self.feed(&devices[*turn % devices.len()], guid, most);
        }
        drop(turn);
        self.size_caches();
    }

    fn feed(&self, device: &CacheDevice, guid: u64, most: usize) {
        let caches = &self.vdevs.caches;
        let bytes = match device.is_filling() {
            true => PASS + BOOST,
            false => PASS,
        };
        let victims = self.zio().victims.take(bytes);
        if victims.is_empty() {
            return;
        }
        let found: Vec<Fresh> = victims
            .into_iter()
            .filter_map(|v| fresh(self.zio(), &v, &caches.index))
            .collect();
        // The same block may have left the block cache twice.
        let mut seen = std::collections::HashSet::new();
        let found: Vec<Fresh> = found.into_iter().filter(|f| seen.insert(f.key)).collect();
        device.shrink(&caches.index, most.saturating_sub(found.len()));
        let bytes: usize = found.iter().map(|f| f.raw.len()).sum();
        match device.write_pass(guid, found, &caches.index) {
            Ok(()) => {
                let n = &caches.counters.written_bytes;
                n.fetch_add(bytes as u64, Ordering::Relaxed);
            }
            Err(e) => {
                tracing::warn!(pool = %self.name(), error = %e, "a cache device failed and is not used any more");
                caches.index.drop_device(device.guid);
            }
        }
    }

    /// Takes a cache device out of use (`offline`) or back into it. `stays`: also after the next import.
    ///
    /// # Errors
    /// `Kind::NotFound`: the pool has no such cache device.
    pub fn set_cache_offline(&self, guid: u64, offline: bool, stays: bool) -> Result<()> {
        self.writable()?;
        let is = move |c: &NvList| c.get_u64(keys::GUID) == Some(guid);
        if !self.aux_devices().l2cache.iter().any(is) {
            bail!(NotFound, "no such device in pool");
        }
        let set = move |pool: &Pool, tx: Option<&Tx>| {
            let mut aux = (*pool.aux_devices()).clone();
            for c in aux.l2cache.iter_mut().filter(|c| is(c)) {
                if offline {
                    c.set(keys::OFFLINE, 1u64);
                } else {
                    c.remove(keys::OFFLINE);
                }
            }
            pool.put_aux(tx, aux)
        };
        if stays {
            self.task(move |pool, tx| pool.or_stop(set(pool, Some(tx))))?;
        } else {
            set(self, None)?;
        }
        self.follow_caches();
        Ok(())
    }
}
