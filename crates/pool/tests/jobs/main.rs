//! Background jobs and early tasks: what a txg does beside writing what is dirty.

mod early;
mod free;
mod slices;
mod world;
