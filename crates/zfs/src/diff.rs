//! `zfs diff`.

use api::{Bytes, Change, ChangeKind, Reply, Request};
use cli::colour::{self, Colour};
use cli::names::{self, Want};
use cli::{Cx, Fail, Outcome, Parsed};
use control::client::unexpected;
use std::io::Write;

/// How changes are printed.
struct Style {
    kind: bool,
    scripted: bool,
    time: bool,
    plain: bool,
    painted: bool,
}

impl Style {
    /// A path: bytes that are no printable ASCII, blanks and backslashes as `\0ooo`.
    fn path(&self, path: &Bytes, out: &mut Vec<u8>) {
        for b in &path.0 {
            match b {
                _ if self.plain => out.push(*b),
                b'\\' => out.extend_from_slice(br"\0134"),
                0x21..=0x7e => out.push(*b),
                _ => out.extend_from_slice(format!("\\{b:04o}").as_bytes()),
            }
        }
    }

    /// The line as it is printed.
    fn line(&self, c: &Change) -> Vec<u8> {
        let mut line = self.plain_line(c);
        if self.painted && line.pop().is_some() {
            let colour = match c.what {
                ChangeKind::Removed => Colour::Red,
                ChangeKind::Created => Colour::Green,
                ChangeKind::Renamed => Colour::Blue,
                ChangeKind::Modified | ChangeKind::Links(_) => Colour::Yellow,
            };
            // Before and behind the bytes, which need not be text.
            let paint = colour::paint(colour, "\n");
            let (before, after) = paint.split_once('\n').unwrap_or_default();
            line.splice(0..0, before.bytes());
            line.extend_from_slice(after.as_bytes());
            line.push(b'\n');
        }
        line
    }

    fn plain_line(&self, c: &Change) -> Vec<u8> {
        let mut out = Vec::new();
        if self.time {
            let (seconds, nanoseconds) = c.ctime;
            out.extend_from_slice(format!("{seconds:>10}.{nanoseconds:09}\t").as_bytes());
        }
        out.push(match c.what {
            ChangeKind::Removed => b'-',
            ChangeKind::Created => b'+',
            ChangeKind::Renamed => b'R',
            ChangeKind::Modified | ChangeKind::Links(_) => b'M',
        });
        out.push(b'\t');
        if self.kind {
            out.extend([kind(c.mode), b'\t']);
        }
        self.path(&c.path, &mut out);
        if let Some(to) = &c.to {
            let between: &[u8] = if self.scripted { b"\t" } else { b" -> " };
            out.extend_from_slice(between);
            self.path(to, &mut out);
        }
        if let ChangeKind::Links(n) = c.what {
            out.extend_from_slice(format!("\t({n:+})").as_bytes());
        }
        out.push(b'\n');
        out
    }
}

/// The letter of a kind of file.
fn kind(mode: u32) -> u8 {
    match mode & 0o170_000 {
        0o060_000 => b'B',
        0o020_000 => b'C',
        0o040_000 => b'/',
        0o010_000 => b'|',
        0o120_000 => b'@',
        0o140_000 => b'=',
        0o100_000 => b'F',
        _ => b'?',
    }
}

/// The two names in full: either may leave out what the other one has.
fn states(args: &Parsed) -> Result<(String, Option<String>), Fail> {
    let (from, to) = match args.operands.as_slice() {
        [] => {
            return Err(Fail::Usage(
                "must provide at least one snapshot name".into(),
            ))
        }
        [from] => (from.clone(), None),
        [from, to] => (from.clone(), Some(to.clone())),
        _ => return Err(Fail::Usage("too many arguments".into())),
    };
    let Some((fs, short)) = from.split_once('@') else {
        return Err(Fail::Error(format!("Badly formed snapshot name {from}")));
    };
    let fs = match (fs, &to) {
        ("", Some(to)) => to.split('@').next().unwrap_or_default().to_string(),
        (fs, _) => fs.to_string(),
    };
    let from = format!("{fs}@{short}");
    let to = to.map(|t| match t.starts_with('@') {
        true => format!("{fs}{t}"),
        false => t,
    });
    for (name, want) in [(Some(&from), Want::Snapshot), (to.as_ref(), Want::Any)] {
        if let Some(name) = name {
            names::check_dataset(name, want)
                .map_err(|why| Fail::Error(format!("cannot open '{name}': {why}")))?;
            if name.contains('#') {
                let why = "bookmarks have no files to compare";
                return Err(Fail::Error(format!("cannot open '{name}': {why}")));
            }
        }
    }
    Ok((from, to))
}

pub fn diff(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let (from, to) = states(args)?;
    let style = Style {
        kind: args.has("F"),
        scripted: args.has("H"),
        time: args.has("t"),
        plain: args.has("h"),
        painted: cx.wants_colour(),
    };
    let mut written = Ok(());
    let mut wrong = None;
    let request = Request::Diff {
        from: from.clone(),
        to,
    };
    let out = &mut cx.out;
    let done = cx.backend.ask_in_parts(&request, &mut |reply| match reply {
        Reply::Changes(changes) if written.is_ok() => {
            written = changes
                .iter()
                .try_for_each(|c| out.write_all(&style.line(c)));
        }
        Reply::Changes(_) => {}
        other => wrong = Some(unexpected(&other)),
    });
    written?;
    match (done, wrong) {
        (Ok(()), None) => Ok(0),
        (Err(e), _) | (Ok(()), Some(e)) => Err(cx.fail(&e, "diff", &from)),
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{run, tree, Fake};
    use api::{ApiError, Bytes, Change, ChangeKind, Reply, Request};
    use base::Kind;

    fn changes() -> Fake {
        let change = |what, mode, path: &[u8], to: Option<&[u8]>| Change {
            what,
            mode,
            ctime: (1_795_180_045, 7),
            path: Bytes(path.to_vec()),
            to: to.map(|t| Bytes(t.to_vec())),
        };
        let mut fake = Fake::with(tree());
        fake.answer = Some(Reply::Changes(vec![
            change(ChangeKind::Created, 0o040_755, b"/tank/a b", None),
            change(ChangeKind::Removed, 0o100_644, b"/tank/\\\xff", None),
            change(ChangeKind::Modified, 0o120_777, b"/tank/l", None),
            change(ChangeKind::Renamed, 0o010_644, b"/tank/x", Some(b"/tank/y")),
            change(ChangeKind::Links(-2), 0o100_644, b"/tank/h", None),
        ]));
        fake
    }

    #[test]
    fn prints_one_line_for_each_change() {
        let (status, out, err) = run("diff tank@1", &mut changes());
        assert_eq!((status, err.as_str()), (0, ""));
        assert_eq!(
            out,
            "+\t/tank/a\\0040b\n-\t/tank/\\0134\\0377\nM\t/tank/l\nR\t/tank/x -> /tank/y\nM\t/tank/h\t(-2)\n"
        );
        let mut fake = changes();
        if let Some(Reply::Changes(c)) = &mut fake.answer {
            c.remove(1);
        }
        let (_, out, _) = run("diff -FHth tank@1 tank@2", &mut fake);
        let t = "1795180045.000000007";
        assert_eq!(
            out,
            format!(
                "{t}\t+\t/\t/tank/a b\n{t}\tM\t@\t/tank/l\n{t}\tR\t|\t/tank/x\t/tank/y\n{t}\tM\tF\t/tank/h\t(-2)\n"
            )
        );
    }

    #[test]
    fn names_may_be_short() {
        for (line, from, to) in [
            ("diff tank/a@1 @2", "tank/a@1", Some("tank/a@2")),
            ("diff @1 tank/a@2", "tank/a@1", Some("tank/a@2")),
            ("diff @1 tank/a", "tank/a@1", Some("tank/a")),
            ("diff tank/a@1", "tank/a@1", None),
        ] {
            let mut fake = changes();
            assert_eq!(run(line, &mut fake).0, 0, "{line}");
            let wanted = Request::Diff {
                from: from.into(),
                to: to.map(str::to_string),
            };
            assert_eq!(fake.seen, [wanted], "{line}");
        }
    }

    #[test]
    fn wrong_names_and_refusals() {
        assert_eq!(run("diff", &mut changes()).0, 2);
        assert_eq!(run("diff a@1 a@2 a@3", &mut changes()).0, 2);
        for line in ["diff tank", "diff @1", "diff tank@1 tank#b", "diff tank@"] {
            assert_eq!(run(line, &mut changes()).0, 1, "{line}");
        }
        let mut fake = Fake::with(tree());
        let text = "Unable to obtain diffs: Not an earlier snapshot from the same fs";
        fake.refuse = Some(ApiError::sentence(Kind::Invalid, text));
        let (status, _, err) = run("diff tank@1 tank@0", &mut fake);
        assert_eq!((status, err), (1, format!("{text}\n")));
    }
}
