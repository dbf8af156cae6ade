//! JSON with the keys in the order they were put in, one line, no blanks (command reference §4).
//!
//! Values are those of `serde_json`, whose maps keep the order of their keys here (`preserve_order`).

use crate::harmless::is_harmful;
use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, Serializer};
use std::io;

pub use serde_json::Value as Json;

/// Keys and values in order.
pub type Object = serde_json::Map<String, Json>;

/// Puts values of all kinds into objects.
pub trait Put: Sized {
    /// Puts a value in; a key given again keeps its place.
    fn put(&mut self, key: impl Into<String>, value: impl Into<Json>);

    /// As `put`, for building in one expression.
    fn with(mut self, key: impl Into<String>, value: impl Into<Json>) -> Self {
        self.put(key, value);
        self
    }
}

impl Put for Object {
    fn put(&mut self, key: impl Into<String>, value: impl Into<Json>) {
        self.insert(key.into(), value.into());
    }
}

/// A report as it is printed, without a line feed. Characters a terminal acts on are escaped.
pub fn line(report: Object) -> String {
    let mut out = Vec::new();
    let mut writer = Serializer::with_formatter(&mut out, Harmless);
    // Writing to memory does not fail, and all keys are text.
    let written = Json::from(report).serialize(&mut writer);
    debug_assert!(written.is_ok());
    String::from_utf8_lossy(&out).into_owned()
}

/// The encoder escapes what JSON requires; terminals act on more.
struct Harmless;

impl Formatter for Harmless {
    fn write_string_fragment<W: io::Write + ?Sized>(
        &mut self,
        to: &mut W,
        text: &str,
    ) -> io::Result<()> {
        let mut rest = text;
        while let Some((at, c)) = rest.char_indices().find(|(_, c)| is_harmful(*c)) {
            CompactFormatter.write_string_fragment(to, &rest[..at])?;
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(to, "\\u{unit:04x}")?;
            }
            rest = &rest[at + c.len_utf8()..];
        }
        CompactFormatter.write_string_fragment(to, rest)
    }
}

/// How numbers are put into JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// `-p`: exact values.
    pub exact: bool,
    /// `--json-int`: numbers as numbers, exact.
    pub int: bool,
}

impl Style {
    /// A number that is always exact (guids, counts of transaction groups).
    pub fn plain(self, n: u64) -> Json {
        if self.int {
            Json::from(n)
        } else {
            Json::String(n.to_string())
        }
    }

    /// A number shown as `nice` unless exact.
    pub fn nice(self, n: u64, nice: impl FnOnce() -> String) -> Json {
        if self.exact || self.int {
            self.plain(n)
        } else {
            Json::String(nice())
        }
    }

    /// Text that may be a number.
    pub fn text(self, t: String) -> Json {
        match t.parse::<u64>() {
            Ok(n) if self.int => Json::from(n),
            _ => Json::String(t),
        }
    }
}

/// The object every report begins with.
pub fn envelope(command: &str) -> Object {
    Object::new().with(
        "output_version",
        Object::new()
            .with("command", command)
            .with("vers_major", 0u64)
            .with("vers_minor", 1u64),
    )
}

/// A property: value and where it comes from.
pub fn property(value: Json, source: &api::Source) -> Object {
    let (kind, data) = crate::value::source_json(source);
    Object::new().with("value", value).with(
        "source",
        Object::new().with("type", kind).with("data", data),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_order() {
        let mut o = envelope("zpool list");
        o.put(
            "pools",
            Object::new()
                .with("b", "x\"y")
                .with("a", Json::Array(vec![])),
        );
        assert_eq!(
            line(o),
            r#"{"output_version":{"command":"zpool list","vers_major":0,"vers_minor":1},"pools":{"b":"x\"y","a":[]}}"#
        );
        let p = property("on".into(), &api::Source::Inherited("t".into()));
        assert_eq!(
            line(p),
            r#"{"value":"on","source":{"type":"INHERITED","data":"t"}}"#
        );
    }

    #[test]
    fn text_cannot_end_a_string_or_reach_the_terminal() {
        let names = "q\"b\\ n\n\u{1b}[31m\u{7f}\u{9b}\u{202e}ä";
        let o = Object::new().with(names, names).with("n", u64::MAX);
        let text = r#""q\"b\\ n\n\u001b[31m\u007f\u009b\u202eä""#;
        let want = format!("{{{text}:{text},\"n\":18446744073709551615}}");
        assert_eq!(line(o.clone()), want);
        assert_eq!(serde_json::from_str::<Json>(&want).unwrap(), Json::from(o));
    }

    #[test]
    fn a_key_given_again_keeps_its_place() {
        let o = Object::new().with("z", "1").with("a", "2").with("z", "3");
        assert_eq!(line(o), r#"{"z":"3","a":"2"}"#);
    }
}
