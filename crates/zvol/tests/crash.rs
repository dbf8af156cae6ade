//! The plug is pulled while a volume is written: what is left must be what the volume was after some number of changes, and at least all
//! those that were acknowledged as stable.
//!
//! `ZFS_FUSE_CRASH_ROUNDS=n` runs n seeds for each layout.

use admin::datasets::volumes::{create, Shape};
use base::mutation::{mutate, Mutation};
use base::sync::MutexExt;
use base::Txg;
use dsl::CreateArgs;
use env_sim::{Journal, MemDisk, SeededRng};
use pool::Pool;
use sim::rig::{self, Cutter, Layout, FATES};
use std::sync::{Arc, Mutex};
use testkit::{or_skip, OpenZfs, TempDir};
use vdev::GroupKind;
use zvol::Zvol;

/// Bytes that the model tells apart, and how many of them the volume has.
const PIECE: u64 = 4096;
const PIECES: usize = 96;
const BLOCK: u64 = 16 << 10;

/// What each piece holds: a number, repeated; 0: zeros.
type State = [u64; PIECES];

/// The mistakes are the engine's, and every thread of the tests sees them.
static ONE: Mutex<()> = Mutex::new(());

struct Model {
    /// The states the volume has been in, and the event behind which each began.
    states: Vec<(State, usize)>,
    /// From this event on, at least this state.
    stable: Vec<(usize, usize)>,
    journal: Arc<Journal>,
}

impl Model {
    fn now(&self) -> State {
        self.states.last().unwrap().0
    }

    /// The pieces change one after the other, in one call.
    fn change(&mut self, list: &[(usize, u64)]) {
        let at = self.journal.len();
        for (piece, n) in list {
            let mut s = self.now();
            s[*piece] = *n;
            self.states.push((s, at));
        }
    }

    fn is_stable(&mut self) {
        self.stable
            .push((self.journal.len(), self.states.len() - 1));
    }

    fn judge(&self, found: &State, cut: usize) -> Result<(), String> {
        let least = self.stable.iter().filter(|(at, _)| *at <= cut);
        let least = least.map(|(_, s)| *s).max().unwrap_or(0);
        // What began before the cut may be there.
        let most = self.states.iter().rposition(|(_, at)| *at <= cut);
        let most = most.unwrap_or(0);
        match (least..=most).any(|k| self.states[k].0 == *found) {
            true => Ok(()),
            false => Err(format!(
                "none of the states {least} to {most}: {found:?}, least {:?}",
                self.states[least].0
            )),
        }
    }
}

fn new_volume(pool: &Arc<Pool>) {
    let made = pool.task(|pool, tx| {
        let root = pool.dsl().dir("tank")?;
        let args = CreateArgs {
            case_insensitive: false,
            internal: false,
        };
        let ds = pool.dsl().create_fs(tx, &root, "v", args)?;
        let os = pool.new_objset(tx, &ds, disk::os_type::ZVOL)?;
        let shape = Shape {
            size: PIECES as u64 * PIECE,
            block: BLOCK,
        };
        create(&os, tx, shape)
    });
    made.unwrap();
}

fn open(pool: &Arc<Pool>) -> Result<Arc<Zvol>, String> {
    let failed = pool.replay_volumes();
    if let Some((name, e)) = failed.first() {
        return Err(format!("{name}: {e}"));
    }
    let ds = pool.dsl().dataset("tank/v").map_err(|e| e.to_string())?;
    Zvol::open(pool, &ds).map_err(|e| e.to_string())
}

fn read(v: &Zvol) -> Result<State, String> {
    let mut bytes = vec![0; PIECES * PIECE as usize];
    v.read(0, &mut bytes).map_err(|e| e.to_string())?;
    let mut state = [0; PIECES];
    for (n, piece) in bytes.chunks(PIECE as usize).enumerate() {
        let words = piece
            .chunks(8)
            .map(|w| u64::from_le_bytes(w.try_into().unwrap()));
        let words: Vec<u64> = words.collect();
        if words.iter().any(|w| *w != words[0]) {
            return Err(format!("piece {n} is torn"));
        }
        state[n] = words[0];
    }
    Ok(state)
}

/// One life of a volume, and its judgement after power cuts.
fn life(layout: &Layout, seed: u64, images: usize) -> Result<(), String> {
    let rng = SeededRng::new(seed);
    let (disks, pool) = rig::create(layout, seed);
    let config = pool.full_config(0, Txg::NONE, false);
    new_volume(&pool);
    let mut v = open(&pool)?;
    let (journal, base) = rig::start_journal(&disks);
    let mut m = Model {
        states: vec![([0; PIECES], 0)],
        stable: vec![(0, 0)],
        journal: journal.clone(),
    };
    let mut snapshot: Option<(String, State)> = None;
    for n in 1..=250u64 {
        let first = rng.below(PIECES as u64) as usize;
        let count = 1 + rng.below(if rng.below(8) == 0 { 40 } else { 6 }) as usize;
        let count = count.min(PIECES - first);
        let (at, len) = (first as u64 * PIECE, count as u64 * PIECE);
        let fua = rng.below(6) == 0;
        let pieces = first..first + count;
        match rng.below(20) {
            0..=10 => {
                let word = (seed << 32 | n).to_le_bytes();
                m.change(&pieces.map(|p| (p, seed << 32 | n)).collect::<Vec<_>>());
                v.write(at, &word.repeat(len as usize / 8), fua).unwrap();
            }
            11..=12 => {
                m.change(&pieces.map(|p| (p, 0)).collect::<Vec<_>>());
                v.zero(at, len, fua).unwrap();
            }
            13..=14 => {
                // Whole blocks alone.
                let of_block = (BLOCK / PIECE) as usize;
                let from = pieces.start.next_multiple_of(of_block);
                let to = pieces.end / of_block * of_block;
                m.change(&(from..to).map(|p| (p, 0)).collect::<Vec<_>>());
                v.trim(at, len, fua).unwrap();
            }
            15..=16 => {
                v.flush().unwrap();
                m.is_stable();
                continue;
            }
            17 => {
                pool.sync().unwrap();
                m.is_stable();
                continue;
            }
            18 if snapshot.is_none() || rng.below(2) == 0 => {
                let name = format!("s{n}");
                let head = v.dataset().clone();
                pool.snapshot(vec![(head, name.clone())], |_, _| Ok(()))
                    .unwrap();
                m.is_stable();
                snapshot = Some((name, m.now()));
                continue;
            }
            18 => {
                // Back, under whoever uses it.
                let Some((_, state)) = &snapshot else {
                    continue;
                };
                let (state, suspended) = (*state, v.suspend().unwrap());
                m.is_stable();
                m.states.push((state, m.journal.len()));
                let head = v.dataset().clone();
                pool.task(move |pool, tx| pool.rollback(tx, &head)).unwrap();
                suspended.resume().unwrap();
                m.is_stable();
                assert_eq!(read(&v)?, m.now());
                continue;
            }
            _ => {
                v.close().unwrap();
                m.is_stable();
                v = open(&pool)?;
                assert_eq!(read(&v)?, m.now());
                continue;
            }
        }
        if fua {
            m.is_stable();
        }
    }
    assert_eq!(read(&v)?, m.now());
    v.close().unwrap();
    m.is_stable();
    rig::check(&pool)?;
    pool.close().unwrap();
    drop((v, pool));
    let events = journal.take();
    let total = events.len();
    let mut moments: Vec<usize> = (0..images)
        .map(|_| rng.below(total as u64 + 1) as usize)
        .collect();
    // The very moment of a promise.
    moments.extend((0..images).map(|_| m.stable[rng.below(m.stable.len() as u64) as usize].0));
    moments.sort_unstable();
    let mut cutter = Cutter::new(&base, events);
    let foreign = rng.below(moments.len() as u64) as usize;
    for (i, at) in moments.iter().enumerate() {
        cutter.forward(*at);
        let fate = FATES[rng.below(5) as usize];
        let image = cutter.image(fate, &rng);
        judge(&m, &image, &config, (*at, seed), i == foreign)
            .map_err(|e| format!("seed {seed}, event {at} of {total} ({fate:?}): {e}"))?;
    }
    Ok(())
}

fn judge(
    m: &Model,
    image: &[Arc<MemDisk>],
    config: &disk::NvList,
    (at, seed): (usize, u64),
    foreign: bool,
) -> Result<(), String> {
    if foreign {
        if let Some(z) = or_skip(OpenZfs::get()) {
            let dir = TempDir::new("zvol").map_err(|e| e.to_string())?;
            rig::dump(image, dir.path()).map_err(|e| e.to_string())?;
            z.check(dir.path(), "tank").map_err(|e| e.to_string())?;
        }
    }
    let pool = rig::open(image, config, seed).map_err(|e| e.to_string())?;
    let v = open(&pool)?;
    m.judge(&read(&v)?, at)?;
    // It must be of use.
    v.write(0, &[7; 8192], true).map_err(|e| e.to_string())?;
    v.close().map_err(|e| e.to_string())?;
    rig::check(&pool)?;
    pool.close().map_err(|e| e.to_string())
}

fn layouts() -> [Layout; 3] {
    let small = |l: Layout| Layout {
        size: 64 * rig::MIB,
        eager: true,
        ..l
    };
    [
        small(Layout::new(GroupKind::Single, 1)),
        small(Layout::new(GroupKind::Mirror, 2)),
        small(Layout {
            slog: true,
            ..Layout::new(GroupKind::Raidz { nparity: 1 }, 3)
        }),
    ]
}

#[test]
fn power_cuts() {
    let _one = ONE.acquire();
    let rounds = std::env::var("ZFS_FUSE_CRASH_ROUNDS").ok();
    let rounds: u64 = rounds.and_then(|r| r.parse().ok()).unwrap_or(4);
    for l in layouts() {
        for seed in 1..=rounds {
            if let Err(e) = life(&l, seed, 30) {
                panic!("{:?}: {e}", l.kind);
            }
        }
    }
}

/// The rig is worth something only if it finds mistakes.
#[test]
fn mistakes_are_found() {
    let _one = ONE.acquire();
    for which in [Mutation::ForcedWriteUnlogged, Mutation::DiscardReplayedLate] {
        mutate(Some(which));
        let found = layouts()
            .iter()
            .flat_map(|l| (1..=6).map(move |seed| (l, seed)))
            .any(|(l, seed)| life(l, seed, 30).is_err());
        mutate(None);
        assert!(found, "{which:?} was not found");
    }
}
