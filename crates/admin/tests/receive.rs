//! Receiving, without a machine around it.

use admin::alone::{self, Alone, MemoryDoor};
use admin::commands::{Commands, ROOT};
use admin::datasets::{files, receive, send, set};
use admin::{pools, Admin};
use api::{HistoryRecord, Receive, Send};
use std::sync::Arc;

fn pool() -> Arc<Admin> {
    let (env, disks) = env_sim::mem_env(7);
    disks.add("/dev/a", 128 << 20);
    let settings = alone::settings();
    let process = Arc::new(Alone::new(env.clone(), pool::Tunables::default()));
    let admin = Admin::new(env, settings, Arc::new(MemoryDoor::default()), process);
    let ask = alone::pool_on("p", "/dev/a");
    pools::create::create(&admin, ROOT, ask).unwrap();
    admin
}

fn set(admin: &Arc<Admin>, name: &str, prop: &str, value: &str) {
    let list = vec![(prop.to_string(), value.to_string())];
    set::set(admin, ROOT, name, &list, false, "zfs set".into()).unwrap();
}

/// An export, or a crash, after the snapshot is there finds its holds and properties there too.
#[test]
fn holds_and_properties_of_a_package_come_in_the_txg_of_their_snapshot() {
    let admin = pool();
    let commands = Commands(admin.clone());
    commands.create("p/a", &[]).unwrap();
    set(&admin, "p/a", "refquota", "50M");
    commands.snapshot("p/a@s").unwrap();
    set(&admin, "p/a@s", "com.example:x", "y");
    commands.hold("tag", "p/a@s").unwrap();
    let ask = Send {
        target: "p/a@s".into(),
        replicate: true,
        holds: true,
        ..Send::default()
    };
    let mut package = Vec::new();
    send::send(&admin, ROOT, &ask, Some(&mut package), &mut |_| {}).unwrap();
    let ask = Receive {
        target: "p/b".into(),
        command: "zfs receive p/b".into(),
        ..Receive::default()
    };
    let done = receive::receive(&admin, ROOT, &ask, &package[..], &mut |_| {}).unwrap();
    assert!(done.warnings.is_empty(), "{:?}", done.warnings);

    let dsl = admin.find("p").unwrap().pool.dsl().clone();
    let (head, snap) = (dsl.dataset("p/b").unwrap(), dsl.dataset("p/b@s").unwrap());
    let tags: Vec<String> = snap.hold_list().unwrap().into_iter().map(|h| h.0).collect();
    assert_eq!(tags, ["tag"]);
    assert_eq!(pool::prop_number(&head, "refquota").unwrap(), 50 << 20);
    let user = snap.prop("com.example:x", false).unwrap().unwrap().0;
    assert_eq!(user.text(), Some("y"));

    let mut records: Vec<HistoryRecord> = Vec::new();
    pools::history(&admin, "p", true, &mut |part| {
        records.extend(part);
        Ok(())
    })
    .unwrap();
    let txgs = |event: &str, dataset: &str| -> Vec<u64> {
        let of = |r: &&HistoryRecord| {
            r.event.as_deref() == Some(event) && r.dataset.as_ref().is_some_and(|d| d.0 == dataset)
        };
        records.iter().filter(of).filter_map(|r| r.txg).collect()
    };
    let born = snap.phys().creation_txg.number();
    assert_eq!(txgs("hold", "p/b@s"), [born]);
    assert_eq!(txgs("set", "p/b@s"), [born]);
}

fn sent(admin: &Arc<Admin>, name: &str, from: Option<&str>) -> Vec<u8> {
    let ask = Send {
        target: name.into(),
        from: from.map(Into::into),
        ..Send::default()
    };
    let mut stream = Vec::new();
    send::send(admin, ROOT, &ask, Some(&mut stream), &mut |_| {}).unwrap();
    stream
}

fn props(list: &[(&str, &str)]) -> api::Props {
    let own = |(n, v): &(&str, &str)| (n.to_string(), v.to_string());
    list.iter().map(own).collect()
}

fn number(admin: &Arc<Admin>, name: &str, prop: &str) -> u64 {
    let ds = admin.find("p").unwrap().pool.dsl().dataset(name).unwrap();
    pool::prop_number(&ds, prop).unwrap()
}

#[test]
fn options_of_a_receive_are_obeyed_whether_the_target_is_new_or_resumed() {
    let admin = pool();
    let commands = Commands(admin.clone());
    commands.create("p/a", &[]).unwrap();
    commands.snapshot("p/a@s").unwrap();
    let stream = sent(&admin, "p/a@s", None);
    let mut ask = Receive {
        target: "p/b".into(),
        props: props(&[("refquota", "50M"), ("quota", "60M")]),
        resumable: true,
        ..Receive::default()
    };
    receive::receive(&admin, ROOT, &ask, &stream[..], &mut |_| {}).unwrap();
    assert_eq!(number(&admin, "p/b", "refquota"), 50 << 20);
    assert_eq!(number(&admin, "p/b", "quota"), 60 << 20);

    ask.target = "p/c".into();
    let part = &stream[..stream.len() - 400];
    receive::receive(&admin, ROOT, &ask, part, &mut |_| {}).unwrap_err();
    let kept = admin.find("p").unwrap().pool.dsl().dataset("p/c").unwrap();
    let token = admin::datasets::props::resume_token(&kept)
        .unwrap()
        .unwrap();
    drop(kept);
    let again = Send {
        token: Some(token),
        ..Send::default()
    };
    let mut rest = Vec::new();
    send::send(&admin, ROOT, &again, Some(&mut rest), &mut |_| {}).unwrap();
    ask.props = props(&[("refquota", "40M"), ("quota", "70M")]);
    ask.exclude = vec!["atime".into()];
    receive::receive(&admin, ROOT, &ask, &rest[..], &mut |_| {}).unwrap();
    assert_eq!(number(&admin, "p/c", "refquota"), 40 << 20);
    assert_eq!(number(&admin, "p/c", "quota"), 70 << 20);
}

/// What is excluded may be the mount point of another system.
#[test]
fn a_property_that_cannot_be_set_keeps_none_from_being_excluded() {
    let admin = pool();
    let commands = Commands(admin.clone());
    commands.create("p/a", &[]).unwrap();
    commands.snapshot("p/a@s").unwrap();
    let first = sent(&admin, "p/a@s", None);
    let mut ask = Receive {
        target: "p/b".into(),
        ..Receive::default()
    };
    receive::receive(&admin, ROOT, &ask, &first[..], &mut |_| {}).unwrap();
    set(&admin, "p/a", "recordsize", "8K");
    commands.snapshot("p/a@t").unwrap();
    let more = Send {
        target: "p/a@t".into(),
        from: Some("p/a@s".into()),
        props: true,
        ..Send::default()
    };
    let mut package = Vec::new();
    send::send(&admin, ROOT, &more, Some(&mut package), &mut |_| {}).unwrap();
    ask.props = props(&[("quota", "1K")]);
    ask.exclude = vec!["recordsize".into()];
    let done = receive::receive(&admin, ROOT, &ask, &package[..], &mut |_| {}).unwrap();
    assert!(
        done.warnings[0].contains("size is less"),
        "{:?}",
        done.warnings
    );
    assert_eq!(number(&admin, "p/b", "quota"), 0);
    assert_eq!(number(&admin, "p/b", "recordsize"), 128 << 10);
}

/// Less reserved first, then less allowed.
#[test]
fn limits_that_fit_together_are_stored_in_an_order_that_fits() {
    let admin = pool();
    let commands = Commands(admin.clone());
    commands.create("p/a", &[]).unwrap();
    commands.snapshot("p/a@s").unwrap();
    let first = sent(&admin, "p/a@s", None);
    let mut ask = Receive {
        target: "p/b".into(),
        ..Receive::default()
    };
    receive::receive(&admin, ROOT, &ask, &first[..], &mut |_| {}).unwrap();
    set(&admin, "p/b", "quota", "60M");
    set(&admin, "p/b", "reservation", "50M");
    commands.snapshot("p/a@t").unwrap();
    let more = sent(&admin, "p/a@t", Some("p/a@s"));
    ask.props = props(&[("quota", "40M"), ("reservation", "30M")]);
    let done = receive::receive(&admin, ROOT, &ask, &more[..], &mut |_| {}).unwrap();
    assert!(done.warnings.is_empty(), "{:?}", done.warnings);
    assert_eq!(number(&admin, "p/b", "quota"), 40 << 20);
    assert_eq!(number(&admin, "p/b", "reservation"), 30 << 20);
}

#[test]
fn options_that_a_receive_cannot_obey_are_refused_before_parents_are_made() {
    let admin = pool();
    let commands = Commands(admin.clone());
    commands.create("p/a", &[]).unwrap();
    commands.create("p/a/b", &[]).unwrap();
    commands.create("p/to", &[]).unwrap();
    commands.snapshot("p/a/b@s").unwrap();
    let stream = sent(&admin, "p/a/b@s", None);
    let heal = Receive {
        target: "p/a/b@s".into(),
        corrective: true,
        exclude: vec!["atime".into()],
        ..Receive::default()
    };
    let e = receive::receive(&admin, ROOT, &heal, &stream[..], &mut |_| {}).unwrap_err();
    assert!(e.message.contains("-o or -x"), "{e:?}");
    for (name, value) in [
        ("userquota@1000", "1M"),
        ("version", "4"),
        ("atime", "maybe"),
    ] {
        let ask = Receive {
            target: "p/to".into(),
            name_by: api::NameBy::AllButFirst,
            props: props(&[(name, value)]),
            ..Receive::default()
        };
        let e = receive::receive(&admin, ROOT, &ask, &stream[..], &mut |_| {}).unwrap_err();
        assert!(e.message.contains(name.split('@').next().unwrap()), "{e:?}");
        let dsl = admin.find("p").unwrap().pool.dsl().clone();
        assert!(dsl.dataset("p/to/a").is_err(), "{name}");
    }
}

fn package(admin: &Arc<Admin>, name: &str) -> Vec<u8> {
    let ask = Send {
        target: name.into(),
        replicate: true,
        ..Send::default()
    };
    let mut package = Vec::new();
    send::send(admin, ROOT, &ask, Some(&mut package), &mut |_| {}).unwrap();
    package
}

/// Value and source of a property.
fn shown(admin: &Arc<Admin>, name: &str, prop: &str) -> Option<(dsl::PropValue, dsl::PropSource)> {
    let ds = admin.find("p").unwrap().pool.dsl().dataset(name).unwrap();
    ds.prop(prop, true).unwrap()
}

/// A tree `p/a` with `p/a/b` of which each has values of its own, and a snapshot of both.
fn tree(admin: &Arc<Admin>) {
    let commands = Commands(admin.clone());
    commands.create("p/a", &[]).unwrap();
    commands.create("p/a/b", &[]).unwrap();
    set(admin, "p/a", "recordsize", "8K");
    set(admin, "p/a/b", "recordsize", "16K");
    set(admin, "p/a/b", "quota", "60M");
    set(admin, "p/a/b", "com.example:x", "y");
    commands.snapshot_all("p/a@s").unwrap();
}

#[test]
fn what_is_excluded_from_a_package_is_excluded_for_every_file_system() {
    let admin = pool();
    tree(&admin);
    let ask = Receive {
        target: "p/c".into(),
        exclude: ["recordsize", "quota", "com.example:x"]
            .map(Into::into)
            .to_vec(),
        ..Receive::default()
    };
    let stream = package(&admin, "p/a@s");
    receive::receive(&admin, ROOT, &ask, &stream[..], &mut |_| {}).unwrap();
    for name in ["p/c", "p/c/b"] {
        assert_eq!(number(&admin, name, "recordsize"), 128 << 10, "{name}");
        assert_eq!(number(&admin, name, "quota"), 0, "{name}");
        assert_eq!(shown(&admin, name, "com.example:x"), None, "{name}");
    }
}

#[test]
fn what_is_set_for_a_package_is_set_at_its_top_and_inherited_below() {
    let admin = pool();
    tree(&admin);
    let ask = Receive {
        target: "p/c".into(),
        props: props(&[("recordsize", "32K")]),
        ..Receive::default()
    };
    let stream = package(&admin, "p/a@s");
    receive::receive(&admin, ROOT, &ask, &stream[..], &mut |_| {}).unwrap();
    let top = shown(&admin, "p/c", "recordsize").unwrap();
    assert_eq!(
        (top.0.int(), top.1),
        (Some(32 << 10), dsl::PropSource::Local)
    );
    let below = shown(&admin, "p/c/b", "recordsize").unwrap();
    let inherited = dsl::PropSource::Inherited("p/c".into());
    assert_eq!((below.0.int(), below.1), (Some(32 << 10), inherited));
}

/// It goes before what is received anyway.
#[test]
fn excluding_a_property_leaves_what_was_set_on_the_target() {
    let admin = pool();
    tree(&admin);
    let commands = Commands(admin.clone());
    let first = sent(&admin, "p/a@s", None);
    let mut ask = Receive {
        target: "p/c".into(),
        ..Receive::default()
    };
    receive::receive(&admin, ROOT, &ask, &first[..], &mut |_| {}).unwrap();
    set(&admin, "p/c", "recordsize", "64K");
    commands.snapshot("p/a@t").unwrap();
    let more = sent(&admin, "p/a@t", Some("p/a@s"));
    ask.exclude = vec!["recordsize".into()];
    receive::receive(&admin, ROOT, &ask, &more[..], &mut |_| {}).unwrap();
    let own = shown(&admin, "p/c", "recordsize").unwrap();
    assert_eq!(
        (own.0.int(), own.1),
        (Some(64 << 10), dsl::PropSource::Local)
    );
}

/// A stream with properties is one of a file system that is not encrypted: such it stays. One without becomes what its parent is,
/// which takes the key.
#[test]
fn what_was_not_encrypted_is_received_below_an_encrypted_file_system() {
    let admin = pool();
    let commands = Commands(admin.clone());
    tree(&admin);
    let ask = api::DatasetCreate {
        name: "p/e".into(),
        props: props(&[("encryption", "on"), ("keyformat", "raw")]),
        key: Some(api::Secret::new(vec![7; 32])),
        ..api::DatasetCreate::default()
    };
    admin::datasets::create::create(&admin, ROOT, &ask).unwrap();
    let encrypted = |name: &str| {
        let dsl = admin.find("p").unwrap().pool.dsl().clone();
        dsl.dir(name).unwrap().is_encrypted().unwrap()
    };
    let (with, without) = (package(&admin, "p/a@s"), sent(&admin, "p/a@s", None));
    let receive = |to: &str, exclude: &[&str], stream: &[u8]| {
        let ask = Receive {
            target: to.into(),
            exclude: exclude.iter().map(ToString::to_string).collect(),
            ..Receive::default()
        };
        receive::receive(&admin, ROOT, &ask, stream, &mut |_| {}).map_err(|e| e.to_string())
    };
    receive("p/e/with", &[], &with).unwrap();
    assert!(!encrypted("p/e/with") && !encrypted("p/e/with/b"));
    receive("p/e/asked", &["encryption"], &with).unwrap();
    assert!(encrypted("p/e/asked") && encrypted("p/e/asked/b"));
    receive("p/e/without", &[], &without).unwrap();
    assert!(encrypted("p/e/without"));
    for name in [
        "without@s",
        "without",
        "asked/b@s",
        "asked/b",
        "asked@s",
        "asked",
    ] {
        commands.destroy(&format!("p/e/{name}")).unwrap();
    }
    admin::datasets::mount::unmount(&admin, ROOT, "p/e/with/b", false).unwrap();
    admin::datasets::mount::unmount(&admin, ROOT, "p/e/with", false).unwrap();
    admin::datasets::mount::unmount(&admin, ROOT, "p/e", false).unwrap();
    admin::datasets::keys::unload(&admin, ROOT, "p/e").unwrap();
    let refused = "cannot receive new filesystem stream: inherited key must be loaded";
    let done = receive("p/e/without", &[], &without);
    assert_eq!(done.unwrap_err(), refused);
    let done = receive("p/e/asked", &["encryption"], &with);
    assert_eq!(done.unwrap_err(), refused);
    let ask = Receive {
        target: "p/e/locked".into(),
        no_mount: true,
        ..Receive::default()
    };
    receive::receive(&admin, ROOT, &ask, &with[..], &mut |_| {}).unwrap();
    assert!(!encrypted("p/e/locked") && !encrypted("p/e/locked/b"));
}

/// It has the key of its origin, and another parent.
#[test]
fn a_clone_of_an_encrypted_file_system_is_renamed_where_it_is() {
    let admin = pool();
    let commands = Commands(admin.clone());
    let ask = api::DatasetCreate {
        name: "p/e".into(),
        props: props(&[("encryption", "on"), ("keyformat", "raw")]),
        key: Some(api::Secret::new(vec![7; 32])),
        ..api::DatasetCreate::default()
    };
    admin::datasets::create::create(&admin, ROOT, &ask).unwrap();
    commands.create("p/x", &[]).unwrap();
    commands.snapshot("p/e@s").unwrap();
    commands.clone_unmounted("p/e@s", "p/c").unwrap();
    commands.rename("p/c", "p/d").unwrap();
    let e = commands.rename("p/d", "p/x/d").unwrap_err();
    assert_eq!(e.kind, base::Kind::CrossDevice, "{e}");
    let dsl = admin.find("p").unwrap().pool.dsl().clone();
    assert_eq!(dsl.dir("p/d").unwrap().key_loaded().unwrap(), Some(true));
}

fn encrypted_ask(target: &str) -> Receive {
    Receive {
        target: target.into(),
        force: true,
        props: props(&[
            ("encryption", "on"),
            ("keyformat", "raw"),
            ("keylocation", "file:///etc/key"),
        ]),
        key: Some(api::Secret::new(vec![7; 32])),
        ..Receive::default()
    }
}

/// What the command line says of encryption is for what is new: the snapshots that follow go into what was made so.
#[test]
fn a_replication_of_several_snapshots_is_encrypted_on_arrival() {
    let admin = pool();
    let commands = Commands(admin.clone());
    tree(&admin);
    commands.snapshot_all("p/a@t").unwrap();
    let ask = encrypted_ask("p/c");
    let stream = package(&admin, "p/a@t");
    let done = receive::receive(&admin, ROOT, &ask, &stream[..], &mut |_| {}).unwrap();
    assert!(
        !done.failed && done.warnings.is_empty(),
        "{:?}",
        done.warnings
    );
    // The command is repeated with what came since.
    commands.snapshot_all("p/a@u").unwrap();
    let more = increments(&admin, "p/a@t", "p/a@u");
    let done = receive::receive(&admin, ROOT, &ask, &more[..], &mut |_| {}).unwrap();
    assert!(
        !done.failed && done.warnings.is_empty(),
        "{:?}",
        done.warnings
    );
    let dsl = admin.find("p").unwrap().pool.dsl().clone();
    for name in ["p/c", "p/c/b"] {
        let dir = dsl.dir(name).unwrap();
        assert!(dir.is_encrypted().unwrap(), "{name}");
        let root = dir.encryption_root().unwrap().unwrap();
        assert_eq!(root.full_name(), "p/c");
        for snap in ["s", "t", "u"] {
            dsl.dataset(&format!("{name}@{snap}")).unwrap();
        }
    }
    let location = shown(&admin, "p/c", "keylocation").unwrap().0;
    assert_eq!(location.text(), Some("file:///etc/key"));
}

fn increments(admin: &Arc<Admin>, from: &str, to: &str) -> Vec<u8> {
    let ask = Send {
        target: to.into(),
        from: Some(from.into()),
        intermediate: true,
        replicate: true,
        ..Send::default()
    };
    let mut package = Vec::new();
    send::send(admin, ROOT, &ask, Some(&mut package), &mut |_| {}).unwrap();
    package
}

/// Names of a tree without its top, with the guids of the newest snapshots.
fn names(admin: &Arc<Admin>, top: &str) -> Vec<(String, u64)> {
    let dsl = admin.find("p").unwrap().pool.dsl().clone();
    let all = admin::datasets::subtree(&dsl.dir(top).unwrap()).unwrap();
    let mut out: Vec<_> = all
        .iter()
        .map(|head| {
            let snap = head.prev().unwrap().unwrap();
            let name = head.full_name();
            let short = snap.snap_name().unwrap().unwrap();
            let guid = snap.phys().guid;
            (format!("{}@{short}", &name[top.len()..]), guid)
        })
        .collect();
    out.sort();
    out
}

/// Replicates `p/a` with those children, changes it by `change`, replicates the increments and compares. `before`: what
/// happens to the copy in between.
fn renamed_and_replicated(children: &[&str], before: &[(&str, &str)], change: &[(&str, &str)]) {
    let admin = pool();
    let commands = Commands(admin.clone());
    commands.create("p/a", &[]).unwrap();
    for name in children {
        commands.create(&format!("p/a/{name}"), &[]).unwrap();
    }
    commands.snapshot_all("p/a@s").unwrap();
    let ask = Receive {
        target: "p/c".into(),
        force: true,
        ..Receive::default()
    };
    let first = package(&admin, "p/a@s");
    receive::receive(&admin, ROOT, &ask, &first[..], &mut |_| {}).unwrap();
    for (top, list) in [("p/c", before), ("p/a", change)] {
        for (from, to) in list {
            match to.is_empty() {
                true => {
                    commands.destroy(&format!("{top}/{from}@s")).unwrap();
                    commands.destroy(&format!("{top}/{from}")).unwrap();
                }
                false => {
                    let (from, to) = (format!("{top}/{from}"), format!("{top}/{to}"));
                    commands.rename(&from, &to).unwrap();
                }
            }
        }
    }
    commands.snapshot_all("p/a@t").unwrap();
    let more = increments(&admin, "p/a@s", "p/a@t");
    let done = receive::receive(&admin, ROOT, &ask, &more[..], &mut |_| {}).unwrap();
    assert!(
        !done.failed && done.warnings.is_empty(),
        "{change:?}: {:?}",
        done.warnings
    );
    assert_eq!(names(&admin, "p/a"), names(&admin, "p/c"), "{change:?}");
}

#[test]
fn file_systems_that_exchanged_names_are_replicated() {
    for (a, b) in [("a", "b"), ("y", "z")] {
        let exchanged = [(a, "tmp"), (b, a), ("tmp", b)];
        renamed_and_replicated(&[a, b], &[], &exchanged);
    }
    let rotated = [("x", "tmp"), ("y", "x"), ("z", "y"), ("tmp", "z")];
    renamed_and_replicated(&["x", "y", "z"], &[], &rotated);
}

#[test]
fn a_parent_and_a_child_that_changed_places_are_replicated() {
    let apart = [("y/z", "z"), ("y", "z/y")];
    renamed_and_replicated(&["y", "y/z"], &[], &apart);
    let names_too = [("y/z", "tmp"), ("y", "tmp/z"), ("tmp", "y")];
    renamed_and_replicated(&["y", "y/z"], &[], &names_too);
}

/// The parent is gone on the sending side, and its name is that of the child.
#[test]
fn a_child_that_left_what_was_destroyed_is_replicated() {
    let change = [("y/z", "tmp"), ("y", ""), ("tmp", "y")];
    renamed_and_replicated(&["y", "y/z"], &[], &change);
}

#[test]
fn a_replication_goes_on_where_an_interrupted_one_renamed_in_part() {
    let before = [("y", "recv-1234-1")];
    let exchanged = [("y", "tmp"), ("z", "y"), ("tmp", "z")];
    renamed_and_replicated(&["y", "z"], &before, &exchanged);
}

#[test]
fn snapshots_that_exchanged_names_are_replicated() {
    let snaps = ["a", "b", "z"];
    let admin = pool();
    let commands = Commands(admin.clone());
    commands.create("p/a", &[]).unwrap();
    for s in snaps {
        commands.snapshot(&format!("p/a@{s}")).unwrap();
    }
    let ask = Receive {
        target: "p/c".into(),
        force: true,
        ..Receive::default()
    };
    let first = package(&admin, "p/a@z");
    receive::receive(&admin, ROOT, &ask, &first[..], &mut |_| {}).unwrap();
    for (from, to) in [("a", "tmp"), ("b", "a"), ("z", "b"), ("tmp", "z")] {
        commands
            .rename(&format!("p/a@{from}"), &format!("p/a@{to}"))
            .unwrap();
    }
    commands.snapshot("p/a@n").unwrap();
    let more = increments(&admin, "p/a@b", "p/a@n");
    let done = receive::receive(&admin, ROOT, &ask, &more[..], &mut |_| {}).unwrap();
    assert!(
        !done.failed && done.warnings.is_empty(),
        "{:?}",
        done.warnings
    );
    let dsl = admin.find("p").unwrap().pool.dsl().clone();
    for s in ["a", "b", "z", "n"] {
        let guid = |fs: &str| dsl.dataset(&format!("{fs}@{s}")).unwrap().phys().guid;
        assert_eq!(guid("p/a"), guid("p/c"), "{s}");
    }
}

/// Bytes that compress well.
fn runs(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 100) as u8).collect()
}

/// Makes a file in a mounted file system.
fn write(admin: &Arc<Admin>, fs: &str, name: &[u8], data: &[u8]) {
    let all = admin.find("p").unwrap().all_mounts();
    let m = all.iter().find(|m| m.path.ends_with(fs)).unwrap();
    let m: &alone::MemoryMount = m.mount.as_any().downcast_ref().unwrap();
    let inside = m.head.enter();
    let (root, cred) = (inside.zfs.root().unwrap(), zpl::Cred::root());
    let new = zpl::New::file(0o100644, 0o22);
    let file = inside.zfs.create(&root, name, &new, &cred).unwrap();
    let how = zpl::WriteOpts::default();
    inside.zfs.write(&file, 0, data, how).unwrap();
}

/// The content of a file.
fn content(admin: &Arc<Admin>, fs: &str, name: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let wanted = api::FileWanted::Content;
    files::read(admin, ROOT, fs, name.as_bytes(), wanted, &mut out).unwrap();
    out
}

/// Bytes that `zfs send -nv` tells.
fn estimated(admin: &Arc<Admin>, name: &str, from: &str) -> u64 {
    let ask = Send {
        target: name.into(),
        from: Some(from.into()),
        dry_run: true,
        sizes: true,
        ..Send::default()
    };
    let plan = send::send(admin, ROOT, &ask, None, &mut |_| {}).unwrap();
    plan.streams[0].size.unwrap()
}

/// As OpenZFS does it: by the sizes that the bookmark keeps. The bytes that are sent differ from it.
#[test]
fn a_stream_from_a_bookmark_is_estimated_like_one_from_its_snapshot() {
    let admin = pool();
    let commands = Commands(admin.clone());
    commands.create("p/a", &[]).unwrap();
    commands.snapshot("p/a@s").unwrap();
    commands.bookmark("p/a@s", "p/a#b").unwrap();
    let write = |name: &[u8], len: usize| write(&admin, "p/a", name, &runs(len));
    for n in 0..20 {
        write(format!("small{n}").as_bytes(), 3000);
    }
    write(b"large", 1 << 20);
    commands.snapshot("p/a@m").unwrap();
    write(b"more", 1 << 20);
    commands.snapshot("p/a@t").unwrap();
    let by_snapshot = estimated(&admin, "p/a@t", "p/a@s");
    assert_eq!(estimated(&admin, "p/a@t", "p/a#b"), by_snapshot);
    commands.destroy("p/a@s").unwrap();
    commands.destroy("p/a@m").unwrap();
    assert_eq!(estimated(&admin, "p/a@t", "p/a#b"), by_snapshot);
}

#[test]
fn properties_of_a_package_come_in_the_order_of_their_entries() {
    let admin = pool();
    let commands = Commands(admin.clone());
    commands.create("p/a", &[]).unwrap();
    for (prop, value) in [
        ("quota", "60M"),
        ("refreservation", "1M"),
        ("reservation", "2M"),
        ("refquota", "50M"),
        ("recordsize", "8K"),
        ("com.example:x", "y"),
    ] {
        set(&admin, "p/a", prop, value);
    }
    commands.snapshot("p/a@s").unwrap();
    let stream = package(&admin, "p/a@s");
    let begin = stream::Reader::new(&stream[..]).next().unwrap().unwrap();
    let list = disk::NvList::unpack(&begin.payload).unwrap();
    let sent = stream::Package::from_list(&list).unwrap();
    let props = sent.file_systems[0].props.clone().unwrap();
    let names: Vec<&str> = props.iter().map(|(name, _)| name).collect();
    let ds = admin.find("p").unwrap().pool.dsl().dataset("p/a").unwrap();
    let entries = ds.own_values(false).unwrap();
    let entries: Vec<&str> = entries.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, entries);
    assert_eq!(names.len(), 6);
}

#[test]
fn a_property_of_file_systems_is_not_set_for_a_volume() {
    let admin = pool();
    let ask = api::DatasetCreate {
        name: "p/v".into(),
        volume_size: Some("1M".into()),
        ..api::DatasetCreate::default()
    };
    admin::datasets::create::create(&admin, ROOT, &ask).unwrap();
    Commands(admin.clone()).snapshot("p/v@s").unwrap();
    let receive = |stream: &[u8], to: &str, prop: &str, value: &str| {
        let ask = Receive {
            target: to.into(),
            props: props(&[(prop, value)]),
            ..Receive::default()
        };
        receive::receive(&admin, ROOT, &ask, stream, &mut |_| {})
    };
    let stream = sent(&admin, "p/v@s", None);
    for (prop, value) in [("atime", "off"), ("recordsize", "8K"), ("volsize", "2M")] {
        let e = receive(&stream, "p/w", prop, value).unwrap_err();
        assert!(e.message.contains(prop), "{e:?}");
    }
    receive(&stream, "p/w", "compression", "zstd").unwrap();
}

#[test]
fn names_that_are_normalized_must_be_utf8() {
    let admin = pool();
    let create = |name: &str, list: &[(&str, &str)]| {
        let ask = api::DatasetCreate {
            name: name.into(),
            props: props(list),
            ..api::DatasetCreate::default()
        };
        admin::datasets::create::create(&admin, ROOT, &ask)
    };
    create("p/n", &[("normalization", "formC")]).unwrap();
    let e = create("p/n/a", &[("utf8only", "off")]).unwrap_err();
    assert!(e.message.contains("'utf8only' must be set 'on'"), "{e:?}");
    create("p/n/b", &[]).unwrap();
    create("p/n/c", &[("utf8only", "off"), ("normalization", "none")]).unwrap();
}

/// The WRITE records of files in a stream, with the bytes of each. Of other objects some blocks are embedded where nothing is encrypted.
fn writes(stream: &[u8]) -> Vec<(disk::stream::Write, Vec<u8>)> {
    let file = u32::from(disk::ObjType::PLAIN_FILE_CONTENTS.0);
    let mut reader = stream::Reader::new(stream);
    let mut out = Vec::new();
    while let Some(item) = reader.next().unwrap() {
        match item.record {
            disk::stream::Record::Write(w) if w.obj_type == file => {
                out.push((w, item.payload.to_vec()));
            }
            _ => {}
        }
    }
    out
}

/// The stream is that of the same data without encryption: nothing tells that the blocks were encrypted.
#[test]
fn what_is_encrypted_is_sent_compressed_without_its_keys() {
    let admin = pool();
    let commands = Commands(admin.clone());
    let ask = api::DatasetCreate {
        name: "p/e".into(),
        props: props(&[("encryption", "on"), ("keyformat", "raw")]),
        key: Some(api::Secret::new(vec![7; 32])),
        ..api::DatasetCreate::default()
    };
    admin::datasets::create::create(&admin, ROOT, &ask).unwrap();
    commands.create("p/clear", &[]).unwrap();
    let noise = |len: usize| -> Vec<u8> {
        let mut x = 9u64;
        let next = |_| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (x >> 56) as u8
        };
        (0..len).map(next).collect()
    };
    // Too much to be embedded, and with zeros behind it.
    let small = [noise(2000), vec![0; 3000]].concat();
    for fs in ["p/e", "p/clear"] {
        set(&admin, fs, "recordsize", "256K");
        for (compression, name) in [("off", b"o"), ("zstd", b"z"), ("gzip", b"g"), ("lz4", b"l")] {
            set(&admin, fs, "compression", compression);
            write(&admin, fs, name, &runs(1 << 20));
        }
        write(&admin, fs, b"noise", &noise(300_000));
        write(&admin, fs, b"small", &small);
    }
    commands.snapshot("p/e@s").unwrap();
    commands.snapshot("p/clear@s").unwrap();
    let sent = |target: &str, large_blocks: bool| {
        let ask = Send {
            target: target.into(),
            large_blocks,
            embedded: true,
            compressed: true,
            ..Send::default()
        };
        let mut stream = Vec::new();
        send::send(&admin, ROOT, &ask, Some(&mut stream), &mut |_| {}).unwrap();
        stream
    };
    for large in [false, true] {
        let (secret, clear) = (sent("p/e@s", large), sent("p/clear@s", large));
        let (a, b) = (writes(&secret), writes(&clear));
        assert_eq!(a.len(), b.len());
        let compressed = a.iter().filter(|(w, _)| w.compression != 0).count();
        // Large blocks that are sent in pieces are not.
        // 12 of the three files, the end of the noise, and the small one.
        assert_eq!(compressed, if large { 14 } else { 1 }, "{large}");
        for ((x, data), (y, other)) in a.iter().zip(&b) {
            assert_eq!((x.offset, x.logical_size), (y.offset, y.logical_size));
            assert_eq!(x.compression, y.compression);
            assert_eq!(x.compressed_size, y.compressed_size);
            assert!(data == other, "{x:?}");
            // Neither the checksum of what is encrypted nor what decrypts it.
            assert_eq!(
                (x.checksum_type, x.key),
                (disk::Checksum::OFF.number(), [0; 5])
            );
            assert_eq!((x.salt, x.iv, x.mac), ([0; 8], [0; 12], [0; 16]));
        }
        for (to, what) in [("p/copy", &secret), ("p/e/copy", &secret)] {
            let ask = Receive {
                target: to.into(),
                ..Receive::default()
            };
            receive::receive(&admin, ROOT, &ask, &what[..], &mut |_| {}).unwrap();
            for name in ["l", "z", "g", "o"] {
                assert!(content(&admin, to, name) == runs(1 << 20), "{to} {name}");
            }
            assert!(content(&admin, to, "noise") == noise(300_000));
            assert!(content(&admin, to, "small") == small);
            admin::datasets::mount::unmount(&admin, ROOT, to, false).unwrap();
            commands.destroy(&format!("{to}@s")).unwrap();
            commands.destroy(to).unwrap();
        }
    }
}

/// What a dry run lists: snapshots with what they are said to begin with, and their sizes.
fn listed(admin: &Arc<Admin>, ask: &Send) -> Vec<(String, Option<String>, u64)> {
    let ask = Send {
        dry_run: true,
        sizes: true,
        ..ask.clone()
    };
    let plan = send::send(admin, ROOT, &ask, None, &mut |_| {}).unwrap();
    let one = |s: api::SendStream| (s.snapshot, s.from, s.size.unwrap());
    plan.streams.into_iter().map(one).collect()
}

/// As OpenZFS does it: snapshots that clones in the package begin with go along. The first stream of a clone is told as a full one.
#[test]
fn an_increment_of_a_tree_brings_what_its_clones_begin_with() {
    let admin = pool();
    let commands = Commands(admin.clone());
    commands.create("p/a", &[]).unwrap();
    commands.create("p/a/k", &[]).unwrap();
    commands.snapshot_all("p/a@r1").unwrap();
    let tree = |from: &str, to: &str| Send {
        target: format!("p/a@{to}"),
        from: Some(format!("p/a@{from}")),
        replicate: true,
        ..Send::default()
    };
    let receive = |stream: &[u8]| {
        let ask = Receive {
            target: "p/z".into(),
            force: true,
            ..Receive::default()
        };
        let done = receive::receive(&admin, ROOT, &ask, stream, &mut |_| {}).unwrap();
        assert!(!done.failed, "{:?}", done.warnings);
    };
    receive(&package(&admin, "p/a@r1"));
    commands.create("p/a/y", &[]).unwrap();
    write(&admin, "p/a/y", b"young", &runs(200_000));
    commands.snapshot_all("p/a@r2").unwrap();
    commands.clone_unmounted("p/a/y@r2", "p/a/c").unwrap();
    commands.snapshot_all("p/a@r3").unwrap();
    commands.snapshot_all("p/a@r4").unwrap();
    let all = listed(&admin, &tree("r1", "r4"));
    let told = |all: &[(String, Option<String>, u64)]| -> Vec<(String, String)> {
        let one = |(name, from, _): &(String, Option<String>, u64)| {
            (name.clone(), from.clone().unwrap_or_default())
        };
        let mut all: Vec<_> = all.iter().map(one).collect();
        all.sort();
        all
    };
    let want = [
        ("p/a/c@r4", ""),
        ("p/a/k@r4", "r1"),
        ("p/a/y@r2", ""),
        ("p/a/y@r4", "r2"),
        ("p/a@r4", "r1"),
    ];
    assert_eq!(
        told(&all),
        want.map(|(a, b)| (a.to_string(), b.to_string()))
    );
    let size = |name: &str| all.iter().find(|s| s.0 == name).unwrap().2;
    let full = Send {
        target: "p/a/c@r4".into(),
        ..Send::default()
    };
    assert_eq!(size("p/a/c@r4"), listed(&admin, &full)[0].2);
    assert!(size("p/a/c@r4") > 200_000);
    // Of a clone by itself everything since its origin, each snapshot.
    let clone = Send {
        target: "p/a/c@r4".into(),
        from: Some("p/a/y@r2".into()),
        replicate: true,
        ..Send::default()
    };
    let want = [("p/a/c@r3", ""), ("p/a/c@r4", "r3")];
    let clone = told(&listed(&admin, &clone));
    assert_eq!(clone, want.map(|(a, b)| (a.to_string(), b.to_string())));

    let mut stream = Vec::new();
    let ask = tree("r1", "r4");
    send::send(&admin, ROOT, &ask, Some(&mut stream), &mut |_| {}).unwrap();
    receive(&stream);
    let dsl = admin.find("p").unwrap().pool.dsl().clone();
    let origin = dsl.dir("p/z/c").unwrap().origin().unwrap().unwrap();
    assert_eq!(origin.full_name(), "p/z/y@r2");
    assert!(content(&admin, "p/z/c", "young") == runs(200_000));
}
