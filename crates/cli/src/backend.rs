//! The trait of what answers requests: a daemon, or data in tests.

use api::{ApiError, Progress, Reply, Request};
use std::os::fd::OwnedFd;

/// Whoever answers requests: the daemon, or a test.
pub trait Backend {
    /// Sends `request` and waits for the answer; `progress` is told of what comes before it.
    fn ask(
        &mut self,
        request: &Request,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Reply, ApiError>;
    /// As [`Backend::ask`]; the command's end of a stream is handed to `attach` when it comes.
    fn ask_streaming(
        &mut self,
        request: &Request,
        _attach: &mut dyn FnMut(OwnedFd),
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Reply, ApiError> {
        self.ask(request, progress)
    }
    /// As [`Backend::ask`]; parts of the answer are handed over as they come.
    fn ask_in_parts(
        &mut self,
        request: &Request,
        take: &mut dyn FnMut(Reply),
    ) -> Result<(), ApiError> {
        self.ask(request, &mut |_| {}).map(take)
    }
    /// Whether a daemon runs; starts none.
    fn running(&mut self) -> bool;
}
