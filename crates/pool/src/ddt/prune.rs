//! `zpool ddtprune` and `zpool prefetch`: entries of blocks that nobody shared for long leave the dedup tables, and tables are
//! read into the cache.
//!
//! A pruned block stays where it is. Its pointers go on to say that it is deduplicated, and whoever frees it finds no entry and
//! frees it as any other block (data format §27.4). Equal bytes that are written later get a block and an entry of their own.
//!
//! Invariants:
//!
//! 1. Only entries of one reference go, in tables of the new form: the old one has no times.
//! 2. An entry that the txg has in use stays ([`Ddts::still_unique`] looks again in syncing context).
//! 3. Entry, statistics and, with the last entry, the table itself change in one txg. Each txg takes [`AT_ONCE`] entries, and a
//!    crash between two of them leaves fewer pruned entries, nothing else.

use super::{object_name, unpack_entry, Ddts, FAST_DEDUP};
use crate::Pool;
use base::mutation::{mutated, Mutation};
use base::{bail, Result};
use disk::ddt::{DdtClass, DdtEntry, DdtKey};
use disk::Dva;
use dmu::{Dnode, Tx};
use dsl::Features;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use zap::{Value, Zap};

/// Entries that are looked at while the tables are locked, and taken out in one txg.
const AT_ONCE: usize = 4096;
/// Bytes of a table that are read in one request.
const CHUNK: u64 = 1 << 20;

/// Which entries leave the dedup tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prune {
    /// Those that have been unique for more than so many seconds.
    OlderThan(u64),
    /// The oldest so many percent of the unique ones.
    Oldest(u64),
}

/// The entries that go: all of an earlier time than `before`, and `same` of that time.
#[derive(Clone, Copy)]
struct Limit {
    before: u64,
    same: u64,
}

impl Limit {
    fn takes(&mut self, time: u64) -> bool {
        if time == self.before && self.same > 0 {
            self.same -= 1;
            return true;
        }
        time < self.before
    }
}

/// Where a walk over the unique entries of all tables has come to.
#[derive(Clone, Copy, Default)]
struct Place {
    table: usize,
    cookie: u64,
}

impl Ddts {
    /// What the logs hold goes into the ZAPs with the next txg.
    fn fold_logs(&self) {
        self.lock().fold = true;
    }

    /// The next unique entries, each with the time since which it is unique; none at the end.
    fn unique_from(&self, place: &mut Place) -> Result<Option<Vec<(DdtKey, u64)>>> {
        let st = self.lock();
        let class = pruned();
        while let Some(t) = st.tables.get(place.table) {
            let object = t.objects[class.index()];
            if !t.flat || t.is_empty() || object == 0 {
                *place = Place {
                    table: place.table + 1,
                    cookie: 0,
                };
                continue;
            }
            let dn = self.mos.hold(object)?;
            let mut found = Vec::new();
            let mut entries = Zap::new(&dn).cursor(place.cookie);
            for e in entries.by_ref().take(AT_ONCE) {
                let e = e?;
                if let DdtEntry::Flat { class_start, .. } = unpack_entry(&e.value, true)? {
                    found.push((DdtKey::from_words(&e.words())?, class_start));
                }
            }
            if found.is_empty() {
                place.table += 1;
                place.cookie = 0;
                continue;
            }
            place.cookie = entries.cookie();
            return Ok(Some(found));
        }
        Ok(None)
    }

    /// Those of `keys` that table number `table` still has as unique entries, and that the txg has not in use.
    fn still_unique(&self, table: usize, keys: &[DdtKey]) -> Result<Vec<(DdtKey, DdtEntry)>> {
        let st = self.lock();
        let mut found = Vec::new();
        let Some(t) = st.tables.get(table).filter(|t| t.flat) else {
            return Ok(found);
        };
        let object = t.objects[pruned().index()];
        if object == 0 {
            return Ok(found);
        }
        let dn = self.mos.hold(object)?;
        let in_use = |k: &&DdtKey| t.live.contains_key(*k) || t.logged.contains_key(*k);
        for key in keys.iter().filter(|k| !in_use(k)) {
            if let Some(v) = Zap::new(&dn).get_value(&key.0[..])? {
                found.push((*key, unpack_entry(&v, true)?));
            }
        }
        Ok(found)
    }

    /// Takes these entries, which it has, out of table number `table`.
    fn take_out(
        &self,
        tx: &Tx,
        features: &dyn Features,
        table: usize,
        gone: &[(DdtKey, DdtEntry)],
    ) -> Result<()> {
        let deflate = |d: &Dva| self.zio.devices.deflate(d.vdev(), d.asize());
        let class = pruned();
        let mut guard = self.lock();
        let st = &mut *guard;
        let Some(t) = st.tables.get_mut(table) else {
            return Ok(());
        };
        let object = t.objects[class.index()];
        let dn = self.mos.hold(object)?;
        let zap = Zap::new(&dn);
        for (key, entry) in gone {
            zap.remove(tx, &key.0[..])?;
            t.histograms[class.index()].count(&entry.figures(key, deflate), false);
        }
        let mut left = t.logged.len() as u64 + t.live.len() as u64;
        for o in t.objects.iter().filter(|o| **o != 0) {
            left += Zap::new(&self.mos.hold(*o)?).count()?;
        }
        if left == 0 {
            self.destroy(tx, t, features)?;
        } else {
            let v = Value::u64s(&t.histograms[class.index()].0);
            let name = object_name(t.checksum, class);
            Zap::new(&self.statistics(tx)?).update(tx, &name, &v)?;
        }
        st.full = st.quota.is_reached(&|| self.size_of(st))?;
        Ok(())
    }
}

/// Entries of which class go.
fn pruned() -> DdtClass {
    match mutated(Mutation::PruneTakesShared) {
        true => DdtClass::Duplicate,
        false => DdtClass::Unique,
    }
}

/// Lets the next thread prune when it goes.
struct Pruning<'a>(&'a AtomicBool);

impl Drop for Pruning<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Pool {
    /// Takes unique entries out of the dedup tables, the oldest first. Their blocks stay. Returns how many entries went.
    ///
    /// # Errors
    /// `Kind::Busy`: another thread prunes. `Kind::Unsupported`: the pool has no tables with times. After any other error
    /// a part of the entries may have gone.
    pub fn prune_dedup(&self, what: Prune) -> Result<u64> {
        self.writable()?;
        if !self.config.features.is_enabled(FAST_DEDUP) {
            bail!(
                Unsupported,
                "operation not supported on this type of pool: the feature 'fast_dedup' is not enabled"
            );
        }
        let ddt = &self.shares().ddt;
        if ddt.pruning.swap(true, Ordering::AcqRel) {
            bail!(Busy, "a prune operation is already in progress");
        }
        let _one = Pruning(&ddt.pruning);
        // What a log holds has no place in a ZAP yet, and would be written there later.
        ddt.fold_logs();
        self.task(|_, _| Ok(()))?;
        let mut limit = self.prune_limit(what)?;
        let mut place = Place::default();
        let mut gone = 0;
        loop {
            base::cancel::check()?;
            let Some(found) = ddt.unique_from(&mut place)? else {
                return Ok(gone);
            };
            let table = place.table;
            let old = found.iter().filter(|(_, time)| limit.takes(*time));
            let keys: Vec<DdtKey> = old.map(|(key, _)| *key).collect();
            if keys.is_empty() {
                continue;
            }
            gone += self.task(move |pool, tx| {
                let ddt = &pool.shares().ddt;
                let entries = ddt.still_unique(table, &keys)?;
                if !entries.is_empty() {
                    let features = &*pool.config.features;
                    pool.or_stop(ddt.take_out(tx, features, table, &entries))?;
                }
                Ok(entries.len() as u64)
            })?;
        }
    }

    fn prune_limit(&self, what: Prune) -> Result<Limit> {
        let percent = match what {
            Prune::OlderThan(seconds) => {
                let now = self.env.clock.now().0.max(0) as u64;
                return Ok(Limit {
                    before: now.saturating_sub(seconds),
                    same: 0,
                });
            }
            Prune::Oldest(percent) => percent.min(100),
        };
        let mut times: BTreeMap<u64, u64> = BTreeMap::new();
        let mut place = Place::default();
        while let Some(found) = self.shares().ddt.unique_from(&mut place)? {
            base::cancel::check()?;
            for (_, time) in found {
                *times.entry(time).or_default() += 1;
            }
        }
        let all: u64 = times.values().sum();
        let mut left = (u128::from(all) * u128::from(percent) / 100) as u64;
        for (time, n) in &times {
            if *n >= left {
                return Ok(Limit {
                    before: *time,
                    same: left,
                });
            }
            left -= n;
        }
        Ok(Limit { before: 0, same: 0 })
    }

    /// Reads the dedup tables into the cache. Returns the bytes they take.
    ///
    /// # Errors
    /// Those of reading.
    pub fn prefetch_dedup(&self) -> Result<u64> {
        let objects = self.shares().ddt.table_objects();
        objects.iter().map(|o| self.read_all(*o)).sum()
    }

    /// The same for the tables of cloned blocks.
    ///
    /// # Errors
    /// As [`prefetch_dedup`](Self::prefetch_dedup).
    pub fn prefetch_clones(&self) -> Result<u64> {
        let objects = self.shares().brt.entry_objects();
        objects.iter().map(|o| self.read_all(*o)).sum()
    }

    fn read_all(&self, object: u64) -> Result<u64> {
        let dn: Arc<Dnode> = match self.mos().hold(object) {
            Ok(dn) => dn,
            // A txg has destroyed the table meanwhile.
            Err(e) if e.kind == base::Kind::NotFound => return Ok(0),
            Err(e) => return Err(e),
        };
        let info = dn.info();
        let size = (info.max_blkid + 1) * info.block_size as u64;
        let mut buf = vec![0; CHUNK.min(size) as usize];
        let mut at = 0;
        while at < size {
            base::cancel::check()?;
            let n = CHUNK.min(size - at) as usize;
            dn.read(at, &mut buf[..n])?;
            at += n as u64;
        }
        Ok(size)
    }
}
