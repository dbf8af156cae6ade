//! Devices by the names that users give.

use disk::NvList;
use pool::Pool;
use std::sync::Arc;
use vdev::Vdev;

/// What a user calls a device.
pub(super) enum Named {
    InTree(Arc<Vdev>),
    /// A hot spare that stands in for nothing.
    Spare(NvList),
    /// Its guid.
    Cache(u64),
}

pub(super) fn find(pool: &Pool, name: &str) -> Option<Named> {
    if let Some(v) = pool.tree().find_by_name(name) {
        return Some(Named::InTree(v));
    }
    let aux = pool.aux_devices();
    let spare = aux.spares.iter().find(|c| pool::is_called(c, name));
    match spare.cloned() {
        Some(spare) => Some(Named::Spare(spare)),
        None => pool.cache_named(name).map(Named::Cache),
    }
}
