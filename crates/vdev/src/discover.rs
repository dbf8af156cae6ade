//! Discovery: reads the labels of devices and assembles the pools on them (pool format §6.1).

use crate::keys::{self, pool};
use crate::label::{self, Labels};
use crate::VdevTree;
use base::sync::MutexExt;
use base::{Result, Txg};
use disk::label::MIN_DEVICE;
use disk::{NvList, Uberblock, Value};
use env::{partition, Access, Env};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;

/// Key of [`PoolFound::config`]: an nvlist with, by the guid in decimal, the paths of the hot spares
/// and cache devices found, of which the pool itself says whether they are its own.
pub const AUX_PATHS: &str = "aux_paths";

/// Most top-level slots of an assembled configuration.
const MAX_TOPS: u64 = 4096;

/// Why a found pool may not be importable, or not whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// No device of top-level slot `id` was found.
    MissingTop(u64),
    /// A leaf was not found: guid, and the path it had.
    MissingLeaf(u64, Option<String>),
    /// The labels contradict themselves.
    BadConfig(String),
}

/// A pool as its labels describe it.
#[derive(Clone, Debug)]
pub struct PoolFound {
    /// Name in the newest label.
    pub name: String,
    /// Guid of the pool.
    pub guid: u64,
    /// 0 active, 1 exported, 2 destroyed.
    pub state: u64,
    /// Pool version.
    pub version: u64,
    /// Greatest txg of any label.
    pub txg: Txg,
    /// 0 if the labels name none.
    pub hostid: u64,
    /// Host that last wrote the pool; empty if the labels name none.
    pub hostname: String,
    /// The untrusted configuration: the keys of the newest label and a full `vdev_tree` with the
    /// paths of the devices found.
    pub config: NvList,
    /// Why the pool may not be importable, or not whole.
    pub problems: Vec<Problem>,
}

impl PoolFound {
    /// The tree of the untrusted configuration; nothing is opened.
    pub fn tree(&self, env: &Env) -> Result<VdevTree> {
        VdevTree::from_config(env.clone(), self.config.need_nvlist(pool::VDEV_TREE)?)
    }
}

/// Everything found on a set of devices.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// By name, then guid.
    pub pools: Vec<PoolFound>,
    /// Idle hot spares: guid → path.
    pub spares: BTreeMap<u64, String>,
    /// Cache devices: guid → path.
    pub l2cache: BTreeMap<u64, String>,
}

/// A device with a usable label.
struct Member {
    path: String,
    guid: u64,
    config: NvList,
    /// The newest of its labels that name another pool.
    other: Option<NvList>,
}

impl Member {
    /// The pool that the label belongs to.
    fn pool(&self) -> Option<u64> {
        self.config.get_u64(pool::POOL_GUID)
    }

    /// What is newest on the device.
    fn newest(&self, env: &Env) -> Option<Uberblock> {
        let tree = self.config.get_nvlist(pool::VDEV_TREE)?;
        let ashift = tree.get_u64(keys::ASHIFT)?;
        let disk = env.disks.open(&self.path, Access::Read).ok()?;
        label::best_uberblock(&*disk, ashift.try_into().ok()?, Txg::MAX)
    }
}

/// What the labels of a device say: the newest of them, and the newest of those that name another pool.
type Accepted = (NvList, Option<NvList>);

/// The configs of a device's labels that discovery uses: the labels must name a guid and a sensible
/// state and belong to a pool already; of several with the same guid the newest.
fn accept(labels: &Labels) -> Option<Accepted> {
    let state = |c: &NvList| c.get_u64(pool::STATE).unwrap_or(u64::MAX);
    let txg = |c: &NvList| c.get_txg(pool::TXG).unwrap_or_default();
    let mut first = 0;
    let own: Vec<&NvList> = labels
        .copies
        .iter()
        .flatten()
        .filter(|c| c.get_u64(keys::GUID).is_some_and(|g| g != 0))
        .filter(|c| {
            let s = state(c);
            s == pool::STATE_SPARE || s == pool::STATE_L2CACHE || (s <= 2 && !txg(c).is_none())
        })
        .filter(|c| {
            let g = c.get_u64(keys::GUID).unwrap_or(0);
            if first == 0 {
                first = g;
            }
            g == first
        })
        .collect();
    let newest = own.iter().max_by_key(|c| txg(c))?;
    let of = newest.get_u64(pool::POOL_GUID);
    let others = own.iter().filter(|c| c.get_u64(pool::POOL_GUID) != of);
    let other = others.max_by_key(|c| txg(c)).map(|c| (*c).clone());
    Some(((*newest).clone(), other))
}

/// The usable labels of a device, with its path. A regular file may hold a whole disk: its partitions
/// are `path#N`, if the environment has such names.
fn probe(env: &Env, path: &str) -> Vec<(String, Accepted)> {
    let mut out = Vec::new();
    let Ok(d) = env.disks.open(path, Access::Read) else {
        return out;
    };
    out.extend(accept(&label::read_labels(&*d)).map(|c| (path.to_string(), c)));
    let g = d.geometry();
    if g.is_block {
        return out;
    }
    let table = partition::table(g.size, &|at, len| {
        let mut buf = vec![0; len];
        d.read(at, &mut buf)?;
        Ok(buf)
    });
    for p in table.iter().filter(|p| p.len >= MIN_DEVICE) {
        let name = format!("{path}#{}", p.number);
        if let Ok(d) = env.disks.open(&name, Access::Read) {
            out.extend(accept(&label::read_labels(&*d)).map(|c| (name, c)));
        }
    }
    out
}

/// Probes `paths` (best names first) and assembles what belongs together; of several devices with one
/// guid the newest counts, then the one at its old place, then the first. Devices that cannot be
/// opened or have no label are passed over.
pub fn discover(env: &Env, paths: &[String]) -> Found {
    let slots: Vec<Mutex<Vec<(String, Accepted)>>> =
        paths.iter().map(|_| Mutex::default()).collect();
    env.cpu.par_io(paths.len(), &|i| {
        *slots[i].acquire() = probe(env, &paths[i])
    });
    let mut found = Found::default();
    let mut members: Vec<Member> = Vec::new();
    for (path, (config, other)) in slots.iter().flat_map(|s| std::mem::take(&mut *s.acquire())) {
        let guid = config.get_u64(keys::GUID).unwrap_or(0);
        match config.get_u64(pool::STATE) {
            Some(pool::STATE_SPARE) => {
                found.spares.entry(guid).or_insert(path);
            }
            Some(pool::STATE_L2CACHE) => {
                found.l2cache.entry(guid).or_insert(path);
            }
            _ => members.push(Member {
                path,
                guid,
                config,
                other,
            }),
        }
    }
    settle_guids(env, &mut members);
    let mut pools: BTreeMap<u64, Vec<Member>> = BTreeMap::new();
    for m in members {
        if let Some(p) = m.pool() {
            pools.entry(p).or_default().push(m);
        }
    }
    found.pools = pools
        .into_iter()
        .filter_map(|(g, m)| assemble(g, without_copies(env, m)))
        .collect();
    let mut aux = NvList::new();
    for (guid, path) in found.spares.iter().chain(&found.l2cache) {
        aux.set(&guid.to_string(), path.as_str());
    }
    if !found.spares.is_empty() || !found.l2cache.is_empty() {
        for p in &mut found.pools {
            p.config.set(AUX_PATHS, Value::NvList(aux.clone()));
        }
    }
    found
        .pools
        .sort_by(|a, b| (&a.name, a.guid).cmp(&(&b.name, b.guid)));
    found
}

/// After a crash while a pool got another guid some labels of a device have the new one and some the old one. The pool has the new
/// one if the txg of the new labels is on disk, on any of its devices.
fn settle_guids(env: &Env, members: &mut [Member]) {
    let mut torn: BTreeMap<(u64, u64), Txg> = BTreeMap::new();
    for m in members.iter() {
        let before = m.other.as_ref().and_then(|c| c.get_u64(pool::POOL_GUID));
        if let (Some(before), Some(after)) = (before, m.pool()) {
            let txg = m.config.get_txg(pool::TXG).unwrap_or_default();
            let first = torn.entry((before, after)).or_insert(txg);
            *first = txg.min(*first);
        }
    }
    for ((before, after), txg) in torn {
        let of_after = members.iter().filter(|m| m.pool() == Some(after));
        let mut newest = of_after.filter_map(|m| m.newest(env));
        if newest.any(|ub| ub.txg >= txg) {
            continue;
        }
        for m in members.iter_mut().filter(|m| m.pool() == Some(after)) {
            let old = m
                .other
                .take_if(|c| c.get_u64(pool::POOL_GUID) == Some(before));
            if let Some(old) = old {
                m.config = old;
            }
        }
    }
}

/// Of several devices with one guid — one device under several names, a copy of a disk, an image of
/// some time ago — the one with the newest uberblock. (Labels are no help, they change less often
/// than the pool.) Of equals the one that is where it was, or the one found first.
fn without_copies(env: &Env, mut members: Vec<Member>) -> Vec<Member> {
    let mut count: HashMap<u64, usize> = HashMap::new();
    for m in &members {
        *count.entry(m.guid).or_default() += 1;
    }
    let newest = |m: &Member| m.newest(env).map(|ub| ub.rank());
    let in_place = |m: &Member| {
        let tree = m.config.get_nvlist(pool::VDEV_TREE);
        tree.and_then(|t| path_of(t, m.guid, 0)) == Some(&m.path)
    };
    let rank = |m: &Member| (newest(m), in_place(m));
    let mut best = HashMap::new();
    for (i, m) in members
        .iter()
        .enumerate()
        .filter(|(_, m)| count[&m.guid] > 1)
    {
        let r = rank(m);
        let first = best.entry(m.guid).or_insert((r, i));
        if r > first.0 {
            *first = (r, i);
        }
    }
    let mut i = 0;
    members.retain(|m| {
        i += 1;
        best.get(&m.guid).is_none_or(|(_, b)| *b == i - 1)
    });
    members
}

/// Where the leaf with that guid was when the label was written.
fn path_of(vdev: &NvList, guid: u64, depth: usize) -> Option<&str> {
    if vdev.get_u64(keys::GUID) == Some(guid) {
        return vdev.get_str(keys::PATH);
    }
    if depth > 8 {
        return None;
    }
    let children = vdev.get_nvlist_array(keys::CHILDREN)?;
    children.iter().find_map(|c| path_of(c, guid, depth + 1))
}

fn assemble(guid: u64, mut members: Vec<Member>) -> Option<PoolFound> {
    let txg = |c: &NvList| c.get_txg(pool::TXG).unwrap_or_default();
    // Newest first; equals keep the order of the paths.
    members.sort_by_key(|m| std::cmp::Reverse(txg(&m.config)));
    let newest = members.first()?.config.clone();
    let mut problems = Vec::new();
    let mut paths: HashMap<u64, &str> = HashMap::new();
    for m in &members {
        paths.entry(m.guid).or_insert(&m.path);
    }
    // The newest tree of each top-level vdev, by slot.
    let mut seen = BTreeSet::new();
    let mut tops: BTreeMap<u64, NvList> = BTreeMap::new();
    for m in &members {
        let top = m.config.get_u64(pool::TOP_GUID).unwrap_or(0);
        let Some(tree) = m.config.get_nvlist(pool::VDEV_TREE) else {
            continue;
        };
        if !seen.insert(top) {
            continue;
        }
        let Some(id) = tree.get_u64(keys::ID) else {
            problems.push(Problem::BadConfig(format!(
                "{}: label without vdev id",
                m.path
            )));
            continue;
        };
        // A slot taken by a newer label keeps it: the older one was replaced or removed.
        tops.entry(id).or_insert_with(|| tree.clone());
    }
    // Labels of old software have no count: all slots up to the last one found.
    let last = tops.keys().next_back().copied();
    let count = newest
        .get_u64(pool::VDEV_CHILDREN)
        .unwrap_or_else(|| last.map_or(0, |id| id.saturating_add(1)))
        .min(MAX_TOPS);
    let holes = newest
        .get_u64_array(pool::HOLE_ARRAY)
        .unwrap_or(&[])
        .to_vec();
    let mut children = Vec::new();
    for id in 0..count {
        let mut slot = NvList::new();
        if holes.contains(&id) {
            slot.set(keys::TYPE, "hole");
            slot.set(keys::ID, id);
            slot.set(keys::GUID, 0u64);
        } else if let Some(mut tree) = tops.remove(&id) {
            set_paths(&mut tree, &paths, &mut problems, 0);
            slot = tree;
        } else {
            problems.push(Problem::MissingTop(id));
            slot.set(keys::TYPE, "missing");
            slot.set(keys::ID, id);
            slot.set(keys::GUID, 0u64);
        }
        children.push(slot);
    }
    let mut root = NvList::new();
    root.set(keys::TYPE, "root");
    root.set(keys::ID, 0u64);
    root.set(keys::GUID, guid);
    root.set(keys::CHILDREN, Value::NvListArray(children));
    let mut config = newest.clone();
    for key in [
        keys::GUID,
        pool::TOP_GUID,
        keys::IS_LOG,
        keys::IS_SPARE,
        keys::CREATE_TXG,
    ] {
        config.remove(key);
    }
    config.set(pool::VDEV_TREE, Value::NvList(root));
    let text = |key: &str| newest.get_str(key).unwrap_or_default().to_string();
    Some(PoolFound {
        name: text(pool::NAME),
        guid,
        state: newest.get_u64(pool::STATE).unwrap_or(0),
        version: newest.get_u64(pool::VERSION).unwrap_or(0),
        txg: txg(&newest),
        hostid: newest.get_u64(pool::HOSTID).unwrap_or(0),
        hostname: text(pool::HOSTNAME),
        config,
        problems,
    })
}

/// Puts the paths of found devices into a vdev nvlist; others are noted as problems.
fn set_paths(
    vdev: &mut NvList,
    paths: &HashMap<u64, &str>,
    problems: &mut Vec<Problem>,
    depth: usize,
) {
    // Deeper nesting is refused when the tree is built.
    if depth > 8 {
        return;
    }
    if matches!(vdev.get_str(keys::TYPE), Some("disk" | "file")) {
        let guid = vdev.get_u64(keys::GUID).unwrap_or(0);
        match paths.get(&guid) {
            Some(p) => {
                vdev.set(keys::PATH, *p);
            }
            None => {
                let path = vdev.get_str(keys::PATH).map(str::to_string);
                problems.push(Problem::MissingLeaf(guid, path));
            }
        }
    }
    for c in vdev
        .get_nvlist_array_mut(keys::CHILDREN)
        .into_iter()
        .flatten()
    {
        set_paths(c, paths, problems, depth + 1);
    }
}
