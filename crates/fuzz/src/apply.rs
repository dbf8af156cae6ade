//! The target that applies the records of a stream to a new dataset of a pool in memory.
//!
//! 1. A dataset serves one execution and is destroyed after it, so that an input alone decides what happens, but for the
//!    numbers of txgs and places on the disk.
//! 2. The records are those of the input, with no regard to checksums, since those are made right for
//!    [`crate::streams::sealed`] already.
//! 3. After each execution every block that the dataset has must be readable.

use base::{Kind, Result};
use disk::os_type;
use disk::stream::{begin_flag, feature, Record, RECORD};
use dsl::{Dataset, ReceiveBegin, ReceiveTarget};
use env_sim::MemDisk;
use pool::Pool;
use sim::rig::{self, Layout};
use std::cell::RefCell;
use std::sync::Arc;
use stream::{Applier, Rules};
use vdev::GroupKind;

/// Executions that one pool serves: what was destroyed may still take room.
const LIVES: u64 = 400;
/// What is tried of a stream that does not say what it uses.
const USUAL: u64 = feature::LARGE_BLOCKS
    | feature::LARGE_DNODE
    | feature::EMBED_DATA
    | feature::COMPRESSED
    | feature::LZ4
    | feature::ZSTD
    | feature::REDACTED;

struct World {
    pool: Arc<Pool>,
    _disks: Vec<Arc<MemDisk>>,
    lives: u64,
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

impl World {
    fn new() -> World {
        let (disks, pool) = rig::create(&Layout::new(GroupKind::Single, 1), 1);
        World {
            pool,
            _disks: disks,
            lives: 0,
        }
    }

    /// A dataset to be filled, with an empty object set.
    fn begin(&mut self) -> Result<(Arc<Dataset>, Arc<dmu::Objset>)> {
        self.lives += 1;
        let name = format!("x{}", self.lives);
        self.pool.task(move |pool, tx| {
            let parent = pool.dsl.dir(&pool.name())?;
            let r = ReceiveBegin {
                target: ReceiveTarget::New {
                    parent: &parent,
                    name: &name,
                },
                base: None,
                key: None,
                raw: None,
                case_insensitive: false,
                resume: None,
                features: &[],
            };
            let ds = pool.receive_begin(tx, &r, None)?;
            let os = pool.new_objset(tx, &ds, os_type::ZFS)?;
            Ok((ds, os))
        })
    }

    fn run(&mut self, b: &[u8]) -> Result<()> {
        let (ds, os) = self.begin()?;
        let mut rules = Rules {
            features: USUAL,
            swapped: false,
            spill_known: true,
            full: true,
            embedded: true,
            raw: false,
        };
        let mut rest = b;
        if let Some((Record::Begin(begin), behind)) = next(rest) {
            rules.features = begin.features & !feature::RAW;
            rules.spill_known = begin.flags & begin_flag::SPILL_BLOCK != 0;
            rest = behind.get(begin.list_len as usize..).unwrap_or_default();
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
        self.pool.sync()?;
        look(&os)?;
        drop(os);
        let gone = ds.clone();
        self.pool
            .task(move |pool, tx| pool.dsl.receive_abandon(tx, &gone))
    }
}

/// The next record, without its payload, and what is behind it.
fn next(b: &[u8]) -> Option<(Record, &[u8])> {
    let (header, behind) = b.split_first_chunk::<RECORD>()?;
    Some((Record::decode(header, false).ok()?, behind))
}

/// Reads the beginning of every object.
fn look(os: &dmu::Objset) -> Result<()> {
    let mut at = 0;
    while let Some(object) = os.next_object(at)? {
        let dn = os.hold(object)?;
        let mut buf = [0; 4096];
        match dn.read(0, &mut buf) {
            // A redacted block has no content.
            Err(e) if e.kind != Kind::Io => return Err(e),
            _ => {}
        }
        at = object;
    }
    Ok(())
}

/// Applies a stream.
pub fn apply(b: &[u8]) {
    // After a panic the pool is another one.
    let old = WORLD.take().filter(|w| w.lives < LIVES);
    let mut world = old.unwrap_or_else(World::new);
    match world.run(b) {
        Ok(()) => WORLD.set(Some(world)),
        // Full: the next one begins with an empty pool.
        Err(e) if matches!(e.kind, Kind::NoSpace | Kind::Quota) => {}
        Err(e) => panic!("{e}"),
    }
}
