//! Replication inside of the pool: snapshots received into other file systems, broken off and gone on with;
//! and damaged blocks healed with streams.

use super::lineage::key;
use super::{desk, full, is_full, text, Outcome, World};
use crate::keys;
use crate::op::{Op, Transfer};
use crate::oracle::FsModel;
use api::{Receive, Send};
use base::{Kind, Result};
use disk::{BlkPtr, Dva};
use dsl::Dataset;
use env_sim::SeededRng;
use std::sync::Arc;

/// Blocks spoilt at a time.
const SPOILT: u64 = 4;
/// Blocks of a snapshot that are looked at for that.
const LOOKED_AT: usize = 4000;

/// How a snapshot gets to where it shall be.
enum Way {
    Whole,
    /// The newest snapshot both have.
    From(Arc<Dataset>),
    /// The token of what is there.
    GoOn(String),
}

/// What a target has that the base of a stream has not.
#[derive(Default)]
struct Since {
    /// Snapshots, which are given up.
    later: Vec<String>,
    /// Files are not as they were then.
    changed: bool,
}

/// Whether what a broken receive kept may be in the way of an operation.
pub(super) fn takes_away(op: &Op) -> bool {
    matches!(
        op,
        Op::DestroyFs { .. } | Op::DestroySnapshot { .. } | Op::Rollback { .. } | Op::Lineage(_)
    )
}

/// Whether an error says that a stream ended too early.
fn is_cut(e: &base::Error) -> bool {
    [Kind::Checksum, Kind::NoData]
        .map(Kind::errno)
        .contains(&e.kind.errno())
}

/// Options of a send: none, or large, embedded and compressed blocks.
fn options(dice: u64) -> Send {
    let (large_blocks, embedded, compressed) = (dice & 1 != 0, dice & 2 != 0, dice & 4 != 0);
    Send {
        large_blocks,
        embedded,
        compressed,
        ..Send::default()
    }
}

impl World {
    /// Names of file systems of which a broken receive kept something.
    fn partial(&self) -> Result<Vec<String>> {
        let mut out = Vec::new();
        let Some(pool) = self.pool() else {
            return Ok(out);
        };
        pool.dsl().walk(&pool.dsl().root()?, &mut |d| {
            if d.phys().head_dataset_obj == 0 || d.name().starts_with('$') {
                return Ok(());
            }
            let head = d.head()?;
            if d.name() != dsl::RECV && (head.is_inconsistent() || head.receiving()?.is_some()) {
                let name = d.full_name();
                out.push(name.split_once('/').map_or("", |(_, n)| n).to_string());
            }
            Ok(())
        })?;
        Ok(out)
    }

    /// Throws away what broken receives kept.
    pub(super) fn give_up_partial(&mut self) -> std::result::Result<(), String> {
        for fs in self.partial().map_err(text)? {
            let gone = desk(&self.opened).and_then(|d| d.receive_given_up(&fs));
            gone.map_err(|e| format!("giving up what '{fs}' kept of a stream: {e}"))?;
        }
        Ok(())
    }

    fn way(&mut self, fs: &str, snap: &str, to: &str) -> Result<Option<Way>> {
        let Some(pool) = self.pool().cloned() else {
            return Ok(None);
        };
        let guid = |ds: &Dataset| ds.phys().guid;
        let source = pool.dsl().dataset(&key(&full(fs), snap))?;
        let there = match pool.dsl().dataset(&full(to)) {
            Err(e) if e.kind == Kind::NotFound => return Ok(Some(Way::Whole)),
            there => there?,
        };
        let kept = match there.receiving()? {
            Some(kept) => Some(kept),
            None => there.is_inconsistent().then(|| there.clone()),
        };
        if let Some(kept) = kept {
            let state = kept.resume_state()?.unwrap_or_default();
            if state.to_guid == guid(&source) && state.to_name == key(&full(fs), snap) {
                let token = admin::datasets::props::resume_token(&kept)?;
                return Ok(token.map(Way::GoOn));
            }
            desk(&self.opened)?.receive_given_up(to)?;
            return self.way(fs, snap, to);
        }
        let own = there.snapshots()?;
        if own.iter().any(|(_, s)| guid(s) == guid(&source)) {
            return Ok(None);
        }
        let mut base = None;
        for (_, s) in pool.dsl().dataset(&full(fs))?.snapshots()? {
            if guid(&s) == guid(&source) {
                break;
            }
            if own.iter().any(|(_, o)| guid(o) == guid(&s)) {
                base = Some(s);
            }
        }
        Ok(base.map(Way::From))
    }

    /// Whether a stream is raw and of an encrypted file system.
    fn comes_sealed(&self, fs: &str, to: &str, way: &Way, how: Transfer) -> Result<bool> {
        match way {
            Way::GoOn(_) => {
                let pool = self.pool().ok_or(Kind::NotFound)?;
                let head = pool.dsl().dataset(&full(to))?;
                let kept = head.receiving()?.unwrap_or(head);
                Ok(kept.resume_state()?.is_some_and(|s| s.raw))
            }
            _ => Ok(how == Transfer::Raw && self.is_sealed(fs)?),
        }
    }

    /// Whether a raw increment to `base` cannot go where the same snapshot has other keys or another set of IVs.
    fn is_misfit(&self, to: &str, base: &Dataset) -> Result<bool> {
        let pool = self.pool().ok_or(Kind::NotFound)?;
        let head = pool.dsl().dataset(&full(to))?;
        let guid = base.phys().guid;
        let own = head.snapshots()?;
        let Some((_, own)) = own.iter().find(|(_, s)| s.phys().guid == guid) else {
            return Ok(false);
        };
        let key = |ds: &Dataset| -> Result<Option<u64>> {
            Ok(ds.dir().key_object()?.map(|k| k.wrapped.guid))
        };
        Ok(key(own)? != key(base)? || own.ivset_guid()? != base.ivset_guid()?)
    }

    /// `what`: file system, snapshot, target.
    pub(super) fn receive(
        &mut self,
        what: &[&String; 3],
        share: u64,
        how: Transfer,
    ) -> std::result::Result<Outcome, String> {
        match self.receive_in(what, share, how) {
            Err(e) if is_full(&e) => Ok(Outcome::Refused),
            r => r.map_err(text),
        }
    }

    /// What a target has beyond the base of a stream.
    fn since_base(&self, to: &str, way: &Way) -> Result<Since> {
        let base = match way {
            Way::From(base) => Some(base.phys().guid),
            Way::GoOn(_) => Some(self.resumed_base(to)?).filter(|guid| *guid != 0),
            Way::Whole => None,
        };
        let (Some(base), Some(pool)) = (base, self.pool()) else {
            return Ok(Since::default());
        };
        let own = pool.dsl().dataset(&full(to))?.snapshots()?;
        let at = own.iter().position(|(_, s)| s.phys().guid == base);
        let now = self.oracle.now();
        let was = at.and_then(|at| now.snaps.get(&key(to, &own[at].0)));
        let is = now.sets.get(to).map(|n| self.oracle.models[*n].freeze());
        let beyond = own.iter().skip(at.map_or(0, |at| at + 1));
        Ok(Since {
            later: beyond.map(|(name, _)| key(to, name)).collect(),
            changed: was.zip(is).is_none_or(|(was, is)| !was.is_same(&is)),
        })
    }

    fn receive_in(
        &mut self,
        [fs, snap, to]: &[&String; 3],
        share: u64,
        how: Transfer,
    ) -> Result<Outcome> {
        let now = self.oracle.now().clone();
        let Some(frozen) = now.snaps.get(&key(fs, snap)).cloned() else {
            return Ok(Outcome::Nothing);
        };
        if fs == to || to.is_empty() || to.contains('/') {
            return Ok(Outcome::Nothing);
        }
        let Some(way) = self.way(fs, snap, to)? else {
            return Ok(Outcome::Nothing);
        };
        if how == Transfer::Kept && !matches!(way, Way::From(_)) {
            return Ok(Outcome::Nothing);
        }
        let exists = now.sets.contains_key(*to);
        let mut ask = options(share + now.snaps.len() as u64);
        ask.target = key(&full(fs), snap);
        let Since { later, changed } = self.since_base(to, &way)?;
        let there = now.snaps.contains_key(&key(to, snap)) && !later.contains(&key(to, snap));
        if there || now.origins.values().any(|o| later.contains(o)) {
            return Ok(Outcome::Nothing);
        }
        let sealed = self.comes_sealed(fs, to, &way, how)?;
        let misfit = match &way {
            Way::From(base) if sealed => self.is_misfit(to, base)?,
            _ => false,
        };
        ask.raw = how == Transfer::Raw;
        let new_key = how == Transfer::Sealed && matches!(way, Way::Whole);
        match way {
            Way::Whole => {}
            Way::From(base) => ask.from = Some(base.full_name()),
            Way::GoOn(token) => {
                ask = Send {
                    token: Some(token),
                    ..Send::default()
                }
            }
        }
        self.held.clear();
        self.reap()?;
        let stream = desk(&self.opened)?.sent(&ask)?;
        // What comes sealed is received without its key.
        let away = sealed && share % 2 == 0 && self.forget_key(to, exists)?;
        let arrives = stream.len() as u64 * share.min(1000) / 1000;
        let stream = stream.get(..arrives as usize).unwrap_or(&stream);
        let ask = Receive {
            target: key(&full(to), snap),
            force: how != Transfer::Kept,
            resumable: true,
            no_mount: true,
            props: if new_key {
                keys::props(share)
            } else {
                Vec::new()
            },
            key: new_key.then(keys::secret),
            command: format!("zfs receive -sF {}", full(to)),
            ..Receive::default()
        };
        let done = desk(&self.opened)?.received(&ask, stream);
        if away && exists {
            self.mount(to)?;
        }
        let held = later
            .iter()
            .any(|s| now.holds.get(s).is_some_and(|tags| !tags.is_empty()));
        if how == Transfer::Kept {
            match &done {
                Ok(()) if changed || !later.is_empty() => {
                    base::bail!(Damaged, "a receive without -F took changes away")
                }
                Err(e) if e.kind == Kind::TextBusy => return Ok(Outcome::Refused),
                _ => {}
            }
        }
        match done {
            Ok(()) if misfit => base::bail!(Damaged, "a raw stream was received that does not fit"),
            Err(e) if misfit && matches!(e.kind, Kind::Access | Kind::Invalid) => {
                return Ok(Outcome::Refused)
            }
            Ok(()) if share < 1000 => base::bail!(Damaged, "a part of a stream was enough"),
            Ok(()) if held => base::bail!(Damaged, "a held snapshot was destroyed by a receive"),
            Err(e) if is_full(&e) => return Err(e),
            Err(_) if held => return Ok(Outcome::Done),
            // Nothing can be made of less than a record. Of a stream that ends before its BEGIN is confirmed
            // nothing is kept.
            Err(_) if arrives < disk::stream::RECORD as u64 => return Ok(Outcome::Done),
            Err(e) if share < 1000 && is_cut(&e) => return Ok(Outcome::Done),
            done => done?,
        }
        match exists {
            true if away => {}
            true => {
                let m = desk(&self.opened)?.mounted(to)?;
                if let Some(o) = &mut self.opened {
                    o.mounts.insert((*to).clone(), m);
                }
            }
            false => self.mount(to)?,
        }
        let (pos, n) = (self.pos(), self.oracle.op);
        let mut copy = (*frozen).clone();
        copy.born = self.born(to, snap)?;
        self.oracle.administered(pos, |a, models| {
            a.snaps.retain(|k, _| !later.contains(k));
            a.holds.retain(|k, _| !later.contains(k));
            a.sets.insert((*to).clone(), models.len());
            a.limits.insert((*to).clone(), frozen.limits.clone());
            a.snaps.insert(key(to, snap), Arc::new(copy));
            models.push(FsModel::new(&frozen, n));
        });
        Ok(Outcome::Done)
    }

    /// Unmounts a file system, if it is one, and forgets its key; false: others use that.
    fn forget_key(&mut self, fs: &str, exists: bool) -> Result<bool> {
        let Some(pool) = self.pool().cloned() else {
            return Ok(false);
        };
        match pool.dsl().dir(&full(fs)) {
            Err(e) if e.kind == Kind::NotFound => return Ok(false),
            dir => drop(dir?),
        }
        if exists {
            self.unmount(fs)?;
        }
        let gone = keys::unload(&pool, &full(fs))?;
        if exists && !gone {
            self.mount(fs)?;
        }
        Ok(gone)
    }

    /// Guid of the snapshot on which the stream is based that `to` kept a part of; 0: none.
    fn resumed_base(&self, to: &str) -> Result<u64> {
        let pool = self.pool().ok_or(Kind::NotFound)?;
        let head = pool.dsl().dataset(&full(to))?;
        let kept = head.receiving()?.unwrap_or(head);
        Ok(kept.resume_state()?.map_or(0, |s| s.from_guid))
    }

    /// Blocks of files in a snapshot.
    fn blocks(&self, fs: &str, snap: &str) -> Result<Vec<BlkPtr>> {
        let pool = self.pool().ok_or(Kind::NotFound)?;
        let ds = pool.dsl().dataset(&key(&full(fs), snap))?;
        let os = ds.open_objset(dmu::WritePolicy::default(), true)?;
        let (mut out, mut object) = (Vec::new(), 0);
        while let Some(o) = os.next_object(object)? {
            object = o;
            let dn = os.hold(o)?;
            let info = dn.info();
            for blkid in 0..=info.max_blkid {
                let bp = dn.block_pointer(blkid)?;
                if !bp.is_hole() && !bp.is_embedded() && !info.obj_type.is_metadata() {
                    out.push(bp);
                }
                if out.len() >= LOOKED_AT {
                    return Ok(out);
                }
            }
        }
        Ok(out)
    }

    /// Spoils blocks and heals them. What is between is not for the judges: the journal begins anew behind it.
    pub(super) fn heal(
        &mut self,
        fs: &str,
        snap: &str,
        seed: u64,
    ) -> std::result::Result<Outcome, String> {
        let there = self.oracle.now().snaps.contains_key(&key(fs, snap));
        let Some(pool) = self.pool().cloned().filter(|_| there) else {
            return Ok(Outcome::Nothing);
        };
        // Where devices fail, or miss blocks, others may be wrong as well.
        // Devices that refuse writes do not take what spoils a block.
        if self.counts.faults > 0 || self.waiting.is_armed() {
            return Ok(Outcome::Nothing);
        }
        let rng = SeededRng::new(seed);
        let mut ask = options(seed);
        ask.target = key(&full(fs), snap);
        let stream = desk(&self.opened)
            .and_then(|d| d.sent(&ask))
            .map_err(text)?;
        let all = self.blocks(fs, snap).map_err(text)?;
        let mut spoilt: Vec<BlkPtr> = Vec::new();
        for _ in 0..SPOILT {
            let Some(bp) = all.get(rng.below(all.len() as u64) as usize) else {
                return Ok(Outcome::Nothing);
            };
            let birth = bp.physical_birth();
            let all_there = |d: &Dva| pool.zio().devices.lacking(d.vdev(), birth).is_empty();
            let whole = bp.dvas().iter().all(|d| !d.is_gang() && all_there(d));
            if whole && !spoilt.iter().any(|s| s.dva(0) == bp.dva(0)) {
                spoilt.push(*bp);
            }
        }
        let zio = pool.zio();
        for bp in &spoilt {
            let mut wrong = zio.read_raw(bp).map_err(text)?;
            wrong.iter_mut().for_each(|b| *b ^= 0x5a);
            for dva in &bp.dvas() {
                let done = zio.devices.mend(dva, bp.physical_birth(), &wrong);
                done.map_err(text)?;
            }
            if zio.probe_raw(bp).is_ok() {
                return Err("a spoilt block is read".into());
            }
        }
        let ask = Receive {
            target: key(&full(fs), snap),
            corrective: true,
            command: format!("zfs receive -c {}", key(&full(fs), snap)),
            ..Receive::default()
        };
        let done = desk(&self.opened).and_then(|d| d.received(&ask, &stream));
        done.map_err(text)?;
        for bp in &spoilt {
            zio.probe_raw(bp)
                .map_err(|e| format!("it was not healed: {e}"))?;
        }
        if pool.error_count() != Some(0) {
            return Err("healed blocks are on the list of errors".into());
        }
        self.held.clear();
        self.reap().map_err(text)?;
        self.settle()?;
        self.imported = 0;
        Ok(Outcome::Done)
    }
}
