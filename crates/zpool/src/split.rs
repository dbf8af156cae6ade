//! `zpool split`

use crate::{common, import};
use api::{ImportScan, PoolGet, PoolImport, PoolSplit, Reply, Request, Split, Vdev, VdevClass};
use cli::vdevs::{name, of_class};
use cli::{Cx, Fail, Outcome, Parsed};
use control::client::unexpected;

/// Classes with a heading of their own in the layout, in OpenZFS's order.
const CLASSES: [(VdevClass, &str); 2] =
    [(VdevClass::Dedup, "dedup"), (VdevClass::Special, "special")];

pub fn split(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let (mut props, mount_options) = options(args)?;
    let altroot = args.get("R").map(str::to_string);
    // Of this import only.
    let mut cachefile = ("cachefile".to_string(), "none".to_string());
    if altroot.is_some() {
        if let Some(at) = props.iter().position(|(n, _)| *n == cachefile.0) {
            cachefile = props.remove(at);
        }
    }
    if altroot.is_none() && !mount_options.is_empty() {
        let why = "setting mntopts is only valid when importing the pool";
        return Err(Fail::Usage(why.into()));
    }
    if altroot.is_none() && args.has("l") {
        let why = "loading keys is only valid when importing the pool";
        return Err(Fail::Usage(why.into()));
    }
    let (pool, new, devices) = match args.operands.as_slice() {
        [] => return Err(Fail::Usage("Missing pool name".into())),
        [_] => return Err(Fail::Usage("Missing new pool name".into())),
        [pool, new, devices @ ..] => (pool.clone(), new.clone(), devices.to_vec()),
    };
    if let Some(root) = altroot.as_ref().filter(|r| !r.starts_with('/')) {
        return Err(Fail::Error(format!(
            "Unable to split {pool}: bad alternate root '{root}'"
        )));
    }
    let get = PoolGet {
        pools: vec![pool.clone()],
        tree: true,
        ..PoolGet::default()
    };
    let (pools, _) = common::pools(cx, get)?;
    let Some(tree) = pools.first().and_then(|p| p.tree.clone()) else {
        return Ok(1);
    };
    let dry_run = args.has("n");
    let request = Request::PoolSplit(PoolSplit {
        pool: pool.clone(),
        name: new.clone(),
        devices,
        props,
        dry_run,
        command: cx.command(),
    });
    let done = match cx.ask(&request) {
        Ok(Reply::Split(done)) => done,
        Ok(other) => return Err(cx.fail_plain(&unexpected(&other))),
        Err(e) => return Err(cx.fail(&e, "split", &pool)),
    };
    if dry_run {
        let text = layout(&new, &tree, &done, common::naming(args, cx));
        write!(
            cx.out,
            "would create '{new}' with the following layout:\n\n{text}"
        )?;
        return Ok(0);
    }
    if let Some(warning) = &done.warning {
        cx.say(warning)?;
    }
    let Some(root) = altroot else {
        return Ok(0);
    };
    let request = PoolImport {
        search: ImportScan {
            places: done.paths,
            ..ImportScan::default()
        },
        pool: done.guid.to_string(),
        props: vec![cachefile],
        mount_options,
        altroot: Some(root),
        command: cx.command(),
        ..PoolImport::default()
    };
    import::one(cx, request, &new, args.has("l"))
}

/// Properties and values.
type Props = Vec<(String, String)>;

/// Properties and mount options of `-o`.
fn options(args: &Parsed) -> Result<(Props, Vec<String>), Fail> {
    let (props, mount): (Vec<&str>, Vec<&str>) = args.all("o").partition(|o| o.contains('='));
    let props = common::assignments(
        props.into_iter(),
        common::pool_property,
        common::POOL_PROPERTY,
    )
    .map_err(common::as_usage)?;
    let mount = mount.iter().flat_map(|o| o.split(','));
    let mount = mount.filter(|o| !o.is_empty()).map(str::to_string);
    Ok((props, mount.collect()))
}

/// The tree of the new pool.
fn layout(pool: &str, root: &Vdev, split: &Split, how: cli::vdevs::Naming) -> String {
    let mut out = String::new();
    let normal = std::iter::once((VdevClass::Normal, pool));
    for (class, heading) in normal.chain(CLASSES) {
        let tops = of_class(root, class);
        let leaves = tops.into_iter().flat_map(|top| &top.children);
        let mut lines = leaves
            .filter(|leaf| split.members.contains(&leaf.guid))
            .map(|leaf| format!("\t  {}\n", name(leaf, pool, how)))
            .peekable();
        if class == VdevClass::Normal || lines.peek().is_some() {
            out.push_str(&format!("\t{heading}\n"));
            out.extend(lines);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use crate::testing::{run, sample, Fake};
    use api::{PoolSplit, Request};

    #[test]
    fn splits() {
        let mut fake = Fake::with(vec![sample("tank")]);
        fake.split.members = vec![1000];
        let (status, out, _) = run("split -n tank half", &mut fake);
        assert_eq!(status, 0);
        assert!(
            out.starts_with("would create 'half' with the following layout:\n\n\thalf\n\t  sda\n"),
            "{out}"
        );
        fake.seen.clear();
        let line = "split -o comment=x tank half b";
        assert_eq!(run(line, &mut fake), (0, String::new(), String::new()));
        assert_eq!(
            fake.seen,
            [Request::PoolSplit(PoolSplit {
                pool: "tank".into(),
                name: "half".into(),
                devices: vec!["b".into()],
                props: vec![("comment".into(), "x".into())],
                dry_run: false,
                command: format!("zpool {line}"),
            })]
        );
        // With -R it is imported, by its guid.
        fake.split.guid = 77;
        fake.split.paths = vec!["/dev/sdb".into()];
        fake.seen.clear();
        assert_eq!(run("split -R /mnt -o ro tank half", &mut fake).0, 0);
        let Some(Request::PoolImport(r)) = fake.seen.last() else {
            panic!("{:?}", fake.seen);
        };
        assert_eq!((&*r.pool, r.altroot.as_deref()), ("77", Some("/mnt")));
        assert_eq!(r.search.places, ["/dev/sdb"]);
        assert_eq!(r.mount_options, ["ro"]);
        for (line, words) in [
            ("split", "Missing pool name"),
            ("split tank", "Missing new pool name"),
            ("split -o ro tank half", "setting mntopts is only valid"),
            ("split -l tank half", "loading keys is only valid"),
        ] {
            let (status, _, err) = run(line, &mut fake);
            assert!(status == 2 && err.starts_with(words), "{line}: {err}");
        }
    }
}
