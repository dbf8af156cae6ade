//! The target that applies the records of a stream to a new dataset of a pool in memory.
//!
//! 1. A dataset serves one execution and is destroyed after it, so that an input alone decides what happens, but for the
//!    numbers of txgs and places on the disk.
//! 2. The records are those of the input, with no regard to checksums, since those are made right for
//!    [`crate::streams::sealed`] already.
//! 3. Every block that the dataset has must be readable afterwards.
//! 4. Txgs take most of the time. So executions share them: a *batch* of datasets is written and read together, and the next
//!    ones are made in the txg that destroys them. The first batch is of one execution, each one after it twice as large as
//!    the one before, up to [`BATCH`]. When the end of a batch fails, its inputs are run again, each in a pool of its own, and
//!    the one that fails alone is the finding.

use crate::blame::blame;
use base::{Kind, Result};
use disk::stream::{begin_flag, feature, Record, RECORD};
use disk::{os_type, Checksum, Compression};
use dmu::{Need, Objset, RawMeta};
use dsl::{Dataset, ReceiveBegin, ReceiveTarget};
use env_sim::MemDisk;
use pool::Pool;
use sim::rig::{self, Layout};
use std::cell::{Cell, RefCell};
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::Arc;
use stream::{Applier, BeginList, Rules};
use vdev::GroupKind;

/// Executions that share txgs, at most.
const BATCH: usize = 64;
/// Executions that one pool serves: what was destroyed may still take room.
const LIVES: u64 = 2048;
/// What is tried of a stream that does not say what it uses.
const USUAL: u64 = feature::LARGE_BLOCKS
    | feature::LARGE_DNODE
    | feature::EMBED_DATA
    | feature::COMPRESSED
    | feature::LZ4
    | feature::ZSTD
    | feature::REDACTED;
/// The meta-dnode of a dataset that a raw stream fills, as OpenZFS makes it.
const META: RawMeta = RawMeta {
    nlevels: 7,
    indblkshift: 17,
    maxblkid: 31,
    checksum: Checksum::FLETCHER4,
    compress: Compression::LZ4,
};

/// A dataset that a stream fills.
struct Filled {
    ds: Arc<Dataset>,
    os: Arc<Objset>,
}

struct World {
    pool: Arc<Pool>,
    _disks: Vec<Arc<MemDisk>>,
    lives: u64,
    /// Executions of this batch.
    size: usize,
    /// Empty datasets, for raw streams and for others.
    raw: Vec<Filled>,
    plain: Vec<Filled>,
    /// What was filled in this batch, with the inputs.
    filled: Vec<(Filled, Vec<u8>)>,
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
    /// Executions of the next batch.
    static SIZE: Cell<usize> = const { Cell::new(1) };
}

/// Makes an empty dataset.
fn begin(pool: &Pool, tx: &dmu::Tx, name: &str, raw: bool) -> Result<Filled> {
    let parent = pool.dsl().dir(&pool.name())?;
    let r = ReceiveBegin {
        target: ReceiveTarget::New {
            parent: &parent,
            name,
        },
        base: None,
        key: None,
        raw: None,
        case_insensitive: false,
        resume: None,
        features: &[],
    };
    let ds = pool.receive_begin(tx, &r, None)?;
    let os = match raw {
        true => pool.new_raw_objset(tx, &ds, os_type::ZFS, (1, META))?,
        false => pool.new_objset(tx, &ds, os_type::ZFS)?,
    };
    Ok(Filled { ds, os })
}

impl World {
    fn new(size: usize) -> Result<World> {
        let (disks, pool) = rig::create(&Layout::new(GroupKind::Single, 1), 1);
        let mut world = World {
            pool,
            _disks: disks,
            lives: 0,
            size,
            raw: Vec::new(),
            plain: Vec::new(),
            filled: Vec::new(),
        };
        world.next_batch()?;
        Ok(world)
    }

    /// Destroys what was filled and makes empty datasets, in one txg.
    fn next_batch(&mut self) -> Result<()> {
        let gone: Vec<_> = self.filled.drain(..).map(|(f, _)| f.ds).collect();
        let (plain, raw) = (self.size - self.plain.len(), self.size - self.raw.len());
        let first = self.lives;
        self.lives += (plain + raw) as u64;
        let (plain, raw) = self.pool.task(move |pool, tx| {
            gone.iter()
                .try_for_each(|ds| pool.dsl().receive_abandon(tx, ds))?;
            let name = |n: usize| format!("x{}", first + n as u64);
            let made = (0..plain + raw).map(|n| begin(pool, tx, &name(n), n >= plain));
            let mut made = made.collect::<Result<Vec<_>>>()?;
            let raw = made.split_off(plain);
            Ok((made, raw))
        })?;
        self.plain.extend(plain);
        self.raw.extend(raw);
        Ok(())
    }

    /// Applies one input to a dataset of its own. True: the batch is to end.
    fn run(&mut self, b: &[u8]) -> Result<bool> {
        let mut rules = Rules {
            features: USUAL,
            swapped: false,
            spill_known: true,
            full: true,
            embedded: true,
            raw: false,
        };
        let (mut rest, mut meta) = (b, META);
        if let Some((Record::Begin(begin), behind)) = next(rest) {
            rules.features = begin.features;
            rules.spill_known = begin.flags & begin_flag::SPILL_BLOCK != 0;
            rules.raw = begin.features & feature::RAW != 0;
            let (list, behind) = behind
                .split_at_checked(begin.list_len as usize)
                .unwrap_or_default();
            rest = behind;
            let list = BeginList::from_payload(list).unwrap_or_default();
            let last = list.crypt_keydata.and_then(|l| l.get_u64("mdn_maxblkid"));
            let most = disk::dnode::MAX_OBJECT / disk::dnode::DNODES_PER_BLOCK;
            meta.maxblkid = last.filter(|n| *n <= most).unwrap_or(META.maxblkid);
        }
        let unused = match rules.raw {
            true => &mut self.raw,
            false => &mut self.plain,
        };
        let Some(Filled { ds, os }) = unused.pop() else {
            return Ok(true);
        };
        if rules.raw {
            os.set_raw(&os.tx(Need::bytes(1 << 16))?, &meta, &[1; 32])?;
        }
        let mut applier = Applier::new(os.clone(), ds.clone(), rules, false);
        let applied = loop {
            let Some((record, behind)) = next(rest) else {
                break applier.finish();
            };
            let len = record.payload() as usize;
            let (Ok(()), Some(payload)) = (record.check(), behind.get(..len)) else {
                break applier.flush();
            };
            if let Err(e) = applier.apply(&record, payload.to_vec(), 0) {
                break Err(e);
            }
            rest = &behind[len..];
        };
        if let Err(e) = applied {
            // A stream is wrong, asks for too much, or has a feature that is missing: never is the pool damaged by it.
            assert!(!matches!(e.kind, Kind::Damaged | Kind::Io), "{e}");
        }
        drop(applier);
        self.filled.push((Filled { ds, os }, b.to_vec()));
        let empty = self.raw.is_empty() || self.plain.is_empty();
        Ok(empty || self.filled.len() >= self.size)
    }

    /// Writes what was filled, and reads it.
    fn end_batch(&self) -> Result<()> {
        self.pool.sync()?;
        self.filled.iter().try_for_each(|(f, _)| look(&f.os))
    }
}

/// The next record, without its payload, and what is behind it.
fn next(b: &[u8]) -> Option<(Record, &[u8])> {
    let (header, behind) = b.split_first_chunk::<RECORD>()?;
    Some((Record::decode(header, false).ok()?, behind))
}

/// Finds every object, and reads its beginning where that takes no key.
fn look(os: &Objset) -> Result<()> {
    let mut at = 0;
    while let Some(object) = os.next_object(at)? {
        let dn = os.hold(object)?;
        at = object;
        if os.crypt().is_encrypted() {
            continue;
        }
        let mut buf = [0; 4096];
        match dn.read(0, &mut buf) {
            // A redacted block has no content.
            Err(e) if e.kind != Kind::Io => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

/// Runs one input in a pool of its own.
fn alone(b: &[u8]) -> Result<()> {
    let mut world = World::new(1)?;
    world.run(b)?;
    world.end_batch()?;
    world.next_batch()
}

/// Ends a batch. The input that fails alone is named as the finding.
fn end(world: &mut World) -> Result<()> {
    let ended = catch_unwind(AssertUnwindSafe(|| {
        world.end_batch().unwrap_or_else(|e| match is_full(&e) {
            true => {}
            false => panic!("{e}"),
        });
    }));
    let Err(panicked) = ended else {
        return Ok(());
    };
    for (_, input) in &world.filled {
        let failed = catch_unwind(AssertUnwindSafe(|| match alone(input) {
            Err(e) if !is_full(&e) => panic!("{e}"),
            _ => {}
        }));
        if let Err(panicked) = failed {
            blame(input);
            resume_unwind(panicked);
        }
    }
    let all: Vec<u8> = world.filled.iter().flat_map(|(_, b)| b.clone()).collect();
    blame(&all);
    resume_unwind(panicked)
}

/// Full: the next one begins with an empty pool.
fn is_full(e: &base::Error) -> bool {
    matches!(e.kind, Kind::NoSpace | Kind::Quota)
}

/// Applies a stream.
pub fn apply(b: &[u8]) {
    // After a panic the pool is another one.
    let old = WORLD.take().filter(|w| w.lives < LIVES);
    let run = || -> Result<World> {
        let mut world = match old {
            Some(world) => world,
            None => World::new(SIZE.get())?,
        };
        if world.run(b)? {
            end(&mut world)?;
            world.size = (world.size * 2).min(BATCH);
            SIZE.set(world.size);
            world.next_batch()?;
        }
        Ok(world)
    };
    match run() {
        Ok(world) => WORLD.set(Some(world)),
        Err(e) if is_full(&e) => {}
        Err(e) => panic!("{e}"),
    }
}
