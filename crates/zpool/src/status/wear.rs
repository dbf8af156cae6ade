//! What `zpool status` says of trim and initialize, behind the name of a device.

use super::Look;
use api::{VdevStats, WearState, WearStats};
use base::sizes::nice;
use cli::json::{Object, Put, Style};
use cli::time;
use tz::TimeZone;

/// Both notes, initialize first.
pub fn notes(s: &VdevStats, look: &Look) -> String {
    let zone = &look.zone;
    let initialize = note(
        &s.initialize,
        (look.initialize, ["initializ", "uninitialized"]),
        zone,
    );
    let trim = match s.trim.state {
        WearState::None | WearState::Canceled if look.trim && s.trim_unsupported => {
            "  (trim unsupported)".into()
        }
        _ => note(&s.trim, (look.trim, ["trimm", "untrimmed"]), zone),
    };
    initialize + &trim
}

/// Percent done.
fn percent(s: &WearStats) -> u64 {
    match s.state {
        WearState::Complete => 100,
        _ => {
            let done = u128::from(s.done) * 100 / (u128::from(s.total) + 1);
            u64::try_from(done).unwrap_or(100).min(100)
        }
    }
}

fn note(s: &WearStats, (detailed, [stem, never]): (bool, [&str; 2]), zone: &TimeZone) -> String {
    if !detailed {
        return match s.state {
            WearState::Active => format!("  ({stem}ing)"),
            _ => String::new(),
        };
    }
    let when = match s.state {
        WearState::Active => "started at",
        WearState::Suspended => "suspended, started at",
        WearState::Complete => "completed at",
        WearState::None | WearState::Canceled => return format!("  ({never})"),
    };
    let at = time::ctime(s.time, zone);
    format!("  ({}% {stem}ed, {when} {at})", percent(s))
}

/// The same in JSON.
pub fn put(o: &mut Object, s: &VdevStats, look: &Look, style: Style) {
    if look.initialize {
        let names = ["init", "initialized", "to_initialize", "UNINITIALIZED"];
        put_one(
            o,
            (&s.initialize, s.initialize_errors),
            names,
            (look, style),
        );
    }
    if look.trim {
        if !s.trim_unsupported {
            let names = ["trim", "trimmed", "to_trim", "UNTRIMMED"];
            put_one(o, (&s.trim, s.trim_errors), names, (look, style));
        }
        o.put("trim_notsup", style.plain(u64::from(s.trim_unsupported)));
    }
}

fn put_one(
    o: &mut Object,
    (s, errors): (&WearStats, u64),
    [stem, done, total, never]: [&str; 4],
    (look, style): (&Look, Style),
) {
    let size = |n: u64| style.nice(n, || nice(n, false));
    let state = match s.state {
        WearState::None => never,
        WearState::Active => "ACTIVE",
        WearState::Canceled => "CANCELED",
        WearState::Suspended => "SUSPENDED",
        WearState::Complete => "COMPLETE",
    };
    o.put(format!("{stem}_state"), state);
    if s.state != WearState::None {
        o.put(done, size(s.done));
        o.put(total, size(s.total));
        o.put(
            format!("{stem}_time"),
            style.nice(s.time, || time::date(s.time, &look.zone)),
        );
        o.put(format!("{stem}_errors"), style.plain(errors));
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{run, sample, Fake};
    use api::{WearState, WearStats};

    #[test]
    fn trim_and_initialize_in_status() {
        let utc = 1_795_182_531; // Fri Nov 20 13:48:51 2026
        let mut p = sample("tank");
        let stats = |state, done| WearStats {
            state,
            time: utc,
            done,
            total: 999,
        };
        if let Some(t) = &mut p.tree {
            let mirror = &mut t.children[0].children;
            mirror[0].stats.trim = stats(WearState::Active, 450);
            mirror[0].stats.initialize = stats(WearState::Complete, 0);
            mirror[1].stats.trim_unsupported = true;
            mirror[1].stats.initialize = stats(WearState::Suspended, 20);
        }
        let mut fake = Fake::with(vec![p]);
        let row = |line: &str, device: &str, fake: &mut Fake| {
            let (_, out, err) = run(line, fake);
            assert_eq!(err, "");
            let mut rows = out.lines().filter(|l| l.contains(device));
            rows.next()
                .unwrap()
                .split_once("     0     0     0")
                .unwrap()
                .1
                .to_string()
        };
        assert_eq!(row("status", "sda", &mut fake), "  (trimming)");
        assert_eq!(row("status", "/img/b", &mut fake), "");
        let at = "Fri Nov 20 13:48:51 2026";
        assert_eq!(
            row("status -t", "sda", &mut fake),
            format!("  (45% trimmed, started at {at})")
        );
        assert_eq!(
            row("status -t", "/img/b", &mut fake),
            "  (trim unsupported)"
        );
        assert_eq!(row("status -t", "sdc", &mut fake), "  (untrimmed)");
        assert_eq!(
            row("status -i", "sda", &mut fake),
            format!("  (100% initialized, completed at {at})  (trimming)")
        );
        assert_eq!(
            row("status -i", "/img/b", &mut fake),
            format!("  (2% initialized, suspended, started at {at})")
        );
        assert_eq!(row("status -i", "sdc", &mut fake), "  (uninitialized)");
        let (_, out, _) = run("status -j -t -i --json-int", &mut fake);
        for part in [
            "\"trim_state\":\"ACTIVE\",\"trimmed\":450,\"to_trim\":999",
            "\"init_state\":\"SUSPENDED\",\"initialized\":20",
            "\"trim_notsup\":1",
            "\"trim_state\":\"UNTRIMMED\"",
        ] {
            assert!(out.contains(part), "{part} is not in {out}");
        }
    }
}
