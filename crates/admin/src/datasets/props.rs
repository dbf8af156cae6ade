//! Values and sources of the properties of one dataset, as `zfs get` shows them.

use crate::datasets::bookmarks::Bookmark;
use crate::datasets::objsets::{look_into, master_of, Rules};
use crate::datasets::{self, rights};
use crate::mounts::Mounted;
use crate::registry::{Admin, PoolEntry};
use api::{DatasetKind, Peer, Prop, Source, Value};
use base::Result;
use disk::dsl::{ds_flags, DslDatasetPhys, DslDirPhys, Used, DIR_USED_BREAKDOWN};
use disk::props::{self, Class, Kind, Pseudo, Store, Types, Who};
use dsl::{Dataset, PropSource, PropValue};
use pool::Volume;
use std::cell::OnceCell;
use std::sync::Arc;
use zap::Zap;

/// Properties that `all` leaves out where they have no value.
const SKIPPED: &[&str] = &[
    "usedbysnapshots",
    "usedbydataset",
    "usedbychildren",
    "usedbyrefreservation",
    "written",
    "origin",
    "clones",
    "receive_resume_token",
    "encryptionroot",
    "keystatus",
    "redact_snaps",
    "snapshots_changed",
];

/// One dataset, looked at.
pub struct View<'a> {
    admin: &'a Admin,
    /// Who looks.
    peer: Peer,
    entry: &'a Arc<PoolEntry>,
    ds: &'a Arc<Dataset>,
    name: &'a str,
    kind: DatasetKind,
    phys: DslDatasetPhys,
    dir: DslDirPhys,
    mounted: Option<Arc<Mounted>>,
    os: OnceCell<Option<Arc<dmu::Objset>>>,
    master: OnceCell<Option<Rules>>,
}

type Shown = Option<(Value, Source)>;

impl<'a> View<'a> {
    /// The properties of `ds`, whose full name is `name`, for a caller.
    pub fn new(
        (admin, peer): (&'a Admin, Peer),
        entry: &'a Arc<PoolEntry>,
        ds: &'a Arc<Dataset>,
        name: &'a str,
    ) -> View<'a> {
        View {
            admin,
            peer,
            entry,
            ds,
            name,
            kind: datasets::kind_of(entry, ds),
            phys: ds.phys(),
            dir: ds.dir().phys(),
            mounted: entry.mounted(ds.object()),
            os: OnceCell::new(),
            master: OnceCell::new(),
        }
    }

    /// What the dataset is.
    pub fn kind(&self) -> DatasetKind {
        self.kind
    }

    /// Whether a property is for this kind of dataset; one of snapshots of a volume has to be for
    /// volumes too, unless it is for snapshots only.
    fn applies(&self, row: &props::Prop) -> bool {
        let one = match self.kind {
            DatasetKind::Filesystem => Types::FILESYSTEM,
            DatasetKind::Volume => Types::VOLUME,
            DatasetKind::Bookmark => Types::BOOKMARK,
            DatasetKind::Snapshot => {
                let of_heads = Types(Types::FILESYSTEM.0 | Types::VOLUME.0);
                let head = match self.entry.objset_type(self.ds) {
                    Ok(disk::os_type::ZVOL) => Types::VOLUME,
                    _ => Types::FILESYSTEM,
                };
                return row.types.contains(Types::SNAPSHOT)
                    && (row.types.0 & of_heads.0 == 0 || row.types.contains(head));
            }
        };
        row.types.contains(one)
    }

    /// Everything visible, then user properties.
    pub fn all(&self) -> Result<Vec<Prop>> {
        let mut out = Vec::new();
        for row in props::DATASET
            .iter()
            .filter(|p| !p.hidden && self.applies(p))
        {
            match self.native(row)? {
                None if SKIPPED.contains(&row.name) => {}
                shown => out.push(self.prop(row.name, shown)?),
            }
        }
        for p in self.ds.props(&|_| false)? {
            if props::is_user(&p.name) && !props::is_reserved(&p.name) {
                let received = self.received(&p.name)?;
                out.push(Prop {
                    value: raw(&p.value),
                    source: source(&p.source),
                    name: p.name,
                    received,
                });
            }
        }
        Ok(out)
    }

    /// One property by name; `Value::None` where it does not apply.
    pub fn one(&self, name: &str) -> Result<Prop> {
        let shown = if let Some(pseudo) = Pseudo::parse(name) {
            self.pseudo(name, pseudo)?
        } else if props::is_user(name) {
            self.ds
                .prop(name, true)?
                .map(|(v, s)| (raw(&v), source(&s)))
        } else {
            match props::dataset(name) {
                Some(row) if self.applies(row) => self.native(row)?,
                _ => None,
            }
        };
        self.prop(name, shown)
    }

    fn prop(&self, name: &str, shown: Shown) -> Result<Prop> {
        let (value, source) = shown.unwrap_or_default();
        Ok(Prop {
            name: name.to_string(),
            value,
            source,
            received: self.received(name)?,
        })
    }

    fn received(&self, name: &str) -> Result<Option<Value>> {
        // Rare, and dear to look for one by one.
        if !self.ds.has_received()? {
            return Ok(None);
        }
        let row = props::dataset(name);
        let shown = |v: PropValue| match (row, &v) {
            (Some(row), PropValue::Int(n)) => word(row, *n),
            _ => raw(&v),
        };
        Ok(self.ds.received_prop(name)?.map(shown))
    }

    fn native(&self, row: &'static props::Prop) -> Result<Shown> {
        match row.store {
            Store::Computed => self.computed(row),
            Store::MasterNode => {
                let Some(m) = self.master() else {
                    return Ok(None);
                };
                let n = match row.name {
                    "version" => m.version,
                    "normalization" => m.normalization,
                    "utf8only" => m.utf8only,
                    "casesensitivity" => m.case,
                    other => self.default_quota(other)?,
                };
                Ok(Some((word(row, n), Source::None)))
            }
            Store::Volume => match self.volume()? {
                Some((size, _)) => Ok(Some((Value::Number(size), Source::Local))),
                None => Ok(None),
            },
            Store::BlockSize => Ok(self.volume()?.map(|(_, block)| {
                let default = row.default.value().and_then(|v| v.number());
                let source = if default == Some(block) {
                    Source::Default
                } else {
                    Source::None
                };
                (Value::Number(block), source)
            })),
            Store::CryptoKey => {
                let default = row.default.value().and_then(|v| v.number()).unwrap_or(0);
                let k = self.ds.dir().key_object()?;
                let n = k.map_or(default, |k| match row.name {
                    "encryption" => k.wrapped.suite.number(),
                    "keyformat" => k.params.format,
                    _ => k.params.iterations,
                });
                let source = match n == default {
                    true => Source::Default,
                    false => Source::None,
                };
                Ok(Some((word(row, n), source)))
            }
            Store::PropsAndDir => {
                let n = match row.name {
                    "quota" => self.dir.quota,
                    _ => self.dir.reserved,
                };
                self.limit(row, n, 0)
            }
            Store::Props => self.stored(row),
        }
    }

    /// Limits: `default` where there is none and none was ever set.
    fn limit(&self, row: &'static props::Prop, n: u64, none: u64) -> Result<Shown> {
        let from = match self.ds.prop(row.name, false)? {
            Some((_, PropSource::Received)) => Source::Received,
            None if n == none => Source::Default,
            _ => Source::Local,
        };
        Ok(Some((Value::Number(n), from)))
    }

    fn stored(&self, row: &'static props::Prop) -> Result<Shown> {
        match row.name {
            "mountpoint" => return self.mountpoint(),
            "refquota" => return self.limit(row, self.ds.ref_limits().0, 0),
            "refreservation" => return self.limit(row, self.ds.ref_limits().1, 0),
            _ => {}
        }
        let inherits = row.class == Class::Inherit;
        let (value, from) = match self.ds.prop(row.name, inherits)? {
            Some((v, from)) => (shown(row, &v), source(&from)),
            None => {
                let value = match row.default.value() {
                    Some(props::PropValue::Number(n)) => word(row, n),
                    Some(props::PropValue::Text(t)) => Value::Text(t),
                    None => Value::None,
                };
                (value, Source::Default)
            }
        };
        Ok(Some(self.live(row, value, from)))
    }

    /// What the mount does, where that is something else.
    fn live(&self, row: &'static props::Prop, value: Value, from: Source) -> (Value, Source) {
        let Some(m) = &self.mounted else {
            return (value, from);
        };
        let temporary = m.temporary();
        let over = temporary.iter().rev().find(|(n, _)| n == row.name);
        let over = match over {
            Some((_, v)) => Some(v.as_str()),
            None if row.name == "readonly" && self.entry.pool.is_readonly() => Some("on"),
            None => None,
        };
        match over {
            Some(v) if value != Value::Text(v.to_string()) => {
                (Value::Text(v.to_string()), Source::Temporary)
            }
            _ => (value, from),
        }
    }

    fn mountpoint(&self) -> Result<Shown> {
        let (path, _) = self.admin.effective_mountpoint(self.entry, self.ds)?;
        let from = match self.ds.prop("mountpoint", true)? {
            Some((_, s)) => source(&s),
            None => Source::Default,
        };
        Ok(Some((Value::Text(path), from)))
    }

    /// The object set; none if it cannot be opened.
    fn objset(&self) -> Option<&Arc<dmu::Objset>> {
        self.os
            .get_or_init(|| look_into(self.entry, self.ds).ok())
            .as_ref()
    }

    fn master(&self) -> Option<Rules> {
        // What cannot be read (damage, a key that is not loaded) has no value.
        *self.master.get_or_init(|| match self.kind {
            DatasetKind::Volume => None,
            _ => master_of(self.objset()?).ok().filter(|m| m.version != 0),
        })
    }

    fn default_quota(&self, name: &str) -> Result<u64> {
        let Some(os) = self.objset() else {
            return Ok(0);
        };
        let node = os.hold(zpl::MASTER_NODE)?;
        Ok(Zap::new(&node).get(name)?.unwrap_or(0))
    }

    /// Size and block size of a volume (or a volume's snapshot).
    fn volume(&self) -> Result<Option<(u64, u64)>> {
        if !matches!(self.kind, DatasetKind::Volume | DatasetKind::Snapshot) {
            return Ok(None);
        }
        let Some(os) = self.objset() else {
            return Ok(None);
        };
        if os.os_type() != disk::os_type::ZVOL {
            return Ok(None);
        }
        let volume = Volume::new(os.clone())?;
        Ok(Some((volume.size(), volume.block_size())))
    }

    fn computed(&self, row: &'static props::Prop) -> Result<Shown> {
        let (p, d) = (&self.phys, &self.dir);
        let snap = self.kind == DatasetKind::Snapshot;
        let ratio = |logical: u64, physical: u64| match physical {
            0 => 100,
            n => (u128::from(logical) * 100 / u128::from(n)).min(u64::MAX.into()) as u64,
        };
        let split = d.flags & DIR_USED_BREAKDOWN != 0;
        let by = |class: Used| split.then(|| d.used_breakdown[class as usize]);
        let n = match row.name {
            "type" => {
                let kind = match self.kind {
                    DatasetKind::Filesystem => "filesystem",
                    DatasetKind::Volume => "volume",
                    DatasetKind::Snapshot => "snapshot",
                    DatasetKind::Bookmark => "bookmark",
                };
                return text(kind);
            }
            "name" => return text(self.name),
            "creation" => Some(p.creation_time),
            "createtxg" => Some(p.creation_txg.number()),
            "guid" => Some(p.guid),
            "objsetid" => Some(self.ds.object()),
            "used" if snap => Some(p.unique_bytes),
            "used" => Some(d.used_bytes),
            "available" => Some(self.ds.available().bytes),
            "referenced" => Some(p.referenced_bytes),
            "logicalused" => Some(d.uncompressed_bytes),
            "logicalreferenced" => Some(p.uncompressed_bytes),
            "compressratio" if !snap => Some(ratio(d.uncompressed_bytes, d.compressed_bytes)),
            "compressratio" | "refcompressratio" => {
                Some(ratio(p.uncompressed_bytes, p.compressed_bytes))
            }
            "usedbysnapshots" => by(Used::Snap),
            "usedbydataset" => by(Used::Head),
            "usedbyrefreservation" => by(Used::RefRsrv),
            "usedbychildren" => match (by(Used::Child), by(Used::ChildRsrv)) {
                (Some(a), Some(b)) => Some(a.saturating_add(b)),
                _ => None,
            },
            "unique" => Some(p.unique_bytes),
            "mounted" => {
                let there = self.mounted.as_ref().is_some_and(|m| m.is_in_place());
                return text(if there { "yes" } else { "no" });
            }
            "inconsistent" => {
                let on = p.flags & ds_flags::INCONSISTENT != 0;
                return text(if on { "yes" } else { "no" });
            }
            "defer_destroy" => {
                let on = p.flags & ds_flags::DEFER_DESTROY != 0;
                return text(if on { "on" } else { "off" });
            }
            "userrefs" => Some(self.ds.holds()?),
            "numclones" => Some(p.num_children.saturating_sub(1)),
            "receive_resume_token" => match resume_token_of(self.ds)? {
                Some(token) => return text(&token),
                None => None,
            },
            "redact_snaps" => match self.ds.redact_snaps()? {
                Some(guids) => {
                    let guids: Vec<String> = guids.iter().map(u64::to_string).collect();
                    return text(&guids.join(","));
                }
                None => None,
            },
            "encryptionroot" => match self.ds.dir().encryption_root()? {
                Some(root) => return text(&root.full_name()),
                None => None,
            },
            "keystatus" => match self.ds.dir().key_loaded()? {
                Some(true) => return text("available"),
                Some(false) => return text("unavailable"),
                None => None,
            },
            "origin" => match self.ds.dir().origin()? {
                Some(o) => return text(&o.full_name()),
                None => None,
            },
            "prevsnap" => match self.previous()? {
                Some(s) => return text(&s.full_name()),
                None => None,
            },
            "clones" => {
                let names = self.clones()?;
                if !names.is_empty() {
                    return text(&names.join(","));
                }
                None
            }
            "written" => match self.ds.prev()? {
                Some(prev) => Some(self.ds.written_since(&prev)?),
                None => None,
            },
            "filesystem_count" => return self.count("com.joyent:filesystem_count"),
            "snapshot_count" => return self.count("com.joyent:snapshot_count"),
            "snapshots_changed" => self
                .ds
                .dir()
                .first_word("com.ixsystems:snapshots_changed")?,
            _ => None,
        };
        Ok(n.map(|n| (Value::Number(n), Source::None)))
    }

    fn previous(&self) -> Result<Option<Arc<Dataset>>> {
        let dir = self.ds.dir().object();
        Ok(self.ds.prev()?.filter(|s| s.dir().object() == dir))
    }

    fn clones(&self) -> Result<Vec<String>> {
        let list = datasets::clones(self.entry, self.ds)?;
        let mut names: Vec<String> = list.iter().map(|dir| dir.full_name()).collect();
        names.sort();
        Ok(names)
    }

    fn count(&self, key: &str) -> Result<Shown> {
        Ok(Some(match self.ds.dir().first_word(key)? {
            Some(n) => (Value::Number(n), Source::Local),
            None => (Value::Number(props::UNLIMITED), Source::Default),
        }))
    }

    fn pseudo(&self, name: &str, what: Pseudo<'_>) -> Result<Shown> {
        match what {
            Pseudo::Written(from) => {
                let since = match from.contains('#') {
                    true => self.written_since_bookmark(from)?,
                    false => self.written_since_snapshot(from),
                };
                Ok(since.map(|n| (Value::Number(n), Source::Local)))
            }
            Pseudo::Used { who, objects, id } => self.used_by(name, who, objects, id),
            Pseudo::Quota { who, objects, id } => self.quota_of(name, who, objects, id),
        }
    }

    /// Name of the dataset, or of that of the snapshot.
    fn head_name(&self) -> &str {
        self.name.split('@').next().unwrap_or(self.name)
    }

    /// `written@…`: none if there is no such snapshot, or it is not an earlier one of this dataset.
    fn written_since_snapshot(&self, from: &str) -> Option<u64> {
        let name = match from.contains('@') {
            true => from.to_string(),
            false => format!("{}@{from}", self.head_name()),
        };
        let snap = self.entry.pool.dataset(&name).ok()?;
        self.ds.written_since(&snap).ok()
    }

    /// `written#…`: none if there is no such bookmark, it is not of an earlier moment, or it keeps no sizes.
    fn written_since_bookmark(&self, from: &str) -> Result<Option<u64>> {
        let Some((fs, mark)) = from.split_once('#') else {
            return Ok(None);
        };
        let fs = if fs.is_empty() { self.head_name() } else { fs };
        let Ok(head) = self.entry.pool.dataset(fs) else {
            return Ok(None);
        };
        // Bookmarks of other file systems are no moments of this one.
        if head.is_snapshot() || head.dir().object() != self.ds.dir().object() {
            return Ok(None);
        }
        let mark = head.bookmark(mark)?;
        Ok(mark.and_then(|m| self.ds.written_since_bookmark(&m).ok()))
    }

    /// Whether the caller may see what an id occupies and may, as `zfs userspace` does: what is about the user and the user's
    /// own groups takes no permission.
    fn may_see(&self, who: Who, id: u64, permission: &str) -> bool {
        let own = match who {
            Who::User => id == u64::from(self.peer.uid),
            Who::Group => rights::all_groups(self.peer).contains(&id),
            Who::Project => false,
        };
        own || rights::require_named(self.admin, self.entry, self.peer, permission, self.ds).is_ok()
    }

    fn used_by(&self, name: &str, who: Who, objects: bool, id: &str) -> Result<Shown> {
        // As OpenZFS has it: no name is the number 0.
        let id = if id.is_empty() { "0" } else { id };
        let Some(id) =
            id_of(who, id).filter(|id| self.may_see(who, *id, rights::of_property(name)))
        else {
            return Ok(None);
        };
        let Some(os) = self.objset() else {
            return Ok(None);
        };
        let object = match who {
            Who::User => dmu::USERUSED_OBJECT,
            Who::Group => dmu::GROUPUSED_OBJECT,
            Who::Project => dmu::PROJECTUSED_OBJECT,
        };
        let key = format!("{}{id:x}", if objects { "obj-" } else { "" });
        let n = match os.hold(object) {
            Ok(dn) => Zap::new(&dn).get(&key)?.unwrap_or(0),
            Err(e) if e.kind == base::Kind::NotFound => 0,
            Err(e) => return Err(e),
        };
        Ok(Some((Value::Number(n), Source::Local)))
    }

    fn quota_of(&self, name: &str, who: Who, objects: bool, id: &str) -> Result<Shown> {
        let Some(id) =
            id_of(who, id).filter(|id| self.may_see(who, *id, rights::of_property(name)))
        else {
            return Ok(None);
        };
        let (Some(_), Some(os)) = (self.master(), self.objset()) else {
            return Ok(None);
        };
        let i = match who {
            Who::User => 0,
            Who::Group => 1,
            Who::Project => 2,
        } + if objects { 3 } else { 0 };
        let node = os.hold(zpl::MASTER_NODE)?;
        let n = match Zap::new(&node).get(zpl::QUOTA_NAMES[i])? {
            Some(map) => Zap::new(&os.hold(map)?)
                .get(&format!("{id:x}"))?
                .unwrap_or(0),
            None => 0,
        };
        Ok(Some((Value::Number(n), Source::Local)))
    }
}

/// Numeric id of a user, group or project named by number or, for users and groups, by name.
pub fn id_of(who: Who, id: &str) -> Option<u64> {
    if let Ok(n) = id.parse::<u32>() {
        return Some(n.into());
    }
    let file = match who {
        Who::User => "/etc/passwd",
        Who::Group => "/etc/group",
        Who::Project => return None,
    };
    std::fs::read_to_string(file)
        .ok()?
        .lines()
        .find_map(|line| {
            let mut f = line.split(':');
            (f.next() == Some(id))
                .then(|| f.nth(1)?.parse().ok())
                .flatten()
        })
}

fn text(t: &str) -> Result<Shown> {
    Ok(Some((Value::Text(t.to_string()), Source::None)))
}

fn raw(v: &PropValue) -> Value {
    match v {
        PropValue::Int(n) => Value::Number(*n),
        PropValue::Str(s) => Value::Text(s.clone()),
    }
}

/// A number as it travels: words of enumerations as such.
fn word(row: &props::Prop, n: u64) -> Value {
    match row.kind {
        Kind::Index(_) => Value::Text(row.print(&props::PropValue::Number(n))),
        _ => Value::Number(n),
    }
}

fn shown(row: &props::Prop, v: &PropValue) -> Value {
    match v {
        PropValue::Int(n) => word(row, *n),
        PropValue::Str(s) => Value::Text(s.clone()),
    }
}

fn source(s: &PropSource) -> Source {
    match s {
        PropSource::Local => Source::Local,
        PropSource::Received => Source::Received,
        PropSource::Inherited(from) => Source::Inherited(from.clone()),
    }
}

/// One property of a bookmark (data format §12).
pub fn bookmark(full: &str, name: &str, mark: &Bookmark) -> Prop {
    let words = &mark.words;
    // Bookmarks that do not count what is freed have no sizes.
    let has_sizes = words.get(4).is_some_and(|flags| flags & 1 != 0);
    let size = |i: usize| match words.get(i) {
        Some(n) if has_sizes => Value::Number(*n),
        _ => Value::None,
    };
    let value = match name {
        "type" => Value::from("bookmark"),
        "name" => Value::from(full),
        "guid" => words.first().copied().map_or(Value::None, Value::Number),
        "createtxg" => words.get(1).copied().map_or(Value::None, Value::Number),
        "creation" => words.get(2).copied().map_or(Value::None, Value::Number),
        "referenced" => size(5),
        "logicalreferenced" => size(7),
        "redact_snaps" => mark.redacted_by.as_ref().map_or(Value::None, |guids| {
            let guids: Vec<String> = guids.iter().map(u64::to_string).collect();
            Value::from(guids.join(",").as_str())
        }),
        _ => Value::None,
    };
    Prop::new(name, value, Source::None)
}

/// All properties that bookmarks have and that `zfs get all` shows.
pub fn bookmark_all(mark: &Bookmark) -> Vec<Prop> {
    props::DATASET
        .iter()
        .filter(|p| !p.hidden && p.types.contains(Types::BOOKMARK))
        .map(|p| bookmark("", p.name, mark))
        .filter(|p| p.value != Value::None)
        .collect()
}

/// The token with which a broken receive into a head goes on; `None` if it keeps nothing.
fn resume_token_of(head: &Dataset) -> Result<Option<String>> {
    if head.is_snapshot() {
        return Ok(None);
    }
    match head.receiving()? {
        Some(child) => resume_token(&child),
        None => resume_token(head),
    }
}

/// The token of the state that a dataset filled in part keeps.
pub fn resume_token(ds: &Dataset) -> Result<Option<String>> {
    let Some(s) = ds.resume_state()? else {
        return Ok(None);
    };
    let token = stream::ResumeToken {
        from_guid: (s.from_guid != 0).then_some(s.from_guid),
        object: s.object,
        offset: s.offset,
        bytes: s.bytes,
        to_guid: s.to_guid,
        to_name: s.to_name,
        large_blocks: s.large_blocks,
        embedded: s.embedded,
        compressed: s.compressed,
        raw: s.raw,
        saved: false,
        redact_snaps: s.redact_snaps,
        book_redact_snaps: s.book_redact_snaps,
    };
    Ok(Some(token.encode()))
}
