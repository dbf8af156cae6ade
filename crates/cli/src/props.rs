//! Properties as the commands show them: names, column headings, forms of values. What may be set
//! to what is decided by the daemon; the lists of values here are for help, manual and widths.

mod data;

pub use data::{DATASET, POOL, POOL_CACHE, POOL_SPACE, VDEV};

/// How a raw value becomes text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Any text.
    Text,
    /// One of the words listed.
    Word,
    /// Size with a unit also below 1K: `512B`; 0 is `0B`.
    Bytes,
    /// As `Bytes`; 0 is `none`.
    BytesOrNone,
    /// Size or count without `B`: `128K`, `0`.
    Size,
    /// As `Size`; 0 is `none`.
    SizeOrNone,
    /// Number never shortened.
    Plain,
    /// Number never shortened; the largest is `none`, exact or not.
    Limit,
    /// Hundredths: `1.50x`.
    Ratio,
    /// `45%`
    Percent,
    /// Date to the minute.
    Date,
    /// Date to the second.
    DateSeconds,
    /// Version of the pool: `-` for feature flags.
    PoolVersion,
    /// Size; 0 is `-`.
    SizeOrDash,
    /// As `Bytes`; 0 is `-`.
    BytesOrDash,
}

/// What a property lets itself be done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Nobody sets it.
    ReadOnly,
    /// Own value or default.
    Local,
    /// Own value, else the ancestors', else default.
    Inherit,
    /// Only when created.
    Once,
}

/// A property.
#[derive(Debug)]
pub struct Info {
    /// As on the command line.
    pub name: &'static str,
    /// Column heading.
    pub column: &'static str,
    /// How values are written.
    pub form: Form,
    /// Who sets it, and whether descendants inherit it.
    pub class: Class,
    /// Datasets it is for, letters of F(ilesystem) V(olume) S(napshot) B(ookmark); empty for pools.
    pub kinds: &'static str,
    /// Values, for help: words separated by ` | `, or a description in angle brackets.
    pub values: &'static str,
    /// Default, for the manual; empty for read-only ones.
    pub default: &'static str,
    /// Part of `all`.
    pub visible: bool,
    /// Stored as a number: right-aligned in lists, unless it is a date.
    pub number: bool,
    /// A sentence for the manual.
    pub help: &'static str,
}

impl Info {
    /// Right-aligned in lists.
    pub fn right(&self) -> bool {
        self.number && !matches!(self.form, Form::Date | Form::DateSeconds)
    }

    /// Least column width in lists and in the VALUE column, and whether it holds whatever the
    /// values are: numbers have 5, words the longest of their list, others the heading.
    pub fn width(&self) -> (usize, bool) {
        let heading = self.column.len();
        if self.name == "health" {
            return (heading.max(8), true);
        }
        match self.form {
            Form::Date | Form::DateSeconds | Form::Text => (heading, false),
            Form::Word => {
                let stored = match self.kinds {
                    "" => disk::props::pool(self.name).map(|p| p.kind),
                    _ => disk::props::dataset(self.name).map(|p| p.kind),
                };
                // Words that are understood but not offered count too.
                let stored = match stored {
                    Some(disk::props::Kind::Index(words)) => words,
                    _ => &[],
                };
                let words = self.values.split(" | ").chain(stored.iter().map(|w| w.0));
                let longest = words.map(str::len).max().unwrap_or(0);
                (heading.max(longest), true)
            }
            _ => (heading.max(5), true),
        }
    }

    /// Whether it applies to that kind of dataset.
    pub fn applies(&self, kind: api::DatasetKind) -> bool {
        let letter = match kind {
            api::DatasetKind::Filesystem => 'F',
            api::DatasetKind::Volume => 'V',
            api::DatasetKind::Snapshot => 'S',
            api::DatasetKind::Bookmark => 'B',
        };
        self.kinds.contains(letter)
    }
}

/// A dataset property by name or by its column heading in any case (`avail`, `refer`).
pub fn dataset(name: &str) -> Option<&'static Info> {
    find(DATASET, name)
}

/// A pool property by name or column heading.
pub fn pool(name: &str) -> Option<&'static Info> {
    if name == "listsnaps" {
        return find(POOL, "listsnapshots");
    }
    let tables = [POOL, POOL_SPACE, POOL_CACHE];
    tables.into_iter().find_map(|table| find(table, name))
}

/// A property of vdevs by name or column heading.
pub fn vdev(name: &str) -> Option<&'static Info> {
    find(VDEV, name)
}

fn find(table: &'static [Info], name: &str) -> Option<&'static Info> {
    table
        .iter()
        .find(|p| p.name == name)
        .or_else(|| table.iter().find(|p| is_column(p.column, name)))
}

/// Whether `name` is a column heading in lower case, in which all names of properties are.
fn is_column(column: &str, name: &str) -> bool {
    column.eq_ignore_ascii_case(name) && !name.bytes().any(|b| b.is_ascii_uppercase())
}

/// `com.example:name`: lower-case letters, digits and `-_.:`, with a colon, shorter than 256.
pub fn is_user_property(name: &str) -> bool {
    name.contains(':')
        && name.len() < 256
        && !name.starts_with('-')
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.:".contains(&b))
}

/// `userquota@joe`, `projectobjused@7` … Without a name it is the usage of id 0.
pub fn is_space_property(name: &str) -> bool {
    const KINDS: [&str; 12] = [
        "userused",
        "userquota",
        "groupused",
        "groupquota",
        "userobjused",
        "userobjquota",
        "groupobjused",
        "groupobjquota",
        "projectused",
        "projectquota",
        "projectobjused",
        "projectobjquota",
    ];
    name.split_once('@').is_some_and(|(kind, who)| {
        KINDS.contains(&kind) && !(kind.ends_with("quota") && who.is_empty())
    })
}

/// `written@snap`, `written#mark`
pub fn is_written_property(name: &str) -> bool {
    name.strip_prefix("written")
        .is_some_and(|r| (r.starts_with('@') || r.starts_with('#')) && r.len() > 1)
}

/// `feature@name`, `unsupported@guid`
pub fn is_feature_property(name: &str) -> bool {
    ["feature@", "unsupported@"]
        .iter()
        .any(|p| name.strip_prefix(p).is_some_and(|r| !r.is_empty()))
}

/// Form of any dataset property, native or not.
pub fn dataset_form(name: &str) -> Form {
    if let Some(info) = DATASET.iter().find(|p| p.name == name) {
        return info.form;
    }
    if is_written_property(name) {
        return Form::Bytes;
    }
    if is_space_property(name) {
        let kind = name.split('@').next().unwrap_or_default();
        return match (kind.contains("obj"), kind.ends_with("quota")) {
            (true, true) => Form::SizeOrNone,
            (true, false) => Form::Size,
            (false, true) => Form::BytesOrNone,
            (false, false) => Form::Bytes,
        };
    }
    Form::Text
}

/// Form of any pool property.
pub fn pool_form(name: &str) -> Form {
    POOL.iter()
        .chain(POOL_SPACE)
        .chain(POOL_CACHE)
        .find(|p| p.name == name)
        .map_or(Form::Text, |p| p.form)
}

/// Form of any property of vdevs.
pub fn vdev_form(name: &str) -> Form {
    VDEV.iter()
        .find(|p| p.name == name)
        .map_or(Form::Text, |p| p.form)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables() {
        for table in [DATASET, POOL, POOL_SPACE, POOL_CACHE, VDEV] {
            let mut names = std::collections::HashSet::new();
            for p in table {
                assert!(names.insert(p.name), "{} twice", p.name);
                assert!(p.help.ends_with('.'), "{}", p.name);
                assert_eq!(p.column, p.column.to_uppercase(), "{}", p.name);
                assert_eq!(
                    p.default.is_empty(),
                    p.class == Class::ReadOnly,
                    "{}: default",
                    p.name
                );
            }
        }
        assert_eq!(dataset("avail").unwrap().name, "available");
        assert_eq!(dataset("compress").unwrap().name, "compression");
        assert_eq!(pool("alloc").unwrap().name, "allocated");
        assert_eq!(pool("listsnaps").unwrap().name, "listsnapshots");
        // Widths as they show in outputs of the real thing.
        assert_eq!(dataset("compression").unwrap().width(), (14, true));
        assert_eq!(dataset("used").unwrap().width(), (5, true));
        assert_eq!(dataset("creation").unwrap().width(), (8, false));
        assert_eq!(pool("health").unwrap().width(), (8, true));
    }

    #[test]
    fn classes_of_names() {
        assert!(is_user_property("com.example:a-b_c.9"));
        for bad in ["compression", "Com:x", "-a:b", "a:b c"] {
            assert!(!is_user_property(bad), "{bad}");
        }
        assert!(is_space_property("userquota@joe") && !is_space_property("userquota@"));
        assert!(is_space_property("groupused@"));
        assert!(is_written_property("written@a") && is_written_property("written#m"));
        assert!(!is_written_property("written"));
        assert_eq!(dataset_form("userobjused@0"), Form::Size);
        assert_eq!(dataset_form("a:b"), Form::Text);
    }

    /// The tables here and those that decide what is stored say the same.
    #[test]
    fn agree_with_the_stored_ones() {
        use disk::props::{Class as Stored, Kind, PoolSet};
        let words = |kind: &Kind| match kind {
            Kind::Index(list) => {
                let mut w: Vec<&str> = list.iter().map(|w| w.0).collect();
                w.sort_unstable();
                Some(w)
            }
            _ => None,
        };
        let shown = |p: &Info| {
            (p.form == Form::Word).then(|| {
                let mut w: Vec<&str> = p.values.split(" | ").collect();
                w.sort_unstable();
                w
            })
        };
        // Some words are understood without being offered.
        let offered = |shown: Option<Vec<&str>>, stored: Option<Vec<&str>>| match (shown, stored) {
            (Some(a), Some(b)) => {
                const SILENT: [&str; 3] = ["noparity", "noacl", "posixacl"];
                a.iter().all(|w| b.contains(w))
                    && b.iter().all(|w| a.contains(w) || SILENT.contains(w))
            }
            (a, b) => a == b,
        };
        let mut wrong = Vec::new();
        let visible: Vec<&str> = DATASET
            .iter()
            .filter(|p| p.visible)
            .map(|p| p.name)
            .collect();
        let stored: Vec<&str> = disk::props::DATASET
            .iter()
            .filter(|p| !p.hidden)
            .map(|p| p.name)
            .collect();
        if visible != stored {
            wrong.push(format!("datasets: {visible:?}\nstored: {stored:?}"));
        }
        for p in DATASET.iter().filter(|p| p.visible) {
            let Some(s) = disk::props::dataset(p.name) else {
                continue;
            };
            let class = match s.class {
                Stored::ReadOnly => Class::ReadOnly,
                Stored::Local => Class::Local,
                Stored::Inherit => Class::Inherit,
                Stored::Once | Stored::OnceDefault => Class::Once,
            };
            let types: u8 = p
                .kinds
                .chars()
                .map(|c| 1 << "FVSB".find(c).unwrap_or(7))
                .sum();
            if (p.column, p.class, types) != (s.column, class, s.types.0) {
                wrong.push(format!("{}: {:?} {:?}", p.name, p, s));
            }
            if !offered(shown(p), words(&s.kind)) {
                wrong.push(format!(
                    "{}: {:?}, stored {:?}",
                    p.name,
                    shown(p),
                    words(&s.kind)
                ));
            }
        }
        for p in POOL.iter().filter(|p| p.visible) {
            let Some(s) = disk::props::pool(p.name) else {
                wrong.push(format!("pool property {} is not stored", p.name));
                continue;
            };
            if p.column != s.column || (p.class == Class::ReadOnly) != (s.set == PoolSet::Never) {
                wrong.push(format!("{}: {:?} {:?}", p.name, p, s));
            }
            if !offered(shown(p), words(&s.kind)) {
                wrong.push(format!(
                    "{}: {:?}, stored {:?}",
                    p.name,
                    shown(p),
                    words(&s.kind)
                ));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
