//! The list of what is too long or goes in a circle and is allowed for now: `xtask/allowed.txt`. It only ever shrinks.

use std::fmt;

/// One line of the list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Entry {
    /// `circle CRATE MODULE MODULE...`: these import each other.
    Circle {
        /// The crate, and the module whose children they are: `daemon`, `zpl::file`.
        room: String,
        /// Sorted.
        modules: Vec<String>,
    },
    /// `upward CRATE COUNT`: so many modules of the crate name what a module above them holds.
    Upward { room: String, count: usize },
    /// `file PATH LINES`
    File { path: String, lines: usize },
    /// `function PATH NAME LINES`
    Function {
        path: String,
        name: String,
        lines: usize,
    },
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Entry::Circle { room, modules } => write!(f, "circle {room} {}", modules.join(" ")),
            Entry::Upward { room, count } => write!(f, "upward {room} {count}"),
            Entry::File { path, lines } => write!(f, "file {path} {lines}"),
            Entry::Function { path, name, lines } => write!(f, "function {path} {name} {lines}"),
        }
    }
}

/// The list.
#[derive(Default)]
pub struct Allowed {
    /// Comments at the head of the file.
    head: String,
    entries: Vec<Entry>,
}

impl Allowed {
    /// Errors: a line that is no entry.
    pub fn parse(text: &str) -> Result<Allowed, String> {
        let (mut head, mut entries) = (String::new(), Vec::new());
        for line in text.lines().filter(|l| !l.is_empty()) {
            if line.starts_with('#') {
                head += &format!("{line}\n");
                continue;
            }
            let words: Vec<&str> = line.split_whitespace().collect();
            let number = |w: &str| w.parse().map_err(|_| format!("not a number: {line}"));
            entries.push(match words.as_slice() {
                ["circle", room, modules @ ..] if modules.len() > 1 => {
                    let mut modules: Vec<String> = modules.iter().map(|m| m.to_string()).collect();
                    modules.sort();
                    Entry::Circle {
                        room: room.to_string(),
                        modules,
                    }
                }
                ["upward", room, count] => Entry::Upward {
                    room: room.to_string(),
                    count: number(count)?,
                },
                ["file", path, lines] => Entry::File {
                    path: path.to_string(),
                    lines: number(lines)?,
                },
                ["function", path, name, lines] => Entry::Function {
                    path: path.to_string(),
                    name: name.to_string(),
                    lines: number(lines)?,
                },
                _ => return Err(format!("not an entry: {line}")),
            });
        }
        Ok(Allowed { head, entries })
    }

    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    /// The file with other entries.
    pub fn with(&self, entries: impl IntoIterator<Item = Entry>) -> String {
        let mut sorted: Vec<Entry> = entries.into_iter().collect();
        sorted.sort();
        let lines = sorted.iter().map(|e| format!("{e}\n"));
        std::iter::once(self.head.clone()).chain(lines).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_read_and_written() {
        let text =
            "# why\ncircle daemon a b\nupward daemon 3\nfile a.rs 1200\nfunction a.rs A::f 130\n";
        let list = Allowed::parse(text).unwrap();
        assert_eq!(list.with(list.iter().cloned()), text);
        for wrong in [
            "file a.rs",
            "file a.rs many",
            "circle daemon a",
            "upward daemon",
            "x",
        ] {
            assert!(Allowed::parse(wrong).is_err(), "{wrong}");
        }
    }
}
