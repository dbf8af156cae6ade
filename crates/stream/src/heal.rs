//! Healing a snapshot with the stream of the same snapshot (`zfs receive -c`, data format §31): blocks of
//! data that cannot be read get the content that the stream has.
//!
//! 1. Nothing but damaged blocks is written, and these only with bytes that the checksum in their pointer
//!    confirms ([`zio::Zio::restore`]). So no stream, whoever made it, changes what a snapshot says.
//! 2. Pointers are taken from the snapshot, which must be kept while this runs. Records about what it does
//!    not have are passed over.
//! 3. A block of which the stream has several records is healed when all of them have come, in order.

use crate::Rules;
use base::{Error, Kind, Result};
use codec::compress;
use disk::stream::{self, Record};
use disk::{BlkPtr, Compression, ObjType};
use dmu::{Dnode, Objset};
use std::sync::Arc;
use zio::Scrubbed;

/// Blocks looked at in one batch.
const BATCH_BLOCKS: usize = 64;
/// Their bytes in the stream.
const BATCH_BYTES: usize = 4 << 20;

/// Number that stands for the spill block of an object.
pub const SPILL: u64 = u64::MAX;

/// A block of the snapshot.
#[derive(Clone, Copy, Debug)]
pub struct HealedBlock {
    /// Its object.
    pub object: u64,
    /// Number in the object, or `u64::MAX` for a spill block.
    pub blkid: u64,
    /// Its pointer.
    pub bp: BlkPtr,
}

/// How the bytes of a record are to be understood.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// As stored: encrypted or only authenticated.
    Raw,
    /// Compressed by this algorithm.
    Packed(Compression),
    /// The content.
    Plain,
}

struct Candidate {
    block: HealedBlock,
    data: Vec<u8>,
    form: Form,
}

/// The beginning of a block that comes in several records.
struct Part {
    object: u64,
    blkid: u64,
    data: Vec<u8>,
}

/// What healing with a stream has come to.
pub struct Healer<'a> {
    os: &'a Objset,
    rules: Rules,
    /// Level code of zstd that the dataset uses now.
    level: u8,
    last: Option<Arc<Dnode>>,
    pending: Vec<Candidate>,
    pending_bytes: usize,
    part: Option<Part>,
    /// Blocks that were damaged and are whole again.
    pub healed: Vec<HealedBlock>,
    /// Blocks that are damaged still, with the reason for the first.
    pub lost: u64,
    /// Why the first of them could not be healed.
    pub why: Option<Error>,
}

impl<'a> Healer<'a> {
    /// `os` is the object set of the snapshot; `level`: the code of zstd to be tried first.
    pub fn new(os: &'a Objset, rules: Rules, level: u8) -> Healer<'a> {
        Healer {
            os,
            rules,
            level,
            last: None,
            pending: Vec::new(),
            pending_bytes: 0,
            part: None,
            healed: Vec::new(),
            lost: 0,
            why: None,
        }
    }

    /// Looks at the block that a record is about, or at those it has parts of.
    ///
    /// # Errors
    /// Those of a stream that makes no sense, and of a pool that cannot be written to. Damage that stays is
    /// counted.
    pub fn apply(&mut self, record: &Record, payload: Vec<u8>) -> Result<()> {
        match record {
            Record::Write(r) => self.write(r, payload),
            Record::WriteEmbedded(r) => self.embedded(r, &payload),
            Record::Spill(r) => self.spill(r, payload),
            // What there is and what is free is in the snapshot.
            _ => Ok(()),
        }
    }

    /// The object of a record, if the snapshot has it.
    fn hold(&mut self, object: u64) -> Option<Arc<Dnode>> {
        if let Some(dn) = self.last.as_ref().filter(|dn| dn.object() == object) {
            return Some(dn.clone());
        }
        // Of an object whose dnode is damaged no block can be found.
        self.last = self.os.hold(object).ok();
        self.last.clone()
    }

    fn write(&mut self, r: &stream::Write, payload: Vec<u8>) -> Result<()> {
        let Some(dn) = self.hold(r.object) else {
            return Ok(());
        };
        let size = dn.info().block_size as u64;
        let ty = ObjType(r.obj_type as u8);
        let whole = r.logical_size == size && r.offset % size == 0;
        if self.rules.raw {
            return match whole {
                true => self.look_at(&dn, r.offset / size, payload, Form::Raw),
                false => Ok(()),
            };
        }
        if r.compression != 0 && whole && !self.rules.swapped {
            let form = Form::Packed(Compression::new(r.compression));
            return self.look_at(&dn, r.offset / size, payload, form);
        }
        let mut content = match r.compression {
            0 => payload,
            alg => unpack(Compression::new(alg), &payload, r.logical_size)?,
        };
        if self.rules.swapped {
            zio::swap::block(ty, 0, &mut content)?;
        }
        self.content(&dn, r.offset, content)
    }

    fn embedded(&mut self, r: &stream::WriteEmbedded, payload: &[u8]) -> Result<()> {
        let data = payload.get(..r.psize as usize).unwrap_or_default();
        let mut content = match Compression::new(r.compression) {
            Compression::OFF => data.to_vec(),
            alg => unpack(alg, data, u64::from(r.lsize))?,
        };
        let len = usize::try_from(r.length).unwrap_or(usize::MAX);
        if len > base::MAX_BLOCK {
            return Err(Error::new(Kind::Invalid, "embedded block that is too long"));
        }
        content.resize(len, 0);
        let Some(dn) = self.hold(r.object) else {
            return Ok(());
        };
        // The spill block of an object, as OpenZFS sends it.
        if r.offset == 0u64.wrapping_sub(r.length.wrapping_mul(2)) {
            return self.look_at(&dn, SPILL, content, Form::Plain);
        }
        if self.rules.swapped {
            zio::swap::block(dn.obj_type(), 0, &mut content)?;
        }
        self.content(&dn, r.offset, content)
    }

    fn spill(&mut self, r: &stream::Spill, payload: Vec<u8>) -> Result<()> {
        let Some(dn) = self.hold(r.object) else {
            return Ok(());
        };
        let form = match r.compressed_size {
            _ if self.rules.raw => Form::Raw,
            0 => Form::Plain,
            _ => Form::Packed(Compression::new(r.compression)),
        };
        let mut payload = payload;
        if self.rules.swapped && form == Form::Plain {
            zio::swap::block(ObjType::SA, 0, &mut payload)?;
        }
        self.look_at(&dn, SPILL, payload, form)
    }

    /// Content of an object in pieces that need not be its blocks.
    fn content(&mut self, dn: &Arc<Dnode>, offset: u64, content: Vec<u8>) -> Result<()> {
        let size = dn.info().block_size as u64;
        if offset % size == 0 && content.len() as u64 == size {
            return self.look_at(dn, offset / size, content, Form::Plain);
        }
        let mut rest = &content[..];
        let mut at = offset;
        while !rest.is_empty() {
            let (blkid, within) = (at / size, (at % size) as usize);
            let (piece, more) = rest.split_at(rest.len().min(size as usize - within));
            let mut part = match self.part.take() {
                Some(p) if (p.object, p.blkid, p.data.len()) == (dn.object(), blkid, within) => p,
                _ => Part {
                    object: dn.object(),
                    blkid,
                    data: Vec::new(),
                },
            };
            if part.data.len() == within {
                part.data.extend_from_slice(piece);
                match part.data.len() as u64 == size {
                    true => self.look_at(dn, blkid, part.data, Form::Plain)?,
                    false => self.part = Some(part),
                }
            }
            at += piece.len() as u64;
            rest = more;
        }
        Ok(())
    }

    fn look_at(&mut self, dn: &Dnode, blkid: u64, data: Vec<u8>, form: Form) -> Result<()> {
        let found = match blkid {
            SPILL => Ok(dn.spill_pointer().unwrap_or(BlkPtr::HOLE)),
            n => dn.block_pointer(n),
        };
        // Where the way to it is damaged the block cannot be found.
        let Ok(bp) = found else {
            self.lose(found.map(drop));
            return Ok(());
        };
        if bp.is_hole() || bp.is_embedded() {
            return Ok(());
        }
        self.pending_bytes += data.len();
        self.pending.push(Candidate {
            block: HealedBlock {
                object: dn.object(),
                blkid,
                bp,
            },
            data,
            form,
        });
        if self.pending.len() >= BATCH_BLOCKS || self.pending_bytes >= BATCH_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn lose(&mut self, why: Result<()>) {
        self.lost += 1;
        if let (Err(e), None) = (why, &self.why) {
            self.why = Some(e);
        }
    }

    /// Heals what was collected.
    pub fn flush(&mut self) -> Result<()> {
        self.pending_bytes = 0;
        let mut left = std::mem::take(&mut self.pending);
        while !left.is_empty() {
            let zio = &self.os.dmu().zio;
            // The snapshot is kept: its pointers are good whenever the lease is taken.
            let lease = zio.lease();
            let bps: Vec<BlkPtr> = left.iter().map(|c| c.block.bp).collect();
            let mut again = Vec::new();
            for (c, seen) in left.into_iter().zip(zio.scrub(&bps, lease)) {
                match seen {
                    Scrubbed::Whole { .. } => {}
                    Scrubbed::Stale => again.push(c),
                    Scrubbed::Lost { .. } => match self.heal(&c) {
                        Ok(()) => self.healed.push(c.block),
                        Err(e) if e.kind == Kind::Stale => again.push(c),
                        Err(e) if e.kind == Kind::ReadOnly => return Err(e),
                        Err(e) => self.lose(Err(e)),
                    },
                }
            }
            left = again;
        }
        Ok(())
    }

    fn heal(&self, c: &Candidate) -> Result<()> {
        let (zio, bp) = (&self.os.dmu().zio, &c.block.bp);
        let unlike = || {
            let (object, blkid) = (c.block.object, c.block.blkid as i64);
            let text =
                format!("object {object}, block {blkid}: the stream does not have what it was");
            Error::new(Kind::Checksum, text)
        };
        let as_it_is = c.form == Form::Raw || c.form == Form::Packed(bp.compress());
        if as_it_is && c.data.len() == bp.psize() {
            match zio.restore(bp, zio.lease(), &c.data) {
                Err(e) if e.kind == Kind::Checksum => {}
                done => return done,
            }
        }
        let unpacked;
        let content = match c.form {
            Form::Raw => return Err(unlike()),
            Form::Plain => &c.data,
            Form::Packed(alg) => {
                unpacked = unpack(alg, &c.data, bp.lsize() as u64)?;
                &unpacked
            }
        };
        let form = zio.stored_form(bp, self.os.crypt(), content, self.level);
        match form {
            Some(stored) => zio.restore(bp, zio.lease(), &stored),
            None => Err(unlike()),
        }
    }
}

fn unpack(alg: Compression, payload: &[u8], len: u64) -> Result<Vec<u8>> {
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    if len > base::MAX_BLOCK {
        let text = format!("a payload of {len} bytes for one block");
        return Err(Error::new(Kind::Invalid, text));
    }
    compress::decompress(alg, payload, len).map_err(|e| {
        let text = format!("a payload that cannot be decompressed: {e}");
        Error::new(Kind::Invalid, text)
    })
}
