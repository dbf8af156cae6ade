//! Sending a snapshot (data format §30.4).
//!
//! [`send`] traverses a snapshot once and writes its stream; [`measure`] traverses it without reading data and tells
//! how long the stream would be.
//!
//! # Invariants
//! 1. The stream is a function of the snapshot, the base and the options alone: sent twice it has the same bytes, and
//!    the same as OpenZFS's. One difference is on purpose: a spill block that is embedded in its block pointer is sent
//!    as SPILL, since OpenZFS's WRITE_EMBEDDED for it is lost by every receiver.
//! 2. The object set of the snapshot stays open while its stream is written, so that it cannot be destroyed.
//! 3. A block that cannot be read ends the stream without END: what was received of it stays incomplete.
//!
//! Modules: `begin` makes the first record, `collect` visits and finds, `fetch` reads ahead, `emit` makes records,
//! `redacted` follows redaction lists. Start reading at [`send`].

mod begin;
mod collect;
mod emit;
mod fetch;
mod item;
mod redacted;

use crate::Writer;
use base::{bail, Result, Txg};
use collect::{Collector, Start};
use disk::dsl::BookmarkPhys;
use disk::stream::{feature, Begin, Record};
use dmu::Objset;
use dsl::{Dataset, Dsl, InUse, RedactionList};
use emit::{Emitter, Out};
use fetch::Fetcher;
use redacted::Cursor;
use std::io::Write;
use std::sync::Arc;
use walk::{Births, Holes, Order, Spec, Zbookmark};
use zio::Crypt;

/// Where records go: a [`Writer`].
pub trait Sink {
    /// Writes a record, not END.
    fn record(&mut self, record: &Record, payload: &[u8]) -> Result<()>;
}

impl<W: Write> Sink for Writer<W> {
    fn record(&mut self, record: &Record, payload: &[u8]) -> Result<()> {
        self.write(record, payload)
    }
}

/// The snapshot or bookmark an incremental stream is based on.
#[derive(Clone, Default)]
pub struct Base {
    /// Guid of the snapshot.
    pub guid: u64,
    /// When it was made: only what was born later is sent.
    pub txg: Txg,
    /// Identifies its set of IVs; 0 if it is not encrypted.
    pub ivset_guid: u64,
    /// It is a snapshot of another file system: the origin.
    pub is_origin: bool,
    /// Snapshots of the redaction bookmark, or of the redacted dataset, if it is one.
    pub redact_snaps: Option<Vec<u64>>,
    /// What the base lacks.
    pub redacted: Option<Arc<RedactionList>>,
}

/// What of a snapshot is sent, and how.
#[derive(Clone, Default)]
pub struct SendSpec {
    /// `None`: all of it.
    pub base: Option<Base>,
    /// Name in the stream, `pool/fs@snap`.
    pub name: String,
    /// Guid in the stream, if it is not that of the dataset: that of the snapshot of which a receive was interrupted.
    pub guid: Option<u64>,
    /// Blocks of more than 128 KiB in one piece (`-L`).
    pub large_blocks: bool,
    /// Blocks embedded in their pointers as they are (`-e`).
    pub embedded: bool,
    /// Data compressed as stored (`-c`).
    pub compressed: bool,
    /// Encrypted blocks as stored (`-w`); for a dataset that is not encrypted the three above.
    pub raw: bool,
    /// What a receive that was interrupted kept: the stream has no END.
    pub saved: bool,
    /// Object and offset at which an interrupted stream goes on.
    pub resume: Option<(u64, u64)>,
    /// Blocks to be left out.
    pub redact: Option<Arc<RedactionList>>,
}

/// A dataset that is being sent, or about to be. While it exists the dataset is in use.
pub struct Source {
    ds: Arc<Dataset>,
    os: Arc<Objset>,
    kept: InUse,
}

impl Source {
    /// Opens a snapshot, or a head (which must not change while it is sent).
    ///
    /// # Errors
    /// Those of reading it.
    pub fn open(ds: &Arc<Dataset>) -> Result<Source> {
        let os = ds.open_objset(dmu::WritePolicy::default(), true)?;
        Ok(Source {
            ds: ds.clone(),
            os,
            kept: ds.keep(),
        })
    }

    /// Closes it: the dataset stays in use, and next to nothing of it in memory. [`InUse::dataset`] is it again.
    pub fn close(self) -> InUse {
        self.kept
    }

    /// The dataset.
    pub fn dataset(&self) -> &Arc<Dataset> {
        &self.ds
    }

    /// Its object set.
    pub fn objset(&self) -> &Objset {
        &self.os
    }

    /// Type of the object set (`os_type`).
    pub fn objset_type(&self) -> u64 {
        self.os.os_type()
    }

    /// The first record of the stream, with its payload: a list in the native encoding, as kernels write it.
    ///
    /// # Errors
    /// [`base::Kind::Access`]: the key of an encrypted dataset is not loaded and the stream is not raw;
    /// [`base::Kind::Unsupported`]: the dataset has something that needs another option.
    pub fn begin(&self, spec: &SendSpec, features: &dyn dsl::Features) -> Result<(Begin, Vec<u8>)> {
        let (mut begin, list) = begin::begin(&self.ds, &self.os, spec, features)?;
        let payload = match list.is_empty() {
            true => Vec::new(),
            false => list.pack_native(),
        };
        begin.list_len = payload.len() as u32;
        Ok((begin, payload))
    }
}

/// Writes the stream of a dataset: BEGIN, its records, END. `check` is asked now and then; its error ends the stream.
///
/// # Errors
/// Those of [`Source::begin`]; those of reading the snapshot, of the output, and of `check`.
pub fn send<W: Write>(
    source: &Source,
    spec: &SendSpec,
    features: &dyn dsl::Features,
    out: &mut Writer<W>,
    check: &mut dyn FnMut() -> Result<()>,
) -> Result<()> {
    let (begin, list) = source.begin(spec, features)?;
    out.write(&Record::Begin(begin.clone()), &list)?;
    run(source, spec, begin.features, Out::Stream(out), check)?;
    if !spec.saved {
        out.end(begin.to_guid)?;
    }
    Ok(())
}

/// Bytes of the stream that [`send`] would write. Reads metadata only.
///
/// # Errors
/// Those of [`send`].
pub fn measure(
    source: &Source,
    spec: &SendSpec,
    features: &dyn dsl::Features,
    check: &mut dyn FnMut() -> Result<()>,
) -> Result<u64> {
    let (begin, list) = source.begin(spec, features)?;
    let records = run(source, spec, begin.features, Out::Count(0), check)?;
    let ends = if spec.saved { 1 } else { 2 };
    Ok(records + list.len() as u64 + ends * disk::stream::RECORD as u64)
}

/// The records between BEGIN and END; returns their bytes if they are counted.
fn run(
    source: &Source,
    spec: &SendSpec,
    features: u64,
    out: Out,
    check: &mut dyn FnMut() -> Result<()>,
) -> Result<u64> {
    let os = &*source.os;
    let after = spec.base.as_ref().map_or(Txg::NONE, |b| b.txg);
    // Raw: nothing is decrypted, whether the key is there or not.
    let crypt = match features & feature::RAW != 0 {
        true => Crypt::Locked,
        false => os.crypt().clone(),
    };
    let dry = matches!(out, Out::Count(_));
    let guid = spec.guid.unwrap_or(source.ds.phys().guid);
    let (resume_object, resume) = match spec.resume {
        None | Some((0, 0)) => (0, None),
        Some((object, offset)) => (object, Some(place(os, object, offset)?)),
    };
    let mut collector = Collector::new(Start {
        os,
        features,
        fetcher: Fetcher::new(os.dmu(), crypt.clone(), features, dry),
        emitter: Emitter::new(out, guid, features, after),
        resume_object,
        check,
    });
    collector.redact = spec.redact.clone().map(Cursor::new);
    let lacking = spec.base.as_ref().and_then(|b| b.redacted.clone());
    collector.lacking = lacking.map(Cursor::new);
    if let Some(at) = &resume {
        collector.pass_to((at.object, at.blkid))?;
    }
    let walk_spec = Spec {
        after,
        births: Births::Logical,
        order: Order::ParentsFirst,
        holes: Holes::All,
        crypt: &crypt,
        resume,
        in_use: zio::InUse::Now,
    };
    walk::walk(&os.dmu().zio, &os.root(), &walk_spec, &mut collector)?;
    collector.finish()?;
    Ok(match collector.emitter.out {
        Out::Count(n) => n,
        Out::Stream(_) => 0,
    })
}

/// Where a traversal goes on that had sent everything of an object up to an offset.
fn place(os: &Objset, object: u64, offset: u64) -> Result<Zbookmark> {
    // An object that is not there any more, or never was: what comes behind it.
    let size = match os.hold(object) {
        Ok(dn) => dn.info().block_size as u64,
        Err(e) if e.kind == base::Kind::NotFound => 1,
        Err(e) => return Err(e),
    };
    if size == 0 {
        bail!(Damaged, "object {object} has no block size");
    }
    Ok(Zbookmark {
        object,
        level: 0,
        blkid: offset / size,
    })
}

impl Base {
    /// A snapshot. `is_origin`: of another file system than the one that is sent.
    ///
    /// # Errors
    /// Those of reading it.
    pub fn of_snapshot(snap: &Dataset, is_origin: bool) -> Result<Base> {
        let phys = snap.phys();
        Ok(Base {
            guid: phys.guid,
            txg: phys.creation_txg,
            ivset_guid: snap.ivset_guid()?.unwrap_or(0),
            is_origin,
            redact_snaps: snap.redact_snaps()?,
            redacted: None,
        })
    }

    /// A bookmark. `is_origin` as for snapshots.
    ///
    /// # Errors
    /// Those of reading its redaction list.
    pub fn of_bookmark(dsl: &Dsl, mark: &BookmarkPhys, is_origin: bool) -> Result<Base> {
        let redacted = match mark.redaction_obj {
            0 => None,
            o => Some(Arc::new(dsl.redaction_list(o)?)),
        };
        Ok(Base {
            guid: mark.guid,
            txg: mark.creation_txg,
            ivset_guid: mark.ivset_guid,
            is_origin,
            redact_snaps: redacted.as_ref().map(|r| r.snaps().to_vec()),
            redacted,
        })
    }
}
