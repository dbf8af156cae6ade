//! Attributes and flags: telling clients of them, and setting them.

use crate::answers::{Attrs, FOREVER};
use crate::caller::Caller;
use crate::data::SCARCE;
use crate::directories::BRIEF;
use crate::door::{Door, Node};
use crate::power::CAPABILITIES;
use crate::publish::Change;
use base::{Kind, Result};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;
use zpl::{Attr, SetAttr, SetTime, Time, Zfs, Znode};

/// Attributes of objects that are changing are kept this long only: the space they take is known
/// when their txg is on disk.
const FRESH: Duration = Duration::from_secs(1);

/// With every unlink a client that keeps times sends those of the file that goes; writing them would cost a
/// transaction. Should it get a name after all (O_TMPFILE), the client sends them again then.
fn times_of_doomed(z: &Znode, set: &SetAttr) -> Option<(Time, Time)> {
    let (Some(SetTime::To(mtime)), Some(ctime)) = (set.mtime, set.ctime) else {
        return None;
    };
    let times = SetAttr {
        mtime: set.mtime,
        ctime: set.ctime,
        through_handle: set.through_handle,
        written_back: set.written_back,
        ..SetAttr::default()
    };
    (*set == times && z.is_doomed()).then_some((mtime, ctime))
}

impl Door {
    /// How long clients may keep the attributes of an object.
    pub(crate) fn ttl(&self, zfs: &Zfs, node: u64, z: &Znode) -> Duration {
        let ttl = self.content_ttl(zfs, node, z);
        ttl.min(self.listing_ttl(zfs, node, z))
    }

    fn content_ttl(&self, zfs: &Zfs, node: u64, z: &Znode) -> Duration {
        let writer = self.writers.is_open(node);
        if writer && (self.writers.is_closing() || !zfs.room(z).is_ok_and(|room| room >= SCARCE))
            || self.stale.contains(node)
        {
            return Duration::ZERO;
        }
        if writer || z.is_changing() {
            self.fresh.note(node);
            return FRESH;
        }
        FOREVER
    }

    /// Attributes of an object of the head.
    #[inline]
    pub(crate) fn head_attrs(&self, zfs: &Zfs, node: u64, z: &Znode) -> Attrs {
        // Asked first: what is on disk by then is in the figures.
        let keep = self.ttl(zfs, node, z);
        let attr = self.served.power.shown(zfs.getattr(z));
        Attrs { attr, keep }
    }

    /// Attributes of what a node means.
    #[inline]
    pub(crate) fn attrs(&self, n: &Node<'_>, node: u64) -> Attrs {
        let (attr, keep) = match n {
            Node::Object(zfs, z) => return self.head_attrs(zfs, node, z),
            // Every snapshot that is made or destroyed changes the time.
            Node::Dir(d) => (self.served.ctl.dir_attr(*d), Duration::ZERO),
            Node::File(t, z) => (self.served.power.shown(t.attr(z)), FOREVER),
            Node::Volume(t, v) => (self.served.ctl.volume_attr(t, v), BRIEF),
        };
        Attrs { attr, keep }
    }

    /// Sets attributes of an object of the head, and returns them.
    pub fn setattr(&self, by: &dyn Caller, node: u64, set: &SetAttr) -> Result<Attrs> {
        if crate::ctldir::is_ours(node) {
            return Err(Kind::ReadOnly.into());
        }
        if set.size.is_some() {
            self.collect(node);
        }
        let told = self.stale.is_told(by, node);
        // Times of data that a client had accepted go with these.
        if !set.written_back && !told {
            self.served.admission.call(by)?;
        }
        let (zfs, z) = self.head(by, node)?;
        if told || set.written_back && self.stale.drops(node) {
            return Ok(self.head_attrs(&zfs, node, &z));
        }
        if let Some((mtime, ctime)) = times_of_doomed(&z, set) {
            let attr = Attr {
                mtime,
                ctime,
                ..self.served.power.shown(zfs.getattr(&z))
            };
            let keep = Duration::ZERO;
            return Ok(Attrs { attr, keep });
        }
        let mut wanted = *set;
        // truncate(2) to the size there is. Such a client sends times with every other new size and
        // shows its own until it forgets the file, so here they have to stay as they are.
        if wanted.size.is_some_and(|size| size == zfs.getattr(&z).size)
            && (wanted.mtime, wanted.ctime) == (None, None)
            && !wanted.kill_suidgid
            && self.keeps_times.load(Ordering::Relaxed)
        {
            zfs.open_file(&z, false, true, false, true, &by.cred())?;
            wanted.size = None;
            let nothing = SetAttr {
                through_handle: wanted.through_handle,
                ..Default::default()
            };
            if wanted == nothing {
                return Ok(self.head_attrs(&zfs, node, &z));
            }
        }
        if wanted.size.is_some() {
            self.spend_power(by, &zfs, &z)?;
        }
        let a = zfs.setattr(&z, &wanted, &by.cred())?;
        let attrs = Attrs {
            attr: self.served.power.shown(a),
            keep: self.ttl(&zfs, node, &z),
        };
        drop(zfs);
        self.publish(&[match wanted.size {
            Some(_) => Change::Size(node),
            None => Change::Attributes(node),
        }]);
        Ok(attrs)
    }

    /// Attributes of an object of the head or of a snapshot as they are, whatever is kept from clients; none of other nodes.
    pub fn object_attr(&self, by: &dyn Caller, node: u64) -> Result<Option<Attr>> {
        let n = self.resolve(by, node)?;
        Ok(n.object(Kind::Invalid).ok().map(|(zfs, z)| zfs.getattr(z)))
    }

    /// DOS flags of an object; none of other nodes.
    pub fn dos_flags(&self, by: &dyn Caller, node: u64) -> Result<Option<u64>> {
        let n = self.resolve(by, node)?;
        Ok(n.object(Kind::Invalid)
            .ok()
            .map(|(zfs, z)| zfs.dos_flags(z)))
    }

    /// Sets DOS flags of an object of the head.
    pub fn set_dos_flags(&self, by: &dyn Caller, node: u64, flags: u64) -> Result<()> {
        self.change(by, node, |zfs, z| zfs.set_dos_flags(z, flags, &by.cred()))?;
        self.told_nothing(node);
        Ok(())
    }

    /// Sets the `FS_*_FL` flags of an object of the head.
    pub fn set_fs_flags(&self, by: &dyn Caller, node: u64, flags: u32) -> Result<()> {
        self.change(by, node, |zfs, z| zfs.set_fs_flags(z, flags, &by.cred()))?;
        self.told_nothing(node);
        Ok(())
    }

    /// Sets the project of an object of the head.
    pub fn set_project(&self, by: &dyn Caller, node: u64, project: u32) -> Result<()> {
        self.change(by, node, |zfs, z| zfs.set_project(z, project, &by.cred()))?;
        self.told_nothing(node);
        Ok(())
    }

    /// Attributes of a node have changed, and the answer has none.
    pub(crate) fn told_nothing(&self, node: u64) {
        self.attributes_changed(node);
        self.publish(&[Change::Attributes(node)]);
    }

    /// Clears what a change of a file would have cleared, had the client known of it.
    pub(crate) fn spend_power(&self, by: &dyn Caller, zfs: &Zfs, z: &Arc<Znode>) -> Result<()> {
        let m = z.mode();
        if !self.served.power.hides_programs() || !zpl::attr::mode::is_reg(m) {
            return Ok(());
        }
        if m & 0o4000 != 0 || m & 0o2010 == 0o2010 {
            let set = SetAttr {
                kill_suidgid: true,
                through_handle: true,
                ..SetAttr::default()
            };
            zfs.setattr(z, &set, &by.cred())?;
        }
        let root = zpl::Cred::root();
        match zfs.getxattr(z, CAPABILITIES, &root) {
            Ok(_) => zfs.removexattr(z, CAPABILITIES, &root),
            Err(_) => Ok(()),
        }
    }
}
