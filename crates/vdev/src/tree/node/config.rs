//! Conversion between vdevs and the nvlists of labels and configurations (pool format §5).

use super::{Stats, Vdev, VdevKind};
use crate::draid::Draid;
use crate::keys;
use crate::map::MAX_SHIFT;
use crate::state::{Aux, State};
use base::sync::MutexExt;
use base::{bail, RangeSet, Result, Txg};
use disk::{NvList, Value};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Mutex, RwLock};

/// Deepest nesting of a tree: a spare in a replacing in a mirror, and room.
pub(super) const MAX_DEPTH: usize = 8;

/// Most children of one vdev.
pub(super) const MAX_CHILDREN: usize = 255;

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
            .iter()
            .map(|n| Txg::new(*n))
            .collect();
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
            discards: AtomicBool::new(false),
            dirty: AtomicBool::new(false),
            committed: AtomicU64::new(0),
            dirty_txgs: Mutex::new(None),
            unflushed: Mutex::default(),
            reports: Default::default(),
            flushes: Default::default(),
            dtl: Mutex::new(RangeSet::new()),
            draid,
            indirect: RwLock::new(None),
            reflow: Mutex::new(None),
            top_ashift: AtomicU64::new(0),
            sits_out: AtomicU64::new(0),
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

    /// Takes the cached numbers over from the persistent ones.
    pub(crate) fn adopt_props(&self) {
        let (ashift, asize) = (self.get_u64(keys::ASHIFT), self.get_u64(keys::ASIZE));
        self.ashift.store(ashift.unwrap_or(0), Relaxed);
        self.asize.store(asize.unwrap_or(0), Relaxed);
    }

    pub(crate) fn props(&self) -> NvList {
        self.props.acquire().clone()
    }

    pub(super) fn flag(&self, key: &str) -> bool {
        self.get_u64(key).is_some_and(|v| v != 0)
    }
}
