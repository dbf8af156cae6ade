//! The user on whose behalf an operation runs, for delegated permissions and limits.

/// The user on whose behalf an operation runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// User id.
    pub uid: u64,
    /// Ids of the effective group and the supplementary groups.
    pub groups: Vec<u64>,
    /// Every permission is granted: root, or the user who runs the daemon.
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
