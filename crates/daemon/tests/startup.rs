//! Starting and ending the real daemon: background, one per socket, pid file, signals.

use api::{Reply, Request};
use control::Client;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

struct DaemonDir(PathBuf);

impl DaemonDir {
    fn new(name: &str) -> DaemonDir {
        let dir = std::env::temp_dir().join(format!("zfs-fuse-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        DaemonDir(dir)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("control.sock")
    }

    fn command(&self) -> Command {
        let mut c = Command::new(env!("CARGO_BIN_EXE_zfs-fuse"));
        c.env("ZFS_FUSE_SOCKET", self.socket())
            .env("ZFS_FUSE_CACHE", self.0.join("zpool.cache"))
            .env("ZFS_FUSE_MOUNT_ROOT", self.0.join("mnt"))
            .stdin(Stdio::null());
        c
    }

    fn run(&self, args: &[&str]) -> (i32, String) {
        let output: Output = self.command().args(args).output().unwrap();
        (
            output.status.code().unwrap_or(-1),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    }

    fn client(&self) -> Option<Client> {
        Client::connect_at(&self.socket()).unwrap()
    }
}

impl Drop for DaemonDir {
    fn drop(&mut self) {
        if let Ok(Some(mut c)) = Client::connect_at(&self.socket()) {
            let _ = c.call(&Request::Stop {});
            wait_until(|| !self.socket().exists());
        }
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn wait_until(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing happens");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn pid_in(path: &Path) -> i32 {
    std::fs::read_to_string(path)
        .unwrap()
        .trim()
        .parse()
        .unwrap()
}

fn terminate(pid: i32) {
    let status = Command::new("kill").arg(pid.to_string()).status().unwrap();
    assert!(status.success());
}

/// Relative paths mean what they mean where the daemon is started, although it goes elsewhere.
#[test]
fn relative_paths_of_socket_and_cache_are_those_of_who_starts_it() {
    let dir = DaemonDir::new("relative");
    let status = dir
        .command()
        .current_dir(&dir.0)
        .env("ZFS_FUSE_SOCKET", "control.sock")
        .env("ZFS_FUSE_CACHE", "sub/zpool.cache")
        .status()
        .unwrap();
    assert!(status.success());
    let mut client = dir.client().expect("it serves at the socket meant");
    assert!(client.call(&Request::Version {}).is_ok());
    let found = std::fs::read_dir("/proc").unwrap().flatten().any(|e| {
        let env = std::fs::read(e.path().join("environ")).unwrap_or_default();
        let meant = format!("ZFS_FUSE_CACHE={}", dir.0.join("sub/zpool.cache").display());
        env.split(|b| *b == 0).any(|v| v == meant.as_bytes())
    });
    assert!(found, "the cache file is the one meant");
}

#[test]
fn background() {
    let dir = DaemonDir::new("background");
    let pidfile = dir.0.join("pid");
    let (status, err) = dir.run(&["-p", pidfile.to_str().unwrap()]);
    assert_eq!((status, err.as_str()), (0, ""));
    // It serves when the launcher returns.
    let mut client = dir.client().expect("no daemon");
    assert_eq!(client.call(&Request::Ping {}), Ok(Reply::Done));
    let pid = pid_in(&pidfile);
    // In a session of its own, away from any directory, holding nothing of its starter.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let session = stat
        .rsplit(") ")
        .next()
        .unwrap()
        .split(' ')
        .nth(3)
        .unwrap()
        .to_string();
    assert_eq!(session, pid.to_string());
    assert_eq!(
        std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap(),
        Path::new("/")
    );
    for fd in 0..3 {
        assert_eq!(
            std::fs::read_link(format!("/proc/{pid}/fd/{fd}")).unwrap(),
            Path::new("/dev/null")
        );
    }
    // A second one is told so, and leaves the first alone.
    let (status, err) = dir.run(&[]);
    assert_eq!(status, 1);
    assert!(
        err.starts_with(&format!(
            "zfs-fuse: another zfs-fuse daemon (process {pid}) already serves"
        )),
        "{err}"
    );
    assert_eq!(client.call(&Request::Ping {}), Ok(Reply::Done));
    terminate(pid);
    wait_until(|| !dir.socket().exists() && !pidfile.exists());
    assert!(dir.client().is_none());
    // After a kill without warning the next one starts all the same.
    assert_eq!(dir.run(&["-p", pidfile.to_str().unwrap()]).0, 0);
    let pid = pid_in(&pidfile);
    let status = Command::new("kill")
        .args(["-9", &pid.to_string()])
        .status()
        .unwrap();
    assert!(status.success());
    wait_until(|| dir.client().is_none());
    assert!(dir.socket().exists());
    assert_eq!(dir.run(&[]).0, 0);
    assert!(dir.client().is_some());
}

#[test]
fn foreground_and_request_to_stop() {
    let dir = DaemonDir::new("foreground");
    let mut child = dir.command().arg("-n").spawn().unwrap();
    wait_until(|| dir.client().is_some());
    let mut client = dir.client().unwrap();
    assert!(
        matches!(client.call(&Request::Version {}), Ok(Reply::Version(v)) if !v.daemon.is_empty())
    );
    assert_eq!(client.call(&Request::Stop {}), Ok(Reply::Done));
    assert!(child.wait().unwrap().success());
    assert!(!dir.socket().exists());
}

#[test]
fn what_keeps_it_from_starting_is_told() {
    let dir = DaemonDir::new("refused");
    let (status, err) = dir.run(&["--no-such-option"]);
    assert_eq!(status, 2);
    assert!(
        err.starts_with("zfs-fuse: invalid option 'no-such-option'\nusage: zfs-fuse "),
        "{err}"
    );
    // From the background too.
    let (status, err) = dir.run(&["-p", "/nonexistent/dir/pid"]);
    assert_eq!(status, 1);
    assert!(
        err.starts_with("zfs-fuse: cannot write the pid file '/nonexistent/dir/pid': "),
        "{err}"
    );
    let output = dir
        .command()
        .env("ZFS_FUSE_SOCKET", "/nonexistent/dir/sock")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        err.starts_with("zfs-fuse: cannot make the directory '/nonexistent/dir'"),
        "{err}"
    );
}

/// A daemon in the foreground whose cache file is no cache file; what it says until it serves and is asked to stop.
fn says_about_a_bad_cache_file(dir: &DaemonDir, filter: &str) -> String {
    std::fs::write(dir.0.join("zpool.cache"), "no cache file").unwrap();
    let child = dir
        .command()
        .arg("-n")
        .env("ZFS_FUSE_LOG", filter)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until(|| dir.client().is_some());
    let mut client = dir.client().unwrap();
    assert_eq!(client.call(&Request::Stop {}), Ok(Reply::Done));
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_log_has_what_its_filter_lets_through() {
    let dir = DaemonDir::new("filter");
    let line = format!(
        "zfs-fuse: cache file {}: ",
        dir.0.join("zpool.cache").display()
    );
    for (filter, told) in [
        ("", true),
        ("warn", true),
        ("error", false),
        ("off,admin=warn", true),
        ("warn,admin=error", false),
    ] {
        let said = says_about_a_bad_cache_file(&dir, filter);
        assert_eq!(said.contains(&line), told, "{filter:?}: {said}");
    }
    // From the background too.
    let wrong = dir
        .command()
        .env("ZFS_FUSE_LOG", "warn,daemon=loud")
        .output()
        .unwrap();
    assert_eq!(wrong.status.code(), Some(1));
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(
        said.starts_with("zfs-fuse: ZFS_FUSE_LOG: 'daemon=loud': a level is "),
        "{said}"
    );
}

/// The journal's socket is where the daemon looks for it in a mount namespace of its own.
#[test]
fn in_the_background_the_journal_gets_level_and_text() {
    let dir = DaemonDir::new("journal");
    std::fs::write(dir.0.join("zpool.cache"), "no cache file").unwrap();
    let path = dir.0.join("journal");
    let journal = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    journal
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let daemon = dir.command();
    let mut c = Command::new("unshare");
    c.args(["--mount", "sh", "-ec"])
        .arg(
            "mount -t tmpfs none /run; mkdir -p /run/systemd/journal; : >/run/systemd/journal/socket
            mount --bind \"$1\" /run/systemd/journal/socket; exec \"$0\"",
        )
        .arg(daemon.get_program())
        .arg(&path)
        .envs(daemon.get_envs().filter_map(|(k, v)| Some((k, v?))))
        .stdin(Stdio::null());
    let output = c.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() && (said.contains("unshare") || said.contains("mount")) {
        eprintln!(
            "skipped: no mount namespace of its own here: {}",
            said.trim()
        );
        return;
    }
    assert_eq!((output.status.code(), said.as_str()), (Some(0), ""));
    let text = format!("cache file {}: ", dir.0.join("zpool.cache").display());
    let record = loop {
        let mut buffer = [0; 65536];
        let n = journal
            .recv(&mut buffer)
            .expect("a record about the cache file");
        let record = String::from_utf8_lossy(&buffer[..n]).into_owned();
        if record.contains(&text) {
            break record;
        }
    };
    for field in [
        "PRIORITY=4\n",
        "SYSLOG_IDENTIFIER=zfs-fuse\n",
        "TARGET=admin::cache\n",
    ] {
        // A value follows its name's line, with its length before it, or an equals sign.
        let (name, value) = field.split_once('=').unwrap();
        assert!(
            record.contains(field)
                || record.contains(&format!("{name}\n")) && record.contains(value),
            "{field} is missing: {record:?}"
        );
    }
}
