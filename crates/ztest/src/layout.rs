//! The pool: made of images by chance, found again, its file systems opened.

use crate::options::Options;
use crate::Dice;
use base::{bail, Kind, Result};
use disk::feature;
use dsl::{CreateArgs, Dataset};
use pool::{CreateSpec, OpenOptions, OpenSet, Pool, Tunables};
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use vdev::{DevSpec, GroupKind, TopSpec};
use zpl::{create_fs, FsOptions, Mount, Props, SpaceInfo, Zfs, ZilLog};

const TUNABLES: Tunables = Tunables {
    // Small, so that things are read from the disks again.
    cache_bytes: 32 << 20,
    dirty_max: 32 << 20,
    // Small as well, so that kills find destroyed datasets freed in part.
    job_blocks: 50,
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
        let kind = match (o.mirror, o.raidz) {
            (Some(_), _) => GroupKind::Mirror,
            (_, Some(_)) => GroupKind::Raidz {
                nparity: o.parity as usize,
            },
            _ => match dice.below(5) {
                0 => GroupKind::Single,
                1 => GroupKind::Mirror,
                n => GroupKind::Raidz {
                    nparity: n as usize - 1,
                },
            },
        };
        let width = match kind {
            GroupKind::Single => 1,
            GroupKind::Mirror => o.mirror.unwrap_or(2 + dice.below(2)),
            GroupKind::Raidz { nparity } => o.raidz.unwrap_or(nparity as u64 + 1 + dice.below(4)),
            _ => 1,
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

/// The image of a leaf.
pub fn image(o: &Options, top: u64, leaf: u64) -> PathBuf {
    o.folder.join(format!("{}.{top}.{leaf}.img", o.pool))
}

/// All images of the pool that are there.
pub fn images(o: &Options) -> Vec<PathBuf> {
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

fn options(version: u64) -> FsOptions {
    let now = zpl::Time {
        sec: 1_700_000_000,
        nsec: 5,
    };
    FsOptions::new(version, now)
}

/// Makes the pool with its file systems.
pub fn create(o: &Options, l: &Layout) -> Result<()> {
    let mut tops = Vec::new();
    for t in 0..l.tops {
        let mut devices = Vec::new();
        for leaf in 0..l.width {
            let path = image(o, t, leaf);
            let f = File::create_new(&path).map_err(|e| named(&path, &e))?;
            f.set_len(o.size).map_err(|e| named(&path, &e))?;
            devices.push(DevSpec::file(path.to_string_lossy()));
        }
        let mut top = TopSpec::new(l.kind, devices);
        top.ashift = Some(l.ashift);
        tops.push(top);
    }
    let spec = CreateSpec {
        name: o.pool.clone(),
        tops,
        version: 5000,
        features: feature::FEATURES
            .iter()
            .filter(|f| f.supported && f.default_on)
            .collect(),
        extra: vec![],
        command: format!("zpool create {}", o.pool),
        tunables: TUNABLES,
    };
    let version = spec.version;
    let pool = Pool::create(env_linux::linux_env(), spec, &|_, os, tx| {
        create_fs(os, tx, &options(version))
    })?;
    for n in 1..o.sets {
        pool.task(move |pool, tx| {
            let parent = pool.dsl.root()?;
            let args = CreateArgs {
                case_insensitive: false,
                internal: false,
            };
            let ds = pool.dsl.create_fs(tx, &parent, &format!("fs{n}"), args)?;
            let os = pool.new_objset(tx, &ds, disk::os_type::ZFS)?;
            create_fs(&os, tx, &options(pool.version()))
        })?;
    }
    pool.close()
}

fn named(path: &std::path::Path, e: &std::io::Error) -> base::Error {
    base::Error::new(Kind::Io, format!("{}: {e}", path.display()))
}

/// Opens the pool that is on the images.
pub fn open(o: &Options) -> Result<Arc<Pool>> {
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
        ..OpenOptions::default()
    };
    let pool = Pool::open(env, &p.config, opts)?;
    if let Some(g) = o.gang {
        pool.space.set_largest(g);
    }
    Ok(pool)
}

struct Figures(Arc<Dataset>, Arc<OpenSet>);

impl SpaceInfo for Figures {
    fn space(&self) -> zpl::Space {
        zpl::Space {
            referenced: self.0.phys().referenced_bytes,
            available: self.0.available().bytes,
            objects: self.1.os.object_count(),
            objects_free: 1 << 40,
        }
    }
}

/// A file system in use.
pub struct Fs {
    pub number: u64,
    /// Name in the pool's directory, `None` for its own.
    pub name: Option<String>,
    pub zfs: Arc<Zfs>,
    set: Arc<OpenSet>,
}

/// Mounts number `n`: its log is replayed, its delete queue emptied.
pub fn mount(pool: &Arc<Pool>, o: &Options, n: u64, dice: &mut Dice) -> Result<Fs> {
    let name = (n > 0).then(|| format!("fs{n}"));
    let ds = match &name {
        None => pool.dsl.root_dataset()?,
        Some(name) => pool.dsl.dataset(&format!("{}/{name}", o.pool))?,
    };
    let set = pool.open_dataset(&ds)?;
    let Some(zil) = set.zil().cloned() else {
        bail!(ReadOnly, "the pool was opened read-only");
    };
    let zfs = Zfs::open(
        &set.os,
        Mount {
            clock: pool.env.clock.clone(),
            props: Props {
                recordsize: 4096 << dice.below(6),
                ..Props::default()
            },
            space: Arc::new(Figures(ds, set.clone())),
            log: Arc::new(ZilLog::new(zil.clone(), &set.os, false)),
            pool_version: pool.version(),
            software_version: pool.software_version(),
        },
    )?;
    zfs.replay_log(&zil)?;
    zfs.start()?;
    Ok(Fs {
        number: n,
        name,
        zfs,
        set,
    })
}

impl Fs {
    /// The dataset of the pool this is.
    pub fn dataset(pool: &Pool, o: &str, name: Option<&str>) -> Result<Arc<Dataset>> {
        match name {
            None => pool.dsl.root_dataset(),
            Some(n) => pool.dsl.dataset(&format!("{o}/{n}")),
        }
    }

    /// Unmounts as the daemon does.
    pub fn unmount(self, pool: &Arc<Pool>) -> Result<()> {
        self.zfs.stop()?;
        if let Some(zil) = self.set.zil() {
            pool.sync()?;
            zil.destroy()?;
            pool.sync()?;
        }
        let object = self.set.ds.object();
        drop(self.zfs);
        drop(self.set);
        pool.close_dataset(object);
        Ok(())
    }
}
