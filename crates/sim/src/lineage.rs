//! Lines of a trace about snapshots and clones: promotion, bookmarks, holds, renaming, rollback to older
//! snapshots.

use std::fmt;

/// One of them. `fs` names a file system without the pool's name (nothing for the root).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lineage {
    Promote {
        fs: String,
    },
    Bookmark {
        fs: String,
        snap: String,
        name: String,
    },
    DestroyBookmark {
        fs: String,
        name: String,
    },
    Hold {
        fs: String,
        snap: String,
        tag: String,
    },
    LetGo {
        fs: String,
        snap: String,
        tag: String,
    },
    RenameSnapshot {
        fs: String,
        snap: String,
        to: String,
    },
    RenameFs {
        fs: String,
        to: String,
    },
    /// Snapshots of that name of all file systems.
    RenameAll {
        snap: String,
        to: String,
    },
    /// Those from one to another, both included.
    DestroyRange {
        fs: String,
        from: String,
        to: String,
    },
    /// What is younger is destroyed.
    RollbackTo {
        fs: String,
        snap: String,
    },
    /// Of all file systems, in one txg.
    SnapshotAll {
        name: String,
    },
    /// A file system of an old version.
    CreateOld {
        fs: String,
        version: u64,
    },
    Raise {
        fs: String,
        version: u64,
    },
    /// An encrypted file system, by one of [`crate::keys::CIPHERS`].
    CreateSealed {
        fs: String,
        cipher: u64,
    },
}

/// The root file system, as written in a line.
pub const ROOT: &str = ".";

/// A file system, as written in a line.
pub fn fs_word(fs: &str) -> &str {
    match fs {
        "" => ROOT,
        n => n,
    }
}

/// The first words of these lines.
pub const VERBS: [&str; 14] = [
    "promote",
    "bookmark",
    "destroymark",
    "hold",
    "letgo",
    "renamesnap",
    "renamefs",
    "rollbackto",
    "renameall",
    "destroyrange",
    "snapshotall",
    "createold",
    "raise",
    "createsealed",
];

impl Lineage {
    /// The line of a verb, with its words; nothing if the verb is not one of these. `fs` is the first
    /// word; `word` gives the next one.
    pub fn parse(
        verb: &str,
        fs: String,
        word: &mut dyn FnMut() -> Result<String, String>,
    ) -> Result<Option<Lineage>, String> {
        Ok(Some(match verb {
            "promote" => Lineage::Promote { fs },
            "bookmark" => Lineage::Bookmark {
                fs,
                snap: word()?,
                name: word()?,
            },
            "destroymark" => Lineage::DestroyBookmark { fs, name: word()? },
            "hold" => Lineage::Hold {
                fs,
                snap: word()?,
                tag: word()?,
            },
            "letgo" => Lineage::LetGo {
                fs,
                snap: word()?,
                tag: word()?,
            },
            "renamesnap" => Lineage::RenameSnapshot {
                fs,
                snap: word()?,
                to: word()?,
            },
            "renameall" => Lineage::RenameAll {
                snap: word()?,
                to: word()?,
            },
            "destroyrange" => Lineage::DestroyRange {
                fs,
                from: word()?,
                to: word()?,
            },
            "renamefs" => Lineage::RenameFs { fs, to: word()? },
            "rollbackto" => Lineage::RollbackTo { fs, snap: word()? },
            "snapshotall" => Lineage::SnapshotAll { name: word()? },
            "createold" | "raise" => {
                let version = word()?.parse().map_err(|_| format!("no version: {verb}"))?;
                match verb {
                    "raise" => Lineage::Raise { fs, version },
                    _ => Lineage::CreateOld { fs, version },
                }
            }
            "createsealed" => Lineage::CreateSealed {
                fs,
                cipher: word()?.parse().map_err(|_| format!("no cipher: {verb}"))?,
            },
            _ => return Ok(None),
        }))
    }
}

impl fmt::Display for Lineage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Lineage::*;
        let w = fs_word;
        match self {
            Promote { fs } => write!(f, "promote {}", w(fs)),
            Bookmark { fs, snap, name } => write!(f, "bookmark {} {snap} {name}", w(fs)),
            DestroyBookmark { fs, name } => write!(f, "destroymark {} {name}", w(fs)),
            Hold { fs, snap, tag } => write!(f, "hold {} {snap} {tag}", w(fs)),
            LetGo { fs, snap, tag } => write!(f, "letgo {} {snap} {tag}", w(fs)),
            RenameSnapshot { fs, snap, to } => write!(f, "renamesnap {} {snap} {to}", w(fs)),
            RenameAll { snap, to } => write!(f, "renameall {ROOT} {snap} {to}"),
            DestroyRange { fs, from, to } => write!(f, "destroyrange {} {from} {to}", w(fs)),
            RenameFs { fs, to } => write!(f, "renamefs {} {to}", w(fs)),
            RollbackTo { fs, snap } => write!(f, "rollbackto {} {snap}", w(fs)),
            SnapshotAll { name } => write!(f, "snapshotall {ROOT} {name}"),
            CreateOld { fs, version } => write!(f, "createold {} {version}", w(fs)),
            Raise { fs, version } => write!(f, "raise {} {version}", w(fs)),
            CreateSealed { fs, cipher } => write!(f, "createsealed {} {cipher}", w(fs)),
        }
    }
}
