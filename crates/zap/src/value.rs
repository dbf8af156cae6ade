//! Keys and values of a ZAP: names or arrays of integers, to arrays of integers of 1, 2, 4 or 8 bytes.

use base::{bail, Kind, Result};

/// What an entry is found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key<'k> {
    /// A name without its NUL.
    Name(&'k [u8]),
    /// Words, in ZAPs with [`crate::flags::UINT64_KEY`].
    Words(&'k [u64]),
}

impl<'k> From<&'k str> for Key<'k> {
    fn from(s: &'k str) -> Self {
        Key::Name(s.as_bytes())
    }
}

impl<'k> From<&'k String> for Key<'k> {
    fn from(s: &'k String) -> Self {
        Key::Name(s.as_bytes())
    }
}

impl<'k> From<&'k [u8]> for Key<'k> {
    fn from(s: &'k [u8]) -> Self {
        Key::Name(s)
    }
}

impl<'k, const N: usize> From<&'k [u8; N]> for Key<'k> {
    fn from(s: &'k [u8; N]) -> Self {
        Key::Name(s)
    }
}

impl<'k> From<&'k Vec<u8>> for Key<'k> {
    fn from(s: &'k Vec<u8>) -> Self {
        Key::Name(s)
    }
}

impl<'k> From<&'k [u64]> for Key<'k> {
    fn from(w: &'k [u64]) -> Self {
        Key::Words(w)
    }
}

impl Key<'_> {
    /// The bytes stored in a leaf, and how many integers they count as.
    pub(crate) fn stored(self) -> (Vec<u8>, usize) {
        match self {
            Key::Name(n) => {
                let mut v = Vec::with_capacity(n.len() + 1);
                v.extend_from_slice(n);
                v.push(0);
                let len = v.len();
                (v, len)
            }
            Key::Words(w) => (w.iter().flat_map(|w| w.to_be_bytes()).collect(), w.len()),
        }
    }
}

/// An array of integers of 1, 2, 4 or 8 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Bytes per integer.
    pub size: u8,
    /// The integers, big-endian, concatenated: as leaves store them.
    pub data: Vec<u8>,
}

impl Value {
    /// One integer of 8 bytes.
    pub fn u64(v: u64) -> Value {
        Value {
            size: 8,
            data: v.to_be_bytes().to_vec(),
        }
    }

    /// Integers of 8 bytes.
    pub fn u64s(v: &[u64]) -> Value {
        Value {
            size: 8,
            data: v.iter().flat_map(|v| v.to_be_bytes()).collect(),
        }
    }

    /// Integers of 2 bytes.
    pub fn u16s(v: &[u16]) -> Value {
        Value {
            size: 2,
            data: v.iter().flat_map(|v| v.to_be_bytes()).collect(),
        }
    }

    /// Integers of 4 bytes.
    pub fn u32s(v: &[u32]) -> Value {
        Value {
            size: 4,
            data: v.iter().flat_map(|v| v.to_be_bytes()).collect(),
        }
    }

    /// Integers of 1 byte.
    pub fn bytes(v: &[u8]) -> Value {
        Value {
            size: 1,
            data: v.to_vec(),
        }
    }

    /// Bytes with a NUL behind them.
    pub fn string(s: &str) -> Value {
        let mut data = s.as_bytes().to_vec();
        data.push(0);
        Value { size: 1, data }
    }

    /// Number of integers.
    pub fn len(&self) -> usize {
        self.data.len() / self.size.max(1) as usize
    }

    /// Whether there are no integers.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// All integers, widened.
    pub fn ints(&self) -> Vec<u64> {
        self.data
            .chunks_exact(self.size.max(1) as usize)
            .map(|c| c.iter().fold(0, |v, b| v << 8 | *b as u64))
            .collect()
    }

    /// The only integer, if it is exactly one of 8 bytes.
    pub fn as_u64(&self) -> Option<u64> {
        let a: [u8; 8] = self.data.as_slice().try_into().ok()?;
        (self.size == 8).then(|| u64::from_be_bytes(a))
    }

    /// The only integer, or `Kind::Invalid`.
    pub fn to_u64(&self) -> Result<u64> {
        self.as_u64().ok_or_else(|| Kind::Invalid.into())
    }

    /// Text of a byte array up to its NUL (the whole if there is none).
    pub fn to_text(&self) -> Result<String> {
        if self.size != 1 {
            bail!(
                Invalid,
                "value of {}-byte integers is not a text",
                self.size
            );
        }
        let end = self.data.iter().position(|b| *b == 0);
        let text = &self.data[..end.unwrap_or(self.data.len())];
        Ok(String::from_utf8_lossy(text).into_owned())
    }
}

/// Name of an integer key: lower-case hexadecimal without prefix.
pub fn hex_key(v: u64) -> String {
    format!("{v:x}")
}

/// The integer of such a name.
pub fn parse_hex_key(name: &[u8]) -> Result<u64> {
    std::str::from_utf8(name)
        .ok()
        .and_then(|s| u64::from_str_radix(s, 16).ok())
        .ok_or_else(|| {
            base::Error::damaged(format!(
                "ZAP key {:?} is not hexadecimal",
                String::from_utf8_lossy(name)
            ))
        })
}
