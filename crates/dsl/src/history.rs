//! The pool's history (pool format §22).

use crate::core::{Core, Event};
use base::sync::MutexExt;
use base::{bail, Error, Result};
use disk::history::{keys, pack_record, unpack_record, HistoryPhys, MAX_RECORD};
use disk::{NvList, ObjType};
use dmu::{Dnode, NewObject, Objset, Tx};
use std::sync::{Arc, Mutex};
use zap::Zap;

/// The text of an event that has none.
pub(crate) const NOTHING: &str = " ";

impl Core {
    /// Notes an event of the txg that is being written.
    pub(crate) fn note(&self, name: &'static str, ds: &crate::Dataset, text: impl Into<String>) {
        let dataset = ds.full_name();
        // Hidden datasets are not shown to users.
        if dataset.contains('$') {
            return;
        }
        self.events.acquire().push(Event {
            name,
            dataset: Some((dataset, ds.object())),
            text: text.into(),
        });
    }
}

impl crate::Dsl {
    /// What was done since the last call, in order; for the pool's history.
    pub fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut *self.core.events.acquire())
    }

    /// Notes in its txg that the version of a file system was raised.
    pub fn note_upgrade(&self, ds: &crate::Dataset, old: u64, new: u64) {
        self.core
            .note("upgrade", ds, format!("from {old} to {new}"));
    }
}

/// The history object of a pool.
pub struct History {
    dn: Arc<Dnode>,
    phys: Mutex<HistoryPhys>,
}

impl History {
    /// Opens it; `None` if the pool has none yet.
    pub fn open(mos: &Objset) -> Result<Option<History>> {
        let Some(o) = Zap::new(&mos.hold(1)?).get("history")? else {
            return Ok(None);
        };
        let dn = mos.hold(o)?;
        let phys = HistoryPhys::decode(&dn.bonus())?;
        Ok(Some(History {
            dn,
            phys: Mutex::new(phys),
        }))
    }

    /// Makes an empty one; `pool_space` is the deflated size of the normal class.
    pub fn create(mos: &Objset, tx: &Tx, pool_space: u64) -> Result<History> {
        let phys = HistoryPhys::new(pool_space);
        let dn = mos.alloc(
            tx,
            &NewObject {
                obj_type: ObjType::SPA_HISTORY,
                block_size: 128 << 10,
                bonus_type: ObjType::SPA_HISTORY_OFFSETS,
                bonus: phys.encode(),
                ..NewObject::default()
            },
        )?;
        Zap::new(&mos.hold(1)?).add_u64(tx, "history", dn.object())?;
        Ok(History {
            dn,
            phys: Mutex::new(phys),
        })
    }

    /// Number of its MOS object.
    pub fn object(&self) -> u64 {
        self.dn.object()
    }

    /// Appends a record, dropping the oldest where the ring is full.
    pub fn append(&self, tx: &Tx, record: &NvList) -> Result<()> {
        if !tx.is_syncing() {
            bail!(Bug, "history is written in syncing context");
        }
        let bytes = pack_record(record);
        let len = bytes.len() as u64;
        let mut phys = self.phys.acquire();
        let mut h = phys.clone();
        if len >= h.phys_max_off - h.pool_create_len {
            bail!(ArgTooBig, "history record of {len} bytes");
        }
        while h.must_drop(len) && h.bof < h.eof {
            let mut n = [0; 8];
            self.read_at(&h, h.bof, &mut n)?;
            let n = u64::from_le_bytes(n).saturating_add(8);
            if n > h.eof - h.bof {
                return Err(Error::damaged(
                    "pool history: record longer than the history",
                ));
            }
            h.bof += n;
            h.records_lost += 1;
        }
        // A block that cannot be read would fail the txg.
        for (off, n) in h.pieces(h.eof, len) {
            self.dn.check_edges(off, n)?;
        }
        let mut at = 0;
        for (off, n) in h.pieces(h.eof, len) {
            self.dn.write(tx, off, &bytes[at..at + n as usize])?;
            at += n as usize;
        }
        h.eof += len;
        // Late commands are no creation: with them the rest of the ring would be too small, or none.
        let early = h.bof == 0 && h.eof <= h.phys_max_off / 2;
        if h.pool_create_len == 0 && early && record.get(keys::COMMAND).is_some() {
            // The pool's creation is kept for ever; the ring begins behind it.
            h.pool_create_len = h.eof;
            h.bof = h.eof;
        }
        self.dn.set_bonus(tx, &h.encode())?;
        *phys = h;
        Ok(())
    }

    fn read_at(&self, h: &HistoryPhys, logical: u64, buf: &mut [u8]) -> Result<()> {
        let mut at = 0;
        for (off, n) in h.pieces(logical, buf.len() as u64) {
            self.dn.read(off, &mut buf[at..at + n as usize])?;
            at += n as usize;
        }
        Ok(())
    }

    /// Every record, oldest first, starting with the pool's creation.
    pub fn records(&self) -> Result<Vec<NvList>> {
        let h = self.phys.acquire().clone();
        let mut out = Vec::new();
        for (from, to) in [(0, h.pool_create_len), (h.bof, h.eof)] {
            let mut at = from;
            while at < to {
                let mut n = [0; 8];
                self.read_at(&h, at, &mut n)?;
                let n = u64::from_le_bytes(n);
                if n > MAX_RECORD || n + 8 > to - at {
                    return Err(Error::damaged(
                        "pool history: record longer than the history",
                    ));
                }
                let mut b = vec![0; n as usize + 8];
                self.read_at(&h, at, &mut b)?;
                match unpack_record(&b)? {
                    Some((r, used)) => {
                        out.push(r);
                        at += used as u64;
                    }
                    None => return Err(Error::damaged("pool history: broken record")),
                }
            }
        }
        Ok(out)
    }
}
