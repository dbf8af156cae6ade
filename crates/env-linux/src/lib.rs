//! The traits of `env` on Linux: devices and image files, clocks, randomness, the host's identity and a small
//! pool of threads.
//!
//! Environment variables (for tests, measurements and odd systems): `ZFS_FUSE_NO_IO_URING` makes
//! batches of block devices run on threads, as those of regular files do; `ZFS_FUSE_IO_URING_FILES`
//! has regular files use io_uring, too; `ZFS_FUSE_NO_DIRECT` opens everything through the page cache;
//! `ZFS_FUSE_HOSTID` is the host id in hexadecimal; `ZFS_FUSE_NBD_PATIENCE` is how many seconds the server of a network block device
//! may stay away (30).
#![warn(missing_docs)]

mod aligned;
mod batch;
pub mod cpu;
pub mod disk;
pub mod find;
mod host;
pub mod inuse;
#[cfg(feature = "aws-lc")]
mod key_memory;
mod loops;
pub mod part;
pub mod remote;
mod sys;
mod timing;
mod uring;
mod usage;

pub use cpu::{CpuPool, LinuxCpu};
pub use disk::LinuxDisks;
pub use host::{LinuxClock, LinuxHost, LinuxRng};
#[cfg(feature = "aws-lc")]
pub use key_memory::keep_crypto_memory;
pub use sys::{close_inherited, lock_memory, peer_groups, project_id};
pub use usage::devices_used;

use std::sync::Arc;

/// Nothing is to be done: without AWS-LC keys are kept like others (`base::keep`).
///
/// # Errors
/// None.
#[cfg(not(feature = "aws-lc"))]
pub fn keep_crypto_memory(_: fn(&std::io::Error)) -> std::io::Result<()> {
    Ok(())
}

/// The production environment: one worker thread per core beside the callers' own threads.
pub fn linux_env() -> env::Env {
    env::Env {
        disks: Arc::new(LinuxDisks::new()),
        clock: Arc::new(LinuxClock),
        rng: Arc::new(LinuxRng),
        host: Arc::new(LinuxHost),
        cpu: Arc::new(LinuxCpu::new()),
    }
}
