//! Names and paths of files, which need not be UTF-8, in JSON.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes. They travel as a string with one character (U+0000 to U+00FF) for each byte.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let text: String = self.0.iter().map(|b| char::from(*b)).collect();
        s.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Bytes, D::Error> {
        let text = String::deserialize(d)?;
        let bytes: Result<Vec<u8>, _> = text.chars().map(u8::try_from).collect();
        bytes.map(Bytes).map_err(serde::de::Error::custom)
    }
}
