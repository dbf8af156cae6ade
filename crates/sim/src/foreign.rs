//! OpenZFS's `zdb` as a further judge of images. It shares no code with the engine, so it sees mistakes that
//! writer and reader have in common.

use crate::cut::Image;
use crate::rig::{self, POOL};
use env_sim::SeededRng;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use testkit::{OpenZfs, TempDir};

/// OpenZFS's `zdb` and how often it is asked.
#[derive(Debug)]
pub struct Foreign {
    zdb: OpenZfs,
    every: u64,
    keep: Option<PathBuf>,
    judged: AtomicU64,
}

impl Foreign {
    /// One in `every` of the images that may be judged are. Those it finds something in are left in
    /// the folder `keep`.
    pub fn new(zdb: OpenZfs, every: u64, keep: Option<PathBuf>) -> Foreign {
        Foreign {
            zdb,
            every: every.max(1),
            keep,
            judged: AtomicU64::new(0),
        }
    }

    /// Images judged so far.
    pub fn judged(&self) -> u64 {
        self.judged.load(Relaxed)
    }

    /// Whether the image that this seed belongs to is judged.
    pub fn wants(&self, seed: u64) -> bool {
        SeededRng::new(seed ^ 0x2db0).below(self.every) == 0
    }

    /// All blocks verify, and each allocated sector belongs to one block. Nobody may have the pool
    /// on these disks open. `what` says what image it is.
    pub fn judge(&self, disks: &Image, what: &str) -> Result<(), String> {
        let dir = TempDir::new("sim-zdb").map_err(|e| e.to_string())?;
        rig::dump(disks, dir.path()).map_err(|e| format!("{}: {e}", dir.path().display()))?;
        self.judged.fetch_add(1, Relaxed);
        let Err(e) = self.zdb.check(dir.path(), POOL) else {
            return Ok(());
        };
        let mut kept = String::new();
        if let Some(keep) = &self.keep {
            let to = keep.join(format!("image-{}-{}", std::process::id(), self.judged()));
            let r = std::fs::create_dir_all(&to).and_then(|()| rig::dump(disks, &to));
            kept = match r {
                Ok(()) => format!(" (kept in {})", to.display()),
                Err(e) => format!(" ({}: {e})", to.display()),
            };
        }
        Err(format!("zdb of OpenZFS, {what}{kept}: {e}"))
    }
}
