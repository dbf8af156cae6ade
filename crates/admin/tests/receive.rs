//! Receiving, without a machine around it.

use admin::alone::{self, Alone, MemoryDoor};
use admin::commands::{Commands, ROOT};
use admin::datasets::{receive, send, set};
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

    let dsl = &admin.find("p").unwrap().pool.dsl;
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
