//! Keys of encrypted datasets, as the commands get them from the user: typed at a terminal without
//! echo, piped in, or read from a file (command reference §20; behaviour §20).

use crate::{Cx, Fail};
use api::{Dataset, DatasetGet, DatasetKind, Reply, Request, Secret, Select, Value};
use base::io_text;
use control::client::unexpected;
use rustix::fs::OFlags;
use std::fs::File;
use std::io::{BufRead, IsTerminal, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use zeroize::Zeroizing;

/// Bytes of a raw key; a hexadecimal one has twice as many digits.
const RAW: usize = 32;
/// Characters of a passphrase, at least and at most.
const PASSPHRASE: std::ops::RangeInclusive<usize> = 8..=512;
/// Times somebody at a terminal may try.
const ATTEMPTS: u32 = 3;

/// What the daemon says of a dataset's encryption.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyFacts {
    /// The dataset.
    pub name: String,
    /// It is encrypted.
    pub encrypted: bool,
    /// `raw`, `hex`, `passphrase`.
    pub keyformat: String,
    /// Where its key is: `prompt`, or a URL.
    pub keylocation: String,
    /// Name of the encryption root.
    pub root: String,
    /// Its key is loaded.
    pub loaded: bool,
}

const PROPS: [&str; 5] = [
    "encryption",
    "keyformat",
    "keylocation",
    "encryptionroot",
    "keystatus",
];

fn text_of(d: &Dataset, name: &str) -> String {
    match d.props.iter().find(|p| p.name == name).map(|p| &p.value) {
        Some(Value::Text(t)) => t.clone(),
        _ => String::new(),
    }
}

/// File systems and volumes from `roots` (all of every pool if empty), with what is to be known of their
/// keys.
pub fn facts(cx: &mut Cx<'_>, roots: &[String], depth: Option<u32>) -> Result<Vec<KeyFacts>, Fail> {
    let request = Request::DatasetGet(DatasetGet {
        roots: roots.to_vec(),
        depth,
        kinds: vec![DatasetKind::Filesystem, DatasetKind::Volume],
        listsnapshots: false,
        props: Select::These(PROPS.iter().map(|p| p.to_string()).collect()),
    });
    let found = match cx.ask(&request) {
        Ok(Reply::Datasets(answer)) => {
            for (name, error) in &answer.failed {
                cx.complain(error, "open", name)?;
            }
            if !answer.failed.is_empty() {
                return Err(Fail::Error(String::new()));
            }
            answer.found
        }
        Ok(other) => return Err(cx.fail_plain(&unexpected(&other))),
        Err(e) => return Err(cx.fail_plain(&e)),
    };
    Ok(found
        .into_iter()
        .map(|d| KeyFacts {
            encrypted: !matches!(text_of(&d, "encryption").as_str(), "" | "off"),
            keyformat: text_of(&d, "keyformat"),
            keylocation: text_of(&d, "keylocation"),
            root: text_of(&d, "encryptionroot"),
            loaded: text_of(&d, "keystatus") == "available",
            name: d.name,
        })
        .collect())
}

/// Loads the key of one encryption root. `location`: in place of its own. A reason, without name and
/// action, if that fails.
pub fn load(
    cx: &mut Cx<'_>,
    facts: &KeyFacts,
    location: Option<&str>,
    check_only: bool,
) -> Result<(), String> {
    let name = &facts.name;
    if !facts.encrypted {
        return Err(format!("'{name}' is not encrypted."));
    }
    if facts.root != *name {
        return Err(format!(
            "Keys must be loaded for encryption root of '{name}' ({}).",
            facts.root
        ));
    }
    if facts.loaded && !check_only {
        return Err(format!("Key already loaded for '{name}'."));
    }
    let location = match location {
        Some(named) => Location::Named(named),
        None => Location::Stored(&facts.keylocation),
    };
    let patient = location.text() == "prompt" && std::io::stdin().is_terminal();
    for attempt in 1.. {
        let key = read(&facts.keyformat, location, name, Prompt::Once)?;
        let request = Request::KeyLoad {
            dataset: name.clone(),
            key,
            check_only,
        };
        match cx.ask(&request) {
            Ok(Reply::Done) => return Ok(()),
            Ok(other) => return Err(unexpected(&other).message),
            // Wrong, but a human may try again.
            Err(e) if patient && attempt < ATTEMPTS && e.code == base::Kind::Access.errno() => {
                cx.say(&format!("Key load error: {}", e.message))
                    .map_err(|e| io_text(&e))?;
            }
            Err(e) => return Err(e.message),
        }
    }
    Err("no key".into())
}

/// How to ask at a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// A key that exists.
    Once,
    /// A new key: twice.
    New,
}

/// Where key material is: `prompt`, or a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location<'a> {
    /// The caller of the command has said it.
    Named(&'a str),
    /// The property says it. Others may have set that: only regular files are opened, which neither wait nor do anything when they
    /// are.
    Stored(&'a str),
}

impl Location<'_> {
    fn text(&self) -> &str {
        match self {
            Location::Named(text) | Location::Stored(text) => text,
        }
    }

    fn open(&self, path: &str) -> Result<File, String> {
        let failed = |e: std::io::Error| {
            let why = io_text(&e);
            format!("Failed to open key material file '{path}': {why}")
        };
        let with = |path: &str, flags: OFlags| {
            let mut how = File::options();
            how.read(true).custom_flags(flags.bits() as i32).open(path)
        };
        if let Location::Named(_) = self {
            return with(path, OFlags::empty()).map_err(failed);
        }
        let place = with(path, OFlags::PATH).map_err(failed)?;
        if !place.metadata().map_err(failed)?.is_file() {
            return Err(format!(
                "Key material file '{path}' is not a regular file; if it is the right one, name it with '-L file://{path}'."
            ));
        }
        // The file that was looked at, whatever is at the path by now.
        let same = format!("/proc/self/fd/{}", place.as_raw_fd());
        with(&same, OFlags::NONBLOCK | OFlags::NOCTTY).map_err(failed)
    }
}

/// Gets key material of `format` from `location`; a sentence if there is none or it cannot be one.
pub fn read(
    format: &str,
    location: Location<'_>,
    name: &str,
    prompt: Prompt,
) -> Result<Secret, String> {
    let raw = format == "raw";
    let at = location;
    let location = at.text();
    let key = match location {
        "prompt" | "" | "none" if std::io::stdin().is_terminal() => {
            if raw {
                return Err(
                    "a raw key cannot be typed: pipe it in, or give a file with \
                     '-L file:///path'."
                        .into(),
                );
            }
            let what = if format == "hex" {
                "hex key"
            } else {
                "passphrase"
            };
            let new = if prompt == Prompt::New { "new " } else { "" };
            let first = ask(&format!("Enter {new}{what} for '{name}': "))?;
            if prompt == Prompt::New {
                validate(format, &first)?;
                let again = ask(&format!("Re-enter {new}{what} for '{name}': "))?;
                if again != first {
                    return Err("Provided keys do not match.".into());
                }
            }
            first
        }
        "prompt" | "" | "none" => from_reader(raw, &mut std::io::stdin().lock())?,
        _ => {
            if let Some(path) = location.strip_prefix("file://") {
                if !path.starts_with('/') {
                    return Err(format!("Invalid keylocation '{location}'."));
                }
                from_reader(raw, &mut std::io::BufReader::new(at.open(path)?))?
            } else if location.starts_with("https://") || location.starts_with("http://") {
                return Err(format!(
                    "keys are not fetched over the network: fetch '{location}' yourself and give \
                     it with '-L file:///path' or through a pipe."
                ));
            } else {
                return Err(format!("Invalid keylocation '{location}'."));
            }
        }
    };
    validate(format, &key)?;
    Ok(Secret::new(key.to_vec()))
}

/// A raw key is all there is; the others are the first line.
fn from_reader(raw: bool, r: &mut dyn BufRead) -> Result<Zeroizing<Vec<u8>>, String> {
    let most = if raw { RAW + 1 } else { PASSPHRASE.end() + 2 };
    // Room from the start, so that nothing is left behind by growing.
    let mut out = Zeroizing::new(Vec::with_capacity(most));
    let mut r = r.take(most as u64);
    let got = if raw {
        r.read_to_end(&mut out)
    } else {
        r.read_until(b'\n', &mut out)
    };
    got.map_err(|e| format!("Failed to read key material: {}", io_text(&e)))?;
    if !raw && out.last() == Some(&b'\n') {
        out.pop();
    }
    Ok(out)
}

/// Whether material can be a key of its format.
pub fn validate(format: &str, key: &[u8]) -> Result<(), String> {
    let sized = |what: &str, n: usize| match key.len() {
        l if l < n => Err(format!("{what} key too short (expected {n}).")),
        l if l > n => Err(format!("{what} key too long (expected {n}).")),
        _ => Ok(()),
    };
    match format {
        "raw" => sized("Raw", RAW),
        "hex" => {
            sized("Hex", 2 * RAW)?;
            match key.iter().all(u8::is_ascii_hexdigit) {
                true => Ok(()),
                false => Err("Invalid hex character detected.".into()),
            }
        }
        "passphrase" => match key.len() {
            n if n > *PASSPHRASE.end() => {
                Err(format!("Passphrase too long (max {}).", PASSPHRASE.end()))
            }
            n if n < *PASSPHRASE.start() => Err(format!(
                "Passphrase too short (min {}).",
                PASSPHRASE.start()
            )),
            _ => Ok(()),
        },
        other => Err(format!("unknown keyformat '{other}'.")),
    }
}

/// Asks at the terminal, without showing what is typed.
fn ask(question: &str) -> Result<Zeroizing<Vec<u8>>, String> {
    use rustix::termios::{tcgetattr, tcsetattr, LocalModes, OptionalActions};
    let stdin = std::io::stdin();
    let mut err = std::io::stderr();
    let told = write!(err, "{question}").and_then(|()| err.flush());
    told.map_err(|e| io_text(&e))?;
    let old = tcgetattr(&stdin).map_err(|e| io_text(&e.into()))?;
    let mut quiet = old.clone();
    quiet.local_modes.remove(LocalModes::ECHO);
    quiet
        .local_modes
        .insert(LocalModes::ICANON | LocalModes::ISIG);
    tcsetattr(&stdin, OptionalActions::Flush, &quiet).map_err(|e| io_text(&e.into()))?;
    let got = from_reader(false, &mut stdin.lock());
    let back = tcsetattr(&stdin, OptionalActions::Flush, &old);
    let _ = writeln!(err);
    back.map_err(|e| io_text(&e.into()))?;
    got
}

/// Gets the key for something to be made with these properties, if they ask for one of its own.
pub fn for_new(props: &[(String, String)], name: &str) -> Result<Option<Secret>, String> {
    let of = |p: &str| {
        let found = props.iter().rev().find(|(n, _)| n == p);
        found.map(|(_, v)| v.as_str())
    };
    let Some(format) = of("keyformat").filter(|f| *f != "none") else {
        return Ok(None);
    };
    // Before anybody types a key for nothing.
    if of("encryption") == Some("off") {
        return Err("Encryption must be turned on to set encryption properties.".into());
    }
    let location = Location::Named(of("keylocation").unwrap_or("prompt"));
    read(format, location, name, Prompt::New).map(Some)
}

/// Loads the keys that file systems (empty: all) lack, as `mount -l` does: complaints are printed.
/// `below`: of all descendants too.
pub fn load_missing(
    cx: &mut Cx<'_>,
    roots: &[String],
    below: bool,
    fail: bool,
) -> Result<bool, Fail> {
    let depth = if below { None } else { Some(0) };
    let mut wanted: Vec<String> = Vec::new();
    for f in facts(cx, roots, depth)? {
        if f.encrypted && !f.loaded && !wanted.contains(&f.root) {
            wanted.push(f.root);
        }
    }
    let mut good = true;
    for f in match wanted.is_empty() {
        true => Vec::new(),
        false => facts(cx, &wanted, Some(0))?,
    } {
        if let Err(why) = load(cx, &f, None, false) {
            let text = format!("Key load error: {why}");
            if fail {
                return Err(Fail::Error(text));
            }
            cx.say(&text)?;
            good = false;
        }
    }
    Ok(good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_is_asked_for_what_is_not_encrypted() {
        let props = [("encryption", "off"), ("keyformat", "passphrase")];
        let props = props.map(|(n, v)| (n.to_string(), v.to_string()));
        let refused = for_new(&props, "tank/a").err().unwrap();
        assert!(refused.starts_with("Encryption must be turned on"));
    }

    #[test]
    fn only_what_can_be_a_key() {
        let bad = |f: &str, k: &[u8]| validate(f, k).unwrap_err();
        assert_eq!(bad("raw", &[0; 31]), "Raw key too short (expected 32).");
        assert_eq!(bad("raw", &[0; 33]), "Raw key too long (expected 32).");
        assert_eq!(bad("hex", &[b'a'; 63]), "Hex key too short (expected 64).");
        assert_eq!(bad("hex", &[b'x'; 64]), "Invalid hex character detected.");
        assert_eq!(bad("passphrase", b"short"), "Passphrase too short (min 8).");
        assert_eq!(
            bad("passphrase", &[b'a'; 513]),
            "Passphrase too long (max 512)."
        );
        assert!(validate("raw", &[7; 32]).is_ok());
        assert!(validate("hex", &[b'F'; 64]).is_ok());
        assert!(validate("passphrase", b"12345678").is_ok());
    }

    #[test]
    fn lines_and_whole_files() {
        let line = |raw, b: &[u8]| from_reader(raw, &mut &b[..]).unwrap().to_vec();
        assert_eq!(line(false, b"one two\nthree"), b"one two");
        assert_eq!(line(false, b"one two"), b"one two");
        assert_eq!(line(true, b"a\nb"), b"a\nb");
        assert_eq!(line(true, &[1; 100]).len(), RAW + 1);
        assert_eq!(line(false, &[b'x'; 1000]).len(), 514);
    }

    #[test]
    fn places() {
        let path = std::env::temp_dir().join(format!("zfs-key-{}", std::process::id()));
        std::fs::write(&path, "correct horse\n").unwrap();
        let url = format!("file://{}", path.display());
        let key = read("passphrase", Location::Stored(&url), "x", Prompt::Once).unwrap();
        assert_eq!(key.bytes(), b"correct horse");
        let why = read("raw", Location::Stored(&url), "x", Prompt::Once).unwrap_err();
        assert!(why.contains("too short"), "{why}");
        std::fs::remove_file(&path).unwrap();
        let why = read("raw", Location::Named("https://x/y"), "x", Prompt::Once).unwrap_err();
        assert!(why.contains("over the network"), "{why}");
        assert!(read("raw", Location::Named("file://rel"), "x", Prompt::Once).is_err());
        assert!(read("raw", Location::Named("nonsense"), "x", Prompt::Once).is_err());
    }
}
