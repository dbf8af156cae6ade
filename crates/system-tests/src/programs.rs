//! Paths of the programs under test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

pub const NAMES: [&str; 4] = ["zfs-fuse", "zpool", "zfs", "zdb"];

/// The folder with the programs, built if need be.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(find)
}

/// Copies a program that will be run. Not by this process: a child that another of its threads starts meanwhile would
/// have the copy open for writing for a moment, and whoever runs it then gets "text file busy".
///
/// # Panics
/// If it cannot be copied.
pub fn copy(from: &Path, to: &Path) {
    let done = Command::new("cp").arg(from).arg(to).status();
    assert!(
        done.is_ok_and(|s| s.success()),
        "copy of {}",
        from.display()
    );
}

fn find() -> PathBuf {
    if let Some(dir) = std::env::var_os("ZFS_FUSE_TEST_BIN") {
        return dir.into();
    }
    // target/PROFILE/deps/this-test, or target/PROFILE/this-program
    let me = std::env::current_exe().expect("path of the test");
    let mut dir = me.parent().expect("target folder").to_path_buf();
    if dir.ends_with("deps") {
        dir.pop();
    }
    // `cargo test` does not build programs of other packages.
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build.current_dir(testkit::packages::workspace());
    build.args(["build", "-q", "-p", "daemon", "-p", "zpool", "-p", "zfs"]);
    build.args(["-p", "zdb"]);
    if dir.file_name().is_some_and(|n| n == "release") {
        build.arg("--release");
    } else {
        // Devices can be told to fail.
        build.args(["--features", "daemon/faults"]);
    }
    let built = build.status().is_ok_and(|s| s.success());
    for name in NAMES {
        let there = dir.join(name).is_file();
        assert!(built && there, "{name} is not built in {}", dir.display());
    }
    dir
}
