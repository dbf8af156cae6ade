//! Intent logs and their devices. Log devices that fail, or are taken out of use: the pool goes on without them, and what an fsync
//! promised is there. Logs that are given up with what they belong to.

use base::mutation::{mutate, Mutation};
use base::{Kind, Result};
use disk::mos_keys::LOG_SPACEMAP_ZAP;
use env_sim::MemDisk;
use pool::{Offline, OpenOptions, Pool};
use sim::rig::{self, Cutter, Fs, Layout, FATES};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use testkit::{or_skip, OpenZfs, TempDir};
use vdev::testing::{Event, SeededRng};
use vdev::{DevSpec, GroupKind, State, TopSpec, Vdev};
use zap::Zap;

const OFFLINE: Offline = Offline {
    temporary: false,
    fault: false,
};

struct World {
    layout: Layout,
    /// A disk, the log, and one that lies idle.
    disks: Vec<Arc<MemDisk>>,
    fs: Fs,
    files: u64,
}

impl World {
    fn new() -> World {
        let layout = Layout {
            slog: true,
            bench: 1,
            ..Layout::new(GroupKind::Single, 1)
        };
        let (disks, pool) = rig::create(&layout, 7);
        let fs = rig::mount(&pool, &layout).unwrap();
        let mut w = World {
            layout,
            disks,
            fs,
            files: 0,
        };
        // The first fsync makes the log's first block.
        w.write();
        w.write();
        assert!(w.logged_there() > 0);
        w
    }

    fn pool(&self) -> &Arc<Pool> {
        &self.fs.pool
    }

    fn log(&self) -> Arc<Vdev> {
        let tops = self.pool().tree.tops();
        tops.iter().find(|t| t.is_log()).unwrap().clone()
    }

    fn log_disk(&self) -> &MemDisk {
        &self.disks[1]
    }

    /// It fails to flush, to write, or answers nothing any more.
    fn fail_log(&self, how: usize) {
        let disk = self.log_disk();
        let fails = [&disk.fail_flush, &disk.fail_writes, &disk.dead];
        fails[how].store(true, Relaxed);
    }

    /// Bytes of the log device in use.
    fn logged_there(&self) -> u64 {
        let stats = self.pool().space.stats();
        let id = self.log().id();
        let v = stats.vdevs.iter().find(|v| v.id == id).unwrap();
        v.allocated
    }

    /// Makes a file and has it on stable storage; true if the log was enough for that.
    fn write(&mut self) -> bool {
        let fs = &self.fs;
        let zil = fs.set.zil().unwrap();
        let before = zil.stats().fallbacks;
        let root = fs.zfs.root().unwrap();
        let name = format!("f{}", self.files);
        let (new, cred) = (zpl::New::file(0o100644, 0), zpl::Cred::root());
        let z = fs.zfs.create(&root, name.as_bytes(), &new, &cred).unwrap();
        let data = vec![self.files as u8; 9000];
        fs.zfs.write(&z, 0, &data, Default::default()).unwrap();
        fs.zfs.fsync(Some(&z)).unwrap();
        self.files += 1;
        zil.stats().fallbacks == before
    }

    /// Makes a file of `mib` MiB that the log has whole.
    fn write_much(&self, mib: u64) {
        let fs = &self.fs;
        let root = fs.zfs.root().unwrap();
        let (new, cred) = (zpl::New::file(0o100644, 0), zpl::Cred::root());
        let z = fs.zfs.create(&root, b"much", &new, &cred).unwrap();
        for n in 0..mib * 8 {
            let data = vec![n as u8; 1 << 17];
            fs.zfs
                .write(&z, n << 17, &data, Default::default())
                .unwrap();
            fs.zfs.fsync(Some(&z)).unwrap();
        }
    }

    /// The log device is added.
    fn add_log(&self) {
        let mut log = TopSpec::new(GroupKind::Single, vec![DevSpec::file("d1")]);
        log.is_log = true;
        log.ashift = Some(self.layout.ashift);
        self.pool().add_tops(&[log]).unwrap();
    }

    /// A new chain begins, on a log device if one may be used.
    fn begin_anew(&self) {
        self.pool().prove_devices().unwrap();
        self.fs.set.zil().unwrap().destroy().unwrap();
        self.pool().sync().unwrap();
    }

    /// Whether all files are there after a power cut now. `log`: with the log device.
    fn survive(&self, log: bool, missing: bool) -> Result<()> {
        let mut disks: Vec<_> = self.disks.iter().map(|d| d.fork()).collect();
        if !log {
            disks[1] = MemDisk::new(self.layout.size);
        }
        let (env, _) = rig::machine(&disks, 5);
        let names = ["d0", "d1", "d2"].map(String::from);
        let config = vdev::discover(&env, &names).pools[0].config.clone();
        let opts = OpenOptions {
            missing_log: missing,
            tunables: rig::tunables(),
            ..OpenOptions::default()
        };
        let pool = Pool::open(env, &config, opts)?;
        let fs = rig::mount(&pool, &self.layout)?;
        let root = fs.zfs.root()?;
        for n in 0..self.files {
            let name = format!("f{n}");
            let z = fs.zfs.lookup(&root, name.as_bytes(), &zpl::Cred::root())?;
            let mut b = vec![0; 9000];
            fs.zfs.read(&z, 0, &mut b)?;
            assert!(b.iter().all(|x| *x == n as u8), "{name}");
        }
        fs.pool.sync()?;
        drop((root, fs));
        rig::check(&pool).unwrap();
        pool.close()
    }
}

/// However it fails: the pool is not suspended, an fsync waits for its txg, and later ones are logged in the pool.
#[test]
fn a_log_that_fails_is_done_without() {
    for how in 0..3 {
        let mut w = World::new();
        w.fail_log(how);
        assert!(!w.write(), "{how}: a failed log is no promise");
        w.survive(false, true).unwrap();
        for _ in 0..4 {
            w.write();
        }
        assert!(w.pool().suspended().is_none(), "{how}");
        w.survive(false, true).unwrap();
        if how < 2 {
            // The fault agent does that after some errors.
            let (guid, n) = (w.log().guid(), w.pool().resumptions());
            let state = w.pool().fault(guid, false, n).unwrap();
            assert_eq!(state, State::Faulted);
        }
        w.write();
        assert!(w.write(), "{how}: it is logged in the pool");
        assert_eq!(w.logged_there(), 0);
        w.survive(false, true).unwrap();
    }
}

/// An fsync whose log block was not written, or not flushed, and which answers all the same.
#[test]
fn a_failed_log_that_is_believed_is_found() {
    for how in 0..3 {
        let mut w = World::new();
        w.fail_log(how);
        mutate(Some(Mutation::DeadLogBelieved));
        let promised = w.write();
        mutate(None);
        assert!(promised, "{how}");
        let e = w.survive(false, true).unwrap_err();
        assert_eq!(e.kind, Kind::NotFound, "{how}: {e}");
    }
}

/// A device that loses what it acknowledged, between the write of a log block and the flush of a txg: whoever wrote it does not
/// believe the next flush, which works.
#[test]
fn a_log_that_loses_what_a_txg_flushed_is_not_believed() {
    let w = World::new();
    let before = w.pool().tree.log_losses();
    let data: base::Block = Arc::new(vec![1; 4096]);
    let txg = w.pool().dmu.open_txg();
    w.pool().tree.write(w.log().id(), 0, &data, txg).unwrap();
    w.log_disk().fail_flush.store(true, Relaxed);
    w.pool().prove_devices().unwrap();
    w.log_disk().well();
    assert!(w.pool().tree.log_losses() > before);
    w.pool().tree.flush_dirty(base::Txg::NONE).unwrap();
    assert!(!w.pool().tree.has_lost_writes());
    w.pool().sync().unwrap();
}

/// A log is taken offline, or out of use because of errors: the intent logs are emptied first, so that the pool is imported
/// without it. It is used again when it is back.
#[test]
fn a_log_that_is_put_away_is_not_missed() {
    for faulted in [true, false] {
        let mut w = World::new();
        w.write();
        let guid = w.log().guid();
        match faulted {
            true => drop(w.pool().fault(guid, false, w.pool().resumptions()).unwrap()),
            false => w.pool().offline(guid, OFFLINE).unwrap(),
        }
        assert!(!w.log().state().usable());
        w.survive(false, false).unwrap();
        w.write();
        assert!(w.write());
        assert_eq!(w.logged_there(), 0);
        w.survive(true, false).unwrap();
        if faulted {
            w.log().forgive();
        }
        assert_eq!(w.pool().online(guid).unwrap(), State::Healthy);
        w.pool().sync().unwrap();
        // The chain goes on where it is; a new one begins on the log.
        w.fs.set.zil().unwrap().destroy().unwrap();
        w.pool().sync().unwrap();
        w.write();
        assert!(w.write());
        assert!(w.logged_there() > 0, "faulted: {faulted}");
        w.survive(true, false).unwrap();
        let e = w.survive(false, false).unwrap_err();
        assert_eq!(e.kind, Kind::NoDevice, "{e}");
    }
}

/// The log space maps still name a log that was removed, so its place stays as a hole: OpenZFS's `zdb` looks it up. A new log
/// takes the place.
#[test]
fn a_log_that_is_removed_leaves_a_place() {
    let mut w = World::new();
    let id = w.log().id();
    for n in 0..3 {
        w.write();
        assert!(w.logged_there() > 0, "round {n}");
        assert_eq!(w.log().id(), id);
        w.pool().remove_log(id).unwrap();
        assert_eq!(w.pool().tree.holes(), [id]);
        w.survive(false, false).unwrap();
        if let Some(z) = or_skip(OpenZfs::get()) {
            let dir = TempDir::new("removed-log").unwrap();
            let disks: Vec<_> = w.disks.iter().map(|d| d.fork()).collect();
            rig::dump(&disks, dir.path()).unwrap();
            z.check(dir.path(), "tank").unwrap();
        }
        w.write();
        w.add_log();
        w.begin_anew();
        w.write();
    }
}

/// A smaller log takes the place of one that was used up to its end. Log space maps that name the former one are gone from disk
/// first, since OpenZFS looks for the metaslabs of their entries in the vdev that has the number. Pools where they are not gone
/// are imported all the same.
#[test]
fn a_smaller_log_takes_the_place_of_a_large_one() {
    for mistake in [None, Some(Mutation::HolesFilledAtOnce)] {
        let mut w = World::new();
        let id = w.log().id();
        w.write_much(80);
        w.pool().sync().unwrap();
        w.pool().remove_log(id).unwrap();
        let removed = w.pool().synced_txg();
        w.log_disk().resize(64 << 20);
        mutate(mistake);
        w.add_log();
        mutate(None);
        assert_eq!(w.log().id(), id);
        let zap = w.pool().mos.hold(1).unwrap();
        let zap = Zap::new(&zap).get(LOG_SPACEMAP_ZAP).unwrap().unwrap();
        let zap = w.pool().mos.hold(zap).unwrap();
        let of = |e: Result<zap::Entry>| zap::parse_hex_key(&e.unwrap().name).unwrap();
        let named = Zap::new(&zap).iter().any(|e| of(e) <= removed.number());
        assert_eq!(named, mistake.is_some());
        w.survive(true, false).unwrap();
        w.begin_anew();
        w.write();
        w.survive(true, false).unwrap();
    }
}

/// A log that died is replaced: the new device is used when it is believed to have what is born then.
#[test]
fn a_dead_log_is_replaced() {
    let mut w = World::new();
    w.log_disk().dead.store(true, Relaxed);
    w.write();
    w.write();
    let old = w.log().leaves()[0].guid();
    let new = vdev::DevSpec::file("d2");
    w.pool()
        .attach(old, &new, vdev::Attach::Replace, None)
        .unwrap();
    for _ in 0..8 {
        w.write();
        w.survive(false, false).unwrap();
        // What is on its way to the old device is at its end after some txgs.
        w.pool().prove_devices().unwrap();
        w.fs.set.zil().unwrap().destroy().unwrap();
        w.pool().prove_devices().unwrap();
    }
    w.write();
    assert!(w.write());
    assert!(w.logged_there() > 0);
    w.survive(false, false).unwrap();
}

/// How many of the files `f0`, `f1`, … there are.
fn files(fs: &Fs) -> u64 {
    let root = fs.zfs.root().unwrap();
    let there = |n: &u64| {
        let name = format!("f{n}");
        fs.zfs
            .lookup(&root, name.as_bytes(), &zpl::Cred::root())
            .is_ok()
    };
    (0..).take_while(there).count() as u64
}

/// A file system with a log that was not replayed goes back to its snapshot, and the power goes at every moment: what was promised is
/// there, or the file system has gone back. No block of the log is lost.
#[test]
fn going_back_takes_the_log_along_in_its_own_txg() {
    let mut w = World::new();
    w.pool().sync().unwrap();
    w.fs.snapshot("s").unwrap();
    let before = w.files;
    w.write();
    assert!(w.write() && w.write());
    let disks: Vec<_> = w.disks.iter().map(|d| d.fork()).collect();
    let (env, _) = rig::machine(&disks, 5);
    let config = vdev::discover(&env, &["d0".into(), "d1".into()]).pools[0]
        .config
        .clone();
    let pool = rig::open(&disks, &config, 6).unwrap();
    let (journal, base) = rig::start_journal(&disks);
    let head = pool.dsl.root_dataset().unwrap();
    pool.task(move |pool, tx| pool.rollback(tx, &head)).unwrap();
    pool.sync().unwrap();
    let events = journal.take();
    pool.close().unwrap();
    drop(pool);
    let flush = |(i, e): (usize, &Event)| matches!(e, Event::Flush { .. }).then_some([i, i + 1]);
    let moments: Vec<usize> = events
        .iter()
        .enumerate()
        .filter_map(flush)
        .flatten()
        .collect();
    let rng = SeededRng::new(7);
    let mut cutter = Cutter::new(&base, events);
    let mut seen = std::collections::BTreeSet::new();
    for (n, at) in moments.into_iter().enumerate() {
        cutter.forward(at);
        let image = cutter.image(FATES[n % FATES.len()], &rng);
        let pool = rig::open(&image, &config, 8).unwrap_or_else(|e| panic!("at {at}: {e}"));
        let fs = rig::mount(&pool, &w.layout).unwrap_or_else(|e| panic!("at {at}: {e}"));
        let found = files(&fs);
        assert!(
            found == before || found == w.files,
            "at {at}: {found} files"
        );
        seen.insert(found);
        fs.pool.sync().unwrap();
        drop(fs);
        rig::check(&pool).unwrap_or_else(|e| panic!("at {at}: {e}"));
        pool.close().unwrap();
    }
    assert_eq!(seen.len(), 2, "{seen:?}");
}

/// A vdev grows in the txg in which the last clone of a block goes. What remains of the table of clones, bytes.
fn grown(mistake: Option<Mutation>) -> (u64, u64) {
    let layout = Layout::new(GroupKind::Single, 1);
    let (disks, pool) = rig::create(&layout, 7);
    let bp = pool.dsl.root_dataset().unwrap().phys().bp;
    pool.task(move |pool, _| pool.shares.add_reference(&bp))
        .unwrap();
    assert!(pool.shares.brt.used_and_saved().1 > 0);
    disks[0].resize(layout.size * 2);
    let guid = pool.tree.tops()[0].guid();
    assert!(pool.shares.brt.release(&bp).unwrap());
    mutate(mistake);
    let grown = pool.expand(guid);
    mutate(None);
    assert!(grown.unwrap());
    pool.shares.brt.recount().unwrap();
    let left = pool.shares.brt.used_and_saved();
    pool.close().unwrap();
    left
}

#[test]
fn a_vdev_that_grows_keeps_what_the_txg_has_changed_of_its_clones() {
    assert_eq!(grown(None), (0, 0));
    assert_ne!(grown(Some(Mutation::TableReadAgain)), (0, 0));
}

/// Two files with unsynced content exchange their names, and another file is synced. After a power cut: whether both contents
/// are where they belong.
fn exchanged(mistake: Option<Mutation>) -> bool {
    let layout = Layout::new(GroupKind::Single, 1);
    let (disks, pool) = rig::create(&layout, 7);
    let fs = rig::mount(&pool, &layout).unwrap();
    let (root, cred) = (fs.zfs.root().unwrap(), zpl::Cred::root());
    let make = |name: &str, byte: u8| {
        let new = zpl::New::file(0o100644, 0);
        let z = fs.zfs.create(&root, name.as_bytes(), &new, &cred).unwrap();
        fs.zfs.fsync(Some(&z)).unwrap();
        fs.zfs
            .write(&z, 0, &[byte; 5000], Default::default())
            .unwrap();
        z
    };
    let other = make("other", 1);
    fs.zfs.fsync(Some(&other)).unwrap();
    let _both = [make("a", 2), make("b", 3)];
    mutate(mistake);
    let flags = zpl::rename_flags::EXCHANGE;
    fs.zfs
        .rename(&root, b"a", &root, b"b", flags, &cred)
        .unwrap();
    mutate(None);
    fs.zfs.fsync(Some(&other)).unwrap();
    let image: Vec<_> = disks.iter().map(|d| d.fork()).collect();
    let (env, _) = rig::machine(&image, 5);
    let config = vdev::discover(&env, &["d0".into()]).pools[0].config.clone();
    let pool = rig::open(&image, &config, 8).unwrap();
    let fs = rig::mount(&pool, &layout).unwrap();
    let root = fs.zfs.root().unwrap();
    let has = |name: &str, byte: u8| {
        let z = fs.zfs.lookup(&root, name.as_bytes(), &cred).unwrap();
        let mut b = vec![0; 5000];
        fs.zfs.read(&z, 0, &mut b).unwrap() == 5000 && b.iter().all(|x| *x == byte)
    };
    has("a", 3) && has("b", 2)
}

#[test]
fn an_exchange_that_takes_one_content_along_is_found() {
    assert!(exchanged(None));
    assert!(!exchanged(Some(Mutation::ExchangeTakesOne)));
}

/// A commit weighs what the log would write against what the txg would: of blocks changed in small parts the
/// txg writes all, and the log the parts.
#[test]
fn parts_of_many_blocks_are_logged_and_whole_blocks_go_with_their_txg() {
    const BLOCK: u64 = 128 << 10;
    const BLOCKS: u64 = 512;
    let layout = Layout {
        // So much that no write waits for space to be counted.
        size: 4 << 30,
        ..Layout::new(GroupKind::Single, 1)
    };
    let (disks, pool) = rig::create(&layout, 7);
    let fs = rig::mount(&pool, &layout).unwrap();
    pool.dmu.set_dirty_max(256 << 20);
    let (root, cred) = (fs.zfs.root().unwrap(), zpl::Cred::root());
    let new = zpl::New::file(0o100644, 0);
    let z = fs.zfs.create(&root, b"f", &new, &cred).unwrap();
    let write = |offset, byte, len| {
        let data = vec![byte; len];
        let done = fs.zfs.write(&z, offset, &data, Default::default());
        assert_eq!(done.unwrap(), len);
    };
    let all = (BLOCKS * BLOCK) as usize;
    write(0, 1, all);
    // The log's first block, and the blocks on disk.
    fs.zfs.fsync(Some(&z)).unwrap();
    pool.sync().unwrap();
    let zil = fs.set.zil().unwrap();

    // 8 MiB in 512 blocks: the txg would write 64 MiB.
    let part = 16 << 10;
    let open = pool.dmu.open_txg();
    for n in 0..BLOCKS {
        write(n * BLOCK + 4096, 2, part);
    }
    let before = zil.stats();
    fs.zfs.fsync(Some(&z)).unwrap();
    let after = zil.stats();
    assert_eq!(pool.dmu.open_txg(), open, "the txg was written");
    assert_eq!(after.fallbacks, before.fallbacks);
    let logged = (after.bytes - before.bytes) as usize;
    assert!(logged >= BLOCKS as usize * part, "{logged} bytes logged");

    // What was logged is there after a power cut.
    let survives = |want: &dyn Fn(usize) -> u8| {
        let disks = [disks[0].fork()];
        let (env, _) = rig::machine(&disks, 5);
        let config = vdev::discover(&env, &["d0".into()]).pools[0].config.clone();
        let pool = rig::open(&disks, &config, 5).unwrap();
        let fs = rig::mount(&pool, &layout).unwrap();
        let z = fs.zfs.lookup(&fs.zfs.root().unwrap(), b"f", &cred).unwrap();
        let mut got = vec![0; all];
        assert_eq!(fs.zfs.read(&z, 0, &mut got).unwrap(), all);
        let wrong = got.iter().enumerate().find(|(at, b)| **b != want(*at));
        assert_eq!(wrong, None);
    };
    let in_part = |at: usize| (4096..4096 + part).contains(&(at % BLOCK as usize));
    survives(&|at| 1 + u8::from(in_part(at)));

    // The same number of bytes in whole blocks: the txg writes no more than the log would.
    pool.sync().unwrap();
    let bulk = BLOCKS as usize * part;
    write(0, 3, bulk);
    let (open, before) = (pool.dmu.open_txg(), zil.stats());
    fs.zfs.fsync(Some(&z)).unwrap();
    assert_eq!(pool.dmu.synced_txg(), open);
    assert_eq!(zil.stats().bytes, before.bytes);
    survives(&|at| match at < bulk {
        true => 3,
        false => 1 + u8::from(in_part(at)),
    });
}
