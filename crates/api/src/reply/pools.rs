//! Replies about pools: vdevs, state, scans, events, importable pools, history.

use super::Prop;
use crate::{ApiError, VdevClass, VdevKind};
use serde::{Deserialize, Serialize};

/// State of a vdev, and of a pool (that of its root vdev).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VdevState {
    /// Not known.
    #[default]
    Unknown,
    /// Never opened.
    Closed,
    /// Taken out of use by `zpool offline`.
    Offline,
    /// The device was taken out of the machine.
    Removed,
    /// It cannot be opened, or too few children can.
    CantOpen,
    /// Out of use because of errors.
    Faulted,
    /// In use, but not as a whole.
    Degraded,
    /// In use as a whole.
    Online,
}

impl VdevState {
    /// The word reports use for the state, which depends on the reason for it.
    pub fn shown(self, aux: VdevAux) -> &'static str {
        match self {
            VdevState::Closed | VdevState::Offline => "OFFLINE",
            VdevState::Removed => "REMOVED",
            VdevState::CantOpen if aux == VdevAux::CorruptData || aux == VdevAux::BadLog => {
                "FAULTED"
            }
            VdevState::CantOpen if aux == VdevAux::SplitPool => "SPLIT",
            VdevState::CantOpen => "UNAVAIL",
            VdevState::Faulted => "FAULTED",
            VdevState::Degraded => "DEGRADED",
            VdevState::Online => "ONLINE",
            VdevState::Unknown => "UNKNOWN",
        }
    }
}

/// Events, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Events {
    /// The events.
    pub list: Vec<Event>,
    /// How many were dropped to make room since the daemon began.
    #[serde(default)]
    pub dropped: u64,
}

/// Something that happened to a pool or device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Grows by one with each event.
    pub eid: u64,
    /// Since 1970, UTC.
    pub seconds: u64,
    /// Below 10⁹.
    pub nanoseconds: u32,
    /// `sysevent.fs.zfs.pool_import`
    pub class: String,
    /// The payload, in order.
    pub pairs: Vec<(String, EventValue)>,
}

/// A value of a payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EventValue {
    /// A text.
    Text(String),
    /// A number.
    Number(u64),
}

/// Why a vdev is not online.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VdevAux {
    /// No reason to give.
    #[default]
    None,
    /// The device cannot be opened.
    OpenFailed,
    /// The label is unreadable or belongs elsewhere.
    CorruptData,
    /// Too few children are in use.
    NoReplicas,
    /// The guids do not add up: a device is missing.
    BadGuidSum,
    /// The device is too small.
    TooSmall,
    /// The label cannot be used.
    BadLabel,
    /// The pool version is newer than the software.
    VersionNewer,
    /// The pool version is too old.
    VersionOlder,
    /// A feature or kind of vdev that this software cannot use.
    UnsupportedFeatures,
    /// The spare is in use in another pool.
    Spared,
    /// There were too many errors.
    ErrorsExceeded,
    /// The pool is suspended because of I/O errors.
    IoFailure,
    /// The intent log cannot be read.
    BadLog,
    /// Declared faulty by the administrator or another program.
    ExternalFault,
    /// The device belongs to a pool that was split off.
    SplitPool,
    /// The device needs larger sectors than the vdev has.
    BadAshift,
    /// The same, also after the next import.
    ExternalPersistent,
    /// Another host has the pool.
    ActiveElsewhere,
    /// All children are offline.
    ChildrenOffline,
    /// The ashift is larger than supported.
    AshiftTooBig,
    /// The device works, but lacks what was written while it was away.
    MissedWrites,
}

/// A vdev with state and counters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Vdev {
    /// What it is.
    pub kind: VdevKind,
    /// Index among its siblings: the number in `mirror-0`.
    #[serde(default)]
    pub id: u64,
    /// Its guid; 0 for holes.
    #[serde(default)]
    pub guid: u64,
    /// Allocation class or role.
    #[serde(default)]
    pub class: VdevClass,
    /// Devices: path by which it was opened last.
    #[serde(default)]
    pub path: Option<String>,
    /// The path is partition 1 of a disk given whole.
    #[serde(default)]
    pub whole_disk: bool,
    /// Could not be found at import or open: shown by guid, `was PATH`.
    #[serde(default)]
    pub not_present: bool,
    /// Whether it is in use.
    #[serde(default)]
    pub state: VdevState,
    /// Reason of the state.
    #[serde(default)]
    pub aux: VdevAux,
    /// Counters.
    #[serde(default)]
    pub stats: VdevStats,
    /// Histograms, if they were asked for.
    #[serde(default)]
    pub histograms: Option<Box<VdevHistograms>>,
    /// The vdevs below.
    #[serde(default)]
    pub children: Vec<Vdev>,
}

/// Counters of a vdev since import. Sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct VdevStats {
    /// Allocated and total; zero total for leaves below a group.
    pub alloc: u64,
    /// See `alloc`.
    pub space: u64,
    /// Deflated total.
    pub dspace: u64,
    /// Size a replacement needs.
    pub rsize: u64,
    /// Room to grow into.
    pub esize: u64,
    /// Size of the device.
    pub physical: u64,
    /// Percent; none without histogram.
    pub fragmentation: Option<u64>,
    /// Reads since the import.
    pub read_ops: u64,
    /// Writes since the import.
    pub write_ops: u64,
    /// Bytes of reads.
    pub read_bytes: u64,
    /// Bytes of writes.
    pub write_bytes: u64,
    /// Failed reads.
    pub read_errors: u64,
    /// Failed writes.
    pub write_errors: u64,
    /// Reads that returned wrong bytes.
    pub checksum_errors: u64,
    /// Requests that took longer than 30 seconds.
    pub slow_ios: u64,
    /// Bytes rewritten because a copy was bad.
    pub self_healed: u64,
    /// Bytes written by the newest scrub or resilver.
    pub scan_processed: u64,
    /// log2 of the sector size in use and of the device's own.
    pub configured_ashift: u64,
    /// See `configured_ashift`.
    pub physical_ashift: u64,
    /// Its resilver waits for the one that runs.
    pub resilver_deferred: bool,
    /// Has missed writes that are not repaired yet.
    pub resilvering: bool,
    /// First and last txg of the ranges whose data a device lacks, ascending; the first few of them.
    pub missing: Vec<(u64, u64)>,
    /// It is being removed.
    pub removing: bool,
    /// Nothing is allocated on it.
    pub noalloc: bool,
    /// Discards since the import.
    pub trim_ops: u64,
    /// Bytes of discards.
    pub trim_bytes: u64,
    /// Failed discards.
    pub trim_errors: u64,
    /// Failed writes of `zpool initialize`.
    pub initialize_errors: u64,
    /// The device cannot be told of free space.
    pub trim_unsupported: bool,
    /// Of a leaf.
    pub trim: WearStats,
    /// Of a leaf.
    pub initialize: WearStats,
}

/// How trim or initialize of a device stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WearStats {
    /// The state.
    pub state: WearState,
    /// When it began or ended, seconds since 1970.
    pub time: u64,
    /// Bytes done.
    pub done: u64,
    /// Bytes to be done in all.
    pub total: u64,
}

/// States of trim and initialize.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WearState {
    /// Never done, or forgotten.
    #[default]
    None,
    /// Under way.
    Active,
    /// Stopped.
    Canceled,
    /// Waits for a user.
    Suspended,
    /// Done.
    Complete,
}

/// Histograms of a vdev since import; bucket n of latencies counts 2^n…2^(n+1)-1 ns, of sizes
/// 2^n bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct VdevHistograms {
    /// Read, write: from queueing to completion; 37 buckets.
    pub total_wait: [Vec<u64>; 2],
    /// Read, write: at the device.
    pub disk_wait: [Vec<u64>; 2],
    /// Sync read, sync write, async read, async write, scrub, trim, rebuild: in the queue.
    pub queue_wait: [Vec<u64>; 7],
    /// The same queues: sizes of single requests.
    pub sizes: [Vec<u64>; 7],
    /// The same, sizes of merged requests.
    pub merged: [Vec<u64>; 7],
    /// The same queues: pending, active now.
    pub queues: [(u64, u64); 7],
}

/// A pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pool {
    /// Name.
    pub name: String,
    /// Guid.
    pub guid: u64,
    /// Last transaction group synced.
    pub txg: u64,
    /// On-disk version: 1–28 or 5000.
    pub version: u64,
    /// Newest file system version supported by that pool version: 5.
    pub zpl_version: u64,
    /// ONLINE, DEGRADED, FAULTED, OFFLINE, REMOVED, UNAVAIL or SUSPENDED.
    pub health: String,
    /// The properties asked for.
    pub props: Vec<Prop>,
    /// Root vdev; top-level vdevs of all classes, caches and spares are its children, told apart
    /// by `class`.
    pub tree: Option<Vdev>,
    /// Nanoseconds of a monotonic clock when the counters were read, and at import.
    pub now_ns: u64,
    /// See `now_ns`.
    pub import_ns: u64,
    /// What is wrong, in detail.
    pub facts: PoolFacts,
    /// Newest scrub or resilver.
    pub scan: Option<Scan>,
    /// Newest error scrub.
    pub error_scrub: Option<ErrorScrub>,
    /// Newest removal of a top-level vdev.
    pub removal: Option<Removal>,
    /// The checkpoint, if there is one or one is being discarded.
    pub checkpoint: Option<Checkpoint>,
    /// Newest expansion of a RAID-Z.
    pub expansion: Option<Expansion>,
    /// The last sequential rebuild of each top-level vdev that had one.
    pub rebuilds: Vec<Rebuild>,
    /// Number of data errors on record; none: cannot be read.
    pub error_count: Option<u64>,
    /// Texts as `zpool status -v` prints them, when asked for.
    pub error_list: Vec<String>,
    /// The dedup tables, when asked for.
    #[serde(default)]
    pub dedup: Option<DedupTables>,
}

/// What the dedup tables of a pool hold, and what they take.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DedupTables {
    /// Entries.
    pub entries: u64,
    /// Bytes on disk.
    pub on_disk: u64,
    /// Bytes of memory when all of it is there.
    pub in_core: u64,
    /// Bytes that are in memory, when asked for.
    pub cached: Option<u64>,
    /// Eight words for each power of two of the number of references: blocks, logical, physical and allocated bytes, then the same by
    /// references. Powers behind the last that has blocks are left out.
    pub histogram: Vec<u64>,
}

/// What `status:` depends on beside the vdev tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolFacts {
    /// I/O is suspended: the pool waits for its devices or, if `stopped` says so, is stopped for good.
    pub suspended: bool,
    /// It is stopped until it is imported again.
    pub stopped: bool,
    /// Why, in words.
    pub suspended_why: Option<String>,
    /// The intent log cannot be played.
    pub bad_log: bool,
    /// Pool metadata is damaged.
    pub corrupt_metadata: bool,
    /// On-disk version is newer than ours.
    pub version_newer: bool,
    /// Active features we lack (`guid`, description).
    pub unsupported: Vec<(String, String)>,
    /// All of `unsupported` may be read over.
    pub unsupported_readable: bool,
    /// Supported features not enabled, `compatibility` respected.
    pub disabled_features: Vec<String>,
    /// Supported features not enabled that `zpool upgrade` leaves alone, `compatibility` respected.
    pub features_on_request: Vec<String>,
    /// Enabled features outside the pool's `compatibility` set.
    pub incompatible_features: Vec<String>,
    /// The file named by `compatibility` cannot be used: why.
    pub bad_compatibility: Option<String>,
    /// Why multihost protection forbids an import.
    pub multihost: Option<Multihost>,
    /// Last used by another system: host name, host id, seconds since 1970.
    pub host_mismatch: Option<(String, u64, u64)>,
    /// Number of what other software wrote wrongly (`ZFS-8000-ER`), 0: nothing.
    pub errata: u64,
}

/// Why multihost protection forbids an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Multihost {
    /// Another host uses the pool.
    Active,
    /// This host has no host id.
    NoHostId,
}

/// The checkpoint of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Checkpoint {
    /// It goes; `space` is what is left.
    pub discarding: bool,
    /// Seconds since 1970.
    pub created: u64,
    /// Bytes that only it keeps.
    pub space: u64,
}

/// Newest removal of a top-level vdev.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Removal {
    /// Whether it runs.
    pub state: ScanState,
    /// Id of the vdev.
    pub vdev: u64,
    /// Seconds since 1970.
    pub start: u64,
    /// Seconds since 1970; 0 while it runs.
    pub end: u64,
    /// Bytes.
    pub to_copy: u64,
    /// Bytes copied so far.
    pub copied: u64,
    /// This daemon goes on with it: false where the pool is imported read-only.
    pub goes_on: bool,
    /// Bytes that the mappings of all removed vdevs take as OpenZFS counts them.
    pub mapping_memory: u64,
}

/// Newest expansion of a RAID-Z.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Expansion {
    /// Whether it runs.
    pub state: ScanState,
    /// Id of the vdev.
    pub vdev: u64,
    /// Seconds since 1970.
    pub start: u64,
    /// Seconds since 1970; 0 while it runs.
    pub end: u64,
    /// Bytes: what the vdev has allocated, and what of it was copied.
    pub to_reflow: u64,
    /// See `to_reflow`.
    pub reflowed: u64,
    /// It waits for a device of the vdev.
    pub waiting: bool,
    /// The pool is read-only: nothing goes on.
    pub stopped: bool,
}

/// Last sequential rebuild of a mirror or dRAID.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rebuild {
    /// Whether it runs.
    pub state: ScanState,
    /// Id of the vdev.
    pub vdev: u64,
    /// Seconds since 1970.
    pub start: u64,
    /// Seconds since 1970; 0 while it runs.
    pub end: u64,
    /// Bytes: what there is to look at, what was looked at, asked for and written.
    pub to_scan: u64,
    /// Bytes handled so far.
    pub scanned: u64,
    /// Those of them that a device lacked.
    pub issued: u64,
    /// Bytes written.
    pub rebuilt: u64,
    /// Ranges that could not be copied.
    pub errors: u64,
    /// Milliseconds it ran.
    pub time_ms: u64,
    /// The rest is of this pass: since the import, or since it began; 0 if it does not run.
    pub pass_ms: u64,
    /// Bytes handled.
    pub pass_scanned: u64,
    /// Those of them that a device lacked.
    pub pass_issued: u64,
    /// Bytes that no device lacks.
    pub pass_skipped: u64,
}

/// Newest error scrub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ErrorScrub {
    /// Whether it runs.
    pub state: ScanState,
    /// It waits for a user.
    pub paused: bool,
    /// Seconds since 1970.
    pub start: u64,
    /// Seconds since 1970; 0 while it runs.
    pub end: u64,
    /// Damaged blocks still to be looked at, and looked at.
    pub to_examine: u64,
    /// See `to_examine`.
    pub examined: u64,
}

/// Newest scrub or resilver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Scan {
    /// Scrub or resilver.
    pub function: ScanFunction,
    /// Whether it runs.
    pub state: ScanState,
    /// Seconds since 1970.
    pub start: u64,
    /// Seconds since 1970; 0 while it runs.
    pub end: u64,
    /// Bytes.
    pub to_examine: u64,
    /// Bytes visited.
    pub examined: u64,
    /// Bytes visited that were not to be scrubbed.
    pub skipped: u64,
    /// Bytes repaired.
    pub processed: u64,
    /// Blocks that could not be repaired.
    pub errors: u64,
    /// Bytes whose copies were compared.
    pub issued: u64,
    /// Of this pass: since the pool was imported or the scan resumed.
    pub pass_examined: u64,
    /// Bytes whose copies were compared.
    pub pass_issued: u64,
    /// Seconds since 1970.
    pub pass_start: u64,
    /// Since when it is paused, seconds since 1970.
    pub paused_at: Option<u64>,
    /// Seconds it was paused before.
    pub spent_paused: u64,
}

/// Kind of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScanFunction {
    /// There was none.
    #[default]
    None,
    /// Scrub.
    Scrub,
    /// Resilver.
    Resilver,
}

/// State of background work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScanState {
    /// There was none.
    #[default]
    None,
    /// It runs, or is paused.
    Scanning,
    /// It came to its end.
    Finished,
    /// It was stopped.
    Canceled,
}

/// A pool found on devices and not imported.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Importable {
    /// Name in the labels.
    pub name: String,
    /// Guid.
    pub guid: u64,
    /// Pool version.
    pub version: u64,
    /// It was destroyed.
    pub destroyed: bool,
    /// It was exported.
    pub exported: bool,
    /// Pool property `comment`.
    pub comment: Option<String>,
    /// Host that last wrote it.
    pub hostname: Option<String>,
    /// Id of that host; 0 if the labels name none.
    pub hostid: u64,
    /// Time of the newest uberblock, seconds since 1970.
    pub last_access: u64,
    /// What the state would be: root vdev state; see `Pool::health`.
    pub health: String,
    /// The vdevs found.
    pub tree: Option<Vdev>,
    /// What is wrong, in detail.
    pub facts: PoolFacts,
    /// Would be refused without `-f`: in use by, or last used by, another system.
    pub needs_force: bool,
    /// Log devices are missing: `-m` is needed.
    pub needs_missing_log: bool,
    /// The newest scrub or resilver, of pools that can be read.
    #[serde(default)]
    pub scan: Option<Scan>,
}

/// Properties of a vdev.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VdevProps {
    /// The vdev, without what is below it.
    pub vdev: Vdev,
    /// Those asked for.
    pub props: Vec<Prop>,
}

/// Outcome of a split.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Split {
    /// Guid of the new pool; 0 if nothing was changed.
    pub guid: u64,
    /// Guids of the devices it has.
    pub members: Vec<u64>,
    /// Paths of those devices.
    pub paths: Vec<String>,
    /// What the user should know about it: a sentence.
    pub warning: Option<String>,
}

/// Outcome of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Imported {
    /// Name it has now.
    pub name: String,
    /// Datasets that could not be mounted.
    #[serde(default)]
    pub failed_mounts: Vec<(String, ApiError)>,
    /// After a rewind, or a dry run of one: time gone back to (seconds since 1970) and how many
    /// seconds are lost.
    #[serde(default)]
    pub rewound: Option<(u64, u64)>,
    /// Imported for reading only: datasets whose intent logs hold changes that are not seen.
    #[serde(default)]
    pub unplayed: Vec<String>,
}

/// Before [`HistoryRecord::event`] in records as pools before version 5000 have them, which are printed
/// in another form.
pub const OLD_EVENT: &str = "internal ";

/// One record of the pool history (pool format: history log).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HistoryRecord {
    /// Seconds since 1970.
    pub time: u64,
    /// Command line; records of commands.
    pub command: Option<String>,
    /// Internal records: transaction group, event, dataset name with object id, text.
    pub txg: Option<u64>,
    /// See `txg`.
    pub event: Option<String>,
    /// See `txg`.
    pub dataset: Option<(String, u64)>,
    /// See `txg`.
    pub text: Option<String>,
    /// Records of ioctls: name, and the printed argument and result lists.
    pub ioctl: Option<String>,
    /// See `ioctl`.
    pub input: Vec<String>,
    /// See `ioctl`.
    pub output: Vec<String>,
    /// User id of the caller.
    pub uid: Option<u64>,
    /// Host the command ran on.
    pub host: Option<String>,
    /// Zone the command ran in.
    pub zone: Option<String>,
}

/// Outcome of an upgrade of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Upgraded {
    /// Version before.
    pub from_version: u64,
    /// Version now.
    pub to_version: u64,
    /// Features enabled now.
    pub features: Vec<String>,
}

/// A pool feature.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Feature {
    /// Short name.
    pub name: String,
    /// Name on disk.
    pub guid: String,
    /// One sentence.
    pub description: String,
    /// Other software may read a pool where it is active.
    pub read_only_compatible: bool,
}
