//! What is written to a cache device is found again, however often it was full; hostile contents do no harm.

use super::*;
use base::Txg;
use disk::Dva;
use env_sim::{mem_env, MemDisk, SeededRng};

const POOL: u64 = 77;
const GUID: u64 = 4711;
const MIB: u64 = 1 << 20;

fn listed() -> NvList {
    let mut c = NvList::new();
    c.set(keys::PATH, "/cache");
    c.set(keys::GUID, GUID);
    c.set(keys::ASHIFT, 12u64);
    c
}

/// A device of so many MiB with labels, and where it is.
fn image(size: u64) -> (Env, Arc<MemDisk>) {
    let (env, disks) = mem_env(1);
    let disk = disks.add("/cache", size * MIB);
    let mut label = NvList::new();
    label.set(keys::pool::VERSION, 5000u64);
    label.set(keys::pool::STATE, keys::pool::STATE_L2CACHE);
    label.set(keys::GUID, GUID);
    vdev::label::init(&*disk, &label).unwrap();
    (env, disk)
}

/// Opened; with log blocks of so many entries though it is small.
fn open(env: &Env, entries: u64) -> CacheDevice {
    let mut d = CacheDevice::open(env, &listed(), true).unwrap();
    d.entries = entries;
    d
}

fn content(n: u64, len: usize) -> Vec<u8> {
    let rng = SeededRng::new(n);
    (0..len).map(|_| rng.next() as u8).collect()
}

fn dva(n: u64) -> Dva {
    Dva::new(0, n * 65536, 65536, false)
}

fn key(n: u64) -> BlockKey {
    BlockKey::new(&dva(n), Txg::new(5))
}

/// Block number `n`: its address says so.
fn block(n: u64) -> Fresh {
    let len = 512 * (1 + (n * 7) % 60) as usize;
    let dva = dva(n);
    Fresh {
        key: key(n),
        entry: LogEntry {
            dva,
            birth: Txg::new(5),
            lsize: len as u64,
            psize: len as u64,
            compression: Compression::OFF,
            metadata: false,
            protected: false,
            at: 0,
        },
        raw: content(n, len),
    }
}

/// Passes of different sizes, of blocks from `first` up to `end`.
fn feed(d: &CacheDevice, index: &Index, first: u64, end: u64) {
    let mut n = first;
    let mut turn = 0;
    while n < end {
        turn += 1;
        let upto = (n + 20 + turn % 90).min(end);
        d.write_pass(POOL, (n..upto).map(block).collect(), index)
            .unwrap();
        n = upto;
    }
}

/// How many of the blocks are in the index; each must be what was written.
fn found(d: &CacheDevice, index: &Index, end: u64) -> usize {
    let mut count = 0;
    for n in 0..end {
        let Some(p) = index.get(&key(n)) else {
            continue;
        };
        count += 1;
        let want = block(n);
        let got = d.read_many(&[(p.at, p.psize)]).remove(0).unwrap();
        assert!(got == want.raw, "block {n} at {:#x}", p.at);
    }
    assert_eq!(count, index.len());
    count
}

#[test]
fn a_full_device_begins_again_at_its_start() {
    for entries in [0, 16, 100] {
        let (env, _disk) = image(80);
        let (d, index) = (open(&env, entries), Index::default());
        assert!(d.is_filling());
        feed(&d, &index, 0, 15_000);
        assert!(!d.is_filling());
        let kept = found(&d, &index, 15_000);
        assert!((2000..8000).contains(&kept), "{kept}");
        let (size, used) = d.space();
        assert!(used <= size && used > size / 2, "{used} of {size}");
        d.shrink(&index, 100);
        assert_eq!(found(&d, &index, 15_000), 100);
    }
}

#[test]
fn what_is_on_a_device_is_found_again() {
    for blocks in [10, 500, 2000, 5000, 9000, 15_000] {
        let (env, _disk) = image(80);
        let before = Index::default();
        let d = open(&env, 16);
        feed(&d, &before, 0, blocks);
        let (had, used) = (found(&d, &before, blocks), d.space().1);
        drop(d);
        let (d, index) = (open(&env, 16), Index::default());
        d.rebuild(POOL, &index, usize::MAX);
        let kept = found(&d, &index, blocks);
        // The entries of the newest blocks are in no log block, and the oldest log blocks may have lost a part.
        assert!(kept <= had && kept + 60 >= had, "{kept} of {had}");
        assert!(d.space().1 <= used, "{} of {used}", d.space().1);
        // It goes on behind what it has.
        feed(&d, &index, blocks, blocks + 3000);
        found(&d, &index, blocks + 3000);
        // Another pool, or another device, has nothing to do with it.
        drop(d);
        let (d, index) = (open(&env, 16), Index::default());
        d.rebuild(POOL + 1, &index, usize::MAX);
        assert_eq!(index.len(), 0);
        // No more than memory has room for.
        d.rebuild(POOL, &index, 50);
        assert!(index.len() < 50 + 16, "{}", index.len());
    }
}

#[test]
fn hostile_contents_do_no_harm() {
    let (env, disk) = image(80);
    let d = open(&env, 16);
    let index = Index::default();
    feed(&d, &index, 0, 4000);
    let rng = SeededRng::new(9);
    let header = d.header(POOL, &d.hand.acquire());
    let start = d.start;
    drop(d);
    for round in 0..300 {
        // Headers whose checksum is right, and whose words are not.
        let mut h = header;
        let any = |good: u64| match rng.below(4) {
            0 => rng.next(),
            1 => good.wrapping_add(4096 * rng.below(100)),
            2 => rng.below(80 * MIB) & !4095,
            _ => good,
        };
        h.evict = any(h.evict);
        h.first_sweep = rng.below(2) == 0;
        h.newest[0].at = any(h.newest[0].at);
        h.newest[0].payload_at = any(h.newest[0].payload_at);
        h.newest[1].at = any(h.newest[1].at);
        let mut b = h.encode(12);
        embed(Checksum::LABEL, &mut b, &[l2arc::HEADER_AT, 0, 0, 0]).unwrap();
        disk.poke(l2arc::HEADER_AT, &b);
        let (d, index) = (open(&env, 16), Index::default());
        d.rebuild(POOL, &index, usize::MAX);
        feed(&d, &index, 10_000, 10_200 + round);
        for n in 10_000..10_200 + round {
            let want = block(n);
            let p = index.get(&want.key).expect("just written");
            assert!(d.read_many(&[(p.at, p.psize)]).remove(0).unwrap() == want.raw);
        }
    }
    // A log block that lists blocks anywhere.
    let entries: Vec<LogEntry> = (0..16)
        .map(|i| LogEntry {
            at: rng.next() >> (i * 4),
            psize: 512 * (1 + rng.below(60_000)),
            ..block(i).entry
        })
        .collect();
    let log = l2arc::encode_log(&LogPtr::default(), &entries);
    let sum = checksum::compute(Checksum::FLETCHER4, &log, false, &[0; 32]).unwrap();
    let at = start;
    disk.poke(at, &log);
    let len = log.len() as u64;
    let mut h = header;
    h.first_sweep = true;
    h.newest = [
        LogPtr::new(at, len, Compression::OFF, (at, 0), sum),
        LogPtr::new(at, len, Compression::OFF, (at, 0), sum),
    ];
    let mut b = h.encode(12);
    embed(Checksum::LABEL, &mut b, &[l2arc::HEADER_AT, 0, 0, 0]).unwrap();
    disk.poke(l2arc::HEADER_AT, &b);
    let (d, index) = (open(&env, 16), Index::default());
    d.rebuild(POOL, &index, usize::MAX);
    for n in 0..16 {
        if let Some(p) = index.get(&key(n)) {
            assert!(p.at >= d.start && p.at + p.psize <= d.end);
        }
    }
    feed(&d, &index, 20_000, 40_000);
}

/// What is discarded is filled with garbage by these disks: nobody may rely on it.
#[test]
fn a_device_that_is_told_of_free_space_is_discarded_wholly_and_then_ahead_of_the_writes() {
    let (env, _disk) = image(80);
    let (d, index) = (open(&env, 16), Index::default());
    assert!(!d.rebuild(POOL, &index, usize::MAX));
    assert_eq!(d.trimmed(), None);
    d.trim_whole(POOL, 1234).unwrap();
    let whole = d.end - d.start;
    let discarded = |d: &CacheDevice| d.stats.trim_bytes.load(Ordering::Relaxed);
    assert_eq!((d.trimmed(), discarded(&d)), (Some(1234), whole));
    d.discards.store(true, Ordering::Relaxed);
    feed(&d, &index, 0, 2000);
    assert!(d.is_filling());
    assert_eq!(discarded(&d), whole, "nothing is overwritten yet");
    feed(&d, &index, 2000, 15_000);
    assert!(discarded(&d) > 2 * whole, "{}", discarded(&d));
    let had = found(&d, &index, 15_000);
    assert!(had > 1500, "{had}");
    // The next import finds it, and does not discard it again.
    drop(d);
    let (d, index) = (open(&env, 16), Index::default());
    assert!(d.rebuild(POOL, &index, usize::MAX));
    assert_eq!(d.trimmed(), Some(1234));
    let kept = found(&d, &index, 15_000);
    assert!(kept <= had && kept + 60 >= had, "{kept} of {had}");
}

/// A device of which a discard asks for the figures of the cache device, and then has it closed.
struct Asking {
    disk: Arc<MemDisk>,
    cache: Mutex<std::sync::Weak<CacheDevice>>,
    discards: AtomicU64,
}

impl Disk for Asking {
    fn geometry(&self) -> env::Geometry {
        self.disk.geometry()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.disk.read(offset, buf)
    }
    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.disk.write(offset, buf)
    }
    fn flush(&self) -> Result<()> {
        self.disk.flush()
    }
    fn batch(&self, ops: Vec<Op>) -> Vec<(Op, Result<()>)> {
        self.disk.batch(ops)
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let cache = self.cache.acquire().upgrade().unwrap();
        assert!(cache.hand.try_lock().is_ok() && cache.trimmed().is_none());
        if self.discards.fetch_add(1, Ordering::Relaxed) > 0 {
            cache.leaving.store(true, Ordering::Release);
        }
        self.disk.discard(offset, len)
    }
}

#[test]
fn the_discard_of_a_whole_device_holds_no_lock_and_ends_when_the_device_is_closed() {
    let (env, disk) = image(600);
    let mut d = open(&env, 16);
    let asking = Arc::new(Asking {
        disk,
        cache: Mutex::default(),
        discards: AtomicU64::new(0),
    });
    d.disk = asking.clone();
    let d = Arc::new(d);
    *asking.cache.acquire() = Arc::downgrade(&d);
    d.trim_whole(POOL, 1234).unwrap();
    assert_eq!(asking.discards.load(Ordering::Relaxed), 2);
    assert_eq!(d.trimmed(), None);
}
