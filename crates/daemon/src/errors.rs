//! One place where errors of the engine become what the commands print.

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

/// Every failing request ends here: a message that names action and object itself is a sentence,
/// anything else is the reason the command puts its own words in front of.
pub fn finish(mut e: ApiError) -> ApiError {
    if !e.whole && names_action(&e.message) {
        e.whole = true;
    }
    e
}

/// `cannot ACTION 'OBJECT': REASON`
fn names_action(text: &str) -> bool {
    text.starts_with("cannot ") && text.contains("': ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_and_reasons() {
        let e = answer(Error::new(
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
        assert!(answer(Kind::Suspended.into()).hint.is_some());
    }
}
