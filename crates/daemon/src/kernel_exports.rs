//! Shares for the kernel's NFS server: `/etc/exports.d/zfs.exports`, and exportfs(8). Root's daemon of the system does this where it
//! serves nobody itself and exportfs is installed.
//!
//! 1. Every line has `fsid=`, made of the guid of the dataset, since the kernel finds no number of its own for a file system over
//!    FUSE. Of two file systems with one guid (of a pool that was split) one is shared.
//! 2. Every line has `mountpoint`, so that nothing is exported that is not mounted.
//! 3. The server walks paths as root, and follows links. No path is in the file that others than root chose, or could have lead
//!    elsewhere ([`crate::shared_paths`]). That is looked at each time before exportfs is run.
//! 4. Options that others than root have set say nothing of other file systems: no `crossmnt`, no `mountpoint=`, no `fsid=`.
//! 5. In a view the server knows one file system, the first: who may use it may use all that is seen in it. It is shared if all are
//!    shared alike.
//! 6. What an earlier daemon left in the file, and is mounted no longer, is taken out when the daemon begins.

use crate::bounded_run::{self, LONGEST};
use crate::door;
use crate::shared_paths;
use crate::view_door::MemberMount;
use crate::watching::{Bell, Followed};
use admin::datasets::share::{self, Shared};
use admin::shares::{wanted, Candidate, Rule, Share, Sharer};
use admin::{Admin, Mounted};
use base::sync::MutexExt;
use base::{bail, Error, Kind, Result};
use nfs::exports::group;
use privilege::Replacing;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};

/// Where exports(5) has files of programs.
const FOLDER: &str = "/etc/exports.d";
const FILE: &str = "zfs.exports";
/// Where exportfs is.
const PROGRAMS: [&str; 4] = [
    "/usr/sbin/exportfs",
    "/sbin/exportfs",
    "/usr/local/sbin/exportfs",
    "/usr/bin/exportfs",
];
const HEAD: &str = "# Written by zfs-fuse(8), which writes it anew. See sharenfs in zfsprops(7).\n";
/// Options of exports(5) that are about more than the file system that has the property.
const OF_ROOT: [&str; 4] = ["crossmnt", "fsid", "refer", "replicas"];
/// The same if they have a value.
const PLACES: [&str; 2] = ["mountpoint", "mp"];

/// The kernel's server.
pub struct KernelServer {
    admin: Weak<Admin>,
    folder: PathBuf,
    program: PathBuf,
    /// What the server was told last.
    told: Mutex<String>,
    /// Why file systems that are shared were not told of, by name.
    refused: Mutex<BTreeMap<String, String>>,
    bell: Bell,
}

/// The kernel's server, if this daemon is the one that tells it of shares.
pub fn find(admin: &Arc<Admin>) -> Option<Arc<KernelServer>> {
    let own = std::env::var_os(control::path::SOCKET_VARIABLE).is_some_and(|v| !v.is_empty());
    if own || !rustix::process::geteuid().is_root() {
        return None;
    }
    let program = PROGRAMS.iter().map(Path::new).find(|p| p.exists())?;
    let admin = Arc::downgrade(admin);
    Some(KernelServer::new(admin, Path::new(FOLDER), program))
}

/// A path as exports(5) has it. A path ends at whatever isspace(3) takes for a blank there.
fn escaped(path: &Path) -> String {
    let mut out = String::new();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'#' | b'\\' | b'"' => drop(write!(out, "\\{byte:03o}")),
            b if b.is_ascii_graphic() => out.push(char::from(*b)),
            b => drop(write!(out, "\\{b:03o}")),
        }
    }
    out
}

/// Options of a rule. `guid`: of the dataset.
fn options(share: &Share, rule: &Rule, guid: u64) -> String {
    let mut words = vec![
        format!("sec={}", rule.flavors.join(":")),
        if rule.read_only { "ro" } else { "rw" }.to_string(),
    ];
    if share.text == "on" && !share.by_others {
        words.push("crossmnt".into());
    }
    let has = |key: &str| share.other(key).is_some();
    if !has("subtree_check") && !has("no_subtree_check") {
        words.push("no_subtree_check".into());
    }
    if !has("mountpoint") && !has("mp") {
        words.push("mountpoint".into());
    }
    if !has("fsid") {
        let hex = format!("{guid:016x}");
        // The server folds the halves into one where a handle is short of room: zeros leave the guid as it is.
        words.push(format!(
            "fsid=00000000-0000-0000-{}-{}",
            &hex[..4],
            &hex[4..]
        ));
    }
    let others = share.others.iter();
    let of_property = |w: &&String| !(share.text == "on" && *w == "crossmnt");
    words.extend(
        others
            .filter(of_property)
            .filter(|w| !words.contains(w))
            .cloned()
            .collect::<Vec<_>>(),
    );
    words.join(",")
}

/// The lines of a share.
fn lines(path: &Path, share: &Share, guid: u64) -> String {
    let mut out = String::new();
    for rule in &share.rules {
        let options = options(share, rule, guid);
        let _ = writeln!(out, "{} {}({options})", escaped(path), group(rule));
    }
    out
}

/// Refuses options of others than root that are about more than their file system.
fn check_options(share: &Share) -> Result<()> {
    let said = |key: &&&str| share.other(key).is_some();
    let place = |key: &&&str| share.other(key).is_some_and(|v| !v.is_empty());
    let bad = OF_ROOT.iter().find(said).filter(|_| share.text != "on");
    if let Some(key) = bad
        .or(PLACES.iter().find(place))
        .filter(|_| share.by_others)
    {
        bail!(
            NotPermitted,
            "{key} in sharenfs is about more than this file system, and was not set by root; only root shares so"
        );
    }
    Ok(())
}

/// In a view: refuses the first file system where another one that is seen in it is shared otherwise.
fn check_view(admin: &Admin, m: &Mounted, share: &Share) -> Result<()> {
    let Some(first) = door::of(m) else {
        return Ok(());
    };
    let pools = admin.pools();
    let mut others = pools.iter().flat_map(|e| e.all_mounts());
    let otherwise = |other: &Arc<Mounted>| {
        let same = || wanted(&other.ds).is_ok_and(|s| s.is_some_and(|s| s.text == share.text));
        first.shows(other) && !same()
    };
    match others.find(otherwise) {
        Some(other) => bail!(
            Unsupported,
            "'{}', which is seen in the same view, has another sharenfs; the kernel's server takes a view for one file system: \
             share all of it alike, or mount with 'zfs mount -o noview'",
            other.ds.full_name()
        ),
        None => Ok(()),
    }
}

/// The lines of one share.
fn lines_of(admin: &Admin, s: &Shared) -> Result<String> {
    check_view(admin, &s.mounted, &s.share)?;
    let path = shared_paths::steady(admin, &s.mounted)?;
    Ok(lines(&path, &s.share, s.mounted.ds.phys().guid))
}

impl KernelServer {
    fn new(admin: Weak<Admin>, folder: &Path, program: &Path) -> Arc<KernelServer> {
        Arc::new(KernelServer {
            admin,
            folder: folder.into(),
            program: program.into(),
            told: Mutex::default(),
            refused: Mutex::default(),
            bell: Bell::default(),
        })
    }

    /// Takes out what an earlier daemon left, and follows mounts that come and go, on a thread of its own.
    ///
    /// # Errors
    /// There is no thread.
    pub fn begin(self: &Arc<Self>) -> Result<()> {
        let there = fuse::mounted("zfs").unwrap_or_default();
        let places: Vec<String> = there.iter().map(|m| escaped(&m.path)).collect();
        if let Err(e) = self.keep(&|place| places.iter().any(|p| p == place)) {
            crate::log::warn(&e.to_string());
        }
        crate::watching::start("exports", self)
    }

    /// Leaves in the file what is shared at these places, which are escaped.
    fn keep(&self, is_kept: &dyn Fn(&str) -> bool) -> Result<()> {
        let Ok(found) = fs::read_to_string(self.folder.join(FILE)) else {
            return Ok(());
        };
        let lines = found.lines().filter(|l| !l.starts_with('#'));
        let kept = lines.filter(|l| l.split(' ').next().is_some_and(is_kept));
        let kept: String = kept.flat_map(|l| [l, "\n"]).collect();
        let told = self.told.acquire();
        match told.is_empty() && found.strip_prefix(HEAD) != Some(&kept) {
            true => self.put(&kept),
            false => Ok(()),
        }
    }

    /// The lines of everything that is shared. What cannot be looked at now stays as it was told.
    fn all_lines(&self, admin: &Admin, told: &str) -> String {
        let mut text = String::new();
        let mut refused = BTreeMap::new();
        for s in share::list(admin) {
            let name = s.mounted.ds.full_name();
            match lines_of(admin, &s) {
                Ok(lines) => text += &lines,
                Err(e) => {
                    let before = lines(&s.mounted.path, &s.share, s.mounted.ds.phys().guid);
                    match e.kind == Kind::Again && told.contains(&before) {
                        true => text += &before,
                        false => drop(refused.insert(name, e.to_string())),
                    }
                }
            }
        }
        let mut last = self.refused.acquire();
        for (name, why) in &refused {
            if last.get(name) != Some(why) {
                crate::log::warn(&format!("{name} is not shared over NFS: {why}"));
            }
        }
        *last = refused;
        text
    }

    /// Tells the server what is shared, if it was told something else, or somebody else wrote the file. What is shared is
    /// asked for under the lock, with what was told last: of two who tell at the same time the later one knows of all that the
    /// earlier one knew.
    fn tell(&self, shared: impl FnOnce(&str) -> String) -> Result<()> {
        let mut told = self.told.acquire();
        let text = shared(&told);
        if *told == text && self.has(&text) {
            return Ok(());
        }
        self.put(&text)?;
        *told = text;
        Ok(())
    }

    /// Writes the file and has the server read it.
    fn put(&self, text: &str) -> Result<()> {
        self.write(text).map_err(|e| {
            let file = self.folder.join(FILE);
            Error::from(e).context(format!("cannot write {}", file.display()))
        })?;
        let failed = |why: String| {
            let program = self.program.display();
            Error::new(Kind::Io, format!("{program} -ra: {why}"))
        };
        let ran = bounded_run::run(&self.program, &["-ra"], LONGEST)
            .map_err(|e| failed(e.to_string()))?;
        match ran.success {
            true => Ok(()),
            false => Err(failed(ran.err.trim().to_string())),
        }
    }

    /// Whether the file says this. One that is not there says nothing.
    fn has(&self, text: &str) -> bool {
        match fs::read_to_string(self.folder.join(FILE)) {
            Ok(found) => found.strip_prefix(HEAD) == Some(text),
            Err(e) => text.is_empty() && e.kind() == std::io::ErrorKind::NotFound,
        }
    }

    /// Writes the file, whole or not at all.
    fn write(&self, text: &str) -> std::io::Result<()> {
        let how = Replacing {
            meanwhile: &self.folder.join(".zfs.exports.new"),
            mode: Some(0o644),
            durable: false,
        };
        let text = format!("{HEAD}{text}");
        privilege::acts().replace_file(&self.folder.join(FILE), text.as_bytes(), how)
    }
}

impl Sharer for KernelServer {
    fn check(&self, of: &Candidate<'_>, share: &Share) -> Result<()> {
        let unknown = |f: &&String| *f == "dh";
        if let Some(f) = share.rules.iter().flat_map(|r| &r.flavors).find(unknown) {
            bail!(Unsupported, "sec={f} in sharenfs: Linux does not have it");
        }
        check_options(share)?;
        shared_paths::check(of)?;
        if of.mount.is::<MemberMount>() {
            bail!(
                Unsupported,
                "it is part of a view, which the kernel's server takes for one file system: whoever may use the first file system of \
                 the view finds it there; to share it by itself mount it with 'zfs mount -o noview'"
            );
        }
        let admin = self.admin.upgrade();
        let shared = admin.map(|a| share::list(&a)).unwrap_or_default();
        let guid = of.ds.phys().guid;
        let same = |s: &&Shared| s.mounted.ds.phys().guid == guid && s.mounted.path != of.path;
        if let Some(s) = shared.iter().find(same) {
            bail!(
                Unsupported,
                "'{}' is shared, and has the same guid, as in both halves of a pool that was split: the kernel's server cannot tell \
                 them apart",
                s.mounted.ds.full_name()
            );
        }
        Ok(())
    }

    fn changed(&self) -> Result<()> {
        let Some(admin) = self.admin.upgrade() else {
            return Ok(());
        };
        self.tell(|told| self.all_lines(&admin, told))
    }

    fn will_change(&self) {
        self.bell.ring();
    }

    fn refusal(&self, dataset: &str) -> Option<String> {
        self.refused.acquire().get(dataset).cloned()
    }

    fn holds_mounts(&self) -> bool {
        true
    }
}

impl Followed for KernelServer {
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
    use admin::shares::options::parse;
    use std::os::unix::fs::PermissionsExt;

    fn share(text: &str) -> Share {
        parse(text).unwrap().unwrap()
    }

    #[test]
    fn lines_of_exports() {
        let guid = 0x0123_4567_89ab_cdef;
        let fsid = "fsid=00000000-0000-0000-0123-456789abcdef";
        let lines = |path: &str, share: &Share| lines(Path::new(path), share, guid);
        assert_eq!(
            lines("/tank/a b", &share("on")),
            format!("/tank/a\\040b *(sec=sys,rw,crossmnt,no_subtree_check,mountpoint,{fsid})\n")
        );
        // exportfs ends a path at all blanks, and has no other words for bytes that are none of ASCII.
        let odd = "/a\u{b}*(rw)\u{c}\r\"#\\é";
        assert!(lines(odd, &share("on"))
            .starts_with("/a\\013*(rw)\\014\\015\\042\\043\\134\\303\\251 *("));
        let text =
            "sec=krb5:sys,rw=@10.0.0.0/8,ro=box:[fe80::1]:[2::3]/128,anon=5,no_root_squash,nosub,fsid=7";
        assert_eq!(
            lines("/t", &share(text)),
            "/t 10.0.0.0/8(sec=krb5:sys,rw,mountpoint,anonuid=5,no_root_squash,subtree_check,fsid=7)\n\
             /t box(sec=krb5:sys,ro,mountpoint,anonuid=5,no_root_squash,subtree_check,fsid=7)\n\
             /t fe80::1(sec=krb5:sys,ro,mountpoint,anonuid=5,no_root_squash,subtree_check,fsid=7)\n\
             /t 2::3/128(sec=krb5:sys,ro,mountpoint,anonuid=5,no_root_squash,subtree_check,fsid=7)\n"
        );
    }

    /// What a user may share is the user's own file system.
    #[test]
    fn options_of_users_are_about_their_file_system() {
        let of = |text: &str, by_others: bool| Share {
            by_others,
            ..share(text)
        };
        let own =
            "rw=10.0.0.1,sec=krb5,ro,insecure,all_squash,anonuid=7,nohide,async,mountpoint,mp";
        check_options(&of(own, true)).unwrap();
        for bad in [
            "crossmnt",
            "fsid=0",
            "mountpoint=/",
            "mp=/",
            "refer=/a@b",
            "replicas=/a@b",
        ] {
            let e = check_options(&of(bad, true)).unwrap_err();
            assert_eq!(e.kind, Kind::NotPermitted, "{bad}");
            check_options(&of(bad, false)).unwrap();
        }
        let on = of("on", true);
        check_options(&on).unwrap();
        assert!(!lines(Path::new("/t"), &on, 1).contains("crossmnt"));
    }

    /// Another system may have been in the folder meanwhile.
    #[test]
    fn what_is_mounted_no_longer_goes_when_the_daemon_begins() {
        let dir = testkit::TempDir::new("exports-left").unwrap();
        let file = dir.path().join(FILE);
        fs::write(&file, format!("{HEAD}/a *(rw)\n/a *(ro)\n/b\\040c x(rw)\n")).unwrap();
        let server = noting(dir.path());
        server.keep(&|p| p == "/a").unwrap();
        let left = fs::read_to_string(&file).unwrap();
        assert_eq!(left, format!("{HEAD}/a *(rw)\n/a *(ro)\n"));
        server.keep(&|p| p == "/a").unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("log")).unwrap(), "-ra\n");
    }

    #[test]
    fn the_server_is_told_of_what_changed() {
        let dir = testkit::TempDir::new("exports").unwrap();
        let program = dir.path().join("exportfs");
        let log = dir.path().join("log");
        let script = format!("#!/bin/sh\necho \"$@\" >>'{}'\n", log.display());
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let server = KernelServer::new(Weak::new(), &dir.path().join("exports.d"), &program);
        // Nothing was shared, and nothing is: the file is not made.
        server.tell(|_| String::new()).unwrap();
        assert!(!dir.path().join("exports.d").exists());
        server.tell(|_| "/t *(rw)\n".into()).unwrap();
        server.tell(|_| "/t *(rw)\n".into()).unwrap();
        let file = dir.path().join("exports.d/zfs.exports");
        let text = || fs::read_to_string(&file).unwrap();
        assert!(text().ends_with("\n/t *(rw)\n"));
        server.tell(|_| String::new()).unwrap();
        assert_eq!(text(), HEAD);
        assert_eq!(fs::read_to_string(&log).unwrap(), "-ra\n-ra\n");
        fs::write(&program, "#!/bin/sh\necho no such host >&2\nexit 1\n").unwrap();
        let e = server
            .tell(|_| "/t x(rw)\n".into())
            .unwrap_err()
            .to_string();
        assert!(e.contains("-ra: no such host"), "{e}");
    }

    /// A server whose exportfs only notes that it was called.
    fn noting(dir: &Path) -> Arc<KernelServer> {
        let program = dir.join("exportfs");
        let script = format!("#!/bin/sh\necho \"$@\" >>'{}'\n", dir.join("log").display());
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        KernelServer::new(Weak::new(), dir, &program)
    }

    /// `zfs share -a` puts right what somebody else wrote, and a new daemon what an old one left.
    #[test]
    fn a_file_that_somebody_else_wrote_is_written_anew() {
        let dir = testkit::TempDir::new("exports-other").unwrap();
        let server = noting(dir.path());
        let file = dir.path().join(FILE);
        let line = |_: &str| "/t *(rw)\n".to_string();
        for other in ["/old *(rw)\n", ""] {
            fs::write(&file, other).unwrap();
            server.tell(line).unwrap();
            assert_eq!(
                fs::read_to_string(&file).unwrap(),
                format!("{HEAD}{}", line(""))
            );
        }
        fs::remove_file(&file).unwrap();
        server.tell(line).unwrap();
        assert!(server.has(&line("")));
        let next = noting(dir.path());
        next.tell(|_| String::new()).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), HEAD);
        assert_eq!(
            fs::read_to_string(dir.path().join("log")).unwrap(),
            "-ra\n".repeat(4)
        );
    }

    /// Of several who share and unshare at the same time, nobody writes what another one has changed since.
    #[test]
    fn the_file_says_what_was_shared_last() {
        let dir = testkit::TempDir::new("exports-race").unwrap();
        let server = noting(dir.path());
        let shared = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(|| {
                    for _ in 0..5 {
                        shared.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                        let text = |_: &str| {
                            format!("{}\n", shared.load(std::sync::atomic::Ordering::SeqCst))
                        };
                        server.tell(text).unwrap();
                    }
                });
            }
        });
        assert!(server.has("40\n"));
    }
}
