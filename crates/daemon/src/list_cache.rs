//! `zfs-list.cache/POOL`: the file systems of a pool with what decides how they are mounted. OpenZFS's generator of systemd's units reads
//! these files at boot, before there is a pool.
//!
//! 1. A file is kept up to date as long as it is there. Nobody but the administrator makes one or takes one away: that says for which
//!    pools there are to be units.
//! 2. It is what `zfs list` prints, sorted, as OpenZFS's event daemon writes it. Of a pool that was exported or destroyed it is empty.
//! 3. It is replaced as a whole, and only if it differs.
//! 4. What is part of a view (`zfs-fuse:view`) is no mount, so no unit is to wait for one: it is to be ignored.
//! 5. A pool with an alternate root is passed over: its mount points are not those of the next boot.

use crate::bounded_run::LONGEST;
use admin::Admin;
use api::{Event, EventValue};
use base::{bail, Error, Kind, Result};
use privilege::{Program, Replacing};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Where the generator looks.
const FOLDER: &str = "/etc/zfs/zfs-list.cache";
/// The columns that the generator expects; [`VIEW`] follows.
const COLUMNS: &str = "name,mountpoint,canmount,atime,relatime,devices,exec,readonly,setuid,nbmand,encryptionroot,keylocation,\
                       org.openzfs.systemd:requires,org.openzfs.systemd:requires-mounts-for,org.openzfs.systemd:before,\
                       org.openzfs.systemd:after,org.openzfs.systemd:wanted-by,org.openzfs.systemd:required-by,\
                       org.openzfs.systemd:nofail,org.openzfs.systemd:ignore";
const VIEW: &str = "zfs-fuse:view";
/// How often it is looked whether the daemon is over.
const SLEEP: Duration = Duration::from_secs(5);
/// How long a pool may take to go when an event has said that it does.
const GOING: Duration = Duration::from_secs(5);

/// What becomes of the file of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    Changed,
    Gone,
}

/// Where the files are: for the daemon with another cache file (`ZFS_FUSE_CACHE`) beside that. None: there are none for ordinary users.
pub fn folder() -> Option<PathBuf> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let named = std::env::var_os(control::path::CACHE_VARIABLE).is_some_and(|v| !v.is_empty());
    match named {
        true => Some(control::path::cache_path().parent()?.join("zfs-list.cache")),
        false => Some(FOLDER.into()),
    }
}

/// Keeps the files up to date from now on, on a thread of its own.
///
/// # Errors
/// There is no thread.
pub fn watch(admin: &Arc<Admin>, folder: PathBuf) -> Result<()> {
    let admin = Arc::downgrade(admin);
    let thread = std::thread::Builder::new().name("zfs-list".into());
    thread.spawn(move || follow(&admin, &folder))?;
    Ok(())
}

fn follow(admin: &Weak<Admin>, folder: &Path) {
    let mut after = 0;
    while let Some(admin) = admin.upgrade() {
        let last = admin.events.last();
        let (new, _) = admin.events.after(after);
        let mut pools = BTreeMap::new();
        for event in &new {
            after = after.max(event.eid);
            pools.extend(news(event));
        }
        for (pool, news) in pools {
            let file = folder.join(&pool);
            if !file.is_file() {
                continue;
            }
            if let Err(e) = update(&admin, &file, &pool, news) {
                crate::log::warn(&format!("{}: {e}", file.display()));
            }
        }
        if new.is_empty() {
            after = after.max(last);
            admin.events.wait(after, SLEEP);
        }
    }
}

/// What an event means for the file of a pool.
fn news(e: &Event) -> Option<(String, News)> {
    let text = |name: &str| {
        e.pairs.iter().find_map(|(n, v)| match v {
            EventValue::Text(t) if n == name => Some(t.as_str()),
            _ => None,
        })
    };
    let news = match e.class.rsplit('.').next()? {
        "pool_export" | "pool_destroy" => News::Gone,
        "pool_create" | "pool_import" => News::Changed,
        // Snapshots are not mounted at boot.
        "history_event" if !text("history_dsname").is_some_and(|n| n.contains('@')) => {
            News::Changed
        }
        _ => return None,
    };
    Some((text("pool")?.to_string(), news))
}

fn update(admin: &Admin, file: &Path, pool: &str, news: News) -> Result<()> {
    let here = || {
        let mut pools = admin.pools().into_iter();
        pools.find(|e| e.pool.name() == pool && !e.is_leaving())
    };
    let begin = Instant::now();
    // The event comes before it has gone.
    while news == News::Gone && here().is_some() && begin.elapsed() < GOING {
        std::thread::sleep(GOING / 50);
    }
    let text = match (news, here()) {
        (_, Some(entry)) if entry.altroot.is_some() => return Ok(()),
        (_, Some(_)) => match list(pool) {
            // It has just gone.
            Err(_) if here().is_none() => return Ok(()),
            listed => listed?,
        },
        (News::Gone, None) => "\n".to_string(),
        // Another event says so, or the daemon ends.
        (News::Changed, None) => return Ok(()),
    };
    // The administrator may have put it elsewhere.
    let file = fs::canonicalize(file)?;
    if fs::read_to_string(&file).is_ok_and(|old| old == text) {
        return Ok(());
    }
    let name = file.file_name().ok_or(Kind::Invalid)?.to_string_lossy();
    let mode = fs::metadata(&file)?.permissions().mode();
    let how = Replacing {
        meanwhile: &file.with_file_name(format!(".{name}.new")),
        mode: Some(mode & 0o777),
        durable: true,
    };
    let replaced = privilege::acts().replace_file(&file, text.as_bytes(), how);
    replaced.map_err(|e| {
        // It may not be there.
        let _ = privilege::acts().remove_file(how.meanwhile);
        Error::from(e)
    })
}

/// What `zfs list` prints, sorted.
fn list(pool: &str) -> Result<String> {
    let beside = std::env::current_exe()?.with_file_name("zfs");
    let zfs = match beside.exists() {
        true => beside,
        false => "zfs".into(),
    };
    let columns = format!("{COLUMNS},{VIEW}");
    let args = ["list", "-H", "-t", "filesystem", "-o", &columns, "-r", pool];
    // A daemon that ends must not be started anew for it.
    let alone = (control::client::NO_START_VARIABLE.into(), "1".into());
    let own =
        std::env::vars_os().filter_map(|(n, v)| n.into_string().ok().zip(v.into_string().ok()));
    let ran = privilege::acts().run(&Program {
        output: true,
        limit: Some(LONGEST),
        environment: Some(own.chain([alone]).collect()),
        ..Program::new(&zfs, &args)
    })?;
    let ran = ran.output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match ran.status.success() {
        true => Ok(lines_of(&text(&ran.stdout))),
        false => bail!(Io, "zfs list: {}", text(&ran.stderr).trim()),
    }
}

/// The lines of a file, of those that `zfs list` prints: sorted, without the last column. What lies in a view is to be ignored.
fn lines_of(listed: &str) -> String {
    let rows: Vec<Vec<&str>> = listed.lines().map(|l| l.split('\t').collect()).collect();
    let is_view = |row: &[&str]| row.last() == Some(&"on");
    let place = |row: &[&str]| {
        row.get(1)
            .map(Path::new)
            .filter(|p| p.is_absolute())
            .map(Path::to_path_buf)
    };
    let is_part = |row: &[&str]| {
        let Some(own) = place(row) else { return false };
        let around = |other: &&Vec<&str>| {
            is_view(other) && place(other).is_some_and(|p| own != p && own.starts_with(p))
        };
        rows.iter().any(|other| around(&other))
    };
    let mut lines: Vec<String> = Vec::new();
    for row in &rows {
        let mut columns = row.clone();
        columns.pop();
        if let (true, Some(ignore)) = (is_part(row), columns.last_mut()) {
            *ignore = "on";
        }
        lines.push(columns.join("\t"));
    }
    lines.sort_unstable();
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(class: &str, pairs: &[(&str, &str)]) -> Event {
        let pairs = pairs.iter();
        Event {
            class: class.into(),
            pairs: pairs
                .map(|(n, v)| (n.to_string(), EventValue::Text(v.to_string())))
                .collect(),
            ..Event::default()
        }
    }

    #[test]
    fn what_events_mean_for_the_file() {
        let seen = |class: &str, more: &[(&str, &str)]| {
            let pairs = [&[("pool", "tank")], more].concat();
            news(&event(&format!("sysevent.fs.zfs.{class}"), &pairs)).map(|(pool, news)| {
                assert_eq!(pool, "tank");
                news
            })
        };
        assert_eq!(seen("pool_export", &[]), Some(News::Gone));
        assert_eq!(seen("pool_import", &[]), Some(News::Changed));
        assert_eq!(seen("scrub_start", &[]), None);
        let history = |name| seen("history_event", &[("history_dsname", name)]);
        assert_eq!(history("tank/a"), Some(News::Changed));
        assert_eq!(history("tank/a@s"), None);
        assert_eq!(seen("history_event", &[]), Some(News::Changed));
    }

    #[test]
    fn what_lies_in_a_view_is_to_be_ignored() {
        let listed =
            "tank\t/tank\ton\t-\t-\ntank/b\t/tank/b\ton\t-\ton\ntank/b/c\t/tank/b/c\ton\t-\ton\n\
                      tank/b/d\t/srv\ton\t-\ton\ntank/a\tnone\ton\t-\t-\n";
        assert_eq!(
            lines_of(listed),
            "tank\t/tank\ton\t-\ntank/a\tnone\ton\t-\ntank/b\t/tank/b\ton\t-\ntank/b/c\t/tank/b/c\ton\ton\n\
             tank/b/d\t/srv\ton\t-\n"
        );
    }
}
