//! A pool of which one file system is damaged beyond repair: it is imported, and the others are as they were.
//!
//! The damage is done to a copy of the images. The pool itself is whole again before anything is written to it.

use crate::acks::{Acks, Fact, Name};
use crate::acks_file;
use crate::desk::Desk;
use crate::layout::{self, Fs};
use crate::options::Options;
use crate::work::{Counts, Worker};
use crate::Dice;
use audit::{Finding, Origin};
use base::{bail, Error, Kind, Result};
use disk::BlkPtr;
use pool::Pool;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes copied at once; where all are zeros the copy has a hole.
const PIECE: usize = 64 << 10;
/// Steps of each thread on the copy.
const STEPS: u64 = 60;

/// What is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The root of the object set.
    Root,
    /// The object with its properties.
    Properties,
}

fn failed(path: &Path, e: &std::io::Error) -> Error {
    Error::new(Kind::Io, format!("{}: {e}", path.display()))
}

fn folder(o: &Options) -> PathBuf {
    o.folder.join(format!("{}.damaged", o.pool))
}

/// The number of the file system that is damaged in the copy, if there is a copy.
fn victim_file(o: &Options) -> PathBuf {
    folder(o).join("victim")
}

/// Whether a copy waits to be judged.
pub fn is_there(o: &Options) -> bool {
    victim_file(o).exists()
}

/// Removes the copy.
pub fn forget(o: &Options) -> Result<()> {
    let folder = folder(o);
    match std::fs::remove_dir_all(&folder) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(failed(&folder, &e)),
        _ => Ok(()),
    }
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    let mut source = File::open(from)?;
    let target = File::create_new(to)?;
    target.set_len(source.metadata()?.len())?;
    let (mut buf, mut at) = (vec![0; PIECE], 0);
    loop {
        let n = source.read(&mut buf)?;
        if n == 0 {
            return Ok(());
        }
        if buf[..n].iter().any(|b| *b != 0) {
            target.write_all_at(&buf[..n], at)?;
        }
        at += n as u64;
    }
}

/// Copies the images and the acknowledgements; the options of a process that works on the copy.
pub fn copied(o: &Options) -> Result<Options> {
    forget(o)?;
    let folder = folder(o);
    std::fs::create_dir(&folder).map_err(|e| failed(&folder, &e))?;
    let mut all = layout::images(o);
    all.extend([acks_file(o)].into_iter().filter(|p| p.exists()));
    for path in all {
        let to = folder.join(path.file_name().unwrap_or_default());
        copy(&path, &to).map_err(|e| failed(&path, &e))?;
    }
    Ok(Options {
        folder,
        ..o.clone()
    })
}

fn block_of(pool: &Pool, full: &str, part: Part) -> Result<BlkPtr> {
    let ds = pool.dsl().dataset(full)?;
    match part {
        Part::Root => Ok(ds.phys().bp),
        Part::Properties => {
            let object = ds.dir().phys().props_zapobj;
            Ok(pool.mos().pointer_of(object, 0, 0)?.unwrap_or_default())
        }
    }
}

/// Writes a block to all its places.
fn put(pool: &Pool, bp: &BlkPtr, bytes: &[u8]) -> Result<()> {
    let birth = bp.physical_birth();
    bp.dvas()
        .iter()
        .try_for_each(|dva| pool.zio().devices.mend(dva, birth, bytes).map(drop))
}

/// Copies the pool, which nobody uses meanwhile, with one block of a file system spoilt in all its places. False where there is
/// no such block.
pub fn spoil(desk: &Desk<'_>, fs: &Fs, part: Part) -> Result<bool> {
    let (o, pool) = (desk.options(), desk.pool()?);
    let bp = block_of(&pool, &desk.full(fs.name.as_deref()), part)?;
    if bp.is_hole() || bp.is_embedded() || pool.suspended().is_some() {
        return Ok(false);
    }
    // A device that is away keeps what is right. None of it is on logs.
    let tops = pool.tree().tops();
    let mut leaves = tops.iter().filter(|t| !t.is_log()).flat_map(|t| t.leaves());
    if !leaves.all(|l| l.state().usable() && l.dtl_is_empty()) {
        return Ok(false);
    }
    let birth = bp.physical_birth();
    let whole = |v| pool.zio().devices.lacking(v, birth).is_empty();
    let fit = |d: &disk::Dva| !d.is_gang() && whole(d.vdev());
    if !bp.dvas().iter().all(fit) {
        return Ok(false);
    }
    let right = pool.zio().read_raw(&bp)?;
    let wrong: Vec<u8> = right.iter().map(|b| b ^ 0x5a).collect();
    put(&pool, &bp, &wrong)?;
    let done = match pool.zio().probe_raw(&bp) {
        Ok(()) => Err(Error::new(Kind::Damaged, "a spoilt block is read")),
        Err(_) => copied(o),
    };
    put(&pool, &bp, &right)?;
    pool.zio().probe_raw(&bp)?;
    done?;
    let text = format!("{} {part:?}", fs.number);
    let path = victim_file(o);
    std::fs::write(&path, text).map_err(|e| failed(&path, &e))?;
    Ok(true)
}

/// The others of the file systems, mounted, and their threads, which found what was acknowledged.
fn others(
    desk: &Desk<'_>,
    victim: u64,
    facts: &HashMap<Name, Fact>,
) -> Result<(Vec<Fs>, Vec<Worker>)> {
    let o = desk.options();
    let mut dice = Dice::new(1);
    let (mut sets, mut workers) = (Vec::new(), Vec::new());
    for n in (0..o.sets).filter(|n| *n != victim) {
        let fs = desk.mount(n, &mut dice)?;
        for thread in (0..o.threads).filter(|t| t % o.sets == n) {
            workers.push(Worker::new(&fs, thread, facts)?);
        }
        sets.push(fs);
    }
    Ok((sets, workers))
}

/// The copy is imported, and its other file systems are as they were, also after they were used. Then the copy is removed.
pub fn judge(o: &Options) -> Result<()> {
    let path = victim_file(o);
    let text = std::fs::read_to_string(&path).map_err(|e| failed(&path, &e))?;
    let victim = text.split(' ').next().and_then(|n| n.parse::<u64>().ok());
    let Some(victim) = victim else {
        bail!(Damaged, "{}: '{text}'", path.display());
    };
    if o.verbose {
        println!("ztest: a copy of the pool with file system {text} damaged");
    }
    let what = |e: Error| e.context(format!("file system {text} damaged"));
    let of = Options {
        folder: folder(o),
        ..o.clone()
    };
    judge_copy(&of, victim).map_err(what)?;
    forget(o)
}

fn judge_copy(o: &Options, victim: u64) -> Result<()> {
    for _ in 0..2 {
        let desk = Desk::import(o)?;
        let pool = desk.pool()?;
        if desk.mount(victim, &mut Dice::new(1)).is_ok() {
            bail!(Damaged, "the damaged file system is mounted");
        }
        let (acks, facts) = Acks::open(&acks_file(o))?;
        let (sets, mut workers) = others(&desk, victim, &facts)?;
        let counts = Counts::default();
        for w in &mut workers {
            w.steps(STEPS, &acks, &mut Dice::new(3), &counts)?;
        }
        pool.sync()?;
        drop(workers);
        for fs in sets {
            desk.unmount(fs)?;
        }
        let full = desk.full(Some(&format!("fs{victim}")));
        read_all(&pool, &full)?;
        drop(pool);
        desk.end(true)?;
    }
    Ok(())
}

/// Every block of the pool is read. Only what belongs to the file system may be wrong.
fn read_all(pool: &Pool, full: &str) -> Result<()> {
    let ds = pool.dsl().dataset(full)?;
    let mut sets = HashSet::from([ds.object()]);
    sets.extend(ds.snapshots()?.into_iter().map(|(_, s)| s.object()));
    let properties = ds.dir().phys().props_zapobj;
    let of_it =
        |objset: u64, object: u64| sets.contains(&objset) || objset == 0 && object == properties;
    let expected = |f: &Finding| match f {
        Finding::Unreadable { at, .. } => of_it(at.objset, at.object),
        Finding::Malformed { origin, .. } => match origin {
            Origin::Block(at) => of_it(at.objset, at.object),
            Origin::Object { objset, object } => of_it(*objset, *object),
            Origin::Objset(n) | Origin::Dataset(n) => sets.contains(n),
            _ => false,
        },
        _ => false,
    };
    let found = audit::check(pool, audit::Verify::Data, false)?;
    let others = found.findings.iter().filter(|f| !expected(f));
    let lines: Vec<String> = others.map(Finding::to_string).collect();
    match lines.is_empty() {
        true => Ok(()),
        false => bail!(Damaged, "{}", lines.join("\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desk::tests::on_pool_of;
    use crate::layout::Layout;
    use base::mutation::{mutate, Mutation};
    use vdev::GroupKind;

    fn damaged(d: &Desk<'_>, part: Part, mistake: Option<Mutation>) -> Result<()> {
        let o = d.options();
        let (acks, _) = Acks::open(&acks_file(o))?;
        let mut sets = Vec::new();
        for n in 0..o.sets {
            let fs = d.mount(n, &mut Dice::new(1))?;
            let mut w = Worker::new(&fs, n, &HashMap::new())?;
            w.steps(40, &acks, &mut Dice::new(2), &Counts::default())?;
            d.pool()?.sync()?;
            w.steps(40, &acks, &mut Dice::new(3), &Counts::default())?;
            sets.push(fs);
        }
        assert!(spoil(d, &sets[1], part)?, "{part:?}: nothing is spoilt");
        mutate(mistake);
        let judged = judge(o);
        mutate(None);
        crate::lives::judge(&*d.pool()?).map_err(|e| Error::new(Kind::Damaged, e))?;
        judged
    }

    #[test]
    fn a_damaged_file_system_stays_alone_and_one_that_takes_the_pool_along_is_found() {
        let kinds = [
            (GroupKind::Single, 1),
            (GroupKind::Mirror, 2),
            (GroupKind::Raidz { nparity: 1 }, 3),
        ];
        for (kind, width) in kinds {
            let l = Layout {
                kind,
                tops: 1,
                width,
                ashift: 12,
            };
            for part in [Part::Root, Part::Properties] {
                let name = format!("damaged-{width}-{part:?}");
                on_pool_of(&name, &l, 3, |d| damaged(d, part, None)).unwrap();
            }
            let mistake = Some(Mutation::DamageRefusesImport);
            let found = on_pool_of("damaged", &l, 3, |d| damaged(d, Part::Root, mistake));
            eprintln!("{mistake:?}: {}", found.expect_err("not found"));
        }
    }
}
