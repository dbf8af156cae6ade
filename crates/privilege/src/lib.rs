//! Acts that need rights: mounting, devices, settings of the kernel, sockets, programs. Every one of them is a method of [`Privilege`].
//!
//! The rooms of the daemon do none of them by themselves (`cargo xtask tidy` looks for the system calls and paths), so that the process
//! that parses pools, streams and requests can do without rights one day: it then chooses an implementation that has another
//! process do them ([`let_do`]). Today [`Direct`] does them here.
//!
//! # Invariants
//! 1. Arguments and results are data and descriptors.
//! 2. No path that others can choose is walked by this process ([`path_helper`]).
//! 3. No thread of this process asks a mount of its own while it holds `/dev/fuse` ([`with_own_files`]).
//!
//! Start reading at `acts.rs`; what travels with mounts and paths is in `question.rs`, and done by `mount.rs`, `place.rs` and
//! `holders.rs`.
#![warn(missing_docs)]

mod acts;
mod chosen;
mod direct;
mod file_table;
pub mod holders;
mod mount;
mod mount_point;
mod mount_table;
pub mod path_helper;
mod path_server;
mod place;
mod programs;
mod question;
mod sys;

pub use acts::{Answer, Backing, Device, Opening, Privilege, Program, Question, Ran, Replacing};
pub use chosen::{acts, let_do};
pub use direct::Direct;
pub use file_table::with_own_files;
pub use mount::{mount, mount_again, mount_at, Atime, Mount, MountOptions, Unmount};
pub use mount_point::{MountPoint, NoMountPoint, Trouble};
pub use mount_table::{mounted, unescape, MountInfo};
pub use path_helper::{walk_in_processes, Walker};
pub use path_server::serve_paths;
pub use place::{is_dead, objection, probe, reach, remove_mount_point};
pub use sys::refuse_descriptors;
