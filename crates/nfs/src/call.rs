//! What a call is carried out with, in either program: the client, what is shared, the results.

use crate::exports::{Exports, Names};
use crate::xdr::Writer;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

/// A client, as its connection shows it.
pub struct Client {
    /// Its address.
    pub address: SocketAddr,
    /// It has hung up: nobody waits for replies.
    pub gone: AtomicBool,
}

impl Client {
    /// A client that is there.
    pub fn new(address: SocketAddr) -> Client {
        Client {
            address,
            gone: AtomicBool::new(false),
        }
    }

    /// Whether it has hung up.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }
}

/// What is shared, and the names in it.
pub(crate) struct Shared {
    pub exports: Box<dyn Exports>,
    pub names: Names,
}

/// How a procedure ended, for the head of the reply.
pub(crate) enum Outcome {
    /// The results were written.
    Done,
    /// There is no such procedure.
    NoProcedure,
    /// The arguments are none.
    Garbage,
}

/// Results of a procedure, or none.
pub(crate) type Written = Result<(), Garbled>;

/// The arguments of a procedure are none.
pub(crate) struct Garbled;

impl From<crate::xdr::Garbage> for Garbled {
    fn from(_: crate::xdr::Garbage) -> Garbled {
        Garbled
    }
}

/// The writer of results, for a procedure.
pub(crate) type Results<'a> = &'a mut Writer;
