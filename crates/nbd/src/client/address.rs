//! Where an export is: URIs as the nbd project defines them (`doc/uri.md`).

use crate::numbers::MAX_NAME;
use base::{bail, Result};

/// The port of the protocol.
const PORT: u16 = 10809;

/// Where an export is, and its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// `nbd://HOST[:PORT]/EXPORT`
    Tcp {
        /// Name or number of the host, in small letters.
        host: String,
        /// TCP port.
        port: u16,
        /// Name of the export; empty: the server's default.
        export: String,
    },
    /// `nbd+unix:///EXPORT?socket=PATH`
    Unix {
        /// The socket, an absolute path.
        socket: String,
        /// Name of the export; empty: the server's default.
        export: String,
    },
}

impl Address {
    /// Reads a URI.
    ///
    /// # Errors
    /// Invalid: it is none, or says something that has no meaning here. Unsupported: TLS.
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
        match scheme {
            "nbd" => {
                if !query.is_empty() {
                    bail!(Invalid, "{uri}: nbd:// has no parameters");
                }
                let (host, port) = host_and_port(uri, place)?;
                Ok(Address::Tcp { host, port, export })
            }
            "nbd+unix" => {
                if !place.is_empty() {
                    bail!(
                        Invalid,
                        "{uri}: nbd+unix:// names no host, but ?socket=PATH"
                    );
                }
                let Some(socket) = query.strip_prefix("socket=").filter(|s| !s.contains('&'))
                else {
                    bail!(
                        Invalid,
                        "{uri}: ?socket=PATH is missing, or not all there is behind the ?"
                    );
                };
                let socket = decoded(uri, socket)?;
                if !socket.starts_with('/') {
                    bail!(Invalid, "{uri}: the socket is to be an absolute path");
                }
                Ok(Address::Unix { socket, export })
            }
            "nbds" | "nbds+unix" => bail!(Unsupported, "{uri}: TLS is not supported"),
            _ => bail!(Invalid, "{uri}: the scheme is none of nbd and nbd+unix"),
        }
    }

    /// The name of the export.
    pub fn export(&self) -> &str {
        match self {
            Address::Tcp { export, .. } | Address::Unix { export, .. } => export,
        }
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
