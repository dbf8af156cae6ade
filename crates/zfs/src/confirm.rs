//! The question on a terminal before an operation that cannot be undone.

use cli::{Cx, Fail};
use std::io::{self, BufRead, IsTerminal};

/// Most names shown before the question.
const SHOWN: usize = 20;

/// Whether to ask at all: a person reads the question and can answer it.
pub fn is_asked(cx: &Cx<'_>) -> bool {
    cx.tty && cx.rows.is_some() && io::stdin().is_terminal()
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
    use crate::testing::Fake;

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
            let (mut out, mut err, mut fake) = (Vec::new(), Vec::new(), Fake::default());
            let mut cx = cli::Cx {
                out: &mut out,
                err: &mut err,
                backend: &mut fake,
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
}
