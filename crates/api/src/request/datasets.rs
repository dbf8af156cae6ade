//! Parameters of requests on datasets.

use super::{Props, Select};
use crate::Secret;
use serde::{Deserialize, Serialize};

/// Who occupies space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Whose {
    /// A user.
    User,
    /// A group.
    Group,
    /// A project.
    Project,
}

/// Permissions to be given, or to be taken back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delegation {
    /// Whom they concern.
    pub to: Delegate,
    /// At the dataset itself (`-l`). Creators and sets have no such difference.
    #[serde(default)]
    pub local: bool,
    /// At its descendants (`-d`).
    #[serde(default)]
    pub descendent: bool,
    /// Permissions, and sets with their `@`. None, to be taken back: all that are there.
    #[serde(default)]
    pub permissions: Vec<String>,
}

/// Whom permissions are given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Delegate {
    /// A user, by id.
    User(u64),
    /// A group, by id.
    Group(u64),
    /// Every user.
    Everyone,
    /// Whoever makes a dataset below (`-c`).
    Creator,
    /// The set of this name, with its `@` (`-s`).
    Set(String),
}

/// Kinds of datasets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DatasetKind {
    /// A file system.
    Filesystem,
    /// A volume.
    Volume,
    /// A snapshot.
    Snapshot,
    /// A bookmark.
    Bookmark,
}

/// Datasets with properties.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetGet {
    /// Starting points; empty: the root of every pool.
    #[serde(default)]
    pub roots: Vec<String>,
    /// How far below each starting point; 0: only itself; none: all the way. Snapshots and
    /// bookmarks are one below their file system.
    #[serde(default)]
    pub depth: Option<u32>,
    /// Kinds wanted; a starting point of another kind is walked but not returned.
    pub kinds: Vec<DatasetKind>,
    /// Snapshots too in pools whose `listsnapshots` is on.
    #[serde(default)]
    pub listsnapshots: bool,
    /// The properties to return.
    pub props: Select,
}

/// `zfs create`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetCreate {
    /// Full name.
    pub name: String,
    /// Properties set at creation.
    #[serde(default)]
    pub props: Props,
    /// Make missing parents; existing is fine (`-p`).
    #[serde(default)]
    pub parents: bool,
    /// Leave it unmounted (`-u`).
    #[serde(default)]
    pub no_mount: bool,
    /// Key of a new encryption root, in the format that `props` name.
    #[serde(default)]
    pub key: Option<Secret>,
    /// A volume of this size, as a user writes sizes (`-V`).
    #[serde(default)]
    pub volume_size: Option<String>,
    /// No reservation for the volume (`-s`).
    #[serde(default)]
    pub sparse: bool,
    /// Check everything, change nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// Command line, for the history of the pool.
    #[serde(default)]
    pub command: String,
}

/// `zfs snapshot`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotCreate {
    /// `pool/a@name`, of one pool or several.
    pub names: Vec<String>,
    /// Of all descendants too (`-r`).
    #[serde(default)]
    pub recursive: bool,
    /// User properties of the snapshots (`-o`).
    #[serde(default)]
    pub props: Props,
    /// Command line, for the history of the pool.
    #[serde(default)]
    pub command: String,
}

/// `zfs rollback`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rollback {
    /// Full name.
    pub snapshot: String,
    /// Destroy younger snapshots and bookmarks (`-r`).
    #[serde(default)]
    pub recursive: bool,
    /// Destroy their clones as well (`-R`).
    #[serde(default)]
    pub dependents: bool,
    /// Unmount clones by force (`-f`).
    #[serde(default)]
    pub force: bool,
    /// Although the user property protects it (`--protected`).
    #[serde(default)]
    pub protected: bool,
    /// Command line, for the history of the pool.
    #[serde(default)]
    pub command: String,
}

/// `zfs clone`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetClone {
    /// Full name of the origin.
    pub snapshot: String,
    /// Full name of the clone.
    pub name: String,
    /// Properties set at creation.
    #[serde(default)]
    pub props: Props,
    /// Make missing parents; existing is fine (`-p`).
    #[serde(default)]
    pub parents: bool,
    /// Leave it unmounted (`-u`).
    #[serde(default)]
    pub no_mount: bool,
    /// Command line, for the history of the pool.
    #[serde(default)]
    pub command: String,
}

/// How the name of what is received follows from the name that was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NameBy {
    /// It is the target.
    #[default]
    Target,
    /// The target, and all but the first element (`-d`).
    AllButFirst,
    /// The target, and the last element (`-e`).
    Last,
}

/// `zfs receive`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receive {
    /// File system, volume or snapshot.
    pub target: String,
    /// How the name of the target follows from the one sent.
    #[serde(default)]
    pub name_by: NameBy,
    /// Give up what the target has beyond the base (`-F`).
    #[serde(default)]
    pub force: bool,
    /// Keep what came of a stream that breaks off (`-s`).
    #[serde(default)]
    pub resumable: bool,
    /// Do not mount (`-u`).
    #[serde(default)]
    pub no_mount: bool,
    /// Unmount by force (`-M`).
    #[serde(default)]
    pub force_unmount: bool,
    /// No holds (`-h`).
    #[serde(default)]
    pub no_holds: bool,
    /// Tell what is received (`-v`).
    #[serde(default)]
    pub verbose: bool,
    /// Tell, change nothing (`-n`).
    #[serde(default)]
    pub dry_run: bool,
    /// Heal damaged blocks of a snapshot (`-c`).
    #[serde(default)]
    pub corrective: bool,
    /// Snapshot to clone (`-o origin=`).
    #[serde(default)]
    pub origin: Option<String>,
    /// Properties to be set (`-o`).
    #[serde(default)]
    pub props: Props,
    /// Properties to be inherited, whatever the stream says (`-x`).
    #[serde(default)]
    pub exclude: Vec<String>,
    /// Key of a new encryption root.
    #[serde(default)]
    pub key: Option<Secret>,
    /// Command line, for the history of the pool.
    #[serde(default)]
    pub command: String,
}

/// `zfs send`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Send {
    /// Snapshot, or file system or volume that is not in use; with `saved` the dataset of a broken receive. Empty with
    /// `token`.
    pub target: String,
    /// Snapshot or bookmark the stream is based on, its full name.
    pub from: Option<String>,
    /// With all snapshots between (`-I`).
    pub intermediate: bool,
    /// All descendants, with their properties and snapshots (`-R`).
    pub replicate: bool,
    /// Leave out descendants without the snapshot (`-s`).
    pub skip_missing: bool,
    /// Leave out these datasets, and what is below them (`-X`).
    pub exclude: Vec<String>,
    /// With properties (`-p`).
    pub props: bool,
    /// Received values of properties instead of those in effect (`-b`).
    pub backup: bool,
    /// With holds (`-h`).
    pub holds: bool,
    /// Blocks of more than 128 KiB in one piece (`-L`).
    pub large_blocks: bool,
    /// Embedded blocks as they are (`-e`).
    pub embedded: bool,
    /// Compressed blocks as they are (`-c`).
    pub compressed: bool,
    /// Encrypted blocks as they are (`-w`).
    pub raw: bool,
    /// What a broken receive kept (`-S`).
    pub saved: bool,
    /// Where a broken receive wants the stream to go on (`-t`).
    pub token: Option<String>,
    /// Leave out what this redaction bookmark lists (`--redact`): full or short name.
    pub redact: Option<String>,
    /// Only say what would be sent.
    pub dry_run: bool,
    /// Estimate sizes.
    pub sizes: bool,
    /// Tell how far it is.
    pub progress: bool,
}

/// `zfs redact`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redact {
    /// Snapshot of which something is to be left out.
    pub snapshot: String,
    /// Name of the bookmark, behind the `#`.
    pub bookmark: String,
    /// Redaction snapshots, full names.
    pub snaps: Vec<String>,
    /// Command line, for the history of the pool.
    #[serde(default)]
    pub command: String,
}

/// `zfs hold` and `zfs release`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// The tag.
    pub tag: String,
    /// Full names.
    pub snapshots: Vec<String>,
    /// The snapshots of those names of all descendants too (`-r`).
    #[serde(default)]
    pub recursive: bool,
    /// Command line, for the history of the pool.
    #[serde(default)]
    pub command: String,
}

/// `zfs destroy`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetDestroy {
    /// Dataset, snapshot (with ranges: `fs@a%b,c`) or bookmark.
    pub name: String,
    /// Children and snapshots too (`-r`).
    #[serde(default)]
    pub recursive: bool,
    /// Clones outside too (`-R`).
    #[serde(default)]
    pub dependents: bool,
    /// Unmount by force (`-f`).
    #[serde(default)]
    pub force: bool,
    /// Although the user property protects it (`--protected`).
    #[serde(default)]
    pub protected: bool,
    /// Mark snapshots for later if they cannot go now (`-d`).
    #[serde(default)]
    pub defer: bool,
    /// The bytes that come free are wanted (`-v`, `-p`).
    #[serde(default)]
    pub reclaim: bool,
    /// Tell, change nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// Command line, for the history of the pool.
    #[serde(default)]
    pub command: String,
}
