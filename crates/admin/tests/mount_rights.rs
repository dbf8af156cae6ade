//! How file systems are mounted of which others than the owner have something to say.

use admin::alone::{self, Alone, MemoryDoor, MemoryMount};
use admin::commands::{Commands, ROOT};
use admin::datasets::{create, get, mount, permissions, receive, rename, send, set};
use admin::{pools, Admin, Answer};
use api::{
    DatasetCreate, DatasetGet, DatasetKind, Delegate, Delegation, Peer, Receive, Select, Send,
};
use base::Kind;
use std::path::PathBuf;
use std::sync::Arc;

const JOE: Peer = Peer {
    uid: 1000,
    gid: 1000,
    pid: 1,
};

fn world() -> (Arc<Admin>, Arc<MemoryDoor>, Commands) {
    world_with(&[])
}

/// The same, with these properties of the pool.
fn world_with(props: &[(&str, &str)]) -> (Arc<Admin>, Arc<MemoryDoor>, Commands) {
    let (env, disks) = env_sim::mem_env(7);
    disks.add("/dev/a", 128 << 20);
    let settings = alone::settings();
    let process = Arc::new(Alone::new(env.clone(), pool::Tunables::default()));
    let door = Arc::new(MemoryDoor::default());
    let admin = Admin::new(env, settings, door.clone(), process);
    let mut ask = alone::pool_on("p", "/dev/a");
    let own = |(n, v): &(&str, &str)| (n.to_string(), v.to_string());
    ask.props.extend(props.iter().map(own));
    pools::create::create(&admin, ROOT, ask).unwrap();
    let commands = Commands(admin.clone());
    commands.create("p/a", &[]).unwrap();
    (admin, door, commands)
}

fn delegate(admin: &Arc<Admin>, name: &str, to: Delegate, what: &str, on: bool) {
    let list = [Delegation {
        to,
        local: false,
        descendent: false,
        permissions: what.split(',').map(str::to_string).collect(),
    }];
    let command = String::new();
    let done = match on {
        true => permissions::allow(admin, ROOT, name, &list, command),
        false => permissions::unallow(admin, ROOT, name, &list, false, command),
    };
    done.unwrap();
}

fn set(
    admin: &Arc<Admin>,
    peer: Peer,
    name: &str,
    prop: &str,
    value: &str,
) -> Answer<Option<String>> {
    let list = vec![(prop.to_string(), value.to_string())];
    set::set(admin, peer, name, &list, false, String::new())
}

/// Whether set-user-id programs and devices work in what is mounted.
fn power(admin: &Arc<Admin>, name: &str) -> (bool, bool) {
    let entry = admin.find("p").unwrap();
    let ds = entry.pool.dsl().dataset(name).unwrap();
    let mounted = entry.mounted(ds.object()).expect(name);
    let mount: &MemoryMount = mounted.mount.as_any().downcast_ref().unwrap();
    let (options, withheld) = (mount.options(), mount.withheld());
    (
        !options.nosuid && !withheld.0,
        !options.nodev && !withheld.1,
    )
}

/// From now on something lies over the mount of a file system.
fn cover(admin: &Arc<Admin>, name: &str) {
    let entry = admin.find("p").unwrap();
    let ds = entry.pool.dsl().dataset(name).unwrap();
    let mounted = entry.mounted(ds.object()).expect(name);
    let mount: &MemoryMount = mounted.mount.as_any().downcast_ref().unwrap();
    mount.cover();
}

const ALL: (bool, bool) = (true, true);
const NONE: (bool, bool) = (false, false);

#[test]
fn what_others_may_fill_is_mounted_without_power() {
    let (a, _, commands) = world();
    commands.create("p/a/b", &[]).unwrap();
    assert_eq!(power(&a, "p/a/b"), ALL);
    for what in ["receive", "mount", "create", "clone", "mountpoint"] {
        for to in [Delegate::User(1000), Delegate::Group(5), Delegate::Everyone] {
            delegate(&a, "p/a", to.clone(), what, true);
            assert_eq!(power(&a, "p/a"), NONE, "{what}");
            assert_eq!(power(&a, "p/a/b"), NONE, "{what}");
            assert_eq!(power(&a, "p"), ALL);
            delegate(&a, "p/a", to, what, false);
            assert_eq!(power(&a, "p/a/b"), ALL, "{what}");
        }
    }
    // Other permissions bring no files, and root's are no others'.
    delegate(
        &a,
        "p/a",
        Delegate::User(1000),
        "snapshot,compression",
        true,
    );
    delegate(&a, "p/a", Delegate::User(0), "receive", true);
    assert_eq!(power(&a, "p/a/b"), ALL);
    // Sets count, also one in another, and defined after it was given.
    delegate(&a, "p/a", Delegate::User(1000), "@outer", true);
    assert_eq!(power(&a, "p/a/b"), ALL);
    delegate(&a, "p", Delegate::Set("@outer".into()), "@inner", true);
    delegate(&a, "p", Delegate::Set("@inner".into()), "clone", true);
    assert_eq!(power(&a, "p/a/b"), NONE);
    // Mounted anew by the owner it is the same; while nothing counts, all is as the properties say.
    mount::unmount(&a, ROOT, "p/a/b", false).unwrap();
    mount::mount(&a, ROOT, "p/a/b", &[], false, false, None).unwrap();
    assert_eq!(power(&a, "p/a/b"), NONE);
    let switch = |v: &str| {
        let list = vec![("delegation".to_string(), v.to_string())];
        pools::set::set(&a, ROOT, "p", &list, "").unwrap();
    };
    switch("off");
    assert_eq!(power(&a, "p/a/b"), ALL);
    switch("on");
    assert_eq!(power(&a, "p/a/b"), NONE);
    // The administrator's own word counts, at this very file system; nobody else's does.
    set(&a, ROOT, "p/a", "setuid", "on").unwrap();
    assert_eq!(power(&a, "p/a"), (true, false));
    assert_eq!(power(&a, "p/a/b"), NONE);
    delegate(&a, "p/a", Delegate::User(1000), "setuid,devices", true);
    set(&a, JOE, "p/a/b", "setuid", "on").unwrap();
    set(&a, JOE, "p/a/b", "devices", "on").unwrap();
    assert_eq!(power(&a, "p/a/b"), NONE);
    set(&a, ROOT, "p/a/b", "devices", "on").unwrap();
    assert_eq!(power(&a, "p/a/b"), (false, true));
}

#[test]
fn power_ends_where_mounts_cannot_be_changed() {
    let (a, _, commands) = world();
    commands.create("p/a/b", &[]).unwrap();
    commands.create("p/own", &[]).unwrap();
    for name in ["p/a", "p/a/b", "p/own"] {
        cover(&a, name);
        assert_eq!(power(&a, name), ALL);
    }
    delegate(&a, "p/a", Delegate::User(1000), "receive", true);
    assert_eq!((power(&a, "p/a"), power(&a, "p/a/b")), (NONE, NONE));
    // It comes back as it went.
    delegate(&a, "p/a", Delegate::User(1000), "receive", false);
    assert_eq!((power(&a, "p/a"), power(&a, "p/a/b")), (ALL, ALL));
    delegate(&a, "p/a", Delegate::User(1000), "receive", true);
    // A file system that comes to where others have permissions, and stays mounted as it was.
    let how = rename::How {
        no_remount: true,
        ..rename::How::default()
    };
    rename::rename(&a, ROOT, "p/own", "p/a/own", how, String::new()).unwrap();
    assert_eq!(power(&a, "p/a/own"), NONE);
    // What the owner turns off is the owner's business: it is shown.
    commands.create("p/off", &[]).unwrap();
    cover(&a, "p/off");
    set(&a, ROOT, "p/off", "setuid", "off").unwrap();
    assert_eq!(power(&a, "p/off"), ALL);
}

#[test]
fn what_another_user_has_made_never_gets_power_by_itself() {
    let (a, _, commands) = world();
    delegate(
        &a,
        "p/a",
        Delegate::User(1000),
        "create,mount,receive",
        true,
    );
    let ask = DatasetCreate {
        name: "p/a/b".into(),
        ..DatasetCreate::default()
    };
    create::create(&a, JOE, &ask).unwrap();
    commands.snapshot("p@s").unwrap();
    let stream = |name: &str, from: Option<&str>| {
        let ask = Send {
            target: name.into(),
            from: from.map(Into::into),
            ..Send::default()
        };
        let mut stream = Vec::new();
        send::send(&a, ROOT, &ask, Some(&mut stream), &mut |_| {}).unwrap();
        stream
    };
    let to = |name: &str| Receive {
        target: name.into(),
        ..Receive::default()
    };
    let receive = |peer, name: &str, stream: &[u8]| {
        receive::receive(&a, peer, &to(name), stream, &mut |_| {}).unwrap();
    };
    receive(JOE, "p/a/new", &stream("p@s", None));
    receive(ROOT, "p/a/roots", &stream("p@s", None));
    commands.snapshot("p@t").unwrap();
    receive(JOE, "p/a/roots", &stream("p@t", Some("p@s")));
    receive(ROOT, "p/a/own", &stream("p@s", None));
    delegate(
        &a,
        "p/a",
        Delegate::User(1000),
        "create,mount,receive",
        false,
    );
    for name in ["p/a/b", "p/a/new", "p/a/roots"] {
        assert_eq!(power(&a, name), NONE, "{name}");
    }
    assert_eq!(power(&a, "p/a/own"), ALL);
    // Nor does what the owner makes of it, elsewhere.
    commands.clone_unmounted("p/a/new@s", "p/clone").unwrap();
    mount::mount(&a, ROOT, "p/clone", &[], false, false, None).unwrap();
    assert_eq!(power(&a, "p/clone"), NONE);
    set(&a, ROOT, "p/clone", "setuid", "on").unwrap();
    assert_eq!(power(&a, "p/clone"), (true, false));
}

/// Pools without received values store what a stream brings as a local one.
#[test]
fn what_a_users_stream_says_is_not_the_administrators_word() {
    for props in [&[][..], &[("version", "21")][..]] {
        let (a, _, commands) = world_with(props);
        commands.create("p/src", &[]).unwrap();
        for (prop, value) in [
            ("setuid", "on"),
            ("devices", "on"),
            ("mountpoint", "/etc/x"),
        ] {
            commands.set("p/src", prop, value).unwrap();
        }
        commands.snapshot("p/src@s").unwrap();
        let ask = Send {
            target: "p/src@s".into(),
            props: true,
            ..Send::default()
        };
        let mut stream = Vec::new();
        send::send(&a, ROOT, &ask, Some(&mut stream), &mut |_| {}).unwrap();
        let given = "receive,create,mount,setuid,devices,mountpoint";
        delegate(&a, "p/a", Delegate::User(1000), given, true);
        let to = Receive {
            target: "p/a/new".into(),
            no_mount: true,
            ..Receive::default()
        };
        receive::receive(&a, JOE, &to, &stream[..], &mut |_| {}).unwrap();
        let ds = a.find("p").unwrap().pool.dsl().dataset("p/a/new").unwrap();
        let place = ds.prop("mountpoint", false).unwrap().unwrap().0;
        assert_eq!(place.text(), Some("/etc/x"));
        assert_eq!(admin::setters::of_mountpoint(&ds).unwrap(), Some(1000));
        set(&a, ROOT, "p/a/new", "mountpoint", "/srv").unwrap();
        let _ = mount::mount(&a, ROOT, "p/a/new", &[], false, false, None);
        assert_eq!(power(&a, "p/a/new"), NONE);
        assert_eq!(admin::setters::of_mountpoint(&ds).unwrap(), None);
        // Who goes back to a received value does not make it the own word.
        if props.is_empty() {
            for prop in ["mountpoint", "setuid"] {
                let command = String::new();
                set::inherit(&a, ROOT, "p/a/new", prop, false, true, command).unwrap();
            }
            assert_eq!(admin::setters::of_mountpoint(&ds).unwrap(), Some(1000));
            assert!(!admin::setters::is_allowed(&ds, "setuid").unwrap());
        }
    }
}

/// In a view less is forbidden than in mounts of their own.
#[test]
fn a_view_is_what_the_owner_asks_for() {
    let (a, _, commands) = world();
    delegate(
        &a,
        "p/a",
        Delegate::User(1000),
        "userprop,create,mount",
        true,
    );
    let view = |name: &str| {
        let ds = a.find("p").unwrap().pool.dsl().dataset(name).unwrap();
        admin::setters::view(&ds).unwrap()
    };
    commands.create("p/a/in", &[]).unwrap();
    set(&a, JOE, "p/a", "zfs-fuse:view", "on").unwrap();
    assert_eq!((view("p/a"), view("p/a/in")), (None, None));
    set(&a, ROOT, "p/a", "zfs-fuse:view", "on").unwrap();
    assert_eq!((view("p/a"), view("p/a/in")), (Some(true), Some(true)));
    set(&a, JOE, "p/a/in", "zfs-fuse:view", "off").unwrap();
    assert_eq!((view("p/a"), view("p/a/in")), (Some(true), None));
    set(&a, ROOT, "p", "zfs-fuse:view", "off").unwrap();
    assert_eq!(view("p"), Some(false));
}

/// Servers of root's are given neither the places that users chose, nor root's rights on their word.
#[test]
fn what_a_user_has_chosen_of_a_share_is_known() {
    let (a, _, commands) = world();
    let given = "sharenfs,create,mount,mountpoint";
    delegate(&a, "p/a", Delegate::User(1000), given, true);
    let mounted = |name: &str| {
        let entry = a.find("p").unwrap();
        let ds = entry.pool.dsl().dataset(name).unwrap();
        entry.mounted(ds.object()).unwrap()
    };
    let shared = |name: &str| mounted(name).share().map(|s| (s.text.clone(), s.by_others));
    for root in [
        "no_root_squash",
        "rw,all_squash,anonuid=0",
        "anongid=0",
        "root_mapping=0",
    ] {
        set(&a, JOE, "p/a", "sharenfs", root).unwrap_err();
        assert_eq!(shared("p/a"), None, "{root}");
        set(&a, ROOT, "p/a", "sharenfs", root).unwrap();
        assert_eq!(shared("p/a"), Some((root.into(), false)));
    }
    set(&a, JOE, "p/a", "sharenfs", "rw=10.0.0.1").unwrap();
    assert_eq!(shared("p/a"), Some(("rw=10.0.0.1".into(), true)));
    commands.create("p/a/in", &[]).unwrap();
    assert_eq!(shared("p/a/in"), Some(("rw=10.0.0.1".into(), true)));
    // What the owner says is not the user's, wherever a user is.
    set(&a, ROOT, "p", "sharenfs", "no_root_squash").unwrap();
    set::inherit(&a, JOE, "p/a", "sharenfs", false, false, String::new()).unwrap();
    assert_eq!(shared("p/a/in"), Some(("no_root_squash".into(), false)));
    let ask = DatasetCreate {
        name: "p/a/joes".into(),
        ..DatasetCreate::default()
    };
    create::create(&a, JOE, &ask).unwrap();
    assert_eq!(mounted("p/a/joes").chosen_by(), None);
    assert_eq!(shared("p/a/joes"), Some(("no_root_squash".into(), false)));
    assert!(admin::setters::is_made_by_others(&mounted("p/a/joes").ds).unwrap());
    assert!(!admin::setters::is_made_by_others(&mounted("p/a/in").ds).unwrap());
    // The place is the user's: by the property, or with the command.
    set(&a, JOE, "p/a/joes", "mountpoint", "/users/joe").unwrap();
    assert_eq!(mounted("p/a/joes").chosen_by(), Some(1000));
    mount::unmount(&a, ROOT, "p/a/in", false).unwrap();
    mount::mount(&a, JOE, "p/a/in", &[], false, false, Some("/users/in")).unwrap();
    assert_eq!(mounted("p/a/in").chosen_by(), Some(1000));
    mount::unmount(&a, ROOT, "p/a/in", false).unwrap();
    mount::mount(&a, ROOT, "p/a/in", &[], false, false, Some("/srv/in")).unwrap();
    assert_eq!(mounted("p/a/in").chosen_by(), None);
}

#[test]
fn who_said_what_is_kept_where_nobody_reaches_it() {
    let (a, _, _) = world();
    delegate(
        &a,
        "p/a",
        Delegate::User(1000),
        "userprop,setuid,mountpoint,receive,create,mount",
        true,
    );
    set(&a, JOE, "p/a", "setuid", "on").unwrap();
    let name = "zfs-fuse:setuid-setter";
    for peer in [JOE, ROOT] {
        let e = set(&a, peer, "p/a", name, "0").unwrap_err();
        assert_eq!(e.code, Kind::Invalid.errno(), "{e:?}");
        let done = set::inherit(&a, peer, "p/a", name, false, false, String::new());
        assert_eq!(done.unwrap_err().code, Kind::Invalid.errno());
    }
    let ask = DatasetGet {
        roots: vec!["p/a".into()],
        kinds: vec![DatasetKind::Filesystem],
        props: Select::All,
        ..DatasetGet::default()
    };
    let found = get::get(&a, JOE, &ask, &mut |_| Ok(())).unwrap();
    let shown = found.found[0].props.iter();
    assert!(!shown.clone().any(|p| p.name.starts_with("zfs-fuse:")));
    // It does not go along, and neither comes nor goes with a stream.
    Commands(a.clone()).snapshot("p/a@s").unwrap();
    let ask = Send {
        target: "p/a@s".into(),
        props: true,
        ..Send::default()
    };
    let mut stream = Vec::new();
    send::send(&a, ROOT, &ask, Some(&mut stream), &mut |_| {}).unwrap();
    let text = String::from_utf8_lossy(&stream);
    assert!(!text.contains("-setter"), "it was sent");
    let to = Receive {
        target: "p/new".into(),
        exclude: vec![name.into()],
        ..Receive::default()
    };
    let done = receive::receive(&a, ROOT, &to, &stream[..], &mut |_| {});
    assert_eq!(done.unwrap_err().code, Kind::Invalid.errno());
    // The owner's word takes its place.
    assert_eq!(power(&a, "p/a"), NONE);
    set(&a, ROOT, "p/a", "setuid", "on").unwrap();
    assert_eq!(power(&a, "p/a"), (true, false));
}

#[test]
fn a_user_mounts_nothing_with_more_than_the_administrator_gives() {
    let (a, _, _) = world();
    delegate(&a, "p/a", Delegate::User(1000), "mount", true);
    set(&a, ROOT, "p/a", "readonly", "on").unwrap();
    set(&a, ROOT, "p/a", "exec", "off").unwrap();
    mount::unmount(&a, ROOT, "p/a", false).unwrap();
    let with =
        |options: &str| mount::mount(&a, JOE, "p/a", &[options.to_string()], false, false, None);
    for options in ["rw", "exec", "suid", "dev", "noatime,rw"] {
        let e = with(options).unwrap_err();
        assert_eq!(e.code, Kind::NotPermitted.errno(), "{options}: {e:?}");
    }
    with("noatime").unwrap();
    for options in ["remount,rw", "remount,exec", "remount,suid", "remount,dev"] {
        let e = with(options).unwrap_err();
        assert_eq!(e.code, Kind::NotPermitted.errno(), "{options}: {e:?}");
        let all = mount::mount_all(&a, JOE, None, &[options.into()], false, false, &mut |_| {});
        assert!(all.unwrap().done.is_empty(), "{options}");
    }
    with("remount,ro,noexec").unwrap();
    // Where nothing is forbidden it may be said.
    set(&a, ROOT, "p/a", "readonly", "off").unwrap();
    with("remount,rw").unwrap();
}

#[test]
fn a_property_unmounts_nothing_that_its_setter_may_not_unmount() {
    let (a, door, commands) = world();
    commands.create("p/a/b", &[]).unwrap();
    let what = "canmount,mountpoint,acltype,mount,rename,create";
    delegate(&a, "p/a", Delegate::User(1000), what, true);
    let before = door.places();
    for (prop, value, moves) in [
        ("canmount", "off", true),
        ("canmount", "on", false),
        ("acltype", "posix", true),
        ("mountpoint", "/etc/cron.d", true),
    ] {
        let told = set(&a, JOE, "p/a/b", prop, value).unwrap();
        assert_eq!(door.places(), before, "{prop}={value}");
        // Whose change moved nothing is told.
        let stays = told.is_some_and(|t| t.contains("stays where"));
        assert_eq!(stays, moves, "{prop}={value}");
    }
    let how = rename::How {
        force: true,
        ..rename::How::default()
    };
    let told = rename::rename(&a, JOE, "p/a/b", "p/a/c", how, String::new()).unwrap();
    assert!(told.unwrap().contains("stays where it is"));
    assert_eq!(door.places(), before);
    // The owner may; and then the place is the user's to give, so it is looked at.
    let ds = a.find("p").unwrap().pool.dsl().dataset("p/a/c").unwrap();
    let setter = admin::setters::of_mountpoint(&ds).unwrap();
    assert_eq!(setter, Some(1000));
    set(&a, ROOT, "p/a/c", "mountpoint", "/srv").unwrap();
    assert!(door.places().contains_key(&PathBuf::from("/srv")));
    assert_eq!(admin::setters::of_mountpoint(&ds).unwrap(), None);
    set(&a, ROOT, "p/a/c", "canmount", "off").unwrap();
    assert!(!door.places().contains_key(&PathBuf::from("/srv")));
}

#[test]
fn a_place_that_is_not_the_users_is_refused_when_it_is_set() {
    let (a, door, commands) = world();
    commands.create("p/a/b", &[]).unwrap();
    delegate(&a, "p/a", Delegate::User(1000), "mountpoint,mount", true);
    door.reserve("/etc/cron.d");
    let before = door.places();
    let list = vec![("mountpoint".to_string(), "/etc/cron.d".to_string())];
    for no_remount in [false, true] {
        let e = set::set(&a, JOE, "p/a/b", &list, no_remount, String::new()).unwrap_err();
        assert_eq!(e.code, Kind::NotPermitted.errno());
        assert!(e.message.contains("/etc/cron.d"), "{e:?}");
    }
    let ds = a.find("p").unwrap().pool.dsl().dataset("p/a/b").unwrap();
    assert!(ds.prop("mountpoint", false).unwrap().is_none());
    assert_eq!(admin::setters::of_mountpoint(&ds).unwrap(), None);
    assert_eq!(door.places(), before);
    // Without the permission nothing is told of the place.
    let e = set::set(&a, JOE, "p", &list, false, String::new()).unwrap_err();
    assert!(!e.message.contains("/etc/cron.d"), "{e:?}");
    set(&a, JOE, "p/a/b", "mountpoint", "/homes/joe").unwrap();
    set(&a, ROOT, "p/a/b", "mountpoint", "/etc/cron.d").unwrap();
}
