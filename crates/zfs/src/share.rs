//! `zfs share` and `zfs unshare`.

use crate::common;
use api::{Protocol, Reply, Request};
use cli::names::{self, Want};
use cli::{Cx, Fail, Outcome, Parsed};
use control::client::unexpected;

/// What the operands name: one file system, or all.
enum Which {
    All(Option<Protocol>),
    One(String),
}

fn which(args: &Parsed) -> Result<Which, Fail> {
    let operands: Vec<&str> = args.operands.iter().map(String::as_str).collect();
    match (args.has("a"), operands.as_slice()) {
        (true, []) => Ok(Which::All(None)),
        (true, ["nfs"]) => Ok(Which::All(Some(Protocol::Nfs))),
        (true, ["smb"]) => Ok(Which::All(Some(Protocol::Smb))),
        (true, [other]) => Err(Fail::Usage(format!(
            "share type '{other}' is neither nfs nor smb"
        ))),
        (false, []) => Err(Fail::Usage("missing filesystem argument".into())),
        (false, [one]) => Ok(Which::One((*one).into())),
        _ => Err(Fail::Usage("too many arguments".into())),
    }
}

/// A file system by its name, or by the path of its mount point, absolute and without links.
fn target(word: &str) -> Result<String, Fail> {
    if !word.starts_with('/') {
        let checked = names::check_dataset(word, Want::Any);
        checked.map_err(|why| Fail::Error(format!("cannot open '{word}': {why}")))?;
        return Ok(word.into());
    }
    Ok(match std::fs::canonicalize(word) {
        Ok(real) => real.to_string_lossy().into_owned(),
        Err(_) => cli::run::absolute(word),
    })
}

fn all(share: bool, only: Option<Protocol>, cx: &mut Cx<'_>) -> Outcome {
    let action = if share { "share" } else { "unshare" };
    match cx.ask(&Request::ShareAll { share, only }) {
        Ok(Reply::Batch(batch)) => {
            for (name, error) in &batch.failed {
                cx.complain(error, action, name)?;
            }
            Ok(i32::from(!batch.failed.is_empty()))
        }
        Ok(other) => Err(cx.fail_plain(&unexpected(&other))),
        Err(e) => Err(cx.fail_plain(&e)),
    }
}

pub fn share(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    match which(args)? {
        Which::All(only) => {
            let mut good = true;
            if args.has("l") {
                good = cli::keys::load_missing(cx, &[], true, false)?;
                good &= mount_all(None, cx)?;
            }
            let shared = all(true, only, cx)?;
            Ok(i32::from(!good || shared != 0))
        }
        Which::One(word) => {
            let target = target(&word)?;
            let mounts = args.has("l") && !target.starts_with('/');
            if mounts {
                cli::keys::load_missing(cx, std::slice::from_ref(&target), false, true)?;
                mount_all(Some(target.clone()), cx)?;
            }
            let request = Request::Share { target };
            match cx.ask(&request) {
                // What was just mounted is shared.
                Err(e) if mounts && e.code == base::Kind::Busy.errno() => {}
                Err(e) => return Err(cx.fail(&e, "share", &word)),
                Ok(_) => {}
            }
            Ok(0)
        }
    }
}

/// Mounts what is to be mounted and is not; false if something could not be, which is told.
fn mount_all(root: Option<String>, cx: &mut Cx<'_>) -> Result<bool, Fail> {
    let request = Request::MountAll {
        root,
        options: Vec::new(),
        overlay: false,
        force: false,
    };
    match cx.ask(&request) {
        Ok(Reply::Batch(batch)) => {
            for (name, error) in &batch.failed {
                cx.complain(error, "mount", name)?;
            }
            Ok(batch.failed.is_empty())
        }
        Ok(other) => Err(cx.fail_plain(&unexpected(&other))),
        Err(e) => Err(cx.fail_plain(&e)),
    }
}

pub fn unshare(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    match which(args)? {
        Which::All(only) => all(false, only, cx),
        Which::One(word) => {
            let target = target(&word)?;
            common::done(cx, &Request::Unshare { target }, "unshare", &word)?;
            Ok(0)
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{run, tree, Fake};
    use api::{ApiError, Batch, Protocol, Reply, Request};
    use base::Kind;

    #[test]
    fn what_is_asked_for() {
        let mut fake = Fake::with(tree());
        assert_eq!(run("share tank/a", &mut fake).0, 0);
        assert_eq!(run("unshare /no/such/dir", &mut fake).0, 0);
        fake.answer = Some(Reply::Batch(Batch::default()));
        assert_eq!(run("share -a nfs", &mut fake).0, 0);
        assert_eq!(run("unshare -a smb", &mut fake).0, 0);
        assert_eq!(run("unshare -a", &mut fake).0, 0);
        let target = |t: &str| t.to_string();
        let expected = [
            Request::Share {
                target: target("tank/a"),
            },
            Request::Unshare {
                target: target("/no/such/dir"),
            },
            Request::ShareAll {
                share: true,
                only: Some(Protocol::Nfs),
            },
            Request::ShareAll {
                share: false,
                only: Some(Protocol::Smb),
            },
            Request::ShareAll {
                share: false,
                only: None,
            },
        ];
        assert_eq!(fake.seen, expected);
        fake.refuse = Some(ApiError::reason(Kind::Invalid, "not currently shared"));
        let (status, _, err) = run("unshare tank/a", &mut fake);
        let text = "cannot unshare 'tank/a': not currently shared\n";
        assert_eq!((status, err.as_str()), (1, text));
    }

    #[test]
    fn what_is_no_command() {
        let mut fake = Fake::with(tree());
        for line in [
            "share",
            "share -a cifs",
            "share a b",
            "unshare",
            "unshare -a nfs x",
        ] {
            assert_eq!(run(line, &mut fake).0, 2, "{line}");
        }
    }
}
