//! The read and write pipelines (pool format §7, §12–14; behaviour §8, §9).

mod gang;

use crate::cache::{Cache, Key};
use crate::crypt::{self, Crypt, Seal, Sealed};
use crate::flight::{Boarding, Flight, Flights, Lead};
use crate::read_spec::{How, InUse, Lease, ReadSpec, Whole};
use crate::scope::Scope;
use crate::seam::{
    Allocator, Dedup, Devices, Looked, PhysWrite, Purpose, ReadOne, Sharing, Waits, Wrong,
};
use crate::{swap, syncing};
use base::sync::{MutexExt, RwLockExt};
use base::{bail, roundup, Block, Error, Kind, Result, Txg};
use codec::{checksum, compress};
use disk::{BlkPtr, Dva, ObjType};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock, Weak};

/// Bytes of queued writes that trigger a submission.
const QUEUE_BYTES: usize = 32 << 20;
/// How a block is to be stored; ids are the on-disk numbers, never "inherit" or "on".
#[derive(Clone, Copy, Debug)]
pub struct WriteSpec {
    pub obj_type: ObjType,
    pub level: u8,
    pub compress: u8,
    /// Level of zstd, as stored in the block header (0 = default).
    pub zstd_level: u8,
    pub checksum: u8,
    /// Data copies, 1…3.
    pub copies: u8,
    /// Copies of a gang header, should one be needed.
    pub gang_copies: u8,
    /// The feature `embedded_data` may be used for this block.
    pub embed: bool,
    /// The feature `hole_birth` is active.
    pub hole_birth: bool,
    /// The dedup table of the checksum is asked first, and told.
    pub dedup: bool,
    /// Equal checksums are not enough for it: the bytes are compared.
    pub verify: bool,
    /// Stored blocks of files up to this many bytes belong on the special devices; 0 = none do.
    pub small: u64,
}

impl WriteSpec {
    /// What a block of that stored size is for.
    fn purpose(&self, psize: usize) -> Purpose {
        if matches!(self.obj_type, ObjType::DDT_ZAP | ObjType::DDT_STATS) {
            Purpose::Dedup
        } else if self.level > 0 || self.obj_type.is_metadata() {
            Purpose::Metadata
        } else if psize as u64 <= self.small {
            Purpose::SmallData
        } else {
            Purpose::Data
        }
    }
}

/// A block after the transforms that need no address.
pub struct Prepared {
    /// Bytes to store, PSIZE long; empty for holes and embedded blocks.
    data: Block,
    kind: PreparedKind,
    lsize: usize,
}

enum PreparedKind {
    Hole,
    Embedded(Vec<u8>, u8),
    Stored {
        compress: u8,
        checksum: checksum::Words,
        sealed: Option<Sealed>,
    },
}

pub struct ZioOptions {
    /// Bytes of the block cache.
    pub cache_bytes: u64,
    /// A random number for the block cache.
    pub seed: u64,
    /// False for pools of version < 2: one copy of everything.
    pub writable: bool,
}

/// The pipelines of one pool.
pub struct Zio {
    pub devices: Arc<dyn Devices>,
    pub allocator: Arc<dyn Allocator>,
    pub cache: Cache,
    writable: bool,
    salt: OnceLock<[u8; 32]>,
    queue: Mutex<Queue>,
    /// Blocks queued or being submitted, by address: reads look here first.
    pending: RwLock<HashMap<(u64, u64), Block>>,
    /// What later passes of the group being written replaced in `pending`, by address.
    superseded: Mutex<HashMap<(u64, u64), Vec<Block>>>,
    /// Blocks that failed verification on every copy, counted for status.
    pub unrecoverable: AtomicU64,
    /// Deflated bytes that were to be freed and could not be found, since this was last taken.
    leaked: AtomicU64,
    /// Last group known to be on disk.
    synced: AtomicU64,
    flights: Flights,
    /// Held for reading while copies are put right; see [`Zio::settle`].
    repairs: RwLock<()>,
    sharing: OnceLock<Weak<dyn Sharing>>,
    waits: OnceLock<Weak<dyn Waits>>,
}

#[derive(Default)]
struct Queue {
    writes: Vec<PhysWrite>,
    index: HashMap<(u64, u64), usize>,
    bytes: usize,
    /// Devices refused what was queued; it is sent again when somebody asks for it.
    refused: bool,
}

impl Queue {
    /// Adds a write; returns the data it replaces, if its place is queued already.
    fn put(&mut self, w: PhysWrite) -> Option<Block> {
        let key = (w.vdev, w.offset);
        self.bytes += w.data.len();
        match self.index.get(&key).copied() {
            // A later sync pass rewrites in place: only the newest content must land.
            Some(i) => {
                let before = std::mem::replace(&mut self.writes[i].data, w.data);
                self.bytes -= before.len();
                Some(before)
            }
            None => {
                self.index.insert(key, self.writes.len());
                self.writes.push(w);
                None
            }
        }
    }
}

/// How often a block that syncing context needs is read again when its devices fail.
const READ_AGAIN: u32 = 10;

impl Zio {
    pub fn new(devices: Arc<dyn Devices>, allocator: Arc<dyn Allocator>, opts: ZioOptions) -> Zio {
        Zio {
            devices,
            allocator,
            cache: Cache::new(opts.cache_bytes, opts.seed),
            writable: opts.writable,
            salt: OnceLock::new(),
            queue: Mutex::new(Queue::default()),
            pending: RwLock::new(HashMap::new()),
            superseded: Mutex::default(),
            leaked: AtomicU64::new(0),
            unrecoverable: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            flights: Flights::default(),
            repairs: RwLock::new(()),
            sharing: OnceLock::new(),
            waits: OnceLock::new(),
        }
    }

    /// Group `txg` is on disk.
    pub fn set_synced(&self, txg: Txg) {
        self.synced.store(txg, Ordering::Release);
    }

    /// To be called when a group begins to be written: waits until no copy is being put right, so
    /// that none is by somebody who began more than one group ago.
    pub fn settle(&self) {
        drop(self.repairs.acquire_write());
        let mut old = self.superseded.acquire();
        old.clear();
    }

    /// To be had before a pointer is taken from its tree and passed to [`InUse::Since`]: a pointer
    /// that was in use then is not given to another block before two further groups are on disk.
    /// Until then what is wrong with the block is the fault of a device, and may be repaired.
    pub fn lease(&self) -> Lease {
        Lease::of(self.synced.load(Ordering::Acquire))
    }

    /// Whether what is found at the block's address must be the block: it is still in use, and not
    /// one that the group under way may write anew in the same place.
    fn is_in_use(&self, bp: &BlkPtr, how: How) -> bool {
        let How::Used(lease) = how else {
            return false;
        };
        let synced = self.synced.load(Ordering::Acquire);
        !self.writable
            || (bp.physical_birth() <= synced && synced <= lease.synced().saturating_add(1))
    }

    /// Who counts the references of shared blocks; set once. Without it none are shared.
    pub fn set_sharing(&self, sharing: Weak<dyn Sharing>) {
        let _ = self.sharing.set(sharing);
    }

    /// Who waits for devices that a txg needs and that are away; set once. Without it nobody does.
    pub fn set_waits(&self, waits: Weak<dyn Waits>) {
        let _ = self.waits.set(waits);
    }

    fn sharing(&self) -> Option<Arc<dyn Sharing>> {
        self.sharing.get().and_then(Weak::upgrade)
    }

    /// Whether freeing the block may need a table of shared blocks.
    pub fn may_share(&self, bp: &BlkPtr) -> bool {
        bp.is_dedup() || Self::is_data(bp) && self.sharing().is_some_and(|s| s.may_share(bp))
    }

    /// Only whole blocks of files and volumes are ever shared.
    fn is_data(bp: &BlkPtr) -> bool {
        bp.level() == 0 && !bp.obj_type().is_metadata()
    }

    /// The pool's salt for keyed checksums; set once, when the MOS has been read.
    pub fn set_salt(&self, salt: [u8; 32]) {
        let _ = self.salt.set(salt);
    }

    fn salt(&self) -> [u8; 32] {
        self.salt.get().copied().unwrap_or([0; 32])
    }

    /// Deflated allocated size of a block (data format §1 "dsize").
    pub fn dsize(&self, bp: &BlkPtr) -> u64 {
        bp.dvas()
            .iter()
            .map(|d| self.devices.deflate(d.vdev(), d.asize()))
            .sum()
    }

    // ---- reading -------------------------------------------------------------------------------

    /// Reads one block with [`ReadSpec::default`]: not encrypted, pointer taken just now.
    ///
    /// # Errors
    /// Those of [`Zio::read_with`].
    pub fn read(&self, bp: &BlkPtr) -> Result<Block> {
        self.read_with(bp, &ReadSpec::default())
    }

    /// Rewrites all copies of a block that may be gone with its right content, if one copy has it. No other block
    /// may be using the space.
    pub fn make_whole(&self, bp: &BlkPtr) -> Result<()> {
        if bp.is_hole() || bp.is_embedded() {
            return Ok(());
        }
        bp.sanity(self.devices.vdevs())?;
        let raw = self.read_copies(bp, 0, How::Probe)?;
        for dva in bp.dvas().iter().filter(|d| !d.is_gang()) {
            // Where that fails the device is told by what fails next.
            let _ = self.devices.mend(dva, bp.physical_birth(), &raw);
        }
        Ok(())
    }

    /// Whether a block that may be gone is still stored. Takes no key; no error is charged to a device.
    pub fn probe_raw(&self, bp: &BlkPtr) -> Result<()> {
        bp.sanity(self.devices.vdevs())?;
        self.read_copies(bp, 0, How::Probe).map(|_| ())
    }

    /// Reads one block: the decompressed, verified, little-endian content; zeros for a hole of known size.
    ///
    /// With [`Crypt::Locked`], blocks of dnodes come as they are stored: cores and pointers in clear,
    /// bonus buffers encrypted.
    ///
    /// # Errors
    /// [`Kind::Access`] for an encrypted block without a key; [`Kind::Checksum`] if no copy verifies;
    /// [`Kind::Io`] if no copy can be read.
    pub fn read_with(&self, bp: &BlkPtr, spec: &ReadSpec) -> Result<Block> {
        let crypt = spec.crypt;
        base::mutation::panic_point("reading a block");
        if bp.is_hole() {
            return Ok(Arc::new(vec![0; bp.lsize()]));
        }
        if bp.is_embedded() {
            return self.read_embedded(bp);
        }
        if crypt.key().is_none() && bp.is_encrypted() {
            let clear = matches!(crypt, Crypt::Locked) && bp.obj_type() == ObjType::DNODE;
            if !clear {
                bail!(Access, "encrypted block without a key: {bp:?}");
            }
            bp.sanity(self.devices.vdevs())?;
            // Never into the cache: it is not what readers with the key want.
            return self.decode(bp, self.read_copies(bp, 0, self.how(spec))?);
        }
        let whole = spec.whole.at(0);
        if let Some(b) = self.cached(bp, whole) {
            return Ok(b);
        }
        let how = self.how(spec);
        bp.sanity(self.devices.vdevs())?;
        let mut lead = None;
        // What nobody can vouch for without a key is for those who have none.
        let vouched = !bp.uses_crypt() || crypt.key().is_some();
        // Others must not follow a read of syncing context, which may wait for devices that are away.
        if vouched && matches!(how, How::Used(_)) && !syncing::here() {
            match self.flights.board(Key::of(bp)) {
                Boarding::Lead(l) => lead = Some(l),
                Boarding::Follow(f) => {
                    if let Some(b) = f.wait() {
                        return Ok(b);
                    }
                }
            }
        }
        let raw = self.read_copies(bp, 0, how)?;
        let r = self.finish(bp, crypt, raw, whole, spec.keep);
        if let (Some(l), Ok(b)) = (lead, &r) {
            l.landed(b);
        }
        if r.as_ref().is_err_and(|e| e.kind == Kind::Checksum) && !matches!(how, How::Probe) {
            self.unrecoverable.fetch_add(1, Ordering::Relaxed);
        }
        r
    }

    /// From the stored bytes to the content: decrypted or authenticated, decompressed, in order, kept if
    /// it is in `scope`. `whole`: all of it goes to the reader.
    fn finish(
        &self,
        bp: &BlkPtr,
        crypt: &Crypt,
        mut raw: Vec<u8>,
        whole: bool,
        scope: Scope,
    ) -> Result<Block> {
        let keep = |b: &Block| match whole {
            _ if !scope.has(bp) => {}
            true => self.cache.insert_whole(bp, b.clone()),
            false => self.cache.insert(bp, b.clone()),
        };
        if !bp.uses_crypt() || bp.obj_type() == ObjType::OBJSET {
            let b = self.decode(bp, raw)?;
            keep(&b);
            return Ok(b);
        }
        let wrong = |e: Error| e.context(format!("block {bp:?}"));
        if bp.level() > 0 {
            let b = self.decode(bp, raw)?;
            crypt::check_indirect(bp, &b).map_err(wrong)?;
            keep(&b);
            return Ok(b);
        }
        match crypt.key() {
            Some(key) => {
                crypt::open(bp, key, &mut raw).map_err(wrong)?;
                let b = self.decode(bp, raw)?;
                keep(&b);
                Ok(b)
            }
            // In clear, but nobody can say whether it is right: not for those who have the key.
            None => self.decode(bp, raw),
        }
    }

    fn read_embedded(&self, bp: &BlkPtr) -> Result<Block> {
        bp.sanity(u64::MAX)?;
        if bp.embedded_type() != 0 {
            bail!(Io, "redacted or unknown embedded block: {bp:?}");
        }
        self.decode(bp, bp.embedded_payload())
    }

    fn decode(&self, bp: &BlkPtr, raw: Vec<u8>) -> Result<Block> {
        let mut data = match bp.compress() {
            2 => {
                if raw.len() < bp.lsize() {
                    return Err(Error::damaged(format!(
                        "uncompressed block too short: {bp:?}"
                    )));
                }
                let mut raw = raw;
                raw.truncate(bp.lsize());
                raw
            }
            alg => compress::decompress(alg, &raw, bp.lsize())
                .map_err(|e| e.context(format!("{bp:?}")))?,
        };
        if !bp.is_little_endian() {
            swap::block(bp.obj_type(), bp.level(), &mut data)?;
        }
        Ok(Arc::new(data))
    }

    /// The PSIZE bytes of the block, verified, from whichever copy is good.
    pub fn read_raw(&self, bp: &BlkPtr) -> Result<Vec<u8>> {
        self.read_copies(bp, 0, How::Used(self.lease()))
    }

    fn how(&self, spec: &ReadSpec) -> How {
        match spec.in_use {
            InUse::Now => How::Used(self.lease()),
            InUse::Since(lease) => How::Used(lease),
            InUse::Unknown => How::Probe,
        }
    }

    fn cached(&self, bp: &BlkPtr, whole: bool) -> Option<Block> {
        match whole {
            true => self.cache.get_whole(bp),
            false => self.cache.get(bp),
        }
    }

    fn read_copies(&self, bp: &BlkPtr, depth: u32, how: How) -> Result<Vec<u8>> {
        let verify = self.verifier(bp);
        if !bp.is_gang() {
            // A later pass of the same group may have put something else in this place.
            for b in self.unwritten(&bp.dva(0)) {
                if b.len() == bp.psize() && verify(&b) {
                    return Ok(b.to_vec());
                }
            }
        }
        let none = Error::damaged(format!("no address in {bp:?}"));
        self.read_from(bp, 0, depth, how, (Vec::new(), none))
    }

    /// Tries the copies from number `first` on; `before` is what was wrong with those before.
    fn read_from(
        &self,
        bp: &BlkPtr,
        first: usize,
        depth: u32,
        how: How,
        before: (Vec<Wrong>, Error),
    ) -> Result<Vec<u8>> {
        let verify = self.verifier(bp);
        let (mut wrong, mut last) = before;
        let mut next = first;
        // In syncing context an error would count as damage, and what depends on the block be given up.
        let mut again = match syncing::here() && !matches!(how, How::Probe) {
            true => READ_AGAIN,
            false => 0,
        };
        loop {
            for (i, dva) in bp.dvas().iter().enumerate().skip(next) {
                let r = if dva.is_gang() {
                    self.read_gang(bp, i, depth, how).and_then(|b| {
                        if verify(&b) {
                            Ok(b)
                        } else {
                            Err(Error::new(Kind::Checksum, format!("gang block {bp:?}")))
                        }
                    })
                } else if let How::Probe = how {
                    self.devices
                        .probe(dva, bp.psize(), bp.physical_birth(), &verify)
                } else {
                    let l = self.look(dva, bp.psize(), bp.physical_birth(), &verify);
                    wrong.extend(l.wrong);
                    l.data
                };
                match r {
                    Ok(b) => {
                        if !wrong.is_empty() {
                            self.heal(bp, &wrong, &b, how, false);
                        }
                        return Ok(b);
                    }
                    Err(e) => last = e,
                }
            }
            if matches!(how, How::Probe) {
                break;
            }
            if !self.await_readable(bp, &last) {
                if again == 0 || last.kind != Kind::Io {
                    break;
                }
                again -= 1;
            }
            (next, wrong) = (0, Vec::new());
        }
        if self.is_in_use(bp, how) {
            self.devices.count(&wrong);
            self.devices.count_lost();
            self.unrecoverable.fetch_add(1, Ordering::Relaxed);
        }
        if let How::Probe = how {
            return Err(last);
        }
        Err(last.context(format!("block {bp:?}")))
    }

    /// Whether a top-level vdev cannot be used now.
    pub fn devices_away(&self) -> bool {
        let waits = self.waits.get().and_then(Weak::upgrade);
        waits.is_some_and(|w| w.is_away())
    }

    /// In syncing context: waits for the devices of a block if they are away. True: they are back.
    fn await_readable(&self, bp: &BlkPtr, why: &Error) -> bool {
        let Some(waits) = self.waits.get().filter(|_| syncing::here()) else {
            return false;
        };
        let vdevs: Vec<u64> = bp.dvas().iter().map(|d| d.vdev()).collect();
        waits
            .upgrade()
            .is_some_and(|w| w.await_readable(&vdevs, why))
    }

    fn look(
        &self,
        dva: &Dva,
        psize: usize,
        birth: Txg,
        verify: &(dyn Fn(&[u8]) -> bool + Sync),
    ) -> Looked {
        let one = ReadOne {
            dva: *dva,
            psize,
            birth,
            verify,
        };
        self.devices.look(&[one]).pop().unwrap_or(Looked {
            data: Err(Error::from(Kind::Io)),
            wrong: Vec::new(),
        })
    }

    /// Some copies of a block are wrong, and this is its right content (of a gang: of its header):
    /// counts them and puts them right, if the block is still what is to be found there.
    fn heal(&self, bp: &BlkPtr, wrong: &[Wrong], right: &[u8], how: How, header: bool) {
        let _no_new_group = self.repairs.acquire_read();
        if !self.is_in_use(bp, how) {
            return;
        }
        self.devices.count(wrong);
        if self.writable {
            // A pointer that promises more than it owns must not reach its neighbours.
            let owned =
                |d: &Dva| header || self.devices.asize(d.vdev(), right.len() as u64) <= d.asize();
            for dva in bp.dvas().iter().filter(|d| d.is_gang() == header) {
                if !owned(dva) {
                    continue;
                }
                // Who cannot be repaired stays counted.
                let _ = self.devices.mend(dva, bp.physical_birth(), right);
            }
        }
    }

    /// Says whether PSIZE bytes are the ones the pointer means.
    fn verifier(&self, bp: &BlkPtr) -> impl Fn(&[u8]) -> bool + Sync {
        let salt = self.salt();
        let alg = bp.checksum_alg();
        let want = bp.checksum();
        let swapped = !bp.is_little_endian();
        let truncated = bp.uses_crypt() && bp.obj_type() != ObjType::OBJSET;
        move |b: &[u8]| {
            base::mutation::mutated(base::mutation::Mutation::ChecksumOff)
                || alg == checksum::OFF
                || alg == checksum::NOPARITY
                || checksum::compute(alg, b, swapped, &salt).is_ok_and(|mut got| {
                    if truncated {
                        got = checksum::with_mac(alg, got, [0, 0]);
                        got[..2] == want[..2]
                    } else {
                        got == want
                    }
                })
        }
    }

    /// Reads many blocks, those not cached in one batch. One result for each, in order; otherwise
    /// as [`Zio::read_with`]. With [`InUse::Unknown`] there is no batch.
    pub fn read_many(&self, bps: &[BlkPtr], spec: &ReadSpec) -> Vec<Result<Block>> {
        let lease = match spec.in_use {
            InUse::Now => self.lease(),
            InUse::Since(lease) => lease,
            InUse::Unknown => return bps.iter().map(|bp| self.read_with(bp, spec)).collect(),
        };
        let spec = &ReadSpec {
            in_use: InUse::Since(lease),
            ..*spec
        };
        let one = |i: usize| {
            let whole = match spec.whole.at(i) {
                true => Whole::All,
                false => Whole::None,
            };
            self.read_with(&bps[i], &ReadSpec { whole, ..*spec })
        };
        let mut out: Vec<Option<Result<Block>>> = Vec::with_capacity(bps.len());
        let mut missing: Vec<(usize, Option<Lead>)> = Vec::new();
        let mut followed: Vec<(usize, Arc<Flight>)> = Vec::new();
        for (i, bp) in bps.iter().enumerate() {
            if !self.is_plain(bp, spec.crypt) {
                // May wait for what somebody else reads, who may wait for what is led here.
                if missing.is_empty() {
                    out.push(Some(one(i)));
                } else {
                    out.push(None);
                }
                continue;
            }
            out.push(self.cached(bp, spec.whole.at(i)).map(Ok));
            if out[i].is_none() && syncing::here() {
                missing.push((i, None));
            } else if out[i].is_none() {
                match self.flights.board(Key::of(bp)) {
                    Boarding::Lead(l) => missing.push((i, Some(l))),
                    Boarding::Follow(f) => followed.push((i, f)),
                }
            }
        }
        self.read_missing(bps, lease, spec, &mut missing, &mut out);
        drop(missing);
        // Nothing is led any more.
        for (i, f) in followed {
            out[i] = f.wait().map(Ok);
        }
        for (i, r) in out.iter_mut().enumerate().filter(|(_, r)| r.is_none()) {
            *r = Some(one(i));
        }
        out.into_iter()
            .map(|r| r.unwrap_or_else(|| Err(Error::damaged("a read was lost"))))
            .collect()
    }

    /// Whether the block can be read in a batch with others.
    fn is_plain(&self, bp: &BlkPtr, crypt: &Crypt) -> bool {
        !bp.is_hole()
            && !bp.is_embedded()
            && !bp.is_gang()
            && (!bp.uses_crypt() || crypt.key().is_some())
            && bp.sanity(self.devices.vdevs()).is_ok()
            && self.unwritten(&bp.dva(0)).is_empty()
    }

    /// What the devices have of these blocks, by index, in one batch.
    /// `ahead`: nobody waits for them.
    fn look_at(
        &self,
        bps: &[BlkPtr],
        wanted: &[(usize, Option<Lead>)],
        ahead: bool,
    ) -> Vec<Looked> {
        if wanted.is_empty() {
            return Vec::new();
        }
        let verifiers: Vec<_> = wanted
            .iter()
            .map(|(i, _)| self.verifier(&bps[*i]))
            .collect();
        let reqs: Vec<ReadOne> = wanted
            .iter()
            .zip(&verifiers)
            .map(|((i, _), v)| ReadOne {
                dva: bps[*i].dva(0),
                psize: bps[*i].psize(),
                birth: bps[*i].physical_birth(),
                verify: v,
            })
            .collect();
        match ahead {
            true => self.devices.look_ahead(&reqs),
            false => self.devices.look(&reqs),
        }
    }

    fn read_missing(
        &self,
        bps: &[BlkPtr],
        lease: Lease,
        spec: &ReadSpec,
        missing: &mut [(usize, Option<Lead>)],
        out: &mut [Option<Result<Block>>],
    ) {
        let how = How::Used(lease);
        let got = self.look_at(bps, missing, false);
        for ((i, lead), l) in missing.iter_mut().zip(got) {
            let (i, bp) = (*i, &bps[*i]);
            let raw = match l.data {
                Ok(raw) => {
                    if !l.wrong.is_empty() {
                        self.heal(bp, &l.wrong, &raw, how, false);
                    }
                    Ok(raw)
                }
                // Other copies, and the bookkeeping of failures.
                Err(e) => self.read_from(bp, 1, 0, how, (l.wrong, e)),
            };
            let r =
                raw.and_then(|raw| self.finish(bp, spec.crypt, raw, spec.whole.at(i), spec.keep));
            if let (Some(lead), Ok(b)) = (lead.take(), &r) {
                lead.landed(b);
            }
            out[i] = Some(r);
        }
    }

    /// Read-ahead: brings blocks into the cache, those of [`ReadSpec::keep`]; others are not read. Errors
    /// are left to whoever reads the blocks later: nothing is repaired or counted. Returns how many
    /// blocks were neither cached nor being read.
    pub fn read_ahead(&self, bps: &[BlkPtr], spec: &ReadSpec) -> usize {
        let (crypt, keep) = (spec.crypt, spec.keep);
        let mut wanted: Vec<(usize, Option<Lead>)> = Vec::new();
        for (i, bp) in bps.iter().enumerate() {
            if keep.has(bp) && self.is_plain(bp, crypt) && !self.cache.has(bp) {
                if let Boarding::Lead(l) = self.flights.board(Key::of(bp)) {
                    wanted.push((i, Some(l)));
                }
            }
        }
        let (got, count) = (self.look_at(bps, &wanted, true), wanted.len());
        for ((i, lead), l) in wanted.into_iter().zip(got) {
            let Ok(raw) = l.data else { continue };
            if !l.wrong.is_empty() {
                continue;
            }
            let whole = spec.whole.at(i);
            if let (Some(lead), Ok(b)) = (lead, self.finish(&bps[i], crypt, raw, whole, keep)) {
                lead.landed(&b);
            }
        }
        count
    }

    /// What is or was queued for this address in the group under way, newest first.
    fn unwritten(&self, d: &Dva) -> Vec<Block> {
        let p = self.pending.acquire_read();
        let key = (d.vdev(), d.offset());
        let mut out: Vec<Block> = p.get(&key).cloned().into_iter().collect();
        drop(p);
        let old = self.superseded.acquire();
        if let Some(list) = old.get(&key) {
            out.extend(list.iter().rev().cloned());
        }
        out
    }

    // ---- writing -------------------------------------------------------------------------------

    /// Compresses and checksums; needs no address, so many blocks may be prepared in parallel.
    pub fn prepare(&self, spec: &WriteSpec, data: &Block) -> Result<Prepared> {
        self.prepare_with(spec, data, None)
    }

    /// The same for a block of an encrypted dataset, which is encrypted or authenticated as its type
    /// asks for. An object set's MACs have to be in it already.
    pub fn prepare_with(
        &self,
        spec: &WriteSpec,
        data: &Block,
        seal: Option<&Seal>,
    ) -> Result<Prepared> {
        let mut spec = *spec;
        if seal.is_some() {
            spec.embed = false;
            let bare = spec.obj_type == ObjType::DNODE || spec.obj_type == ObjType::OBJSET;
            if spec.level == 0 && bare {
                spec.compress = compress::EMPTY;
            }
        }
        let lsize = data.len();
        let hole = |kind| Prepared {
            data: Arc::new(Vec::new()),
            kind,
            lsize,
        };
        let mut body: Option<(Vec<u8>, u8)> = None;
        if spec.compress != compress::OFF {
            // The dnode and objset blocks of an object set always hold something, so this can
            // only make holes of data, directories of nothing and indirect blocks of holes.
            if compress::is_zero(data) {
                return Ok(hole(PreparedKind::Hole));
            }
            if spec.compress != compress::EMPTY {
                let unit = self.devices.min_alloc();
                let room = (lsize - lsize / 8) / unit * unit;
                let embed = spec.embed
                    && spec.level == 0
                    && spec.obj_type != ObjType::DNODE
                    && spec.obj_type != ObjType::OBJSET;
                let limit = if embed {
                    room.max(disk::blkptr::EMBEDDED_MAX)
                } else {
                    room
                };
                if limit > 0 {
                    if let Some(c) = compress::compress(spec.compress, spec.zstd_level, data, limit)
                    {
                        if embed && c.len() <= disk::blkptr::EMBEDDED_MAX {
                            return Ok(hole(PreparedKind::Embedded(c, spec.compress)));
                        }
                        let psize = roundup(c.len() as u64, unit as u64) as usize;
                        if c.len() <= room && psize < lsize {
                            let mut c = c;
                            c.resize(psize, 0);
                            body = Some((c, spec.compress));
                        }
                    }
                }
            }
        }
        let whole = data;
        let (data, compress) = match body {
            Some((c, alg)) => (Arc::new(c), alg),
            None => (data.clone(), compress::OFF),
        };
        let (data, sealed) = match seal {
            Some(s) => {
                let (d, x) = crypt::seal(s, spec.obj_type, spec.level, whole, data)?;
                (d, Some(x))
            }
            None => (data, None),
        };
        let mut checksum = checksum::compute(spec.checksum, &data, false, &self.salt())?;
        if let Some(x) = &sealed {
            checksum = x.words(spec.checksum, checksum);
        }
        Ok(Prepared {
            data,
            kind: PreparedKind::Stored {
                compress,
                checksum,
                sealed,
            },
            lsize,
        })
    }

    /// Gives the prepared block an address and queues it. `old` is the pointer it replaces: if that
    /// was born in this very txg with the same physical size, or is compressed to more than this
    /// one needs, its place is used again (so that the sync passes converge). Fill is 0 or, for embedded blocks, implied; the caller sets it.
    pub fn issue(&self, spec: &WriteSpec, p: &Prepared, txg: Txg, old: &BlkPtr) -> Result<BlkPtr> {
        base::mutation::panic_point("issuing the write of a block");
        self.check_writable()?;
        let (compress, sum, sealed) = match &p.kind {
            PreparedKind::Hole => {
                // A hole over a hole stays what it was: its birth says when data ended here.
                if old.is_hole() {
                    return Ok(*old);
                }
                return Ok(if spec.hole_birth {
                    BlkPtr::hole_born(spec.obj_type, spec.level, p.lsize, txg)
                } else {
                    BlkPtr::HOLE
                });
            }
            PreparedKind::Embedded(payload, alg) => {
                return Ok(BlkPtr::embedded(
                    spec.obj_type,
                    spec.level,
                    p.lsize,
                    *alg,
                    payload,
                    txg,
                ));
            }
            PreparedKind::Stored {
                compress,
                checksum,
                sealed,
            } => (*compress, *checksum, sealed),
        };
        let (mut data, mut sum) = (p.data.clone(), sum);
        if let Some(psize) = Self::roomier(old, txg, p) {
            let mut longer = Vec::with_capacity(psize);
            longer.extend_from_slice(&data);
            longer.resize(psize, 0);
            data = Arc::new(longer);
            sum = checksum::compute(spec.checksum, &data, false, &self.salt())?;
        }
        let psize = data.len();
        let mut bp = BlkPtr::new(
            spec.obj_type,
            spec.level,
            p.lsize,
            psize,
            compress,
            spec.checksum,
            txg,
        );
        bp.set_checksum(sum);
        if let Some(x) = sealed {
            x.mark(&mut bp);
        }
        // Equal data are different blocks once encrypted.
        if spec.dedup && sealed.is_none() {
            if let Some(bp) = self.dedup(&mut bp, spec, &data, txg)? {
                return Ok(bp);
            }
        }
        if !bp.is_dedup() && Self::reusable(old, txg, psize) {
            // Not what else may stand in the place of the third.
            for (i, d) in old.dvas().into_iter().enumerate() {
                bp.set_dva(i, d);
            }
            // Same address, same birth. Without a checksum the cache could not tell them apart.
            if Key::of(old) == Key::of(&bp) {
                self.cache.remove(old);
            }
            if old.is_gang() {
                self.rewrite_gang(&bp, &data, txg, 0)?;
                return Ok(bp);
            }
            for d in bp.dvas() {
                self.enqueue(&d, data.clone(), txg)?;
            }
            return Ok(bp);
        }
        self.place(&mut bp, spec.purpose(psize), &data, spec, txg, 0)?;
        if bp.is_dedup() {
            if let Some(s) = self.sharing() {
                s.insert(&bp, spec.copies)?;
            }
        }
        Ok(bp)
    }

    /// Marks the block as one of the dedup table, if it is to be. `Some`: it is there already.
    fn dedup(
        &self,
        bp: &mut BlkPtr,
        spec: &WriteSpec,
        data: &Block,
        txg: Txg,
    ) -> Result<Option<BlkPtr>> {
        let Some(s) = self.sharing() else {
            return Ok(None);
        };
        bp.set_dedup(true);
        let same = |there: &BlkPtr| -> Result<bool> {
            match self.read_raw(there) {
                Ok(b) => Ok(b == **data),
                // What cannot be read is not the same.
                Err(e) if e.is_damage() => Ok(false),
                Err(e) => Err(e),
            }
        };
        let verify: Option<&dyn Fn(&BlkPtr) -> Result<bool>> = match spec.verify {
            true => Some(&same),
            false => None,
        };
        match s.find(bp, spec.copies, verify)? {
            Dedup::Same(dvas, born) => {
                for (i, d) in dvas.into_iter().enumerate() {
                    bp.set_dva(i, d);
                }
                debug_assert!(born <= txg);
                bp.set_physical_birth(born);
                Ok(Some(*bp))
            }
            Dedup::New => Ok(None),
            Dedup::Apart => {
                bp.set_dedup(false);
                Ok(None)
            }
        }
    }

    /// Whether `issue` will write over `old` in place, i.e. nothing is born and nothing dies.
    fn reusable(old: &BlkPtr, txg: Txg, psize: usize) -> bool {
        !old.is_hole()
            && !old.is_embedded()
            && old.logical_birth() == txg
            && old.physical_birth() == txg
            && old.psize() == psize
            && !old.is_dedup()
    }

    /// PSIZE to which a compressed block grows, with zeros, to take the place `old` got in an earlier
    /// pass. Without it a space map that shrinks by a sector because it has to tell of its own
    /// new place, and grows again by telling of the next, keeps the passes from converging.
    fn roomier(old: &BlkPtr, txg: Txg, p: &Prepared) -> Option<usize> {
        let PreparedKind::Stored {
            compress,
            sealed: None,
            ..
        } = &p.kind
        else {
            return None;
        };
        let psize = old.psize();
        let fits = *compress != compress::OFF && (p.data.len() + 1..p.lsize).contains(&psize);
        (fits && old.compress() != compress::OFF && Self::reusable(old, txg, psize))
            .then_some(psize)
    }

    /// True if `new` took over the place of `old`. One of a dedup table never does: that it is at the
    /// same place means one reference more.
    pub fn same_place(old: &BlkPtr, new: &BlkPtr) -> bool {
        !old.is_hole()
            && !old.is_embedded()
            && !new.is_embedded()
            && !new.is_dedup()
            && old.dva(0) == new.dva(0)
            && old.physical_birth() == new.physical_birth()
    }

    /// Salt and nonce take the third place.
    fn most_copies(bp: &BlkPtr) -> u8 {
        if bp.is_encrypted() {
            2
        } else {
            disk::blkptr::DVAS as u8
        }
    }

    fn place(
        &self,
        bp: &mut BlkPtr,
        purpose: Purpose,
        data: &Block,
        spec: &WriteSpec,
        txg: Txg,
        depth: u32,
    ) -> Result<()> {
        let psize = data.len() as u64;
        let copies = spec.copies.clamp(1, Self::most_copies(bp)) as usize;
        let size_on = |v: u64| self.devices.asize(v, psize);
        match self.allocator.alloc(purpose, psize, copies, txg, &size_on) {
            Ok(dvas) => {
                for (i, d) in dvas.iter().take(disk::blkptr::DVAS).enumerate() {
                    bp.set_dva(i, *d);
                    self.enqueue(d, data.clone(), txg)?;
                }
                Ok(())
            }
            Err(e) if e.kind == Kind::NoSpace && psize > 512 => self
                .place_gang(bp, purpose, data, spec, txg, depth)
                .map_err(|g| if g.kind == Kind::NoSpace { e } else { g }),
            Err(e) => Err(e),
        }
    }

    fn enqueue(&self, d: &Dva, data: Block, txg: Txg) -> Result<()> {
        base::mutation::panic_point("queueing a write");
        let key = (d.vdev(), d.offset());
        let full = {
            let mut q = self.queue.acquire();
            self.pending.acquire_write().insert(key, data.clone());
            let (vdev, offset) = key;
            self.supersede(key, q.put(PhysWrite { vdev, offset, data }));
            q.bytes >= QUEUE_BYTES
        };
        if full {
            self.drain_some(txg);
        }
        Ok(())
    }

    /// Who has the pointer of an earlier pass still wants what it led to.
    fn supersede(&self, key: (u64, u64), before: Option<Block>) {
        if let Some(before) = before {
            let mut old = self.superseded.acquire();
            old.entry(key).or_default().push(before);
        }
    }

    /// Bytes waiting to be submitted.
    pub fn queued_bytes(&self) -> usize {
        self.queue.acquire().bytes
    }

    /// Submits everything queued and returns when the devices have taken it (not flushed). Only
    /// the thread that syncs calls this, so two submissions of one place cannot overtake.
    ///
    /// Errors: the devices refuse some of it. All of it stays queued, to be read from there and for
    /// another call.
    pub fn drain(&self, txg: Txg) -> Result<()> {
        base::mutation::panic_point("draining the queue of writes");
        let q = std::mem::take(&mut *self.queue.acquire());
        if q.writes.is_empty() {
            return Ok(());
        }
        if let Err(e) = self.devices.write(&q.writes, txg) {
            let mut queue = self.queue.acquire();
            let newer = std::mem::replace(&mut *queue, q);
            for w in newer.writes {
                self.supersede((w.vdev, w.offset), queue.put(w));
            }
            queue.refused = true;
            return Err(e);
        }
        let mut p = self.pending.acquire_write();
        for w in &q.writes {
            let key = (w.vdev, w.offset);
            if p.get(&key).is_some_and(|b| Arc::ptr_eq(b, &w.data)) {
                p.remove(&key);
            }
        }
        Ok(())
    }

    /// [`Zio::drain`] to keep the queue short, for callers that hold locks: what devices refuse stays
    /// queued until the next [`Zio::drain`], which tells of it.
    pub fn drain_some(&self, txg: Txg) {
        let refused = self.queue.acquire().refused;
        if !refused {
            // Told by the next one.
            let _ = self.drain(txg);
        }
    }

    fn check_writable(&self) -> Result<()> {
        if !self.writable {
            bail!(ReadOnly, "the pool was opened read-only");
        }
        Ok(())
    }

    /// A pointer to a block (not its subtree) is gone in `txg`: frees the space, unless others share
    /// it.
    pub fn free(&self, bp: &BlkPtr, txg: Txg) -> Result<()> {
        self.check_writable()?;
        if bp.is_hole() || bp.is_embedded() {
            return Ok(());
        }
        if bp.is_dedup() || Self::is_data(bp) {
            if let Some(s) = self.sharing() {
                if !s.release(bp, txg)? {
                    return Ok(());
                }
            }
        }
        self.free_space(bp, txg)
    }

    /// Frees the space of a block in `txg`, whoever else refers to it.
    pub fn free_space(&self, bp: &BlkPtr, txg: Txg) -> Result<()> {
        self.check_writable()?;
        if bp.is_hole() || bp.is_embedded() {
            return Ok(());
        }
        if bp.is_gang() {
            return self.free_gang(bp, txg, 0);
        }
        for d in bp.dvas() {
            self.free_range(d.vdev(), d.offset(), d.asize(), bp.physical_birth(), txg)?;
        }
        Ok(())
    }

    /// Deflated bytes of gang members that could not be freed since the last call, because no copy of
    /// their header can be read.
    pub fn take_leaked(&self) -> u64 {
        self.leaked.swap(0, Ordering::Relaxed)
    }

    /// See [`crate::Allocator::room`].
    pub fn room(&self) -> u64 {
        self.allocator.room()
    }

    fn free_range(&self, vdev: u64, offset: u64, asize: u64, birth: Txg, txg: Txg) -> Result<()> {
        if birth < txg
            && self
                .sharing()
                .is_some_and(|s| s.keeps(vdev, offset, asize, birth))
        {
            return Ok(());
        }
        self.allocator.free(vdev, offset, asize, txg)
    }

    // ---- whole, unqueued writes for the intent log ---------------------------------------------

    /// Allocates one copy of `size` bytes for the intent log.
    pub fn alloc_log(&self, size: usize, txg: Txg) -> Result<Dva> {
        self.check_writable()?;
        let size_on = |v: u64| self.devices.asize(v, size as u64);
        let d = self
            .allocator
            .alloc(Purpose::Log, size as u64, 1, txg, &size_on)?;
        d.first()
            .copied()
            .ok_or_else(|| Error::new(Kind::NoSpace, "no space for the intent log"))
    }

    /// Places prepared blocks and writes them now in one batch, past the queue (data of indirect log
    /// records). `None` for what takes no space or finds no contiguous place.
    pub fn write_through(
        &self,
        blocks: &[(&WriteSpec, &Prepared)],
        txg: Txg,
    ) -> Vec<Result<Option<BlkPtr>>> {
        let mut writes = Vec::new();
        let mut out: Vec<Result<Option<BlkPtr>>> = blocks
            .iter()
            .map(|(spec, p)| {
                self.check_writable()?;
                self.place_through(spec, p, txg, &mut writes)
            })
            .collect();
        if writes.is_empty() {
            return out;
        }
        if let Err(e) = self.devices.write(&writes, txg) {
            for r in &mut out {
                if let Ok(Some(bp)) = r {
                    let freed = self.free_space(bp, txg);
                    *r = Err(freed.err().unwrap_or_else(|| e.clone()));
                }
            }
        }
        out
    }

    fn place_through(
        &self,
        spec: &WriteSpec,
        p: &Prepared,
        txg: Txg,
        writes: &mut Vec<PhysWrite>,
    ) -> Result<Option<BlkPtr>> {
        let PreparedKind::Stored {
            compress,
            checksum,
            sealed,
        } = &p.kind
        else {
            return Ok(None);
        };
        let psize = p.data.len();
        let size_on = |v: u64| self.devices.asize(v, psize as u64);
        let most = if matches!(sealed, Some(Sealed::Encrypted(..))) {
            2
        } else {
            disk::blkptr::DVAS as u8
        };
        let copies = spec.copies.clamp(1, most) as usize;
        let dvas =
            match self
                .allocator
                .alloc(spec.purpose(psize), psize as u64, copies, txg, &size_on)
            {
                Ok(d) => d,
                Err(e) if e.kind == Kind::NoSpace => return Ok(None),
                Err(e) => return Err(e),
            };
        let mut bp = BlkPtr::new(
            spec.obj_type,
            spec.level,
            p.lsize,
            psize,
            *compress,
            spec.checksum,
            txg,
        );
        bp.set_checksum(*checksum);
        if let Some(x) = sealed {
            x.mark(&mut bp);
        }
        for (i, d) in dvas.iter().take(disk::blkptr::DVAS).enumerate() {
            bp.set_dva(i, *d);
            writes.push(PhysWrite {
                vdev: d.vdev(),
                offset: d.offset(),
                data: p.data.clone(),
            });
        }
        Ok(Some(bp))
    }

    /// Writes now in one batch, past the queue (intent-log blocks; durability needs a flush).
    pub fn write_now(&self, blocks: &[(Dva, Block)], txg: Txg) -> Result<()> {
        base::mutation::panic_point("writing log blocks");
        self.check_writable()?;
        let writes: Vec<PhysWrite> = blocks
            .iter()
            .map(|(dva, data)| PhysWrite {
                vdev: dva.vdev(),
                offset: dva.offset(),
                data: data.clone(),
            })
            .collect();
        self.devices.write_urgent(&writes, txg)
    }
}
