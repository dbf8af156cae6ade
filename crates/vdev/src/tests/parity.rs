//! A second opinion: where columns lie and what parity is, written down once more from the format's
//! description (pool format §9, §11) in the plainest arithmetic, and compared with what is on the disks
//! after a write. Nothing here comes from [`crate::map`], [`crate::draid`] or `codec`.

use crate::testing::{mem_env, MemDisk, SeededRng};
use crate::{DevSpec, GroupKind, TopSpec, VdevTree};
use base::{Block, Txg};
use std::sync::Arc;

/// Where the data area of a leaf begins.
const LABELS: u64 = 4 << 20;
/// Height of a row of a dRAID.
const ROW: u64 = 16 << 20;

/// One column: child, byte offset in its data area, sectors that belong to it.
type ColumnSpan = (usize, u64, usize);

fn mul(mut a: u8, mut b: u8) -> u8 {
    let mut out = 0;
    while b != 0 {
        if b & 1 != 0 {
            out ^= a;
        }
        let carry = a & 0x80 != 0;
        a <<= 1;
        if carry {
            a ^= 0x1d;
        }
        b >>= 1;
    }
    out
}

fn power(a: u8, n: usize) -> u8 {
    (0..n).fold(1, |x, _| mul(x, a))
}

/// The rows that make columns of `n` data columns: parity first, then the data themselves.
fn matrix(nparity: usize, n: usize) -> Vec<Vec<u8>> {
    let mut rows: Vec<Vec<u8>> = [1, 2, 4][..nparity]
        .iter()
        .map(|g| (0..n).map(|i| power(*g, n - 1 - i)).collect())
        .collect();
    rows.extend((0..n).map(|i| (0..n).map(|j| u8::from(i == j)).collect()));
    rows
}

/// The inverse of a square matrix, by Gauss and Jordan; `None` if there is none.
fn inverse(mut m: Vec<Vec<u8>>) -> Option<Vec<Vec<u8>>> {
    let n = m.len();
    let mut inv: Vec<Vec<u8>> = (0..n)
        .map(|i| (0..n).map(|j| u8::from(i == j)).collect())
        .collect();
    for c in 0..n {
        let pivot = (c..n).find(|&r| m[r][c] != 0)?;
        m.swap(c, pivot);
        inv.swap(c, pivot);
        // a^254 is a^-1.
        let by = power(m[c][c], 254);
        for j in 0..n {
            m[c][j] = mul(m[c][j], by);
            inv[c][j] = mul(inv[c][j], by);
        }
        for r in (0..n).filter(|r| *r != c) {
            let by = m[r][c];
            for j in 0..n {
                let (a, b) = (mul(m[c][j], by), mul(inv[c][j], by));
                m[r][j] ^= a;
                inv[r][j] ^= b;
            }
        }
    }
    Some(inv)
}

/// `m` times the columns, byte by byte.
fn times(m: &[Vec<u8>], cols: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let len = cols[0].len();
    m.iter()
        .map(|row| {
            let byte = |k: usize| {
                row.iter()
                    .zip(cols)
                    .fold(0, |x, (c, col)| x ^ mul(*c, col[k]))
            };
            (0..len).map(byte).collect()
        })
        .collect()
}

/// Columns of a block of `s` sectors on RAID-Z (§9.1).
fn raidz(width: u64, nparity: u64, ashift: u32, offset: u64, s: u64) -> Vec<ColumnSpan> {
    let b = offset >> ashift;
    let (f, o) = (b % width, (b / width) << ashift);
    let q = s / (width - nparity);
    let r = s - q * (width - nparity);
    let big = if r == 0 { 0 } else { r + nparity };
    let used = if q > 0 { width } else { big };
    let mut out: Vec<ColumnSpan> = (0..used)
        .map(|c| {
            let (child, o) = if f + c >= width {
                (f + c - width, o + (1 << ashift))
            } else {
                (f + c, o)
            };
            (child as usize, o, (q + u64::from(c < big)) as usize)
        })
        .collect();
    if nparity == 1 && offset >> 20 & 1 == 1 {
        let (a, b) = (out[0], out[1]);
        out[0] = (b.0, b.1, a.2);
        out[1] = (a.0, a.1, b.2);
    }
    out
}

struct DraidPlan {
    children: u64,
    ndata: u64,
    nparity: u64,
    spares: u64,
    rows: Vec<Vec<u8>>,
}

impl DraidPlan {
    /// With the permutations of §11.1.
    fn new(children: u64, ndata: u64, nparity: u64, spares: u64, seed: u64) -> DraidPlan {
        let (mut a, mut b) = (0xd_7a1d_5eedu64, seed);
        let mut next = || {
            let out = a.wrapping_add(b).rotate_left(17).wrapping_add(a);
            b ^= a;
            a = a.rotate_left(49) ^ b ^ b << 21;
            b = b.rotate_left(28);
            out
        };
        let mut row: Vec<u8> = (0..children as u8).collect();
        let mut rows = Vec::new();
        for _ in 0..256 {
            for j in (1..children).rev() {
                row.swap(j as usize, (next() % (j + 1)) as usize);
            }
            rows.push(row.clone());
        }
        DraidPlan {
            children,
            ndata,
            nparity,
            spares,
            rows,
        }
    }

    /// Rows of a block of `s` sectors, each with its columns and the number of data sectors (§11.2).
    fn places(&self, ashift: u32, mut offset: u64, mut s: u64) -> Vec<(Vec<ColumnSpan>, u64)> {
        let g = self.ndata + self.nparity;
        let n = self.children - self.spares;
        // The smallest number of groups that fills whole rows.
        let groups = (1..).find(|k| k * g % n == 0).unwrap();
        let mut out = Vec::new();
        while s > 0 {
            let group = offset / (g * ROW);
            let rest = (g * ROW - offset % (g * ROW)) / (g << ashift) * self.ndata;
            let here = s.min(rest);
            let (perm, gamma) = (group / groups, group % groups);
            let row = perm * (g * groups / n) + gamma * g / n;
            let u = (offset >> ashift) % ((g * ROW) >> ashift);
            let (q, r) = (here / self.ndata, here % self.ndata);
            let columns = (0..g)
                .map(|i| {
                    let at = gamma * g % n + i;
                    let down = if at >= n { ROW } else { 0 };
                    let p = perm % (256 * self.children);
                    let entry =
                        u64::from(self.rows[(p / self.children) as usize][(at % n) as usize]);
                    let child = (entry + p % self.children) % self.children;
                    let big = r > 0 && i < r + self.nparity;
                    (
                        child as usize,
                        row * ROW + ((u / g) << ashift) + down,
                        (q + u64::from(big)) as usize,
                    )
                })
                .collect();
            out.push((columns, here));
            s -= here;
            offset = (group + 1) * g * ROW;
        }
        out
    }
}

struct Disks {
    tree: VdevTree,
    disks: Vec<Arc<MemDisk>>,
    rng: SeededRng,
}

fn disks(kind: GroupKind, n: usize, ashift: u32, size: u64) -> Disks {
    let (env, mem) = mem_env(7);
    let disks = (0..n).map(|i| mem.add(&format!("/d{i}"), size)).collect();
    let devices = (0..n).map(|i| DevSpec::file(format!("/d{i}"))).collect();
    let spec = TopSpec {
        ashift: Some(ashift),
        ..TopSpec::new(kind, devices)
    };
    Disks {
        tree: VdevTree::create(env, 1, &[spec], Txg::new(4)).unwrap(),
        disks,
        rng: SeededRng::new(n as u64),
    }
}

impl Disks {
    fn block(&self, len: u64) -> Block {
        let mut b = vec![0; len as usize];
        env::Rng::fill(&self.rng, &mut b);
        Arc::new(b)
    }

    /// Compares one row: `data` cut column-wise, parity made by the matrix, and every choice of as many
    /// columns as there are data columns giving all of them back. `padded`: short columns are on
    /// the disks to their full height.
    fn check(&self, places: &[ColumnSpan], nparity: usize, ashift: u32, data: &[u8], padded: bool) {
        let sector = 1usize << ashift;
        let height = places[0].2 * sector;
        let n = places.len() - nparity;
        let mut rest = data;
        let mut cols: Vec<Vec<u8>> = Vec::new();
        for (_, _, sectors) in &places[nparity..] {
            let (own, behind) = rest.split_at((sectors * sector).min(rest.len()));
            let mut own = own.to_vec();
            own.resize(height, 0);
            cols.push(own);
            rest = behind;
        }
        assert!(rest.is_empty());
        let m = matrix(nparity, n);
        let all = times(&m, &cols);
        for ((child, at, sectors), want) in places.iter().zip(&all) {
            let len = if padded { height } else { sectors * sector };
            let mut on_disk = vec![0; len];
            self.disks[*child].peek(LABELS + at, &mut on_disk);
            assert!(on_disk == want[..len], "child {child} at {at:#x}");
        }
        // A few bytes tell as much as all of them.
        let few: Vec<Vec<u8>> = all.iter().map(|c| c[..16].to_vec()).collect();
        for _ in 0..4 {
            let mut pick: Vec<usize> = (0..places.len()).collect();
            for i in (1..pick.len()).rev() {
                pick.swap(i, self.rng.below(i as u64 + 1) as usize);
            }
            pick.truncate(n);
            let rows = pick.iter().map(|i| m[*i].clone()).collect();
            let known: Vec<Vec<u8>> = pick.iter().map(|i| few[*i].clone()).collect();
            let inv = inverse(rows).expect("any columns of that number are enough");
            assert!(times(&inv, &known) == few[nparity..]);
        }
    }
}

#[test]
fn raidz_on_disk() {
    for (ashift, widths) in [(9, &[2u64, 3, 4, 5, 8, 13][..]), (12, &[4, 6])] {
        for &width in widths {
            for nparity in (1..=3).filter(|p| *p < width) {
                let kind = GroupKind::Raidz {
                    nparity: nparity as usize,
                };
                let d = disks(kind, width as usize, ashift, 64 << 20);
                let mut at = (1 << 20) - (37 << ashift);
                for sectors in [1, 2, width - nparity, width, 3 * width + 1, 31, 64] {
                    let data = d.block(sectors << ashift);
                    d.tree.write(0, at, &data, Txg::new(5)).unwrap();
                    let places = raidz(width, nparity, ashift, at, sectors);
                    d.check(&places, nparity as usize, ashift, &data, false);
                    let rows = sectors.div_ceil(width - nparity);
                    let all = (sectors + nparity * rows).next_multiple_of(nparity + 1);
                    assert_eq!(
                        d.tree.top(0).unwrap().asize_for(data.len() as u64),
                        all << ashift
                    );
                    at += all << ashift;
                }
                // Beyond 1 MiB parity and data change places.
                let far = (3 << 20) + (5 << ashift);
                let data = d.block(7 << ashift);
                d.tree.write(0, far, &data, Txg::new(5)).unwrap();
                let places = raidz(width, nparity, ashift, far, 7);
                d.check(&places, nparity as usize, ashift, &data, false);
            }
        }
    }
}

#[test]
fn draid_on_disk() {
    // Children, data, parity, spares, and the seed of the format's table.
    for (children, ndata, nparity, spares, seed) in [
        (9u64, 4u64, 2u64, 1u64, 0x5a54_3003_6b98_2ccb),
        (11, 3, 2, 2, 0x74cc_ebf1_dcf3_ae80),
        (6, 3, 3, 0, 0x88c3_c62d_8585_b362),
        (14, 8, 3, 2, 0x559b_8c44_065f_8967),
        (3, 1, 1, 1, 0x89a5_7f3d_e981_21b4),
    ] {
        let kind = GroupKind::Draid {
            nparity: nparity as usize,
            ndata,
            nspares: spares,
        };
        let ashift = 12;
        let d = disks(kind, children as usize, ashift, 512 << 20);
        let plan = DraidPlan::new(children, ndata, nparity, spares, seed);
        let g = ndata + nparity;
        let end = d.tree.top(0).unwrap().asize() / (g * ROW);
        for group in 1..end {
            // The last row of a group, and the first of the next.
            let edge = group * g * ROW;
            let mut at = edge - 2 * (g << ashift);
            for sectors in [1, ndata + 1, 3 * ndata - 1, 2 * ndata] {
                let data = d.block(sectors << ashift);
                d.tree.write(0, at, &data, Txg::new(5)).unwrap();
                let mut rest = &data[..];
                for (places, here) in plan.places(ashift, at, sectors) {
                    let (own, behind) = rest.split_at((here << ashift) as usize);
                    d.check(&places, nparity as usize, ashift, own, true);
                    rest = behind;
                }
                assert!(rest.is_empty());
                at += sectors.div_ceil(ndata) * (g << ashift);
            }
        }
    }
}
