//! Databases in use, snapshotted every second: each snapshot, cloned and mounted, recovers to a consistent database with
//! every transaction that was acknowledged before the command.
//!
//! `ZFS_FUSE_TEST_DATABASE_SECONDS` (default 8) says for how long; 300 by hand.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use system_tests::{number, signal, until, wait, Rig};
use testkit::installed::tool;
use testkit::or_skip;

const NOBODY: u32 = 65534;

fn tank(name: &str, size: u64) -> Option<(Rig, PathBuf)> {
    Some(Rig::as_root(name)?.with_tank(size))
}

fn seconds() -> u64 {
    number("ZFS_FUSE_TEST_DATABASE_SECONDS", 8)
}

/// Most rows that SQLite is given in a run, where a second can have fewer than [`LEAST_ROWS`]: every snapshot is read as a whole.
const ROWS: u64 = 30_000;
/// Rows a second in a long run.
const LEAST_ROWS: u64 = 100;

/// One snapshot `1`, `2`, … of `set` a second, with what `before` says just before it is asked for.
fn every_second<T>(rig: &Rig, set: &str, mut before: impl FnMut() -> T) -> Vec<(String, T)> {
    let begin = Instant::now();
    let mut taken = Vec::new();
    for n in 1..=seconds() {
        let next = Duration::from_secs(n);
        std::thread::sleep(next.saturating_sub(begin.elapsed()));
        let name = n.to_string();
        let seen = before();
        rig.zfs(&["snapshot", &format!("{set}@{name}")]);
        taken.push((name, seen));
    }
    taken
}

/// A server of PostgreSQL that ends with its value.
struct Postgres {
    server: Child,
    /// Folder of its socket and its log.
    run: PathBuf,
}

impl Postgres {
    fn start(rig: &Rig, program: &Path, data: &Path, name: &str) -> Postgres {
        let run = rig.path().join(name);
        fs::create_dir(&run).unwrap();
        own(&run);
        let log = File::create(run.join("log")).unwrap();
        let args = ["-c", "listen_addresses=", "-c", "max_connections=20"];
        let mut c = rig.command_as(Some(NOBODY), program.to_str().unwrap(), &args);
        c.arg("-D").arg(data).arg("-k").arg(&run);
        c.stdout(log.try_clone().unwrap()).stderr(log);
        let server = c.spawn().unwrap();
        let mut server = Postgres { server, run };
        until("PostgreSQL answers", || {
            if let Ok(Some(status)) = server.server.try_wait() {
                panic!("PostgreSQL ended, {status}: {}", server.log());
            }
            let there = UnixStream::connect(server.run.join(".s.PGSQL.5432")).is_ok();
            there && server.ask(rig, "select 1").is_ok()
        });
        server
    }

    fn log(&self) -> String {
        fs::read_to_string(self.run.join("log")).unwrap_or_default()
    }

    /// Rows, their columns separated by `|`.
    fn ask(&self, rig: &Rig, sql: &str) -> Result<Vec<String>, String> {
        let args = ["-U", "test", "-XAtc", sql, "-v", "ON_ERROR_STOP=1", "-h"];
        let mut c = rig.command_as(Some(NOBODY), "psql", &args);
        let out = c.arg(&self.run).arg("postgres").output().unwrap();
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        match out.status.success() {
            true => Ok(text(&out.stdout).lines().map(str::to_string).collect()),
            false => Err(text(&out.stderr)),
        }
    }

    fn stop(mut self) {
        // At once, without a checkpoint: nobody needs its files any more.
        signal(self.server.id(), rustix::process::Signal::QUIT);
        assert!(wait(&mut self.server, Duration::from_secs(60)).is_some());
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        signal(self.server.id(), rustix::process::Signal::QUIT);
        if wait(&mut self.server, Duration::from_secs(20)).is_none() {
            let _ = self.server.kill();
            let _ = self.server.wait();
        }
    }
}

fn own(path: &Path) {
    std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
}

/// What pgbench does by itself, and in the history the client and its number of the transaction.
const TRANSACTION: &str = r"
\set aid random(1, 100000 * :scale)
\set bid random(1, 1 * :scale)
\set tid random(1, 10 * :scale)
\set delta random(-5000, 5000)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime, filler) VALUES (:tid, :bid, :aid, :delta, CURRENT_TIMESTAMP, ':client_id');
END;
";

const CLIENTS: usize = 4;

/// When transactions of each client were acknowledged, from pgbench's logs: microseconds since 1970, ascending.
fn acknowledged(dir: &Path) -> Vec<Vec<u128>> {
    let mut out = vec![Vec::new(); CLIENTS];
    for e in fs::read_dir(dir).unwrap().flatten() {
        if !e.file_name().to_string_lossy().starts_with("log.") {
            continue;
        }
        for line in fs::read_to_string(e.path()).unwrap().lines() {
            // client, number, latency, script, seconds, microseconds
            let f: Vec<&str> = line.split_whitespace().collect();
            let client: usize = f[0].parse().unwrap();
            let (s, us): (u128, u128) = (f[4].parse().unwrap(), f[5].parse().unwrap());
            out[client].push(s * 1_000_000 + us);
        }
    }
    for times in &mut out {
        times.sort_unstable();
    }
    out
}

fn now() -> u128 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_micros()
}

#[test]
fn every_snapshot_of_postgresql_recovers_with_what_was_acknowledged() {
    let find = |name| or_skip(tool(name, "postgresql").path());
    let (Some(postgres), Some(initdb), Some(pgbench)) =
        (find("postgres"), find("initdb"), find("pgbench"))
    else {
        return;
    };
    let Some((rig, mnt)) = tank("postgres", 2 << 30) else {
        return;
    };
    rig.zfs(&["create", "tank/pg"]);
    let data = mnt.join("pg/data");
    fs::create_dir(&data).unwrap();
    own(&data);
    let made = rig.try_run_as(
        Some(NOBODY),
        initdb.to_str().unwrap(),
        &[
            "-U",
            "test",
            "-A",
            "trust",
            "--no-locale",
            "-E",
            "UTF8",
            "-D",
            data.to_str().unwrap(),
        ],
    );
    made.ok();
    let server = Postgres::start(&rig, &postgres, &data, "server");
    let host = server.run.to_str().unwrap().to_string();
    let bench = |args: &[&str]| {
        let mut c = rig.command_as(Some(NOBODY), pgbench.to_str().unwrap(), &["-h", &host]);
        c.args(["-U", "test"]).args(args).arg("postgres");
        c.current_dir(&host);
        c.stdout(Stdio::null()).stderr(Stdio::piped());
        c
    };
    let made = bench(&["-i", "-q", "-s", "1"]).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let script = server.run.join("script");
    fs::write(&script, TRANSACTION).unwrap();
    let time = (seconds() + 1).to_string();
    let clients = CLIENTS.to_string();
    let prefix = format!("{host}/log");
    let script = script.to_str().unwrap();
    let load: Child = bench(&[
        "-n",
        "-s",
        "1",
        "-c",
        &clients,
        "-j",
        "2",
        "-T",
        &time,
        "-l",
        "--log-prefix",
        &prefix,
        "-f",
        script,
    ])
    .spawn()
    .unwrap();
    let taken = every_second(&rig, "tank/pg", now);
    let ended = load.wait_with_output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    let acknowledged = acknowledged(&server.run);
    let total: usize = acknowledged.iter().map(Vec::len).sum();
    assert!(total > 0, "pgbench did nothing");
    server.stop();

    let mut with_some = 0;
    for (name, asked) in &taken {
        let least: Vec<usize> = acknowledged
            .iter()
            .map(|times| times.partition_point(|t| t < asked))
            .collect();
        with_some += usize::from(least.iter().sum::<usize>() > 0);
        recovers(&rig, &mnt, &postgres, name, &least);
    }
    assert!(with_some > 0, "no snapshot has a transaction");
    eprintln!("{} snapshots, {total} transactions", taken.len());
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

/// The snapshot `name` in a clone of it.
fn recovers(rig: &Rig, mnt: &Path, postgres: &Path, name: &str, least: &[usize]) {
    rig.zfs(&["clone", &format!("tank/pg@{name}"), "tank/look"]);
    let data = mnt.join("look/data");
    // Of the server that still ran.
    let _ = fs::remove_file(data.join("postmaster.pid"));
    let server = Postgres::start(rig, postgres, &data, &format!("server-{name}"));
    let ask = |sql: &str| {
        let rows = server.ask(rig, sql);
        rows.unwrap_or_else(|e| panic!("@{name}: {sql}: {e}{}", server.log()))
    };
    let sums = ask(
        "select (select sum(abalance) from pgbench_accounts), (select sum(tbalance) from pgbench_tellers), \
         (select sum(bbalance) from pgbench_branches), (select coalesce(sum(delta), 0) from pgbench_history)",
    );
    let sums: Vec<&str> = sums[0].split('|').collect();
    assert!(sums.iter().all(|s| *s == sums[0]), "@{name}: {sums:?}");
    assert_eq!(ask("select count(*) from pgbench_accounts"), ["100000"]);
    let mut have = [0usize; CLIENTS];
    for row in ask("select trim(filler), count(*) from pgbench_history group by 1") {
        let (client, count) = row.split_once('|').unwrap();
        have[client.parse::<usize>().unwrap()] = count.parse().unwrap();
    }
    for (client, (have, least)) in have.iter().zip(least).enumerate() {
        assert!(
            have >= least,
            "@{name}: {have} transactions of client {client}, {least} were acknowledged before"
        );
    }
    server.stop();
    rig.zfs(&["destroy", "tank/look"]);
}

/// Inserts into a database of SQLite until told to end.
struct Inserts {
    sqlite: Child,
    committed: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<()>,
}

impl Inserts {
    fn begin(rig: &Rig, program: &Path, db: &Path, journal: &str) -> Inserts {
        let mut sqlite = rig
            .command(program.to_str().unwrap(), &[db])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ask = sqlite.stdin.take().unwrap();
        let mut told = BufReader::new(sqlite.stdout.take().unwrap()).lines();
        let start = format!(
            "pragma journal_mode={journal}; pragma synchronous=full; \
             create table t(n integer primary key, text blob); select 0;"
        );
        writeln!(ask, "{start}").unwrap();
        assert_eq!(told.next().unwrap().unwrap(), journal);
        assert_eq!(told.next().unwrap().unwrap(), "0");
        let (committed, ended) = (
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let thread = {
            let (committed, ended) = (committed.clone(), ended.clone());
            let pace = (ROWS / seconds().max(1)).max(LEAST_ROWS);
            std::thread::spawn(move || {
                let begin = Instant::now();
                for n in 1.. {
                    if ended.load(Ordering::SeqCst) {
                        break;
                    }
                    let due = Duration::from_secs_f64(n as f64 / pace as f64);
                    std::thread::sleep(due.saturating_sub(begin.elapsed()));
                    let line = format!("insert into t values({n}, randomblob(9000)); select {n};");
                    writeln!(ask, "{line}").unwrap();
                    assert_eq!(told.next().unwrap().unwrap(), n.to_string());
                    committed.store(n, Ordering::SeqCst);
                }
                drop(ask);
            })
        };
        Inserts {
            sqlite,
            committed,
            ended,
            thread,
        }
    }

    fn committed(&self) -> u64 {
        self.committed.load(Ordering::SeqCst)
    }

    fn end(mut self) {
        self.ended.store(true, Ordering::SeqCst);
        self.thread.join().unwrap();
        assert!(self.sqlite.wait().unwrap().success());
    }
}

#[test]
fn every_snapshot_of_sqlite_recovers_with_what_was_committed() {
    let Some(program) = or_skip(tool("sqlite3", "sqlite3").path()) else {
        return;
    };
    let Some((rig, mnt)) = tank("sqlite", 2 << 30) else {
        return;
    };
    for journal in ["wal", "delete"] {
        let set = format!("tank/{journal}");
        rig.zfs(&["create", &set]);
        let inserts = Inserts::begin(&rig, &program, &mnt.join(journal).join("db"), journal);
        let taken = every_second(&rig, &set, || inserts.committed());
        let total = inserts.committed();
        inserts.end();
        assert!(total > 0);
        for (name, least) in &taken {
            let clone = format!("tank/{journal}{name}");
            rig.zfs(&["clone", &format!("{set}@{name}"), &clone]);
            let db = mnt.join(format!("{journal}{name}")).join("db");
            let ask = "pragma integrity_check; select count(*), coalesce(max(n), 0) from t;";
            let mut c = Command::new(&program);
            let out = c.arg(&db).arg(ask).output().unwrap();
            let out = String::from_utf8_lossy(&out.stdout).into_owned();
            let (count, max) = out
                .strip_prefix("ok\n")
                .and_then(|l| l.trim().split_once('|'))
                .unwrap_or_else(|| panic!("{clone}: {out}"));
            assert_eq!(count, max, "{clone}");
            let max: u64 = max.parse().unwrap();
            assert!(max >= *least, "{clone}: {max}, {least} were committed");
            rig.zfs(&["destroy", &clone]);
        }
        eprintln!("{journal}: {} snapshots, {total} transactions", taken.len());
    }
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}
