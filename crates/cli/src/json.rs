//! JSON with the keys in the order they were put in, one line, no blanks (command reference §4).

use crate::harmless::is_harmful;
use std::fmt;

/// A JSON value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Json {
    Text(String),
    Number(u64),
    Object(Object),
    Array(Vec<Json>),
}

/// Keys and values in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Object(Vec<(String, Json)>);

impl Object {
    pub fn new() -> Object {
        Object::default()
    }

    /// Puts a value in; a key given again keeps its place.
    pub fn put(&mut self, key: impl Into<String>, value: impl Into<Json>) {
        let (key, value) = (key.into(), value.into());
        match self.0.iter_mut().find(|(k, _)| *k == key) {
            Some(slot) => slot.1 = value,
            None => self.0.push((key, value)),
        }
    }

    /// As `put`, for building in one expression.
    pub fn with(mut self, key: impl Into<String>, value: impl Into<Json>) -> Object {
        self.put(key, value);
        self
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<Object> for Json {
    fn from(o: Object) -> Json {
        Json::Object(o)
    }
}

impl From<&str> for Json {
    fn from(s: &str) -> Json {
        Json::Text(s.to_string())
    }
}

impl From<String> for Json {
    fn from(s: String) -> Json {
        Json::Text(s)
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Json::Text(t) => text(f, t),
            Json::Number(n) => write!(f, "{n}"),
            Json::Object(o) => {
                f.write_str("{")?;
                for (i, (k, v)) in o.0.iter().enumerate() {
                    if i > 0 {
                        f.write_str(",")?;
                    }
                    text(f, k)?;
                    write!(f, ":{v}")?;
                }
                f.write_str("}")
            }
            Json::Array(a) => {
                f.write_str("[")?;
                for (i, v) in a.iter().enumerate() {
                    if i > 0 {
                        f.write_str(",")?;
                    }
                    write!(f, "{v}")?;
                }
                f.write_str("]")
            }
        }
    }
}

fn text(f: &mut fmt::Formatter<'_>, t: &str) -> fmt::Result {
    let text = serde_json::to_string(t).map_err(|_| fmt::Error)?;
    // The encoder escapes what JSON requires; terminals act on more.
    let mut rest = text.as_str();
    while let Some((at, c)) = rest.char_indices().find(|(_, c)| is_harmful(*c)) {
        f.write_str(&rest[..at])?;
        for unit in c.encode_utf16(&mut [0; 2]) {
            write!(f, "\\u{unit:04x}")?;
        }
        rest = &rest[at + c.len_utf8()..];
    }
    f.write_str(rest)
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
            Json::Number(n)
        } else {
            Json::Text(n.to_string())
        }
    }

    /// A number shown as `nice` unless exact.
    pub fn nice(self, n: u64, nice: impl FnOnce() -> String) -> Json {
        if self.exact || self.int {
            self.plain(n)
        } else {
            Json::Text(nice())
        }
    }

    /// Text that may be a number.
    pub fn text(self, t: String) -> Json {
        match t.parse::<u64>() {
            Ok(n) if self.int => Json::Number(n),
            _ => Json::Text(t),
        }
    }
}

/// The object every report begins with.
pub fn envelope(command: &str) -> Object {
    Object::new().with(
        "output_version",
        Object::new()
            .with("command", command)
            .with("vers_major", Json::Number(0))
            .with("vers_minor", Json::Number(1)),
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
            Json::from(o).to_string(),
            r#"{"output_version":{"command":"zpool list","vers_major":0,"vers_minor":1},"pools":{"b":"x\"y","a":[]}}"#
        );
        let p = property("on".into(), &api::Source::Inherited("t".into()));
        assert_eq!(
            Json::from(p).to_string(),
            r#"{"value":"on","source":{"type":"INHERITED","data":"t"}}"#
        );
    }
}
