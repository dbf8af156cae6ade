//! Draws a world and operations for it from a seed. Each seed leaves out some kinds of operations
//! and prefers others, so that seeds differ in what they dwell on.

use crate::cut::FATES;
use crate::found::What;
use crate::lineage::Lineage;
use crate::op::{Change, Fault, Fill, Op, Scan, Transfer};
use crate::owners;
use crate::refuse::{self, Ending, Refuse};
use crate::rig::{Layout, MIB};
use crate::rights;
use crate::shape::Shape;
use crate::world::World;
use env_sim::SeededRng;
use pool::Failmode;
use std::cell::Cell;
use vdev::GroupKind;
use zpl::QUOTA_NAMES;

/// Kinds of operations and how often they come where a seed prefers nothing.
const KINDS: [(&str, u64); 30] = [
    ("write", 24),
    ("osync", 3),
    ("create", 10),
    ("mkdir", 3),
    ("symlink", 2),
    ("link", 2),
    ("rename", 8),
    ("unlink", 5),
    ("unlinkopen", 2),
    ("rmdir", 1),
    ("truncate", 4),
    ("punch", 3),
    ("chmod", 2),
    ("setxattr", 3),
    ("rmxattr", 1),
    ("fsync", 12),
    ("fsyncall", 3),
    ("read", 4),
    ("release", 2),
    ("sync", 6),
    ("snapshot", 2),
    ("destroysnap", 1),
    ("send", 1),
    ("clone", 1),
    ("rollback", 1),
    ("createfs", 1),
    ("destroyfs", 1),
    ("set", 1),
    ("remount", 1),
    ("reimport", 1),
];

/// Lines in a thousand that change a device or begin, pause and end scans, where devices may fail or lie idle.
const DEVICES: u64 = 40;

/// The same on a dRAID, where there is more to change.
const DRAID_DEVICES: u64 = 90;

/// Lines in a thousand that begin, suspend or stop trim and initialize.
const WEARS: u64 = 20;

/// Lines in a thousand in which a log device is removed or added, where there is one.
const LOGS: u64 = 15;

/// Lines in a thousand that change what the pool consists of, where there are disks for that.
const SHAPES: u64 = 60;

/// Lines in a thousand in which a pool of mirrors is split, of every second seed.
const SPLITS: u64 = 8;

/// dRAIDs that are simulated: parity, data columns of a group, distributed spares, devices. In some all rows of a slice belong to
/// one group, in others groups end in the middle of a row.
const DRAIDS: [(usize, u64, u64, usize); 8] = [
    (1, 2, 1, 5),
    (1, 2, 1, 6),
    (1, 2, 1, 4),
    (1, 3, 2, 7),
    (1, 2, 2, 5),
    (2, 2, 1, 6),
    (2, 3, 1, 6),
    (3, 2, 1, 6),
];

/// Lines in a thousand from which on all devices refuse something, in every second seed.
const REFUSALS: u64 = 30;

/// Kinds that only worlds with projects have, so that all others are the ones they were before.
const OWNERS: [(&str, u64); 4] = [("createas", 8), ("chown", 6), ("project", 3), ("limit", 4)];

/// Kinds that half of the worlds have, for the same reason.
const LINEAGE: [(&str, u64); 8] = [
    ("promote", 2),
    ("bookmark", 2),
    ("destroymark", 1),
    ("hold", 2),
    ("letgo", 1),
    ("renamesnap", 1),
    ("renamefs", 1),
    ("rollbackto", 2),
];
/// Kinds that half of the worlds with those of [`LINEAGE`] have, for the same reason.
const SPANS: [(&str, u64); 3] = [("diff", 4), ("destroyrange", 1), ("renameall", 1)];
/// Kinds that half of the worlds have, for the same reason.
const REPLICAS: [(&str, u64); 2] = [("receive", 6), ("heal", 1)];
/// Kinds that half of the worlds with those of [`REPLICAS`] have, for the same reason.
const SEALED: [(&str, u64); 3] = [("createsealed", 3), ("receiveraw", 8), ("receivesealed", 2)];
/// Kinds that a third of the worlds with those of [`REPLICAS`] have, for the same reason.
const KEPT: [(&str, u64); 1] = [("receivekept", 6)];
/// Kinds that every third world without projects has, for the same reason.
const VERSIONS: [(&str, u64); 3] = [("snapshotall", 2), ("createold", 1), ("raise", 1)];
/// Kinds that half of the worlds have, for the same reason.
const CHECKPOINTS: [(&str, u64); 4] = [
    ("checkpoint", 3),
    ("discard", 2),
    ("rewind", 1),
    ("reguid", 1),
];
/// Kinds that a third of the worlds have, for the same reason.
const SHARED: [(&str, u64); 4] = [("dedup", 3), ("twin", 12), ("prune", 3), ("tablequota", 1)];
/// Kinds that only every third seed has, for the same reason.
const RIGHTS: [(&str, u64); 3] = [("allow", 2), ("unallow", 1), ("snapshotas", 2)];

/// Values of properties that change how things are written, or limit them.
const PROPS: [(&str, &[u64]); 6] = [
    ("recordsize", &[4096, 16 << 10, 128 << 10]),
    // off, lz4, gzip-6, zstd (levels come apart).
    ("compression", &[2, 15, 10, 16]),
    ("copies", &[1, 2, 3]),
    // fletcher4, sha256, skein.
    ("checksum", &[7, 8, 12]),
    ("quota", &[0, 8 << 20, 64 << 20]),
    ("refquota", &[0, 4 << 20, 64 << 20]),
];

/// A seed's taste.
pub struct Generator {
    rng: SeededRng,
    /// Of changes of devices.
    dice: SeededRng,
    /// The disk that is a log now and then, and its dice.
    logs: Option<(usize, SeededRng)>,
    /// Of devices that refuse.
    refusals: Option<SeededRng>,
    /// Draws trim and initialize.
    wears: SeededRng,
    /// Draws changes of what the pool consists of.
    shapes: Option<(Layout, SeededRng)>,
    /// Draws splits.
    splits: Option<SeededRng>,
    weights: Vec<(&'static str, u64)>,
    /// Operations between two power cuts, about.
    epoch: u64,
    since: u64,
    /// Devices that may fail, and how often in a thousand operations they do.
    sick: usize,
    faults: u64,
    /// Distributed spares.
    spares: u64,
    /// Devices that may be put in the place of those, and fail then: from the first up to the last.
    bench: (usize, usize),
    max_file: u64,
    names: u64,
    snaps: Cell<u64>,
}

/// The pool a seed begins with. One in eight is a dRAID.
pub fn layout(seed: u64) -> Layout {
    // Of dice of its own, so that the others are the ones they were before.
    match SeededRng::new(seed ^ 0xd749).below(8) {
        0 => draid(seed),
        _ => plain(seed),
    }
}

/// The same, if it is to be a dRAID.
pub fn draid(seed: u64) -> Layout {
    let rng = SeededRng::new(seed ^ 0xd4a2);
    let (nparity, ndata, nspares, disks) = DRAIDS[rng.below(DRAIDS.len() as u64) as usize];
    Layout {
        kind: GroupKind::Draid {
            nparity,
            ndata,
            nspares,
        },
        disks,
        // From 128 MiB on metaslabs are so large that groups end within them.
        size: [64, 96, 128, 128][rng.below(4) as usize] * MIB,
        edges: rng.below(3) != 0,
        bench: [0, 1, 1, 2][rng.below(4) as usize],
        // Of most seeds, so that they are the ones they were before.
        grow: usize::from(SeededRng::new(seed ^ 0xd4ad).below(4) == 0),
        ..plain(seed)
    }
}

/// The same, if it is to grow and shrink.
pub fn growing(seed: u64) -> Layout {
    let l = plain(seed);
    Layout {
        grow: l.grow.max(1 + seed as usize % 2),
        ..l
    }
}

fn plain(seed: u64) -> Layout {
    let rng = SeededRng::new(seed ^ 0x1a40);
    let raidz = |nparity| GroupKind::Raidz { nparity };
    let (kind, disks) = match rng.below(12) {
        0..=3 => (GroupKind::Single, 1),
        4..=5 => (GroupKind::Mirror, 2),
        6 => (GroupKind::Mirror, 3),
        7..=8 => (raidz(1), 3),
        9 => (raidz(2), 4),
        10 => (raidz(3), 5),
        _ => (raidz(1), 4),
    };
    let reuse = rng.below(3);
    Layout {
        ashift: [9, 12][rng.below(2) as usize],
        log_spacemap: rng.below(4) != 0,
        slog: rng.below(6) == 0,
        size: [64, 96][rng.below(2) as usize] * MIB,
        recordsize: [4096, 16 << 10, 128 << 10, 128 << 10][rng.below(4) as usize],
        eager: reuse == 0,
        projects: SeededRng::new(seed ^ 0x0b5e).below(2) == 0,
        early: SeededRng::new(seed ^ 0xea41).below(2) == 0,
        bench: SeededRng::new(seed ^ 0xbe9c).below(2) as usize,
        splinters: (rng.below(6) == 0).then(|| [24_576, 65_536][rng.below(2) as usize]),
        grow: grow(seed, kind),
        ..Layout::new(kind, disks)
    }
}

/// By how many disks or groups a pool may grow: of most seeds by none, so that they are the ones they were before.
fn grow(seed: u64, kind: GroupKind) -> usize {
    let rng = SeededRng::new(seed ^ 0x96c1);
    match (kind, rng.below(3)) {
        (GroupKind::Raidz { .. }, 0..=1) | (_, 0) => 1 + rng.below(2) as usize,
        _ => 0,
    }
}

/// All snapshots: file system, name.
fn snapshots(w: &World) -> Vec<(String, String)> {
    let names = w.oracle.now().snaps.keys();
    names
        .filter_map(|s| s.split_once('@'))
        .map(|(a, b)| (a.to_string(), b.to_string()))
        .collect()
}

/// Names in the file system of an operation.
struct Here<'a> {
    draw: &'a Generator,
    all: &'a [(String, What, u64)],
}

impl Here<'_> {
    /// One that is there, with its size (bytes).
    fn some(&self, want: &dyn Fn(What) -> bool) -> Option<(String, u64)> {
        let list: Vec<_> = self.all.iter().filter(|(_, what, _)| want(*what)).collect();
        let chosen = self.draw.pick(&list);
        chosen.map(|(p, _, size)| (p.clone(), *size))
    }

    fn file(&self) -> Option<(String, u64)> {
        self.some(&|k| k == What::File)
    }

    /// A path for something new, which may be there.
    fn fresh(&self) -> String {
        let below = |n| self.draw.rng.below(n);
        let dir = match self.some(&|k| k == What::Dir) {
            Some((d, _)) if below(2) == 0 && d.matches('/').count() < 3 => d + "/",
            _ => String::new(),
        };
        format!("{dir}n{}", below(self.draw.names))
    }
}

impl Generator {
    pub fn new(seed: u64, layout: &Layout) -> Generator {
        let rng = SeededRng::new(seed ^ 0x57a9);
        let taste = |rng: &SeededRng, (k, w): &(&'static str, u64)| {
            (*k, w * [0, 1, 1, 1, 4][rng.below(5) as usize])
        };
        let mut weights: Vec<_> = KINDS.iter().map(|k| taste(&rng, k)).collect();
        if layout.projects {
            let rng = SeededRng::new(seed ^ 0x0b5f);
            weights.extend(OWNERS.iter().map(|k| taste(&rng, k)));
        }
        let descent = SeededRng::new(seed ^ 0x71e5);
        if layout.version == 5000 && descent.below(2) == 0 {
            weights.extend(LINEAGE.iter().map(|k| taste(&descent, k)));
            if descent.below(2) == 0 {
                weights.extend(SPANS.iter().map(|k| taste(&descent, k)));
            }
        }
        let ages = SeededRng::new(seed ^ 0x01d5);
        if layout.version == 5000 && !layout.projects && ages.below(3) == 0 {
            weights.extend(VERSIONS.iter().map(|k| taste(&ages, k)));
        }
        let copies = SeededRng::new(seed ^ 0x5ec7);
        if layout.version == 5000 && copies.below(2) == 0 {
            weights.extend(REPLICAS.iter().map(|k| taste(&copies, k)));
            if copies.below(2) == 0 {
                weights.extend(SEALED.iter().map(|k| taste(&copies, k)));
            }
            let kept = SeededRng::new(seed ^ 0x3e97);
            if kept.below(3) == 0 {
                weights.extend(KEPT.iter().map(|k| taste(&kept, k)));
            }
        }
        let shared = SeededRng::new(seed ^ 0xdd7a);
        if layout.version == 5000 && shared.below(3) == 0 {
            weights.extend(SHARED.iter().map(|k| taste(&shared, k)));
        }
        let kept = SeededRng::new(seed ^ 0xc4e7);
        if layout.version == 5000 && kept.below(2) == 0 {
            weights.extend(CHECKPOINTS.iter().map(|k| taste(&kept, k)));
        }
        if seed % 3 == 0 && layout.version >= dsl::deleg::VERSION {
            let rng = SeededRng::new(seed ^ 0x7169);
            weights.extend(RIGHTS.iter().map(|k| taste(&rng, k)));
        }
        let spare = layout.redundancy() as u64;
        let epoch = [8, 20, 40, 80][rng.below(4) as usize];
        Generator {
            weights,
            epoch,
            since: 0,
            sick: match (rng.below(spare + 1), seed % 4, layout.spares()) {
                // Most dRAIDs have something to do for their spares.
                (0, 1.., 1..) => 1,
                (n, _, _) => n as usize,
            },
            spares: layout.spares(),
            bench: (layout.grows_at() - layout.bench, layout.grows_at()),
            faults: [0, 10, 30][rng.below(3) as usize],
            max_file: [20_000, 200_000, 700_000][rng.below(3) as usize],
            names: [4, 12, 40][rng.below(3) as usize],
            snaps: Cell::new(0),
            dice: SeededRng::new(seed ^ 0xde71),
            logs: layout
                .slog
                .then(|| (layout.disks, SeededRng::new(seed ^ 0x1095))),
            wears: SeededRng::new(seed ^ 0x7219),
            shapes: (layout.grow > 0).then(|| (*layout, SeededRng::new(seed ^ 0x54a9))),
            splits: match (layout.kind, SeededRng::new(seed ^ 0x5b17)) {
                (GroupKind::Mirror, dice) if dice.below(2) == 0 => Some(dice),
                _ => None,
            },
            refusals: (seed % 2 == 0).then(|| SeededRng::new(seed ^ 0x5e4d)),
            rng,
        }
    }

    fn id(&self) -> u64 {
        self.rng.below(owners::IDS + 1)
    }

    fn pick<'a, T>(&self, list: &'a [T]) -> Option<&'a T> {
        list.get(self.rng.below(list.len() as u64) as usize)
    }

    /// The next line for the world as it is.
    pub fn next(&mut self, w: &World) -> Op {
        self.since += 1;
        if self.rng.below(self.epoch) == 0 && self.since > 3 {
            return self.cut();
        }
        if self.sick > 0 && self.rng.below(1000) < self.faults {
            return self.fault();
        }
        // Of dice of its own, so that what comes between is what it was before.
        if self.spares > 0 {
            if self.devices() > 0 && self.dice.below(1000) < DRAID_DEVICES {
                return self.draid_device();
            }
        } else if self.devices() > 0 && self.dice.below(1000) < DEVICES {
            return self.device();
        }
        if let Some((disk, dice)) = &self.logs {
            if dice.below(1000) < LOGS {
                let (disk, change) = (*disk, Change::Log);
                return Op::Device { disk, change };
            }
        }
        if let Some(op) = self.refusal().or_else(|| self.shape()) {
            return op;
        }
        if self.splits.as_ref().is_some_and(|d| d.below(1000) < SPLITS) {
            return Op::Shape(Shape::Split);
        }
        if self.wears.below(1000) < WEARS {
            return Op::Scan(match self.wears.below(8) {
                0..=3 => Scan::Trim,
                4 => Scan::Initialize,
                5..=6 => Scan::SuspendWear,
                _ => Scan::CancelWear,
            });
        }
        loop {
            if let Some(op) = self.try_next(w) {
                return op;
            }
        }
    }

    /// A power cut; mostly near the end.
    pub fn cut(&mut self) -> Op {
        self.since = 0;
        let back = match self.rng.below(3) {
            0 => 0,
            1 => self.rng.below(100),
            _ => self.rng.below(1001),
        };
        Op::Cut {
            back,
            fate: FATES[self.rng.below(5) as usize],
            seed: self.rng.next() >> 32,
        }
    }

    /// Devices that are changed.
    fn devices(&self) -> usize {
        self.sick + self.bench.1 - self.bench.0
    }

    /// One of them.
    fn any_device(&self) -> usize {
        match self.dice.below(self.devices() as u64) as usize {
            n if n < self.sick => n,
            n => n - self.sick + self.bench.0,
        }
    }

    /// All devices refuse, by dice of its own.
    fn refusal(&self) -> Option<Op> {
        let dice = self.refusals.as_ref()?;
        if dice.below(1000) >= REFUSALS {
            return None;
        }
        let what = match dice.below(4) {
            0 => refuse::What::Writes,
            1 => refuse::What::Flushes,
            _ => refuse::What::After(dice.below(80)),
        };
        Some(Op::Refuse(Refuse {
            what,
            attempts: 1 + dice.below(3),
            failmode: match dice.below(3) {
                0 => Failmode::Continue,
                _ => Failmode::Wait,
            },
            ending: match dice.below(3) {
                0 => Ending::Export,
                _ => Ending::Clear,
            },
        }))
    }

    /// A RAID-Z grows, or top-level vdevs come and go.
    fn shape(&self) -> Option<Op> {
        let (l, dice) = self.shapes.as_ref()?;
        if dice.below(1000) >= SHAPES {
            return None;
        }
        let below = |n: usize| dice.below(n as u64) as usize;
        let raidz = matches!(l.kind, GroupKind::Raidz { .. });
        Some(Op::Shape(match (below(10), raidz) {
            (0..=6, true) => Shape::Expand(l.grows_at() + below(l.grow)),
            (0..=2, false) => Shape::Add(below(l.grow + 1)),
            (3..=6, false) => Shape::Remove(below(l.grow + 1)),
            (7, false) => Shape::Cancel,
            _ => Shape::Finish,
        }))
    }

    /// A change of a device that may fail as well, or a scan.
    fn device(&self) -> Op {
        let below = |n| self.dice.below(n);
        let disk = self.any_device();
        let change = match below(16) {
            0..=1 => Change::Offline,
            2 => Change::Detach,
            3 => Change::Attach,
            4 => Change::AttachInOrder,
            5 => Change::Replace(self.any_device()),
            6 => Change::ReplaceInOrder(self.any_device()),
            7..=8 => Change::Online,
            9 if disk >= self.bench.0 => {
                let fault = match below(4) {
                    0 => Fault::Garbage,
                    1 => Fault::Rot(1 + below(100), self.dice.next() >> 32),
                    2 => Fault::Dead,
                    _ => Fault::Over,
                };
                return Op::Fault { disk, fault };
            }
            9..=11 => return Op::Scan(Scan::Finish),
            12..=13 => return Op::Scan(Scan::Scrub),
            _ => {
                let scans = [Scan::Pause, Scan::Stop, Scan::Resilver, Scan::Errors];
                return Op::Scan(scans[below(4) as usize]);
            }
        };
        Op::Device { disk, change }
    }

    /// The same on a dRAID: spares come and go as well.
    fn draid_device(&self) -> Op {
        let below = |n| self.dice.below(n);
        let disk = self.any_device();
        let change = match below(24) {
            0..=2 => Change::Offline,
            3..=5 => Change::Online,
            6 => Change::Detach,
            7 => Change::DetachSpare,
            8 => Change::Spare(below(self.spares)),
            9..=11 => Change::SpareInOrder(below(self.spares)),
            12 => Change::Replace(self.any_device()),
            13..=14 => Change::ReplaceInOrder(self.any_device()),
            15..=17 => return Op::Look,
            18..=20 => return Op::Scan(Scan::Finish),
            21 => return Op::Scan(Scan::Scrub),
            22 if disk >= self.bench.0 => {
                let fault = match below(3) {
                    0 => Fault::Rot(1 + below(100), self.dice.next() >> 32),
                    1 => Fault::Dead,
                    _ => Fault::Over,
                };
                return Op::Fault { disk, fault };
            }
            _ => {
                let scans = [Scan::Pause, Scan::Stop, Scan::Resilver, Scan::Errors];
                return Op::Scan(scans[below(4) as usize]);
            }
        };
        Op::Device { disk, change }
    }

    fn fault(&self) -> Op {
        let n = self.rng.below(20);
        let fault = match self.rng.below(10) {
            // What is copied without a look at checksums takes what is wrong along, to other disks.
            0..=2 | 5..=6 if self.shapes.is_some() => Fault::Over,
            0 => Fault::Garbage,
            1..=2 => Fault::Rot(1 + n * 10, self.rng.next() >> 32),
            3 => Fault::ReadErrors(1 + n),
            4 => Fault::WriteErrors(1 + n),
            5 => Fault::Phantom(1 + n),
            6 => Fault::Misdirect((self.rng.below(1 << 24) as i64 - (1 << 23)) / 512 * 512),
            7 => Fault::Dead,
            8 => Fault::Slow(n),
            _ => Fault::Over,
        };
        Op::Fault {
            disk: self.rng.below(self.sick as u64) as usize,
            fault,
        }
    }

    fn fill(&self, most: u64) -> Fill {
        let len = match self.rng.below(4) {
            0 => self.rng.below(600),
            1 => self.rng.below(9000),
            2 => self.rng.below(50_000),
            _ => self.rng.below(150_000),
        };
        Fill {
            len: 1 + len.min(most.saturating_sub(1)),
            seed: self.rng.next() >> 40,
        }
    }

    /// A permission is given or taken, or used with or without it.
    fn delegation(&self, kind: &str, fs: String, snaps: usize) -> Option<Op> {
        let uid = 1 + self.rng.below(rights::USERS) as u32;
        if kind != "snapshotas" {
            let on = kind == "allow";
            return Some(Op::Allow { fs, uid, on });
        }
        if snaps > 5 {
            return None;
        }
        self.snaps.set(self.snaps.get() + 1);
        let name = format!("s{}", self.snaps.get());
        Some(Op::SnapshotAs { fs, name, uid })
    }

    fn try_next(&mut self, w: &World) -> Option<Op> {
        let total: u64 = self.weights.iter().map(|(_, n)| n).sum();
        if total == 0 {
            return Some(self.cut());
        }
        let mut n = self.rng.below(total);
        let kind = self.weights.iter().find_map(|(k, w)| match n < *w {
            true => Some(*k),
            false => {
                n -= w;
                None
            }
        })?;
        let names = w.names();
        let sets: Vec<&String> = names.keys().collect();
        let fs = (*self.pick(&sets)?).clone();
        let here = Here {
            draw: self,
            all: &names[&fs],
        };
        self.in_files(kind, fs, &here, w)
    }

    /// Operations on files.
    fn in_files(&self, kind: &str, fs: String, here: &Here<'_>, w: &World) -> Option<Op> {
        Some(match kind {
            "write" | "osync" => {
                let (path, size) = here.file()?;
                let at = match self.rng.below(3) {
                    0 => size,
                    1 => self.rng.below(size + 1),
                    _ => self.rng.below(self.max_file),
                };
                let room = self.max_file.checked_sub(at).filter(|n| *n > 0)?;
                Op::Write {
                    fs,
                    path,
                    at,
                    fill: self.fill(room),
                    sync: kind == "osync",
                }
            }
            // The same bytes at the same place as in other files.
            "twin" => {
                let (path, _) = here.file()?;
                Op::Write {
                    fs,
                    path,
                    at: 0,
                    fill: Fill {
                        len: (40_000 * (1 + self.rng.below(3))).min(self.max_file),
                        seed: self.rng.below(3),
                    },
                    sync: false,
                }
            }
            "create" => Op::Create {
                fs,
                path: here.fresh(),
                mode: 0o600,
            },
            "mkdir" => Op::Mkdir {
                fs,
                path: here.fresh(),
            },
            "symlink" => Op::Symlink {
                fs,
                path: here.fresh(),
                len: 1 + self.rng.below(200),
            },
            "link" => Op::Link {
                fs,
                from: here.file()?.0,
                to: here.fresh(),
            },
            "rename" => Op::Rename {
                fs,
                from: here.some(&|_| true)?.0,
                to: here.fresh(),
            },
            "unlink" | "unlinkopen" => Op::Unlink {
                fs,
                path: here.some(&|k| k != What::Dir)?.0,
                hold: kind == "unlinkopen",
            },
            "rmdir" => Op::Rmdir {
                fs,
                path: here.some(&|k| k == What::Dir)?.0,
            },
            "truncate" => {
                let (path, size) = here.file()?;
                let size = match self.rng.below(3) {
                    0 => 0,
                    1 => self.rng.below(size + 1),
                    _ => self.rng.below(self.max_file),
                };
                Op::Truncate { fs, path, size }
            }
            "punch" => {
                let (path, size) = here.file()?;
                Op::Punch {
                    fs,
                    path,
                    at: self.rng.below(size + 1),
                    len: 1 + self.rng.below(100_000),
                }
            }
            "chmod" => Op::Chmod {
                fs,
                path: here.some(&|k| k != What::Link)?.0,
                mode: self.rng.below(0o1000) as u32,
            },
            "setxattr" => Op::SetXattr {
                fs,
                path: here.some(&|k| k != What::Link)?.0,
                name: format!("user.x{}", self.rng.below(2)),
                fill: self.fill(4000),
            },
            "rmxattr" => Op::RemoveXattr {
                fs,
                path: here.some(&|k| k != What::Link)?.0,
                name: format!("user.x{}", self.rng.below(2)),
            },
            "fsync" => Op::Fsync {
                fs,
                path: here.some(&|k| k != What::Link)?.0,
            },
            "fsyncall" => Op::FsyncAll { fs },
            "checkpoint" => Op::Checkpoint {
                fs,
                path: here.file()?.0,
            },
            "read" => Op::Read {
                fs,
                path: here.file()?.0,
            },
            kind => return self.of_owners(kind, fs, here, w),
        })
    }

    /// Operations on owners and what they may have.
    fn of_owners(&self, kind: &str, fs: String, here: &Here<'_>, w: &World) -> Option<Op> {
        Some(match kind {
            "createas" => Op::CreateAs {
                fs,
                path: here.fresh(),
                uid: self.id() as u32,
                gid: self.id() as u32,
            },
            "chown" => Op::Chown {
                fs,
                path: here.some(&|k| k != What::Link)?.0,
                uid: self.id() as u32,
                gid: self.id() as u32,
            },
            "project" => Op::Project {
                fs,
                path: here.some(&|k| k != What::Link)?.0,
                id: self.id() as u32,
            },
            "limit" => {
                let limit = self.rng.below(QUOTA_NAMES.len() as u64) as usize;
                let value = match limit < 3 {
                    true => [0, 20_000, 300_000, 4 << 20],
                    false => [0, 1, 4, 12],
                };
                Op::Limit {
                    fs,
                    name: QUOTA_NAMES[limit].trim_end_matches('@').into(),
                    // What belongs to nobody in particular is seldom limited.
                    id: self.id().max(self.rng.below(2)),
                    value: *self.pick(&value)?,
                }
            }
            kind => return self.of_pool(kind, fs, w),
        })
    }

    /// Operations on file systems and snapshots.
    fn of_pool(&self, kind: &str, fs: String, w: &World) -> Option<Op> {
        let snaps = snapshots(w);
        Some(match kind {
            "release" => Op::Release,
            "sync" => Op::Sync,
            "snapshotas" | "allow" | "unallow" => return self.delegation(kind, fs, snaps.len()),
            "snapshot" => {
                if snaps.len() > 5 {
                    return None;
                }
                self.snaps.set(self.snaps.get() + 1);
                Op::Snapshot {
                    fs,
                    name: format!("s{}", self.snaps.get()),
                }
            }
            "destroysnap" => {
                let (fs, name) = self.pick(&snaps)?.clone();
                Op::DestroySnapshot { fs, name }
            }
            "diff" => {
                let (fs, snap) = self.pick(&snaps)?.clone();
                Op::Diff { fs, snap }
            }
            "send" => Op::Send {
                fs: self.pick(&snaps)?.0.clone(),
            },
            "receive" | "receiveraw" | "receivesealed" | "receivekept" => {
                let (fs, snap) = self.pick(&snaps)?.clone();
                let share = match self.rng.below(3) {
                    0 => self.rng.below(1000),
                    _ => 1000,
                };
                Op::Receive {
                    fs,
                    snap,
                    to: format!("r{}", self.rng.below(2)),
                    share,
                    how: match kind {
                        "receiveraw" => Transfer::Raw,
                        "receivesealed" => Transfer::Sealed,
                        "receivekept" => Transfer::Kept,
                        _ => Transfer::Plain,
                    },
                }
            }
            "heal" => {
                let (fs, snap) = self.pick(&snaps)?.clone();
                let seed = self.rng.next() >> 40;
                Op::Heal { fs, snap, seed }
            }
            "clone" => {
                let (fs, snap) = self.pick(&snaps)?.clone();
                let to = format!("f{}", self.rng.below(3));
                match self.rng.below(3) {
                    0 => Op::CloneSnap { fs, snap, to },
                    _ => Op::Clone { fs, snap, to },
                }
            }
            "rollback" => Op::Rollback { fs },
            "createfs" => Op::CreateFs {
                fs: format!("f{}", self.rng.below(3)),
            },
            "destroyfs" => Op::DestroyFs { fs },
            "set" => {
                let (prop, values) = self.pick(&PROPS)?;
                Op::Set {
                    fs,
                    prop: prop.to_string(),
                    value: *self.pick(values)?,
                }
            }
            "remount" => Op::Remount { fs },
            "reimport" => Op::Reimport,
            // On, or off.
            "dedup" => Op::Set {
                fs,
                prop: "dedup".into(),
                value: 1 + self.rng.below(2),
            },
            "prune" => Op::Prune {
                percent: *self.pick(&[10, 50, 100])?,
            },
            "tablequota" => Op::TableQuota {
                bytes: *self.pick(&[0, 4096, 64 << 10])?,
            },
            "discard" => Op::Discard,
            "rewind" => Op::Rewind,
            "reguid" => Op::Reguid,
            verb => Op::Lineage(self.lineage(verb, fs, &snaps, w)?),
        })
    }

    fn lineage(
        &self,
        verb: &str,
        head: String,
        snaps: &[(String, String)],
        w: &World,
    ) -> Option<Lineage> {
        let now = w.oracle.now();
        let name = |kind: &str| format!("{kind}{}", self.rng.below(3));
        let (fs, second) = match verb {
            "promote" => {
                let clones: Vec<&String> = now.origins.keys().collect();
                ((*self.pick(&clones)?).clone(), String::new())
            }
            "destroymark" => {
                let marks: Vec<&String> = now.marks.keys().collect();
                let (fs, mark) = self.pick(&marks)?.split_once('#')?;
                (fs.to_string(), mark.to_string())
            }
            "renamefs" => (head, name("f")),
            "raise" => (head, "5".into()),
            "createold" => (name("f"), (1 + self.rng.below(4)).to_string()),
            "createsealed" => (name("f"), self.rng.below(4).to_string()),
            "snapshotall" => {
                if snaps.len() > 3 {
                    return None;
                }
                self.snaps.set(self.snaps.get() + 1);
                (String::new(), format!("s{}", self.snaps.get()))
            }
            "renameall" => (String::new(), self.pick(snaps)?.1.clone()),
            _ => self.pick(snaps)?.clone(),
        };
        let third = match verb {
            "bookmark" => name("b"),
            "renamesnap" | "renameall" => name("r"),
            "destroyrange" => {
                let own: Vec<_> = snaps.iter().filter(|(of, _)| *of == fs).collect();
                self.pick(&own)?.1.clone()
            }
            _ => name("t"),
        };
        let mut words = [second, third].into_iter();
        let mut word = || words.next().ok_or_else(String::new);
        Lineage::parse(verb, fs, &mut word).ok()?
    }
}
