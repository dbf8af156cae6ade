//! Streams that OpenZFS made, received through the real command: every case of the fixtures gives what
//! OpenZFS received, and what it refused is refused and leaves nothing.

use serde_json::Value;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use stream::ResumeToken;
use system_tests::manifest::{self, base64, Look};
use system_tests::{until, Rig};
use testkit::fixture::{file, streams};
use testkit::or_skip;

/// Differences that are no mistakes, with the reason: case, and the end of the sentence.
const LEFT_OUT: [(&str, &str); 1] = [
    // OpenZFS loses spill blocks that are in their pointers. What is here is more, as it is in the source.
    ("resumed", ", not none"),
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

/// What differs between two resume tokens. Their text depends on the version of zlib, so that their lists are compared.
fn compare_tokens(ours: &str, theirs: &str) -> Option<String> {
    let (a, b) = (ResumeToken::decode(ours), ResumeToken::decode(theirs));
    match (&a, &b) {
        (Ok(a), Ok(b)) if a == b => None,
        _ => Some(format!("token {a:?}, not {b:?}")),
    }
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
        if name.contains('@') {
            let want = d["properties"]["guid"][0].as_str().unwrap_or_default();
            if got.out.trim() != want {
                out.push(format!("{name}: guid {} is not {want}", got.out.trim()));
            }
        }
        let by = d["properties"]["redact_snaps"][0].as_str();
        let ours = self.rig.get("redact_snaps", name);
        if ours != by.unwrap_or("-") {
            out.push(format!("{name}: redacted by {ours}, not {by:?}"));
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
            let mut mounted = self.rig.try_run("zfs", &["mount", fs]);
            let why =
                "Dataset is not complete, was created by receiving a redacted zfs send stream.";
            if mounted.err == format!("cannot mount '{fs}': {why}\n")
                && case.starts_with("redacted")
            {
                self.rig.zfs(&["mount", "-a"]);
                assert_eq!(self.rig.get("mounted", fs), "no");
                mounted = self.rig.try_run("zfs", &["mount", "-f", fs]);
            } else if case == "redacted" {
                out.push(format!("{name}: it is mounted without force"));
            }
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
        let differs = seen.differences.into_iter().filter(|d| {
            let mut known = LEFT_OUT.iter();
            !known.any(|(c, end)| *c == case && d.ends_with(end))
        });
        out.extend(differs.map(|d| format!("{name}: {d}")));
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
            let up_to_token = |t: &str| {
                t.split("zfs send -t")
                    .next()
                    .unwrap_or_default()
                    .to_string()
            };
            let (want, have) = (up_to_token(text(a, "says")), up_to_token(&said.err));
            if fails && !a["says"].is_null() && want != have {
                wrong.push(format!(
                    "says '{}' instead of '{}'",
                    said.err,
                    text(a, "says")
                ));
            }
            if !a["resume_token"].is_null() {
                let token = self.rig.get("receive_resume_token", into);
                wrong.extend(compare_tokens(&token, text(a, "resume_token")));
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

/// A rig with an empty pool, and the streams of a fixture.
fn own(name: &str, fixture: &str) -> Option<(Rig, testkit::TempDir, PathBuf)> {
    let mut rig = Rig::new(name)?;
    let (dir, _) = or_skip(streams(fixture))?;
    let disk = rig.image("disk", 512 << 20);
    rig.start();
    let at = format!("{}/tank", rig.mnt().display());
    rig.zpool(&["create", "-m", &at, "tank", &disk]);
    let sub = dir.path().join("streams");
    let place = match sub.is_dir() {
        true => sub,
        false => dir.path().to_path_buf(),
    };
    Some((rig, dir, place))
}

fn receive(rig: &Rig, args: &[&str], stream: &Path) -> std::process::Output {
    rig.command("zfs", &[&["receive"][..], args].concat())
        .stdin(File::open(stream).unwrap())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output()
        .unwrap()
}

#[test]
fn a_flipped_bit_anywhere_is_refused_and_leaves_nothing() {
    let Some((rig, _dir, place)) = own("receive-bits", "streams-more") else {
        return;
    };
    let good = fs::read(place.join("small.zstream")).unwrap();
    let bad = rig.path().join("home/bad");
    for n in 0..40u64 {
        let mut b = good.clone();
        let at = (n * 7919 * 31 % (b.len() as u64 * 8)) as usize;
        b[at / 8] ^= 1 << (at % 8);
        fs::write(&bad, &b).unwrap();
        let out = receive(&rig, &["tank/x"], &bad);
        let err = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "bit {at}: {err}");
        assert!(err.starts_with("cannot receive"), "bit {at}: {err}");
        assert_eq!(rig.zfs(&["list", "-H", "-o", "name"]), "tank\n", "bit {at}");
    }
    assert!(receive(&rig, &["tank/x"], &place.join("small.zstream"))
        .status
        .success());
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

/// What came before a crash is there again if it is to be kept, and gone if not.
#[test]
fn a_receive_that_ends_with_the_daemon_is_kept_or_cleared_away() {
    let Some((mut rig, _dir, place)) = own("receive-killed", "streams-more") else {
        return;
    };
    assert!(receive(&rig, &["tank/base"], &place.join("f1.zstream"))
        .status
        .success());
    assert!(receive(&rig, &["tank/lost"], &place.join("f1.zstream"))
        .status
        .success());
    // Two receives wait for the rest of their streams.
    let part = |name: &str| {
        let b = fs::read(place.join("i12.zstream")).unwrap();
        let path = rig.path().join("home").join(name);
        fs::write(&path, &b[..b.len() / 2]).unwrap();
        path
    };
    let (a, b) = (part("a"), part("b"));
    let wait = |args: &str, path: &Path| {
        let line = format!("(cat {}; sleep 300) | zfs receive {args}", path.display());
        let mut c = rig.command("sh", &["-c", &line]);
        c.stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut waiting = [wait("-s tank/base", &a), wait("tank/lost", &b)];
    until("the state of a receive is on disk", || {
        let token = rig.get("receive_resume_token", "tank/base");
        rig.zpool(&["sync", "tank"]);
        token.len() > 10
    });
    std::thread::sleep(std::time::Duration::from_secs(2));
    rig.zpool(&["sync", "tank"]);
    rig.kill();
    for child in &mut waiting {
        let _ = child.kill();
        let _ = child.wait();
    }
    rig.start();
    assert!(rig.get("receive_resume_token", "tank/base").len() > 10);
    assert_eq!(rig.get("receive_resume_token", "tank/lost"), "-");
    // The one that was lost begins again, the other one is told how to go on.
    let again = receive(&rig, &["tank/lost"], &place.join("i12.zstream"));
    assert!(
        again.status.success(),
        "{}",
        String::from_utf8_lossy(&again.stderr)
    );
    let refused = receive(&rig, &["tank/base"], &place.join("i12.zstream"));
    assert_eq!(refused.status.code(), Some(1));
    rig.zfs(&["receive", "-A", "tank/base"]);
    assert!(receive(&rig, &["tank/base"], &place.join("i12.zstream"))
        .status
        .success());
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

/// A sender that sends nothing does not keep a pool from being exported by force. What came with `-s`
/// can be gone on with after the next import; what came without is gone.
#[test]
fn a_forced_export_ends_receives_whose_senders_are_idle() {
    let Some((rig, _dir, place)) = own("receive-idle", "streams-more") else {
        return;
    };
    let base = place.join("f1.zstream");
    for target in ["tank/kept", "tank/lost"] {
        assert!(receive(&rig, &[target], &base).status.success());
    }
    let whole = fs::read(place.join("i12.zstream")).unwrap();
    let mut waiting = [&["tank/lost"][..], &["-s", "tank/kept"]].map(|args| {
        let mut c = rig.command("zfs", &[&["receive"], args].concat());
        c.stdin(Stdio::piped()).stdout(Stdio::null());
        let mut c = c.stderr(Stdio::piped()).spawn().unwrap();
        // The end of the pipe stays open: the sender is there, and idle.
        let mut sender = c.stdin.take().unwrap();
        sender.write_all(&whole[..whole.len() / 2]).unwrap();
        (c, sender)
    });
    until("the later receive is under way", || {
        rig.zpool(&["sync", "tank"]);
        rig.get("receive_resume_token", "tank/kept").len() > 10
    });
    let busy = rig.command("zpool", &["export", "tank"]).output().unwrap();
    assert_eq!(busy.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&busy.stderr).contains("pool is busy"));
    rig.zpool(&["export", "-f", "tank"]);
    for (child, sender) in &mut waiting {
        let status = system_tests::wait(child, std::time::Duration::from_secs(60));
        assert_eq!(status.and_then(|s| s.code()), Some(1));
        // Only now does the sender go.
        let _ = sender.flush();
    }
    rig.zdb_check("tank");
    let at = rig.disks().display().to_string();
    rig.zpool(&["import", "-d", &at, "tank"]);
    assert!(rig.get("receive_resume_token", "tank/kept").len() > 10);
    assert_eq!(rig.get("receive_resume_token", "tank/lost"), "-");
    rig.zfs(&["receive", "-A", "tank/kept"]);
    for target in ["tank/kept", "tank/lost"] {
        let again = receive(&rig, &[target], &place.join("i12.zstream"));
        let err = String::from_utf8_lossy(&again.stderr);
        assert!(again.status.success(), "{target}: {err}");
    }
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

/// Files that are open while an increment comes go on, and everything new is seen at once.
#[test]
fn a_mounted_target_stays_mounted_and_shows_the_new_state_at_once() {
    let Some((rig, _dir, place)) = own("receive-mounted", "streams-more") else {
        return;
    };
    // Reading changes nothing, so that the target is what its snapshot is.
    let first = ["-o", "atime=off", "tank/x"];
    assert!(receive(&rig, &first, &place.join("f1.zstream"))
        .status
        .success());
    let at = PathBuf::from(rig.get("mountpoint", "tank/x"));
    let list = |dir: &Path| {
        let mut names: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        names.sort();
        names
    };
    let before = list(&at);
    let open = File::open(&at).unwrap();
    let out = receive(&rig, &["tank/x"], &place.join("i13.zstream"));
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    drop(open);
    let after = list(&at);
    assert_ne!(before, after, "the increment changes the root directory");
    let snap = list(&at.join(".zfs/snapshot/3"));
    assert_eq!(after, snap);
    for name in &after {
        let (a, b) = (at.join(name), at.join(".zfs/snapshot/3").join(name));
        if fs::symlink_metadata(&a).unwrap().is_file() {
            assert!(
                fs::read(&a).unwrap() == fs::read(&b).unwrap(),
                "{}",
                a.display()
            );
        }
    }
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

/// A tree whose top is a clone of a snapshot of its own child cannot be received in any order with the origin
/// first. It is sent whole, and increments of the tree go on from there.
#[test]
fn a_tree_whose_top_is_a_clone_of_its_own_child_is_replicated() {
    let Some(mut rig) = Rig::new("receive-circle") else {
        return;
    };
    let disk = rig.image("disk", 512 << 20);
    rig.start();
    let at = rig.mnt().join("tank");
    rig.zpool(&["create", "-m", at.to_str().unwrap(), "tank", &disk]);
    rig.zfs(&["create", "tank/a"]);
    fs::write(at.join("a/old"), vec![7; 300_000]).unwrap();
    rig.zfs(&["snapshot", "tank/a@1"]);
    rig.zfs(&["clone", "tank/a@1", "tank/a/b"]);
    rig.zfs(&["promote", "tank/a/b"]);
    assert_eq!(rig.get("origin", "tank/a"), "tank/a/b@1");
    fs::write(at.join("a/own"), "of the top").unwrap();
    fs::write(at.join("a/b/own"), "of the child").unwrap();
    rig.zfs(&["snapshot", "-r", "tank/a@2"]);
    let pass = |send: &[&str]| {
        let path = rig.path().join("home/package");
        let out = rig.command("zfs", &[&["send"], send].concat());
        let mut out = { out }
            .stdout(File::create(&path).unwrap())
            .spawn()
            .unwrap();
        assert!(out.wait().unwrap().success());
        let got = receive(&rig, &["-u", "tank/c"], &path);
        let err = String::from_utf8_lossy(&got.stderr).into_owned();
        assert!(got.status.success(), "{err}");
    };
    pass(&["-R", "tank/a@2"]);
    fs::write(at.join("a/own"), "of the top, later").unwrap();
    fs::remove_file(at.join("a/b/old")).unwrap();
    rig.zfs(&["snapshot", "-r", "tank/a@3"]);
    pass(&["-R", "-I", "@2", "tank/a@3"]);
    rig.zfs(&["mount", "-a"]);
    let read = |fs: &str, name: &str| fs::read_to_string(at.join(fs).join(name)).unwrap();
    assert_eq!(read("c", "own"), "of the top, later");
    assert_eq!(fs::read(at.join("c/old")).unwrap(), vec![7; 300_000]);
    assert_eq!(read("c/b", "own"), "of the child");
    assert!(!at.join("c/b/old").exists());
    for snap in ["@2", "@3", "/b@1", "/b@2", "/b@3"] {
        let guid = |fs: &str| rig.get("guid", &format!("tank/{fs}{snap}"));
        assert_eq!(guid("a"), guid("c"), "{snap}");
    }
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

/// A file whose blocks were split by a stream without `-L` keeps them, and all that they hold, when later increments have its blocks
/// whole; a folder that grows meanwhile has all its names.
#[test]
fn increments_with_large_blocks_go_on_from_split_ones() {
    let Some(mut rig) = Rig::new("receive-split") else {
        return;
    };
    let disk = rig.image("disk", 512 << 20);
    rig.start();
    let at = rig.mnt().join("tank");
    rig.zpool(&["create", "-m", at.to_str().unwrap(), "tank", &disk]);
    rig.zfs(&["create", "-o", "recordsize=1M", "tank/a"]);
    let mut dice = system_tests::Dice::new(8);
    let mut content = vec![0; 5 << 20];
    (0..content.len()).for_each(|i| content[i] = dice.draw() as u8);
    let file = at.join("a/file");
    fs::write(&file, &content).unwrap();
    fs::write(at.join("a/grows"), &content[..100_000]).unwrap();
    let step = |n: u64, options: &[&str]| {
        let (to, from) = (format!("tank/a@{n}"), format!("@{}", n - 1));
        rig.zfs(&["snapshot", &to]);
        let mut args = [&["send"], options].concat();
        if n > 1 {
            args.extend(["-i", &from]);
        }
        args.push(&to);
        let path = rig.path().join("home/stream");
        let mut c = rig.command("zfs", &args);
        let sent = c.stdout(File::create(&path).unwrap()).status().unwrap();
        assert!(sent.success(), "{args:?}");
        let out = receive(&rig, &["-o", "atime=off", "tank/b"], &path);
        let err = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{args:?}: {err}");
        let same = |name: &str| {
            let of = |fs: &str| fs::read(at.join(fs).join(name)).unwrap();
            assert!(of("a") == of("b"), "{name} after {n}");
        };
        ["file", "grows"].iter().for_each(|n| same(n));
        let names = |fs: &str| {
            let list = fs::read_dir(at.join(fs)).unwrap();
            let mut names: Vec<_> = list.map(|e| e.unwrap().file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names("a"), names("b"), "after {n}");
    };
    let put = |offset: usize, bytes: &[u8]| {
        use std::os::unix::fs::FileExt;
        let f = File::options().write(true).open(&file).unwrap();
        f.write_all_at(bytes, offset as u64).unwrap();
        f.sync_all().unwrap();
    };
    step(1, &[]);
    for n in 2..=5u64 {
        put(n as usize * 900_000, b"changed");
        for i in 0..200 {
            fs::write(at.join(format!("a/name-{n}-{i:0>40}")), b"").unwrap();
        }
        let mut grows = File::options()
            .append(true)
            .open(at.join("a/grows"))
            .unwrap();
        grows.write_all(&content[..90_000 * n as usize]).unwrap();
        drop(grows);
        step(n, [&["-L"], &["-Lec"]][n as usize % 2]);
    }
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

/// What a raw increment says of the end of an object takes what was behind it along: nothing else finds it, and the object would not be
/// what was authenticated.
#[test]
fn raw_increments_follow_files_that_shrink_and_grow() {
    let Some(mut rig) = Rig::new("receive-raw-ends") else {
        return;
    };
    let disk = rig.image("disk", 512 << 20);
    rig.start();
    let at = rig.mnt().join("tank");
    rig.zpool(&["create", "-m", at.to_str().unwrap(), "tank", &disk]);
    let key = rig.path().join("home/key");
    fs::write(&key, [3; 32]).unwrap();
    let location = format!("keylocation=file://{}", key.display());
    let sealed = [
        "-o",
        "encryption=on",
        "-o",
        "keyformat=raw",
        "-o",
        &location,
    ];
    rig.zfs(&[&["create"], &sealed[..], &["tank/a"]].concat());
    let mut dice = system_tests::Dice::new(2);
    let lengths = [700_000, 100_000, 0, 3_000_000, 131_073, 131_072, 1];
    for (n, len) in lengths.iter().enumerate() {
        for name in ["cut", "anew"] {
            let path = at.join("a").join(name);
            let mut f = File::options()
                .create(true)
                .truncate(name == "anew")
                .write(true)
                .open(&path)
                .unwrap();
            let had = f.metadata().unwrap().len();
            f.set_len(*len).unwrap();
            if had < *len {
                f.write_all(&dice.bytes(*len as usize)).unwrap();
            }
        }
        let (to, from) = (format!("tank/a@{n}"), format!("@{}", n.max(1) - 1));
        rig.zfs(&["snapshot", &to]);
        let args = match n {
            0 => vec!["send", "-w", &to],
            _ => vec!["send", "-w", "-i", &from, &to],
        };
        let path = rig.path().join("home/stream");
        let mut c = rig.command("zfs", &args);
        let sent = c.stdout(File::create(&path).unwrap()).status().unwrap();
        assert!(sent.success(), "{args:?}");
        let out = receive(&rig, &["-u", "tank/b"], &path);
        let err = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{args:?}: {err}");
    }
    let key = format!("file://{}", key.display());
    rig.zfs(&["load-key", "-L", &key, "tank/b"]);
    rig.zfs(&["mount", "tank/b"]);
    for n in 0..lengths.len() {
        for name in ["cut", "anew"] {
            let of = |fs: &str| {
                let snap = at.join(fs).join(".zfs/snapshot").join(n.to_string());
                fs::read(snap.join(name)).unwrap()
            };
            assert!(of("a") == of("b"), "{name} of @{n}");
        }
    }
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

/// The records of a stream, and of what it consists.
fn records(stream: &[u8]) -> Vec<stream::Item> {
    let mut reader = stream::Reader::new(stream);
    std::iter::from_fn(|| reader.next().unwrap()).collect()
}

/// A raw stream as a big-endian machine would have sent it: its blocks are in that machine's order. They are stored so, with checksums
/// that hold, and are sent again as they came.
#[test]
fn raw_blocks_of_a_big_endian_machine_stay_as_they_are() {
    use disk::stream::{record_flag::RAW_BYTESWAP, Record};
    let Some(mut rig) = Rig::new("receive-raw-order") else {
        return;
    };
    let disk = rig.image("disk", 512 << 20);
    rig.start();
    let at = rig.mnt().join("tank");
    rig.zpool(&["create", "-m", at.to_str().unwrap(), "tank", &disk]);
    let key = rig.path().join("home/key");
    fs::write(&key, [3; 32]).unwrap();
    let location = format!("keylocation=file://{}", key.display());
    let sealed = [
        "-o",
        "encryption=on",
        "-o",
        "keyformat=raw",
        "-o",
        &location,
    ];
    rig.zfs(&[&["create"], &sealed[..], &["tank/a"]].concat());
    let mut dice = system_tests::Dice::new(2);
    let send = |args: &[&str]| {
        let out = rig
            .command("zfs", &[&["send", "-w"], args].concat())
            .output()
            .unwrap();
        assert!(out.status.success(), "{args:?}");
        out.stdout
    };
    let mut streams = Vec::new();
    for n in 1..=3 {
        for i in 0..70 {
            let len = dice.below(200_000) as usize;
            fs::write(at.join(format!("a/f{}", i * n)), dice.bytes(len)).unwrap();
        }
        rig.zfs(&["snapshot", &format!("tank/a@{n}")]);
        let (to, from) = (format!("tank/a@{n}"), format!("@{}", n - 1));
        let whole = match n {
            1 => send(&[&to]),
            _ => send(&["-i", &from, &to]),
        };
        let mut writer = stream::Writer::new(Vec::new());
        for item in records(&whole) {
            match item.record {
                Record::Begin(b) => writer.write(&Record::Begin(b), &item.payload).unwrap(),
                Record::End(e) => writer.end(e.to_guid).unwrap(),
                Record::ObjectRange(mut r) => {
                    r.flags ^= RAW_BYTESWAP;
                    writer.write(&Record::ObjectRange(r), &[]).unwrap();
                }
                Record::Object(mut r) => {
                    r.flags ^= RAW_BYTESWAP;
                    writer.write(&Record::Object(r), &item.payload).unwrap();
                }
                // Of what is not sealed the content would have to be swapped.
                Record::Write(mut r) if r.obj_type == 19 => {
                    r.flags ^= RAW_BYTESWAP;
                    writer.write(&Record::Write(r), &item.payload).unwrap();
                }
                r => writer.write(&r, &item.payload).unwrap(),
            }
        }
        writer.flush().unwrap();
        streams.push(writer.into_inner());
    }
    for (n, sent) in streams.iter().enumerate() {
        let path = rig.path().join("home/stream");
        fs::write(&path, sent).unwrap();
        let out = receive(&rig, &["-u", "tank/b"], &path);
        let err = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{n}: {err}");
    }
    for (n, sent) in streams.iter().enumerate() {
        let to = format!("tank/b@{}", n + 1);
        let from = format!("@{n}");
        let again = match n {
            0 => send(&[&to]),
            _ => send(&["-i", &from, &to]),
        };
        let (sent, again) = (records(sent), records(&again));
        assert_eq!(sent.len(), again.len(), "{to}");
        let mut ranges = 0;
        for (a, b) in sent.iter().zip(&again) {
            match (&a.record, &b.record) {
                (Record::Begin(_), Record::Begin(_)) | (Record::End(_), Record::End(_)) => {}
                // Their keys are checksums of this pool.
                (Record::Write(x), Record::Write(y)) => {
                    let of = |w: &disk::stream::Write| {
                        (
                            w.object,
                            w.offset,
                            w.salt,
                            w.iv,
                            w.mac,
                            w.flags,
                            w.compression,
                        )
                    };
                    assert!(of(x) == of(y) && a.payload == b.payload, "{x:?} {y:?}");
                }
                (x, y) => {
                    ranges += u64::from(matches!(x, Record::ObjectRange(_)));
                    assert!(x == y && a.payload == b.payload, "{x:?} {y:?}");
                }
            }
        }
        assert!(ranges > 2, "{ranges}");
    }
    rig.zpool(&["scrub", "-w", "tank"]);
    let status = rig.zpool(&["status", "tank"]);
    assert!(status.contains("No known data errors"), "{status}");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}
