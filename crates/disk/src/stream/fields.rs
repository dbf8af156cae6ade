//! Fields of records at fixed offsets, in either byte order.

use super::RECORD;

/// A type of fields. Offsets are constants of the format, below [`RECORD`].
pub(super) trait Field: Sized {
    fn get(b: &[u8; RECORD], at: usize, swapped: bool) -> Self;
    fn put(&self, b: &mut [u8; RECORD], at: usize, swapped: bool);
}

/// The field at offset `at`.
pub(super) fn get<F: Field>(b: &[u8; RECORD], at: usize, swapped: bool) -> F {
    F::get(b, at, swapped)
}

/// Stores the field at offset `at`.
pub(super) fn put<F: Field>(b: &mut [u8; RECORD], at: usize, v: F, swapped: bool) {
    v.put(b, at, swapped);
}

macro_rules! integers {
    ($($t:ty),*) => {
        $(impl Field for $t {
            fn get(b: &[u8; RECORD], at: usize, swapped: bool) -> $t {
                let mut a = [0; size_of::<$t>()];
                a.copy_from_slice(&b[at..at + size_of::<$t>()]);
                match swapped {
                    false => <$t>::from_le_bytes(a),
                    true => <$t>::from_be_bytes(a),
                }
            }

            fn put(&self, b: &mut [u8; RECORD], at: usize, swapped: bool) {
                let a = match swapped {
                    false => self.to_le_bytes(),
                    true => self.to_be_bytes(),
                };
                b[at..at + size_of::<$t>()].copy_from_slice(&a);
            }
        })*
    };
}

integers!(u32, u64);

/// Bytes are not swapped: salts, initialization vectors, MACs.
impl<const N: usize> Field for [u8; N] {
    fn get(b: &[u8; RECORD], at: usize, _swapped: bool) -> [u8; N] {
        let mut a = [0; N];
        a.copy_from_slice(&b[at..at + N]);
        a
    }

    fn put(&self, b: &mut [u8; RECORD], at: usize, _swapped: bool) {
        b[at..at + N].copy_from_slice(self);
    }
}

impl Field for u8 {
    fn get(b: &[u8; RECORD], at: usize, _swapped: bool) -> u8 {
        b[at]
    }

    fn put(&self, b: &mut [u8; RECORD], at: usize, _swapped: bool) {
        b[at] = *self;
    }
}

impl<const N: usize> Field for [u64; N] {
    fn get(b: &[u8; RECORD], at: usize, swapped: bool) -> [u64; N] {
        std::array::from_fn(|i| u64::get(b, at + 8 * i, swapped))
    }

    fn put(&self, b: &mut [u8; RECORD], at: usize, swapped: bool) {
        for (i, w) in self.iter().enumerate() {
            w.put(b, at + 8 * i, swapped);
        }
    }
}
