//! Names of the keys in vdev nvlists (pool format §5.3).

/// String, all vdevs: the kind, as in [`VdevKind::type_name`](crate::VdevKind::type_name).
pub const TYPE: &str = "type";
/// `u64`: index in the parent, which must equal the position in `children`.
pub const ID: &str = "id";
/// `u64`, all vdevs: random, never 0 except for holes.
pub const GUID: &str = "guid";
/// Array of nvlists, interior vdevs.
pub const CHILDREN: &str = "children";
/// String, leaves: path of the device or file.
pub const PATH: &str = "path";
/// String, leaves: name that survives a change of the path, such as a serial number.
pub const DEVID: &str = "devid";
/// String, leaves: where the device is plugged in.
pub const PHYS_PATH: &str = "phys_path";
/// 1: partitioned by ZFS, the data is in the first partition.
pub const WHOLE_DISK: &str = "whole_disk";
/// 1: was missing at the last import.
pub const NOT_PRESENT: &str = "not_present";
/// `u64`, leaves: 1 on a hot spare.
pub const IS_SPARE: &str = "is_spare";
/// `u64`, top-level vdevs: MOS object with the numbers of the space maps; 0 until the first sync.
pub const METASLAB_ARRAY: &str = "metaslab_array";
/// `u64`, top-level vdevs: log2 of the size of a metaslab in bytes.
pub const METASLAB_SHIFT: &str = "metaslab_shift";
/// `u64`, top-level vdevs: log2 of the sector size in bytes.
pub const ASHIFT: &str = "ashift";
/// `u64`, top-level vdevs: allocatable bytes, parity included.
pub const ASIZE: &str = "asize";
/// `u64`, top-level vdevs: 1 on a log device.
pub const IS_LOG: &str = "is_log";
/// `u64`, top-level vdevs: 1 if nothing is allocated there (vdev property `allocating=off`).
pub const NON_ALLOCATING: &str = "non_allocating";
/// `u64`, top-level vdevs: 1 while the vdev is being removed.
pub const REMOVING: &str = "removing";
/// Space-map object of the leaf's DTL.
pub const DTL: &str = "DTL";
/// `u64`, removed vdevs: MOS object with the mapping (pool format §23).
pub const INDIRECT_OBJECT: &str = "com.delphix:indirect_object";
/// `u64`, removed vdevs: MOS object that says in which txg which part was copied.
pub const INDIRECT_BIRTHS: &str = "com.delphix:indirect_births";
/// `u64`, removed vdevs: id of the vdev that was removed before this one; absent on the first.
pub const PREV_INDIRECT: &str = "com.delphix:prev_indirect_vdev";
/// `u64`, all vdevs: txg in which the vdev was created.
pub const CREATE_TXG: &str = "create_txg";
/// `u64`, root: MOS object, the ZAP of the root vdev (feature `vdev_zaps_v2`).
pub const ZAP_ROOT: &str = "com.klarasystems:vdev_zap_root";
/// `u64`, top-level vdevs: MOS object, the ZAP of the vdev.
pub const ZAP_TOP: &str = "com.delphix:vdev_zap_top";
/// `u64`, leaves: MOS object, the ZAP of the leaf.
pub const ZAP_LEAF: &str = "com.delphix:vdev_zap_leaf";
/// Called like the feature.
pub const RESILVER_DEFER: &str = disk::feature::guid::RESILVER_DEFER;
/// `u64`, leaves: 1 if taken out of use by `zpool offline`.
pub const OFFLINE: &str = "offline";
/// `u64`, leaves: 1 if out of use because of errors.
pub const FAULTED: &str = "faulted";
/// `u64`, leaves: 1 if in use in spite of many errors.
pub const DEGRADED: &str = "degraded";
/// `u64`, leaves: 1 if the device was taken out of the machine.
pub const REMOVED: &str = "removed";
/// `u64`, leaves: 1 if the spare beside this leaf is to go once the leaf is resilvered.
pub const UNSPARE: &str = "unspare";
/// `u64`, leaves: txg in which the resilver that fills the leaf was asked for.
pub const RESILVER_TXG: &str = "resilver_txg";
/// `u64`, leaves: txg in which the rebuild that fills the leaf was asked for.
pub const REBUILD_TXG: &str = "rebuild_txg";
/// `err_exceeded` or `external`.
pub const AUX_STATE: &str = "aux_state";
/// `u64`: 1 on the slot of a removed log device.
pub const IS_HOLE: &str = "is_hole";
/// `u64`, raidz and draid: columns of parity, 1 to 3.
pub const NPARITY: &str = "nparity";
/// Boolean, raidz: present while an expansion moves data.
pub const RAIDZ_EXPANDING: &str = "raidz_expanding";
/// `u64` array, raidz: the txgs, ascending, from which each wider width is valid (pool format §10).
pub const RAIDZ_EXPAND_TXGS: &str = "raidz_expand_txgs";
/// `u64`, draid: data columns of a group (pool format §11).
pub const DRAID_NDATA: &str = "draid_ndata";
/// `u64`, draid: number of distributed spares.
pub const DRAID_NSPARES: &str = "draid_nspares";
/// `u64`, draid: groups of a slice.
pub const DRAID_NGROUPS: &str = "draid_ngroups";
/// `u64`, draid: children of a failure domain (feature `draid_failure_domains`).
pub const DRAID_NCHILDREN: &str = "draid_nchildren";
/// `u64`, distributed spares: number of the spare within its dRAID, from 0.
pub const SPARE_ID: &str = "spareid";

/// Keys that are written to the MOS only, never to labels.
pub const MOS_ONLY: [&str; 4] = [ZAP_ROOT, ZAP_TOP, ZAP_LEAF, RESILVER_DEFER];

/// Keys at the top of a pool configuration (pool format §5.2).
pub mod pool {
    /// `u64`: pool version, 1 to 28 or 5000.
    pub const VERSION: &str = "version";
    /// String: name of the pool.
    pub const NAME: &str = "name";
    /// 0 active, 1 exported, 2 destroyed, 3 spare, 4 l2cache.
    pub const STATE: &str = "state";
    /// `u64`: txg in which the configuration was written.
    pub const TXG: &str = "txg";
    /// `u64`: guid of the pool, which is that of the root vdev.
    pub const POOL_GUID: &str = "pool_guid";
    /// `u64`, labels: guid of the top-level vdev the leaf belongs to.
    pub const TOP_GUID: &str = "top_guid";
    /// `u64`: id of the host that last wrote the pool; absent if it has none.
    pub const HOSTID: &str = "hostid";
    /// String: name of that host.
    pub const HOSTNAME: &str = "hostname";
    /// `u64`: number of top-level slots, holes included.
    pub const VDEV_CHILDREN: &str = "vdev_children";
    /// `u64` array: ids of the holes; absent if there are none.
    pub const HOLE_ARRAY: &str = "hole_array";
    /// Nvlist: in a label the top-level vdev of the leaf, in the MOS the root vdev.
    pub const VDEV_TREE: &str = "vdev_tree";
    /// `u64`: guid of the pool this one is being split from.
    pub const SPLIT_GUID: &str = "split_guid";
    /// Nvlist of booleans: the active features needed to read the MOS. Must exist in version 5000.
    pub const FEATURES_FOR_READ: &str = "features_for_read";

    /// In use, or last used by a system that did not export it.
    pub const STATE_ACTIVE: u64 = 0;
    /// Exported.
    pub const STATE_EXPORTED: u64 = 1;
    /// Destroyed; `zpool import -D` can bring it back.
    pub const STATE_DESTROYED: u64 = 2;
    /// An idle hot spare.
    pub const STATE_SPARE: u64 = 3;
    /// A cache device.
    pub const STATE_L2CACHE: u64 = 4;
}
