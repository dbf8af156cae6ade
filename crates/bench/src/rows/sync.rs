//! Rows that wait for the device: fsync, databases.

use super::meta::succeed;
use super::{on_threads, Work};
use crate::data::Supply;
use crate::measure::{Measure, Unit};
use crate::stats::quantile;
use crate::tools;
use base::sync::MutexExt;
use base::{bail, Result};
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

pub fn fsync_1(w: &Work) -> Result<Vec<Measure>> {
    fsyncs(w, 1)
}

pub fn fsync_8(w: &Work) -> Result<Vec<Measure>> {
    fsyncs(w, 8)
}

fn fsyncs(w: &Work, threads: u64) -> Result<Vec<Measure>> {
    let latencies = Mutex::new(Vec::new());
    let done = on_threads(threads, |t| {
        let mut f = File::create(w.dir.join(format!("log{t}")))?;
        let mut supply = Supply::new(300 + t, 4096);
        let mut own = Vec::new();
        let start = Instant::now();
        while start.elapsed() < w.duration() {
            f.write_all(supply.block(4096))?;
            let before = Instant::now();
            f.sync_all()?;
            own.push(before.elapsed().as_secs_f64() * 1e3);
        }
        let count = own.len() as u64;
        latencies.acquire().extend(own);
        Ok(count)
    })?;
    let mut all = latencies
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    all.sort_by(f64::total_cmp);
    let at = |share| quantile(&all, share).unwrap_or(0.0);
    Ok(vec![
        Measure::ops("rate", done.0, done.1),
        Measure::given("median", Unit::Milliseconds, at(0.5)),
        Measure::given("p99", Unit::Milliseconds, at(0.99)),
    ])
}

/// Rows in one call of the shell.
const INSERTS: u64 = 100;

/// A transaction for each row, with SQLite's defaults (rollback journal, synchronous).
pub fn sqlite(w: &Work) -> Result<Vec<Measure>> {
    let shell = tools::SQLITE.path()?;
    let db = w.dir.join("test.db");
    let ask = |sql: &str| -> Result<()> {
        let mut c = Command::new(&shell);
        succeed(c.arg("-bail").arg(&db).arg(sql).stdin(Stdio::null())).map(drop)
    };
    ask("CREATE TABLE t (id INTEGER PRIMARY KEY, a INTEGER, b TEXT); CREATE INDEX i ON t (a);")?;
    let start = Instant::now();
    let mut done = 0;
    while start.elapsed() < w.duration() {
        let mut sql = String::new();
        for n in done..done + INSERTS {
            let scattered = n.wrapping_mul(2_654_435_761) % 1_000_000;
            let _ = write!(
                sql,
                "INSERT INTO t (a, b) VALUES ({scattered}, 'row number {n} of the table');"
            );
        }
        ask(&sql)?;
        done += INSERTS;
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(vec![Measure::ops("insert", done, seconds)])
}

/// A server that ends with its value, and with its parent.
pub struct Server(Child);

impl Server {
    /// Starts it; it must stay in the foreground. What it complains of goes to a file.
    pub fn start(c: &mut Command, log: &Path) -> Result<Server> {
        let log = File::create(log)?;
        let child = c
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        Ok(Server(child))
    }

    /// Waits until `ready`.
    pub fn wait(&mut self, what: &str, log: &Path, ready: impl Fn() -> bool) -> Result<()> {
        let begin = Instant::now();
        while !ready() {
            let said = || std::fs::read_to_string(log).unwrap_or_default();
            if let Some(status) = self.0.try_wait()? {
                bail!(Io, "{what} ended at once: {status}: {}", said().trim());
            }
            if begin.elapsed() > Duration::from_secs(60) {
                bail!(Io, "{what} does not answer: {}", said().trim());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        crate::child::stop(&mut self.0);
    }
}

/// Whom servers that refuse to be root become.
pub const NOBODY: u32 = 65534;

/// A command as [`NOBODY`], which ends when this process does.
pub fn as_nobody(program: &Path) -> Result<Command> {
    let id = NOBODY.to_string();
    let mut c = Command::new(tools::SETPRIV.path()?);
    c.args(["--reuid", &id, "--regid", &id, "--clear-groups"])
        .args(["--pdeathsig", "TERM"])
        .arg(program)
        .env("LC_ALL", "C")
        .env("HOME", "/tmp");
    Ok(c)
}

pub fn pgbench(w: &Work) -> Result<Vec<Measure>> {
    let (postgres, initdb) = (tools::POSTGRES.path()?, tools::INITDB.path()?);
    let bench = tools::PGBENCH.path()?;
    let data = w.dir.join("pg");
    std::fs::create_dir(&data)?;
    std::os::unix::fs::chown(&data, Some(NOBODY), Some(NOBODY))?;
    let run = testkit::TempDir::new("bench-pg")?;
    std::os::unix::fs::chown(run.path(), Some(NOBODY), Some(NOBODY))?;
    let mut c = as_nobody(&initdb)?;
    c.current_dir(run.path())
        .args(["-U", "bench", "-A", "trust", "--no-locale", "-E", "UTF8"])
        .arg("-D")
        .arg(&data);
    succeed(&mut c)?;
    let mut c = as_nobody(&postgres)?;
    c.current_dir(run.path())
        .arg("-D")
        .arg(&data)
        .args(["-c", "listen_addresses=", "-k"])
        .arg(run.path());
    let log = run.path().join("log");
    let mut server = Server::start(&mut c, &log)?;
    let client = |args: &[&str]| -> Result<String> {
        let mut c = as_nobody(&bench)?;
        c.current_dir(run.path())
            .arg("-h")
            .arg(run.path())
            .args(["-U", "bench"])
            .args(args)
            .arg("postgres");
        succeed(&mut c)
    };
    let socket = run.path().join(".s.PGSQL.5432");
    server.wait("postgres", &log, || {
        std::os::unix::net::UnixStream::connect(&socket).is_ok()
    })?;
    // The socket is there a little before the server takes clients.
    let scale = (w.size >> 27).clamp(1, 50).to_string();
    let mut made = client(&["-i", "-q", "-s", &scale]);
    for _ in 0..20 {
        if made.is_ok() {
            break;
        }
        std::thread::sleep(Duration::from_millis(200));
        made = client(&["-i", "-q", "-s", &scale]);
    }
    made?;
    let seconds = w.seconds.to_string();
    let text = client(&["-c", "4", "-j", "2", "-T", &seconds])?;
    let (tps, latency) = (after(&text, "tps ="), after(&text, "latency average ="));
    let (Some(tps), Some(latency)) = (tps, latency) else {
        bail!(Invalid, "pgbench said {text:?}");
    };
    Ok(vec![
        Measure::given("tpcb", Unit::PerSecond, tps),
        Measure::given("latency", Unit::Milliseconds, latency),
    ])
}

/// The number after a word of a report.
pub fn after(text: &str, word: &str) -> Option<f64> {
    let (_, rest) = text.split_once(word)?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_reports() {
        let text = "latency average = 1.234 ms\ntps = 3240.5 (without initial connection time)\n";
        assert_eq!(after(text, "tps ="), Some(3240.5));
        assert_eq!(after(text, "latency average ="), Some(1.234));
        assert_eq!(after(text, "none"), None);
    }
}
