//! Inner loops compiled for the processor's vector instructions: RAID-Z parity and fletcher4.
//!
//! Each loop is written once, over arrays that the compiler turns into vectors. It is compiled twice: for the
//! baseline of the architecture, and for AVX2, which is selected at run time. Only the multiplications of
//! parity use intrinsics.
//!
//! Invariant: every `unsafe` block calls a function that needs AVX2, and stands behind the check that the processor has it.
#![deny(unsafe_op_in_unsafe_fn)]

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
