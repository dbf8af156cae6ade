//! The command line.

use crate::rows;
use base::{bail, Result};
use std::path::PathBuf;

/// The systems of a run that names none, in the order of the table.
pub const NAMES: [&str; 7] = [
    "ext4",
    "xfs",
    "btrfs",
    "zfs-fuse-0.7",
    "passthrough",
    "ours",
    "ours-off",
];

/// Those that run only if they are named.
pub const MORE: [&str; 3] = ["passthrough-checked", "ours-view", "before"];

pub const USAGE: &str = "\
usage: cargo xtask bench [OPTION]...
       cargo xtask bench list       the rows
       cargo xtask bench micro      parts of the engine by themselves (--help)
       cargo xtask bench growth     how costs grow with numbers and sizes (--help)
       cargo xtask bench scans      scrub, resilver, rebuild; pgbench beside a scrub (--help)
       cargo xtask bench nfs        our NFS server beside Ganesha over ext4 (--help)
  --quick            small sizes, done within ten minutes (the default)
  --full             sizes that mean something, three rounds; hours
  --systems A,B      of ext4 xfs btrfs zfs-fuse-0.7 passthrough ours ours-off, which is the default; also
                     passthrough-checked (with permissions and write-back cache),
                     ours-view (a file system in a view of its pool) and
                     before (another build of ours, see --before)
  --rows A,B         only rows whose name begins so; default: all
  --rounds N         how often everything is repeated, interleaved
  --size BYTES       of the data in most rows (64M)
  --large BYTES      of the file that is larger than the cache; default: four times the size
  --seconds N        length of the rows that last a given time
  --limit SECONDS    no round starts that would end after so many seconds
  --folder DIR       where the image of the disk and the archives lie; default: target/bench
  --device DEV       use this block device instead of an image; all that is on it is lost
  --programs DIR     our programs; default: target/release
  --before DIR       programs of another build of ours: the system 'before'
  --out DIR          where the results go; default: target/bench/results
";

/// What to run.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    pub full: bool,
    pub systems: Vec<String>,
    /// Beginnings of names; all rows if empty.
    pub rows: Vec<String>,
    pub rounds: u32,
    pub size: u64,
    pub large: u64,
    pub seconds: u64,
    /// Seconds after which no further round begins.
    pub limit: Option<u64>,
    pub folder: PathBuf,
    pub device: Option<PathBuf>,
    pub programs: Option<PathBuf>,
    /// Programs of the system `before`.
    pub before: Option<PathBuf>,
    pub out: PathBuf,
}

/// A command with rows of its own.
pub struct Command<'a> {
    pub name: &'static str,
    pub usage: &'static str,
    pub rows: &'a [&'a str],
    /// Options that have no meaning in it.
    pub useless: &'static [&'static str],
}

/// Whether an option was given.
pub fn is_given(args: &[String], name: &str) -> bool {
    args.iter().any(|a| a.split('=').next() == Some(name))
}

impl Options {
    /// Errors: invalid with a sentence for the user.
    pub fn parse(args: &[String]) -> Result<Options> {
        let names: Vec<&str> = rows::ROWS.iter().map(|r| r.name).collect();
        Options::parse_for(args, &names)
    }

    /// Those of a command of its own with other rows, whose results go into a folder of its name; none: it was asked how it is
    /// used, and has said so.
    pub fn of_command(args: &[String], c: &Command) -> Result<Option<Options>> {
        if args.iter().any(|a| a == "-h" || a == "--help") {
            print!("{}", c.usage);
            return Ok(None);
        }
        let mut o = Options::parse_for(args, c.rows)?;
        if let Some(useless) = c.useless.iter().find(|name| is_given(args, name)) {
            bail!(Invalid, "{useless} has no meaning here\n{}", c.usage);
        }
        if !is_given(args, "--out") {
            o.out = testkit::packages::workspace()
                .join("target/bench")
                .join(c.name);
        }
        Ok(Some(o))
    }

    /// The same for a command with other rows.
    pub fn parse_for(args: &[String], rows: &[&str]) -> Result<Options> {
        let full = args.iter().any(|a| a == "--full");
        let base = testkit::packages::workspace().join("target/bench");
        let mut o = Options {
            full,
            systems: NAMES.iter().map(|n| n.to_string()).collect(),
            rows: Vec::new(),
            rounds: 3,
            size: if full { 1 << 30 } else { 64 << 20 },
            large: 0,
            seconds: if full { 10 } else { 1 },
            limit: (!full).then_some(540),
            folder: base.clone(),
            device: None,
            programs: None,
            before: None,
            out: base.join("results"),
        };
        let mut rest = args.iter();
        while let Some(arg) = rest.next() {
            let (name, inline) = match arg.split_once('=') {
                Some((n, v)) => (n, Some(v.to_string())),
                None => (arg.as_str(), None),
            };
            if matches!(name, "--quick" | "--full") && inline.is_none() {
                if full && name == "--quick" {
                    bail!(Invalid, "--quick and --full exclude each other");
                }
                continue;
            }
            let mut value = || match inline.clone().or_else(|| rest.next().cloned()) {
                Some(v) => Ok(v),
                None => bail!(Invalid, "{name} needs a value"),
            };
            match name {
                "--systems" => o.systems = list(&value()?),
                "--rows" => o.rows = list(&value()?),
                "--rounds" => o.rounds = number(name, &value()?)? as u32,
                "--size" => o.size = number(name, &value()?)?,
                "--large" => o.large = number(name, &value()?)?,
                "--seconds" => o.seconds = number(name, &value()?)?,
                "--limit" => o.limit = Some(number(name, &value()?)?),
                "--folder" => o.folder = value()?.into(),
                "--device" => o.device = Some(value()?.into()),
                "--programs" => o.programs = Some(value()?.into()),
                "--before" => o.before = Some(value()?.into()),
                "--out" => o.out = value()?.into(),
                _ => bail!(Invalid, "unknown option {arg}"),
            }
        }
        o.check(rows)?;
        Ok(o)
    }

    fn check(&mut self, rows: &[&str]) -> Result<()> {
        let known = |s: &str| NAMES.contains(&s) || MORE.contains(&s);
        if let Some(s) = self.systems.iter().find(|s| !known(s)) {
            let (all, more) = (NAMES.join(" "), MORE.join(" "));
            bail!(Invalid, "no system {s}; there are {all} {more}");
        }
        for r in &self.rows {
            if !rows.iter().any(|row| row.starts_with(r.as_str())) {
                bail!(Invalid, "no row begins with {r}; see: bench list");
            }
        }
        if self.systems.iter().any(|s| s == "before") && self.before.is_none() {
            bail!(Invalid, "the system before needs --before DIR");
        }
        if self.rounds == 0 || self.seconds == 0 || self.systems.is_empty() {
            bail!(Invalid, "nothing to do");
        }
        if self.size < 1 << 20 {
            bail!(Invalid, "--size must be at least 1M");
        }
        if self.large == 0 {
            self.large = self.size * 4;
        }
        Ok(())
    }

    pub fn wants(&self, row: &str) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|r| row.starts_with(r.as_str()))
    }

    /// Size of the image: three times what the largest row writes, and room for what the rows that
    /// do not depend on the sizes need.
    pub fn image_bytes(&self) -> u64 {
        (3 * self.large.max(2 * self.size)).max(1 << 30)
    }
}

fn list(text: &str) -> Vec<String> {
    text.split(',')
        .filter(|s| !s.is_empty())
        .map(str::to_string)
        .collect()
}

/// A count, with K, M, G for powers of 1024.
fn number(name: &str, text: &str) -> Result<u64> {
    let (digits, shift) = match text.chars().last() {
        Some('k' | 'K') => (&text[..text.len() - 1], 10),
        Some('m' | 'M') => (&text[..text.len() - 1], 20),
        Some('g' | 'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    match digits.parse::<u64>() {
        Ok(n) if n > 0 && n < 1 << 24 || shift == 0 => Ok(n << shift),
        _ => bail!(Invalid, "{name}: {text} is no number"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options> {
        let args: Vec<String> = line.split_whitespace().map(str::to_string).collect();
        Options::parse(&args)
    }

    #[test]
    fn defaults() {
        let quick = parse("").unwrap();
        assert_eq!(quick, parse("--quick").unwrap());
        assert_eq!((quick.rounds, quick.limit), (3, Some(540)));
        let full = parse("--full").unwrap();
        assert_eq!((full.size, full.large), (1 << 30, 4 << 30));
        assert_eq!(full.limit, None);
        assert_eq!(full.systems.len(), NAMES.len());
    }

    #[test]
    fn values() {
        let o = parse("--size 4M --systems=ext4,ours --rows fsync --rounds 1").unwrap();
        assert_eq!((o.size, o.large, o.rounds), (4 << 20, 16 << 20, 1));
        assert_eq!(o.systems, ["ext4", "ours"]);
        assert!(o.wants("fsync-1") && !o.wants("postmark"));
        assert_eq!(o.image_bytes(), 1 << 30);
        assert_eq!(parse("--large 2G").unwrap().image_bytes(), 6 << 30);
        let more = parse("--systems passthrough-checked").unwrap();
        assert!(!NAMES.contains(&more.systems[0].as_str()));
    }

    #[test]
    fn refused() {
        for bad in [
            "--nonsense",
            "--size",
            "--size 0",
            "--size xM",
            "--systems ntfs",
            "--systems before,ours",
            "--rows nothing",
            "--rounds 0",
            "--quick --full",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
