//! Client and server against each other over a real socket.

use api::*;
use control::{path, serve, Client, Handler, Sink};
use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;

struct Fake;

impl Handler for Fake {
    fn handle(&self, peer: Peer, request: Request, out: &mut dyn Sink) -> Result<Reply, ApiError> {
        assert_eq!(peer.pid as u32, std::process::id());
        match request {
            Request::Ping {} => Ok(Reply::Done),
            Request::PoolHistory { .. } => {
                for time in 0..3 {
                    out.send(Reply::Progress(Progress::default()))?;
                    out.send(Reply::History(vec![HistoryRecord {
                        time,
                        ..HistoryRecord::default()
                    }]))?;
                }
                Ok(Reply::History(vec![HistoryRecord::default()]))
            }
            Request::PoolSync { pool, .. } if pool == "panic" => panic!("wanted by the test"),
            Request::PoolSync { pool, .. } => Err(ApiError::no_such_pool(&pool)),
            _ => Err(base::Kind::Unsupported.into()),
        }
    }
}

fn start(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("zfs-api-{name}-{}", std::process::id()));
    let socket = dir.join("control.sock");
    let _ = std::fs::remove_dir_all(&dir);
    path::prepare_dir(&socket).unwrap();
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || serve(listener, Arc::new(Fake)));
    socket
}

#[test]
fn calls() {
    let socket = start("calls");
    let mut c = Client::connect_at(&socket).unwrap().unwrap();
    assert_eq!(c.call(&Request::Ping {}), Ok(Reply::Done));
    let mut ticks = 0;
    let history = c
        .call_with(
            &Request::PoolHistory {
                pool: "x".into(),
                internal: false,
            },
            &mut |_| ticks += 1,
        )
        .unwrap();
    assert!(matches!(history, Reply::History(h) if h.len() == 4));
    assert_eq!(ticks, 3);
    let sync = |pool: &str| Request::PoolSync {
        pool: pool.into(),
        force: false,
    };
    assert_eq!(
        c.call(&sync("x")).unwrap_err().message,
        "cannot open 'x': no such pool"
    );
    // A panic of the handler is answered, and the connection lives on.
    assert!(c
        .call(&sync("panic"))
        .unwrap_err()
        .message
        .contains("internal error"));
    assert_eq!(c.call(&Request::Ping {}), Ok(Reply::Done));
    std::fs::remove_dir_all(socket.parent().unwrap()).unwrap();
}

#[test]
fn hostile_input_does_not_disturb_others() {
    let socket = start("hostile");
    for bytes in [&b"\0\0\0"[..], b"{\0", b"[[[[", b"\xff\0", &[b'a'; 70_000]] {
        let mut s = UnixStream::connect(&socket).unwrap();
        let _ = s.write_all(bytes);
    }
    let mut s = UnixStream::connect(&socket).unwrap();
    let chunk = vec![b'z'; 1 << 20];
    // The server hangs up on an endless message.
    assert!((0..64).any(|_| s.write_all(&chunk).is_err()));
    let mut c = Client::connect_at(&socket).unwrap().unwrap();
    assert_eq!(c.call(&Request::Ping {}), Ok(Reply::Done));
    std::fs::remove_dir_all(socket.parent().unwrap()).unwrap();
}

#[test]
fn nobody_there() {
    let socket = std::env::temp_dir().join(format!("nobody-{}/x.sock", std::process::id()));
    assert!(Client::connect_at(&socket).unwrap().is_none());
}
