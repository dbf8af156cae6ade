//! [`Rig`]: a daemon with a socket, folders and devices of its own, and ways to disturb it.

use crate::{programs, Dice, Group};
use api::{Fault, Request};
use control::Client;
use rustix::process::{kill_process, Pid, Signal};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{chown, FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::{or_skip, OpenZfs, TempDir};

/// How long a command may take before it counts as stuck.
const PATIENCE: Duration = Duration::from_secs(240);
/// How long a whole test may take before its daemon is killed.
const LIFETIME: Duration = Duration::from_secs(1500);
/// What [`Rig::sh`] defines before its script.
const FAILS: &str =
    "fails() { if \"$@\"; then echo \"this should have failed: $*\" >&2; exit 1; fi; }\n";
/// The ordinary user that root's tests become.
const NOBODY: u32 = 65534;

/// A private daemon with its socket, cache file, disks and mounts below a folder of its own. All of
/// it goes away with the value, also when a test fails.
pub struct Rig {
    dir: TempDir,
    bin: PathBuf,
    user: Option<u32>,
    daemon: Option<Child>,
    loops: Vec<String>,
    outside: Vec<PathBuf>,
    variables: Vec<(String, String)>,
    options: Vec<String>,
    prelude: String,
    commands: AtomicU64,
    watch: Arc<AtomicBool>,
    socket: PathBuf,
}

/// What a command said.
#[derive(Debug)]
pub struct Said {
    pub status: ExitStatus,
    pub out: String,
    pub err: String,
    line: String,
}

impl Said {
    /// Its output.
    ///
    /// # Panics
    /// If it failed.
    pub fn ok(self) -> String {
        assert!(self.status.success(), "{self}");
        self.out
    }

    /// Its complaint.
    ///
    /// # Panics
    /// If it did not end with this code.
    pub fn fails(self, code: i32) -> String {
        assert_eq!(self.status.code(), Some(code), "{self}");
        self.err
    }
}

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(
            f,
            "{}: {}\n{}{}",
            self.line, self.status, self.out, self.err
        )
    }
}

impl Rig {
    /// As the user who runs the tests; `None` after saying why if nothing can be mounted here. The
    /// daemon is not started.
    pub fn new(name: &str) -> Option<Rig> {
        Rig::make(name, None)
    }

    /// Root's tests only: loop devices, device nodes, foreign owners.
    pub fn as_root(name: &str) -> Option<Rig> {
        if !is_root() {
            eprintln!("skipped: {name} needs root");
            return None;
        }
        Rig::make(name, None)
    }

    /// As an ordinary user, whoever runs the tests.
    pub fn as_user(name: &str) -> Option<Rig> {
        Rig::make(name, is_root().then_some(NOBODY))
    }

    fn make(name: &str, user: Option<u32>) -> Option<Rig> {
        // Root mounts by itself, everybody else through the helper.
        if File::options()
            .read(true)
            .write(true)
            .open("/dev/fuse")
            .is_err()
        {
            eprintln!("skipped: {name} needs /dev/fuse");
            return None;
        }
        let dir = TempDir::new(&format!("zt-{name}")).expect("temporary folder");
        let bin = dir.path().join("bin");
        fs::create_dir(&bin).expect("folder of programs");
        for p in programs::NAMES {
            let from = programs::folder().join(p);
            // A build that goes on elsewhere must not change the program under test.
            if fs::hard_link(&from, bin.join(p)).is_err() {
                programs::copy(&from, &bin.join(p));
            }
        }
        for sub in ["run", "home", "disks", "mnt", "said"] {
            let d = dir.path().join(sub);
            fs::create_dir(&d).expect("folder");
            fs::set_permissions(&d, PermissionsExt::from_mode(0o755)).expect("mode");
            chown(&d, user, user).expect("owner");
        }
        let rig = Rig {
            socket: dir.path().join("run/control.sock"),
            dir,
            bin,
            user,
            daemon: None,
            loops: Vec::new(),
            outside: Vec::new(),
            variables: Vec::new(),
            options: Vec::new(),
            prelude: String::new(),
            commands: AtomicU64::new(0),
            watch: Arc::new(AtomicBool::new(true)),
        };
        Some(rig)
    }

    /// The folder of everything.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The folder of the image files.
    pub fn disks(&self) -> PathBuf {
        self.dir.path().join("disks")
    }

    /// The control socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Gives devices these faults and no others; false after saying why if the daemon was built without faults.
    pub fn set_faults(&self, faults: Vec<Fault>) -> bool {
        let mut client = Client::connect_at(self.socket()).unwrap().unwrap();
        match client.call(&Request::SetFaults { faults }) {
            Ok(_) => true,
            Err(e) => {
                assert!(e.message.contains("not built for tests"), "{}", e.message);
                eprintln!("skipped: {}", e.message);
                false
            }
        }
    }

    /// A place for mounts.
    pub fn mnt(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    /// An environment variable for the daemon and commands started from now on.
    pub fn variable(&mut self, name: &str, value: &str) {
        self.variables.push((name.into(), value.into()));
    }

    /// Options of the daemon when it is started the next time.
    pub fn daemon_options(&mut self, options: &[&str]) {
        self.options = options.iter().map(|o| o.to_string()).collect();
    }

    /// Another place for the control socket; its folder is the daemon's to make.
    pub fn serve_at(&mut self, socket: &Path) {
        self.socket = socket.to_path_buf();
    }

    /// The control group of the daemon when it is started the next time.
    pub fn daemon_group(&mut self, group: &Group) {
        // In the group before it looks how much memory there is.
        let enter = format!("echo $$ >'{}/cgroup.procs'", group.path().display());
        self.daemon_prelude(&enter);
    }

    /// A line of shell before the daemon when it is started the next time.
    pub fn daemon_prelude(&mut self, line: &str) {
        self.prelude = format!("{line} && ");
    }

    /// A path outside the rig that has to be removed (an empty folder), such as the default mount
    /// point of a pool.
    pub fn will_make(&mut self, path: &str) {
        self.outside.push(path.into());
    }

    /// Makes a sparse image; gives its path.
    pub fn image(&self, name: &str, size: u64) -> String {
        let path = self.disks().join(name);
        let file = File::create(&path).expect("image");
        file.set_len(size).expect("size of the image");
        chown(&path, self.user, self.user).expect("owner");
        path.to_str().expect("plain path").to_string()
    }

    /// Starts the daemon with a pool `tank` on one image of so many bytes; gives the place where it is mounted.
    #[must_use]
    pub fn with_tank(mut self, size: u64) -> (Rig, PathBuf) {
        let disk = self.image("d0", size);
        let mnt = self.mnt().join("tank");
        self.start();
        self.zpool(&["create", "-m", mnt.to_str().unwrap(), "tank", &disk]);
        (self, mnt)
    }

    /// Several images of the same size.
    pub fn images(&self, count: usize, size: u64) -> Vec<String> {
        (0..count)
            .map(|n| self.image(&format!("d{n}"), size))
            .collect()
    }

    /// Puts garbage over everything between the labels of an image.
    pub fn ruin(image: impl AsRef<Path>) {
        let f = File::options().write(true).open(image).unwrap();
        let end = f.metadata().unwrap().len() - (1 << 20);
        let mut dice = Dice::new(4);
        let mut at = 4 << 20;
        while at < end {
            f.write_all_at(&dice.bytes(300_000), at).unwrap();
            at += 300_000;
        }
    }

    /// A loop device on a new image; `None` after saying why.
    pub fn loop_device(&mut self, name: &str, size: u64) -> Option<String> {
        let image = self.image(name, size);
        self.loop_on(&image)
    }

    /// A loop device on an image there is; `None` after saying why.
    pub fn loop_on(&mut self, image: &str) -> Option<String> {
        self.loop_with(&[], image)
    }

    /// The same with further options of `losetup`.
    pub fn loop_with(&mut self, options: &[&str], image: &str) -> Option<String> {
        let out = Command::new("losetup")
            .args(["--find", "--show"])
            .args(options)
            .arg(image)
            .output();
        let device = match out {
            Ok(o) if o.status.success() => String::from_utf8_lossy(&o.stdout).trim().to_string(),
            _ => {
                eprintln!("skipped: no loop devices here");
                return None;
            }
        };
        self.loops.push(device.clone());
        Some(device)
    }

    /// A command in the rig's environment, as the rig's user, in its folder.
    pub fn command<S: AsRef<OsStr>>(&self, program: &str, args: &[S]) -> Command {
        self.command_as(self.user, program, args)
    }

    /// The same as another user; only root can become one.
    pub fn command_as<S: AsRef<OsStr>>(
        &self,
        user: Option<u32>,
        program: &str,
        args: &[S],
    ) -> Command {
        let own = self.bin.join(program);
        let program = if own.is_file() { own } else { program.into() };
        let mut c;
        match user {
            Some(id) => {
                c = Command::new("setpriv");
                let id = id.to_string();
                c.args(["--reuid", &id, "--regid", &id, "--clear-groups"]);
                c.arg(program);
            }
            None => c = Command::new(program),
        }
        let mut path = self.bin.clone().into_os_string();
        path.push(":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        c.args(args)
            .current_dir(self.dir.path().join("home"))
            .env("PATH", path)
            .env("HOME", self.dir.path().join("home"))
            .env("XDG_RUNTIME_DIR", self.dir.path().join("run"))
            .env("ZFS_FUSE_SOCKET", &self.socket)
            .env("ZFS_FUSE_CACHE", self.dir.path().join("run/zpool.cache"))
            .env("LC_ALL", "C.UTF-8")
            .env("TZ", "UTC")
            .stdin(Stdio::null());
        for (name, value) in &self.variables {
            c.env(name, value);
        }
        c
    }

    /// Runs a command to its end.
    ///
    /// # Panics
    /// If it cannot be started or does not end.
    pub fn try_run<S: AsRef<OsStr>>(&self, program: &str, args: &[S]) -> Said {
        self.try_run_as(self.user, program, args)
    }

    /// The same as another user.
    pub fn try_run_as<S: AsRef<OsStr>>(
        &self,
        user: Option<u32>,
        program: &str,
        args: &[S],
    ) -> Said {
        self.run_within(PATIENCE, user, program, args)
    }

    /// A command of the rig's user that must not take longer than `patience`: what others do, or
    /// leave undone, may not keep it waiting.
    pub fn soon<S: AsRef<OsStr>>(&self, patience: Duration, program: &str, args: &[S]) -> Said {
        self.run_within(patience, self.user, program, args)
    }

    fn run_within<S: AsRef<OsStr>>(
        &self,
        patience: Duration,
        user: Option<u32>,
        program: &str,
        args: &[S],
    ) -> Said {
        let n = self.commands.fetch_add(1, Ordering::Relaxed);
        let base = self.dir.path().join(format!("said/{n}"));
        let (out, err) = (base.with_extension("out"), base.with_extension("err"));
        let mut c = self.command_as(user, program, args);
        c.stdout(File::create(&out).expect("file for output"));
        c.stderr(File::create(&err).expect("file for errors"));
        let line = args.iter().fold(program.to_string(), |l, a| {
            format!("{l} {}", a.as_ref().to_string_lossy())
        });
        let mut child = c.spawn().unwrap_or_else(|e| panic!("{line}: {e}"));
        let Some(status) = wait(&mut child, patience) else {
            let _ = child.kill();
            let read = |p: &Path| fs::read_to_string(p).unwrap_or_default();
            panic!(
                "{line}: does not end\n{}{}{}",
                read(&out),
                read(&err),
                self.log()
            );
        };
        let read =
            |p: &Path| String::from_utf8_lossy(&fs::read(p).unwrap_or_default()).into_owned();
        let said = Said {
            status,
            out: read(&out),
            err: read(&err),
            line,
        };
        let _ = fs::remove_file(out);
        let _ = fs::remove_file(err);
        said
    }

    /// A command of the rig's user with a terminal for its standard streams, as somebody runs it by hand or in tmux. Its
    /// complaint is in its output.
    pub fn try_on_terminal<S: AsRef<OsStr>>(&self, program: &str, args: &[S]) -> Said {
        let mut words = vec![quoted(OsStr::new(program))];
        words.extend(args.iter().map(|a| quoted(a.as_ref())));
        let mut said = self.try_run("script", &["-qec", &words.join(" "), "/dev/null"]);
        said.out = said.out.replace("\r\n", "\n");
        said
    }

    pub fn zpool(&self, args: &[&str]) -> String {
        self.explain(self.try_run("zpool", args))
    }

    pub fn zfs(&self, args: &[&str]) -> String {
        self.explain(self.try_run("zfs", args))
    }

    /// A shell script as the rig's user; stops at the first failure. A command that must fail is
    /// written `fails COMMAND…`: behind `!` the shell goes on whatever the command does.
    ///
    /// # Panics
    /// If the script fails, or has a command behind `!`.
    pub fn sh(&self, script: &str) -> String {
        let mut commands = script.split([';', '\n', '|']);
        let inverted = commands.find(|c| c.trim_start().starts_with("! "));
        assert_eq!(inverted, None, "nothing comes of this: use `fails`");
        let script = format!("{FAILS}{script}");
        self.explain(self.try_run("sh", &["-ec", &script]))
    }

    fn explain(&self, said: Said) -> String {
        assert!(said.status.success(), "{said}\ndaemon: {}", self.log());
        said.out
    }

    /// One property of a dataset, exact.
    pub fn get(&self, property: &str, dataset: &str) -> String {
        let text = self.zfs(&["get", "-Hp", "-o", "value", property, dataset]);
        text.trim().to_string()
    }

    /// Starts the daemon in front and waits until it answers.
    pub fn start(&mut self) {
        assert!(self.daemon.is_none(), "a daemon is running");
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.dir.path().join("log"))
            .expect("log");
        let script = format!("{}exec \"$0\" \"$@\"", self.prelude);
        let mut c = self.command("sh", &["-c", &script]);
        c.arg(self.bin.join("zfs-fuse")).arg("--no-daemon");
        c.args(&self.options);
        c.env("RUST_BACKTRACE", "1");
        c.stdout(log.try_clone().expect("log")).stderr(log);
        let child = c.spawn().expect("the daemon");
        let pid = child.id();
        self.daemon = Some(child);
        self.watchdog(pid);
        let begin = Instant::now();
        let mut ready = self.command("zpool", &["list"]);
        ready.stdout(Stdio::null()).stderr(Stdio::null());
        loop {
            if let Some(d) = &mut self.daemon {
                if let Ok(Some(status)) = d.try_wait() {
                    self.daemon = None;
                    panic!("the daemon ended at once, {status}: {}", self.log());
                }
            }
            // Only once somebody listens: the command must not start a daemon of its own, and a
            // daemon that was killed leaves its socket behind.
            let there = UnixStream::connect(&self.socket);
            if there.is_ok() && ready.status().is_ok_and(|s| s.success()) {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "no answer: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A daemon that hangs would make system calls of the test hang; after [`LIFETIME`] it is
    /// killed, which makes them fail.
    fn watchdog(&mut self, pid: u32) {
        self.watch.store(false, Ordering::Relaxed);
        self.watch = Arc::new(AtomicBool::new(true));
        let watch = self.watch.clone();
        std::thread::spawn(move || {
            let begin = Instant::now();
            let limit = LIFETIME * crate::number("ZFS_FUSE_TEST_SCALE", 1) as u32;
            while watch.load(Ordering::Relaxed) {
                if begin.elapsed() > limit {
                    eprintln!("the daemon {pid} took too long and is killed");
                    signal(pid, Signal::KILL);
                    return;
                }
                std::thread::sleep(Duration::from_millis(200));
            }
        });
    }

    /// Process id of the daemon.
    pub fn pid(&self) -> u32 {
        self.daemon.as_ref().expect("a daemon").id()
    }

    /// Memory of the daemon, bytes: a line of its `/proc/PID/status` (`VmRSS`, `VmHWM`).
    pub fn memory(&self, line: &str) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("status");
        let kib = text
            .lines()
            .find_map(|l| l.strip_prefix(line)?.strip_prefix(':'))
            .and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
        kib.unwrap_or_else(|| panic!("no {line} in {text}")) << 10
    }

    /// How many files the daemon has open.
    pub fn open_files(&self) -> usize {
        let dir = fs::read_dir(format!("/proc/{}/fd", self.pid()));
        dir.expect("descriptors").count()
    }

    /// What the daemon has printed.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// A handle with which another thread can kill the daemon.
    pub fn plug(&self) -> impl Fn() + Send + 'static {
        let pid = self.pid();
        move || signal(pid, Signal::KILL)
    }

    /// Pulls the plug: kills the daemon and clears away the mounts it left.
    pub fn kill(&mut self) {
        self.kill_alone();
        self.unmount_all();
    }

    /// Kills the daemon; its mounts stay, dead.
    pub fn kill_alone(&mut self) {
        self.watch.store(false, Ordering::Relaxed);
        if let Some(mut d) = self.daemon.take() {
            signal(d.id(), Signal::KILL);
            let _ = d.wait();
        }
    }

    /// [`Rig::kill`], and daemons that commands started meanwhile.
    pub fn kill_all(&mut self) {
        self.kill();
        self.kill_background();
        self.unmount_all();
    }

    /// Ends the daemon as an init system would.
    ///
    /// # Panics
    /// If it does not end well, or leaves mounts behind.
    pub fn stop(&mut self) {
        self.watch.store(false, Ordering::Relaxed);
        let Some(mut d) = self.daemon.take() else {
            return;
        };
        signal(d.id(), Signal::TERM);
        let status = wait(&mut d, PATIENCE);
        if status.is_none() {
            let _ = d.kill();
            let _ = d.wait();
        }
        let left = self.mounts();
        self.unmount_all();
        assert!(
            status.is_some_and(|s| s.success()),
            "{status:?}: {}",
            self.log()
        );
        assert!(left.is_empty(), "still mounted: {left:?}");
    }

    /// Mount points below the rig's folder, and its outside ones; the last mounted first.
    pub fn mounts(&self) -> Vec<String> {
        let text = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let mut out: Vec<String> = text
            .lines()
            .filter_map(|l| l.split(' ').nth(1))
            .map(|m| m.replace("\\040", " "))
            .filter(|m| {
                let m = Path::new(m);
                m.starts_with(self.dir.path()) || self.outside.iter().any(|o| m.starts_with(o))
            })
            .collect();
        out.reverse();
        out
    }

    fn unmount_all(&self) {
        for m in self.mounts() {
            let root = Command::new("umount").args(["-l", &m]).output();
            if !root.is_ok_and(|o| o.status.success()) {
                let _ = Command::new("fusermount3").args(["-u", "-z", &m]).output();
            }
        }
    }

    /// Has OpenZFS's `zdb` verify every block of a pool that is not open here. Says so and goes on
    /// where there is no `zdb`.
    pub fn zdb_check(&self, pool: &str) {
        if let Some(oz) = or_skip(OpenZfs::get()) {
            if let Err(e) = oz.check(&self.disks(), pool) {
                self.keep_evidence();
                panic!("{e}");
            }
        }
    }

    /// With `ZFS_FUSE_TEST_KEEP=FOLDER`, copies the images and the log there before they go away.
    pub fn keep_evidence(&self) {
        self.keep_evidence_of(&self.disks(), "");
    }

    /// The same with images that are elsewhere, in a folder of that name.
    pub fn keep_evidence_of(&self, images: &Path, name: &str) {
        if let Some(to) = std::env::var_os("ZFS_FUSE_TEST_KEEP") {
            let to = Path::new(&to).join(name);
            let _ = fs::create_dir_all(&to);
            let _ = Command::new("cp")
                .args(["-r", "--sparse=always"])
                .arg(images)
                .arg(self.dir.path().join("log"))
                .arg(&to)
                .status();
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.watch.store(false, Ordering::Relaxed);
        if std::thread::panicking() {
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(40).collect();
            for l in tail.iter().rev() {
                let _ = writeln!(std::io::stderr(), "daemon: {l}");
            }
        }
        if let Some(mut d) = self.daemon.take() {
            signal(d.id(), Signal::TERM);
            if wait(&mut d, Duration::from_secs(15)).is_none() {
                let _ = d.kill();
                let _ = d.wait();
            }
        }
        self.kill_background();
        self.unmount_all();
        for device in &self.loops {
            let _ = Command::new("losetup").args(["--detach", device]).output();
        }
        for path in &self.outside {
            let _ = fs::remove_dir(path);
        }
    }
}

impl Rig {
    /// Kills daemons that put themselves into the background, as those do that a command starts; whether there were any. The programs
    /// in the rig's folder are nobody else's.
    pub fn kill_background(&self) -> bool {
        let mut any = false;
        let own = self.bin.join("zfs-fuse");
        for e in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let pid = e.file_name().to_string_lossy().parse::<u32>();
            let exe = fs::read_link(e.path().join("exe"));
            let (Ok(pid), Ok(exe)) = (pid, exe) else {
                continue;
            };
            if exe == own && self.daemon.as_ref().map(Child::id) != Some(pid) {
                any = true;
                signal(pid, Signal::KILL);
                let gone = || !Path::new(&format!("/proc/{pid}/exe")).exists();
                for _ in 0..100 {
                    if gone() {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        }
        any
    }
}

/// A word that a shell takes as it is.
fn quoted(word: &OsStr) -> String {
    format!("'{}'", word.to_string_lossy().replace('\'', "'\\''"))
}

/// The same command with a terminal for its standard streams. Its environment and folder are those of `command`; a new
/// session, so a new process group, runs it.
pub fn on_terminal(command: &Command) -> Command {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let line: Vec<String> = words.map(quoted).collect();
    let mut c = Command::new("script");
    c.args(["-qec", &line.join(" "), "/dev/null"]);
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => c.env(name, value),
            None => c.env_remove(name),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        c.current_dir(dir);
    }
    c
}

/// Sends a signal.
pub fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        // It may have ended by itself.
        let _ = kill_process(pid, signal);
    }
}

/// Waits for something that `done` says; a panic with `what` after two minutes.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(
            begin.elapsed() < Duration::from_secs(120),
            "not yet: {what}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Waits for a process; `None` if it is still running after so long.
pub fn wait(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let begin = Instant::now();
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if begin.elapsed() > patience {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether an ordinary user can mount here; says why not.
pub fn users_can_mount(name: &str) -> bool {
    let mode = fs::metadata("/dev/fuse").map_or(0, |m| m.permissions().mode());
    let can = !is_root() || mode & 0o666 == 0o666;
    if !can {
        eprintln!("skipped: {name} needs /dev/fuse open to all users");
    }
    can
}

/// Whether the tests run as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
