//! The work of a thread on its files, and the check of the files afterwards.

use crate::acks::{self, Acks, Fact, Name};
use crate::block::{self, Id};
use crate::layout::Fs;
use crate::Dice;
use base::{Kind, Result};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use zpl::{Cred, New, WriteOpts, Zfs, Znode};

/// Files of a thread in each file system.
const FILES: u64 = 24;
/// Blocks of a file.
const BLOCKS: u64 = 600;
const SIZE: u64 = block::SIZE as u64;
/// Blocks written at once.
const RUN: u64 = 32;

/// Sums over all threads.
#[derive(Default)]
pub struct Counts {
    pub operations: AtomicU64,
    pub acknowledged: AtomicU64,
    pub full: AtomicU64,
    /// How often the pool waited for devices that refused.
    pub waited: AtomicU64,
}

/// A file as its thread knows it.
struct Known {
    gen: u64,
    /// Called by its other name.
    other: bool,
    /// Version of each block that is there.
    blocks: BTreeMap<u64, u64>,
}

/// The files of one thread in one file system.
pub struct Worker {
    zfs: Arc<Zfs>,
    set: u64,
    thread: u64,
    dir: Arc<Znode>,
    files: HashMap<u64, Known>,
    /// Last number used, of files that had the same name.
    gens: HashMap<u64, u64>,
    versions: u64,
}

fn names(file: u64) -> [String; 2] {
    [format!("f{file}"), format!("g{file}")]
}

fn is_full(e: &base::Error) -> bool {
    matches!(e.kind, Kind::NoSpace | Kind::Quota)
}

fn wrong(text: String) -> base::Error {
    base::Error::new(Kind::Damaged, text)
}

/// Which file it is of those that had its name, if there is one without any block, which does not
/// say so itself: the acknowledged one if nothing was begun since, else one after the `last` known.
fn silent(fact: Option<&Fact>, last: Option<u64>) -> u64 {
    match fact {
        Some(f) if !f.gone && !f.loose => f.gen,
        _ => last.unwrap_or(0) + 1,
    }
}

impl Worker {
    /// Looks at what is there after a start, and holds it against what was acknowledged.
    pub fn new(fs: &Fs, thread: u64, facts: &HashMap<Name, Fact>) -> Result<Worker> {
        let root = Cred::root();
        let top = fs.zfs.root()?;
        let name = format!("t{thread}");
        let dir = match fs.zfs.lookup(&top, name.as_bytes(), &root) {
            Err(e) if e.kind == Kind::NotFound => {
                fs.zfs
                    .create(&top, name.as_bytes(), &New::dir(0o755, 0), &root)?
            }
            r => r?,
        };
        let mut w = Worker {
            zfs: fs.zfs.clone(),
            set: fs.number,
            thread,
            dir,
            files: HashMap::new(),
            gens: HashMap::new(),
            versions: 0,
        };
        for file in 0..FILES {
            let fact = facts.get(&(w.set, thread, file));
            w.look(file, fact)
                .map_err(|e| e.context(format!("file {file} of thread {thread}, set {}", w.set)))?;
        }
        Ok(w)
    }

    fn look(&mut self, file: u64, fact: Option<&Fact>) -> Result<()> {
        let root = Cred::root();
        let mut found = None;
        for (i, name) in names(file).iter().enumerate() {
            match self.zfs.lookup(&self.dir, name.as_bytes(), &root) {
                Ok(_) if found.is_some() => {
                    return Err(wrong("it is there under both names".into()));
                }
                Ok(z) => found = Some((i == 1, z)),
                Err(e) if e.kind == Kind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        let loose = fact.is_none_or(|f| f.loose);
        if let Some(f) = fact {
            self.gens.insert(file, f.gen);
            match (&found, f.gone) {
                (None, false) if !loose => return Err(wrong(format!("lost: {f:?}"))),
                (Some(_), true) if !loose => return Err(wrong("it was removed".into())),
                _ => {}
            }
        }
        let Some((other, z)) = found else {
            return Ok(());
        };
        let (mut blocks, mut torn) = (BTreeMap::new(), Vec::new());
        let mut gen = None;
        let end = z.size().div_ceil(block::SIZE as u64);
        let mut buf = vec![0; block::SIZE];
        for n in 0..end {
            buf.fill(0);
            self.zfs.read(&z, n * block::SIZE as u64, &mut buf)?;
            let least = match fact {
                Some(f) if !f.gone && !loose => f.blocks.get(&n).copied().unwrap_or(0),
                _ => 0,
            };
            let id = match Id::read(&buf) {
                Ok(None) => continue,
                Ok(Some(id)) => id,
                Err(_) => {
                    let bad = |e| wrong(format!("block {n}: {e}"));
                    torn.push(n);
                    Id::read_pieces(&buf, least).map_err(bad)?
                }
            };
            let here = (id.set, id.thread, id.file, id.block);
            if here != (self.set, self.thread, file, n) || gen.is_some_and(|g| g != id.gen) {
                return Err(wrong(format!("block {n} belongs elsewhere: {id:?}")));
            }
            gen = Some(id.gen);
            blocks.insert(n, id.version);
            self.versions = self.versions.max(id.version);
        }
        if let Some(f) = fact.filter(|f| !f.gone && !loose) {
            if gen.is_some_and(|g| g != f.gen) {
                return Err(wrong(format!("generation {gen:?} instead of {}", f.gen)));
            }
            for (n, least) in &f.blocks {
                if blocks.get(n).is_none_or(|v| v < least) {
                    return Err(wrong(format!(
                        "block {n} has version {:?}, {least} was acknowledged",
                        blocks.get(n)
                    )));
                }
            }
        }
        let gen = gen.unwrap_or_else(|| silent(fact, self.gens.get(&file).copied()));
        let last = self.gens.entry(file).or_insert(gen);
        *last = gen.max(*last);
        // Those that came in part are written again, so that each is one version.
        self.versions += u64::from(!torn.is_empty());
        for block in torn {
            let id = Id {
                set: self.set,
                thread: self.thread,
                file,
                gen,
                block,
                version: self.versions,
            };
            id.fill(&mut buf);
            let at = block * SIZE;
            self.zfs.write(&z, at, &buf, WriteOpts::default())?;
            blocks.insert(block, self.versions);
        }
        let known = Known { gen, other, blocks };
        self.files.insert(file, known);
        Ok(())
    }

    /// Goes on until told to stop.
    pub fn run(
        &mut self,
        acks: &Acks,
        dice: &mut Dice,
        stop: &AtomicBool,
        counts: &Counts,
    ) -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            self.steps(1, acks, dice, counts)?;
        }
        Ok(())
    }

    /// So many steps.
    pub fn steps(&mut self, n: u64, acks: &Acks, dice: &mut Dice, counts: &Counts) -> Result<()> {
        for _ in 0..n {
            let file = dice.below(FILES);
            match self.step(file, acks, dice, counts) {
                Ok(()) => {}
                Err(e) if is_full(&e) => {
                    counts.full.fetch_add(1, Ordering::Relaxed);
                    self.remove(file, acks, counts)?;
                }
                Err(e) => {
                    return Err(e.context(format!(
                        "file {file} of thread {}, set {}",
                        self.thread, self.set
                    )))
                }
            }
            counts.operations.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn name(&self, file: u64) -> Name {
        (self.set, self.thread, file)
    }

    fn step(&mut self, file: u64, acks: &Acks, dice: &mut Dice, counts: &Counts) -> Result<()> {
        match dice.below(20) {
            0 => self.remove(file, acks, counts),
            1 => self.rename(file, acks, counts),
            2 => self.cut(file, acks, dice),
            3..=7 => self.keep(file, acks, counts),
            8..=10 => self.check(file),
            _ => self.write(file, acks, dice),
        }
    }

    fn open(&self, file: u64) -> Result<Option<Arc<Znode>>> {
        let Some(k) = self.files.get(&file) else {
            return Ok(None);
        };
        let name = &names(file)[usize::from(k.other)];
        let z = self.zfs.lookup(&self.dir, name.as_bytes(), &Cred::root())?;
        Ok(Some(z))
    }

    fn write(&mut self, file: u64, acks: &Acks, dice: &mut Dice) -> Result<()> {
        let z = match self.open(file)? {
            Some(z) => z,
            None => {
                acks.add(&acks::loose(self.name(file)))?;
                let name = &names(file)[0];
                let new = New::file(0o100_644, 0);
                let z = self
                    .zfs
                    .create(&self.dir, name.as_bytes(), &new, &Cred::root())?;
                let gen = self.gens.entry(file).or_insert(0);
                *gen += 1;
                self.files.insert(
                    file,
                    Known {
                        gen: *gen,
                        other: false,
                        blocks: BTreeMap::new(),
                    },
                );
                z
            }
        };
        let (set, thread) = (self.set, self.thread);
        let Some(k) = self.files.get_mut(&file) else {
            return Ok(());
        };
        let first = dice.below(BLOCKS);
        let run = 1 + dice.below(RUN);
        let mut data = vec![0; run as usize * block::SIZE];
        self.versions += 1;
        let version = self.versions;
        for (i, b) in data.chunks_exact_mut(block::SIZE).enumerate() {
            let id = Id {
                set,
                thread,
                file,
                gen: k.gen,
                block: first + i as u64,
                version,
            };
            id.fill(b);
        }
        let opts = WriteOpts {
            sync: dice.below(16) == 0,
            ..WriteOpts::default()
        };
        let at = first * block::SIZE as u64;
        let done = self.zfs.write(&z, at, &data, opts)?;
        for i in 0..(done / block::SIZE) as u64 {
            k.blocks.insert(first + i, version);
        }
        match done == data.len() {
            true => Ok(()),
            // The rest would not fit; what was cut in the middle is made whole again.
            false => {
                acks.add(&acks::loose((set, thread, file)))?;
                let whole = (done / block::SIZE) as u64;
                let cut = (first + whole) * block::SIZE as u64;
                k.blocks.retain(|b, _| *b < first + whole);
                self.zfs.truncate(&z, cut, &Cred::root())?;
                Err(Kind::NoSpace.into())
            }
        }
    }

    /// Cuts the file off at a block, or makes a hole.
    fn cut(&mut self, file: u64, acks: &Acks, dice: &mut Dice) -> Result<()> {
        let Some(z) = self.open(file)? else {
            return Ok(());
        };
        acks.add(&acks::loose(self.name(file)))?;
        let size = block::SIZE as u64;
        let (first, run) = (dice.below(BLOCKS), 1 + dice.below(RUN));
        let Some(k) = self.files.get_mut(&file) else {
            return Ok(());
        };
        if dice.below(2) == 0 {
            self.zfs.truncate(&z, first * size, &Cred::root())?;
            k.blocks.retain(|b, _| *b < first);
        } else {
            let how = zpl::falloc::PUNCH_HOLE | zpl::falloc::KEEP_SIZE;
            self.zfs.fallocate(&z, first * size, run * size, how)?;
            k.blocks.retain(|b, _| !(first..first + run).contains(b));
        }
        Ok(())
    }

    fn rename(&mut self, file: u64, acks: &Acks, counts: &Counts) -> Result<()> {
        let Some(k) = self.files.get_mut(&file) else {
            return Ok(());
        };
        let both = names(file);
        let (from, to) = match k.other {
            false => (&both[0], &both[1]),
            true => (&both[1], &both[0]),
        };
        self.zfs.rename(
            &self.dir,
            from.as_bytes(),
            &self.dir,
            to.as_bytes(),
            0,
            &Cred::root(),
        )?;
        k.other = !k.other;
        self.keep(file, acks, counts)
    }

    fn remove(&mut self, file: u64, acks: &Acks, counts: &Counts) -> Result<()> {
        let Some(k) = self.files.get(&file) else {
            return Ok(());
        };
        acks.add(&acks::loose(self.name(file)))?;
        let name = &names(file)[usize::from(k.other)];
        self.zfs.unlink(&self.dir, name.as_bytes(), &Cred::root())?;
        let gen = k.gen;
        self.files.remove(&file);
        self.zfs.fsync(None)?;
        counts.acknowledged.fetch_add(1, Ordering::Relaxed);
        acks.add(&acks::gone(self.name(file), gen))
    }

    /// fsync, and what follows from it.
    fn keep(&mut self, file: u64, acks: &Acks, counts: &Counts) -> Result<()> {
        let Some(z) = self.open(file)? else {
            return Ok(());
        };
        let Some(k) = self.files.get(&file) else {
            return Ok(());
        };
        self.zfs.fsync(Some(&z))?;
        counts.acknowledged.fetch_add(1, Ordering::Relaxed);
        let blocks = k.blocks.iter().map(|(b, v)| (*b, *v));
        acks.add(&acks::kept(self.name(file), k.gen, blocks))
    }

    /// Reads the file and holds it against what was written.
    fn check(&self, file: u64) -> Result<()> {
        let (Some(z), Some(k)) = (self.open(file)?, self.files.get(&file)) else {
            return Ok(());
        };
        let mut buf = vec![0; block::SIZE];
        for n in 0..z.size().div_ceil(block::SIZE as u64) {
            buf.fill(0);
            self.zfs.read(&z, n * block::SIZE as u64, &mut buf)?;
            let id = Id::read(&buf).map_err(|e| wrong(format!("block {n}: {e}")))?;
            let version = id.map(|i| i.version);
            if version != k.blocks.get(&n).copied() {
                return Err(wrong(format!(
                    "block {n} has version {version:?}, {:?} was written",
                    k.blocks.get(&n)
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file cut to nothing and kept is the same one after a start; what is written to it before
    /// a kill, and not waited for, was held against the acknowledgement as another file's.
    #[test]
    fn an_empty_file_that_was_kept_is_the_same() {
        let fact = |gone, loose| Fact {
            gen: 2,
            gone,
            loose,
            ..Fact::default()
        };
        assert_eq!(silent(Some(&fact(false, false)), Some(2)), 2);
        assert_eq!(silent(Some(&fact(false, true)), Some(2)), 3);
        assert_eq!(silent(Some(&fact(true, false)), Some(2)), 3);
        assert_eq!(silent(None, None), 1);
    }
}
