//! Circles of imports between the modules of one crate.
//!
//! Siblings are compared: if anything in module `a` or below it names anything in `b` or below it, `a` imports `b`. A
//! module and those above it may name each other: a child is part of its parent. Names that a module brings in with
//! `use` are followed to where they come from. Code for tests does not count.
//!
//! Children that name what a module above them holds are counted apart: such a circle is in no file's way, but the
//! parent cannot be understood without the child, nor the child without the parent.

use super::source::{group, is_colons, is_ident, is_punct};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};

/// A module's place in its crate: names from the root.
type Path = Vec<String>;

#[derive(Default)]
struct Module {
    /// Every path in it that begins with `crate`, `self` or `super`.
    named: Vec<Path>,
    /// What `use` brings in: the name here, and the path.
    brought: BTreeMap<String, Path>,
    /// It is part of its parent's file.
    inline: bool,
}

/// The modules of a crate.
#[derive(Default)]
pub struct Modules(BTreeMap<Path, Module>);

impl Modules {
    /// Reads a crate from its root file. `read` gives the tokens of a file, without code for tests, if there is one.
    pub fn read(root: &str, read: &dyn Fn(&str) -> Option<TokenStream>) -> Modules {
        let mut out = Modules::default();
        let dir = root.rsplit_once('/').map_or("", |(d, _)| d);
        if let Some(t) = read(root) {
            out.add(Vec::new(), t, (dir, false), read);
        }
        out
    }

    /// Adds a module, whose children's files are in `dir`, and what is below it.
    fn add(
        &mut self,
        path: Path,
        tokens: TokenStream,
        (dir, inline): (&str, bool),
        read: &dyn Fn(&str) -> Option<TokenStream>,
    ) {
        let mut module = Module {
            inline,
            ..Module::default()
        };
        let list: Vec<TokenTree> = tokens.into_iter().collect();
        paths(&list, &mut module.named);
        let mut other_file = None;
        for (at, t) in list.iter().enumerate() {
            if is_punct(Some(t), '#') {
                other_file = path_attribute(list.get(at + 1)).or(other_file);
            } else if is_ident(Some(t), "use")
                && !is_punct(at.checked_sub(1).and_then(|p| list.get(p)), '$')
            {
                let end = list[at..].iter().position(|t| is_punct(Some(t), ';'));
                let tree = &list[at + 1..end.map_or(list.len(), |e| at + e)];
                brought(tree, &Vec::new(), &mut module.brought);
            } else if is_ident(Some(t), "mod") {
                let Some(TokenTree::Ident(name)) = list.get(at + 1) else {
                    continue;
                };
                let name = name.to_string();
                let below = format!("{dir}/{name}");
                let child = [path.as_slice(), std::slice::from_ref(&name)].concat();
                if let Some(inside) = group(list.get(at + 2), Delimiter::Brace) {
                    self.add(child, inside, (&below, true), read);
                } else if let Some(file) = other_file.take() {
                    if let Some(t) = read(&format!("{dir}/{file}")) {
                        self.add(child, t, (&below, false), read);
                    }
                } else if let Some(t) =
                    read(&format!("{below}.rs")).or_else(|| read(&format!("{below}/mod.rs")))
                {
                    self.add(child, t, (&below, false), read);
                }
            }
        }
        self.0.insert(path, module);
    }

    /// The module that a path named in `from` leads to; `None` for other crates.
    fn resolve(&self, from: &Path, named: &[String], depth: usize) -> Option<Path> {
        let mut at = from.clone();
        let mut rest = named;
        let mut inside = false;
        while let [first, more @ ..] = rest {
            match first.as_str() {
                "crate" => at.clear(),
                "self" => {}
                "super" => drop(at.pop()),
                _ => break,
            }
            (rest, inside) = (more, true);
        }
        while let [first, more @ ..] = rest {
            let child = [at.as_slice(), std::slice::from_ref(first)].concat();
            if self.0.contains_key(&child) {
                (at, rest, inside) = (child, more, true);
                continue;
            }
            if depth < 8 {
                if let Some(whence) = self.0.get(&at).and_then(|m| m.brought.get(first)) {
                    let whole = [whence.as_slice(), more].concat();
                    return self
                        .resolve(&at, &whole, depth + 1)
                        .or(inside.then_some(at));
                }
            }
            break;
        }
        inside.then_some(at)
    }

    /// Parent → child → the siblings that the child imports.
    fn imports(&self) -> BTreeMap<Path, BTreeMap<String, BTreeSet<String>>> {
        let mut out: BTreeMap<Path, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
        for (from, module) in &self.0 {
            for named in &module.named {
                let Some(to) = self.resolve(from, named, 0) else {
                    continue;
                };
                let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
                if let (Some(a), Some(b)) = (from.get(common), to.get(common)) {
                    let siblings = out.entry(from[..common].to_vec()).or_default();
                    siblings.entry(a.clone()).or_default().insert(b.clone());
                }
            }
        }
        out
    }

    /// The module whose file a module is in.
    fn file_of(&self, module: &[String]) -> Path {
        let mut at = module.to_vec();
        while self.0.get(&at).is_some_and(|m| m.inline) {
            at.pop();
        }
        at
    }

    /// The modules with a file of their own that name something a module above them holds.
    pub fn upward(&self) -> BTreeSet<Path> {
        let mut out = BTreeSet::new();
        for (from, module) in &self.0 {
            let file = self.file_of(from);
            let mut named = module.named.iter();
            let is_above = |to: Path| {
                let to = self.file_of(&to);
                to.len() < file.len() && file.starts_with(&to)
            };
            if named.any(|n| self.resolve(from, n, 0).is_some_and(is_above)) {
                out.insert(file.clone());
            }
        }
        out
    }

    /// Every set of siblings that import each other in a circle, with their parent.
    pub fn circles(&self) -> Vec<(Path, Vec<String>)> {
        let mut out = Vec::new();
        for (parent, imports) in self.imports() {
            let reached: BTreeMap<&String, BTreeSet<&String>> = imports
                .keys()
                .map(|m| (m, reachable(m, &imports)))
                .collect();
            let mut seen = BTreeSet::new();
            for (m, to) in &reached {
                let back = |o: &&&String| reached.get(**o).is_some_and(|r| r.contains(*m));
                let circle: Vec<String> = to.iter().filter(back).map(|o| o.to_string()).collect();
                if circle.len() > 1 && seen.insert(circle.clone()) {
                    out.push((parent.clone(), circle));
                }
            }
        }
        out
    }
}

/// What is imported from a module on, directly or not.
fn reachable<'a>(
    from: &String,
    imports: &'a BTreeMap<String, BTreeSet<String>>,
) -> BTreeSet<&'a String> {
    let mut out = BTreeSet::new();
    let mut next: Vec<&String> = imports.get(from).into_iter().flatten().collect();
    while let Some(m) = next.pop() {
        if out.insert(m) {
            next.extend(imports.get(m).into_iter().flatten());
        }
    }
    out
}

fn path_attribute(t: Option<&TokenTree>) -> Option<String> {
    let list: Vec<TokenTree> = group(t, Delimiter::Bracket)?.into_iter().collect();
    let text = list
        .get(2)
        .filter(|_| is_ident(list.first(), "path"))?
        .to_string();
    Some(text.trim_matches('"').to_string())
}

/// Every path that begins with `crate`, `self` or `super`, anywhere but in inline modules, which have their own.
fn paths(list: &[TokenTree], out: &mut Vec<Path>) {
    const WORDS: [&str; 3] = ["crate", "self", "super"];
    for (at, t) in list.iter().enumerate() {
        let before = |n: usize| at.checked_sub(n).and_then(|p| list.get(p));
        let begins = is_colons(list, at + 1) && !is_punct(before(1), ':');
        match t {
            TokenTree::Group(g) => {
                if is_ident(before(2), "mod") || is_punct(before(1), ':') {
                    continue; // the latter is part of a path
                }
                paths(&g.stream().into_iter().collect::<Vec<_>>(), out);
            }
            t if WORDS.iter().any(|w| is_ident(Some(t), w)) && begins => {
                branches(&list[at..], &Vec::new(), &mut |path, _| out.push(path));
            }
            _ => {}
        }
    }
}

/// The branches of one path with groups, `a::{b, c::d as e}`, each with the name it gets; `*` leads to the module.
fn branches(list: &[TokenTree], above: &Path, found: &mut dyn FnMut(Path, Option<String>)) {
    let mut path = above.clone();
    let mut at = 0;
    loop {
        match list.get(at) {
            Some(TokenTree::Ident(i)) => {
                // `self` in a group is the module itself.
                if *i != "self" || path.is_empty() {
                    path.push(i.to_string());
                }
            }
            Some(TokenTree::Group(g)) if g.delimiter() == Delimiter::Brace => {
                let inside: Vec<TokenTree> = g.stream().into_iter().collect();
                for part in inside
                    .split(|t| is_punct(Some(t), ','))
                    .filter(|p| !p.is_empty())
                {
                    branches(part, &path, found);
                }
                return;
            }
            _ => return found(path, None),
        }
        if !is_colons(list, at + 1) {
            let name = match (is_ident(list.get(at + 1), "as"), list.get(at + 2)) {
                (true, Some(TokenTree::Ident(i))) => Some(i.to_string()),
                _ => path.last().cloned(),
            };
            return found(path, name);
        }
        at += 3;
    }
}

/// What a `use` brings in, without globs.
fn brought(tree: &[TokenTree], above: &Path, out: &mut BTreeMap<String, Path>) {
    branches(tree, above, &mut |path, name| {
        if let Some(name) = name {
            out.insert(name, path);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::super::source::{split_tests, tokens};
    use super::*;

    fn modules(files: &[(&str, &str)]) -> Modules {
        let read = |path: &str| {
            let (_, text) = files.iter().find(|(p, _)| *p == path)?;
            Some(split_tests(tokens(path, text).unwrap()).0)
        };
        Modules::read("src/lib.rs", &read)
    }

    fn circles(files: &[(&str, &str)]) -> Vec<(Path, Vec<String>)> {
        modules(files).circles()
    }

    #[test]
    fn a_child_that_names_what_its_parent_holds_is_counted() {
        let lib = (
            "src/lib.rs",
            "mod a; mod b; pub use b::B; pub struct Root; mod i { use super::Root; }",
        );
        for (a, counted) in [
            ("use crate::Root;", true),
            ("fn f(r: &super::Root) {}", true),
            ("use super::*;", true),
            ("mod inside { use super::super::Root; }", true),
            // What the root only passes on is held by another module.
            ("use crate::{b::B as C, B};", false),
            ("mod inside { use super::f; } fn f() {}", false),
            ("#[cfg(test)] mod tests { use crate::Root; }", false),
        ] {
            let found = modules(&[lib, ("src/a.rs", a), ("src/b.rs", "pub struct B;")]).upward();
            let want: BTreeSet<Path> = match counted {
                true => [vec!["a".to_string()]].into(),
                false => BTreeSet::new(),
            };
            assert_eq!(found, want, "{a}");
        }
        let below = [
            lib,
            ("src/a.rs", "mod x; pub struct A;"),
            ("src/a/x.rs", "use super::A;"),
            ("src/b.rs", ""),
        ];
        let want: Path = vec!["a".into(), "x".into()];
        assert_eq!(modules(&below).upward(), [want].into());
    }

    #[test]
    fn two_modules_that_import_each_other() {
        let lib = ("src/lib.rs", "mod a; mod b; pub use a::A; use b::f as g;");
        for (a, b, circle) in [
            ("use crate::b::f;", "fn f() { crate::a::x(); }", true),
            ("use super::{b, c};", "fn f() { m!(super::a::x) }", true),
            // By way of what the root brings in.
            ("use crate::g;", "use crate::A;", true),
            ("use crate::b::f;", "use crate::{c, B};", false),
            // Comments, text, other crates, tests.
            (
                "use crate::b::f;",
                "// crate::a\nconst T: &str = \"crate::a::x\"; use x::a;",
                false,
            ),
            (
                "use crate::b::f;",
                "#[cfg(test)] mod tests { use crate::a::x; }",
                false,
            ),
            // An inline module's parent is the module of the file.
            (
                "mod i { use super::super::b::f; }",
                "use crate::a::i;",
                true,
            ),
        ] {
            let found = circles(&[lib, ("src/a.rs", a), ("src/b.rs", b)]);
            assert_eq!(!found.is_empty(), circle, "{a} {b}: {found:?}");
        }
    }

    #[test]
    fn children_belong_to_their_parent() {
        let lib = ("src/lib.rs", "mod a; mod b; #[path = \"other.rs\"] mod c;");
        let found = circles(&[
            lib,
            ("src/a.rs", "mod x; mod y; pub use x::X; use crate::b::f;"),
            ("src/a/x.rs", "use super::y::Y; use crate::a::Z;"),
            ("src/a/y/mod.rs", "use crate::a::X;"),
            ("src/b.rs", "use crate::c::g;"),
            ("src/other.rs", "use crate::a::y::Y;"),
        ]);
        let want = |p: &[&str], m: &[&str]| {
            let owned = |l: &[&str]| l.iter().map(|s| s.to_string()).collect::<Vec<_>>();
            (owned(p), owned(m))
        };
        assert_eq!(
            found,
            [want(&[], &["a", "b", "c"]), want(&["a"], &["x", "y"])]
        );
    }
}
