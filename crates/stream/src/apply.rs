//! Applies the records of one stream to an object set (data format §31.2).
//!
//! 1. A record is applied only after the reader has verified it. Its values are bounded again by what the
//!    target has: an object that is not there, a block beyond what the stream's features allow or a record
//!    out of order is an error.
//! 2. Each record is applied in one transaction; records of objects and data with the note how far the stream
//!    has come. So a stream
//!    that breaks off can be resumed behind the last record that is on disk.
//! 3. An object whose dnode changes its size is freed, and made again when that is on disk.

use base::mutation::{mutated, Mutation};
use base::{bail, Block, Error, Kind, Result, Txg, OLD_MAX_BLOCK};
use codec::compress;
use disk::dnode::DNODES_PER_BLOCK;
use disk::stream::{self, feature, record_flag, Record};
use disk::{Checksum, Compression, ObjType, SwapClass};
use dmu::{Dnode, DnodeSeal, Need, NewObject, Objset, RawObject, StoredBlock, Tx};
use dsl::Dataset;
use std::sync::Arc;
use zio::{RawSeal, StoredForm};

/// Longest spill block, bytes.
const MAX_SPILL: u64 = OLD_MAX_BLOCK as u64;
/// Bytes of a transaction beside data: dnodes and their share of the trees.
const OVERHEAD: u64 = 64 << 10;
/// Blocks that one REDACT record may leave out: 2 TiB of 128 KiB.
const MAX_REDACTED: u64 = 1 << 24;
/// Blocks left out in one transaction.
const REDACTED_AT_ONCE: u64 = 1024;
/// Memory that a block takes which is left out in a txg that is not on disk, about.
const REDACTED_BYTES: u64 = 512;
/// Compressed blocks collected before they are written in one batch.
const BATCH_BLOCKS: usize = 64;
/// Their bytes.
const BATCH_BYTES: usize = 4 << 20;
/// How often a block is handed to devices that refuse it.
const TRIES: u32 = 8;

/// What applies to a stream as a whole.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Features of the stream, see [`feature`].
    pub features: u64,
    /// The sender had the other byte order.
    pub swapped: bool,
    /// The flags of records about spill blocks mean something.
    pub spill_known: bool,
    /// The stream has all objects: others go at its end.
    pub full: bool,
    /// Embedded blocks may be stored as such.
    pub embedded: bool,
    /// Blocks come encrypted, and are stored as they come.
    pub raw: bool,
}

/// The state between two records.
pub struct Applier {
    os: Arc<Objset>,
    ds: Arc<Dataset>,
    rules: Rules,
    /// Notes of progress are kept.
    resumable: bool,
    /// The object of the last data record.
    last: Option<Arc<Dnode>>,
    /// Object and offset of the last data record: later ones come behind it.
    at: (u64, u64),
    max_object: u64,
    pending: Vec<StoredBlock>,
    pending_bytes: usize,
    /// Progress of the pending blocks.
    pending_at: (u64, u64, u64),
    /// The last OBJECT_RANGE of a raw stream: first object and end.
    range: (u64, u64),
    /// It is in the order of a big-endian machine.
    range_swapped: bool,
    /// Blocks to be written again in the usual way: where no place was found for their stored form.
    expanded: u64,
    /// Asked between the transactions of a long record.
    go_on: Box<dyn FnMut() -> Result<()>>,
    await_devices: Box<dyn FnMut() -> Result<()>>,
}

impl Applier {
    /// `resumable`: the dataset keeps a state that is to be brought forward.
    pub fn new(os: Arc<Objset>, ds: Arc<Dataset>, rules: Rules, resumable: bool) -> Applier {
        Applier {
            os,
            ds,
            rules,
            resumable,
            last: None,
            at: (0, 0),
            max_object: 0,
            pending: Vec::new(),
            pending_bytes: 0,
            pending_at: (0, 0, 0),
            range: (0, 0),
            range_swapped: false,
            expanded: 0,
            go_on: Box::new(|| Ok(())),
            await_devices: Box::new(|| Ok(())),
        }
    }

    /// A record may stand for millions of blocks or objects: `go_on` is asked between its transactions, and an error
    /// of it ends the record.
    #[must_use]
    pub fn interrupted_by(mut self, go_on: impl FnMut() -> Result<()> + 'static) -> Applier {
        self.go_on = Box::new(go_on);
        self
    }

    /// Blocks that are stored as they come go to the devices at once. If these refuse one, `wait` is called outside of any
    /// transaction, and returns when they take writes again, or says why the stream ends. Then the block is tried again, a few times.
    #[must_use]
    pub fn waiting_for_devices(mut self, wait: impl FnMut() -> Result<()> + 'static) -> Applier {
        self.await_devices = Box::new(wait);
        self
    }

    /// Has `write` do what puts a block on the devices, in a transaction, until they take it.
    fn place<R>(&mut self, need: Need, write: impl Fn(&Tx) -> Result<R>) -> Result<(Tx, R)> {
        let mut left = TRIES;
        loop {
            let tx = self.os.tx(need)?;
            left -= 1;
            match write(&tx) {
                Ok(done) => return Ok((tx, done)),
                Err(e)
                    if left == 0
                        || !matches!(e.kind, Kind::Io | Kind::NoDevice | Kind::NoSpace) =>
                {
                    return Err(e)
                }
                Err(_) => drop(tx),
            }
            (self.await_devices)()?;
        }
    }

    fn has(&self, feature: u64) -> bool {
        self.rules.features & feature != 0
    }

    /// Applies a record with its payload. `bytes`: of the stream, this record included.
    ///
    /// Errors: invalid, if the record does not fit to what is there; those of taking space; those of the
    /// devices. What came before stays applied.
    pub fn apply(&mut self, record: &Record, payload: Vec<u8>, bytes: u64) -> Result<Vec<u8>> {
        if !matches!(record, Record::Write(_)) {
            self.flush()?;
        }
        match record {
            Record::Object(r) => self.object(r, &payload, bytes)?,
            Record::FreeObjects(r) => self.free_objects(r)?,
            Record::Write(r) => return self.write(r, payload, bytes),
            Record::Free(r) => self.free(r)?,
            Record::Spill(r) => {
                self.spill(r, payload)?;
                return Ok(Vec::new());
            }
            Record::WriteEmbedded(r) => self.embedded(r, &payload, bytes)?,
            Record::Redact(r) => self.redact(r)?,
            Record::WriteByRef(_) => bail!(
                Unsupported,
                "stream has deprecated feature: dedup, try 'zstream redup [send in a file] | zfs recv [...]'"
            ),
            Record::ObjectRange(r) if self.rules.raw => self.object_range(r)?,
            Record::ObjectRange(_) => bail!(Invalid, "OBJECT_RANGE record in a stream that is not raw"),
            Record::Begin(_) | Record::End(_) => {
                bail!(Invalid, "{} record inside of a stream", record.name())
            }
        }
        Ok(payload)
    }

    /// The stream is complete: what it does not have goes, if it has everything.
    pub fn finish(&mut self) -> Result<()> {
        self.flush()?;
        if self.rules.full {
            let mut at = self.max_object;
            while let Some(o) = self.os.next_object(at)? {
                (self.go_on)()?;
                let tx = self.os.tx(Need::freeing())?;
                self.os.free(&tx, o)?;
                at = o;
            }
        }
        Ok(())
    }

    /// Everything applied so far is in transactions.
    pub fn flush(&mut self) -> Result<()> {
        self.last_flush()?;
        Ok(())
    }

    fn note(&self, txg: Txg, object: u64, offset: u64, bytes: u64) {
        // With the mistake on purpose, one record of the usual size too far.
        let offset = match mutated(Mutation::ResumePointAhead) {
            true => offset + (256 << 10),
            false => offset,
        };
        if self.resumable {
            self.ds.note_progress(txg, object, offset, bytes);
        }
    }

    /// Waits until what was changed is on disk.
    fn settle(&self) -> Result<()> {
        let dmu = self.os.dmu();
        match dmu.driver() {
            Some(d) => d.sync_through(dmu.open_txg()),
            None => bail!(Io, "the pool was exported"),
        }
    }

    /// The object a record is about.
    fn hold(&mut self, object: u64, what: &str) -> Result<Arc<Dnode>> {
        if let Some(dn) = self.last.as_ref().filter(|dn| dn.object() == object) {
            return Ok(dn.clone());
        }
        let dn = match self.os.hold(object) {
            Ok(dn) => dn,
            Err(e) if e.kind == Kind::NotFound => {
                bail!(
                    Invalid,
                    "{what} record for object {object}, which is not there"
                )
            }
            Err(e) => return Err(e),
        };
        self.last = Some(dn.clone());
        Ok(dn)
    }

    fn object(&mut self, r: &stream::Object, payload: &[u8], bytes: u64) -> Result<()> {
        let slots = r.slots.max(1);
        let bad = |what: String| Error::new(Kind::Invalid, format!("object {}: {what}", r.object));
        if slots > 1 && !self.has(feature::LARGE_DNODE) {
            return Err(bad(format!("{slots} dnode slots")));
        }
        if r.block_size as usize > OLD_MAX_BLOCK && !self.has(feature::LARGE_BLOCKS) {
            return Err(bad(format!("blocks of {} bytes", r.block_size)));
        }
        let mut bonus = payload
            .get(..r.bonus_len as usize)
            .ok_or_else(|| bad("its bonus is cut short".into()))?
            .to_vec();
        let bonus_type = ObjType(r.bonus_type as u8);
        if self.rules.swapped && !self.rules.raw {
            let mut whole = payload.to_vec();
            zio::swap::block(bonus_type, 0, &mut whole)?;
            bonus = whole
                .get(..r.bonus_len as usize)
                .unwrap_or_default()
                .to_vec();
        }
        if self.rules.raw && !(self.range.0..self.range.1).contains(&r.object) {
            return Err(bad("it is outside of the OBJECT_RANGE before".into()));
        }
        // Sealed bytes, which stay as they are: no order is undone in them when the block is read.
        if self.range_swapped && r.bonus_len > 0 && bonus_type.swap_class() != SwapClass::U8 {
            bail!(
                Unsupported,
                "object {}: a raw bonus of type {} of a big-endian machine",
                r.object,
                bonus_type.0
            );
        }
        let raw = self.rules.raw.then(|| RawObject {
            nlevels: r.levels,
            nblkptr: r.block_pointers,
            maxblkid: r.max_block,
            bonus: payload.to_vec(),
        });
        let mut new = NewObject {
            indblkshift: match self.rules.raw {
                true => r.indirect_shift,
                false => 0,
            },
            raw,
            obj_type: ObjType(r.obj_type as u8),
            block_size: r.block_size as usize,
            bonus_type,
            bonus,
            spills: false,
            slots,
            checksum: Checksum::new(r.checksum_type),
            compress: Compression::new(r.compress),
        };
        if new.compress > Compression::ZSTD || new.checksum > Checksum::BLAKE3 {
            return Err(bad(format!(
                "compression {}, checksum {}",
                new.compress, new.checksum
            )));
        }
        self.last = None;
        let last = r.object.saturating_add(u64::from(slots) - 1);
        self.max_object = self.max_object.max(last);
        let keeps_spill = r.flags & record_flag::OBJECT_SPILL != 0 || !self.rules.spill_known;
        let there = match self.os.hold(r.object) {
            Ok(dn) => Some(dn),
            Err(e) if e.kind == Kind::NotFound => None,
            Err(e) => return Err(e),
        };
        if let Some(dn) = there {
            let info = dn.info();
            if self.keeps_blocks(&dn, &new) {
                new.block_size = info.block_size;
            }
            let tx = self.os.tx(Need::bytes(OVERHEAD))?;
            if !keeps_spill && dn.has_spill() {
                dn.set_spill(&tx, None)?;
            }
            match dn.reshape(&tx, &new) {
                Ok(()) => {
                    self.note(tx.txg(), r.object, 0, bytes);
                    self.last = Some(dn);
                    return Ok(());
                }
                Err(e) if e.kind == Kind::Invalid => {}
                Err(e) => return Err(e),
            }
        }
        self.make(r.object, &new, bytes)
    }

    /// Whether a file keeps its blocks although the stream has larger ones: a stream without large blocks brought them in
    /// pieces, and this one has only what changed since. Of all other objects a stream has every block if their size has
    /// changed.
    fn keeps_blocks(&self, dn: &Dnode, new: &NewObject) -> bool {
        if self.rules.raw || self.rules.full {
            return false;
        }
        let info = dn.info();
        let generation = |ty: ObjType, b: &[u8]| match ty {
            ObjType::ZNODE => u64_at(b, 64),
            ObjType::SA => {
                let info = b.get(4..6).map(|i| u16::from_le_bytes([i[0], i[1]]));
                info.and_then(|i| u64_at(b, usize::from(i >> 10) * 8 + 16))
            }
            _ => None,
        };
        let old = dn.with_bonus(|b| generation(info.bonus_type, b));
        new.obj_type == ObjType::PLAIN_FILE_CONTENTS
            && info.obj_type == ObjType::PLAIN_FILE_CONTENTS
            && info.block_size == OLD_MAX_BLOCK
            && new.block_size > OLD_MAX_BLOCK
            && old.is_some()
            && old == generation(new.bonus_type, &new.bonus)
    }

    /// Makes an object under its number; what is in its place goes before.
    fn make(&mut self, object: u64, new: &NewObject, bytes: u64) -> Result<()> {
        let in_way = self.os.objects_in(object, u64::from(new.slots))?;
        if !in_way.is_empty() {
            for o in in_way {
                let tx = self.os.tx(Need::freeing())?;
                self.os.free(&tx, o)?;
            }
            self.settle()?;
        }
        let mut settled = false;
        loop {
            let tx = self.os.tx(Need::bytes(OVERHEAD))?;
            match self.os.claim(&tx, object, new) {
                Ok(dn) => {
                    self.note(tx.txg(), object, 0, bytes);
                    self.last = Some(dn);
                    return Ok(());
                }
                // It, or a neighbour in its place, was freed in a txg that is not on disk.
                Err(e) if matches!(e.kind, Kind::Again | Kind::Exists) && !settled => {
                    drop(tx);
                    self.settle()?;
                    settled = true;
                }
                Err(e) => return Err(e),
            }
        }
    }

    fn free_objects(&mut self, r: &stream::FreeObjects) -> Result<()> {
        let end = r.first.saturating_add(r.count);
        self.last = None;
        let mut at = r.first.saturating_sub(1);
        while let Some(o) = self.os.next_object(at)? {
            if o >= end {
                break;
            }
            (self.go_on)()?;
            let tx = self.os.tx(Need::freeing())?;
            self.os.free(&tx, o)?;
            at = o;
        }
        Ok(())
    }

    /// Data records come in order.
    fn in_order(&mut self, object: u64, offset: u64) -> Result<()> {
        if (object, offset) < self.at {
            bail!(
                Invalid,
                "data of object {object} at {offset} behind that of object {} at {}",
                self.at.0,
                self.at.1
            );
        }
        self.at = (object, offset);
        Ok(())
    }

    /// How a block of dnodes of a raw stream is sealed.
    fn object_range(&mut self, r: &stream::ObjectRange) -> Result<()> {
        if r.slots != DNODES_PER_BLOCK || r.first % DNODES_PER_BLOCK != 0 {
            bail!(
                Invalid,
                "OBJECT_RANGE record of {} slots from {}",
                r.slots,
                r.first
            );
        }
        if r.first < self.range.0 {
            bail!(
                Invalid,
                "OBJECT_RANGE record at {} is out of order",
                r.first
            );
        }
        self.range = (r.first, r.first.saturating_add(r.slots));
        self.range_swapped = self.big_endian(r.flags);
        self.last = None;
        let tx = self.os.tx(Need::bytes(OVERHEAD))?;
        self.os.set_raw_seal(
            &tx,
            r.first / DNODES_PER_BLOCK,
            DnodeSeal {
                seal: RawSeal {
                    salt: r.salt,
                    iv: r.iv,
                    mac: r.mac,
                },
                big_endian: self.range_swapped,
            },
        )
    }

    fn big_endian(&self, flags: u8) -> bool {
        self.rules.swapped != (flags & record_flag::RAW_BYTESWAP != 0)
    }

    fn sealed_form(&self, compression: u8, seal: RawSeal, flags: u8) -> StoredForm {
        StoredForm {
            compress: Compression::new(compression),
            sealed: Some(seal),
            big_endian: self.big_endian(flags),
        }
    }

    /// A block of a raw stream, as it is stored.
    fn write_raw(
        &mut self,
        dn: &Dnode,
        r: &stream::Write,
        payload: Vec<u8>,
        bytes: u64,
    ) -> Result<()> {
        let size = dn.info().block_size as u64;
        if r.logical_size != size || r.offset % size != 0 || r.compression == 0 {
            bail!(
                Invalid,
                "raw WRITE record of {} bytes at {} for blocks of {size}",
                r.logical_size,
                r.offset
            );
        }
        if r.offset / size > dn.info().max_blkid {
            bail!(
                Invalid,
                "raw WRITE record behind the end of object {}",
                r.object
            );
        }
        let mut seal = RawSeal {
            salt: r.salt,
            iv: r.iv,
            mac: r.mac,
        };
        if mutated(Mutation::RawSealStale) {
            let before = self.pending.last().and_then(|b| b.form.sealed);
            seal = before.unwrap_or(seal);
        }
        self.pending_bytes += payload.len();
        self.pending_at = (r.object, r.offset, bytes);
        self.pending.push(StoredBlock {
            blkid: r.offset / size,
            lsize: size as usize,
            data: Arc::new(payload),
            form: self.sealed_form(r.compression, seal, r.flags),
        });
        if self.pending.len() >= BATCH_BLOCKS || self.pending_bytes >= BATCH_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn write(&mut self, r: &stream::Write, payload: Vec<u8>, bytes: u64) -> Result<Vec<u8>> {
        self.in_order(r.object, r.offset)?;
        if self
            .pending
            .first()
            .is_some_and(|_| self.last.as_ref().is_some_and(|dn| dn.object() != r.object))
        {
            self.flush()?;
        }
        let dn = self.hold(r.object, "WRITE")?;
        let ty = ObjType(r.obj_type as u8);
        if dn.obj_type() != ty {
            bail!(
                Invalid,
                "WRITE record of type {} for object {} of type {}",
                ty.0,
                r.object,
                dn.obj_type().0
            );
        }
        if self.rules.raw {
            self.write_raw(&dn, r, payload, bytes)?;
            return Ok(Vec::new());
        }
        let size = dn.info().block_size as u64;
        if r.compression != 0 {
            let fits = r.logical_size == size
                && r.offset % size == 0
                && payload.len() % 512 == 0
                && (payload.len() as u64) < r.logical_size
                && self.os.policy().dedup.is_none()
                && !self.os.crypt().is_encrypted()
                && !self.rules.swapped;
            // What cannot be decompressed would be an error for whoever reads it.
            let content = decompress(Compression::new(r.compression), &payload, r.logical_size)?;
            if fits {
                self.pending_bytes += payload.len();
                self.pending_at = (r.object, r.offset, bytes);
                self.pending.push(StoredBlock {
                    blkid: r.offset / size,
                    lsize: size as usize,
                    data: Arc::new(payload),
                    form: StoredForm {
                        compress: Compression::new(r.compression),
                        sealed: None,
                        big_endian: false,
                    },
                });
                if self.pending.len() >= BATCH_BLOCKS || self.pending_bytes >= BATCH_BYTES {
                    self.flush()?;
                }
                return Ok(Vec::new());
            }
            self.flush()?;
            self.put(&dn, ty, r.offset, content, bytes)?;
            return Ok(payload);
        }
        if payload.len() as u64 != r.logical_size {
            bail!(Invalid, "WRITE record with {} bytes", payload.len());
        }
        self.flush()?;
        self.put(&dn, ty, r.offset, payload, bytes)?;
        Ok(Vec::new())
    }

    /// Writes bytes as a file would.
    fn put(
        &self,
        dn: &Dnode,
        ty: ObjType,
        offset: u64,
        mut data: Vec<u8>,
        bytes: u64,
    ) -> Result<()> {
        if self.rules.swapped {
            zio::swap::block(ty, 0, &mut data)?;
        }
        let tx = self.os.tx(Need::bytes(data.len() as u64 + OVERHEAD))?;
        let block: [Block; 1] = [Arc::new(data)];
        match base::Data::of_blocks(&block) {
            Some(data) => dn.write(&tx, offset, data)?,
            None => return Ok(()),
        }
        self.note(tx.txg(), dn.object(), offset, bytes);
        Ok(())
    }

    fn last_flush(&mut self) -> Result<()> {
        let blocks = std::mem::take(&mut self.pending);
        if blocks.is_empty() {
            return Ok(());
        }
        let need = std::mem::take(&mut self.pending_bytes) as u64;
        let (object, offset, bytes) = self.pending_at;
        let dn = self.hold(object, "WRITE")?;
        let need = Need::bytes(need + OVERHEAD);
        let (tx, placed) = self.place(need, |tx| dn.write_stored(tx, &blocks))?;
        for (b, placed) in blocks.iter().zip(placed) {
            if !placed && self.rules.raw {
                bail!(NoSpace, "no contiguous place for a block of a raw stream");
            }
            if !placed {
                let content = decompress(b.form.compress, &b.data, b.lsize as u64)?;
                dn.write(&tx, b.blkid * b.lsize as u64, &content[..])?;
                self.expanded += 1;
            }
        }
        self.note(tx.txg(), object, offset, bytes);
        Ok(())
    }

    fn free(&mut self, r: &stream::Free) -> Result<()> {
        if mutated(Mutation::ReceiveKeepsFreed) {
            return Ok(());
        }
        let dn = self.hold(r.object, "FREE")?;
        let max_block = dn.info().max_blkid;
        if self.rules.raw {
            // Parts of a block cannot be zeroed without the key.
            let size = dn.info().block_size as u64;
            let end = r.offset.saturating_add(r.length);
            let object_end = max_block.saturating_add(1).saturating_mul(size);
            if r.offset % size != 0 || end % size != 0 && end < object_end {
                bail!(
                    Invalid,
                    "raw FREE record of {} bytes at {} for blocks of {size}",
                    r.length,
                    r.offset
                );
            }
        }
        let tx = self.os.tx(Need::freeing())?;
        dn.free_range(&tx, r.offset, r.length)?;
        if self.rules.raw {
            // Authenticated as the sender has it.
            dn.set_max_block(&tx, max_block)?;
        }
        Ok(())
    }

    fn spill(&mut self, r: &stream::Spill, payload: Vec<u8>) -> Result<()> {
        if self.rules.spill_known && r.flags & record_flag::SPILL_UNMODIFIED != 0 {
            return Ok(());
        }
        if self.rules.raw {
            return self.spill_raw(r, payload);
        }
        let data = match r.compressed_size {
            0 => payload,
            _ => decompress(Compression::new(r.compression), &payload, r.length)?,
        };
        self.put_spill(r.object, r.length, data, ObjType::SA)
    }

    fn spill_raw(&mut self, r: &stream::Spill, payload: Vec<u8>) -> Result<()> {
        let lsize = usize::try_from(r.length).map_err(|_| Error::from(Kind::Invalid))?;
        if r.length > MAX_SPILL || payload.is_empty() {
            bail!(Invalid, "raw spill block of {} bytes", r.length);
        }
        let dn = self.hold(r.object, "SPILL")?;
        let block = StoredBlock {
            blkid: 0,
            lsize,
            data: Arc::new(payload),
            form: self.sealed_form(
                r.compression,
                RawSeal {
                    salt: r.salt,
                    iv: r.iv,
                    mac: r.mac,
                },
                r.flags,
            ),
        };
        let need = Need::bytes(r.length + OVERHEAD);
        let (_tx, placed) = self.place(need, |tx| dn.write_stored_spill(tx, &block))?;
        if !placed {
            bail!(
                NoSpace,
                "no contiguous place for a spill block of a raw stream"
            );
        }
        Ok(())
    }

    fn put_spill(
        &mut self,
        object: u64,
        length: u64,
        mut data: Vec<u8>,
        ty: ObjType,
    ) -> Result<()> {
        if data.len() as u64 != length || length > MAX_SPILL || length % 512 != 0 || length == 0 {
            bail!(Invalid, "spill block of {} bytes", data.len());
        }
        if self.rules.swapped {
            zio::swap::block(ty, 0, &mut data)?;
        }
        let dn = self.hold(object, "SPILL")?;
        let tx = self.os.tx(Need::bytes(length + OVERHEAD))?;
        dn.set_spill(&tx, Some(data))
    }

    fn embedded(&mut self, r: &stream::WriteEmbedded, payload: &[u8], bytes: u64) -> Result<()> {
        if self.rules.raw {
            // Blocks of encrypted datasets are never embedded, and this one could not be sealed.
            bail!(Invalid, "WRITE_EMBEDDED record in a raw stream");
        }
        if r.etype != 0 {
            bail!(Invalid, "embedded block of kind {}", r.etype);
        }
        let data = payload.get(..r.psize as usize).unwrap_or_default();
        let mut content = match r.compression {
            2 if data.len() != r.lsize as usize => {
                bail!(
                    Invalid,
                    "embedded block of {} in {} bytes",
                    r.lsize,
                    data.len()
                )
            }
            2 => data.to_vec(),
            alg => decompress(Compression::new(alg), data, u64::from(r.lsize))?,
        };
        content.resize(r.length as usize, 0);
        // OpenZFS sends a spill block that is in its pointer like a block of data before the first one.
        if r.offset == 0u64.wrapping_sub(r.length.wrapping_mul(2)) {
            return self.put_spill(r.object, r.length, content, ObjType::SA);
        }
        self.in_order(r.object, r.offset)?;
        let dn = self.hold(r.object, "WRITE_EMBEDDED")?;
        let size = dn.info().block_size as u64;
        let fits = r.length == size
            && u64::from(r.lsize) == size
            && r.offset % size == 0
            && self.rules.embedded
            && !self.os.crypt().is_encrypted()
            && !self.rules.swapped;
        if !fits {
            let ty = dn.obj_type();
            return self.put(&dn, ty, r.offset, content, bytes);
        }
        let tx = self.os.tx(Need::bytes(OVERHEAD))?;
        dn.write_embedded(
            &tx,
            r.offset / size,
            size as usize,
            Compression::new(r.compression),
            data,
        )?;
        self.note(tx.txg(), r.object, r.offset, bytes);
        Ok(())
    }

    fn redact(&mut self, r: &stream::Redact) -> Result<()> {
        if !self.has(feature::REDACTED) {
            bail!(Invalid, "REDACT record in a stream that is not redacted");
        }
        self.in_order(r.object, r.offset)?;
        let dn = self.hold(r.object, "REDACT")?;
        let size = dn.info().block_size as u64;
        if r.offset % size != 0 {
            bail!(Invalid, "REDACT record at {} of blocks of {size}", r.offset);
        }
        let end = r.offset.saturating_add(r.length);
        let (first, last) = (r.offset / size, end.div_ceil(size));
        if last - first > MAX_REDACTED {
            bail!(Invalid, "REDACT record of {} blocks", last - first);
        }
        let mut at = first;
        while at < last {
            (self.go_on)()?;
            let end = last.min(at + REDACTED_AT_ONCE);
            // Each block has a pointer in memory until the txg is on disk.
            let need = (end - at) * REDACTED_BYTES + OVERHEAD;
            let tx = self.os.tx(Need::bytes(need))?;
            for blkid in at..end {
                dn.redact(&tx, blkid)?;
            }
            at = end;
        }
        Ok(())
    }
}

fn u64_at(b: &[u8], at: usize) -> Option<u64> {
    let b = b.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(b.try_into().ok()?))
}

/// The content of a compressed payload.
fn decompress(alg: Compression, payload: &[u8], len: u64) -> Result<Vec<u8>> {
    let len = usize::try_from(len).map_err(|_| Error::from(Kind::Invalid))?;
    if len > base::MAX_BLOCK {
        bail!(Invalid, "block of {len} bytes");
    }
    compress::decompress(alg, payload, len).map_err(|e| {
        Error::new(
            Kind::Invalid,
            format!("a payload that cannot be decompressed: {e}"),
        )
    })
}
