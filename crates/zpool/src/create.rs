//! `zpool create`: the layout on the command line, and objections to it.

use crate::{common, draid};
use api::{ApiError, PoolCreate, Request, VdevClass, VdevKind, VdevSpec};
use base::Kind;
use cli::{Cx, Fail, Outcome, Parsed};
use std::collections::HashSet;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Most devices of a group.
const MAX_CHILDREN: usize = 255;
/// Devices of a group may differ by this much, bytes.
const SIZE_SLACK: u64 = 16 << 20;

/// Places where short device names are looked up.
const DEVICE_DIRS: [&str; 8] = [
    "/dev/disk/by-vdev",
    "/dev/mapper",
    "/dev/disk/by-partlabel",
    "/dev/disk/by-label",
    "/dev/disk/by-uuid",
    "/dev/disk/by-id",
    "/dev/disk/by-path",
    "/dev",
];

pub fn create(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let (name, words) = match args.operands.split_first() {
        None => return Err(Fail::Usage("missing pool name argument".into())),
        Some((_, [])) => return Err(Fail::Usage("missing vdev specification".into())),
        Some((name, words)) => (name.clone(), words),
    };
    if name.contains('/') {
        return Err(Fail::Error(format!(
            "cannot create '{name}': invalid character '/' in pool name\n\
             use 'zfs create' to create a dataset"
        )));
    }
    if let Err(why) = cli::names::check_pool(&name, true) {
        let omitted = ["mirror", "raidz", "draid", "spare", "log"]
            .iter()
            .any(|w| name.starts_with(w));
        let hint = if omitted {
            "\npool name may have been omitted"
        } else {
            ""
        };
        return Err(Fail::Error(format!("cannot create '{name}': {why}{hint}")));
    }
    if let Some(temp) = args.get("t") {
        cli::names::check_pool(temp, true)
            .map_err(|why| Fail::Error(format!("cannot create '{temp}': {why}")))?;
    }

    let mut props =
        common::assignments(args.all("o"), common::pool_property, common::POOL_PROPERTY)?;
    if props.iter().any(|(n, _)| n == "version")
        && props.iter().any(|(n, _)| n.starts_with("feature@"))
    {
        return Err(Fail::Error(
            "'feature@' and 'version' properties cannot be specified together".into(),
        ));
    }
    let mut fs_props = common::assignments(
        args.all("O"),
        common::dataset_property,
        "file system property",
    )?;
    if let Some(mountpoint) = args.get("m") {
        if fs_props.iter().any(|(n, _)| n == "mountpoint") {
            return Err(Fail::Error(
                "property 'mountpoint' specified multiple times".into(),
            ));
        }
        fs_props.push(("mountpoint".into(), mountpoint.into()));
    }
    let mut altroot = args.get("R").map(str::to_string);
    if let Some(at) = props.iter().position(|(n, _)| n == "altroot") {
        if altroot.is_some() {
            return Err(Fail::Error(
                "property 'altroot' specified multiple times".into(),
            ));
        }
        altroot = Some(props.remove(at).1);
    }
    if let Some(root) = &altroot {
        if !root.starts_with('/') {
            return Err(Fail::Error(format!(
                "cannot create '{name}': alternate root '{root}' is not an absolute path"
            )));
        }
    }
    if (altroot.is_some() || args.has("t")) && !props.iter().any(|(n, _)| n == "cachefile") {
        props.push(("cachefile".into(), "none".into()));
    }

    let vdevs = parse_vdevs(words, &resolve).map_err(Fail::Error)?;
    if !vdevs.iter().any(|v| v.class == VdevClass::Normal) {
        return Err(Fail::Error(
            "invalid vdev specification: at least one toplevel vdev must be specified".into(),
        ));
    }
    let perhaps = ", or one of the devices is part of an active md or lvm device";
    refuse_twice(&format!("cannot create '{name}'"), perhaps, &vdevs)?;
    let (force, dry_run) = (args.has("f"), args.has("n"));
    let mut ask = PoolCreate {
        name: name.clone(),
        vdevs: vdevs.clone(),
        props,
        fs_props,
        key: None,
        altroot,
        temp_name: args.get("t").map(str::to_string),
        force,
        no_features: args.has("d"),
        dry_run: true,
        command: cx.command(),
    };
    let errors = match force {
        true => Vec::new(),
        false => mismatches(&vdevs, &size_of),
    };
    if !errors.is_empty() {
        let mismatch = ApiError::vdevs(true, &errors);
        return Err(refused(cx, &Request::PoolCreate(ask), &mismatch));
    }
    if !dry_run {
        ask.dry_run = false;
        ask.key = cli::keys::for_new(&ask.fs_props, &name)
            .map_err(|why| Fail::Error(format!("cannot create '{name}': {why}")))?;
    }
    common::done(cx, &Request::PoolCreate(ask), "create", &name)?;
    if dry_run {
        write!(
            cx.out,
            "would create '{name}' with the following layout:\n\n{}",
            layout(&name, &vdevs)
        )?;
    }
    Ok(0)
}

/// Tells of devices in use, if that is what a try of the request is refused for, and of the redundancy that does not fit otherwise: the
/// order of OpenZFS.
pub fn refused(cx: &mut Cx<'_>, dry_run: &Request, mismatch: &ApiError) -> Fail {
    match cx.ask(dry_run) {
        Err(e) if e.code == Kind::Busy.errno() && e.whole => cx.fail_plain(&e),
        _ => cx.fail_plain(mismatch),
    }
}

/// Path and kind of a device word.
pub type Resolve = dyn Fn(&str) -> Result<(String, VdevKind), String>;

/// Finds the device a word means.
pub fn resolve(word: &str) -> Result<(String, VdevKind), String> {
    // The daemon connects, and says what is wrong with it.
    if base::is_network_device(word) {
        return Ok((word.to_string(), VdevKind::Disk));
    }
    // A path that begins here can only mean the file here; a bare name is looked for in /dev first.
    let path = if word.starts_with('/') {
        word.to_string()
    } else if let Some(path) = beside(word) {
        path
    } else {
        let found = DEVICE_DIRS
            .iter()
            .map(|d| format!("{d}/{word}"))
            .find(|p| Path::new(p).exists());
        match found {
            Some(path) => path,
            None => {
                let mut text = format!(
                    "cannot open '{word}': no such device in /dev\n\
                     must be a full path or shorthand device name"
                );
                if Path::new(word).exists() {
                    text.push_str(&format!(
                        "\nfor the file here give its full path: {}",
                        cli::run::absolute(word)
                    ));
                }
                return Err(text);
            }
        }
    };
    let meta = std::fs::metadata(&path)
        .map_err(|e| format!("cannot open '{path}': {}", base::io_text(&e)))?;
    if meta.file_type().is_block_device() {
        Ok((path, VdevKind::Disk))
    } else if meta.is_file() {
        Ok((path, VdevKind::File))
    } else {
        Err(format!(
            "cannot use '{path}': must be a block device or regular file"
        ))
    }
}

/// The full path of a file that `./file` or the like names.
fn beside(word: &str) -> Option<String> {
    let (folder, name) = word.rsplit_once('/')?;
    if !folder.starts_with('.') || !Path::new(word).exists() {
        return None;
    }
    let folder = std::fs::canonicalize(folder).ok()?;
    Some(folder.join(name).to_str()?.to_string())
}

/// Size of a device or file where it can be had without opening it.
pub fn size_of(path: &str) -> Option<u64> {
    let meta = std::fs::metadata(path).ok()?;
    if meta.is_file() {
        return Some(meta.len());
    }
    let real = std::fs::canonicalize(path).ok()?;
    let name = real.file_name()?.to_str()?.to_string();
    let sectors = std::fs::read_to_string(format!("/sys/class/block/{name}/size")).ok()?;
    sectors.trim().parse::<u64>().ok().map(|s| s * 512)
}

/// What a word that is no device opens.
enum Keyword {
    Group(VdevKind),
    /// With this parity.
    Draid(u8),
    Class(VdevClass),
}

fn keyword(word: &str) -> Option<Keyword> {
    Some(match word {
        "mirror" => Keyword::Group(VdevKind::Mirror),
        "raidz" | "raidz1" => Keyword::Group(VdevKind::Raidz { parity: 1 }),
        "raidz2" => Keyword::Group(VdevKind::Raidz { parity: 2 }),
        "raidz3" => Keyword::Group(VdevKind::Raidz { parity: 3 }),
        "special" => Keyword::Class(VdevClass::Special),
        "dedup" => Keyword::Class(VdevClass::Dedup),
        "log" => Keyword::Class(VdevClass::Log),
        "cache" => Keyword::Class(VdevClass::Cache),
        "spare" => Keyword::Class(VdevClass::Spare),
        _ => Keyword::Draid(draid::parity(word)?),
    })
}

fn class_word(class: VdevClass) -> &'static str {
    match class {
        VdevClass::Cache => "cache",
        other => cli::vdevs::class_word(other),
    }
}

/// Reads the words after the pool's name (command reference §6.1).
pub fn parse_vdevs(words: &[String], resolve: &Resolve) -> Result<Vec<VdevSpec>, String> {
    let bad = |what: String| Err(format!("invalid vdev specification: {what}"));
    let mut out: Vec<VdevSpec> = Vec::new();
    let mut class = VdevClass::Normal;
    let mut seen: Vec<VdevClass> = Vec::new();
    let mut devices_of_class = 0usize;
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        match keyword(word) {
            Some(Keyword::Class(c)) => {
                if class != VdevClass::Normal && devices_of_class == 0 {
                    return bad(format!("{} requires at least 1 devices", class_word(class)));
                }
                let once = matches!(c, VdevClass::Log | VdevClass::Cache | VdevClass::Spare);
                if once && seen.contains(&c) {
                    return bad(format!("'{}' can be specified only once", class_word(c)));
                }
                seen.push(c);
                class = c;
                devices_of_class = 0;
            }
            Some(group @ (Keyword::Group(_) | Keyword::Draid(_))) => {
                let kind = match group {
                    Keyword::Group(kind) => Some(kind),
                    _ => None,
                };
                // Spares and cache devices are never groups: a group ends their list.
                if matches!(class, VdevClass::Cache | VdevClass::Spare) {
                    if devices_of_class == 0 {
                        return bad(format!("{} requires at least 1 devices", class_word(class)));
                    }
                    class = VdevClass::Normal;
                }
                if class == VdevClass::Log && kind != Some(VdevKind::Mirror) {
                    return bad(format!(
                        "unsupported '{}' device: {word}",
                        class_word(class)
                    ));
                }
                let mut children = Vec::new();
                while let Some(next) = words.next_if(|w| keyword(w).is_none()) {
                    let (path, kind) = resolve(next)?;
                    children.push(VdevSpec {
                        kind,
                        class,
                        path: Some(path),
                        children: Vec::new(),
                    });
                }
                let least = match group {
                    Keyword::Draid(parity) | Keyword::Group(VdevKind::Raidz { parity }) => {
                        usize::from(parity) + 1
                    }
                    _ => 2,
                };
                if children.len() < least {
                    return bad(format!("{word} requires at least {least} devices"));
                }
                if children.len() > MAX_CHILDREN {
                    return bad(format!(
                        "{word} supports no more than {MAX_CHILDREN} devices"
                    ));
                }
                devices_of_class += 1;
                let kind = match kind {
                    Some(kind) => kind,
                    None => draid::group(word, children.len())?,
                };
                out.push(VdevSpec {
                    kind,
                    class,
                    path: None,
                    children,
                });
            }
            None => {
                let (path, kind) = resolve(word)?;
                devices_of_class += 1;
                out.push(VdevSpec {
                    kind,
                    class,
                    path: Some(path),
                    children: Vec::new(),
                });
            }
        }
    }
    if out.is_empty() {
        return bad("at least one toplevel vdev must be specified".into());
    }
    if class != VdevClass::Normal && devices_of_class == 0 {
        return bad(format!("{} requires at least 1 devices", class_word(class)));
    }
    Ok(out)
}

fn leaves<'a>(vdevs: &'a [VdevSpec]) -> Box<dyn Iterator<Item = &'a VdevSpec> + 'a> {
    Box::new(vdevs.iter().flat_map(|v| {
        let own = v.path.is_some().then_some(v);
        own.into_iter().chain(leaves(&v.children))
    }))
}

/// `perhaps`: what else it may be.
pub fn refuse_twice(action: &str, perhaps: &str, vdevs: &[VdevSpec]) -> Result<(), Fail> {
    let mut seen = HashSet::new();
    for leaf in leaves(vdevs) {
        let path = leaf.path.as_deref().unwrap_or_default();
        let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.into());
        if !seen.insert(real) {
            return Err(Fail::Error(format!(
                "{action}: one or more vdevs refer to the same device{perhaps}"
            )));
        }
    }
    Ok(())
}

/// Kind, number of devices that may be lost, number of devices: what must agree among the
/// top-level vdevs.
pub fn shape(vdev: &VdevSpec) -> (&'static str, usize, usize) {
    match vdev.kind {
        VdevKind::Mirror => ("mirror", vdev.children.len() - 1, vdev.children.len()),
        VdevKind::Raidz { parity } => ("raidz", usize::from(parity), vdev.children.len()),
        VdevKind::Draid { parity, .. } => ("draid", usize::from(parity), vdev.children.len()),
        VdevKind::File => ("file", 0, 1),
        _ => ("disk", 0, 1),
    }
}

/// Why the redundancy of the vdevs does not fit together (command reference §6.4).
pub fn mismatches(vdevs: &[VdevSpec], size: &dyn Fn(&str) -> Option<u64>) -> Vec<String> {
    let mut errors = Vec::new();
    let level = "mismatched replication level:";
    for group in vdevs.iter().filter(|v| !v.children.is_empty()) {
        let word = match group.kind {
            VdevKind::Raidz { .. } => "raidz",
            VdevKind::Draid { .. } => "draid",
            _ => "mirror",
        };
        let files = group.children.iter().any(|c| c.kind == VdevKind::File);
        let disks = group.children.iter().any(|c| c.kind == VdevKind::Disk);
        if files && disks {
            errors.push(format!("{level} {word} contains both files and devices"));
            return errors;
        }
        let sizes: Vec<u64> = group
            .children
            .iter()
            .filter_map(|c| c.path.as_deref().and_then(size))
            .collect();
        if let (Some(min), Some(max)) = (sizes.iter().min(), sizes.iter().max()) {
            if max - min > SIZE_SLACK {
                errors.push(format!("{word} contains devices of different sizes"));
                return errors;
            }
        }
    }
    let data = [VdevClass::Normal, VdevClass::Special, VdevClass::Dedup];
    let tops = vdevs.iter().filter(|v| data.contains(&v.class));
    let shapes: Vec<_> = tops.map(shape).collect();
    let Some(first) = shapes.first() else {
        return errors;
    };
    for other in &shapes[1..] {
        if redundant(first.0) && redundant(other.0) && first.0 != other.0 {
            if first.1 != other.1 {
                errors.push(format!(
                    "{level} {} are present",
                    different_redundancy("", *first, *other)
                ));
                return errors;
            }
            continue;
        }
        if first.0 != other.0 {
            let plain = !redundant(first.0) && !redundant(other.0);
            errors.push(if plain {
                format!("{level} both files and devices are present")
            } else {
                format!("{level} both {} and {} vdevs are present", first.0, other.0)
            });
            return errors;
        }
        let rows = first.0 != "mirror" && redundant(first.0);
        if rows && first.1 != other.1 {
            errors.push(format!(
                "{level} both {} and {} device parity {} vdevs are present",
                first.1, other.1, first.0
            ));
            return errors;
        }
        if first.2 != other.2 {
            errors.push(format!(
                "{level} both {}-way and {}-way {} vdevs are present",
                first.2, other.2, first.0
            ));
            return errors;
        }
    }
    errors
}

/// That vdevs of these shapes cannot do without equally many devices. As in OpenZFS, which names a mirror last, and tells how wide it is.
/// `what`: whose they are, if that is said.
pub fn different_redundancy(
    what: &str,
    a: (&str, usize, usize),
    b: (&str, usize, usize),
) -> String {
    let (a, b) = match a.0 {
        "mirror" => (b, a),
        _ => (a, b),
    };
    let width = match b.0 {
        "mirror" => format!(" ({}-way)", b.2),
        _ => String::new(),
    };
    match what {
        "" => format!(
            "{} and {} vdevs with different redundancy, {} vs. {}{width}",
            a.0, b.0, a.1, b.1
        ),
        what => format!(
            "{what} with different redundancy, {} and {} vdevs, {} vs. {}{width}",
            a.0, b.0, a.1, b.1
        ),
    }
}

/// Whether vdevs of this kind (as [`shape`] calls it) can do without some of their devices. Those of different kinds go
/// together if the numbers are equal.
pub fn redundant(kind: &str) -> bool {
    matches!(kind, "mirror" | "raidz" | "draid")
}

/// The tree `-n` prints.
pub fn layout(pool: &str, vdevs: &[VdevSpec]) -> String {
    fn name(v: &VdevSpec) -> String {
        match (&v.path, v.kind) {
            (Some(path), VdevKind::Disk) => base::short_device_name(path).to_string(),
            (Some(path), _) => path.clone(),
            (None, VdevKind::Raidz { parity }) => format!("raidz{parity}"),
            (
                None,
                VdevKind::Draid {
                    parity,
                    data,
                    children,
                    spares,
                },
            ) => format!("draid{parity}:{data}d:{children}c:{spares}s"),
            (None, _) => "mirror".to_string(),
        }
    }
    let mut out = String::new();
    let normal = std::iter::once((VdevClass::Normal, pool));
    for (class, heading) in normal.chain(cli::vdevs::CLASSES) {
        let mut members = vdevs.iter().filter(|v| v.class == class).peekable();
        if members.peek().is_none() {
            continue;
        }
        out.push_str(&format!("\t{heading}\n"));
        for v in members {
            out.push_str(&format!("\t  {}\n", name(v)));
            for c in &v.children {
                out.push_str(&format!("\t    {}\n", name(c)));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<VdevSpec>, String> {
        let words: Vec<String> = text.split_whitespace().map(str::to_string).collect();
        parse_vdevs(&words, &|w: &str| {
            if w == "gone" {
                return Err(format!("cannot open '{w}'"));
            }
            let kind = if w.starts_with("/f") {
                VdevKind::File
            } else {
                VdevKind::Disk
            };
            let path = if w.starts_with('/') {
                w.to_string()
            } else {
                format!("/dev/{w}")
            };
            Ok((path, kind))
        })
    }

    #[test]
    fn the_article() {
        let v = parse("/dev/sdd1").unwrap();
        assert_eq!(layout("tank", &v), "\ttank\n\t  sdd1\n");
    }

    #[test]
    fn groups_and_classes() {
        let v = parse(
            "mirror a b raidz2 c d e special mirror f g log mirror h i j cache k spare l /f/m",
        )
        .unwrap();
        assert_eq!(
            layout("t", &v),
            "\tt\n\t  mirror\n\t    a\n\t    b\n\t  raidz2\n\t    c\n\t    d\n\t    e\n\
             \tspecial\n\t  mirror\n\t    f\n\t    g\n\
             \tlogs\n\t  mirror\n\t    h\n\t    i\n\t    j\n\
             \tcache\n\t  k\n\tspares\n\t  l\n\t  /f/m\n"
        );
        // A class lasts until the next one.
        let v = parse("a special b c").unwrap();
        assert_eq!(
            v.iter().map(|v| v.class).collect::<Vec<_>>(),
            [VdevClass::Normal, VdevClass::Special, VdevClass::Special]
        );
        // Spares and cache devices are followed by groups of data.
        let v = parse("spare a b mirror c d cache e raidz f g").unwrap();
        assert_eq!(
            layout("t", &v),
            "\tt\n\t  mirror\n\t    c\n\t    d\n\t  raidz1\n\t    f\n\t    g\n\
             \tcache\n\t  e\n\tspares\n\t  a\n\t  b\n"
        );
    }

    #[test]
    fn bad_layouts() {
        for (text, why) in [
            ("mirror a", "mirror requires at least 2 devices"),
            ("raidz a", "raidz requires at least 2 devices"),
            ("raidz3 a b c", "raidz3 requires at least 4 devices"),
            ("a log raidz b c", "unsupported 'log' device: raidz"),
            ("a cache mirror b c", "cache requires at least 1 devices"),
            ("spare mirror a b", "spare requires at least 1 devices"),
            ("a spare b spare c", "'spare' can be specified only once"),
            ("a log b log c", "'log' can be specified only once"),
            ("a log", "log requires at least 1 devices"),
            ("mirror mirror a b", "mirror requires at least 2 devices"),
        ] {
            assert_eq!(
                parse(text),
                Err(format!("invalid vdev specification: {why}")),
                "{text}"
            );
        }
        assert!(parse("draid1:4d:9c a b").unwrap_err().contains("dRAID"));
        assert!(parse("a log draid b c")
            .unwrap_err()
            .contains("unsupported 'log' device: draid"));
        let v = parse("draid2:2d:5c:1s a b c d e").unwrap();
        assert_eq!(
            layout("t", &v),
            "\tt\n\t  draid2:2d:5c:1s\n\t    a\n\t    b\n\t    c\n\t    d\n\t    e\n"
        );
        assert!(parse("mirror a gone").is_err());
    }

    #[test]
    fn replication() {
        let check = |text: &str| {
            mismatches(&parse(text).unwrap(), &|p| {
                Some(if p.ends_with("small") {
                    64 << 20
                } else {
                    1 << 30
                })
            })
        };
        for good in [
            "a",
            "a b",
            "mirror a b mirror c d",
            "raidz a b c raidz d e f log g",
            "raidz2 a b c d draid2:2d e f g h i",
            "mirror a b special mirror c d",
            "mirror a b raidz c d e",
            "mirror a b c raidz2 d e f draid2 g h i j",
            "draid2 a b c d special mirror e f g",
            "/f/1 /f/2",
        ] {
            assert!(check(good).is_empty(), "{good}");
        }
        for (bad, why) in [
            ("a mirror b c", "both disk and mirror vdevs are present"),
            (
                "mirror a b raidz2 c d e",
                "raidz and mirror vdevs with different redundancy, 2 vs. 1 (2-way) are present",
            ),
            (
                "draid a b c draid d e f special mirror g h i",
                "draid and mirror vdevs with different redundancy, 1 vs. 2 (3-way) are present",
            ),
            (
                "mirror a b mirror c d e",
                "both 2-way and 3-way mirror vdevs are present",
            ),
            (
                "raidz a b c raidz d e f g",
                "both 3-way and 4-way raidz vdevs are present",
            ),
            (
                "raidz a b c raidz2 d e f",
                "both 1 and 2 device parity raidz vdevs are present",
            ),
            ("mirror a /f/b", "mirror contains both files and devices"),
            ("a /f/b", "both files and devices are present"),
            (
                "raidz a b c draid2:1d d e f",
                "raidz and draid vdevs with different redundancy, 1 vs. 2 are present",
            ),
            (
                "draid a b c draid2:1d d e f",
                "both 1 and 2 device parity draid vdevs are present",
            ),
        ] {
            assert_eq!(
                check(bad),
                [format!("mismatched replication level: {why}")],
                "{bad}"
            );
        }
        assert_eq!(
            check("mirror a small"),
            ["mirror contains devices of different sizes"]
        );
        assert_eq!(check("mirror a b special c").len(), 1);
    }
}
