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
        self.log_events(tx)?;
        let mut r = NvList::new();
        r.set(key::COMMAND, &command[..end]);
        self.append(tx, r, uid)
    }

    /// Records something the pool did by itself or in the course of a command.
    pub fn log_internal(&self, tx: &Tx, name: &str, text: &str) -> Result<()> {
        self.log_events(tx)?;
        self.log_event(tx, name, None, text)
    }

    fn log_event(
        &self,
        tx: &Tx,
        name: &str,
        dataset: Option<&(String, u64)>,
        text: &str,
    ) -> Result<()> {
        if self.version() < 4 {
            return Ok(());
        }
        let mut r = NvList::new();
        if let Some((name, object)) = dataset {
            r.set(key::DSNAME, name.as_str());
            r.set(key::DSID, *object);
        }
        r.set(key::INTERNAL_STR, text);
        r.set(key::INTERNAL_NAME, name);
        r.set(key::TXG, tx.txg());
        self.append(tx, r, 0)
    }

    /// Records what has happened so far in the group.
    pub(crate) fn log_events(&self, tx: &Tx) -> Result<()> {
        if let Some(store) = self.feature_store() {
            for name in store.take_enabled() {
                self.log_event(tx, "set", None, &format!("feature@{name}=enabled"))?;
            }
        }
        for e in self.dsl.take_events() {
            self.log_event(tx, e.name, e.dataset.as_ref(), &e.text)?;
        }
        Ok(())
    }

    /// The versions of pool, software and system, as OpenZFS records them when it makes or imports a
    /// pool.
    pub(crate) fn log_versions(&self, tx: &Tx, event: &str) -> Result<()> {
        let text = format!(
            "pool version {}; software version zfs-fuse {}; uts {}",
            self.version(),
            env!("CARGO_PKG_VERSION"),
            self.env.host.hostname()
        );
        self.log_event(tx, event, None, &text)
    }

    /// Records an import and the command line that asked for it.
    pub fn log_import(&self, command: &str, uid: u64) -> Result<()> {
        if self.is_readonly() {
            return Ok(());
        }
        let command = command.to_string();
        self.task(move |pool, tx| {
            pool.log_versions(tx, "import")?;
            pool.log_in(tx, &command, uid)
        })
    }

    fn append(&self, tx: &Tx, mut r: NvList, uid: u64) -> Result<()> {
        r.set(key::TIME, self.env.clock.now().0.max(0) as u64);
        r.set(key::HOSTNAME, self.env.host.hostname().as_str());
        if r.contains(key::COMMAND) {
            r.set(key::ZONE, "linux");
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
