//! Locks that a panic does not close for ever.
//!
//! The standard library poisons a lock when a thread panics while it holds it, and leaves it to every
//! later caller what to do about that. Here the answer is one for the whole tree: poison is ignored.
//! 1. A panic while a transaction is held, while a log commit is written or while a txg is synced
//!    stops the pool for good. So a state that was changed by half never reaches a disk.
//! 2. Any other panic unwinds a thread that only read. It leaves what its locks guard as it was.
//!
//! Hence no object answers with an error for ever because one request about it panicked once.
//!
//! A thread that holds an [`RwLock`] must not ask for it again, not even shared: a writer that began to wait in
//! between goes first, and both wait for ever. Builds with `debug_assertions` panic where a thread does, whether
//! or not a writer waits.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::sync::{
    Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
    TryLockError,
};
use std::time::Duration;

/// [`Mutex`], whatever happened to threads that held it before.
pub trait MutexExt<T: ?Sized> {
    /// Waits for the lock.
    fn acquire(&self) -> MutexGuard<'_, T>;
    /// The lock, if it is free.
    fn try_acquire(&self) -> Option<MutexGuard<'_, T>>;
}

impl<T: ?Sized> MutexExt<T> for Mutex<T> {
    fn acquire(&self) -> MutexGuard<'_, T> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_acquire(&self) -> Option<MutexGuard<'_, T>> {
        free(self.try_lock())
    }
}

/// A lock that the thread holds, as long as this value exists. Without `debug_assertions` it is nothing.
struct Held(#[cfg(debug_assertions)] *const ());

#[cfg(debug_assertions)]
thread_local! {
    static HELD: RefCell<Vec<*const ()>> = const { RefCell::new(Vec::new()) };
}

/// Panics if the thread holds the lock, which it is about to wait for.
#[track_caller]
fn must_not_hold<T: ?Sized>(_lock: &RwLock<T>) {
    #[cfg(debug_assertions)]
    {
        let this = std::ptr::from_ref(_lock).cast::<()>();
        // No thread-local storage any more: the thread ends.
        let held = HELD.try_with(|h| h.borrow().contains(&this));
        assert!(
            !held.unwrap_or(false) || std::thread::panicking(),
            "the thread asks for a lock that it holds: with a writer waiting in between, both wait for ever"
        );
    }
}

impl Held {
    fn new<T: ?Sized>(_lock: &RwLock<T>) -> Held {
        #[cfg(debug_assertions)]
        {
            let this = std::ptr::from_ref(_lock).cast::<()>();
            let _ = HELD.try_with(|h| h.borrow_mut().push(this));
            Held(this)
        }
        #[cfg(not(debug_assertions))]
        Held()
    }
}

#[cfg(debug_assertions)]
impl Drop for Held {
    fn drop(&mut self) {
        let _ = HELD.try_with(|h| {
            let mut held = h.borrow_mut();
            if let Some(at) = held.iter().rposition(|l| *l == self.0) {
                held.swap_remove(at);
            }
        });
    }
}

/// Panics in builds with `debug_assertions` if the thread holds an [`RwLock`] while it is about to wait for somebody outside
/// of the process: `what` it does.
#[track_caller]
pub fn assert_none_held(_what: &str) {
    #[cfg(debug_assertions)]
    {
        let held = HELD.try_with(|h| h.borrow().len()).unwrap_or(0);
        assert!(
            held == 0 || std::thread::panicking(),
            "the thread {_what} while it holds {held} locks: whoever waits for these waits for others' programs"
        );
    }
}

/// An [`RwLock`] that the thread shares with other readers. Stays in its thread.
#[must_use]
pub struct ReadGuard<'a, T: ?Sized> {
    guard: RwLockReadGuard<'a, T>,
    _held: Held,
}

impl<T: ?Sized> Deref for ReadGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

/// An [`RwLock`] that the thread has alone. Stays in its thread.
#[must_use]
pub struct WriteGuard<'a, T: ?Sized> {
    guard: RwLockWriteGuard<'a, T>,
    _held: Held,
}

impl<T: ?Sized> Deref for WriteGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T: ?Sized> DerefMut for WriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// [`RwLock`], whatever happened to threads that held it before.
pub trait RwLockExt<T: ?Sized> {
    /// Waits for the lock, to be shared with other readers. The thread must not hold it.
    fn acquire_read(&self) -> ReadGuard<'_, T>;
    /// Waits for the lock, to be had alone. The thread must not hold it.
    fn acquire_write(&self) -> WriteGuard<'_, T>;
    /// The lock, shared, if no writer has it.
    fn try_acquire_read(&self) -> Option<ReadGuard<'_, T>>;
    /// The lock, alone, if it is free.
    fn try_acquire_write(&self) -> Option<WriteGuard<'_, T>>;
}

impl<T: ?Sized> RwLockExt<T> for RwLock<T> {
    #[track_caller]
    fn acquire_read(&self) -> ReadGuard<'_, T> {
        must_not_hold(self);
        let guard = self.read().unwrap_or_else(PoisonError::into_inner);
        let _held = Held::new(self);
        ReadGuard { guard, _held }
    }

    #[track_caller]
    fn acquire_write(&self) -> WriteGuard<'_, T> {
        must_not_hold(self);
        let guard = self.write().unwrap_or_else(PoisonError::into_inner);
        let _held = Held::new(self);
        WriteGuard { guard, _held }
    }

    fn try_acquire_read(&self) -> Option<ReadGuard<'_, T>> {
        let guard = free(self.try_read())?;
        let _held = Held::new(self);
        Some(ReadGuard { guard, _held })
    }

    fn try_acquire_write(&self) -> Option<WriteGuard<'_, T>> {
        let guard = free(self.try_write())?;
        let _held = Held::new(self);
        Some(WriteGuard { guard, _held })
    }
}

/// [`Condvar`] of locks as above.
pub trait CondvarExt {
    /// Gives up the lock until the variable is notified.
    fn wait_acquire<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T>;
    /// The same for at most this long.
    fn wait_acquire_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        most: Duration,
    ) -> MutexGuard<'a, T>;
    /// Waits while the condition holds, but at most this long. True if it ended, false if the time did.
    fn wait_acquire_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        most: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> (MutexGuard<'a, T>, bool);
}

impl CondvarExt for Condvar {
    fn wait_acquire<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_acquire_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        most: Duration,
    ) -> MutexGuard<'a, T> {
        self.wait_timeout(guard, most)
            .unwrap_or_else(PoisonError::into_inner)
            .0
    }

    fn wait_acquire_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        most: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> (MutexGuard<'a, T>, bool) {
        let (guard, end) = self
            .wait_timeout_while(guard, most, condition)
            .unwrap_or_else(PoisonError::into_inner);
        (guard, !end.timed_out())
    }
}

/// How often a thread that does not wait for ever looks whether a lock is free. Few threads do, and seldom.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

type Stuck = Box<dyn Fn() -> bool>;

thread_local! {
    static STUCK: RefCell<Option<Stuck>> = const { RefCell::new(None) };
}

/// Until this is dropped, this thread does not wait for locks of [`shared_unless_stuck`] that may stay
/// taken. Calls nest: the inner one counts.
#[must_use]
pub struct Unwilling(Option<Stuck>);

/// Has this thread wait for such locks only while `stuck` says no: whoever merely looks does not wait for a
/// thread that holds a lock while it waits for a device.
pub fn unwilling_when(stuck: impl Fn() -> bool + 'static) -> Unwilling {
    Unwilling(STUCK.replace(Some(Box::new(stuck))))
}

impl Drop for Unwilling {
    fn drop(&mut self) {
        STUCK.set(self.0.take());
    }
}

/// The lock, shared with other readers. `None`: this thread does not wait for it any longer
/// ([`unwilling_when`]).
#[track_caller]
pub fn shared_unless_stuck<T: ?Sized>(lock: &RwLock<T>) -> Option<ReadGuard<'_, T>> {
    if STUCK.with_borrow(Option::is_none) {
        return Some(lock.acquire_read());
    }
    loop {
        match lock.try_acquire_read() {
            Some(guard) => return Some(guard),
            None if STUCK.with_borrow(|s| s.as_ref().is_some_and(|stuck| stuck())) => return None,
            None => std::thread::sleep(LOOK_AGAIN),
        }
    }
}

/// Does something when a panic unwinds through the scope of this value.
pub struct OnPanic<F: FnMut()> {
    act: F,
    /// Made by a destructor while another panic unwinds, which is none of its scope.
    unwinding: bool,
}

impl<F: FnMut()> OnPanic<F> {
    /// `act` must not panic: that would end the process.
    pub fn new(act: F) -> OnPanic<F> {
        OnPanic {
            act,
            unwinding: std::thread::panicking(),
        }
    }
}

impl<F: FnMut()> Drop for OnPanic<F> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.unwinding {
            (self.act)();
        }
    }
}

fn free<G>(tried: Result<G, TryLockError<G>>) -> Option<G> {
    match tried {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(e)) => Some(e.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{catch_unwind, AssertUnwindSafe};

    #[test]
    fn only_a_panic_of_its_own_scope_sets_a_guard_off() {
        let mut n = 0;
        drop(OnPanic::new(|| n += 1));
        assert_eq!(n, 0);
        let mut count = || n += 1;
        let died = catch_unwind(AssertUnwindSafe(|| {
            let _guard = OnPanic::new(&mut count);
            panic!("on purpose");
        }));
        assert!(died.is_err() && n == 1);
        struct Destructor<'a>(&'a mut u32);
        impl Drop for Destructor<'_> {
            fn drop(&mut self) {
                drop(OnPanic::new(|| *self.0 += 1));
            }
        }
        let died = catch_unwind(AssertUnwindSafe(|| {
            let _d = Destructor(&mut n);
            panic!("on purpose");
        }));
        assert!(died.is_err() && n == 1);
    }

    #[test]
    fn a_thread_that_only_looks_does_not_wait_for_a_lock_that_stays_taken() {
        let lock = RwLock::new(1);
        assert_eq!(shared_unless_stuck(&lock).as_deref(), Some(&1));
        let all = unwilling_when(|| true);
        {
            let _taken = lock.acquire_write();
            std::thread::scope(|s| {
                s.spawn(|| {
                    let _unwilling = unwilling_when(|| true);
                    assert!(shared_unless_stuck(&lock).is_none());
                });
            });
        }
        assert_eq!(shared_unless_stuck(&lock).as_deref(), Some(&1));
        // What is only taken for a moment is waited for.
        let taken = std::sync::Barrier::new(2);
        std::thread::scope(|s| {
            s.spawn(|| {
                let mut n = lock.acquire_write();
                taken.wait();
                std::thread::sleep(Duration::from_millis(20));
                *n = 2;
            });
            taken.wait();
            {
                let _unwilling = unwilling_when(|| false);
                assert_eq!(shared_unless_stuck(&lock).as_deref(), Some(&2));
            }
        });
        drop(all);
        assert!(STUCK.with_borrow(Option::is_none));
    }

    #[test]
    #[cfg(debug_assertions)]
    fn a_thread_that_asks_for_a_lock_it_holds_is_found_without_a_writer() {
        let (lock, other) = (RwLock::new(1), RwLock::new(2));
        let again = |act: &dyn Fn()| catch_unwind(AssertUnwindSafe(act)).is_err();
        {
            let _shared = lock.acquire_read();
            assert!(again(&|| drop(lock.acquire_read())));
            assert!(again(&|| drop(lock.acquire_write())));
            assert_eq!(*other.acquire_read(), 2);
            // Who does not wait may have it twice, and who has it twice holds it until both are gone.
            let twice = lock.try_acquire_read();
            assert!(twice.is_some());
            drop(twice);
            assert!(again(&|| drop(lock.acquire_read())));
            // Another thread is another matter.
            std::thread::scope(|s| s.spawn(|| assert_eq!(*lock.acquire_read(), 1)).join()).unwrap();
        }
        *lock.acquire_write() += 1;
        assert_eq!(*lock.acquire_read(), 2);
    }

    #[test]
    #[cfg(debug_assertions)]
    fn a_thread_that_waits_for_others_programs_with_a_lock_is_found() {
        let lock = RwLock::new(1);
        let check = || catch_unwind(|| assert_none_held("waits")).is_err();
        assert!(!check());
        {
            let _shared = lock.acquire_read();
            assert!(check());
        }
        assert!(!check());
        let alone = lock.try_acquire_write();
        assert!(check());
        drop(alone);
        assert!(!check());
    }

    #[test]
    fn locks_held_by_a_thread_that_panicked_can_be_had_again() {
        let (m, rw, cv) = (Mutex::new(1), RwLock::new(1), Condvar::new());
        let died = catch_unwind(AssertUnwindSafe(|| {
            let (mut a, mut b) = (m.acquire(), rw.acquire_write());
            (*a, *b) = (2, 2);
            assert!(m.try_acquire().is_none() && rw.try_acquire_read().is_none());
            panic!("on purpose");
        }));
        assert!(died.is_err() && m.is_poisoned() && rw.is_poisoned());
        assert_eq!(*m.acquire(), 2);
        assert_eq!(*m.try_acquire().unwrap(), 2);
        {
            let shared = rw.acquire_read();
            assert_eq!((*shared, *rw.try_acquire_read().unwrap()), (2, 2));
            assert!(rw.try_acquire_write().is_none());
        }
        *rw.acquire_write() += 1;
        assert_eq!(*rw.try_acquire_write().unwrap(), 3);
        let short = Duration::from_millis(1);
        let guard = cv.wait_acquire_timeout(m.acquire(), short);
        let (guard, ended) = cv.wait_acquire_while(guard, short, |n| *n == 2);
        assert!(!ended);
        drop(guard);
        std::thread::scope(|s| {
            let mut guard = m.acquire();
            s.spawn(|| {
                *m.acquire() = 7;
                cv.notify_all();
            });
            while *guard != 7 {
                guard = cv.wait_acquire(guard);
            }
        });
    }
}
