//! Names of entries in the ZAPs of the MOS: the object directory, and the ZAPs of vdevs, datasets and directories.

/// Object directory: the salt of checksums that have one, 32 bytes.
pub const CHECKSUM_SALT: &str = "org.illumos:checksum_salt";
/// Object directory: the uberblock kept by a checkpoint.
pub const CHECKPOINT: &str = "com.delphix:zpool_checkpoint";
/// Object directory: livelists of destroyed clones.
pub const DELETED_CLONES: &str = "com.delphix:deleted_clones";
/// Object directory: blocks on removed vdevs that are no longer referenced.
pub const OBSOLETE_BPOBJ: &str = "com.delphix:obsolete_bpobj";
/// Object directory: logs of space maps, by txg.
pub const LOG_SPACEMAP_ZAP: &str = "com.delphix:log_spacemap_zap";
/// Object directory: the list of the ZAPs of vdevs.
pub const VDEV_ZAP_MAP: &str = "com.delphix:vdev_zap_map";
/// Object directory: the removal of a vdev.
pub const REMOVING: &str = "com.delphix:removing";
/// Object directory: the mapping of a removed vdev that is being condensed, three words.
pub const CONDENSING: &str = "com.delphix:condensing_indirect";
/// Object directory: times of txgs, in rings of minutes, days and months.
pub const TXG_TIMES_MINUTES: &str = "com.klarasystems:txg_log_time:minutes";
/// See [`TXG_TIMES_MINUTES`].
pub const TXG_TIMES_DAYS: &str = "com.klarasystems:txg_log_time:days";
/// See [`TXG_TIMES_MINUTES`].
pub const TXG_TIMES_MONTHS: &str = "com.klarasystems:txg_log_time:months";
/// ZAP of a top-level vdev: what was freed since the checkpoint.
pub const CHECKPOINT_SPACEMAP: &str = "com.delphix:pool_checkpoint_sm";
/// ZAP of a removed vdev: what of its mapping is obsolete.
pub const OBSOLETE_SPACEMAP: &str = "com.delphix:indirect_obsolete_sm";
/// ZAP of a removed vdev: obsolete bytes are counted exactly.
pub const OBSOLETE_COUNTS_ARE_PRECISE: &str = "com.delphix:obsolete_counts_are_precise";
/// ZAP of a top-level vdev: txgs from which on logs of space maps count, by metaslab.
pub const UNFLUSHED_TXGS: &str = "com.delphix:ms_unflushed_phys_txgs";
/// ZAP of a top-level vdev: its allocation class.
pub const ALLOCATION_BIAS: &str = "org.zfsonlinux:allocation_bias";
/// ZAP of a RAID-Z: the state of its last expansion.
pub const EXPAND_STATE: &str = "org.openzfs:raidz_expand_state";
/// ZAP of a RAID-Z: when its last expansion began, seconds since 1970.
pub const EXPAND_START: &str = "org.openzfs:raidz_expand_start_time";
/// ZAP of a RAID-Z: when its last expansion ended; 0 while it runs.
pub const EXPAND_END: &str = "org.openzfs:raidz_expand_end_time";
/// ZAP of a RAID-Z: bytes that its last expansion copied.
pub const EXPAND_COPIED: &str = "org.openzfs:raidz_expand_bytes_copied";
/// ZAP of a top-level vdev: the state of a sequential rebuild.
pub const VDEV_REBUILD: &str = "org.openzfs:vdev_rebuild";
/// ZAP of a dataset: its remap deadlist.
pub const REMAP_DEADLIST: &str = "com.delphix:remap_deadlist";
/// ZAP of a dataset: its bookmarks.
pub const BOOKMARKS: &str = "com.delphix:bookmarks";
/// ZAP of a directory: the livelist of a clone.
pub const LIVELIST: &str = "com.delphix:livelist";
/// ZAP of a leaf, trim: bytes of its data area before which everything was trimmed.
pub const TRIM_OFFSET: &str = "org.zfsonlinux:next_offset_to_trim";
/// ZAP of a leaf, trim: 0 none, 1 active, 2 canceled, 3 suspended, 4 complete.
pub const TRIM_STATE: &str = "org.zfsonlinux:vdev_trim_state";
/// ZAP of a leaf, trim: when it began or ended, seconds since 1970.
pub const TRIM_TIME: &str = "org.zfsonlinux:vdev_trim_action_time";
/// ZAP of a leaf, trim: bytes per second, 0: no limit.
pub const TRIM_RATE: &str = "org.zfsonlinux:vdev_trim_rate";
/// ZAP of a leaf, trim: not everything that is free.
pub const TRIM_PARTIAL: &str = "org.zfsonlinux:vdev_trim_partial";
/// ZAP of a leaf, trim: the device was asked to erase.
pub const TRIM_SECURE: &str = "org.zfsonlinux:vdev_trim_secure";
/// ZAP of a leaf, initialize: as [`TRIM_OFFSET`].
pub const INITIALIZE_OFFSET: &str = "com.delphix:next_offset_to_initialize";
/// ZAP of a leaf, initialize: as [`TRIM_STATE`].
pub const INITIALIZE_STATE: &str = "com.delphix:vdev_initialize_state";
/// ZAP of a leaf, initialize: as [`TRIM_TIME`].
pub const INITIALIZE_TIME: &str = "com.delphix:vdev_initialize_action_time";
