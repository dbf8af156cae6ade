//! What new vdevs shall look like.

/// One device of a new vdev.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevSpec {
    pub path: String,
    /// A regular file rather than a block device.
    pub is_file: bool,
    /// ZFS partitioned the disk; `path` is the data partition.
    pub whole_disk: bool,
}

impl DevSpec {
    pub fn file(path: impl Into<String>) -> DevSpec {
        DevSpec {
            path: path.into(),
            is_file: true,
            whole_disk: false,
        }
    }

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
    Mirror,
    Raidz {
        nparity: usize,
    },
    /// Distributed RAID; `ndata` data columns per group.
    Draid {
        nparity: usize,
        ndata: u64,
        nspares: u64,
    },
}

/// What a top-level vdev that is no log is kept for, if not for everything.
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
    pub kind: GroupKind,
    pub devices: Vec<DevSpec>,
    pub is_log: bool,
    pub bias: Option<Bias>,
    /// log2 of the sector size; `None` takes what the devices say.
    pub ashift: Option<u32>,
}

impl TopSpec {
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
