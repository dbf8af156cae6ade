//! DMU object types (data format §2.4): what a block holds, how it is swapped, whether it is metadata.

/// Object type as stored in block pointers and dnodes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ObjType(pub u8);

/// How the words of a block of a type are put in order when it comes from the other byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapClass {
    /// Bytes: nothing is swapped.
    U8,
    /// Words of 16 bits.
    U16,
    /// Words of 32 bits.
    U32,
    /// Words of 64 bits.
    U64,
    /// A ZAP: its integers by their own sizes.
    Zap,
    /// Dnodes: fixed fields, pointers, the bonus by its type.
    Dnode,
    /// An object set: its dnodes and words.
    Objset,
    /// A legacy znode: words of 64 bits, the ACL by its version.
    Znode,
    /// ACL entries of version 0.
    OldAcl,
    /// ACL entries of version 1.
    Acl,
}

macro_rules! types {
    ($($(#[$doc:meta])* $num:literal $name:ident $class:ident $meta:literal $enc:literal;)*) => {
        impl ObjType {
            $($(#[$doc])* pub const $name: ObjType = ObjType($num);)*
            /// Upper-case name, for messages and dumps.
            pub fn name(self) -> &'static str {
                match self.0 {
                    $($num => stringify!($name),)*
                    n if n & 0x80 != 0 => "NEW_STYLE",
                    _ => "INVALID",
                }
            }
            fn row(self) -> Option<(SwapClass, bool, bool)> {
                match self.0 {
                    $($num => Some((SwapClass::$class, $meta, $enc)),)*
                    n if n & 0x80 != 0 => {
                        let class = match n & 0x1f {
                            0 => SwapClass::U8,
                            1 => SwapClass::U16,
                            2 => SwapClass::U32,
                            3 => SwapClass::U64,
                            4 => SwapClass::Zap,
                            5 => SwapClass::Dnode,
                            6 => SwapClass::Objset,
                            7 => SwapClass::Znode,
                            8 => SwapClass::OldAcl,
                            9 => SwapClass::Acl,
                            _ => return None,
                        };
                        Some((class, n & 0x40 != 0, n & 0x20 != 0))
                    }
                    _ => None,
                }
            }
        }
    };
}

// Number, name, swap class, whether it is metadata, whether it is encrypted in encrypted datasets.
types! {
    /// No type: a free dnode, or no bonus.
    0 NONE U8 true false;
    /// ZAP with the numbers of the main objects of the MOS; object 1 of the MOS.
    1 OBJECT_DIRECTORY Zap true false;
    /// Array of object numbers, such as those of a vdev's space maps.
    2 OBJECT_ARRAY U64 true false;
    /// A packed nvlist.
    3 PACKED_NVLIST U8 true false;
    /// Bonus of the former: its length in bytes.
    4 PACKED_NVLIST_SIZE U64 true false;
    /// A list of block pointers.
    5 BPOBJ U64 true false;
    /// Bonus of the former: [`crate::dsl::BpobjPhys`].
    6 BPOBJ_HDR U64 true false;
    /// Bonus of a space map.
    7 SPACE_MAP_HEADER U64 true false;
    /// A space map.
    8 SPACE_MAP U64 true false;
    /// A block of an intent log.
    9 INTENT_LOG U64 true true;
    /// The dnodes of an object set, as content of the meta-dnode.
    10 DNODE Dnode true true;
    /// The block of an object set.
    11 OBJSET Objset true false;
    /// A DSL directory, as bonus.
    12 DSL_DIR U64 true false;
    /// ZAP of child directories by name.
    13 DSL_DIR_CHILD_MAP Zap true false;
    /// ZAP of snapshots by name.
    14 DSL_DS_SNAP_MAP Zap true false;
    /// ZAP of dataset properties.
    15 DSL_PROPS Zap true false;
    /// A DSL dataset, as bonus.
    16 DSL_DATASET U64 true false;
    /// Attributes of a file in ZPL versions 1 to 4, as bonus.
    17 ZNODE Znode true false;
    /// ACL of version 0, where it does not fit into the znode.
    18 OLDACL OldAcl true true;
    /// Content of a file.
    19 PLAIN_FILE_CONTENTS U8 false true;
    /// ZAP of a directory's entries.
    20 DIRECTORY_CONTENTS Zap true true;
    /// ZAP of a file system: its root directory, version and settings; object 1.
    21 MASTER_NODE Zap true false;
    /// ZAP of unlinked files that are to be freed.
    22 UNLINKED_SET Zap true true;
    /// Content of a volume; object 1.
    23 ZVOL U8 false true;
    /// ZAP of a volume: its size; object 2.
    24 ZVOL_PROP Zap true false;
    /// Bytes of another use.
    25 PLAIN_OTHER U8 false true;
    /// Words of another use.
    26 UINT64_OTHER U64 false true;
    /// ZAP of another use.
    27 ZAP_OTHER Zap true false;
    /// ZAP of damaged blocks.
    28 ERROR_LOG Zap true false;
    /// History of the pool.
    29 SPA_HISTORY U8 true false;
    /// Bonus of the former: [`crate::history::HistoryPhys`].
    30 SPA_HISTORY_OFFSETS U64 true false;
    /// ZAP of pool properties.
    31 POOL_PROPS Zap true false;
    /// ZAP of delegated permissions.
    32 DSL_PERMS Zap true false;
    /// ACL of version 1, where it does not fit into the znode.
    33 ACL Acl true true;
    /// Bonus of the former.
    34 SYSACL U8 true true;
    /// Table of the domains of FUIDs, a packed nvlist.
    35 FUID U8 true true;
    /// Bonus of the former: its length in bytes.
    36 FUID_SIZE U64 true false;
    /// ZAP of the clones of a snapshot.
    37 NEXT_CLONES Zap true false;
    /// ZAP of the datasets a scrub or resilver has still to visit.
    38 SCAN_QUEUE Zap true false;
    /// ZAP of the space and objects of users, groups and projects; objects −1, −2, −3.
    39 USERGROUP_USED Zap true true;
    /// ZAP of quotas of users, groups and projects.
    40 USERGROUP_QUOTA Zap true true;
    /// ZAP of the holds of a snapshot.
    41 USERREFS Zap true false;
    /// ZAP of a dedup table.
    42 DDT_ZAP Zap true false;
    /// ZAP of the statistics of dedup tables.
    43 DDT_STATS Zap true false;
    /// System attributes of a file, as bonus or spill block.
    44 SA U8 true true;
    /// ZAP that leads to the next two.
    45 SA_MASTER_NODE Zap true true;
    /// ZAP of the registered attributes.
    46 SA_ATTR_REGISTRATION Zap true true;
    /// ZAP of the attribute layouts.
    47 SA_ATTR_LAYOUTS Zap true true;
    /// ZAP of obsolete use.
    48 SCAN_XLATE Zap true false;
    /// A block of which only a dedup table is known; not stored in dnodes.
    49 DEDUP U8 false true;
    /// ZAP of the lists of a deadlist, by txg.
    50 DEADLIST Zap true false;
    /// Bonus of the former: [`crate::dsl::DeadlistPhys`].
    51 DEADLIST_HDR U64 true false;
    /// ZAP of the clones of a directory's snapshots.
    52 DSL_CLONES Zap true false;
    /// Array of the sub-objects of a bpobj.
    53 BPOBJ_SUBOBJ U64 true false;
    /// A ZAP that has no type of its own.
    0xC4 ZAP_METADATA Zap true false;
    /// Words of 64 bits that have no type of their own.
    0xC3 U64_METADATA U64 true false;
    /// Words of 32 bits that have no type of their own.
    0xC2 U32_METADATA U32 true false;
    /// Bytes that have no type of their own.
    0xC0 U8_METADATA U8 true false;
}

impl ObjType {
    /// A number that this format knows.
    pub fn is_valid(self) -> bool {
        self.row().is_some()
    }

    /// How blocks of the type are swapped; bytes for an unknown type.
    pub fn swap_class(self) -> SwapClass {
        self.row().map_or(SwapClass::U8, |r| r.0)
    }

    /// Metadata types are stored in more copies and always compressed.
    pub fn is_metadata(self) -> bool {
        self.row().is_none_or(|r| r.1)
    }

    /// Content is encrypted in encrypted datasets.
    pub fn is_encrypted(self) -> bool {
        self.row().is_some_and(|r| r.2)
    }

    /// Whether objects of the type are ZAPs.
    pub fn is_zap(self) -> bool {
        self.swap_class() == SwapClass::Zap
    }
}

impl std::fmt::Debug for ObjType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

/// Type of an object set (objset_phys `os_type`).
pub mod os_type {
    /// Not an object set.
    pub const NONE: u64 = 0;
    /// The MOS.
    pub const META: u64 = 1;
    /// A file system.
    pub const ZFS: u64 = 2;
    /// A volume.
    pub const ZVOL: u64 = 3;
    /// Anything else; not used.
    pub const OTHER: u64 = 4;
}
