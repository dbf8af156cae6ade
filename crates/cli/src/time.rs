//! Times as the commands print them, in local time.

use std::fmt;
use tz::{DateTime, TimeZone};

/// The local time zone: `TZ` if set, else the system's; UTC if there is none to be had.
pub fn zone() -> TimeZone {
    let named = std::env::var("TZ").ok().filter(|z| !z.is_empty());
    match named {
        Some(name) => TimeZone::from_posix_tz(&name).ok(),
        None => TimeZone::local().ok(),
    }
    .unwrap_or_else(TimeZone::utc)
}

const DAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

struct Moment(DateTime);

impl Moment {
    /// Times of files are words that mean negative numbers before 1970.
    fn at(seconds: u64, zone: &TimeZone) -> Option<Moment> {
        DateTime::from_timespec(seconds.cast_signed(), 0, zone.as_ref())
            .ok()
            .map(Moment)
    }

    fn day(&self) -> &'static str {
        DAYS.get(usize::from(self.0.week_day())).unwrap_or(&"???")
    }

    fn month(&self) -> &'static str {
        (usize::from(self.0.month()).checked_sub(1))
            .and_then(|m| MONTHS.get(m))
            .unwrap_or(&"???")
    }
}

impl fmt::Display for Moment {
    /// As ctime(3), without the newline: `Fri Nov 20 13:58:07 2026`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} {:>2} {:02}:{:02}:{:02} {}",
            self.day(),
            self.month(),
            self.0.month_day(),
            self.0.hour(),
            self.0.minute(),
            self.0.second(),
            self.0.year()
        )
    }
}

/// Time of day: `13:58:07`
pub fn clock(seconds: u64, zone: &TimeZone) -> String {
    Moment::at(seconds, zone).map_or_else(
        || seconds.to_string(),
        |m| format!("{:02}:{:02}:{:02}", m.0.hour(), m.0.minute(), m.0.second()),
    )
}

/// `Fri Nov 20 13:58:07 2026`
pub fn ctime(seconds: u64, zone: &TimeZone) -> String {
    Moment::at(seconds, zone).map_or_else(|| seconds.to_string(), |m| m.to_string())
}

/// Property `creation`: `Fri Nov 20 12:00 2026`, day and hour padded with a blank.
pub fn creation(seconds: u64, zone: &TimeZone) -> String {
    Moment::at(seconds, zone).map_or_else(
        || seconds.to_string(),
        |m| {
            format!(
                "{} {} {:>2} {:>2}:{:02} {}",
                m.day(),
                m.month(),
                m.0.month_day(),
                m.0.hour(),
                m.0.minute(),
                m.0.year()
            )
        },
    )
}

/// History: `2026-11-20.13:07:25`
pub fn history(seconds: u64, zone: &TimeZone) -> String {
    Moment::at(seconds, zone).map_or_else(
        || seconds.to_string(),
        |m| {
            format!(
                "{:04}-{:02}-{:02}.{:02}:{:02}:{:02}",
                m.0.year(),
                m.0.month(),
                m.0.month_day(),
                m.0.hour(),
                m.0.minute(),
                m.0.second()
            )
        },
    )
}

/// As date(1): `Fri Nov 20 13:58:07 UTC 2026`
pub fn date(seconds: u64, zone: &TimeZone) -> String {
    Moment::at(seconds, zone).map_or_else(
        || seconds.to_string(),
        |m| {
            let name = m.0.local_time_type().time_zone_designation();
            format!(
                "{} {} {:>2} {:02}:{:02}:{:02} {} {}",
                m.day(),
                m.month(),
                m.0.month_day(),
                m.0.hour(),
                m.0.minute(),
                m.0.second(),
                if name.is_empty() { "UTC" } else { name },
                m.0.year()
            )
        },
    )
}

/// Seconds since 1970, now.
pub fn now() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        let z = TimeZone::from_posix_tz("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        let t = 1_795_180_045;
        assert_eq!(ctime(t, &z), "Fri Nov 20 14:07:25 2026");
        assert_eq!(creation(t, &z), "Fri Nov 20 14:07 2026");
        assert_eq!(history(t, &z), "2026-11-20.14:07:25");
        assert_eq!(date(t, &z), "Fri Nov 20 14:07:25 CET 2026");
        let z = TimeZone::utc();
        assert_eq!(ctime(0, &z), "Thu Jan  1 00:00:00 1970");
        assert_eq!(creation(3600 * 24 * 8 + 60, &z), "Fri Jan  9  0:01 1970");
        assert_eq!(date(0, &z), "Thu Jan  1 00:00:00 UTC 1970");
        assert_eq!(ctime(u64::MAX, &z), "Wed Dec 31 23:59:59 1969");
        let far = i64::MAX as u64;
        assert_eq!(ctime(far, &z), far.to_string());
    }
}
