//! Short runs of the program, with OpenZFS's zdb as a judge where it can be had.

use std::process::Command;
use testkit::{or_skip, OpenZfs, TempDir};

fn run(name: &str, args: &[&str]) -> (bool, String) {
    let dir = TempDir::new(name).unwrap();
    let mut c = Command::new(env!("CARGO_BIN_EXE_ztest"));
    c.args(["-V", "-s", "128M", "-f"])
        .arg(dir.path())
        .args(args);
    let out = c.output().unwrap();
    let text =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    (out.status.success(), text)
}

#[test]
fn nothing_is_lost() {
    let (ok, text) = run(
        "ztest",
        &[
            "-T", "16", "-P", "3", "-i", "3", "-t", "6", "-d", "2", "-k", "70",
        ],
    );
    assert!(ok, "{text}");
    assert!(text.contains("nothing lost"), "{text}");
}

/// Under the same, on dRAIDs.
#[test]
fn nothing_is_lost_on_draids() {
    let (ok, text) = run(
        "ztest-draid",
        &[
            "-K", "draid", "-T", "16", "-P", "5", "-i", "2", "-t", "4", "-d", "2", "-k", "50",
            "-v", "1",
        ],
    );
    assert!(ok, "{text}");
    assert!(
        text.contains("Draid") && text.contains("nothing lost"),
        "{text}"
    );
}

/// The seed is one with a single disk, whose first four passes are: an import while reads fail, a copy with damaged properties, another
/// such import, a copy with a damaged root.
#[test]
fn nothing_is_lost_to_reads_that_fail_and_damage_stays_alone() {
    let (ok, text) = run(
        "ztest-imports",
        &[
            "-S", "7056", "-v", "1", "-T", "14", "-P", "2", "-t", "4", "-d", "2", "-k", "50",
        ],
    );
    assert!(ok && text.contains("nothing lost"), "{text}");
    for none in [
        " 0 imports while reads failed",
        " 0 with a file system damaged",
    ] {
        assert!(!text.contains(none), "{text}");
    }
}

#[test]
fn usage() {
    let (ok, text) = run("ztest-usage", &["-Q"]);
    assert!(!ok && text.contains("invalid option 'Q'"), "{text}");
}

/// The judge is really asked.
#[test]
fn openzfs_judges() {
    let Some(z) = or_skip(OpenZfs::get()) else {
        return;
    };
    let dir = TempDir::new("ztest-zdb").unwrap();
    let script = dir.path().join("zdb");
    let asked = dir.path().join("asked");
    let theirs = z.command("zdb").unwrap();
    let mut text = format!("#!/bin/sh\necho \"$@\" >>'{}'\n", asked.display());
    for (key, value) in theirs.get_envs() {
        let value = value.unwrap_or_default().to_string_lossy();
        text += &format!("export {}='{value}'\n", key.to_string_lossy());
    }
    let words: Vec<_> = std::iter::once(theirs.get_program())
        .chain(theirs.get_args())
        .map(|w| format!("'{}'", w.to_string_lossy()))
        .collect();
    text += &format!("exec {} \"$@\"\n", words.join(" "));
    std::fs::write(&script, text).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).unwrap();
    let (ok, text) = run(
        "ztest-judged",
        &[
            "-T",
            "4",
            "-P",
            "2",
            "-t",
            "4",
            "-S",
            "5",
            "-z",
            script.to_str().unwrap(),
        ],
    );
    assert!(ok, "{text}");
    let asked = std::fs::read_to_string(asked).unwrap();
    assert!(asked.contains("-bcc ztest"), "{asked}");
}
