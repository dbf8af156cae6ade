//! `zfs get`.

use crate::common;
use api::{DatasetGet, DatasetKind, Select, Source};
use cli::get::Row;
use cli::json::{envelope, line, property, Object, Put};
use cli::{value, Cx, Fail, Outcome, Parsed};

/// The sources that `-s` selects; all without it.
fn sources(args: &Parsed) -> Result<Option<Vec<&str>>, Fail> {
    const KNOWN: [&str; 6] = [
        "local",
        "default",
        "inherited",
        "received",
        "temporary",
        "none",
    ];
    let Some(text) = args.get("s") else {
        return Ok(None);
    };
    let words: Vec<&str> = text.split(',').collect();
    match words.iter().find(|w| !KNOWN.contains(w)) {
        Some(bad) => Err(Fail::Usage(format!("invalid source '{bad}'"))),
        None => Ok(Some(words)),
    }
}

/// The properties of a list, by their full names.
fn properties(list: &str) -> Result<Vec<String>, Fail> {
    let known = |word| {
        common::known_property(word)
            .ok_or_else(|| Fail::Usage(format!("bad property list: invalid property '{word}'")))
    };
    list.split(',').map(known).collect()
}

pub fn get(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let json = common::json_style(args)?;
    let exact = args.has("p") || json.is_some_and(|j| j.exact);
    let fields = cli::get::fields(args.get("o"), true)?;
    let sources = sources(args)?;
    let Some((list, operands)) = args.operands.split_first() else {
        return Err(Fail::Usage("missing property argument".into()));
    };
    let (select, asked) = match list.as_str() {
        "all" => (Select::All, None),
        list => {
            let names = properties(list)?;
            (Select::These(names.clone()), Some(names))
        }
    };
    let depth = common::depth(args)?;
    let kinds = match args.get("t") {
        Some(t) => common::kinds(t)?,
        None => vec![
            DatasetKind::Filesystem,
            DatasetKind::Volume,
            DatasetKind::Snapshot,
            DatasetKind::Bookmark,
        ],
    };
    let (roots, mut failed) = common::roots(operands, cx)?;
    if roots.is_empty() && failed {
        return Ok(1);
    }
    let depth = match depth {
        Some(d) => Some(d),
        None if args.has("r") || roots.is_empty() => None,
        // The snapshots of a file system are one below it.
        None if common::asks_below(args, &kinds, &roots) => Some(1),
        None => Some(0),
    };
    let (found, more_failed) = common::datasets(
        cx,
        DatasetGet {
            roots,
            depth,
            kinds,
            listsnapshots: false,
            props: select,
        },
    )?;
    failed |= more_failed;
    let status = i32::from(failed);
    let keep = |source: &Source| {
        let word = match source {
            Source::None => "none",
            Source::Default => "default",
            Source::Local => "local",
            Source::Temporary => "temporary",
            Source::Received => "received",
            Source::Inherited(_) => "inherited",
        };
        sources.as_ref().is_none_or(|s| s.contains(&word))
    };
    if let Some(style) = json {
        let mut report = envelope("zfs get");
        let mut all = Object::new();
        for d in &found {
            let mut o = common::json_dataset(d, style);
            let mut out = Object::new();
            for p in d.props.iter().filter(|p| keep(&p.source)) {
                let text = value::dataset(&p.name, &p.value, exact, &cx.zone);
                out.put(p.name.as_str(), property(style.text(text), &p.source));
            }
            o.put("properties", out);
            all.put(d.name.as_str(), o);
        }
        report.put("datasets", all);
        writeln!(cx.out, "{}", line(report))?;
        return Ok(status);
    }
    let mut rows = Vec::new();
    for d in &found {
        for p in d.props.iter().filter(|p| keep(&p.source)) {
            rows.push(Row {
                name: d.name.clone(),
                property: p.name.clone(),
                value: value::dataset(&p.name, &p.value, exact, &cx.zone),
                received: p.received.as_ref().map_or_else(
                    || "-".to_string(),
                    |r| value::dataset(&p.name, r, exact, &cx.zone),
                ),
                source: value::source(&p.source),
            });
        }
    }
    if rows.is_empty() {
        if found.is_empty() && !failed && operands.is_empty() {
            cx.say("no datasets available")?;
        }
        return Ok(status);
    }
    let infos: Vec<&cli::props::Info> = match &asked {
        Some(names) => names
            .iter()
            .filter_map(|n| cli::props::dataset(n))
            .collect(),
        None => cli::props::DATASET.iter().filter(|p| p.visible).collect(),
    };
    write!(
        cx.out,
        "{}",
        cli::get::render(&rows, &fields, &infos, args.has("H"))
    )?;
    Ok(status)
}

#[cfg(test)]
mod tests {
    use crate::testing::{run, tree, Fake};

    #[test]
    fn as_the_real_one_prints() {
        let mut fake = Fake::with(tree());
        let (status, out, _) = run("get compression,used,com.x:y tank tank/a", &mut fake);
        assert_eq!(status, 0);
        assert_eq!(
            out,
            "NAME    PROPERTY     VALUE           SOURCE\n\
             tank    compression  lz4             local\n\
             tank    used         132K            -\n\
             tank    com.x:y      hello           local\n\
             tank/a  compression  -               -\n\
             tank/a  used         1.50K           -\n\
             tank/a  com.x:y      hello           inherited from tank\n"
        );
        let (_, out, _) = run("get -H -o value -p used tank", &mut fake);
        assert_eq!(out, "135168\n");
        let (_, out, _) = run("get -o all compression tank", &mut fake);
        assert_eq!(
            out,
            "NAME  PROPERTY     VALUE           RECEIVED  SOURCE\n\
             tank  compression  lz4             -         local\n"
        );
        let (_, out, _) = run("get -H -s inherited com.x:y tank tank/a", &mut fake);
        assert_eq!(out, "tank/a\tcom.x:y\thello\tinherited from tank\n");
        let (_, out, _) = run("get -j com.x:y tank/a", &mut fake);
        assert!(out.contains("\"com.x:y\":{\"value\":\"hello\",\"source\":{\"type\":\"INHERITED\",\"data\":\"tank\"}}"));
    }

    #[test]
    fn wrong() {
        let mut fake = Fake::with(tree());
        let (status, _, err) = run("get nope tank", &mut fake);
        assert_eq!(status, 2);
        assert!(err.starts_with("bad property list: invalid property 'nope'\nusage:\n\tget "));
        for line in [
            "get",
            "get -s nope all",
            "get -o nope all",
            "get -o name,all used",
        ] {
            assert_eq!(run(line, &mut fake).0, 2, "{line}");
        }
        assert_eq!(run("get used tank/nope", &mut fake).0, 1);
    }
}
