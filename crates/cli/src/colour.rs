//! Colours on a terminal: with `ZFS_COLOR` in the environment, unless `NO_COLOR` is there or `TERM` is `dumb`.
//!
//! What commands print passes [`crate::harmless::Harmless`], which lets no escape sequence through. So painted text
//! carries marks, characters of Unicode's last private plane, and [`Colours`] behind the filter turns these into escape
//! sequences. A name from a foreign pool that holds marks gets a colour, and nothing more.

use std::io::{self, Write};

/// How a piece of text is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// Headings.
    Bold,
    /// Something failed.
    Red,
    /// Something came.
    Green,
    /// Something needs attention, or changed.
    Yellow,
    /// Something moved.
    Blue,
}

const END: char = '\u{10fd00}';
const MARKS: [(char, &str); 6] = [
    (END, "\x1b[0m"),
    ('\u{10fd01}', "\x1b[1m"),
    ('\u{10fd02}', "\x1b[31m"),
    ('\u{10fd03}', "\x1b[32m"),
    ('\u{10fd04}', "\x1b[33m"),
    ('\u{10fd05}', "\x1b[34m"),
];

/// Text that is shown in that colour.
pub fn paint(colour: Colour, text: &str) -> String {
    let mark = match colour {
        Colour::Bold => MARKS[1].0,
        Colour::Red => MARKS[2].0,
        Colour::Green => MARKS[3].0,
        Colour::Yellow => MARKS[4].0,
        Colour::Blue => MARKS[5].0,
    };
    format!("{mark}{text}{END}")
}

/// The text with its first `lines` lines painted as headings.
pub fn headings(text: &str, lines: usize) -> String {
    let paint_some = |(n, line): (usize, &str)| match line.strip_suffix('\n') {
        Some(line) if n < lines => paint(Colour::Bold, line) + "\n",
        _ => line.to_string(),
    };
    text.split_inclusive('\n')
        .enumerate()
        .map(paint_some)
        .collect()
}

/// Whether the environment asks for colours on a terminal.
fn asked(env: fn(&str) -> Option<String>) -> bool {
    env("ZFS_COLOR").is_some()
        && env("NO_COLOR").is_none()
        && env("TERM").as_deref() != Some("dumb")
}

/// Whether what a command prints is to be painted; `terminal`: standard output is one.
pub fn is_wanted(terminal: bool, env: fn(&str) -> Option<String>) -> bool {
    terminal && asked(env)
}

/// A writer that turns marks into escape sequences if its second part is true. It gets whole characters.
pub struct Colours<W>(pub W, pub bool);

impl<W: Write> Write for Colours<W> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        // All marks begin with these two bytes.
        if !self.1 || !buf.windows(2).any(|w| w == [0xf4, 0x8f]) {
            return self.0.write_all(buf).map(|()| buf.len());
        }
        let mut text = String::from_utf8_lossy(buf).into_owned();
        for (mark, sequence) in MARKS {
            text = text.replace(mark, sequence);
        }
        self.0.write_all(text.as_bytes()).map(|()| buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harmless::Harmless;

    #[test]
    fn marks_become_colours_behind_the_filter() {
        let mut out = Harmless(Colours(Vec::new(), true));
        write!(out, "a {} \x1b[31m", paint(Colour::Red, "b")).unwrap();
        assert_eq!(out.0 .0, b"a \x1b[31mb\x1b[0m \\033[31m");
        let mut out = Harmless(Colours(Vec::new(), true));
        write!(out, "{}", headings("A B\nc\n", 1)).unwrap();
        assert_eq!(out.0 .0, b"\x1b[1mA B\x1b[0m\nc\n");
    }

    #[test]
    fn the_environment_decides() {
        assert!(!asked(|_| None));
        assert!(asked(|n| (n == "ZFS_COLOR").then(|| "1".into())));
        assert!(!asked(
            |n| (n == "ZFS_COLOR" || n == "NO_COLOR").then(|| "1".into())
        ));
        assert!(!asked(|n| match n {
            "TERM" => Some("dumb".into()),
            "ZFS_COLOR" => Some(String::new()),
            _ => None,
        }));
    }
}
