//! Tests with hostile pools, imported by root.

use crate::pool_tests::Home;
use dsl::props::PropChange;
use dsl::PropValue;

/// Stores a property no command would.
fn forge(home: &Home, pool: &str, name: &'static str, value: String) {
    let entry = home.admin.find(pool).unwrap();
    let ds = entry.pool.dsl().root().unwrap().head().unwrap();
    let done = entry.pool.task(move |pool, tx| {
        let change = PropChange::Local(PropValue::Str(value));
        pool.dsl().set_prop(tx, &ds, name, &change)
    });
    done.unwrap();
}

#[test]
fn a_stored_mountpoint_with_dots_is_refused() {
    let home = Home::new(1);
    let victim = home.dir.join("victim");
    std::fs::create_dir(&victim).unwrap();
    home.create(home.spec("p", vec![home.leaf(0)])).unwrap();
    for value in [
        format!("/../{}/x", victim.display()),
        format!("{}/../victim/y", victim.display()),
    ] {
        forge(&home, "p", "mountpoint", value);
        let entry = home.admin.find("p").unwrap();
        let failed = home.admin.mount_pool(&entry);
        assert_eq!(failed.len(), 1);
        let text = failed[0].1.to_string();
        assert!(text.contains("contains '..'"), "{text}");
        assert_eq!(std::fs::read_dir(&victim).unwrap().count(), 0);
    }
}

/// Gives a pool another name in its own configuration, not in its labels, and closes it.
fn forge_name(home: &Home, pool: &str, name: &'static str) {
    let entry = home.admin.find(pool).unwrap();
    entry
        .pool
        .task(move |pool, tx| {
            let object = zap::Zap::new(&pool.mos().hold(1)?).get("config")?.unwrap();
            let dn = pool.mos().hold(object)?;
            let mut bytes = vec![0; dn.info().block_size];
            dn.read(0, &mut bytes)?;
            let mut config = disk::NvList::unpack(&bytes)?;
            config.set("name", name);
            let packed = config.pack_xdr();
            let len = packed.len() as u64;
            bytes.fill(0);
            bytes[..packed.len()].copy_from_slice(&packed);
            dn.write(tx, 0, &bytes)?;
            dn.set_bonus(tx, &len.to_le_bytes())
        })
        .unwrap();
    home.admin.dismiss(&entry);
    entry.pool.close().unwrap();
}

#[test]
fn a_pool_with_two_names_displaces_no_pool_in_service() {
    let home = Home::new(2);
    home.create(home.spec("a", vec![home.leaf(0)])).unwrap();
    home.create(home.spec("victim", vec![home.leaf(1)]))
        .unwrap();
    let guid = home.admin.find("victim").unwrap().pool.guid();
    forge_name(&home, "a", "victim");
    home.import("a", |ask| ask.force = true).unwrap();
    assert_eq!(home.admin.find("victim").unwrap().pool.guid(), guid);
    assert_ne!(home.admin.find("a").unwrap().pool.guid(), guid);
    assert_eq!(home.admin.find("a").unwrap().pool.name(), "a");
}

#[test]
fn no_second_pool_of_a_name_is_put_into_service() {
    let home = Home::new(2);
    home.create(home.spec("a", vec![home.leaf(0)])).unwrap();
    home.export("a");
    home.create(home.spec("victim", vec![home.leaf(1)]))
        .unwrap();
    let victim = home.admin.find("victim").unwrap();
    let options = pool::OpenOptions {
        name: Some("victim".into()),
        ..Default::default()
    };
    let env = home.admin.env.clone();
    let found = vdev::discover(&env, &[home.image(0)]).pools.remove(0);
    let second = pool::Pool::open(env, &found.config, options).unwrap();
    let adopted = home.admin.adopt(second, None, None, Vec::new());
    assert_eq!(adopted.err().unwrap().kind, base::Kind::Exists);
    let still = home.admin.find("victim").unwrap();
    assert!(std::sync::Arc::ptr_eq(&victim, &still));
    // Its devices are free again.
    home.import("victim", |ask| ask.new_name = Some("b".into()))
        .unwrap();
    assert!(home.admin.find("b").is_some());
}

#[test]
fn a_name_or_guid_is_claimed_once() {
    let home = Home::new(0);
    let admin = &home.admin;
    let first = admin.claim("a", 7).unwrap();
    for (name, guid) in [("a", 0), ("a", 8), ("b", 7)] {
        let second = admin.claim(name, guid);
        assert_eq!(second.err().unwrap().kind, base::Kind::Busy);
    }
    assert!(admin.claim("b", 0).is_ok());
    drop(first);
    assert!(admin.claim("a", 7).is_ok());
}

/// A stalled import of one pool is no reason for another command to wait.
#[test]
fn a_command_for_one_pool_does_not_wait_for_another_pool() {
    let home = Home::new(2);
    home.create(home.spec("slow", vec![home.leaf(0)])).unwrap();
    let slow = home.admin.find("slow").unwrap();
    // As long as a command changes it.
    let _changing = slow.changes.lock().unwrap();
    let _claim = home.admin.claim("other", 0).unwrap();
    home.create(home.spec("quick", vec![home.leaf(1)])).unwrap();
    home.export("quick");
    home.import("quick", |_| {}).unwrap();
}

#[test]
fn a_command_whose_caller_has_gone_is_not_carried_out() {
    let home = Home::new(2);
    home.create(home.spec("a", vec![home.leaf(0)])).unwrap();
    let gone = || admin::cancel::with(Box::new(|| true), || home.try_export("a"));
    assert_eq!(gone().unwrap_err(), admin::cancel::refusal());
    assert!(home.admin.find("a").is_some());
    let spec = home.spec("b", vec![home.leaf(1)]);
    let made = admin::cancel::with(Box::new(|| true), || home.create(spec));
    assert_eq!(made.unwrap_err(), admin::cancel::refusal());
    assert!(home.admin.find("b").is_none());
}
