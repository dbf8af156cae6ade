//! Changes that take for ever, and the processes that wait for them.

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};

use super::common::{can_mount, config, mount_point};
use super::{eventually, Bad};
use fuse::*;
use std::fs;

/// Directories `d0`, `d1` … with a file `there` each. Whoever changes anything waits.
#[derive(Default)]
struct StalledChanges {
    found: Mutex<bool>,
    released: Condvar,
    waiting: AtomicUsize,
    /// Entries that were made, and those the kernel has let go of or never got.
    made: AtomicUsize,
    forgotten: AtomicUsize,
    closed: AtomicUsize,
    unknown: Mutex<Vec<String>>,
}

impl StalledChanges {
    const DIRS: u64 = 100;
    const FILES: u64 = 200;

    fn wait(&self) {
        self.waiting.fetch_add(1, SeqCst);
        let found = self.found.lock().unwrap();
        drop(self.released.wait_while(found, |f| !*f).unwrap());
        self.waiting.fetch_sub(1, SeqCst);
    }

    fn entry(node: u64) -> Entry {
        let is_dir = node < Self::FILES;
        let mode = if is_dir { 0o40755 } else { 0o100644 };
        Entry {
            node,
            attr: Attr {
                ino: node,
                mode,
                nlink: 1,
                blksize: 4096,
                ..Attr::default()
            },
            entry_ttl: FOREVER,
            attr_ttl: FOREVER,
            ..Entry::default()
        }
    }

    /// Waits, and makes something.
    fn make(&self) -> Result<Entry> {
        self.wait();
        let n = self.made.fetch_add(1, SeqCst) as u64;
        Ok(Self::entry(1000 + n))
    }
}

impl Filesystem for StalledChanges {
    fn getattr(&self, r: &Request, node: u64, fh: Option<u64>) -> Result<AttrReply> {
        match node {
            ROOT => Bad.getattr(r, node, fh),
            _ => Ok(AttrReply {
                attr: Self::entry(node).attr,
                ttl: FOREVER,
            }),
        }
    }

    fn lookup(&self, _: &Request, parent: u64, name: &[u8]) -> Result<Entry> {
        let name = std::str::from_utf8(name).unwrap();
        match (parent, name) {
            (ROOT, name) => Ok(Self::entry(Self::DIRS + name[1..].parse::<u64>().unwrap())),
            (_, "there") => Ok(Self::entry(parent - Self::DIRS + Self::FILES)),
            _ => Ok(Entry::negative(FOREVER)),
        }
    }

    fn forget(&self, node: u64, nlookup: u64) {
        if node >= 1000 {
            self.forgotten.fetch_add(nlookup as usize, SeqCst);
        }
    }

    fn open(&self, _: &Request, _: u64, _: OpenArgs) -> Result<Opened> {
        Ok(Opened {
            fh: 1,
            flags: abi::fopen::DIRECT_IO,
        })
    }

    fn release(&self, _: &Request, node: u64, _: u64, _: i32) {
        if node >= 1000 {
            self.closed.fetch_add(1, SeqCst);
        }
    }

    fn mkdir(&self, _: &Request, _: u64, _: &[u8], _: u32) -> Result<Entry> {
        self.make()
    }

    fn symlink(&self, _: &Request, _: u64, _: &[u8], _: &[u8]) -> Result<Entry> {
        self.make()
    }

    fn link(&self, _: &Request, _: u64, _: u64, _: &[u8]) -> Result<Entry> {
        self.make()
    }

    fn create(
        &self,
        _: &Request,
        _: u64,
        _: &[u8],
        _: u32,
        _: OpenArgs,
    ) -> Result<(Entry, Opened)> {
        Ok((self.make()?, Opened { fh: 1, flags: 0 }))
    }

    fn unlink(&self, _: &Request, _: u64, _: &[u8]) -> Result<()> {
        self.wait();
        Ok(())
    }

    fn rename(&self, _: &Request, _: u64, _: &[u8], _: u64, _: &[u8], _: u32) -> Result<()> {
        self.wait();
        Ok(())
    }

    fn setattr(&self, _: &Request, node: u64, _: &SetAttr) -> Result<AttrReply> {
        self.wait();
        Ok(AttrReply {
            attr: Self::entry(node).attr,
            ttl: FOREVER,
        })
    }

    fn write(
        &self,
        _: &Request,
        _: u64,
        _: u64,
        _: u64,
        data: base::Data<'_>,
        _: WriteArgs,
    ) -> Result<u32> {
        self.wait();
        assert!(data.bytes().iter().all(|b| *b == 0), "other data");
        Ok(data.len() as u32)
    }

    fn outcome_unknown(&self, changed: Changed<'_>) {
        let text = match changed {
            Changed::Name(dir, name) => {
                format!("{} {}", dir - Self::DIRS, String::from_utf8_lossy(name))
            }
            Changed::Attributes(node) => format!("{} attributes", node - Self::FILES),
            Changed::Content(node) => format!("{} content", node - Self::FILES),
            Changed::Size(node) => format!("{} size", node - Self::FILES),
        };
        self.unknown.lock().unwrap().push(text);
    }
}

/// The kernel does not get to know how the changes of killed processes ended: the file system is told when they have.
#[test]
fn whoever_waits_for_a_change_can_be_killed() {
    if !can_mount() {
        return;
    }
    let dir = mount_point("changes");
    let (fd, m) = mount(&dir, &MountOptions::new("testpool/changes")).unwrap();
    let fs = Arc::new(StalledChanges::default());
    let s = Session::new(fs.clone(), fd, config());
    let j = std::thread::spawn(move || s.run());
    let commands: [(&str, &[&str]); 10] = [
        ("mkdir d", &["d"]),
        ("touch new", &["new"]),
        ("ln -s x link", &["link"]),
        ("ln there hard", &["hard", "attributes"]),
        ("rm -f there", &["there"]),
        ("mv there x", &["there", "x"]),
        ("chmod 600 there", &["attributes"]),
        ("truncate -s 5 there", &["size"]),
        (
            "dd if=/dev/zero of=there bs=512 count=1 conv=notrunc",
            &["content"],
        ),
        (
            "dd if=/dev/zero of=there bs=1M count=1 conv=notrunc",
            &["content"],
        ),
    ];
    let mut children: Vec<Child> = (0..commands.len())
        .map(|n| {
            let line = format!("cd {}/d{n} && exec {}", dir.display(), commands[n].0);
            let mut c = Command::new("sh");
            c.args(["-c", &line]).stdout(Stdio::null());
            c.stderr(Stdio::null()).spawn().unwrap()
        })
        .collect();
    eventually("all wait", || fs.waiting.load(SeqCst) == commands.len());
    for c in &mut children {
        c.kill().unwrap();
    }
    for (c, (line, _)) in children.iter_mut().zip(commands) {
        eventually(line, || c.try_wait().unwrap().is_some());
    }
    assert_eq!(fs.waiting.load(SeqCst), commands.len());
    assert_eq!(*fs.unknown.lock().unwrap(), [""; 0]);
    // Others are served.
    fs::metadata(dir.join("d77")).unwrap();
    *fs.found.lock().unwrap() = true;
    fs.released.notify_all();
    let mut want: Vec<String> = (commands.iter().enumerate())
        .flat_map(|(n, (_, what))| what.iter().map(move |w| format!("{n} {w}")))
        .collect();
    want.sort();
    let told = || {
        let mut told = fs.unknown.lock().unwrap().clone();
        told.sort();
        told
    };
    eventually("all is told", || told().len() >= want.len());
    assert_eq!(told(), want);
    assert_eq!(fs.made.load(SeqCst), 4);
    assert_eq!(fs.forgotten.load(SeqCst), 4, "late entries are not undone");
    assert_eq!(fs.closed.load(SeqCst), 1);
    m.unmount(Unmount::Normal).unwrap();
    j.join().unwrap().unwrap();
    fs::remove_dir(&dir).unwrap();
}
