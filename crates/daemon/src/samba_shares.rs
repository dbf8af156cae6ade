//! Shares of Samba: usershares, made and removed by net(8). Samba's server need not run yet, and is not told: it looks when a client
//! asks.
//!
//! 1. A share is ours if its comment begins with [`MARK`] and the dataset that it names belongs to a pool of this daemon. Others are
//!    not touched.
//! 2. A name is shared once: of two datasets whose names differ only in characters that become `_`, the first one.
//! 3. A mount point that would be more than one line of a share's file is not shared.
//! 4. The first time the shares that an earlier daemon left behind are asked for, and removed if they are not wanted.

use admin::datasets::share;
use admin::shares::smb::share_name;
use admin::shares::SmbServer;
use admin::Admin;
use base::sync::{CondvarExt, MutexExt};
use base::{bail, Error, Kind, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, Weak};

/// Where net is.
const PROGRAMS: [&str; 3] = [
    "/usr/bin/net",
    "/usr/local/bin/net",
    "/usr/local/samba/bin/net",
];
/// How the comments of our shares begin; the name of the dataset follows.
const MARK: &str = "ZFS ";

/// Everybody has all rights, as far as the permissions of files go. By its number: for the name net would ask the server.
const EVERYBODY: &str = "S-1-1-0:F";

/// Shares by name: path, and dataset.
type Shares = BTreeMap<String, (PathBuf, String)>;

/// Samba, if it is installed.
pub struct Samba {
    admin: Weak<Admin>,
    program: Option<PathBuf>,
    /// What it was told last; none: nothing yet.
    told: Mutex<Option<Shares>>,
    /// Somebody is to look whether it is still so.
    bell: (Mutex<bool>, Condvar),
}

/// The Samba of this machine.
pub fn find(admin: &Arc<Admin>) -> Arc<Samba> {
    let program = PROGRAMS.iter().map(Path::new).find(|p| p.exists());
    Arc::new(Samba {
        admin: Arc::downgrade(admin),
        program: program.map(Path::to_path_buf),
        told: Mutex::default(),
        bell: Default::default(),
    })
}

/// Whether a path can be a line of the file in which Samba keeps a share. Another line could name another path.
fn is_one_line(path: &Path) -> bool {
    path.to_str()
        .is_some_and(|p| !p.chars().any(char::is_control))
}

/// The shares in what `net usershare info` prints that have our mark.
fn listed(text: &str) -> Shares {
    let mut all = Shares::new();
    let (mut name, mut path) = (None, None);
    for line in text.lines() {
        if let Some(title) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            (name, path) = (Some(title.to_string()), None);
        } else if let Some(at) = line.strip_prefix("path=") {
            path = Some(PathBuf::from(at));
        } else if let Some(dataset) = line
            .strip_prefix("comment=")
            .and_then(|c| c.strip_prefix(MARK))
        {
            if let (Some(name), Some(path)) = (name.take(), path.take()) {
                all.insert(name, (path, dataset.to_string()));
            }
        }
    }
    all
}

impl Samba {
    /// Follows mounts that come and go, on a thread of its own.
    ///
    /// # Errors
    /// There is no thread.
    pub fn watch(self: &Arc<Self>) -> Result<()> {
        if self.program.is_none() {
            return Ok(());
        }
        let samba = self.clone();
        let thread = std::thread::Builder::new().name("samba".into());
        thread.spawn(move || loop {
            samba.wait();
            if let Err(e) = samba.changed() {
                crate::log::warn(&e.to_string());
            }
        })?;
        Ok(())
    }

    fn wait(&self) {
        let (lock, bell) = &self.bell;
        let mut rung = lock.acquire();
        while !std::mem::take(&mut *rung) {
            rung = bell.wait_acquire(rung);
        }
    }

    fn program(&self) -> Result<&Path> {
        match &self.program {
            Some(program) => Ok(program),
            None => bail!(
                Unsupported,
                "Samba is not installed: net(8) is in none of {}; install Samba (Debian: samba, samba-common-bin)",
                PROGRAMS.join(", ")
            ),
        }
    }

    /// Runs `net usershare`; what it prints.
    fn net(&self, args: &[&str]) -> Result<String> {
        let program = self.program()?;
        let shown = || format!("{} usershare {}", program.display(), args.join(" "));
        let run = Command::new(program)
            .arg("usershare")
            .args(args)
            .stdin(Stdio::null())
            .output();
        let done =
            run.map_err(|e| Error::new(Kind::Io, format!("{}: {}", shown(), base::io_text(&e))))?;
        if done.status.success() {
            return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
        }
        let why = [&done.stderr[..], &done.stdout[..]].concat();
        let why = String::from_utf8_lossy(&why);
        let why: Vec<&str> = why
            .lines()
            .map(str::trim)
            .filter(|l| !l.is_empty())
            .collect();
        Err(Error::new(
            Kind::Io,
            format!("{}: {}", shown(), why.join(" ")),
        ))
    }

    /// What is to be shared now.
    fn wanted(&self, admin: &Admin) -> Shares {
        let mut all = Shares::new();
        for m in share::over_smb(admin) {
            let dataset = m.ds.full_name();
            let name = share_name(&dataset);
            if !is_one_line(&m.path) {
                crate::log::warn(&format!(
                    "{dataset} is not shared over SMB: its mount point has characters that are none of UTF-8, or control characters"
                ));
                continue;
            }
            if let Some((_, other)) = all.get(&name) {
                crate::log::warn(&format!(
                    "{dataset} is not shared over SMB: {other} has the name '{name}'"
                ));
                continue;
            }
            all.insert(name, (m.path.clone(), dataset));
        }
        all
    }
}

impl SmbServer for Samba {
    fn is_installed(&self) -> Result<()> {
        self.program().map(drop)
    }

    fn check(&self) -> Result<()> {
        // It says whether usershares are allowed, too.
        self.net(&["list"]).map(drop)
    }

    fn changed(&self) -> Result<()> {
        let Some(admin) = self.admin.upgrade() else {
            return Ok(());
        };
        let mut told = self.told.acquire();
        let wanted = self.wanted(&admin);
        if wanted.is_empty() && told.as_ref().is_none_or(Shares::is_empty) {
            return Ok(());
        }
        if told.is_none() {
            let mut left = listed(&self.net(&["info"])?);
            let pools = admin.pools();
            left.retain(|_, (_, dataset)| {
                let pool = dataset.split('/').next();
                pools.iter().any(|p| Some(&*p.pool.name()) == pool)
            });
            *told = Some(left);
        }
        let before = told.get_or_insert_default();
        let gone: Vec<String> = before
            .iter()
            .filter(|(name, share)| wanted.get(*name) != Some(*share))
            .map(|(name, _)| name.clone())
            .collect();
        let mut failed = None;
        for name in gone {
            // Somebody may have removed it.
            if let Err(e) = self.net(&["delete", &name]) {
                crate::log::debug(&e.to_string());
            }
            before.remove(&name);
        }
        for (name, (path, dataset)) in wanted {
            if before.contains_key(&name) {
                continue;
            }
            let comment = format!("{MARK}{dataset}");
            let at = path.to_string_lossy();
            let add = ["add", &name, &at, &comment, EVERYBODY, "guest_ok=n"];
            match self.net(&add) {
                Ok(_) => drop(before.insert(name, (path, dataset))),
                Err(e) => failed = Some(e),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn will_change(&self) {
        let (lock, bell) = &self.bell;
        *lock.acquire() = true;
        bell.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_shares_in_a_list() {
        let text = "[other]\npath=/srv\ncomment=files\nusershare_acl=Everyone:R,\nguest_ok=n\n\n\
                    [tank_a]\npath=/tank/a\ncomment=ZFS tank/a\nusershare_acl=Everyone:F,\nguest_ok=n\n";
        let expected = (
            "tank_a".to_string(),
            ("/tank/a".into(), "tank/a".to_string()),
        );
        assert_eq!(listed(text), Shares::from([expected]));
        assert!(listed("").is_empty());
        assert!(is_one_line(Path::new("/tank/a b,c")));
        assert!(!is_one_line(Path::new("/tank/a\npath=/etc")));
    }
}
