//! How long the kernel may cache entries, attributes and pages.

use std::time::Duration;

pub(crate) const O_DIRECT: i32 = 0o40000;

/// Restrictions by the administrator. Without them the kernel keeps everything as long as it likes,
/// because it is told about changes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Caching {
    /// Longest time for attributes and for names; none: no limit.
    pub attributes: Option<Duration>,
    /// See `attributes`.
    pub names: Option<Duration>,
    /// File data are not cached at all.
    pub direct: bool,
    /// Nothing is read ahead, by the kernel or by the pools.
    pub no_ahead: bool,
}

impl Caching {
    pub(crate) fn attributes(&self, ttl: Duration) -> Duration {
        self.attributes.map_or(ttl, |most| ttl.min(most))
    }

    pub(crate) fn names(&self, ttl: Duration) -> Duration {
        self.names.map_or(ttl, |most| ttl.min(most))
    }

    /// What the kernel is told when it opens a file with these flags.
    pub(crate) fn opened(&self, opened: &vfs::Opened, open_flags: i32) -> fuse::Opened {
        let pages = self.pages(opened.uncached, opened.keep);
        fuse::Opened {
            fh: opened.handle,
            flags: pages | Caching::side_by_side(pages, open_flags),
        }
    }

    /// What the kernel is told when it opens a directory.
    pub(crate) fn opened_dir(&self, opened: &vfs::Opened) -> fuse::Opened {
        fuse::Opened {
            fh: opened.handle,
            flags: match opened.listed {
                true => 0,
                false => self.listings(opened.keep),
            },
        }
    }

    /// What the kernel is told when it opens a directory: that it may remember the listing, and if
    /// `keep` use the one it has. It forgets it by itself when the directory changes.
    fn listings(&self, keep: bool) -> u32 {
        use fuse::abi::fopen::{CACHE_DIR, KEEP_CACHE};
        match (self.names, keep) {
            (Some(_), _) => 0,
            (None, true) => CACHE_DIR | KEEP_CACHE,
            (None, false) => CACHE_DIR,
        }
    }

    /// What the kernel is told when it opens a file: whether it may use the pages it has (`keep`), or
    /// none at all (`direct`).
    fn pages(&self, direct: bool, keep: bool) -> u32 {
        use fuse::abi::fopen::{DIRECT_IO, KEEP_CACHE};
        match (self.direct || direct, keep) {
            (true, _) => DIRECT_IO,
            (false, true) => KEEP_CACHE,
            (false, false) => 0,
        }
    }

    /// What the kernel is told beside when it opens a file with O_DIRECT that it caches nothing of: writes to
    /// different places of it need not wait for each other. Who opens a file without that flag counts on large
    /// writes being whole, and the kernel sends them in parts.
    fn side_by_side(pages: u32, open_flags: i32) -> u32 {
        use fuse::abi::fopen::{DIRECT_IO, PARALLEL_DIRECT_WRITES};
        match pages & DIRECT_IO != 0 && open_flags & O_DIRECT != 0 {
            true => PARALLEL_DIRECT_WRITES,
            false => 0,
        }
    }
}
