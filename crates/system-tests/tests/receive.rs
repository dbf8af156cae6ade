//! Streams that OpenZFS made, received through the real command: every case of the fixtures gives what
//! OpenZFS received, and what it refused is refused and leaves nothing.

use serde_json::Value;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use system_tests::manifest::{self, base64, Look};
use system_tests::Rig;
use testkit::fixture::{file, streams};
use testkit::or_skip;

/// Fields of cases that are not to be compared, with the reason.
const LEFT_OUT: [(&str, &str); 3] = [
    // OpenZFS loses spill blocks that are in their pointers; what is here is more.
    ("embedded", "long symlinks"),
    ("lec", "long symlinks"),
    ("rawplain", "long symlinks"),
];

struct Said {
    ok: bool,
    err: String,
}

struct Judge {
    rig: Rig,
    dir: PathBuf,
    manifest: Value,
    pool: String,
}

fn text<'a>(v: &'a Value, key: &str) -> &'a str {
    v[key].as_str().unwrap_or_default()
}

impl Judge {
    fn receive(&self, flags: &[&str], into: &str, stream: &Path) -> Said {
        let args = [&["receive"][..], flags, &[into]].concat();
        let out = self
            .rig
            .command("zfs", &args)
            .stdin(File::open(stream).unwrap())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        Said {
            ok: out.status.success(),
            err: String::from_utf8_lossy(&out.stderr).trim_end().to_string(),
        }
    }

    /// Datasets of the manifest of the receiving pool.
    fn datasets(&self) -> Vec<&Value> {
        let pools = self.manifest["pools"].as_array().unwrap();
        pools[pools.len() - 1]["datasets"]
            .as_array()
            .unwrap()
            .iter()
            .collect()
    }

    fn entries<'a>(&'a self, d: &'a Value) -> Option<&'a [Value]> {
        if let Some(e) = d["entries"].as_array() {
            return Some(e);
        }
        let other = d["entries_as"].as_str()?;
        let all = self.manifest["pools"].as_array()?.iter();
        let mut all = all.flat_map(|p| p["datasets"].as_array().into_iter().flatten());
        let found = all.find(|d| text(d, "name") == other)?;
        found["entries"].as_array().map(Vec::as_slice)
    }

    /// Whether a dataset is what the manifest says; differences in words.
    fn compare(&self, case: &str, d: &Value) -> Vec<String> {
        let name = text(d, "name");
        let got = self.rig.try_run("zfs", &["list", "-H", "-o", "guid", name]);
        if !got.status.success() {
            return vec![format!("{name}: {}", got.err.trim())];
        }
        let mut out = Vec::new();
        let guid = text(&d["properties"]["guid"], "0");
        let _ = guid;
        if name.contains('@') {
            let want = d["properties"]["guid"][0].as_str().unwrap_or_default();
            if got.out.trim() != want {
                out.push(format!("{name}: guid {} is not {want}", got.out.trim()));
            }
        }
        if !d["volume"].is_null() {
            let raw = self.rig.path().join("volume");
            let raw = raw.to_str().unwrap();
            self.rig.zfs(&["read", name, raw]);
            out.extend(manifest::compare_volume(Path::new(raw), &d["volume"]));
            return out;
        }
        let Some(entries) = self.entries(d).filter(|_| d["key"].is_null()) else {
            return out;
        };
        let (fs, snap) = name
            .split_once('@')
            .map_or((name, None), |(f, s)| (f, Some(s)));
        if self.rig.get("mounted", fs) != "yes" {
            let mounted = self.rig.try_run("zfs", &["mount", fs]);
            if !mounted.status.success() {
                out.push(format!("{name}: {}", mounted.err.trim()));
                return out;
            }
        }
        let place = self.place(fs);
        let root = match snap {
            Some(s) => place.join(".zfs/snapshot").join(s),
            None => place,
        };
        let seen = manifest::compare(&root, entries, &Look::default());
        let left_out = LEFT_OUT.iter().any(|(c, _)| *c == case);
        if !left_out {
            out.extend(seen.differences.into_iter().map(|d| format!("{name}: {d}")));
        }
        out
    }

    fn place(&self, fs: &str) -> PathBuf {
        let all = self.rig.zfs(&["mount"]);
        let line = all
            .lines()
            .find(|l| l.split_whitespace().next() == Some(fs));
        let place = line.and_then(|l| l.split_once(char::is_whitespace));
        PathBuf::from(place.map_or("", |(_, p)| p.trim()))
    }

    /// Runs one case; what went wrong, in words.
    fn case(&self, c: &Value) -> Vec<String> {
        let case = text(c, "case");
        let mut wrong = Vec::new();
        let apply = c["apply"].as_array().unwrap();
        for (n, a) in apply.iter().enumerate() {
            let into = text(a, "into");
            if !a["before"].is_null() {
                let own = format!("{}/{}/", self.rig.mnt().display(), self.pool);
                let script = text(a, "before").replace(&format!("/{}/", self.pool), &own);
                self.rig.sh(&script);
            }
            let flags: Vec<&str> = a["flags"]
                .as_array()
                .unwrap()
                .iter()
                .map(|f| f.as_str().unwrap())
                .collect();
            let said = self.receive(&flags, into, &self.dir.join(text(a, "file")));
            let status = text(a, "status");
            let nothing = c["result"].is_null() && case != "part-kept" && !flags.contains(&"-n");
            let fails = !status.is_empty() || nothing && n + 1 == apply.len();
            if fails == said.ok {
                wrong.push(format!(
                    "{}: should fail: {fails}; {}",
                    text(a, "file"),
                    said.err
                ));
            }
            if fails && !a["says"].is_null() && text(a, "says") != said.err {
                wrong.push(format!(
                    "says '{}' instead of '{}'",
                    said.err,
                    text(a, "says")
                ));
            }
            if !a["resume_token"].is_null() {
                let token = self.rig.get("receive_resume_token", into);
                if token != text(a, "resume_token") {
                    wrong.push(format!(
                        "token {token} instead of {}",
                        text(a, "resume_token")
                    ));
                }
            }
        }
        if case == "part-kept" {
            self.rig.zfs(&["receive", "-A", text(&apply[0], "into")]);
        }
        let Some(result) = c["result"].as_str() else {
            let last = text(&apply[apply.len() - 1], "into");
            if apply.len() == 1 && self.rig.try_run("zfs", &["list", last]).status.success() {
                wrong.push(format!("{last} is left"));
            }
            return wrong;
        };
        self.load_keys(result);
        let below = |name: &str| {
            name.strip_prefix(result)
                .is_some_and(|r| r.is_empty() || r.starts_with(['/', '@']))
        };
        for d in self.datasets() {
            if below(text(d, "name")) {
                wrong.extend(self.compare(case, d));
            }
        }
        let known: Vec<&str> = self.datasets().iter().map(|d| text(d, "name")).collect();
        for name in self
            .rig
            .zfs(&["list", "-H", "-o", "name", "-t", "all", "-r", result])
            .lines()
        {
            if !known.contains(&name) {
                wrong.push(format!("{name} should not be there"));
            }
        }
        wrong
    }

    fn load_keys(&self, result: &str) {
        for k in self.manifest["keys"].as_array().into_iter().flatten() {
            let ds = text(k, "dataset");
            let of = ds.strip_prefix(result);
            if !of.is_some_and(|r| r.is_empty() || r.starts_with('/')) {
                continue;
            }
            let path = self.rig.path().join("home/key");
            let key = match k["key_b64"].as_str() {
                Some(b) => base64(b),
                None => text(k, "key").as_bytes().to_vec(),
            };
            fs::write(&path, key).unwrap();
            let location = format!("file://{}", path.display());
            // Those that inherit it have it already.
            let _ = self.rig.try_run("zfs", &["load-key", "-L", &location, ds]);
        }
    }
}

/// Runs all cases of a fixture.
fn judge(fixture: &str, options: &[&str], skip: &[&str]) {
    let Some(mut rig) = Rig::as_root(&format!("receive-{fixture}")) else {
        return;
    };
    let Some((dir, _)) = or_skip(streams(fixture)) else {
        return;
    };
    let Some(path) = or_skip(file(fixture, "manifest.json")) else {
        return;
    };
    let manifest: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let pools = manifest["pools"].as_array().unwrap();
    let pool = text(&pools[pools.len() - 1], "pool").to_string();
    let disk = rig.image("disk", 2 << 30);
    rig.start();
    let at = format!("{}/{pool}", rig.mnt().display());
    let args = [&["create", "-m", &at][..], options, &[&pool, &disk]].concat();
    rig.zpool(&args);
    if fixture == "streams" {
        let key = rig.path().join("home/parent");
        fs::write(&key, [7; 32]).unwrap();
        let location = format!("keylocation=file://{}", key.display());
        let below = format!("{pool}/encparent");
        let on = ["create", "-o", "encryption=on", "-o", "keyformat=raw", "-o"];
        rig.zfs(&[&on[..], &[&location, &below]].concat());
    }
    let sub = dir.path().join("streams");
    let judge = Judge {
        dir: if sub.is_dir() {
            sub
        } else {
            dir.path().to_path_buf()
        },
        rig,
        pool,
        manifest,
    };
    let mut failed = Vec::new();
    for c in judge.manifest["cases"].as_array().unwrap() {
        if skip.contains(&text(c, "case")) {
            continue;
        }
        for w in judge.case(c) {
            failed.push(format!("{}: {w}", text(c, "case")));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    let (mut rig, pool) = (judge.rig, judge.pool);
    rig.zpool(&["export", &pool]);
    rig.zdb_check(&pool);
    rig.stop();
}

#[test]
fn streams_of_openzfs_give_what_openzfs_received() {
    judge("streams", &[], &[]);
}

#[test]
fn streams_of_trees_that_change_and_break_off_give_what_openzfs_received() {
    judge("streams-more", &[], &[]);
}

#[test]
fn streams_of_pools_without_features_give_what_openzfs_received() {
    judge("streams-old", &["-d"], &[]);
}
