//! `zfs set`, `inherit` and `rename`.

use crate::common::{self, History};
use api::Request;
use cli::names::{self, Want};
use cli::{props, Cx, Fail, Outcome, Parsed};

pub fn set(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    // All words with `=` up to the first without one are properties.
    let at = args
        .operands
        .iter()
        .position(|w| !w.contains('='))
        .unwrap_or(args.operands.len());
    let (texts, datasets) = args.operands.split_at(at);
    if texts.is_empty() {
        return Err(Fail::Usage(
            if args.operands.is_empty() {
                "missing arguments"
            } else {
                "missing property=value argument(s)"
            }
            .into(),
        ));
    }
    if datasets.is_empty() {
        return Err(Fail::Usage("missing dataset name(s)".into()));
    }
    let list = common::assignments(texts.iter().map(String::as_str))?;
    for (name, _) in &list {
        if common::known_property(name).is_none() {
            return Err(Fail::Error(format!(
                "cannot set property for '{}': invalid property '{name}'",
                datasets[0]
            )));
        }
    }
    on_each(
        datasets,
        "set property for",
        &|dataset, command| Request::DatasetSet {
            dataset,
            props: list.clone(),
            no_remount: args.has("u"),
            command,
        },
        cx,
    )
}

/// Makes a request of each dataset, given its name and what is to be recorded. What cannot be done is told, and the
/// others go on.
fn on_each(
    datasets: &[String],
    action: &str,
    request: &dyn Fn(String, String) -> Request,
    cx: &mut Cx<'_>,
) -> Outcome {
    let mut history = History::new(cx);
    let mut status = 0;
    for dataset in datasets {
        if let Err(why) = names::check_dataset(dataset, Want::Any) {
            cx.say(&format!("cannot open '{dataset}': {why}"))?;
            status = 1;
            continue;
        }
        let request = request(dataset.clone(), history.line(dataset));
        match common::done(cx, &request, action, dataset) {
            Ok(()) => history.done(dataset),
            Err(Fail::Error(_)) => status = 1,
            Err(other) => return Err(other),
        }
    }
    Ok(status)
}

pub fn inherit(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let (word, datasets) = match args.operands.split_first() {
        None => return Err(Fail::Usage("missing property argument".into())),
        Some((_, [])) => return Err(Fail::Usage("missing dataset argument".into())),
        Some((w, d)) => (w, d),
    };
    let property = common::known_property(word)
        .filter(|p| !props::is_written_property(p))
        .ok_or_else(|| Fail::Usage(format!("invalid property '{word}'")))?;
    let received = args.has("S");
    if let Some(info) = props::dataset(&property) {
        match info.class {
            props::Class::ReadOnly => {
                return Err(Fail::Error(format!("{property} property is read-only")))
            }
            props::Class::Inherit => {}
            props::Class::Local | props::Class::Once if received => {}
            props::Class::Local | props::Class::Once => {
                let mut text = format!("'{property}' property cannot be inherited");
                let limits = ["quota", "reservation", "refquota", "refreservation"];
                if limits.contains(&property.as_str()) {
                    text.push_str(&format!(
                        "\nuse 'zfs set {property}=none' to clear\n\
                         use 'zfs inherit -S {property}' to revert to received value"
                    ));
                }
                return Err(Fail::Error(text));
            }
        }
    }
    on_each(
        datasets,
        "inherit property for",
        &|dataset, command| Request::DatasetInherit {
            dataset,
            property: property.clone(),
            recursive: args.has("r"),
            received,
            command,
        },
        cx,
    )
}

pub fn rename(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let (from, to) = match args.operands.as_slice() {
        [] => return Err(Fail::Usage("missing source dataset argument".into())),
        [_] => return Err(Fail::Usage("missing target dataset argument".into())),
        [a, b] => (a.clone(), b.clone()),
        _ => return Err(Fail::Usage("too many arguments".into())),
    };
    if args.has("u") && args.has("p") {
        return Err(Fail::Usage(
            "-u and -p options are mutually exclusive".into(),
        ));
    }
    let fail = |why: String| Fail::Error(format!("cannot rename '{from}': {why}"));
    if args.has("r") && !from.contains('@') {
        return Err(Fail::Usage(
            "source dataset for recursive rename must be a snapshot".into(),
        ));
    }
    let want = match (args.has("u") || args.has("p"), from.contains('@')) {
        (false, true) => Want::Snapshot,
        _ => Want::Filesystem,
    };
    names::check_dataset(&from, want)
        .map_err(|why| Fail::Error(format!("cannot open '{from}': {why}")))?;
    if !from.contains(['/', '@']) {
        return Err(fail(
            "the root dataset is renamed with its pool: zpool export, then zpool import NAME NEWNAME"
                .into(),
        ));
    }
    // A snapshot's new name may be short. The daemon checks it, once it has found what is to be renamed.
    let to = match (from.split_once('@'), to.strip_prefix('@')) {
        (Some((fs, _)), Some(short)) => format!("{fs}@{short}"),
        (Some((fs, _)), None) if !to.contains(['@', '/']) => format!("{fs}@{to}"),
        _ => to,
    };
    let request = Request::DatasetRename {
        from: from.clone(),
        to,
        parents: args.has("p"),
        force: args.has("f"),
        no_remount: args.has("u"),
        recursive: args.has("r"),
        command: cx.command(),
    };
    common::done(cx, &request, "rename", &from)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use crate::testing::{run, tree, Fake};
    use api::{ApiError, Request};
    use base::Kind;

    #[test]
    fn sets_many() {
        let mut fake = Fake::with(tree());
        assert_eq!(
            run("set atime=off com.x:y=a=b tank/a tank/b", &mut fake).0,
            0
        );
        let list = vec![
            ("atime".to_string(), "off".to_string()),
            ("com.x:y".into(), "a=b".into()),
        ];
        let request = |dataset: &str, command: &str| Request::DatasetSet {
            dataset: dataset.into(),
            props: list.clone(),
            no_remount: false,
            command: command.into(),
        };
        // The history gets the line once.
        assert_eq!(
            fake.seen,
            [
                request("tank/a", "zfs set atime=off com.x:y=a=b tank/a tank/b"),
                request("tank/b", "")
            ]
        );
        fake.seen.clear();
        assert_eq!(run("compression=on tank", &mut fake).0, 0);
        assert_eq!(fake.seen.len(), 1);
        fake.refuse = Some(ApiError::reason(Kind::Invalid, "'used' is readonly"));
        assert_eq!(
            run("set used=1 tank", &mut fake),
            (
                1,
                String::new(),
                "cannot set property for 'tank': 'used' is readonly\n".into()
            )
        );
        for line in ["set", "set tank", "set a=b"] {
            assert_eq!(run(line, &mut fake).0, 2, "{line}");
        }
        assert_eq!(
            run("set nope=1 tank", &mut fake).2,
            "cannot set property for 'tank': invalid property 'nope'\n"
        );
    }

    #[test]
    fn inherits() {
        let mut fake = Fake::with(tree());
        assert_eq!(run("inherit -r compress tank/a", &mut fake).0, 0);
        assert!(matches!(&fake.seen[0],
            Request::DatasetInherit { property, recursive: true, received: false, .. } if property == "compression"));
        let (status, _, err) = run("inherit quota tank/a", &mut fake);
        assert_eq!(status, 1);
        assert_eq!(
            err,
            "'quota' property cannot be inherited\nuse 'zfs set quota=none' to clear\n\
             use 'zfs inherit -S quota' to revert to received value\n"
        );
        assert_eq!(run("inherit used tank/a", &mut fake).0, 1);
        assert_eq!(run("inherit nope tank/a", &mut fake).0, 2);
        assert_eq!(run("inherit atime", &mut fake).0, 2);
    }

    #[test]
    fn renames() {
        let mut fake = Fake::with(tree());
        assert_eq!(run("rename -p tank/a tank/x/y", &mut fake).0, 0);
        assert!(
            matches!(&fake.seen[0], Request::DatasetRename { parents: true, to, .. } if to == "tank/x/y")
        );
        assert_eq!(run("rename tank/a@1 @2", &mut fake).0, 0);
        assert!(matches!(&fake.seen[1], Request::DatasetRename { to, .. } if to == "tank/a@2"));
        for (line, text) in [
            (
                "rename -p tank/a@1 tank/a@2",
                "cannot open 'tank/a@1': snapshot delimiter '@' is not expected here\n",
            ),
            (
                "rename -r -u tank/a@1 2",
                "cannot open 'tank/a@1': snapshot delimiter '@' is not expected here\n",
            ),
            (
                "rename tank/a#b tank/a#c",
                "cannot open 'tank/a#b': bookmark delimiter '#' is not expected here\n",
            ),
        ] {
            assert_eq!(
                run(line, &mut fake),
                (1, String::new(), text.into()),
                "{line}"
            );
        }
        assert_eq!(run("rename tank/a", &mut fake).0, 2);
        assert_eq!(run("rename -u -p tank/a tank/x/y", &mut fake).0, 2);
        assert_eq!(run("rename -r tank/a tank/x", &mut fake).0, 2);
    }
}
