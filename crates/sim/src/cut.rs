//! The plug is pulled: from what reached the disks and when it was flushed, every image that may be
//! left at any moment.

use env_sim::{Event, MemDisk, SeededRng};
use std::collections::HashSet;
use std::str::FromStr;
use std::sync::Arc;

/// Disks as a start finds them.
pub type Image = Vec<Arc<MemDisk>>;

/// Smallest unit a device writes whole, bytes.
const SECTOR: usize = 512;

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

/// Walks through a journal and makes images of any moment of it.
pub struct Cutter {
    durable: Vec<Arc<MemDisk>>,
    /// By disk.
    unflushed: Vec<Vec<Waiting>>,
    events: std::vec::IntoIter<Event>,
    pub at: usize,
    /// Changes of what is durable so far: with the choice of unflushed sectors it names an image.
    version: u64,
    seen: HashSet<u64>,
}

impl Cutter {
    /// `base`: the disks at the beginning of the journal.
    pub fn new(base: &[Arc<MemDisk>], events: Vec<Event>) -> Cutter {
        Cutter {
            durable: base.iter().map(|d| d.fork()).collect(),
            unflushed: vec![Vec::new(); base.len()],
            events: events.into_iter(),
            at: 0,
            version: 0,
            seen: HashSet::new(),
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
                        self.version = self.at as u64 + 1;
                    }
                }
                Some(Event::Rot { disk, offset, data }) => {
                    self.durable[disk].poke(offset, &data);
                    self.version = self.at as u64 + 1;
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
        self.make(fate, rng).0
    }

    /// The same; `None` if this image was made before.
    pub fn new_image(&mut self, fate: Fate, rng: &SeededRng) -> Option<Image> {
        let (image, name) = self.make(fate, rng);
        self.seen.insert(name).then_some(image)
    }

    fn make(&self, fate: Fate, rng: &SeededRng) -> (Image, u64) {
        let mut out = Vec::new();
        let mut name = Name(self.version);
        for (n, (disk, unflushed)) in self.durable.iter().zip(&self.unflushed).enumerate() {
            let disk = disk.fork();
            let luck = 1 + rng.below(8);
            let all = rng.below(2) == 0;
            for w in unflushed {
                let whole = match fate {
                    Fate::Lost => continue,
                    Fate::Kept => true,
                    Fate::Some => rng.below(9) < luck,
                    Fate::Apart => all,
                    Fate::Torn => rng.below(3) == 0,
                };
                if whole {
                    disk.poke(w.offset, &w.data);
                    name.add(n, w.event, usize::MAX);
                } else if fate == Fate::Torn {
                    for (i, sector) in w.data.chunks(SECTOR).enumerate() {
                        if rng.below(9) < luck {
                            disk.poke(w.offset + (i * SECTOR) as u64, sector);
                            name.add(n, w.event, i);
                        }
                    }
                }
            }
            out.push(disk);
        }
        (out, name.0)
    }
}

/// A hash that names an image of one journal.
struct Name(u64);

impl Name {
    fn add(&mut self, disk: usize, event: usize, sector: usize) {
        for n in [disk, event, sector] {
            self.0 = (self.0 ^ n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            self.0 ^= self.0 >> 29;
        }
    }
}
