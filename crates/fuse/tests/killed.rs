//! A daemon that is killed while one of its own threads waits for an answer of its own mount.

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{can_mount, config, mount_point};
use fuse::*;

/// A directory `inner` and a file `file`; whoever changes anything waits for ever.
struct Stuck;

const INNER: u64 = 2;
const FILE: u64 = 3;

fn attr(node: u64) -> AttrReply {
    let mode = if node == FILE { 0o100644 } else { 0o40755 };
    let attr = Attr {
        ino: node,
        mode,
        nlink: 1,
        blksize: 4096,
        ..Attr::default()
    };
    AttrReply { attr, ttl: FOREVER }
}

fn never() -> ! {
    println!("asked");
    loop {
        std::thread::park();
    }
}

impl Filesystem for Stuck {
    fn lookup(&self, _: &Request, _: u64, name: &[u8]) -> Result<Entry> {
        let node = match name {
            b"inner" => INNER,
            b"file" => FILE,
            _ => return Err(Errno::ENOENT),
        };
        let AttrReply { attr, ttl } = attr(node);
        Ok(Entry {
            node,
            generation: 1,
            attr,
            entry_ttl: ttl,
            attr_ttl: ttl,
        })
    }

    fn getattr(&self, _: &Request, node: u64, _: Option<u64>) -> Result<AttrReply> {
        Ok(attr(node))
    }

    fn open(&self, _: &Request, _: u64, _: OpenArgs) -> Result<Opened> {
        let flags = abi::fopen::KEEP_CACHE;
        Ok(Opened { fh: 1, flags })
    }

    fn opendir(&self, _: &Request, _: u64, _: i32) -> Result<Opened> {
        Ok(Opened { fh: 0, flags: 0 })
    }

    fn mkdir(&self, _: &Request, _: u64, _: &[u8], _: u32) -> Result<Entry> {
        never()
    }

    fn rmdir(&self, _: &Request, _: u64, _: &[u8]) -> Result<()> {
        never()
    }

    fn write(
        &self,
        _: &Request,
        _: u64,
        _: u64,
        _: u64,
        _: base::Data<'_>,
        _: WriteArgs,
    ) -> Result<u32> {
        never()
    }
}

/// The daemon: mounts on `dir`, and has a thread of its own do something in the mount.
fn daemon(dir: &Path, work: &str) {
    let (fd, mount) = mount(dir, &MountOptions::new("stuck")).unwrap();
    let session = Session::new(Arc::new(Stuck), fd, config());
    let notifier = session.notifier();
    let serving = std::thread::spawn(move || session.run());
    match work {
        "rmdir" => remove_mount_point(&dir.join("inner")),
        "mkdir" => drop(MountPoint::find(&dir.join("inner/new"), None, true)),
        "write-out" => {
            println!("ready");
            let _ = std::io::stdin().read_line(&mut String::new());
            write_out(&mount, &notifier, &[(FILE, 1)], Pages::Keep, &|_| ());
        }
        _ => unreachable!(),
    }
    let _ = serving.join();
}

fn ended(child: &mut Child) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(30) {
        if child.try_wait().unwrap().is_some() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

/// Fails what waits for the connection of a mount, as an administrator would.
fn abort(dir: &Path) {
    let all = mounted("zfs").unwrap();
    let info = all.iter().find(|m| m.path == dir).unwrap();
    let control = mount_point("control");
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("none", &control, "fusectl", flags, c"").unwrap();
    std::fs::write(control.join(format!("{}/abort", info.dev.1)), "1").unwrap();
    rustix::mount::unmount(&control, rustix::mount::UnmountFlags::DETACH).unwrap();
    std::fs::remove_dir(&control).unwrap();
}

#[test]
fn a_daemon_killed_while_it_waits_for_its_own_mount_ends_and_the_mount_with_it() {
    if let Some(work) = std::env::var_os("FUSE_TEST_WORK") {
        let dir = std::env::var_os("FUSE_TEST_DIR").unwrap();
        return daemon(Path::new(&dir), work.to_str().unwrap());
    }
    if !can_mount() {
        return;
    }
    for work in ["rmdir", "mkdir", "write-out"] {
        let dir = mount_point("killed");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", std::thread::current().name().unwrap()])
            .arg("--nocapture")
            .env("FUSE_TEST_WORK", work)
            .env("FUSE_TEST_DIR", &dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let written = (work == "write-out").then(|| {
            assert!(lines.any(|l| l.unwrap().contains("ready")));
            let mut file = File::options().write(true).open(dir.join("file")).unwrap();
            file.write_all(&[7; 5000]).unwrap();
            file
        });
        drop(child.stdin.take());
        assert!(lines.any(|l| l.unwrap().contains("asked")), "{work}");
        child.kill().unwrap();
        let alone = ended(&mut child);
        if !alone {
            abort(&dir);
            assert!(ended(&mut child));
        }
        drop(written);
        rustix::mount::unmount(&dir, rustix::mount::UnmountFlags::DETACH).unwrap();
        std::fs::remove_dir(&dir).unwrap();
        assert!(alone, "{work}: the daemon did not end");
    }
}
