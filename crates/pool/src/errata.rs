//! What released or nearly released software wrote wrongly, by the numbers that OpenZFS gives it (`ZFS-8000-ER`).
//!
//! 1. The record of the newest scan has a word too many. The next scrub writes it anew.
//! 2. The same, while datasets are destroyed in the background: the list of these was written in another form, too. Such a
//!    pool is not opened for writing.
//! 3. Datasets are encrypted in the first format ([`dsl::Dir::has_old_keys`]).
//! 4. Datasets can be encrypted, and snapshots have no guids of their sets of IVs, since the feature `bookmark_v2` is not
//!    enabled.

use base::{bail, Result};
use disk::feature::guid;
use disk::scan::WORDS;
use dsl::Dsl;

/// The number of what is wrong on the disks of a pool; 0: nothing. `words`: the record of the newest scan.
pub(crate) fn number(dsl: &Dsl, words: Option<&[u64]>) -> u64 {
    let features = dsl.features();
    if words.is_some_and(|w| w.len() > WORDS) {
        1
    } else if features.is_enabled(guid::ENCRYPTION) && !features.is_enabled(guid::BOOKMARK_V2) {
        4
    } else {
        0
    }
}

/// Refuses erratum 2. `words`: the record of the newest scan.
pub(crate) fn check_old_destroy(dsl: &Dsl, words: &[u64]) -> Result<()> {
    if words.len() > WORDS && dsl.features().is_active(guid::ASYNC_DESTROY) {
        bail!(
            Unsupported,
            "errata 2: a destroyed dataset is not freed yet, and was recorded by another release: import the pool there \
             until it is, or read-only here"
        );
    }
    Ok(())
}
