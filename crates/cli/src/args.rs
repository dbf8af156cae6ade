//! Command lines read with the habits of getopt: clusters (`-rR`), arguments attached or apart
//! (`-ofoo`, `-o foo`), options after operands (unless the environment has `POSIXLY_CORRECT`), `--` ends them; long
//! options with `=` or apart and abbreviated while unambiguous.

use crate::table::{Flag, Sub};

/// A command line taken apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// Options in the order given: key (letter, or long name without a letter) and argument.
    options: Vec<(String, Option<String>)>,
    /// What is no option, in order.
    pub operands: Vec<String>,
}

/// What is wrong with a command line.
#[derive(Debug, PartialEq, Eq)]
pub enum Bad {
    /// `--help`: show the help on stdout, exit 0.
    Help,
    /// `-?`, or `-h` where that is no option. After a subcommand of `zpool` and `zfs`: the help on
    /// stderr, exit 2, as scripts know it from OpenZFS.
    ShortHelp,
    /// `missing argument for 'x' option` and the like: say so, usage, exit 2.
    Usage(String),
    /// Known, but not in this version: say so, exit 1.
    NotBuilt(String),
}

fn key(flag: &Flag) -> String {
    match (flag.short, flag.long) {
        (Some(c), _) => c.to_string(),
        (None, Some(l)) => l.to_string(),
        (None, None) => String::new(),
    }
}

impl Parsed {
    /// Reads `args` (without command and subcommand) against the table.
    pub fn read(tool: &str, sub: &Sub, args: &[String]) -> Result<Parsed, Bad> {
        let mixed = std::env::var_os("POSIXLY_CORRECT").is_none();
        Parsed::read_order(tool, sub, args, mixed)
    }

    /// The same; unless `mixed`, everything from the first operand on is an operand.
    fn read_order(tool: &str, sub: &Sub, args: &[String], mixed: bool) -> Result<Parsed, Bad> {
        let mut out = Parsed::default();
        let mut later = None;
        let mut note = |flag: &Flag| {
            if !flag.built && later.is_none() {
                later = Some(flag.spelled());
            }
        };
        let mut it = args.iter();
        while let Some(arg) = it.next() {
            if !mixed && !out.operands.is_empty() {
                out.operands.push(arg.clone());
            } else if arg == "--" {
                out.operands.extend(it.by_ref().cloned());
            } else if let Some(text) = arg.strip_prefix("--") {
                let (name, attached) = match text.split_once('=') {
                    Some((n, v)) => (n, Some(v.to_string())),
                    None => (text, None),
                };
                if name == "help" {
                    return Err(Bad::Help);
                }
                let flag = sub
                    .long(name)
                    .ok_or_else(|| Bad::Usage(format!("invalid option '{name}'")))?;
                note(flag);
                let value = match (flag.arg, attached) {
                    (None, None) => None,
                    (None, Some(_)) => {
                        return Err(Bad::Usage(format!("option '{name}' takes no argument")))
                    }
                    (Some(_), Some(v)) => Some(v),
                    (Some(_), None) => Some(it.next().cloned().ok_or_else(|| {
                        Bad::Usage(format!("missing argument for '{name}' option"))
                    })?),
                };
                out.options.push((key(flag), value));
            } else if arg.len() > 1 && arg.starts_with('-') {
                let mut cluster = arg[1..].chars();
                while let Some(c) = cluster.next() {
                    let Some(flag) = sub.short(c) else {
                        if c == 'h' || c == '?' {
                            return Err(Bad::ShortHelp);
                        }
                        return Err(Bad::Usage(format!("invalid option '{c}'")));
                    };
                    note(flag);
                    if flag.arg.is_none() {
                        out.options.push((key(flag), None));
                        continue;
                    }
                    let rest: String = cluster.by_ref().collect();
                    let value = if rest.is_empty() {
                        it.next().cloned().ok_or_else(|| {
                            Bad::Usage(format!("missing argument for '{c}' option"))
                        })?
                    } else {
                        rest
                    };
                    out.options.push((key(flag), Some(value)));
                }
            } else {
                out.operands.push(arg.clone());
            }
        }
        match later {
            Some(option) => Err(Bad::NotBuilt(format!(
                "{tool} {} {option}: not available in this version yet",
                sub.name
            ))),
            None => Ok(out),
        }
    }

    /// Whether the option was given: `has("f")`, `has("json-int")`.
    pub fn has(&self, key: &str) -> bool {
        self.options.iter().any(|(k, _)| k == key)
    }

    /// Argument of the last occurrence.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.options
            .iter()
            .rev()
            .find(|(k, _)| k == key)
            .and_then(|(_, v)| v.as_deref())
    }

    /// Arguments of all occurrences.
    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> + 'a {
        self.options
            .iter()
            .filter(move |(k, _)| k == key)
            .filter_map(|(_, v)| v.as_deref())
    }

    /// Options in the order given.
    pub fn in_order(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.options.iter().map(|(k, v)| (k.as_str(), v.as_deref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{long, opt, sw, Complete};

    static SUB: Sub = Sub {
        name: "try",
        aliases: &[],
        about: "",
        operands: "",
        flags: &[
            sw('r', ""),
            sw('R', ""),
            opt('o', "x", "").many(),
            sw('j', "").long("json"),
            long("json-int", ""),
            sw('L', "").later(),
            opt('d', "n", "").long("depth"),
        ],
        text: &[],
        complete: Complete::Nothing,
        built: true,
    };

    fn read(line: &str) -> Result<Parsed, Bad> {
        let args: Vec<String> = line.split_whitespace().map(str::to_string).collect();
        Parsed::read("zx", &SUB, &args)
    }

    #[test]
    fn getopt_habits() {
        let p = read("-rR tank -oa=b,c -o d=e --json-int --depth=3 --depth 4 -- -r").unwrap();
        assert!(p.has("r") && p.has("R") && p.has("json-int") && !p.has("j"));
        assert_eq!(p.all("o").collect::<Vec<_>>(), ["a=b,c", "d=e"]);
        assert_eq!(p.get("d"), Some("4"));
        assert_eq!(p.operands, ["tank", "-r"]);
        assert!(read("--json").unwrap().has("j"));
        assert_eq!(read("--de 4").unwrap().get("d"), Some("4"));
        assert_eq!(read("-ro x").unwrap().get("o"), Some("x"));
        assert_eq!(read("-").unwrap().operands, ["-"]);
    }

    #[test]
    fn complaints() {
        let usage = |s: &str| Err(Bad::Usage(s.to_string()));
        assert_eq!(read("-o"), usage("missing argument for 'o' option"));
        assert_eq!(read("-q"), usage("invalid option 'q'"));
        assert_eq!(read("--js"), usage("invalid option 'js'"));
        assert_eq!(read("--json=1"), usage("option 'json' takes no argument"));
        assert_eq!(
            read("--depth"),
            usage("missing argument for 'depth' option")
        );
        assert_eq!(read("-rh"), Err(Bad::ShortHelp));
        assert_eq!(read("-?"), Err(Bad::ShortHelp));
        assert_eq!(read("--help"), Err(Bad::Help));
        assert_eq!(
            read("-L x"),
            Err(Bad::NotBuilt(
                "zx try -L: not available in this version yet".into()
            ))
        );
        assert_eq!(read("-L -q"), usage("invalid option 'q'"));
    }
}
