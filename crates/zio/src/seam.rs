//! The traits through which zio reaches the device tree, the allocator and the dedup tables. Crate
//! `pool` implements them over `vdev` and `space`, tests over plain memory.

use base::{Block, Error, Result, Txg};
use disk::blkptr::DVAS;
use disk::{BlkPtr, Dva};

/// What a block is for. It decides the allocation class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Content of files and volumes.
    Data,
    /// Data of a file in a block so small that it shall lie on the special devices.
    SmallData,
    /// Everything that is not content: indirect blocks, dnodes, directories, the MOS.
    Metadata,
    /// Dedup tables.
    Dedup,
    /// Intent-log blocks.
    Log,
}

/// One queued write: the padded bytes of one copy.
pub struct PhysWrite {
    /// Number of the top-level vdev.
    pub vdev: u64,
    /// Bytes inside the vdev's allocatable space.
    pub offset: u64,
    /// The bytes, padded to whole sectors.
    pub data: Block,
}

/// One block of a batch of reads.
#[derive(Clone, Copy)]
pub struct ReadOne<'a> {
    /// Address of the copy to read.
    pub dva: Dva,
    /// Bytes of the block as stored.
    pub psize: usize,
    /// Txg in which the block was allocated; a leaf that missed that txg is not believed.
    pub birth: Txg,
    /// Tells right bytes from wrong ones: the checksum of the block pointer.
    pub verify: &'a (dyn Fn(&[u8]) -> bool + Sync),
}

/// A vdev that returned something else than what was written there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Guid of the leaf, or of the group where the leaf cannot be told.
    pub guid: u64,
    /// Told by the checksum; otherwise the device itself reported the failure and counted it.
    pub checksum: bool,
    /// Byte offset on the device, and bytes; none for groups.
    pub place: Option<(u64, u64)>,
}

/// The result of reading one copy of a block; see [`Devices::look`].
pub struct Looked {
    /// Exactly PSIZE verified bytes.
    pub data: Result<Vec<u8>>,
    /// The leaves that returned wrong bytes; all that were read where no right bytes were found.
    pub wrong: Vec<Wrong>,
}

/// The result of comparing all copies of one DVA; see [`Devices::scrub`].
pub struct Scrubbing {
    /// Exactly PSIZE verified bytes, or none if they are not wanted.
    pub data: Result<Vec<u8>>,
    /// Bytes written to repair copies, and to leaves that had missed the block.
    pub written: u64,
    /// Leaves (guid) that lack the block or a part of it, each with the txg it lacks.
    pub behind: Vec<(u64, Txg)>,
}

/// The result of rewriting a block; see [`Devices::mend`].
#[derive(Default)]
pub struct Mended {
    /// Bytes written to devices.
    pub written: u64,
    /// As in [`Scrubbing`].
    pub behind: Vec<(u64, Txg)>,
}

/// The device tree, as zio sees it.
pub trait Devices: Send + Sync {
    /// Number of top-level slots, holes included.
    fn vdevs(&self) -> u64;
    /// Bytes allocated on top-level vdev `vdev` for `psize` bytes (pool format §8).
    fn asize(&self, vdev: u64, psize: u64) -> u64;
    /// The same for a block that is born in `txg`, where it depends on that: a RAID-Z that was expanded.
    fn asize_in(&self, vdev: u64, psize: u64, txg: Txg) -> u64 {
        let _ = txg;
        self.asize(vdev, psize)
    }
    /// Deflated size of `asize` bytes on `vdev`.
    fn deflate(&self, vdev: u64, asize: u64) -> u64;
    /// Reads blocks in parallel, as far as the devices allow; results in order. Redundancy is tried until
    /// `verify` returns true. No error is counted and nothing is repaired.
    fn look(&self, reqs: &[ReadOne]) -> Vec<Looked>;
    /// [`Devices::look`] for blocks that no request waits for yet.
    fn look_ahead(&self, reqs: &[ReadOne]) -> Vec<Looked> {
        self.look(reqs)
    }
    /// Adds what [`Devices::look`] found to the error counts of the leaves.
    fn count(&self, wrong: &[Wrong]);
    /// Counts a block of which no copy is right.
    fn count_lost(&self);
    /// Rewrites the parts of the block at `dva` that differ from its right content.
    fn mend(&self, dva: &Dva, birth: Txg, right: &[u8]) -> Result<Mended>;
    /// Reads every copy and all parity of these DVAs, counts and rewrites what is wrong, and writes what leaves
    /// have missed. The blocks must be in use while it runs. Results in order; `keep` says (by index) which of them need the data,
    /// the others may have none.
    fn scrub(&self, reqs: &[ReadOne], keep: &dyn Fn(usize) -> bool) -> Vec<Scrubbing>;
    /// Whether a top-level vdev was removed, and its blocks are found elsewhere.
    fn is_removed(&self, vdev: u64) -> bool {
        let _ = vdev;
        false
    }
    /// The leaves of a top-level vdev, by guid, that can be written and lack blocks of txg `birth`.
    fn lacking(&self, vdev: u64, birth: Txg) -> Vec<u64> {
        let _ = (vdev, birth);
        Vec::new()
    }
    /// Speculative read of a block that may not exist (the end of an intent log). Errors are not charged to
    /// the device. Wrong copies are repaired at once, since such blocks are not reallocated meanwhile.
    fn probe(
        &self,
        dva: &Dva,
        psize: usize,
        birth: Txg,
        verify: &(dyn Fn(&[u8]) -> bool + Sync),
    ) -> Result<Vec<u8>>;
    /// Writes all blocks; returns when every device has accepted its part (not flushed). An error means
    /// that some block could not be stored with enough redundancy.
    fn write(&self, writes: &[PhysWrite], txg: Txg) -> Result<()>;
    /// [`Devices::write`] for a caller that waits, such as an `fsync`.
    fn write_urgent(&self, writes: &[PhysWrite], txg: Txg) -> Result<()> {
        self.write(writes, txg)
    }
    /// Flushes every device written since the last flush.
    fn flush(&self) -> Result<()>;
    /// Smallest allocation of the normal class: compressed sizes are rounded up to it.
    fn min_alloc(&self) -> usize;
}

/// A cache behind the block cache, on devices beside the pool.
pub trait SecondLevel: Send + Sync {
    /// PSIZE verified bytes of each block that it has, in order. Its failures are its own: none is an error of the reader.
    fn look(&self, reqs: &[ReadOne]) -> Vec<Option<Vec<u8>>>;
}

/// Waits for devices in syncing context.
pub trait Waits: Send + Sync {
    /// A block that the syncing txg needs cannot be read from any of `vdevs`, because of `why`. Waits for
    /// devices that are away, and returns true when they are back. False: the block itself is damaged, or
    /// the pool does not wait.
    fn await_readable(&self, vdevs: &[u64], why: &Error) -> bool;

    /// Has the calling thread wait for so many nanoseconds: a device that fails now may not fail then.
    fn pause(&self, _ns: u64) {}

    /// Whether a top-level vdev cannot be used now. Asks no device.
    fn is_away(&self) -> bool {
        false
    }
}

/// The allocator, as zio sees it.
pub trait Allocator: Send + Sync {
    /// Allocates `copies` ranges of `size_on(vdev)` bytes each. `Kind::NoSpace` if no contiguous region exists.
    fn alloc(
        &self,
        purpose: Purpose,
        psize: u64,
        copies: usize,
        txg: Txg,
        size_on: &dyn Fn(u64) -> u64,
    ) -> Result<Vec<Dva>>;
    /// Frees one range in `txg`; reusable after two further txgs. `Damaged` if it is free already.
    fn free(&self, vdev: u64, offset: u64, asize: u64, txg: Txg) -> Result<()>;
    /// Marks a free range as allocated (intent-log claim).
    fn claim(&self, vdev: u64, offset: u64, asize: u64, txg: Txg) -> Result<()>;
    /// Bytes of data that can be allocated at once, beyond the space the pool keeps for itself.
    fn room(&self) -> u64;
}

/// What a dedup table says of a block that is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dedup {
    /// The same bytes are stored at these DVAs, written in that txg. The reference has been counted.
    Same([Dva; DVAS], Txg),
    /// The table has no such block: the caller writes it, then calls [`Sharing::insert`].
    New,
    /// The caller writes the block without the table.
    Apart,
}

/// Blocks that more than one pointer may refer to: the dedup tables and the table of cloned blocks (BRT).
/// The thread that writes a txg calls it.
pub trait Sharing: Send + Sync {
    /// Whether freeing the block may need a lookup in a table. Callers then free in the background.
    fn may_share(&self, bp: &BlkPtr) -> bool;
    /// Takes one reference away in `txg`. True: it was the last one, and the caller frees the space.
    fn release(&self, bp: &BlkPtr, txg: Txg) -> Result<bool>;
    /// A pointer to a block is gone, and other pointers still refer to the block.
    fn stays(&self, _bp: &BlkPtr) {}
    /// Looks for a block of the same checksum, sizes and compression in at least `copies` copies;
    /// `same` (if the checksum alone shall not be trusted) compares the bytes.
    fn find(
        &self,
        bp: &BlkPtr,
        copies: u8,
        same: Option<&dyn Fn(&BlkPtr) -> Result<bool>>,
    ) -> Result<Dedup>;
    /// Takes a block written after [`Dedup::New`] into the table.
    fn insert(&self, bp: &BlkPtr, copies: u8) -> Result<()>;
    /// Whether a range that no pointer refers to any more in `txg`, written in txg `birth`, must stay allocated
    /// because the pool's checkpoint has it. True: it has been noted for the checkpoint.
    ///
    /// # Errors
    /// `Kind::Damaged`: it is a place on a removed vdev, and nobody knows what became of it.
    fn keeps(&self, range: (u64, u64, u64), birth: Txg, txg: Txg) -> Result<bool>;
}
