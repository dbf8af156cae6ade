//! [`Slot`]: the door that clients of NFS have to one mounted file system, from the first request to the end of the mount.

use base::sync::MutexExt;
use nfs::{Opened, Verifiers};
use std::sync::{Arc, Mutex};
use vfs::Served;

#[derive(Default)]
struct State {
    ended: bool,
    opened: Option<Arc<Opened>>,
}

/// The door to one mounted file system, if it has been opened.
#[derive(Default)]
pub struct Slot(Mutex<State>);

impl Slot {
    /// The door, opened if it was not. None: the mount has ended, or the file system cannot be read.
    pub fn opened(&self, served: &Arc<Served>, verifiers: &Verifiers) -> Option<Arc<Opened>> {
        let mut state = self.0.acquire();
        if state.ended {
            return None;
        }
        if state.opened.is_none() {
            match Opened::new(served, verifiers.draw()) {
                Ok(opened) => state.opened = Some(opened),
                Err(e) => crate::log::warn(&format!("nfs: {e}")),
            }
        }
        state.opened.clone()
    }

    /// The mount has ended: waits for requests that are being served, and refuses others.
    pub fn end(&self) {
        let mut state = self.0.acquire();
        state.ended = true;
        let opened = state.opened.take();
        drop(state);
        if let Some(opened) = opened {
            opened.close();
        }
    }
}
