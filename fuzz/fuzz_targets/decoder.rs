//! Runs the target that `ZFS_FUSE_FUZZ_TARGET` names.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::OnceLock;

fuzz_target!(|data: &[u8]| {
    static TARGET: OnceLock<&'static fuzz::Target> = OnceLock::new();
    let target = TARGET.get_or_init(|| {
        let name = std::env::var("ZFS_FUSE_FUZZ_TARGET").unwrap_or_default();
        fuzz::target(&name).expect("ZFS_FUSE_FUZZ_TARGET must name a target")
    });
    (target.run)(data);
});
