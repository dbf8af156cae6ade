use super::*;

/// Every different (type of dataset, property, exact value, source) that OpenZFS 2.3 printed for a
/// collection of pools; a star stands for values that are measured.
const SEEN: &str = include_str!("../../testdata/properties.txt");

fn type_of(word: &str) -> Option<Types> {
    Some(match word {
        "filesystem" => Types::FILESYSTEM,
        "volume" => Types::VOLUME,
        "snapshot" => Types::SNAPSHOT,
        "bookmark" => Types::BOOKMARK,
        _ => return None,
    })
}

#[test]
fn agrees_with_what_openzfs_prints() {
    let mut rows = 0;
    for line in SEEN.lines() {
        let f: Vec<&str> = line.split('\t').collect();
        let [ty, name, value, source] = f[..] else {
            panic!("{line}");
        };
        rows += 1;
        let (kind, default, printed, types) = match type_of(ty) {
            Some(t) => {
                let p = dataset(name).unwrap_or_else(|| panic!("{line}"));
                assert!(p.types.contains(t), "{line}");
                assert!(!p.hidden, "{line}");
                // What is inherited must be inheritable.
                assert!(source != "inherited" || p.inheritable(), "{line}");
                let computed =
                    matches!(p.class, Class::ReadOnly | Class::Once | Class::OnceDefault)
                        || p.store == Store::MasterNode;
                assert!(computed || source != "-", "{line}");
                (p.kind, p.default, None, p.types)
            }
            None => {
                let p = pool(name).unwrap_or_else(|| panic!("{line}"));
                let shown = p.default.value().map(|v| p.print(&v));
                (p.kind, p.default, shown, Types(0))
            }
        };
        if value == "*" || types.0 == 0 && value == "-" {
            continue;
        }
        if printed.is_none() {
            let v = match kind {
                Kind::Number(_) => match value {
                    "none" => PropValue::Number(UNLIMITED),
                    _ => PropValue::Number(value.parse().unwrap()),
                },
                _ => kind.parse(name, value).unwrap(),
            };
            assert!(kind.accepts(&v), "{line}");
            assert_eq!(kind.print(&v), value, "{line}");
            if source == "default" {
                assert_eq!(default.value(), Some(v), "{line}");
            }
        } else if source == "default" {
            assert_eq!(printed.as_deref(), Some(value), "{line}");
        }
    }
    assert!(rows > 200);
}

/// Order of `zfs get all` and `zpool get all` (properties reference §14).
const DATASET_ORDER: &str = "\
        type creation used available referenced compressratio mounted origin quota \
        reservation volsize volblocksize recordsize mountpoint sharenfs checksum compression \
        atime devices exec setuid readonly zoned snapdir aclmode aclinherit createtxg \
        canmount xattr copies version utf8only normalization casesensitivity vscan nbmand \
        sharesmb refquota refreservation guid primarycache secondarycache usedbysnapshots \
        usedbydataset usedbychildren usedbyrefreservation defer_destroy userrefs logbias \
        objsetid dedup mlslabel sync dnodesize refcompressratio written clones logicalused \
        logicalreferenced volmode filesystem_limit snapshot_limit filesystem_count \
        snapshot_count snapdev acltype context fscontext defcontext rootcontext relatime \
        redundant_metadata overlay receive_resume_token encryption keylocation keyformat \
        pbkdf2iters encryptionroot keystatus special_small_blocks redact_snaps \
        snapshots_changed prefetch volthreading direct longname defaultuserquota \
        defaultgroupquota defaultprojectquota defaultuserobjquota defaultgroupobjquota \
        defaultprojectobjquota";
const POOL_ORDER: &str = "\
        size capacity altroot health guid version bootfs delegation autoreplace cachefile \
        failmode listsnapshots autoexpand dedupratio free allocated readonly ashift comment \
        expandsize freeing fragmentation leaked multihost checkpoint load_guid autotrim \
        compatibility bcloneused bclonesaved bcloneratio dedup_table_size dedup_table_quota \
        last_scrubbed_txg";

#[test]
fn order_of_display() {
    let shown = |p: &&Prop| !p.hidden;
    let names: Vec<&str> = DATASET.iter().filter(shown).map(|p| p.name).collect();
    assert_eq!(names, DATASET_ORDER.split_whitespace().collect::<Vec<_>>());
    let names: Vec<&str> = POOL.iter().filter(|p| !p.hidden).map(|p| p.name).collect();
    assert_eq!(names, POOL_ORDER.split_whitespace().collect::<Vec<_>>());
}

#[test]
fn tables_are_consistent() {
    for p in DATASET {
        assert_eq!(dataset(p.name).map(|q| q.name), Some(p.name));
        if let Some(v) = p.default.value() {
            assert!(p.kind.accepts(&v), "{}", p.name);
            assert_ne!(p.class, Class::ReadOnly, "{}", p.name);
        }
        for only in p.only.unwrap_or(&[]) {
            assert!(p.kind.parse(p.name, only).is_ok(), "{}", p.name);
        }
        if let Kind::Index(words) = p.kind {
            // Every word is accepted, and what is printed for it means the same.
            for (word, n) in words {
                let v = p.kind.parse(p.name, word).unwrap();
                assert_eq!(v, PropValue::Number(*n));
                let again = p.kind.parse(p.name, &p.print(&v)).unwrap();
                assert_eq!(again, v);
            }
        }
    }
    for p in POOL {
        assert_eq!(pool(p.name).map(|q| q.name), Some(p.name));
        if let Some(v) = p.default.value() {
            assert!(p.kind.accepts(&v), "{}", p.name);
        }
    }
    assert_eq!(dataset("refer").unwrap().name, "referenced");
    assert_eq!(pool("listsnaps").unwrap().name, "listsnapshots");
    assert!(dataset("nonsense").is_none() && pool("nonsense").is_none());
}

fn set(name: &str, value: &str) -> std::result::Result<PropValue, String> {
    let p = dataset(name).unwrap();
    p.parse(value, Types::FILESYSTEM, false)
        .map_err(|e| e.to_string())
}

#[test]
fn good_values() {
    for (name, text, want) in [
        ("recordsize", "1M", 1 << 20),
        ("recordsize", "512", 512),
        ("compression", "zstd-fast-1000", 16 + (123 << 7)),
        ("compression", "zstd-19", 16 + (19 << 7)),
        ("compression", "gzip", 10),
        ("checksum", "skein", 12),
        ("quota", "none", 0),
        ("quota", "1.5G", 3 << 29),
        ("reservation", "0", 0),
        ("filesystem_limit", "none", u64::MAX),
        ("filesystem_limit", "0", 0),
        ("atime", "off", 0),
        ("acltype", "posixacl", 1),
        ("version", "current", 5),
        ("xattr", "on", 2),
        ("dnodesize", "16k", 16384),
    ] {
        assert_eq!(set(name, text), Ok(PropValue::Number(want)), "{name}");
    }
    assert_eq!(set("mountpoint", "/x/y"), Ok("/x/y".into()));
    let r = dataset("refreservation").unwrap();
    let v = r.parse("auto", Types::VOLUME, false).unwrap();
    assert_eq!(v, PropValue::Number(UNLIMITED));
    assert_eq!(r.print(&PropValue::Number(0)), "0");
    let l = dataset("snapshot_limit").unwrap();
    assert_eq!(l.print(&PropValue::Number(UNLIMITED)), "none");
}

#[test]
fn refusals() {
    for (name, text, want) in [
        ("atime", "maybe", "'atime' must be one of 'on | off'"),
        (
            "compression",
            "fast",
            "'compression' must be one of 'on | off | lzjb | gzip | gzip-[1-9] | zle | lz4 | zstd | zstd-[1-19] | \
             zstd-fast | zstd-fast-[1-10,20,30,40,50,60,70,80,90,100,500,1000]'",
        ),
        ("atime", "ON", "'atime' must be one of 'on | off'"),
        (
            "acltype",
            "x",
            "'acltype' must be one of 'off | nfsv4 | posix'",
        ),
        (
            "recordsize",
            "1000",
            "'recordsize' must be power of 2 from 512B to 16M",
        ),
        (
            "recordsize",
            "32M",
            "'recordsize' must be power of 2 from 512B to 16M",
        ),
        ("recordsize", "abc", "bad numeric value 'abc'"),
        ("recordsize", "12x", "invalid numeric suffix 'x'"),
        ("quota", "0", "use 'none' to disable quota"),
        ("quota", "99999999E", "numeric value is too large"),
        ("used", "1", "'used' is readonly"),
        ("utf8only", "on", "'utf8only' is readonly"),
        (
            "volsize",
            "1G",
            "'volsize' does not apply to datasets of this type",
        ),
        (
            "refreservation",
            "auto",
            "'refreservation=auto' only allowed on volumes",
        ),
        (
            "mountpoint",
            "x",
            "'mountpoint' must be an absolute path, 'none', or 'legacy'",
        ),
        (
            "mountpoint",
            "/a/../b",
            "'mountpoint' must not contain '..'",
        ),
        (
            "special_small_blocks",
            "17M",
            "'special_small_blocks' must be between zero and 16M",
        ),
    ] {
        assert_eq!(set(name, text), Err(want.to_string()));
    }
    let p = dataset("mountpoint").unwrap();
    let long = format!("/{}", "x".repeat(9000));
    let e = p.parse(&long, Types::FILESYSTEM, false).unwrap_err();
    assert_eq!(e.what(), Some("'mountpoint' is too long"));
    let e = dataset("encryption").unwrap();
    assert!(e.parse("on", Types::FILESYSTEM, true).is_ok());
    assert!(e.parse("on", Types::FILESYSTEM, false).is_err());
    let a = dataset("atime").unwrap();
    assert!(a.parse("on", Types::SNAPSHOT, false).is_err());
    let u = dataset("utf8only").unwrap();
    assert!(u.parse("on", Types::FILESYSTEM, true).is_ok());
}

#[test]
fn pools() {
    let set = |name: &str, value: &str, when| {
        let p = pool(name).unwrap();
        p.parse(value, when).map_err(|e| e.to_string())
    };
    assert_eq!(set("ashift", "12", When::Create), Ok(12.into()));
    assert_eq!(
        set("ashift", "8", When::Create),
        Err("'ashift' must be 0 or between 9 and 16".into())
    );
    assert!(set("size", "1", When::Set).is_err());
    assert!(set("altroot", "/x", When::Set).is_err());
    assert!(set("altroot", "/x", When::Import).is_ok());
    assert!(set("readonly", "on", When::Create).is_err());
    assert!(set("readonly", "on", When::Import).is_ok());
    assert!(set("comment", &"x".repeat(33), When::Set).is_err());
    assert!(set("comment", "tab\t", When::Set).is_err());
    assert!(set("comment", "", When::Set).is_ok());
    assert!(set("cachefile", "relative", When::Set).is_err());
    assert!(set("cachefile", "none", When::Set).is_ok());
    assert!(set("version", "29", When::Set).is_err());
    let v = pool("version").unwrap();
    assert_eq!(v.print(&5000.into()), "-");
    assert_eq!(v.print(&28.into()), "28");
}

#[test]
fn user_properties() {
    assert!(check_user("com.example:a-b_c.1", "anything").is_ok());
    for bad in ["noname", "Com:x", "-a:b", "a b:c", "ä:b"] {
        assert!(check_user(bad, "x").is_err(), "{bad}");
    }
    assert!(check_user(&format!("a:{}", "b".repeat(253)), "").is_ok());
    assert!(check_user(&format!("a:{}", "b".repeat(254)), "").is_err());
    assert!(check_user("a:b", &"x".repeat(8191)).is_ok());
    assert!(check_user("a:b", &"x".repeat(8192)).is_err());
}

#[test]
fn pseudo_properties() {
    let q = |who, objects| Pseudo::Quota {
        who,
        objects,
        id: "joe",
    };
    assert_eq!(Pseudo::parse("userquota@joe"), Some(q(Who::User, false)));
    assert_eq!(
        Pseudo::parse("groupobjquota@joe"),
        Some(q(Who::Group, true))
    );
    let used = Pseudo::Used {
        who: Who::Project,
        objects: true,
        id: "7",
    };
    assert_eq!(Pseudo::parse("projectobjused@7"), Some(used));
    assert_eq!(Pseudo::parse("written@a"), Some(Pseudo::Written("a")));
    assert_eq!(Pseudo::parse("written#a"), Some(Pseudo::Written("#a")));
    for bad in ["written", "userquota", "userfoo@x", "xquota@y", "a:b@c"] {
        assert_eq!(Pseudo::parse(bad), None, "{bad}");
    }
}
