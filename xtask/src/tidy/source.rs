//! Rust source as tokens: comments and strings are out of the way, and braces are matched.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// The tokens of a file.
///
/// Errors: what the lexer did not understand, and where.
pub fn tokens(path: &str, text: &str) -> Result<TokenStream, String> {
    text.parse().map_err(|e: proc_macro2::LexError| {
        format!("{path}:{}: not Rust: {e}", e.span().start().line)
    })
}

pub fn is_ident(t: Option<&TokenTree>, word: &str) -> bool {
    matches!(t, Some(TokenTree::Ident(i)) if *i == word)
}

pub fn is_punct(t: Option<&TokenTree>, c: char) -> bool {
    matches!(t, Some(TokenTree::Punct(p)) if p.as_char() == c)
}

/// Whether `::` begins at `at`.
pub fn is_colons(list: &[TokenTree], at: usize) -> bool {
    is_punct(list.get(at), ':') && is_punct(list.get(at + 1), ':')
}

/// What is inside of a group with these delimiters.
pub fn group(t: Option<&TokenTree>, delimiter: Delimiter) -> Option<TokenStream> {
    match t {
        Some(TokenTree::Group(g)) if g.delimiter() == delimiter => Some(g.stream()),
        _ => None,
    }
}

/// How many named fields the struct `name` has; `None`: the file has no such struct.
pub fn fields(all: TokenStream, name: &str) -> Option<usize> {
    let list: Vec<TokenTree> = all.into_iter().collect();
    let at = (1..list.len())
        .find(|at| is_ident(list.get(at - 1), "struct") && is_ident(list.get(*at), name))?;
    let inside: Vec<TokenTree> = group(list.get(at + 1), Delimiter::Brace)?
        .into_iter()
        .collect();
    // A field's colon stands alone; those of paths come in pairs.
    let alone = |at: &usize| {
        is_punct(inside.get(*at), ':')
            && !is_colons(&inside, *at)
            && !at.checked_sub(1).is_some_and(|b| is_colons(&inside, b))
    };
    Some((0..inside.len()).filter(alone).count())
}

/// The tokens without items that are compiled for tests only, and those items.
pub fn split_tests(all: TokenStream) -> (TokenStream, TokenStream) {
    let list: Vec<TokenTree> = all.into_iter().collect();
    let (mut code, mut tests) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < list.len() {
        if is_punct(list.get(at), '#') && for_tests(list.get(at + 1)) {
            let end = end_of_item(&list, at + 2);
            tests.extend(list[at..end].iter().cloned());
            at = end;
            continue;
        }
        match &list[at] {
            TokenTree::Group(g) => {
                let (c, t) = split_tests(g.stream());
                let mut kept = Group::new(g.delimiter(), c);
                kept.set_span(g.span());
                code.push(TokenTree::Group(kept));
                tests.extend(t);
            }
            other => code.push(other.clone()),
        }
        at += 1;
    }
    (code.into_iter().collect(), tests.into_iter().collect())
}

/// Whether an attribute says that its item is for tests: `[cfg(test)]`, `[cfg(all(test, …))]`, `[test]`.
fn for_tests(t: Option<&TokenTree>) -> bool {
    let Some(inside) = group(t, Delimiter::Bracket) else {
        return false;
    };
    let list: Vec<TokenTree> = inside.into_iter().collect();
    if list.len() == 1 && is_ident(list.first(), "test") {
        return true;
    }
    let condition =
        group(list.get(1), Delimiter::Parenthesis).filter(|_| is_ident(list.first(), "cfg"));
    condition.is_some_and(|c| has_ident(c.clone(), "test") && !has_ident(c, "not"))
}

fn has_ident(all: TokenStream, word: &str) -> bool {
    all.into_iter().any(|t| match &t {
        TokenTree::Group(g) => has_ident(g.stream(), word),
        t => is_ident(Some(t), word),
    })
}

/// Behind the item that begins at `at`: after its braces or semicolon; a field or a variant ends with a comma.
fn end_of_item(list: &[TokenTree], mut at: usize) -> usize {
    while is_punct(list.get(at), '#') {
        at += 2;
    }
    const WORDS: [&str; 14] = [
        "pub", "fn", "mod", "use", "impl", "struct", "enum", "trait", "type", "const", "static",
        "unsafe", "let", "extern",
    ];
    let item = WORDS.iter().any(|w| is_ident(list.get(at), w));
    while at < list.len() {
        let t = list.get(at);
        at += 1;
        let ends = group(t, Delimiter::Brace).is_some() || is_punct(t, ';');
        if ends || (!item && is_punct(t, ',')) {
            break;
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_struct_are_counted() {
        let text =
            "struct A; struct B { pub a: x::Y<z::Z>, /* c: d */ b: (C, D), pub(in a::b) e: F }";
        let count = |name| fields(tokens("x", text).unwrap(), name);
        assert_eq!((count("B"), count("A"), count("C")), (Some(3), None, None));
    }

    #[test]
    fn code_for_tests_is_told_apart() {
        let text = "fn a() {} #[cfg(test)] mod t { use b::c; } #[cfg(all(test, x))] fn d<A, B>() { e } \
            struct F { #[cfg(test)] g: H, i: J } #[cfg(not(test))] fn k() {} #[test] fn l() {} fn m() {}";
        let (code, tests) = split_tests(tokens("x", text).unwrap());
        for (word, test) in [
            ("a", false),
            ("c", true),
            ("e", true),
            ("g", true),
            ("i", false),
        ]
        .into_iter()
        .chain([("k", false), ("l", true), ("m", false)])
        {
            assert_eq!(has_ident(tests.clone(), word), test, "{word}");
            assert_eq!(has_ident(code.clone(), word), !test, "{word}");
        }
        assert!(tokens("x.rs", "fn a() {\n\n ]")
            .unwrap_err()
            .starts_with("x.rs:3: "));
    }
}
