//! How many requests of each kind a session has served.

use crate::abi::op;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// More than there are operation codes.
const CODES: usize = 64;

/// The operation codes that have a name; INIT is part of the negotiation and is not counted.
const NAMES: [(u32, &str); 42] = [
    (op::LOOKUP, "LOOKUP"),
    (op::FORGET, "FORGET"),
    (op::GETATTR, "GETATTR"),
    (op::SETATTR, "SETATTR"),
    (op::READLINK, "READLINK"),
    (op::SYMLINK, "SYMLINK"),
    (op::MKNOD, "MKNOD"),
    (op::MKDIR, "MKDIR"),
    (op::UNLINK, "UNLINK"),
    (op::RMDIR, "RMDIR"),
    (op::RENAME, "RENAME"),
    (op::LINK, "LINK"),
    (op::OPEN, "OPEN"),
    (op::READ, "READ"),
    (op::WRITE, "WRITE"),
    (op::STATFS, "STATFS"),
    (op::RELEASE, "RELEASE"),
    (op::FSYNC, "FSYNC"),
    (op::SETXATTR, "SETXATTR"),
    (op::GETXATTR, "GETXATTR"),
    (op::LISTXATTR, "LISTXATTR"),
    (op::REMOVEXATTR, "REMOVEXATTR"),
    (op::FLUSH, "FLUSH"),
    (op::OPENDIR, "OPENDIR"),
    (op::READDIR, "READDIR"),
    (op::RELEASEDIR, "RELEASEDIR"),
    (op::FSYNCDIR, "FSYNCDIR"),
    (op::ACCESS, "ACCESS"),
    (op::CREATE, "CREATE"),
    (op::INTERRUPT, "INTERRUPT"),
    (op::IOCTL, "IOCTL"),
    (op::POLL, "POLL"),
    (op::BATCH_FORGET, "BATCH_FORGET"),
    (op::FALLOCATE, "FALLOCATE"),
    (op::READDIRPLUS, "READDIRPLUS"),
    (op::RENAME2, "RENAME2"),
    (op::LSEEK, "LSEEK"),
    (op::COPY_FILE_RANGE, "COPY_FILE_RANGE"),
    (op::SYNCFS, "SYNCFS"),
    (op::TMPFILE, "TMPFILE"),
    (op::STATX, "STATX"),
    (op::COPY_FILE_RANGE_64, "COPY_FILE_RANGE_64"),
];

/// Numbers of requests by operation code. A code beyond the table counts with code 0, which the kernel
/// does not use.
pub(crate) struct RequestCounts([AtomicU64; CODES]);

impl Default for RequestCounts {
    fn default() -> RequestCounts {
        RequestCounts([const { AtomicU64::new(0) }; CODES])
    }
}

impl RequestCounts {
    /// One more request.
    pub fn count(&self, opcode: u32) {
        let code = usize::try_from(opcode).unwrap_or(0);
        if let Some(n) = self.0.get(code).or(self.0.first()) {
            n.fetch_add(1, Relaxed);
        }
    }

    /// The kinds of which there were any.
    pub fn read(&self) -> Requests {
        let read = |(code, name): (u32, &'static str)| {
            let n = self.0.get(code as usize).map_or(0, |n| n.load(Relaxed));
            (n > 0).then_some((name, n))
        };
        Requests(NAMES.into_iter().filter_map(read).collect())
    }
}

/// How many requests of each kind were served, those of which there were any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests(Vec<(&'static str, u64)>);

impl Requests {
    /// How many of the kind, by its name in the kernel without `FUSE_`.
    pub fn of(&self, name: &str) -> u64 {
        let found = self.0.iter().find(|(n, _)| *n == name);
        found.map_or(0, |(_, n)| *n)
    }

    /// Kinds and numbers.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.0.iter().copied()
    }
}

impl fmt::Display for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.0.iter().map(|(n, c)| format!("{n} {c}")).collect();
        f.write_str(&all.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_kind() {
        let counts = RequestCounts::default();
        assert_eq!(counts.read().to_string(), "");
        for opcode in [op::OPEN, op::RELEASE, op::OPEN, u32::MAX, 63] {
            counts.count(opcode);
        }
        let read = counts.read();
        assert_eq!(read.to_string(), "OPEN 2, RELEASE 1");
        assert_eq!((read.of("OPEN"), read.of("READ")), (2, 0));
        assert_eq!(read.iter().map(|(_, n)| n).sum::<u64>(), 3);
    }

    #[test]
    fn every_kind_has_a_place_of_its_own() {
        let counts = RequestCounts::default();
        NAMES.iter().for_each(|(code, _)| counts.count(*code));
        assert_eq!(counts.read().iter().count(), NAMES.len());
        assert!(counts.read().iter().all(|(_, n)| n == 1));
    }
}
