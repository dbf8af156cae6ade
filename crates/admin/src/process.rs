//! The trait [`Process`]: threads, devices and users of the machine, for imported pools.

use crate::registry::{Admin, PoolEntry};
use base::Result;
use pool::Tunables;
use std::sync::Arc;
use std::time::Duration;

/// Objections of the machine to using a device for a new pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceUse {
    /// Nothing.
    Free,
    /// It has labels of a pool.
    Labels,
    /// Somebody has to insist.
    Overridable(String),
    /// It cannot be used; the text says why.
    Fatal(String),
}

/// Threads, memory, devices and users of the process and its machine.
pub trait Process: Send + Sync {
    /// A pool comes into service: from now on its txgs are to be written, its devices and mounts to be
    /// looked after, until [`PoolEntry::is_leaving`].
    ///
    /// Errors: of the system, which has no more threads. The pool does not come into service then.
    fn in_service(&self, admin: &Arc<Admin>, entry: &Arc<PoolEntry>) -> Result<()>;

    /// Whether a txg that devices refuse waits for them, as long as it takes; a pool is stopped otherwise.
    fn waits_for_devices(&self) -> bool;

    /// Heartbeats of a pool with the property `multihost` are to be written until
    /// [`PoolEntry::is_closed`]. A second call changes nothing.
    fn beat(&self, entry: &Arc<PoolEntry>) -> Result<()>;

    /// A pool came or went: memory is shared anew.
    fn share(&self, admin: &Admin);

    /// Memory of a pool about to be opened; [`Process::share`] takes it back to its share.
    fn tunables(&self) -> Tunables;

    /// Does a job that may wait without end, beside the caller.
    fn spawn(&self, name: &str, job: Box<dyn FnOnce() + Send>) -> Result<()>;

    /// Calls `job` with every number below `jobs`, several at a time if that is worth it, and returns when
    /// all have ended. The jobs mostly wait.
    fn together(&self, jobs: usize, job: &(dyn Fn(usize) + Sync));

    /// Waits; `false` as soon as `stop` says so.
    fn pause(&self, time: Duration, stop: &dyn Fn() -> bool) -> bool;

    /// Effective user and group.
    fn user(&self) -> (u32, u32);

    /// The user whom the machine has given a user id: that of the administrator's list of subordinate ids, else the id itself.
    /// What a user may have at a time counts for all of these together.
    fn account(&self, uid: u32) -> u32 {
        uid
    }

    /// Name of another process, if it is known.
    fn command(&self, pid: i32) -> Option<String>;

    /// Local date and time of so many seconds since 1970, in words.
    fn date(&self, seconds: u64) -> String;

    /// From now on a crash leaves no image of the memory behind: there are keys in it.
    fn no_dumps(&self);

    /// A user, or a file that only the owner of this process writes, has named this device, which may be somewhere in the network: it may be
    /// connected to from now on. What labels name may not.
    fn named_device(&self, _path: &str) {}

    /// Devices in which pools may be, in a folder or, without one, wherever devices are.
    fn devices(&self, folder: Option<&str>) -> Result<Vec<String>>;

    /// What makes two names the same device; none if there is no such device.
    fn identity(&self, path: &str) -> Option<(bool, u64, u64)>;

    /// Whether somebody, such as another process of this kind, has a device to the exclusion of others.
    fn is_held(&self, path: &str) -> bool;

    /// Who uses a device.
    fn device_use(&self, path: &str) -> Result<DeviceUse>;
}
