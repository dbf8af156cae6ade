//! Opening, reading and writing files, and the effects of clients' caches on them.

use crate::answers::{OpenHow, Opened, WriteHow};
use crate::caller::Caller;
use crate::door::{Door, Node};
use crate::gate::Running;
use crate::overtaking;
use crate::publish::Change;
use crate::writers::WRITER;
use base::{Block, Data, Kind, Result};
use std::ops::Range;
use std::sync::Arc;
use zpl::{WriteOpts, Zfs, Znode};

/// With less room than this, bytes, clients ask before every write and give their pages early.
pub(crate) const SCARCE: u64 = 64 << 20;
/// What a write is taken to bring, bytes.
const USUAL_WRITE: u64 = 1 << 20;

impl Door {
    /// Has clients drop pages that are older than a direct write that was just done.
    fn drop_pages(&self, node: u64, offset: u64, len: usize) {
        if let Some(clients) = self.clients() {
            if len > 0 && self.page_reads.may_have(node) {
                // It waits for reads of such pages that are under way.
                clients.content(node, Some((offset, len as u64)));
            }
        }
    }

    /// Opens a file of the head, of a snapshot, or a volume.
    pub fn open(&self, by: &dyn Caller, node: u64, how: OpenHow) -> Result<Opened> {
        match crate::ctldir::is_ours(node) {
            true if how.write || how.truncate => return Err(Kind::ReadOnly.into()),
            false if how.truncate => self.served.admission.call(by)?,
            _ => {}
        }
        let keep = match self.resolve(by, node)? {
            Node::Object(zfs, z) => {
                // Of a retired node clients look the name up again.
                if !self.nodes.opened(node) {
                    return Err(Kind::Stale.into());
                }
                let opened = self.open_object(by, (&zfs, &z), node, how);
                drop(zfs);
                if how.truncate && opened.is_ok() {
                    self.publish(&[Change::Size(node)]);
                }
                return opened.inspect_err(|_| self.nodes.closed(node));
            }
            Node::Dir(_) => return Err(Kind::IsDir.into()),
            Node::File(t, z) => {
                if let Some(zfs) = t.zfs() {
                    zfs.open_file(&z, true, false, false, false, &by.cred())?;
                }
                true
            }
            Node::Volume(_, v) => v.snapshot,
        };
        Ok(Opened {
            keep,
            ..Opened::default()
        })
    }

    fn open_object(
        &self,
        by: &dyn Caller,
        (zfs, z): (&Running<'_>, &Arc<Znode>),
        node: u64,
        how: OpenHow,
    ) -> Result<Opened> {
        if self.stale.is_told(by, node) {
            self.writers.opened(node, z.gen as u32);
            return Ok(self.opened(zfs, true));
        }
        let c = by.cred();
        zfs.open_file(z, how.read, how.write, how.append, how.truncate, &c)?;
        if how.truncate {
            self.spend_power(by, zfs, z)?;
            let set = zpl::SetAttr {
                size: Some(0),
                kill_suidgid: how.kill_suidgid,
                through_handle: true,
                ..zpl::SetAttr::default()
            };
            zfs.setattr(z, &set, &c)?;
        }
        let changed = if how.write {
            self.writers.opened(node, z.gen as u32);
            self.ttl(zfs, node, z).is_zero()
        } else {
            // What is read from a client's cache is never heard of, so opening counts as reading.
            !how.keeps_atime && zfs.touch_atime(z)
        };
        if let Some(clients) = self.clients().filter(|_| changed) {
            clients.attributes(node);
        }
        Ok(self.opened(zfs, how.write))
    }

    /// The answer for an object of the head that was opened, perhaps for writing.
    pub(crate) fn opened(&self, zfs: &Zfs, writer: bool) -> Opened {
        Opened {
            handle: if writer { WRITER } else { 0 },
            keep: true,
            uncached: zfs.props().direct,
            listed: false,
        }
    }

    /// A client is about to let a write into its cache: the moment to tell of earlier ones that
    /// failed. When room is scarce they are asked for, so that this is known in time.
    pub fn before_write(&self, by: &dyn Caller, node: u64) -> Result<()> {
        self.stale.wait(by, node)?;
        let (zfs, z) = self.head(by, node)?;
        if self.writers.is_closing() {
            return Err(Kind::Io.into());
        }
        let room = zfs.room(&z).unwrap_or(0);
        // The client may send what waits for the file system to run.
        drop((zfs, z));
        if room < SCARCE && self.writers.announced(node) * USUAL_WRITE >= room / 4 {
            self.settle(node);
            self.writers.asked(node);
        }
        match self.writers.take_failure(node) {
            Some(kind) => Err(kind.into()),
            None => Ok(()),
        }
    }

    /// Reads from a file of the head, of a snapshot, or a volume. `put` gets blocks and what of them is meant, in order. `cached`:
    /// the client keeps what it gets.
    pub fn read(
        &self,
        by: &dyn Caller,
        node: u64,
        (offset, size): (u64, usize),
        cached: bool,
        put: &mut dyn FnMut(&Block, Range<usize>),
    ) -> Result<()> {
        self.collect(node);
        let n = self.resolve(by, node)?;
        match &n {
            Node::Object(..) if cached => self.page_reads.add(node),
            Node::Volume(_, v) => return v.bytes.read(offset, size, put).map(drop),
            _ => {}
        }
        let (zfs, z) = n.object(Kind::IsDir)?;
        zfs.read_blocks(z, offset, size, put)?;
        Ok(())
    }

    /// Writes to a file of the head; how many bytes.
    pub fn write(
        &self,
        by: &dyn Caller,
        node: u64,
        offset: u64,
        data: Data<'_>,
        how: WriteHow,
    ) -> Result<usize> {
        if crate::ctldir::is_ours(node) {
            return Err(Kind::ReadOnly.into());
        }
        let range = offset..offset.saturating_add(data.len() as u64);
        let mut noted = None;
        match how.cached {
            true => self.served.admission.cached_data(by)?,
            false => {
                if self.served.has_others() {
                    let object = self.nodes.object_of(node);
                    noted = object.map(|(o, _)| self.served.under_way.note(o, range.clone()));
                }
                self.collect(node);
                self.served.admission.call(by)?;
            }
        }
        let zfs = self.served.gate.enter(by)?;
        if how.cached && self.stale.drops(node) {
            // Pages of before the file system was replaced went with what it was then.
            return Ok(data.len());
        }
        let z = self.nodes.get(&zfs, node)?;
        let opts = WriteOpts {
            append: false,
            sync: how.sync,
            kill_suidgid: how.kill_suidgid,
            most: None,
            cached: how.cached,
        };
        self.spend_power(by, &zfs, &z)?;
        let done = match &noted {
            Some(noted) => {
                let mut written = noted.begin();
                let done = zfs.write(&z, offset, data, opts);
                if let Ok(n) = done {
                    *written = n as u64;
                }
                done
            }
            None if how.cached => self.write_back(&zfs, &z, range, data, opts),
            None => zfs.write(&z, offset, data, opts),
        };
        drop(zfs);
        self.writers.arrived();
        match done {
            Ok(n) => {
                if how.direct {
                    self.drop_pages(node, offset, n);
                }
                self.publish(&[Change::Content(node)]);
                Ok(n)
            }
            // Clients remember two kinds of failed write-back for the next fsync or close: no
            // space, and everything else.
            Err(e) if how.cached && matches!(e.kind, Kind::Quota | Kind::NoSpace) => {
                self.written_too_much(node, e.kind);
                Err(Kind::NoSpace.into())
            }
            Err(e) => Err(e),
        }
    }

    /// Writes what a client had in its cache; how many bytes of it are done with.
    fn write_back(
        &self,
        zfs: &Zfs,
        z: &Znode,
        range: Range<u64>,
        data: Data<'_>,
        opts: WriteOpts,
    ) -> Result<usize> {
        let overtaken = self.served.under_way.overtaken(z.object, &range);
        if overtaken.is_empty() {
            return zfs.write(z, range.start, data, opts);
        }
        let within = |at: u64| (at - range.start) as usize;
        let (left, _locks) = overtaking::left(range.clone(), &overtaken);
        for part in left {
            let piece = data.slice(within(part.start)..within(part.end));
            let n = zfs.write(z, part.start, piece, opts)?;
            if n < piece.len() {
                return Ok(within(part.start) + n);
            }
        }
        Ok(data.len())
    }

    /// Where data (or a hole) begins at or after `offset`.
    pub fn seek(&self, by: &dyn Caller, node: u64, offset: u64, data: bool) -> Result<u64> {
        if !crate::ctldir::is_ours(node) {
            self.settle(node);
            self.collect(node);
        }
        let n = self.resolve(by, node)?;
        if let Node::Volume(_, v) = &n {
            let found = v.bytes.seek(offset, data)?;
            return found.ok_or_else(|| Kind::NoDevice.into());
        }
        let (zfs, z) = n.object(Kind::Invalid)?;
        zfs.seek(z, offset, data)
    }

    /// Data that a client had accepted found no space. It tells with the next fsync and at close; so
    /// that who goes on writing without either does not do so for ever, the next write is refused:
    /// without valid attributes the client asks for them first.
    fn written_too_much(&self, node: u64, kind: Kind) {
        if !self.writers.fail(node, kind) {
            return;
        }
        if let Some(clients) = self.clients() {
            clients.attributes_later(node);
        }
    }
}
