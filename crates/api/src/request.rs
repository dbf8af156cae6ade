//! Requests to the daemon.
//!
//! Requests that change something carry `command`: the command line that the pool's history records on success
//! (`export` and `destroy` record it before they act). It is empty for all but one of several requests that one command
//! line makes.

use crate::Secret;
use serde::{Deserialize, Serialize};

/// Property assignments in the order given, not validated: `("atime", "off")`.
pub type Props = Vec<(String, String)>;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "method", content = "parameters")]
pub enum Request {
    /// Answered by `Done`: is anybody there?
    Ping {},
    /// Answered by `Version`.
    Version {},
    /// Sync and stop the daemon; answered by `Done` before it goes.
    Stop {},

    /// Answered by `Done`.
    PoolCreate(PoolCreate),
    /// Answered by `Done`. Unmounts (by force with `force`), marks the labels destroyed.
    PoolDestroy {
        pool: String,
        #[serde(default)]
        force: bool,
        #[serde(default)]
        command: String,
    },
    /// Answered by `Done`, or by `DoneBut` if it was let go while its devices did not answer.
    PoolExport {
        pool: String,
        #[serde(default)]
        force: bool,
        /// Labels and cache file go on to say that the pool is in use here (`-F`).
        #[serde(default)]
        keep_active: bool,
        #[serde(default)]
        command: String,
    },
    /// Answered by `Pools`: info, properties and, where asked for, the vdev tree of pools.
    PoolGet(PoolGet),
    /// Answered by `Done`.
    PoolSet {
        pool: String,
        props: Props,
        #[serde(default)]
        command: String,
    },
    /// Answered by `Importable`: what could be imported.
    ImportScan(ImportScan),
    /// Answered by `Imported`.
    PoolImport(PoolImport),
    /// Answered by `History`, in chunks.
    PoolHistory {
        pool: String,
        /// Internal records too.
        #[serde(default)]
        internal: bool,
    },
    /// Answered by `Upgraded`. Enables features, or raises the legacy version.
    PoolUpgrade {
        pool: String,
        /// Legacy version to go to; none: feature flags with all supported features.
        #[serde(default)]
        version: Option<u64>,
        #[serde(default)]
        command: String,
    },
    /// Answered by `Features`: what this implementation knows, for `zpool upgrade -v`.
    SupportedFeatures {},
    /// Answered by `Done`. `path` is absolute.
    LabelClear {
        path: String,
        #[serde(default)]
        force: bool,
    },
    /// Answered by `Done` when a transaction group has reached the disks.
    PoolSync {
        pool: String,
        /// A new uberblock is written even if nothing changed (`-f`).
        #[serde(default)]
        force: bool,
    },
    /// Answered by `Done`.
    PoolClear(PoolClear),
    /// Answered by `Done`. Vdevs, spares and cache devices come to a pool, all or none.
    PoolAdd(PoolAdd),
    /// Answered by `Done`. A spare, a cache device or a log leaves a pool.
    DeviceRemove {
        pool: String,
        device: String,
        #[serde(default)]
        command: String,
    },
    /// Answered by `Done`, or by `DoneBut` with a warning if the device is not healthy.
    DeviceOnline {
        pool: String,
        device: String,
        /// Use all of its size (`-e`).
        #[serde(default)]
        expand: bool,
        #[serde(default)]
        command: String,
    },
    /// Answered by `Done`.
    DeviceOffline {
        pool: String,
        device: String,
        /// Until the next import only (`-t`).
        #[serde(default)]
        temporary: bool,
        /// As a fault (`-f`).
        #[serde(default)]
        fault: bool,
        #[serde(default)]
        command: String,
    },
    /// Answered by `Done` when the resilver has begun.
    DeviceAttach(DeviceAttach),
    /// Answered by `Done`.
    DeviceDetach {
        pool: String,
        device: String,
        #[serde(default)]
        command: String,
    },
    /// Answered by `Done`. Opens all devices of a pool again.
    PoolReopen {
        pool: String,
        #[serde(default)]
        command: String,
    },
    /// Answered by `Done` when it is on disk.
    PoolScrub(PoolScrub),
    /// Answered by `Done`. A resilver under way begins anew, or one begins if a device lacks something.
    PoolResilver {
        pool: String,
        #[serde(default)]
        command: String,
    },
    /// Answered by `Events`: those behind number `after`, of one pool or all.
    Events {
        #[serde(default)]
        pool: Option<String>,
        #[serde(default)]
        after: u64,
    },
    /// Answered by `DoneBut`: forgets all events, and says how many.
    EventsClear {},
    /// Answered by `Activity`: what `zpool wait` waits for.
    PoolActivity { pool: String },

    /// Answered by `Datasets`, in chunks.
    DatasetGet(DatasetGet),
    /// Answered by `Created`.
    DatasetCreate(DatasetCreate),
    /// Answered by `Destroyed`.
    DatasetDestroy(DatasetDestroy),
    /// Answered by `Done`. All properties of one dataset are set together or not at all.
    DatasetSet {
        dataset: String,
        props: Props,
        /// Do not mount, unmount or share on account of the change (`-u`).
        #[serde(default)]
        no_remount: bool,
        #[serde(default)]
        command: String,
    },
    /// Answered by `Done`.
    DatasetInherit {
        dataset: String,
        property: String,
        /// Descendants too.
        #[serde(default)]
        recursive: bool,
        /// Back to the received value (`-S`).
        #[serde(default)]
        received: bool,
        #[serde(default)]
        command: String,
    },
    /// Answered by `Done`.
    DatasetRename {
        from: String,
        to: String,
        /// Make missing parents of the new name.
        #[serde(default)]
        parents: bool,
        /// Unmount by force.
        #[serde(default)]
        force: bool,
        /// Leave mounts where they are (`-u`).
        #[serde(default)]
        no_remount: bool,
        /// The snapshots of that name of all descendants too (`-r`).
        #[serde(default)]
        recursive: bool,
        #[serde(default)]
        command: String,
    },
    /// Answered by `Done`: all of them were made, at one moment in each pool, or none.
    SnapshotCreate(SnapshotCreate),
    /// Answered by `Done`, or by `DoneBut` with what could not be mounted again.
    Rollback(Rollback),
    /// Answered by `Created`.
    DatasetClone(DatasetClone),
    /// Answered by `Done`.
    DatasetPromote {
        dataset: String,
        #[serde(default)]
        command: String,
    },
    /// Answered by `Done`.
    BookmarkCreate {
        /// A snapshot, or a bookmark of the same dataset.
        source: String,
        /// `pool/a#name`
        name: String,
        #[serde(default)]
        command: String,
    },
    /// Answered by `Received`. The stream is read from the file descriptor that comes with the request.
    Receive(Receive),
    /// Answered by `Done`: what a broken receive kept is thrown away.
    ReceiveAbort {
        dataset: String,
        #[serde(default)]
        command: String,
    },
    /// Answered by `Changes`, in parts: what differs between two states of a file system.
    Diff {
        /// A snapshot.
        from: String,
        /// A later snapshot of the file system or of a clone of it, or the file system or clone as it is now; none: the
        /// file system of the snapshot.
        #[serde(default)]
        to: Option<String>,
    },
    /// Answered by `SendPlan`, with `Progress` on the way if asked for: `what` is the snapshot whose stream is being
    /// written, `done` its bytes so far. The stream is written to the file descriptor that comes with the request.
    Send(Send),
    /// Answered by `Done`.
    Redact(Redact),
    /// Answered by `Batch`. The snapshots of one pool are held at one moment, or none is.
    HoldAdd(Holding),
    /// Answered by `Batch`.
    HoldRelease(Holding),
    /// Answered by `Done`. Loads the key of an encryption root: what the user gave (the passphrase, the
    /// hexadecimal digits, the raw bytes).
    KeyLoad {
        dataset: String,
        key: Secret,
        /// Only see whether it is the right one.
        #[serde(default)]
        check_only: bool,
    },
    /// Answered by `Done`. Forgets the key of an encryption root nothing of which is in use.
    KeyUnload { dataset: String },
    /// Answered by `Done`. The dataset gets a key of its own, or (`inherit`) that of its parent.
    KeyChange {
        dataset: String,
        #[serde(default)]
        inherit: bool,
        #[serde(default)]
        key: Secret,
        /// `keyformat`, `keylocation`, `pbkdf2iters`.
        #[serde(default)]
        props: Props,
        #[serde(default)]
        command: String,
    },
    /// Answered by `Mounts`: every mounted file system, ordered by name.
    MountList {},
    /// Answered by `Done`.
    Mount {
        dataset: String,
        /// Temporary mount options, split at commas.
        #[serde(default)]
        options: Vec<String>,
        /// Mount over a directory that is not empty.
        #[serde(default)]
        overlay: bool,
        #[serde(default)]
        force: bool,
        /// Where, absolute; none: where its properties say. Snapshots need one.
        #[serde(default)]
        directory: Option<String>,
    },
    /// Answered by `Batch`, with `Progress` on the way. Mounts everything eligible, or `root` and
    /// what is below it.
    MountAll {
        #[serde(default)]
        root: Option<String>,
        #[serde(default)]
        options: Vec<String>,
        #[serde(default)]
        overlay: bool,
        #[serde(default)]
        force: bool,
    },
    /// Answered by `Done`, or by `DoneBut` if written data of open files were lost by force. `target`
    /// is a dataset or the path of a mount point.
    Unmount {
        target: String,
        #[serde(default)]
        force: bool,
    },
    /// Answered by `Done` when all bytes of a volume, or of a snapshot of one, are in the file
    /// descriptor that came with the call. Holes are left out where it is a regular file.
    VolumeRead {
        volume: String,
        /// Only this part, bytes.
        #[serde(default)]
        offset: u64,
        #[serde(default)]
        length: Option<u64>,
    },
    /// Answered by `Holds`.
    Holds {
        snapshots: Vec<String>,
        /// The snapshots of that name of everything below too.
        #[serde(default)]
        recursive: bool,
    },
    /// Answered by `Permissions`: what is delegated at a dataset and above it.
    Permissions { dataset: String },
    /// Answered by `Done`: all were given, or none.
    PermissionsGive {
        dataset: String,
        list: Vec<Delegation>,
        #[serde(default)]
        command: String,
    },
    /// Answered by `Done`: all were taken back, or none. What is not there is left out.
    PermissionsTake {
        dataset: String,
        list: Vec<Delegation>,
        /// From all descendants too (`-r`).
        #[serde(default)]
        recursive: bool,
        #[serde(default)]
        command: String,
    },
    /// Answered by `Held`: what holds the space of a file system or volume, and of those below.
    SpaceHeld {
        dataset: String,
        #[serde(default)]
        recursive: bool,
    },
    /// Answered by `Activity`: what `zfs wait` waits for.
    DatasetActivity { dataset: String },
    /// Answered by `Space`: what users, groups or projects occupy and may.
    SpaceOf { dataset: String, who: Vec<Whose> },
    /// Answered by `Batch`. All mounts with a ZFS mount point, children first.
    UnmountAll {
        #[serde(default)]
        force: bool,
    },

    /// Answered by `Done`. Devices have these faults from now on, and no others. Only daemons built
    /// for tests can do this.
    SetFaults { faults: Vec<Fault> },
}

/// A fault that a device is made to have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Path of the device as the pool has it.
    pub device: String,
    pub on: Transfer,
    pub does: Trouble,
    /// Only one of so many transfers, counted by the fault; 0 and 1: all.
    #[serde(default)]
    pub one_of: u64,
}

/// What a fault concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transfer {
    Read,
    Write,
    Flush,
}

/// What a fault does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Trouble {
    /// The transfer fails, and does not happen.
    Error,
    /// It takes longer, milliseconds.
    Delay(u64),
    /// Other bytes are read, or written, than should be. A flush does not happen.
    Garbage,
    /// The thread that asks for the transfer panics.
    Panic,
}

/// `zpool create`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolCreate {
    pub name: String,
    pub vdevs: Vec<VdevSpec>,
    /// Pool properties (`-o`), features included: `("feature@lz4_compress", "enabled")`.
    #[serde(default)]
    pub props: Props,
    /// Properties of the root file system (`-O`); `-m` has been put in as `mountpoint`.
    #[serde(default)]
    pub fs_props: Props,
    /// Key of the root file system, in the format that `fs_props` name.
    #[serde(default)]
    pub key: Option<Secret>,
    #[serde(default)]
    pub altroot: Option<String>,
    /// Name in memory, for this import only (`-t`).
    #[serde(default)]
    pub temp_name: Option<String>,
    /// Ignore the refusals that can be overridden.
    #[serde(default)]
    pub force: bool,
    /// Enable no features but those in `props` (`-d`).
    #[serde(default)]
    pub no_features: bool,
    /// Check everything, change nothing.
    #[serde(default)]
    pub dry_run: bool,
    #[serde(default)]
    pub command: String,
}

/// One vdev of a layout to be made: a device, or a group with children.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VdevSpec {
    pub kind: VdevKind,
    #[serde(default)]
    pub class: VdevClass,
    /// Absolute path; devices only.
    #[serde(default)]
    pub path: Option<String>,
    #[serde(default)]
    pub children: Vec<VdevSpec>,
}

/// What sort of vdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VdevKind {
    Root,
    Disk,
    File,
    Mirror,
    Raidz {
        parity: u8,
    },
    Draid {
        parity: u8,
        data: u8,
        children: u8,
        spares: u8,
    },
    Replacing,
    Spare,
    /// Distributed spare: `draid2-0-0`.
    Dspare {
        parity: u8,
        vdev: u32,
        spare: u32,
    },
    Indirect,
    Hole,
    Missing,
}

/// Allocation class or role of a top-level vdev.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VdevClass {
    #[default]
    Normal,
    Log,
    Special,
    Dedup,
    Cache,
    Spare,
}

/// Which properties to return.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Select {
    /// None at all (names only).
    #[default]
    Nothing,
    /// Every visible one, in the order of display, then features (pools) and user properties.
    All,
    /// These, in this order; one that does not apply comes back as `Value::None`.
    These(Vec<String>),
}

/// Pools with properties, and vdev trees.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolGet {
    /// Empty: all pools. Ordered by name in the answer unless named.
    #[serde(default)]
    pub pools: Vec<String>,
    #[serde(default)]
    pub props: Select,
    /// Fill `Pool::tree` and the state facts.
    #[serde(default)]
    pub tree: bool,
    /// Fill `Pool::error_list`.
    #[serde(default)]
    pub error_list: bool,
    /// Fill the latency and request size histograms of the trees.
    #[serde(default)]
    pub histograms: bool,
}

/// Search for pools not imported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportScan {
    /// Directories or devices (`-d`), absolute; empty: the default places.
    #[serde(default)]
    pub places: Vec<String>,
    /// The default places in addition to those (`-s`).
    #[serde(default)]
    pub default_places: bool,
    /// Take the list from this cache file instead (`-c`).
    #[serde(default)]
    pub cache_file: Option<String>,
    /// Destroyed pools instead of the others (`-D`).
    #[serde(default)]
    pub destroyed: bool,
}

/// `zpool add`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolAdd {
    pub pool: String,
    pub vdevs: Vec<VdevSpec>,
    /// log2 of the sector size; none: the pool's property, or what the devices say.
    #[serde(default)]
    pub ashift: Option<u32>,
    /// Ignore that devices seem to be in use, where that can be overridden.
    #[serde(default)]
    pub allow_in_use: bool,
    /// Accept a sector size that the pool's vdevs do not have.
    #[serde(default)]
    pub allow_ashift_mismatch: bool,
    /// Check everything, change nothing.
    #[serde(default)]
    pub dry_run: bool,
    #[serde(default)]
    pub command: String,
}

/// `zpool attach` and `zpool replace`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceAttach {
    pub pool: String,
    pub device: String,
    /// Absolute path of the new device, or the name of a distributed spare; none, to replace: another one at the same path.
    #[serde(default)]
    pub new: Option<String>,
    /// The old one goes when the new one is complete.
    #[serde(default)]
    pub replace: bool,
    /// It is filled in order of place, without a look at checksums.
    #[serde(default)]
    pub sequential: bool,
    #[serde(default)]
    pub ashift: Option<u32>,
    #[serde(default)]
    pub force: bool,
    #[serde(default)]
    pub command: String,
}

/// What is to be done with the scrub of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScrubAction {
    /// Begin one, or have a paused one go on.
    #[default]
    Start,
    Pause,
    Stop,
    /// Only the blocks on record as damaged: begin, or go on.
    Errors,
}

/// `zpool scrub`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolScrub {
    pub pool: String,
    pub action: ScrubAction,
    /// Only blocks born behind the last txg that was scrubbed (`-C`).
    pub since_last: bool,
    /// Only blocks that were written between these moments, in seconds since 1970 (`-S`, `-E`).
    pub start: Option<u64>,
    pub end: Option<u64>,
    pub command: String,
}

/// `zpool clear`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolClear {
    pub pool: String,
    /// Only the errors of this device, and those below it; none: all, and the list of damaged files.
    #[serde(default)]
    pub device: Option<String>,
    #[serde(default)]
    pub command: String,
}

/// `zpool import POOL`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolImport {
    pub search: ImportScan,
    /// Name, or guid in decimal.
    pub pool: String,
    #[serde(default)]
    pub new_name: Option<String>,
    /// `new_name` is for this import only (`-t`).
    #[serde(default)]
    pub temporary: bool,
    /// Pool properties (`-o prop=val`), `readonly` included.
    #[serde(default)]
    pub props: Props,
    /// Mount options for every dataset (`-o ro,noatime`).
    #[serde(default)]
    pub mount_options: Vec<String>,
    #[serde(default)]
    pub altroot: Option<String>,
    /// Although another system may use it (`-f`).
    #[serde(default)]
    pub force: bool,
    /// Go back some transaction groups if need be (`-F`).
    #[serde(default)]
    pub rewind: bool,
    /// With `rewind`: only tell.
    #[serde(default)]
    pub dry_run: bool,
    /// With `rewind`: as far as need be (`-X`).
    #[serde(default)]
    pub extreme: bool,
    /// Go back to the checkpoint (`--rewind-to-checkpoint`).
    #[serde(default)]
    pub checkpoint: bool,
    /// Rewind to exactly this transaction group (`-T`).
    #[serde(default)]
    pub txg: Option<u64>,
    /// Without its log device (`-m`).
    #[serde(default)]
    pub missing_log: bool,
    /// Do not mount anything (`-N`).
    #[serde(default)]
    pub no_mount: bool,
    #[serde(default)]
    pub command: String,
}

/// Who occupies space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Whose {
    User,
    Group,
    Project,
}

/// Permissions to be given, or to be taken back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delegation {
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
    User(u64),
    Group(u64),
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
    Filesystem,
    Volume,
    Snapshot,
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
    pub props: Select,
}

/// `zfs create`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetCreate {
    pub name: String,
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
    #[serde(default)]
    pub command: String,
}

/// `zfs rollback`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rollback {
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
    #[serde(default)]
    pub command: String,
}

/// `zfs clone`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetClone {
    pub snapshot: String,
    pub name: String,
    #[serde(default)]
    pub props: Props,
    /// Make missing parents; existing is fine (`-p`).
    #[serde(default)]
    pub parents: bool,
    /// Leave it unmounted (`-u`).
    #[serde(default)]
    pub no_mount: bool,
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
    #[serde(default)]
    pub command: String,
}

/// `zfs hold` and `zfs release`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    pub tag: String,
    pub snapshots: Vec<String>,
    /// The snapshots of those names of all descendants too (`-r`).
    #[serde(default)]
    pub recursive: bool,
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
    #[serde(default)]
    pub command: String,
}
