//! The trait through which the control directory makes, destroys and lists snapshots.

use api::Peer;
use base::{Kind, Result};
use std::sync::Arc;
use zpl::{Time, Zfs};

/// Which dataset, at any time: objects are used again, GUIDs are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Dataset object in the MOS.
    pub object: u64,
    /// Guid of the dataset.
    pub guid: u64,
}

/// Property `snapdir`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Snapdir {
    /// `.zfs` is there, but not listed.
    Hidden,
    /// `.zfs` is listed.
    Visible,
    /// There is no `.zfs`.
    Disabled,
}

/// What a snapshot or volume holds, opened for reading.
pub enum Content {
    /// A file system.
    Files(Arc<Zfs>),
    /// The bytes of a volume.
    Volume(Volume),
}

/// A volume, or a snapshot of one, opened for reading.
pub struct Volume {
    /// What it holds.
    pub bytes: pool::Volume,
    /// It never changes.
    pub snapshot: bool,
}

/// Figures of a volume or of a snapshot of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Seconds since 1970.
    pub created: i64,
    /// Bytes.
    pub referenced: u64,
}

/// The snapshots of one file system in service, and the volumes that lie beside the file systems below
/// it. Names are those of the last component.
pub trait Snapshots: Send + Sync + 'static {
    /// How far the control directory is to be seen: property `snapdir`. A snapshot mounted on its own
    /// has none.
    fn snapdir(&self) -> Snapdir;

    /// Every snapshot with its dataset object.
    fn list(&self) -> Result<Vec<(String, u64)>>;

    /// How many snapshots there are.
    fn count(&self) -> u64;

    /// When snapshots were last made, renamed or destroyed, if the pool records it.
    fn changed(&self) -> Option<Time>;

    /// A snapshot by its name. `Kind::NotFound` if there is none, or it is hidden.
    fn find(&self, name: &str) -> Result<Key>;

    /// Whether there is a volume.
    fn has_volumes(&self) -> Result<bool>;

    /// Every volume, followed by its snapshots (`volume@snapshot`), with dataset objects.
    fn volumes(&self) -> Result<Vec<(String, u64)>>;

    /// A volume or a snapshot of one by its name. `Kind::NotFound` if there is none.
    fn find_volume(&self, name: &str) -> Result<Key>;

    /// User and group whom volumes are shown as belonging to.
    fn owner(&self) -> (u32, u32);

    /// Figures of a volume or of a snapshot of one; none if it is gone.
    fn figures(&self, object: u64) -> Option<Figures>;

    /// Opens a dataset for reading: as files if it is a snapshot of this file system, as a volume
    /// otherwise.
    ///
    /// Errors: `Kind::NotFound` or `Kind::Stale` if it is gone.
    fn open(&self, key: Key) -> Result<Content>;

    /// The files of a snapshot are no longer looked at from here.
    fn close(&self, object: u64);

    /// `mkdir` in the directory of snapshots: makes one. The caller is in no operation of the file system.
    ///
    /// # Errors
    /// `ReadOnly` where there is nobody to do it; `NotPermitted` if the caller may not; otherwise what refuses it.
    fn create(&self, _name: &str, _caller: Peer) -> Result<()> {
        Err(Kind::ReadOnly.into())
    }

    /// `rmdir` there: destroys a snapshot. Errors as for [`Snapshots::create`].
    fn destroy(&self, _name: &str, _caller: Peer) -> Result<()> {
        Err(Kind::ReadOnly.into())
    }

    /// `rename` there: renames a snapshot. Errors as for [`Snapshots::create`].
    fn rename(&self, _name: &str, _to: &str, _caller: Peer) -> Result<()> {
        Err(Kind::ReadOnly.into())
    }
}
