//! Who asks for something, as far as delegated permissions and limits depend on it.

/// Who asks for something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    pub uid: u64,
    /// The group the caller acts with, and the supplementary ones.
    pub groups: Vec<u64>,
    /// Nothing is refused: root, or the user whose pools these are.
    pub all: bool,
    /// Delegated permissions count in this pool (pool property `delegation`).
    pub delegation: bool,
}

impl Caller {
    /// A caller to whom nothing is refused.
    pub fn root() -> Caller {
        Caller {
            all: true,
            ..Caller::default()
        }
    }
}
