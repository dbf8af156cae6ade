//! `zfs space`: how the space of a dataset divides over itself, its snapshots and descendants.

use crate::common;
use api::{HeldBy, HeldSpace, Reply, Request};
use base::sizes::nice;
use cli::columns::{self, Column};
use cli::{Cx, Fail, Outcome, Parsed};
use control::client::unexpected;

const DATASET: [&str; 7] = [
    "NAME",
    "USED",
    "DATASET",
    "SNAPSHOTS",
    "PINNED",
    "RESERVED",
    "CHILDREN",
];

fn snapshot_columns() -> Vec<Column> {
    vec![
        Column::left("SNAPSHOT"),
        Column::right("ALONE"),
        Column::right("RANGE"),
        Column::right("REFER"),
        Column::left("CREATION"),
        Column::left("PINNED BY"),
    ]
}

/// What pins a snapshot: its clones, then the tags of its holds.
fn pins(h: &HeldBy) -> String {
    let clones = h.clones.iter().map(|c| format!("clone {c}"));
    let holds = h.holds.iter().map(|t| format!("hold {t}"));
    let all: Vec<String> = clones.chain(holds).collect();
    match all.is_empty() {
        true => "-".into(),
        false => all.join(", "),
    }
}

pub fn space(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    if args.operands.is_empty() {
        return Err(Fail::Usage("missing dataset argument".into()));
    }
    let (exact, scripted) = (args.has("p"), args.has("H"));
    let size = |n: u64| match exact {
        true => n.to_string(),
        false => nice(n, true),
    };
    let mut status = 0;
    let mut all: Vec<HeldSpace> = Vec::new();
    for operand in &args.operands {
        let dataset = match common::dataset_of(operand, cx) {
            Ok(name) => name,
            Err(why) => {
                cx.say(&why)?;
                status = 1;
                continue;
            }
        };
        if dataset.contains(['@', '#']) {
            cx.say(&format!(
                "cannot open '{dataset}': not a filesystem or volume"
            ))?;
            status = 1;
            continue;
        }
        let request = Request::SpaceHeld {
            dataset: dataset.clone(),
            recursive: args.has("r"),
        };
        match cx.ask(&request) {
            Ok(Reply::Held(list)) => all.extend(list),
            Ok(other) => return Err(cx.fail_plain(&unexpected(&other))),
            Err(e) => {
                cx.complain(&e, "open", &dataset)?;
                status = 1;
            }
        }
    }
    let row = |d: &HeldSpace| {
        let sizes = [
            d.used,
            d.head,
            d.snapshots,
            d.pinned,
            d.refreservation,
            d.children,
        ];
        let mut row = vec![d.dataset.clone()];
        row.extend(sizes.map(size));
        row
    };
    let snapshots = |d: &HeldSpace| -> Vec<Vec<String>> {
        let line = |h: &HeldBy| {
            vec![
                format!("{}@{}", d.dataset, h.snapshot),
                size(h.alone),
                h.with_older.map_or("-".into(), size),
                size(h.referenced),
                match exact {
                    true => h.creation.to_string(),
                    false => cli::time::creation(h.creation, &cx.zone),
                },
                pins(h),
            ]
        };
        d.list.iter().map(line).collect()
    };
    let tables: Vec<_> = all.iter().map(|d| (row(d), snapshots(d))).collect();
    if tables.is_empty() {
        return Ok(status);
    }
    let heads: Vec<Vec<String>> = tables.iter().map(|(row, _)| row.clone()).collect();
    let mut columns = vec![Column::left(DATASET[0])];
    columns.extend(DATASET[1..].iter().map(|n| Column::right(n)));
    write!(cx.out, "{}", columns::table(columns, &heads, scripted))?;
    let lines: Vec<Vec<String>> = tables.into_iter().flat_map(|(_, lines)| lines).collect();
    if !lines.is_empty() {
        if !scripted {
            writeln!(cx.out)?;
        }
        let text = columns::table(snapshot_columns(), &lines, scripted);
        write!(cx.out, "{text}")?;
    }
    Ok(status)
}

#[cfg(test)]
mod tests {
    use crate::testing::{run, tree, Fake};
    use api::{HeldBy, HeldSpace, Reply};

    #[test]
    fn prints_what_holds_space() {
        let mut fake = Fake::with(tree());
        fake.answer = Some(Reply::Held(vec![HeldSpace {
            dataset: "tank/a".into(),
            used: 6 << 20,
            head: 1 << 20,
            snapshots: 5 << 20,
            pinned: 2 << 20,
            list: vec![
                HeldBy {
                    snapshot: "1".into(),
                    creation: 1_795_180_045,
                    alone: 1 << 20,
                    with_older: Some(3 << 20),
                    ..HeldBy::default()
                },
                HeldBy {
                    snapshot: "2".into(),
                    creation: 1_795_180_045,
                    holds: vec!["keep".into()],
                    clones: vec!["tank/c".into()],
                    ..HeldBy::default()
                },
            ],
            ..HeldSpace::default()
        }]));
        let (status, out, err) = run("space tank/a", &mut fake);
        assert_eq!((status, err.as_str()), (0, ""));
        assert!(out.contains("PINNED BY"), "{out}");
        let (_, out, _) = run("space -Hp tank/a", &mut fake);
        let m = 1u64 << 20;
        assert_eq!(
            out,
            format!(
                "tank/a\t{}\t{m}\t{}\t{}\t0\t0\n\
                 tank/a@1\t{m}\t{}\t0\t1795180045\t-\n\
                 tank/a@2\t0\t-\t0\t1795180045\tclone tank/c, hold keep\n",
                6 * m,
                5 * m,
                2 * m,
                3 * m
            )
        );
        assert_eq!(run("space", &mut fake).0, 2);
        assert_eq!(run("space tank/a@1", &mut fake).0, 1);
    }
}
