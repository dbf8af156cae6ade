//! OpenZFS's user-space programs. They contain the whole of its pool code, so what they say of a
//! pool is what the kernel module would do with it.

use crate::packages::{cache, get, Programs, Set};
use crate::run::{all_text, output};
use base::{bail, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// OpenZFS's programs, ready to run.
#[derive(Clone, Debug)]
pub struct OpenZfs {
    from: From,
}

#[derive(Clone, Debug)]
enum From {
    Packages(Programs),
    /// Just a `zdb`.
    Machine(PathBuf),
}

impl OpenZfs {
    /// The programs, fetched at the first use on this machine.
    pub fn get() -> Result<OpenZfs> {
        Ok(OpenZfs {
            from: From::Packages(get(Set::OpenZfs)?),
        })
    }

    /// A `zdb` that is on the machine and finds its libraries; the other programs are missing.
    pub fn installed(zdb: &Path) -> OpenZfs {
        OpenZfs {
            from: From::Machine(zdb.into()),
        }
    }

    /// A command for one of the programs (`zdb`, `zstream`, `zhack`, `ztest`, `raidz_test`), with its
    /// libraries found. The last two are fetched when first asked for.
    pub fn command(&self, program: &str) -> Result<Command> {
        let tools = match &self.from {
            From::Packages(tools) => tools,
            From::Machine(zdb) if program == "zdb" => {
                let mut c = Command::new(zdb);
                end_at_once(&mut c);
                return Ok(c);
            }
            From::Machine(_) => bail!(NotFound, "there is only zdb, not {program}"),
        };
        let path = match program {
            "ztest" | "raidz_test" => get(Set::Ztest)?.find(program),
            _ => tools.find(program),
        };
        let Some(path) = path else {
            bail!(NotFound, "OpenZFS's packages have no {program}");
        };
        let mut c = Command::new(path);
        let libraries = std::env::join_paths(tools.libraries());
        c.env("LD_LIBRARY_PATH", libraries.unwrap_or_default());
        if program == "zdb" {
            end_at_once(&mut c);
        }
        // ztest runs zdb after every pass.
        let own = tools
            .find("zdb")
            .and_then(|z| Some(z.parent()?.to_path_buf()));
        let system = std::env::var_os("PATH").unwrap_or_default();
        let path = own.into_iter().chain(std::env::split_paths(&system));
        c.env("PATH", std::env::join_paths(path).unwrap_or_default());
        Ok(c)
    }

    /// Output of `zdb` with these arguments.
    ///
    /// Errors: `Kind::Io` with all it printed if it ends with an error.
    pub fn zdb(&self, args: &[&str]) -> Result<String> {
        let mut c = self.command("zdb")?;
        let out = output(c.args(args))?;
        if !out.status.success() {
            bail!(Io, "{}", without_progress(&all_text(&c, &out)));
        }
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    }

    /// Traverses an exported pool whose images are in `dir`: every block's checksum must be right,
    /// every allocated sector must belong to exactly one block (`zdb -e -p DIR -bcc POOL`). Gives
    /// the report.
    ///
    /// Errors: `Kind::Io` with all `zdb` printed if anything is wrong.
    pub fn check(&self, dir: &Path, pool: &str) -> Result<String> {
        let mut c = self.command("zdb")?;
        let out = output(c.arg("-e").arg("-p").arg(dir).args(["-bcc", pool]))?;
        let text = without_progress(&all_text(&c, &out));
        if !out.status.success() || !is_clean(&text) {
            bail!(Io, "{text}");
        }
        Ok(text)
    }

    /// Whether the pool's own objects of an exported pool are what leads to them: none is left over, and nothing leads to one
    /// that is not there (`zdb -e -p DIR -d POOL`, whose exit status is all that tells the second).
    ///
    /// Errors: `Kind::Io` with all `zdb` printed if anything is wrong.
    pub fn objects(&self, dir: &Path, pool: &str) -> Result<()> {
        let mut c = self.command("zdb")?;
        let out = output(c.arg("-e").arg("-p").arg(dir).args(["-d", pool]))?;
        let text = all_text(&c, &out);
        if !out.status.success() || text.contains("leaked") {
            bail!(Io, "{}: {text}", out.status);
        }
        Ok(())
    }

    /// The labels and uberblocks of a disk or image (`zdb -lluuu PATH`).
    ///
    /// Errors: `Kind::Io` if there is no valid label.
    pub fn labels(&self, path: &Path) -> Result<String> {
        let mut c = self.command("zdb")?;
        let out = output(c.arg("-lluuu").arg(path))?;
        if !out.status.success() {
            bail!(Io, "{}", all_text(&c, &out));
        }
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    }
}

/// Lets `zdb` end when it has said everything. Before it exits it empties its block cache, and spins until six seconds have
/// passed since a block was read ahead (`arc_min_prescient_prefetch_ms`, which no option sets): `zdb -bcc` of a small pool
/// takes 6.3 s instead of 0.2. Its output and its exit status do not depend on that. Without a C compiler it takes
/// its time.
fn end_at_once(zdb: &mut Command) {
    static LIBRARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    if let Some(path) = LIBRARY.get_or_init(make_library) {
        zdb.env("LD_PRELOAD", path);
    }
}

/// Builds the library whose `kernel_fini`, the last thing that `zdb` calls, does nothing.
fn make_library() -> Option<PathBuf> {
    let path = cache().join("zdb-ends-at-once.so");
    if path.is_file() {
        return Some(path);
    }
    let source = path.with_extension(format!("{}.c", std::process::id()));
    let built = source.with_extension("so");
    std::fs::create_dir_all(cache()).ok()?;
    std::fs::write(&source, "void kernel_fini(void) {}\n").ok()?;
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]).arg(&built).arg(&source);
    let done = output(&mut cc).is_ok_and(|o| o.status.success());
    let _ = std::fs::remove_file(&source);
    // Other tests may do the same at this moment.
    (done && std::fs::rename(&built, &path).is_ok()).then_some(path)
}

/// What a report of `zdb -bcc` must say, and what it must not.
fn is_clean(report: &str) -> bool {
    const BAD: [&str; 6] = [
        "leaked space",
        "Got error",
        "Error counts",
        "block traversal size",
        "zdb_blkptr_cb",
        "WARNING",
    ];
    report.contains("No leaks") && !BAD.iter().any(|b| report.contains(b))
}

/// Drops what is meant for a terminal: loading messages, lines overwritten by carriage returns.
fn without_progress(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let last = line.rsplit('\r').next().unwrap_or(line);
        let last = match last.find("loading concrete vdev") {
            Some(at) => &last[..at],
            None => last,
        };
        if last.is_empty() && !line.is_empty() {
            continue;
        }
        out.push_str(last);
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports() {
        let good = "x\n\n\tNo leaks (block sum matches space maps exactly)\n";
        assert!(is_clean(good));
        assert!(!is_clean("nothing"));
        assert!(!is_clean(&format!(
            "leaked space: vdev 0, offset 0x0\n{good}"
        )));
        assert_eq!(
            without_progress("a\nloading concrete vdev 0, metaslab 0 of 2 ...\n\nb\rc\n"),
            "a\n\nc\n"
        );
    }
}
