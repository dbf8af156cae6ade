//! Receiving the stream of one snapshot: finding the target, applying the records, making the snapshot.

use super::heal;
use super::sealed::Sealed;
use super::target::{
    brings, check_features, exists, find_target, own_by_guid, parent_of, permitted, target_name,
    Extra, Target,
};
use super::{sent_name, words, Run};
use crate::datasets::create::{self, NewFs};
use crate::datasets::keys::{self, CryptProps};
use crate::datasets::parse::{self, Allowed};
use crate::datasets::{self, set, Answer};
use crate::registry::PoolEntry;
use crate::streams::UnderWay;
use crate::{cancel, errors};
use api::{ApiError, NameBy};
use base::{Error, Kind, Result};
use disk::stream::{begin_flag, feature, Begin, Record};
use disk::NvList;
use dmu::Objset;
use dsl::props::PropChange;
use dsl::{
    Dataset, NewKey, PropSource, PropValue, ReceiveBegin, ReceiveEnd, ReceiveTarget, ResumeState,
};
use std::cell::Cell;
use std::io::Read;
use std::sync::Arc;
use stream::{Applier, BeginList, Reader, Rules};

/// The dataset that is filled.
struct Filling {
    ds: Arc<Dataset>,
    os: Arc<Objset>,
    resumable: bool,
    sealed: Option<Sealed>,
    under_way: UnderWay,
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
    if run.r.corrective {
        return heal::receive(run, reader, begin, extra.as_ref()).map(Some);
    }
    words::features(begin)?;
    let entry = datasets::entry_of(run.admin, &run.r.target)?;
    // It is told when no lock is held.
    let mut line = None;
    let begun = {
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
        check_features(&entry, begin, target.what)?;
        let mut asked = Asked::of(run, &entry, begin, extra.as_ref(), target.what)?;
        let recursive = extra.as_ref().is_some_and(|e| e.recursive);
        asked.check_encryption(run, begin, recursive, target.what)?;
        if recursive && (target.head.is_some() || target.kept.is_some()) {
            asked.forget_encryption();
        }
        asked.check_location(begin, &target)?;
        if let Some(base) = &target.base {
            check_redacted(base, begin, list, target.what)?;
        }
        make_parents(run, &entry, &target)?;
        permitted(run, &entry, &target, extra.as_ref())?;
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
            line = Some(format!(
                "{doing} {kind} stream of {sent}@{snap} into {}@{}",
                target.fs, target.snap
            ));
        }
        match run.r.dry_run {
            true => None,
            false => {
                let filling = start(run, &entry, begin, list, &target, extra.as_ref(), &asked);
                Some((target, filling, asked))
            }
        }
    };
    line.into_iter().for_each(&mut *run.tell);
    let Some((target, filling, asked)) = begun else {
        skip(reader)?;
        return Ok(None);
    };
    let filling = filling?;
    if let Some(list) = extra.as_ref().and_then(|e| e.props.as_ref()) {
        for name in set::unfit(&entry.pool, list) {
            run.warnings.push(format!(
                "cannot receive {name} property on {}: {}",
                target.fs,
                parse::UPGRADE
            ));
        }
    }
    let started = run.admin.env.clock.monotonic_ns();
    let before = reader.position();
    let late = Late::of(run, &target, extra.unwrap_or_default(), asked);
    fill(run, &entry, reader, begin, &target, filling, late)?;
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

/// What the command line says of properties.
#[derive(Clone)]
struct Asked {
    set: Vec<(String, PropValue)>,
    exclude: Vec<String>,
    crypt: CryptProps,
}

impl Asked {
    /// What is set is set at the top of a package; file systems below inherit it.
    fn of(
        run: &Run,
        entry: &PoolEntry,
        begin: &Begin,
        extra: Option<&Extra>,
        what: &str,
    ) -> Answer<Asked> {
        let enabled = |guid: &str| entry.pool.dsl.features().is_enabled(guid);
        let allowed = Allowed {
            version: entry.pool.version(),
            enabled: &enabled,
        };
        let below = extra.is_some_and(|e| e.is_below);
        // What is set is for the top, which may be a file system with volumes below it.
        let kind = match u64::from(begin.objset_type) == disk::os_type::ZVOL && !below {
            true => api::DatasetKind::Volume,
            false => api::DatasetKind::Filesystem,
        };
        let new = NewFs::of_received(kind, &allowed, &run.r.props)
            .map_err(|e| words::sentence(Kind::Invalid, what, e.message))?;
        let mut exclude = run.r.exclude.clone();
        if below {
            exclude.extend(new.stored.into_iter().map(|(name, _)| name));
            return Ok(Asked {
                set: Vec::new(),
                exclude,
                crypt: CryptProps::default(),
            });
        }
        Ok(Asked {
            set: new.stored,
            exclude,
            crypt: new.crypt,
        })
    }

    /// How a new dataset is to be encrypted. One that is sent with its properties, and not raw, was not encrypted: it stays so
    /// also below an encrypted one, unless the command line says otherwise.
    fn crypt(&self, run: &Run, extra: Option<&Extra>) -> CryptProps {
        let set = run.r.props.iter().map(|(name, _)| name);
        let mut named = set.chain(&run.r.exclude);
        let with_props = extra.is_some_and(|e| e.props.is_some());
        if with_props && !named.any(|name| name == "encryption") {
            return CryptProps {
                encryption: Some(keys::OFF),
                ..self.crypt.clone()
            };
        }
        self.crypt.clone()
    }
}

/// Properties by which a new file system is encrypted, and its key wrapped.
const ENCRYPTION: [&str; 3] = ["encryption", "keyformat", "pbkdf2iters"];

impl Asked {
    /// Refuses to change by `-o` or `-x` how a raw stream is encrypted, or by `-o` what is there already. Of a recursive
    /// package what is asked for is for the new file systems alone.
    fn check_encryption(
        &self,
        run: &Run,
        begin: &Begin,
        recursive: bool,
        what: &str,
    ) -> Answer<()> {
        let raw = begin.features & feature::RAW != 0;
        let refuse = |name: &str, how: &str| {
            let why = format!("encryption property '{name}' cannot be {how} streams.");
            Err(words::sentence(Kind::Invalid, what, why))
        };
        let crypt = |name: &&str| ENCRYPTION.contains(name);
        let set = || run.r.props.iter().map(|(name, _)| name.as_str());
        let excluded = self.exclude.iter().map(String::as_str);
        if let Some(name) = set().chain(excluded).find(|n| raw && crypt(n)) {
            return refuse(name, "set or excluded for raw");
        }
        let incremental = begin.from_guid != 0 && begin.flags & begin_flag::CLONE == 0;
        match set().find(|n| incremental && !recursive && crypt(n)) {
            Some(name) => refuse(name, "set for incremental"),
            None => Ok(()),
        }
    }

    /// Leaves out how a new dataset is to be encrypted: what a stream of a recursive package goes into is there already, and
    /// may be encrypted so by the stream before. The place of its key alone may be another.
    fn forget_encryption(&mut self) {
        let crypt = std::mem::take(&mut self.crypt);
        if crypt.encryption.is_none() && crypt.keyformat.is_none() {
            self.crypt.keylocation = crypt.keylocation;
        }
    }

    /// Refuses a place of the key (`-o keylocation=`) that the dataset cannot have: a dataset without a key of its own
    /// has none, one that comes raw has one.
    fn check_location(&self, begin: &Begin, target: &Target) -> Answer<()> {
        let Some(location) = &self.crypt.keylocation else {
            return Ok(());
        };
        let refuse = |why: &str| Err(words::sentence(Kind::Invalid, target.what, why));
        let raw = begin.features & feature::RAW != 0;
        let old = match &target.head {
            Some(head) => Some(head.dir().is_encrypted().map_err(errors::answer)?),
            None => None,
        };
        match (location == "none", old) {
            (true, None) if raw => refuse(set::MUST_NOT_BE_NONE),
            (true, Some(true)) => refuse(set::MUST_NOT_BE_NONE),
            (false, Some(false)) => refuse(set::MUST_BE_NONE),
            (false, Some(true)) if !raw => refuse("Keyformat required for new encryption root."),
            _ => Ok(()),
        }
    }
}

/// Notes that a stream fills the dataset; the caller holds the gate.
fn occupy(entry: &PoolEntry, ds: &Dataset, target: &Target) -> Answer<UnderWay> {
    entry.streams.begin(ds.object()).ok_or_else(|| {
        words::sentence(
            Kind::Busy,
            target.what,
            format!("destination '{}' is busy", target.fs),
        )
    })
}

/// How a new dataset below `parent` is encrypted.
fn new_key(
    run: &Run,
    entry: &PoolEntry,
    parent: &Dataset,
    crypt: &CryptProps,
    what: &str,
) -> Answer<Option<NewKey>> {
    let features = entry.pool.dsl.features();
    let enabled = features.is_enabled(dsl::crypto::ENCRYPTION);
    let random = run.admin.env.rng.u64();
    let key = run.r.key.as_ref();
    let prepared = keys::prepare(&*run.admin.process, crypt, key, random);
    let new = keys::for_new(Some(&parent.dir()), enabled, crypt, prepared);
    let new = new.and_then(|key| match key {
        Some(_) => keys::need_ivsets(&**features).map(|()| key),
        None => Ok(None),
    });
    new.map_err(|e| match e.code == Kind::Access.errno() {
        true => words::sentence(Kind::Access, what, "inherited key must be loaded"),
        false => words::sentence(Kind::Invalid, what, e.message),
    })
}

/// Refuses an increment on a redacted base that lacks what the increment takes for there: it must come from a base
/// redacted by some of the same snapshots, or be redacted by them itself, or bring one of them.
fn check_redacted(base: &Dataset, begin: &Begin, list: &BeginList, what: &str) -> Answer<()> {
    let by = base.redact_snaps().map_err(errors::answer)?;
    let Some(by) = by.filter(|_| begin.from_guid != 0) else {
        return Ok(());
    };
    let known = |snaps: &Vec<u64>| snaps.iter().all(|s| by.contains(s));
    let fits = match (&list.redact_from_snaps, &list.redact_snaps) {
        (Some(snaps), _) | (None, Some(snaps)) => known(snaps),
        (None, None) => by.contains(&begin.to_guid),
    };
    if fits {
        return Ok(());
    }
    let name = base.full_name();
    Err(words::sentence(
        Kind::Invalid,
        what,
        format!("'{name}' is redacted, and the stream takes for there what it lacks"),
    ))
}

/// Goes on with a dataset that a stream filled in part.
fn go_on(
    entry: &PoolEntry,
    list: &BeginList,
    target: &Target,
    kept: &Arc<Dataset>,
    sealed: Option<Sealed>,
) -> Answer<Filling> {
    let what = target.what;
    let fail = |e: Error| words::stream(what, &e);
    let under_way = occupy(entry, kept, target)?;
    let state = kept.resume_state().map_err(fail)?.unwrap_or_default();
    let refused = |kind, why: &str| Err(words::sentence(kind, what, why));
    if state.raw != sealed.is_some() {
        return refused(
            Kind::Invalid,
            "the stream is not of the kind of the one it continues",
        );
    }
    let key = kept.dir().key_object().map_err(fail)?;
    match (&sealed, &key) {
        (Some(s), Some(k)) if k.wrapped.guid == s.key.wrapped.guid => {}
        (Some(_), _) => {
            return refused(
                Kind::Access,
                "the raw stream is encrypted with other keys than what was received before",
            )
        }
        (None, Some(_)) if kept.dir().key_loaded().map_err(fail)? != Some(true) => {
            return refused(Kind::Access, "encryption key for destination is not loaded")
        }
        (None, _) => {}
    }
    let version = sealed.as_ref().map(|s| s.key.wrapped.version);
    let policy = entry
        .pool
        .receive_policy(kept, sealed.is_some())
        .map_err(fail)?;
    let os = kept.open_received(policy, version).map_err(fail)?;
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
    Ok(Filling {
        ds: kept.clone(),
        os,
        resumable: true,
        sealed,
        under_way,
    })
}

/// Makes the file systems above a new target that has most of its name from the stream (`-d`), as `zfs create -p` does.
fn make_parents(run: &mut Run, entry: &Arc<PoolEntry>, target: &Target) -> Answer<()> {
    let new = target.head.is_none() && target.kept.is_none();
    if run.r.dry_run || !new || run.r.name_by != NameBy::AllButFirst {
        return Ok(());
    }
    let above = create::above(entry, &target.fs, true)?;
    if above.missing.is_empty() {
        return Ok(());
    }
    above.require(run.admin, entry, run.peer, &Vec::new())?;
    let make = create::make_parents(run.admin, entry, run.peer, &above)?;
    entry
        .pool
        .task(make)
        .map_err(|e| words::stream(target.what, &e))?;
    run.new.extend(above.missing);
    Ok(())
}

/// The state of a receive that can be gone on with, of which nothing has come.
fn begun(begin: &Begin, list: &BeginList) -> Answer<ResumeState> {
    let (sent, snap) = sent_name(begin)?;
    let has = |f: u64| begin.features & f != 0;
    Ok(ResumeState {
        from_guid: begin.from_guid,
        to_guid: begin.to_guid,
        to_name: format!("{sent}@{snap}"),
        object: 1,
        offset: 0,
        bytes: 0,
        large_blocks: has(feature::LARGE_BLOCKS),
        embedded: has(feature::EMBED_DATA),
        compressed: has(feature::COMPRESSED),
        raw: has(feature::RAW),
        redact_snaps: list.redact_snaps.clone(),
        book_redact_snaps: list.redact_from_snaps.clone(),
    })
}

/// Makes the dataset that is filled, or finds the one that was filled in part.
fn start(
    run: &mut Run,
    entry: &Arc<PoolEntry>,
    begin: &Begin,
    list: &BeginList,
    target: &Target,
    extra: Option<&Extra>,
    asked: &Asked,
) -> Answer<Filling> {
    let what = target.what;
    let fail = |e: Error| words::stream(what, &e);
    let raw = begin.features & feature::RAW != 0;
    let sealed = match raw {
        true => Some(Sealed::from_list(list).map_err(fail)?),
        false => None,
    };
    let version = sealed.as_ref().map(|s| s.key.wrapped.version);
    let written = [&target.head, &target.base].into_iter().flatten();
    for ds in written {
        if ds.dir().has_old_keys().map_err(fail)? {
            let why = "it is encrypted in the first format, which is only read (errata 3)";
            return Err(words::sentence(Kind::ReadOnly, what, why));
        }
    }
    if let Some(kept) = &target.kept {
        return go_on(entry, list, target, kept, sealed);
    }
    let resume = match run.r.resumable {
        true => Some(begun(begin, list)?),
        false => None,
    };
    let parent = match &target.head {
        Some(_) => None,
        None => Some(parent_of(entry, target)?),
    };
    let key = match (&target.base, &parent) {
        (None, Some(parent)) if !raw => {
            new_key(run, entry, parent, &asked.crypt(run, extra), what)?
        }
        _ => None,
    };
    if let (Some(s), Some(base)) = (&sealed, &target.base) {
        let unchecked = run.admin.settings.ivsets_unchecked;
        s.check_base(base, unchecked).map_err(fail)?;
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
    let asked = asked.clone();
    let seal = sealed.clone();
    let uid = u64::from(run.peer.uid);
    let (ds, made, failed) = entry
        .pool
        .task(move |pool, tx| {
            let parent = match name.rsplit_once('/') {
                Some((up, _)) if head.is_none() => Some(pool.dsl.dir(up)?),
                _ => None,
            };
            let place = match (&head, &parent) {
                (Some(head), _) => ReceiveTarget::Existing(head),
                (None, Some(parent)) => ReceiveTarget::New {
                    parent,
                    name: name.rsplit('/').next().unwrap_or_default(),
                },
                (None, None) => return Err(Error::new(Kind::Invalid, "a pool cannot be received")),
            };
            let r = ReceiveBegin {
                target: place,
                base: base.as_ref(),
                key: key.as_ref(),
                raw: seal.as_ref().map(|s| &s.key),
                case_insensitive: ci,
                resume: resume.as_ref(),
                features: &features,
            };
            let ds = pool.receive_begin(tx, &r, version)?;
            let mut failed = Unset::new();
            // What is refused from here on leaves a dataset behind, which goes in a txg of its own.
            let made = (|| {
                if head.is_none() {
                    pool.dsl.give_creator(tx, &ds, uid)?;
                }
                if let Some(snaps) = &redact {
                    pool.dsl.mark_redacted(tx, &ds, snaps)?;
                }
                // What is there already keeps its own until it has the data, too.
                if head.is_none() {
                    store(pool, tx, &ds, props.as_ref(), &asked, true, &mut failed)?;
                }
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
                Ok(os)
            })();
            Ok((ds, made, failed))
        })
        .map_err(fail)?;
    let os = made.map_err(|e| give_up(entry, target, &ds, false, fail(e)))?;
    warn(run, target, failed);
    Ok(Filling {
        under_way: occupy(entry, &ds, target)?,
        ds,
        os,
        resumable,
        sealed,
    })
}

/// Properties that are stored after the data, since they may refuse them or be changed by them.
const LATE: [&str; 3] = ["refquota", set::LOCATION, "sharesmb"];

/// Properties that were asked for and do not fit, and why.
type Unset = Vec<(String, Error)>;

/// Stores what the package (`props`) and the command line say of properties, before the data (`early`) or after it.
/// What cannot be stored is no reason to leave out the rest; the first error is returned. Limits that do not fit are
/// no error, they go to `failed`.
///
/// The location of a key is always a local value. That of the stream comes last, as in OpenZFS, also with `-o` or `-x`.
fn store(
    pool: &pool::Pool,
    tx: &dmu::Tx,
    ds: &Arc<Dataset>,
    props: Option<&NvList>,
    asked: &Asked,
    early: bool,
    failed: &mut Unset,
) -> Result<()> {
    // What is not inherited cannot be made to be: it is left out.
    let stays_out = |name: &String| disk::props::dataset(name).is_some_and(|p| !p.inheritable());
    let mut done = match props {
        Some(props) => {
            let mut props = props.clone();
            for name in asked.exclude.iter().filter(|n| stays_out(n)) {
                props.remove(name);
            }
            set::store_received(pool, tx, ds, &props, early, &LATE)
        }
        None => Ok(()),
    };
    let now = |(name, _): &&(String, PropValue)| LATE.contains(&name.as_str()) != early;
    let local: Vec<_> = asked.set.iter().filter(now).cloned().collect();
    if set::store_props(pool, tx, ds, &local).is_err() {
        // Together they do not fit: those that fit alone are stored.
        for one in local {
            let r = set::store_props(pool, tx, ds, std::slice::from_ref(&one));
            match r {
                Err(e) if matches!(e.kind, Kind::NoSpace | Kind::Quota) => {
                    failed.push((one.0, e));
                }
                r => done = done.and(r),
            }
        }
    }
    if !early {
        let locations = [
            asked.crypt.keylocation.clone(),
            props.and_then(set::received_location),
        ];
        for location in locations.into_iter().flatten() {
            done = done.and(set::store_location(pool, tx, ds, &location));
        }
    }
    for name in asked.exclude.iter().filter(|n| early && !stays_out(n)) {
        // What was set here goes before what is received anyway.
        let is_local = matches!(ds.prop(name, false)?, Some((_, PropSource::Local)));
        if !is_local {
            done = done.and(pool.dsl.set_prop(tx, ds, name, &PropChange::Inherit));
        }
    }
    done
}

/// Tells of properties that could not be set.
fn warn(run: &mut Run, target: &Target, failed: Unset) {
    for (name, e) in failed {
        let fs = &target.fs;
        let why = datasets::plain(e, fs).message;
        let text = format!("cannot receive {name} property on {fs}: {why}");
        run.warnings.push(text);
    }
}

/// What the package and the command line say, as far as it waits for the data.
struct Late {
    asked: Asked,
    /// Nothing was stored before the data: the target was there already, and stays as it is if the stream fails.
    all: bool,
    props: Option<NvList>,
    snap_props: Option<NvList>,
    holds: Vec<String>,
}

impl Late {
    fn of(run: &Run, target: &Target, extra: Extra, asked: Asked) -> Late {
        Late {
            asked,
            all: target.head.is_some() || target.kept.is_some(),
            props: extra.props,
            snap_props: extra.snap_props,
            holds: match run.r.no_holds {
                true => Vec::new(),
                false => extra.holds,
            },
        }
    }

    /// Stores it, in the txg in which the snapshot `fs@snap` appears: nobody sees the snapshot without its holds, and no
    /// export or crash comes in between.
    fn store(&self, pool: &pool::Pool, tx: &dmu::Tx, fs: &str, snap: &str) -> Result<Unset> {
        let ds = pool.dsl.dataset(fs)?;
        let snap = pool.dsl.dataset(&format!("{fs}@{snap}"))?;
        // The holds first: what fails must not cost them.
        for tag in &self.holds {
            if pool.dsl.check_hold(&snap, tag, false).is_ok() {
                pool.dsl.hold(tx, &snap, tag, false)?;
            }
        }
        let mut failed = Unset::new();
        let mut store = |early| {
            let props = self.props.as_ref();
            store(pool, tx, &ds, props, &self.asked, early, &mut failed)
        };
        let mut done = match self.all {
            true => store(true),
            false => Ok(()),
        };
        done = done.and(store(false));
        if let Some(p) = &self.snap_props {
            done = done.and(set::store_received(pool, tx, &snap, p, true, &[]));
        }
        done.map(|()| failed)
    }
}

/// Fills the dataset and ends, or cleans up.
fn fill<R: Read>(
    run: &mut Run,
    entry: &Arc<PoolEntry>,
    reader: &mut Reader<R>,
    begin: &Begin,
    target: &Target,
    filling: Filling,
    late: Late,
) -> Answer<()> {
    let Filling {
        ds,
        os,
        resumable,
        sealed,
        under_way,
    } = filling;
    let rules = Rules {
        features: begin.features,
        swapped: reader.is_swapped(),
        spill_known: begin.flags & begin_flag::SPILL_BLOCK != 0,
        full: begin.from_guid == 0,
        embedded: os.policy().embedded_data,
        raw: sealed.is_some(),
    };
    let cancelled = || Error::new(Kind::Interrupted, "the receive was cancelled");
    let go_on = move || match cancel::is_cancelled() {
        true => Err(cancelled()),
        false => Ok(()),
    };
    let pool = entry.pool.clone();
    let mut applier = Applier::new(os, ds.clone(), rules, resumable)
        .interrupted_by(go_on)
        .waiting_for_devices(move || pool.await_devices().and_then(|()| go_on()));
    // What came before in a stream that is resumed counts.
    let earlier = match target.kept {
        Some(_) => ds.resume_state().ok().flatten().map_or(0, |s| s.bytes),
        None => 0,
    };
    // As OpenZFS counts: without the BEGIN record, with its list.
    let start = reader.position() - u64::from(begin.list_len);
    // An export by force ends the stream also while the sender sends nothing.
    let _ended = cancel::ended_by(under_way.flag());
    let applied = loop {
        if cancel::is_cancelled() {
            break Err(cancelled());
        }
        let item = match reader.next() {
            Ok(Some(item)) => item,
            Ok(None) => break Err(Error::new(Kind::NoData, "incomplete stream")),
            Err(_) if under_way.is_ended() => break Err(cancelled()),
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
    let ended = Cell::new(false);
    let done = applied
        .and(synced)
        .map_err(|e| words::into(target.what, &target.fs, &e))
        .and_then(|()| {
            let filled = Filled {
                ds: &ds,
                sealed: sealed.as_ref(),
                late: Arc::new(late),
                ended: &ended,
            };
            finish(run, entry, begin, target, &filled)
        });
    match done {
        Ok(()) => Ok(()),
        // It has taken the place of its target.
        Err(e) if ended.get() => Err(e),
        Err(e) => Err(give_up(entry, target, &ds, resumable, e)),
    }
}

/// What came whole.
struct Filled<'a> {
    ds: &'a Arc<Dataset>,
    sealed: Option<&'a Sealed>,
    late: Arc<Late>,
    /// The txg in which it took the place of its target has been.
    ended: &'a Cell<bool>,
}

/// The one txg in which the target becomes what was received.
fn finish(
    run: &mut Run,
    entry: &Arc<PoolEntry>,
    begin: &Begin,
    target: &Target,
    filled: &Filled<'_>,
) -> Answer<()> {
    // A forced export holds the gate while it waits for this stream to end.
    let _gate = entry.pass_unless_cancelled().map_err(errors::answer)?;
    let _names = entry.names.write();
    let fail = |e: Error| words::into(target.what, &target.fs, &e);
    let mut mounted = None;
    if let Some(head) = &target.head {
        entry.close_in_ctldirs(head.object());
        for (_, object) in head.snapshot_names().map_err(fail)? {
            entry.close_in_ctldirs(object);
        }
        mounted = entry.mounted(head.object());
    }
    let dressed = match mounted {
        // What programs have written is a change of the target, or given up with the others.
        Some(m) if !m.mount.wait_if_gone() => {
            m.replace(|| end_in_txg(run, entry, begin, target, filled).map_err(fail))?
        }
        _ => end_in_txg(run, entry, begin, target, filled).map_err(fail)?,
    };
    match dressed {
        Ok(failed) => warn(run, target, failed),
        Err(e) => {
            let text = format!("cannot receive properties on {}: {e}", target.fs);
            run.warnings.push(text);
        }
    }
    if let Ok(ds) = entry.pool.dsl.dataset(&target.fs) {
        set::refresh(entry, &[ds]);
    }
    if target.head.is_none() {
        run.new.push(target.fs.clone());
    }
    Ok(())
}

/// Returns what became of properties and holds.
fn end_in_txg(
    run: &mut Run,
    entry: &Arc<PoolEntry>,
    begin: &Begin,
    target: &Target,
    filled: &Filled<'_>,
) -> Result<Result<Unset>> {
    let sealed = filled.sealed.cloned();
    if let Some(head) = &target.head {
        entry.close_in_ctldirs(head.object());
    }
    let (command, uid) = (run.command(), u64::from(run.peer.uid));
    let (head, ds) = (target.head.clone(), filled.ds.clone());
    let (fs, late) = (target.fs.clone(), filled.late.clone());
    let (name, guid, time) = (target.snap.clone(), begin.to_guid, begin.creation_time);
    let force = run.r.force;
    let dressed = entry.pool.task(move |pool, tx| {
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
        // A log that a crash left behind goes with the content of the target, and not before.
        let log = head.as_ref().map(|h| pool.left_log(h)).transpose()?;
        pool.dsl.receive_end(tx, &end)?;
        if let Some(Err(e)) = log.map(|log| log.free(tx)) {
            pool.stop_for_good(e.clone());
            return Err(e);
        }
        // The snapshot is there, whatever is wrong with what is to be said of it.
        let dressed = late.store(pool, tx, &fs, &name);
        pool.log_in(tx, &command, uid)?;
        Ok(dressed)
    })?;
    filled.ended.set(true);
    Ok(dressed)
}

/// What could not be received completely is thrown away, or kept if it can be resumed.
fn give_up(
    entry: &Arc<PoolEntry>,
    target: &Target,
    ds: &Arc<Dataset>,
    resumable: bool,
    why: ApiError,
) -> ApiError {
    // Whatever went wrong, what came can be gone on with.
    let token = match resumable {
        true => crate::datasets::props::resume_token(ds).ok().flatten(),
        false => None,
    };
    let broken = [
        Kind::Checksum.errno(),
        Kind::NoData.errno(),
        Kind::Interrupted.errno(),
        Kind::Io.errno(),
    ];
    if let Some(token) = token {
        if !broken.contains(&why.code) {
            return why;
        }
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
