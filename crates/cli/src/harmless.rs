//! The output filter: makes text from pools and users harmless on a terminal.
//!
//! Names, comments, paths and error texts may come from the labels of a foreign device. A control
//! character among them could move the cursor, change colours, or have the terminal type. Whatever the
//! commands print goes through [`Harmless`]; JSON is escaped by `json` with the same rule.

use std::io::{self, Write};

/// Whether a terminal acts on a character, or shows what follows in another order than it is. Line
/// feed and tab are layout and stay.
pub fn is_harmful(c: char) -> bool {
    matches!(c,
        '\0'..='\x08' | '\x0b'..='\x1f' | '\x7f'..='\u{9f}'
        | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A writer whose harmful characters become `\ooo`, their bytes in octal digits. Bytes that are no
/// UTF-8 are written so, too.
pub struct Harmless<W>(pub W);

impl<W: Write> Harmless<W> {
    fn octal(&mut self, bytes: &[u8]) -> io::Result<()> {
        bytes.iter().try_for_each(|b| write!(self.0, "\\{b:03o}"))
    }
}

impl<W: Write> Write for Harmless<W> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        for chunk in buf.utf8_chunks() {
            let mut rest = chunk.valid();
            while let Some((at, c)) = rest.char_indices().find(|(_, c)| is_harmful(*c)) {
                self.0.write_all(&rest.as_bytes()[..at])?;
                self.octal(c.encode_utf8(&mut [0; 4]).as_bytes())?;
                rest = &rest[at + c.len_utf8()..];
            }
            self.0.write_all(rest.as_bytes())?;
            self.octal(chunk.invalid())?;
        }
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The same for one piece of text.
pub fn harmless(text: &str) -> String {
    let mut out = Harmless(Vec::new());
    // Writing to memory does not fail.
    let _ = out.write_all(text.as_bytes());
    String::from_utf8_lossy(&out.0).into_owned()
}

/// One piece of text in one line: line feeds and tabs in it become octal digits, too. A name that holds
/// some could otherwise forge lines and columns.
pub fn one_line(text: &str) -> String {
    text.replace('\n', "\\012").replace('\t', "\\011")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_written_in_octal() {
        for (text, want) in [
            ("plain ä\ttab\nline", "plain ä\ttab\nline"),
            ("\x1b]0;title\x07", "\\033]0;title\\007"),
            ("a\u{9b}31m\x7f\r", "a\\302\\23331m\\177\\015"),
            ("\u{202e}fdp.exe", "\\342\\200\\256fdp.exe"),
        ] {
            assert_eq!(harmless(text), want);
        }
        let mut out = Harmless(Vec::new());
        out.write_all(b"x\xffy\x9b").unwrap();
        assert_eq!(out.0, b"x\\377y\\233");
    }
}
