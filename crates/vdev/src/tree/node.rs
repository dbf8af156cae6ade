//! One vdev: its persistent properties, its children, and (for a leaf) the open device.

mod config;
mod device;
mod dtl;
mod layout;

use crate::draid::Draid;
use crate::indirect::IndirectMap;
use crate::io_counts::IoCounts;
use crate::keys;
use crate::map::Reflow;
use crate::reports::{Flushes, Reports};
use crate::state::{Aux, State};
use crate::unflushed::Unflushed;
use base::sync::MutexExt;
use base::{RangeSet, Txg};
use disk::NvList;
use env::Disk;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Mutex, RwLock};

/// What a vdev is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VdevKind {
    /// A block device.
    Disk,
    /// An image file.
    File,
    /// Every child holds the same bytes.
    Mirror,
    /// Old and new device during a replacement; a mirror in all else.
    Replacing,
    /// A device and the hot spare standing in for it; a mirror in all else.
    Spare,
    /// RAID-Z.
    Raidz {
        /// Columns of parity, 1 to 3.
        nparity: usize,
    },
    /// Distributed RAID.
    Draid {
        /// Columns of parity, 1 to 3.
        nparity: usize,
        /// Data columns of a group.
        ndata: u64,
        /// Number of distributed spares.
        nspares: u64,
    },
    /// Virtual spare of a dRAID: spare capacity on the children of the same vdev.
    Dspare,
    /// Slot of a removed log vdev.
    Hole,
    /// Slot no label was found for.
    Missing,
    /// Removed data vdev whose blocks were copied elsewhere; see [`crate::IndirectMap`].
    Indirect,
}

impl VdevKind {
    /// The word in configurations.
    pub fn type_name(self) -> &'static str {
        match self {
            VdevKind::Disk => "disk",
            VdevKind::File => "file",
            VdevKind::Mirror => "mirror",
            VdevKind::Replacing => "replacing",
            VdevKind::Spare => "spare",
            VdevKind::Raidz { .. } => "raidz",
            VdevKind::Draid { .. } => "draid",
            VdevKind::Dspare => "dspare",
            VdevKind::Hole => "hole",
            VdevKind::Missing => "missing",
            VdevKind::Indirect => "indirect",
        }
    }

    /// Whether it has a device of its own.
    pub fn is_leaf(self) -> bool {
        matches!(self, VdevKind::Disk | VdevKind::File)
    }

    /// Whether every child holds the same bytes.
    pub fn is_mirrorish(self) -> bool {
        matches!(
            self,
            VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare
        )
    }
}

/// Counters since the pool was opened.
#[derive(Debug, Default)]
pub struct Stats {
    /// Reads sent to the device.
    pub read_ops: AtomicU64,
    /// Bytes of those reads.
    pub read_bytes: AtomicU64,
    /// Writes sent to the device.
    pub write_ops: AtomicU64,
    /// Bytes of those writes.
    pub write_bytes: AtomicU64,
    /// Reads the device failed.
    pub read_errors: AtomicU64,
    /// Writes and flushes the device failed.
    pub write_errors: AtomicU64,
    /// Reads that returned other bytes than were written.
    pub checksum_errors: AtomicU64,
    /// Discards sent to the device.
    pub trim_ops: AtomicU64,
    /// Bytes of those discards.
    pub trim_bytes: AtomicU64,
    /// Discards the device failed.
    pub trim_errors: AtomicU64,
    /// Writes to free space that the device failed.
    pub initialize_errors: AtomicU64,
    /// Requests that were with the device for longer than [`crate::SLOW_NS`].
    pub slow_ios: AtomicU64,
    /// Bytes rewritten because a copy was bad.
    pub repaired_bytes: AtomicU64,
    /// Bytes that the newest scrub or resilver has written.
    pub scan_bytes: AtomicU64,
}

impl Stats {
    /// `zpool clear`: forgets the errors and slow requests.
    pub fn clear_errors(&self) {
        self.read_errors.store(0, Relaxed);
        self.write_errors.store(0, Relaxed);
        self.checksum_errors.store(0, Relaxed);
        self.slow_ios.store(0, Relaxed);
    }

    /// Takes over the counters of another vdev that this one stands for.
    pub fn copy_from(&self, o: &Stats) {
        for (to, from) in [
            (&self.read_ops, &o.read_ops),
            (&self.read_bytes, &o.read_bytes),
            (&self.write_ops, &o.write_ops),
            (&self.write_bytes, &o.write_bytes),
            (&self.read_errors, &o.read_errors),
            (&self.write_errors, &o.write_errors),
            (&self.checksum_errors, &o.checksum_errors),
            (&self.trim_ops, &o.trim_ops),
            (&self.trim_bytes, &o.trim_bytes),
            (&self.trim_errors, &o.trim_errors),
            (&self.initialize_errors, &o.initialize_errors),
            (&self.slow_ios, &o.slow_ios),
            (&self.repaired_bytes, &o.repaired_bytes),
            (&self.scan_bytes, &o.scan_bytes),
        ] {
            to.store(from.load(Relaxed), Relaxed);
        }
    }

    /// (read, write, checksum) errors.
    pub fn errors(&self) -> (u64, u64, u64) {
        (
            self.read_errors.load(Relaxed),
            self.write_errors.load(Relaxed),
            self.checksum_errors.load(Relaxed),
        )
    }
}

/// A vdev below the root. The children of a vdev never change; what changes the shape of the tree
/// puts a new vdev in its place, which shares the leaves.
pub struct Vdev {
    kind: VdevKind,
    id: AtomicU64,
    guid: AtomicU64,
    ashift: AtomicU64,
    asize: AtomicU64,
    children: Vec<Arc<Vdev>>,
    /// Everything persistent except type, id, guid and children, unknown keys included.
    props: Mutex<NvList>,
    /// Counters of this vdev alone, not of its children.
    pub stats: Stats,
    /// Latencies, sizes and queues of a leaf; groups and other vdevs without a device have none.
    io: Option<Box<IoCounts>>,
    reports: Reports,
    pub(crate) flushes: Flushes,
    state: AtomicU8,
    aux: AtomicU8,
    device: RwLock<Option<Arc<dyn Disk>>>,
    /// Allocatable bytes of the open device.
    device_asize: AtomicU64,
    /// The device that was opened last can discard.
    discards: AtomicBool,
    /// Txg of the last uberblock that was written here.
    committed: AtomicU64,
    /// Written since the last flush, and the first and last txg of those writes if they had any.
    dirty: AtomicBool,
    dirty_txgs: Mutex<Option<(Txg, Txg)>>,
    /// What was written since the last flush; see [`crate::unflushed`].
    unflushed: Mutex<Unflushed>,
    dtl: Mutex<RangeSet>,
    /// Layout of a dRAID, if its numbers make sense.
    draid: Option<Draid>,
    /// Where the blocks of a removed vdev are.
    indirect: RwLock<Option<Arc<IndirectMap>>>,
    /// A RAID-Z is being widened; txgs from which earlier widenings count.
    expanding: bool,
    expand_txgs: Vec<Txg>,
    /// How far a RAID-Z that is being widened is rearranged; `None` if nobody said.
    reflow: Mutex<Option<Reflow>>,
    /// Size of the ring slots on this leaf: the ashift of its top-level vdev.
    pub(crate) top_ashift: AtomicU64,
    /// See [`Vdev::sit_out`].
    sits_out: AtomicU64,
}

impl std::fmt::Debug for Vdev {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}({})[{:?}]{:?}",
            self.name(),
            self.guid(),
            self.state(),
            self.children
        )
    }
}

impl Vdev {
    /// What the vdev is.
    pub fn kind(&self) -> VdevKind {
        self.kind
    }

    /// Reads of a RAID-Z or dRAID make up for this leaf from parity, except those of scans, until the caller says otherwise. Writes go
    /// to it. `until` is for the caller to remember, and not 0; 0: the leaf is read again.
    pub fn sit_out(&self, until: u64) {
        self.sits_out.store(until, Relaxed);
    }

    /// What [`Vdev::sit_out`] was told; 0: the leaf is read.
    pub fn sits_out(&self) -> u64 {
        self.sits_out.load(Relaxed)
    }

    /// Index in the parent.
    pub fn id(&self) -> u64 {
        self.id.load(Relaxed)
    }

    pub(crate) fn set_id(&self, id: u64) {
        self.id.store(id, Relaxed);
    }

    /// The guid; 0 for holes.
    pub fn guid(&self) -> u64 {
        self.guid.load(Relaxed)
    }

    pub(crate) fn set_guid(&self, guid: u64) {
        self.guid.store(guid, Relaxed);
    }

    /// The children by index; empty for leaves.
    pub fn children(&self) -> &[Arc<Vdev>] {
        &self.children
    }

    /// log2 of the sector size; meaningful on top-level vdevs.
    pub fn ashift(&self) -> u32 {
        self.ashift.load(Relaxed) as u32
    }

    /// Allocatable bytes, parity included; meaningful on top-level vdevs.
    pub fn asize(&self) -> u64 {
        self.asize.load(Relaxed)
    }

    pub(crate) fn set_asize(&self, asize: u64) {
        self.asize.store(asize, Relaxed);
        self.set_u64(keys::ASIZE, asize);
    }

    /// `zpool clear`: takes back that the vdev was put out of use because of errors. True if it was;
    /// the caller opens it again and has the configuration written.
    pub fn forgive(&self) -> bool {
        let mut props = self.props.acquire();
        let mut was = false;
        for key in [keys::FAULTED, keys::DEGRADED] {
            was |= props.get_u64(key).is_some_and(|v| v != 0);
            props.remove(key);
        }
        if was {
            props.remove(keys::AUX_STATE);
        }
        drop(props);
        if was && self.kind.is_leaf() && self.state() == State::Degraded {
            self.set_state(State::Healthy, Aux::None);
        }
        was
    }

    /// Path of a leaf.
    pub fn path(&self) -> Option<String> {
        self.get_str(keys::PATH)
    }

    /// Changes the path in the configuration. The open device stays as it is.
    pub fn set_path(&self, path: &str) {
        self.set(keys::PATH, path);
    }

    /// Whether it is a log that is not used because the pool says so: it was taken offline, or put out of use because of errors. The
    /// intent logs were emptied before, and nobody misses it.
    pub fn is_put_away(&self) -> bool {
        let away = |l: &&Vdev| l.flag(keys::OFFLINE) || l.flag(keys::FAULTED);
        self.is_log() && !self.state().usable() && self.leaf_refs().iter().all(away)
    }

    /// Whether it is a top-level vdev for intent logs.
    pub fn is_log(&self) -> bool {
        self.flag(keys::IS_LOG)
    }

    /// Whether the administrator took it out of use.
    pub fn is_offline(&self) -> bool {
        self.flag(keys::OFFLINE)
    }

    /// MOS object with the numbers of the space maps; 0 if there is none yet.
    pub fn metaslab_array(&self) -> u64 {
        self.get_u64(keys::METASLAB_ARRAY).unwrap_or(0)
    }

    /// log2 of the size of a metaslab in bytes; 0 if there are none.
    pub fn metaslab_shift(&self) -> u32 {
        self.get_u64(keys::METASLAB_SHIFT).unwrap_or(0) as u32
    }

    /// Number of metaslabs; 0 where nothing can be allocated.
    pub fn metaslab_count(&self) -> u64 {
        match self.metaslab_shift() {
            0 => 0,
            s => self.asize() >> s,
        }
    }

    /// Whether blocks can live here.
    pub fn is_concrete(&self) -> bool {
        !matches!(
            self.kind,
            VdevKind::Hole | VdevKind::Missing | VdevKind::Indirect
        )
    }

    /// All leaves at or below this vdev, in order.
    pub fn leaves(self: &Arc<Vdev>) -> Vec<Arc<Vdev>> {
        let mut out = Vec::new();
        self.collect(&mut out);
        out
    }

    fn collect(self: &Arc<Vdev>, out: &mut Vec<Arc<Vdev>>) {
        if self.kind.is_leaf() {
            out.push(self.clone());
        }
        self.children.iter().for_each(|c| c.collect(out));
    }

    fn leaf_refs(&self) -> Vec<&Vdev> {
        let mut out = Vec::new();
        if self.kind.is_leaf() {
            out.push(self);
        }
        for c in &self.children {
            out.extend(c.leaf_refs());
        }
        out
    }

    /// The distributed spares in use below this vdev.
    pub(crate) fn dspares(&self) -> Vec<&Vdev> {
        let mut out: Vec<&Vdev> = self.children.iter().flat_map(|c| c.dspares()).collect();
        if self.kind == VdevKind::Dspare {
            out.push(self);
        }
        out
    }

    /// Sum of the guids at and below (mod 2^64).
    pub fn guid_sum(&self) -> u64 {
        self.children
            .iter()
            .fold(self.guid(), |s, c| s.wrapping_add(c.guid_sum()))
    }

    /// The name in `zpool status` (command reference §8.5).
    pub fn name(&self) -> String {
        let id = self.id();
        match self.kind {
            VdevKind::Disk | VdevKind::File => self.leaf_name(),
            VdevKind::Dspare => self.path().unwrap_or_else(|| self.guid().to_string()),
            VdevKind::Raidz { nparity } => format!("raidz{nparity}-{id}"),
            VdevKind::Draid {
                nparity,
                ndata,
                nspares,
            } => {
                let width = self.children.len();
                match self.get_u64(keys::DRAID_NCHILDREN) {
                    Some(c) if c != width as u64 => {
                        format!("draid{nparity}:{ndata}d:{c}c:{width}w:{nspares}s-{id}")
                    }
                    _ => format!("draid{nparity}:{ndata}d:{width}c:{nspares}s-{id}"),
                }
            }
            k => format!("{}-{id}", k.type_name()),
        }
    }

    fn leaf_name(&self) -> String {
        let Some(path) = self.path().filter(|_| !self.flag(keys::NOT_PRESENT)) else {
            return self.guid().to_string();
        };
        if self.kind == VdevKind::File {
            return path;
        }
        let last = base::short_device_name(&path);
        if !self.flag(keys::WHOLE_DISK) {
            return last.to_string();
        }
        strip_partition(last).to_string()
    }

    /// Health. That of an interior vdev follows from its children.
    pub fn state(&self) -> State {
        State::from_u8(self.state.load(Relaxed))
    }

    /// Reason of the health; [`Aux::None`] where there is nothing to say.
    pub fn aux(&self) -> Aux {
        Aux::from_u8(self.aux.load(Relaxed))
    }

    pub(crate) fn set_state(&self, state: State, aux: Aux) {
        if (state, aux) != (self.state(), self.aux()) {
            tracing::debug!(vdev = %self.name(), guid = self.guid(), ?state, ?aux, "vdev changes its state");
        }
        self.state.store(state as u8, Relaxed);
        self.aux.store(aux as u8, Relaxed);
    }

    /// Recomputes the states of the interior vdevs from the leaves. A group of which a child lacks
    /// data is degraded, though every device works: it has less redundancy than its layout promises. Unless
    /// a resilver gives the data to it (`filled`).
    pub(crate) fn propagate(&self, filled: bool) {
        if self.kind.is_leaf() {
            return;
        }
        self.children.iter().for_each(|c| c.propagate(filled));
        let dead = self.children.iter().filter(|c| !c.state().usable()).count();
        // In a replacing or spare group one complete child is all there has to be.
        let all_wanted = !filled
            && matches!(
                self.kind,
                VdevKind::Mirror | VdevKind::Raidz { .. } | VdevKind::Draid { .. }
            );
        let hurt = self
            .children
            .iter()
            .any(|c| c.state() != State::Healthy || all_wanted && !c.missing().is_empty());
        let offline = self
            .children
            .iter()
            .filter(|c| c.state() == State::Offline)
            .count();
        let tolerated = match self.kind {
            VdevKind::Hole | VdevKind::Indirect => {
                return self.set_state(State::Healthy, Aux::None)
            }
            VdevKind::Missing => return self.set_state(State::CantOpen, Aux::OpenFailed),
            // It has no device to fail; where its place is gone, that child counts already.
            VdevKind::Dspare => return self.set_state(State::Healthy, Aux::None),
            VdevKind::Raidz { nparity } | VdevKind::Draid { nparity, .. } => nparity,
            _ => self.children.len().saturating_sub(1),
        };
        if dead > tolerated {
            let aux = if offline == self.children.len() {
                Aux::ChildrenOffline
            } else {
                Aux::NoReplicas
            };
            self.set_state(State::CantOpen, aux);
        } else if hurt {
            self.set_state(State::Degraded, Aux::None);
        } else {
            self.set_state(State::Healthy, Aux::None);
        }
    }
}

/// `sda1` → `sda`, `nvme0n1p1` → `nvme0n1`, `x-part1` → `x`; anything else stays.
fn strip_partition(name: &str) -> &str {
    let head = name.trim_end_matches(|c: char| c.is_ascii_digit());
    if head.len() == name.len() || head.is_empty() {
        return name;
    }
    if let Some(h) = head.strip_suffix("-part") {
        return h;
    }
    if let Some(h) = head.strip_suffix('p') {
        if h.ends_with(|c: char| c.is_ascii_digit()) {
            return h;
        }
    }
    let plain = ["sd", "hd", "vd", "xvd"]
        .iter()
        .any(|p| head.starts_with(p));
    if plain && head.chars().all(|c| c.is_ascii_lowercase()) {
        head
    } else {
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partition_suffixes() {
        for (name, want) in [
            ("sda1", "sda"),
            ("nvme0n1p1", "nvme0n1"),
            ("ata-X_1-part9", "ata-X_1"),
            ("xvdb2", "xvdb"),
            ("dm-0", "dm-0"),
            ("mmcblk0p2", "mmcblk0"),
            ("123", "123"),
            ("tank1", "tank1"),
        ] {
            assert_eq!(strip_partition(name), want);
        }
    }
}
