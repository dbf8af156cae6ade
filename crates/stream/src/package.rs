//! The lists in BEGIN records: that of a package (data format §30.5), and that of a stream (data format §30.2).

use base::{bail, Result};
use disk::{NvList, Value};

/// What a package of `send -R`, `-p` or `-I` holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Package {
    /// Snapshot the increments begin with, without its file system; `None`: a full stream.
    pub from_snap: Option<String>,
    /// Snapshot the streams lead to, without its file system. `None` only in a package without a list (`-I` alone).
    pub to_snap: Option<String>,
    /// Made without `-R`.
    pub not_recursive: bool,
    /// The streams are raw.
    pub raw: bool,
    /// In the order in which they were sent: parents before children.
    pub file_systems: Vec<FileSystem>,
}

/// A file system or volume of a package.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FileSystem {
    /// Guid of its head, the key of its entry.
    pub guid: u64,
    /// Name on the sender's side, with the pool.
    pub name: String,
    /// Guid of the snapshot `from_snap` (in a full package: `to_snap`) of its parent; 0 at the top.
    pub parent_from_snap: u64,
    /// Guid of the origin of a clone.
    pub origin: Option<u64>,
    /// Properties: numbers and strings as they are stored. `None`: no entry, the sender had no `-p`.
    pub props: Option<NvList>,
    /// It is an encryption root.
    pub is_encryption_root: bool,
    /// Snapshots with their guids, in order of creation.
    pub snaps: Vec<(String, u64)>,
    /// Properties of snapshots.
    pub snap_props: Option<Vec<(String, NvList)>>,
    /// Holds of snapshots: tags with their times in seconds since 1970.
    pub snap_holds: Option<Vec<(String, Vec<(String, u64)>)>>,
}

impl Package {
    /// From the list of the package's BEGIN; an empty one is that of a package without a list.
    ///
    /// Errors: `Invalid`, naming the entry that is missing or makes no sense.
    pub fn from_list(list: &NvList) -> Result<Package> {
        let mut out = Package {
            from_snap: list.get_str("fromsnap").map(str::to_string),
            to_snap: list.get_str("tosnap").map(str::to_string),
            not_recursive: list.contains("not_recursive"),
            raw: list.contains("raw"),
            file_systems: Vec::new(),
        };
        for (key, value) in list.get_nvlist("fss").into_iter().flat_map(NvList::iter) {
            let (Some(guid), Value::NvList(entry)) = (hex(key), value) else {
                bail!(Invalid, "send stream: entry '{key}' of the package");
            };
            out.file_systems.push(FileSystem::from_list(guid, entry)?);
        }
        Ok(out)
    }

    /// The list of the package's BEGIN.
    pub fn to_list(&self) -> NvList {
        let mut list = NvList::new();
        if let Some(snap) = &self.from_snap {
            list.set("fromsnap", snap.as_str());
        }
        let Some(to_snap) = &self.to_snap else {
            return list;
        };
        list.set("tosnap", to_snap.as_str());
        if self.not_recursive {
            list.set_flag("not_recursive");
        }
        if self.raw {
            list.set_flag("raw");
        }
        let mut fss = NvList::new();
        for fs in &self.file_systems {
            fss.set(&format!("{:#x}", fs.guid), fs.to_list());
        }
        list.set("fss", fss);
        list
    }
}

impl FileSystem {
    fn from_list(guid: u64, list: &NvList) -> Result<FileSystem> {
        let Some(name) = list.get_str("name") else {
            bail!(Invalid, "send stream: file system {guid:#x} without a name");
        };
        let wrong = |what: &str| {
            base::Error::new(
                base::Kind::Invalid,
                format!("send stream: {what} of '{name}' in the package"),
            )
        };
        let mut snaps = Vec::new();
        for (snap, value) in list.get_nvlist("snaps").into_iter().flat_map(NvList::iter) {
            let Value::Uint64(guid) = value else {
                return Err(wrong("snapshots"));
            };
            snaps.push((snap.to_string(), *guid));
        }
        let mut snap_props = None;
        for (snap, value) in list
            .get_nvlist("snapprops")
            .inspect(|_| snap_props = Some(Vec::new()))
            .into_iter()
            .flat_map(NvList::iter)
        {
            let Value::NvList(props) = value else {
                return Err(wrong("snapshot properties"));
            };
            let all = snap_props.get_or_insert_default();
            all.push((snap.to_string(), props.clone()));
        }
        let mut snap_holds = None;
        for (snap, value) in list
            .get_nvlist("snapholds")
            .inspect(|_| snap_holds = Some(Vec::new()))
            .into_iter()
            .flat_map(NvList::iter)
        {
            let Value::NvList(tags) = value else {
                return Err(wrong("holds"));
            };
            let tags: Option<Vec<_>> = tags
                .iter()
                .map(|(tag, value)| match value {
                    Value::Uint64(time) => Some((tag.to_string(), *time)),
                    _ => None,
                })
                .collect();
            let tags = tags.ok_or_else(|| wrong("holds"))?;
            let all = snap_holds.get_or_insert_default();
            all.push((snap.to_string(), tags));
        }
        Ok(FileSystem {
            guid,
            name: name.to_string(),
            parent_from_snap: list.get_u64("parentfromsnap").unwrap_or(0),
            origin: list.get_u64("origin"),
            props: list.get_nvlist("props").cloned(),
            is_encryption_root: list.contains("is_encroot"),
            snaps,
            snap_props,
            snap_holds,
        })
    }

    fn to_list(&self) -> NvList {
        let mut list = NvList::new();
        list.set("name", self.name.as_str());
        list.set("parentfromsnap", self.parent_from_snap);
        if let Some(origin) = self.origin {
            list.set("origin", origin);
        }
        if let Some(props) = &self.props {
            list.set("props", props.clone());
        }
        if self.is_encryption_root {
            list.set_flag("is_encroot");
        }
        let mut snaps = NvList::new();
        for (snap, guid) in &self.snaps {
            snaps.set(snap, *guid);
        }
        list.set("snaps", snaps);
        if let Some(all) = &self.snap_props {
            let mut props = NvList::new();
            for (snap, p) in all {
                props.set(snap, p.clone());
            }
            list.set("snapprops", props);
        }
        if let Some(all) = &self.snap_holds {
            let mut holds = NvList::new();
            for (snap, tags) in all {
                let mut of = NvList::new();
                for (tag, time) in tags {
                    of.set(tag, *time);
                }
                holds.set(snap, of);
            }
            list.set("snapholds", holds);
        }
        list
    }
}

/// A number behind `0x`.
fn hex(key: &str) -> Option<u64> {
    u64::from_str_radix(key.strip_prefix("0x")?, 16).ok()
}

/// What the list in the BEGIN of a stream says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BeginList {
    /// Redaction snapshots of a redacted stream.
    pub redact_snaps: Option<Vec<u64>>,
    /// Redaction snapshots of the base of an increment.
    pub redact_from_snaps: Option<Vec<u64>>,
    /// Object and offset in bytes with which a resumed stream begins.
    pub resume: Option<(u64, u64)>,
    /// Raw: the wrapped keys and the shape of the meta-dnode (data format §30.7).
    pub crypt_keydata: Option<NvList>,
}

impl BeginList {
    /// From the payload of BEGIN; an empty one says nothing.
    ///
    /// Errors: `Invalid` if it is no list, or an entry has another type.
    pub fn from_payload(payload: &[u8]) -> Result<BeginList> {
        if payload.is_empty() {
            return Ok(BeginList::default());
        }
        let list = match NvList::unpack(payload) {
            Ok(list) => list,
            Err(e) => bail!(Invalid, "send stream: list of the BEGIN record: {e}"),
        };
        let array = |name| match list.get(name) {
            None => Ok(None),
            Some(Value::Uint64Array(a)) => Ok(Some(a.clone())),
            Some(_) => bail!(Invalid, "send stream: '{name}' of the BEGIN record"),
        };
        let resume = match (list.get_u64("resume_object"), list.get_u64("resume_offset")) {
            (Some(object), Some(offset)) => Some((object, offset)),
            (None, None) => None,
            _ => bail!(Invalid, "send stream: half a place to resume at"),
        };
        Ok(BeginList {
            redact_snaps: array("redact_snaps")?,
            redact_from_snaps: array("redact_from_snaps")?,
            resume,
            crypt_keydata: list.get_nvlist("crypt_keydata").cloned(),
        })
    }

    /// The list; empty if there is nothing to say.
    pub fn to_list(&self) -> NvList {
        let mut list = NvList::new();
        if let Some(snaps) = &self.redact_snaps {
            list.set("redact_snaps", snaps.clone());
        }
        if let Some(snaps) = &self.redact_from_snaps {
            list.set("redact_from_snaps", snaps.clone());
        }
        if let Some((object, offset)) = self.resume {
            list.set("resume_object", object);
            list.set("resume_offset", offset);
        }
        if let Some(keys) = &self.crypt_keydata {
            list.set("crypt_keydata", keys.clone());
        }
        list
    }
}
