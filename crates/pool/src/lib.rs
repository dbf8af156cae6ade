//! The conductor.
#![forbid(unsafe_code)]

mod spacemaps;
pub use spacemaps::{MapFeatures, SpaceMaps};
