//! The trait that is told of the requests of a batch, for statistics.

/// One request as the device sees it: an operation, a part of a large one, or several merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// A write, not a read.
    pub write: bool,
    /// Bytes transferred.
    pub bytes: u64,
    /// Index of the operation it is (the first of) in the batch.
    pub op: usize,
    /// Several operations were merged into it.
    pub merged: bool,
    /// Nanoseconds from when the batch was given to when the request was sent, and from then until it
    /// ended. `None` where nobody has a clock.
    pub times: Option<(u64, u64)>,
}

/// Is told about the requests of a batch, by the threads that send them.
pub trait Watch: Sync {
    /// `n` requests wait to be sent.
    fn queued(&self, write: bool, n: u64);
    /// One of them was sent.
    fn started(&self, write: bool);
    /// It ended, well or badly.
    fn ended(&self, request: &Request);
}
