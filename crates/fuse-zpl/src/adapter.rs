//! [`Adapter`]: the state of one mounted file system with its control directory, which all requests share.

use crate::admission::Admission;
use crate::caching::Caching;
use crate::control_gate::ControlGate;
use crate::control_lists::ControlLists;
use crate::ctldir::{self, Ctldir, Dir, Line, SharedLists, Tree};
use crate::fresh::Fresh;
use crate::gate::{Gate, Running};
use crate::nodes::Nodes;
use crate::page_reads::PageReads;
use crate::power::Power;
use crate::snapshots::{Snapshots, Volume};
use crate::stale::Stale;
use crate::writers::Writers;
use fuse::{Errno, Notifier, Request, FOREVER};
use pool::Pool;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use zpl::{Zfs, Znode};

pub(crate) type Result<T> = std::result::Result<T, Errno>;

/// One mounted file system as FUSE sees it: the head, which can be changed, and below `.zfs` what can
/// only be read.
pub struct Adapter {
    pub(crate) gate: Gate,
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) writers: Arc<Writers>,
    pub(crate) fresh: Arc<Fresh>,
    pub(crate) admission: Admission,
    pub(crate) ctl: Arc<Ctldir>,
    /// Asked by requests that come through a mount of the control directory itself.
    pub(crate) control: ControlGate,
    pub(crate) notifier: OnceLock<Notifier>,
    /// How long a name may be remembered, also as one that does not exist. Not at all where several
    /// spellings mean one name (case is ignored, or names are normalized): a change made under one
    /// of them would leave the others behind in the kernel.
    pub(crate) names: Duration,
    pub(crate) caching: Caching,
    /// The kernel keeps the times and sizes of regular files and says when it changed one.
    pub(crate) kernel_keeps_times: AtomicBool,
    /// Whether the control directory was visible when the root was last listed.
    pub(crate) listed_visible: AtomicBool,
    /// Nothing changes as long as it is mounted: the pool is in use read-only.
    pub(crate) unchanging: bool,
    /// The kernel opens files, or directories, without asking.
    pub(crate) opens_unasked: AtomicBool,
    /// See `opens_unasked`.
    pub(crate) lists_unasked: AtomicBool,
    pub(crate) control_lists: ControlLists,
    pub(crate) page_reads: PageReads,
    /// What is not shown of programs and devices.
    pub(crate) power: Power,
    /// Listings of open directories of the control directory: they must not change while they are
    /// read.
    pub(crate) lists: Mutex<HashMap<u64, Arc<Vec<Line>>>>,
    pub(crate) shared: SharedLists,
    pub(crate) handles: AtomicU64,
    /// Nodes of which the kernel may have pages of a file system that was replaced.
    pub(crate) stale: Stale,
    /// Held from a suspension to its end.
    pub(crate) suspending: Mutex<bool>,
}

/// What a node id means.
pub(crate) enum Node<'a> {
    /// Object of the head.
    Object(Running<'a>, Arc<Znode>),
    /// Directory of the control directory.
    Dir(Dir),
    /// Object of a snapshot.
    File(Arc<Tree>, Arc<Znode>),
    Volume(Arc<Tree>, Arc<Volume>),
}

impl Node<'_> {
    /// The object, of the head or of a snapshot, in its file system; the error for what is none.
    pub fn object(&self, other: Errno) -> Result<(&Arc<Zfs>, &Arc<Znode>)> {
        match self {
            Node::Object(zfs, z) => Ok((zfs, z)),
            Node::File(t, z) => Ok((t.zfs().ok_or(other)?, z)),
            Node::Dir(_) | Node::Volume(..) => Err(other),
        }
    }
}

impl Adapter {
    /// Shows `zfs`, a file system of `pool`, whose snapshots come `from` there.
    ///
    /// Errors: the root directory cannot be read.
    pub fn new(
        zfs: Arc<Zfs>,
        pool: &Arc<Pool>,
        from: Box<dyn Snapshots>,
        caching: Caching,
    ) -> base::Result<Arc<Adapter>> {
        let root = zfs.root()?;
        let names = match zfs.has_exact_names() {
            true => FOREVER,
            false => Duration::ZERO,
        };
        let nodes = Arc::new(Nodes::new(&root));
        nodes.keep_doomed(&zfs);
        let ctl = Ctldir::new(from, pool.env.clock.clone(), &zfs);
        Ok(Arc::new(Adapter {
            gate: Gate::new(zfs),
            nodes,
            writers: Arc::default(),
            fresh: Arc::default(),
            admission: Admission::new(pool.clone()),
            ctl: Arc::new(ctl),
            control: ControlGate::default(),
            notifier: OnceLock::new(),
            names: caching.names(names),
            caching,
            kernel_keeps_times: AtomicBool::new(false),
            listed_visible: AtomicBool::new(false),
            unchanging: pool.is_readonly(),
            opens_unasked: AtomicBool::new(false),
            lists_unasked: AtomicBool::new(false),
            control_lists: ControlLists::default(),
            page_reads: PageReads::default(),
            power: Power::default(),
            lists: Mutex::default(),
            shared: SharedLists::default(),
            handles: AtomicU64::new(1),
            stale: Stale::default(),
            suspending: Mutex::default(),
        }))
    }

    /// Whom to ask to have the kernel write out or forget what it caches. The first one set stays.
    pub fn set_notifier(&self, n: Notifier) {
        let _ = self.notifier.set(n);
    }

    /// Whether the kernel need not say when a file is opened (for [`fuse::Config::zero_message_open`]):
    /// nothing is written, no access time changes, and pages may be kept.
    pub fn needs_no_open(&self) -> bool {
        let direct = self.gate.current().props().direct;
        self.unchanging && !self.caching.direct && !direct
    }

    /// The same for directories (for [`fuse::Config::zero_message_opendir`]), in any pool: listings may be kept, and the kernel asks for
    /// attributes before it opens a directory.
    pub fn needs_no_opendir(&self) -> bool {
        self.caching.names.is_none()
    }

    /// The files that are open for writing.
    pub fn writers(&self) -> Arc<Writers> {
        self.writers.clone()
    }

    /// The nodes whose attributes the kernel keeps for a moment only.
    pub fn fresh(&self) -> Arc<Fresh> {
        self.fresh.clone()
    }

    /// The control directory.
    pub fn ctl(&self) -> Arc<Ctldir> {
        self.ctl.clone()
    }

    /// Finds what a node means; an object of the head as soon as the file system runs.
    #[inline]
    pub(crate) fn resolve(&self, req: &Request, node: u64) -> Result<Node<'_>> {
        if !ctldir::is_ours(node) {
            let (zfs, z) = self.head(req, node)?;
            return Ok(Node::Object(zfs, z));
        }
        Ok(match self.ctl.node(node)? {
            ctldir::Node::Dir(d) => Node::Dir(d),
            ctldir::Node::File(t, z) => Node::File(t, z),
            ctldir::Node::Volume(t, v) => Node::Volume(t, v),
        })
    }

    /// An object of the head, as soon as the file system runs.
    #[inline]
    pub(crate) fn head(&self, req: &Request, node: u64) -> Result<(Running<'_>, Arc<Znode>)> {
        let zfs = self.gate.enter(req)?;
        let z = self.nodes.get(&zfs, node)?;
        Ok((zfs, z))
    }

    /// Changes an object of the head, as soon as the pool and the file system let it.
    #[inline]
    pub(crate) fn change<R>(
        &self,
        req: &Request,
        node: u64,
        f: impl FnOnce(&Arc<Zfs>, &Arc<Znode>) -> base::Result<R>,
    ) -> Result<R> {
        if ctldir::is_ours(node) {
            return Err(Errno::EROFS);
        }
        self.admission.call(req)?;
        let (zfs, z) = self.head(req, node)?;
        Ok(f(&zfs, &z)?)
    }
}
