//! A file system that does not answer, behind every path and file that a client can name: it stops nobody but who named it.

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::Signal;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, IoSlice, Write};
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

#[test]
fn what_moves_to_a_stalled_place_makes_nobody_wait() {
    let Some((mut rig, mut stuck, stalled)) = begin("stalled-move") else {
        return;
    };
    let at = stalled.path().join("dir").display().to_string();
    rig.zfs(&["create", "-u", "tank/m"]);
    rig.zfs(&["set", "-u", &format!("mountpoint={at}"), "tank/m"]);
    rig.zfs(&["create", "tank/x"]);
    let own = rig.mnt().join("own").display().to_string();
    rig.zfs(&["create", "-o", &format!("mountpoint={own}"), "tank/m/z"]);
    let moves = [
        ["rename", "tank/x", "tank/m/x"],
        ["inherit", "mountpoint", "tank/m/z"],
    ];
    for (n, line) in moves.iter().enumerate() {
        stalled.stall(&[Call::Lookup]);
        stuck
            .0
            .push(quiet(rig.command("zfs", line)).spawn().unwrap());
        until("somebody waits", || stalled.is_waited_for());
        others_go_on(&rig, n);
        timed("the command itself", || {
            stuck.0.last_mut().unwrap().wait().unwrap()
        });
        stalled.go_on();
        until("nobody waits", || !stalled.is_waited_for());
    }
    // Both have happened.
    for name in ["x", "z"] {
        let get = ["get", "-H", "-o", "value", "mountpoint"];
        let place = rig.zfs(&[&get[..], &[&format!("tank/m/{name}")]].concat());
        assert_eq!(place.trim(), format!("{at}/{name}"));
    }
    rig.stop();
    drop((stalled, stuck));
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

/// Where the other process of the test below finds the file and the socket.
const SENDER_FILE: &str = "SYSTEM_TESTS_SENDER_FILE";
const SENDER_SOCKET: &str = "SYSTEM_TESTS_SENDER_SOCKET";

/// Says one line, and waits for one.
fn say_and_wait(line: &str) {
    println!("\n{line}");
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
#[ignore = "the other process of `descriptors_that_clients_send_never_come_into_the_daemon`"]
fn sender_of_descriptors() {
    let Some(file) = std::env::var_os(SENDER_FILE) else {
        return;
    };
    let socket = std::env::var_os(SENDER_SOCKET).expect("socket");
    let calls = [
        r#"{"method":"org.zfsfuse.control1.Ping","parameters":{},"more":true}"#,
        r#"{"method":"org.zfsfuse.control1.Send","parameters":{"target":"tank@none"},"more":true}"#,
        r#"{"method":"org.zfsfuse.control1.Receive","parameters":{"target":"tank/x"},"more":true}"#,
        "garbage",
    ];
    let mut sockets = Vec::new();
    let mut files: Vec<File> = Vec::new();
    for _ in 0..8 {
        files.push(File::open(&file).unwrap());
    }
    say_and_wait("the files are open");
    for call in calls {
        let mut socket = UnixStream::connect(&socket).unwrap();
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
    say_and_wait("all is sent");
    drop(sockets);
    say_and_wait("the sockets are closed");
}

#[test]
fn descriptors_that_clients_send_never_come_into_the_daemon() {
    let Some((mut rig, mut stuck, stalled)) = begin("stalled-fds") else {
        return;
    };
    let before = rig.open_files();
    let mut sender = Command::new(std::env::current_exe().unwrap());
    sender
        .args(["--ignored", "--exact", "sender_of_descriptors"])
        .arg("--nocapture")
        .env(SENDER_FILE, stalled.path().join("file"))
        .env(SENDER_SOCKET, rig.socket())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    stuck.0.push(sender.spawn().unwrap());
    let sender = stuck.0.last_mut().unwrap();
    let mut go_on = sender.stdin.take().unwrap();
    let mut said = BufReader::new(sender.stdout.take().unwrap()).lines();
    let mut reaches = |line: &str| {
        for l in said.by_ref() {
            let l = l.unwrap();
            println!("{l}");
            if l == line {
                return;
            }
        }
        panic!("the sender has not got to: {line}");
    };
    reaches("the files are open");
    stalled.stall(&CALLS);
    go_on.write_all(b"\n").unwrap();
    reaches("all is sent");
    others_go_on(&rig, 0);
    go_on.write_all(b"\n").unwrap();
    reaches("the sockets are closed");
    until("connections end", || rig.open_files() <= before + 12);
    killed_and_replaced(&mut rig);
    drop(go_on);
    stalled.go_on();
    drop(stalled);
    drop(stuck);
    rig.stop();
}

/// Each call alone: behind the way to a mount point, behind the files of streams.
#[test]
fn a_single_call_that_stalls_stops_its_own_commands_alone() {
    let Some((mut rig, mut stuck, stalled)) = begin("stalled-call") else {
        return;
    };
    rig.zfs(&["create", "tank/a"]);
    fs::write(rig.mnt().join("tank/a/f"), vec![7; 1 << 20]).unwrap();
    rig.zfs(&["create", "-V", "8M", "tank/v"]);
    rig.zfs(&["snapshot", "tank/a@s"]);
    rig.zfs(&["create", "-u", "tank/m"]);
    let at = stalled.path().join("dir").display().to_string();
    rig.zfs(&["set", "-u", &format!("mountpoint={at}"), "tank/m"]);
    let file = stalled.path().join("file").display().to_string();
    let whole = rig.path().join("whole").display().to_string();
    rig.sh(&format!("zfs send tank/a@s >{whole}"));
    stalled.fill(&fs::read(&whole).unwrap());
    // What is sure to wait for each call, if anything is; others may.
    let surely = [
        (Call::Lookup, "zfs mount tank/m".to_string()),
        (Call::Getattr, format!("zfs mount tank/a {at}")),
        (Call::Statx, String::new()),
        (Call::Open, format!("zfs send tank/a@s >{file}")),
        (Call::Opendir, String::new()),
        (Call::Poll, String::new()),
        (Call::Read, format!("zfs receive tank/b <{file}")),
        (Call::Write, format!("zfs read tank/v {file}")),
        (Call::Flush, format!("zfs send tank/a@s >{file}")),
    ];
    assert_eq!(surely.len(), CALLS.len());
    let all = [
        "zfs mount tank/m".to_string(),
        format!("zfs mount tank/m {at}"),
        format!("zfs send tank/a@s >{file}"),
        format!("zfs receive tank/b <{file}"),
        format!("zfs read tank/v {file}"),
        format!("zfs set mountpoint={at}/below tank/m"),
    ];
    for (n, (call, line)) in surely.into_iter().enumerate() {
        println!("{call:?}");
        stalled.stall(&[call]);
        let spawn = |line: &str| {
            let c = rig.command("sh", &["-c", line]);
            quiet(c).spawn().unwrap()
        };
        let mut here = Stuck::default();
        // No command has to ask a file when it was made, or whether it is ready, or for what is in a folder.
        if !line.is_empty() {
            here.0.push(spawn(&line));
            until(&line, || stalled.is_waited_for());
        }
        here.0.extend(all.iter().map(|line| spawn(line)));
        others_go_on(&rig, n);
        timed("export -f", || {
            rig.soon(SOON, "zpool", &["export", "-f", "tank"]).ok()
        });
        let disks = rig.disks().display().to_string();
        let import = ["import", "-N", "-d", &disks, "tank"];
        rig.soon(SOON, "zpool", &import).ok();
        others_go_on(&rig, n);
        if matches!(call, Call::Getattr | Call::Open) {
            killed_and_replaced(&mut rig);
        }
        stalled.go_on();
        drop(here);
        until("nobody waits", || !stalled.is_waited_for());
        until("what the commands left is gone", || {
            rig.try_run("zfs", &["destroy", "-r", "tank/b"]);
            rig.try_run("zfs", &["unmount", "tank/m"]);
            let there = rig.try_run("zfs", &["list", "tank/b"]).status.success();
            let mounts = rig.try_run("zfs", &["mount"]);
            !there && !mounts.out.contains("tank/m ")
        });
        rig.zfs(&["set", "-u", &format!("mountpoint={at}"), "tank/m"]);
    }
    drop(stalled);
    stuck.0.clear();
    rig.stop();
}

/// What the daemon answers to one frame; the path in it is that of the stalled file system.
fn ask(rig: &Rig, method: &str, parameters: &str) -> String {
    let mut socket = UnixStream::connect(rig.socket()).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    let frame =
        format!("{{\"method\":\"org.zfsfuse.control1.{method}\",\"parameters\":{parameters}}}\0");
    socket.write_all(frame.as_bytes()).unwrap();
    let mut said = Vec::new();
    BufReader::new(socket).read_until(0, &mut said).unwrap();
    String::from_utf8_lossy(&said).into_owned()
}

#[test]
fn stalled_paths_of_devices_folders_and_cache_files_are_refused() {
    let Some((mut rig, stuck, stalled)) = begin("stalled-device") else {
        return;
    };
    let (at, file) = (stalled.path(), stalled.path().join("file"));
    let (at, file) = (at.display(), file.display());
    let vdev = format!("{{\"kind\":\"file\",\"path\":\"{file}\"}}");
    for call in [Call::Lookup, Call::Open, Call::Read, Call::Opendir] {
        println!("{call:?}");
        let folder = ("ImportScan", format!("{{\"places\":[\"{at}\"]}}"));
        let files = [
            ("LabelClear", format!("{{\"path\":\"{file}\"}}")),
            ("ImportScan", format!("{{\"cache_file\":\"{file}\"}}")),
            (
                "PoolImport",
                format!("{{\"pool\":\"x\",\"search\":{{\"places\":[\"{file}\"]}}}}"),
            ),
            (
                "PoolCreate",
                format!("{{\"name\":\"x\",\"vdevs\":[{vdev}]}}"),
            ),
            (
                "PoolAdd",
                format!("{{\"pool\":\"tank\",\"vdevs\":[{vdev}]}}"),
            ),
            (
                "PoolSet",
                format!("{{\"pool\":\"tank\",\"props\":[[\"cachefile\",\"{file}\"]]}}"),
            ),
            (
                "DeviceAttach",
                format!("{{\"pool\":\"tank\",\"device\":\"x\",\"new\":\"{file}\"}}"),
            ),
        ];
        let lists = matches!(call, Call::Lookup | Call::Opendir);
        let here = match call {
            Call::Opendir => vec![folder],
            // One waits out the limit, which others are refused by.
            _ => files.into_iter().collect(),
        };
        stalled.stall(&[call]);
        std::thread::scope(|s| {
            let rig = &rig;
            for (method, parameters) in &here {
                s.spawn(move || {
                    let said = ask(rig, method, parameters);
                    assert!(said.contains("does not answer"), "{method}: {said}");
                });
            }
            until("somebody waits", || stalled.is_waited_for());
            others_go_on(rig, usize::from(lists));
        });
        killed_and_replaced(&mut rig);
        stalled.go_on();
    }
    drop(stalled);
    drop(stuck);
    rig.stop();
}
