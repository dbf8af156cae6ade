//! RAID-Z parity (pool format §9.2, §9.3): sums over GF(2⁸) with polynomial 0x11d.
//!
//! With n data columns D₀ … Dₙ₋₁, shorter ones extended by zeros, P = Σ Dᵢ, Q = Σ 2ⁿ⁻¹⁻ⁱ·Dᵢ and R =
//! Σ 4ⁿ⁻¹⁻ⁱ·Dᵢ. Rows of a block are handled as in RAID-Z: columns 0 … P−1 are parity, the rest
//! data.

use base::{bail, Result};

/// Largest number of parity columns.
pub const MAX_PARITY: usize = 3;
/// Largest number of data columns for which every loss of up to `nparity` columns can be solved.
pub const MAX_DATA: usize = 255;

const POLY: u8 = 0x1d;

const fn tables() -> ([u8; 512], [u8; 256]) {
    let mut pow = [0; 512];
    let mut log = [0; 256];
    let mut x = 1u8;
    let mut i = 0;
    while i < 255 {
        pow[i] = x;
        pow[i + 255] = x;
        log[x as usize] = i as u8;
        x = if x & 0x80 != 0 { x << 1 ^ POLY } else { x << 1 };
        i += 1;
    }
    (pow, log)
}

/// Powers of 2 (twice around, so that sums of two logarithms need no reduction), logarithms to 2.
static TABLES: ([u8; 512], [u8; 256]) = tables();

fn mul(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    let (pow, log) = &TABLES;
    pow[usize::from(log[usize::from(a)]) + usize::from(log[usize::from(b)])]
}

/// `a` must not be 0.
fn invert(a: u8) -> u8 {
    let (pow, log) = &TABLES;
    pow[255 - usize::from(log[usize::from(a)])]
}

/// 2ᵉ
fn pow2(e: usize) -> u8 {
    TABLES.0[e % 255]
}

/// Coefficient of data column `i` of `n` in parity row `row` (0 P, 1 Q, 2 R).
fn coefficient(row: usize, i: usize, n: usize) -> u8 {
    pow2(row * (n - 1 - i))
}

const HIGH: u64 = 0x8080_8080_8080_8080;

/// Eight bytes times 2.
#[inline(always)]
fn mul2(x: u64) -> u64 {
    let high = (x & HIGH) >> 7;
    // 0xff in every byte that overflows
    let over = (high << 8).wrapping_sub(high);
    ((x & !HIGH) << 1) ^ (over & (u64::from(POLY) * 0x0101_0101_0101_0101))
}

#[inline(always)]
fn mul4(x: u64) -> u64 {
    mul2(mul2(x))
}

#[inline(always)]
fn load(b: &[u8; 8]) -> u64 {
    u64::from_le_bytes(*b)
}

/// Horner's step: `parity = parity · c + data`, `data` extended by zeros; `step` multiplies eight
/// bytes by the row's generator.
#[inline(always)]
fn horner(parity: &mut [u8], data: &[u8], step: impl Fn(u64) -> u64) {
    let n = data.len().min(parity.len());
    let (head, tail) = parity.split_at_mut(n);
    let (pw, pr) = head.as_chunks_mut::<8>();
    let (dw, dr) = data[..n].as_chunks::<8>();
    for (p, d) in pw.iter_mut().zip(dw) {
        *p = (step(load(p)) ^ load(d)).to_le_bytes();
    }
    for (p, d) in pr.iter_mut().zip(dr) {
        *p = step(u64::from(*p)) as u8 ^ d;
    }
    let (pw, pr) = tail.as_chunks_mut::<8>();
    for p in pw {
        *p = step(load(p)).to_le_bytes();
    }
    for p in pr {
        *p = step(u64::from(*p)) as u8;
    }
}

fn horner_row(row: usize, parity: &mut [u8], data: &[u8]) {
    match row {
        0 => xor(parity, data),
        1 => horner(parity, data, mul2),
        _ => horner(parity, data, mul4),
    }
}

/// `to += from`, over the shorter length.
fn xor(to: &mut [u8], from: &[u8]) {
    let n = from.len().min(to.len());
    horner(&mut to[..n], &from[..n], |x| x);
}

/// `to += c · from`, over the shorter length.
fn mul_add(to: &mut [u8], from: &[u8], c: u8) {
    match c {
        0 => {}
        1 => xor(to, from),
        _ => {
            let mut by = [0; 256];
            for (x, y) in (0..=255).zip(by.iter_mut()) {
                *y = mul(c, x);
            }
            for (t, f) in to.iter_mut().zip(from) {
                *t ^= by[usize::from(*f)];
            }
        }
    }
}

/// Computes parity: one column for each element of `parity` (1 to 3; P, then Q, then R), each as
/// long as the longest data column. What was in `parity` is lost.
///
/// The number of data columns must be at most [`MAX_DATA`] for the parity to be of use; nothing
/// checks that here.
pub fn generate<D: AsRef<[u8]>>(data: &[D], parity: &mut [Vec<u8>]) {
    let len = data.iter().map(|d| d.as_ref().len()).max().unwrap_or(0);
    for (row, p) in parity.iter_mut().enumerate().take(MAX_PARITY) {
        p.clear();
        p.resize(len, 0);
        for d in data {
            horner_row(row, p, d.as_ref());
        }
    }
}

/// Rebuilds in place the columns named in `missing`: `cols` holds `nparity` parity columns, then
/// the data columns. Missing columns must already have their lengths; their contents do not
/// matter. All other columns are taken as right.
///
/// Errors: `Kind::Invalid` if `missing` is not a set of column numbers, or the lengths do not fit;
/// `Kind::Io` if more columns are missing than there is parity.
pub fn reconstruct(nparity: usize, cols: &mut [Vec<u8>], missing: &[usize]) -> Result<()> {
    reconstruct_data(nparity, cols, missing)?;
    let (parity, data) = cols.split_at_mut(nparity);
    for &row in missing.iter().filter(|&&m| m < nparity) {
        let p = &mut parity[row];
        p.fill(0);
        for d in data.iter() {
            horner_row(row, p, d);
        }
    }
    Ok(())
}

/// [`reconstruct`] for the data columns only: missing parity columns are neither used nor rebuilt,
/// and may be empty.
pub fn reconstruct_data(nparity: usize, cols: &mut [Vec<u8>], missing: &[usize]) -> Result<()> {
    check(nparity, cols, missing)?;
    let n = cols.len() - nparity;
    let mut lost: Vec<usize> = missing
        .iter()
        .filter_map(|m| m.checked_sub(nparity))
        .collect();
    lost.sort_unstable();
    let k = lost.len();
    let rows: Vec<usize> = (0..nparity)
        .filter(|r| !missing.contains(r))
        .take(k)
        .collect();
    if rows.len() < k {
        bail!(Io, "{} columns missing, parity {nparity}", missing.len());
    }
    if k == 0 {
        return Ok(());
    }
    let Some(inverse) = solve(&rows, &lost, n) else {
        bail!(Invalid, "{n} data columns are too many for parity");
    };
    let (parity, data) = cols.split_at_mut(nparity);
    // What the lost columns contribute to each parity row: the row minus the known columns.
    let mut sums = Vec::with_capacity(k);
    for &row in &rows {
        let mut sum = vec![0; parity[row].len()];
        for (i, d) in data.iter().enumerate() {
            let known: &[u8] = if lost.contains(&i) { &[] } else { d };
            horner_row(row, &mut sum, known);
        }
        xor(&mut sum, &parity[row]);
        sums.push(sum);
    }
    for (&i, factors) in lost.iter().zip(&inverse) {
        let d = &mut data[i];
        d.fill(0);
        for (sum, &c) in sums.iter().zip(factors) {
            mul_add(d, sum, c);
        }
    }
    Ok(())
}

fn check(nparity: usize, cols: &[Vec<u8>], missing: &[usize]) -> Result<()> {
    if nparity > MAX_PARITY || nparity >= cols.len() || cols.len() - nparity > MAX_DATA {
        bail!(Invalid, "{} columns with parity {nparity}", cols.len());
    }
    for (i, &m) in missing.iter().enumerate() {
        if m >= cols.len() || missing[..i].contains(&m) {
            bail!(Invalid, "missing columns {missing:?} of {}", cols.len());
        }
    }
    let longest = cols[nparity..].iter().map(Vec::len).max().unwrap_or(0);
    let rebuilt = |i: &usize| missing.contains(i);
    if (0..nparity).any(|i| !rebuilt(&i) && cols[i].len() != longest) {
        bail!(Invalid, "a parity column does not have {longest} bytes");
    }
    Ok(())
}

/// Inverse of the matrix of the coefficients of the columns `lost` in the parity `rows`, by
/// Gauss-Jordan elimination; element [j][v] is the factor of row v's sum in lost column j.
fn solve(rows: &[usize], lost: &[usize], n: usize) -> Option<Vec<Vec<u8>>> {
    let k = lost.len();
    // Each line: the coefficients, then the unit matrix.
    let mut m: Vec<Vec<u8>> = rows
        .iter()
        .enumerate()
        .map(|(v, &row)| {
            let mut line: Vec<u8> = lost.iter().map(|&i| coefficient(row, i, n)).collect();
            line.extend((0..k).map(|u| u8::from(u == v)));
            line
        })
        .collect();
    for c in 0..k {
        let pivot = (c..k).find(|&r| m[r][c] != 0)?;
        m.swap(c, pivot);
        let scale = invert(m[c][c]);
        for x in &mut m[c] {
            *x = mul(*x, scale);
        }
        let line = m[c].clone();
        for (r, other) in m.iter_mut().enumerate() {
            let factor = other[c];
            if r != c && factor != 0 {
                for (x, y) in other.iter_mut().zip(&line) {
                    *x ^= mul(*y, factor);
                }
            }
        }
    }
    Some(m.into_iter().map(|line| line[k..].to_vec()).collect())
}

#[cfg(test)]
mod tests;
