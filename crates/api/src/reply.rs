//! Replies of the daemon, one type for each request.

mod pools;

pub use pools::*;

use crate::{ApiError, Bytes, DatasetKind};
use serde::{Deserialize, Serialize};

/// An answer; which one belongs to which request is told at [`crate::Request`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "value", rename_all = "lowercase")]
pub enum Reply {
    /// The operation is done.
    Done,
    /// Done, and what the user should know about it: a sentence.
    DoneBut(String),
    /// Comes before the answer, with the caller's end of the stream as a file descriptor: a socket.
    Stream,
    /// Version of the daemon.
    Version(Version),
    /// Pools.
    Pools(Answer<Pool>),
    /// Datasets.
    Datasets(Answer<Dataset>),
    /// Pools that could be imported.
    Importable(Vec<Importable>),
    /// A pool was imported.
    Imported(Imported),
    /// Vdevs with properties.
    VdevProps(Answer<VdevProps>),
    /// A pool was split, or would be.
    Split(Split),
    /// Records of the history.
    History(Vec<HistoryRecord>),
    /// A pool was upgraded.
    Upgraded(Upgraded),
    /// Features this software knows.
    Features(Vec<Feature>),
    /// Background work, as `wait` waits for it.
    Activity(Vec<Activity>),
    /// A size in bytes.
    Bytes(u64),
    /// Events.
    Events(Events),
    /// A dataset was created, or would be.
    Created(Created),
    /// Datasets were destroyed, or would be.
    Destroyed(Destroyed),
    /// Streams were received, or would be.
    Received(Received),
    /// Streams that are going to be sent.
    SendPlan(SendPlan),
    /// Mounted file systems.
    Mounts(Vec<MountEntry>),
    /// Outcome of a request on many objects.
    Batch(Batch),
    /// Holds of snapshots.
    Holds(Answer<Hold>),
    /// Delegated permissions.
    Permissions(Vec<Permissions>),
    /// Space of users, groups or projects.
    Space(Vec<SpaceRow>),
    /// Differences of two states of a file system.
    Changes(Vec<Change>),
    /// What holds the space of datasets.
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
    /// The objects.
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
    /// Kind of the difference.
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
    /// The object is gone.
    Removed,
    /// The object is new.
    Created,
    /// Content or attributes differ.
    Modified,
    /// It has another name.
    Renamed,
    /// It has so many more names, or fewer.
    Links(i64),
}

/// What holds the space of one file system or volume. Bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeldSpace {
    /// Name of the file system or volume.
    pub dataset: String,
    /// Bytes charged to it: the sum of the following.
    pub used: u64,
    /// By what is in it now.
    pub head: u64,
    /// Bytes of its snapshots that it does not have itself.
    pub snapshots: u64,
    /// Of that, what cannot be given back as long as holds and clones pin snapshots.
    pub pinned: u64,
    /// Bytes of its own reservation that are not used.
    pub refreservation: u64,
    /// Bytes of its descendants, with their reservations.
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
    /// Bytes it refers to.
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
    /// Full name of the snapshot.
    pub snapshot: String,
    /// The tag.
    pub tag: String,
    /// Seconds since 1970.
    pub time: u64,
}

/// What is delegated at one dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Permissions {
    /// Dataset at which they were given.
    pub dataset: String,
    /// Name with its `@`, and what is in it.
    pub sets: Vec<(String, Vec<String>)>,
    /// What who makes a dataset gets.
    pub create: Vec<String>,
    /// At the dataset itself.
    pub local: Vec<Grant>,
    /// At its descendants.
    pub descendent: Vec<Grant>,
    /// Both.
    pub everywhere: Vec<Grant>,
}

/// Permissions of one user, one group, or everyone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Who has them.
    pub to: Grantee,
    /// Names of permissions, and of sets with their `@`.
    pub permissions: Vec<String>,
}

/// Whom permissions are given.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Grantee {
    /// A user, by id.
    User(u64),
    /// A group, by id.
    Group(u64),
    /// Every user.
    Everyone,
}

/// What one user, group or project occupies and may.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceRow {
    /// Kind of the id.
    pub who: crate::Whose,
    /// The id.
    pub id: u64,
    /// Bytes; quotas: 0 = none.
    pub used: u64,
    /// See `used`.
    pub quota: u64,
    /// None: objects are not counted.
    #[serde(default)]
    pub objects: Option<u64>,
    /// Most objects; 0 = no limit.
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
    /// The default of the property.
    Default,
    /// Set on the object itself.
    Local,
    /// Set for this mount or import only.
    Temporary,
    /// Came with a stream.
    Received,
    /// From this ancestor.
    Inherited(String),
}

/// One property.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prop {
    /// Name.
    pub name: String,
    /// Value.
    pub value: Value,
    /// Where the value comes from.
    pub source: Source,
    /// The received value, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received: Option<Value>,
}

impl Prop {
    /// A property without a received value.
    pub fn new(name: impl Into<String>, value: impl Into<Value>, source: Source) -> Prop {
        Prop {
            name: name.into(),
            value: value.into(),
            source,
            received: None,
        }
    }
}

/// Something that goes on in the background and can be waited for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// Word of `zpool wait -t` or `zfs wait -t`.
    pub name: String,
    /// Whether there is any of it.
    pub running: bool,
    /// Bytes to go, or objects for `deleteq`.
    pub remaining: u64,
}

/// A dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dataset {
    /// Full name.
    pub name: String,
    /// File system, volume, snapshot or bookmark.
    pub kind: DatasetKind,
    /// Txg in which it was created.
    #[serde(default)]
    pub createtxg: u64,
    /// Its guid.
    #[serde(default)]
    pub guid: u64,
    /// The properties asked for.
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
    /// Sentences.
    pub warnings: Vec<String>,
    /// More is missing than properties: the command fails.
    pub failed: bool,
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
    /// The streams, in the order in which they are sent.
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
    /// Full name of the snapshot.
    pub snapshot: String,
    /// Base of an increment: a full name, or that of a snapshot of the same file system.
    pub from: Option<String>,
    /// Estimated bytes, if asked for.
    pub size: Option<u64>,
}

/// A mounted file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountEntry {
    /// Its name.
    pub dataset: String,
    /// Absolute path of its mount point.
    pub mountpoint: String,
}

/// Result of a request on many objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Batch {
    /// Names of those that succeeded.
    pub done: Vec<String>,
    /// Names of those that failed, and why.
    pub failed: Vec<(String, ApiError)>,
}

/// How far a request has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// What goes on: `Mounting ZFS filesystems`.
    pub what: String,
    /// Objects done.
    pub done: u64,
    /// Objects in all.
    pub total: u64,
}
