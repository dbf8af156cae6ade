//! Writers that record what `fsync` acknowledged to them, and a load beside them.

use crate::Dice;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// One writer with a folder of its own. After every operation it calls `fsync` and only then takes
/// the result for granted.
pub struct Writer {
    dir: PathBuf,
    dice: Dice,
    next: u64,
    /// What must be there.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Names that the operation under way touches: before or after are both right.
    doubtful: Vec<String>,
    /// Operations that were acknowledged.
    pub done: u64,
}

impl Writer {
    pub fn new(dir: PathBuf, seed: u64) -> io::Result<Writer> {
        fs::create_dir(&dir)?;
        File::open(&dir)?.sync_all()?;
        Ok(Writer {
            dir,
            dice: Dice::new(seed),
            next: 0,
            files: BTreeMap::new(),
            doubtful: Vec::new(),
            done: 0,
        })
    }

    /// Works until something fails, as it will when the daemon is killed.
    pub fn work(&mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) && self.step().is_ok() {
            self.doubtful.clear();
            self.done += 1;
        }
    }

    fn some(&mut self) -> Option<String> {
        let n = self.dice.below(self.files.len() as u64) as usize;
        self.files.keys().nth(n).cloned()
    }

    fn sync_dir(&self) -> io::Result<()> {
        File::open(&self.dir)?.sync_all()
    }

    fn step(&mut self) -> io::Result<()> {
        let what = self.dice.below(10);
        match (self.some(), what) {
            (Some(name), 0..=2) => self.change(name),
            (Some(name), 3) => {
                self.doubtful = vec![name.clone()];
                let len = self.dice.below(150_000) as usize;
                let f = File::options().write(true).open(self.dir.join(&name))?;
                f.set_len(len as u64)?;
                f.sync_all()?;
                if let Some(c) = self.files.get_mut(&name) {
                    c.resize(len, 0);
                }
                Ok(())
            }
            (Some(name), 4) => {
                self.next += 1;
                let to = format!("renamed-{}", self.next);
                self.doubtful = vec![name.clone(), to.clone()];
                fs::rename(self.dir.join(&name), self.dir.join(&to))?;
                self.sync_dir()?;
                if let Some(c) = self.files.remove(&name) {
                    self.files.insert(to, c);
                }
                Ok(())
            }
            (Some(name), 5) if self.files.len() > 20 => {
                self.doubtful = vec![name.clone()];
                fs::remove_file(self.dir.join(&name))?;
                self.sync_dir()?;
                self.files.remove(&name);
                Ok(())
            }
            _ => {
                self.next += 1;
                let name = format!("file-{}", self.next);
                self.doubtful = vec![name.clone()];
                let len = self.length();
                let bytes = self.dice.bytes(len);
                let f = File::create(self.dir.join(&name))?;
                f.write_all_at(&bytes, 0)?;
                f.sync_all()?;
                self.files.insert(name, bytes);
                Ok(())
            }
        }
    }

    /// Small ones are copied into the log, large ones are pointed at.
    fn length(&mut self) -> usize {
        let most = [200, 5_000, 40_000, 150_000, 600_000][self.dice.below(5) as usize];
        self.dice.below(most) as usize
    }

    fn change(&mut self, name: String) -> io::Result<()> {
        self.doubtful = vec![name.clone()];
        let len = self.length();
        let bytes = self.dice.bytes(len);
        let have = self.files.get(&name).map_or(0, Vec::len) as u64;
        let at = self.dice.below(have + 5_000) as usize;
        let f = File::options().write(true).open(self.dir.join(&name))?;
        f.write_all_at(&bytes, at as u64)?;
        f.sync_data()?;
        if let (Some(c), false) = (self.files.get_mut(&name), bytes.is_empty()) {
            let end = at + bytes.len();
            if c.len() < end {
                c.resize(end, 0);
            }
            c[at..end].copy_from_slice(&bytes);
        }
        Ok(())
    }

    /// Everything acknowledged is there, nothing else is, except what was under way; that is then
    /// removed, so that the next round starts from what is known.
    ///
    /// Errors: what is wrong.
    pub fn verify(&mut self) -> Result<(), String> {
        let mut wrong = Vec::new();
        for (name, want) in &self.files {
            let got = fs::read(self.dir.join(name));
            if self.doubtful.contains(name) {
                continue;
            }
            match got {
                Err(e) => wrong.push(format!("{name} ({} bytes): {e}", want.len())),
                Ok(got) if got != *want => {
                    let at = got.iter().zip(want).position(|(a, b)| a != b);
                    wrong.push(format!(
                        "{name}: {} bytes instead of {}, first difference at {at:?}",
                        got.len(),
                        want.len()
                    ));
                }
                Ok(_) => {}
            }
        }
        let list = fs::read_dir(&self.dir).map_err(|e| format!("{}: {e}", self.dir.display()))?;
        for e in list.flatten() {
            let name = e.file_name().to_string_lossy().into_owned();
            if !self.files.contains_key(&name) && !self.doubtful.contains(&name) {
                wrong.push(format!("{name}: was removed or never made"));
            }
        }
        for name in std::mem::take(&mut self.doubtful) {
            self.files.remove(&name);
            match fs::remove_file(self.dir.join(&name)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    wrong.push(format!("{name}: cannot be removed: {e}"))
                }
                _ => {}
            }
        }
        if wrong.is_empty() {
            return self.sync_dir().map_err(|e| e.to_string());
        }
        let (count, all) = (wrong.len(), self.files.len());
        wrong.truncate(8);
        Err(format!(
            "{}: {count} of {all} wrong after {} operations:\n{}",
            self.dir.display(),
            self.done,
            wrong.join("\n")
        ))
    }
}

/// Makes folders, files of all sizes, links; deletes them; syncs nothing. Ends with `stop` or the
/// first error.
pub fn disturb(dir: &Path, seed: u64, stop: &AtomicBool) {
    let mut dice = Dice::new(seed);
    let base = dir.join(format!("load-{seed}"));
    while !stop.load(Ordering::Relaxed) {
        if round(&base, &mut dice).is_err() {
            return;
        }
    }
}

fn round(base: &Path, dice: &mut Dice) -> io::Result<()> {
    if dice.below(12) == 0 && base.exists() {
        fs::remove_dir_all(base)?;
    }
    let dir = base.join(format!("{}", dice.below(8)));
    fs::create_dir_all(&dir)?;
    for n in 0..20 {
        let path = dir.join(format!("{n}"));
        let size = dice.below([100, 10_000, 1_000_000][n % 3]) as usize;
        fs::write(&path, dice.bytes(size))?;
        if dice.below(3) == 0 {
            let _ = fs::remove_file(dir.join("link"));
            fs::hard_link(&path, dir.join("link"))?;
        }
        if dice.below(4) == 0 {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}
