//! Conversion of identities, attributes, times and counts from the POSIX layer to FUSE.

use fuse::{Request, Statfs, Time};
use std::sync::Arc;
use zpl::Cred;

pub(crate) fn time(t: zpl::Time) -> Time {
    Time {
        sec: t.sec,
        nsec: t.nsec,
    }
}

pub(crate) fn time_in(t: Time) -> zpl::Time {
    zpl::Time {
        sec: t.sec,
        nsec: t.nsec,
    }
}

/// Largest block a directory is said to have, bytes. Programs list a directory in pieces of that size, and the
/// first piece comes with the attributes of all that is in it, which most programs do not want.
const DIRECTORY_BLOCK: u32 = 16 << 10;
/// The same for others.
const FILE_BLOCK: u32 = 1 << 20;

fn largest_block(mode: u32) -> u32 {
    match zpl::attr::mode::is_dir(mode) {
        true => DIRECTORY_BLOCK,
        false => FILE_BLOCK,
    }
}

/// Attributes as FUSE has them.
pub(crate) fn attr_out(a: &zpl::Attr) -> fuse::Attr {
    fuse::Attr {
        ino: a.ino,
        size: a.size,
        blocks: a.blocks,
        atime: time(a.atime),
        mtime: time(a.mtime),
        ctime: time(a.ctime),
        btime: Some(time(a.btime)),
        mode: a.mode,
        nlink: a.nlink.min(u32::MAX as u64) as u32,
        uid: a.uid,
        gid: a.gid,
        rdev: a.rdev as u32,
        // The kernel shifts by this: a power of two, and no more than it can handle.
        blksize: a
            .blksize
            .next_power_of_two()
            .clamp(512, largest_block(a.mode)),
    }
}

/// Who asks.
pub(crate) fn cred(req: &Request) -> Cred {
    let pid = req.pid;
    let supp = req.supp_group;
    Cred {
        uid: req.uid,
        gid: req.gid,
        groups: Some(Arc::new(move |gid| supp == Some(gid) || in_group(pid, gid))),
        privileged: req.uid == 0,
        checked: true,
    }
}

/// Figures as FUSE has them.
pub(crate) fn statfs_out(s: &zpl::Statfs) -> Statfs {
    Statfs {
        blocks: s.blocks,
        bfree: s.bfree,
        bavail: s.bavail,
        files: s.files,
        ffree: s.ffree,
        bsize: s.bsize as u32,
        namelen: s.namelen,
        frsize: s.bsize as u32,
    }
}

/// Whether the process is in the supplementary group.
fn in_group(pid: u32, gid: u32) -> bool {
    if pid == 0 {
        return false;
    }
    let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/status")) else {
        return false;
    };
    text.lines()
        .find_map(|l| l.strip_prefix("Groups:"))
        .is_some_and(|l| l.split_whitespace().any(|g| g.parse() == Ok(gid)))
}
