//! A simulated world: disks, a pool on them with its file systems in use, and the oracle. Carries
//! out lines of a trace.

mod checkpoints;
mod dedup;
mod faults;
mod lineage;
mod posix;
mod refusal;
mod replicas;
mod scans;
mod shapes;
mod splits;

use crate::check::Opened;
use crate::cut::Image;
use crate::desk::Desk;
use crate::differs;
use crate::foreign::Foreign;
use crate::found::{self, find, split, What};
use crate::hash::TraceHash;
use crate::keys;
use crate::lineage::Lineage;
use crate::op::{Fill, Op};
use crate::oracle::{Frozen, FsModel, Oracle};
use crate::owners;
use crate::rig::{self, full, is_full, Fs, Layout};
use base::{Kind, Result, Txg};
use dsl::CreateArgs;
use env_sim::{Event, Journal, ManualClock, MemDisk, SeededRng};
use lineage::{key, must_exist, must_fail};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use zpl::Znode;

/// Extra images of one moment.
const BURST: usize = 25;

/// How a line went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// It does not apply to the world as it is.
    Nothing,
    /// It has to be refused (there is no space for it, or something stands in its way), which changes nothing.
    Refused,
}

/// What a run has done so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub operations: u64,
    pub refused: u64,
    /// Images judged.
    pub images: u64,
    /// Of these: what was read to judge them differs from all before.
    pub apart: u64,
    pub events: u64,
    pub faults: u64,
    /// Operations in which the pool waited for its devices.
    pub suspended: u64,
}

pub struct World {
    pub layout: Layout,
    pub disks: Vec<Arc<MemDisk>>,
    /// The disks when the journal began.
    base: Image,
    journal: Arc<Journal>,
    clock: Arc<ManualClock>,
    seed: u64,
    opened: Option<Opened>,
    held: Vec<Arc<Znode>>,
    pub oracle: Oracle,
    pub hash: TraceHash,
    pub counts: Counts,
    /// Images judged at each cut besides the one life goes on with.
    pub more_images: usize,
    /// Further ones, of which those that are alike are judged once. They leave no trace.
    pub extra_images: usize,
    /// Judges some images at each cut, before their logs are replayed and afterwards, and the end.
    /// Leaves no trace either.
    pub foreign: Option<Arc<Foreign>>,
    /// The txg before the first one of the present import.
    pub first: Txg,
    /// Events of the journal at which the import after the last cut was over.
    imported: usize,
    /// Snapshots, `fs@snapshot`, whose objects the model numbers as it does those of their file system now: none from before
    /// the last cut or rollback.
    comparable: BTreeSet<String>,
    /// What the pool asks for patience when its devices refuse.
    waiting: Arc<refusal::Waiting>,
    content: scans::Content,
}

/// The bytes of a fill.
pub fn bytes(fill: Fill) -> Vec<u8> {
    let len = fill.len as usize;
    match fill.seed % 6 {
        0 => vec![0; len],
        1 => (0..len)
            .map(|i| ((i / 700) as u64 ^ fill.seed).wrapping_mul(31) as u8)
            .collect(),
        _ => {
            let mut v = vec![0; len];
            env::Rng::fill(&SeededRng::new(fill.seed), &mut v);
            v
        }
    }
}

fn text(e: base::Error) -> String {
    e.to_string()
}

impl World {
    /// A world with an empty pool.
    pub fn new(layout: Layout, seed: u64) -> std::result::Result<World, String> {
        let mut w = World::blank(layout, seed);
        w.create()?;
        w.settle()?;
        Ok(w)
    }

    /// A world whose pool is still to be made.
    pub fn blank(layout: Layout, seed: u64) -> World {
        let disks: Image = (0..layout.devices())
            .map(|n| MemDisk::new(layout.size_of(n)))
            .collect();
        let (journal, base) = rig::start_journal(&disks);
        let clock = Arc::new(ManualClock::default());
        clock.seconds.store(1_700_000_000, Relaxed);
        World {
            waiting: refusal::Waiting::new(&disks, &journal),
            layout,
            disks,
            base,
            journal,
            clock,
            seed,
            opened: None,
            held: Vec::new(),
            oracle: Oracle::default(),
            hash: TraceHash(seed),
            counts: Counts::default(),
            more_images: 2,
            extra_images: 0,
            foreign: None,
            first: Txg::NONE,
            imported: 0,
            comparable: BTreeSet::new(),
            content: scans::Content::default(),
        }
    }

    /// Makes the pool; the journal goes on.
    pub fn create(&mut self) -> std::result::Result<(), String> {
        self.oracle.begin(0);
        let opened = Opened::create(&self.disks, &self.layout, self.seed, &self.clock);
        let opened = opened.map_err(text)?;
        let hidden = found::count_objects(&opened.mounts[""]).map_err(text)?;
        let frozen = Frozen {
            hidden,
            ..Frozen::default()
        };
        let op = self.oracle.op;
        self.oracle.administered(self.journal.len(), |a, models| {
            a.sets.insert(String::new(), models.len());
            models.push(FsModel::new(&frozen, op));
        });
        self.opened = Some(opened);
        self.lend_patience();
        Ok(())
    }

    fn pos(&self) -> usize {
        self.journal.len()
    }

    pub fn pool(&self) -> Option<&Arc<pool::Pool>> {
        self.opened.as_ref().map(|o| &o.pool)
    }

    fn mounted(&self, fs: &str) -> Option<&Fs> {
        self.opened.as_ref()?.mounts.get(fs)
    }

    /// Object of a path, if it is one of a kind.
    fn object(&self, fs: &str, path: &str) -> Option<(usize, What)> {
        let m = self.oracle.fs(fs)?;
        let id = *m.now().get(path)?;
        Some((id, m.what(id)))
    }

    fn is_dir(&self, fs: &str, path: &str) -> bool {
        path.is_empty() || self.object(fs, path).is_some_and(|(_, w)| w == What::Dir)
    }

    /// Whether something new can get this path.
    fn free_path(&self, fs: &str, path: &str) -> bool {
        self.oracle.fs(fs).is_some()
            && self.object(fs, path).is_none()
            && self.is_dir(fs, split(path).0)
    }

    /// Carries out a line. An error is a finding.
    pub fn apply(&mut self, op: &Op) -> std::result::Result<Outcome, String> {
        self.clock.pass(1_000_000);
        let line = op.to_string();
        self.hash.bytes(line.as_bytes());
        self.counts.operations += 1;
        if !matches!(op, Op::Cut { .. }) {
            let pos = self.pos();
            self.oracle.begin(pos);
        }
        self.before_waiting(op);
        let before = self.shaping();
        let done = self.carry_out(op);
        self.no_way_back(before);
        let outcome = self
            .after_waiting(done)
            .map_err(|e| format!("{line}: {e}"))?;
        if outcome == Outcome::Done {
            self.keep_comparable(op);
        }
        self.hash.bytes(&[outcome as u8]);
        self.counts.refused += u64::from(outcome == Outcome::Refused);
        Ok(outcome)
    }

    fn carry_out(&mut self, op: &Op) -> std::result::Result<Outcome, String> {
        if let Op::Cut { back, fate, seed } = op {
            return self.cut(*back, *fate, *seed).map(|()| Outcome::Done);
        }
        // What a broken receive kept is in the way of these.
        if replicas::takes_away(op) {
            self.give_up_partial()?;
        }
        let r = match op {
            op if lineage::is_lineage(op) => match op {
                Op::Snapshot { fs, name } => self.snapshot(fs, name, None),
                Op::SnapshotAs { fs, name, uid } => self.snapshot(fs, name, Some(*uid)),
                Op::Allow { fs, uid, on } => self.allow(fs, *uid, *on),
                Op::DestroySnapshot { fs, name } => self.destroy_snapshot(fs, name),
                Op::Rollback { fs } => self.rollback(fs),
                Op::Lineage(line) => self.lineage(line),
                _ => Ok(Outcome::Nothing),
            },
            Op::Clone { .. }
            | Op::CloneSnap { .. }
            | Op::CreateFs { .. }
            | Op::DestroyFs { .. }
            | Op::Limit { .. }
            | Op::Set { .. } => self.administer(op),
            Op::Remount { .. } | Op::Reimport => self.again(op),
            Op::Checkpoint { fs, path } => self.checkpoint(fs, path),
            Op::Discard => self.discard(),
            Op::Reguid => self.reguid(),
            Op::Prune { percent } => self.prune(*percent),
            Op::TableQuota { bytes } => self.table_quota(*bytes),
            Op::Rewind => return self.rewind(),
            Op::Device { disk, change } => self.device(*disk, *change),
            Op::Look => self.look(),
            Op::Fault { disk, fault } => Ok(self.fault(*disk, *fault)),
            Op::Refuse(line) => self.refuse(*line),
            Op::Shape(line) => return self.shape(*line),
            Op::Scan(what) => return self.scan(*what),
            Op::Read { fs, path } => return self.read(fs, path),
            Op::Send { fs } => return self.send(fs),
            Op::Receive {
                fs,
                snap,
                to,
                share,
                how,
            } => return self.receive(&[fs, snap, to], *share, *how),
            Op::Heal { fs, snap, seed } => return self.heal(fs, snap, *seed),
            Op::Diff { fs, snap } => return self.diff(fs, snap),
            Op::Release => {
                self.held.clear();
                self.reap().map(|()| Outcome::Done)
            }
            Op::Sync => self.sync(),
            _ => self.posix(op),
        };
        match r {
            Err(e) if is_full(&e) => Ok(Outcome::Refused),
            r => r.map_err(text),
        }
    }

    fn reap(&self) -> Result<()> {
        let mounts = self.opened.iter().flat_map(|o| o.mounts.values());
        for m in mounts {
            m.zfs.reap()?;
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<Outcome> {
        let Some(pool) = self.pool() else {
            return Ok(Outcome::Nothing);
        };
        pool.sync()?;
        let pos = self.pos();
        self.oracle.ack_all(pos);
        Ok(Outcome::Done)
    }

    fn read(&mut self, fs: &str, path: &str) -> std::result::Result<Outcome, String> {
        let (Some((id, What::File)), Some(m)) = (self.object(fs, path), self.mounted(fs)) else {
            return Ok(Outcome::Nothing);
        };
        let z = find(m, path).map_err(text)?;
        let data = found::content(m, &z).map_err(text)?;
        let must = self.oracle.fs(fs).map(|f| f.state(id).data.clone());
        match must.is_some_and(|d| *d == data) {
            true => Ok(Outcome::Done),
            false => Err("not what was written".into()),
        }
    }

    /// `zfs diff` tells what differs between a snapshot and now, by the model.
    fn diff(&mut self, fs: &str, snap: &str) -> std::result::Result<Outcome, String> {
        let key = key(fs, snap);
        let frozen = self.oracle.now().snaps.get(&key).cloned();
        let frozen = frozen.filter(|_| self.comparable.contains(&key));
        let (Some(frozen), Some(_)) = (frozen, self.mounted(fs)) else {
            return Ok(Outcome::Nothing);
        };
        let told = match desk(&self.opened).and_then(|d| d.diff(fs, snap)) {
            Err(e) if is_full(&e) => return Ok(Outcome::Refused),
            told => told.map_err(text)?,
        };
        let now = self.oracle.fs(fs).map(|model| model.freeze());
        let place = crate::desk::place(fs);
        differs::judge(&frozen, &now.unwrap_or_default(), &told, &place)?;
        Ok(Outcome::Done)
    }

    /// Which snapshots can be compared after an operation.
    fn keep_comparable(&mut self, op: &Op) {
        match op {
            Op::Snapshot { fs, name } | Op::SnapshotAs { fs, name, .. } => {
                self.comparable.insert(key(fs, name));
            }
            Op::Allow { .. } => {}
            Op::DestroyFs { .. } => self.comparable.clear(),
            op if lineage::is_lineage(op) => self.comparable.clear(),
            _ => {}
        }
    }

    /// Whether a file system is encrypted.
    fn is_sealed(&self, fs: &str) -> Result<bool> {
        match self.pool() {
            Some(pool) => pool.dsl().dir(&full(fs))?.is_encrypted(),
            None => Ok(false),
        }
    }

    /// Increments must give what whole streams give.
    fn send(&mut self, fs: &str) -> std::result::Result<Outcome, String> {
        if self.pool().is_none() || self.oracle.fs(fs).is_none() {
            return Ok(Outcome::Nothing);
        }
        let o = desk(&self.opened).map_err(text)?;
        match o.streams(fs).map_err(text)? {
            None => Ok(Outcome::Done),
            Some(snap) => Err(format!("the increment to @{snap} is not what it is whole")),
        }
    }

    /// Nobody uses the file system any more. Its log is empty then.
    fn unmount(&mut self, fs: &str) -> Result<()> {
        self.held.clear();
        self.reap()?;
        let used = self.opened.as_mut().and_then(|o| o.mounts.remove(fs));
        match used {
            Some(m) => {
                drop(m);
                desk(&self.opened)?.unmount(fs)
            }
            None => Ok(()),
        }
    }

    fn mount(&mut self, fs: &str) -> Result<()> {
        if let Some(pool) = self.pool() {
            keys::load(pool)?;
        }
        let m = desk(&self.opened)?.mount(fs, &self.layout)?;
        if let Some(o) = &mut self.opened {
            o.mounts.insert(fs.into(), m);
        }
        Ok(())
    }

    fn administer(&mut self, op: &Op) -> Result<Outcome> {
        use Op::*;
        if self.pool().is_none() {
            return Ok(Outcome::Nothing);
        }
        let now = self.oracle.now().clone();
        match op {
            CreateFs { fs } | Clone { to: fs, .. } | CloneSnap { to: fs, .. } => {
                return self.make_fs(op, fs)
            }
            DestroyFs { fs } => {
                let prefix = key(fs, "");
                let used = now.snaps.keys().any(|s| s.starts_with(&prefix));
                if fs.is_empty() || !now.sets.contains_key(fs) {
                    return Ok(Outcome::Nothing);
                }
                if used {
                    let done = desk(&self.opened)?.commands().destroy(&full(fs));
                    return must_exist(done, "a file system was destroyed that has snapshots");
                }
                // Nobody has a file open; the rest of unmounting is up to the operation.
                self.held.clear();
                self.reap()?;
                if let Some(o) = &mut self.opened {
                    o.mounts.remove(fs);
                }
                desk(&self.opened)?.commands().destroy(&full(fs))?;
                let pos = self.pos();
                self.oracle.administered(pos, |a, _| {
                    a.sets.remove(fs);
                    a.origins.remove(fs);
                    let marks = format!("{fs}#");
                    a.marks.retain(|k, _| !k.starts_with(&marks));
                    a.limits.remove(fs);
                    a.props.retain(|(f, _), _| f != fs);
                    a.rights.retain(|(f, _)| f != fs);
                });
            }
            Set { fs, prop, value } => {
                if !now.sets.contains_key(fs) {
                    return Ok(Outcome::Nothing);
                }
                let value = *value;
                let sealed = self.is_sealed(fs)?;
                match desk(&self.opened)?.set(fs, prop, value) {
                    // The place of the third copy holds what decrypting a block takes.
                    done if prop == "copies" && value == 3 && sealed => {
                        return must_fail(
                            done,
                            &[Kind::Invalid],
                            "three copies in an encrypted file system",
                        )
                    }
                    // Old pools do not have everything.
                    Err(e) if self.layout.version < 5000 && e.kind == Kind::Unsupported => {
                        return Ok(Outcome::Nothing)
                    }
                    done => done?,
                }
                let pos = self.pos();
                self.oracle.administered(pos, |a, _| {
                    a.props.insert((fs.clone(), prop.clone()), value);
                });
            }
            Limit {
                fs,
                name,
                id,
                value,
            } => return self.limit(fs, name, *id, *value),
            _ => return Ok(Outcome::Nothing),
        }
        Ok(Outcome::Done)
    }

    /// A new file system, or a clone.
    fn make_fs(&mut self, op: &Op, fs: &str) -> Result<Outcome> {
        let Some(pool) = self.pool().cloned() else {
            return Ok(Outcome::Nothing);
        };
        let now = self.oracle.now().clone();
        let n = self.oracle.op;
        if now.sets.contains_key(fs) || fs.is_empty() || fs.contains('/') {
            return Ok(Outcome::Nothing);
        }
        let mut from = None;
        let also = matches!(op, Op::CloneSnap { .. });
        if let Op::Clone { fs, snap, .. } | Op::CloneSnap { fs, snap, .. } = op {
            let key = key(fs, snap);
            let Some(frozen) = now.snaps.get(&key) else {
                return Ok(Outcome::Nothing);
            };
            from = Some((key, frozen.clone(), format!("{}@{snap}", full(fs))));
        }
        let name = fs.to_string();
        match (from.as_ref().map(|f| f.2.clone()), also) {
            (None, _) => match op {
                Op::Lineage(Lineage::CreateOld { version, .. }) => {
                    let commands = desk(&self.opened)?.commands();
                    commands.create(&full(fs), &[("version", *version)])?
                }
                Op::Lineage(Lineage::CreateSealed { cipher, .. }) => {
                    desk(&self.opened)?.create_sealed(fs, *cipher)?
                }
                _ => desk(&self.opened)?.create_fs(fs)?,
            },
            (Some(origin), false) => {
                let commands = desk(&self.opened)?.commands();
                commands.clone_unmounted(&origin, &full(fs))?
            }
            // In one txg, which no command does.
            (Some(origin), true) => pool.task(move |pool, tx| {
                let root = pool.dsl().root()?;
                let args = CreateArgs::default();
                let snap = pool.dsl().dataset(&origin)?;
                let ds = pool.clone_in(tx, &root, &name, &snap, args)?;
                pool.snapshot_in(tx, &[(ds, FIRST.into())])
            })?,
        }
        let pos = self.pos();
        let born = match also {
            true => self.born(fs, FIRST)?,
            false => Txg::NONE,
        };
        self.mount(fs)?;
        let hidden = match self.mounted(fs) {
            Some(m) => found::count_objects(m)?,
            None => 0,
        };
        self.oracle.administered(pos, |a, models| {
            let frozen = match from {
                Some((origin, frozen, _)) => {
                    a.origins.insert(fs.to_string(), origin);
                    frozen
                }
                None => Arc::new(Frozen {
                    hidden,
                    ..Frozen::default()
                }),
            };
            a.sets.insert(fs.to_string(), models.len());
            a.limits.insert(fs.to_string(), frozen.limits.clone());
            if also {
                let first = Frozen {
                    born,
                    ..Frozen::clone(&frozen)
                };
                a.snaps.insert(key(fs, FIRST), Arc::new(first));
            }
            models.push(FsModel::new(&frozen, n));
        });
        Ok(Outcome::Done)
    }

    /// What a user, group or project may have.
    fn limit(&mut self, fs: &str, name: &str, id: u64, value: u64) -> Result<Outcome> {
        let projects = self.layout.projects;
        let limit = owners::limit_named(name).filter(|l| projects || l % 3 != 2);
        let (Some(limit), Some(_)) = (limit, self.mounted(fs)) else {
            return Ok(Outcome::Nothing);
        };
        if id > owners::IDS {
            return Ok(Outcome::Nothing);
        }
        let prop = format!("{}{id}", zpl::QUOTA_NAMES[limit]);
        desk(&self.opened)?.set(fs, &prop, value)?;
        let pos = self.pos();
        self.oracle.administered(pos, |a, _| {
            let limits = a.limits.entry(fs.to_string()).or_default();
            match value {
                0 => limits.remove(&(limit, id)),
                n => limits.insert((limit, id), n),
            };
        });
        Ok(Outcome::Done)
    }

    /// Gives a user a permission, or takes it back.
    fn allow(&mut self, fs: &str, uid: u32, on: bool) -> Result<Outcome> {
        if !self.oracle.now().sets.contains_key(fs) || uid == 0 {
            return Ok(Outcome::Nothing);
        }
        desk(&self.opened)?.allow(fs, uid, on)?;
        let pos = self.pos();
        self.oracle.administered(pos, |a, _| {
            let right = (fs.to_string(), u64::from(uid));
            match on {
                true => a.rights.insert(right),
                false => a.rights.remove(&right),
            };
        });
        Ok(Outcome::Done)
    }

    /// The end of the journal so far, for making images of.
    pub fn take_events(&mut self) -> (Image, Vec<Event>) {
        let events = self.journal.take();
        self.hash.events(&events);
        self.counts.events += events.len() as u64;
        (self.base.iter().map(|d| d.fork()).collect(), events)
    }

    pub fn clock(&self) -> &Arc<ManualClock> {
        &self.clock
    }

    /// File systems and what is in them, for choosing operations.
    pub fn names(&self) -> BTreeMap<String, Vec<(String, What, u64)>> {
        let mut out = BTreeMap::new();
        for fs in self.oracle.now().sets.keys() {
            let Some(m) = self.oracle.fs(fs) else {
                continue;
            };
            let list = m.now().iter().map(|(p, id)| {
                let size = m.state(*id).data.len() as u64;
                (p.clone(), m.what(*id), size)
            });
            out.insert(fs.clone(), list.collect());
        }
        out
    }
}

/// What administers the pool.
fn desk(opened: &Option<Opened>) -> Result<&Desk> {
    let desk = opened.as_ref().and_then(|o| o.desk.as_ref());
    desk.ok_or_else(|| Kind::NotFound.into())
}

/// Name of the snapshot that a clone is made with.
const FIRST: &str = "first";
