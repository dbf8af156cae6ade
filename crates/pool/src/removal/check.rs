//! What stands against the removal of a top-level vdev, and what its mapping would take.

use crate::regions::{MOST, SPAN};
use crate::Pool;
use base::{Kind, Result};
use disk::feature::guid;
use disk::scan::ScanState;
use space::Class;
use vdev::indirect::ENTRY;
use vdev::{Vdev, VdevKind};

/// Why a top-level vdev is not removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalRefusal {
    /// The pool has no feature `device_removal`, or it is no vdev that holds blocks.
    Unsupported,
    /// A checkpoint exists.
    Checkpoint,
    /// A checkpoint is being discarded: what it kept is still in maps of the vdevs.
    Discarding,
    /// What is on it does not fit elsewhere.
    NoSpace,
    /// Another removal is under way, or the vdev lacks data.
    Busy,
    /// It cannot be read.
    Unreadable,
    /// Sector sizes differ, or there is a vdev that mappings cannot lead to.
    Layout,
}

impl RemovalRefusal {
    /// The kind of the error.
    pub fn kind(self) -> Kind {
        match self {
            RemovalRefusal::Unsupported => Kind::Unsupported,
            RemovalRefusal::Checkpoint => Kind::Exists,
            RemovalRefusal::Discarding => Kind::Busy,
            RemovalRefusal::NoSpace => Kind::NoSpace,
            RemovalRefusal::Busy => Kind::Busy,
            RemovalRefusal::Unreadable => Kind::Io,
            RemovalRefusal::Layout => Kind::Invalid,
        }
    }
}

impl std::fmt::Display for RemovalRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            RemovalRefusal::Unsupported => "operation not supported on this type of pool",
            RemovalRefusal::Checkpoint => "checkpoint exists",
            RemovalRefusal::Discarding => "currently discarding checkpoint",
            RemovalRefusal::NoSpace => "out of space",
            RemovalRefusal::Busy => "Pool busy; removal may already be in progress",
            RemovalRefusal::Unreadable => "I/O error",
            RemovalRefusal::Layout => {
                "invalid config; all top-level vdevs must have the same sector size and not be raidz."
            }
        })
    }
}

impl Pool {
    /// What stands against removing top-level vdev `id`, as OpenZFS checks it and in its order.
    ///
    /// # Errors
    /// There is no such vdev; those of reading the MOS.
    pub fn removal_refusal(&self, id: u64) -> Result<Option<RemovalRefusal>> {
        let top = self.tree().top(id)?;
        if self.shares().checkpoint.txg().is_some() {
            return Ok(Some(RemovalRefusal::Checkpoint));
        }
        if self.shares().checkpoint.is_discarding() {
            return Ok(Some(RemovalRefusal::Discarding));
        }
        let enabled =
            self.config.vdev_zaps && self.config.features.is_enabled(guid::DEVICE_REMOVAL);
        if !enabled || !top.is_concrete() || top.is_log() {
            return Ok(Some(RemovalRefusal::Unsupported));
        }
        // What is copied is read from devices that lack nothing.
        let leaves = top.leaves();
        let lacks = !leaves
            .iter()
            .any(|l| l.state().usable() && l.dtl_is_empty());
        let running = self
            .removal()?
            .is_some_and(|r| r.state == ScanState::Scanning);
        Ok(if !self.has_room_without(&top)? {
            Some(RemovalRefusal::NoSpace)
        } else if running || lacks || self.is_expanding() {
            Some(RemovalRefusal::Busy)
        } else if !top.state().usable() {
            Some(RemovalRefusal::Unreadable)
        } else if !self.layout_allows_removal() {
            Some(RemovalRefusal::Layout)
        } else {
            None
        })
    }

    /// Whether the rest of the pool has room: for as much as a vdev of the normal class could hold, beside slop space. What other classes
    /// hold counts as used in the normal class already: there, or on the other vdevs of the class, must be room for what is in use.
    pub(crate) fn has_room_without(&self, top: &Vdev) -> Result<bool> {
        let stats = self.space().stats();
        let Some(own) = stats.vdevs.iter().find(|v| v.id == top.id()) else {
            return Ok(false);
        };
        if own.class != Class::Normal {
            let free = |class| {
                let c = self.space().class_stats(class);
                c.size.saturating_sub(c.allocated + c.deferred)
            };
            let here = own.size.saturating_sub(own.allocated + own.deferred);
            let elsewhere = free(Class::Normal) + free(own.class).saturating_sub(here);
            return Ok(elsewhere >= own.allocated);
        }
        let available = self.dsl().root()?.available().bytes;
        let size = own.size / base::SECTOR * own.deflate_ratio;
        // A vdev that is not allocated from is not part of what is available, and what is on it is used already.
        Ok(available >= size || !self.space().is_allocating(own.id))
    }

    /// One sector size, and nothing but single devices and mirrors of them.
    fn layout_allows_removal(&self) -> bool {
        let tops = self.tree().tops();
        let mut sizes = tops.iter().filter(|t| t.is_concrete() && !t.is_log());
        let first = sizes.next().map(|t| t.ashift());
        let plain = |t: &&std::sync::Arc<Vdev>| match t.kind() {
            VdevKind::Mirror => t.children().iter().all(|c| c.kind().is_leaf()),
            kind => kind.is_leaf(),
        };
        let concrete = tops.iter().filter(|t| t.is_concrete());
        sizes.all(|t| Some(t.ashift()) == first)
            && concrete.filter(|t| !t.is_log()).all(|t| plain(&t))
    }

    /// Bytes that the mapping would take in memory and on disk if top-level vdev `id` were removed now, as OpenZFS estimates it:
    /// an entry for each free segment too long to be copied along, and one for each 16 MiB copied.
    ///
    /// # Errors
    /// There is no such vdev.
    pub fn removal_estimate(&self, id: u64) -> Result<u64> {
        let top = self.tree().top(id)?;
        if let Some(map) = top.indirect() {
            return Ok((map.ranges().len() * ENTRY) as u64);
        }
        let stats = self.space().stats();
        let own = stats.vdevs.iter().find(|v| v.id == id);
        let mut copied = own.map_or(0, |v| v.allocated);
        let mut segments = 0u64;
        for ms in 0..self.space().metaslab_count(id) {
            let histogram = self.space().histogram(id, ms)?;
            for (i, n) in histogram.iter().enumerate() {
                let shift = i as u32 + top.ashift();
                if (1u64 << shift.min(63)) * 2 <= SPAN {
                    copied = copied.saturating_add(n.saturating_mul(1 << (shift + 1)));
                } else {
                    segments = segments.saturating_add(*n);
                }
            }
        }
        Ok((segments + copied / MOST) * ENTRY as u64)
    }
}
