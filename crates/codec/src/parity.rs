//! RAID-Z parity (pool format §9.2, §9.3): sums over GF(2⁸) with polynomial 0x11d.
//!
//! With n data columns D₀ … Dₙ₋₁, shorter ones extended by zeros, P = Σ Dᵢ, Q = Σ 2ⁿ⁻¹⁻ⁱ·Dᵢ and R =
//! Σ 4ⁿ⁻¹⁻ⁱ·Dᵢ. Rows of a block are handled as in RAID-Z: columns 0 … P−1 are parity, the rest
//! data.

use base::{bail, Result};
use simd::{Factor, POLY};

/// Largest number of parity columns.
pub const MAX_PARITY: usize = 3;
/// Largest number of data columns for which every loss of up to `nparity` columns can be solved.
pub const MAX_DATA: usize = 255;

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

/// Computes parity: one column for each element of `parity` (1 to 3; P, then Q, then R), each as
/// long as the longest data column. What was in `parity` is lost.
///
/// The number of data columns must be at most [`MAX_DATA`] for the parity to be of use; nothing
/// checks that here.
pub fn generate<D: AsRef<[u8]>>(data: &[D], parity: &mut [Vec<u8>]) {
    let data: Vec<&[u8]> = data.iter().map(|d| d.as_ref()).collect();
    let len = data.iter().map(|d| d.len()).max().unwrap_or(0);
    let mut out = Vec::with_capacity(MAX_PARITY);
    for p in parity.iter_mut().take(MAX_PARITY) {
        p.resize(len, 0);
        out.push(&mut p[..]);
    }
    let rows = [0, 1, 2];
    simd::rows(&rows[..out.len()], &data, &mut out);
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
    let data: Vec<&[u8]> = data.iter().map(|d| &d[..]).collect();
    let mut rows = Vec::new();
    let mut out = Vec::new();
    for (row, p) in parity.iter_mut().enumerate() {
        if missing.contains(&row) {
            rows.push(row);
            out.push(&mut p[..]);
        }
    }
    simd::rows(&rows, &data, &mut out);
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
    let factors: Vec<Vec<Factor>> = inverse
        .iter()
        .map(|line| line.iter().map(|&c| Factor::new(|x| mul(c, x))).collect())
        .collect();
    let (parity, data) = cols.split_at_mut(nparity);
    let stored: Vec<&[u8]> = rows.iter().map(|&r| &parity[r][..]).collect();
    let mut known: Vec<&[u8]> = Vec::with_capacity(n);
    let mut out = Vec::with_capacity(k);
    for (i, d) in data.iter_mut().enumerate() {
        if lost.contains(&i) {
            out.push(&mut d[..]);
            known.push(&[]);
        } else {
            known.push(d);
        }
    }
    simd::rebuild(&rows, &known, &stored, &factors, &mut out);
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
