//! Helpers that several subcommands share.

use api::{Pool, PoolGet, Reply, Request, Vdev};
use cli::harmless::one_line;
use cli::json::{line, Object, Put, Style};
use cli::vdevs::Naming;
use cli::{Cx, Fail, Outcome, Parsed};
use control::client::unexpected;

/// Asks for pools; complaints about those that cannot be had are printed. The flag says whether
/// there were any.
pub fn pools(cx: &mut Cx<'_>, get: PoolGet) -> Result<(Vec<Pool>, bool), Fail> {
    match cx.ask(&Request::PoolGet(get)) {
        Ok(Reply::Pools(answer)) => {
            for (name, error) in &answer.failed {
                cx.complain(error, "open", name)?;
            }
            let mut found = answer.found;
            for pool in &mut found {
                pool.name = one_line(&pool.name);
                in_one_line(pool.tree.as_mut());
                for line in &mut pool.error_list {
                    *line = one_line(line);
                }
            }
            Ok((found, !answer.failed.is_empty()))
        }
        Ok(other) => Err(cx.fail_plain(&unexpected(&other))),
        Err(e) => Err(cx.fail_plain(&e)),
    }
}

/// Names of devices come from labels; none of them forges a line.
pub fn in_one_line(tree: Option<&mut Vdev>) {
    if let Some(vdev) = tree {
        vdev.path = vdev.path.as_deref().map(one_line);
        for child in &mut vdev.children {
            in_one_line(Some(child));
        }
    }
}

/// A request that is answered by `Done`.
pub fn done(cx: &mut Cx<'_>, request: &Request, action: &str, object: &str) -> Result<(), Fail> {
    match cx.ask(request) {
        Ok(Reply::Done) => Ok(()),
        Ok(Reply::DoneBut(what)) => cx.say(&what).map_err(Fail::Io),
        Ok(other) => Err(cx.fail_plain(&unexpected(&other))),
        Err(e) => Err(cx.fail(&e, action, object)),
    }
}

/// A request for each of several objects, answered by `Done`; what is refused is told, and makes the exit status 1.
pub fn done_for_each<T>(
    cx: &mut Cx<'_>,
    action: &str,
    list: impl IntoIterator<Item = T>,
    request: impl Fn(&T, String) -> (Request, String),
) -> Outcome {
    let mut status = 0;
    for one in list {
        let (request, object) = request(&one, cx.command());
        match done(cx, &request, action, &object) {
            Ok(()) => {}
            Err(Fail::Error(_)) => status = 1,
            Err(other) => return Err(other),
        }
    }
    Ok(status)
}

/// The same for the pools that are named, or for all of them.
pub fn done_for_pools(
    cx: &mut Cx<'_>,
    action: &str,
    names: &[String],
    request: impl Fn(String, String) -> Request,
) -> Outcome {
    let get = PoolGet {
        pools: names.to_vec(),
        ..PoolGet::default()
    };
    let (pools, failed) = pools(cx, get)?;
    let status = done_for_each(cx, action, pools, |pool, command| {
        (request(pool.name.clone(), command), pool.name.clone())
    })?;
    Ok(status.max(i32::from(failed)))
}

/// How vdevs are to be called, from options and environment.
pub fn naming(args: &Parsed, cx: &Cx<'_>) -> Naming {
    Naming {
        guid: args.has("g") || cx.flag("ZPOOL_VDEV_NAME_GUID"),
        follow: args.has("L") || cx.flag("ZPOOL_VDEV_NAME_FOLLOW_LINKS"),
        path: args.has("P") || cx.flag("ZPOOL_VDEV_NAME_PATH"),
        numbered: true,
    }
}

/// Reads `-j`, `--json-int`, `-p` and `--json-pool-key-guid`.
pub fn json_style(args: &Parsed) -> Result<Option<Style>, Fail> {
    let json = args.has("j");
    for option in ["json-int", "json-pool-key-guid", "json-flat-vdevs"] {
        if args.has(option) && !json {
            return Err(Fail::Usage(format!(
                "'--{option}' only works with '-j' option"
            )));
        }
    }
    Ok(json.then(|| Style {
        exact: args.has("p") || args.has("json-int"),
        int: args.has("json-int"),
    }))
}

/// Key of a pool in JSON.
pub fn json_key(pool: &Pool, args: &Parsed) -> String {
    if args.has("json-pool-key-guid") {
        pool.guid.to_string()
    } else {
        pool.name.clone()
    }
}

/// The block every pool in JSON begins with.
pub fn json_pool(pool: &Pool, style: Style, typed: bool) -> Object {
    let mut o = Object::new().with("name", pool.name.as_str());
    if typed {
        o.put("type", "POOL");
    }
    o.put("state", pool.health.as_str());
    o.put("pool_guid", style.plain(pool.guid));
    o.put("txg", style.plain(pool.txg));
    o.put("spa_version", style.plain(pool.version));
    o.put("zpl_version", style.plain(pool.zpl_version));
    o
}

/// Prints the time line of `-T`, if asked for.
pub fn stamp(args: &Parsed, cx: &mut Cx<'_>) -> Result<Option<String>, Fail> {
    match args.get("T") {
        Some(how) => Ok(Some(cli::run::stamp(how, &cx.zone)?)),
        None => Ok(None),
    }
}

/// Prints a JSON report.
pub fn print_json(cx: &mut Cx<'_>, report: Object) -> Result<(), Fail> {
    writeln!(cx.out, "{}", line(report))?;
    Ok(())
}

/// No operand too many, none missing: the one there is.
pub fn one(args: &Parsed, what: &str) -> Result<String, Fail> {
    match args.operands.as_slice() {
        [] => Err(Fail::Usage(format!("missing {what}"))),
        [x] => Ok(x.clone()),
        _ => Err(Fail::Usage("too many arguments".into())),
    }
}

/// What a pool property is, in complaints.
pub const POOL_PROPERTY: &str = "pool or vdev property";

/// Reads `-o property=value` lists; names come out once each. `what` they are to be names of.
pub fn assignments<'a>(
    texts: impl Iterator<Item = &'a str>,
    known: fn(&str) -> Option<String>,
    what: &str,
) -> Result<Vec<(String, String)>, Fail> {
    let mut out: Vec<(String, String)> = Vec::new();
    for text in texts {
        let (name, value) = cli::names::assignment(text).ok_or_else(|| {
            Fail::Usage(format!("missing '=' for property=value argument '{text}'"))
        })?;
        let name = known(&name)
            .ok_or_else(|| Fail::Error(format!("property '{name}' is not a valid {what}")))?;
        if out.iter().any(|(n, _)| *n == name) {
            return Err(Fail::Error(format!(
                "property '{name}' specified multiple times"
            )));
        }
        out.push((name, value));
    }
    Ok(out)
}

/// What is wrong with an option, as OpenZFS's usage error.
pub fn as_usage(why: Fail) -> Fail {
    match why {
        Fail::Error(text) => Fail::Usage(text),
        other => other,
    }
}

/// Full name of a pool property, if there is one of that name.
pub fn pool_property(name: &str) -> Option<String> {
    if let Some(info) = cli::props::pool(name) {
        return Some(info.name.to_string());
    }
    let free = cli::props::is_feature_property(name)
        || cli::props::is_user_property(name)
        || ["tname", "load_guid", "maxblocksize", "maxdnodesize"].contains(&name);
    free.then(|| name.to_string())
}

/// Full name of a dataset property.
pub fn dataset_property(name: &str) -> Option<String> {
    if let Some(info) = cli::props::dataset(name) {
        return Some(info.name.to_string());
    }
    (cli::props::is_user_property(name) || cli::props::is_space_property(name))
        .then(|| name.to_string())
}
