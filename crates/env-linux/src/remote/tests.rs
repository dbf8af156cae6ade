//! Against our own server, which loses what was not flushed whenever it goes.

use super::*;
use nbd::{Export, Exports, Extent, Options};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

const SIZE: usize = 4 << 20;

/// A device with a cache that is lost.
struct Volatile {
    now: Vec<u8>,
    stable: Vec<u8>,
    /// Grows with each start of the server: requests of an earlier one do nothing.
    life: u64,
    writes: u64,
    /// The next flush fails, and what it was to cover is lost; the one behind it succeeds. So does Linux.
    fails: bool,
}

struct Device {
    content: Arc<Mutex<Volatile>>,
    life: u64,
}

impl Device {
    fn with<R>(&self, f: impl FnOnce(&mut Volatile) -> R) -> Result<R> {
        let mut content = self.content.acquire();
        if content.life != self.life {
            bail!(Io, "the server is gone");
        }
        Ok(f(&mut content))
    }
}

impl Export for Device {
    fn size(&self) -> u64 {
        SIZE as u64
    }
    fn block_size(&self) -> u32 {
        4096
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let at = offset as usize;
        self.with(|v| buf.copy_from_slice(&v.now[at..at + buf.len()]))
    }
    fn write(&self, offset: u64, data: &[u8], _: bool) -> Result<()> {
        let at = offset as usize;
        self.with(|v| {
            v.now[at..at + data.len()].copy_from_slice(data);
            v.writes += 1;
        })
    }
    fn flush(&self) -> Result<()> {
        let failed = self.with(|v| {
            let failed = std::mem::take(&mut v.fails);
            match failed {
                true => v.now.clone_from(&v.stable),
                false => v.stable.clone_from(&v.now),
            }
            failed
        })?;
        match failed {
            true => bail!(Io, "a bad sector"),
            false => Ok(()),
        }
    }
    fn trim(&self, _: u64, _: u64, _: bool) -> Result<()> {
        self.with(|_| ())
    }
    fn zero(&self, _: u64, _: u64, _: bool) -> Result<()> {
        self.with(|_| ())
    }
    fn extent(&self, _: u64) -> Result<Extent> {
        Ok(Extent {
            end: SIZE as u64,
            data: true,
        })
    }
    fn cache(&self, _: u64, _: u64) {}
}

impl Exports for Device {
    fn names(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }
    fn open(&self, _: &str) -> Result<Arc<dyn Export>> {
        Ok(Arc::new(Device {
            content: self.content.clone(),
            life: self.life,
        }))
    }
}

/// A server at a socket.
struct Server {
    socket: PathBuf,
    content: Arc<Mutex<Volatile>>,
    clients: Arc<Mutex<Vec<UnixStream>>>,
    ends: Arc<AtomicBool>,
    at: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    fn new(name: &str) -> Server {
        let name = format!("nbd-{name}-{}.sock", std::process::id());
        let mut server = Server {
            socket: std::env::temp_dir().join(name),
            content: Arc::new(Mutex::new(Volatile {
                now: vec![0; SIZE],
                stable: vec![0; SIZE],
                life: 0,
                writes: 0,
                fails: false,
            })),
            clients: Arc::default(),
            ends: Arc::default(),
            at: None,
        };
        server.start();
        server
    }

    fn url(&self) -> String {
        let url = format!("nbd+unix:///disk?socket={}", self.socket.display());
        allow(&url);
        url
    }

    fn open(&self, patience: Duration) -> RemoteDisk {
        let threads = Arc::new(CpuPool::elastic("test-io", 4));
        RemoteDisk::connected(&self.url(), Access::Exclusive, threads, patience).unwrap()
    }

    fn start(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
        let listener = UnixListener::bind(&self.socket).unwrap();
        self.ends = Arc::default();
        let life = self.content.acquire().life;
        let (content, clients, ends) = (
            self.content.clone(),
            self.clients.clone(),
            self.ends.clone(),
        );
        self.at = Some(std::thread::spawn(move || {
            for client in listener.incoming() {
                if ends.load(Ordering::SeqCst) {
                    return;
                }
                let client = client.unwrap();
                clients.acquire().push(client.try_clone().unwrap());
                let content = content.clone();
                std::thread::spawn(move || {
                    let to = client.try_clone().unwrap();
                    let end = client.try_clone().unwrap();
                    let options = Options {
                        threads: 2,
                        chosen: &|| (),
                        tls: None,
                        hang_up: &|| drop(end.shutdown(Shutdown::Both)),
                    };
                    let _ = nbd::serve(client, to, &Device { content, life }, &options);
                });
            }
        }));
    }

    /// Ends it; what was not flushed is gone. Nobody gets an answer from now on.
    fn kill(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        let _ = UnixStream::connect(&self.socket);
        let _ = std::fs::remove_file(&self.socket);
        if let Some(at) = self.at.take() {
            at.join().unwrap();
        }
        for c in self.clients.acquire().drain(..) {
            let _ = c.shutdown(Shutdown::Both);
        }
        let mut content = self.content.acquire();
        content.life += 1;
        let stable = content.stable.clone();
        content.now = stable;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

#[test]
fn what_was_not_flushed_is_sent_again() {
    let mut server = Server::new("again");
    let disk = server.open(Duration::from_secs(60));
    assert_eq!(disk.geometry().size, SIZE as u64);
    let mut model = vec![0u8; SIZE];
    let mut seed = 7u64;
    let mut dice = move |n: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % n
    };
    for turn in 0..60u8 {
        let batch = (0..dice(20) + 1).map(|_| {
            let blocks = dice(8) + 1;
            // Few places, so that writes overlap.
            let offset = dice(64) * 4096;
            let data = vec![turn + 1; blocks as usize * 4096];
            model[offset as usize..offset as usize + data.len()].copy_from_slice(&data);
            (offset, data)
        });
        for (offset, data) in batch.collect::<Vec<_>>() {
            disk.write(offset, &data).unwrap();
        }
        if dice(3) == 0 {
            disk.flush().unwrap();
            assert!(
                server.content.acquire().stable == model,
                "turn {turn}: after a flush"
            );
        }
        if dice(3) == 0 {
            server.kill();
            server.start();
        }
        let at = dice(64) * 4096;
        let mut back = vec![0; 4096];
        disk.read(at, &mut back).unwrap();
        assert!(
            back == model[at as usize..at as usize + 4096],
            "turn {turn}: at {at}"
        );
    }
    disk.flush().unwrap();
    assert!(server.content.acquire().stable == model);
    // What was flushed is not kept.
    let kept = disk.kept.acquire();
    assert!(kept.writes.is_empty() && kept.bytes == 0);
}

/// Also of one that the disk makes by itself, since it may keep no more: the engine never learns of that one.
#[test]
fn what_a_failed_flush_was_to_cover_is_sent_again() {
    let server = Server::new("failed");
    let disk = server.open(Duration::from_secs(60));
    let fail = || server.content.acquire().fails = true;
    disk.write(0, &[1; 8192]).unwrap();
    fail();
    assert_eq!(disk.flush().unwrap_err().kind, Kind::Io);
    disk.write(4096, &[2; 4096]).unwrap();
    disk.flush().unwrap();
    let stable = |at: usize| server.content.acquire().stable[at];
    assert_eq!((stable(0), stable(4096)), (1, 2));

    fail();
    let mut refused = 0;
    for turn in 0..70 {
        let op = Op::Write {
            offset: 0,
            bufs: vec![Arc::new(vec![turn; 1 << 20])],
        };
        let (_, done) = disk.batch(vec![op]).pop().unwrap();
        refused += usize::from(done.is_err());
        // Elsewhere, so that it is written once only.
        disk.write((2 << 20) + u64::from(turn) * 4096, &[turn; 4096])
            .unwrap_or_else(|_| refused += 1);
    }
    disk.flush().unwrap();
    assert_eq!(stable(0), 69);
    let lost = (0..70).filter(|t| stable((2 << 20) + usize::from(*t) * 4096) != *t);
    assert!(lost.count() <= refused, "what was acknowledged is there");
    assert!(!server.content.acquire().fails, "a flush was refused");
}

/// One device, however its address is written.
#[test]
fn addresses_are_compared_by_what_they_mean() {
    let same = |a, b| assert_eq!(identity(a), identity(b));
    same("nbd://h/e", "nbd://H:10809/%65");
    assert_ne!(identity("nbd://h/e"), identity("nbd://h/f"));
    assert_eq!(identity("nbd://"), None);
    let server = Server::new("spelling");
    let _disk = server.open(Duration::from_secs(5));
    let other = server.url().replace("/disk?", "/%64isk?");
    allow(&other);
    let threads = Arc::new(CpuPool::elastic("test-io", 4));
    let e = RemoteDisk::open(&other, Access::Exclusive, threads).err();
    assert_eq!(e.unwrap().kind, Kind::Busy);
}

/// Writers that are under way while the server goes and comes notice nothing.
#[test]
fn requests_under_way_wait() {
    let mut server = Server::new("under-way");
    let disk = server.open(Duration::from_secs(60));
    let end = AtomicBool::new(false);
    std::thread::scope(|s| {
        for n in 0..4u8 {
            let (disk, end) = (&disk, &end);
            s.spawn(move || {
                let mut turn = 0u8;
                while !end.load(Ordering::SeqCst) {
                    turn = turn.wrapping_add(1);
                    let at = u64::from(n) << 20;
                    let op = |at: u64, b: u8| Op::Write {
                        offset: at,
                        bufs: vec![Arc::new(vec![b; 8192])],
                    };
                    let done = disk.batch(vec![op(at, turn), op(at + 65536, turn ^ 0xff)]);
                    done.into_iter().for_each(|(_, r)| r.unwrap());
                    if turn % 4 == 0 {
                        disk.flush().unwrap();
                    }
                    let mut back = [0; 8192];
                    disk.read(at, &mut back).unwrap();
                    assert_eq!(back, [turn; 8192]);
                }
            });
        }
        for _ in 0..15 {
            std::thread::sleep(Duration::from_millis(30));
            server.kill();
            server.start();
        }
        end.store(true, Ordering::SeqCst);
    });
    disk.flush().unwrap();
    let content = server.content.acquire();
    assert!(content.now == content.stable && content.writes > 100);
}

#[test]
fn a_server_that_stays_away_is_given_up_and_taken_back() {
    let mut server = Server::new("away");
    let disk = server.open(Duration::from_millis(400));
    disk.write(0, &[5; 4096]).unwrap();
    server.kill();
    let begin = Instant::now();
    let e = disk.read(0, &mut [0; 4096]).unwrap_err();
    assert!(
        e.kind == Kind::Io && e.to_string().contains("away for"),
        "{e}"
    );
    assert!(disk.flush().is_err() && disk.write(4096, &[6; 4096]).is_err());
    // From now on nobody waits.
    assert!(begin.elapsed() < Duration::from_secs(20));
    server.start();
    let back = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(100));
        disk.flush().is_ok()
    });
    assert!(back);
    let content = server.content.acquire();
    assert!(content.stable[..4096] == [5; 4096] && content.stable[4096..8192] == [0; 4096]);
}

#[test]
fn refusals() {
    let server = Server::new("refusals");
    let url = server.url();
    let threads = Arc::new(CpuPool::elastic("test-io", 4));
    let open = |url: &str, access| RemoteDisk::open(url, access, threads.clone());
    let disk = open(&url, Access::Exclusive).unwrap();
    assert_eq!(
        open(&url, Access::Exclusive).err().unwrap().kind,
        Kind::Busy
    );
    let second = open(&url, Access::Read).unwrap();
    assert_eq!(second.write(0, &[0; 512]).unwrap_err().kind, Kind::ReadOnly);
    assert_eq!(disk.read(1, &mut [0; 512]).unwrap_err().kind, Kind::Invalid);
    assert_eq!(
        disk.read(SIZE as u64, &mut [0; 512]).unwrap_err().kind,
        Kind::Io
    );
    drop(disk);
    open(&url, Access::Exclusive).unwrap();
    // A label may say anything.
    let other = format!("nbd+unix:///x?socket={}", server.socket.display());
    let e = open(&other, Access::Read).err().unwrap();
    assert!(
        e.kind == Kind::NotPermitted && e.to_string().contains(&other),
        "{e}"
    );
    for (wrong, kind) in [
        ("nbd://", Kind::Invalid),
        ("nbds://a/x?tls-type=psk", Kind::Unsupported),
    ] {
        assert_eq!(open(wrong, Access::Read).err().unwrap().kind, kind);
    }
    let gone = "nbd+unix:///x?socket=/nonexistent/socket";
    allow(gone);
    assert_eq!(open(gone, Access::Read).err().unwrap().kind, Kind::NotFound);
}
