//! Where an export is: URIs as the nbd project defines them (`doc/uri.md`).

use crate::numbers::MAX_NAME;
use base::{bail, Result};

/// The port of the protocol.
const PORT: u16 = 10809;

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// `nbd://HOST[:PORT]/EXPORT`, `nbds://…`
    Tcp {
        /// Name or number of the host, in small letters.
        host: String,
        /// TCP port.
        port: u16,
    },
    /// `nbd+unix:///EXPORT?socket=PATH`, `nbds+unix://…`
    Unix {
        /// The socket, an absolute path.
        socket: String,
    },
}

/// What is asked of TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Secure {
    /// `tls-certificates`: the folder of the certificates, an absolute path ([`crate::ServerTls`] says what is in it).
    pub certificates: Option<String>,
    /// `tls-hostname`: the host that the server's certificate must name, if it is not the one of the address.
    pub host: Option<String>,
}

/// Where an export is, and its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// The server.
    pub place: Place,
    /// Name of the export; empty: the server's default.
    pub export: String,
    /// The schemes `nbds` and `nbds+unix`.
    pub tls: Option<Secure>,
}

impl Address {
    /// Reads a URI.
    ///
    /// # Errors
    /// Invalid: it is none, or says something that has no meaning here. Unsupported: keys agreed on before (PSK), and servers that are not to be verified.
    pub fn parse(uri: &str) -> Result<Address> {
        let Some((scheme, rest)) = uri.split_once("://") else {
            bail!(
                Invalid,
                "{uri}: an address is nbd://HOST/EXPORT or nbd+unix:///EXPORT?socket=PATH"
            );
        };
        if rest.contains('#') {
            bail!(Invalid, "{uri}: has a fragment (#)");
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (place, export) = rest.split_once('/').unwrap_or((rest, ""));
        let export = decoded(uri, export)?;
        if export.len() > MAX_NAME as usize {
            bail!(
                Invalid,
                "{uri}: the name of the export is longer than {MAX_NAME} bytes"
            );
        }
        let (unix, tls) = match scheme {
            "nbd" => (false, None),
            "nbds" => (false, Some(Secure::default())),
            "nbd+unix" => (true, None),
            "nbds+unix" => (true, Some(Secure::default())),
            _ => bail!(
                Invalid,
                "{uri}: the scheme is none of nbd, nbds, nbd+unix and nbds+unix"
            ),
        };
        let mut said = Said { socket: None, tls };
        for parameter in query.split('&').filter(|_| !query.is_empty()) {
            said.parameter(uri, parameter)?;
        }
        let place = match (unix, said.socket) {
            (false, None) => {
                let (host, port) = host_and_port(uri, place)?;
                Place::Tcp { host, port }
            }
            (false, Some(_)) => bail!(Invalid, "{uri}: {scheme}:// has no socket"),
            (true, _) if !place.is_empty() => bail!(
                Invalid,
                "{uri}: {scheme}:// names no host, but ?socket=PATH"
            ),
            (true, None) => bail!(Invalid, "{uri}: ?socket=PATH is missing"),
            (true, Some(socket)) => Place::Unix { socket },
        };
        let tls = said.tls;
        Ok(Address { place, export, tls })
    }

    /// The host that a certificate of the server must name. Over a socket of this machine `localhost`, if nothing else is said.
    pub fn certified_host(&self) -> &str {
        let said = self.tls.as_ref().and_then(|t| t.host.as_deref());
        said.unwrap_or(match &self.place {
            Place::Tcp { host, .. } => host,
            Place::Unix { .. } => "localhost",
        })
    }
}

/// What the parameters behind `?` say.
struct Said {
    socket: Option<String>,
    tls: Option<Secure>,
}

impl Said {
    fn parameter(&mut self, uri: &str, parameter: &str) -> Result<()> {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let value = decoded(uri, value)?;
        let is_path = value.starts_with('/');
        let place = match (name, &mut self.tls) {
            ("socket", _) => &mut self.socket,
            ("tls-certificates", Some(tls)) => &mut tls.certificates,
            ("tls-hostname", Some(tls)) => &mut tls.host,
            ("tls-verify-peer" | "tls-username" | "tls-psk-file" | "tls-type", Some(_)) => {
                bail!(Unsupported, "{uri}: {name} is not supported")
            }
            _ => bail!(Invalid, "{uri}: unknown parameter '{name}'"),
        };
        if place.is_some() {
            bail!(Invalid, "{uri}: {name} is there twice");
        }
        if value.is_empty() {
            bail!(Invalid, "{uri}: {name} has no value");
        }
        if name != "tls-hostname" && !is_path {
            bail!(Invalid, "{uri}: {name} is to be an absolute path");
        }
        *place = Some(value);
        Ok(())
    }
}

fn host_and_port(uri: &str, place: &str) -> Result<(String, u16)> {
    let (host, port) = match place.strip_prefix('[') {
        // A number of IPv6.
        Some(rest) => match rest.split_once(']') {
            Some((host, port)) => (
                host,
                port.strip_prefix(':').or(port.is_empty().then_some("")),
            ),
            None => bail!(Invalid, "{uri}: [ without ]"),
        },
        None => {
            let (host, port) = place.split_once(':').unwrap_or((place, ""));
            (host, Some(port))
        }
    };
    let port = match port {
        Some("") => Some(PORT),
        Some(p) => p.parse().ok().filter(|p| *p != 0),
        None => None,
    };
    let Some(port) = port else {
        bail!(Invalid, "{uri}: behind the host comes a port, 1 to 65535");
    };
    let host = decoded(uri, host)?.to_ascii_lowercase();
    if host.is_empty() || host.contains('@') {
        bail!(Invalid, "{uri}: between // and / comes a host");
    }
    Ok((host, port))
}

/// With each `%XX` replaced by the byte.
fn decoded(uri: &str, text: &str) -> Result<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut left = text.bytes();
    while let Some(b) = left.next() {
        if b != b'%' {
            out.push(b);
            continue;
        }
        let mut digit = || char::from(left.next()?).to_digit(16);
        match (digit(), digit()) {
            (Some(high), Some(low)) if high + low > 0 => out.push((high * 16 + low) as u8),
            _ => bail!(
                Invalid,
                "{uri}: behind % come two hexadecimal digits, not both 0"
            ),
        }
    }
    match String::from_utf8(out) {
        Ok(text) => Ok(text),
        Err(_) => bail!(Invalid, "{uri}: is not UTF-8"),
    }
}
