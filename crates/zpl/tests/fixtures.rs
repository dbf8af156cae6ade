//! Pools made by OpenZFS, read entry by entry and compared with what OpenZFS showed of them.

use base::Kind;
use codec::crypt::WrappingKey;
use pool::{OpenOptions, Pool};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;
use testkit::or_skip;
use zpl::{AclType, Cred, Mount, NoLog, Props, Space, SpaceInfo, XattrMode, Zfs, Znode};

#[path = "fixtures/lives.rs"]
mod lives;

struct Figures;

impl SpaceInfo for Figures {
    fn space(&self) -> Space {
        Space::default()
    }
    fn read_only(&self) -> bool {
        true
    }
}

fn hex(b: &[u8]) -> String {
    b.iter().fold(String::new(), |mut s, b| {
        let _ = write!(s, "{b:02x}");
        s
    })
}

fn sha(b: &[u8]) -> String {
    hex(&Sha256::digest(b))
}

fn base64(s: &str) -> Vec<u8> {
    let value = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let (mut acc, mut bits, mut out) = (0u32, 0, Vec::new());
    for c in s.bytes().filter(|c| *c != b'=') {
        acc = acc << 6 | u32::from(value(c));
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            out.push((acc >> bits) as u8);
        }
    }
    out
}

/// A field that may be given as text or in base64.
fn bytes(e: &Value, key: &str) -> Option<Vec<u8>> {
    match e[key].as_str() {
        Some(s) => Some(s.as_bytes().to_vec()),
        None => e[format!("{key}_b64")].as_str().map(base64),
    }
}

fn content(zfs: &Zfs, z: &Znode, sparse: bool) -> base::Result<String> {
    let size = z.size();
    let mut h = Sha256::new();
    let mut at = 0;
    let mut buf = vec![0; 1 << 20];
    while at < size {
        if sparse {
            match zfs.seek(z, at, true) {
                Ok(data) => at = data / 4096 * 4096,
                Err(e) if e.kind == Kind::NoDevice => break,
                Err(e) => return Err(e),
            }
        }
        let n = zfs.read(z, at, &mut buf)?;
        if !sparse {
            h.update(&buf[..n]);
            at += n as u64;
            continue;
        }
        let mut first = true;
        for (i, block) in buf[..n].chunks(4096).enumerate() {
            first = false;
            if block.iter().any(|b| *b != 0) {
                let mut b = block.to_vec();
                b.resize(4096, 0);
                h.update((at + i as u64 * 4096).to_le_bytes());
                h.update(&b);
            }
        }
        at += (n as u64).next_multiple_of(4096);
        assert!(!first);
    }
    Ok(hex(&h.finalize()))
}

fn type_name(mode: u32) -> &'static str {
    match mode >> 12 {
        1 => "fifo",
        2 => "char",
        4 => "dir",
        6 => "block",
        8 => "file",
        10 => "symlink",
        12 => "socket",
        _ => "?",
    }
}

/// Differences of one entry.
fn compare(zfs: &Zfs, z: &Znode, e: &Value, out: &mut Vec<String>) {
    let a = zfs.getattr(z);
    let path = String::from_utf8_lossy(&bytes(e, "path").unwrap_or_default()).into_owned();
    let mut differ = |what: &str, got: String, want: String| {
        if got != want {
            out.push(format!("{path}: {what} {got}, not {want}"));
        }
    };
    let text = |v: &Value| v.as_str().unwrap_or_default().to_string();
    let kind = type_name(a.mode);
    differ("type", kind.into(), text(&e["type"]));
    differ("mode", format!("{:04o}", a.mode & 0o7777), text(&e["mode"]));
    for (what, got) in [("uid", u64::from(a.uid)), ("gid", u64::from(a.gid))] {
        // Not told of what belongs to root.
        let told = e[what].as_u64().unwrap_or(0);
        differ(what, got.to_string(), told.to_string());
    }
    if !e["mtime_ns"].is_null() {
        let ns = i128::from(a.mtime.sec) * 1_000_000_000 + i128::from(a.mtime.nsec);
        differ("mtime", ns.to_string(), e["mtime_ns"].to_string());
    }
    if kind != "dir" {
        differ(
            "nlink",
            a.nlink.to_string(),
            e["nlink"].as_u64().unwrap_or(1).to_string(),
        );
    }
    if !e["size"].is_null() {
        differ("size", a.size.to_string(), e["size"].to_string());
    }
    if !e["rdev"].is_null() {
        let (major, minor) = (
            (a.rdev >> 8) & 0xfff,
            a.rdev & 0xff | (a.rdev >> 12) & 0xfff00,
        );
        differ("rdev", format!("{major}:{minor}"), text(&e["rdev"]));
    }
    differ(
        "project",
        a.projid.to_string(),
        e["projid"].as_u64().unwrap_or(0).to_string(),
    );
    let mut flags: Vec<&str> = e["flags"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    flags.sort_unstable();
    let got: Vec<&str> = [(0x20, "append"), (0x10, "immutable"), (0x40, "nodump")]
        .iter()
        .filter(|f| a.fs_flags & f.0 != 0)
        .map(|f| f.1)
        .collect();
    differ("flags", got.join(","), flags.join(","));
    if kind == "symlink" {
        match zfs.readlink(z) {
            Ok(t) => differ(
                "target",
                String::from_utf8_lossy(&t).into_owned(),
                String::from_utf8_lossy(&bytes(e, "target").unwrap_or_default()).into_owned(),
            ),
            Err(x) => differ("target", x.to_string(), String::new()),
        }
    }
    // Of an empty file no hash is told.
    let told = a.size > 0 || !e["sha256"].is_null();
    if kind == "file" && e["error"].is_null() && told {
        let sparse = e["sha256"].is_null();
        let want = text(if sparse {
            &e["sha256_nonzero"]
        } else {
            &e["sha256"]
        });
        match content(zfs, z, sparse) {
            Ok(got) => differ("content", got, want),
            Err(x) => differ("content", format!("error {x:?}"), want),
        }
    }
    let root = Cred::root();
    let mut names = zfs.listxattr(z, &root).unwrap_or_else(|x| {
        differ("xattrs", x.to_string(), String::new());
        Vec::new()
    });
    names.sort();
    let empty = serde_json::Map::new();
    let want = e["xattrs"].as_object().unwrap_or(&empty);
    let got: Vec<String> = names
        .iter()
        .map(|n| String::from_utf8_lossy(n).into_owned())
        .collect();
    let mut wanted: Vec<String> = want.keys().cloned().collect();
    wanted.sort();
    differ("xattrs", got.join(" "), wanted.join(" "));
    for (n, v) in want {
        match zfs.getxattr(z, n.as_bytes(), &root) {
            Ok(b) => differ(n, sha(&b), text(&v["sha256"])),
            Err(x) => differ(n, x.to_string(), String::new()),
        }
    }
}

/// Every path of the tree.
fn walk(zfs: &Zfs) -> base::Result<HashMap<Vec<u8>, Arc<Znode>>> {
    let mut out = HashMap::new();
    let mut todo = vec![(Vec::new(), zfs.root()?)];
    while let Some((path, z)) = todo.pop() {
        if z.is_dir() {
            let mut names = Vec::new();
            zfs.readdir(&z, 2, |e| {
                names.push((e.name.to_vec(), e.object, e.dtype));
                Ok(true)
            })?;
            for (name, object, dtype) in names {
                let child = zfs.lookup(&z, &name, &Cred::root())?;
                assert_eq!(child.object, object);
                if zfs.version >= 2 {
                    assert_eq!(u32::from(dtype), child.mode() >> 12);
                }
                let full = match path.is_empty() {
                    true => name,
                    false => [&path[..], b"/", &name[..]].concat(),
                };
                todo.push((full, child));
            }
        }
        out.insert(path, z);
    }
    Ok(out)
}

fn check_dataset(pool: &Arc<Pool>, d: &Value, entries: &Value) -> base::Result<Vec<String>> {
    let name = d["name"].as_str().unwrap_or_default();
    let ds = pool.dsl().dataset(name)?;
    let set = pool.open_dataset(&ds)?;
    let prop = |p: &str| d["properties"][p][0].as_str().unwrap_or_default();
    let props = Props {
        readonly: true,
        acltype: match prop("acltype") {
            "posix" => AclType::Posix,
            "nfsv4" => AclType::Nfsv4,
            _ => AclType::Off,
        },
        xattr: if prop("xattr") == "off" {
            XattrMode::Off
        } else {
            XattrMode::Sa
        },
        longname: prop("longname") == "on",
        direct: prop("direct") == "always",
        ..Props::default()
    };
    let zfs = Zfs::open(
        &set.os,
        Mount {
            clock: pool.env.clock.clone(),
            props,
            space: Arc::new(Figures),
            log: Arc::new(NoLog),
            pool_version: pool.version(),
            software_version: pool.software_version(),
        },
    )?;
    compare_all(&zfs, entries)
}

fn compare_all(zfs: &Zfs, entries: &Value) -> base::Result<Vec<String>> {
    let mut tree = walk(zfs)?;
    let mut out = Vec::new();
    for e in entries.as_array().into_iter().flatten() {
        let path = bytes(e, "path").unwrap_or_default();
        // The control directory is no part of the file system.
        if path.starts_with(b".zfs") {
            continue;
        }
        match tree.remove(&path) {
            Some(z) => compare(zfs, &z, e, &mut out),
            None => out.push(format!("{}: missing", String::from_utf8_lossy(&path))),
        }
    }
    for p in tree.keys() {
        out.push(format!("{}: not expected", String::from_utf8_lossy(p)));
    }
    Ok(out)
}

/// The key a manifest gives for an encryption root.
fn wrapping_key(dir: &dsl::Dir, k: &Value) -> base::Result<WrappingKey> {
    let key = bytes(k, "key").unwrap_or_default();
    match k["keyformat"].as_str() {
        Some("passphrase") => {
            let p = dir.key_object()?.map(|k| k.params).unwrap_or_default();
            WrappingKey::from_passphrase(&key, p.salt, p.iterations)
        }
        Some("hex") => {
            let text = String::from_utf8_lossy(&key);
            let raw: Vec<u8> = (0..text.len() / 2)
                .filter_map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok())
                .collect();
            WrappingKey::from_bytes(&raw)
        }
        _ => WrappingKey::from_bytes(&key),
    }
}

/// Loads all keys of a manifest, after trying wrong ones.
fn load_keys(pool: &Arc<Pool>, list: &Value) -> Vec<String> {
    let mut bad = Vec::new();
    for k in list.as_array().into_iter().flatten() {
        let name = k["dataset"].as_str().unwrap_or_default();
        // Some are for datasets that receiving a stream makes.
        if name.split('/').next() != Some(pool.name().as_str()) {
            continue;
        }
        let load = || -> base::Result<()> {
            let dir = pool.dsl().dir(name)?;
            let wrong = WrappingKey::from_bytes(&[0x5a; 32])?;
            match pool.dsl().load_key(&dir, wrong, false) {
                Err(e) if e.kind == Kind::Access => {}
                other => base::bail!(Invalid, "a wrong key: {other:?}"),
            }
            pool.dsl().load_key(&dir, wrapping_key(&dir, k)?, true)?;
            pool.dsl().load_key(&dir, wrapping_key(&dir, k)?, false)
        };
        if let Err(e) = load() {
            bad.push(format!("key of {name}: {e:?}"));
        }
    }
    bad
}

/// Without its key a file system gives nothing away, and says so.
fn check_locked(pool: &Arc<Pool>, d: &Value) -> Option<String> {
    let name = d["name"].as_str().unwrap_or_default();
    match check_dataset(pool, d, &Value::Null) {
        Err(e) if e.kind == Kind::Access => None,
        other => Some(format!("{name} without a key: {other:?}")),
    }
}

/// Fixtures whose files are not what a read-only look at the pool shows: their logs wait to be
/// replayed, or the images hold damage and several states.
const NOT_HERE: [&str; 7] = [
    "zil",
    "zil-crash",
    "zil-slog",
    "zil-raidz",
    "zil-encrypted",
    "damage-one-block",
    "streams-heal",
];

#[test]
fn every_entry_of_every_fixture() {
    let only = std::env::var("FIXTURE").ok();
    let mut bad = Vec::new();
    let (mut seen, mut encrypted, mut locked) = (0, 0, 0);
    for name in testkit::fixture::names() {
        if only.as_ref().is_some_and(|o| *o != name) || NOT_HERE.contains(&name.as_str()) {
            continue;
        }
        let text = std::fs::read(testkit::fixture::file(&name, "manifest.json").unwrap()).unwrap();
        let m: Value = serde_json::from_slice(&text).unwrap();
        if m["images"].is_null() || m["import"]["refuse"] == true {
            continue;
        }
        let Some(dir) = or_skip(testkit::fixture::unpack(&name)) else {
            return;
        };
        let env = env_linux::linux_env();
        let mut paths: Vec<String> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|f| f.unwrap().path().to_str().unwrap().to_string())
            .collect();
        paths.sort();
        let found = vdev::discover(&env, &paths);
        let Some(p) = m["pools"].as_array().and_then(|p| p.first()) else {
            continue;
        };
        let by_name = |f: &&vdev::PoolFound| f.name == p["pool"].as_str().unwrap_or_default();
        let Some(f) = found.pools.iter().find(by_name) else {
            bad.push(format!("{name}: pool not found"));
            continue;
        };
        let options = OpenOptions {
            readonly: true,
            missing_log: true,
            ..OpenOptions::default()
        };
        let pool = match Pool::open(env.clone(), &f.config, options) {
            Ok(p) => p,
            Err(e) if e.kind == Kind::Unsupported => {
                eprintln!("{name}: {e}");
                continue;
            }
            Err(e) => {
                bad.push(format!("{name}: {e:?}"));
                continue;
            }
        };
        bad.extend(load_keys(&pool, &m["keys"]));
        let list = p["datasets"].as_array().cloned().unwrap_or_default();
        for d in &list {
            let prop = |p: &str| {
                d["properties"][p][0]
                    .as_str()
                    .unwrap_or_default()
                    .to_string()
            };
            if !matches!(d["type"].as_str(), Some("filesystem" | "snapshot")) {
                continue;
            }
            if !d["key"].is_null() {
                locked += 1;
                bad.extend(check_locked(&pool, d));
                continue;
            }
            if !matches!(prop("encryption").as_str(), "" | "off" | "-") {
                encrypted += 1;
            }
            let source = match d["entries_as"].as_str() {
                Some(other) => list.iter().find(|x| x["name"] == other).unwrap_or(d),
                None => d,
            };
            if source["entries"].is_null() {
                continue;
            }
            seen += 1;
            match check_dataset(&pool, d, &source["entries"]) {
                Ok(diff) => bad
                    .extend(diff.iter().map(|x| {
                        format!("{name} {}: {x}", d["name"].as_str().unwrap_or_default())
                    })),
                Err(e) => bad.push(format!("{name} {}: {e:?}", d["name"])),
            }
        }
        drop(pool);
    }
    for b in bad.iter().take(60) {
        eprintln!("{b}");
    }
    eprintln!("{seen} datasets compared, {encrypted} of them encrypted; {locked} without a key");
    assert!(bad.is_empty(), "{} differences", bad.len());
}

/// Writing into pools that OpenZFS made: zdb must find nothing wrong afterwards.
#[test]
fn changing_real_pools() {
    let Some(oz) = or_skip(testkit::OpenZfs::get()) else {
        return;
    };
    let only = std::env::var("FIXTURE").ok();
    let all = [
        "unlinked",
        "legacy-v1",
        "legacy-v15",
        "xattrs",
        "nofeatures",
        "draid",
        "draid-spare",
        "damage-draid",
        "raidz-expanded",
        "removal",
        "encrypted-root",
    ];
    for name in all
        .into_iter()
        .filter(|n| only.as_ref().is_none_or(|o| o == n))
    {
        let Some(dir) = or_skip(testkit::fixture::unpack(name)) else {
            return;
        };
        let env = env_linux::linux_env();
        let paths: Vec<String> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|f| f.unwrap().path().to_str().unwrap().to_string())
            .collect();
        let text = std::fs::read(testkit::fixture::file(name, "manifest.json").unwrap()).unwrap();
        let m: Value = serde_json::from_slice(&text).unwrap();
        let found = vdev::discover(&env, &paths);
        let f = &found.pools[0];
        let open = |f: &vdev::PoolFound| {
            let pool = Pool::open(env.clone(), &f.config, OpenOptions::default())
                .unwrap_or_else(|e| panic!("{name}: {e:?}"));
            assert_eq!(load_keys(&pool, &m["keys"]), [""; 0], "{name}");
            pool
        };
        let pool = open(f);
        let mut sums = Vec::new();
        for d in m["pools"][0]["datasets"].as_array().unwrap() {
            if d["type"] != "filesystem" || d["properties"]["readonly"][0] == "on" {
                continue;
            }
            let zfs = writable(&pool, d["name"].as_str().unwrap());
            disturb(&zfs).unwrap_or_else(|e| panic!("{name} {}: {e:?}", d["name"]));
            sums.push((d["name"].as_str().unwrap().to_string(), digest(&zfs)));
            zfs.stop().unwrap();
        }
        pool.export().unwrap();
        drop(pool);
        if let Err(e) = oz.check(dir.path(), &f.name) {
            panic!("{name}: {e}");
        }
        // With the key zdb decrypts what was written.
        for k in m["keys"].as_array().into_iter().flatten() {
            let (dir, key) = (dir.path().to_str().unwrap(), k["key"].as_str().unwrap());
            for (ds, _) in &sums {
                let text = oz.zdb(&["-e", "-p", dir, "-K", key, "-dddd", ds]).unwrap();
                assert!(text.contains("made here"), "{ds}: {text}");
            }
        }
        let found = vdev::discover(&env, &paths);
        let pool = open(&found.pools[0]);
        for (ds, want) in sums {
            assert_eq!(digest(&writable(&pool, &ds)), want, "{name} {ds}");
        }
        pool.export().unwrap();
    }
}

struct Plenty;

impl SpaceInfo for Plenty {
    fn space(&self) -> Space {
        Space {
            available: 1 << 30,
            ..Space::default()
        }
    }
}

fn writable(pool: &Arc<Pool>, name: &str) -> Arc<Zfs> {
    let ds = pool.dsl().dataset(name).unwrap();
    let set = pool.open_dataset(&ds).unwrap();
    let m = Mount {
        clock: pool.env.clock.clone(),
        props: Props {
            acltype: AclType::Posix,
            atime: false,
            longname: pool::prop_number(&ds, "longname").unwrap() != 0,
            direct: pool::prop_number(&ds, "direct").unwrap() == 2,
            ..Props::default()
        },
        space: Arc::new(Plenty),
        log: Arc::new(NoLog),
        pool_version: pool.version(),
        software_version: pool.software_version(),
    };
    let zfs = Zfs::open(&set.os, m).unwrap();
    zfs.start().unwrap();
    zfs
}

/// Changes a bit of everything there is.
fn disturb(zfs: &Zfs) -> base::Result<()> {
    let c = Cred::root();
    let root = zfs.root()?;
    let new = zfs.create(&root, b"made here", &zpl::New::dir(0o755, 0), &c)?;
    let mut n = 0;
    let mut tree: Vec<_> = walk(zfs)?.into_iter().collect();
    tree.sort_by(|a, b| a.0.cmp(&b.0));
    for (path, z) in tree {
        let a = zfs.getattr(&z);
        if a.fs_flags & 0x30 != 0 || path.is_empty() || path.starts_with(b"made here") {
            continue;
        }
        n += 1;
        let mode = zpl::SetAttr {
            mode: Some(a.mode ^ 0o023),
            uid: Some(a.uid ^ 1),
            ..zpl::SetAttr::default()
        };
        if a.mode >> 12 != 10 {
            zfs.setattr(&z, &mode, &c)?;
        }
        if a.mode >> 12 == 8 {
            match n % 4 {
                0 => drop(zfs.write(&z, a.size / 2, &[7; 3000], zpl::WriteOpts::default())?),
                1 => zfs.truncate(&z, a.size / 3, &c)?,
                2 => zfs.truncate(&z, a.size + 10_000, &c)?,
                _ => {}
            }
            if n % 3 == 0 && a.nlink == 1 {
                let len = [10, 200, 20_000, 60_000][n % 4];
                zfs.setxattr(&z, b"user.new", &vec![n as u8; len], 0, false, &c)?;
            }
            if n % 5 == 0 {
                zfs.link(&z, &new, format!("link {n}").as_bytes(), &c)?;
            }
        }
        let (dir, name) = match path.iter().rposition(|b| *b == b'/') {
            Some(i) => (zfs.get(z.fixed().parent)?, &path[i + 1..]),
            None => (root.clone(), &path[..]),
        };
        if zfs.getattr(&dir).fs_flags & 0x30 != 0 || z.is_dir() {
            continue;
        }
        let here = zfs
            .lookup(&dir, name, &c)
            .is_ok_and(|x| x.object == z.object);
        match n % 6 {
            0 if here => zfs.unlink(&dir, name, &c)?,
            1 if here => zfs.rename(&dir, name, &new, format!("moved {n}").as_bytes(), 0, &c)?,
            _ => {}
        }
    }
    for i in 0..40 {
        let f = zpl::New::file(0o100644, 0);
        let z = zfs.create(&new, format!("new {i}").as_bytes(), &f, &c)?;
        zfs.write(&z, 0, &vec![i as u8; i * i * 50], zpl::WriteOpts::default())?;
    }
    Ok(())
}

fn digest(zfs: &Zfs) -> String {
    let mut lines = Vec::new();
    for (path, z) in walk(zfs).unwrap() {
        let a = zfs.getattr(&z);
        let mut line = format!("{path:?} {:o} {} {} {}", a.mode, a.nlink, a.uid, a.size);
        if a.mode >> 12 == 8 {
            line += &content(zfs, &z, a.size > 64 << 20).unwrap();
        }
        let mut names = zfs.listxattr(&z, &Cred::root()).unwrap();
        names.sort();
        for n in names {
            line += &sha(&zfs.getxattr(&z, &n, &Cred::root()).unwrap());
        }
        lines.push(line);
    }
    lines.sort();
    sha(lines.join("\n").as_bytes())
}

/// Takes note of what a replay has done.
struct Noting(Arc<zil::Zil>);

impl zpl::IntentLog for Noting {
    fn log(&self, tx: &dmu::Tx, _rec: zpl::Record) {
        self.0.replayed(tx.txg());
    }
    fn unlogged(&self, tx: &dmu::Tx) {
        self.0.replayed(tx.txg());
    }
    fn commit(&self, _object: Option<u64>) -> base::Result<()> {
        Ok(())
    }
    fn wait(&self, _txg: base::Txg) -> base::Result<()> {
        Ok(())
    }
}

struct Redo<'a>(&'a Zfs);

impl zil::Replayer for Redo<'_> {
    fn object_exists(&mut self, object: u64) -> base::Result<bool> {
        match self.0.objset().hold(object) {
            Ok(_) => Ok(true),
            Err(e) if e.kind == Kind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn replay(&mut self, record: &zil::Record) -> base::Result<()> {
        let (r, _) = disk::zil::Record::decode(&record.raw.bytes)?;
        let source = match &r.body {
            disk::zil::Body::Extend { object, .. } => {
                return self.0.replay_extend(*object, record.end)
            }
            disk::zil::Body::Write { data, .. } => Some(match data {
                disk::zil::WriteData::Indirect(_) => zpl::ReplayData::Block {
                    offset: record.data_offset,
                    data: &record.data,
                },
                _ => zpl::ReplayData::Copied(&record.data),
            }),
            _ => None,
        };
        let mut source = source;
        for rec in zpl::Record::from_body(r.body, self.0.pool_version)? {
            self.0.replay(&rec, source.take())?;
        }
        Ok(())
    }
}

/// Makes an image of the partition out of that of a whole disk.
fn cut_partition(dir: &std::path::Path, m: &Value) {
    use std::io::{Read, Seek, SeekFrom, Write};
    let (Some(at), Some(size)) = (
        m["partition"]["offset"].as_u64(),
        m["partition"]["size"].as_u64(),
    ) else {
        return;
    };
    let disk = dir.join("disk.img");
    let mut from = std::fs::File::open(&disk).unwrap();
    from.seek(SeekFrom::Start(at)).unwrap();
    let mut to = std::fs::File::create(dir.join("d0.img")).unwrap();
    to.set_len(size).unwrap();
    let mut buf = vec![0; 1 << 20];
    let mut left = size as usize;
    while left > 0 {
        let n = from.read(&mut buf[..left.min(1 << 20)]).unwrap();
        if buf[..n].iter().any(|b| *b != 0) {
            to.write_all(&buf[..n]).unwrap();
        } else {
            to.seek(SeekFrom::Current(n as i64)).unwrap();
        }
        left -= n;
    }
    std::fs::remove_file(disk).unwrap();
}

/// Logs that OpenZFS left behind when it was killed.
#[test]
fn logs_of_a_crash() {
    let only = std::env::var("FIXTURE").ok();
    let mut bad = Vec::new();
    for name in ["zil", "zil-crash", "zil-slog", "zil-raidz", "zil-encrypted"] {
        if only.as_ref().is_some_and(|o| o != name) {
            continue;
        }
        let Some(dir) = or_skip(testkit::fixture::unpack(name)) else {
            return;
        };
        let env = env_linux::linux_env();
        let text = std::fs::read(testkit::fixture::file(name, "manifest.json").unwrap()).unwrap();
        let m: Value = serde_json::from_slice(&text).unwrap();
        cut_partition(dir.path(), &m);
        let paths: Vec<String> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|f| f.unwrap().path().to_str().unwrap().to_string())
            .collect();
        let found = vdev::discover(&env, &paths);
        let pool = match Pool::open(env, &found.pools[0].config, OpenOptions::default()) {
            Ok(p) => p,
            Err(e) if e.kind == Kind::Unsupported => {
                eprintln!("{name}: {e}");
                continue;
            }
            Err(e) => panic!("{name}: {e:?}"),
        };
        // Claimed without the keys, replayed with them.
        bad.extend(load_keys(&pool, &m["keys"]));
        for d in m["pools"][0]["datasets"].as_array().unwrap() {
            if d["type"] != "filesystem" {
                continue;
            }
            let ds = pool.dsl().dataset(d["name"].as_str().unwrap()).unwrap();
            let set = pool.open_dataset(&ds).unwrap();
            let zil = set.zil().unwrap().clone();
            let m = Mount {
                clock: pool.env.clock.clone(),
                props: Props {
                    acltype: match d["properties"]["acltype"][0].as_str() {
                        Some("posix") => AclType::Posix,
                        _ => AclType::Off,
                    },
                    ..Props::default()
                },
                space: Arc::new(Plenty),
                log: Arc::new(Noting(zil.clone())),
                pool_version: pool.version(),
                software_version: pool.software_version(),
            };
            let zfs = Zfs::open(&set.os, m).unwrap();
            zfs.begin_replay();
            let r = zil.replay(&mut Redo(&zfs)).unwrap();
            zfs.end_replay();
            eprintln!("{name} {}: {r:?}", d["name"]);
            assert!(r.failed.is_none(), "{name}: {r:?}");
            pool.sync().unwrap();
            zfs.start().unwrap();
            let mut diff = compare_all(&zfs, &d["entries"]).unwrap();
            // Writes and creations are replayed at another time than OpenZFS did it.
            diff.retain(|x| !x.contains(": mtime "));
            bad.extend(diff.iter().map(|x| format!("{name} {}: {x}", d["name"])));
        }
        pool.export().unwrap();
        drop(pool);
        if let Some(oz) = or_skip(testkit::OpenZfs::get()) {
            oz.check(dir.path(), &found.pools[0].name)
                .unwrap_or_else(|e| panic!("{name}: {e}"));
        }
    }
    bad.iter().take(40).for_each(|b| eprintln!("{b}"));
    assert!(bad.is_empty(), "{} differences", bad.len());
}
