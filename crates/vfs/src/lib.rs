//! A file system in service: what all doors to it (FUSE, and others to come) share. A door translates a protocol and nothing else.
//!
//! * [`Served`] is the file system: its gate, its admission, its `.zfs`, the end of service.
//! * [`Door`] is one way in, with what its clients know: node ids, files open for writing, what they cache. The operations
//!   (lookup, read, rename …) are its methods, in terms of the POSIX layer. They take a [`Caller`].
//! * [`Subscriber`] is how a door's clients are told that what they cache is not true any more.
//!
//! # Invariants
//! 1. The room holds nothing that must survive: node ids, open files and what clients were told, no data.
//! 2. It administers nothing. What `.zfs` shows, and what is done to snapshots there, comes through [`Snapshots`].
//! 3. A request that changes something waits in [`admission`](Admission) while the pool is suspended, and every request for the
//!    head in the gate while the file system is, before it takes any lock.
//! 4. No request inside the gate has clients told of anything that makes them wait for other requests.
//! 5. What is changed through one door is published to the others, after the request has left the gate. With one door that costs a
//!    look at a number.
//!
//! # Lock order
//! The gate → locks of the POSIX layer → one shard of the nodes → the counted ids. The lists of writers, fresh and stale nodes, and
//! of doors, are locked last and for a moment.
//!
//! Start reading at [`Door`] (`door.rs`, what all operations need); then `operations.rs`, what each request turns into.
//! `attributes.rs`, `data.rs` and `directories.rs` have the operations that take more than a line, `ctldir.rs` is `.zfs`, `nodes.rs`
//! the ids, `listings.rs` what clients keep of directories that they open without asking, `publish.rs` what doors tell each other, `suspension.rs` the suspension of a file system in service,
//! `places.rs` what file handles that outlive a door mean, `view.rs` several file systems as one tree.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod admission;
mod answers;
mod attributes;
mod caller;
mod control_gate;
mod control_lists;
mod ctldir;
mod data;
mod directories;
mod door;
mod fresh;
mod gate;
mod listings;
mod nodes;
mod of_head;
mod operations;
mod overtaking;
mod page_reads;
mod places;
mod power;
mod publish;
mod snapshots;
mod stale;
mod subscriber;
mod suspension;
mod view;
mod view_copy;
mod view_handles;
mod view_ids;
mod writers;

pub use admission::Admission;
pub use answers::{Attrs, Entry, Listing, Lookup, OpenHow, Opened, WriteHow, FOREVER};
pub use caller::{Caller, Nobody, Waiting};
pub use control_gate::Ended;
pub use ctldir::{dir_id, is_ours, Ctldir, Dir, NAME};
pub use door::{Door, Served};
pub use nodes::{set_limit, ROOT};
pub use of_head::OfHead;
pub use places::Place;
pub use power::CAPABILITIES;
pub use publish::Change;
pub use snapshots::{Content, Figures, Key, Snapdir, Snapshots, Volume};
pub use subscriber::{Nothing, Subscriber, Truth};
pub use suspension::Suspended;
pub use view::{At, Extra, Spare, View, Within};
pub use view_ids::{ViewIds, ViewRoot};
pub use writers::{Writers, WRITER};
