//! Space accounting of directories: used, reserved and available bytes (data format §9, §16).

use crate::core::{bump, Core, Triple};
use crate::{Dataset, Dir};
use base::{Error, Kind, Result};
use disk::dsl::{Used, DIR_USED_BREAKDOWN};
use dmu::{Need, Tx};
use std::sync::Weak;

/// Space left, and what limits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Available {
    /// Deflated bytes.
    pub bytes: u64,
    /// A quota is what limits, not the size of the pool.
    pub by_quota: bool,
}

impl Available {
    pub(crate) fn limit(self, bytes: u64) -> Available {
        match bytes < self.bytes {
            true => Available {
                bytes,
                by_quota: true,
            },
            false => self,
        }
    }
}

impl Core {
    pub(crate) fn usable(&self, net_free: bool) -> u64 {
        let s = self.space.get().and_then(Weak::upgrade);
        s.map_or(u64::MAX, |s| s.usable(net_free))
    }
}

impl Core {
    fn inflation(&self) -> u64 {
        let s = self.space.get().and_then(Weak::upgrade);
        s.map_or(24, |s| s.inflation())
    }
}

impl Dir {
    /// Accounts for a change of the space used by class `what`, up the tree.
    pub(crate) fn diduse(&self, tx: &Tx, what: Used, t: Triple) -> Result<()> {
        self.diduse_split(tx, &[(what, t.used)], t)
    }

    /// The same for several classes at once; `t.used` is their sum.
    pub(crate) fn diduse_split(&self, tx: &Tx, classes: &[(Used, i64)], t: Triple) -> Result<()> {
        if t == Triple::default() && classes.iter().all(|(_, d)| *d == 0) {
            return Ok(());
        }
        let (used, accounted) = self.update(tx, |p| {
            let (before, old) = (p.used_bytes, p.used_bytes.max(p.reserved));
            bump(&mut p.used_bytes, t.used);
            bump(&mut p.compressed_bytes, t.comp);
            bump(&mut p.uncompressed_bytes, t.uncomp);
            if p.flags & DIR_USED_BREAKDOWN != 0 {
                for (class, d) in classes {
                    bump(&mut p.used_breakdown[*class as usize], *d);
                }
            }
            // Never below zero, so it may be less than what was asked for: what the last passes over the MOS
            // allocate is charged with the next txg, and lost with a crash.
            let used = p.used_bytes as i64 - before as i64;
            (used, p.used_bytes.max(p.reserved) as i64 - old as i64)
        })?;
        if let Some(parent) = self.parent() {
            let up = Triple {
                used: accounted,
                ..t
            };
            let classes = [(Used::Child, used), (Used::ChildRsrv, accounted - used)];
            parent.diduse_split(tx, &classes, up)?;
        }
        Ok(())
    }

    /// Moves space from one class to another.
    pub(crate) fn transfer(&self, tx: &Tx, bytes: i64, from: Used, to: Used) -> Result<()> {
        self.diduse_split(tx, &[(from, -bytes), (to, bytes)], Triple::default())
    }

    /// Bytes that may still be used below this directory.
    pub fn available(&self) -> Available {
        self.available_for(false)
    }

    pub(crate) fn available_for(&self, net_free: bool) -> Available {
        let p = self.phys();
        let mut a = match self.parent() {
            Some(parent) => {
                let mut a = parent.available_for(net_free);
                let own = p.reserved.saturating_sub(p.used_bytes);
                a.bytes = a.bytes.saturating_add(own);
                a
            }
            None => Available {
                bytes: self.core.usable(net_free).saturating_sub(p.used_bytes),
                by_quota: false,
            },
        };
        if p.quota != 0 && !net_free {
            a = a.limit(p.quota.saturating_sub(p.used_bytes));
        }
        a
    }

    /// Bytes held back for this directory by its reservation.
    pub fn unused_reservation(&self) -> u64 {
        let p = self.phys();
        p.reserved.saturating_sub(p.used_bytes)
    }
}

impl Dataset {
    /// Bytes that may still be written to this head, by the state on disk.
    pub fn available(&self) -> Available {
        self.available_for(false)
    }

    fn available_for(&self, net_free: bool) -> Available {
        let mut a = self.dir().available_for(net_free);
        let (refquota, refreservation) = self.ref_limits();
        let p = self.phys();
        a.bytes = a
            .bytes
            .saturating_add(refreservation.saturating_sub(p.unique_bytes));
        if refquota != 0 && !net_free {
            a = a.limit(refquota.saturating_sub(p.referenced_bytes));
        }
        a
    }

    /// Whether a change of `need` fits beside `pending` bytes not yet on disk. `Again`: after
    /// what is pending has been written it may.
    pub fn check_space(&self, need: Need, pending: u64) -> Result<()> {
        self.check_within(self.available_for(need.net_free), need, pending)
    }

    /// The same with what is available known.
    fn check_within(&self, a: Available, need: Need, pending: u64) -> Result<()> {
        let full = || {
            let kind = if a.by_quota {
                Kind::Quota
            } else {
                Kind::NoSpace
            };
            Err(Error::about(kind, self.full_name(), "no space left"))
        };
        if a.bytes == 0 {
            return match pending {
                0 => full(),
                _ => Err(Kind::Again.into()),
            };
        }
        // As the reference does, what is asked for itself may overshoot: slop is for that.
        if pending > 0 && pending.saturating_mul(self.core.inflation()) >= a.bytes {
            return Err(Kind::Again.into());
        }
        if need.bytes > a.bytes && !need.net_free && pending == 0 {
            return full();
        }
        Ok(())
    }
}

impl dmu::Admission for Dataset {
    fn has_room(&self, need: Need, pending: u64) -> Result<()> {
        // Other datasets take from the same pool; their dirty data is known only as a sum. It has
        // no part in a quota.
        let a = self.available_for(need.net_free);
        let pending = match a.by_quota {
            true => pending,
            false => pending.max(self.core.dmu().pending_space()),
        };
        self.check_within(a, need, pending)
    }

    fn admit(&self, need: Need, pending: u64) -> Result<()> {
        match self.has_room(need, pending) {
            Err(e) if e.kind == Kind::Again => {}
            r => return r,
        }
        let dmu = self.core.dmu().clone();
        // Let what is on its way be counted exactly, twice because frees of one txg may only
        // show in the next.
        let Some(driver) = dmu.driver() else {
            return self.check_space(need, 0);
        };
        for _ in 0..2 {
            driver.make_room(dmu.open_txg())?;
            match self.check_space(need, 0) {
                Ok(()) => return Ok(()),
                Err(e) if e.kind == Kind::NoSpace || e.kind == Kind::Quota => {}
                r => return r,
            }
        }
        self.check_space(need, 0)
    }
}
