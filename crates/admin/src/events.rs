//! Events: what happened to pools and devices, kept in memory for `zpool events` and for scripts (command reference §13.3).
//!
//! Invariants:
//!
//! 1. The ring is bounded: the oldest event makes room for the newest. How many were dropped is counted.
//! 2. Numbers (`eid`) grow by one with each event and are never given twice by one process.
//! 3. Posting an event takes one leaf lock and does no I/O.

use api::{Event, EventValue};
use base::sync::MutexExt;
use disk::history::keys as key;
use disk::NvList;
use dmu::Damage;
use env::Clock;
use pool::{Failmode, Notice, Pool, Scanning, Turned};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use vdev::{keys, Report, Trouble, Vdev};

/// Events kept, as OpenZFS's `zfs_zevent_len_max`.
const KEPT: usize = 512;

/// The error number that a block that cannot be restored gives.
const EIO: u64 = 5;

/// The one for a block that is not what was written: EBADE.
const ECKSUM: u64 = 52;

/// `pool_state` of a pool that is not open.
const UNINITIALIZED: u64 = 5;

/// `pool_context`: what a pool was opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// It is in the cache file.
    Open = 1,
    /// It is being imported.
    Import = 2,
}

/// Prefixes of classes.
pub const SYSEVENT: &str = "sysevent.fs.zfs.";
/// See [`SYSEVENT`].
pub const EREPORT: &str = "ereport.fs.zfs.";
/// See [`SYSEVENT`].
pub const RESOURCE: &str = "resource.fs.zfs.";

#[derive(Default)]
struct Ring {
    list: VecDeque<Event>,
    last: u64,
    dropped: u64,
}

/// The events of one process.
pub struct Events {
    clock: Arc<dyn Clock>,
    ring: Mutex<Ring>,
    news: Condvar,
}

/// Name and value of a payload.
pub type Pair = (&'static str, EventValue);

impl Events {
    /// No events; `clock` gives their times.
    pub fn new(clock: Arc<dyn Clock>) -> Events {
        Events {
            clock,
            ring: Mutex::default(),
            news: Condvar::new(),
        }
    }

    /// Adds an event of class `prefix` + `class` about a pool.
    pub fn post(&self, prefix: &str, class: &str, pool: &Pool, more: Vec<Pair>) {
        let state = match pool.suspended() {
            None => 0,
            Some(_) => 6,
        };
        let failmode = (prefix == EREPORT).then(|| match pool.failmode() {
            Failmode::Wait => "wait",
            Failmode::Continue => "continue",
            Failmode::Panic => "panic",
        });
        let mut pairs: Vec<Pair> = vec![
            ("pool", EventValue::Text(pool.name())),
            ("pool_guid", EventValue::Number(pool.guid())),
            ("pool_state", EventValue::Number(state)),
            ("pool_context", EventValue::Number(0)),
        ];
        pairs.extend(failmode.map(|f| ("pool_failmode", EventValue::Text(f.into()))));
        pairs.extend(more);
        self.put(format!("{prefix}{class}"), pairs);
    }

    /// A pool could not be opened.
    pub fn load_failed(&self, class: &str, name: &str, guid: u64, load: Load) {
        let pairs = vec![
            ("pool", EventValue::Text(name.into())),
            ("pool_guid", EventValue::Number(guid)),
            ("pool_state", EventValue::Number(UNINITIALIZED)),
            ("pool_context", EventValue::Number(load as u64)),
        ];
        self.put(format!("{EREPORT}{class}"), pairs);
    }

    fn put(&self, class: String, pairs: Vec<Pair>) {
        let (seconds, nanoseconds) = self.clock.now();
        let mut ring = self.ring.acquire();
        ring.last += 1;
        let event = Event {
            eid: ring.last,
            seconds: seconds.max(0) as u64,
            nanoseconds,
            class,
            pairs: pairs.into_iter().map(|(n, v)| (n.to_string(), v)).collect(),
        };
        ring.list.push_back(event);
        if ring.list.len() > KEPT {
            ring.list.pop_front();
            ring.dropped += 1;
        }
        drop(ring);
        self.news.notify_all();
    }

    /// A notice that concerns a pool as a whole.
    pub fn pool(&self, pool: &Pool, class: &str) {
        self.post(SYSEVENT, class, pool, Vec::new());
    }

    /// What a pool tells of itself.
    pub fn notice(&self, pool: &Pool, notice: Notice) {
        match notice {
            Notice::Scan { what, turned } => self.scan(pool, what, turned),
            Notice::Trim { leaf, turned } => self.trim(pool, leaf, turned),
            Notice::Damaged(d) => self.post(EREPORT, "data", pool, of_damage(&d)),
            Notice::NotAuthentic(d) => {
                let mut more = of_damage(&d);
                more[0].1 = EventValue::Number(ECKSUM);
                self.post(EREPORT, "authentication", pool, more);
            }
            Notice::Removed(top) => {
                let more = of_vdev(pool, &top);
                self.post(SYSEVENT, "vdev_remove_dev", pool, more);
            }
            Notice::Recorded(r) => self.post(SYSEVENT, "history_event", pool, of_record(&r)),
        }
    }

    /// A scan begins, ends, is paused or goes on.
    fn scan(&self, pool: &Pool, what: Scanning, turned: Turned) {
        let (scan, healing) = match what {
            Scanning::Scrub => ("scrub", None),
            Scanning::ErrorScrub => ("errorscrub", None),
            Scanning::Resilver => ("resilver", Some("healing")),
            Scanning::Rebuild(_) => ("resilver", Some("sequential")),
        };
        let turned = match turned {
            Turned::Started => "start",
            Turned::Finished => "finish",
            Turned::Aborted => "abort",
            Turned::Paused => "paused",
            Turned::Resumed => "resume",
        };
        let top = match what {
            Scanning::Rebuild(id) => pool.tree().top(id).ok(),
            _ => None,
        };
        let mut more = top.map_or_else(Vec::new, |top| of_vdev(pool, &top));
        more.extend(healing.map(|how| ("resilver_type", EventValue::Text(how.into()))));
        self.post(SYSEVENT, &format!("{scan}_{turned}"), pool, more);
    }

    /// Trim of a leaf begins, ends, is suspended or goes on.
    fn trim(&self, pool: &Pool, leaf: u64, turned: Turned) {
        let turned = match turned {
            Turned::Started => "start",
            Turned::Finished => "finish",
            Turned::Aborted => "cancel",
            Turned::Paused => "suspend",
            Turned::Resumed => "resume",
        };
        let leaf = pool.tree().find(leaf);
        let more = leaf.map_or_else(Vec::new, |v| of_vdev(pool, &v));
        self.post(SYSEVENT, &format!("trim_{turned}"), pool, more);
    }

    /// The events behind number `after`, and how many were dropped since the process began.
    pub fn after(&self, after: u64) -> (Vec<Event>, u64) {
        let ring = self.ring.acquire();
        let new = ring.list.iter().filter(|e| e.eid > after);
        (new.cloned().collect(), ring.dropped)
    }

    /// Number of the newest event.
    pub fn last(&self) -> u64 {
        self.ring.acquire().last
    }

    /// Waits until there is an event behind number `after`, `most` at most.
    pub fn wait(&self, after: u64, most: Duration) {
        let ring = self.ring.acquire();
        drop(
            self.news
                .wait_timeout_while(ring, most, |r| r.last <= after),
        );
    }

    /// Forgets all events; how many there were.
    pub fn clear(&self) -> usize {
        let mut ring = self.ring.acquire();
        let n = ring.list.len();
        ring.list.clear();
        n
    }
}

/// What is told of a block that cannot be restored.
fn of_damage(d: &Damage) -> Vec<Pair> {
    let number = |n| EventValue::Number(n);
    vec![
        ("zio_err", number(EIO)),
        ("zio_objset", number(d.objset)),
        ("zio_object", number(d.object)),
        // Below 0 for the root of an object set.
        ("zio_level", number(d.level.cast_unsigned())),
        ("zio_blkid", number(d.blkid)),
    ]
}

/// What is told of one transfer of a device.
pub fn of_transfer(r: &Report) -> Vec<Pair> {
    let number = |n| EventValue::Number(n);
    if r.trouble == Trouble::Probe {
        return Vec::new();
    }
    let mut out = vec![
        ("zio_offset", number(r.offset)),
        ("zio_size", number(r.size)),
        // Reads are 1, writes 2.
        ("zio_type", number(1 + u64::from(r.write))),
        ("zio_priority", number(r.priority)),
    ];
    let error = match r.trouble {
        Trouble::Failed(kind) => kind.errno().unsigned_abs().into(),
        Trouble::Wrong => ECKSUM,
        Trouble::Slow(_) | Trouble::Probe => 0,
    };
    out.push(("zio_err", number(error)));
    if let Trouble::Slow(ns) = r.trouble {
        out.push(("zio_delta", number(ns)));
    }
    out
}

/// What is told of a record of the history.
fn of_record(r: &NvList) -> Vec<Pair> {
    let number = |key| r.get_u64(key).map(EventValue::Number);
    let text = |key| r.get_str(key).map(|t| EventValue::Text(t.into()));
    let pairs = [
        ("history_hostname", text(key::HOSTNAME)),
        ("history_dsname", text(key::DSNAME)),
        ("history_dsid", number(key::DSID)),
        ("history_internal_str", text(key::INTERNAL_STR)),
        ("history_internal_name", text(key::INTERNAL_NAME)),
        ("history_txg", number(key::TXG)),
        ("history_time", number(key::TIME)),
    ];
    pairs
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
}

/// Takes out of an event what the history of the pool says, which is for its owner.
pub fn without_history(event: &mut Event) {
    event
        .pairs
        .retain(|(name, _)| !name.starts_with("history_"));
}

/// What is told of a vdev, and of the group it is in.
pub fn of_vdev(pool: &Pool, v: &Vdev) -> Vec<Pair> {
    let mut out = of_leaf(v);
    if let Ok((top, _)) = pool.tree().leaf_of(v.guid()) {
        let ashift = u64::from(top.ashift());
        out.push(("vdev_ashift", EventValue::Number(ashift)));
    }
    let spares = pool.aux_devices();
    let waiting = |key| spares.spares.iter().filter_map(move |c| c.get_str(key));
    let paths: Vec<&str> = waiting(keys::PATH).collect();
    if !paths.is_empty() {
        out.push(("vdev_spare_paths", EventValue::Text(paths.join(" "))));
    }
    let all = pool.tree().all();
    let parent = all
        .iter()
        .find(|p| p.children().iter().any(|c| c.guid() == v.guid()));
    match parent {
        Some(p) => {
            let kind = p.kind().type_name().to_string();
            out.push(("parent_guid", EventValue::Number(p.guid())));
            out.push(("parent_type", EventValue::Text(kind)));
        }
        None => {
            out.push(("parent_guid", EventValue::Number(pool.guid())));
            out.push(("parent_type", EventValue::Text("root".into())));
        }
    }
    out
}

/// What is told of a leaf.
fn of_leaf(v: &Vdev) -> Vec<Pair> {
    let (read, write, checksum) = v.stats.errors();
    let text = |key| v.get_str(key).map(EventValue::Text);
    let mut out = vec![
        ("vdev_guid", EventValue::Number(v.guid())),
        ("vdev_state", EventValue::Number(state_number(v.state()))),
        (
            "vdev_type",
            EventValue::Text(v.kind().type_name().to_string()),
        ),
    ];
    out.extend(v.path().map(|p| ("vdev_path", EventValue::Text(p))));
    out.extend(text(keys::DEVID).map(|p| ("vdev_devid", p)));
    out.extend(text(keys::PHYS_PATH).map(|p| ("vdev_physpath", p)));
    out.push(("vdev_read_errors", EventValue::Number(read)));
    out.push(("vdev_write_errors", EventValue::Number(write)));
    out.push(("vdev_cksum_errors", EventValue::Number(checksum)));
    out
}

/// The number of a state in payloads.
pub fn state_number(s: vdev::State) -> u64 {
    s as u64
}
