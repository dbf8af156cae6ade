//! Corrective receive (`zfs receive -c`): the stream of an existing snapshot repairs its damaged blocks.

use super::target::{check_features, exists, target_name, Extra};
use super::{sent_name, words, Run};
use crate::datasets::rights::{self, Action};
use crate::datasets::{self, Answer};
use crate::registry::PoolEntry;
use crate::{cancel, errors};
use base::{Error, Kind, Result};
use disk::stream::{begin_flag, feature, Begin, Record};
use dsl::Dataset;
use std::io::Read;
use std::sync::Arc;
use stream::send::Source;
use stream::{HealedBlock, Healer, Reader, Rules};

/// Begins the sentences about it.
const WHAT: &str = "cannot receive corrective stream";

/// Heals the snapshot that a stream is of with it. Returns the name of its file system.
pub(super) fn receive<R: Read>(
    run: &mut Run,
    reader: &mut Reader<R>,
    begin: &Begin,
    extra: Option<&Extra>,
) -> Answer<String> {
    words::features(begin)?;
    let entry = datasets::entry_of(run.admin, &run.r.target)?;
    let refuse = |kind, why: &str| Err(words::sentence(kind, WHAT, why));
    let fail = |e: Error| words::stream(WHAT, &e);
    let raw = begin.features & feature::RAW != 0;
    let (fs, short) = target_name(run, begin, extra)?;
    let full = format!("{fs}@{short}");
    let (source, under_way) =
        {
            let _gate = entry.pass().map_err(errors::answer)?;
            let _names = entry.names.write();
            cancel::check()?;
            let Some(snap) = exists(&entry, &full)? else {
                return refuse(Kind::NotFound, &format!("snapshot '{full}' does not exist"));
            };
            rights::require(
                run.admin,
                &entry,
                run.peer,
                Action::Receive { force: false },
                &snap,
            )?;
            check_features(&entry, begin, WHAT)?;
            if snap.phys().guid != begin.to_guid {
                return refuse(
                    Kind::Unsupported,
                    "stream is not compatible with the data in the pool.",
                );
            }
            match snap.dir().key_loaded().map_err(fail)? {
                None if raw => return refuse(Kind::Invalid, "invalid backup stream"),
                Some(_) if begin.features & feature::EMBED_DATA != 0 => {
                    return refuse(Kind::Invalid, "invalid backup stream")
                }
                Some(false) if !raw => return refuse(
                    Kind::Access,
                    "key must be loaded to do a non-raw corrective recv on an encrypted dataset.",
                ),
                _ => {}
            }
            let of_user = !rights::is_owner(run.admin, run.peer);
            let Some(under_way) = entry.streams.begin(snap.object(), of_user) else {
                return refuse(Kind::Busy, &format!("destination '{full}' is busy"));
            };
            (Source::open(&snap).map_err(fail)?, under_way)
        };
    if run.r.verbose || run.r.dry_run {
        let doing = match run.r.dry_run {
            true => "would receive",
            false => "receiving",
        };
        let (sent, sent_snap) = sent_name(begin)?;
        (run.tell)(format!(
            "{doing} corrective stream of {sent}@{sent_snap} into {full}"
        ));
    }
    let snap = source.dataset().clone();
    let rules = Rules {
        features: begin.features,
        swapped: reader.is_swapped(),
        spill_known: begin.flags & begin_flag::SPILL_BLOCK != 0,
        full: false,
        embedded: false,
        raw,
    };
    let level = entry.pool.write_policy(&snap).map_err(fail)?.zstd_level;
    let mut healer = Healer::new(source.objset(), rules, level);
    let _ended = cancel::ended_by(under_way.flag());
    let done = records(reader, begin, &mut healer, run.r.dry_run);
    let healed = std::mem::take(&mut healer.healed);
    let (lost, why) = (healer.lost, healer.why.take());
    // What was healed before the stream broke off stays so.
    let noted = note(run, &entry, &snap, healed.clone());
    done.and(noted).map_err(fail)?;
    if run.r.verbose && !run.r.dry_run {
        (run.tell)(format!("healed {} damaged blocks of {full}", healed.len()));
    }
    match (lost, why) {
        (0, _) => Ok(fs),
        (n, why) => {
            let first = why.map_or_else(String::new, |e| format!(": {e}"));
            let text = format!("{n} damaged blocks of {full} could not be healed{first}");
            Err(words::sentence(Kind::Checksum, WHAT, text))
        }
    }
}

/// Applies all records up to END.
fn records<R: Read>(
    reader: &mut Reader<R>,
    begin: &Begin,
    healer: &mut Healer<'_>,
    dry_run: bool,
) -> Result<()> {
    loop {
        if cancel::is_cancelled() {
            return Err(Error::new(Kind::Interrupted, "the receive was cancelled"));
        }
        let Some(item) = reader.next()? else {
            return Err(Error::new(Kind::NoData, "incomplete stream"));
        };
        match &item.record {
            Record::End(end) if end.to_guid != begin.to_guid => {
                return Err(Error::new(Kind::Invalid, "END record of another stream"))
            }
            Record::End(_) => return healer.flush(),
            _ if dry_run => reader.recycle(item.payload),
            record => healer.apply(record, item.payload)?,
        }
    }
}

/// Takes healed blocks off the list of errors, and records the command. The repairs are on stable storage then.
fn note(
    run: &mut Run,
    entry: &Arc<PoolEntry>,
    snap: &Arc<Dataset>,
    healed: Vec<HealedBlock>,
) -> Result<()> {
    if run.r.dry_run {
        return Ok(());
    }
    let (command, uid) = (run.command(), u64::from(run.peer.uid));
    let blocks: Vec<_> = healed.iter().map(|h| (h.object, h.blkid, h.bp)).collect();
    let _gate = entry.pass_unless_cancelled()?;
    entry.pool.forget_damage(snap, &blocks)?;
    entry
        .pool
        .task(move |pool, tx| pool.log_in(tx, &command, uid))
}
