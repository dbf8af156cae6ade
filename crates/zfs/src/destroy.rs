//! `zfs destroy`.

use crate::common;
use api::{DatasetDestroy, Destroyed, Reply, Request};
use base::sizes::nice;
use cli::names::{self, Want};
use cli::{confirm, Cx, Fail, Outcome, Parsed};
use control::client::unexpected;

pub fn destroy(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let name = match args.operands.as_slice() {
        [] => return Err(Fail::Usage("missing dataset argument".into())),
        [n] => n.clone(),
        _ => return Err(Fail::Usage("too many arguments".into())),
    };
    let name = if common::is_path(&name) {
        return Err(Fail::Error(format!(
            "cannot destroy '{name}': name the dataset, not its path"
        )));
    } else {
        name
    };
    let need = |name: &str, want: Want| {
        names::check_dataset(name, want)
            .map_err(|why| Fail::Error(format!("cannot open '{name}': {why}")))
    };
    if let Some((fs, snaps)) = name.split_once('@') {
        // Of a list (`a%b,c`), what cannot be the name of a snapshot is none that exists.
        need(fs, Want::Filesystem)?;
        if snaps.is_empty() {
            return Err(Fail::Error(
                "could not find any snapshots to destroy; check snapshot names.".into(),
            ));
        }
    } else if name.contains('#') {
        let bookmark = names::check_dataset(&name, Want::Bookmark);
        for (option, what) in [
            ("d", "defer destroy"),
            ("r", "recursive"),
            ("R", "recursive"),
        ] {
            if args.has(option) {
                let text = format!("{what} is not supported with bookmark");
                return Err(Fail::Error(text));
            }
        }
        bookmark.map_err(|_| Fail::Error(format!("bookmark '{name}' does not exist.")))?;
    } else {
        let want = match args.has("d") {
            true => Want::Snapshot,
            false => Want::Filesystem,
        };
        need(&name, want)?;
    }
    let (dry_run, parsable) = (args.has("n"), args.has("p"));
    let mut request = DatasetDestroy {
        name: name.clone(),
        recursive: args.has("r"),
        dependents: args.has("R"),
        force: args.has("f"),
        defer: args.has("d"),
        protected: args.has("protected"),
        reclaim: args.has("v") || parsable,
        dry_run,
        command: cx.command(),
    };
    if !dry_run && !args.has("yes") && !name.contains('#') && confirm::is_asked(cx) {
        request.dry_run = true;
        let would = carry_out(&request, cx)?;
        confirm::ask("These will be destroyed:", &would.names, cx)?;
        request.dry_run = false;
    }
    let done = carry_out(&request, cx)?;
    if args.has("v") || parsable {
        for n in &done.names {
            match (parsable, dry_run) {
                (true, _) => writeln!(cx.out, "destroy\t{n}")?,
                (false, true) => writeln!(cx.out, "would destroy {n}")?,
                (false, false) => writeln!(cx.out, "will destroy {n}")?,
            }
        }
        if let Some(bytes) = done.reclaim {
            match (parsable, dry_run) {
                (true, _) => writeln!(cx.out, "reclaim\t{bytes}")?,
                (false, true) => writeln!(cx.out, "would reclaim {}", nice(bytes, true))?,
                (false, false) => writeln!(cx.out, "will reclaim {}", nice(bytes, true))?,
            }
        }
    }
    for (n, error) in &done.failed {
        cx.complain(error, "destroy", n)?;
    }
    Ok(i32::from(!done.failed.is_empty()))
}

fn carry_out(request: &DatasetDestroy, cx: &mut Cx<'_>) -> Result<Destroyed, Fail> {
    match cx.ask(&Request::DatasetDestroy(request.clone())) {
        Ok(Reply::Destroyed(done)) => Ok(done),
        Ok(other) => Err(cx.fail_plain(&unexpected(&other))),
        Err(e) => Err(cx.fail(&e, "destroy", &request.name)),
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{run, tree, Fake};
    use api::{ApiError, Destroyed, Reply, Request};
    use base::Kind;

    #[test]
    fn destroys() {
        let mut fake = Fake::with(tree());
        fake.answer = Some(Reply::Destroyed(Destroyed {
            names: vec!["tank/a@1".into(), "tank/a".into()],
            reclaim: Some(1536),
            failed: vec![],
        }));
        let (status, out, _) = run("destroy -rnv tank/a", &mut fake);
        assert_eq!(status, 0);
        assert_eq!(
            out,
            "would destroy tank/a@1\nwould destroy tank/a\nwould reclaim 1.50K\n"
        );
        let (_, out, _) = run("destroy -rnp tank/a", &mut fake);
        assert_eq!(out, "destroy\ttank/a@1\ndestroy\ttank/a\nreclaim\t1536\n");
        assert_eq!(run("destroy -r tank/a", &mut fake).1, "");
        assert!(
            matches!(&fake.seen[2], Request::DatasetDestroy(d) if d.recursive && d.command == "zfs destroy -r tank/a")
        );
    }

    #[test]
    fn refuses() {
        let mut fake = Fake::with(tree());
        fake.refuse = Some(
            ApiError::reason(Kind::Exists, "filesystem has children")
                .hint("use '-r' to destroy the following datasets:\ntank/a/b"),
        );
        assert_eq!(
            run("destroy tank/a", &mut fake).2,
            "cannot destroy 'tank/a': filesystem has children\n\
             use '-r' to destroy the following datasets:\ntank/a/b\n"
        );
        for line in ["destroy", "destroy a b"] {
            assert_eq!(run(line, &mut fake).0, 2, "{line}");
        }
        for line in [
            "destroy tank/a@",
            "destroy tank/a@b/c",
            "destroy /tank",
            "destroy -d tank/a",
        ] {
            assert_eq!(run(line, &mut fake).0, 1, "{line}");
        }
    }
}
