//! What is known of an export.

/// What the server says of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Bytes.
    pub size: u64,
    /// Bytes of the smallest request: a power of two, 1 to 64 KiB.
    pub least: u32,
    /// Bytes in which it is best read and written: a power of two, at least `least`.
    pub preferred: u32,
    /// Bytes of the largest read or write; at least [`crate::CHUNK`] or `least`.
    pub most: u32,
    /// Nothing can be written.
    pub read_only: bool,
    /// Flushes are carried out. Without, whatever a reply was sent for is on stable storage.
    pub flushes: bool,
    /// Trims are carried out.
    pub trims: bool,
    /// A flush of one connection covers what was written over others.
    pub multi: bool,
}
