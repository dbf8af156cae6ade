//! What can be done to a simulated world, one line of text each, so that a trace can be kept, cut
//! down and replayed. Nothing in a line depends on what was done before: a line that does not apply
//! to the world as it is does nothing.

use crate::cut::Fate;
use crate::lineage::{fs_word, Lineage, ROOT, VERBS};
use crate::refuse::Refuse;
use crate::shape::Shape;
use std::fmt;
use std::str::FromStr;

/// Bytes of a file or value: how many, and from which seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    pub len: u64,
    pub seed: u64,
}

/// A fault of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// What was ever written behind the front labels is garbage.
    Garbage,
    /// So many sectors, chosen by a seed, are garbage.
    Rot(u64, u64),
    /// So many next reads, writes, fail.
    ReadErrors(u64),
    WriteErrors(u64),
    /// So many next writes never happen.
    Phantom(u64),
    /// The next write lands so many bytes further on.
    Misdirect(i64),
    /// It answers nothing any more.
    Dead,
    /// Transfers take so many milliseconds.
    Slow(u64),
    /// All of that is over.
    Over,
}

/// How a snapshot is sent and received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// As it is read.
    Plain,
    /// As it is stored (`zfs send -w`): an encrypted one needs no key on the way.
    Raw,
    /// As it is read, and encrypted with keys of its own if the target is new.
    Sealed,
    /// As it is read, an increment only, without `-F`: refused where the target has changed since the base.
    Kept,
}

/// The verbs of a line for them.
const TRANSFERS: [(Transfer, &str); 4] = [
    (Transfer::Plain, "receive"),
    (Transfer::Raw, "receiveraw"),
    (Transfer::Sealed, "receivesealed"),
    (Transfer::Kept, "receivekept"),
];

impl fmt::Display for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = TRANSFERS.iter().find(|(t, _)| t == self);
        f.write_str(verb.map_or("", |v| v.1))
    }
}

/// One line of a trace. `fs` names a file system without the pool's name (nothing for the root),
/// paths are from its root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Create {
        fs: String,
        path: String,
        mode: u32,
    },
    /// By a user who is in one group.
    CreateAs {
        fs: String,
        path: String,
        uid: u32,
        gid: u32,
    },
    Mkdir {
        fs: String,
        path: String,
    },
    Symlink {
        fs: String,
        path: String,
        len: u64,
    },
    Link {
        fs: String,
        from: String,
        to: String,
    },
    Rename {
        fs: String,
        from: String,
        to: String,
    },
    /// `hold`: somebody has it open, and goes on having it open.
    Unlink {
        fs: String,
        path: String,
        hold: bool,
    },
    Rmdir {
        fs: String,
        path: String,
    },
    Write {
        fs: String,
        path: String,
        at: u64,
        fill: Fill,
        sync: bool,
    },
    Truncate {
        fs: String,
        path: String,
        size: u64,
    },
    Punch {
        fs: String,
        path: String,
        at: u64,
        len: u64,
    },
    Chmod {
        fs: String,
        path: String,
        mode: u32,
    },
    Chown {
        fs: String,
        path: String,
        uid: u32,
        gid: u32,
    },
    Project {
        fs: String,
        path: String,
        id: u32,
    },
    SetXattr {
        fs: String,
        path: String,
        name: String,
        fill: Fill,
    },
    RemoveXattr {
        fs: String,
        path: String,
        name: String,
    },
    Fsync {
        fs: String,
        path: String,
    },
    /// The whole file system.
    FsyncAll {
        fs: String,
    },
    /// Reads a file and compares; forgets nothing.
    Read {
        fs: String,
        path: String,
    },
    /// Lets go of everything held open.
    Release,
    /// A group.
    Sync,
    Snapshot {
        fs: String,
        name: String,
    },
    DestroySnapshot {
        fs: String,
        name: String,
    },
    /// Compares the present state with a snapshot.
    Diff {
        fs: String,
        snap: String,
    },
    /// The snapshots of a file system are sent, each whole and as an increment of the one before.
    Send {
        fs: String,
    },
    /// A snapshot is received into another file system: whole if that is not there, else as an increment of the newest
    /// snapshot both have. The sender goes away after `share` per mille of the stream; what came is kept then,
    /// and the next such line goes on with it.
    Receive {
        fs: String,
        snap: String,
        to: String,
        share: u64,
        how: Transfer,
    },
    /// Blocks of a snapshot, drawn from `seed`, are spoilt in all their copies, and healed with its stream.
    Heal {
        fs: String,
        snap: String,
        seed: u64,
    },
    Clone {
        fs: String,
        snap: String,
        to: String,
    },
    /// The same, and a snapshot of the clone in the same txg.
    CloneSnap {
        fs: String,
        snap: String,
        to: String,
    },
    Rollback {
        fs: String,
    },
    Lineage(Lineage),
    CreateFs {
        fs: String,
    },
    DestroyFs {
        fs: String,
    },
    /// A number for a property.
    Set {
        fs: String,
        prop: String,
        value: u64,
    },
    /// What a user, group or project may have; 0: without limit. `name` is such as `userquota`.
    Limit {
        fs: String,
        name: String,
        id: u64,
        value: u64,
    },
    /// A user may make snapshots of a file system and of those below it from now on, or (`on` is false)
    /// no longer by this.
    Allow {
        fs: String,
        uid: u32,
        on: bool,
    },
    /// A snapshot, asked for by an ordinary user.
    SnapshotAs {
        fs: String,
        name: String,
        uid: u32,
    },
    /// Unmounts and mounts.
    Remount {
        fs: String,
    },
    /// Exports the pool and imports it.
    Reimport,
    /// The checkpoint is taken, of the state before a file is emptied; both are in one txg.
    Checkpoint {
        fs: String,
        path: String,
    },
    /// The pool gets another guid.
    Reguid,
    /// Unique entries leave the dedup tables: the oldest so many percent.
    Prune {
        percent: u64,
    },
    /// How many bytes the dedup tables may take; 0: any number.
    TableQuota {
        bytes: u64,
    },
    /// The checkpoint is discarded.
    Discard,
    /// Exports the pool, and imports it as its checkpoint has it.
    Rewind,
    /// A scrub or resilver is begun, paused, stopped, or comes to its end.
    Scan(Scan),
    /// The fault agent looks at the devices once, as it does every few seconds.
    Look,
    /// A device of the tree is taken out, brought back, detached, attached or put in the place of another.
    Device {
        disk: usize,
        change: Change,
    },
    Fault {
        disk: usize,
        fault: Fault,
    },
    /// What the pool consists of is changed.
    Shape(Shape),
    /// All devices refuse what is written, from now on.
    Refuse(Refuse),
    /// The power goes: of the events since the last cut the last `back` per mille did not happen,
    /// what was not flushed by then fares by `fate`, drawn from `seed`. What is left is opened.
    Cut {
        back: u64,
        fate: Fate,
        seed: u64,
    },
}

/// What happens to a device of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Offline,
    Online,
    Detach,
    /// Beside any other leaf of the same mirror.
    Attach,
    /// In the place of that disk.
    Replace(usize),
    /// The same two, filled by a sequential rebuild.
    AttachInOrder,
    ReplaceInOrder(usize),
    /// The distributed spare of that number stands in for it, filled by a resilver or by a sequential rebuild.
    Spare(u64),
    SpareInOrder(u64),
    /// The distributed spare that stands in for it is detached.
    DetachSpare,
    /// A log is removed, a disk that is not in the pool is added as one.
    Log,
}

/// A scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// A scrub of everything begins, or goes on.
    Scrub,
    Pause,
    Stop,
    Resilver,
    /// A scrub of what is on record as damaged.
    Errors,
    /// Txgs are written until no scan is under way.
    Finish,
    /// All devices of the pool are trimmed, or initialized.
    Trim,
    Initialize,
    /// Both are suspended or stopped, where they are under way.
    SuspendWear,
    CancelWear,
}

/// The words of a line for them.
const SCANS: [(Scan, &str); 10] = [
    (Scan::Scrub, "scrub"),
    (Scan::Pause, "pause"),
    (Scan::Stop, "stop"),
    (Scan::Resilver, "resilver"),
    (Scan::Errors, "errors"),
    (Scan::Finish, "finish"),
    (Scan::Trim, "trim"),
    (Scan::Initialize, "initialize"),
    (Scan::SuspendWear, "suspend-wear"),
    (Scan::CancelWear, "cancel-wear"),
];

impl fmt::Display for Scan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = SCANS.iter().find(|(s, _)| s == self);
        f.write_str(word.map_or("", |w| w.1))
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Change::Replace(of) => return write!(f, "replace {of}"),
            Change::ReplaceInOrder(of) => return write!(f, "replace-s {of}"),
            Change::Spare(n) => return write!(f, "spare {n}"),
            Change::SpareInOrder(n) => return write!(f, "spare-s {n}"),
            Change::DetachSpare => "detach-spare",
            Change::Log => "log",
            Change::AttachInOrder => "attach-s",
            Change::Offline => "offline",
            Change::Online => "online",
            Change::Detach => "detach",
            Change::Attach => "attach",
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Garbage => write!(f, "garbage"),
            Fault::Rot(n, seed) => write!(f, "rot {n} {seed}"),
            Fault::ReadErrors(n) => write!(f, "readerrors {n}"),
            Fault::WriteErrors(n) => write!(f, "writeerrors {n}"),
            Fault::Phantom(n) => write!(f, "phantom {n}"),
            Fault::Misdirect(n) => write!(f, "misdirect {n}"),
            Fault::Dead => write!(f, "dead"),
            Fault::Slow(n) => write!(f, "slow {n}"),
            Fault::Over => write!(f, "over"),
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Op::*;
        let w = fs_word;
        match self {
            Create { fs, path, mode } => write!(f, "create {} {path} {mode:o}", w(fs)),
            CreateAs { fs, path, uid, gid } => {
                write!(f, "createas {} {path} {uid} {gid}", w(fs))
            }
            Chown { fs, path, uid, gid } => write!(f, "chown {} {path} {uid} {gid}", w(fs)),
            Project { fs, path, id } => write!(f, "project {} {path} {id}", w(fs)),
            Limit {
                fs,
                name,
                id,
                value,
            } => write!(f, "limit {} {name} {id} {value}", w(fs)),
            Mkdir { fs, path } => write!(f, "mkdir {} {path}", w(fs)),
            Symlink { fs, path, len } => write!(f, "symlink {} {path} {len}", w(fs)),
            Link { fs, from, to } => write!(f, "link {} {from} {to}", w(fs)),
            Rename { fs, from, to } => write!(f, "rename {} {from} {to}", w(fs)),
            Unlink { fs, path, hold } => {
                write!(
                    f,
                    "{} {} {path}",
                    if *hold { "unlinkopen" } else { "unlink" },
                    w(fs)
                )
            }
            Rmdir { fs, path } => write!(f, "rmdir {} {path}", w(fs)),
            Write {
                fs,
                path,
                at,
                fill,
                sync,
            } => write!(
                f,
                "{} {} {path} {at} {} {}",
                if *sync { "osync" } else { "write" },
                w(fs),
                fill.len,
                fill.seed
            ),
            Truncate { fs, path, size } => write!(f, "truncate {} {path} {size}", w(fs)),
            Punch { fs, path, at, len } => write!(f, "punch {} {path} {at} {len}", w(fs)),
            Chmod { fs, path, mode } => write!(f, "chmod {} {path} {mode:o}", w(fs)),
            SetXattr {
                fs,
                path,
                name,
                fill,
            } => {
                write!(
                    f,
                    "setxattr {} {path} {name} {} {}",
                    w(fs),
                    fill.len,
                    fill.seed
                )
            }
            RemoveXattr { fs, path, name } => write!(f, "rmxattr {} {path} {name}", w(fs)),
            Fsync { fs, path } => write!(f, "fsync {} {path}", w(fs)),
            FsyncAll { fs } => write!(f, "fsyncall {}", w(fs)),
            Read { fs, path } => write!(f, "read {} {path}", w(fs)),
            Release => write!(f, "release"),
            Sync => write!(f, "sync"),
            Snapshot { fs, name } => write!(f, "snapshot {} {name}", w(fs)),
            DestroySnapshot { fs, name } => write!(f, "destroysnap {} {name}", w(fs)),
            Diff { fs, snap } => write!(f, "diff {} {snap}", w(fs)),
            Send { fs } => write!(f, "send {}", w(fs)),
            Receive {
                fs,
                snap,
                to,
                share,
                how,
            } => write!(f, "{how} {} {snap} {to} {share}", w(fs)),
            Heal { fs, snap, seed } => write!(f, "heal {} {snap} {seed}", w(fs)),
            Clone { fs, snap, to } => write!(f, "clone {} {snap} {to}", w(fs)),
            CloneSnap { fs, snap, to } => write!(f, "clonesnap {} {snap} {to}", w(fs)),
            Rollback { fs } => write!(f, "rollback {}", w(fs)),
            Lineage(line) => line.fmt(f),
            CreateFs { fs } => write!(f, "createfs {}", w(fs)),
            DestroyFs { fs } => write!(f, "destroyfs {}", w(fs)),
            Set { fs, prop, value } => write!(f, "set {} {prop} {value}", w(fs)),
            Allow { fs, uid, on } => {
                write!(
                    f,
                    "{} {} {uid}",
                    if *on { "allow" } else { "unallow" },
                    w(fs)
                )
            }
            SnapshotAs { fs, name, uid } => write!(f, "snapshotas {} {name} {uid}", w(fs)),
            Remount { fs } => write!(f, "remount {}", w(fs)),
            Reimport => write!(f, "reimport"),
            Checkpoint { fs, path } => write!(f, "checkpoint {} {path}", w(fs)),
            Reguid => write!(f, "reguid"),
            Prune { percent } => write!(f, "prune {percent}"),
            TableQuota { bytes } => write!(f, "tablequota {bytes}"),
            Discard => write!(f, "discard"),
            Rewind => write!(f, "rewind"),
            Scan(what) => write!(f, "scan {what}"),
            Look => write!(f, "look"),
            Device { disk, change } => write!(f, "device {disk} {change}"),
            Fault { disk, fault } => write!(f, "fault {disk} {fault}"),
            Shape(line) => line.fmt(f),
            Refuse(line) => line.fmt(f),
            Cut { back, fate, seed } => write!(f, "cut {back} {fate:?} {seed}"),
        }
    }
}

/// Words of a line.
struct Words<'a>(std::str::SplitAsciiWhitespace<'a>, &'a str);

impl Words<'_> {
    fn word(&mut self) -> Result<String, String> {
        let w = self.0.next();
        w.map(str::to_string)
            .ok_or_else(|| format!("'{}' ends too early", self.1))
    }
    fn fs(&mut self) -> Result<String, String> {
        Ok(match self.word()? {
            w if w == ROOT => String::new(),
            w => w,
        })
    }
    fn num<T: FromStr>(&mut self) -> Result<T, String> {
        let w = self.word()?;
        w.parse()
            .map_err(|_| format!("'{w}' in '{}' is no such number", self.1))
    }
    fn octal(&mut self) -> Result<u32, String> {
        let w = self.word()?;
        u32::from_str_radix(&w, 8).map_err(|_| format!("'{w}' in '{}' is no mode", self.1))
    }
    fn fill(&mut self) -> Result<Fill, String> {
        Ok(Fill {
            len: self.num()?,
            seed: self.num()?,
        })
    }
    fn device(&mut self) -> Result<Op, String> {
        Ok(Op::Device {
            disk: self.num::<usize>()?,
            change: self.change()?,
        })
    }

    fn change(&mut self) -> Result<Change, String> {
        match self.word()?.as_str() {
            "offline" => Ok(Change::Offline),
            "online" => Ok(Change::Online),
            "detach" => Ok(Change::Detach),
            "attach" => Ok(Change::Attach),
            "replace" => Ok(Change::Replace(self.num()?)),
            "attach-s" => Ok(Change::AttachInOrder),
            "spare" => Ok(Change::Spare(self.num()?)),
            "spare-s" => Ok(Change::SpareInOrder(self.num()?)),
            "detach-spare" => Ok(Change::DetachSpare),
            "log" => Ok(Change::Log),
            "replace-s" => Ok(Change::ReplaceInOrder(self.num()?)),
            other => Err(format!("no change of a device: {other}")),
        }
    }

    fn scan(&mut self) -> Result<Scan, String> {
        let word = self.word()?;
        let known = SCANS.iter().find(|(_, w)| *w == word);
        known.map(|s| s.0).ok_or(format!("no scan: {word}"))
    }

    fn clone(&mut self, and_snapshot: bool) -> Result<Op, String> {
        let (fs, snap, to) = (self.fs()?, self.word()?, self.word()?);
        Ok(match and_snapshot {
            true => Op::CloneSnap { fs, snap, to },
            false => Op::Clone { fs, snap, to },
        })
    }
    fn lineage(&mut self, verb: &str) -> Result<Lineage, String> {
        let none = format!("no operation '{verb}' in '{}'", self.1);
        if !VERBS.contains(&verb) {
            return Err(none);
        }
        let fs = self.fs()?;
        Lineage::parse(verb, fs, &mut || self.word())?.ok_or(none)
    }
    /// The rest of a line about file systems, snapshots or the pool.
    fn of_pool(&mut self, verb: &str) -> Result<Op, String> {
        Ok(match verb {
            "release" => Op::Release,
            "sync" => Op::Sync,
            "snapshot" => Op::Snapshot {
                fs: self.fs()?,
                name: self.word()?,
            },
            "destroysnap" => Op::DestroySnapshot {
                fs: self.fs()?,
                name: self.word()?,
            },
            "diff" => Op::Diff {
                fs: self.fs()?,
                snap: self.word()?,
            },
            "send" => Op::Send { fs: self.fs()? },
            "heal" => Op::Heal {
                fs: self.fs()?,
                snap: self.word()?,
                seed: self.num()?,
            },
            "clone" | "clonesnap" => self.clone(verb == "clonesnap")?,
            "rollback" => Op::Rollback { fs: self.fs()? },
            "createfs" => Op::CreateFs { fs: self.fs()? },
            "destroyfs" => Op::DestroyFs { fs: self.fs()? },
            "set" => Op::Set {
                fs: self.fs()?,
                prop: self.word()?,
                value: self.num()?,
            },
            "allow" | "unallow" => Op::Allow {
                fs: self.fs()?,
                uid: self.num()?,
                on: verb == "allow",
            },
            "snapshotas" => Op::SnapshotAs {
                fs: self.fs()?,
                name: self.word()?,
                uid: self.num()?,
            },
            "remount" => Op::Remount { fs: self.fs()? },
            "reimport" => Op::Reimport,
            "checkpoint" => Op::Checkpoint {
                fs: self.fs()?,
                path: self.word()?,
            },
            "reguid" => Op::Reguid,
            "prune" => Op::Prune {
                percent: self.num()?,
            },
            "tablequota" => Op::TableQuota { bytes: self.num()? },
            "discard" => Op::Discard,
            "rewind" => Op::Rewind,
            "device" => self.device()?,
            "shape" => Op::Shape(Shape::parse(&mut || self.word())?),
            "refuse" => Op::Refuse(Refuse::parse(&mut || self.word())?),
            "scan" => Op::Scan(self.scan()?),
            "look" => Op::Look,
            "fault" => Op::Fault {
                disk: self.num()?,
                fault: self.fault()?,
            },
            "cut" => Op::Cut {
                back: self.num()?,
                fate: self.word()?.parse()?,
                seed: self.num()?,
            },
            v => match TRANSFERS.iter().find(|(_, verb)| *verb == v) {
                Some((how, _)) => self.receive(*how)?,
                None => Op::Lineage(self.lineage(v)?),
            },
        })
    }
    fn receive(&mut self, how: Transfer) -> Result<Op, String> {
        Ok(Op::Receive {
            fs: self.fs()?,
            snap: self.word()?,
            to: self.word()?,
            share: self.num()?,
            how,
        })
    }
    fn fault(&mut self) -> Result<Fault, String> {
        Ok(match self.word()?.as_str() {
            "garbage" => Fault::Garbage,
            "rot" => Fault::Rot(self.num()?, self.num()?),
            "readerrors" => Fault::ReadErrors(self.num()?),
            "writeerrors" => Fault::WriteErrors(self.num()?),
            "phantom" => Fault::Phantom(self.num()?),
            "misdirect" => Fault::Misdirect(self.num()?),
            "dead" => Fault::Dead,
            "slow" => Fault::Slow(self.num()?),
            "over" => Fault::Over,
            w => return Err(format!("no fault '{w}' in '{}'", self.1)),
        })
    }
}

impl FromStr for Op {
    type Err = String;

    fn from_str(line: &str) -> Result<Op, String> {
        let mut w = Words(line.split_ascii_whitespace(), line);
        let verb = w.word()?;
        let op = match verb.as_str() {
            "create" => Op::Create {
                fs: w.fs()?,
                path: w.word()?,
                mode: w.octal()?,
            },
            "createas" => Op::CreateAs {
                fs: w.fs()?,
                path: w.word()?,
                uid: w.num()?,
                gid: w.num()?,
            },
            "chown" => Op::Chown {
                fs: w.fs()?,
                path: w.word()?,
                uid: w.num()?,
                gid: w.num()?,
            },
            "project" => Op::Project {
                fs: w.fs()?,
                path: w.word()?,
                id: w.num()?,
            },
            "limit" => Op::Limit {
                fs: w.fs()?,
                name: w.word()?,
                id: w.num()?,
                value: w.num()?,
            },
            "mkdir" => Op::Mkdir {
                fs: w.fs()?,
                path: w.word()?,
            },
            "symlink" => Op::Symlink {
                fs: w.fs()?,
                path: w.word()?,
                len: w.num()?,
            },
            "link" => Op::Link {
                fs: w.fs()?,
                from: w.word()?,
                to: w.word()?,
            },
            "rename" => Op::Rename {
                fs: w.fs()?,
                from: w.word()?,
                to: w.word()?,
            },
            "unlink" | "unlinkopen" => Op::Unlink {
                fs: w.fs()?,
                path: w.word()?,
                hold: verb == "unlinkopen",
            },
            "rmdir" => Op::Rmdir {
                fs: w.fs()?,
                path: w.word()?,
            },
            "write" | "osync" => Op::Write {
                fs: w.fs()?,
                path: w.word()?,
                at: w.num()?,
                fill: w.fill()?,
                sync: verb == "osync",
            },
            "truncate" => Op::Truncate {
                fs: w.fs()?,
                path: w.word()?,
                size: w.num()?,
            },
            "punch" => Op::Punch {
                fs: w.fs()?,
                path: w.word()?,
                at: w.num()?,
                len: w.num()?,
            },
            "chmod" => Op::Chmod {
                fs: w.fs()?,
                path: w.word()?,
                mode: w.octal()?,
            },
            "setxattr" => Op::SetXattr {
                fs: w.fs()?,
                path: w.word()?,
                name: w.word()?,
                fill: w.fill()?,
            },
            "rmxattr" => Op::RemoveXattr {
                fs: w.fs()?,
                path: w.word()?,
                name: w.word()?,
            },
            "fsync" => Op::Fsync {
                fs: w.fs()?,
                path: w.word()?,
            },
            "fsyncall" => Op::FsyncAll { fs: w.fs()? },
            "read" => Op::Read {
                fs: w.fs()?,
                path: w.word()?,
            },
            verb => w.of_pool(verb)?,
        };
        match w.0.next() {
            None => Ok(op),
            Some(more) => Err(format!("'{more}' too much in '{line}'")),
        }
    }
}
