//! `zpool list`.

use crate::common;
use api::{Pool, PoolGet, Select, Value, Vdev, VdevAux, VdevClass};
use base::sizes::nice;
use cli::columns::{self, Column};
use cli::json::{envelope, property, Json, Object, Put, Style};
use cli::props::{self, Form, Info};
use cli::vdevs::{self, Naming};
use cli::{value, Cx, Fail, Outcome, Parsed};

const DEFAULT: &str = "name,size,allocated,free,checkpoint,expandsize,fragmentation,capacity,\
dedupratio,health,altroot";

/// One column asked for.
struct Want {
    name: String,
    info: Option<&'static Info>,
}

fn wanted(text: &str) -> Result<Vec<Want>, Fail> {
    text.split(',')
        .map(|word| {
            let name = common::pool_property(word).ok_or_else(|| {
                Fail::Usage(format!("bad property list: invalid property '{word}'"))
            })?;
            let info = props::pool(&name);
            Ok(Want { name, info })
        })
        .collect()
}

pub fn list(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let json = common::json_style(args)?;
    let exact = args.has("p") || json.is_some_and(|j| j.exact);
    let want = wanted(args.get("o").unwrap_or(DEFAULT))?;
    let mut names = args.operands.clone();
    let repeat = cli::run::take_repeat(&mut names)?;
    let how = common::naming(args, cx);
    let verbose = args.has("v");
    let mut reports = 0;
    let mut status = 0;
    loop {
        let stamp = common::stamp(args, cx)?;
        let (pools, failed) = common::pools(
            cx,
            PoolGet {
                pools: names.clone(),
                props: Select::These(want.iter().map(|w| w.name.clone()).collect()),
                tree: verbose,
                removed: verbose,
                ..PoolGet::default()
            },
        )?;
        status = status.max(i32::from(failed));
        if let Some(style) = json {
            let mut report = envelope("zpool list");
            if let Some(t) = stamp {
                report.put("time", style.text(t));
            }
            let mut all = Object::new();
            for pool in &pools {
                all.put(
                    common::json_key(pool, args),
                    json_row(pool, &want, style, verbose, how, cx),
                );
            }
            report.put("pools", all);
            common::print_json(cx, report)?;
        } else {
            if let Some(t) = stamp {
                writeln!(cx.out, "{t}")?;
            }
            if pools.is_empty() && !failed {
                // Three words would be three pools to a script.
                if !args.has("H") {
                    writeln!(cx.out, "no pools available")?;
                }
                return Ok(status);
            }
            let text = render(
                &pools,
                &want,
                &Look {
                    scripted: args.has("H"),
                    exact,
                    verbose,
                    how,
                    header: reports == 0 && !pools.is_empty(),
                },
                cx,
            );
            let header = reports == 0 && !args.has("H") && cx.wants_colour();
            let text = cli::colour::headings(&text, usize::from(header));
            write!(cx.out, "{text}")?;
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

struct Look {
    scripted: bool,
    exact: bool,
    verbose: bool,
    how: Naming,
    header: bool,
}

fn cell(pool: &Pool, want: &Want, exact: bool, cx: &Cx<'_>) -> String {
    if want.name == "name" {
        return pool.name.clone();
    }
    pool.props.iter().find(|p| p.name == want.name).map_or_else(
        || "-".to_string(),
        |p| value::pool(&p.name, &p.value, exact, &cx.zone),
    )
}

fn render(pools: &[Pool], want: &[Want], look: &Look, cx: &Cx<'_>) -> String {
    let rows: Vec<Vec<String>> = pools
        .iter()
        .map(|p| want.iter().map(|w| cell(p, w, look.exact, cx)).collect())
        .collect();
    let mut cols: Vec<Column> = Vec::new();
    for (i, w) in want.iter().enumerate() {
        let mut col = match w.info {
            Some(info) if info.right() => Column::right(info.column),
            Some(info) => Column::left(info.column),
            None => Column::left(&w.name.to_uppercase()),
        };
        let (width, fixed) = w.info.map_or((col.width, false), Info::width);
        col.widen(width);
        if !fixed || look.exact {
            for row in &rows {
                col.widen(row[i].chars().count());
            }
        }
        cols.push(col);
    }
    if look.verbose {
        // The first column makes room for the names of the devices.
        let widest = pools
            .iter()
            .filter_map(|p| {
                p.tree
                    .as_ref()
                    .map(|t| vdevs::name_width(t, &p.name, look.how))
            })
            .max()
            .unwrap_or(0);
        if let Some(first) = cols.first_mut() {
            first.width = widest.max(9);
        }
    }
    let mut out = String::new();
    if look.header && !look.scripted {
        out.push_str(&columns::header(&cols));
    }
    for (pool, row) in pools.iter().zip(&rows) {
        out.push_str(&columns::line(&cols, row, look.scripted));
        if let (true, Some(tree)) = (look.verbose, &pool.tree) {
            verbose_rows(&mut out, pool, tree, want, &cols, look);
        }
    }
    out
}

fn verbose_rows(
    out: &mut String,
    pool: &Pool,
    tree: &Vdev,
    want: &[Want],
    cols: &[Column],
    look: &Look,
) {
    for v in vdevs::shown(tree, VdevClass::Normal) {
        vdev_rows(out, pool, v, 2, want, cols, look);
    }
    for (class, heading) in vdevs::CLASSES {
        let heading = if heading == "spares" {
            "spare"
        } else {
            heading
        };
        let mut members = vdevs::shown(tree, class).peekable();
        if members.peek().is_none() {
            continue;
        }
        if !look.scripted {
            let mut cells = vec![heading.to_string()];
            cells.extend(want.iter().skip(1).map(|_| "-".to_string()));
            out.push_str(&columns::line(cols, &cells, false));
        }
        for v in members {
            vdev_rows(out, pool, v, 2, want, cols, look);
        }
    }
}

fn vdev_rows(
    out: &mut String,
    pool: &Pool,
    vdev: &Vdev,
    depth: usize,
    want: &[Want],
    cols: &[Column],
    look: &Look,
) {
    let name = vdevs::name(vdev, &pool.name, look.how);
    let mut cells = Vec::new();
    if look.scripted {
        cells.extend([String::new(), name]);
    } else {
        cells.push(format!("{:depth$}{name}", ""));
    }
    for w in want.iter().skip(1) {
        cells.push(vdev_cell(vdev, w, look.exact));
    }
    out.push_str(&columns::line(cols, &cells, look.scripted));
    for child in &vdev.children {
        vdev_rows(out, pool, child, depth + 2, want, cols, look);
    }
}

fn health(vdev: &Vdev) -> &'static str {
    match vdev.class {
        VdevClass::Spare if vdev.aux == VdevAux::Spared => "INUSE",
        VdevClass::Spare if vdev.state == api::VdevState::Online => "AVAIL",
        _ => vdevs::state(vdev.state, vdev.aux),
    }
}

fn vdev_cell(vdev: &Vdev, want: &Want, exact: bool) -> String {
    let s = &vdev.stats;
    let size = |n: u64| {
        if exact {
            n.to_string()
        } else {
            nice(n, false)
        }
    };
    let dash = || "-".to_string();
    // Space is counted at the top level only; a leaf below a group has its own size.
    let top = s.space != 0;
    match want.name.as_str() {
        "size" if vdevs::is_leaf(vdev) && s.physical != 0 => size(s.physical),
        "size" if top => size(s.space),
        "allocated" if top => size(s.alloc),
        "free" if top => size(s.space.saturating_sub(s.alloc)),
        "expandsize" if s.esize != 0 => size(s.esize),
        "fragmentation" if top => match s.fragmentation {
            Some(f) if exact => f.to_string(),
            Some(f) => format!("{f}%"),
            None => dash(),
        },
        "capacity" if top => capacity(s.alloc, s.space, exact),
        "health" => health(vdev).to_string(),
        _ => dash(),
    }
}

/// Part in use: below 10 % with two decimals, below 100 % with one.
fn capacity(alloc: u64, space: u64, exact: bool) -> String {
    let share = (u128::from(alloc) * 10_000 / u128::from(space.max(1))) as u64;
    let percent = share as f64 / 100.0;
    match share {
        _ if exact => (share / 100).to_string(),
        0..1_000 => format!("{percent:.2}%"),
        1_000..10_000 => format!("{percent:.1}%"),
        _ => format!("{percent:.0}%"),
    }
}

fn json_value(w: &Want, pool: &Pool, style: Style, cx: &Cx<'_>) -> Option<(Json, api::Source)> {
    let p = pool.props.iter().find(|p| p.name == w.name)?;
    let form = props::pool_form(&p.name);
    let text = value::pool(&p.name, &p.value, style.exact, &cx.zone);
    let json = match (&p.value, form) {
        (Value::Number(_), f) if !matches!(f, Form::Ratio) => style.text(text),
        _ => Json::String(text),
    };
    Some((json, p.source.clone()))
}

fn json_row(
    pool: &Pool,
    want: &[Want],
    style: Style,
    verbose: bool,
    how: Naming,
    cx: &Cx<'_>,
) -> Object {
    let mut o = common::json_pool(pool, style, true);
    let mut all = Object::new();
    for w in want.iter().filter(|w| w.name != "name") {
        if let Some((v, source)) = json_value(w, pool, style, cx) {
            all.put(w.name.as_str(), property(v, &source));
        }
    }
    o.put("properties", all);
    if let (true, Some(tree)) = (verbose, &pool.tree) {
        let mut groups: Vec<(VdevClass, &str)> = vec![(VdevClass::Normal, "vdevs")];
        groups.extend(vdevs::CLASSES.map(|(c, h)| {
            let key = if c == VdevClass::Cache { "l2cache" } else { h };
            (c, key)
        }));
        for (class, key) in groups {
            let mut members = Object::new();
            for v in vdevs::shown(tree, class) {
                let (name, json) = json_vdev(pool, v, want, style, how);
                members.put(name, json);
            }
            if !members.is_empty() || class == VdevClass::Normal {
                o.put(key, members);
            }
        }
    }
    o
}

fn json_vdev(
    pool: &Pool,
    vdev: &Vdev,
    want: &[Want],
    style: Style,
    how: Naming,
) -> (String, Object) {
    let name = vdevs::name(vdev, &pool.name, how);
    let mut o = crate::status::json::vdev_info(vdev, &name, style);
    let mut all = Object::new();
    for w in want.iter().filter(|w| w.name != "name") {
        let v = style.text(vdev_cell(vdev, w, style.exact));
        all.put(w.name.as_str(), property(v, &api::Source::None));
    }
    o.put("properties", all);
    let mut children = Object::new();
    for child in &vdev.children {
        let (name, json) = json_vdev(pool, child, want, style, how);
        children.put(name, json);
    }
    if !children.is_empty() {
        o.put("vdevs", children);
    }
    (name, o)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{run, sample, Fake};

    #[test]
    fn as_the_real_one_prints() {
        let mut fake = Fake::with(vec![sample("tank"), sample("longer-name")]);
        let (status, out, err) = run("list", &mut fake);
        assert_eq!((status, err.as_str()), (0, ""));
        assert_eq!(
            out,
            "NAME          SIZE  ALLOC   FREE  CKPOINT  EXPANDSZ   FRAG    CAP  DEDUP    HEALTH  ALTROOT\n\
             longer-name   960M   132K   960M        -         -     0%     0%  1.00x    ONLINE  -\n\
             tank          960M   132K   960M        -         -     0%     0%  1.00x    ONLINE  -\n"
        );
        let (_, out, _) = run("list -Hp -o name,size,cap,health tank", &mut fake);
        assert_eq!(out, "tank\t1006632960\t0\tONLINE\n");
        let (_, out, _) = run(
            "list -o size,name,dedup",
            &mut Fake::with(vec![sample("t")]),
        );
        assert_eq!(out, " SIZE  NAME  DEDUP\n 960M  t     1.00x\n");
    }

    #[test]
    fn with_vdevs() {
        let mut fake = Fake::with(vec![sample("tank")]);
        let (_, out, _) = run("list -v", &mut fake);
        assert_eq!(
            out,
            "NAME         SIZE  ALLOC   FREE  CKPOINT  EXPANDSZ   FRAG    CAP  DEDUP    HEALTH  ALTROOT\n\
             tank         960M   132K   960M        -         -     0%     0%  1.00x    ONLINE  -\n\
             \x20 mirror-0   960M   132K   960M        -         -     0%  0.01%      -    ONLINE  -\n\
             \x20   sda        1G      -      -        -         -      -      -      -    ONLINE  -\n\
             \x20   /img/b     1G      -      -        -         -      -      -      -    ONLINE  -\n\
             logs            -      -      -        -         -      -      -      -         -  -\n\
             \x20 sdc           -      -      -        -         -      -      -      -    ONLINE  -\n\
             spare           -      -      -        -         -      -      -      -         -  -\n\
             \x20 sdd           -      -      -        -         -      -      -      -     AVAIL  -\n"
        );
        let (_, out, _) = run("list -Hv -o name,size,health", &mut fake);
        assert_eq!(
            out,
            "tank\t960M\tONLINE\n\tmirror-0\t960M\tONLINE\n\tsda\t1G\tONLINE\n\t/img/b\t1G\tONLINE\n\
             \tsdc\t-\tONLINE\n\tsdd\t-\tAVAIL\n"
        );
    }

    #[test]
    fn json() {
        let mut fake = Fake::with(vec![sample("tank")]);
        let (_, out, _) = run("list -j -o size,health", &mut fake);
        assert_eq!(
            out,
            "{\"output_version\":{\"command\":\"zpool list\",\"vers_major\":0,\"vers_minor\":1},\
             \"pools\":{\"tank\":{\"name\":\"tank\",\"type\":\"POOL\",\"state\":\"ONLINE\",\
             \"pool_guid\":\"42\",\"txg\":\"7\",\"spa_version\":\"5000\",\"zpl_version\":\"5\",\
             \"properties\":{\"size\":{\"value\":\"960M\",\"source\":{\"type\":\"NONE\",\"data\":\"-\"}},\
             \"health\":{\"value\":\"ONLINE\",\"source\":{\"type\":\"NONE\",\"data\":\"-\"}}}}}}\n"
        );
        let (_, out, _) = run("list -j --json-int -o size", &mut fake);
        assert!(out.contains("\"pool_guid\":42,") && out.contains("\"value\":1006632960,"));
    }

    #[test]
    fn nothing_and_wrong() {
        let mut fake = Fake::with(vec![]);
        assert_eq!(
            run("list", &mut fake),
            (0, "no pools available\n".into(), String::new())
        );
        assert_eq!(run("list -H", &mut fake), (0, String::new(), String::new()));
        let (status, out, err) = run("list nosuch", &mut fake);
        assert_eq!((status, out.as_str()), (1, ""));
        assert_eq!(err, "cannot open 'nosuch': no such pool\n");
        let (status, _, err) = run("list -o nosuch", &mut fake);
        assert_eq!(status, 2);
        assert!(err.starts_with("bad property list: invalid property 'nosuch'\nusage:\n\tlist "));
        let (status, _, err) = run("list --json-int", &mut fake);
        assert_eq!(status, 2);
        assert!(err.starts_with("'--json-int' only works with '-j' option\n"));
    }

    #[test]
    fn capacities() {
        assert_eq!(capacity(52, 10_000, false), "0.52%");
        assert_eq!(capacity(1_234, 10_000, false), "12.3%");
        assert_eq!(capacity(10_000, 10_000, false), "100%");
        assert_eq!(capacity(1_299, 10_000, true), "12");
    }
}
