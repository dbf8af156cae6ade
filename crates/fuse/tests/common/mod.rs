//! Mounting the memory file system for a test, and taking it away whatever happens.
#![allow(dead_code)]

pub mod memfs;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::Arc;
use std::thread::JoinHandle;

use fuse::*;
use memfs::MemFs;

/// Whether this is the run over io_uring: all test modules are in `uring.rs`, too.
pub fn over_uring() -> bool {
    module_path!().starts_with("uring::")
}

/// The usual options, over the transport to be tested.
pub fn config() -> Config {
    Config {
        transport: match over_uring() {
            true => Transport::Uring,
            false => Transport::Device,
        },
        ..Config::default()
    }
}

/// Whether tests that mount can run here; says so if not.
pub fn can_mount() -> bool {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: there is no /dev/fuse");
        return false;
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root");
        return false;
    }
    if over_uring() {
        if let Err(why) = enable_uring() {
            eprintln!("skipped: {why}");
            return false;
        }
    }
    true
}

/// A fresh directory for a mount.
pub fn mount_point(tag: &str) -> PathBuf {
    static N: AtomicUsize = AtomicUsize::new(0);
    let n = N.fetch_add(1, SeqCst);
    let dir = std::env::temp_dir().join(format!("fuse-test-{tag}-{}-{n}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    dir
}

pub struct TestMount {
    pub fs: Arc<MemFs>,
    pub mount: Mount,
    pub handle: Handle,
    pub notifier: Notifier,
    pub dir: PathBuf,
    serving: Option<JoinHandle<base::Result<End>>>,
}

/// Whether the kernel ended a session. An unmounted one reads ENODEV as a rule, but one in a
/// thousand ECONNABORTED, as if it had been aborted (Linux 6.18, with other mounts coming
/// and going); `wire` has the exact answers.
pub fn by_kernel(end: End) -> bool {
    matches!(end, End::Unmounted | End::Aborted)
}

impl TestMount {
    pub fn new(tag: &str) -> TestMount {
        TestMount::with(tag, MemFs::new(), config())
    }

    pub fn with(tag: &str, fs: MemFs, config: Config) -> TestMount {
        let mut options = MountOptions::new(format!("testpool/{tag} x,y"));
        options.allow_other = true;
        TestMount::with_options(tag, fs, config, &options)
    }

    pub fn with_options(tag: &str, fs: MemFs, config: Config, options: &MountOptions) -> TestMount {
        let dir = mount_point(tag);
        let fs = Arc::new(fs);
        let (fd, mount) = match mount(&dir, options) {
            Ok(x) => x,
            Err(e) => {
                let _ = std::fs::remove_dir(&dir);
                panic!("{e:?}");
            }
        };
        let session = Session::new(fs.clone(), fd, config);
        let (handle, notifier) = (session.handle(), session.notifier());
        let serving = std::thread::spawn(move || session.run());
        TestMount {
            fs,
            mount,
            handle,
            notifier,
            dir,
            serving: Some(serving),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Waits for the end of the session.
    pub fn join(&mut self) -> base::Result<End> {
        self.serving.take().unwrap().join().unwrap()
    }

    /// Unmounts and waits.
    pub fn finish(mut self) -> Arc<MemFs> {
        if let Some(c) = self.handle.carried() {
            assert_eq!(c.uring, over_uring(), "{c}");
        }
        self.mount.unmount(Unmount::Normal).unwrap();
        let end = self.join().unwrap();
        assert!(by_kernel(end), "{end:?}");
        assert!(!self.mount.is_mounted().unwrap());
        self.fs.clone()
    }
}

impl Drop for TestMount {
    fn drop(&mut self) {
        if self.mount.is_mounted().unwrap_or(true) {
            let _ = self.mount.unmount(Unmount::Force);
        }
        if let Some(j) = self.serving.take() {
            self.handle.stop();
            let _ = j.join();
        }
        let _ = std::fs::remove_dir(&self.dir);
    }
}
