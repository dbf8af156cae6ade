//! Images that lead to the same judgement as one before: what the engine and the judges do with an
//! image depends only on what they read of it, and on what was promised. So of each judgement the
//! sectors that were read are kept, with what was in them; an image that has the same in all of them
//! need not be judged again. (Of most images most is never looked at: blocks of a txg whose
//! uberblock was not written, say.)

use crate::check::{Judge, WAYS};
use crate::cut::{Cutter, Fate};
use crate::panics::said;
use env_sim::{Look, Origins, SeededRng, Watcher};
use std::collections::{HashMap, HashSet};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

/// Of the images that are known to be like another, one in so many is judged all the same, to see
/// whether the same comes of it.
pub const AUDIT: u64 = 200;

/// What was promised (see [`Judge::era`]) and the seed of the way of judging.
pub type Key = (usize, u64);

/// Sectors looked at next.
#[derive(Clone, Copy, PartialEq, Eq)]
struct SectorRun {
    disk: u32,
    sectors: u32,
    first: u64,
}

/// What is known once so much has been read.
#[derive(Clone, Copy)]
enum Node {
    Unknown,
    Reads(SectorRun),
    /// The judgement came to its end; whether it found nothing wrong.
    Judged(bool),
}

/// The judgements of images of one cutter so far.
#[derive(Default)]
pub struct Alike {
    nodes: Vec<Node>,
    /// Under what was promised and the way of judging.
    roots: HashMap<Key, u32>,
    /// Numbers of sectors read together.
    groups: HashMap<Box<[u32]>, u32>,
    next: HashMap<(u32, u32), u32>,
}

impl Alike {
    /// Whether an image like this was judged before under the same `key`, and was found good.
    pub fn known(&self, key: Key, image: &[Origins]) -> Option<bool> {
        let mut at = *self.roots.get(&key)?;
        loop {
            match self.nodes[at as usize] {
                Node::Unknown => return None,
                Node::Judged(good) => return Some(good),
                Node::Reads(p) => {
                    let disk = image.get(p.disk as usize)?;
                    let numbers = disk.numbers(p.first, p.sectors as usize)?;
                    let group = self.groups.get(numbers)?;
                    at = *self.next.get(&(at, *group))?;
                }
            }
        }
    }

    fn node(&mut self) -> u32 {
        self.nodes.push(Node::Unknown);
        self.nodes.len() as u32 - 1
    }

    /// Notes what was read while an image was judged. An error if the same was read before of
    /// another and something else came of it: then the engine does not repeat itself.
    pub fn add(&mut self, key: Key, looks: Vec<Look>, good: bool) -> Result<(), String> {
        let mut at = match self.roots.get(&key) {
            Some(n) => *n,
            None => {
                let n = self.node();
                self.roots.insert(key, n);
                n
            }
        };
        let differs = |is: &str| {
            Err(format!(
                "an image of which the same was read was judged in another way: {is}"
            ))
        };
        for look in looks {
            let place = SectorRun {
                disk: look.disk,
                sectors: look.numbers.len() as u32,
                first: look.first,
            };
            match self.nodes[at as usize] {
                Node::Unknown => self.nodes[at as usize] = Node::Reads(place),
                Node::Reads(p) if p == place => {}
                Node::Reads(p) => {
                    return differs(&format!(
                        "{} sectors at {} of disk {} were read instead of {} at {} of disk {}",
                        place.sectors, place.first, place.disk, p.sectors, p.first, p.disk
                    ))
                }
                Node::Judged(_) => return differs("it went on"),
            }
            let fresh = self.groups.len() as u32;
            let group = *self
                .groups
                .entry(look.numbers.into_boxed_slice())
                .or_insert(fresh);
            at = match self.next.get(&(at, group)) {
                Some(n) => *n,
                None => {
                    let n = self.node();
                    self.next.insert((at, group), n);
                    n
                }
            };
        }
        match self.nodes[at as usize] {
            Node::Judged(g) if g == good => Ok(()),
            Node::Unknown => {
                self.nodes[at as usize] = Node::Judged(good);
                Ok(())
            }
            _ => differs("it came to its end, or to another"),
        }
    }
}

/// The images of one cutter that has numbers, each judged or known to be like one that was.
pub struct Crowd {
    alike: Alike,
    /// What was promised, and what is on the disks.
    seen: HashSet<(usize, u64)>,
    ways: Vec<u64>,
    audit: u64,
    /// Images so far, no two the same.
    pub images: u64,
    /// Of these: what was read to judge them differs from all before.
    pub apart: u64,
}

impl Crowd {
    /// Images are looked at with so many seeds of `each` way. One in `audit` of those that are like
    /// another is judged all the same (mostly [`AUDIT`]).
    pub fn new(seed: u64, each: usize, audit: u64) -> Crowd {
        Crowd {
            alike: Alike::default(),
            seen: HashSet::new(),
            ways: ways(seed, each),
            audit,
            images: 0,
            apart: 0,
        }
    }

    /// Makes an image of the present moment and judges it. `None` if it was made before. What is
    /// like a finding is none of its own.
    pub fn image(
        &mut self,
        cutter: &Cutter,
        fate: Fate,
        rng: &SeededRng,
        judge: &Judge<'_>,
    ) -> Option<Result<(), String>> {
        let era = judge.era();
        let choice = cutter.choose(fate, rng);
        if !self.seen.insert((era, choice.content)) {
            return None;
        }
        self.images += 1;
        let way = self.ways[rng.below(self.ways.len() as u64) as usize];
        let known = self.alike.known((era, way), &choice.origins);
        if known.is_some() && rng.below(self.audit) != 0 {
            return Some(Ok(()));
        }
        self.apart += u64::from(known.is_none());
        let image = cutter.make(&choice);
        let watcher = Arc::new(Watcher::default());
        for (disk, origins) in image.iter().zip(choice.origins) {
            disk.watch(origins, &watcher);
        }
        let r = catch_unwind(AssertUnwindSafe(|| judge.image(&image, way)));
        let r = r.unwrap_or_else(|p| Err(said(p))).map(|_| ());
        let repeats = self.alike.add((era, way), watcher.take(), r.is_ok());
        match (known, r) {
            (Some(false), Err(_)) => Some(repeats),
            (_, r) => Some(r.and(repeats)),
        }
    }
}

/// Seeds of judgements: few, so that images may be alike, and of each way of looking at them some.
fn ways(seed: u64, each: usize) -> Vec<u64> {
    let rng = SeededRng::new(seed ^ 0x3a15);
    let mut out = Vec::new();
    for way in 0..WAYS {
        let fits = std::iter::repeat_with(|| rng.next());
        let fits = fits.filter(|s| SeededRng::new(*s).below(WAYS) == way);
        out.extend(fits.take(each));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(first: u64, numbers: &[u32]) -> Look {
        Look {
            disk: 0,
            first,
            numbers: numbers.to_vec(),
        }
    }

    fn image(sectors: &[(u64, u32)]) -> Vec<Origins> {
        let mut o = Origins::new(0);
        sectors.iter().for_each(|(s, n)| o.set(*s, *n));
        vec![o]
    }

    #[test]
    fn what_was_not_read_does_not_matter() {
        let mut a = Alike::default();
        let first = image(&[(1, 10), (2, 20), (7, 70), (9, 90)]);
        assert_eq!(a.known((0, 0), &first), None);
        let looks = vec![look(1, &[10, 20]), look(9, &[90])];
        a.add((0, 0), looks.clone(), true).unwrap();
        assert_eq!(a.known((0, 0), &first), Some(true));
        let elsewhere = image(&[(1, 10), (2, 20), (7, 71), (9, 90)]);
        assert_eq!(a.known((0, 0), &elsewhere), Some(true));
        // Promised more, or judged in another way.
        assert_eq!(a.known((1, 0), &first), None);
        assert_eq!(a.known((0, 1), &first), None);
        let other = image(&[(1, 10), (2, 20), (7, 70), (9, 91)]);
        assert_eq!(a.known((0, 0), &other), None);
        a.add((0, 0), vec![look(1, &[10, 20]), look(9, &[91])], false)
            .unwrap();
        assert_eq!(a.known((0, 0), &other), Some(false));
        assert_eq!(a.known((0, 0), &first), Some(true));
        // The same was read, and something else came of it.
        assert!(a.add((0, 0), looks.clone(), false).is_err());
        assert!(a.add((0, 0), looks[..1].to_vec(), true).is_err());
        assert!(a.add((0, 0), vec![look(3, &[10])], true).is_err());
        a.add((0, 0), looks, true).unwrap();
    }
}
