//! The property `sharenfs`: options as for exports(5), with clients in the manner of Solaris (`rw=HOST:HOST`).
//!
//! | Words | Meaning here |
//! |---|---|
//! | `on` | `rw` for everybody |
//! | `rw`, `ro`, with `=CLIENT:CLIENT…` for these only | who may write, who may read; the rule that names a client most closely counts |
//! | `sec=FLAVOR:FLAVOR` | for the rules behind it |
//! | `root_squash` (as it is without), `no_root_squash`, `all_squash`, `no_all_squash` | whose ids are replaced |
//! | `anonuid=`, `anon=`, `anongid=`, `root_mapping=` | by which |
//! | `secure` (as it is without), `insecure` | whether a client's port must be below 1024 |
//! | others of exports(5) | for the kernel's server |
//!
//! A client is an address, `ADDRESS/BITS`, `ADDRESS/MASK`, `@ADDRESS/BITS`, an IPv6 address in brackets, `*`, a host's name, a
//! name with `*` or `?`, or `@NETGROUP`.

use base::{bail, Result};
use std::net::{IpAddr, Ipv4Addr};

/// Most bytes of a value.
const MOST: usize = 4096;
/// The user and the group that stand for whoever is squashed.
pub const NOBODY: u32 = 65_534;

/// Options of exports(5) without a value.
const SWITCHES: [&str; 24] = [
    "all_squash",
    "async",
    "auth_nlm",
    "crossmnt",
    "hide",
    "insecure",
    "insecure_locks",
    "mountpoint",
    "mp",
    "no_acl",
    "no_all_squash",
    "no_auth_nlm",
    "no_root_squash",
    "no_subtree_check",
    "no_wdelay",
    "nohide",
    "nosub",
    "root_squash",
    "secure",
    "secure_locks",
    "subtree_check",
    "sync",
    "wdelay",
    "sub",
];
/// Those with one.
const VALUES: [&str; 9] = [
    "anon",
    "anongid",
    "anonuid",
    "fsid",
    "mountpoint",
    "mp",
    "refer",
    "replicas",
    "root_mapping",
];
const FLAVORS: [&str; 6] = ["sys", "none", "krb5", "krb5i", "krb5p", "dh"];

/// Whom a rule is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Client {
    /// Everybody.
    Any,
    /// Addresses that begin with so many bits; one address where none are given.
    Net(IpAddr, Option<u8>),
    /// A host by its name.
    Name(String),
    /// Hosts whose names fit.
    Pattern(String),
    /// A netgroup.
    Group(String),
}

/// What one client, or one set of them, may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Whom it is for.
    pub client: Client,
    /// They may not write.
    pub read_only: bool,
    /// Flavours of security, `sys` among them or not.
    pub flavors: Vec<String>,
}

/// How a file system is shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// As the property says it.
    pub text: String,
    /// In the order given; at least one.
    pub rules: Vec<Rule>,
    /// Who is squashed is this user.
    pub anonuid: u32,
    /// See `anonuid`.
    pub anongid: u32,
    /// Root is squashed.
    pub root_squash: bool,
    /// Everybody is squashed.
    pub all_squash: bool,
    /// The port of a client must be below 1024.
    pub secure: bool,
    /// Options for the kernel's server, beside those of rules.
    pub others: Vec<String>,
    /// Somebody else than the owner has chosen all this.
    pub by_others: bool,
}

/// Reads a value of the property. `None`: it is not shared.
///
/// # Errors
/// `Kind::Invalid` with the word that is none.
pub fn parse(text: &str) -> Result<Option<Share>> {
    if text == "off" {
        return Ok(None);
    }
    if text.len() > MOST {
        bail!(Invalid, "it is longer than {MOST} bytes");
    }
    let mut share = Share {
        text: text.into(),
        rules: Vec::new(),
        anonuid: NOBODY,
        anongid: NOBODY,
        root_squash: true,
        all_squash: false,
        secure: true,
        others: Vec::new(),
        by_others: false,
    };
    let words = match text {
        "on" => "rw,crossmnt",
        text => text,
    };
    let mut flavors = vec!["sys".to_string()];
    for word in words.split(',') {
        share.read_word(word, &mut flavors)?;
    }
    if share.rules.is_empty() {
        let (client, read_only) = (Client::Any, false);
        share.rules.push(Rule {
            client,
            read_only,
            flavors,
        });
    }
    Ok(Some(share))
}

impl Share {
    fn read_word(&mut self, word: &str, flavors: &mut Vec<String>) -> Result<()> {
        let (key, value) = match word.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (word, None),
        };
        match (key, value) {
            ("rw" | "ro", clients) => {
                for text in split_clients(clients.unwrap_or("*"))? {
                    self.rules.push(Rule {
                        client: client(text)?,
                        read_only: key == "ro",
                        flavors: flavors.clone(),
                    });
                }
                return Ok(());
            }
            ("sec", Some(list)) => {
                *flavors = list.split(':').map(str::to_string).collect();
                if let Some(bad) = flavors.iter().find(|f| !FLAVORS.contains(&f.as_str())) {
                    bail!(Invalid, "'{bad}' in '{word}' is no flavour of security");
                }
                return Ok(());
            }
            ("anonuid" | "anon", Some(id)) => self.anonuid = number(word, id)?,
            ("anongid", Some(id)) => self.anongid = number(word, id)?,
            ("root_mapping", Some(id)) => {
                self.root_squash = true;
                self.anonuid = number(word, id)?;
            }
            (_, Some(value)) if VALUES.contains(&key) => {
                let plain = |c: char| c.is_ascii_graphic() && !"()\\\"#".contains(c);
                if value.is_empty() || !value.chars().all(plain) {
                    bail!(Invalid, "'{word}' has no value that can be");
                }
            }
            ("root_squash", None) => self.root_squash = true,
            ("no_root_squash", None) => self.root_squash = false,
            ("all_squash", None) => self.all_squash = true,
            ("no_all_squash", None) => self.all_squash = false,
            ("secure", None) => self.secure = true,
            ("insecure", None) => self.secure = false,
            (_, None) if SWITCHES.contains(&key) => {}
            _ => bail!(Invalid, "'{word}' is no option of an NFS share"),
        }
        let other = match (key, value) {
            ("anon", Some(id)) => format!("anonuid={id}"),
            ("root_mapping", Some(id)) => format!("root_squash,anonuid={id}"),
            ("nosub", _) => "subtree_check".into(),
            ("sub", _) => "no_subtree_check".into(),
            _ => word.to_string(),
        };
        self.others.push(other);
        Ok(())
    }

    /// The value of one of the options for the kernel's server; empty if it has none.
    pub fn other(&self, key: &str) -> Option<&str> {
        self.others.iter().rev().find_map(|word| {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            (name == key).then_some(value)
        })
    }
}

fn number(word: &str, text: &str) -> Result<u32> {
    let n: Option<i64> = text.parse().ok();
    match n {
        // -1 and -2 are how some write the last ids there are.
        Some(n @ (-2 | -1)) => Ok(n as u32),
        Some(n) if u32::try_from(n).is_ok() => Ok(n as u32),
        _ => bail!(Invalid, "'{word}' has no user or group id"),
    }
}

/// Splits at colons that are not in brackets.
fn split_clients(list: &str) -> Result<Vec<&str>> {
    let (mut out, mut begin, mut inside) = (Vec::new(), 0, false);
    for (i, c) in list.char_indices() {
        match c {
            '[' if !inside => inside = true,
            ']' if inside => inside = false,
            '[' | ']' => bail!(Invalid, "brackets in '{list}' do not match"),
            ':' if !inside => {
                out.push(&list[begin..i]);
                begin = i + 1;
            }
            _ => {}
        }
    }
    if inside {
        bail!(Invalid, "brackets in '{list}' do not match");
    }
    out.push(&list[begin..]);
    Ok(out)
}

fn client(text: &str) -> Result<Client> {
    if text == "*" {
        return Ok(Client::Any);
    }
    let (at, rest) = match text.strip_prefix('@') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (host, bits) = match rest.split_once('/') {
        Some((host, bits)) => (host, Some(bits)),
        None => (rest, None),
    };
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    let address: Option<IpAddr> = bare.unwrap_or(host).parse().ok();
    if let Some(address) = address {
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => return Ok(Client::Net(address, None)),
            Some(text) => text
                .parse()
                .ok()
                .filter(|n| *n <= most)
                .or_else(|| mask(text)),
        };
        return match bits {
            Some(bits) => Ok(Client::Net(address, Some(bits))),
            None => bail!(Invalid, "'{text}' is no network"),
        };
    }
    let of_name = |c: char| c.is_ascii_alphanumeric() || "-._*?".contains(c);
    if bits.is_some() || bare.is_some() || host.is_empty() || !host.chars().all(of_name) {
        bail!(Invalid, "'{text}' is no client");
    }
    let host = host.to_string();
    Ok(match host.contains(['*', '?']) {
        _ if at => Client::Group(host),
        true => Client::Pattern(host),
        false => Client::Name(host),
    })
}

/// How many bits a mask like `255.255.255.0` has.
fn mask(text: &str) -> Option<u8> {
    let mask: Ipv4Addr = text.parse().ok()?;
    let bits = mask.to_bits();
    (bits.leading_ones() + bits.trailing_zeros() == 32).then_some(bits.leading_ones() as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(text: &str) -> Share {
        parse(text).unwrap().unwrap()
    }

    #[test]
    fn on_and_off() {
        assert_eq!(parse("off").unwrap(), None);
        let s = share("on");
        assert!(s.root_squash && !s.all_squash && s.secure);
        assert_eq!(s.rules.len(), 1);
        assert_eq!(
            (&s.rules[0].client, s.rules[0].read_only),
            (&Client::Any, false)
        );
        assert_eq!(s.other("crossmnt"), Some(""));
    }

    #[test]
    fn clients() {
        let s = share(
            "rw=@192.168.0.0/24:[2001:db8::]/32:box.example.com,ro=10.0.0.7:@10.1.0.0/255.255.0.0",
        );
        let net = |a: &str, n: u8| Client::Net(a.parse().unwrap(), (n > 0).then_some(n));
        let clients: Vec<_> = s
            .rules
            .iter()
            .map(|r| (r.client.clone(), r.read_only))
            .collect();
        assert_eq!(
            clients,
            [
                (net("192.168.0.0", 24), false),
                (net("2001:db8::", 32), false),
                (Client::Name("box.example.com".into()), false),
                (net("10.0.0.7", 0), true),
                (net("10.1.0.0", 16), true),
            ]
        );
        assert_eq!(
            share("ro=@staff").rules[0].client,
            Client::Group("staff".into())
        );
        let pattern = Client::Pattern("*.example.com".into());
        assert_eq!(share("rw=*.example.com").rules[0].client, pattern);
        assert!(share("ro").rules[0].read_only);
    }

    #[test]
    fn squashing_and_security() {
        let s = share("no_root_squash,rw,sec=krb5:sys,ro=@10.0.0.0/8");
        assert!(!s.root_squash);
        assert_eq!(s.rules[0].flavors, ["sys"]);
        assert_eq!(s.rules[1].flavors, ["krb5", "sys"]);
        let s = share("anon=-2,anongid=7,all_squash,insecure");
        assert_eq!(
            (s.anonuid, s.anongid, s.all_squash, s.secure),
            (u32::MAX - 1, 7, true, false)
        );
        assert_eq!(s.rules, share("on").rules);
        let s = share("root_mapping=99,nosub");
        assert_eq!((s.anonuid, s.root_squash), (99, true));
        assert_eq!(s.others, ["root_squash,anonuid=99", "subtree_check"]);
    }

    #[test]
    fn what_is_refused() {
        for text in [
            "",
            "rw,",
            "yes",
            "rw,no_such",
            "anonuid=x",
            "anonuid",
            "anonuid=4294967296",
            "sec=",
            "sec=md5",
            "rw=",
            "rw=10.0.0.0/33",
            "rw=[::1",
            "rw=a b",
            "rw=10.0.0.0/255.0.255.0",
            "ro=a/24",
            "all_squash=1",
            "fsid=",
            "refer=a(b)",
            "rw=@",
            "rw=host:",
            "rw=[host]",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse(&"rw,".repeat(2000)).is_err());
    }
}
