//! The options of a session that FUSE_INIT negotiates: asked for, and granted by the kernel.

use crate::abi::init;

/// When directory reads bring attributes along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReaddirPlus {
    /// Never.
    Never,
    /// When the kernel sees that lookups follow.
    Auto,
    /// Always.
    Always,
}

/// How requests and answers travel between kernel and daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// What has proved to be better on the whole (docs/costs.md): the device.
    #[default]
    Auto,
    /// Read from and written to `/dev/fuse`.
    Device,
    /// Over io_uring (Linux 6.14), where the kernel lets it; the device otherwise.
    Uring,
}

/// Options of a session. [`Config::default`] is what the daemon uses; a kernel that lacks
/// something simply does without, see [`Negotiated`].
#[derive(Clone, Debug)]
pub struct Config {
    /// Most threads that serve requests. They are started as they are needed and end when they are
    /// not: an idle mount has one. Since operations are synchronous this is also how many may wait
    /// for the disk at once. See also [`crate::about_to_block`].
    pub threads: usize,
    /// How requests travel.
    pub transport: Transport,
    /// Largest write (and read) in bytes; cut to what `/proc/sys/fs/fuse/max_pages_limit` allows.
    pub max_write: u32,
    /// Most read-ahead in bytes.
    pub max_readahead: u32,
    /// Most read-ahead and write-back requests under way at once.
    pub max_background: u16,
    /// From how many of them on the kernel holds back.
    pub congestion_threshold: u16,
    /// Writes stay in the page cache and are sent later, merged. Durability is by fsync either way.
    pub writeback_cache: bool,
    /// The file system stores `system.posix_acl_*` and the kernel enforces them.
    pub posix_acl: bool,
    /// Lookups and listings of one directory run in parallel.
    pub parallel_dirops: bool,
    /// When directory reads bring attributes along.
    pub readdirplus: ReaddirPlus,
    /// The kernel caches targets of symbolic links.
    pub cache_symlinks: bool,
    /// The file system clears suid and sgid when requests say so; without it the kernel asks for
    /// `security.capability` before writes.
    pub killpriv_v2: bool,
    /// `lookup` of "." and ".." works (NFS, open_by_handle_at).
    pub export: bool,
    /// `open` answers ENOSYS and nobody misses it: after the first there is no OPEN and RELEASE any
    /// more, handles are 0, and the page cache is kept from open to open. A node is in use until it
    /// is forgotten. (O_TRUNC then arrives as SETATTR.)
    pub zero_message_open: bool,
    /// `opendir` answers ENOSYS and nobody misses it: no OPENDIR and RELEASEDIR, and the kernel
    /// caches the contents of directories until they change through the mount or
    /// [`crate::Notifier::inval_inode`] says so.
    pub zero_message_opendir: bool,
    /// Granularity of times in nanoseconds.
    pub time_gran: u32,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            threads: 16,
            transport: Transport::Auto,
            max_write: 1 << 20,
            max_readahead: 2 << 20,
            max_background: 64,
            congestion_threshold: 48,
            writeback_cache: true,
            posix_acl: true,
            parallel_dirops: true,
            readdirplus: ReaddirPlus::Auto,
            cache_symlinks: true,
            killpriv_v2: true,
            export: true,
            zero_message_open: false,
            zero_message_opendir: false,
            time_gran: 1,
        }
    }
}

/// What kernel and daemon agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Negotiated {
    /// Minor version of the interface in use.
    pub minor: u32,
    /// Flags in use, [`crate::abi::init`].
    pub flags: u64,
    /// Flags the kernel offered.
    pub offered: u64,
    /// Largest write in bytes.
    pub max_write: u32,
    /// Most read-ahead in bytes.
    pub max_readahead: u32,
    /// Most pages of one request.
    pub max_pages: u16,
}

impl Negotiated {
    /// Whether a flag of [`crate::abi::init`] is in use.
    pub fn has(&self, flag: u64) -> bool {
        self.flags & flag == flag
    }

    /// Names of the flags in use, for logs.
    pub fn names(&self) -> Vec<&'static str> {
        init::NAMES
            .iter()
            .filter(|(f, _)| self.flags & f != 0)
            .map(|(_, n)| *n)
            .collect()
    }
}
