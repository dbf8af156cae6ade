//! The question on a terminal before an operation that cannot be undone.
//!
//! A person must be there to read the question and to answer it. Scripts and tools of others have the terminal of their
//! caller for standard streams, too (syncoid by hand, a script in tmux), and wait for ever or fail if they are asked. So a
//! command asks only when a person typed it at the prompt of an interactive shell:
//!
//! 1. Standard input, output and error are terminals.
//! 2. The command leads the process group in the foreground of its terminal. What a script starts belongs to the group of
//!    the script. `sudo` and `doas` in front of the command are passed over.
//! 3. The parent of that job is a shell that runs neither a script nor a command line.

use crate::{Cx, Fail};
use std::fs;
use std::io::{self, BufRead, IsTerminal};
use std::path::Path;

/// Most names shown before the question.
const SHOWN: usize = 20;

/// Programs that read commands from a person.
const SHELLS: [&str; 13] = [
    "sh", "bash", "dash", "ash", "busybox", "zsh", "fish", "ksh", "mksh", "csh", "tcsh", "nu",
    "elvish",
];

/// Programs that run a command as somebody else.
const IN_FRONT: [&str; 2] = ["sudo", "doas"];

/// Whether to ask at all: a person reads the question and can answer it, and `ZFS_FUSE_ASK` is not `never`.
pub fn is_asked(cx: &Cx<'_>) -> bool {
    cx.tty
        && cx.rows.is_some()
        && (cx.env)("ZFS_FUSE_ASK").as_deref() != Some("never")
        && io::stdin().is_terminal()
        && is_typed(Path::new("/proc"), std::process::id())
}

/// What `/proc/PID/stat` says of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Job {
    parent: u32,
    group: i64,
    /// The process group in the foreground of its terminal; -1 without a terminal.
    foreground: i64,
}

/// Whether somebody typed the command `pid` at the prompt of a shell. False where `proc` does not tell.
fn is_typed(proc: &Path, pid: u32) -> bool {
    let job = |pid: u32| {
        let stat = fs::read_to_string(proc.join(pid.to_string()).join("stat"));
        stat.ok().and_then(|text| job_of(&text))
    };
    let words = |pid: u32| {
        let line = fs::read(proc.join(pid.to_string()).join("cmdline"));
        line.map(|l| command_words(&l)).unwrap_or_default()
    };
    let Some(own) = job(pid) else {
        return false;
    };
    // The group in the foreground begins with the command, or with what stands in front of it.
    let mut leads = own.group == i64::from(pid);
    let mut parent = own.parent;
    while IN_FRONT.contains(&program(&words(parent))) {
        leads |= own.group == i64::from(parent);
        let Some(above) = job(parent) else {
            return false;
        };
        parent = above.parent;
    }
    leads && own.group == own.foreground && is_interactive(&words(parent))
}

/// `PID (NAME) STATE PARENT GROUP SESSION TERMINAL FOREGROUND …`; the name may have anything in it.
fn job_of(stat: &str) -> Option<Job> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(1);
    Some(Job {
        parent: fields.next()?.parse().ok()?,
        group: fields.next()?.parse().ok()?,
        foreground: fields.nth(2)?.parse().ok()?,
    })
}

fn command_words(line: &[u8]) -> Vec<String> {
    let words = line.split(|b| *b == 0).filter(|w| !w.is_empty());
    words
        .map(|w| String::from_utf8_lossy(w).into_owned())
        .collect()
}

/// The name of a program from its command line; `-bash` is a login shell.
fn program(words: &[String]) -> &str {
    let path = words.first().map_or("", String::as_str);
    let name = path.rsplit('/').next().unwrap_or_default();
    name.strip_prefix('-').unwrap_or(name)
}

/// A shell with options alone. A word is a script, and `-c` a command line.
fn is_interactive(words: &[String]) -> bool {
    let given = words.iter().skip(1);
    let prompts = |w: &String| w.starts_with("--") || w.starts_with('-') && !w.contains('c');
    SHELLS.contains(&program(words)) && given.skip_while(|w| w.as_str() == "sh").all(prompts)
}

/// Says what will happen to `names`, and asks.
///
/// # Errors
/// Ends the command if the answer is anything but yes.
pub fn ask(intro: &str, names: &[String], cx: &mut Cx<'_>) -> Result<(), Fail> {
    ask_of(intro, names, cx, &mut io::stdin().lock())
}

fn ask_of(
    intro: &str,
    names: &[String],
    cx: &mut Cx<'_>,
    answers: &mut dyn BufRead,
) -> Result<(), Fail> {
    writeln!(cx.err, "{intro}")?;
    for name in names.iter().take(SHOWN) {
        writeln!(cx.err, "  {name}")?;
    }
    if names.len() > SHOWN {
        writeln!(cx.err, "  ... and {} more", names.len() - SHOWN)?;
    }
    write!(cx.err, "This cannot be undone. Go on? [y/N] ")?;
    cx.err.flush()?;
    let mut answer = String::new();
    answers.read_line(&mut answer)?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Fail::Error("nothing was changed".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::{ApiError, Reply, Request};
    use base::Kind;

    struct Nobody;

    impl crate::Backend for Nobody {
        fn ask(
            &mut self,
            _: &Request,
            _: &mut dyn FnMut(api::Progress),
        ) -> Result<Reply, ApiError> {
            Err(ApiError::reason(Kind::Unsupported, "nobody is there"))
        }

        fn running(&mut self) -> bool {
            false
        }
    }

    #[test]
    fn only_yes_goes_on() {
        for (answer, goes_on) in [
            ("y\n", true),
            ("Yes\n", true),
            ("n\n", false),
            ("\n", false),
            ("", false),
            ("yy\n", false),
        ] {
            let (mut out, mut err, mut nobody) = (Vec::new(), Vec::new(), Nobody);
            let mut cx = Cx {
                out: &mut out,
                err: &mut err,
                backend: &mut nobody,
                zone: tz::TimeZone::utc(),
                tty: true,
                rows: Some(24),
                env: |_| None,
                line: String::new(),
            };
            let names: Vec<String> = (0..30).map(|n| format!("tank@{n}")).collect();
            let said = ask_of("destroys:", &names, &mut cx, &mut answer.as_bytes());
            assert_eq!(said.is_ok(), goes_on, "{answer:?}");
            let text = String::from_utf8(err).unwrap();
            assert!(text.starts_with("destroys:\n  tank@0\n"), "{text}");
            assert!(text.contains("... and 10 more"), "{text}");
        }
    }

    /// Process, parent, group, group in the foreground, command line.
    type Process = (u32, u32, i64, i64, &'static str);

    fn typed(name: &str, processes: &[Process]) -> bool {
        let proc = std::env::temp_dir().join(format!("zfs-ask-{}-{name}", std::process::id()));
        for (pid, parent, group, foreground, line) in processes {
            let dir = proc.join(pid.to_string());
            fs::create_dir_all(&dir).unwrap();
            let stat = format!("{pid} (a) b) S {parent} {group} 1 34816 {foreground} 0 0");
            fs::write(dir.join("stat"), stat).unwrap();
            fs::write(dir.join("cmdline"), line.replace(' ', "\0") + "\0").unwrap();
        }
        let asked = is_typed(&proc, 9);
        fs::remove_dir_all(&proc).unwrap();
        asked
    }

    #[test]
    fn a_command_is_typed_when_a_shell_that_prompts_made_it_its_job() {
        const ZFS: Process = (9, 5, 9, 9, "zfs destroy tank/a");
        for (n, shell) in ["-bash", "bash", "/usr/bin/zsh -i", "sh --login", "-sh"]
            .iter()
            .enumerate()
        {
            let all = [ZFS, (5, 1, 5, 9, shell)];
            assert!(typed(&format!("shell{n}"), &all), "{shell}");
        }
        let bash: Process = (4, 1, 4, 9, "-bash");
        // In the group of sudo, or on a terminal that sudo made.
        let same = [
            (9, 5, 5, 5, "zfs"),
            (5, 4, 5, 5, "sudo zfs destroy tank/a"),
            bash,
        ];
        assert!(typed("sudo", &same));
        let own = [
            ZFS,
            (5, 3, 5, 9, "sudo zfs destroy tank/a"),
            (3, 4, 3, 3, "sudo zfs destroy tank/a"),
            bash,
        ];
        assert!(typed("sudo-pty", &own));
    }

    #[test]
    fn a_command_of_a_script_or_tool_is_not_typed() {
        let tool: Process = (5, 4, 5, 5, "/usr/bin/perl /usr/sbin/syncoid a b");
        let bash: Process = (4, 1, 4, 5, "-bash");
        assert!(!typed("tool", &[(9, 5, 5, 5, "zfs destroy a"), tool, bash]));
        // The tool as a job, and its command as root on a terminal of its own.
        let sudo: Process = (6, 5, 5, 5, "sudo zfs destroy a");
        assert!(!typed(
            "sudo",
            &[(9, 6, 9, 9, "zfs destroy a"), sudo, tool, bash]
        ));
        for (n, parent) in [
            "sh -c zfs",
            "bash -ec zfs",
            "bash /usr/bin/script",
            "sshd",
            "tmux",
        ]
        .iter()
        .enumerate()
        {
            let all = [(9, 5, 9, 9, "zfs destroy a"), (5, 1, 5, 9, *parent)];
            assert!(!typed(&format!("parent{n}"), &all), "{parent}");
        }
        // In the background, and without a terminal.
        let bash: Process = (5, 1, 5, 5, "-bash");
        assert!(!typed("background", &[(9, 5, 9, 5, "zfs destroy a"), bash]));
        assert!(!typed("no-terminal", &[(9, 5, 9, -1, "zfs"), bash]));
    }
}
