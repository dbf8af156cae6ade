//! Parallel mounting and unmounting of file systems that do not lie in one another. A mount or unmount mostly
//! waits: for reads one after the other, for the kernel, for threads that end.

use crate::process::Process;
use base::sync::MutexExt;
use base::{Error, Kind, Result};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Mount points where nothing could be mounted for now. What lies in them waits: once it is mounted, a later mount of what it lies
/// in would hide it.
#[derive(Default)]
pub struct Missing(Mutex<Vec<(PathBuf, String)>>);

impl Missing {
    /// Errors: `Kind::Again`, with the name of what `path` lies in and what could not be mounted.
    pub fn must_not_be_above(&self, path: &Path) -> Result<()> {
        let list = self.0.acquire();
        match list.iter().find(|(p, _)| path != p && path.starts_with(p)) {
            Some((_, name)) => Err(Error::new(
                Kind::Again,
                format!("it lies in '{name}', which could not be mounted: mount that first"),
            )),
            None => Ok(()),
        }
    }

    /// Mounting `name` at `path` has failed. What is damaged stays as it is: what lies in it does not wait for that.
    pub fn note(&self, path: &Path, name: String, why: &Error) {
        if why.may_pass() {
            self.0.acquire().push((path.to_path_buf(), name));
        }
    }
}

/// The wave of each path: later than those of all paths before it in the list that it lies in, that
/// lie in it, or that are the same.
fn waves(paths: &[&Path]) -> Vec<usize> {
    // First wave that may have a path at a place, because of what is there or below it, and because
    // of what is there only.
    let mut around: HashMap<&Path, usize> = HashMap::new();
    let mut inside: HashMap<&Path, usize> = HashMap::new();
    let mut out = Vec::with_capacity(paths.len());
    for path in paths {
        let outer = path.ancestors().filter_map(|a| inside.get(a)).max();
        let wave = around.get(path).max(outer).copied().unwrap_or(0);
        for a in path.ancestors() {
            let first = around.entry(a).or_default();
            *first = (*first).max(wave + 1);
        }
        let first = inside.entry(path).or_default();
        *first = (*first).max(wave + 1);
        out.push(wave);
    }
    out
}

/// Calls `job` with everything in the list, whose order counts only for what lies in one another;
/// the results in the order of the list.
pub fn run<T: Sync, R: Send>(
    process: &dyn Process,
    list: &[T],
    path: impl Fn(&T) -> &Path,
    job: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let paths: Vec<&Path> = list.iter().map(path).collect();
    let mut by_wave: Vec<Vec<usize>> = Vec::new();
    for (n, wave) in waves(&paths).into_iter().enumerate() {
        if by_wave.len() <= wave {
            by_wave.resize_with(wave + 1, Vec::new);
        }
        by_wave[wave].push(n);
    }
    let done: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::with_capacity(list.len()));
    for wave in by_wave {
        process.together(wave.len(), &|at| {
            let n = wave[at];
            let r = job(&list[n]);
            done.acquire().push((n, r));
        });
    }
    let mut done = done.into_inner().unwrap_or_else(|e| e.into_inner());
    done.sort_by_key(|(n, _)| *n);
    done.into_iter().map(|(_, r)| r).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(list: &[&str]) -> Vec<usize> {
        let paths: Vec<&Path> = list.iter().map(Path::new).collect();
        waves(&paths)
    }

    #[test]
    fn what_lies_in_what_is_not_mounted_waits() {
        let missing = Missing::default();
        let waits = |path: &str| missing.must_not_be_above(Path::new(path)).is_err();
        let damaged = Error::new(Kind::Damaged, "");
        missing.note(Path::new("/d"), "tank/d".into(), &damaged);
        assert!(!waits("/d/a"));
        missing.note(Path::new("/p/a"), "tank/a".into(), &Kind::Io.into());
        assert!(waits("/p/a/x") && waits("/p/a/x/y"));
        assert!(!waits("/p/a") && !waits("/p/ab") && !waits("/p") && !waits("/q"));
    }

    #[test]
    fn order() {
        let mount = ["/p", "/p/a", "/p/a/x", "/p/ab", "/p/b", "/q", "/p/a/x/y"];
        assert_eq!(of(&mount), [0, 1, 2, 1, 1, 0, 3]);
        let mut back = mount;
        back.reverse();
        // y, q, b, ab, x, a, p
        assert_eq!(of(&back), [0, 0, 0, 0, 1, 2, 3]);
        // One over the other, and what was mounted below before what is above.
        assert_eq!(of(&["/a", "/a", "/a/b", "/a"]), [0, 1, 2, 3]);
        assert_eq!(of(&["/a/b/c", "/a/d", "/a"]), [0, 0, 1]);
        assert_eq!(of(&[]), [0; 0]);
    }

    #[test]
    fn outer_places_come_last_and_results_in_the_order_of_the_list() {
        let list: Vec<String> = ["/a/1", "/a/2", "/a/3", "/a", "/"].map(String::from).into();
        let ended = Mutex::new(Vec::new());
        let got = run(
            &crate::alone::Alone::new(env_sim::mem_env(1).0, Default::default()),
            &list,
            |p| Path::new(p),
            |p| {
                ended.lock().unwrap().push(p.clone());
                p.len()
            },
        );
        assert_eq!(got, [4, 4, 4, 2, 1]);
        assert_eq!(ended.into_inner().unwrap()[3..], ["/a", "/"]);
    }
}
