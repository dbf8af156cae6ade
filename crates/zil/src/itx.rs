//! Log records in memory until a commit writes them or their txg is synced (behaviour §3.1, §3.2).

use base::Txg;
use std::collections::BTreeMap;

/// From this size on data may be written in place instead of into the log.
pub const INDIRECT_MIN: u64 = 32 << 10;
/// Up to this size a write that commits at once carries its data.
pub const COPIED_MAX: u64 = 7680;

/// How the data of a write gets into the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// The data, copied when the change was made.
    Copied(Vec<u8>),
    /// Read it when a commit happens ([`crate::LogStore::current_data`]).
    NeedCopy,
    /// Write the file's block in place and log its pointer; one record per block.
    Indirect {
        /// Bytes of the block.
        block: u64,
    },
}

/// The content of a change in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A whole record, common header included, of which the type is set; length, txg and sequence
    /// are filled in. Padded to 8 bytes when written.
    Record(Vec<u8>),
    /// A change that no record describes. Records behind it may rest on it, so nothing is written to the
    /// log before its txg is on disk: a commit that comes to it waits for that.
    Unlogged,
    /// A write to [`Itx::object`].
    Write {
        /// Generation of the object, 0 = do not check.
        generation: u64,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// How the data gets into the log.
        form: Form,
    },
}

/// One change of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Itx {
    /// The object concerned; its pending changes go in front of this one. 0 = none.
    pub object: u64,
    /// Ordered: committed by any commit of the file system (namespace operations; writes of a file
    /// opened with O_SYNC). Otherwise only by a commit of its object or of everything. For a rename
    /// `object` is the renamed one, so that write-then-rename keeps its content.
    pub ordered: bool,
    /// The change.
    pub body: Body,
}

impl Itx {
    /// Approximate memory.
    fn bytes(&self) -> usize {
        let data = match &self.body {
            Body::Record(b) => b.len(),
            Body::Write {
                form: Form::Copied(d),
                ..
            } => d.len(),
            Body::Write { .. } | Body::Unlogged => 0,
        };
        data + std::mem::size_of::<Itx>() + 16
    }
}

/// What decides the form of a write.
#[derive(Clone, Copy, Debug, Default)]
pub struct Policy {
    /// `logbias=throughput`, or a direct write.
    pub throughput: bool,
    /// The pool has a dedicated log device.
    pub slog: bool,
    /// The caller commits at once (O_SYNC, `sync=always`).
    pub commit_now: bool,
    /// The file's block size.
    pub block_size: u64,
}

/// Form of a write of `length` bytes: `true` for indirect. Otherwise copied if it commits at once
/// and is at most [`COPIED_MAX`], need-copy in all other cases.
pub fn write_form(p: &Policy, length: u64) -> Option<bool> {
    if p.throughput {
        return Some(true);
    }
    let large = length >= INDIRECT_MIN && (!p.commit_now || length >= p.block_size / 2);
    if large && !p.slog {
        return Some(true);
    }
    (p.commit_now && length <= COPIED_MAX).then_some(false)
}

#[derive(Default)]
struct Group {
    ordered: Vec<(u64, Itx)>,
    pending: BTreeMap<u64, Vec<(u64, Itx)>>,
}

/// The changes of all txgs not yet on disk.
#[derive(Default)]
pub(crate) struct Itxs {
    groups: BTreeMap<Txg, Group>,
    /// Order of arrival.
    counter: u64,
    bytes: usize,
}

impl Itxs {
    /// Approximate memory of all records, bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes in a change of `txg`.
    pub fn add(&mut self, txg: Txg, itx: Itx) {
        if itx.ordered && itx.object != 0 {
            self.promote(Some(itx.object));
        }
        self.counter += 1;
        self.bytes += itx.bytes();
        let n = self.counter;
        let g = self.groups.entry(txg).or_default();
        if itx.ordered {
            g.ordered.push((n, itx));
        } else {
            g.pending.entry(itx.object).or_default().push((n, itx));
        }
    }

    /// Moves the pending changes of an object (or of all) behind the ordered ones of their txg.
    pub fn promote(&mut self, object: Option<u64>) {
        for g in self.groups.values_mut() {
            let mut moved = match object {
                Some(o) => g.pending.remove(&o).unwrap_or_default(),
                None => std::mem::take(&mut g.pending)
                    .into_values()
                    .flatten()
                    .collect(),
            };
            moved.sort_by_key(|(n, _)| *n);
            g.ordered.append(&mut moved);
        }
    }

    /// Bytes of data that a commit of the object (`None`: of all) would have to write, by txg. A block that
    /// is written in place counts whole, once for each record about it.
    pub fn data(&self, object: Option<u64>) -> Vec<(Txg, u64)> {
        let bytes = |list: &[(u64, Itx)]| {
            list.iter().fold(0u64, |n, (_, i)| match i.body {
                Body::Write {
                    length, ref form, ..
                } => n.saturating_add(match *form {
                    Form::Indirect { block } => block.max(length),
                    Form::Copied(_) | Form::NeedCopy => length,
                }),
                Body::Record(_) | Body::Unlogged => n,
            })
        };
        let of = |g: &Group| {
            let pending = match object {
                Some(o) => g.pending.get(&o).map_or(0, |l| bytes(l)),
                None => g.pending.values().map(|l| bytes(l)).sum(),
            };
            bytes(&g.ordered).saturating_add(pending)
        };
        self.groups.iter().map(|(txg, g)| (*txg, of(g))).collect()
    }

    /// Drops the pending changes of an object that is gone.
    pub fn forget(&mut self, object: u64) {
        for g in self.groups.values_mut() {
            for (_, itx) in g.pending.remove(&object).unwrap_or_default() {
                self.bytes -= itx.bytes();
            }
        }
    }

    /// Whether any ordered change is waiting.
    pub fn has_ordered(&self) -> bool {
        self.groups.values().any(|g| !g.ordered.is_empty())
    }

    /// Takes all ordered changes, oldest txg first.
    pub fn take_ordered(&mut self) -> Vec<(Txg, Itx)> {
        let mut out = Vec::new();
        for (&txg, g) in &mut self.groups {
            for (_, itx) in g.ordered.drain(..) {
                self.bytes -= itx.bytes();
                out.push((txg, itx));
            }
        }
        out
    }

    /// The txgs up to `txg` are on disk.
    pub fn drop_through(&mut self, txg: Txg) {
        let later = self.groups.split_off(&txg.next());
        let gone = std::mem::replace(&mut self.groups, later);
        for g in gone.into_values() {
            let all = g
                .ordered
                .into_iter()
                .chain(g.pending.into_values().flatten());
            for (_, itx) in all {
                self.bytes -= itx.bytes();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn itx(object: u64, ordered: bool, tag: u8) -> Itx {
        Itx {
            object,
            ordered,
            body: Body::Record(vec![tag; 32]),
        }
    }

    fn tags(v: Vec<(Txg, Itx)>) -> Vec<u8> {
        v.into_iter()
            .map(|(_, i)| match i.body {
                Body::Record(b) => b[0],
                _ => 0,
            })
            .collect()
    }

    #[test]
    fn an_fsync_takes_ordered_and_its_own() {
        let mut x = Itxs::default();
        x.add(Txg::new(5), itx(7, false, 1));
        x.add(Txg::new(5), itx(0, true, 2));
        x.add(Txg::new(6), itx(7, false, 3));
        x.add(Txg::new(6), itx(8, false, 4));
        x.add(Txg::new(5), itx(7, false, 5));
        x.promote(Some(7));
        assert_eq!(tags(x.take_ordered()), [2, 1, 5, 3]);
        x.promote(None);
        assert_eq!(tags(x.take_ordered()), [4]);
        assert_eq!(x.bytes(), 0);
    }

    #[test]
    fn rename_takes_the_content_along() {
        let mut x = Itxs::default();
        x.add(Txg::new(5), itx(7, false, 1));
        x.add(Txg::new(5), itx(8, false, 2));
        x.add(Txg::new(6), itx(7, true, 3));
        assert_eq!(tags(x.take_ordered()), [1, 3]);
        assert!(!x.has_ordered());
        x.forget(8);
        x.promote(None);
        assert!(!x.has_ordered());
        assert_eq!(x.bytes(), 0);
    }

    #[test]
    fn synced_groups_go() {
        let mut x = Itxs::default();
        for t in 4..8 {
            x.add(Txg::new(t), itx(1, t % 2 == 0, t as u8));
        }
        x.drop_through(Txg::new(6));
        x.promote(None);
        assert_eq!(tags(x.take_ordered()), [7]);
        assert_eq!(x.bytes(), 0);
    }

    #[test]
    fn forms() {
        let p = Policy {
            block_size: 128 << 10,
            ..Policy::default()
        };
        assert_eq!(write_form(&p, 32 << 10), Some(true));
        assert_eq!(write_form(&p, 1000), None);
        let now = Policy {
            commit_now: true,
            ..p
        };
        assert_eq!(write_form(&now, 1000), Some(false));
        assert_eq!(write_form(&now, 7681), None);
        assert_eq!(write_form(&now, 32 << 10), None);
        assert_eq!(write_form(&now, 64 << 10), Some(true));
        assert_eq!(write_form(&Policy { slog: true, ..now }, 64 << 10), None);
        let through = Policy {
            throughput: true,
            ..now
        };
        assert_eq!(write_form(&through, 1), Some(true));
    }
}
