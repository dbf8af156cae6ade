//! The judges of crash images: an image is opened, its logs are replayed, its content is compared with the
//! oracle, all its blocks are visited, and it is opened once more.

use crate::cut::{Cutter, Image, FATES};
use crate::desk::Desk;
use crate::found::{self, Tree};
use crate::hash::TraceHash;
use crate::keys;
use crate::oracle::{Admin, Frozen, FsModel, Kept, Oracle, Seen};
use crate::owners;
use crate::rig::{self, full, path, Fs, Layout};
use crate::sources;
use disk::label::{label_offset, LABELS, NVLIST_OFFSET, NVLIST_SIZE};
use disk::BlkPtr;
use env::Disk;
use env_sim::{Event, Inline, ManualClock, MemDisk, MemDisks, SeededRng, TestHost};
use pool::{OpenOptions, Pool};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use vdev::GroupKind;

fn text(e: base::Error) -> String {
    e.to_string()
}

/// The seam over these disks.
pub fn env(disks: &[Arc<MemDisk>], seed: u64, clock: &Arc<ManualClock>) -> env::Env {
    let all = MemDisks::default();
    for (i, d) in disks.iter().enumerate() {
        all.put(&path(i), d.clone());
    }
    env::Env {
        disks: Arc::new(all),
        clock: clock.clone(),
        rng: Arc::new(SeededRng::new(seed)),
        host: Arc::new(TestHost),
        cpu: Arc::new(Inline),
    }
}

/// Imports the pool by what its labels say.
pub fn import(
    disks: &[Arc<MemDisk>],
    seed: u64,
    clock: &Arc<ManualClock>,
    opts: OpenOptions,
) -> base::Result<Arc<Pool>> {
    let env = env(disks, seed, clock);
    let paths: Vec<String> = (0..disks.len()).map(path).collect();
    match rig::newest(&env, &paths) {
        Some(p) => Pool::open(env, &p.config, opts),
        None => Err(base::Error::new(base::Kind::NotFound, "no pool is found")),
    }
}

/// The pool that was split off, if its labels say that there is one.
fn half_on(env: &env::Env, disks: usize) -> Option<vdev::PoolFound> {
    let paths: Vec<String> = (0..disks).map(path).collect();
    let found = vdev::discover(env, &paths).pools;
    found.into_iter().find(|p| p.name == rig::HALF)
}

/// Whether there is one.
pub fn has_half(disks: &[Arc<MemDisk>], clock: &Arc<ManualClock>) -> bool {
    half_on(&env(disks, 1, clock), disks.len()).is_some()
}

/// A pool with all its file systems in use.
pub struct Opened {
    pub pool: Arc<Pool>,
    /// By name without the pool's.
    pub mounts: BTreeMap<String, Fs>,
    /// Of the world: what administers it. Judges need none.
    pub desk: Option<Desk>,
}

/// Names of all file systems without the pool's, and of snapshots as `fs@snapshot`.
fn listed(pool: &Arc<Pool>) -> base::Result<(Vec<String>, Vec<String>)> {
    let (mut sets, mut snaps) = (Vec::new(), Vec::new());
    pool.dsl().walk(&pool.dsl().root()?, &mut |d| {
        if d.phys().head_dataset_obj == 0 || d.name().starts_with('$') {
            return Ok(());
        }
        let name = d.full_name();
        let name = name.split_once('/').map_or("", |(_, n)| n).to_string();
        let head = d.head()?;
        // What a stream fills is nothing yet.
        if head.is_inconsistent() || d.name() == dsl::RECV {
            return Ok(());
        }
        snaps.extend(
            head.snapshots()?
                .into_iter()
                .map(|(s, _)| format!("{name}@{s}")),
        );
        sets.push(name);
        Ok(())
    })?;
    sets.sort();
    Ok((sets, snaps))
}

/// Bookmarks as `fs#name` with the txg they mean, and the tags of snapshots that are held.
type Descent = (
    BTreeMap<String, base::Txg>,
    BTreeMap<String, BTreeSet<String>>,
);

fn lineage(pool: &Arc<Pool>, snaps: &[String]) -> base::Result<Descent> {
    let (mut marks, mut holds) = Descent::default();
    for name in listed(pool)?.0 {
        let head = pool.dsl().dataset(&full(&name))?;
        for (mark, m) in head.bookmarks()? {
            marks.insert(format!("{name}#{mark}"), m.creation_txg);
        }
    }
    for snap in snaps {
        let ds = pool.dsl().dataset(&full_snap(snap))?;
        let tags: BTreeSet<String> = ds.hold_list()?.into_iter().map(|(tag, _)| tag).collect();
        if tags.len() as u64 != ds.holds()? {
            let text = format!("{snap}: {} holds, but {} tags", ds.holds()?, tags.len());
            return Err(base::Error::new(base::Kind::Damaged, text));
        }
        if !tags.is_empty() {
            holds.insert(snap.clone(), tags);
        }
    }
    Ok((marks, holds))
}

impl Opened {
    pub fn open(
        disks: &[Arc<MemDisk>],
        layout: &Layout,
        seed: u64,
        clock: &Arc<ManualClock>,
    ) -> Result<Opened, String> {
        let opts = OpenOptions {
            tunables: rig::tunables(),
            ..OpenOptions::default()
        };
        let pool = import(disks, seed, clock, opts).map_err(text)?;
        Opened::mount(pool, layout)
    }

    pub fn mount(pool: Arc<Pool>, layout: &Layout) -> Result<Opened, String> {
        Opened::mount_but(pool, layout, None)
    }

    /// The same without the file system `but`.
    fn mount_but(pool: Arc<Pool>, layout: &Layout, but: Option<&str>) -> Result<Opened, String> {
        let mut mounts = BTreeMap::new();
        keys::load(&pool).map_err(|e| format!("loading keys: {e}"))?;
        let names = listed(&pool).map_err(text)?.0;
        for name in names.into_iter().filter(|n| but != Some(n)) {
            let fs = rig::mount_named(&pool, &full(&name), layout)
                .map_err(|e| format!("mounting '{name}': {e}"))?;
            mounts.insert(name, fs);
        }
        Ok(Opened {
            pool,
            mounts,
            desk: None,
        })
    }

    /// A new pool of a world.
    pub fn create(
        disks: &[Arc<MemDisk>],
        layout: &Layout,
        seed: u64,
        clock: &Arc<ManualClock>,
    ) -> base::Result<Opened> {
        let desk = Desk::new(env(disks, seed, clock));
        desk.create(layout)?;
        Opened::administered(desk, layout)
    }

    /// The pool of a world, imported as users do it.
    pub fn import(
        disks: &[Arc<MemDisk>],
        layout: &Layout,
        seed: u64,
        clock: &Arc<ManualClock>,
    ) -> base::Result<Opened> {
        Opened::import_at(disks, layout, seed, clock, false)
    }

    /// The same; `checkpoint`: as its checkpoint has it.
    pub fn import_at(
        disks: &[Arc<MemDisk>],
        layout: &Layout,
        seed: u64,
        clock: &Arc<ManualClock>,
        checkpoint: bool,
    ) -> base::Result<Opened> {
        let desk = Desk::new(env(disks, seed, clock));
        desk.import(disks.len(), checkpoint)?;
        Opened::administered(desk, layout)
    }

    fn administered(desk: Desk, layout: &Layout) -> base::Result<Opened> {
        let pool = desk.pool()?;
        let mut mounts = BTreeMap::new();
        keys::load(&pool)?;
        for name in listed(&pool)?.0 {
            let fs = desk.mount(&name, layout)?;
            mounts.insert(name, fs);
        }
        Ok(Opened {
            pool,
            mounts,
            desk: Some(desk),
        })
    }

    /// Everything in all file systems.
    pub fn trees(&self) -> Result<BTreeMap<String, Tree>, String> {
        let one = |(name, fs): (&String, &Fs)| match found::walk(fs) {
            Ok(t) => Ok((name.clone(), t)),
            Err(e) => Err(format!("file system '{name}': {e}")),
        };
        self.mounts.iter().map(one).collect()
    }

    /// What it is, if that is what it may be.
    pub fn judge(
        &self,
        oracle: &Oracle,
        trees: &BTreeMap<String, Tree>,
        cut: usize,
    ) -> Result<Admin, String> {
        let pool = &self.pool;
        let (_, snaps) = listed(pool).map_err(text)?;
        let named = |name: &str| pool.dsl().dataset(&full_snap(name)).map_err(text);
        let (marks, holds) = lineage(pool, &snaps).map_err(text)?;
        let seen = Seen {
            mounts: &self.mounts,
            trees,
            snaps: &snaps,
            marks,
            holds,
            checkpoint: pool.shares().checkpoint.txg().is_some(),
            look: &|name, frozen: &Frozen| {
                rig::with_set(pool, named(name)?, |fs| frozen.judge(fs, &found::walk(fs)?))
                    .map_err(text)?
            },
            prop: &|fs, prop| {
                let ds = pool.dsl().dataset(&full(fs)).map_err(text)?;
                pool::prop_number(&ds, prop).map_err(text)
            },
            rights: &|fs, rights| {
                let dir = pool.dsl().dir(&full(fs)).map_err(text)?;
                crate::rights::check(&dir, fs, rights)
            },
        };
        oracle.judge(&seen, cut)
    }

    /// An oracle for what is there.
    pub fn adopt(&self, found: &Admin) -> Result<Oracle, String> {
        let mut models = Vec::new();
        for (name, fs) in &self.mounts {
            let tree = found::walk(fs)?;
            let ids: HashSet<u64> = tree.values().map(|f| f.object).collect();
            let hidden = found::count_objects(fs).map_err(text)? - ids.len();
            models.push((name.clone(), FsModel::new(&Frozen::of(&tree, hidden), 0)));
        }
        Ok(Oracle::adopt(found, models))
    }

    /// Everything is written, whether or not each file system is told first.
    pub fn close(self, unmount: bool) -> Result<(), String> {
        for (name, fs) in self.mounts {
            if unmount {
                fs.unmount()
                    .map_err(|e| format!("unmounting '{name}': {e}"))?;
            }
        }
        self.pool.close().map_err(text)
    }

    /// The process is gone. What it would still write does not matter.
    pub fn forget(self) {
        drop(self.mounts);
        // What was not written keeps itself alive.
        let _ = self.pool.close();
    }
}

/// What is accounted to owners is what they have. Everything must be on disk.
fn used(o: &Opened) -> Result<(), String> {
    o.mounts.iter().try_for_each(|(name, fs)| {
        owners::check_used(fs).map_err(|e| format!("file system '{name}': {e}"))
    })
}

fn full_snap(name: &str) -> String {
    match name.split_once('@') {
        Some((fs, snap)) => format!("{}@{snap}", full(fs)),
        None => full(name),
    }
}

/// Every label that was ever written whole.
pub struct Labels(HashSet<u64>);

fn digest(b: &[u8]) -> u64 {
    let mut h = TraceHash(b.len() as u64);
    h.bytes(b);
    h.0
}

/// Numbers of the labels of a disk, and where the nvlist of each begins.
pub fn areas(d: &MemDisk) -> Vec<(usize, u64)> {
    let size = d.geometry().size;
    (0..LABELS)
        .filter_map(|i| label_offset(i, size).map(|o| (i, o + NVLIST_OFFSET)))
        .collect()
}

impl Labels {
    /// Those on the disks and those in the journal.
    pub fn of(base: &[Arc<MemDisk>], events: &[Event]) -> Labels {
        let mut out = HashSet::new();
        for d in base {
            for (_, at) in areas(d) {
                let mut b = vec![0; NVLIST_SIZE];
                d.peek(at, &mut b);
                out.insert(digest(&b));
            }
        }
        for e in events {
            if let Event::Write { data, .. } = e {
                if data.len() == NVLIST_SIZE {
                    out.insert(digest(data));
                }
            }
        }
        Labels(out)
    }

    /// Nothing is taken for a label that was not written as one.
    fn check(&self, image: &[Arc<MemDisk>]) -> Result<(), String> {
        for (n, d) in image.iter().enumerate() {
            let read = vdev::label::read_labels(&**d);
            for (i, at) in areas(d) {
                if read.copies[i].is_none() {
                    continue;
                }
                let mut b = vec![0; NVLIST_SIZE];
                d.peek(at, &mut b);
                if !self.0.contains(&digest(&b)) {
                    return Err(format!(
                        "label {i} of disk {n} is believed, but was never written like that"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// For images, which are read more than once: a cache that holds what they have.
fn quick() -> OpenOptions {
    OpenOptions {
        tunables: pool::Tunables {
            cache_bytes: 64 << 20,
            ..rig::tunables()
        },
        ..OpenOptions::default()
    }
}

fn fork(disks: &[Arc<MemDisk>]) -> Image {
    disks.iter().map(|d| d.fork()).collect()
}

/// How closely to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Care {
    /// Open, replay, compare, walk.
    Quick,
    /// And, chosen by the seed: cut again, go back, do without devices, open once more.
    Full,
}

/// Ways of looking closely: the seed chooses one of so many.
pub const WAYS: u64 = 8;

/// So many reads in a row outlast what tries again. They are few enough for one thing to fail, not many.
pub const BURST: u64 = 24;

/// Where blocks begin on a device, bytes.
const DATA_BEGINS: u64 = 4 << 20;

/// All choices of `n` of some disks.
fn choose(of: &[usize], n: usize) -> Vec<Vec<usize>> {
    let Some((first, rest)) = of.split_first().filter(|_| n > 0) else {
        return match n {
            0 => vec![Vec::new()],
            _ => Vec::new(),
        };
    };
    let mut out = choose(rest, n);
    out.extend(choose(rest, n - 1).into_iter().map(|mut c| {
        c.push(*first);
        c
    }));
    out
}

/// Judges images of one journal.
pub struct Judge<'a> {
    pub layout: &'a Layout,
    pub clock: &'a Arc<ManualClock>,
    pub oracle: &'a Oracle,
    pub labels: &'a Labels,
    pub cut: usize,
    /// No device ever failed: as many may be missing as the layout allows.
    pub healthy: bool,
    /// The import after the last cut was over. Before that nobody was told anything, and the newest
    /// txg may be on some devices only.
    pub imported: bool,
    /// The txg before the first one of the present import.
    pub first: base::Txg,
    pub care: Care,
    /// Disks that may hold anything.
    pub spoilt: &'a BTreeSet<usize>,
}

impl Judge<'_> {
    /// Images are judged by the same rules where this is the same (of judges of one journal).
    pub fn era(&self) -> usize {
        self.oracle.era(self.cut) * 2 + usize::from(self.imported)
    }

    /// Opens an image and judges it; gives what is in it. The image is used up.
    pub fn image(&self, disks: &[Arc<MemDisk>], seed: u64) -> Result<Admin, String> {
        let rng = SeededRng::new(seed);
        let full = self.care == Care::Full;
        if full || seed % 16 == 0 {
            self.labels.check(disks)?;
        }
        let turn = rng.below(WAYS);
        if full && turn == 0 {
            self.go_back(disks)?;
        }
        if full && turn == 1 && self.healthy {
            self.without(disks, &rng)?;
        }
        if full && turn == 2 {
            self.cut_again(disks, &rng)?;
        }
        if full && turn == 7 {
            self.unlucky(disks, &rng)?;
            self.damaged(disks, &rng)?;
        }
        let split = self.split_off(disks, seed)?;
        let before = self.may_go_back().then(|| fork(disks));
        let opened = match self.open(disks, rng.next()) {
            Err(_) if self.oracle.nothing_promised(self.cut) => return Ok(Admin::default()),
            r => r?,
        };
        if !split {
            self.unsplit(&opened)?;
        }
        let trees = opened.trees()?;
        let found = opened.judge(self.oracle, &trees, self.cut)?;
        if let (Some(before), Some(kept)) = (before, &found.checkpoint) {
            let what = |e: String| format!("going back to the checkpoint: {e}");
            self.to_checkpoint(&before, kept, &rng).map_err(what)?;
        }
        opened.pool.sync().map_err(text)?;
        self.walk(&opened)?;
        if full && turn == 1 && !self.healthy {
            self.alone(&opened, disks, &trees)?;
        }
        if !full || turn > 5 {
            opened.close(turn == 6)?;
            return Ok(found);
        }
        let mut opened = opened;
        self.use_it(&mut opened, &found)?;
        opened.close(turn == 5)?;
        let again = self
            .open(disks, rng.next())
            .map_err(|e| format!("once more: {e}"))?;
        if again.trees()? != trees {
            return Err("not the same when opened once more".into());
        }
        again.pool.sync().map_err(text)?;
        self.walk(&again).map_err(|e| format!("once more: {e}"))?;
        again.close(false)?;
        Ok(found)
    }

    fn open(&self, disks: &[Arc<MemDisk>], seed: u64) -> Result<Opened, String> {
        let pool = import(disks, seed, self.clock, quick()).map_err(text)?;
        Opened::mount(pool, self.layout)
    }

    /// Space accounting, every block; no device is to be blamed where none failed.
    fn walk(&self, o: &Opened) -> Result<(), String> {
        match self.healthy {
            true => rig::check(&o.pool)?,
            false => rig::walk(&o.pool)?,
        }
        used(o)
    }

    /// It must be of use.
    fn use_it(&self, o: &mut Opened, found: &Admin) -> Result<(), String> {
        for (name, limits) in &found.limits {
            if let Some(fs) = o.mounts.get(name) {
                owners::check_force(fs, limits)
                    .map_err(|e| format!("file system '{name}': {e}"))?;
            }
        }
        let root = zpl::Cred::root();
        for fs in o.mounts.values() {
            let top = fs.zfs.root().map_err(text)?;
            let new = zpl::New::file(0o100644, 0);
            let full = |e: base::Error| match rig::is_full(&e) {
                true => Ok(()),
                false => Err(format!("in use: {e}")),
            };
            match fs.zfs.create(&top, b"after the cut", &new, &root) {
                Ok(z) => {
                    if let Err(e) = fs.zfs.write(&z, 0, &[7; 40_000], Default::default()) {
                        full(e)?;
                    }
                    fs.zfs.fsync(Some(&z)).map_err(text)?;
                    drop(z);
                    fs.zfs.unlink(&top, b"after the cut", &root).map_err(text)?;
                }
                Err(e) => full(e)?,
            }
        }
        Ok(())
    }

    /// Judges the pool that was split off, which has what there was then. False: there is none.
    pub fn split_off(&self, disks: &[Arc<MemDisk>], seed: u64) -> Result<bool, String> {
        let Some(half) = &self.oracle.half else {
            return Ok(false);
        };
        let what = |e: String| format!("the pool that was split off: {e}");
        let image = fork(disks);
        let env = env(&image, seed, self.clock);
        let Some(found) = half_on(&env, image.len()) else {
            return Ok(false);
        };
        // The model knows the names of the old pool.
        let how = OpenOptions {
            name: Some(rig::POOL.into()),
            ..quick()
        };
        let pool = Pool::open(env, &found.config, how).map_err(|e| what(e.to_string()))?;
        let o = Opened::mount(pool, self.layout).map_err(what)?;
        let trees = o.trees().map_err(what)?;
        o.judge(&half.kept.oracle(), &trees, 0).map_err(what)?;
        o.pool.sync().map_err(text).map_err(what)?;
        self.walk(&o).map_err(what)?;
        o.close(false).map_err(what)?;
        Ok(true)
    }

    /// Nothing was split off: the pool has all its sides.
    fn unsplit(&self, o: &Opened) -> Result<(), String> {
        let Some(half) = &self.oracle.half else {
            return Ok(());
        };
        let has = |d: &&usize| o.pool.tree().find_by_name(&path(**d)).is_some();
        match half.disks.iter().find(|d| !has(d)) {
            None => Ok(()),
            Some(d) => Err(format!("disk {d} left for a pool that is not there")),
        }
    }

    /// Devices of each set that may be missing.
    fn spare(&self) -> usize {
        let gone = usize::from(self.oracle.half.is_some());
        self.layout.redundancy().saturating_sub(gone)
    }

    /// Sets of disks, of each of which as many may be missing as [`Self::spare`] says.
    fn sets(&self) -> Vec<Vec<usize>> {
        let mut sets = self.layout.sets();
        if let Some(half) = &self.oracle.half {
            for set in &mut sets {
                set.retain(|d| !half.disks.contains(d));
            }
        }
        sets
    }

    /// Whether an image may have a checkpoint that can be gone back to for certain: no device ever failed, since neither scrub nor
    /// resilver mend what only the checkpoint has.
    fn may_go_back(&self) -> bool {
        self.healthy && self.imported && self.oracle.ever_kept()
    }

    /// The checkpoint has what there was when it was taken. A power cut on the way back leaves that, or what was there before.
    fn to_checkpoint(
        &self,
        image: &[Arc<MemDisk>],
        kept: &Kept,
        rng: &SeededRng,
    ) -> Result<(), String> {
        let back = OpenOptions {
            checkpoint: true,
            ..quick()
        };
        let oracle = kept.oracle();
        let as_kept = |o: Opened| {
            let trees = o.trees()?;
            o.judge(&oracle, &trees, 0)?;
            o.pool.sync().map_err(text)?;
            self.walk(&o)?;
            o.close(false)
        };
        let live = fork(image);
        let (journal, base) = rig::start_journal(&live);
        let pool = import(&live, rng.next(), self.clock, back).map_err(text)?;
        as_kept(Opened::mount(pool, self.layout)?)?;
        let events = journal.take();
        let len = events.len() as u64;
        let at = rng.below(len + 1);
        let mut cutter = Cutter::new(&base, events);
        cutter.forward(at as usize);
        let image = cutter.image(FATES[rng.below(5) as usize], rng);
        let what = |e: String| format!("cut at event {at} of {len}: {e}");
        let o = self.open(&image, rng.next()).map_err(what)?;
        match o.pool.shares().checkpoint.txg() {
            None => as_kept(o).map_err(what),
            Some(_) => self.judge_open(o).map_err(what),
        }
    }

    /// The last two txgs are whole.
    fn go_back(&self, disks: &[Arc<MemDisk>]) -> Result<(), String> {
        let look = |txg| OpenOptions {
            readonly: true,
            txg,
            ..quick()
        };
        let image: Image = disks.iter().map(|d| d.fork()).collect();
        let Ok(newest) = import(&image, 1, self.clock, look(None)) else {
            // Whether that is right is decided when it is opened for good.
            return Ok(());
        };
        let groups = newest.tree().uberblock_txgs();
        newest.close().map_err(text)?;
        let Some(newest) = groups.first() else {
            return Ok(());
        };
        let reach = groups
            .iter()
            .filter(|t| t.after(2) >= *newest && **t >= self.first);
        for txg in reach {
            let back = import(&image, 1, self.clock, look(Some(*txg)))
                .map_err(|e| format!("going back from txg {newest} to {txg}: {e}"))?;
            rig::read_all(&back)
                .map_err(|e| format!("going back from txg {newest} to {txg}: {e}"))?;
            back.close().map_err(text)?;
        }
        Ok(())
    }

    /// Without as many devices as the layout may miss.
    fn without(&self, disks: &[Arc<MemDisk>], rng: &SeededRng) -> Result<(), String> {
        let spare = self.spare();
        let image: Image = disks.iter().map(|d| d.fork()).collect();
        let mut gone = Vec::new();
        for set in self.sets() {
            let before = gone.len();
            while gone.len() - before < spare {
                let n = set[rng.below(set.len() as u64) as usize];
                if !gone.contains(&n) {
                    image[n].gone.store(true, Relaxed);
                    gone.push(n);
                }
            }
        }
        if gone.is_empty() {
            return Ok(());
        }
        let what = |e: String| format!("without devices {gone:?}: {e}");
        let o = match self.open(&image, rng.next()) {
            Err(_) if self.oracle.nothing_promised(self.cut) => return Ok(()),
            r => r.map_err(what)?,
        };
        self.judge_open(o).map_err(what)
    }

    /// A device fails a read while the pool is imported and its logs are replayed.
    fn unlucky(&self, disks: &[Arc<MemDisk>], rng: &SeededRng) -> Result<(), String> {
        let seed = rng.next();
        let reads = self.reads(disks, seed);
        let disk = rng.below(reads.len() as u64) as usize;
        match reads[disk] {
            0 => Ok(()),
            n => self.unread(disks, (disk, rng.below(n), 1), seed),
        }
    }

    /// The pool is imported, nothing is mounted, and the plug is pulled once more.
    pub fn twice(&self, disks: &[Arc<MemDisk>]) -> Result<(), String> {
        let image: Image = disks.iter().map(|d| d.fork()).collect();
        let pool = import(&image, 1, self.clock, quick()).map_err(text)?;
        let image: Image = image.iter().map(|d| d.fork()).collect();
        drop(pool);
        let again = self.open(&image, 2);
        again.and_then(|o| self.judge_open(o))
    }

    /// How often each device is read until all is mounted.
    pub fn reads(&self, disks: &[Arc<MemDisk>], seed: u64) -> Vec<u64> {
        let calm: Image = disks.iter().map(|d| d.fork()).collect();
        if let Ok(o) = self.open(&calm, seed) {
            o.forget();
        }
        calm.iter().map(|d| d.reads.load(Relaxed)).collect()
    }

    /// The device `disk` fails `count` reads in a row after the first `spared`. The import or a mount may be refused then.
    /// Nothing is lost: what was promised is there at once, or when the device is well again.
    pub fn unread(
        &self,
        disks: &[Arc<MemDisk>],
        (disk, spared, count): (usize, u64, u64),
        seed: u64,
    ) -> Result<(), String> {
        let what = |e: String| format!("{count} reads of disk {disk} fail after {spared}: {e}");
        let image: Image = disks.iter().map(|d| d.fork()).collect();
        image[disk].spared_reads.store(spared, Relaxed);
        image[disk].read_errors.store(count, Relaxed);
        let refused = match self.open(&image, seed) {
            Ok(o) => {
                image[disk].well();
                self.judge_open(o).map_err(what)?;
                None
            }
            Err(e) => Some(e),
        };
        // The process ends; what it held open must not keep others out.
        let image: Image = image.iter().map(|d| d.fork()).collect();
        let after = |e: String| match &refused {
            Some(why) => what(format!("{why}; afterwards: {e}")),
            None => what(format!("afterwards: {e}")),
        };
        match self.open(&image, seed) {
            Err(_) if self.oracle.nothing_promised(self.cut) => Ok(()),
            r => r.and_then(|o| self.judge_open(o)).map_err(after),
        }
    }

    /// The root of one file system is damaged: the pool is imported without it, names it, and the others are as they would
    /// be. On disks and mirrors, where the place of a block is easily told.
    pub fn damaged(&self, disks: &[Arc<MemDisk>], rng: &SeededRng) -> Result<(), String> {
        if !matches!(self.layout.kind, GroupKind::Single | GroupKind::Mirror) {
            return Ok(());
        }
        let seed = rng.next();
        let fork = || -> Image { disks.iter().map(|d| d.fork()).collect() };
        let Ok(o) = self.open(&fork(), seed) else {
            return Ok(());
        };
        let mut want = o.trees()?;
        o.forget();
        let look = OpenOptions {
            readonly: true,
            ..quick()
        };
        let pool = import(&fork(), seed, self.clock, look).map_err(text)?;
        let root = |name: &str| pool.dsl().dataset(&full(name)).map(|ds| ds.phys().bp);
        let mut roots = Vec::new();
        for name in want.keys() {
            roots.push((name.clone(), root(name).map_err(text)?));
        }
        // Disks that were idle may be part of a mirror by now.
        let tops = pool.tree().tops();
        let leaves = |top: u64| tops.get(top as usize).map_or_else(Vec::new, |t| t.leaves());
        let has = |top: u64, n: usize| {
            leaves(top)
                .iter()
                .any(|l| l.path().is_some_and(|p| p == path(n)))
        };
        pool.close().map_err(text)?;
        // Blocks of removed vdevs are elsewhere.
        let placed = |bp: &BlkPtr| {
            let top = |d: &disk::Dva| tops.get(d.vdev() as usize);
            bp.dvas()
                .iter()
                .all(|d| top(d).is_some_and(|t| t.is_concrete()))
        };
        let alone = |bp: &BlkPtr| placed(bp) && roots.iter().filter(|(_, b)| b == bp).count() == 1;
        let fit = roots
            .iter()
            .filter(|(n, bp)| !n.is_empty() && !bp.is_hole() && alone(bp));
        let fit: Vec<_> = fit.collect();
        if fit.is_empty() {
            return Ok(());
        }
        let (victim, bp) = fit[rng.below(fit.len() as u64) as usize];
        let image = fork();
        for dva in bp.dvas() {
            for (n, disk) in image.iter().enumerate() {
                if has(dva.vdev(), n) {
                    disk.poke(DATA_BEGINS + dva.offset(), &[0x5a; 512]);
                }
            }
        }
        let what = |e: String| format!("with '{victim}' damaged: {e}");
        let pool = import(&image, seed, self.clock, quick()).map_err(|e| what(e.to_string()))?;
        let named = pool.unreadable_datasets();
        if !named.iter().any(|(n, _)| *n == full(victim)) {
            return Err(what(format!("only {named:?} are named")));
        }
        let o = Opened::mount_but(pool, self.layout, Some(victim)).map_err(what)?;
        let found = o.trees().map_err(what)?;
        want.remove(victim);
        o.forget();
        match found == want {
            true => Ok(()),
            false => Err(what("the others are not as they would be".into())),
        }
    }

    /// Compares what is open with the oracle, visits its blocks, and closes it.
    fn judge_open(&self, o: Opened) -> Result<(), String> {
        let trees = o.trees()?;
        if self.imported {
            o.judge(self.oracle, &trees, self.cut)?;
        }
        o.pool.sync().map_err(text)?;
        rig::walk(&o.pool)?;
        used(&o)?;
        o.close(false)
    }

    /// When all scans have ended: without the devices that the newest resilver read from.
    pub fn alone(
        &self,
        o: &Opened,
        disks: &[Arc<MemDisk>],
        trees: &BTreeMap<String, Tree>,
    ) -> Result<(), String> {
        if !sources::settle(&o.pool)? {
            return Ok(());
        }
        for gone in sources::removable(&o.pool, self.spoilt) {
            self.same_without(disks, &gone, trees)
                .map_err(|e| format!("without the sources {gone:?} of a resilver: {e}"))?;
        }
        Ok(())
    }

    /// Without some disks everything is there.
    fn same_without(
        &self,
        disks: &[Arc<MemDisk>],
        gone: &[usize],
        trees: &BTreeMap<String, Tree>,
    ) -> Result<(), String> {
        let image: Image = disks.iter().map(|d| d.fork()).collect();
        gone.iter()
            .for_each(|n| image[*n].gone.store(true, Relaxed));
        let alone = self.open(&image, 7)?;
        if alone.trees()? != *trees {
            return Err("not the same".into());
        }
        alone.pool.sync().map_err(text)?;
        rig::walk(&alone.pool)?;
        used(&alone)?;
        alone.close(false)
    }

    /// When expansions and removals have ended: without the disks that left, and without as many of the others as may be missing,
    /// whichever they are.
    pub fn without_any(
        &self,
        o: &Opened,
        disks: &[Arc<MemDisk>],
        trees: &BTreeMap<String, Tree>,
    ) -> Result<(), String> {
        let used = sources::in_use(&o.pool);
        let mut left: Vec<usize> = (0..disks.len()).filter(|d| !used.contains(d)).collect();
        let sets = self.sets();
        left.retain(|d| sets.iter().any(|s| s.contains(d)));
        let choices: Vec<Vec<Vec<usize>>> = sets
            .into_iter()
            .map(|mut set| {
                set.retain(|d| used.contains(d));
                let most = self.spare().min(set.len());
                choose(&set, most)
            })
            .collect();
        let turns = choices.iter().map(Vec::len).max().unwrap_or(0);
        for turn in 0..turns {
            let mut gone = left.clone();
            for of_set in choices.iter().filter(|c| !c.is_empty()) {
                gone.extend(&of_set[turn % of_set.len()]);
            }
            self.same_without(disks, &gone, trees)
                .map_err(|e| format!("without devices {gone:?}: {e}"))?;
        }
        Ok(())
    }

    /// The plug is pulled while the log is replayed.
    fn cut_again(&self, disks: &[Arc<MemDisk>], rng: &SeededRng) -> Result<(), String> {
        let live: Image = disks.iter().map(|d| d.fork()).collect();
        let (journal, base) = rig::start_journal(&live);
        let Ok(o) = self.open(&live, rng.next()) else {
            return Ok(());
        };
        let events = journal.take();
        o.forget();
        let len = events.len() as u64;
        let mut cutter = Cutter::new(&base, events);
        let mut moments: Vec<u64> = (0..2).map(|_| rng.below(len + 1)).collect();
        moments.sort_unstable();
        for at in moments {
            cutter.forward(at as usize);
            let fate = FATES[rng.below(5) as usize];
            let image = cutter.image(fate, rng);
            let what = |e: String| format!("cut again at event {at} of {len} ({fate:?}): {e}");
            let again = match self.open(&image, rng.next()) {
                Err(_) if self.oracle.nothing_promised(self.cut) => return Ok(()),
                r => r.map_err(what)?,
            };
            let trees = again.trees().map_err(what)?;
            again.judge(self.oracle, &trees, self.cut).map_err(what)?;
            again.pool.sync().map_err(text).map_err(what)?;
            self.walk(&again).map_err(what)?;
            again.close(false).map_err(what)?;
        }
        Ok(())
    }
}
