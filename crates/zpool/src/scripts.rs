//! Columns made by scripts: `zpool status -c`, `zpool iostat -c` (command reference §8.6, §10).
//!
//! The command runs the scripts itself, as the user who called it, once for each device. A line `NAME=VALUE` is a column; the
//! first line of another form is shown behind the columns, and ends what is read of that script.

use api::{Pool, Vdev};
use cli::harmless::one_line;
use cli::{vdevs, Cx, Fail, Parsed};
use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Scripts that run at the same time.
const AT_ONCE: usize = 16;
/// What a script finds programs in.
const PROGRAMS: &str = "/bin:/sbin:/usr/bin:/usr/sbin";
/// Where scripts are if `ZPOOL_SCRIPTS_PATH` does not say, behind the user's own folder.
const FOLDER: &str = "/etc/zfs/zpool.d";

/// The scripts of a command line.
pub struct Scripts(Vec<PathBuf>);

/// What the scripts said of one device.
#[derive(Default)]
struct Said {
    columns: Vec<(String, String)>,
    rest: Vec<String>,
}

/// What the scripts said of all devices.
#[derive(Default)]
pub struct Table {
    /// Name and width of each column, in the order in which they appeared.
    columns: Vec<(String, usize)>,
    /// By guid.
    devices: HashMap<u64, Said>,
}

impl Scripts {
    /// Those that `-c` names; none without it.
    pub fn of(args: &Parsed, cx: &Cx<'_>) -> Result<Option<Scripts>, Fail> {
        let Some(names) = args.get("c") else {
            return Ok(None);
        };
        let refused = |why: &str| Err(Fail::Error(format!("cannot run scripts: {why}")));
        if (cx.env)("ZPOOL_SCRIPTS_ENABLED").is_some_and(|v| v == "0") {
            return refused("ZPOOL_SCRIPTS_ENABLED is 0");
        }
        let is_root = Path::new("/proc/self").metadata().is_ok_and(|m| {
            use std::os::unix::fs::MetadataExt;
            m.uid() == 0
        });
        if is_root && (cx.env)("ZPOOL_SCRIPTS_AS_ROOT").is_none_or(|v| v.is_empty() || v == "0") {
            return refused("they would run as root; set ZPOOL_SCRIPTS_AS_ROOT=1 to allow that");
        }
        let folders = folders(cx);
        let mut found = Vec::new();
        for name in names.split(',').filter(|n| !n.is_empty()) {
            if name.contains('/') {
                return refused(&format!("'{name}' is a path, not the name of a script"));
            }
            let path = folders.iter().map(|f| f.join(name)).find(|p| is_script(p));
            match path {
                Some(p) => found.push(p),
                None => {
                    let places: Vec<_> = folders.iter().map(|f| f.to_string_lossy()).collect();
                    let places = places.join(":");
                    return refused(&format!("there is no script '{name}' in {places}"));
                }
            }
        }
        Ok(Some(Scripts(found)))
    }

    /// Runs them for all devices of the pools.
    pub fn run(&self, pools: &[Pool]) -> Table {
        let mut leaves: Vec<&Vdev> = Vec::new();
        for tree in pools.iter().filter_map(|p| p.tree.as_ref()) {
            collect(tree, &mut leaves);
        }
        let mut table = Table::default();
        for some in leaves.chunks(AT_ONCE) {
            let said: Vec<Said> = std::thread::scope(|s| {
                let threads: Vec<_> = some.iter().map(|v| s.spawn(|| self.ask_about(v))).collect();
                let ended = threads.into_iter().map(|t| t.join().unwrap_or_default());
                ended.collect()
            });
            for (v, said) in some.iter().zip(said) {
                table.add(v.guid, said);
            }
        }
        table
    }

    fn ask_about(&self, v: &Vdev) -> Said {
        let mut said = Said::default();
        let path = v.path.as_deref().unwrap_or_default();
        let device = whole_device(Path::new(path));
        for script in &self.0 {
            let mut c = Command::new(script);
            c.env_clear()
                .env("PATH", PROGRAMS)
                .env("VDEV_PATH", path)
                .env("VDEV_UPATH", &device)
                .stdin(Stdio::null())
                .stderr(Stdio::null());
            if let Some(e) = enclosure(&device) {
                c.env("VDEV_ENC_SYSFS_PATH", e);
            }
            if let Ok(out) = c.output() {
                said.take(&String::from_utf8_lossy(&out.stdout));
            }
        }
        said
    }
}

/// Where scripts are looked for.
fn folders(cx: &Cx<'_>) -> Vec<PathBuf> {
    if let Some(path) = (cx.env)("ZPOOL_SCRIPTS_PATH") {
        return std::env::split_paths(&path).collect();
    }
    let own = (cx.env)("HOME").map(|h| Path::new(&h).join(".zpool.d"));
    own.into_iter().chain([PathBuf::from(FOLDER)]).collect()
}

fn is_script(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

fn collect<'a>(v: &'a Vdev, out: &mut Vec<&'a Vdev>) {
    if vdevs::is_leaf(v) && v.path.is_some() {
        out.push(v);
    }
    v.children.iter().for_each(|c| collect(c, out));
}

/// The device below links and partitions.
fn whole_device(path: &Path) -> PathBuf {
    let real = path.canonicalize().unwrap_or_else(|_| path.into());
    let Some(name) = real.file_name().filter(|_| real.starts_with("/dev")) else {
        return real;
    };
    let block = Path::new("/sys/class/block").join(name);
    let disk = match block.join("partition").exists() {
        true => block.canonicalize().ok().and_then(|p| {
            let disk = p.parent()?.file_name()?;
            Some(Path::new("/dev").join(disk))
        }),
        false => None,
    };
    disk.unwrap_or(real)
}

/// The folder in sysfs of the slot a disk is in.
fn enclosure(device: &Path) -> Option<PathBuf> {
    let folder = Path::new("/sys/class/block").join(device.file_name()?);
    let entries = std::fs::read_dir(folder.join("device")).ok()?.flatten();
    let is_slot = |e: &std::fs::DirEntry| {
        let name = e.file_name();
        name.to_string_lossy().starts_with("enclosure_device")
    };
    entries
        .into_iter()
        .find(is_slot)
        .and_then(|e| e.path().canonicalize().ok())
}

impl Said {
    /// Takes over what a script printed.
    fn take(&mut self, text: &str) {
        for line in text.lines() {
            let line = one_line(line.trim_end());
            match line.split_once('=') {
                Some((name, value)) if !name.is_empty() => {
                    self.columns.push((name.into(), value.into()));
                }
                _ => {
                    if !line.is_empty() {
                        self.rest.push(line);
                    }
                    return;
                }
            }
        }
    }
}

impl Table {
    fn add(&mut self, guid: u64, said: Said) {
        for (name, value) in &said.columns {
            let wide = value.chars().count().max(1);
            match self.columns.iter_mut().find(|(n, _)| n == name) {
                Some((_, width)) => *width = wide.max(*width),
                None => self
                    .columns
                    .push((name.clone(), wide.max(name.chars().count()))),
            }
        }
        self.devices.insert(guid, said);
    }

    /// The names of the columns, two blanks before each.
    pub fn heading(&self) -> String {
        let one = |(name, width): &(String, usize)| format!("  {name:>width$}", width = *width);
        self.columns.iter().map(one).collect()
    }

    pub fn dashes(&self) -> String {
        let one = |(_, width): &(String, usize)| format!("  {}", "-".repeat(*width));
        self.columns.iter().map(one).collect()
    }

    /// What is said of a device; nothing of groups. `scripted`: a tab before each.
    pub fn cells(&self, guid: u64, scripted: bool) -> String {
        let Some(said) = self.devices.get(&guid) else {
            return String::new();
        };
        let mut out = String::new();
        for (name, width) in &self.columns {
            let value = said.columns.iter().find(|(n, _)| n == name);
            let value = value.map_or("", |(_, v)| v.as_str());
            let value = if value.is_empty() { "-" } else { value };
            match scripted {
                true => out.push_str(&format!("\t{value}")),
                false => out.push_str(&format!("  {value:>width$}", width = *width)),
            }
        }
        for line in &said.rest {
            out.push_str(if scripted { "\t" } else { "  " });
            out.push_str(line);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_columns() {
        let mut a = Said::default();
        a.take("temp=35\nhours=\nbroken\nafter=1\n");
        let mut b = Said::default();
        b.take("temp=7\nhours=12345\n");
        let mut t = Table::default();
        t.add(1, a);
        t.add(2, b);
        assert_eq!(t.heading(), "  temp  hours");
        assert_eq!(t.dashes(), "  ----  -----");
        assert_eq!(t.cells(1, false), "    35      -  broken");
        assert_eq!(t.cells(2, false), "     7  12345");
        assert_eq!(t.cells(2, true), "\t7\t12345");
        assert_eq!(t.cells(3, false), "");
    }

    #[test]
    fn names_of_devices() {
        let null = whole_device(Path::new("/dev/null"));
        assert_eq!(null, Path::new("/dev/null"));
        assert_eq!(whole_device(Path::new("/no/such")), Path::new("/no/such"));
        assert!(enclosure(&null).is_none());
    }
}
