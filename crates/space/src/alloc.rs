//! Choosing vdevs: classes, the rotor, copies (pool format §16.6, §16.7).

use crate::metaslab::State;
use crate::{AllocReq, Class, Extent, Inner};
use base::{bail, Result, Txg};

/// Streams that are placed apart from each other.
pub(crate) const STREAMS: usize = 4;
/// Bytes per child a vdev receives before the rotor moves on.
const ALIQUOT: u64 = 2 << 20;

/// What became of a try to place on one vdev.
pub(crate) enum Placed {
    /// Metaslab, offset.
    At(u64, u64),
    /// This metaslab must be loaded first.
    Load(u64),
    Full,
}

/// What became of a request.
pub(crate) enum Tried {
    Done(Vec<Extent>),
    Load(u64, u64),
}

/// What decides where on a vdev a request is placed.
#[derive(Clone, Copy)]
pub(crate) struct How {
    /// See [`crate::Space::set_eager`].
    pub eager: bool,
    /// See [`crate::Space::set_edges`].
    pub edges: u64,
    /// Txg that writes the block.
    pub txg: Txg,
    /// Newest txg on disk.
    pub synced: Txg,
}

/// Whose turn it is within a class.
#[derive(Clone, Copy, Default)]
pub(crate) struct Rotor {
    vdev: u64,
    used: u64,
}

/// A set of metaslabs requests are served from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pot {
    Of(Class),
    EmbeddedLog,
}

impl Pot {
    fn index(self) -> usize {
        match self {
            Pot::Of(Class::Normal) => 0,
            Pot::Of(Class::Log) => 1,
            Pot::Of(Class::Special) => 2,
            Pot::Of(Class::Dedup) => 3,
            Pot::EmbeddedLog => 4,
        }
    }

    fn class(self) -> Class {
        match self {
            Pot::Of(c) => c,
            Pot::EmbeddedLog => Class::Normal,
        }
    }
}

/// Where a class looks, in order.
fn order(class: Class) -> &'static [Pot] {
    const N: Pot = Pot::Of(Class::Normal);
    const L: Pot = Pot::Of(Class::Log);
    const S: Pot = Pot::Of(Class::Special);
    const D: Pot = Pot::Of(Class::Dedup);
    match class {
        Class::Normal => &[N],
        Class::Log => &[L, S, Pot::EmbeddedLog, N],
        Class::Special => &[S, N],
        Class::Dedup => &[D, S, N],
    }
}

impl Inner {
    pub(crate) fn try_alloc(&mut self, req: &AllocReq<'_>) -> Result<Tried> {
        if req.txg <= self.last_synced {
            bail!(Bug, "allocation in txg {}, which has synced", req.txg);
        }
        for &pot in order(req.class) {
            if let Some(t) = self.try_pot(pot, req)? {
                return Ok(t);
            }
        }
        bail!(NoSpace, "no contiguous free space for a block")
    }

    fn try_pot(&mut self, pot: Pot, req: &AllocReq<'_>) -> Result<Option<Tried>> {
        let embedded = pot == Pot::EmbeddedLog;
        let largest = self.largest;
        let how = How {
            eager: self.eager,
            edges: self.edges,
            txg: req.txg,
            synced: self.last_synced,
        };
        let vdevs: Vec<u64> = self
            .tops
            .iter()
            .filter(|(_, t)| {
                t.spec.class == pot.class() && t.usable() && t.acct[embedded as usize].size > 0
            })
            .map(|(&id, _)| id)
            .collect();
        if vdevs.is_empty() {
            return Ok(None);
        }
        let stream = (req.hint % STREAMS as u64) as usize;
        let rotor = self.rotors[pot.index()][stream];
        let first = vdevs.iter().position(|&v| v >= rotor.vdev).unwrap_or(0);
        let mut got: Vec<(Extent, u64)> = Vec::with_capacity(req.copies);
        for copy in 0..req.copies {
            let mut order: Vec<u64> = (0..vdevs.len())
                .map(|i| vdevs[(first + copy + i) % vdevs.len()])
                .collect();
            // Vdevs without a copy first.
            order.sort_by_key(|v| got.iter().filter(|(e, _)| e.vdev == *v).count());
            let mut placed = None;
            for vdev in order {
                let asize = (req.size_on)(vdev);
                let others: Vec<u64> = got
                    .iter()
                    .filter(|(e, _)| e.vdev == vdev)
                    .map(|(e, _)| e.offset)
                    .collect();
                let top = self.top(vdev)?;
                if asize == 0 || asize % top.align != 0 {
                    self.undo(&got);
                    bail!(Bug, "size {asize} does not suit vdev {vdev}");
                }
                if asize > largest || asize > 1 << top.spec.ms_shift {
                    continue;
                }
                match top.place(embedded, asize, (stream, copy), &others, how) {
                    Placed::At(ms, offset) => {
                        let e = Extent {
                            vdev,
                            offset,
                            asize,
                        };
                        placed = Some((e, ms));
                        break;
                    }
                    Placed::Load(ms) => {
                        self.undo(&got);
                        return Ok(Some(Tried::Load(vdev, ms)));
                    }
                    Placed::Full => {}
                }
            }
            match placed {
                Some(p) => got.push(p),
                None => {
                    self.undo(&got);
                    return Ok(None);
                }
            }
        }
        for (e, ms) in &got {
            self.top(e.vdev)?
                .note_alloc(*ms, e.offset, e.asize, req.txg);
            self.dirty.entry(req.txg).or_default().insert((e.vdev, *ms));
        }
        if let Some((e, _)) = got.first() {
            self.turn(pot, stream, &vdevs, *e);
        }
        Ok(Some(Tried::Done(got.into_iter().map(|(e, _)| e).collect())))
    }

    /// Puts ranges back that left a tree but were not booked.
    fn undo(&mut self, got: &[(Extent, u64)]) {
        for (e, ms) in got {
            if let Ok(m) = self.ms(e.vdev, *ms) {
                if let State::Loaded(t) = &mut m.state {
                    t.add(e.offset, e.offset + e.asize);
                }
            }
        }
    }

    /// Moves the rotor on when the vdev has had its share: the aliquot per child, times how much
    /// more free space it has than the average.
    fn turn(&mut self, pot: Pot, stream: usize, vdevs: &[u64], e: Extent) {
        let embedded = pot == Pot::EmbeddedLog;
        let rotor = &mut self.rotors[pot.index()][stream];
        if rotor.vdev != e.vdev {
            *rotor = Rotor {
                vdev: e.vdev,
                used: 0,
            };
        }
        rotor.used += e.asize;
        let Some(top) = self.tops.get(&e.vdev) else {
            return;
        };
        let base = ALIQUOT * top.spec.children.max(1);
        let sum: u128 = vdevs
            .iter()
            .filter_map(|v| self.tops.get(v))
            .map(|t| t.room(embedded) as u128)
            .sum();
        let share = base as u128 * top.room(embedded) as u128 * vdevs.len() as u128;
        let quota = (share / sum.max(1)).clamp(base as u128 / 16, base as u128 * 16) as u64;
        if rotor.used >= quota {
            let next = vdevs.iter().copied().find(|&v| v > e.vdev);
            *rotor = Rotor {
                vdev: next.or(vdevs.first().copied()).unwrap_or(0),
                used: 0,
            };
        }
    }
}
