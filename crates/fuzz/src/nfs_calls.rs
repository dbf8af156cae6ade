//! What a client of the NFS server may say: records of calls, carried out in a file system on a disk in memory. It is made anew
//! every so many executions, so that it does not fill up.

use admin::alone::{self, Alone, MemoryDoor};
use admin::commands::{Commands, ROOT};
use admin::shares::options;
use admin::{pools, Admin};
use nfs::handle::FileSystem;
use nfs::{connection, Client, Export, Exports, Opened, Server};
use std::cell::RefCell;
use std::hint::black_box;
use std::sync::Arc;
use testkit::nfs::{Args, Client as Calls, Transport, MOUNT, NFS};
use vfs::{OfHead, Served};

/// Executions for which a file system is used.
const EXECUTIONS: usize = 2000;
/// Bytes of its disk.
const DISK: u64 = 96 << 20;

/// One shared file system, whatever guid a handle has: so that more of what is made up leads somewhere.
struct One(Export);

impl Exports for One {
    fn list(&self) -> Vec<Export> {
        vec![self.0.clone()]
    }

    fn find(&self, _: FileSystem) -> Option<Export> {
        Some(self.0.clone())
    }
}

struct World {
    server: Arc<Server>,
    executions: usize,
    _admin: Arc<Admin>,
}

fn world() -> base::Result<World> {
    let (env, disks) = env_sim::mem_env(3);
    disks.add("/dev/a", DISK);
    let process = Arc::new(Alone::new(env.clone(), pool::Tunables::default()));
    let door = Arc::new(MemoryDoor::default());
    let admin = Admin::new(env, alone::settings(), door, process);
    let failed = |e: api::ApiError| base::Error::new(base::Kind::Io, e.to_string());
    pools::create::create(&admin, ROOT, alone::pool_on("p", "/dev/a")).map_err(failed)?;
    Commands(admin.clone()).snapshot("p@s")?;
    let entry = admin.find("p").ok_or(base::Kind::NotFound)?;
    let ds = entry.pool.dsl().root_dataset()?;
    let mounted = entry.mounted(ds.object()).ok_or(base::Kind::NotFound)?;
    let from = OfHead::new(&admin, &entry, &ds, Vec::new(), Arc::default());
    let served = Served::new(mounted.zfs(), &entry.pool, Box::new(from));
    let share = options::parse("rw,no_root_squash,insecure")?;
    let export = Export {
        fs: FileSystem {
            pool: entry.pool.guid(),
            dataset: ds.phys().guid,
        },
        path: b"/p".to_vec(),
        share: Arc::new(share.ok_or(base::Kind::Invalid)?),
        opened: Opened::new(&served, 7)?,
    };
    let server = Arc::new(Server::new(Box::new(One(export))));
    // Every world has the file that the handles of good inputs lead to.
    let mut c = Calls::new(Direct(server.clone()));
    c.xid = u32::MAX / 2;
    let root = c.mount("/p").map_err(|_| base::Kind::NotFound)?;
    c.create(&root, "f", 0o644, true)
        .map_err(|_| base::Kind::NotFound)?;
    Ok(World {
        server,
        executions: 0,
        _admin: admin,
    })
}

fn peer() -> Client {
    Client::new(([127, 0, 0, 1], 700).into())
}

/// Carries out the calls of a stream of records.
pub fn calls(b: &[u8]) {
    thread_local! {
        static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
    }
    // Taken, so that one in which something panicked is not used again.
    let mut w = match WORLD.take() {
        Some(w) if w.executions < EXECUTIONS => w,
        _ => world().expect("a file system in memory"),
    };
    w.executions += 1;
    let (mut from, client) = (b, peer());
    while let Ok(Some(record)) = connection::read_record(&mut from, connection::MOST, &|| ()) {
        if black_box(w.server.handle(&client, &record)).is_err() {
            break;
        }
    }
    WORLD.set(Some(w));
}

/// Calls go into the server as they are.
struct Direct(Arc<Server>);

impl Transport for Direct {
    fn exchange(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        self.0.handle(&peer(), message).ok()?
    }
}

/// A record of a message.
fn record(message: &[u8]) -> Vec<u8> {
    let head = (message.len() as u32 | 1 << 31).to_be_bytes();
    [&head, message].concat()
}

/// Good inputs: each procedure, and a few after each other.
pub fn good() -> Vec<Vec<u8>> {
    let Ok(w) = world() else { return Vec::new() };
    let mut c = Calls::new(Direct(w.server.clone()));
    let Ok(root) = c.mount("/p") else {
        return Vec::new();
    };
    let file = c.lookup(&root, "f").map(|f| f.0).unwrap_or_default();
    let snapshot = c.walk(&root, ".zfs/snapshot/s").map(|s| s.0);
    let snapshot = snapshot.unwrap_or_default();
    let named = |h: &[u8], name: &[u8]| Args::new().bytes(h).bytes(name);
    let list = || Args::new().bytes(&root).u64(0).u64(0);
    let calls = [
        (1, Args::new().bytes(&root)),
        (
            2,
            Args::new()
                .bytes(&file)
                .set(Some(0o600), Some(9))
                .u32(1)
                .u32(5)
                .u32(6),
        ),
        (3, named(&root, b"f")),
        (3, named(&root, b".zfs")),
        (3, named(&snapshot, b"..")),
        (4, Args::new().bytes(&root).u32(0x3f)),
        (5, Args::new().bytes(&file)),
        (6, Args::new().bytes(&file).u64(0).u32(4096)),
        (
            7,
            Args::new()
                .bytes(&file)
                .u64(3)
                .u32(5)
                .u32(2)
                .bytes(b"hello"),
        ),
        (8, named(&root, b"g").u32(1).set(Some(0o644), Some(0))),
        (8, named(&root, b"h").u32(2).u64(99)),
        (9, named(&root, b"d").set(Some(0o755), None)),
        (10, named(&root, b"l").set(None, None).bytes(b"/there")),
        (
            11,
            named(&root, b"n")
                .u32(4)
                .set(Some(0o600), None)
                .u32(1)
                .u32(3),
        ),
        (12, named(&root, b"g")),
        (13, named(&root, b"d")),
        (14, named(&root, b"g").bytes(&root).bytes(b"i")),
        (15, Args::new().bytes(&file).bytes(&root).bytes(b"j")),
        (16, list().u32(4096)),
        (17, list().u32(4096).u32(4096)),
        (18, Args::new().bytes(&root)),
        (19, Args::new().bytes(&root)),
        (20, Args::new().bytes(&snapshot)),
        (21, Args::new().bytes(&file).u64(0).u32(0)),
    ];
    let mut out = Vec::new();
    let mut all = Vec::new();
    for (procedure, args) in &calls {
        let message = record(&c.message(NFS, *procedure, args));
        all.extend_from_slice(&message);
        out.push(message);
    }
    out.push(all);
    out.push(record(&c.message(MOUNT, 1, &Args::new().bytes(b"/p"))));
    out.push(record(&c.message(MOUNT, 5, &Args::new())));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What good inputs name is there in every world, also in those that are made later.
    #[test]
    fn good_handles_lead_to_the_same_file_in_every_world() {
        let handle = || {
            let w = world().unwrap();
            let mut c = Calls::new(Direct(w.server.clone()));
            let root = c.mount("/p").unwrap();
            (root.clone(), c.lookup(&root, "f").unwrap().0)
        };
        assert_eq!(handle(), handle());
    }
}
