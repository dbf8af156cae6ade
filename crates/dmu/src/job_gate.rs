//! The gate of background jobs: once it is closed no further job begins, and closing a pool waits for those
//! that run.

use base::sync::{CondvarExt, MutexExt};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Lets jobs in while the pool is open, and lets it be closed when none is inside.
#[derive(Default)]
pub(crate) struct JobGate {
    /// Closed; jobs inside.
    state: Mutex<(bool, usize)>,
    empty: Condvar,
}

pub(crate) struct Pass(Arc<JobGate>);

impl JobGate {
    pub fn enter(self: &Arc<JobGate>) -> Option<Pass> {
        let mut st = self.state.acquire();
        if st.0 {
            return None;
        }
        st.1 += 1;
        Some(Pass(self.clone()))
    }

    pub fn is_closed(&self) -> bool {
        self.state.acquire().0
    }

    /// Waits for who is inside, but not for ever: on a device that stalls.
    pub fn close(&self, most: Duration) {
        let mut st = self.state.acquire();
        st.0 = true;
        let (st, _) = self.empty.wait_acquire_while(st, most, |st| st.1 > 0);
        drop(st);
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut st = self.0.state.acquire();
        st.1 -= 1;
        if st.1 == 0 {
            self.0.empty.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_waits_for_jobs_inside() {
        let gate = Arc::new(JobGate::default());
        let pass = gate.enter().unwrap();
        std::thread::scope(|s| {
            let closing = s.spawn(|| gate.close(Duration::MAX));
            while !gate.is_closed() {
                std::thread::yield_now();
            }
            assert!(gate.enter().is_none());
            assert!(!closing.is_finished());
            drop(pass);
        });
        assert!(gate.enter().is_none());
    }
}
