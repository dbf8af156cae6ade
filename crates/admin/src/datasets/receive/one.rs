//! One stream of one snapshot: finding its place, filling it, and the end.

use super::{sent_name, words, Run};
use crate::datasets::create::NewFs;
use crate::datasets::keys::{self, CryptProps};
use crate::datasets::parse::Allowed;
use crate::datasets::{self, destroy, mount, protect, set, Answer};
use crate::registry::PoolEntry;
use crate::rights::{self, Action};
use crate::{cancel, errors};
use api::{ApiError, NameBy};
use base::{Error, Kind, Result};
use disk::names::{self, Want};
use disk::props;
use disk::stream::{begin_flag, feature, Begin, Record};
use disk::{os_type, NvList};
use dmu::Objset;
use dsl::props::PropChange;
use dsl::{Dataset, NewKey, Place, PropValue, ReceiveBegin, ReceiveEnd, ResumeState};
use std::io::Read;
use std::sync::Arc;
use stream::{Applier, BeginList, Reader, Rules};

/// What the list of a package says of the stream.
#[derive(Default)]
pub struct Extra {
    /// Properties of the file system and of the snapshot.
    pub props: Option<NvList>,
    pub snap_props: Option<NvList>,
    /// Tags of its holds.
    pub holds: Vec<String>,
    /// Where the stream goes by the package, with the snapshot's name.
    pub target: Option<String>,
}

/// Where a stream goes.
struct Target {
    /// File system or volume.
    fs: String,
    snap: String,
    /// It is there.
    head: Option<Arc<Dataset>>,
    base: Option<Arc<Dataset>>,
    /// Goes on where a broken receive ended.
    kept: Option<Arc<Dataset>>,
    /// Begins of the sentences about it.
    what: &'static str,
}

/// The dataset that is filled.
struct Filling {
    ds: Arc<Dataset>,
    os: Arc<Objset>,
    resumable: bool,
    sealed: Option<Sealed>,
}

/// What a raw stream says of its dataset as a whole.
#[derive(Clone, Debug)]
pub struct Sealed {
    key: dsl::ReceivedKey,
    meta: dmu::RawMeta,
    mac: [u8; disk::crypt::OBJSET_MAC_SIZE],
    from_ivset: Option<u64>,
    to_ivset: Option<u64>,
}

impl Sealed {
    fn from_list(list: &BeginList) -> Result<Sealed> {
        let bad = |name: &str| Error::new(Kind::Invalid, format!("raw stream: no valid {name}"));
        let list = list
            .crypt_keydata
            .as_ref()
            .ok_or_else(|| bad("crypt_keydata"))?;
        let small = |name: &str| {
            let n = list.get_u64(name).ok_or_else(|| bad(name))?;
            u8::try_from(n).map_err(|_| bad(name))
        };
        let mac: &[u8] = match list.get("portable_mac") {
            Some(disk::nvlist::Value::Uint8Array(b)) => b,
            Some(disk::nvlist::Value::ByteArray(b)) => b,
            _ => &[],
        };
        if list.get_u64("mdn_blksz") != Some(disk::dnode::DNODE_BLOCK as u64) {
            return Err(bad("mdn_blksz"));
        }
        if list.get_u64("mdn_nblkptr") != Some(3) {
            return Err(bad("mdn_nblkptr"));
        }
        Ok(Sealed {
            key: dsl::ReceivedKey::from_list(list)?,
            meta: dmu::RawMeta {
                nlevels: small("mdn_nlevels")?,
                indblkshift: small("mdn_indblkshift")?,
                maxblkid: list
                    .get_u64("mdn_maxblkid")
                    .ok_or_else(|| bad("mdn_maxblkid"))?,
                checksum: small("mdn_checksum")?,
                compress: small("mdn_compress")?,
            },
            mac: mac.try_into().map_err(|_| bad("portable_mac"))?,
            from_ivset: list.get_u64("from_ivset_guid"),
            to_ivset: list.get_u64("to_ivset_guid"),
        })
    }

    /// Whether the stream is based on this very snapshot, with its keys and its set of IVs.
    fn check_base(&self, base: &Dataset) -> Result<()> {
        let have = base.dir().key_object()?;
        if have.is_none_or(|k| k.wrapped.guid != self.key.wrapped.guid) {
            return Err(Error::new(
                Kind::Access,
                "the raw stream is encrypted with other keys than the destination",
            ));
        }
        match (base.ivset_guid()?, self.from_ivset) {
            (Some(have), Some(from)) if have == from => Ok(()),
            // Software of before 2019 knew no such sets.
            (None, None) => Ok(()),
            _ => Err(Error::new(
                Kind::Invalid,
                "IV set guid mismatch. See the 'zfs receive' man page section\n discussing the limitations of raw encrypted send streams.",
            )),
        }
    }

    /// Sets the same once more, for a stream that is resumed.
    fn apply(&self, entry: &PoolEntry, os: &Arc<Objset>) -> Result<()> {
        let (me, os) = (self.clone(), os.clone());
        entry
            .pool
            .task(move |_, tx| os.set_raw(tx, &me.meta, &me.mac))
    }
}

/// The name a stream gets by the command line.
fn target_name(run: &Run, begin: &Begin, extra: Option<&Extra>) -> Answer<(String, String)> {
    let (fs, snap) = sent_name(begin)?;
    if let Some(t) = extra.and_then(|e| e.target.as_ref()) {
        let (fs, snap) = t.split_once('@').unwrap_or((t, &snap));
        return Ok((fs.to_string(), snap.to_string()));
    }
    if let Some((fs, snap)) = run.r.target.split_once('@') {
        return Ok((fs.to_string(), snap.to_string()));
    }
    let below = match run.r.name_by {
        NameBy::Target => return Ok((run.r.target.clone(), snap)),
        NameBy::AllButFirst => match fs.split_once('/') {
            Some((_, rest)) => rest,
            // The pool itself: the target is meant.
            None => return Ok((run.r.target.clone(), snap)),
        },
        NameBy::Last => fs.rsplit('/').next().unwrap_or(&fs),
    };
    Ok((format!("{}/{below}", run.r.target), snap))
}

/// A snapshot with that guid, of `head` first, then anywhere in the pool.
fn by_guid(entry: &PoolEntry, guid: u64) -> Result<Option<Arc<Dataset>>> {
    let mut stack = vec![entry.pool.dsl.root()?];
    while let Some(dir) = stack.pop() {
        stack.extend(dir.children()?);
        let head = match dir.head() {
            Ok(head) => head,
            Err(e) if e.kind == Kind::NotFound => continue,
            Err(e) => return Err(e),
        };
        if let Some(s) = own_by_guid(&head, guid)? {
            return Ok(Some(s));
        }
    }
    Ok(None)
}

/// A snapshot of `head` with that guid, the newest first.
fn own_by_guid(head: &Dataset, guid: u64) -> Result<Option<Arc<Dataset>>> {
    let mut list = head.snapshots()?;
    list.reverse();
    Ok(list
        .into_iter()
        .map(|(_, s)| s)
        .find(|s| s.phys().guid == guid))
}

fn exists(entry: &PoolEntry, name: &str) -> Answer<Option<Arc<Dataset>>> {
    match datasets::find_anyway(entry, name) {
        Ok(ds) => Ok(Some(ds)),
        Err(e) if e.code == Kind::NotFound.errno() => Ok(None),
        Err(e) => Err(e),
    }
}

/// Finds the place of a stream and refuses what cannot go there.
fn find_target(
    run: &Run,
    entry: &Arc<PoolEntry>,
    begin: &Begin,
    extra: Option<&Extra>,
) -> Answer<Target> {
    let (mut fs, snap) = target_name(run, begin, extra)?;
    let full = format!("{fs}@{snap}");
    names::check_dataset(&full, Want::Snapshot).map_err(|why| words::plain(Kind::Invalid, why))?;
    if datasets::pool_of(&fs) != entry.pool.name() {
        return Err(words::plain(
            Kind::NotFound,
            "destination is in another pool",
        ));
    }
    let internal = |e: Error| errors::answer(e);
    let resuming = begin.features & feature::RESUMING != 0;
    let clone = begin.flags & begin_flag::CLONE != 0;
    let wants_new = (begin.from_guid == 0 || clone || run.r.origin.is_some()) && !resuming;
    let what = match wants_new {
        true => words::NEW,
        false => words::INCREMENTAL,
    };
    let refuse = |kind, why: String| Err(words::sentence(kind, what, why));
    let mut head = exists(entry, &fs)?;
    if head.is_none() && !wants_new && !resuming {
        // The file system may have another name here.
        if let Some(base) = by_guid(entry, begin.from_guid).map_err(internal)? {
            if extra.is_some() {
                fs = base.dir().full_name();
                head = exists(entry, &fs)?;
            }
        }
    }
    let mut base = None;
    let mut kept = None;
    if let Some(head) = &head {
        let child = head.receiving().map_err(internal)?;
        let left = child.or_else(|| head.is_inconsistent().then(|| head.clone()));
        if let Some(left) = left {
            let state = left.resume_state().map_err(internal)?;
            match state {
                Some(_) if !resuming => {
                    return refuse(
                        Kind::Busy,
                        format!(
                            "destination {fs} contains partially-complete state from \"zfs receive -s\"."
                        ),
                    );
                }
                Some(s) if s.to_guid == begin.to_guid && s.from_guid == begin.from_guid => {
                    kept = Some(left);
                }
                Some(_) => {
                    return refuse(
                        Kind::Invalid,
                        "the stream does not continue what was received before".into(),
                    );
                }
                None => return refuse(Kind::Busy, format!("destination '{fs}' is busy")),
            }
        }
    }
    if resuming && kept.is_none() {
        return refuse(
            Kind::Invalid,
            format!("destination {fs} has no resumable receive state"),
        );
    }
    if let Some(kept) = &kept {
        let own = kept.dir().name() == dsl::RECV;
        return Ok(Target {
            head: head.filter(|_| own),
            base: None,
            kept: Some(kept.clone()),
            fs,
            snap,
            what,
        });
    }
    if wants_new {
        if let Some(there) = &head {
            full_onto(run, entry, begin, there, &fs)?;
        }
        if clone || run.r.origin.is_some() {
            base = Some(origin(run, entry, begin, what)?);
        }
    } else {
        let Some(there) = &head else {
            return refuse(Kind::NotFound, format!("destination '{fs}' does not exist"));
        };
        base = own_by_guid(there, begin.from_guid).map_err(internal)?;
        let Some(base) = &base else {
            return refuse(
                Kind::NoSuchDevice,
                format!("most recent snapshot of {fs} does not\nmatch incremental source"),
            );
        };
        incremental_onto(run, entry, begin, there, base, &fs)?;
        if let Some(found) = there.snapshot_named(&snap).map_err(internal)? {
            let later = found.phys().creation_txg > base.phys().creation_txg;
            if !(later && run.r.force) {
                return refuse(Kind::Exists, format!("destination '{fs}@{snap}' exists"));
            }
        }
    }
    Ok(Target {
        fs,
        snap,
        head,
        base,
        kept: None,
        what,
    })
}

/// What is said of a destination that is neither overwritten nor rolled back.
fn protected(fs: &str) -> String {
    format!(
        "destination '{fs}' is protected by property '{0}'\nset {0}=off to overwrite it",
        protect::PROTECT
    )
}

/// Refuses callers without the permissions that a receive needs, also for the properties and holds that the
/// stream and the command line bring, and those bound by limits.
fn permitted(
    run: &Run,
    entry: &Arc<PoolEntry>,
    target: &Target,
    extra: Option<&Extra>,
) -> Answer<()> {
    let (admin, peer) = (run.admin, run.peer);
    if rights::is_owner(admin, peer) {
        return Ok(());
    }
    let parent = match target.head {
        Some(_) => None,
        None => Some(parent_of(entry, target)?),
    };
    let place = parent.as_ref().or(target.head.as_ref());
    let Some(place) = place else {
        return Err(rights::denied());
    };
    let force = run.r.force;
    let named = |p: String| match &parent {
        Some(parent) => rights::require_named_in_new(admin, entry, peer, &p, parent),
        None => rights::require_named(admin, entry, peer, &p, place),
    };
    let check = || {
        rights::require(admin, entry, peer, Action::Receive { force }, place)?;
        let brought = extra.iter().flat_map(|e| [&e.props, &e.snap_props]);
        for list in brought.flatten() {
            let stored = |n: &&str| props::is_user(n) || props::dataset(n).is_some();
            for name in list.iter().map(|(name, _)| name).filter(stored) {
                named(rights::of_property(name).to_string())?;
            }
        }
        let given = run.r.props.iter().map(|(name, _)| name);
        for name in given.chain(&run.r.exclude) {
            named(rights::of_property(name).to_string())?;
        }
        if extra.is_some_and(|e| !e.holds.is_empty()) {
            named("hold".into())?;
        }
        let who = rights::caller(admin, entry, peer)?;
        let dsl = &entry.pool.dsl;
        let snap = [(place.clone(), target.snap.clone())];
        let limits = dsl.check_snapshot_limits(&snap, &who);
        let limits = limits.and_then(|()| match &parent {
            Some(parent) => dsl.check_filesystem_limit(&parent.dir(), 1, &who),
            None => Ok(()),
        });
        limits.map_err(|e| datasets::plain(e, &target.fs))
    };
    check().map_err(|e: ApiError| words::sentence(Kind::from_errno(e.code), target.what, e.message))
}

/// Whether a full stream may take the place of what is there.
fn full_onto(run: &Run, entry: &PoolEntry, begin: &Begin, there: &Dataset, fs: &str) -> Answer<()> {
    let refuse = |kind, why: String| Err(words::sentence(kind, words::NEW, why));
    if !run.r.force {
        return refuse(
            Kind::Exists,
            format!("destination '{fs}' exists\nmust specify -F to overwrite it"),
        );
    }
    if protect::is_on(there).map_err(errors::answer)? {
        return refuse(Kind::NotPermitted, protected(fs));
    }
    let snaps = there.snapshots().map_err(errors::answer)?;
    if let Some((first, _)) = snaps.first() {
        return refuse(
            Kind::Exists,
            format!(
                "destination has snapshots (eg. {fs}@{first})\nmust destroy them to overwrite it"
            ),
        );
    }
    if there.dir().origin().map_err(errors::answer)?.is_some() {
        return refuse(
            Kind::Exists,
            format!("destination '{fs}' is a clone\nmust destroy it to overwrite it"),
        );
    }
    if there.dir().is_encrypted().map_err(errors::answer)? {
        return refuse(
            Kind::Invalid,
            "zfs receive -F cannot be used to destroy an encrypted filesystem or overwrite an unencrypted one with an encrypted one".into(),
        );
    }
    if there.dir().parent().is_none() && begin.features & feature::RAW != 0 {
        return refuse(
            Kind::Invalid,
            "zfs receive -F cannot be used to destroy an encrypted filesystem or overwrite an unencrypted one with an encrypted one".into(),
        );
    }
    let now = datasets::objset_type(entry, there).map_err(errors::answer)?;
    let is_volume = u64::from(begin.objset_type) == os_type::ZVOL;
    if is_volume != (now == os_type::ZVOL)
        || is_volume && !there.dir().children().map_err(errors::answer)?.is_empty()
    {
        return refuse(
            Kind::Invalid,
            format!("destination '{fs}' is of another type, or has children"),
        );
    }
    Ok(())
}

/// Whether an increment fits to what is there.
fn incremental_onto(
    run: &Run,
    entry: &PoolEntry,
    begin: &Begin,
    there: &Dataset,
    base: &Dataset,
    fs: &str,
) -> Answer<()> {
    let refuse = |kind, why: String| Err(words::sentence(kind, words::INCREMENTAL, why));
    let internal = |e: Error| errors::answer(e);
    let raw = begin.features & feature::RAW != 0;
    let encrypted = there.dir().is_encrypted().map_err(internal)?;
    if raw && !encrypted {
        return refuse(
            Kind::Invalid,
            "cannot perform raw receive on top of existing unencrypted dataset".into(),
        );
    }
    if !raw && encrypted && there.dir().key_loaded().map_err(internal)? != Some(true) {
        return refuse(Kind::Access, "inherited key must be loaded".into());
    }
    let newest = there.prev().map_err(internal)?;
    let younger = newest.is_none_or(|n| n.object() != base.object());
    let modified = there.is_modified_since(base).map_err(internal)? || has_unwritten(entry, there);
    if run.r.force && (younger || modified) && protect::is_on(there).map_err(internal)? {
        return refuse(Kind::NotPermitted, protected(fs));
    }
    if !run.r.force {
        if younger {
            return refuse(
                Kind::TextBusy,
                format!("most recent snapshot of {fs} does not\nmatch incremental source"),
            );
        }
        if modified {
            return refuse(
                Kind::TextBusy,
                format!("destination {fs} has been modified\nsince most recent snapshot"),
            );
        }
    }
    let large = disk::feature::guid::LARGE_BLOCKS;
    if base.has_feature(large) && begin.features & feature::LARGE_BLOCKS == 0 {
        return refuse(
            Kind::Invalid,
            "incremental send stream requires -L (--large-block), to match previous receive."
                .into(),
        );
    }
    Ok(())
}

/// Whether the head changes in a txg that is not on disk.
fn has_unwritten(entry: &PoolEntry, head: &Dataset) -> bool {
    let open = entry.pool.dmu.open_txg();
    let dirty = |os: Arc<Objset>| (0..3).any(|n| os.is_dirty_in(open.saturating_sub(n)));
    head.objset().is_some_and(dirty)
}

/// The snapshot that a clone begins with.
fn origin(run: &Run, entry: &PoolEntry, begin: &Begin, what: &str) -> Answer<Arc<Dataset>> {
    let free = begin.from_guid == 0;
    if let Some(name) = &run.r.origin {
        let snap = exists(entry, name)?.filter(|s| s.is_snapshot());
        let Some(snap) = snap else {
            return Err(words::sentence(
                Kind::NotFound,
                what,
                format!("local origin for clone {name} does not exist"),
            ));
        };
        let freed = begin.flags & begin_flag::FREERECORDS != 0;
        if !(free && freed) && snap.phys().guid != begin.from_guid {
            return Err(words::sentence(
                Kind::Invalid,
                what,
                format!("local origin for clone {name} is not the snapshot the stream is based on"),
            ));
        }
        return Ok(snap);
    }
    match by_guid(entry, begin.from_guid).map_err(errors::answer)? {
        Some(snap) => Ok(snap),
        None => Err(words::sentence(
            Kind::NotFound,
            what,
            "local origin for clone does not exist",
        )),
    }
}

/// What of the pool a stream needs, as (bit of the stream, feature, name).
const NEEDS: [(u64, &str, &str); 8] = [
    (
        feature::LZ4,
        disk::feature::guid::LZ4_COMPRESS,
        "lz4_compress",
    ),
    (
        feature::ZSTD,
        disk::feature::guid::ZSTD_COMPRESS,
        "zstd_compress",
    ),
    (
        feature::EMBED_DATA,
        disk::feature::guid::EMBEDDED_DATA,
        "embedded_data",
    ),
    (
        feature::LARGE_BLOCKS,
        disk::feature::guid::LARGE_BLOCKS,
        "large_blocks",
    ),
    (
        feature::LARGE_DNODE,
        disk::feature::guid::LARGE_DNODE,
        "large_dnode",
    ),
    (
        feature::REDACTED,
        disk::feature::guid::REDACTED_DATASETS,
        "redacted_datasets",
    ),
    (feature::LONGNAME, disk::feature::guid::LONGNAME, "longname"),
    (feature::RAW, disk::feature::guid::ENCRYPTION, "encryption"),
];

/// Per-dataset features that a stream brings as soon as it begins.
fn brings(begin: &Begin) -> Vec<&'static str> {
    let mut out = Vec::new();
    for (bit, guid) in [
        (feature::LARGE_BLOCKS, disk::feature::guid::LARGE_BLOCKS),
        (feature::LONGNAME, disk::feature::guid::LONGNAME),
        (feature::LARGE_MICROZAP, disk::feature::guid::LARGE_MICROZAP),
    ] {
        if begin.features & bit != 0 {
            out.push(guid);
        }
    }
    out
}

fn check_features(entry: &PoolEntry, begin: &Begin, what: &str) -> Answer<()> {
    let enabled = |guid: &str| entry.pool.dsl.features().is_enabled(guid);
    for (bit, guid, name) in NEEDS {
        if begin.features & bit != 0 && !enabled(guid) {
            return Err(words::sentence(
                Kind::Unsupported,
                what,
                format!(
                    "pool must be upgraded to receive this stream: it needs the feature '{name}'"
                ),
            ));
        }
    }
    if begin.features & feature::RAW != 0 && begin.features & feature::EMBED_DATA != 0 {
        return Err(words::sentence(
            Kind::Invalid,
            what,
            "invalid backup stream",
        ));
    }
    if begin.features & feature::SA_SPILL != 0 && entry.pool.version() < 24 {
        return Err(words::sentence(
            Kind::Unsupported,
            what,
            "pool must be upgraded to receive this stream.",
        ));
    }
    match u64::from(begin.objset_type) {
        os_type::ZFS | os_type::ZVOL => Ok(()),
        _ => Err(words::sentence(
            Kind::Invalid,
            what,
            "invalid backup stream",
        )),
    }
}

/// Receives one stream whose BEGIN was read. `extra`: what a package says of it. Returns the name of the
/// dataset; `None` if it was passed over.
pub fn receive<R: Read>(
    run: &mut Run,
    reader: &mut Reader<R>,
    begin: &Begin,
    list: &BeginList,
    extra: Option<Extra>,
) -> Answer<Option<String>> {
    words::features(begin)?;
    let entry = datasets::entry_of(run.admin, &run.r.target)?;
    let (target, filling) = {
        let _gate = entry.pass().map_err(errors::answer)?;
        let _names = entry.names.write();
        cancel::check()?;
        if let Some(e) = &extra {
            if is_there(run, &entry, begin, e)? {
                drop((_names, _gate));
                skip(reader)?;
                return Ok(None);
            }
        }
        let target = find_target(run, &entry, begin, extra.as_ref())?;
        permitted(run, &entry, &target, extra.as_ref())?;
        check_features(&entry, begin, target.what)?;
        let kind = match begin.from_guid {
            0 => "full",
            _ => "incremental",
        };
        let doing = match run.r.dry_run {
            true => "would receive",
            false => "receiving",
        };
        let (sent, snap) = sent_name(begin)?;
        if run.r.verbose || run.r.dry_run {
            (run.tell)(format!(
                "{doing} {kind} stream of {sent}@{snap} into {}@{}",
                target.fs, target.snap
            ));
        }
        if run.r.dry_run {
            drop((_names, _gate));
            skip(reader)?;
            return Ok(None);
        }
        let filling = start(run, &entry, begin, list, &target, extra.as_ref())?;
        (target, filling)
    };
    let started = run.admin.env.clock.monotonic_ns();
    let before = reader.position();
    let r = fill(run, &entry, reader, begin, &target, filling);
    match r {
        Ok(()) => {}
        Err(e) => return Err(e),
    }
    if let Some(e) = &extra {
        after(run, &entry, &target, e);
    }
    if run.r.verbose {
        let took = run.admin.env.clock.monotonic_ns().saturating_sub(started);
        let bytes = reader.position() - before;
        let secs = (took as f64 / 1e9).max(0.01);
        let rate = (bytes as f64 / secs) as u64;
        (run.tell)(format!(
            "received {} stream in {secs:.2} seconds ({}/sec)",
            base::sizes::nice(bytes, true),
            base::sizes::nice(rate, true)
        ));
    }
    Ok(Some(target.fs))
}

/// Whether a stream of a package brings a snapshot that is there already.
fn is_there(run: &Run, entry: &Arc<PoolEntry>, begin: &Begin, extra: &Extra) -> Answer<bool> {
    let (fs, _) = target_name(run, begin, Some(extra))?;
    let Some(head) = exists(entry, &fs)? else {
        return Ok(false);
    };
    Ok(own_by_guid(&head, begin.to_guid)
        .map_err(errors::answer)?
        .is_some())
}

/// Reads a stream to its end and forgets it.
fn skip<R: Read>(reader: &mut Reader<R>) -> Answer<()> {
    loop {
        match reader
            .next()
            .map_err(|e| words::stream("cannot receive", &e))?
        {
            Some(item) => {
                if matches!(item.record, Record::End(_)) {
                    return Ok(());
                }
                reader.recycle(item.payload);
            }
            None => return Ok(()),
        }
    }
}

/// Properties given on the command line for something new: stored ones and those of encryption.
fn given(run: &Run, entry: &PoolEntry) -> Answer<(Vec<(String, PropValue)>, CryptProps)> {
    let enabled = |guid: &str| entry.pool.dsl.features().is_enabled(guid);
    let allowed = Allowed {
        version: entry.pool.version(),
        enabled: &enabled,
    };
    let new =
        NewFs::parse(&allowed, &run.r.props).map_err(|e| words::plain(Kind::Invalid, e.message))?;
    Ok((new.stored, new.crypt))
}

/// Makes the dataset that is filled, or finds the one that was filled in part.
fn start(
    run: &mut Run,
    entry: &Arc<PoolEntry>,
    begin: &Begin,
    list: &BeginList,
    target: &Target,
    extra: Option<&Extra>,
) -> Answer<Filling> {
    let what = target.what;
    let fail = |e: Error| words::stream(what, &e);
    let raw = begin.features & feature::RAW != 0;
    let sealed = match raw {
        true => Some(Sealed::from_list(list).map_err(fail)?),
        false => None,
    };
    let version = sealed.as_ref().map(|s| s.key.wrapped.version);
    if let Some(kept) = &target.kept {
        let policy = entry.pool.receive_policy(kept, raw).map_err(fail)?;
        let os = kept.open_received(policy, version).map_err(fail)?;
        let state = kept.resume_state().map_err(fail)?.unwrap_or_default();
        if list.resume != Some((state.object, state.offset)) {
            return Err(words::sentence(
                Kind::Invalid,
                what,
                "the stream does not continue where the one before ended",
            ));
        }
        if let Some(s) = &sealed {
            s.apply(entry, &os).map_err(fail)?;
        }
        return Ok(Filling {
            ds: kept.clone(),
            os,
            resumable: true,
            sealed,
        });
    }
    let (sent, snap) = sent_name(begin)?;
    let resume = run.r.resumable.then(|| ResumeState {
        from_guid: begin.from_guid,
        to_guid: begin.to_guid,
        to_name: format!("{sent}@{snap}"),
        object: 1,
        offset: 0,
        bytes: 0,
        large_blocks: begin.features & feature::LARGE_BLOCKS != 0,
        embedded: begin.features & feature::EMBED_DATA != 0,
        compressed: begin.features & feature::COMPRESSED != 0,
        raw,
        redact_snaps: list.redact_snaps.clone(),
    });
    let (stored, crypt) = given(run, entry)?;
    let parent = match &target.head {
        Some(_) => None,
        None => Some(parent_of(entry, target)?),
    };
    let key: Option<NewKey> = match (&target.base, &parent) {
        (None, Some(parent)) if !raw => {
            let pool = &entry.pool;
            let enabled = pool.dsl.features().is_enabled(dsl::crypto::ENCRYPTION);
            let random = run.admin.env.rng.u64();
            let key = run.r.key.as_ref();
            let prepared = keys::prepare(&*run.admin.process, &crypt, key, random);
            keys::for_new(Some(&parent.dir()), enabled, &crypt, prepared)
                .map_err(|e| words::sentence(Kind::Invalid, what, e.message))?
        }
        _ => None,
    };
    if let (Some(s), Some(base)) = (&sealed, &target.base) {
        s.check_base(base).map_err(fail)?;
    }
    let redact = match begin.features & feature::REDACTED {
        0 => None,
        _ => Some(list.redact_snaps.clone().unwrap_or_default()),
    };
    let features = brings(begin);
    let (head, base) = (target.head.clone(), target.base.clone());
    let name = target.fs.clone();
    let os_type = u64::from(begin.objset_type);
    let ci = begin.flags & begin_flag::CI_DATA != 0;
    let resumable = resume.is_some();
    let props = extra.and_then(|e| e.props.clone());
    let exclude = run.r.exclude.clone();
    let seal = sealed.clone();
    let uid = u64::from(run.peer.uid);
    let (ds, os) = entry
        .pool
        .task(move |pool, tx| {
            let parent = match name.rsplit_once('/') {
                Some((up, _)) if head.is_none() => Some(pool.dsl.dir(up)?),
                _ => None,
            };
            let place = match (&head, &parent) {
                (Some(head), _) => Place::Existing(head),
                (None, Some(parent)) => Place::New {
                    parent,
                    name: name.rsplit('/').next().unwrap_or_default(),
                },
                (None, None) => return Err(Error::new(Kind::Invalid, "a pool cannot be received")),
            };
            let r = ReceiveBegin {
                place,
                base: base.as_ref(),
                key: key.as_ref(),
                raw: seal.as_ref().map(|s| &s.key),
                case_insensitive: ci,
                resume: resume.as_ref(),
                features: &features,
            };
            let ds = pool.receive_begin(tx, &r, version)?;
            if head.is_none() {
                pool.dsl.give_creator(tx, &ds, uid)?;
            }
            if let Some(snaps) = &redact {
                pool.dsl.mark_redacted(tx, &ds, snaps)?;
            }
            let to = head.as_ref().unwrap_or(&ds);
            store(pool, tx, to, props.as_ref(), &stored, &exclude, true)?;
            let os = match (&base, &seal) {
                (Some(_), _) => ds.open_received(pool.receive_policy(&ds, raw)?, version)?,
                (None, Some(s)) => {
                    pool.new_raw_objset(tx, &ds, os_type, (s.key.wrapped.version, s.meta))?
                }
                (None, None) => pool.new_objset(tx, &ds, os_type)?,
            };
            if let Some(s) = &seal {
                os.set_raw(tx, &s.meta, &s.mac)?;
            }
            Ok((ds, os))
        })
        .map_err(fail)?;
    Ok(Filling {
        ds,
        os,
        resumable,
        sealed,
    })
}

fn parent_of(entry: &PoolEntry, target: &Target) -> Answer<Arc<Dataset>> {
    let Some((up, _)) = target.fs.rsplit_once('/') else {
        return Err(words::sentence(
            Kind::Invalid,
            target.what,
            "a pool cannot be received",
        ));
    };
    let Some(parent) = exists(entry, up)? else {
        return Err(words::sentence(
            Kind::NotFound,
            target.what,
            format!("destination '{}' does not exist", target.fs),
        )
        .detail(format!("parent '{up}' does not exist")));
    };
    match datasets::objset_type(entry, &parent).map_err(errors::answer)? {
        os_type::ZFS => Ok(parent),
        _ => Err(words::sentence(
            Kind::Invalid,
            target.what,
            format!("parent '{up}' is not a filesystem"),
        )),
    }
}

/// Properties that are stored after the data, since they may refuse them or be changed by them.
const LATE: [&str; 3] = ["refquota", "keylocation", "sharesmb"];

/// Stores what the package (`props`) and the command line say of properties.
pub fn store(
    pool: &pool::Pool,
    tx: &dmu::Tx,
    ds: &Arc<Dataset>,
    props: Option<&NvList>,
    local: &[(String, PropValue)],
    exclude: &[String],
    early: bool,
) -> Result<()> {
    if let Some(props) = props {
        set::store_received(pool, tx, ds, props, early, &LATE)?;
    }
    for (name, value) in local {
        if LATE.contains(&name.as_str()) == early {
            continue;
        }
        let change = PropChange::Local(value.clone());
        pool.dsl.set_prop(tx, ds, name, &change)?;
    }
    if early {
        for name in exclude {
            pool.dsl.set_prop(tx, ds, name, &PropChange::Inherit)?;
        }
    }
    Ok(())
}

/// Fills the dataset and ends, or cleans up.
fn fill<R: Read>(
    run: &mut Run,
    entry: &Arc<PoolEntry>,
    reader: &mut Reader<R>,
    begin: &Begin,
    target: &Target,
    filling: Filling,
) -> Answer<()> {
    let Filling {
        ds,
        os,
        resumable,
        sealed,
    } = filling;
    let Some(under_way) = entry.streams.begin(ds.object()) else {
        return Err(words::sentence(
            Kind::Busy,
            target.what,
            format!("destination '{}' is busy", target.fs),
        ));
    };
    let large = disk::feature::guid::LARGE_BLOCKS;
    let base_large = target.base.as_ref().map(|b| b.has_feature(large));
    let rules = Rules {
        features: begin.features,
        swapped: reader.is_swapped(),
        spill_known: begin.flags & begin_flag::SPILL_BLOCK != 0,
        full: begin.from_guid == 0,
        keep_block_size: begin.features & feature::LARGE_BLOCKS != 0 && base_large == Some(false),
        embedded: os.policy().embedded_data,
        raw: sealed.is_some(),
    };
    let mut applier = Applier::new(os, ds.clone(), rules, resumable);
    // What came before in a stream that is resumed counts.
    let earlier = match target.kept {
        Some(_) => ds.resume_state().ok().flatten().map_or(0, |s| s.bytes),
        None => 0,
    };
    let start = reader.position();
    let applied = loop {
        if under_way.is_ended() || cancel::is_cancelled() {
            break Err(Error::new(Kind::Interrupted, "the receive was cancelled"));
        }
        let item = match reader.next() {
            Ok(Some(item)) => item,
            Ok(None) => break Err(Error::new(Kind::NoData, "incomplete stream")),
            Err(e) => break Err(e),
        };
        if let Record::End(end) = &item.record {
            break match end.to_guid == begin.to_guid {
                true => applier.finish(),
                false => Err(Error::new(Kind::Invalid, "END record of another stream")),
            };
        }
        let bytes = earlier + (reader.position() - start);
        match applier.apply(&item.record, item.payload, bytes) {
            Ok(spare) => reader.recycle(spare),
            Err(e) => break Err(e),
        }
    };
    let applied = match applied {
        // What came in full before the damage is kept with it.
        Err(e) => Err(match applier.flush() {
            Ok(()) => e,
            Err(other) => other,
        }),
        ok => ok,
    };
    drop(applier);
    let synced = entry.pool.sync().map(drop);
    let done = applied
        .and(synced)
        .map_err(|e| words::stream(target.what, &e))
        .and_then(|()| finish(run, entry, begin, target, &ds, sealed.as_ref()));
    match done {
        Ok(()) => Ok(()),
        Err(e) => Err(give_up(entry, target, &ds, resumable, e)),
    }
}

/// The one txg in which the target becomes what was received.
fn finish(
    run: &mut Run,
    entry: &Arc<PoolEntry>,
    begin: &Begin,
    target: &Target,
    ds: &Arc<Dataset>,
    sealed: Option<&Sealed>,
) -> Answer<()> {
    let _gate = entry.pass().map_err(errors::answer)?;
    let _names = entry.names.write();
    let fail = |e: Error| words::stream(target.what, &e);
    let mut down = Vec::new();
    if let Some(head) = &target.head {
        entry.close_in_ctldirs(head.object());
        for (_, s) in head.snapshots().map_err(fail)? {
            entry.close_in_ctldirs(s.object());
        }
        let mounted = entry.mounted(head.object());
        let mut mounts = entry.all_mounts();
        mounts.retain(|m| {
            m.is_in_place()
                && mounted
                    .as_ref()
                    .is_some_and(|h| m.path.starts_with(&h.path))
        });
        down = mount::take_down(run.admin, entry, &mounts, run.r.force_unmount)?;
    }
    let r = end_in_txg(run, entry, begin, target, ds, sealed).map_err(fail);
    for text in mount::put_back(run.admin, entry, &down) {
        run.warnings.push(text);
    }
    r?;
    if target.head.is_none() {
        run.new.push(target.fs.clone());
    }
    Ok(())
}

fn end_in_txg(
    run: &mut Run,
    entry: &Arc<PoolEntry>,
    begin: &Begin,
    target: &Target,
    ds: &Arc<Dataset>,
    sealed: Option<&Sealed>,
) -> Result<()> {
    let sealed = sealed.cloned();
    if let Some(head) = &target.head {
        destroy::free_log(entry, head)?;
        entry.close_in_ctldirs(head.object());
    }
    let (command, uid) = (run.command(), u64::from(run.peer.uid));
    let (head, ds) = (target.head.clone(), ds.clone());
    let (name, guid, time) = (target.snap.clone(), begin.to_guid, begin.creation_time);
    let force = run.r.force;
    entry.pool.task(move |pool, tx| {
        if let Some(head) = head.as_ref().filter(|h| pool.is_open(h)) {
            return Err(Error::new(
                Kind::Busy,
                format!("destination '{}' is busy", head.full_name()),
            ));
        }
        let end = ReceiveEnd {
            filled: &ds,
            target: head.as_ref(),
            name: &name,
            guid,
            creation_time: time,
            force,
            ivset_guid: sealed.as_ref().and_then(|s| s.to_ivset),
            key: sealed.as_ref().map(|s| &s.key),
        };
        pool.dsl.receive_end(tx, &end)?;
        pool.log_in(tx, &command, uid)
    })
}

/// What could not be received completely is thrown away, or kept if it can be resumed.
fn give_up(
    entry: &Arc<PoolEntry>,
    target: &Target,
    ds: &Arc<Dataset>,
    resumable: bool,
    why: ApiError,
) -> ApiError {
    let broken = [
        Kind::Checksum.errno(),
        Kind::NoData.errno(),
        Kind::Interrupted.errno(),
        Kind::Io.errno(),
    ];
    if resumable && broken.contains(&why.code) {
        let token = crate::datasets::props::resume_token(ds).ok().flatten();
        let Some(token) = token else { return why };
        return words::sentence(
            Kind::Checksum,
            target.what,
            format!(
                "checksum mismatch or incomplete stream.\nPartially received snapshot is saved.\nA resuming stream can be generated on the sending system by running:\n    zfs send -t {token}"
            ),
        );
    }
    if target.kept.is_some() {
        return why;
    }
    let gone = ds.clone();
    let r = entry
        .pool
        .task(move |pool, tx| pool.dsl.receive_abandon(tx, &gone));
    if let Err(e) = r {
        tracing::error!("{}: what was received in part stays: {e}", ds.full_name());
    }
    why
}

/// Properties and holds that wait for the data.
fn after(run: &mut Run, entry: &Arc<PoolEntry>, target: &Target, extra: &Extra) {
    let (fs, snap) = (target.fs.clone(), target.snap.clone());
    let (props, snap_props) = (extra.props.clone(), extra.snap_props.clone());
    let holds = match run.r.no_holds {
        true => Vec::new(),
        false => extra.holds.clone(),
    };
    let r = entry.pool.task(move |pool, tx| {
        let ds = pool.dsl.dataset(&fs)?;
        store(pool, tx, &ds, props.as_ref(), &[], &[], false)?;
        let snap = pool.dsl.dataset(&format!("{fs}@{snap}"))?;
        if let Some(p) = &snap_props {
            set::store_received(pool, tx, &snap, p, true, &[])?;
        }
        for tag in &holds {
            if pool.dsl.check_hold(&snap, tag, false).is_ok() {
                pool.dsl.hold(tx, &snap, tag, false)?;
            }
        }
        Ok(())
    });
    if let Err(e) = r {
        run.warnings
            .push(format!("cannot receive properties on {}: {e}", target.fs));
    }
    if let Ok(ds) = entry.pool.dsl.dataset(&target.fs) {
        set::refresh(entry, &[ds]);
    }
}
