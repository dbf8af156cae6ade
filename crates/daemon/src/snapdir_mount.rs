//! `.zfs` mounted on itself, where `snapdir=visible` shows it: it gets a device number of its own, so that `du -x`, `find -xdev` and the
//! like leave the snapshots out.
//!
//! It ends before the mount that it lies in. Where somebody takes that away with all that is in it, its requests fail.

use base::sync::{CondvarExt, MutexExt};
use base::{Error, Result};
use fuse::{Config, MountOptions, MountPoint, Session, Unmount};
use fuse_zpl::{Adapter, ControlMount};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Type in the table of mounts, behind `fuse.`: not that of file systems, of which each has one line.
const SUBTYPE: &str = "zfs-snapdir";
/// How long the session may take to end, once nobody can reach it.
const RELEASE: Duration = Duration::from_secs(3);

/// The mount of one `.zfs`.
pub struct SnapdirMount {
    mount: fuse::Mount,
    session: fuse::Handle,
    ended: Arc<(Mutex<bool>, Condvar)>,
}

impl SnapdirMount {
    /// Mounts the `.zfs` of the file system at `path`, which must be served already.
    ///
    /// # Errors
    /// Those of mounting.
    pub fn mount(
        adapter: &Arc<Adapter>,
        path: &Path,
        options: MountOptions,
        config: &Config,
    ) -> Result<SnapdirMount> {
        let place = MountPoint::find(&path.join(".zfs"), None, false).map_err(|e| e.error)?;
        let (fd, mount) = fuse::mount_at(&place, &kernel(options))?;
        mount.set_read_ahead(config.max_readahead);
        let config = Config {
            writeback_cache: false,
            export: false,
            ..config.clone()
        };
        let session = Session::new(ControlMount::new(adapter), fd, config);
        let handle = session.handle();
        let ended = Arc::new((Mutex::new(false), Condvar::new()));
        let (tell, shown) = (ended.clone(), path.display().to_string());
        std::thread::Builder::new()
            .name("fuse .zfs".into())
            .spawn(move || {
                if let Err(e) = session.run() {
                    crate::log::error(&format!("{shown}/.zfs: {e}"));
                }
                *tell.0.acquire() = true;
                tell.1.notify_all();
            })
            .map_err(Error::from)?;
        Ok(SnapdirMount {
            mount,
            session: handle,
            ended,
        })
    }

    /// What is mounted.
    pub fn mounted(&self) -> &fuse::Mount {
        &self.mount
    }

    /// Takes it away, by force also where it is in use.
    ///
    /// # Errors
    /// Busy.
    pub fn end(&self, force: bool) -> Result<()> {
        let how = match force {
            true => Unmount::Force,
            false => Unmount::Normal,
        };
        self.mount.unmount(how)?;
        // Copies in other mount namespaces end, too: nothing of them is in use, or they are to end.
        self.abort();
        self.session.stop();
        let begin = Instant::now();
        let mut ended = self.ended.0.acquire();
        while !*ended && begin.elapsed() < RELEASE {
            ended = self.ended.1.wait_acquire_timeout(ended, RELEASE / 10);
        }
        Ok(())
    }

    /// Fails what waits for it.
    pub fn abort(&self) {
        self.mount.abort();
    }

    /// Options of the file system have changed.
    ///
    /// # Errors
    /// Those of changing them.
    pub fn remount(&self, options: MountOptions) -> Result<()> {
        self.mount.remount(&kernel(options))
    }
}

/// The options of the file system, with a type of its own.
fn kernel(options: MountOptions) -> MountOptions {
    MountOptions {
        subtype: SUBTYPE.into(),
        ..options
    }
}
