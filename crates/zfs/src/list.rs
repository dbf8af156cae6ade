//! `zfs list`.

use crate::common;
use api::{Dataset, DatasetGet, DatasetKind, Select, Value};
use cli::columns::{self, Column};
use cli::json::{envelope, line, property, Object, Put};
use cli::props::{self, Info};
use cli::{value, Cx, Fail, Outcome, Parsed};
use std::cmp::Ordering;

const DEFAULT: &str = "name,used,available,referenced,mountpoint";
const SPACE: &str = "name,available,used,usedbysnapshots,usedbydataset,usedbyrefreservation,\
usedbychildren";

struct Want {
    name: String,
    info: Option<&'static Info>,
}

pub fn list(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let json = common::json_style(args)?;
    let exact = args.has("p") || json.is_some_and(|j| j.exact);
    let text = args.get("o").unwrap_or(DEFAULT);
    let mut want = Vec::new();
    for word in text
        .split(',')
        .flat_map(|w| if w == "space" { SPACE } else { w }.split(','))
    {
        let name = common::known_property(word)
            .ok_or_else(|| Fail::Usage(format!("bad property list: invalid property '{word}'")))?;
        let info = props::dataset(&name);
        want.push(Want { name, info });
    }
    let mut keys = Vec::new();
    for (option, word) in args.in_order() {
        if option == "s" || option == "S" {
            let word = word.unwrap_or_default();
            let name = common::known_property(word)
                .ok_or_else(|| Fail::Usage(format!("invalid property '{word}'")))?;
            keys.push((name, option == "S"));
        }
    }
    let depth = common::depth(args)?;
    let all_kinds = [DatasetKind::Filesystem, DatasetKind::Volume];
    let kinds = match (args.get("t"), text) {
        (Some(t), _) => common::kinds(t)?,
        _ => all_kinds.to_vec(),
    };
    let (mut roots, mut failed) = common::roots(&args.operands, cx)?;
    failed |= refuse(&mut roots, &kinds, args.has("t"), cx)?;
    if roots.is_empty() && failed {
        return Ok(1);
    }
    let recursive = args.has("r");
    let named_mark = |r: &String| r.contains(['@', '#']);
    let depth = match depth {
        Some(d) => Some(d),
        None if recursive || roots.is_empty() => None,
        // The snapshots of a file system are one below it.
        None if common::asks_below(args, &kinds, &roots) => Some(1),
        None => Some(0),
    };
    let kinds = match args.get("t") {
        // A snapshot named is shown whatever the default kinds are.
        None if roots.iter().any(named_mark) => vec![
            DatasetKind::Filesystem,
            DatasetKind::Volume,
            DatasetKind::Snapshot,
            DatasetKind::Bookmark,
        ],
        _ => kinds,
    };
    let mut names: Vec<String> = want.iter().map(|w| w.name.clone()).collect();
    names.extend(keys.iter().map(|k| k.0.clone()));
    names.retain(|n| n != "name");
    names.sort();
    names.dedup();
    let (mut found, more_failed) = common::datasets(
        cx,
        DatasetGet {
            roots,
            depth,
            kinds,
            listsnapshots: !args.has("t"),
            props: if names.is_empty() {
                Select::Nothing
            } else {
                Select::These(names)
            },
        },
    )?;
    failed |= more_failed;
    sort(&mut found, &keys, cx);
    if let Some(style) = json {
        let mut report = envelope("zfs list");
        let mut all = Object::new();
        for d in &found {
            let mut o = common::json_dataset(d, style);
            let mut out = Object::new();
            for w in want.iter().filter(|w| w.name != "name") {
                if let Some(p) = d.props.iter().find(|p| p.name == w.name) {
                    let text = value::dataset(&p.name, &p.value, style.exact, &cx.zone);
                    out.put(w.name.as_str(), property(style.text(text), &p.source));
                }
            }
            o.put("properties", out);
            all.put(d.name.as_str(), o);
        }
        report.put("datasets", all);
        writeln!(cx.out, "{}", line(report))?;
        return Ok(i32::from(failed));
    }
    if found.is_empty() {
        if !failed && !args.has("H") {
            cx.say("no datasets available")?;
        }
        return Ok(i32::from(failed));
    }
    let text = render(&found, &want, args.has("H"), exact, cx);
    let header = !args.has("H") && cx.wants_colour();
    write!(
        cx.out,
        "{}",
        cli::colour::headings(&text, usize::from(header))
    )?;
    Ok(i32::from(failed))
}

/// Takes off names of a kind that is not listed, and says so. A snapshot is listed whatever the default kinds are.
fn refuse(
    roots: &mut Vec<String>,
    kinds: &[DatasetKind],
    given: bool,
    cx: &mut Cx<'_>,
) -> Result<bool, Fail> {
    let all = std::mem::take(roots);
    let count = all.len();
    for name in all {
        let unwanted = |kind| !kinds.contains(&kind);
        let why = if name.contains('#') && unwanted(DatasetKind::Bookmark) {
            "bookmark delimiter '#' is not expected here"
        } else if name.contains('@') && given && unwanted(DatasetKind::Snapshot) {
            "snapshot delimiter '@' is not expected here"
        } else {
            roots.push(name);
            continue;
        };
        cx.say(&format!("cannot open '{name}': {why}"))?;
    }
    Ok(roots.len() < count)
}

fn raw<'a>(d: &'a Dataset, name: &str) -> &'a Value {
    static NONE: Value = Value::None;
    d.props
        .iter()
        .find(|p| p.name == name)
        .map_or(&NONE, |p| &p.value)
}

fn cell(d: &Dataset, name: &str, exact: bool, cx: &Cx<'_>) -> String {
    if name == "name" {
        return d.name.clone();
    }
    value::dataset(name, raw(d, name), exact, &cx.zone)
}

fn render(found: &[Dataset], want: &[Want], scripted: bool, exact: bool, cx: &Cx<'_>) -> String {
    let rows: Vec<Vec<String>> = found
        .iter()
        .map(|d| want.iter().map(|w| cell(d, &w.name, exact, cx)).collect())
        .collect();
    let mut cols = Vec::new();
    for (i, w) in want.iter().enumerate() {
        let mut col = match w.info {
            Some(info) if info.right() => Column::right(info.column),
            Some(info) => Column::left(info.column),
            None if props::is_user_property(&w.name) => Column::left(&w.name.to_uppercase()),
            None => Column::right(&w.name.to_uppercase()),
        };
        let (width, fixed) = w.info.map_or((col.width, false), Info::width);
        col.widen(width);
        if !fixed || exact {
            for row in &rows {
                col.widen(row[i].chars().count());
            }
        }
        cols.push(col);
    }
    let mut out = String::new();
    if !scripted {
        out.push_str(&columns::header(&cols));
    }
    for row in &rows {
        out.push_str(&columns::line(&cols, row, scripted));
    }
    out
}

/// Tree order: names component by component; the marks of a dataset right behind it, by creation.
fn by_name(a: &Dataset, b: &Dataset) -> Ordering {
    fn split(name: &str) -> (Vec<&str>, &str) {
        match name.find(['@', '#']) {
            Some(at) => (name[..at].split('/').collect(), &name[at..]),
            None => (name.split('/').collect(), ""),
        }
    }
    let ((pa, ma), (pb, mb)) = (split(&a.name), split(&b.name));
    pa.cmp(&pb)
        .then_with(|| (!ma.is_empty()).cmp(&!mb.is_empty()))
        .then_with(|| ma.starts_with('#').cmp(&mb.starts_with('#')))
        .then_with(|| a.createtxg.cmp(&b.createtxg))
        .then_with(|| ma.cmp(mb))
}

fn sort(found: &mut [Dataset], keys: &[(String, bool)], cx: &Cx<'_>) {
    found.sort_by(|a, b| {
        for (key, descending) in keys {
            let order = if key == "name" {
                // Asked for by `-s`: as it is written, not as it is nested.
                a.name.cmp(&b.name)
            } else {
                match (raw(a, key), raw(b, key)) {
                    (Value::None, Value::None) => Ordering::Equal,
                    // What does not have the property comes last, either way.
                    (Value::None, _) => return Ordering::Greater,
                    (_, Value::None) => return Ordering::Less,
                    (Value::Number(x), Value::Number(y)) => x.cmp(y),
                    (x, y) => value::dataset(key, x, true, &cx.zone)
                        .cmp(&value::dataset(key, y, true, &cx.zone)),
                }
            };
            let order = if *descending { order.reverse() } else { order };
            if order != Ordering::Equal {
                return order;
            }
        }
        by_name(a, b)
    });
}

#[cfg(test)]
mod tests {
    use crate::testing::{run, tree, Fake};
    use api::{DatasetKind, Request};

    #[test]
    fn as_the_real_one_prints() {
        let mut fake = Fake::with(tree());
        let (status, out, err) = run("list", &mut fake);
        assert_eq!((status, err.as_str()), (0, ""));
        assert_eq!(
            out,
            "NAME       USED  AVAIL  REFER  MOUNTPOINT\n\
             tank       132K   832M    24K  /tank\n\
             tank/a    1.50K   832M     0B  /tank/a\n\
             tank/a/b  1.50K   832M     0B  none\n\
             tank/a-c  1.50K   832M     0B  -\n"
        );
        let (_, out, _) = run("list -Hp -o name,used,creation tank", &mut fake);
        assert_eq!(out, "tank\t135168\t1795180045\n");
        let (_, out, _) = run("list -o space -r tank/a", &mut fake);
        assert_eq!(
            out,
            "NAME      AVAIL   USED  USEDSNAP  USEDDS  USEDREFRESERV  USEDCHILD\n\
             tank/a     832M  1.50K         -       -              -          -\n\
             tank/a/b   832M  1.50K         -       -              -          -\n"
        );
        let (_, out, _) = run("list -o compression,com.x:y,creation,name tank", &mut fake);
        assert_eq!(
            out,
            "COMPRESS        COM.X:Y  CREATION               NAME\n\
             lz4             hello    Fri Nov 20 13:07 2026  tank\n"
        );
    }

    #[test]
    fn sorts() {
        let mut fake = Fake::with(tree());
        let names = |line: &str, fake: &mut Fake| run(line, fake).1.replace('\n', " ");
        assert_eq!(
            names("list -Ho name -S name", &mut fake),
            "tank/a/b tank/a-c tank/a tank "
        );
        assert_eq!(
            names("list -Ho name -s used", &mut fake),
            "tank/a tank/a/b tank/a-c tank "
        );
        // Those without the property are last, either way.
        assert_eq!(
            names("list -Ho name -s compress", &mut fake),
            "tank tank/a tank/a/b tank/a-c "
        );
        assert_eq!(
            names("list -Ho name -S compress", &mut fake),
            "tank tank/a tank/a/b tank/a-c "
        );
        assert_eq!(
            names("list -Ho name -t all", &mut fake),
            "tank tank/a tank/a@2 tank/a@1 tank/a#m tank/a/b tank/a-c "
        );
    }

    #[test]
    fn depth_and_kinds() {
        let mut fake = Fake::with(tree());
        let mut asked = |line: &str| {
            fake.seen.clear();
            run(line, &mut fake);
            match fake.seen.first() {
                Some(Request::DatasetGet(g)) => (g.depth, g.kinds.clone()),
                other => panic!("{other:?}"),
            }
        };
        use DatasetKind::*;
        let fsvol = vec![Filesystem, Volume];
        assert_eq!(asked("list"), (None, fsvol.clone()));
        assert_eq!(asked("list tank"), (Some(0), fsvol.clone()));
        assert_eq!(asked("list -d 2 tank"), (Some(2), fsvol.clone()));
        assert_eq!(asked("list -r tank"), (None, fsvol));
        assert_eq!(asked("list -t snap tank"), (Some(1), vec![Snapshot]));
        assert_eq!(asked("list -t snap tank/a@1"), (Some(0), vec![Snapshot]));
        assert_eq!(
            asked("list -t fs,bookmark tank"),
            (Some(0), vec![Filesystem, Bookmark])
        );
    }

    #[test]
    fn json() {
        let mut fake = Fake::with(tree());
        let (_, out, _) = run("list -j -o used,mountpoint tank", &mut fake);
        assert_eq!(
            out,
            "{\"output_version\":{\"command\":\"zfs list\",\"vers_major\":0,\"vers_minor\":1},\
             \"datasets\":{\"tank\":{\"name\":\"tank\",\"type\":\"FILESYSTEM\",\"pool\":\"tank\",\
             \"createtxg\":\"1\",\"properties\":{\"used\":{\"value\":\"132K\",\"source\":{\"type\":\"NONE\",\
             \"data\":\"-\"}},\"mountpoint\":{\"value\":\"/tank\",\"source\":{\"type\":\"DEFAULT\",\"data\":\"-\"}}}}}}\n"
        );
        let (_, out, _) = run("list -j --json-int -o used -t snapshot tank/a", &mut fake);
        assert!(out.contains("\"dataset\":\"tank/a\",\"snapshot_name\":\"2\""));
    }

    #[test]
    fn wrong() {
        let mut fake = Fake::with(tree());
        assert_eq!(
            run("list tank/nope", &mut fake),
            (
                1,
                String::new(),
                "cannot open 'tank/nope': dataset does not exist\n".into()
            )
        );
        let (status, _, err) = run("list tank//x", &mut fake);
        assert_eq!(status, 1);
        assert_eq!(
            err,
            "cannot open 'tank//x': empty component or misplaced '@' or '#' delimiter in name\n"
        );
        for line in [
            "list -o nope",
            "list -o all",
            "list -t nope",
            "list -s nope",
            "list -d x",
            "list --json-int",
        ] {
            assert_eq!(run(line, &mut fake).0, 2, "{line}");
        }
        let (status, out, err) = run("list", &mut Fake::default());
        assert_eq!(
            (status, out.as_str(), err.as_str()),
            (0, "", "no datasets available\n")
        );
        let (status, _, err) = run("list /", &mut fake);
        assert_eq!(
            (status, err.as_str()),
            (1, "cannot open '/': not a ZFS filesystem\n")
        );
    }
}
