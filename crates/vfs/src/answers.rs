//! Arguments and answers of the operations that the POSIX layer has no type for.

use std::time::Duration;
use zpl::{Attr, DirEntry};

/// As long as a client likes: it is told when something changes.
pub const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// Attributes of a node.
#[derive(Clone, Copy, Debug)]
pub struct Attrs {
    /// The attributes.
    pub attr: Attr,
    /// How long a client may keep them.
    pub keep: Duration,
}

/// A node under a name. Each one given out is one lookup of the node, until [`crate::Door::forget`].
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Node id.
    pub node: u64,
    /// With the node id unique for ever.
    pub generation: u64,
    /// Attributes of the node.
    pub attr: Attr,
    /// How long a client may keep the attributes.
    pub keep_attr: Duration,
    /// How long a client may keep the name.
    pub keep_name: Duration,
}

/// What a name leads to.
#[derive(Clone, Copy, Debug)]
pub enum Lookup {
    /// A node.
    Found(Entry),
    /// Nothing, which a client may remember this long.
    Missing(Duration),
}

/// An open file or directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Given back with operations on the open file. It holds nothing: 0, [`crate::WRITER`], or the number of a listing of `.zfs`.
    pub handle: u64,
    /// What the client has of the content (of a directory: of the listing) is true.
    pub keep: bool,
    /// The client is to cache nothing of the content.
    pub uncached: bool,
    /// It is part of `.zfs` itself: the listing must not be kept.
    pub listed: bool,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenHow {
    /// To be read.
    pub read: bool,
    /// To be written.
    pub write: bool,
    /// Written at the end only.
    pub append: bool,
    /// Emptied.
    pub truncate: bool,
    /// Reading does not change the access time.
    pub keeps_atime: bool,
    /// The caller lacks the privilege to keep set-id bits.
    pub kill_suidgid: bool,
}

/// How data are written.
#[derive(Clone, Copy, Debug, Default)]
pub struct WriteHow {
    /// From a client's write-back cache: permission was checked, and the writer answered, before.
    pub cached: bool,
    /// Durable when it is answered.
    pub sync: bool,
    /// Past the client's cache, of which pages may be older then.
    pub direct: bool,
    /// The caller lacks the privilege to keep set-id bits.
    pub kill_suidgid: bool,
}

/// Takes the entries of a directory with their attributes.
pub trait Listing {
    /// Whether there is room for one more with a name of so many bytes.
    fn fits(&mut self, name_len: usize) -> bool;

    /// Takes an entry with its inode number, and its node where that is known: one lookup, whatever is returned. Whether there is
    /// room for more.
    fn add(&mut self, ino: u64, e: &DirEntry<'_>, entry: Option<&Entry>) -> bool;
}
