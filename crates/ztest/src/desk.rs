//! Administration of the pool under test through `admin`, with a door in memory.

use crate::keys;
use crate::layout::{self, Fs, Layout, TUNABLES};
use crate::lives::Lives;
use crate::options::Options;
use crate::refusals::Refusals;
use crate::troubles::{self, Troubles};
use crate::Dice;
use admin::alone::{self, Alone, MemoryDoor};
use admin::commands::{told, Commands, ROOT};
use admin::datasets::{mount, permissions, set, snapshots};
use admin::pools::agent::Agent;
use admin::pools::{self, devices};
use admin::{Admin, PoolEntry};
use api::{
    Delegate, Delegation, ImportScan, Peer, PoolCreate, PoolImport, SnapshotCreate, VdevClass,
    VdevKind, VdevSpec,
};
use base::sync::MutexExt;
use base::{bail, Kind, Result};
use pool::Pool;
use std::sync::{Arc, Mutex};
use vdev::GroupKind;

/// An ordinary user.
const USER: Peer = Peer {
    uid: 1000,
    gid: 1000,
    pid: 2,
};

/// One process's administration.
pub struct Desk<'a> {
    o: &'a Options,
    admin: Arc<Admin>,
    troubles: Arc<Troubles>,
    agent: Mutex<Agent>,
}

impl<'a> Desk<'a> {
    /// A process in which no pool is imported.
    pub fn new(o: &'a Options) -> Desk<'a> {
        let (env, troubles) = troubles::machine(env_linux::linux_env());
        let settings = alone::settings();
        let process = Alone::new(env.clone(), TUNABLES);
        let door = MemoryDoor::default();
        Desk {
            o,
            troubles,
            agent: Mutex::default(),
            admin: Admin::new(env, settings, Arc::new(door), Arc::new(process)),
        }
    }

    /// Makes the pool, on images that are there.
    pub fn create(o: &'a Options, l: &Layout) -> Result<Desk<'a>> {
        let leaf = |top, n| -> Result<VdevSpec> {
            Ok(VdevSpec {
                kind: VdevKind::File,
                class: VdevClass::Normal,
                path: Some(layout::absolute(&layout::image(o, top, n))?),
                children: Vec::new(),
            })
        };
        let mut vdevs = Vec::new();
        for top in 0..l.tops {
            let leaves: Vec<VdevSpec> =
                (0..l.width).map(|n| leaf(top, n)).collect::<Result<_>>()?;
            let kind = match l.kind {
                GroupKind::Mirror => VdevKind::Mirror,
                GroupKind::Raidz { nparity } => VdevKind::Raidz {
                    parity: nparity as u8,
                },
                GroupKind::Draid {
                    nparity,
                    ndata,
                    nspares,
                } => VdevKind::Draid {
                    parity: nparity as u8,
                    data: ndata as u8,
                    children: l.width as u8,
                    spares: nspares as u8,
                },
                GroupKind::Single => {
                    vdevs.extend(leaves);
                    continue;
                }
            };
            vdevs.push(VdevSpec {
                kind,
                class: VdevClass::Normal,
                path: None,
                children: leaves,
            });
        }
        let desk = Desk::new(o);
        let ask = PoolCreate {
            name: o.pool.clone(),
            vdevs,
            props: vec![
                ("cachefile".into(), "none".into()),
                ("ashift".into(), l.ashift.to_string()),
            ],
            fs_props: vec![("mountpoint".into(), "legacy".into())],
            command: format!("zpool create {}", o.pool),
            ..PoolCreate::default()
        };
        pools::create::create(&desk.admin, ROOT, ask).map_err(told)?;
        Ok(desk)
    }

    /// For a pass in which the devices refuse now and then.
    pub fn refusals(&self) -> Result<Refusals> {
        Ok(Refusals::new(&self.pool()?, &self.troubles))
    }

    /// What goes wrong with the devices.
    pub fn troubles(&self) -> &Troubles {
        &self.troubles
    }

    /// Imports the pool that is on the images.
    pub fn import(o: &'a Options) -> Result<Desk<'a>> {
        let desk = Desk::new(o);
        desk.find()?;
        Ok(desk)
    }

    /// `zpool import`
    pub fn find(&self) -> Result<()> {
        let o = self.o;
        let images = layout::images(o);
        let ask = PoolImport {
            pool: o.pool.clone(),
            search: ImportScan {
                places: images
                    .iter()
                    .map(|p| layout::absolute(p))
                    .collect::<Result<_>>()?,
                ..ImportScan::default()
            },
            props: vec![("cachefile".into(), "none".into())],
            command: format!("zpool import {}", o.pool),
            ..PoolImport::default()
        };
        pools::import::import(&self.admin, ROOT, ask, &|| false).map_err(told)?;
        if let Some(g) = o.gang {
            self.pool()?.space().set_largest(g);
        }
        Ok(())
    }

    /// Lives of further file systems. `alone`: of one thread, that sees what it did.
    pub fn lives(&self, alone: bool) -> Result<Lives> {
        let commands = Commands(self.admin.clone());
        keys::load(&commands, &*self.pool()?)?;
        Ok(Lives::new(commands, self.entry()?, alone))
    }

    pub fn options(&self) -> &Options {
        self.o
    }

    pub fn admin(&self) -> &Arc<Admin> {
        &self.admin
    }

    fn entry(&self) -> Result<Arc<PoolEntry>> {
        self.admin.find(&self.o.pool).ok_or(Kind::NotFound.into())
    }

    pub fn pool(&self) -> Result<Arc<Pool>> {
        Ok(self.entry()?.pool.clone())
    }

    /// Full name of a file system; `None`: that of the pool.
    pub fn full(&self, name: Option<&str>) -> String {
        match name {
            None => self.o.pool.clone(),
            Some(name) => format!("{}/{name}", self.o.pool),
        }
    }

    /// Mounts number `n`: its log is replayed, its delete queue emptied.
    pub fn mount(&self, n: u64, dice: &mut Dice) -> Result<Fs> {
        let entry = self.entry()?;
        let name = (n > 0).then(|| format!("fs{n}"));
        let full = self.full(name.as_deref());
        let place = format!("/{}", full.replace('/', "."));
        self.set(name.as_deref(), "recordsize", 4096 << dice.below(6))?;
        mount::mount(&self.admin, ROOT, &full, &[], false, false, Some(&place)).map_err(told)?;
        let object = entry.pool.dsl().dataset(&full)?.object();
        let mounted = entry.mounted(object).ok_or(Kind::NotFound)?;
        Ok(Fs {
            number: n,
            name,
            zfs: mounted.zfs(),
        })
    }

    /// Unmounts it.
    pub fn unmount(&self, fs: Fs) -> Result<()> {
        let full = self.full(fs.name.as_deref());
        drop(fs);
        mount::unmount(&self.admin, ROOT, &full, false)
            .map(drop)
            .map_err(told)
    }

    /// Makes a file system.
    pub fn create_fs(&self, name: &str, props: &[(&str, u64)]) -> Result<()> {
        let full = self.full(Some(name));
        Commands(self.admin.clone()).create(&full, props)?;
        props.iter().try_for_each(|(n, v)| self.has(name, n, *v))
    }

    /// Properties that are too long for the pointer of the object that holds them: it has a block of its own.
    fn note(&self, name: &str) -> Result<()> {
        let full = self.full(Some(name));
        let commands = Commands(self.admin.clone());
        for prop in 1..3u32 {
            let word = |n: u32| format!("{:08x}", n.wrapping_mul(2_654_435_761 + prop));
            let text: String = (1..60).map(word).collect();
            commands.set(&full, &format!("ztest:note{prop}"), &text)?;
        }
        Ok(())
    }

    fn has(&self, name: &str, prop: &str, value: u64) -> Result<()> {
        let full = self.full(Some(name));
        self.check(&full, prop, value)
    }

    /// What was set is there.
    fn check(&self, full: &str, prop: &str, value: u64) -> Result<()> {
        let found = pool::prop_number(&*self.pool()?.dsl().dataset(full)?, prop)?;
        if found != value {
            bail!(
                Damaged,
                "{full}: {prop} is {found} after it was set to {value}"
            );
        }
        Ok(())
    }

    /// Sets a property that is a number, and looks whether it is there.
    pub fn set(&self, name: Option<&str>, prop: &str, value: u64) -> Result<()> {
        let full = self.full(name);
        let list = vec![(prop.to_string(), value.to_string())];
        let command = format!("zfs set {prop}={value} {full}");
        set::set(&self.admin, ROOT, &full, &list, false, command).map_err(told)?;
        self.check(&full, prop, value)
    }

    /// Renames a file system, and looks whether it has moved with what was set.
    fn rename(&self, from: &str, to: &str, prop: &str, value: u64) -> Result<()> {
        let (from, to) = (self.full(Some(from)), self.full(Some(to)));
        Commands(self.admin.clone()).rename(&from, &to)?;
        self.absent(&from)?;
        self.check(&to, prop, value)
    }

    fn absent(&self, full: &str) -> Result<()> {
        match self.pool()?.dsl().dataset(full) {
            Err(e) if e.kind == Kind::NotFound => Ok(()),
            Err(e) => Err(e),
            Ok(_) => bail!(Damaged, "{full} is still there"),
        }
    }

    fn destroy(&self, name: &str) -> Result<()> {
        let full = self.full(Some(name));
        Commands(self.admin.clone()).destroy(&full)?;
        self.absent(&full)
    }

    /// Destroys a snapshot of a file system, or makes it if there is none.
    pub fn change_snapshot(&self, name: Option<&str>, snap: &str) -> Result<()> {
        let full = format!("{}@{snap}", self.full(name));
        let commands = Commands(self.admin.clone());
        let pool = self.pool()?;
        match pool.dsl().dataset(&full) {
            Ok(_) => {
                commands.destroy(&full)?;
                self.absent(&full)
            }
            Err(e) if e.kind == Kind::NotFound => {
                commands.snapshot(&full)?;
                pool.dsl().dataset(&full).map(drop)
            }
            Err(e) => Err(e),
        }
    }

    /// A user gets a permission, uses it and loses it; without it the user is refused.
    fn delegate(&self, name: &str) -> Result<()> {
        let full = self.full(Some(name));
        let snapshot = |short: &str| {
            let ask = SnapshotCreate {
                names: vec![format!("{full}@{short}")],
                command: format!("zfs snapshot {full}@{short}"),
                ..SnapshotCreate::default()
            };
            snapshots::create(&self.admin, USER, &ask)
        };
        let refused = |short: &str| match snapshot(short) {
            Err(e) if e.code == Kind::NotPermitted.errno() => Ok(()),
            Err(e) => Err(told(e)),
            Ok(_) => bail!(
                Damaged,
                "a user made {full}@{short}, which was not delegated"
            ),
        };
        let list = [Delegation {
            to: Delegate::User(USER.uid.into()),
            local: true,
            descendent: false,
            permissions: vec!["snapshot".into()],
        }];
        refused("before")?;
        let (admin, command) = (&self.admin, format!("zfs allow {full}"));
        permissions::allow(admin, ROOT, &full, &list, command).map_err(told)?;
        snapshot("mine").map_err(told)?;
        let command = format!("zfs unallow {full}");
        permissions::unallow(admin, ROOT, &full, &list, false, command).map_err(told)?;
        refused("after")?;
        self.destroy(&format!("{name}@mine"))
    }

    /// A file system is made, changed, delegated, renamed and destroyed; some are left for the next time.
    pub fn administer(&self, dice: &mut Dice) -> Result<()> {
        let (name, other) = (
            format!("tmp{}", dice.below(4)),
            format!("tmp{}", 4 + dice.below(4)),
        );
        // What a pass left that ended, or was refused, in the middle of this.
        for old in [&name, &other] {
            if let Ok(left) = self.pool()?.dsl().dataset(&self.full(Some(old))) {
                for (snap, _) in left.snapshots()? {
                    self.destroy(&format!("{old}@{snap}"))?;
                }
                self.destroy(old)?;
            }
        }
        self.create_fs(&name, &[("copies", 1 + dice.below(2))])?;
        let size = 4096 << dice.below(6);
        self.set(Some(&name), "recordsize", size)?;
        self.delegate(&name)?;
        self.rename(&name, &other, "recordsize", size)?;
        match dice.below(2) {
            0 => self.destroy(&other),
            _ => Ok(()),
        }
    }

    /// A device is taken out of use for a moment and brought back, which starts a resilver. Where another one lacks something it
    /// is refused.
    pub fn change_devices(&self, dice: &mut Dice) -> Result<()> {
        let pool = self.pool()?;
        let leaves = pool.tree().leaves();
        let leaf = leaves.get(dice.below(leaves.len().max(1) as u64) as usize);
        let Some(path) = leaf.and_then(|l| l.path()) else {
            return Ok(());
        };
        let how = pool::Offline {
            temporary: dice.below(2) == 0,
            fault: false,
        };
        let name = &self.o.pool;
        let command = format!("zpool offline {name} {path}");
        match devices::offline(&self.admin, ROOT, name, &path, how, &command) {
            Err(e) if e.code == Kind::Busy.errno() => return Ok(()),
            // Its vdev was removed meanwhile.
            Err(e) if e.code == Kind::NotFound.errno() && !self.is_there(&path)? => return Ok(()),
            done => done.map_err(told)?,
        }
        let was = leaf.map(|l| l.state());
        if was != Some(vdev::State::Offline) && self.is_there(&path)? {
            bail!(Io, "{path} is {was:?} after 'zpool offline'");
        }
        std::thread::sleep(std::time::Duration::from_millis(dice.below(300)));
        let command = format!("zpool online {name} {path}");
        match devices::online(&self.admin, ROOT, name, &path, false, &command).map_err(told) {
            Ok(None) => Ok(()),
            Err(e) if e.kind == Kind::NotFound && !self.is_there(&path)? => Ok(()),
            Err(e) => Err(e),
            Ok(Some(warning)) => bail!(Io, "{warning}"),
        }
    }

    /// Whether a device of the pool is on the image.
    fn is_there(&self, path: &str) -> Result<bool> {
        let leaves = self.pool()?.tree().leaves();
        Ok(leaves.iter().any(|l| l.path().as_deref() == Some(path)))
    }

    /// What the fault agent does by itself.
    pub fn look(&self) -> Result<()> {
        self.agent.acquire().look(&self.admin, &self.entry()?);
        Ok(())
    }

    /// Ends it, by export or as the daemon does when it ends.
    pub fn end(self, export: bool) -> Result<()> {
        if !export {
            let pool = self.pool()?;
            self.admin.dismiss(&*self.entry()?);
            return pool.close();
        }
        let command = format!("zpool export {}", self.o.pool);
        let how = pools::Leave::default();
        pools::leave(&self.admin, ROOT, &self.o.pool, how, &command)
            .map(drop)
            .map_err(told)
    }
}

/// Makes the pool with its file systems.
pub fn create_pool(o: &Options, l: &Layout) -> Result<()> {
    layout::make_images(o, l)?;
    let desk = Desk::create(o, l)?;
    for n in 1..o.sets {
        let name = format!("fs{n}");
        desk.create_fs(&name, &[])?;
        desk.note(&name)?;
    }
    desk.end(false)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use base::mutation::{mutate, Mutation};

    fn with_pool(name: &str, work: impl FnOnce(&Desk<'_>) -> Result<()>) -> Result<()> {
        tried(name, work, true)
    }

    /// What is left of the pool may be of no use.
    fn with_broken_pool(name: &str, work: impl FnOnce(&Desk<'_>) -> Result<()>) -> Result<()> {
        tried(name, work, false)
    }

    /// On a pool of some layout, of which nothing is left afterwards.
    pub fn on_pool(
        name: &str,
        l: &Layout,
        work: impl FnOnce(&Desk<'_>) -> Result<()>,
    ) -> Result<()> {
        tried_on(name, l, work, false)
    }

    fn tried(name: &str, work: impl FnOnce(&Desk<'_>) -> Result<()>, whole: bool) -> Result<()> {
        let l = Layout {
            kind: GroupKind::Single,
            tops: 1,
            width: 1,
            ashift: 12,
        };
        tried_on(name, &l, work, whole)
    }

    /// The same with so many file systems.
    pub fn on_pool_of(
        name: &str,
        l: &Layout,
        sets: u64,
        work: impl FnOnce(&Desk<'_>) -> Result<()>,
    ) -> Result<()> {
        tried_with(name, l, sets, work, false)
    }

    fn tried_on(
        name: &str,
        l: &Layout,
        work: impl FnOnce(&Desk<'_>) -> Result<()>,
        whole: bool,
    ) -> Result<()> {
        tried_with(name, l, Options::default().sets, work, whole)
    }

    fn tried_with(
        name: &str,
        l: &Layout,
        sets: u64,
        work: impl FnOnce(&Desk<'_>) -> Result<()>,
        whole: bool,
    ) -> Result<()> {
        let folder = std::env::temp_dir().join(format!("ztest-desk-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let o = Options {
            folder: folder.clone(),
            size: 64 << 20,
            sets,
            threads: sets,
            ..Options::default()
        };
        create_pool(&o, l).unwrap();
        let desk = Desk::import(&o).unwrap();
        let done = work(&desk);
        mutate(None);
        let ended = desk.end(true);
        if whole {
            ended.unwrap();
        }
        std::fs::remove_dir_all(&folder).unwrap();
        done
    }

    #[test]
    fn mistakes_in_administration_are_found() {
        with_pool("none", |d| {
            (0..8).try_for_each(|n| d.administer(&mut Dice::new(n)))
        })
        .unwrap();
        for (name, mistake) in [
            ("lost", Mutation::PropertyLost),
            ("kept", Mutation::DestroyForgets),
            ("ungiven", Mutation::PermissionLost),
            ("open", Mutation::RightsOff),
        ] {
            let found = with_pool(name, |d| {
                mutate(Some(mistake));
                (0..8).try_for_each(|n| d.administer(&mut Dice::new(n)))
            });
            assert!(found.is_err(), "{mistake:?}");
        }
    }

    /// Some commands by one thread for each seed, and what is left.
    fn life(d: &Desk<'_>, seeds: u64) -> Result<()> {
        let lives = d.lives(true)?;
        let mut done = 0;
        for seed in 0..seeds {
            let mut dice = Dice::new(seed);
            for _ in 0..240 {
                done += u32::from(lives.step(&mut dice)?);
            }
            d.pool()?.sync()?;
            crate::lives::judge(&*d.pool()?).map_err(|e| base::Error::new(Kind::Damaged, e))?;
            lives.end()?;
        }
        for seed in 0..3 {
            assert!(lives.upgrade(&mut Dice::new(seed))?, "no upgrade");
        }
        assert!(u64::from(done) > 30 * seeds, "{done} commands");
        d.pool()?.sync()?;
        crate::lives::judge(&*d.pool()?).map_err(|e| base::Error::new(Kind::Damaged, e))
    }

    #[test]
    fn lives_are_accounted_for_and_mistakes_in_them_are_found() {
        with_pool("life", |d| life(d, 5)).unwrap();
        for (name, mistake) in [
            ("mark", Mutation::BookmarkStays),
            ("hold", Mutation::HoldForgotten),
            ("deadlist", Mutation::DeadlistKeyLost),
            ("swap", Mutation::SwapMiscounted),
            ("along", Mutation::DestroyTakesClones),
            ("clone", Mutation::CloneUncounted),
            ("promotion", Mutation::PromotionUncharged),
            ("rename", Mutation::RenameForgets),
            ("range", Mutation::DestroyForgets),
            ("snapshot", Mutation::SnapshotOfDirtySet),
            ("diff", Mutation::DiffForgetsHoles),
            ("freed", Mutation::ReceiveKeepsFreed),
            ("seal", Mutation::RawSealStale),
            ("dnodes", Mutation::DnodeSealKept),
            ("ivs", Mutation::RawBaseUnchecked),
            ("below", Mutation::RollbackTakesBelow),
            ("version", Mutation::UpgradeWithoutTables),
        ] {
            let found = with_broken_pool(name, |d| {
                mutate(Some(mistake));
                // Until it is found; upgrades come after all seeds.
                let last = mistake == Mutation::UpgradeWithoutTables;
                life(d, if last { 1 } else { 30 })
            });
            match found {
                Err(e) => eprintln!("{mistake:?}: {e}"),
                Ok(()) => panic!("{mistake:?} is not found"),
            }
        }
    }

    /// Several commands come into one txg, and into the way of each other.
    #[test]
    fn lives_in_several_threads_end_without_a_trace() {
        with_pool("threads", |d| {
            let (lives, pool) = (d.lives(false)?, d.pool()?);
            let first = std::sync::Mutex::new(None);
            let done = std::sync::atomic::AtomicU64::new(0);
            std::thread::scope(|s| {
                for seed in 0..4 {
                    let (lives, first, done) = (&lives, &first, &done);
                    s.spawn(move || {
                        let mut dice = Dice::new(100 + seed);
                        for _ in 0..150 {
                            match lives.step(&mut dice) {
                                Ok(true) => {
                                    done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                                }
                                Ok(false) => {}
                                Err(e) => {
                                    first.lock().unwrap().get_or_insert(e);
                                    return;
                                }
                            }
                        }
                    });
                }
            });
            if let Some(e) = first.into_inner().unwrap() {
                return Err(e);
            }
            assert!(done.into_inner() > 150);
            pool.sync()?;
            crate::lives::judge(&pool).map_err(|e| base::Error::new(Kind::Damaged, e))?;
            lives.end()?;
            pool.sync()?;
            crate::lives::judge(&pool).map_err(|e| base::Error::new(Kind::Damaged, e))?;
            // Nothing is left, neither to free.
            while pool.dsl().freeing()? > 0 {
                pool.sync()?;
            }
            crate::lives::judge(&pool).map_err(|e| base::Error::new(Kind::Damaged, e))
        })
        .unwrap();
    }
}
