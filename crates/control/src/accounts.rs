//! The user behind a user id: subordinate ids (`/etc/subuid`) count as those of the user they were given to.

use std::fs;
use std::io::Read;

/// Longest table that is read, bytes.
const MOST: u64 = 4 << 20;

fn table(path: &str) -> String {
    let mut text = String::new();
    if let Ok(file) = fs::File::open(path) {
        // What cannot be read gives nobody more than an id of his own.
        let _ = file.take(MOST).read_to_string(&mut text);
    }
    text
}

/// The user to whom the administrator has given `uid` as a subordinate id, else `uid` itself. Ids of root's are nobody's: they
/// have none of root's rights.
pub fn account(uid: u32) -> u32 {
    if uid == 0 {
        return uid;
    }
    of(uid, &table("/etc/subuid"), || table("/etc/passwd"))
}

/// `subuid`: lines `user:first:count`; `passwd` tells the ids of users by name.
fn of(uid: u32, subuid: &str, passwd: impl Fn() -> String) -> u32 {
    let owner = subuid.lines().find_map(|line| {
        let mut fields = line.trim().split(':');
        let name = fields.next()?;
        let first: u64 = fields.next()?.parse().ok()?;
        let count: u64 = fields.next()?.parse().ok()?;
        let end = first.checked_add(count)?;
        (first..end).contains(&u64::from(uid)).then_some(name)
    });
    let Some(owner) = owner else { return uid };
    let id = owner.parse().ok().or_else(|| {
        let passwd = passwd();
        let mut lines = passwd.lines().map(|line| line.split(':'));
        lines.find_map(|mut f| (f.next() == Some(owner)).then(|| f.nth(1)?.parse().ok())?)
    });
    match id {
        Some(0) | None => uid,
        Some(id) => id,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subordinate_ids_are_those_of_their_user() {
        let subuid = "ann:100000:65536\n1001:200000:10\nroot:300000:10\nbad:x:y\nnone:400000:5\n";
        let passwd = || "root:x:0:0::/:\nann:x:1000:1000::/:/bin/sh\n".to_string();
        for (uid, want) in [
            (1000, 1000),
            (100_000, 1000),
            (165_535, 1000),
            (165_536, 165_536),
            (200_009, 1001),
            (300_000, 300_000),
            (400_000, 400_000),
        ] {
            assert_eq!(of(uid, subuid, passwd), want, "{uid}");
        }
    }
}
