//! The operations that are measured at each size.

use super::{At, Cost};
use crate::data::Supply;
use crate::device::drop_caches;
use crate::rows::meta::visit;
use crate::systems::ours::{Ours, POOL};
use crate::systems::{self, System, World};
use base::{bail, Result};
use dmu::Need;
use pool::{OpenOptions, Pool};
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::sync::Arc;

pub fn files(at: &mut At<'_>, world: &Arc<World>) -> Result<()> {
    let mut system = systems::open(at.system, world)?;
    system.make()?;
    let dir = system.dir().join("many");
    fs::create_dir(&dir)?;
    let count = at.size;
    let daemon = system.daemon();
    let each = |job: &dyn Fn(&std::path::Path) -> Result<()>| -> Result<()> {
        (0..count).try_for_each(|n| job(&dir.join(format!("file{n:07}"))))
    };
    at.step("create", Cost::Each, daemon, || {
        each(&|p| Ok(File::create_new(p).map(drop)?))
    })?;
    system.settle()?;
    at.step("stat", Cost::Each, daemon, || {
        each(&|p| Ok(fs::symlink_metadata(p).map(drop)?))
    })?;
    system.cold()?;
    at.step(
        "list with attributes, cold",
        Cost::Each,
        daemon,
        || match visit(&dir, &mut |_, _| Ok(()))? {
            seen if seen == count => Ok(()),
            seen => bail!(Io, "{seen} files instead of {count}"),
        },
    )?;
    at.step("unlink", Cost::Each, daemon, || {
        each(&|p| Ok(fs::remove_file(p)?))
    })?;
    system.end()
}

/// Bytes, and number, of the blocks of the file that changes between snapshots.
pub const BLOCK: u64 = 4096;
pub const BLOCKS: u64 = 64;
pub fn name(n: u64) -> String {
    format!("snap{n:06}")
}

pub fn open(world: &World) -> Result<Arc<Pool>> {
    let env = env_linux::linux_env();
    let found = vdev::discover(&env, &[world.device.path().to_string()]);
    let Some(p) = found.pools.iter().find(|p| p.name == POOL) else {
        bail!(NotFound, "no pool on {}", world.device.path());
    };
    Pool::open(env, &p.config, OpenOptions::default())
}

/// Makes one through the engine, in this process, in a group of its own. A block of the file changes before.
pub fn snapshot(
    pool: &Arc<Pool>,
    fs: &str,
    object: u64,
    n: u64,
    supply: &mut Supply,
) -> Result<()> {
    let ds = pool.dsl().dataset(fs)?;
    let set = pool.open_dataset(&ds)?;
    let tx = set.os.tx(Need::bytes(BLOCK))?;
    let block = supply.block(BLOCK as usize);
    set.os.hold(object)?.write(&tx, n % BLOCKS * BLOCK, block)?;
    drop(tx);
    pool.task(move |pool, tx| pool.dsl().snapshot(tx, &ds, &name(n)).map(drop))
}

pub fn filesystems(at: &mut At<'_>, world: &Arc<World>) -> Result<()> {
    let mut ours = Ours::new(world.clone(), &world.programs, "lz4")?;
    ours.make()?;
    let top = format!("{POOL}/many");
    ours.admin("zfs", &["create", &top])?;
    let daemon = ours.daemon();
    let count = at.size;
    at.step("create, one a call", Cost::Each, daemon, || {
        (0..count).try_for_each(|n| ours.admin("zfs", &["create", &format!("{top}/fs{n:05}")]))
    })?;
    at.step("list", Cost::All, daemon, || ours.admin("zfs", &["list"]))?;
    at.step("export", Cost::All, daemon, || ours.export())?;
    drop_caches()?;
    at.step("import, all mounted", Cost::All, daemon, || ours.import())?;
    at.step("list, cold", Cost::All, daemon, || {
        ours.admin("zfs", &["list"])
    })?;
    // A little is written in each, so that each has something to bring to the disk.
    for n in 0..count {
        fs::write(ours.dir().join(format!("many/fs{n:05}/file")), "a little")?;
    }
    at.step("export, all written to", Cost::All, daemon, || {
        ours.export()
    })?;
    ours.import()?;
    at.step("destroy -r", Cost::Each, daemon, || {
        ours.admin("zfs", &["destroy", "-r", &top])
    })?;
    ours.end()
}

/// Snapshots of each file system.
const EACH: u64 = 10;

/// What a pool with years behind it looks like: many file systems with snapshots of each, a block of a
/// file changed before each of them. The snapshots of one round are made in one group, in this process.
pub fn both(at: &mut At<'_>, world: &Arc<World>) -> Result<()> {
    let mut ours = Ours::new(world.clone(), &world.programs, "lz4")?;
    ours.make()?;
    let top = format!("{POOL}/many");
    ours.admin("zfs", &["create", "-o", "recordsize=4k", &top])?;
    let daemon = ours.daemon();
    let mut supply = Supply::new(7, 1 << 20);
    let mut sets = Vec::new();
    for n in 0..at.size {
        let fs = format!("{top}/fs{n:05}");
        ours.admin("zfs", &["create", &fs])?;
        let f = File::create(ours.dir().join(format!("many/fs{n:05}/changing")))?;
        f.write_all_at(supply.block((BLOCK * BLOCKS) as usize), 0)?;
        sets.push((fs, f.metadata()?.ino()));
    }
    ours.export()?;
    let made = (|| {
        let engine = open(world)?;
        let r = (0..EACH).try_for_each(|round| all_at_once(&engine, &sets, round, &mut supply));
        for (fs, _) in &sets {
            engine.close_dataset(engine.dsl().dataset(fs)?.object());
        }
        r.and(engine.export())
    })();
    drop_caches()?;
    at.step("import, all mounted", Cost::All, daemon, || ours.import())?;
    made?;
    for step in ["list -t all", "list -t all again"] {
        at.step(step, Cost::All, daemon, || {
            ours.admin("zfs", &["list", "-t", "all"])
        })?;
    }
    at.step("export", Cost::All, daemon, || ours.export())?;
    drop_caches()?;
    let args = ["import", "-N", "-d", world.device.path(), POOL];
    at.step("import -N", Cost::All, daemon, || {
        ours.admin("zpool", &args)
    })?;
    ours.end()
}

fn all_at_once(
    pool: &Arc<Pool>,
    sets: &[(String, u64)],
    round: u64,
    supply: &mut Supply,
) -> Result<()> {
    let mut heads = Vec::new();
    for (fs, object) in sets {
        let ds = pool.dsl().dataset(fs)?;
        let set = pool.open_dataset(&ds)?;
        let tx = set.os.tx(Need::bytes(BLOCK))?;
        let block = supply.block(BLOCK as usize);
        set.os
            .hold(*object)?
            .write(&tx, round % BLOCKS * BLOCK, block)?;
        heads.push(ds);
    }
    pool.task(move |pool, tx| {
        heads
            .iter()
            .try_for_each(|ds| pool.dsl().snapshot(tx, ds, &name(round)).map(drop))
    })
}

/// What the first write into a new pool writes.
const FIRST: usize = 64 << 20;

pub fn pool(at: &mut At<'_>, world: &Arc<World>) -> Result<()> {
    let mut ours = Ours::new(world.clone(), &world.programs, "lz4")?;
    ours.begin()?;
    let daemon = ours.daemon();
    at.step("zpool create", Cost::Same, daemon, || ours.create())?;
    at.step("zpool list", Cost::Same, daemon, || {
        ours.admin("zpool", &["list"])
    })?;
    let mut supply = Supply::new(9, 1 << 20);
    at.step("write 64 MiB and fsync", Cost::Same, daemon, || {
        let mut f = File::create(ours.dir().join("first"))?;
        for _ in 0..FIRST >> 20 {
            f.write_all(supply.block(1 << 20))?;
        }
        Ok(f.sync_all()?)
    })?;
    at.step("export", Cost::Same, daemon, || ours.export())?;
    drop_caches()?;
    at.step("import", Cost::Same, daemon, || ours.import())?;
    at.step("unlink it, until durable", Cost::Same, daemon, || {
        fs::remove_file(ours.dir().join("first"))?;
        ours.admin("zpool", &["sync", POOL])
    })?;
    ours.end()
}
