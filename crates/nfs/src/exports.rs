//! What is served to whom: [`Exports`] says which file systems are shared now, [`Access`] what a client may do in one.

use crate::handle::FileSystem;
use crate::rpc::Auth;
use admin::shares::options::{Client, Rule, Share};
use base::sync::{MutexExt, ReadGuard, RwLockExt};
use base::{bail, Kind, Result};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};
use vfs::{Door, Nothing, Place, Served};
use zpl::Cred;

/// How long the addresses of a name are believed.
const FRESH: Duration = Duration::from_secs(60);
/// Below it are the ports that only root of a machine may use.
const RESERVED: u16 = 1024;

/// The shared file systems at this moment.
pub trait Exports: Send + Sync {
    /// All, by path.
    fn list(&self) -> Vec<Export>;

    /// One of them.
    fn find(&self, fs: FileSystem) -> Option<Export>;

    /// Whether something is mounted, in a view, in an object of a file system, though it may have no name there on the disk.
    fn holds_mounts(&self, fs: FileSystem, place: &Place) -> bool {
        let _ = (fs, place);
        false
    }

    /// File systems that are mounted inside this one, with nothing else mounted between: all, or those whose mount points have a
    /// name.
    fn inside(&self, fs: FileSystem, name: Option<&[u8]>) -> Vec<Inside> {
        let _ = (fs, name);
        Vec::new()
    }
}

/// A file system that is mounted inside a shared one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inside {
    /// Which it is.
    pub fs: FileSystem,
    /// Names from the root of the outer one to its mount point: one at least.
    pub way: Vec<Vec<u8>>,
}

/// A shared file system.
#[derive(Clone)]
pub struct Export {
    /// Which it is.
    pub fs: FileSystem,
    /// Where it is mounted, by which clients name it.
    pub path: Vec<u8>,
    /// How it is shared.
    pub share: Arc<Share>,
    /// The way in.
    pub opened: Arc<Opened>,
}

/// The door of the clients of NFS to one file system in service.
pub struct Opened {
    door: Arc<Door>,
    /// Service ends: requests that wait are let go.
    over: AtomicBool,
    /// Whether it is closed.
    closed: RwLock<bool>,
    /// See [`Opened::verifier`].
    verifier: u64,
    /// Held while a file is changed on a condition.
    pub guarded: Mutex<()>,
}

/// A door in use by one request.
pub struct Entered<'a> {
    opened: &'a Opened,
    _open: ReadGuard<'a, bool>,
}

impl Opened {
    /// Opens a door. `verifier`: no other door has had it.
    ///
    /// # Errors
    /// The root directory cannot be read.
    pub fn new(served: &Arc<Served>, verifier: u64) -> Result<Arc<Opened>> {
        let door = Door::open_to(served)?;
        // Nobody is told, but what the door notes for those who would be goes.
        door.subscribe(Arc::new(Nothing));
        Ok(Arc::new(Opened {
            door,
            over: AtomicBool::new(false),
            closed: RwLock::new(false),
            verifier,
            guarded: Mutex::default(),
        }))
    }

    /// Lets a request in. None: it is closed.
    pub fn enter(&self) -> Option<Entered<'_>> {
        let open = self.closed.acquire_read();
        (!*open).then_some(Entered {
            opened: self,
            _open: open,
        })
    }

    /// What was written and not committed may not be there any more when this differs: it changes with every loss of changes that
    /// had been accepted, whoever is told of it first ([`zpl::losses`]). To be asked before something is written, and after it was
    /// committed.
    pub fn verifier(&self) -> [u8; 8] {
        // The lowest bits tell doors from each other.
        let losses = zpl::losses() << 40;
        self.verifier.wrapping_add(losses).to_be_bytes()
    }

    /// Whether service ends.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Closes it: requests that wait fail, others are waited for.
    pub fn close(&self) {
        self.over.store(true, Ordering::SeqCst);
        let mut closed = self.closed.acquire_write();
        if !std::mem::replace(&mut *closed, true) {
            self.door.close();
        }
    }

    /// What it leads to.
    pub fn served(&self) -> &Arc<Served> {
        self.door.served()
    }
}

impl std::ops::Deref for Entered<'_> {
    type Target = Door;

    fn deref(&self) -> &Door {
        &self.opened.door
    }
}

/// What a client may do in a shared file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Nothing may be changed.
    pub read_only: bool,
}

/// What was found out of a name.
#[derive(Clone)]
struct Found {
    at: Instant,
    /// None: nothing could be found out, and never was.
    addresses: Option<Vec<IpAddr>>,
}

/// Addresses of names, as they were asked for lately. Where there is no answer any more, those of the last answer count.
#[derive(Default)]
pub struct Names(Mutex<HashMap<String, Found>>);

/// Names that are kept at a time.
const MOST_NAMES: usize = 1024;

impl Names {
    /// The addresses of a name; none: they are not known.
    fn addresses(&self, name: &str) -> Option<Vec<IpAddr>> {
        let last = self.0.acquire().get(name).cloned();
        if let Some(last) = last.as_ref().filter(|f| f.at.elapsed() < FRESH) {
            return last.addresses.clone();
        }
        // It may take a while, with no lock held.
        let answer = (name, 0).to_socket_addrs();
        let answer = answer.map(|all| all.map(|a| a.ip()).collect());
        self.keep(name, answer.ok().or(last.and_then(|f| f.addresses)))
    }

    fn keep(&self, name: &str, addresses: Option<Vec<IpAddr>>) -> Option<Vec<IpAddr>> {
        let mut kept = self.0.acquire();
        if kept.len() >= MOST_NAMES && !kept.contains_key(name) {
            kept.clear();
        }
        let found = Found {
            at: Instant::now(),
            addresses: addresses.clone(),
        };
        kept.insert(name.into(), found);
        addresses
    }
}

/// IPv4 addresses as clients of an IPv6 socket have them are meant as such.
fn plain(a: IpAddr) -> IpAddr {
    match a {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(a, IpAddr::V4),
        IpAddr::V4(_) => a,
    }
}

/// How a rule names an address.
enum Named {
    /// So closely, in bits.
    Closely(u32),
    /// It is for others.
    Not,
    /// It may: the addresses of its host are not known.
    Perhaps,
}

fn closeness(rule: &Rule, address: IpAddr, names: &Names) -> Named {
    /// A rule for one host.
    const HOST: u32 = 129;
    let near = match &rule.client {
        Client::Any => Some(0),
        Client::Net(net, bits) => match (plain(*net), address) {
            (IpAddr::V4(net), IpAddr::V4(a)) => {
                let bits = u32::from(bits.unwrap_or(32));
                let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
                let same = net.to_bits() & mask == a.to_bits() & mask;
                same.then_some(bits + 96)
            }
            (IpAddr::V6(net), IpAddr::V6(a)) => {
                let bits = u32::from(bits.unwrap_or(128));
                let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
                let same = net.to_bits() & mask == a.to_bits() & mask;
                same.then_some(bits)
            }
            _ => None,
        },
        Client::Name(name) => match names.addresses(name) {
            None => return Named::Perhaps,
            Some(list) => {
                let mut list = list.into_iter().map(plain);
                list.any(|a| a == address).then_some(HOST)
            }
        },
        Client::Pattern(_) | Client::Group(_) => None,
    };
    near.map_or(Named::Not, Named::Closely)
}

/// What a client may do; none: nothing. Of rules that name it equally closely the first one counts. A rule that may name it, since
/// the addresses of its host are not known, gives nothing, and takes what it would: the right to write.
pub fn access(share: &Share, peer: SocketAddr, names: &Names) -> Option<Access> {
    if share.secure && peer.port() >= RESERVED {
        return None;
    }
    let address = plain(peer.ip());
    let mut best: Option<(u32, &Rule)> = None;
    let mut read_only = false;
    for rule in &share.rules {
        if !rule.flavors.iter().any(|f| f == "sys") {
            continue;
        }
        match closeness(rule, address, names) {
            Named::Closely(near) if best.is_none_or(|(other, _)| near > other) => {
                best = Some((near, rule));
            }
            Named::Closely(_) | Named::Not => {}
            Named::Perhaps => read_only |= rule.read_only,
        }
    }
    best.map(|(_, rule)| Access {
        read_only: rule.read_only || read_only,
    })
}

/// Refuses options that this server cannot serve as they say.
///
/// # Errors
/// `Kind::Unsupported` with the option.
pub fn check(share: &Share) -> Result<()> {
    for rule in &share.rules {
        match &rule.client {
            Client::Group(name) => bail!(
                Unsupported,
                "'@{name}' in sharenfs is a netgroup, which the server of the daemon cannot look up; name hosts or networks"
            ),
            Client::Pattern(name) => bail!(
                Unsupported,
                "'{name}' in sharenfs is a pattern of names, which the server of the daemon does not look up; name hosts or networks"
            ),
            Client::Any | Client::Net(..) | Client::Name(_) => {}
        }
        if !rule.flavors.iter().any(|f| f == "sys") {
            bail!(
                Unsupported,
                "sec={} in sharenfs: the server of the daemon has sec=sys only",
                rule.flavors.join(":")
            );
        }
    }
    for key in ["refer", "replicas"] {
        if share.other(key).is_some() {
            bail!(
                Unsupported,
                "{key}= in sharenfs: the server of the daemon refers nobody to other servers"
            );
        }
    }
    Ok(())
}

/// The client as clients are shown in EXPORT.
pub fn group(rule: &Rule) -> String {
    match &rule.client {
        Client::Any => "*".into(),
        Client::Net(a, None) => a.to_string(),
        Client::Net(a, Some(n)) => format!("{a}/{n}"),
        Client::Name(name) | Client::Pattern(name) => name.clone(),
        Client::Group(name) => format!("@{name}"),
    }
}

/// Whose rights a caller has in a shared file system.
pub fn cred(share: &Share, auth: &Auth) -> Cred {
    let nobody = || Cred::user(share.anonuid, share.anongid, &[]);
    let Auth::Sys { uid, gid, groups } = auth else {
        return nobody();
    };
    if share.all_squash {
        return nobody();
    }
    if !share.root_squash {
        return Cred::user(*uid, *gid, groups);
    }
    let group = |g: u32| if g == 0 { share.anongid } else { g };
    let groups: Vec<u32> = groups.iter().map(|g| group(*g)).collect();
    match uid {
        0 => Cred::user(share.anonuid, group(*gid), &groups),
        uid => Cred::user(*uid, group(*gid), &groups),
    }
}

/// Numbers for [`Opened::new`], of which no two are the same.
pub struct Verifiers(AtomicU64);

impl Verifiers {
    /// `random`: drawn when the process began.
    pub fn new(random: u64) -> Verifiers {
        Verifiers(AtomicU64::new(random))
    }

    /// The next one.
    pub fn draw(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

/// What a client is told of an error.
pub(crate) fn status(kind: Kind) -> u32 {
    match kind {
        Kind::NotPermitted => 1,
        Kind::NotFound => 2,
        Kind::NoDevice => 6,
        Kind::Access => 13,
        Kind::Exists => 17,
        Kind::CrossDevice => 18,
        Kind::NoSuchDevice => 19,
        Kind::NotDir => 20,
        Kind::IsDir => 21,
        Kind::Invalid | Kind::BadName | Kind::Loop | Kind::Range => 22,
        Kind::FileTooBig => 27,
        Kind::NoSpace => 28,
        Kind::ReadOnly => 30,
        Kind::TooManyLinks => 31,
        Kind::NameTooLong => 63,
        Kind::NotEmpty => 66,
        Kind::Quota => 69,
        Kind::Stale => 70,
        Kind::BadHandle => 10_001,
        Kind::Unsupported | Kind::NotImplemented => 10_004,
        // Try again later.
        Kind::Again | Kind::Busy | Kind::Interrupted | Kind::NoMemory => 10_008,
        _ => 5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use admin::shares::options::parse;

    fn share(text: &str) -> Share {
        parse(text).unwrap().unwrap()
    }

    fn may(share: &Share, peer: &str) -> Option<bool> {
        let found = access(share, peer.parse().unwrap(), &Names::default());
        found.map(|a| a.read_only)
    }

    #[test]
    fn the_closest_rule_counts() {
        let s = share("insecure,ro,rw=@10.0.0.0/8,ro=10.1.0.0/16:[2001:db8::]/32,rw=10.1.2.3");
        for (peer, read_only) in [
            ("192.168.0.1:5", true),
            ("10.9.9.9:5", false),
            ("10.1.9.9:5", true),
            ("10.1.2.3:50000", false),
            ("[::ffff:10.1.2.3]:5", false),
            ("[2001:db8::1]:5", true),
        ] {
            assert_eq!(may(&s, peer), Some(read_only), "{peer}");
        }
        let s = share("insecure,rw=127.0.0.1");
        assert_eq!(may(&s, "127.0.0.2:5"), None);
        assert_eq!(may(&s, "[::1]:5"), None);
        assert_eq!(may(&share("rw=10.0.0.0/0"), "9.9.9.9:5"), Some(false));
    }

    #[test]
    fn ports_flavours_and_names() {
        let s = share("rw");
        assert_eq!(may(&s, "10.0.0.1:1023"), Some(false));
        assert_eq!(may(&s, "10.0.0.1:1024"), None);
        let s = share("sec=krb5,rw,sec=sys,ro=10.0.0.1");
        assert_eq!(may(&s, "10.0.0.2:5"), None);
        assert_eq!(may(&s, "10.0.0.1:5"), Some(true));
        assert_eq!(may(&share("rw=localhost"), "127.0.0.1:5"), Some(false));
        assert_eq!(may(&share("rw=no-such-host.invalid"), "127.0.0.1:5"), None);
        // The host may be one that may only read; and it may not be one that may write.
        let names = Names::default();
        let may = |s: &Share| access(s, "10.0.0.1:5".parse().unwrap(), &names).map(|a| a.read_only);
        let unknown = share("rw=@10.0.0.0/8,ro=no-such-host.invalid");
        assert_eq!(may(&unknown), Some(true));
        assert_eq!(
            may(&share("ro=@10.0.0.0/8,rw=no-such-host.invalid")),
            Some(true)
        );
        // Its addresses were known before.
        let ten: IpAddr = "10.0.0.2".parse().unwrap();
        let old = |ip: IpAddr| {
            names.keep("no-such-host.invalid", Some(vec![ip]));
            let mut kept = names.0.acquire();
            let at = &mut kept.get_mut("no-such-host.invalid").unwrap().at;
            *at = at.checked_sub(FRESH).unwrap();
        };
        old(ten);
        assert_eq!(may(&unknown), Some(false));
        old("10.0.0.1".parse().unwrap());
        assert_eq!(may(&unknown), Some(true));
        assert!(check(&s).is_err());
        for bad in ["rw=@staff", "rw=*.example.com", "refer=/a@b", "sec=krb5p"] {
            assert_eq!(
                check(&share(bad)).unwrap_err().kind,
                Kind::Unsupported,
                "{bad}"
            );
        }
        check(&share("sec=krb5:sys,rw=a:10.0.0.0/8,async,fsid=0")).unwrap();
    }

    #[test]
    fn squashed_users() {
        let groups = vec![0, 7];
        let root = Auth::Sys {
            uid: 0,
            gid: 0,
            groups,
        };
        let c = cred(&share("on"), &root);
        assert_eq!(
            (c.uid, c.gid, c.privileged, c.checked),
            (65_534, 65_534, false, false)
        );
        assert!(!c.in_group(0) && c.in_group(7));
        let c = cred(&share("no_root_squash"), &root);
        assert!(c.privileged && c.in_group(0));
        let joe = Auth::Sys {
            uid: 5,
            gid: 0,
            groups: vec![0],
        };
        let c = cred(&share("anongid=9"), &joe);
        let squashed = share("rw,all_squash,anonuid=8,anongid=9");
        assert_eq!((c.uid, c.in_group(0)), (5, false));
        let c = cred(&squashed, &joe);
        assert_eq!((c.uid, c.gid, c.in_group(0)), (8, 9, false));
        assert_eq!(cred(&squashed, &Auth::None).uid, 8);
        assert_eq!(cred(&share("no_root_squash"), &Auth::None).uid, 65_534);
    }
}
