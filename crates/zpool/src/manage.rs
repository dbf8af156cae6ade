//! Small subcommands: version, destroy, export, labelclear, history, sync, wait.

use crate::common;
use api::{HistoryRecord, PoolGet, Reply, Request};
use base::sizes::nice;
use cli::{confirm, time, Cx, Fail, Outcome, Parsed};
use control::client::unexpected;
use tz::TimeZone;

/// Version of this command: the workspace's.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

pub fn version(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    cli::run::version("zpool version", VERSION, args, cx)
}

pub fn destroy(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let pool = common::one(args, "pool argument")?;
    if !args.has("yes") && confirm::is_asked(cx) {
        confirm::ask(
            "The pool and all in it will be destroyed:",
            std::slice::from_ref(&pool),
            cx,
        )?;
    }
    let request = Request::PoolDestroy {
        pool: pool.clone(),
        force: args.has("f"),
        command: cx.command(),
    };
    common::done(cx, &request, "destroy", &pool)?;
    Ok(0)
}

pub fn export(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let pools = if args.has("a") {
        if !args.operands.is_empty() {
            return Err(Fail::Usage("too many arguments".into()));
        }
        let (pools, _) = common::pools(cx, PoolGet::default())?;
        pools.into_iter().map(|p| p.name).collect()
    } else if args.operands.is_empty() {
        return Err(Fail::Usage("missing pool argument".into()));
    } else {
        args.operands.clone()
    };
    common::done_for_each(cx, "export", pools, |pool, command| {
        let request = Request::PoolExport {
            pool: pool.clone(),
            force: args.has("f"),
            keep_active: args.has("F"),
            command,
        };
        (request, pool.clone())
    })
}

pub fn labelclear(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let device = match args.operands.as_slice() {
        [] => return Err(Fail::Usage("missing vdev name".into())),
        [d] => d.clone(),
        _ => return Err(Fail::Usage("too many arguments".into())),
    };
    let path = if device.contains('/') || !std::path::Path::new("/dev").join(&device).exists() {
        cli::run::absolute(&device)
    } else {
        format!("/dev/{device}")
    };
    let found = match base::is_network_device(&path) {
        true => Ok(()),
        false => std::fs::metadata(&path).map(drop),
    };
    if let Err(e) = found {
        return Err(Fail::Error(format!(
            "failed to open {path}: {}",
            base::io_text(&e)
        )));
    }
    let request = Request::LabelClear {
        path: path.clone(),
        force: args.has("f"),
    };
    common::done(cx, &request, "clear labels of", &path)?;
    Ok(0)
}

pub fn sync(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let force = args.has("f");
    common::done_for_pools(cx, "sync", &args.operands, |pool, _| Request::PoolSync {
        pool,
        force,
    })
}

pub fn reguid(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let pool = match args.operands.as_slice() {
        [] => return Err(Fail::Usage("missing pool name".into())),
        [pool] => pool.clone(),
        _ => return Err(Fail::Usage("too many arguments".into())),
    };
    let guid = match args.get("g") {
        None => None,
        // As strtoull(3) reads them, -1 is the largest.
        Some(text) => match text
            .parse::<u64>()
            .or_else(|_| text.parse::<i64>().map(|n| n as u64))
        {
            Ok(guid) => Some(guid),
            Err(_) => return Err(Fail::Usage(format!("invalid GUID: {text}"))),
        },
    };
    let command = cx.command();
    match cx.ask(&Request::PoolReguid {
        pool: pool.clone(),
        guid,
        command,
    }) {
        Ok(Reply::Done) => Ok(0),
        Ok(other) => Err(cx.fail_plain(&unexpected(&other))),
        Err(e) => Err(cx.fail(&e, "reguid", &pool)),
    }
}

pub fn clear(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let Some((pool, devices)) = args.operands.split_first() else {
        return Err(Fail::Usage("missing pool name".into()));
    };
    if args.has("n") && !args.has("F") {
        return Err(Fail::Usage("-n is only meaningful with -F".into()));
    }
    for (flag, shown) in [("F", "-F"), ("power", "--power")] {
        if args.has(flag) {
            return Err(Fail::Error(format!(
                "cannot clear errors for {pool}: {shown} is not available in this version"
            )));
        }
    }
    let all = devices.iter().map(|d| Some(d.clone()));
    let all: Vec<_> = match devices.is_empty() {
        true => vec![None],
        false => all.collect(),
    };
    common::done_for_each(cx, "clear errors for", all, |device, command| {
        let request = Request::PoolClear(api::PoolClear {
            pool: pool.clone(),
            device: device.clone(),
            command,
        });
        (request, pool.clone())
    })
}

pub fn history(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let (pools, failed) = common::pools(
        cx,
        PoolGet {
            pools: args.operands.clone(),
            ..PoolGet::default()
        },
    )?;
    if pools.is_empty() && !failed {
        cx.say("no pools available")?;
        return Ok(0);
    }
    let mut status = i32::from(failed);
    for pool in pools {
        let request = Request::PoolHistory {
            pool: pool.name.clone(),
            internal: args.has("i"),
        };
        match cx.ask(&request) {
            Ok(Reply::History(records)) => {
                writeln!(cx.out, "History for '{}':", pool.name)?;
                for record in &records {
                    if let Some(text) =
                        history_record(record, args.has("i"), args.has("l"), &cx.zone)
                    {
                        write!(cx.out, "{text}")?;
                    }
                }
                writeln!(cx.out)?;
            }
            Ok(other) => return Err(cx.fail_plain(&unexpected(&other))),
            Err(e) => {
                cx.complain(&e, "show history for", &pool.name)?;
                status = 1;
            }
        }
    }
    Ok(status)
}

fn history_record(
    r: &HistoryRecord,
    internal: bool,
    long: bool,
    zone: &TimeZone,
) -> Option<String> {
    let mut line = time::history(r.time, zone);
    if let Some(command) = &r.command {
        line.push_str(&format!(" {command}"));
    } else if !internal {
        return None;
    } else if let Some(ioctl) = &r.ioctl {
        line.push_str(&format!(" ioctl {ioctl}\n"));
        for (heading, list) in [("input", &r.input), ("output", &r.output)] {
            if !list.is_empty() {
                line.push_str(&format!("    {heading}:\n"));
                for entry in list {
                    line.push_str(&format!("        {entry}\n"));
                }
            }
        }
        if !long {
            return Some(line);
        }
        line.pop();
    } else {
        let text = r.text.as_deref().unwrap_or_default();
        let event = r.event.as_deref().unwrap_or("unknown");
        match (r.txg, &r.dataset) {
            (Some(txg), _) if event.starts_with(api::OLD_EVENT) => {
                line.push_str(&format!(" [{event} txg:{txg}] {text}"));
            }
            (Some(txg), Some((name, id))) => {
                line.push_str(&format!(" [txg:{txg}] {event} {name} ({id}) {text}"));
            }
            (Some(txg), None) => line.push_str(&format!(" [txg:{txg}] {event} {text}")),
            (None, _) => line.push_str(&format!(" [internal {event}] {text}")),
        }
    }
    if long {
        let mut who = String::new();
        if let Some(uid) = r.uid {
            who.push_str(&format!("user {uid}"));
            if let Some(name) = user_name(uid) {
                who.push_str(&format!(" ({name})"));
            }
        }
        if let Some(host) = &r.host {
            who.push_str(&format!(" on {host}"));
            if let Some(zone) = &r.zone {
                who.push_str(&format!(":{zone}"));
            }
        }
        if !who.is_empty() {
            line.push_str(&format!(" [{}]", who.trim_start()));
        }
    }
    line.push('\n');
    Some(line)
}

/// Name of a user, from the user database file.
fn user_name(uid: u64) -> Option<String> {
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid.to_string()).then(|| name.to_string())
    })
}

/// Activities in the order of their columns.
const ACTIVITIES: [&str; 9] = [
    "discard",
    "free",
    "initialize",
    "replace",
    "remove",
    "resilver",
    "scrub",
    "trim",
    "raidz_expand",
];

pub fn wait(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let mut wanted: Vec<&str> = Vec::new();
    for list in args.all("t") {
        for word in list.split(',') {
            let known = ACTIVITIES
                .iter()
                .find(|a| **a == word)
                .ok_or_else(|| Fail::Usage(format!("invalid activity '{word}'")))?;
            wanted.push(known);
        }
    }
    if wanted.is_empty() {
        wanted.extend(ACTIVITIES);
    }
    let mut operands = args.operands.clone();
    let repeat = if operands.len() > 1 {
        cli::run::take_repeat(&mut operands)?
    } else {
        None
    };
    let pool = match operands.as_slice() {
        [] => return Err(Fail::Usage("missing 'pool' argument".into())),
        [p] => p.clone(),
        _ => return Err(Fail::Usage("too many arguments".into())),
    };
    // A wrong word is refused before anything is printed.
    common::stamp(args, cx)?;
    let columns: Vec<(&str, usize)> = ACTIVITIES
        .iter()
        .filter(|a| wanted.contains(a))
        .map(|a| (*a, a.len().max(6) + 2))
        .collect();
    let scripted = args.has("H");
    if repeat.is_some() && !scripted {
        for (name, width) in &columns {
            write!(cx.out, "{:>width$}", name.to_uppercase())?;
        }
        writeln!(cx.out)?;
    }
    loop {
        let request = Request::PoolActivity {
            pool: pool.clone(),
            devices: vec![],
        };
        let now = match cx.ask(&request) {
            Ok(Reply::Activity(now)) => now,
            Ok(other) => return Err(cx.fail_plain(&unexpected(&other))),
            Err(e) => return Err(cx.fail(&e, "wait for", &pool)),
        };
        let of = |name: &str| now.iter().find(|a| a.name == name);
        if let Some(repeat) = repeat {
            if let Some(t) = common::stamp(args, cx)? {
                writeln!(cx.out, "{t}")?;
            }
            let mut line = String::new();
            for (i, (name, width)) in columns.iter().enumerate() {
                let left = of(name).map_or(0, |a| a.remaining);
                let text = if args.has("p") {
                    left.to_string()
                } else {
                    nice(left, false)
                };
                if !scripted {
                    line.push_str(&format!("{text:>width$}"));
                } else {
                    if i > 0 {
                        line.push('\t');
                    }
                    line.push_str(&text);
                }
            }
            writeln!(cx.out, "{line}")?;
            cx.out.flush()?;
            if !columns
                .iter()
                .any(|(n, _)| of(n).is_some_and(|a| a.running))
            {
                return Ok(0);
            }
            repeat.sleep();
        } else {
            if !columns
                .iter()
                .any(|(n, _)| of(n).is_some_and(|a| a.running))
            {
                return Ok(0);
            }
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{run, sample, Fake};
    use api::ApiError;
    use base::Kind;

    #[test]
    fn histories() {
        let record = |time, command: &str| HistoryRecord {
            time,
            command: Some(command.into()),
            uid: Some(0),
            host: Some("box".into()),
            zone: Some("linux".into()),
            ..HistoryRecord::default()
        };
        let mut fake = Fake {
            pools: vec![sample("grove1")],
            history: vec![
                record(1_795_180_045, "zpool create -f grove1 /d0.img"),
                HistoryRecord {
                    time: 1_795_180_046,
                    txg: Some(8),
                    event: Some("create".into()),
                    dataset: Some(("grove1/d".into(), 142)),
                    ..HistoryRecord::default()
                },
                HistoryRecord {
                    time: 1_795_180_046,
                    ioctl: Some("create".into()),
                    input: vec!["type: 2".into()],
                    ..HistoryRecord::default()
                },
                HistoryRecord {
                    time: 1_795_180_046,
                    txg: Some(9),
                    event: Some("internal property set".into()),
                    text: Some("compression=1 dataset = 8".into()),
                    ..HistoryRecord::default()
                },
            ],
            ..Fake::default()
        };
        let (status, out, _) = run("history", &mut fake);
        assert_eq!(status, 0);
        assert_eq!(
            out,
            "History for 'grove1':\n2026-11-20.13:07:25 zpool create -f grove1 /d0.img\n\n"
        );
        let (_, out, _) = run("history -il grove1", &mut fake);
        assert_eq!(
            out,
            "History for 'grove1':\n\
             2026-11-20.13:07:25 zpool create -f grove1 /d0.img [user 0 (root) on box:linux]\n\
             2026-11-20.13:07:26 [txg:8] create grove1/d (142) \n\
             2026-11-20.13:07:26 ioctl create\n    input:\n        type: 2\n\
             2026-11-20.13:07:26 [internal property set txg:9] compression=1 dataset = 8\n\n"
        );
    }

    #[test]
    fn destroy_and_export() {
        let mut fake = Fake::with(vec![sample("a"), sample("b")]);
        assert_eq!(
            run("destroy -f a", &mut fake),
            (0, String::new(), String::new())
        );
        assert_eq!(
            fake.seen,
            [Request::PoolDestroy {
                pool: "a".into(),
                force: true,
                command: "zpool destroy -f a".into()
            }]
        );
        fake.seen.clear();
        assert_eq!(run("export -a", &mut fake).0, 0);
        assert_eq!(fake.seen.len(), 2);
        fake.refuse = Some(
            ApiError::reason(Kind::Busy, "pool is busy")
                .detail("cannot unmount '/a': pool or dataset is busy"),
        );
        let (status, _, err) = run("export a", &mut fake);
        assert_eq!(status, 1);
        assert_eq!(
            err,
            "cannot unmount '/a': pool or dataset is busy\ncannot export 'a': pool is busy\n"
        );
        for line in [
            "destroy",
            "destroy a b",
            "export",
            "export -a x",
            "wait",
            "wait -t nope a",
        ] {
            assert_eq!(run(line, &mut fake).0, 2, "{line}");
        }
    }

    #[test]
    fn versions() {
        let mut fake = Fake::default();
        let (status, out, _) = run("--version", &mut fake);
        assert_eq!(status, 0);
        assert_eq!(
            out,
            format!("zfs-2.4.0-fuse-{VERSION}\nzfs-kmod-2.4.0-fuse-9.9.9\n")
        );
        let (_, out, _) = run("version -j", &mut fake);
        assert!(out.contains("\"zfs_version\":{\"userland\":\"zfs-2.4.0-fuse-"));
    }

    #[test]
    fn waits() {
        let mut fake = Fake::with(vec![sample("a")]);
        assert_eq!(run("wait a", &mut fake), (0, String::new(), String::new()));
        let (_, out, _) = run("wait -t free,scrub a 0.1", &mut fake);
        assert_eq!(out, "    FREE   SCRUB\n       0       0\n");
    }

    #[test]
    fn unknown_and_unbuilt() {
        let mut fake = Fake::default();
        assert_eq!(run("trim -q tank", &mut fake).0, 2);
        let (status, _, err) = run("frobnicate", &mut fake);
        assert_eq!(status, 2);
        let want = "unrecognized command 'frobnicate'\nrun 'zpool help' for a list of commands\n";
        assert_eq!(err, want);
        let (status, _, err) = run("snapshot tank@a", &mut fake);
        assert_eq!(status, 2);
        assert!(err.contains("did you mean 'zfs snapshot'?"), "{err}");
        let (_, _, err) = run("set", &mut fake);
        assert!(err.contains("The following properties are supported:"));
        let (status, _, err) = run("", &mut fake);
        assert_eq!(status, 2);
        assert!(err.starts_with("missing command\nusage: zpool"));
        let (status, out, err) = run("list --help", &mut fake);
        assert_eq!((status, err.as_str()), (0, ""));
        assert!(out.starts_with("usage:\n\tlist [-gHjLpPv]"), "{out}");
        assert!(fake.seen.is_empty());
    }
}
