//! Pool history (pool format §22): a ring of framed, native-encoded nvlists.

use crate::bytes::{put_u64, u64_at};
use crate::nvlist::NvList;
use base::{bail, Result};

/// Bytes of the bonus of the history object.
pub const HISTORY_SIZE: usize = 40;
/// Smallest and largest value of [`HistoryPhys::phys_max_off`].
pub const MIN_LOG: u64 = 128 << 10;
/// See [`MIN_LOG`].
pub const MAX_LOG: u64 = 1 << 30;
/// No record is longer; a larger length word is damage.
pub const MAX_RECORD: u64 = 16 << 20;

/// Names of the pairs in a record.
pub mod keys {
    /// `u64`: seconds since 1970.
    pub const TIME: &str = "history time";
    /// String: host the command ran on.
    pub const HOSTNAME: &str = "history hostname";
    /// `u64`: user id of the caller.
    pub const WHO: &str = "history who";
    /// String: zone the command ran in; `linux`, `global` …
    pub const ZONE: &str = "history zone";
    /// String: the command with its arguments.
    pub const COMMAND: &str = "history command";
    /// `u64`: txg of an internal record.
    pub const TXG: &str = "history txg";
    /// String: name of the operation of an internal record.
    pub const INTERNAL_NAME: &str = "internal_name";
    /// String: details of an internal record.
    pub const INTERNAL_STR: &str = "history internal str";
    /// String: name of the dataset an internal record is about.
    pub const DSNAME: &str = "dsname";
    /// `u64`: object number of that dataset.
    pub const DSID: &str = "dsid";
    /// `u64`: the operation by number, in old pools; see [`old_event`](super::old_event).
    pub const OLD_EVENT: &str = "history internal event";
    /// String: name of the request to the kernel.
    pub const IOCTL: &str = "ioctl";
    /// Nvlist: arguments of the request.
    pub const IN_NVL: &str = "in_nvl";
    /// Nvlist: its result.
    pub const OUT_NVL: &str = "out_nvl";
    /// `i64`: bytes of the result, where it was too large to be kept.
    pub const OUT_SIZE: &str = "out_size";
    /// `i64`: error number the request ended with; absent on success.
    pub const ERRNO: &str = "errno";
    /// `i64`: time the request took, nanoseconds.
    pub const ELAPSED_NS: &str = "elapsed_ns";
}

/// Names of the operations in internal records of pools of versions before 5000, by number.
const OLD_EVENTS: [&str; 41] = [
    "invalid event",
    "pool create",
    "vdev add",
    "pool remove",
    "pool destroy",
    "pool export",
    "pool import",
    "vdev attach",
    "vdev replace",
    "vdev detach",
    "vdev online",
    "vdev offline",
    "vdev upgrade",
    "pool clear",
    "pool scrub",
    "pool property set",
    "create",
    "clone",
    "destroy",
    "destroy_begin_sync",
    "inherit",
    "property set",
    "quota set",
    "permission update",
    "permission remove",
    "permission who remove",
    "promote",
    "receive",
    "rename",
    "reservation set",
    "replay_inc_sync",
    "replay_full_sync",
    "rollback",
    "snapshot",
    "filesystem version upgrade",
    "refquota set",
    "refreservation set",
    "pool scrub done",
    "user hold",
    "user release",
    "pool split",
];

/// Name of an [`keys::OLD_EVENT`].
pub fn old_event(number: u64) -> &'static str {
    let at = usize::try_from(number).unwrap_or(usize::MAX);
    OLD_EVENTS.get(at).unwrap_or(&OLD_EVENTS[0])
}

/// Bonus of the history object (type 30). Positions `bof` and `eof` are logical and ever growing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryPhys {
    /// Bytes at the front that are kept forever: the record of the pool's creation.
    pub pool_create_len: u64,
    /// Size of the object at which the ring wraps.
    pub phys_max_off: u64,
    /// Logical position of the oldest record of the ring.
    pub bof: u64,
    /// Logical position behind the newest record.
    pub eof: u64,
    /// Records that newer ones have overwritten; informative.
    pub records_lost: u64,
}

impl HistoryPhys {
    /// The bonus of a new, empty history in a pool with that many usable bytes.
    pub fn new(pool_space: u64) -> HistoryPhys {
        HistoryPhys {
            phys_max_off: (pool_space / 1000).clamp(MIN_LOG, MAX_LOG),
            ..HistoryPhys::default()
        }
    }

    /// Decodes the bonus, 40 bytes. `Damaged`: positions that contradict each other.
    pub fn decode(b: &[u8]) -> Result<HistoryPhys> {
        let h = HistoryPhys {
            pool_create_len: u64_at(b, 0)?,
            phys_max_off: u64_at(b, 8)?,
            bof: u64_at(b, 16)?,
            eof: u64_at(b, 24)?,
            records_lost: u64_at(b, 32)?,
        };
        if h.phys_max_off <= h.pool_create_len || h.bof > h.eof || h.eof - h.bof > h.ring() {
            bail!(Damaged, "pool history: positions make no sense: {h:?}");
        }
        Ok(h)
    }

    /// The bonus, 40 bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut b = vec![0; HISTORY_SIZE];
        put_u64(&mut b, 0, self.pool_create_len);
        put_u64(&mut b, 8, self.phys_max_off);
        put_u64(&mut b, 16, self.bof);
        put_u64(&mut b, 24, self.eof);
        put_u64(&mut b, 32, self.records_lost);
        b
    }

    fn ring(&self) -> u64 {
        self.phys_max_off.saturating_sub(self.pool_create_len)
    }

    /// Byte offset in the object of a logical position. Positions before the end of the creation
    /// record are where they are.
    pub fn physical(&self, logical: u64) -> u64 {
        if logical < self.pool_create_len || self.ring() == 0 {
            return logical;
        }
        (logical - self.pool_create_len) % self.ring() + self.pool_create_len
    }

    /// The one or two `(offset, length)` pieces in the object of `len` bytes at a logical position.
    pub fn pieces(&self, logical: u64, len: u64) -> Vec<(u64, u64)> {
        let start = self.physical(logical);
        let first = len.min(self.phys_max_off.saturating_sub(start));
        let mut out = vec![(start, first)];
        if len > first {
            out.push((self.pool_create_len, len - first));
        }
        out
    }

    /// Whether the oldest record must be dropped before `len` more bytes can be written.
    pub fn must_drop(&self, len: u64) -> bool {
        self.ring() - (self.eof - self.bof).min(self.ring()) <= len
    }
}

/// Frames a record: length, then the packed list.
pub fn pack_record(record: &NvList) -> Vec<u8> {
    let body = record.pack_native();
    let mut b = (body.len() as u64).to_le_bytes().to_vec();
    b.extend_from_slice(&body);
    b
}

/// Reads the record at the start of `b`: the list and the bytes it takes with its length word.
/// `None` if `b` ends within the record.
pub fn unpack_record(b: &[u8]) -> Result<Option<(NvList, usize)>> {
    if b.len() < 8 {
        return Ok(None);
    }
    let len = u64_at(b, 0)?;
    if len == 0 || len > MAX_RECORD {
        bail!(Damaged, "pool history: record of {len} bytes");
    }
    match b.get(8..8 + len as usize) {
        Some(body) => Ok(Some((NvList::unpack(body)?, 8 + len as usize))),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::junk::Junk;

    fn record(n: u64) -> NvList {
        let mut l = NvList::new();
        l.set(keys::TIME, n).set(keys::COMMAND, "zpool create tank");
        l
    }

    #[test]
    fn framing() {
        let mut b = pack_record(&record(1));
        b.extend(pack_record(&record(2)));
        let (l, n) = unpack_record(&b).unwrap().unwrap();
        assert_eq!(l, record(1));
        let (l, m) = unpack_record(&b[n..]).unwrap().unwrap();
        assert_eq!(l, record(2));
        assert_eq!(n + m, b.len());
        assert!(unpack_record(&b[..n - 1]).unwrap().is_none());
        assert!(unpack_record(&[0; 8]).is_err());
    }

    #[test]
    fn ring() {
        let h = HistoryPhys {
            pool_create_len: 100,
            phys_max_off: 1100,
            bof: 5050,
            eof: 6000,
            records_lost: 3,
        };
        assert_eq!(HistoryPhys::decode(&h.encode()).unwrap(), h);
        assert_eq!(h.physical(100), 100);
        assert_eq!(h.physical(1100), 100);
        assert_eq!(h.physical(50), 50);
        assert_eq!(h.pieces(1090, 20), [(1090, 10), (100, 10)]);
        assert_eq!(h.pieces(1000, 100), [(1000, 100)]);
        assert!(!h.must_drop(49) && h.must_drop(50));
        assert_eq!(HistoryPhys::new(0).phys_max_off, MIN_LOG);
        assert_eq!(HistoryPhys::new(u64::MAX).phys_max_off, MAX_LOG);
    }

    #[test]
    fn hostile() {
        let mut junk = Junk(7);
        junk.torment(&pack_record(&record(1)), 1000, |b| drop(unpack_record(b)));
        let h = HistoryPhys::new(1 << 40).encode();
        junk.torment(&h, 1000, |b| {
            if let Ok(h) = HistoryPhys::decode(b) {
                let _ = (h.physical(h.eof), h.pieces(h.bof, 100), h.must_drop(9));
            }
        });
    }
}
