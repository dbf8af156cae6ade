//! Clock, randomness, identity.

use std::sync::OnceLock;
use std::time::Instant;

/// The system's clocks.
pub struct LinuxClock;

impl env::Clock for LinuxClock {
    /// The clock the kernel stamps files with, which stands still between its ticks. With a finer one
    /// a file the daemon makes would be younger than one the kernel writes (and stamps) after that.
    fn now(&self) -> (i64, u32) {
        crate::sys::coarse_time()
    }

    fn monotonic_ns(&self) -> u64 {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }

    fn pause(&self, ns: u64) {
        std::thread::sleep(std::time::Duration::from_nanos(ns));
    }
}

/// The kernel's random numbers.
pub struct LinuxRng;

impl env::Rng for LinuxRng {
    fn fill(&self, buf: &mut [u8]) {
        crate::sys::random(buf);
    }
}

/// Host id and name of this machine.
pub struct LinuxHost;

impl env::Host for LinuxHost {
    /// `ZFS_FUSE_HOSTID` in hexadecimal, else the first four bytes of `/etc/hostid` in native order, else 0. The C library's
    /// `gethostid` is not asked: without the file it invents an id from the network address,
    /// which ZFS never wrote into a pool.
    fn hostid(&self) -> u64 {
        let set = std::env::var("ZFS_FUSE_HOSTID").ok();
        let set = set.and_then(|t| u32::from_str_radix(t.trim_start_matches("0x"), 16).ok());
        match set {
            Some(id) => u64::from(id),
            None => std::fs::read("/etc/hostid").map_or(0, |b| parse_hostid(&b)),
        }
    }

    fn hostname(&self) -> String {
        std::fs::read_to_string("/proc/sys/kernel/hostname")
            .map(|s| s.trim().to_string())
            .unwrap_or_default()
    }
}

fn parse_hostid(bytes: &[u8]) -> u64 {
    bytes
        .first_chunk::<4>()
        .map_or(0, |b| u64::from(u32::from_ne_bytes(*b)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use env::{Clock, Host, Rng};

    #[test]
    fn clocks_random_identity() {
        let a = LinuxClock.monotonic_ns();
        let (secs, nanos) = LinuxClock.now();
        assert!(LinuxClock.monotonic_ns() >= a);
        assert!(secs > 1_600_000_000 && nanos < 1_000_000_000);
        assert_ne!(LinuxRng.u64(), LinuxRng.u64());
        let mut big = vec![0; 1000];
        LinuxRng.fill(&mut big);
        assert!(big.chunks(100).all(|c| c.iter().any(|b| *b != 0)));
        assert!(!LinuxHost.hostname().is_empty());
        assert!(LinuxHost.hostid() <= u64::from(u32::MAX));
        assert_eq!(parse_hostid(&0x1234_5678u32.to_ne_bytes()), 0x1234_5678);
        assert_eq!(parse_hostid(&[1, 2]), 0);
    }
}
