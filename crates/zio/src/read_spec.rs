//! How blocks are read: [`ReadSpec`], one for all read entries of [`Zio`](crate::Zio).

use crate::crypt::Crypt;
use crate::scope::Scope;
use base::Txg;

/// How blocks are read. The default reads blocks that are not encrypted, with pointers taken just now, and keeps
/// them in the block cache.
#[derive(Clone, Copy)]
pub struct ReadSpec<'a> {
    /// The key of the object set the blocks belong to, [`Crypt::Plain`] if it is not encrypted.
    pub crypt: &'a Crypt,
    /// What the caller knows of the pointers.
    pub in_use: InUse,
    /// Which blocks stay in the block cache.
    pub keep: Scope,
    /// Which blocks go to a cache device when they leave the block cache; of those in `keep`.
    pub second: Scope,
    /// Which blocks the caller takes as a whole, so that it is not likely to read them again.
    pub whole: Whole<'a>,
}

impl Default for ReadSpec<'_> {
    fn default() -> Self {
        ReadSpec {
            crypt: &Crypt::Plain,
            in_use: InUse::Now,
            keep: Scope::All,
            second: Scope::All,
            whole: Whole::None,
        }
    }
}

impl<'a> ReadSpec<'a> {
    /// The default, with the key of an object set that may be encrypted.
    pub fn with_key(crypt: &'a Crypt) -> ReadSpec<'a> {
        ReadSpec {
            crypt,
            ..ReadSpec::default()
        }
    }
}

/// What is known of a pointer. Damage is charged to a device, and repaired, only if the block must be there.
#[derive(Clone, Copy, Debug)]
pub enum InUse {
    /// The pointer was taken from its tree just now.
    Now,
    /// The pointer was in use when the lease was taken.
    Since(Lease),
    /// The block may have been freed: no error is charged to a device, and nothing is repaired.
    Unknown,
}

/// When a pointer is known to have been in use: the last txg on disk at that time. See
/// [`Zio::lease`](crate::Zio::lease).
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    synced: Txg,
}

impl Lease {
    /// For a pointer taken when `txg` was the last txg on disk.
    pub fn of(txg: Txg) -> Lease {
        Lease { synced: txg }
    }

    pub(crate) fn synced(self) -> Txg {
        self.synced
    }
}

/// Which blocks of a read are taken as a whole.
#[derive(Clone, Copy)]
pub enum Whole<'a> {
    /// No block: each may be read again in parts.
    None,
    /// All blocks of the list.
    All,
    /// Those whose index in the list satisfies this.
    Where(&'a dyn Fn(usize) -> bool),
}

impl Whole<'_> {
    #[inline]
    pub(crate) fn at(&self, i: usize) -> bool {
        match self {
            Whole::None => false,
            Whole::All => true,
            Whole::Where(f) => f(i),
        }
    }
}

/// [`InUse`] with its lease.
#[derive(Clone, Copy)]
pub(crate) enum How {
    /// The block may have been freed.
    Probe,
    Used(Lease),
}
