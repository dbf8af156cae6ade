//! `zpool status -j` (command reference §4).

use super::{dedup, tabbed, top, wear, Look};
use crate::common;
use crate::iostat::nice_time;
use crate::{status_reason, status_text};
use api::{Pool, Scan, ScanFunction, ScanState, Vdev, VdevClass};
use base::sizes::nice;
use cli::json::{envelope, Json, Object, Put, Style};
use cli::vdevs::{self, Naming};
use cli::{time, Cx, Parsed};
use tz::TimeZone;

/// What every vdev in JSON begins with.
pub fn vdev_info(vdev: &Vdev, name: &str, style: Style) -> Object {
    let mut o = Object::new()
        .with("name", name)
        .with("vdev_type", vdevs::kind_word(vdev.kind))
        .with("guid", style.plain(vdev.guid));
    if let Some(path) = &vdev.path {
        o.put("path", path.as_str());
    }
    o.put("class", vdevs::class_word(vdev.class));
    o.put("state", vdevs::state_word(vdev.state));
    o
}

pub fn report(
    pools: &[Pool],
    args: &Parsed,
    style: Style,
    look: &Look,
    stamp: Option<String>,
    cx: &Cx<'_>,
) -> Object {
    let mut report = envelope("zpool status");
    if let Some(t) = stamp {
        report.put("time", style.text(t));
    }
    let mut all = Object::new();
    for pool in pools {
        let reason = status_reason::reason(pool);
        if args.has("x") && reason.is_healthy_enough() {
            continue;
        }
        let flat = args.has("json-flat-vdevs");
        all.put(
            common::json_key(pool, args),
            one(pool, reason, style, look, flat, &cx.zone),
        );
    }
    report.put("pools", all);
    report
}

fn one(
    pool: &Pool,
    reason: status_reason::Reason,
    style: Style,
    look: &Look,
    flat: bool,
    zone: &TimeZone,
) -> Object {
    let mut o = common::json_pool(pool, style, false);
    let text = reason.text(&pool.facts);
    if let Some(s) = &text.status {
        o.put("status", as_printed(s));
    }
    if let Some(s) = &text.action {
        o.put("action", as_printed(s));
    }
    if let Some(id) = text.id {
        o.put("msgid", format!("ZFS-8000-{id}"));
        o.put("moreinfo", status_text::see(id));
    }
    let mut scans = Object::new();
    if let Some(scan) = &pool.scan {
        if scan.function != ScanFunction::None {
            scans = scan_stats(scan, style, zone);
        }
    }
    if let Some(e) = pool.error_scrub.filter(|e| e.state != ScanState::None) {
        scans.put("err_scrub_state", error_scrub_word(e.state));
        scans.put("err_scrub_start_time", moment(style, zone, e.start));
        scans.put("err_scrub_end_time", moment(style, zone, e.end));
        scans.put("err_scrub_examined", style.plain(e.examined));
        scans.put("err_scrub_to_examine", style.plain(e.to_examine));
    }
    let mut rebuilds = Object::new();
    let done = |r: &&api::Rebuild| r.state != ScanState::None;
    for r in pool.rebuilds.iter().filter(done) {
        let (name, x) = rebuild_stats(pool, r, style, look, zone);
        rebuilds.put(name, x);
    }
    if !rebuilds.is_empty() {
        scans.put("rebuild_stats", rebuilds);
    }
    if !scans.is_empty() {
        o.put("scan_stats", scans);
    }
    if let Some(r) = pool.removal.as_ref().filter(|r| r.state != ScanState::None) {
        let size = |n: u64| style.nice(n, || nice(n, true));
        let (_, mut x) = top_info(pool, r.vdev, style, look);
        x.put("state", state_word(r.state));
        x.put("removing_vdev", style.plain(r.vdev));
        x.put("start_time", moment(style, zone, r.start));
        x.put("end_time", moment(style, zone, r.end));
        x.put("to_copy", size(r.to_copy));
        x.put("copied", size(r.copied));
        x.put("mapping_memory", size(r.mapping_memory));
        o.put("removal_stats", x);
    }
    if let Some(c) = &pool.checkpoint {
        let state = if c.discarding { "DISCARDING" } else { "EXISTS" };
        let mut x = Object::new()
            .with("state", state)
            .with("start_time", moment(style, zone, c.created));
        x.put("space", style.nice(c.space, || nice(c.space, true)));
        o.put("checkpoint_stats", x);
    }
    if let Some(e) = pool
        .expansion
        .as_ref()
        .filter(|e| e.state != ScanState::None)
    {
        let size = |n: u64| style.nice(n, || nice(n, true));
        let (_, mut x) = top_info(pool, e.vdev, style, look);
        x.put("state", state_word(e.state));
        x.put("expanding_vdev", style.plain(e.vdev));
        x.put("start_time", moment(style, zone, e.start));
        x.put("end_time", moment(style, zone, e.end));
        x.put("to_reflow", size(e.to_reflow));
        x.put("reflowed", size(e.reflowed));
        x.put("waiting_for_resilver", style.plain(u64::from(e.waiting)));
        o.put("raidz_expand_stats", x);
    }
    devices(&mut o, pool, style, look, flat);
    if let Some(d) = pool.dedup.as_ref().filter(|_| look.dedup) {
        o.put("dedup_stats", dedup::json(d, style));
    }
    o.put("error_count", style.plain(pool.error_count.unwrap_or(0)));
    if look.verbose && !pool.error_list.is_empty() {
        let list = pool.error_list.iter().map(|e| Json::String(e.clone()));
        o.put("errlist", Json::Array(list.collect()));
    }
    o
}

/// The tree of devices, and those of other classes.
pub fn devices(o: &mut Object, pool: &Pool, style: Style, look: &Look, flat: bool) {
    if let Some(tree) = &pool.tree {
        let mut into = Object::new();
        let context = Context { pool, style, look };
        if flat {
            context.flat(tree, None, VdevClass::Normal, &mut into);
        } else {
            let (name, json) = context.vdev(tree, VdevClass::Normal);
            into.put(name, json);
        }
        o.put("vdevs", into);
        for (class, heading) in vdevs::CLASSES {
            let key = if class == VdevClass::Cache {
                "l2cache"
            } else {
                heading
            };
            let mut members = Object::new();
            for v in vdevs::of_class(tree, class) {
                if flat {
                    context.flat(v, Some(&pool.name), class, &mut members);
                } else {
                    let (name, json) = context.vdev(v, class);
                    members.put(name, json);
                }
            }
            if !members.is_empty() {
                o.put(key, members);
            }
        }
    }
}

struct Context<'a> {
    pool: &'a Pool,
    style: Style,
    look: &'a Look,
}

impl Context<'_> {
    fn own(&self, vdev: &Vdev) -> (String, Object) {
        let how = Naming {
            numbered: true,
            ..self.look.how
        };
        let name = vdevs::name(vdev, &self.pool.name, how);
        let style = self.style;
        let mut o = vdev_info(vdev, &name, style);
        let s = &vdev.stats;
        let size = |n: u64| style.nice(n, || nice(n, false));
        for (key, n) in [
            ("alloc_space", s.alloc),
            ("total_space", s.space),
            ("def_space", s.dspace),
            ("rep_dev_size", s.rsize),
            ("ex_dev_size", s.esize),
            ("self_healed", s.self_healed),
            ("phys_space", s.physical),
        ] {
            if n != 0 {
                o.put(key, size(n));
            }
        }
        for (key, n) in [
            ("read_errors", s.read_errors),
            ("write_errors", s.write_errors),
            ("checksum_errors", s.checksum_errors),
        ] {
            o.put(key, size(n));
        }
        if s.scan_processed != 0 {
            o.put("scan_processed", size(s.scan_processed));
        }
        if s.resilver_deferred {
            o.put("resilver_deferred", "true");
        }
        if self.look.slow && vdevs::is_leaf(vdev) {
            o.put("slow_ios", size(s.slow_ios));
        }
        if vdev.not_present {
            o.put("not_present", "1");
            if let Some(path) = &vdev.path {
                o.put("was", path.as_str());
            }
        } else if let Some(note) = vdevs::missing(vdev) {
            o.put("aux", note);
        } else if let Some(note) = vdevs::aux(vdev) {
            o.put("aux", note);
        }
        if s.configured_ashift != 0 && s.physical_ashift > s.configured_ashift {
            let bytes = |a: u64| style.plain(1u64.checked_shl(a as u32).unwrap_or(0));
            o.put("configured_ashift", bytes(s.configured_ashift));
            o.put("physical_ashift", bytes(s.physical_ashift));
        }
        if s.removing {
            o.put("removing", "1");
        }
        if s.noalloc {
            o.put("noalloc", "1");
        }
        if vdevs::is_leaf(vdev) && vdev.class != VdevClass::Spare {
            wear::put(&mut o, s, self.look, style);
        }
        (name, o)
    }

    /// Children of the root are those of its class; the others have groups of their own.
    fn children(vdev: &Vdev, class: VdevClass) -> impl Iterator<Item = &Vdev> {
        let root = vdev.kind == api::VdevKind::Root;
        vdev.children
            .iter()
            .filter(move |c| !root || c.class == class)
    }

    fn vdev(&self, vdev: &Vdev, class: VdevClass) -> (String, Object) {
        let (name, mut o) = self.own(vdev);
        let mut children = Object::new();
        for child in Self::children(vdev, class) {
            let (name, json) = self.vdev(child, class);
            children.put(name, json);
        }
        if !children.is_empty() {
            o.put("vdevs", children);
        }
        (name, o)
    }

    fn flat(&self, vdev: &Vdev, parent: Option<&str>, class: VdevClass, into: &mut Object) {
        let (name, mut o) = self.own(vdev);
        if let Some(parent) = parent {
            o.put("parent", parent);
        }
        into.put(name.as_str(), o);
        for child in Self::children(vdev, class) {
            self.flat(child, Some(&name), class, into);
        }
    }
}

fn state_word(state: ScanState) -> &'static str {
    match state {
        ScanState::None => "NONE",
        ScanState::Scanning => "SCANNING",
        ScanState::Finished => "FINISHED",
        ScanState::Canceled => "CANCELED",
    }
}

fn error_scrub_word(state: ScanState) -> &'static str {
    match state {
        ScanState::Scanning => "ERRORSCRUBBING",
        other => state_word(other),
    }
}

/// A time, as date(1) prints it; of what has not been, a dash.
pub fn moment(style: Style, zone: &TimeZone, t: u64) -> Json {
    style.nice(t, || match t {
        0 => "-".into(),
        t => time::date(t, zone),
    })
}

/// The texts are those printed without `-j`, to the end of the last line.
pub fn as_printed(text: &str) -> String {
    format!("{}\n", tabbed(text))
}

/// Name of a top-level vdev by its id, and what vdevs in JSON begin with. One that is not in the tree
/// was removed.
fn top_info(pool: &Pool, id: u64, style: Style, look: &Look) -> (String, Object) {
    let how = Naming {
        numbered: true,
        ..look.how
    };
    match top(pool, id) {
        Some(v) => {
            let name = vdevs::name(v, &pool.name, how);
            let info = vdev_info(v, &name, style);
            (name, info)
        }
        None => {
            let name = format!("indirect-{id}");
            let info = Object::new()
                .with("name", name.as_str())
                .with("vdev_type", "indirect")
                .with("class", "normal");
            (name, info)
        }
    }
}

fn rebuild_stats(
    pool: &Pool,
    r: &api::Rebuild,
    style: Style,
    look: &Look,
    zone: &TimeZone,
) -> (String, Object) {
    let (name, mut x) = top_info(pool, r.vdev, style, look);
    let size = |n: u64| style.nice(n, || nice(n, true));
    x.put(
        "state",
        match r.state {
            ScanState::None => "NONE",
            ScanState::Scanning => "ACTIVE",
            ScanState::Finished => "COMPLETE",
            ScanState::Canceled => "CANCELED",
        },
    );
    x.put("start_time", moment(style, zone, r.start));
    x.put("end_time", moment(style, zone, r.end));
    let span = |ms: u64| style.nice(ms * 1_000_000, || nice_time(ms * 1_000_000, false));
    x.put("scan_time", span(r.time_ms));
    for (key, n) in [
        ("scanned", r.scanned),
        ("issued", r.issued),
        ("rebuilt", r.rebuilt),
        ("to_scan", r.to_scan),
    ] {
        x.put(key, size(n));
    }
    x.put("errors", style.plain(r.errors));
    x.put("pass_time", span(r.pass_ms));
    for (key, n) in [
        ("pass_scanned", r.pass_scanned),
        ("pass_issued", r.pass_issued),
        ("pass_skipped", r.pass_skipped),
    ] {
        x.put(key, size(n));
    }
    (name, x)
}

fn scan_stats(scan: &Scan, style: Style, zone: &TimeZone) -> Object {
    let size = |n: u64| style.nice(n, || nice(n, true));
    let mut o = Object::new()
        .with(
            "function",
            match scan.function {
                ScanFunction::None => "NONE",
                ScanFunction::Scrub => "SCRUB",
                ScanFunction::Resilver => "RESILVER",
            },
        )
        .with("state", state_word(scan.state))
        .with("start_time", moment(style, zone, scan.start))
        .with("end_time", moment(style, zone, scan.end));
    for (key, n) in [
        ("to_examine", scan.to_examine),
        ("examined", scan.examined),
        ("skipped", scan.skipped),
        ("processed", scan.processed),
    ] {
        o.put(key, size(n));
    }
    o.put("errors", style.plain(scan.errors));
    o.put("bytes_per_scan", size(scan.pass_examined));
    o.put("pass_start", moment(style, zone, scan.pass_start));
    o.put(
        "scrub_pause",
        moment(style, zone, scan.paused_at.unwrap_or(0)),
    );
    o.put("scrub_spent_paused", style.plain(scan.spent_paused));
    o.put("issued_bytes_per_scan", size(scan.pass_issued));
    o.put("issued", size(scan.issued));
    o
}

#[cfg(test)]
mod tests {
    use crate::testing::{run, sample, Fake};

    #[test]
    fn nested_and_flat() {
        let mut fake = Fake::with(vec![sample("tank")]);
        let (_, out, _) = run("status -j", &mut fake);
        assert!(out.starts_with(
            "{\"output_version\":{\"command\":\"zpool status\",\"vers_major\":0,\"vers_minor\":1},\
             \"pools\":{\"tank\":{\"name\":\"tank\",\"state\":\"ONLINE\",\"pool_guid\":\"42\",\
             \"txg\":\"7\",\"spa_version\":\"5000\",\"zpl_version\":\"5\",\
             \"vdevs\":{\"tank\":{\"name\":\"tank\",\"vdev_type\":\"root\",\"guid\":\"1000\",\
             \"class\":\"normal\",\"state\":\"ONLINE\",\"alloc_space\":\"132K\",\
             \"total_space\":\"960M\",\"read_errors\":\"0\",\"write_errors\":\"0\",\
             \"checksum_errors\":\"0\",\"vdevs\":{\"mirror-0\":{"
        ), "{out}");
        assert!(out.contains("\"logs\":{\"sdc\":{\"name\":\"sdc\",\"vdev_type\":\"disk\""));
        assert!(out.ends_with(",\"error_count\":\"0\"}}}\n"));
        let (_, out, _) = run(
            "status -j --json-int --json-flat-vdevs --json-pool-key-guid",
            &mut fake,
        );
        assert!(out.contains("\"pools\":{\"42\":"));
        assert!(out.contains("\"error_count\":0"));
        assert!(out.contains("\"parent\":\"mirror-0\""));
    }

    /// What goes on, or went on, in a pool.
    #[test]
    fn activities() {
        let mut p = sample("tank");
        let at = 1_795_182_531; // Fri Nov 20 13:48:51 2026
        p.scan = Some(api::Scan {
            function: api::ScanFunction::Scrub,
            state: api::ScanState::Scanning,
            start: at,
            pass_start: at,
            to_examine: 4 << 20,
            ..api::Scan::default()
        });
        p.rebuilds = vec![api::Rebuild {
            state: api::ScanState::Finished,
            start: at,
            end: at + 1,
            rebuilt: 1 << 20,
            ..api::Rebuild::default()
        }];
        p.removal = Some(api::Removal {
            state: api::ScanState::Finished,
            vdev: 3,
            start: at,
            end: at + 17,
            copied: 4096,
            ..api::Removal::default()
        });
        p.expansion = Some(api::Expansion {
            state: api::ScanState::Scanning,
            start: at,
            ..api::Expansion::default()
        });
        p.facts.disabled_features = vec!["draid".into()];
        let mut fake = Fake::with(vec![p]);
        let (_, out, _) = run("status -j", &mut fake);
        let started = "\"start_time\":\"Fri Nov 20 13:48:51 UTC 2026\"";
        let mirror = "\"name\":\"mirror-0\",\"vdev_type\":\"mirror\",";
        for part in [
            "\"status\":\"Some supported and requested features are not enabled on the pool.\\n\\tThe \
             pool can still be used, but some features are unavailable.\\n\",",
            &format!("\"state\":\"SCANNING\",{started},\"end_time\":\"-\",\"to_examine\":\"4M\""),
            "\"pass_start\":\"Fri Nov 20 13:48:51 UTC 2026\",\"scrub_pause\":\"-\"",
            &format!("\"issued\":\"0B\",\"rebuild_stats\":{{\"mirror-0\":{{{mirror}"),
            &format!("\"state\":\"COMPLETE\",{started},"),
            "\"rebuilt\":\"1M\",\"to_scan\":\"0B\",\"errors\":\"0\",\"pass_time\":\"-\",\"pass_scanned\":\"0B\",\"pass_issued\":\"0B\",\"pass_skipped\":\"0B\"}}},\"removal_stats\":{\"name\":\"indirect-3\",\
             \"vdev_type\":\"indirect\",\"class\":\"normal\",\"state\":\"FINISHED\",\"removing_vdev\":\"3\",",
            &format!("\"raidz_expand_stats\":{{{mirror}"),
            "\"reflowed\":\"0B\",\"waiting_for_resilver\":\"0\"},\"vdevs\":",
        ] {
            assert!(out.contains(part), "{part} is not in {out}");
        }
        let (_, out, _) = run("status -j --json-int", &mut fake);
        let want = "\"pass_start\":1795182531,\"scrub_pause\":0,\"scrub_spent_paused\":0";
        assert!(out.contains(want), "{out}");
    }
}
