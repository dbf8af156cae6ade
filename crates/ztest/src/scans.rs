//! Scrubs and replaced devices under load. The devices a resilver read from are taken out of use afterwards.

use crate::desk::Desk;
use crate::layout;
use crate::Dice;
use admin::commands::{told, ROOT};
use admin::pools::{devices, scan};
use api::{DeviceAttach, PoolScrub, ScrubAction};
use base::{bail, Kind, Result};
use pool::Pool;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vdev::{Attach, DevSpec, State, Vdev, VdevKind};

/// A scan of this pool has ended by then, also on a busy machine.
const LONGEST: Duration = Duration::from_secs(240);
/// How often is asked whether it has.
const TICK: Duration = Duration::from_millis(20);
/// Devices in use are out of use for so long, milliseconds at most.
const AWAY: u64 = 300;

/// How a device of a dRAID is when a spare stands in for it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Whole,
    Away,
    Failed,
}

/// Whether something is refused that another thread, or what the pool lacks, stands against.
pub fn refused(e: &base::Error) -> bool {
    matches!(e.kind, Kind::Busy | Kind::NotFound | Kind::Exists)
}

impl Desk<'_> {
    /// One scrub is begun, paused or stopped, or the resilver under way begins anew.
    pub fn scan(&self, dice: &mut Dice) -> Result<()> {
        let name = &self.options().pool;
        let action = match dice.below(7) {
            0..=2 => ScrubAction::Start,
            5 => ScrubAction::Errors,
            3 => ScrubAction::Pause,
            4 => ScrubAction::Stop,
            _ => {
                let command = format!("zpool resilver {name}");
                return scan::resilver(self.admin(), ROOT, name, &command).map_err(told);
            }
        };
        let ask = PoolScrub {
            pool: name.clone(),
            action,
            command: format!("zpool scrub {name}"),
            ..PoolScrub::default()
        };
        match scan::scrub(self.admin(), ROOT, &ask).map_err(told) {
            Err(e) if refused(&e) => Ok(()),
            done => done,
        }
    }

    /// Trim or initialize of all devices is begun, suspended or stopped.
    pub fn wear(&self, dice: &mut Dice) -> Result<()> {
        if dice.below(4) == 0 {
            return self.prune(dice);
        }
        let what = match dice.below(4) {
            0 => api::WearKind::Initialize,
            _ => api::WearKind::Trim,
        };
        let action = match dice.below(6) {
            0..=3 => api::WearAction::Start,
            4 => api::WearAction::Suspend,
            _ => api::WearAction::Cancel,
        };
        let ask = api::PoolWear {
            pool: self.options().pool.clone(),
            what,
            action,
            command: "zpool trim".into(),
            ..api::PoolWear::default()
        };
        // What does not go for single devices is in the answer.
        match admin::pools::wear::wear(self.admin(), ROOT, &ask).map_err(told) {
            Err(e) if refused(&e) => Ok(()),
            done => done.map(drop),
        }
    }

    /// Waits until no scan is under way, unless `stop` says so; false: it was told to stop.
    fn settle(&self, pool: &Pool, stop: &dyn Fn() -> bool) -> Result<bool> {
        let until = Instant::now() + LONGEST;
        while pool.is_resilvering() {
            if stop() {
                return Ok(false);
            }
            if Instant::now() > until {
                bail!(Io, "a resilver does not end: {:?}", pool.scan_progress());
            }
            pool.sync()?;
            std::thread::sleep(TICK);
        }
        Ok(true)
    }

    /// Paths of so many images of at least `size` bytes that no device of the pool is on: those that left, and new ones.
    pub fn idle_images(&self, pool: &Pool, count: usize, size: u64) -> Result<Vec<String>> {
        let leaves = pool.tree().leaves();
        let used: Vec<String> = leaves.iter().filter_map(|l| l.path()).collect();
        let mut out = Vec::new();
        for image in layout::disks(self.options()) {
            let path = layout::absolute(&image)?;
            let fits = layout::size_of(&image)? >= size;
            if fits && !used.contains(&path) && out.len() < count {
                out.push(path);
            }
        }
        while out.len() < count {
            let image = layout::add_image(self.options(), size)?;
            out.push(layout::absolute(&image)?);
        }
        Ok(out)
    }

    /// One that can take the place of a leaf.
    pub fn idle_image(&self, pool: &Pool, leaf: &Vdev) -> Result<String> {
        let size = match leaf.path() {
            Some(path) => layout::size_of(Path::new(&path))?,
            None => self.options().size,
        };
        Ok(self.idle_images(pool, 1, size)?.remove(0))
    }

    /// A leaf of any mirror or RAID-Z that is whole, with its top-level vdev.
    fn any_leaf(pool: &Pool, dice: &mut Dice) -> Option<(Arc<Vdev>, Arc<Vdev>)> {
        let tops = pool.tree().tops();
        let top = tops.get(dice.below(tops.len() as u64) as usize)?;
        if top.is_log() || !top.is_concrete() {
            return None;
        }
        let leaves = top.leaves();
        let leaf = leaves.get(dice.below(leaves.len() as u64) as usize)?;
        let whole = leaves
            .iter()
            .all(|l| l.state().usable() && l.dtl_is_empty());
        whole.then(|| (top.clone(), leaf.clone()))
    }

    /// A device is replaced by another image, or one more is put beside it. When it is filled, the devices that it was filled from
    /// are out of use for a moment, as many as can be.
    pub fn replace(&self, dice: &mut Dice, stop: &dyn Fn() -> bool) -> Result<()> {
        let pool = self.pool()?;
        let Some((top, leaf)) = Self::any_leaf(&pool, dice) else {
            return Ok(());
        };
        let raidz = matches!(top.kind(), VdevKind::Raidz { .. });
        let draid = matches!(top.kind(), VdevKind::Draid { .. });
        let how = match !raidz && !draid && dice.below(2) == 0 {
            true => Attach::Mirror,
            false => Attach::Replace,
        };
        let path = self.idle_image(&pool, &leaf)?;
        let sequential = !raidz && dice.below(2) == 0;
        match self.fill(&pool, &leaf, &path, (how, sequential), stop) {
            Err(e) if refused(&e) => return Ok(()),
            Ok(false) => return Ok(()),
            done => done?,
        };
        let taken = self.take_away(&pool, &path)?;
        if taken.is_empty() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(dice.below(AWAY)));
        self.bring_back(&taken)?;
        // Mirrors stay as wide as they were, about.
        if how == Attach::Mirror && self.settle(&pool, stop)? {
            if let Err(e) = pool.detach(leaf.guid()) {
                if !refused(&e) && e.kind != Kind::Unsupported {
                    return Err(e);
                }
            }
        }
        Ok(())
    }

    /// Whether any top-level vdev is a dRAID.
    pub fn has_distributed_spares(&self) -> Result<bool> {
        let tops = self.pool()?.tree().tops();
        Ok(tops
            .iter()
            .any(|t| matches!(t.kind(), VdevKind::Draid { .. })))
    }

    /// A device of a dRAID is put out of use, or not, and a distributed spare stands in for it. When that is filled, other devices
    /// are out of use for a moment, as many as can be. Then the device comes back, or is replaced, and the spare goes.
    pub fn spare(&self, dice: &mut Dice, stop: &dyn Fn() -> bool) -> Result<()> {
        let pool = self.pool()?;
        self.give_back(&pool)?;
        let Some((top, leaf)) = Self::any_leaf(&pool, dice) else {
            return Ok(());
        };
        let VdevKind::Draid {
            nparity, nspares, ..
        } = top.kind()
        else {
            return Ok(());
        };
        let Some(path) = leaf.path().filter(|_| leaf.state().usable()) else {
            return Ok(());
        };
        let way = [Way::Whole, Way::Away, Way::Failed][dice.below(3) as usize];
        if way != Way::Whole {
            let how = pool::Offline {
                temporary: dice.below(2) == 0,
                fault: way == Way::Failed,
            };
            match pool.offline(leaf.guid(), how) {
                Err(e) if refused(&e) => return Ok(()),
                done => done?,
            }
        }
        let name = format!("draid{nparity}-{}-{}", top.id(), dice.below(nspares));
        if way == Way::Failed {
            // The agent lets one stand in that is free.
            self.look()?;
        } else {
            self.stand_in(&path, &name, dice.below(2) == 0)?;
        }
        if !self.settle(&pool, stop)? || stop() {
            return Ok(());
        }
        let taken = self.take_away(&pool, &path)?;
        std::thread::sleep(Duration::from_millis(dice.below(AWAY)));
        self.bring_back(&taken)?;
        if !self.settle(&pool, stop)? || stop() {
            return Ok(());
        }
        if way == Way::Away && dice.below(2) == 0 {
            self.bring_back(&[path])?;
        } else if way != Way::Whole {
            let new = self.idle_image(&pool, &leaf)?;
            let how = (Attach::Replace, dice.below(2) == 0);
            match self.fill(&pool, &leaf, &new, how, stop) {
                Err(e) if refused(&e) => return Ok(()),
                done => done?,
            };
        }
        self.settle(&pool, stop)?;
        Ok(())
    }

    /// `zpool replace` with a distributed spare. One that is in use, or a device that is replaced already, stays as it is.
    fn stand_in(&self, device: &str, spare: &str, sequential: bool) -> Result<()> {
        let name = &self.options().pool;
        let ask = DeviceAttach {
            pool: name.clone(),
            device: device.into(),
            new: Some(spare.into()),
            replace: true,
            sequential,
            command: format!("zpool replace {name} {device} {spare}"),
            ..DeviceAttach::default()
        };
        match devices::attach(self.admin(), ROOT, &ask).map_err(told) {
            Err(e) if refused(&e) || e.kind == Kind::Invalid => Ok(()),
            done => done,
        }
    }

    /// What a pass left that was killed, or told to stop: devices come back, and spares go that are not needed.
    fn give_back(&self, pool: &Pool) -> Result<()> {
        let leaves = pool.tree().leaves();
        let away = leaves.iter().filter(|l| l.state() == State::Offline);
        let paths: Vec<String> = away.filter_map(|l| l.path()).collect();
        self.bring_back(&paths)?;
        for group in pool
            .tree()
            .all()
            .iter()
            .filter(|g| g.kind() == VdevKind::Spare)
        {
            let whole = |v: &Arc<Vdev>| v.dtl_holders().iter().all(|l| l.dtl_is_empty());
            let spare = group.children().last().filter(|_| {
                let first = group.children().first();
                first.is_some_and(|f| f.state() == State::Healthy && whole(f))
            });
            let Some(spare) = spare else { continue };
            match pool.detach(spare.guid()) {
                Err(e) if refused(&e) => {}
                done => done?,
            }
        }
        Ok(())
    }

    /// Puts a device beside a leaf and has it filled, sequentially or by a resilver; false: it was told to stop.
    pub fn fill(
        &self,
        pool: &Pool,
        leaf: &Vdev,
        path: &str,
        (how, sequential): (Attach, bool),
        stop: &dyn Fn() -> bool,
    ) -> Result<bool> {
        let dev = DevSpec::file(path);
        match sequential {
            true => pool.attach_sequentially(leaf.guid(), &dev, how, None)?,
            false => pool.attach(leaf.guid(), &dev, how, None)?,
        };
        Ok(self.settle(pool, stop)? && !stop())
    }

    /// Takes all other devices of the group out of use that its layout can spare; which.
    pub fn take_away(&self, pool: &Pool, but: &str) -> Result<Vec<String>> {
        let tops = pool.tree().tops();
        let on = |t: &&Arc<Vdev>| t.leaves().iter().any(|l| l.path().as_deref() == Some(but));
        let Some(top) = tops.iter().find(on) else {
            return Ok(Vec::new());
        };
        let name = &self.options().pool;
        let how = pool::Offline {
            temporary: true,
            fault: false,
        };
        let mut taken = Vec::new();
        for path in top.leaves().iter().filter_map(|l| l.path()) {
            let out = |l: &Arc<Vdev>| !l.state().usable() && l.path().as_ref() == Some(&path);
            if path == but || top.leaves().iter().any(out) || !Path::new(&path).is_absolute() {
                continue;
            }
            let command = format!("zpool offline -t {name} {path}");
            match devices::offline(self.admin(), ROOT, name, &path, how, &command).map_err(told) {
                Ok(()) => taken.push(path),
                Err(e) if refused(&e) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(taken)
    }

    pub fn bring_back(&self, taken: &[String]) -> Result<()> {
        let name = &self.options().pool;
        for path in taken {
            let command = format!("zpool online {name} {path}");
            match devices::online(self.admin(), ROOT, name, path, false, &command).map_err(told) {
                Ok(None) => {}
                Ok(Some(warning)) => bail!(Io, "{warning}"),
                Err(e) if refused(&e) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desk::tests::on_pool;
    use crate::layout::Layout;
    use base::mutation::{mutate, Mutation};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use vdev::GroupKind;
    use zpl::{Cred, New, WriteOpts};

    const NEVER: &dyn Fn() -> bool = &|| false;

    fn mirror(width: u64) -> Layout {
        Layout {
            kind: GroupKind::Mirror,
            tops: 1,
            width,
            ashift: 12,
        }
    }

    /// A file of so many pieces of 256 KiB, which are whole blocks of any size.
    fn write(fs: &crate::layout::Fs, name: &str, pieces: u64) -> Result<()> {
        const PIECE: u64 = 256 << 10;
        let (top, root) = (fs.zfs.root()?, Cred::root());
        let new = New::file(0o100_644, 0);
        let z = fs.zfs.create(&top, name.as_bytes(), &new, &root)?;
        for n in 0..pieces {
            let byte = |i: u64| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ n) >> 40) as u8;
            let data: Vec<u8> = (0..PIECE).map(byte).collect();
            fs.zfs.write(&z, n * PIECE, &data, WriteOpts::default())?;
        }
        Ok(())
    }

    /// What is left when all but `stays` are out of use.
    fn judged(d: &Desk<'_>, pool: &Pool, stays: &str) -> Result<()> {
        mutate(None);
        let taken = d.take_away(pool, stays)?;
        if taken.is_empty() {
            bail!(Damaged, "nothing can be taken away: {:?}", pool.tree());
        }
        let judged = crate::lives::judge(pool).map_err(|e| base::Error::new(Kind::Damaged, e));
        d.bring_back(&taken)?;
        judged
    }

    fn attached(d: &Desk<'_>, sequential: bool, mistake: Option<Mutation>) -> Result<()> {
        let pool = d.pool()?;
        let fs = d.mount(0, &mut Dice::new(1))?;
        write(&fs, "before", 2)?;
        pool.sync()?;
        // What is written while its txg is open is on the old device only.
        pool.dmu().set_early(4096, 16 << 10);
        write(&fs, "early", 30)?;
        mutate(mistake);
        let leaf = pool.tree().leaves()[0].clone();
        let path = d.idle_image(&pool, &leaf)?;
        d.fill(&pool, &leaf, &path, (Attach::Mirror, sequential), NEVER)?;
        let judged = judged(d, &pool, &path);
        d.unmount(fs)?;
        judged
    }

    #[test]
    fn an_attached_device_stands_alone_and_a_txg_it_lacks_is_found() {
        on_pool("attach", &mirror(2), |d| attached(d, false, None)).unwrap();
        let mistake = Some(Mutation::AttachedTxgTooFew);
        let found = on_pool("attach-few", &mirror(2), |d| attached(d, false, mistake));
        eprintln!("{mistake:?}: {}", found.expect_err("not found"));
    }

    #[test]
    fn a_rebuilt_device_stands_alone_and_a_rebuild_that_ends_early_is_found() {
        on_pool("rebuild", &mirror(2), |d| attached(d, true, None)).unwrap();
        let mistake = Some(Mutation::RebuildEndsEarly);
        let found = on_pool("rebuild-early", &mirror(2), |d| attached(d, true, mistake));
        eprintln!("{mistake:?}: {}", found.expect_err("not found"));
    }

    const DRAID: Layout = Layout {
        kind: GroupKind::Draid {
            nparity: 1,
            ndata: 2,
            nspares: 1,
        },
        tops: 1,
        width: 5,
        ashift: 12,
    };

    /// The spare stands in for a device that is out of use. Each of the others is out of use once, and everything is read.
    fn spared(d: &Desk<'_>, mistake: Option<Mutation>) -> Result<()> {
        let pool = d.pool()?;
        let fs = d.mount(0, &mut Dice::new(1))?;
        write(&fs, "before", 8)?;
        pool.sync()?;
        let leaves = pool.tree().leaves();
        let how = pool::Offline {
            temporary: true,
            fault: false,
        };
        pool.offline(leaves[1].guid(), how)?;
        mutate(mistake);
        let path = |l: &Vdev| l.path().unwrap_or_default();
        d.stand_in(&path(&leaves[1]), "draid1-0-0", true)?;
        d.settle(&pool, NEVER)?;
        mutate(None);
        if stand_ins(&pool) != 1 {
            bail!(Damaged, "no spare stands in: {:?}", pool.tree());
        }
        let mut judged = Ok(());
        for leaf in [0, 2, 3, 4] {
            pool.offline(leaves[leaf].guid(), how)?;
            judged = judged.and_then(|()| crate::lives::judge(&pool));
            d.bring_back(&[path(&leaves[leaf])])?;
            d.settle(&pool, NEVER)?;
        }
        d.unmount(fs)?;
        judged.map_err(|e| base::Error::new(Kind::Damaged, e))
    }

    /// Distributed spares that stand in for something.
    fn stand_ins(pool: &Pool) -> usize {
        let all = pool.tree().dtl_holders();
        all.iter().filter(|v| v.kind() == VdevKind::Dspare).count()
    }

    #[test]
    fn a_distributed_spare_is_as_good_as_a_disk_and_a_rebuild_that_ends_early_is_found() {
        on_pool("spare", &DRAID, |d| spared(d, None)).unwrap();
        let mistake = Some(Mutation::RebuildEndsEarly);
        let found = on_pool("spare-early", &DRAID, |d| spared(d, mistake));
        eprintln!("{mistake:?}: {}", found.expect_err("not found"));
    }

    #[test]
    fn distributed_spares_come_and_go_and_nothing_is_lost() {
        let two = Layout {
            kind: GroupKind::Draid {
                nparity: 2,
                ndata: 2,
                nspares: 2,
            },
            width: 7,
            ..DRAID
        };
        for (name, layout) in [("spares-1", DRAID), ("spares-2", two)] {
            on_pool(name, &layout, |d| {
                let fs = d.mount(0, &mut Dice::new(1))?;
                write(&fs, "f", 8)?;
                let pool = d.pool()?;
                // Is asked while spares are filled.
                let most = AtomicUsize::new(0);
                let look = || {
                    most.fetch_max(stand_ins(&pool), Ordering::Relaxed);
                    false
                };
                for seed in 0..9 {
                    let mut dice = Dice::new(seed);
                    d.spare(&mut dice, &look)?;
                    d.scan(&mut dice)?;
                }
                assert!(most.into_inner() > 0, "no spare stood in");
                d.settle(&pool, NEVER)?;
                d.give_back(&pool)?;
                d.settle(&pool, NEVER)?;
                d.unmount(fs)?;
                crate::lives::judge(&pool).map_err(|e| base::Error::new(Kind::Damaged, e))
            })
            .unwrap();
        }
    }

    /// Two sides of three miss something; the second comes back while the first is filled.
    fn two_come_back(d: &Desk<'_>, mistake: Option<Mutation>) -> Result<()> {
        let pool = d.pool()?;
        let fs = d.mount(0, &mut Dice::new(1))?;
        let sides: Vec<Arc<Vdev>> = pool.tree().leaves();
        let how = pool::Offline {
            temporary: true,
            fault: false,
        };
        write(&fs, "before", 2)?;
        pool.sync()?;
        pool.offline(sides[1].guid(), how)?;
        pool.offline(sides[2].guid(), how)?;
        write(&fs, "missed", 50)?;
        pool.sync()?;
        mutate(mistake);
        pool.online(sides[1].guid())?;
        // More than a tenth is done: a second one waits for a resilver of its own.
        while pool
            .scan_progress()?
            .is_some_and(|s| s.state.state == disk::scan::ScanState::Scanning && s.issued < 2 << 20)
        {
            pool.sync()?;
        }
        pool.online(sides[2].guid())?;
        d.settle(&pool, NEVER)?;
        let judged = judged(d, &pool, &sides[2].path().unwrap_or_default());
        d.unmount(fs)?;
        judged
    }

    #[test]
    fn devices_that_come_back_in_turn_stand_alone_and_a_range_too_many_is_found() {
        on_pool("back", &mirror(3), |d| two_come_back(d, None)).unwrap();
        let mistake = Some(Mutation::DtlDropsMore);
        let found = on_pool("back-more", &mirror(3), |d| two_come_back(d, mistake));
        eprintln!("{mistake:?}: {}", found.expect_err("not found"));
    }

    #[test]
    fn devices_are_replaced_and_scrubbed_and_nothing_is_lost() {
        for (name, layout) in [
            ("replace-mirror", mirror(2)),
            (
                "replace-raidz",
                Layout {
                    kind: GroupKind::Raidz { nparity: 1 },
                    width: 3,
                    ..mirror(1)
                },
            ),
        ] {
            on_pool(name, &layout, |d| {
                let fs = d.mount(0, &mut Dice::new(1))?;
                write(&fs, "f", 8)?;
                for seed in 0..4 {
                    let mut dice = Dice::new(seed);
                    d.replace(&mut dice, NEVER)?;
                    d.scan(&mut dice)?;
                }
                let pool = d.pool()?;
                d.settle(&pool, NEVER)?;
                d.unmount(fs)?;
                crate::lives::judge(&pool).map_err(|e| base::Error::new(Kind::Damaged, e))
            })
            .unwrap();
        }
    }
}
