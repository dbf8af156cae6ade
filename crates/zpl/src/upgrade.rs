//! Raising the version of a file system (data format §17). Objects stay as they are; each takes the new form when it changes.

use crate::names;
use crate::zfs::{max_zpl_version, MASTER_NODE, VERSION_SA};
use base::mutation::{mutated, Mutation};
use base::{bail, Error, Result};
use disk::ObjType;
use dmu::{NewObject, Objset, Tx};
use std::sync::Arc;

/// Raises the version of the file system in `os`, which nobody has open as a [`crate::Zfs`]. Returns the version before.
///
/// Errors: unsupported, if the pool's version does not allow it; invalid, if it would become older.
pub fn upgrade_fs(os: &Arc<Objset>, tx: &Tx, version: u64, pool_version: u64) -> Result<u64> {
    let master = os.hold(MASTER_NODE)?;
    let old = names::lookup(&master, b"VERSION")?
        .ok_or_else(|| Error::damaged("master node without VERSION"))?;
    if version > max_zpl_version(pool_version) {
        bail!(
            Unsupported,
            "file system version {version} in a pool of version {pool_version}"
        );
    }
    if version < old {
        bail!(Invalid, "file system version {old} cannot become {version}");
    }
    let tables = version >= VERSION_SA && names::lookup(&master, b"SA_ATTRS")?.is_none();
    if tables && !mutated(Mutation::UpgradeWithoutTables) {
        let new = NewObject {
            obj_type: ObjType::SA_MASTER_NODE,
            ..NewObject::default()
        };
        let dn = names::create(os, tx, &new, 0)?;
        names::add(&master, tx, b"SA_ATTRS", dn.object())?;
    }
    names::update(&master, tx, b"VERSION", version)?;
    Ok(old)
}
