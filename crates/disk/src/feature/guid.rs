//! Names of features on disk, as constants. [`FEATURES`](super::FEATURES) is the table of all features.

/// Destroy file systems in the background.
pub const ASYNC_DESTROY: &str = "com.delphix:async_destroy";
/// Snapshots that freed nothing take less space.
pub const EMPTY_BPOBJ: &str = "com.delphix:empty_bpobj";
/// LZ4 compression.
pub const LZ4_COMPRESS: &str = "org.illumos:lz4_compress";
/// Crash dumps to pools of several devices.
pub const MULTI_VDEV_CRASH_DUMP: &str = "com.joyent:multi_vdev_crash_dump";
/// Space maps keep histograms of free space.
pub const SPACEMAP_HISTOGRAM: &str = "com.delphix:spacemap_histogram";
/// Record when each feature was enabled.
pub const ENABLED_TXG: &str = "com.delphix:enabled_txg";
/// Holes keep their birth, for better incremental streams.
pub const HOLE_BIRTH: &str = "com.delphix:hole_birth";
/// Datasets carry further attributes; used by other features.
pub const EXTENSIBLE_DATASET: &str = "com.delphix:extensible_dataset";
/// Blocks that compress very well live in their block pointer.
pub const EMBEDDED_DATA: &str = "com.delphix:embedded_data";
/// Bookmarks: sources of incremental streams without data.
pub const BOOKMARKS: &str = "com.delphix:bookmarks";
/// Limits on the number of file systems and snapshots.
pub const FILESYSTEM_LIMITS: &str = "com.joyent:filesystem_limits";
/// Blocks larger than 128 KiB.
pub const LARGE_BLOCKS: &str = "org.open-zfs:large_blocks";
/// Dnodes larger than 512 bytes.
pub const LARGE_DNODE: &str = "org.zfsonlinux:large_dnode";
/// SHA-512/256 checksums.
pub const SHA512: &str = "org.illumos:sha512";
/// Skein checksums.
pub const SKEIN: &str = "org.illumos:skein";
/// Edon-R checksums.
pub const EDONR: &str = "org.illumos:edonr";
/// Count objects per user and group.
pub const USEROBJ_ACCOUNTING: &str = "org.zfsonlinux:userobj_accounting";
/// Encryption per dataset.
pub const ENCRYPTION: &str = "com.datto:encryption";
/// Space and objects accounted per project.
pub const PROJECT_QUOTA: &str = "org.zfsonlinux:project_quota";
/// Top-level devices can be removed.
pub const DEVICE_REMOVAL: &str = "com.delphix:device_removal";
/// Less memory for removed devices as their blocks are freed.
pub const OBSOLETE_COUNTS: &str = "com.delphix:obsolete_counts";
/// Checkpoint of the whole pool to rewind to.
pub const ZPOOL_CHECKPOINT: &str = "com.delphix:zpool_checkpoint";
/// Space maps describe large segments in less space.
pub const SPACEMAP_V2: &str = "com.delphix:spacemap_v2";
/// Separate devices for metadata, small blocks and dedup tables.
pub const ALLOCATION_CLASSES: &str = "org.zfsonlinux:allocation_classes";
/// New resilvers wait for the running one.
pub const RESILVER_DEFER: &str = "com.datto:resilver_defer";
/// Bookmarks with more fields.
pub const BOOKMARK_V2: &str = "com.datto:bookmark_v2";
/// Bookmarks with lists of redacted blocks.
pub const REDACTION_BOOKMARKS: &str = "com.delphix:redaction_bookmarks";
/// Datasets received from redacted streams.
pub const REDACTED_DATASETS: &str = "com.delphix:redacted_datasets";
/// Bookmarks count what was written since.
pub const BOOKMARK_WRITTEN: &str = "com.delphix:bookmark_written";
/// Changes of all metaslabs logged together.
pub const LOG_SPACEMAP: &str = "com.delphix:log_spacemap";
/// Clones are destroyed faster.
pub const LIVELIST: &str = "com.delphix:livelist";
/// Sequential rebuild of mirrors and dRAID.
pub const DEVICE_REBUILD: &str = "org.openzfs:device_rebuild";
/// Zstandard compression.
pub const ZSTD_COMPRESS: &str = "org.freebsd:zstd_compress";
/// Distributed-spare RAID.
pub const DRAID: &str = "org.openzfs:draid";
/// Changes of xattr=sa attributes are logged.
pub const ZILSAXATTR: &str = "org.openzfs:zilsaxattr";
/// Error log per dataset, valid for its snapshots.
pub const HEAD_ERRLOG: &str = "com.delphix:head_errlog";
/// BLAKE3 checksums.
pub const BLAKE3: &str = "org.openzfs:blake3";
/// Files share blocks (reflinks).
pub const BLOCK_CLONING: &str = "com.fudosecurity:block_cloning";
/// Byte order of the block cloning table.
pub const BLOCK_CLONING_ENDIAN: &str = "com.truenas:block_cloning_endian";
/// Properties for the root device.
pub const VDEV_ZAPS_V2: &str = "com.klarasystems:vdev_zaps_v2";
/// Redaction lists of many snapshots.
pub const REDACTION_LIST_SPILL: &str = "com.delphix:redaction_list_spill";
/// RAID-Z groups can grow by a device.
pub const RAIDZ_EXPANSION: &str = "org.openzfs:raidz_expansion";
/// Dedup tables with a log, quota and pruning.
pub const FAST_DEDUP: &str = "com.klarasystems:fast_dedup";
/// File names of up to 1023 bytes.
pub const LONGNAME: &str = "org.zfsonlinux:longname";
/// Simple directories larger than 128 KiB.
pub const LARGE_MICROZAP: &str = "com.klarasystems:large_microzap";
/// Gang headers larger than 512 bytes.
pub const DYNAMIC_GANG_HEADER: &str = "com.klarasystems:dynamic_gang_header";
/// Rewritten blocks keep their logical birth.
pub const PHYSICAL_REWRITE: &str = "com.truenas:physical_rewrite";
/// dRAID groups aware of failure domains.
pub const DRAID_FAILURE_DOMAINS: &str = "com.seagate:draid_failure_domains";
