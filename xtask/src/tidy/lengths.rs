//! Lengths of files and functions.

use super::allowed::{Allowed, Entry};
use super::source::{group, is_ident, is_punct};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::BTreeMap;

/// Lines beyond which a file or a function must be in the list of what is allowed.
pub const FILE: usize = 1000;
pub const FUNCTION: usize = 120;

/// Every function longer than [`FUNCTION`] lines, as `Type::name` or `name`, and its lines from `fn` to the closing brace.
/// Of several with one name the longest counts.
pub fn long_functions(all: TokenStream) -> BTreeMap<String, usize> {
    let mut out = BTreeMap::new();
    functions(all, "", &mut |name, lines| {
        if lines > FUNCTION {
            let longest = out.entry(name).or_insert(lines);
            *longest = lines.max(*longest);
        }
    });
    out
}

fn functions(all: TokenStream, of: &str, found: &mut dyn FnMut(String, usize)) {
    let list: Vec<TokenTree> = all.into_iter().collect();
    // The type of the `impl` whose braces come next.
    let mut implemented = None;
    for (at, t) in list.iter().enumerate() {
        match t {
            TokenTree::Group(g) if g.delimiter() == Delimiter::Brace => {
                let inside = implemented.take();
                functions(g.stream(), inside.as_deref().unwrap_or(of), found);
            }
            TokenTree::Group(g) => functions(g.stream(), of, found),
            t if is_ident(Some(t), "impl") => implemented = type_of(&list[at + 1..]),
            t if is_ident(Some(t), "fn") => {
                let Some(TokenTree::Ident(name)) = list.get(at + 1) else {
                    continue; // a type: fn(u8)
                };
                let ends = |t: &&TokenTree| {
                    group(Some(t), Delimiter::Brace).is_some() || is_punct(Some(t), ';')
                };
                if let Some(TokenTree::Group(body)) = list[at..].iter().find(ends) {
                    let first = t.span().start().line;
                    let lines = body.span_close().start().line + 1 - first;
                    let full = if of.is_empty() {
                        name.to_string()
                    } else {
                        format!("{of}::{name}")
                    };
                    found(full, lines);
                }
            }
            _ => {}
        }
    }
}

/// The type that an `impl` is for: `impl<T> Trait for Type<T> {`. `None` of `-> impl Trait`, which no braces follow at once.
fn type_of(list: &[TokenTree]) -> Option<String> {
    let mut depth = 0;
    let mut name = None;
    for (at, t) in list.iter().enumerate() {
        match t {
            TokenTree::Punct(p) if p.as_char() == '<' => depth += 1,
            TokenTree::Punct(p) if p.as_char() == '>' => {
                // Not the arrow of a function's type.
                depth -= i32::from(at == 0 || !is_punct(list.get(at - 1), '-'));
            }
            TokenTree::Punct(p) if p.as_char() == ';' => return None,
            TokenTree::Group(g) if g.delimiter() == Delimiter::Brace => return name,
            t if is_ident(Some(t), "where") => return name,
            t if is_ident(Some(t), "for") && depth == 0 => name = None,
            TokenTree::Ident(i) if depth == 0 => {
                let path_goes_on = is_punct(list.get(at + 1), ':');
                if name.is_none() && !path_goes_on && *i != "dyn" {
                    name = Some(i.to_string());
                }
            }
            _ => {}
        }
    }
    None
}

/// What is too long and not allowed, what got longer than allowed, and what is allowed without need.
///
/// `files`: path and lines of all source files. `functions`: path and name of long ones, and their lines.
pub fn check(
    files: &BTreeMap<String, usize>,
    functions: &BTreeMap<(String, String), usize>,
    allowed: &Allowed,
) -> Vec<String> {
    let mut out = Vec::new();
    for (path, lines) in files.iter().filter(|(_, l)| **l > FILE) {
        let most = allowed.iter().find_map(|e| match e {
            Entry::File { path: p, lines } if p == path => Some(*lines),
            _ => None,
        });
        complain(path, *lines, FILE, most, &mut out);
    }
    for ((path, name), lines) in functions {
        let most = allowed.iter().find_map(|e| match e {
            Entry::Function {
                path: p,
                name: n,
                lines,
            } if p == path && n == name => Some(*lines),
            _ => None,
        });
        complain(&format!("{path}: {name}"), *lines, FUNCTION, most, &mut out);
    }
    for e in allowed
        .iter()
        .filter(|e| shrunk(e, files, functions).is_none())
    {
        out.push(format!("{e} is allowed, but not needed any more; `cargo xtask tidy --shrink` takes it off the list"));
    }
    out
}

fn complain(what: &str, lines: usize, limit: usize, most: Option<usize>, out: &mut Vec<String>) {
    match most {
        None => out.push(format!(
            "{what}: {lines} lines; cut it along its subjects (limit {limit})"
        )),
        Some(m) if lines > m => out.push(format!(
            "{what}: {lines} lines, {m} before; it is on the list of what must get shorter"
        )),
        Some(_) => {}
    }
}

/// An entry with today's lines, `None` if it is not needed any more. Circles are as they were.
pub fn shrunk(
    e: &Entry,
    files: &BTreeMap<String, usize>,
    functions: &BTreeMap<(String, String), usize>,
) -> Option<Entry> {
    match e {
        Entry::File { path, lines } => {
            let now = *files.get(path).filter(|l| **l > FILE)?;
            Some(Entry::File {
                path: path.clone(),
                lines: now.min(*lines),
            })
        }
        Entry::Function { path, name, lines } => {
            let now = *functions.get(&(path.clone(), name.clone()))?;
            Some(Entry::Function {
                path: path.clone(),
                name: name.clone(),
                lines: now.min(*lines),
            })
        }
        Entry::Circle { .. } | Entry::Upward { .. } => Some(e.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::source::tokens;
    use super::*;

    #[test]
    fn functions_are_measured_and_named() {
        let body = "    let _ = \"}\"; // }\n".repeat(FUNCTION);
        let text = format!(
            "fn short() {{}}\nfn long(f: fn(u8)) -> impl Fn() {{\n{body}}}\nstruct A<T>(T);\n\
             impl<T: Fn() -> u8> std::fmt::Display for m::A<T> where T: X {{\n fn fmt(&self) {{\n{body}}}\n}}\n\
             impl A<u8> {{ fn edge() {{\n{}}} }}\n trait B {{ fn no(); fn c() {{\n{body}}} }}",
            &body[..body.len() / FUNCTION * (FUNCTION - 2)]
        );
        let long = long_functions(tokens("x", &text).unwrap());
        let names: Vec<&str> = long.keys().map(String::as_str).collect();
        assert_eq!(names, ["A::fmt", "c", "long"]);
        assert_eq!(long["long"], FUNCTION + 2);
    }

    #[test]
    fn the_list_only_shrinks() {
        let files = BTreeMap::from([("a.rs".to_string(), 1200), ("b.rs".to_string(), 900)]);
        let functions = BTreeMap::from([(("a.rs".to_string(), "f".to_string()), 130)]);
        let errors = |list: &str| check(&files, &functions, &Allowed::parse(list).unwrap());
        assert_eq!(errors("").len(), 2, "{:?}", errors(""));
        assert!(errors("file a.rs 1200\nfunction a.rs f 130").is_empty());
        assert!(errors("file a.rs 1300\nfunction a.rs f 140").is_empty());
        let longer = errors("file a.rs 1199\nfunction a.rs f 129");
        assert_eq!(longer.len(), 2, "{longer:?}");
        for stale in ["file b.rs 1100", "file c.rs 1100", "function a.rs g 130"] {
            let e = errors(&format!("file a.rs 1200\nfunction a.rs f 130\n{stale}"));
            assert_eq!(e.len(), 1, "{e:?}");
            assert!(e[0].contains("--shrink"));
        }
        let lower = |list: &str| {
            let list = Allowed::parse(list).unwrap();
            let left = list.iter().filter_map(|e| shrunk(e, &files, &functions));
            left.map(|e| e.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(lower("file a.rs 1300\nfile b.rs 1100"), ["file a.rs 1200"]);
        assert_eq!(lower("file a.rs 1100"), ["file a.rs 1100"]);
    }
}
