//! Both sides of the protocol over TLS, with certificates made for the test.

use super::*;
use crate::client::tests::{memory, One};
use crate::client::{Address, Connection, Failure, Streams};
use crate::{serve, Options};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);

/// A folder that goes with the value.
pub(crate) struct Folder(pub PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An authority, which signs.
struct Authority(Issuer<'static, KeyPair>, String);

impl Authority {
    fn new() -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Authority(Issuer::new(params, key), pem)
    }

    /// Certificate and key for a host.
    fn sign(&self, host: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![host.to_string()]).unwrap();
        let cert = params.signed_by(&key, &self.0).unwrap();
        (cert.pem(), key.serialize_pem())
    }
}

/// A folder with these files.
fn folder(name: &str, files: &[(&str, &str)]) -> Folder {
    let at = std::env::temp_dir().join(format!("nbd-tls-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&at);
    std::fs::create_dir_all(&at).unwrap();
    for (file, content) in files {
        std::fs::write(at.join(file), content).unwrap();
    }
    Folder(at)
}

/// Connects to a server of one device in memory; what the server said at the end.
fn connect(
    tls: Option<&ServerTls>,
    uri: &str,
    then: impl FnOnce(Connection),
) -> (Result<()>, Result<()>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let tls = tls.cloned();
    let server = std::thread::spawn(move || {
        let (from, end) = (theirs.try_clone().unwrap(), theirs.try_clone().unwrap());
        let options = Options {
            threads: 4,
            chosen: &|| (),
            tls: tls.as_ref(),
            hang_up: &|| drop(end.shutdown(Shutdown::Both)),
        };
        let done = serve(from, &theirs, &One(memory()), &options);
        let _ = theirs.shutdown(Shutdown::Both);
        done
    });
    let (to, end, limit) = (
        ours.try_clone().unwrap(),
        ours.try_clone().unwrap(),
        ours.try_clone().unwrap(),
    );
    let streams = Streams {
        from: Box::new(ours),
        to: Box::new(to),
        hang_up: Box::new(move || drop(end.shutdown(Shutdown::Both))),
        set_limit: Box::new(move |most| limit.set_read_timeout(most)),
    };
    let address = Address::parse(uri).unwrap();
    let client = Connection::over(streams, &address, PATIENCE, PATIENCE).map(then);
    (client, server.join().unwrap())
}

#[test]
fn many_threads_read_and_write_over_tls() {
    let authority = Authority::new();
    let (cert, key) = authority.sign("store");
    let theirs = folder(
        "many-s",
        &[("server-cert.pem", &cert), ("server-key.pem", &key)],
    );
    let ours = folder("many-c", &[("ca-cert.pem", &authority.1)]);
    let tls = ServerTls::from_folder(&theirs.0).unwrap();
    let uri = format!("nbds://store/disk?tls-certificates={}", ours.0.display());
    let used = |c: Connection| {
        std::thread::scope(|s| {
            for n in 0..6u8 {
                let c = &c;
                s.spawn(move || {
                    for turn in 0..12u64 {
                        let at = u64::from(n) * (512 << 10) + (turn % 3) * (100 << 10);
                        let data = vec![n ^ turn as u8; 100 << 10];
                        c.write(at, &data).unwrap();
                        assert!(c.read(at, data.len()).unwrap() == data);
                    }
                });
            }
        });
        c.flush().unwrap();
        assert!(matches!(c.read(1 << 40, 512), Err(Failure::Refused(_))));
    };
    let (client, server) = connect(Some(&tls), &uri, used);
    client.unwrap();
    server.unwrap();
}

#[test]
fn who_is_not_known_gets_nothing() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (cert, key) = authority.sign("store");
    let mut files = vec![
        ("server-cert.pem", cert.as_str()),
        ("server-key.pem", key.as_str()),
    ];
    let plain = folder("who-s", &files);
    files.push(("ca-cert.pem", authority.1.as_str()));
    let asking = folder("who-a", &files);
    assert!(ServerTls::asks_clients(&asking.0) && !ServerTls::asks_clients(&plain.0));
    let open = ServerTls::from_folder(&plain.0).unwrap();
    let closed = ServerTls::from_folder(&asking.0).unwrap();
    let (mine, my_key) = authority.sign("client");
    let (foreign, foreign_key) = other.sign("client");
    let stranger = folder("who-1", &[("ca-cert.pem", &authority.1)]);
    let member = folder(
        "who-2",
        &[
            ("ca-cert.pem", &authority.1),
            ("client-cert.pem", &mine),
            ("client-key.pem", &my_key),
        ],
    );
    let forger = folder(
        "who-3",
        &[
            ("ca-cert.pem", &authority.1),
            ("client-cert.pem", &foreign),
            ("client-key.pem", &foreign_key),
        ],
    );
    let doubter = folder("who-4", &[("ca-cert.pem", &other.1)]);
    let uri = |host: &str, at: &Folder, more: &str| {
        format!(
            "nbds://{host}/disk?tls-certificates={}{more}",
            at.0.display()
        )
    };
    let reads = |c: Connection| match c.read(0, 512) {
        Ok(data) => assert_eq!(data.len(), 512),
        // With TLS 1.3 a client has ended its handshake before the server looks at its certificate.
        Err(Failure::Lost(_)) => panic!("lost"),
        Err(e) => panic!("{e:?}"),
    };
    connect(Some(&closed), &uri("store", &member, ""), reads)
        .0
        .unwrap();
    connect(Some(&open), &uri("store", &stranger, ""), reads)
        .0
        .unwrap();
    let named = uri("elsewhere", &stranger, "&tls-hostname=store");
    connect(Some(&open), &named, reads).0.unwrap();
    for (tls, uri) in [
        (Some(&closed), uri("store", &stranger, "")),
        (Some(&closed), uri("store", &forger, "")),
        (Some(&open), uri("store", &doubter, "")),
        (Some(&open), uri("elsewhere", &stranger, "")),
        (Some(&open), "nbd://store/disk".into()),
        (None, uri("store", &stranger, "")),
    ] {
        let got = Arc::new(Mutex::new(false));
        let read = got.clone();
        let (client, _) = connect(tls, &uri, move |c| {
            *read.acquire() = c.read(0, 512).is_ok();
        });
        assert!(!*got.acquire(), "{uri}");
        if let Err(e) = client {
            assert!(
                matches!(e.kind, Kind::Access | Kind::Again | Kind::Io),
                "{uri}: {e:?}"
            );
        }
    }
    // An older client, which knows only EXPORT_NAME, and one that asks for a list.
    let said = |option: u32| {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let tls = open.clone();
        let at = std::thread::spawn(move || {
            let options = Options {
                threads: 1,
                chosen: &|| panic!("chosen without TLS"),
                tls: Some(&tls),
                hang_up: &|| (),
            };
            let done = serve(&theirs, &theirs, &One(memory()), &options);
            let _ = theirs.shutdown(Shutdown::Both);
            done
        });
        let mut talk = 3u32.to_be_bytes().to_vec();
        talk.extend(crate::numbers::IHAVEOPT.to_be_bytes());
        talk.extend(option.to_be_bytes());
        talk.extend(0u32.to_be_bytes());
        ours.write_all(&talk).unwrap();
        ours.shutdown(Shutdown::Write).unwrap();
        let mut all = Vec::new();
        ours.read_to_end(&mut all).unwrap();
        (all.split_off(18), at.join().unwrap())
    };
    assert!(said(1).0.is_empty());
    let (list, _) = said(3);
    assert_eq!(list[8..16], [0, 0, 0, 3, 0x80, 0, 0, 5], "TLS is required");
}

#[test]
fn folders_are_looked_at() {
    let authority = Authority::new();
    let ((cert, key), (_, other)) = (authority.sign("a"), authority.sign("b"));
    let of = |files: &[(&str, &str)]| {
        let at = folder("look", files);
        ServerTls::from_folder(&at.0).unwrap_err()
    };
    assert_eq!(of(&[]).kind, Kind::NotFound);
    assert_eq!(of(&[("server-cert.pem", &cert)]).kind, Kind::NotFound);
    for (c, k, named) in [
        (key.as_str(), key.as_str(), "server-cert.pem"),
        (cert.as_str(), cert.as_str(), "server-key.pem"),
        (cert.as_str(), other.as_str(), "server-key.pem"),
        ("", "", "server-cert.pem"),
    ] {
        let e = of(&[("server-cert.pem", c), ("server-key.pem", k)]);
        assert!(
            e.kind == Kind::Invalid && e.to_string().contains(named),
            "{e}"
        );
    }
    let empty = folder("look-c", &[]);
    assert_eq!(
        ClientTls::new(Some(&empty.0)).unwrap_err().kind,
        Kind::NotFound
    );
}
