use super::*;

/// Multiplication by shifting and adding, the polynomial taken from the format.
fn slow_mul(mut a: u16, b: u8) -> u8 {
    let mut out = 0u16;
    for i in 0..8 {
        if b >> i & 1 == 1 {
            out ^= a;
        }
        a <<= 1;
        if a & 0x100 != 0 {
            a ^= 0x11d;
        }
    }
    out as u8
}

fn slow_pow(base: u8, e: usize) -> u8 {
    (0..e).fold(1, |x, _| slow_mul(u16::from(x), base))
}

fn noise(len: usize, seed: usize) -> Vec<u8> {
    let mut x = seed as u64 * 2 + 0x9e37_79b9_7f4a_7c15;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 24) as u8
        })
        .collect()
}

#[test]
fn the_field() {
    for a in 0..=255u8 {
        for b in 0..=255u8 {
            assert_eq!(mul(a, b), slow_mul(a.into(), b));
        }
        if a != 0 {
            assert_eq!(mul(a, invert(a)), 1);
        }
    }
}

/// The sums as the format gives them, byte by byte.
#[test]
fn generated_parity_is_the_matrix_product() {
    for n in 1..=12usize {
        let data: Vec<Vec<u8>> = (0..n)
            .map(|i| noise(if i < n.div_ceil(2) { 75 } else { 61 }, n * 20 + i))
            .collect();
        let mut parity = vec![vec![1, 2, 3]; 3];
        generate(&data, &mut parity);
        for (row, generator) in [1u8, 2, 4].into_iter().enumerate() {
            assert_eq!(parity[row].len(), 75);
            for (at, &got) in parity[row].iter().enumerate() {
                let want = data.iter().enumerate().fold(0, |sum, (i, d)| {
                    let c = slow_pow(generator, n - 1 - i);
                    sum ^ slow_mul(u16::from(*d.get(at).unwrap_or(&0)), c)
                });
                assert_eq!(got, want);
            }
        }
    }
}

/// All widths up to 8 columns, all parities, all combinations of lost columns, long and short.
#[test]
fn every_loss_up_to_the_parity_is_repaired() {
    for width in 2..=8usize {
        for nparity in 1..=3.min(width - 1) {
            for long in 1..=width - nparity {
                let data: Vec<Vec<u8>> = (0..width - nparity)
                    .map(|i| noise(if i < long { 27 } else { 19 }, width * 100 + i))
                    .collect();
                let mut cols = vec![Vec::new(); nparity];
                generate(&data, &mut cols);
                cols.extend(data);
                for mask in 0u32..1 << width {
                    let lost: Vec<usize> = (0..width).filter(|i| mask >> i & 1 == 1).collect();
                    let mut broken = cols.clone();
                    for &i in &lost {
                        broken[i].fill(0xa5);
                    }
                    let result = reconstruct(nparity, &mut broken, &lost);
                    if lost.len() <= nparity {
                        result.unwrap();
                        assert_eq!(broken, cols);
                    } else {
                        assert_eq!(result.unwrap_err().kind, base::Kind::Io);
                    }
                }
            }
        }
    }
}

/// The extremes of width: every pair and triple of generators must stay solvable.
#[test]
fn wide_rows() {
    for n in [40, 254, 255] {
        let data: Vec<Vec<u8>> = (0..n).map(|i| noise(9, i)).collect();
        let mut cols = vec![Vec::new(); 3];
        generate(&data, &mut cols);
        cols.extend(data);
        for lost in [
            [3, 4, 5],
            [3, n / 2, n + 2],
            [n, n + 1, n + 2],
            [0, 3, n + 2],
            [1, 3, n + 2],
            [2, 3, n + 2],
            [0, 1, 3],
        ] {
            let mut broken = cols.clone();
            lost.iter().for_each(|&i| broken[i].fill(1));
            reconstruct(3, &mut broken, &lost).unwrap();
            assert!(broken == cols, "{n} {lost:?}");
        }
    }
    for row_pair in [[0, 1], [0, 2], [1, 2]] {
        for j in 1..255 {
            assert!(solve(&row_pair, &[0, j], 255).is_some(), "{row_pair:?} {j}");
        }
    }
}

#[test]
fn bad_arguments() {
    let good = vec![vec![0; 8]; 5];
    for (nparity, missing) in [(4, vec![]), (5, vec![]), (1, vec![5]), (2, vec![2, 2])] {
        assert!(reconstruct(nparity, &mut good.clone(), &missing).is_err());
    }
    let mut short = good.clone();
    short[0].pop();
    assert!(reconstruct(1, &mut short, &[2]).is_err());
    // a parity column that is missing may have any length when it is not rebuilt
    let mut cols = vec![vec![]; 2];
    let data = vec![noise(30, 1), noise(30, 2), noise(22, 3)];
    generate(&data, &mut cols);
    cols.extend(data.clone());
    cols[0].clear();
    cols[3].fill(0);
    reconstruct_data(2, &mut cols, &[0, 3]).unwrap();
    assert_eq!(&cols[2..], &data[..]);
    assert!(cols[0].is_empty());
    assert!(reconstruct_data(2, &mut cols, &[0, 3, 4]).is_err());
}
