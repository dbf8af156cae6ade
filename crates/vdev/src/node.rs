//! One vdev: its persistent properties, its children, and (for a leaf) the open device.

use crate::draid::Draid;
use crate::indirect::IndirectMap;
use crate::io_counts::{Counting, IoCounts, IoFigures};
use crate::keys;
use crate::map::{self, Map, Reflow, MAX_SHIFT};
use crate::state::{Aux, State};
use crate::unflushed::{Mark, Unflushed};
use base::sync::{MutexExt, RwLockExt};
use base::{bail, Error, Kind, RangeSet, Result, Txg};
use disk::label::{self, DATA_START};
use disk::{NvList, Value};
use env::{Disk, Op};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Mutex, RwLock};

/// Deepest nesting of a tree: a spare in a replacing in a mirror, and room.
const MAX_DEPTH: usize = 8;
/// Most children of one vdev.
const MAX_CHILDREN: usize = 255;

/// What a vdev is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VdevKind {
    Disk,
    File,
    Mirror,
    /// Old and new device during a replacement; a mirror in all else.
    Replacing,
    /// A device and the hot spare standing in for it; a mirror in all else.
    Spare,
    Raidz {
        nparity: usize,
    },
    Draid {
        nparity: usize,
        ndata: u64,
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
    pub read_ops: AtomicU64,
    pub read_bytes: AtomicU64,
    pub write_ops: AtomicU64,
    pub write_bytes: AtomicU64,
    pub read_errors: AtomicU64,
    pub write_errors: AtomicU64,
    pub checksum_errors: AtomicU64,
    /// Requests that were with the device for longer than [`crate::SLOW_NS`].
    pub slow_ios: AtomicU64,
    /// Bytes rewritten because a copy was bad or missing.
    pub repaired_bytes: AtomicU64,
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
    pub(crate) fn copy_from(&self, o: &Stats) {
        for (to, from) in [
            (&self.read_ops, &o.read_ops),
            (&self.read_bytes, &o.read_bytes),
            (&self.write_ops, &o.write_ops),
            (&self.write_bytes, &o.write_bytes),
            (&self.read_errors, &o.read_errors),
            (&self.write_errors, &o.write_errors),
            (&self.checksum_errors, &o.checksum_errors),
            (&self.slow_ios, &o.slow_ios),
            (&self.repaired_bytes, &o.repaired_bytes),
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
    pub stats: Stats,
    /// Latencies, sizes and queues of a leaf; groups and other vdevs without a device have none.
    io: Option<Box<IoCounts>>,
    state: AtomicU8,
    aux: AtomicU8,
    device: RwLock<Option<Arc<dyn Disk>>>,
    /// Allocatable bytes of the open device.
    device_asize: AtomicU64,
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
    pub(crate) fn new(
        kind: VdevKind,
        id: u64,
        guid: u64,
        props: NvList,
        children: Vec<Arc<Vdev>>,
    ) -> Arc<Vdev> {
        let ashift = props.get_u64(keys::ASHIFT).unwrap_or(0);
        let draid = match kind {
            VdevKind::Draid {
                nparity,
                ndata,
                nspares,
            } => {
                let groups = props.get_u64(keys::DRAID_NGROUPS).unwrap_or(0);
                let width = children.len();
                let slice = props.get_u64(keys::DRAID_NCHILDREN).unwrap_or(width as u64);
                let slice = usize::try_from(slice).unwrap_or(0);
                Draid::with_domains(width, slice, ndata, nparity, nspares, groups).ok()
            }
            _ => None,
        };
        let expand_txgs = props
            .get_u64_array(keys::RAIDZ_EXPAND_TXGS)
            .unwrap_or(&[])
            .to_vec();
        let v = Vdev {
            expanding: props.contains(keys::RAIDZ_EXPANDING),
            expand_txgs,
            kind,
            id: AtomicU64::new(id),
            guid: AtomicU64::new(guid),
            ashift: AtomicU64::new(ashift),
            asize: AtomicU64::new(props.get_u64(keys::ASIZE).unwrap_or(0)),
            children,
            props: Mutex::new(props),
            stats: Stats::default(),
            io: kind.is_leaf().then(Box::default),
            state: AtomicU8::new(State::Closed as u8),
            aux: AtomicU8::new(Aux::None as u8),
            device: RwLock::new(None),
            device_asize: AtomicU64::new(0),
            dirty: AtomicBool::new(false),
            dirty_txgs: Mutex::new(None),
            unflushed: Mutex::default(),
            dtl: Mutex::new(RangeSet::new()),
            draid,
            indirect: RwLock::new(None),
            reflow: Mutex::new(None),
            top_ashift: AtomicU64::new(0),
        };
        if ashift != 0 {
            v.spread_ashift(ashift);
        }
        Arc::new(v)
    }

    /// Tells the leaves below how large the slots of their uberblock rings are.
    pub(crate) fn spread_ashift(&self, ashift: u64) {
        for leaf in self.leaf_refs() {
            leaf.top_ashift.store(ashift, Relaxed);
        }
    }

    /// Reads a vdev and what is below it. `position` is its index in the parent; a differing `id`
    /// is damage.
    pub(crate) fn from_config(config: &NvList, position: u64, depth: usize) -> Result<Arc<Vdev>> {
        if depth > MAX_DEPTH {
            bail!(Damaged, "vdev tree is nested too deeply");
        }
        let id = config.get_u64(keys::ID).unwrap_or(position);
        if id != position {
            bail!(Damaged, "vdev with id {id} at position {position}");
        }
        let type_name = config.need_str(keys::TYPE)?;
        let small = |key: &str| -> Result<u64> {
            let v = config.need_u64(key)?;
            if v > MAX_CHILDREN as u64 {
                bail!(Damaged, "{type_name} vdev with {key} {v}");
            }
            Ok(v)
        };
        let kind = match type_name {
            "disk" => VdevKind::Disk,
            "file" => VdevKind::File,
            "mirror" => VdevKind::Mirror,
            "replacing" => VdevKind::Replacing,
            "spare" => VdevKind::Spare,
            "raidz" => {
                // Parity is implied before pool version 3.
                let p = config.get_u64(keys::NPARITY).unwrap_or(1);
                if !(1..=3).contains(&p) {
                    bail!(Damaged, "raidz vdev with parity {p}");
                }
                VdevKind::Raidz {
                    nparity: p as usize,
                }
            }
            "draid" => VdevKind::Draid {
                nparity: small(keys::NPARITY)? as usize,
                ndata: small(keys::DRAID_NDATA)?,
                nspares: small(keys::DRAID_NSPARES)?,
            },
            "dspare" => VdevKind::Dspare,
            "hole" => VdevKind::Hole,
            "missing" => VdevKind::Missing,
            "indirect" => VdevKind::Indirect,
            other => bail!(Unsupported, "vdev of unknown type '{other}'"),
        };
        let guid = config.get_u64(keys::GUID).unwrap_or(0);
        if guid == 0 && !matches!(kind, VdevKind::Hole | VdevKind::Missing) {
            bail!(Damaged, "{type_name} vdev {id} has no guid");
        }
        for key in [keys::ASHIFT] {
            if config
                .get_u64(key)
                .is_some_and(|v| v > u64::from(MAX_SHIFT))
            {
                bail!(Damaged, "vdev {guid}: bad {key}");
            }
        }
        if config
            .get_u64(keys::METASLAB_SHIFT)
            .is_some_and(|s| s >= 64)
        {
            bail!(Damaged, "vdev {guid}: bad metaslab_shift");
        }
        let list = config.get_nvlist_array(keys::CHILDREN).unwrap_or(&[]);
        if list.len() > MAX_CHILDREN {
            bail!(Damaged, "vdev {guid} with {} children", list.len());
        }
        let children: Vec<Arc<Vdev>> = list
            .iter()
            .enumerate()
            .map(|(i, c)| Vdev::from_config(c, i as u64, depth + 1))
            .collect::<Result<_>>()?;
        let is_group = |k| {
            matches!(
                k,
                VdevKind::Mirror | VdevKind::Raidz { .. } | VdevKind::Draid { .. }
            )
        };
        if depth > 0 && is_group(kind) {
            // Such pools are made by tests of OpenZFS only, which knows no command for it.
            bail!(
                Unsupported,
                "a {type_name} vdev ({guid}) below another vdev"
            );
        }
        let wrong = match kind {
            VdevKind::Raidz { nparity } => children.len() <= nparity,
            VdevKind::Draid { nparity, .. } => children.len() <= nparity,
            k if k.is_mirrorish() => children.is_empty(),
            _ => !children.is_empty(),
        };
        if wrong {
            bail!(
                Damaged,
                "{type_name} vdev {guid} with {} children",
                children.len()
            );
        }
        let mut props = config.clone();
        for key in [keys::TYPE, keys::ID, keys::GUID, keys::CHILDREN] {
            props.remove(key);
        }
        if !matches!(kind, VdevKind::Draid { .. } | VdevKind::Raidz { .. }) {
            props.remove(keys::NPARITY);
        }
        let v = Vdev::new(kind, id, guid, props, children);
        if matches!(kind, VdevKind::Draid { .. }) && v.draid.is_none() {
            bail!(
                Damaged,
                "dRAID vdev {guid}: its numbers do not fit each other"
            );
        }
        Ok(v)
    }

    /// The configuration of this vdev and all below: with `mos` everything, without it what belongs
    /// into a label.
    pub fn config(&self, mos: bool) -> NvList {
        let mut out = NvList::new();
        out.set(keys::TYPE, self.kind.type_name());
        out.set(keys::ID, self.id());
        out.set(keys::GUID, self.guid());
        for (name, value) in self.props.acquire().iter() {
            if mos || !keys::MOS_ONLY.contains(&name) {
                out.set(name, value.clone());
            }
        }
        if !self.children.is_empty() || self.kind == VdevKind::Indirect {
            let list: Vec<NvList> = self.children.iter().map(|c| c.config(mos)).collect();
            out.set(keys::CHILDREN, Value::NvListArray(list));
        }
        out
    }

    pub fn kind(&self) -> VdevKind {
        self.kind
    }

    /// Index in the parent.
    pub fn id(&self) -> u64 {
        self.id.load(Relaxed)
    }

    pub(crate) fn set_id(&self, id: u64) {
        self.id.store(id, Relaxed);
    }

    pub fn guid(&self) -> u64 {
        self.guid.load(Relaxed)
    }

    pub(crate) fn set_guid(&self, guid: u64) {
        self.guid.store(guid, Relaxed);
    }

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

    /// A persistent number by key ([`keys`]).
    pub fn get_u64(&self, key: &str) -> Option<u64> {
        self.props.acquire().get_u64(key)
    }

    /// A persistent text by key.
    pub fn get_str(&self, key: &str) -> Option<String> {
        self.props.acquire().get_str(key).map(str::to_string)
    }

    /// Any persistent value by key.
    pub fn get(&self, key: &str) -> Option<Value> {
        self.props.acquire().get(key).cloned()
    }

    /// Sets a persistent number. The caller sees to it that the configuration gets written.
    pub fn set_u64(&self, key: &str, value: u64) {
        self.props.acquire().set(key, value);
    }

    /// Sets any persistent value.
    pub fn set(&self, key: &str, value: impl Into<Value>) {
        self.props.acquire().set(key, value);
    }

    /// Removes a persistent value.
    pub fn unset(&self, key: &str) {
        self.props.acquire().remove(key);
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

    /// Takes the cached numbers over from the persistent ones.
    pub(crate) fn adopt_props(&self) {
        let (ashift, asize) = (self.get_u64(keys::ASHIFT), self.get_u64(keys::ASIZE));
        self.ashift.store(ashift.unwrap_or(0), Relaxed);
        self.asize.store(asize.unwrap_or(0), Relaxed);
    }

    pub(crate) fn props(&self) -> NvList {
        self.props.acquire().clone()
    }

    fn flag(&self, key: &str) -> bool {
        self.get_u64(key).is_some_and(|v| v != 0)
    }

    /// Path of a leaf.
    pub fn path(&self) -> Option<String> {
        self.get_str(keys::PATH)
    }

    pub fn set_path(&self, path: &str) {
        self.set(keys::PATH, path);
    }

    pub fn is_log(&self) -> bool {
        self.flag(keys::IS_LOG)
    }

    pub fn is_offline(&self) -> bool {
        self.flag(keys::OFFLINE)
    }

    pub fn metaslab_array(&self) -> u64 {
        self.get_u64(keys::METASLAB_ARRAY).unwrap_or(0)
    }

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
        let last = path.rsplit('/').next().unwrap_or(&path);
        if !self.flag(keys::WHOLE_DISK) {
            return last.to_string();
        }
        strip_partition(last).to_string()
    }

    // ---- state

    pub fn state(&self) -> State {
        State::from_u8(self.state.load(Relaxed))
    }

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
    /// data is degraded, though every device works: it has less redundancy than its layout promises.
    pub(crate) fn propagate(&self) {
        if self.kind.is_leaf() {
            return;
        }
        self.children.iter().for_each(|c| c.propagate());
        let dead = self.children.iter().filter(|c| !c.state().usable()).count();
        // In a replacing or spare group one complete child is all there has to be.
        let all_wanted = matches!(
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

    // ---- DTL

    /// Transaction groups this leaf lacks (half-open ranges).
    pub fn dtl(&self) -> RangeSet {
        self.dtl.acquire().clone()
    }

    /// Replaces the set, as read from the pool.
    pub fn set_dtl(&self, ranges: RangeSet) {
        *self.dtl.acquire() = ranges;
    }

    pub fn dtl_is_empty(&self) -> bool {
        self.dtl.acquire().is_empty()
    }

    /// Whether data born in `txg` may be missing here.
    pub fn dtl_contains(&self, txg: Txg) -> bool {
        self.dtl.acquire().contains(txg, txg.saturating_add(1))
    }

    /// Notes that writes of `txg` did not get here.
    pub fn dtl_add(&self, txg: Txg) {
        self.dtl_add_range(txg, txg.saturating_add(1));
    }

    pub fn dtl_add_range(&self, start: Txg, end: Txg) {
        let mut dtl = self.dtl.acquire();
        // Told once for a txg, of which many blocks may be missing.
        if tracing::enabled!(tracing::Level::DEBUG) && !dtl.contains(start, end) {
            tracing::debug!(vdev = %self.name(), txg = start, end, "DTL: txgs are missing");
        }
        dtl.insert(start, end);
    }

    /// Notes that everything born in `[start, end)` is here again.
    pub fn dtl_remove_range(&self, start: Txg, end: Txg) {
        self.dtl.acquire().remove(start, end);
    }

    /// Txgs missing from this vdev as a whole: on all children of a mirror, on more than the parity
    /// of a RAID-Z. Data born then cannot be read.
    pub fn missing(&self) -> RangeSet {
        match self.kind {
            VdevKind::Disk | VdevKind::File | VdevKind::Dspare => self.dtl(),
            VdevKind::Raidz { nparity } | VdevKind::Draid { nparity, .. } => {
                self.missing_on(nparity + 1)
            }
            k if k.is_mirrorish() => self.missing_on(self.children.len()),
            _ => RangeSet::new(),
        }
    }

    /// Txgs missing on at least `n` children.
    fn missing_on(&self, n: usize) -> RangeSet {
        let mut edges: Vec<(u64, i64)> = Vec::new();
        for c in &self.children {
            for (s, e) in c.missing().iter() {
                edges.push((s, 1));
                edges.push((e, -1));
            }
        }
        edges.sort_unstable();
        let mut out = RangeSet::new();
        let (mut depth, mut since) = (0i64, 0);
        for (at, step) in edges {
            if depth >= n as i64 {
                out.insert(since, at);
            }
            depth += step;
            since = at;
        }
        out
    }

    // ---- the device of a leaf

    pub(crate) fn device(&self) -> Option<Arc<dyn Disk>> {
        self.device.acquire_read().clone()
    }

    pub(crate) fn set_device(&self, device: Option<Arc<dyn Disk>>) {
        let size = device.as_ref().map_or(0, |d| d.geometry().size);
        self.device_asize.store(label::leaf_asize(size), Relaxed);
        *self.device.acquire_write() = device;
    }

    /// Allocatable bytes of the open device of a leaf, 0 if it is not open.
    pub fn device_asize(&self) -> u64 {
        self.device_asize.load(Relaxed)
    }

    /// The device if I/O may be sent to it.
    pub(crate) fn usable_device(&self) -> Option<Arc<dyn Disk>> {
        if !self.state().usable() {
            return None;
        }
        self.device()
    }

    /// Byte offset on the device of `offset` in the data area, if `len` bytes fit there.
    pub(crate) fn data_offset(&self, offset: u64, len: usize) -> Result<u64> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.device_asize() => Ok(offset + DATA_START),
            _ => bail!(
                Damaged,
                "{}: {len} bytes at {offset:#x} are outside",
                self.name()
            ),
        }
    }

    /// Byte offset on the device of `offset` in the boot area, if `len` bytes fit there: where the
    /// beginning of a RAID-Z lies while its expansion uses the scratch area (pool format §10).
    pub(crate) fn boot_offset(&self, offset: u64, len: usize) -> Result<u64> {
        const SIZE: u64 = DATA_START - label::BOOT_AREA;
        match offset.checked_add(len as u64) {
            Some(end) if end <= SIZE => Ok(self.data_offset(offset, len)? - SIZE),
            _ => bail!(
                Damaged,
                "{}: {len} bytes at {offset:#x} are outside of the scratch area",
                self.name()
            ),
        }
    }

    /// Notes that writes of `txg` are about to be sent.
    pub(crate) fn soil(&self, txg: Txg) {
        let mut d = self.dirty_txgs.acquire();
        let (a, b) = d.unwrap_or((txg, txg));
        *d = Some((a.min(txg), b.max(txg)));
    }

    /// Whether anything was written since the last call: the txgs concerned, and what was written.
    pub(crate) fn take_dirty(&self) -> Option<(Option<(Txg, Txg)>, Unflushed)> {
        self.dirty.swap(false, Relaxed).then(|| {
            let txgs = self.dirty_txgs.acquire().take();
            (txgs, std::mem::take(&mut *self.unflushed.acquire()))
        })
    }

    /// Takes back what [`Vdev::take_dirty`] gave: no flush has covered it.
    pub(crate) fn put_back_dirty(&self, txgs: Option<(Txg, Txg)>, writes: Unflushed) {
        for txg in txgs.into_iter().flat_map(|(a, b)| [a, b]) {
            self.soil(txg);
        }
        self.unflushed.acquire().put_back(writes);
        self.dirty.store(true, Relaxed);
    }

    /// What was written since the last flush may be lost, since the device failed or was away.
    pub(crate) fn suspect(&self) {
        let mut u = self.unflushed.acquire();
        u.suspect |= !u.is_empty();
    }

    /// What the requests of a leaf took since the pool was opened; none for groups.
    pub fn io_figures(&self) -> Option<IoFigures> {
        self.io.as_ref().map(|io| io.figures())
    }

    /// Runs transfers at *device* offsets, with counters.
    pub(crate) fn batch(&self, ops: Vec<Op>) -> Vec<(Op, Result<()>)> {
        self.batch_in(ops, None, true, &|_| false)
    }

    /// The same, with writes of group `txg` and what each puts where. The group is noted again before the
    /// leaf counts as dirty: a flush under way meanwhile has taken the note along, and is not the one
    /// that covers them. `urgent`: somebody waits for them. `merged`: which operations (by index) were
    /// several before.
    pub(crate) fn batch_in(
        &self,
        ops: Vec<Op>,
        note: Option<(Txg, &[Vec<Mark>])>,
        urgent: bool,
        merged: &(dyn Fn(usize) -> bool + Sync),
    ) -> Vec<(Op, Result<()>)> {
        let Some(device) = self.usable_device() else {
            let gone = || Error::new(Kind::NoDevice, format!("{}: not available", self.name()));
            return ops.into_iter().map(|op| (op, Err(gone()))).collect();
        };
        let done = match &self.io {
            Some(io) => {
                let watch = Counting::new(io, &self.stats.slow_ios, urgent, merged);
                device.batch_watched(ops, &watch)
            }
            None => device.batch(ops),
        };
        if let Some((txg, marks)) = note {
            self.soil(txg);
            let mut unflushed = self.unflushed.acquire();
            let written = done.iter().zip(marks).filter(|((_, r), _)| r.is_ok());
            for m in written.flat_map(|(_, marks)| marks) {
                unflushed.add(m);
            }
        }
        let s = &self.stats;
        for (op, result) in &done {
            let (ops, bytes, errors, n) = match op {
                Op::Read { buf, .. } => (&s.read_ops, &s.read_bytes, &s.read_errors, buf.len()),
                Op::Write { bufs, .. } => {
                    self.dirty.store(true, Relaxed);
                    let n = bufs.iter().map(|b| b.len()).sum();
                    (&s.write_ops, &s.write_bytes, &s.write_errors, n)
                }
            };
            ops.fetch_add(1, Relaxed);
            bytes.fetch_add(n as u64, Relaxed);
            if result.is_err() {
                errors.fetch_add(1, Relaxed);
            }
        }
        done
    }

    // ---- arithmetic of top-level vdevs

    /// Allocated bytes of a block of `psize` bytes (pool format §8).
    pub fn asize_for(&self, psize: u64) -> u64 {
        match self.kind {
            VdevKind::Raidz { nparity } => crate::size::raidz_asize(
                psize,
                self.ashift(),
                self.raidz_width(Txg::MAX) as u64,
                nparity as u64,
            ),
            VdevKind::Draid { nparity, ndata, .. } => {
                crate::size::draid_asize(psize, self.ashift(), ndata, nparity as u64)
            }
            _ => crate::size::plain_asize(psize, self.ashift()),
        }
    }

    /// Deflated bytes per sector (pool format §8), with the width at creation.
    pub fn deflate_ratio(&self) -> u64 {
        let asize = match self.kind {
            VdevKind::Raidz { nparity } => crate::size::raidz_asize(
                128 << 10,
                self.ashift(),
                self.raidz_width(0) as u64,
                nparity as u64,
            ),
            _ => self.asize_for(128 << 10),
        };
        crate::size::deflate_ratio(asize)
    }

    /// Children of a RAID-Z that count for a block born in `birth` (pool format §10).
    pub(crate) fn raidz_width(&self, birth: Txg) -> usize {
        let later = self.expand_txgs.iter().filter(|t| **t > birth).count();
        let now = self.children.len() - usize::from(self.is_expanding());
        now.saturating_sub(later)
    }

    /// Bytes an allocation must start at a multiple of: the sector, or a whole row of a dRAID group
    /// (to which metaslab starts are rounded up and their sizes down).
    pub fn alloc_unit(&self) -> u64 {
        let width = self.draid.as_ref().map_or(1, Draid::group_width);
        width << self.ashift()
    }

    /// Smallest useful block: all data columns of a dRAID, otherwise a sector. Bytes.
    pub fn min_block(&self) -> u64 {
        let width = match self.kind {
            VdevKind::Draid { ndata, .. } => ndata,
            _ => 1,
        };
        width << self.ashift()
    }

    pub(crate) fn draid(&self) -> Option<&Draid> {
        self.draid.as_ref()
    }

    /// Hands over the mapping of a removed vdev, without which its blocks cannot be read.
    pub fn set_indirect(&self, map: Arc<IndirectMap>) {
        *self.indirect.acquire_write() = Some(map);
    }

    pub fn indirect(&self) -> Option<Arc<IndirectMap>> {
        self.indirect.acquire_read().clone()
    }

    pub(crate) fn set_reflow(&self, reflow: Option<Reflow>) {
        *self.reflow.acquire() = reflow;
    }

    /// How far the widening of a RAID-Z got, if one is under way and the uberblock said it.
    pub fn reflow(&self) -> Option<Reflow> {
        self.reflow.acquire().filter(|_| self.expanding)
    }

    /// Layout of a block on the children; `None` where every leaf holds all of it.
    pub(crate) fn layout(&self, offset: u64, psize: usize, birth: Txg) -> Result<Option<Map>> {
        let ashift = self.ashift();
        Ok(match (self.kind, &self.draid) {
            (VdevKind::Raidz { nparity }, _) => {
                let reflow = self.reflow();
                if self.is_expanding() && reflow.is_none() {
                    bail!(
                        Unsupported,
                        "{}: state of its expansion is not known",
                        self.name()
                    );
                }
                let (physical, logical) = (self.children.len(), self.raidz_width(birth));
                Some(map::raidz(
                    physical, logical, nparity, ashift, offset, psize, reflow,
                )?)
            }
            (_, Some(d)) => Some(d.map(ashift, offset, psize)?),
            _ => None,
        })
    }

    /// Leaves that hold what child `child` of this vdev has at `offset`, each with the vdev whose
    /// DTL and faults count: itself, or the distributed spare it stands for.
    pub(crate) fn holders(&self, child: usize, offset: u64) -> Vec<(Arc<Vdev>, Arc<Vdev>)> {
        let mut out = Vec::new();
        if let Some(c) = self.children.get(child) {
            self.collect_holders(c, offset, 0, &mut out);
        }
        out
    }

    fn collect_holders(
        &self,
        v: &Arc<Vdev>,
        offset: u64,
        depth: usize,
        out: &mut Vec<(Arc<Vdev>, Arc<Vdev>)>,
    ) {
        if v.kind.is_leaf() {
            out.push((v.clone(), v.clone()));
        }
        if let (VdevKind::Dspare, Some(d)) = (v.kind, &self.draid) {
            let spare = v.get_u64(keys::SPARE_ID).unwrap_or(u64::MAX);
            // The place may lie on a child that a spare stands in for as well.
            let child = d
                .spare_child(spare, offset)
                .ok()
                .and_then(|i| self.children.get(i));
            if let Some(c) = child.filter(|_| depth < MAX_DEPTH) {
                let mut below = Vec::new();
                self.collect_holders(c, offset, depth + 1, &mut below);
                out.extend(below.into_iter().map(|(leaf, _)| (leaf, v.clone())));
            }
        }
        v.children
            .iter()
            .for_each(|c| self.collect_holders(c, offset, depth, out));
    }

    /// Whether a RAID-Z is being widened right now.
    pub fn is_expanding(&self) -> bool {
        self.expanding
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
