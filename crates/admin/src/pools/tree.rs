//! The vdev tree as the commands show it: states, counters, space.

use crate::pools::wear;
use api::{VdevAux, VdevClass, VdevHistograms, VdevKind, VdevState, VdevStats};
use base::Txg;
use disk::NvList;
use env::Access;
use pool::l2arc::CacheState;
use pool::{Pool, Wear};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vdev::{keys, Aux, State, Vdev, VdevTree};

/// What the labels take from a device: two at each end, and the reserved area behind the first two.
const LABELS: u64 = (4 << 20) + (512 << 10);

/// Ranges of txgs that are told of a device that lacks data.
const MISSING_SHOWN: usize = 8;

/// The state in the words of the API.
pub fn state(s: State) -> VdevState {
    match s {
        State::Closed => VdevState::Closed,
        State::Offline => VdevState::Offline,
        State::Removed => VdevState::Removed,
        State::CantOpen => VdevState::CantOpen,
        State::Faulted => VdevState::Faulted,
        State::Degraded => VdevState::Degraded,
        State::Healthy => VdevState::Online,
    }
}

/// The reason in the words of the API.
pub fn aux(a: Aux) -> VdevAux {
    match a {
        Aux::None => VdevAux::None,
        Aux::OpenFailed => VdevAux::OpenFailed,
        Aux::CorruptData => VdevAux::CorruptData,
        Aux::NoReplicas => VdevAux::NoReplicas,
        Aux::BadGuidSum => VdevAux::BadGuidSum,
        Aux::TooSmall => VdevAux::TooSmall,
        Aux::BadLabel => VdevAux::BadLabel,
        Aux::ErrExceeded => VdevAux::ErrorsExceeded,
        Aux::External => VdevAux::ExternalFault,
        Aux::BadAshift => VdevAux::BadAshift,
        Aux::SplitPool => VdevAux::SplitPool,
        Aux::ChildrenOffline => VdevAux::ChildrenOffline,
        Aux::Unsupported => VdevAux::UnsupportedFeatures,
    }
}

fn kind(v: &Vdev) -> VdevKind {
    let small = |n: u64| n.min(255) as u8;
    match v.kind() {
        vdev::VdevKind::Disk => VdevKind::Disk,
        vdev::VdevKind::File => VdevKind::File,
        vdev::VdevKind::Mirror => VdevKind::Mirror,
        vdev::VdevKind::Replacing => VdevKind::Replacing,
        vdev::VdevKind::Spare => VdevKind::Spare,
        vdev::VdevKind::Raidz { nparity } => VdevKind::Raidz {
            parity: small(nparity as u64),
        },
        vdev::VdevKind::Draid {
            nparity,
            ndata,
            nspares,
        } => VdevKind::Draid {
            parity: small(nparity as u64),
            data: small(ndata),
            children: small(v.children().len() as u64),
            spares: small(nspares),
        },
        vdev::VdevKind::Dspare => dspare(&v.path().unwrap_or_default()),
        vdev::VdevKind::Hole => VdevKind::Hole,
        vdev::VdevKind::Missing => VdevKind::Missing,
        vdev::VdevKind::Indirect => VdevKind::Indirect,
    }
}

/// The class in the words of the API.
pub fn class(c: space::Class) -> VdevClass {
    match c {
        space::Class::Normal => VdevClass::Normal,
        space::Class::Special => VdevClass::Special,
        space::Class::Dedup => VdevClass::Dedup,
        space::Class::Log => VdevClass::Log,
    }
}

/// A distributed spare by its name: `draid2-0-0`.
fn dspare(name: &str) -> VdevKind {
    let mut numbers = name
        .strip_prefix("draid")
        .unwrap_or_default()
        .split('-')
        .map(|n| n.parse::<u32>().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    VdevKind::Dspare {
        parity: next().min(3) as u8,
        vdev: next(),
        spare: next(),
    }
}

/// The hot spares and cache devices of a pool, as they are at this moment: they are outside the tree,
/// and nobody reads from them until they are needed.
pub fn aux_rows(pool: &Pool) -> Vec<api::Vdev> {
    let aux = pool.aux_devices();
    let spares = aux.spares.iter().map(|d| (d, VdevClass::Spare));
    let caches = aux.l2cache.iter().map(|d| (d, VdevClass::Cache));
    caches
        .chain(spares)
        .map(|(dev, class)| aux_row(pool, dev, class))
        .collect()
}

fn aux_row(pool: &Pool, dev: &NvList, class: VdevClass) -> api::Vdev {
    let guid = dev.get_u64(keys::GUID).unwrap_or(0);
    let mut path = dev.get_str(keys::PATH).map(str::to_string);
    let kind = match dev.get_str(keys::TYPE) {
        Some("dspare") => dspare(path.as_deref().unwrap_or_default()),
        Some("file") => VdevKind::File,
        _ => VdevKind::Disk,
    };
    let mut stats = VdevStats::default();
    let cache = match class {
        VdevClass::Cache => pool.cache_figures(guid),
        _ => None,
    };
    if let Some(f) = &cache {
        stats = counted(&f.stats);
        (stats.physical, stats.space, stats.alloc) = (f.physical, f.size, f.used);
        stats.trim_unsupported = !f.can_discard;
        if let Some(time) = f.trimmed {
            stats.trim = api::WearStats {
                state: api::WearState::Complete,
                time,
                done: f.size,
                total: f.size,
            };
        }
    }
    let in_tree = pool.tree().find(guid);
    if let Some(v) = in_tree.as_ref().filter(|v| v.device_asize() > 0) {
        path = v.path();
    }
    let (state, aux) = if let Some(f) = &cache {
        match f.state {
            CacheState::Online => (VdevState::Online, VdevAux::None),
            CacheState::Offline => (VdevState::Offline, VdevAux::None),
            CacheState::Missing => (VdevState::CantOpen, VdevAux::OpenFailed),
            CacheState::Foreign => (VdevState::CantOpen, VdevAux::CorruptData),
            CacheState::Broken => (VdevState::Faulted, VdevAux::ErrorsExceeded),
        }
    } else if in_tree.is_some() && class == VdevClass::Spare {
        (VdevState::Online, VdevAux::Spared)
    } else if matches!(kind, VdevKind::Dspare { .. }) {
        let top = dev.get_u64(keys::pool::TOP_GUID).unwrap_or(0);
        match pool.tree().find(top) {
            Some(t) if t.state().usable() => (VdevState::Online, VdevAux::None),
            _ => (VdevState::CantOpen, VdevAux::OpenFailed),
        }
    } else {
        let found = path
            .as_deref()
            .and_then(|p| pool.env.disks.open(p, Access::Read).ok());
        match found {
            None => (VdevState::CantOpen, VdevAux::OpenFailed),
            Some(d) => {
                let wanted = match class {
                    VdevClass::Cache => keys::pool::STATE_L2CACHE,
                    _ => keys::pool::STATE_SPARE,
                };
                stats.physical = d.geometry().size;
                let labels = vdev::label::read_labels(&*d);
                let own = labels.copies.iter().flatten().any(|l| {
                    l.get_u64(keys::GUID) == Some(guid)
                        && l.get_u64(keys::pool::STATE) == Some(wanted)
                });
                if own {
                    (VdevState::Online, VdevAux::None)
                } else {
                    (VdevState::CantOpen, VdevAux::CorruptData)
                }
            }
        }
    };
    api::Vdev {
        kind,
        id: 0,
        guid,
        class,
        path,
        whole_disk: dev.get_u64(keys::WHOLE_DISK).is_some_and(|n| n != 0) && kind == VdevKind::Disk,
        not_present: false,
        state,
        aux,
        stats,
        histograms: None,
        children: Vec::new(),
    }
}

/// Room to grow into after the devices grew, in whole metaslabs, bytes.
pub fn expandable(top: &Vdev) -> u64 {
    let devices = top.children();
    let least = devices.iter().map(|c| c.device_asize()).min();
    let possible = match top.kind() {
        k if k.is_leaf() => top.device_asize(),
        // The room of the new device is there when the expansion is finished.
        vdev::VdevKind::Raidz { .. } => {
            let n = devices.len() - usize::from(top.is_expanding());
            least.unwrap_or(0).saturating_mul(n as u64)
        }
        vdev::VdevKind::Mirror => least.unwrap_or(0),
        vdev::VdevKind::Draid { .. } => top.natural_asize(),
        _ => 0,
    };
    let unit = 1u64.checked_shl(top.metaslab_shift()).unwrap_or(1);
    possible.saturating_sub(top.asize()) / unit * unit
}

/// Counters of a device alone.
fn counted(s: &vdev::Stats) -> VdevStats {
    let own = |n: &AtomicU64| n.load(Relaxed);
    VdevStats {
        read_ops: own(&s.read_ops),
        write_ops: own(&s.write_ops),
        read_bytes: own(&s.read_bytes),
        write_bytes: own(&s.write_bytes),
        read_errors: own(&s.read_errors),
        write_errors: own(&s.write_errors),
        checksum_errors: own(&s.checksum_errors),
        slow_ios: own(&s.slow_ios),
        self_healed: own(&s.repaired_bytes),
        scan_processed: own(&s.scan_bytes),
        trim_ops: own(&s.trim_ops),
        trim_bytes: own(&s.trim_bytes),
        trim_errors: own(&s.trim_errors),
        initialize_errors: own(&s.initialize_errors),
        ..VdevStats::default()
    }
}

/// Counters of one vdev. Groups count what their children did: a write to a mirror once.
fn counters(v: &Vdev, children: &[api::Vdev]) -> VdevStats {
    let mut out = counted(&v.stats);
    let once = v.kind().is_mirrorish();
    for c in children.iter().map(|c| &c.stats) {
        out.read_ops += c.read_ops;
        out.read_bytes += c.read_bytes;
        out.scan_processed += c.scan_processed;
        out.trim_ops += c.trim_ops;
        out.trim_bytes += c.trim_bytes;
        if once {
            out.write_ops = out.write_ops.max(c.write_ops);
            out.write_bytes = out.write_bytes.max(c.write_bytes);
        } else {
            out.write_ops += c.write_ops;
            out.write_bytes += c.write_bytes;
        }
    }
    out
}

/// Histograms of all these together.
fn sum(vdevs: &[api::Vdev]) -> VdevHistograms {
    fn add(to: &mut [Vec<u64>], from: &[Vec<u64>]) {
        for (to, from) in to.iter_mut().zip(from) {
            to.resize(to.len().max(from.len()), 0);
            to.iter_mut().zip(from).for_each(|(a, b)| *a += b);
        }
    }
    let mut out = VdevHistograms::default();
    for h in vdevs.iter().filter_map(|v| v.histograms.as_deref()) {
        add(&mut out.total_wait, &h.total_wait);
        add(&mut out.disk_wait, &h.disk_wait);
        add(&mut out.queue_wait, &h.queue_wait);
        add(&mut out.sizes, &h.sizes);
        add(&mut out.merged, &h.merged);
        for (a, b) in out.queues.iter_mut().zip(h.queues) {
            *a = (a.0 + b.0, a.1 + b.1);
        }
    }
    out
}

/// Health of an imported pool. It can do without its log devices: lacking them it is degraded.
pub fn imported_state(tree: &VdevTree) -> (State, Aux) {
    let tops = tree.tops();
    let dead = |t: &Vdev| !t.state().usable();
    match tree.state() {
        (s, _) if !s.usable() && !tops.iter().any(|t| dead(t) && !t.is_log()) => {
            (State::Degraded, Aux::None)
        }
        known => known,
    }
}

/// Looks at a tree: of an imported pool, or of one that could be imported.
pub struct Look<'a> {
    /// The tree.
    pub tree: &'a VdevTree,
    /// Space of the vdevs, if the pool is imported.
    pub space: Option<&'a space::Stats>,
    /// Leaves that could not be opened are shown by guid, as after an import.
    pub imported: bool,
    /// Latencies, sizes and queues are wanted.
    pub histograms: bool,
    /// The txgs of the resilver under way: behind the first, up to the second.
    pub resilver: Option<(Txg, Txg)>,
    /// Knows how trim and initialize of the leaves stand.
    pub wears: Option<&'a Pool>,
    /// Top-level vdevs that were removed by copying are shown, too.
    pub removed: bool,
}

impl Look<'_> {
    /// Those of a leaf, or the sums of what is below.
    fn histograms(&self, v: &Vdev, children: &[api::Vdev]) -> Option<Box<VdevHistograms>> {
        if !self.histograms {
            return None;
        }
        Some(Box::new(match v.io_figures() {
            Some(f) => VdevHistograms {
                total_wait: f.total_wait,
                disk_wait: f.disk_wait,
                queue_wait: f.queue_wait,
                sizes: f.alone,
                merged: f.merged,
                queues: f.now,
            },
            None => sum(children),
        }))
    }

    /// `parent`: kind of the group it is in.
    fn vdev(
        &self,
        v: &Vdev,
        parent: Option<vdev::VdevKind>,
        class: VdevClass,
        ashift: u32,
    ) -> api::Vdev {
        let children: Vec<api::Vdev> = v
            .children()
            .iter()
            .map(|c| self.vdev(c, Some(v.kind()), class, ashift))
            .collect();
        let mut stats = counters(v, &children);
        let leaf = v.kind().is_leaf();
        if leaf {
            let size = v.device_asize();
            stats.physical = if size == 0 { 0 } else { size + LABELS };
            stats.configured_ashift = u64::from(ashift);
            stats.trim_unsupported = !v.discards();
            let of = |what| {
                self.wears
                    .map_or_else(Default::default, |p| wear::stats(p, what, v.guid()))
            };
            (stats.trim, stats.initialize) = (of(Wear::Trim), of(Wear::Initialize));
        }
        if v.has_dtl() {
            let missing = v.dtl();
            stats.resilvering = !missing.is_empty();
            let covered = |(after, last): (Txg, Txg)| {
                let mut ranges = missing.iter();
                ranges.all(|(a, b)| Txg::new(a) > after && Txg::new(b) <= last)
            };
            stats.resilver_deferred = self.resilver.is_some_and(|r| !covered(r));
            let ranges = missing.iter().map(|(a, b)| (a, b.saturating_sub(1)));
            stats.missing = ranges.take(MISSING_SHOWN).collect();
        }
        // In a replacing or spare group another child has the data.
        let alone = !matches!(
            parent,
            Some(vdev::VdevKind::Replacing | vdev::VdevKind::Spare)
        );
        let idle = self.resilver.is_none();
        let stale = stats.resilvering && alone && idle && v.state() == State::Healthy;
        let (state, aux) = match stale {
            true => (VdevState::Degraded, VdevAux::MissedWrites),
            false => (state(v.state()), aux(v.aux())),
        };
        let flag = |key: &str| v.get_u64(key).is_some_and(|n| n != 0);
        let gone =
            v.state() == State::CantOpen && v.aux() == Aux::OpenFailed && v.device_asize() == 0;
        api::Vdev {
            kind: kind(v),
            id: v.id(),
            guid: v.guid(),
            class,
            path: v.path(),
            whole_disk: flag(keys::WHOLE_DISK),
            not_present: leaf
                && self.imported
                && (gone || flag(keys::NOT_PRESENT) && v.device_asize() == 0),
            state,
            aux,
            stats,
            histograms: self.histograms(v, &children),
            children,
        }
    }

    fn top(&self, t: &Vdev) -> api::Vdev {
        let space = self
            .space
            .and_then(|s| s.vdevs.iter().find(|s| s.id == t.id()));
        // Of those that special and dedup devices are, only the pool knows: no label says it.
        let class = match space {
            _ if t.is_log() => VdevClass::Log,
            Some(s) => class(s.class),
            None => VdevClass::Normal,
        };
        let mut out = self.vdev(t, None, class, t.ashift());
        if let Some(s) = space {
            out.stats.space = s.size;
            out.stats.alloc = s.allocated + s.deferred;
            out.stats.dspace = (s.size / 512).saturating_mul(s.deflate_ratio);
            out.stats.fragmentation = s.fragmentation;
        }
        out.stats.esize = expandable(t);
        out.stats.configured_ashift = u64::from(t.ashift());
        out.stats.removing = t.get_u64(keys::REMOVING).is_some_and(|n| n != 0);
        out.stats.noalloc = t.get_u64(keys::NON_ALLOCATING).is_some_and(|n| n != 0);
        out
    }

    /// The whole tree, below its root. Places of removed log devices are left out.
    pub fn root(&self) -> api::Vdev {
        let tops = self.tree.tops();
        let children: Vec<api::Vdev> = tops
            .iter()
            .filter(|t| match t.kind() {
                vdev::VdevKind::Hole => false,
                vdev::VdevKind::Indirect => self.removed,
                _ => true,
            })
            .map(|t| self.top(t))
            .collect();
        let (s, a) = if self.imported {
            imported_state(self.tree)
        } else {
            self.tree.state()
        };
        let mut stats = VdevStats {
            checksum_errors: self.tree.stats.checksum_errors.load(Relaxed),
            ..VdevStats::default()
        };
        for c in &children {
            stats.read_ops += c.stats.read_ops;
            stats.write_ops += c.stats.write_ops;
            stats.read_bytes += c.stats.read_bytes;
            stats.write_bytes += c.stats.write_bytes;
            stats.scan_processed += c.stats.scan_processed;
            if c.class != VdevClass::Log {
                stats.alloc += c.stats.alloc;
                stats.space += c.stats.space;
                stats.dspace += c.stats.dspace;
                stats.esize += c.stats.esize;
            }
        }
        stats.fragmentation = self.space.and_then(|s| s.fragmentation);
        api::Vdev {
            kind: VdevKind::Root,
            id: 0,
            guid: self.tree.guid(),
            class: VdevClass::Normal,
            path: None,
            whole_disk: false,
            not_present: false,
            state: state(s),
            aux: aux(a),
            stats,
            histograms: self.histograms.then(|| Box::new(sum(&children))),
            children,
        }
    }
}
