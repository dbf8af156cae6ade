//! The space that datasets and directories account for, against a full traversal of each of them.
//!
//! Neither freeing nor `zdb -b` notices a drift of these numbers; later operations spread it (promotion,
//! rollback, destroying).
//!
//! 1. Referenced space of a dataset or snapshot: all of its blocks (`docs/format/space-accounting.md`).
//! 2. Its deadlist: the blocks of the snapshot before it that it has no more.
//! 3. Its unique space: the blocks born after the snapshot before it that the next one has no more.
//! 4. `used` of a directory and its breakdown.
//!
//! Everything must be on disk, and no txg may be written meanwhile. Where one tree leads to a block twice (dedup,
//! block cloning) only referenced space is compared. Memory: one entry for each block of the dataset trees.

use base::{Result, Txg};
use disk::dsl::{DslDirPhys, Used, DIR_USED_BREAKDOWN};
use disk::{BlkPtr, DnodePhys};
use dsl::{Dataset, Dir};
use pool::Pool;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use walk::{Next, Order, Visitor, Zbookmark};
use zap::Zap;

/// A number that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Dataset or snapshot.
    pub name: String,
    /// The figure that is wrong, such as `referenced`.
    pub what: &'static str,
    /// Bytes.
    pub is: u64,
    /// What the traversal gives, in bytes.
    pub should: u64,
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Account {
            name,
            what,
            is,
            should,
        } = self;
        write!(f, "{what} of {name} is {is} instead of {should}")
    }
}

/// Tells blocks apart: place and birth.
type Id = (u64, u64, Txg);

/// The blocks one object set leads to.
#[derive(Default)]
struct Blocks {
    /// Their space.
    all: HashMap<Id, u64>,
    referenced: u64,
    /// Some block is there twice.
    shared: bool,
}

struct Collect<'a> {
    pool: &'a Pool,
    into: Blocks,
}

impl Visitor for Collect<'_> {
    fn block(&mut self, _: Zbookmark, bp: &BlkPtr, _: Option<&DnodePhys>) -> Result<Next> {
        if bp.is_redacted() {
            return Ok(Next::Descend);
        }
        if let Some(d) = bp.dvas().first().filter(|_| !bp.is_embedded()) {
            let space = self.pool.zio().dsize(bp);
            let id = (d.vdev(), d.offset(), bp.birth());
            self.into.referenced += space;
            self.into.shared |= self.into.all.insert(id, space).is_some();
        }
        Ok(Next::Descend)
    }

    fn finding(&mut self, finding: walk::Finding) -> Result<()> {
        Err(finding.problem.error().clone())
    }
}

fn blocks(pool: &Pool, root: &BlkPtr) -> Result<Blocks> {
    let mut collect = Collect {
        pool,
        into: Blocks::default(),
    };
    if !root.is_hole() {
        let spec = walk::Spec::all(Order::ParentsFirst);
        walk::walk(pool.zio(), root, &spec, &mut collect)?;
    }
    Ok(collect.into)
}

/// One directory with its datasets, oldest first; the head comes last.
struct Line {
    dir: Arc<Dir>,
    chain: Vec<Arc<Dataset>>,
}

struct Accounts<'a> {
    pool: &'a Pool,
    lines: Vec<Line>,
    /// By dataset object.
    trees: BTreeMap<u64, Blocks>,
    wrong: Vec<Account>,
}

/// Compares all accounts of a pool; the wrong ones are returned.
///
/// # Errors
/// Something cannot be read.
pub fn accounts(pool: &Pool) -> Result<Vec<Account>> {
    let mut a = Accounts {
        pool,
        lines: Vec::new(),
        trees: BTreeMap::new(),
        wrong: Vec::new(),
    };
    a.collect()?;
    let lines = std::mem::take(&mut a.lines);
    for line in &lines {
        for ds in &line.chain {
            a.dataset(ds)?;
        }
        a.directory(line)?;
    }
    Ok(a.wrong)
}

impl Accounts<'_> {
    fn collect(&mut self) -> Result<()> {
        let mut dirs = Vec::new();
        let dsl = self.pool.dsl();
        dsl.walk(&dsl.root()?, &mut |d| {
            dirs.push(d.clone());
            Ok(())
        })?;
        for dir in dirs {
            let phys = dir.phys();
            let mut chain = Vec::new();
            if phys.head_dataset_obj != 0 && !dir.name().starts_with('$') {
                let head = dir.head()?;
                let mut at = Some(head);
                while let Some(ds) = at {
                    at = match ds.phys().prev_snap_obj {
                        o if o == phys.origin_obj => None,
                        _ => ds.prev()?,
                    };
                    let tree = blocks(self.pool, &ds.phys().bp)?;
                    self.trees.insert(ds.object(), tree);
                    chain.push(ds);
                }
                chain.reverse();
            }
            self.lines.push(Line { dir, chain });
        }
        Ok(())
    }

    fn compare(&mut self, name: String, what: &'static str, is: u64, should: u64) {
        if is != should {
            self.wrong.push(Account {
                name,
                what,
                is,
                should,
            });
        }
    }

    fn dataset(&mut self, ds: &Arc<Dataset>) -> Result<()> {
        let phys = ds.phys();
        let none = Blocks::default();
        let of = |object: u64| self.trees.get(&object).unwrap_or(&none);
        let (own, before, next) = (
            of(ds.object()),
            of(phys.prev_snap_obj),
            of(phys.next_snap_obj),
        );
        let referenced = own.referenced;
        let countable = !own.shared && !before.shared && !next.shared;
        let unique = own
            .all
            .iter()
            .filter(|(id, _)| id.2 > phys.prev_snap_txg && !next.all.contains_key(*id))
            .map(|(_, space)| space)
            .sum();
        let gone: HashMap<Id, u64> = before
            .all
            .iter()
            .filter(|(id, _)| !own.all.contains_key(*id))
            .map(|(id, space)| (*id, *space))
            .collect();
        self.compare(
            ds.full_name(),
            "referenced",
            phys.referenced_bytes,
            referenced,
        );
        if !countable {
            return Ok(());
        }
        self.compare(ds.full_name(), "unique", phys.unique_bytes, unique);
        let list = ds.deadlist()?;
        let mut listed = HashSet::new();
        let (mut space, mut strange) = (0, 0);
        list.for_each(self.pool.mos(), &mut |bp| {
            if let Some(d) = bp.dvas().first().filter(|_| !bp.is_embedded()) {
                let id = (d.vdev(), d.offset(), bp.birth());
                space += self.pool.zio().dsize(bp);
                strange += u64::from(!gone.contains_key(&id) || !listed.insert(id));
            }
            Ok(())
        })?;
        let dead = gone.values().sum();
        self.compare(ds.full_name(), "the deadlist's content", space, dead);
        self.compare(
            ds.full_name(),
            "the deadlist's sum",
            list.space().used.max(0) as u64,
            dead,
        );
        self.compare(
            ds.full_name(),
            "the number of strange blocks in the deadlist",
            strange,
            0,
        );
        Ok(())
    }

    fn directory(&mut self, line: &Line) -> Result<()> {
        let Some(head) = line.chain.last() else {
            return Ok(());
        };
        let phys = line.dir.phys();
        let origin = match phys.origin_obj {
            0 => Txg::NONE,
            o => self.pool.dsl().dataset_by_object(o)?.phys().creation_txg,
        };
        let trees = || {
            line.chain
                .iter()
                .filter_map(|s| self.trees.get(&s.object()))
        };
        if trees().any(|t| t.shared) {
            return Ok(());
        }
        let all: HashMap<Id, u64> = trees()
            .flat_map(|t| &t.all)
            .filter(|(id, _)| id.2 > origin)
            .map(|(id, space)| (*id, *space))
            .collect();
        let both: u64 = all.values().sum();
        let head_tree = self.trees.get(&head.object());
        let own: u64 = head_tree
            .iter()
            .flat_map(|t| &t.all)
            .filter(|(id, _)| id.2 > origin)
            .map(|(_, space)| space)
            .sum();
        let (mut child, mut reserved) = (0, 0);
        // Those of the pool's own, such as `$MOS`, count too.
        let map = self.pool.mos().hold(phys.child_dir_zapobj)?;
        for entry in Zap::new(&map).iter() {
            let object = entry?.value.as_u64().unwrap_or(0);
            let of = DslDirPhys::decode(&self.pool.mos().hold(object)?.bonus())?;
            child += of.used_bytes;
            reserved += of.reserved.saturating_sub(of.used_bytes);
        }
        let refreserved = head.ref_limits().1.saturating_sub(head.phys().unique_bytes);
        let name = || line.dir.full_name();
        self.compare(
            name(),
            "used",
            phys.used_bytes,
            both + child + reserved + refreserved,
        );
        if phys.flags & DIR_USED_BREAKDOWN == 0 {
            return Ok(());
        }
        for (what, which, should) in [
            ("usedbydataset", Used::Head, own),
            ("usedbysnapshots", Used::Snap, both - own),
            ("usedbychildren", Used::Child, child),
            ("reservations of children", Used::ChildRsrv, reserved),
            ("usedbyrefreservation", Used::RefRsrv, refreserved),
        ] {
            self.compare(name(), what, phys.used(which), should);
        }
        Ok(())
    }
}
