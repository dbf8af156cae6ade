//! Increments received into a file system that programs use: their open files go on where the files still are, and everything
//! that is new is seen at once.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use system_tests::{Dice, Rig};

/// ESTALE
const STALE: i32 = 116;

fn pools(name: &str) -> Option<(Rig, PathBuf, PathBuf)> {
    let mut rig = Rig::new(name)?;
    let (one, two) = (rig.image("one", 512 << 20), rig.image("two", 512 << 20));
    let (src, dst) = (rig.mnt().join("src"), rig.mnt().join("dst"));
    rig.start();
    rig.zpool(&["create", "-m", src.to_str().unwrap(), "src", &one]);
    rig.zpool(&["create", "-m", dst.to_str().unwrap(), "dst", &two]);
    Some((rig, src, dst))
}

/// Sends and receives; what the receiver said.
fn pass(rig: &Rig, send: &[&str], receive: &[&str]) -> (bool, String) {
    let path = rig.path().join("home/stream");
    let mut c = rig.command("zfs", &[&["send"], send].concat());
    let sent = c.stdout(File::create(&path).unwrap()).status().unwrap();
    assert!(sent.success(), "{send:?}");
    let mut c = rig.command("zfs", &[&["receive"], receive].concat());
    c.stdin(File::open(&path).unwrap()).stderr(Stdio::piped());
    let out = c.output().unwrap();
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    (out.status.success(), err)
}

fn whole(f: &mut File) -> std::io::Result<Vec<u8>> {
    f.seek(SeekFrom::Start(0))?;
    let mut all = Vec::new();
    f.read_to_end(&mut all)?;
    Ok(all)
}

/// A process that stands in a folder.
fn stand(rig: &Rig, at: &Path) -> Child {
    let mut c = rig.command("sleep", &["120"]);
    c.current_dir(at).spawn().unwrap()
}

#[test]
fn open_files_of_a_mounted_target_go_on_where_the_files_still_are() {
    let Some((rig, src, dst)) = pools("receive-use") else {
        return;
    };
    rig.zfs(&["create", "src/a"]);
    let at = src.join("a");
    let mut dice = Dice::new(3);
    let same = dice.bytes(700_000);
    fs::create_dir_all(at.join("dir/sub")).unwrap();
    fs::write(at.join("same"), &same).unwrap();
    fs::write(at.join("content"), b"old content").unwrap();
    fs::write(at.join("removed"), b"goes").unwrap();
    fs::write(at.join("dir/moved"), b"moved").unwrap();
    fs::write(at.join("replaced"), b"first").unwrap();
    rig.zfs(&["snapshot", "src/a@1"]);
    let (ok, err) = pass(&rig, &["src/a@1"], &["-o", "atime=off", "dst/a"]);
    assert!(ok, "{err}");

    fs::write(at.join("content"), b"new content, longer than before").unwrap();
    fs::remove_file(at.join("removed")).unwrap();
    fs::rename(at.join("dir/moved"), at.join("moved")).unwrap();
    fs::write(at.join("second"), b"second").unwrap();
    fs::rename(at.join("second"), at.join("replaced")).unwrap();
    fs::write(at.join("added"), b"added").unwrap();
    fs::remove_dir(at.join("dir/sub")).unwrap();
    rig.zfs(&["snapshot", "src/a@2"]);

    // Programs look at the target: open files, folders, names that are not there.
    let to = dst.join("a");
    let open = |name: &str| File::open(to.join(name)).unwrap();
    let (mut kept, mut content) = (open("same"), open("content"));
    let (mut removed, mut moved, mut replaced) =
        (open("removed"), open("dir/moved"), open("replaced"));
    for f in [&mut content, &mut removed, &mut moved, &mut replaced] {
        whole(f).unwrap();
    }
    let mut half = vec![0; 300_000];
    kept.read_exact(&mut half).unwrap();
    assert!(fs::metadata(to.join("added")).is_err());
    let listed = fs::read_dir(to.join("dir")).unwrap().count();
    assert_eq!(listed, 2);
    let mut stands = stand(&rig, &to.join("dir"));
    let ended = Arc::new(AtomicBool::new(false));
    let reader = {
        let (ended, path, want) = (ended.clone(), to.join("same"), same.clone());
        std::thread::spawn(move || {
            let (f, mut buf, mut n) = (File::open(path).unwrap(), vec![0; 50_000], 0);
            while !ended.load(Ordering::SeqCst) {
                let at = (n * 37_777) % 650_000;
                f.read_exact_at(&mut buf, at as u64).unwrap();
                assert!(buf == want[at..at + 50_000], "at {at}");
                n += 1;
            }
            n
        })
    };

    let (ok, err) = pass(&rig, &["-i", "@1", "src/a@2"], &["dst/a"]);
    assert!(ok, "{err}");

    // At once, by name.
    assert_eq!(
        fs::read(to.join("content")).unwrap(),
        b"new content, longer than before"
    );
    assert_eq!(fs::read(to.join("added")).unwrap(), b"added");
    assert_eq!(fs::read(to.join("moved")).unwrap(), b"moved");
    assert_eq!(fs::read(to.join("replaced")).unwrap(), b"second");
    for gone in ["removed", "dir/moved", "dir/sub", "second"] {
        let e = fs::metadata(to.join(gone)).unwrap_err();
        assert_eq!(e.kind(), std::io::ErrorKind::NotFound, "{gone}");
    }
    assert_eq!(fs::read_dir(to.join("dir")).unwrap().count(), 0);
    // The file that is the same goes on where it was read.
    let mut rest = Vec::new();
    kept.read_to_end(&mut rest).unwrap();
    assert!([half, rest].concat() == same);
    // What is gone is opened anew.
    for (name, f) in [("removed", &mut removed), ("replaced", &mut replaced)] {
        let e = whole(f).unwrap_err();
        assert_eq!(e.raw_os_error(), Some(STALE), "{name}: {e}");
    }
    for (f, now) in [
        (&mut content, &b"new content, longer than before"[..]),
        (&mut moved, b"moved"),
    ] {
        assert_eq!(whole(f).unwrap(), now);
        assert_eq!(f.metadata().unwrap().len(), now.len() as u64);
    }
    ended.store(true, Ordering::SeqCst);
    assert!(reader.join().unwrap() > 0);
    assert_eq!(rig.get("mounted", "dst/a"), "yes");
    stands.kill().unwrap();
    stands.wait().unwrap();
    drop((kept, content, removed, moved, replaced));
    rig.zpool(&["export", "dst"]);
    rig.zdb_check("dst");
}

/// What a program has written, also what the kernel still keeps, is a change of the target.
#[test]
fn what_is_written_into_a_target_refuses_an_increment_or_is_given_up() {
    let Some((rig, src, dst)) = pools("receive-dirty") else {
        return;
    };
    rig.zfs(&["create", "src/a"]);
    let at = src.join("a");
    fs::write(at.join("file"), b"first").unwrap();
    rig.zfs(&["snapshot", "src/a@1"]);
    let (ok, err) = pass(&rig, &["src/a@1"], &["-o", "atime=off", "dst/a"]);
    assert!(ok, "{err}");
    fs::write(at.join("file"), b"second").unwrap();
    rig.zfs(&["snapshot", "src/a@2"]);
    let to = dst.join("a");
    let mut own = File::options().write(true).open(to.join("file")).unwrap();
    own.write_all(b"by the receiver's user").unwrap();
    let (ok, err) = pass(&rig, &["-i", "@1", "src/a@2"], &["dst/a"]);
    assert!(!ok);
    assert!(err.contains("has been modified"), "{err}");
    assert_eq!(
        fs::read(to.join("file")).unwrap(),
        b"by the receiver's user"
    );
    own.write_all(b", and more").unwrap();
    let (ok, err) = pass(&rig, &["-i", "@1", "src/a@2"], &["-F", "dst/a"]);
    assert!(ok, "{err}");
    assert_eq!(fs::read(to.join("file")).unwrap(), b"second");
    // The handle is of the same file, and what was written before the increment never comes back.
    own.write_at(b"S", 0).and_then(|_| own.sync_all()).unwrap();
    drop(own);
    assert_eq!(fs::read(to.join("file")).unwrap(), b"Second");
    rig.zpool(&["export", "dst"]);
    rig.zdb_check("dst");
}
