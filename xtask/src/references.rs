//! Citations of the format's description: "pool format §2.3" in a comment must lead to a section of
//! `docs/format`, and links within those pages to something that is there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Words before a § that mean something else than the pages of `docs/format`; its README says what.
const ELSEWHERE: [&str; 4] = [
    "command reference",
    "properties reference",
    "behaviour",
    "specification",
];

/// Anchors of the pages: page → ids.
type Anchors = BTreeMap<String, BTreeSet<String>>;

/// Complaints about citations in these files (path, text), pages of the format among them.
pub fn check(files: &[(String, String)]) -> Vec<String> {
    let pages = |p: &str| p.strip_prefix("docs/format/").map(str::to_string);
    let mut anchors = Anchors::new();
    for (path, text) in files {
        if let Some(page) = pages(path) {
            anchors.insert(page, ids(text));
        }
    }
    let all: BTreeSet<&str> = anchors.values().flatten().map(String::as_str).collect();
    let mut out = Vec::new();
    for (path, text) in files {
        match pages(path) {
            Some(page) => links(path, &page, text, &anchors, &mut out),
            None if path.ends_with(".rs") || path.ends_with(".md") => {
                citations(path, text, &all, &mut out);
            }
            None => {}
        }
    }
    out
}

fn ids(text: &str) -> BTreeSet<String> {
    text.split("<a id=\"")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once('"')?.0.to_string()))
        .collect()
}

fn citations(path: &str, text: &str, known: &BTreeSet<&str>, out: &mut Vec<String>) {
    // As one line: a citation may be broken by the margin.
    let mut plain = String::new();
    let mut lines = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let line = line.trim_start().trim_start_matches(['/', '!']).trim();
        plain.push_str(line);
        plain.push(' ');
        lines.resize(plain.len(), n + 1);
    }
    for (at, _) in plain.match_indices('§') {
        let rest = &plain[at + '§'.len_utf8()..];
        let numbers = section_numbers(rest);
        let before = plain[..at].trim_end();
        let begin = before.len().saturating_sub(60);
        let begin = (begin..=before.len()).find(|i| before.is_char_boundary(*i));
        let near = &before[begin.unwrap_or(before.len())..];
        // The last of these words counts, up to which other citations may stand between.
        let word = |w: &str| near.rfind(w);
        let elsewhere = ELSEWHERE.iter().filter_map(|w| word(w)).max();
        let kinds: Vec<&str> = ["pool", "data", "operations"].to_vec();
        let named = |k: &str| match k {
            "operations" => word("operations"),
            k => word(&format!("{k} format")),
        };
        let kind = kinds.iter().filter_map(|k| Some((named(k)?, *k))).max();
        if elsewhere > kind.map(|(i, _)| i) {
            continue;
        }
        for number in numbers {
            let found = match kind {
                Some((_, k)) => known.contains(format!("{k}-{number}").as_str()),
                None => kinds
                    .iter()
                    .any(|k| known.contains(format!("{k}-{number}").as_str())),
            };
            if !found {
                let line = lines.get(at).copied().unwrap_or(0);
                let kind = kind.map_or("", |(_, k)| k);
                out.push(format!(
                    "{path}:{line}: docs/format has no section {kind} §{number}"
                ));
            }
        }
    }
}

/// `2.3`, or both ends of `12–14`.
fn section_numbers(text: &str) -> Vec<String> {
    let number = |t: &str| -> String {
        let n: String = t
            .chars()
            .take_while(|c| c.is_ascii_digit() || *c == '.')
            .collect();
        n.trim_end_matches('.').to_string()
    };
    let first = number(text);
    let second = text[first.len()..].strip_prefix('–').map(number);
    let all = [Some(first), second].into_iter().flatten();
    all.filter(|n| !n.is_empty()).collect()
}

fn links(path: &str, page: &str, text: &str, anchors: &Anchors, out: &mut Vec<String>) {
    for rest in text.split("](").skip(1) {
        let Some((target, _)) = rest.split_once(')') else {
            continue;
        };
        if target.contains("://") {
            continue;
        }
        let (file, id) = target.split_once('#').unwrap_or((target, ""));
        let file = if file.is_empty() { page } else { file };
        let there = match anchors.get(file) {
            Some(ids) => id.is_empty() || ids.contains(id),
            None => {
                let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/format");
                id.is_empty() && folder.join(file).exists()
            }
        };
        if !there {
            out.push(format!("{path}: the link to {target} leads nowhere"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn citations_must_resolve() {
        let file = |p: &str, t: &str| (p.to_string(), t.to_string());
        let page = "<a id=\"pool-2\"></a>\n<a id=\"pool-2.3\"></a> [x](#pool-2) [y](b.md#data-7)";
        let mut files = vec![
            file("docs/format/a.md", page),
            file("docs/format/b.md", "<a id=\"data-7\"></a>"),
            file(
                "crates/x/src/lib.rs",
                "//! Rings (pool\n//! format §2.3, §2–2.3); data format §7.\n// UEFI specification 2.10 §5.3\n\
                 // command reference §9.9; pool format §2. \
                 One more sentence that is long enough to be about something else altogether. See §7.",
            ),
        ];
        assert_eq!(check(&files), Vec::<String>::new());
        files.push(file("a.rs", "// pool format §7\n"));
        files.push(file("b.rs", "ok\n// §9\n"));
        files.push(file("c.rs", "// data format §7–8"));
        files.push(file("docs/format/c.md", "[z](a.md#pool-9) [w](none.md)"));
        let wrong = check(&files);
        assert_eq!(wrong.len(), 5, "{wrong:#?}");
        assert!(
            wrong.contains(&"b.rs:2: docs/format has no section  §9".to_string()),
            "{wrong:#?}"
        );
    }
}
