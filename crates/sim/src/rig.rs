//! Pools on recorded disks in memory, and the images that power cuts leave of them.

pub use crate::cut::{Cutter, Fate, FATES};
use audit::Verify;
use base::{Kind, Result};
use disk::feature;
use disk::NvList;
use dmu::Objset;
use dsl::Dataset;
use env_sim::{mem_env, Journal, MemDisk, MemDisks};
use pool::{CreateSpec, OpenOptions, OpenSet, Pool, Tunables};
use std::sync::Arc;
use vdev::{DevSpec, GroupKind, TopSpec};
use zap::Zap;
use zpl::{create_fs, FsOptions, Mount, NoLog, Props, SpaceInfo, Usage, Whose, Zfs, ZilLog};

pub const MIB: u64 = 1 << 20;

/// Bytes of disks of further top-level vdevs: a removal needs much room elsewhere.
pub const LARGE: u64 = 640 * MIB;

/// Name of the simulated pool.
pub const POOL: &str = "tank";

/// Name of what is split off it.
pub const HALF: &str = "half";

/// What kind of pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub kind: GroupKind,
    pub disks: usize,
    pub version: u64,
    pub ashift: u32,
    pub log_spacemap: bool,
    /// A separate log device comes with it.
    pub slog: bool,
    /// So many further disks lie idle.
    pub bench: usize,
    /// So many further disks may be attached to a RAID-Z. Of single disks, mirrors and dRAIDs: so many further groups of as many disks
    /// may become top-level vdevs. What may leave again is on disks of [`LARGE`] bytes.
    pub grow: usize,
    /// Bytes of each disk.
    pub size: u64,
    /// Small records, so that one write is many blocks.
    pub recordsize: usize,
    /// No free space is larger than that once the file system is mounted.
    pub splinters: Option<u64>,
    /// What is freed is used again as soon as that is allowed, once the file system is mounted.
    pub eager: bool,
    /// Files belong to projects, too.
    pub projects: bool,
    /// Whole blocks are written before their txg closes, once the file system is mounted.
    pub early: bool,
    /// Space right before the ends of metaslabs, and of the groups of a dRAID, is used first once the file system is mounted.
    pub edges: bool,
}

impl Layout {
    pub fn new(kind: GroupKind, disks: usize) -> Layout {
        Layout {
            kind,
            disks,
            version: 5000,
            ashift: 9,
            log_spacemap: true,
            slog: false,
            bench: 0,
            grow: 0,
            size: 96 * MIB,
            recordsize: 128 << 10,
            splinters: None,
            eager: false,
            projects: false,
            early: false,
            edges: false,
        }
    }

    /// Devices that may be missing.
    pub fn redundancy(&self) -> usize {
        match self.kind {
            GroupKind::Single => 0,
            GroupKind::Mirror => self.disks - 1,
            GroupKind::Raidz { nparity } | GroupKind::Draid { nparity, .. } => nparity,
        }
    }

    /// Distributed spares.
    pub fn spares(&self) -> u64 {
        match self.kind {
            GroupKind::Draid { nspares, .. } => nspares,
            _ => 0,
        }
    }

    /// Bytes of a group of a dRAID, or of a metaslab of another layout.
    fn group_bytes(&self) -> u64 {
        match self.kind {
            GroupKind::Draid { nparity, ndata, .. } => (nparity as u64 + ndata) * vdev::draid::ROW,
            _ => 1 << 24,
        }
    }

    /// All disks: those of the pool, its log, idle ones, those by which it may grow.
    pub fn devices(&self) -> usize {
        self.grows_at() + self.grow * self.group_of()
    }

    /// The first of the disks by which the pool may grow.
    pub fn grows_at(&self) -> usize {
        self.disks + usize::from(self.slog) + self.bench
    }

    /// Disks that come together.
    fn group_of(&self) -> usize {
        match self.kind {
            GroupKind::Raidz { .. } => 1,
            _ => self.disks,
        }
    }

    /// Disks of a group: 0 is the one the pool is made of, the others are those by which it may grow.
    pub fn group(&self, n: usize) -> std::ops::Range<usize> {
        match n.checked_sub(1) {
            None => 0..self.disks,
            Some(n) => {
                let first = self.grows_at() + n * self.group_of();
                first..first + self.group_of()
            }
        }
    }

    /// Sets of disks, of each of which as many may be missing as [`Layout::redundancy`] says.
    pub fn sets(&self) -> Vec<Vec<usize>> {
        let groups = (0..=self.grow).map(|n| self.group(n));
        match self.kind {
            GroupKind::Raidz { .. } => vec![groups.flatten().collect()],
            _ => groups.map(|g| g.collect()).collect(),
        }
    }

    /// Bytes of a disk.
    pub fn size_of(&self, disk: usize) -> u64 {
        match self.kind {
            GroupKind::Raidz { .. } | GroupKind::Draid { .. } => self.size,
            _ if disk < self.grows_at() => self.size,
            _ => LARGE,
        }
    }
}

/// A machine with the disks `d0`, `d1`, ….
pub fn machine(disks: &[Arc<MemDisk>], seed: u64) -> (env::Env, Arc<MemDisks>) {
    let (env, all) = mem_env(seed);
    for (i, d) in disks.iter().enumerate() {
        all.put(&format!("d{i}"), d.clone());
    }
    (env, all)
}

pub fn tunables() -> Tunables {
    Tunables {
        // Small, so that things are read from the disks again.
        cache_bytes: 3 << 20,
        dirty_max: 16 << 20,
        // Small as well, so that crashes find destroyed datasets freed in part.
        job_bytes: 30 * 4096,
        autotrim_txgs: 2,
    }
}

/// A new pool; the disks and the pool.
pub fn create(l: &Layout, seed: u64) -> (Vec<Arc<MemDisk>>, Arc<Pool>) {
    let disks: Vec<_> = (0..l.devices())
        .map(|n| MemDisk::new(l.size_of(n)))
        .collect();
    let (env, _) = machine(&disks, seed);
    let pool = create_in(l, env).unwrap();
    (disks, pool)
}

/// A new pool on the disks `d0`, `d1`, … of a machine.
pub fn create_in(l: &Layout, env: env::Env) -> Result<Arc<Pool>> {
    let dev = |i: usize| DevSpec::file(format!("d{i}"));
    let mut top = TopSpec::new(l.kind, (0..l.disks).map(dev).collect());
    top.ashift = Some(l.ashift);
    let mut tops = vec![top];
    if l.slog {
        tops.push(log_on(l.disks, l));
    }
    let version = l.version;
    let features = match version {
        5000 => feature::FEATURES
            .iter()
            .filter(|f| f.supported && f.default_on)
            .filter(|f| l.log_spacemap || f.name != "log_spacemap")
            .collect(),
        _ => Vec::new(),
    };
    let spec = CreateSpec {
        name: POOL.into(),
        tops,
        version,
        features,
        extra: vec![],
        command: format!("zpool create {POOL}"),
        tunables: tunables(),
    };
    Pool::create(env, spec, &|_, os, tx| {
        let now = zpl::Time {
            sec: 1_700_000_000,
            nsec: 5,
        };
        let options = FsOptions {
            project_quota: l.projects,
            ..FsOptions::new(version, now)
        };
        create_fs(os, tx, &options)
    })
}

/// A log on one disk.
pub fn log_on(disk: usize, l: &Layout) -> TopSpec {
    TopSpec {
        ashift: Some(l.ashift),
        is_log: true,
        ..TopSpec::new(GroupKind::Single, vec![DevSpec::file(format!("d{disk}"))])
    }
}

/// The pool on these disks. What had left it before it got another guid may name it by the old one.
pub fn newest(env: &env::Env, paths: &[String]) -> Option<vdev::PoolFound> {
    let found = vdev::discover(env, paths).pools;
    let own = found.into_iter().filter(|p| p.name != HALF);
    own.max_by_key(|p| p.txg)
}

/// Name of a disk.
pub fn path(i: usize) -> String {
    format!("/d{i}")
}

/// Full name of the file system that the model calls `fs`: with the pool's name.
pub fn full(fs: &str) -> String {
    match fs {
        "" => POOL.into(),
        fs => format!("{POOL}/{fs}"),
    }
}

/// Opens the pool that is on the disks.
pub fn open(disks: &[Arc<MemDisk>], config: &NvList, seed: u64) -> Result<Arc<Pool>> {
    let (env, _) = machine(disks, seed);
    let opts = OpenOptions {
        tunables: tunables(),
        ..OpenOptions::default()
    };
    Pool::open(env, config, opts)
}

/// Kinds of owners, and the objects that account for them.
pub const WHOSE: [(Whose, u64); 3] = [
    (Whose::User, dmu::USERUSED_OBJECT),
    (Whose::Group, dmu::GROUPUSED_OBJECT),
    (Whose::Project, dmu::PROJECTUSED_OBJECT),
];

/// What an id has.
pub fn usage(os: &Objset, whose: Whose, id: u64) -> Result<Option<Usage>> {
    if os.policy().accounting_flags == 0 {
        return Ok(None);
    }
    let dn = match os.hold(WHOSE[whose as usize].1) {
        Ok(dn) => dn,
        Err(e) if e.kind == Kind::NotFound => return Ok(Some(Usage::default())),
        Err(e) => return Err(e),
    };
    let (z, key) = (Zap::new(&dn), zap::hex_key(id));
    Ok(Some(Usage {
        bytes: z.get(key.as_str())?.unwrap_or(0),
        objects: z.get(format!("obj-{key}").as_str())?.unwrap_or(0),
    }))
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

    fn usage(&self, whose: Whose, id: u64) -> Result<Option<Usage>> {
        usage(&self.1.os, whose, id)
    }
}

/// The root file system in use.
pub struct Fs {
    pub pool: Arc<Pool>,
    pub zfs: Arc<Zfs>,
    pub set: Arc<OpenSet>,
}

/// Has a pool in use behave as its layout says.
pub fn tune(pool: &Pool, l: &Layout) {
    if let Some(n) = l.splinters {
        pool.space().set_largest(n);
    }
    pool.space().set_eager(l.eager);
    if l.grow > 0 {
        pool.set_least_condensed(0);
    }
    pool.space()
        .set_edges(if l.edges { l.group_bytes() } else { 0 });
    if l.early {
        pool.dmu().set_early(4096, 16 << 10);
        pool.keep_streams(false);
    }
}

/// The same for an object set: rests of blocks that are changed in part are read behind the writes, and by the writers, though
/// little is written.
pub fn tune_set(set: &OpenSet, l: &Layout) {
    if l.early {
        set.os.unread_rests().set_limits(128 << 10, 256 << 10);
    }
}

/// Mounts the root file system, i.e. replays the intent log and cleans up.
pub fn mount(pool: &Arc<Pool>, l: &Layout) -> Result<Fs> {
    mount_named(pool, &pool.name(), l)
}

/// The same with any file system.
pub fn mount_named(pool: &Arc<Pool>, name: &str, l: &Layout) -> Result<Fs> {
    tune(pool, l);
    let ds = pool.dsl().dataset(name)?;
    let set = pool.open_dataset(&ds)?;
    let Some(zil) = set.zil().cloned() else {
        return Err(base::Error::new(Kind::ReadOnly, name));
    };
    let recordsize = match ds.prop("recordsize", true)? {
        Some((v, _)) => v.int().map_or(l.recordsize, |n| n as usize),
        None => l.recordsize,
    };
    let slog = pool.tree().tops().iter().any(|t| t.is_log());
    let zfs = Zfs::open(
        &set.os,
        Mount {
            clock: pool.env.clock.clone(),
            props: Props {
                recordsize,
                project_quota: l.projects,
                ..Props::default()
            },
            space: Arc::new(Figures(ds, set.clone())),
            log: Arc::new(ZilLog::new(zil.clone(), &set.os, slog)),
            pool_version: pool.version(),
            software_version: pool.software_version(),
        },
    )?;
    tune_set(&set, l);
    zfs.replay_log(&zil)?;
    zfs.start()?;
    Ok(Fs {
        pool: pool.clone(),
        zfs,
        set,
    })
}

/// Looks at a snapshot of the root file system.
pub fn with_snapshot<R>(
    pool: &Arc<Pool>,
    name: &str,
    f: impl FnOnce(&Fs) -> R,
) -> Result<Option<R>> {
    let head = pool.dsl().root_dataset()?;
    match head.snapshot_named(name)? {
        Some(ds) => with_set(pool, ds, f).map(Some),
        None => Ok(None),
    }
}

/// Looks at a dataset without changing it.
pub fn with_set<R>(pool: &Arc<Pool>, ds: Arc<Dataset>, f: impl FnOnce(&Fs) -> R) -> Result<R> {
    let set = pool.open_dataset(&ds)?;
    let zfs = Zfs::open(
        &set.os,
        Mount {
            clock: pool.env.clock.clone(),
            props: Props {
                readonly: true,
                atime: false,
                ..Props::default()
            },
            space: Arc::new(Figures(ds.clone(), set.clone())),
            log: Arc::new(NoLog),
            pool_version: pool.version(),
            software_version: pool.software_version(),
        },
    )?;
    let pool = pool.clone();
    let fs = Fs { pool, zfs, set };
    let r = f(&fs);
    let pool = fs.pool.clone();
    drop(fs);
    pool.close_dataset(ds.object());
    Ok(r)
}

impl Fs {
    /// Makes a snapshot.
    pub fn snapshot(&self, name: &str) -> Result<()> {
        let head = self.pool.dsl().root_dataset()?;
        self.pool.snapshot(vec![(head, name.into())], |_, _| Ok(()))
    }

    /// Destroys one.
    pub fn destroy_snapshot(&self, name: &str) -> Result<()> {
        let name = name.to_string();
        self.pool.task(move |pool, tx| {
            let head = pool.dsl().root_dataset()?;
            match head.snapshot_named(&name)? {
                Some(s) => pool.dsl().destroy_snapshot(tx, &s),
                None => Err(Kind::NotFound.into()),
            }
        })
    }

    /// Unmounts as the daemon does.
    pub fn unmount(self) -> Result<()> {
        self.zfs.stop()?;
        if let Some(zil) = self.set.zil() {
            self.pool.sync()?;
            zil.destroy()?;
            self.pool.sync()?;
        }
        let object = self.set.ds.object();
        drop(self.zfs);
        drop(self.set);
        self.pool.close_dataset(object);
        Ok(())
    }
}

/// Visits every block, verifies all copies, and compares with the space maps, and with the space properties
/// of datasets.
pub fn walk(pool: &Arc<Pool>) -> std::result::Result<(), String> {
    audited(pool, Verify::Copies, true)?.verdict()?;
    let wrong = audit::accounts(pool).map_err(|e| e.to_string())?;
    let lines: Vec<String> = wrong.iter().map(ToString::to_string).collect();
    match lines.is_empty() {
        true => Ok(()),
        false => Err(lines.join("\n")),
    }
}

/// Reads every block, all copies.
pub fn read_all(pool: &Arc<Pool>) -> std::result::Result<(), String> {
    audited(pool, Verify::Copies, false)?.verdict()
}

/// Number of gangs.
pub fn gangs(pool: &Arc<Pool>) -> u64 {
    let found = audited(pool, Verify::Nothing, false).unwrap();
    found.totals.all().gangs
}

fn audited(
    pool: &Pool,
    verify: Verify,
    compare: bool,
) -> std::result::Result<audit::Outcome, String> {
    audit::check(pool, verify, compare).map_err(|e| e.to_string())
}

/// The same, and no device may have been blamed for anything.
pub fn check(pool: &Arc<Pool>) -> std::result::Result<(), String> {
    walk(pool)?;
    let errors: u64 = pool
        .tree()
        .leaves()
        .iter()
        .map(|l| {
            use std::sync::atomic::Ordering::Relaxed;
            l.stats.checksum_errors.load(Relaxed)
                + l.stats.read_errors.load(Relaxed)
                + l.stats.write_errors.load(Relaxed)
        })
        .sum();
    if errors != 0 {
        return Err(format!("{errors} device errors counted"));
    }
    match pool.space().load_errors().into_iter().next() {
        None => Ok(()),
        Some((v, m, e)) => Err(format!("metaslab {m} of vdev {v}: {e}")),
    }
}

/// Writes images into files for other implementations to look at.
pub fn dump(disks: &[Arc<MemDisk>], dir: &std::path::Path) -> std::io::Result<()> {
    use env::Disk;
    use std::os::unix::fs::FileExt;
    for (i, d) in disks.iter().enumerate() {
        let f = std::fs::File::create(dir.join(format!("d{i}.img")))?;
        f.set_len(d.geometry().size)?;
        let mut result = Ok(());
        d.for_each_chunk(&mut |at, bytes| {
            if result.is_ok() {
                result = f.write_all_at(bytes, at);
            }
        });
        result?;
    }
    Ok(())
}

/// Whether an operation failed for want of space, which changes nothing.
pub fn is_full(e: &base::Error) -> bool {
    matches!(e.kind, Kind::NoSpace | Kind::Quota)
}

pub fn start_journal(disks: &[Arc<MemDisk>]) -> (Arc<Journal>, Vec<Arc<MemDisk>>) {
    let journal = Arc::new(Journal::default());
    let base = disks.iter().map(|d| d.fork()).collect();
    for (i, d) in disks.iter().enumerate() {
        d.record(&journal, i);
    }
    (journal, base)
}
