//! `zfs send`.
//!
//! 1. All that is sent is found, and kept from being destroyed, before the first byte is written. Each snapshot is opened
//!    when its turn comes: memory does not grow with what a hundred thousand of them have open.
//! 2. Nothing of the pool is held while the caller is waited for, but for the snapshots: the pool can be exported by
//!    force, which ends the stream.
//! 3. A stream that fails has no END record, and a package that fails no end of its own unless all of its streams do.
//!
//! `plan` finds the streams, `package` makes the list in front of them, `estimate` tells their sizes, `resume` finds
//! what a token means. Start reading at [`send`].

mod estimate;
mod package;
mod plan;
mod resume;
mod words;

use crate::datasets::rights::{self, Action};
use crate::datasets::{self, Answer};
use crate::errors;
use crate::registry::{Admin, PoolEntry};
use crate::streams::Way;
use api::{ApiError, Peer, Progress, Send, SendPlan, SendStream};
use base::sync::RwLockExt;
use base::{Kind, Result};
use disk::stream::{feature, Begin};
use dsl::{Dataset, InUse};
pub use plan::is_before;
use plan::{Plan, Step};
use std::io::Write;
use std::sync::Arc;
use stream::send::Source;
use stream::Writer;
use words::failure;

/// Calls of a check between two questions whether to go on.
const OFTEN: u32 = 64;
/// Nanoseconds between two reports of progress.
const REPORT: u64 = 1_000_000_000;

/// Whether a stream is to go on: its caller is there, and the pool is not taken out of service.
pub(super) fn going_on(entry: &PoolEntry) -> impl FnMut() -> Result<()> + '_ {
    let mut calls = 0u32;
    move || {
        calls = calls.wrapping_add(1);
        if calls % OFTEN != 1 {
            return Ok(());
        }
        if crate::cancel::is_cancelled() {
            return Err(Kind::Interrupted.into());
        }
        if entry.is_leaving() {
            return Err(base::Error::new(Kind::Stale, "the pool was exported"));
        }
        Ok(())
    }
}

/// Writes the streams that were asked for to `out`; with [`Send::dry_run`] nothing, and `out` may be missing. `tell` is
/// told of progress.
///
/// # Errors
/// What cannot be sent, in OpenZFS's words. Warnings about parts of a package that were left out are in the answer.
pub fn send(
    admin: &Arc<Admin>,
    peer: Peer,
    r: &Send,
    out: Option<&mut dyn Write>,
    tell: &mut dyn FnMut(Progress),
) -> Answer<SendPlan> {
    let token = match &r.token {
        Some(t) => Some(resume::decode(t)?),
        None => None,
    };
    let name = token.as_ref().map_or(&r.target, |t| &t.to_name);
    let entry = datasets::entry_of(admin, name)?;
    let (plan, kept, answer, listed) = {
        let _gate = entry.gate.acquire_read();
        // Nothing is destroyed before it is kept.
        let _names = entry.names.read();
        crate::cancel::check()?;
        let plan = match &token {
            Some(t) => {
                let who = rights::asked(admin, &entry, peer)?;
                // What may be sent in some way: the way is asked for below.
                let action = Action::Send {
                    raw: true,
                    encrypted: true,
                };
                match &who {
                    None => resume::of_token(&entry, t, None)?,
                    Some(who) => {
                        let may = |ds: &Dataset| rights::permitted(who, action, ds).is_ok();
                        resume::of_token(&entry, t, Some(&may))?
                    }
                }
            }
            None if r.saved => resume::saved(&entry, r)?,
            None => {
                // Of what nothing may be sent, nothing is listed.
                if let Ok(ds) = datasets::find(&entry, &r.target) {
                    may_send(admin, &entry, peer, r.raw, &ds)?;
                }
                plan::plan(&entry, r)?
            }
        };
        // All snapshots of a file system are asked for once: what may be done with them is stored there.
        let mut asked = None;
        for step in &plan.steps {
            let ds = step.load(&entry).map_err(errors::answer)?;
            let dir = ds.dir();
            if asked.replace(dir.object()) == Some(dir.object()) {
                continue;
            }
            may_send(admin, &entry, peer, step.spec.raw, &ds)?;
        }
        let (kept, answer) = open(&plan, r)?;
        let listed = entry.users.enter(peer.pid, name, Way::Sent);
        (plan, kept, answer, listed)
    };
    let _ended = crate::cancel::ended_by(listed.flag());
    let answer = measure(&plan, answer, r)?;
    if r.dry_run {
        return Ok(answer);
    }
    let Some(out) = out else {
        return Err(ApiError::reason(Kind::BadHandle, "no file to write to"));
    };
    write(admin, &plan, kept, &answer, out, r.progress.then_some(tell))?;
    Ok(answer)
}

fn may_send(admin: &Admin, entry: &PoolEntry, peer: Peer, raw: bool, ds: &Dataset) -> Answer<()> {
    let encrypted = ds.dir().is_encrypted().map_err(errors::answer)?;
    let action = Action::Send { raw, encrypted };
    rights::require(admin, entry, peer, action, ds)
}

/// Opens what is to be sent, each dataset for a moment, and keeps it from being destroyed.
fn open(plan: &Plan, r: &Send) -> Answer<(Vec<InUse>, SendPlan)> {
    let mut answer = SendPlan {
        token: plan.token.clone(),
        warnings: plan.warnings.clone(),
        failed: plan.failed,
        ..SendPlan::default()
    };
    let mut kept = Vec::new();
    let features = plan.entry.pool.feature_counts().clone();
    for step in &plan.steps {
        crate::cancel::check()?;
        let name = &step.spec.name;
        let fail = |e| failure(name, e);
        let source = open_one(&plan.entry, step)?;
        source.begin(&step.spec, &*features).map_err(fail)?;
        let size = match r.sizes && !estimate::is_slow(step) {
            true => Some(estimate::estimate(&plan.entry, step, &source).map_err(fail)?),
            false => None,
        };
        answer.streams.push(SendStream {
            snapshot: name.clone(),
            from: step.from.clone(),
            size,
        });
        kept.push(source.close());
    }
    Ok((kept, answer))
}

fn open_one(entry: &PoolEntry, step: &Step) -> Answer<Source> {
    step.load(entry)
        .and_then(|ds| Source::open(&ds))
        .map_err(|e| failure(&step.spec.name, e))
}

/// Tells the sizes that can be had only by reading. The pool is free for others meanwhile.
fn measure(plan: &Plan, mut answer: SendPlan, r: &Send) -> Answer<SendPlan> {
    let all = plan.steps.iter().zip(&mut answer.streams);
    for (step, said) in all.filter(|_| r.sizes) {
        if estimate::is_slow(step) {
            let source = open_one(&plan.entry, step)?;
            let size = estimate::measured(&plan.entry, step, &source);
            said.size = Some(size.map_err(|e| failure(&step.spec.name, e))?);
        }
    }
    Ok(answer)
}

/// Bytes on their way, with their number.
struct Counted<'a> {
    out: &'a mut dyn Write,
    bytes: &'a std::cell::Cell<u64>,
}

impl Write for Counted<'_> {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        let n = self.out.write(buf)?;
        self.bytes.set(self.bytes.get() + n as u64);
        Ok(n)
    }

    fn write_vectored(&mut self, bufs: &[std::io::IoSlice<'_>]) -> std::io::Result<usize> {
        let n = self.out.write_vectored(bufs)?;
        self.bytes.set(self.bytes.get() + n as u64);
        Ok(n)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

/// Writes all streams.
fn write(
    admin: &Admin,
    plan: &Plan,
    kept: Vec<InUse>,
    answer: &SendPlan,
    out: &mut dyn Write,
    mut tell: Option<&mut dyn FnMut(Progress)>,
) -> Answer<()> {
    let bytes = std::cell::Cell::new(0);
    let mut w = Writer::new(Counted { out, bytes: &bytes });
    if let Some((list, name)) = &plan.package {
        let begin = Begin {
            features: if plan.holds { feature::HOLDS } else { 0 },
            to_name: name.clone().into_bytes(),
            ..Begin::default()
        };
        w.begin_package(&begin, &list.to_list())
            .map_err(|e| failure(name, e))?;
    }
    let features = plan.entry.pool.feature_counts().clone();
    let clock = &admin.env.clock;
    for ((step, _kept), said) in plan.steps.iter().zip(kept).zip(&answer.streams) {
        let source = open_one(&plan.entry, step)?;
        let (first, mut due) = (bytes.get(), clock.monotonic_ns() + REPORT);
        let mut report = |done: u64| {
            if let Some(tell) = tell.as_mut() {
                tell(Progress {
                    what: said.snapshot.clone(),
                    done,
                    total: said.size.unwrap_or(0),
                });
            }
        };
        report(0);
        let mut go_on = going_on(&plan.entry);
        let mut calls = 0u32;
        let mut check = || {
            calls = calls.wrapping_add(1);
            if calls % OFTEN == 0 && clock.monotonic_ns() >= due {
                due = clock.monotonic_ns() + REPORT;
                report(bytes.get() - first);
            }
            unchanged(step, source.dataset())?;
            go_on()
        };
        let sent = stream::send::send(&source, &step.spec, &*features, &mut w, &mut check);
        // What was collected goes out before the failure is told.
        let flushed = w.flush();
        sent.and(flushed).map_err(|e| failure(&said.snapshot, e))?;
    }
    if plan.package.is_some() {
        w.end_package().map_err(errors::answer)?;
    }
    w.flush().map_err(errors::answer)
}

/// A head must stay as it was when its stream began.
fn unchanged(step: &Step, ds: &Dataset) -> Result<()> {
    if step.root.is_none_or(|root| ds.phys().bp == root) {
        return Ok(());
    }
    Err(base::Error::new(
        Kind::Busy,
        "the dataset was changed while it was sent",
    ))
}
