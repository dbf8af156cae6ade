//! Files that documents name: links must lead to a file, and `crates/zio/src/cache.rs` or the short form
//! `zio/cache` must be one.

use std::collections::BTreeSet;

/// Where the source of a crate may be, for the short form.
const WITHIN: [&str; 7] = [
    "",
    "src/",
    "tests/",
    "src/bin/",
    "src/tests/",
    "benches/",
    "examples/",
];
/// Folders whose files are named in full.
const TOP: [&str; 5] = ["crates", "docs", "fuzz", "tools", "xtask"];

/// The files of the repository.
pub struct Tree {
    /// Files and folders.
    paths: BTreeSet<String>,
    /// `crate/feature`.
    features: BTreeSet<String>,
}

impl Tree {
    /// `manifests`: name and text.
    pub fn new<'a>(
        files: &[String],
        manifests: impl Iterator<Item = (&'a String, &'a String)>,
    ) -> Tree {
        let mut paths = BTreeSet::new();
        for file in files {
            let ends = file.match_indices('/').map(|(i, _)| &file[..i]);
            paths.extend(ends.map(str::to_string));
            paths.insert(file.clone());
        }
        let mut features = BTreeSet::new();
        for (name, text) in manifests {
            let section = text.split("[features]").nth(1).unwrap_or_default();
            let lines = section.lines().take_while(|l| !l.starts_with('['));
            let names = lines
                .filter_map(|l| l.split_once('='))
                .map(|(n, _)| n.trim());
            features.extend(names.map(|n| format!("{name}/{n}")));
        }
        Tree { paths, features }
    }

    fn is_file(&self, name: &str) -> bool {
        let with = |p: String| self.paths.contains(&p) || self.paths.contains(&format!("{p}.rs"));
        let Some((first, rest)) = name.split_once('/') else {
            return true;
        };
        if TOP.contains(&first) {
            return with(name.to_string());
        }
        // Another thing with a slash, unless it begins with a crate.
        !self.paths.contains(&format!("crates/{first}"))
            || self.features.contains(name)
            || WITHIN
                .iter()
                .any(|w| with(format!("crates/{first}/{w}{rest}")))
    }

    /// Complaints about a document.
    pub fn check(&self, path: &str, text: &str) -> Vec<String> {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let mut out = Vec::new();
        let mut code = false;
        for (n, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("```") {
                code = !code;
            }
            if code {
                continue;
            }
            let links = line.split("](").skip(1).filter_map(|r| r.split(')').next());
            for link in links.map(|l| l.split('#').next().unwrap_or(l)) {
                let outside = link.is_empty() || link.contains("://");
                if !outside && !self.paths.contains(&joined(folder, link)) {
                    out.push(format!("{path}:{}: a link to no file: {link}", n + 1));
                }
            }
            for name in line.split('`').skip(1).step_by(2) {
                let name = name.trim_end_matches('/');
                if looks_like_a_path(name) && !self.is_file(name) {
                    out.push(format!("{path}:{}: there is no file {name}", n + 1));
                }
            }
        }
        out
    }
}

fn looks_like_a_path(text: &str) -> bool {
    let part = |p: &str| {
        let mut chars = p.chars();
        chars.next().is_some_and(|c| c.is_ascii_lowercase())
            && chars.all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
    };
    text.contains('/') && text.split('/').all(part)
}

/// A relative link, from the root of the repository.
fn joined(folder: &str, link: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|p| !p.is_empty()).collect();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            p => parts.push(p),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_are_looked_up() {
        let files = [
            "README.md",
            "docs/testing.md",
            "crates/zio/src/cache.rs",
            "crates/sim/tests/seeds.rs",
            "crates/base/Cargo.toml",
        ];
        let manifest = "[package]\nname = \"base\"\n[features]\nmutations = []\n[lints]\nx = 1\n";
        let (name, text) = ("base".to_string(), manifest.to_string());
        let tree = Tree::new(&files.map(str::to_string), [(&name, &text)].into_iter());
        let right = "[a](testing.md#x) [b](../README.md) [c](https://x.y/z) [d](#e)\n\
                     `zio/cache` `sim/tests/seeds` `sim/seeds` `crates/zio/src` `crates/zio/src/cache.rs` \
                     `base/mutations` `tank/photos` `crates/sim/tests/` `a/B` `pool/a/*`\n\
                     ```\n`zio/nothing`\n```\n";
        assert_eq!(tree.check("docs/a.md", right), Vec::<String>::new());
        let wrong = "`zio/none` x `crates/none`\n\n[a](README.md) `docs/none.md`, `base/x`";
        assert_eq!(
            tree.check("docs/a.md", wrong),
            [
                "docs/a.md:1: there is no file zio/none",
                "docs/a.md:1: there is no file crates/none",
                "docs/a.md:3: a link to no file: README.md",
                "docs/a.md:3: there is no file docs/none.md",
                "docs/a.md:3: there is no file base/x",
            ]
        );
    }
}
