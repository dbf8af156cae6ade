//! Reads in progress: a thread that wants a block another thread is already reading waits for that read.

use crate::cache::Key;
use base::sync::{CondvarExt, MutexExt};
use base::Block;
use std::collections::hash_map::Entry;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, ThreadId};

/// One read in progress.
pub struct Flight {
    /// The thread that reads the block.
    pilot: ThreadId,
    /// `None` until the read ends; then the block, or `Some(None)` if it could not be read.
    landed: Mutex<Option<Option<Block>>>,
    arrival: Condvar,
}

impl Flight {
    /// Waits for the block. `None` if the reading thread failed, or is the calling thread: then the caller
    /// reads the block itself.
    pub fn wait(&self) -> Option<Block> {
        if self.pilot == thread::current().id() {
            return None;
        }
        if self.landed.acquire().is_none() {
            base::waits::about_to_wait();
        }
        let mut landed = self.landed.acquire();
        loop {
            if let Some(b) = landed.as_ref() {
                return b.clone();
            }
            landed = self.arrival.wait_acquire(landed);
        }
    }
}

/// Who reads a block that is not in the cache.
pub enum Boarding<'a> {
    /// The caller reads the block, and reports the result.
    Lead(Lead<'a>),
    /// Another thread reads it. A caller waits only when it leads no read of its own any more, since two threads
    /// could otherwise wait for each other.
    Follow(Arc<Flight>),
}

/// The reads in progress of one pool.
#[derive(Default)]
pub struct Flights {
    table: Mutex<HashMap<Key, Arc<Flight>>>,
}

impl Flights {
    /// Registers the calling thread for a block: as its reader if no thread reads it yet, otherwise
    /// as one that waits.
    pub fn board(&self, key: Key) -> Boarding<'_> {
        match self.table.acquire().entry(key) {
            Entry::Occupied(e) => Boarding::Follow(e.get().clone()),
            Entry::Vacant(e) => {
                let flight = Arc::new(Flight {
                    pilot: thread::current().id(),
                    landed: Mutex::new(None),
                    arrival: Condvar::new(),
                });
                e.insert(flight.clone());
                Boarding::Lead(Lead {
                    flights: self,
                    key,
                    flight,
                    block: None,
                })
            }
        }
    }

    /// Reads under way.
    #[cfg(test)]
    fn count(&self) -> usize {
        self.table.acquire().len()
    }
}

/// The duty to read a block. Dropped, those who wait are told, whatever happened.
pub struct Lead<'a> {
    flights: &'a Flights,
    key: Key,
    flight: Arc<Flight>,
    block: Option<Block>,
}

impl Lead<'_> {
    /// The block is there.
    pub fn landed(mut self, block: &Block) {
        self.block = Some(block.clone());
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        self.flights.table.acquire().remove(&self.key);
        *self.flight.landed.acquire() = Some(self.block.take());
        self.flight.arrival.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Txg;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn key(n: u64) -> Key {
        Key::new(0, n, Txg::new(1), 2)
    }

    #[test]
    fn one_reads_and_all_have_it() {
        let flights = Flights::default();
        let Boarding::Lead(lead) = flights.board(key(1)) else {
            panic!("nobody else reads it");
        };
        let got = AtomicUsize::new(0);
        thread::scope(|s| {
            for _ in 0..4 {
                let Boarding::Follow(f) = flights.board(key(1)) else {
                    panic!("it is being read");
                };
                let got = &got;
                s.spawn(move || {
                    assert_eq!(f.wait().unwrap()[..], [7; 3]);
                    got.fetch_add(1, Ordering::Relaxed);
                });
            }
            assert!(matches!(flights.board(key(2)), Boarding::Lead(_)));
            lead.landed(&Arc::new(vec![7; 3]));
        });
        assert_eq!(got.into_inner(), 4);
        assert_eq!(flights.count(), 0);
        assert!(matches!(flights.board(key(1)), Boarding::Lead(_)));
    }

    #[test]
    fn failing_frees_those_who_wait() {
        let flights = Flights::default();
        let Boarding::Lead(lead) = flights.board(key(1)) else {
            panic!("nobody else reads it");
        };
        let Boarding::Follow(f) = flights.board(key(1)) else {
            panic!("it is being read");
        };
        assert!(f.wait().is_none(), "nobody waits for himself");
        thread::scope(|s| {
            let waiting = s.spawn(move || f.wait());
            drop(lead);
            assert!(waiting.join().unwrap().is_none());
        });
        assert_eq!(flights.count(), 0);
    }
}
