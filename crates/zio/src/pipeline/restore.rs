//! Healing: writing the right content of a damaged block over it, at its own address (`zfs receive -c`).
//!
//! 1. Only content that the checksum in the pointer confirms is written, so a block never changes its content.
//! 2. A block is written only while it is in use, under the lock that keeps the next txg from beginning
//!    ([`Zio::settle`]).

use super::gang::GANG_DEPTH;
use super::Zio;
use crate::crypt::Crypt;
use crate::read_spec::{How, Lease};
use crate::swap;
use base::mutation::{mutated, Mutation};
use base::sync::RwLockExt;
use base::{bail, Error, Kind, Result};
use codec::compress;
use disk::{BlkPtr, Compression};

/// Level codes of zstd that blocks may have been compressed with; the common ones first.
fn zstd_levels() -> impl Iterator<Item = u8> {
    [3, 1, 6, 9, 12, 15, 19]
        .into_iter()
        .chain((2..=18).filter(|n| ![3, 6, 9, 12, 15].contains(n)))
        .chain(103..=123)
}

impl Zio {
    /// Writes `stored`, the PSIZE bytes that a damaged block consists of, over all of its copies.
    ///
    /// # Errors
    /// [`Kind::Checksum`] if they are not what the pointer means, or a gang's headers cannot be read;
    /// [`Kind::Stale`] if the lease has run out: nothing was written then;
    /// [`Kind::Io`] if the block cannot be read afterwards.
    pub fn restore(&self, bp: &BlkPtr, lease: Lease, stored: &[u8]) -> Result<()> {
        self.check_writable()?;
        if bp.is_hole() || bp.is_embedded() {
            bail!(Invalid, "no block to write: {bp:?}");
        }
        let mut parts = Vec::new();
        self.pieces(bp, stored, 0, &mut parts)?;
        {
            let _no_new_txg = self.repairs.acquire_read();
            if !self.is_in_use(bp, How::Used(lease)) {
                return Err(Kind::Stale.into());
            }
            if !mutated(Mutation::HealingForgets) {
                self.write_over(&parts)?;
            }
        }
        match self.read_copies(bp, 0, How::Probe) {
            Ok(_) => Ok(()),
            Err(_) if mutated(Mutation::HealingForgets) => Ok(()),
            Err(e) => Err(Error::new(Kind::Io, format!("block {bp:?}: {e}"))),
        }
    }

    fn write_over(&self, parts: &[(BlkPtr, Vec<u8>)]) -> Result<()> {
        for (bp, stored) in parts {
            for dva in bp.dvas().iter() {
                // A pointer that promises more than it owns must not reach its neighbours.
                if self.devices.asize(dva.vdev(), stored.len() as u64) <= dva.asize() {
                    self.devices.mend(dva, bp.physical_birth(), stored)?;
                }
            }
        }
        Ok(())
    }

    /// What is in one piece of a block: itself, or the members of a gang whose header is whole.
    fn pieces(
        &self,
        bp: &BlkPtr,
        stored: &[u8],
        depth: u32,
        out: &mut Vec<(BlkPtr, Vec<u8>)>,
    ) -> Result<()> {
        bp.sanity(self.devices.vdevs())?;
        if depth > GANG_DEPTH {
            return Err(Error::damaged(format!("gang tree too deep at {bp:?}")));
        }
        if stored.len() != bp.psize() || !self.verifier(bp)(stored) {
            bail!(Checksum, "other bytes than those of block {bp:?}");
        }
        if !bp.is_gang() {
            out.push((*bp, stored.to_vec()));
            return Ok(());
        }
        let mut children = Err(Error::damaged("gang header"));
        for i in 0..bp.dvas().len() {
            children = children.or_else(|_| self.gang_header(bp, i));
        }
        let mut at = 0;
        for child in children?.iter().filter(|c| !c.is_hole()) {
            let part = stored.get(at..).unwrap_or_default();
            let mut part = part[..part.len().min(child.psize())].to_vec();
            // The last member may be padded to a whole sector.
            part.resize(child.psize(), 0);
            self.pieces(child, &part, depth + 1, out)?;
            at += child.psize();
        }
        Ok(())
    }

    /// The stored bytes of a block whose content is known: compressed and encrypted as its pointer says.
    /// Blocks are compressed by levels and programs that the pointer does not tell, so there may be none
    /// that its checksum confirms. `level`: of zstd, to be tried first.
    pub fn stored_form(
        &self,
        bp: &BlkPtr,
        crypt: &Crypt,
        content: &[u8],
        level: u8,
    ) -> Option<Vec<u8>> {
        if content.len() != bp.lsize() {
            return None;
        }
        let mut data = content.to_vec();
        if !bp.is_little_endian() {
            swap::block(bp.obj_type(), bp.level(), &mut data).ok()?;
        }
        let fits = |mut body: Vec<u8>| {
            body.resize(bp.psize(), 0);
            if bp.is_encrypted() {
                let mac = crypt
                    .key()?
                    .encrypt(&bp.salt(), &bp.iv(), &[], &mut body)
                    .ok()?;
                if !codec::crypt::same(&mac, &bp.mac()) {
                    return None;
                }
            }
            self.verifier(bp)(&body).then_some(body)
        };
        let pressed = |level: u8| compress::compress(bp.compress(), level, &data, bp.psize());
        match bp.compress() {
            Compression::OFF => fits(data),
            Compression::ZSTD => std::iter::once(level)
                .chain(zstd_levels())
                .find_map(|l| fits(pressed(l)?)),
            _ => fits(pressed(0)?),
        }
    }
}
