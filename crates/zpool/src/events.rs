//! `zpool events` (command reference §13.3).

use crate::common;
use api::{Event, EventValue, PoolGet, Reply, Request};
use cli::json::{line, Object, Put};
use cli::{Cx, Fail, Outcome, Parsed};
use control::client::unexpected;
use std::time::Duration;

/// How often is asked for what is new (`-f`).
const POLL: Duration = Duration::from_millis(50);
/// Width of the column of times.
const TIME: usize = 30;

pub fn events(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let pool = match args.operands.as_slice() {
        [] => None,
        [p] => Some(p.clone()),
        _ => return Err(Fail::Usage("too many arguments".into())),
    };
    if args.has("c") {
        if pool.is_some() || ["f", "v", "H", "j"].iter().any(|o| args.has(o)) {
            return Err(Fail::Usage(
                "-c cannot be combined with a pool or other options".into(),
            ));
        }
        return match cx.ask(&Request::EventsClear {}) {
            Ok(Reply::DoneBut(text)) => {
                writeln!(cx.out, "{text}")?;
                Ok(0)
            }
            Ok(other) => Err(cx.fail_plain(&unexpected(&other))),
            Err(e) => Err(cx.fail_plain(&e)),
        };
    }
    if let Some(pool) = &pool {
        cli::names::check_pool(pool, false)
            .map_err(|why| Fail::Error(format!("cannot open '{pool}': {why}")))?;
        let get = PoolGet {
            pools: vec![pool.clone()],
            ..PoolGet::default()
        };
        if common::pools(cx, get)?.1 {
            return Ok(1);
        }
    }
    let (json, verbose, scripted) = (args.has("j"), args.has("v"), args.has("H"));
    if !json && !scripted {
        writeln!(cx.out, "{:<TIME$} CLASS", "TIME")?;
    }
    let (mut after, mut dropped) = (0, None);
    loop {
        let request = Request::Events {
            pool: pool.clone(),
            after,
        };
        let new = match cx.ask(&request) {
            Ok(Reply::Events(new)) => new,
            Ok(other) => return Err(cx.fail_plain(&unexpected(&other))),
            Err(e) => return Err(cx.fail_plain(&e)),
        };
        let lost = new.dropped - dropped.replace(new.dropped).unwrap_or(0).min(new.dropped);
        if lost > 0 && !json {
            writeln!(cx.out, "dropped {lost} events")?;
        }
        for e in &new.list {
            after = after.max(e.eid);
            match json {
                true => writeln!(cx.out, "{}", line(as_json(e)))?,
                false => write!(cx.out, "{}", as_text(e, scripted, verbose, cx))?,
            }
        }
        if !args.has("f") {
            return Ok(0);
        }
        cx.out.flush()?;
        std::thread::sleep(POLL);
    }
}

fn as_text(e: &Event, scripted: bool, verbose: bool, cx: &Cx<'_>) -> String {
    // `Nov 20 2026 12:00:00.123456789`
    let history = cli::time::history(e.seconds, &cx.zone);
    let (date, time) = history.split_once('.').unwrap_or((&history, ""));
    let mut parts = date.splitn(3, '-');
    let mut next = || parts.next().unwrap_or_default();
    let (year, month, day) = (next(), next(), next());
    let month = month
        .parse::<usize>()
        .ok()
        .and_then(|m| MONTHS.get(m.wrapping_sub(1)))
        .unwrap_or(&"???");
    let stamp = format!("{month} {day} {year} {time}.{:09}", e.nanoseconds);
    let mut out = match scripted {
        true => format!("{stamp}\t{}\n", e.class),
        false => format!("{stamp:<TIME$} {}\n", e.class),
    };
    if verbose {
        out.push_str(&format!("        class = \"{}\"\n", e.class));
        for (name, value) in &e.pairs {
            let value = match value {
                EventValue::Text(t) => format!("\"{}\"", cli::harmless::one_line(t)),
                EventValue::Number(n) => match state_word(name, *n) {
                    Some(word) => format!("\"{word}\" ({n:#x})"),
                    None => format!("{n:#x}"),
                },
            };
            out.push_str(&format!("        {name} = {value}\n"));
        }
        out.push_str(&format!(
            "        time = {:#x} {:#x}\n        eid = {:#x}\n\n",
            e.seconds, e.nanoseconds, e.eid
        ));
    }
    out
}

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// The word for a number that is a state.
fn state_word(name: &str, n: u64) -> Option<&'static str> {
    match (name, n) {
        ("vdev_state" | "vdev_laststate", 1) => Some("OFFLINE"),
        ("vdev_state" | "vdev_laststate", 2) => Some("OFFLINE"),
        ("vdev_state" | "vdev_laststate", 3) => Some("REMOVED"),
        ("vdev_state" | "vdev_laststate", 4) => Some("UNAVAIL"),
        ("vdev_state" | "vdev_laststate", 5) => Some("FAULTED"),
        ("vdev_state" | "vdev_laststate", 6) => Some("DEGRADED"),
        ("vdev_state" | "vdev_laststate", 7) => Some("ONLINE"),
        ("pool_state", 0) => Some("ACTIVE"),
        _ => None,
    }
}

fn as_json(e: &Event) -> Object {
    let mut payload = Object::new();
    for (name, value) in &e.pairs {
        match value {
            EventValue::Text(t) => payload.put(name, t.as_str()),
            EventValue::Number(n) => payload.put(name, *n),
        }
    }
    let mut o = Object::new()
        .with("eid", e.eid)
        .with("class", e.class.as_str());
    o.put("time", vec![e.seconds, u64::from(e.nanoseconds)]);
    o.put("payload", payload);
    o
}

#[cfg(test)]
mod tests {
    use crate::testing::{run, sample, Fake};

    #[test]
    fn an_event_in_all_forms() {
        let mut fake = Fake::with(vec![sample("tank")]);
        fake.events.list.push(api::Event {
            eid: 3,
            seconds: 1_795_180_045,
            nanoseconds: 17,
            class: "resource.fs.zfs.statechange".into(),
            pairs: vec![
                ("pool".into(), api::EventValue::Text("tank".into())),
                ("vdev_guid".into(), api::EventValue::Number(255)),
                ("vdev_state".into(), api::EventValue::Number(5)),
            ],
        });
        let (status, out, _) = run("events", &mut fake);
        assert_eq!(status, 0);
        assert_eq!(
            out,
            "TIME                           CLASS\n\
             Nov 20 2026 13:07:25.000000017 resource.fs.zfs.statechange\n"
        );
        let (_, out, _) = run("events -vH tank", &mut fake);
        assert_eq!(
            out,
            "Nov 20 2026 13:07:25.000000017\tresource.fs.zfs.statechange\n        \
             class = \"resource.fs.zfs.statechange\"\n        pool = \"tank\"\n        \
             vdev_guid = 0xff\n        vdev_state = \"FAULTED\" (0x5)\n        \
             time = 0x6b00460d 0x11\n        eid = 0x3\n\n"
        );
        let (_, out, _) = run("events -j", &mut fake);
        assert!(
            out.contains("\"class\":\"resource.fs.zfs.statechange\""),
            "{out}"
        );
        for line in ["events -c tank", "events -c -H", "events -c -f"] {
            assert_eq!(run(line, &mut fake).0, 2, "{line}");
        }
        for bad in ["nosuch", "/tmp/", "tank/fs", "tank@snap", "tank#mark"] {
            assert_eq!(run(&format!("events {bad}"), &mut fake).0, 1, "{bad}");
        }
    }
}
