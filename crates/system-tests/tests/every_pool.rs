//! Every pool of the fixtures through the real programs: imported read-only, mounted, every entry
//! of every file system and snapshot, every volume, every property compared with what OpenZFS
//! showed of it; and not one byte of an image changes.
//!
//! `FIXTURE=name` looks at one only.

use serde_json::Value;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use system_tests::manifest::{self, Look, Seen};
use system_tests::{programs, Rig};

/// What may still be refused: fixture, part of the sentence. Nothing may be refused silently.
const REFUSED: &[(&str, &str)] = &[];

/// Fixtures whose logs wait to be replayed, or files to be freed: read-only they show the state
/// before, so that only after a read-write import everything is as described.
const LOGS: &[&str] = &[
    "unlinked",
    "zil",
    "zil-crash",
    "zil-encrypted",
    "zil-raidz",
    "zil-slog",
];

fn json(path: &Path) -> Value {
    let text = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn text<'a>(v: &'a Value, what: &str) -> &'a str {
    v[what].as_str().unwrap_or_default()
}

fn text_of(m: &Value) -> &str {
    text(m, "mountpoint")
}

fn list(v: &Value) -> &[Value] {
    v.as_array().map_or(&[], Vec::as_slice)
}

/// Pools with one name cannot be imported at the same time.
#[derive(Default)]
struct Names(Mutex<HashMap<String, Arc<Mutex<()>>>>);

impl Names {
    fn get(&self, name: &str) -> Arc<Mutex<()>> {
        let mut all = self.0.lock().unwrap_or_else(|e| e.into_inner());
        all.entry(name.to_string()).or_default().clone()
    }
}

/// What all workers have found.
#[derive(Default)]
struct Report {
    seen: Seen,
    pools: usize,
    datasets: usize,
    volumes: usize,
    properties: usize,
    refused: Vec<String>,
    /// Reasons of deliberate differences of properties, counted.
    excused: BTreeMap<&'static str, usize>,
}

struct Job<'a> {
    rig: &'a Rig,
    fixture: &'a str,
    /// Folder with the images.
    dir: PathBuf,
    root: PathBuf,
    report: &'a Mutex<Report>,
    ordinary: bool,
    names: &'a Names,
    loops: Mutex<Vec<String>>,
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        for device in self.loops.get_mut().unwrap_or_else(|e| e.into_inner()) {
            let _ = std::process::Command::new("losetup")
                .args(["--detach", device])
                .output();
        }
    }
}

impl Job<'_> {
    fn report(&self, f: impl FnOnce(&mut Report)) {
        f(&mut self.report.lock().unwrap_or_else(|e| e.into_inner()));
    }

    fn bad(&self, what: impl std::fmt::Display) {
        let line = format!("{}: {what}", self.fixture);
        self.report(|r| r.seen.differences.push(line));
    }

    fn run(&self, program: &str, args: &[&str]) -> Result<String, String> {
        let said = self.rig.try_run(program, args);
        match said.status.success() {
            true => Ok(said.out),
            false => Err(said.to_string().trim().to_string()),
        }
    }

    fn refused(&self, why: &str) {
        let line = format!("{}: refused: {why}", self.fixture);
        let allowed = REFUSED
            .iter()
            .any(|(f, part)| *f == self.fixture && why.contains(part));
        self.report(|r| {
            r.refused.push(line.clone());
            if !allowed {
                r.seen.differences.push(line);
            }
        });
    }

    /// One state of the images.
    fn state(&self, m: &Value, extra: &[&str], writable: bool) {
        let Some(p) = list(&m["pools"]).first() else {
            return;
        };
        let name = text(p, "pool");
        let lock = self.names.get(name);
        let _one = lock.lock().unwrap_or_else(|e| e.into_inner());
        let dir = match self.partition(m) {
            Ok(dir) => dir,
            Err(why) => return println!("{}: not here: {why}", self.fixture),
        };
        let dir = dir.to_str().unwrap_or_default();
        let root = self.root.join(if writable { "rw" } else { "ro" });
        let root_text = root.to_str().unwrap_or_default();
        let guid = p["properties"]["guid"][0].as_str().unwrap_or_default();
        let mut args = vec!["import", "-d", dir, "-o", "cachefile=none", "-R", root_text];
        if !writable {
            args.extend(["-o", "readonly=on"]);
        }
        if self.ordinary {
            // One of his file systems cannot be mounted inside another.
            args.push("-N");
        }
        if m["import"]["force"] == true {
            args.push("-f");
        }
        for flag in list(&m["import"]["flags"]) {
            args.extend(flag.as_str());
        }
        args.extend(extra);
        if m["import"]["by_guid"] == true || self.fixture == "two-pools" {
            args.extend([guid, name]);
        } else {
            args.push(name);
        }
        let since = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |d| d.as_secs() as i64)
            - 1;
        let imported = self.run("zpool", &args);
        if m["import"]["refuse"] == true {
            match imported {
                Ok(_) => self.bad("imported although it must be refused"),
                Err(e) if e.contains("cannot import") => self.report(|r| r.pools += 1),
                Err(e) => self.bad(e),
            }
            return;
        }
        match imported {
            Err(e) if !self.is_there(name) => return self.refused(&e),
            Err(e) => self.bad(e),
            Ok(_) => {}
        }
        self.keys(m, name);
        self.pool(m, p, &root, writable, since);
        // A command that the other worker starts has our files open until it is itself.
        for attempt in 0.. {
            match self.run("zpool", &["export", name]) {
                Err(e) if e.contains("is busy") && attempt < 20 => {
                    std::thread::sleep(std::time::Duration::from_millis(100));
                }
                Err(e) => {
                    self.bad(e);
                    break;
                }
                Ok(_) => break,
            }
        }
        self.report(|r| r.pools += 1);
    }

    /// Where the devices are: the images, or for a disk with a partition table a loop device on the
    /// partition.
    fn partition(&self, m: &Value) -> Result<PathBuf, String> {
        let (Some(offset), Some(size)) = (
            m["partition"]["offset"].as_u64(),
            m["partition"]["size"].as_u64(),
        ) else {
            return Ok(self.dir.clone());
        };
        let image = self.dir.join(text(&m["images"][0], "file"));
        let mut c = std::process::Command::new("losetup");
        c.args(["--find", "--show", "--offset", &offset.to_string()])
            .args(["--sizelimit", &size.to_string()]);
        if !LOGS.contains(&self.fixture) {
            c.arg("--read-only");
        }
        let out = c.arg(&image).output().map_err(|e| e.to_string())?;
        if !out.status.success() {
            return Err(String::from_utf8_lossy(&out.stderr).trim().to_string());
        }
        let device = String::from_utf8_lossy(&out.stdout).trim().to_string();
        let dir = self.root.join("devices");
        std::fs::create_dir_all(&dir).map_err(|e| e.to_string())?;
        let _ = std::os::unix::fs::symlink(&device, dir.join("disk"));
        self.loops
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .push(device);
        Ok(dir)
    }

    fn is_there(&self, pool: &str) -> bool {
        self.run("zpool", &["list", "-H", pool]).is_ok()
    }

    fn keys(&self, m: &Value, pool: &str) {
        for k in list(&m["keys"]) {
            let ds = text(k, "dataset");
            // Some are for datasets that receiving a stream makes.
            if ds.split('/').next() != Some(pool) {
                continue;
            }
            let file = self.root.join("key");
            let key = match k["key"].as_str() {
                Some(t) => t.as_bytes().to_vec(),
                None => manifest::base64(text(k, "key_b64")),
            };
            std::fs::write(&file, key).expect("file with a key");
            let place = format!("file://{}", file.display());
            if let Err(e) = self.run("zfs", &["load-key", "-L", &place, ds]) {
                self.refused(&e);
            }
        }
        // Not all there are: another worker's pools come and go meanwhile.
        if m["keys"].is_array() && !self.ordinary {
            let _ = self.run("zfs", &["mount", "-R", pool]);
        }
    }

    fn pool(&self, m: &Value, p: &Value, root: &Path, writable: bool, since: i64) {
        let pool = text(p, "pool");
        let datasets = list(&p["datasets"]);
        let got = match self.run(
            "zfs",
            &[
                "list",
                "-Hp",
                "-t",
                "all",
                "-o",
                "name,type",
                "-s",
                "createtxg",
                "-r",
                pool,
            ],
        ) {
            Ok(t) => t,
            Err(e) => return self.bad(e),
        };
        let mut got: Vec<&str> = got.lines().collect();
        let mut want: Vec<String> = datasets
            .iter()
            .map(|d| format!("{}\t{}", text(d, "name"), text(d, "type")))
            .collect();
        got.sort_unstable();
        want.sort_unstable();
        if got != want {
            self.bad(format!("datasets {got:?}, not {want:?}"));
        }
        if !writable && !self.ordinary {
            self.properties(p, datasets, root);
            self.pool_properties(p);
            self.delegation(datasets);
        }
        let mut mounts = self.mounts();
        for d in datasets {
            let name = text(d, "name");
            let source = match d["entries_as"].as_str() {
                Some(other) => datasets.iter().find(|x| x["name"] == other).unwrap_or(d),
                None => d,
            };
            if !d["volume"].is_null() {
                self.volume(name, &d["volume"]);
            }
            if d["key"] == "not loaded" || source["entries"].is_null() {
                continue;
            }
            let (fs, snap) = match name.split_once('@') {
                Some((fs, snap)) => (fs, Some(snap)),
                None => (name, None),
            };
            let at = match mounts.get(fs) {
                Some(at) => at.clone(),
                None => {
                    let at = self.root.join("by-hand").join(fs.replace('/', "+"));
                    let place = at.to_str().unwrap_or_default();
                    if let Err(e) = self.run("zfs", &["mount", fs, place]) {
                        self.refused(&e);
                        continue;
                    }
                    mounts.insert(fs.to_string(), at.clone());
                    at
                }
            };
            let at = match snap {
                Some(s) => at.join(".zfs/snapshot").join(s),
                None => at,
            };
            let mut look = Look {
                ordinary: self.ordinary,
                // Replaying a log changes files and folders at that moment.
                fresh: writable.then_some(since),
                ..Look::default()
            };
            for u in list(&m["expect"]["unreadable"]) {
                if text(u, "dataset") == fs {
                    let ranges = list(&u["ranges"]).iter();
                    let ranges = ranges
                        .map(|r| (r[0].as_u64().unwrap_or(0), r[1].as_u64().unwrap_or(0)))
                        .collect();
                    look.unreadable
                        .insert(text(u, "path").as_bytes().to_vec(), ranges);
                }
            }
            let mut seen = manifest::compare(&at, list(&source["entries"]), &look);
            for line in &mut seen.differences {
                *line = format!("{} {name}: {line}", self.fixture);
            }
            self.report(|r| {
                r.seen.add(seen);
                r.datasets += 1;
            });
        }
        self.lookups(m, &mounts);
    }

    fn mounts(&self) -> HashMap<String, PathBuf> {
        let text = self.run("zfs", &["mount", "-j"]).unwrap_or_default();
        let all: Value = serde_json::from_str(&text).unwrap_or_default();
        all["datasets"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(ds, m)| (ds.clone(), PathBuf::from(text_of(m))))
            .collect()
    }

    fn volume(&self, name: &str, want: &Value) {
        let file = self.root.join("volume");
        let path = file.to_str().unwrap_or_default();
        let _ = std::fs::remove_file(&file);
        match self.run("zfs", &["read", name, path]) {
            Ok(_) => {
                for line in manifest::compare_volume(&file, want) {
                    self.bad(format!("{name}: {line}"));
                }
                self.report(|r| r.volumes += 1);
            }
            Err(e) => self.bad(e),
        }
        let Some((fs, last)) = name.rsplit_once('/') else {
            return;
        };
        if let Some(at) = self.mounts().get(fs) {
            for line in manifest::compare_volume(&at.join(".zfs/volumes").join(last), want) {
                self.bad(format!("{name} in .zfs/volumes: {line}"));
            }
        }
    }

    /// Names with other case or in another form.
    fn lookups(&self, m: &Value, mounts: &HashMap<String, PathBuf>) {
        // Twice: the second time the kernel has its own idea of the names.
        for l in list(&m["lookups"]).iter().chain(list(&m["lookups"])) {
            let (Some(at), Some(name)) =
                (mounts.get(text(l, "dataset")), manifest::bytes(l, "lookup"))
            else {
                continue;
            };
            use std::os::unix::ffi::OsStrExt;
            let got = std::fs::read(at.join(std::ffi::OsStr::from_bytes(&name)));
            let same = match (&got, l["found"].as_str(), l["errno"].as_i64()) {
                (Ok(data), Some(want), _) => String::from_utf8_lossy(data).trim() == want,
                (Err(e), None, Some(errno)) => e.raw_os_error() == Some(errno as i32),
                _ => false,
            };
            if !same {
                self.bad(format!("{l}: {got:?}"));
            }
        }
    }

    fn properties(&self, p: &Value, datasets: &[Value], root: &Path) {
        let pool = text(p, "pool");
        let args = [
            "get",
            "-Hp",
            "-r",
            "-t",
            "all",
            "-o",
            "name,property,value,source",
            "all",
            pool,
        ];
        let all = match self.run("zfs", &args) {
            Ok(t) => t,
            Err(e) => return self.bad(e),
        };
        let mut got: HashMap<(&str, &str), (&str, &str)> = HashMap::new();
        for line in all.lines() {
            let f: Vec<&str> = line.split('\t').collect();
            if let [name, property, value, source] = f[..] {
                got.insert((name, property), (value, source));
            }
        }
        let recorded_ro = p["properties"]["readonly"][0] == "on";
        let root = root.to_str().unwrap_or_default();
        for d in datasets {
            let name = text(d, "name");
            let Some(want) = d["properties"].as_object() else {
                continue;
            };
            for (property, v) in want {
                let (value, source) = (
                    v[0].as_str().unwrap_or_default(),
                    v[1].as_str().unwrap_or_default(),
                );
                let have = got.remove(&(name, property.as_str()));
                self.report(|r| r.properties += 1);
                if have == Some((value, source)) {
                    continue;
                }
                let why = excuse(property, (value, source), have, root, recorded_ro);
                match why {
                    Some(why) => self.report(|r| *r.excused.entry(why).or_default() += 1),
                    None => self.bad(format!(
                        "{name}: property {property} {have:?}, not {:?}",
                        (value, source)
                    )),
                }
            }
        }
        let known: HashSet<&str> = datasets.iter().map(|d| text(d, "name")).collect();
        for ((name, property), v) in got {
            if known.contains(name) && more(property, v).is_none() {
                self.bad(format!("{name}: property {property} {v:?} not expected"));
            }
        }
    }

    fn pool_properties(&self, p: &Value) {
        let pool = text(p, "pool");
        let args = ["get", "-Hp", "-o", "property,value,source", "all", pool];
        let all = match self.run("zpool", &args) {
            Ok(t) => t,
            Err(e) => return self.bad(e),
        };
        let mut got: HashMap<&str, (&str, &str)> = HashMap::new();
        for line in all.lines() {
            let f: Vec<&str> = line.split('\t').collect();
            if let [property, value, source] = f[..] {
                got.insert(property, (value, source));
            }
        }
        let recorded_ro = p["properties"]["readonly"][0] == "on";
        for (property, v) in p["properties"].as_object().into_iter().flatten() {
            let want = (
                v[0].as_str().unwrap_or_default(),
                v[1].as_str().unwrap_or_default(),
            );
            let have = got.remove(property.as_str());
            self.report(|r| r.properties += 1);
            if have == Some(want) {
                continue;
            }
            match excuse_pool(property, want, have, recorded_ro) {
                Some(why) => self.report(|r| *r.excused.entry(why).or_default() += 1),
                None => self.bad(format!("pool property {property} {have:?}, not {want:?}")),
            }
        }
        let newer = |p: &str| p.starts_with("feature@") && !p.contains(':');
        for (property, v) in got {
            if newer(property) && v == ("disabled", "local") {
                // Features that the maker of the manifests does not know.
                continue;
            }
            self.bad(format!("pool property {property} {v:?} not expected"));
        }
    }

    /// Holds, delegated permissions, space by owner.
    fn delegation(&self, datasets: &[Value]) {
        for d in datasets {
            let name = text(d, "name");
            if !d["holds"].is_null() {
                let want: Vec<&str> = list(&d["holds"]).iter().filter_map(Value::as_str).collect();
                match self.run("zfs", &["holds", "-Hp", name]) {
                    Ok(t) => {
                        let got: Vec<&str> =
                            t.lines().filter_map(|l| l.split('\t').nth(1)).collect();
                        if got != want {
                            self.bad(format!("{name}: holds {got:?}, not {want:?}"));
                        }
                    }
                    Err(e) => self.bad(e),
                }
            }
            if let Some(want) = d["allow"].as_str() {
                match self.run("zfs", &["allow", name]) {
                    Ok(t) if nameless(t.trim()) == nameless(want) => {}
                    Ok(t) => self.bad(format!("{name}: allow shows\n{t}instead of\n{want}")),
                    Err(e) => self.bad(e),
                }
            }
            for (key, command) in [
                ("userspace", "userspace"),
                ("groupspace", "groupspace"),
                ("projectspace", "projectspace"),
            ] {
                if d[key].is_null() {
                    continue;
                }
                let mut args = vec![
                    command,
                    "-Hp",
                    "-o",
                    "type,name,used,quota,objused,objquota",
                ];
                if command != "projectspace" {
                    args.push("-n");
                }
                args.push(name);
                let want: Vec<Vec<&str>> = list(&d[key])
                    .iter()
                    .map(|r| list(r).iter().filter_map(Value::as_str).collect())
                    .collect();
                match self.run("zfs", &args) {
                    Ok(t) => {
                        let got: Vec<Vec<&str>> =
                            t.lines().map(|l| l.split('\t').collect()).collect();
                        if got != want {
                            self.bad(format!("{name}: {command} {got:?}, not {want:?}"));
                        }
                    }
                    Err(e) => self.bad(e),
                }
            }
        }
    }
}

/// Names of users and groups depend on the machine.
fn nameless(text: &str) -> String {
    let line = |l: &str| {
        let numbers = l.replace("(unknown: ", "");
        let mut words: Vec<&str> = numbers.splitn(3, ' ').collect();
        if matches!(words[0], "\tuser" | "\tgroup") && words.len() == 3 {
            words[1] = "NAME";
        }
        words.join(" ")
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

type Shown<'a> = (&'a str, &'a str);

/// Why a property of a dataset may be something else than what was recorded: only what depends on
/// where and how it is imported.
fn excuse(
    property: &str,
    want: Shown<'_>,
    have: Option<Shown<'_>>,
    root: &str,
    recorded_ro: bool,
) -> Option<&'static str> {
    let have = have?;
    let below = |path: &str| {
        path.strip_prefix(root)
            .map(|p| if p.is_empty() { "/" } else { p }.to_string())
    };
    match property {
        "mounted" => Some("mounted: nothing was mounted when the manifest was written"),
        "mountpoint" if have.1 == want.1 && below(have.0).as_deref() == Some(want.0) => {
            Some("mountpoint: begins with the alternate root")
        }
        "readonly" if have == ("on", "temporary") => {
            Some("readonly: the whole pool is imported read-only")
        }
        // What a log or a list of unlinked files makes of it counts as used, or is already freed.
        "available" if !recorded_ro && near(want.0, have.0, 3) => {
            Some("available: the manifest was written while the pool was written")
        }
        // The root's includes the metadata of the pool, which a read-write import writes.
        "used" | "usedbychildren" | "logicalused" | "compressratio"
            if !recorded_ro && near(want.0, have.0, 2) =>
        {
            Some("used: the manifest was written while the pool was written")
        }
        _ => None,
    }
}

/// Whether two figures differ by no more than so many percent.
fn near(a: &str, b: &str, percent: u64) -> bool {
    let number = |t: &str| t.replace('.', "").parse::<u64>().ok();
    match (number(a), number(b)) {
        (Some(a), Some(b)) => a.abs_diff(b) * 100 <= a.max(b) * percent,
        _ => false,
    }
}

/// Why a property is shown that was not recorded.
fn more(property: &str, v: Shown<'_>) -> Option<&'static str> {
    match property {
        // Volumes have it since OpenZFS 2.4.
        "special_small_blocks" if v == ("0", "default") => {
            Some("newer than the maker of the manifests")
        }
        _ if property.starts_with("default") && property.ends_with("quota") && v == ("0", "-") => {
            Some("newer than the maker of the manifests")
        }
        _ => None,
    }
}

fn excuse_pool(
    property: &str,
    want: Shown<'_>,
    have: Option<Shown<'_>>,
    recorded_ro: bool,
) -> Option<&'static str> {
    have?;
    match property {
        "allocated" | "free" | "capacity" | "fragmentation" if recorded_ro => {
            Some("allocated: OpenZFS reads no space maps on read-only import and shows 0")
        }
        "fragmentation" => {
            Some("fragmentation: the manifest was written while the pool was written")
        }
        "allocated" | "free" | "capacity" if near(want.0, have?.0, 3) => {
            Some("allocated: the manifest was written while the pool was written")
        }
        "load_guid" => Some("load_guid: differs with every import"),
        "altroot" => Some("altroot: imported below another root"),
        "cachefile" => Some("cachefile: none, for tests"),
        "readonly" => Some("readonly: imported read-only"),
        _ => None,
    }
}

fn one(job: &Job<'_>) {
    let folder = testkit::fixture::folder().join(job.fixture);
    let m = json(&folder.join("manifest.json"));
    if m["images"].is_null() {
        return;
    }
    std::fs::create_dir_all(&job.dir).expect("folder of images");
    std::fs::create_dir_all(&job.root).expect("folder of mounts");
    if let Err(e) = testkit::fixture::unpack_into(job.fixture, &job.dir) {
        return job.bad(e);
    }
    let images: Vec<PathBuf> = std::fs::read_dir(&job.dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.path())
        .collect();
    let hashes = || -> Vec<String> {
        images
            .iter()
            .map(|i| manifest::hash_sparse(i).unwrap_or_else(|e| e.to_string()))
            .collect()
    };
    if job.ordinary {
        for i in &images {
            use std::os::unix::fs::PermissionsExt;
            // For everybody to read, for nobody to write.
            let _ = std::fs::set_permissions(i, PermissionsExt::from_mode(0o444));
        }
    }
    let before = hashes();
    let logs = LOGS.contains(&job.fixture);
    if job.ordinary && !m["partition"].is_null() {
        return println!(
            "{}: a partition is not for an ordinary user to open",
            job.fixture
        );
    }
    if job.fixture == "two-pools" {
        for (state, extra) in [
            ("manifest.json", &["-D", "-f"][..]),
            ("manifest-d0.json", &[]),
            ("manifest-d1.json", &[]),
        ] {
            job.state(&json(&folder.join(state)), extra, false);
        }
    } else if !logs {
        job.state(&m, &[], false);
    }
    let rewound = folder.join("manifest-checkpoint.json");
    if rewound.exists() && !job.ordinary {
        job.state(&json(&rewound), &["--rewind-to-checkpoint"], false);
    }
    if hashes() != before {
        job.bad("an image has changed although imported read-only");
    }
    if logs && !job.ordinary {
        job.state(&m, &[], true);
    }
    let _ = std::fs::remove_dir_all(&job.dir);
}

fn run(rig: &Rig, fixtures: &[String], ordinary: bool) {
    let names = Names::default();
    let report = Mutex::new(Report::default());
    let todo = Mutex::new(fixtures.iter());
    let begin = std::time::Instant::now();
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| loop {
                let next = todo.lock().unwrap_or_else(|e| e.into_inner()).next();
                let Some(fixture) = next else { return };
                one(&Job {
                    rig,
                    fixture,
                    dir: rig.disks().join(fixture),
                    root: rig.mnt().join(fixture),
                    report: &report,
                    ordinary,
                    names: &names,
                    loops: Mutex::default(),
                });
            });
        }
    });
    let r = report.into_inner().unwrap_or_else(|e| e.into_inner());
    for line in r.refused.iter() {
        println!("{line}");
    }
    for (fixture, why) in REFUSED {
        let looked_at = fixtures.iter().any(|f| f == fixture);
        let begin = format!("{fixture}: ");
        if looked_at && !ordinary && !r.refused.iter().any(|l| l.starts_with(&begin)) {
            println!("{fixture}: no longer refused ({why})");
        }
    }
    for (why, n) in &r.excused {
        println!("{n} times {why}");
    }
    println!(
        "{} fixtures, {} states of pools, {} file systems and snapshots, {} volumes, {} entries, \
         {} MB of data, {} properties compared in {} s; {} files with holes told otherwise",
        fixtures.len(),
        r.pools,
        r.datasets,
        r.volumes,
        r.seen.entries,
        r.seen.bytes >> 20,
        r.properties,
        begin.elapsed().as_secs(),
        r.seen.other_extents,
    );
    let most = std::env::var("SHOW").map_or(100, |n| n.parse().unwrap_or(100));
    for line in r.seen.differences.iter().take(most) {
        println!("{line}");
    }
    assert!(
        r.seen.differences.is_empty(),
        "{} differences",
        r.seen.differences.len()
    );
}

fn chosen(all: impl Fn(&str) -> bool) -> Vec<String> {
    let only = std::env::var("FIXTURE").ok();
    let mut names = testkit::fixture::names();
    names.retain(|n| all(n) && only.as_ref().is_none_or(|o| o.split(',').any(|o| o == n)));
    names
}

#[test]
fn every_entry_of_every_pool() {
    let fixtures = chosen(|_| true);
    if fixtures.is_empty() {
        println!("skipped: there are no fixtures here");
        return;
    }
    let Some(mut rig) = Rig::as_root("every") else {
        return;
    };
    rig.start();
    run(&rig, &fixtures, false);
    rig.stop();
}

/// Some of them, by a user who may read the images and nothing else.
#[test]
fn by_an_ordinary_user() {
    const SOME: [&str; 14] = [
        "acl",
        "blockclone",
        "draid",
        "encryption",
        "gang",
        "legacy-v28",
        "names",
        "raidz2-5",
        "removal",
        "single",
        "snapshots",
        "stripe-mirrors",
        "xattrs",
        "zvol",
    ];
    let fixtures = chosen(|n| SOME.contains(&n));
    if fixtures.is_empty() {
        println!("skipped: there are no fixtures here");
        return;
    }
    // Nobody else, not even root, may look into an ordinary user's mounts: the test runs as him.
    if system_tests::is_root() {
        let Some(rig) = Rig::as_user("every-as") else {
            return;
        };
        let own = std::env::current_exe().expect("this program");
        programs::copy(&own, &rig.path().join("bin/every"));
        let mut c = rig.command("every", &["by_an_ordinary_user", "--exact", "--nocapture"]);
        c.env("ZFS_FUSE_TEST_BIN", rig.path().join("bin"))
            .env("ZFS_FUSE_FIXTURES", testkit::fixture::folder());
        let out = c.output().expect("this program as another user");
        println!("{}", String::from_utf8_lossy(&out.stdout));
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
        return;
    }
    let Some(mut rig) = Rig::as_user("every-user") else {
        return;
    };
    rig.start();
    run(&rig, &fixtures, true);
    rig.stop();
}
