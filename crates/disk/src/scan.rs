//! Records of scrubs, resilvers and error scrubs (pool format §20.2) and of sequential rebuilds (§20.4): what their words are, and
//! what the numbers in them mean. The numbers of states differ between the three.

/// Object directory: the newest scrub or resilver.
pub const SCAN: &str = "scan";
/// Object directory: the newest error scrub.
pub const ERROR_SCRUB: &str = "error_scrub";

/// Words of the record of a scrub or resilver. A release of another system wrote one more, which is kept.
pub const WORDS: usize = 24;

/// Words of the record of a scrub or resilver.
pub mod word {
    /// A [`Function`](super::Function).
    pub const FUNCTION: usize = 0;
    /// A [`ScanState`](super::ScanState).
    pub const STATE: usize = 1;
    /// Object of the queue of datasets, 0: none.
    pub const QUEUE: usize = 2;
    /// Blocks born in this txg or before are left out.
    pub const MIN: usize = 3;
    /// The last txg whose blocks are visited.
    pub const MAX: usize = 4;
    /// [`MIN`] of the dataset the scan is in.
    pub const CUR_MIN: usize = 5;
    /// [`MAX`] of the dataset the scan is in.
    pub const CUR_MAX: usize = 6;
    /// Seconds since 1970.
    pub const START: usize = 7;
    /// Seconds since 1970; 0 while it runs.
    pub const END: usize = 8;
    /// Bytes allocated when the scan began.
    pub const TO_EXAMINE: usize = 9;
    /// Bytes visited.
    pub const EXAMINED: usize = 10;
    /// Bytes visited that were not to be scrubbed.
    pub const SKIPPED: usize = 11;
    /// Bytes repaired.
    pub const PROCESSED: usize = 12;
    /// Blocks that could not be repaired.
    pub const ERRORS: usize = 13;
    /// Highest class of dedup entries that is scanned through the tables.
    pub const DDT_CLASS_MAX: usize = 14;
    /// The first of four: object set, object, level, block id.
    pub const BOOKMARK: usize = 19;
    /// [`VISIT_AGAIN`](super::VISIT_AGAIN), [`PAUSED`](super::PAUSED).
    pub const FLAGS: usize = 23;
}

/// Object set of a bookmark that is in no dataset.
pub const NO_DATASET: u64 = u64::MAX;

/// Flag: the dataset of the bookmark is to be visited again from its beginning.
pub const VISIT_AGAIN: u64 = 1;
/// Flag: paused. The flag of an error scrub is the same.
pub const PAUSED: u64 = 2;

/// Words of the record of an error scrub: function, state, cursor, start, end, entries to examine, examined, errors, flags.
pub const ERROR_SCRUB_WORDS: usize = 9;

/// Words of the record of a sequential rebuild.
pub const REBUILD_WORDS: usize = 12;

/// Words of the record of a sequential rebuild.
pub mod rebuild_word {
    /// A [`RebuildState`](super::RebuildState).
    pub const STATE: usize = 0;
    /// Everything before this byte of the vdev was copied.
    pub const LAST: usize = 1;
    /// Txg after which the copied blocks were born.
    pub const MIN: usize = 2;
    /// The new devices lack nothing from this txg on.
    pub const MAX: usize = 3;
    /// Seconds since 1970.
    pub const START: usize = 4;
    /// Seconds since 1970; 0 while it runs.
    pub const END: usize = 5;
    /// Milliseconds it ran.
    pub const TIME: usize = 6;
    /// Bytes looked at.
    pub const SCANNED: usize = 7;
    /// Bytes of them that a device lacked.
    pub const ISSUED: usize = 8;
    /// Bytes written.
    pub const REBUILT: usize = 9;
    /// Bytes there are to look at.
    pub const ESTIMATE: usize = 10;
    /// Ranges that could not be copied.
    pub const ERRORS: usize = 11;
}

macro_rules! numbers {
    ($(#[$doc:meta])* $name:ident $($(#[$of:meta])* $number:literal $variant:ident;)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum $name {
            /// Number 0: there was none yet.
            #[default]
            None,
            $($(#[$of])* $variant,)*
            /// A number without a meaning.
            Unknown(u64),
        }

        impl $name {
            /// What the number stands for. 0 is [`None`](Self::None).
            pub const fn new(number: u64) -> $name {
                match number {
                    0 => $name::None,
                    $($number => $name::$variant,)*
                    n => $name::Unknown(n),
                }
            }

            /// Its number.
            pub const fn number(self) -> u64 {
                match self {
                    $name::None => 0,
                    $($name::$variant => $number,)*
                    $name::Unknown(n) => n,
                }
            }
        }
    };
}

numbers! {
    /// What a scan is for.
    Function
    /// Every copy of every block is read and compared.
    1 Scrub;
    /// Devices get what they lack.
    2 Resilver;
    /// Only the blocks in the error log are read.
    3 ErrorScrub;
}

numbers! {
    /// State of a scrub or resilver. Removals of devices and expansions of RAID-Z have the same numbers.
    ScanState
    /// It runs, or is paused.
    1 Scanning;
    /// It came to its end.
    2 Finished;
    /// It was stopped.
    3 Canceled;
}

numbers! {
    /// State of an error scrub.
    ErrorScrubState
    /// It came to its end.
    2 Finished;
    /// It was stopped.
    3 Canceled;
    /// It runs, or is paused.
    4 Scanning;
}

numbers! {
    /// State of a sequential rebuild.
    RebuildState
    /// It runs.
    1 Active;
    /// It was stopped.
    2 Canceled;
    /// It came to its end.
    3 Complete;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_the_three_records_differ() {
        assert_eq!(
            [1, 2, 3].map(ScanState::new),
            [
                ScanState::Scanning,
                ScanState::Finished,
                ScanState::Canceled
            ]
        );
        assert_eq!(
            [1, 2, 3].map(RebuildState::new),
            [
                RebuildState::Active,
                RebuildState::Canceled,
                RebuildState::Complete
            ]
        );
        assert_eq!(
            [4, 2, 3].map(ErrorScrubState::new),
            [
                ErrorScrubState::Scanning,
                ErrorScrubState::Finished,
                ErrorScrubState::Canceled
            ]
        );
        assert_eq!(ErrorScrubState::new(1), ErrorScrubState::Unknown(1));
    }

    #[test]
    fn every_number_comes_back() {
        for n in (0..6).chain([u64::MAX]) {
            assert_eq!(Function::new(n).number(), n);
            assert_eq!(ScanState::new(n).number(), n);
            assert_eq!(ErrorScrubState::new(n).number(), n);
            assert_eq!(RebuildState::new(n).number(), n);
        }
        assert_eq!(Function::default(), Function::new(0));
    }
}
