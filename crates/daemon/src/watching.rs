//! A thread that follows what changes elsewhere: whoever changes something rings a [`Bell`], and does not wait.

use base::sync::{CondvarExt, MutexExt};
use base::Result;
use std::sync::{Arc, Condvar, Mutex};

/// Rung when something has changed; rung several times it is heard once.
#[derive(Default)]
pub struct Bell {
    rung: Mutex<bool>,
    heard: Condvar,
}

impl Bell {
    /// Has the thread look.
    pub fn ring(&self) {
        *self.rung.acquire() = true;
        self.heard.notify_all();
    }

    fn wait(&self) {
        let mut rung = self.rung.acquire();
        while !std::mem::take(&mut *rung) {
            rung = self.heard.wait_acquire(rung);
        }
    }
}

/// What a thread of its own keeps up to date.
pub trait Followed: Send + Sync + 'static {
    /// Rung when it is to look.
    fn bell(&self) -> &Bell;

    /// Looks, and does what is to be done.
    ///
    /// # Errors
    /// What could not be done; it goes into the log.
    fn follow(&self) -> Result<()>;
}

/// Starts the thread of this name.
///
/// # Errors
/// There is no thread.
pub fn start(name: &str, of: &Arc<impl Followed>) -> Result<()> {
    let of = of.clone();
    let thread = std::thread::Builder::new().name(name.into());
    thread.spawn(move || {
        let mut said = None;
        loop {
            of.bell().wait();
            let failed = of.follow().err().map(|e| e.to_string());
            // What goes on failing is said once.
            if let Some(why) = failed.as_ref().filter(|_| failed != said) {
                crate::log::warn(why);
            }
            said = failed;
        }
    })?;
    Ok(())
}
