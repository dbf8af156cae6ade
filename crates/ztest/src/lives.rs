//! Lives of file systems: snapshots, clones, promotion, going back, bookmarks, holds, new names, copies by streams, in
//! several threads that share a few names, and the end of all of them.
//!
//! A command may be refused because another thread was faster. Whatever else goes wrong is a finding; what
//! the accounts are afterwards is judged by [`judge`].

use crate::{keys, Dice};
use admin::commands::{told, Commands, ROOT};
use admin::datasets::{is_below, mount, receive, send};
use admin::{head, PoolEntry};
use api::ChangeKind;
use base::sync::RwLockExt;
use base::{bail, Kind, Result};
use disk::feature::guid;
use dsl::{CreateArgs, Dataset};
use pool::Pool;
use std::sync::{Arc, RwLock};
use stream::Image;
use zpl::{Cred, New, WriteOpts, Zfs};

/// File systems at most.
const HEADS: u64 = 5;
/// Their names begin so.
const PREFIX: &str = "life";
/// Snapshots of a head at most.
const SNAPSHOTS: usize = 8;
/// Txgs in which the blocks of all destroyed clones are freed, by far.
const MOST_TXGS: u64 = 10_000;
/// Features whose counts are zero when everything is gone.
const COUNTED: [&str; 4] = [
    guid::BOOKMARKS,
    guid::BOOKMARK_V2,
    guid::BOOKMARK_WRITTEN,
    guid::LIVELIST,
];

/// All of them.
pub struct Lives {
    commands: Commands,
    entry: Arc<PoolEntry>,
    /// Held for writing by whoever takes a head away, for reading by whoever writes into one.
    files: RwLock<()>,
    /// Nobody else changes anything: what was done must be seen.
    alone: bool,
}

/// Files that are written.
const FILES: [&str; 3] = ["f0", "f1", "f2"];
/// Files that come and go together: more than four blocks of dnodes.
const CHURN: u64 = 150;

/// What is in each of [`FILES`], if it is there.
fn contents(zfs: &Zfs) -> Result<Vec<Option<Vec<u8>>>> {
    let (root, cred) = (zfs.root()?, Cred::root());
    let one = |name: &&str| {
        let z = match zfs.lookup(&root, name.as_bytes(), &cred) {
            Err(e) if e.kind == Kind::NotFound => return Ok(None),
            found => found?,
        };
        let mut all = vec![0; z.size() as usize];
        zfs.read(&z, 0, &mut all)?;
        Ok(Some(all))
    };
    FILES.iter().map(one).collect()
}

/// A snapshot: full name, dataset.
type Snap = (String, Arc<Dataset>);

impl Lives {
    pub fn new(commands: Commands, entry: Arc<PoolEntry>, alone: bool) -> Lives {
        Lives {
            commands,
            entry,
            files: RwLock::default(),
            alone,
        }
    }

    fn pool(&self) -> &Arc<Pool> {
        &self.entry.pool
    }

    fn any_name(&self, dice: &mut Dice) -> String {
        format!("{}/{PREFIX}{}", self.pool().name(), dice.below(HEADS))
    }

    fn heads(&self) -> Result<Vec<Arc<Dataset>>> {
        let (dsl, mut out) = (self.pool().dsl(), Vec::new());
        dsl.walk(&dsl.root()?, &mut |d| {
            if d.name().starts_with(PREFIX) {
                let head = d.head()?;
                // What a stream fills is nothing yet.
                if !head.is_inconsistent() {
                    out.push(head);
                }
            }
            Ok(())
        })?;
        Ok(out)
    }

    fn snaps(&self, of: &Dataset) -> Result<Vec<Snap>> {
        let name = of.full_name();
        let list = of.snapshots()?.into_iter();
        Ok(list.map(|(s, ds)| (format!("{name}@{s}"), ds)).collect())
    }

    fn any_head(&self, dice: &mut Dice) -> Result<Arc<Dataset>> {
        let heads = self.heads()?;
        let chosen = heads.get(dice.below(heads.len() as u64) as usize);
        chosen.cloned().ok_or_else(|| Kind::NotFound.into())
    }

    fn any_snap(&self, dice: &mut Dice) -> Result<Snap> {
        let list = self.snaps(&*self.any_head(dice)?)?;
        let chosen = list.get(dice.below(list.len() as u64) as usize);
        chosen.cloned().ok_or_else(|| Kind::NotFound.into())
    }

    /// One command. True if it was carried out, false if it does not apply to what there is.
    pub fn step(&self, dice: &mut Dice) -> Result<bool> {
        self.applies(self.command(dice))
    }

    /// A file system of an old version becomes a new one, under what is in it, and goes. Answers as [`Lives::step`].
    pub fn upgrade(&self, dice: &mut Dice) -> Result<bool> {
        let name = format!("{}/{PREFIX}old{}", self.pool().name(), dice.below(1 << 30));
        self.applies(self.grow_up(&name, dice))
    }

    fn grow_up(&self, name: &str, dice: &mut Dice) -> Result<()> {
        let c = &self.commands;
        c.create(name, &[("version", 1 + dice.below(4))])?;
        let head = self.pool().dsl().dataset(name)?;
        self.change(&head, dice, false)?;
        let snap = format!("{name}@old");
        c.snapshot(&snap)?;
        c.set(name, "version", "5")?;
        let mounted = self.entry.mounted(head.object()).ok_or(Kind::NotFound)?;
        let version = mounted.head.enter().zfs.version;
        // Another thread may have gone back.
        if self.alone && version != 5 {
            bail!(Damaged, "{name} has version {version}");
        }
        drop(mounted);
        self.change(&head, dice, true)?;
        let _taken_away = self.files.acquire_write();
        c.destroy(&snap)?;
        c.destroy(name)
    }

    fn applies(&self, done: Result<()>) -> Result<bool> {
        match done {
            Ok(()) => Ok(true),
            Err(e) => match e.kind {
                Kind::NotFound | Kind::Exists | Kind::Busy | Kind::Invalid | Kind::Again => {
                    Ok(false)
                }
                Kind::NoSpace | Kind::Quota => Ok(false),
                // Another thread received it raw just now, and has still to load its key.
                Kind::Access if !self.alone => Ok(false),
                _ => Err(e),
            },
        }
    }

    fn command(&self, dice: &mut Dice) -> Result<()> {
        let c = &self.commands;
        match dice.below(22) {
            0 => match dice.below(2) {
                0 => c.create(&self.any_name(dice), &[("recordsize", 4096)]),
                _ => keys::create_sealed(c, &self.any_name(dice)),
            },
            1..=4 => self.write(&self.any_head(dice)?, dice),
            5..=6 => {
                let head = self.any_head(dice)?;
                if self.snaps(&head)?.len() >= SNAPSHOTS {
                    return Ok(());
                }
                c.snapshot(&format!("{}@s{}", head.full_name(), dice.below(40)))
            }
            7..=8 => {
                let (name, snap) = self.any_snap(dice)?;
                let clones = clones(&snap);
                c.destroy(&name)?;
                if self.alone && clones > 0 {
                    bail!(Damaged, "{name} had {clones} clones and is gone");
                }
                self.is_gone(&name)
            }
            9 => {
                let (name, snap) = self.any_snap(dice)?;
                let _taken_away = self.files.acquire_write();
                match self.alone {
                    true => self.go_back_above(&name, &snap),
                    false => c.rollback(&name),
                }
            }
            10 => {
                let (name, _) = self.any_snap(dice)?;
                match dice.below(3) {
                    0 => self.clone_and_snapshot(&name, &self.any_name(dice)),
                    _ => c.clone_unmounted(&name, &self.any_name(dice)),
                }
            }
            11 => c.promote(&self.any_head(dice)?.full_name()),
            12 => self.mark(dice),
            13 => self.hold(dice),
            16 => self.destroy_range(dice),
            17 => self.rename_all(dice),
            18 => self.compare(dice),
            19..=21 => self.replicate(dice),
            14 => {
                let head = self.any_head(dice)?.full_name();
                let _taken_away = self.files.acquire_write();
                match dice.below(2) {
                    0 => c.rename(&head, &self.any_name(dice)),
                    _ => {
                        c.destroy(&head)?;
                        self.is_gone(&head)
                    }
                }
            }
            _ => {
                let (name, _) = self.any_snap(dice)?;
                let (fs, _) = name.split_once('@').ok_or(Kind::Invalid)?;
                c.rename(&name, &format!("{fs}@r{}", dice.below(40)))
            }
        }
    }

    /// Makes a clone, and a snapshot of it before the clone is written, in one txg.
    fn clone_and_snapshot(&self, origin: &str, name: &str) -> Result<()> {
        let (origin, name) = (origin.to_string(), name.to_string());
        self.pool().task(move |pool, tx| {
            let (up, last) = name.rsplit_once('/').ok_or(Kind::Invalid)?;
            let (parent, origin) = (pool.dsl().dir(up)?, pool.dsl().dataset(&origin)?);
            let clone = pool.clone_in(tx, &parent, last, &origin, CreateArgs::default())?;
            pool.snapshot_in(tx, &[(clone, "first".into())]).map(drop)
        })
    }

    /// A rollback destroys younger snapshots of the file system, and none of those below it.
    fn go_back_above(&self, name: &str, to: &Dataset) -> Result<()> {
        let (fs, _) = name.split_once('@').ok_or(Kind::Invalid)?;
        let newer = |s: &Snap| s.1.phys().creation_txg > to.phys().creation_txg;
        let snaps = self.snaps(&*self.pool().dsl().dataset(fs)?)?;
        let younger = snaps.iter().find(|s| newer(s));
        let Some((_, short)) = younger.and_then(|(name, _)| name.split_once('@')) else {
            return self.commands.rollback(name);
        };
        let below = format!("{fs}/below");
        let same = format!("{below}@{short}");
        self.commands.create(&below, &[("recordsize", 4096)])?;
        self.commands.snapshot(&same)?;
        let done = self.commands.rollback(name);
        if self.pool().dsl().dataset(&same).is_err() {
            bail!(Damaged, "a rollback to {name} destroyed {same}");
        }
        self.commands.destroy(&same)?;
        self.commands.destroy(&below)?;
        done
    }

    fn is_gone(&self, name: &str) -> Result<()> {
        match self.pool().dsl().dataset(name) {
            Ok(_) if self.alone => bail!(Damaged, "{name} is still there"),
            _ => Ok(()),
        }
    }

    /// A range of two or three snapshots.
    fn destroy_range(&self, dice: &mut Dice) -> Result<()> {
        let head = self.any_head(dice)?;
        let snaps = self.snaps(&head)?;
        let first = dice.below(snaps.len() as u64) as usize;
        let range = snaps.iter().skip(first).take(2 + dice.below(2) as usize);
        let names: Vec<&str> = range.map(|(name, _)| name.as_str()).collect();
        let (Some(from), Some(to)) = (names.first(), names.last()) else {
            return Err(Kind::NotFound.into());
        };
        let (_, last) = to.split_once('@').ok_or(Kind::Invalid)?;
        self.commands.destroy(&format!("{from}%{last}"))?;
        names.iter().try_for_each(|name| self.is_gone(name))
    }

    /// Snapshots of one name of a file system and those below it.
    fn rename_all(&self, dice: &mut Dice) -> Result<()> {
        let (name, _) = self.any_snap(dice)?;
        let (top, old) = name.split_once('@').ok_or(Kind::Invalid)?;
        let new = format!("r{}", dice.below(40));
        let heads = self.heads()?.into_iter().map(|h| h.full_name());
        let had: Vec<String> = heads.filter(|fs| is_below(fs, top)).collect();
        let had = had.iter().map(|fs| format!("{fs}@{old}"));
        let had: Vec<String> = had
            .filter(|s| self.pool().dsl().dataset(s).is_ok())
            .collect();
        let (old, new) = (format!("{top}@{old}"), format!("{top}@{new}"));
        self.commands.rename_all(&old, &new)?;
        // To the name they have already: nothing is changed.
        let had = if old == new { Vec::new() } else { had };
        had.iter().try_for_each(|name| self.is_gone(name))
    }

    /// A comparison of a snapshot with the present must tell each file that differs, came or went.
    fn compare(&self, dice: &mut Dice) -> Result<()> {
        let head = self.any_head(dice)?;
        self.write(&head, dice)?;
        let (name, snap) = self.any_snap_of(&head, dice)?;
        if !self.alone {
            return self.commands.diff(&name, None).map(drop);
        }
        // Whole blocks of dnodes come and go.
        let churn = dice.below(2) == 0;
        if churn {
            self.churn(&head, true)?;
            self.commands
                .snapshot(&format!("{}@churn", head.full_name()))?;
            self.churn(&head, false)?;
            self.pool().sync()?;
            let name = format!("{}@churn", head.full_name());
            let told = self.commands.diff(&name, None)?;
            let removed = told.iter().filter(|c| c.what == ChangeKind::Removed);
            let removed = removed.filter(|c| String::from_utf8_lossy(&c.path.0).contains("/churn"));
            let n = removed.count() as u64;
            self.commands.destroy(&name)?;
            if n != CHURN {
                bail!(Damaged, "{name}: {n} removed files are told, not {CHURN}");
            }
        }
        let told = self.commands.diff(&name, None)?;
        let view = head::open_snapshot(self.pool(), &snap, &[])?;
        let before = contents(&view)?;
        drop(view);
        self.pool().close_dataset(snap.object());
        let mounted = self.entry.mounted(head.object()).ok_or(Kind::NotFound)?;
        let now = contents(&mounted.head.enter().zfs)?;
        for (file, (old, new)) in FILES.iter().zip(before.iter().zip(&now)) {
            let end = format!("/{file}");
            let is_told = told.iter().any(|c| c.path.0.ends_with(end.as_bytes()));
            if old != new && !is_told {
                bail!(Damaged, "{name}: the change of {file} is not told");
            }
        }
        Ok(())
    }

    fn any_snap_of(&self, head: &Dataset, dice: &mut Dice) -> Result<Snap> {
        let list = self.snaps(head)?;
        let chosen = list.get(dice.below(list.len() as u64) as usize);
        chosen.cloned().ok_or_else(|| Kind::NotFound.into())
    }

    /// Makes (`on`) or removes many files.
    fn churn(&self, head: &Dataset, on: bool) -> Result<()> {
        let mounted = self.entry.mounted(head.object()).ok_or(Kind::NotFound)?;
        let inside = mounted.head.enter();
        let (zfs, root, cred) = (&inside.zfs, inside.zfs.root()?, Cred::root());
        for n in 0..CHURN {
            let name = format!("churn{n}");
            match on {
                true => {
                    drop(zfs.create(&root, name.as_bytes(), &New::file(0o100_644, 0), &cred)?)
                }
                false => zfs.unlink(&root, name.as_bytes(), &cred)?,
            }
        }
        Ok(())
    }

    /// Makes or destroys a bookmark.
    fn mark(&self, dice: &mut Dice) -> Result<()> {
        let head = self.any_head(dice)?;
        let marks = head.bookmarks()?;
        match marks.first().filter(|_| dice.below(2) == 0) {
            Some((mark, _)) => {
                let name = format!("{}#{mark}", head.full_name());
                self.commands.destroy(&name)?;
                if self.alone && head.bookmark(mark)?.is_some() {
                    bail!(Damaged, "{name} is still there");
                }
                Ok(())
            }
            None => {
                let (source, _) = self.any_snap(dice)?;
                let (fs, _) = source.split_once('@').ok_or(Kind::Invalid)?;
                let mark = format!("{fs}#m{}", dice.below(6));
                self.commands.bookmark(&source, &mark)
            }
        }
    }

    /// Holds a snapshot, or lets it go.
    fn hold(&self, dice: &mut Dice) -> Result<()> {
        let (name, snap) = self.any_snap(dice)?;
        if let Some((tag, _)) = snap.hold_list()?.first() {
            return self.commands.release(tag, &name);
        }
        self.commands.hold("tag", &name)?;
        if self.alone && self.commands.destroy(&name).is_ok() {
            bail!(Damaged, "{name} was held and is gone");
        }
        Ok(())
    }

    /// The stream of a snapshot: whole, or based on another one; `raw`: as it is stored.
    fn sent(&self, snap: &str, from: Option<&str>, raw: bool) -> Result<Vec<u8>> {
        let ask = api::Send {
            target: snap.into(),
            from: from.map(str::to_string),
            raw,
            ..api::Send::default()
        };
        let mut out = Vec::new();
        send::send(&self.commands.0, ROOT, &ask, Some(&mut out), &mut |_| {}).map_err(told)?;
        Ok(out)
    }

    /// What a stream of a snapshot of `fs` into `to` is to be based on: the newest snapshot both have (its name), or
    /// nothing, if there is no such head. `None`: no stream of it goes there.
    fn base_for(&self, fs: &str, snap: &Dataset, to: &str) -> Result<Option<Option<String>>> {
        let guid = |ds: &Dataset| ds.phys().guid;
        let there = match self.pool().dsl().dataset(to) {
            // Some names are left to clones.
            Err(e) if e.kind == Kind::NotFound => {
                let few = self.heads()?.len() < HEADS as usize - 2;
                return Ok(few.then_some(None));
            }
            there => there?,
        };
        let own: Vec<u64> = there.snapshots()?.iter().map(|(_, s)| guid(s)).collect();
        if to == fs || own.len() >= SNAPSHOTS || own.contains(&guid(snap)) {
            return Ok(None);
        }
        let mut base = None;
        for (s, ds) in self.snaps(&*self.pool().dsl().dataset(fs)?)? {
            if guid(&ds) == guid(snap) {
                break;
            }
            if own.contains(&guid(&ds)) {
                base = Some(s);
            }
        }
        Ok(base.map(Some))
    }

    /// Copies a snapshot into another head by a stream: whole if there is none of that name, else as an increment of
    /// the newest snapshot both have. What the head has beyond that is given up.
    fn replicate(&self, dice: &mut Dice) -> Result<()> {
        let (name, snap) = self.any_snap(dice)?;
        let (fs, _) = name.split_once('@').ok_or(Kind::Invalid)?;
        // Where there is something older of it, or where nothing is.
        let first = dice.below(HEADS);
        let names = (0..HEADS).map(|n| (first + n) % HEADS);
        let mut names = names.map(|n| format!("{}/{PREFIX}{n}", self.pool().name()));
        let found = names.find_map(|to| match self.base_for(fs, &snap, &to) {
            Ok(Some(base)) => Some(Ok((to, base))),
            Ok(None) => None,
            Err(e) => Some(Err(e)),
        });
        let Some((to, base)) = found.transpose()? else {
            return Ok(());
        };
        let raw = snap.dir().is_encrypted()? && dice.below(3) > 0;
        if !self.copy(&name, &to, base.as_deref(), raw)? || !self.alone {
            return Ok(());
        }
        // An increment in which files have become shorter.
        let head = self.pool().dsl().dataset(fs)?;
        for _ in 0..3 {
            self.change(&head, dice, true)?;
        }
        let next = format!("{fs}@c{}", dice.below(40));
        self.commands.snapshot(&next)?;
        self.copy(&next, &to, Some(&name), raw).map(drop)
    }

    /// Whether a raw increment to `base` does not fit to what the head `to` has of it.
    fn is_misfit(&self, to: &str, base: Option<&str>) -> Result<bool> {
        let Some(base) = base else {
            return Ok(false);
        };
        let base = self.pool().dsl().dataset(base)?;
        let guid = base.phys().guid;
        let own = self.pool().dsl().dataset(to)?.snapshots()?;
        match own.iter().find(|(_, s)| s.phys().guid == guid) {
            Some((_, own)) => keys::is_misfit(own, &base),
            None => Ok(false),
        }
    }

    /// Receives a snapshot into the head `to`; false: the raw stream does not fit, and is refused.
    fn copy(&self, name: &str, to: &str, base: Option<&str>, raw: bool) -> Result<bool> {
        let (_, short) = name.split_once('@').ok_or(Kind::Invalid)?;
        let misfit = raw && self.is_misfit(to, base)?;
        let stream = self.sent(name, base, raw)?;
        let ask = api::Receive {
            target: format!("{to}@{short}"),
            force: true,
            no_mount: true,
            command: format!("zfs receive -uF {to}"),
            ..api::Receive::default()
        };
        let received = {
            let _taken_away = self.files.acquire_write();
            receive::receive(&self.commands.0, ROOT, &ask, &stream[..], &mut |_| {})
        };
        match received.map_err(told) {
            Ok(_) if misfit && self.alone => bail!(
                Damaged,
                "{to} took a raw stream of {name} that does not fit"
            ),
            Err(e) if misfit && matches!(e.kind, Kind::Access | Kind::Invalid) => return Ok(false),
            Ok(_) => {}
            // The target is another one by now, or has what may not go.
            Err(e) if matches!(e.kind, Kind::TextBusy | Kind::NoSuchDevice) => {
                return Err(Kind::Busy.into())
            }
            Err(e) => return Err(e),
        }
        if raw {
            keys::load(&self.commands, self.pool())?;
        }
        if !self.alone {
            return Ok(true);
        }
        let image = |snap: &str| -> Result<Image> {
            let mut image = Image::default();
            image.apply(&self.sent(snap, None, false)?)?;
            Ok(image)
        };
        match image(name)? == image(&ask.target)? {
            true => Ok(true),
            false => bail!(Damaged, "{} is not what {name} is", ask.target),
        }
    }

    /// Some blocks of a few files.
    fn write(&self, head: &Arc<Dataset>, dice: &mut Dice) -> Result<()> {
        let cut = dice.below(3) == 0;
        self.change(head, dice, cut)
    }

    /// Writes into a file and makes it longer or, with `cut`, shorter.
    fn change(&self, head: &Arc<Dataset>, dice: &mut Dice, cut: bool) -> Result<()> {
        let _stays = self.files.acquire_read();
        let name = head.full_name();
        let object = head.object();
        if self.entry.mounted(object).is_none() {
            let place = format!("/{}", name.replace('/', "."));
            mount::mount(
                &self.commands.0,
                ROOT,
                &name,
                &[],
                false,
                false,
                Some(&place),
            )
            .map_err(told)?;
        }
        let mounted = self.entry.mounted(object).ok_or(Kind::NotFound)?;
        let inside = mounted.head.enter();
        let (zfs, root) = (&inside.zfs, inside.zfs.root()?);
        let (cred, file) = (Cred::root(), FILES[dice.below(3) as usize]);
        let z = match zfs.lookup(&root, file.as_bytes(), &cred) {
            Err(e) if e.kind == Kind::NotFound => {
                zfs.create(&root, file.as_bytes(), &New::file(0o100_644, 0), &cred)?
            }
            found => found?,
        };
        let mut data = vec![0; 4096 * (1 + dice.below(8) as usize)];
        let mut word = dice.below(u64::MAX);
        for b in data.chunks_exact_mut(8) {
            word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            b.copy_from_slice(&word.to_le_bytes());
        }
        zfs.write(&z, 4096 * dice.below(40), &data, WriteOpts::default())?;
        if cut {
            zfs.truncate(&z, 4096 * dice.below(12), &cred)?;
        }
        Ok(())
    }

    /// Unmounts what is left.
    pub fn rest(&self) -> Result<()> {
        for head in self.heads()? {
            if self.entry.mounted(head.object()).is_some() {
                mount::unmount(&self.commands.0, ROOT, &head.full_name(), false).map_err(told)?;
            }
        }
        Ok(())
    }

    /// Destroys everything, in an order that is always possible. Nothing of it is left.
    pub fn end(&self) -> Result<()> {
        for head in self.heads()? {
            for (name, snap) in self.snaps(&head)? {
                for (tag, _) in snap.hold_list()? {
                    self.commands.release(&tag, &name)?;
                }
            }
        }
        // Clones before what they came from.
        while let Some(head) = self.leaf()? {
            for (name, _) in self.snaps(&head)? {
                self.commands.destroy(&name)?;
            }
            self.commands.destroy(&head.full_name())?;
        }
        let features = self.pool().dsl().features();
        // The livelists of destroyed clones count until their blocks are free, over many txgs.
        for _ in 0..MOST_TXGS {
            if features.count(guid::LIVELIST).unwrap_or(0) == 0 {
                break;
            }
            self.pool().sync()?;
        }
        for guid in COUNTED {
            if let Some(n) = features.count(guid).filter(|n| *n != 0) {
                bail!(Damaged, "feature {guid} is counted {n} times");
            }
        }
        Ok(())
    }

    /// A head whose snapshots have no clones.
    fn leaf(&self) -> Result<Option<Arc<Dataset>>> {
        let heads = self.heads()?;
        let mut origins = Vec::new();
        for h in &heads {
            if let Some(origin) = h.dir().origin()? {
                origins.push(origin.dir().object());
            }
        }
        let leaf = heads.iter().find(|h| !origins.contains(&h.dir().object()));
        match (leaf, heads.is_empty()) {
            (None, false) => bail!(Damaged, "clones in a circle"),
            (leaf, _) => Ok(leaf.cloned()),
        }
    }
}

/// How many clones a snapshot has.
fn clones(snap: &Dataset) -> u64 {
    // The dataset that comes after it counts too.
    snap.phys().num_children.saturating_sub(1)
}

/// Blocks against space maps, and all space properties against a full traversal.
pub fn judge(pool: &Pool) -> std::result::Result<(), String> {
    let text = |e: base::Error| e.to_string();
    let found = audit::check(pool, audit::Verify::Data, true).map_err(text)?;
    found
        .verdict()
        .map_err(|e| format!("{} findings:\n{e}", found.count))?;
    let wrong = audit::accounts(pool).map_err(text)?;
    let lines: Vec<String> = wrong.iter().map(ToString::to_string).collect();
    match lines.is_empty() {
        true => Ok(()),
        false => Err(lines.join("\n")),
    }
}
