//! Reading one block: cache, copies, verification, repair (pool format §7, §12; behaviour §8).

use super::Zio;
use crate::cache::Key;
use crate::crypt::{self, Crypt};
use crate::flight::Boarding;
use crate::read_spec::{How, InUse, ReadSpec};
use crate::scope::Scope;
use crate::seam::{Looked, ReadOne, Wrong};
use crate::victims::{Content, Victim};
use crate::{swap, syncing};
use base::sync::RwLockExt;
use base::{bail, Block, Error, Kind, Result, Txg};
use codec::crypt::DatasetKey;
use codec::{checksum, compress};
use disk::{BlkPtr, Checksum, Compression, Dva, ObjType};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// How often a block that a change needs is read again when its devices fail.
pub const READ_AGAIN: u32 = 10;
/// The first pause before that, and the longest, nanoseconds.
const PAUSES: (u64, u64) = (1_000_000, 100_000_000);

impl Zio {
    /// Whether what is found at the block's address must be the block: it is still in use, and not
    /// one that the txg being written may write again at the same address.
    pub(super) fn is_in_use(&self, bp: &BlkPtr, how: How) -> bool {
        let How::Used(lease) = how else {
            return false;
        };
        let synced = Txg::new(self.synced.load(Ordering::Acquire));
        !self.writable || (bp.physical_birth() <= synced && synced <= lease.synced().after(1))
    }

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
            let clear =
                matches!(crypt, Crypt::Locked | Crypt::Raw(_)) && bp.obj_type() == ObjType::DNODE;
            if !clear {
                bail!(Access, "encrypted block without a key: {bp:?}");
            }
            bp.sanity(self.devices.vdevs())?;
            // Never into the cache: it is not what readers with the key want.
            return self.decode(bp, self.read_copies(bp, 0, self.how(spec))?);
        }
        let whole = spec.whole.at(0);
        if let Some(b) = self.cached(bp, whole, spec) {
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
        let r = self.finish(bp, spec, raw, whole);
        if let (Some(l), Ok(b)) = (lead, &r) {
            l.landed(b);
        }
        if r.as_ref().is_err_and(|e| e.kind == Kind::Checksum) && !matches!(how, How::Probe) {
            self.unrecoverable.fetch_add(1, Ordering::Relaxed);
        }
        r
    }

    /// From the stored bytes to the content: decrypted or authenticated, decompressed, in order, kept as `spec` says.
    /// `whole`: all of it goes to the reader.
    pub(super) fn finish(
        &self,
        bp: &BlkPtr,
        spec: &ReadSpec,
        mut raw: Vec<u8>,
        whole: bool,
    ) -> Result<Block> {
        let crypt = spec.crypt;
        let kept = spec.keep.has(bp);
        let passes = whole && self.cache.passes(bp);
        if kept && passes {
            self.cache.offer_stored(bp, &raw, spec.second);
        }
        let keep = |b: &Block| {
            if kept && !passes {
                self.cache.insert_for(bp, b.clone(), spec.second);
            }
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
            Compression::OFF => {
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

    /// What [`Zio::read_raw_many`] read of an encrypted block, decrypted: PSIZE bytes, compressed if the block is, with
    /// the padding to sectors that compression added.
    ///
    /// # Errors
    /// [`Kind::Checksum`] if they are not authentic.
    pub fn decrypt(&self, bp: &BlkPtr, key: &DatasetKey, mut raw: Vec<u8>) -> Result<Vec<u8>> {
        match crypt::open(bp, key, &mut raw) {
            Ok(()) => Ok(raw),
            Err(e) => {
                self.unrecoverable.fetch_add(1, Ordering::Relaxed);
                Err(e.context(format!("block {bp:?}")))
            }
        }
    }

    pub(super) fn how(&self, spec: &ReadSpec) -> How {
        match spec.in_use {
            InUse::Now => How::Used(self.lease()),
            InUse::Since(lease) => How::Used(lease),
            InUse::Unknown => How::Probe,
        }
    }

    pub(super) fn cached(&self, bp: &BlkPtr, whole: bool, spec: &ReadSpec) -> Option<Block> {
        let second = match spec.keep.has(bp) {
            true => spec.second,
            false => Scope::Nothing,
        };
        match whole {
            true => self.cache.get_whole(bp, second),
            false => self.cache.get_for(bp, second),
        }
    }

    /// The PSIZE bytes of a block that has left the block cache: made from its content where that gives the same bytes, or else
    /// read from the pool. None: they cannot be had, or must not be cached on a device.
    pub fn victim_bytes(&self, v: &Victim) -> Option<Vec<u8>> {
        let bp = &v.bp;
        let synced = Txg::new(self.synced.load(Ordering::Acquire));
        // A later pass of the txg being written may write something else to the same address.
        if bp.is_gang() || bp.physical_birth() > synced || bp.sanity(self.devices.vdevs()).is_err()
        {
            return None;
        }
        let verify = self.verifier(bp);
        let block = match &v.content {
            Content::Stored(raw) => return verify(raw).then(|| raw.clone()),
            Content::Plain(block) => block,
        };
        // Of zstd nobody knows the level, and the key of an encrypted block may be gone.
        if !bp.uses_crypt() && bp.compress() != Compression::ZSTD {
            if let Some(raw) = self.stored_form(bp, &Crypt::Plain, block, 0) {
                return Some(raw);
            }
        }
        self.read_copies(bp, 0, How::Probe).ok()
    }

    /// What the cache devices have of blocks given by their pointers.
    pub(super) fn second_look(&self, reqs: &[ReadOne]) -> Option<Vec<Option<Vec<u8>>>> {
        if reqs.is_empty() {
            return None;
        }
        self.second().map(|s| s.look(reqs))
    }

    pub(super) fn read_copies(&self, bp: &BlkPtr, depth: u32, how: How) -> Result<Vec<u8>> {
        let verify = self.verifier(bp);
        if !bp.is_gang() {
            // A later pass of the same txg may have written something else to this address.
            for b in self.unwritten(&bp.dva(0)) {
                if b.len() == bp.psize() && verify(&b) {
                    return Ok(b.to_vec());
                }
            }
        }
        if !bp.is_gang() && matches!(how, How::Used(_)) {
            let one = ReadOne {
                dva: bp.dva(0),
                psize: bp.psize(),
                birth: bp.physical_birth(),
                verify: &verify,
            };
            let found = self.second_look(&[one]).and_then(|mut l| l.pop()?);
            if let Some(raw) = found {
                return Ok(raw);
            }
        }
        let none = Error::damaged(format!("no address in {bp:?}"));
        self.read_from(bp, 0, depth, how, (Vec::new(), none))
    }

    /// Tries the copies from number `first` on; `before` is what was wrong with those before.
    pub(super) fn read_from(
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
        let mut round = (first > 0).then(|| last.clone());
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
                    // What a device does not read may be right: that outweighs a copy that is wrong.
                    Err(e) if round.as_ref().is_none_or(|r| r.kind != Kind::Io) => round = Some(e),
                    Err(_) => {}
                }
            }
            last = round.take().unwrap_or(last);
            if matches!(how, How::Probe) {
                break;
            }
            if !self.await_readable(bp, &last) {
                if again == 0 || last.kind != Kind::Io {
                    break;
                }
                again -= 1;
                self.pause_before(again);
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

    /// Waits before a block is read again, `left` times being left of [`READ_AGAIN`]: each time twice as
    /// long, as devices that fail for a moment do not do so for long.
    pub fn pause_before(&self, left: u32) {
        let Some(waits) = self.waits.get().and_then(Weak::upgrade) else {
            return;
        };
        let turn = READ_AGAIN.saturating_sub(left + 1).min(32);
        let ns = (PAUSES.0 << turn).min(PAUSES.1);
        if syncing::may_pause(ns) {
            waits.pause(ns);
        }
    }

    /// In syncing context: waits for the devices of a block if they are away. True: they are back.
    pub(super) fn await_readable(&self, bp: &BlkPtr, why: &Error) -> bool {
        let Some(waits) = self.waits.get().filter(|_| syncing::here()) else {
            return false;
        };
        let vdevs: Vec<u64> = bp.dvas().iter().map(|d| d.vdev()).collect();
        waits
            .upgrade()
            .is_some_and(|w| w.await_readable(&vdevs, why))
    }

    pub(super) fn look(
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
    pub(super) fn heal(&self, bp: &BlkPtr, wrong: &[Wrong], right: &[u8], how: How, header: bool) {
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
    pub(super) fn verifier(&self, bp: &BlkPtr) -> impl Fn(&[u8]) -> bool + Sync {
        let salt = self.salt();
        let alg = bp.checksum_alg();
        let want = bp.checksum();
        let swapped = !bp.is_little_endian();
        let truncated = bp.uses_crypt() && bp.obj_type() != ObjType::OBJSET;
        move |b: &[u8]| {
            base::mutation::mutated(base::mutation::Mutation::ChecksumOff)
                || alg == Checksum::OFF
                || alg == Checksum::NOPARITY
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
}
