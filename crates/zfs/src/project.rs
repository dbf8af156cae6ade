//! `zfs project`: project ids of files and directories, asked of the kernel and not of the daemon.

use cli::{Cx, Fail, Outcome, Parsed};
use fuse::project::{project, set_project, Project};
use std::fs::{File, FileType, Metadata};
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    List,
    Check,
    Set,
    Clear,
}

struct Ask {
    what: What,
    /// Of the operand itself if it is not given, for checks and changes.
    id: Option<u32>,
    /// With a new project, the flag.
    inherit: bool,
    keep: bool,
    nul: bool,
    recursive: bool,
    only_itself: bool,
}

const NONE: i64 = u32::MAX as i64;

fn read(args: &Parsed) -> Result<Ask, Fail> {
    let usage = |text: &str| Err(Fail::Usage(text.into()));
    let (check, clear, inherit) = (args.has("c"), args.has("C"), args.has("s"));
    if u8::from(check) + u8::from(clear) + u8::from(inherit) > 1 {
        return usage("cannot specify '-C' '-c' '-s' together");
    }
    let id = match args.get("p") {
        None => None,
        Some(text) => match text.parse::<i64>() {
            // The last number means that there is none.
            Ok(-1 | NONE) => return usage("invalid project ID"),
            Ok(n @ 0..NONE) => Some(n as u32),
            _ => return usage(&format!("project ID must be less than {NONE}")),
        },
    };
    let what = match () {
        () if check => What::Check,
        () if clear => What::Clear,
        () if inherit || id.is_some() => What::Set,
        () => What::List,
    };
    if what == What::Clear && id.is_some() {
        return usage("'-p' is useless together with '-C'");
    }
    if args.has("k") && what != What::Clear {
        return usage("'-k' is only valid together with '-C'");
    }
    if args.has("0") && what != What::Check {
        return usage("'-0' is only valid together with '-c'");
    }
    // Of both, the later one counts.
    let last = args
        .in_order()
        .filter(|(o, _)| ["r", "d"].contains(o))
        .last();
    let last = last.map(|(o, _)| o);
    match what {
        What::Clear if last == Some("d") => {
            return usage("'-d' is useless together with '-C'");
        }
        What::Set if last == Some("d") => {
            return usage("'-d' is useless for set project ID and/or inherit flag");
        }
        _ => {}
    }
    if args.operands.is_empty() {
        return usage("missing file or directory target(s)");
    }
    Ok(Ask {
        what,
        id,
        inherit,
        keep: args.has("k"),
        nul: args.has("0"),
        recursive: last == Some("r"),
        only_itself: last == Some("d"),
    })
}

pub fn project_of(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let ask = read(args)?;
    let mut status = 0;
    for word in &args.operands {
        if !operand(Path::new(word), &ask, cx)? {
            status = 1;
        }
    }
    Ok(status)
}

fn fits(kind: FileType) -> bool {
    kind.is_file() || kind.is_dir()
}

/// Says what cannot be done; the command goes on, and fails in the end.
fn complain(cx: &mut Cx<'_>, what: &str, path: &Path, e: &io::Error) -> Result<bool, Fail> {
    cx.say(&format!(
        "failed to {what} {}: {}",
        path.display(),
        base::io_text(e)
    ))?;
    Ok(false)
}

/// One operand, with what is below it. False if something went wrong.
fn operand(path: &Path, ask: &Ask, cx: &mut Cx<'_>) -> Result<bool, Fail> {
    let kind = match std::fs::metadata(path).map(|m: Metadata| m.file_type()) {
        Ok(kind) => kind,
        Err(e) => return complain(cx, "stat", path, &e),
    };
    if !fits(kind) {
        cx.say(&format!(
            "{}: only support project quota on regular file or directory",
            path.display()
        ))?;
        return Ok(false);
    }
    for (asked, option) in [(ask.recursive, 'r'), (ask.only_itself, 'd')] {
        if asked && !kind.is_dir() {
            cx.say(&format!(
                "'-{option}' option on non-dir target {}",
                path.display()
            ))?;
            return Ok(false);
        }
    }
    let id = match (ask.what, ask.id) {
        (What::Check | What::Set, None) => match File::open(path).and_then(|f| project(&f)) {
            Ok(own) => own.id,
            Err(e) => return complain(cx, "get xattr for", path, &e),
        },
        (_, id) => id.unwrap_or(0),
    };
    let mut good = one(path, ask, id, cx)?;
    let deep = ask.recursive || matches!(ask.what, What::List | What::Check);
    if !good || !kind.is_dir() || ask.only_itself || !deep {
        return Ok(good);
    }
    let mut dirs = vec![path.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        let list = std::fs::read_dir(&dir).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let entries = match list {
            Ok(entries) => entries,
            // It may have gone meanwhile.
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => {
                good = complain(cx, "open", &dir, &e)?;
                continue;
            }
        };
        let mut below: Vec<PathBuf> = Vec::new();
        for entry in entries {
            let Some(kind) = entry.file_type().ok().filter(|k| fits(*k)) else {
                continue;
            };
            let at = entry.path();
            good &= one(&at, ask, id, cx)?;
            if kind.is_dir() && ask.recursive {
                below.push(at);
            }
        }
        dirs.extend(below.into_iter().rev());
    }
    Ok(good)
}

/// One file or directory, itself.
fn one(path: &Path, ask: &Ask, id: u32, cx: &mut Cx<'_>) -> Result<bool, Fail> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) => return complain(cx, "open", path, &e),
    };
    let now = match project(&file) {
        Ok(now) => now,
        Err(e) => return complain(cx, "get xattr for", path, &e),
    };
    let to = match ask.what {
        What::List => {
            let flag = if now.inherit { 'P' } else { '-' };
            write!(cx.out, "{:>5} {flag} ", now.id)?;
            cx.out.write_all(&shown(path))?;
            writeln!(cx.out)?;
            return Ok(true);
        }
        What::Check => {
            check(path, ask, id, now, cx)?;
            return Ok(true);
        }
        What::Set => Project {
            id,
            inherit: now.inherit || ask.inherit,
        },
        What::Clear => Project {
            id: if ask.keep { now.id } else { 0 },
            inherit: false,
        },
    };
    if to == now {
        return Ok(true);
    }
    match set_project(&file, to) {
        Ok(()) => Ok(true),
        Err(e) => complain(cx, "set xattr for", path, &e),
    }
}

/// A name in one line.
fn shown(path: &Path) -> Vec<u8> {
    let mut out = Vec::new();
    for b in path.as_os_str().as_bytes() {
        match b {
            b'\n' => out.extend(b"\\012"),
            b'\t' => out.extend(b"\\011"),
            b => out.push(*b),
        }
    }
    out
}

fn check(path: &Path, ask: &Ask, id: u32, now: Project, cx: &mut Cx<'_>) -> Result<(), Fail> {
    let mut wrong = Vec::new();
    if now.id != id {
        let differs = format!("project ID is not set properly ({}/{id})", now.id);
        wrong.push(differs);
    }
    if !now.inherit {
        wrong.push("project inherit flag is not set".into());
    }
    if ask.nul && !wrong.is_empty() {
        return names_alone(path, cx);
    }
    for why in wrong {
        cx.out.write_all(&shown(path))?;
        writeln!(cx.out, " - {why}")?;
    }
    Ok(())
}

/// A name as it is and NUL, for a program. A terminal is spared what it would act on.
fn names_alone(path: &Path, cx: &mut Cx<'_>) -> Result<(), Fail> {
    let name = [path.as_os_str().as_bytes(), &[0]].concat();
    match io::stdout().is_terminal() {
        true => cx.out.write_all(&name)?,
        false => io::stdout().write_all(&name)?,
    }
    Ok(())
}
