//! [`StalledFiles`]: a file system that stops answering, as a stopped FUSE server or a dead NFS server does.
//!
//! It has the root, an empty directory `dir` and a file `file`; the kernel caches nothing of them. The process that has it must
//! not touch it while it stalls: it would wait for itself. Nor may it have a file of it open then: a process that it starts closes
//! that file before it becomes another program, which sends FLUSH. Whoever looks at such a process in `/proc` waits, too.
//!
//! When it is dropped everybody who waits gets an error. After [`LONGEST`] they get one in any case: other programs of the machine
//! may be among them.

use base::sync::{CondvarExt, MutexExt};
use fuse::{
    Attr, AttrReply, Config, DirBuf, Entry, Errno, Filesystem, Mount, MountOptions, OpenArgs,
    Opened, ReadBuf, ReaddirPlus, Request, Session, StatxReply, Transport, Unmount, WriteArgs,
};
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use testkit::TempDir;

/// How long a call waits at most. Others that look at all file systems, as `df` does, wait as long.
pub const LONGEST: Duration = Duration::from_secs(180);

/// A system call, as its server sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Lookup,
    Getattr,
    Statx,
    Open,
    Opendir,
    Poll,
    Read,
    Write,
    Flush,
}

/// All of them.
pub const CALLS: [Call; 9] = [
    Call::Lookup,
    Call::Getattr,
    Call::Statx,
    Call::Open,
    Call::Opendir,
    Call::Poll,
    Call::Read,
    Call::Write,
    Call::Flush,
];

const DIR: u64 = 2;
const FILE: u64 = 3;
const NOW: Duration = Duration::ZERO;

#[derive(Default)]
struct State {
    stalled: Vec<Call>,
    /// Calls that wait.
    waiting: Vec<Call>,
    over: bool,
    content: Vec<u8>,
}

struct Served {
    owner: u32,
    state: Mutex<State>,
    changed: Condvar,
}

/// See the [module](self).
pub struct StalledFiles {
    served: Arc<Served>,
    mount: Mount,
    session: Option<JoinHandle<()>>,
    dir: TempDir,
}

impl StalledFiles {
    /// One that answers so far, whose files belong to a user; `None` after saying why if nothing can be mounted here.
    pub fn new(name: &str, owner: u32) -> Option<StalledFiles> {
        let dir = TempDir::new(&format!("st-{name}")).expect("temporary folder");
        let at = dir.path().join("at");
        fs::create_dir(&at).expect("folder");
        let mut options = MountOptions::new("stalled");
        options.subtype = "stalled".into();
        let (device, mount) = match fuse::mount(&at, &options) {
            Ok(mounted) => mounted,
            Err(e) => {
                eprintln!("skipped: {name} needs to mount: {e}");
                return None;
            }
        };
        let served = Arc::new(Served {
            owner,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let config = Config {
            threads: 64,
            transport: Transport::Device,
            writeback_cache: false,
            posix_acl: false,
            readdirplus: ReaddirPlus::Never,
            ..Config::default()
        };
        let session = Session::new(served.clone(), device, config);
        let session = std::thread::spawn(move || drop(session.run()));
        Some(StalledFiles {
            served,
            mount,
            session: Some(session),
            dir,
        })
    }

    /// Its root directory.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("at")
    }

    /// What `file` has.
    pub fn fill(&self, content: &[u8]) {
        self.served.state.acquire().content = content.to_vec();
    }

    /// From now on these calls are not answered.
    pub fn stall(&self, calls: &[Call]) {
        self.served.state.acquire().stalled = calls.to_vec();
    }

    /// Whether somebody waits.
    pub fn is_waited_for(&self) -> bool {
        !self.served.state.acquire().waiting.is_empty()
    }

    /// Answers again, also those that wait.
    pub fn go_on(&self) {
        self.served.state.acquire().stalled.clear();
        self.served.changed.notify_all();
    }
}

impl Drop for StalledFiles {
    fn drop(&mut self) {
        self.served.state.acquire().over = true;
        self.served.changed.notify_all();
        if !self.mount.abort() {
            // Where the control file system is not mounted its path has to be walked, which is answered again.
            let _ = self.mount.unmount(Unmount::Force);
        }
        let _ = self.mount.unmount(Unmount::Lazy);
        if let Some(session) = self.session.take() {
            let _ = session.join();
        }
    }
}

impl Served {
    fn answer(&self, call: Call) -> Result<(), Errno> {
        let mut state = self.state.acquire();
        let stalls = |s: &State| s.stalled.contains(&call) && !s.over;
        if stalls(&state) {
            state.waiting.push(call);
            let begin = Instant::now();
            while stalls(&state) {
                state.over |= begin.elapsed() > LONGEST;
                state = self
                    .changed
                    .wait_acquire_timeout(state, Duration::from_secs(1));
            }
            if let Some(at) = state.waiting.iter().position(|c| *c == call) {
                state.waiting.swap_remove(at);
            }
        }
        match state.over {
            true => Err(Errno::EIO),
            false => Ok(()),
        }
    }

    fn attr(&self, node: u64) -> Attr {
        Attr {
            ino: node,
            mode: if node == FILE { 0o100666 } else { 0o40755 },
            nlink: 1,
            uid: self.owner,
            gid: self.owner,
            size: match node {
                FILE => self.state.acquire().content.len() as u64,
                _ => 0,
            },
            blksize: 4096,
            ..Attr::default()
        }
    }
}

impl Filesystem for Served {
    fn lookup(&self, _: &Request, _: u64, name: &[u8]) -> Result<Entry, Errno> {
        self.answer(Call::Lookup)?;
        let node = match name {
            b"dir" => DIR,
            b"file" => FILE,
            _ => return Err(Errno::ENOENT),
        };
        Ok(Entry {
            node,
            generation: 1,
            attr: self.attr(node),
            entry_ttl: NOW,
            attr_ttl: NOW,
        })
    }

    fn getattr(&self, _: &Request, node: u64, _: Option<u64>) -> Result<AttrReply, Errno> {
        self.answer(Call::Getattr)?;
        let attr = self.attr(node);
        Ok(AttrReply { attr, ttl: NOW })
    }

    fn setattr(&self, _: &Request, node: u64, _: &fuse::SetAttr) -> Result<AttrReply, Errno> {
        let attr = self.attr(node);
        Ok(AttrReply { attr, ttl: NOW })
    }

    fn statx(
        &self,
        _: &Request,
        node: u64,
        _: Option<u64>,
        _: u32,
        _: u32,
    ) -> Result<StatxReply, Errno> {
        self.answer(Call::Statx)?;
        Ok(StatxReply {
            attr: self.attr(node),
            ttl: NOW,
            attributes: 0,
            attributes_mask: 0,
        })
    }

    fn open(&self, _: &Request, _: u64, _: OpenArgs) -> Result<Opened, Errno> {
        self.answer(Call::Open)?;
        let flags = fuse::abi::fopen::DIRECT_IO;
        Ok(Opened { fh: 1, flags })
    }

    fn opendir(&self, _: &Request, _: u64, _: i32) -> Result<Opened, Errno> {
        self.answer(Call::Opendir)?;
        Ok(Opened { fh: 0, flags: 0 })
    }

    fn readdir(&self, _: &Request, _: u64, _: u64, _: u64, _: &mut DirBuf) -> Result<(), Errno> {
        Ok(())
    }

    fn poll(&self, _: &Request, _: u64, _: u64, events: u32) -> Result<u32, Errno> {
        self.answer(Call::Poll)?;
        Ok(events)
    }

    fn read(
        &self,
        _: &Request,
        _: u64,
        _: u64,
        offset: u64,
        size: u32,
        out: &mut ReadBuf,
    ) -> Result<(), Errno> {
        self.answer(Call::Read)?;
        let state = self.state.acquire();
        let from = state.content.len().min(offset as usize);
        let end = state.content.len().min(from + size as usize);
        out.push(Arc::new(state.content.clone()), from..end);
        Ok(())
    }

    fn write(
        &self,
        _: &Request,
        _: u64,
        _: u64,
        _: u64,
        data: base::Data<'_>,
        _: WriteArgs,
    ) -> Result<u32, Errno> {
        self.answer(Call::Write)?;
        Ok(data.len() as u32)
    }

    fn flush(&self, _: &Request, _: u64, _: u64) -> Result<(), Errno> {
        self.answer(Call::Flush)
    }
}
