//! `zpool upgrade`.

use crate::common;
use api::{Pool, PoolGet, Reply, Request, Upgraded};
use cli::{Cx, Fail, Outcome, Parsed};
use control::client::unexpected;

/// What each legacy version brought.
const VERSIONS: [&str; 28] = [
    "Initial ZFS version",
    "Ditto blocks (replicated metadata)",
    "Hot spares and double parity RAID-Z",
    "zpool history",
    "Compression using the gzip algorithm",
    "bootfs pool property",
    "Separate intent log devices",
    "Delegated administration",
    "refquota and refreservation properties",
    "Cache devices",
    "Improved scrub performance",
    "Snapshot properties",
    "snapused property",
    "passthrough-x aclinherit",
    "user/group space accounting",
    "stmf property support",
    "Triple-parity RAID-Z",
    "Snapshot user holds",
    "Log device removal",
    "Compression using zle (zero-length encoding)",
    "Deduplication",
    "Received properties",
    "Slim ZIL",
    "System attributes",
    "Improved scrub stats",
    "Improved snapshot deletion performance",
    "Improved snapshot creation performance",
    "Multiple vdev replacements",
];

pub fn upgrade(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let (all, list) = (args.has("a"), args.has("v"));
    let version = match args.get("V") {
        Some(text) => Some(
            text.parse::<u64>()
                .ok()
                .filter(|v| (1..=28).contains(v) || *v == 5000)
                .ok_or_else(|| Fail::Usage(format!("invalid version '{text}'")))?,
        ),
        None => None,
    };
    if list && (all || !args.operands.is_empty() || version.is_some()) {
        return Err(Fail::Usage(
            "-v option is incompatible with other arguments".into(),
        ));
    }
    if all && !args.operands.is_empty() {
        return Err(Fail::Usage(
            "-a option should not be used along with a pool name".into(),
        ));
    }
    if version.is_some() && !all && args.operands.is_empty() {
        return Err(Fail::Usage("missing pool argument".into()));
    }
    writeln!(cx.out, "This system supports ZFS pool feature flags.\n")?;
    if list {
        return supported(cx);
    }
    if all || !args.operands.is_empty() {
        return do_upgrade(args, version, cx);
    }
    outdated(cx)
}

fn supported(cx: &mut Cx<'_>) -> Outcome {
    let features = match cx.ask(&Request::SupportedFeatures {}) {
        Ok(Reply::Features(f)) => f,
        Ok(other) => return Err(cx.fail_plain(&unexpected(&other))),
        Err(e) => return Err(cx.fail_plain(&e)),
    };
    writeln!(cx.out, "The following features are supported:\n")?;
    writeln!(cx.out, "FEAT DESCRIPTION")?;
    writeln!(cx.out, "{}", "-".repeat(61))?;
    for f in features {
        let ro = if f.read_only_compatible {
            " (read-only compatible)"
        } else {
            ""
        };
        writeln!(cx.out, "{:<37}{ro}", f.name)?;
        writeln!(cx.out, "     {}", f.description)?;
    }
    writeln!(
        cx.out,
        "\nThe following legacy versions are also supported:\n"
    )?;
    writeln!(cx.out, "VER  DESCRIPTION")?;
    writeln!(cx.out, "---  {}", "-".repeat(56))?;
    for (i, text) in VERSIONS.iter().enumerate() {
        writeln!(cx.out, " {:<2}  {text}", i + 1)?;
    }
    writeln!(
        cx.out,
        "\nFor more information on a particular version, including supported\n\
         releases, see the ZFS Administration Guide.\n"
    )?;
    Ok(0)
}

fn outdated(cx: &mut Cx<'_>) -> Outcome {
    let (pools, _) = common::pools(
        cx,
        PoolGet {
            tree: true,
            ..PoolGet::default()
        },
    )?;
    let mut legacy = pools.iter().filter(|p| p.version < 5000).peekable();
    if legacy.peek().is_none() {
        writeln!(cx.out, "All pools are formatted using feature flags.\n")?;
    } else {
        writeln!(
            cx.out,
            "The following pools are formatted with legacy version numbers and can\n\
             be upgraded to use feature flags.  After being upgraded, these pools\n\
             will no longer be accessible by software that does not support feature\n\
             flags.\n\n\
             Note that setting a pool's 'compatibility' feature to 'legacy' will\n\
             inhibit upgrades.\n\n\
             VER  POOL\n\
             ---  ------------"
        )?;
        for p in legacy {
            writeln!(cx.out, "{:>2}   {}", p.version, p.name)?;
        }
        writeln!(
            cx.out,
            "\nUse 'zpool upgrade -v' for a list of available legacy versions."
        )?;
    }
    let mut lacking = pools
        .iter()
        .filter(|p| p.version >= 5000)
        .filter(|p| !p.facts.disabled_features.is_empty() || !left_alone(p).is_empty())
        .peekable();
    if lacking.peek().is_none() {
        writeln!(
            cx.out,
            "Every feature flags pool has all supported and requested features enabled."
        )?;
    } else {
        writeln!(
            cx.out,
            "Some supported features are not enabled on the following pools. Once a\n\
             feature is enabled the pool may become incompatible with software\n\
             that does not support the feature. See zpool-features(7) for details.\n\n\
             Note that the pool 'compatibility' feature can be used to inhibit\n\
             feature upgrades.\n\n\
             Features marked with (*) are not applied automatically on upgrade, and\n\
             must be applied explicitly with zpool-set(7).\n\n\
             POOL  FEATURE\n\
             ---------------"
        )?;
        for p in lacking {
            writeln!(cx.out, "{}", p.name)?;
            for f in &p.facts.disabled_features {
                writeln!(cx.out, "      {f}")?;
            }
            for f in left_alone(p) {
                writeln!(cx.out, "      {f}(*)")?;
            }
        }
        writeln!(cx.out)?;
    }
    Ok(0)
}

/// Says that there is nothing to upgrade, and which features were not asked for.
fn say_up_to_date(pool: &api::Pool, cx: &mut Cx<'_>) -> std::io::Result<()> {
    writeln!(
        cx.out,
        "Pool '{}' already has all supported and requested features enabled.",
        pool.name
    )?;
    write!(cx.out, "{}", not_requested([pool]))
}

fn do_upgrade(args: &Parsed, version: Option<u64>, cx: &mut Cx<'_>) -> Outcome {
    let all = args.has("a");
    let (pools, failed) = common::pools(
        cx,
        PoolGet {
            pools: args.operands.clone(),
            // With it come the features that are not enabled.
            tree: true,
            ..PoolGet::default()
        },
    )?;
    let mut status = i32::from(failed);
    let mut changed = false;
    for pool in &pools {
        if let Some(v) = version {
            if pool.version > v {
                if !all {
                    writeln!(
                        cx.out,
                        "Pool '{}' is already formatted using more current version '{}'.",
                        pool.name, pool.version
                    )?;
                }
                continue;
            }
            if pool.version == v {
                if !all {
                    writeln!(
                        cx.out,
                        "Pool '{}' is already formatted using version '{v}'.",
                        pool.name
                    )?;
                }
                continue;
            }
        }
        // Whoever may not upgrade the pool is told that, too.
        let open = pool.health != "UNAVAIL";
        if open
            && version.is_none()
            && pool.version >= 5000
            && pool.facts.disabled_features.is_empty()
        {
            if !all {
                say_up_to_date(pool, cx)?;
            }
            continue;
        }
        let request = Request::PoolUpgrade {
            pool: pool.name.clone(),
            version,
            command: cx.command(),
        };
        match cx.ask(&request) {
            Ok(Reply::Upgraded(done)) => {
                let text = told(&pool.name, &done);
                if text.is_empty() {
                    if !all {
                        say_up_to_date(pool, cx)?;
                    }
                } else {
                    changed = true;
                    write!(cx.out, "{text}")?;
                }
            }
            Ok(other) => return Err(cx.fail_plain(&unexpected(&other))),
            Err(e) => {
                cx.complain(&e, "upgrade", &pool.name)?;
                status = 1;
            }
        }
    }
    if all && !changed && status == 0 {
        match version {
            Some(v) => writeln!(
                cx.out,
                "All pools are already formatted using version {v} or higher."
            )?,
            None => {
                writeln!(
                    cx.out,
                    "All pools are already formatted using feature flags.\n\n\
                     Every feature flags pool already has all supported and requested features enabled."
                )?;
                write!(cx.out, "{}", not_requested(&pools))?;
            }
        }
    }
    Ok(status)
}

/// Supported features that a pool lacks and an upgrade does not enable.
fn left_alone(pool: &Pool) -> &[String] {
    match pool.version {
        5000.. => &pool.facts.features_on_request,
        _ => &[],
    }
}

/// What "requested" leaves out: a line for each pool that lacks such features.
fn not_requested<'a>(pools: impl IntoIterator<Item = &'a Pool>) -> String {
    let line = |p: &Pool| {
        format!(
            "Not requested, so not enabled on '{}': {} (see 'zpool set feature@name=enabled').\n",
            p.name,
            left_alone(p).join(", ")
        )
    };
    let pools = pools.into_iter().filter(|p| !left_alone(p).is_empty());
    pools.map(line).collect()
}

fn told(pool: &str, done: &Upgraded) -> String {
    let mut out = String::new();
    if done.from_version != done.to_version {
        let to = if done.to_version >= 5000 {
            "feature flags".to_string()
        } else {
            format!("version {}", done.to_version)
        };
        out.push_str(&format!(
            "Successfully upgraded '{pool}' from version {} to {to}.\n",
            done.from_version
        ));
    }
    if !done.features.is_empty() {
        out.push_str(&format!("Enabled the following features on '{pool}':\n"));
        for f in &done.features {
            out.push_str(&format!("  {f}\n"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use crate::testing::{run, sample, Fake};
    use api::Upgraded;

    const HEAD: &str = "This system supports ZFS pool feature flags.\n\n";

    #[test]
    fn lists_and_does() {
        let mut fake = Fake::with(vec![sample("tank")]);
        let (_, out, _) = run("upgrade", &mut fake);
        assert_eq!(
            out,
            format!(
                "{HEAD}All pools are formatted using feature flags.\n\n\
                 Every feature flags pool has all supported and requested features enabled.\n"
            )
        );
        fake.pools[0].version = 23;
        fake.upgraded = Some(Upgraded {
            from_version: 23,
            to_version: 5000,
            features: vec!["async_destroy".into()],
        });
        let (_, out, _) = run("upgrade", &mut fake);
        assert!(
            out.contains("\nVER  POOL\n---  ------------\n23   tank\n"),
            "{out}"
        );
        let (_, out, _) = run("upgrade tank", &mut fake);
        assert_eq!(
            out,
            format!(
                "{HEAD}Successfully upgraded 'tank' from version 23 to feature flags.\n\
                 Enabled the following features on 'tank':\n  async_destroy\n"
            )
        );
        let (_, out, _) = run("upgrade -V 23 tank", &mut fake);
        assert!(out.ends_with("Pool 'tank' is already formatted using version '23'.\n"));
        fake.upgraded = None;
        fake.pools[0].version = 5000;
        fake.pools[0].facts.features_on_request = vec!["one".into(), "two".into()];
        let lacks = "Not requested, so not enabled on 'tank': one, two \
                     (see 'zpool set feature@name=enabled').\n";
        for line in ["upgrade tank", "upgrade -a"] {
            let (_, out, _) = run(line, &mut fake);
            let all = "already has all supported and requested features enabled.\n";
            assert!(out.ends_with(&format!("{all}{lacks}")), "{line}: {out}");
        }
        let (_, out, _) = run("upgrade", &mut fake);
        assert!(
            out.ends_with("---------------\ntank\n      one(*)\n      two(*)\n\n"),
            "{out}"
        );
        let (_, out, _) = run("upgrade -v", &mut fake);
        assert!(out.contains("async_destroy                         (read-only compatible)\n"));
        assert!(out.contains("\n 9   refquota and refreservation properties\n 10  Cache devices\n"));
        for line in [
            "upgrade -V x tank",
            "upgrade -V 29 tank",
            "upgrade -a tank",
            "upgrade -v tank",
        ] {
            assert_eq!(run(line, &mut fake).0, 2, "{line}");
        }
    }
}
