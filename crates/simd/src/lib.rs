//! Inner loops for the vectors the processor has: sums of RAID-Z parity and fletcher4.
//!
//! Each loop is written once, over arrays; the compiler makes vectors of it. It is compiled twice: for
//! what every processor of the architecture has, and for AVX2, chosen when it runs. Only the products of
//! parity with any number are written with instructions.
//!
//! `unsafe` in this crate: calls of functions that need AVX2, each behind the question whether it is
//! there.
#![deny(unsafe_op_in_unsafe_fn)]
#![warn(missing_docs)]

mod fletcher;
mod parity;

pub use fletcher::fletcher4;
pub use parity::{rebuild, rows, Factor, POLY};

/// What the loops are compiled for on this machine: `avx2`, or `portable`.
pub fn implementation() -> &'static str {
    match has_avx2() {
        true => "avx2",
        false => "portable",
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn has_avx2() -> bool {
    std::is_x86_feature_detected!("avx2")
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn has_avx2() -> bool {
    false
}
