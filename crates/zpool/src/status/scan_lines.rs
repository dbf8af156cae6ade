//! Lines of `zpool status` about a scrub or resilver, under way or ended.

use api::{Scan, ScanFunction, ScanState};
use base::sizes::nice;
use cli::time;
use tz::TimeZone;

/// `HH:MM:SS`, from one day on with `N days ` in front.
pub fn duration(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let hms = format!("{:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60);
    if days > 0 {
        format!("{days} days {hms}")
    } else {
        hms
    }
}

/// Lines of the newest scrub or resilver; none if there was none.
pub fn scan_lines(scan: &Scan, now: u64, zone: &TimeZone) -> Vec<String> {
    let scrub = match scan.function {
        ScanFunction::None => return Vec::new(),
        ScanFunction::Scrub => true,
        ScanFunction::Resilver => false,
    };
    let word = if scrub { "scrub" } else { "resilver" };
    let healed = nice(scan.processed, true);
    match scan.state {
        ScanState::None => Vec::new(),
        ScanState::Finished => vec![format!(
            "{} {healed} in {} with {} errors on {}",
            if scrub {
                "scrub repaired"
            } else {
                "resilvered"
            },
            duration(scan.end.saturating_sub(scan.start)),
            scan.errors,
            time::ctime(scan.end, zone)
        )],
        ScanState::Canceled => vec![format!(
            "{word} canceled on {}",
            time::ctime(scan.end, zone)
        )],
        ScanState::Scanning => {
            let mut lines = Vec::new();
            match scan.paused_at {
                Some(at) => {
                    lines.push(format!("{word} paused since {}", time::ctime(at, zone)));
                    lines.push(format!(
                        "{word} started on {}",
                        time::ctime(scan.start, zone)
                    ));
                }
                None => lines.push(format!(
                    "{word} in progress since {}",
                    time::ctime(scan.start, zone)
                )),
            }
            let elapsed = now
                .saturating_sub(scan.pass_start)
                .saturating_sub(scan.spent_paused)
                .max(1);
            let scan_rate = scan.pass_examined / elapsed;
            let issue_rate = scan.pass_issued / elapsed;
            let total = scan.to_examine;
            let to_issue = total.saturating_sub(scan.skipped);
            let rate = |r: u64| {
                if r > 0 && scan.paused_at.is_none() {
                    format!(" at {}/s", nice(r, true))
                } else {
                    String::new()
                }
            };
            lines.push(format!(
                "{} / {} scanned{}, {} / {} issued{}",
                nice(scan.examined, true),
                nice(total, true),
                rate(scan_rate),
                nice(scan.issued, true),
                nice(to_issue, true),
                rate(issue_rate)
            ));
            let part = if to_issue == 0 {
                0.0
            } else {
                100.0 * scan.issued as f64 / to_issue as f64
            };
            let verb = if scrub { "repaired" } else { "resilvered" };
            let mut line = format!("{healed} {verb}, {part:.2}% done");
            if scan.paused_at.is_none() {
                // A rate tells nothing before work has begun, nor where more was found than there was when the scan began.
                let begun = match scrub {
                    true => scan.issued > 0,
                    false => scan.processed > 0,
                };
                let left = to_issue.checked_sub(scan.issued);
                match left.filter(|_| begun && issue_rate >= 10 << 20) {
                    Some(left) => {
                        line.push_str(&format!(", {} to go", duration(left / issue_rate)));
                    }
                    None => line.push_str(", no estimated completion time"),
                }
            }
            lines.push(line);
            lines
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scans() {
        let z = TimeZone::utc();
        let t = 1_795_182_532;
        let mut scan = Scan {
            function: ScanFunction::Scrub,
            state: ScanState::Finished,
            start: t - 1,
            end: t,
            ..Scan::default()
        };
        assert_eq!(
            scan_lines(&scan, t, &z),
            ["scrub repaired 0B in 00:00:01 with 0 errors on Fri Nov 20 13:48:52 2026"]
        );
        scan.function = ScanFunction::Resilver;
        scan.state = ScanState::Scanning;
        scan.to_examine = 9_080_668;
        assert_eq!(
            scan_lines(&scan, t, &z)[1..],
            [
                "0B / 8.66M scanned, 0B / 8.66M issued",
                "0B resilvered, 0.00% done, no estimated completion time"
            ]
        );
        scan.function = ScanFunction::Scrub;
        scan.to_examine = 200 << 30;
        scan.examined = 100 << 30;
        scan.issued = 50 << 30;
        scan.pass_examined = 100 << 30;
        scan.pass_issued = 50 << 30;
        scan.pass_start = t;
        assert_eq!(
            scan_lines(&scan, t + 1000, &z)[1..],
            [
                "100G / 200G scanned at 102M/s, 50G / 200G issued at 51.2M/s",
                "0B repaired, 25.00% done, 00:50:00 to go"
            ]
        );
        // Over a day; paused meanwhile.
        scan.to_examine = 2 << 40;
        scan.spent_paused = 3600;
        let line = |scan: &Scan, now| scan_lines(scan, now, &z).pop().unwrap();
        assert_eq!(
            line(&scan, t + 4600),
            "0B repaired, 2.44% done, 11:06:00 to go"
        );
        assert_eq!(
            line(&scan, t + 7600),
            "0B repaired, 2.44% done, 1 days 20:24:00 to go"
        );
        // Too slow; more than there was; a resilver that has given nothing to anybody.
        let none = "done, no estimated completion time";
        assert!(line(&scan, t + 20_000).ends_with(none));
        scan.to_examine = 49 << 30;
        assert_eq!(
            line(&scan, t + 4600),
            "0B repaired, 102.04% done, no estimated completion time"
        );
        scan.to_examine = 200 << 30;
        scan.function = ScanFunction::Resilver;
        assert!(line(&scan, t + 4600).ends_with(none));
        scan.processed = 1 << 30;
        scan.skipped = 100 << 30;
        assert_eq!(
            line(&scan, t + 4600),
            "1G resilvered, 50.00% done, 00:16:40 to go"
        );
        // No rates and no time while it is paused.
        scan.function = ScanFunction::Scrub;
        scan.paused_at = Some(t + 100);
        assert_eq!(
            scan_lines(&scan, t + 4600, &z),
            [
                "scrub paused since Fri Nov 20 13:50:32 2026",
                "scrub started on Fri Nov 20 13:48:51 2026",
                "100G / 200G scanned, 50G / 100G issued",
                "1G repaired, 50.00% done"
            ]
        );
        scan.state = ScanState::Canceled;
        assert_eq!(
            scan_lines(&scan, t, &z),
            ["scrub canceled on Fri Nov 20 13:48:52 2026"]
        );
        assert_eq!(duration(90_061), "1 days 01:01:01");
    }
}
