//! What somebody may have meant by a word that is no subcommand.

use crate::table::Tool;
use crate::zfs_table::ZFS;
use crate::zpool_table::ZPOOL;

/// The command that has the subcommands this one has not.
fn sister(tool: &Tool) -> Option<&'static Tool> {
    match tool.name {
        "zfs" => Some(&ZPOOL),
        "zpool" => Some(&ZFS),
        _ => None,
    }
}

/// Subcommands, the likeliest first: one of the sister command with that very name, else the ones with nearly that name.
pub fn meant(tool: &Tool, word: &str) -> Vec<String> {
    let sister = sister(tool);
    if let Some((other, sub)) = sister.and_then(|t| t.find(word).map(|s| (t, s))) {
        return vec![format!("{} {}", other.name, sub.name)];
    }
    let near = |t: &Tool| {
        let names = t.subs.iter().filter(|s| s.built).map(|s| s.name);
        let with: Vec<(usize, String)> = names
            .map(|n| (distance(word, n), n))
            // A short word has few letters to be wrong in.
            .filter(|(d, n)| *d <= 1 + n.len().min(word.len()) / 5)
            .map(|(d, n)| (d, format!("{} {n}", t.name)))
            .collect();
        let least = with.iter().map(|w| w.0).min();
        let best = with.into_iter().filter(|w| Some(w.0) == least);
        best.map(|w| w.1).take(3).collect::<Vec<_>>()
    };
    let own = near(tool);
    match sister {
        Some(other) if own.is_empty() => near(other),
        _ => own,
    }
}

/// How many letters must be put in, taken out, changed, or exchanged with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                let other = rows[i - 1][j].min(rows[i][j - 1]) + 1;
                let exchanged = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
                let least = changed.min(other);
                match exchanged {
                    true => least.min(rows[i - 2][j - 2] + 1),
                    false => least,
                }
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistyped_words_and_words_of_the_sister() {
        for (tool, word, want) in [
            (&ZFS, "scrub", "zpool scrub"),
            (&ZFS, "iostat", "zpool iostat"),
            (&ZPOOL, "snapshot", "zfs snapshot"),
            (&ZPOOL, "recv", "zfs receive"),
            (&ZFS, "lsit", "zfs list"),
            (&ZFS, "snapshots", "zfs snapshot"),
            (&ZFS, "craete", "zfs create"),
            (&ZPOOL, "stauts", "zpool status"),
            (&ZPOOL, "snapshto", "zfs snapshot"),
        ] {
            assert_eq!(meant(tool, word), [want], "{} {word}", tool.name);
        }
        for word in ["frobnicate", "x", "", "tank"] {
            assert!(meant(&ZPOOL, word).is_empty(), "{word}");
        }
    }
}
