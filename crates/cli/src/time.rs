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

/// Which end of the day or minute a date means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// Its beginning.
    Down,
    /// The beginning of what follows.
    Up,
}

/// A date in local time, `2026-11-20` or `2026-11-20 13:58`, as seconds since 1970. What the clock shows twice means the
/// earlier or the later moment, by `rounding`. `None`: it is no date.
pub fn parse(text: &str, rounding: Rounding, zone: &TimeZone) -> Option<u64> {
    let (day, time) = match text.trim().split_once(' ') {
        Some((day, time)) => (day, Some(time.trim_start())),
        None => (text.trim(), None),
    };
    let [year, month, day] = fields(day, '-')?;
    let ([hour, minute], unit) = match time {
        Some(time) => (fields(time, ':')?, 60),
        None => ([0, 0], 24 * 60 * 60),
    };
    let small = |n: u16| u8::try_from(n).ok();
    let found = DateTime::find(
        i32::from(year),
        small(month)?,
        small(day)?,
        small(hour)?,
        small(minute)?,
        0,
        0,
        zone.as_ref(),
    );
    let found = found.ok()?;
    let (moment, more) = match rounding {
        Rounding::Down => (found.earliest()?, 0),
        Rounding::Up => (found.latest()?, unit),
    };
    u64::try_from(moment.unix_time()).ok().map(|s| s + more)
}

/// Numbers of digits alone.
fn fields<const N: usize>(text: &str, between: char) -> Option<[u16; N]> {
    let numbers = text.split(between).map(|field| {
        let digits = field.bytes().all(|b| b.is_ascii_digit());
        field.parse::<u16>().ok().filter(|_| digits)
    });
    numbers.collect::<Option<Vec<u16>>>()?.try_into().ok()
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
    fn dates_are_read_in_local_time() {
        let z = TimeZone::from_posix_tz("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        let read = |text: &str| {
            let [down, up] = [Rounding::Down, Rounding::Up].map(|r| parse(text, r, &z));
            Some((down?, up? - down?))
        };
        let minute = 1_795_180_020;
        assert_eq!(read("2026-11-20 14:07"), Some((minute, 60)));
        assert_eq!(read(" 2026-11-20  14:07 "), Some((minute, 60)));
        let day = minute - (14 * 60 + 7) * 60;
        assert_eq!(read("2026-11-20"), Some((day, 86_400)));
        assert_eq!(read("1970-01-02"), Some((86_400 - 3600, 86_400)));
        // Twice, and not at all.
        assert_eq!(read("2026-10-25 02:30"), Some((1_792_888_200, 3660)));
        assert!(read("2026-03-29 02:30").is_some());
        for bad in [
            "",
            "now",
            "2026",
            "2026-11",
            "2026-13-01",
            "2026-02-30",
            "2026-11-20 25:00",
            "2026-11-20x",
            "2026-11-20 14",
            "2026-11-20 14:07:25",
            "+2026-11-20",
            "2026-11--20",
            "1969-01-01",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

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
