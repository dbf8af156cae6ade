//! Shares of Samba: usershares, made and removed by net(8). Samba's server need not run yet, and is not told: it looks when a client
//! asks.
//!
//! 1. A share is ours if its comment begins with [`MARK`], and the dataset that it names belongs to a pool of this daemon or its path
//!    leads into no mounted file system of ours or of another daemon: an earlier one has left it. Others are not touched, nor
//!    is a share made whose name another one has.
//! 2. A name is shared once. Of datasets whose names differ only in characters that become `_`, one whose name root alone has chosen
//!    has it; of several such, or where there is none, the one that has it already, then the first by name.
//! 3. Samba follows the path of a share as root, at any moment: see [`crate::shared_paths`]. A mount point that would be more than
//!    one line of a share's file is not shared.
//! 4. When the daemon begins, and whenever a pool comes, the shares that an earlier daemon left behind are removed if they are not
//!    wanted.

use crate::bounded_run::{self, LONGEST};
use crate::shared_paths;
use crate::watching::{self, Bell, Followed};
use admin::datasets::share;
use admin::shares::smb::share_name;
use admin::shares::SmbServer;
use admin::{setters, Admin};
use base::sync::MutexExt;
use base::{bail, Error, Kind, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};

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

/// What Samba was told.
#[derive(Default)]
struct Told {
    /// Our shares.
    shares: Shares,
    /// What earlier daemons left has been asked for, and is among them.
    asked: bool,
    /// It could not be asked for: shares are not set up, perhaps.
    in_vain: bool,
    /// Pools that were here at the last look.
    pools: BTreeSet<String>,
}

/// Samba, if it is installed.
pub struct Samba {
    admin: Weak<Admin>,
    program: Option<PathBuf>,
    told: Mutex<Told>,
    /// Why file systems that are shared were not told of, by name.
    refused: Mutex<BTreeMap<String, String>>,
    bell: Bell,
}

/// The Samba of this machine.
pub fn find(admin: &Arc<Admin>) -> Arc<Samba> {
    let program = PROGRAMS.iter().map(Path::new).find(|p| p.exists());
    Arc::new(Samba {
        admin: Arc::downgrade(admin),
        program: program.map(Path::to_path_buf),
        told: Mutex::default(),
        refused: Mutex::default(),
        bell: Bell::default(),
    })
}

/// Follows mounts that come and go, on a thread of its own.
///
/// # Errors
/// There is no thread.
pub fn watch(samba: &Arc<Samba>) -> Result<()> {
    if samba.program.is_none() {
        return Ok(());
    }
    samba.bell.ring();
    watching::start("samba", samba)
}

/// The shares in what `net usershare info` prints, each with its path and its comment.
fn listed(text: &str) -> BTreeMap<String, (PathBuf, String)> {
    let mut all = BTreeMap::new();
    let (mut name, mut path) = (None, None);
    for line in text.lines() {
        if let Some(title) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            (name, path) = (Some(title.to_string()), None);
        } else if let Some(at) = line.strip_prefix("path=") {
            path = Some(PathBuf::from(at));
        } else if let Some(comment) = line.strip_prefix("comment=") {
            if let (Some(name), Some(path)) = (name.take(), path.take()) {
                all.insert(name, (path, comment.to_string()));
            }
        }
    }
    all
}

/// Those that have our mark, with their datasets.
fn marked(text: &str) -> Shares {
    let ours = |(name, (path, comment)): (String, (PathBuf, String))| {
        let dataset = comment.strip_prefix(MARK)?.to_string();
        Some((name, (path, dataset)))
    };
    listed(text).into_iter().filter_map(ours).collect()
}

/// A dataset that is to be shared.
struct Wanted {
    dataset: String,
    path: PathBuf,
    /// Root alone has chosen its name.
    by_root: bool,
}

/// Who has which name: of those that want it, and what is told of the others. `told`: who has it now.
fn settle(all: Vec<Wanted>, told: &Shares) -> (Shares, BTreeMap<String, String>) {
    let mut by_name: BTreeMap<String, Vec<Wanted>> = BTreeMap::new();
    for w in all {
        by_name.entry(share_name(&w.dataset)).or_default().push(w);
    }
    let (mut shares, mut refused) = (Shares::new(), BTreeMap::new());
    for (name, mut of_name) in by_name {
        let has_it = |w: &Wanted| told.get(&name).is_some_and(|(_, d)| *d == w.dataset);
        of_name.sort_by_cached_key(|w| (!w.by_root, !has_it(w), w.dataset.clone()));
        let mut of_name = of_name.into_iter();
        let Some(first) = of_name.next() else {
            continue;
        };
        for other in of_name {
            let text = format!("'{}' has the name '{name}'", first.dataset);
            refused.insert(other.dataset, text);
        }
        shares.insert(name, (first.path, first.dataset));
    }
    (shares, refused)
}

/// Shares that Samba has, are ours, and are not wanted. `here`: pools in service; `zfs`: where file systems are mounted.
fn left_over(
    told: &Shares,
    wanted: &Shares,
    here: &BTreeSet<String>,
    zfs: &[PathBuf],
) -> Vec<String> {
    let is_ours = |(path, dataset): &(PathBuf, String)| {
        let pool = dataset.split('/').next().unwrap_or_default();
        here.contains(pool) || !zfs.iter().any(|place| path.starts_with(place))
    };
    let is_wanted =
        |(name, share): &(&String, &(PathBuf, String))| wanted.get(*name) == Some(*share);
    let gone = told.iter().filter(|s| !is_wanted(s) && is_ours(s.1));
    gone.map(|(name, _)| name.clone()).collect()
}

impl Samba {
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
        let failed = |why: &str| {
            let shown = format!("{} usershare {}", program.display(), args.join(" "));
            Error::new(Kind::Io, format!("{shown}: {why}"))
        };
        let ran = bounded_run::run(program, &[&["usershare"], args].concat(), LONGEST)
            .map_err(|e| failed(&e.to_string()))?;
        if ran.success {
            return Ok(ran.out);
        }
        let why = [ran.err, ran.out].concat();
        let why: Vec<&str> = why
            .lines()
            .map(str::trim)
            .filter(|l| !l.is_empty())
            .collect();
        Err(failed(&why.join(" ")))
    }

    /// What is to be shared now, and why what is not.
    fn wanted(&self, admin: &Admin, told: &Shares) -> (Shares, BTreeMap<String, String>) {
        let (mut all, mut refused) = (Vec::new(), BTreeMap::new());
        for m in share::over_smb(admin) {
            let dataset = m.ds.full_name();
            let before = || told.values().find(|(_, d)| *d == dataset);
            let path = match shared_paths::steady(admin, &m) {
                Ok(path) => path,
                // What cannot be looked at now stays as it is.
                Err(e) if e.kind == Kind::Again && before().is_some() => m.path.clone(),
                Err(e) => {
                    refused.insert(dataset, e.to_string());
                    continue;
                }
            };
            all.push(Wanted {
                by_root: !setters::is_made_by_others(&m.ds).unwrap_or(true),
                dataset,
                path,
            });
        }
        let (shares, others) = settle(all, told);
        refused.extend(others);
        (shares, refused)
    }

    /// Makes a share, unless somebody else has one of this name.
    fn add(&self, name: &str, path: &Path, dataset: &str) -> Result<()> {
        let there = listed(&self.net(&["info", "--long", name])?);
        if let Some((at, _)) = there.get(name) {
            bail!(
                Exists,
                "a share '{name}' of '{}' is there already, and was not made for it; remove it with 'net usershare delete {name}'",
                at.display()
            );
        }
        let comment = format!("{MARK}{dataset}");
        let at = path.to_string_lossy();
        self.net(&["add", name, &at, &comment, EVERYBODY, "guest_ok=n"])
            .map(drop)
    }

    fn say(&self, refused: BTreeMap<String, String>) {
        let mut last = self.refused.acquire();
        for (name, why) in &refused {
            if last.get(name) != Some(why) {
                crate::log::warn(&format!("{name} is not shared over SMB: {why}"));
            }
        }
        *last = refused;
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
        if self.program.is_none() {
            return Ok(());
        }
        let told = &mut *self.told.acquire();
        let nothing = share::over_smb(&admin).is_empty();
        if nothing && told.in_vain {
            return Ok(());
        }
        if !told.asked {
            match self.net(&["info"]) {
                Ok(text) => {
                    told.shares = marked(&text);
                    (told.asked, told.in_vain) = (true, false);
                }
                Err(e) if nothing => {
                    crate::log::debug(&e.to_string());
                    told.in_vain = true;
                    return Ok(());
                }
                Err(e) => return Err(e),
            }
        }
        let here: BTreeSet<String> = admin.pools().iter().map(|p| p.pool.name()).collect();
        let (wanted, mut refused) = self.wanted(&admin, &told.shares);
        if wanted == told.shares && here == told.pools {
            self.say(refused);
            return Ok(());
        }
        let places: Vec<PathBuf> = match told.shares.is_empty() {
            true => Vec::new(),
            false => fuse::mounted("zfs")
                .unwrap_or_default()
                .into_iter()
                .map(|m| m.path)
                .collect(),
        };
        for name in left_over(&told.shares, &wanted, &here, &places) {
            // Somebody may have removed it.
            if let Err(e) = self.net(&["delete", &name]) {
                crate::log::debug(&e.to_string());
            }
            told.shares.remove(&name);
        }
        told.pools = here;
        let mut failed = None;
        for (name, (path, dataset)) in wanted {
            let has_it = told.shares.get(&name);
            if has_it == Some(&(path.clone(), dataset.clone())) {
                continue;
            }
            if let Some((_, other)) = has_it {
                refused.insert(
                    dataset,
                    format!("'{other}' of another daemon has the name '{name}'"),
                );
                continue;
            }
            match self.add(&name, &path, &dataset) {
                Ok(()) => drop(told.shares.insert(name, (path, dataset))),
                Err(e) if e.kind == Kind::Exists => drop(refused.insert(dataset, e.to_string())),
                Err(e) => failed = Some(e),
            }
        }
        self.say(refused);
        failed.map_or(Ok(()), Err)
    }

    fn will_change(&self) {
        self.bell.ring();
    }

    fn refusal(&self, dataset: &str) -> Option<String> {
        self.refused.acquire().get(dataset).cloned()
    }
}

impl Followed for Samba {
    fn bell(&self) -> &Bell {
        &self.bell
    }

    fn follow(&self) -> Result<()> {
        self.changed()
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
        assert_eq!(marked(text), Shares::from([expected]));
        assert!(marked("").is_empty());
        assert_eq!(listed(text).len(), 2);
    }

    fn share(dataset: &str) -> (String, (PathBuf, String)) {
        let path = PathBuf::from(format!("/{dataset}"));
        (share_name(dataset), (path, dataset.to_string()))
    }

    /// A user who may make file systems takes nobody's name.
    #[test]
    fn a_name_stays_with_whoever_has_it_and_is_roots_first() {
        let all = |list: &[(&str, bool)]| -> Vec<Wanted> {
            let wanted = |(dataset, by_root): &(&str, bool)| Wanted {
                dataset: (*dataset).into(),
                path: format!("/{dataset}").into(),
                by_root: *by_root,
            };
            list.iter().map(wanted).collect()
        };
        let who = |list: &[(&str, bool)], told: &[&str]| {
            let told: Shares = told.iter().map(|d| share(d)).collect();
            let (shares, refused) = settle(all(list), &told);
            let owners: Vec<String> = shares.into_values().map(|(_, d)| d).collect();
            (
                owners.join(" "),
                refused.into_keys().collect::<Vec<_>>().join(" "),
            )
        };
        let (bobs, smiths) = ("tank/home/bob/smith", "tank/home/bob_smith");
        let owned = |a: &str, b: &str| (a.to_string(), b.to_string());
        assert_eq!(
            who(&[(bobs, false), (smiths, true)], &[]),
            owned(smiths, bobs)
        );
        assert_eq!(
            who(&[(bobs, false), (smiths, true)], &[bobs]),
            owned(smiths, bobs)
        );
        assert_eq!(
            who(&[(bobs, false), (smiths, false)], &[smiths]),
            owned(smiths, bobs)
        );
        assert_eq!(
            who(&[(bobs, true), (smiths, true)], &[smiths]),
            owned(smiths, bobs)
        );
        assert_eq!(
            who(&[(bobs, true), (smiths, true)], &[]),
            owned(bobs, smiths)
        );
    }

    #[test]
    fn what_an_earlier_daemon_left_goes_and_what_others_have_stays() {
        let told: Shares = ["tank/a", "tank/b", "gone/c", "other/d"].map(share).into();
        let wanted: Shares = [share("tank/a")].into();
        let here: BTreeSet<String> = ["tank".to_string()].into();
        let zfs = ["/tank".into(), "/other".into()];
        assert_eq!(left_over(&told, &wanted, &here, &zfs), ["gone_c", "tank_b"]);
    }
}
