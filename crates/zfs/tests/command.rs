//! The real `zfs` against a daemon that is not.

use api::*;
use control::{path, serve, Handler, Sink};
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::sync::Arc;

struct Fake;

impl Handler for Fake {
    fn handle(&self, _: Peer, request: Request, out: &mut dyn Sink) -> Result<Reply, ApiError> {
        match request {
            // A long list comes in parts.
            Request::DatasetGet(_) => {
                let part = |range: std::ops::Range<u32>| {
                    Reply::Datasets(Answer {
                        found: range
                            .map(|n| Dataset {
                                name: format!("tank/fs{n:03}"),
                                kind: DatasetKind::Filesystem,
                                createtxg: 4,
                                guid: 1,
                                props: vec![],
                            })
                            .collect(),
                        failed: vec![],
                    })
                };
                out.send(part(0..400))?;
                out.send(part(400..800))?;
                Ok(part(800..1000))
            }
            Request::DatasetCreate(c) if c.name == "tank/a" => Err(ApiError::reason(
                base::Kind::Exists,
                "dataset already exists",
            )),
            Request::DatasetCreate(_) => Ok(Reply::Created(Created::default())),
            Request::MountAll { .. } => {
                out.send(Reply::Progress(Progress {
                    what: "Mounting ZFS filesystems".into(),
                    done: 1,
                    total: 2,
                }))?;
                Ok(Reply::Batch(Batch::default()))
            }
            _ => Ok(Reply::Done),
        }
    }
}

#[test]
fn over_the_socket() {
    let dir = std::env::temp_dir().join(format!("zfs-command-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let socket = dir.join("control.sock");
    path::prepare_dir(&socket).unwrap();
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || serve(listener, Arc::new(Fake)));
    let run = |line: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_zfs"))
            .args(line.split_whitespace())
            .env("ZFS_FUSE_SOCKET", &socket)
            .output()
            .unwrap();
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        (
            output.status.code().unwrap_or(-1),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    let (status, out, err) = run("list -H -o name");
    assert_eq!((status, err.as_str()), (0, ""));
    assert_eq!(out.lines().count(), 1000);
    assert!(out.ends_with("tank/fs999\n"));
    assert_eq!(run("create tank/testfs").0, 0);
    assert_eq!(
        run("create tank/a"),
        (
            1,
            String::new(),
            "cannot create 'tank/a': dataset already exists\n".into()
        )
    );
    // Progress is for terminals only.
    assert_eq!(run("mount -a"), (0, String::new(), String::new()));
    assert_eq!(
        run("zone tank").2,
        "zfs zone: not available in this version yet\n"
    );
    assert_eq!(run("").0, 2);
    assert_eq!(run("--help").0, 0);
    std::fs::remove_dir_all(&dir).unwrap();
}
