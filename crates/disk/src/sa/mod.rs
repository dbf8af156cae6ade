//! System attributes (data format §19): registry, layouts, and the buffers of bonus and spill block.
//!
//! The registry and layout tables live in ZAPs; this module only turns entries into tables and
//! attribute sets into buffers and back. New layouts (and registry entries) a pack needs are
//! collected in the tables for the caller to write.

mod tables;

pub use tables::{AttrInfo, Layouts, Registry, ZplAttrs, ZPL_ATTRS};

use crate::acl;
use crate::bytes::{
    put_u16, put_u32, slice_at, swap_u16s, swap_u32s, swap_u64s, u16_at, u32_at, u64_at, up8,
};
use base::{bail, Result};
use std::ops::Range;

/// First word of an SA buffer.
pub const MAGIC: u32 = 0x002F_505A;
/// Largest attribute, bytes.
pub const MAX_ATTR: usize = 65535;
/// Largest spill block, bytes.
pub const MAX_SPILL: usize = 128 << 10;
/// Bytes at the end of the bonus space that the spill block pointer takes.
const SPILL_POINTER: usize = 128;

/// The attributes of one object in storage order: bonus first, then spill.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attrs {
    /// Attribute number and value, little-endian.
    pub list: Vec<(u16, Vec<u8>)>,
}

impl Attrs {
    /// No attributes.
    pub fn new() -> Attrs {
        Attrs::default()
    }

    /// Value of attribute `attr`.
    pub fn get(&self, attr: u16) -> Option<&[u8]> {
        self.list
            .iter()
            .find(|(n, _)| *n == attr)
            .map(|(_, v)| v.as_slice())
    }

    /// First word of an attribute; an error if it is shorter than 8 bytes.
    pub fn get_u64(&self, attr: u16) -> Result<Option<u64>> {
        self.get(attr).map(|b| u64_at(b, 0)).transpose()
    }

    /// The two words of a time attribute.
    pub fn get_u64_pair(&self, attr: u16) -> Result<Option<[u64; 2]>> {
        self.get(attr)
            .map(|b| Ok([u64_at(b, 0)?, u64_at(b, 8)?]))
            .transpose()
    }

    /// Replaces in place, or appends.
    pub fn set(&mut self, attr: u16, value: Vec<u8>) {
        match self.list.iter_mut().find(|(n, _)| *n == attr) {
            Some((_, v)) => *v = value,
            None => self.list.push((attr, value)),
        }
    }

    /// [`Attrs::set`] of one word.
    pub fn set_u64(&mut self, attr: u16, value: u64) {
        self.set(attr, value.to_le_bytes().to_vec());
    }

    /// [`Attrs::set`] of two words.
    pub fn set_u64_pair(&mut self, attr: u16, value: [u64; 2]) {
        self.set(attr, value.into_iter().flat_map(u64::to_le_bytes).collect());
    }

    /// Removes an attribute and returns its value.
    pub fn remove(&mut self, attr: u16) -> Option<Vec<u8>> {
        let at = self.list.iter().position(|(n, _)| *n == attr)?;
        Some(self.list.remove(at).1)
    }
}

/// What [`pack`] makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// Bonus buffer; its length is the bonus length of the dnode.
    pub bonus: Vec<u8>,
    /// Spill block, a multiple of 512 bytes, if one is needed.
    pub spill: Option<Vec<u8>>,
}

/// Header bytes for that many variable-length attributes: the first length fits into the 8 bytes.
fn header_size(vars: usize) -> usize {
    8 + up8(2 * vars.saturating_sub(1))
}

/// Lays attributes out. `bonus_space` is the bonus space of the dnode with one block pointer
/// (dnode size − 192). An attribute of a wrong or too large size is [`base::Kind::Invalid`]; a set
/// that does not fit bonus and spill is [`base::Kind::FileTooBig`].
pub fn pack(
    attrs: &Attrs,
    registry: &Registry,
    layouts: &mut Layouts,
    bonus_space: usize,
) -> Result<Packed> {
    for (n, v) in &attrs.list {
        let Some(info) = registry.get(*n) else {
            bail!(Invalid, "attribute {n} is not registered");
        };
        if v.len() > MAX_ATTR || (info.length != 0 && v.len() != usize::from(info.length)) {
            bail!(Invalid, "attribute {} of {} bytes", info.name, v.len());
        }
    }
    // Walk over the ends of the attributes: each begins at a multiple of 8, the last is not padded.
    let mut vars = 0;
    let mut data = 0;
    let mut first_out = None;
    for (i, (n, v)) in attrs.list.iter().enumerate() {
        vars += usize::from(registry.is_variable(*n));
        data = up8(data) + v.len();
        let end = header_size(vars) + data;
        if first_out.is_none() && end + SPILL_POINTER > bonus_space {
            first_out = Some(i);
        }
    }
    let total = header_size(vars) + data;
    if total <= bonus_space {
        let bonus = buffer(&attrs.list, registry, layouts)?;
        return Ok(Packed { bonus, spill: None });
    }
    let split = first_out.unwrap_or(0);
    let mut bonus = buffer(&attrs.list[..split], registry, layouts)?;
    let mut spill = buffer(&attrs.list[split..], registry, layouts)?;
    if spill.len() > MAX_SPILL || bonus.len() + SPILL_POINTER > bonus_space {
        bail!(FileTooBig, "system attributes of {total} bytes");
    }
    spill.resize(spill.len().div_ceil(512) * 512, 0);
    // The bonus is declared up to the spill pointer even if the attributes before it are shorter.
    let len = (bonus_space - SPILL_POINTER).min(total);
    bonus.resize(bonus.len().max(len), 0);
    Ok(Packed {
        bonus,
        spill: Some(spill),
    })
}

/// One buffer: header with layout and lengths, then the attributes at multiples of 8.
fn buffer(list: &[(u16, Vec<u8>)], registry: &Registry, layouts: &mut Layouts) -> Result<Vec<u8>> {
    let numbers: Vec<u16> = list.iter().map(|(n, _)| *n).collect();
    let layout = layouts.number_for(&numbers)?;
    let lengths: Vec<u16> = list
        .iter()
        .filter(|(n, _)| registry.is_variable(*n))
        .map(|(_, v)| v.len() as u16)
        .collect();
    let header = header_size(lengths.len());
    if header / 8 >= 64 {
        bail!(FileTooBig, "too many variable-length attributes");
    }
    let mut b = vec![0; header];
    put_u32(&mut b, 0, MAGIC);
    put_u16(&mut b, 4, layout | ((header / 8) as u16) << 10);
    for (i, len) in lengths.into_iter().enumerate() {
        put_u16(&mut b, 6 + 2 * i, len);
    }
    for (_, v) in list {
        b.resize(up8(b.len()), 0);
        b.extend_from_slice(v);
    }
    Ok(b)
}

/// Finds the attributes of one buffer: number and byte range of each, in storage order.
pub fn index(b: &[u8], registry: &Registry, layouts: &Layouts) -> Result<Vec<(u16, Range<usize>)>> {
    if u32_at(b, 0)? != MAGIC {
        bail!(Damaged, "system attributes: bad magic {:#x}", u32_at(b, 0)?);
    }
    let info = u16_at(b, 4)?;
    let header = usize::from(info >> 10) * 8;
    // Layout 0 is that of legacy znodes and cannot be in a buffer: old software left it there for
    // "no attributes".
    let number = (info & 0x3ff).max(1);
    let Some(layout) = layouts.get(number) else {
        bail!(Damaged, "system attributes: unknown layout {number}");
    };
    let mut out = Vec::with_capacity(layout.len());
    let mut at = header;
    let mut vars = 0;
    for &n in layout {
        let Some(info) = registry.get(n) else {
            bail!(Damaged, "system attributes: unregistered attribute {n}");
        };
        let len = if info.length == 0 {
            let place = 6 + 2 * vars;
            if place + 2 > header {
                bail!(Damaged, "system attributes: header of {header} bytes");
            }
            vars += 1;
            u16_at(b, place)?
        } else {
            info.length
        };
        slice_at(b, at, usize::from(len))?;
        out.push((n, at..at + usize::from(len)));
        at += up8(usize::from(len));
    }
    if header < 8 {
        bail!(Damaged, "system attributes: header of {header} bytes");
    }
    Ok(out)
}

/// Reads one attribute out of one buffer without looking at its other values.
pub fn find<'a>(
    b: &'a [u8],
    registry: &Registry,
    layouts: &Layouts,
    attr: u16,
) -> Result<Option<&'a [u8]>> {
    Ok(index(b, registry, layouts)?
        .into_iter()
        .find(|(n, _)| *n == attr)
        .and_then(|(_, r)| b.get(r)))
}

/// Reads all attributes of an object. A buffer of the other byte order must have been through
/// [`to_little_endian`].
pub fn parse(
    bonus: &[u8],
    spill: Option<&[u8]>,
    registry: &Registry,
    layouts: &Layouts,
) -> Result<Attrs> {
    let mut attrs = Attrs::new();
    for b in std::iter::once(bonus).chain(spill) {
        for (n, r) in index(b, registry, layouts)? {
            if attrs.get(n).is_some() {
                bail!(Damaged, "system attributes: attribute {n} twice");
            }
            attrs
                .list
                .push((n, slice_at(b, r.start, r.len())?.to_vec()));
        }
    }
    Ok(attrs)
}

/// SA buffers are not swapped with their block: if the magic is of the other byte order, swaps
/// header, lengths and every attribute by its class. Returns whether it did.
pub fn to_little_endian(b: &mut [u8], registry: &Registry, layouts: &Layouts) -> Result<bool> {
    if u32_at(b, 0)? != MAGIC.swap_bytes() {
        return Ok(false);
    }
    slice_at(b, 0, 8)?;
    b[0..4].reverse();
    b[4..6].reverse();
    let header = usize::from(u16_at(b, 4)? >> 10) * 8;
    slice_at(b, 0, header)?;
    if header > 6 {
        swap_u16s(&mut b[6..header]);
    }
    for (n, r) in index(b, registry, layouts)? {
        let swap = registry.get(n).map_or(3, |i| i.swap);
        let v = &mut b[r];
        match swap {
            0 => swap_u64s(v),
            1 => swap_u32s(v),
            2 => swap_u16s(v),
            4 => acl::swap_v1(v),
            _ => {}
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests;
