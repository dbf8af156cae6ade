//! How the object of a call is found, and what a call uses it through: its caller, the door, the share.

use crate::attributes;
use crate::call::{Client, Results, Shared};
use crate::exports::{access, cred, status, Entered, Export, Opened};
use crate::handle::Handle;
use crate::rpc::Call;
use base::{Kind, Result};
use std::sync::Arc;
use vfs::{Caller, Dir, Entry, Place, Waiting};
use zpl::attr::mode;
use zpl::{Attr, Cred};

/// Who makes a call.
pub struct By<'a> {
    cred: Cred,
    client: &'a Client,
    opened: Arc<Opened>,
}

impl<'a> By<'a> {
    /// The server itself, on a client's behalf.
    pub fn nobody(client: &'a Client, opened: &Arc<Opened>) -> By<'a> {
        By {
            cred: Cred::root(),
            client,
            opened: opened.clone(),
        }
    }

    /// The same caller, whose permissions are not to be checked any more if `checked`.
    pub fn checked_if(&self, checked: bool) -> By<'a> {
        let cred = self.cred.clone();
        By {
            cred: match checked {
                true => cred.already_checked(),
                false => cred,
            },
            client: self.client,
            opened: self.opened.clone(),
        }
    }

    /// Whether it is the owner of an object.
    pub fn owns(&self, a: &Attr) -> bool {
        self.cred.uid == a.uid
    }

    /// Whether it has the privileges of root.
    pub fn is_privileged(&self) -> bool {
        self.cred.privileged
    }
}

/// A call that waits.
struct Waits(Arc<Opened>);

impl Waiting for Waits {
    fn is_over(&self) -> bool {
        self.0.is_over()
    }
}

impl Caller for By<'_> {
    fn uid(&self) -> u32 {
        self.cred.uid
    }

    fn gid(&self) -> u32 {
        self.cred.gid
    }

    fn process(&self) -> u32 {
        0
    }

    fn cred(&self) -> Cred {
        self.cred.clone()
    }

    fn is_gone(&self) -> bool {
        self.client.is_gone()
    }

    fn about_to_wait(&self) -> Box<dyn Waiting> {
        Box::new(Waits(self.opened.clone()))
    }
}

/// What a call is carried out with.
pub struct Cx<'a> {
    pub shared: &'a Shared,
    pub client: &'a Client,
    pub export: &'a Export,
    pub door: &'a Entered<'a>,
    pub by: By<'a>,
    pub read_only: bool,
}

/// A node that a call uses.
pub struct Held<'a> {
    door: &'a Entered<'a>,
    pub entry: Entry,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.door.forget(self.entry.node, 1);
    }
}

impl<'a> Cx<'a> {
    /// The object of a handle.
    pub fn find(&self, place: &Place) -> Result<Held<'a>> {
        if *place == Place::Control(Dir::Volumes) {
            return Err(Kind::Stale.into());
        }
        Ok(self.held(self.door.find(&self.by, place)?))
    }

    /// The number of the file system in attributes.
    pub fn fsid(&self) -> u64 {
        self.export.fs.number()
    }

    /// A node that was found.
    pub fn held(&self, entry: Entry) -> Held<'a> {
        Held {
            door: self.door,
            entry,
        }
    }

    /// Another handle of the same call, which must be of the same file system.
    pub fn also(&self, bytes: &[u8]) -> Result<Held<'a>> {
        let handle = Handle::read(bytes).map_err(|_| Kind::BadHandle)?;
        match handle.fs == self.export.fs {
            true => self.find(&handle.place),
            false => Err(Kind::CrossDevice.into()),
        }
    }

    /// Attributes as they are now, with what clients of other doors have written.
    pub fn attr(&self, h: &Held<'_>) -> Option<Attr> {
        if mode::is_reg(h.entry.attr.mode) {
            self.door.collect_written(h.entry.node);
        }
        self.door
            .getattr(&self.by, h.entry.node)
            .ok()
            .map(|a| a.attr)
    }

    /// Refuses changes where there can be none.
    pub fn may_change(&self, h: &Held<'_>) -> Result<()> {
        match self.read_only || vfs::is_ours(h.entry.node) {
            true => Err(Kind::ReadOnly.into()),
            false => Ok(()),
        }
    }

    /// A change is on stable storage when this returns.
    pub fn stable(&self, node: u64) -> Result<()> {
        self.door.fsync(&self.by, node)
    }

    /// The handle of a node; none of what is not served.
    pub fn handle(&self, e: &Entry) -> Option<Handle> {
        let fs = self.export.fs;
        let place = self.door.place(e)?;
        Some(Handle { fs, place })
    }

    /// Writes an error with what follows from an object's attributes.
    pub fn attributes_after(&self, h: &Held<'_>, out: Results<'_>) {
        attributes::maybe(out, self.fsid(), self.attr(h).as_ref());
    }

    /// The same for an object that may have been changed.
    pub fn wcc(&self, h: &Held<'_>, out: Results<'_>) {
        attributes::wcc(out, self.fsid(), self.attr(h).as_ref());
    }
}

/// A call whose object is to be found.
pub struct Asked<'a> {
    pub shared: &'a Shared,
    pub client: &'a Client,
    pub call: &'a Call,
}

impl Asked<'_> {
    /// Finds the object of a handle and carries the call out. If it cannot be found, the results are the error and `absent`
    /// items that say that there are no attributes.
    pub fn on(
        &self,
        handle: &[u8],
        absent: usize,
        out: Results<'_>,
        carry_out: impl FnOnce(&Cx<'_>, &Held<'_>, Results<'_>),
    ) {
        if let Err(kind) = self.try_on(handle, out, carry_out) {
            out.u32(status(kind));
            for _ in 0..absent {
                out.bool(false);
            }
        }
    }

    fn try_on(
        &self,
        handle: &[u8],
        out: Results<'_>,
        carry_out: impl FnOnce(&Cx<'_>, &Held<'_>, Results<'_>),
    ) -> std::result::Result<(), Kind> {
        let Asked {
            shared,
            client,
            call,
        } = self;
        let handle = Handle::read(handle).map_err(|_| Kind::BadHandle)?;
        let export = shared.exports.find(handle.fs).ok_or(Kind::Stale)?;
        let access = access(&export.share, client.address, &shared.names).ok_or(Kind::Access)?;
        let door = export.opened.enter().ok_or(Kind::Stale)?;
        let cx = Cx {
            shared,
            client,
            export: &export,
            door: &door,
            by: By {
                cred: cred(&export.share, &call.auth),
                client,
                opened: export.opened.clone(),
            },
            read_only: access.read_only,
        };
        let held = cx.find(&handle.place).map_err(|e| e.kind)?;
        carry_out(&cx, &held, out);
        Ok(())
    }
}
