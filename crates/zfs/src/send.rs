//! `zfs send`.

use crate::transport::{self, Carrier};
use api::{ApiError, Progress, Reply, Request, Send, SendPlan};
use base::sizes::nice;
use cli::json::{envelope, line, Json, Object, Put};
use cli::names::{self, Want};
use cli::{Cx, Fail, Outcome, Parsed};
use control::client::unexpected;
use std::cell::Cell;
use std::io::{stderr, Write};
use std::time::{SystemTime, UNIX_EPOCH};

/// Reads the command line. The full names of sources are made here.
fn request(args: &Parsed, cx: &mut Cx<'_>) -> Result<Send, Fail> {
    let token = args.get("t").map(str::to_string);
    if args.all("i").chain(args.all("I")).count() > 1 {
        return Err(Fail::Usage(
            "only one of -i and -I can be given, once".into(),
        ));
    }
    let (base, all) = match (args.get("i"), args.get("I")) {
        (None, None) => (None, false),
        (Some(i), None) => (Some(i), false),
        (_, Some(i)) => (Some(i), true),
    };
    let mut r = Send {
        intermediate: all,
        replicate: args.has("R"),
        skip_missing: args.has("s"),
        props: args.has("p"),
        backup: args.has("b"),
        holds: args.has("h"),
        large_blocks: args.has("L"),
        embedded: args.has("e"),
        compressed: args.has("c"),
        raw: args.has("w"),
        saved: args.has("S"),
        token,
        redact: args.get("redact").map(str::to_string),
        dry_run: args.has("n"),
        ..Send::default()
    };
    for list in args.all("X") {
        r.exclude.extend(list.split(',').map(str::to_string));
    }
    if !r.exclude.is_empty() && !r.replicate {
        return Err(Fail::Error(
            "Cannot specify dataset exclusion (-X) on a non-recursive send.".into(),
        ));
    }
    let whole = r.replicate || r.props || r.backup || r.holds || r.redact.is_some();
    if r.token.is_some() && (base.is_some() || whole || r.saved) {
        return Err(Fail::Usage("invalid flags combined with -t".into()));
    }
    match (args.operands.as_slice(), &r.token) {
        ([], Some(_)) => {}
        ([], None) => return Err(Fail::Usage("missing snapshot argument".into())),
        ([target], None) => r.target = target.clone(),
        _ => return Err(Fail::Usage("too many arguments".into())),
    }
    if r.saved {
        let how = r.large_blocks || r.embedded || r.compressed || r.raw;
        if base.is_some() || whole || how {
            return Err(Fail::Usage(
                "incompatible flags combined with saved send flag".into(),
            ));
        }
        if r.target.contains('@') {
            return Err(Fail::Usage(
                "saved send must specify the dataset with partially-received state".into(),
            ));
        }
    }
    if r.raw && r.redact.is_some() {
        return Err(Fail::Error("Error: raw sends may not be redacted.".into()));
    }
    if r.skip_missing && !r.replicate {
        return Err(Fail::Usage(
            "skip-missing flag can only be used in conjunction with replicate".into(),
        ));
    }
    if r.token.is_none() {
        let target = r.target.clone();
        names::check_dataset(&target, Want::Any)
            .map_err(|why| Fail::Error(format!("cannot open '{target}': {why}")))?;
    }
    sources(&mut r, base, cx)?;
    Ok(r)
}

/// The base of an increment, and what speaks against several streams.
fn sources(r: &mut Send, base: Option<&str>, cx: &mut Cx<'_>) -> Result<(), Fail> {
    let several = r.replicate || r.intermediate;
    if several && r.redact.is_some() {
        return Err(Fail::Error(
            "Error: multiple snapshots cannot be sent redacted.".into(),
        ));
    }
    let Some(base) = base else {
        return Ok(());
    };
    if several && base.contains('#') {
        return Err(Fail::Error(
            "Error: multiple snapshots cannot be sent from a bookmark.".into(),
        ));
    }
    let fs = r.target.split('@').next().unwrap_or_default();
    let full = if base.starts_with(['@', '#']) {
        format!("{fs}{base}")
    } else if base.contains(['@', '#']) {
        base.to_string()
    } else {
        if !several {
            cx.say(
                "Warning: incremental source didn't specify type, assuming snapshot. Use '@' or '#' \
                 prefix to avoid ambiguity.",
            )?;
        }
        format!("{fs}@{base}")
    };
    names::check_dataset(&full, Want::Any)
        .map_err(|why| Fail::Error(format!("cannot open '{full}': {why}")))?;
    r.from = Some(full);
    Ok(())
}

/// What is to be sent, in OpenZFS's lines.
fn lines(plan: &SendPlan, parsable: bool) -> String {
    let mut out = plan.token.clone();
    let mut total = 0;
    for s in &plan.streams {
        let size = s.size.unwrap_or(0);
        total += size;
        match (&s.from, parsable) {
            (Some(from), true) => {
                out += &format!("incremental\t{from}\t{}\t{size}\n", s.snapshot);
            }
            (None, true) => out += &format!("full\t{}\t{size}\n", s.snapshot),
            (from, false) => {
                out += &match from {
                    Some(f) if f.contains(['@', '#']) => format!("send from {f} to {}", s.snapshot),
                    Some(f) => format!("send from @{f} to {}", s.snapshot),
                    None => format!("full send of {}", s.snapshot),
                };
                if size != 0 {
                    out += &format!(" estimated size is {}", nice(size, true));
                }
                out.push('\n');
            }
        }
    }
    match parsable {
        true => out += &format!("size\t{total}\n"),
        false => out += &format!("total estimated size is {}\n", nice(total, true)),
    }
    out
}

/// The same as JSON.
fn json_lines(plan: &SendPlan) -> String {
    let mut total = 0;
    let mut streams = Vec::new();
    for s in &plan.streams {
        total += s.size.unwrap_or(0);
        let from = match &s.from {
            Some(from) => Json::from(from.as_str()),
            None => Json::Null,
        };
        let mut o = Object::new().with("snapshot", s.snapshot.as_str());
        o.put("from", from);
        o.put("size", s.size.unwrap_or(0));
        streams.push(o.into());
    }
    let mut out = envelope("zfs send");
    out.put("streams", Json::Array(streams));
    out.put("size", total);
    line(out) + "\n"
}

/// How progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Show {
    Nothing,
    /// Lines for people, as OpenZFS prints them.
    Lines,
    /// Fields separated by tabs.
    Fields,
    /// An object in each line.
    Json,
    /// A bar that is drawn again in its line.
    Bar,
}

/// Columns of a bar.
const BAR: u64 = 30;

/// A bar: `snapshot [#####.....]  50%  1.5K of 3K`.
fn bar(name: &str, done: u64, total: u64) -> String {
    // An estimate may be too low.
    let total = total.max(done);
    let part = (u128::from(done) * 100)
        .checked_div(total.into())
        .unwrap_or(0) as u64;
    let full = (BAR * part / 100) as usize;
    format!(
        "{name} [{}{}] {part:>3}%  {} of {}",
        "#".repeat(full),
        ".".repeat(BAR as usize - full),
        nice(done, true),
        nice(total, true)
    )
}

/// Prints how far a stream is: a header for each snapshot, then a line each time it is told.
struct Watch {
    show: Show,
    /// A bar is in the line of the cursor.
    drawn: Cell<bool>,
    /// The name of the process tells it.
    title: bool,
    zone: tz::TimeZone,
}

impl Watch {
    fn tell(&self, p: &Progress) {
        // Only that a line is lost can come of it.
        let _ = self.say(p);
    }

    fn say(&self, p: &Progress) -> std::io::Result<()> {
        if self.title && p.done > 0 {
            let done = match (p.done * 100).checked_div(p.total) {
                Some(percent) => format!("zfs {percent}%"),
                None => format!("zfs {}", nice(p.done, true)),
            };
            std::fs::write("/proc/self/comm", done)?;
        }
        let name = cli::harmless::harmless(&p.what);
        if p.done == 0 {
            self.end()?;
            return match self.show {
                Show::Lines => writeln!(stderr(), "TIME        SENT   SNAPSHOT {name}"),
                _ => Ok(()),
            };
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |d| d.as_secs());
        let time = || cli::time::clock(now, &self.zone);
        match self.show {
            Show::Nothing => Ok(()),
            Show::Lines => writeln!(stderr(), "{}   {:>5}   {name}", time(), nice(p.done, true)),
            Show::Fields => writeln!(stderr(), "{}\t{}\t{name}", time(), p.done),
            Show::Json => {
                let mut o = Object::new().with("snapshot", p.what.as_str());
                o.put("time", now);
                o.put("sent", p.done);
                o.put("size", p.total);
                writeln!(stderr(), "{}", line(o))
            }
            Show::Bar => {
                self.drawn.set(true);
                write!(stderr(), "\r{}\x1b[K", bar(&name, p.done, p.total))
            }
        }
    }

    /// Leaves the line of a bar.
    fn end(&self) -> std::io::Result<()> {
        match self.drawn.replace(false) {
            true => writeln!(stderr()),
            false => Ok(()),
        }
    }
}

/// Prints what was left out.
fn warn(plan: &SendPlan, cx: &mut Cx<'_>) -> Result<(), Fail> {
    for w in &plan.warnings {
        cx.say(w)?;
    }
    Ok(())
}

/// `what`: the snapshot that was asked for.
fn answer(
    reply: Result<Reply, api::ApiError>,
    what: &str,
    cx: &mut Cx<'_>,
) -> Result<SendPlan, Fail> {
    match reply {
        Ok(Reply::SendPlan(plan)) => Ok(plan),
        Ok(other) => Err(cx.fail_plain(&unexpected(&other))),
        Err(e) => Err(cx.fail(&e, "send", what)),
    }
}

pub fn send(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    match send_stream(args, cx) {
        // Where the daemon refused a token, and said so, OpenZFS ends with this status.
        Err(Fail::Error(said)) if args.has("t") && said.is_empty() => Ok(255),
        done => done,
    }
}

fn send_stream(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    if args.has("D") {
        cx.say("WARNING: deduplicated send is no longer supported.  A regular,\nnon-deduplicated stream will be generated.\n")?;
    }
    let mut r = request(args, cx)?;
    let what = match r.token {
        Some(_) => "stream".to_string(),
        None => r.target.clone(),
    };
    let (parsable, json) = (args.has("P"), args.has("j"));
    if parsable && json {
        return Err(Fail::Usage("-P and -j cannot be combined".into()));
    }
    let verbose = args.has("v") || parsable || json;
    if !r.dry_run && cx.rows.is_some() {
        return Err(Fail::Error(
            "Error: Stream can not be written to a terminal.\nYou must redirect standard output."
                .into(),
        ));
    }
    let title = args.has("V");
    if r.dry_run || verbose || title {
        let look = Send {
            dry_run: true,
            sizes: verbose || title,
            ..r.clone()
        };
        let asked = cx.ask(&Request::Send(look));
        let plan = answer(asked, &what, cx)?;
        if verbose {
            let text = match json {
                true => json_lines(&plan),
                false => lines(&plan, parsable),
            };
            match r.dry_run {
                true => cx.out.write_all(text.as_bytes())?,
                false => cx.err.write_all(text.as_bytes())?,
            }
        }
        if r.dry_run {
            warn(&plan, cx)?;
            return Ok(i32::from(plan.failed));
        }
    }
    let show = match args.has("v") {
        false => Show::Nothing,
        true if parsable => Show::Fields,
        true if json => Show::Json,
        true if cx.tty => Show::Bar,
        true => Show::Lines,
    };
    r.sizes = title || matches!(show, Show::Bar | Show::Json);
    r.progress = args.has("v") || title;
    let watch = Watch {
        show,
        drawn: Cell::new(false),
        title,
        zone: cx.zone.clone(),
    };
    let mut carrier = Carrier::to(transport::stdout()?);
    let sent = cx.backend.ask_streaming(
        &Request::Send(r),
        &mut |end| carrier.attach(end),
        &mut |p| watch.tell(&p),
    );
    watch.end()?;
    // What came before an error is written, too.
    let sent = carrier.end(sent, |e| {
        let text = format!("warning: cannot send '{what}': {}", base::io_text(&e));
        ApiError::sentence(base::Error::from(e).kind, text)
    });
    if sent.is_err() && cli::run::nobody_reads() {
        // `zfs send … | head`: nobody misses the rest.
        return Ok(1);
    }
    let plan = answer(sent, &what, cx)?;
    warn(&plan, cx)?;
    Ok(i32::from(plan.failed))
}

/// `zfs redact`
pub fn redact(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let (snapshot, bookmark, snaps) = match args.operands.as_slice() {
        [s, b, r @ ..] if !r.is_empty() => (s, b, r),
        _ => return Err(Fail::Usage("missing arguments".into())),
    };
    names::check_dataset(snapshot, Want::Snapshot)
        .map_err(|why| Fail::Error(format!("cannot open '{snapshot}': {why}")))?;
    let pool = names::pool_of(snapshot);
    if snaps.iter().any(|s| names::pool_of(s) != pool) {
        return Err(Fail::Error(
            "potentially invalid redaction snapshot; full dataset names required".into(),
        ));
    }
    if bookmark.contains('#') {
        return Err(Fail::Error(
            "redaction bookmark name must not contain '#'".into(),
        ));
    }
    let request = Request::Redact(api::Redact {
        snapshot: snapshot.clone(),
        bookmark: bookmark.clone(),
        snaps: snaps.to_vec(),
        command: cx.command(),
    });
    match cx.ask(&request) {
        Ok(Reply::Done) => Ok(0),
        Ok(other) => Err(cx.fail_plain(&unexpected(&other))),
        Err(e) => Err(cx.fail_plain(&e)),
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{run, tree, Fake};
    use api::{Reply, Request, SendPlan, SendStream};

    fn fake() -> Fake {
        let mut fake = Fake::with(tree());
        let stream = |snapshot: &str, from: Option<&str>, size| SendStream {
            snapshot: snapshot.into(),
            from: from.map(str::to_string),
            size: Some(size),
        };
        fake.answer = Some(Reply::SendPlan(SendPlan {
            streams: vec![
                stream("tank/a@1", None, 1536),
                stream("tank/a@2", Some("1"), 0),
                stream("tank/b@2", Some("tank/a@2"), 1 << 20),
            ],
            ..SendPlan::default()
        }));
        fake
    }

    #[test]
    fn a_dry_run_prints_what_would_be_sent() {
        let (status, out, err) = run("send -nv -R tank/a@2", &mut fake());
        assert_eq!((status, err.as_str()), (0, ""));
        assert_eq!(
            out,
            "full send of tank/a@1 estimated size is 1.50K\n\
             send from @1 to tank/a@2\n\
             send from tank/a@2 to tank/b@2 estimated size is 1M\n\
             total estimated size is 1.00M\n"
        );
        let (_, out, _) = run("send -nP -R tank/a@2", &mut fake());
        assert_eq!(
            out,
            "full\ttank/a@1\t1536\nincremental\t1\ttank/a@2\t0\n\
             incremental\ttank/a@2\ttank/b@2\t1048576\nsize\t1050112\n"
        );
        assert_eq!(run("send -n -R tank/a@2", &mut fake()).1, "");
        let (_, out, _) = run("send -nj -R tank/a@2", &mut fake());
        assert_eq!(
            out,
            "{\"output_version\":{\"command\":\"zfs send\",\"vers_major\":0,\"vers_minor\":1},\"streams\":[\
             {\"snapshot\":\"tank/a@1\",\"from\":null,\"size\":1536},\
             {\"snapshot\":\"tank/a@2\",\"from\":\"1\",\"size\":0},\
             {\"snapshot\":\"tank/b@2\",\"from\":\"tank/a@2\",\"size\":1048576}],\"size\":1050112}\n"
        );
    }

    #[test]
    fn a_bar_shows_the_part_that_is_sent() {
        let half = super::bar("tank/a@1", 1536, 3072);
        assert_eq!(
            half,
            format!(
                "tank/a@1 [{}{}]  50%  1.50K of 3K",
                "#".repeat(15),
                ".".repeat(15)
            )
        );
        assert!(
            super::bar("x", 5, 0).contains("] 100%  "),
            "an estimate that was too low"
        );
    }

    #[test]
    fn sources_get_their_full_names() {
        for (line, want) in [
            ("send -i @1 tank/a@2", "tank/a@1"),
            ("send -i 1 tank/a@2", "tank/a@1"),
            ("send -i #b tank/a@2", "tank/a#b"),
            ("send -I @1 tank/a@2", "tank/a@1"),
            ("send -i tank/b@x tank/a@2", "tank/b@x"),
        ] {
            let mut fake = fake();
            assert_eq!(run(line, &mut fake).0, 0, "{line}");
            let Some(Request::Send(s)) = fake.seen.first() else {
                panic!("{:?}", fake.seen)
            };
            assert_eq!(s.from.as_deref(), Some(want), "{line}");
            assert_eq!(s.intermediate, line.contains("-I"));
        }
    }

    #[test]
    fn options_that_do_not_go_together_are_refused() {
        for (line, status) in [
            ("send", 2),
            ("send tank/a@1 tank/a@2", 2),
            ("send -nPj tank/a@1", 2),
            ("send -t 1-x tank/a@1", 2),
            ("send -t 1-x -R", 2),
            ("send -S tank/a@1", 2),
            ("send -S -L tank/a", 2),
            ("send -s tank/a@1", 2),
            ("send -X tank/b tank/a@1", 1),
            ("send -w --redact b tank/a@1", 1),
            ("send -I #b tank/a@1", 1),
            ("send -R --redact b tank/a@1", 1),
            ("send tank/a@@", 1),
        ] {
            assert_eq!(run(line, &mut fake()).0, status, "{line}");
        }
    }
}
