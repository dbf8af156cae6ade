//! Oracles for tests: other implementations of ZFS, asked about our pools.
//!
//! * [`packages`] fetches OpenZFS's user-space tools, the old zfs-fuse 0.7 and tools around snapshots from the
//!   package archive this machine already uses, into a cache folder, without installing anything.
//! * [`installed`] finds programs the machine has anyway, such as databases.
//! * [`OpenZfs`] runs `zdb`, `zstream`, `ztest`; none of them needs a kernel module.
//! * [`OldZfsFuse`] runs the old daemon in a mount namespace of its own.
//! * [`fixture`] unpacks pools made by OpenZFS.
//! * [`nfs`] is a client of NFS.
//! * [`suite`] unpacks pools that OpenZFS's test suite ships: all old pool versions.
//!
//! What cannot be had on a machine (no archive, not root, no `/dev/fuse`) is an error of kind
//! `Unsupported`; tests turn it into a printed notice with [`or_skip`].
//!
//! ```no_run
//! let Some(oz) = testkit::or_skip(testkit::OpenZfs::get()) else { return };
//! oz.check("/tmp/images".as_ref(), "tank").unwrap();
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod fixture;
pub mod installed;
pub mod nfs;
pub mod old;
pub mod openzfs;
pub mod packages;
mod run;
pub mod suite;

pub use old::OldZfsFuse;
pub use openzfs::OpenZfs;
pub use run::TempDir;

/// The value, or `None` after printing why the test is skipped if this machine cannot do it.
///
/// # Panics
/// With any other error, as a test should.
pub fn or_skip<T>(r: base::Result<T>) -> Option<T> {
    match r {
        Ok(v) => Some(v),
        Err(e) if e.kind == base::Kind::Unsupported => {
            eprintln!("skipped: {e}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}
