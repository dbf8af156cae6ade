//! Log devices that come, go and fail under load. The pool goes on without one that fails, and what was acknowledged is there.

use crate::desk::Desk;
use crate::layout;
use crate::scans::refused;
use crate::troubles::Failure;
use crate::Dice;
use admin::commands::{told, ROOT};
use admin::pools::{damage, devices};
use api::{DeviceAttach, PoolAdd, PoolClear, VdevClass, VdevKind, VdevSpec};
use base::{bail, Kind, Result};
use pool::Pool;
use std::sync::Arc;
use std::time::Duration;
use vdev::{State, Vdev};

/// A device fails for so long, milliseconds at most.
const FAILS: u64 = 600;

/// The log of a pool, with the path of a device of it.
fn log_of(pool: &Pool) -> Option<(Arc<Vdev>, String)> {
    let tops = pool.tree().tops();
    let log = tops.iter().find(|t| t.is_log())?;
    let path = log.leaves().iter().find_map(|l| l.path())?;
    Some((log.clone(), path))
}

impl Desk<'_> {
    /// A step in the life of the log device. `waits`: the pool may wait for its other devices.
    pub fn change_log(&self, dice: &mut Dice, waits: bool) -> Result<()> {
        let pool = self.pool()?;
        self.troubles().heal();
        let Some((log, path)) = log_of(&pool) else {
            return self.add_log(&pool);
        };
        if log.state() != State::Healthy {
            // As a step before, or the pass before, left it.
            return match dice.below(3) {
                0 => self.remove_log(&log),
                1 => self.replace_log(&pool, &path),
                _ => self.bring_log_back(&path),
            };
        }
        match dice.below(5) {
            0 => self.remove_log(&log),
            1 => self.put_away(&path, dice),
            _ => self.fail_log((&pool, &log), &path, dice, waits),
        }
    }

    /// The image that is no log of the pool.
    fn idle_log(&self, pool: &Pool) -> Result<String> {
        let used = log_of(pool).map(|l| l.1);
        for image in layout::logs(self.options())? {
            let path = layout::absolute(&image)?;
            if used.as_ref() != Some(&path) {
                return Ok(path);
            }
        }
        bail!(NotFound, "no image for a log")
    }

    /// `zpool add … log`
    pub fn add_log(&self, pool: &Pool) -> Result<()> {
        let name = &self.options().pool;
        let path = self.idle_log(pool)?;
        let command = format!("zpool add {name} log {path}");
        let ask = PoolAdd {
            pool: name.clone(),
            vdevs: vec![VdevSpec {
                kind: VdevKind::File,
                class: VdevClass::Log,
                path: Some(path),
                children: Vec::new(),
            }],
            allow_in_use: true,
            command,
            ..PoolAdd::default()
        };
        devices::add(self.admin(), ROOT, &ask).map_err(told)
    }

    /// By its guid: while a device is replaced the log is a group of two.
    fn remove_log(&self, log: &Vdev) -> Result<()> {
        let (name, guid) = (&self.options().pool, log.guid().to_string());
        let command = format!("zpool remove {name} {guid}");
        match devices::remove(self.admin(), ROOT, name, &guid, &command).map_err(told) {
            Err(e) if refused(&e) => Ok(()),
            done => done,
        }
    }

    fn clear(&self) -> Result<()> {
        let name = &self.options().pool;
        let ask = PoolClear {
            pool: name.clone(),
            command: format!("zpool clear {name}"),
            ..PoolClear::default()
        };
        damage::clear(self.admin(), ROOT, &ask).map_err(told)
    }

    fn replace_log(&self, pool: &Pool, path: &str) -> Result<()> {
        let name = &self.options().pool;
        let new = self.idle_log(pool)?;
        let ask = DeviceAttach {
            pool: name.clone(),
            device: path.into(),
            command: format!("zpool replace {name} {path} {new}"),
            new: Some(new),
            replace: true,
            force: true,
            ..DeviceAttach::default()
        };
        match devices::attach(self.admin(), ROOT, &ask).map_err(told) {
            // It is being replaced.
            Err(e) if refused(&e) || e.kind == Kind::Invalid => Ok(()),
            done => done,
        }
    }

    /// `zpool offline`, and some time later `zpool online`.
    fn put_away(&self, path: &str, dice: &mut Dice) -> Result<()> {
        let name = &self.options().pool;
        let how = pool::Offline {
            temporary: dice.below(2) == 0,
            fault: dice.below(2) == 0,
        };
        let command = format!("zpool offline {name} {path}");
        match devices::offline(self.admin(), ROOT, name, path, how, &command).map_err(told) {
            Err(e) if refused(&e) => return Ok(()),
            done => done?,
        }
        std::thread::sleep(Duration::from_millis(dice.below(FAILS)));
        // One that is away stays so for the next process now and then.
        if dice.below(3) == 0 {
            return Ok(());
        }
        self.bring_log_back(path)
    }

    /// `zpool clear`, and `zpool online`.
    fn bring_log_back(&self, path: &str) -> Result<()> {
        self.clear()?;
        let name = &self.options().pool;
        let command = format!("zpool online {name} {path}");
        match devices::online(self.admin(), ROOT, name, path, false, &command).map_err(told) {
            Err(e) if refused(&e) => Ok(()),
            done => done.map(drop),
        }
    }

    /// It fails, and stays so, goes, is replaced, or is well again.
    fn fail_log(
        &self,
        (pool, log): (&Pool, &Vdev),
        path: &str,
        dice: &mut Dice,
        waits: bool,
    ) -> Result<()> {
        let ways = [Failure::Writes, Failure::Flushes, Failure::Dead];
        let way = ways[dice.below(3) as usize];
        self.troubles().fail(path, way);
        for _ in 0..dice.below(4) {
            std::thread::sleep(Duration::from_millis(dice.below(FAILS / 3)));
            self.look()?;
        }
        if let Some(why) = pool.suspended().filter(|_| !waits) {
            bail!(
                Damaged,
                "{path} fails ({way:?}), and the pool waits: {why:?}"
            );
        }
        match dice.below(4) {
            0 => self.remove_log(log),
            1 => self.replace_log(pool, path),
            2 => {
                self.troubles().heal();
                self.clear()
            }
            // Until the next step, or the end of the pass.
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acks::Acks;
    use crate::damage::copied;
    use crate::desk::tests::on_pool;
    use crate::layout::Layout;
    use crate::work::{Counts, Worker};
    use base::mutation::{mutate, Mutation};
    use std::collections::HashMap;
    use vdev::GroupKind;

    const SINGLE: Layout = Layout {
        kind: GroupKind::Single,
        tops: 1,
        width: 1,
        ashift: 12,
    };

    /// A log fails under a worker, and the process ends. Whether what was acknowledged is there afterwards.
    fn failed(d: &Desk<'_>, way: Failure, mistake: Option<Mutation>) -> Result<()> {
        let (o, pool) = (d.options(), d.pool()?);
        d.add_log(&pool)?;
        let fs = d.mount(0, &mut Dice::new(1))?;
        let (acks, _) = Acks::open(&crate::acks_file(o))?;
        let mut w = Worker::new(&fs, 0, &HashMap::new())?;
        let mut dice = Dice::new(9);
        let (_, path) = log_of(&pool).ok_or(Kind::NotFound)?;
        let counts = Counts::default();
        w.steps(40, &acks, &mut dice, &counts)?;
        pool.sync()?;
        w.steps(40, &acks, &mut dice, &counts)?;
        d.troubles().fail(&path, way);
        mutate(mistake);
        w.steps(60, &acks, &mut dice, &counts)?;
        mutate(None);
        d.troubles().heal();
        let copy = copied(o)?;
        let next = Desk::import(&copy)?;
        let (_, facts) = Acks::open(&crate::acks_file(&copy))?;
        let fs = next.mount(0, &mut Dice::new(1))?;
        Worker::new(&fs, 0, &facts).map(drop)
    }

    #[test]
    fn a_log_that_fails_costs_nothing_and_one_that_is_believed_is_found() {
        for way in [Failure::Writes, Failure::Flushes, Failure::Dead] {
            let name = format!("log-{way:?}");
            on_pool(&name, &SINGLE, |d| failed(d, way, None)).unwrap();
            let mistake = Some(Mutation::DeadLogBelieved);
            let found = on_pool(&name, &SINGLE, |d| failed(d, way, mistake));
            eprintln!("{mistake:?}, {way:?}: {}", found.expect_err("not found"));
        }
    }

    #[test]
    fn a_log_comes_goes_and_fails() {
        on_pool("logs", &SINGLE, |d| {
            let mut dice = Dice::new(5);
            let pool = d.pool()?;
            let fs = d.mount(0, &mut Dice::new(1))?;
            let (acks, _) = Acks::open(&crate::acks_file(d.options()))?;
            let mut w = Worker::new(&fs, 0, &HashMap::new())?;
            let (mut none, mut bad, mut good) = (0, 0, 0);
            for _ in 0..40 {
                d.change_log(&mut dice, false)?;
                w.steps(20, &acks, &mut dice, &Counts::default())?;
                d.look()?;
                match log_of(&pool).map(|l| l.0.state()) {
                    None => none += 1,
                    Some(State::Healthy) => good += 1,
                    Some(_) => bad += 1,
                }
                pool.sync()?;
            }
            d.troubles().heal();
            assert!(none > 0 && bad > 0 && good > 0, "{none} {bad} {good}");
            let (_, facts) = Acks::open(&crate::acks_file(d.options()))?;
            Worker::new(&fs, 0, &facts)?;
            crate::lives::judge(&pool).map_err(|e| base::Error::new(Kind::Damaged, e))
        })
        .unwrap();
    }
}
