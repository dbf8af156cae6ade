//! rpcbind(8), which tells clients at which port a program is: registered with over its socket on this machine (RFC 1833, version 4).
//! So showmount(8), and mounts that name no port, find the server.
//!
//! Each program is registered by itself, for each network that it is served on. What another server has registered stays, unless
//! nobody listens there any more ([`register`]).

use crate::xdr::{Decoded, Reader, Writer};
use crate::{mounts, procedures};
use base::{bail, Result};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Its socket.
pub const SOCKET: &str = "/run/rpcbind.sock";

const PROGRAM: u32 = 100_000;
const VERSION: u32 = 4;
const SET: u32 = 1;
const UNSET: u32 = 2;
const GETADDR: u32 = 3;
/// Program and version of what is served.
const SERVED: [(u32, u32); 3] = [
    (procedures::PROGRAM, 3),
    (mounts::PROGRAM, 3),
    (mounts::PROGRAM, 1),
];
/// A reply is not longer.
const MOST: usize = 4096;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// A program at an address, as rpcbind names it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    program: u32,
    version: u32,
    net: &'static str,
    address: String,
}

/// What was registered. It is taken back by [`Registered::take_back`], and stays when the process is killed.
#[derive(Debug, Default)]
pub struct Registered(Vec<Entry>);

/// An address as rpcbind writes it: the port as two further numbers.
fn universal(ip: IpAddr, port: u16) -> String {
    format!("{ip}.{}.{}", port >> 8, port & 255)
}

/// The other way round.
fn socket_address(text: &str) -> Option<SocketAddr> {
    let mut parts = text.rsplitn(3, '.');
    let (low, high, ip) = (parts.next()?, parts.next()?, parts.next()?);
    let port = u16::from(high.parse::<u8>().ok()?) << 8 | u16::from(low.parse::<u8>().ok()?);
    Some(SocketAddr::new(ip.parse().ok()?, port))
}

/// What is registered for sockets that listen at these addresses.
fn entries(addresses: &[SocketAddr]) -> Vec<Entry> {
    let mut places = Vec::new();
    for a in addresses {
        match a.ip() {
            IpAddr::V4(_) => places.push(("tcp", universal(a.ip(), a.port()))),
            IpAddr::V6(ip) => {
                places.push(("tcp6", universal(a.ip(), a.port())));
                // Such a socket is there for both.
                if ip == Ipv6Addr::UNSPECIFIED {
                    places.push(("tcp", universal(Ipv4Addr::UNSPECIFIED.into(), a.port())));
                }
            }
        }
    }
    // One place of each network can be registered.
    let mut seen = Vec::new();
    places.retain(|(net, _)| {
        let new = !seen.contains(net);
        seen.push(*net);
        new
    });
    let of_place = |(net, address): (&'static str, String)| {
        SERVED.map(|(program, version)| Entry {
            program,
            version,
            net,
            address: address.clone(),
        })
    };
    places.into_iter().flat_map(of_place).collect()
}

/// The results of a reply.
fn results<'a>(reply: &'a [u8], xid: u32) -> Decoded<Option<Reader<'a>>> {
    let r = &mut Reader::new(reply);
    let head = (r.u32()?, r.u32()?, r.u32()?);
    r.u32()?;
    r.opaque(MOST)?;
    let good = head == (xid, 1, 0) && r.u32()? == 0;
    Ok(good.then(|| Reader::new(r.rest())))
}

/// A conversation with rpcbind.
struct Talk {
    stream: UnixStream,
    xid: u32,
}

impl Talk {
    fn begin(socket: &Path) -> Result<Talk> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Talk { stream, xid: 1 })
    }

    /// Calls a procedure, and reads its results.
    fn call<T>(
        &mut self,
        procedure: u32,
        e: &Entry,
        read: impl FnOnce(&mut Reader<'_>) -> Decoded<T>,
    ) -> Result<T> {
        self.xid += 1;
        let mut w = Writer::default();
        for n in [self.xid, 0, 2, PROGRAM, VERSION, procedure, 0, 0, 0, 0] {
            w.u32(n);
        }
        w.u32(e.program).u32(e.version).opaque(e.net.as_bytes());
        // The owner is whoever is at the other end of the socket.
        w.opaque(e.address.as_bytes()).opaque(b"");
        let call = w.into_bytes();
        let mark = (1 << 31 | call.len() as u32).to_be_bytes();
        self.stream.write_all(&[&mark[..], &call].concat())?;
        let mut mark = [0; 4];
        self.stream.read_exact(&mut mark)?;
        let mark = u32::from_be_bytes(mark);
        let len = (mark & !(1 << 31)) as usize;
        if mark >> 31 == 0 || len > MOST {
            bail!(Io, "rpcbind answers in a way that is not known");
        }
        let mut reply = vec![0; len];
        self.stream.read_exact(&mut reply)?;
        match results(&reply, self.xid) {
            Ok(Some(mut r)) => match read(&mut r) {
                Ok(value) => Ok(value),
                Err(_) => bail!(Io, "rpcbind answers in a way that is not known"),
            },
            _ => bail!(Io, "rpcbind does not do what it is asked for"),
        }
    }

    /// Whether somebody else serves the program at another address.
    fn is_served_elsewhere(&mut self, e: &Entry) -> Result<bool> {
        let address = self.call(GETADDR, e, |r| {
            let text = r.opaque(MOST)?;
            Ok(String::from_utf8_lossy(text).into_owned())
        })?;
        let Some(mut at) = socket_address(&address) else {
            return Ok(!address.is_empty());
        };
        if at.ip().is_unspecified() {
            let here: IpAddr = match at {
                SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            };
            at.set_ip(here);
        }
        let mine = socket_address(&e.address).is_some_and(|own| own.port() == at.port());
        Ok(!mine && TcpStream::connect_timeout(&at, PATIENCE).is_ok())
    }

    fn set(&mut self, e: &Entry) -> Result<bool> {
        if self.call(SET, e, |r| r.bool())? {
            return Ok(true);
        }
        if self.is_served_elsewhere(e)? {
            return Ok(false);
        }
        // A daemon that was killed has left it there.
        self.call(UNSET, e, |r| r.bool())?;
        self.call(SET, e, |r| r.bool())
    }
}

/// Registers a server that listens at these addresses, where there is an rpcbind. None: there is none.
///
/// # Errors
/// It cannot be asked, or another server of NFS has registered itself; nothing is registered then.
pub fn register(socket: &Path, addresses: &[SocketAddr]) -> Result<Option<Registered>> {
    if !socket.exists() {
        return Ok(None);
    }
    let mut talk = Talk::begin(socket)?;
    let mut done = Registered::default();
    for e in entries(addresses) {
        match talk.set(&e) {
            Ok(true) => done.0.push(e),
            Ok(false) => {
                done.take_back(socket);
                bail!(
                    Exists,
                    "another server has registered itself with rpcbind as program {} for {}",
                    e.program,
                    e.net
                );
            }
            Err(err) => {
                done.take_back(socket);
                return Err(err);
            }
        }
    }
    Ok(Some(done))
}

impl Registered {
    /// The server has ended: clients are not led here any more.
    pub fn take_back(&self, socket: &Path) {
        let Ok(mut talk) = Talk::begin(socket) else {
            return;
        };
        for e in &self.0 {
            let _ = talk.call(UNSET, e, |r| r.bool());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;
    use std::sync::{Arc, Mutex};

    type Table = Arc<Mutex<BTreeMap<(u32, u32, String), String>>>;

    fn answer(call: &[u8], table: &Table) -> Decoded<Vec<u8>> {
        let r = &mut Reader::new(call);
        let xid = r.u32()?;
        let head: Vec<u32> = (0..9).map(|_| r.u32()).collect::<Decoded<_>>()?;
        assert_eq!(head[..4], [0, 2, PROGRAM, VERSION]);
        let (program, version) = (r.u32()?, r.u32()?);
        let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
        let net = text(r.opaque(MOST)?);
        let address = text(r.opaque(MOST)?);
        let key = (program, version, net);
        let mut table = table.lock().unwrap();
        let mut w = Writer::default();
        for n in [xid, 1, 0, 0, 0, 0] {
            w.u32(n);
        }
        match head[4] {
            SET => {
                let good = table.get(&key).is_none_or(|a| *a == address);
                if good {
                    table.insert(key, address);
                }
                w.bool(good);
            }
            UNSET => drop(w.bool(table.remove(&key).is_some())),
            _ => drop(w.opaque(table.get(&key).cloned().unwrap_or_default().as_bytes())),
        }
        Ok(w.into_bytes())
    }

    /// Something that answers as rpcbind does.
    fn rpcbind(socket: &Path) -> Table {
        let listener = UnixListener::bind(socket).unwrap();
        let table = Table::default();
        let kept = table.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut mark = [0; 4];
                while stream.read_exact(&mut mark).is_ok() {
                    let len = u32::from_be_bytes(mark) & !(1 << 31);
                    let mut call = vec![0; len as usize];
                    stream.read_exact(&mut call).unwrap();
                    let reply = answer(&call, &kept).unwrap();
                    let mark = (1 << 31 | reply.len() as u32).to_be_bytes();
                    stream.write_all(&[&mark[..], &reply].concat()).unwrap();
                }
            }
        });
        table
    }

    #[test]
    fn addresses_as_rpcbind_writes_them() {
        for (text, universal_text) in [
            ("0.0.0.0:2049", "0.0.0.0.8.1"),
            ("127.0.0.1:65535", "127.0.0.1.255.255"),
            ("[::]:2049", "::.8.1"),
            ("[fe80::1]:1", "fe80::1.0.1"),
        ] {
            let a: SocketAddr = text.parse().unwrap();
            assert_eq!(universal(a.ip(), a.port()), universal_text);
            assert_eq!(socket_address(universal_text), Some(a));
        }
        for wrong in ["", "1.2", "a.b.c", "127.0.0.1.300.1"] {
            assert_eq!(socket_address(wrong), None, "{wrong}");
        }
        let both = entries(&["[::]:2049".parse().unwrap()]);
        let nets: Vec<_> = both.iter().map(|e| e.net).collect();
        assert_eq!(nets, ["tcp6", "tcp6", "tcp6", "tcp", "tcp", "tcp"]);
    }

    #[test]
    fn a_server_is_registered_as_long_as_it_serves() {
        let dir = testkit::TempDir::new("rpcbind").unwrap();
        let socket = dir.path().join("sock");
        let one = TcpListener::bind("127.0.0.1:0").unwrap();
        let two = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = |l: &TcpListener| [l.local_addr().unwrap()];
        assert!(register(&socket, &at(&one)).unwrap().is_none());
        let table = rpcbind(&socket);
        let shown = || {
            let table = table.lock().unwrap();
            let programs: Vec<_> = table.keys().map(|k| (k.0, k.1)).collect();
            programs
        };
        let first = register(&socket, &at(&one)).unwrap().unwrap();
        assert_eq!(shown(), [(100_003, 3), (100_005, 1), (100_005, 3)]);
        // Its own, after it was killed; another one's stays as long as that one listens.
        register(&socket, &at(&one)).unwrap().unwrap();
        let e = register(&socket, &at(&two)).unwrap_err();
        assert!(e.to_string().contains("another server"), "{e}");
        assert_eq!(shown().len(), 3);
        drop(one);
        let second = register(&socket, &at(&two)).unwrap().unwrap();
        second.take_back(&socket);
        assert!(shown().is_empty());
        first.take_back(&socket);
    }
}
