//! Key material in requests to the daemon. It is wiped when dropped.

use serde::{de, Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use zeroize::Zeroizing;

/// A passphrase or a key. Wiped when dropped, and never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Takes over the bytes; they are wiped when it is dropped.
    pub fn new(bytes: Vec<u8>) -> Secret {
        Secret(Zeroizing::new(bytes))
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// On the wire: lower-case hexadecimal digits.
impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut text = Zeroizing::new(String::with_capacity(2 * self.0.len()));
        for b in self.0.iter() {
            for d in [b >> 4, b & 15] {
                text.push(char::from_digit(d.into(), 16).unwrap_or('0'));
            }
        }
        s.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Secret, D::Error> {
        let text = Zeroizing::new(String::deserialize(d)?);
        match unhex(text.as_bytes()) {
            Some(bytes) => Ok(Secret(bytes)),
            None => Err(de::Error::custom("a key is given in hexadecimal digits")),
        }
    }
}

fn unhex(text: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let digit = |c: u8| char::from(c).to_digit(16);
    let mut out = Zeroizing::new(Vec::with_capacity(text.len() / 2));
    for pair in text.chunks(2) {
        match *pair {
            [a, b] => out.push((digit(a)? << 4 | digit(b)?) as u8),
            _ => return None,
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back_and_never_shown() {
        let s = Secret::new(b"correct horse\xff\0".to_vec());
        let wire = serde_json::to_string(&s).unwrap();
        assert_eq!(wire, "\"636f727265637420686f727365ff00\"");
        assert_eq!(serde_json::from_str::<Secret>(&wire).unwrap(), s);
        assert_eq!(format!("{s:?}"), "Secret");
        for bad in ["\"abc\"", "\"zz\"", "7"] {
            assert!(serde_json::from_str::<Secret>(bad).is_err(), "{bad}");
        }
    }
}
