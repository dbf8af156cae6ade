//! Helpers that several subcommands share.

use api::{Dataset, DatasetGet, DatasetKind, Reply, Request};
use cli::json::{Object, Put, Style};
use cli::names::{self, Want};
use cli::{Cx, Fail, Parsed};
use control::client::unexpected;
use std::collections::HashSet;

/// A request that is answered by `Done`, or by `DoneBut` with what has to be said.
pub fn done(cx: &mut Cx<'_>, request: &Request, action: &str, object: &str) -> Result<(), Fail> {
    match cx.ask(request) {
        Ok(Reply::Done) => Ok(()),
        Ok(Reply::DoneBut(what)) => cx.say(&what).map_err(Fail::Io),
        Ok(other) => Err(cx.fail_plain(&unexpected(&other))),
        Err(e) => Err(cx.fail(&e, action, object)),
    }
}

/// The command line for the history: once for each pool the command concerns.
pub struct History {
    line: String,
    recorded: HashSet<String>,
}

impl History {
    pub fn new(cx: &Cx<'_>) -> History {
        History {
            line: cx.command(),
            recorded: HashSet::new(),
        }
    }

    /// What to record with a request on `dataset`: nothing if its pool has it already.
    pub fn line(&self, dataset: &str) -> String {
        if self.recorded.contains(names::pool_of(dataset)) {
            String::new()
        } else {
            self.line.clone()
        }
    }

    /// The request succeeded.
    pub fn done(&mut self, dataset: &str) {
        self.recorded.insert(names::pool_of(dataset).to_string());
    }
}

/// Reads `-t`.
pub fn kinds(text: &str) -> Result<Vec<DatasetKind>, Fail> {
    use DatasetKind::*;
    let mut out = Vec::new();
    for word in text.split(',') {
        match word {
            "filesystem" | "fs" => out.push(Filesystem),
            "volume" | "vol" => out.push(Volume),
            "snapshot" | "snap" => out.push(Snapshot),
            "bookmark" => out.push(Bookmark),
            "all" => out.extend([Filesystem, Volume, Snapshot, Bookmark]),
            _ => return Err(Fail::Usage(format!("invalid type '{word}'"))),
        }
    }
    out.sort();
    out.dedup();
    Ok(out)
}

/// Word for a kind.
pub fn kind_word(kind: DatasetKind) -> &'static str {
    match kind {
        DatasetKind::Filesystem => "filesystem",
        DatasetKind::Volume => "volume",
        DatasetKind::Snapshot => "snapshot",
        DatasetKind::Bookmark => "bookmark",
    }
}

/// Reads `-d`.
pub fn depth(args: &Parsed) -> Result<Option<u32>, Fail> {
    match args.get("d") {
        None => Ok(None),
        Some(text) => text
            .parse::<u32>()
            .map(Some)
            .map_err(|_| Fail::Usage(format!("{text} is not a number"))),
    }
}

/// Mount point and source of the mount that holds `path`, from the mount table.
fn mount_of(path: &str, table: &str) -> Option<(String, String, String)> {
    let mut best: Option<(String, String, String)> = None;
    for line in table.lines() {
        let mut fields = line.split(' ');
        let (Some(source), Some(point), Some(kind)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let point = unescape(point);
        let inside = path == point
            || point == "/"
            || path
                .strip_prefix(point.as_str())
                .is_some_and(|r| r.starts_with('/'));
        // The deepest one counts, of several at one place the last.
        if inside && best.as_ref().is_none_or(|(_, p, _)| point.len() >= p.len()) {
            best = Some((unescape(source), point, kind.to_string()));
        }
    }
    best
}

/// Octal escapes of the mount table: `\040` for a blank.
fn unescape(text: &str) -> String {
    let mut out = Vec::new();
    let bytes = text.as_bytes();
    let mut i = 0;
    while i < bytes.len() {
        let octal = bytes
            .get(i + 1..i + 4)
            .filter(|d| bytes[i] == b'\\' && d.iter().all(|c| (b'0'..=b'7').contains(c)));
        if let Some(d) = octal {
            let value = d.iter().fold(0u32, |v, c| v * 8 + u32::from(c - b'0'));
            out.push(value as u8);
            i += 4;
        } else {
            out.push(bytes[i]);
            i += 1;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Whether an operand is a path rather than a name.
pub fn is_path(word: &str) -> bool {
    word.starts_with('/')
        || word.starts_with("./")
        || word == "."
        || word == ".."
        || word.starts_with("../")
}

/// Dataset an operand means: a name is checked, a path is looked up in the mount table.
pub fn dataset_of(word: &str, cx: &mut Cx<'_>) -> Result<String, String> {
    if !is_path(word) {
        return names::check_dataset(word, Want::Any)
            .map(|()| word.to_string())
            .map_err(|why| format!("cannot open '{word}': {why}"));
    }
    let real = std::fs::canonicalize(word)
        .map_err(|e| format!("cannot open '{word}': {}", base::io_text(&e)))?;
    let real = real.to_string_lossy().into_owned();
    let table =
        (cx.env)("ZFS_TEST_MOUNTS").or_else(|| std::fs::read_to_string("/proc/self/mounts").ok());
    match mount_of(&real, &table.unwrap_or_default()) {
        Some((source, _, kind)) if kind == "fuse.zfs" || kind == "zfs" => Ok(source),
        _ => Err(format!("cannot open '{word}': not a ZFS filesystem")),
    }
}

/// Resolves all operands; complaints are printed, the flag says whether there were any.
pub fn roots(words: &[String], cx: &mut Cx<'_>) -> Result<(Vec<String>, bool), Fail> {
    let mut out = Vec::new();
    let mut failed = false;
    for word in words {
        match dataset_of(word, cx) {
            Ok(name) => out.push(name),
            Err(text) => {
                cx.say(&text)?;
                failed = true;
            }
        }
    }
    Ok((out, failed))
}

/// Asks for datasets; complaints about those that cannot be had are printed. The flag says whether
/// there were any.
pub fn datasets(cx: &mut Cx<'_>, get: DatasetGet) -> Result<(Vec<Dataset>, bool), Fail> {
    match cx.ask(&Request::DatasetGet(get)) {
        Ok(Reply::Datasets(answer)) => {
            for (name, error) in &answer.failed {
                cx.complain(error, "open", name)?;
            }
            Ok((answer.found, !answer.failed.is_empty()))
        }
        Ok(other) => Err(cx.fail_plain(&unexpected(&other))),
        Err(e) => Err(cx.fail_plain(&e)),
    }
}

/// Full name of a property that can be asked for.
pub fn known_property(word: &str) -> Option<String> {
    if let Some(info) = cli::props::dataset(word) {
        return Some(info.name.to_string());
    }
    let free = cli::props::is_user_property(word)
        || cli::props::is_space_property(word)
        || cli::props::is_written_property(word);
    free.then(|| word.to_string())
}

/// Reads `-o property=value` lists; each name once.
pub fn assignments<'a>(
    texts: impl Iterator<Item = &'a str>,
) -> Result<Vec<(String, String)>, Fail> {
    let mut out: Vec<(String, String)> = Vec::new();
    for text in texts {
        let (name, value) = names::assignment(text).ok_or_else(|| {
            Fail::Error(format!("missing '=' for property=value argument '{text}'"))
        })?;
        let name = known_property(&name).unwrap_or(name);
        if out.iter().any(|(n, _)| *n == name) {
            return Err(Fail::Error(format!(
                "property '{name}' specified multiple times"
            )));
        }
        out.push((name, value));
    }
    Ok(out)
}

/// Whether `-t` asks for snapshots and bookmarks alone, and none is named: for those of the file systems named.
pub fn asks_below(args: &Parsed, kinds: &[DatasetKind], roots: &[String]) -> bool {
    let mark = |k: &DatasetKind| matches!(k, DatasetKind::Snapshot | DatasetKind::Bookmark);
    args.has("t") && kinds.iter().all(mark) && !roots.iter().any(|r| r.contains(['@', '#']))
}

/// Reads `-j`, `--json-int` and `-p`.
pub fn json_style(args: &Parsed) -> Result<Option<Style>, Fail> {
    let json = args.has("j");
    if args.has("json-int") && !json {
        return Err(Fail::Usage(
            "'--json-int' only works with '-j' option".into(),
        ));
    }
    Ok(json.then(|| Style {
        exact: args.has("p") || args.has("json-int"),
        int: args.has("json-int"),
    }))
}

/// The block every dataset in JSON begins with.
pub fn json_dataset(d: &Dataset, style: Style) -> Object {
    let mut o = Object::new()
        .with("name", d.name.as_str())
        .with("type", kind_word(d.kind).to_uppercase())
        .with("pool", names::pool_of(&d.name));
    o.put("createtxg", style.plain(d.createtxg));
    if let Some((fs, snap)) = d.name.split_once('@') {
        o.put("dataset", fs);
        o.put("snapshot_name", snap);
    }
    o
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts() {
        let table = "sysfs /sys sysfs rw 0 0\ntank /tank fuse.zfs rw 0 0\n\
                     tank/a\\040b /tank/a\\040b fuse.zfs rw 0 0\n/dev/sda1 / ext4 rw 0 0\n";
        let source = |p: &str| mount_of(p, table).map(|m| (m.0, m.2));
        assert_eq!(source("/tank/x"), Some(("tank".into(), "fuse.zfs".into())));
        assert_eq!(
            source("/tank/a b/c"),
            Some(("tank/a b".into(), "fuse.zfs".into()))
        );
        assert_eq!(source("/tanker"), Some(("/dev/sda1".into(), "ext4".into())));
        assert_eq!(unescape("a\\134\\04"), "a\\\\04");
    }
}
