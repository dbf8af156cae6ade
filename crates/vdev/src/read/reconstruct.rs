//! RAID-Z reconstruction: tries combinations of columns as missing until the checksum is right.

use super::{Column, Plan, ReadReq};
use crate::map::{Col, Map};
use base::mutation::{mutated, Mutation};
use codec::parity;

/// Most combinations of differing copies tried for a split block, and of columns to distrust.
pub(super) const MAX_COMBINATIONS: usize = 4096;

pub(super) fn fits(req: &ReadReq, block: &[u8]) -> bool {
    block.get(..req.psize).is_some_and(|b| (req.verify)(b))
}

pub(super) fn cut(mut data: Vec<u8>, len: usize) -> Vec<u8> {
    data.truncate(len);
    data
}

/// Puts the block together, rebuilding the columns (stripe, column) that have no data and those that
/// are `distrusted`. `None` if that is too many.
pub(super) fn attempt(plan: &Plan, distrusted: &dyn Fn(usize, usize) -> bool) -> Option<Vec<u8>> {
    let map = plan.map.as_ref()?;
    let mut block = vec![0; map.len];
    for (s, (layout, cols)) in map.stripes.iter().zip(&plan.stripes).enumerate() {
        let data = |i: usize, c: &Column| {
            // What is blank is known without reading.
            let trusted = || c.data().filter(|_| !distrusted(s, i));
            c.blank || trusted().is_some()
        };
        let missing: Vec<usize> = (0..cols.len()).filter(|&i| !data(i, &cols[i])).collect();
        let place = |block: &mut [u8], i: usize, bytes: &[u8]| {
            let Col { at, data, .. } = layout.cols[i];
            block[at..at + data].copy_from_slice(&bytes[..data]);
        };
        if missing.iter().all(|m| *m < map.nparity) {
            for (i, c) in cols
                .iter()
                .enumerate()
                .skip(map.nparity)
                .filter(|(_, c)| !c.blank)
            {
                place(&mut block, i, c.data()?);
            }
            continue;
        }
        if missing.len() > map.nparity {
            return None;
        }
        let mut full: Vec<Vec<u8>> = cols
            .iter()
            .enumerate()
            .map(|(i, c)| match c.data() {
                Some(d) if !missing.contains(&i) && !c.blank => d.to_vec(),
                _ => vec![0; c.size],
            })
            .collect();
        let size = full.first().map_or(0, Vec::len);
        full.resize(cols.len() + map.absent(s), vec![0; size]);
        parity::reconstruct_data(map.nparity, &mut full, &missing).ok()?;
        for (i, d) in full.iter().enumerate().take(cols.len()).skip(map.nparity) {
            place(&mut block, i, d);
        }
    }
    Some(block)
}

/// Number of columns whose content is not known.
pub(super) fn lacking(cols: &[Column]) -> usize {
    cols.iter()
        .filter(|c| !c.blank && c.data().is_none())
        .count()
}

/// Tries to believe everybody, then to distrust each child, each two, each three; for blocks older
/// than a widening also the children as they were then.
pub(super) fn combinations(req: &ReadReq, plan: &Plan) -> Option<Vec<u8>> {
    let map = plan.map.as_ref()?;
    let now = |s: usize, c: usize| plan.stripes.get(s)?.get(c).map(|c| c.child);
    choices(req, plan, map, &now).or_else(|| {
        map.former_widths()
            .find_map(|w| choices(req, plan, map, &|s, c| map.former_child(s, c, w)))
    })
}

/// The same with the children that `child` names for each stripe and column.
pub(super) fn choices(
    req: &ReadReq,
    plan: &Plan,
    map: &Map,
    child: &dyn Fn(usize, usize) -> Option<usize>,
) -> Option<Vec<u8>> {
    let mut children: Vec<usize> = plan
        .stripes
        .iter()
        .enumerate()
        .flat_map(|(s, cols)| cols.iter().enumerate().map(move |(c, col)| (s, c, col)))
        .filter(|(_, _, col)| !col.blank && col.data().is_some())
        .filter_map(|(s, c, _)| child(s, c))
        .collect();
    children.sort_unstable();
    children.dedup();
    // Already missing ones use up parity.
    let missing = plan
        .stripes
        .iter()
        .map(|cols| lacking(cols))
        .min()
        .unwrap_or(0);
    for n in 0..=map.nparity.saturating_sub(missing).min(children.len()) {
        let mut pick: Vec<usize> = (0..n).collect();
        // Of very many only a sample is tried, evenly spread.
        let step = ways(children.len(), n).div_ceil(MAX_COMBINATIONS as u64);
        let mut turn = 0u64;
        loop {
            turn += 1;
            if turn % step.max(1) != 1 % step.max(1) {
                if !next_choice(&mut pick, children.len()) {
                    break;
                }
                continue;
            }
            let distrusted: Vec<usize> = pick.iter().map(|&i| children[i]).collect();
            let bad = |s: usize, c: usize| child(s, c).is_some_and(|k| distrusted.contains(&k));
            if let Some(block) = attempt(plan, &bad).filter(|b| fits(req, b)) {
                return Some(block);
            }
            if !next_choice(&mut pick, children.len()) {
                break;
            }
        }
    }
    None
}

/// Number of ways to pick `k` out of `n`.
pub(super) fn ways(n: usize, k: usize) -> u64 {
    (0..k as u64).fold(1, |a, i| {
        a.saturating_mul((n as u64).saturating_sub(i)) / (i + 1)
    })
}

/// Advances to the next ascending choice out of `n`; false after the last.
pub(super) fn next_choice(pick: &mut [usize], n: usize) -> bool {
    for i in (0..pick.len()).rev() {
        if pick[i] < n - (pick.len() - i) {
            pick[i] += 1;
            for j in i + 1..pick.len() {
                pick[j] = pick[j - 1] + 1;
            }
            return true;
        }
    }
    false
}

/// What the columns of stripe `s` should hold.
pub(super) fn right_columns(plan: &Plan, s: usize, block: &[u8]) -> Vec<Vec<u8>> {
    let Some(map) = &plan.map else {
        return vec![block.to_vec()];
    };
    columns(map, s, block)
}

/// Parity and data columns of stripe `s` of a block of `map.len` bytes.
pub(crate) fn columns(map: &Map, s: usize, block: &[u8]) -> Vec<Vec<u8>> {
    let cols = &map.stripes[s].cols;
    let mut data: Vec<Vec<u8>> = cols
        .iter()
        .skip(map.nparity)
        .map(|c| {
            let mut d = Vec::with_capacity(c.size);
            d.extend_from_slice(&block[c.at..c.at + c.data]);
            d.resize(c.size, 0);
            d
        })
        .collect();
    let (real, size) = (data.len(), data.first().map_or(0, Vec::len));
    data.resize(real + map.absent(s), vec![0; size]);
    let mut out = vec![Vec::new(); map.nparity];
    parity::generate(&data, &mut out);
    if mutated(Mutation::ParityWrong) {
        if let Some(b) = out.last_mut().and_then(|c| c.first_mut()) {
            *b ^= 1;
        }
    }
    out.extend(data.into_iter().take(real));
    out
}

#[cfg(test)]
mod tests {
    use super::next_choice;

    #[test]
    fn choices_are_complete() {
        for n in 0..7 {
            for k in 0..=n {
                let mut pick: Vec<usize> = (0..k).collect();
                let mut count = 1;
                while next_choice(&mut pick, n) {
                    assert!(pick.windows(2).all(|w| w[0] < w[1]) && pick.iter().all(|p| *p < n));
                    count += 1;
                }
                assert_eq!(count, super::ways(n, k));
            }
        }
    }
}
