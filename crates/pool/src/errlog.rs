//! The error log: the blocks that could not be read (behaviour §9, pool format §21).
//!
//! What is found goes into memory, and with the next txg into the ZAP `errlog_last`; a pool that is
//! open read-only keeps it in memory. With the feature `head_errlog` entries are kept by the head of
//! a dataset and the birth of the block: who else shares the block is found out when somebody asks.

use crate::notices::Notice;
use crate::Pool;
use base::sync::MutexExt;
use base::{Error, Kind, Result, Txg};
use disk::{BlkPtr, ObjType};
use dmu::{Damage, Tx};
use dsl::Dataset;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use zap::{Value, Zap};

/// Directory entry of the log in use.
const LAST: &str = "errlog_last";
/// Directory entry of what the scrub under way finds.
const SCRUB: &str = "errlog_scrub";
const HEAD_ERRLOG: &str = disk::feature::guid::HEAD_ERRLOG;
/// More entries than this are not kept.
const MOST: usize = 100_000;
/// Datasets looked at for one entry.
const MOST_SHARERS: usize = 10_000;

/// Errors looked after at a time, see [`Pool::forget_what_is_gone`].
const MOST_CHECKED: usize = 1000;

/// Level of the block of an object set itself.
const ROOT_LEVEL: i64 = -1;

/// Errors on record, and those not on disk yet.
#[derive(Default)]
pub struct ErrLog {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Everything known. Of old logs the birth is not (0).
    all: BTreeSet<Damage>,
    /// To be written with the next txg.
    new: Vec<Damage>,
    /// A scan is under way: what is found goes into its own log, which replaces the other one at its end.
    scanning: bool,
    /// Found since the scan began; all of it is in `all`, too.
    scrub: BTreeSet<Damage>,
    /// Of these, what is to be written with the next txg.
    new_scrub: Vec<Damage>,
    /// Healed: to be taken off both logs with the next txg.
    gone: Vec<Damage>,
    /// To be emptied with the next txg.
    clear: bool,
    /// The log on disk could not be read.
    unreadable: bool,
}

impl ErrLog {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.acquire()
    }

    /// Takes an error down, to be written with the next txg if `store`; one that is known already is
    /// left as it is. True if it is new.
    pub(crate) fn note(&self, d: &Damage, store: bool) -> bool {
        let mut s = self.lock();
        if s.scanning && store && s.scrub.len() < MOST && s.scrub.insert(*d) {
            s.new_scrub.push(*d);
        }
        let known = s.all.contains(d)
            || s.all.contains(&Damage {
                birth: Txg::NONE,
                ..*d
            });
        if known || s.all.len() >= MOST {
            return false;
        }
        s.all.insert(*d);
        if store && !s.scanning {
            s.new.push(*d);
        }
        true
    }

    /// Everything on record.
    pub(crate) fn all(&self) -> Vec<Damage> {
        self.lock().all.iter().copied().collect()
    }

    /// Whether the next txg has something to write.
    pub(crate) fn is_dirty(&self) -> bool {
        let s = self.lock();
        s.clear || !s.new.is_empty() || !s.new_scrub.is_empty() || !s.gone.is_empty()
    }

    /// A scan is under way from now on, or none.
    pub(crate) fn set_scanning(&self, on: bool) {
        self.lock().scanning = on;
    }

    /// Number of errors on record; `None` if they cannot be read.
    pub fn count(&self) -> Option<u64> {
        let s = self.lock();
        (!s.unreadable || s.clear).then_some(s.all.len() as u64)
    }
}

/// Whether an error says that the log itself is damaged.
fn is_illegible(e: &Error) -> bool {
    matches!(
        e.kind,
        Kind::Damaged | Kind::Checksum | Kind::Io | Kind::NotFound | Kind::Unsupported
    )
}

/// The numbers of a key, all hexadecimal.
fn numbers(key: &str) -> Option<Vec<u64>> {
    key.split(':')
        .map(|part| u64::from_str_radix(part, 16).ok())
        .collect()
}

impl Pool {
    fn by_head(&self) -> bool {
        self.config.features.is_enabled(HEAD_ERRLOG)
    }

    /// Reads the logs on disk. A log that cannot be read is no reason not to open the pool.
    pub(crate) fn load_errlog(&self) {
        let (mut last, mut scrub) = (BTreeSet::new(), BTreeSet::new());
        let mut unreadable = false;
        for (name, found) in [(LAST, &mut last), (SCRUB, &mut scrub)] {
            let read = self.directory(name).and_then(|o| match o {
                Some(o) if o != 0 => self.read_errlog(o, found),
                _ => Ok(()),
            });
            unreadable |= read.is_err();
        }
        let mut s = self.records.errlog.lock();
        s.all.extend(last);
        s.all.extend(scrub.iter().copied());
        s.scrub = scrub;
        s.unreadable = unreadable;
    }

    fn read_errlog(&self, object: u64, into: &mut BTreeSet<Damage>) -> Result<()> {
        let dn = self.mos().hold(object)?;
        for e in Zap::new(&dn).iter() {
            let e = e?;
            if into.len() >= MOST {
                break;
            }
            if !self.by_head() {
                // An entry that makes no sense is left out.
                if let Some([objset, object, level, blkid]) = numbers(&e.text()).as_deref() {
                    into.insert(Damage {
                        objset: *objset,
                        object: *object,
                        level: *level as i64,
                        blkid: *blkid,
                        birth: Txg::NONE,
                    });
                }
                continue;
            }
            let (Ok(head), Some(below)) = (zap::parse_hex_key(&e.name), e.value.as_u64()) else {
                continue;
            };
            let dn = self.mos().hold(below)?;
            for e in Zap::new(&dn).iter() {
                if let Some([object, level, blkid, birth]) = numbers(&e?.text()).as_deref() {
                    into.insert(Damage {
                        objset: head,
                        object: *object,
                        level: *level as i64,
                        blkid: *blkid,
                        birth: Txg::new(*birth),
                    });
                }
                if into.len() >= MOST {
                    break;
                }
            }
        }
        Ok(())
    }

    /// The head of the dataset an error was found in; the dataset itself if that cannot be told.
    fn head_of(&self, objset: u64) -> u64 {
        if objset == 0 {
            return 0;
        }
        let head = || -> Result<u64> {
            let dir = self.dataset_by_object(objset)?.dir();
            Ok(dir.phys().head_dataset_obj)
        };
        head().unwrap_or(objset)
    }

    /// Writes what is new; in syncing context. A log that cannot be read is left as it is, and what
    /// is new stays in memory: errors that cannot be written down are no reason to stop the pool.
    pub(crate) fn write_errlog(&self, tx: &Tx) -> Result<()> {
        let (clear, new, new_scrub, gone, unreadable) = {
            let mut s = self.records.errlog.lock();
            let clear = std::mem::take(&mut s.clear);
            let unreadable = s.unreadable;
            s.unreadable &= !clear;
            let (new, gone) = (std::mem::take(&mut s.new), std::mem::take(&mut s.gone));
            let new_scrub = std::mem::take(&mut s.new_scrub);
            (clear, new, new_scrub, gone, unreadable)
        };
        if clear {
            for name in [LAST, SCRUB] {
                self.drop_errlog(tx, name, !unreadable)?;
            }
        } else if unreadable {
            return Ok(());
        }
        let added = self
            .remove_logged(tx, &gone)
            .and_then(|()| self.add_errors(tx, LAST, &new))
            .and_then(|()| self.add_errors(tx, SCRUB, &new_scrub));
        match added {
            Err(e) if is_illegible(&e) => {
                // It was whole when it was loaded, and is not any more.
                self.records.errlog.lock().unreadable = true;
                Ok(())
            }
            r => r,
        }
    }

    /// Takes errors off both logs.
    fn remove_logged(&self, tx: &Tx, gone: &[Damage]) -> Result<()> {
        for name in [LAST, SCRUB] {
            let log = self.directory(name)?.filter(|o| *o != 0);
            let Some(log) = log.filter(|_| !gone.is_empty()) else {
                continue;
            };
            let log = self.mos().hold(log)?;
            for d in gone {
                if !self.by_head() {
                    let key = format!("{:x}:{:x}:{:x}:{:x}", d.objset, d.object, d.level, d.blkid);
                    Zap::new(&log).remove_if(tx, key.as_str())?;
                    continue;
                }
                // Some were written under the dataset's own number: its head was not known.
                for head in BTreeSet::from([self.head_of(d.objset), d.objset]) {
                    let Some(below) = Zap::new(&log).get(zap::hex_key(head).as_str())? else {
                        continue;
                    };
                    let key = format!(
                        "{:x}:{:x}:{:x}:{:x}",
                        d.object,
                        d.level,
                        d.blkid,
                        d.birth.number()
                    );
                    Zap::new(&self.mos().hold(below)?).remove_if(tx, key.as_str())?;
                }
            }
        }
        Ok(())
    }

    fn add_errors(&self, tx: &Tx, name: &str, new: &[Damage]) -> Result<()> {
        if new.is_empty() {
            return Ok(());
        }
        let dir = self.mos().hold(1)?;
        let log = match self.directory(name)?.filter(|o| *o != 0) {
            Some(o) => self.mos().hold(o)?,
            None => {
                let dn = zap::create_object(self.mos(), tx, ObjType::ERROR_LOG, 0)?;
                Zap::new(&dir).update_u64(tx, name, dn.object())?;
                dn
            }
        };
        let none = Value::bytes(&[0]);
        for d in new {
            if !self.by_head() {
                let key = format!("{:x}:{:x}:{:x}:{:x}", d.objset, d.object, d.level, d.blkid);
                Zap::new(&log).update(tx, key.as_str(), &none)?;
                continue;
            }
            let head = zap::hex_key(self.head_of(d.objset));
            let below = match Zap::new(&log).get(head.as_str())? {
                Some(o) => self.mos().hold(o)?,
                None => {
                    let dn = zap::create_object(self.mos(), tx, ObjType::ERROR_LOG, 0)?;
                    Zap::new(&log).add_u64(tx, head.as_str(), dn.object())?;
                    dn
                }
            };
            let key = format!(
                "{:x}:{:x}:{:x}:{:x}",
                d.object,
                d.level,
                d.blkid,
                d.birth.number()
            );
            Zap::new(&below).update(tx, key.as_str(), &none)?;
        }
        Ok(())
    }

    /// The scan under way ends, in syncing context. `whole`: it has visited everything, so what it did not find is healed, and its
    /// log replaces the other one. Otherwise both are put together.
    pub(crate) fn rotate_errlog(&self, tx: &Tx, whole: bool) -> Result<()> {
        let (found, readable) = {
            let mut s = self.records.errlog.lock();
            s.scanning = false;
            let found = std::mem::take(&mut s.scrub);
            s.new_scrub.clear();
            if whole {
                s.all = found.clone();
                s.new.clear();
            }
            let readable = !s.unreadable;
            s.unreadable &= !whole;
            (found, readable)
        };
        if whole {
            self.drop_errlog(tx, LAST, readable)?;
        } else if !readable {
            return Ok(());
        }
        self.drop_errlog(tx, SCRUB, readable)?;
        let found: Vec<Damage> = found.into_iter().collect();
        match self.add_errors(tx, LAST, &found) {
            Err(e) if is_illegible(&e) => {
                self.records.errlog.lock().unreadable = true;
                Ok(())
            }
            r => r,
        }
    }

    /// Takes down a block that was found damaged.
    pub(crate) fn note_damage(&self, d: &Damage) {
        if self.records.errlog.note(d, !self.is_readonly()) {
            self.tell(Notice::Damaged(*d));
        }
    }

    /// Forgets a log; its objects are freed only if all of it can be read, and else left behind.
    fn drop_errlog(&self, tx: &Tx, name: &str, readable: bool) -> Result<()> {
        let Some(object) = self.directory(name)?.filter(|o| *o != 0) else {
            return Ok(());
        };
        let all = match readable {
            true => self.objects_of(object),
            false => Ok(BTreeSet::new()),
        };
        match all {
            Ok(all) => {
                for o in all {
                    self.mos().free(tx, o)?;
                }
            }
            Err(e) if is_illegible(&e) => {}
            Err(e) => return Err(e),
        }
        Zap::new(&self.mos().hold(1)?).update_u64(tx, name, 0)
    }

    /// The objects a log consists of; what it names and is something else is left out.
    fn objects_of(&self, log: u64) -> Result<BTreeSet<u64>> {
        let mut out = BTreeSet::from([log]);
        if self.by_head() {
            for e in Zap::new(&self.mos().hold(log)?).iter() {
                let Some(below) = e?.value.as_u64() else {
                    continue;
                };
                if self.mos().hold(below)?.info().obj_type == ObjType::ERROR_LOG {
                    out.insert(below);
                }
            }
        }
        Ok(out)
    }

    /// Blocks of a snapshot, by object and number, are whole again: flushes what was written to heal them, and
    /// takes them off the log, on disk with the next txg.
    pub fn forget_damage(&self, snap: &Dataset, healed: &[(u64, u64, BlkPtr)]) -> Result<()> {
        if healed.is_empty() {
            return Ok(());
        }
        self.zio().devices.flush()?;
        let all = self.records.errlog.lock().all.clone();
        let known: BTreeMap<(u64, u64), &BlkPtr> =
            healed.iter().map(|(o, b, bp)| ((*o, *b), bp)).collect();
        let is_healed = |d: &&Damage| {
            let Some(bp) = known.get(&(d.object, d.blkid)).filter(|_| d.level <= 0) else {
                return false;
            };
            match d.birth {
                // Of an old log: the dataset may have got another block in that place.
                Txg::NONE => self.has_pointer(d, bp),
                birth => is_birth(bp, birth) && self.sharers(d).contains(&snap.object()),
            }
        };
        self.take_off(all.iter().filter(is_healed).copied().collect());
        Ok(())
    }

    /// Takes errors off the record, on disk with the next txg.
    fn take_off(&self, gone: Vec<Damage>) {
        let mut s = self.records.errlog.lock();
        for d in &gone {
            s.all.remove(d);
            s.scrub.remove(d);
            s.new.retain(|n| n != d);
            s.new_scrub.retain(|n| n != d);
        }
        if !self.is_readonly() {
            s.gone.extend(gone);
        }
    }

    /// Takes errors off the record whose blocks are nowhere any more: of files that were removed, of snapshots that were
    /// destroyed. A record of more than 1,000 errors stays as it is until the next scrub: each of them takes reads.
    pub fn forget_what_is_gone(&self) {
        let all = match self.records.errlog.lock() {
            s if s.unreadable || s.all.len() > MOST_CHECKED => return,
            s => s.all.clone(),
        };
        let gone: Vec<Damage> = all.into_iter().filter(|d| !self.is_anywhere(d)).collect();
        if !gone.is_empty() {
            self.take_off(gone);
        }
    }

    /// Whether some dataset still has the damaged block; true where that cannot be told.
    fn is_anywhere(&self, d: &Damage) -> bool {
        if d.objset == 0 {
            return true;
        }
        if !d.birth.is_none() && self.by_head() {
            return !self.sharers(d).is_empty();
        }
        match self.dataset_by_object(d.objset) {
            Ok(ds) => self.has_block(&ds, d),
            Err(e) => e.kind != Kind::NotFound,
        }
    }

    /// The head `new` has been promoted and has snapshots that were `old`'s: it has the errors in them, too.
    pub fn share_errors(&self, old: u64, new: u64) {
        if !self.by_head() {
            return;
        }
        let of_old = |d: &Damage| d.objset == old && !d.birth.is_none();
        for d in self.records.errlog.all().into_iter().filter(of_old) {
            self.records.errlog.note(&Damage { objset: new, ..d }, true);
        }
    }

    /// Whether the block in the place of an error is this one.
    fn has_pointer(&self, d: &Damage, bp: &BlkPtr) -> bool {
        let found = || -> Result<BlkPtr> {
            let ds = self.dataset_by_object(d.objset)?;
            let readonly = self.is_readonly() || ds.is_snapshot();
            let os = ds.open_objset(self.write_policy(&ds)?, readonly)?;
            let dn = os.hold(d.object)?;
            match d.blkid {
                u64::MAX => Ok(dn.spill_pointer().unwrap_or(BlkPtr::HOLE)),
                n => dn.block_pointer(n),
            }
        };
        found().is_ok_and(|b| b == *bp)
    }

    /// `zpool clear`: forgets all errors, on disk with the next txg.
    pub fn clear_errors(&self) {
        let mut s = self.records.errlog.lock();
        s.all.clear();
        s.new.clear();
        s.scrub.clear();
        s.new_scrub.clear();
        s.gone.clear();
        s.clear = !self.is_readonly();
    }

    /// Takes errors off the record, in syncing context.
    pub(crate) fn remove_errors(&self, tx: &Tx, healed: &[Damage]) -> Result<()> {
        let readable = {
            let mut s = self.records.errlog.lock();
            for d in healed {
                s.all.remove(d);
            }
            s.new.retain(|d| !healed.contains(d));
            !s.unreadable
        };
        match readable && !healed.is_empty() {
            true => match self.remove_logged(tx, healed) {
                Err(e) if is_illegible(&e) => {
                    self.records.errlog.lock().unreadable = true;
                    Ok(())
                }
                r => r,
            },
            false => Ok(()),
        }
    }

    /// Number of errors on record; `None` if the log cannot be read.
    pub fn error_count(&self) -> Option<u64> {
        self.records.errlog.count()
    }

    /// Files with errors: dataset (0: the pool itself) and object, each once, in order.
    pub fn damaged_objects(&self) -> Vec<(u64, u64)> {
        let all = self.records.errlog.lock().all.clone();
        let mut out = BTreeSet::new();
        for d in &all {
            if d.objset == 0 || d.birth.is_none() || !self.by_head() {
                out.insert((d.objset, d.object));
                continue;
            }
            for objset in self.sharers(d) {
                out.insert((objset, d.object));
            }
        }
        out.into_iter().collect()
    }

    /// Datasets that have the damaged block: the head, its snapshots, and clones of those.
    pub(crate) fn sharers(&self, d: &Damage) -> Vec<u64> {
        let mut todo = vec![self.head_of(d.objset)];
        let mut seen = BTreeSet::new();
        let mut out = Vec::new();
        while let Some(object) = todo.pop() {
            if object == 0 || !seen.insert(object) || seen.len() > MOST_SHARERS {
                continue;
            }
            let ds = match self.dataset_by_object(object) {
                Ok(ds) => ds,
                Err(e) => {
                    // Of a dataset that cannot be looked at the number is all there is to tell.
                    if object == d.objset && e.kind != Kind::NotFound {
                        out.push(object);
                    }
                    continue;
                }
            };
            let p = ds.phys();
            let has = self.has_block(&ds, d);
            if has {
                out.push(object);
            }
            // Older snapshots may have it though newer ones do not, down to the block's birth.
            if let Ok(Some(prev)) = ds.prev() {
                if prev.phys().creation_txg >= d.birth {
                    todo.push(prev.object());
                }
            }
            if has && p.next_clones_obj != 0 {
                if let Ok(dn) = self.mos().hold(p.next_clones_obj) {
                    let clones = Zap::new(&dn).iter().filter_map(|e| e.ok()?.value.as_u64());
                    for c in clones.take(MOST_SHARERS) {
                        todo.push(self.head_of(c));
                    }
                }
            }
        }
        out
    }

    /// Whether the block in its place in a dataset is still the one that is damaged. Where that
    /// cannot be told because the way to it is damaged too, it is.
    fn has_block(&self, ds: &Arc<dsl::Dataset>, d: &Damage) -> bool {
        let pointer = || -> Result<Option<BlkPtr>> {
            if d.level == ROOT_LEVEL {
                return Ok(Some(ds.phys().bp));
            }
            let readonly = self.is_readonly() || ds.is_snapshot();
            let os = ds.open_objset(self.write_policy(ds)?, readonly)?;
            os.pointer_of(d.object, d.level, d.blkid)
        };
        match pointer() {
            // Of old logs the birth is not known: a block in its place may be the one.
            Ok(bp) => bp.is_some_and(|bp| d.birth.is_none() || is_birth(&bp, d.birth)),
            Err(e) => e.kind != Kind::NotFound,
        }
    }
}

/// Whether the log may have this birth for a block: OpenZFS 2.4 stores the physical one, OpenZFS 2.3 and we the logical.
fn is_birth(bp: &BlkPtr, birth: Txg) -> bool {
    !bp.is_hole() && (birth == bp.logical_birth() || birth == bp.physical_birth())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys() {
        assert_eq!(numbers("36:16c:0:2"), Some(vec![0x36, 0x16c, 0, 2]));
        let level = numbers("0:0:ffffffffffffffff:0").unwrap()[2] as i64;
        assert_eq!(level, ROOT_LEVEL);
        assert_eq!(format!("{ROOT_LEVEL:x}"), "ffffffffffffffff");
        assert_eq!(numbers("1:x"), None);
    }

    #[test]
    fn either_birth_of_a_block_is_its_own() {
        let (ty, none) = (ObjType::PLAIN_FILE_CONTENTS, disk::Compression::OFF);
        let fletcher = disk::Checksum::FLETCHER4;
        let mut bp = BlkPtr::new(ty, 0, 4096, 4096, none, fletcher, Txg::new(9));
        bp.set_dva(0, disk::Dva::new(0, 4096, 4096, false));
        bp.set_physical_birth(Txg::new(5));
        let births = (4..11).filter(|n| is_birth(&bp, Txg::new(*n)));
        assert_eq!(births.collect::<Vec<_>>(), [5, 9]);
        assert!(!is_birth(&BlkPtr::HOLE, Txg::NONE));
    }

    fn pool(dir: &testkit::TempDir) -> Arc<Pool> {
        let image = dir.image("d0.img", 128 << 20).unwrap();
        let disk = vdev::DevSpec::file(image.to_str().unwrap());
        let spec = crate::CreateSpec {
            name: "tank".into(),
            tops: vec![vdev::TopSpec::new(vdev::GroupKind::Single, vec![disk])],
            version: 5000,
            features: disk::feature::FEATURES
                .iter()
                .filter(|f| f.supported && f.default_on)
                .collect(),
            extra: vec![],
            command: "zpool create tank".into(),
            tunables: crate::Tunables::default(),
        };
        let now = zpl::Time { sec: 1, nsec: 0 };
        Pool::create(env_linux::linux_env(), spec, &|_, os, tx| {
            zpl::create_fs(os, tx, &zpl::FsOptions::new(5000, now))
        })
        .unwrap()
    }

    /// The log on disk is damaged after it was loaded: txgs go on, errors stay in memory, and
    /// clearing them begins a new log.
    #[test]
    fn a_log_that_goes_bad() {
        let dir = testkit::TempDir::new("errlog").unwrap();
        let p = pool(&dir);
        let error = |objset, object| Damage {
            objset,
            object,
            level: 0,
            blkid: 3,
            birth: Txg::new(4),
        };
        assert!(p.by_head());
        p.records.errlog.note(&error(0, 70), true);
        p.sync().unwrap();
        for outer in [true, false] {
            let log = p.directory(LAST).unwrap().unwrap();
            let all = p.objects_of(log).unwrap();
            assert_eq!(all.len(), 2);
            let bad = *all.iter().find(|o| (**o == log) == outer).unwrap();
            let spoil = move |p: &Pool, tx: &Tx| {
                let dn = p.mos().hold(bad)?;
                let garbage = vec![0x5a; dn.info().block_size];
                dn.write(tx, 0, &garbage)
            };
            p.task(spoil).unwrap();
            p.records.errlog.note(&error(0, 71), true);
            p.sync().unwrap();
            assert!(p.suspended().is_none());
            assert_eq!(p.error_count(), None, "outer: {outer}");
            p.records.errlog.note(&error(0, 72), true);
            p.sync().unwrap();
            p.clear_errors();
            p.sync().unwrap();
            assert_eq!(p.error_count(), Some(0));
            assert_eq!(p.directory(LAST).unwrap(), Some(0));
            p.records.errlog.note(&error(0, 73), true);
            p.sync().unwrap();
            assert_eq!(p.error_count(), Some(1));
        }
        // A log that names what is none of its own, to have it freed.
        let log = p.directory(LAST).unwrap().unwrap();
        p.task(move |p, tx| {
            let dn = p.mos().hold(log)?;
            Zap::new(&dn).add_u64(tx, "1234", 1)
        })
        .unwrap();
        p.clear_errors();
        p.sync().unwrap();
        p.export().unwrap();
        assert!(p.mos().hold(1).is_ok());
    }

    #[test]
    fn each_is_noted_once() {
        let log = ErrLog::default();
        let d = Damage {
            objset: 5,
            object: 7,
            level: 0,
            blkid: 3,
            birth: Txg::new(9),
        };
        assert!(log.note(&d, false));
        assert!(!log.is_dirty(), "only in memory");
        assert!(!log.note(&d, true));
        assert_eq!(log.count(), Some(1));
        let old = Damage {
            birth: Txg::NONE,
            blkid: 4,
            ..d
        };
        assert!(log.note(&old, true));
        assert!(!log.note(&Damage { blkid: 4, ..d }, true));
        assert!(log.is_dirty());
    }
}
