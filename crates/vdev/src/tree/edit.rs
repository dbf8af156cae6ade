//! Changes of shape: adding, attaching, detaching, replacing, removing.
//!
//! The caller (the pool) serialises these with each other and with the syncing of transaction
//! groups, and writes the new configuration afterwards. I/O already under way keeps using the
//! leaves of the old shape, which are the same leaves.

use crate::indirect::IndirectMap;
use crate::keys;
use crate::label;
use crate::node::{Vdev, VdevKind};
use crate::open::{choose_ashift, new_guid, new_leaf, new_top, open_new};
use crate::spec::{DevSpec, TopSpec};
use crate::state::{Aux, State};
use crate::VdevTree;
use base::{bail, Result, Txg};
use disk::label::leaf_asize;
use disk::NvList;
use std::sync::Arc;

/// Why a device is put beside another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    /// `zpool attach`: one more copy.
    Mirror,
    /// `zpool replace`: the old one goes when the new one is complete.
    Replace,
    /// A hot spare with this guid stands in.
    Spare(u64),
}

/// Appended to the path of a device that is replaced by another one at the same path.
const OLD: &str = "/old";

/// Properties that belong to a top-level vdev, not to a leaf.
pub(crate) const TOP_KEYS: [&str; 11] = [
    keys::METASLAB_ARRAY,
    keys::METASLAB_SHIFT,
    keys::ASHIFT,
    keys::ASIZE,
    keys::IS_LOG,
    keys::NON_ALLOCATING,
    keys::REMOVING,
    keys::ZAP_TOP,
    keys::INDIRECT_OBJECT,
    keys::INDIRECT_BIRTHS,
    "min_alloc",
];

impl VdevTree {
    /// Opens the devices of new top-level vdevs, to be put into the tree in this order, and initialises their labels. They
    /// get the numbers of the holes, lowest first, and then those behind the last vdev, as OpenZFS numbers them.
    /// `pool` as for [`VdevTree::label_config`]. They are not part of the tree yet: see [`VdevTree::append`].
    ///
    /// Errors: the spec makes no sense; a device cannot be opened for this pool alone, is too small, or cannot be written.
    pub fn new_tops(&self, specs: &[TopSpec], pool: &NvList, txg: Txg) -> Result<Vec<Arc<Vdev>>> {
        let behind = self.tops().len() as u64;
        let tops = self
            .holes()
            .into_iter()
            .chain(behind..)
            .zip(specs)
            .map(|(id, spec)| new_top(&self.env, spec, id, txg))
            .collect::<Result<Vec<_>>>()?;
        for top in &tops {
            for leaf in top.leaves() {
                self.init_leaf(pool, top, &leaf, txg)?;
            }
        }
        Ok(tops)
    }

    /// Puts the vdevs of [`VdevTree::new_tops`] into the tree, in txg `txg`. They hold nothing until they have metaslabs
    /// ([`Vdev::choose_metaslabs`]).
    ///
    /// Errors: `Kind::Again`: the tree changed since.
    pub fn append(&self, tops: &[Arc<Vdev>], txg: Txg) -> Result<()> {
        for top in tops {
            top.set_u64(keys::METASLAB_SHIFT, 0);
            for v in top.leaves().iter().chain([top]) {
                v.set_u64(keys::CREATE_TXG, txg.number());
            }
        }
        self.edit_tops(|list| {
            for top in tops {
                let behind = list.len() as u64;
                match list.get_mut(top.id() as usize) {
                    Some(slot) if slot.kind() == VdevKind::Hole => *slot = top.clone(),
                    None if top.id() == behind => list.push(top.clone()),
                    _ => bail!(Again, "another device was added meanwhile: try again"),
                }
            }
            Ok(())
        })
    }

    /// Opens a new device that is to be put beside leaf `guid`, and initialises its labels. It is not part of the tree
    /// yet: see [`VdevTree::attach`]. `ashift` is what the user asked for; without it the sectors of the device decide.
    ///
    /// Errors: there is no such leaf, it takes no further device, or the device does not fit (too small: `Kind::Overflow`;
    /// larger sectors: `Kind::Range`).
    pub fn prepare(
        &self,
        guid: u64,
        dev: &DevSpec,
        how: Attach,
        ashift: Option<u32>,
        pool: &NvList,
        txg: Txg,
    ) -> Result<Arc<Vdev>> {
        let (top, old) = self.leaf_of(guid)?;
        may_attach(&top, &old, how)?;
        if !old.state().usable() {
            // It may still hold what was at that path.
            old.set_device(None);
        }
        let device = open_new(&self.env, dev)?;
        self.not_a_member(&*device)?;
        let size = device.geometry().size;
        if choose_ashift(std::slice::from_ref(&device), ashift)? > top.ashift() {
            bail!(
                Range,
                "new device has a different optimal sector size; use the option '-o ashift=N' to \
                 override the optimal size"
            );
        }
        if leaf_asize(size) < needed_asize(&top) {
            bail!(Overflow, "device is too small");
        }
        let fresh = new_leaf(&self.env, dev, device, 0, txg);
        if let Attach::Spare(g) = how {
            fresh.set_guid(g);
            fresh.set_u64(keys::IS_SPARE, 1);
        }
        fresh.spread_ashift(u64::from(top.ashift()));
        self.init_leaf(pool, &top, &fresh, txg)?;
        Ok(fresh)
    }

    /// Refuses a device whose labels say that it is in the tree already.
    pub(crate) fn not_a_member(&self, device: &dyn env::Disk) -> Result<()> {
        let labels = label::read_labels(device);
        let Some(c) = labels.best(Txg::MAX) else {
            return Ok(());
        };
        let same_pool = c.get_u64(keys::pool::POOL_GUID) == Some(self.guid());
        let live = c.get_txg(keys::pool::TXG).is_some_and(|t| !t.is_none());
        if same_pool && live && c.get_u64(keys::GUID).and_then(|g| self.find(g)).is_some() {
            bail!(Busy, "it belongs to this pool already");
        }
        Ok(())
    }

    /// Puts a device of [`VdevTree::prepare`] beside leaf `guid` in txg `txg`. Its DTL says that it lacks everything before
    /// `dtl_max`; the caller starts the resilver.
    ///
    /// Errors: the tree changed since, so that the device does not belong there any more. Nothing was changed then.
    pub fn attach(
        &self,
        guid: u64,
        fresh: &Arc<Vdev>,
        how: Attach,
        txg: Txg,
        dtl_max: Txg,
    ) -> Result<()> {
        let (top, old) = self.leaf_of(guid)?;
        may_attach(&top, &old, how)?;
        if how != Attach::Mirror {
            if let Some(born) = old.get_u64(keys::CREATE_TXG) {
                fresh.set_u64(keys::CREATE_TXG, born);
            }
        }
        if let Some(path) = old.path().filter(|p| fresh.path().as_ref() == Some(p)) {
            // Nobody shall open the new device in the place of the old one.
            old.set_path(&format!("{path}{OLD}"));
        }
        fresh.set_u64(keys::RESILVER_TXG, txg.number());
        fresh.dtl_add_range(Txg::INITIAL, dtl_max);
        self.place_beside(&top, &old, fresh, how)
    }

    /// Lets distributed spare `spare` of a dRAID stand in for its leaf `guid`. The spare gets the
    /// guid it has in the pool's list of spares. Its DTL says that it lacks everything before
    /// `dtl_max`.
    pub fn attach_dspare(
        &self,
        guid: u64,
        spare: u64,
        spare_guid: u64,
        txg: Txg,
        dtl_max: Txg,
    ) -> Result<Arc<Vdev>> {
        let (top, old) = self.leaf_of(guid)?;
        let VdevKind::Draid {
            nparity, nspares, ..
        } = top.kind()
        else {
            bail!(Invalid, "{}: not in a dRAID", old.name());
        };
        if spare >= nspares
            || top
                .dspares()
                .iter()
                .any(|d| d.get_u64(keys::SPARE_ID) == Some(spare))
        {
            bail!(
                Busy,
                "distributed spare {spare} is in use or does not exist"
            );
        }
        if parent_of(&top, guid).is_some_and(|p| p.kind() != top.kind()) {
            bail!(Busy, "{}: already being replaced", old.name());
        }
        let mut props = NvList::new();
        props.set(keys::PATH, format!("draid{nparity}-{}-{spare}", top.id()));
        props.set(keys::pool::TOP_GUID, top.guid());
        props.set(keys::SPARE_ID, spare);
        props.set(keys::IS_SPARE, 1u64);
        props.set(keys::CREATE_TXG, txg);
        props.set(keys::RESILVER_TXG, txg);
        let fresh = Vdev::new(VdevKind::Dspare, 0, spare_guid, props, Vec::new());
        fresh.dtl_add_range(Txg::INITIAL, dtl_max);
        self.place_beside(&top, &old, &fresh, Attach::Spare(spare_guid))?;
        Ok(fresh)
    }

    /// Puts `fresh` into the group of `old`, or makes one.
    fn place_beside(
        &self,
        top: &Arc<Vdev>,
        old: &Arc<Vdev>,
        fresh: &Arc<Vdev>,
        how: Attach,
    ) -> Result<()> {
        let guid = old.guid();
        let parent = parent_of(top, guid);
        let new_top = match (&parent, how) {
            (Some(p), Attach::Mirror) => {
                let mut kids = p.children().to_vec();
                fresh.set_id(kids.len() as u64);
                kids.push(fresh.clone());
                let group = with_children(p, kids);
                replace_below(top, p.guid(), &group).unwrap_or(group)
            }
            _ => {
                let kind = match how {
                    Attach::Mirror => VdevKind::Mirror,
                    Attach::Replace => VdevKind::Replacing,
                    Attach::Spare(_) => VdevKind::Spare,
                };
                let group = self.group(kind, old, fresh, parent.is_none());
                replace_below(top, guid, &group).unwrap_or(group)
            }
        };
        self.put_top(new_top)
    }

    /// A group of two in the place of `old`. If `old` was a top-level vdev its top-level
    /// properties move to the group.
    fn group(&self, kind: VdevKind, old: &Arc<Vdev>, fresh: &Arc<Vdev>, is_top: bool) -> Arc<Vdev> {
        let mut props = NvList::new();
        let place = old.id();
        if is_top {
            let all = old.props();
            for (k, v) in all.iter().filter(|(k, _)| TOP_KEYS.contains(k)) {
                props.set(k, v.clone());
                old.unset(k);
            }
        }
        if let Some(t) = old.get_u64(keys::CREATE_TXG) {
            props.set(keys::CREATE_TXG, t);
        }
        old.set_id(0);
        fresh.set_id(1);
        Vdev::new(
            kind,
            place,
            new_guid(&self.env),
            props,
            vec![old.clone(), fresh.clone()],
        )
    }

    /// The top-level vdev of a leaf or distributed spare.
    pub fn top_of(&self, guid: u64) -> Result<Arc<Vdev>> {
        let has = |t: &&Arc<Vdev>| member(t, guid).is_some();
        match self.tops().iter().find(has) {
            Some(top) => Ok(top.clone()),
            None => bail!(NotFound, "no such device in pool"),
        }
    }

    /// Takes leaf (or distributed spare) `guid` out of its mirror, replacing or spare group. With one member left the group
    /// dissolves. The labels of the leaf stay as they are, and its device stays open, until [`VdevTree::retire`]. Returns the leaf.
    ///
    /// Errors: it is in no such group; what is left lacks data (`Kind::Busy`). Nothing was changed then.
    pub fn detach(&self, guid: u64) -> Result<Arc<Vdev>> {
        let tops = self.tops();
        let Some((top, leaf)) = tops
            .iter()
            .find_map(|t| Some((t.clone(), member(t, guid)?)))
        else {
            bail!(NotFound, "no such device in pool");
        };
        let group = match parent_of(&top, guid) {
            Some(p) if p.kind().is_mirrorish() && p.children().len() > 1 => p,
            _ => bail!(Unsupported, "only applicable to mirror and replacing vdevs"),
        };
        // Redundancy above the group counts: a spare may leave before its disk is back.
        if !top.outage(&|l| l.guid() == guid).is_empty() {
            bail!(Busy, "no valid replicas");
        }
        let mut kids: Vec<Arc<Vdev>> = group
            .children()
            .iter()
            .filter(|c| c.guid() != guid)
            .cloned()
            .collect();
        if group.kind() == VdevKind::Replacing {
            let path = leaf.path().unwrap_or_default();
            let old = kids
                .iter()
                .find(|k| k.path() == Some(format!("{path}{OLD}")));
            if let Some(old) = old {
                old.set_path(&path);
            }
        }
        let new_top = if let [last] = &kids[..] {
            // Dissolve. A top-level group passes on its guid and properties, so that the slot
            // stays what it was for whoever still has an old label.
            let is_top = group.guid() == top.guid();
            if is_top {
                let inherited = group.props();
                for (k, v) in inherited.iter().filter(|(k, _)| TOP_KEYS.contains(k)) {
                    last.set(k, v.clone());
                }
            }
            if group.kind() == VdevKind::Spare {
                last.unset(keys::UNSPARE);
                // A distributed spare stays one.
                if last.kind() != VdevKind::Dspare {
                    last.unset(keys::IS_SPARE);
                }
            }
            let last = if is_top {
                last.promote(group.guid())
            } else {
                last.clone()
            };
            last.set_id(group.id());
            replace_below(&top, group.guid(), &last).unwrap_or(last)
        } else {
            kids.iter()
                .enumerate()
                .for_each(|(i, k)| k.set_id(i as u64));
            let smaller = with_children(&group, std::mem::take(&mut kids));
            replace_below(&top, group.guid(), &smaller).unwrap_or(smaller)
        };
        self.put_top(new_top)?;
        Ok(leaf)
    }

    /// Lets go of a leaf that is in the tree no longer, once no uberblock on disk leads to a tree that has it. Its labels say
    /// txg 0 from then on, as in OpenZFS: nobody takes it for a member, and `zpool labelclear` finds something to clear.
    /// Labels that never said more are cleared; those of an idle spare (`idle`) are written. Best effort, since a dead device
    /// is the usual reason to let it go.
    pub fn retire(&self, leaf: &Vdev, idle: Option<&NvList>) {
        if let Some(d) = leaf.device() {
            let done = match (idle, label::left(&*d)) {
                (Some(config), _) => label::init(&*d, config),
                (None, Some(config)) => label::init(&*d, &config),
                (None, None) => label::clear(&*d).map(drop),
            };
            // No txg flushes the device any more: its old labels must not come back when the pool has another guid.
            if let Err(e) = done.and_then(|()| d.flush()) {
                tracing::debug!(vdev = %leaf.name(), %e, "labels of a device that left");
            }
        }
        leaf.set_device(None);
        leaf.set_state(State::Removed, Aux::None);
    }

    /// Turns top-level vdev `id` into a hole after its blocks were moved or it was an empty log. A hole at the end stays one,
    /// too: log space maps on disk may still name it, and OpenZFS looks up each vdev that they name. The last data vdev
    /// stays. Returns the leaves, for [`VdevTree::retire`].
    pub fn remove_top(&self, id: u64) -> Result<Vec<Arc<Vdev>>> {
        let top = self.top(id)?;
        self.edit_tops(|list| {
            let mut rest = list.iter().filter(|t| t.id() != id);
            if !top.is_log() && !rest.any(|t| t.is_concrete() && !t.is_log()) {
                bail!(Busy, "cannot remove the last data vdev");
            }
            let mut props = NvList::new();
            props.set(keys::IS_HOLE, 1u64);
            let hole = Vdev::new(VdevKind::Hole, id, 0, props, Vec::new());
            hole.propagate(false);
            if let Some(slot) = list.get_mut(id as usize) {
                *slot = hole;
            }
            Ok(())
        })?;
        Ok(top.leaves())
    }

    /// Puts an indirect vdev into the place of top-level vdev `id`, all of whose blocks were copied to where `map` says. It takes
    /// over the properties of a top-level vdev, except that it has no metaslabs, and gets a guid of its own. `prev`: the vdev that
    /// was removed before. Returns the leaves, for [`VdevTree::retire`].
    pub fn become_indirect(
        &self,
        id: u64,
        map: Arc<IndirectMap>,
        prev: Option<u64>,
    ) -> Result<Vec<Arc<Vdev>>> {
        let top = self.top(id)?;
        let mut props = NvList::new();
        let all = top.props();
        for (k, v) in all.iter().filter(|(k, _)| TOP_KEYS.contains(k)) {
            props.set(k, v.clone());
        }
        if let Some(born) = top.get_u64(keys::CREATE_TXG) {
            props.set(keys::CREATE_TXG, born);
        }
        props.remove(keys::REMOVING);
        props.set(keys::METASLAB_ARRAY, 0u64);
        if let Some(prev) = prev {
            props.set(keys::PREV_INDIRECT, prev);
        }
        let guid = new_guid(&self.env);
        let gone = Vdev::new(VdevKind::Indirect, id, guid, props, Vec::new());
        gone.set_indirect(map);
        self.put_top(gone)?;
        Ok(top.leaves())
    }

    /// Puts a rebuilt top-level vdev into its slot.
    pub(crate) fn put_top(&self, top: Arc<Vdev>) -> Result<()> {
        top.propagate(self.resilver_runs());
        self.edit_tops(|list| match list.get_mut(top.id() as usize) {
            Some(slot) => {
                *slot = top;
                Ok(())
            }
            None => bail!(Again, "the vdev tree changed meanwhile"),
        })
    }
}

impl Vdev {
    /// Chooses the size of the metaslabs of a top-level vdev that has none.
    pub fn choose_metaslabs(&self) {
        if self.metaslab_shift() == 0 {
            let shift = crate::size::metaslab_shift(self.asize());
            self.set_u64(keys::METASLAB_SHIFT, u64::from(shift));
        }
    }

    /// Makes this vdev a top-level one that inherited its properties: takes them over from the
    /// persistent ones, and the guid.
    fn promote(self: &Arc<Vdev>, guid: u64) -> Arc<Vdev> {
        self.set_guid(guid);
        self.adopt_props();
        self.spread_ashift(u64::from(self.ashift()));
        self.clone()
    }
}

/// Refuses a place beside `old` that takes no further device.
fn may_attach(top: &Arc<Vdev>, old: &Arc<Vdev>, how: Attach) -> Result<()> {
    let parent = parent_of(top, old.guid());
    match (how, parent.as_ref().map(|p| p.kind())) {
        (Attach::Mirror, None | Some(VdevKind::Mirror)) => Ok(()),
        (Attach::Mirror, _) => {
            bail!(
                Unsupported,
                "can only attach to mirrors and top-level disks"
            )
        }
        (_, Some(VdevKind::Replacing)) | (Attach::Spare(_), Some(VdevKind::Spare)) => bail!(
            Unsupported,
            "already in replacing/spare config; wait for completion or use 'zpool detach'"
        ),
        _ => Ok(()),
    }
}

/// Allocatable bytes a new leaf of `top` must have: one child's share of the recorded size.
fn needed_asize(top: &Arc<Vdev>) -> u64 {
    let shift = top.metaslab_shift();
    let asize = if shift == 0 {
        top.asize()
    } else {
        top.asize() >> shift << shift
    };
    match top.kind() {
        VdevKind::Raidz { .. } => asize.div_ceil(top.raidz_width(Txg::MAX).max(1) as u64),
        // Like the smallest of the present ones, of which at least one is there.
        VdevKind::Draid { .. } => top
            .leaves()
            .iter()
            .map(|l| l.device_asize())
            .filter(|a| *a > 0)
            .min()
            .unwrap_or(0),
        _ => asize,
    }
}

/// The leaf or distributed spare `guid` at or below `v`.
fn member(v: &Arc<Vdev>, guid: u64) -> Option<Arc<Vdev>> {
    if v.guid() == guid && (v.kind().is_leaf() || v.kind() == VdevKind::Dspare) {
        return Some(v.clone());
    }
    v.children().iter().find_map(|c| member(c, guid))
}

/// The vdev below `top` (or `top`) that has `guid` as a direct child.
fn parent_of(top: &Arc<Vdev>, guid: u64) -> Option<Arc<Vdev>> {
    if top.children().iter().any(|c| c.guid() == guid) {
        return Some(top.clone());
    }
    top.children().iter().find_map(|c| parent_of(c, guid))
}

/// The same vdev with other children.
pub(crate) fn with_children(v: &Arc<Vdev>, children: Vec<Arc<Vdev>>) -> Arc<Vdev> {
    let new = Vdev::new(v.kind(), v.id(), v.guid(), v.props(), children);
    new.stats.copy_from(&v.stats);
    new.set_reflow(v.reflow());
    new
}

/// `v` with the descendant `guid` replaced, or `None` if `v` itself is it (or has none).
fn replace_below(v: &Arc<Vdev>, guid: u64, by: &Arc<Vdev>) -> Option<Arc<Vdev>> {
    if v.guid() == guid {
        return None;
    }
    for (i, c) in v.children().iter().enumerate() {
        let new = if c.guid() == guid || Arc::ptr_eq(c, by) {
            by.clone()
        } else {
            match replace_below(c, guid, by) {
                Some(n) => n,
                None => continue,
            }
        };
        let mut kids = v.children().to_vec();
        kids[i] = new;
        return Some(with_children(v, kids));
    }
    None
}
