//! Fletcher4 (pool format §13.2) in lanes.
//!
//! Of n·L elements, lane i sums the elements i, L + i, 2L + i … in four sums as if there were no others.
//! An element that is followed by m − 1 others of its lane counts m, T₂(m) = m(m+1)/2 and T₃(m) =
//! m(m+1)(m+2)/6 times in the second, third and fourth sum of the lane. In those of the whole it counts M,
//! T₂(M) and T₃(M) times, with M = L·m − i, and these are sums of the former with factors that depend on i
//! only.

/// Lanes: two registers of AVX2.
const LANES: usize = 8;
/// Bytes of an element of each lane.
const STEP: usize = LANES * 4;

type Sums = [u64; 4];

const fn t2(m: i64) -> i64 {
    m * (m + 1) / 2
}

const fn t3(m: i64) -> i64 {
    m * (m + 1) * (m + 2) / 6
}

/// For a lane: `k[r][s]` times its sum s is its part of sum r of the whole.
const fn factors(lane: i64) -> [[i64; 4]; 4] {
    let l = LANES as i64;
    let (f1, f2) = (l - lane, 2 * l - lane);
    // T₂(L·m − i) = α·T₂(m) + β·m + γ: what it is at 0 and 1 gives the factors.
    let (a2, c2) = (l * l, t2(-lane));
    let b2 = t2(f1) - a2 - c2;
    // T₃(L·m − i) = α·T₃(m) + β·T₂(m) + γ·m + δ: likewise, at 0, 1 and 2.
    let (a3, d3) = (l * l * l, t3(-lane));
    let b3 = t3(f2) - 2 * t3(f1) - 2 * a3 + d3;
    let c3 = t3(f1) - a3 - b3 - d3;
    [
        [1, 0, 0, 0],
        [-lane, l, 0, 0],
        [c2, b2, a2, 0],
        [d3, c3, b3, a3],
    ]
}

const FACTORS: [[[i64; 4]; 4]; LANES] = {
    let mut out = [[[0; 4]; 4]; LANES];
    let mut i = 0;
    while i < LANES {
        out[i] = factors(i as i64);
        i += 1;
    }
    out
};

#[inline(always)]
fn lanes(data: &[[u8; STEP]], get: impl Fn([u8; 4]) -> u32) -> [[u64; LANES]; 4] {
    let [mut a, mut b, mut c, mut d] = [[0u64; LANES]; 4];
    for step in data {
        let mut w = [0u64; LANES];
        for (w, e) in w.iter_mut().zip(step.as_chunks::<4>().0) {
            *w = u64::from(get(*e));
        }
        for i in 0..LANES {
            a[i] = a[i].wrapping_add(w[i]);
        }
        for i in 0..LANES {
            b[i] = b[i].wrapping_add(a[i]);
        }
        for i in 0..LANES {
            c[i] = c[i].wrapping_add(b[i]);
        }
        for i in 0..LANES {
            d[i] = d[i].wrapping_add(c[i]);
        }
    }
    [a, b, c, d]
}

#[inline(always)]
fn both(data: &[[u8; STEP]], big_endian: bool) -> [[u64; LANES]; 4] {
    match big_endian {
        true => lanes(data, u32::from_be_bytes),
        false => lanes(data, u32::from_le_bytes),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn both_avx2(data: &[[u8; STEP]], big_endian: bool) -> [[u64; LANES]; 4] {
    both(data, big_endian)
}

/// Sums that go on from `before` with `count` elements whose own sums are `own`.
fn join(before: Sums, own: Sums, count: u64) -> Sums {
    let n = u128::from(count);
    let t2 = (n * (n + 1) / 2) as u64;
    // Below 2⁴² elements no product overflows; more are in no memory.
    let t3 = ((n * (n + 1) / 2) * (n + 2) / 3) as u64;
    let [a, b, c, d] = before;
    let times = u64::wrapping_mul;
    let more = [
        a,
        b.wrapping_add(times(count, a)),
        c.wrapping_add(times(count, b)).wrapping_add(times(t2, a)),
        d.wrapping_add(times(count, c))
            .wrapping_add(times(t2, b))
            .wrapping_add(times(t3, a)),
    ];
    std::array::from_fn(|r| own[r].wrapping_add(more[r]))
}

/// Goes on with fletcher4 from the sums `sums` over as much of `data` as makes whole steps of 32 bytes,
/// if there are vectors for it that are worth it. Returns the sums and the rest of the data.
pub fn fletcher4(sums: Sums, data: &[u8], big_endian: bool) -> (Sums, &[u8]) {
    let (steps, rest) = data.as_chunks::<STEP>();
    if steps.len() < 8 || !crate::has_avx2() {
        return (sums, data);
    }
    #[cfg(target_arch = "x86_64")]
    // SAFETY: there is AVX2.
    let lanes = unsafe { both_avx2(steps, big_endian) };
    #[cfg(not(target_arch = "x86_64"))]
    let lanes = both(steps, big_endian);
    (
        join(sums, whole(&lanes), (steps.len() * LANES) as u64),
        rest,
    )
}

/// The sums of the whole from those of the lanes.
fn whole(lanes: &[[u64; LANES]; 4]) -> Sums {
    let mut own = [0u64; 4];
    for (i, factors) in FACTORS.iter().enumerate() {
        for (r, factors) in factors.iter().enumerate() {
            for (s, f) in factors.iter().enumerate() {
                own[r] = own[r].wrapping_add((*f as u64).wrapping_mul(lanes[s][i]));
            }
        }
    }
    own
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(sums: Sums, data: &[u8], big_endian: bool) -> Sums {
        let [mut a, mut b, mut c, mut d] = sums;
        for e in data.as_chunks::<4>().0 {
            let w = match big_endian {
                true => u32::from_be_bytes(*e),
                false => u32::from_le_bytes(*e),
            };
            a = a.wrapping_add(u64::from(w));
            b = b.wrapping_add(a);
            c = c.wrapping_add(b);
            d = d.wrapping_add(c);
        }
        [a, b, c, d]
    }

    #[test]
    fn lanes_make_the_same_sums() {
        let mut x = 5u64;
        let data: Vec<u8> = (0..300_000)
            .map(|i| {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(97);
                // High bits in some of it, so that sums overflow.
                if i % 1000 < 100 {
                    0xff
                } else {
                    (x >> 33) as u8
                }
            })
            .collect();
        for len in [0, 4, 252, 256, 260, 288, 1000, 4096, 131_072, 299_996] {
            for big in [false, true] {
                let before = [u64::MAX - 5, 1 << 63, 77, u64::MAX / 3];
                let want = plain(before, &data[..len], big);
                let (sums, rest) = fletcher4(before, &data[..len], big);
                assert_eq!(plain(sums, rest, big), want, "{len}");
                let steps = data[..len].as_chunks::<STEP>().0;
                let own = whole(&both(steps, big));
                let got = join(before, own, (steps.len() * LANES) as u64);
                let rest = &data[steps.len() * STEP..len];
                assert_eq!(plain(got, rest, big), want, "{len}");
            }
        }
    }
}
