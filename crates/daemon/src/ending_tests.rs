//! Tests of pools that a power cut or a thread that is just ending has left in between.

use crate::pool_tests::{Home, Quiet};
use crate::requests;
use api::{Peer, Request};
use std::fs;

/// The power went when two labels of each device told of a change (here: that a mirror lost a side) whose
/// uberblock was not written: the pool is as before, and is found so.
#[test]
fn labels_of_a_txg_that_was_not_finished() {
    let home = Home::new(2);
    home.create(home.spec("tank", vec![home.mirror(0, 1)]))
        .unwrap();
    home.export("tank");
    let before = [0, 1].map(|i| fs::read(home.image(i)).unwrap());
    home.import("tank", |_| ()).unwrap();
    home.ask(Request::DeviceDetach {
        pool: "tank".into(),
        device: home.image(1),
        command: "zpool detach".into(),
    })
    .unwrap();
    home.export("tank");
    let after = fs::read(home.image(0)).unwrap();
    let [mut first, second] = before;
    // What a label says of the pool is between its first 16 KiB and its uberblocks at 128 KiB. Labels 0 and 2
    // are written first.
    let label = disk::label::LABEL_SIZE as usize;
    for begin in [0, first.len() - 2 * label] {
        let told = begin + (16 << 10)..begin + (128 << 10);
        first[told.clone()].copy_from_slice(&after[told]);
    }
    fs::write(home.image(0), first).unwrap();
    fs::write(home.image(1), second).unwrap();
    let seen = home.scan(false);
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!(seen[0].health, "ONLINE", "{seen:?}");
    home.import("tank", |_| ()).unwrap();
    assert_eq!(
        home.describe("tank").tree.unwrap().state,
        api::VdevState::Online
    );
}

/// Threads of a mount that has just ended may hold a file system for a moment after the end is told.
#[test]
fn keys_are_unloaded_when_the_last_user_has_just_ended() {
    let home = Home::new(1);
    home.create(home.spec("tank", vec![home.leaf(0)])).unwrap();
    let props = [("encryption", "on"), ("keyformat", "raw")];
    let ask = |request| {
        let owner = Peer {
            uid: 0,
            gid: 0,
            pid: 1,
        };
        requests::answer(&home.admin, owner, request, &mut Quiet)
    };
    ask(Request::DatasetCreate(api::DatasetCreate {
        name: "tank/e".into(),
        props: props.map(|(n, v)| (n.into(), v.into())).into(),
        key: Some(api::Secret::new(vec![7; 32])),
        no_mount: true,
        command: "zfs create tank/e".into(),
        ..api::DatasetCreate::default()
    }))
    .unwrap();
    let entry = home.admin.find("tank").unwrap();
    let ds = entry.pool.dsl().dataset("tank/e").unwrap();
    let set = entry.pool.open_dataset(&ds).unwrap();
    let user = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        let object = ds.object();
        drop((set, ds));
        entry.pool.close_dataset(object);
    });
    ask(Request::KeyUnload {
        dataset: "tank/e".into(),
    })
    .unwrap();
    user.join().unwrap();
}
