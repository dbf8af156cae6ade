//! `zpool status`.

mod colour;
mod dedup;
mod error_scrub;
pub mod json;
mod scan_lines;
mod wear;

use crate::common;
use crate::scripts::{Scripts, Table};
use crate::status_reason::{self, is_rebuilding, Reason};
use crate::status_text;
use api::{Pool, PoolGet, ScanFunction, ScanState, Vdev, VdevAux, VdevClass, VdevState};
use base::sizes::nice;
use cli::vdevs::{self, Naming};
use cli::{time, Cx, Fail, Outcome, Parsed};
use scan_lines::duration;
pub use scan_lines::scan_lines;
use tz::TimeZone;

pub fn status(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let json = common::json_style(args)?;
    let mut names = args.operands.clone();
    let repeat = cli::run::take_repeat(&mut names)?;
    say_what_is_missing(args, cx)?;
    let scripts = Scripts::of(args, cx)?;
    if scripts.is_some() && json.is_some() {
        return Err(Fail::Usage("-c and -j exclude each other".into()));
    }
    let mut look = Look {
        exact: args.has("p"),
        slow: args.has("s"),
        trim: args.has("t"),
        initialize: args.has("i"),
        zone: cx.zone.clone(),
        sick_only: args.has("e"),
        verbose: args.has("v"),
        dedup: args.has("D"),
        how: common::naming(args, cx),
        ignore_ashift: cx.flag("ZPOOL_STATUS_NON_NATIVE_ASHIFT_IGNORE"),
        now: time::now(),
        scripts: Table::default(),
    };
    let mut reports = 0;
    let mut status = 0;
    loop {
        let stamp = common::stamp(args, cx)?;
        let (pools, failed) = common::pools(
            cx,
            PoolGet {
                pools: names.clone(),
                tree: true,
                error_list: look.verbose,
                dedup: look.dedup,
                dedup_cached: args.in_order().filter(|(name, _)| *name == "D").count() > 1,
                ..PoolGet::default()
            },
        )?;
        status = status.max(i32::from(failed));
        if let Some(s) = &scripts {
            look.scripts = s.run(&pools);
        }
        if let Some(style) = json {
            let report = json::report(&pools, args, style, &look, stamp, cx);
            common::print_json(cx, report)?;
        } else {
            if let Some(t) = stamp {
                writeln!(cx.out, "{t}")?;
            }
            let mut first = true;
            for pool in &pools {
                let reason = status_reason::reason(pool);
                if args.has("x") && reason.is_healthy_enough() {
                    if !names.is_empty() {
                        writeln!(cx.out, "pool '{}' is healthy", pool.name)?;
                    }
                    continue;
                }
                if !first {
                    writeln!(cx.out)?;
                }
                first = false;
                let mut text = render(pool, &reason, &look, &cx.zone);
                if cx.wants_colour() {
                    text = colour::painted(&text);
                }
                write!(cx.out, "{text}")?;
            }
            if pools.is_empty() && !failed {
                cx.say("no pools available")?;
            } else if args.has("x") && first && names.is_empty() {
                writeln!(cx.out, "all pools are healthy")?;
            }
        }
        reports += 1;
        match repeat {
            Some(r) if r.count.is_none_or(|c| reports < c) => {
                cx.out.flush()?;
                r.sleep();
            }
            _ => return Ok(status),
        }
    }
}

/// Options whose part of the report is missing: the rest is printed all the same.
fn say_what_is_missing(args: &Parsed, cx: &mut Cx<'_>) -> Result<(), Fail> {
    if args.has("d") {
        cx.say(
            "zpool status -d: there are no Direct I/O verify errors here: the daemon writes from its own memory",
        )?;
    }
    Ok(())
}

pub struct Look {
    pub exact: bool,
    pub slow: bool,
    /// How far `zpool trim` has come, and `zpool initialize`.
    pub trim: bool,
    /// See `trim`.
    pub initialize: bool,
    /// Where the reader lives.
    pub zone: TimeZone,
    pub sick_only: bool,
    pub verbose: bool,
    /// What dedup tables hold.
    pub dedup: bool,
    pub how: Naming,
    pub ignore_ashift: bool,
    /// Seconds since 1970.
    pub now: u64,
    /// What scripts say.
    pub scripts: Table,
}

fn render(pool: &Pool, reason: &Reason, look: &Look, zone: &TimeZone) -> String {
    let mut out = format!("  pool: {}\n state: {}\n", pool.name, pool.health);
    let text = reason.text(&pool.facts);
    if let Some(s) = &text.status {
        out.push_str(&format!("status: {}\n", tabbed(s)));
    }
    if let Some(s) = &text.action {
        out.push_str(&format!("action: {}\n", tabbed(s)));
    }
    if let Some(id) = text.id {
        out.push_str(&format!("   see: {}\n", status_text::see(id)));
    }
    if let Some(e) = error_scrub::newest(pool) {
        let lines = error_scrub::lines(e, zone);
        out.push_str(&format!(" scrub: {}\n", lines.join("\n\t")));
    }
    let mut scans = Vec::new();
    let rebuilds = newest_rebuilds(pool);
    // Of resilvers and rebuilds the newer ones are told of; a scrub always is.
    if let Some(scan) = &pool.scan {
        if rebuilds.is_empty() || scan.function == ScanFunction::Scrub {
            scans.push(scan_lines(scan, look.now, zone));
        }
    }
    scans.extend(rebuilds.iter().map(|r| rebuild_lines(pool, r, look, zone)));
    for lines in scans.iter().filter(|l| !l.is_empty()) {
        out.push_str(&format!("  scan: {}\n", lines.join("\n\t")));
    }
    if let Some(skips) = skips_checkpoint(pool) {
        out.push_str(&format!(
            "    scan warning: {skips} blocks that are only referenced by the checkpoint.\n"
        ));
    }
    for (heading, lines) in [
        ("remove", removal_lines(pool, look, zone)),
        ("checkpoint", checkpoint_line(pool, zone)),
        ("expand", expansion_lines(pool, look, zone)),
    ] {
        if !lines.is_empty() {
            out.push_str(&format!("{heading}: {}\n", lines.join("\n\t")));
        }
    }
    if let Some(tree) = &pool.tree {
        out.push_str("config:\n\n");
        out.push_str(&config(pool, tree, look));
    }
    out.push('\n');
    out.push_str(&errors(pool, look.verbose));
    if let Some(d) = pool.dedup.as_ref().filter(|_| look.dedup) {
        out.push_str(&dedup::lines(d, look.exact));
    }
    out
}

/// Continuation lines begin with a tab.
pub fn tabbed(text: &str) -> String {
    text.replace('\n', "\n\t")
}

fn errors(pool: &Pool, verbose: bool) -> String {
    match pool.error_count {
        None => "errors: List of errors unavailable\n".into(),
        Some(0) => "errors: No known data errors\n".into(),
        Some(n) if !verbose => format!("errors: {n} data errors, use '-v' for a list\n"),
        Some(_) => {
            let mut out = String::from(
                "errors: Permanent errors have been detected in the following files:\n\n",
            );
            for file in &pool.error_list {
                out.push_str(&format!("        {file}\n"));
            }
            out
        }
    }
}

/// The top-level vdev `id`, if it is shown.
pub fn top(pool: &Pool, id: u64) -> Option<&Vdev> {
    let tops = pool.tree.iter().flat_map(|t| &t.children);
    tops.filter(|v| !matches!(v.class, VdevClass::Cache | VdevClass::Spare))
        .find(|v| v.id == id)
}

/// Its name, or its number.
fn top_name(pool: &Pool, id: u64, look: &Look) -> String {
    top(pool, id).map_or_else(
        || format!("vdev {id}"),
        |v| vdevs::name(v, &pool.name, look.how),
    )
}

/// How much of something that stands still is done: this software does not go on with it.
fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

/// What a scrub or resilver does about blocks of a checkpoint, which it does not look at.
fn skips_checkpoint(pool: &Pool) -> Option<&'static str> {
    let scan = pool.scan.as_ref()?;
    let checkpoint = pool.checkpoint.as_ref().filter(|c| !c.discarding)?;
    match scan.state {
        ScanState::None => None,
        ScanState::Scanning => Some("skipping"),
        _ => (scan.end >= checkpoint.created).then_some("skipped"),
    }
}

fn checkpoint_line(pool: &Pool, zone: &TimeZone) -> Vec<String> {
    let line = |c: &api::Checkpoint| {
        let space = nice(c.space, false);
        match c.discarding {
            true => format!("discarding, {space} remaining."),
            false => format!("created {}, consumes {space}", time::ctime(c.created, zone)),
        }
    };
    pool.checkpoint.iter().map(line).collect()
}

/// No time is estimated that is as long: 30 days.
const SLOW_HOURS: u64 = 30 * 24;

/// Lines of the newest removal of a device; none if there was none.
fn removal_lines(pool: &Pool, look: &Look, zone: &TimeZone) -> Vec<String> {
    let Some(r) = &pool.removal else {
        return Vec::new();
    };
    let mut lines = match r.state {
        ScanState::None => return Vec::new(),
        ScanState::Finished => {
            let minutes = r.end.saturating_sub(r.start) / 60;
            vec![format!(
                "Removal of vdev {} copied {} in {}h{}m, completed on {}",
                r.vdev,
                nice(r.copied, false),
                minutes / 60,
                minutes % 60,
                time::ctime(r.end, zone)
            )]
        }
        ScanState::Canceled => vec![format!(
            "Removal of {} canceled on {}",
            top_name(pool, r.vdev, look),
            time::ctime(r.end, zone)
        )],
        ScanState::Scanning => vec![
            format!(
                "Evacuation of {} in progress since {}",
                top_name(pool, r.vdev, look),
                time::ctime(r.start, zone)
            ),
            removal_progress(r, look.now),
        ],
    };
    if r.mapping_memory > 0 {
        lines.push(format!(
            "{} memory used for removed device mappings",
            nice(r.mapping_memory, false)
        ));
    }
    lines
}

/// How far a removal is, its rate since it began, and the time it takes at that rate.
fn removal_progress(r: &api::Removal, now: u64) -> String {
    let sizes = format!(
        "{} copied out of {}",
        nice(r.copied, false),
        nice(r.to_copy, false)
    );
    let done = percent(r.copied, r.to_copy);
    if !r.goes_on {
        return format!("{sizes}, {done:.2}% done, not being continued");
    }
    let elapsed = now.saturating_sub(r.start).max(1);
    let rate = (r.copied.max(1) / elapsed).max(1);
    let minutes = r.to_copy.saturating_sub(r.copied) / rate / 60;
    let left = match minutes / 60 {
        hours if hours < SLOW_HOURS => format!("{hours}h{}m to go", minutes % 60),
        _ => "(copy is slow, no estimated time)".to_string(),
    };
    format!(
        "{sizes} at {}/s, {done:.2}% done, {left}",
        nice(rate, false)
    )
}

/// The sequential rebuilds to tell of: those that run, else those that ended after the last resilver.
fn newest_rebuilds(pool: &Pool) -> Vec<&api::Rebuild> {
    let resilver = pool
        .scan
        .as_ref()
        .filter(|s| s.function == ScanFunction::Resilver);
    if resilver.is_some_and(|s| s.state == ScanState::Scanning) {
        return Vec::new();
    }
    let ended = resilver.map_or(0, |s| s.end);
    let running = |r: &&api::Rebuild| r.state == ScanState::Scanning;
    let all = || pool.rebuilds.iter();
    match is_rebuilding(pool) {
        true => all().filter(running).collect(),
        false => all().filter(|r| r.end > ended).collect(),
    }
}

fn rebuild_lines(pool: &Pool, r: &api::Rebuild, look: &Look, zone: &TimeZone) -> Vec<String> {
    let name = top_name(pool, r.vdev, look);
    let size = |n: u64| nice(n, true);
    match r.state {
        ScanState::None => Vec::new(),
        ScanState::Finished => vec![format!(
            "resilvered ({name}) {} in {} with {} errors on {}",
            size(r.rebuilt),
            duration(r.time_ms / 1000),
            r.errors,
            time::ctime(r.end, zone)
        )],
        ScanState::Canceled => vec![format!(
            "resilver ({name}) canceled on {}",
            time::ctime(r.end, zone)
        )],
        ScanState::Scanning => {
            let per_second = |n: u64| n / (r.pass_ms + 1) * 1000;
            let (scan_rate, issue_rate) = (per_second(r.pass_scanned), per_second(r.pass_issued));
            let at = |rate: u64| match rate {
                0 => String::new(),
                n => format!(" at {}/s", size(n)),
            };
            let left = r.to_scan.checked_sub(r.scanned);
            let end = match left.filter(|_| scan_rate >= 10 << 20) {
                Some(left) => format!("{} to go", duration(left / scan_rate)),
                None => "no estimated completion time".into(),
            };
            vec![
                format!(
                    "resilver ({name}) in progress since {}",
                    time::ctime(r.start, zone)
                ),
                format!(
                    "{} / {} scanned{}, {} / {} issued{}",
                    size(r.scanned),
                    size(r.to_scan),
                    at(scan_rate),
                    size(r.issued),
                    size(r.to_scan.saturating_sub(r.pass_skipped)),
                    at(issue_rate)
                ),
                format!(
                    "{} resilvered, {:.2}% done, {end}",
                    size(r.rebuilt),
                    percent(r.scanned, r.to_scan).min(100.0)
                ),
            ]
        }
    }
}

/// Lines of the newest expansion of a RAID-Z; none if there was none.
fn expansion_lines(pool: &Pool, look: &Look, zone: &TimeZone) -> Vec<String> {
    let Some(e) = &pool.expansion else {
        return Vec::new();
    };
    let name = top_name(pool, e.vdev, look);
    match e.state {
        ScanState::Finished => vec![format!(
            "expanded {name} copied {} in {}, on {}",
            nice(e.reflowed, true),
            duration(e.end.saturating_sub(e.start)),
            time::ctime(e.end, zone)
        )],
        ScanState::Scanning => vec![
            format!(
                "expansion of {name} in progress since {}",
                time::ctime(e.start, zone)
            ),
            expansion_progress(e, look.now),
        ],
        ScanState::None | ScanState::Canceled => Vec::new(),
    }
}

/// How far an expansion is. `now`: seconds since 1970.
fn expansion_progress(e: &api::Expansion, now: u64) -> String {
    let copied = e.reflowed.max(1);
    let rate = (copied / now.saturating_sub(e.start).max(1)).max(1);
    let left = e.to_reflow.saturating_sub(copied) / rate;
    let (size, done) = (|n| nice(n, false), percent(e.reflowed, e.to_reflow));
    let (so_far, all) = (size(e.reflowed), size(e.to_reflow));
    if e.stopped {
        return format!("{so_far} / {all} copied, {done:.2}% done, not being continued");
    }
    let end = match left {
        _ if e.waiting => "paused for resilver or clear".into(),
        left if left < MOST_TOLD => format!("{} to go", duration(left)),
        _ => "(copy is slow, no estimated time)".into(),
    };
    format!(
        "{so_far} / {all} copied at {}/s, {done:.2}% done, {end}",
        size(rate)
    )
}

/// Seconds left beyond which none are told: 30 days.
const MOST_TOLD: u64 = 30 * 24 * 3600;

fn config(pool: &Pool, tree: &Vdev, look: &Look) -> String {
    let width = vdevs::name_width(tree, &pool.name, look.how).max(10);
    let mut out = format!(
        "\t{:<width$}  {:<8} {:>5} {:>5} {:>5}",
        "NAME", "STATE", "READ", "WRITE", "CKSUM"
    );
    if look.slow {
        out.push_str(&format!(" {:>5}", "SLOW"));
    }
    out.push_str(&look.scripts.heading());
    out.push('\n');
    row(&mut out, pool, tree, &pool.name, 0, width, look);
    for v in vdevs::of_class(tree, VdevClass::Normal) {
        rows(&mut out, pool, v, 2, width, look);
    }
    for (class, heading) in vdevs::CLASSES {
        let mut members = vdevs::of_class(tree, class).peekable();
        if members.peek().is_none() {
            continue;
        }
        let tab = match class {
            VdevClass::Cache | VdevClass::Spare => "",
            _ => "\t",
        };
        out.push_str(&format!("\t{heading}{tab}\n"));
        for v in members {
            rows(&mut out, pool, v, 2, width, look);
        }
    }
    out
}

fn is_sick(vdev: &Vdev) -> bool {
    let s = &vdev.stats;
    vdev.state != VdevState::Online
        || s.read_errors + s.write_errors + s.checksum_errors > 0
        || vdev.children.iter().any(is_sick)
}

fn rows(out: &mut String, pool: &Pool, vdev: &Vdev, depth: usize, width: usize, look: &Look) {
    if look.sick_only && !is_sick(vdev) {
        return;
    }
    let name = vdevs::name(vdev, &pool.name, look.how);
    row(out, pool, vdev, &name, depth, width, look);
    for child in &vdev.children {
        rows(out, pool, child, depth + 2, width, look);
    }
}

fn row(
    out: &mut String,
    pool: &Pool,
    vdev: &Vdev,
    name: &str,
    depth: usize,
    width: usize,
    look: &Look,
) {
    let spare = vdev.class == VdevClass::Spare;
    let mut state = match vdev.state {
        VdevState::Online if spare && vdev.aux == VdevAux::Spared => "INUSE",
        VdevState::Online if spare => "AVAIL",
        VdevState::CantOpen if spare && vdev.aux == VdevAux::Spared => "INUSE",
        _ => vdevs::state(vdev.state, vdev.aux),
    };
    if depth == 0 {
        state = status_reason::root_state(pool, vdev);
    }
    let pad = width.saturating_sub(depth);
    out.push_str(&format!("\t{:depth$}{name:<pad$}  {state:<8}", ""));
    let s = &vdev.stats;
    let number = |n: u64| {
        if look.exact {
            n.to_string()
        } else {
            nice(n, false)
        }
    };
    if !spare {
        for n in [s.read_errors, s.write_errors, s.checksum_errors] {
            out.push_str(&format!(" {:>5}", number(n)));
        }
        if look.slow {
            let slow = if vdevs::is_leaf(vdev) {
                number(s.slow_ios)
            } else {
                "-".into()
            };
            out.push_str(&format!(" {slow:>5}"));
        }
    }
    if vdev.not_present {
        if let Some(path) = &vdev.path {
            out.push_str(&format!("  was {path}"));
        }
    } else if let Some(note) = vdevs::missing(vdev) {
        out.push_str(&format!("  {note}"));
    } else if let Some(note) = vdevs::aux(vdev) {
        out.push_str(&format!("  {note}"));
    } else if vdevs::is_leaf(vdev)
        && !look.ignore_ashift
        && s.configured_ashift != 0
        && s.physical_ashift > s.configured_ashift
    {
        out.push_str(&format!(
            "  block size: {}B configured, {}B native",
            1u64.checked_shl(s.configured_ashift as u32).unwrap_or(0),
            1u64.checked_shl(s.physical_ashift as u32).unwrap_or(0)
        ));
    }
    // The counters of a device that is out of use stand still.
    let online = vdev.state == VdevState::Online;
    if is_rebuilding(pool) && online && vdevs::is_leaf(vdev) && s.resilvering {
        if s.scan_processed != 0 {
            out.push_str("  (resilvering)");
        }
    } else if let Some(scan) = &pool.scan {
        let runs = scan.state == ScanState::Scanning && online;
        if runs && vdevs::is_leaf(vdev) {
            if s.resilver_deferred && s.scan_processed == 0 {
                out.push_str("  (awaiting resilver)");
            } else if scan.function == ScanFunction::Resilver && s.resilvering {
                out.push_str("  (resilvering)");
            } else if scan.function == ScanFunction::Scrub && s.scan_processed != 0 {
                out.push_str("  (repairing)");
            }
        }
    }
    if s.removing {
        out.push_str("  (removing)");
    } else if s.noalloc {
        out.push_str("  (non-allocating)");
    }
    if vdevs::is_leaf(vdev) {
        out.push_str(&wear::notes(s, look));
    }
    out.push_str(&look.scripts.cells(vdev.guid, false));
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{group, leaf, run, sample, Fake};
    use api::{Scan, VdevKind};

    #[test]
    fn healthy() {
        let mut fake = Fake::with(vec![sample("tank")]);
        let (status, out, err) = run("status", &mut fake);
        assert_eq!((status, err.as_str()), (0, ""));
        assert_eq!(
            out,
            "  pool: tank\n state: ONLINE\nconfig:\n\n\
             \tNAME        STATE     READ WRITE CKSUM\n\
             \ttank        ONLINE       0     0     0\n\
             \t  mirror-0  ONLINE       0     0     0\n\
             \t    sda     ONLINE       0     0     0\n\
             \t    /img/b  ONLINE       0     0     0\n\
             \tlogs\t\n\
             \t  sdc       ONLINE       0     0     0\n\
             \tspares\n\
             \t  sdd       AVAIL   \n\
             \nerrors: No known data errors\n"
        );
        let (_, out, _) = run("status -x", &mut fake);
        assert_eq!(out, "all pools are healthy\n");
        let (_, out, _) = run("status -x tank", &mut fake);
        assert_eq!(out, "pool 'tank' is healthy\n");
        let (_, out, _) = run("status -g -s", &mut fake);
        assert!(out.contains("\tNAME        STATE     READ WRITE CKSUM  SLOW\n"));
        assert!(out.contains("\t  1000      ONLINE       0     0     0     -\n"));
        assert!(out.contains("\t    1000    ONLINE       0     0     0     0\n"));
    }

    /// As OpenZFS 2.3.2 says it of fixture pools, but for the speed of what stands still.
    #[test]
    fn removals_and_expansions() {
        let utc = 1_795_182_531; // Fri Nov 20 13:48:51 2026
        let mut p = sample("tank");
        p.removal = Some(api::Removal {
            state: ScanState::Finished,
            vdev: 3,
            start: utc - 17,
            end: utc,
            copied: 1_020_928,
            mapping_memory: 312,
            ..api::Removal::default()
        });
        p.expansion = Some(api::Expansion {
            state: ScanState::Finished,
            vdev: 0,
            start: utc - 1,
            end: utc,
            reflowed: 403_456,
            ..api::Expansion::default()
        });
        let (_, out, _) = run("status", &mut Fake::with(vec![p.clone()]));
        let want = "remove: Removal of vdev 3 copied 997K in 0h0m, completed on Fri Nov 20 13:48:51 2026\n\
             \t312 memory used for removed device mappings\n\
             expand: expanded mirror-0 copied 394K in 00:00:01, on Fri Nov 20 13:48:51 2026\n\
             config:\n";
        assert!(out.contains(want), "{out}");
        p.removal = Some(api::Removal {
            state: ScanState::Scanning,
            start: utc,
            to_copy: 9_570_000,
            copied: 890_000,
            ..api::Removal::default()
        });
        let mut r = p.removal.clone().unwrap();
        r.goes_on = true;
        assert_eq!(
            removal_progress(&r, utc + 10),
            "869K copied out of 9.13M at 86.9K/s, 9.30% done, 0h1m to go"
        );
        assert!(removal_progress(&r, utc + (1 << 40)).ends_with("no estimated time)"));
        p.expansion = Some(api::Expansion {
            state: ScanState::Scanning,
            start: utc,
            to_reflow: 16 << 20,
            reflowed: 4 << 20,
            stopped: true,
            ..api::Expansion::default()
        });
        if let Some(t) = &mut p.tree {
            t.children[0].stats.removing = true;
            t.children[0].stats.noalloc = true;
        }
        let (_, out, _) = run("status", &mut Fake::with(vec![p]));
        let want = "remove: Evacuation of mirror-0 in progress since Fri Nov 20 13:48:51 2026\n\
             \t869K copied out of 9.13M, 9.30% done, not being continued\n\
             expand: expansion of mirror-0 in progress since Fri Nov 20 13:48:51 2026\n\
             \t4M / 16M copied, 25.00% done, not being continued\n";
        assert!(out.contains(want), "{out}");
        // As the source of OpenZFS 2.3 has it.
        let mut e = api::Expansion {
            start: 100,
            to_reflow: 16 << 20,
            reflowed: 4 << 20,
            ..api::Expansion::default()
        };
        let told = |e: &api::Expansion, now| expansion_progress(e, now);
        assert_eq!(
            told(&e, 104),
            "4M / 16M copied at 1M/s, 25.00% done, 00:00:12 to go"
        );
        let slow = "4M / 16M copied at 4/s, 25.00% done, (copy is slow, no estimated time)";
        assert_eq!(told(&e, 1_000_100), slow);
        e.waiting = true;
        let paused = "4M / 16M copied at 1M/s, 25.00% done, paused for resilver or clear";
        assert_eq!(told(&e, 104), paused);
        assert!(out.contains("  (removing)\n"));
    }

    /// As OpenZFS 2.3.2 says it of the fixture `draid-spare`, and what follows from its order.
    #[test]
    fn rebuilds() {
        let utc = 1_795_182_607; // Fri Nov 20 13:50:07 2026
        let mut p = sample("tank");
        let scan = |function| Scan {
            function,
            state: ScanState::Finished,
            start: utc,
            end: utc,
            ..Scan::default()
        };
        p.rebuilds = vec![api::Rebuild {
            state: ScanState::Finished,
            start: utc,
            end: utc,
            ..api::Rebuild::default()
        }];
        let shown = |p: &Pool| run("status", &mut Fake::with(vec![p.clone()])).1;
        p.scan = Some(scan(ScanFunction::Scrub));
        let both = "  scan: scrub repaired 0B in 00:00:00 with 0 errors on Fri Nov 20 13:50:07 2026\n  \
                    scan: resilvered (mirror-0) 0B in 00:00:00 with 0 errors on Fri Nov 20 13:50:07 2026\n\
                    config:";
        assert!(shown(&p).contains(both), "{}", shown(&p));
        // A resilver that is as new hides it; a rebuild that runs is shown in any case.
        p.scan = Some(scan(ScanFunction::Resilver));
        assert!(!shown(&p).contains("(mirror-0)"), "{}", shown(&p));
        p.rebuilds[0].state = ScanState::Scanning;
        let running = api::Rebuild {
            to_scan: 4 << 30,
            scanned: 1 << 30,
            issued: 512 << 20,
            pass_ms: 9_999,
            pass_scanned: 1 << 30,
            pass_issued: 512 << 20,
            pass_skipped: 512 << 20,
            ..p.rebuilds[0].clone()
        };
        p.rebuilds[0] = running;
        let out = shown(&p);
        let want = "scan: resilver (mirror-0) in progress since Fri Nov 20 13:50:07 2026\n\
                    \t1G / 4G scanned at 102M/s, 512M / 3.50G issued at 51.2M/s\n\
                    \t0B resilvered, 25.00% done, 00:00:30 to go\n";
        assert!(
            out.contains(want) && !out.contains("resilvered 0B"),
            "{out}"
        );
    }

    #[test]
    fn checkpoints() {
        let utc = 1_795_183_087; // Fri Nov 20 13:58:07 2026
        let mut p = sample("tank");
        p.scan = Some(Scan {
            function: ScanFunction::Scrub,
            state: ScanState::Finished,
            start: utc,
            end: utc + 1,
            ..Scan::default()
        });
        p.checkpoint = Some(api::Checkpoint {
            discarding: false,
            created: utc,
            space: 287_744,
        });
        let show = |p: &Pool| run("status", &mut Fake::with(vec![p.clone()])).1;
        let out = show(&p);
        let want = "    scan warning: skipped blocks that are only referenced by the checkpoint.\n\
             checkpoint: created Fri Nov 20 13:58:07 2026, consumes 281K\n\
             config:\n";
        assert!(out.contains(want), "{out}");
        if let Some(s) = &mut p.scan {
            s.end = utc - 1;
        }
        assert!(!show(&p).contains("warning"));
        if let Some(c) = &mut p.checkpoint {
            c.discarding = true;
        }
        let out = show(&p);
        assert!(
            out.contains("\ncheckpoint: discarding, 281K remaining.\n"),
            "{out}"
        );
    }

    /// The texts of fixture pools, as printed by OpenZFS 2.3.2.
    #[test]
    fn degraded() {
        let img = |n: u32| format!("/fixtures/damage-raidz3/d{n}.img");
        let mut children: Vec<_> = (0..6).map(|n| leaf(&img(n), VdevClass::Normal)).collect();
        for (n, guid) in [(0, 7874851782404396471u64), (5, 6739459744012476125)] {
            children[n].guid = guid;
            children[n].not_present = true;
            children[n].state = VdevState::CantOpen;
            children[n].aux = VdevAux::OpenFailed;
        }
        children[2].stats.checksum_errors = 3;
        let mut raidz = group(
            VdevKind::Raidz { parity: 3 },
            0,
            VdevClass::Normal,
            children,
        );
        raidz.state = VdevState::Degraded;
        let mut root = group(VdevKind::Root, 0, VdevClass::Normal, vec![raidz]);
        root.state = VdevState::Degraded;
        let mut pool = sample("oasis1");
        pool.health = "DEGRADED".into();
        pool.tree = Some(root);
        let (_, out, _) = run("status", &mut Fake::with(vec![pool]));
        assert_eq!(
            out,
            "  pool: oasis1\n state: DEGRADED\n\
status: One or more devices could not be opened.  Sufficient replicas exist for\n\
\tthe pool to continue functioning in a degraded state.\n\
action: Attach the missing device and online it using 'zpool online'.\n\
\x20  see: https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-2Q\n\
config:\n\n\
\tNAME                                STATE     READ WRITE CKSUM\n\
\toasis1                              DEGRADED     0     0     0\n\
\t  raidz3-0                          DEGRADED     0     0     0\n\
\t    7874851782404396471             UNAVAIL      0     0     0  was /fixtures/damage-raidz3/d0.img\n\
\t    /fixtures/damage-raidz3/d1.img  ONLINE       0     0     0\n\
\t    /fixtures/damage-raidz3/d2.img  ONLINE       0     0     3\n\
\t    /fixtures/damage-raidz3/d3.img  ONLINE       0     0     0\n\
\t    /fixtures/damage-raidz3/d4.img  ONLINE       0     0     0\n\
\t    6739459744012476125             UNAVAIL      0     0     0  was /fixtures/damage-raidz3/d5.img\n\
\nerrors: No known data errors\n"
        );
    }

    #[test]
    fn a_device_that_missed_writes_is_named_with_the_txgs_it_lacks() {
        let mut children: Vec<_> = ["/dev/a", "/dev/b"]
            .iter()
            .map(|p| leaf(p, VdevClass::Normal))
            .collect();
        children[1].state = VdevState::Degraded;
        children[1].aux = VdevAux::MissedWrites;
        children[1].stats.missing = vec![(12, 40), (45, 45)];
        let mut mirror = group(VdevKind::Mirror, 0, VdevClass::Normal, children);
        mirror.state = VdevState::Degraded;
        let mut root = group(VdevKind::Root, 0, VdevClass::Normal, vec![mirror]);
        root.state = VdevState::Degraded;
        let mut pool = sample("tank");
        pool.health = "DEGRADED".into();
        pool.scan = None;
        pool.tree = Some(root);
        let show = |line: &str| run(line, &mut Fake::with(vec![pool.clone()])).1;
        for line in ["status", "status -x"] {
            let out = show(line);
            for want in [
                " state: DEGRADED\n",
                "status: One or more devices lack data that was written while they were away.\n",
                "  DEGRADED     0     0     0  lacks data of txgs 12-40, 45\n",
            ] {
                assert!(out.contains(want), "{line}: {out}");
            }
        }
        let out = show("status -j");
        assert!(
            out.contains("\"aux\":\"lacks data of txgs 12-40, 45\""),
            "{out}"
        );
    }

    /// As OpenZFS: what is filled is ONLINE; a device that is out of use is not said to be filled.
    #[test]
    fn devices_say_what_a_scan_does_to_them() {
        let mut children: Vec<_> = ["/dev/a", "/dev/b", "/dev/c", "/dev/d"]
            .iter()
            .map(|p| leaf(p, VdevClass::Normal))
            .collect();
        children[1].stats.resilvering = true;
        children[1].stats.scan_processed = 4096;
        children[2].stats.resilvering = true;
        children[2].stats.resilver_deferred = true;
        children[3].stats.resilvering = true;
        children[3].state = VdevState::Faulted;
        let mirror = group(VdevKind::Mirror, 0, VdevClass::Normal, children);
        let mut pool = sample("tank");
        let scan = |function| Scan {
            function,
            state: ScanState::Scanning,
            ..Scan::default()
        };
        pool.scan = Some(scan(ScanFunction::Resilver));
        pool.tree = Some(group(VdevKind::Root, 0, VdevClass::Normal, vec![mirror]));
        let show = |pool: &Pool| run("status", &mut Fake::with(vec![pool.clone()])).1;
        let out = show(&pool);
        for line in [
            "\t    a       ONLINE       0     0     0\n",
            "\t    b       ONLINE       0     0     0  (resilvering)\n",
            "\t    c       ONLINE       0     0     0  (awaiting resilver)\n",
            "\t    d       FAULTED      0     0     0\n",
        ] {
            assert!(out.contains(line), "{line}: {out}");
        }
        pool.scan = Some(scan(ScanFunction::Scrub));
        let out = show(&pool);
        let want = "\t    b       ONLINE       0     0     0  (repairing)\n";
        assert!(out.contains(want), "{out}");
    }

    #[test]
    fn damaged_files_and_counters() {
        let mut pool = sample("tank");
        pool.error_count = Some(2);
        pool.error_list = vec!["/tank/a".into(), "tank/x:<0x7>".into()];
        if let Some(root) = &mut pool.tree {
            root.children[0].children[1].stats.checksum_errors = 12_345;
        }
        let mut fake = Fake::with(vec![pool]);
        let (_, out, _) = run("status -e", &mut fake);
        assert!(out
            .contains("status: One or more devices has experienced an error resulting in data\n"));
        assert!(out.contains("ZFS-8000-8A\n"));
        assert!(out.contains(
            "\t  mirror-0  ONLINE       0     0     0\n\t    /img/b  ONLINE       0     0 12.1K\n"
        ));
        assert!(!out.contains("sda"));
        assert!(out.ends_with("errors: 2 data errors, use '-v' for a list\n"));
        let (_, out, _) = run("status -vp", &mut fake);
        assert!(out.contains("ONLINE       0     0 12345\n"));
        assert!(out.ends_with(
            "errors: Permanent errors have been detected in the following files:\n\n        /tank/a\n        tank/x:<0x7>\n"
        ));
    }

    #[test]
    fn an_option_whose_part_is_missing_prints_the_rest() {
        let mut fake = Fake::with(vec![sample("tank")]);
        let plain = run("status", &mut fake).1;
        let (status, out, err) = run("status -dL tank", &mut fake);
        assert_eq!((status, &out), (0, &plain));
        let begin = "zpool status -d: ";
        assert!(err.starts_with(begin) && err.lines().count() == 1, "{err}");
    }

    #[test]
    fn nothing() {
        let mut fake = Fake::with(vec![]);
        let (status, out, err) = run("status", &mut fake);
        assert_eq!(
            (status, out.as_str(), err.as_str()),
            (0, "", "no pools available\n")
        );
        let (status, _, err) = run("status nosuch", &mut fake);
        assert_eq!(
            (status, err.as_str()),
            (1, "cannot open 'nosuch': no such pool\n")
        );
    }
}
