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
    out
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
        assert!(answer(Kind::Suspended.into()).hint.is_some());
    }
}
