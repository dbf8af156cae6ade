//! Gang blocks: blocks stored in several pieces because no free range was long enough (pool format §12). A
//! header with an embedded checksum points to up to three members, which may be gang blocks again.

use super::read::READ_AGAIN;
use super::{WriteSpec, Zio};
use crate::read_spec::How;
use crate::seam::Purpose;
use base::{bail, roundup, Block, Error, Kind, Result, Txg};
use codec::checksum;
use disk::{BlkPtr, Checksum, Compression, Dva, ObjType, BP_SIZE};
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// Size of a gang header without feature `dynamic_gang_header`.
const GANG_HEADER: usize = 512;
/// Pointers in such a header.
const GANG_SLOTS: usize = 3;
/// Deepest tree of gang headers that is followed: 3⁸ members are more than 16 MiB of sectors.
pub(super) const GANG_DEPTH: u32 = 9;

impl Zio {
    fn gang_verifier(bp: &BlkPtr) -> checksum::Words {
        let d = bp.dva(0);
        [d.vdev(), d.offset(), bp.physical_birth().number(), 0]
    }

    /// In the header of an encrypted block, too, the checksum is folded and makes room for a MAC,
    /// though there is none: OpenZFS looks at the pointer only.
    fn is_header_folded(bp: &BlkPtr) -> bool {
        bp.uses_crypt() && bp.obj_type() != ObjType::OBJSET
    }

    pub(super) fn is_header(bp: &BlkPtr, b: &[u8]) -> bool {
        let verifier = Self::gang_verifier(bp);
        let folded = || checksum::verify_embedded_mac(Checksum::GANG_HEADER, b, &verifier).is_ok();
        // Earlier states of this program folded none.
        (Self::is_header_folded(bp) && folded())
            || checksum::verify_embedded(Checksum::GANG_HEADER, b, &verifier).is_ok()
    }

    /// Puts the checksum into the header of a gang.
    fn seal_header(bp: &BlkPtr, header: &mut [u8]) -> Result<()> {
        let verifier = Self::gang_verifier(bp);
        match Self::is_header_folded(bp) {
            true => checksum::embed_keep_mac(Checksum::GANG_HEADER, header, &verifier)?,
            false => checksum::embed(Checksum::GANG_HEADER, header, &verifier)?,
        };
        Ok(())
    }

    /// Children of the gang header at DVA `i`; holes are empty places.
    pub fn gang_header(&self, bp: &BlkPtr, i: usize) -> Result<Vec<BlkPtr>> {
        self.read_header(bp, i, How::Used(self.lease()))
    }

    /// Sizes a header may have: with dynamic_gang_header up to the smallest allocation; an old one is
    /// 512 bytes on any pool.
    pub(super) fn header_sizes(&self) -> Vec<usize> {
        let big = self.devices.min_alloc().max(GANG_HEADER);
        let mut sizes = vec![GANG_HEADER];
        if big > GANG_HEADER {
            sizes.push(big);
        }
        sizes
    }

    /// The children a verified header has.
    pub(super) fn children(b: &[u8]) -> Result<Vec<BlkPtr>> {
        let size = b.len();
        let swap = b[size - 40..size - 32] != 0x0210da7ab10c7a11u64.to_le_bytes();
        (0..(size - 40) / BP_SIZE)
            .map(|k| BlkPtr::read(&b[k * BP_SIZE..], swap))
            .collect()
    }

    /// Headers of the txg under way for DVA `i`, newest first.
    fn queued_headers(&self, bp: &BlkPtr, i: usize) -> Vec<Block> {
        let sizes = self.header_sizes();
        let mut out = self.unwritten(&bp.dva(i));
        out.retain(|b| sizes.contains(&b.len()) && Self::is_header(bp, b));
        out
    }

    fn read_header(&self, bp: &BlkPtr, i: usize, how: How) -> Result<Vec<BlkPtr>> {
        match self.queued_headers(bp, i).first() {
            Some(b) => Self::children(b),
            None => self.stored_header(bp, i, how),
        }
    }

    /// The header as the devices have it.
    fn stored_header(&self, bp: &BlkPtr, i: usize, how: How) -> Result<Vec<BlkPtr>> {
        let dva = bp.dva(i);
        let verify = |b: &[u8]| Self::is_header(bp, b);
        let mut last = Error::damaged("gang header");
        let mut wrong = Vec::new();
        for size in self.header_sizes() {
            let r = match how {
                How::Probe => self.devices.probe(&dva, size, bp.physical_birth(), &verify),
                How::Used(_) => {
                    let l = self.look(&dva, size, bp.physical_birth(), &verify);
                    // A header of the other size is no fault of anybody.
                    if l.data.is_ok() || wrong.is_empty() {
                        wrong = l.wrong;
                    }
                    l.data
                }
            };
            match r {
                Ok(b) => {
                    if !wrong.is_empty() || i > 0 {
                        self.heal(bp, &wrong, &b, how, true);
                    }
                    return Self::children(&b);
                }
                Err(e) => last = e,
            }
        }
        if self.is_in_use(bp, how) {
            self.devices.count(&wrong);
        }
        Err(last.context("gang header"))
    }

    /// The bytes of a gang. Its header does not say which content of its txg it belongs to, so
    /// each one that is or was queued is tried before what is stored; members it does not fit are no
    /// fault of a device.
    pub(super) fn read_gang(&self, bp: &BlkPtr, i: usize, depth: u32, how: How) -> Result<Vec<u8>> {
        let verify = self.verifier(bp);
        for b in self.queued_headers(bp, i) {
            let children = Self::children(&b)?;
            match self.read_members(bp, &children, depth, How::Probe) {
                Ok(out) if verify(&out) => return Ok(out),
                _ => {}
            }
        }
        let children = self.stored_header(bp, i, how)?;
        self.read_members(bp, &children, depth, how)
    }

    fn read_members(
        &self,
        bp: &BlkPtr,
        children: &[BlkPtr],
        depth: u32,
        how: How,
    ) -> Result<Vec<u8>> {
        if depth > GANG_DEPTH {
            return Err(Error::damaged(format!("gang tree too deep at {bp:?}")));
        }
        let mut out = Vec::with_capacity(bp.psize());
        for child in children {
            if child.is_hole() {
                continue;
            }
            child.sanity(self.devices.vdevs())?;
            if out.len() + child.psize() > roundup(bp.psize() as u64, 512) as usize {
                return Err(Error::damaged(format!("gang members exceed {bp:?}")));
            }
            out.extend_from_slice(&self.read_copies(child, depth + 1, how)?);
        }
        if out.len() < bp.psize() {
            return Err(Error::damaged(format!("gang members fall short of {bp:?}")));
        }
        out.truncate(bp.psize());
        Ok(out)
    }

    /// Stores the block as a gang (pool format §12): a header with up to three members.
    pub(super) fn place_gang(
        &self,
        bp: &mut BlkPtr,
        purpose: Purpose,
        data: &Block,
        spec: &WriteSpec,
        txg: Txg,
        depth: u32,
    ) -> Result<()> {
        if depth > GANG_DEPTH {
            bail!(NoSpace, "no space left even for a gang of sectors");
        }
        let unit = self.devices.min_alloc().max(512);
        if data.len() <= unit {
            bail!(NoSpace, "no space left for a block of {} bytes", data.len());
        }
        let copies = spec
            .gang_copies
            .max(spec.copies)
            .clamp(1, Self::most_copies(bp)) as usize;
        let header_on = |v: u64| self.devices.asize(v, GANG_HEADER as u64);
        let headers = self.allocator.alloc(
            Purpose::Metadata,
            GANG_HEADER as u64,
            copies,
            txg,
            &header_on,
        )?;
        let mut children: Vec<BlkPtr> = Vec::new();
        let mut at = 0;
        let result: Result<()> = (|| {
            for slot in 0..GANG_SLOTS {
                if at == data.len() {
                    break;
                }
                let rest = data.len() - at;
                let part = (roundup(rest.div_ceil(GANG_SLOTS - slot) as u64, unit as u64) as usize)
                    .min(rest);
                let piece: Block = Arc::new(data[at..at + part].to_vec());
                let mut child = BlkPtr::new(
                    ObjType::NONE,
                    0,
                    part,
                    part,
                    Compression::OFF,
                    spec.checksum,
                    txg,
                );
                let salt = self.salt();
                child.set_checksum(checksum::compute(spec.checksum, &piece, false, &salt)?);
                self.place(&mut child, purpose, &piece, spec, txg, depth + 1)?;
                children.push(child);
                at += part;
            }
            Ok(())
        })();
        if let Err(e) = result {
            for c in &children {
                self.free_space(c, txg)?;
            }
            for d in &headers {
                self.allocator.free(d.vdev(), d.offset(), d.asize(), txg)?;
            }
            return Err(e);
        }
        for (i, h) in headers.iter().enumerate() {
            let members: u64 = children.iter().map(|c| c.dva(i).asize()).sum();
            bp.set_dva(i, Dva::new(h.vdev(), h.offset(), h.asize() + members, true));
        }
        let mut header = vec![0u8; GANG_HEADER];
        for (k, c) in children.iter().enumerate() {
            header[k * BP_SIZE..(k + 1) * BP_SIZE].copy_from_slice(&c.to_bytes());
        }
        Self::seal_header(bp, &mut header)?;
        let header = Arc::new(header);
        for h in &headers {
            self.enqueue(h, header.clone(), txg)?;
        }
        Ok(())
    }

    /// Writes other data of the same length over a gang of this txg: its members, at all depths,
    /// keep their places. Otherwise a fragmented pool would allocate anew in every pass, and the
    /// passes would not converge.
    pub(super) fn rewrite_gang(
        &self,
        bp: &BlkPtr,
        data: &[u8],
        txg: Txg,
        depth: u32,
    ) -> Result<()> {
        if depth > GANG_DEPTH {
            return Err(Error::damaged(format!("gang tree too deep at {bp:?}")));
        }
        let mut header = vec![0u8; GANG_HEADER];
        let mut rest = data;
        for (k, old) in self.gang_header(bp, 0)?.iter().enumerate() {
            if old.is_hole() {
                continue;
            }
            let Some((piece, more)) = rest.split_at_checked(old.psize()) else {
                return Err(Error::damaged(format!("gang members exceed {bp:?}")));
            };
            rest = more;
            let mut child = *old;
            let salt = self.salt();
            let alg = child.checksum_alg();
            child.set_checksum(checksum::compute(alg, piece, false, &salt)?);
            if child.is_gang() {
                self.rewrite_gang(&child, piece, txg, depth + 1)?;
            } else {
                let piece: Block = Arc::new(piece.to_vec());
                for d in child.dvas() {
                    self.enqueue(&d, piece.clone(), txg)?;
                }
            }
            header[k * BP_SIZE..(k + 1) * BP_SIZE].copy_from_slice(&child.to_bytes());
        }
        if !rest.is_empty() {
            return Err(Error::damaged(format!("gang members fall short of {bp:?}")));
        }
        Self::seal_header(bp, &mut header)?;
        let header = Arc::new(header);
        for d in bp.dvas().iter().filter(|d| d.is_gang()) {
            self.enqueue(d, header.clone(), txg)?;
        }
        Ok(())
    }

    /// Vdev, offset and length of everything that a block takes: of a gang, which lies in several pieces, what
    /// [`Zio::free`] frees of it.
    ///
    /// Errors: those of reading the headers.
    pub fn places(&self, bp: &BlkPtr) -> Result<Vec<(u64, u64, u64)>> {
        let mut out = Vec::new();
        self.add_places(bp, 0, &mut out)?;
        Ok(out)
    }

    fn add_places(&self, bp: &BlkPtr, depth: u32, out: &mut Vec<(u64, u64, u64)>) -> Result<()> {
        if !bp.is_gang() {
            out.extend(bp.dvas().iter().map(|d| (d.vdev(), d.offset(), d.asize())));
            return Ok(());
        }
        if depth > GANG_DEPTH {
            return Err(Error::damaged(format!("gang tree too deep at {bp:?}")));
        }
        let mut children = Err(Error::damaged("gang header"));
        for i in 0..bp.dvas().len() {
            children = self.gang_header(bp, i);
            if children.is_ok() {
                break;
            }
        }
        for c in children?.iter().filter(|c| !c.is_hole()) {
            c.sanity(self.devices.vdevs())?;
            self.add_places(c, depth + 1, out)?;
        }
        for d in bp.dvas() {
            let own = self.devices.asize(d.vdev(), GANG_HEADER as u64);
            out.push((d.vdev(), d.offset(), own));
        }
        Ok(())
    }

    /// Frees a gang. Of one whose header cannot be read the header alone is freed; its members are
    /// counted by [`Zio::take_leaked`].
    pub(super) fn free_gang(&self, bp: &BlkPtr, txg: Txg, depth: u32) -> Result<()> {
        if depth > GANG_DEPTH {
            return Err(Error::damaged(format!("gang tree too deep at {bp:?}")));
        }
        let mut header = Err(Error::damaged("gang header"));
        let mut again = READ_AGAIN;
        loop {
            for i in 0..bp.dvas().len() {
                header = self.gang_header(bp, i);
                if header.is_ok() {
                    break;
                }
            }
            match &header {
                Err(e) if e.is_damage() && self.await_readable(bp, e) => {}
                Err(e) if e.kind == Kind::Io && again > 0 => {
                    again -= 1;
                    self.pause_before(again);
                }
                _ => break,
            }
        }
        let children = match header {
            Ok(children) => children,
            // Nobody else knows where the members are: their space is lost, and counted as that.
            Err(e) if e.is_damage() && bp.physical_birth() < txg => {
                let lost = |d: &Dva| {
                    let own = self.devices.asize(d.vdev(), GANG_HEADER as u64);
                    let members = d.asize().saturating_sub(own);
                    self.devices.deflate(d.vdev(), members)
                };
                let lost = bp.dvas().iter().map(lost).sum();
                self.leaked.fetch_add(lost, Ordering::Relaxed);
                Vec::new()
            }
            Err(e) => return Err(e),
        };
        for c in children {
            if c.is_hole() {
                continue;
            }
            c.sanity(self.devices.vdevs())?;
            if c.is_gang() {
                self.free_gang(&c, txg, depth + 1)?;
            } else {
                for d in c.dvas() {
                    let birth = c.physical_birth();
                    self.free_range(d.vdev(), d.offset(), d.asize(), birth, txg)?;
                }
            }
        }
        for d in bp.dvas() {
            let own = self.devices.asize(d.vdev(), GANG_HEADER as u64);
            self.free_range(d.vdev(), d.offset(), own, bp.physical_birth(), txg)?;
        }
        Ok(())
    }
}
