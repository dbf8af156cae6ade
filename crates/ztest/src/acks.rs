//! What was acknowledged as durable, kept outside the pool so that it outlives a killed process.
//!
//! One line for each fact, in the order in which they came about. A kill leaves whole lines, since
//! each group of them is one write. (A crash of the machine is not what this program plays.)

use base::{Error, Kind, Result};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

/// A file of a thread: file system, thread, number.
pub type Name = (u64, u64, u64);

/// What must hold of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fact {
    /// Which of the files that had this name; there is one if it is not `gone`.
    pub gen: u64,
    /// It was acknowledged that there is none.
    pub gone: bool,
    /// Something was begun afterwards that may have taken content or the file away.
    pub loose: bool,
    /// Least version of each block.
    pub blocks: HashMap<u64, u64>,
}

/// The file of acknowledgements.
pub struct Acks {
    file: File,
}

fn failed(path: &Path, e: &std::io::Error) -> Error {
    Error::new(Kind::Io, format!("{}: {e}", path.display()))
}

impl Acks {
    /// Reads what is there, writes it again in short, and goes on behind it.
    pub fn open(path: &Path) -> Result<(Acks, HashMap<Name, Fact>)> {
        let facts = match std::fs::read_to_string(path) {
            Ok(text) => parse(&text),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => HashMap::new(),
            Err(e) => return Err(failed(path, &e)),
        };
        let new = path.with_extension("new");
        let mut text = String::new();
        for (name, f) in &facts {
            text.push_str(&match f.gone {
                true => gone(*name, f.gen),
                false => kept(*name, f.gen, f.blocks.iter().map(|(b, v)| (*b, *v))),
            });
            if f.loose {
                text.push_str(&loose(*name));
            }
        }
        std::fs::write(&new, text).map_err(|e| failed(&new, &e))?;
        std::fs::rename(&new, path).map_err(|e| failed(path, &e))?;
        let file = OpenOptions::new()
            .append(true)
            .open(path)
            .map_err(|e| failed(path, &e))?;
        Ok((Acks { file }, facts))
    }

    /// Adds lines made by [`kept`], [`gone`] and [`loose`].
    pub fn add(&self, lines: &str) -> Result<()> {
        (&self.file)
            .write_all(lines.as_bytes())
            .map_err(|e| Error::new(Kind::Io, format!("acknowledgements: {e}")))
    }
}

/// The file is there with these blocks (number, version); it replaces what was said before.
pub fn kept((s, t, f): Name, gen: u64, blocks: impl Iterator<Item = (u64, u64)>) -> String {
    let mut line = format!("K {s} {t} {f} {gen}");
    for (b, v) in blocks {
        line.push_str(&format!(" {b}:{v}"));
    }
    line.push('\n');
    line
}

/// The file is gone.
pub fn gone((s, t, f): Name, gen: u64) -> String {
    format!("G {s} {t} {f} {gen}\n")
}

/// Something begins that may take content or the file away, or make a new one.
pub fn loose((s, t, f): Name) -> String {
    format!("L {s} {t} {f}\n")
}

fn parse(text: &str) -> HashMap<Name, Fact> {
    let mut all: HashMap<Name, Fact> = HashMap::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        let kind = words.next();
        let mut n = || words.next().and_then(|w| w.parse::<u64>().ok());
        let (Some(s), Some(t), Some(f)) = (n(), n(), n()) else {
            continue;
        };
        let fact = all.entry((s, t, f)).or_default();
        match kind {
            Some("L") => fact.loose = true,
            Some("G") => {
                *fact = Fact {
                    gen: n().unwrap_or(0),
                    gone: true,
                    ..Fact::default()
                }
            }
            Some("K") => {
                let gen = n().unwrap_or(0);
                let blocks = words.filter_map(|w| {
                    let (b, v) = w.split_once(':')?;
                    Some((b.parse().ok()?, v.parse().ok()?))
                });
                *fact = Fact {
                    gen,
                    blocks: blocks.collect(),
                    ..Fact::default()
                };
            }
            _ => {}
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_follow_each_other() {
        let n = (1, 2, 3);
        let mut text = kept(n, 4, [(0, 7), (5, 1)].into_iter());
        assert_eq!(parse(&text)[&n].blocks, HashMap::from([(0, 7), (5, 1)]));
        text.push_str(&loose(n));
        assert!(parse(&text)[&n].loose);
        text.push_str(&gone(n, 4));
        let f = &parse(&text)[&n];
        assert!(f.gone && !f.loose && f.blocks.is_empty());
        // A line without its end says nothing wrong.
        assert_eq!(parse("K 1 2\nX\n\nG"), HashMap::new());
    }
}
