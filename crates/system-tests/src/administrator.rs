//! An administrator who remembers which commands were done: file systems, their snapshots, rollbacks, receives, properties, and a
//! log device that comes and goes.
//!
//! Each file system has a file `mark`, which `fsync` acknowledged. Snapshots, rollbacks and streams take it along.

use crate::{Dice, Rig};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// File systems that are not the administrator's.
const OTHERS: [&str; 2] = ["tank", "tank/small"];
/// File systems at most.
const MOST: usize = 12;
/// A pool that is used by more than this, in percent, gets no snapshot that keeps what the writers overwrite.
const CROWDED: u64 = 50;

/// What must hold of a file system.
#[derive(Clone, Default)]
struct Known {
    /// Of its user property.
    value: String,
    mark: String,
    /// Marks by the names of snapshots, the oldest first.
    snaps: Vec<(String, String)>,
    /// An fsync of the mark was under way: before or after are both right.
    doubtful_mark: Option<String>,
}

/// What is remembered.
#[derive(Default)]
pub struct Admin {
    dice: Option<Dice>,
    mnt: PathBuf,
    sets: BTreeMap<String, Known>,
    /// Of the pool.
    comment: String,
    /// File systems that the command under way touches.
    doubtful: Vec<String>,
    comment_doubtful: bool,
    /// The disk that is a log now and then.
    log: String,
    next: u64,
    /// Commands that were done.
    pub done: u64,
}

impl Admin {
    pub fn new(seed: u64, log: String, mnt: PathBuf) -> Admin {
        Admin {
            dice: Some(Dice::new(seed)),
            mnt,
            log,
            comment: "-".into(),
            ..Admin::default()
        }
    }

    fn draw(&mut self, n: u64) -> u64 {
        self.dice.as_mut().map_or(0, |d| d.below(n))
    }

    /// Works until something fails, as it will when the daemon is killed.
    pub fn work(&mut self, rig: &Rig, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) && self.step(rig) {
            self.doubtful.clear();
            self.comment_doubtful = false;
            self.done += 1;
        }
    }

    /// Removes the log of the pool, or adds it if it is not there.
    fn change_log(&self, rig: &Rig) -> bool {
        let zpool = |args: &[&str]| rig.try_run("zpool", args).status.success();
        zpool(&["remove", "tank", &self.log])
            || zpool(&["add", "-f", "-o", "ashift=12", "tank", "log", &self.log])
    }

    fn mark_of(&self, set: &str) -> PathBuf {
        let below = set.strip_prefix("tank/").unwrap_or_default();
        self.mnt.join(below).join("mark")
    }

    /// Writes a mark and has it on stable storage.
    fn mark(&mut self, set: &str, text: &str) -> io::Result<()> {
        if let Some(k) = self.sets.get_mut(set) {
            k.doubtful_mark = Some(text.into());
        }
        // In place and of one length: a part of it is never seen.
        let path = self.mark_of(set);
        let mut f = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)?;
        f.write_all(text.as_bytes())?;
        f.sync_all()?;
        if let Some(k) = self.sets.get_mut(set) {
            k.mark = text.into();
            k.doubtful_mark = None;
        }
        Ok(())
    }

    /// One command; whether it was done.
    fn step(&mut self, rig: &Rig) -> bool {
        if self.draw(5) == 0 {
            return self.change_log(rig);
        }
        self.next += 1;
        let value = format!("v{:06}", self.next);
        let n = self.draw(self.sets.len() as u64) as usize;
        let some = self.sets.iter().nth(n).map(|(n, k)| (n.clone(), k.clone()));
        let what = self.draw(16);
        match (some, what) {
            (_, 0) => self.set_comment(rig, value),
            (Some((set, _)), 1) => self.set_value(rig, set, value),
            (Some((set, _)), 2) => self.rename(rig, set),
            (Some((set, _)), 3) => self.destroy(rig, set),
            (Some((set, _)), 4 | 5) => self.mark(&set, &value).is_ok(),
            (Some((set, k)), 6..=8) => self.snapshot(rig, set, k),
            (Some((set, k)), 9 | 10) if !k.snaps.is_empty() => self.roll_back(rig, set, &k),
            (Some((set, k)), 11..=13) if !k.snaps.is_empty() => self.receive(rig, &set, &k, value),
            (_, 14) => Self::snapshot_of_others(rig),
            (Some((set, _)), _) if self.sets.len() >= MOST => self.destroy(rig, set),
            _ => self.create(rig, value),
        }
    }

    fn zfs(rig: &Rig, args: &[&str]) -> bool {
        rig.try_run("zfs", args).status.success()
    }

    fn set_comment(&mut self, rig: &Rig, value: String) -> bool {
        self.comment_doubtful = true;
        let comment = format!("comment={value}");
        let said = rig.try_run("zpool", &["set", &comment, "tank"]);
        if said.status.success() {
            self.comment = value;
        }
        said.status.success()
    }

    fn set_value(&mut self, rig: &Rig, set: String, value: String) -> bool {
        self.doubtful = vec![set.clone()];
        let done = Self::zfs(rig, &["set", &format!("test:n={value}"), &set]);
        if let Some(k) = self.sets.get_mut(&set).filter(|_| done) {
            k.value = value;
        }
        done
    }

    fn rename(&mut self, rig: &Rig, set: String) -> bool {
        let to = format!("tank/r{}", self.next);
        self.doubtful = vec![set.clone(), to.clone()];
        let done = Self::zfs(rig, &["rename", &set, &to]);
        if done {
            let known = self.sets.remove(&set);
            self.sets.insert(to, known.unwrap_or_default());
        }
        done
    }

    fn destroy(&mut self, rig: &Rig, set: String) -> bool {
        self.doubtful = vec![set.clone()];
        let done = Self::zfs(rig, &["destroy", "-r", &set]);
        if done {
            self.sets.remove(&set);
        }
        done
    }

    fn create(&mut self, rig: &Rig, value: String) -> bool {
        let set = format!("tank/a{}", self.next);
        self.doubtful = vec![set.clone()];
        let setting = format!("test:n={value}");
        if !Self::zfs(rig, &["create", "-o", &setting, &set]) {
            return false;
        }
        let known = Known {
            value: value.clone(),
            ..Known::default()
        };
        self.sets.insert(set.clone(), known);
        self.mark(&set, &value).is_ok()
    }

    fn snapshot(&mut self, rig: &Rig, set: String, known: Known) -> bool {
        self.doubtful = vec![set.clone()];
        let short = format!("s{}", self.next);
        let done = Self::zfs(rig, &["snapshot", &format!("{set}@{short}")]);
        if let Some(k) = self.sets.get_mut(&set).filter(|_| done) {
            k.snaps.push((short, known.mark));
        }
        done
    }

    /// To any snapshot; the younger ones go.
    fn roll_back(&mut self, rig: &Rig, set: String, known: &Known) -> bool {
        self.doubtful = vec![set.clone()];
        let n = self.draw(known.snaps.len() as u64) as usize;
        let (short, mark) = known.snaps[n].clone();
        let done = Self::zfs(rig, &["rollback", "-r", &format!("{set}@{short}")]);
        if let Some(k) = self.sets.get_mut(&set).filter(|_| done) {
            k.snaps.truncate(n + 1);
            k.mark = mark;
        }
        done
    }

    /// All snapshots up to one are sent into a new file system, the first whole, the others as increments.
    fn receive(&mut self, rig: &Rig, set: &str, known: &Known, value: String) -> bool {
        let to = format!("tank/c{}", self.next);
        self.doubtful = vec![to.clone()];
        let n = self.draw(known.snaps.len() as u64) as usize;
        let setting = format!("test:n={value}");
        for at in 0..=n {
            let snap = format!("{set}@{}", known.snaps[at].0);
            let from = match at {
                0 => String::new(),
                at => format!("-i @{} ", known.snaps[at - 1].0),
            };
            let options = match at {
                0 => format!("-o {setting}"),
                _ => "-F".into(),
            };
            let pipe = format!("zfs send {from}{snap} | zfs receive {options} {to}");
            if !rig.try_run("sh", &["-ec", &pipe]).status.success() {
                return false;
            }
        }
        let known = Known {
            value,
            mark: known.snaps[n].1.clone(),
            snaps: known.snaps[..=n].to_vec(),
            doubtful_mark: None,
        };
        self.sets.insert(to, known);
        true
    }

    /// Of the file systems that the writers are at work in: made, or destroyed where it is there. It keeps all that they overwrite, so
    /// none is made where it could fill the pool.
    fn snapshot_of_others(rig: &Rig) -> bool {
        Self::zfs(rig, &["destroy", "-r", "tank@load"])
            || Self::capacity(rig).is_some_and(|used| {
                used > CROWDED || Self::zfs(rig, &["snapshot", "-r", "tank@load"])
            })
    }

    /// How much of the pool is in use, in percent.
    fn capacity(rig: &Rig) -> Option<u64> {
        let ask = ["get", "-Hp", "-o", "value", "capacity", "tank"];
        let said = rig.try_run("zpool", &ask);
        said.out.trim().parse().ok()
    }

    /// Makes room for what is to be written next, if the pool is nearly full.
    pub fn make_room(rig: &Rig) {
        if Self::capacity(rig).is_none_or(|used| used > CROWDED) {
            Self::zfs(rig, &["destroy", "-r", "tank@load"]);
            rig.try_run("zpool", &["wait", "-t", "free", "tank"]);
        }
    }

    /// What was done is there and nothing else is, except what was under way, which is then removed.
    pub fn verify(&mut self, rig: &Rig) -> Result<(), String> {
        let mut wrong = Vec::new();
        let doubtful = std::mem::take(&mut self.doubtful);
        let ask = ["get", "-Hr", "-o", "name,value"];
        let text = rig.zfs(&[&ask[..], &["-t", "filesystem", "test:n", "tank"]].concat());
        let there: BTreeMap<&str, &str> = text.lines().filter_map(|l| l.split_once('\t')).collect();
        let list = ["list", "-Hr", "-o", "name", "-s", "createtxg"];
        let text = rig.zfs(&[&list[..], &["-t", "snapshot", "tank"]].concat());
        let mut snaps: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (set, snap) in text.lines().filter_map(|l| l.split_once('@')) {
            // Of those that are made of all file systems.
            if snap != "load" {
                snaps.entry(set).or_default().push(snap);
            }
        }
        for (set, known) in self.sets.iter().filter(|(s, _)| !doubtful.contains(s)) {
            let value = there.get(set.as_str());
            if value != Some(&known.value.as_str()) {
                let must = &known.value;
                wrong.push(format!("{set}: test:n is {value:?} instead of {must}"));
            }
            let have = snaps.remove(set.as_str()).unwrap_or_default();
            let must: Vec<&str> = known.snaps.iter().map(|s| s.0.as_str()).collect();
            if have != must {
                wrong.push(format!("{set}: snapshots {have:?} instead of {must:?}"));
            }
            wrong.extend(self.wrong_marks(set, known));
        }
        for set in there.keys().map(|s| s.to_string()) {
            let known = OTHERS.contains(&set.as_str()) || self.sets.contains_key(&set);
            if doubtful.contains(&set) {
                rig.zfs(&["destroy", "-r", &set]);
            } else if !known {
                wrong.push(format!("{set}: was destroyed or never made"));
            }
        }
        doubtful.iter().for_each(|d| drop(self.sets.remove(d)));
        let comment = rig.zpool(&["get", "-H", "-o", "value", "comment", "tank"]);
        let comment = comment.trim();
        if std::mem::take(&mut self.comment_doubtful) {
            self.comment = comment.into();
        } else if comment != self.comment {
            wrong.push(format!("comment is {comment} instead of {}", self.comment));
        }
        for set in self.sets.keys().cloned().collect::<Vec<_>>() {
            let Some(mark) = self.sets.get_mut(&set).and_then(|k| k.doubtful_mark.take()) else {
                continue;
            };
            // From now on there is no doubt.
            self.mark(&set, &mark)
                .map_err(|e| format!("{set}: mark: {e}"))?;
        }
        match wrong.is_empty() {
            true => Ok(()),
            false => Err(wrong.join("\n")),
        }
    }

    /// What is wrong with the mark of a file system and of its snapshots.
    fn wrong_marks(&self, set: &str, known: &Known) -> Vec<String> {
        let mark = self.mark_of(set);
        let mut wrong = Vec::new();
        let found = fs::read_to_string(&mark);
        let right = |text: &str| text == known.mark || known.doubtful_mark.as_deref() == Some(text);
        match found {
            Ok(text) if right(&text) => {}
            // One whose first mark was under way has none, or an empty one.
            _ if known.mark.is_empty() && known.doubtful_mark.is_some() => {}
            found => wrong.push(format!("{set}: mark {found:?} instead of {}", known.mark)),
        }
        for (snap, must) in &known.snaps {
            let folder = mark.with_file_name(".zfs").join("snapshot").join(snap);
            match fs::read_to_string(folder.join("mark")) {
                Ok(text) if text == *must => {}
                found => wrong.push(format!("{set}@{snap}: mark {found:?} instead of {must}")),
            }
        }
        wrong
    }
}
