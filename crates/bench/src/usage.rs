//! Processor time and memory of a daemon, from /proc.

use std::fs;

/// A daemon's account over some time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// User and system time in seconds.
    pub cpu_seconds: f64,
    /// Largest resident size in bytes.
    pub peak_bytes: u64,
}

/// Watches one process from now on.
pub struct Meter {
    pid: u32,
    ticks: u64,
}

/// Of the unit in /proc/PID/stat: fixed for programs on Linux.
const TICKS_PER_SECOND: f64 = 100.0;

impl Meter {
    /// Forgets the peak so far where this process may.
    pub fn start(pid: u32) -> Meter {
        // Without the right to do so the peak is that of the process's whole life.
        let _ = fs::write(format!("/proc/{pid}/clear_refs"), "5");
        Meter {
            pid,
            ticks: ticks(pid).unwrap_or(0),
        }
    }

    /// None if the process is gone.
    pub fn read(&self) -> Option<Usage> {
        let ticks = ticks(self.pid)?.saturating_sub(self.ticks);
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        Some(Usage {
            cpu_seconds: ticks as f64 / TICKS_PER_SECOND,
            peak_bytes: peak(&status)?,
        })
    }
}

fn ticks(pid: u32) -> Option<u64> {
    ticks_of(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The name, in parentheses, may contain anything.
fn ticks_of(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

fn peak(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        let stat = "12 (a) b) S 1 12 12 0 -1 4194560 100 0 0 0 250 17 0 0 20 0 1 0 99 1 1";
        assert_eq!(ticks_of(stat), Some(267));
        assert_eq!(ticks_of("nonsense"), None);
        assert_eq!(peak("VmPeak:\t9 kB\nVmHWM:\t   12 kB\n"), Some(12 << 10));
        let own = Meter::start(std::process::id()).read().unwrap();
        assert!(own.peak_bytes > 0);
    }
}
