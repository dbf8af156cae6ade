//! The rows of the yardstick. A row is a list of phases; each phase runs in a process of its own, which sees
//! the file system under test wherever it is mounted.

mod apps;
mod bonnie;
mod data;
mod fio;
pub mod meta;
mod ratio;
mod streams;
mod sync;

use crate::child;
use crate::measure::Measure;
use crate::tools::{self, Tool};
use base::{bail, Kind, Result};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// What a number belongs to when means are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// Reading from the device and writing.
    Data,
    /// What waits for the device.
    Sync,
    /// Reading what is in memory.
    Warm,
    /// Names and attributes, small files.
    Metadata,
    /// Another view of what a rate of the same row says already; in no mean.
    Detail,
    /// Not speed.
    Figure,
}

impl Group {
    pub const SPEED: [Group; 4] = [Group::Data, Group::Sync, Group::Warm, Group::Metadata];

    pub fn text(self) -> &'static str {
        match self {
            Group::Data => "data",
            Group::Sync => "sync",
            Group::Warm => "warm",
            Group::Metadata => "metadata",
            Group::Detail => "detail",
            Group::Figure => "figure",
        }
    }
}

/// One step of a row.
pub struct Phase {
    pub name: &'static str,
    pub group: Group,
    /// Nothing is cached when it begins.
    pub cold: bool,
    /// The time until everything is on the device counts.
    pub settle: bool,
    run: fn(&Work) -> Result<Vec<Measure>>,
}

const fn phase(name: &'static str, group: Group, run: fn(&Work) -> Result<Vec<Measure>>) -> Phase {
    Phase {
        name,
        group,
        cold: false,
        settle: false,
        run,
    }
}

impl Phase {
    const fn cold(mut self) -> Phase {
        self.cold = true;
        self
    }

    const fn settle(mut self) -> Phase {
        self.settle = true;
        self
    }
}

/// A workload.
pub struct Row {
    pub name: &'static str,
    pub about: &'static str,
    pub tools: &'static [Tool],
    /// Turn deduplication on first.
    pub dedup: bool,
    pub phases: &'static [Phase],
}

const fn row(name: &'static str, about: &'static str, phases: &'static [Phase]) -> Row {
    Row {
        name,
        about,
        tools: &[],
        dedup: false,
        phases,
    }
}

impl Row {
    const fn tools(mut self, tools: &'static [Tool]) -> Row {
        self.tools = tools;
        self
    }

    /// The group of a measure of this phase.
    pub fn group(&self, phase: &Phase, measure: &str) -> Group {
        match measure {
            "median" | "p99" | "latency" => Group::Detail,
            m if m.starts_with("files-") => Group::Metadata,
            _ => phase.group,
        }
    }
}

use Group::{Data, Detail, Figure, Metadata, Sync, Warm};

/// All rows, in the order of the table.
pub const ROWS: &[Row] = &[
    row(
        "seq-1m",
        "one file in records of 1 MiB: written, overwritten, read from the device, read again",
        &[
            phase("write", Data, data::seq_write),
            phase("rewrite", Data, data::seq_rewrite),
            phase("read", Data, data::seq_read).cold(),
            phase("reread", Warm, data::seq_reread),
        ],
    ),
    row(
        "large-64k",
        "a file larger than the cache in records of 64 KiB, written and read from the device",
        &[
            phase("write", Data, data::large_write),
            phase("read", Data, data::large_read).cold(),
        ],
    ),
    row(
        "write-4k",
        "one large file created in writes of 4 KiB",
        &[phase("write", Data, data::small_writes)],
    ),
    row(
        "threads-4k",
        "16 threads overwrite 4 KiB at random places, each in a file of its own",
        &[
            phase("prepare", Data, data::threads_prepare),
            phase("write", Data, data::threads_4k).cold(),
        ],
    ),
    row(
        "threads-64k",
        "16 threads overwrite 64 KiB at random places, each in a file of its own",
        &[
            phase("prepare", Data, data::threads_prepare),
            phase("write", Data, data::threads_64k).cold(),
        ],
    ),
    row(
        "fio-rand",
        "fio: 4 KiB at random places, read from the device, read again, written",
        &[
            phase("prepare", Data, fio::prepare),
            phase("read", Data, fio::rand_read).cold(),
            phase("reread", Warm, fio::rand_reread),
            phase("write", Data, fio::rand_write).cold(),
        ],
    )
    .tools(&[tools::FIO]),
    row(
        "fio-rand-fsync",
        "fio: 4 KiB written at random places, an fsync after each",
        &[
            phase("prepare", Data, fio::prepare),
            phase("write", Sync, fio::rand_write_fsync).cold(),
        ],
    )
    .tools(&[tools::FIO]),
    row(
        "fio-seq",
        "fio: records of 1 MiB, written and read from the device",
        &[
            phase("write", Data, fio::seq_write),
            phase("read", Data, fio::seq_read).cold(),
        ],
    )
    .tools(&[tools::FIO]),
    row(
        "fio-mmap",
        "fio: a mapped file, 4 KiB at random places read and written, then all of it in order",
        &[
            phase("prepare", Data, fio::prepare),
            phase("read", Data, fio::mmap_read).cold(),
            phase("write", Data, fio::mmap_write).cold(),
            phase("seq-read", Data, fio::mmap_seq_read).cold(),
        ],
    )
    .tools(&[tools::FIO]),
    row(
        "bonnie",
        "Bonnie++: by character, by block, rewriting, seeking; creating and deleting files",
        &[phase("all", Data, bonnie::all)],
    )
    .tools(&[tools::BONNIE]),
    row(
        "fsync-1",
        "one thread appends 4 KiB and calls fsync",
        &[phase("all", Sync, sync::fsync_1)],
    ),
    row(
        "fsync-8",
        "eight threads append 4 KiB and call fsync, each with a file of its own",
        &[phase("all", Sync, sync::fsync_8)],
    ),
    row(
        "sqlite",
        "SQLite: rows inserted, a transaction each",
        &[phase("insert", Sync, sync::sqlite)],
    )
    .tools(&[tools::SQLITE]),
    row(
        "pgbench",
        "PostgreSQL: pgbench's TPC-B-like transactions, four clients",
        &[phase("tpcb", Sync, sync::pgbench)],
    )
    .tools(&[
        tools::POSTGRES,
        tools::INITDB,
        tools::PGBENCH,
        tools::SETPRIV,
    ]),
    row(
        "meta-1",
        "empty files created, looked at, renamed, deleted by one thread",
        &[phase("all", Metadata, meta::rates_1)],
    ),
    row(
        "meta-4",
        "the same by four threads, each in a folder of its own",
        &[phase("all", Metadata, meta::rates_4)],
    ),
    row(
        "postmark",
        "transactions on many small files, as PostMark does them",
        &[phase("all", Metadata, meta::postmark)],
    ),
    row(
        "tree",
        "a generated source tree: unpacked, walked, read, copied, deleted",
        &[
            phase("untar", Metadata, meta::untar).settle(),
            phase("walk", Metadata, meta::walk).cold(),
            phase("rewalk", Warm, meta::rewalk),
            phase("read", Metadata, meta::read_tree).cold(),
            phase("copy", Metadata, meta::copy_tree).cold().settle(),
            phase("delete", Metadata, meta::delete_tree).cold().settle(),
        ],
    )
    .tools(&[tools::TAR]),
    row(
        "programs",
        "a source tree of twice as many files, by programs: tar x, git checkout, rm -r",
        &[
            phase("tar-x", Metadata, meta::programs_untar).settle(),
            phase("git-checkout", Metadata, apps::git_checkout).settle(),
            phase("rm-r", Metadata, meta::programs_rm).cold().settle(),
        ],
    )
    .tools(&[tools::TAR, tools::GIT, tools::RM]),
    row(
        "one-directory",
        "empty files created in one directory, up to 25 times as many as in a tree: the first and the last fifth",
        &[phase("create", Metadata, meta::one_directory)],
    ),
    row(
        "large-files",
        "four large files: copied, deleted",
        &[
            phase("prepare", Data, meta::large_prepare),
            phase("copy", Data, meta::large_copy).cold().settle(),
            phase("delete", Data, meta::large_delete).cold().settle(),
        ],
    ),
    row(
        "git",
        "git: a clone, and status of it, cold and warm",
        &[
            phase("clone", Metadata, apps::git_clone),
            phase("status", Metadata, apps::git_status).cold(),
            phase("restatus", Warm, apps::git_restatus),
        ],
    )
    .tools(&[tools::GIT, tools::TAR]),
    row(
        "apache",
        "Apache on the loopback: one file again and again (ab), many small files in turn",
        &[phase("all", Warm, apps::apache)],
    )
    .tools(&[tools::APACHE, tools::AB]),
    row(
        "dbench",
        "dbench with four clients",
        &[phase("all", Metadata, apps::dbench)],
    )
    .tools(&[tools::DBENCH]),
    row(
        "stream-large",
        "large files: written and read, their snapshot sent to nowhere, received from a file, passed on",
        &[
            phase("write", Detail, streams::large_write).settle(),
            phase("read", Detail, streams::large_read).cold(),
            phase("send", Detail, streams::large_send).cold(),
            phase("receive", Detail, streams::large_receive).settle(),
            phase("pass", Detail, streams::large_pass).cold().settle(),
        ],
    )
    .tools(&[tools::BASH]),
    row(
        "stream-small",
        "many small files: copied by tar into tar, and as the stream of a snapshot",
        &[
            phase("prepare", Detail, streams::small_prepare),
            phase("tar", Detail, streams::small_tar).cold().settle(),
            phase("pass", Detail, streams::small_pass).cold().settle(),
        ],
    )
    .tools(&[tools::BASH, tools::TAR]),
    row(
        "stream-sparse",
        "a sparse file of 1 TiB of which one block changes: the increment",
        &[
            phase("prepare", Detail, streams::sparse_prepare),
            phase("increment", Detail, streams::sparse_increment).cold(),
        ],
    )
    .tools(&[tools::BASH]),
    row(
        "compression",
        "data that can be halved exactly: how fast it is written, what it takes on the device",
        &[
            phase("write", Data, ratio::compressible).settle(),
            phase("ratio", Figure, ratio::figure).cold(),
        ],
    ),
    Row {
        name: "deduplication",
        about: "data of which every block comes four times, with deduplication on",
        tools: &[],
        dedup: true,
        phases: &[
            phase("write", Data, ratio::duplicates).settle(),
            phase("ratio", Figure, ratio::figure).cold(),
        ],
    },
];

/// The rows and what they are.
pub fn list() -> String {
    let mut out = String::new();
    for r in ROWS {
        let mut phases = r.phases.iter().map(|p| {
            let marks = match (p.cold, p.settle) {
                (true, true) => " (cold, until durable)",
                (true, false) => " (cold)",
                (false, true) => " (until durable)",
                (false, false) => "",
            };
            format!("{}{marks}", p.name)
        });
        let first = phases.next().unwrap_or_default();
        let phases = phases.fold(first, |a, p| format!("{a}, {p}"));
        out.push_str(&format!("{:<16}{}\n{:16}{phases}\n", r.name, r.about, ""));
    }
    out
}

/// What a phase is told.
pub struct Work {
    /// A folder of the file system under test.
    pub dir: PathBuf,
    /// A folder elsewhere, for archives and repositories made once.
    pub scratch: PathBuf,
    pub size: u64,
    pub large: u64,
    pub seconds: u64,
}

impl Work {
    /// Length of what lasts a given time.
    pub fn duration(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    /// When a workload of given size is cut short: rates are then those of the part done.
    pub fn cap(&self) -> Duration {
        self.duration() * 10
    }

    /// Files in a tree.
    pub fn files(&self) -> u64 {
        (self.size >> 15).clamp(64, 40_000)
    }

    /// Files in a tree that programs work on.
    pub fn many_files(&self) -> u64 {
        self.files() * 2
    }

    /// The command line that [`work`] reads.
    pub fn arguments(&self, row: &Row, phase: &Phase) -> Vec<String> {
        let text = |p: &Path| p.to_string_lossy().into_owned();
        vec![
            "work".into(),
            row.name.into(),
            phase.name.into(),
            text(&self.dir),
            text(&self.scratch),
            self.size.to_string(),
            self.large.to_string(),
            self.seconds.to_string(),
        ]
    }
}

/// The worker: runs one phase and prints its measures. Its exit code tells whether it could be run
/// here at all.
pub fn work(args: &[String]) -> Result<bool> {
    let [row, phase, dir, scratch, size, large, seconds] = args else {
        bail!(Invalid, "work is not meant to be called by hand");
    };
    let number = |t: &String| match t.parse::<u64>() {
        Ok(n) => Ok(n),
        Err(_) => bail!(Invalid, "{t} is no number"),
    };
    let w = Work {
        dir: dir.into(),
        scratch: scratch.into(),
        size: number(size)?,
        large: number(large)?,
        seconds: number(seconds)?,
    };
    let found = ROWS.iter().find(|r| r.name == row);
    let Some(p) = found.and_then(|r| r.phases.iter().find(|p| p.name == phase)) else {
        bail!(Invalid, "no row {row} with a phase {phase}");
    };
    std::fs::create_dir_all(&w.dir)?;
    match (p.run)(&w) {
        Ok(all) => {
            all.iter().for_each(|m| println!("{}", m.line()));
            Ok(true)
        }
        Err(e) => {
            eprintln!("{e}");
            std::process::exit(match e.kind {
                Kind::Unsupported => child::CANNOT,
                _ => child::SAID_WHY,
            })
        }
    }
}

/// Runs `job` on so many threads that begin together; the sum of what they did, and the seconds
/// from the beginning of the first to the end of the last.
fn on_threads(n: u64, job: impl Fn(u64) -> Result<u64> + std::marker::Sync) -> Result<(u64, f64)> {
    let barrier = Barrier::new(n as usize);
    std::thread::scope(|s| {
        let threads: Vec<_> = (0..n)
            .map(|i| {
                let (barrier, job) = (&barrier, &job);
                s.spawn(move || {
                    barrier.wait();
                    // By the worker's own watch: on a busy machine the thread that waits for them
                    // may come too late to see them begin.
                    let start = Instant::now();
                    let done = job(i);
                    (done, start, Instant::now())
                })
            })
            .collect();
        let mut sum = 0;
        let mut span: Option<(Instant, Instant)> = None;
        for t in threads {
            let Ok((done, start, end)) = t.join() else {
                bail!(Io, "a thread of the workload panicked");
            };
            sum += done?;
            let (first, last) = span.unwrap_or((start, end));
            span = Some((first.min(start), last.max(end)));
        }
        let seconds = span.map_or(0.0, |(first, last)| (last - first).as_secs_f64());
        Ok((sum, seconds))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_distinct() {
        let names: HashSet<&str> = ROWS.iter().map(|r| r.name).collect();
        assert_eq!(names.len(), ROWS.len());
        for r in ROWS {
            let phases: HashSet<&str> = r.phases.iter().map(|p| p.name).collect();
            assert_eq!(phases.len(), r.phases.len(), "{}", r.name);
        }
        assert!(list().contains("fsync-8"));
    }

    #[test]
    fn threads_add_up() {
        let nap = Duration::from_millis(20);
        let (sum, seconds) = on_threads(4, |i| {
            std::thread::sleep(nap);
            Ok(i + 1)
        })
        .unwrap();
        assert_eq!(sum, 10);
        assert!(seconds >= nap.as_secs_f64());
        assert!(on_threads(2, |i| match i {
            0 => Ok(1),
            _ => bail!(Io, "no"),
        })
        .is_err());
    }

    /// The rows that need nothing but a folder, on whatever the temporary folder is.
    #[test]
    fn plain_rows_work() {
        let dir = testkit::TempDir::new("rows").unwrap();
        let scratch = dir.path().join("scratch");
        std::fs::create_dir(&scratch).unwrap();
        let plain = [
            "seq-1m",
            "write-4k",
            "threads-64k",
            "postmark",
            "large-files",
            "tree",
            "programs",
            "one-directory",
        ];
        for name in plain {
            let r = ROWS.iter().find(|r| r.name == name).unwrap();
            let w = Work {
                dir: dir.path().join(name),
                scratch: scratch.clone(),
                size: 1 << 20,
                large: 1 << 20,
                seconds: 1,
            };
            std::fs::create_dir(&w.dir).unwrap();
            for p in r.phases {
                let all = (p.run)(&w).unwrap_or_else(|e| panic!("{name} {}: {e}", p.name));
                assert!(p.name == "prepare" || !all.is_empty(), "{name} {}", p.name);
                for m in all {
                    assert!(m.value() > 0.0, "{name} {} {m:?}", p.name);
                }
            }
        }
    }
}
