//! The bytes of volumes.

use base::{Kind, Result};
use dmu::{Dnode, Objset};
use std::sync::Arc;
use zap::Zap;

/// The bytes of a volume, or of a snapshot of one.
pub struct Volume {
    /// The object with the bytes.
    pub dnode: Arc<Dnode>,
    /// Dnodes do not keep their object set.
    _os: Arc<Objset>,
    /// Bytes.
    pub size: u64,
    /// It never changes.
    pub snapshot: bool,
}

impl Volume {
    /// Of the object set of a volume, or of a snapshot of one, which never changes; `NotFound` for
    /// others.
    pub fn new(os: Arc<Objset>, snapshot: bool) -> Result<Volume> {
        if os.os_type() != disk::os_type::ZVOL {
            return Err(Kind::NotFound.into());
        }
        let size = Zap::new(&os.hold(2)?).get("size")?.unwrap_or(0);
        Ok(Volume {
            dnode: os.hold(1)?,
            _os: os,
            size,
            snapshot,
        })
    }

    /// Hands the blocks of a range on; nothing behind the end. Returns the number of bytes.
    pub fn read(
        &self,
        offset: u64,
        len: usize,
        put: &mut dyn FnMut(&base::Block, std::ops::Range<usize>),
    ) -> Result<usize> {
        let n = (len as u64).min(self.size.saturating_sub(offset)) as usize;
        if n > 0 {
            self.dnode.read_blocks(offset, n, put)?;
        }
        Ok(n)
    }

    /// Where data (or a hole) begins at or after `offset`; none: nowhere before the end.
    pub fn seek(&self, offset: u64, data: bool) -> Result<Option<u64>> {
        if offset >= self.size {
            return Ok(None);
        }
        match self.dnode.seek(offset, data)? {
            Some(at) if at < self.size => Ok(Some(at.max(offset))),
            _ if data => Ok(None),
            _ => Ok(Some(self.size)),
        }
    }
}
