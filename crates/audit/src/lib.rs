//! The audit of a pool: every block is visited, verified on request, and the space of all blocks is compared with
//! the space maps.
//!
//! [`Audit::traverse`] visits the blocks of the MOS, of every dataset and snapshot (each block where it was
//! born), of the intent logs, and of what waits to be freed. [`Audit::compare`] then compares the space they
//! take with the space maps. [`accounts`] compares the space properties of datasets with what they lead to. `zdb -b` prints what this crate finds; the simulator and `ztest` judge by it.
//!
//! Invariants:
//!
//! 1. The audit writes nothing.
//! 2. A defect is a [`Finding`] and ends neither phase.
//! 3. Findings are handed to the caller as they are met and are not kept. What is kept is bounded by the
//!    fragmentation of the pool (one range set of allocated space), by the number of its datasets and, with
//!    dedup or block cloning, by the number of blocks that may be shared.
//!
//! Start reading at [`Audit::traverse`].
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod accounts;
mod finding;
mod log;
mod pending;
mod space;
mod spares;
mod totals;
mod verify;

pub use accounts::{accounts, Account};
pub use finding::{At, Finding, Origin};
pub use log::ReadOnlyLog;
pub use pending::moved;
pub use space::Compared;
pub use totals::{Row, Sizes, Sum, Totals, MOST_SECTORS};

use base::{RangeSet, Result, Txg};
use disk::dsl::DslDatasetPhys;
use disk::feature::guid;
use disk::objset::ObjsetPhys;
use disk::{BlkPtr, DnodePhys, ObjType};
use pool::Pool;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use walk::{Next, Problem, Visitor, Zbookmark};

/// Which blocks are read and verified. The blocks of metadata that lead to others are read always.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verify {
    /// No block.
    Nothing,
    /// Blocks of metadata.
    Metadata,
    /// All blocks, each from the first copy that is good.
    Data,
    /// All blocks, every copy.
    Copies,
}

/// Findings kept by [`check`].
const KEPT: usize = 20;

/// What [`check`] found.
#[derive(Default)]
pub struct Outcome {
    /// The first few findings.
    pub findings: Vec<Finding>,
    /// Number of all findings.
    pub count: u64,
    /// Sums over all blocks.
    pub totals: Totals,
}

impl Outcome {
    fn note(&mut self, f: Finding) {
        self.count += 1;
        if self.findings.len() < KEPT {
            self.findings.push(f);
        }
    }

    /// The findings as text.
    ///
    /// # Errors
    /// The text, if there are any.
    pub fn verdict(&self) -> std::result::Result<(), String> {
        if self.count == 0 {
            return Ok(());
        }
        let line = |f: &Finding| format!("{}: {f}", f.damage());
        let mut lines: Vec<String> = self.findings.iter().map(line).collect();
        let more = self.count - lines.len() as u64;
        if more > 0 {
            lines.push(format!("... and {more} more"));
        }
        Err(lines.join("\n"))
    }
}

/// Both phases in one call; space maps are looked at only if `compare`.
///
/// # Errors
/// Space maps that cannot be loaded, and a pool that is suspended.
pub fn check(pool: &Pool, verify: Verify, compare: bool) -> Result<Outcome> {
    let mut out = Outcome::default();
    let mut sink = |f| out.note(f);
    let mut audit = Audit::new(pool, verify);
    audit.traverse(&mut sink);
    spares::check(pool, &mut sink);
    if compare {
        audit.compare(&mut sink)?;
    }
    out.totals = audit.totals;
    Ok(out)
}

/// An audit of a pool under way.
pub struct Audit<'a> {
    pool: &'a Pool,
    verify: Verify,
    totals: Totals,
    /// Blocks that several pointers may lead to, met already: vdev and offset.
    known: HashSet<(u64, u64)>,
    /// Space of blocks, by vdev.
    seen: BTreeMap<u64, RangeSet>,
    /// Space that may or may not be allocated in the maps: logs, trees being destroyed.
    maybe: BTreeMap<u64, RangeSet>,
    /// Blocks may belong to several files: space met twice is no finding.
    shared_allowed: bool,
    /// Blocks to be verified together.
    waiting: Vec<(BlkPtr, At)>,
    /// The last unreadable blocks: the traversal and the verification may both meet one.
    unreadable: VecDeque<(At, Option<usize>)>,
    /// In a tree that is being destroyed: what is free already is not counted.
    freed: bool,
    /// Free space of metaslabs looked at, by vdev and metaslab.
    free: HashMap<(u64, u64), RangeSet>,
}

/// Where findings go.
type Sink<'s> = &'s mut dyn FnMut(Finding);

impl<'a> Audit<'a> {
    /// An audit of `pool`, which does not begin before [`Audit::traverse`].
    pub fn new(pool: &'a Pool, verify: Verify) -> Audit<'a> {
        let features = pool.feature_store().map(|f| f.list()).unwrap_or_default();
        let cloning = features
            .iter()
            .any(|(guid, count, _)| guid == guid::BLOCK_CLONING && *count > 0);
        Audit {
            pool,
            verify,
            totals: Totals::default(),
            known: HashSet::new(),
            seen: BTreeMap::new(),
            maybe: BTreeMap::new(),
            shared_allowed: cloning,
            waiting: Vec::new(),
            unreadable: VecDeque::new(),
            freed: false,
            free: HashMap::new(),
        }
    }

    /// What was counted so far.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Visits all blocks of the pool.
    pub fn traverse(&mut self, sink: Sink) {
        let mut datasets = Vec::new();
        self.objset(
            &self.pool.mos().root(),
            Txg::NONE,
            0,
            Follow::Mos(&mut datasets),
            sink,
        );
        for (object, ds) in datasets {
            let follow = match ds.is_snapshot() {
                true => Follow::Blocks,
                false => Follow::Log,
            };
            self.objset(&ds.bp, ds.prev_snap_txg, object, follow, sink);
        }
        self.pending(sink);
        self.verify_waiting(sink);
    }

    fn objset(&mut self, bp: &BlkPtr, after: Txg, objset: u64, follow: Follow, sink: Sink) {
        if bp.is_hole() {
            return;
        }
        // The blocks of a snapshot are counted there, but the log is that of the head.
        if bp.birth() <= after {
            if let Follow::Log = follow {
                match self
                    .pool
                    .zio()
                    .read(bp)
                    .and_then(|b| ObjsetPhys::decode(&b))
                {
                    Ok(phys) => self.log(&phys, sink),
                    Err(e) => self.unreadable(At::root(objset), None, e, sink),
                }
            }
            return;
        }
        let spec = walk::Spec {
            after,
            ..walk::Spec::all(walk::Order::ParentsFirst)
        };
        let pool = self.pool;
        let mut tree = Tree {
            audit: self,
            objset,
            follow,
            sink,
        };
        if let Err(error) = walk::walk(pool.zio(), bp, &spec, &mut tree) {
            let origin = Origin::Objset(objset);
            (tree.sink)(Finding::Malformed { origin, error });
        }
    }

    /// Counts a block, notes its space, and queues it for verification.
    fn block(&mut self, bp: &BlkPtr, at: At, sink: Sink) {
        if self.freed && !self.is_allocated(bp) {
            return;
        }
        let row = match self.freed {
            true => Row::Deferred,
            false => Row::of(bp.obj_type()),
        };
        self.count(bp, row);
        if bp.is_embedded() {
            return;
        }
        self.space(bp, false, Origin::Block(at), sink);
        let metadata = bp.level() > 0 || bp.obj_type().is_metadata();
        if self.verify >= Verify::Data || (self.verify == Verify::Metadata && metadata) {
            self.waiting.push((*bp, at));
            if self.waiting.len() >= verify::BATCH {
                self.verify_waiting(sink);
            }
        }
    }
}

/// What else is looked at in an object set.
enum Follow<'l> {
    Blocks,
    /// The intent log.
    Log,
    /// Datasets, which are collected here by object number.
    Mos(&'l mut Vec<(u64, DslDatasetPhys)>),
}

/// The blocks of one object set.
struct Tree<'t, 'a, 'l, 's> {
    audit: &'t mut Audit<'a>,
    objset: u64,
    follow: Follow<'l>,
    sink: &'t mut (dyn FnMut(Finding) + 's),
}

impl Tree<'_, '_, '_, '_> {
    fn at(&self, p: Zbookmark) -> At {
        At {
            objset: self.objset,
            object: p.object,
            level: p.level,
            block: p.blkid,
        }
    }
}

impl Visitor for Tree<'_, '_, '_, '_> {
    fn block(&mut self, at: Zbookmark, bp: &BlkPtr, _: Option<&DnodePhys>) -> Result<Next> {
        if !bp.is_redacted() {
            self.audit.block(bp, self.at(at), self.sink);
        }
        Ok(Next::Descend)
    }

    fn objset(&mut self, phys: &ObjsetPhys) -> Result<()> {
        if let Follow::Log = self.follow {
            self.audit.log(phys, self.sink);
        }
        Ok(())
    }

    fn dnode(&mut self, object: u64, dn: &DnodePhys) -> Result<Next> {
        if let Follow::Mos(found) = &mut self.follow {
            if dn.bonus_type == ObjType::DSL_DATASET {
                match DslDatasetPhys::decode(&dn.bonus) {
                    Ok(ds) => found.push((object, ds)),
                    Err(error) => {
                        let origin = Origin::Dataset(object);
                        (self.sink)(Finding::Malformed { origin, error });
                    }
                }
            }
        }
        Ok(Next::Descend)
    }

    fn finding(&mut self, f: walk::Finding) -> Result<()> {
        match f.problem {
            Problem::Unreadable(e) => {
                let at = self.at(f.place);
                self.audit.unreadable(at, None, e, self.sink);
            }
            Problem::Malformed(error) => {
                let origin = Origin::Object {
                    objset: self.objset,
                    object: f.place.object,
                };
                (self.sink)(Finding::Malformed { origin, error });
            }
        }
        Ok(())
    }
}

/// The objects named in the directory of the MOS.
fn directory(pool: &Pool, key: &str) -> Result<Option<u64>> {
    let directory = pool.mos().hold(1)?;
    zap::Zap::new(&*directory).get(key)
}

/// Reports an error about a structure as a finding.
fn note(r: Result<()>, origin: Origin, sink: Sink) {
    if let Err(error) = r {
        sink(Finding::Malformed { origin, error });
    }
}
