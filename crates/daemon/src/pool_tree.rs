//! The device tree as the commands show it: states, counters, space.

use api::{VdevAux, VdevClass, VdevKind, VdevState, VdevStats};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vdev::{keys, Aux, State, Vdev, VdevTree};

/// What the labels take from a device: two at each end, and the reserved area behind the first two.
const LABELS: u64 = (4 << 20) + (512 << 10);

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
        vdev::VdevKind::Dspare => VdevKind::Dspare {
            parity: 0,
            vdev: 0,
            spare: v.get_u64(keys::SPARE_ID).unwrap_or(0) as u32,
        },
        vdev::VdevKind::Hole => VdevKind::Hole,
        vdev::VdevKind::Missing => VdevKind::Missing,
        vdev::VdevKind::Indirect => VdevKind::Indirect,
    }
}

/// Room to grow into after the devices grew, in whole metaslabs, bytes.
pub fn expandable(top: &Vdev) -> u64 {
    let devices = top.children();
    let least = devices.iter().map(|c| c.device_asize()).min();
    let possible = match top.kind() {
        k if k.is_leaf() => top.device_asize(),
        vdev::VdevKind::Raidz { .. } => least.unwrap_or(0).saturating_mul(devices.len() as u64),
        vdev::VdevKind::Mirror => least.unwrap_or(0),
        _ => 0,
    };
    let unit = 1u64.checked_shl(top.metaslab_shift()).unwrap_or(1);
    possible.saturating_sub(top.asize()) / unit * unit
}

/// Counters of one vdev. Groups count what their children did: a write to a mirror once.
fn counters(v: &Vdev, children: &[api::Vdev]) -> VdevStats {
    let own = |n: &AtomicU64| n.load(Relaxed);
    let s = &v.stats;
    let mut out = VdevStats {
        read_ops: own(&s.read_ops),
        write_ops: own(&s.write_ops),
        read_bytes: own(&s.read_bytes),
        write_bytes: own(&s.write_bytes),
        read_errors: own(&s.read_errors),
        write_errors: own(&s.write_errors),
        checksum_errors: own(&s.checksum_errors),
        self_healed: own(&s.repaired_bytes),
        ..VdevStats::default()
    };
    let once = v.kind().is_mirrorish();
    for c in children.iter().map(|c| &c.stats) {
        out.read_ops += c.read_ops;
        out.read_bytes += c.read_bytes;
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
    pub tree: &'a VdevTree,
    pub space: Option<&'a space::Stats>,
    /// Leaves that could not be opened are shown by guid, as after an import.
    pub imported: bool,
}

impl Look<'_> {
    fn vdev(&self, v: &Vdev, class: VdevClass, ashift: u32) -> api::Vdev {
        let children: Vec<api::Vdev> = v
            .children()
            .iter()
            .map(|c| self.vdev(c, class, ashift))
            .collect();
        let mut stats = counters(v, &children);
        let leaf = v.kind().is_leaf();
        if leaf {
            let size = v.device_asize();
            stats.physical = if size == 0 { 0 } else { size + LABELS };
            stats.configured_ashift = u64::from(ashift);
            stats.resilvering = !v.dtl_is_empty();
        }
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
            state: state(v.state()),
            aux: aux(v.aux()),
            stats,
            histograms: None,
            children,
        }
    }

    fn top(&self, t: &Vdev) -> api::Vdev {
        let class = if t.is_log() {
            VdevClass::Log
        } else {
            VdevClass::Normal
        };
        let mut out = self.vdev(t, class, t.ashift());
        if let Some(s) = self
            .space
            .and_then(|s| s.vdevs.iter().find(|s| s.id == t.id()))
        {
            out.stats.space = s.size;
            out.stats.alloc = s.allocated + s.deferred;
            out.stats.dspace = (s.size / 512).saturating_mul(s.deflate_ratio);
            out.stats.fragmentation = s.fragmentation;
        }
        out.stats.esize = expandable(t);
        out.stats.configured_ashift = u64::from(t.ashift());
        out.stats.noalloc = t.get_u64(keys::NON_ALLOCATING).is_some_and(|n| n != 0);
        out
    }

    /// The whole tree, below its root. Places of removed log devices are left out.
    pub fn root(&self) -> api::Vdev {
        let tops = self.tree.tops();
        let children: Vec<api::Vdev> = tops
            .iter()
            .filter(|t| t.kind() != vdev::VdevKind::Hole)
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
            if c.class == VdevClass::Normal {
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
            histograms: None,
            children,
        }
    }
}
