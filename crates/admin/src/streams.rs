//! Streams under way: which datasets they use, and how they are ended from outside.

use base::sync::MutexExt;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// The streams of one pool.
#[derive(Default)]
pub struct Streams {
    /// By object of the dataset that is filled.
    list: Mutex<BTreeMap<u64, Arc<AtomicBool>>>,
}

/// A stream under way; it is over when this is dropped.
pub struct UnderWay {
    streams: Arc<Streams>,
    object: u64,
    ended: Arc<AtomicBool>,
}

impl Streams {
    /// A stream begins to fill a dataset; `None` if another one does.
    pub fn begin(self: &Arc<Self>, object: u64) -> Option<UnderWay> {
        let mut list = self.list.acquire();
        if list.contains_key(&object) {
            return None;
        }
        let ended = Arc::new(AtomicBool::new(false));
        list.insert(object, ended.clone());
        Some(UnderWay {
            streams: self.clone(),
            object,
            ended,
        })
    }

    /// Whether a stream fills the dataset.
    pub fn is_busy(&self, object: u64) -> bool {
        self.list.acquire().contains_key(&object)
    }

    /// Whether there is any.
    pub fn any(&self) -> bool {
        !self.list.acquire().is_empty()
    }

    /// Asks all to end: each does before its next record, and while it waits for one.
    pub fn end_all(&self) {
        for ended in self.list.acquire().values() {
            ended.store(true, Ordering::Relaxed);
        }
    }
}

impl UnderWay {
    /// The flag that asks it to end, for [`crate::cancel::ended_by`].
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.ended.clone()
    }

    /// Whether it is asked to end.
    pub fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.streams.list.acquire().remove(&self.object);
    }
}
