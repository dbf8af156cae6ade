//! `zfs ls`, `zfs cat`, `zfs tar`, `zfs cp`: files of file systems and snapshots without a mount.

use crate::transport::{self, Carrier};
use api::{ApiError, Bytes, FileWanted, Reply, Request};
use cli::names::{self, Want};
use cli::{Cx, Fail, Outcome, Parsed};
use control::client::{self, unexpected};
use control::unimported::{Ask, ARGUMENT};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Dataset and path of `POOL/FS[@SNAP]:PATH`. A dataset's name may have colons, a path begins with a slash or ends it.
fn place(text: &str) -> Result<(String, String), Fail> {
    let found = text
        .split_once(":/")
        .map(|(ds, path)| (ds, format!("/{path}")));
    let (dataset, path) = match found.or_else(|| text.rsplit_once(':').map(|(d, p)| (d, p.into())))
    {
        Some((dataset, path)) => (dataset.to_string(), path),
        None => (text.to_string(), String::new()),
    };
    names::check_dataset(&dataset, Want::Any)
        .map_err(|why| Fail::Error(format!("cannot open '{dataset}': {why}")))?;
    Ok((dataset, path))
}

/// The same of a pool that is not imported: the daemon's program reads it, without a daemon.
fn unimported(cx: &mut Cx<'_>, ask: &Ask, file: File) -> Outcome {
    let Some(program) = client::find_daemon() else {
        let why = "no 'zfs-fuse', which reads pools that are not imported, was found beside this command or in PATH";
        return Err(Fail::Error(why.into()));
    };
    cx.out.flush()?;
    let mut c = Command::new(&program);
    c.arg(ARGUMENT).args(ask.words()).stdout(file);
    let shown = program.display();
    match c.status() {
        Ok(done) => Ok(done.code().unwrap_or(1)),
        Err(e) => {
            let why = base::io_text(&e);
            Err(Fail::Error(format!("cannot start '{shown}': {why}")))
        }
    }
}

fn to_file(
    args: &Parsed,
    cx: &mut Cx<'_>,
    what: &str,
    from: &str,
    wanted: FileWanted,
    file: File,
) -> Outcome {
    let (dataset, path) = place(from)?;
    if args.has("d") {
        let ask = Ask {
            wanted,
            dataset,
            path,
            key_location: args.get("L").map(str::to_string),
            places: args.all("d").map(str::to_string).collect(),
        };
        return unimported(cx, &ask, file);
    }
    if args.has("L") {
        return Err(Fail::Usage(
            "-L is only for pools that are not imported (-d)".into(),
        ));
    }
    let request = Request::FileRead {
        dataset: dataset.clone(),
        path: Bytes(path.into_bytes()),
        wanted,
    };
    cx.out.flush()?;
    let mut carrier = Carrier::to(file);
    let answer = cx
        .backend
        .ask_streaming(&request, &mut |end| carrier.attach(end), &mut |_| {});
    let answer = carrier.end(answer, |e| {
        ApiError::reason(
            base::Error::from(std::io::Error::from(e.kind())).kind,
            base::io_text(&e),
        )
    });
    match answer {
        Ok(Reply::Done) => Ok(0),
        Ok(other) => Err(cx.fail_plain(&unexpected(&other))),
        Err(e) => Err(cx.fail(&e, what, &dataset)),
    }
}

/// One operand after the other to the standard output.
fn out(args: &Parsed, cx: &mut Cx<'_>, what: &str, wanted: FileWanted) -> Outcome {
    if args.operands.is_empty() {
        return Err(Fail::Usage("missing dataset argument".into()));
    }
    if wanted == FileWanted::Archive {
        if args.operands.len() > 1 {
            return Err(Fail::Usage("too many arguments".into()));
        }
        if cx.tty {
            return Err(Fail::Error(
                "archives are not written to a terminal; redirect the output".into(),
            ));
        }
    }
    for from in &args.operands {
        let status = to_file(args, cx, what, from, wanted, transport::stdout()?)?;
        if status != 0 {
            return Ok(status);
        }
    }
    Ok(0)
}

/// `zfs ls`
pub fn ls(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let wanted = match args.has("l") {
        true => FileWanted::Details,
        false => FileWanted::Names,
    };
    out(args, cx, "list", wanted)
}

/// `zfs cat`
pub fn cat(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    out(args, cx, "read", FileWanted::Content)
}

/// `zfs tar`
pub fn tar(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    out(args, cx, "read", FileWanted::Archive)
}

/// `zfs cp`: a file into a file, or into a directory.
pub fn cp(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let (from, to) = match args.operands.as_slice() {
        [from, to] => (from.clone(), PathBuf::from(to)),
        [] | [_] => return Err(Fail::Usage("missing argument".into())),
        _ => return Err(Fail::Usage("too many arguments".into())),
    };
    let (_, path) = place(&from)?;
    let to = match (to.is_dir(), Path::new(&path).file_name()) {
        (true, Some(name)) => to.join(name),
        _ => to,
    };
    let shown = to.display().to_string();
    let cannot = |e: std::io::Error| {
        let why = base::io_text(&e);
        Fail::Error(format!("cannot create '{shown}': {why}"))
    };
    // What is there stays until all has come.
    let is_special = to.metadata().is_ok_and(|m| !m.is_file());
    let part = match (is_special, to.file_name()) {
        (false, Some(name)) => {
            let own = format!(".{}.{}", name.to_string_lossy(), std::process::id());
            to.with_file_name(own)
        }
        _ => to.clone(),
    };
    let file = File::create(&part).map_err(cannot)?;
    let done = to_file(args, cx, "read", &from, FileWanted::Content, file);
    if part == to {
        return done;
    }
    match done {
        Ok(0) => std::fs::rename(&part, &to).map(|()| 0).map_err(cannot),
        failed => {
            let _ = std::fs::remove_file(&part);
            failed
        }
    }
}

#[cfg(test)]
mod tests {
    use super::place;

    #[test]
    fn places_are_datasets_and_paths() {
        let told = |text| place(text).ok();
        let want = |d: &str, p: &str| Some((d.to_string(), p.to_string()));
        assert_eq!(told("tank/a@s:/x/y"), want("tank/a@s", "/x/y"));
        assert_eq!(told("tank/a:x"), want("tank/a", "x"));
        assert_eq!(told("tank/a:b:/x:/y"), want("tank/a:b", "/x:/y"));
        assert_eq!(told("tank/a"), want("tank/a", ""));
        assert_eq!(told("tank//a:x"), None);
    }
}
