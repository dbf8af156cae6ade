//! How a worker process makes, sends and receives snapshots: lines of shell in its environment. `$1` and `$2` are names.

use std::path::Path;

/// Makes a snapshot `$1` of everything.
pub const SNAPSHOT: &str = "BENCH_SNAPSHOT";
/// Writes the stream of the snapshot `$1`.
pub const SEND: &str = "BENCH_SEND";
/// Writes that of the snapshot `$2` from `$1` on.
pub const INCREMENT: &str = "BENCH_INCREMENT";
/// Reads a stream of a snapshot into a new copy `$1`.
pub const RECEIVE: &str = "BENCH_RECEIVE";

/// A list of variables.
pub type Variables = Vec<(&'static str, String)>;

/// With `zfs`, in a pool.
pub fn of_pool(pool: &str) -> Variables {
    vec![
        (SNAPSHOT, format!("zfs snapshot {pool}@$1")),
        (SEND, format!("zfs send {pool}@$1")),
        (INCREMENT, format!("zfs send -i @$1 {pool}@$2")),
        (RECEIVE, format!("zfs receive -u {pool}/$1")),
    ]
}

/// With `btrfs`, in a mounted file system.
pub fn of_btrfs(mnt: &Path) -> Variables {
    let at = mnt.display();
    vec![
        (
            SNAPSHOT,
            format!("btrfs -q subvolume snapshot -r {at} {at}/$1"),
        ),
        (SEND, format!("btrfs -q send {at}/$1")),
        (INCREMENT, format!("btrfs -q send -p {at}/$1 {at}/$2")),
        (
            RECEIVE,
            format!("mkdir -p {at}/$1 && btrfs -q receive {at}/$1"),
        ),
    ]
}
