//! Types that describe a command line as data: subcommands, options, operands.

/// An option of a subcommand.
#[derive(Debug)]
pub struct Flag {
    /// `-x`; none for options with a long name only.
    pub short: Option<char>,
    /// `--name`
    pub long: Option<&'static str>,
    /// Name of its argument; none for a switch.
    pub arg: Option<&'static str>,
    /// May be given several times with effect.
    pub repeat: bool,
    /// Available in this version. Others parse, and are refused with a sentence.
    pub built: bool,
    /// What it does, a sentence for help and manual.
    pub help: &'static str,
}

impl Flag {
    /// `-x` or `--name`, as messages call it.
    pub fn spelled(&self) -> String {
        match (self.short, self.long) {
            (Some(c), _) => format!("-{c}"),
            (None, Some(l)) => format!("--{l}"),
            (None, None) => String::new(),
        }
    }

    /// Gives it a long name.
    pub const fn long(mut self, name: &'static str) -> Flag {
        self.long = Some(name);
        self
    }

    /// Lets it be given several times.
    pub const fn many(mut self) -> Flag {
        self.repeat = true;
        self
    }

    /// Marks it as one that only parses yet.
    pub const fn later(mut self) -> Flag {
        self.built = false;
        self
    }
}

/// A switch `-x`.
pub const fn sw(short: char, help: &'static str) -> Flag {
    Flag {
        short: Some(short),
        long: None,
        arg: None,
        repeat: false,
        built: true,
        help,
    }
}

/// An option `-x ARG`.
pub const fn opt(short: char, arg: &'static str, help: &'static str) -> Flag {
    Flag {
        arg: Some(arg),
        ..sw(short, help)
    }
}

/// A switch `--name` without a letter.
pub const fn long(name: &'static str, help: &'static str) -> Flag {
    Flag {
        short: None,
        long: Some(name),
        ..sw(' ', help)
    }
}

/// What completion offers for the operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Complete {
    /// Nothing is offered.
    Nothing,
    /// Names of pools.
    Pools,
    /// Names of datasets of all kinds.
    Datasets,
    /// Names of file systems.
    Filesystems,
    /// A pool, then its devices, and files.
    PoolThenDevices,
    /// Paths.
    Files,
}

/// A subcommand.
#[derive(Debug)]
pub struct Sub {
    /// Its first word.
    pub name: &'static str,
    /// Other names.
    pub aliases: &'static [&'static str],
    /// One line for lists.
    pub about: &'static str,
    /// Operands as shown in the synopsis: `pool vdev...`
    pub operands: &'static str,
    /// Options.
    pub flags: &'static [Flag],
    /// Paragraphs of the manual page.
    pub text: &'static [&'static str],
    /// What a shell completes operands with.
    pub complete: Complete,
    /// Available in this version.
    pub built: bool,
}

impl Sub {
    /// The option of that letter.
    pub fn short(&self, c: char) -> Option<&'static Flag> {
        self.flags.iter().find(|f| f.short == Some(c))
    }

    /// The option of that long name, or of the one name it is the beginning of.
    pub fn long(&self, name: &str) -> Option<&'static Flag> {
        let exact = self.flags.iter().find(|f| f.long == Some(name));
        exact.or_else(|| {
            let mut begin = self
                .flags
                .iter()
                .filter(|f| f.long.is_some_and(|l| l.starts_with(name)));
            match (begin.next(), begin.next()) {
                (Some(f), None) => Some(f),
                _ => None,
            }
        })
    }
}

/// A command with subcommands.
#[derive(Debug)]
pub struct Tool {
    /// The program.
    pub name: &'static str,
    /// One sentence.
    pub about: &'static str,
    /// Subcommands, in the order of the help.
    pub subs: &'static [Sub],
    /// Paragraphs of the manual page.
    pub text: &'static [&'static str],
    /// Other manual pages.
    pub see: &'static [&'static str],
}

impl Tool {
    /// The subcommand of that name, or of that alias.
    pub fn find(&self, word: &str) -> Option<&'static Sub> {
        self.subs
            .iter()
            .find(|s| s.name == word || s.aliases.contains(&word))
    }
}
