//! Tells the administrator when a pool changes between healthy and not: in the log, and by running
//! `/etc/zfs/zfs_pool_alert POOL` as zfs-fuse 0.7 did.

use admin::PoolEntry;
use privilege::Program;
use std::path::Path;

const HOOK: &str = "/etc/zfs/zfs_pool_alert";

/// Watches the health of one pool.
pub struct HealthWatch {
    last: String,
}

impl HealthWatch {
    pub fn new(entry: &PoolEntry) -> HealthWatch {
        let watch = HealthWatch {
            last: admin::pools::get::health(entry),
        };
        if watch.last != "ONLINE" {
            tell(entry, "ONLINE", &watch.last);
        }
        watch
    }

    /// Compares the health with what it was.
    pub fn look(&mut self, entry: &PoolEntry) {
        let now = admin::pools::get::health(entry);
        if now != self.last && !entry.is_leaving() {
            tell(entry, &self.last, &now);
            self.last = now;
        }
    }
}

fn tell(entry: &PoolEntry, before: &str, now: &str) {
    let name = entry.pool.name();
    if now == "ONLINE" {
        crate::log::info(&format!("pool {name} is ONLINE again"));
    } else {
        crate::log::warn(&format!("pool {name} is {now}; see 'zpool status {name}'"));
    }
    if (before == "ONLINE") == (now == "ONLINE") || !Path::new(HOOK).exists() {
        return;
    }
    // It may take its time; somebody has to wait for it all the same.
    let run = move || {
        let arguments = [name.as_str()];
        if let Err(e) = privilege::acts().run(&Program::new(Path::new(HOOK), &arguments)) {
            crate::log::warn(&format!("{HOOK}: {}", base::io_text(&e)));
        }
    };
    let started = std::thread::Builder::new()
        .name("health hook".into())
        .spawn(run);
    if let Err(e) = started {
        crate::log::warn(&format!("{HOOK}: {}", base::io_text(&e)));
    }
}
