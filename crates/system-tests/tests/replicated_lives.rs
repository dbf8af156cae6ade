//! File systems that change at random are replicated by increments of every kind. After each of them the copy has the content,
//! attributes and holes of the snapshot, and sent in full it is the same stream.
//!
//! `ZFS_FUSE_TEST_LIFE_ROUNDS` (default 3) says how often the sources change, `ZFS_FUSE_TEST_SEED` (default 1) how.

use rustix::fs::{self as sys, FallocateFlags, FileType, Mode, SeekFrom, XattrFlags, CWD};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{chown, symlink, FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::rc::Rc;
use stream::Image;
use system_tests::tree::{assert_same, describe, Description};
use system_tests::{number, Dice, Rig};

/// Sizes around records, sectors and what is embedded.
const SIZES: [u64; 12] = [
    0, 1, 100, 112, 513, 4097, 20_000, 131_072, 131_073, 400_000, 1_048_577, 2_500_000,
];
/// Where sparse files have their data: at the beginning, and behind two and three levels of indirect blocks.
const FAR: [u64; 3] = [0, 1 << 33, 1 << 42];

/// A regular file, opened for writing.
fn regular(path: &Path) -> Option<File> {
    let is_file = fs::symlink_metadata(path).is_ok_and(|m| m.is_file());
    let open = || File::options().read(true).write(true).open(path);
    is_file.then(|| open().unwrap())
}

/// Removes what is there, if it is no folder.
fn clear(path: &Path) {
    if fs::symlink_metadata(path).is_ok_and(|m| !m.is_dir()) {
        fs::remove_file(path).unwrap();
    }
}

fn size(dice: &mut Dice) -> u64 {
    let size = SIZES[dice.below(SIZES.len() as u64) as usize];
    size + dice.below(2) * dice.below(size / 2 + 2)
}

/// Changes what a file holds.
fn write(path: &Path, dice: &mut Dice) {
    let Some(f) = regular(path) else {
        clear(path);
        let len = size(dice) as usize;
        return fs::write(path, dice.bytes(len)).unwrap();
    };
    let len = f.metadata().unwrap().size();
    match dice.below(7) {
        0 => f.set_len(size(dice)).unwrap(),
        1 => f.set_len(len + dice.below(4 << 20)).unwrap(),
        2 => f.set_len(0).unwrap(),
        3 => {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let at = dice.below(len.min(3 << 20) + 1);
            sys::fallocate(&f, hole, at, 1 + dice.below(1 << 20)).unwrap();
        }
        4 => {
            let at = FAR[dice.below(3) as usize] + dice.below(1 << 20);
            let more = 1 + dice.below(300_000) as usize;
            f.write_all_at(&dice.bytes(more), at).unwrap();
        }
        // Short ones grow, block by block.
        5 => {
            let more = 1 + dice.below(len.min(100_000) + 600) as usize;
            f.write_all_at(&dice.bytes(more), len).unwrap();
        }
        _ => {
            let more = 1 + dice.below(200_000) as usize;
            let at = dice.below(len.min(3 << 20) + 1);
            f.write_all_at(&dice.bytes(more), at).unwrap();
        }
    }
}

/// An access list in the kernel's form.
fn acl(n: u32) -> Vec<u8> {
    let mut out = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in [
        (1u16, 6u16, u32::MAX),
        (2, 7, 1000 + n),
        (4, 4, u32::MAX),
        (0x10, 7, u32::MAX),
        (0x20, (n % 8) as u16, u32::MAX),
    ] {
        out.extend_from_slice(&tag.to_le_bytes());
        out.extend_from_slice(&perm.to_le_bytes());
        out.extend_from_slice(&id.to_le_bytes());
    }
    out
}

/// Changes what is said of a file.
fn mark(path: &Path, dice: &mut Dice) {
    let Ok(m) = fs::symlink_metadata(path) else {
        return;
    };
    if m.is_symlink() {
        return;
    }
    let name = ["user.one", "user.two", "user.three"][dice.below(3) as usize];
    match dice.below(5) {
        // Beside the attributes, in a spill block, in a folder of its own.
        0 | 1 if m.is_file() => {
            let len = [5, 90, 400, 3000, 50_000][dice.below(5) as usize] as usize;
            let value = dice.bytes(len);
            sys::setxattr(path, name, &value, XattrFlags::empty()).unwrap();
        }
        2 if m.is_file() => drop(sys::removexattr(path, name)),
        3 => {
            let list = acl(dice.below(20) as u32);
            let kind = "system.posix_acl_access";
            sys::setxattr(path, kind, &list, XattrFlags::empty()).unwrap();
        }
        _ => {
            chown(path, Some(dice.below(5) as u32), Some(70_000)).unwrap();
            let mode = 0o600 + dice.below(0o200) as u32;
            fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        }
    }
}

/// Objects are freed, and others get their numbers.
fn recycle(dir: &Path, dice: &mut Dice) {
    for n in 0..40 {
        let path = dir.join(format!("r{n}"));
        if dice.below(2) == 0 {
            clear(&path);
        }
    }
    for n in 0..dice.below(40) {
        let path = dir.join(format!("r{n}"));
        if fs::symlink_metadata(&path).is_err() {
            match dice.below(6) {
                0 => symlink("to/".repeat(1 + dice.below(300) as usize), &path).unwrap(),
                1 => {
                    sys::mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o640), 0).unwrap()
                }
                _ => fs::write(&path, dice.bytes((n * 37 % 9000) as usize)).unwrap(),
            }
        }
    }
}

/// Changes a file system by so many steps.
fn change(root: &Path, dice: &mut Dice, steps: u64) {
    for _ in 0..steps {
        let dir = root.join(format!("d{}", dice.below(3)));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join(format!("n{}", dice.below(16)));
        let other = root.join(format!("d{}", dice.below(3)));
        let other = other.join(format!("n{}", dice.below(16)));
        match dice.below(16) {
            0..=5 => write(&path, dice),
            6..=8 => mark(&path, dice),
            9 => clear(&path),
            10 => drop(fs::rename(&path, &other)),
            11 => drop(fs::hard_link(&path, &other)),
            12 => recycle(&dir, dice),
            // Names by the hundred: the folder's ZAP grows, and with it its block.
            13 => {
                let at = dice.below(900);
                for n in at..at + dice.below(300) {
                    fs::write(dir.join(format!("name-{n:0>40}")), b"").unwrap();
                }
            }
            14 => {
                let with = format!("name-{:0>39}", dice.below(9));
                for e in fs::read_dir(&dir).unwrap().flatten() {
                    if e.file_name().to_string_lossy().starts_with(&with) {
                        fs::remove_file(e.path()).unwrap();
                    }
                }
            }
            _ if dice.below(4) == 0 => fs::remove_dir_all(&dir).unwrap(),
            _ => {
                let to = root.join(format!("d{}", dice.below(5)));
                drop(fs::rename(&dir, to));
            }
        }
    }
}

/// Where a file has data, by SEEK_DATA.
fn extents(path: &Path) -> Vec<(u64, u64)> {
    let f = File::open(path).unwrap();
    let (size, mut at) = (f.metadata().unwrap().size(), 0);
    let mut out = Vec::new();
    while let Ok(from) = sys::seek(&f, SeekFrom::Data(at)) {
        at = sys::seek(&f, SeekFrom::Hole(from)).unwrap();
        out.push((from, at));
        if at >= size {
            break;
        }
    }
    out
}

/// What of a snapshot has to be the same.
struct Seen {
    all: Description,
    /// For each file the size of its blocks, and where it has data.
    data: BTreeMap<PathBuf, (u64, Vec<(u64, u64)>)>,
    image: Image,
}

/// Differences of the holes: data where the source has none.
fn filled_holes(of: &Seen, copy: &Seen) -> Vec<String> {
    let mut out = Vec::new();
    for (path, (size, data)) in &copy.data {
        let Some((of_size, of_data)) = of.data.get(path) else {
            continue;
        };
        // Blocks of another size end elsewhere.
        let unit = if size == of_size { 1 } else { 1 << 20 };
        let covered = |from: u64, to: u64| {
            let wide = |(f, t): &(u64, u64)| (f / unit * unit, t.div_ceil(unit) * unit);
            let mut at = from;
            for (f, t) in of_data.iter().map(wide) {
                if f <= at {
                    at = at.max(t);
                }
            }
            at >= to
        };
        let extra: Vec<_> = data.iter().filter(|(f, t)| !covered(*f, *t)).collect();
        if !extra.is_empty() {
            out.push(format!("{path:?}: {extra:?} beyond {of_data:?}"));
        }
    }
    out
}

/// What differs between two raw streams, the records of which have to be the same, sealed parts and all.
fn raw_differences(a: &[u8], b: &[u8]) -> Vec<String> {
    let items = |bytes| {
        let mut reader = stream::Reader::new(bytes);
        let next = move || reader.next().unwrap();
        let all = std::iter::from_fn(next).filter(|i| {
            use disk::stream::Record::{Begin, End};
            !matches!(i.record, Begin(_) | End(_))
        });
        all.collect::<Vec<_>>()
    };
    let (a, b) = (items(a), items(b));
    let mut out = Vec::new();
    if a.len() != b.len() {
        out.push(format!("{} records, not {}", b.len(), a.len()));
    }
    // Checksums are those of the pool.
    let plain = |i: &stream::Item| match i.record.clone() {
        disk::stream::Record::Write(w) => disk::stream::Record::Write(disk::stream::Write {
            checksum_type: 0,
            flags: w.flags & !disk::stream::record_flag::CHECKSUM_DEDUP,
            key: Default::default(),
            ..w
        }),
        r => r,
    };
    for (x, y) in a.iter().zip(&b) {
        let (r, s) = (plain(x), plain(y));
        if r != s {
            out.push(format!("{s:?}, not {r:?}"));
        } else if x.payload != y.payload {
            out.push(format!("{:?}: another payload", y.record));
        }
    }
    out.truncate(6);
    out
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// From the snapshot before.
    Step,
    /// With all in between.
    All,
    /// A tree with everything below it.
    Tree,
    /// From a bookmark of a snapshot that is gone.
    Mark,
    /// Broken off and gone on with.
    Cut,
}

/// One target, and how it is brought forward.
struct Way {
    from: &'static str,
    to: &'static str,
    options: &'static [&'static str],
    kind: Kind,
    /// The newest snapshot it has; 0: none.
    last: u64,
    /// The target is mounted meanwhile.
    mounted: bool,
}

const fn way(
    from: &'static str,
    to: &'static str,
    options: &'static [&'static str],
    kind: Kind,
) -> Way {
    Way {
        from,
        to,
        options,
        kind,
        last: 0,
        mounted: false,
    }
}

fn ways() -> Vec<Way> {
    use Kind::{All, Cut, Mark, Step, Tree};
    let mut all = vec![
        way("src/a", "dst/plain", &[], Step),
        way("src/a", "dst/all", &[], All),
        way("src/a", "dst/large", &["-L"], Step),
        way("src/a", "dst/packed", &["-c"], All),
        way("src/a", "dst/short", &["-e"], Mark),
        way("src/a", "dst/lec", &["-Lec"], Step),
        way("src/a", "dst/cut", &[], Cut),
        way("src/a", "dst/cut-lec", &["-Lec"], Cut),
        way("src/a", "dst/tree", &["-Lec"], Tree),
        // What was received goes on to a third.
        way("dst/plain", "dst/third", &["-c"], Step),
        way("src/e", "dst/open", &["-Le"], Step),
        way("src/e", "dst/raw", &["-w"], Step),
        way("src/e", "dst/raw-mark", &["-w"], Mark),
        way("src/e", "dst/raw-cut", &["-w"], Cut),
    ];
    all[1].mounted = true;
    all[5].mounted = true;
    all
}

struct Life {
    rig: Rig,
    dice: Dice,
    key: String,
    seen: BTreeMap<String, Rc<Seen>>,
    received: u64,
}

impl Life {
    fn at(&self, fs: &str) -> PathBuf {
        self.rig.mnt().join(fs)
    }

    /// Changes properties of a source that new blocks and objects obey.
    fn tune(&mut self, fs: &str) {
        let choices: [(&str, &[&str]); 6] = [
            ("recordsize", &["512", "4K", "16K", "128K", "1M"]),
            ("dnodesize", &["legacy", "auto", "1k", "4k", "16k"]),
            ("compression", &["off", "lz4", "zstd", "gzip-1", "lzjb"]),
            ("xattr", &["sa", "dir"]),
            ("checksum", &["fletcher4", "sha256"]),
            ("copies", &["1", "2"]),
        ];
        let (name, values) = choices[self.dice.below(6) as usize];
        let value = values[self.dice.below(values.len() as u64) as usize];
        self.rig.zfs(&["set", &format!("{name}={value}"), fs]);
    }

    /// File systems below the source of a tree come, go, are cloned and renamed.
    fn grow(&mut self, n: u64) {
        let text = self.rig.zfs(&["list", "-H", "-o", "name", "-r", "src/a"]);
        let below: Vec<&str> = text.lines().filter(|l| *l != "src/a").collect();
        let some = match below.is_empty() {
            true => None,
            false => Some(below[self.dice.below(below.len() as u64) as usize]),
        };
        match (self.dice.below(5), some) {
            (0, Some(fs)) if !fs.contains("clone") => {
                // A clone keeps what it came from.
                drop(self.rig.try_run("zfs", &["destroy", "-r", fs]));
            }
            (1, Some(fs)) => drop(self.rig.zfs(&["rename", fs, &format!("{fs}r")])),
            (2, _) if n > 1 => {
                let (from, to) = (format!("src/a@{}", n - 1), format!("src/a/clone{n}"));
                self.rig.zfs(&["clone", &from, &to]);
            }
            _ if below.len() < 4 => drop(self.rig.zfs(&["create", &format!("src/a/below{n}")])),
            _ => {}
        }
        let text = self.rig.zfs(&["list", "-H", "-o", "name", "-r", "src/a"]);
        for fs in text.lines().filter(|l| *l != "src/a") {
            change(&self.at(fs), &mut self.dice, 4);
        }
    }

    fn look(&mut self, snap: &str) -> Rc<Seen> {
        if let Some(seen) = self.seen.get(snap) {
            return seen.clone();
        }
        let at = self.rig.path().join("look");
        fs::create_dir_all(&at).unwrap();
        let place = at.to_str().unwrap().to_string();
        self.rig.zfs(&["mount", snap, &place]);
        let all = describe(&at).unwrap();
        let mut data = BTreeMap::new();
        for path in all.keys() {
            let whole = at.join(path);
            let m = fs::symlink_metadata(&whole).unwrap();
            if m.is_file() {
                data.insert(path.clone(), (m.blksize(), extents(&whole)));
            }
        }
        self.rig.zfs(&["unmount", &place]);
        let mut image = Image::default();
        image.apply(&self.sent(&[snap])).unwrap();
        let seen = Rc::new(Seen { all, data, image });
        if snap.starts_with("src/") {
            self.seen.insert(snap.to_string(), seen.clone());
        }
        seen
    }

    fn compare(&mut self, of: &str, copy: &str) {
        let (a, b) = (self.look(of), self.look(copy));
        let differs = a.image.differences(&b.image);
        if !differs.is_empty() {
            self.rig.keep_evidence();
            eprintln!("{of} as {copy}: {}", differs.join("\n"));
        }
        assert_same(&a.all, &b.all, &format!("{of} as {copy}"));
        let filled = filled_holes(&a, &b);
        assert!(filled.is_empty(), "{of} as {copy}: {filled:?}");
        assert!(differs.is_empty(), "{of} as {copy}: the stream differs");
    }

    fn sent(&self, args: &[&str]) -> Vec<u8> {
        let mut c = self.rig.command("zfs", &[&["send"], args].concat());
        let out = c.output().unwrap();
        let err = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{args:?}: {err}");
        out.stdout
    }

    fn receive(&mut self, args: &[&str], stream: &[u8]) -> (bool, String) {
        let path = self.rig.path().join("home/stream");
        fs::write(&path, stream).unwrap();
        let mut c = self.rig.command("zfs", &[&["receive"], args].concat());
        c.stdin(File::open(&path).unwrap()).stderr(Stdio::piped());
        let out = c.output().unwrap();
        self.received += 1;
        let err = String::from_utf8_lossy(&out.stderr).into_owned();
        (out.status.success(), err)
    }

    /// Brings a target forward to a snapshot.
    fn go(&mut self, w: &mut Way, n: u64) {
        let to = format!("{}@{n}", w.from);
        let mut args: Vec<String> = w.options.iter().map(|o| o.to_string()).collect();
        let last = format!("@{}", w.last);
        let mark = format!("{}#{}-{}", w.from, w.to.replace('/', "-"), w.last);
        match (w.kind, w.last) {
            (Kind::Tree, 0) => args.push("-R".into()),
            (Kind::Tree, _) => args.extend(["-R".into(), "-I".into(), last]),
            (_, 0) => {}
            (Kind::All, _) => args.extend(["-I".into(), last]),
            (Kind::Mark, _) => args.extend(["-i".into(), mark]),
            (Kind::Step | Kind::Cut, _) => args.extend(["-i".into(), last]),
        }
        args.push(to.clone());
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let what = format!("zfs send {} to {}", args.join(" "), w.to);
        let mut stream = self.sent(&args);
        let mut into = match w.mounted {
            true => vec!["-o", "atime=off"],
            false => vec!["-u"],
        };
        match w.kind {
            Kind::Cut => into.push("-s"),
            Kind::Tree => into.push("-F"),
            _ => {}
        }
        into.push(w.to);
        for cuts in 0.. {
            let cut = w.kind == Kind::Cut && cuts < 4 && self.dice.below(3) > 0;
            let len = match cut {
                true => self.dice.below(stream.len() as u64) as usize,
                false => stream.len(),
            };
            let (done, err) = self.receive(&into, &stream[..len]);
            assert!(done || cut, "{what}: {err}");
            if done {
                break;
            }
            let get = ["get", "-H", "-o", "value", "receive_resume_token", w.to];
            let token = self.rig.try_run("zfs", &get).out.trim().to_string();
            if token.len() > 10 {
                stream = self.sent(&["-t", &token]);
            }
        }
        w.last = n;
        if w.options.contains(&"-w") {
            if self.rig.get("keystatus", w.to) == "available" {
                self.rig.zfs(&["unload-key", w.to]);
            }
            let again = self.sent(&["-w", &format!("{}@{n}", w.to)]);
            let differs = raw_differences(&self.sent(&["-w", &to]), &again);
            if !differs.is_empty() {
                self.rig.keep_evidence();
                panic!("{what}: {}", differs.join("\n"));
            }
        }
        if w.options.contains(&"-w") && self.rig.get("keystatus", w.to) != "available" {
            let key = format!("file://{}", self.key);
            self.rig.zfs(&["load-key", "-L", &key, w.to]);
        }
        let old = format!("{}@{n}", w.from.replace("dst/plain", "src/a"));
        eprintln!("{what}: {} bytes", stream.len());
        self.compare(&old, &format!("{}@{n}", w.to));
        if w.kind == Kind::Mark {
            let mark = format!("{}#{}-{n}", w.from, w.to.replace('/', "-"));
            self.rig.zfs(&["bookmark", &to, &mark]);
        }
        if w.kind == Kind::Tree {
            self.compare_trees(w, n);
        }
    }

    /// Everything below, with all snapshots.
    fn compare_trees(&mut self, w: &Way, n: u64) {
        let list = |of: &str, what: &str| {
            let text = self
                .rig
                .zfs(&["list", "-Hr", "-t", what, "-o", "name,guid", of]);
            let mut all: Vec<String> = text
                .lines()
                .map(|l| l.strip_prefix(of).unwrap_or(l).to_string())
                .collect();
            all.sort();
            all
        };
        let (from, to) = (list(w.from, "snapshot"), list(w.to, "snapshot"));
        assert_eq!(from, to, "{n}: snapshots of the tree");
        let now = format!("@{n}");
        for snap in from.iter().filter_map(|l| l.split('\t').next()) {
            if snap.ends_with(&now) && snap != now {
                self.compare(&format!("{}{snap}", w.from), &format!("{}{snap}", w.to));
            }
        }
    }

    /// Destroys snapshots that no target needs any more, where clones allow it.
    fn forget(&mut self, ways: &[Way], n: u64) {
        for from in ["src/a", "src/e", "dst/plain"] {
            let needed = |k: u64| {
                let mut all = ways.iter().filter(|w| w.from == from || w.to == from);
                all.any(|w| w.last == k && (w.kind != Kind::Mark || w.to == from))
            };
            for k in (1..n).filter(|k| !needed(*k)) {
                let snap = format!("{from}@{k}");
                if from == "src/a" && self.dice.below(2) == 0 {
                    continue;
                }
                drop(self.rig.try_run("zfs", &["destroy", &snap]));
            }
        }
    }
}

#[test]
fn copies_of_changing_file_systems_are_equal_after_every_increment() {
    let Some(mut rig) = Rig::as_root("lives") else {
        return;
    };
    let (one, two) = (rig.image("one", 3 << 30), rig.image("two", 8 << 30));
    rig.start();
    for (pool, disk) in [("src", &one), ("dst", &two)] {
        let at = rig.mnt().join(pool);
        rig.zpool(&["create", "-m", at.to_str().unwrap(), pool, disk]);
    }
    let key = rig.path().join("home/key");
    fs::write(&key, [5; 32]).unwrap();
    let key = key.to_str().unwrap().to_string();
    let location = format!("keylocation=file://{key}");
    let own = ["-o", "atime=off", "-o", "acltype=posix"];
    rig.zfs(&[&["create"], &own[..], &["src/a"]].concat());
    let sealed = [
        "-o",
        "encryption=on",
        "-o",
        "keyformat=raw",
        "-o",
        &location,
    ];
    rig.zfs(&[&["create"], &own[..], &sealed, &["src/e"]].concat());
    // What copies are looked at with.
    rig.zfs(&["set", "acltype=posix", "dst"]);
    let mut life = Life {
        rig,
        dice: Dice::new(number("ZFS_FUSE_TEST_SEED", 1)),
        key,
        seen: BTreeMap::new(),
        received: 0,
    };
    let mut ways = ways();
    let rounds = number("ZFS_FUSE_TEST_LIFE_ROUNDS", 3);
    for n in 1..=rounds {
        for fs in ["src/a", "src/e"] {
            for _ in 0..3 {
                life.tune(fs);
                let at = life.at(fs);
                change(&at, &mut life.dice, 20);
            }
        }
        life.grow(n);
        life.rig.zfs(&["snapshot", "-r", &format!("src/a@{n}")]);
        life.rig.zfs(&["snapshot", &format!("src/e@{n}")]);
        for i in 0..ways.len() {
            let third = ways[i].from == "dst/plain";
            if third && ways[0].last != n || n < rounds && life.dice.below(3) == 0 {
                continue;
            }
            let mut w = std::mem::replace(&mut ways[i], way("", "", &[], Kind::Step));
            life.go(&mut w, n);
            ways[i] = w;
        }
        life.forget(&ways, n);
    }
    eprintln!("{} streams received in {rounds} rounds", life.received);
    for w in &ways {
        assert!(w.last == rounds || w.from == "dst/plain", "{}", w.to);
    }
    for pool in ["src", "dst"] {
        life.rig.zpool(&["export", pool]);
        life.rig.zdb_check(pool);
    }
}
