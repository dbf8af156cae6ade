//! The tests of operations and of lives once more, with requests over io_uring.
#![allow(clippy::duplicate_mod)]

#[path = "lifecycle.rs"]
mod lifecycle;
#[path = "operations.rs"]
mod operations;
