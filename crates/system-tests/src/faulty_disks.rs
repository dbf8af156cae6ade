//! Disks that lose what was not flushed, and fail, when told to.
//!
//! [`FaultyDisks`] serves a folder of fixed-size files over FUSE. A daemon uses them as the devices
//! of a pool, with O_DIRECT and fsync like any image file. Each has a volatile cache:
//!
//! 1. A write is kept apart, in memory, until its disk is flushed. Reads see it.
//! 2. A flush brings everything written before it to the *stable* file in [`FaultyDisks::stable`].
//! 3. [`FaultyDisks::cut`] is a power cut: at one moment, for all disks together, a chosen part of
//!    the unflushed sectors reaches the stable files ([`Fate`]), the rest is lost. Transfers fail
//!    from then on, until [`FaultyDisks::power_on`].
//!
//! Between the two a test makes disks fail ([`FaultyDisks::fail`]) and work again
//! ([`FaultyDisks::heal`]). The stable files are what a judge such as `zdb -e -p` looks at.
//!
//! ```no_run
//! use system_tests::{FaultyDisks, Rig};
//! let disks = FaultyDisks::new("example").unwrap();
//! let disk = disks.disk("d0", 256 << 20);
//! let mut rig = Rig::new("example").unwrap();
//! rig.start();
//! rig.zpool(&["create", "-m", rig.mnt().to_str().unwrap(), "tank", &disk]);
//! disks.fail_all_writes();
//! // … what a suspended pool does …
//! disks.heal();
//! ```
//!
//! Declare it before the [`Rig`](crate::rig::Rig): it must outlive the daemon.

use crate::Dice;
use base::Data;
use fuse::{
    Attr, AttrReply, Config, DirBuf, Entry, Errno, Filesystem, Mount, MountOptions, OpenArgs,
    Opened, ReadBuf, ReaddirPlus, Request, Result, Session, Transport, Unmount, WriteArgs, ROOT,
};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use testkit::TempDir;

/// What is written or lost as a whole.
const SECTOR: u64 = 512;

/// A kind of transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    Read,
    Write,
    Flush,
}

/// What a disk does instead of the transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Fails with this errno; nothing is transferred.
    Error(i32),
    /// Does not answer before [`FaultyDisks::heal`], which has the transfer carried out, or a cut,
    /// which has it fail.
    Stall,
    /// Answers so many milliseconds later.
    Delay(u64),
    /// Of a flush: fails with EIO, and what was written since the last one is lost.
    Lose,
}

/// A rule by which transfers fail.
#[derive(Clone, Debug)]
pub struct Fault {
    pub on: On,
    pub does: Trouble,
    /// Only transfers that touch these bytes; flushes always do.
    pub range: Range<u64>,
    /// One of so many transfers, at random; 1: each.
    pub one_of: u64,
}

impl Fault {
    /// Every transfer of the kind.
    pub fn every(on: On, does: Trouble) -> Fault {
        Fault {
            on,
            does,
            range: 0..u64::MAX,
            one_of: 1,
        }
    }

    /// Only one of `n`, at random.
    pub fn one_of(self, n: u64) -> Fault {
        Fault { one_of: n, ..self }
    }

    /// Only what touches these bytes of the disk.
    pub fn within(self, range: Range<u64>) -> Fault {
        Fault { range, ..self }
    }
}

/// EIO, for [`Trouble::Error`].
pub const EIO: i32 = 5;
/// ENOSPC, for [`Trouble::Error`]: the file system below an image is full.
pub const ENOSPC: i32 = 28;

/// What a power cut leaves of the sectors written since the last flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Nothing.
    Lost,
    /// Everything.
    Kept,
    /// All writes of all disks before one moment.
    Before,
    /// Some of the writes, whole.
    SomeWrites,
    /// Some of the sectors, whatever writes they belong to.
    SomeSectors,
    /// Of each write the first few sectors.
    Torn,
    /// Everything on some of the disks.
    SomeDisks,
}

impl Fate {
    pub const ALL: [Fate; 7] = [
        Fate::Lost,
        Fate::Kept,
        Fate::Before,
        Fate::SomeWrites,
        Fate::SomeSectors,
        Fate::Torn,
        Fate::SomeDisks,
    ];

    pub fn draw(dice: &mut Dice) -> Fate {
        Fate::ALL[dice.below(Fate::ALL.len() as u64) as usize]
    }
}

/// What a power cut did.
#[derive(Clone, Debug)]
pub struct Cut {
    pub fate: Fate,
    /// Writes that were not flushed, on all disks.
    pub writes: usize,
    /// Their sectors; one that was written twice counts twice.
    pub sectors: usize,
    /// Sectors of them that did not reach the disk.
    pub lost: usize,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(
            f,
            "{:?}: {} of {} unflushed sectors lost, of {} writes",
            self.fate, self.lost, self.sectors, self.writes
        )
    }
}

/// A write that was not flushed.
struct Unflushed {
    /// Place in the order of the writes of all disks.
    number: u64,
    /// First sector.
    sector: u64,
    data: Vec<u8>,
}

struct Disk {
    name: String,
    stable: File,
    size: u64,
    unflushed: Vec<Unflushed>,
    /// What reads see in place of the stable file.
    cache: BTreeMap<u64, Box<[u8; SECTOR as usize]>>,
    faults: Vec<Fault>,
    gone: bool,
}

impl Disk {
    fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.stable.read_exact_at(out, offset)?;
        let end = offset + out.len() as u64;
        for (sector, bytes) in self.cache.range(offset / SECTOR..end.div_ceil(SECTOR)) {
            let start = sector * SECTOR;
            let (from, to) = (start.max(offset), (start + SECTOR).min(end));
            out[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&bytes[(from - start) as usize..(to - start) as usize]);
        }
        Ok(())
    }

    fn write(&mut self, number: u64, offset: u64, data: &[u8]) -> std::io::Result<()> {
        // Whole sectors: a disk has nothing else.
        let start = offset / SECTOR * SECTOR;
        let end = (offset + data.len() as u64).next_multiple_of(SECTOR);
        let mut whole = vec![0; (end - start) as usize];
        let skip = (offset - start) as usize;
        if whole.len() != data.len() {
            self.read(start, &mut whole)?;
        }
        whole[skip..skip + data.len()].copy_from_slice(data);
        for (n, bytes) in whole.chunks_exact(SECTOR as usize).enumerate() {
            let mut sector = Box::new([0; SECTOR as usize]);
            sector.copy_from_slice(bytes);
            self.cache.insert(start / SECTOR + n as u64, sector);
        }
        self.unflushed.push(Unflushed {
            number,
            sector: start / SECTOR,
            data: whole,
        });
        Ok(())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        for w in self.unflushed.drain(..) {
            self.stable.write_all_at(&w.data, w.sector * SECTOR)?;
        }
        self.cache.clear();
        Ok(())
    }

    fn forget(&mut self) {
        self.unflushed.clear();
        self.cache.clear();
    }
}

struct State {
    disks: Vec<Disk>,
    /// Writes so far.
    writes: u64,
    dice: Dice,
    /// Transfers fail: the power is off.
    off: bool,
    /// Writes until it goes off by itself.
    fuse: Option<u64>,
    /// Goes up when what stalls goes on.
    healed: u64,
    /// Flushes are acknowledged and not done: to see that this is found.
    lies: bool,
}

struct Served {
    state: Mutex<State>,
    changed: Condvar,
}

/// See the [module](self).
pub struct FaultyDisks {
    served: Arc<Served>,
    mount: Mount,
    session: Option<JoinHandle<()>>,
    dir: TempDir,
}

impl FaultyDisks {
    /// No disks yet; `None` after saying why if nothing can be mounted here.
    pub fn new(name: &str) -> Option<FaultyDisks> {
        let dir = TempDir::new(&format!("fd-{name}")).expect("temporary folder");
        let (stable, at) = (dir.path().join("stable"), dir.path().join("dev"));
        fs::create_dir(&stable).expect("folder");
        fs::create_dir(&at).expect("folder");
        let mut options = MountOptions::new("faulty-disks");
        options.subtype = "faulty".into();
        let (device, mount) = match fuse::mount(&at, &options) {
            Ok(mounted) => mounted,
            Err(e) => {
                eprintln!("skipped: {name} needs to mount: {e}");
                return None;
            }
        };
        let served = Arc::new(Served {
            state: Mutex::new(State {
                disks: Vec::new(),
                writes: 0,
                dice: Dice::new(1),
                off: false,
                fuse: None,
                healed: 0,
                lies: false,
            }),
            changed: Condvar::new(),
        });
        let config = Config {
            threads: 128,
            transport: Transport::Device,
            writeback_cache: false,
            posix_acl: false,
            readdirplus: ReaddirPlus::Never,
            ..Config::default()
        };
        let session = Session::new(served.clone(), device, config);
        let session = std::thread::spawn(move || {
            // However it ends, the disks are gone then, and the daemon says so.
            let _ = session.run();
        });
        Some(FaultyDisks {
            served,
            mount,
            session: Some(session),
            dir,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.served.lock()
    }

    /// A new disk full of zeros; gives its path, for `zpool create`.
    pub fn disk(&self, name: &str, size: u64) -> String {
        let stable = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(self.stable().join(name))
            .expect("image");
        stable.set_len(size).expect("size of the image");
        self.state().disks.push(Disk {
            name: name.into(),
            stable,
            size,
            unflushed: Vec::new(),
            cache: BTreeMap::new(),
            faults: Vec::new(),
            gone: false,
        });
        let path = self.folder().join(name);
        path.to_str().expect("plain path").to_string()
    }

    /// Several disks of the same size, `d0` and so on.
    pub fn disks(&self, count: usize, size: u64) -> Vec<String> {
        (0..count)
            .map(|n| self.disk(&format!("d{n}"), size))
            .collect()
    }

    /// The folder of the disks as the daemon has them, for `zpool import -d`.
    pub fn folder(&self) -> PathBuf {
        self.dir.path().join("dev")
    }

    /// The folder of what is flushed, under the same names: for judges. Not to be written to while
    /// the power is on.
    pub fn stable(&self) -> PathBuf {
        self.dir.path().join("stable")
    }

    /// From now on transfers of a disk (its name) fail by this rule, too. The first rule that
    /// applies counts.
    ///
    /// # Panics
    /// If there is no such disk.
    pub fn fail(&self, disk: &str, fault: Fault) {
        let mut state = self.state();
        let disk = state.disks.iter_mut().find(|d| d.name == disk);
        disk.expect("a disk of that name").faults.push(fault);
    }

    /// The same for all disks.
    pub fn fail_all(&self, fault: Fault) {
        for d in &mut self.state().disks {
            d.faults.push(fault.clone());
        }
    }

    /// Writes and flushes of all disks fail with EIO from now on; reads work.
    pub fn fail_all_writes(&self) {
        self.fail_all(Fault::every(On::Write, Trouble::Error(EIO)));
        self.fail_all(Fault::every(On::Flush, Trouble::Error(EIO)));
    }

    /// A disk is pulled out: it cannot be opened, and everything about it fails. What was not
    /// flushed is lost.
    pub fn pull_out(&self, disk: &str) {
        let mut state = self.state();
        let disk = state.disks.iter_mut().find(|d| d.name == disk);
        let disk = disk.expect("a disk of that name");
        disk.gone = true;
        disk.forget();
    }

    /// All disks are there and work; transfers that stalled are carried out.
    pub fn heal(&self) {
        let mut state = self.state();
        for d in &mut state.disks {
            d.faults.clear();
            d.gone = false;
        }
        state.healed += 1;
        self.served.changed.notify_all();
    }

    /// Cuts the power of all disks at once. Whatever is under way or comes later fails with EIO.
    pub fn cut(&self, fate: Fate, dice: &mut Dice) -> Cut {
        let mut state = self.state();
        (state.off, state.fuse) = (true, None);
        let last = state.writes;
        let first = state
            .disks
            .iter()
            .filter_map(|d| d.unflushed.first().map(|w| w.number))
            .min();
        let moment = first.map_or(last, |f| f + dice.below(last - f + 1));
        let many = 1 + dice.below(9);
        let kept = |dice: &mut Dice| dice.below(10) < many;
        let mut cut = Cut {
            fate,
            writes: 0,
            sectors: 0,
            lost: 0,
        };
        for d in &mut state.disks {
            let disk_kept = kept(dice);
            for w in &d.unflushed {
                let n = w.data.len() / SECTOR as usize;
                let write_kept = kept(dice);
                let torn = dice.below(n as u64 + 1) as usize;
                cut.writes += 1;
                cut.sectors += n;
                for (i, bytes) in w.data.chunks_exact(SECTOR as usize).enumerate() {
                    let there = match fate {
                        Fate::Lost => false,
                        Fate::Kept => true,
                        Fate::Before => w.number < moment,
                        Fate::SomeWrites => write_kept,
                        Fate::SomeSectors => kept(dice),
                        Fate::Torn => i < torn,
                        Fate::SomeDisks => disk_kept,
                    };
                    if there {
                        let at = (w.sector + i as u64) * SECTOR;
                        d.stable.write_all_at(bytes, at).expect("stable image");
                    } else {
                        cut.lost += 1;
                    }
                }
            }
            d.forget();
        }
        self.served.changed.notify_all();
        cut
    }

    /// The power goes off by itself with the `writes`-th write from now on, in the middle of
    /// whatever it belongs to. [`FaultyDisks::cut`] says what is left then.
    pub fn fail_after(&self, writes: u64) {
        self.state().fuse = Some(writes.max(1));
    }

    /// Whether the power is off.
    pub fn is_off(&self) -> bool {
        self.state().off
    }

    /// After a cut: the disks work again, with what is stable.
    pub fn power_on(&self) {
        self.state().off = false;
    }

    /// How much was written and not flushed, in bytes.
    pub fn unflushed(&self) -> usize {
        let state = self.state();
        let of = |d: &Disk| d.unflushed.iter().map(|w| w.data.len()).sum::<usize>();
        state.disks.iter().map(of).sum()
    }

    /// From now on flushes are acknowledged without being done, so that cuts lose flushed writes: a
    /// test that does not notice this proves nothing.
    pub fn lie_about_flushes(&self, lies: bool) {
        self.state().lies = lies;
    }
}

impl Drop for FaultyDisks {
    fn drop(&mut self) {
        self.state().off = true;
        self.served.changed.notify_all();
        let _ = self.mount.unmount(Unmount::Force);
        if let Some(session) = self.session.take() {
            let _ = session.join();
        }
    }
}

impl Served {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state and the index of the disk of a node, once a transfer may be carried out.
    fn begin(
        &self,
        node: u64,
        on: On,
        bytes: Range<u64>,
    ) -> Result<(MutexGuard<'_, State>, usize)> {
        let index = (node as usize).checked_sub(2).ok_or(Errno::EISDIR)?;
        let mut state = self.lock();
        let s = &mut *state;
        let disk = s.disks.get_mut(index).ok_or(Errno::EIO)?;
        let mut trouble = None;
        for f in &disk.faults {
            let touches =
                on == On::Flush || (f.range.start < bytes.end && bytes.start < f.range.end);
            if f.on == on && touches && s.dice.below(f.one_of) == 0 {
                trouble = Some(f.does);
                break;
            }
        }
        match trouble {
            None => {}
            Some(Trouble::Error(errno)) => return Err(Errno(errno)),
            Some(Trouble::Lose) => {
                disk.forget();
                return Err(Errno::EIO);
            }
            Some(Trouble::Delay(ms)) => {
                drop(state);
                std::thread::sleep(std::time::Duration::from_millis(ms));
                state = self.lock();
            }
            Some(Trouble::Stall) => {
                let healed = state.healed;
                while !state.off && state.healed == healed {
                    state = self
                        .changed
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
        if state.off || state.disks[index].gone {
            return Err(Errno::EIO);
        }
        Ok((state, index))
    }

    fn attr(&self, node: u64) -> Result<Attr> {
        let state = self.lock();
        if node == ROOT {
            return Ok(Attr {
                ino: ROOT,
                mode: 0o040_755,
                nlink: 2,
                ..Attr::default()
            });
        }
        let index = (node as usize).checked_sub(2);
        let disk = index
            .and_then(|i| state.disks.get(i))
            .ok_or(Errno::ENOENT)?;
        Ok(Attr {
            ino: node,
            // A device that is gone has no bytes.
            size: if disk.gone { 0 } else { disk.size },
            blocks: disk.size / 512,
            mode: 0o100_666,
            nlink: 1,
            blksize: 4096,
            ..Attr::default()
        })
    }
}

impl Filesystem for Served {
    fn lookup(&self, _: &Request, parent: u64, name: &[u8]) -> Result<Entry> {
        let state = self.lock();
        let index = state
            .disks
            .iter()
            .position(|d| d.name.as_bytes() == name && !d.gone);
        drop(state);
        let node = match index {
            Some(i) if parent == ROOT => i as u64 + 2,
            _ => return Err(Errno::ENOENT),
        };
        Ok(Entry {
            node,
            attr: self.attr(node)?,
            ..Entry::default()
        })
    }

    fn getattr(&self, _: &Request, node: u64, _: Option<u64>) -> Result<AttrReply> {
        Ok(AttrReply {
            attr: self.attr(node)?,
            ..AttrReply::default()
        })
    }

    fn open(&self, _: &Request, _: u64, _: OpenArgs) -> Result<Opened> {
        Ok(Opened {
            fh: 0,
            // Nothing is kept by the kernel, and writes come side by side.
            flags: fuse::abi::fopen::DIRECT_IO | fuse::abi::fopen::PARALLEL_DIRECT_WRITES,
        })
    }

    fn read(
        &self,
        _: &Request,
        node: u64,
        _: u64,
        offset: u64,
        size: u32,
        out: &mut ReadBuf,
    ) -> Result<()> {
        let (state, i) = self.begin(node, On::Read, offset..offset + u64::from(size))?;
        let disk = &state.disks[i];
        let len = u64::from(size).min(disk.size.saturating_sub(offset)) as usize;
        let mut bytes = vec![0; len];
        disk.read(offset, &mut bytes)?;
        out.push(Arc::new(bytes), 0..len);
        Ok(())
    }

    fn write(
        &self,
        _: &Request,
        node: u64,
        _: u64,
        offset: u64,
        data: Data<'_>,
        _: WriteArgs,
    ) -> Result<u32> {
        let bytes = data.bytes();
        let end = offset + bytes.len() as u64;
        let (mut state, i) = self.begin(node, On::Write, offset..end)?;
        if end > state.disks[i].size {
            return Err(Errno::ENOSPC);
        }
        state.writes += 1;
        let number = state.writes;
        state.disks[i].write(number, offset, &bytes)?;
        state.fuse = state.fuse.map(|left| left - 1);
        if state.fuse == Some(0) {
            (state.off, state.fuse) = (true, None);
            self.changed.notify_all();
            return Err(Errno::EIO);
        }
        Ok(bytes.len() as u32)
    }

    fn flush(&self, _: &Request, _: u64, _: u64) -> Result<()> {
        Ok(())
    }

    fn fsync(&self, _: &Request, node: u64, _: u64, _: bool) -> Result<()> {
        let (mut state, i) = self.begin(node, On::Flush, 0..u64::MAX)?;
        if !state.lies {
            state.disks[i].flush()?;
        }
        Ok(())
    }

    fn opendir(&self, _: &Request, _: u64, _: i32) -> Result<Opened> {
        Ok(Opened::default())
    }

    fn readdir(&self, _: &Request, _: u64, _: u64, offset: u64, out: &mut DirBuf) -> Result<()> {
        const FILE: u32 = 8;
        let state = self.lock();
        for (i, d) in state.disks.iter().enumerate().skip(offset as usize) {
            let i = i as u64;
            if !d.gone && out.add(i + 2, i + 1, FILE, d.name.as_bytes()) {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn bytes(path: &Path, at: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        let file = File::open(path).unwrap();
        file.read_exact_at(&mut out, at).unwrap();
        out
    }

    fn one(name: &str) -> Option<(FaultyDisks, PathBuf, PathBuf, File)> {
        let disks = FaultyDisks::new(name)?;
        let path = PathBuf::from(disks.disk("d0", 1 << 20));
        let stable = disks.stable().join("d0");
        let file = File::options().read(true).write(true).open(&path).unwrap();
        Some((disks, path, stable, file))
    }

    #[test]
    fn a_cut_loses_what_was_not_flushed_and_nothing_else() {
        let Some((disks, path, stable, file)) = one("cut") else {
            return;
        };
        let mut dice = Dice::new(1);
        file.write_all_at(&[1; 8192], 4096).unwrap();
        file.sync_data().unwrap();
        file.write_all_at(&[2; 4096], 8192).unwrap();
        assert_eq!(disks.unflushed(), 4096);
        assert_eq!(bytes(&path, 4096, 8192), [[1; 4096], [2; 4096]].concat());
        assert_eq!(bytes(&stable, 4096, 8192), [1; 8192]);
        let cut = disks.cut(Fate::Lost, &mut dice);
        assert_eq!((cut.writes, cut.sectors, cut.lost), (1, 8, 8));
        assert!(file.write_all_at(&[3; 512], 0).is_err());
        assert!(file.sync_data().is_err());
        disks.power_on();
        assert_eq!(bytes(&path, 4096, 8192), [1; 8192]);
        // Some of it, in sectors.
        file.write_all_at(&[4; 65536], 0).unwrap();
        let cut = disks.cut(Fate::SomeSectors, &mut dice);
        let seen = bytes(&stable, 0, 65536);
        let whole = |s: &[u8]| s.iter().all(|b| *b == s[0]);
        assert!(seen.chunks(512).all(whole));
        let new = seen.chunks(512).filter(|s| s[0] == 4).count();
        assert_eq!(new, 128 - cut.lost);
        disks.power_on();
        // Who lies loses what was flushed.
        file.write_all_at(&[5; 512], 0).unwrap();
        disks.lie_about_flushes(true);
        file.sync_all().unwrap();
        disks.cut(Fate::Lost, &mut dice);
        assert_ne!(bytes(&stable, 0, 512), [5; 512]);
    }

    #[test]
    fn disks_fail_by_rules_and_heal() {
        let Some((disks, path, stable, file)) = one("rules") else {
            return;
        };
        file.write_all_at(&[1; 512], 0).unwrap();
        disks.fail_all_writes();
        let errno = |r: std::io::Result<()>| r.err().and_then(|e| e.raw_os_error());
        assert_eq!(errno(file.write_all_at(&[2; 512], 0)), Some(EIO));
        assert_eq!(errno(file.sync_all()), Some(EIO));
        assert_eq!(bytes(&path, 0, 512), [1; 512]);
        disks.heal();
        let full = Fault::every(On::Write, Trouble::Error(ENOSPC)).within(4096..8192);
        disks.fail("d0", full);
        file.write_all_at(&[2; 4096], 0).unwrap();
        assert_eq!(errno(file.write_all_at(&[2; 512], 4096)), Some(ENOSPC));
        disks.fail("d0", Fault::every(On::Flush, Trouble::Lose));
        assert_eq!(errno(file.sync_all()), Some(EIO));
        disks.heal();
        file.sync_all().unwrap();
        assert_eq!(bytes(&stable, 0, 4096), [0; 4096]);
        disks.pull_out("d0");
        assert!(File::open(&path).is_err());
        assert!(file.write_all_at(&[2; 512], 0).is_err());
        disks.heal();
        // A stalled transfer is carried out when the disk answers again.
        disks.fail_all(Fault::every(On::Write, Trouble::Stall));
        std::thread::scope(|s| {
            let stalled = s.spawn(|| file.write_all_at(&[6; 512], 0));
            assert_eq!(bytes(&path, 0, 512), [0; 512]);
            assert!(!stalled.is_finished());
            disks.heal();
            stalled.join().unwrap().unwrap();
        });
        assert_eq!(bytes(&path, 0, 512), [6; 512]);
    }
}
