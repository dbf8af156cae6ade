//! Names that have several spellings, and what the kernel remembers of them.

use system_tests::Rig;

/// Every change under one spelling is seen at once under the others.
fn spellings(rig: &Rig, at: &str, one: &str, other: &str) {
    let script = format!(
        "cd {at}
        echo 1 >{one}; [ \"$(cat {other})\" = 1 ]; rm {other}; fails cat {one} 2>/dev/null
        echo 5 >{one}; [ \"$(cat {one})\" = 5 ]; [ \"$(cat {other})\" = 5 ]
        [ \"$(ls)\" = {one} ]
        mv {other} x; fails cat {one} 2>/dev/null; fails cat {other} 2>/dev/null
        echo 6 >{other}; [ \"$(cat {one})\" = 6 ]; rm {one}; fails cat {other} 2>/dev/null
        ln x {one}; [ \"$(cat {other})\" = 5 ]; rm {other}; fails cat {one} 2>/dev/null
        mv x {other}; [ \"$(cat {one})\" = 5 ]; echo 7 >y; mv y {one}; [ \"$(cat {other})\" = 7 ]
        rm {one}
        mkdir {one}; echo 8 >{other}/f; cat {one}/f >/dev/null; rm {one}/f; rmdir {other}
        fails ls -d {one} 2>/dev/null; echo 9 >{one}; [ \"$(cat {other})\" = 9 ]; rm {other}"
    );
    rig.sh(&script);
}

#[test]
fn a_change_under_one_spelling_is_seen_under_the_others() {
    let Some(mut rig) = Rig::new("spellings") else {
        return;
    };
    let disk = rig.image("disk", 128 << 20);
    let at = |fs: &str| rig.mnt().join(fs).to_str().unwrap().to_string();
    let places: Vec<(String, &str, &str)> = vec![
        (at("i"), "ghi", "GHI"),
        (at("m"), "ghi", "GHI"),
        // Ä as one character and as A with two dots.
        (at("n"), "\u{c4}", "A\u{308}"),
        (at("k"), "\u{fb01}x", "fix"),
    ];
    rig.start();
    rig.zpool(&["create", "-O", "mountpoint=none", "tank", &disk]);
    let options = [
        "casesensitivity=insensitive",
        "casesensitivity=mixed",
        "normalization=formD",
        "normalization=formKC",
    ];
    for ((at, one, other), option) in places.iter().zip(options) {
        let name = format!("tank/{}", at.rsplit('/').next().unwrap());
        let place = format!("mountpoint={at}");
        rig.zfs(&["create", "-o", option, "-o", &place, &name]);
        // In a file system of mixed case programs of Unix tell the case apart.
        if option != "casesensitivity=mixed" {
            spellings(&rig, at, one, other);
        }
    }
    let mixed = &places[1].0;
    rig.sh(&format!(
        "cd {mixed}; fails cat GHI 2>/dev/null; echo 1 >ghi; cat ghi >/dev/null; rm ghi; fails cat ghi 2>/dev/null; echo 5 >ghi; [ $(cat ghi) = 5 ]"
    ));
    rig.stop();
}
