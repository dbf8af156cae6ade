//! `zpool trim` and `zpool initialize`.

use crate::common;
use api::{ApiError, PoolGet, PoolWear, Reply, Request, WearAction, WearKind};
use cli::{Cx, Fail, Outcome, Parsed};
use control::client::unexpected;
use std::time::Duration;

/// How often it is looked whether all is done.
const TICK: Duration = Duration::from_millis(200);

pub fn trim(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let rate = match args.get("r") {
        None => 0,
        Some(text) => match base::sizes::parse(text) {
            Ok(n) => n,
            Err(e) => {
                let why = e.of(text);
                return Err(Fail::Usage(format!("invalid value for rate: {why}")));
            }
        },
    };
    if args.has("c") && args.has("s") {
        return Err(Fail::Usage(
            "-s cannot be combined with other options".into(),
        ));
    }
    if rate != 0 && (args.has("c") || args.has("s")) {
        return Err(Fail::Usage(
            "-r cannot be combined with the -c or -s options".into(),
        ));
    }
    if args.has("w") && (args.has("c") || args.has("s")) {
        return Err(Fail::Usage("-w cannot be used with -c or -s".into()));
    }
    all(args, cx, (WearKind::Trim, rate, args.has("d")))
}

pub fn initialize(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let mut given = ["u", "s", "c"].into_iter().filter(|f| args.has(f));
    if let (Some(flag), Some(_)) = (given.next(), given.next()) {
        return Err(Fail::Usage(format!(
            "-{flag} cannot be combined with other options"
        )));
    }
    all(args, cx, (WearKind::Initialize, 0, false))
}

fn all(args: &Parsed, cx: &mut Cx<'_>, (what, rate, secure): (WearKind, u64, bool)) -> Outcome {
    let action = match (args.has("c"), args.has("s"), args.has("u")) {
        (true, _, _) => WearAction::Cancel,
        (_, true, _) => WearAction::Suspend,
        (_, _, true) => WearAction::Forget,
        _ => WearAction::Start,
    };
    if args.has("w") && action != WearAction::Start {
        return Err(Fail::Usage("-w cannot be used with -c, -s or -u".into()));
    }
    let pools = match (args.has("a"), args.operands.split_first()) {
        (true, Some(_)) => {
            return Err(Fail::Usage(
                "the -a flag cannot be combined with individual pools or vdevs.".into(),
            ))
        }
        (true, None) => {
            let (pools, _) = common::pools(cx, PoolGet::default())?;
            pools.into_iter().map(|p| (p.name, Vec::new())).collect()
        }
        (false, None) => return Err(Fail::Usage("missing pool name argument".into())),
        (false, Some((pool, devices))) => vec![(pool.clone(), devices.to_vec())],
    };
    let name = match what {
        WearKind::Trim => "trim",
        WearKind::Initialize => "initialize",
    };
    let mut status = 0;
    let mut begun = Vec::new();
    for (pool, devices) in pools {
        let request = Request::PoolWear(PoolWear {
            pool: pool.clone(),
            what,
            action,
            devices: devices.clone(),
            rate,
            secure,
            command: cx.command(),
        });
        match cx.ask(&request) {
            Ok(Reply::Batch(batch)) => {
                for (device, why) in batch.failed {
                    cx.complain(&why, name, &device)?;
                    status = 1;
                }
                begun.extend((!batch.done.is_empty()).then_some((pool, devices)));
            }
            Ok(other) => return Err(cx.fail_plain(&unexpected(&other))),
            Err(e) => {
                let e: ApiError = e;
                cx.complain(&e, name, &pool)?;
                status = 1;
            }
        }
    }
    if args.has("w") {
        for begun in &begun {
            wait(begun, name, cx)?;
        }
    }
    Ok(status)
}

/// Returns when nothing of that name goes on in a pool, or on the devices that were named.
fn wait((pool, devices): &(String, Vec<String>), name: &str, cx: &mut Cx<'_>) -> Result<(), Fail> {
    let request = Request::PoolActivity {
        pool: pool.clone(),
        devices: devices.clone(),
    };
    loop {
        let list = match cx.ask(&request) {
            Ok(Reply::Activity(list)) => list,
            Ok(other) => return Err(cx.fail_plain(&unexpected(&other))),
            Err(e) => return Err(cx.fail(&e, "wait for", pool)),
        };
        if !list.iter().any(|a| a.name == name && a.running) {
            return Ok(());
        }
        std::thread::sleep(TICK);
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{run, sample, Fake};
    use api::{PoolWear, Request, WearAction, WearKind};

    #[test]
    fn what_is_asked_for() {
        let mut fake = Fake::with(vec![sample("a"), sample("b")]);
        let (status, out, err) = run("trim -r 1M tank sda sdb", &mut fake);
        assert_eq!((status, out.as_str(), err.as_str()), (0, "", ""));
        let ask = |pool: &str, what, action| PoolWear {
            pool: pool.into(),
            what,
            action,
            ..PoolWear::default()
        };
        let want = PoolWear {
            devices: vec!["sda".into(), "sdb".into()],
            rate: 1 << 20,
            command: "zpool trim -r 1M tank sda sdb".into(),
            ..ask("tank", WearKind::Trim, WearAction::Start)
        };
        assert_eq!(fake.seen, [Request::PoolWear(want)]);
        fake.seen.clear();
        assert_eq!(run("initialize -u -a", &mut fake).0, 0);
        let seen = fake.seen.iter().map(|r| match r {
            Request::PoolWear(w) => (w.pool.clone(), w.what, w.action),
            other => panic!("{other:?}"),
        });
        let both = ["a", "b"].map(|p| (p.into(), WearKind::Initialize, WearAction::Forget));
        assert_eq!(seen.collect::<Vec<_>>(), both);
    }

    #[test]
    fn what_does_not_go_together() {
        let mut fake = Fake::with(vec![sample("a")]);
        for line in [
            "trim",
            "trim -c -s a",
            "trim -a a",
            "trim -r x a",
            "trim -w -c a",
            "trim -r 1 -c a",
            "initialize -c -u a",
            "initialize",
        ] {
            assert_eq!(run(line, &mut fake).0, 2, "{line}");
        }
        assert!(fake.seen.is_empty());
    }
}
