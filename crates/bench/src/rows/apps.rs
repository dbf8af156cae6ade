//! Rows of real programs: git, Apache, dbench.

use super::meta::succeed;
use super::sync::{after, as_nobody, Server, NOBODY};
use super::Work;
use crate::measure::{Measure, Unit};
use crate::{tar, tools};
use base::{bail, Result};
use std::fs;
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// git without the machine's or the user's habits.
fn git(dir: &Path) -> Result<Command> {
    let mut c = Command::new(tools::GIT.path()?);
    c.current_dir(dir)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("HOME", dir)
        .args(["-c", "safe.directory=*", "-c", "core.fsmonitor=false"])
        .args(["-c", "gc.auto=0", "-c", "maintenance.auto=false"])
        .args(["-c", "user.name=bench", "-c", "user.email=bench@localhost"]);
    Ok(c)
}

/// A bare repository with one commit of the generated tree, made once.
fn repository(w: &Work, files: u64) -> Result<PathBuf> {
    let done = w.scratch.join(format!("tree-{files}.git"));
    if done.is_dir() {
        return Ok(done);
    }
    let work = w.scratch.join(format!("repository.{}", std::process::id()));
    let bare = work.join("bare");
    fs::create_dir_all(&work)?;
    let archive = tar::archive(&w.scratch, files)?;
    let mut c = Command::new(tools::TAR.path()?);
    succeed(c.arg("-xf").arg(&archive).arg("-C").arg(&work))?;
    let tree = work.join("tree");
    succeed(git(&tree)?.args(["init", "-q", "-b", "main"]))?;
    succeed(git(&tree)?.args(["add", "-A"]))?;
    succeed(git(&tree)?.args(["commit", "-q", "-m", "all"]))?;
    succeed(git(&tree)?.args(["clone", "-q", "--bare", "."]).arg(&bare))?;
    succeed(git(&bare)?.args(["repack", "-a", "-d", "-q"]))?;
    fs::rename(&bare, &done)?;
    fs::remove_dir_all(&work)?;
    Ok(done)
}

pub fn git_clone(w: &Work) -> Result<Vec<Measure>> {
    let from = repository(w, w.files())?;
    let mut c = git(&w.dir)?;
    c.args(["clone", "-q", "--no-hardlinks"])
        .arg(&from)
        .arg("clone");
    let start = Instant::now();
    succeed(&mut c)?;
    let ms = start.elapsed().as_secs_f64() * 1e3;
    Ok(vec![Measure::given("clone", Unit::Milliseconds, ms)])
}

/// All files of a commit, made from a repository elsewhere.
pub fn git_checkout(w: &Work) -> Result<Vec<Measure>> {
    let from = repository(w, w.many_files())?;
    let mut c = git(&w.dir)?;
    c.args(["clone", "-q", "--no-checkout", "--shared"]);
    succeed(c.arg(&from).arg("checkout"))?;
    let mut c = git(&w.dir.join("checkout"))?;
    c.args(["checkout", "-q", "-f", "main"]);
    let start = Instant::now();
    succeed(&mut c)?;
    let seconds = start.elapsed().as_secs_f64();
    let made = w.dir.join("checkout/part000");
    if !made.is_dir() {
        bail!(Damaged, "git checkout made no files");
    }
    Ok(vec![Measure::ops("git-checkout", w.many_files(), seconds)])
}

fn status(w: &Work, name: &str) -> Result<Vec<Measure>> {
    let mut c = git(&w.dir.join("clone"))?;
    c.args(["status", "--porcelain"]);
    let start = Instant::now();
    let text = succeed(&mut c)?;
    let ms = start.elapsed().as_secs_f64() * 1e3;
    if !text.is_empty() {
        let first = text.lines().next().unwrap_or("");
        bail!(Damaged, "a fresh clone is not clean: {first}");
    }
    Ok(vec![Measure::given(name, Unit::Milliseconds, ms)])
}

pub fn git_status(w: &Work) -> Result<Vec<Measure>> {
    status(w, "status")
}

pub fn git_restatus(w: &Work) -> Result<Vec<Measure>> {
    status(w, "restatus")?;
    status(w, "restatus")
}

pub fn dbench(w: &Work) -> Result<Vec<Measure>> {
    let mut c = Command::new(tools::DBENCH.path()?);
    c.args(["-t", &w.seconds.max(3).to_string(), "-D"])
        .arg(&w.dir)
        .arg("4");
    let text = succeed(&mut c)?;
    let Some(rate) = after(&text, "Throughput") else {
        bail!(Invalid, "dbench said {:?}", text.lines().last());
    };
    let m = Measure::given("rate", Unit::MegabytesPerSecond, rate);
    Ok(vec![m])
}

const PAGES: u64 = 500;
const PAGE: usize = 4096;
const CLIENTS: u64 = 8;

/// Everything it reads is in memory after the first round; what is measured is how fast it is
/// handed out again.
pub fn apache(w: &Work) -> Result<Vec<Measure>> {
    let (apache, ab) = (tools::APACHE.path()?, tools::AB.path()?);
    let pages = w.dir.join("pages");
    fs::create_dir(&pages)?;
    let mut supply = crate::data::Supply::new(9, PAGE);
    for n in 0..PAGES {
        fs::write(pages.join(format!("p{n}")), supply.block(PAGE))?;
    }
    let run = testkit::TempDir::new("bench-apache")?;
    std::os::unix::fs::chown(run.path(), Some(NOBODY), Some(NOBODY))?;
    let port = free_port()?;
    let config = run.path().join("httpd.conf");
    fs::write(&config, configuration(run.path(), &pages, port))?;
    let mut c = as_nobody(&apache)?;
    c.args(["-D", "FOREGROUND", "-f"]).arg(&config);
    let log = run.path().join("log");
    let mut server = Server::start(&mut c, &log)?;
    server.wait("apache2", &log, || {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    })?;
    let url = format!("http://127.0.0.1:{port}/p0");
    let text = succeed(
        Command::new(&ab)
            .args(["-q", "-c", "8", "-t", &w.seconds.to_string()])
            .args(["-n", "10000000", &url]),
    )?;
    let Some(rate) = after(&text, "Requests per second:") else {
        bail!(Invalid, "ab said {text:?}");
    };
    fetch_all(port, 0, PAGES)?;
    let start = Instant::now();
    let (count, seconds) = super::on_threads(CLIENTS, |t| {
        let mut done = 0;
        while start.elapsed() < w.duration() {
            done += fetch_all(port, t * PAGES / CLIENTS, PAGES)?;
        }
        Ok(done)
    })?;
    Ok(vec![
        Measure::given("one-file", Unit::PerSecond, rate),
        Measure::ops("many-files", count, seconds),
    ])
}

fn free_port() -> Result<u16> {
    let l = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    Ok(l.local_addr()?.port())
}

/// Debian's modules, and nothing that is not needed to hand out files.
fn configuration(run: &Path, pages: &Path, port: u16) -> String {
    let (run, pages) = (run.display(), pages.display());
    let modules = "/usr/lib/apache2/modules";
    format!(
        "ServerRoot \"{run}\"\nServerName localhost\nListen 127.0.0.1:{port}\n\
         PidFile \"{run}/pid\"\nErrorLog \"{run}/error\"\nLogLevel error\n\
         LoadModule mpm_event_module {modules}/mod_mpm_event.so\n\
         LoadModule authz_core_module {modules}/mod_authz_core.so\n\
         DefaultRuntimeDir \"{run}\"\nMaxKeepAliveRequests 0\n\
         DocumentRoot \"{pages}\"\n<Directory \"{pages}\">\nRequire all granted\n</Directory>\n"
    )
}

/// Fetches every page once over one connection, beginning with `from`; the number of pages.
fn fetch_all(port: u16, from: u64, pages: u64) -> Result<u64> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    let mut answers = BufReader::with_capacity(16 << 10, stream.try_clone()?);
    let mut body = Vec::new();
    for n in 0..pages {
        let page = (from + n) % pages;
        let ask = format!("GET /p{page} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        stream.write_all(ask.as_bytes())?;
        let length = head(&mut answers)?;
        body.resize(length, 0);
        answers.read_exact(&mut body)?;
        if length != PAGE {
            bail!(Invalid, "Apache sent a page of {length} bytes");
        }
    }
    Ok(pages)
}

/// Reads the head of an answer; the length of what follows.
fn head(from: &mut impl BufRead) -> Result<usize> {
    let mut length = None;
    let mut line = String::new();
    for n in 0..100 {
        line.clear();
        if from.by_ref().take(8192).read_line(&mut line)? == 0 {
            bail!(Io, "Apache hung up");
        }
        let text = line.trim_end();
        if n == 0 && !text.contains(" 200") {
            bail!(Io, "Apache says {text}");
        }
        if text.is_empty() {
            break;
        }
        if let Some((name, value)) = text.split_once(':') {
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().ok();
            }
        }
    }
    match length {
        Some(l) if l <= 1 << 20 => Ok(l),
        _ => bail!(Invalid, "an answer without a length"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads() {
        let mut ok = &b"HTTP/1.1 200 OK\r\nX: y\r\ncontent-Length: 7\r\n\r\nrest"[..];
        assert_eq!(head(&mut ok).unwrap(), 7);
        assert_eq!(ok, b"rest");
        assert!(head(&mut &b"HTTP/1.1 404 No\r\n\r\n"[..]).is_err());
        assert!(head(&mut &b"HTTP/1.1 200 OK\r\n\r\n"[..]).is_err());
        assert!(head(&mut &b""[..]).is_err());
    }
}
