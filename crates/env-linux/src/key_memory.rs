//! Memory of AWS-LC, the library that encrypts: locked, kept out of core dumps, wiped when freed.
//!
//! Keys ready for use lie where AWS-LC allocates them, which is nowhere a caller could reach. So it allocates here. All it
//! allocates comes from pages that are locked once and never given back; there is little of it: a key ready for use takes
//! about a kilobyte, and `codec` keeps 64 for each dataset.
//!
//! 1. A piece begins after its size, at a multiple of 16. Its class is the least power of two that holds both.
//! 2. A free piece is all zeros.
//! 3. No call comes back into AWS-LC while the list of free pieces is locked.

use crate::sys;
use aws_lc_sys::CRYPTO_set_mem_functions;
use base::sync::MutexExt;
use rustix::mm::{mmap_anonymous, MapFlags, ProtFlags};
use std::ffi::{c_char, c_int, c_void};
use std::io;
use std::ptr::null_mut;
use std::sync::{Mutex, OnceLock};

/// Bytes in front of a piece: its size, and up to where things are aligned.
const HEAD: usize = 16;
/// Bytes of the smallest class, as a power of two.
const SMALLEST: u32 = 6;
/// Bytes of the largest class, as a power of two. More is refused: nothing that has to do with keys of datasets is near.
const LARGEST: u32 = 20;
/// Bytes mapped and locked at once, at least.
const CHUNK: usize = 64 << 10;

/// Addresses of free pieces by class, and what is left of the newest chunk.
struct Pieces {
    free: [Vec<usize>; (LARGEST - SMALLEST + 1) as usize],
    rest: usize,
    left: usize,
}

static PIECES: Mutex<Pieces> = Mutex::new(Pieces {
    free: [const { Vec::new() }; (LARGEST - SMALLEST + 1) as usize],
    rest: 0,
    left: 0,
});

/// Is told when memory cannot be locked.
static UNLOCKED: OnceLock<fn(&io::Error)> = OnceLock::new();

/// Has AWS-LC allocate from locked memory from now on. It must not have allocated anything yet: call this before anything
/// is encrypted. `unlocked` is told, perhaps often, that memory cannot be locked (`RLIMIT_MEMLOCK`); it is used all the
/// same. Must not be called from a library: it holds for the whole process.
///
/// Errors: it has been called before.
pub fn keep_crypto_memory(unlocked: fn(&io::Error)) -> io::Result<()> {
    if UNLOCKED.set(unlocked).is_err() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    // SAFETY: the three functions keep the contract of malloc, realloc and free among themselves, and call nothing of
    // AWS-LC. Nothing was allocated before, so they free only what they allocated.
    match unsafe { CRYPTO_set_mem_functions(Some(allocate), Some(change), Some(release)) } {
        1 => Ok(()),
        _ => Err(io::ErrorKind::AlreadyExists.into()),
    }
}

/// Index of the class whose pieces hold `size` bytes and their head.
fn class(size: usize) -> Option<usize> {
    let bits = size.checked_add(HEAD)?.checked_next_power_of_two()?;
    let bits = bits.trailing_zeros().max(SMALLEST);
    (bits <= LARGEST).then_some((bits - SMALLEST) as usize)
}

fn bytes_of(class: usize) -> usize {
    1 << (class + SMALLEST as usize)
}

impl Pieces {
    /// The address of a piece of zeros.
    fn take(&mut self, class: usize) -> Option<usize> {
        if let Some(free) = self.free[class].pop() {
            return Some(free);
        }
        let bytes = bytes_of(class);
        if self.left < bytes {
            let len = bytes.max(CHUNK);
            // SAFETY: a new mapping, of nobody else's memory.
            let chunk = unsafe {
                mmap_anonymous(
                    null_mut(),
                    len,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::PRIVATE,
                )
            };
            // What was left of the last chunk is never used; that is less than the chunk.
            (self.rest, self.left) = (chunk.ok()?.expose_provenance(), len);
            if let (Err(e), Some(told)) = (sys::lock_memory(self.rest, len), UNLOCKED.get()) {
                told(&e);
            }
        }
        let at = self.rest;
        (self.rest, self.left) = (at + bytes, self.left - bytes);
        Some(at)
    }
}

extern "C" fn allocate(size: usize, _: *const c_char, _: c_int) -> *mut c_void {
    let Some(class) = class(size) else {
        return null_mut();
    };
    let Some(at) = PIECES.acquire().take(class) else {
        return null_mut();
    };
    let head = std::ptr::with_exposed_provenance_mut::<usize>(at);
    // SAFETY: the piece is ours, readable and writable, on a multiple of 64, and holds HEAD bytes and `size` more.
    unsafe {
        head.write(size);
        head.cast::<u8>().add(HEAD).cast()
    }
}

/// Size of a piece and its head's address.
///
/// # Safety
/// `piece` comes from `allocate` and was not released.
unsafe fn head(piece: *mut c_void) -> (usize, *mut usize) {
    // SAFETY: HEAD bytes in front of every piece are its own, and begin with its size.
    unsafe {
        let head = piece.cast::<u8>().sub(HEAD).cast::<usize>();
        (head.read(), head)
    }
}

/// As `realloc`.
unsafe extern "C" fn change(
    piece: *mut c_void,
    size: usize,
    file: *const c_char,
    line: c_int,
) -> *mut c_void {
    let new = allocate(size, file, line);
    if piece.is_null() || new.is_null() {
        return new;
    }
    // SAFETY: AWS-LC gives back what it got; both pieces hold the bytes that are copied, and are not the same.
    unsafe {
        let (old, _) = head(piece);
        std::ptr::copy_nonoverlapping(piece.cast::<u8>(), new.cast::<u8>(), old.min(size));
        release(piece, file, line);
    }
    new
}

/// As `free`.
unsafe extern "C" fn release(piece: *mut c_void, _: *const c_char, _: c_int) {
    if piece.is_null() {
        return;
    }
    // SAFETY: AWS-LC gives back what it got, once.
    let (size, head) = unsafe { head(piece) };
    let Some(class) = class(size) else { return };
    for word in 0..(HEAD + size).div_ceil(size_of::<usize>()) {
        // SAFETY: within the piece. Volatile: nobody reads it, and it must be done all the same.
        unsafe { head.add(word).write_volatile(0) };
    }
    PIECES.acquire().free[class].push(head.expose_provenance());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::null;

    fn get(size: usize) -> *mut c_void {
        allocate(size, null(), 0)
    }

    fn put(piece: *mut c_void) {
        // SAFETY: the tests give back what they got, once.
        unsafe { release(piece, null(), 0) }
    }

    fn bytes<'a>(piece: *mut c_void, size: usize) -> &'a mut [u8] {
        // SAFETY: the tests look only at pieces they have, in their size.
        unsafe { std::slice::from_raw_parts_mut(piece.cast(), size) }
    }

    /// One test, since there is one memory.
    #[test]
    fn keys_and_other_pieces_are_locked_and_wiped_when_freed() {
        use aws_lc_rs::aead::{Aad, LessSafeKey, Nonce, UnboundKey, AES_256_GCM};
        keep_crypto_memory(|e| panic!("{e}")).unwrap();
        assert!(keep_crypto_memory(|_| ()).is_err(), "once is enough");
        let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &[7; 32]).unwrap());
        let mut data = [1; 100];
        let nonce = || Nonce::assume_unique_for_key([0; 12]);
        let mac = key
            .seal_in_place_separate_tag(nonce(), Aad::empty(), &mut data)
            .unwrap();
        key.open_in_place_separate_tag(nonce(), Aad::empty(), mac.as_ref(), &mut data)
            .unwrap();
        assert_eq!(data, [1; 100]);
        drop(key);
        let freed = |class: usize| PIECES.acquire().free[class].len();
        let large = class(500).unwrap();
        let all: usize = (large..=class(4000).unwrap()).map(freed).sum();
        assert!(all > 0, "the key was elsewhere");

        let sizes = [0, 1, 47, 48, 49, 600, 4080, 4081, 70_000, (1 << 20) - 16];
        let pieces: Vec<_> = sizes.iter().map(|s| get(*s)).collect();
        for (n, (piece, size)) in pieces.iter().zip(sizes).enumerate() {
            assert_eq!(piece.addr() % 16, 0);
            assert!(bytes(*piece, size).iter().all(|b| *b == 0));
            bytes(*piece, size).fill(n as u8 + 1);
        }
        for (n, (piece, size)) in pieces.iter().zip(sizes).enumerate() {
            assert!(
                bytes(*piece, size).iter().all(|b| *b == n as u8 + 1),
                "{size}"
            );
        }
        let flags = flags_at(pieces[5].addr());
        assert!(
            flags.contains(&"dd".to_string()),
            "in core dumps: {flags:?}"
        );
        assert!(flags.contains(&"lo".to_string()), "not locked: {flags:?}");

        let bigger = unsafe { change(pieces[5], 5000, null(), 0) };
        assert!(bytes(bigger, 600).iter().all(|b| *b == 6));
        let again = get(600);
        assert_eq!(again, pieces[5], "the piece that was freed last");
        assert!(bytes(again, 600).iter().all(|b| *b == 0), "wiped");

        assert!(get((1 << 20) - 15).is_null() && get(usize::MAX).is_null());
        put(null_mut());
        for piece in pieces.into_iter().chain([bigger]) {
            put(piece);
        }
    }

    /// What the kernel says of the memory at an address.
    fn flags_at(address: usize) -> Vec<String> {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut here = false;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|r| r.split_once('-'));
            let number = |s: &str| usize::from_str_radix(s, 16).ok();
            if let Some((from, to)) = range.and_then(|(a, b)| Some((number(a)?, number(b)?))) {
                here = (from..to).contains(&address);
            }
            if let Some(flags) = line.strip_prefix("VmFlags: ").filter(|_| here) {
                return flags.split_whitespace().map(String::from).collect();
            }
        }
        panic!("no memory at {address:x}");
    }
}
