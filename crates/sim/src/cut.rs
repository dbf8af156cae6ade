//! Power cuts: all images that may be left at a moment, from the recorded writes and flushes.

use env_sim::{Event, MemDisk, Origins, SeededRng};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

/// Disks as a start finds them.
pub type Image = Vec<Arc<MemDisk>>;

/// Smallest unit a device writes whole, bytes.
const SECTOR: usize = env_sim::SECTOR as usize;

/// How unflushed writes fare when the power goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Lost,
    Kept,
    /// Each write is there or is not.
    Some,
    /// Each sector of each write is there or is not.
    Torn,
    /// Disks differ: all or nothing on each.
    Apart,
}

pub const FATES: [Fate; 5] = [Fate::Lost, Fate::Kept, Fate::Some, Fate::Torn, Fate::Apart];

impl FromStr for Fate {
    type Err = String;
    fn from_str(s: &str) -> Result<Fate, String> {
        let found = FATES.iter().find(|f| format!("{f:?}") == s);
        found.copied().ok_or_else(|| format!("no fate '{s}'"))
    }
}

/// A write that was not flushed yet.
#[derive(Clone)]
struct Waiting {
    /// Number of its event.
    event: usize,
    offset: u64,
    data: base::Block,
}

/// What is on the disks at a moment, and what of the rest is there.
pub struct Choice {
    /// By disk: number of the unflushed write, and bytes of it.
    parts: Vec<Vec<(usize, Range<usize>)>>,
    /// Where everything on the disks comes from; empty if the cutter was not asked to number it.
    pub origins: Vec<Origins>,
    /// Sums up what is on the disks, if it was.
    pub content: u64,
}

/// Walks through a journal and makes images of any moment of it.
pub struct Cutter {
    durable: Vec<Arc<MemDisk>>,
    /// By disk.
    unflushed: Vec<Vec<Waiting>>,
    events: std::vec::IntoIter<Event>,
    pub at: usize,
    numbers: Option<Numbers>,
}

impl Cutter {
    /// `base`: the disks at the beginning of the journal.
    pub fn new(base: &[Arc<MemDisk>], events: Vec<Event>) -> Cutter {
        Cutter {
            durable: base.iter().map(|d| d.fork()).collect(),
            unflushed: vec![Vec::new(); base.len()],
            events: events.into_iter(),
            at: 0,
            numbers: None,
        }
    }

    /// The same; images can be told apart by what is on them.
    pub fn numbered(base: &[Arc<MemDisk>], events: Vec<Event>) -> Cutter {
        Cutter {
            numbers: Some(Numbers::of(base, &events)),
            ..Cutter::new(base, events)
        }
    }

    /// Goes to the moment after the first `to` events.
    pub fn forward(&mut self, to: usize) {
        while self.at < to {
            match self.events.next() {
                Some(Event::Write { disk, offset, data }) => {
                    self.unflushed[disk].push(Waiting {
                        event: self.at,
                        offset,
                        data,
                    });
                }
                Some(Event::Flush { disk, begun }) => {
                    let done = self.unflushed[disk].partition_point(|w| w.event < begun);
                    for w in self.unflushed[disk].drain(..done) {
                        self.durable[disk].poke(w.offset, &w.data);
                        if let Some(n) = &mut self.numbers {
                            let all = 0..w.data.len();
                            put(&n.events, &mut n.durable, &mut n.content, disk, &w, &all);
                        }
                    }
                }
                Some(Event::Rot { disk, offset, data }) => {
                    self.durable[disk].poke(offset, &data);
                    if let Some(n) = &mut self.numbers {
                        let all = 0..data.len();
                        let (event, data) = (self.at, Arc::new(data));
                        let w = Waiting {
                            event,
                            offset,
                            data,
                        };
                        put(&n.events, &mut n.durable, &mut n.content, disk, &w, &all);
                    }
                }
                None => panic!("past the end of the journal"),
            }
            self.at += 1;
        }
    }

    /// Writes that may or may not be there.
    pub fn unflushed(&self) -> usize {
        self.unflushed.iter().map(Vec::len).sum()
    }

    /// The disks as the next start finds them.
    pub fn image(&self, fate: Fate, rng: &SeededRng) -> Image {
        self.make(&self.choose(fate, rng))
    }

    /// The disks with what was chosen.
    pub fn make(&self, choice: &Choice) -> Image {
        let disks = self.durable.iter().zip(&self.unflushed);
        disks
            .zip(&choice.parts)
            .map(|((disk, unflushed), parts)| {
                let disk = disk.fork();
                for (n, range) in parts {
                    let w = &unflushed[*n];
                    disk.poke(w.offset + range.start as u64, &w.data[range.clone()]);
                }
                disk
            })
            .collect()
    }

    /// Chooses what is there of what was not flushed.
    pub fn choose(&self, fate: Fate, rng: &SeededRng) -> Choice {
        let mut out = Choice {
            parts: Vec::new(),
            origins: Vec::new(),
            content: 0,
        };
        if let Some(n) = &self.numbers {
            (out.origins, out.content) = (n.durable.clone(), n.content);
        }
        for (disk, unflushed) in self.unflushed.iter().enumerate() {
            let mut parts = Vec::new();
            let luck = 1 + rng.below(8);
            let all = rng.below(2) == 0;
            for (n, w) in unflushed.iter().enumerate() {
                let whole = match fate {
                    Fate::Lost => continue,
                    Fate::Kept => true,
                    Fate::Some => rng.below(9) < luck,
                    Fate::Apart => all,
                    Fate::Torn => rng.below(3) == 0,
                };
                if whole {
                    parts.push((n, 0..w.data.len()));
                } else if fate == Fate::Torn {
                    for at in (0..w.data.len()).step_by(SECTOR) {
                        if rng.below(9) < luck {
                            parts.push((n, at..(at + SECTOR).min(w.data.len())));
                        }
                    }
                }
            }
            if let Some(n) = &self.numbers {
                for (i, range) in &parts {
                    let (origins, content) = (&mut out.origins, &mut out.content);
                    put(&n.events, origins, content, disk, &unflushed[*i], range);
                }
            }
            out.parts.push(parts);
        }
        out
    }
}

/// Numbers of contents of sectors: equal bytes, equal numbers. Sectors whose content is the same all
/// the time have none.
struct Numbers {
    /// By event: those of the sectors it writes.
    events: Vec<Vec<u32>>,
    durable: Vec<Origins>,
    content: u64,
}

impl Numbers {
    fn of(base: &[Arc<MemDisk>], events: &[Event]) -> Numbers {
        let mut known: HashMap<Vec<u8>, u32> = HashMap::new();
        let mut number = |bytes: &[u8]| match known.get(bytes) {
            Some(n) => *n,
            None => {
                let n = known.len() as u32 + 1;
                known.insert(bytes.to_vec(), n);
                n
            }
        };
        let mut out = Numbers {
            events: Vec::new(),
            durable: (0..base.len()).map(Origins::new).collect(),
            content: 0,
        };
        // What was there first, and whether anything else ever is.
        let mut sectors: BTreeMap<(usize, u64), (u32, bool)> = BTreeMap::new();
        for e in events {
            let (disk, offset, data) = match e {
                Event::Write { disk, offset, data } => (*disk, *offset, &data[..]),
                Event::Rot { disk, offset, data } => (*disk, *offset, &data[..]),
                Event::Flush { .. } => {
                    out.events.push(Vec::new());
                    continue;
                }
            };
            let whole = offset % SECTOR as u64 == 0 && data.len() % SECTOR == 0;
            assert!(whole, "a write that is not in sectors");
            let mut list = Vec::new();
            for (i, bytes) in data.chunks(SECTOR).enumerate() {
                let n = number(bytes);
                list.push(n);
                let sector = offset / SECTOR as u64 + i as u64;
                let there = sectors.entry((disk, sector)).or_insert_with(|| {
                    let mut b = [0; SECTOR];
                    base[disk].peek(sector * SECTOR as u64, &mut b);
                    (number(&b), false)
                });
                there.1 |= there.0 != n;
            }
            out.events.push(list);
        }
        for ((disk, sector), (first, changes)) in sectors {
            if changes {
                out.durable[disk].set(sector, first);
            }
        }
        out
    }
}

/// A part of a write is on a disk.
fn put(
    events: &[Vec<u32>],
    origins: &mut [Origins],
    content: &mut u64,
    disk: usize,
    w: &Waiting,
    range: &Range<usize>,
) {
    let numbers = &events[w.event][range.start / SECTOR..range.end / SECTOR];
    let first = (w.offset + range.start as u64) / SECTOR as u64;
    for (sector, n) in (first..).zip(numbers) {
        let old = origins[disk].get(sector);
        if old != 0 && old != *n {
            *content = content
                .wrapping_sub(mix(disk, sector, old))
                .wrapping_add(mix(disk, sector, *n));
            origins[disk].set(sector, *n);
        }
    }
}

/// A summand for the content of a sector: sums of them tell images apart.
fn mix(disk: usize, sector: u64, number: u32) -> u64 {
    let mut h = 0u64;
    for n in [disk as u64, sector, u64::from(number)] {
        h = (h ^ n).wrapping_add(0x9e37_79b9_7f4a_7c15);
        h = (h ^ (h >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        h = (h ^ (h >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        h ^= h >> 31;
    }
    h
}
