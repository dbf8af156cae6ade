//! Pools on network block devices, served by programs that others wrote: nbdkit and QEMU's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use system_tests::{certificates, until, Rig};

const SERVER: &str = "/usr/bin/nbdkit";

/// A server of an image at a socket beside it; killed when dropped.
struct Server {
    image: String,
    socket: PathBuf,
    options: Vec<String>,
    child: Option<Child>,
}

impl Server {
    fn new(image: &str, options: &[&str]) -> Server {
        let mut server = Server {
            image: image.into(),
            socket: PathBuf::from(format!("{image}.sock")),
            options: options.iter().map(|o| o.to_string()).collect(),
            child: None,
        };
        server.start();
        server
    }

    fn url(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }

    fn start(&mut self) {
        let _ = fs::remove_file(&self.socket);
        let child = Command::new(SERVER)
            .args(["--foreground", "--exit-with-parent", "-U"])
            .arg(&self.socket)
            .args(&self.options)
            .args(["file", &self.image])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.child = Some(child);
        until("the server has made its socket", || self.socket.exists());
    }

    /// As `kill -9` does.
    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let _ = fs::remove_file(&self.socket);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A rig whose daemon waits so many seconds for a server.
fn rig(name: &str, patience: &str) -> Option<Rig> {
    if !Path::new(SERVER).exists() {
        eprintln!("skipped: {name} needs {SERVER} (sh tools/setup.sh tests)");
        return None;
    }
    let mut rig = Rig::new(name)?;
    rig.variable("ZFS_FUSE_NBD_PATIENCE", patience);
    Some(rig)
}

/// Files under load: each is written, synced and compared.
fn write_and_compare(mnt: &Path, n: usize, seed: u8) {
    let data = vec![seed.wrapping_add(n as u8); 300_000 + n];
    let at = mnt.join(format!("f{n}"));
    fs::write(&at, &data).unwrap();
    fs::File::open(&at).unwrap().sync_all().unwrap();
    assert!(fs::read(&at).unwrap() == data, "{}", at.display());
}

/// Servers that are killed and come back in the middle of load: nobody notices, and nothing is lost.
#[test]
fn servers_that_come_back_are_not_noticed() {
    let Some(mut rig) = rig("nbd-back", "60") else {
        return;
    };
    let images = rig.images(2, 256 << 20);
    let mut servers: Vec<Server> = images.iter().map(|i| Server::new(i, &[])).collect();
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let mnt = rig.mnt().join("tank");
    rig.start();
    let at = mnt.to_str().unwrap().to_string();
    rig.zpool(&["create", "-m", &at, "tank", "mirror", &urls[0], &urls[1]]);
    let status = rig.zpool(&["status", "tank"]);
    assert!(urls.iter().all(|u| status.contains(u.as_str())), "{status}");
    let enough = AtomicBool::new(false);
    std::thread::scope(|s| {
        let (mnt, enough) = (&mnt, &enough);
        let load = s.spawn(move || {
            // Each file is written at least once, and then again.
            let mut turn = 0;
            while turn < 80 || !enough.load(Ordering::SeqCst) {
                write_and_compare(mnt, turn % 80, 1);
                turn += 1;
            }
        });
        for turn in 0..6 {
            let server = &mut servers[turn % 2];
            server.kill();
            std::thread::sleep(Duration::from_millis(50));
            server.start();
            std::thread::sleep(Duration::from_millis(250));
        }
        enough.store(true, Ordering::SeqCst);
        load.join().unwrap();
    });
    rig.zpool(&["scrub", "-w", "tank"]);
    let status = rig.zpool(&["status", "tank"]);
    assert!(
        status.contains("errors: No known data errors") && status.contains("repaired 0B"),
        "{status}"
    );
    assert!(
        status.matches(" ONLINE       0     0     0").count() == 4,
        "{status}"
    );
    rig.zpool(&["export", "tank"]);
    // The images are those of any pool.
    rig.zdb_check("tank");
    // Found by their addresses, which the labels do not have to know.
    rig.zpool(&["import", "-d", &urls[0], "-d", &urls[1], "tank"]);
    for n in 0..80 {
        let data = vec![1u8.wrapping_add(n as u8); 300_000 + n];
        assert!(fs::read(mnt.join(format!("f{n}"))).unwrap() == data, "{n}");
    }
    rig.zpool(&["destroy", "tank"]);
}

/// A server that stays away is a disk that fails: a mirror is degraded, and takes it back.
#[test]
fn a_mirror_goes_on_without_a_server() {
    let Some(mut rig) = rig("nbd-mirror", "1") else {
        return;
    };
    let images = rig.images(2, 256 << 20);
    let mut server = Server::new(&images[0], &[]);
    let url = server.url();
    let mnt = rig.mnt().join("tank");
    rig.start();
    let at = mnt.to_str().unwrap().to_string();
    rig.zpool(&[
        "create", "-f", "-m", &at, "tank", "mirror", &url, &images[1],
    ]);
    write_and_compare(&mnt, 0, 3);
    server.kill();
    (1..10).for_each(|n| write_and_compare(&mnt, n, 3));
    rig.zpool(&["sync", "tank"]);
    until("the pool is degraded", || {
        rig.zpool(&["list", "-Ho", "health", "tank"]).trim() == "DEGRADED"
    });
    (10..20).for_each(|n| write_and_compare(&mnt, n, 3));
    server.start();
    rig.zpool(&["clear", "tank"]);
    until("the side is back", || {
        rig.zpool(&["list", "-Ho", "health", "tank"]).trim() == "ONLINE"
    });
    rig.zpool(&["wait", "-t", "resilver", "tank"]);
    // Alone it has everything.
    rig.zpool(&["offline", "tank", &images[1]]);
    rig.zpool(&["scrub", "-w", "tank"]);
    let status = rig.zpool(&["status", "tank"]);
    assert!(status.contains("errors: No known data errors"), "{status}");
    (0..20).for_each(|n| {
        let data = vec![3u8.wrapping_add(n as u8); 300_000 + n];
        assert!(fs::read(mnt.join(format!("f{n}"))).unwrap() == data, "{n}");
    });
    rig.zpool(&["online", "tank", &images[1]]);
    rig.zpool(&["wait", "-t", "resilver", "tank"]);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

/// A pool that has nothing else is suspended, and goes on when the server is there again.
#[test]
fn a_pool_waits_for_its_only_server() {
    let Some(mut rig) = rig("nbd-suspended", "1") else {
        return;
    };
    let image = rig.image("0.img", 256 << 20);
    let mut server = Server::new(&image, &[]);
    let url = server.url();
    let mnt = rig.mnt().join("tank");
    rig.start();
    let at = mnt.to_str().unwrap().to_string();
    rig.zpool(&["create", "-m", &at, "tank", &url]);
    write_and_compare(&mnt, 0, 9);
    server.kill();
    std::thread::scope(|s| {
        let mnt = &mnt;
        let writer = s.spawn(move || write_and_compare(mnt, 1, 9));
        until("the pool is suspended", || {
            rig.zpool(&["list", "-Ho", "health", "tank"]).trim() == "SUSPENDED"
        });
        assert!(!writer.is_finished());
        server.start();
        until("the pool goes on", || {
            let _ = rig.try_run("zpool", &["clear", "tank"]);
            rig.zpool(&["list", "-Ho", "health", "tank"]).trim() == "ONLINE"
        });
        writer.join().unwrap();
    });
    write_and_compare(&mnt, 2, 9);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

/// Trims reach the server; devices are added, attached, replaced and cleared by their addresses.
#[test]
fn addresses_are_devices_for_all_commands() {
    let Some(mut rig) = rig("nbd-commands", "20") else {
        return;
    };
    let images = rig.images(4, 256 << 20);
    let servers: Vec<Server> = images.iter().map(|i| Server::new(i, &[])).collect();
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let mnt = rig.mnt().join("tank");
    rig.start();
    let at = mnt.to_str().unwrap().to_string();
    let layout = rig.zpool(&["create", "-n", "tank", &urls[0]]);
    assert!(layout.contains(&urls[0]), "{layout}");
    rig.zpool(&["create", "-m", &at, "tank", &urls[0]]);
    rig.zpool(&["add", "tank", "log", &urls[1]]);
    rig.zpool(&["attach", "-w", "tank", &urls[0], &urls[2]]);
    (0..10).for_each(|n| write_and_compare(&mnt, n, 5));
    rig.zpool(&["remove", "tank", &urls[1]]);
    rig.zpool(&["replace", "-w", "tank", &urls[0], &urls[3]]);
    (0..10).for_each(|n| fs::remove_file(mnt.join(format!("f{n}"))).unwrap());
    rig.zpool(&["sync", "tank"]);
    let blocks =
        |image: &str| std::os::unix::fs::MetadataExt::blocks(&fs::metadata(image).unwrap());
    let before = blocks(&images[3]);
    rig.zpool(&["trim", "-w", "tank"]);
    assert!(
        blocks(&images[3]) < before,
        "{before} blocks before and after"
    );
    rig.zpool(&["offline", "tank", &urls[2]]);
    rig.zpool(&["online", "tank", &urls[2]]);
    let said = rig
        .try_run("zpool", &["labelclear", "-f", &urls[3]])
        .fails(1);
    assert!(said.contains("is a member (ACTIVE)"), "{said}");
    rig.zpool(&["destroy", "tank"]);
    rig.zpool(&["labelclear", "-f", &urls[3]]);
}

/// What cannot be used is refused in words, and nothing changes.
#[test]
fn refusals() {
    let Some(mut rig) = rig("nbd-refusals", "1") else {
        return;
    };
    let image = rig.image("0.img", 256 << 20);
    let small = rig.image("1.img", 16 << 20);
    let server = Server::new(&image, &[]);
    let tiny = Server::new(&small, &[]);
    let frozen = rig.image("2.img", 256 << 20);
    let frozen = Server::new(&frozen, &["-r"]);
    rig.start();
    let url = server.url();
    let gone = format!("nbd+unix:///x?socket={}/none", rig.path().display());
    for (devices, words) in [
        (vec!["nbd://"], "comes a host"),
        (
            vec!["nbds://localhost/x?tls-type=psk"],
            "tls-type is not supported",
        ),
        (vec!["nbd+unix:///x"], "?socket=PATH is missing"),
        (vec!["nbd://127.0.0.1:1/x"], "refused"),
        (vec![gone.as_str()], "No such file"),
        (vec![tiny.url().as_str()], "minimum size"),
        (vec![frozen.url().as_str()], "reading only"),
        (vec!["mirror", &url, &url], "same device"),
    ] {
        let args: Vec<&str> = ["create", "tank"].into_iter().chain(devices).collect();
        let said = rig.try_run("zpool", &args).fails(1);
        assert!(said.contains(words), "{args:?}: {said}");
    }
    assert_eq!(rig.zpool(&["list", "-H"]), "");
    rig.zpool(&["create", "-O", "mountpoint=none", "tank", &url]);
    let said = rig.try_run("zpool", &["create", "other", &url]).fails(1);
    assert!(
        said.contains("in use") || said.contains("is part of"),
        "{said}"
    );
    rig.zpool(&["export", "tank"]);
    let said = rig.try_run("zpool", &["import", "-d", &gone]).fails(1);
    assert!(said.contains("none"), "{said}");
    rig.zpool(&["import", "-d", &url, "tank"]);
    rig.zpool(&["destroy", "tank"]);
}

/// A server that asks for TLS and for a certificate: the pool is as any other, also after the server was away.
#[test]
fn a_pool_over_tls() {
    let Some(mut rig) = rig("nbd-pool-tls", "60") else {
        return;
    };
    let at = rig.path().join("certificates");
    certificates::make(&at);
    let at = at.display();
    let images = rig.images(1, 128 << 20);
    let folder = format!("--tls-certificates={at}");
    let options = ["--tls=require", "--tls-verify-peer", &folder];
    let mut server = Server::new(&images[0], &options);
    let socket = server.socket.display().to_string();
    let plain = server.url();
    let secure = format!("nbds+unix:///?socket={socket}&tls-certificates={at}");
    let mnt = rig.mnt().join("tank");
    rig.start();
    let m = mnt.to_str().unwrap().to_string();
    let create = |url: &str| rig.try_run("zpool", &["create", "-m", &m, "tank", url]);
    let refused = create(&plain);
    assert!(
        !refused.status.success() && refused.to_string().contains("nbds"),
        "{refused}"
    );
    let other = create(&format!("{secure}&tls-hostname=elsewhere"));
    assert!(
        !other.status.success() && other.to_string().contains("TLS"),
        "{other}"
    );
    let made = create(&secure);
    assert!(made.status.success(), "{made}");
    for n in 0..10 {
        write_and_compare(&mnt, n, 3);
    }
    server.kill();
    server.start();
    for n in 10..20 {
        write_and_compare(&mnt, n, 3);
    }
    rig.zpool(&["export", "tank"]);
    rig.zpool(&["import", "-d", &secure, "tank"]);
    rig.zpool(&["scrub", "-w", "tank"]);
    let status = rig.zpool(&["status", "tank"]);
    assert!(status.contains("errors: No known data errors"), "{status}");
    rig.zpool(&["export", "tank"]);
    drop(server);
    rig.zdb_check("tank");
}
