//! Native encoding (pool format §4.4): the byte order of the writer, pairs aligned to 8 bytes.

use super::{c_str, name_value, string_value, NvList, Value, MAX_NESTING};
use crate::bytes::up8;
use base::{bail, Error, Result};

/// The list in native encoding, little-endian, with the 4 bytes of the outer header.
pub fn pack(list: &NvList) -> Vec<u8> {
    let mut out = vec![0, 1, 0, 0];
    out.extend_from_slice(&0u32.to_le_bytes());
    out.extend_from_slice(&list.flag.to_le_bytes());
    put_pairs(&mut out, list);
    out
}

fn put_pairs(out: &mut Vec<u8>, list: &NvList) {
    for (name, value) in &list.pairs {
        let name = c_str(name.as_bytes());
        let area = up8(16 + name.len() + 1);
        let size = area + up8(value.memory_size());
        let start = out.len();
        out.extend_from_slice(&(size as u32).to_le_bytes());
        out.extend_from_slice(&((name.len() + 1) as u16).to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&(value.count() as u32).to_le_bytes());
        out.extend_from_slice(&value.type_id().to_le_bytes());
        out.extend_from_slice(name);
        out.resize(start + area, 0);
        put_value(out, value);
        out.resize(start + size, 0);
        match value {
            Value::NvList(l) => put_pairs(out, l),
            Value::NvListArray(a) => a.iter().for_each(|l| put_pairs(out, l)),
            _ => {}
        }
    }
    out.extend_from_slice(&[0; 4]);
}

macro_rules! put_all {
    ($out:expr, $a:expr) => {
        for v in $a {
            $out.extend_from_slice(&v.to_le_bytes());
        }
    };
}

/// The fixed part of an embedded list: version, nvflag, private pointer, flag, padding.
fn put_head(out: &mut Vec<u8>, list: &NvList) {
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&list.flag.to_le_bytes());
    out.extend_from_slice(&[0; 16]);
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Boolean => {}
        Value::Byte(v) | Value::Uint8(v) => out.push(*v),
        Value::Int8(v) => out.push(*v as u8),
        Value::Int16(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::Uint16(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::Int32(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::Uint32(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::BooleanValue(v) => out.extend_from_slice(&u32::from(*v).to_le_bytes()),
        Value::Int64(v) | Value::HrTime(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::Uint64(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::Double(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::String(s) => put_string(out, s.as_bytes()),
        Value::RawString(s) => put_string(out, s),
        Value::ByteArray(a) | Value::Uint8Array(a) => out.extend_from_slice(a),
        Value::BooleanArray(a) => {
            for v in a {
                out.extend_from_slice(&u32::from(*v).to_le_bytes());
            }
        }
        Value::Int8Array(a) => put_all!(out, a),
        Value::Int16Array(a) => put_all!(out, a),
        Value::Uint16Array(a) => put_all!(out, a),
        Value::Int32Array(a) => put_all!(out, a),
        Value::Uint32Array(a) => put_all!(out, a),
        Value::Int64Array(a) => put_all!(out, a),
        Value::Uint64Array(a) => put_all!(out, a),
        Value::StringArray(a) => {
            out.resize(out.len() + 8 * a.len(), 0);
            a.iter().for_each(|s| put_string(out, s.as_bytes()));
        }
        Value::NvList(l) => put_head(out, l),
        Value::NvListArray(a) => {
            out.resize(out.len() + 8 * a.len(), 0);
            a.iter().for_each(|l| put_head(out, l));
        }
    }
}

fn put_string(out: &mut Vec<u8>, s: &[u8]) {
    out.extend_from_slice(c_str(s));
    out.push(0);
}

/// Decodes a list; returns it and the bytes it took. `Damaged`: it is malformed.
pub fn unpack(b: &[u8], big: bool) -> Result<(NvList, usize)> {
    let mut r = Reader { b, at: 4, big };
    let head = r.take(8)?;
    let mut list = r.head(head)?;
    r.pairs(&mut list, 1)?;
    Ok((list, r.at))
}

struct Reader<'a> {
    b: &'a [u8],
    at: usize,
    big: bool,
}

#[cold]
fn short() -> Error {
    Error::damaged("nvlist: truncated")
}

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(n).ok_or_else(short)?;
        let s = self.b.get(self.at..end).ok_or_else(short)?;
        self.at = end;
        Ok(s)
    }

    /// Integer of `n` bytes (1, 2, 4 or 8) at `off` of `b`.
    fn int(&self, b: &[u8], off: usize, n: usize) -> Result<u64> {
        let s = b
            .get(off..off.checked_add(n).ok_or_else(short)?)
            .ok_or_else(short)?;
        let mut a = [0u8; 8];
        if self.big {
            a[8 - n..].copy_from_slice(s);
            Ok(u64::from_be_bytes(a))
        } else {
            a[..n].copy_from_slice(s);
            Ok(u64::from_le_bytes(a))
        }
    }

    /// Version and nvflag at the start of `b`.
    fn head(&self, b: &[u8]) -> Result<NvList> {
        if self.int(b, 0, 4)? != 0 {
            bail!(Damaged, "nvlist: unknown version");
        }
        Ok(NvList {
            flag: self.int(b, 4, 4)? as u32,
            pairs: Vec::new(),
        })
    }

    fn pairs(&mut self, list: &mut NvList, depth: usize) -> Result<()> {
        if depth > MAX_NESTING {
            bail!(Damaged, "nvlist: nested too deep");
        }
        loop {
            let word = self.take(4)?;
            let size = self.int(word, 0, 4)? as usize;
            if size == 0 {
                return Ok(());
            }
            if size % 8 != 0 || size < 24 {
                bail!(Damaged, "nvlist: bad pair size {size}");
            }
            let pair = self.take(size - 4)?;
            let name_len = self.int(pair, 0, 2)? as usize;
            let count = self.int(pair, 4, 4)? as usize;
            let kind = self.int(pair, 8, 4)? as u32;
            let name = pair
                .get(12..12 + name_len)
                .and_then(|n| n.split_last())
                .filter(|(nul, rest)| **nul == 0 && !rest.contains(&0))
                .map(|(_, rest)| rest);
            let Some(name) = name else {
                bail!(Damaged, "nvlist: bad name");
            };
            let name = name_value(name)?;
            let area = pair.get(up8(16 + name_len) - 4..).ok_or_else(short)?;
            let value = self.value(area, kind, count, depth)?;
            list.pairs.push((name, value));
        }
    }

    fn array<T>(
        &self,
        area: &[u8],
        count: usize,
        unit: usize,
        conv: impl Fn(u64) -> T,
    ) -> Result<Vec<T>> {
        let len = count.checked_mul(unit).ok_or_else(short)?;
        let s = area.get(..len).ok_or_else(short)?;
        s.chunks_exact(unit)
            .map(|c| Ok(conv(self.int(c, 0, unit)?)))
            .collect()
    }

    fn value(&mut self, area: &[u8], kind: u32, count: usize, depth: usize) -> Result<Value> {
        let scalar = matches!(kind, 2..=9 | 18 | 19 | 21..=23 | 27);
        if scalar && count != 1 {
            bail!(Damaged, "nvlist: element count {count} of a scalar");
        }
        Ok(match kind {
            1 => Value::Boolean,
            2 => Value::Byte(self.int(area, 0, 1)? as u8),
            3 => Value::Int16(self.int(area, 0, 2)? as i16),
            4 => Value::Uint16(self.int(area, 0, 2)? as u16),
            5 => Value::Int32(self.int(area, 0, 4)? as i32),
            6 => Value::Uint32(self.int(area, 0, 4)? as u32),
            7 => Value::Int64(self.int(area, 0, 8)? as i64),
            8 => Value::Uint64(self.int(area, 0, 8)?),
            9 => string_value(terminated(area)?.0),
            10 => Value::ByteArray(area.get(..count).ok_or_else(short)?.to_vec()),
            11 => Value::Int16Array(self.array(area, count, 2, |v| v as i16)?),
            12 => Value::Uint16Array(self.array(area, count, 2, |v| v as u16)?),
            13 => Value::Int32Array(self.array(area, count, 4, |v| v as i32)?),
            14 => Value::Uint32Array(self.array(area, count, 4, |v| v as u32)?),
            15 => Value::Int64Array(self.array(area, count, 8, |v| v as i64)?),
            16 => Value::Uint64Array(self.array(area, count, 8, |v| v)?),
            17 => {
                let skip = count.checked_mul(8).ok_or_else(short)?;
                let mut rest = area.get(skip..).ok_or_else(short)?;
                let mut a = Vec::new();
                for _ in 0..count {
                    let (s, tail) = terminated(rest)?;
                    a.push(String::from_utf8_lossy(s).into_owned());
                    rest = tail;
                }
                Value::StringArray(a)
            }
            18 => Value::HrTime(self.int(area, 0, 8)? as i64),
            19 => {
                let mut list = self.head(area.get(..24).ok_or_else(short)?)?;
                self.pairs(&mut list, depth + 1)?;
                Value::NvList(list)
            }
            20 => {
                let skip = count.checked_mul(8).ok_or_else(short)?;
                let len = count.checked_mul(24).ok_or_else(short)?;
                let heads = area
                    .get(skip..)
                    .and_then(|h| h.get(..len))
                    .ok_or_else(short)?;
                let mut lists = Vec::with_capacity(count);
                for head in heads.chunks_exact(24) {
                    let mut list = self.head(head)?;
                    self.pairs(&mut list, depth + 1)?;
                    lists.push(list);
                }
                Value::NvListArray(lists)
            }
            21 => Value::BooleanValue(self.int(area, 0, 4)? != 0),
            22 => Value::Int8(self.int(area, 0, 1)? as i8),
            23 => Value::Uint8(self.int(area, 0, 1)? as u8),
            24 => Value::BooleanArray(self.array(area, count, 4, |v| v != 0)?),
            25 => Value::Int8Array(self.array(area, count, 1, |v| v as i8)?),
            26 => Value::Uint8Array(area.get(..count).ok_or_else(short)?.to_vec()),
            27 => Value::Double(f64::from_bits(self.int(area, 0, 8)?)),
            _ => bail!(Damaged, "nvlist: unknown data type {kind}"),
        })
    }
}

/// Splits a NUL-terminated string off the front.
fn terminated(b: &[u8]) -> Result<(&[u8], &[u8])> {
    let end = b.iter().position(|&c| c == 0).ok_or_else(short)?;
    Ok((&b[..end], &b[end + 1..]))
}
