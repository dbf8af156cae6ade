//! What zio asks of the device tree and the allocator, as two small traits that zio owns; crate
//! `pool` implements them over `vdev` and `space`, tests over plain memory.

use base::{Block, Error, Result, Txg};
use disk::blkptr::DVAS;
use disk::{BlkPtr, Dva};

/// What a block is for; decides the allocation class and the place in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Data,
    /// Data of a file in a block so small that it shall lie on the special devices.
    SmallData,
    Metadata,
    /// Dedup tables.
    Dedup,
    /// Intent-log blocks.
    Log,
}

/// One queued write: the padded bytes of one copy.
pub struct PhysWrite {
    pub vdev: u64,
    /// Bytes inside the vdev's allocatable space.
    pub offset: u64,
    pub data: Block,
}

/// One block of a batch of reads.
pub struct ReadOne<'a> {
    pub dva: Dva,
    pub psize: usize,
    pub birth: Txg,
    pub verify: &'a (dyn Fn(&[u8]) -> bool + Sync),
}

/// A vdev that returned something else than what was written there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wrong {
    pub guid: u64,
    /// Told by the checksum; otherwise the device itself reported the failure and counted it.
    pub checksum: bool,
    /// Byte offset on the device, and bytes; none for groups.
    pub place: Option<(u64, u64)>,
}

/// What a look at one copy of a block gave.
pub struct Looked {
    /// Exactly PSIZE verified bytes.
    pub data: Result<Vec<u8>>,
    /// Who had it wrong, or is suspected to where nothing right was found.
    pub wrong: Vec<Wrong>,
}

/// What comparing all copies of one place gave; see [`Devices::scrub`].
pub struct Scrubbing {
    /// Exactly PSIZE verified bytes.
    pub data: Result<Vec<u8>>,
    /// Bytes written to put copies right, or to give them to leaves that had missed the block.
    pub written: u64,
    /// Who (by guid) does not have the block, or a part of it, and lacks which txg for that.
    pub behind: Vec<(u64, Txg)>,
}

/// What rewriting a block gave; see [`Devices::mend`].
#[derive(Default)]
pub struct Mended {
    /// Bytes.
    pub written: u64,
    /// As in [`Scrubbing`].
    pub behind: Vec<(u64, Txg)>,
}

/// The devices below.
pub trait Devices: Send + Sync {
    /// Number of top-level slots, holes included.
    fn vdevs(&self) -> u64;
    /// Bytes allocated on top-level vdev `vdev` for `psize` bytes (pool format §8).
    fn asize(&self, vdev: u64, psize: u64) -> u64;
    /// Deflated size of `asize` bytes on `vdev`.
    fn deflate(&self, vdev: u64, asize: u64) -> u64;
    /// Reads blocks as parallel as the devices allow; results in order. Redundancy is tried until
    /// `verify` is content. Nothing is counted and nothing repaired.
    fn look(&self, reqs: &[ReadOne]) -> Vec<Looked>;
    /// The same for blocks that nobody waits for yet.
    fn look_ahead(&self, reqs: &[ReadOne]) -> Vec<Looked> {
        self.look(reqs)
    }
    /// Counts what [`Devices::look`] found wrong.
    fn count(&self, wrong: &[Wrong]);
    /// Counts a block of which no copy was right.
    fn count_lost(&self);
    /// Rewrites what of the block at `dva` differs from its right content.
    fn mend(&self, dva: &Dva, birth: Txg, right: &[u8]) -> Result<Mended>;
    /// Reads every copy and all parity of the places, counts and rewrites what is wrong, and writes what leaves
    /// have missed. The blocks must be in use while it runs. Results in order.
    fn scrub(&self, reqs: &[ReadOne]) -> Vec<Scrubbing>;
    /// The leaves of a top-level vdev, by guid, that can be written and lack blocks of txg `birth`.
    fn lacking(&self, vdev: u64, birth: Txg) -> Vec<u64> {
        let _ = (vdev, birth);
        Vec::new()
    }
    /// Reads a block that need not be there (the end of an intent log): nobody is blamed, and copies
    /// are put right at once, since such blocks are never given to others meanwhile.
    fn probe(
        &self,
        dva: &Dva,
        psize: usize,
        birth: Txg,
        verify: &(dyn Fn(&[u8]) -> bool + Sync),
    ) -> Result<Vec<u8>>;
    /// Writes all; returns when every device has accepted its part (not flushed). An error means
    /// that some block could not be stored with enough redundancy.
    fn write(&self, writes: &[PhysWrite], txg: Txg) -> Result<()>;
    /// [`Devices::write`] of what somebody waits for.
    fn write_urgent(&self, writes: &[PhysWrite], txg: Txg) -> Result<()> {
        self.write(writes, txg)
    }
    /// Flushes every device written since the last flush.
    fn flush(&self) -> Result<()>;
    /// Smallest allocation of the normal class: compressed sizes are rounded up to it.
    fn min_alloc(&self) -> usize;
}

/// Waits for devices in syncing context.
pub trait Waits: Send + Sync {
    /// A block that the syncing txg needs cannot be read from any of `vdevs`, because of `why`. Waits for
    /// devices that are away, and returns true if they are back; false: the block itself is the
    /// matter, or nobody waits.
    fn await_readable(&self, vdevs: &[u64], why: &Error) -> bool;

    /// Whether a top-level vdev cannot be used now. Asks no device.
    fn is_away(&self) -> bool {
        false
    }
}

/// The allocator below.
pub trait Allocator: Send + Sync {
    /// `copies` places of `asize(vdev)` bytes each. `Kind::NoSpace` if no contiguous region exists.
    fn alloc(
        &self,
        purpose: Purpose,
        psize: u64,
        copies: usize,
        txg: Txg,
        size_on: &dyn Fn(u64) -> u64,
    ) -> Result<Vec<Dva>>;
    /// Frees one range in `txg`; reusable after two further groups. `Damaged` if it is free already.
    fn free(&self, vdev: u64, offset: u64, asize: u64, txg: Txg) -> Result<()>;
    /// Marks a range allocated that was not (intent-log claim).
    fn claim(&self, vdev: u64, offset: u64, asize: u64, txg: Txg) -> Result<()>;
    /// Bytes for data that can be given out at once, beyond what is kept for the pool itself.
    fn room(&self) -> u64;
}

/// What a dedup table says of a block that is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dedup {
    /// The same bytes are here, written in that group. The reference has been counted.
    Same([Dva; DVAS], Txg),
    /// Nothing like it: to be written, then told with [`Sharing::insert`].
    New,
    /// To be written without the table.
    Apart,
}

/// Blocks that more than one pointer may refer to: the dedup tables and the table of clones. Asked by
/// the thread that syncs.
pub trait Sharing: Send + Sync {
    /// Whether freeing the block may need a table. Better done in the background then.
    fn may_share(&self, bp: &BlkPtr) -> bool;
    /// One reference less in group `txg`. True: there is no other, its space is to be freed.
    fn release(&self, bp: &BlkPtr, txg: Txg) -> Result<bool>;
    /// A pointer to a block is gone, and others refer to it still.
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
    /// Whether a range that no pointer refers to any more, written in group `birth`, must stay allocated
    /// all the same: the pool's checkpoint has it. It has been noted then.
    fn keeps(&self, vdev: u64, offset: u64, asize: u64, birth: Txg) -> bool;
}
