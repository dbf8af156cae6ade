//! The door through NFS: NFS 3 (RFC 1813) and its protocol of mounts, on one TCP port.
//!
//! The protocol is translated here, into operations of `vfs`, and nothing else. The daemon says which file systems are shared, and
//! how ([`Exports`]); what the property `sharenfs` says is read in `admin`.
//!
//! # Invariants
//! 1. A reply that says that something is on stable storage leaves when it is: of a COMMIT, of a WRITE that asks for it, and of
//!    every change of names and attributes, as the protocol wants.
//! 2. The verifier of writes differs for every door that is opened, so for every start of the daemon and every mount, and after every
//!    loss of changes to damage. A client whose verifier does not fit sends again what it has not committed.
//! 3. A handle means one object for ever ([`handle`]). Whoever makes one up comes to objects of the shared file system at most, and
//!    has the rights there that he would have had by their names.
//! 4. The rights of a caller are those of the user and groups that his machine names, squashed as the share says. They are
//!    checked by the POSIX layer: nobody has checked them before.
//! 5. A client costs bounded memory whatever it sends: [`connection`] says how much.
//! 6. A change that a client sends twice, since it has not got the reply, is made once (`replies`).
//! 7. Nothing below `.zfs` is changed, and its volumes are not there.
//! 8. No name that another file system is mounted at is made, removed or renamed (`crossing`).
//!
//! Attributes of before a change (`wcc_data`) are never sent: they would have to be those of the very moment of the change, and
//! another door may change the same file at that moment.
//!
//! Start reading at [`Server::handle`]: from the bytes of a call to those of the reply.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod attributes;
mod call;
pub mod connection;
mod context;
mod crossing;
mod data;
pub mod exports;
pub mod handle;
mod listing;
mod mounts;
mod names;
mod procedures;
mod replies;
pub mod rpc;
pub mod rpcbind;
mod server;
mod xdr;

pub use call::Client;
pub use exports::{check, Export, Exports, Inside, Opened, Verifiers};
pub use server::{NoCall, Server};
