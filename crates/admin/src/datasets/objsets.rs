//! Object sets of datasets, opened for reading or taken from those that are open.

use crate::registry::PoolEntry;
use base::Result;
use dmu::Objset;
use dsl::Dataset;
use pool::Pool;
use std::sync::Arc;
use zap::Zap;

/// Rules for names of a file system, which new ones below it take over.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// ZPL version, 1 to 5.
    pub version: u64,
    /// Number of the property `normalization`.
    pub normalization: u64,
    /// 1: names must be UTF-8.
    pub utf8only: u64,
    /// Number of the property `casesensitivity`.
    pub case: u64,
}

/// An object set to look into, whether or not it is mounted. What is not open is read as it is on
/// disk, and not shared with others who may open it for writing.
pub fn look_into(entry: &PoolEntry, ds: &Dataset) -> Result<Arc<Objset>> {
    look_into_pool(&entry.pool, ds)
}

/// The same, of a pool.
pub fn look_into_pool(pool: &Pool, ds: &Dataset) -> Result<Arc<Objset>> {
    if let Some(os) = ds.objset() {
        return Ok(os);
    }
    let policy = pool.own_policy(ds)?;
    Objset::open_with(
        pool.dmu(),
        ds.object(),
        &ds.phys().bp,
        policy,
        true,
        ds.crypt()?,
    )
}

/// What the master node of a file system says.
pub fn master(entry: &PoolEntry, ds: &Dataset) -> Result<Rules> {
    master_of(&*look_into(entry, ds)?)
}

/// The same, of an open object set. All zero for a volume.
pub fn master_of(os: &Objset) -> Result<Rules> {
    let mut r = Rules::default();
    if os.os_type() != disk::os_type::ZFS {
        return Ok(r);
    }
    let node = os.hold(zpl::MASTER_NODE)?;
    let z = Zap::new(&node);
    r.version = z.get("VERSION")?.unwrap_or(0);
    r.normalization = z.get("normalization")?.unwrap_or(0);
    r.utf8only = z.get("utf8only")?.unwrap_or(0);
    r.case = z.get("casesensitivity")?.unwrap_or(0);
    Ok(r)
}
