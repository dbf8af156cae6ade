//! Properties of datasets and pools: one table row each says what a property is, where it lives and
//! which values it takes; parsing and printing follow from the rows (properties reference; data
//! format §14).

mod dataset;
mod pool;

pub use dataset::DATASET;
pub use pool::{PoolProp, PoolSet, When, POOL};

use base::{bail, Error, Kind as ErrorKind, Result};

/// Longest text value, with its NUL.
pub const MAX_VALUE: usize = 8192;
/// Longest name of a property, with its NUL.
pub const MAX_NAME: usize = 256;
/// Longest comment of a pool.
pub const MAX_COMMENT: usize = 32;
/// "No limit" of filesystem_limit and snapshot_limit, "auto" of refreservation and
/// dedup_table_quota.
pub const UNLIMITED: u64 = u64::MAX;

/// Kinds of datasets, as a set of bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Types(pub u8);

impl Types {
    /// File systems: letter F in the tables.
    pub const FILESYSTEM: Types = Types(1);
    /// Volumes: letter V.
    pub const VOLUME: Types = Types(2);
    /// Snapshots: letter S.
    pub const SNAPSHOT: Types = Types(4);
    /// Bookmarks: letter B.
    pub const BOOKMARK: Types = Types(8);

    /// Letters F, V, S, B.
    const fn of(letters: &str) -> Types {
        let b = letters.as_bytes();
        let mut bits = 0;
        let mut i = 0;
        while i < b.len() {
            bits |= match b[i] {
                b'F' => 1,
                b'V' => 2,
                b'S' => 4,
                _ => 8,
            };
            i += 1;
        }
        Types(bits)
    }

    /// Whether all of `other` are in this set.
    pub const fn contains(self, other: Types) -> bool {
        self.0 & other.0 == other.0
    }
}

/// How long a property's own value reaches and when it may be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Computed.
    ReadOnly,
    /// Own value or default.
    Local,
    /// Own value, else the nearest ancestor's, else default.
    Inherit,
    /// Fixed at creation, taken over from the parent then.
    Once,
    /// Fixed at creation, not taken over.
    OnceDefault,
}

/// Where a value is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// Nowhere: worked out.
    Computed,
    /// ZAP of properties of the directory (or snapshot).
    Props,
    /// Properties, and a field of the DSL directory that is what counts.
    PropsAndDir,
    /// Master node of the file system.
    MasterNode,
    /// ZAP of the volume.
    Volume,
    /// Block size of the volume's data object.
    BlockSize,
    /// Key object of the encryption root.
    CryptoKey,
}

/// A word and its number.
pub type Word = (&'static str, u64);

/// Form of the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One of these words; the first with the stored number is printed.
    Index(&'static [Word]),
    /// Any text.
    Text,
    /// A number with a meaning and bounds.
    Number(Number),
}

/// What a number means and which are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// Any size or count.
    Any,
    /// Size; `none` is 0 and 0 must be written so.
    SizeOrNone,
    /// Size; `none` or 0.
    SizeNone0,
    /// As `SizeNone0`; `auto` is [`UNLIMITED`] (volumes).
    SizeNoneAuto,
    /// Count; `none` is [`UNLIMITED`].
    CountOrNone,
    /// Power of two from 512 to 16 MiB.
    Block,
    /// At most 16 MiB.
    SmallBlock,
    /// At least 100000.
    Iterations,
    /// 0 or 9 to 16.
    Ashift,
    /// 1 to 28 or 5000.
    PoolVersion,
}

/// A stored value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PropValue {
    /// Index properties have the number of their word.
    Number(u64),
    /// Text properties.
    Text(String),
}

impl PropValue {
    /// The number; `None` for a text.
    pub fn number(&self) -> Option<u64> {
        match self {
            PropValue::Number(n) => Some(*n),
            PropValue::Text(_) => None,
        }
    }

    /// The text; `None` for a number.
    pub fn text(&self) -> Option<&str> {
        match self {
            PropValue::Number(_) => None,
            PropValue::Text(t) => Some(t),
        }
    }
}

impl From<u64> for PropValue {
    fn from(n: u64) -> PropValue {
        PropValue::Number(n)
    }
}

impl From<&str> for PropValue {
    fn from(t: &str) -> PropValue {
        PropValue::Text(t.to_string())
    }
}

/// Default of a property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Default {
    /// This number.
    Number(u64),
    /// This text.
    Text(&'static str),
    /// None: read-only, or must be given.
    None,
}

impl Default {
    /// The default as a value.
    pub fn value(self) -> Option<PropValue> {
        match self {
            Default::Number(n) => Some(PropValue::Number(n)),
            Default::Text(t) => Some(t.into()),
            Default::None => None,
        }
    }
}

/// One property of datasets.
#[derive(Debug, PartialEq, Eq)]
pub struct Prop {
    /// Name, as in `zfs get`.
    pub name: &'static str,
    /// Column heading.
    pub column: &'static str,
    /// Form of the values.
    pub kind: Kind,
    /// How far its own value reaches, and when it may be set.
    pub class: Class,
    /// The datasets that have it.
    pub types: Types,
    /// Value where nothing is set.
    pub default: Default,
    /// Where the value is kept.
    pub store: Store,
    /// Not part of `all`, not shown in help.
    pub hidden: bool,
    /// The only values this version of the software lets be set; all if `None`.
    pub only: Option<&'static [&'static str]>,
}

/// A dataset property by name or column heading (as the commands accept it: `avail`, `refer`).
pub fn dataset(name: &str) -> Option<&'static Prop> {
    DATASET
        .iter()
        .find(|p| p.name == name)
        .or_else(|| DATASET.iter().find(|p| is_column(p.column, name)))
}

/// Whether `name` is a column heading in lower case, in which all names of properties are.
fn is_column(column: &str, name: &str) -> bool {
    column.eq_ignore_ascii_case(name) && !name.bytes().any(|b| b.is_ascii_uppercase())
}

/// A pool property by name or column heading.
pub fn pool(name: &str) -> Option<&'static PoolProp> {
    if name == "listsnaps" {
        return pool("listsnapshots");
    }
    POOL.iter()
        .find(|p| p.name == name)
        .or_else(|| POOL.iter().find(|p| is_column(p.column, name)))
}

fn invalid(text: String) -> Error {
    Error::new(ErrorKind::Invalid, text)
}

/// Words for a message, with those that differ in a number at their end as one: `gzip-[1-9]`.
fn condensed<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let numbered = |w: &'a str| {
        let (stem, digits) = w.rsplit_once('-')?;
        Some((stem, digits.parse::<u32>().ok()?))
    };
    // Words, or a stem with the ranges of its numbers.
    let mut out: Vec<(&str, Vec<(u32, u32)>)> = Vec::new();
    for word in words {
        let Some((stem, n)) = numbered(word) else {
            out.push((word, Vec::new()));
            continue;
        };
        match out.last_mut().filter(|(s, r)| *s == stem && !r.is_empty()) {
            Some((_, ranges)) => match ranges.last_mut().filter(|(_, last)| last + 1 == n) {
                Some((_, last)) => *last = n,
                None => ranges.push((n, n)),
            },
            None => out.push((stem, vec![(n, n)])),
        }
    }
    let range = |(a, b): &(u32, u32)| match a == b {
        true => a.to_string(),
        false => format!("{a}-{b}"),
    };
    let one = |(word, ranges): &(&str, Vec<(u32, u32)>)| match ranges.is_empty() {
        true => word.to_string(),
        false => {
            let ranges: Vec<String> = ranges.iter().map(range).collect();
            format!("{word}-[{}]", ranges.join(","))
        }
    };
    let all: Vec<String> = out.iter().map(one).collect();
    all.join(" | ")
}

impl Kind {
    /// Whether the stored form is a number.
    pub fn is_number(self) -> bool {
        !matches!(self, Kind::Text)
    }

    /// Words for help and messages: `on | off`.
    pub fn words(self) -> Option<String> {
        let Kind::Index(words) = self else {
            return None;
        };
        let shown: Vec<&str> = words.iter().map(|w| w.0).filter(|w| !is_alias(w)).collect();
        Some(shown.join(" | "))
    }

    /// Reads a value as the user writes it. `name` is for the message; all errors are
    /// [`ErrorKind::Invalid`].
    fn parse(self, name: &str, text: &str) -> Result<PropValue> {
        match self {
            Kind::Text => {
                if text.len() >= MAX_VALUE {
                    return Err(invalid(format!("'{name}' is too long")));
                }
                Ok(text.into())
            }
            Kind::Index(words) => match words.iter().find(|w| w.0 == text) {
                Some(w) => Ok(w.1.into()),
                None => {
                    let shown = words.iter().map(|w| w.0).filter(|w| !is_alias(w));
                    let words = condensed(shown);
                    Err(invalid(format!("'{name}' must be one of '{words}'")))
                }
            },
            Kind::Number(form) => form.parse(name, text).map(PropValue::Number),
        }
    }

    /// Prints a stored value exactly (the `-p` form). A number that is no word of an index is
    /// printed as it is.
    pub fn print(self, value: &PropValue) -> String {
        match (self, value) {
            (_, PropValue::Text(t)) => t.clone(),
            (Kind::Index(words), PropValue::Number(n)) => words
                .iter()
                .find(|w| w.1 == *n)
                .map_or_else(|| n.to_string(), |w| w.0.to_string()),
            (Kind::Number(Number::CountOrNone), PropValue::Number(UNLIMITED)) => "none".into(),
            (_, PropValue::Number(n)) => n.to_string(),
        }
    }

    /// Whether a stored value is of this form: what a damaged or foreign pool holds may not be.
    pub fn accepts(self, value: &PropValue) -> bool {
        match (self, value) {
            (Kind::Text, PropValue::Text(_)) | (Kind::Number(_), PropValue::Number(_)) => true,
            (Kind::Index(words), PropValue::Number(n)) => words.iter().any(|w| w.1 == *n),
            _ => false,
        }
    }
}

/// Words that are accepted but not listed.
fn is_alias(word: &str) -> bool {
    matches!(word, "noacl" | "posixacl" | "noparity")
}

/// Reads a size or count with the messages of the commands.
pub fn parse_number(text: &str) -> Result<u64> {
    base::sizes::parse(text).map_err(|e| invalid(e.of(text)))
}

impl Number {
    fn parse(self, name: &str, text: &str) -> Result<u64> {
        match (self, text) {
            (Number::SizeOrNone | Number::SizeNone0 | Number::SizeNoneAuto, "none") => {
                return Ok(0)
            }
            (Number::CountOrNone, "none") | (Number::SizeNoneAuto, "auto") => {
                return Ok(UNLIMITED);
            }
            _ => {}
        }
        let n = parse_number(text)?;
        let bad = |what: &str| Err(invalid(format!("'{name}' must be {what}")));
        match self {
            Number::SizeOrNone if n == 0 => Err(invalid(format!("use 'none' to disable {name}"))),
            Number::Block if !n.is_power_of_two() || !(512..=16 << 20).contains(&n) => {
                bad("power of 2 from 512B to 16M")
            }
            Number::SmallBlock if n > 16 << 20 => bad("between zero and 16M"),
            Number::Iterations if n < 100_000 => bad("at least 100000"),
            Number::Ashift if n != 0 && !(9..=16).contains(&n) => bad("0 or between 9 and 16"),
            Number::PoolVersion if !(1..=28).contains(&n) && n != 5000 => {
                bad("between 1 and 28, or 5000")
            }
            _ => Ok(n),
        }
    }
}

impl Prop {
    /// Whether it can be given at creation of a dataset of that type.
    pub fn settable_at_creation(&self, ty: Types) -> bool {
        self.class != Class::ReadOnly && self.types.contains(ty)
    }

    /// Whether `zfs inherit` makes sense.
    pub fn inheritable(&self) -> bool {
        self.class == Class::Inherit
    }

    /// Reads and checks a value the user wants to set on a dataset of type `ty`; `creating` allows
    /// the properties that are fixed afterwards. Values that depend on the pool (features, sizes of
    /// the dataset) are checked by the caller.
    pub fn parse(&self, text: &str, ty: Types, creating: bool) -> Result<PropValue> {
        let once = matches!(self.class, Class::Once | Class::OnceDefault);
        if self.class == Class::ReadOnly || (once && !creating) {
            return Err(invalid(format!("'{}' is readonly", self.name)));
        }
        // Snapshots show many properties but can only be given user properties.
        if !self.types.contains(ty) || ty == Types::SNAPSHOT || ty == Types::BOOKMARK {
            return Err(invalid(format!(
                "'{}' does not apply to datasets of this type",
                self.name
            )));
        }
        if text == "auto" && self.name == "refreservation" && ty != Types::VOLUME {
            return Err(invalid(
                "'refreservation=auto' only allowed on volumes".into(),
            ));
        }
        let value = self.kind.parse(self.name, text)?;
        match (self.name, &value) {
            ("mountpoint", PropValue::Text(t)) => check_mountpoint(t)?,
            ("keylocation", PropValue::Text(t)) => check_keylocation(t)?,
            ("volsize", PropValue::Number(0)) => {
                return Err(invalid("'volsize' cannot be zero".into()));
            }
            _ => {}
        }
        if let Some(only) = self.only {
            if !only.contains(&self.kind.print(&value).as_str()) {
                bail!(
                    Unsupported,
                    "'{}' cannot be set to '{text}' in this version",
                    self.name
                );
            }
        }
        Ok(value)
    }

    /// Prints a stored value exactly (the `-p` form).
    pub fn print(&self, value: &PropValue) -> String {
        self.kind.print(value)
    }
}

fn check_mountpoint(t: &str) -> Result<()> {
    if t == "none" || t == "legacy" {
        return Ok(());
    }
    if !t.starts_with('/') {
        return Err(invalid(
            "'mountpoint' must be an absolute path, 'none', or 'legacy'".into(),
        ));
    }
    if t.split('/').any(|c| c == "..") {
        return Err(invalid("'mountpoint' must not contain '..'".into()));
    }
    if t.split('/').any(|c| c.len() >= 256) || t.len() >= 4096 {
        return Err(invalid("component of 'mountpoint' is too long".into()));
    }
    Ok(())
}

/// Checks the place of a key.
pub fn check_keylocation(t: &str) -> Result<()> {
    let uri = |scheme: &str| t.strip_prefix(scheme).is_some_and(|r| !r.is_empty());
    if t == "prompt" || t == "none" || uri("file:///") || uri("https://") || uri("http://") {
        return Ok(());
    }
    Err(invalid(
        "invalid keylocation: it must be 'prompt', 'none' or a URI (file:///, https://, http://)"
            .into(),
    ))
}

/// Whether a name is that of a user property at all (it has a colon).
pub fn is_user(name: &str) -> bool {
    name.contains(':')
}

/// User property: the user other than the owner who made a dataset, or received into it.
pub const MADE_BY: &str = "zfs-fuse:made-by";

/// User property: a mount shows the file systems below it, too, each at its place.
pub const VIEW: &str = "zfs-fuse:view";

/// Properties of which it is kept which user other than the owner set them, and where.
pub const SETTERS: [(&str, &str); 5] = [
    ("mountpoint", "zfs-fuse:mountpoint-setter"),
    ("setuid", "zfs-fuse:setuid-setter"),
    ("devices", "zfs-fuse:devices-setter"),
    (VIEW, "zfs-fuse:view-setter"),
    ("sharenfs", "zfs-fuse:sharenfs-setter"),
];

/// User properties that are stored beside what they are about: nobody sets, sends or receives them.
pub const RESERVED: [&str; 6] = [
    MADE_BY,
    SETTERS[0].1,
    SETTERS[1].1,
    SETTERS[2].1,
    SETTERS[3].1,
    SETTERS[4].1,
];

/// Whether a user property is one of [`RESERVED`].
pub fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name)
}

/// Checks name and value of a user property.
pub fn check_user(name: &str, value: &str) -> Result<()> {
    let legal = |c: char| {
        c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, ':' | '-' | '.' | '_')
    };
    if !is_user(name) || name.starts_with('-') || !name.chars().all(legal) {
        return Err(invalid(format!("invalid property '{name}'")));
    }
    if is_reserved(name) {
        return Err(invalid(format!("'{name}' is readonly")));
    }
    if name.len() >= MAX_NAME {
        return Err(invalid(format!("property name '{name}' is too long")));
    }
    if value.len() >= MAX_VALUE {
        return Err(invalid(format!("property value '{value}' is too long")));
    }
    Ok(())
}

/// Properties with an argument in their name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pseudo<'a> {
    /// Space or objects used by a user, group or project.
    Used {
        /// Kind of the id.
        who: Who,
        /// Objects instead of space.
        objects: bool,
        /// Name or number.
        id: &'a str,
    },
    /// Limit of space or objects.
    Quota {
        /// Kind of the id.
        who: Who,
        /// Objects instead of space.
        objects: bool,
        /// Name or number.
        id: &'a str,
    },
    /// Written since a snapshot (`@name` or a whole name) or bookmark (`#name`).
    Written(&'a str),
}

/// Whose usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// A user.
    User,
    /// A group.
    Group,
    /// A project.
    Project,
}

impl<'a> Pseudo<'a> {
    /// Recognises `userquota@joe`, `groupobjused@12`, `written@snap`, `written#mark`…
    pub fn parse(name: &'a str) -> Option<Pseudo<'a>> {
        if let Some(rest) = name.strip_prefix("written") {
            return matches!(rest.as_bytes().first(), Some(b'@' | b'#'))
                .then_some(Pseudo::Written(rest.strip_prefix('@').unwrap_or(rest)));
        }
        let (key, id) = name.split_once('@')?;
        let (who, rest) = [
            ("user", Who::User),
            ("group", Who::Group),
            ("project", Who::Project),
        ]
        .into_iter()
        .find_map(|(p, w)| Some((w, key.strip_prefix(p)?)))?;
        let (objects, rest) = match rest.strip_prefix("obj") {
            Some(r) => (true, r),
            None => (false, rest),
        };
        match rest {
            "used" => Some(Pseudo::Used { who, objects, id }),
            "quota" => Some(Pseudo::Quota { who, objects, id }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
