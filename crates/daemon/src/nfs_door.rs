//! The door for clients of NFS: shared file systems, served on TCP ports (`--nfs-listen`). The protocol is crate `nfs`'s; what is
//! shared, and how, is `admin`'s.
//!
//! The door that NFS has to a file system is in `nfs_slot.rs`.

use crate::door;
use admin::datasets::share;
use admin::shares::{Share, Sharer};
use admin::{Admin, Mounted};
use base::sync::MutexExt;
use base::{bail, Error, Result};
use nfs::{connection, Export, Exports, Inside, Server, Verifiers};
use rustix::net::sockopt;
use std::collections::HashSet;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// Connections at a time.
const MOST: usize = 128;
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

impl Mounts {
    fn export(&self, m: &Mounted, share: Arc<Share>) -> Option<Export> {
        let mount = door::parts(m)?;
        let opened = mount.nfs.opened(&mount.served()?, &self.verifiers)?;
        Some(Export {
            guid: m.ds.phys().guid,
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

    fn find(&self, guid: u64) -> Option<Export> {
        let admin = self.admin.upgrade()?;
        let is_it = |m: &Mounted| m.ds.phys().guid == guid && m.share().is_some();
        let m = admin.pools().iter().find_map(|e| e.find_mount(&is_it))?;
        self.export(&m, m.share()?)
    }

    fn inside(&self, guid: u64, name: Option<&[u8]>) -> Vec<Inside> {
        let pools = self.admin.upgrade().map(|a| a.pools()).unwrap_or_default();
        let mut below: Vec<_> = pools.iter().flat_map(|e| e.all_mounts()).collect();
        let Some(outer) = below.iter().find(|m| m.ds.phys().guid == guid).cloned() else {
            return Vec::new();
        };
        below.retain(|m| m.path != outer.path && m.path.starts_with(&outer.path));
        let is_asked_for = |m: &&Arc<Mounted>| {
            name.is_none_or(|name| m.path.file_name().is_some_and(|n| n.as_bytes() == name))
        };
        let asked: Vec<_> = below.iter().filter(is_asked_for).collect();
        if asked.is_empty() {
            return Vec::new();
        }
        let paths: HashSet<&Path> = below.iter().map(|m| m.path.as_path()).collect();
        let is_seen = |m: &&&Arc<Mounted>| !m.path.ancestors().skip(1).any(|a| paths.contains(a));
        let seen = asked.iter().filter(is_seen);
        seen.filter_map(|m| {
            let rest = m.path.strip_prefix(&outer.path).ok()?;
            Some(Inside {
                guid: m.ds.phys().guid,
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
        let listener = TcpListener::bind(address).map_err(|e| {
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
}

#[derive(Default)]
struct Connections {
    number: AtomicUsize,
    streams: Mutex<Vec<Weak<TcpStream>>>,
}

impl Serving {
    /// No client is answered any more, so that none is told that what is about to be unmounted is gone.
    pub fn stop(&self) {
        self.server.stop();
        for stream in self.connections.streams.acquire().iter() {
            if let Some(stream) = stream.upgrade() {
                // It may be gone already.
                let _ = stream.shutdown(std::net::Shutdown::Both);
            }
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
    for listener in bound.0 {
        if let Ok(address) = listener.local_addr() {
            crate::log::info(&format!("NFS is served at {address}"));
        }
        let (server, connections) = (server.clone(), connections.clone());
        std::thread::Builder::new()
            .name("nfs-listener".into())
            .spawn(move || accept(&listener, &server, &connections))?;
    }
    Ok(Serving {
        server,
        connections,
    })
}

fn accept(listener: &TcpListener, server: &Arc<Server>, connections: &Arc<Connections>) {
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => Arc::new(stream),
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
        if connections.number.load(Ordering::SeqCst) >= MOST {
            continue;
        }
        let counted = Counted::new(connections, &stream);
        let server = server.clone();
        let thread = std::thread::Builder::new().name("nfs-client".into());
        let spawned = thread.spawn(move || {
            let _counted = counted;
            let served = keep_alive(&stream).and_then(|()| connection::serve(&server, &stream));
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

/// One of the connections.
struct Counted(Arc<Connections>);

impl Counted {
    fn new(all: &Arc<Connections>, stream: &Arc<TcpStream>) -> Counted {
        all.number.fetch_add(1, Ordering::SeqCst);
        let mut streams = all.streams.acquire();
        streams.retain(|s| s.strong_count() > 0);
        streams.push(Arc::downgrade(stream));
        Counted(all.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.number.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Shares are served by this process: [`serve`] asks for them at every request.
pub struct OwnServer;

impl Sharer for OwnServer {
    fn check(&self, share: &Share) -> Result<()> {
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
    fn check(&self, _: &Share) -> Result<()> {
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
