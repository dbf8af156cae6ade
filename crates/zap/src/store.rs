//! The trait [`Store`]: access to the blocks of the object that holds a ZAP.

use crate::Indexed;
use base::{bail, Block, Result};
use disk::ObjType;
use dmu::{Dnode, Tx};
use std::sync::{Arc, RwLock};

/// Blocks of one object. Implemented by `dmu::Dnode` and by [`crate::mem::MemStore`].
pub trait Store {
    /// Transaction in which blocks are changed.
    type Tx;
    /// Bytes per data block now.
    fn block_size(&self) -> usize;
    /// Changes the block size of an object of one block, keeping its content.
    fn set_block_size(&self, tx: &Self::Tx, size: usize) -> Result<()>;
    /// One whole block; zeros where nothing was written.
    fn block(&self, blkid: u64) -> Result<Block>;
    /// Changes one block in place; extends the object if it lies past its end.
    fn modify<R>(&self, tx: &Self::Tx, blkid: u64, f: impl FnOnce(&mut Vec<u8>) -> R) -> Result<R>;
    /// Punches `n` blocks from `blkid`; they read as zeros afterwards.
    fn free_blocks(&self, tx: &Self::Tx, blkid: u64, n: u64) -> Result<()>;
    /// Type of the object.
    fn obj_type(&self) -> ObjType;
    /// Something that differs between objects, to salt their hashes with.
    fn seed(&self, tx: &Self::Tx) -> u64;
    /// Readers and writers of this object exclude each other with this lock. It is held while blocks
    /// are read, because an operation sees header, table and leaf as one thing; nothing that is
    /// called under it takes another lock of this kind.
    fn lock(&self) -> &RwLock<()>;
    /// The index of the object while it is a large microzap. Looked at and changed under the lock.
    fn index(&self) -> &Indexed;
}

impl<T: Store> Store for Arc<T> {
    type Tx = T::Tx;
    fn block_size(&self) -> usize {
        (**self).block_size()
    }
    fn set_block_size(&self, tx: &Self::Tx, size: usize) -> Result<()> {
        (**self).set_block_size(tx, size)
    }
    fn block(&self, blkid: u64) -> Result<Block> {
        (**self).block(blkid)
    }
    fn modify<R>(&self, tx: &Self::Tx, blkid: u64, f: impl FnOnce(&mut Vec<u8>) -> R) -> Result<R> {
        (**self).modify(tx, blkid, f)
    }
    fn free_blocks(&self, tx: &Self::Tx, blkid: u64, n: u64) -> Result<()> {
        (**self).free_blocks(tx, blkid, n)
    }
    fn obj_type(&self) -> ObjType {
        (**self).obj_type()
    }
    fn seed(&self, tx: &Self::Tx) -> u64 {
        (**self).seed(tx)
    }
    fn lock(&self) -> &RwLock<()> {
        (**self).lock()
    }
    fn index(&self) -> &Indexed {
        (**self).index()
    }
}

impl Store for Dnode {
    type Tx = Tx;
    fn block_size(&self) -> usize {
        self.info().block_size
    }
    fn set_block_size(&self, tx: &Tx, size: usize) -> Result<()> {
        Dnode::set_block_size(self, tx, size)
    }
    fn block(&self, blkid: u64) -> Result<Block> {
        let block = Dnode::block(self, blkid)?;
        // The zeros of an object that was freed while it was read are no damage.
        if self.is_freed() {
            bail!(NotFound, "object {} was freed", self.object());
        }
        Ok(block)
    }
    fn modify<R>(&self, tx: &Tx, blkid: u64, f: impl FnOnce(&mut Vec<u8>) -> R) -> Result<R> {
        Dnode::modify(self, tx, blkid, f)
    }
    fn free_blocks(&self, tx: &Tx, blkid: u64, n: u64) -> Result<()> {
        let size = self.info().block_size as u64;
        self.free_range(tx, blkid.saturating_mul(size), n.saturating_mul(size))
    }
    fn obj_type(&self) -> ObjType {
        self.info().obj_type
    }
    fn seed(&self, tx: &Tx) -> u64 {
        self.object() ^ (tx.txg().number() << 32)
    }
    fn lock(&self) -> &RwLock<()> {
        // An operation holds one lock at a time and never asks for a second, so that sharing costs
        // waiting but cannot deadlock.
        Dnode::lock(self)
    }
    fn index(&self) -> &Indexed {
        self.kept()
    }
}
