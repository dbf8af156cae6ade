//! Log blocks on disk: identity, chain structure, walking (pool format §26.2).

use crate::{tx, LogBlocks, LogStore};
use base::mutation::{mutated, Mutation};
use base::{bail, Kind, Result, Txg};
use codec::checksum;
use codec::crypt::Crypt;
use disk::bytes::{swap_u64s, u64_at};
use disk::crypt::{zil_block, IV_SIZE, MAC_SIZE};
use disk::zil::{chain_offset, record_to_little_endian, slim_written, ZilChain};
use disk::{BlkPtr, Checksum, Compression, Dva, ObjType};
use std::collections::HashSet;

pub use disk::zil::{CHAIN_SIZE, RECORD_HEADER};

/// Bytes of a write record before its data.
pub const WRITE_HEADER: usize = 192;
/// Unit of block sizes and of writing.
pub(crate) const UNIT: usize = 4096;
/// Place of the MAC in the chain structure: the last two words of the embedded checksum.
const MAC_AT: usize = CHAIN_SIZE - MAC_SIZE;
/// A chain longer than this is hostile: at 4 KiB each it would be 16 GiB.
const MAX_BLOCKS: u64 = 4 << 20;
/// How often what a device does not read is read again before that counts as an error.
const READ_AGAIN: u32 = 10;

/// A chain's identity: two random numbers, the dataset object, the block's sequence.
pub(crate) type Ident = [u64; 4];

/// Identity of the block after the one with identity `id`.
pub(crate) fn successor(id: &Ident) -> Ident {
    [id[0], id[1], id[2], id[3].wrapping_add(1)]
}

/// Pointer to a log block of `size` bytes at `dva`.
pub(crate) fn block_pointer(dva: Dva, size: usize, slim: bool, txg: Txg, id: &Ident) -> BlkPtr {
    let alg = if slim {
        Checksum::ZILOG2
    } else {
        Checksum::ZILOG
    };
    let mut bp = BlkPtr::new(
        ObjType::INTENT_LOG,
        0,
        size,
        size,
        Compression::OFF,
        alg,
        txg,
    );
    bp.set_dva(0, dva);
    bp.set_checksum(*id);
    bp
}

/// [`block_pointer`] for the log of an object set that may be encrypted: salt and nonce of a block are
/// chosen when it is allocated, and no block is written twice.
pub(crate) fn log_pointer(
    store: &dyn LogStore,
    dva: Dva,
    size: usize,
    slim: bool,
    txg: Txg,
    id: &Ident,
) -> BlkPtr {
    let mut bp = block_pointer(dva, size, slim, txg, id);
    if let Some(key) = store.crypt().key() {
        let random = |b: &mut [u8]| {
            for c in b.chunks_mut(8) {
                c.copy_from_slice(&store.random().to_le_bytes()[..c.len()]);
            }
        };
        let mut iv = [0; IV_SIZE];
        random(&mut iv);
        bp.set_crypt();
        bp.set_salt_iv(&key.next_salt(&random), &iv);
    }
    bp
}

pub(crate) fn is_slim(bp: &BlkPtr) -> bool {
    bp.checksum_alg() == Checksum::ZILOG2
}

/// A block being filled.
pub(crate) struct Builder {
    /// Pointer of the block.
    pub bp: BlkPtr,
    buf: Vec<u8>,
    /// Bytes in use.
    pub used: usize,
    /// Highest txg of a record in it.
    pub max_txg: Txg,
}

impl Builder {
    /// An empty block for `bp`.
    pub fn new(bp: BlkPtr) -> Builder {
        Builder {
            bp,
            buf: vec![0; bp.psize()],
            used: if is_slim(&bp) { CHAIN_SIZE } else { 0 },
            max_txg: Txg::NONE,
        }
    }

    /// Bytes of records that still fit.
    pub fn room(&self) -> usize {
        let end = if is_slim(&self.bp) {
            self.buf.len()
        } else {
            self.buf.len() - CHAIN_SIZE
        };
        end - self.used
    }

    /// Appends a record that fits; its length is a multiple of 8.
    pub fn push(&mut self, record: &[u8], txg: Txg) {
        self.buf[self.used..self.used + record.len()].copy_from_slice(record);
        self.used += record.len();
        self.max_txg = self.max_txg.max(txg);
    }

    /// Adds the chain structure with the pointer to the next block and the checksum. Gives what to
    /// write: only the used part unless the block lies on raidz, whose layout depends on the length.
    pub fn finish(mut self, next: &BlkPtr, crypt: &Crypt) -> Result<Vec<u8>> {
        let slim = is_slim(&self.bp);
        let chain = ZilChain {
            next: *next,
            nused: self.used as u64,
        };
        chain.encode_into(&mut self.buf, slim)?;
        let alg = if slim {
            Checksum::ZILOG2
        } else {
            Checksum::ZILOG
        };
        if self.bp.uses_crypt() {
            let Some(key) = crypt.key() else {
                bail!(Access, "an encrypted log cannot be written without its key");
            };
            let parts = zil_block(&self.buf, false)?;
            let mut secret = parts.gather(&self.buf);
            let mac = key.encrypt(&self.bp.salt(), &self.bp.iv(), &parts.aad, &mut secret)?;
            parts.scatter(&mut self.buf, &secret);
            let at = chain_offset(self.buf.len(), slim).unwrap_or(0) + MAC_AT;
            self.buf[at..at + MAC_SIZE].copy_from_slice(&mac);
            checksum::embed_keep_mac(alg, &mut self.buf, &self.bp.checksum())?;
        } else {
            checksum::embed(alg, &mut self.buf, &self.bp.checksum())?;
        }
        let striped = self.bp.dva(0).asize() > self.bp.psize() as u64;
        if slim && !striped {
            let written = slim_written(self.used as u64, self.buf.len());
            self.buf.truncate(written);
        }
        Ok(self.buf)
    }
}

/// A record as it stands in a block, put into little-endian order if the block was not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawRecord {
    /// Type without the case bit.
    pub ty: u64,
    /// The request ignored the case of names.
    pub case_insensitive: bool,
    /// Txg of the change.
    pub txg: Txg,
    /// Sequence number, ascending along the chain.
    pub seq: u64,
    /// Everything, common header included.
    pub bytes: Vec<u8>,
}

impl RawRecord {
    /// Taken apart.
    pub fn decode(&self) -> Result<disk::zil::Record> {
        disk::zil::Record::decode(&self.bytes).map(|(r, _)| r)
    }

    /// The object at offset 32 of records that concern one object (see [`tx::is_out_of_order`]).
    pub fn object(&self) -> u64 {
        u64_at(&self.bytes, RECORD_HEADER).unwrap_or(0)
    }

    /// Block pointer of a write record; `None` for other records and if there is none.
    pub fn write_bp(&self) -> Option<BlkPtr> {
        if self.ty != tx::WRITE {
            return None;
        }
        let bp = BlkPtr::read(self.bytes.get(64..)?, false).ok()?;
        (!bp.is_hole()).then_some(bp)
    }

    /// Block pointers of a clone-range record.
    pub fn clone_bps(&self) -> Vec<BlkPtr> {
        if self.ty != tx::CLONE_RANGE {
            return Vec::new();
        }
        let n = u64_at(&self.bytes, 64).unwrap_or(0);
        let body = self.bytes.get(72..).unwrap_or_default();
        body.chunks_exact(disk::BP_SIZE)
            .take(usize::try_from(n).unwrap_or(usize::MAX))
            .filter_map(|b| BlkPtr::read(b, false).ok())
            .collect()
    }
}

/// Whether a write or clone record's parts are inside it. `locked`: most of it cannot be read.
fn plausible(r: &RawRecord, locked: bool) -> bool {
    match r.ty {
        tx::WRITE if locked => r.bytes.len() >= WRITE_HEADER,
        tx::WRITE => {
            let len = u64_at(&r.bytes, 48).unwrap_or(u64::MAX);
            let room = match r.bytes.len().checked_sub(WRITE_HEADER) {
                Some(room) => room as u64,
                None => return false,
            };
            // No data: a pointer, or zeros.
            room == 0 || r.write_bp().is_some() || len <= room
        }
        tx::CLONE_RANGE => {
            let n = u64_at(&r.bytes, 64).unwrap_or(u64::MAX);
            let room = r.bytes.len().saturating_sub(72) / disk::BP_SIZE;
            n <= room as u64
        }
        ty if tx::is_out_of_order(ty) => r.bytes.len() >= 48,
        _ => true,
    }
}

/// A block that passed its checks.
pub(crate) struct Parsed {
    /// Pointer to the next block of the chain.
    pub next: BlkPtr,
    /// Records up to the first that makes no sense.
    pub records: Vec<RawRecord>,
    /// All of `nused` was records.
    pub whole: bool,
}

/// Does it again while a device fails.
pub(crate) fn persist<T>(read: &mut dyn FnMut() -> Result<T>) -> Result<T> {
    for _ in 0..READ_AGAIN {
        match read() {
            Err(e) if e.kind == Kind::Io => {}
            r => return r,
        }
    }
    read()
}

/// Reads a log block. `None`: what is there is none, which is how a chain ends.
///
/// Errors: those of devices. Whether the block is there is open then.
pub(crate) fn fetch(blocks: &dyn LogBlocks, bp: &BlkPtr) -> Result<Option<Vec<u8>>> {
    let verify = |b: &[u8]| check(bp, b).is_some();
    match persist(&mut || blocks.read_block(bp, &verify)) {
        Ok(b) => Ok(Some(b)),
        Err(e) if e.is_wrong_content() || e.kind == Kind::Unsupported => Ok(None),
        Err(_) if mutated(Mutation::ErrorEndsLog) => Ok(None),
        Err(e) => Err(e.context(format!("log block {}", bp.checksum()[3]))),
    }
}

fn check(bp: &BlkPtr, b: &[u8]) -> Option<bool> {
    let alg = bp.checksum_alg();
    if b.len() != bp.psize() || b.len() < CHAIN_SIZE {
        return None;
    }
    if bp.uses_crypt() {
        let r = checksum::verify_embedded_mac(alg, b, &bp.checksum());
        return r.ok().map(|(swapped, _)| swapped);
    }
    checksum::verify_embedded(alg, b, &bp.checksum()).ok()
}

/// A log block with its records decrypted; `None` if this is not what was encrypted. Without a key it
/// stays as it is.
fn open(bp: &BlkPtr, b: &[u8], swapped: bool, crypt: &Crypt) -> Option<Vec<u8>> {
    let mut block = b.to_vec();
    let Some(key) = crypt.key() else {
        return Some(block);
    };
    if !is_slim(bp) {
        return None;
    }
    let parts = zil_block(b, swapped).ok()?;
    let mac = <[u8; MAC_SIZE]>::try_from(b.get(MAC_AT..CHAIN_SIZE)?).ok()?;
    let mut secret = parts.gather(b);
    key.decrypt(&bp.salt(), &bp.iv(), &parts.aad, &mut secret, &mac)
        .ok()?;
    parts.scatter(&mut block, &secret);
    Some(block)
}

/// Takes a block apart; `None` if it is not valid, which is how a chain ends.
pub(crate) fn parse(bp: &BlkPtr, b: &[u8], crypt: &Crypt) -> Option<Parsed> {
    let swapped = check(bp, b)?;
    let opened;
    let b = if bp.uses_crypt() {
        opened = open(bp, b, swapped, crypt)?;
        &opened[..]
    } else {
        b
    };
    let locked = bp.uses_crypt() && crypt.key().is_none();
    let slim = is_slim(bp);
    let at = chain_offset(b.len(), slim)?;
    let mut block;
    let b = if swapped {
        block = b.to_vec();
        swap_u64s(block.get_mut(at..at + CHAIN_SIZE)?);
        &block[..]
    } else {
        b
    };
    let chain = ZilChain::decode(b, slim).ok()?;
    let next = chain.next;
    if next.checksum() != successor(&bp.checksum()) {
        return None;
    }
    let mut records = Vec::new();
    let mut rest = b.get(chain.records(slim))?;
    let mut last = 0;
    while !rest.is_empty() {
        let Some(r) = record(rest, swapped).filter(|r| r.seq > last && plausible(r, locked)) else {
            break;
        };
        last = r.seq;
        rest = &rest[r.bytes.len()..];
        records.push(r);
    }
    Some(Parsed {
        next,
        records,
        whole: rest.is_empty(),
    })
}

fn record(b: &[u8], swapped: bool) -> Option<RawRecord> {
    let mut head = b.get(..RECORD_HEADER)?.to_vec();
    if swapped {
        swap_u64s(&mut head);
    }
    let word = |i: usize| u64_at(&head, 8 * i).unwrap_or(0);
    let len = usize::try_from(word(1)).ok()?;
    if len < RECORD_HEADER || len % 8 != 0 {
        return None;
    }
    let mut bytes = b.get(..len)?.to_vec();
    if swapped {
        record_to_little_endian(&mut bytes).ok()?;
    }
    Some(RawRecord {
        ty: word(0) & !tx::CASE_INSENSITIVE,
        case_insensitive: word(0) & tx::CASE_INSENSITIVE != 0,
        txg: Txg::new(word(2)),
        seq: word(3),
        bytes,
    })
}

/// How a walk ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalkEnd {
    /// Highest block sequence visited, the last (unwritten) one included.
    pub blk_seq: u64,
    /// Highest record sequence visited.
    pub lr_seq: u64,
    /// Valid blocks visited.
    pub blocks: u64,
    /// Records visited.
    pub records: u64,
    /// The visitor said stop.
    pub stopped: bool,
}

/// Follows a chain from `first`: `on_block` is called for every pointer before its block is read (so
/// also for the last, usually unwritten one), `on_record` for every record; either returns false to
/// stop. Ends silently at the first block that is not valid, at a hole, beyond the limits, and at a
/// place visited before.
///
/// Errors: those of devices, after many tries. An error of a device is no end of the chain: what
/// follows may be there when the device is read again.
pub fn walk(
    blocks: &dyn LogBlocks,
    first: &BlkPtr,
    (blk_limit, lr_limit): (u64, u64),
    on_block: &mut dyn FnMut(&BlkPtr) -> Result<bool>,
    on_record: &mut dyn FnMut(&RawRecord) -> Result<bool>,
) -> Result<WalkEnd> {
    let mut end = WalkEnd::default();
    let mut seen: HashSet<Dva> = HashSet::new();
    let mut bp = *first;
    let crypt = blocks.crypt();
    while sane(&bp) {
        base::cancel::check()?;
        let seq = bp.checksum()[3];
        let place = Dva {
            word0: bp.dva(0).vdev(),
            word1: bp.dva(0).offset(),
        };
        if seq > blk_limit || end.blocks >= MAX_BLOCKS || !seen.insert(place) {
            break;
        }
        if !on_block(&bp)? {
            end.stopped = true;
            break;
        }
        end.blk_seq = seq;
        end.blocks += 1;
        if seq == blk_limit && end.lr_seq >= lr_limit {
            // Of a claimed log everything is there: what its last block holds is not wanted.
            break;
        }
        let Some(parsed) = fetch(blocks, &bp)?.and_then(|b| parse(&bp, &b, &crypt)) else {
            break;
        };
        for r in &parsed.records {
            if r.seq > lr_limit || r.seq <= end.lr_seq {
                return Ok(end);
            }
            base::cancel::check()?;
            if !on_record(r)? {
                end.stopped = true;
                return Ok(end);
            }
            end.lr_seq = r.seq;
            end.records += 1;
        }
        if !parsed.whole {
            break;
        }
        bp = parsed.next;
    }
    Ok(end)
}

/// Whether a pointer can be one to a log block at all.
fn sane(bp: &BlkPtr) -> bool {
    !bp.is_hole()
        && !bp.is_embedded()
        && !bp.is_gang()
        && matches!(bp.checksum_alg(), Checksum::ZILOG | Checksum::ZILOG2)
        && bp.obj_type() == ObjType::INTENT_LOG
        && bp.psize() == bp.lsize()
        && bp.psize() >= 512
        && bp.psize() <= base::MAX_BLOCK
        && bp.dva(0).is_valid()
}
