//! The trait through which the clients of a door are told that what they cache is not true any more.

use zpl::Time;

/// What is true of a regular file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truth {
    /// Node id.
    pub node: u64,
    /// Generation of the object, as in [`crate::Entry`].
    pub generation: u32,
    /// Bytes.
    pub size: u64,
    /// When its content was changed.
    pub mtime: Time,
}

/// Tells the clients of a door of changes. Nobody is told from inside the gate, but by [`Subscriber::attributes`] and
/// [`Subscriber::attributes_later`], which must not wait for requests.
///
/// Failures are not reported: they mean that the clients have gone.
pub trait Subscriber: Send + Sync + 'static {
    /// Attributes of a node may have changed.
    fn attributes(&self, node: u64);

    /// The same, by another thread than this one: the request being served may be what keeps the node in use.
    fn attributes_later(&self, node: u64);

    /// The content of a node may have changed, from an offset for so many bytes; none: all of it, attributes too. What a client
    /// has written and not handed on comes first. Returns when it has come and the rest is forgotten.
    fn content(&self, node: u64, range: Option<(u64, u64)>);

    /// A name of a directory leads elsewhere, or nowhere, or is new.
    fn name(&self, parent: u64, name: &[u8]);

    /// Every name may lead elsewhere.
    fn all_names(&self);

    /// Puts bytes of a file into the cache of clients, which grows the file for them. Whether that was done.
    fn grow(&self, node: u64, offset: u64, data: &[u8]) -> bool;

    /// Tells clients that keep sizes and times of files by themselves ([`crate::Door::keeps_times`]) what is true. What they ask
    /// for meanwhile comes from the process or thread of which `teller` is told, and is answered with what is true. For each file
    /// whether they know.
    fn tell(&self, files: &[Truth], teller: &(dyn Fn(Option<u32>) + Sync)) -> Vec<bool>;
}

/// Clients that cache nothing.
pub struct Nothing;

impl Subscriber for Nothing {
    fn attributes(&self, _: u64) {}

    fn attributes_later(&self, _: u64) {}

    fn content(&self, _: u64, _: Option<(u64, u64)>) {}

    fn name(&self, _: u64, _: &[u8]) {}

    fn all_names(&self) {}

    fn grow(&self, _: u64, _: u64, _: &[u8]) -> bool {
        true
    }

    fn tell(&self, files: &[Truth], _: &(dyn Fn(Option<u32>) + Sync)) -> Vec<bool> {
        vec![true; files.len()]
    }
}
