//! `zpool scrub`, `zpool resilver` and `zpool checkpoint`: work in the background that is begun, ended or waited for.

use crate::common;
use api::{PoolGet, PoolScrub, Reply, Request, ScrubAction};
use cli::time::Rounding;
use cli::{Cx, Fail, Outcome, Parsed};
use control::client::unexpected;
use std::time::Duration;

/// How often it is looked whether an activity has ended.
const TICK: Duration = Duration::from_millis(200);

/// The pools named, or all of them.
fn pools(args: &Parsed, all: bool, cx: &mut Cx<'_>) -> Result<Vec<String>, Fail> {
    if all && !args.operands.is_empty() {
        return Err(Fail::Usage(
            "the -a flag cannot be combined with individual pools.".into(),
        ));
    }
    if !all {
        return match args.operands.is_empty() {
            true => Err(Fail::Usage("missing pool name argument".into())),
            false => Ok(args.operands.clone()),
        };
    }
    let (pools, _) = common::pools(cx, PoolGet::default())?;
    Ok(pools.into_iter().map(|p| p.name).collect())
}

/// Makes a request for each pool; the exit status.
fn each(
    pools: &[String],
    action: &str,
    cx: &mut Cx<'_>,
    request: &dyn Fn(&str, String) -> Request,
) -> Outcome {
    let mut status = 0;
    for pool in pools {
        let request = request(pool, cx.command());
        match cx.ask(&request) {
            Ok(Reply::Done) => {}
            Ok(other) => return Err(cx.fail_plain(&unexpected(&other))),
            Err(e) => {
                let e = match e.whole {
                    true => e,
                    false => api::ApiError {
                        message: format!("cannot {action} {pool}: {}", e.message),
                        whole: true,
                        ..e
                    },
                };
                cx.complain(&e, action, pool)?;
                status = 1;
            }
        }
    }
    Ok(status)
}

/// The moment an option names, if it was given.
fn date(text: Option<&str>, rounding: Rounding, zone: &tz::TimeZone) -> Result<Option<u64>, Fail> {
    let Some(text) = text else {
        return Ok(None);
    };
    match cli::time::parse(text, rounding, zone) {
        Some(seconds) => Ok(Some(seconds)),
        None => Err(Fail::Usage(format!(
            "Failed to parse the date '{text}': expected YYYY-MM-DD or 'YYYY-MM-DD HH:MM'."
        ))),
    }
}

pub fn scrub(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let (stop, pause, since_last) = (args.has("s"), args.has("p"), args.has("C"));
    let errors = args.has("e");
    for (a, b, text) in [
        (stop, pause, "-s and -p"),
        (pause, since_last, "-p and -C"),
        (stop, since_last, "-s and -C"),
        (errors, since_last, "-e and -C"),
        (stop, args.has("w"), "-w and -s"),
        (pause, args.has("w"), "-w and -p"),
    ] {
        if a && b {
            return Err(Fail::Usage(format!(
                "invalid option combination: {text} are mutually exclusive"
            )));
        }
    }
    let zone = cli::time::zone();
    let start = date(args.get("S"), Rounding::Down, &zone)?;
    let end = date(args.get("E"), Rounding::Up, &zone)?;
    let dated = start.is_some() || end.is_some();
    let refused = [
        (
            dated && since_last,
            "invalid option combination: -C and -S/-E date are mutually exclusive",
        ),
        (
            dated && (errors || stop || pause),
            "invalid option combination: start/end date is available only with normal scrub",
        ),
        (
            start.zip(end).is_some_and(|(s, e)| s > e),
            "invalid arguments: end date has to be later than start date",
        ),
    ];
    if let Some((_, text)) = refused.iter().find(|(refused, _)| *refused) {
        return Err(Fail::Usage((*text).into()));
    }
    let (action, words) = match (stop, pause) {
        (true, _) => (ScrubAction::Stop, "cancel scrubbing"),
        (_, true) => (ScrubAction::Pause, "pause scrubbing"),
        _ if errors => (ScrubAction::Errors, "scrub"),
        _ => (ScrubAction::Start, "scrub"),
    };
    let pools = pools(args, args.has("a"), cx)?;
    let status = each(&pools, words, cx, &|pool, command| {
        Request::PoolScrub(PoolScrub {
            pool: pool.into(),
            action,
            since_last,
            start,
            end,
            command,
        })
    })?;
    if args.has("w") && status == 0 {
        for pool in &pools {
            wait(pool, "scrub", cx)?;
        }
    }
    Ok(status)
}

/// Returns when the activity does not run in a pool.
fn wait(pool: &str, activity: &str, cx: &mut Cx<'_>) -> Result<(), Fail> {
    loop {
        let list = match cx.ask(&Request::PoolActivity {
            pool: pool.into(),
            devices: vec![],
        }) {
            Ok(Reply::Activity(list)) => list,
            Ok(other) => return Err(cx.fail_plain(&unexpected(&other))),
            Err(e) => return Err(cx.fail(&e, "wait for", pool)),
        };
        if !list.iter().any(|a| a.name == activity && a.running) {
            return Ok(());
        }
        std::thread::sleep(TICK);
    }
}

pub fn resilver(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let pools = pools(args, false, cx)?;
    each(&pools, "restart resilver on", cx, &|pool, command| {
        Request::PoolResilver {
            pool: pool.into(),
            command,
        }
    })
}

pub fn checkpoint(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let (discard, and_wait) = (args.has("d"), args.has("w"));
    let pool = match args.operands.as_slice() {
        [] => return Err(Fail::Usage("missing pool argument".into())),
        [pool] => pool.clone(),
        _ => return Err(Fail::Usage("too many arguments".into())),
    };
    if and_wait && !discard {
        return Err(Fail::Usage(
            "--wait only valid when --discard also specified".into(),
        ));
    }
    let request = Request::PoolCheckpoint {
        pool: pool.clone(),
        discard,
        command: cx.command(),
    };
    match cx.ask(&request) {
        Ok(Reply::Done) => {}
        Ok(Reply::DoneBut(left)) => cx.say(&left)?,
        Ok(other) => return Err(cx.fail_plain(&unexpected(&other))),
        Err(e) => {
            let action = match discard {
                true => "discard checkpoint in",
                false => "checkpoint",
            };
            return Err(cx.fail(&e, action, &pool));
        }
    }
    if and_wait {
        wait(&pool, "discard", cx)?;
    }
    Ok(0)
}
