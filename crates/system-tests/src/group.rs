//! A control group with a limit of memory.

use std::fs;
use std::path::{Path, PathBuf};

/// A control group of its own, removed with the value. Its processes must have ended by then.
pub struct Group {
    path: PathBuf,
    /// The unified hierarchy (cgroup v2).
    unified: bool,
}

impl Group {
    /// A group whose processes together may have `limit` bytes of memory; `None` after saying why
    /// if there can be none here.
    pub fn with_memory(name: &str, limit: u64) -> Option<Group> {
        match Group::make(name, limit) {
            Ok(group) => Some(group),
            Err(why) => {
                eprintln!("skipped: {name} needs a control group with a memory limit: {why}");
                None
            }
        }
    }

    fn make(name: &str, limit: u64) -> Result<Group, String> {
        let own = fs::read_to_string("/proc/self/cgroup").map_err(|e| e.to_string())?;
        let (parent, unified) = parent(&own).ok_or("no memory controller to be had")?;
        let path = parent.join(format!("{name}-{}", std::process::id()));
        let said = |e: std::io::Error| format!("{}: {e}", path.display());
        fs::create_dir(&path).map_err(said)?;
        let group = Group { path, unified };
        let set = |file: &str, value: &str| {
            let file = group.path.join(file);
            fs::write(&file, value).map_err(|e| format!("{}: {e}", file.display()))
        };
        let (limits, swap) = match unified {
            true => ("memory.max", ("memory.swap.max", "0".to_string())),
            false => (
                "memory.limit_in_bytes",
                ("memory.memsw.limit_in_bytes", limit.to_string()),
            ),
        };
        set(limits, &limit.to_string())?;
        // Kernels without swap have no such file, and nothing to be limited.
        let _ = set(swap.0, &swap.1);
        Ok(group)
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.path.join(file)).unwrap_or_default()
    }

    /// How many of its processes the kernel has killed because memory ran out.
    pub fn oom_kills(&self) -> u64 {
        let file = match self.unified {
            true => "memory.events",
            false => "memory.oom_control",
        };
        let text = self.read(file);
        let count = text
            .lines()
            .find_map(|l| l.strip_prefix("oom_kill ")?.trim().parse().ok());
        count.unwrap_or_else(|| panic!("no oom_kill in {file}: {text}"))
    }

    /// Most memory it ever had, bytes, page cache included; none where the kernel does not say.
    pub fn peak(&self) -> Option<u64> {
        let file = match self.unified {
            true => "memory.peak",
            false => "memory.max_usage_in_bytes",
        };
        self.read(file).trim().parse().ok()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel needs a moment to notice that the last process has ended.
        for _ in 0..100 {
            match fs::remove_dir(&self.path) {
                Err(e) if e.raw_os_error() == Some(16) => {
                    std::thread::sleep(std::time::Duration::from_millis(50));
                }
                _ => return,
            }
        }
    }
}

/// Where a group may be made, going by the groups this process is in; and whether that is in the
/// unified hierarchy.
fn parent(own: &str) -> Option<(PathBuf, bool)> {
    let top = Path::new("/sys/fs/cgroup");
    for line in own.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let path = path.trim_start_matches('/');
        if controllers.is_empty() {
            // A group with processes hands no controllers on, but one above it may.
            let all = top.join(path);
            let hands_on = |dir: &&Path| {
                let text = fs::read_to_string(dir.join("cgroup.subtree_control"));
                text.is_ok_and(|t| t.split_whitespace().any(|c| c == "memory"))
            };
            let mut above = all.ancestors().take_while(|d| d.starts_with(top));
            if let Some(dir) = above.find(hands_on) {
                return Some((dir.to_path_buf(), true));
            }
        } else if controllers.split(',').any(|c| c == "memory") {
            let dir = top.join("memory").join(path);
            if dir.is_dir() {
                return Some((dir, false));
            }
        }
    }
    None
}
