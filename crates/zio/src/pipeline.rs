//! The read and write pipelines (pool format §7, §12–14; behaviour §8, §9).
//!
//! [`Zio`] holds the state that both pipelines share. Reads start in `read` (one block) and `batch` (many), writes in
//! `write`; written blocks wait in `queue` until they are submitted; `direct` writes past it for the intent log.

mod batch;
mod direct;
mod free;
mod gang;
mod queue;
mod read;
mod restore;
mod scrub;
mod write;

use crate::cache::Cache;
use crate::crypt::Sealed;
use crate::flight::Flights;
use crate::read_spec::Lease;
use crate::seam::{Allocator, Devices, SecondLevel, Sharing, Waits};
use crate::victims::Victims;
use base::sync::{MutexExt, RwLockExt};
use base::{bail, Block, Result, Txg};
use codec::checksum;
use disk::{BlkPtr, Checksum, Compression, ObjType};
use queue::Queue;
pub use read::READ_AGAIN;
pub use scrub::Scrubbed;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock, Weak};

/// How a block is to be stored; ids are the on-disk numbers, never "inherit" or "on".
#[derive(Clone, Copy, Debug)]
pub struct WriteSpec {
    /// Object type, as the block pointer stores it; it decides between data and metadata.
    pub obj_type: ObjType,
    /// Level in the tree of the object: 0 for content, 1 and above for indirect blocks.
    pub level: u8,
    /// Algorithm to try. The block is stored uncompressed where it gains less than an eighth.
    pub compress: Compression,
    /// Level of zstd, as stored in the block header (0 = default).
    pub zstd_level: u8,
    /// Algorithm of the checksum in the block pointer.
    pub checksum: Checksum,
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

/// A block after the transforms that need no address.
pub struct Prepared {
    /// Bytes to store, PSIZE long; empty for holes and embedded blocks.
    data: Block,
    kind: PreparedKind,
    lsize: usize,
}

/// How a block that comes in its stored form is stored.
#[derive(Clone, Copy, Debug)]
pub struct StoredForm {
    /// On-disk number of its compression.
    pub compress: Compression,
    /// Salt, nonce and MAC of an encrypted block, or the MAC alone of one that is only authenticated.
    pub sealed: Option<RawSeal>,
    /// The content is in big-endian order.
    pub big_endian: bool,
}

/// What a raw stream says of the encryption of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawSeal {
    /// Salt from which the key of the block is derived (pool format §15.3).
    pub salt: [u8; disk::crypt::SALT_SIZE],
    /// Nonce of the cipher.
    pub iv: [u8; disk::crypt::IV_SIZE],
    /// Authentication code of the ciphertext.
    pub mac: [u8; disk::crypt::MAC_SIZE],
}

enum PreparedKind {
    Hole,
    Embedded(Vec<u8>, Compression),
    Stored {
        compress: Compression,
        checksum: checksum::Words,
        sealed: Option<Sealed>,
        /// The content is in big-endian order.
        big_endian: bool,
    },
}

/// Settings of [`Zio::new`].
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
    /// The device tree.
    pub devices: Arc<dyn Devices>,
    /// The allocator.
    pub allocator: Arc<dyn Allocator>,
    /// Verified, decompressed blocks in memory.
    pub cache: Cache,
    /// Blocks that have left it.
    pub victims: Arc<Victims>,
    second: RwLock<Option<Arc<dyn SecondLevel>>>,
    writable: bool,
    salt: OnceLock<[u8; 32]>,
    queue: Mutex<Queue>,
    /// Blocks queued or being submitted, by address: reads look here first.
    pending: RwLock<HashMap<(u64, u64), Block>>,
    /// What later passes of the txg being written replaced in `pending`, by address.
    superseded: Mutex<HashMap<(u64, u64), Vec<Block>>>,
    /// Blocks that failed verification on every copy, counted for status.
    pub unrecoverable: AtomicU64,
    /// Deflated bytes that were to be freed and could not be found, since this was last taken.
    leaked: AtomicU64,
    /// Last txg known to be on disk.
    synced: AtomicU64,
    flights: Flights,
    /// Held for reading while copies are put right; see [`Zio::settle`].
    repairs: RwLock<()>,
    sharing: OnceLock<Weak<dyn Sharing>>,
    waits: OnceLock<Weak<dyn Waits>>,
}

impl Zio {
    /// The pipelines over `devices` and `allocator`, with an empty block cache and nothing queued.
    pub fn new(devices: Arc<dyn Devices>, allocator: Arc<dyn Allocator>, opts: ZioOptions) -> Zio {
        let victims = Arc::new(Victims::default());
        Zio {
            devices,
            allocator,
            cache: Cache::new(opts.cache_bytes, opts.seed, victims.clone()),
            victims,
            second: RwLock::new(None),
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

    /// Tells the pipelines that `txg` is on disk.
    pub fn set_synced(&self, txg: Txg) {
        self.synced.store(txg.number(), Ordering::Release);
    }

    /// Called when a txg begins to be written: waits until no repair is in progress. So no repair lasts
    /// longer than one txg.
    pub fn settle(&self) {
        drop(self.repairs.acquire_write());
        let mut old = self.superseded.acquire();
        old.clear();
    }

    /// While the guard is held no txg begins to be written. Its holder must not read blocks.
    pub fn hold_txgs(&self) -> base::sync::ReadGuard<'_, ()> {
        self.repairs.acquire_read()
    }

    /// A lease for [`crate::InUse::Since`]. The caller takes it before it takes a pointer from its tree. The
    /// space of a pointer in use then is not reallocated before two further txgs are on disk. Until then
    /// damage of the block is charged to a device, and repaired.
    pub fn lease(&self) -> Lease {
        Lease::of(Txg::new(self.synced.load(Ordering::Acquire)))
    }

    /// Sets the tables that count references of shared blocks; once. Without them no block is shared.
    pub fn set_sharing(&self, sharing: Weak<dyn Sharing>) {
        let _ = self.sharing.set(sharing);
    }

    /// Sets what waits for devices that a txg needs and that are away; once. Without it reads fail at once.
    pub fn set_waits(&self, waits: Weak<dyn Waits>) {
        let _ = self.waits.set(waits);
    }

    /// Sets the cache on devices, which reads look at behind the block cache.
    pub fn set_second_level(&self, second: Arc<dyn SecondLevel>) {
        *self.second.acquire_write() = Some(second);
    }

    fn second(&self) -> Option<Arc<dyn SecondLevel>> {
        self.second.acquire_read().clone()
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

    /// Whether a top-level vdev cannot be used now.
    pub fn devices_away(&self) -> bool {
        let waits = self.waits.get().and_then(Weak::upgrade);
        waits.is_some_and(|w| w.is_away())
    }

    fn check_writable(&self) -> Result<()> {
        if !self.writable {
            bail!(ReadOnly, "the pool was opened read-only");
        }
        Ok(())
    }
}
