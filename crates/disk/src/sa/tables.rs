//! Registry (attribute name → number, length, swap class) and layouts (number → attributes).

use base::{bail, Result};
use std::collections::BTreeMap;

/// Attributes of the ZPL: name, length in bytes (0 = variable), swap class (0 words of 64 bits,
/// 1 of 32, 2 of 16, 3 bytes, 4 ACL). The first 16 have fixed numbers.
pub const ZPL_ATTRS: [(&str, u16, u8); 22] = [
    ("ZPL_ATIME", 16, 0),
    ("ZPL_MTIME", 16, 0),
    ("ZPL_CTIME", 16, 0),
    ("ZPL_CRTIME", 16, 0),
    ("ZPL_GEN", 8, 0),
    ("ZPL_MODE", 8, 0),
    ("ZPL_SIZE", 8, 0),
    ("ZPL_PARENT", 8, 0),
    ("ZPL_LINKS", 8, 0),
    ("ZPL_XATTR", 8, 0),
    ("ZPL_RDEV", 8, 0),
    ("ZPL_FLAGS", 8, 0),
    ("ZPL_UID", 8, 0),
    ("ZPL_GID", 8, 0),
    ("ZPL_PAD", 32, 0),
    ("ZPL_ZNODE_ACL", 88, 3),
    ("ZPL_DACL_COUNT", 8, 0),
    ("ZPL_SYMLINK", 0, 3),
    ("ZPL_SCANSTAMP", 32, 3),
    ("ZPL_DACL_ACES", 0, 4),
    ("ZPL_DXATTR", 0, 3),
    ("ZPL_PROJID", 8, 0),
];

/// Attributes with fixed numbers.
const LEGACY: usize = 16;
/// Largest layout number: ten bits in the header.
const MAX_LAYOUT: u16 = 1023;

/// One registered attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttrInfo {
    /// Name, such as `ZPL_SIZE`.
    pub name: String,
    /// Number in layouts.
    pub number: u16,
    /// Bytes, 0 = variable.
    pub length: u16,
    /// Swap class, as in [`ZPL_ATTRS`].
    pub swap: u8,
}

impl AttrInfo {
    /// Value of the registry ZAP entry.
    pub fn encode(&self) -> u64 {
        u64::from(self.number) | u64::from(self.swap) << 16 | u64::from(self.length) << 24
    }
}

/// Attributes of one file system by number and name.
#[derive(Clone, Debug)]
pub struct Registry {
    by_number: BTreeMap<u16, AttrInfo>,
    by_name: BTreeMap<String, u16>,
    new: Vec<u16>,
}

impl Registry {
    /// Table of a file system whose registry ZAP has these entries (none: not created yet). The
    /// legacy attributes are there in any case; every missing ZPL attribute gets the next free
    /// number and is reported by [`Registry::take_new`].
    pub fn load(entries: impl IntoIterator<Item = (String, u64)>) -> Result<Registry> {
        let mut r = Registry {
            by_number: BTreeMap::new(),
            by_name: BTreeMap::new(),
            new: Vec::new(),
        };
        for (name, v) in entries {
            let info = AttrInfo {
                name,
                number: v as u16,
                swap: (v >> 16) as u8,
                length: (v >> 24) as u16,
            };
            if r.by_number.contains_key(&info.number) || r.by_name.contains_key(&info.name) {
                bail!(Damaged, "attribute registry: {} twice", info.name);
            }
            r.insert(info);
        }
        for (i, (name, length, swap)) in ZPL_ATTRS.into_iter().enumerate() {
            if let Some(n) = r.number(name) {
                if i < LEGACY && usize::from(n) != i {
                    bail!(Damaged, "attribute registry: {name} has number {n}");
                }
                continue;
            }
            let number = if i < LEGACY {
                i as u16
            } else {
                match r.by_number.last_key_value() {
                    Some((&n, _)) if n >= LEGACY as u16 - 1 && n < u16::MAX => n + 1,
                    _ => bail!(Damaged, "attribute registry is full"),
                }
            };
            if r.by_number.contains_key(&number) {
                bail!(Damaged, "attribute registry: number {number} is not {name}");
            }
            r.insert(AttrInfo {
                name: name.to_string(),
                number,
                length,
                swap,
            });
            r.new.push(number);
        }
        Ok(r)
    }

    fn insert(&mut self, info: AttrInfo) {
        self.by_name.insert(info.name.clone(), info.number);
        self.by_number.insert(info.number, info);
    }

    /// The attribute of that number.
    pub fn get(&self, number: u16) -> Option<&AttrInfo> {
        self.by_number.get(&number)
    }

    /// The number of the attribute of that name.
    pub fn number(&self, name: &str) -> Option<u16> {
        self.by_name.get(name).copied()
    }

    /// Whether values of that attribute vary in length.
    pub fn is_variable(&self, number: u16) -> bool {
        self.get(number).is_some_and(|i| i.length == 0)
    }

    /// Whether there are entries the ZAP does not have yet.
    pub fn has_new(&self) -> bool {
        !self.new.is_empty()
    }

    /// Entries to add to the registry ZAP, once.
    pub fn take_new(&mut self) -> Vec<AttrInfo> {
        let new = std::mem::take(&mut self.new);
        new.iter().filter_map(|n| self.get(*n).cloned()).collect()
    }

    /// Numbers of the ZPL attributes in this file system.
    pub fn zpl(&self) -> ZplAttrs {
        // `load` has put every one of them in.
        let n = |name: &str| self.number(name).unwrap_or(u16::MAX);
        ZplAttrs {
            atime: n("ZPL_ATIME"),
            mtime: n("ZPL_MTIME"),
            ctime: n("ZPL_CTIME"),
            crtime: n("ZPL_CRTIME"),
            gen: n("ZPL_GEN"),
            mode: n("ZPL_MODE"),
            size: n("ZPL_SIZE"),
            parent: n("ZPL_PARENT"),
            links: n("ZPL_LINKS"),
            xattr: n("ZPL_XATTR"),
            rdev: n("ZPL_RDEV"),
            flags: n("ZPL_FLAGS"),
            uid: n("ZPL_UID"),
            gid: n("ZPL_GID"),
            dacl_count: n("ZPL_DACL_COUNT"),
            symlink: n("ZPL_SYMLINK"),
            scanstamp: n("ZPL_SCANSTAMP"),
            dacl_aces: n("ZPL_DACL_ACES"),
            dxattr: n("ZPL_DXATTR"),
            projid: n("ZPL_PROJID"),
        }
    }
}

/// Attribute numbers of the ZPL in one file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZplAttrs {
    /// Time of the last access, 16 bytes.
    pub atime: u16,
    /// Time of the last change of the content, 16 bytes.
    pub mtime: u16,
    /// Time of the last change of an attribute, 16 bytes.
    pub ctime: u16,
    /// Time of creation, 16 bytes.
    pub crtime: u16,
    /// Txg of creation.
    pub gen: u16,
    /// Type and permissions, as `st_mode`.
    pub mode: u16,
    /// Bytes of the content.
    pub size: u16,
    /// Parent directory object.
    pub parent: u16,
    /// Number of names.
    pub links: u16,
    /// Extended attribute directory.
    pub xattr: u16,
    /// Device number.
    pub rdev: u16,
    /// Bits of [`crate::znode::flag`].
    pub flags: u16,
    /// Owner, a FUID.
    pub uid: u16,
    /// Group, a FUID.
    pub gid: u16,
    /// Number of ACL entries.
    pub dacl_count: u16,
    /// Target of a symbolic link.
    pub symlink: u16,
    /// Stamp of a virus scanner.
    pub scanstamp: u16,
    /// ACL entries of version 1.
    pub dacl_aces: u16,
    /// Extended attributes: a packed nvlist (`xattr=sa`).
    pub dxattr: u16,
    /// Project id.
    pub projid: u16,
}

/// Attribute lists by layout number.
#[derive(Clone, Debug)]
pub struct Layouts {
    by_number: BTreeMap<u16, Vec<u16>>,
    by_list: BTreeMap<Vec<u16>, u16>,
    new: Vec<u16>,
}

impl Default for Layouts {
    fn default() -> Layouts {
        let mut l = Layouts {
            by_number: BTreeMap::new(),
            by_list: BTreeMap::new(),
            new: Vec::new(),
        };
        // Both are implicit: 0 is the legacy znode (never in a buffer), 1 is empty.
        l.by_number.insert(0, (0..LEGACY as u16).collect());
        l.by_number.insert(1, Vec::new());
        l.by_list.insert(Vec::new(), 1);
        l
    }
}

impl Layouts {
    /// Layouts of a file system whose layout ZAP has these entries.
    pub fn load(entries: impl IntoIterator<Item = (u16, Vec<u16>)>) -> Result<Layouts> {
        let mut l = Layouts::default();
        for (n, list) in entries {
            if n > MAX_LAYOUT {
                bail!(Damaged, "attribute layout number {n}");
            }
            if n >= 2 {
                l.by_list.entry(list.clone()).or_insert(n);
                l.by_number.insert(n, list);
            }
        }
        Ok(l)
    }

    /// The attributes of layout `number`, in storage order.
    pub fn get(&self, number: u16) -> Option<&[u16]> {
        self.by_number.get(&number).map(Vec::as_slice)
    }

    /// Number of the layout with that list; a new one is made if there is none.
    pub fn number_for(&mut self, list: &[u16]) -> Result<u16> {
        if let Some(&n) = self.by_list.get(list) {
            return Ok(n);
        }
        let mut n = self.by_number.len() as u16;
        // Numbers count up; with gaps in a foreign table take the next one that is free.
        while self.by_number.contains_key(&n) {
            n += 1;
        }
        if n > MAX_LAYOUT {
            bail!(NoSpace, "no more attribute layouts");
        }
        self.by_number.insert(n, list.to_vec());
        self.by_list.insert(list.to_vec(), n);
        self.new.push(n);
        Ok(n)
    }

    /// Whether there are layouts the ZAP does not have yet.
    pub fn has_new(&self) -> bool {
        !self.new.is_empty()
    }

    /// Entries to add to the layout ZAP (name is the decimal number), once.
    pub fn take_new(&mut self) -> Vec<(u16, Vec<u16>)> {
        let new = std::mem::take(&mut self.new);
        new.into_iter()
            .filter_map(|n| Some((n, self.by_number.get(&n)?.clone())))
            .collect()
    }
}
