//! Requests to the daemon.
//!
//! Requests that change something carry `command`: the command line that the pool's history records on success
//! (`export` and `destroy` record it before they act). It is empty for all but one of several requests that one command
//! line makes.

mod datasets;
mod tables;
mod vdevs;

pub use datasets::*;
pub use tables::*;
pub use vdevs::*;

use crate::Secret;
use serde::{Deserialize, Serialize};

/// Property assignments in the order given, not validated: `("atime", "off")`.
pub type Props = Vec<(String, String)>;

/// What file systems are shared over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protocol {
    /// Property `sharenfs`.
    Nfs,
    /// Property `sharesmb`.
    Smb,
}

/// A request of a command to the daemon.
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
        /// Name of the pool.
        pool: String,
        /// Unmount by force.
        #[serde(default)]
        force: bool,
        /// Command line, for the history of the pool.
        #[serde(default)]
        command: String,
    },
    /// Answered by `Done`, or by `DoneBut` if it was let go while its devices did not answer.
    PoolExport {
        /// Name of the pool.
        pool: String,
        /// Unmount by force; leave devices that do not answer.
        #[serde(default)]
        force: bool,
        /// Labels and cache file go on to say that the pool is in use here (`-F`).
        #[serde(default)]
        keep_active: bool,
        /// Command line, for the history of the pool.
        #[serde(default)]
        command: String,
    },
    /// Answered by `Pools`: info, properties and, where asked for, the vdev tree of pools.
    PoolGet(PoolGet),
    /// Answered by `Done`.
    PoolSet {
        /// Name of the pool.
        pool: String,
        /// Properties and their new values.
        props: Props,
        /// Command line, for the history of the pool.
        #[serde(default)]
        command: String,
    },
    /// Answered by `Importable`: what could be imported.
    ImportScan(ImportScan),
    /// Answered by `Imported`.
    PoolImport(PoolImport),
    /// Answered by `History`, in chunks.
    PoolHistory {
        /// Name of the pool.
        pool: String,
        /// Internal records too.
        #[serde(default)]
        internal: bool,
    },
    /// Answered by `Upgraded`. Enables features, or raises the legacy version.
    PoolUpgrade {
        /// Name of the pool.
        pool: String,
        /// Legacy version to go to; none: feature flags with all supported features.
        #[serde(default)]
        version: Option<u64>,
        /// Command line, for the history of the pool.
        #[serde(default)]
        command: String,
    },
    /// Answered by `Features`: what this implementation knows, for `zpool upgrade -v`.
    SupportedFeatures {},
    /// Answered by `Done`. `path` is absolute.
    LabelClear {
        /// The device or file.
        path: String,
        /// Although the label is that of a pool in use.
        #[serde(default)]
        force: bool,
    },
    /// Answered by `Done` when a transaction group has reached the disks.
    PoolSync {
        /// Name of the pool.
        pool: String,
        /// A new uberblock is written even if nothing changed (`-f`).
        #[serde(default)]
        force: bool,
    },
    /// Answered by `Done`.
    PoolClear(PoolClear),
    /// Answered by `Done`. Vdevs, spares and cache devices come to a pool, all or none.
    PoolAdd(PoolAdd),
    /// Answered by `Done`: a spare, a cache device or a log has left the pool, or the data of another top-level vdev are being moved
    /// to others. With `estimate` by `Bytes`.
    DeviceRemove {
        /// Name of the pool.
        pool: String,
        /// Path, name or guid of the device.
        device: String,
        /// Only the memory that the mapping of the vdev would take is asked for.
        #[serde(default)]
        estimate: bool,
        /// Command line, for the history of the pool.
        #[serde(default)]
        command: String,
    },
    /// Answered by `Done`. The removal of a top-level vdev is given up.
    RemovalCancel {
        /// Name of the pool.
        pool: String,
        /// Command line, for the history of the pool.
        #[serde(default)]
        command: String,
    },
    /// Answered by `Done`, or by `DoneBut` with a warning if the device is not healthy.
    DeviceOnline {
        /// Name of the pool.
        pool: String,
        /// Path, name or guid of the device.
        device: String,
        /// Use all of its size (`-e`).
        #[serde(default)]
        expand: bool,
        /// Command line, for the history of the pool.
        #[serde(default)]
        command: String,
    },
    /// Answered by `Done`.
    DeviceOffline {
        /// Name of the pool.
        pool: String,
        /// Path, name or guid of the device.
        device: String,
        /// Until the next import only (`-t`).
        #[serde(default)]
        temporary: bool,
        /// As a fault (`-f`).
        #[serde(default)]
        fault: bool,
        /// Command line, for the history of the pool.
        #[serde(default)]
        command: String,
    },
    /// Answered by `Done` when the resilver has begun.
    DeviceAttach(DeviceAttach),
    /// Answered by `Done`.
    DeviceDetach {
        /// Name of the pool.
        pool: String,
        /// Path, name or guid of the device.
        device: String,
        /// Command line, for the history of the pool.
        #[serde(default)]
        command: String,
    },
    /// Answered by `Done`. Opens all devices of a pool again.
    PoolReopen {
        /// Name of the pool.
        pool: String,
        /// Command line, for the history of the pool.
        #[serde(default)]
        command: String,
    },
    /// Answered by `Done` when it is on disk.
    PoolScrub(PoolScrub),
    /// Answered by `Batch`: devices by the names they were asked for, or paths. Trim or initialize is begun, suspended or stopped.
    PoolWear(PoolWear),
    /// Answered by `Done`. A resilver under way begins anew, or one begins if a device lacks something.
    PoolResilver {
        /// Name of the pool.
        pool: String,
        /// Command line, for the history of the pool.
        #[serde(default)]
        command: String,
    },
    /// Answered by `Done` when it is on disk: the state of a pool is kept to go back to, or no longer.
    PoolCheckpoint {
        /// Name of the pool.
        pool: String,
        /// Let go of the checkpoint (`-d`); its space is freed in the background.
        #[serde(default)]
        discard: bool,
        /// Command line, for the history of the pool.
        #[serde(default)]
        command: String,
    },
    /// Answered by `VdevProps`: properties of vdevs.
    VdevGet(VdevGet),
    /// Answered by `Done`: a property of a vdev is set, or with an empty value taken away.
    VdevSet(VdevSet),
    /// Answered by `Split`. One side of every mirror has become a pool of its own, which is exported; or would.
    PoolSplit(PoolSplit),
    /// Answered by `Done` when it is on disk: a pool gets another guid.
    PoolReguid {
        /// Name of the pool.
        pool: String,
        /// The guid; none: a random one.
        #[serde(default)]
        guid: Option<u64>,
        /// Command line, for the history of the pool.
        #[serde(default)]
        command: String,
    },
    /// Answered by `Done`: tables of a pool are read into the cache.
    PoolPrefetch {
        /// Name of the pool.
        pool: String,
        /// Which tables.
        table: SharedTable,
        /// Command line, for the history of the pool.
        #[serde(default)]
        command: String,
    },
    /// Answered by `Done` when it is on disk: unique entries leave the dedup tables, the oldest first.
    PoolPrune {
        /// Name of the pool.
        pool: String,
        /// Which entries.
        what: Prune,
        /// Command line, for the history of the pool.
        #[serde(default)]
        command: String,
    },
    /// Answered by `Events`: those behind number `after`, of one pool or all.
    Events {
        /// Name of the pool; none: all pools.
        #[serde(default)]
        pool: Option<String>,
        /// Number of an event; 0: from the oldest on.
        #[serde(default)]
        after: u64,
    },
    /// Answered by `DoneBut`: forgets all events, and says how many.
    EventsClear {},
    /// Answered by `Activity`: what `zpool wait` waits for.
    PoolActivity {
        /// Name of the pool.
        pool: String,
        /// Of trim and initialize, only those of these devices count; empty: of all.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        devices: Vec<String>,
    },

    /// Answered by `Datasets`, in chunks.
    DatasetGet(DatasetGet),
    /// Answered by `Created`.
    DatasetCreate(DatasetCreate),
    /// Answered by `Destroyed`.
    DatasetDestroy(DatasetDestroy),
    /// Answered by `Done`. All properties of one dataset are set together or not at all.
    DatasetSet {
        /// Full name.
        dataset: String,
        /// Properties and their new values.
        props: Props,
        /// Do not mount, unmount or share on account of the change (`-u`).
        #[serde(default)]
        no_remount: bool,
        /// Command line, for the history of the pool.
        #[serde(default)]
        command: String,
    },
    /// Answered by `Done`.
    DatasetInherit {
        /// Full name.
        dataset: String,
        /// Name of the property.
        property: String,
        /// Descendants too.
        #[serde(default)]
        recursive: bool,
        /// Back to the received value (`-S`).
        #[serde(default)]
        received: bool,
        /// Command line, for the history of the pool.
        #[serde(default)]
        command: String,
    },
    /// Answered by `Done`.
    DatasetRename {
        /// Full name, also of a snapshot or bookmark.
        from: String,
        /// New full name.
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
        /// Command line, for the history of the pool.
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
        /// Full name of the clone.
        dataset: String,
        /// Command line, for the history of the pool.
        #[serde(default)]
        command: String,
    },
    /// Answered by `Done`.
    BookmarkCreate {
        /// A snapshot, or a bookmark of the same dataset.
        source: String,
        /// `pool/a#name`
        name: String,
        /// Command line, for the history of the pool.
        #[serde(default)]
        command: String,
    },
    /// Answered by `Received`, after `Stream`: the daemon reads what the caller writes there.
    Receive(Receive),
    /// Answered by `Done`: what a broken receive kept is thrown away.
    ReceiveAbort {
        /// Full name of the target.
        dataset: String,
        /// Command line, for the history of the pool.
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
    /// written, `done` its bytes so far. `Stream` comes first: the daemon writes there.
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
        /// Full name of the encryption root.
        dataset: String,
        /// What the user gave.
        key: Secret,
        /// Only see whether it is the right one.
        #[serde(default)]
        check_only: bool,
    },
    /// Answered by `Done`. Forgets the key of an encryption root nothing of which is in use.
    KeyUnload {
        /// Full name of the encryption root.
        dataset: String,
    },
    /// Answered by `Done`. The dataset gets a key of its own, or (`inherit`) that of its parent.
    KeyChange {
        /// Full name.
        dataset: String,
        /// Take the key of the parent.
        #[serde(default)]
        inherit: bool,
        /// What the user gave.
        #[serde(default)]
        key: Secret,
        /// `keyformat`, `keylocation`, `pbkdf2iters`.
        #[serde(default)]
        props: Props,
        /// Command line, for the history of the pool.
        #[serde(default)]
        command: String,
    },
    /// Answered by `Mounts`: every mounted file system, ordered by name.
    MountList {},
    /// Answered by `Done`.
    Mount {
        /// Full name.
        dataset: String,
        /// Temporary mount options, split at commas.
        #[serde(default)]
        options: Vec<String>,
        /// Mount over a directory that is not empty.
        #[serde(default)]
        overlay: bool,
        /// Although the dataset is redacted.
        #[serde(default)]
        force: bool,
        /// Where, absolute; none: where its properties say. Snapshots need one.
        #[serde(default)]
        directory: Option<String>,
    },
    /// Answered by `Batch`, with `Progress` on the way. Mounts everything eligible, or `root` and
    /// what is below it.
    MountAll {
        /// Name of a file system; none: all.
        #[serde(default)]
        root: Option<String>,
        /// Temporary mount options.
        #[serde(default)]
        options: Vec<String>,
        /// Mount over directories that are not empty.
        #[serde(default)]
        overlay: bool,
        /// Although datasets are redacted.
        #[serde(default)]
        force: bool,
    },
    /// Answered by `Done`, or by `DoneBut` if written data of open files were lost by force. `target`
    /// is a dataset or the path of a mount point.
    Unmount {
        /// See above.
        target: String,
        /// Although files are open.
        #[serde(default)]
        force: bool,
    },
    /// Answered by `Done` when all bytes of a volume, or of a snapshot of one, are in the stream that `Stream` brings, in
    /// pieces: bytes of the hole before it (64 bits, little-endian), its length (64 bits), its bytes. The last piece has
    /// no bytes.
    VolumeRead {
        /// Full name of a volume, or of a snapshot of one.
        volume: String,
        /// Only this part, bytes.
        #[serde(default)]
        offset: u64,
        /// Bytes; none: to the end.
        #[serde(default)]
        length: Option<u64>,
    },
    /// Answered by `Done` when everything is in the stream that `Stream` brings: what is wanted of a file or directory, read with
    /// the rights of the caller.
    FileRead {
        /// Full name of a file system, or of a snapshot of one.
        dataset: String,
        /// From its root.
        path: crate::Bytes,
        /// What is wanted.
        wanted: FileWanted,
    },
    /// Answered by `Holds`.
    Holds {
        /// Full names.
        snapshots: Vec<String>,
        /// The snapshots of that name of everything below too.
        #[serde(default)]
        recursive: bool,
    },
    /// Answered by `Permissions`: what is delegated at a dataset and above it.
    Permissions {
        /// Full name.
        dataset: String,
    },
    /// Answered by `Done`: all were given, or none.
    PermissionsGive {
        /// Full name.
        dataset: String,
        /// What is given, and to whom.
        list: Vec<Delegation>,
        /// Command line, for the history of the pool.
        #[serde(default)]
        command: String,
    },
    /// Answered by `Done`: all were taken back, or none. What is not there is left out.
    PermissionsTake {
        /// Full name.
        dataset: String,
        /// What is taken back, and from whom.
        list: Vec<Delegation>,
        /// From all descendants too (`-r`).
        #[serde(default)]
        recursive: bool,
        /// Command line, for the history of the pool.
        #[serde(default)]
        command: String,
    },
    /// Answered by `Held`: what holds the space of a file system or volume, and of those below.
    SpaceHeld {
        /// Full name.
        dataset: String,
        /// All descendants, too.
        #[serde(default)]
        recursive: bool,
    },
    /// Answered by `Activity`: what `zfs wait` waits for.
    DatasetActivity {
        /// Full name.
        dataset: String,
    },
    /// Answered by `Space`: what users, groups or projects occupy and may.
    SpaceOf {
        /// Full name.
        dataset: String,
        /// Which kinds of ids.
        who: Vec<Whose>,
    },
    /// Answered by `Batch`. All mounts with a ZFS mount point, children first.
    UnmountAll {
        /// Although files are open.
        #[serde(default)]
        force: bool,
    },

    /// Answered by `Done`. `target` is a file system or the path of a mount point: it is shared as its property `sharenfs` says.
    Share {
        /// See above.
        target: String,
    },
    /// Answered by `Done`. It is not shared any more, until it is mounted again.
    Unshare {
        /// As for `Share`.
        target: String,
    },
    /// Answered by `Batch`: everything that is mounted is shared, or not shared any more.
    ShareAll {
        /// Shared.
        share: bool,
        /// Over this protocol; none: over all.
        #[serde(default)]
        only: Option<Protocol>,
    },

    /// Answered by `Done`. Devices have these faults from now on, and no others. Only daemons built
    /// for tests can do this.
    SetFaults {
        /// All faults from now on.
        faults: Vec<Fault>,
    },
}

/// A fault that a device is made to have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Path of the device as the pool has it.
    pub device: String,
    /// Which transfers.
    pub on: Transfer,
    /// What happens to them.
    pub does: Trouble,
    /// Only one of so many transfers, counted by the fault; 0 and 1: all.
    #[serde(default)]
    pub one_of: u64,
}

/// What a fault concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transfer {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Flushes.
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
    /// Name of the pool.
    pub name: String,
    /// The layout: top-level vdevs of all classes, spares and cache devices.
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
    /// Directory that is put before all mount points (`-R`).
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
    /// Command line, for the history of the pool.
    #[serde(default)]
    pub command: String,
}

/// One vdev of a layout to be made: a device, or a group with children.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VdevSpec {
    /// What it is.
    pub kind: VdevKind,
    /// Allocation class or role.
    #[serde(default)]
    pub class: VdevClass,
    /// Absolute path; devices only.
    #[serde(default)]
    pub path: Option<String>,
    /// The vdevs below.
    #[serde(default)]
    pub children: Vec<VdevSpec>,
}

/// What sort of vdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VdevKind {
    /// The root of the tree.
    Root,
    /// A block device.
    Disk,
    /// An image file.
    File,
    /// A mirror.
    Mirror,
    /// RAID-Z.
    Raidz {
        /// Columns of parity, 1 to 3.
        parity: u8,
    },
    /// Distributed RAID.
    Draid {
        /// Columns of parity, 1 to 3.
        parity: u8,
        /// Data columns of a group.
        data: u8,
        /// Number of devices.
        children: u8,
        /// Number of distributed spares.
        spares: u8,
    },
    /// A device and the one that replaces it.
    Replacing,
    /// A device and the spare that stands in for it.
    Spare,
    /// Distributed spare: `draid2-0-0`.
    Dspare {
        /// Columns of parity of its dRAID.
        parity: u8,
        /// Id of its dRAID.
        vdev: u32,
        /// Its number there, from 0.
        spare: u32,
    },
    /// A removed vdev.
    Indirect,
    /// The slot of a removed log device.
    Hole,
    /// A vdev no label was found for.
    Missing,
}

/// Allocation class or role of a top-level vdev.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VdevClass {
    /// For everything.
    #[default]
    Normal,
    /// For intent logs.
    Log,
    /// For metadata and small blocks.
    Special,
    /// For dedup tables.
    Dedup,
    /// A cache device.
    Cache,
    /// A hot spare.
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
    /// The properties to return.
    #[serde(default)]
    pub props: Select,
    /// Fill `Pool::tree` and the state facts.
    #[serde(default)]
    pub tree: bool,
    /// Top-level vdevs that were removed are in the trees, too.
    #[serde(default)]
    pub removed: bool,
    /// Fill `Pool::error_list`.
    #[serde(default)]
    pub error_list: bool,
    /// Fill the latency and request size histograms of the trees.
    #[serde(default)]
    pub histograms: bool,
    /// Fill `Pool::dedup`.
    #[serde(default)]
    pub dedup: bool,
    /// With `dedup`: how much of the tables is cached, too.
    #[serde(default)]
    pub dedup_cached: bool,
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
    /// Name of the pool.
    pub pool: String,
    /// The new vdevs.
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
    /// Command line, for the history of the pool.
    #[serde(default)]
    pub command: String,
}

impl Request {
    /// Whether it lasts as long as its caller likes, or waits for somebody else. Of such requests a user may have as many as
    /// connections.
    pub fn may_last(&self) -> bool {
        matches!(
            self,
            Request::Send(_)
                | Request::Receive(_)
                | Request::FileRead { .. }
                | Request::Diff { .. }
                | Request::PoolActivity { .. }
                | Request::DatasetActivity { .. }
                | Request::KeyLoad { .. }
                | Request::KeyChange { .. }
        )
    }
}

/// What is wanted of a file or directory ([`Request::FileRead`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileWanted {
    /// The names in a directory, a line each.
    Names,
    /// The same with mode, links, owner, group, size and seconds of the last change.
    Details,
    /// The bytes of a file.
    Content,
    /// An archive, as tar(1) reads it.
    Archive,
}

/// What is to be done with the scrub of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScrubAction {
    /// Begin one, or have a paused one go on.
    #[default]
    Start,
    /// Pause it.
    Pause,
    /// Stop it.
    Stop,
    /// Only the blocks on record as damaged: begin, or go on.
    Errors,
}

/// `zpool scrub`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolScrub {
    /// Name of the pool.
    pub pool: String,
    /// What to do.
    pub action: ScrubAction,
    /// Only blocks born behind the last txg that was scrubbed (`-C`).
    pub since_last: bool,
    /// Only blocks that were written between these moments, in seconds since 1970 (`-S`, `-E`).
    pub start: Option<u64>,
    /// See `start`.
    pub end: Option<u64>,
    /// Command line, for the history of the pool.
    pub command: String,
}

/// What is done to the free space of devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WearKind {
    /// The devices are told that it holds nothing of value.
    #[default]
    Trim,
    /// A pattern is written to it.
    Initialize,
}

/// What is to become of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WearAction {
    /// Begin, or go on where it was suspended.
    #[default]
    Start,
    /// Stop, and be able to go on.
    Suspend,
    /// Stop for good.
    Cancel,
    /// Forget that it was done.
    Forget,
}

/// `zpool trim` and `zpool initialize`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolWear {
    /// Name of the pool.
    pub pool: String,
    /// Trim or initialize.
    pub what: WearKind,
    /// What to do.
    pub action: WearAction,
    /// Paths, names or guids of devices; none: all of the pool.
    pub devices: Vec<String>,
    /// Bytes per second and device; 0: no limit.
    pub rate: u64,
    /// The devices are to erase (`-d`).
    pub secure: bool,
    /// Command line, for the history of the pool.
    pub command: String,
}

/// `zpool clear`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolClear {
    /// Name of the pool.
    pub pool: String,
    /// Only the errors of this device, and those below it; none: all, and the list of damaged files.
    #[serde(default)]
    pub device: Option<String>,
    /// Command line, for the history of the pool.
    #[serde(default)]
    pub command: String,
}

/// `zpool import POOL`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolImport {
    /// Where to look for devices.
    pub search: ImportScan,
    /// Name, or guid in decimal.
    pub pool: String,
    /// Name it gets.
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
    /// Directory that is put before all mount points (`-R`).
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
    /// Command line, for the history of the pool.
    #[serde(default)]
    pub command: String,
}
