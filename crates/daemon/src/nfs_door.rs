//! The door for clients of NFS: shared file systems, served on TCP ports (`--nfs-listen`). The protocol is crate `nfs`'s; what is
//! shared, and how, is `admin`'s.
//!
//! The door that NFS has to a file system is in `nfs_slot.rs`.

use crate::door;
use admin::datasets::share;
use admin::shares::{Candidate, Share, Sharer};
use admin::{Admin, Mounted};
use base::sync::MutexExt;
use base::{bail, Error, Result};
use nfs::connection::{self, Activity};
use nfs::handle::FileSystem;
use nfs::rpcbind::{self, Registered};
use nfs::{Export, Exports, Inside, Server, Verifiers};
use pool::Pool;
use rustix::net::sockopt;
use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use vfs::Place;

/// Connections at a time. When there are so many the one goes that was silent for longest, of a client with whom nothing is shared
/// before any other.
const MOST: usize = 128;
/// The same of one address.
const MOST_OF_ADDRESS: usize = 32;
/// After so much silence a client is asked whether it is there, and in such intervals.
const SILENCE: Duration = Duration::from_secs(60);
const INTERVAL: Duration = Duration::from_secs(10);
/// Questions without an answer after which it has gone.
const QUESTIONS: u32 = 3;

/// Shared file systems, as `admin` has them.
struct Mounts {
    admin: Weak<Admin>,
    verifiers: Verifiers,
}

/// Which file system a mount is.
fn named(pool: &Pool, m: &Mounted) -> FileSystem {
    FileSystem {
        pool: pool.guid(),
        dataset: m.ds.phys().guid,
    }
}

/// The mount of a file system.
fn mounted(admin: &Admin, fs: FileSystem) -> Option<Arc<Mounted>> {
    let pools = admin.pools();
    let entry = pools.iter().find(|e| e.pool.guid() == fs.pool)?;
    entry.find_mount(&|m| m.ds.phys().guid == fs.dataset)
}

impl Mounts {
    fn export(&self, m: &Mounted, share: Arc<Share>) -> Option<Export> {
        let mount = door::parts(m)?;
        let opened = mount.nfs.opened(&mount.served()?, &self.verifiers)?;
        Some(Export {
            fs: named(&mount.pool, m),
            path: m.path.to_str()?.as_bytes().to_vec(),
            share,
            opened,
        })
    }
}

impl Exports for Mounts {
    fn list(&self) -> Vec<Export> {
        let Some(admin) = self.admin.upgrade() else {
            return Vec::new();
        };
        let all = share::list(&admin).into_iter();
        all.filter_map(|s| self.export(&s.mounted, s.share))
            .collect()
    }

    fn find(&self, fs: FileSystem) -> Option<Export> {
        let m = mounted(&*self.admin.upgrade()?, fs)?;
        self.export(&m, m.share()?)
    }

    fn holds_mounts(&self, fs: FileSystem, place: &Place) -> bool {
        let Place::Head { object, generation } = *place else {
            return false;
        };
        let m = self.admin.upgrade().and_then(|a| mounted(&a, fs));
        m.is_some_and(|m| door::holds(&m, (object, generation)))
    }

    fn inside(&self, fs: FileSystem, name: Option<&[u8]>) -> Vec<Inside> {
        let pools = self.admin.upgrade().map(|a| a.pools()).unwrap_or_default();
        let mut below = Vec::new();
        for e in &pools {
            below.extend(e.all_mounts().into_iter().map(|m| (named(&e.pool, &m), m)));
        }
        let outer = below.iter().find(|(of, _)| *of == fs);
        let Some((_, outer)) = outer.cloned() else {
            return Vec::new();
        };
        below.retain(|(_, m)| m.path != outer.path && m.path.starts_with(&outer.path));
        let is_asked_for = |(_, m): &&(FileSystem, Arc<Mounted>)| {
            name.is_none_or(|name| m.path.file_name().is_some_and(|n| n.as_bytes() == name))
        };
        let asked: Vec<_> = below.iter().filter(is_asked_for).collect();
        if asked.is_empty() {
            return Vec::new();
        }
        let paths: HashSet<&Path> = below.iter().map(|(_, m)| m.path.as_path()).collect();
        let is_seen = |(_, m): &&&(FileSystem, Arc<Mounted>)| {
            !m.path.ancestors().skip(1).any(|a| paths.contains(a))
        };
        let seen = asked.iter().filter(is_seen);
        seen.filter_map(|(fs, m)| {
            let rest = m.path.strip_prefix(&outer.path).ok()?;
            Some(Inside {
                fs: *fs,
                way: rest.iter().map(|n| n.as_bytes().to_vec()).collect(),
            })
        })
        .collect()
    }
}

/// Sockets that listen.
pub struct Bound(Vec<TcpListener>);

/// Takes the addresses, before anything is imported.
///
/// # Errors
/// One of them cannot be had.
pub fn bind(addresses: &[SocketAddr]) -> Result<Bound> {
    let mut bound = Vec::new();
    for address in addresses {
        let listener = privilege::acts().listen_at(*address).map_err(|e| {
            Error::from(e).context(format!("cannot listen at '{address}' (--nfs-listen)"))
        })?;
        bound.push(listener);
    }
    Ok(Bound(bound))
}

/// The server, until it is stopped.
pub struct Serving {
    server: Arc<Server>,
    connections: Arc<Connections>,
    registered: Registered,
}

/// A connection.
struct Connection {
    stream: TcpStream,
    address: IpAddr,
    activity: Activity,
}

impl Connection {
    fn end(&self) {
        // It may be gone already.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

#[derive(Default)]
struct Connections {
    /// Those that are served.
    all: Mutex<Vec<Arc<Connection>>>,
    /// Threads, also of those that are about to end.
    threads: AtomicUsize,
}

/// Which connection ends so that another one from `address` can begin: of those that are there, address, whether something is shared
/// with the client, and when it was heard of last.
fn in_the_way<T: Ord + Copy>(there: &[(IpAddr, bool, T)], address: IpAddr) -> Option<usize> {
    let of_address = |n: &usize| there[*n].0 == address;
    let all = || 0..there.len();
    let crowd: Vec<usize> = match all().filter(of_address).count() {
        n if n >= MOST_OF_ADDRESS => all().filter(of_address).collect(),
        _ if there.len() >= MOST => all().collect(),
        _ => return None,
    };
    crowd.into_iter().min_by_key(|n| (there[*n].1, there[*n].2))
}

impl Connections {
    /// One more; another one ends for it if there are too many.
    fn add(&self, stream: TcpStream, address: IpAddr) -> Arc<Connection> {
        let new = Arc::new(Connection {
            stream,
            address,
            activity: Activity::default(),
        });
        let mut all = self.all.acquire();
        let there: Vec<_> = all
            .iter()
            .map(|c| (c.address, c.activity.is_known(), c.activity.last()))
            .collect();
        if let Some(n) = in_the_way(&there, address) {
            all.swap_remove(n).end();
        }
        all.push(new.clone());
        new
    }

    fn remove(&self, which: &Arc<Connection>) {
        self.all.acquire().retain(|c| !Arc::ptr_eq(c, which));
    }
}

impl Serving {
    /// No client is answered any more, so that none is told that what is about to be unmounted is gone.
    pub fn stop(&self) {
        self.server.stop();
        self.registered.take_back(Path::new(rpcbind::SOCKET));
        for connection in self.connections.all.acquire().iter() {
            connection.end();
        }
    }
}

/// Begins to serve.
///
/// # Errors
/// Those of making threads.
pub fn serve(admin: &Arc<Admin>, bound: Bound) -> Result<Serving> {
    let mounts = Mounts {
        admin: Arc::downgrade(admin),
        verifiers: Verifiers::new(admin.env.rng.u64()),
    };
    let server = Arc::new(Server::new(Box::new(mounts)));
    let connections: Arc<Connections> = Arc::default();
    let mut addresses = Vec::new();
    for listener in bound.0 {
        if let Ok(address) = listener.local_addr() {
            crate::log::info(&format!("NFS is served at {address}"));
            addresses.push(address);
        }
        let (server, connections) = (server.clone(), connections.clone());
        std::thread::Builder::new()
            .name("nfs-listener".into())
            .spawn(move || accept(&listener, &server, &connections))?;
    }
    Ok(Serving {
        server,
        connections,
        registered: register(&addresses),
    })
}

/// Tells rpcbind(8), if there is one, where clients find the server. Only the daemon of the system does: there is one place for each
/// program.
fn register(addresses: &[SocketAddr]) -> Registered {
    if addresses.is_empty() || !control::path::is_system_daemon() {
        return Registered::default();
    }
    match rpcbind::register(Path::new(rpcbind::SOCKET), addresses) {
        Ok(Some(registered)) => {
            crate::log::info("rpcbind tells clients of the ports of NFS");
            registered
        }
        Ok(None) => Registered::default(),
        Err(e) => {
            crate::log::warn(&format!(
                "showmount(8), and mounts that name no port, do not find this server of NFS: {e}"
            ));
            Registered::default()
        }
    }
}

fn accept(listener: &TcpListener, server: &Arc<Server>, connections: &Arc<Connections>) {
    loop {
        let (stream, from) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(e) => {
                // No descriptors, say: it passes.
                crate::log::warn(&format!("nfs: {}", base::io_text(&e)));
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        if server.is_stopping() {
            return;
        }
        // Others have ended, and wait for something still: a name server, or what they do.
        if connections.threads.load(Ordering::SeqCst) >= 2 * MOST {
            continue;
        }
        connections.threads.fetch_add(1, Ordering::SeqCst);
        let counted = Counted {
            connection: connections.add(stream, from.ip()),
            all: connections.clone(),
        };
        let server = server.clone();
        let thread = std::thread::Builder::new().name("nfs-client".into());
        let spawned = thread.spawn(move || {
            let Connection {
                stream, activity, ..
            } = &*counted.connection;
            let served =
                keep_alive(stream).and_then(|()| connection::serve(&server, stream, activity));
            if let Err(e) = served {
                tracing::debug!("a connection of NFS ended: {e}");
            }
        });
        if let Err(e) = spawned {
            crate::log::warn(&format!("nfs: {}", base::io_text(&e)));
        }
    }
}

/// Has the kernel find out clients that vanish.
fn keep_alive(stream: &TcpStream) -> Result<()> {
    let set = || -> rustix::io::Result<()> {
        sockopt::set_socket_keepalive(stream, true)?;
        sockopt::set_tcp_keepidle(stream, SILENCE)?;
        sockopt::set_tcp_keepintvl(stream, INTERVAL)?;
        sockopt::set_tcp_keepcnt(stream, QUESTIONS)
    };
    Ok(set().map_err(std::io::Error::from)?)
}

/// One of the connections, until it has ended.
struct Counted {
    connection: Arc<Connection>,
    all: Arc<Connections>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.all.remove(&self.connection);
        self.all.threads.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Shares are served by this process: [`serve`] asks for them at every request.
pub struct OwnServer;

impl Sharer for OwnServer {
    fn check(&self, _: &Candidate<'_>, share: &Share) -> Result<()> {
        nfs::check(share)
    }

    fn changed(&self) -> Result<()> {
        Ok(())
    }

    fn will_change(&self) {}
}

/// Nobody serves shares.
pub struct NoServer;

impl Sharer for NoServer {
    fn check(&self, _: &Candidate<'_>, _: &Share) -> Result<()> {
        bail!(
            Unsupported,
            "nothing serves NFS: start the daemon with --nfs-listen (see zfs-fuse(8)), or install exportfs(8) and the \
             kernel's server for root's daemon"
        );
    }

    fn changed(&self) -> Result<()> {
        Ok(())
    }

    fn will_change(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_of_strangers_keeps_nobody_out() {
        let ip = |n: u32| IpAddr::V4(n.into());
        let mut there = vec![(ip(1), true, 0)];
        assert_eq!(in_the_way(&there, ip(2)), None);
        // One address has no more than its part.
        there.extend((1..=MOST_OF_ADDRESS as u32).map(|n| (ip(2), false, n)));
        assert_eq!(in_the_way(&there, ip(2)), Some(1));
        assert_eq!(in_the_way(&there, ip(3)), None);
        // Where all places are taken a stranger goes, however long a client was silent.
        while there.len() < MOST {
            there.push((ip(there.len() as u32 + 10), false, 50));
        }
        assert_eq!(in_the_way(&there, ip(1)), Some(1));
        there.iter_mut().for_each(|(_, known, _)| *known = true);
        assert_eq!(in_the_way(&there, ip(5)), Some(0));
    }
}
