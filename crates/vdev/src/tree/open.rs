//! Opening, closing, checking leaves; building a tree for a new pool.

use crate::draid::{self, Draid};
use crate::keys;
use crate::label;
use crate::node::{Vdev, VdevKind};
use crate::spec::{DevSpec, GroupKind, TopSpec};
use crate::state::{Aux, State};
use crate::{size, VdevTree};
use base::{bail, Error, Kind, Result, Txg};
use disk::label::{leaf_asize, MIN_DEVICE};
use disk::NvList;
use env::{Access, Disk, Env};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

/// Largest ashift chosen without being asked for.
const MAX_AUTO_ASHIFT: u32 = 14;

/// A guid for a new vdev or pool: random and not 0.
pub(crate) fn new_guid(env: &Env) -> u64 {
    loop {
        let g = env.rng.u64();
        if g != 0 {
            return g;
        }
    }
}

/// Whether a label is one of a pool that was split off the pool with guid `guid`.
pub(crate) fn is_split_off(label: &NvList, guid: u64) -> bool {
    label.get_u64(keys::pool::SPLIT_GUID) == Some(guid)
}

/// log2 of the sector size a set of devices asks for.
pub(crate) fn choose_ashift(devices: &[Arc<dyn Disk>], wanted: Option<u32>) -> Result<u32> {
    let log2 = |n: u32| n.max(512).next_power_of_two().trailing_zeros();
    let logical = devices
        .iter()
        .map(|d| log2(d.geometry().logical_sector))
        .max()
        .unwrap_or(9);
    let physical = devices
        .iter()
        .map(|d| log2(d.geometry().physical_sector))
        .max()
        .unwrap_or(9);
    if let Some(a) = wanted {
        if !(9..=16).contains(&a) {
            bail!(Invalid, "ashift {a}: must be between 9 and 16");
        }
        // Smaller than the device can address is raised silently, as `zpool create` does.
        return Ok(a.max(logical));
    }
    let ashift = logical.max(physical.min(MAX_AUTO_ASHIFT));
    if ashift > 16 {
        bail!(Unsupported, "device sectors of {} bytes", 1u64 << ashift);
    }
    Ok(ashift)
}

/// Opens a device for a new vdev.
pub(crate) fn open_new(env: &Env, dev: &DevSpec) -> Result<Arc<dyn Disk>> {
    let d = env.disks.open(&dev.path, Access::Exclusive)?;
    if d.geometry().size < MIN_DEVICE {
        bail!(
            Overflow,
            "{}: one or more devices is less than the minimum size (64M)",
            dev.path
        );
    }
    Ok(d)
}

/// A leaf with an open device. It is `Healthy`; nothing was written yet.
pub(crate) fn new_leaf(
    env: &Env,
    dev: &DevSpec,
    device: Arc<dyn Disk>,
    id: u64,
    txg: Txg,
) -> Arc<Vdev> {
    let mut props = NvList::new();
    props.set(keys::PATH, dev.path.as_str());
    if !dev.is_file {
        props.set(keys::WHOLE_DISK, u64::from(dev.whole_disk));
    }
    props.set(keys::CREATE_TXG, txg);
    let kind = if dev.is_file {
        VdevKind::File
    } else {
        VdevKind::Disk
    };
    let leaf = Vdev::new(kind, id, new_guid(env), props, Vec::new());
    leaf.set_device(Some(device));
    leaf.set_state(State::Healthy, Aux::None);
    leaf
}

/// Whether devices of that number make such a vdev. For a dRAID its layout and number of groups.
fn check_shape(spec: &TopSpec) -> Result<Option<(Draid, u64)>> {
    let n = spec.devices.len();
    let mut draid = None;
    let least = match spec.kind {
        GroupKind::Single => 1,
        GroupKind::Mirror => 2,
        GroupKind::Raidz { nparity } => {
            if !(1..=3).contains(&nparity) {
                bail!(Invalid, "raidz{nparity}: parity must be 1, 2 or 3");
            }
            nparity + 1
        }
        GroupKind::Draid {
            nparity,
            ndata,
            nspares,
        } => {
            let groups = draid::groups_for(n as u64, ndata, nparity as u64, nspares);
            let layout = Draid::new(n, ndata, nparity, nspares, groups);
            draid = Some((
                layout.map_err(|e| Error::new(Kind::Invalid, e.to_string()))?,
                groups,
            ));
            2
        }
    };
    if n < least || (spec.kind == GroupKind::Single && n != 1) || n > 255 {
        bail!(
            Invalid,
            "vdev with {n} devices, at least {least} are needed"
        );
    }
    if spec.is_log && matches!(spec.kind, GroupKind::Raidz { .. } | GroupKind::Draid { .. }) {
        bail!(
            Invalid,
            "invalid vdev specification: log cannot be raidz or draid"
        );
    }
    Ok(draid)
}

/// Builds one new top-level vdev with open leaves.
pub(crate) fn new_top(env: &Env, spec: &TopSpec, id: u64, txg: Txg) -> Result<Arc<Vdev>> {
    let n = spec.devices.len();
    let draid = check_shape(spec)?;
    let devices: Vec<Arc<dyn Disk>> = spec
        .devices
        .iter()
        .map(|d| open_new(env, d))
        .collect::<Result<_>>()?;
    let ashift = choose_ashift(&devices, spec.ashift)?;
    let smallest = devices
        .iter()
        .map(|d| leaf_asize(d.geometry().size))
        .min()
        .unwrap_or(0);
    let leaves: Vec<Arc<Vdev>> = spec
        .devices
        .iter()
        .zip(devices)
        .enumerate()
        .map(|(i, (dev, d))| new_leaf(env, dev, d, i as u64, txg))
        .collect();
    let asize = match spec.kind {
        GroupKind::Raidz { .. } => smallest * n as u64,
        GroupKind::Draid { .. } => draid.as_ref().map_or(0, |(d, _)| d.asize(smallest)),
        _ => smallest,
    };
    if asize == 0 {
        bail!(
            Overflow,
            "one or more devices is less than the minimum size for dRAID"
        );
    }
    let mut props = NvList::new();
    if let GroupKind::Raidz { nparity } = spec.kind {
        props.set(keys::NPARITY, nparity as u64);
    }
    if let (
        GroupKind::Draid {
            nparity,
            ndata,
            nspares,
        },
        Some((_, groups)),
    ) = (spec.kind, &draid)
    {
        props.set(keys::NPARITY, nparity as u64);
        props.set(keys::DRAID_NDATA, ndata);
        props.set(keys::DRAID_NSPARES, nspares);
        props.set(keys::DRAID_NGROUPS, *groups);
    }
    props.set(keys::METASLAB_ARRAY, 0u64);
    props.set(keys::METASLAB_SHIFT, u64::from(size::metaslab_shift(asize)));
    props.set(keys::ASHIFT, u64::from(ashift));
    props.set(keys::ASIZE, asize);
    props.set(keys::IS_LOG, u64::from(spec.is_log));
    let top = match (spec.kind, leaves.first()) {
        (GroupKind::Single, Some(leaf)) => {
            // The leaf is the top-level vdev: one node with both sets of properties.
            let mut all = leaf.props();
            all.remove(keys::CREATE_TXG);
            for (k, v) in props.iter() {
                all.set(k, v.clone());
            }
            all.set(keys::CREATE_TXG, txg);
            let top = Vdev::new(leaf.kind(), id, leaf.guid(), all, Vec::new());
            top.set_device(leaf.device());
            top.set_state(State::Healthy, Aux::None);
            top
        }
        (GroupKind::Raidz { nparity }, _) => {
            props.set(keys::CREATE_TXG, txg);
            Vdev::new(
                VdevKind::Raidz { nparity },
                id,
                new_guid(env),
                props,
                leaves,
            )
        }
        (
            GroupKind::Draid {
                nparity,
                ndata,
                nspares,
            },
            _,
        ) => {
            props.set(keys::CREATE_TXG, txg);
            let kind = VdevKind::Draid {
                nparity,
                ndata,
                nspares,
            };
            Vdev::new(kind, id, new_guid(env), props, leaves)
        }
        _ => {
            props.set(keys::CREATE_TXG, txg);
            Vdev::new(VdevKind::Mirror, id, new_guid(env), props, leaves)
        }
    };
    top.propagate(false);
    Ok(top)
}

impl VdevTree {
    /// Opens all devices exclusively and builds the tree of a new pool. Nothing is written; see
    /// [`VdevTree::init_labels`]. `txg` becomes `create_txg`.
    pub fn create(env: Env, pool_guid: u64, specs: &[TopSpec], txg: Txg) -> Result<VdevTree> {
        let tops = specs
            .iter()
            .enumerate()
            .map(|(i, s)| new_top(&env, s, i as u64, txg))
            .collect::<Result<Vec<_>>>()?;
        if !tops.iter().any(|t| !t.is_log()) {
            bail!(
                Invalid,
                "invalid vdev specification: at least one toplevel vdev must be specified"
            );
        }
        let mut root = NvList::new();
        root.set(keys::CREATE_TXG, txg);
        Ok(VdevTree::new(env, pool_guid, root, tops))
    }

    /// Initialises the labels of all leaves below the vdevs `tops` (pool format §2.4). Until the
    /// first sync they say txg 0, so nobody takes them for members. `pool` as for
    /// [`VdevTree::label_config`].
    pub fn init_labels(&self, pool: &NvList, tops: &[u64], txg: Txg) -> Result<()> {
        for id in tops {
            let top = self.top(*id)?;
            for leaf in top.leaves() {
                self.init_leaf(pool, &top, &leaf, txg)?;
            }
        }
        Ok(())
    }

    /// Initialises the labels of one leaf of `top`.
    pub fn init_leaf(&self, pool: &NvList, top: &Arc<Vdev>, leaf: &Vdev, txg: Txg) -> Result<()> {
        let mut config = self.label_config(pool, top, leaf, Txg::NONE);
        config.set(keys::CREATE_TXG, txg);
        match leaf.device() {
            Some(d) => label::init(&*d, &config).map_err(|e| e.context(leaf.name())),
            None => bail!(NoDevice, "{}: not open", leaf.name()),
        }
    }

    /// Opens every leaf that is not closed on purpose and computes all states. Never fails by
    /// itself: look at [`VdevTree::state`]. With `Access::Read` nothing can be written later.
    pub fn open(&self, access: Access) {
        self.read_only.store(access == Access::Read, Relaxed);
        let work: Vec<(Arc<Vdev>, Arc<Vdev>)> = self
            .tops()
            .iter()
            .flat_map(|t| t.leaves().into_iter().map(move |l| (t.clone(), l)))
            .collect();
        self.env.cpu.par_io(work.len(), &|i| {
            let (top, leaf) = &work[i];
            self.open_leaf(top, leaf, access);
        });
        self.propagate();
    }

    /// Opens one leaf if its persistent flags allow it. Whose device it is, is still to be checked ([`VdevTree::validate`]).
    pub(crate) fn open_leaf(&self, top: &Arc<Vdev>, leaf: &Vdev, access: Access) {
        self.open_leaf_if(top, leaf, access, &|_| None);
    }

    /// Opens one leaf of a pool in use. Nothing is written to the device before its labels have shown that it belongs here.
    fn open_own_leaf(&self, top: &Arc<Vdev>, leaf: &Vdev) {
        let own = |device: &dyn Disk| self.objection(top, leaf, device, Txg::MAX, true);
        self.open_leaf_if(top, leaf, self.access(), &own);
    }

    fn open_leaf_if(
        &self,
        top: &Arc<Vdev>,
        leaf: &Vdev,
        access: Access,
        objection: &dyn Fn(&dyn Disk) -> Option<Aux>,
    ) {
        leaf.set_device(None);
        leaf.suspect();
        self.repairs.lose(self.repairs.take(leaf.guid()));
        let flag = |key: &str| leaf.get_u64(key).is_some_and(|v| v != 0);
        if flag(keys::OFFLINE) {
            return leaf.set_state(State::Offline, Aux::None);
        }
        if flag(keys::REMOVED) {
            return leaf.set_state(State::Removed, Aux::None);
        }
        if flag(keys::FAULTED) {
            let external = leaf.get_str(keys::AUX_STATE).as_deref() == Some("external");
            let aux = if external {
                Aux::External
            } else {
                Aux::ErrExceeded
            };
            return leaf.set_state(State::Faulted, aux);
        }
        let Some(path) = leaf.path() else {
            return leaf.set_state(State::CantOpen, Aux::OpenFailed);
        };
        let device = match self.env.disks.open(&path, access) {
            Ok(d) => d,
            Err(_) => return leaf.set_state(State::CantOpen, Aux::OpenFailed),
        };
        let g = device.geometry();
        if g.size < MIN_DEVICE {
            return leaf.set_state(State::CantOpen, Aux::TooSmall);
        }
        if u64::from(g.logical_sector) > 1 << top.ashift() {
            return leaf.set_state(State::CantOpen, Aux::BadAshift);
        }
        if leaf_asize(g.size) < least_asize(top, leaf) {
            return leaf.set_state(State::CantOpen, Aux::BadLabel);
        }
        if let Some(aux) = objection(&*device) {
            return leaf.set_state(State::CantOpen, aux);
        }
        leaf.set_device(Some(device));
        match flag(keys::DEGRADED) {
            true => leaf.set_state(State::Degraded, Aux::ErrExceeded),
            false => leaf.set_state(State::Healthy, Aux::None),
        }
    }

    /// Checks that the labels of the open leaves belong to this pool (pool format §6.2); a leaf
    /// whose labels do not is closed as `CorruptData`. `limit` is the txg of the uberblock in use
    /// (or `Txg::MAX`), `trusted` whether the tree comes from the MOS, so that guids must match.
    pub fn validate(&self, limit: Txg, trusted: bool) {
        let work: Vec<(Arc<Vdev>, Arc<Vdev>)> = self
            .tops()
            .iter()
            .flat_map(|t| t.leaves().into_iter().map(move |l| (t.clone(), l)))
            .collect();
        self.env.cpu.par_io(work.len(), &|i| {
            let (top, leaf) = &work[i];
            self.check_label(top, leaf, limit, trusted);
        });
        self.take_back_torn(limit, trusted);
        self.propagate();
    }

    /// Closes an open leaf whose labels do not belong here.
    fn check_label(&self, top: &Vdev, leaf: &Vdev, limit: Txg, trusted: bool) {
        let Some(device) = leaf.usable_device() else {
            return;
        };
        if let Some(aux) = self.objection(top, leaf, &*device, limit, trusted) {
            leaf.set_device(None);
            leaf.set_state(State::CantOpen, aux);
        }
    }

    /// Why the labels of a device do not let it be `leaf`; `None` if they do.
    fn objection(
        &self,
        top: &Vdev,
        leaf: &Vdev,
        device: &dyn Disk,
        limit: Txg,
        trusted: bool,
    ) -> Option<Aux> {
        let labels = label::read_labels(device);
        self.unfit(top, leaf, &labels, limit, trusted)
    }

    /// Why these labels do not let their device be `leaf`; `None` if they do.
    fn unfit(
        &self,
        top: &Vdev,
        leaf: &Vdev,
        labels: &label::Labels,
        limit: Txg,
        trusted: bool,
    ) -> Option<Aux> {
        // A crash may have torn two labels, and another one, before the next txg, have left the other
        // two with that txg's configuration: they still say whose the device is.
        match labels.best(limit).or_else(|| labels.best(Txg::MAX)) {
            None => Some(Aux::BadLabel),
            Some(c) => self.mismatch(top, leaf, c, trusted),
        }
    }

    /// Why a label does not belong to `leaf`; `None` if it does.
    pub(crate) fn mismatch(
        &self,
        top: &Vdev,
        leaf: &Vdev,
        label: &NvList,
        trusted: bool,
    ) -> Option<Aux> {
        let get = |key: &str| label.get_u64(key);
        if is_split_off(label, self.guid()) {
            return Some(Aux::SplitPool);
        }
        if get(keys::pool::POOL_GUID) != Some(self.guid()) && trusted {
            return Some(Aux::CorruptData);
        }
        let (Some(guid), Some(top_guid)) = (get(keys::GUID), get(keys::pool::TOP_GUID)) else {
            return Some(Aux::CorruptData);
        };
        if get(keys::pool::STATE).is_none() {
            return Some(Aux::CorruptData);
        }
        // After a detach the survivor has the guid of the group it was in.
        if guid != leaf.guid() && top_guid != leaf.guid() {
            let known = trusted || top_guid != top.guid();
            if known || !self.leaves().iter().any(|l| l.guid() == guid) {
                return Some(Aux::CorruptData);
            }
        }
        None
    }

    /// Whether a device is that of leaf `guid`, under whatever name: its labels say so, and it has the last uberblock that
    /// the leaf was given. A copy that was made before has not; one that another host wrote to has uberblocks behind `limit`.
    pub fn is_device_of(&self, guid: u64, device: &dyn Disk, limit: Txg) -> bool {
        let Ok((top, leaf)) = self.leaf_of(guid) else {
            return false;
        };
        let labels = label::read_labels(device);
        let own = labels.best(Txg::MAX).is_some_and(|c| {
            c.get_u64(keys::GUID) == Some(guid)
                && c.get_u64(keys::pool::POOL_GUID) == Some(self.guid())
        });
        let newest = || label::best_uberblock(device, top.ashift(), Txg::MAX);
        own && newest().is_some_and(|ub| (leaf.committed()..=limit).contains(&ub.txg))
    }

    /// Tries again to open what is not open and keeps what is; `zpool online` and `clear` use it.
    /// Devices that vanished are noticed.
    pub fn reopen(&self) {
        for top in self.tops().iter() {
            for leaf in top.leaves() {
                match leaf.usable_device() {
                    Some(d) if d.geometry().size >= MIN_DEVICE => {}
                    _ => self.open_own_leaf(top, &leaf),
                }
            }
        }
        self.propagate();
    }

    /// Closes all devices. Copies and writes under way end before it returns: another import may write to the same places soon.
    pub fn close(&self) {
        self.take_devices();
        drop(self.copying.begin(Vec::new()));
    }

    /// No transfer begins any more.
    pub(crate) fn take_devices(&self) {
        for leaf in self.leaves() {
            leaf.set_device(None);
            leaf.set_state(State::Closed, Aux::None);
        }
    }

    pub(crate) fn access(&self) -> Access {
        if self.read_only.load(Relaxed) {
            Access::Read
        } else {
            Access::Exclusive
        }
    }

    /// Looks whether a leaf still answers, after it reported errors: reads its first label. One
    /// that does not is taken out of use. Returns whether it answers.
    pub fn probe(&self, leaf: &Vdev) -> bool {
        let Some(d) = leaf.usable_device() else {
            return false;
        };
        let mut b = vec![0; 8192];
        if d.read(0, &mut b).is_ok() {
            return true;
        }
        leaf.report_probe();
        leaf.set_state(State::CantOpen, Aux::OpenFailed);
        self.propagate();
        false
    }

    /// Looks at the labels of a leaf in use again. `None`: they say that the device is this leaf, or the device cannot read them, or it has
    /// none. Otherwise what is wrong.
    pub fn objection_to(&self, top: &Vdev, leaf: &Vdev) -> Option<Aux> {
        let device = leaf.usable_device()?;
        let labels = label::read_all_labels(&*device)?;
        self.unfit(top, leaf, &labels, Txg::MAX, true)
    }

    /// Puts a leaf out of use whose device is not this leaf any more.
    pub fn disown(&self, leaf: &Vdev, why: Aux) {
        leaf.set_device(None);
        leaf.set_state(State::CantOpen, why);
        self.propagate();
    }

    /// Takes leaf `guid` offline (`persist`: also after the next import), unless data would become
    /// unreadable. Of a log the caller has emptied the intent logs.
    pub fn offline(&self, guid: u64, persist: bool) -> Result<()> {
        let (top, leaf) = self.leaf_of(guid)?;
        self.needed(&top, &leaf)?;
        if persist {
            leaf.set_u64(keys::OFFLINE, 1);
        }
        leaf.set_device(None);
        leaf.set_state(State::Offline, Aux::None);
        self.propagate();
        Ok(())
    }

    /// Puts leaf `guid` out of use (`external`: by the administrator, else because of errors; `persist`: also after the next
    /// import). One whose data nobody else has is marked degraded instead, and goes on being used.
    pub fn fault(&self, guid: u64, external: bool, persist: bool) -> Result<State> {
        let (top, leaf) = self.leaf_of(guid)?;
        let (word, aux) = match external {
            true => ("external", Aux::External),
            false => ("err_exceeded", Aux::ErrExceeded),
        };
        let (key, state) = match self.needed(&top, &leaf) {
            Ok(()) => (keys::FAULTED, State::Faulted),
            Err(_) => (keys::DEGRADED, State::Degraded),
        };
        if persist {
            leaf.set_u64(key, 1);
            leaf.set(keys::AUX_STATE, word);
        }
        if state == State::Faulted {
            leaf.set_device(None);
        }
        leaf.set_state(state, aux);
        self.propagate();
        Ok(state)
    }

    /// Marks leaf `guid` degraded because of errors: it goes on being used, but should be replaced.
    pub fn degrade(&self, guid: u64) -> Result<()> {
        let (_, leaf) = self.leaf_of(guid)?;
        leaf.set_u64(keys::DEGRADED, 1);
        leaf.set(keys::AUX_STATE, "err_exceeded");
        leaf.set_state(State::Degraded, Aux::ErrExceeded);
        self.propagate();
        Ok(())
    }

    /// Brings leaf `guid` back: forgets offline and removed, and opens it. One that was put out of use because of errors stays
    /// so until [`Vdev::forgive`]. What it missed meanwhile is in its DTL.
    pub fn online(&self, guid: u64) -> Result<State> {
        let (top, leaf) = self.leaf_of(guid)?;
        for key in [keys::OFFLINE, keys::REMOVED, keys::NOT_PRESENT] {
            leaf.unset(key);
        }
        if leaf.usable_device().is_none() {
            // Another device may have come to that path meanwhile.
            self.open_own_leaf(&top, &leaf);
        }
        self.propagate();
        Ok(leaf.state())
    }

    /// Grows top-level vdev `id` to what its devices hold now, in whole metaslabs, [`size::MOST_METASLABS`] at most; the caller moves
    /// on with new metaslabs and the config. Returns the new asize if it grew.
    pub fn expand(&self, id: u64, pool: &NvList, txg: Txg) -> Result<Option<u64>> {
        let top = self.top(id)?;
        if top.is_expanding() || top.leaves().iter().any(|l| l.usable_device().is_none()) {
            return Ok(None);
        }
        // What the devices hold now, not when they were opened.
        top.leaves().iter().for_each(|l| l.set_device(l.device()));
        let unit = 1u64 << top.metaslab_shift();
        let asize = natural_asize(&top).min(unit.saturating_mul(size::MOST_METASLABS));
        if asize <= top.asize() || asize / unit <= top.asize() / unit {
            return Ok(None);
        }
        for leaf in top.leaves() {
            if let Some(d) = leaf.usable_device() {
                let config = self.label_config(pool, &top, &leaf, txg);
                // The labels at the old end are simply left behind.
                label::relocate(&*d, 0, &config, top.ashift())
                    .map_err(|e| e.context(leaf.name()))?;
            }
        }
        top.set_asize(asize);
        Ok(Some(asize))
    }

    /// A leaf by guid with its top-level vdev.
    pub fn leaf_of(&self, guid: u64) -> Result<(Arc<Vdev>, Arc<Vdev>)> {
        for top in self.tops().iter() {
            if let Some(leaf) = top.leaves().into_iter().find(|l| l.guid() == guid) {
                return Ok((top.clone(), leaf));
            }
        }
        bail!(NotFound, "no such device in pool")
    }

    /// Refuses if the data of `top` needs `leaf`: nothing else has what it holds. A pool can do without its logs.
    pub(crate) fn needed(&self, top: &Arc<Vdev>, leaf: &Vdev) -> Result<()> {
        let gone = |l: &Vdev| l.guid() == leaf.guid();
        if !top.is_log() && leaf.state().usable() && !top.outage(&gone).is_empty() {
            bail!(Busy, "no valid replicas");
        }
        Ok(())
    }
}

/// Allocatable bytes a vdev could have with its present devices, all of which must be open.
pub(crate) fn natural_asize(v: &Vdev) -> u64 {
    let least = || {
        v.children()
            .iter()
            .map(|c| natural_asize(c))
            .min()
            .unwrap_or(0)
    };
    match v.kind() {
        VdevKind::Disk | VdevKind::File => v.device_asize(),
        VdevKind::Raidz { .. } => least().saturating_mul(v.children().len() as u64),
        VdevKind::Draid { .. } => v.draid().map_or(0, |d| d.asize(least())),
        // No limit of its own.
        VdevKind::Dspare => u64::MAX,
        _ => least(),
    }
}

impl Vdev {
    /// Allocatable bytes this vdev could have with its present devices; 0 if one is not open.
    pub fn natural_asize(&self) -> u64 {
        natural_asize(self)
    }
}

/// Allocatable bytes leaf `leaf` of `top` must have: what the recorded size of the top-level vdev
/// demands, less what no metaslab covers.
fn least_asize(top: &Arc<Vdev>, leaf: &Vdev) -> u64 {
    if !top.leaves().iter().any(|l| l.guid() == leaf.guid()) {
        return 0;
    }
    let shift = top.metaslab_shift();
    let asize = if shift == 0 {
        top.asize()
    } else {
        top.asize() >> shift << shift
    };
    match top.kind() {
        VdevKind::Raidz { .. } => asize.div_ceil(top.raidz_width(Txg::MAX).max(1) as u64),
        VdevKind::Draid { .. } => 0,
        _ => asize,
    }
}
