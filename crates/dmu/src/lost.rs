//! Changes that a txg gave up because of damage, until who asks for their objects has been told.
//!
//! A write was accepted, and perhaps logged, when its txg met a block that cannot be read. The txg goes on
//! ([`crate::sync`]), so the writer must hear of it elsewhere: each object has a mark, which the next
//! fsync of it returns once. Whoever writes for several, and is not told for each of them, looks at [`losses`].

use base::mutation::{mutated, Mutation};
use base::sync::MutexExt;
use base::{Error, Kind};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Mutex;

/// See [`losses`].
static LOSSES: AtomicU64 = AtomicU64::new(0);

/// How often this process has given up changes of objects because of damage, in whatever pool.
pub fn losses() -> u64 {
    LOSSES.load(Ordering::SeqCst)
}

/// The marks of one object set.
#[derive(Default)]
pub(crate) struct Lost {
    /// Why, by object.
    marks: Mutex<BTreeMap<u64, String>>,
    /// Whether there may be any.
    any: AtomicBool,
    /// One was made since [`Lost::take_any`].
    news: AtomicBool,
    /// See [`crate::Objset::set_replaying`].
    replaying: AtomicBool,
}

impl Lost {
    /// See [`crate::Objset::set_replaying`].
    pub fn set_replaying(&self, on: bool) {
        self.replaying.store(on, Ordering::Release);
    }

    /// Whether a change must not be given up for this error: the device may read the block the next time, and until the
    /// change is on disk the intent log has it.
    pub fn must_stay(&self, e: &Error) -> bool {
        e.kind == Kind::Io && self.replaying.load(Ordering::Acquire)
    }

    /// The object was freed: nobody can ask for it any more, and its number will be another's.
    pub fn forget(&self, object: u64) {
        if self.any.load(Ordering::Acquire) {
            self.marks.acquire().remove(&object);
        }
    }

    /// Something that was changed in the object is not on disk and never will be.
    pub fn lose(&self, object: u64, why: &Error) {
        if mutated(Mutation::LossUnmarked) {
            return;
        }
        let mut marks = self.marks.acquire();
        marks.entry(object).or_insert_with(|| why.to_string());
        self.any.store(true, Ordering::Release);
        self.news.store(true, Ordering::Release);
        LOSSES.fetch_add(1, Ordering::SeqCst);
    }

    /// See [`crate::Objset::take_lost`].
    pub fn take(&self, object: u64) -> Option<Error> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let mut marks = self.marks.acquire();
        let why = marks.remove(&object)?;
        self.any.store(!marks.is_empty(), Ordering::Release);
        let text = format!("changes of object {object} are lost: {why}");
        Some(Error::new(Kind::Io, text))
    }

    /// See [`crate::Objset::take_any_lost`].
    pub fn take_any(&self) -> bool {
        self.news.swap(false, Ordering::AcqRel)
    }
}
