//! The intent log behind [`IntentLog`]: records of this layer into crate `zil`, and back at replay.

use crate::log::{IntentLog, Record, RenameKind};
use crate::replay::ReplayData;
use crate::zfs::Zfs;
use base::mutation::{mutated, Mutation};
use base::{Error, Kind, Result, Txg};
use disk::bytes::u64_at;
use disk::zil::{Body, Record as Raw, WriteData};
use dmu::{Dmu, Objset, Tx, UnreadRests};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use zil::{Committed, Form, Itx, Policy, RawRecord, Replayer, Zil};

/// A commit that would log so many bytes of a txg that is being written anyway waits for it, instead of
/// writing them once more.
const LATE: u64 = 256 << 10;
/// A commit that would log so many bytes of the open txg has the txg written: the blocks go to their places
/// in large batches, once, on all cores.
const BULK: u64 = 8 << 20;
/// Both only if the txg moves at most so many times the bytes that the log would. A txg moves more where
/// others changed much, and where small parts of blocks were changed, since blocks are written whole.
const SHARE: u64 = 4;

/// The intent log of one mounted dataset.
pub struct ZilLog {
    zil: Arc<Zil>,
    dmu: Arc<Dmu>,
    rests: Arc<UnreadRests>,
    /// Newest txg with a change that no record describes: an fsync waits for it.
    unlogged: AtomicU64,
    /// `logbias=throughput`
    throughput: AtomicBool,
    /// The pool has a dedicated log device.
    slog: bool,
}

impl ZilLog {
    /// The log of `os`; `slog`: the pool has log devices.
    pub fn new(zil: Arc<Zil>, os: &Objset, slog: bool) -> ZilLog {
        ZilLog {
            zil,
            dmu: os.dmu().clone(),
            rests: os.unread_rests().clone(),
            // What was changed before may have had no record either.
            unlogged: AtomicU64::new(os.newest_dirty().number()),
            throughput: AtomicBool::new(false),
            slog,
        }
    }

    /// Follows the property `logbias`.
    pub fn set_throughput(&self, on: bool) {
        self.throughput.store(on, Ordering::Relaxed);
    }

    fn through(&self, txg: Txg) -> Result<()> {
        match self.dmu.driver() {
            Some(d) => d.sync_through(txg),
            None => Err(Kind::Stale.into()),
        }
    }

    /// The itxs of a write: one, or one for each block where the blocks are logged by pointer.
    fn write_itxs(&self, rec: &Record) -> Vec<Itx> {
        let Record::Write {
            object,
            gen,
            offset,
            len,
            sync,
            block,
        } = *rec
        else {
            return Vec::new();
        };
        let policy = Policy {
            throughput: self.throughput.load(Ordering::Relaxed),
            slog: self.slog,
            commit_now: sync,
            block_size: block as u64,
        };
        // A copy made now would save a look at the file later; the data are in memory either way,
        // so small writes are fetched when they are needed.
        let indirect = zil::write_form(&policy, len) == Some(true) && block > 0;
        let mut out = Vec::new();
        let (mut at, end) = (offset, offset.saturating_add(len));
        while at < end {
            let n = match indirect {
                true => (end - at).min(block as u64 - at % block as u64),
                false => end - at,
            };
            let form = if indirect {
                Form::Indirect {
                    block: block as u64,
                }
            } else {
                Form::NeedCopy
            };
            let body = zil::Body::Write {
                generation: gen,
                offset: at,
                length: n,
                form,
            };
            out.push(Itx {
                object,
                ordered: sync,
                body,
            });
            at += n;
        }
        out
    }

    /// The record as an itx; `None` if there is no record for it.
    fn itx(&self, rec: &Record) -> Option<Itx> {
        // Names are ordered among each other; changes of one object wait for a commit of it. Flags and projects are
        // ordered, too: what becomes of names depends on them.
        let (object, ordered) = match *rec {
            Record::SetAttr {
                object,
                extended: Some(_),
                ..
            } => (object, true),
            Record::Truncate { object, .. }
            | Record::SetAttr { object, .. }
            | Record::SetAcl { object, .. }
            | Record::SetSaXattr { object, .. } => (object, false),
            Record::Rename { object, .. } => (object, true),
            _ => (0, true),
        };
        // Extended attributes have a record only where the dataset's feature allows it; they wait
        // for their txg instead, which needs no feature.
        if matches!(rec, Record::SetSaXattr { .. }) {
            return None;
        }
        let body = rec.to_body()?;
        let raw = Raw {
            txg: Txg::NONE,
            seq: 0,
            ignore_case: false,
            body,
        };
        Some(Itx {
            object,
            ordered,
            body: zil::Body::Record(raw.encode()),
        })
    }
}

impl IntentLog for ZilLog {
    fn log(&self, tx: &Tx, rec: Record) {
        if self.zil.is_replaying() {
            self.zil.replayed(tx.txg());
            return;
        }
        if matches!(rec, Record::Write { .. }) {
            for i in self.write_itxs(&rec) {
                self.zil.log(tx.txg(), i);
            }
            return;
        }
        if let Record::Rename {
            kind: RenameKind::Exchange(other),
            ..
        } = rec
        {
            // The itx takes the content of one along.
            if !mutated(Mutation::ExchangeTakesOne) {
                self.zil.promote(other);
            }
        }
        match self.itx(&rec) {
            Some(i) => self.zil.log(tx.txg(), i),
            None => {
                self.unlogged
                    .fetch_max(tx.txg().number(), Ordering::Relaxed);
            }
        }
    }

    fn unlogged(&self, tx: &Tx) {
        if self.zil.is_replaying() {
            self.zil.replayed(tx.txg());
            return;
        }
        self.unlogged
            .fetch_max(tx.txg().number(), Ordering::Relaxed);
        // A commit that has looked at the number already comes to this.
        let itx = Itx {
            object: 0,
            ordered: true,
            body: zil::Body::Unlogged,
        };
        self.zil.log(tx.txg(), itx);
    }

    fn commit(&self, object: Option<u64>) -> Result<()> {
        if let Some(why) = self.dmu.stopped() {
            // Nothing more reaches a disk, so nothing can be promised.
            return Err(why);
        }
        let unlogged = Txg::new(self.unlogged.load(Ordering::Relaxed));
        if unlogged > self.dmu.synced_txg() {
            // Everything of that txg and before is then on disk; later records go to the log.
            self.through(unlogged)?;
        }
        if !self.slog {
            let open = self.dmu.open_txg();
            let (mut late, mut bulk) = ((Txg::NONE, 0), 0u64);
            for (txg, bytes) in self.zil.data(object) {
                match txg < open {
                    true => late = (txg, late.1 + bytes),
                    false => bulk += bytes,
                }
            }
            let most =
                |txg, bytes: u64| bytes.saturating_mul(SHARE) >= self.dmu.bytes_to_write(txg);
            if bulk >= BULK && most(open, bulk) {
                return self.through(open);
            }
            if late.1 >= LATE && most(late.0, late.1) {
                self.through(late.0)?;
            }
        }
        if !self.rests.read(object) {
            // A record over such a block could not be replayed. The txg finds the block readable, or loses the change and
            // marks the object.
            return self.through(self.dmu.open_txg());
        }
        match self.zil.commit(object) {
            Committed::Durable => Ok(()),
            Committed::NeedTxgSync => self.through(self.dmu.open_txg()),
        }
    }

    fn wait(&self, txg: Txg) -> Result<()> {
        self.through(txg)
    }
}

pub(crate) struct Redo<'a> {
    zfs: &'a Zfs,
    /// Where the last block ends that was replayed whole, by object. A block that was written in place
    /// may hold more than its record speaks of: of writes that came while it was on its way, whose
    /// own records may be in the log further on, or nowhere. Behind the end of the file nothing of
    /// that may stay.
    blocks: BTreeMap<u64, u64>,
    /// Records that were passed over because of damage. What follows from one of them cannot be done either: its names are
    /// missing.
    passed: u64,
}

impl<'a> Redo<'a> {
    /// Nothing is replayed yet.
    pub fn new(zfs: &'a Zfs) -> Redo<'a> {
        Redo {
            zfs,
            blocks: BTreeMap::new(),
            passed: 0,
        }
    }

    /// Whether the record is passed over: a damaged directory, which is on record then, is no reason to lose the names in
    /// others.
    fn passes(&mut self, e: &Error) -> bool {
        let follows = matches!(
            e.kind,
            Kind::NotFound | Kind::Stale | Kind::Exists | Kind::NotEmpty
        );
        let passes = e.is_wrong_content() || self.passed > 0 && follows;
        self.passed += u64::from(passes);
        passes
    }

    fn note(&mut self, raw: &RawRecord) {
        let Some(bp) = raw.write_bp() else { return };
        let (size, offset) = (bp.lsize() as u64, u64_at(&raw.bytes, 40).unwrap_or(0));
        let end = (offset / size.max(1))
            .saturating_add(1)
            .saturating_mul(size);
        let known = self.blocks.entry(raw.object()).or_default();
        *known = end.max(*known);
    }
}

impl Replayer for Redo<'_> {
    fn object_exists(&mut self, object: u64) -> Result<bool> {
        match self.zfs.objset().hold(object) {
            Ok(_) => Ok(true),
            Err(e) if e.kind == Kind::NotFound => Ok(false),
            // What its file has lost is on record; the others must not wait for it.
            Err(e) if e.is_wrong_content() => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn replay(&mut self, record: &zil::Record) -> Result<()> {
        let (r, _) = Raw::decode(&record.raw.bytes)?;
        if let Body::Extend { object, .. } = r.body {
            return self.zfs.replay_extend(object, record.end);
        }
        let indirect = matches!(
            &r.body,
            Body::Write {
                data: WriteData::Indirect(_),
                ..
            }
        );
        for rec in Record::from_body(r.body, self.zfs.pool_version)? {
            let data = matches!(rec, Record::Write { .. }).then(|| match indirect {
                true => ReplayData::Block {
                    offset: record.data_offset,
                    data: &record.data,
                },
                false => ReplayData::Copied(&record.data),
            });
            match self.zfs.replay(&rec, data) {
                Err(e) if self.passes(&e) => {
                    let seq = record.raw.seq;
                    tracing::warn!(seq, "a record of the intent log is passed over: {e}");
                }
                r => r?,
            }
        }
        self.note(&record.raw);
        Ok(())
    }

    fn seen_before(&mut self, raw: &RawRecord) {
        self.note(raw);
    }

    fn finish(&mut self) -> Result<()> {
        for (object, end) in &self.blocks {
            match self.zfs.clean_behind(*object, *end) {
                Err(e) if matches!(e.kind, Kind::NotFound | Kind::Stale) => {}
                Err(e) if e.is_wrong_content() => {}
                r => r?,
            }
        }
        Ok(())
    }
}

impl Zfs {
    /// Replays what a crash left in the log, or disposes of an empty one. Everything replayed is on
    /// disk when this returns. The file system must have been opened with a [`ZilLog`] over `zil`.
    ///
    /// Errors: those of [`Zil::replay`], and that a record cannot be applied. After one that may pass
    /// ([`base::Error::may_pass`]) the log is still there. The file system must not be used then.
    pub fn replay_log(&self, zil: &Zil) -> Result<()> {
        if !zil.needs_replay() {
            return zil.start();
        }
        self.begin_replay();
        // Until all of it is on disk; also behind an error, for what was replayed before.
        self.objset().set_replaying(true);
        let r = zil.replay(&mut Redo::new(self));
        self.end_replay();
        let done = r.map_err(|e| {
            e.context("the intent log cannot be replayed now and is kept, since it holds changes that were acknowledged")
        })?;
        let dmu = self.objset().dmu();
        let synced = match dmu.driver() {
            Some(d) => d.sync_through(dmu.open_txg()),
            None => Ok(()),
        };
        if synced.is_ok() {
            // The log is gone: it has no change any more that a txg could be kept from giving up.
            self.objset().set_replaying(false);
        }
        match done.failed {
            Some((seq, ty, e)) => Err(e.context(format!(
                "intent log record {seq} (type {ty}) cannot be replayed"
            ))),
            None => synced,
        }
    }
}
