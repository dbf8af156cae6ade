//! Normalized forms of names (data format §3.6).
//!
//! The tables are those of the `unicode-normalization` crate and of the standard library; ZFS froze
//! Unicode 5.0. Normalization of characters that existed then has not changed since; upper-case
//! partners that were added later are not applied.

use std::borrow::Cow;
use unicode_normalization::UnicodeNormalization;

/// Bits of a ZAP's `normflags`.
pub mod norm {
    /// Upper case: names that differ in case are equal.
    pub const TOUPPER: u64 = 0x2;
    /// Canonical decomposition.
    pub const DECOMPOSE: u64 = 0x10;
    /// Compatibility decomposition.
    pub const COMPAT: u64 = 0x20;
    /// Canonical composition, after a decomposition.
    pub const COMPOSE: u64 = 0x40;
    /// Unicode form NFD.
    pub const FORM_D: u64 = 0x10;
    /// Unicode form NFC.
    pub const FORM_C: u64 = 0x50;
    /// Unicode form NFKD.
    pub const FORM_KD: u64 = 0x20;
    /// Unicode form NFKC.
    pub const FORM_KC: u64 = 0x60;
}

/// The form of `name` that is hashed and compared under `flags`. Bytes that are not UTF-8 pass
/// through unchanged.
pub fn normalize(name: &[u8], flags: u64) -> Cow<'_, [u8]> {
    let upper = flags & norm::TOUPPER != 0;
    let forms = flags & (norm::DECOMPOSE | norm::COMPAT | norm::COMPOSE);
    if !upper && forms == 0 {
        return Cow::Borrowed(name);
    }
    if name.is_ascii() {
        return match upper {
            true => Cow::Owned(name.to_ascii_uppercase()),
            false => Cow::Borrowed(name),
        };
    }
    let mut out = Vec::with_capacity(name.len() + 8);
    for chunk in name.utf8_chunks() {
        let text = chunk.valid();
        let mut push = |c: char| {
            let mut b = [0; 4];
            out.extend_from_slice(c.encode_utf8(&mut b).as_bytes());
        };
        let mapped = text.chars().map(|c| if upper { to_upper(c) } else { c });
        let (compat, compose) = (forms & norm::COMPAT != 0, forms & norm::COMPOSE != 0);
        match (compat, compose) {
            _ if forms == 0 => mapped.for_each(&mut push),
            (false, false) => mapped.nfd().for_each(&mut push),
            (true, false) => mapped.nfkd().for_each(&mut push),
            (false, true) => mapped.nfc().for_each(&mut push),
            (true, true) => mapped.nfkc().for_each(&mut push),
        }
        out.extend_from_slice(chunk.invalid());
    }
    Cow::Owned(out)
}

/// Simple (one to one) upper-case mapping as of Unicode 5.0.
fn to_upper(c: char) -> char {
    let n = c as u32;
    // Letters whose full mapping is longer but which have a simple partner.
    let simple = match n {
        0x1F80..=0x1F87 | 0x1F90..=0x1F97 | 0x1FA0..=0x1FA7 => Some(n + 8),
        0x1FB3 | 0x1FC3 | 0x1FF3 => Some(n + 9),
        _ => None,
    };
    let to = match simple.and_then(char::from_u32) {
        Some(u) => u,
        None => {
            let mut it = c.to_uppercase();
            match (it.next(), it.next()) {
                (Some(u), None) => u,
                _ => return c,
            }
        }
    };
    if to == c || newer(n) || newer(to as u32) {
        return c;
    }
    to
}

/// Blocks of cased letters that did not exist in Unicode 5.0.
fn newer(n: u32) -> bool {
    matches!(n,
        0x0370..=0x0373 | 0x0376..=0x0377 | 0x037F | 0x0514..=0x052F | 0x10C7 | 0x10CD
        | 0x13F6..=0x13FD | 0x1C80..=0x1CBF | 0x1D8E | 0x1D79 | 0x1EFA..=0x1EFF
        | 0x2C6D..=0x2C73 | 0x2C7E..=0x2C7F | 0x2CEB..=0x2CF3 | 0x2D27 | 0x2D2D
        | 0xA640..=0xA69F | 0xA722..=0xA7FF | 0xAB30..=0xABBF | 0x104B0..=0x104FB
        | 0x10570..=0x105BC | 0x10C80..=0x10CF2 | 0x10D50..=0x10D85 | 0x118A0..=0x118DF
        | 0x16E40..=0x16EDF | 0x1E900..=0x1E943)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        let n = |s: &str, f| String::from_utf8(normalize(s.as_bytes(), f).into_owned()).unwrap();
        assert_eq!(n("aé", norm::TOUPPER), "AÉ");
        assert_eq!(n("é", norm::FORM_D), "e\u{301}");
        assert_eq!(n("e\u{301}", norm::FORM_C), "é");
        assert_eq!(n("ﬁ", norm::FORM_D), "ﬁ");
        assert_eq!(n("ﬁ", norm::FORM_KD), "fi");
        assert_eq!(n("e\u{301}ﬁ", norm::FORM_KC), "éfi");
        assert_eq!(n("é", norm::FORM_D | norm::TOUPPER), "E\u{301}");
        // No simple partner, a simple partner, a partner that came later.
        assert_eq!(n("ß\u{1F80}\u{10D0}", norm::TOUPPER), "ß\u{1F88}\u{10D0}");
        assert_eq!(
            normalize(b"a\xff\xc3\xa9", norm::TOUPPER).as_ref(),
            b"A\xff\xc3\x89"
        );
    }
}
