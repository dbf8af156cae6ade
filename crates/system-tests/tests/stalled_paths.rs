//! A file system that does not answer, behind every path and file that a client can name: it stops nobody but who named it.

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::Signal;
use std::fs::{self, File};
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use system_tests::stalled::{Call, CALLS};
use system_tests::{signal, until, Rig, StalledFiles};

const MIB: u64 = 1 << 20;
/// What must not wait for the stalled file system may take this long on a busy machine. A walk that is given up takes eight
/// seconds; who waits for the file system itself waits for ever.
const SOON: Duration = Duration::from_secs(60);
/// The user who brings the stalled file system.
const OWNER: u32 = 65534;

/// Shows how long something took.
fn timed<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let done = work();
    println!("{what}: {:?}", begin.elapsed());
    done
}

/// Kills the daemon, which must end though others wait for the stalled file system, and starts a new one.
fn killed_and_replaced(rig: &mut Rig) {
    let pid = rig.pid();
    timed("killed", || {
        signal(pid, Signal::KILL);
        let ended = || {
            let state = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let tasks = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
            tasks <= 1 && (state.is_empty() || state.contains("State:\tZ"))
        };
        until("the killed daemon ends", ended);
    });
    rig.kill();
    rig.start();
    rig.soon(SOON, "zpool", &["list"]).ok();
}

/// Processes that may be stuck: killed when they are dropped, and waited for when the stalled file system is gone.
#[derive(Default)]
struct Stuck(Vec<Child>);

impl Drop for Stuck {
    fn drop(&mut self) {
        for c in &mut self.0 {
            let _ = c.kill();
        }
        for c in &mut self.0 {
            let ended = system_tests::wait(c, SOON).is_some();
            assert!(ended || std::thread::panicking(), "cannot be killed");
        }
    }
}

/// A rig of root's with a pool, and the stalled file system. The processes are dropped after it.
fn begin(name: &str) -> Option<(Rig, Stuck, StalledFiles)> {
    // Two of these fail still, and a stalled file system makes programs of the whole machine wait (ps(1), df(1)).
    if std::env::var_os("ZFS_FUSE_TEST_STALLED").is_none() {
        println!("skipped: file systems that stall: set ZFS_FUSE_TEST_STALLED");
        return None;
    }
    let rig = Rig::as_root(name)?;
    let stalled = StalledFiles::new(name, OWNER)?;
    let (rig, _) = rig.with_tank(256 * MIB);
    Some((rig, Stuck::default(), stalled))
}

/// What others do meanwhile.
fn others_go_on(rig: &Rig, n: usize) {
    timed("others", || {
        rig.soon(SOON, "zfs", &["create", &format!("tank/others{n}")])
            .ok();
        rig.soon(SOON, "zfs", &["snapshot", &format!("tank/others{n}@s")])
            .ok();
        rig.soon(SOON, "zfs", &["destroy", "-r", &format!("tank/others{n}")])
            .ok();
    });
}

#[test]
fn a_stalled_mount_point_stops_its_own_mount_alone() {
    let Some((mut rig, mut stuck, stalled)) = begin("stalled-place") else {
        return;
    };
    let at = stalled.path().join("dir").display().to_string();
    rig.zfs(&["create", "-u", "tank/a"]);
    rig.zfs(&["set", "-u", &format!("mountpoint={at}"), "tank/a"]);
    stalled.stall(&[Call::Lookup]);
    let mount = rig.command("zfs", &["mount", "tank/a"]);
    stuck.0.push(quiet(mount).spawn().unwrap());
    until("somebody waits", || stalled.is_waited_for());
    others_go_on(&rig, 0);
    let said = rig.soon(SOON, "zfs", &["mount", "tank/a"]).fails(1);
    assert!(said.contains("does not answer"), "{said}");
    let said = rig.soon(SOON, "zfs", &["create", "tank/a/below"]).fails(1);
    assert!(said.contains("does not answer"), "{said}");
    rig.zfs(&["destroy", "tank/a/below"]);
    stalled.go_on();
    // Mounted, and then the way there stalls.
    until("the place answers again", || {
        rig.try_run("zfs", &["mount", "tank/a"]).status.success()
    });
    stalled.stall(&CALLS);
    let said = rig.soon(SOON, "zfs", &["unmount", "tank/a"]).fails(1);
    assert!(said.contains("does not answer"), "{said}");
    others_go_on(&rig, 7);
    rig.soon(SOON, "zpool", &["export", "tank"]).fails(1);
    timed("export -f", || {
        rig.soon(SOON, "zpool", &["export", "-f", "tank"]).ok()
    });
    killed_and_replaced(&mut rig);
    drop(stalled);
    drop(stuck);
    rig.stop();
}

fn quiet(mut c: Command) -> Command {
    c.stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    c
}

#[test]
fn a_stalled_file_behind_a_stream_stops_its_own_command_alone() {
    let Some((mut rig, mut stuck, stalled)) = begin("stalled-file") else {
        return;
    };
    rig.zfs(&["create", "tank/a"]);
    fs::write(rig.mnt().join("tank/a/f"), vec![7; 4 << 20]).unwrap();
    rig.zfs(&["create", "-V", "8M", "tank/v"]);
    rig.zfs(&["snapshot", "tank/a@s"]);
    let file = stalled.path().join("file").display().to_string();
    let whole = rig.path().join("whole").display().to_string();
    rig.sh(&format!("zfs send tank/a@s >{whole}"));
    stalled.fill(&fs::read(&whole).unwrap());
    let lines = [
        (Call::Write, format!("zfs send tank/a@s >{file}")),
        (Call::Flush, format!("zfs send tank/a@s >{file}")),
        (Call::Read, format!("zfs receive tank/b <{file}")),
        (Call::Write, format!("zfs read tank/v {file}")),
    ];
    for (n, (call, line)) in lines.into_iter().enumerate() {
        stalled.stall(&[call]);
        let c = rig.command("sh", &["-c", &line]);
        stuck.0.push(quiet(c).spawn().unwrap());
        until(&line, || stalled.is_waited_for());
        others_go_on(&rig, n);
        timed(&format!("export -f during {line}"), || {
            rig.soon(SOON, "zpool", &["export", "-f", "tank"]).ok()
        });
        let disks = rig.disks().display().to_string();
        rig.soon(SOON, "zpool", &["import", "-d", &disks, "tank"])
            .ok();
        if n == 0 {
            killed_and_replaced(&mut rig);
        }
        stalled.go_on();
        until("nobody waits", || !stalled.is_waited_for());
    }
    drop(stalled);
    drop(stuck);
    rig.stop();
}

/// Sends bytes with descriptors; the kernel may refuse to.
fn send_with(socket: &UnixStream, bytes: &[u8], files: &[File]) -> bool {
    let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    let iov = [IoSlice::new(bytes)];
    rustix::net::sendmsg(socket, &iov, &mut control, SendFlags::NOSIGNAL).is_ok()
}

#[test]
fn descriptors_that_clients_send_never_come_into_the_daemon() {
    let Some((mut rig, stuck, stalled)) = begin("stalled-fds") else {
        return;
    };
    let before = rig.open_files();
    let calls = [
        r#"{"method":"org.zfsfuse.control1.Ping","parameters":{},"more":true}"#,
        r#"{"method":"org.zfsfuse.control1.Send","parameters":{"target":"tank@none"},"more":true}"#,
        r#"{"method":"org.zfsfuse.control1.Receive","parameters":{"target":"tank/x"},"more":true}"#,
        "garbage",
    ];
    let mut sockets = Vec::new();
    let mut files: Vec<File> = Vec::new();
    for _ in 0..8 {
        files.push(File::open(stalled.path().join("file")).unwrap());
    }
    stalled.stall(&CALLS);
    for call in calls {
        let mut socket = UnixStream::connect(rig.socket()).unwrap();
        let frame = [call.as_bytes(), b"\0"].concat();
        let taken = send_with(&socket, &frame, &files);
        println!(
            "{call}: the kernel {}",
            if taken { "let it through" } else { "refused" }
        );
        // In the middle of a frame.
        let _ = socket.write_all(b"{\"method\"");
        send_with(&socket, b":", &files);
        sockets.push(socket);
    }
    others_go_on(&rig, 0);
    drop(sockets);
    until("connections end", || rig.open_files() <= before + 12);
    killed_and_replaced(&mut rig);
    stalled.go_on();
    drop(files);
    drop(stalled);
    drop(stuck);
    rig.stop();
}
