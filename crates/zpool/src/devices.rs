//! `zpool add`, `remove`, `attach`, `replace`, `detach`, `online`, `offline`, `reopen` (command reference §7).

use crate::{common, create};
use api::{
    ApiError, DeviceAttach, PoolAdd, PoolGet, Reply, Request, VdevClass, VdevKind, VdevSpec,
};
use cli::vdevs::of_class;
use cli::{Cx, Fail, Outcome, Parsed};
use control::client::unexpected;
use std::time::Duration;

/// How often is asked whether what was begun has ended.
const POLL: Duration = Duration::from_millis(200);

/// `-o ashift=N`
fn ashift(args: &Parsed) -> Result<Option<u32>, Fail> {
    let known = |name: &str| (name == "ashift").then(|| name.to_string());
    let given = common::assignments(args.all("o"), known, "property here: only ashift is")
        .map_err(common::as_usage)?;
    let Some((_, value)) = given.first() else {
        return Ok(None);
    };
    match value.parse::<u32>() {
        Ok(n) if n == 0 || (9..=16).contains(&n) => Ok(Some(n)),
        _ => Err(Fail::Error(format!(
            "invalid 'ashift={value}' property: only values between 9 and 16 are allowed."
        ))),
    }
}

/// Pool and devices of commands that take several of them.
fn pool_and_devices(args: &Parsed) -> Result<(String, Vec<String>), Fail> {
    match args.operands.split_first() {
        None => Err(Fail::Usage("missing pool name".into())),
        Some((_, [])) => Err(Fail::Usage("missing device name".into())),
        Some((pool, devices)) => Ok((pool.clone(), devices.to_vec())),
    }
}

/// Asks for each device; the exit status is 1 if one was refused.
fn each(
    cx: &mut Cx<'_>,
    devices: &[String],
    action: &str,
    request: &dyn Fn(String, String) -> Request,
) -> Outcome {
    let mut status = 0;
    for device in devices {
        match cx.ask(&request(device.clone(), cx.command())) {
            Ok(Reply::Done) => {}
            Ok(Reply::DoneBut(warning)) => writeln!(cx.out, "{warning}")?,
            Ok(other) => return Err(cx.fail_plain(&unexpected(&other))),
            Err(e) => {
                cx.complain(&e, action, device)?;
                status = 1;
            }
        }
    }
    Ok(status)
}

pub fn online(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let (pool, devices) = pool_and_devices(args)?;
    let expand = args.has("e");
    each(cx, &devices, "online", &|device, command| {
        Request::DeviceOnline {
            pool: pool.clone(),
            device,
            expand,
            command,
        }
    })
}

pub fn offline(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let (pool, devices) = pool_and_devices(args)?;
    let (temporary, fault) = (args.has("t"), args.has("f"));
    each(cx, &devices, "offline", &|device, command| {
        Request::DeviceOffline {
            pool: pool.clone(),
            device,
            temporary,
            fault,
            command,
        }
    })
}

pub fn remove(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    if args.has("s") {
        return cancel_removal(args, cx);
    }
    if args.operands.len() == 1 {
        return Err(Fail::Usage("missing device".into()));
    }
    let (pool, devices) = pool_and_devices(args)?;
    if args.has("n") {
        return removal_estimates(&pool, &devices, args.has("p"), cx);
    }
    let status = each(cx, &devices, "remove", &|device, command| {
        Request::DeviceRemove {
            pool: pool.clone(),
            device,
            estimate: false,
            command,
        }
    })?;
    if status == 0 && args.has("w") {
        until_idle(cx, &pool, "remove")?;
    }
    Ok(status)
}

/// `zpool remove -s`
fn cancel_removal(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let pool = match args.operands.as_slice() {
        [] => return Err(Fail::Usage("missing pool name argument".into())),
        [pool] => pool,
        _ => return Err(Fail::Usage("too many arguments".into())),
    };
    if args.has("w") {
        let why = "invalid option combination: -w cannot be used with -s";
        return Err(Fail::Usage(why.into()));
    }
    if args.has("n") {
        cx.say("stop request ignored")?;
        return Ok(0);
    }
    let request = Request::RemovalCancel {
        pool: pool.clone(),
        command: cx.command(),
    };
    common::done(cx, &request, "cancel removal in", pool)?;
    Ok(0)
}

/// `zpool remove -n`
fn removal_estimates(pool: &str, devices: &[String], exact: bool, cx: &mut Cx<'_>) -> Outcome {
    let mut status = 0;
    for device in devices {
        let request = Request::DeviceRemove {
            pool: pool.into(),
            device: device.clone(),
            estimate: true,
            command: String::new(),
        };
        match cx.ask(&request) {
            Ok(Reply::Bytes(0)) => {}
            Ok(Reply::Bytes(n)) => {
                let size = match exact {
                    true => n.to_string(),
                    false => base::sizes::nice(n, false),
                };
                writeln!(
                    cx.out,
                    "Memory that will be used after removing {device}: {size}"
                )?;
            }
            Ok(other) => return Err(cx.fail_plain(&unexpected(&other))),
            Err(e) => {
                cx.complain(&e, "determine indirect size of", device)?;
                status = 1;
            }
        }
    }
    Ok(status)
}

pub fn detach(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let (pool, devices) = pool_and_devices(args)?;
    if devices.len() > 1 {
        return Err(Fail::Usage("too many arguments".into()));
    }
    each(cx, &devices, "detach", &|device, command| {
        Request::DeviceDetach {
            pool: pool.clone(),
            device,
            command,
        }
    })
}

pub fn attach(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    put_beside(args, cx, false)
}

pub fn replace(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    put_beside(args, cx, true)
}

fn put_beside(args: &Parsed, cx: &mut Cx<'_>, replace: bool) -> Outcome {
    let (pool, device, new) = match args.operands.as_slice() {
        [] => return Err(Fail::Usage("missing pool name argument".into())),
        [_] => return Err(Fail::Usage("missing <device> specification".into())),
        [_, _] if !replace => return Err(Fail::Usage("missing <new_device> specification".into())),
        [pool, device] => (pool, device, None),
        [pool, device, new] => (pool, device, Some(new)),
        _ => return Err(Fail::Usage("too many arguments".into())),
    };
    let action = if replace { "replace" } else { "attach" };
    let new = match new {
        Some(word) if is_distributed_spare(word) => Some(word.clone()),
        Some(word) => Some(create::resolve(word).map_err(Fail::Error)?.0),
        None => None,
    };
    let request = Request::DeviceAttach(DeviceAttach {
        pool: pool.clone(),
        device: device.clone(),
        new,
        replace,
        sequential: args.has("s"),
        ashift: ashift(args)?,
        force: args.has("f"),
        command: cx.command(),
    });
    common::done(cx, &request, action, device)?;
    if args.has("w") {
        // A device that is given by its guid may be a RAID-Z, or not.
        let activities: &[&str] = match device.parse::<u64>() {
            _ if replace => &["replace"],
            Ok(_) => &["raidz_expand", "resilver"],
            Err(_) if device.starts_with("raidz") => &["raidz_expand"],
            Err(_) => &["resilver"],
        };
        for activity in activities {
            until_idle(cx, pool, activity)?;
        }
    }
    Ok(0)
}

/// Whether a word is the name of a distributed spare: `draid2-0-1`.
fn is_distributed_spare(word: &str) -> bool {
    let numbers = word.strip_prefix("draid").map(|n| n.split('-'));
    let digits = |n: &str| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit());
    numbers.is_some_and(|mut n| n.clone().count() == 3 && n.all(digits))
}

/// Waits until nothing of that name goes on in a pool.
fn until_idle(cx: &mut Cx<'_>, pool: &str, activity: &str) -> Result<(), Fail> {
    loop {
        let request = Request::PoolActivity {
            pool: pool.into(),
            devices: vec![],
        };
        match cx.ask(&request) {
            Ok(Reply::Activity(now)) => {
                if !now.iter().any(|a| a.name == activity && a.running) {
                    return Ok(());
                }
            }
            Ok(other) => return Err(cx.fail_plain(&unexpected(&other))),
            Err(e) => return Err(cx.fail(&e, "wait for", pool)),
        }
        std::thread::sleep(POLL);
    }
}

pub fn reopen(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    common::done_for_pools(cx, "reopen", &args.operands, |pool, command| {
        Request::PoolReopen { pool, command }
    })
}

pub fn add(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let (name, words) = match args.operands.split_first() {
        None => return Err(Fail::Usage("missing pool name argument".into())),
        Some((_, [])) => return Err(Fail::Usage("missing vdev specification".into())),
        Some((name, words)) => (name.clone(), words),
    };
    let force = args.has("f");
    let narrow = [
        "allow-in-use",
        "allow-replication-mismatch",
        "allow-ashift-mismatch",
    ];
    if force && narrow.iter().any(|f| args.has(f)) {
        return Err(Fail::Usage(
            "'-f' option is not allowed with '--allow-replication-mismatch', '--allow-ashift-mismatch', or '--allow-in-use'"
                .into(),
        ));
    }
    let vdevs = create::parse_vdevs(words, &create::resolve).map_err(Fail::Error)?;
    create::refuse_twice(&format!("cannot add to '{name}'"), "", &vdevs)?;
    let get = PoolGet {
        pools: vec![name.clone()],
        tree: true,
        ..PoolGet::default()
    };
    let (pools, _) = common::pools(cx, get)?;
    let Some(tree) = pools.first().and_then(|p| p.tree.clone()) else {
        return Ok(1);
    };
    let there = specs(&tree);
    let mut errors = Vec::new();
    if !force && !args.has("allow-replication-mismatch") {
        errors = create::mismatches(&vdevs, &create::size_of);
        if errors.is_empty() {
            errors.extend(differs(&there, &vdevs));
        }
    }
    let dry_run = args.has("n");
    let ask = PoolAdd {
        pool: name.clone(),
        vdevs: vdevs.clone(),
        ashift: ashift(args)?,
        allow_in_use: force || args.has("allow-in-use"),
        allow_ashift_mismatch: force || args.has("allow-ashift-mismatch"),
        dry_run: dry_run || !errors.is_empty(),
        command: cx.command(),
    };
    if !errors.is_empty() {
        let mismatch = ApiError::vdevs(!ask.allow_in_use, &errors);
        return Err(create::refused(cx, &Request::PoolAdd(ask), &mismatch));
    }
    let request = Request::PoolAdd(ask);
    common::done(cx, &request, "add to", &name)?;
    if dry_run {
        let how = common::naming(args, cx);
        write!(
            cx.out,
            "would update '{name}' to the following configuration:\n\n{}",
            merged(&name, &tree, &vdevs, how)
        )?;
    }
    Ok(0)
}

/// The vdevs of a pool as they would be asked for.
fn specs(root: &api::Vdev) -> Vec<VdevSpec> {
    let spec = |v: &api::Vdev| VdevSpec {
        kind: v.kind,
        class: v.class,
        path: v.path.clone(),
        children: Vec::new(),
    };
    let holes = |v: &&api::Vdev| !matches!(v.kind, VdevKind::Hole | VdevKind::Indirect);
    root.children
        .iter()
        .filter(holes)
        .map(|top| VdevSpec {
            // One that is being replaced counts as what it is without that.
            kind: match top.kind {
                VdevKind::Replacing | VdevKind::Spare => VdevKind::Disk,
                kind => kind,
            },
            children: match top.kind {
                VdevKind::Replacing | VdevKind::Spare => Vec::new(),
                _ => top.children.iter().map(spec).collect(),
            },
            ..spec(top)
        })
        .collect()
}

/// Why new vdevs do not go with those of the pool.
fn differs(there: &[VdevSpec], new: &[VdevSpec]) -> Option<String> {
    let data = [VdevClass::Normal, VdevClass::Special, VdevClass::Dedup];
    let counts = |v: &&VdevSpec| data.contains(&v.class);
    let old = there.iter().find(counts)?;
    // A pool that is mixed already takes anything.
    if !create::mismatches(there, &|_| None).is_empty() {
        return None;
    }
    let level = "mismatched replication level:";
    for n in new.iter().filter(counts) {
        let (a, b) = (create::shape(old), create::shape(n));
        if create::redundant(a.0) && create::redundant(b.0) && a.0 != b.0 {
            if a.1 != b.1 {
                let text = create::different_redundancy("pool and new vdev", a, b);
                return Some(format!("{level} {text}"));
            }
            continue;
        }
        if a.0 != b.0 {
            return Some(format!("{level} pool uses {} and new vdev is {}", a.0, b.0));
        }
        if a.0 != "mirror" && a.1 != b.1 {
            return Some(format!(
                "{level} pool uses {} device parity and new vdev uses {}",
                a.1, b.1
            ));
        }
        if a.2 != b.2 {
            return Some(format!(
                "{level} pool uses {}-way {} and new vdev uses {}-way {}",
                a.2, a.0, b.2, b.0
            ));
        }
    }
    None
}

/// The tree there would be.
fn merged(pool: &str, root: &api::Vdev, new: &[VdevSpec], how: cli::vdevs::Naming) -> String {
    let mut out = String::new();
    let normal = std::iter::once((VdevClass::Normal, pool));
    for (class, heading) in normal.chain(cli::vdevs::CLASSES) {
        let mut lines = Vec::new();
        // Only the data vdevs are numbered, as in OpenZFS.
        let how = cli::vdevs::Naming {
            numbered: how.numbered && class == VdevClass::Normal,
            ..how
        };
        for v in of_class(root, class) {
            lines.push(format!("\t  {}\n", cli::vdevs::name(v, pool, how)));
            for c in &v.children {
                lines.push(format!("\t    {}\n", cli::vdevs::name(c, pool, how)));
            }
        }
        let of: Vec<VdevSpec> = new.iter().filter(|v| v.class == class).cloned().collect();
        let text = create::layout(pool, &of);
        // Its first line is the heading.
        lines.extend(text.lines().skip(1).map(|l| format!("{l}\n")));
        if !lines.is_empty() {
            out.push_str(&format!("\t{heading}\n{}", lines.concat()));
        }
    }
    out
}
