//! Replies of the daemon, one type for each request.

use crate::{ApiError, Bytes, DatasetKind, VdevClass, VdevKind};
use serde::{Deserialize, Serialize};

/// An answer; which one belongs to which request is told at [`crate::Request`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "value", rename_all = "lowercase")]
pub enum Reply {
    Done,
    /// Done, and what the user should know about it: a sentence.
    DoneBut(String),
    Version(Version),
    Pools(Answer<Pool>),
    Datasets(Answer<Dataset>),
    Importable(Vec<Importable>),
    Imported(Imported),
    History(Vec<HistoryRecord>),
    Upgraded(Upgraded),
    Features(Vec<Feature>),
    Activity(Vec<Activity>),
    Events(Events),
    Created(Created),
    Destroyed(Destroyed),
    Received(Received),
    SendPlan(SendPlan),
    Mounts(Vec<MountEntry>),
    Batch(Batch),
    Holds(Answer<Hold>),
    Permissions(Vec<Permissions>),
    Space(Vec<SpaceRow>),
    Changes(Vec<Change>),
    Held(Vec<HeldSpace>),
    /// Only on the way to another answer.
    Progress(Progress),
}

/// Versions of the parts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// Of the daemon: `0.1.0`.
    pub daemon: String,
}

/// Objects found, and what could not be had. Order: as asked; without names, by name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer<T> {
    pub found: Vec<T>,
    /// Name as asked for, and why not.
    #[serde(default = "Vec::new")]
    pub failed: Vec<(String, ApiError)>,
}

impl<T> Default for Answer<T> {
    fn default() -> Self {
        Answer {
            found: Vec::new(),
            failed: Vec::new(),
        }
    }
}

/// What `zfs diff` tells of one object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    pub what: ChangeKind,
    /// `st_mode`
    pub mode: u32,
    /// Change time of the object: seconds since 1970, nanoseconds.
    pub ctime: (i64, u32),
    /// Absolute path, beginning with the mount point. Of something renamed: the earlier one.
    pub path: Bytes,
    /// Of something renamed: the later path.
    #[serde(default)]
    pub to: Option<Bytes>,
}

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeKind {
    Removed,
    Created,
    Modified,
    Renamed,
    /// It has so many more names, or fewer.
    Links(i64),
}

/// What holds the space of one file system or volume. Bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeldSpace {
    pub dataset: String,
    pub used: u64,
    /// By what is in it now.
    pub head: u64,
    pub snapshots: u64,
    /// Of that, what cannot be given back as long as holds and clones pin snapshots.
    pub pinned: u64,
    pub refreservation: u64,
    pub children: u64,
    /// Oldest first.
    pub list: Vec<HeldBy>,
}

/// What one snapshot holds. Bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeldBy {
    /// Name behind the `@`.
    pub snapshot: String,
    /// Seconds since 1970.
    pub creation: u64,
    pub referenced: u64,
    /// Comes free if it is destroyed alone.
    pub alone: u64,
    /// Comes free if it and those before it are destroyed, back to the last one that is pinned; none if it is pinned
    /// itself.
    pub with_older: Option<u64>,
    /// Tags of its holds.
    pub holds: Vec<String>,
    /// Its clones.
    pub clones: Vec<String>,
}

/// A user hold of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    pub snapshot: String,
    pub tag: String,
    /// Seconds since 1970.
    pub time: u64,
}

/// What is delegated at one dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Permissions {
    pub dataset: String,
    /// Name with its `@`, and what is in it.
    pub sets: Vec<(String, Vec<String>)>,
    /// What who makes a dataset gets.
    pub create: Vec<String>,
    pub local: Vec<Grant>,
    pub descendent: Vec<Grant>,
    /// Both.
    pub everywhere: Vec<Grant>,
}

/// Permissions of one user, one group, or everyone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    pub to: Grantee,
    pub permissions: Vec<String>,
}

/// Whom permissions are given.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Grantee {
    User(u64),
    Group(u64),
    Everyone,
}

/// What one user, group or project occupies and may.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceRow {
    pub who: crate::Whose,
    pub id: u64,
    /// Bytes; quotas: 0 = none.
    pub used: u64,
    pub quota: u64,
    /// None: objects are not counted.
    #[serde(default)]
    pub objects: Option<u64>,
    #[serde(default)]
    pub object_quota: u64,
}

/// A property's value, raw: what `-p` prints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Value {
    /// Not applicable, not available: `-`.
    #[default]
    None,
    /// Bytes, counts, percent, ratio times 100 (`compressratio` 1.50 is 150), seconds since 1970;
    /// `none` and limits without value keep their stored number (0, u64::MAX).
    Number(u64),
    /// Words and texts; enumerations travel as their word (`lz4`, `on`).
    Text(String),
}

impl From<u64> for Value {
    fn from(n: u64) -> Value {
        Value::Number(n)
    }
}

impl From<&str> for Value {
    fn from(s: &str) -> Value {
        Value::Text(s.to_string())
    }
}

impl From<String> for Value {
    fn from(s: String) -> Value {
        Value::Text(s)
    }
}

/// Where a value comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// `-`
    #[default]
    None,
    Default,
    Local,
    Temporary,
    Received,
    /// From this ancestor.
    Inherited(String),
}

/// One property.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prop {
    pub name: String,
    pub value: Value,
    pub source: Source,
    /// The received value, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received: Option<Value>,
}

impl Prop {
    pub fn new(name: impl Into<String>, value: impl Into<Value>, source: Source) -> Prop {
        Prop {
            name: name.into(),
            value: value.into(),
            source,
            received: None,
        }
    }
}

/// State of a vdev, and of a pool (that of its root vdev).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VdevState {
    #[default]
    Unknown,
    Closed,
    Offline,
    Removed,
    CantOpen,
    Faulted,
    Degraded,
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
    Text(String),
    Number(u64),
}

/// Why a vdev is not online.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VdevAux {
    #[default]
    None,
    OpenFailed,
    CorruptData,
    NoReplicas,
    BadGuidSum,
    TooSmall,
    BadLabel,
    VersionNewer,
    VersionOlder,
    UnsupportedFeatures,
    Spared,
    ErrorsExceeded,
    IoFailure,
    BadLog,
    ExternalFault,
    SplitPool,
    BadAshift,
    ExternalPersistent,
    ActiveElsewhere,
    ChildrenOffline,
    AshiftTooBig,
    /// The device works, but lacks what was written while it was away.
    MissedWrites,
}

/// A vdev with state and counters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Vdev {
    pub kind: VdevKind,
    /// Index among its siblings: the number in `mirror-0`.
    #[serde(default)]
    pub id: u64,
    #[serde(default)]
    pub guid: u64,
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
    #[serde(default)]
    pub state: VdevState,
    #[serde(default)]
    pub aux: VdevAux,
    #[serde(default)]
    pub stats: VdevStats,
    #[serde(default)]
    pub histograms: Option<Box<VdevHistograms>>,
    #[serde(default)]
    pub children: Vec<Vdev>,
}

/// Counters of a vdev since import. Sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct VdevStats {
    /// Allocated and total; zero total for leaves below a group.
    pub alloc: u64,
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
    pub read_ops: u64,
    pub write_ops: u64,
    pub read_bytes: u64,
    pub write_bytes: u64,
    pub read_errors: u64,
    pub write_errors: u64,
    pub checksum_errors: u64,
    pub slow_ios: u64,
    pub self_healed: u64,
    pub scan_processed: u64,
    /// log2 of the sector size in use and of the device's own.
    pub configured_ashift: u64,
    pub physical_ashift: u64,
    pub resilver_deferred: bool,
    /// Has missed writes that are not repaired yet.
    pub resilvering: bool,
    /// First and last txg of the ranges whose data a device lacks, ascending; the first few of them.
    pub missing: Vec<(u64, u64)>,
    pub removing: bool,
    pub noalloc: bool,
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
    pub name: String,
    pub guid: u64,
    /// Last transaction group synced.
    pub txg: u64,
    /// On-disk version: 1–28 or 5000.
    pub version: u64,
    /// Newest file system version supported by that pool version: 5.
    pub zpl_version: u64,
    /// ONLINE, DEGRADED, FAULTED, OFFLINE, REMOVED, UNAVAIL or SUSPENDED.
    pub health: String,
    pub props: Vec<Prop>,
    /// Root vdev; top-level vdevs of all classes, caches and spares are its children, told apart
    /// by `class`.
    pub tree: Option<Vdev>,
    /// Nanoseconds of a monotonic clock when the counters were read, and at import.
    pub now_ns: u64,
    pub import_ns: u64,
    pub facts: PoolFacts,
    pub scan: Option<Scan>,
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
}

/// What `status:` depends on beside the vdev tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolFacts {
    /// I/O is suspended: the pool waits for its devices or, if `stopped` says so, is stopped for good.
    pub suspended: bool,
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
    pub state: ScanState,
    /// Id of the vdev.
    pub vdev: u64,
    /// Seconds since 1970.
    pub start: u64,
    pub end: u64,
    /// Bytes.
    pub to_copy: u64,
    pub copied: u64,
    /// Bytes that the mappings of all removed vdevs take as OpenZFS counts them.
    pub mapping_memory: u64,
}

/// Newest expansion of a RAID-Z.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Expansion {
    pub state: ScanState,
    /// Id of the vdev.
    pub vdev: u64,
    /// Seconds since 1970.
    pub start: u64,
    pub end: u64,
    /// Bytes: what the vdev has allocated, and what of it was copied.
    pub to_reflow: u64,
    pub reflowed: u64,
}

/// Last sequential rebuild of a mirror or dRAID.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rebuild {
    pub state: ScanState,
    /// Id of the vdev.
    pub vdev: u64,
    /// Seconds since 1970.
    pub start: u64,
    pub end: u64,
    /// Bytes: what there is to look at, what was looked at, asked for and written.
    pub to_scan: u64,
    pub scanned: u64,
    pub issued: u64,
    pub rebuilt: u64,
    pub errors: u64,
    /// Milliseconds it ran.
    pub time_ms: u64,
    /// The rest is of this pass: since the import, or since it began; 0 if it does not run.
    pub pass_ms: u64,
    pub pass_scanned: u64,
    pub pass_issued: u64,
    /// Bytes that no device lacks.
    pub pass_skipped: u64,
}

/// Newest error scrub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ErrorScrub {
    pub state: ScanState,
    pub paused: bool,
    /// Seconds since 1970.
    pub start: u64,
    pub end: u64,
    /// Damaged blocks still to be looked at, and looked at.
    pub to_examine: u64,
    pub examined: u64,
}

/// Newest scrub or resilver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Scan {
    pub function: ScanFunction,
    pub state: ScanState,
    /// Seconds since 1970.
    pub start: u64,
    pub end: u64,
    /// Bytes.
    pub to_examine: u64,
    pub examined: u64,
    pub skipped: u64,
    pub processed: u64,
    pub errors: u64,
    pub issued: u64,
    /// Of this pass: since the pool was imported or the scan resumed.
    pub pass_examined: u64,
    pub pass_issued: u64,
    pub pass_start: u64,
    pub paused_at: Option<u64>,
    pub spent_paused: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScanFunction {
    #[default]
    None,
    Scrub,
    Resilver,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScanState {
    #[default]
    None,
    Scanning,
    Finished,
    Canceled,
}

/// A pool found on devices and not imported.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Importable {
    pub name: String,
    pub guid: u64,
    pub version: u64,
    pub destroyed: bool,
    pub exported: bool,
    pub comment: Option<String>,
    pub hostname: Option<String>,
    pub hostid: u64,
    /// Time of the newest uberblock, seconds since 1970.
    pub last_access: u64,
    /// What the state would be: root vdev state; see `Pool::health`.
    pub health: String,
    pub tree: Option<Vdev>,
    pub facts: PoolFacts,
    /// Would be refused without `-f`: in use by, or last used by, another system.
    pub needs_force: bool,
    /// Log devices are missing: `-m` is needed.
    pub needs_missing_log: bool,
    /// The newest scrub or resilver, of pools that can be read.
    #[serde(default)]
    pub scan: Option<Scan>,
}

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
    pub event: Option<String>,
    pub dataset: Option<(String, u64)>,
    pub text: Option<String>,
    /// Records of ioctls: name, and the printed argument and result lists.
    pub ioctl: Option<String>,
    pub input: Vec<String>,
    pub output: Vec<String>,
    pub uid: Option<u64>,
    pub host: Option<String>,
    pub zone: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Upgraded {
    pub from_version: u64,
    pub to_version: u64,
    /// Features enabled now.
    pub features: Vec<String>,
}

/// A pool feature.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Feature {
    pub name: String,
    pub guid: String,
    pub description: String,
    /// Other software may read a pool where it is active.
    pub read_only_compatible: bool,
}

/// Something that goes on in the background and can be waited for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// Word of `zpool wait -t` or `zfs wait -t`.
    pub name: String,
    pub running: bool,
    /// Bytes to go, or objects for `deleteq`.
    pub remaining: u64,
}

/// A dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dataset {
    pub name: String,
    pub kind: DatasetKind,
    #[serde(default)]
    pub createtxg: u64,
    #[serde(default)]
    pub guid: u64,
    #[serde(default)]
    pub props: Vec<Prop>,
}

/// What `zfs create` did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Created {
    /// Parents made, topmost first.
    pub ancestors: Vec<String>,
    /// With `-p`: it was there already.
    pub existed: bool,
    /// Made, but not mounted.
    pub mount_failed: Option<ApiError>,
    /// Of a volume: the properties with numbers that follow from those given, `volsize` and `refreservation`.
    pub computed: crate::Props,
}

/// What went wrong although a stream was received.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Received {
    /// Sentences; with any of them the command fails.
    pub warnings: Vec<String>,
}

/// What `zfs destroy` did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Destroyed {
    /// In the order of destruction.
    pub names: Vec<String>,
    /// Bytes that come free; snapshots only.
    pub reclaim: Option<u64>,
    /// What remained although asked for.
    pub failed: Vec<(String, ApiError)>,
}

/// What `zfs send` sends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SendPlan {
    /// What the token says, several lines; empty without one.
    pub token: String,
    pub streams: Vec<SendStream>,
    /// Sentences about what is left out.
    pub warnings: Vec<String>,
    /// Some of them are failures.
    pub failed: bool,
}

/// The stream of one snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SendStream {
    pub snapshot: String,
    /// Base of an increment: a full name, or that of a snapshot of the same file system.
    pub from: Option<String>,
    /// Estimated bytes, if asked for.
    pub size: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountEntry {
    pub dataset: String,
    pub mountpoint: String,
}

/// Result of a request on many objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Batch {
    pub done: Vec<String>,
    pub failed: Vec<(String, ApiError)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// What goes on: `Mounting ZFS filesystems`.
    pub what: String,
    pub done: u64,
    pub total: u64,
}
