//! The plan of a `zfs send`: its streams, in order, each with its base.

use super::package;
use super::words::{failure, refusal};
use crate::datasets::{self, rights, Answer};
use crate::errors;
use crate::rations::{self, Share};
use crate::registry::PoolEntry;
use api::{ApiError, Send};
use base::{Kind, Result, Txg};
use disk::dsl::{bookmark_flags, BookmarkPhys};
use disk::BlkPtr;
use dsl::{Dataset, Dir};
use std::collections::BTreeSet;
use std::sync::Arc;
use stream::send::{Base, SendSpec};
use stream::Package;

/// One stream. A package may have a hundred thousand: none of their snapshots is in memory for that.
pub struct Step {
    /// The dataset that is sent.
    pub object: u64,
    /// How it is sent.
    pub spec: SendSpec,
    /// Base, as the command prints it.
    pub from: Option<String>,
    /// The base is the origin, and is told and estimated as if there was none: the first stream of a clone in a package.
    pub told_full: bool,
    /// Base, if it is a snapshot: its object.
    pub base: Option<u64>,
    /// Base, if it is a bookmark that keeps sizes.
    pub mark: Option<BookmarkPhys>,
    /// Root of the object set of a head when the stream was planned.
    pub root: Option<BlkPtr>,
    /// Bytes of a stream that goes on that have been received.
    pub received: u64,
}

impl Step {
    /// A stream of `ds` from `from`.
    pub fn new(ds: &Dataset, spec: SendSpec, from: Option<String>, base: Option<&Dataset>) -> Step {
        Step {
            object: ds.object(),
            spec,
            from,
            told_full: false,
            base: base.map(Dataset::object),
            mark: None,
            root: (!ds.is_snapshot()).then(|| ds.phys().bp),
            received: 0,
        }
    }

    /// The dataset. Nobody may be able to destroy it: it is in use, or the names in the pool stay as they are.
    pub fn load(&self, entry: &PoolEntry) -> Result<Arc<Dataset>> {
        entry.pool.dataset_by_object(self.object)
    }
}

/// All streams of a command.
pub struct Plan {
    /// The pool.
    pub entry: Arc<PoolEntry>,
    /// Header of a package, and the name in it.
    pub package: Option<(Package, String)>,
    /// Holds are in it.
    pub holds: bool,
    /// The streams, in the order in which they are sent.
    pub steps: Vec<Step>,
    /// Sentences about what is left out.
    pub warnings: Vec<String>,
    /// A warning is a failure.
    pub failed: bool,
    /// What the resume token says.
    pub token: String,
    /// What it takes of its user's ration.
    pub share: Share,
}

impl Plan {
    /// A plan without streams.
    pub fn new(entry: &Arc<PoolEntry>) -> Plan {
        Plan {
            entry: entry.clone(),
            package: None,
            holds: false,
            steps: Vec::new(),
            warnings: Vec::new(),
            failed: false,
            token: String::new(),
            share: Share::new(),
        }
    }

    fn fail(&mut self, what: String) {
        self.warnings.push(what);
        self.failed = true;
    }
}

/// The options that all streams have.
fn common(r: &Send, name: &str) -> SendSpec {
    SendSpec {
        name: name.to_string(),
        large_blocks: r.large_blocks,
        embedded: r.embedded,
        compressed: r.compressed,
        raw: r.raw,
        ..SendSpec::default()
    }
}

/// Finds out what to send. The caller keeps the pool from being exported, and its datasets from being destroyed.
pub fn plan(entry: &Arc<PoolEntry>, r: &Send) -> Answer<Plan> {
    match r.replicate || r.intermediate {
        true => several(entry, r),
        false => single(entry, r),
    }
}

/// Whether `snap` is in the history of `ds`.
pub fn is_before(snap: &Dataset, ds: &Arc<Dataset>) -> Result<bool> {
    let txg = snap.phys().creation_txg;
    let mut at = ds.clone();
    while let Some(prev) = at.prev()? {
        if prev.object() == snap.object() {
            return Ok(true);
        }
        if prev.phys().creation_txg <= txg {
            return Ok(false);
        }
        at = prev;
    }
    Ok(false)
}

/// Whether a bookmark of the file system `of` is in the history of `ds`.
fn is_mark_before(mark: &BookmarkPhys, of: &Dir, ds: &Arc<Dataset>) -> Result<bool> {
    let phys = ds.phys();
    let (mut dir, mut before) = (ds.dir(), phys.creation_txg);
    if !phys.is_snapshot() {
        before = Txg::MAX;
    }
    loop {
        if dir.object() == of.object() {
            return Ok(mark.creation_txg < before);
        }
        let Some(origin) = dir.origin()? else {
            return Ok(false);
        };
        before = origin.phys().creation_txg.after(1);
        dir = origin.dir();
    }
}

/// What an increment begins with.
enum Origin {
    Snapshot(Arc<Dataset>),
    Mark(BookmarkPhys),
}

/// The base of an increment by its full name.
fn base_of(entry: &PoolEntry, ds: &Arc<Dataset>, name: &str, from: &str) -> Answer<(Base, Origin)> {
    let missing = || {
        let why = format!("incremental source ({from}) does not exist");
        refusal(Kind::NotFound, name, &why)
    };
    let not_earlier = || {
        refusal(
            Kind::CrossDevice,
            name,
            "not an earlier snapshot from the same fs",
        )
    };
    let fail = |e| failure(name, e);
    let dsl = entry.pool.dsl();
    if datasets::pool_of(from) != datasets::pool_of(name) {
        return Err(not_earlier());
    }
    let found = |e: base::Error| match e.kind {
        Kind::NotFound => missing(),
        _ => fail(e),
    };
    let is_origin = |dir: &Dir| dir.object() != ds.dir().object();
    if let Some((fs, short)) = from.split_once('#') {
        let head = dsl.dataset(fs).map_err(found)?;
        let mark = head.bookmark(short).map_err(fail)?.ok_or_else(missing)?;
        let dir = head.dir();
        // From a redaction bookmark to its own snapshot: what was redacted.
        let own = mark.redaction_obj != 0 && mark.guid == ds.phys().guid;
        if !own && !is_mark_before(&mark, &dir, ds).map_err(fail)? {
            return Err(not_earlier());
        }
        let base = Base::of_bookmark(dsl, &mark, is_origin(&dir)).map_err(fail)?;
        return Ok((base, Origin::Mark(mark)));
    }
    let snap = dsl.dataset(from).map_err(found)?;
    if !snap.is_snapshot() || !is_before(&snap, ds).map_err(fail)? {
        return Err(not_earlier());
    }
    let base = Base::of_snapshot(&snap, is_origin(&snap.dir())).map_err(fail)?;
    Ok((base, Origin::Snapshot(snap)))
}

/// One stream, perhaps with properties in front of it.
fn single(entry: &Arc<PoolEntry>, r: &Send) -> Answer<Plan> {
    let ds = datasets::find(entry, &r.target)?;
    let mut name = r.target.clone();
    if !ds.is_snapshot() {
        if entry.pool.is_open(&ds) {
            return Err(refusal(Kind::Busy, &name, "dataset is busy"));
        }
        if r.props || r.backup || r.holds {
            return Err(ApiError::sentence(
                Kind::Invalid,
                "Error: Unsupported flag with filesystem or bookmark.",
            ));
        }
        name = format!("{name}@{}", disk::stream::HEAD_NAME);
    }
    let mut plan = Plan::new(entry);
    let mut spec = common(r, &name);
    let (mut base, mut mark) = (None, None);
    if let Some(from) = &r.from {
        let (b, origin) = base_of(entry, &ds, &r.target, from)?;
        spec.base = Some(b);
        match origin {
            Origin::Snapshot(snap) => base = Some(snap),
            Origin::Mark(m) => mark = Some(m),
        }
    }
    if let Some(book) = &r.redact {
        spec.redact = Some(redaction(entry, &ds, &r.target, book)?);
    }
    if r.props || r.backup || r.holds {
        plan.holds = r.holds;
        let made = package::of_one(&ds, r)?;
        plan.package = Some((made, r.target.clone()));
    }
    let has_sizes =
        |m: &BookmarkPhys| m.flags & bookmark_flags::HAS_FBN != 0 && m.redaction_obj == 0;
    plan.steps.push(Step {
        mark: mark.filter(has_sizes),
        ..Step::new(&ds, spec, r.from.clone(), base.as_deref())
    });
    Ok(plan)
}

/// The redaction list of a bookmark of the file system of a snapshot.
fn redaction(
    entry: &PoolEntry,
    ds: &Dataset,
    name: &str,
    book: &str,
) -> Answer<Arc<dsl::RedactionList>> {
    let fs = ds.dir().full_name();
    let short = match book.split_once('#') {
        Some((of, short)) if of == fs || of.is_empty() => short,
        Some(_) => {
            let why = "the redaction bookmark is of another dataset";
            return Err(refusal(Kind::Invalid, name, why));
        }
        None => book,
    };
    let fail = |e| failure(name, e);
    let mark = ds
        .dir()
        .head()
        .and_then(|h| h.bookmark(short))
        .map_err(fail)?;
    let Some(mark) = mark else {
        let why = format!("redaction bookmark '{fs}#{short}' does not exist");
        return Err(refusal(Kind::NotFound, name, &why));
    };
    if mark.redaction_obj == 0 {
        let why = format!("'{fs}#{short}' is not a redaction bookmark");
        return Err(refusal(Kind::Invalid, name, &why));
    }
    if mark.guid != ds.phys().guid {
        let why = format!("redaction bookmark '{fs}#{short}' is of another snapshot");
        return Err(refusal(Kind::Invalid, name, &why));
    }
    let list = entry.pool.dsl().redaction_list(mark.redaction_obj);
    Ok(Arc::new(list.map_err(fail)?))
}

/// `-R` and `-I`.
fn several(entry: &Arc<PoolEntry>, r: &Send) -> Answer<Plan> {
    let Some((fs, to)) = r.target.split_once('@') else {
        return Err(ApiError::sentence(
            Kind::Invalid,
            "Error: Unsupported flag with filesystem or bookmark.",
        ));
    };
    let snap = datasets::find(entry, &r.target)?;
    let mut from = None;
    let mut from_origin = false;
    if let Some(name) = &r.from {
        let origin = snap.dir().origin().map_err(|e| failure(&r.target, e))?;
        match name.split_once('@') {
            _ if origin.is_some_and(|o| o.full_name() == *name) => from_origin = true,
            Some((of, short)) if of == fs => from = Some(short.to_string()),
            _ => {
                return Err(ApiError::sentence(
                    Kind::Invalid,
                    "incremental source must be in same filesystem",
                ))
            }
        }
    }
    let mut plan = Plan::new(entry);
    let heads = match r.replicate {
        true => {
            let told = (&mut plan.warnings, &mut plan.failed);
            package::tree(entry, &snap.dir(), r, to, told)?
        }
        false => vec![snap.dir().head().map_err(|e| failure(&r.target, e))?],
    };
    if rights::is_for_stranger() {
        let mut all = heads.len();
        for head in &heads {
            let snapshots = head.snapshot_list().map_err(|e| failure(&r.target, e))?;
            all += snapshots.len();
            rights::bounded(all).map_err(errors::answer)?;
            let taken = plan.share.take((snapshots.len() + 1) * rations::ITEM);
            taken.map_err(errors::answer)?;
        }
    }
    let wants = r.replicate || r.props || r.backup || r.holds;
    let made = match wants {
        true => package::of_tree(&heads, from.as_deref(), to, r)?,
        false => Package::default(),
    };
    plan.package = Some((made, r.target.clone()));
    plan.holds = r.holds;
    let mut origins = BTreeSet::new();
    if r.replicate {
        for head in &heads {
            let origin = head.dir().origin().map_err(|e| failure(&r.target, e))?;
            origins.extend(origin.map(|o| o.object()));
        }
    }
    let way = Way {
        r,
        origins,
        from: from.as_deref(),
        from_origin,
        to,
    };
    for (head, before_origin) in in_order(heads)? {
        // It is in the list, so that a receiver does not take it for destroyed.
        if !package::is_excluded(r, &head.dir().full_name()) {
            file_system(&mut plan, &way, &head, before_origin)?;
        }
    }
    Ok(plan)
}

/// What holds for all file systems of a package.
struct Way<'a> {
    r: &'a Send,
    /// Objects of the snapshots that clones of `-R` begin with.
    origins: BTreeSet<u64>,
    from: Option<&'a str>,
    from_origin: bool,
    to: &'a str,
}

/// Parents before children, origins before their clones. A clone of a snapshot of its own descendant, which promotion
/// may make, cannot have both: with true it comes before its origin.
fn in_order(heads: Vec<Arc<Dataset>>) -> Answer<Vec<(Arc<Dataset>, bool)>> {
    let all: BTreeSet<u64> = heads.iter().map(|h| h.dir().object()).collect();
    let mut done = BTreeSet::new();
    let (mut out, mut left) = (Vec::new(), heads);
    // Nothing but a circle is left: parents go first, each with what waits for it alone.
    let mut stuck = false;
    while !left.is_empty() {
        let before = left.len();
        let mut next = Vec::new();
        for head in left {
            let dir = head.dir();
            let origin = dir.origin().map_err(|e| failure(&dir.full_name(), e))?;
            let waits_for = |d: Option<Arc<Dir>>| {
                d.is_some_and(|d| {
                    d.object() != dir.object()
                        && all.contains(&d.object())
                        && !done.contains(&d.object())
                })
            };
            let for_origin = waits_for(origin.map(|o| o.dir()));
            if waits_for(dir.parent()) || for_origin && !stuck {
                next.push(head);
                continue;
            }
            stuck = false;
            done.insert(dir.object());
            out.push((head, for_origin));
        }
        left = next;
        if left.len() == before {
            stuck = true;
        }
    }
    Ok(out)
}

/// The streams of one file system. `whole`: a clone is sent with all it has, since its origin comes later.
fn file_system(plan: &mut Plan, way: &Way, head: &Arc<Dataset>, whole: bool) -> Answer<()> {
    let name = head.dir().full_name();
    let fail = |e| failure(&name, e);
    let list = head.snapshot_list().map_err(fail)?;
    let at = |short: &str| list.iter().position(|e| e.name == short);
    let target = format!("{name}@{}", way.to);
    let Some(end) = at(way.to) else {
        plan.fail(format!("WARNING: could not send {target}: does not exist"));
        return Ok(());
    };
    let start = match way.from {
        None => None,
        Some(from) => match at(from) {
            // A file system that is younger than the base is sent from its beginning.
            None if way.r.replicate => None,
            None => {
                plan.fail(format!(
                    "WARNING: could not send {target}:\nincremental source ({name}@{from}) does not exist"
                ));
                return Ok(());
            }
            Some(i) if i >= end => {
                plan.fail(format!(
                    "WARNING: could not send {target}:\nincremental source ({name}@{from}) is not earlier than it"
                ));
                return Ok(());
            }
            Some(i) => Some(i),
        },
    };
    // Without -I an increment leads to the target at once, but for what clones in the package begin with.
    let all = way.r.intermediate || way.from.is_none();
    let mut prev = match start {
        Some(i) => Some(head.named_snapshot(&list[i]).map_err(fail)?),
        None if way.from_origin || way.r.replicate && !whole => {
            head.dir().origin().map_err(fail)?
        }
        None => None,
    };
    if whole && start.is_none() && !way.from_origin {
        plan.warnings.push(format!(
            "WARNING: {name} is a clone of a snapshot below it: its first snapshot is sent whole"
        ));
    }
    for (i, e) in list.iter().enumerate() {
        let is_between = i < end && start.is_none_or(|s| i > s);
        let goes = is_between && (all || way.origins.contains(&e.object));
        if i != end && !goes {
            continue;
        }
        let snap = head.named_snapshot(e).map_err(fail)?;
        let full = format!("{name}@{}", e.name);
        let mut spec = common(way.r, &full);
        let (mut from, mut told_full) = (None, false);
        if let Some(base) = &prev {
            told_full = base.dir().object() != head.dir().object();
            spec.base = Some(Base::of_snapshot(base, told_full).map_err(fail)?);
            if !told_full {
                from = Some(base.snap_name().map_err(fail)?.unwrap_or_default());
            }
        }
        plan.steps.push(Step {
            told_full,
            ..Step::new(&snap, spec, from, prev.as_deref())
        });
        prev = Some(snap);
    }
    Ok(())
}
