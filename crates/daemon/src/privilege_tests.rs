//! Pools made to harm whoever imports them.

use crate::pool_tests::Home;
use dsl::{PropChange, PropValue};

/// Stores a property no command would.
fn forge(home: &Home, pool: &str, name: &'static str, value: String) {
    let entry = home.service.find(pool).unwrap();
    let ds = entry.pool.dsl.root().unwrap().head().unwrap();
    let done = entry.pool.task(move |pool, tx| {
        let change = PropChange::Local(PropValue::Str(value));
        pool.dsl.set_prop(tx, &ds, name, &change)
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
        let entry = home.service.find("p").unwrap();
        let failed = home.service.mount_pool(&entry);
        assert_eq!(failed.len(), 1);
        let text = failed[0].1.to_string();
        assert!(text.contains("contains '..'"), "{text}");
        assert_eq!(std::fs::read_dir(&victim).unwrap().count(), 0);
    }
}
