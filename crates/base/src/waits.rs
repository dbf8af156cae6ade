//! Telling whoever serves requests that the calling thread is about to wait: for a device, a txg, or another
//! thread that does.
//!
//! The rooms below the doors know where they wait. A door knows what else its thread was to do meanwhile. So the
//! rooms tell, by [`about_to_wait`], and the door says with [`tell`] what is to be called then. Without a door
//! nothing is called. What is called must not wait itself, and must not use the rooms: locks of theirs may be held.

use std::sync::OnceLock;

static TOLD: OnceLock<fn()> = OnceLock::new();

/// From now on `who` is called by every thread that is about to wait. The first one stays.
pub fn tell(who: fn()) {
    let _ = TOLD.set(who);
}

/// The calling thread is about to wait.
#[inline]
pub fn about_to_wait() {
    if let Some(who) = TOLD.get() {
        who();
    }
}
