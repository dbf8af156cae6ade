//! Records of the POSIX layer into the intent log, and back at replay.

use base::{bail, Result, Txg};
use disk::zil::{setattr, Body, Create, CreateKind, LogAcl, Record as Raw, WriteData};
use dmu::{Driver, Tx};
use pool::Pool;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use zil::{Committed, Form, Itx, Replayer, Zil};
use zpl::log::{Made, NewFile, RenameKind};
use zpl::{IntentLog, Record, Time, Zfs};

/// The intent log of one mounted dataset.
pub struct Log {
    zil: Arc<Zil>,
    pool: Weak<Pool>,
    /// Newest group with a change that no record describes: an fsync waits for it.
    unlogged: AtomicU64,
    /// `logbias=throughput`
    throughput: AtomicBool,
    /// The pool has a dedicated log device.
    slog: bool,
}

impl Log {
    pub fn new(zil: Arc<Zil>, pool: &Arc<Pool>) -> Log {
        Log {
            zil,
            pool: Arc::downgrade(pool),
            unlogged: AtomicU64::new(0),
            throughput: AtomicBool::new(false),
            slog: pool.tree.tops().iter().any(|t| t.is_log() && t.is_concrete()),
        }
    }

    /// Follows the property `logbias`.
    pub fn set_throughput(&self, on: bool) {
        self.throughput.store(on, Ordering::Relaxed);
    }

    fn through(&self, txg: Txg) -> Result<()> {
        match self.pool.upgrade() {
            Some(p) => p.sync_through(txg),
            None => bail!(Stale, "the pool was exported"),
        }
    }
}

fn pair(t: Time) -> [u64; 2] {
    [t.sec as u64, t.nsec as u64]
}

fn unpair(t: [u64; 2]) -> Time {
    Time::from_words(t[0], t[1])
}

fn raw(body: Body) -> zil::Body {
    zil::Body::Record(Raw { txg: 0, seq: 0, ignore_case: false, body }.encode())
}

/// The record as an itx; `None` if there is no record for it.
fn itx(rec: Record, throughput: bool, slog: bool) -> Option<Itx> {
    let named = |body| Some(Itx { object: 0, ordered: true, body: raw(body) });
    match rec {
        Record::Create { how, dir, name, new, target } => named(Body::Create(Box::new(Create {
            kind: match how {
                Made::File => CreateKind::File,
                Made::Dir => CreateKind::Dir,
                Made::XattrDir => CreateKind::XattrDir,
                Made::Symlink => CreateKind::Symlink,
            },
            parent: dir,
            object: new.object,
            slots: new.slots as u32,
            mode: new.mode,
            uid: new.uid,
            gid: new.gid,
            gen: new.gen,
            crtime: pair(new.crtime),
            rdev: new.rdev,
            xvattr: None,
            acl: None,
            domains: Vec::new(),
            name,
            target,
        }))),
        Record::Remove { dir, name, is_dir, .. } => {
            named(Body::Remove { dir: is_dir, parent: dir, name })
        }
        Record::Link { dir, object, name } => named(Body::Link { parent: dir, object, name }),
        Record::Rename { kind, from_dir, to_dir, from, to, object } => {
            let body = match kind {
                RenameKind::Plain | RenameKind::Exchange => Body::Rename {
                    exchange: kind == RenameKind::Exchange,
                    source_dir: from_dir,
                    target_dir: to_dir,
                    source: from,
                    target: to,
                },
                RenameKind::Whiteout(w) => Body::RenameWhiteout {
                    source_dir: from_dir,
                    target_dir: to_dir,
                    object: w.object,
                    slots: w.slots as u32,
                    mode: w.mode,
                    uid: w.uid,
                    gid: w.gid,
                    gen: w.gen,
                    crtime: pair(w.crtime),
                    rdev: w.rdev,
                    source: from,
                    target: to,
                },
            };
            Some(Itx { object, ordered: true, body: raw(body) })
        }
        Record::Write { object, gen, offset, len, sync, block } => Some(Itx {
            object,
            ordered: sync,
            body: zil::Body::Write {
                generation: gen,
                offset,
                length: len,
                form: {
                    let policy = zil::Policy {
                        throughput,
                        slog,
                        commit_now: sync,
                        block_size: block as u64,
                    };
                    // A copy made now would save a look at the file later; the data are in memory
                    // either way, so small writes are fetched when they are needed.
                    match zil::write_form(&policy, len) {
                        Some(true) => Form::Indirect,
                        _ => Form::NeedCopy,
                    }
                },
            },
        }),
        Record::Truncate { object, offset, len } => Some(Itx {
            object,
            ordered: false,
            body: raw(Body::Truncate { object, offset, length: len }),
        }),
        Record::SetAttr {
            object,
            mode,
            uid,
            gid,
            size,
            atime,
            mtime,
            ctime,
            extended: None,
        } => {
            let mut mask = 0;
            for (on, bit) in [
                (mode.is_some(), setattr::MODE),
                (uid.is_some(), setattr::UID),
                (gid.is_some(), setattr::GID),
                (size.is_some(), setattr::SIZE),
                (atime.is_some(), setattr::ATIME),
                (mtime.is_some(), setattr::MTIME),
                (ctime.is_some(), setattr::CTIME),
            ] {
                if on {
                    mask |= bit;
                }
            }
            Some(Itx {
                object,
                ordered: false,
                body: raw(Body::SetAttr {
                    object,
                    mask,
                    mode: mode.unwrap_or(0) as u64,
                    uid: uid.unwrap_or(0) as u64,
                    gid: gid.unwrap_or(0) as u64,
                    size: size.unwrap_or(0),
                    atime: atime.map_or([0; 2], pair),
                    mtime: mtime.map_or([0; 2], pair),
                    xvattr: None,
                    domains: Vec::new(),
                }),
            })
        }
        // chattr flags, project ids and extended attributes wait for their group instead.
        Record::SetAttr { extended: Some(_), .. } | Record::SetSaXattr { .. } => None,
        Record::SetAcl { object, aces, count, flags } => Some(Itx {
            object,
            ordered: false,
            body: raw(Body::Acl {
                object,
                acl: LogAcl {
                    aces,
                    ace_count: count,
                    flags,
                    fuids: Vec::new(),
                    domains: Vec::new(),
                },
            }),
        }),
    }
}

impl IntentLog for Log {
    fn log(&self, tx: &Tx, rec: Record) {
        if self.zil.is_replaying() {
            self.zil.replayed(tx.txg());
            return;
        }
        match itx(rec, self.throughput.load(Ordering::Relaxed), self.slog) {
            Some(i) => self.zil.log(tx.txg(), i),
            None => {
                self.unlogged.fetch_max(tx.txg(), Ordering::Relaxed);
            }
        }
    }

    fn commit(&self, object: Option<u64>) -> Result<()> {
        let Some(pool) = self.pool.upgrade() else { bail!(Stale, "the pool was exported") };
        let unlogged = self.unlogged.load(Ordering::Relaxed);
        if unlogged > pool.synced_txg() {
            // Everything of that group and before is then on disk; later records go to the log.
            pool.sync_through(unlogged)?;
        }
        match self.zil.commit(object) {
            Committed::Durable => Ok(()),
            Committed::NeedTxgSync => pool.sync().map(|_| ()),
        }
    }

    fn wait(&self, txg: Txg) -> Result<()> {
        self.through(txg)
    }
}

struct Redo<'a> {
    zfs: &'a Zfs,
}

fn new_file(c: &Create) -> NewFile {
    NewFile {
        object: c.object,
        slots: c.slots.min(32) as u8,
        mode: c.mode,
        uid: c.uid,
        gid: c.gid,
        gen: c.gen,
        crtime: unpair(c.crtime),
        rdev: c.rdev,
    }
}

impl Redo<'_> {
    fn record(&self, body: Body) -> Result<Record> {
        Ok(match body {
            Body::Create(c) => {
                if c.acl.is_some() {
                    bail!(Unsupported, "log record that creates a file with an ACL");
                }
                Record::Create {
                    how: match c.kind {
                        CreateKind::File => Made::File,
                        CreateKind::Dir => Made::Dir,
                        CreateKind::XattrDir => Made::XattrDir,
                        CreateKind::Symlink => Made::Symlink,
                    },
                    dir: c.parent,
                    new: new_file(&c),
                    name: c.name,
                    target: c.target,
                }
            }
            Body::Remove { dir, parent, name } => {
                Record::Remove { dir: parent, name, is_dir: dir, object: 0 }
            }
            Body::Link { parent, object, name } => Record::Link { dir: parent, object, name },
            Body::Rename { exchange, source_dir, target_dir, source, target } => Record::Rename {
                kind: if exchange { RenameKind::Exchange } else { RenameKind::Plain },
                from_dir: source_dir,
                to_dir: target_dir,
                from: source,
                to: target,
                object: 0,
            },
            Body::RenameWhiteout {
                source_dir,
                target_dir,
                object,
                slots,
                mode,
                uid,
                gid,
                gen,
                crtime,
                rdev,
                source,
                target,
            } => Record::Rename {
                kind: RenameKind::Whiteout(NewFile {
                    object,
                    slots: slots.min(32) as u8,
                    mode,
                    uid,
                    gid,
                    gen,
                    crtime: unpair(crtime),
                    rdev,
                }),
                from_dir: source_dir,
                to_dir: target_dir,
                from: source,
                to: target,
                object: 0,
            },
            Body::Truncate { object, offset, length } => {
                Record::Truncate { object, offset, len: length }
            }
            Body::SetAttr { object, mask, mode, uid, gid, size, atime, mtime, xvattr, .. } => {
                if xvattr.is_some() {
                    bail!(Unsupported, "log record with extended file flags");
                }
                let on = |bit| mask & bit != 0;
                Record::SetAttr {
                    object,
                    mode: on(setattr::MODE).then_some(mode as u32),
                    uid: on(setattr::UID).then_some(uid as u32),
                    gid: on(setattr::GID).then_some(gid as u32),
                    size: on(setattr::SIZE).then_some(size),
                    atime: on(setattr::ATIME).then(|| unpair(atime)),
                    mtime: on(setattr::MTIME).then(|| unpair(mtime)),
                    ctime: None,
                    extended: None,
                }
            }
            Body::Acl { object, acl } => Record::SetAcl {
                object,
                aces: acl.aces,
                count: acl.ace_count,
                flags: acl.flags,
            },
            Body::SetSaXattr { object, name, value } => Record::SetSaXattr {
                object,
                name,
                value: if value.is_empty() { None } else { Some(value) },
            },
            Body::Write { object, offset, length, .. } => {
                Record::Write { object, gen: 0, offset, len: length, block: 0, sync: false }
            }
            other => bail!(Unsupported, "log record {:?} cannot be replayed yet", other),
        })
    }
}

impl Replayer for Redo<'_> {
    fn object_exists(&mut self, object: u64) -> Result<bool> {
        match self.zfs.objset().hold(object) {
            Ok(_) => Ok(true),
            Err(e) if e.kind == base::Kind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn replay(&mut self, record: &zil::Record) -> Result<()> {
        let (r, _) = Raw::decode(&record.raw.bytes)?;
        match r.body {
            Body::Extend { object, .. } => self.zfs.replay_extend(object, record.end)?,
            Body::Write { ref data, .. } => {
                let indirect = matches!(data, WriteData::Indirect(_));
                let rec = self.record(r.body.clone())?;
                let source = if indirect {
                    zpl::ReplayData::Block { offset: record.data_offset, data: &record.data }
                } else {
                    zpl::ReplayData::Copied(&record.data)
                };
                self.zfs.replay(&rec, Some(source))?;
            }
            body => {
                let rec = self.record(body)?;
                self.zfs.replay(&rec, None)?;
            }
        }
        Ok(())
    }
}

/// Replays what a crash left, or disposes of an empty log. Everything replayed is on disk when this
/// returns.
pub fn replay(pool: &Arc<Pool>, zfs: &Zfs, zil: &Zil, name: &str) -> Result<()> {
    if !zil.needs_replay() {
        return zil.start();
    }
    zfs.begin_replay();
    let r = zil.replay(&mut Redo { zfs });
    zfs.end_replay();
    let r = r?;
    if let Some((seq, ty, e)) = r.failed {
        return Err(e.context(format!(
            "{name}: intent log record {seq} (type {ty}) cannot be replayed"
        )));
    }
    pool.sync().map(|_| ())
}
