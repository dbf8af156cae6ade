//! XDR encoding (pool format §4.3): big endian in units of 4 bytes.

use super::{c_str, name_value, string_value, NvList, Value, MAX_NESTING};
use crate::bytes::up8;
use base::{bail, Error, Result};

const fn up4(n: usize) -> usize {
    (n + 3) & !3
}

fn put_i32(out: &mut Vec<u8>, v: u32) {
    out.extend_from_slice(&v.to_be_bytes());
}

fn put_padded(out: &mut Vec<u8>, b: &[u8]) {
    out.extend_from_slice(b);
    out.resize(out.len() + up4(b.len()) - b.len(), 0);
}

fn put_string(out: &mut Vec<u8>, b: &[u8]) {
    put_i32(out, b.len() as u32);
    put_padded(out, b);
}

/// The list in XDR encoding, with the 4 bytes of the outer header.
pub fn pack(list: &NvList) -> Vec<u8> {
    let mut out = vec![1, 1, 0, 0];
    put_list(&mut out, list);
    out
}

fn put_list(out: &mut Vec<u8>, list: &NvList) {
    put_i32(out, 0);
    put_i32(out, list.flag);
    for (name, value) in &list.pairs {
        let start = out.len();
        let name = c_str(name.as_bytes());
        put_i32(out, 0);
        put_i32(
            out,
            (up8(16 + name.len() + 1) + up8(value.memory_size())) as u32,
        );
        put_string(out, name);
        put_i32(out, value.type_id());
        put_i32(out, value.count() as u32);
        put_value(out, value);
        let size = (out.len() - start) as u32;
        out[start..start + 4].copy_from_slice(&size.to_be_bytes());
    }
    out.extend_from_slice(&[0; 8]);
}

/// Outer count, then each element in one 4-byte word (or 8-byte double word).
macro_rules! put_array {
    ($out:expr, $a:expr, $wide:ty) => {{
        put_i32($out, $a.len() as u32);
        for &v in $a {
            $out.extend_from_slice(&<$wide>::from(v).to_be_bytes());
        }
    }};
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Boolean => {}
        Value::Byte(v) | Value::Uint8(v) => put_i32(out, u32::from(*v)),
        Value::Int8(v) => put_i32(out, i32::from(*v) as u32),
        Value::Int16(v) => put_i32(out, i32::from(*v) as u32),
        Value::Uint16(v) => put_i32(out, u32::from(*v)),
        Value::Int32(v) => put_i32(out, *v as u32),
        Value::Uint32(v) => put_i32(out, *v),
        Value::BooleanValue(v) => put_i32(out, u32::from(*v)),
        Value::Int64(v) | Value::HrTime(v) => out.extend_from_slice(&v.to_be_bytes()),
        Value::Uint64(v) => out.extend_from_slice(&v.to_be_bytes()),
        Value::Double(v) => out.extend_from_slice(&v.to_be_bytes()),
        Value::String(v) => put_string(out, c_str(v.as_bytes())),
        Value::RawString(v) => put_string(out, c_str(v)),
        Value::ByteArray(v) => put_padded(out, v),
        Value::BooleanArray(a) => put_array!(out, a, u32),
        Value::Int8Array(a) => put_array!(out, a, i32),
        Value::Uint8Array(a) => put_array!(out, a, u32),
        Value::Int16Array(a) => put_array!(out, a, i32),
        Value::Uint16Array(a) => put_array!(out, a, u32),
        Value::Int32Array(a) => put_array!(out, a, i32),
        Value::Uint32Array(a) => put_array!(out, a, u32),
        Value::Int64Array(a) => put_array!(out, a, i64),
        Value::Uint64Array(a) => put_array!(out, a, u64),
        Value::StringArray(a) => a.iter().for_each(|s| put_string(out, c_str(s.as_bytes()))),
        Value::NvList(l) => put_list(out, l),
        Value::NvListArray(a) => a.iter().for_each(|l| put_list(out, l)),
    }
}

/// Decodes a list; returns it and the bytes it took. `Damaged`: it is malformed.
pub fn unpack(b: &[u8]) -> Result<(NvList, usize)> {
    let mut r = Reader { b, at: 4 };
    let list = r.list(1)?;
    Ok((list, r.at))
}

struct Reader<'a> {
    b: &'a [u8],
    at: usize,
}

#[cold]
fn short() -> Error {
    Error::damaged("nvlist: truncated")
}

impl<'a> Reader<'a> {
    fn left(&self) -> usize {
        self.b.len().saturating_sub(self.at)
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(n).ok_or_else(short)?;
        let s = self.b.get(self.at..end).ok_or_else(short)?;
        self.at = end;
        Ok(s)
    }

    fn u32(&mut self) -> Result<u32> {
        let mut a = [0; 4];
        a.copy_from_slice(self.take(4)?);
        Ok(u32::from_be_bytes(a))
    }

    fn i32(&mut self) -> Result<i32> {
        Ok(self.u32()? as i32)
    }

    fn u64(&mut self) -> Result<u64> {
        let mut a = [0; 8];
        a.copy_from_slice(self.take(8)?);
        Ok(u64::from_be_bytes(a))
    }

    /// Bytes padded to a multiple of 4.
    fn padded(&mut self, n: usize) -> Result<&'a [u8]> {
        let s = self.take(n)?;
        self.take(up4(n) - n)?;
        Ok(s)
    }

    fn string(&mut self) -> Result<&'a [u8]> {
        let n = self.u32()? as usize;
        let s = self.padded(n)?;
        if s.contains(&0) {
            bail!(Damaged, "nvlist: NUL inside a string");
        }
        Ok(s)
    }

    /// A count of elements that take at least `unit` bytes each in what is left.
    fn fits(&self, n: usize, unit: usize) -> Result<usize> {
        if n > self.left() / unit {
            return Err(short());
        }
        Ok(n)
    }

    /// Repeats the element count in front of an integer array.
    fn array<T>(
        &mut self,
        count: usize,
        unit: usize,
        mut get: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        if self.u32()? as usize != count {
            bail!(Damaged, "nvlist: array counts differ");
        }
        let n = self.fits(count, unit)?;
        (0..n).map(|_| get(self)).collect()
    }

    fn list(&mut self, depth: usize) -> Result<NvList> {
        if depth > MAX_NESTING {
            bail!(Damaged, "nvlist: nested too deep");
        }
        if self.u32()? != 0 {
            bail!(Damaged, "nvlist: unknown version");
        }
        let flag = self.u32()?;
        let mut pairs = Vec::new();
        loop {
            let start = self.at;
            let size = self.u32()? as usize;
            let decoded = self.u32()?;
            if size == 0 {
                if decoded != 0 {
                    bail!(Damaged, "nvlist: bad end mark");
                }
                return Ok(NvList { flag, pairs });
            }
            let name = name_value(self.string()?)?;
            let kind = self.u32()?;
            let count = self.u32()? as usize;
            let value = self.value(kind, count, depth)?;
            if self.at - start != size {
                bail!(Damaged, "nvlist: wrong size of pair '{name}'");
            }
            pairs.push((name, value));
        }
    }

    fn value(&mut self, kind: u32, count: usize, depth: usize) -> Result<Value> {
        let scalar = matches!(kind, 2..=9 | 18 | 19 | 21..=23 | 27);
        if scalar && count != 1 {
            bail!(Damaged, "nvlist: element count {count} of a scalar");
        }
        Ok(match kind {
            1 => Value::Boolean,
            2 => Value::Byte(self.u32()? as u8),
            3 => Value::Int16(self.u32()? as i16),
            4 => Value::Uint16(self.u32()? as u16),
            5 => Value::Int32(self.i32()?),
            6 => Value::Uint32(self.u32()?),
            7 => Value::Int64(self.u64()? as i64),
            8 => Value::Uint64(self.u64()?),
            9 => string_value(self.string()?),
            10 => Value::ByteArray(self.padded(count)?.to_vec()),
            11 => Value::Int16Array(self.array(count, 4, |r| Ok(r.u32()? as i16))?),
            12 => Value::Uint16Array(self.array(count, 4, |r| Ok(r.u32()? as u16))?),
            13 => Value::Int32Array(self.array(count, 4, |r| r.i32())?),
            14 => Value::Uint32Array(self.array(count, 4, |r| r.u32())?),
            15 => Value::Int64Array(self.array(count, 8, |r| Ok(r.u64()? as i64))?),
            16 => Value::Uint64Array(self.array(count, 8, |r| r.u64())?),
            17 => {
                let n = self.fits(count, 4)?;
                let mut a = Vec::with_capacity(n);
                for _ in 0..n {
                    a.push(String::from_utf8_lossy(self.string()?).into_owned());
                }
                Value::StringArray(a)
            }
            18 => Value::HrTime(self.u64()? as i64),
            19 => Value::NvList(self.list(depth + 1)?),
            20 => {
                // Even an empty list takes 16 bytes.
                let n = self.fits(count, 16)?;
                let lists: Result<Vec<NvList>> = (0..n).map(|_| self.list(depth + 1)).collect();
                Value::NvListArray(lists?)
            }
            21 => Value::BooleanValue(self.u32()? != 0),
            22 => Value::Int8(self.u32()? as i8),
            23 => Value::Uint8(self.u32()? as u8),
            24 => Value::BooleanArray(self.array(count, 4, |r| Ok(r.u32()? != 0))?),
            25 => Value::Int8Array(self.array(count, 4, |r| Ok(r.u32()? as i8))?),
            26 => Value::Uint8Array(self.array(count, 4, |r| Ok(r.u32()? as u8))?),
            27 => Value::Double(f64::from_bits(self.u64()?)),
            _ => bail!(Damaged, "nvlist: unknown data type {kind}"),
        })
    }
}
