//! How a command runs: its output, its connection to the daemon, its exit status.

use crate::args::{Bad, Parsed};
use crate::backend::Backend;
use crate::colour::{self, Colours};
use crate::daemons::Daemons;
use crate::harmless::{harmless, Harmless};
use crate::help;
use crate::table::{Sub, Tool};
use api::{ApiError, Reply, Request};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;
use tz::TimeZone;

/// Why a command ends early.
#[derive(Debug)]
pub enum Fail {
    /// Wrong command line: complaint, then usage on stderr; exit 2.
    Usage(String),
    /// A sentence on stderr (or none, if all has been said); exit 1.
    Error(String),
    /// Output could not be written.
    Io(io::Error),
}

impl From<io::Error> for Fail {
    fn from(e: io::Error) -> Fail {
        Fail::Io(e)
    }
}

/// Result of a command: its exit status.
pub type Outcome = Result<i32, Fail>;

/// What a command runs in.
pub struct Cx<'a> {
    /// Standard output.
    pub out: &'a mut dyn Write,
    /// Standard error.
    pub err: &'a mut dyn Write,
    /// The daemon.
    pub backend: &'a mut dyn Backend,
    /// Time zone of dates printed.
    pub zone: TimeZone,
    /// Standard error is a terminal: progress may be shown.
    pub tty: bool,
    /// Lines of the terminal standard output goes to; none if it is no terminal.
    pub rows: Option<usize>,
    /// Environment as far as it matters, so that tests need not change their own.
    pub env: fn(&str) -> Option<String>,
    /// The command line, for the pool history.
    pub line: String,
}

impl Cx<'_> {
    /// Asks; progress becomes a line on the terminal.
    pub fn ask(&mut self, request: &Request) -> Result<Reply, ApiError> {
        let tty = self.tty;
        let mut shown = false;
        // Not through `self.err`, which lets nothing reach the terminal that it would act on.
        let mut terminal = io::stderr();
        let answer = self.backend.ask(request, &mut |p| {
            if tty {
                shown = true;
                let what = harmless(&p.what);
                let _ = write!(terminal, "\r{what}: ({}/{})\x1b[K", p.done, p.total);
                let _ = terminal.flush();
            }
        });
        if shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
        answer
    }

    /// The command line for the history, once: requests after the first successful one record
    /// nothing more.
    pub fn command(&self) -> String {
        self.line.clone()
    }

    /// Prints an error of `cannot ACTION 'OBJECT'`.
    pub fn complain(&mut self, error: &ApiError, action: &str, object: &str) -> io::Result<()> {
        for line in &error.details {
            writeln!(self.err, "{line}")?;
        }
        writeln!(self.err, "{}", error.sentence_for(action, object))?;
        if let Some(hint) = &error.hint {
            writeln!(self.err, "{hint}")?;
        }
        Ok(())
    }

    /// As `complain`, as the end of the command.
    pub fn fail(&mut self, error: &ApiError, action: &str, object: &str) -> Fail {
        match self.complain(error, action, object) {
            Ok(()) => Fail::Error(String::new()),
            Err(e) => Fail::Io(e),
        }
    }

    /// Prints an error that concerns no object in particular.
    pub fn fail_plain(&mut self, error: &ApiError) -> Fail {
        let whole = ApiError {
            whole: true,
            ..error.clone()
        };
        self.fail(&whole, "", "")
    }

    /// A sentence on stderr.
    pub fn say(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.err, "{line}")
    }

    /// Whether what the command prints is to be in colours.
    pub fn wants_colour(&self) -> bool {
        colour::is_wanted(self.rows.is_some(), self.env)
    }

    /// True when the environment variable is set to something that means yes.
    pub fn flag(&self, name: &str) -> bool {
        (self.env)(name).is_some_and(|v| !v.is_empty())
    }
}

/// `zpool`, `zfs`: takes the command line apart, finds the subcommand and runs it. `args` are the
/// words after the command. `run` gets the subcommand and its command line.
pub fn main_with(
    tool: &'static Tool,
    args: &[String],
    cx: &mut Cx<'_>,
    run: fn(&'static Sub, &Parsed, &mut Cx<'_>) -> Outcome,
) -> io::Result<i32> {
    let mut args = args.to_vec();
    let Some(first) = args.first().cloned() else {
        write!(cx.err, "missing command\n{}", help::overview(tool))?;
        return Ok(2);
    };
    match first.as_str() {
        "-?" | "--help" | "-h" => {
            write!(cx.out, "{}", help::overview(tool))?;
            return Ok(0);
        }
        "-V" | "--version" => args[0] = "version".into(),
        "help" => return help_topic(tool, args.get(1).map(String::as_str), cx),
        _ => {}
    }
    // A first word `property=value` is `set`.
    if first.contains('=') && !first.starts_with('-') && tool.find(&first).is_none() {
        args.insert(0, "set".into());
    }
    let word = args[0].clone();
    let Some(sub) = tool.find(&word) else {
        unknown(tool, &word, cx)?;
        return Ok(2);
    };
    let parsed = match Parsed::read(tool.name, sub, &args[1..]) {
        Ok(parsed) => parsed,
        Err(Bad::Help) => {
            write!(cx.out, "{}", help::full(tool, sub))?;
            return Ok(0);
        }
        Err(Bad::ShortHelp) => {
            write!(cx.err, "{}", help::full(tool, sub))?;
            return Ok(2);
        }
        Err(Bad::Usage(what)) => {
            write!(cx.err, "{what}\n{}", help::usage(sub))?;
            return Ok(2);
        }
        Err(Bad::NotBuilt(what)) if sub.built => {
            writeln!(cx.err, "{what}")?;
            return Ok(1);
        }
        Err(Bad::NotBuilt(_)) => Parsed::default(),
    };
    if !sub.built {
        writeln!(
            cx.err,
            "{} {}: not available in this version yet",
            tool.name, sub.name
        )?;
        return Ok(1);
    }
    match run(sub, &parsed, cx) {
        Ok(status) => Ok(status),
        Err(Fail::Usage(what)) => {
            if !what.is_empty() {
                writeln!(cx.err, "{what}")?;
            }
            write!(cx.err, "{}", help::usage(sub))?;
            if parsed.operands.is_empty() {
                write!(cx.err, "{}", help::properties(tool, sub))?;
            }
            Ok(2)
        }
        Err(Fail::Error(what)) => {
            if !what.is_empty() {
                writeln!(cx.err, "{what}")?;
            }
            Ok(1)
        }
        Err(Fail::Io(e)) => Err(e),
    }
}

/// A word that is no subcommand: what may have been meant.
fn unknown(tool: &Tool, word: &str, cx: &mut Cx<'_>) -> io::Result<()> {
    writeln!(cx.err, "unrecognized command '{word}'")?;
    if let Some((last, others)) = crate::suggest::meant(tool, word).split_last() {
        let list: String = others.iter().map(|o| format!("'{o}', ")).collect();
        writeln!(cx.err, "did you mean {list}'{last}'?")?;
    }
    writeln!(cx.err, "run '{} help' for a list of commands", tool.name)
}

/// `zpool help [topic]`: the manual page if there is one to show, else the built-in help.
fn help_topic(tool: &'static Tool, topic: Option<&str>, cx: &mut Cx<'_>) -> io::Result<i32> {
    let Some(topic) = topic else {
        write!(cx.out, "{}", help::overview(tool))?;
        return Ok(0);
    };
    if let Some(sub) = tool.find(topic) {
        write!(cx.out, "{}", help::full(tool, sub))?;
        return Ok(0);
    }
    let page = match topic {
        "props" | "properties" => format!("{}props", tool.name),
        _ => {
            writeln!(cx.err, "no help on '{topic}'")?;
            return Ok(1);
        }
    };
    let status = std::process::Command::new("man").arg(&page).status();
    match status {
        Ok(s) if s.success() => Ok(0),
        _ => {
            writeln!(cx.err, "see the manual page {page}(7)")?;
            Ok(1)
        }
    }
}

/// The main function of `zpool` and `zfs`: real standard streams, the real daemon. Returns the
/// exit status.
pub fn main(tool: &'static Tool, run: fn(&'static Sub, &Parsed, &mut Cx<'_>) -> Outcome) -> u8 {
    match words() {
        Ok(words) => main_on(tool, &words, run),
        Err(what) => {
            eprintln!("{what}");
            2
        }
    }
}

/// The words of this process's command line, without its name.
///
/// Errors: a sentence.
pub fn words() -> Result<Vec<String>, String> {
    let word = |w: std::ffi::OsString| {
        w.into_string()
            .map_err(|w| format!("argument is not valid UTF-8: '{}'", w.to_string_lossy()))
    };
    std::env::args_os().skip(1).map(word).collect()
}

/// The same as [`main`] with these words for a command line.
pub fn main_on(
    tool: &'static Tool,
    words: &[String],
    run: fn(&'static Sub, &Parsed, &mut Cx<'_>) -> Outcome,
) -> u8 {
    let env = |name: &str| std::env::var(name).ok();
    let painted = colour::is_wanted(io::stdout().is_terminal(), env);
    let buffer = BufWriter::new(io::stdout().lock());
    let mut out = Harmless(Colours(buffer, painted));
    let mut err = Harmless(io::stderr().lock());
    let mut daemon = Daemons::default();
    let tty = err.0.is_terminal();
    let rows = io::stdout().is_terminal().then(|| {
        let lines = std::env::var("LINES").ok();
        lines.and_then(|l| l.parse().ok()).unwrap_or(24)
    });
    let mut cx = Cx {
        out: &mut out,
        err: &mut err,
        backend: &mut daemon,
        zone: crate::time::zone(),
        tty,
        rows,
        env,
        line: command_line(tool.name, words),
    };
    let status = main_with(tool, words, &mut cx, run);
    let flushed = out.flush();
    match status.and_then(|s| flushed.map(|()| s)) {
        Ok(status) => u8::try_from(status).unwrap_or(1),
        // Nobody reads any more (`zfs list | head`): nothing to complain about.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => 1,
        Err(e) => {
            eprintln!("cannot write the output: {}", base::io_text(&e));
            1
        }
    }
}

/// The command line as it is recorded: words joined by blanks, cut at 8 KiB.
pub fn command_line(name: &str, words: &[String]) -> String {
    let mut line = name.to_string();
    for word in words {
        line.push(' ');
        line.push_str(word);
    }
    let mut end = line.len().min(8191);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    line.truncate(end);
    line
}

/// Whether standard output is a pipe that nobody reads any more (`zfs send … | head`).
pub fn nobody_reads() -> bool {
    use rustix::event::{poll, PollFd, PollFlags, Timespec};
    let out = io::stdout();
    let mut polled = [PollFd::new(&out, PollFlags::empty())];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let gone = PollFlags::ERR | PollFlags::HUP;
    poll(&mut polled, Some(&at_once)).is_ok() && polled[0].revents().intersects(gone)
}

/// Absolute form of a path given on the command line. Addresses of network block devices are absolute.
pub fn absolute(path: &str) -> String {
    if path.starts_with('/') || base::is_network_device(path) {
        return path.to_string();
    }
    std::env::current_dir()
        .unwrap_or_else(|_| Path::new("/").to_path_buf())
        .join(path.strip_prefix("./").unwrap_or(path))
        .to_string_lossy()
        .into_owned()
}

/// Trailing `interval [count]` of operands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Repeat {
    /// Seconds between reports.
    pub interval: f64,
    /// Number of reports; none: for ever.
    pub count: Option<u64>,
}

/// Takes trailing numbers off the operands: the last is the count if two are there. `fraction`:
/// the interval may have one.
pub fn take_repeat(operands: &mut Vec<String>) -> Result<Option<Repeat>, Fail> {
    let number = |s: &str| {
        (s.starts_with(|c: char| c.is_ascii_digit() || c == '.'))
            .then(|| s.parse::<f64>().ok())
            .flatten()
            .filter(|v| v.is_finite())
    };
    let Some(last) = operands.last().and_then(|s| number(s)) else {
        return Ok(None);
    };
    operands.pop();
    let before = operands.last().and_then(|s| number(s));
    let (interval, count) = match before {
        Some(interval) => {
            operands.pop();
            if last.fract() != 0.0 || last < 1.0 {
                return Err(Fail::Usage(
                    "count must be a whole number above zero".into(),
                ));
            }
            (interval, Some(last as u64))
        }
        None => (last, None),
    };
    if interval <= 0.0 {
        return Err(Fail::Usage("interval cannot be zero".into()));
    }
    Ok(Some(Repeat { interval, count }))
}

impl Repeat {
    /// Waits for the interval.
    pub fn sleep(&self) {
        std::thread::sleep(std::time::Duration::from_secs_f64(self.interval.min(1e9)));
    }
}

/// The line `-T u` or `-T d` prints before a report.
pub fn stamp(how: &str, zone: &TimeZone) -> Result<String, Fail> {
    let now = crate::time::now();
    match how {
        "u" => Ok(now.to_string()),
        "d" => Ok(crate::time::date(now, zone)),
        _ => Err(Fail::Usage(format!(
            "invalid argument '{how}' for 'T' option: u or d"
        ))),
    }
}

/// Version of OpenZFS whose commands, options and output these are. Tools such as bzfs and zrepl read
/// it from the first line of `zfs version`, and choose by it what they use.
pub const OPENZFS: &str = "2.4.0";

/// `zpool version`, `zfs version`: this command (`zfs-2.4.0-fuse-0.1.0`) and the daemon, if one runs
/// (`zfs-kmod-2.4.0-fuse-0.1.0`).
pub fn version(what: &str, own: &str, args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    if !args.operands.is_empty() {
        return Err(Fail::Usage("too many arguments".into()));
    }
    let daemon = if cx.backend.running() {
        match cx.ask(&Request::Version {}) {
            Ok(Reply::Version(v)) => Some(v.daemon),
            Ok(other) => return Err(cx.fail_plain(&control::client::unexpected(&other))),
            Err(e) => return Err(cx.fail_plain(&e)),
        }
    } else {
        None
    };
    let userland = format!("zfs-{OPENZFS}-fuse-{own}");
    let kernel = daemon.map(|d| format!("zfs-kmod-{OPENZFS}-fuse-{d}"));
    if args.has("j") {
        use crate::json::Put;
        let mut versions = crate::json::Object::new().with("userland", userland);
        versions.put("kernel", kernel.clone().unwrap_or_else(|| "-".into()));
        let mut report = crate::json::envelope(what);
        report.put("zfs_version", versions);
        writeln!(cx.out, "{}", crate::json::line(report))?;
    } else {
        writeln!(cx.out, "{userland}")?;
        if let Some(kernel) = &kernel {
            writeln!(cx.out, "{kernel}")?;
        }
    }
    if kernel.is_none() {
        cx.out.flush()?;
        cx.say("the zfs-fuse daemon is not running (start it with: zfs-fuse)")?;
        return Ok(1);
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repeat(words: &str) -> (Vec<String>, Result<Option<Repeat>, Fail>) {
        let mut v: Vec<String> = words.split_whitespace().map(str::to_string).collect();
        let r = take_repeat(&mut v);
        (v, r)
    }

    #[test]
    fn intervals() {
        let (v, r) = repeat("tank 1.5 3");
        assert_eq!(v, ["tank"]);
        assert_eq!(
            r.unwrap(),
            Some(Repeat {
                interval: 1.5,
                count: Some(3)
            })
        );
        let (v, r) = repeat("tank 5");
        assert_eq!(v, ["tank"]);
        assert_eq!(r.unwrap().unwrap().count, None);
        assert_eq!(repeat("tank").1.unwrap(), None);
        assert!(matches!(repeat("0").1, Err(Fail::Usage(_))));
        assert!(matches!(repeat("1 0").1, Err(Fail::Usage(_))));
    }

    #[test]
    fn recorded_lines() {
        let words = ["create".to_string(), "ä".repeat(9000)];
        let line = command_line("zpool", &words);
        assert!(line.len() <= 8191 && line.starts_with("zpool create ä"));
    }
}
