//! `-b`, `-c`: walks every block of the pool; counts, verifies, compares with the space maps.

use crate::fmt::{self, DEFERRED, OTHER, ROWS, TOTAL};
use crate::{spaces, Session};
use audit::{Audit, Finding, Row, Sum, Totals, Verify};
use base::{Damage, Error, Kind, Result};
use disk::ObjType;
use std::collections::BTreeMap;
use std::io::Write;

/// Findings of one kind that are printed.
const MOST: usize = 20;

fn errno(e: &Error) -> i32 {
    match e.kind {
        // EBADE, which OpenZFS uses for wrong checksums.
        Kind::Checksum => 52,
        Kind::Damaged => 52,
        _ => 5,
    }
}

/// The row of the table of `-bb` that shows what is counted as this.
fn row(index: usize) -> Row {
    match index {
        DEFERRED => Row::Deferred,
        OTHER => Row::Other,
        TOTAL => Row::Total,
        n => u8::try_from(n).map_or(Row::Other, Row::Type),
    }
}

/// The first findings of one kind, as text, and how many there are.
#[derive(Default)]
struct Lines {
    first: Vec<String>,
    count: usize,
}

impl Lines {
    fn add(&mut self, line: impl FnOnce() -> String) {
        self.count += 1;
        if self.first.len() < MOST {
            self.first.push(line());
        }
    }

    fn print(&self, what: &str, out: &mut dyn Write) -> Result<()> {
        for line in &self.first {
            writeln!(out, "{what}: {line}")?;
        }
        more(self.count, out)
    }
}

fn more(count: usize, out: &mut dyn Write) -> Result<()> {
    if count > MOST {
        writeln!(out, "... and {} more", count - MOST)?;
    }
    Ok(())
}

/// How many findings there are of each kind in the registry of damage.
type Kinds = BTreeMap<Damage, u64>;

fn noted(kinds: &mut Kinds, f: Finding) -> Finding {
    *kinds.entry(f.damage()).or_default() += 1;
    f
}

/// The kinds by number, as `docs/damage.md` explains them. Nothing is printed of a healthy pool.
fn print_kinds(kinds: &Kinds, out: &mut dyn Write) -> Result<()> {
    if !kinds.is_empty() {
        writeln!(out, "\nDamage by kind:\n")?;
    }
    for (kind, n) in kinds {
        writeln!(out, "\t{kind}: {n}")?;
    }
    Ok(())
}

/// Walks and reports.
pub fn walk(s: &Session, out: &mut dyn Write) -> Result<()> {
    let (depth, times, compare) = (s.depth('b'), s.times('c'), !s.has('L'));
    let (verify, what) = match times {
        0 => (Verify::Nothing, ""),
        1 => (Verify::Metadata, "to verify metadata checksums "),
        2 => (Verify::Data, "to verify checksums "),
        _ => (Verify::Copies, "to verify checksums "),
    };
    let leaks = match (what, compare) {
        (_, false) => "",
        ("", true) => "to verify nothing leaked ",
        (_, true) => "and verify nothing leaked ",
    };
    writeln!(out, "\nTraversing all blocks {what}{leaks}...\n")?;
    out.flush()?;
    let all = s.has('v');
    let mut audit = Audit::new(&s.pool, verify);
    let (mut broken, mut shared) = (Lines::default(), Lines::default());
    let mut counts: BTreeMap<i32, u64> = BTreeMap::new();
    let mut kinds: Kinds = BTreeMap::new();
    let mut unreadable = 0;
    let mut written: Result<()> = Ok(());
    audit.traverse(&mut |f| match noted(&mut kinds, f) {
        Finding::Unreadable { at, copy, error } => {
            unreadable += 1;
            let errno = errno(&error);
            *counts.entry(errno).or_default() += 1;
            if written.is_ok() && (unreadable <= MOST || all) {
                let why = copy.map_or(String::new(), |n| format!("copy {n}"));
                let line = writeln!(
                    out,
                    "zdb_blkptr_cb: Got error {errno} reading {at} {why} -- skipping"
                );
                written = line.map_err(Error::from);
            }
        }
        Finding::Shared { origin, bp } => shared.add(|| format!("{origin}: {}", fmt::bp(&bp))),
        other => broken.add(|| other.to_string()),
    });
    written?;
    if !all {
        more(unreadable, out)?;
    }
    if !counts.is_empty() {
        writeln!(out, "\nError counts:\n\n\terrno  count")?;
        for (errno, n) in counts {
            writeln!(out, "\t{errno:5}  {n}")?;
        }
    }
    broken.print("error", out)?;
    shared.print("space in use twice", out)?;
    let leaked = compare && print_leaks(&audit, all, &mut kinds, out)?;
    Printer {
        s,
        totals: audit.totals(),
    }
    .report(depth, out)?;
    print_kinds(&kinds, out)?;
    if leaked || shared.count > 0 || broken.count > 0 {
        s.fail(2);
    } else if unreadable > 0 {
        s.fail(3);
    }
    Ok(())
}

/// Compares with the space maps; whether they differ.
fn print_leaks(audit: &Audit, all: bool, kinds: &mut Kinds, out: &mut dyn Write) -> Result<bool> {
    let mut lines = 0;
    let mut written: Result<()> = Ok(());
    let sums = audit.compare(&mut |f| {
        let f = noted(kinds, f);
        lines += 1;
        if written.is_ok() && (lines <= MOST || all) {
            written = writeln!(out, "{f}").map_err(Error::from);
        }
    })?;
    written?;
    if !all {
        more(lines, out)?;
    }
    if lines == 0 {
        writeln!(out, "\n\tNo leaks (block sum matches space maps exactly)")?;
        return Ok(false);
    }
    let (alloc, missing) = (sums.allocated, sums.missing);
    writeln!(
        out,
        "block traversal size {} != alloc {alloc} (leaked {missing})",
        alloc.saturating_add_signed(-missing)
    )?;
    Ok(true)
}

/// Prints what was counted.
struct Printer<'a> {
    s: &'a Session,
    totals: &'a Totals,
}

impl Printer<'_> {
    fn report(&self, depth: usize, out: &mut dyn Write) -> Result<()> {
        let all = &self.totals.all();
        let per = |n: u64| n / all.blocks.max(1);
        let part = |a: u64, b: u64| a as f64 / b.max(1) as f64;
        writeln!(out)?;
        writeln!(out, "\t{:<16} {:14}", "bp count:", all.blocks)?;
        writeln!(out, "\t{:<16} {:14}", "ganged count:", all.gangs)?;
        writeln!(
            out,
            "\t{:<16} {:14}      avg: {:6}",
            "bp logical:",
            all.lsize,
            per(all.lsize)
        )?;
        for (name, n) in [("bp physical:", all.psize), ("bp allocated:", all.asize)] {
            writeln!(
                out,
                "\t{name:<16} {n:14}      avg: {:6}     compression: {:6.2}",
                per(n),
                part(all.lsize, n)
            )?;
        }
        writeln!(
            out,
            "\t{:<16} {:14}    ref>1: {:6}   deduplication: {:6.2}",
            "bp deduped:",
            self.totals.deduped.0,
            self.totals.deduped.1,
            part(self.totals.deduped.0, all.asize) + 1.0
        )?;
        writeln!(
            out,
            "\t{:<16} {:14}    count: {:6}",
            "bp cloned:", self.totals.cloned.0, self.totals.cloned.1
        )?;
        let classes = spaces::classes(self.s)?;
        for (bias, name) in [
            ("", "Normal class:"),
            ("special", "Special class"),
            ("dedup", "Dedup class"),
        ] {
            if let Some((n, size)) = classes.get(bias) {
                let used = 100.0 * part(*n, *size);
                writeln!(out, "\t{name:<16} {n:14}     used: {used:5.2}%")?;
            }
        }
        let (n, size) = classes.get(spaces::EMBEDDED_LOG).copied().unwrap_or((0, 0));
        let used = 100.0 * part(n, size);
        writeln!(
            out,
            "\t{:<16} {n:14}     used: {used:5.2}%",
            "Embedded log class"
        )?;
        writeln!(out)?;
        for (kind, sizes) in &self.totals.embedded {
            let n: u64 = sizes.values().sum();
            writeln!(out, "\tadditional, non-pointer bps of type {kind}: {n:10}")?;
            if depth >= 3 {
                writeln!(out, "\t number of (compressed) bytes:  number of bps")?;
                let mut h = [0; disk::blkptr::EMBEDDED_MAX + 1];
                for (bytes, n) in sizes {
                    if let Some(c) = h.get_mut(*bytes) {
                        *c = *n;
                    }
                }
                fmt::histogram(out, &h, 0)?;
            }
        }
        if all.same_vdev > 0 {
            writeln!(out, "\tDittoed blocks on same vdev: {}", all.same_vdev)?;
        }
        if all.same_metaslab > 0 {
            let n = all.same_metaslab;
            writeln!(out, "\tDittoed blocks in same metaslab: {n}")?;
        }
        for top in self.s.pool.tree().tops().iter() {
            let n = audit::moved(&self.s.pool, top, &mut |_| {})?;
            if n > 0 {
                let id = top.id();
                writeln!(
                    out,
                    "\tindirect vdev id {id} has {n} segments ({n} in memory)"
                )?;
            }
        }
        if depth > 1 {
            self.table(all, depth, out)?;
            self.size_table(out)?;
        }
        Ok(writeln!(out)?)
    }

    /// All of metadata: levels of types that take space, their embedded blocks included.
    fn metadata(&self) -> Sum {
        let mut out = Sum::default();
        for ((level, row), sum) in &self.totals.sums {
            let (Some(level), Row::Type(kind)) = (level, row) else {
                continue;
            };
            let meta = *level > 0 || ObjType(*kind).is_metadata();
            if meta && sum.asize > 0 {
                out.merge(sum.clone());
            }
        }
        out
    }

    fn table(&self, all: &Sum, depth: usize, out: &mut dyn Write) -> Result<()> {
        let n = |v| self.s.num.nice(v);
        let part = |a: u64, b: u64| a as f64 / b.max(1) as f64;
        let head = ["Blocks", "LSIZE", "PSIZE", "ASIZE", "  avg", " comp"];
        writeln!(out, "\n{}\t%Total\tType", head.join("\t"))?;
        let line = |s: &Sum, name: String, out: &mut dyn Write| -> Result<()> {
            writeln!(
                out,
                "{:>6}\t{:>5}\t{:>5}\t{:>5}\t{:>5}\t{:5.2}\t{:6.2}\t{name}",
                n(s.blocks),
                n(s.lsize),
                n(s.psize),
                n(s.asize),
                n(s.asize / s.blocks.max(1)),
                part(s.lsize, s.psize),
                100.0 * part(s.asize, all.asize)
            )?;
            if depth >= 3 && s.gangs > 0 {
                writeln!(out, "\t number of ganged blocks: {}", n(s.gangs))?;
            }
            // Of all metadata there is none.
            if depth >= 4 && !s.sectors.is_empty() {
                writeln!(out, "psize (in 512-byte sectors): number of blocks")?;
                let last = s.sectors.keys().last().copied().unwrap_or(0);
                let mut h = vec![0; last + 1];
                for (sectors, n) in &s.sectors {
                    h[*sectors] = *n;
                }
                fmt::histogram(out, &h, 0)?;
            }
            Ok(())
        };
        for t in 0..ROWS {
            let name = fmt::row_name(t);
            // Nor are blocks a row that are all embedded.
            let Some(total) = self
                .totals
                .sums
                .get(&(None, row(t)))
                .filter(|s| s.asize > 0)
            else {
                let blank = "     -\t    -\t    -\t    -\t    -\t    -\t     -";
                writeln!(out, "{blank}\t{name}")?;
                continue;
            };
            if depth >= 3 {
                for level in (0..32u8).rev() {
                    let Some(s) = self.totals.sums.get(&(Some(level), row(t))) else {
                        continue;
                    };
                    if s.asize == 0 || (level == 0 && s.asize == total.asize) {
                        continue;
                    }
                    line(s, format!("    L{level} {name}"), out)?;
                }
            }
            line(total, name.into(), out)?;
        }
        let mut metadata = self.metadata();
        metadata.sectors.clear();
        line(&metadata, "Metadata Total".into(), out)
    }

    fn size_table(&self, out: &mut dyn Write) -> Result<()> {
        let n = |v| self.s.num.nice(v);
        writeln!(out, "\nBlock Size Histogram\n")?;
        writeln!(
            out,
            "  block   psize                lsize                asize"
        )?;
        let head = "Count   Size   Cum.";
        let plain = self.s.num.plain;
        if !plain {
            writeln!(out, "   size   {head}  {head}  {head}")?;
        } else {
            let head = "Count\tSize\tCum.";
            writeln!(out, "size\t{head}\t{head}\t{head}")?;
        }
        let mut sums = [0u64; 3];
        for bin in 9..=24 {
            match plain {
                true => write!(out, "{}", 1u64 << bin)?,
                false => write!(out, "{:>7}:", n(1u64 << bin))?,
            }
            for (s, sum) in self.totals.sizes.iter().zip(&mut sums) {
                let (count, bytes) = s.0[bin];
                *sum += bytes;
                match plain {
                    true => write!(out, "\t{count}\t{bytes}\t{sum}")?,
                    false => write!(out, "{:>7} {:>6} {:>6}", n(count), n(bytes), n(*sum))?,
                }
            }
            writeln!(out)?;
        }
        Ok(())
    }
}
