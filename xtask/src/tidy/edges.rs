//! Dependencies that no source file names, and the levels of the graph of crates.

use super::source::{is_colons, is_ident, is_punct, split_tests};
use super::Use;
use proc_macro2::{TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};

/// Packages whose library has another name.
const LIBRARIES: [(&str, &str); 1] = [("tz-rs", "tz")];

/// Every dependency of a manifest: its name in sources, what it is for, whether it only sets features of one
/// that is there anyway.
fn declared(manifest: &str) -> Vec<(String, Use)> {
    let mut out: Vec<(String, Use)> = Vec::new();
    let mut section = None;
    for line in manifest.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[') {
            let name = name.trim_end_matches(']');
            section = if name.ends_with("dev-dependencies") {
                Some(Use::Test)
            } else if name.ends_with("dependencies") {
                Some(Use::Normal)
            } else {
                None
            };
            continue;
        }
        let (Some(kind), Some((key, rest))) = (section, line.split_once('=')) else {
            continue;
        };
        let key = key.trim().trim_end_matches(".workspace");
        let library = LIBRARIES.iter().find(|(package, _)| *package == key);
        let name = library.map_or(key, |(_, name)| name).replace('-', "_");
        if !name.chars().all(|c| c.is_alphanumeric() || c == '_') {
            continue; // a line of a list
        }
        let again = out.iter().any(|(n, _)| *n == name) && rest.contains("features");
        if !again {
            out.push((name, kind));
        }
    }
    out
}

/// Names that may be those of crates: at the beginning of a path, or alone behind `use`.
fn named(all: TokenStream, out: &mut BTreeSet<String>) {
    let list: Vec<TokenTree> = all.into_iter().collect();
    for (at, t) in list.iter().enumerate() {
        let before = |n: usize| at.checked_sub(n).and_then(|p| list.get(p));
        match t {
            TokenTree::Group(g) => named(g.stream(), out),
            TokenTree::Ident(i) => {
                // `::base` begins a path, `a::base` and `<A>::base` go on with one.
                let behind_colons = is_punct(before(1), ':') && is_punct(before(2), ':');
                let goes_on = behind_colons
                    && (matches!(before(3), Some(TokenTree::Ident(i)) if *i != "as" && *i != "use")
                        || is_punct(before(3), '>'));
                let begins = !goes_on;
                let alone = is_ident(before(1), "use") || is_ident(before(1), "crate");
                if (begins && is_colons(&list, at + 1)) || alone {
                    out.insert(i.to_string());
                }
            }
            _ => {}
        }
    }
}

/// The sources of a crate.
pub struct Sources {
    /// Under `src`, and `build.rs`.
    pub own: Vec<TokenStream>,
    /// Under `tests`, `benches` and `examples`.
    pub tests: Vec<TokenStream>,
    /// Comments that hold examples, which are compiled, too.
    pub examples: String,
}

/// Dependencies that are declared in a manifest, but not named where they are for.
pub fn unused(name: &str, manifest: &str, sources: &Sources) -> Vec<String> {
    let (mut own, mut tests) = (BTreeSet::new(), BTreeSet::new());
    for t in &sources.own {
        let (code, test) = split_tests(t.clone());
        named(code, &mut own);
        named(test, &mut tests);
    }
    for t in &sources.tests {
        named(t.clone(), &mut tests);
    }
    let mut out = Vec::new();
    for (to, kind) in declared(manifest) {
        let in_tests = tests.contains(&to) || sources.examples.contains(&format!("{to}::"));
        match kind {
            Use::Normal if own.contains(&to) => {}
            Use::Normal if in_tests => out.push(format!(
                "{name}: only tests name {to}; it belongs to [dev-dependencies]"
            )),
            // Of a library's own code that only tests call, say for a feature.
            Use::Test if in_tests || own.contains(&to) => {}
            _ => out.push(format!("{name} depends on {to}, which nothing in it names")),
        }
    }
    out
}

/// Crates by level: those on level 0 depend on none of the workspace, the others on at least one of the level before.
pub fn levels(depend: &BTreeMap<String, Vec<String>>) -> Vec<Vec<String>> {
    fn level(
        name: &str,
        depend: &BTreeMap<String, Vec<String>>,
        known: &mut BTreeMap<String, usize>,
    ) -> usize {
        if let Some(l) = known.get(name) {
            return *l;
        }
        // Cargo refuses circles.
        known.insert(name.to_string(), 0);
        let below = depend.get(name).into_iter().flatten();
        let l = below
            .map(|d| level(d, depend, known) + 1)
            .max()
            .unwrap_or(0);
        known.insert(name.to_string(), l);
        l
    }
    let mut known = BTreeMap::new();
    let mut out: Vec<Vec<String>> = Vec::new();
    for name in depend.keys() {
        let l = level(name, depend, &mut known);
        if out.len() <= l {
            out.resize(l + 1, Vec::new());
        }
        out[l].push(name.clone());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::source::tokens;
    use super::*;

    #[test]
    fn dependencies_nobody_names() {
        let manifest = "[dependencies]\nbase = { path = \"../base\" }\nserde_json = \"1\"\nzstd-sys = { version = \"1\", features = [\n  \"a\",\n] }\n\
            [dev-dependencies]\ndmu = { path = \"../dmu\" }\nbase = { path = \"../base\", features = [\"x\"] }\n";
        let found = |own: &str, tests: &str, examples: &str| {
            let t = |s: &str| vec![tokens("x", s).unwrap()];
            let sources = Sources {
                own: t(own),
                tests: t(tests),
                examples: examples.into(),
            };
            unused("r", manifest, &sources)
        };
        let all = "use base::X; fn f() { serde_json::y(); let _ = <T as ::zstd_sys::A>::b; }";
        assert!(
            found(all, "use {dmu::A};", "").is_empty(),
            "{:?}",
            found(all, "use {dmu::A};", "")
        );
        assert!(found(all, "", "let x = dmu::y();").is_empty());
        let e = found(
            &all.replace("use base::X;", "let base = 1; a::base::x();"),
            "use dmu as d;",
            "",
        );
        assert_eq!(e, ["r depends on base, which nothing in it names"]);
        let e = found(
            &all.replace("serde_json::", "x::"),
            "use dmu::A; use serde_json::Value;",
            "",
        );
        assert_eq!(
            e,
            ["r: only tests name serde_json; it belongs to [dev-dependencies]"]
        );
        assert_eq!(
            found(all, "", ""),
            ["r depends on dmu, which nothing in it names"]
        );
        let test_in_src = format!("{all} #[cfg(test)] mod tests {{ use dmu::A; }}");
        assert!(found(&test_in_src, "", "").is_empty());
    }

    #[test]
    fn levels_of_crates() {
        let graph = [
            ("a", vec![]),
            ("b", vec!["a"]),
            ("c", vec!["a", "b"]),
            ("d", vec![]),
        ];
        let graph = graph.map(|(n, d)| (n.to_string(), d.into_iter().map(String::from).collect()));
        assert_eq!(
            levels(&graph.into()),
            [vec!["a", "d"], vec!["b"], vec!["c"]]
        );
    }
}
