//! Callers that never read, never write, stop or die at any message of any long answer: nobody else waits for them.

use api::*;
use control::wire::{self, Framed};
use control::Client;
use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use system_tests::{until, Rig};

const MIB: u64 = 1 << 20;
/// A caller that does not read is given up after 60 seconds. Who waits for it waits that long; who does not waits for a busy
/// machine at most.
const WAITED_FOR_THE_CALLER: Duration = Duration::from_secs(40);

/// How a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// By one message, which waits for nobody.
    Short,
    /// By several messages.
    Parts,
    /// With a stream.
    Stream,
}

/// A new request has to be put here, and if it is not short into [`long`], too.
fn shape(r: &Request) -> Shape {
    match r {
        Request::DatasetGet(_)
        | Request::PoolHistory { .. }
        | Request::Diff { .. }
        | Request::MountAll { .. } => Shape::Parts,
        Request::Send(_)
        | Request::Receive(_)
        | Request::VolumeRead { .. }
        | Request::FileRead { .. } => Shape::Stream,
        Request::Ping {}
        | Request::Version {}
        | Request::Stop {}
        | Request::PoolCreate(_)
        | Request::PoolDestroy { .. }
        | Request::PoolExport { .. }
        | Request::PoolGet(_)
        | Request::PoolSet { .. }
        | Request::ImportScan(_)
        | Request::PoolImport(_)
        | Request::PoolUpgrade { .. }
        | Request::SupportedFeatures {}
        | Request::LabelClear { .. }
        | Request::PoolSync { .. }
        | Request::PoolClear(_)
        | Request::PoolAdd(_)
        | Request::DeviceRemove { .. }
        | Request::RemovalCancel { .. }
        | Request::DeviceOnline { .. }
        | Request::DeviceOffline { .. }
        | Request::DeviceAttach(_)
        | Request::DeviceDetach { .. }
        | Request::PoolReopen { .. }
        | Request::PoolScrub(_)
        | Request::PoolWear(_)
        | Request::PoolResilver { .. }
        | Request::PoolCheckpoint { .. }
        | Request::VdevGet(_)
        | Request::VdevSet(_)
        | Request::PoolSplit(_)
        | Request::PoolReguid { .. }
        | Request::PoolPrefetch { .. }
        | Request::PoolPrune { .. }
        | Request::Events { .. }
        | Request::EventsClear {}
        | Request::PoolActivity { .. }
        | Request::DatasetCreate(_)
        | Request::DatasetDestroy(_)
        | Request::DatasetSet { .. }
        | Request::DatasetInherit { .. }
        | Request::DatasetRename { .. }
        | Request::SnapshotCreate(_)
        | Request::Rollback(_)
        | Request::DatasetClone(_)
        | Request::DatasetPromote { .. }
        | Request::BookmarkCreate { .. }
        | Request::ReceiveAbort { .. }
        | Request::Redact(_)
        | Request::HoldAdd(_)
        | Request::HoldRelease(_)
        | Request::KeyLoad { .. }
        | Request::KeyUnload { .. }
        | Request::KeyChange { .. }
        | Request::MountList {}
        | Request::Mount { .. }
        | Request::Unmount { .. }
        | Request::Holds { .. }
        | Request::Permissions { .. }
        | Request::PermissionsGive { .. }
        | Request::PermissionsTake { .. }
        | Request::SpaceHeld { .. }
        | Request::DatasetActivity { .. }
        | Request::SpaceOf { .. }
        | Request::UnmountAll { .. }
        | Request::Share { .. }
        | Request::Unshare { .. }
        | Request::ShareAll { .. }
        | Request::SetFaults { .. } => Shape::Short,
    }
}

/// Requests with long answers, as they are made here.
fn long() -> Vec<Request> {
    let get = DatasetGet {
        roots: vec!["tank/a".into()],
        kinds: vec![DatasetKind::Filesystem],
        props: Select::All,
        ..DatasetGet::default()
    };
    let send = Send {
        target: "tank/a@2".into(),
        progress: true,
        ..Send::default()
    };
    let receive = Receive {
        target: "tank/r".into(),
        verbose: true,
        no_mount: true,
        ..Receive::default()
    };
    vec![
        Request::DatasetGet(get),
        Request::PoolHistory {
            pool: "tank".into(),
            internal: true,
        },
        Request::Diff {
            from: "tank/a@1".into(),
            to: Some("tank/a@2".into()),
        },
        Request::MountAll {
            root: None,
            options: Vec::new(),
            overlay: false,
            force: false,
        },
        Request::Send(send),
        Request::Receive(receive),
        Request::VolumeRead {
            volume: "tank/v".into(),
            offset: 0,
            length: None,
        },
        Request::FileRead {
            dataset: "tank/a".into(),
            path: Bytes(b"/large".to_vec()),
            wanted: FileWanted::Content,
        },
    ]
}

/// A caller that has taken so many messages of an answer, with the stream if there is one.
fn caller(rig: &Rig, request: &Request, messages: usize) -> (Framed, Option<UnixStream>) {
    let socket = UnixStream::connect(rig.socket()).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(1)))
        .unwrap();
    let mut caller = Framed::new(socket, wire::MAX_REPLY);
    caller.take_descriptors();
    let frame = wire::encode_call(request, true).unwrap();
    caller.write(&frame).unwrap();
    // A stream that nobody moves has no further messages.
    for _ in 0..messages {
        let Ok(Some(frame)) = caller.read() else {
            break;
        };
        if !wire::decode_reply(&frame).unwrap().1 {
            break;
        }
    }
    let stream = caller.descriptor().map(UnixStream::from);
    (caller, stream)
}

/// What somebody else does meanwhile; how long the slowest of it took.
fn others(client: &mut Client, n: usize) -> Duration {
    let name = format!("tank/b@{n}");
    let snapshot = SnapshotCreate {
        names: vec![name.clone()],
        ..SnapshotCreate::default()
    };
    let destroy = DatasetDestroy {
        name,
        ..DatasetDestroy::default()
    };
    let set = Request::DatasetSet {
        dataset: "tank/b".into(),
        props: vec![("test:n".into(), n.to_string())],
        no_remount: false,
        command: String::new(),
    };
    let all = [
        Request::SnapshotCreate(snapshot),
        set,
        Request::Unmount {
            target: "tank/b".into(),
            force: false,
        },
        Request::Mount {
            dataset: "tank/b".into(),
            options: Vec::new(),
            overlay: false,
            force: false,
            directory: None,
        },
        Request::DatasetDestroy(destroy),
    ];
    let took = all.iter().map(|request| {
        let begin = Instant::now();
        client.call(request).unwrap();
        begin.elapsed()
    });
    took.max().unwrap()
}

#[test]
fn nobody_waits_for_a_caller_that_does_not_go_on() {
    let Some(rig) = Rig::as_root("slow-clients") else {
        return;
    };
    let (mut rig, mnt) = rig.with_tank(256 * MIB);
    rig.zfs(&["create", "tank/a"]);
    rig.zfs(&["create", "tank/b"]);
    rig.zfs(&["create", "-V", "8M", "tank/v"]);
    rig.zfs(&["snapshot", "tank/a@1"]);
    for n in 0..1_500 {
        let name = format!("a/{n:04}{}", "x".repeat(200));
        fs::write(mnt.join(name), b"x").unwrap();
    }
    fs::write(mnt.join("a/large"), vec![5; 4 << 20]).unwrap();
    rig.zfs(&["snapshot", "tank/a@2"]);
    let whole = rig.path().join("whole");
    rig.sh(&format!("zfs send tank/a@2 >{}", whole.display()));
    let whole = fs::read(whole).unwrap();
    let mut client = Client::connect_at(rig.socket()).unwrap().unwrap();
    // More than a socket takes.
    let wide = Request::DatasetSet {
        dataset: "tank/a".into(),
        props: (0..60)
            .map(|n| (format!("test:{n}"), "x".repeat(8_000)))
            .collect(),
        no_remount: false,
        command: String::new(),
    };
    client.call(&wide).unwrap();
    let mut n = 0;
    for request in long() {
        assert_ne!(shape(&request), Shape::Short);
        let mut slowest = Duration::ZERO;
        for messages in 0..3 {
            let (mut here, mut stream) = caller(&rig, &request, messages);
            if let (Some(stream), Request::Receive(_)) = (&mut stream, &request) {
                // Half of it, and not a byte more.
                stream.write_all(&whole[..whole.len() / 2]).unwrap();
            }
            // It is there and does nothing.
            n += 1;
            slowest = slowest.max(others(&mut client, n));
            // It is gone in the middle of another call.
            let _ = here.offer(b"{\"method\":");
            drop((here, stream));
            n += 1;
            slowest = slowest.max(others(&mut client, n));
        }
        let text = format!("{request:?}");
        let name: String = text.chars().take_while(|c| c.is_alphanumeric()).collect();
        println!("{name}: others waited {slowest:?} at most");
        assert!(slowest < WAITED_FOR_THE_CALLER, "{name}: {slowest:?}");
    }
    until("all callers are gone", || {
        rig.try_run("zpool", &["export", "tank"]).status.success()
    });
    assert!(!rig.log().contains("panicked"), "{}", rig.log());
    rig.stop();
}
