//! Memory that must not be written to swap: keys.
//!
//! Rooms that hold keys call [`keep`] for the place where a key stays. What that does is up to the
//! process, which calls [`set_keeper`] before there are keys. Without a keeper nothing is done.

use std::sync::OnceLock;

/// Locks `len` bytes from an address on in memory.
type Keeper = fn(address: usize, len: usize);

static KEEPER: OnceLock<Keeper> = OnceLock::new();

/// Sets what [`keep`] does; the first call counts.
pub fn set_keeper(keeper: Keeper) {
    let _ = KEEPER.set(keeper);
}

/// Asks for the memory of `value` never to leave the machine's memory. `value` must not move
/// afterwards, so it should be in a box.
pub fn keep<T: ?Sized>(value: &T) {
    if let Some(keeper) = KEEPER.get() {
        let address = std::ptr::from_ref(value).cast::<u8>() as usize;
        keeper(address, size_of_val(value));
    }
}
