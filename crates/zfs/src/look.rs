//! `zfs holds`, `zfs userspace` and its relatives, `zfs read`, `zfs wait`.

use crate::common;
use crate::transport::{self, Carrier};
use api::{ApiError, Reply, Request, SpaceRow, Whose};
use base::sizes::nice;
use cli::columns::{self, Column};
use cli::names::{self, Want};
use cli::{Cx, Fail, Outcome, Parsed};
use control::client::unexpected;
use std::cmp::Ordering;
use std::fs::File;

/// `zfs holds`
pub fn holds(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    if args.operands.is_empty() {
        return Err(Fail::Usage("missing snapshot argument".into()));
    }
    let mut failed = 0;
    let mut snapshots = Vec::new();
    for name in &args.operands {
        match names::check_dataset(name, Want::Snapshot) {
            Ok(()) => {
                snapshots.push(name.clone());
                continue;
            }
            Err(_) if !name.contains('@') => cx.say(&format!("'{name}' is not a snapshot"))?,
            Err(why) => cx.say(&format!("cannot open '{name}': {why}"))?,
        }
        failed += 1;
    }
    let request = Request::Holds {
        snapshots: snapshots.clone(),
        recursive: args.has("r"),
    };
    let answer = match cx.ask(&request) {
        Ok(Reply::Holds(h)) => h,
        Ok(other) => return Err(cx.fail_plain(&unexpected(&other))),
        Err(e) => return Err(cx.fail_plain(&e)),
    };
    // With -r a file system need not have the snapshot.
    let not_its = |name: &str, e: &ApiError| args.has("r") && *e == ApiError::no_such_dataset(name);
    for (name, error) in &answer.failed {
        snapshots.retain(|n| n != name);
        if !not_its(name, error) {
            cx.complain(error, "open", name)?;
            failed += 1;
        }
    }
    if snapshots.is_empty() {
        cx.say("no datasets available")?;
    }
    let exact = args.has("p");
    let rows: Vec<Vec<String>> = answer
        .found
        .iter()
        .map(|h| {
            let time = match exact {
                true => h.time.to_string(),
                false => cli::time::creation(h.time, &cx.zone),
            };
            vec![h.snapshot.clone(), h.tag.clone(), time]
        })
        .collect();
    // As wide as the names of snapshots without holds, too, as OpenZFS makes it.
    let width = snapshots.iter().map(|n| n.chars().count()).max();
    let columns = vec![
        Column::left("NAME").at_least(width.unwrap_or(0)),
        Column::left("TAG"),
        Column::left("TIMESTAMP"),
    ];
    let text = columns::table(columns, &rows, args.has("H"));
    write!(cx.out, "{text}")?;
    Ok(i32::from(failed > 0))
}

/// A name of `/etc/passwd` or `/etc/group`.
pub fn name_of(file: &str, id: u64) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| {
        let mut f = line.split(':');
        let name = f.next()?;
        (f.nth(1)?.parse::<u64>().ok()? == id).then(|| name.to_string())
    })
}

const FIELDS: [&str; 6] = ["type", "name", "used", "quota", "objused", "objquota"];

struct Line {
    row: SpaceRow,
    name: String,
}

impl Line {
    fn kind(&self) -> &'static str {
        match self.row.who {
            Whose::User => "POSIX User",
            Whose::Group => "POSIX Group",
            Whose::Project => "Project",
        }
    }

    fn cell(&self, field: &str, exact: bool) -> String {
        let size = |n: u64, bytes: bool| match exact {
            true => n.to_string(),
            false => nice(n, bytes),
        };
        // Exact figures are for programs: no limit is 0 there.
        let limit = |n: u64, bytes: bool| match n {
            0 if !exact => "none".to_string(),
            n => size(n, bytes),
        };
        let r = &self.row;
        match field {
            "type" => self.kind().to_string(),
            "name" => self.name.clone(),
            // Nothing was counted and nothing is limited: there is no entry.
            "used" | "quota" if r.used == 0 && r.quota == 0 => "-".to_string(),
            "used" => size(r.used, true),
            "quota" => limit(r.quota, true),
            _ => match (field, r.objects) {
                (_, None) => "-".to_string(),
                (_, Some(0)) if r.object_quota == 0 => "-".to_string(),
                ("objused", Some(n)) => size(n, false),
                _ => limit(r.object_quota, false),
            },
        }
    }

    fn by(&self, other: &Line, field: &str, numbers: bool) -> Ordering {
        let (a, b) = (&self.row, &other.row);
        match field {
            "type" => self.kind().cmp(other.kind()),
            "name" if numbers => a.id.cmp(&b.id),
            "name" => self.name.cmp(&other.name),
            "used" => a.used.cmp(&b.used),
            "quota" => a.quota.cmp(&b.quota),
            "objused" => a.objects.cmp(&b.objects),
            _ => a.object_quota.cmp(&b.object_quota),
        }
    }
}

/// `zfs userspace`, `groupspace`, `projectspace`
pub fn space(who: Whose, args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let project = who == Whose::Project;
    let [fs] = args.operands.as_slice() else {
        return Err(Fail::Usage(match args.operands.is_empty() {
            true => "missing dataset name".into(),
            false => "too many arguments".into(),
        }));
    };
    let mut kinds = vec![who];
    if let Some(types) = args.get("t") {
        kinds.clear();
        for t in types.split(',') {
            match t {
                "posixuser" => kinds.push(Whose::User),
                "posixgroup" => kinds.push(Whose::Group),
                "project" => kinds.push(Whose::Project),
                "all" => kinds.extend([Whose::User, Whose::Group]),
                // There are none here.
                "smbuser" | "smbgroup" => {}
                _ => return Err(Fail::Usage(format!("invalid type '{t}'"))),
            }
        }
        kinds.sort();
        kinds.dedup();
    }
    let field = |f: &str| {
        FIELDS
            .iter()
            .find(|k| **k == f)
            .copied()
            .ok_or_else(|| Fail::Usage(format!("invalid field '{f}'")))
    };
    let fields: Vec<&str> = match args.get("o") {
        Some(list) => list.split(',').map(field).collect::<Result<_, _>>()?,
        None => FIELDS.to_vec(),
    };
    let mut keys = Vec::new();
    for (option, word) in args.in_order() {
        if option == "s" || option == "S" {
            keys.push((field(word.unwrap_or_default())?, option == "S"));
        }
    }
    let name = common::dataset_of(fs, cx).map_err(Fail::Error)?;
    let request = Request::SpaceOf {
        dataset: name.clone(),
        who: kinds,
    };
    let rows = match cx.ask(&request) {
        Ok(Reply::Space(rows)) => rows,
        Ok(other) => return Err(cx.fail_plain(&unexpected(&other))),
        Err(e) => return Err(cx.fail(&e, "open", &name)),
    };
    // Ids of a domain have its number in their upper half.
    if args.has("i")
        && rows
            .iter()
            .any(|r| r.who != Whose::Project && r.id >> 32 != 0)
    {
        return Err(Fail::Error(
            "cannot translate SIDs into POSIX ids: nothing here knows the mapping; without -i they \
             are shown as numbers"
                .into(),
        ));
    }
    let numbers = project || args.has("n");
    let mut lines: Vec<Line> = rows
        .into_iter()
        .map(|row| {
            let known = match row.who {
                _ if numbers => None,
                Whose::User => name_of("/etc/passwd", row.id),
                Whose::Group => name_of("/etc/group", row.id),
                Whose::Project => None,
            };
            let name = known.unwrap_or_else(|| row.id.to_string());
            Line { row, name }
        })
        .collect();
    keys.extend([("type", false), ("name", false)]);
    lines.sort_by(|a, b| {
        keys.iter()
            .map(|(f, down)| {
                let o = a.by(b, f, numbers);
                if *down {
                    o.reverse()
                } else {
                    o
                }
            })
            .find(|o| *o != Ordering::Equal)
            .unwrap_or(Ordering::Equal)
    });
    let exact = args.has("p");
    let cells: Vec<Vec<String>> = lines
        .iter()
        .map(|l| fields.iter().map(|f| l.cell(f, exact)).collect())
        .collect();
    let columns = fields
        .iter()
        .map(|f| match *f {
            "type" | "name" => Column::left(&f.to_uppercase()),
            _ => Column::right(&f.to_uppercase()),
        })
        .collect();
    if !cells.is_empty() {
        write!(cx.out, "{}", columns::table(columns, &cells, args.has("H")))?;
    }
    Ok(0)
}

/// `zfs read`: the bytes of a volume.
pub fn read(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let (volume, place) = match args.operands.as_slice() {
        [v] => (v.clone(), None),
        [v, p] => (v.clone(), Some(p.clone())),
        [] => return Err(Fail::Usage("missing volume argument".into())),
        _ => return Err(Fail::Usage("too many arguments".into())),
    };
    names::check_dataset(&volume, Want::Any)
        .map_err(|why| Fail::Error(format!("cannot open '{volume}': {why}")))?;
    let number = |key: &str| match args.get(key) {
        None => Ok(None),
        Some(t) => base::sizes::parse(t)
            .map(Some)
            .map_err(|_| Fail::Usage(format!("bad numeric value '{t}'"))),
    };
    let request = Request::VolumeRead {
        volume: volume.clone(),
        offset: number("s")?.unwrap_or(0),
        length: number("l")?,
    };
    cx.out.flush()?;
    let place = place.filter(|p| p != "-");
    let to_pipe = place.is_none();
    let file = match place {
        Some(p) => File::create(&p)
            .map_err(|e| Fail::Error(format!("cannot create '{p}': {}", base::io_text(&e))))?,
        None if cx.rows.is_some() => {
            return Err(Fail::Error(
                "volumes are not written to a terminal; name a file or redirect the output".into(),
            ))
        }
        None => transport::stdout()?,
    };
    let mut carrier = Carrier::pieces_to(file);
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
        // `zfs read … | head`: nobody misses the rest.
        Err(_) if to_pipe && cli::run::nobody_reads() => Ok(1),
        Err(e) => Err(cx.fail(&e, "read", &volume)),
    }
}

/// What `zfs wait` can wait for.
const ACTIVITIES: [&str; 1] = ["deleteq"];

/// `zfs wait`
pub fn wait(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let mut wanted: Vec<&str> = args.all("t").flat_map(|list| list.split(',')).collect();
    if let Some(word) = wanted.iter().find(|w| !ACTIVITIES.contains(w)) {
        return Err(Fail::Usage(format!("invalid activity '{word}'")));
    }
    if wanted.is_empty() {
        wanted.extend(ACTIVITIES);
    }
    let name = match args.operands.as_slice() {
        [] => return Err(Fail::Usage("missing 'filesystem' argument".into())),
        [name] => name,
        _ => return Err(Fail::Usage("too many arguments".into())),
    };
    names::check_dataset(name, Want::Filesystem)
        .map_err(|why| Fail::Error(format!("cannot open '{name}': {why}")))?;
    let request = Request::DatasetActivity {
        dataset: name.clone(),
    };
    loop {
        let now = match cx.ask(&request) {
            Ok(Reply::Activity(now)) => now,
            Ok(other) => return Err(cx.fail_plain(&unexpected(&other))),
            Err(e) => return Err(cx.fail(&e, "wait for", name)),
        };
        let running = |word: &&str| now.iter().any(|a| a.name == *word && a.running);
        if !wanted.iter().any(running) {
            return Ok(0);
        }
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{run, tree, Fake};
    use api::{Activity, Answer, Hold, Reply, Request, SpaceRow, Whose};

    #[test]
    fn wait_asks_until_the_activity_has_ended() {
        let deleteq = |remaining| {
            Reply::Activity(vec![Activity {
                name: "deleteq".into(),
                running: remaining > 0,
                remaining,
            }])
        };
        let mut fake = Fake::with(tree());
        fake.answer = Some(deleteq(0));
        fake.first.extend([deleteq(3), deleteq(1)]);
        let done = run("wait -t deleteq tank/a", &mut fake);
        assert_eq!(done, (0, String::new(), String::new()));
        let request = Request::DatasetActivity {
            dataset: "tank/a".into(),
        };
        assert_eq!(fake.seen, vec![request; 3]);
        assert_eq!(run("wait tank/a", &mut fake).0, 0);
        assert_eq!(fake.seen.len(), 4);
        let (status, _, err) = run("wait -t deleteq,scrub tank/a", &mut fake);
        assert_eq!(status, 2);
        assert!(err.starts_with("invalid activity 'scrub'\n"), "{err}");
        assert_eq!(run("wait", &mut fake).0, 2);
        assert_eq!(run("wait tank tank/a", &mut fake).0, 2);
        assert_eq!(run("wait tank/a@1", &mut fake).0, 1);
        assert_eq!(fake.seen.len(), 4);
    }

    #[test]
    fn holds() {
        let mut fake = Fake::with(tree());
        fake.answer = Some(Reply::Holds(Answer {
            found: vec![Hold {
                snapshot: "tank/a@1".into(),
                tag: "keep me".into(),
                time: 1_795_180_045,
            }],
            failed: Vec::new(),
        }));
        let (_, out, _) = run("holds tank/a@1", &mut fake);
        assert_eq!(
            out,
            "NAME      TAG      TIMESTAMP\ntank/a@1  keep me  Fri Nov 20 13:07 2026\n"
        );
        let (_, out, _) = run("holds -Hp tank/a@1", &mut fake);
        assert_eq!(out, "tank/a@1\tkeep me\t1795180045\n");
        assert_eq!(run("holds tank/a", &mut fake).0, 1);
        assert_eq!(run("holds", &mut fake).0, 2);
    }

    #[test]
    fn space_by_owner() {
        let mut fake = Fake::with(tree());
        let row = |id, used, quota| SpaceRow {
            who: Whose::User,
            id,
            used,
            quota,
            objects: Some(3),
            object_quota: 0,
        };
        fake.answer = Some(Reply::Space(vec![
            row(100_000, 2048, 0),
            row(4_000_000_000, 512, 1 << 20),
        ]));
        let (_, out, _) = run("userspace -n tank", &mut fake);
        assert_eq!(
            out,
            "TYPE        NAME        USED  QUOTA  OBJUSED  OBJQUOTA\n\
             POSIX User  100000        2K   none        3      none\n\
             POSIX User  4000000000  512B     1M        3      none\n"
        );
        let (_, out, _) = run("userspace -Hnp -o name,quota -S used tank", &mut fake);
        assert_eq!(out, "100000\t0\n4000000000\t1048576\n");
        assert_eq!(run("userspace -o nope tank", &mut fake).0, 2);
        // Without SIDs there is nothing to translate; with one it cannot be done.
        assert_eq!(run("userspace -in tank", &mut fake).0, 0);
        fake.answer = Some(Reply::Space(vec![row((1 << 32) + 7, 2048, 0)]));
        assert_eq!(run("userspace -n tank", &mut fake).0, 0);
        let (status, _, err) = run("userspace -in tank", &mut fake);
        assert_eq!(status, 1);
        assert!(err.starts_with("cannot translate SIDs"), "{err}");
    }
}
