//! The table of deduplicated blocks by number of references, as `zdb -D` and `zpool status -D` print it.

/// Words of a row: blocks, logical, physical and allocated bytes, then the same by references.
const ROW: usize = 8;

/// The table. `words`: `ROW` for each power of two of the number of references. `total`: with a line of sums. `number` and `bytes` say
/// how counts and sizes are shown.
pub fn table(
    words: &[u64],
    total: bool,
    number: &dyn Fn(u64) -> String,
    bytes: &dyn Fn(u64) -> String,
) -> String {
    let head = "allocated                       referenced          ";
    let rule = "______________________________";
    let mut out = format!("\nbucket              {head}\n______   {rule}   {rule}\n");
    let columns = "blocks   LSIZE   PSIZE   DSIZE";
    let rule = "------   -----   -----   -----";
    out.push_str(&format!(
        "refcnt   {columns}   {columns}\n------   {rule}   {rule}\n"
    ));
    let mut row = |name: String, w: &[u64]| {
        out.push_str(&format!("{name:>6}"));
        for part in w.chunks(ROW / 2) {
            out.push_str(&format!("   {:>6}", number(part[0])));
            for v in &part[1..] {
                out.push_str(&format!("   {:>5}", bytes(*v)));
            }
        }
        out.push('\n');
    };
    let mut sum = [0u64; ROW];
    for (i, w) in words.chunks_exact(ROW).enumerate() {
        for (sum, v) in sum.iter_mut().zip(w) {
            *sum = sum.wrapping_add(*v);
        }
        if w[0] != 0 {
            row(number(1u64 << i.min(63)), w);
        }
    }
    if total && sum[0] != 0 {
        row("Total".into(), &sum);
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::sizes::nice;

    const K128: u64 = 128 << 10;

    #[test]
    fn rows_of_references_and_their_sum() {
        let mut words = vec![0; 16];
        words[..8].copy_from_slice(&[32, K128, K128, K128, 32, K128, K128, K128]);
        words[8..].copy_from_slice(&[1, 4096, 1024, 1024, 3, 12_288, 3072, 3072]);
        let text = table(&words, true, &|n| nice(n, false), &|n| nice(n, true));
        let want = "\n\
bucket              allocated                       referenced          \n\
______   ______________________________   ______________________________\n\
refcnt   blocks   LSIZE   PSIZE   DSIZE   blocks   LSIZE   PSIZE   DSIZE\n\
------   ------   -----   -----   -----   ------   -----   -----   -----\n\
\x20    1       32    128K    128K    128K       32    128K    128K    128K\n\
\x20    2        1      4K      1K      1K        3     12K      3K      3K\n\
\x20Total       33    132K    129K    129K       35    140K    131K    131K\n\n";
        assert_eq!(text, want);
        // Nothing is added up where nothing is.
        assert!(!table(&[], true, &|n| n.to_string(), &|n| n.to_string()).contains("Total"));
    }
}
