//! [`Adapter`]: the kernel's door to one file system in service.

use crate::caching::Caching;
use crate::kernel::Kernel;
use fuse::{Errno, Mount};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use vfs::{Door, Served, Within};

pub(crate) type Result<T> = std::result::Result<T, Errno>;

/// One file system in service as FUSE sees it.
pub struct Adapter {
    pub(crate) door: Arc<Door>,
    pub(crate) caching: Caching,
    /// The kernel opens files, or directories, without asking.
    pub(crate) opens_unasked: AtomicBool,
    /// See `opens_unasked`.
    pub(crate) lists_unasked: AtomicBool,
    kernel: OnceLock<Arc<Kernel>>,
}

impl Adapter {
    /// Opens a door to `served`.
    ///
    /// Errors: the root directory cannot be read.
    pub fn new(served: &Arc<Served>, caching: Caching) -> base::Result<Arc<Adapter>> {
        Ok(Adapter::of(Door::open_to(served)?, caching))
    }

    /// The same for a file system that is part of a view.
    ///
    /// Errors: the root directory cannot be read.
    pub fn in_view(served: &Arc<Served>, caching: Caching) -> base::Result<Arc<Adapter>> {
        Ok(Adapter::of(Door::open_in_view(served)?, caching))
    }

    fn of(door: Arc<Door>, caching: Caching) -> Arc<Adapter> {
        Arc::new(Adapter {
            door,
            caching,
            opens_unasked: AtomicBool::new(false),
            lists_unasked: AtomicBool::new(false),
            kernel: OnceLock::new(),
        })
    }

    /// Whom to ask to have the kernel write out or forget what it caches, and where it is mounted. The first one set stays.
    pub fn set_kernel(&self, kernel: Kernel) {
        let kernel = Arc::new(kernel);
        if self.kernel.set(kernel.clone()).is_ok() {
            self.door.subscribe(kernel);
        }
    }

    /// It is mounted at another place from now on.
    pub fn set_mount(&self, mount: Mount) {
        if let Some(kernel) = self.kernel.get() {
            kernel.set_mount(mount);
        }
    }

    /// What it leads to.
    pub fn served(&self) -> &Arc<Served> {
        self.door.served()
    }

    /// The door of the kernel.
    pub fn door(&self) -> &Arc<Door> {
        &self.door
    }

    /// Whether the kernel need not say when a file is opened (for [`fuse::Config::zero_message_open`]):
    /// nothing is written, no access time changes, and pages may be kept.
    pub fn needs_no_open(&self) -> bool {
        self.door.needs_no_open() && !self.caching.direct
    }

    /// The same for directories (for [`fuse::Config::zero_message_opendir`]), in any pool: listings may be kept, and the kernel asks for
    /// attributes before it opens a directory.
    pub fn needs_no_opendir(&self) -> bool {
        self.caching.names.is_none()
    }
}

impl Within for Adapter {
    fn door(&self) -> &Arc<Door> {
        &self.door
    }
}
