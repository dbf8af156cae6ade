//! `zfs receive`.

use crate::common;
use crate::transport::{self, Carrier};
use api::{ApiError, NameBy, Receive, Reply, Request};
use cli::names::{self, Want};
use cli::{Cx, Fail, Outcome, Parsed};
use control::client::unexpected;
use std::io::IsTerminal;

/// Properties that come with the data, or belong to another command.
const REFUSED: [&str; 6] = [
    "version",
    "volsize",
    "volblocksize",
    "normalization",
    "utf8only",
    "casesensitivity",
];

/// The properties that are not to be received (`-x`), and whether those to be set may be.
fn excluded(args: &Parsed, props: &api::Props) -> Result<Vec<String>, Fail> {
    let full = |x: &str| common::known_property(x).unwrap_or_else(|| x.to_string());
    let exclude: Vec<String> = args.all("x").map(full).collect();
    if exclude.iter().any(|x| x.contains('=')) {
        return Err(Fail::Usage(
            "invalid character '=' in property argument".into(),
        ));
    }
    if let Some(twice) = (1..exclude.len()).find(|&i| exclude[..i].contains(&exclude[i])) {
        return Err(Fail::Usage(format!(
            "property '{}' specified multiple times",
            exclude[twice]
        )));
    }
    let unknown = |x: &&String| common::known_property(x).is_none();
    if let Some(n) = exclude.iter().find(unknown) {
        return Err(Fail::Error(format!(
            "cannot receive: invalid property '{n}'"
        )));
    }
    // The size of a volume is in its data; to leave the property out changes nothing.
    let left_out = exclude.iter().filter(|n| *n != "volsize");
    let wrong = props
        .iter()
        .map(|(n, _)| n)
        .chain(left_out)
        .find(|n| REFUSED.contains(&n.as_str()));
    if let Some(n) = wrong {
        return Err(Fail::Error(format!(
            "cannot receive: property '{n}' cannot be set or excluded"
        )));
    }
    if let Some((n, _)) = props.iter().find(|(n, _)| exclude.contains(n)) {
        return Err(Fail::Usage(format!(
            "property '{n}' specified multiple times"
        )));
    }
    Ok(exclude)
}

pub fn receive(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let name = match args.operands.as_slice() {
        [] => return Err(Fail::Usage("missing snapshot argument".into())),
        [name] => name.clone(),
        _ => return Err(Fail::Usage("too many arguments".into())),
    };
    if args.has("A") {
        return abort(args, cx, name);
    }
    let name_by = match (args.has("d"), args.has("e")) {
        (true, true) => {
            return Err(Fail::Usage(
                "Invalid option combination: -d and -e are mutually exclusive".into(),
            ))
        }
        (true, false) => NameBy::AllButFirst,
        (false, true) => NameBy::Last,
        (false, false) => NameBy::Target,
    };
    if name_by != NameBy::Target && name.contains('@') {
        let how = if args.has("d") { "-d" } else { "-e" };
        return Err(Fail::Error(format!(
            "cannot receive: invalid argument - snapshot not allowed with {how}"
        )));
    }
    let want = match name_by {
        NameBy::Target => Want::Any,
        _ => Want::Filesystem,
    };
    names::check_new(&name, want).map_err(|why| Fail::Error(format!("cannot receive: {why}")))?;
    if args.has("c") && (args.has("F") || args.has("s")) {
        return Err(Fail::Usage(
            "corrective receive (-c) cannot be used with -F or -s".into(),
        ));
    }
    let mut props = common::assignments(args.all("o"))?;
    let origin = props.iter().position(|(n, _)| n == "origin");
    let origin = origin.map(|at| props.remove(at).1);
    let exclude = excluded(args, &props)?;
    let given = |p: &str| {
        props
            .iter()
            .rev()
            .find(|(n, _)| n == p)
            .map(|(_, v)| v.as_str())
    };
    // Without a place a new key is asked for.
    let keyed = given("keyformat").is_some_and(|f| f != "none");
    let unplaced = matches!(given("keylocation"), None | Some("" | "none" | "prompt"));
    if keyed && unplaced {
        return Err(Fail::Error(
            "cannot receive: keylocation may not be 'prompt': standard input is the stream".into(),
        ));
    }
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Err(Fail::Error(
            "Error: Backup stream can not be read from a terminal.\nYou must redirect standard input.".into(),
        ));
    }
    let key = match args.has("n") {
        true => None,
        false => cli::keys::for_new(&props, &name)
            .map_err(|e| Fail::Error(format!("cannot receive: {e}")))?,
    };
    let request = Request::Receive(Receive {
        target: name.clone(),
        name_by,
        force: args.has("F"),
        resumable: args.has("s"),
        no_mount: args.has("u"),
        force_unmount: args.has("M"),
        no_holds: args.has("h"),
        verbose: args.has("v"),
        dry_run: args.has("n"),
        corrective: args.has("c"),
        origin,
        props,
        exclude,
        key,
        command: cx.command(),
    });
    let out = &mut cx.out;
    let mut failed = None;
    let mut carrier = Carrier::from(transport::stdin()?);
    let answer = cx
        .backend
        .ask_streaming(&request, &mut |end| carrier.attach(end), &mut |p| {
            let told = writeln!(out, "{}", p.what).and_then(|()| out.flush());
            failed = failed.take().or(told.err());
        });
    let answer = carrier.end(answer, |e| {
        let text = format!(
            "cannot receive: failed to read from stream: {}",
            base::io_text(&e)
        );
        ApiError::sentence(base::Error::from(e).kind, text)
    });
    if let Some(e) = failed {
        return Err(e.into());
    }
    match answer {
        Ok(Reply::Received(r)) => {
            for line in &r.warnings {
                cx.say(line)?;
            }
            Ok(i32::from(r.failed))
        }
        Ok(other) => Err(cx.fail_plain(&unexpected(&other))),
        Err(e) => Err(cx.fail(&e, "receive", &name)),
    }
}

/// `-A`: throws away what a broken receive kept.
fn abort(args: &Parsed, cx: &mut Cx<'_>, name: String) -> Outcome {
    let others = ["F", "M", "c", "d", "e", "h", "n", "o", "s", "u", "v", "x"];
    if others.iter().any(|o| args.has(o)) {
        return Err(Fail::Usage("-A cannot be used with other options".into()));
    }
    names::check_dataset(&name, Want::Filesystem)
        .map_err(|why| Fail::Error(format!("cannot open '{name}': {why}")))?;
    let request = Request::ReceiveAbort {
        dataset: name.clone(),
        command: cx.command(),
    };
    common::done(cx, &request, "abort the receive of", &name)?;
    Ok(0)
}
