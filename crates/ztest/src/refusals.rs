//! Short failures of all devices under load: writes are refused for a moment, the pool waits, and goes on when
//! the devices are back.

use crate::troubles::Troubles;
use crate::Dice;
use pool::Pool;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long they refuse though nobody has to write, at most.
const IDLE: Duration = Duration::from_secs(2);
const TICK: Duration = Duration::from_millis(10);

/// Refusals of one pass.
pub struct Refusals {
    pool: Arc<Pool>,
    troubles: Arc<Troubles>,
}

/// The pool's state when a command began.
#[derive(Clone, Copy)]
pub struct Since(bool, u64);

impl Refusals {
    pub fn new(pool: &Arc<Pool>, troubles: &Arc<Troubles>) -> Refusals {
        pool.wait_for_devices(Box::new(|_| {}));
        Refusals {
            pool: pool.clone(),
            troubles: troubles.clone(),
        }
    }

    pub fn now(&self) -> Since {
        Since(self.pool.is_waiting(), self.pool.resumptions())
    }

    /// Whether a command that failed may have been refused because the pool waited.
    pub fn excuse(&self, since: Since) -> bool {
        since.0 || self.pool.is_waiting() || self.pool.resumptions() != since.1
    }

    /// Now and then, until the end of the pass. How often the pool waited.
    pub fn run(&self, mut dice: Dice, stop: &AtomicBool) -> u64 {
        let before = self.pool.resumptions();
        let stopped = || stop.load(Ordering::Relaxed);
        while !stopped() {
            std::thread::sleep(Duration::from_millis(100 + dice.below(900)));
            self.troubles.refuse(true);
            let begin = Instant::now();
            while !self.pool.is_waiting() && begin.elapsed() < IDLE && !stopped() {
                std::thread::sleep(TICK);
            }
            std::thread::sleep(Duration::from_millis(dice.below(300)));
            self.troubles.refuse(false);
            if dice.below(2) == 0 {
                // As `zpool clear`; otherwise it tries by itself.
                let _ = self.pool.retry();
            }
        }
        // Whoever waits for the end of the pass is not to wait for the next attempt.
        let _ = self.pool.retry();
        self.pool.resumptions() - before
    }
}
