//! `zdb` on pools that OpenZFS made.

use std::process::{Command, Output};
use testkit::{fixture, or_skip};

fn zdb(args: &[&str]) -> (Output, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_zdb"))
        .args(args)
        .env("TZ", "UTC")
        .output()
        .unwrap();
    let text = [&out.stdout[..], &out.stderr[..]].concat();
    (out, String::from_utf8_lossy(&text).into_owned())
}

fn pool_of(fixture: &str) -> String {
    let text = std::fs::read_to_string(fixture::file(fixture, "manifest.json").unwrap()).unwrap();
    let (_, rest) = text.split_once("\"pool\": \"").unwrap();
    rest.split_once('"').unwrap().0.to_string()
}

/// Blocks of all kinds of pools are found by the walk, no more and no less than the space maps say.
#[test]
fn no_leaks() {
    for name in [
        "single",
        "raidz1-3",
        "raidz2-5",
        "raidz3-8",
        "stripe-mirrors",
        "gang",
        "snapshots",
        "clone-destroy",
        "async-destroy",
        "legacy-v1",
        "legacy-v15",
        "legacy-v23",
        "legacy-v28",
        "nofeatures",
        "blockclone",
        "copies",
        "checksums",
        "compression",
        "recordsize",
    ] {
        let Some(dir) = or_skip(fixture::unpack(name)) else {
            return;
        };
        let at = dir.path().to_str().unwrap();
        let (out, text) = zdb(&["-p", at, "-bbcc", &pool_of(name)]);
        assert!(
            out.status.success() && text.contains("No leaks"),
            "{name}: {text}"
        );
    }
}

#[test]
fn damage_is_found() {
    let Some(dir) = or_skip(fixture::unpack("damage-one-block")) else {
        return;
    };
    let at = dir.path().to_str().unwrap();
    let pool = pool_of("damage-one-block");
    let (out, text) = zdb(&["-p", at, "-c", &pool]);
    assert!(out.status.success(), "once: only metadata; {text}");
    let (out, text) = zdb(&["-p", at, "-cc", &pool]);
    assert_eq!(out.status.code(), Some(3), "{text}");
    assert!(text.contains("Got error 52 reading <144, 36"), "{text}");
    // Only data are damaged, and -b does not read them.
    let (out, text) = zdb(&["-p", at, "-b", &pool]);
    assert!(out.status.success(), "{text}");
}

#[test]
fn the_state_of_a_checkpoint() {
    let Some(dir) = or_skip(fixture::unpack("checkpoint")) else {
        return;
    };
    let at = dir.path().to_str().unwrap();
    let pool = pool_of("checkpoint");
    let say = |args: &[&str]| {
        let (out, text) = zdb(&[&["-p", at], args, &[&pool]].concat());
        assert!(out.status.success(), "{args:?}: {text}");
        text
    };
    let txg = |text: &str| -> u64 {
        let line = text.lines().find_map(|l| l.strip_prefix("\ttxg = "));
        line.unwrap().parse().unwrap()
    };
    let (now, then) = (txg(&say(&["-u"])), txg(&say(&["-k", "-u"])));
    assert!(then < now, "{then}, {now}");
    let found = say(&["-u", "-d"]);
    let (_, kept) = found.split_once("Checkpointed uberblock found:").unwrap();
    assert_eq!(txg(kept), then);
    assert!(say(&["-k", "-bcc"]).contains("No leaks"));
    let sets = say(&["-k", "-d"]);
    let other_name = format!("Dataset {pool}_CHECKPOINTED_UNIVERSE ");
    assert!(sets.contains(&other_name), "{sets}");
    let one = fixture::unpack("single").unwrap();
    let at = one.path().to_str().unwrap();
    let (out, text) = zdb(&["-p", at, "-k", "-u", &pool_of("single")]);
    assert!(
        !out.status.success() && text.contains("checkpoint does not exist"),
        "{text}"
    );
}

/// What one look reads is enough for the same look at the copies, and less than everything.
#[test]
fn copies_of_what_is_read() {
    let Some(dir) = or_skip(fixture::unpack("single")) else {
        return;
    };
    let to = testkit::TempDir::new("zdb-copies").unwrap();
    let (at, to) = (dir.path().to_str().unwrap(), to.path().to_str().unwrap());
    let pool = pool_of("single");
    let (out, text) = zdb(&["-p", at, "-x", to, "-dd", &pool]);
    assert!(out.status.success(), "{text}");
    let (out, again) = zdb(&["-p", to, "-dd", &pool]);
    assert!(out.status.success(), "{again}");
    assert_eq!(again, text);
    // File data were not read.
    let (out, _) = zdb(&["-p", to, "-bcc", &pool]);
    assert!(!out.status.success());
    // Neither a copy nor a device is overwritten.
    for folder in [to, at] {
        let before = std::fs::read(format!("{folder}/d0.img")).unwrap();
        let (out, text) = zdb(&["-p", at, "-x", folder, "-u", &pool]);
        assert!(!out.status.success(), "{text}");
        assert!(std::fs::read(format!("{folder}/d0.img")).unwrap() == before);
    }
}

#[test]
fn with_keys() {
    let Some(dir) = or_skip(fixture::unpack("encryption")) else {
        return;
    };
    let at = dir.path().to_str().unwrap();
    let hex = "2de0948f925f0fd3f676ceba32dba8931ad4f8618ea5818ebd468ba2b84aacdf";
    let raw = "a2679d3d5010d78c71e0dce5b59264b4c6b70f738d572e287c83afec4631cde0";
    for (set, path, root, key) in [
        (
            "zenith/pass",
            "data",
            "zenith/pass",
            "correct horse battery",
        ),
        (
            "zenith/pass/child",
            "acl/defdir",
            "zenith/pass",
            "correct horse battery",
        ),
        ("zenith/hex", "dirs/l0", "zenith/hex", hex),
    ] {
        let (out, text) = zdb(&["-p", at, "-O", set, path]);
        assert!(!out.status.success(), "without a key: {text}");
        let (out, text) = zdb(&["-p", at, "-K", "another one", "-O", set, path]);
        assert!(!out.status.success(), "with another key: {text}");
        let (out, text) = zdb(&["-p", at, "-K", key, "-O", set, path]);
        assert!(out.status.success(), "{text}");
        let begin = format!("Unlocked encryption root: {root}\n");
        assert!(text.starts_with(&begin), "{text}");
        assert!(text.contains(&format!("\tpath\t/{path}\n")), "{text}");
    }
    // Digits too many.
    let long = format!("{raw}00");
    let (out, text) = zdb(&["-p", at, "-K", &long, "-O", "zenith/ccm", "holes"]);
    assert!(!out.status.success(), "{text}");
    let (out, text) = zdb(&["-p", at, "-K", raw, "-O", "zenith/ccm", "holes"]);
    assert!(out.status.success(), "{text}");
}

#[test]
fn shown() {
    let Some(dir) = or_skip(fixture::unpack("single")) else {
        return;
    };
    let at = dir.path().to_str().unwrap();
    let pool = pool_of("single");
    let disk = dir.path().join("d0.img");
    let disk = disk.to_str().unwrap();
    let say = |args: &[&str]| {
        let (out, text) = zdb(args);
        assert!(out.status.success(), "{args:?}: {text}");
        text
    };
    let labels = say(&["-lu", disk]);
    assert!(labels.contains(&format!("name: '{pool}'")) && labels.contains("labels = 0 1 2 3"));
    assert!(labels.contains("Uberblock[4]") && labels.contains("\ttxg = "));
    assert!(say(&["-lll", disk]).contains("LABEL 3"));
    assert!(say(&["-ll", disk]).contains("integers:   17    628 bytes (59.47%)"));
    assert!(say(&["-p", at, "-C", &pool]).contains("vdev_tree:"));
    assert!(say(&["-p", at, "-u", &pool]).contains("bp = DVA[0]="));
    assert!(say(&["-p", at, "-h", &pool]).contains("zpool create"));
    assert!(say(&["-p", at, "-m", &pool]).contains("metaslab      0   offset            0"));
    let list = say(&["-p", at, "-d", &pool]);
    assert!(list.contains(&format!("Dataset {pool} [ZPL]")), "{list}");
    let objects = say(&["-p", at, "-dddd", &pool, "1"]);
    assert!(
        objects.contains("root_dataset = 32") && objects.contains("Leaf blocks: 1"),
        "{objects}"
    );
    let data = format!("{pool}/data");
    let file = say(&["-p", at, "-O", &data, "sizes/s131073"]);
    assert!(
        file.contains("\tpath\t/sizes/s131073\n\tuid     0\n"),
        "{file}"
    );
    assert!(
        file.contains("\tsize\t131073\n")
            && file.contains(" L1  0:25800:400 20000L/400P F=2 B=9/9")
    );
    let copied = dir.path().join("copied");
    say(&[
        "-p",
        at,
        "-r",
        &data,
        "sizes/s131073",
        copied.to_str().unwrap(),
    ]);
    assert_eq!(std::fs::metadata(&copied).unwrap().len(), 131073);
    let block = say(&["-p", at, "-R", &pool, "0:53da00:400:di"]);
    assert!(
        block.contains("DVA[0]=<0:53d200:800> DVA[1]=<0:11a9600:800>"),
        "{block}"
    );
    let block = say(&["-p", at, "-R", &pool, "0:53de00:200:d"]);
    assert!(
        block.contains("000000:  0a11020300000001  2000000000000000"),
        "{block}"
    );
    let sums = say(&["-p", at, "-S", &pool]);
    assert!(
        sums.contains("dedup = 1.06, compress = 4.87, copies = 1.00"),
        "{sums}"
    );
    for (args, code) in [
        (&["-Q"][..], 2),
        (&["-d"], 2),
        (&["-p", at, "nobody"], 1),
        (&["-l", "/nowhere"], 1),
        (&["-K", "x", &pool], 1),
        (&["-o", "x=1", &pool], 1),
        (&["-E", "1:2"], 2),
        (&["-p", at, "-O", &format!("{pool}/data"), "nothing"], 1),
        (&["-p", at, "-R", &pool, "0:1"], 2),
        (&["-p", at, "-d", &pool, "x"], 2),
    ] {
        let (out, text) = zdb(args);
        assert_eq!(out.status.code(), Some(code), "{args:?}: {text}");
    }
}

/// Figures and lines that OpenZFS's zdb 2.3.2 shows.
#[test]
fn as_openzfs_shows_it() {
    let squeezed = |args: &[&str], name: &str| -> Option<String> {
        let dir = or_skip(fixture::unpack(name))?;
        let at = dir.path().to_str().unwrap();
        let (out, text) = zdb(&[&["-p", at], args, &[&pool_of(name)]].concat());
        assert!(out.status.success(), "{text}");
        let lines = text.lines();
        let lines = lines.map(|l| l.split_whitespace().collect::<Vec<_>>().join(" "));
        Some(format!("\n{}\n", lines.collect::<Vec<_>>().join("\n")))
    };
    for (name, args, parts) in [
        ("acl", "-h", &["[txg:4] set feature@async_destroy=enabled\n"][..]),
        (
            "acl",
            "-m",
            &["\nsmp_length = 0x960\nsmp_alloc = 0x85a00\nFlush data:\nunflushed txg=66\n"],
        ),
        (
            "acl",
            "-bbP",
            &[
                "\n416 11631616 294912 619520 1489 39.44 69.50 Metadata Total\n",
                "\n- - - - - - - DSL props\n",
            ],
        ),
        (
            "acl",
            "-dddd",
            &[
                "\nLog Space Maps in Pool:\n",
                "\nLeafs with 2^n pointers:\n9: 1 *\nBlocks with n*5 entries:\n3: 1 *\nBlocks n/10 full:\n2: 1 *\n",
                "\nnum_freed = 0\n",
                "\natime Thu Apr 11 00:23:57 1963\n",
                "\\020\\000\\007\\000\\377\\377\\377\\377\\040\\000\\004",
            ],
        ),
        (
            "checksums",
            "-S",
            &["\n8 1 512B 512B 512B 10 5K 5K 5K\nTotal 280 7.92M 2.69M 2.69M 291 7.92M 2.70M 2.70M\n"],
        ),
        // Segments from 16 KiB on; free ranges as the map has them, without the logs.
        (
            "special",
            "-mmm",
            &[
                "\nsegments 25 maxsize 14.4M freepct 96%\nIn-memory histogram:\n9: 4 ****\n10: 11 ***********\n",
                "\nOn-disk histogram: fragmentation 28\n9: 4 ****\n10: 17 *****************\n",
            ],
        ),
        ("special", "-MM", &["\nvdev 1 metaslabs 5 fragmentation 15%\n9: 8 ***"]),
        ("special", "-bbP", &["\n512 134 68608 68608 82 41984 41984 68 34816 34816\n1024 83 "]),
        (
            "removal",
            "-mmmm",
            &[
                "\n<0:1000:84c00> -> <1:bc00:84c00> (2ac00 obsolete)\n",
                "\nobsolete space map object 152:\nspace map object 152:\nsmp_length = 0x108\n",
                "\n[ 1] A range: 0000012e00-0000014000 size: 001200 vdev: 16777216 words: 1\n",
            ],
        ),
        (
            "removal",
            "-ddd",
            &[
                "\nDeferred frees: object 62, 0 blkptrs, 0\nPool snapshot frees: object 41, 0 blkptrs, 0\n",
                "\nharbor1 [DTL-required]\nindirect [DTL-required]\n",
                "\nds_remap_deadlist:\n\nDeadlist: 95K (17.5K/17.5K comp), 2 entries\n",
            ],
        ),
        (
            "clone-destroy",
            "-ddddd",
            &[
                "\nmintxg 27 -> obj 293: object 293, 114 blkptrs, 32 freed, 172K\n1:145e00:200 1000L/200P F=1 B=37/37 FREE cksum=0",
                "\nnum_freed = 32\n",
            ],
        ),
        (
            "encryption",
            "-ddddd",
            &["\nSpill block: 0:286000:200 200L/200P F=1 B=30/30 cksum=0002d613d86b26bf:005db7876c69e1fb:"],
        ),
        ("special", "-ddddd", &["\nsegment [0000000000000000, 000000000000c600) size 49.5K\n"]),
        ("legacy-v15", "-ddd", &["\nold-format deadlist: object 81, 0 blkptrs, 0\n"]),
        ("async-destroy", "-ddd", &["\nPool dataset frees: 1 datasets, 14.6M\n"]),
        (
            "encryption",
            "-dddd",
            &["\nLivelist: 87.5K (44K/44K comp), 1 entries\n\nmintxg 39 -> obj 96\n"],
        ),
        (
            "encryption",
            "-DDDD",
            &["\nindex 130fcae5a5a00 refcnt 2 phys 0 DVA[0]=<0:697e00:600> salt=1843ecc0814c0d98 \
               iv=5e31c3c3eef7f605:0 [L0 deduplicated block] sha256 "],
        ),
        ("dedup-fast", "-DDDD", &["\nindex 1143d2840539f refcnt 3 phys 0 DVA[0]=<0:59200:4000> "]),
    ] {
        let Some(text) = squeezed(&[args], name) else {
            return;
        };
        for part in parts {
            assert!(text.contains(part), "{name} {args}: no {part:?}");
        }
    }
}

/// Txgs that devices lack, and what can be done without.
#[test]
fn dirty_time_logs() {
    let Some(dir) = or_skip(fixture::unpack("resilvering")) else {
        return;
    };
    let at = dir.path().to_str().unwrap();
    let (_, text) = zdb(&["-p", at, "-ddd", &pool_of("resilvering")]);
    let want = format!(
        "\nDirty time logs:\n\n\
         \tvalley_x [DTL-required]\n\
         \t    mirror [DTL-required]\n\
         \t      partial [4,31) length 27\n\
         \t        replacing [DTL-expendable]\n\
         \t          partial [4,31) length 27\n\
         \t            {at}/d0.img [DTL-expendable]\n\
         \t            {at}/d3.img [DTL-expendable]\n\
         \t              missing [4,31) length 27\n\
         \t              partial [4,31) length 27\n\
         \t              outage [4,31) length 27\n\
         \t        {at}/d1.img [DTL-expendable]\n"
    );
    assert!(text.contains(&want), "{text}");
}

/// Slots of labels that hold no uberblock, and what is known of a cache device.
#[test]
fn slots_and_caches() {
    let Some(dir) = or_skip(fixture::unpack("cache-device")) else {
        return;
    };
    let of = |flags: &str, image: &str| {
        let path = dir.path().join(image);
        let (_, text) = zdb(&[flags, path.to_str().unwrap()]);
        let count = |part: &str| text.matches(part).count();
        let found = (count("\tmagic = "), count("] invalid\n"), count("LABEL "));
        (found, text)
    };
    let ((whole, none, _), _) = of("-lu", "d0.img");
    assert_eq!(none, 0);
    let ((again, none, heads), _) = of("-luu", "d0.img");
    assert_eq!((whole, again, none, heads), (25, 25, 4 * (128 - 25), 4));
    let ((all, none, _), _) = of("-luuu", "d0.img");
    assert_eq!((all, none), (4 * 25, 4 * (128 - 25)));
    let (_, text) = of("-l", "d2.img");
    let want = "    pool_guid: 2798490253302949386\n    flags: 1\n    start_lbps[0]: 0\n    start_lbps[1]: 0\n    \
                log_blk_ent: 0\n    start: 4194816\n    end: 100139008\n    evict: 4194816\n";
    assert!(text.contains(want), "{text}");
}

/// Uberblocks are whole in labels whose configuration is not.
#[test]
fn uberblocks_of_damaged_labels() {
    let Some(dir) = or_skip(fixture::unpack("single")) else {
        return;
    };
    let image = dir.path().join("d0.img");
    let at = image.to_str().unwrap();
    let count = |text: &str| text.matches("Uberblock[").count();
    let all = count(&zdb(&["-lu", at]).1);
    let mut f = std::fs::OpenOptions::new()
        .write(true)
        .open(&image)
        .unwrap();
    std::io::Seek::seek(&mut f, std::io::SeekFrom::Start(16 << 10)).unwrap();
    std::io::Write::write_all(&mut f, &[0; 112 << 10]).unwrap();
    let (out, text) = zdb(&["-lu", at]);
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert!(all > 0 && count(&text) == all, "{all}: {text}");
    assert!(text.starts_with("failed to unpack label 0\n"), "{text}");
}
