//! `zfs upgrade`.

use crate::common::{self, History};
use api::{Dataset, DatasetGet, DatasetKind, PoolGet, Reply, Request, Select, Value};
use cli::{names, Cx, Fail, Outcome, Parsed};
use control::client::unexpected;
use std::collections::BTreeMap;

/// What each version brought; the last one is the newest.
const VERSIONS: [&str; 5] = [
    "Initial ZFS filesystem version",
    "Enhanced directory entries",
    "Case insensitive and filesystem user identifier (FUID)",
    "userquota, groupquota properties",
    "System attributes",
];
const NEWEST: u64 = VERSIONS.len() as u64;

/// Least version of the pool for a version of its file systems.
const fn pool_version_for(version: u64) -> u64 {
    match version {
        0..=2 => 1,
        3 => 9,
        4 => 15,
        _ => 24,
    }
}

pub fn upgrade(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let (all, below, names) = (args.has("a"), args.has("r"), &args.operands);
    let version = match args.get("V") {
        None => None,
        Some("current") => Some(NEWEST),
        Some(text) => {
            let known = text.parse().ok().filter(|v| (1..=NEWEST).contains(v));
            Some(known.ok_or_else(|| Fail::Usage(format!("invalid version {text}")))?)
        }
    };
    let change = all || !names.is_empty();
    if args.has("v") {
        if change || below || version.is_some() {
            return Err(Fail::Usage(
                "-v option is incompatible with other arguments".into(),
            ));
        }
        return supported(cx);
    }
    if all && !names.is_empty() {
        return Err(Fail::Usage(
            "-a option should not be used along with a filesystem name".into(),
        ));
    }
    if !change && (below || version.is_some()) {
        return Err(Fail::Usage("missing filesystem argument".into()));
    }
    match change {
        true => raise(args, version.unwrap_or(NEWEST), cx),
        false => outdated(cx),
    }
}

fn supported(cx: &mut Cx<'_>) -> Outcome {
    writeln!(
        cx.out,
        "The following filesystem versions are supported:\n\nVER  DESCRIPTION\n---  {}",
        "-".repeat(56)
    )?;
    for (i, text) in VERSIONS.iter().enumerate() {
        writeln!(cx.out, "{:>2}   {text}", i + 1)?;
    }
    writeln!(
        cx.out,
        "\nFor more information on a particular version, including supported releases,\n\
         see the ZFS Administration Guide.\n"
    )?;
    Ok(0)
}

/// File systems with their versions; whether some could not be had.
fn filesystems(
    cx: &mut Cx<'_>,
    roots: Vec<String>,
    depth: Option<u32>,
) -> Result<(Vec<(Dataset, u64)>, bool), Fail> {
    let get = DatasetGet {
        roots,
        depth,
        kinds: vec![DatasetKind::Filesystem],
        listsnapshots: false,
        props: Select::These(vec!["version".into()]),
    };
    let (found, failed) = common::datasets(cx, get)?;
    // One that cannot be read has none.
    let with_version = |d: Dataset| match &d.props.first()?.value {
        Value::Text(t) => t.parse().ok().map(|v| (d, v)),
        _ => None,
    };
    Ok((found.into_iter().filter_map(with_version).collect(), failed))
}

fn outdated(cx: &mut Cx<'_>) -> Outcome {
    writeln!(
        cx.out,
        "This system is currently running ZFS filesystem version {NEWEST}.\n"
    )?;
    let (found, failed) = filesystems(cx, Vec::new(), None)?;
    let (old, rest): (Vec<_>, Vec<_>) = found.iter().partition(|(_, v)| *v < NEWEST);
    let new: Vec<_> = rest.into_iter().filter(|(_, v)| *v > NEWEST).collect();
    let about_old = "The following filesystems are out of date, and can be upgraded.  After being\n\
                     upgraded, these filesystems (and any 'zfs send' streams generated from\n\
                     subsequent snapshots) will no longer be accessible by older software versions.";
    let about_new = "The following filesystems are formatted using a newer software version and\n\
                     cannot be accessed on the current system.";
    for (about, list) in [(about_old, &old), (about_new, &new)] {
        if list.is_empty() {
            continue;
        }
        writeln!(cx.out, "{about}\n\n\nVER  FILESYSTEM\n---  ------------")?;
        for (d, version) in list.iter() {
            writeln!(cx.out, "{version:>2}   {}", d.name)?;
        }
    }
    if old.is_empty() && new.is_empty() {
        writeln!(
            cx.out,
            "All filesystems are formatted with the current version."
        )?;
    }
    Ok(i32::from(failed))
}

/// Versions of the pools.
fn pools(cx: &mut Cx<'_>) -> Result<BTreeMap<String, u64>, Fail> {
    match cx.ask(&Request::PoolGet(PoolGet::default())) {
        Ok(Reply::Pools(answer)) => {
            let versions = answer.found.into_iter().map(|p| (p.name, p.version));
            Ok(versions.collect())
        }
        Ok(other) => Err(cx.fail_plain(&unexpected(&other))),
        Err(e) => Err(cx.fail_plain(&e)),
    }
}

fn raise(args: &Parsed, version: u64, cx: &mut Cx<'_>) -> Outcome {
    let (roots, mut failed) = common::roots(&args.operands, cx)?;
    let (mut upgraded, mut same) = (0, 0);
    if !roots.is_empty() || args.has("a") {
        let depth = match args.has("r") || args.has("a") {
            true => None,
            false => Some(0),
        };
        let pools = pools(cx)?;
        let (found, more_failed) = filesystems(cx, roots, depth)?;
        failed |= more_failed;
        let mut history = History::new(cx);
        for (Dataset { name, .. }, now) in found {
            let of_pool = pools.get(names::pool_of(&name)).copied().unwrap_or(0);
            let needed = pool_version_for(version);
            if of_pool < needed {
                writeln!(
                    cx.out,
                    "{name}: can not be upgraded; the pool version needs to first be upgraded\n\
                     to version {needed}\n"
                )?;
                failed = true;
            } else if now > version {
                writeln!(
                    cx.out,
                    "{name}: can not be downgraded; it is already at version {now}"
                )?;
                failed = true;
            } else if now == version {
                same += 1;
            } else {
                let request = Request::DatasetSet {
                    dataset: name.clone(),
                    props: vec![("version".into(), version.to_string())],
                    no_remount: false,
                    command: history.line(&name),
                };
                match common::done(cx, &request, "set property for", &name) {
                    Ok(()) => {
                        history.done(&name);
                        upgraded += 1;
                    }
                    Err(Fail::Error(_)) => failed = true,
                    Err(other) => return Err(other),
                }
            }
        }
    }
    writeln!(cx.out, "{upgraded} filesystems upgraded")?;
    if same > 0 {
        writeln!(cx.out, "{same} filesystems already at this version")?;
    }
    Ok(i32::from(failed))
}

#[cfg(test)]
mod tests {
    use crate::testing::{run, Fake};
    use api::*;

    fn versions(list: &[(&str, &str)]) -> Vec<Dataset> {
        let of = |(name, version): &(&str, &str)| Dataset {
            name: name.to_string(),
            kind: DatasetKind::Filesystem,
            createtxg: 1,
            guid: 1,
            props: vec![Prop::new("version", *version, Source::None)],
        };
        list.iter().map(of).collect()
    }

    #[test]
    fn lists() {
        let mut fake = Fake::with(versions(&[("tank", "5"), ("tank/a", "4"), ("tank/b", "6")]));
        let (status, out, _) = run("upgrade", &mut fake);
        assert_eq!(status, 0);
        assert!(out.contains("\n\n\nVER  FILESYSTEM\n---  ------------\n 4   tank/a\n"));
        assert!(out.contains("cannot be accessed"));
        assert!(out.ends_with(" 6   tank/b\n"));
        let mut fake = Fake::with(versions(&[("tank", "5")]));
        let (_, out, _) = run("upgrade", &mut fake);
        assert!(out.ends_with("\n\nAll filesystems are formatted with the current version.\n"));
    }

    #[test]
    fn raises() {
        let mut fake = Fake::with(versions(&[("tank", "5"), ("tank/a", "3")]));
        let pool = Pool {
            name: "tank".into(),
            version: 23,
            ..Pool::default()
        };
        let pools = Reply::Pools(Answer {
            found: vec![pool],
            failed: Vec::new(),
        });
        fake.first.push_back(pools.clone());
        let (status, out, _) = run("upgrade tank/a", &mut fake);
        let want = "tank/a: can not be upgraded; the pool version needs to first be upgraded\n\
                    to version 24\n\n0 filesystems upgraded\n";
        assert_eq!((status, out.as_str()), (1, want));
        fake.first.push_back(pools);
        let (status, out, _) = run("upgrade -V 4 -r tank", &mut fake);
        let want =
            "tank: can not be downgraded; it is already at version 5\n1 filesystems upgraded\n";
        assert_eq!((status, out.as_str()), (1, want));
        let Some(Request::DatasetSet { dataset, props, .. }) = fake.seen.last() else {
            panic!("{:?}", fake.seen.last());
        };
        assert_eq!(dataset, "tank/a");
        assert_eq!(*props, [("version".to_string(), "4".to_string())]);
    }

    #[test]
    fn refuses() {
        for line in [
            "upgrade -r",
            "upgrade -V 4",
            "upgrade -v tank",
            "upgrade -a tank",
            "upgrade -V 6 tank",
        ] {
            assert_eq!(run(line, &mut Fake::default()).0, 2, "{line}");
        }
    }
}
