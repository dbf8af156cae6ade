//! The real `zpool` against a daemon that is not: the socket, exit statuses, streams.

use api::*;
use control::{path, serve, Handler, Sink};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

#[derive(Default)]
struct Fake {
    seen: Mutex<Vec<Request>>,
}

impl Handler for Fake {
    fn handle(&self, peer: Peer, request: Request, _: &mut dyn Sink) -> Result<Reply, ApiError> {
        assert!(peer.pid > 0);
        if let Ok(mut seen) = self.seen.lock() {
            seen.push(request.clone());
        }
        match request {
            Request::PoolCreate(c) if c.name == "taken" => Err(ApiError::vdevs(
                true,
                &["/dev/sdb1 is part of exported pool 'old'".to_string()],
            )),
            Request::PoolGet(g) => {
                let mut answer = Answer::default();
                for name in g.pools {
                    let error = ApiError::no_such_pool(&name);
                    answer.failed.push((name, error));
                }
                Ok(Reply::Pools(answer))
            }
            Request::Version {} => Ok(Reply::Version(Version {
                daemon: "1.2.3".into(),
            })),
            _ => Ok(Reply::Done),
        }
    }
}

struct Daemon {
    dir: PathBuf,
    fake: Arc<Fake>,
}

impl Daemon {
    fn start(name: &str) -> Daemon {
        let dir = std::env::temp_dir().join(format!("zpool-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let socket = dir.join("control.sock");
        path::prepare_dir(&socket).unwrap();
        let listener = UnixListener::bind(&socket).unwrap();
        let fake = Arc::new(Fake::default());
        let handler = fake.clone();
        std::thread::spawn(move || serve(listener, handler));
        Daemon { dir, fake }
    }

    fn run(&self, args: &[&str]) -> (i32, String, String) {
        let output = command(&self.dir).args(args).output().unwrap();
        texts(&output)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn command(dir: &std::path::Path) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_zpool"));
    c.env("ZFS_FUSE_SOCKET", dir.join("control.sock"))
        .env("TZ", "UTC0")
        .current_dir(dir);
    c
}

/// Copies a file that is to be run, in a process of its own: a descriptor open for writing here would be
/// inherited by what other threads start, and "text file busy" would keep the copy from being run.
fn copy(from: &std::path::Path, to: &std::path::Path) {
    let made = Command::new("cp").args([from, to]).status().unwrap();
    assert!(made.success(), "{}", to.display());
}

fn texts(output: &Output) -> (i32, String, String) {
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    (
        output.status.code().unwrap_or(-1),
        text(&output.stdout),
        text(&output.stderr),
    )
}

/// The article's beginning, on an image file.
#[test]
fn create() {
    let daemon = Daemon::start("create");
    let image = daemon.dir.join("disk.img");
    std::fs::File::create(&image)
        .unwrap()
        .set_len(64 << 20)
        .unwrap();
    let image = image.to_str().unwrap();
    let (status, out, err) = daemon.run(&["create", "-n", "tank", image]);
    assert_eq!((status, err.as_str()), (0, ""));
    assert_eq!(
        out,
        format!("would create 'tank' with the following layout:\n\n\ttank\n\t  {image}\n")
    );
    // A path that begins here is known in full.
    let here = daemon.run(&["create", "-n", "tank", "./disk.img"]);
    assert_eq!(here, (0, out, String::new()));
    let line = [
        "create",
        "-R",
        "/mnt",
        "-O",
        "atime=off",
        "-o",
        "ashift=12",
        "tank",
        image,
    ];
    assert_eq!(daemon.run(&line), (0, String::new(), String::new()));
    let seen = daemon.fake.seen.lock().unwrap();
    let Some(Request::PoolCreate(c)) = seen.last() else {
        panic!("{seen:?}")
    };
    assert_eq!(c.command, format!("zpool {}", line.join(" ")));
    assert_eq!(c.altroot.as_deref(), Some("/mnt"));
    assert_eq!(
        c.props,
        [
            ("ashift".to_string(), "12".to_string()),
            ("cachefile".into(), "none".into())
        ]
    );
    assert_eq!(c.vdevs[0].kind, VdevKind::File);
}

#[test]
fn refusals() {
    let daemon = Daemon::start("refusals");
    let image = daemon.dir.join("disk.img");
    std::fs::File::create(&image)
        .unwrap()
        .set_len(64 << 20)
        .unwrap();
    let path = image.to_str().unwrap();
    let short = "disk.img";
    for (line, status, text) in [
        (
            vec!["create", "taken", path],
            1,
            "invalid vdev specification\nuse '-f' to override the following errors:\n\
             /dev/sdb1 is part of exported pool 'old'\n"
                .to_string(),
        ),
        (
            vec!["create", "tank", path, path],
            1,
            "cannot create 'tank': one or more vdevs refer to the same device, or one of the \
             devices is part of an active md or lvm device\n"
                .into(),
        ),
        (
            vec!["create", "tank", short],
            1,
            format!(
                "cannot open 'disk.img': no such device in /dev\n\
                 must be a full path or shorthand device name\n\
                 for the file here give its full path: {path}\n"
            ),
        ),
        (
            vec!["create", "tank", "/no/such"],
            1,
            "cannot open '/no/such': No such file or directory\n".into(),
        ),
        (
            vec!["create", "tank", "/"],
            1,
            "cannot use '/': must be a block device or regular file\n".into(),
        ),
        (
            vec!["create", "tank/x", path],
            1,
            "cannot create 'tank/x': invalid character '/' in pool name\n\
             use 'zfs create' to create a dataset\n"
                .into(),
        ),
        (
            vec!["create", "mirror", path, path],
            1,
            "cannot create 'mirror': name is reserved\npool name may have been omitted\n".into(),
        ),
        (
            vec!["create", "-o", "nope=1", "tank", path],
            1,
            "property 'nope' is not a valid pool or vdev property\n".into(),
        ),
        (
            vec!["create", "tank", "log", path],
            1,
            "invalid vdev specification: at least one toplevel vdev must be specified\n".into(),
        ),
        (
            vec!["list", "nosuch"],
            1,
            "cannot open 'nosuch': no such pool\n".into(),
        ),
    ] {
        assert_eq!(daemon.run(&line), (status, String::new(), text), "{line:?}");
    }
    let (status, out, err) = daemon.run(&["create", "tank"]);
    assert_eq!((status, out.as_str()), (2, ""));
    assert!(err.starts_with("missing vdev specification\nusage:\n\tcreate "));
}

#[test]
fn nobody_to_ask() {
    let dir = std::env::temp_dir().join(format!("zpool-nobody-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir(&dir).unwrap();
    // `version` starts no daemon.
    let (status, out, err) = texts(&command(&dir).arg("version").output().unwrap());
    assert_eq!(status, 1);
    assert!(
        out.starts_with("zfs-2.4.0-fuse-") && out.lines().count() == 1,
        "{out}"
    );
    assert!(err.contains("not running"), "{err}");
    // A copy away from the daemon's own directory, and nothing in PATH: it says what to do.
    let copy = dir.join("zpool");
    self::copy(env!("CARGO_BIN_EXE_zpool").as_ref(), &copy);
    let output = Command::new(&copy)
        .arg("list")
        .env("ZFS_FUSE_SOCKET", dir.join("control.sock"))
        .env("PATH", &dir)
        .output()
        .unwrap();
    let (status, out, err) = texts(&output);
    let installed = [
        "/usr/local/bin",
        "/usr/local/sbin",
        "/usr/bin",
        "/usr/sbin",
        "/sbin",
    ]
    .iter()
    .any(|d| std::path::Path::new(d).join("zfs-fuse").exists());
    if installed {
        println!("zfs-fuse is installed here: its absence cannot be tested");
    } else {
        assert_eq!((status, out.as_str()), (1, ""));
        assert!(
            err.starts_with("the zfs-fuse daemon is not running, and no 'zfs-fuse' was found"),
            "{err}"
        );
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A daemon that does not come up: its complaint is passed on.
#[test]
fn daemon_that_fails() {
    use std::os::unix::fs::PermissionsExt;
    let dir = std::env::temp_dir().join(format!("zpool-fails-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir(&dir).unwrap();
    let copy = dir.join("zpool");
    self::copy(env!("CARGO_BIN_EXE_zpool").as_ref(), &copy);
    let text = dir.join("text");
    std::fs::write(
        &text,
        "#!/bin/sh\necho 'zfs-fuse: no /dev/fuse' >&2\nexit 1\n",
    )
    .unwrap();
    std::fs::set_permissions(&text, std::fs::Permissions::from_mode(0o755)).unwrap();
    self::copy(&text, &dir.join("zfs-fuse"));
    let output = Command::new(&copy)
        .arg("list")
        .env("ZFS_FUSE_SOCKET", dir.join("control.sock"))
        .output()
        .unwrap();
    assert_eq!(
        texts(&output),
        (
            1,
            String::new(),
            "the zfs-fuse daemon did not start: zfs-fuse: no /dev/fuse\n\
             Start it by hand: zfs-fuse\n"
                .into()
        )
    );
    std::fs::remove_dir_all(&dir).unwrap();
}
