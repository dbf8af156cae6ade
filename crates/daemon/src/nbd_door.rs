//! The door for block devices: every volume of every imported pool is an export of an NBD server on a Unix socket of the owner's
//! (`nbdinfo 'nbd+unix:///tank/vol?socket=…'`). The protocol is crate `nbd`'s; the volumes are `admin`'s.
//!
//! Who may connect: root, and the user the daemon runs for. Clients on other machines (`--nbd-listen`): those whose address was
//! allowed, over TLS where there are certificates, which they must have, too, if there is an authority for them. A client can
//! read and write every volume.

use crate::options::{Network, Remote};
use admin::volumes::{self, Client};
use admin::Admin;
use base::{bail, Error, Kind, Result};
use nbd::{Export, Exports, Extent, Options, ServerTls};
use std::fs;
use std::io::{self, BufReader, BufWriter};
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Connections at a time.
const MOST: usize = 128;
/// Threads for each connection.
const THREADS: usize = 4;
/// How long a client may take to choose an export.
const NEGOTIATION: Duration = Duration::from_secs(20);
/// Bytes that are gathered from and for the socket.
const GATHERED: usize = 64 << 10;

/// A listening socket; it is taken away when this is dropped.
pub struct Listening {
    path: PathBuf,
}

impl Drop for Listening {
    fn drop(&mut self) {
        if is_socket(&self.path) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Where it listens unless told otherwise: beside the control socket.
pub fn usual_path(control: &Path) -> PathBuf {
    control.with_file_name("nbd.sock")
}

fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket())
}

/// Begins to serve the volumes at `path`.
///
/// # Errors
/// Exists: something other than a socket is there. Busy: another program answers there. Those of making the socket and a thread.
pub fn listen(admin: &Arc<Admin>, path: &Path) -> Result<Listening> {
    let at = |e: std::io::Error| {
        Error::from(e).context(format!("cannot listen at '{}'", path.display()))
    };
    match UnixStream::connect(path) {
        Ok(_) => bail!(
            Busy,
            "another program serves at '{}'; give another path with --nbd-socket",
            path.display()
        ),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(_) if is_socket(path) => fs::remove_file(path).map_err(at)?,
        Err(_) => bail!(
            Exists,
            "cannot listen at '{}': something other than a socket is there; it is left as it is",
            path.display()
        ),
    }
    let listener = privilege::acts().listen(path, 0o600).map_err(at)?;
    let listening = Listening { path: path.into() };
    let admin = Arc::downgrade(admin);
    let next = move || {
        let (stream, _) = listener.accept()?;
        // The socket was everybody's for a moment after it was made.
        Ok(is_owner(&stream).then_some(stream))
    };
    std::thread::Builder::new()
        .name("nbd-listener".into())
        .spawn(move || accept(&next, None, &admin))
        .map_err(at)?;
    Ok(listening)
}

/// Addresses for other machines, which nobody is served at yet.
pub struct Bound {
    listeners: Vec<TcpListener>,
    allowed: Vec<Network>,
    tls: Option<ServerTls>,
}

/// Takes the addresses and reads the certificates, before anything is imported.
///
/// # Errors
/// An address cannot be had; those of [`ServerTls::from_folder`].
pub fn bind(remote: &Remote) -> Result<Bound> {
    let tls = remote.tls.as_deref().map(ServerTls::from_folder);
    let tls = tls.transpose().map_err(|e| e.context("--nbd-tls"))?;
    let listen = |address: &SocketAddr| {
        privilege::acts().listen_at(*address).map_err(|e| {
            Error::from(e).context(format!("cannot listen at '{address}' (--nbd-listen)"))
        })
    };
    let listeners = remote.listen.iter().map(listen);
    Ok(Bound {
        listeners: listeners.collect::<Result<_>>()?,
        allowed: remote.allow.clone(),
        tls,
    })
}

/// Serves the volumes there.
///
/// # Errors
/// Those of making threads.
pub fn serve_remote(admin: &Arc<Admin>, bound: Bound) -> Result<()> {
    for listener in bound.listeners {
        let (admin, tls) = (Arc::downgrade(admin), bound.tls.clone());
        let allowed = bound.allowed.clone();
        let next = move || {
            let (stream, from) = listener.accept()?;
            let may = allowed.is_empty() || allowed.iter().any(|n| n.has(from.ip()));
            if !may {
                tracing::debug!("nbd: {from} may not come");
                return Ok(None);
            }
            stream.set_nodelay(true)?;
            // A machine that is gone says nothing: its volumes are to be free again.
            rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
            // What the standard library does with a stream it does whatever the family is.
            Ok(Some(UnixStream::from(OwnedFd::from(stream))))
        };
        std::thread::Builder::new()
            .name("nbd-listener".into())
            .spawn(move || accept(&next, tls, &admin))?;
    }
    Ok(())
}

/// Serves whoever comes next, for good; `None`: who may not.
fn accept(
    next: &dyn Fn() -> io::Result<Option<UnixStream>>,
    tls: Option<ServerTls>,
    admin: &Weak<Admin>,
) {
    let connections = Arc::new(AtomicUsize::new(0));
    loop {
        let stream = match next() {
            Ok(Some(stream)) => stream,
            Ok(None) => continue,
            Err(e) => {
                // No descriptors, say: it passes.
                crate::log::warn(&format!("nbd: {}", base::io_text(&e)));
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        if admin.strong_count() == 0 {
            return;
        }
        if connections.load(Ordering::SeqCst) >= MOST {
            continue;
        }
        let counted = Counted::new(&connections);
        let (admin, tls) = (admin.clone(), tls.clone());
        let thread = std::thread::Builder::new().name("nbd".into());
        let spawned = thread.spawn(move || {
            let _counted = counted;
            if let Err(e) = serve(&admin, stream, tls.as_ref()) {
                tracing::debug!("an NBD connection ended: {e}");
            }
        });
        if let Err(e) = spawned {
            crate::log::warn(&format!("nbd: {}", base::io_text(&e)));
        }
    }
}

/// One of the connections.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(all: &Arc<AtomicUsize>) -> Counted {
        all.fetch_add(1, Ordering::SeqCst);
        Counted(all.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn is_owner(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let peer = rustix::net::sockopt::socket_peercred(stream);
    peer.is_ok_and(|p| p.uid.as_raw() == own || p.uid.is_root())
}

fn serve(admin: &Weak<Admin>, stream: UnixStream, tls: Option<&ServerTls>) -> Result<()> {
    stream.set_read_timeout(Some(NEGOTIATION))?;
    stream.set_write_timeout(Some(NEGOTIATION))?;
    let stream = Arc::new(stream);
    let shelf = Shelf {
        admin: admin.clone(),
        stream: stream.clone(),
    };
    let options = Options {
        threads: THREADS,
        chosen: &|| {
            let _ = stream.set_read_timeout(None);
            let _ = stream.set_write_timeout(None);
        },
        tls,
        hang_up: &|| hang_up(&stream),
    };
    let from = BufReader::with_capacity(GATHERED, &*stream);
    let to = BufWriter::with_capacity(GATHERED, &*stream);
    let served = nbd::serve(from, to, &shelf, &options);
    hang_up(&stream);
    served
}

fn hang_up(stream: &UnixStream) {
    // It may be gone already.
    let _ = stream.shutdown(Shutdown::Both);
}

/// The volumes, for one connection.
struct Shelf {
    admin: Weak<Admin>,
    stream: Arc<UnixStream>,
}

impl Shelf {
    fn admin(&self) -> Result<Arc<Admin>> {
        self.admin
            .upgrade()
            .ok_or_else(|| Error::new(Kind::Stale, "the daemon is about to end"))
    }
}

impl Exports for Shelf {
    fn names(&self) -> Result<Vec<String>> {
        Ok(volumes::names(&*self.admin()?))
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Export>> {
        let stream = self.stream.clone();
        let client = volumes::open(&*self.admin()?, name, Arc::new(move || hang_up(&stream)))?;
        Ok(Arc::new(Opened(client)))
    }
}

/// A volume that a client has open.
struct Opened(Client);

impl Export for Opened {
    fn size(&self) -> u64 {
        self.0.zvol().size()
    }
    fn block_size(&self) -> u32 {
        self.0.zvol().block_size()
    }
    fn is_read_only(&self) -> bool {
        self.0.zvol().is_read_only()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.0.zvol().read(offset, buf)
    }
    fn write(&self, offset: u64, data: &[u8], fua: bool) -> Result<()> {
        self.0.zvol().write(offset, data, fua)
    }
    fn flush(&self) -> Result<()> {
        self.0.zvol().flush()
    }
    fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        self.0.zvol().trim(offset, len, fua)
    }
    fn zero(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        self.0.zvol().zero(offset, len, fua)
    }
    fn extent(&self, offset: u64) -> Result<Extent> {
        let (end, data) = self.0.zvol().extent(offset)?;
        Ok(Extent { end, data })
    }
    fn cache(&self, offset: u64, len: u64) {
        self.0.zvol().cache(offset, len);
    }
}
