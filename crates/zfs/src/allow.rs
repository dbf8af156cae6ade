//! `zfs allow` and `zfs unallow`.

use crate::common;
use crate::look::name_of;
use api::{Delegate, Delegation, Grant, Grantee, Reply, Request};
use cli::{Cx, Fail, Outcome, Parsed};
use control::client::unexpected;

/// What one command line asks for.
struct Wanted {
    dataset: String,
    list: Vec<Delegation>,
}

fn usage(text: &str) -> Fail {
    Fail::Usage(text.into())
}

/// A name of `/etc/passwd` or `/etc/group`, or a number.
fn id_of(file: &str, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let known = text.lines().find_map(|line| {
        let mut f = line.split(':');
        (f.next()? == name)
            .then(|| f.nth(1)?.parse().ok())
            .flatten()
    });
    known.or_else(|| name.parse::<u32>().ok().map(u64::from))
}

/// The users and groups of a list. Without `-u` and `-g` a name is that of a user if there is one.
fn delegates(words: &str, users: bool, groups: bool) -> Result<Vec<Delegate>, Fail> {
    let mut out = Vec::new();
    for word in words.split(',') {
        let user = || id_of("/etc/passwd", word).map(Delegate::User);
        let group = || id_of("/etc/group", word).map(Delegate::Group);
        let (found, what) = match (users, groups) {
            (true, _) => (user(), "user"),
            (_, true) => (group(), "group"),
            _ if word == "everyone" => (Some(Delegate::Everyone), ""),
            _ => (user().or_else(group), "user/group"),
        };
        out.push(found.ok_or_else(|| Fail::Usage(format!("invalid {what} {word}")))?);
    }
    Ok(out)
}

fn permissions(words: Option<&String>) -> Vec<String> {
    let words = words.map(|w| w.split(',')).into_iter().flatten();
    words
        .filter(|w| !w.is_empty())
        .map(str::to_string)
        .collect()
}

/// Reads a command line that gives or takes (`taking`).
fn wanted(args: &Parsed, taking: bool) -> Result<Wanted, Fail> {
    let has = |key: &str| args.has(key);
    let kinds = ["u", "g", "e"].iter().filter(|k| has(k)).count();
    if kinds > 1 {
        return Err(usage("-u, -g, and -e are mutually exclusive"));
    }
    let (set, create) = (has("s"), has("c"));
    if (set || create) && (kinds > 0 || set && create) {
        let option = if set { "-s" } else { "-c" };
        return Err(Fail::Usage(format!(
            "invalid options combined with {option}"
        )));
    }
    if (set || create) && (has("l") || has("d")) {
        return Err(usage("-l and -d mean nothing for sets and creators"));
    }
    let mut words = args.operands.clone();
    let Some(dataset) = words.pop() else {
        return Err(usage("missing filesystem argument"));
    };
    let mut words = words.iter();
    let mut next = |what: &str| {
        let word = words.next();
        word.ok_or_else(|| Fail::Usage(format!("missing {what}")))
    };
    let to = if set {
        let name = next("permission set name")?;
        if !name.starts_with('@') {
            return Err(usage("invalid set name: missing '@' prefix"));
        }
        vec![Delegate::Set(name.clone())]
    } else if create {
        vec![Delegate::Creator]
    } else if has("e") {
        vec![Delegate::Everyone]
    } else {
        delegates(next("user or group")?, has("u"), has("g"))?
    };
    let permissions = permissions(words.next());
    if permissions.is_empty() && !taking {
        return Err(usage("missing permissions"));
    }
    if words.next().is_some() {
        return Err(usage("wrong number of parameters"));
    }
    let list = to
        .into_iter()
        .map(|to| Delegation {
            to,
            local: has("l"),
            descendent: has("d"),
            permissions: permissions.clone(),
        })
        .collect();
    Ok(Wanted { dataset, list })
}

/// `zfs allow`: with a dataset alone what is delegated there and above, else gives permissions.
pub fn allow(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    if let ([dataset], None) = (args.operands.as_slice(), args.in_order().next()) {
        return show(dataset, cx);
    }
    let Wanted { dataset, list } = wanted(args, false)?;
    let name = common::dataset_of(&dataset, cx).map_err(Fail::Error)?;
    let request = Request::PermissionsGive {
        dataset: name.clone(),
        list,
        command: cx.command(),
    };
    common::done(cx, &request, "set permissions on", &name)?;
    Ok(0)
}

/// `zfs unallow`
pub fn unallow(args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    let Wanted { dataset, list } = wanted(args, true)?;
    let name = common::dataset_of(&dataset, cx).map_err(Fail::Error)?;
    let request = Request::PermissionsTake {
        dataset: name.clone(),
        list,
        recursive: args.has("r"),
        command: cx.command(),
    };
    common::done(cx, &request, "set permissions on", &name)?;
    Ok(0)
}

fn show(dataset: &str, cx: &mut Cx<'_>) -> Outcome {
    let name = common::dataset_of(dataset, cx).map_err(Fail::Error)?;
    let request = Request::Permissions {
        dataset: name.clone(),
    };
    let all = match cx.ask(&request) {
        Ok(Reply::Permissions(p)) => p,
        Ok(other) => return Err(cx.fail_plain(&unexpected(&other))),
        Err(e) => return Err(cx.fail(&e, "open", &name)),
    };
    for p in &all {
        let head = format!("---- Permissions on {} ", p.dataset);
        writeln!(cx.out, "{head:-<70}")?;
        if !p.sets.is_empty() {
            writeln!(cx.out, "Permission sets:")?;
            for (name, what) in &p.sets {
                writeln!(cx.out, "\t{name} {}", what.join(","))?;
            }
        }
        if !p.create.is_empty() {
            writeln!(cx.out, "Create time permissions:\n\t{}", p.create.join(","))?;
        }
        grants("Local permissions", &p.local, cx)?;
        grants("Descendent permissions", &p.descendent, cx)?;
        grants("Local+Descendent permissions", &p.everywhere, cx)?;
    }
    Ok(0)
}

fn grants(heading: &str, list: &[Grant], cx: &mut Cx<'_>) -> Result<(), Fail> {
    if list.is_empty() {
        return Ok(());
    }
    writeln!(cx.out, "{heading}:")?;
    for g in list {
        let id =
            |file: &str, id: u64| name_of(file, id).unwrap_or_else(|| format!("(unknown: {id})"));
        let to = match g.to {
            Grantee::User(n) => format!("user {}", id("/etc/passwd", n)),
            Grantee::Group(n) => format!("group {}", id("/etc/group", n)),
            Grantee::Everyone => "everyone".to_string(),
        };
        writeln!(cx.out, "\t{to} {}", g.permissions.join(","))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{run, tree, Fake};
    use api::Permissions;

    #[test]
    fn permissions_are_shown_as_openzfs_shows_them() {
        let mut fake = Fake::with(tree());
        let grant = |to, p: &str| Grant {
            to,
            permissions: p.split(',').map(str::to_string).collect(),
        };
        fake.answer = Some(Reply::Permissions(vec![Permissions {
            dataset: "tank".into(),
            sets: vec![("@set".into(), vec!["promote".into(), "rename".into()])],
            create: vec!["destroy".into()],
            local: vec![grant(Grantee::User(4_000_000_001), "@set")],
            descendent: vec![grant(Grantee::Everyone, "mount")],
            everywhere: vec![grant(Grantee::Group(4_000_000_002), "hold,send")],
        }]));
        let (_, out, _) = run("allow tank", &mut fake);
        assert_eq!(
            out,
            format!(
                "---- Permissions on tank {}\nPermission sets:\n\t@set promote,rename\n\
                 Create time permissions:\n\tdestroy\nLocal permissions:\n\
                 \tuser (unknown: 4000000001) @set\nDescendent permissions:\n\teveryone mount\n\
                 Local+Descendent permissions:\n\tgroup (unknown: 4000000002) hold,send\n",
                "-".repeat(45)
            )
        );
    }

    /// What a command line asks the daemon for, if it asks.
    fn asked(line: &str) -> Option<(Vec<Delegation>, bool)> {
        let mut fake = Fake::with(tree());
        let (status, ..) = run(line, &mut fake);
        match fake.seen.pop() {
            Some(Request::PermissionsGive { list, .. }) if status == 0 => Some((list, false)),
            Some(Request::PermissionsTake {
                list, recursive, ..
            }) if status == 0 => Some((list, recursive)),
            _ => None,
        }
    }

    #[test]
    fn command_lines() {
        let one = |to, local, descendent, list: &[&str]| Delegation {
            to,
            local,
            descendent,
            permissions: list.iter().map(|s| s.to_string()).collect(),
        };
        use Delegate::*;
        for (line, want) in [
            (
                "allow 1234 create,mount tank/a",
                one(User(1234), false, false, &["create", "mount"]),
            ),
            (
                "allow -lg 50 send tank",
                one(Group(50), true, false, &["send"]),
            ),
            ("allow -d -e @x tank", one(Everyone, false, true, &["@x"])),
            (
                "allow everyone diff tank",
                one(Everyone, false, false, &["diff"]),
            ),
            (
                "allow -c destroy tank",
                one(Creator, false, false, &["destroy"]),
            ),
            (
                "allow -s @x hold,@y tank",
                one(Set("@x".into()), false, false, &["hold", "@y"]),
            ),
            ("unallow -u root tank", one(User(0), false, false, &[])),
            ("unallow -c tank", one(Creator, false, false, &[])),
            (
                "unallow -s @x hold tank",
                one(Set("@x".into()), false, false, &["hold"]),
            ),
        ] {
            assert_eq!(asked(line), Some((vec![want], false)), "{line}");
        }
        let (list, recursive) = asked("unallow -r -u 7,8 mount tank").unwrap();
        assert!(list.len() == 2 && recursive);
        for line in [
            "allow",
            "allow -u 7 tank",
            "allow -u -g 7 mount tank",
            "allow -c -e mount tank",
            "allow -s x mount tank",
            "allow -s @x -l mount tank",
            "allow no-such-user-or-group mount tank",
            "allow 7 mount extra tank",
            "unallow tank",
        ] {
            let mut fake = Fake::with(tree());
            assert_eq!(run(line, &mut fake).0, 2, "{line}");
            assert!(fake.seen.is_empty(), "{line}");
        }
    }
}
