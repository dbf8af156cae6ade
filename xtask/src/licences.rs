//! Every crate that is built into the programs must be under a permissive licence.

use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// SPDX names we may build in; all of them only ask to keep their notice.
const PERMISSIVE: [&str; 13] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unicode-DFS-2016",
    "Zlib",
];

/// One line for every package of the lock file whose licence is not acceptable, and how many
/// packages were looked at.
pub fn check(root: &Path) -> Result<(Vec<String>, usize), String> {
    let metadata = metadata(root)?;
    let Some(packages) = metadata["packages"].as_array() else {
        return Err("cargo metadata names no packages".into());
    };
    Ok((
        packages.iter().filter_map(complaint).collect(),
        packages.len(),
    ))
}

/// What cargo knows of the packages in the lock file.
pub(crate) fn metadata(root: &Path) -> Result<Value, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let out = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(root)
        .output()
        .map_err(|e| format!("cannot run cargo: {e}"))?;
    if !out.status.success() {
        return Err(format!(
            "cargo metadata: {}",
            String::from_utf8_lossy(&out.stderr)
        ));
    }
    serde_json::from_slice(&out.stdout).map_err(|e| format!("cargo metadata: {e}"))
}

fn complaint(package: &Value) -> Option<String> {
    let text = |key: &str| package[key].as_str().unwrap_or("");
    let (name, version, licence) = (text("name"), text("version"), text("license"));
    match permissive(licence) {
        Some(true) => None,
        Some(false) => Some(format!("{name} {version}: licence {licence}")),
        None if licence.is_empty() => Some(format!("{name} {version}: names no licence")),
        None => Some(format!(
            "{name} {version}: cannot understand the licence {licence:?}"
        )),
    }
}

/// Whether an SPDX expression can be satisfied with permissive licences only; `None` if it is no
/// expression. The old `A/B` means `A OR B`.
fn permissive(expression: &str) -> Option<bool> {
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let (value, rest) = or(&words)?;
    rest.is_empty().then_some(value)
}

type Parsed<'a> = Option<(bool, &'a [&'a str])>;

fn or<'a>(words: &'a [&'a str]) -> Parsed<'a> {
    let (mut value, mut rest) = and(words)?;
    while let ["OR", after @ ..] = rest {
        let (next, tail) = and(after)?;
        value |= next;
        rest = tail;
    }
    Some((value, rest))
}

fn and<'a>(words: &'a [&'a str]) -> Parsed<'a> {
    let (mut value, mut rest) = term(words)?;
    while let ["AND", after @ ..] = rest {
        let (next, tail) = term(after)?;
        value &= next;
        rest = tail;
    }
    Some((value, rest))
}

fn term<'a>(words: &'a [&'a str]) -> Parsed<'a> {
    match words {
        ["(", inside @ ..] => match or(inside)? {
            (value, [")", rest @ ..]) => Some((value, rest)),
            _ => None,
        },
        ["OR" | "AND" | "WITH" | ")", ..] | [] => None,
        [id, "WITH", exception, rest @ ..] => {
            let full = format!("{id} WITH {exception}");
            Some((PERMISSIVE.contains(&full.as_str()), rest))
        }
        [id, rest @ ..] => Some((PERMISSIVE.contains(id), rest)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions() {
        for (text, want) in [
            ("MIT", Some(true)),
            ("GPL-3.0-only", Some(false)),
            ("MIT OR GPL-2.0", Some(true)),
            ("MIT AND GPL-2.0", Some(false)),
            ("GPL-2.0/MIT", Some(true)),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", Some(true)),
            ("(MIT OR Apache-2.0) AND MPL-2.0", Some(false)),
            ("MPL-2.0 OR (MIT AND ISC)", Some(true)),
            ("Apache-2.0 WITH LLVM-exception OR MIT", Some(true)),
            ("GPL-2.0 WITH Classpath-exception-2.0", Some(false)),
            ("", None),
            ("MIT OR", None),
            ("(MIT", None),
            ("MIT Apache-2.0", None),
        ] {
            assert_eq!(permissive(text), want, "{text:?}");
        }
    }
}
