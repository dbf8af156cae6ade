//! `zfs mount` and `zfs unmount`.

use crate::common;
use api::{Batch, Reply, Request};
use cli::json::{envelope, line, Object, Put};
use cli::names::{self, Want};
use cli::{keys, Cx, Fail, Outcome, Parsed};
use control::client::unexpected;

fn options(args: &Parsed) -> Vec<String> {
    args.all("o")
        .flat_map(|o| o.split(','))
        .filter(|o| !o.is_empty())
        .map(str::to_string)
        .collect()
}

pub fn mount(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let all = args.has("a");
    if args.has("j") && (all || !args.operands.is_empty()) {
        return Err(Fail::Usage("-j only lists what is mounted".into()));
    }
    if all || args.has("R") {
        let roots: Vec<Option<String>> = match (all, args.operands.as_slice()) {
            (true, []) => vec![None],
            (true, _) => return Err(Fail::Usage("too many arguments".into())),
            (false, []) => return Err(Fail::Usage("missing dataset argument".into())),
            (false, list) => list.iter().cloned().map(Some).collect(),
        };
        let mut good = true;
        if args.has("l") {
            let named: Vec<String> = roots.iter().flatten().cloned().collect();
            good = cli::keys::load_missing(cx, &named, true, false)?;
        }
        let (mut done, mut failed) = (0, 0);
        for root in roots {
            let request = Request::MountAll {
                root: root.clone(),
                options: options(args),
                overlay: args.has("O"),
                force: args.has("f"),
            };
            let batch = match (cx.ask(&request), root) {
                (Ok(Reply::Batch(batch)), _) => batch,
                (Ok(other), _) => return Err(cx.fail_plain(&unexpected(&other))),
                // The others can be mounted all the same.
                (Err(e), Some(fs)) => {
                    cx.complain(&e, "mount", &fs)?;
                    good = false;
                    continue;
                }
                (Err(e), None) => return Err(cx.fail_plain(&e)),
            };
            done += batch.done.len();
            failed += batch.failed.len();
            for (name, error) in &batch.failed {
                cx.complain(error, "mount", name)?;
            }
        }
        if args.has("v") {
            writeln!(
                cx.out,
                "Mounting ZFS filesystems: ({done}/{})",
                done + failed
            )?;
        }
        return Ok(i32::from(!good || failed > 0));
    }
    match args.operands.as_slice() {
        [] => list(args, cx),
        [fs, place @ ..] if place.len() < 2 => {
            let fs = fs.clone();
            names::check_dataset(&fs, Want::Any)
                .and_then(|()| match fs.contains('#') {
                    true => Err("bookmark delimiter '#' is not expected here".into()),
                    false => Ok(()),
                })
                .map_err(|why| Fail::Error(format!("cannot open '{fs}': {why}")))?;
            if args.has("l") {
                cli::keys::load_missing(cx, std::slice::from_ref(&fs), false, true)?;
            }
            let request = Request::Mount {
                dataset: fs.clone(),
                options: options(args),
                overlay: args.has("O"),
                force: args.has("f"),
                directory: place.first().map(|d| cli::run::absolute(d)),
            };
            common::done(cx, &request, "mount", &fs)?;
            Ok(0)
        }
        _ => Err(Fail::Usage("too many arguments".into())),
    }
}

fn batch(cx: &mut Cx<'_>, request: &Request) -> Result<Batch, Fail> {
    match cx.ask(request) {
        Ok(Reply::Batch(batch)) => Ok(batch),
        Ok(other) => Err(cx.fail_plain(&unexpected(&other))),
        Err(e) => Err(cx.fail_plain(&e)),
    }
}

fn list(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let mounts = match cx.ask(&Request::MountList {}) {
        Ok(Reply::Mounts(m)) => m,
        Ok(other) => return Err(cx.fail_plain(&unexpected(&other))),
        Err(e) => return Err(cx.fail_plain(&e)),
    };
    if args.has("j") {
        let mut all = Object::new();
        for m in &mounts {
            all.put(
                m.dataset.as_str(),
                Object::new()
                    .with("filesystem", m.dataset.as_str())
                    .with("mountpoint", m.mountpoint.as_str()),
            );
        }
        let report = envelope("zfs mount").with("datasets", all);
        writeln!(cx.out, "{}", line(report))?;
        return Ok(0);
    }
    for m in &mounts {
        writeln!(cx.out, "{:<30}  {}", m.dataset, m.mountpoint)?;
    }
    Ok(0)
}

pub fn unmount(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    if args.has("a") {
        if !args.operands.is_empty() {
            return Err(Fail::Usage("too many arguments".into()));
        }
        let request = Request::UnmountAll {
            force: args.has("f"),
        };
        let mut roots = loaded_roots(args, None, cx)?;
        let batch = batch(cx, &request)?;
        // What is still mounted, here or by another daemon, needs its key.
        roots.retain(|root| batch.done.contains(root));
        for (name, error) in &batch.failed {
            cx.complain(error, "unmount", name)?;
        }
        let forgotten = forget_keys(&roots, cx)?;
        return Ok(i32::from(!batch.failed.is_empty() || !forgotten));
    }
    let word = match args.operands.as_slice() {
        [] => return Err(Fail::Usage("missing filesystem argument".into())),
        [w] => w.clone(),
        _ => return Err(Fail::Usage("too many arguments".into())),
    };
    let target = if word.starts_with('/') {
        // Symbolic links on the way are followed, but a dead mount must not be touched for that.
        let absolute = cli::run::absolute(&word);
        let absolute = if absolute.len() > 1 {
            absolute.trim_end_matches('/').to_string()
        } else {
            absolute
        };
        match std::fs::canonicalize(&absolute) {
            Ok(real) => real.to_string_lossy().into_owned(),
            Err(_) => absolute,
        }
    } else {
        names::check_dataset(&word, Want::Any)
            .map_err(|why| Fail::Error(format!("cannot open '{word}': {why}")))?;
        word.clone()
    };
    let roots = loaded_roots(args, Some(&target), cx)?;
    let request = Request::Unmount {
        target,
        force: args.has("f"),
    };
    common::done(cx, &request, "unmount", &word)?;
    Ok(i32::from(!forget_keys(&roots, cx)?))
}

/// With `-u` the mounted encryption roots whose keys are loaded: of the file system `target` (its name or mount point) and
/// below it, or all. Parents come first.
fn loaded_roots(args: &Parsed, target: Option<&str>, cx: &mut Cx<'_>) -> Result<Vec<String>, Fail> {
    if !args.has("u") {
        return Ok(Vec::new());
    }
    let mounts = match cx.ask(&Request::MountList {}) {
        Ok(Reply::Mounts(mounts)) => mounts,
        Ok(other) => return Err(cx.fail_plain(&unexpected(&other))),
        Err(e) => return Err(cx.fail_plain(&e)),
    };
    let top = target.map(|t| {
        let at = mounts.iter().find(|m| m.mountpoint == t);
        at.map_or_else(|| t.to_string(), |m| m.dataset.clone())
    });
    let below = |name: &str| {
        let rest = top.as_deref().map(|t| name.strip_prefix(t));
        rest.is_none_or(|rest| rest.is_some_and(|r| r.is_empty() || r.starts_with('/')))
    };
    let names: Vec<String> = mounts.into_iter().map(|m| m.dataset).collect();
    let names: Vec<String> = names.into_iter().filter(|n| below(n)).collect();
    if names.is_empty() {
        return Ok(names);
    }
    let facts = keys::facts(cx, &names, Some(0))?.into_iter();
    let roots = facts.filter(|f| f.encrypted && f.loaded && f.root == f.name);
    Ok(roots.map(|f| f.name).collect())
}

/// Forgets the keys of file systems that were unmounted; false if one is still in use, which is told, and what uses it is
/// mounted again.
fn forget_keys(roots: &[String], cx: &mut Cx<'_>) -> Result<bool, Fail> {
    let mut good = true;
    for root in roots.iter().rev() {
        let request = Request::KeyUnload {
            dataset: root.clone(),
        };
        match cx.ask(&request) {
            Ok(Reply::Done) => {}
            Ok(other) => return Err(cx.fail_plain(&unexpected(&other))),
            Err(e) => {
                good = false;
                cx.say(&format!("Key unload error: {}", e.message))?;
                let again = Request::MountAll {
                    root: Some(root.clone()),
                    options: Vec::new(),
                    overlay: false,
                    force: false,
                };
                for (name, error) in batch(cx, &again)?.failed {
                    cx.complain(&error, "mount", &name)?;
                }
            }
        }
    }
    Ok(good)
}

#[cfg(test)]
mod tests {
    use crate::testing::{run, tree, Fake};
    use api::{ApiError, Batch, MountEntry, Reply, Request};
    use base::Kind;

    #[test]
    fn lists() {
        let mut fake = Fake::with(tree());
        fake.answer = Some(Reply::Mounts(vec![MountEntry {
            dataset: "tank".into(),
            mountpoint: "/tank".into(),
        }]));
        let (_, out, _) = run("mount", &mut fake);
        assert_eq!(out, "tank                            /tank\n");
        let (_, out, _) = run("mount -j", &mut fake);
        assert!(out.ends_with(
            "\"datasets\":{\"tank\":{\"filesystem\":\"tank\",\"mountpoint\":\"/tank\"}}}\n"
        ));
    }

    #[test]
    fn mounts() {
        let mut fake = Fake::with(tree());
        assert_eq!(
            run("mount -O -o ro,noatime -o noexec tank/a", &mut fake).0,
            0
        );
        assert_eq!(
            fake.seen,
            [Request::Mount {
                dataset: "tank/a".into(),
                options: vec!["ro".into(), "noatime".into(), "noexec".into()],
                overlay: true,
                force: false,
                directory: None,
            }]
        );
        fake.answer = Some(Reply::Batch(Batch {
            done: vec!["tank".into()],
            failed: vec![(
                "tank/a".into(),
                ApiError::sentence(
                    Kind::NotEmpty,
                    "cannot mount '/tank/a': directory is not empty",
                ),
            )],
        }));
        let (status, out, err) = run("mount -av", &mut fake);
        assert_eq!(
            (status, out.as_str()),
            (1, "Mounting ZFS filesystems: (1/2)\n")
        );
        assert_eq!(err, "cannot mount '/tank/a': directory is not empty\n");
        assert_eq!(run("umount -a", &mut fake).0, 1);
        fake.answer = None;
        fake.seen.clear();
        assert_eq!(run("umount tank/a", &mut fake).0, 0);
        assert_eq!(run("unmount -f /no/such/dir/", &mut fake).0, 0);
        assert_eq!(
            fake.seen[1],
            Request::Unmount {
                target: "/no/such/dir".into(),
                force: true
            }
        );
        for line in [
            "mount a b c",
            "mount -a x",
            "mount -R",
            "unmount",
            "unmount -a x",
            "mount -j x",
        ] {
            assert_eq!(run(line, &mut fake).0, 2, "{line}");
        }
        fake.refuse = Some(ApiError::reason(Kind::Busy, "pool or dataset is busy"));
        assert_eq!(
            run("unmount tank/a", &mut fake).2,
            "cannot unmount 'tank/a': pool or dataset is busy\n"
        );
    }
}
