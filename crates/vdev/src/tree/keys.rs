//! Names of the keys in vdev nvlists (pool format §5.3).

pub const TYPE: &str = "type";
pub const ID: &str = "id";
pub const GUID: &str = "guid";
pub const CHILDREN: &str = "children";
pub const PATH: &str = "path";
pub const DEVID: &str = "devid";
pub const PHYS_PATH: &str = "phys_path";
/// 1: partitioned by ZFS, the data is in the first partition.
pub const WHOLE_DISK: &str = "whole_disk";
/// 1: was missing at the last import.
pub const NOT_PRESENT: &str = "not_present";
pub const IS_SPARE: &str = "is_spare";
pub const METASLAB_ARRAY: &str = "metaslab_array";
pub const METASLAB_SHIFT: &str = "metaslab_shift";
pub const ASHIFT: &str = "ashift";
pub const ASIZE: &str = "asize";
pub const IS_LOG: &str = "is_log";
pub const NON_ALLOCATING: &str = "non_allocating";
pub const REMOVING: &str = "removing";
/// Space-map object of the leaf's DTL.
pub const DTL: &str = "DTL";
pub const INDIRECT_OBJECT: &str = "com.delphix:indirect_object";
pub const INDIRECT_BIRTHS: &str = "com.delphix:indirect_births";
pub const PREV_INDIRECT: &str = "com.delphix:prev_indirect_vdev";
pub const CREATE_TXG: &str = "create_txg";
pub const ZAP_ROOT: &str = "com.klarasystems:vdev_zap_root";
pub const ZAP_TOP: &str = "com.delphix:vdev_zap_top";
pub const ZAP_LEAF: &str = "com.delphix:vdev_zap_leaf";
/// Called like the feature.
pub const RESILVER_DEFER: &str = disk::feature::guid::RESILVER_DEFER;
pub const OFFLINE: &str = "offline";
pub const FAULTED: &str = "faulted";
pub const DEGRADED: &str = "degraded";
pub const REMOVED: &str = "removed";
pub const UNSPARE: &str = "unspare";
pub const RESILVER_TXG: &str = "resilver_txg";
pub const REBUILD_TXG: &str = "rebuild_txg";
/// `err_exceeded` or `external`.
pub const AUX_STATE: &str = "aux_state";
pub const IS_HOLE: &str = "is_hole";
pub const NPARITY: &str = "nparity";
pub const RAIDZ_EXPANDING: &str = "raidz_expanding";
pub const RAIDZ_EXPAND_TXGS: &str = "raidz_expand_txgs";
pub const DRAID_NDATA: &str = "draid_ndata";
pub const DRAID_NSPARES: &str = "draid_nspares";
pub const DRAID_NGROUPS: &str = "draid_ngroups";
pub const DRAID_NCHILDREN: &str = "draid_nchildren";
pub const SPARE_ID: &str = "spareid";

/// Keys that are written to the MOS only, never to labels.
pub const MOS_ONLY: [&str; 4] = [ZAP_ROOT, ZAP_TOP, ZAP_LEAF, RESILVER_DEFER];

/// Keys at the top of a pool configuration (pool format §5.2).
pub mod pool {
    pub const VERSION: &str = "version";
    pub const NAME: &str = "name";
    /// 0 active, 1 exported, 2 destroyed, 3 spare, 4 l2cache.
    pub const STATE: &str = "state";
    pub const TXG: &str = "txg";
    pub const POOL_GUID: &str = "pool_guid";
    pub const TOP_GUID: &str = "top_guid";
    pub const HOSTID: &str = "hostid";
    pub const HOSTNAME: &str = "hostname";
    pub const VDEV_CHILDREN: &str = "vdev_children";
    pub const HOLE_ARRAY: &str = "hole_array";
    pub const VDEV_TREE: &str = "vdev_tree";
    pub const SPLIT_GUID: &str = "split_guid";
    pub const FEATURES_FOR_READ: &str = "features_for_read";

    pub const STATE_ACTIVE: u64 = 0;
    pub const STATE_EXPORTED: u64 = 1;
    pub const STATE_DESTROYED: u64 = 2;
    pub const STATE_SPARE: u64 = 3;
    pub const STATE_L2CACHE: u64 = 4;
}
