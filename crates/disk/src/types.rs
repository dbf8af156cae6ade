//! DMU object types (data format §2.4): what a block holds, how it is swapped, whether it is metadata.

/// Object type as stored in block pointers and dnodes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ObjType(pub u8);

/// How the words of a block of a type are put in order when it comes from the other byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapClass {
    U8,
    U16,
    U32,
    U64,
    Zap,
    Dnode,
    Objset,
    Znode,
    OldAcl,
    Acl,
}

macro_rules! types {
    ($($num:literal $name:ident $class:ident $meta:literal $enc:literal;)*) => {
        impl ObjType {
            $(pub const $name: ObjType = ObjType($num);)*
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

types! {
    0 NONE U8 true false;
    1 OBJECT_DIRECTORY Zap true false;
    2 OBJECT_ARRAY U64 true false;
    3 PACKED_NVLIST U8 true false;
    4 PACKED_NVLIST_SIZE U64 true false;
    5 BPOBJ U64 true false;
    6 BPOBJ_HDR U64 true false;
    7 SPACE_MAP_HEADER U64 true false;
    8 SPACE_MAP U64 true false;
    9 INTENT_LOG U64 true true;
    10 DNODE Dnode true true;
    11 OBJSET Objset true false;
    12 DSL_DIR U64 true false;
    13 DSL_DIR_CHILD_MAP Zap true false;
    14 DSL_DS_SNAP_MAP Zap true false;
    15 DSL_PROPS Zap true false;
    16 DSL_DATASET U64 true false;
    17 ZNODE Znode true false;
    18 OLDACL OldAcl true true;
    19 PLAIN_FILE_CONTENTS U8 false true;
    20 DIRECTORY_CONTENTS Zap true true;
    21 MASTER_NODE Zap true false;
    22 UNLINKED_SET Zap true true;
    23 ZVOL U8 false true;
    24 ZVOL_PROP Zap true false;
    25 PLAIN_OTHER U8 false true;
    26 UINT64_OTHER U64 false true;
    27 ZAP_OTHER Zap true false;
    28 ERROR_LOG Zap true false;
    29 SPA_HISTORY U8 true false;
    30 SPA_HISTORY_OFFSETS U64 true false;
    31 POOL_PROPS Zap true false;
    32 DSL_PERMS Zap true false;
    33 ACL Acl true true;
    34 SYSACL U8 true true;
    35 FUID U8 true true;
    36 FUID_SIZE U64 true false;
    37 NEXT_CLONES Zap true false;
    38 SCAN_QUEUE Zap true false;
    39 USERGROUP_USED Zap true true;
    40 USERGROUP_QUOTA Zap true true;
    41 USERREFS Zap true false;
    42 DDT_ZAP Zap true false;
    43 DDT_STATS Zap true false;
    44 SA U8 true true;
    45 SA_MASTER_NODE Zap true true;
    46 SA_ATTR_REGISTRATION Zap true true;
    47 SA_ATTR_LAYOUTS Zap true true;
    48 SCAN_XLATE Zap true false;
    49 DEDUP U8 false true;
    50 DEADLIST Zap true false;
    51 DEADLIST_HDR U64 true false;
    52 DSL_CLONES Zap true false;
    53 BPOBJ_SUBOBJ U64 true false;
    0xC4 ZAP_METADATA Zap true false;
    0xC3 U64_METADATA U64 true false;
    0xC2 U32_METADATA U32 true false;
    0xC0 U8_METADATA U8 true false;
}

impl ObjType {
    /// A number that this format knows.
    pub fn is_valid(self) -> bool {
        self.row().is_some()
    }

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
    pub const NONE: u64 = 0;
    pub const META: u64 = 1;
    pub const ZFS: u64 = 2;
    pub const ZVOL: u64 = 3;
    pub const OTHER: u64 = 4;
}
