//! The client against our own server.

use super::*;
use crate::{Export, Exports, Extent, Options};
use base::sync::MutexExt;
use base::{bail, Kind, Result};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn addresses() {
    let at = |place, export: &str| Address {
        place,
        export: export.into(),
        tls: None,
    };
    let tcp = |host: &str, port, export| {
        let host = host.into();
        at(Place::Tcp { host, port }, export)
    };
    let unix = |socket: &str, export| {
        let socket = socket.into();
        at(Place::Unix { socket }, export)
    };
    let secure = |mut address: Address, certificates: Option<&str>, host: Option<&str>| {
        address.tls = Some(Secure {
            certificates: certificates.map(str::to_string),
            host: host.map(str::to_string),
        });
        address
    };
    for (uri, wanted) in [
        ("nbd://a/disk", tcp("a", 10809, "disk")),
        ("nbd://A:10809/disk", tcp("a", 10809, "disk")),
        ("nbd://a", tcp("a", 10809, "")),
        ("nbd://a:1/tank/vol%20x", tcp("a", 1, "tank/vol x")),
        ("nbd://[::1]:5/x", tcp("::1", 5, "x")),
        ("nbd://[::1]/", tcp("::1", 10809, "")),
        (
            "nbd+unix:///disk?socket=/run/x.sock",
            unix("/run/x.sock", "disk"),
        ),
        ("nbd+unix://?socket=/a%3fb", unix("/a?b", "")),
        ("nbds://a/x", secure(tcp("a", 10809, "x"), None, None)),
        (
            "nbds+unix:///x?tls-certificates=/c&socket=/s&tls-hostname=h",
            secure(unix("/s", "x"), Some("/c"), Some("h")),
        ),
    ] {
        assert_eq!(Address::parse(uri).unwrap(), wanted, "{uri}");
        assert!(base::is_network_device(uri));
    }
    for uri in [
        "nbd:a",
        "nbd://",
        "nbd://:5/x",
        "nbd://a:0/x",
        "nbd://a:99999/x",
        "nbd://[::1/x",
        "nbd://[::1]x/y",
        "nbd://a/x?y=1",
        "nbd://u@a/x",
        "nbd://a/x#1",
        "nbd://a/%0",
        "nbd://a/%00",
        "nbd://a/%ff",
        "nbd+unix:///x",
        "nbd+unix://a/x?socket=/s",
        "nbd+unix:///x?socket=s",
        "nbd+unix:///x?socket=/s&tls=1",
        "nbd+unix:///x?socket=/s&socket=/s",
        "nbd+unix:///x?socket=/s&tls-hostname=h",
        "nbds://a/x?socket=/s",
        "nbds://a/x?tls-certificates=c",
        "nbds://a/x?tls-certificates=",
        "nbds://a/x?&",
        "nbd+vsock:///x",
        "/dev/sda",
    ] {
        assert_eq!(
            Address::parse(uri).unwrap_err().kind,
            Kind::Invalid,
            "{uri}"
        );
    }
    assert_eq!(
        Address::parse("nbds://a/x?tls-verify-peer=false")
            .unwrap_err()
            .kind,
        Kind::Unsupported
    );
    assert!(!base::is_network_device("/nbd://x") && !base::is_network_device("nbd0"));
}

/// A device in memory.
pub(crate) struct Memory(Mutex<Vec<u8>>, Mutex<Vec<&'static str>>);

impl Export for Memory {
    fn size(&self) -> u64 {
        self.0.acquire().len() as u64
    }
    fn block_size(&self) -> u32 {
        8192
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let at = offset as usize;
        buf.copy_from_slice(&self.0.acquire()[at..at + buf.len()]);
        Ok(())
    }
    fn write(&self, offset: u64, data: &[u8], _: bool) -> Result<()> {
        if data.first() == Some(&0xee) {
            bail!(Io, "a bad sector");
        }
        let at = offset as usize;
        self.0.acquire()[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }
    fn flush(&self) -> Result<()> {
        self.1.acquire().push("flush");
        Ok(())
    }
    fn trim(&self, _: u64, _: u64, _: bool) -> Result<()> {
        self.1.acquire().push("trim");
        Ok(())
    }
    fn zero(&self, _: u64, _: u64, _: bool) -> Result<()> {
        Ok(())
    }
    fn extent(&self, _: u64) -> Result<Extent> {
        Ok(Extent {
            end: self.size(),
            data: true,
        })
    }
    fn cache(&self, _: u64, _: u64) {}
}

pub(crate) struct One(pub Arc<Memory>);

impl Exports for One {
    fn names(&self) -> Result<Vec<String>> {
        Ok(vec!["disk".into()])
    }
    fn open(&self, name: &str) -> Result<Arc<dyn Export>> {
        match name {
            "disk" => Ok(self.0.clone()),
            "closed" => bail!(Access, "not for you"),
            _ => bail!(NotFound, "no such export"),
        }
    }
}

/// An export of some server.
fn disk(export: &str) -> Address {
    Address::parse(&format!("nbd://server/{export}")).unwrap()
}

fn streams(ours: UnixStream) -> Streams {
    let (to, end) = (ours.try_clone().unwrap(), ours.try_clone().unwrap());
    let limit = ours.try_clone().unwrap();
    Streams {
        from: Box::new(ours),
        to: Box::new(to),
        hang_up: Box::new(move || drop(end.shutdown(std::net::Shutdown::Both))),
        set_limit: Box::new(move |most| limit.set_read_timeout(most)),
    }
}

/// A server of one device for one connection.
fn server(memory: &Arc<Memory>) -> Streams {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let exports = One(memory.clone());
    std::thread::spawn(move || {
        let to = theirs.try_clone().unwrap();
        let options = Options {
            threads: 4,
            chosen: &|| (),
            tls: None,
            hang_up: &|| (),
        };
        let _ = crate::serve(theirs, to, &exports, &options);
    });
    streams(ours)
}

pub(crate) fn memory() -> Arc<Memory> {
    Arc::new(Memory(Mutex::new(vec![0; 4 << 20]), Mutex::default()))
}

#[test]
fn many_threads_read_and_write() {
    let memory = memory();
    let c = Connection::over(server(&memory), &disk("disk"), PATIENCE, PATIENCE).unwrap();
    let info = c.info();
    assert_eq!((info.size, info.preferred), (4 << 20, 8192));
    assert!(info.flushes && info.trims && info.multi && !info.read_only);
    std::thread::scope(|s| {
        for n in 0..8u8 {
            let c = &c;
            s.spawn(move || {
                for turn in 0..20u64 {
                    let at = u64::from(n) * (512 << 10) + turn * 4096;
                    c.write(at, &[n + 1; 4096]).unwrap();
                    assert_eq!(c.read(at, 4096).unwrap(), [n + 1; 4096]);
                }
            });
        }
    });
    c.flush().unwrap();
    c.trim(0, 4096).unwrap();
    // An error concerns its request alone.
    assert!(matches!(c.write(0, &[0xee; 512]), Err(Failure::Refused(e)) if e.kind == Kind::Io));
    assert!(matches!(c.read(4 << 20, 512), Err(Failure::Refused(_))));
    assert_eq!(c.read(4096 * 3, 1).unwrap(), [1]);
    assert_eq!(*memory.1.acquire(), ["flush", "trim"]);
}

#[test]
fn refusals_say_what_is_wrong() {
    let open = |name| {
        Connection::over(server(&memory()), &disk(name), PATIENCE, PATIENCE)
            .err()
            .unwrap()
    };
    assert_eq!(open("other").kind, Kind::NotFound);
    let closed = open("closed");
    assert_eq!(closed.kind, Kind::Access);
    assert!(closed.to_string().contains("not for you"), "{closed}");
}

/// Whatever a server sends, there is an error at the end, and nobody waits for ever.
#[test]
fn hostile_servers() {
    use std::io::{Read, Write};
    let greeting = || {
        let mut b = Vec::new();
        b.extend(crate::numbers::NBDMAGIC.to_be_bytes());
        b.extend(crate::numbers::IHAVEOPT.to_be_bytes());
        b.extend(3u16.to_be_bytes());
        b
    };
    let reply = |kind: u32, data: &[u8]| {
        let mut b = crate::numbers::REPLY_OPTION.to_be_bytes().to_vec();
        b.extend(7u32.to_be_bytes());
        b.extend(kind.to_be_bytes());
        b.extend((data.len() as u32).to_be_bytes());
        b.extend(data);
        b
    };
    let export =
        |size: u64, flags: u16| [&[0, 0], &size.to_be_bytes()[..], &flags.to_be_bytes()].concat();
    let blocks = |least: u32| {
        [
            &[0, 3],
            &least.to_be_bytes()[..],
            &4096u32.to_be_bytes(),
            &u32::MAX.to_be_bytes(),
        ]
        .concat()
    };
    let agreed = [greeting(), reply(3, &export(1 << 20, 5)), reply(1, &[])].concat();
    let answer = |cookie: u64| {
        [
            &0x6744_6698u32.to_be_bytes()[..],
            &[0; 4],
            &cookie.to_be_bytes(),
            &[7; 512],
        ]
        .concat()
    };
    let talks: Vec<(Vec<u8>, bool)> = vec![
        (Vec::new(), false),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), false),
        (greeting(), false),
        ([greeting(), reply(1, &[])].concat(), false),
        ([greeting(), reply(3, &[0])].concat(), false),
        ([greeting(), reply(3, &export(1, 1)[..5])].concat(), false),
        (
            [
                greeting(),
                reply(3, &export(1 << 20, 1)),
                reply(3, &blocks(3)),
                reply(1, &[]),
            ]
            .concat(),
            false,
        ),
        (
            [
                greeting(),
                reply(3, &export(1 << 20, 1)),
                reply(3, &blocks(1 << 30)),
                reply(1, &[]),
            ]
            .concat(),
            false,
        ),
        (
            [greeting(), reply((1 << 31) + 5, b"use TLS\x1b[2J")].concat(),
            false,
        ),
        (
            [greeting(), reply(2, &[0; 100]).repeat(200)].concat(),
            false,
        ),
        (
            [
                greeting(),
                crate::numbers::REPLY_OPTION.to_be_bytes().to_vec(),
                vec![0xff; 12],
            ]
            .concat(),
            false,
        ),
        (agreed.clone(), true),
        ([agreed.clone(), answer(5)].concat(), true),
        ([agreed.clone(), vec![0xff; 16]].concat(), true),
        ([agreed.clone(), answer(0)[..200].to_vec()].concat(), true),
    ];
    for (n, (talk, agrees)) in talks.into_iter().enumerate() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let at = std::thread::spawn(move || {
            theirs.write_all(&talk).unwrap();
            // Reads a little, so that requests are taken, and leaves.
            let _ = theirs.set_read_timeout(Some(Duration::from_millis(200)));
            let mut room = [0; 4096];
            while matches!(theirs.read(&mut room), Ok(n) if n > 0) {}
        });
        match Connection::over(streams(ours), &disk("disk"), PATIENCE, PATIENCE) {
            Ok(c) => {
                assert!(agrees, "{n}");
                assert!(matches!(c.read(0, 512), Err(Failure::Lost(_))), "{n}");
                assert!(
                    c.is_lost() && matches!(c.flush(), Err(Failure::Lost(_))),
                    "{n}"
                );
            }
            Err(e) => {
                assert!(!agrees, "{n}: {e}");
                assert!(!e.to_string().contains('\x1b'), "{n}: {e}");
            }
        }
        at.join().unwrap();
    }
}

/// A server that is silent is given up.
#[test]
fn silence_has_an_end() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let at = std::thread::spawn(move || {
        use std::io::{Read, Write};
        let mut theirs = theirs;
        let mut b = Vec::new();
        b.extend(crate::numbers::NBDMAGIC.to_be_bytes());
        b.extend(crate::numbers::IHAVEOPT.to_be_bytes());
        // It knows EXPORT_NAME alone, and sends zeros.
        b.extend(1u16.to_be_bytes());
        theirs.write_all(&b).unwrap();
        let mut head = [0; 4 + 16 + 4 + 4 + 4];
        theirs.read_exact(&mut head).unwrap();
        let mut unsupported = crate::numbers::REPLY_OPTION.to_be_bytes().to_vec();
        unsupported.extend(7u32.to_be_bytes());
        unsupported.extend(((1u32 << 31) + 1).to_be_bytes());
        unsupported.extend(0u32.to_be_bytes());
        theirs.write_all(&unsupported).unwrap();
        let mut name = [0; 16 + 4];
        theirs.read_exact(&mut name).unwrap();
        assert!(name.ends_with(b"disk"));
        theirs.write_all(&(1u64 << 20).to_be_bytes()).unwrap();
        theirs.write_all(&[0, 5]).unwrap();
        theirs.write_all(&[0; 124]).unwrap();
        let mut room = [0; 4096];
        while matches!(theirs.read(&mut room), Ok(n) if n > 0) {}
    });
    let c = Connection::over(
        streams(ours),
        &disk("disk"),
        PATIENCE,
        Duration::from_millis(300),
    )
    .unwrap();
    assert_eq!(c.info().size, 1 << 20);
    match c.read(0, 512) {
        Err(Failure::Lost(why)) => assert!(why.contains("no reply"), "{why}"),
        other => panic!("{other:?}"),
    }
    drop(c);
    at.join().unwrap();
}

/// A byte now and then does not make the negotiation last.
#[test]
fn a_negotiation_has_an_end() {
    use std::io::Write;
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let at = std::thread::spawn(move || {
        let mut sent = 0;
        while theirs
            .write_all(&crate::numbers::NBDMAGIC.to_be_bytes()[sent % 8..][..1])
            .is_ok()
        {
            sent += 1;
            std::thread::sleep(Duration::from_millis(300));
        }
        sent
    });
    let opened = Connection::over(
        streams(ours),
        &disk("disk"),
        Duration::from_millis(500),
        PATIENCE,
    );
    assert!(opened.is_err());
    assert!(
        at.join().unwrap() < 8,
        "it was given up before it had said who it is"
    );
}

/// A server that accepts nobody holds nobody up, and one that accepts late is waited for.
#[test]
fn a_full_queue_is_waited_for() {
    use std::os::unix::net::UnixListener;
    let name = format!("nbd-queue-{}.sock", std::process::id());
    let path = std::env::temp_dir().join(name);
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    let uri = format!("nbd+unix:///disk?socket={}", path.display());
    let address = Address::parse(&uri).unwrap();
    let connect = |limit| Streams::connect(&address, limit, PATIENCE);
    // The queue of the standard library's listeners has some thousand places; this one has few.
    rustix::net::listen(&listener, 0).unwrap();
    let mut queued = Vec::new();
    let refused = loop {
        match connect(Duration::from_millis(200)) {
            Ok(streams) => queued.push(streams),
            Err(e) => break e,
        }
        assert!(queued.len() < 100);
    };
    assert!(refused.to_string().contains("accepts nobody"), "{refused}");
    let late = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        let accepted = listener.accept().unwrap();
        (listener, accepted)
    });
    connect(PATIENCE).unwrap();
    late.join().unwrap();
    std::fs::remove_file(&path).unwrap();
}
