//! A pool in memory: one device that keeps a journal of everything written, so that the plug can be
//! pulled at any point; txgs; an allocator that checks what it is told.
#![allow(dead_code)]

use base::{bail, Block, Kind, Result, Txg};
use disk::{BlkPtr, Checksum, Compression, Dva, ObjType};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard};
use zil::{Header, Indirect, LogBlocks, LogStore, Wanted};

pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
}

/// What happened to the device, in order.
#[derive(Clone)]
pub enum Event {
    Write(u64, Arc<Vec<u8>>),
    Flush,
    /// The uberblock of a txg: header of the log, space allocated as of it.
    Group(Txg, Header, BTreeMap<u64, u64>),
    /// A commit returned: these records are promised.
    Promise(Vec<u64>),
}

/// Content of byte `at` of an object: files never change what they once got.
pub fn content(object: u64, at: u64) -> u8 {
    (object.wrapping_mul(31) ^ at ^ (at >> 8)) as u8
}

/// How far the txg before the open one is.
#[derive(Clone, Debug)]
pub enum Flight {
    Closed(Txg),
    Written(Txg, Header),
    OnDisk(Txg),
}

#[derive(Default)]
pub struct Inner {
    pub platter: BTreeMap<u64, Vec<u8>>,
    pub journal: Vec<Event>,
    /// offset → size, all changes of all txgs.
    pub allocated: BTreeMap<u64, u64>,
    /// Changes by txg.
    allocs: BTreeMap<Txg, Vec<(u64, u64)>>,
    frees: BTreeMap<Txg, Vec<u64>>,
    /// As of the last txg.
    pub on_disk: BTreeMap<u64, u64>,
    /// Freed, reusable when this txg has synced.
    resting: Vec<(Txg, u64, u64)>,
    pub free: BTreeMap<u64, u64>,
    frontier: u64,
    pub open: Txg,
    pub flight: Option<Flight>,
    /// Blocks of files written in place: theirs, not the log's.
    pub data: BTreeMap<u64, u64>,
    pub gone: Vec<u64>,
    /// Called when data of an object that is gone are asked for the first time.
    pub on_gone: Option<Box<dyn FnOnce() + Send>>,
    pub fail_alloc: bool,
    pub fail_write: bool,
    pub fail_large: bool,
    /// The next write of log blocks says that it is there, and waits until it may go on.
    pub hold_write: Option<(Sender<()>, Receiver<()>)>,
    /// The next log block that is taken says so, and waits until it may go on.
    pub hold_alloc: Option<(Sender<()>, Receiver<()>)>,
    pub flushes: u64,
    pub indirect: bool,
    pub random: u64,
    /// Allocated sizes are a third larger (raidz).
    pub raidz: bool,
    /// Reads so far.
    pub reads: u64,
    /// Reads of these numbers fail, the first being 1.
    pub bad_reads: std::ops::Range<u64>,
    /// Places whose space map is damaged.
    pub lost_maps: Vec<u64>,
    /// Highest birth that is believed.
    pub newest: Option<Txg>,
}

/// The second lock holds the txg open.
pub struct Mem(pub Mutex<Inner>, Mutex<()>);

impl Mem {
    pub fn new() -> Arc<Mem> {
        let inner = Inner {
            open: Txg::new(10),
            ..Inner::default()
        };
        Arc::new(Mem(Mutex::new(inner), Mutex::default()))
    }

    /// What is there after a crash.
    pub fn from_crash(
        platter: BTreeMap<u64, Vec<u8>>,
        group: Txg,
        allocated: BTreeMap<u64, u64>,
        seed: u64,
    ) -> Arc<Mem> {
        let inner = Inner {
            platter,
            on_disk: allocated.clone(),
            frontier: 1 << 40,
            allocated,
            open: group.next(),
            random: seed,
            ..Inner::default()
        };
        Arc::new(Mem(Mutex::new(inner), Mutex::default()))
    }

    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    pub fn open(&self) -> Txg {
        self.lock().open
    }

    /// Closes the open txg and writes it, after one that is on its way; what `sync` returns is the header stored with it.
    pub fn sync(&self, zil: &zil::Zil) -> Txg {
        self.land(zil);
        let txg = self.close();
        self.land(zil);
        txg
    }

    /// Closes the open txg: changes are made in the next one from now on. It waits to be written.
    pub fn close(&self) -> Txg {
        let _gate = self.1.lock().unwrap();
        let mut m = self.lock();
        assert!(m.flight.is_none());
        let txg = m.open;
        m.open = txg.next();
        m.flight = Some(Flight::Closed(txg));
        txg
    }

    /// Brings the txg under way a step further: it gets its header, then its uberblock, then the log hears that it is on
    /// disk. False if there is none.
    pub fn advance(&self, zil: &zil::Zil) -> bool {
        let flight = self.lock().flight.clone();
        match flight {
            None => return false,
            Some(Flight::Closed(txg)) => {
                let header = Header::decode(&zil.sync(txg).unwrap()).unwrap();
                self.lock().flight = Some(Flight::Written(txg, header));
            }
            Some(Flight::Written(txg, header)) => {
                self.commit(txg, header);
                self.lock().flight = Some(Flight::OnDisk(txg));
            }
            Some(Flight::OnDisk(txg)) => {
                zil.synced(txg);
                self.lock().flight = None;
            }
        }
        true
    }

    /// The txg under way, if there is one, is on disk when this returns.
    pub fn land(&self, zil: &zil::Zil) {
        while self.advance(zil) {}
    }

    fn commit(&self, txg: Txg, header: Header) {
        let mut m = self.lock();
        for (o, s) in m.allocs.remove(&txg).unwrap_or_default() {
            assert!(m.on_disk.insert(o, s).is_none(), "allocated twice");
        }
        for o in m.frees.remove(&txg).unwrap_or_default() {
            let s = m.on_disk.remove(&o).expect("freed before it was allocated");
            m.resting.push((txg.after(2), o, s));
        }
        let now = m.on_disk.clone();
        m.journal.push(Event::Flush);
        m.journal.push(Event::Group(txg, header, now));
        let (due, rest): (Vec<_>, Vec<_>) = m.resting.drain(..).partition(|r| r.0 <= txg);
        m.resting = rest;
        m.free.extend(due.into_iter().map(|(_, o, s)| (o, s)));
    }

    /// Log blocks reuse places as eagerly as possible; files never do, so that a place tells what
    /// it holds.
    fn alloc(&self, size: u64, reuse: bool) -> (Dva, Txg) {
        let mut m = self.lock();
        let size = if m.raidz { size / 2 * 3 } else { size };
        let txg = m.open;
        let found = m
            .free
            .iter()
            .find(|(_, s)| reuse && **s == size)
            .map(|(o, _)| *o);
        let at = match found {
            Some(o) => {
                m.free.remove(&o);
                o
            }
            None => {
                m.frontier += size;
                m.frontier - size
            }
        };
        m.allocated.insert(at, size);
        m.allocs.entry(txg).or_default().push((at, size));
        (Dva::new(0, at, size, false), txg)
    }
}

impl Mem {
    /// Writes the block of a file that contains `offset` to a place of its own.
    pub fn indirect_block(&self, object: u64, offset: u64) -> Indirect {
        let size = 8192;
        let start = offset / size * size;
        let mut data: Vec<u8> = (start..start + size).map(|i| content(object, i)).collect();
        let tag = object << 48 | start;
        data[..8].copy_from_slice(&tag.to_le_bytes());
        let raidz = std::mem::take(&mut self.lock().raidz);
        let (dva, txg) = self.alloc(size, false);
        let mut m = self.lock();
        m.raidz = raidz;
        let mut bp = BlkPtr::new(
            ObjType::PLAIN_FILE_CONTENTS,
            0,
            8192,
            8192,
            Compression::OFF,
            Checksum::FLETCHER4,
            txg,
        );
        bp.set_dva(0, dva);
        bp.set_checksum([tag, 0, 0, 0]);
        m.data.insert(dva.offset(), size);
        m.journal
            .push(Event::Write(dva.offset(), Arc::new(data.clone())));
        m.platter.insert(dva.offset(), data);
        Indirect::At(Box::new(bp))
    }
}

impl Inner {
    fn read(&mut self) -> Result<()> {
        self.reads += 1;
        match self.bad_reads.contains(&self.reads) {
            true => bail!(Io, "injected fault"),
            false => Ok(()),
        }
    }
}

impl LogBlocks for Mem {
    fn newest_birth(&self) -> Txg {
        self.lock().newest.unwrap_or(Txg::new(u64::MAX))
    }

    fn read_block(&self, bp: &BlkPtr, verify: &(dyn Fn(&[u8]) -> bool + Sync)) -> Result<Vec<u8>> {
        let mut m = self.lock();
        m.read()?;
        let mut b = m
            .platter
            .get(&bp.dva(0).offset())
            .cloned()
            .unwrap_or_default();
        b.resize(bp.psize(), 0xee);
        if verify(&b) {
            Ok(b)
        } else {
            Err(Kind::Checksum.into())
        }
    }

    fn read_data(&self, bp: &BlkPtr) -> Result<Block> {
        let mut m = self.lock();
        m.read()?;
        match m.platter.get(&bp.dva(0).offset()) {
            // The checksum of the test: the first word names object and offset.
            Some(b) if b.len() == bp.psize() && b[..8] == bp.checksum()[0].to_le_bytes() => {
                Ok(Arc::new(b.clone()))
            }
            _ => Err(Kind::Checksum.into()),
        }
    }

    fn claim(&self, bp: &BlkPtr, txg: Txg) -> Result<()> {
        let mut m = self.lock();
        let (o, s) = (bp.dva(0).offset(), bp.dva(0).asize());
        if m.lost_maps.contains(&o) {
            bail!(Checksum, "the space map is damaged");
        }
        if m.allocated.insert(o, s).is_some() {
            bail!(Damaged, "claimed {o:#x}, which is in use");
        }
        m.allocs.entry(txg).or_default().push((o, s));
        Ok(())
    }

    fn free(&self, bp: &BlkPtr, txg: Txg) -> Result<()> {
        let mut m = self.lock();
        let o = bp.dva(0).offset();
        assert_eq!(
            m.allocated.remove(&o),
            Some(bp.dva(0).asize()),
            "double free"
        );
        m.frees.entry(txg).or_default().push(o);
        Ok(())
    }
}

impl LogStore for Mem {
    fn alloc_block(&self, size: usize, note: &mut dyn FnMut(Dva, Txg)) -> Result<()> {
        assert!(size % 4096 == 0 && size > 0);
        let m = self.lock();
        if m.fail_alloc || m.fail_large && size > 4096 {
            bail!(NoSpace, "full");
        }
        drop(m);
        let open = self.1.lock().unwrap();
        let (dva, txg) = self.alloc(size as u64, true);
        note(dva, txg);
        drop(open);
        let held = self.lock().hold_alloc.take();
        if let Some((here, go)) = held {
            here.send(()).unwrap();
            go.recv().unwrap();
        }
        Ok(())
    }

    fn write_blocks(&self, blocks: &[(BlkPtr, Block)]) -> Result<()> {
        let held = self.lock().hold_write.take();
        if let Some((here, go)) = held {
            here.send(()).unwrap();
            go.recv().unwrap();
        }
        let mut m = self.lock();
        if m.fail_write {
            bail!(Io, "broken");
        }
        for (bp, data) in blocks {
            assert!(data.len() % 4096 == 0 && data.len() <= bp.psize());
            assert!(!m.raidz || data.len() == bp.psize());
            let o = bp.dva(0).offset();
            assert_eq!(m.allocated.get(&o), Some(&bp.dva(0).asize()), "not ours");
            m.journal.push(Event::Write(o, data.clone()));
            m.platter.insert(o, data.to_vec());
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        let mut m = self.lock();
        m.flushes += 1;
        m.journal.push(Event::Flush);
        Ok(())
    }

    fn dirty(&self, note: &mut dyn FnMut(Txg)) -> Result<()> {
        let _open = self.1.lock().unwrap();
        note(self.open());
        Ok(())
    }

    fn current_data(&self, object: u64, _: u64, offset: u64, buf: &mut [u8]) -> Result<()> {
        let gone = self.lock().gone.contains(&object);
        if gone {
            let then = self.lock().on_gone.take();
            then.into_iter().for_each(|f| f());
            bail!(NotFound, "gone");
        }
        for (i, b) in buf.iter_mut().enumerate() {
            *b = content(object, offset + i as u64);
        }
        Ok(())
    }

    fn write_indirect(&self, wanted: &[Wanted]) -> Vec<Result<Indirect>> {
        let on = self.lock().indirect;
        let one = |w: &Wanted| match on {
            true => Ok(self.indirect_block(w.object, w.offset)),
            false => Ok(Indirect::Copy),
        };
        wanted.iter().map(one).collect()
    }

    fn random(&self) -> u64 {
        let mut m = self.lock();
        m.random += 1;
        Dice(m.random).next()
    }
}
