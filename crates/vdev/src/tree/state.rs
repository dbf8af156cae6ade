//! Health of vdevs, with the words that `zpool status` has for it.

/// Health, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum State {
    /// Never opened.
    Closed = 1,
    /// Taken offline by the administrator.
    Offline = 2,
    /// Taken out of the machine.
    Removed = 3,
    /// Cannot be opened, or not enough children can.
    CantOpen = 4,
    /// Put out of use because of errors.
    Faulted = 5,
    /// Usable, but not all of it is.
    Degraded = 6,
    /// Usable as a whole.
    Healthy = 7,
}

impl State {
    /// The word of `zpool status`.
    pub fn name(self) -> &'static str {
        match self {
            State::Closed | State::Offline => "OFFLINE",
            State::Removed => "REMOVED",
            State::CantOpen => "UNAVAIL",
            State::Faulted => "FAULTED",
            State::Degraded => "DEGRADED",
            State::Healthy => "ONLINE",
        }
    }

    /// Whether I/O is sent there.
    pub fn usable(self) -> bool {
        self >= State::Degraded
    }

    pub(crate) fn from_u8(v: u8) -> State {
        match v {
            2 => State::Offline,
            3 => State::Removed,
            4 => State::CantOpen,
            5 => State::Faulted,
            6 => State::Degraded,
            7 => State::Healthy,
            _ => State::Closed,
        }
    }
}

/// Why a vdev is in the state it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Aux {
    /// No reason to give.
    None = 0,
    /// The device cannot be opened.
    OpenFailed,
    /// The label does not belong here or is unreadable.
    CorruptData,
    /// Too few children are usable.
    NoReplicas,
    /// Root vdev: the guids of the tree do not add up to the sum in the uberblock, so a device is
    /// missing.
    BadGuidSum,
    /// The device is smaller than any vdev may be ([`disk::label::MIN_DEVICE`]).
    TooSmall,
    /// The label cannot be used, or the device is smaller than the configuration says.
    BadLabel,
    /// There were too many errors.
    ErrExceeded,
    /// Declared faulty by the administrator (`zpool offline -f`).
    External,
    /// The device needs larger sectors than the vdev has.
    BadAshift,
    /// The device belongs to a pool that was split off.
    SplitPool,
    /// All children are offline.
    ChildrenOffline,
    /// A kind of vdev this software cannot use yet.
    Unsupported,
}

impl Aux {
    /// The note of `zpool status`, empty if there is none.
    pub fn note(self) -> &'static str {
        match self {
            Aux::None => "",
            Aux::OpenFailed => "cannot open",
            Aux::CorruptData => "corrupted data",
            Aux::NoReplicas => "insufficient replicas",
            Aux::BadGuidSum => "missing device",
            Aux::TooSmall => "device too small",
            Aux::BadLabel => "invalid label",
            Aux::ErrExceeded => "too many errors",
            Aux::External => "external device fault",
            Aux::BadAshift => "unsupported minimum blocksize",
            Aux::SplitPool => "split into new pool",
            Aux::ChildrenOffline => "all children offline",
            Aux::Unsupported => "unsupported feature(s)",
        }
    }

    pub(crate) fn from_u8(v: u8) -> Aux {
        const ALL: [Aux; 13] = [
            Aux::None,
            Aux::OpenFailed,
            Aux::CorruptData,
            Aux::NoReplicas,
            Aux::BadGuidSum,
            Aux::TooSmall,
            Aux::BadLabel,
            Aux::ErrExceeded,
            Aux::External,
            Aux::BadAshift,
            Aux::SplitPool,
            Aux::ChildrenOffline,
            Aux::Unsupported,
        ];
        ALL.get(usize::from(v)).copied().unwrap_or(Aux::None)
    }
}
