//! TLS below the protocol: certificates in folders, named as nbdkit and libnbd name them, and a connection that one thread reads while others write.
//!
//! A folder of a server has `server-cert.pem` (its certificate, and those between it and the authority) and `server-key.pem`; with `ca-cert.pem`, too,
//! clients must have a certificate which that authority has signed. A folder of a client has `ca-cert.pem`, the authority that signs for
//! servers, and may have `client-cert.pem` and `client-key.pem`.
//!
//! 1. Whoever writes holds [`Out`] until what was encrypted is sent, so that records leave in the order of their numbers.
//! 2. Nobody waits for the socket while holding the state of the connection. `Out` is taken before it, never behind it.

use base::sync::MutexExt;
use base::{bail, Error, Kind, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Bytes that are taken from the socket at a time.
const BUFFER: usize = 16 << 10;

/// What a server shows of itself, and asks of clients.
#[derive(Clone, Debug)]
pub struct ServerTls(Arc<ServerConfig>);

/// Whom a client believes, and what it shows of itself.
#[derive(Clone, Debug)]
pub struct ClientTls(Arc<ClientConfig>);

fn wrong(e: rustls::Error) -> Error {
    Error::new(Kind::Access, format!("TLS: {e}"))
}

fn unreadable(path: &Path, e: impl std::fmt::Display) -> Error {
    Error::new(Kind::Invalid, format!("{}: {e}", path.display()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let bytes =
        std::fs::read(path).map_err(|e| Error::from(e).context(path.display().to_string()))?;
    let all: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err(unreadable(path, "there is no certificate in it")),
        Err(e) => Err(unreadable(path, e)),
    }
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    let bytes =
        std::fs::read(path).map_err(|e| Error::from(e).context(path.display().to_string()))?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|e| unreadable(path, e))
}

fn authorities(path: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for c in certificates(path)? {
        roots.add(c).map_err(|e| unreadable(path, e))?;
    }
    Ok(roots)
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

impl ServerTls {
    /// Reads a folder.
    ///
    /// # Errors
    /// Those of reading; `Invalid`: what is in a file is no certificate or key, or the two do not belong together.
    pub fn from_folder(folder: &Path) -> Result<ServerTls> {
        let chain = certificates(&folder.join("server-cert.pem"))?;
        let key_at = folder.join("server-key.pem");
        let key = key(&key_at)?;
        let authority = folder.join("ca-cert.pem");
        let begin = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(wrong)?;
        let begin = match authority.exists() {
            true => {
                let roots = Arc::new(authorities(&authority)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
                let verifier = verifier.build().map_err(|e| unreadable(&authority, e))?;
                begin.with_client_cert_verifier(verifier)
            }
            false => begin.with_no_client_auth(),
        };
        let config = begin.with_single_cert(chain, key);
        Ok(ServerTls(Arc::new(
            config.map_err(|e| unreadable(&key_at, e))?,
        )))
    }

    /// Whether clients need a certificate in the folder.
    pub fn asks_clients(folder: &Path) -> bool {
        folder.join("ca-cert.pem").exists()
    }

    /// The handshake with a client.
    pub(crate) fn accept<R: Read, W: Write>(
        &self,
        from: R,
        to: W,
    ) -> Result<(Reader<R, W>, Writer<W>)> {
        let c = ServerConnection::new(self.0.clone()).map_err(wrong)?;
        split(c.into(), from, to)
    }
}

impl ClientTls {
    /// Reads a folder; without one the authorities of the system are believed, and nothing is shown.
    ///
    /// # Errors
    /// Those of reading; `Invalid`: what is in a file is no certificate or key, or the two do not belong together. `NotFound`: the system has
    /// no authorities.
    pub fn new(folder: Option<&Path>) -> Result<ClientTls> {
        let roots = match folder {
            Some(folder) => authorities(&folder.join("ca-cert.pem"))?,
            None => {
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                if roots.is_empty() {
                    bail!(
                        NotFound,
                        "TLS: this system believes no authority: name a folder with tls-certificates="
                    );
                }
                roots
            }
        };
        let begin = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(wrong)?
            .with_root_certificates(roots);
        let own = folder.map(|f| (f.join("client-cert.pem"), f.join("client-key.pem")));
        let config = match own.filter(|(cert, _)| cert.exists()) {
            Some((cert, key_at)) => begin
                .with_client_auth_cert(certificates(&cert)?, key(&key_at)?)
                .map_err(|e| unreadable(&key_at, e))?,
            None => begin.with_no_client_auth(),
        };
        Ok(ClientTls(Arc::new(config)))
    }

    /// The handshake with a server that must be `host`.
    pub(crate) fn connect<R: Read, W: Write>(
        &self,
        host: &str,
        from: R,
        to: W,
    ) -> Result<(Reader<R, W>, Writer<W>)> {
        let Ok(name) = ServerName::try_from(host.to_string()) else {
            bail!(Invalid, "TLS: '{host}' is no name of a host");
        };
        let c = ClientConnection::new(self.0.clone(), name).map_err(wrong)?;
        split(c.into(), from, to)
    }
}

/// The way out.
struct Out<W> {
    to: W,
    /// Encrypted, not sent.
    ready: Vec<u8>,
}

struct Shared<W> {
    out: Mutex<Out<W>>,
    state: Mutex<rustls::Connection>,
}

impl<W: Write> Shared<W> {
    /// Sends what is ready.
    fn send(&self, out: &mut Out<W>) -> io::Result<()> {
        let mut state = self.state.acquire();
        while state.wants_write() {
            state.write_tls(&mut out.ready)?;
        }
        drop(state);
        let sent = out.to.write_all(&out.ready);
        out.ready.clear();
        sent
    }
}

/// What comes over a connection.
pub(crate) struct Reader<R, W> {
    from: R,
    shared: Arc<Shared<W>>,
    raw: Vec<u8>,
    /// What of `raw` has not been looked at.
    left: std::ops::Range<usize>,
}

/// What goes over a connection.
pub(crate) struct Writer<W>(Arc<Shared<W>>);

fn failed(e: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("TLS: {e}"))
}

fn split<R: Read, W: Write>(
    state: rustls::Connection,
    from: R,
    to: W,
) -> Result<(Reader<R, W>, Writer<W>)> {
    let ready = Vec::new();
    let shared = Arc::new(Shared {
        out: Mutex::new(Out { to, ready }),
        state: Mutex::new(state),
    });
    let mut reader = Reader {
        from,
        shared: shared.clone(),
        raw: vec![0; BUFFER],
        left: 0..0,
    };
    let mut writer = Writer(shared.clone());
    writer.flush()?;
    while shared.state.acquire().is_handshaking() {
        if !reader.more().map_err(access)? {
            bail!(Again, "TLS: the other side left during the handshake");
        }
        writer.flush()?;
    }
    Ok((reader, writer))
}

/// What the handshake says is wrong concerns who may, not the device.
fn access(e: io::Error) -> Error {
    match e.kind() {
        io::ErrorKind::InvalidData => Error::new(Kind::Access, e.to_string()),
        _ => e.into(),
    }
}

impl<R: Read, W: Write> Reader<R, W> {
    /// Takes something from the socket; false: it has ended.
    fn more(&mut self) -> io::Result<bool> {
        if self.left.is_empty() {
            let n = loop {
                match self.from.read(&mut self.raw) {
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    other => break other?,
                }
            };
            self.left = 0..n;
        }
        let mut some = self.raw.get(self.left.clone()).unwrap_or_default();
        let mut state = self.shared.state.acquire();
        let n = state.read_tls(&mut some)?;
        self.left.start += n;
        let done = state.process_new_packets().map_err(failed);
        let answers = state.wants_write();
        drop(state);
        if answers {
            // Also the reason why it ends.
            let mut out = self.shared.out.acquire();
            let sent = self.shared.send(&mut out).and_then(|()| out.to.flush());
            done?;
            sent?;
        } else {
            done?;
        }
        Ok(n > 0)
    }
}

impl<R: Read, W: Write> Read for Reader<R, W> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.shared.state.acquire().reader().read(buf);
            match read {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                // Many end without saying so; the protocol has an end of its own.
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                other => return other,
            }
            self.more()?;
        }
    }
}

impl<W: Write> Write for Writer<W> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let mut out = self.0.out.acquire();
        let n = self.0.state.acquire().writer().write(buf)?;
        self.0.send(&mut out)?;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut out = self.0.out.acquire();
        self.0.send(&mut out)?;
        out.to.flush()
    }
}

#[cfg(test)]
pub(crate) mod tests;
