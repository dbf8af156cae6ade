//! `zfs create`: file systems and volumes.

use crate::common;
use api::{DatasetCreate, DatasetGet, DatasetKind, Reply, Request, Select};
use cli::names::{self, Want};
use cli::{Cx, Fail, Outcome, Parsed};
use control::client::unexpected;

pub fn create(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let name = match args.operands.as_slice() {
        [] if args.has("V") => return Err(Fail::Usage("missing volume argument".into())),
        [] => return Err(Fail::Usage("missing filesystem argument".into())),
        [n] => n.clone(),
        _ => return Err(Fail::Usage("too many arguments".into())),
    };
    let volume_size = args.get("V").map(str::to_string);
    if volume_size.is_none() && (args.has("s") || args.has("b")) {
        return Err(Fail::Usage(
            "'-s' and '-b' can only be used when creating a volume".into(),
        ));
    }
    if volume_size.is_some() && args.has("u") {
        return Err(Fail::Usage(
            "'-u' can only be used when creating a filesystem".into(),
        ));
    }
    names::check_new(&name, Want::Filesystem)
        .map_err(|why| Fail::Error(format!("cannot create '{name}': {why}")))?;
    if !name.contains('/') {
        // What is there is no failure with -p, not even the root of a pool.
        if args.has("p") && volume_size.is_none() && exists(&name, cx) {
            return Ok(0);
        }
        return Err(Fail::Error(format!(
            "cannot create '{name}': missing dataset name\n\
             use 'zpool create {name} vdev...' to create a pool"
        )));
    }
    let mut props = common::assignments(args.all("o"))?;
    if let Some(size) = args.get("b") {
        if props.iter().any(|(n, _)| n == "volblocksize") {
            return Err(Fail::Error(
                "property 'volblocksize' specified multiple times".into(),
            ));
        }
        // Printed as a number, as OpenZFS does with `-b`; what is none is for the daemon to refuse.
        let bytes = base::sizes::parse(size).map_or_else(|_| size.to_string(), |n| n.to_string());
        props.push(("volblocksize".into(), bytes));
    }
    let key = match args.has("n") {
        true => None,
        false => cli::keys::for_new(&props, &name)
            .map_err(|why| Fail::Error(format!("cannot create '{name}': {why}")))?,
    };
    let (dry_run, parsable) = (args.has("n"), args.has("P"));
    let request = Request::DatasetCreate(DatasetCreate {
        name: name.clone(),
        props: props.clone(),
        parents: args.has("p"),
        no_mount: args.has("u"),
        key,
        volume_size,
        sparse: args.has("s"),
        dry_run,
        command: cx.command(),
    });
    let made = match cx.ask(&request) {
        Ok(Reply::Created(made)) => made,
        Ok(other) => return Err(cx.fail_plain(&unexpected(&other))),
        Err(e) => return Err(cx.fail(&e, "create", &name)),
    };
    if (args.has("v") || parsable) && !made.existed {
        let verb = match (dry_run, parsable) {
            (_, true) => "create",
            (true, false) => "would create",
            (false, false) => "create",
        };
        let gap = if parsable { '\t' } else { ' ' };
        if args.has("p") {
            match parsable {
                true => writeln!(cx.out, "create_ancestors\t{name}")?,
                false => writeln!(cx.out, "{verb} ancestors of {name}")?,
            }
        }
        writeln!(cx.out, "{verb}{gap}{name}")?;
        for (p, v) in props.iter().chain(&made.computed) {
            if parsable {
                writeln!(cx.out, "property\t{p}\t{v}")?;
            } else {
                writeln!(cx.out, "\t{p}={v}")?;
            }
        }
    }
    if let Some(error) = made.mount_failed {
        cx.complain(&error, "mount", &name)?;
        cx.say("filesystem successfully created, but not mounted")?;
        return Ok(1);
    }
    Ok(0)
}

/// Whether there is a file system of that name.
fn exists(name: &str, cx: &mut Cx<'_>) -> bool {
    let get = DatasetGet {
        roots: vec![name.to_string()],
        depth: Some(0),
        kinds: vec![DatasetKind::Filesystem],
        listsnapshots: false,
        props: Select::Nothing,
    };
    let answer = cx.ask(&Request::DatasetGet(get));
    matches!(answer, Ok(Reply::Datasets(a)) if !a.found.is_empty())
}

#[cfg(test)]
mod tests {
    use crate::testing::{run, tree, Fake};
    use api::{ApiError, Created, Reply, Request};
    use base::Kind;

    #[test]
    fn makes() {
        let mut fake = Fake::with(tree());
        assert_eq!(
            run(
                "create -o atime=off -o compress=lz4 -pu tank/new",
                &mut fake
            ),
            (0, String::new(), String::new())
        );
        let Some(Request::DatasetCreate(c)) = fake.seen.first() else {
            panic!()
        };
        assert!(c.parents && c.no_mount && !c.dry_run);
        assert_eq!(
            c.props,
            [
                ("atime".to_string(), "off".to_string()),
                ("compression".into(), "lz4".into())
            ]
        );
        assert_eq!(
            c.command,
            "zfs create -o atime=off -o compress=lz4 -pu tank/new"
        );
    }

    #[test]
    fn tells() {
        let mut fake = Fake::with(tree());
        fake.answer = Some(Reply::Created(Created {
            ancestors: vec!["tank/x".into()],
            ..Created::default()
        }));
        let (_, out, _) = run("create -pnv -o atime=off tank/x/y", &mut fake);
        assert_eq!(
            out,
            "would create ancestors of tank/x/y\nwould create tank/x/y\n\tatime=off\n"
        );
        let (_, out, _) = run("create -pPv -o atime=off tank/x/y", &mut fake);
        assert_eq!(
            out,
            "create_ancestors\ttank/x/y\ncreate\ttank/x/y\nproperty\tatime\toff\n"
        );
        fake.answer = Some(Reply::Created(Created {
            mount_failed: Some(ApiError::reason(
                Kind::Busy,
                "mountpoint or dataset is busy",
            )),
            ..Created::default()
        }));
        let (status, _, err) = run("create tank/x", &mut fake);
        assert_eq!(status, 1);
        assert_eq!(
            err,
            "cannot mount 'tank/x': mountpoint or dataset is busy\n\
             filesystem successfully created, but not mounted\n"
        );
    }

    #[test]
    fn refuses() {
        let mut fake = Fake::with(tree());
        for (line, status, text) in [
            ("create", 2, "missing filesystem argument"),
            ("create a b", 2, "too many arguments"),
            (
                "create -o atime tank/x",
                1,
                "missing '=' for property=value argument 'atime'",
            ),
            (
                "create tank",
                1,
                "cannot create 'tank': missing dataset name",
            ),
            ("create -p tank", 0, ""),
            (
                "create -p dozer",
                1,
                "cannot create 'dozer': missing dataset name",
            ),
            (
                "create tank/x@y",
                1,
                "cannot create 'tank/x@y': snapshot delimiter '@' is not expected here",
            ),
            (
                "create tank/",
                1,
                "cannot create 'tank/': trailing slash in name",
            ),
            (
                "create -o atime=on -o atime=off tank/x",
                1,
                "property 'atime' specified multiple times",
            ),
            ("create -V 1G", 2, "missing volume argument"),
            (
                "create -s tank/v",
                2,
                "'-s' and '-b' can only be used when creating a volume",
            ),
            (
                "create -u -V 1G tank/v",
                2,
                "'-u' can only be used when creating a filesystem",
            ),
            (
                "create -b 8K -o volblocksize=4K -V 1G tank/v",
                1,
                "property 'volblocksize' specified multiple times",
            ),
        ] {
            let (got, _, err) = run(line, &mut fake);
            assert_eq!(got, status, "{line}");
            assert!(err.starts_with(text), "{line}: {err}");
        }
        fake.refuse = Some(ApiError::reason(Kind::Exists, "dataset already exists"));
        assert_eq!(
            run("create tank/a", &mut fake).2,
            "cannot create 'tank/a': dataset already exists\n"
        );
    }
}
