//! `zpool import`: lists the pools found on devices, and imports them.

use crate::common;
use crate::status::json::{as_printed, devices, moment};
use crate::status::Look;
use crate::status_reason::{reason_of, Reason};
use crate::status_text::{feature_lines, see};
use api::{ImportScan, Importable, Multihost, PoolImport, Reply, Request, Vdev, VdevClass};
use cli::harmless::one_line;
use cli::json::{envelope, Object, Put, Style};
use cli::vdevs::{self, Naming};
use cli::{time, Cx, Fail, Outcome, Parsed};
use control::client::unexpected;

pub fn import(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let all = args.has("a");
    if args.has("c") && (args.has("d") || args.has("s")) {
        return Err(Fail::Usage("-c is incompatible with -d and -s".into()));
    }
    if args.has("n") && !args.has("F") {
        return Err(Fail::Usage("-n is only meaningful with -F".into()));
    }
    if args.has("X") && !args.has("F") {
        return Err(Fail::Usage("-X is only meaningful with -F".into()));
    }
    if all && !args.operands.is_empty() {
        return Err(Fail::Usage("too many arguments".into()));
    }
    if args.operands.len() > 2 {
        return Err(Fail::Usage("too many arguments".into()));
    }
    let json = common::json_style(args)?;
    if json.is_some() && (all || !args.operands.is_empty()) {
        return Err(Fail::Usage("-j only lists".into()));
    }
    let search = ImportScan {
        places: places(args, cx),
        default_places: args.has("s") && (cx.env)("ZPOOL_IMPORT_PATH").is_none(),
        cache_file: args.get("c").map(cli::run::absolute),
        destroyed: args.has("D"),
    };
    let template = template(args, cx, search.clone())?;
    match args.operands.first() {
        Some(pool) => {
            let pool = pool.clone();
            let new_name = args.operands.get(1).cloned();
            if let Some(new) = &new_name {
                cli::names::check_pool(new, true)
                    .map_err(|why| Fail::Error(format!("cannot import '{new}': {why}")))?;
            }
            // The pool's own name in the message, also when it was named by guid.
            one(
                cx,
                PoolImport {
                    pool: pool.clone(),
                    new_name,
                    ..template
                },
                &pool,
                args.has("l"),
            )
        }
        None => {
            let mut found = scan(cx, search)?;
            // To be read, not to be imported by.
            for pool in found.iter_mut().filter(|_| !all || json.is_some()) {
                pool.name = one_line(&pool.name);
                pool.comment = pool.comment.as_deref().map(one_line);
                pool.hostname = pool.hostname.as_deref().map(one_line);
                common::in_one_line(pool.tree.as_mut());
            }
            found.sort_by(|a, b| (&a.name, a.guid).cmp(&(&b.name, b.guid)));
            if let Some(style) = json {
                let report = report(&found, args, style, cx);
                common::print_json(cx, report)?;
                return Ok(0);
            }
            if found.is_empty() {
                cx.say("no pools available to import")?;
                return Ok(0);
            }
            if !all {
                for (i, pool) in found.iter().enumerate() {
                    if i > 0 {
                        writeln!(cx.out)?;
                    }
                    let text = listing(pool, &common::naming(args, cx), cx);
                    write!(cx.out, "{text}")?;
                }
                return Ok(0);
            }
            let mut status = 0;
            for pool in found {
                let request = PoolImport {
                    pool: pool.guid.to_string(),
                    ..template.clone()
                };
                match one(cx, request, &pool.name, args.has("l")) {
                    Ok(s) => status = status.max(s),
                    Err(Fail::Error(text)) => {
                        if !text.is_empty() {
                            cx.say(&text)?;
                        }
                        status = 1;
                    }
                    Err(other) => return Err(other),
                }
            }
            Ok(status)
        }
    }
}

/// Where to search: `-d`, else ZPOOL_IMPORT_PATH; none: the daemon's own places.
fn places(args: &Parsed, cx: &Cx<'_>) -> Vec<String> {
    let mut out: Vec<String> = args.all("d").map(cli::run::absolute).collect();
    if out.is_empty() || args.has("s") {
        if let Some(path) = (cx.env)("ZPOOL_IMPORT_PATH") {
            out.extend(
                path.split(':')
                    .filter(|p| !p.is_empty())
                    .map(cli::run::absolute),
            );
        }
    }
    out
}

fn template(args: &Parsed, cx: &Cx<'_>, search: ImportScan) -> Result<PoolImport, Fail> {
    let mut props = Vec::new();
    let mut mount_options = Vec::new();
    for text in args.all("o") {
        if text.contains('=') {
            let one = common::assignments(
                std::iter::once(text),
                common::pool_property,
                common::POOL_PROPERTY,
            )?;
            for (name, value) in one {
                if props.iter().any(|(n, _)| *n == name) {
                    return Err(Fail::Error(format!(
                        "property '{name}' specified multiple times"
                    )));
                }
                props.push((name, value));
            }
        } else {
            mount_options.extend(
                text.split(',')
                    .filter(|o| !o.is_empty())
                    .map(str::to_string),
            );
        }
    }
    let altroot = args.get("R").map(str::to_string);
    if let Some(root) = &altroot {
        if !root.starts_with('/') {
            return Err(Fail::Error(format!(
                "alternate root '{root}' is not an absolute path"
            )));
        }
    }
    if (altroot.is_some() || args.has("t")) && !props.iter().any(|(n, _)| n == "cachefile") {
        props.push(("cachefile".into(), "none".into()));
    }
    let txg = match args.get("T") {
        Some(t) => Some(
            t.parse()
                .map_err(|_| Fail::Usage(format!("invalid txg value '{t}'")))?,
        ),
        None => None,
    };
    Ok(PoolImport {
        search,
        props,
        mount_options,
        altroot,
        temporary: args.has("t"),
        force: args.has("f"),
        // A group that is named may be as old as one likes: -T says -F and -X too.
        rewind: args.has("F") || txg.is_some(),
        dry_run: args.has("n"),
        extreme: args.has("X") || txg.is_some(),
        checkpoint: args.has("rewind-to-checkpoint"),
        txg,
        missing_log: args.has("m"),
        no_mount: args.has("N"),
        command: cx.command(),
        ..PoolImport::default()
    })
}

fn scan(cx: &mut Cx<'_>, search: ImportScan) -> Result<Vec<Importable>, Fail> {
    match cx.ask(&Request::ImportScan(search)) {
        Ok(Reply::Importable(found)) => Ok(found),
        Ok(other) => Err(cx.fail_plain(&unexpected(&other))),
        Err(e) => {
            let e = api::ApiError {
                message: e.sentence_for("discover pools", "").replace(" ''", ""),
                ..e
            };
            Err(cx.fail_plain(&e))
        }
    }
}

/// Imports one pool; with `keys` those it takes are loaded before anything is mounted.
pub fn one(cx: &mut Cx<'_>, request: PoolImport, shown: &str, keys: bool) -> Outcome {
    if !keys || request.dry_run {
        return bring_in(cx, request, shown).map(|(status, _)| status);
    }
    let mount = !request.no_mount;
    let request = PoolImport {
        no_mount: true,
        ..request
    };
    let (mut status, name) = bring_in(cx, request, shown)?;
    if !cli::keys::load_missing(cx, std::slice::from_ref(&name), true, false)? {
        status = 1;
    }
    if !mount {
        return Ok(status);
    }
    let request = Request::MountAll {
        root: Some(name),
        options: Vec::new(),
        overlay: false,
        force: false,
    };
    match cx.ask(&request) {
        Ok(Reply::Batch(batch)) => {
            for (name, error) in &batch.failed {
                cx.complain(error, "mount", name)?;
                status = 1;
            }
            Ok(status)
        }
        Ok(other) => Err(cx.fail_plain(&unexpected(&other))),
        Err(e) => Err(cx.fail_plain(&e)),
    }
}

/// Status, and the name the pool has now.
fn bring_in(cx: &mut Cx<'_>, request: PoolImport, shown: &str) -> Result<(i32, String), Fail> {
    let dry_run = request.dry_run;
    match cx.ask(&Request::PoolImport(request)) {
        Ok(Reply::Imported(done)) => {
            if let Some((to, lost)) = done.rewound {
                let when = time::ctime(to, &cx.zone);
                if dry_run {
                    writeln!(
                        cx.out,
                        "Would be able to return {shown} to its state as of {when}."
                    )?;
                } else {
                    writeln!(cx.out, "Pool {shown} returned to its state as of {when}.")?;
                }
                if lost > 0 {
                    let amount = if lost > 120 {
                        format!("{} minutes", (lost + 30) / 60)
                    } else {
                        format!("{lost} seconds")
                    };
                    let verb = if dry_run {
                        "Would discard"
                    } else {
                        "Discarded"
                    };
                    writeln!(cx.out, "{verb} approximately {amount} of transactions.")?;
                }
            }
            if !done.unplayed.is_empty() {
                writeln!(
                    cx.err,
                    "The intent log of the pool holds changes, made just before it was last used, of the datasets\n\
                     below. Imported read-only they are not seen, and stay in the log: they take effect as soon as\n\
                     the pool is imported for writing."
                )?;
                for name in &done.unplayed {
                    writeln!(cx.err, "\t{name}")?;
                }
            }
            for (name, error) in &done.failed_mounts {
                cx.complain(error, "mount", name)?;
            }
            Ok((i32::from(!done.failed_mounts.is_empty()), done.name))
        }
        Ok(other) => Err(cx.fail_plain(&unexpected(&other))),
        Err(e) => Err(cx.fail(&e, "import", shown)),
    }
}

/// What could be imported, as JSON: like `zpool status -j`. Of pools with one name, each is keyed by
/// its guid.
fn report(found: &[Importable], args: &Parsed, style: Style, cx: &Cx<'_>) -> Object {
    let mut all = Object::new();
    for pool in found {
        let twins = found.iter().filter(|p| p.name == pool.name).count() > 1;
        let key = match twins || args.has("json-pool-key-guid") {
            true => pool.guid.to_string(),
            false => pool.name.clone(),
        };
        all.put(key, described(pool, style, &common::naming(args, cx), cx));
    }
    let mut out = envelope("zpool import");
    out.put("pools", all);
    out
}

fn described(pool: &Importable, style: Style, how: &Naming, cx: &Cx<'_>) -> Object {
    let reason = reason_of(
        pool.tree.as_ref(),
        &pool.facts,
        pool.scan.as_ref(),
        0,
        pool.version,
    );
    let mut o = Object::new()
        .with("name", pool.name.as_str())
        .with("state", pool.health.as_str())
        .with("pool_guid", style.plain(pool.guid))
        .with("spa_version", style.plain(pool.version));
    for (key, is) in [
        ("exported", pool.exported),
        ("destroyed", pool.destroyed),
        ("needs_force", pool.needs_force),
        ("needs_missing_log", pool.needs_missing_log),
    ] {
        if is {
            o.put(key, "true");
        }
    }
    if pool.hostid != 0 {
        o.put("hostid", style.plain(pool.hostid));
    }
    if let Some(name) = &pool.hostname {
        o.put("hostname", name.as_str());
    }
    if pool.last_access != 0 {
        o.put("last_access", moment(style, &cx.zone, pool.last_access));
    }
    if let Some(text) = status_line(reason, pool) {
        o.put("status", as_printed(&text));
    }
    o.put("action", as_printed(&action_line(reason, pool, cx)));
    if let Some(comment) = &pool.comment {
        o.put("comment", comment.as_str());
    }
    if let Some(id) = reason.text(&pool.facts).id {
        o.put("msgid", format!("ZFS-8000-{id}"));
        o.put("moreinfo", see(id));
    }
    let like = api::Pool {
        name: pool.name.clone(),
        tree: pool.tree.clone(),
        ..api::Pool::default()
    };
    let look = Look {
        exact: false,
        slow: false,
        trim: false,
        initialize: false,
        zone: tz::TimeZone::utc(),
        sick_only: false,
        verbose: false,
        dedup: false,
        how: *how,
        ignore_ashift: true,
        now: 0,
        scripts: Default::default(),
    };
    devices(&mut o, &like, style, &look, false);
    o
}

/// Text of one pool that could be imported (command reference §11.1).
fn listing(pool: &Importable, how: &Naming, cx: &Cx<'_>) -> String {
    let reason = reason_of(
        pool.tree.as_ref(),
        &pool.facts,
        pool.scan.as_ref(),
        0,
        pool.version,
    );
    let destroyed = if pool.destroyed { " (DESTROYED)" } else { "" };
    let mut lines = vec![
        ("pool", pool.name.clone()),
        ("id", pool.guid.to_string()),
        ("state", format!("{}{destroyed}", pool.health)),
    ];
    lines.extend(status_line(reason, pool).map(|text| ("status", text)));
    lines.push(("action", action_line(reason, pool, cx)));
    lines.extend(pool.comment.iter().map(|c| ("comment", c.clone())));
    lines.extend(reason.text(&pool.facts).id.map(|id| ("see", see(id))));
    // The longest label there is makes room for itself.
    let width = lines.iter().map(|(l, _)| l.len()).max().unwrap_or(0);
    let mut out = String::new();
    for (label, text) in &lines {
        let text = text.replace('\n', &format!("\n\t{:1$}", "", width - 6));
        out.push_str(&format!("{label:>width$}: {text}\n"));
    }
    out.push_str(&format!("{:>width$}:\n\n", "config"));
    if let Some(tree) = &pool.tree {
        out.push_str(&config(pool, tree, *how));
    }
    if reason == Reason::BadGuidSum {
        out.push_str(
            "\n\tAdditional devices are known to be part of this pool, though their\n\
             \texact configuration cannot be determined.\n",
        );
    }
    out
}

fn status_line(reason: Reason, pool: &Importable) -> Option<String> {
    if let Some(why) = pool.facts.multihost {
        let text = match why {
            Multihost::Active => "The pool is currently imported by another system.",
            Multihost::NoHostId => {
                "The pool has the multihost property on.  It cannot\n\
                 be safely imported when the system hostid is not set."
            }
        };
        return Some(text.into());
    }
    Some(match reason {
        Reason::Healthy | Reason::Resilvering | Reason::RebuildScrub if pool.needs_force => {
            "The pool was last accessed by another system.".into()
        }
        Reason::Healthy | Reason::RebuildScrub => return None,
        Reason::MissingNoReplicas | Reason::Missing | Reason::BadGuidSum => {
            "One or more devices are missing from the system.".into()
        }
        Reason::LabelNoReplicas | Reason::Label => {
            "One or more devices contains corrupted data.".into()
        }
        Reason::CorruptData => "The pool data is corrupted.".into(),
        Reason::Offlined => "One or more devices are offlined.".into(),
        Reason::Removed => "One or more devices are missing from the system.".into(),
        Reason::CorruptPool => "The pool metadata is corrupted.".into(),
        Reason::LegacyVersion => "The pool is formatted using a legacy on-disk version.".into(),
        Reason::VersionNewer => "The pool is formatted using an incompatible version.".into(),
        Reason::FeaturesDisabled => "Some supported features are not enabled on the pool.\n\
             (Note that they may be intentionally disabled if the\n\
             'compatibility' property is set.)"
            .into(),
        Reason::IncompatibleFeatures => "Some features are enabled on the pool despite not being\n\
             requested by the 'compatibility' property."
            .into(),
        Reason::BadCompatibility => "Error reading or parsing the file(s) indicated by the\n\
             'compatibility' property."
            .into(),
        Reason::UnsupportedRead => format!(
            "The pool uses the following feature(s) not supported on this system:{}",
            feature_lines(&pool.facts.unsupported)
        ),
        Reason::UnsupportedWrite => format!(
            "The pool can only be accessed in read-only mode on this system. It\n\
             cannot be accessed in read-write mode because it uses the following\n\
             feature(s) not supported on this system:{}",
            feature_lines(&pool.facts.unsupported)
        ),
        Reason::HostMismatch => "The pool was last accessed by another system.".into(),
        Reason::Faulted | Reason::FaultedNoReplicas => "One or more devices are faulted.".into(),
        Reason::BadLog => "An intent log record cannot be read.".into(),
        Reason::Resilvering => "One or more devices were being resilvered.".into(),
        Reason::MissedWrites => {
            "One or more devices lack data that was written while they were away.".into()
        }
        Reason::Ashift => "One or more devices were configured to use a non-native block size.\n\
             Expect reduced performance."
            .into(),
        Reason::Errata(n) => format!("Errata #{n} detected."),
        Reason::Failing | Reason::Suspended | Reason::Stopped => return None,
    })
}

fn action_line(reason: Reason, pool: &Importable, cx: &Cx<'_>) -> String {
    match pool.facts.multihost {
        Some(Multihost::Active) => {
            let host = pool.hostname.as_deref().unwrap_or("<unknown>");
            return format!(
                "The pool must be exported from {host} (hostid={:x})\n\
                 before it can be safely imported.",
                pool.hostid
            );
        }
        Some(Multihost::NoHostId) => return "Set a unique system hostid in /etc/hostid.".into(),
        None => {}
    }
    let mut text: String = match pool.health.as_str() {
        _ if reason == Reason::UnsupportedWrite => {
            "The pool cannot be imported in read-write mode. Import the pool with\n\
             \"-o readonly=on\", access the pool on a system that supports the\n\
             required feature(s), or recreate the pool from backup."
                .into()
        }
        "ONLINE" if pool.needs_force || reason == Reason::HostMismatch => {
            "The pool can be imported using its name or numeric identifier and\n\
             the '-f' flag."
                .into()
        }
        "ONLINE"
            if matches!(
                reason,
                Reason::LegacyVersion | Reason::FeaturesDisabled | Reason::BadCompatibility
            ) =>
        {
            "The pool can be imported using its name or numeric identifier, though\n\
             some features will not be available without an explicit 'zpool upgrade'."
                .into()
        }
        "ONLINE" => "The pool can be imported using its name or numeric identifier.".into(),
        "DEGRADED" => "The pool can be imported despite missing or damaged devices.  The\n\
             fault tolerance of the pool may be compromised if imported."
            .into(),
        _ => match reason {
            Reason::VersionNewer => {
                "The pool cannot be imported.  Access the pool on a system running newer\n\
                 software, or recreate the pool from backup."
                    .into()
            }
            Reason::UnsupportedRead => {
                "The pool cannot be imported. Access the pool on a system that supports\n\
                 the required feature(s), or recreate the pool from backup."
                    .into()
            }
            Reason::MissingNoReplicas | Reason::Missing | Reason::BadGuidSum => {
                "The pool cannot be imported. Attach the missing\n\
                 devices and try again."
                    .into()
            }
            _ => "The pool cannot be imported due to damaged devices or data.".into(),
        },
    };
    if pool.needs_missing_log {
        text.push_str(
            "\nThe devices of its intent log are missing: it can be imported with the '-m' flag.",
        );
    }
    if let Some((host, id, when)) = &pool.facts.host_mismatch {
        text.push_str(&format!(
            "\nLast accessed by {host} (hostid={id:x}) at {}.",
            time::ctime(*when, &cx.zone)
        ));
    }
    text
}

fn config(pool: &Importable, tree: &Vdev, how: Naming) -> String {
    let width = vdevs::name_width(tree, &pool.name, how).max(10);
    let mut out = String::new();
    let line = |out: &mut String, vdev: &Vdev, depth: usize| {
        let name = vdevs::name(vdev, &pool.name, how);
        let pad = width.saturating_sub(depth);
        let state = vdevs::state(vdev.state, vdev.aux);
        out.push_str(&format!("\t{:depth$}{name:<pad$}  {state}", ""));
        if let Some(note) = vdevs::aux(vdev) {
            out.push_str(&format!("  {note}"));
        }
        out.push('\n');
    };
    fn walk(out: &mut String, vdev: &Vdev, depth: usize, line: &dyn Fn(&mut String, &Vdev, usize)) {
        line(out, vdev, depth);
        for child in &vdev.children {
            walk(out, child, depth + 2, line);
        }
    }
    line(&mut out, tree, 0);
    for v in vdevs::of_class(tree, VdevClass::Normal) {
        walk(&mut out, v, 2, &line);
    }
    // Unlike in `zpool status`, what is outside the tree comes before the other classes.
    let bare = |class| matches!(class, VdevClass::Cache | VdevClass::Spare);
    let outside = vdevs::CLASSES.into_iter().filter(|(c, _)| bare(*c));
    let inside = vdevs::CLASSES.into_iter().filter(|(c, _)| !bare(*c));
    for (class, heading) in outside.chain(inside) {
        let mut members = vdevs::of_class(tree, class).peekable();
        if members.peek().is_none() {
            continue;
        }
        let bare = bare(class);
        out.push_str(&format!("\t{heading}{}\n", if bare { "" } else { "\t" }));
        for v in members {
            if bare {
                let name = vdevs::name(v, &pool.name, how);
                out.push_str(&format!("\t  {name}\n"));
            } else {
                walk(&mut out, v, 2, &line);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{run, sample, Fake};
    use api::{ApiError, PoolFacts, VdevAux, VdevState};
    use base::Kind;

    fn found(name: &str) -> Importable {
        Importable {
            name: name.into(),
            guid: 7,
            version: 5000,
            exported: true,
            health: "ONLINE".into(),
            tree: sample(name).tree,
            ..Importable::default()
        }
    }

    #[test]
    fn lists_as_json() {
        let mut foreign = found("tank");
        foreign.needs_force = true;
        foreign.hostid = 0xabc;
        let twin = Importable {
            guid: 8,
            ..found("good")
        };
        let mut fake = Fake {
            importable: vec![foreign, twin, found("good")],
            ..Fake::default()
        };
        let (status, out, err) = run("import -j --json-int", &mut fake);
        assert_eq!((status, err.as_str()), (0, ""));
        let pools = out.find("\"pools\":{\"7\":{\"name\":\"good\"");
        assert!(pools.is_some(), "{out}");
        for part in [
            "\"command\":\"zpool import\"",
            "\"8\":{\"name\":\"good\",\"state\":\"ONLINE\",\"pool_guid\":8",
            "\"tank\":{\"name\":\"tank\"",
            "\"needs_force\":\"true\",\"hostid\":2748",
            "\"action\":",
            "\"vdev_type\":\"mirror\"",
        ] {
            assert!(out.contains(part), "{part} is not in {out}");
        }
        let (status, _, err) = run("import -j tank", &mut fake);
        assert_eq!(status, 2, "{err}");
        let (status, out, _) = run("import -j", &mut Fake::default());
        assert_eq!(status, 0);
        assert!(out.contains("\"pools\":{}"), "{out}");
    }

    #[test]
    fn lists() {
        let mut broken = found("bad");
        broken.health = "UNAVAIL".into();
        if let Some(root) = &mut broken.tree {
            root.state = VdevState::CantOpen;
            root.aux = VdevAux::NoReplicas;
            let mirror = &mut root.children[0];
            mirror.state = VdevState::CantOpen;
            mirror.aux = VdevAux::NoReplicas;
            for c in &mut mirror.children {
                c.state = VdevState::CantOpen;
                c.aux = VdevAux::OpenFailed;
            }
        }
        let mut foreign = found("tank");
        foreign.needs_force = true;
        foreign.comment = Some("mine".into());
        foreign.facts = PoolFacts {
            host_mismatch: Some(("other".into(), 0xabc, 0)),
            ..PoolFacts::default()
        };
        let mut fake = Fake {
            importable: vec![foreign, broken, found("good")],
            ..Fake::default()
        };
        let (status, out, err) = run("import -d /img -d rel", &mut fake);
        assert_eq!((status, err.as_str()), (0, ""));
        assert_eq!(
            out,
            "  pool: bad\n    id: 7\n state: UNAVAIL\n\
status: One or more devices are missing from the system.\n\
action: The pool cannot be imported. Attach the missing\n\
\tdevices and try again.\n\
\x20  see: https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-3C\n\
config:\n\n\
\tbad         UNAVAIL  insufficient replicas\n\
\t  mirror-0  UNAVAIL  insufficient replicas\n\
\t    sda     UNAVAIL  cannot open\n\
\t    /img/b  UNAVAIL  cannot open\n\
\tspares\n\
\t  sdd\n\
\tlogs\t\n\
\t  sdc       ONLINE\n\
\n\
\x20 pool: good\n    id: 7\n state: ONLINE\n\
action: The pool can be imported using its name or numeric identifier.\n\
config:\n\n\
\tgood        ONLINE\n\
\t  mirror-0  ONLINE\n\
\t    sda     ONLINE\n\
\t    /img/b  ONLINE\n\
\tspares\n\
\t  sdd\n\
\tlogs\t\n\
\t  sdc       ONLINE\n\
\n\
\x20  pool: tank\n     id: 7\n  state: ONLINE\n\
\x20status: The pool was last accessed by another system.\n\
\x20action: The pool can be imported using its name or numeric identifier and\n\
\t the '-f' flag.\n\
\t Last accessed by other (hostid=abc) at Thu Jan  1 00:00:00 1970.\n\
comment: mine\n\
\x20   see: https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-EY\n\
\x20config:\n\n\
\ttank        ONLINE\n\
\t  mirror-0  ONLINE\n\
\t    sda     ONLINE\n\
\t    /img/b  ONLINE\n\
\tspares\n\
\t  sdd\n\
\tlogs\t\n\
\t  sdc       ONLINE\n"
        );
        let Some(Request::ImportScan(scan)) = fake.seen.first() else {
            panic!("{:?}", fake.seen)
        };
        assert_eq!(scan.places[0], "/img");
        assert!(scan.places[1].starts_with('/') && scan.places[1].ends_with("/rel"));
        assert!(!scan.default_places);
        // -s adds the default places to those of -d.
        let mut fake = Fake::with(vec![]);
        let _ = run("import -s -d /img", &mut fake);
        let Some(Request::ImportScan(scan)) = fake.seen.first() else {
            panic!("{:?}", fake.seen)
        };
        assert!(scan.default_places && scan.places == ["/img"], "{scan:?}");
    }

    /// Classes have headings of their own, what is outside the tree comes first.
    #[test]
    fn lists_classes_and_features() {
        let mut pool = found("tank");
        pool.facts.disabled_features = vec!["draid".into()];
        let tree = pool.tree.as_mut().unwrap();
        tree.children.retain(|v| v.class == VdevClass::Normal);
        for (name, class) in [
            ("sdl", VdevClass::Log),
            ("sdp", VdevClass::Special),
            ("sdd", VdevClass::Dedup),
            ("sds", VdevClass::Spare),
            ("sdc", VdevClass::Cache),
        ] {
            tree.children
                .push(crate::testing::leaf(&format!("/dev/{name}"), class));
        }
        let mut readable = found("a");
        readable.health = "UNAVAIL".into();
        readable.facts.unsupported = vec![("com.test:a".into(), "what it is".into())];
        readable.facts.unsupported_readable = true;
        let mut closed = readable.clone();
        closed.name = "b".into();
        closed.facts.unsupported_readable = false;
        closed.facts.unsupported[0].1 = String::new();
        for p in [&mut readable, &mut closed] {
            let tree = p.tree.as_mut().unwrap();
            tree.state = VdevState::CantOpen;
            tree.aux = VdevAux::UnsupportedFeatures;
            tree.children.truncate(1);
        }
        let mut fake = Fake {
            importable: vec![pool, closed, readable],
            ..Fake::default()
        };
        let (_, out, _) = run("import", &mut fake);
        let config = |name: &str| {
            format!(
                "config:\n\n\t{name:<10}  UNAVAIL  unsupported feature(s)\n\
                 \t  mirror-0  ONLINE\n\t    sda     ONLINE\n\t    /img/b  ONLINE\n\n"
            )
        };
        assert_eq!(
            out,
            format!(
                "  pool: a\n    id: 7\n state: UNAVAIL\n\
status: The pool can only be accessed in read-only mode on this system. It\n\
\tcannot be accessed in read-write mode because it uses the following\n\
\tfeature(s) not supported on this system:\n\
\tcom.test:a (what it is)\n\
action: The pool cannot be imported in read-write mode. Import the pool with\n\
\t\"-o readonly=on\", access the pool on a system that supports the\n\
\trequired feature(s), or recreate the pool from backup.\n\
{}\
\x20 pool: b\n    id: 7\n state: UNAVAIL\n\
status: The pool uses the following feature(s) not supported on this system:\n\
\tcom.test:a\n\
action: The pool cannot be imported. Access the pool on a system that supports\n\
\tthe required feature(s), or recreate the pool from backup.\n\
{}\
\x20 pool: tank\n    id: 7\n state: ONLINE\n\
status: Some supported features are not enabled on the pool.\n\
\t(Note that they may be intentionally disabled if the\n\
\t'compatibility' property is set.)\n\
action: The pool can be imported using its name or numeric identifier, though\n\
\tsome features will not be available without an explicit 'zpool upgrade'.\n\
config:\n\n\
\ttank        ONLINE\n\
\t  mirror-0  ONLINE\n\
\t    sda     ONLINE\n\
\t    /img/b  ONLINE\n\
\tcache\n\t  sdc\n\
\tspares\n\t  sds\n\
\tdedup\t\n\t  sdd       ONLINE\n\
\tspecial\t\n\t  sdp       ONLINE\n\
\tlogs\t\n\t  sdl       ONLINE\n",
                config("a"),
                config("b")
            )
        );
    }

    #[test]
    fn imports() {
        let mut fake = Fake::default();
        let (status, _, _) = run(
            "import -fN -o ro,noatime -o readonly=on -R /mnt -t 77 new",
            &mut fake,
        );
        assert_eq!(status, 0);
        let Some(Request::PoolImport(i)) = fake.seen.first() else {
            panic!()
        };
        assert!(i.force && i.no_mount && i.temporary && !i.rewind);
        assert_eq!(i.mount_options, ["ro", "noatime"]);
        assert_eq!(
            i.props,
            [
                ("readonly".to_string(), "on".to_string()),
                ("cachefile".into(), "none".into())
            ]
        );
        assert_eq!(
            (i.pool.as_str(), i.new_name.as_deref()),
            ("77", Some("new"))
        );
        assert_eq!(
            i.command,
            "zpool import -fN -o ro,noatime -o readonly=on -R /mnt -t 77 new"
        );

        // Read-only, what waits in the intent log is told of; it is no failure.
        let mut fake = Fake {
            unplayed: vec!["tank/data".into()],
            ..Fake::default()
        };
        let (status, _, err) = run("import -o readonly=on tank", &mut fake);
        assert!(
            status == 0 && err.ends_with("for writing.\n\ttank/data\n"),
            "{err}"
        );

        // A group that is named is gone back to, however old.
        let mut fake = Fake::default();
        assert_eq!(run("import -T 40 tank", &mut fake).0, 0);
        let Some(Request::PoolImport(i)) = fake.seen.first() else {
            panic!()
        };
        assert!(i.rewind && i.extreme && i.txg == Some(40));

        // All of them; what fails does not stop the others.
        let mut fake = Fake {
            importable: vec![found("a"), found("b")],
            ..Fake::default()
        };
        assert_eq!(run("import -a", &mut fake).0, 0);
        assert_eq!(fake.seen.len(), 3);

        let mut fake = Fake {
            refuse: Some(ApiError::reason(Kind::NotFound, "no such pool available")),
            ..Fake::default()
        };
        assert_eq!(
            run("import tank", &mut fake),
            (
                1,
                String::new(),
                "cannot import 'tank': no such pool available\n".into()
            )
        );
    }

    #[test]
    fn wrong_usage() {
        let mut fake = Fake::default();
        for line in [
            "import -a tank",
            "import a b c",
            "import -n x",
            "import -c f -d g",
            "import -F -T x y",
        ] {
            assert_eq!(run(line, &mut fake).0, 2, "{line}");
        }
        assert_eq!(
            run("import", &mut fake),
            (0, String::new(), "no pools available to import\n".into())
        );
        assert_eq!(
            run("import -V x", &mut fake).2,
            "zpool import -V: not available in this version yet\n"
        );
        assert_eq!(run("import x mirror", &mut fake).0, 1);
    }
}
