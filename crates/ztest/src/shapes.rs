//! Pools that grow and shrink under load: a RAID-Z gets another disk, top-level vdevs come, and those that are no dRAID go with all they hold. Checkpoints
//! are taken and discarded; another process looks whether all that a checkpoint has can be read ([`judge_checkpoint`]).

use crate::desk::Desk;
use crate::layout;
use crate::options::Options;
use crate::scans::refused;
use crate::Dice;
use admin::commands::{told, ROOT};
use admin::pools::{checkpoint, devices};
use api::{DeviceAttach, PoolAdd, VdevClass, VdevKind as SpecKind, VdevSpec};
use base::{bail, Kind, Result};
use pool::{OpenOptions, Pool};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vdev::{Vdev, VdevKind};

/// Most disks of a RAID-Z, and most top-level vdevs with data: further ones only take time.
const WIDEST: usize = 8;
const MOST_TOPS: usize = 4;
/// Bytes of the images of a new top-level vdev at least: the rest of a pool must have room for the whole of a vdev that goes, and for
/// slop space.
const LARGE: u64 = 640 << 20;
/// An expansion or a removal of this pool has ended by then, also on a busy machine.
const LONGEST: Duration = Duration::from_secs(240);
/// How often is asked whether it has.
const TICK: Duration = Duration::from_millis(20);
/// Devices in use are out of use for so long, milliseconds at most.
const AWAY: u64 = 300;

/// Whether a change of shape is refused because of what others do, or of what there is no room for.
fn not_now(e: &base::Error) -> bool {
    refused(e) || matches!(e.kind, Kind::NoSpace | Kind::Unsupported | Kind::Invalid)
}

/// The top-level vdevs that hold data.
pub fn data(pool: &Pool) -> Vec<Arc<Vdev>> {
    let tops = pool.tree().tops();
    let data = tops.iter().filter(|t| t.is_concrete() && !t.is_log());
    data.cloned().collect()
}

/// What a vdev like `like` is asked for as, if it has several disks.
fn group_of(like: &Vdev) -> SpecKind {
    match like.kind() {
        VdevKind::Draid {
            nparity,
            ndata,
            nspares,
        } => SpecKind::Draid {
            parity: nparity as u8,
            data: ndata as u8,
            children: like.children().len() as u8,
            spares: nspares as u8,
        },
        _ => SpecKind::Mirror,
    }
}

impl Desk<'_> {
    /// Whether all top-level vdevs are single disks, of which none ever rots or goes.
    pub fn is_plain(&self) -> Result<bool> {
        let pool = self.pool()?;
        Ok(data(&pool).iter().all(|t| t.kind().is_leaf()))
    }

    /// A RAID-Z grows, or a top-level vdev comes or goes. Half of the time the end is awaited, and devices are out of use afterwards,
    /// as many as can be. A removal under way is given up sometimes.
    pub fn shape(&self, dice: &mut Dice, stop: &dyn Fn() -> bool) -> Result<()> {
        let pool = self.pool()?;
        if pool.is_removing() {
            return match dice.below(4) {
                0 => self.give_removal_up(),
                _ => Ok(()),
            };
        }
        let tops = data(&pool);
        let Some(top) = tops.get(dice.below(tops.len().max(1) as u64) as usize) else {
            return Ok(());
        };
        let beside = match top.kind() {
            VdevKind::Raidz { .. } => self.expand(&pool, top)?,
            VdevKind::Draid { .. } if tops.len() < MOST_TOPS && dice.below(4) == 0 => {
                self.grow(&pool, top)?
            }
            VdevKind::Draid { .. } => return Ok(()),
            _ if tops.len() < 2 || (tops.len() < MOST_TOPS && dice.below(2) == 0) => {
                self.grow(&pool, top)?
            }
            _ => self.shrink(top)?,
        };
        if dice.below(2) == 0 || !self.shaped(&pool, stop)? {
            return Ok(());
        }
        let Some(beside) = beside else { return Ok(()) };
        let taken = self.take_away(&pool, &beside)?;
        std::thread::sleep(Duration::from_millis(dice.below(AWAY)));
        self.bring_back(&taken)
    }

    /// `zpool attach` of another disk to a RAID-Z; its path.
    fn expand(&self, pool: &Pool, raidz: &Vdev) -> Result<Option<String>> {
        if pool.is_expanding() || raidz.children().len() >= WIDEST {
            return Ok(None);
        }
        let path = self.idle_images(pool, 1, self.options().size)?.remove(0);
        let name = &self.options().pool;
        let ask = DeviceAttach {
            pool: name.clone(),
            device: raidz.name(),
            new: Some(path.clone()),
            // What had left has a label still.
            force: true,
            command: format!("zpool attach {name} {} {path}", raidz.name()),
            ..DeviceAttach::default()
        };
        match devices::attach(self.admin(), ROOT, &ask).map_err(told) {
            Err(e) if not_now(&e) => Ok(None),
            done => done.map(|()| Some(path)),
        }
    }

    /// `zpool add` of another vdev like `like`; a path of it.
    fn grow(&self, pool: &Pool, like: &Vdev) -> Result<Option<String>> {
        let group = group_of(like);
        let size = match group {
            // It never goes.
            SpecKind::Draid { .. } => self.options().size,
            _ => LARGE.max(self.options().size),
        };
        let paths = self.idle_images(pool, like.children().len().max(1), size)?;
        let leaf = |path: &String| VdevSpec {
            kind: SpecKind::File,
            class: VdevClass::Normal,
            path: Some(path.clone()),
            children: Vec::new(),
        };
        let mut vdevs: Vec<VdevSpec> = paths.iter().map(leaf).collect();
        if vdevs.len() > 1 {
            vdevs = vec![VdevSpec {
                kind: group,
                class: VdevClass::Normal,
                path: None,
                children: vdevs,
            }];
        }
        let name = &self.options().pool;
        let ask = PoolAdd {
            pool: name.clone(),
            vdevs,
            ashift: Some(like.ashift()),
            allow_in_use: true,
            command: format!("zpool add -f {name}"),
            ..PoolAdd::default()
        };
        match devices::add(self.admin(), ROOT, &ask).map_err(told) {
            Err(e) if not_now(&e) => Ok(None),
            done => done.map(|()| paths.into_iter().next()),
        }
    }

    /// `zpool remove` of a vdev with all it holds.
    fn shrink(&self, top: &Vdev) -> Result<Option<String>> {
        let (name, vdev) = (&self.options().pool, top.name());
        let command = format!("zpool remove {name} {vdev}");
        match devices::remove(self.admin(), ROOT, name, &vdev, &command).map_err(told) {
            Err(e) if not_now(&e) => Ok(None),
            done => done.map(|()| None),
        }
    }

    /// `zpool remove -s`
    fn give_removal_up(&self) -> Result<()> {
        let name = &self.options().pool;
        let command = format!("zpool remove -s {name}");
        match devices::cancel_removal(self.admin(), ROOT, name, &command).map_err(told) {
            // It has ended meanwhile.
            Err(e) if refused(&e) => Ok(()),
            done => done,
        }
    }

    /// `zpool checkpoint`, or `zpool checkpoint -d` where there is one.
    pub fn keep_or_discard(&self) -> Result<()> {
        let name = &self.options().pool;
        let discard = self.pool()?.shares().checkpoint.txg().is_some();
        let command = match discard {
            true => format!("zpool checkpoint -d {name}"),
            false => format!("zpool checkpoint {name}"),
        };
        let done = checkpoint::checkpoint(self.admin(), ROOT, name, discard, &command);
        match done.map_err(told) {
            // Something is moved, or one is being discarded.
            Err(e) if not_now(&e) => Ok(()),
            done => done.map(drop),
        }
    }

    /// Waits until nothing is moved any more; false: it was told to stop.
    fn shaped(&self, pool: &Pool, stop: &dyn Fn() -> bool) -> Result<bool> {
        let until = Instant::now() + LONGEST;
        while pool.is_expanding() || pool.is_removing() {
            if stop() {
                return Ok(false);
            }
            if Instant::now() > until {
                let left = (pool.expansion_progress(), pool.removal()?);
                bail!(Io, "an expansion or a removal does not end: {left:?}");
            }
            pool.sync()?;
            std::thread::sleep(TICK);
        }
        Ok(!stop())
    }
}

/// Everything that the checkpoint has, if there is one, can be read.
///
/// # Errors
/// What cannot be, in words.
pub fn judge_checkpoint(o: &Options) -> std::result::Result<(), String> {
    let text = |e: base::Error| format!("the checkpoint: {e}");
    let how = OpenOptions {
        readonly: true,
        checkpoint: true,
        ..OpenOptions::default()
    };
    let pool = layout::open_as(o, how).map_err(text)?;
    let found = audit::check(&pool, audit::Verify::Data, false).map_err(text)?;
    let said = |e| format!("the checkpoint: {} findings:\n{e}", found.count);
    found.verdict().map_err(said)?;
    pool.close().map_err(text)
}

#[cfg(test)]
mod tests;
