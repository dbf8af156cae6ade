//! The pool's history (pool format §22). It is best effort: a record that cannot be written is lost, and
//! counted.

use crate::notices::Notice;
use crate::Pool;
use base::Result;
use disk::history::keys as key;
use disk::{NvList, Value};
use dmu::Tx;
use dsl::History;
use std::sync::atomic::Ordering;

/// Longest command line kept.
const COMMAND_MAX: usize = 8 << 10;

/// Longest list of names kept, packed.
const REQUEST_MAX: usize = 128 << 10;

impl Pool {
    fn history(&self, tx: &Tx) -> Result<History> {
        match History::open(self.mos())? {
            Some(h) => Ok(h),
            None => {
                let size = self.space().class_stats(space::Class::Normal).dsize;
                History::create(self.mos(), tx, size)
            }
        }
    }

    /// Records a command line in the txg of `tx`; an empty one is not recorded.
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

    /// Records which datasets a command was about, where it was about several: OpenZFS has the names in a record of the
    /// request `name`. A list of more than 128 KiB is left out.
    pub fn log_request(&self, tx: &Tx, name: &str, input: NvList) -> Result<()> {
        if self.version() < 4 || input.pack_xdr().len() > REQUEST_MAX {
            return Ok(());
        }
        self.log_events(tx)?;
        let mut r = NvList::new();
        r.set(key::IOCTL, name);
        r.set(key::IN_NVL, Value::NvList(input));
        self.append(tx, r, 0)
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

    /// Records what has happened so far in the txg.
    pub(crate) fn log_events(&self, tx: &Tx) -> Result<()> {
        if let Some(store) = self.feature_store() {
            for name in store.take_enabled() {
                self.log_event(tx, "set", None, &format!("feature@{name}=enabled"))?;
            }
        }
        for e in self.dsl().take_events() {
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
        if r.contains(key::INTERNAL_NAME) {
            // What was done, not the command that asked for it: as OpenZFS tells it.
            self.tell(Notice::Recorded(r.clone()));
        }
        // A command is not refused, and a txg not given up, because nobody can write down what it does.
        if self.history(tx).and_then(|h| h.append(tx, &r)).is_err() {
            self.records.history_lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Records that could not be written, since the history cannot be read or has no room.
    pub fn history_lost(&self) -> u64 {
        self.records.history_lost.load(Ordering::Relaxed)
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
        match History::open(self.mos())? {
            Some(h) => h.records(),
            None => Ok(Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CreateSpec, OpenOptions, Tunables};
    use disk::objset::ObjsetPhys;
    use disk::{BlkPtr, DnodePhys, ObjType, BP_SIZE};
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;

    /// Spoils every copy of the history's first block.
    fn spoil(pool: &Pool, image: &std::path::Path) {
        let root = pool.zio().read(&pool.mos().root()).unwrap();
        let mut blocks = ObjsetPhys::decode(&root).unwrap().meta.blkptr.to_vec();
        let file = std::fs::File::options().write(true).open(image).unwrap();
        let mut spoiled = 0;
        while let Some(bp) = blocks.pop() {
            if bp.is_hole() {
                continue;
            }
            let b = pool.zio().read(&bp).unwrap();
            if bp.level() > 0 {
                blocks.extend((0..b.len() / BP_SIZE).map(|i| BlkPtr::at(&b, i).unwrap()));
                continue;
            }
            for at in (0..b.len()).step_by(512) {
                let Ok(Some(dn)) = DnodePhys::decode(&b[at..]) else {
                    continue;
                };
                if dn.obj_type != ObjType::SPA_HISTORY {
                    continue;
                }
                for dva in dn.blkptr[0].dvas() {
                    let at = disk::label::DATA_START + dva.offset();
                    file.write_all_at(&[0x5a; 512], at).unwrap();
                    spoiled += 1;
                }
            }
        }
        assert!(spoiled > 0);
    }

    #[test]
    fn a_history_block_that_cannot_be_read_stops_neither_changes_nor_an_export() {
        let dir = testkit::TempDir::new("history").unwrap();
        let image = dir.image("d0.img", 128 << 20).unwrap();
        let device = vdev::DevSpec::file(image.to_str().unwrap());
        let spec = CreateSpec {
            name: "tank".into(),
            tops: vec![vdev::TopSpec::new(vdev::GroupKind::Single, vec![device])],
            version: 5000,
            features: Vec::new(),
            extra: vec![],
            command: "zpool create tank".into(),
            tunables: Tunables::default(),
        };
        let env = env_linux::linux_env();
        let now = zpl::Time { sec: 1, nsec: 0 };
        let pool = Pool::create(env.clone(), spec, &|_, os, tx| {
            zpl::create_fs(os, tx, &zpl::FsOptions::new(5000, now))
        })
        .unwrap();
        spoil(&pool, &image);
        pool.close().unwrap();
        drop(pool);
        let found = vdev::discover(&env, &[image.to_str().unwrap().to_string()]);
        let open = || Pool::open(env.clone(), &found.pools[0].config, OpenOptions::default());
        let pool: Arc<Pool> = open().unwrap();
        assert!(pool.history_records().is_err(), "nothing is spoiled");
        pool.log_command("zfs set", 0).unwrap();
        pool.task(|pool, tx| pool.store_prop(tx, "comment:x", Some(&dsl::PropValue::Int(1))))
            .unwrap();
        assert!(pool.history_lost() > 0);
        assert!(pool.suspended().is_none());
        pool.export().unwrap();
        open().unwrap().destroy().unwrap();
    }
}
