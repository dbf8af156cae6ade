//! The pool under test: created with a random layout of image files, opened, its file systems mounted.

use crate::options::{Kind, Options};
use crate::Dice;
use base::{bail, Result};
use pool::{OpenOptions, Pool, Tunables};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vdev::GroupKind;
use zpl::Zfs;

pub const TUNABLES: Tunables = Tunables {
    // Small, so that things are read from the disks again.
    cache_bytes: 32 << 20,
    dirty_max: 32 << 20,
    // Small as well, so that kills find destroyed datasets freed in part.
    job_bytes: 50 * 4096,
    autotrim_txgs: 4,
};

/// How the pool is built.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub kind: GroupKind,
    pub tops: u64,
    /// Leaves of each top-level vdev.
    pub width: u64,
    pub ashift: u32,
}

impl Layout {
    pub fn by_chance(o: &Options, dice: &mut Dice) -> Layout {
        let raidz = |nparity| GroupKind::Raidz { nparity };
        let parity = o.parity as usize;
        let kind = match (o.kind, o.mirror, o.raidz) {
            (Kind::Draid, _, _) => draid(o, parity, dice),
            (_, Some(_), _) => GroupKind::Mirror,
            (Kind::Raidz, _, _) | (_, _, Some(_)) => raidz(parity),
            _ => match dice.below(6) {
                0 => GroupKind::Single,
                1 => GroupKind::Mirror,
                2 => draid(o, 1 + dice.below(3) as usize, dice),
                n => raidz(n as usize - 2),
            },
        };
        let width = match kind {
            GroupKind::Single => 1,
            GroupKind::Mirror => o.mirror.unwrap_or(2 + dice.below(2)),
            GroupKind::Raidz { nparity } => o.raidz.unwrap_or(nparity as u64 + 1 + dice.below(4)),
            GroupKind::Draid {
                nparity,
                ndata,
                nspares,
            } => {
                let least = nparity as u64 + ndata + nspares;
                o.raidz.unwrap_or(least + dice.below(3))
            }
        };
        let ashift = match o.ashift {
            0 => [9, 12][dice.below(2) as usize],
            a => a,
        };
        Layout {
            kind,
            tops: 1 + dice.below(o.vdevs),
            width,
            ashift,
        }
    }

    /// Whether one bad disk in each top-level vdev does no harm.
    pub fn is_redundant(&self) -> bool {
        !matches!(self.kind, GroupKind::Single)
    }
}

/// A dRAID of such parity that fits the number of disks, if one is asked for.
fn draid(o: &Options, nparity: usize, dice: &mut Dice) -> GroupKind {
    let most = o.raidz.map_or(u64::MAX, |disks| disks - nparity as u64 - 1);
    let ndata = o.data.unwrap_or(2 + dice.below(2)).min(most);
    let nspares = (1 + dice.below(2)).min((most - ndata).saturating_add(1));
    GroupKind::Draid {
        nparity,
        ndata,
        nspares,
    }
}

/// The image of a leaf.
pub fn image(o: &Options, top: u64, leaf: u64) -> PathBuf {
    o.folder.join(format!("{}.{top}.{leaf}.img", o.pool))
}

/// Log devices that a pool may have, one at a time.
const LOGS: u64 = 2;

/// The image of a log device.
fn log_image(o: &Options, n: u64) -> PathBuf {
    o.folder.join(format!("{}.log.{n}.img", o.pool))
}

/// Images of log devices, which are made where they are missing.
pub fn logs(o: &Options) -> Result<Vec<PathBuf>> {
    let paths: Vec<PathBuf> = (0..LOGS).map(|n| log_image(o, n)).collect();
    for path in paths.iter().filter(|p| !p.exists()) {
        let f = File::create_new(path).map_err(|e| named(path, &e))?;
        f.set_len(o.size).map_err(|e| named(path, &e))?;
    }
    Ok(paths)
}

/// All images of the pool that are there.
pub fn images(o: &Options) -> Vec<PathBuf> {
    let logs = (0..LOGS).map(|n| log_image(o, n));
    let mut out = disks(o);
    out.extend(logs.filter(|p| p.exists()));
    out
}

/// Those that are no logs.
pub fn disks(o: &Options) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for top in 0.. {
        let before = out.len();
        out.extend((0..).map(|n| image(o, top, n)).take_while(|p| p.exists()));
        if out.len() == before {
            return out;
        }
    }
    out
}

/// Makes one more image of `size` bytes, on which nothing is.
pub fn add_image(o: &Options, size: u64) -> Result<PathBuf> {
    let free = |p: &PathBuf| !p.exists();
    let Some(path) = (0..).map(|n| image(o, 0, n)).find(free) else {
        bail!(NotFound, "no name for an image");
    };
    let f = File::create_new(&path).map_err(|e| named(&path, &e))?;
    f.set_len(size).map_err(|e| named(&path, &e))?;
    Ok(path)
}

/// Bytes of an image.
pub fn size_of(path: &Path) -> Result<u64> {
    let meta = std::fs::metadata(path).map_err(|e| named(path, &e))?;
    Ok(meta.len())
}

/// Makes the image files, full of holes.
pub fn make_images(o: &Options, l: &Layout) -> Result<()> {
    for t in 0..l.tops {
        for leaf in 0..l.width {
            let path = image(o, t, leaf);
            let f = File::create_new(&path).map_err(|e| named(&path, &e))?;
            f.set_len(o.size).map_err(|e| named(&path, &e))?;
        }
    }
    Ok(())
}

/// A path as labels have it.
pub fn absolute(path: &Path) -> Result<String> {
    let path = std::path::absolute(path).map_err(|e| named(path, &e))?;
    Ok(path.to_string_lossy().into_owned())
}

fn named(path: &Path, e: &std::io::Error) -> base::Error {
    base::Error::new(base::Kind::Io, format!("{}: {e}", path.display()))
}

/// Opens the pool that is on the images.
pub fn open(o: &Options) -> Result<Arc<Pool>> {
    open_as(o, OpenOptions::default())
}

/// The same in another way.
pub fn open_as(o: &Options, how: OpenOptions) -> Result<Arc<Pool>> {
    let env = env_linux::linux_env();
    let paths: Vec<String> = images(o)
        .iter()
        .map(|p| p.to_string_lossy().into_owned())
        .collect();
    let found = vdev::discover(&env, &paths);
    let Some(p) = found.pools.iter().find(|p| p.name == o.pool) else {
        bail!(NotFound, "no pool '{}' in {}", o.pool, o.folder.display());
    };
    let opts = OpenOptions {
        tunables: TUNABLES,
        ..how
    };
    let pool = Pool::open(env, &p.config, opts)?;
    if let Some(g) = o.gang {
        pool.space().set_largest(g);
    }
    Ok(pool)
}

/// A file system in use.
pub struct Fs {
    pub number: u64,
    /// Name in the pool's directory, `None` for its own.
    pub name: Option<String>,
    pub zfs: Arc<Zfs>,
}
