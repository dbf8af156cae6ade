//! Devices of an imported pool whose path changed: an image file that was renamed, a loop device or disk with another number.
//!
//! They are looked for by the guid in their labels, in the folder they were in; devices below `/dev` also wherever an import
//! looks. `zpool online`, `reopen` and `clear` do it, and from time to time the fault agent ([`super::agent`]).

use crate::registry::Admin;
use env::Access;
use pool::Pool;
use std::collections::HashMap;
use std::sync::Arc;
use vdev::{keys, Vdev};

/// Where devices are that have no folder of their own.
const DEVICES: &str = "/dev/";

/// Gives leaves the names that their devices have now, if those at their names are gone or others; the guids of those that have
/// a new one.
pub(super) fn follow(admin: &Admin, pool: &Pool, leaves: &[Arc<Vdev>]) -> Vec<u64> {
    let lost: Vec<&Arc<Vdev>> = leaves.iter().filter(|l| !is_there(pool, l)).collect();
    let mut known: HashMap<String, Vec<(u64, String)>> = HashMap::new();
    let mut found = Vec::new();
    for leaf in lost {
        let Some(path) = leaf.path() else { continue };
        let Some((folder, _)) = path.rsplit_once('/') else {
            continue;
        };
        let folder = match path.starts_with(DEVICES) {
            true => None,
            false => Some(folder).filter(|f| !f.is_empty()),
        };
        let key = folder.unwrap_or_default().to_string();
        let devices = known.entry(key).or_insert_with(|| search(admin, folder));
        let own = devices.iter().filter(|(guid, _)| *guid == leaf.guid());
        for (_, path) in own {
            if pool.rename_device(leaf.guid(), path).unwrap_or(false) {
                found.push(leaf.guid());
                break;
            }
        }
    }
    found
}

/// The leaf whose device has that name, though the pool does not know it by it.
pub(super) fn by_label(admin: &Admin, pool: &Pool, path: &str) -> Option<Arc<Vdev>> {
    let guid = guid_of(admin, path).filter(|_| path.starts_with('/'))?;
    let leaf = pool
        .tree()
        .leaves()
        .into_iter()
        .find(|l| l.guid() == guid)?;
    // One that is there under its own name keeps that.
    (!is_there(pool, &leaf) && pool.rename_device(guid, path).unwrap_or(false)).then_some(leaf)
}

/// Whether the device of a leaf is at its name.
fn is_there(pool: &Pool, leaf: &Vdev) -> bool {
    let Some(path) = leaf.path() else {
        return false;
    };
    let open = pool.env.disks.open(&path, Access::Read);
    open.is_ok_and(|device| {
        let labels = vdev::label::read_labels(&*device);
        let own = |c: &disk::NvList| c.get_u64(keys::GUID) == Some(leaf.guid());
        labels.copies.iter().flatten().any(own)
    })
}

fn guid_of(admin: &Admin, path: &str) -> Option<u64> {
    let device = admin.env.disks.open(path, Access::Read).ok()?;
    let labels = vdev::label::read_labels(&*device);
    labels.best(base::Txg::MAX)?.get_u64(keys::GUID)
}

/// Devices with labels, by the guid of the leaf they are.
fn search(admin: &Admin, folder: Option<&str>) -> Vec<(u64, String)> {
    // A folder that is gone has nothing to find.
    let paths = admin.process.devices(folder).unwrap_or_default();
    let labelled = paths.into_iter().map(|p| Some((guid_of(admin, &p)?, p)));
    labelled.flatten().collect()
}
