//! [`Server`]: from the bytes of a call to those of the reply.

use crate::call::{Client, Outcome, Shared};
use crate::exports::{access, Exports, Names};
use crate::handle::{self, Handle};
use crate::replies::{Key, Replies, Seen};
use crate::rpc::{self, Accepted, Call, Message};
use crate::xdr::Reader;
use crate::{mounts, procedures};
use std::sync::atomic::{AtomicBool, Ordering};

/// The server, whatever its clients are connected through.
pub struct Server {
    shared: Shared,
    replies: Replies,
    stopping: AtomicBool,
}

impl Server {
    /// A server of these.
    pub fn new(exports: Box<dyn Exports>) -> Server {
        Server {
            shared: Shared {
                exports,
                names: Names::default(),
            },
            replies: Replies::default(),
            stopping: AtomicBool::new(false),
        }
    }

    /// From now on nobody is answered: what is not there any more for the process to end will be again when the next one has
    /// begun, and clients ask again.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
    }

    /// Whether nobody is answered any more.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Whether a client may have anything.
    pub fn knows(&self, client: &Client) -> bool {
        let exports = self.shared.exports.list();
        let mut all = exports.iter();
        all.any(|e| access(&e.share, client.address, &self.shared.names).is_some())
    }

    /// Carries a call out; the reply, if there is one.
    ///
    /// # Errors
    /// It is no call: whoever sent it speaks another protocol.
    pub fn handle(&self, client: &Client, message: &[u8]) -> Result<Option<Vec<u8>>, NoCall> {
        let (call, args) = match rpc::read(message).map_err(|_| NoCall)? {
            Message::Refused(reply) => return Ok(Some(reply)),
            Message::Call(call, args) => (call, args),
        };
        let versions = match call.program {
            procedures::PROGRAM => (3, 3),
            mounts::PROGRAM => (1, 3),
            _ => {
                return Ok(Some(
                    rpc::accepted(call.xid, Accepted::NoProgram).into_bytes(),
                ))
            }
        };
        if call.version < versions.0 || call.version > versions.1 {
            let mut w = rpc::accepted(call.xid, Accepted::OtherVersion);
            w.u32(versions.0).u32(versions.1);
            return Ok(Some(w.into_bytes()));
        }
        let once = call.program == procedures::PROGRAM && procedures::changes(call.procedure);
        // What a stranger asks for is refused as often as it comes.
        if !once || !self.may_have(client, args) {
            return Ok(Some(self.carry_out(client, &call, args)));
        }
        let key = Key::of(client.address.ip(), call.xid, message);
        let is_gone = || client.is_gone() || self.is_stopping();
        Ok(match self.replies.begin(key, client.address, &is_gone) {
            Seen::Never => {
                let begun = self.replies.begun(key);
                let reply = self.carry_out(client, &call, args);
                begun.answered(reply.clone());
                Some(reply)
            }
            // It came twice over one connection, which gets the reply when it is there.
            Seen::UnderWay => None,
            Seen::Answered(reply) => Some(reply),
        })
    }

    /// Whether a client may have the file system of the handle with which arguments begin.
    fn may_have(&self, client: &Client, args: &[u8]) -> bool {
        let handle = Reader::new(args).opaque(handle::MOST).ok();
        let handle = handle.and_then(|h| Handle::read(h).ok());
        let export = handle.and_then(|h| self.shared.exports.find(h.fs));
        export.is_some_and(|e| access(&e.share, client.address, &self.shared.names).is_some())
    }

    fn carry_out(&self, client: &Client, call: &Call, args: &[u8]) -> Vec<u8> {
        let mut w = rpc::accepted(call.xid, Accepted::Success);
        let args = &mut Reader::new(args);
        let outcome = match call.program {
            mounts::PROGRAM => mounts::call(&self.shared, client, call, args, &mut w),
            _ => procedures::call(&self.shared, client, call, args, &mut w),
        };
        let failed = match outcome {
            Outcome::Done => return w.into_bytes(),
            Outcome::NoProcedure => Accepted::NoProcedure,
            Outcome::Garbage => Accepted::Garbage,
        };
        rpc::accepted(call.xid, failed).into_bytes()
    }
}

/// What came is no call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoCall;
