//! The tree of vdevs as `zpool` prints it: names, order, indentation.

use api::{Vdev, VdevAux, VdevClass, VdevKind, VdevState};

/// How vdevs are called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Naming {
    /// By guid (`-g`).
    pub guid: bool,
    /// Symbolic links followed (`-L`).
    pub follow: bool,
    /// Full paths (`-P`).
    pub path: bool,
    /// Groups with their number: `mirror-0`.
    pub numbered: bool,
}

/// Name of a disk path: the last component, without the partition a whole disk got.
fn short(path: &str, whole_disk: bool) -> String {
    let name = base::short_device_name(path);
    if !whole_disk {
        return name.to_string();
    }
    if let Some(base) = name.strip_suffix("-part1") {
        return base.to_string();
    }
    match name.strip_suffix('1') {
        // nvme0n1p1, mmcblk0p1
        Some(base) if base.ends_with('p') => {
            let disk = &base[..base.len() - 1];
            if disk.ends_with(|c: char| c.is_ascii_digit()) {
                disk.to_string()
            } else {
                base.to_string()
            }
        }
        Some(base) if base.ends_with(|c: char| c.is_ascii_alphabetic()) => base.to_string(),
        _ => name.to_string(),
    }
}

/// Name of a vdev (command reference §8.5). `root` is the name of the pool.
pub fn name(vdev: &Vdev, root: &str, how: Naming) -> String {
    if vdev.kind == VdevKind::Root {
        return root.to_string();
    }
    if how.guid {
        return vdev.guid.to_string();
    }
    let number = |word: String| {
        if how.numbered {
            format!("{word}-{}", vdev.id)
        } else {
            word
        }
    };
    if let Some(path) = &vdev.path {
        if vdev.not_present {
            return vdev.guid.to_string();
        }
        let real;
        let mut path = path.as_str();
        if how.follow {
            if let Ok(p) = std::fs::canonicalize(path) {
                real = p.to_string_lossy().into_owned();
                path = &real;
            }
        }
        if vdev.kind == VdevKind::Disk && !how.path {
            return short(path, vdev.whole_disk);
        }
        return path.to_string();
    }
    match vdev.kind {
        VdevKind::Root => root.to_string(),
        VdevKind::Mirror => number("mirror".into()),
        VdevKind::Raidz { parity } => number(format!("raidz{parity}")),
        VdevKind::Draid {
            parity,
            data,
            children,
            spares,
        } => number(format!("draid{parity}:{data}d:{children}c:{spares}s")),
        VdevKind::Replacing => number("replacing".into()),
        VdevKind::Spare => number("spare".into()),
        VdevKind::Dspare {
            parity,
            vdev,
            spare,
        } => format!("draid{parity}-{vdev}-{spare}"),
        VdevKind::Indirect => number("indirect".into()),
        VdevKind::Hole => number("hole".into()),
        VdevKind::Missing => number("missing".into()),
        VdevKind::Disk | VdevKind::File => vdev.guid.to_string(),
    }
}

/// The word for a state (and for a pool's health).
pub fn state(state: VdevState, aux: VdevAux) -> &'static str {
    state.shown(aux)
}

/// The note after the counters for the reason a vdev is not online.
pub fn aux(vdev: &Vdev) -> Option<&'static str> {
    Some(match vdev.aux {
        VdevAux::None => return None,
        VdevAux::OpenFailed => "cannot open",
        VdevAux::BadGuidSum => "missing device",
        VdevAux::NoReplicas => "insufficient replicas",
        VdevAux::VersionNewer => "newer version",
        VdevAux::UnsupportedFeatures => "unsupported feature(s)",
        VdevAux::AshiftTooBig | VdevAux::BadAshift => "unsupported minimum blocksize",
        VdevAux::Spared => "currently in use",
        VdevAux::ErrorsExceeded => "too many errors",
        VdevAux::IoFailure => "experienced I/O failures",
        VdevAux::BadLog => "bad intent log",
        VdevAux::ExternalFault | VdevAux::ExternalPersistent => "external device fault",
        VdevAux::SplitPool => "split into new pool",
        VdevAux::ActiveElsewhere => "currently in use",
        VdevAux::ChildrenOffline => "all children offline",
        VdevAux::BadLabel => "invalid label",
        VdevAux::CorruptData | VdevAux::TooSmall | VdevAux::VersionOlder => "corrupted data",
        VdevAux::MissedWrites => "missed writes",
    })
}

/// Which data a device lacks that works: `lacks data of txgs 12-40, 45`.
pub fn missing(vdev: &Vdev) -> Option<String> {
    if vdev.aux != VdevAux::MissedWrites {
        return None;
    }
    let ranges = vdev.stats.missing.iter().map(|(a, b)| match a == b {
        true => a.to_string(),
        false => format!("{a}-{b}"),
    });
    let ranges: Vec<String> = ranges.collect();
    Some(format!("lacks data of txgs {}", ranges.join(", ")))
}

/// Word of JSON for a kind.
pub fn kind_word(kind: VdevKind) -> &'static str {
    match kind {
        VdevKind::Root => "root",
        VdevKind::Disk => "disk",
        VdevKind::File => "file",
        VdevKind::Mirror => "mirror",
        VdevKind::Raidz { .. } => "raidz",
        VdevKind::Draid { .. } => "draid",
        VdevKind::Replacing => "replacing",
        VdevKind::Spare => "spare",
        VdevKind::Dspare { .. } => "dspare",
        VdevKind::Indirect => "indirect",
        VdevKind::Hole => "hole",
        VdevKind::Missing => "missing",
    }
}

/// Word of JSON for a class.
pub fn class_word(class: VdevClass) -> &'static str {
    match class {
        VdevClass::Normal => "normal",
        VdevClass::Log => "log",
        VdevClass::Special => "special",
        VdevClass::Dedup => "dedup",
        VdevClass::Cache => "l2cache",
        VdevClass::Spare => "spare",
    }
}

/// Word of JSON for a state.
pub fn state_word(state: VdevState) -> &'static str {
    match state {
        VdevState::Unknown => "UNKNOWN",
        VdevState::Closed => "CLOSED",
        VdevState::Offline => "OFFLINE",
        VdevState::Removed => "REMOVED",
        VdevState::CantOpen => "CANT_OPEN",
        VdevState::Faulted => "FAULTED",
        VdevState::Degraded => "DEGRADED",
        VdevState::Online => "ONLINE",
    }
}

/// True for devices, false for groups.
pub fn is_leaf(vdev: &Vdev) -> bool {
    vdev.children.is_empty()
        && matches!(
            vdev.kind,
            VdevKind::Disk | VdevKind::File | VdevKind::Dspare { .. } | VdevKind::Missing
        )
}

/// Top-level vdevs of a class, holes and removed ones left out.
pub fn of_class(root: &Vdev, class: VdevClass) -> impl Iterator<Item = &Vdev> {
    root.children
        .iter()
        .filter(move |v| v.class == class && !matches!(v.kind, VdevKind::Hole | VdevKind::Indirect))
}

/// The same as `zpool list` and `zpool iostat` show them, if they asked for removed ones: those come with the normal ones.
pub fn shown(root: &Vdev, class: VdevClass) -> impl Iterator<Item = &Vdev> {
    root.children
        .iter()
        .filter(move |v| v.class == class && v.kind != VdevKind::Hole)
}

/// The groups below the tree of normal vdevs, in the order of display, with the heading `zpool
/// status` gives them.
pub const CLASSES: [(VdevClass, &str); 5] = [
    (VdevClass::Dedup, "dedup"),
    (VdevClass::Special, "special"),
    (VdevClass::Log, "logs"),
    (VdevClass::Cache, "cache"),
    (VdevClass::Spare, "spares"),
];

/// Longest indent + name of a pool's vdevs, the root at 0 and two more per level.
pub fn name_width(root: &Vdev, pool: &str, how: Naming) -> usize {
    fn walk(vdev: &Vdev, pool: &str, depth: usize, how: Naming) -> usize {
        let own = depth + name(vdev, pool, how).chars().count();
        vdev.children
            .iter()
            .filter(|v| v.kind != VdevKind::Hole)
            .map(|v| walk(v, pool, depth + 2, how))
            .max()
            .unwrap_or(0)
            .max(own)
    }
    walk(root, pool, 0, how)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_names() {
        for (path, whole, want) in [
            ("/dev/sda1", true, "sda"),
            ("/dev/sda1", false, "sda1"),
            ("/dev/nvme0n1p1", true, "nvme0n1"),
            ("/dev/disk/by-id/ata-X-part1", true, "ata-X"),
            ("/dev/loop0", false, "loop0"),
            ("/dev/sdp1", true, "sdp"),
            ("/dev/vdb", true, "vdb"),
        ] {
            assert_eq!(short(path, whole), want);
        }
    }
}
