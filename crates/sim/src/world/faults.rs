//! Faults, power cuts, and what follows: export, import, replay.

use super::{desk, text, Outcome, World, BURST};
use crate::alike::{Crowd, AUDIT};
use crate::check::{self, Opened};
use crate::cut::{Cutter, Fate, Image, FATES};
use crate::desk::Desk;
use crate::op::{Change, Fault, Op};
use crate::oracle::{Admin, Oracle};
use crate::rig;
use crate::sources;
use base::sync::MutexExt;
use base::Result;
use env_sim::SeededRng;
use std::sync::atomic::Ordering::Relaxed;

impl World {
    /// Unmounting and mounting, exporting and importing.
    pub(super) fn again(&mut self, op: &Op) -> Result<Outcome> {
        match op {
            Op::Remount { fs } if self.mounted(fs).is_some() => {
                self.unmount(fs)?;
                let pos = self.pos();
                let n = self.oracle.op;
                if let Some(m) = self.oracle.fs_mut(fs) {
                    m.ack(n, pos, None);
                }
                self.mount(fs)?;
            }
            Op::Reimport => {
                let Some(pool) = self.pool().cloned() else {
                    return Ok(Outcome::Nothing);
                };
                for fs in self.oracle.now().sets.keys().cloned().collect::<Vec<_>>() {
                    self.unmount(&fs)?;
                }
                desk(&self.opened)?.export()?;
                let pos = self.pos();
                self.oracle.ack_all(pos);
                self.opened = None;
                // An import does not wait for devices.
                self.waiting.disarm();
                // If the import panics: its first txg may use what this one freed.
                self.first = pool.synced_txg();
                drop(pool);
                let seed = self.next_seed();
                let o = Opened::import(&self.disks, &self.layout, seed, &self.clock)?;
                self.first = o.pool.first_txg();
                self.opened = Some(o);
                self.lend_patience();
            }
            _ => return Ok(Outcome::Nothing),
        }
        Ok(Outcome::Done)
    }

    pub(super) fn next_seed(&self) -> u64 {
        SeededRng::new(self.seed ^ self.counts.operations << 20).next()
    }

    /// Changes the device tree. What was done before is on disk then.
    pub(super) fn device(&mut self, disk: usize, change: Change) -> Result<Outcome> {
        let Some(pool) = self.pool().cloned() else {
            return Ok(Outcome::Nothing);
        };
        // With one side each, mirrors bear nothing.
        if self.oracle.half.is_some() {
            return Ok(Outcome::Nothing);
        }
        let path = rig::path(disk);
        let known = |disk| pool.tree().find_by_name(&rig::path(disk));
        let found = known(disk).map(|v| v.guid());
        let tops = pool.tree().tops();
        let beside = tops.iter().find(|t| t.is_concrete() && !t.is_log());
        let beside = beside.map(|t| t.leaves());
        let beside = beside.into_iter().flatten().find(|l| l.state().usable());
        let persistent = pool::Offline {
            temporary: false,
            fault: false,
        };
        // From now on fewer devices may be missing than the layout allows.
        self.counts.faults += 1;
        self.content.changed();
        let arrives = match change {
            Change::Attach | Change::AttachInOrder => Some((disk, false)),
            Change::Replace(_) => Some((disk, false)),
            Change::ReplaceInOrder(_) => Some((disk, self.layout.spares() > 0)),
            Change::Spare(n) => Some((sources::spare(n), false)),
            Change::SpareInOrder(n) => Some((sources::spare(n), true)),
            _ => None,
        };
        let attach = match change {
            Change::AttachInOrder | Change::ReplaceInOrder(_) => pool::Pool::attach_sequentially,
            _ => pool::Pool::attach,
        };
        let done = match (change, found, beside) {
            (Change::Offline, Some(guid), _) => pool.offline(guid, persistent),
            (Change::Online, Some(guid), _) => pool.online(guid).map(drop),
            (Change::Detach, Some(guid), _) => pool.detach(guid),
            (Change::Attach | Change::AttachInOrder, None, Some(beside)) => {
                let dev = vdev::DevSpec::file(&path);
                let how = vdev::Attach::Mirror;
                attach(&pool, beside.guid(), &dev, how, None).map(drop)
            }
            (Change::Replace(of) | Change::ReplaceInOrder(of), None, _) => {
                let Some(old) = known(of).filter(|v| v.kind().is_leaf()) else {
                    return Ok(Outcome::Nothing);
                };
                let dev = vdev::DevSpec::file(&path);
                let how = vdev::Attach::Replace;
                attach(&pool, old.guid(), &dev, how, None).map(drop)
            }
            (Change::Spare(n) | Change::SpareInOrder(n), Some(_), _) => {
                let sequential = matches!(change, Change::SpareInOrder(_));
                desk(&self.opened)?.spare(disk, n, sequential)
            }
            (Change::DetachSpare, Some(guid), _) => match sources::spare_for(&pool, guid) {
                Some(spare) => pool.detach(spare.guid()),
                None => return Ok(Outcome::Nothing),
            },
            (Change::Log, Some(guid), _) => {
                let top = pool.tree().leaf_of(guid).map(|(top, _)| top.id());
                top.and_then(|id| pool.remove_log(id))
            }
            (Change::Log, None, _) => {
                let log = vdev::TopSpec {
                    devices: vec![vdev::DevSpec::file(&path)],
                    ..rig::log_on(disk, &self.layout)
                };
                pool.add_top(&log).map(drop)
            }
            _ => return Ok(Outcome::Nothing),
        };
        match done {
            // It is needed, or cannot be written.
            Err(e) if pool.suspended().is_none() && e.kind != base::Kind::Damaged => {
                Ok(Outcome::Refused)
            }
            Err(e) => Err(e),
            Ok(()) => {
                if let Some((target, unverified)) = arrives {
                    self.arrives(&pool, target, unverified);
                }
                let pos = self.pos();
                self.oracle.ack_all(pos);
                Ok(Outcome::Done)
            }
        }
    }

    /// The fault agent looks at the devices, and does something if one has failed.
    pub(super) fn look(&mut self) -> Result<Outcome> {
        let Some(pool) = self.pool().cloned() else {
            return Ok(Outcome::Nothing);
        };
        let before = sources::spares_in_use(&pool);
        self.counts.faults += 1;
        self.content.changed();
        desk(&self.opened)?.look()?;
        for spare in sources::spares_in_use(&pool) {
            if !before.contains(&spare) {
                self.arrives(&pool, spare, true);
            }
        }
        Ok(Outcome::Done)
    }

    pub(super) fn fault(&mut self, disk: usize, fault: Fault) -> Outcome {
        let Some(d) = self.disks.get(disk) else {
            return Outcome::Nothing;
        };
        if self.oracle.half.is_some() {
            return Outcome::Nothing;
        }
        self.counts.faults += 1;
        self.content.fault(disk, fault);
        match fault {
            Fault::Garbage => {
                d.corrupt_written(disk::label::DATA_START);
                // Garbage of garbage is what was there first: labels at the end must not come back.
                let whole = vdev::label::read_labels(&**d);
                for (label, at) in check::areas(d) {
                    if at >= disk::label::DATA_START && whole.copies[label].is_some() {
                        d.corrupt(at, 512);
                    }
                }
            }
            Fault::Rot(n, seed) => {
                let rng = SeededRng::new(seed);
                let mut chunks = Vec::new();
                d.for_each_chunk(&mut |at, b| chunks.push((at, b.len() as u64)));
                for _ in 0..if chunks.is_empty() { 0 } else { n } {
                    let (at, len) = chunks[rng.below(chunks.len() as u64) as usize];
                    d.corrupt(at + rng.below(len / 512) * 512, 512);
                }
            }
            Fault::ReadErrors(n) => d.read_errors.store(n, Relaxed),
            Fault::WriteErrors(n) => d.write_errors.store(n, Relaxed),
            Fault::Phantom(n) => d.phantom.store(n, Relaxed),
            Fault::Misdirect(n) => {
                *d.misdirect.acquire() = Some(n);
            }
            Fault::Dead => d.dead.store(true, Relaxed),
            Fault::Slow(ms) => d.stall(&self.clock, ms * 1_000_000),
            Fault::Over => d.well(),
        }
        Outcome::Done
    }

    /// The power goes; some of the images that may be left are judged, and life goes on with one.
    pub(super) fn cut(
        &mut self,
        back: u64,
        fate: Fate,
        seed: u64,
    ) -> std::result::Result<(), String> {
        let events = self.journal.take();
        self.hash.events(&events);
        self.counts.events += events.len() as u64;
        self.forget();
        self.comparable.clear();
        let len = events.len() as u64;
        let rng = SeededRng::new(seed);
        let at = (len - len * back.min(1000) / 1000) as usize;
        let mut moments: Vec<(usize, Fate)> = (0..self.more_images)
            .map(|_| {
                let at = rng.below(len + 1) as usize;
                (at, FATES[rng.below(5) as usize])
            })
            .collect();
        moments.push((at, fate));
        moments.sort_by_key(|m| m.0);
        let labels = check::Labels::of(&self.base, &events);
        let judge = |m: usize| check::Judge {
            layout: &self.layout,
            clock: &self.clock,
            oracle: &self.oracle,
            labels: &labels,
            cut: m,
            healthy: self.counts.faults == 0,
            imported: m >= self.imported,
            first: self.first,
            care: check::Care::Full,
            spoilt: self.content.lately(),
        };
        if self.extra_images > 0 {
            let mut crowd = Crowd::new(seed, 1, AUDIT);
            let mut cutter = Cutter::numbered(&self.base, events.clone());
            let rng = SeededRng::new(seed ^ 0xe87a);
            // Many of few moments: those are alike.
            let bursts = self.extra_images.div_ceil(BURST);
            let mut extra: Vec<usize> = (0..bursts).map(|_| rng.below(len + 1) as usize).collect();
            extra.sort_unstable();
            for m in extra {
                cutter.forward(m);
                for n in 0..self.extra_images / bursts {
                    // All lost and all kept once, then nothing but mixtures.
                    let fate = match n {
                        0 => Fate::Lost,
                        1 => Fate::Kept,
                        _ if cutter.unflushed() == 0 => break,
                        _ => FATES[2 + rng.below(3) as usize],
                    };
                    if let Some(Err(e)) = crowd.image(&cutter, fate, &rng, &judge(m)) {
                        return Err(format!("image at event {m} of {len} ({fate:?}): {e}"));
                    }
                }
            }
            self.counts.images += crowd.images;
            self.counts.apart += crowd.apart;
        }
        let mut cutter = Cutter::new(&self.base, events);
        let mut next = None;
        for (m, f) in moments {
            cutter.forward(m);
            let image = cutter.image(f, &SeededRng::new(seed ^ m as u64));
            let chosen = (m, f) == (at, fate) && next.is_none();
            self.counts.images += 1;
            self.counts.apart += 1;
            let kept: Image = image.iter().map(|d| d.fork()).collect();
            let what = |e: String| format!("image at event {m} of {len} ({f:?}): {e}");
            let key = seed ^ m as u64;
            let found = judge(m).image(&image, key).map_err(what)?;
            if let Some(z) = self.foreign.as_ref().filter(|z| z.wants(key)) {
                z.judge(&kept, "logs not replayed").map_err(what)?;
                z.judge(&image, "after the judges").map_err(what)?;
            }
            if chosen {
                next = Some((kept, found));
            }
        }
        let Some((image, found)) = next else {
            return Err("no image".into());
        };
        self.go_on(image, &found)
    }

    /// The process ends in the middle of an operation: all that was in memory is gone, nothing of what
    /// the devices were given. What is left is judged by `oracle`, and life goes on with it.
    pub fn died(&mut self, oracle: &Oracle, key: u64) -> std::result::Result<(), String> {
        let kept: Image = self.disks.iter().map(|d| d.fork()).collect();
        let events = self.journal.take();
        self.counts.events += events.len() as u64;
        self.forget();
        let judge = check::Judge {
            layout: &self.layout,
            clock: &self.clock,
            oracle,
            labels: &check::Labels::of(&self.base, &events),
            // Behind everything that was acknowledged.
            cut: usize::MAX - 1,
            healthy: self.counts.faults == 0,
            imported: true,
            first: self.first,
            care: check::Care::Full,
            spoilt: self.content.lately(),
        };
        let image: Image = kept.iter().map(|d| d.fork()).collect();
        self.counts.images += 1;
        self.counts.apart += 1;
        let found = judge.image(&image, key)?;
        self.go_on(kept, &found)
    }

    /// A new process imports what is left.
    pub(super) fn go_on(&mut self, image: Image, found: &Admin) -> std::result::Result<(), String> {
        self.disks = image;
        self.content.cut();
        self.clock.pass(60_000_000_000);
        let (journal, base) = rig::start_journal(&self.disks);
        (self.journal, self.base) = (journal, base);
        let seed = self.next_seed();
        let o = Opened::import(&self.disks, &self.layout, seed, &self.clock).map_err(text)?;
        self.imported = self.journal.len();
        self.first = o.pool.first_txg();
        let half = self.oracle.half.take();
        self.oracle = o.adopt(found)?;
        self.opened = Some(o);
        self.lend_patience();
        let pos = self.pos();
        self.oracle.ack_all(pos);
        self.after_split(half)
    }

    /// The pool is exported, and judged.
    pub fn export(&mut self) -> std::result::Result<(), String> {
        let sets: Vec<String> = self.oracle.now().sets.keys().cloned().collect();
        for fs in sets {
            self.unmount(&fs)
                .map_err(|e| format!("unmounting '{fs}' at the end: {e}"))?;
        }
        if self.opened.is_some() {
            let r = desk(&self.opened).and_then(Desk::export);
            r.map_err(|e| format!("exporting at the end: {e}"))?;
            self.opened = None;
        }
        match &self.foreign {
            Some(z) => z.judge(&self.disks, "exported"),
            None => Ok(()),
        }
    }

    /// The process is gone, with all it had in memory.
    pub fn forget(&mut self) {
        self.held.clear();
        self.waiting.disarm();
        if let Some(o) = self.opened.take() {
            o.forget();
        }
    }

    /// Everything is on disk, and the journal begins anew.
    pub fn settle(&mut self) -> std::result::Result<(), String> {
        if let Some(o) = &self.opened {
            o.pool.sync().map_err(text)?;
        }
        let (journal, base) = rig::start_journal(&self.disks);
        (self.journal, self.base) = (journal, base);
        self.waiting.follow(&self.journal);
        self.oracle.restart();
        Ok(())
    }
}
