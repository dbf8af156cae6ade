//! Traces: a world and what is done to it, as text; running, recording and cutting them down.
//!
//! ```text
//! # what the trace is about
//! seed 17
//! layout mirror 2 ashift 9 size 100663296 recordsize 131072
//! create . a 644
//! write . a 0 5000 3
//! cut 0 Torn 7
//! ```

use crate::foreign::Foreign;
use crate::gen::{self, Generator};
use crate::op::Op;
use crate::panics::said;
use crate::rig::Layout;
use crate::world::{Counts, World};
use std::fmt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::str::FromStr;
use std::sync::Arc;
use vdev::GroupKind;

/// A world and what is done to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    pub seed: u64,
    pub layout: Layout,
    pub ops: Vec<Op>,
}

/// What is looked at besides what the trace asks for. It leaves no trace.
#[derive(Clone, Debug, Default)]
pub struct Extra {
    /// Further images at each cut.
    pub images: usize,
    /// Judges some of the images and the end.
    pub foreign: Option<Arc<Foreign>>,
}

impl Extra {
    /// So many images at each cut.
    pub fn images(images: usize) -> Extra {
        Extra {
            images,
            foreign: None,
        }
    }
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Ran {
    pub trace: Trace,
    pub hash: u64,
    pub counts: Counts,
    /// What was wrong, with the last line of the trace.
    pub finding: Option<String>,
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            GroupKind::Single => "single".to_string(),
            GroupKind::Mirror => "mirror".to_string(),
            GroupKind::Raidz { nparity } => format!("raidz{nparity}"),
            GroupKind::Draid {
                nparity,
                ndata,
                nspares,
            } => format!("draid{nparity}:{ndata}d:{nspares}s"),
        };
        write!(
            f,
            "{kind} {} ashift {} size {} recordsize {}",
            self.disks, self.ashift, self.size, self.recordsize
        )?;
        if self.version != 5000 {
            write!(f, " version {}", self.version)?;
        }
        if !self.log_spacemap {
            write!(f, " nologmaps 1")?;
        }
        if self.slog {
            write!(f, " slog 1")?;
        }
        if self.bench > 0 {
            write!(f, " bench {}", self.bench)?;
        }
        if self.grow > 0 {
            write!(f, " grow {}", self.grow)?;
        }
        if self.eager {
            write!(f, " eager 1")?;
        }
        if self.projects {
            write!(f, " projects 1")?;
        }
        if self.early {
            write!(f, " early 1")?;
        }
        if self.edges {
            write!(f, " edges 1")?;
        }
        if let Some(n) = self.splinters {
            write!(f, " splinters {n}")?;
        }
        Ok(())
    }
}

/// A dRAID as layouts write it, without the number of devices: `draid2:3d:1s`.
fn draid(word: &str) -> Option<GroupKind> {
    let mut parts = word.strip_prefix("draid")?.split(':');
    let nparity = parts.next()?.parse().ok()?;
    let mut number = |unit: char| parts.next()?.strip_suffix(unit)?.parse().ok();
    let (ndata, nspares) = (number('d')?, number('s')?);
    parts.next().is_none().then_some(GroupKind::Draid {
        nparity,
        ndata,
        nspares,
    })
}

impl FromStr for Layout {
    type Err = String;
    fn from_str(s: &str) -> Result<Layout, String> {
        let words: Vec<&str> = s.split_ascii_whitespace().collect();
        let bad = |w: &str| format!("'{w}' in the layout '{s}'");
        let (Some(kind), Some(disks)) = (words.first(), words.get(1)) else {
            return Err(bad(s));
        };
        let kind = match *kind {
            "single" => GroupKind::Single,
            "mirror" => GroupKind::Mirror,
            "raidz1" => GroupKind::Raidz { nparity: 1 },
            "raidz2" => GroupKind::Raidz { nparity: 2 },
            "raidz3" => GroupKind::Raidz { nparity: 3 },
            w => draid(w).ok_or_else(|| bad(w))?,
        };
        let mut l = Layout::new(kind, disks.parse().map_err(|_| bad(disks))?);
        for pair in words[2..].chunks(2) {
            let &[key, value] = pair else {
                return Err(bad(pair[0]));
            };
            let n: u64 = value.parse().map_err(|_| bad(value))?;
            match key {
                "ashift" => l.ashift = n as u32,
                "size" => l.size = n,
                "recordsize" => l.recordsize = n as usize,
                "version" => l.version = n,
                "nologmaps" => l.log_spacemap = n == 0,
                "slog" => l.slog = n != 0,
                "bench" => l.bench = n as usize,
                "grow" => l.grow = n as usize,
                "eager" => l.eager = n != 0,
                "projects" => l.projects = n != 0,
                "early" => l.early = n != 0,
                "edges" => l.edges = n != 0,
                "splinters" => l.splinters = Some(n),
                w => return Err(bad(w)),
            }
        }
        Ok(l)
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}\nlayout {}", self.seed, self.layout)?;
        self.ops.iter().try_for_each(|op| writeln!(f, "{op}"))
    }
}

impl FromStr for Trace {
    type Err = String;
    fn from_str(s: &str) -> Result<Trace, String> {
        let mut lines = s
            .lines()
            .map(str::trim)
            .filter(|l| !l.is_empty() && !l.starts_with('#'));
        let mut need = |word: &str| {
            let line = lines.next().and_then(|l| l.strip_prefix(word));
            line.ok_or_else(|| {
                format!("a trace begins with lines 'seed' and 'layout'; no '{word}'")
            })
        };
        let seed = need("seed")?;
        let seed = seed.trim().parse().map_err(|_| format!("seed '{seed}'"))?;
        let layout = need("layout")?.parse()?;
        let ops = lines.map(Op::from_str).collect::<Result<_, _>>()?;
        Ok(Trace { seed, layout, ops })
    }
}

/// Begins a world and does to it what `next` says, until that says nothing.
fn drive(
    seed: u64,
    layout: Layout,
    extra: &Extra,
    next: &mut dyn FnMut(&World) -> Option<Op>,
) -> Ran {
    let mut ran = Ran {
        trace: Trace {
            seed,
            layout,
            ops: Vec::new(),
        },
        hash: 0,
        counts: Counts::default(),
        finding: None,
    };
    let mut world = match World::new(layout, seed) {
        Ok(w) => w,
        Err(e) => {
            ran.finding = Some(format!("creating the pool: {e}"));
            return ran;
        }
    };
    world.extra_images = extra.images;
    world.foreign = extra.foreign.clone();
    while let Some(op) = next(&world) {
        ran.trace.ops.push(op.clone());
        let r = catch_unwind(AssertUnwindSafe(|| world.apply(&op)));
        if let Err(e) = r.unwrap_or_else(|p| Err(format!("{op}: {}", said(p)))) {
            ran.finding = Some(e);
            break;
        }
    }
    drop(world.take_events());
    ran.hash = world.hash.0;
    ran.counts = world.counts;
    if extra.foreign.is_some() && ran.finding.is_none() {
        let r = catch_unwind(AssertUnwindSafe(|| world.export()));
        ran.finding = r.unwrap_or_else(|p| Err(said(p))).err();
    }
    let _ = catch_unwind(AssertUnwindSafe(|| world.forget()));
    ran
}

/// `steps` operations drawn from a seed, and a power cut at the end.
pub fn run_seed(seed: u64, steps: usize, extra: &Extra) -> Ran {
    run_on(gen::layout(seed), seed, steps, extra)
}

/// The same on some layout.
pub fn run_on(layout: Layout, seed: u64, steps: usize, extra: &Extra) -> Ran {
    let mut g = Generator::new(seed, &layout);
    let mut n = 0;
    drive(seed, layout, extra, &mut |w| {
        n += 1;
        match n {
            n if n <= steps => Some(g.next(w)),
            n if n == steps + 1 => Some(g.cut()),
            _ => None,
        }
    })
}

/// Runs a trace.
pub fn replay(t: &Trace, extra: &Extra) -> Ran {
    let mut ops = t.ops.iter();
    drive(t.seed, t.layout, extra, &mut |_| ops.next().cloned())
}

/// What a finding is about, without what differs from run to run.
pub fn class(finding: &str) -> String {
    let mut words = finding.split([':', ',', '(']).map(str::trim);
    let known = [
        "zdb of OpenZFS",
        "panic",
        "no state between",
        "instead of",
        "space in use twice",
        "leak",
        "not the same",
        "is accounted",
        "limit of",
        "going back",
        "is believed",
        "without devices",
        "without the sources",
        "device errors counted",
        "Got error",
        "in use",
    ];
    for k in known {
        if finding.contains(k) {
            return k.into();
        }
    }
    words.next_back().unwrap_or_default().to_string()
}

/// The smallest trace found that fails in the same way, within so many runs.
pub fn shrink(
    t: &Trace,
    finding: &str,
    extra: &Extra,
    mut runs: usize,
    say: &dyn Fn(&str),
) -> Trace {
    let class = class(finding);
    let mut best = t.clone();
    let fails = |t: &Trace| {
        replay(t, extra)
            .finding
            .is_some_and(|f| self::class(&f) == class)
    };
    let mut size = best.ops.len().div_ceil(2).max(1);
    loop {
        let mut at = 0;
        let mut smaller = false;
        while at < best.ops.len() && runs > 0 {
            let mut less = best.clone();
            let end = (at + size).min(less.ops.len());
            less.ops.drain(at..end);
            runs -= 1;
            if fails(&less) {
                say(&format!("{} lines", less.ops.len()));
                best = less;
                smaller = true;
            } else {
                at = end;
            }
        }
        if runs == 0 || (size == 1 && !smaller) {
            return best;
        }
        if !smaller || size > best.ops.len() {
            size = (size / 2).max(1);
        }
    }
}
