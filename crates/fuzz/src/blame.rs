//! The input to be blamed for a failure, where it is not the one that was run last.

use base::sync::MutexExt;
use std::sync::Mutex;

static BLAMED: Mutex<Option<Vec<u8>>> = Mutex::new(None);

/// Says that an earlier input is the finding, before a panic.
pub fn blame(input: &[u8]) {
    *BLAMED.acquire() = Some(input.to_vec());
}

/// The input that was blamed since this was asked last.
pub fn blamed() -> Option<Vec<u8>> {
    BLAMED.acquire().take()
}
