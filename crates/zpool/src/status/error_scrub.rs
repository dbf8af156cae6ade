//! What `zpool status` tells of error scrubs (command reference §8.2).

use api::{Pool, ScanState};
use cli::time;
use tz::TimeZone;

/// The error scrub, if it is newer than the scrub or resilver.
pub fn newest(pool: &Pool) -> Option<&api::ErrorScrub> {
    let e = pool.error_scrub.as_ref();
    let scan = pool.scan.as_ref().map_or(0, |s| s.start);
    e.filter(|e| e.state != ScanState::None && e.start >= scan)
}

/// Its lines.
pub fn lines(e: &api::ErrorScrub, zone: &TimeZone) -> Vec<String> {
    let at = |t| time::ctime(t, zone);
    match e.state {
        ScanState::None => Vec::new(),
        ScanState::Finished => {
            let took = e.end.saturating_sub(e.start);
            let (days, rest) = (took / 86_400, took % 86_400);
            let (h, m, s) = (rest / 3600, rest / 60 % 60, rest % 60);
            vec![format!(
                "scrubbed {} error blocks in {days} days {h:02}:{m:02}:{s:02} on {}",
                e.examined,
                at(e.end)
            )]
        }
        ScanState::Canceled => vec![format!("error scrub canceled on {}", at(e.end))],
        ScanState::Scanning => {
            let mut lines = match e.paused {
                false => vec![format!("error scrub in progress since {}", at(e.start))],
                // When it was paused is not on disk.
                true => vec![
                    "error scrub paused".to_string(),
                    format!("error scrub started on {}", at(e.start)),
                ],
            };
            let part = 100.0 * e.examined as f64 / (e.to_examine + e.examined).max(1) as f64;
            let n = e.examined;
            lines.push(format!("{part:.2}% done, issued I/O for {n} error blocks"));
            lines
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{run, sample, Fake};
    use api::{Pool, Scan, ScanFunction, ScanState};

    #[test]
    fn error_scrubs() {
        let utc = 1_795_182_532; // Fri Nov 20 13:48:52 2026
        let mut p = sample("tank");
        let show = |p: &Pool| run("status", &mut Fake::with(vec![p.clone()])).1;
        let mut e = api::ErrorScrub {
            state: ScanState::Scanning,
            start: utc,
            end: utc + 90_061,
            to_examine: 6,
            examined: 2,
            ..api::ErrorScrub::default()
        };
        p.error_scrub = Some(e);
        let out = show(&p);
        let want = " scrub: error scrub in progress since Fri Nov 20 13:48:52 2026\n\
                    \t25.00% done, issued I/O for 2 error blocks\nconfig:\n";
        assert!(out.contains(want), "{out}");
        e.state = ScanState::Finished;
        p.error_scrub = Some(e);
        let want =
            " scrub: scrubbed 2 error blocks in 1 days 01:01:01 on Sat Nov 21 14:49:53 2026\n";
        assert!(show(&p).contains(want), "{}", show(&p));
        let (_, json, _) = run("status -j --json-int", &mut Fake::with(vec![p.clone()]));
        let want = "\"err_scrub_state\":\"FINISHED\",\"err_scrub_start_time\":1795182532";
        assert!(json.contains(want), "{json}");
        // A scrub after it hides it.
        p.scan = Some(Scan {
            function: ScanFunction::Scrub,
            state: ScanState::Finished,
            start: utc + 100_000,
            ..Scan::default()
        });
        assert!(!show(&p).contains("error blocks"), "{}", show(&p));
    }
}
