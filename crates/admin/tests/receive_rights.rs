//! What callers who are not the owner may receive: where the data goes, what it begins with, and for how long.

use admin::alone::{self, Alone, MemoryDoor};
use admin::commands::{Commands, ROOT};
use admin::datasets::{permissions, receive, rename, send, set};
use admin::{pools, Admin, Answer};
use api::{Delegate, Delegation, NameBy, Peer, Receive, Received, Send};
use base::Kind;
use env_sim::ManualClock;
use std::cell::Cell;
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

const JOE: Peer = Peer {
    uid: 1000,
    gid: 1000,
    pid: 1,
};

/// A pool `p` with the file system `p/u`, in which Joe may receive, and `p/secret`, of which `p/secret/c` is a clone.
fn world() -> (Arc<Admin>, Commands) {
    world_by(None)
}

fn world_by(clock: Option<Arc<ManualClock>>) -> (Arc<Admin>, Commands) {
    let (mut env, disks) = env_sim::mem_env(7);
    if let Some(clock) = clock {
        env.clock = clock;
    }
    disks.add("/dev/a", 128 << 20);
    let settings = alone::settings();
    let process = Arc::new(Alone::new(env.clone(), pool::Tunables::default()));
    let admin = Admin::new(env, settings, Arc::new(MemoryDoor::default()), process);
    let ask = alone::pool_on("p", "/dev/a");
    pools::create::create(&admin, ROOT, ask).unwrap();
    let commands = Commands(admin.clone());
    for name in ["p/u", "p/secret"] {
        commands.create(name, &[]).unwrap();
    }
    commands.snapshot("p/secret@s").unwrap();
    commands
        .clone_unmounted("p/secret@s", "p/secret/c")
        .unwrap();
    fill(&admin, "p/secret/c");
    commands.snapshot("p/secret/c@t").unwrap();
    give(&admin, "p/u", "receive,create,mount", true);
    (admin, commands)
}

/// Changes objects of a file system, so that there is something to be sent.
fn fill(admin: &Arc<Admin>, name: &str) {
    let list = vec![("userquota@0".to_string(), "1M".to_string())];
    set::set(admin, ROOT, name, &list, false, String::new()).unwrap();
}

/// Gives Joe permissions, or takes them back.
fn give(admin: &Arc<Admin>, name: &str, what: &str, on: bool) {
    let list = [Delegation {
        to: Delegate::User(1000),
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

fn sent(admin: &Arc<Admin>, ask: &Send) -> Vec<u8> {
    let mut stream = Vec::new();
    send::send(admin, ROOT, ask, Some(&mut stream), &mut |_| {}).unwrap();
    stream
}

fn full(admin: &Arc<Admin>, name: &str) -> Vec<u8> {
    let ask = Send {
        target: name.into(),
        ..Send::default()
    };
    sent(admin, &ask)
}

/// The stream of `p/secret/c@t` as that of a clone of `p/secret@s`.
fn of_clone(admin: &Arc<Admin>) -> Vec<u8> {
    let ask = Send {
        target: "p/secret/c@t".into(),
        from: Some("p/secret@s".into()),
        ..Send::default()
    };
    sent(admin, &ask)
}

fn to(name: &str) -> Receive {
    Receive {
        target: name.into(),
        ..Receive::default()
    }
}

fn joe(admin: &Arc<Admin>, ask: &Receive, from: impl Read) -> Answer<Received> {
    receive::receive(admin, JOE, ask, from, &mut |_| {})
}

/// A stream that ends in the middle, and does not say so.
struct Unended<'a>(&'a [u8]);

impl Read for Unended<'_> {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        for _ in 0..2000 {
            if !self.0.is_empty() {
                return self.0.read(to);
            }
            if admin::cancel::is_cancelled() {
                return Err(std::io::ErrorKind::ConnectionAborted.into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("nobody has ended it");
    }
}

/// A user sends a byte now and then.
#[test]
fn a_silent_stream_of_a_user_stands_in_the_owners_way_only_without_force() {
    let (admin, commands) = world();
    commands.create("p/u/v", &[]).unwrap();
    let stream = full(&admin, "p/secret@s");
    let destroy = |name: &str, force: bool| {
        let ask = api::DatasetDestroy {
            name: name.into(),
            recursive: true,
            force,
            ..api::DatasetDestroy::default()
        };
        admin::datasets::destroy::destroy(&admin, ROOT, &ask)
    };
    let how = rename::How {
        force: true,
        ..rename::How::default()
    };
    let rename = |from: &str, to: &str| rename::rename(&admin, ROOT, from, to, how, String::new());
    let entry = admin.find("p").unwrap();
    let during = |work: &dyn Fn()| {
        std::thread::scope(|s| {
            let half = Unended(&stream[..stream.len() - 400]);
            let sent = s.spawn(|| joe(&admin, &to("p/u/x"), half));
            for _ in 0..1000 {
                if entry.streams.any() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            work();
            assert!(sent.join().unwrap().is_err());
        });
    };
    during(&|| {
        let e = destroy("p/u", false).unwrap_err();
        assert_eq!(e.code, Kind::Busy.errno(), "{e:?}");
        // Elsewhere it goes on.
        destroy("p/u/v", true).unwrap();
        assert!(entry.streams.any());
        rename("p/u", "p/w").unwrap();
        rename("p/w", "p/u").unwrap();
    });
    during(&|| drop(destroy("p/u", true).unwrap()));
    assert!(!exists(&admin, "p/u"));
}

/// A raw stream brings the number of iterations that its key takes.
#[test]
fn keys_of_users_streams_are_made_in_bounded_time() {
    let (admin, commands) = world();
    let own = |(n, v): (&str, &str)| (n.to_string(), v.to_string());
    let key = || api::Secret::new(b"correct horse".to_vec());
    let props = [
        ("encryption", "on"),
        ("keyformat", "passphrase"),
        ("pbkdf2iters", "3500001"),
    ];
    let ask = api::DatasetCreate {
        name: "p/long".into(),
        props: props.map(own).to_vec(),
        key: Some(key()),
        no_mount: true,
        ..api::DatasetCreate::default()
    };
    admin::datasets::create::create(&admin, ROOT, &ask).unwrap();
    commands.snapshot("p/long@s").unwrap();
    let raw = Send {
        target: "p/long@s".into(),
        raw: true,
        ..Send::default()
    };
    let stream = sent(&admin, &raw);
    give(&admin, "p/u", "load-key", true);
    let e = joe(&admin, &to("p/u/new"), &stream[..]).err().unwrap();
    assert!(e.message.contains("3500000"), "{e:?}");
    assert!(!exists(&admin, "p/u/new"));
    let unmounted = Receive {
        no_mount: true,
        ..to("p/u/roots")
    };
    receive::receive(&admin, ROOT, &unmounted, &stream[..], &mut |_| {}).unwrap();
    let e = admin::datasets::keys::load(&admin, JOE, "p/u/roots", &key(), true).unwrap_err();
    assert!(e.message.contains("3500000"), "{e:?}");
}

#[track_caller]
fn refused(done: Answer<Received>, kind: Kind) {
    let Err(e) = done else {
        panic!("it was not refused");
    };
    assert_eq!(e.code, kind.errno(), "{e:?}");
}

fn exists(admin: &Arc<Admin>, name: &str) -> bool {
    admin.find("p").unwrap().pool.dsl().dataset(name).is_ok()
}

/// A stream in the middle of which something happens.
struct Midway<'a> {
    rest: &'a [u8],
    left: usize,
    then: Option<Box<dyn FnOnce() + 'a>>,
}

fn midway<'a>(stream: &'a [u8], then: impl FnOnce() + 'a) -> Midway<'a> {
    Midway {
        rest: stream,
        // All but the end of the last record.
        left: stream.len() - 100,
        then: Some(Box::new(then)),
    }
}

impl Read for Midway<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        if self.left == 0 {
            if let Some(then) = self.then.take() {
                then();
            }
        }
        let most = match self.left {
            0 => buf.len(),
            left => buf.len().min(left),
        };
        let n = self.rest.read(&mut buf[..most])?;
        self.left = self.left.saturating_sub(n);
        Ok(n)
    }
}

#[test]
fn what_begins_with_a_foreign_snapshot_takes_the_right_to_clone_it() {
    let (a, commands) = world();
    let stream = of_clone(&a);
    let denied = |ask: &Receive, stream: &[u8]| {
        // It is refused before the data is asked for.
        let asked = Cell::new(false);
        let from = midway(stream, || asked.set(true));
        refused(joe(&a, ask, from), Kind::NotPermitted);
        assert!(!asked.get(), "{ask:?}: the data was read first");
        assert!(!exists(&a, "p/u/n"));
    };
    denied(&to("p/u/n"), &stream);
    let origin = Receive {
        origin: Some("p/secret@s".into()),
        ..to("p/u/n")
    };
    denied(&origin, &stream);
    // Nobody receives a clone onto what is there.
    commands.create("p/u/h", &[]).unwrap();
    let over = Receive {
        force: true,
        ..to("p/u/h")
    };
    refused(joe(&a, &over, &stream[..]), Kind::Exists);
    let roots = receive::receive(&a, ROOT, &over, &stream[..], &mut |_| {});
    refused(roots, Kind::Exists);
    // As a part of a package.
    let ask = Send {
        target: "p/secret/c@t".into(),
        from: Some("p/secret@s".into()),
        props: true,
        ..Send::default()
    };
    let package = sent(&a, &ask);
    refused(joe(&a, &to("p/u/n"), &package[..]), Kind::NotPermitted);
    // Who may clone it may have it so.
    give(&a, "p/secret", "clone", true);
    joe(&a, &to("p/u/n"), &stream[..]).unwrap();
    assert!(exists(&a, "p/u/n@t"));
    // The right is asked again at the end, and when a broken stream goes on.
    let take = || give(&a, "p/secret", "clone", false);
    refused(
        joe(&a, &to("p/u/m"), midway(&stream, take)),
        Kind::NotPermitted,
    );
    assert!(!exists(&a, "p/u/m"));
    give(&a, "p/secret", "clone", true);
    let ask = Receive {
        resumable: true,
        ..to("p/u/k")
    };
    joe(&a, &ask, &stream[..stream.len() - 400]).unwrap_err();
    give(&a, "p/secret", "clone", false);
    let kept = a.find("p").unwrap().pool.dsl().dataset("p/u/k").unwrap();
    let token = admin::datasets::props::resume_token(&kept)
        .unwrap()
        .unwrap();
    drop(kept);
    let rest = Send {
        token: Some(token),
        ..Send::default()
    };
    let rest = sent(&a, &rest);
    refused(joe(&a, &ask, &rest[..]), Kind::NotPermitted);
    give(&a, "p/secret", "clone", true);
    joe(&a, &ask, &rest[..]).unwrap();
}

#[test]
fn a_stream_does_not_outlast_what_permitted_it() {
    let (a, commands) = world();
    let stream = full(&a, "p/secret@s");
    // A permission.
    let take = || give(&a, "p/u", "receive", false);
    refused(
        joe(&a, &to("p/u/n"), midway(&stream, take)),
        Kind::NotPermitted,
    );
    assert!(!exists(&a, "p/u/n"));
    give(&a, "p/u", "receive", true);
    // A limit.
    let set = |name: &str, prop: &str, value: &str| {
        let list = vec![(prop.to_string(), value.to_string())];
        set::set(&a, ROOT, name, &list, false, String::new()).unwrap();
    };
    let limit = || set("p/u", "snapshot_limit", "0");
    refused(joe(&a, &to("p/u/n"), midway(&stream, limit)), Kind::Quota);
    assert!(!exists(&a, "p/u/n"));
    set("p/u", "snapshot_limit", "none");
    // Protection of what would be rolled back.
    joe(&a, &to("p/u/n"), &stream[..]).unwrap();
    commands.snapshot("p/u/n@later").unwrap();
    fill(&a, "p/secret");
    commands.snapshot("p/secret@v").unwrap();
    let more = Send {
        target: "p/secret@v".into(),
        from: Some("p/secret@s".into()),
        ..Send::default()
    };
    let more = sent(&a, &more);
    let back = Receive {
        force: true,
        ..to("p/u/n")
    };
    let protect = || set("p/u/n", "zfs-fuse:protect", "on");
    refused(joe(&a, &back, midway(&more, protect)), Kind::NotPermitted);
    assert!(exists(&a, "p/u/n@later") && !exists(&a, "p/u/n@v"));
    set("p/u/n", "zfs-fuse:protect", "off");
    // The name stays what it was: nothing is exchanged under a stream.
    let moved = || {
        for from in ["p/u/n", "p/u"] {
            let how = rename::How::default();
            let done = rename::rename(&a, ROOT, from, "p/elsewhere", how, String::new());
            assert_eq!(done.unwrap_err().code, Kind::Busy.errno(), "{from}");
        }
    };
    joe(&a, &back, midway(&more, moved)).unwrap();
    assert!(exists(&a, "p/u/n@v"));
    let renamed = rename::How::default();
    rename::rename(&a, ROOT, "p/u/n", "p/elsewhere", renamed, String::new()).unwrap();
}

#[test]
fn a_package_clears_no_property_that_its_receiver_may_not_set() {
    let (a, commands) = world();
    joe(&a, &to("p/u/n"), &full(&a, "p/secret@s")[..]).unwrap();
    let list = vec![
        ("quota".to_string(), "50M".to_string()),
        ("atime".to_string(), "off".to_string()),
    ];
    set::set(&a, ROOT, "p/u/n", &list, false, String::new()).unwrap();
    commands.snapshot("p/secret@v").unwrap();
    give(&a, "p/u", "atime", true);
    let ask = Send {
        target: "p/secret@v".into(),
        from: Some("p/secret@s".into()),
        props: true,
        ..Send::default()
    };
    joe(&a, &to("p/u/n"), &sent(&a, &ask)[..]).unwrap();
    let dsl = a.find("p").unwrap().pool.dsl().clone();
    let ds = dsl.dataset("p/u/n").unwrap();
    assert_eq!(pool::prop_number(&ds, "quota").unwrap(), 50 << 20);
    assert_eq!(pool::prop_number(&ds, "atime").unwrap(), 1, "it may be set");
}

#[test]
fn parents_are_made_only_for_what_is_received() {
    let (a, _) = world();
    let ask = Receive {
        name_by: NameBy::AllButFirst,
        ..to("p/u")
    };
    // The stream of p/secret/c goes to p/u/secret/c.
    refused(joe(&a, &ask, &of_clone(&a)[..]), Kind::NotPermitted);
    assert!(!exists(&a, "p/u/secret"));
    let stream = full(&a, "p/secret/c@t");
    give(&a, "p/u", "create", false);
    refused(joe(&a, &ask, &stream[..]), Kind::NotPermitted);
    assert!(!exists(&a, "p/u/secret"));
    give(&a, "p/u", "create", true);
    joe(&a, &ask, &stream[..]).unwrap();
    assert!(exists(&a, "p/u/secret/c@t"));
}

/// An input that says nothing for so many seconds after `rest`, unless the request is to end.
struct Silent<'a> {
    rest: &'a [u8],
    seconds: u64,
    clock: Arc<ManualClock>,
}

impl Read for Silent<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        if !self.rest.is_empty() {
            return self.rest.read(buf);
        }
        for _ in 0..self.seconds {
            self.clock.pass(1_000_000_000);
            if admin::cancel::is_cancelled() {
                return Err(std::io::ErrorKind::ConnectionAborted.into());
            }
        }
        Ok(0)
    }
}

#[test]
fn who_sends_nothing_is_not_waited_for_without_end() {
    let clock = Arc::new(ManualClock::default());
    let (a, _) = world_by(Some(clock.clone()));
    let stream = full(&a, "p/secret@s");
    for (sent, silence, want) in [
        (0, 61, Some("silent for 60 seconds")),
        (100, 61, Some("silent for 60 seconds")),
        (0, 50, None),
        (stream.len() - 100, 601, Some("silent for 600 seconds")),
        (stream.len() - 100, 500, None),
    ] {
        let silent = || Silent {
            rest: &stream[..sent],
            seconds: silence,
            clock: clock.clone(),
        };
        let said = joe(&a, &to("p/u/n"), silent()).unwrap_err().to_string();
        let early = said.contains("silent for");
        assert_eq!(early, want.is_some(), "{sent} bytes, {silence} s: {said}");
        assert!(want.is_none_or(|w| said.contains(w)), "{said}");
        // The owner is waited for.
        let roots = receive::receive(&a, ROOT, &to("p/u/n"), silent(), &mut |_| {});
        assert!(!roots.unwrap_err().to_string().contains("silent"));
        assert!(!exists(&a, "p/u/n"));
    }
}

#[test]
fn a_key_is_made_without_locks_and_for_users_within_bounds() {
    let (a, commands) = world();
    let stream = full(&a, "p/secret@s");
    let with = |iterations: &str| {
        let own = |(n, v): (&str, &str)| (n.to_string(), v.to_string());
        Receive {
            props: [
                ("encryption", "on"),
                ("keyformat", "passphrase"),
                ("pbkdf2iters", iterations),
            ]
            .map(own)
            .to_vec(),
            key: Some(api::Secret::new(b"correct horse".to_vec())),
            ..to("p/u/n")
        }
    };
    give(&a, "p/u", "encryption,keyformat,pbkdf2iters", true);
    let e = joe(&a, &with("3500001"), &stream[..]).unwrap_err();
    assert!(e.message.contains("cannot be more than 3500000"), "{e:?}");
    assert!(!exists(&a, "p/u/n"));
    joe(&a, &with("100000"), &stream[..]).unwrap();
    // It takes hours, and nobody waits for it.
    let gone = Arc::new(AtomicBool::new(false));
    let slow = std::thread::spawn({
        let (a, gone) = (a.clone(), gone.clone());
        let ask = Receive {
            target: "p/u/slow".into(),
            ..with("4294967295")
        };
        move || {
            let gone = move || gone.load(Ordering::SeqCst);
            admin::cancel::with(Box::new(gone), || {
                receive::receive(&a, ROOT, &ask, &stream[..], &mut |_| {})
            })
        }
    });
    std::thread::sleep(Duration::from_millis(300));
    let (done, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(commands.create("p/other", &[])));
    told.recv_timeout(Duration::from_secs(60))
        .expect("the names are locked while a key is made")
        .unwrap();
    assert!(!slow.is_finished());
    gone.store(true, Ordering::SeqCst);
    slow.join().unwrap().unwrap_err();
    assert!(!exists(&a, "p/u/slow"));
}
