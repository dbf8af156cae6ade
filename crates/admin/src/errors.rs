//! Conversion of engine errors to the messages that the commands print.

use api::ApiError;
use base::{Error, Kind};

/// An error of the engine as an answer.
pub fn answer(e: Error) -> ApiError {
    let kind = e.kind;
    let mut out = ApiError::from(e);
    if kind == Kind::Suspended {
        out = out.hint("Make the devices available again, then restart the daemon.");
    }
    finish(out)
}

/// Every failing request ends here: the system's numbers are left out of its texts.
pub fn finish(mut e: ApiError) -> ApiError {
    e.message = without_numbers(&e.message);
    e.details.iter_mut().for_each(|d| *d = without_numbers(d));
    e
}

/// Leaves out the numbers of errors the system's texts end with: `(os error 2)`.
fn without_numbers(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((head, tail)) = rest.split_once(" (os error ") {
        out.push_str(head);
        match tail.split_once(')') {
            Some((number, tail)) if number.bytes().all(|b| b.is_ascii_digit()) => rest = tail,
            _ => {
                out.push_str(" (os error ");
                rest = tail;
            }
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_and_reasons() {
        let e = answer(Error::sentence(
            Kind::Busy,
            "cannot mount '/x': directory is not empty",
        ));
        assert_eq!((e.whole, e.code), (true, 16));
        let e = answer(Error::new(Kind::Invalid, "cannot open it"));
        assert!(!e.whole);
        assert_eq!(
            e.sentence_for("set", "tank"),
            "cannot set 'tank': cannot open it"
        );
        let e = answer(Error::new(
            Kind::NotFound,
            "/x: gone (os error 2), so there",
        ));
        assert_eq!(e.message, "/x: gone, so there");
        assert_eq!(without_numbers("a (os error x"), "a (os error x");
        assert!(answer(Kind::Suspended.into()).hint.is_some());
    }
}
