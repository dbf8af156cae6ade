//! The fault agent: reactions to failing devices without a command, such as a spare that stands in (behaviour §12).
//!
//! The thread that looks after a pool calls [`Agent::look`] every few seconds, and at once when the state of the pool changes.
//! Each call
//!
//! 1. posts events for states of vdevs that changed, for errors that were counted since, and for transfers that do not end;
//! 2. counts the errors of the last ten minutes: ten failed transfers put a leaf out of use, ten wrong checksums mark it
//!    degraded. The vdev properties `io_n`, `io_t`, `checksum_n`, `checksum_t`, `slow_io_n` and `slow_io_t` change that;
//! 3. brings back leaves that were gone and whose device is there again, also by another name, or puts a new device in their place (`autoreplace`);
//! 4. lets a hot spare stand in for a leaf that is faulted, removed or cannot be opened, of a dRAID preferably one of its
//!    distributed spares;
//! 5. has vdevs use what their devices have grown by (`autoexpand`);
//! 6. has devices sit out that answer much later than the others of their RAID-Z, and ends that (`autosit`).
//!
//! Nothing of this is done to a pool that is suspended or read-only, and one failure of it is no reason not to try the rest.
//! When a suspended pool goes on, the errors before are settled: the devices have taken everything since. So a leaf is put out of
//! use only when the txg that was open when its errors were counted is on disk.
//!
//! Changes (2 to 5) are made by a thread of their own, one after the other, with the right to change the pool. If the pool is
//! suspended while one of them is written, that thread waits with it; [`Agent::look`] does not, and begins no other.

use crate::events::{self, Events, EREPORT, RESOURCE, SYSEVENT};
use crate::pools::autosit::Autosit;
use crate::pools::create::label_objection;
use crate::pools::create::Objection;
use crate::pools::moved;
use crate::process::DeviceUse;
use crate::registry::{Admin, PoolEntry};
use api::EventValue;
use disk::NvList;
use env::Access;
use pool::Pool;
use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::sync::Arc;
use vdev::{keys, Attach, Aux, DevSpec, Report, State, Trouble, Vdev};

/// So many errors within so many seconds, unless properties say otherwise.
const ERRORS: u64 = 10;
const WITHIN: u64 = 600;
const SECOND: u64 = 1_000_000_000;
/// A transfer that has not ended after this long, nanoseconds, is told of, and again and again until it ends (OpenZFS's
/// `zfs_deadman_ziotime_ms` and `zfs_deadman_checktime_ms`).
const DEADMAN: u64 = 300 * SECOND;
const DEADMAN_AGAIN: u64 = 60 * SECOND;
/// A spare that could not be taken is tried again after this long, nanoseconds.
const AGAIN: u64 = 60 * SECOND;

/// Errors of one sort within a time.
#[derive(Default)]
struct Counter {
    /// The counter of the leaf when it was looked at last.
    last: u64,
    /// Monotonic nanoseconds, and errors.
    recent: VecDeque<(u64, u64)>,
}

impl Counter {
    /// Takes over the leaf's counter; how many are new.
    fn take(&mut self, count: u64, now: u64) -> u64 {
        // It went back: `zpool clear`, which closes the case.
        if count < self.last {
            self.recent.clear();
            self.last = 0;
        }
        let new = count - self.last;
        self.last = count;
        if new > 0 {
            self.recent.push_back((now, new));
        }
        new
    }

    /// Whether there were `n` within `t` seconds.
    fn exceeds(&mut self, n: u64, t: u64, now: u64) -> bool {
        let begin = now.saturating_sub(t.saturating_mul(SECOND));
        while self.recent.front().is_some_and(|(at, _)| *at < begin) {
            self.recent.pop_front();
        }
        n > 0 && self.recent.iter().map(|(_, c)| c).sum::<u64>() >= n
    }
}

/// What is known of a leaf.
#[derive(Default)]
struct Seen {
    state: Option<(State, Aux)>,
    io: Counter,
    checksum: Counter,
    slow: Counter,
    /// When it was told that a transfer does not end; monotonic nanoseconds.
    hangs: Option<u64>,
    /// When a spare was tried in vain, or a new device; monotonic nanoseconds.
    tried: Option<u64>,
}

impl Seen {
    /// Closes the cases of the errors so far.
    fn settle(&mut self) {
        for counter in [&mut self.io, &mut self.checksum, &mut self.slow] {
            counter.recent.clear();
        }
    }
}

/// What becomes of a leaf because of its errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Fault,
    Degrade,
}

/// When a spare or a new device was tried in vain for a leaf; none if it was not, or helped.
type Tried = HashMap<u64, Option<u64>>;

/// Looks after the devices of one pool.
#[derive(Default)]
pub struct Agent {
    leaves: HashMap<u64, Seen>,
    /// States of vdevs with children, by guid.
    groups: HashMap<u64, (State, Aux)>,
    /// The pool was suspended when it was looked at last.
    stuck: bool,
    /// Of [`Pool::resumptions`], those that were noticed.
    resumptions: u64,
    /// What errors lead to, and is not begun yet.
    due: Vec<(u64, Verdict)>,
    /// Latencies of devices that may sit out.
    autosit: Autosit,
    /// Changes under way.
    under_way: Option<Receiver<Tried>>,
}

impl Agent {
    /// Looks once. Returns without waiting for the changes that this leads to.
    pub fn look(&mut self, admin: &Arc<Admin>, entry: &Arc<PoolEntry>) {
        let pool = &entry.pool;
        let now = admin.env.clock.monotonic_ns();
        let leaves = pool.tree().leaves();
        self.leaves
            .retain(|guid, _| leaves.iter().any(|l| l.guid() == *guid));
        for leaf in &leaves {
            let seen = self.leaves.entry(leaf.guid()).or_default();
            tell(&admin.events, pool, leaf, seen);
            let verdict = judge(&admin.events, pool, leaf, seen, now);
            self.due.extend(verdict.map(|v| (leaf.guid(), v)));
            tell_if_it_hangs(&admin.events, pool, leaf, seen, now);
        }
        self.look_at_groups(&admin.events, pool);
        self.autosit.look(&admin.events, pool, now);
        let stuck = pool.suspended().is_some();
        let was_stuck = std::mem::replace(&mut self.stuck, stuck);
        if stuck && !was_stuck {
            admin.events.post(EREPORT, "io_failure", pool, Vec::new());
        }
        let able = !pool.is_readonly() && pool.suspended().is_none() && !entry.is_leaving();
        if !able {
            self.due.clear();
            return;
        }
        // Read behind the errors, so that it tells of a resumption that settles them.
        let resumptions = pool.resumptions();
        if resumptions != self.resumptions {
            self.resumptions = resumptions;
            for leaf in &leaves {
                let seen = self.leaves.entry(leaf.guid()).or_default();
                // Also those of the last attempt that failed, which may have come since.
                judge(&admin.events, pool, leaf, seen, now);
                seen.settle();
            }
            self.due.clear();
        }
        let grown = || on(pool, "autoexpand") && leaves.iter().any(|l| l.has_grown());
        let wanted = !self.due.is_empty() || leaves.iter().any(|l| is_gone(l)) || grown();
        if !self.is_free() || !wanted {
            return;
        }
        let work = Work {
            sentences: std::mem::take(&mut self.due),
            tried: self.leaves.iter().map(|(l, s)| (*l, s.tried)).collect(),
            now,
            resumptions,
        };
        let (send, ended) = mpsc::channel();
        let (admin2, entry2) = (admin.clone(), entry.clone());
        let job = move || {
            // Nobody listens any more if the pool has left.
            let _ = send.send(work.carry_out(&admin2, &entry2));
        };
        match admin.process.spawn("agent", Box::new(job)) {
            Ok(()) => self.under_way = Some(ended),
            Err(e) => tracing::warn!(
                "pool {}: its devices are not looked after: {e}",
                pool.name()
            ),
        }
        // A process of one thread has done it by now.
        self.is_free();
    }

    /// Tells of groups that have too few devices left.
    fn look_at_groups(&mut self, events: &Events, pool: &Pool) {
        let mut now = HashMap::new();
        for group in pool
            .tree()
            .all()
            .iter()
            .filter(|v| !v.children().is_empty())
        {
            let state = (group.state(), group.aux());
            let before = self.groups.get(&group.guid());
            let lost = state == (State::CantOpen, Aux::NoReplicas);
            if lost && before.is_some_and(|b| *b != state) {
                let more = events::of_vdev(pool, group);
                events.post(EREPORT, "vdev.no_replicas", pool, more);
            }
            now.insert(group.guid(), state);
        }
        self.groups = now;
    }

    /// Whether no changes are under way; takes over what ended ones learned.
    fn is_free(&mut self) -> bool {
        match self.under_way.as_ref().map(Receiver::try_recv) {
            None => return true,
            Some(Err(TryRecvError::Empty)) => return false,
            Some(Err(TryRecvError::Disconnected)) => {}
            Some(Ok(tried)) => {
                for (guid, tried) in tried {
                    if let Some(seen) = self.leaves.get_mut(&guid) {
                        seen.tried = tried;
                    }
                }
            }
        }
        self.under_way = None;
        true
    }
}

/// What one look leads to.
struct Work {
    sentences: Vec<(u64, Verdict)>,
    tried: Tried,
    /// Monotonic nanoseconds of the look.
    now: u64,
    /// [`Pool::resumptions`] then.
    resumptions: u64,
}

impl Work {
    fn carry_out(mut self, admin: &Arc<Admin>, entry: &Arc<PoolEntry>) -> Tried {
        let (pool, now) = (&entry.pool, self.now);
        let Ok(_pass) = entry.pass_to_change() else {
            return self.tried;
        };
        let mut changed = false;
        // The errors may be of blocks that were written early. If the devices do not take their txg either, the pool waits for
        // them, and the errors are settled when it goes on.
        if !self.sentences.is_empty() && pool.prove_devices().is_err() {
            return self.tried;
        }
        for (guid, verdict) in self.sentences {
            let degrade = verdict == Verdict::Degrade;
            changed |= pool.fault(guid, degrade, self.resumptions).is_ok();
        }
        let autoreplace = on(pool, "autoreplace");
        for leaf in pool.tree().leaves().iter().filter(|l| is_gone(l)) {
            if bring_back(admin, pool, leaf) {
                changed = true;
                continue;
            }
            let tried = self.tried.entry(leaf.guid()).or_default();
            if tried.is_some_and(|t| now.saturating_sub(t) < AGAIN) {
                continue;
            }
            let found = !moved::follow(admin, pool, std::slice::from_ref(leaf)).is_empty();
            if found && bring_back(admin, pool, leaf) {
                changed = true;
                continue;
            }
            let helped =
                autoreplace && replace_in_place(admin, pool, leaf) || stand_in(admin, pool, leaf);
            *tried = (!helped).then_some(now);
            changed |= helped;
        }
        if on(pool, "autoexpand") {
            for leaf in pool.tree().leaves() {
                let grown = leaf.has_grown() && pool.expand(leaf.guid()).unwrap_or(false);
                if grown {
                    let more = events::of_vdev(pool, &leaf);
                    admin.events.post(SYSEVENT, "vdev_autoexpand", pool, more);
                }
                changed |= grown;
            }
        }
        if changed {
            admin.update_cache(entry);
            entry.ring();
        }
        self.tried
    }
}

/// Whether a switch of the pool is on.
fn on(pool: &Pool, name: &str) -> bool {
    let stored = pool.stored_props().unwrap_or_default();
    let set = stored.iter().find(|(n, _)| n == name);
    matches!(set.map(|(_, v)| v), Some(dsl::PropValue::Int(1)))
}

/// Posts what changed of a leaf's state.
fn tell(events: &Events, pool: &Pool, leaf: &Vdev, seen: &mut Seen) {
    let now = (leaf.state(), leaf.aux());
    let Some(before) = seen.state.replace(now) else {
        return;
    };
    if before == now {
        return;
    }
    let mut more = events::of_vdev(pool, leaf);
    more.push((
        "vdev_laststate",
        EventValue::Number(events::state_number(before.0)),
    ));
    let class = match now.0 {
        State::Removed => "removed",
        _ => "statechange",
    };
    events.post(RESOURCE, class, pool, more);
    if now.0 == State::CantOpen {
        let class = match now.1 {
            Aux::CorruptData => "vdev.corrupt_data",
            Aux::BadLabel => "vdev.bad_label",
            Aux::TooSmall => "vdev.too_small",
            Aux::BadAshift => "vdev.bad_ashift",
            _ => "vdev.open_failed",
        };
        events.post(EREPORT, class, pool, events::of_vdev(pool, leaf));
    }
}

/// Posts new errors of a leaf; what is to become of it.
fn judge(events: &Events, pool: &Pool, leaf: &Vdev, seen: &mut Seen, now: u64) -> Option<Verdict> {
    use std::sync::atomic::Ordering::Relaxed;
    let (read, write, checksum) = leaf.stats.errors();
    let counts = [
        (&mut seen.io, read + write, "io"),
        (&mut seen.checksum, checksum, "checksum"),
        (&mut seen.slow, leaf.stats.slow_ios.load(Relaxed), "delay"),
    ];
    let mut any = false;
    let reports = leaf.take_reports();
    let of_class = |class: &'static str| reports.iter().filter(move |r| class_of(r) == class);
    for (counter, count, class) in counts {
        if counter.take(count, now) == 0 {
            continue;
        }
        any = true;
        if class == "delay" && pool.vdev_number(leaf, "slow_io_events") == Some(0) {
            continue;
        }
        let mut pairs: Vec<_> = of_class(class).map(events::of_transfer).collect();
        if pairs.is_empty() {
            // Only counted: a flush, a label.
            pairs.push(Vec::new());
        }
        for more in pairs {
            let all = events::of_vdev(pool, leaf).into_iter().chain(more);
            events.post(EREPORT, class, pool, all.collect());
        }
    }
    if of_class("probe_failure").next().is_some() {
        events.post(EREPORT, "probe_failure", pool, events::of_vdev(pool, leaf));
    }
    if !any || !leaf.state().usable() {
        return None;
    }
    let limit = |name: &str, default: u64| pool.vdev_number(leaf, name).unwrap_or(default);
    let over = |c: &mut Counter, sort: &str, n: u64| {
        let n = limit(&format!("{sort}_n"), n);
        c.exceeds(n, limit(&format!("{sort}_t"), WITHIN), now)
    };
    if over(&mut seen.io, "io", ERRORS) {
        return Some(Verdict::Fault);
    }
    let bad = over(&mut seen.checksum, "checksum", ERRORS) || over(&mut seen.slow, "slow_io", 0);
    (bad && leaf.state() == State::Healthy).then_some(Verdict::Degrade)
}

/// The class that tells of a transfer.
fn class_of(r: &Report) -> &'static str {
    match r.trouble {
        Trouble::Failed(_) => "io",
        Trouble::Wrong => "checksum",
        Trouble::Slow(_) => "delay",
        Trouble::Probe => "probe_failure",
    }
}

/// Posts that the oldest transfer of a leaf does not end.
fn tell_if_it_hangs(events: &Events, pool: &Pool, leaf: &Vdev, seen: &mut Seen, now: u64) {
    let Some(age) = leaf.oldest_transfer(now).filter(|age| *age >= DEADMAN) else {
        seen.hangs = None;
        return;
    };
    if seen
        .hangs
        .is_some_and(|at| now.saturating_sub(at) < DEADMAN_AGAIN)
    {
        return;
    }
    seen.hangs = Some(now);
    let seconds = age / SECOND;
    tracing::warn!(pool = %pool.name(), vdev = %leaf.name(), "a transfer has not ended for {seconds} seconds");
    let mut more = events::of_vdev(pool, leaf);
    more.push(("zio_delta", EventValue::Number(age)));
    events.post(EREPORT, "deadman", pool, more);
}

/// Whether something else has to take the place of a leaf. One that the administrator took offline has not failed.
fn is_gone(leaf: &Vdev) -> bool {
    matches!(
        leaf.state(),
        State::Faulted | State::CantOpen | State::Removed
    )
}

/// Brings a leaf back whose own device is there again; true if it was.
fn bring_back(admin: &Admin, pool: &Pool, leaf: &Vdev) -> bool {
    if leaf.state() == State::Faulted {
        return false;
    }
    let Some(device) = leaf
        .path()
        .and_then(|p| admin.env.disks.open(&p, Access::Read).ok())
    else {
        return false;
    };
    let labels = vdev::label::read_labels(&*device);
    drop(device);
    let own = labels.copies.iter().flatten().any(|c| {
        c.get_u64(keys::GUID) == Some(leaf.guid())
            && c.get_u64(keys::pool::POOL_GUID) == Some(pool.guid())
    });
    own && pool.online(leaf.guid()).is_ok_and(|s| s.usable())
}

/// With `autoreplace`: a device without anything on it has come to the place of a leaf.
fn replace_in_place(admin: &Admin, pool: &Pool, leaf: &Vdev) -> bool {
    let Some(path) = leaf.path().filter(|_| leaf.state() != State::Faulted) else {
        return false;
    };
    let Some((is_block, _, _)) = admin.process.identity(&path) else {
        return false;
    };
    let free = match admin.process.device_use(&path) {
        Ok(DeviceUse::Free) => true,
        Ok(DeviceUse::Labels) => matches!(label_objection(admin, &path), Objection::None),
        _ => false,
    };
    let dev = match is_block {
        true => DevSpec::disk(&path, false),
        false => DevSpec::file(&path),
    };
    free && attach(admin, pool, leaf, &dev, Attach::Replace)
}

/// Has a hot spare stand in for a leaf; true if one does.
fn stand_in(admin: &Admin, pool: &Pool, leaf: &Vdev) -> bool {
    let in_log = pool
        .tree()
        .leaf_of(leaf.guid())
        .map_or(true, |(top, _)| top.is_log());
    if in_log {
        return false;
    }
    let aux = pool.aux_devices();
    let of_others = |guid: u64| {
        let pools = admin.pools();
        pools.iter().any(|e| e.pool.tree().find(guid).is_some())
    };
    let take = |c: &NvList| -> Option<()> {
        let guid = c.get_u64(keys::GUID).filter(|g| !of_others(*g))?;
        let path = c.get_str(keys::PATH)?;
        if c.get_str(keys::TYPE) == Some("dspare") {
            return stand_in_distributed(admin, pool, leaf, guid, path).then_some(());
        }
        let dev = match c.get_str(keys::TYPE)? {
            "disk" => DevSpec::disk(path, false),
            "file" => DevSpec::file(path),
            _ => return None,
        };
        attach(admin, pool, leaf, &dev, Attach::Spare(guid)).then_some(())
    };
    // Those of the same dRAID first: they are filled faster, and leave the others to be used elsewhere.
    let distributed = |c: &&NvList| c.get_str(keys::TYPE) == Some("dspare");
    let (own, others): (Vec<&NvList>, Vec<&NvList>) = aux.spares.iter().partition(distributed);
    own.into_iter().chain(others).any(|c| take(c).is_some())
}

/// The same with a distributed spare, filled sequentially where that can be.
fn stand_in_distributed(admin: &Admin, pool: &Pool, leaf: &Vdev, spare: u64, path: &str) -> bool {
    let sequential = matches!(pool.attach_refusal(leaf.guid(), true), Ok(None));
    match pool.attach_dspare(leaf.guid(), spare, sequential) {
        Ok(()) => {
            told_of(admin, pool, leaf, path, "vdev_spare");
            true
        }
        Err(e) => {
            tracing::debug!(pool = %pool.name(), spare = path, %e, "no replacement");
            false
        }
    }
}

/// The log and the events tell that something takes the place of a leaf.
fn told_of(admin: &Admin, pool: &Pool, leaf: &Vdev, path: &str, class: &str) {
    let (name, of) = (pool.name(), leaf.name());
    tracing::warn!("pool {name}: {path} takes the place of {of}");
    let more = events::of_vdev(pool, leaf);
    admin.events.post(SYSEVENT, class, pool, more);
}

fn attach(admin: &Admin, pool: &Pool, leaf: &Vdev, dev: &DevSpec, how: Attach) -> bool {
    let class = match how {
        Attach::Spare(_) => "vdev_spare",
        _ => "vdev_attach",
    };
    match pool.attach(leaf.guid(), dev, how, None) {
        Ok(_) => {
            told_of(admin, pool, leaf, &dev.path, class);
            true
        }
        Err(e) => {
            tracing::debug!(pool = %pool.name(), device = dev.path, %e, "no replacement");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_count_for_a_time_and_until_they_are_cleared() {
        let mut c = Counter::default();
        assert_eq!(c.take(4, SECOND), 4);
        assert_eq!(c.take(9, 300 * SECOND), 5);
        assert!(!c.exceeds(10, 600, 300 * SECOND));
        assert_eq!(c.take(10, 500 * SECOND), 1);
        assert!(c.exceeds(10, 600, 500 * SECOND));
        assert!(!c.exceeds(10, 600, 700 * SECOND), "four of them are old");
        assert!(!c.exceeds(0, 600, 500 * SECOND), "0 turns it off");
        assert_eq!(c.take(2, 701 * SECOND), 2, "cleared");
        assert!(!c.exceeds(3, 600, 701 * SECOND));
    }
}
