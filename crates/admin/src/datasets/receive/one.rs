//! Receiving the stream of one snapshot: finding the target, applying the records, making the snapshot.

use super::dress::{store, warn, Asked, By, Late, Unset};
use super::heal;
use super::sealed::Sealed;
use super::target::{
    above_of, brings, check_features, exists, find_target, look_again, own_by_guid, permitted,
    target_name, unplayed, Brought, Extra, Target,
};
use super::{sent_name, words, Run};
use crate::datasets::create::{self, Above};
use crate::datasets::keys::{self, CryptProps, Prepared};
use crate::datasets::rights;
use crate::datasets::{self, destroy, parse, set, Answer};
use crate::registry::PoolEntry;
use crate::setters;
use crate::streams::UnderWay;
use crate::{cancel, errors};
use api::ApiError;
use base::mutation::{mutated, Mutation};
use base::{Error, Kind, Result};
use disk::stream::{begin_flag, feature, Begin, Record};
use disk::NvList;
use dmu::Objset;
use dsl::{Dataset, NewKey, ReceiveBegin, ReceiveEnd, ReceiveTarget, ResumeState};
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

/// What became of the beginning of a stream.
enum Beginning {
    /// Its snapshot is there.
    There,
    /// It was only asked whether it could be received (`-n`).
    Rehearsed(Target),
    /// The key of the new dataset is to be made first, which takes long: not with locks held.
    NeedsKey(CryptProps),
    /// The dataset that is filled is there.
    Begun(Box<(Target, Filling, Asked)>),
}

/// A dataset that was received.
pub(super) struct Done {
    /// Its name.
    pub(super) name: String,
    /// The head.
    pub(super) object: u64,
    /// It was not there before.
    pub(super) is_new: bool,
}

/// Receives one stream whose BEGIN was read. `extra`: what a package says of it. Returns what was received; `None` if it was
/// passed over.
pub(super) fn receive<R: Read>(
    run: &mut Run,
    reader: &mut Reader<R>,
    begin: &Begin,
    list: &BeginList,
    extra: Option<Extra>,
) -> Answer<Option<Done>> {
    if run.r.corrective {
        heal::receive(run, reader, begin, extra.as_ref())?;
        return Ok(None);
    }
    words::features(begin)?;
    let entry = datasets::entry_of(run.admin, &run.r.target)?;
    let mut key = None;
    let beginning = loop {
        match begin_stream(run, &entry, begin, list, extra.as_ref(), key.take())? {
            Beginning::NeedsKey(crypt) => {
                key = keys::prepare_for(run.admin, run.peer, &crypt, run.r.key.as_ref());
            }
            other => break other,
        }
    };
    let (target, filling, asked) = match beginning {
        Beginning::Begun(all) => *all,
        Beginning::Rehearsed(target) => {
            tell_begin(run, begin, &target)?;
            skip(reader)?;
            return Ok(None);
        }
        Beginning::There | Beginning::NeedsKey(_) => {
            skip(reader)?;
            return Ok(None);
        }
    };
    tell_begin(run, begin, &target)?;
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
    let head = target.head.as_ref().unwrap_or(&filling.ds).object();
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
    Ok(Some(Done {
        is_new: target.head.is_none(),
        name: target.fs,
        object: head,
    }))
}

/// Says what begins (`-v`); no lock is held.
fn tell_begin(run: &mut Run, begin: &Begin, target: &Target) -> Answer<()> {
    if !(run.r.verbose || run.r.dry_run) {
        return Ok(());
    }
    let kind = match begin.from_guid {
        0 => "full",
        _ => "incremental",
    };
    let doing = match run.r.dry_run {
        true => "would receive",
        false => "receiving",
    };
    let (sent, snap) = sent_name(begin)?;
    (run.tell)(format!(
        "{doing} {kind} stream of {sent}@{snap} into {}@{}",
        target.fs, target.snap
    ));
    Ok(())
}

/// Finds the place of a stream, asks whether it may be received there, and makes the dataset that is filled. `key`: the key of
/// a new one, once it was asked for.
fn begin_stream(
    run: &mut Run,
    entry: &Arc<PoolEntry>,
    begin: &Begin,
    list: &BeginList,
    extra: Option<&Extra>,
    key: Option<Prepared>,
) -> Answer<Beginning> {
    let _gate = entry.pass().map_err(errors::answer)?;
    let _names = entry.names.write();
    cancel::check()?;
    if let Some(e) = extra {
        if is_there(run, entry, begin, e)? {
            return Ok(Beginning::There);
        }
    }
    let target = find_target(run, entry, begin, extra)?;
    check_features(entry, begin, target.what)?;
    let mut asked = Asked::of(run, entry, begin, extra, target.what)?;
    let recursive = extra.is_some_and(|e| e.recursive);
    asked.check_encryption(run, begin, recursive, target.what)?;
    if recursive && (target.head.is_some() || target.kept.is_some()) {
        asked.forget_encryption();
    }
    asked.check_location(begin, &target)?;
    if let Some(base) = &target.base {
        check_redacted(base, begin, list, target.what)?;
    }
    let owner = rights::is_owner(run.admin, run.peer);
    if run.r.dry_run && owner {
        return Ok(Beginning::Rehearsed(target));
    }
    let above = above_of(run, entry, &target)?;
    let brought = Brought::of(extra);
    permitted(run, entry, &target, above.as_ref(), &brought, None)?;
    if run.r.dry_run {
        return Ok(Beginning::Rehearsed(target));
    }
    let crypt = asked.crypt(run, extra);
    let full = target.base.is_none() && target.kept.is_none() && target.head.is_none();
    let derives = crypt.keyformat.is_some_and(|f| f != 0) && run.r.key.is_some();
    if full && begin.features & feature::RAW == 0 && derives && key.is_none() {
        return Ok(Beginning::NeedsKey(crypt));
    }
    let place = Place {
        target: &target,
        above: above.as_ref(),
        key,
    };
    let filling = start(run, entry, begin, list, place, extra, &asked)?;
    Ok(Beginning::Begun(Box::new((target, filling, asked))))
}

/// Where a stream goes, and the key that was made for it.
struct Place<'a> {
    target: &'a Target,
    /// See [`above_of`].
    above: Option<&'a Above>,
    key: Option<Prepared>,
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

/// Notes that a stream fills the dataset; the caller holds the gate.
fn occupy(run: &Run, entry: &PoolEntry, ds: &Dataset, target: &Target) -> Answer<UnderWay> {
    let of_user = !rights::is_owner(run.admin, run.peer);
    entry.streams.begin(ds.object(), of_user).ok_or_else(|| {
        words::sentence(
            Kind::Busy,
            target.what,
            format!("destination '{}' is busy", target.fs),
        )
    })
}

/// How a new dataset below `parent` is encrypted.
fn new_key(
    entry: &PoolEntry,
    parent: &Dataset,
    crypt: &CryptProps,
    prepared: Option<Prepared>,
    what: &str,
) -> Answer<Option<NewKey>> {
    let features = entry.pool.feature_counts();
    let enabled = features.is_enabled(dsl::crypto::ENCRYPTION);
    let new = keys::for_new(Some(&parent.dir()), enabled, crypt, prepared);
    let new = new.and_then(|key| match key {
        Some(_) => keys::need_ivsets(&**features).map(|()| key),
        None => Ok(None),
    });
    new.map_err(|e| match e.code == Kind::Access.errno() {
        true => words::sentence(Kind::Access, what, "inherited key must be loaded"),
        false => words::sentence(Kind::from_errno(e.code), what, e.message),
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
    run: &Run,
    entry: &PoolEntry,
    list: &BeginList,
    target: &Target,
    kept: &Arc<Dataset>,
    sealed: Option<Sealed>,
) -> Answer<Filling> {
    let what = target.what;
    let fail = |e: Error| words::stream(what, &e);
    let under_way = occupy(run, entry, kept, target)?;
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

/// Makes file systems, in a txg.
type Make = Box<dyn FnOnce(&pool::Pool, &dmu::Tx) -> Result<()> + Send>;

/// Makes the file systems above a new target that has most of its name from the stream (`-d`), as `zfs create -p` does, in
/// the txg in which the target begins.
fn parents(run: &Run, entry: &PoolEntry, above: Option<&Above>) -> Answer<Option<Make>> {
    match above.filter(|a| !a.missing.is_empty()) {
        Some(above) => {
            let make = create::make_parents(run.admin, entry, run.peer, above)?;
            Ok(Some(Box::new(make)))
        }
        None => Ok(None),
    }
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

/// What a dataset that has just been made for a stream gets before the data.
struct Opening {
    is_new: bool,
    base: Option<Arc<Dataset>>,
    seal: Option<Sealed>,
    redact: Option<Vec<u64>>,
    props: Option<NvList>,
    asked: Asked,
    by: By,
    os_type: u64,
    uid: u64,
}

impl Opening {
    /// Dresses it, and opens its object set.
    fn open(
        &self,
        (pool, tx): (&pool::Pool, &dmu::Tx),
        ds: &Arc<Dataset>,
        failed: &mut Unset,
    ) -> Result<Arc<Objset>> {
        if self.is_new {
            pool.dsl().give_creator(tx, ds, self.uid)?;
        }
        if let Some(snaps) = &self.redact {
            pool.dsl().mark_redacted(tx, ds, snaps)?;
        }
        // What is there already keeps its own until it has the data, too.
        if self.is_new {
            let props = self.props.as_ref();
            store((pool, tx), ds, props, &self.asked, &self.by, true, failed)?;
        }
        setters::note_content((pool, tx), ds, self.base.as_deref(), self.by.user)?;
        let version = self.seal.as_ref().map(|s| s.key.wrapped.version);
        let os = match (&self.base, &self.seal) {
            (Some(_), seal) => {
                ds.open_received(pool.receive_policy(ds, seal.is_some())?, version)?
            }
            (None, Some(s)) => {
                pool.new_raw_objset(tx, ds, self.os_type, (s.key.wrapped.version, s.meta))?
            }
            (None, None) => pool.new_objset(tx, ds, self.os_type)?,
        };
        if let Some(s) = &self.seal {
            os.set_raw(tx, &s.meta, &s.mac)?;
        }
        Ok(os)
    }
}

/// Refuses to write what is encrypted in the first format.
fn check_old_keys(target: &Target) -> Answer<()> {
    for ds in [&target.head, &target.base].into_iter().flatten() {
        let is_old = ds.dir().has_old_keys();
        if is_old.map_err(|e| words::stream(target.what, &e))? {
            let why = "it is encrypted in the first format, which is only read (errata 3)";
            return Err(words::sentence(Kind::ReadOnly, target.what, why));
        }
    }
    Ok(())
}

/// Makes the dataset that is filled, or finds the one that was filled in part.
fn start(
    run: &mut Run,
    entry: &Arc<PoolEntry>,
    begin: &Begin,
    list: &BeginList,
    place: Place<'_>,
    extra: Option<&Extra>,
    asked: &Asked,
) -> Answer<Filling> {
    let Place {
        target,
        above,
        key: prepared,
    } = place;
    let what = target.what;
    let fail = |e: Error| words::stream(what, &e);
    let raw = begin.features & feature::RAW != 0;
    let sealed = match raw {
        true => Some(Sealed::from_list(list).map_err(fail)?),
        false => None,
    };
    if let Some(sealed) = &sealed {
        keys::bounded(run.admin, run.peer, sealed.key.params)
            .map_err(|e| ApiError::reason(Kind::Invalid, format!("raw stream: {}", e.message)))?;
    }
    let version = sealed.as_ref().map(|s| s.key.wrapped.version);
    check_old_keys(target)?;
    if let Some(kept) = &target.kept {
        return go_on(run, entry, list, target, kept, sealed);
    }
    let resume = match run.r.resumable {
        true => Some(begun(begin, list)?),
        false => None,
    };
    let key = match (&target.base, above) {
        (None, Some(above)) if !raw => {
            let crypt = asked.crypt(run, extra);
            new_key(entry, &above.parent, &crypt, prepared, what)?
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
    let ci = begin.flags & begin_flag::CI_DATA != 0;
    let resumable = resume.is_some();
    let who = rights::caller(run.admin, entry, run.peer)?;
    let opening = Opening {
        is_new: head.is_none(),
        base: base.clone(),
        seal: sealed.clone(),
        redact,
        props: extra.and_then(|e| e.props.clone()),
        asked: asked.clone(),
        by: By::of(&who, None).map_err(fail)?,
        os_type: u64::from(begin.objset_type),
        uid: who.uid,
    };
    let make = parents(run, entry, above)?;
    let (ds, made, failed) = entry
        .pool
        .task(move |pool, tx| {
            if let Some(make) = make {
                make(pool, tx)?;
            }
            let parent = match name.rsplit_once('/') {
                Some((up, _)) if head.is_none() => Some(pool.dir(up)?),
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
                raw: opening.seal.as_ref().map(|s| &s.key),
                case_insensitive: ci,
                resume: resume.as_ref(),
                features: &features,
            };
            let ds = pool.receive_begin(tx, &r, version)?;
            let mut failed = Unset::new();
            // What is refused from here on leaves a dataset behind, which goes in a txg of its own.
            let made = opening.open((pool, tx), &ds, &mut failed);
            Ok((ds, made, failed))
        })
        .map_err(fail)?;
    if let Some(above) = above {
        let made = above.missing.iter();
        run.new.extend(made.map(|name| (name.clone(), None)));
    }
    let os = made.map_err(|e| give_up(entry, target, &ds, false, fail(e)))?;
    warn(run, target, failed);
    Ok(Filling {
        under_way: occupy(run, entry, &ds, target)?,
        ds,
        os,
        resumable,
        sealed,
    })
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

/// Asks again, at the end of a stream, whether it may be received: permissions may have been taken back, and the target may
/// have been protected, while it came.
fn still_permitted(
    run: &Run,
    entry: &Arc<PoolEntry>,
    begin: &Begin,
    target: &Target,
    filled: &Filled<'_>,
) -> Answer<()> {
    let above = match (&target.head, filled.ds.dir().parent()) {
        (None, Some(up)) => Some(Above {
            parent: up.head().map_err(errors::answer)?,
            missing: Vec::new(),
        }),
        _ => None,
    };
    let brought = filled.late.brought();
    let filling = Some(filled.ds);
    permitted(run, entry, target, above.as_ref(), &brought, filling)?;
    match &target.head {
        Some(head) => look_again(run, entry, begin, head, filled.ds),
        None => Ok(()),
    }
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
    let gate = entry.pass_unless_cancelled().map_err(errors::answer)?;
    let names = entry.names.write();
    still_permitted(run, entry, begin, target, filled)?;
    let head = target.head.as_ref().unwrap_or(filled.ds).clone();
    // It keeps its name while a stream fills it; whatever happened, what is said and stored is about this one.
    let name = head.full_name();
    let fail = |e: Error| words::into(target.what, &name, &e);
    let mut mounted = None;
    if target.head.is_some() {
        entry.close_in_ctldirs(head.object());
        for (_, object) in head.snapshot_names().map_err(fail)? {
            entry.close_in_ctldirs(object);
        }
        mounted = entry.mounted(head.object());
        // What comes has no power from its first moment on, if it is to have none.
        set::refresh(entry, std::slice::from_ref(&head));
    }
    let dressed = match mounted {
        // What programs have written is a change of the target, or given up with the others.
        Some(m) if !m.mount.wait_if_gone() => {
            m.replace(|| end_in_txg(run, entry, begin, target, filled).map_err(fail))?
        }
        _ => entry.volumes.change(head.object(), || {
            end_in_txg(run, entry, begin, target, filled).map_err(fail)
        })?,
    };
    match dressed {
        Ok(failed) => warn(run, target, failed),
        Err(e) => {
            let text = format!("cannot receive properties on {name}: {e}");
            run.warnings.push(text);
        }
    }
    if target.head.is_none() {
        run.new.push((name, Some(head.object())));
    }
    set::refresh(entry, std::slice::from_ref(&head));
    drop((names, gate));
    set::tell_kernel(entry, &[head]);
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
        if mutated(Mutation::LeftLogFreedEarly) {
            destroy::free_log(entry, head)?;
        }
    }
    let who = rights::caller(run.admin, entry, run.peer);
    let who = who.map_err(|e| Error::new(Kind::from_errno(e.code), e.message))?;
    let by = By::of(&who, target.head.as_ref())?;
    let (command, uid) = (run.command(), u64::from(run.peer.uid));
    let (head, ds) = (target.head.clone(), filled.ds.clone());
    let late = filled.late.clone();
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
        if let Some(head) = head.as_ref().filter(|_| !force) {
            if pool.is_unplayed(head)? {
                return Err(Error::new(Kind::Busy, unplayed(&head.full_name())));
            }
        }
        // A log that a crash left behind goes with the content of the target, and not before.
        let log = head.as_ref().map(|h| pool.left_log(h)).transpose()?;
        let snap = pool.dsl().receive_end(tx, &end)?;
        if let Some(Err(e)) = log.map(|log| log.free(tx)) {
            pool.stop_for_good(e.clone());
            return Err(e);
        }
        // The snapshot is there, whatever is wrong with what is to be said of it.
        let head = head.as_ref().unwrap_or(&ds);
        let marked = setters::note_content((pool, tx), head, None, by.user);
        let dressed = late.store((pool, tx), head, &snap, &by);
        pool.log_in(tx, &command, uid)?;
        Ok(marked.and(dressed))
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
        .task(move |pool, tx| pool.dsl().receive_abandon(tx, &gone));
    if let Err(e) = r {
        tracing::error!("{}: what was received in part stays: {e}", ds.full_name());
    }
    why
}
