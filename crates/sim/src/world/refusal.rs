//! All devices refuse what is written: the pool waits for them. They are well again after a few attempts,
//! and the same txg goes on with nothing lost; or somebody exports the pool by force, is told what is
//! lost, and the next process finds what the last txg on disk has.
//!
//! The thread that waits is the only one. What others do meanwhile, it does while it is asked for patience: it
//! reads, tries to change something, and hands over data that the kernel had accepted before.

use super::{desk, Outcome, World};
use crate::cut::Image;
use crate::found::{find, What};
use crate::op::Op;
use crate::refuse::{Ending, Refuse, What as Refused};
use crate::rig;
use base::sync::MutexExt;
use base::{Error, Kind, Result};
use env_sim::MemDisk;
use pool::{Admits, Failmode, Patience, Pool};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use zpl::{Cred, New, WriteOpts, Zfs, Znode};

/// Bytes that the kernel hands over while the pool waits.
const CACHED: [u8; 700] = [0xca; 700];

/// What is done when the pool begins to wait.
struct Meanwhile {
    zfs: Arc<Zfs>,
    /// A file, and what is in it.
    file: Arc<Znode>,
    content: Arc<Vec<u8>>,
}

#[derive(Default)]
struct State {
    armed: Option<Refuse>,
    /// May the pool be let go in the operation at hand?
    may_end: bool,
    meanwhile: Option<Meanwhile>,
    /// The pool waited for its devices in this operation.
    met: bool,
    /// Data were handed over at this position.
    written: Option<usize>,
    /// The pool was let go.
    ended: bool,
    wrong: Vec<String>,
}

/// The pool's patience, and what came of it.
pub(super) struct Waiting {
    disks: Image,
    journal: Mutex<Arc<env_sim::Journal>>,
    state: Mutex<State>,
}

/// Every device refuses from now on, or after some more writes and flushes.
fn refuse(disk: &MemDisk, what: Refused) {
    match what {
        Refused::Writes => disk.fail_writes.store(true, Relaxed),
        Refused::Flushes => disk.fail_flush.store(true, Relaxed),
        Refused::After(n) => disk.left.store(n as i64, Relaxed),
    }
}

fn accept(disk: &MemDisk) {
    disk.fail_writes.store(false, Relaxed);
    disk.fail_flush.store(false, Relaxed);
    disk.left.store(-1, Relaxed);
}

impl Waiting {
    pub(super) fn new(disks: &Image, journal: &Arc<env_sim::Journal>) -> Arc<Waiting> {
        Arc::new(Waiting {
            disks: disks.clone(),
            journal: Mutex::new(journal.clone()),
            state: Mutex::default(),
        })
    }

    /// The disks are recorded in another journal from now on.
    pub(super) fn follow(&self, journal: &Arc<env_sim::Journal>) {
        *self.journal.acquire() = journal.clone();
    }

    /// Whether the devices refuse, or are about to.
    pub(super) fn is_armed(&self) -> bool {
        self.state.acquire().armed.is_some()
    }

    /// Nothing is refused any more.
    pub(super) fn disarm(&self) {
        self.state.acquire().armed = None;
        self.disks.iter().for_each(|d| accept(d));
    }
}

impl State {
    /// What others do when the pool begins to wait.
    fn others(&mut self, pool: &Pool, pos: usize) {
        if pool.suspended().is_none() {
            self.wrong.push("a pool that waits is not suspended".into());
        }
        let want = match pool.failmode() {
            Failmode::Wait => Admits::Later,
            _ => Admits::Never,
        };
        if pool.admits() != want {
            let text = format!("a call is admitted: {:?}, not {want:?}", pool.admits());
            self.wrong.push(text);
        }
        let Some(m) = &self.meanwhile else { return };
        let mut data = vec![0; m.content.len()];
        match m.zfs.read(&m.file, 0, &mut data) {
            Ok(n) if n == data.len() && data == *m.content => {}
            Ok(_) => self.wrong.push("read while it waits: other bytes".into()),
            Err(e) => self.wrong.push(format!("read while it waits: {e}")),
        }
        // Where there is no room in memory such data wait, too.
        if !pool.dmu().is_full() {
            match m.zfs.write(&m.file, 0, &CACHED, WriteOpts::default()) {
                Ok(n) if n == CACHED.len() => self.written = Some(pos),
                Ok(n) => self.wrong.push(format!("{n} bytes taken while it waits")),
                Err(e) if rig::is_full(&e) => {}
                Err(e) => self.wrong.push(format!("written while it waits: {e}")),
            }
        }
    }
}

impl Patience for Waiting {
    fn again(&self, pool: &Pool, _: &Error) -> bool {
        let mut st = self.state.acquire();
        if st.armed.is_none() {
            return false;
        }
        if !std::mem::replace(&mut st.met, true) {
            let pos = self.journal.acquire().len();
            st.others(pool, pos);
        }
        let may_end = st.may_end;
        let Some(armed) = st.armed.as_mut() else {
            return false;
        };
        armed.attempts = armed.attempts.saturating_sub(1);
        if armed.attempts > 0 {
            return true;
        }
        let ending = armed.ending;
        st.armed = None;
        if ending == Ending::Export && may_end {
            st.ended = true;
            drop(st);
            // As an export by force does it from another thread.
            let text = "it was exported by force while its devices could not be written";
            pool.stop_for_good(Error::new(Kind::Io, text));
            return false;
        }
        self.disks.iter().for_each(|d| accept(d));
        true
    }
}

impl World {
    /// The pool that was just opened or made asks this world for patience.
    pub(super) fn lend_patience(&mut self) {
        self.waiting = Waiting::new(&self.disks, &self.journal);
        if let Some(pool) = self.pool() {
            pool.set_patience(Box::new(self.waiting.clone()));
        }
    }

    /// From now on all devices refuse; who writes next meets it.
    pub(super) fn refuse(&mut self, line: Refuse) -> Result<Outcome> {
        let Some(pool) = self.pool().cloned() else {
            return Ok(Outcome::Nothing);
        };
        self.waiting.disarm();
        if pool.failmode() != line.failmode {
            let n = u64::from(line.failmode == Failmode::Continue);
            pool.task(move |pool, tx| {
                pool.store_prop(tx, "failmode", Some(&dsl::PropValue::Int(n)))
            })?;
            let pos = self.pos();
            self.oracle.ack_all(pos);
        }
        self.disks.iter().for_each(|d| refuse(d, line.what));
        self.waiting.state.acquire().armed = Some(line);
        Ok(Outcome::Done)
    }

    /// Before an operation: what others would do while it waits.
    pub(super) fn before_waiting(&mut self, op: &Op) {
        if self.waiting.state.acquire().armed.is_none() {
            return;
        }
        // What the oracle knows whether it was done or not.
        let may_end = matches!(op, Op::Sync | Op::Fsync { .. } | Op::FsyncAll { .. });
        let meanwhile = match op {
            Op::Sync => self.file_in_use(),
            _ => None,
        };
        let mut st = self.waiting.state.acquire();
        *st = State {
            armed: st.armed.take(),
            may_end,
            meanwhile: meanwhile.map(|(m, _)| m),
            ..State::default()
        };
    }

    /// The first file of the root file system, and its number.
    fn file_in_use(&self) -> Option<(Meanwhile, usize)> {
        let (fs, model) = (self.mounted("")?, self.oracle.fs("")?);
        let mut files = model.now().iter();
        let (path, id) = files.find(|(_, id)| model.what(**id) == What::File)?;
        let meanwhile = Meanwhile {
            zfs: fs.zfs.clone(),
            file: find(fs, path).ok()?,
            content: model.state(*id).data.clone(),
        };
        Some((meanwhile, *id))
    }

    /// After an operation in which the pool may have waited: its outcome, unless the pool was let go.
    pub(super) fn after_waiting(
        &mut self,
        done: std::result::Result<Outcome, String>,
    ) -> std::result::Result<Outcome, String> {
        let (met, written, ended, wrong) = {
            let mut st = self.waiting.state.acquire();
            st.meanwhile = None;
            let met = std::mem::take(&mut st.met);
            let (written, ended) = (st.written.take(), std::mem::take(&mut st.ended));
            (met, written, ended, std::mem::take(&mut st.wrong))
        };
        if let Some(first) = wrong.into_iter().next() {
            return Err(first);
        }
        self.counts.suspended += u64::from(met);
        let next = written.and_then(|pos| Some((pos, self.file_in_use()?.1)));
        if let Some((pos, id)) = next {
            // Begun while the operation was under way, and not acknowledged by it.
            self.oracle.begin(pos);
            let op = self.oracle.op;
            if let Some(m) = self.oracle.fs_mut("") {
                m.change(op, id, |s| {
                    let data = Arc::make_mut(&mut s.data);
                    if data.len() < CACHED.len() {
                        data.resize(CACHED.len(), 0);
                    }
                    data[..CACHED.len()].copy_from_slice(&CACHED);
                });
            }
        }
        match ended {
            true => self.let_go(done),
            false => done,
        }
    }

    /// The pool was stopped in an operation: nothing is accepted any more, the export says what is lost,
    /// and a new process goes on with what is on the devices.
    fn let_go(
        &mut self,
        done: std::result::Result<Outcome, String>,
    ) -> std::result::Result<Outcome, String> {
        if done.is_ok() {
            return Err("acknowledged, though the pool was let go".into());
        }
        if let Some(fs) = self.mounted("") {
            let root = fs.zfs.root().map_err(super::text)?;
            let new = New::file(0o100644, 0);
            match fs.zfs.create(&root, b"after the end", &new, &Cred::root()) {
                Err(e) if e.kind == Kind::Suspended || rig::is_full(&e) => {}
                Err(e) => return Err(format!("a change after the end: {e}")),
                Ok(_) => return Err("a change was accepted after the end".into()),
            }
        }
        self.held.clear();
        if let Some(o) = &mut self.opened {
            o.mounts.clear();
        }
        let told = desk(&self.opened).and_then(|d| d.export_by_force());
        let told = told.map_err(|e| format!("exported by force: {e}"))?;
        if !told.as_deref().is_some_and(|t| t.contains("are lost")) {
            return Err(format!("the export does not say what is lost: {told:?}"));
        }
        self.disks.iter().for_each(|d| accept(d));
        self.comparable.clear();
        let oracle = self.oracle.clone();
        self.died(&oracle, self.counts.operations)?;
        Ok(Outcome::Done)
    }
}
