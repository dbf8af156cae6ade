//! Errors of busy pools, file systems and devices name the processes that keep them busy.

use rustix::process::Signal;
use std::io::{Read, Write};
use std::process::{Child, Stdio};
use std::time::Duration;
use system_tests::{signal, until, wait, Rig};

/// A process that is killed with the value.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        signal(self.0.id(), Signal::KILL);
        let ended = wait(&mut self.0, Duration::from_secs(60)).is_some();
        assert!(ended || std::thread::panicking(), "cannot be killed");
    }
}

/// Runs a script that ends with `ready` and then stays.
fn holder(rig: &Rig, script: &str) -> Holder {
    let ready = rig.path().join("home/ready");
    let line = format!("{script}; : >{}; exec sleep 3600", ready.display());
    let mut command = rig.command("sh", &["-ec", &line]);
    let child = Holder(command.stdin(Stdio::null()).spawn().unwrap());
    until("the holder is ready", || ready.exists());
    std::fs::remove_file(ready).unwrap();
    child
}

#[test]
fn busy_names_processes_and_mounts_below() {
    let Some(mut rig) = Rig::as_root("busy") else {
        return;
    };
    let disk = rig.image("disk", 128 << 20);
    let at = rig.mnt().join("tank").to_str().unwrap().to_string();
    rig.start();
    rig.zpool(&["create", "-m", &at, "tank", &disk]);
    rig.zfs(&["create", "tank/a"]);
    rig.sh(&format!("echo x >{at}/a/f"));
    let reader = holder(&rig, &format!("exec 3<{at}/a/f"));
    let open = format!(
        "\n  in use by {} (sleep): {at}/a/f: open file\n",
        reader.0.id()
    );
    let cases: [(&[&str], String); 5] = [
        (
            &["zpool", "export", "tank"],
            format!("cannot unmount '{at}/a': pool or dataset is busy"),
        ),
        (
            &["zpool", "destroy", "tank"],
            format!("cannot unmount '{at}/a': pool or dataset is busy"),
        ),
        (
            &["zfs", "unmount", "tank/a"],
            format!("cannot unmount '{at}/a': pool or dataset is busy"),
        ),
        (
            &["zfs", "rename", "tank/a", "tank/b"],
            format!("cannot unmount '{at}/a': pool or dataset is busy"),
        ),
        (
            &["zfs", "destroy", "tank/a"],
            "cannot destroy 'tank/a': dataset is busy".to_string(),
        ),
    ];
    for (args, first) in &cases {
        let said = rig.try_run(args[0], &args[1..]).fails(1);
        assert_eq!(said.lines().next(), Some(first.as_str()), "{said}");
        assert!(said.contains(&open), "{args:?}: {said}");
    }
    drop(reader);
    let inside = holder(&rig, &format!("cd {at}/a"));
    let said = rig.try_run("zfs", &["unmount", "tank/a"]).fails(1);
    let line = format!("{} (sleep): {at}/a: working directory", inside.0.id());
    assert!(said.contains(&line), "{said}");
    drop(inside);
    rig.sh(&format!("mkdir {at}/a/t; mount -t tmpfs none {at}/a/t"));
    let said = rig.try_run("zfs", &["unmount", "tank/a"]).fails(1);
    assert!(said.contains(&format!("{at}/a/t: mounted below")), "{said}");
    rig.sh(&format!("umount {at}/a/t"));
    rig.zpool(&["export", "tank"]);
    rig.stop();
}

/// A pool whose streams are under way names who sends and who receives them.
#[test]
fn busy_names_who_sends_and_who_receives() {
    let Some(mut rig) = Rig::as_root("busy-streams") else {
        return;
    };
    let disk = rig.image("disk", 256 << 20);
    let at = rig.mnt().join("tank").to_str().unwrap().to_string();
    rig.start();
    rig.zpool(&["create", "-m", &at, "tank", &disk]);
    rig.zfs(&["create", "tank/a"]);
    rig.sh(&format!("head -c 30000000 /dev/urandom >{at}/a/f"));
    rig.zfs(&["snapshot", "tank/a@1"]);
    let stream = rig.path().join("stream");
    rig.sh(&format!("zfs send tank/a@1 >{}", stream.display()));
    let named = |pid: u32, what: &str| {
        let line = format!("in use by {pid} (zfs): {what}");
        let said = rig.try_run("zpool", &["export", "tank"]).fails(1);
        assert!(
            said.starts_with("cannot export 'tank': pool is busy"),
            "{said}"
        );
        assert!(said.lines().any(|l| l.trim() == line), "{said}");
    };
    // Nobody takes more than a pipe holds.
    let mut send = rig.command("zfs", &["send", "tank/a@1"]);
    let mut sender = Holder(send.stdout(Stdio::piped()).spawn().unwrap());
    let mut begun = [0; 100];
    let output = sender.0.stdout.as_mut().unwrap();
    output.read_exact(&mut begun).unwrap();
    named(sender.0.id(), "tank/a@1: stream being sent");
    drop(sender);
    // Half of a stream, and nothing more.
    let whole = std::fs::read(&stream).unwrap();
    let mut receive = rig.command("zfs", &["receive", "tank/b"]);
    let mut receiver = Holder(receive.stdin(Stdio::piped()).spawn().unwrap());
    let mut input = receiver.0.stdin.take().unwrap();
    input.write_all(&whole[..whole.len() / 2]).unwrap();
    until("the stream is being received", || {
        rig.zpool(&["sync", "tank"]);
        rig.try_run("zfs", &["list", "tank/b"]).status.success()
    });
    named(receiver.0.id(), "tank/b: stream being received");
    drop(receiver);
    drop(input);
    until("the pool is free", || {
        rig.try_run("zpool", &["export", "tank"]).status.success()
    });
    rig.stop();
}

/// Mounts copied into a mount namespace of its own, as containers have them, are in nobody's way unless something is in use there.
#[test]
fn copies_of_mounts_in_other_namespaces_keep_nothing_busy() {
    let Some(mut rig) = Rig::as_root("busy-copies") else {
        return;
    };
    let disk = rig.image("disk", 256 << 20);
    let at = rig.mnt().join("tank").to_str().unwrap().to_string();
    rig.start();
    rig.zpool(&["create", "-m", &at, "tank", &disk]);
    for n in 0..40 {
        rig.zfs(&["create", &format!("tank/{n:02}")]);
    }
    let ready = rig.path().join("home/ready");
    let copies = |inside: &str| {
        let script = format!("{inside}; : >{}; exec sleep 3600", ready.display());
        let args = ["-m", "--propagation", "private", "sh", "-ec", &script];
        let mut command = rig.command("unshare", &args);
        let child = Holder(command.stdin(Stdio::null()).spawn().unwrap());
        until("the copies are there", || ready.exists());
        std::fs::remove_file(&ready).unwrap();
        child
    };
    let private = copies("true");
    rig.sh(&format!("echo kept >{at}/00/f"));
    // What is unmounted goes on there, and is no failure here.
    rig.zfs(&["unmount", "tank/01"]);
    let mounts = std::fs::read_to_string(format!("/proc/{}/mounts", private.0.id())).unwrap();
    assert!(mounts.contains(&format!("{at}/01 ")));
    let begin = std::time::Instant::now();
    rig.zpool(&["export", "tank"]);
    println!("export of 41 file systems: {:?}", begin.elapsed());
    drop(private);
    let disks = rig.disks().display().to_string();
    rig.zpool(&["import", "-d", &disks, "tank"]);
    assert_eq!(rig.sh(&format!("cat {at}/00/f")), "kept\n");
    // An open file there is in use, and its process is named.
    let user = copies(&format!("exec 3<{at}/00/f"));
    let said = rig.try_run("zpool", &["export", "tank"]).fails(1);
    let line = format!("in use by {} (sleep)", user.0.id());
    assert!(said.contains(&line), "{said}");
    drop(user);
    rig.zpool(&["export", "tank"]);
    rig.stop();
}
