//! The cost of operations with thousands of snapshots, on ours and on Btrfs.

use super::parts::{name, open, snapshot, BLOCK, BLOCKS};
use super::{At, Cost};
use crate::child::sh;
use crate::data::Supply;
use crate::device::drop_caches;
use crate::systems::ours::{Ours, POOL};
use crate::systems::{self, System, World};
use base::{bail, Result};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::Arc;

/// Operations of a kind that are done one after the other, to see what one costs.
const FURTHER: u64 = 10;
/// Of the older half of the snapshots so many are destroyed one by one.
const FEW: u64 = 5;

/// All blocks of the file, each of which dies in the newest snapshots.
fn overwrite(path: &Path, supply: &mut Supply) -> Result<()> {
    let f = File::options().write(true).open(path)?;
    f.write_all_at(supply.block((BLOCK * BLOCKS) as usize), 0)?;
    Ok(f.sync_all()?)
}

/// Names in a folder, which must be so many.
fn entries(dir: &Path, want: u64) -> Result<()> {
    match fs::read_dir(dir)?.try_fold(0u64, |n, e| e.map(|_| n + 1))? {
        n if n == want => Ok(()),
        n => bail!(Io, "{n} snapshots instead of {want} in {}", dir.display()),
    }
}

pub fn of_one(at: &mut At<'_>, world: &Arc<World>) -> Result<()> {
    match at.system {
        "btrfs" => on_btrfs(at, world),
        _ => on_ours(at, world),
    }
}

/// A fresh pool of ours, or of the build before.
fn made(at: &At<'_>, world: &Arc<World>) -> Result<Ours> {
    let programs = systems::programs_of(at.system, world)?;
    let mut ours = Ours::new(world.clone(), programs, "lz4")?;
    ours.make()?;
    Ok(ours)
}

fn on_ours(at: &mut At<'_>, world: &Arc<World>) -> Result<()> {
    let mut ours = made(at, world)?;
    let fs = format!("{POOL}/fs");
    ours.admin("zfs", &["create", "-o", "recordsize=4k", &fs])?;
    let changing = ours.dir().join("fs/changing");
    let object = File::create(&changing)?.metadata()?.ino();
    let mut supply = Supply::new(7, 1 << 20);
    overwrite(&changing, &mut supply)?;
    let daemon = ours.daemon();
    ours.export()?;
    let count = at.size;
    let made = (|| {
        let engine = open(world)?;
        let r = at.step("make them", Cost::Each, None, || {
            (0..count).try_for_each(|n| snapshot(&engine, &fs, object, n, &mut supply))
        });
        engine.close_dataset(engine.dsl().dataset(&fs)?.object());
        r.and(engine.export())
    })();
    drop_caches()?;
    // Whatever happened, the daemon has it again.
    at.step("mount (import), cold", Cost::Same, daemon, || ours.import())?;
    made?;
    let full = |n: u64| format!("{fs}@{}", name(n));
    let list = |columns: &str| {
        let args = ["list", "-H", "-t", "snapshot", "-o", columns, "-s", "name"];
        ours.admin("zfs", &args)
    };
    at.step("list, cold", Cost::All, daemon, || list("name"))?;
    at.step("list", Cost::All, daemon, || list("name"))?;
    at.step("list with used, written", Cost::All, daemon, || {
        list("name,used,written,refer")
    })?;
    at.step("list the folder of snapshots", Cost::All, daemon, || {
        entries(&ours.dir().join("fs/.zfs/snapshot"), count)
    })?;
    at.step("overwrite 64 blocks, ten times", Cost::Same, daemon, || {
        (0..FURTHER).try_for_each(|_| {
            overwrite(&changing, &mut supply)?;
            ours.admin("zpool", &["sync", POOL])
        })
    })?;
    at.step("snapshot, ten times", Cost::Same, daemon, || {
        (count..count + FURTHER).try_for_each(|n| ours.admin("zfs", &["snapshot", &full(n)]))
    })?;
    let clone = |n: u64| format!("{POOL}/clone{n}");
    let middle = full(count / 2);
    at.step("clone, ten times", Cost::Same, daemon, || {
        (0..FURTHER).try_for_each(|n| ours.admin("zfs", &["clone", &middle, &clone(n)]))
    })?;
    at.step("destroy a clone, ten times", Cost::Same, daemon, || {
        (0..FURTHER).try_for_each(|n| ours.admin("zfs", &["destroy", &clone(n)]))
    })?;
    at.step(
        "promote a clone of the middle, and back",
        Cost::All,
        daemon,
        || {
            ours.admin("zfs", &["clone", &middle, &clone(0)])?;
            ours.admin("zfs", &["promote", &clone(0)])?;
            ours.admin("zfs", &["promote", &fs])?;
            ours.admin("zfs", &["destroy", &clone(0)])
        },
    )?;
    at.step(
        "what holds the space (zfs space)",
        Cost::All,
        daemon,
        || ours.admin("zfs", &["space", &fs]),
    )?;
    at.step(
        "what a fifth would free (destroy -nv)",
        Cost::All,
        daemon,
        || {
            let (from, to) = (count / 2 + 1, count / 2 + count / 5);
            let range = format!("{fs}@{}%{}", name(from), name(to));
            ours.admin("zfs", &["destroy", "-nv", &range])
        },
    )?;
    at.step(
        "what a stream of all would be (send -nR)",
        Cost::All,
        daemon,
        || ours.admin("zfs", &["send", "-nR", &full(count - 1)]),
    )?;
    at.step("roll back, ten times", Cost::Same, daemon, || {
        let newest = full(count + FURTHER - 1);
        (0..FURTHER).try_for_each(|_| ours.admin("zfs", &["rollback", &newest]))
    })?;
    at.step("destroy one, five times", Cost::Same, daemon, || {
        (0..FEW).try_for_each(|n| ours.admin("zfs", &["destroy", &full(count / 10 * n)]))
    })?;
    at.step("destroy a range of a fifth", Cost::All, daemon, || {
        let (from, to) = (count / 2 + 1, count / 2 + count / 5);
        let range = format!("{fs}@{}%{}", name(from), name(to));
        ours.admin("zfs", &["destroy", &range])
    })?;
    at.step("destroy the rest (-r)", Cost::All, daemon, || {
        ours.admin("zfs", &["destroy", "-r", &fs])
    })?;
    at.step("until all is free", Cost::All, daemon, || {
        ours.admin("zpool", &["wait", "-t", "free", POOL])
    })?;
    ours.end()
}

fn on_btrfs(at: &mut At<'_>, world: &Arc<World>) -> Result<()> {
    let mut system = systems::open(at.system, world)?;
    system.make()?;
    let top = system.dir().to_path_buf();
    let path = |name: &str| top.join(name).to_string_lossy().into_owned();
    let (fs, all) = (path("fs"), path("snapshots"));
    sh("btrfs", &["subvolume", "create", &fs])?;
    fs::create_dir(&all)?;
    let changing = top.join("fs/changing");
    File::create(&changing)?;
    let mut supply = Supply::new(7, 1 << 20);
    overwrite(&changing, &mut supply)?;
    let count = at.size;
    let full = |n: u64| path(&format!("snapshots/{}", name(n)));
    let take = |n: u64| sh("btrfs", &["subvolume", "snapshot", "-r", &fs, &full(n)]).map(drop);
    let delete = |paths: &[String]| {
        let mut args = vec!["subvolume", "delete", "-C"];
        args.extend(paths.iter().map(String::as_str));
        sh("btrfs", &args).map(drop)
    };
    let file = File::options().write(true).open(&changing)?;
    at.step("make them", Cost::Each, None, || {
        (0..count).try_for_each(|n| {
            let block = supply.block(BLOCK as usize);
            file.write_all_at(block, n % BLOCKS * BLOCK)?;
            take(n)
        })
    })?;
    drop(file);
    system.settle()?;
    at.step("mount (import), cold", Cost::Same, None, || system.cold())?;
    let list = |args: &[&str]| {
        let at = path("");
        let args = [&["subvolume", "list"], args, &[&at]].concat();
        sh("btrfs", &args).map(drop)
    };
    at.step("list, cold", Cost::All, None, || list(&["-o", "-s"]))?;
    at.step("list", Cost::All, None, || list(&["-o", "-s"]))?;
    at.step("list the folder of snapshots", Cost::All, None, || {
        entries(Path::new(&all), count)
    })?;
    at.step("overwrite 64 blocks, ten times", Cost::Same, None, || {
        (0..FURTHER).try_for_each(|_| {
            overwrite(&changing, &mut supply)?;
            system.settle()
        })
    })?;
    at.step("snapshot, ten times", Cost::Same, None, || {
        (count..count + FURTHER).try_for_each(take)
    })?;
    let clone = |n: u64| path(&format!("clone{n}"));
    at.step("clone, ten times", Cost::Same, None, || {
        (0..FURTHER).try_for_each(|n| {
            let middle = full(count / 2);
            sh("btrfs", &["subvolume", "snapshot", &middle, &clone(n)]).map(drop)
        })
    })?;
    at.step("destroy a clone, ten times", Cost::Same, None, || {
        (0..FURTHER).try_for_each(|n| delete(&[clone(n)]))
    })?;
    at.step("destroy one, five times", Cost::Same, None, || {
        (0..FEW).try_for_each(|n| delete(&[full(count / 10 * n)]))
    })?;
    // As many as a command line takes.
    let many = |list: Vec<String>| list.chunks(500).try_for_each(delete);
    at.step("destroy a range of a fifth", Cost::All, None, || {
        let range = count / 2 + 1..=count / 2 + count / 5;
        many(range.map(full).filter(|p| Path::new(p).exists()).collect())
    })?;
    at.step("destroy the rest (-r)", Cost::All, None, || {
        let rest = (0..count + FURTHER).map(full);
        many(rest.filter(|p| Path::new(p).exists()).collect())
    })?;
    at.step("until all is free", Cost::All, None, || {
        sh("btrfs", &["subvolume", "sync", &path("")]).map(drop)
    })?;
    system.end()
}

/// Snapshots of each file system of a pool.
const EACH: u64 = 100;
/// Of those a range of so many is destroyed in every file system.
const RANGE: u64 = 10;

/// `size` snapshots of a pool, [`EACH`] of every file system, which are not mounted.
pub fn of_many(at: &mut At<'_>, world: &Arc<World>) -> Result<()> {
    let mut ours = made(at, world)?;
    let top = format!("{POOL}/many");
    ours.admin("zfs", &["create", "-o", "canmount=off", &top])?;
    let heads = at.size / EACH;
    for n in 0..heads {
        ours.admin("zfs", &["create", &format!("{top}/fs{n:05}")])?;
    }
    let daemon = ours.daemon();
    ours.export()?;
    let made = (|| {
        let engine = open(world)?;
        let r = at.step("make them, -r", Cost::Each, None, || {
            (0..EACH).try_for_each(|round| {
                // The one above them as well: a range is one of its own snapshots.
                let below = (0..heads).map(|n| format!("{top}/fs{n:05}"));
                let all: Result<Vec<_>> = std::iter::once(top.clone())
                    .chain(below)
                    .map(|fs| Ok((engine.dsl().dataset(&fs)?, name(round))))
                    .collect();
                engine.snapshot(all?, |_, _| Ok(()))
            })
        });
        r.and(engine.export())
    })();
    drop_caches()?;
    let args = ["import", "-N", "-d", world.device.path(), POOL];
    at.step("import -N, cold", Cost::All, daemon, || {
        ours.admin("zpool", &args)
    })?;
    made?;
    let list = |columns: &str| {
        let args = ["list", "-H", "-t", "snapshot", "-o", columns];
        ours.admin("zfs", &args)
    };
    at.step("list, cold", Cost::All, daemon, || list("name"))?;
    at.step("list", Cost::All, daemon, || list("name"))?;
    at.step("list with used, written", Cost::All, daemon, || {
        list("name,used,written,refer")
    })?;
    at.step("snapshot -r", Cost::All, daemon, || {
        ours.admin("zfs", &["snapshot", "-r", &format!("{top}@further")])
    })?;
    at.step(
        "what holds the space (zfs space -r)",
        Cost::All,
        daemon,
        || ours.admin("zfs", &["space", "-r", &top]),
    )?;
    at.step(
        "what a range would free (destroy -nv -r)",
        Cost::All,
        daemon,
        || {
            let range = format!("{top}@{}%{}", name(0), name(RANGE - 1));
            ours.admin("zfs", &["destroy", "-nv", "-r", &range])
        },
    )?;
    at.step(
        "what a stream of all would be (send -nR)",
        Cost::All,
        daemon,
        || ours.admin("zfs", &["send", "-nR", &format!("{top}@further")]),
    )?;
    at.step("destroy a range, -r", Cost::All, daemon, || {
        let range = format!("{top}@{}%{}", name(0), name(RANGE - 1));
        ours.admin("zfs", &["destroy", "-r", &range])
    })?;
    at.step("destroy the rest (-r)", Cost::All, daemon, || {
        ours.admin("zfs", &["destroy", "-r", &top])
    })?;
    ours.end()
}
