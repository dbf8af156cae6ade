//! The registry of top-level vdevs: one call announces a vdev to every room of the pool.
//!
//! | Room | What it is told |
//! |---|---|
//! | `maps` | metaslab array, shape, unflushed txgs: made for a new vdev, read for one on disk |
//! | `shares.brt` | number and size, for the table of cloned blocks |
//! | `shares.checkpoint` | the map of what only the checkpoint refers to |
//! | `devices` | the smallest allocation of the pool |
//! | `space` | metaslabs, allocation class, whether it may be written and allocated from |
//!
//! What became of removed vdevs ([`crate::indirect`]) is asked of the tree itself; the mapping of a removed vdev is
//! loaded before anything else of the pool can be read, so it is not part of this.
//!
//! Invariants:
//!
//! 1. `space` is told last: from then on blocks may be placed on the vdev, and every other room knows it.
//! 2. No block is placed on a vdev before an uberblock whose configuration has the vdev is on disk. [`Pool::add_top`]
//!    therefore takes two txgs: the first commits the vdev without metaslabs, the second makes them. After a crash
//!    between the two the next import does the second. Until the second is on disk too, only blocks of it are placed
//!    there ([`space::Space::add_top_in`]): the next import would not find log blocks of the txgs behind it.
//! 3. The tree is replaced, in syncing context, so that configuration, labels and guid sum of one txg agree. Readers keep
//!    the list of vdevs they took.

use crate::devices::TreeDevices;
use crate::shared::Shares;
use crate::spacemaps::TopShape;
use crate::spares::FEATURE_DRAID;
use crate::{MapFeatures, Pool, SpaceMaps};
use base::mutation::{mutated, Mutation};
use base::{bail, Result, Txg};
use disk::feature::guid;
use disk::ObjType;
use dmu::{Objset, Tx};
use dsl::Features;
use space::{Class, Space};
use std::sync::Arc;
use vdev::{keys, Bias, TopSpec, Vdev, VdevKind, VdevTree};
use zap::Zap;

/// Key of a top-level vdev's ZAP: what the vdev is for.
const BIAS: &str = disk::mos_keys::ALLOCATION_BIAS;
/// Vdevs with more metaslabs than this set one aside for the intent log (pool format §16.6).
const EMBEDDED_LOG_MIN_MS: u64 = 64;
/// Object-directory key: the ZAPs of all vdevs.
pub(crate) const ZAP_MAP: &str = disk::mos_keys::VDEV_ZAP_MAP;

/// Feature counted for every special or dedup vdev.
const ALLOCATION_CLASSES: &str = guid::ALLOCATION_CLASSES;

/// Notes in the ZAP of a new top-level vdev what it is kept for.
pub(crate) fn write_bias(
    mos: &Arc<Objset>,
    tx: &Tx,
    top: &Vdev,
    bias: Option<Bias>,
    features: &dyn Features,
) -> Result<()> {
    let word = match bias {
        None => return Ok(()),
        Some(Bias::Special) => "special",
        Some(Bias::Dedup) => "dedup",
    };
    let zap = top.get_u64(keys::ZAP_TOP).filter(|o| *o != 0);
    let Some(zap) = zap.filter(|_| features.is_enabled(ALLOCATION_CLASSES)) else {
        bail!(
            Unsupported,
            "{word} vdevs need the feature 'allocation_classes' enabled"
        );
    };
    let text = zap::Value::bytes(format!("{word}\0").as_bytes());
    Zap::new(&mos.hold(zap)?).add(tx, BIAS, &text)?;
    features.activate(tx, ALLOCATION_CLASSES, 1)
}

/// What a top-level vdev is for.
pub(crate) fn class_of(mos: &Arc<Objset>, t: &Vdev) -> Result<Class> {
    if t.is_log() {
        return Ok(Class::Log);
    }
    let Some(o) = t.get_u64(keys::ZAP_TOP).filter(|o| *o != 0) else {
        return Ok(Class::Normal);
    };
    let bias = match Zap::new(&mos.hold(o)?).get_value(BIAS)? {
        Some(v) => v.to_text()?,
        None => return Ok(Class::Normal),
    };
    match bias.as_str() {
        "special" => Ok(Class::Special),
        "dedup" => Ok(Class::Dedup),
        "log" => Ok(Class::Log),
        _ => bail!(Unsupported, "{} is a device for '{bias}'", t.name()),
    }
}

/// The rooms that must know of every top-level vdev.
pub(crate) struct Rooms<'a> {
    /// The object set of the pool itself.
    pub mos: &'a Arc<Objset>,
    /// The allocator.
    pub space: &'a Space,
    /// Space maps on disk.
    pub maps: &'a SpaceMaps,
    /// Dedup tables, cloned blocks, checkpoint.
    pub shares: &'a Shares,
    /// The tree as `zio` sees it.
    pub devices: &'a TreeDevices,
}

/// Where the metaslabs of a top-level vdev are.
#[derive(Clone, Copy)]
pub(crate) enum Metaslabs<'a> {
    /// On disk, as its configuration says.
    OnDisk,
    /// To be made in this txg.
    New(&'a Tx, &'a dyn MapFeatures),
}

impl Rooms<'_> {
    /// Tells all rooms of `top`, which is in the tree. A vdev that holds no blocks (a hole, or one whose metaslabs were
    /// not made yet) is left out.
    ///
    /// # Errors
    /// Damage, and those of reading the MOS. Some rooms may know the vdev then, `space` does not.
    pub fn register(&self, top: &Arc<Vdev>, metaslabs: Metaslabs) -> Result<()> {
        // Blocks that were cloned before their vdev was removed are still counted under its number.
        self.shares.brt.add_vdev(top.id(), top.asize())?;
        if !top.is_concrete() {
            return Ok(());
        }
        let shape = TopShape::of(top);
        match metaslabs {
            Metaslabs::OnDisk if top.metaslab_array() == 0 => return Ok(()),
            Metaslabs::OnDisk => self.maps.open_top(top.metaslab_array(), shape)?,
            Metaslabs::New(tx, features) => {
                let array = self.maps.create_top(tx, features, shape)?;
                top.set_u64(keys::METASLAB_ARRAY, array);
            }
        }
        self.shares.checkpoint.add_top(top)?;
        self.devices.refresh();
        let spec = space::TopSpec {
            id: top.id(),
            asize: top.asize(),
            ashift: top.ashift(),
            ms_shift: top.metaslab_shift(),
            class: class_of(self.mos, top)?,
            deflate_ratio: top.deflate_ratio(),
            children: top.children().len().max(1) as u64,
            align: top.alloc_unit(),
        };
        let made_in = match metaslabs {
            Metaslabs::OnDisk => Txg::NONE,
            Metaslabs::New(tx, _) => tx.txg(),
        };
        self.space.add_top_in(spec, made_in)?;
        self.space.set_writable(top.id(), top.state().usable())?;
        let passive = top.get_u64(keys::NON_ALLOCATING).unwrap_or(0) != 0;
        let removing = crate::removal::is_removing(top);
        self.space.set_allocating(top.id(), !passive && !removing)
    }

    /// To be called when all vdevs have been registered and what is allocated on them is known.
    pub fn registered(&self) {
        self.space.choose_embedded_logs(EMBEDDED_LOG_MIN_MS);
        self.shares.count_saved();
    }
}

/// One ZAP for each vdev of `tops` (pool format §16.8), listed in the object `map`.
pub(crate) fn create_vdev_zaps(
    mos: &Arc<Objset>,
    tx: &Tx,
    map: u64,
    tops: &[Arc<Vdev>],
) -> Result<()> {
    for t in tops {
        t.set_u64(keys::ZAP_TOP, create_vdev_zap(mos, tx, map)?);
        for l in t.leaves() {
            create_leaf_zap(mos, tx, map, &l)?;
        }
    }
    Ok(())
}

/// The ZAP of a new leaf.
pub(crate) fn create_leaf_zap(mos: &Arc<Objset>, tx: &Tx, map: u64, leaf: &Vdev) -> Result<()> {
    leaf.set_u64(keys::ZAP_LEAF, create_vdev_zap(mos, tx, map)?);
    Ok(())
}

fn create_vdev_zap(mos: &Arc<Objset>, tx: &Tx, map: u64) -> Result<u64> {
    let o = zap::create_object(mos, tx, ObjType::ZAP_METADATA, 0)?.object();
    Zap::new(&mos.hold(map)?).add_int(tx, o)?;
    Ok(o)
}

/// The ZAPs of all vdevs of a new pool, with that of the root if feature `vdev_zaps_v2` is enabled.
pub(crate) fn create_zap_map(
    mos: &Arc<Objset>,
    tx: &Tx,
    tree: &VdevTree,
    features: &dyn Features,
) -> Result<()> {
    let map = zap::create_object(mos, tx, ObjType::ZAP_METADATA, 0)?;
    Zap::new(&mos.hold(1)?).add_u64(tx, ZAP_MAP, map.object())?;
    let v2 = guid::VDEV_ZAPS_V2;
    if features.is_enabled(v2) {
        let root = zap::create_object(mos, tx, ObjType::ZAP_METADATA, 0)?.object();
        Zap::new(&map).add_int(tx, root)?;
        tree.set_root_u64(keys::ZAP_ROOT, root);
        features.activate(tx, v2, 1)?;
    }
    create_vdev_zaps(mos, tx, map.object(), &tree.tops())
}

/// Whether the pool has a ZAP for each vdev.
pub(crate) fn has_vdev_zaps(mos: &Arc<Objset>) -> Result<bool> {
    let map: Option<u64> = Zap::new(&mos.hold(1)?).get(ZAP_MAP)?;
    Ok(map.is_some())
}

impl Pool {
    pub(crate) fn rooms(&self) -> Rooms<'_> {
        Rooms {
            mos: self.mos(),
            space: self.space(),
            maps: &self.allocation.maps,
            shares: self.shares(),
            devices: &self.vdevs.devices,
        }
    }

    /// Adds a top-level vdev to the open pool: opens its devices, writes their labels, and makes it part of the pool in two
    /// txgs (see the module). On disk when it returns; blocks are placed on it from then on. Returns its id.
    ///
    /// The caller has checked what is a matter of policy (redundancy, devices in use).
    ///
    /// # Errors
    /// `Kind::Unsupported`: a RAID-Z or dRAID in a pool a device was removed from, a dRAID without its feature; `Kind::Again`: another vdev was added
    /// meanwhile; those of opening and labelling the devices. Nothing was changed then. An error of writing the txgs stops the pool.
    pub fn add_top(&self, spec: &TopSpec) -> Result<u64> {
        match self.add_tops(std::slice::from_ref(spec))?[..] {
            [id] => Ok(id),
            _ => bail!(Again, "another device was added meanwhile: try again"),
        }
    }

    /// [`Pool::add_top`] for several vdevs, which come together or not at all. Returns their ids, in the order of `specs`.
    pub fn add_tops(&self, specs: &[TopSpec]) -> Result<Vec<u64>> {
        self.add_tops_with(specs, true)
    }

    /// The same; `any_ashift`: also vdevs with another sector size than those there are.
    pub fn add_tops_with(&self, specs: &[TopSpec], any_ashift: bool) -> Result<Vec<u64>> {
        for spec in specs {
            self.check_add(spec)?;
        }
        let base = self.label_base(0, Txg::NONE);
        let tops = self.tree().new_tops(specs, &base, self.dmu().open_txg())?;
        let biases: Vec<Option<Bias>> = specs.iter().map(|s| s.bias).collect();
        let new = tops.clone();
        let fits = if any_ashift && !self.is_removing() {
            Ok(())
        } else {
            self.same_ashift(&tops)
        };
        let done = fits
            .and_then(|()| self.forget_holes(&tops))
            .and_then(|()| self.task(move |pool, tx| pool.commit_tops(tx, &new, &biases)));
        if let Err(e) = done {
            if self.stopped().is_some() {
                // They may be in the tree on disk: a later txg may have failed.
                return Err(e);
            }
            for leaf in tops.iter().flat_map(|t| t.leaves()) {
                self.tree().retire(&leaf, None);
            }
            return Err(e);
        }
        let ids = tops.iter().map(|t| t.id()).collect();
        for top in tops {
            self.task(move |pool, tx| pool.open_for_blocks(tx, &top))?;
        }
        self.refresh_dedup_quota()?;
        Ok(ids)
    }

    /// Before new vdevs fill holes: no log space map on disk names the former vdevs any more.
    fn forget_holes(&self, new: &[Arc<Vdev>]) -> Result<()> {
        let behind = self.tree().tops().len() as u64;
        let fills = new.iter().any(|t| t.id() < behind);
        if !fills || mutated(Mutation::HolesFilledAtOnce) {
            return Ok(());
        }
        self.sync_state().flush_all = true;
        self.sync().map(drop)
    }

    /// Refuses new vdevs with another sector size than all of the normal class have.
    fn same_ashift(&self, new: &[Arc<Vdev>]) -> Result<()> {
        let tops = self.tree().tops();
        let normal = tops.iter().filter(|t| t.is_concrete() && !t.is_log());
        let mut sizes: Vec<u32> = normal.map(|t| t.ashift()).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let [have] = sizes[..] else { return Ok(()) };
        match new.iter().find(|t| !t.is_log() && t.ashift() != have) {
            None => Ok(()),
            Some(t) => bail!(
                Invalid,
                "adding devices with different physical sector sizes is not allowed: the new vdev has ashift {}, \
                 those of the pool have {have}; use '-o ashift={have}' or '--allow-ashift-mismatch'",
                t.ashift()
            ),
        }
    }

    fn check_add(&self, spec: &TopSpec) -> Result<()> {
        if self.is_readonly() {
            bail!(ReadOnly, "pool '{}' is imported read-only", self.name());
        }
        let has_classes =
            self.config.vdev_zaps && self.config.features.is_enabled(ALLOCATION_CLASSES);
        if spec.bias.is_some() && !has_classes {
            bail!(
                Unsupported,
                "pool must be upgraded to add these vdevs: the feature 'allocation_classes' is not enabled"
            );
        }
        match spec.kind {
            vdev::GroupKind::Draid { .. } if !self.config.features.is_enabled(FEATURE_DRAID) => {
                bail!(
                    Unsupported,
                    "pool must be upgraded to add these vdevs: the feature 'draid' is not enabled"
                )
            }
            vdev::GroupKind::Raidz { .. } | vdev::GroupKind::Draid { .. } if self.has_removed() => {
                bail!(
                    Unsupported,
                    "invalid config; a pool with removing/removed vdevs does not support adding raidz or dRAID vdevs"
                )
            }
            _ => Ok(()),
        }
    }

    fn has_removed(&self) -> bool {
        let tops = self.tree().tops();
        self.is_removing() || tops.iter().any(|t| t.kind() == VdevKind::Indirect)
    }

    /// First txg: the vdevs belong to the pool and hold nothing.
    fn commit_tops(&self, tx: &Tx, tops: &[Arc<Vdev>], biases: &[Option<Bias>]) -> Result<()> {
        let map = self.directory(ZAP_MAP)?;
        self.tree().append(tops, tx.txg())?;
        self.dirty_config();
        if let Some(map) = map {
            self.or_stop(create_vdev_zaps(self.mos(), tx, map, tops))?;
        }
        self.or_stop(self.add_dspares(tx, tops))?;
        for (top, bias) in tops.iter().zip(biases) {
            self.or_stop(write_bias(
                self.mos(),
                tx,
                top,
                *bias,
                &*self.config.features,
            ))?;
            let text = format!("vdev {} of {}", top.name(), self.name());
            self.or_stop(self.log_internal(tx, "vdev add", &text))?;
        }
        Ok(())
    }

    /// Second txg: the vdev gets metaslabs, and blocks may be placed on it.
    fn open_for_blocks(&self, tx: &Tx, top: &Arc<Vdev>) -> Result<()> {
        top.choose_metaslabs();
        if !mutated(Mutation::MetaslabsBeforeConfig) {
            self.dirty_config();
        }
        let rooms = self.rooms();
        self.or_stop(rooms.register(top, Metaslabs::New(tx, &self.config)))?;
        rooms.registered();
        Ok(())
    }

    /// What an import finds added in part: vdevs without metaslabs get them. Before anything is placed on them.
    pub(crate) fn finish_adds(&self) -> Result<()> {
        let tops = self.tree().tops();
        let half = |t: &&Arc<Vdev>| t.is_concrete() && t.metaslab_array() == 0;
        for top in tops.iter().filter(half) {
            let top = top.clone();
            self.task(move |pool, tx| pool.open_for_blocks(tx, &top))?;
        }
        Ok(())
    }

    /// After a failure half-way through a change of the MOS the txg must not be committed.
    pub(crate) fn or_stop(&self, r: Result<()>) -> Result<()> {
        if let Err(e) = &r {
            self.stop_for_good(e.clone());
        }
        r
    }
}
