//! In place of the requests about datasets while they are being written.

use crate::service::Service;
use api::{ApiError, Peer, Reply, Request, Sink};
use base::Kind;
use std::sync::Arc;

#[derive(Default)]
pub struct Names;

pub fn handle(_: &Arc<Service>, _: Peer, _: Request, _: &mut dyn Sink) -> Result<Reply, ApiError> {
    Err(ApiError::sentence(
        Kind::Unsupported,
        "the daemon cannot do this in this version yet",
    ))
}
