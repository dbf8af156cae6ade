//! Writes that bypass the queue: blocks of the intent log, and data blocks its records point to.

use super::{Prepared, PreparedKind, WriteSpec, Zio};
use crate::crypt::Sealed;
use crate::seam::{PhysWrite, Purpose};
use base::{Block, Error, Kind, Result, Txg};
use disk::{BlkPtr, Dva};

impl Zio {
    /// Allocates one copy of `size` bytes for the intent log.
    pub fn alloc_log(&self, size: usize, txg: Txg) -> Result<Dva> {
        self.check_writable()?;
        let size_on = |v: u64| self.devices.asize_in(v, size as u64, txg);
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
            big_endian,
        } = &p.kind
        else {
            return Ok(None);
        };
        let psize = p.data.len();
        let size_on = |v: u64| self.devices.asize_in(v, psize as u64, txg);
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
        bp.set_big_endian(*big_endian);
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
