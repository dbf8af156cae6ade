//! Memory that O_DIRECT accepts.

use std::alloc::{alloc_zeroed, dealloc, handle_alloc_error, Layout};
use std::ops::{Deref, DerefMut};

/// Alignment of every bounce buffer: a page satisfies each file system and driver known.
const ALIGN: usize = 4096;

/// A page-aligned buffer of fixed capacity.
pub struct Aligned {
    ptr: *mut u8,
    cap: usize,
}

// SAFETY: the buffer is uniquely owned plain memory.
unsafe impl Send for Aligned {}

impl Aligned {
    /// `cap` bytes, rounded up to whole pages, zeroed once.
    pub fn new(cap: usize) -> Aligned {
        let cap = cap.max(1).next_multiple_of(ALIGN);
        let layout = Self::layout(cap);
        // SAFETY: the layout has non-zero size.
        let ptr = unsafe { alloc_zeroed(layout) };
        if ptr.is_null() {
            handle_alloc_error(layout);
        }
        Aligned { ptr, cap }
    }

    fn layout(cap: usize) -> Layout {
        // Only an address space overflow could fail here, and `cap` is at most a few MiB.
        Layout::from_size_align(cap, ALIGN).expect("bounce buffer layout")
    }

    /// Bytes allocated.
    pub fn capacity(&self) -> usize {
        self.cap
    }
}

impl Deref for Aligned {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `ptr` owns `cap` initialised bytes.
        unsafe { std::slice::from_raw_parts(self.ptr, self.cap) }
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes it unique.
        unsafe { std::slice::from_raw_parts_mut(self.ptr, self.cap) }
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        // SAFETY: allocated with the same layout in `new`.
        unsafe { dealloc(self.ptr, Self::layout(self.cap)) }
    }
}
