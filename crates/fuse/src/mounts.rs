//! Mounting a file system that is being served.

use std::os::fd::AsFd;

use base::{bail, Result};
use privilege::{Mount, MountOptions, MountPoint};

use crate::notify::Notifier;

/// Mounts a file system that is being served once more, as [`privilege::mount_again`].
pub fn mount_again(
    place: &MountPoint,
    options: &MountOptions,
    connection: &Notifier,
) -> Result<Mount> {
    match connection.device() {
        Some(device) => privilege::mount_again(place, options, device.as_fd()),
        None => bail!(NoSuchDevice, "the session has ended"),
    }
}
