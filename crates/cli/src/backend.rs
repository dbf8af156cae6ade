//! The trait of what answers requests: a daemon, or data in tests.

use api::{ApiError, Progress, Reply, Request};
use std::os::fd::BorrowedFd;

/// Whoever answers requests: the daemon, or a test.
pub trait Backend {
    /// Sends `request` and waits for the answer; `progress` is told of what comes before it.
    fn ask(
        &mut self,
        request: &Request,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Reply, ApiError>;
    /// As [`Backend::ask`]; an open file goes with the request.
    fn ask_with_file(
        &mut self,
        request: &Request,
        _file: BorrowedFd<'_>,
    ) -> Result<Reply, ApiError> {
        self.ask(request, &mut |_| {})
    }
    /// As [`Backend::ask_with_file`]; what the daemon tells meanwhile is handed over as it comes.
    fn ask_passing(
        &mut self,
        request: &Request,
        _file: BorrowedFd<'_>,
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
