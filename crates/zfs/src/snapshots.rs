//! `zfs snapshot`, `rollback`, `clone`, `promote`, `bookmark`, `hold`, `release`.

use crate::common;
use api::{DatasetClone, Holding, Reply, Request, Rollback, SnapshotCreate};
use base::Kind;
use cli::names::{self, Want};
use cli::{confirm, Cx, Fail, Outcome, Parsed};
use control::client::unexpected;

/// A name that must be that of something of a kind that is there: `cannot open 'NAME': why not`.
fn need(name: &str, want: Want) -> Result<(), String> {
    names::check_dataset(name, want).map_err(|why| format!("cannot open '{name}': {why}"))
}

/// The operand of a subcommand that has one.
fn only<'a>(args: &'a Parsed, what: &str) -> Result<&'a String, Fail> {
    match args.operands.as_slice() {
        [] => Err(Fail::Usage(format!("missing {what} argument"))),
        [name] => Ok(name),
        _ => Err(Fail::Usage("too many arguments".into())),
    }
}

pub fn snapshot(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    if args.operands.is_empty() {
        return Err(Fail::Usage("missing snapshot argument".into()));
    }
    for name in &args.operands {
        let Some((fs, _)) = name.split_once('@') else {
            return Err(Fail::Usage(String::new()));
        };
        need(fs, Want::Filesystem).map_err(Fail::Usage)?;
    }
    for name in &args.operands {
        names::check_new(name, Want::Snapshot)
            .map_err(|why| Fail::Error(format!("cannot create snapshot '{name}': {why}")))?;
    }
    let props = common::assignments(args.all("o"))?;
    if let Some((name, _)) = props.iter().find(|(name, _)| !name.contains(':')) {
        cx.say(&format!(
            "cannot create snapshot '{}': property '{name}' cannot be set on snapshots",
            args.operands[0]
        ))?;
        return Err(Fail::Error("no snapshots were created".into()));
    }
    let request = Request::SnapshotCreate(SnapshotCreate {
        names: args.operands.clone(),
        recursive: args.has("r"),
        props,
        command: cx.command(),
    });
    match cx.ask(&request) {
        Ok(Reply::Done) => Ok(0),
        Ok(Reply::DoneBut(what)) => {
            cx.say(&what)?;
            Ok(0)
        }
        Ok(other) => Err(cx.fail_plain(&unexpected(&other))),
        // A file system that is not there is a wrong command line.
        Err(e) if e.code == Kind::NotFound.errno() && e.message.starts_with("cannot open '") => {
            Err(Fail::Usage(e.message))
        }
        Err(e) => Err(cx.fail(&e, "create snapshot", &args.operands[0])),
    }
}

pub fn rollback(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let name = only(args, "dataset")?;
    need(name, Want::Snapshot).map_err(Fail::Error)?;
    if !args.has("yes") && confirm::is_asked(cx) {
        let fs = name.split('@').next().unwrap_or_default();
        let younger = match (args.has("R"), args.has("r")) {
            (true, _) => {
                ", and all younger snapshots and bookmarks, and the clones of these with all below them"
            }
            (_, true) => ", and all younger snapshots and bookmarks",
            _ => "",
        };
        let text = format!("What was written since this snapshot will be lost{younger}:");
        confirm::ask(&text, &[format!("{fs} goes back to {name}")], cx)?;
    }
    let request = Request::Rollback(Rollback {
        snapshot: name.clone(),
        recursive: args.has("r") || args.has("R"),
        dependents: args.has("R"),
        force: args.has("f"),
        protected: args.has("protected"),
        command: cx.command(),
    });
    common::done(cx, &request, "rollback to", name)?;
    Ok(0)
}

pub fn clone(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let (from, name) = match args.operands.as_slice() {
        [] => return Err(Fail::Usage("missing source dataset argument".into())),
        [_] => return Err(Fail::Usage("missing target dataset argument".into())),
        [from, name] => (from.clone(), name.clone()),
        _ => return Err(Fail::Usage("too many arguments".into())),
    };
    need(&from, Want::Snapshot).map_err(Fail::Error)?;
    let fail = |why: String| Fail::Error(format!("cannot create '{name}': {why}"));
    names::check_new(&name, Want::Filesystem).map_err(fail)?;
    if !name.contains('/') {
        return Err(fail("missing dataset name".into()));
    }
    if names::pool_of(&from) != names::pool_of(&name) {
        return Err(fail("source and target pools differ".into()));
    }
    let request = Request::DatasetClone(DatasetClone {
        snapshot: from,
        name: name.clone(),
        props: common::assignments(args.all("o"))?,
        parents: args.has("p"),
        no_mount: args.has("u"),
        command: cx.command(),
    });
    let made = match cx.ask(&request) {
        Ok(Reply::Created(made)) => made,
        Ok(other) => return Err(cx.fail_plain(&unexpected(&other))),
        Err(e) => return Err(cx.fail(&e, "create", &name)),
    };
    if let Some(error) = made.mount_failed {
        cx.complain(&error, "mount", &name)?;
        cx.say("clone successfully created, but not mounted")?;
        return Ok(1);
    }
    Ok(0)
}

pub fn promote(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let name = only(args, "clone filesystem")?;
    need(name, Want::Filesystem).map_err(Fail::Error)?;
    let request = Request::DatasetPromote {
        dataset: name.clone(),
        command: cx.command(),
    };
    common::done(cx, &request, "promote", name)?;
    Ok(0)
}

pub fn bookmark(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let (source, name) = match args.operands.as_slice() {
        [] => return Err(Fail::Usage("missing source argument".into())),
        [_] => return Err(Fail::Usage("missing bookmark argument".into())),
        [source, name] => (source.clone(), name.clone()),
        _ => return Err(Fail::Usage("too many arguments".into())),
    };
    let Some(at) = source.find(['@', '#']).filter(|_| name.contains('#')) else {
        return Err(Fail::Usage(match name.contains('#') {
            true => format!("invalid source name '{source}': must contain a '@' or '#'"),
            false => format!("invalid bookmark name '{name}': must contain a '#'"),
        }));
    };
    if source.starts_with(['@', '#']) && name.starts_with('#') {
        return Err(Fail::Usage(
            "either source or bookmark must be specified as full dataset paths".into(),
        ));
    }
    // Both names may leave out the file system that the other one has.
    let name = match name.strip_prefix('#') {
        Some(short) => format!("{}#{short}", &source[..at]),
        None => name,
    };
    let source = match at {
        0 => {
            let fs = name.split('#').next().unwrap_or_default();
            format!("{fs}{source}")
        }
        _ => source,
    };
    for (n, want) in [(&source, Want::Any), (&name, Want::Bookmark)] {
        names::check_new(n, want)
            .map_err(|why| Fail::Error(format!("cannot create bookmark '{name}': {why}")))?;
    }
    let request = Request::BookmarkCreate {
        source,
        name: name.clone(),
        command: cx.command(),
    };
    match cx.ask(&request) {
        Ok(Reply::Done) => Ok(0),
        Ok(other) => Err(cx.fail_plain(&unexpected(&other))),
        // A source that is not there is a wrong command line.
        Err(e) if e.code == Kind::NotFound.errno() && e.message.starts_with("cannot open '") => {
            Err(Fail::Usage(e.message))
        }
        Err(e) => Err(cx.fail(&e, "create bookmark", &name)),
    }
}

pub fn hold(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let tag = args.operands.first();
    if args.operands.len() > 1 && tag.is_some_and(|t| t.starts_with('.')) {
        // Such tags are those of streams under way.
        return Err(Fail::Usage("tag may not start with '.'".into()));
    }
    holding(args, "hold snapshot", Request::HoldAdd, cx)
}

pub fn release(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let action = "release hold from snapshot";
    holding(args, action, Request::HoldRelease, cx)
}

/// `zfs hold` and `zfs release`: an operand that is refused does not keep the others from it.
fn holding(
    args: &Parsed,
    action: &str,
    request: impl Fn(Holding) -> Request,
    cx: &mut Cx<'_>,
) -> Outcome {
    let Some((tag, snapshots)) = args.operands.split_first() else {
        return Err(Fail::Usage("missing tag argument".into()));
    };
    if snapshots.is_empty() {
        return Err(Fail::Usage("missing snapshot argument".into()));
    }
    let (good, bad): (Vec<&String>, Vec<&String>) = snapshots
        .iter()
        .partition(|name| names::check_dataset(name, Want::Snapshot).is_ok());
    for name in &bad {
        let why = match name.split_once('@') {
            None => format!("'{name}' is not a snapshot"),
            Some((fs, _)) => need(fs, Want::Filesystem)
                .err()
                .unwrap_or_else(|| format!("cannot {action} '{name}': dataset does not exist")),
        };
        cx.say(&why)?;
    }
    if good.is_empty() {
        return Ok(1);
    }
    let holding = Holding {
        tag: tag.clone(),
        snapshots: good.into_iter().cloned().collect(),
        recursive: args.has("r"),
        command: cx.command(),
    };
    let batch = match cx.ask(&request(holding)) {
        Ok(Reply::Batch(b)) => b,
        Ok(other) => return Err(cx.fail_plain(&unexpected(&other))),
        Err(e) if e.code == base::Kind::ReadOnly.errno() => {
            // Of no snapshot in particular.
            let verb = action.split(' ').next().unwrap_or(action);
            cx.say(&format!("cannot {verb}: {}", e.message))?;
            return Ok(1);
        }
        Err(e) => return Err(cx.fail_plain(&e)),
    };
    for (name, error) in &batch.failed {
        cx.complain(error, action, name)?;
    }
    Ok(i32::from(!bad.is_empty() || !batch.failed.is_empty()))
}

#[cfg(test)]
mod tests {
    use crate::testing::{run, tree, Fake};
    use api::{ApiError, Batch, Created, Reply, Request};
    use base::Kind;

    fn answering(reply: Reply) -> Fake {
        let mut fake = Fake::with(tree());
        fake.answer = Some(reply);
        fake
    }

    #[test]
    fn snapshots_are_asked_for_together() {
        let mut fake = answering(Reply::Done);
        let line = "snapshot -r -o com.x:y=z tank/a@1 tank/b@2";
        assert_eq!(run(line, &mut fake), (0, String::new(), String::new()));
        let Some(Request::SnapshotCreate(s)) = fake.seen.first() else {
            panic!("{:?}", fake.seen)
        };
        assert_eq!(s.names, ["tank/a@1", "tank/b@2"]);
        assert!(s.recursive && s.props.len() == 1);
        assert_eq!(s.command, format!("zfs {line}"));
        assert_eq!(run("snap tank/a@1", &mut fake).0, 0);
    }

    #[test]
    fn what_refuses_a_snapshot_is_said() {
        let mut fake = Fake::with(tree());
        fake.refuse = Some(ApiError::sentence(
            Kind::Exists,
            "cannot create snapshot 'tank/a@1': dataset already exists",
        ));
        assert_eq!(
            run("snapshot tank/a@1", &mut fake),
            (
                1,
                String::new(),
                "cannot create snapshot 'tank/a@1': dataset already exists\n".into()
            )
        );
        assert_eq!(run("snapshot -o atime=off tank/a@1", &mut fake).0, 1);
        for line in [
            "snapshot",
            "snapshot tank/a",
            "clone tank/a@1",
            "bookmark tank/a@1",
            "hold x",
            "hold .x tank/a@1",
            "promote",
        ] {
            assert_eq!(run(line, &mut fake).0, 2, "{line}");
        }
        fake.refuse = Some(ApiError::no_such_dataset("tank/n"));
        for line in ["snapshot tank/n@1", "bookmark tank/n@1 #b"] {
            let (status, _, err) = run(line, &mut fake);
            assert_eq!(status, 2, "{line}");
            assert!(
                err.starts_with("cannot open 'tank/n': dataset does not exist\nusage:"),
                "{err}"
            );
        }
        for line in [
            "rollback tank/a",
            "clone tank/a tank/b",
            "clone tank/a@1 other/b",
            "hold x tank/a",
        ] {
            assert_eq!(run(line, &mut fake).0, 1, "{line}");
        }
    }

    #[test]
    fn bookmarks_may_be_named_shortly() {
        let mut fake = answering(Reply::Done);
        for line in [
            "bookmark tank/a@1 #b",
            "bookmark tank/a@1 tank/a#b",
            "bookmark @1 tank/a#b",
        ] {
            assert_eq!(run(line, &mut fake).0, 0, "{line}");
        }
        for request in &fake.seen {
            let Request::BookmarkCreate { source, name, .. } = request else {
                panic!("{request:?}")
            };
            assert_eq!((source.as_str(), name.as_str()), ("tank/a@1", "tank/a#b"));
        }
    }

    #[test]
    fn a_clone_that_is_not_mounted_and_a_hold_that_fails_are_told() {
        let mut fake = answering(Reply::Created(Created {
            mount_failed: Some(ApiError::reason(Kind::Busy, "directory is not empty")),
            ..Created::default()
        }));
        let (status, _, err) = run("clone -p tank/a@1 tank/c", &mut fake);
        assert_eq!(status, 1);
        assert_eq!(
            err,
            "cannot mount 'tank/c': directory is not empty\n\
             clone successfully created, but not mounted\n"
        );
        let failed = ApiError::reason(Kind::Exists, "tag already exists on this dataset");
        let mut fake = answering(Reply::Batch(Batch {
            failed: vec![("tank/a@1".into(), failed)],
            ..Batch::default()
        }));
        let (status, _, err) = run("hold keep tank/a@1", &mut fake);
        assert_eq!(status, 1);
        assert_eq!(
            err,
            "cannot hold snapshot 'tank/a@1': tag already exists on this dataset\n"
        );
    }
}
