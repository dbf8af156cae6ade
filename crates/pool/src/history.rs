//! The pool's history (pool format §22).

use crate::Pool;
use base::Result;
use disk::history::keys as key;
use disk::NvList;
use dmu::Tx;
use dsl::History;

/// Longest command line kept.
const COMMAND_MAX: usize = 8 << 10;

impl Pool {
    fn history(&self, tx: &Tx) -> Result<History> {
        match History::open(&self.mos)? {
            Some(h) => Ok(h),
            None => {
                let size = self.space.class_stats(space::Class::Normal).dsize;
                History::create(&self.mos, tx, size)
            }
        }
    }

    /// Records a command line in the group of `tx`; an empty one is not recorded.
    pub fn log_in(&self, tx: &Tx, command: &str, uid: u64) -> Result<()> {
        if command.is_empty() || self.version() < 4 {
            return Ok(());
        }
        let mut end = command.len().min(COMMAND_MAX);
        while !command.is_char_boundary(end) {
            end -= 1;
        }
        let mut r = NvList::new();
        r.set(key::COMMAND, &command[..end]);
        self.append(tx, r, uid)
    }

    /// Records something the pool did by itself or in the course of a command.
    pub fn log_internal(&self, tx: &Tx, name: &str, text: &str) -> Result<()> {
        if self.version() < 4 {
            return Ok(());
        }
        let mut r = NvList::new();
        r.set(key::TXG, tx.txg());
        r.set(key::INTERNAL_NAME, name);
        r.set(key::INTERNAL_STR, text);
        self.append(tx, r, 0)
    }

    fn append(&self, tx: &Tx, mut r: NvList, uid: u64) -> Result<()> {
        r.set(key::TIME, self.env.clock.now().0.max(0) as u64);
        r.set(key::HOSTNAME, self.env.host.hostname().as_str());
        r.set(key::ZONE, "linux");
        if r.contains(key::COMMAND) {
            r.set(key::WHO, uid);
        }
        self.history(tx)?.append(tx, &r)
    }

    /// Records a command line that succeeded.
    pub fn log_command(&self, command: &str, uid: u64) -> Result<()> {
        if command.is_empty() || self.is_readonly() {
            return Ok(());
        }
        let command = command.to_string();
        self.task(move |pool, tx| pool.log_in(tx, &command, uid))
    }

    /// All records, oldest first.
    pub fn history_records(&self) -> Result<Vec<NvList>> {
        match History::open(&self.mos)? {
            Some(h) => h.records(),
            None => Ok(Vec::new()),
        }
    }
}
