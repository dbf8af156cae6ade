//! `zfs load-key`, `zfs unload-key`, `zfs change-key`.

use crate::common::{self, History};
use api::{Reply, Request, Secret};
use cli::keys::{self, KeyFacts, Location, Prompt};
use cli::names::{self, Want};
use cli::{Cx, Fail, Outcome, Parsed};
use control::client::unexpected;

/// Status of commands about keys that failed.
const FAILED: i32 = 255;

/// The one operand.
fn operand(args: &Parsed) -> Result<String, Fail> {
    match args.operands.as_slice() {
        [] => Err(Fail::Usage("missing dataset argument".into())),
        [fs] => {
            names::check_dataset(fs, Want::Filesystem)
                .map_err(|why| Fail::Error(format!("cannot open '{fs}': {why}")))?;
            Ok(fs.clone())
        }
        _ => Err(Fail::Usage("too many arguments".into())),
    }
}

/// What the command is about, encryption roots before what uses their key. The flag: it was asked for
/// one by name.
fn chosen(args: &Parsed, cx: &mut Cx<'_>) -> Result<(Vec<KeyFacts>, bool), Fail> {
    if args.has("a") {
        if !args.operands.is_empty() {
            return Err(Fail::Usage("cannot specify dataset with -a".into()));
        }
        return Ok((keys::facts(cx, &[], None)?, false));
    }
    let fs = operand(args)?;
    let recursive = args.has("r");
    let depth = if recursive { None } else { Some(0) };
    Ok((keys::facts(cx, &[fs], depth)?, !recursive))
}

pub fn load(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let many = args.has("a") || args.has("r");
    let location = args.get("L");
    if many && location.is_some_and(|l| l != "prompt") {
        return Err(Fail::Usage(
            "alternate keylocation may only be 'prompt' with -r or -a".into(),
        ));
    }
    let check = args.has("n");
    let (list, one) = chosen(args, cx)?;
    let (mut tried, mut failed) = (0, 0);
    for f in &list {
        let skip = !f.encrypted || f.root != f.name || (f.loaded && !check);
        if skip && !one {
            continue;
        }
        tried += 1;
        if let Err(why) = keys::load(cx, f, location, check) {
            failed += 1;
            cx.say(&format!("Key load error: {why}"))?;
        }
    }
    if check || (!one && tried > 0) {
        let verb = if check { "verified" } else { "loaded" };
        let done = tried - failed;
        writeln!(cx.out, "{done} / {tried} key(s) successfully {verb}")?;
    }
    Ok(if failed > 0 { FAILED } else { 0 })
}

pub fn unload(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let (list, one) = chosen(args, cx)?;
    let (mut tried, mut failed) = (0, 0);
    for f in &list {
        if !one && (!f.encrypted || f.root != f.name || !f.loaded) {
            continue;
        }
        tried += 1;
        let request = Request::KeyUnload {
            dataset: f.name.clone(),
        };
        match cx.ask(&request) {
            Ok(Reply::Done) => {}
            Ok(other) => return Err(cx.fail_plain(&unexpected(&other))),
            Err(e) => {
                failed += 1;
                cx.say(&format!("Key unload error: {}", e.message))?;
            }
        }
    }
    if !one && tried > 0 {
        let done = tried - failed;
        writeln!(cx.out, "{done} / {tried} key(s) successfully unloaded")?;
    }
    Ok(if failed > 0 { FAILED } else { 0 })
}

pub fn change(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let fs = operand(args)?;
    let inherit = args.has("i");
    let props = common::assignments(args.all("o"))?;
    if inherit && !props.is_empty() {
        return Err(Fail::Usage(
            "Properties not allowed for key inheriting".into(),
        ));
    }
    if args.has("l") {
        keys::load_missing(cx, std::slice::from_ref(&fs), false, true)?;
    }
    let found = keys::facts(cx, std::slice::from_ref(&fs), Some(0))?;
    let Some(f) = found.into_iter().next() else {
        return Err(Fail::Error(format!("cannot open '{fs}'")));
    };
    let wrong = |why: &str| Err(Fail::Error(format!("Key change error: {why}")));
    if !f.encrypted {
        return wrong("Dataset not encrypted.");
    }
    if !f.loaded {
        return wrong("Key must be loaded.");
    }
    let mut key = Secret::default();
    if !inherit {
        let of = |p: &str| props.iter().find(|(n, _)| n == p).map(|(_, v)| v.clone());
        let root = f.root == f.name;
        let format = match (of("keyformat"), root) {
            (Some(f), _) => f,
            (None, true) => f.keyformat.clone(),
            (None, false) => return wrong("Keyformat required for new encryption root."),
        };
        let named = of("keylocation");
        let location = match (&named, root) {
            (Some(l), _) => Location::Named(l),
            (None, true) => Location::Stored(&f.keylocation),
            (None, false) => Location::Named("prompt"),
        };
        key = match keys::read(&format, location, &fs, Prompt::New) {
            Ok(key) => key,
            Err(why) => return wrong(&why),
        };
    }
    let history = History::new(cx);
    let request = Request::KeyChange {
        dataset: fs.clone(),
        inherit,
        key,
        props,
        command: history.line(&fs),
    };
    match cx.ask(&request) {
        Ok(Reply::Done) => Ok(0),
        Ok(other) => Err(cx.fail_plain(&unexpected(&other))),
        Err(e) => wrong(&e.message),
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{run, Fake};
    use api::{Dataset, DatasetKind, Prop, Request, Value};

    fn dataset(name: &str, root: &str, location: &str, loaded: bool) -> Dataset {
        let text = |n: &str, v: &str| Prop {
            name: n.into(),
            value: Value::Text(v.into()),
            ..Prop::default()
        };
        Dataset {
            name: name.into(),
            kind: DatasetKind::Filesystem,
            createtxg: 1,
            guid: 1,
            props: vec![
                text(
                    "encryption",
                    if root.is_empty() {
                        "off"
                    } else {
                        "aes-256-gcm"
                    },
                ),
                text("keyformat", "passphrase"),
                text("keylocation", location),
                text("encryptionroot", root),
                text(
                    "keystatus",
                    if loaded { "available" } else { "unavailable" },
                ),
            ],
        }
    }

    #[test]
    fn loads_from_a_file() {
        let path = std::env::temp_dir().join(format!("zfs-keys-{}", std::process::id()));
        std::fs::write(&path, "correct horse\n").unwrap();
        let url = format!("file://{}", path.display());
        let mut fake = Fake::with(vec![
            dataset("tank", "", "none", false),
            dataset("tank/a", "tank/a", &url, false),
            dataset("tank/a/b", "tank/a", "none", false),
        ]);
        let (status, out, err) = run("load-key -a", &mut fake);
        assert_eq!((status, err.as_str()), (0, ""));
        assert_eq!(out, "1 / 1 key(s) successfully loaded\n");
        let loaded = |r: &Request| match r {
            Request::KeyLoad { dataset, key, .. } => Some((dataset.clone(), key.bytes().to_vec())),
            _ => None,
        };
        let seen: Vec<_> = fake.seen.iter().filter_map(loaded).collect();
        assert_eq!(seen, [("tank/a".to_string(), b"correct horse".to_vec())]);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn what_waits_for_others_is_opened_only_by_name() {
        let path = std::env::temp_dir().join(format!("zfs-keys-pipe-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        let url = format!("file://{}", path.display());
        let file = path.with_extension("file");
        std::fs::write(&file, "correct horse\n").unwrap();
        let mut fake = Fake::with(vec![
            dataset("tank", "", "none", false),
            dataset("tank/a", "tank/a", &url, false),
            dataset("tank/b", "tank/b", "file:///dev/null", false),
            dataset(
                "tank/c",
                "tank/c",
                &format!("file://{}", file.display()),
                false,
            ),
        ]);
        let (status, out, err) = run("load-key -a", &mut fake);
        assert_eq!(status, 255, "{out} {err}");
        assert!(out.contains("1 / 3 key(s) successfully loaded"), "{out}");
        assert_eq!(err.matches("is not a regular file").count(), 2, "{err}");
        std::fs::remove_file(&path).unwrap();
        std::fs::remove_file(&file).unwrap();
    }

    #[test]
    fn refuses() {
        let mut fake = Fake::with(vec![dataset("tank", "", "none", false)]);
        for line in [
            "load-key",
            "load-key -a tank",
            "load-key a b",
            "load-key -r -L file:///x tank",
            "unload-key",
            "change-key",
            "change-key -i -o keyformat=raw tank",
        ] {
            assert_eq!(run(line, &mut fake).0, 2, "{line}");
        }
    }
}
