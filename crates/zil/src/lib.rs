//! The intent log (ZIL) of a dataset: makes changes durable for an `fsync` before their txg is on disk
//! (pool format §26, behaviour §3).
//!
//! * [`Zil::log`] keeps a record of every change in memory, by txg ([`itx`](Itx)).
//! * [`Zil::commit`] writes the records that an fsync needs into a chain of blocks on disk and returns when
//!   they are stable. The next round serves all callers that arrive while one is being written.
//! * [`Zil::sync`] runs with the sync of each txg: it frees log blocks that no replay needs any more and
//!   returns the header for the object set block; [`Zil::synced`] drops the records of
//!   txgs that are on disk.
//! * [`claim`] (pool import) marks the blocks of a log left by a crash as allocated,
//!   [`Zil::replay`] (mount) applies it.
//!
//! The crate does I/O only through a [`LogStore`]. When the log cannot be written (no chain yet, no space, a
//! device that fails), a commit returns [`Committed::NeedTxgSync`]: the caller waits until the open txg is on
//! disk, and the changes are as durable then.
//!
//! A chain is given up ([`Zil::destroy`], [`Zil::pause`]) with the txg that has all of its records. Until that txg is
//! written the header leads to the chain: the txg before it is written later, and must not store a header without it.
//!
//! Lock order: the one lock of a [`Zil`] is never held while the store is called, except
//! [`LogBlocks::free`] in syncing context, which is memory only. [`Zil::sync`] waits for a round of
//! writing that took a block in its txg; such a round therefore waits for no txg.
//!
//! Start reading in `log.rs`, then `batch.rs`.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod batch;
mod chain;
mod claim;
mod header;
mod itx;
mod log;
mod replay;
mod state;

pub use chain::{walk, RawRecord, WalkEnd, CHAIN_SIZE, RECORD_HEADER, WRITE_HEADER};
pub use claim::{claim, claim_since, pending, Claimed, Left};
pub use header::{Header, FLAG_LR_SEQ_VALID, FLAG_REPLAY, HEADER_SIZE};
pub use itx::{write_form, Body, Form, Itx, Policy, COPIED_MAX, INDIRECT_MIN};
pub use replay::{Record, Replayed, Replayer};
pub use state::{Committed, Options, Stats, Zil};

use base::{bail, Block, Result, Txg};
use codec::crypt::Crypt;
use disk::{BlkPtr, Dva};

/// Record types (pool format §26.4).
pub mod tx {
    /// Never on disk.
    pub const COMMIT: u64 = 0;
    /// [`TxType::Create`](disk::zil::TxType::Create)
    pub const CREATE: u64 = 1;
    /// [`TxType::Mkdir`](disk::zil::TxType::Mkdir)
    pub const MKDIR: u64 = 2;
    /// [`TxType::Mkxattr`](disk::zil::TxType::Mkxattr)
    pub const MKXATTR: u64 = 3;
    /// [`TxType::Symlink`](disk::zil::TxType::Symlink)
    pub const SYMLINK: u64 = 4;
    /// [`TxType::Remove`](disk::zil::TxType::Remove)
    pub const REMOVE: u64 = 5;
    /// [`TxType::Rmdir`](disk::zil::TxType::Rmdir)
    pub const RMDIR: u64 = 6;
    /// [`TxType::Link`](disk::zil::TxType::Link)
    pub const LINK: u64 = 7;
    /// [`TxType::Rename`](disk::zil::TxType::Rename)
    pub const RENAME: u64 = 8;
    /// [`TxType::Write`](disk::zil::TxType::Write)
    pub const WRITE: u64 = 9;
    /// [`TxType::Truncate`](disk::zil::TxType::Truncate)
    pub const TRUNCATE: u64 = 10;
    /// [`TxType::Setattr`](disk::zil::TxType::Setattr)
    pub const SETATTR: u64 = 11;
    /// [`TxType::AclV0`](disk::zil::TxType::AclV0)
    pub const ACL_V0: u64 = 12;
    /// [`TxType::Acl`](disk::zil::TxType::Acl)
    pub const ACL: u64 = 13;
    /// [`TxType::CreateAcl`](disk::zil::TxType::CreateAcl)
    pub const CREATE_ACL: u64 = 14;
    /// [`TxType::CreateAttr`](disk::zil::TxType::CreateAttr)
    pub const CREATE_ATTR: u64 = 15;
    /// [`TxType::CreateAclAttr`](disk::zil::TxType::CreateAclAttr)
    pub const CREATE_ACL_ATTR: u64 = 16;
    /// [`TxType::MkdirAcl`](disk::zil::TxType::MkdirAcl)
    pub const MKDIR_ACL: u64 = 17;
    /// [`TxType::MkdirAttr`](disk::zil::TxType::MkdirAttr)
    pub const MKDIR_ATTR: u64 = 18;
    /// [`TxType::MkdirAclAttr`](disk::zil::TxType::MkdirAclAttr)
    pub const MKDIR_ACL_ATTR: u64 = 19;
    /// [`TxType::Write2`](disk::zil::TxType::Write2)
    pub const WRITE2: u64 = 20;
    /// [`TxType::SetSaXattr`](disk::zil::TxType::SetSaXattr)
    pub const SETSAXATTR: u64 = 21;
    /// [`TxType::RenameExchange`](disk::zil::TxType::RenameExchange)
    pub const RENAME_EXCHANGE: u64 = 22;
    /// [`TxType::RenameWhiteout`](disk::zil::TxType::RenameWhiteout)
    pub const RENAME_WHITEOUT: u64 = 23;
    /// [`TxType::CloneRange`](disk::zil::TxType::CloneRange)
    pub const CLONE_RANGE: u64 = 24;
    /// Bit of the type word: the request ignored case.
    pub const CASE_INSENSITIVE: u64 = 1 << 63;

    /// Records that make an object, together with its ACL and its attributes.
    pub fn is_creation(ty: u64) -> bool {
        matches!(ty, CREATE..=SYMLINK | CREATE_ACL..=MKDIR_ACL_ATTR)
    }

    /// Records that name an object which may be gone by the time they are replayed; the object
    /// number is at offset 32.
    pub fn is_out_of_order(ty: u64) -> bool {
        matches!(
            ty,
            WRITE | TRUNCATE | SETATTR | ACL_V0 | ACL | WRITE2 | SETSAXATTR | CLONE_RANGE
        )
    }
}

/// What became of the data block of an indirect write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Indirect {
    /// Written to its final place (not flushed): the whole block that contains the range.
    At(Box<BlkPtr>),
    /// It is on disk with a txg already; the record only extends the file.
    OnDisk,
    /// Not possible here: put the data into the log instead.
    Copy,
}

/// A range of a file for which an indirect record of `txg` is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Object number.
    pub object: u64,
    /// Generation of the object, 0 = do not check.
    pub generation: u64,
    /// First byte of the range.
    pub offset: u64,
    /// Bytes of the range.
    pub length: u64,
    /// Txg of the record.
    pub txg: Txg,
}

/// Reading and accounting of log blocks; enough for claiming and walking.
pub trait LogBlocks: Send + Sync {
    /// Reads PSIZE bytes of a log block. `verify` says whether a candidate is right, so that other
    /// copies and reconstruction can be tried.
    ///
    /// Errors: `Checksum` or `Damaged`, if what is there is no log block; everything else says that a
    /// device failed, so that nobody knows. Where copies differ in that, the device's error counts.
    fn read_block(&self, bp: &BlkPtr, verify: &(dyn Fn(&[u8]) -> bool + Sync)) -> Result<Vec<u8>>;
    /// Whether the object set is encrypted, and with which key. Without it a chain can be walked and
    /// claimed, but the records are not decrypted.
    fn crypt(&self) -> Crypt {
        Crypt::Plain
    }
    /// Reads the block an indirect write record points to, decoded; without the key of an encrypted one
    /// it only finds out whether it is there.
    fn read_data(&self, bp: &BlkPtr) -> Result<Block>;
    /// Highest birth that a block of the log can have. What claims to be younger is forged.
    fn newest_birth(&self) -> Txg {
        Txg::new(u64::MAX)
    }
    /// Marks the block allocated in `txg`. Errors: `Checksum` or `Damaged`, if its space is in use or
    /// nobody can know because the space map is damaged.
    fn claim(&self, bp: &BlkPtr, txg: Txg) -> Result<()>;
    /// Frees the block in `txg` (syncing context).
    fn free(&self, bp: &BlkPtr, txg: Txg) -> Result<()>;
    /// Adds or drops a pending reference for a pointer of a clone-range record. Where that is
    /// `Kind::Unsupported`, replay copies the data anyway, and fails at the record if its blocks
    /// have been overwritten since.
    fn clone_ref(&self, _bp: &BlkPtr, _txg: Txg, _add: bool) -> Result<()> {
        bail!(Unsupported, "clone-range records in an intent log")
    }
}

/// All a live log needs.
pub trait LogStore: LogBlocks {
    /// Allocates one copy of `size` bytes (a multiple of 4096) in the open txg, marks the dataset
    /// dirty in it, so that [`Zil::sync`] runs there, and calls `note` while the txg is still held
    /// open. Must not wait for a txg to be written: [`Zil::sync`] may be waiting for the caller.
    /// `Kind::NoSpace` makes the commit fall back to a txg sync.
    fn alloc_block(&self, size: usize, note: &mut dyn FnMut(Dva, Txg)) -> Result<()>;
    /// Writes log blocks, each at its one address, past any queue, in any order. Data may be shorter
    /// than PSIZE (a multiple of 4096), never on raidz; they are stable after the next
    /// [`LogStore::flush`].
    fn write_blocks(&self, blocks: &[(BlkPtr, Block)]) -> Result<()>;
    /// Everything written before, indirect data included, is stable when this returns.
    fn flush(&self) -> Result<()>;
    /// A thread panicked while it wrote the log: records it had taken are lost from memory. Nothing may be
    /// acknowledged any more. Must not panic.
    fn broken(&self) {}
    /// Marks the dataset dirty in the open txg, so that [`Zil::sync`] runs there, and calls `note` while that txg is still
    /// held open; does not wait for one to be written.
    fn dirty(&self, note: &mut dyn FnMut(Txg)) -> Result<()>;
    /// Newest content of a file range. `Kind::NotFound` if the object (of that generation, if not
    /// 0) is gone or ends before: the record is then left out.
    fn current_data(&self, object: u64, generation: u64, offset: u64, buf: &mut [u8])
        -> Result<()>;
    /// Writes the file blocks that contain the ranges to their final places, for indirect records; one
    /// result for each. `Kind::NotFound` as above. Does not wait for a txg to be written.
    fn write_indirect(&self, wanted: &[Wanted]) -> Vec<Result<Indirect>> {
        wanted.iter().map(|_| Ok(Indirect::Copy)).collect()
    }
    /// An unpredictable number, for the identity of a chain.
    fn random(&self) -> u64;
    /// Waits until everything so far is on disk; used between the two tries of a record in replay.
    fn wait_synced(&self) -> Result<()> {
        Ok(())
    }
}
