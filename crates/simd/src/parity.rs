//! Rows of RAID-Z parity (pool format §9.2): sums over GF(2⁸) with polynomial 0x11d. All columns are
//! gone through together, a piece at a time, so that the sums stay in registers: 256 bytes at once of
//! one row, 128 of two, 64 of three.

/// Pieces have a multiple of so many bytes, two registers of AVX2.
const UNIT: usize = 64;
/// What is added when a doubling overflows: the polynomial 0x11d without its highest bit.
pub const POLY: u8 = 0x1d;

type Unit = [u8; UNIT];

/// A number to multiply with: its products with 0 … 15, and with 0, 16 … 240.
#[derive(Clone, Copy, Debug)]
pub struct Factor {
    low: [u8; 16],
    high: [u8; 16],
}

impl Factor {
    /// `times`: the product of the number and another.
    pub fn new(times: impl Fn(u8) -> u8) -> Factor {
        Factor {
            low: std::array::from_fn(|i| times(i as u8)),
            high: std::array::from_fn(|i| times((i << 4) as u8)),
        }
    }
}

/// How a part of a piece is multiplied with a [`Factor`].
trait Times {
    fn times(f: &Factor, x: &Unit) -> Unit;
}

struct Portable;

impl Times for Portable {
    #[inline(always)]
    fn times(f: &Factor, x: &Unit) -> Unit {
        std::array::from_fn(|i| f.low[usize::from(x[i] & 15)] ^ f.high[usize::from(x[i] >> 4)])
    }
}

/// Only used by functions compiled for AVX2.
#[cfg(target_arch = "x86_64")]
struct Avx2;

#[cfg(target_arch = "x86_64")]
impl Times for Avx2 {
    #[inline(always)]
    fn times(f: &Factor, x: &Unit) -> Unit {
        // SAFETY: the functions this is compiled into are called where there is AVX2.
        unsafe { times_avx2(f, x) }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn times_avx2(f: &Factor, x: &Unit) -> Unit {
    use std::arch::x86_64::*;
    use zerocopy::transmute;
    let table = |t: [u8; 16]| -> __m256i { _mm256_broadcastsi128_si256(transmute!(t)) };
    let (low, high) = (table(f.low), table(f.high));
    let nibble = _mm256_set1_epi8(15);
    let halves: [__m256i; 2] = transmute!(*x);
    let product = halves.map(|x| {
        let l = _mm256_shuffle_epi8(low, _mm256_and_si256(x, nibble));
        let h = _mm256_and_si256(_mm256_srli_epi16::<4>(x), nibble);
        _mm256_xor_si256(l, _mm256_shuffle_epi8(high, h))
    });
    transmute!(product)
}

/// The piece at `at` if there is a whole one.
#[inline(always)]
fn whole<const N: usize>(from: &[u8], at: usize) -> Option<&[u8; N]> {
    from.get(at..)?.first_chunk::<N>()
}

/// What there is of the piece at `at`, then zeros.
fn part<const N: usize>(from: &[u8], at: usize) -> [u8; N] {
    let mut piece = [0; N];
    for (to, b) in piece.iter_mut().zip(from.get(at..).unwrap_or(&[])) {
        *to = *b;
    }
    piece
}

/// As much of the piece as there is room for.
#[inline(always)]
fn store<const N: usize>(to: &mut [u8], at: usize, piece: &[u8; N]) {
    if let Some(rest) = to.get_mut(at..) {
        match rest.first_chunk_mut::<N>() {
            Some(whole) => *whole = *piece,
            None => rest.copy_from_slice(&piece[..rest.len()]),
        }
    }
}

#[inline(always)]
fn add<const N: usize>(to: &mut [u8; N], x: &[u8; N]) {
    for (t, x) in to.iter_mut().zip(x) {
        *t ^= x;
    }
}

#[inline(always)]
fn double<const N: usize>(x: &mut [u8; N]) {
    for b in x {
        *b = (*b << 1) ^ ((*b as i8 >> 7) as u8 & POLY);
    }
}

/// `to += f · x`.
#[inline(always)]
fn add_times<T: Times, const N: usize>(to: &mut [u8; N], f: &Factor, x: &[u8; N]) {
    let to = to.as_chunks_mut::<UNIT>().0;
    for (t, x) in to.iter_mut().zip(x.as_chunks::<UNIT>().0) {
        add(t, &T::times(f, x));
    }
}

/// One more column in the rows of parity in `MASK` (1 P, 2 Q, 4 R); none: one of zeros.
#[inline(always)]
fn column<const MASK: u8, const N: usize>(sums: &mut [[u8; N]; 3], x: Option<&[u8; N]>) {
    if MASK & 2 != 0 {
        double(&mut sums[1]);
    }
    if MASK & 4 != 0 {
        double(&mut sums[2]);
        double(&mut sums[2]);
    }
    if let Some(x) = x {
        for (row, sum) in sums.iter_mut().enumerate() {
            if MASK >> row & 1 == 1 {
                add(sum, x);
            }
        }
    }
}

/// Rows of parity at `at`. `END`: some columns end there.
#[inline(always)]
fn sums<const MASK: u8, const N: usize, const END: bool>(
    data: &[&[u8]],
    at: usize,
) -> [[u8; N]; 3] {
    let mut sums = [[0; N]; 3];
    for d in data {
        match END {
            true => column::<MASK, N>(&mut sums, Some(&part(d, at))),
            false => column::<MASK, N>(&mut sums, whole(d, at)),
        }
    }
    sums
}

/// A job over whole columns.
enum Job<'a, 'b, 'c> {
    /// The sums themselves.
    Rows(&'a mut [&'b mut [u8]]),
    /// What was lost: of each row the sum that was stored, factors of the rows in each lost column, and
    /// those columns.
    Rebuild(&'a [&'c [u8]], &'a [Vec<Factor>], &'a mut [&'b mut [u8]]),
}

/// A piece of a job.
#[inline(always)]
fn piece<T: Times, const MASK: u8, const N: usize, const END: bool>(
    data: &[&[u8]],
    job: &mut Job,
    at: usize,
) {
    let mut sums = sums::<MASK, N, END>(data, at);
    // Which columns of parity a row is: both known when this is compiled, so that sums stay in registers.
    let rows = [MASK & 1, MASK >> 1 & 1, MASK >> 2 & 1].map(|b| b == 1);
    let places = [
        0,
        usize::from(rows[0]),
        usize::from(rows[0]) + usize::from(rows[1]),
    ];
    match job {
        Job::Rows(out) => {
            for row in 0..3 {
                if rows[row] {
                    if let Some(o) = out.get_mut(places[row]) {
                        store(o, at, &sums[row]);
                    }
                }
            }
        }
        Job::Rebuild(stored, factors, out) => {
            for row in 0..3 {
                if rows[row] {
                    let s = stored.get(places[row]).copied().unwrap_or(&[]);
                    match whole(s, at) {
                        Some(s) => add(&mut sums[row], s),
                        None => add(&mut sums[row], &part(s, at)),
                    }
                }
            }
            for (o, factors) in out.iter_mut().zip(factors.iter()) {
                let mut lost = [0; N];
                for row in 0..3 {
                    if rows[row] {
                        if let Some(f) = factors.get(places[row]) {
                            add_times::<T, N>(&mut lost, f, &sums[row]);
                        }
                    }
                }
                store(o, at, &lost);
            }
        }
    }
}

#[inline(always)]
fn run<T: Times, const MASK: u8, const N: usize>(data: &[&[u8]], job: &mut Job) {
    let out = match job {
        Job::Rows(out) => &**out,
        Job::Rebuild(_, _, out) => &**out,
    };
    let len = out.iter().map(|o| o.len()).max().unwrap_or(0);
    let there = data.iter().filter(|d| !d.is_empty());
    let shortest = there.map(|d| d.len()).min().unwrap_or(0).min(len);
    let end = shortest - shortest % N;
    for at in (0..end).step_by(N) {
        piece::<T, MASK, N, false>(data, job, at);
    }
    for at in (end..len).step_by(N) {
        piece::<T, MASK, N, true>(data, job, at);
    }
}

#[inline(always)]
fn run_rows<T: Times>(mask: u8, data: &[&[u8]], job: &mut Job) {
    let rebuild = matches!(job, Job::Rebuild(..));
    match mask {
        1 => run::<T, 1, 256>(data, job),
        2 => run::<T, 2, 256>(data, job),
        3 if rebuild => run::<T, 3, 64>(data, job),
        3 => run::<T, 3, 128>(data, job),
        4 => run::<T, 4, 256>(data, job),
        5 if rebuild => run::<T, 5, 64>(data, job),
        5 => run::<T, 5, 128>(data, job),
        6 if rebuild => run::<T, 6, 64>(data, job),
        6 => run::<T, 6, 128>(data, job),
        7 => run::<T, 7, 64>(data, job),
        _ => {}
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn run_avx2(mask: u8, data: &[&[u8]], job: &mut Job) {
    run_rows::<Avx2>(mask, data, job);
}

fn dispatch(rows: &[usize], data: &[&[u8]], job: &mut Job) {
    let mask = rows.iter().fold(0, |m, r| m | 1 << r);
    #[cfg(target_arch = "x86_64")]
    if crate::has_avx2() {
        // SAFETY: there is AVX2.
        return unsafe { run_avx2(mask, data, job) };
    }
    run_rows::<Portable>(mask, data, job);
}

/// Writes the parity rows `rows` (0 P, 1 Q, 2 R; ascending) of the data columns, which end in zeros, to
/// `out`, one for each.
pub fn rows(rows: &[usize], data: &[&[u8]], out: &mut [&mut [u8]]) {
    dispatch(rows, data, &mut Job::Rows(out));
}

/// Rebuilds lost columns: `data` has all of them, those that are lost empty; `stored` has the parity
/// columns of `rows` (ascending); `factors` for each lost column one factor for each row; `out` the lost
/// columns.
pub fn rebuild(
    rows: &[usize],
    data: &[&[u8]],
    stored: &[&[u8]],
    factors: &[Vec<Factor>],
    out: &mut [&mut [u8]],
) {
    dispatch(rows, data, &mut Job::Rebuild(stored, factors, out));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(len: usize, seed: u64) -> Vec<u8> {
        let mut x = seed * 2 + 1;
        (0..len)
            .map(|_| {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(97);
                (x >> 33) as u8
            })
            .collect()
    }

    /// Both ways say the same, at all lengths around a piece.
    #[test]
    fn with_and_without_vectors() {
        for len in (0..200).chain([4096, 5000]) {
            let columns: Vec<Vec<u8>> = (0..5)
                .map(|i| noise(len - (len / 3) * (i / 3), len as u64 * 8 + i as u64))
                .collect();
            let data: Vec<&[u8]> = columns.iter().map(|c| &c[..]).collect();
            for mask in 1..8u8 {
                let rows: Vec<usize> = (0..3).filter(|r| mask >> r & 1 == 1).collect();
                let mut fast = vec![vec![9; len]; rows.len()];
                let mut slow = vec![vec![7; len]; rows.len()];
                let mut out: Vec<&mut [u8]> = fast.iter_mut().map(|c| &mut c[..]).collect();
                super::rows(&rows, &data, &mut out);
                let mut out: Vec<&mut [u8]> = slow.iter_mut().map(|c| &mut c[..]).collect();
                run_rows::<Portable>(mask, &data, &mut Job::Rows(&mut out));
                assert_eq!(fast, slow, "{len} {rows:?}");
                let factors: Vec<Vec<Factor>> = (0..rows.len() as u8)
                    .map(|i| {
                        let of = |k| Factor::new(|x| turned(x, 2 * i + k));
                        (0..rows.len() as u8).map(of).collect()
                    })
                    .collect();
                let stored: Vec<Vec<u8>> = rows.iter().map(|r| noise(len, *r as u64)).collect();
                let stored: Vec<&[u8]> = stored.iter().map(|c| &c[..]).collect();
                let mut fast = vec![vec![9; len]; rows.len()];
                let mut slow = vec![vec![7; len]; rows.len()];
                let mut out: Vec<&mut [u8]> = fast.iter_mut().map(|c| &mut c[..]).collect();
                super::rebuild(&rows, &data, &stored, &factors, &mut out);
                let mut out: Vec<&mut [u8]> = slow.iter_mut().map(|c| &mut c[..]).collect();
                let job = &mut Job::Rebuild(&stored, &factors, &mut out);
                run_rows::<Portable>(mask, &data, job);
                assert_eq!(fast, slow, "{len} {rows:?}");
            }
        }
    }

    /// What a product with a number is to this crate: a sum of what the bits of the other give.
    fn turned(x: u8, by: u8) -> u8 {
        x.rotate_left(by.into()) ^ (x & 0x11) << 3
    }

    #[test]
    fn every_product() {
        for by in 0..8 {
            let f = Factor::new(|x| turned(x, by));
            for from in [0u8, 64, 128, 192] {
                let x: Unit = std::array::from_fn(|i| from + i as u8);
                let want = x.map(|x| turned(x, by));
                assert_eq!(Portable::times(&f, &x), want);
                #[cfg(target_arch = "x86_64")]
                if crate::has_avx2() {
                    assert_eq!(Avx2::times(&f, &x), want);
                }
            }
        }
    }
}
