//! Packed name-value lists (pool format §4): labels, pool configs, history records, the cache file.
//!
//! A list is an ordered sequence of named, typed values. [`NvList::pack_xdr`] is the big-endian
//! form used in labels, packed MOS objects and the cache file; [`NvList::pack_native`] the form of
//! history records. [`NvList::decode`] reads both.

mod native;
mod print;
mod xdr;

use base::{bail, Error, Result, Txg};
use std::fmt;

/// Lists may be nested this deep; the reference refuses deeper ones (pool format §4.3).
pub const MAX_NESTING: usize = 20;

/// Persistent flag: no two pairs have the same name.
pub const UNIQUE_NAME: u32 = 1;
/// Persistent flag: no two pairs have the same name and type.
pub const UNIQUE_NAME_TYPE: u32 = 2;

/// Value of one pair. The variants are the data types of pool format §4.2.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Presence only (type 1).
    Boolean,
    /// Type 2.
    Byte(u8),
    /// Type 3.
    Int16(i16),
    /// Type 4.
    Uint16(u16),
    /// Type 5.
    Int32(i32),
    /// Type 6.
    Uint32(u32),
    /// Type 7.
    Int64(i64),
    /// Type 8.
    Uint64(u64),
    /// Type 9: text without its NUL.
    String(String),
    /// A string that is not valid UTF-8, kept byte for byte (written as type 9, like `String`).
    RawString(Vec<u8>),
    /// Type 10.
    ByteArray(Vec<u8>),
    /// Type 11.
    Int16Array(Vec<i16>),
    /// Type 12.
    Uint16Array(Vec<u16>),
    /// Type 13.
    Int32Array(Vec<i32>),
    /// Type 14.
    Uint32Array(Vec<u32>),
    /// Type 15.
    Int64Array(Vec<i64>),
    /// Type 16.
    Uint64Array(Vec<u64>),
    /// Type 17.
    StringArray(Vec<String>),
    /// Type 18: nanoseconds.
    HrTime(i64),
    /// Type 19.
    NvList(NvList),
    /// Type 20.
    NvListArray(Vec<NvList>),
    /// Type 21.
    BooleanValue(bool),
    /// Type 22.
    Int8(i8),
    /// Type 23.
    Uint8(u8),
    /// Type 24.
    BooleanArray(Vec<bool>),
    /// Type 25.
    Int8Array(Vec<i8>),
    /// Type 26.
    Uint8Array(Vec<u8>),
    /// Type 27.
    Double(f64),
}

impl Value {
    /// Data type number on disk (pool format §4.2).
    pub fn type_id(&self) -> u32 {
        match self {
            Value::Boolean => 1,
            Value::Byte(_) => 2,
            Value::Int16(_) => 3,
            Value::Uint16(_) => 4,
            Value::Int32(_) => 5,
            Value::Uint32(_) => 6,
            Value::Int64(_) => 7,
            Value::Uint64(_) => 8,
            Value::String(_) | Value::RawString(_) => 9,
            Value::ByteArray(_) => 10,
            Value::Int16Array(_) => 11,
            Value::Uint16Array(_) => 12,
            Value::Int32Array(_) => 13,
            Value::Uint32Array(_) => 14,
            Value::Int64Array(_) => 15,
            Value::Uint64Array(_) => 16,
            Value::StringArray(_) => 17,
            Value::HrTime(_) => 18,
            Value::NvList(_) => 19,
            Value::NvListArray(_) => 20,
            Value::BooleanValue(_) => 21,
            Value::Int8(_) => 22,
            Value::Uint8(_) => 23,
            Value::BooleanArray(_) => 24,
            Value::Int8Array(_) => 25,
            Value::Uint8Array(_) => 26,
            Value::Double(_) => 27,
        }
    }

    /// Element count as stored with the pair.
    fn count(&self) -> usize {
        match self {
            Value::Boolean => 0,
            Value::ByteArray(a) | Value::Uint8Array(a) => a.len(),
            Value::Int16Array(a) => a.len(),
            Value::Uint16Array(a) => a.len(),
            Value::Int32Array(a) => a.len(),
            Value::Uint32Array(a) => a.len(),
            Value::Int64Array(a) => a.len(),
            Value::Uint64Array(a) => a.len(),
            Value::StringArray(a) => a.len(),
            Value::NvListArray(a) => a.len(),
            Value::BooleanArray(a) => a.len(),
            Value::Int8Array(a) => a.len(),
            _ => 1,
        }
    }

    /// Bytes of the value in the memory form of the reference implementation, before rounding to 8
    /// (pool format §4.3): readers allocate by it, so it must be right in what we write.
    fn memory_size(&self) -> usize {
        match self {
            Value::Boolean => 0,
            Value::Byte(_) | Value::Int8(_) | Value::Uint8(_) => 1,
            Value::Int16(_) | Value::Uint16(_) => 2,
            Value::Int32(_) | Value::Uint32(_) | Value::BooleanValue(_) => 4,
            Value::Int64(_) | Value::Uint64(_) | Value::HrTime(_) | Value::Double(_) => 8,
            Value::String(s) => c_str(s.as_bytes()).len() + 1,
            Value::RawString(s) => c_str(s).len() + 1,
            Value::ByteArray(a) | Value::Uint8Array(a) => a.len(),
            Value::Int8Array(a) => a.len(),
            Value::Int16Array(a) => 2 * a.len(),
            Value::Uint16Array(a) => 2 * a.len(),
            Value::Int32Array(a) => 4 * a.len(),
            Value::Uint32Array(a) => 4 * a.len(),
            Value::BooleanArray(a) => 4 * a.len(),
            Value::Int64Array(a) => 8 * a.len(),
            Value::Uint64Array(a) => 8 * a.len(),
            Value::StringArray(a) => {
                8 * a.len()
                    + a.iter()
                        .map(|s| c_str(s.as_bytes()).len() + 1)
                        .sum::<usize>()
            }
            Value::NvList(_) => 24,
            Value::NvListArray(a) => 32 * a.len(),
        }
    }
}

macro_rules! value_from {
    ($($t:ty => $v:ident),* $(,)?) => {
        $(impl From<$t> for Value {
            fn from(v: $t) -> Value {
                Value::$v(v)
            }
        })*
    };
}

value_from! {
    u64 => Uint64,
    i64 => Int64,
    u32 => Uint32,
    i32 => Int32,
    bool => BooleanValue,
    String => String,
    NvList => NvList,
    Vec<NvList> => NvListArray,
    Vec<u64> => Uint64Array,
    Vec<String> => StringArray,
}

impl From<Txg> for Value {
    fn from(v: Txg) -> Value {
        Value::Uint64(v.number())
    }
}

impl From<&str> for Value {
    fn from(v: &str) -> Value {
        Value::String(v.to_string())
    }
}

/// Strings end at the first NUL, as they would in the memory form of the reference.
fn c_str(b: &[u8]) -> &[u8] {
    let end = b.iter().position(|&c| c == 0).unwrap_or(b.len());
    &b[..end]
}

fn string_value(b: &[u8]) -> Value {
    match std::str::from_utf8(b) {
        Ok(s) => Value::String(s.to_string()),
        Err(_) => Value::RawString(b.to_vec()),
    }
}

fn name_value(b: &[u8]) -> Result<String> {
    match std::str::from_utf8(b) {
        Ok(s) => Ok(s.to_string()),
        Err(_) => bail!(Damaged, "nvlist: name is not UTF-8"),
    }
}

/// A name-value list; the order of the pairs is kept through decoding and encoding.
#[derive(Clone, Debug, PartialEq)]
pub struct NvList {
    /// Persistent flag: [`UNIQUE_NAME`] for everything stored in a pool.
    pub flag: u32,
    /// Names and values in stored order.
    pub pairs: Vec<(String, Value)>,
}

impl Default for NvList {
    fn default() -> NvList {
        NvList {
            flag: UNIQUE_NAME,
            pairs: Vec::new(),
        }
    }
}

macro_rules! getters {
    ($($(#[$doc:meta])* $get:ident -> $t:ty { $($pat:pat => $out:expr),* $(,)? })*) => {
        $($(#[$doc])*
        pub fn $get(&self, name: &str) -> Option<$t> {
            match self.get(name)? {
                $($pat => Some($out),)*
                _ => None,
            }
        })*
    };
}

impl NvList {
    /// An empty list with unique names.
    pub fn new() -> NvList {
        NvList::default()
    }

    /// Whether the list has no pairs.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Pairs in stored order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.pairs.iter().map(|(n, v)| (n.as_str(), v))
    }

    /// First pair of that name.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.pairs.iter().find(|(n, _)| n == name).map(|(_, v)| v)
    }

    /// First pair of that name, to be changed.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Value> {
        self.pairs
            .iter_mut()
            .find(|(n, _)| n == name)
            .map(|(_, v)| v)
    }

    /// Whether there is a pair of that name.
    pub fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    getters! {
        /// First pair of that name, if it is a `u64`.
        get_u64 -> u64 { Value::Uint64(v) => *v }
        /// First pair of that name, if it is an `i64` or a time.
        get_i64 -> i64 { Value::Int64(v) | Value::HrTime(v) => *v }
        /// First pair of that name, if it is a `u32`.
        get_u32 -> u32 { Value::Uint32(v) => *v }
        /// First pair of that name, if it is an `i32`.
        get_i32 -> i32 { Value::Int32(v) => *v }
        /// First pair of that name, if it is a string.
        get_str -> &str { Value::String(v) => v.as_str() }
        /// First pair of that name, if it is an array of bytes.
        get_byte_array -> &[u8] { Value::ByteArray(v) | Value::Uint8Array(v) => v.as_slice() }
        /// First pair of that name, if it is an array of `u64`.
        get_u64_array -> &[u64] { Value::Uint64Array(v) => v.as_slice() }
        /// First pair of that name, if it is an array of strings.
        get_str_array -> &[String] { Value::StringArray(v) => v.as_slice() }
        /// First pair of that name, if it is a list.
        get_nvlist -> &NvList { Value::NvList(v) => v }
        /// First pair of that name, if it is an array of lists.
        get_nvlist_array -> &[NvList] { Value::NvListArray(v) => v.as_slice() }
        /// `true` for a presence-only boolean, else the value of a boolean value.
        get_bool -> bool { Value::Boolean => true, Value::BooleanValue(v) => *v }
    }

    /// First pair of that name, to be changed, if it is a list.
    pub fn get_nvlist_mut(&mut self, name: &str) -> Option<&mut NvList> {
        match self.get_mut(name)? {
            Value::NvList(v) => Some(v),
            _ => None,
        }
    }

    /// First pair of that name, to be changed, if it is an array of lists.
    pub fn get_nvlist_array_mut(&mut self, name: &str) -> Option<&mut Vec<NvList>> {
        match self.get_mut(name)? {
            Value::NvListArray(v) => Some(v),
            _ => None,
        }
    }

    /// [`NvList::get_u64`] where the number is a txg.
    pub fn get_txg(&self, name: &str) -> Option<Txg> {
        self.get_u64(name).map(Txg::new)
    }

    /// [`NvList::get_u64`] with an error naming the missing key.
    pub fn need_u64(&self, name: &str) -> Result<u64> {
        self.get_u64(name).ok_or_else(|| missing(name))
    }

    /// [`NvList::get_str`] with an error naming the missing key.
    pub fn need_str(&self, name: &str) -> Result<&str> {
        self.get_str(name).ok_or_else(|| missing(name))
    }

    /// [`NvList::get_nvlist`] with an error naming the missing key.
    pub fn need_nvlist(&self, name: &str) -> Result<&NvList> {
        self.get_nvlist(name).ok_or_else(|| missing(name))
    }

    /// Replaces the pair of that name in place, or appends it.
    pub fn set(&mut self, name: &str, value: impl Into<Value>) -> &mut NvList {
        let value = value.into();
        match self.get_mut(name) {
            Some(v) => *v = value,
            None => self.pairs.push((name.to_string(), value)),
        }
        self
    }

    /// Adds a presence-only boolean.
    pub fn set_flag(&mut self, name: &str) -> &mut NvList {
        self.set(name, Value::Boolean)
    }

    /// Removes every pair of that name and returns the first.
    pub fn remove(&mut self, name: &str) -> Option<Value> {
        let at = self.pairs.iter().position(|(n, _)| n == name)?;
        let (_, v) = self.pairs.remove(at);
        self.pairs.retain(|(n, _)| n != name);
        Some(v)
    }

    /// Packs with the XDR encoding, stream header included.
    pub fn pack_xdr(&self) -> Vec<u8> {
        xdr::pack(self)
    }

    /// Packs with the native encoding (little endian), stream header included.
    pub fn pack_native(&self) -> Vec<u8> {
        native::pack(self)
    }

    /// Unpacks either encoding (of either byte order) and returns the list and the bytes it took;
    /// what follows is not looked at. Anything inconsistent is [`base::Kind::Damaged`].
    pub fn decode(b: &[u8]) -> Result<(NvList, usize)> {
        match (b.first(), b.get(1)) {
            (Some(1), Some(_)) => xdr::unpack(b),
            (Some(0), Some(0)) => native::unpack(b, true),
            (Some(0), Some(1)) => native::unpack(b, false),
            _ => bail!(Damaged, "nvlist: unknown encoding"),
        }
    }

    /// [`NvList::decode`] without the length.
    pub fn unpack(b: &[u8]) -> Result<NvList> {
        Ok(NvList::decode(b)?.0)
    }

    /// Prints the list as `zdb` does: one `name: value` line per pair, four blanks per level.
    pub fn dump(&self, indent: usize) -> String {
        let mut out = String::new();
        self.dump_into(indent, &mut out);
        out
    }

    fn dump_into(&self, indent: usize, out: &mut String) {
        use fmt::Write;
        let pad = " ".repeat(indent);
        for (name, value) in &self.pairs {
            // Writing to a String cannot fail.
            let _ = match value {
                Value::Boolean => writeln!(out, "{pad}{name}"),
                Value::String(s) => writeln!(out, "{pad}{name}: '{s}'"),
                Value::RawString(s) => {
                    writeln!(out, "{pad}{name}: '{}'", String::from_utf8_lossy(s))
                }
                Value::NvList(l) => {
                    let _ = writeln!(out, "{pad}{name}:");
                    l.dump_into(indent + 4, out);
                    Ok(())
                }
                Value::NvListArray(a) => {
                    for (i, l) in a.iter().enumerate() {
                        let _ = writeln!(out, "{pad}{name}[{i}]:");
                        l.dump_into(indent + 4, out);
                    }
                    Ok(())
                }
                Value::Uint64Array(a) => {
                    for (i, v) in a.iter().enumerate() {
                        let _ = writeln!(out, "{pad}{name}[{i}]: {v}");
                    }
                    Ok(())
                }
                Value::StringArray(a) => {
                    for (i, v) in a.iter().enumerate() {
                        let _ = writeln!(out, "{pad}{name}[{i}]: '{v}'");
                    }
                    Ok(())
                }
                Value::Byte(v) | Value::Uint8(v) => writeln!(out, "{pad}{name}: {v}"),
                Value::Int8(v) => writeln!(out, "{pad}{name}: {v}"),
                Value::Int16(v) => writeln!(out, "{pad}{name}: {v}"),
                Value::Uint16(v) => writeln!(out, "{pad}{name}: {v}"),
                Value::Int32(v) => writeln!(out, "{pad}{name}: {v}"),
                Value::Uint32(v) => writeln!(out, "{pad}{name}: {v}"),
                Value::Int64(v) | Value::HrTime(v) => writeln!(out, "{pad}{name}: {v}"),
                Value::Uint64(v) => writeln!(out, "{pad}{name}: {v}"),
                Value::Double(v) => writeln!(out, "{pad}{name}: {v}"),
                Value::BooleanValue(v) => writeln!(out, "{pad}{name}: {v}"),
                other => writeln!(out, "{pad}{name}: {other:?}"),
            };
        }
    }
}

#[cold]
fn missing(name: &str) -> Error {
    Error::damaged(format!("nvlist: no valid '{name}'"))
}

#[cfg(test)]
mod tests;
