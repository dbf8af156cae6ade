//! Shares for the kernel's NFS server: `/etc/exports.d/zfs.exports`, and exportfs(8). Root's daemon of the system does this where it
//! serves nobody itself and exportfs is installed.
//!
//! Every line has `fsid=`, made of the guids of pool and dataset, since the kernel finds no number of its own for a file system over
//! FUSE; and `mountpoint`, so that nothing is exported that is not mounted.

use admin::datasets::share;
use admin::shares::{Rule, Share, Sharer};
use admin::Admin;
use base::sync::{CondvarExt, MutexExt};
use base::{bail, Error, Kind, Result};
use nfs::exports::group;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, Weak};

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

/// The kernel's server.
pub struct KernelServer {
    admin: Weak<Admin>,
    folder: PathBuf,
    program: PathBuf,
    /// What the server was told last.
    told: Mutex<String>,
    /// Somebody is to look whether it is still so.
    bell: (Mutex<bool>, Condvar),
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

/// A path as exports(5) has it.
fn escaped(path: &str) -> String {
    let mut out = String::new();
    for c in path.chars() {
        match c {
            ' ' | '\t' | '\n' | '#' | '\\' | '"' => drop(write!(out, "\\{:03o}", c as u32)),
            c => out.push(c),
        }
    }
    out
}

/// Options of a rule. `guids`: of pool and dataset.
fn options(share: &Share, rule: &Rule, (pool, dataset): (u64, u64)) -> String {
    let mut words = vec![
        format!("sec={}", rule.flavors.join(":")),
        if rule.read_only { "ro" } else { "rw" }.to_string(),
    ];
    if share.text == "on" {
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
        let hex = format!("{pool:016x}{dataset:016x}");
        let parts = [
            &hex[..8],
            &hex[8..12],
            &hex[12..16],
            &hex[16..20],
            &hex[20..],
        ];
        words.push(format!("fsid={}", parts.join("-")));
    }
    let others = share.others.iter();
    words.extend(
        others
            .filter(|w| !words.contains(w))
            .cloned()
            .collect::<Vec<_>>(),
    );
    words.join(",")
}

/// The lines of a share.
fn lines(path: &str, share: &Share, guids: (u64, u64)) -> String {
    let mut out = String::new();
    for rule in &share.rules {
        let options = options(share, rule, guids);
        let _ = writeln!(out, "{} {}({options})", escaped(path), group(rule));
    }
    out
}

/// The lines of everything that is shared.
fn all_lines(admin: &Admin) -> String {
    let mut text = String::new();
    for s in share::list(admin) {
        let ds = &s.mounted.ds;
        let pool = admin.pools().into_iter().find(|e| {
            let same = e.mounted(ds.object());
            same.is_some_and(|m| Arc::ptr_eq(&m, &s.mounted))
        });
        let pool = pool.map_or(0, |e| e.pool.guid());
        let path = s.mounted.path.to_string_lossy();
        text += &lines(&path, &s.share, (pool, ds.phys().guid));
    }
    text
}

impl KernelServer {
    fn new(admin: Weak<Admin>, folder: &Path, program: &Path) -> Arc<KernelServer> {
        Arc::new(KernelServer {
            admin,
            folder: folder.into(),
            program: program.into(),
            told: Mutex::default(),
            bell: Default::default(),
        })
    }

    /// Follows mounts that come and go, on a thread of its own.
    ///
    /// # Errors
    /// There is no thread.
    pub fn watch(self: &Arc<Self>) -> Result<()> {
        let server = self.clone();
        let thread = std::thread::Builder::new().name("exports".into());
        thread.spawn(move || loop {
            server.wait();
            if let Err(e) = server.changed() {
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

    /// Tells the server what is shared, if it was told something else, or somebody else wrote the file. What is shared is
    /// asked for under the lock: of two who tell at the same time the later one knows of all that the earlier one knew.
    fn tell(&self, shared: impl FnOnce() -> String) -> Result<()> {
        let mut told = self.told.acquire();
        let text = shared();
        if *told == text && self.has(&text) {
            return Ok(());
        }
        self.write(&text).map_err(|e| {
            let file = self.folder.join(FILE);
            Error::from(e).context(format!("cannot write {}", file.display()))
        })?;
        let run = Command::new(&self.program)
            .arg("-ra")
            .stdin(Stdio::null())
            .output();
        let failed = |why: String| {
            let program = self.program.display();
            Error::new(Kind::Io, format!("{program} -ra: {why}"))
        };
        let done = run.map_err(|e| failed(base::io_text(&e)))?;
        if !done.status.success() {
            let why = String::from_utf8_lossy(&done.stderr);
            return Err(failed(why.trim().to_string()));
        }
        *told = text;
        Ok(())
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
        fs::create_dir_all(&self.folder)?;
        let new = self.folder.join(".zfs.exports.new");
        fs::write(&new, format!("{HEAD}{text}"))?;
        fs::set_permissions(&new, fs::Permissions::from_mode(0o644))?;
        fs::rename(new, self.folder.join(FILE))
    }
}

impl Sharer for KernelServer {
    fn check(&self, share: &Share) -> Result<()> {
        let unknown = |f: &&String| *f == "dh";
        if let Some(f) = share.rules.iter().flat_map(|r| &r.flavors).find(unknown) {
            bail!(Unsupported, "sec={f} in sharenfs: Linux does not have it");
        }
        Ok(())
    }

    fn changed(&self) -> Result<()> {
        let Some(admin) = self.admin.upgrade() else {
            return Ok(());
        };
        self.tell(|| all_lines(&admin))
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
    use admin::shares::options::parse;

    fn share(text: &str) -> Share {
        parse(text).unwrap().unwrap()
    }

    #[test]
    fn lines_of_exports() {
        let guids = (0x0123_4567_89ab_cdef, 1);
        let fsid = "fsid=01234567-89ab-cdef-0000-000000000001";
        assert_eq!(
            lines("/tank/a b", &share("on"), guids),
            format!("/tank/a\\040b *(sec=sys,rw,crossmnt,no_subtree_check,mountpoint,{fsid})\n")
        );
        let text =
            "sec=krb5:sys,rw=@10.0.0.0/8,ro=box:[fe80::1]:[2::3]/128,anon=5,no_root_squash,nosub,fsid=7";
        assert_eq!(
            lines("/t", &share(text), guids),
            "/t 10.0.0.0/8(sec=krb5:sys,rw,mountpoint,anonuid=5,no_root_squash,subtree_check,fsid=7)\n\
             /t box(sec=krb5:sys,ro,mountpoint,anonuid=5,no_root_squash,subtree_check,fsid=7)\n\
             /t fe80::1(sec=krb5:sys,ro,mountpoint,anonuid=5,no_root_squash,subtree_check,fsid=7)\n\
             /t 2::3/128(sec=krb5:sys,ro,mountpoint,anonuid=5,no_root_squash,subtree_check,fsid=7)\n"
        );
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
        server.tell(String::new).unwrap();
        assert!(!dir.path().join("exports.d").exists());
        server.tell(|| "/t *(rw)\n".into()).unwrap();
        server.tell(|| "/t *(rw)\n".into()).unwrap();
        let file = dir.path().join("exports.d/zfs.exports");
        let text = || fs::read_to_string(&file).unwrap();
        assert!(text().ends_with("\n/t *(rw)\n"));
        server.tell(String::new).unwrap();
        assert_eq!(text(), HEAD);
        assert_eq!(fs::read_to_string(&log).unwrap(), "-ra\n-ra\n");
        fs::write(&program, "#!/bin/sh\necho no such host >&2\nexit 1\n").unwrap();
        let e = server.tell(|| "/t x(rw)\n".into()).unwrap_err().to_string();
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
        let line = || "/t *(rw)\n".to_string();
        for other in ["/old *(rw)\n", ""] {
            fs::write(&file, other).unwrap();
            server.tell(line).unwrap();
            assert_eq!(
                fs::read_to_string(&file).unwrap(),
                format!("{HEAD}{}", line())
            );
        }
        fs::remove_file(&file).unwrap();
        server.tell(line).unwrap();
        assert!(server.has(&line()));
        let next = noting(dir.path());
        next.tell(String::new).unwrap();
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
                        let text =
                            || format!("{}\n", shared.load(std::sync::atomic::Ordering::SeqCst));
                        server.tell(text).unwrap();
                    }
                });
            }
        });
        assert!(server.has("40\n"));
    }
}
