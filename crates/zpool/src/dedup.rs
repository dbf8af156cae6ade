//! `zpool prefetch` and `zpool ddtprune`.

use crate::common;
use api::{Prune, Reply, Request, SharedTable};
use cli::{Cx, Fail, Outcome, Parsed};
use control::client::unexpected;

pub fn prefetch(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let pool = common::one(args, "pool name argument")?;
    let tables = match args.get("t") {
        None => vec![SharedTable::Ddt, SharedTable::Brt],
        Some("ddt") => vec![SharedTable::Ddt],
        Some("brt") => vec![SharedTable::Brt],
        Some(_) => return Err(Fail::Usage("unsupported prefetch type".into())),
    };
    let last = tables.len() - 1;
    for (i, table) in tables.into_iter().enumerate() {
        let request = Request::PoolPrefetch {
            pool: pool.clone(),
            table,
            command: match i == last {
                true => cx.command(),
                false => String::new(),
            },
        };
        let action = match table {
            SharedTable::Ddt => "prefetch ddt in",
            SharedTable::Brt => "prefetch brt in",
        };
        done(cx, &request, action, &pool)?;
    }
    Ok(0)
}

pub fn prune(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let what = match (args.get("d"), args.get("p")) {
        (Some(_), Some(_)) => {
            return Err(Fail::Usage("-p cannot be combined with -d option".into()));
        }
        (None, None) => {
            return Err(Fail::Usage("missing amount option (-d|-p <value>)".into()));
        }
        (Some(days), None) => match days.parse() {
            Ok(n @ 1..) => Prune::Days(n),
            _ => return Err(Fail::Usage("invalid days value".into())),
        },
        (None, Some(percent)) => match percent.parse() {
            Ok(n @ 1..=100) => Prune::Percent(n),
            _ => return Err(Fail::Usage("invalid percentage value".into())),
        },
    };
    let pool = common::one(args, "pool argument")?;
    let request = Request::PoolPrune {
        pool: pool.clone(),
        what,
        command: cx.command(),
    };
    done(cx, &request, "prune dedup table on", &pool)?;
    Ok(0)
}

fn done(cx: &mut Cx<'_>, request: &Request, action: &str, pool: &str) -> Result<(), Fail> {
    match cx.ask(request) {
        Ok(Reply::Done) => Ok(()),
        Ok(other) => Err(cx.fail_plain(&unexpected(&other))),
        Err(e) => Err(cx.fail(&e, action, pool)),
    }
}
