//! `zpool iostat` (command reference §10).

use crate::common;
use crate::scripts::{Scripts, Table};
use api::{Pool, PoolGet, Vdev, VdevClass, VdevHistograms};
use base::sizes::nice;
use cli::vdevs::{self, Naming};
use cli::{Cx, Fail, Outcome, Parsed};

/// A group of columns: upper label, lower labels.
struct Group {
    label: &'static str,
    columns: &'static [&'static str],
    width: usize,
}

const RW: &[&str] = &["read", "write"];
const QUEUE: &[&str] = &["pend", "activ"];
const WAITS: [&str; 4] = ["total_wait", "disk_wait", "syncq_wait", "asyncq_wait"];
const SINGLE: [&str; 3] = ["scrub", "trim", "rebuild"];
const QUEUES: [&str; 7] = [
    "syncq_read",
    "syncq_write",
    "asyncq_read",
    "asyncq_write",
    "scrubq_read",
    "trimq_write",
    "rebuildq_write",
];
const SIZES: [&str; 7] = [
    "sync_read",
    "sync_write",
    "async_read",
    "async_write",
    "scrub",
    "trim",
    "rebuild",
];

/// Reads and writes of two kinds; then the queues.
const WAIT_COLUMNS: usize = 4 + QUEUES.len();

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Normal,
    Latencies,
    Sizes,
}

struct Look {
    mode: Mode,
    latency: bool,
    queues: bool,
    scripted: bool,
    exact: bool,
    verbose: bool,
    how: Naming,
    scripts: Table,
}

pub fn iostat(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let mode = match (args.has("w"), args.has("r")) {
        (true, true) => {
            return Err(Fail::Usage(
                "only one of [-w] and [-r] can be passed".into(),
            ))
        }
        (true, _) => Mode::Latencies,
        (_, true) => Mode::Sizes,
        _ => Mode::Normal,
    };
    if mode != Mode::Normal && (args.has("l") || args.has("q")) {
        return Err(Fail::Usage("[-r|-w] isn't allowed with [-l|-q]".into()));
    }
    let scripts = Scripts::of(args, cx)?;
    if scripts.is_some() && mode != Mode::Normal {
        return Err(Fail::Usage("-c cannot be used with -r or -w".into()));
    }
    let mut operands = args.operands.clone();
    let repeat = cli::run::take_repeat(&mut operands)?;
    let mut look = Look {
        mode,
        latency: args.has("l"),
        queues: args.has("q"),
        scripted: args.has("H"),
        exact: args.has("p"),
        // Only devices have what scripts say.
        verbose: args.has("v") || scripts.is_some(),
        scripts: Table::default(),
        how: common::naming(args, cx),
    };
    let get = |pools: Vec<String>| PoolGet {
        pools,
        tree: true,
        removed: true,
        histograms: mode != Mode::Normal || args.has("l") || args.has("q"),
        ..PoolGet::default()
    };
    // Operands are pools, or a pool and vdevs of it, or vdevs of any pool.
    let (all, _) = common::pools(cx, get(vec![]))?;
    let (mut names, mut wanted) = (Vec::new(), Vec::new());
    for word in &operands {
        if all.iter().any(|p| p.name == *word) && wanted.is_empty() {
            names.push(word.clone());
        } else if all.iter().any(|p| find_vdev(p, word, look.how).is_some()) {
            wanted.push(word.clone());
        } else {
            return Err(Fail::Error(format!(
                "cannot find '{word}': no such pool or vdev"
            )));
        }
    }
    if !wanted.is_empty() && names.len() > 1 {
        return Err(Fail::Error(
            "vdevs can be named of one pool only: zpool iostat pool vdev...".into(),
        ));
    }
    if all.is_empty() {
        cx.say("no pools available")?;
        return Ok(0);
    }
    let mut before: Vec<Pool> = Vec::new();
    let mut now = all;
    now.retain(|p| names.is_empty() || names.contains(&p.name));
    let mut reports = 0u64;
    let mut rows_since_header = 0usize;
    let mut skip = args.has("y") && repeat.is_some();
    loop {
        if !skip {
            if let Some(t) = common::stamp(args, cx)? {
                writeln!(cx.out, "{t}")?;
            }
            look.verbose |= !wanted.is_empty();
            if let Some(s) = &scripts {
                look.scripts = s.run(&now);
            }
            let rows = collect(&now, &before, &wanted, &look);
            let due = reports == 0
                || (!args.has("n")
                    && cx
                        .rows
                        .is_some_and(|r| rows_since_header + rows.len() + 4 > r));
            let title = if wanted.is_empty() { "pool" } else { "vdev" };
            let text = render(&rows, &look, due, title, now.len());
            rows_since_header = if due { 0 } else { rows_since_header } + rows.len();
            let header = due && mode == Mode::Normal && !look.scripted && cx.wants_colour();
            let text = cli::colour::headings(&text, if header { 2 } else { 0 });
            write!(cx.out, "{text}")?;
            reports += 1;
        }
        skip = false;
        let Some(r) = repeat else {
            return Ok(0);
        };
        if r.count.is_some_and(|c| reports >= c) {
            return Ok(0);
        }
        cx.out.flush()?;
        r.sleep();
        before = now;
        now = common::pools(cx, get(names.clone()))?.0;
        if now.is_empty() {
            return Ok(1);
        }
    }
}

fn find_vdev<'a>(pool: &'a Pool, word: &str, how: Naming) -> Option<&'a Vdev> {
    fn walk<'a>(v: &'a Vdev, pool: &str, word: &str, how: Naming) -> Option<&'a Vdev> {
        let hit = vdevs::name(v, pool, how) == word
            || v.path.as_deref() == Some(word)
            || v.guid.to_string() == word;
        if hit && v.kind != api::VdevKind::Root {
            return Some(v);
        }
        v.children.iter().find_map(|c| walk(c, pool, word, how))
    }
    walk(pool.tree.as_ref()?, &pool.name, word, how)
}

/// One line of the report, or a heading without figures.
struct Row {
    name: String,
    /// 0 for a heading.
    guid: u64,
    depth: usize,
    figures: Option<Figures>,
    /// Ends a pool.
    last: bool,
}

struct Figures {
    space: Option<(u64, u64)>,
    /// Per second: read and write operations, read and write bytes.
    rates: [u64; 4],
    now: Option<VdevHistograms>,
    before: Option<VdevHistograms>,
}

fn collect(now: &[Pool], before: &[Pool], wanted: &[String], look: &Look) -> Vec<Row> {
    let mut rows = Vec::new();
    for pool in now {
        let Some(tree) = &pool.tree else { continue };
        let old = before.iter().find(|p| p.guid == pool.guid);
        let since = old.map_or(pool.import_ns, |o| o.now_ns);
        let ns = pool.now_ns.saturating_sub(since).max(1);
        let old_tree = old.and_then(|o| o.tree.as_ref());
        let figures = |v: &Vdev| figures(v, old_tree.and_then(|t| by_guid(t, v.guid)), ns);
        if !wanted.is_empty() {
            for word in wanted {
                if let Some(v) = find_vdev(pool, word, look.how) {
                    walk(&mut rows, pool, v, 0, look, &figures);
                }
            }
        } else {
            rows.push(Row {
                name: pool.name.clone(),
                guid: tree.guid,
                depth: 0,
                figures: Some(figures(tree)),
                last: false,
            });
            if look.verbose {
                for v in vdevs::shown(tree, VdevClass::Normal) {
                    walk(&mut rows, pool, v, 2, look, &figures);
                }
                for (class, heading) in vdevs::CLASSES {
                    if class == VdevClass::Spare {
                        continue;
                    }
                    let mut members = vdevs::shown(tree, class).peekable();
                    if members.peek().is_some() {
                        rows.push(Row {
                            name: heading.into(),
                            guid: 0,
                            depth: 0,
                            figures: None,
                            last: false,
                        });
                    }
                    for v in members {
                        walk(&mut rows, pool, v, 2, look, &figures);
                    }
                }
            }
        }
        if let Some(row) = rows.last_mut() {
            row.last = true;
        }
    }
    rows
}

fn walk(
    rows: &mut Vec<Row>,
    pool: &Pool,
    vdev: &Vdev,
    depth: usize,
    look: &Look,
    figures: &dyn Fn(&Vdev) -> Figures,
) {
    rows.push(Row {
        name: vdevs::name(vdev, &pool.name, look.how),
        guid: vdev.guid,
        depth,
        figures: Some(figures(vdev)),
        last: false,
    });
    for child in &vdev.children {
        walk(rows, pool, child, depth + 2, look, figures);
    }
}

fn by_guid(vdev: &Vdev, guid: u64) -> Option<&Vdev> {
    if vdev.guid == guid {
        return Some(vdev);
    }
    vdev.children.iter().find_map(|c| by_guid(c, guid))
}

fn figures(now: &Vdev, old: Option<&Vdev>, ns: u64) -> Figures {
    let s = &now.stats;
    let none = Default::default();
    let o = old.map_or(&none, |v| &v.stats);
    let rate = |new: u64, old: u64| {
        let delta = new.saturating_sub(old);
        ((u128::from(delta) * 1_000_000_000 + u128::from(ns) / 2) / u128::from(ns)) as u64
    };
    Figures {
        space: (s.space != 0).then(|| (s.alloc, s.space.saturating_sub(s.alloc))),
        rates: [
            rate(s.read_ops, o.read_ops),
            rate(s.write_ops, o.write_ops),
            rate(s.read_bytes, o.read_bytes),
            rate(s.write_bytes, o.write_bytes),
        ],
        now: now.histograms.as_deref().cloned(),
        before: old.and_then(|v| v.histograms.as_deref().cloned()),
    }
}

fn groups(look: &Look) -> Vec<Group> {
    let width = |exact: usize| if look.exact { exact } else { 5 };
    let group = |label, columns, width| Group {
        label,
        columns,
        width,
    };
    let mut out = Vec::new();
    match look.mode {
        Mode::Normal => {
            out.push(group("capacity", &["alloc", "free"], width(15)));
            out.push(group("operations", RW, width(15)));
            out.push(group("bandwidth", RW, width(15)));
            if look.latency {
                out.extend(WAITS.map(|l| group(l, RW, width(10))));
                out.extend(SINGLE.map(|l| group(l, &["wait"], width(10))));
            }
            if look.queues {
                out.extend(QUEUES.map(|l| group(l, QUEUE, width(6))));
            }
        }
        Mode::Latencies => {
            out.extend(WAITS.map(|l| group(l, RW, width(10))));
            out.push(group("", &["scrub"], width(10)));
            out.push(group("", &["trim"], width(10)));
            out.push(group("", &["rebuild"], width(10)));
        }
        Mode::Sizes => out.extend(SIZES.map(|l| group(l, &["ind", "agg"], width(6)))),
    }
    out
}

/// The two lines of labels; `first` stands over the names in the second one, `top` in the first.
fn labels(groups: &[Group], name_width: usize, top: &str, first: &str) -> String {
    let mut out = format!("{top:<name_width$}");
    for g in groups {
        let n = g.columns.len();
        let total = n * g.width + 2 * (n - 1);
        let lead = (total / n).saturating_sub(g.label.len() / n);
        // With one column the label starts where it ends flush right, at most.
        out.push_str("  ");
        out.push_str(&" ".repeat(lead));
        out.push_str(g.label);
        out.push_str(&" ".repeat(total.saturating_sub(lead + g.label.len())));
    }
    out.push('\n');
    out.push_str(&format!("{first:<name_width$}"));
    for g in groups {
        for c in g.columns {
            out.push_str(&format!("  {c:>width$}", width = g.width));
        }
    }
    out.push('\n');
    out
}

fn separator(groups: &[Group], name_width: usize, scripts: &Table) -> String {
    let mut out = "-".repeat(name_width);
    for g in groups {
        for _ in g.columns {
            out.push_str("  ");
            out.push_str(&"-".repeat(g.width));
        }
    }
    out.push_str(&scripts.dashes());
    out.push('\n');
    out
}

fn render(rows: &[Row], look: &Look, header: bool, title: &str, pools: usize) -> String {
    let groups = groups(look);
    let name_width = rows
        .iter()
        .map(|r| r.depth + r.name.chars().count())
        .max()
        .unwrap_or(0)
        .max(10);
    if look.mode != Mode::Normal {
        return histograms(rows, look, &groups);
    }
    let mut out = String::new();
    if header && !look.scripted {
        let mut head = labels(&groups, name_width, "", title);
        if head.pop().is_some() {
            head.push_str(&look.scripts.heading());
            head.push('\n');
        }
        out.push_str(&head);
        out.push_str(&separator(&groups, name_width, &look.scripts));
    }
    for row in rows {
        let cells = match &row.figures {
            Some(f) => cells(f, look),
            None if look.scripted => continue,
            None => groups
                .iter()
                .flat_map(|g| g.columns)
                .map(|_| "-".to_string())
                .collect(),
        };
        if look.scripted {
            out.push_str(&row.name);
            for c in cells {
                out.push('\t');
                out.push_str(&c);
            }
        } else {
            let pad = name_width - row.depth;
            out.push_str(&format!(
                "{:depth$}{:<pad$}",
                "",
                row.name,
                depth = row.depth
            ));
            let widths = groups
                .iter()
                .flat_map(|g| g.columns.iter().map(|_| g.width));
            for (c, width) in cells.iter().zip(widths) {
                out.push_str(&format!("  {c:>width$}"));
            }
        }
        out.push_str(&look.scripts.cells(row.guid, look.scripted));
        out.push('\n');
        if row.last && look.verbose && !look.scripted {
            out.push_str(&separator(&groups, name_width, &look.scripts));
        }
    }
    if pools > 1 && !look.verbose && !look.scripted {
        out.push_str(&separator(&groups, name_width, &look.scripts));
    }
    out
}

fn number(n: u64, exact: bool) -> String {
    if exact {
        n.to_string()
    } else {
        nice(n, false)
    }
}

/// A time in ns, base 1000, whole numbers, `-` for none.
pub fn nice_time(ns: u64, exact: bool) -> String {
    if exact {
        return ns.to_string();
    }
    match ns {
        0 => "-".into(),
        1..1_000 => format!("{ns}ns"),
        1_000..1_000_000 => format!("{}us", ns / 1_000),
        1_000_000..1_000_000_000 => format!("{}ms", ns / 1_000_000),
        _ => format!("{}s", ns / 1_000_000_000),
    }
}

fn bucket(list: &[u64], i: usize) -> u64 {
    list.get(i).copied().unwrap_or(0)
}

/// What was counted in the interval.
fn delta(now: &[u64], before: Option<&[u64]>) -> Vec<u64> {
    let old = before.unwrap_or(&[]);
    (0..now.len())
        .map(|i| now[i].saturating_sub(bucket(old, i)))
        .collect()
}

/// Mean of a latency histogram: every bucket counts with its middle.
fn mean(counts: &[u64]) -> u64 {
    let total: u128 = counts.iter().map(|c| u128::from(*c)).sum();
    if total == 0 {
        return 0;
    }
    let sum: u128 = counts
        .iter()
        .enumerate()
        .map(|(i, c)| u128::from(*c) * ((3u128 << i.min(60)) / 2))
        .sum();
    (sum / total) as u64
}

/// The latency histograms in the order of columns.
fn waits(h: &VdevHistograms) -> [&[u64]; WAIT_COLUMNS] {
    let mut all = (h.total_wait.iter().chain(&h.disk_wait)).chain(&h.queue_wait);
    std::array::from_fn(|_| all.next().map_or(&[][..], Vec::as_slice))
}

fn wait_deltas(f: &Figures) -> Vec<Vec<u64>> {
    let Some(now) = &f.now else {
        return vec![Vec::new(); WAIT_COLUMNS];
    };
    let old = f.before.as_ref().map(waits);
    waits(now)
        .iter()
        .enumerate()
        .map(|(i, list)| delta(list, old.map(|o| o[i])))
        .collect()
}

fn cells(f: &Figures, look: &Look) -> Vec<String> {
    let mut out = match f.space {
        Some((alloc, free)) => vec![number(alloc, look.exact), number(free, look.exact)],
        None => vec!["-".into(), "-".into()],
    };
    out.extend(f.rates.map(|r| number(r, look.exact)));
    if look.latency {
        out.extend(
            wait_deltas(f)
                .iter()
                .map(|d| nice_time(mean(d), look.exact)),
        );
    }
    if look.queues {
        let queues = f.now.as_ref().map(|h| h.queues).unwrap_or_default();
        for (pending, active) in queues {
            out.push(number(pending, look.exact));
            out.push(number(active, look.exact));
        }
    }
    out
}

fn histograms(rows: &[Row], look: &Look, groups: &[Group]) -> String {
    let mut out = String::new();
    let widths: Vec<usize> = groups
        .iter()
        .flat_map(|g| g.columns.iter().map(|_| g.width))
        .collect();
    for row in rows {
        let Some(f) = &row.figures else { continue };
        let mut table: Vec<Vec<u64>>;
        let (title, names): (&str, Vec<String>) = if look.mode == Mode::Latencies {
            table = wait_deltas(f);
            let names = (0..37).map(|i| {
                let top = (2u64 << i) - 1;
                if look.exact {
                    top.to_string()
                } else {
                    nice_time(top, false)
                }
            });
            ("latency", names.collect())
        } else {
            table = Vec::new();
            for i in 0..SIZES.len() {
                let pick = |h: &VdevHistograms| (h.sizes[i].clone(), h.merged[i].clone());
                let now = f.now.as_ref().map(pick).unwrap_or_default();
                let old = f.before.as_ref().map(pick);
                table.push(delta(&now.0, old.as_ref().map(|o| &o.0[..])));
                table.push(delta(&now.1, old.as_ref().map(|o| &o.1[..])));
            }
            let names = (9..25).map(|i| number(1 << i, look.exact));
            ("req_size", names.collect())
        };
        let first = if look.mode == Mode::Latencies { 0 } else { 9 };
        let name_width = names
            .iter()
            .map(String::len)
            .chain([10, row.name.chars().count()])
            .max()
            .unwrap_or(10);
        if look.scripted {
            out.push_str(&format!("{}\n", row.name));
        } else {
            out.push_str(&labels(groups, name_width, &row.name, title));
            out.push_str(&separator(groups, name_width, &look.scripts));
        }
        for (i, name) in names.iter().enumerate() {
            if look.scripted {
                out.push_str(name);
            } else {
                out.push_str(&format!("{name:<name_width$}"));
            }
            for (list, width) in table.iter().zip(&widths) {
                let text = number(bucket(list, i + first), look.exact);
                if look.scripted {
                    out.push_str(&format!("\t{text}"));
                } else {
                    out.push_str(&format!("  {text:>width$}"));
                }
            }
            out.push('\n');
        }
        if !look.scripted {
            out.push_str(&separator(groups, name_width, &look.scripts));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{run, sample, Fake};

    fn busy() -> Pool {
        let mut p = sample("tank");
        if let Some(root) = &mut p.tree {
            root.stats.write_ops = 24;
            root.stats.read_bytes = 602;
            root.stats.write_bytes = 2 * 1_153_434;
            root.children[0].children[0].stats.write_ops = 12;
            root.children[0].children[0].histograms = Some(Box::new(VdevHistograms {
                total_wait: [vec![], vec![0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]],
                ..VdevHistograms::default()
            }));
        }
        p
    }

    #[test]
    fn since_import() {
        let mut fake = Fake::with(vec![busy()]);
        let (status, out, err) = run("iostat", &mut fake);
        assert_eq!((status, err.as_str()), (0, ""));
        assert_eq!(
            out,
            "              capacity     operations     bandwidth \n\
             pool        alloc   free   read  write   read  write\n\
             ----------  -----  -----  -----  -----  -----  -----\n\
             tank         132K   960M      0     12    301  1.10M\n"
        );
        let (_, out, _) = run("iostat -Hp tank", &mut fake);
        assert_eq!(out, "tank\t135168\t1006497792\t0\t12\t301\t1153434\n");
    }

    #[test]
    fn vdevs_and_latencies() {
        let mut fake = Fake::with(vec![busy()]);
        let (_, out, _) = run("iostat -v", &mut fake);
        assert_eq!(
            out,
            "              capacity     operations     bandwidth \n\
             pool        alloc   free   read  write   read  write\n\
             ----------  -----  -----  -----  -----  -----  -----\n\
             tank         132K   960M      0     12    301  1.10M\n\
             \x20 mirror-0   132K   960M      0      0      0      0\n\
             \x20   sda         -      -      0      6      0      0\n\
             \x20   /img/b      -      -      0      0      0      0\n\
             logs            -      -      -      -      -      -\n\
             \x20 sdc           -      -      0      0      0      0\n\
             ----------  -----  -----  -----  -----  -----  -----\n"
        );
        let (_, out, _) = run("iostat -l tank sda", &mut fake);
        let lines: Vec<&str> = out.lines().collect();
        assert!(lines[0].contains("    total_wait     disk_wait    syncq_wait    asyncq_wait"));
        assert!(lines[1].starts_with("vdev        alloc   free"));
        assert!(
            lines[3].starts_with(
                "sda             -      -      0      6      0      0      -    1us      -"
            ),
            "{}",
            lines[3]
        );
        let (_, out, _) = run("iostat -w sda", &mut fake);
        assert!(out.contains("\n2us             0      2      0"), "{out}");
        let (_, out, _) = run("iostat -r sda", &mut fake);
        assert!(out.contains("\n512             0      0"), "{out}");
    }

    #[test]
    fn wrong() {
        let mut fake = Fake::with(vec![busy()]);
        for line in ["iostat -wr", "iostat -wl", "iostat 0", "iostat tank 1 0"] {
            assert_eq!(run(line, &mut fake).0, 2, "{line}");
        }
        let (status, _, err) = run("iostat nope", &mut fake);
        assert_eq!(
            (status, err.as_str()),
            (1, "cannot find 'nope': no such pool or vdev\n")
        );
    }

    #[test]
    fn times() {
        for (ns, text) in [
            (0, "-"),
            (999, "999ns"),
            (1_500, "1us"),
            (2_000_000, "2ms"),
            (3_500_000_000, "3s"),
        ] {
            assert_eq!(nice_time(ns, false), text);
        }
    }
}
