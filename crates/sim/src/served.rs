//! A file system in service, simulated: two doors with clients that cache what they may, open handles, and beside them snapshots,
//! rollbacks, receives into a mounted copy, and lookups in `.zfs` while snapshots are destroyed.
//!
//! Everything is drawn from a seed and happens on one thread. A model knows what each name and each handle must show. What is done,
//! what comes of it and what clients are told is the trace: the same seed gives the same.

use admin::alone::{self, Alone, MemoryDoor, Service};
use admin::commands::{told, Commands, ROOT};
use admin::datasets::{receive, send};
use admin::door::Held;
use admin::{pools, Admin};
use api::{Receive, Send as Sending};
use base::sync::MutexExt;
use base::{bail, Data, Kind, Result};
use env::Rng;
use env_sim::SeededRng;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use vfs::{Door, Lookup, Nobody, OfHead, OpenHow, Served, Subscriber, Suspended, Truth, WriteHow};
use zpl::{New, Zfs};

/// Names that files get.
const NAMES: u64 = 12;
/// Bytes of a file at most.
const MOST: u64 = 9000;
/// The file system that is used, and the copy that is received.
const HEAD: &str = "p/a";
const COPY: &str = "p/copy";

/// What a client keeps.
#[derive(Default)]
struct Cache {
    /// Nodes by name; none: there is no such name. Each node is one lookup.
    names: BTreeMap<String, Option<u64>>,
    pages: BTreeMap<u64, Vec<u8>>,
    /// Lookups to be dropped.
    dropped: Vec<u64>,
    /// What it was told since it was asked last.
    told: Vec<String>,
}

impl Cache {
    fn forget(&mut self, name: &str) {
        self.dropped.extend(self.names.remove(name).flatten());
    }
}

#[derive(Default)]
struct Client(Mutex<Cache>);

impl Subscriber for Client {
    fn attributes(&self, node: u64) {
        self.0.acquire().told.push(format!("attributes {node}"));
    }

    fn attributes_later(&self, node: u64) {
        self.attributes(node);
    }

    fn content(&self, node: u64, _: Option<(u64, u64)>) {
        let mut c = self.0.acquire();
        c.pages.remove(&node);
        c.told.push(format!("content {node}"));
    }

    fn name(&self, parent: u64, name: &[u8]) {
        let name = String::from_utf8_lossy(name).into_owned();
        let mut c = self.0.acquire();
        c.forget(&name);
        c.told.push(format!("name {parent} {name}"));
    }

    fn all_names(&self) {
        let mut c = self.0.acquire();
        let all: Vec<_> = c.names.keys().cloned().collect();
        all.iter().for_each(|n| c.forget(n));
        c.told.push("all names".into());
    }

    fn grow(&self, _: u64, _: u64, _: &[u8]) -> bool {
        false
    }

    fn tell(&self, files: &[Truth], _: &(dyn Fn(Option<u32>) + Sync)) -> Vec<bool> {
        vec![false; files.len()]
    }
}

/// A file system in service with its doors and clients.
struct InService {
    served: Arc<Served>,
    ways: Vec<(Arc<Door>, Arc<Client>)>,
    /// What was wrong in the middle of an administrative operation.
    found: Arc<Mutex<Vec<String>>>,
}

/// Suspended, with somebody who looks whether it is.
struct Watched(Suspended, Vec<Arc<Door>>, Arc<Mutex<Vec<String>>>);

impl Held for Watched {
    fn resume(self: Box<Self>, zfs: &Arc<Zfs>) -> Result<()> {
        let Watched(suspended, doors, found) = *self;
        for door in doors {
            match door.getattr(&Nobody, vfs::ROOT) {
                Err(e) if e.kind == Kind::Interrupted => {}
                other => found.acquire().push(format!(
                    "a request was let in while suspended: {:?}",
                    other.map(|a| a.attr.size)
                )),
            }
        }
        suspended.resume(zfs.clone())
    }
}

impl InService {
    /// The file of a snapshot.
    fn file_then(&self, way: usize, snap: &str, name: &str) -> Result<u64> {
        let mut node = vfs::ROOT;
        for part in [".zfs", "snapshot", snap, name] {
            node = match self.ways[way].0.lookup(&Nobody, node, part.as_bytes())? {
                Lookup::Found(e) => e.node,
                Lookup::Missing(_) => return Err(Kind::NotFound.into()),
            };
        }
        Ok(node)
    }
}

impl Service for InService {
    fn suspend(&self) -> Result<Box<dyn Held>> {
        let doors = self.ways.iter().map(|w| w.0.clone()).collect();
        let suspended = self.served.suspend()?;
        Ok(Box::new(Watched(suspended, doors, self.found.clone())))
    }

    fn close(&self, object: u64) {
        // Somebody looks into all of them at that moment.
        if let Ok(all) = self.served.ctl().list(vfs::Dir::Snapshots) {
            for line in all {
                let snap = String::from_utf8_lossy(&line.name).into_owned();
                let _ = self.file_then(0, &snap, "n0");
            }
        }
        self.served.ctl().close(object);
    }

    fn close_where(&self, which: &dyn Fn(u64) -> bool) {
        self.served.ctl().close_chosen(which);
    }

    fn end(&self) {
        self.ways.iter().for_each(|(door, _)| door.close());
    }
}

type Services = Arc<Mutex<BTreeMap<String, Arc<InService>>>>;

/// What a file system must show: files by name, their content.
#[derive(Clone, Default)]
struct State {
    names: BTreeMap<String, u64>,
    data: BTreeMap<u64, Vec<u8>>,
}

/// A file that a client has open.
struct Open {
    way: usize,
    node: u64,
    file: u64,
    handle: u64,
}

/// A file of a snapshot that a client has open.
struct Then {
    way: usize,
    node: u64,
    snap: String,
    content: Vec<u8>,
}

/// One simulated life.
struct Life {
    admin: Arc<Admin>,
    services: Services,
    rng: SeededRng,
    head: State,
    snaps: BTreeMap<String, State>,
    /// Snapshots, the oldest first.
    order: Vec<String>,
    open: Vec<Open>,
    then: Vec<Then>,
    copy: Option<State>,
    /// The snapshot that the copy has of the head.
    base: Option<String>,
    open_in_copy: Vec<Open>,
    /// Files and snapshots made so far.
    made: u64,
    trace: Vec<String>,
}

/// Lives for so many steps; what was done and told.
///
/// # Errors
/// What was wrong, with the last steps.
pub fn live(seed: u64, steps: u64) -> std::result::Result<Vec<String>, String> {
    let mut life = Life::begin(seed).map_err(|e| format!("seed {seed}: {e}"))?;
    for step in 0..steps {
        let done = life.step().and_then(|()| life.look_back());
        if let Err(e) = done {
            let from = life.trace.len().saturating_sub(12);
            let last = life.trace[from..].join("\n");
            return Err(format!("seed {seed}, step {step}: {e}\n{last}"));
        }
    }
    Ok(life.trace)
}

impl Life {
    fn begin(seed: u64) -> Result<Life> {
        let (env, disks) = env_sim::mem_env(seed);
        disks.add("/dev/a", 96 << 20);
        let door = Arc::new(MemoryDoor::default());
        let process = Arc::new(Alone::new(env.clone(), pool::Tunables::default()));
        let admin = Admin::new(env, alone::settings(), door.clone(), process);
        let services = Services::default();
        let all = services.clone();
        door.serve_with(move |m, head| {
            let from = OfHead::new(m.admin, m.entry, m.ds, Vec::new(), Arc::default());
            let served = Served::new(head.zfs(), &m.entry.pool, Box::new(from));
            let way = |_| -> Result<_> {
                let (door, client) = (Door::open_to(&served)?, Arc::new(Client::default()));
                door.subscribe(client.clone());
                Ok((door, client))
            };
            let ways = (0..2).map(way).collect::<Result<Vec<_>>>()?;
            let found = Arc::default();
            let service = Arc::new(InService {
                served,
                ways,
                found,
            });
            all.acquire().insert(m.ds.full_name(), service.clone());
            Ok(service)
        });
        pools::create::create(&admin, ROOT, alone::pool_on("p", "/dev/a")).map_err(told)?;
        Commands(admin.clone()).create(HEAD, &[])?;
        Ok(Life {
            admin,
            services,
            rng: SeededRng::new(seed ^ 0x5eed),
            head: State::default(),
            snaps: BTreeMap::new(),
            order: Vec::new(),
            open: Vec::new(),
            then: Vec::new(),
            copy: None,
            base: None,
            open_in_copy: Vec::new(),
            made: 0,
            trace: Vec::new(),
        })
    }

    fn below(&self, n: u64) -> u64 {
        self.rng.u64() % n.max(1)
    }

    fn service(&self, name: &str) -> Result<Arc<InService>> {
        let all = self.services.acquire();
        all.get(name).cloned().ok_or_else(|| Kind::NotFound.into())
    }

    fn note(&mut self, what: impl Into<String>) {
        self.trace.push(what.into());
    }

    fn bytes(&self) -> Vec<u8> {
        let (len, byte) = (self.below(MOST), self.below(250) as u8);
        vec![byte; len as usize + 1]
    }

    fn step(&mut self) -> Result<()> {
        let name = format!("n{}", self.below(NAMES));
        let way = self.below(2) as usize;
        match self.below(20) {
            0..=3 => self.create(way, &name),
            4 | 5 => self.write(),
            6..=8 => self.read_open(),
            9 | 10 => self.read_name(way, &name),
            11 => self.unlink(way, &name),
            12 => self.rename(way, &name),
            13 => self.close_one(),
            14 => self.snapshot(),
            15 => self.roll_back(),
            16 => self.destroy(),
            17 => self.look_then(way, &name),
            18 => self.receive(),
            _ => self.read_copy(way, &name),
        }
    }

    /// What clients were told, and what they dropped because of it.
    fn look_back(&mut self) -> Result<()> {
        let all: Vec<_> = self.services.acquire().clone().into_iter().collect();
        for (name, s) in all {
            if let Some(e) = s.found.acquire().first() {
                bail!(Damaged, "{e}");
            }
            for (way, (door, client)) in s.ways.iter().enumerate() {
                let mut c = client.0.acquire();
                let (told, dropped) = (std::mem::take(&mut c.told), std::mem::take(&mut c.dropped));
                drop(c);
                for node in dropped {
                    door.forget(node, 1);
                    self.evict(&name, client, (way, node));
                }
                told.iter()
                    .for_each(|t| self.trace.push(format!("  {name} {way} is told: {t}")));
            }
        }
        Ok(())
    }

    /// The pages of a node that a client knows by no name and has not open any more go with it, as a kernel's do: nobody tells it
    /// of changes.
    fn evict(&self, head: &str, client: &Client, (way, node): (usize, u64)) {
        let open = match head {
            HEAD => &self.open,
            _ => &self.open_in_copy,
        };
        let mut c = client.0.acquire();
        let is_named = c.names.values().any(|n| *n == Some(node));
        if !is_named && !open.iter().any(|o| (o.way, o.node) == (way, node)) {
            c.pages.remove(&node);
        }
    }

    fn create(&mut self, way: usize, name: &str) -> Result<()> {
        if self.head.names.contains_key(name) {
            return Ok(());
        }
        let s = self.service(HEAD)?;
        let (door, client) = &s.ways[way];
        let how = OpenHow {
            read: true,
            write: true,
            ..OpenHow::default()
        };
        let new = New::file(0o100644, 0);
        let (entry, opened) = door.create(&Nobody, vfs::ROOT, name.as_bytes(), &new, how)?;
        client.0.acquire().forget(name);
        self.made += 1;
        let file = self.made;
        let data = self.bytes();
        let how = WriteHow::default();
        door.write(&Nobody, entry.node, 0, Data::from(&data[..]), how)?;
        client.0.acquire().pages.remove(&entry.node);
        self.note(format!("create {way} {name}: {}", entry.node));
        self.head.names.insert(name.into(), file);
        self.head.data.insert(file, data);
        self.open.push(Open {
            way,
            node: entry.node,
            file,
            handle: opened.handle,
        });
        Ok(())
    }

    /// Writes through an open handle, from the beginning.
    fn write(&mut self) -> Result<()> {
        let Some(at) = self.some(self.open.len()) else {
            return Ok(());
        };
        let Open {
            way, node, file, ..
        } = self.open[at];
        let s = self.service(HEAD)?;
        let data = self.bytes();
        let (door, client) = &s.ways[way];
        let done = door.write(&Nobody, node, 0, Data::from(&data[..]), WriteHow::default());
        client.0.acquire().pages.remove(&node);
        self.note(format!(
            "write {way} {node}: {:?}",
            done.as_ref().map_err(|e| e.kind)
        ));
        let stale = done.as_ref().is_err_and(|e| e.kind == Kind::Stale);
        match self.head.data.get_mut(&file) {
            Some(content) if done.is_ok() => {
                content.resize(content.len().max(data.len()), 0);
                content[..data.len()].copy_from_slice(&data);
                Ok(())
            }
            None if stale => Ok(()),
            there => bail!(
                Damaged,
                "a handle of a file that is {} answers {done:?}",
                if there.is_some() { "there" } else { "gone" }
            ),
        }
    }

    fn some(&self, of: usize) -> Option<usize> {
        (of > 0).then(|| self.below(of as u64) as usize)
    }

    /// The content of a node as a client sees it: from its cache if that has it.
    fn content(s: &InService, way: usize, node: u64) -> Result<Vec<u8>> {
        let (door, client) = &s.ways[way];
        if let Some(pages) = client.0.acquire().pages.get(&node) {
            return Ok(pages.clone());
        }
        let mut out = Vec::new();
        let size = 2 * MOST as usize;
        door.read(&Nobody, node, (0, size), true, &mut |b, r| {
            out.extend_from_slice(&b[r])
        })?;
        client.0.acquire().pages.insert(node, out.clone());
        Ok(out)
    }

    fn judge(got: Result<Vec<u8>>, want: Option<&Vec<u8>>, what: &str) -> Result<()> {
        match (got, want) {
            (Ok(got), Some(want)) if got == *want => Ok(()),
            (Err(e), None) if matches!(e.kind, Kind::Stale | Kind::NotFound) => Ok(()),
            (got, want) => bail!(
                Damaged,
                "{what}: {:?} bytes instead of {:?}",
                got.map(|g| g.len()),
                want.map(Vec::len)
            ),
        }
    }

    fn read_open(&mut self) -> Result<()> {
        let Some(at) = self.some(self.open.len()) else {
            return Ok(());
        };
        let Open {
            way, node, file, ..
        } = self.open[at];
        let s = self.service(HEAD)?;
        // Not what its own cache has: a program that asks past it.
        s.ways[way].1 .0.acquire().pages.remove(&node);
        let got = Self::content(&s, way, node);
        self.note(format!("read {way} {node}"));
        Self::judge(got, self.head.data.get(&file), "an open file")
    }

    /// Where a name leads as a client sees it.
    fn find(s: &InService, way: usize, name: &str) -> Result<Option<u64>> {
        let (door, client) = &s.ways[way];
        if let Some(node) = client.0.acquire().names.get(name) {
            return Ok(*node);
        }
        let found = match door.lookup(&Nobody, vfs::ROOT, name.as_bytes())? {
            Lookup::Found(e) => Some(e.node),
            Lookup::Missing(_) => None,
        };
        client.0.acquire().names.insert(name.into(), found);
        Ok(found)
    }

    fn read_name(&mut self, way: usize, name: &str) -> Result<()> {
        let s = self.service(HEAD)?;
        let found = Self::find(&s, way, name)?;
        self.note(format!("look {way} {name}: {found:?}"));
        let file = self.head.names.get(name).copied();
        match (found, file) {
            (Some(node), Some(file)) => {
                let got = Self::content(&s, way, node);
                Self::judge(got, self.head.data.get(&file), "a file by its name")?;
                if self.below(4) == 0 {
                    self.keep_open(&s, way, name, file)?;
                }
                Ok(())
            }
            (None, None) => Ok(()),
            _ => bail!(Damaged, "'{name}' leads to {found:?}, instead of {file:?}"),
        }
    }

    /// Opens a file that is there, with a lookup of its own.
    fn keep_open(&mut self, s: &InService, way: usize, name: &str, file: u64) -> Result<()> {
        let door = &s.ways[way].0;
        let Lookup::Found(e) = door.lookup(&Nobody, vfs::ROOT, name.as_bytes())? else {
            bail!(Damaged, "'{name}' is gone");
        };
        let how = OpenHow {
            read: true,
            ..OpenHow::default()
        };
        let handle = door.open(&Nobody, e.node, how)?.handle;
        let node = e.node;
        self.note(format!("open {way} {name}: {node}"));
        self.open.push(Open {
            way,
            node,
            file,
            handle,
        });
        Ok(())
    }

    fn is_open(&self, file: u64) -> bool {
        self.open.iter().any(|o| o.file == file)
    }

    fn unlinked(&mut self, file: Option<u64>) {
        if let Some(file) = file.filter(|f| !self.is_open(*f)) {
            self.head.data.remove(&file);
        }
    }

    fn unlink(&mut self, way: usize, name: &str) -> Result<()> {
        let s = self.service(HEAD)?;
        let (door, client) = &s.ways[way];
        let done = door.unlink(&Nobody, vfs::ROOT, name.as_bytes());
        client.0.acquire().forget(name);
        self.note(format!("unlink {way} {name}"));
        match self.head.names.remove(name) {
            Some(file) => {
                done?;
                self.unlinked(Some(file));
                Ok(())
            }
            None if done.as_ref().is_err_and(|e| e.kind == Kind::NotFound) => Ok(()),
            None => bail!(Damaged, "'{name}' was removed, which is not there"),
        }
    }

    fn rename(&mut self, way: usize, name: &str) -> Result<()> {
        let to = format!("n{}", self.below(NAMES));
        let Some(file) = self.head.names.get(name).copied() else {
            return Ok(());
        };
        if to == name {
            return Ok(());
        }
        let s = self.service(HEAD)?;
        let (door, client) = &s.ways[way];
        let (a, b) = ((vfs::ROOT, name.as_bytes()), (vfs::ROOT, to.as_bytes()));
        door.rename(&Nobody, a, b, 0)?;
        let mut c = client.0.acquire();
        c.forget(name);
        c.forget(&to);
        drop(c);
        self.note(format!("rename {way} {name} {to}"));
        self.head.names.remove(name);
        let before = self.head.names.insert(to, file);
        self.unlinked(before);
        Ok(())
    }

    fn close_one(&mut self) -> Result<()> {
        let Some(at) = self.some(self.open.len()) else {
            return Ok(());
        };
        let Open {
            way,
            node,
            file,
            handle,
        } = self.open.swap_remove(at);
        let s = self.service(HEAD)?;
        let (door, client) = &s.ways[way];
        door.release(node, handle);
        door.forget(node, 1);
        self.evict(HEAD, client, (way, node));
        self.note(format!("close {way} {node}"));
        let named = self.head.names.values().any(|f| *f == file);
        if !named && !self.is_open(file) {
            self.head.data.remove(&file);
        }
        Ok(())
    }

    fn snapshot(&mut self) -> Result<()> {
        self.made += 1;
        let snap = format!("s{}", self.made);
        Commands(self.admin.clone()).snapshot(&format!("{HEAD}@{snap}"))?;
        self.note(format!("snapshot {snap}"));
        self.snaps.insert(snap.clone(), self.head.clone());
        self.order.push(snap);
        Ok(())
    }

    fn roll_back(&mut self) -> Result<()> {
        let Some(at) = self.some(self.order.len()) else {
            return Ok(());
        };
        let snap = self.order[at].clone();
        self.note(format!("rollback {snap}"));
        Commands(self.admin.clone()).rollback(&format!("{HEAD}@{snap}"))?;
        for gone in self.order.split_off(at + 1) {
            self.snaps.remove(&gone);
        }
        let Some(state) = self.snaps.get(&snap).cloned() else {
            bail!(Damaged, "no model of {snap}");
        };
        self.head = state;
        // What has no name there stays for those who have it open.
        let named: BTreeSet<u64> = self.head.names.values().copied().collect();
        let held: BTreeSet<u64> = self.open.iter().map(|o| o.file).collect();
        self.head
            .data
            .retain(|f, _| named.contains(f) || held.contains(f));
        Ok(())
    }

    fn destroy(&mut self) -> Result<()> {
        let Some(at) = self.some(self.order.len()) else {
            return Ok(());
        };
        let snap = self.order[at].clone();
        if self.base.as_ref() == Some(&snap) {
            return Ok(());
        }
        self.note(format!("destroy {snap}"));
        Commands(self.admin.clone()).destroy(&format!("{HEAD}@{snap}"))?;
        self.order.remove(at);
        self.snaps.remove(&snap);
        Ok(())
    }

    /// A file of a snapshot by its name, and one that is open.
    fn look_then(&mut self, way: usize, name: &str) -> Result<()> {
        let s = self.service(HEAD)?;
        if let Some(at) = self.some(self.order.len()) {
            let snap = self.order[at].clone();
            let found = s.file_then(way, &snap, name);
            self.note(format!("look {way} {snap}/{name}"));
            let state = &self.snaps[&snap];
            let want = state.names.get(name).and_then(|f| state.data.get(f));
            let node = found.as_ref().ok().copied();
            let got = found.and_then(|node| Self::content(&s, way, node));
            Self::judge(got, want, "a file of a snapshot")?;
            if let (Some(node), Some(content)) = (node, want.cloned()) {
                let snap = snap.clone();
                self.then.push(Then {
                    way,
                    node,
                    snap,
                    content,
                });
            }
        }
        if let Some(at) = self.some(self.then.len()) {
            let t = &self.then[at];
            let here = self.snaps.contains_key(&t.snap);
            s.ways[t.way].1 .0.acquire().pages.remove(&t.node);
            let got = Self::content(&s, t.way, t.node);
            Self::judge(
                got,
                Some(&t.content).filter(|_| here),
                "an open file of a snapshot",
            )?;
        }
        Ok(())
    }

    /// The newest snapshot goes to the copy, while that is mounted and in use.
    fn receive(&mut self) -> Result<()> {
        let Some(snap) = self.order.last().cloned() else {
            return Ok(());
        };
        let kept = self.base.as_ref().is_none_or(|b| self.order.contains(b));
        if !kept || self.base.as_ref() == Some(&snap) {
            return Ok(());
        }
        let ask = Sending {
            target: format!("{HEAD}@{snap}"),
            from: self.base.as_ref().map(|b| format!("{HEAD}@{b}")),
            ..Sending::default()
        };
        let mut stream = Vec::new();
        send::send(&self.admin, ROOT, &ask, Some(&mut stream), &mut |_| {}).map_err(told)?;
        let ask = Receive {
            target: COPY.into(),
            force: true,
            command: format!("zfs receive -F {COPY}"),
            ..Receive::default()
        };
        self.note(format!("receive {snap}"));
        receive::receive(&self.admin, ROOT, &ask, &stream[..], &mut |_| {}).map_err(told)?;
        let mut state = self.snaps.get(&snap).cloned().unwrap_or_default();
        let named: BTreeSet<u64> = state.names.values().copied().collect();
        state.data.retain(|f, _| named.contains(f));
        // What has no name in the snapshot may stay for those who have it open, or not.
        self.open_in_copy
            .retain(|o| named.contains(&o.file) || !self.snaps[&snap].data.contains_key(&o.file));
        self.copy = Some(state);
        self.base = Some(snap);
        Ok(())
    }

    fn read_copy(&mut self, way: usize, name: &str) -> Result<()> {
        let Some(state) = self.copy.clone() else {
            return Ok(());
        };
        let s = self.service(COPY)?;
        let found = Self::find(&s, way, name)?;
        self.note(format!("look {way} copy/{name}: {found:?}"));
        let file = state.names.get(name).copied();
        match (found, file) {
            (Some(node), Some(file)) => {
                let got = Self::content(&s, way, node);
                Self::judge(got, state.data.get(&file), "a file of the copy")?;
                let Lookup::Found(e) = s.ways[way].0.lookup(&Nobody, vfs::ROOT, name.as_bytes())?
                else {
                    bail!(Damaged, "'{name}' is gone from the copy");
                };
                let node = e.node;
                self.open_in_copy.push(Open {
                    way,
                    node,
                    file,
                    handle: 0,
                });
            }
            (None, None) => {}
            _ => bail!(
                Damaged,
                "'{name}' of the copy leads to {found:?}, not {file:?}"
            ),
        }
        if let Some(at) = self.some(self.open_in_copy.len()) {
            let Open {
                way, node, file, ..
            } = self.open_in_copy[at];
            s.ways[way].1 .0.acquire().pages.remove(&node);
            let got = Self::content(&s, way, node);
            Self::judge(got, state.data.get(&file), "an open file of the copy")?;
        }
        Ok(())
    }
}
