//! What the compiler does not check: direction of dependencies and whether they are used, circles of imports, where
//! `unsafe` may be, lengths of files and functions, words that mean "not done", paths of somebody's machine, files
//! that documents name.

mod acts;
mod allowed;
mod circles;
mod edges;
mod lengths;
mod named;
mod source;

use allowed::{Allowed, Entry};
use proc_macro2::TokenStream;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The list of what is too long or goes in a circle, and may for now.
const ALLOWED: &str = "xtask/allowed.txt";

/// Where the names of features and of entries of the MOS directory are constants. A mistake in one that is written elsewhere
/// makes it a name nobody knows.
const NAMES: [&str; 2] = [
    "crates/disk/src/feature/guid.rs",
    "crates/disk/src/mos_keys.rs",
];

/// Crates whose root need not forbid `unsafe`: they speak to the kernel, or ask the processor for its
/// vectors.
const MAY_BE_UNSAFE: [&str; 4] = ["env-linux", "fuse", "privilege", "simd"];

/// Crates below the engine's doors that the table's order alone would let see too much: all they
/// may use of this workspace.
const NARROW: [(&str, &[&str]); 12] = [
    // Network block devices are disks there.
    ("env-linux", &["base", "env", "nbd", "privilege"]),
    ("privilege", &["base"]),
    ("fuse", &["base", "privilege"]),
    // A door: of what is below the room it opens it sees the types that operations take.
    ("fuse-zpl", &["base", "zpl", "vfs", "fuse"]),
    ("api", &["base"]),
    ("nbd", &["base"]),
    ("control", &["base", "api"]),
    ("cli", &["base", "disk", "api", "control"]),
    ("logging", &["cli"]),
    ("zpool", &["base", "disk", "api", "control", "cli"]),
    (
        "zfs",
        // The kernel is asked for the projects of files.
        &["base", "disk", "api", "control", "cli", "fuse"],
    ),
    ("zstream", &["base", "disk", "codec", "stream", "cli"]),
];

/// Worlds and tools: outside the order. Programs may use a world; tests may use all of them.
const WORLDS: [&str; 2] = ["env-linux", "env-sim"];
const PROGRAMS: [&str; 3] = ["daemon", "zdb", "ztest"];
const TOOLS: [&str; 6] = ["testkit", "xtask", "system-tests", "bench", "fuzz", "sim"];

/// Types that stand for a whole room: file, name, most fields. State belongs into the room's parts.
const FACADES: [(&str, &str, usize); 1] = [("crates/pool/src/lib.rs", "Pool", 10)];

/// Findings: what fails the check, and what is only worth saying.
#[derive(Default)]
pub struct Report {
    pub errors: Vec<String>,
    pub warnings: Vec<String>,
    /// The graph of crates, lowest level first.
    pub levels: Vec<Vec<String>>,
    /// Crate → modules with a file of their own that name what a module above them holds.
    pub upward: BTreeMap<String, BTreeSet<String>>,
    /// Types that stand for a whole room, each with the number of its fields.
    pub facades: Vec<(&'static str, usize)>,
}

/// Checks the workspace at `root`.
///
/// `shrink`: first takes from the list of what is allowed whatever is not needed any more.
pub fn check(root: &Path, shrink: bool) -> Result<Report, String> {
    let mut report = Report::default();
    let rooms = rooms(&read(&root.join("ARCHITECTURE.md"))?)?;
    let crates = crates(root)?;
    let mut depend = BTreeMap::new();
    let mut manifests = BTreeMap::new();
    for (name, dir) in &crates {
        let manifest = read(&dir.join("Cargo.toml"))?;
        dependencies(name, &manifest, &rooms, &mut report);
        if !MAY_BE_UNSAFE.contains(&name.as_str()) {
            crate_roots(root, dir, &mut report)?;
        }
        let normal = members_used(&manifest)
            .into_iter()
            .filter(|(_, k)| *k == Use::Normal);
        depend.insert(name.clone(), normal.map(|(n, _)| n).collect());
        manifests.insert(name.clone(), manifest);
    }
    report.levels = edges::levels(&depend);
    let mut names = BTreeSet::new();
    for file in NAMES {
        names.extend(quoted(&read(&root.join(file))?));
    }
    let mut cited = Vec::new();
    let mut sources = BTreeMap::new();
    let files = tracked(root)?;
    let tree = named::Tree::new(&files, manifests.iter());
    for path in files {
        let Ok(text) = fs::read_to_string(root.join(&path)) else {
            continue; // binary, or deleted and not yet committed
        };
        file(&path, &text, &mut report);
        report.errors.extend(names_on_disk(&path, &text, &names));
        // The changelog names files that were there at its time.
        if path.ends_with(".md") && path != "CHANGELOG.md" {
            report.errors.extend(tree.check(&path, &text));
        }
        if path.ends_with(".rs") {
            sources.insert(path.clone(), Source::new(&path, &text)?);
        }
        // Its own examples are wrong on purpose.
        if !path.ends_with("xtask/src/references.rs") {
            cited.push((path, text));
        }
    }
    report.errors.extend(crate::references::check(&cited));
    let mut found = BTreeSet::new();
    for (name, dir) in &crates {
        let below = dir
            .strip_prefix(root)
            .unwrap_or(dir)
            .to_string_lossy()
            .into_owned();
        let of = |under: &str| {
            let all = sources.range(format!("{below}/{under}")..);
            let own = all.take_while(|(p, _)| p.starts_with(&format!("{below}/{under}")));
            own.map(|(_, s)| s).collect::<Vec<_>>()
        };
        let tokens = |unders: &[&str]| {
            let all = unders.iter().flat_map(|u| of(u));
            all.map(|s| s.tokens.clone()).collect()
        };
        let of_crate = edges::Sources {
            own: tokens(&["src/", "build.rs"]),
            tests: tokens(&["tests/", "benches/", "examples/"]),
            examples: of("src/").iter().map(|s| s.examples.as_str()).collect(),
        };
        report
            .errors
            .extend(edges::unused(name, &manifests[name], &of_crate));
        let (circles, upward) = circles_of(name, &below, &sources);
        found.extend(circles);
        if !upward.is_empty() {
            report.upward.insert(name.clone(), upward);
        }
    }
    for room in all_below(acts::PROGRAM, &depend) {
        let below = format!("crates/{room}/src/");
        let own = sources.range(below.clone()..);
        for (path, s) in own.take_while(|(p, _)| p.starts_with(&below)) {
            report
                .errors
                .extend(acts::check(&room, path, s.tokens.clone()));
        }
    }
    let long = sources.iter().flat_map(|(path, s)| {
        let functions = lengths::long_functions(s.tokens.clone());
        functions
            .into_iter()
            .map(|(name, lines)| ((path.clone(), name), lines))
    });
    let functions: BTreeMap<(String, String), usize> = long.collect();
    let files = sources
        .iter()
        .map(|(path, s)| (path.clone(), s.lines))
        .collect();
    let list = root.join(ALLOWED);
    let mut allowed = Allowed::parse(&read(&list)?).map_err(|e| format!("{ALLOWED}: {e}"))?;
    if shrink {
        let left = allowed.iter().filter_map(|e| match e {
            Entry::Circle { .. } => smaller_circle(e, &found),
            Entry::Upward { .. } => fewer_upward(e, &report.upward),
            e => lengths::shrunk(e, &files, &functions),
        });
        let text = allowed.with(left);
        fs::write(&list, &text).map_err(|e| format!("cannot write {ALLOWED}: {e}"))?;
        allowed = Allowed::parse(&text)?;
    }
    report
        .errors
        .extend(lengths::check(&files, &functions, &allowed));
    report.errors.extend(check_circles(&found, &allowed));
    let upward = check_upward(&report.upward, &allowed);
    report.errors.extend(upward);
    facades(&sources, &mut report);
    Ok(report)
}

/// A crate and all that it is made of.
fn all_below(name: &str, depend: &BTreeMap<String, Vec<String>>) -> BTreeSet<String> {
    let mut all = BTreeSet::from([name.to_string()]);
    let mut todo = vec![name.to_string()];
    while let Some(next) = todo.pop() {
        for below in depend.get(&next).into_iter().flatten() {
            if all.insert(below.clone()) {
                todo.push(below.clone());
            }
        }
    }
    all
}

/// A source file.
struct Source {
    lines: usize,
    tokens: TokenStream,
    /// The comments of which documentation is made.
    examples: String,
}

impl Source {
    fn new(path: &str, text: &str) -> Result<Source, String> {
        let docs = text.lines().map(str::trim_start);
        let docs = docs.filter(|l| l.starts_with("//!") || l.starts_with("///"));
        Ok(Source {
            lines: text.lines().count(),
            tokens: source::tokens(path, text)?,
            examples: docs.collect::<Vec<_>>().join("\n"),
        })
    }
}

/// The circles of a crate, of its library and of its program, and the modules that name what is above them.
fn circles_of(
    name: &str,
    below: &str,
    sources: &BTreeMap<String, Source>,
) -> (Vec<Entry>, BTreeSet<String>) {
    let read = |path: &str| {
        let s = sources.get(path)?;
        Some(source::split_tests(s.tokens.clone()).0)
    };
    let (mut out, mut upward) = (Vec::new(), BTreeSet::new());
    for root in ["lib", "main"] {
        let modules = circles::Modules::read(&format!("{below}/src/{root}.rs"), &read);
        upward.extend(modules.upward().iter().map(|m| m.join("::")));
        for (parent, modules) in modules.circles() {
            let room = [vec![name.to_string()], parent].concat().join("::");
            out.push(Entry::Circle { room, modules });
        }
    }
    (out, upward)
}

/// The number of today, if it is smaller than the one that is allowed; `None`: nothing is left.
fn fewer_upward(e: &Entry, found: &BTreeMap<String, BTreeSet<String>>) -> Option<Entry> {
    let Entry::Upward { room, count } = e else {
        return None;
    };
    let now = found.get(room)?.len();
    Some(Entry::Upward {
        room: room.clone(),
        count: now.min(*count),
    })
}

/// Crates in which more modules name what is above them than is allowed, or fewer.
fn check_upward(found: &BTreeMap<String, BTreeSet<String>>, allowed: &Allowed) -> Vec<String> {
    let mut most: BTreeMap<&str, usize> = BTreeMap::new();
    for e in allowed.iter() {
        if let Entry::Upward { room, count } = e {
            most.insert(room, *count);
        }
    }
    let mut out = Vec::new();
    for (room, modules) in found {
        let most = most.remove(room.as_str()).unwrap_or(0);
        let now = modules.len();
        if now > most {
            let all = modules.iter().cloned().collect::<Vec<_>>().join(", ");
            out.push(format!(
                "{room}: {now} modules name what a module above them holds, {most} may: {all}"
            ));
        } else if now < most {
            out.push(format!(
                "upward {room} {most}: only {now} are left; `cargo xtask tidy --shrink` lowers the number"
            ));
        }
    }
    out.extend(most.into_iter().map(|(room, count)| {
        format!("upward {room} {count}: none is left; `cargo xtask tidy --shrink` takes it off the list")
    }));
    out
}

/// Counts the fields of types that stand for a room.
fn facades(sources: &BTreeMap<String, Source>, report: &mut Report) {
    for (path, name, most) in FACADES {
        let tokens = sources.get(path).map(|s| s.tokens.clone());
        let Some(count) = tokens.and_then(|t| source::fields(t, name)) else {
            report
                .errors
                .push(format!("{path}: there is no type {name} with fields"));
            continue;
        };
        report.facades.push((name, count));
        if count > most {
            report.errors.push(format!(
                "{path}: {name} has {count} fields, {most} are allowed: its state belongs into the parts of the room"
            ));
        }
    }
}

/// The largest circle of today within one that is allowed.
fn smaller_circle(e: &Entry, found: &BTreeSet<Entry>) -> Option<Entry> {
    found
        .iter()
        .filter(|f| within(f, e))
        .max_by_key(|f| members(f))
        .cloned()
}

fn members(e: &Entry) -> usize {
    match e {
        Entry::Circle { modules, .. } => modules.len(),
        _ => 0,
    }
}

fn within(small: &Entry, large: &Entry) -> bool {
    match (small, large) {
        (
            Entry::Circle {
                room: r,
                modules: m,
            },
            Entry::Circle { room, modules },
        ) => r == room && m.iter().all(|m| modules.contains(m)),
        _ => false,
    }
}

/// Circles that are not within one that is allowed, and allowed ones that are gone or smaller.
fn check_circles(found: &BTreeSet<Entry>, allowed: &Allowed) -> Vec<String> {
    let mut out = Vec::new();
    for e in found
        .iter()
        .filter(|f| !allowed.iter().any(|a| within(f, a)))
    {
        if let Entry::Circle { room, modules } = e {
            let all = modules.join(", ");
            out.push(format!(
                "{room}: these modules import each other in a circle: {all}"
            ));
        }
    }
    for a in allowed.iter().filter(|a| matches!(a, Entry::Circle { .. })) {
        if !found.contains(a) {
            out.push(format!(
                "{a}: allowed, but no such circle is left; `cargo xtask tidy --shrink` takes it off the list"
            ));
        }
    }
    out
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))
}

/// Crate → row of the table of rooms.
fn rooms(text: &str) -> Result<BTreeMap<String, usize>, String> {
    let mut out = BTreeMap::new();
    let rows = text
        .lines()
        .skip_while(|l| !l.starts_with("| Crate"))
        .skip(2)
        .take_while(|l| l.starts_with('|'));
    for (n, row) in rows.enumerate() {
        let cell = row.split('|').nth(1).unwrap_or("");
        for name in cell.split(',') {
            let name = name.trim().trim_matches('`');
            out.insert(name.to_string(), n);
        }
    }
    if out.len() < 2 {
        return Err("ARCHITECTURE.md has no table of rooms".into());
    }
    Ok(out)
}

/// Name and folder of every member.
fn crates(root: &Path) -> Result<Vec<(String, PathBuf)>, String> {
    let mut dirs = vec![root.join("xtask")];
    let list = fs::read_dir(root.join("crates")).map_err(|e| format!("no crates: {e}"))?;
    dirs.extend(list.flatten().map(|e| e.path()));
    dirs.retain(|d| d.join("Cargo.toml").is_file());
    dirs.sort();
    let name = |d: &PathBuf| d.file_name().map(|n| n.to_string_lossy().into_owned());
    Ok(dirs
        .into_iter()
        .filter_map(|d| Some((name(&d)?, d)))
        .collect())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Normal,
    Test,
}

/// Workspace crates that a manifest depends on. Only what manifests of this workspace look like
/// is understood: one dependency a line, members by `path`.
fn members_used(manifest: &str) -> Vec<(String, Use)> {
    let mut out = Vec::new();
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
        // What only a feature brings is there for tests.
        let section = match line.contains("optional = true") {
            true => section.map(|_| Use::Test),
            false => section,
        };
        let (Some(kind), Some((_, rest))) = (section, line.split_once("path")) else {
            continue;
        };
        let path = rest.split('"').nth(1).unwrap_or("");
        if let Some(name) = path.rsplit('/').next() {
            out.push((name.to_string(), kind));
        }
    }
    out
}

fn dependencies(name: &str, manifest: &str, rooms: &BTreeMap<String, usize>, report: &mut Report) {
    let Some(own) = rooms.get(name) else {
        report.errors.push(format!(
            "crate {name} is not in the table of rooms of ARCHITECTURE.md"
        ));
        return;
    };
    let narrow = NARROW.iter().find(|(n, _)| *n == name).map(|(_, l)| *l);
    for (to, kind) in members_used(manifest) {
        let world = WORLDS.contains(&to.as_str());
        let tool = TOOLS.contains(&to.as_str());
        let down = rooms.get(&to).is_some_and(|r| r < own) && !world && !tool;
        let allowed = match kind {
            Use::Normal if TOOLS.contains(&name) => true,
            Use::Normal => match narrow {
                Some(list) => list.contains(&to.as_str()),
                None => down || (world && PROGRAMS.contains(&name)),
            },
            Use::Test => down || world || tool,
        };
        // Tests may look down from a door; it makes the room build twice, so it is worth saying.
        if !allowed && kind == Use::Test && rooms.contains_key(&to) {
            report.warnings.push(format!(
                "tests of {name} depend on {to}, a room that uses it"
            ));
            continue;
        }
        if !allowed {
            report.errors.push(format!(
                "{name} must not depend on {to}: dependencies point up the table of rooms"
            ));
        }
    }
}

/// Roots of libraries and programs, integration tests included.
fn crate_roots(root: &Path, dir: &Path, report: &mut Report) -> Result<(), String> {
    let mut roots = vec![dir.join("src/lib.rs"), dir.join("src/main.rs")];
    for sub in ["src/bin", "tests", "examples", "benches"] {
        let list = fs::read_dir(dir.join(sub)).into_iter().flatten().flatten();
        let sources = list.map(|e| e.path());
        roots.extend(sources.filter(|p| p.extension().is_some_and(|e| e == "rs")));
    }
    for path in roots.iter().filter(|p| p.is_file()) {
        // Programs beside a library, tests and examples: the library's root speaks for the
        // crate only if there is one; tests may need `unsafe` to call the system.
        let test = path.parent() != Some(&dir.join("src"));
        let text = read(path)?;
        let shown = path.strip_prefix(root).unwrap_or(path).display();
        if !test && !text.contains("#![forbid(unsafe_code)]") {
            report
                .errors
                .push(format!("{shown}: has no #![forbid(unsafe_code)]"));
        } else if test && has_word(&text, "unsafe") && !text.contains("#![allow(unsafe_code)]") {
            report
                .errors
                .push(format!("{shown}: uses unsafe without saying so at the top"));
        }
    }
    Ok(())
}

fn has_word(text: &str, word: &str) -> bool {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.lines()
        .map(|l| l.split("//").next().unwrap_or(l))
        .any(|l| {
            l.match_indices(word).any(|(i, _)| {
                !part(l[..i].chars().next_back()) && !part(l[i + word.len()..].chars().next())
            })
        })
}

/// Files that git knows of; all files if this is no checkout.
fn tracked(root: &Path) -> Result<Vec<String>, String> {
    if !root.join(".git").exists() {
        let mut out = Vec::new();
        walk(root, Path::new(""), &mut out);
        return Ok(out);
    }
    let out = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(root)
        .output()
        .map_err(|e| format!("cannot run git: {e}"))?;
    if !out.status.success() {
        return Err(format!(
            "git ls-files: {}",
            String::from_utf8_lossy(&out.stderr)
        ));
    }
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    Ok(text
        .split('\0')
        .filter(|p| !p.is_empty())
        .map(str::to_string)
        .collect())
}

fn walk(root: &Path, below: &Path, out: &mut Vec<String>) {
    for e in fs::read_dir(root.join(below))
        .into_iter()
        .flatten()
        .flatten()
    {
        let path = below.join(e.file_name());
        match e.file_type() {
            Ok(t) if t.is_dir() && e.file_name() != "target" && e.file_name() != ".cache" => {
                walk(root, &path, out)
            }
            Ok(t) if t.is_file() => out.push(path.to_string_lossy().into_owned()),
            _ => {}
        }
    }
}

/// What stands in quotation marks.
fn quoted(text: &str) -> BTreeSet<String> {
    text.split('"')
        .skip(1)
        .step_by(2)
        .map(str::to_string)
        .collect()
}

/// Names on disk that a source file writes out, instead of the constants there are. Tests may: they are to find a wrong
/// constant.
fn names_on_disk(path: &str, text: &str, names: &BTreeSet<String>) -> Vec<String> {
    let source = path.ends_with(".rs") && path.starts_with("crates/") && path.contains("/src/");
    let test = ["tests.rs", "testing.rs"].iter().any(|n| path.ends_with(n));
    let test = test || path.contains("/tests/");
    if !source || test || path.starts_with("crates/disk/") {
        return Vec::new();
    }
    let mut out = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let words = line.split('"').skip(1).step_by(2);
        for name in words.filter(|w| names.contains(*w)) {
            let n = n + 1;
            out.push(format!(
                "{path}:{n}: {name} is written out: take the constant of {}",
                NAMES.join(" or ")
            ));
        }
    }
    out
}

fn file(path: &str, text: &str, report: &mut Report) {
    // Put together here, so that this file does not find itself.
    let undone = ["todo", "unimplemented", "dbg"].map(|w| format!("{w}!("));
    for (n, line) in text.lines().enumerate() {
        let at = format!("{path}:{}", n + 1);
        if path.ends_with(".rs") {
            if let Some(w) = undone.iter().find(|w| line.contains(w.as_str())) {
                report.errors.push(format!("{at}: {w}…)"));
            }
        }
        if let Some(p) = machine_path(line) {
            report
                .errors
                .push(format!("{at}: a path of one machine: {p}"));
        }
    }
}

/// The first absolute path on a line that leads into somebody's home or workplace.
fn machine_path(line: &str) -> Option<&str> {
    for top in ["home", "root", "work"] {
        let want = format!("/{top}/");
        for (i, _) in line.match_indices(&want) {
            let before = line[..i].chars().next_back();
            let inside =
                |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '}' | ')' | '>');
            let after = line[i + want.len()..].chars().next();
            if before.is_some_and(inside) || !after.is_some_and(|c| c.is_alphanumeric()) {
                continue;
            }
            let rest = &line[i..];
            let end = rest.find(|c: char| !inside(c) && c != '/');
            return Some(&rest[..end.unwrap_or(rest.len())]);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "x\n| Crate | Holds |\n|---|---|\n| `base` | a |\n| `env` | b |\n\
        | `disk` | b |\n| `pool` | c |\n| `fuse` | c |\n| `daemon` | c |\n| `zpool`, `zdb` | d |\n\
        | `env-linux` | e |\n| `testkit`, `xtask` | f |\n\n| no | no |\n";

    fn errors(name: &str, manifest: &str) -> Vec<String> {
        let mut r = Report::default();
        dependencies(name, manifest, &rooms(TABLE).unwrap(), &mut r);
        r.errors
    }

    #[test]
    fn names_on_disk_are_written_once() {
        let names = quoted("pub const A: &str = \"org:a\";\npub const B: &str = \"org:b\";");
        let found = |path: &str| names_on_disk(path, "x\nis(\"org:a\", \"org:c\")", &names);
        let e = found("crates/pool/src/x.rs");
        assert_eq!(e.len(), 1);
        assert!(e[0].starts_with("crates/pool/src/x.rs:2: org:a"), "{e:?}");
        assert!(found("crates/disk/src/x.rs").is_empty());
        assert!(found("crates/pool/tests/x.rs").is_empty());
        assert!(found("crates/pool/src/x/tests.rs").is_empty());
    }

    #[test]
    fn direction() {
        let dep = |n: &str| format!("[dependencies]\n{n} = {{ path = \"../{n}\" }}\n");
        for (from, to, ok) in [
            ("disk", "base", true),
            ("disk", "pool", false),
            ("disk", "disk", false),
            ("pool", "env-linux", false),
            ("daemon", "env-linux", true),
            ("zpool", "daemon", false),
            ("zpool", "pool", false),
            ("zpool", "zdb", false),
            ("zdb", "pool", true),
            ("fuse", "disk", false),
            ("pool", "testkit", false),
            ("testkit", "pool", true),
            ("env-linux", "env", true),
            ("env-linux", "disk", false),
        ] {
            let e = errors(from, &dep(to));
            assert_eq!(e.is_empty(), ok, "{from} → {to}: {e:?}");
        }
        let test = "[dependencies]\nserde = \"1\"\n[dev-dependencies]\n\
                    testkit = { path = \"../testkit\" }\nenv-linux = { path = \"../env-linux\" }\n";
        assert!(errors("disk", test).is_empty());
        let up = "[dependencies]\npool = { path = \"../pool\", features = [\"x\"] }\n";
        assert_eq!(errors("disk", up).len(), 1);
        assert!(errors("disk", &up.replace("[", "[dev-").replace("[dev-\"", "[\"")).is_empty());
        assert_eq!(errors("newcomer", "").len(), 1);
    }

    #[test]
    fn lines() {
        let home = ["", "home", "me", "x y"].join("/");
        assert_eq!(machine_path(&home), Some(&home[..home.len() - 2]));
        assert_eq!(
            machine_path(&format!("see \"{home}\"")).map(str::len),
            Some(10)
        );
        let inside = ["", "proc", "1", "root", "x"].join("/");
        assert_eq!(machine_path(&format!("/export/home/x, {inside}")), None);
        assert_eq!(machine_path("mountpoint=/home or /home/"), None);
        let mut r = Report::default();
        file("a.rs", &format!("ok\n{}!()\n", "todo"), &mut r);
        file("b.md", &format!("ok\n{}!()\n", "todo"), &mut r);
        assert_eq!(r.errors.len(), 1, "{:?}", r.errors);
    }

    #[test]
    fn circles_are_held_against_the_list() {
        let entries = |text: &str| Allowed::parse(text).unwrap();
        let found: BTreeSet<Entry> = entries("circle a x y z").iter().cloned().collect();
        let errors = |list: &str| check_circles(&found, &entries(list)).len();
        assert_eq!(errors("circle a x y z"), 0);
        assert_eq!(errors(""), 1);
        assert_eq!(errors("circle b x y z"), 2, "another crate's");
        assert_eq!(errors("circle a x y"), 2, "one came into the circle");
        assert_eq!(errors("circle a w x y z"), 1, "one left the circle");
        assert_eq!(errors("circle a x y z\ncircle a p q"), 1, "one is gone");
        let shrunk = |list: &str| entries(list).iter().find_map(|e| smaller_circle(e, &found));
        assert_eq!(shrunk("circle a w x y z").as_ref(), found.first());
        assert_eq!(shrunk("circle a x y"), None, "it only shrinks");
    }

    #[test]
    fn words() {
        assert!(has_word("a unsafe {", "unsafe"));
        assert!(!has_word("forbid(unsafe_code) // unsafe", "unsafe"));
    }
}
