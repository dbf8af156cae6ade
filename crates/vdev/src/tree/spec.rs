//! The specification of a new top-level vdev: devices, layout, use.

/// One device of a new vdev.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevSpec {
    /// Path of the device or image file.
    pub path: String,
    /// A regular file rather than a block device.
    pub is_file: bool,
    /// ZFS partitioned the disk; `path` is the data partition.
    pub whole_disk: bool,
}

impl DevSpec {
    /// An image file.
    pub fn file(path: impl Into<String>) -> DevSpec {
        DevSpec {
            path: path.into(),
            is_file: true,
            whole_disk: false,
        }
    }

    /// A block device; `whole_disk` as in the field.
    pub fn disk(path: impl Into<String>, whole_disk: bool) -> DevSpec {
        DevSpec {
            path: path.into(),
            is_file: false,
            whole_disk,
        }
    }
}

/// How the devices of a new top-level vdev work together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupKind {
    /// Exactly one device.
    Single,
    /// Every device holds the same bytes.
    Mirror,
    /// RAID-Z.
    Raidz {
        /// Columns of parity, 1 to 3.
        nparity: usize,
    },
    /// Distributed RAID; `ndata` data columns per group.
    Draid {
        /// Columns of parity, 1 to 3.
        nparity: usize,
        /// Data columns of a group.
        ndata: u64,
        /// Number of distributed spares.
        nspares: u64,
    },
}

/// Restriction of a top-level vdev, other than a log device, to some kinds of blocks (pool format §16.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bias {
    /// Metadata and small blocks.
    Special,
    /// Deduplication tables.
    Dedup,
}

/// A new top-level vdev.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopSpec {
    /// How the devices work together.
    pub kind: GroupKind,
    /// The devices, in the order of the children.
    pub devices: Vec<DevSpec>,
    /// For intent logs only.
    pub is_log: bool,
    /// For metadata or dedup tables only; `None` for everything.
    pub bias: Option<Bias>,
    /// log2 of the sector size; `None` takes what the devices say.
    pub ashift: Option<u32>,
}

impl TopSpec {
    /// A vdev for everything, with the ashift of its devices.
    pub fn new(kind: GroupKind, devices: Vec<DevSpec>) -> TopSpec {
        TopSpec {
            kind,
            devices,
            is_log: false,
            bias: None,
            ashift: None,
        }
    }
}
