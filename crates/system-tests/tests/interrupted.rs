//! Streams whose sender, receiver or daemon is killed at any moment: the token of what came goes on with the rest,
//! and in the end the copy is what was sent.
//!
//! `ZFS_FUSE_TEST_STREAM_KILLS` (default 24) says how often something is killed.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;
use stream::Image;
use system_tests::{number, Dice, Rig};

/// Changes some files: new ones, others gone, cut, punched by zeros, written over.
fn change(dir: &Path, dice: &mut Dice) {
    for _ in 0..6 {
        let path = dir.join(format!("f{}", dice.below(12)));
        let len = dice.below(1_200_000) as usize;
        match dice.below(5) {
            0 => drop(fs::remove_file(&path)),
            1 => {
                let f = fs::File::options().write(true).open(&path);
                f.and_then(|f| f.set_len(len as u64 / 2)).unwrap_or(());
            }
            2 => {
                let f = fs::File::options()
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .open(&path);
                f.unwrap()
                    .write_all_at(&vec![0; len / 4], len as u64 / 3)
                    .unwrap();
            }
            _ => fs::write(&path, dice.bytes(len)).unwrap(),
        }
    }
}

/// Both ends, with what is passed from one to the other.
struct Ends {
    send: Child,
    receive: Child,
}

fn begin(rig: &Rig, send: &[&str], receive: &[&str]) -> Ends {
    let run = |verb: &str, args: &[&str]| {
        let mut c = rig.command("zfs", &[&[verb], args].concat());
        c.stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        c.spawn().unwrap()
    };
    Ends {
        send: run("send", send),
        receive: run("receive", receive),
    }
}

impl Ends {
    /// Passes so many bytes on, or all. Returns how many there were.
    fn pass(&mut self, most: u64) -> u64 {
        let (Some(from), Some(to)) = (&mut self.send.stdout, &mut self.receive.stdin) else {
            return 0;
        };
        let (mut buf, mut passed) = (vec![0; 32 << 10], 0);
        while passed < most {
            let want = (most - passed).min(buf.len() as u64) as usize;
            match from.read(&mut buf[..want]) {
                Ok(n) if n > 0 && to.write_all(&buf[..n]).is_ok() => passed += n as u64,
                _ => break,
            }
        }
        passed
    }

    /// Waits for both; whether both had no complaint.
    fn end(&mut self) -> bool {
        drop((self.send.stdout.take(), self.receive.stdin.take()));
        let (a, b) = (self.send.wait().unwrap(), self.receive.wait().unwrap());
        a.success() && b.success()
    }
}

fn image(rig: &Rig, snap: &str) -> Image {
    let out = rig.command("zfs", &["send", snap]).output().unwrap();
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let mut image = Image::default();
    image.apply(&out.stdout).unwrap();
    image
}

#[test]
fn a_killed_end_is_gone_on_with_until_the_copy_is_equal() {
    let Some(mut rig) = Rig::new("interrupted") else {
        return;
    };
    let kills = number("ZFS_FUSE_TEST_STREAM_KILLS", 24);
    let (one, two) = (rig.image("one", 512 << 20), rig.image("two", 512 << 20));
    rig.start();
    for (pool, disk) in [("src", &one), ("dst", &two)] {
        let at = rig.mnt().join(pool);
        rig.zpool(&["create", "-m", at.to_str().unwrap(), pool, disk]);
    }
    rig.zfs(&["create", "-o", "recordsize=32K", "src/a"]);
    let dir = rig.mnt().join("src/a");
    let mut dice = Dice::new(number("ZFS_FUSE_TEST_SEED", 11));
    for n in 0..8 {
        fs::write(dir.join(format!("f{n}")), dice.bytes(1_500_000)).unwrap();
    }
    let options: [&[&str]; 4] = [&[], &["-L"], &["-c"], &["-Lec"]];
    let (mut killed, mut resumed, mut snap) = (0, 0, 0);
    // Bytes of a stream, about.
    let mut length = 12 << 20;
    while killed < kills {
        snap += 1;
        change(&dir, &mut dice);
        let (to, from) = (format!("src/a@{snap}"), format!("@{}", snap - 1));
        rig.zfs(&["snapshot", &to]);
        let mut way: Vec<&str> = options[dice.below(4) as usize].to_vec();
        if snap > 1 {
            way.extend(["-i", &from]);
        }
        way.push(&to);
        let (mut token, mut waited) = (String::new(), 0);
        loop {
            let args = match token.len() > 10 {
                true => vec!["-t", &token],
                false => way.clone(),
            };
            resumed += u64::from(args[0] == "-t");
            let mut ends = begin(&rig, &args, &["-s", "-u", "dst/a"]);
            let kill = killed < kills && dice.below(4) > 0;
            let most = match kill {
                true => dice.below(length * 5 / 4),
                false => u64::MAX,
            };
            let passed = ends.pass(most);
            let mut restart = false;
            if kill {
                killed += 1;
                // Of what is on disk, something is kept when the daemon goes.
                if dice.below(2) == 0 {
                    rig.zpool(&["sync", "dst"]);
                }
                match dice.below(3) {
                    0 => ends.send.kill().unwrap(),
                    1 => ends.receive.kill().unwrap(),
                    _ => {
                        rig.kill();
                        restart = true;
                    }
                }
            } else {
                length = passed.max(10_000);
            }
            ends.end();
            if restart {
                // A command that found no daemon began one.
                rig.kill_all();
                rig.start();
            }
            let guid = |name: &str| {
                let said = rig.try_run("zfs", &["get", "-H", "-o", "value", "guid", name]);
                said.status.success().then(|| said.out.trim().to_string())
            };
            if guid(&format!("dst/a@{snap}")) == guid(&to) {
                break;
            }
            // The daemon may still be at what it got of the stream before.
            waited += u32::from(!kill);
            assert!(waited < 50, "a stream that nobody cut off fails");
            std::thread::sleep(Duration::from_millis(if kill { 0 } else { 200 }));
            let get = ["get", "-H", "-o", "value", "receive_resume_token", "dst/a"];
            token = rig.try_run("zfs", &get).out.trim().to_string();
        }
        assert!(
            image(&rig, &to) == image(&rig, &format!("dst/a@{snap}")),
            "@{snap} differs after {killed} kills"
        );
        if snap > 3 {
            for pool in ["src", "dst"] {
                rig.zfs(&["destroy", &format!("{pool}/a@{}", snap - 3)]);
            }
        }
    }
    eprintln!("{killed} kills, {resumed} resumed, {snap} snapshots");
    assert!(resumed > 0, "nothing was gone on with");
    for pool in ["src", "dst"] {
        rig.zpool(&["export", pool]);
        rig.zdb_check(pool);
    }
}
