//! Administration of the simulated pool through `admin`, with a door in memory.

use crate::keys;
use crate::rig::{self, full, path, Fs, Layout, HALF, POOL};
use crate::rights;
use admin::alone::{self, Alone, MemoryDoor};
use admin::commands::{told, Commands, ROOT};
use admin::datasets::{create, mount, permissions, receive, send, set, snapshots};
use admin::pools::agent::Agent;
use admin::{pools, Admin, PoolEntry};
use api::{
    Change, DatasetCreate, Delegate, Delegation, DeviceAttach, ImportScan, Peer, PoolCreate,
    PoolImport, PoolScrub, PoolSplit, ScrubAction, SnapshotCreate, VdevClass, VdevKind, VdevSpec,
};
use base::sync::MutexExt;
use base::{bail, Kind, Result};
use disk::props;
use std::sync::{Arc, Mutex};
use stream::Image;
use vdev::GroupKind;

/// Where a file system is mounted.
pub fn place(fs: &str) -> String {
    format!("/{fs}.mount")
}

/// One process's administration.
pub struct Desk {
    admin: Arc<Admin>,
    agent: Mutex<Agent>,
}

impl Desk {
    pub fn new(env: env::Env) -> Desk {
        let settings = alone::settings();
        let process = Alone::new(env.clone(), rig::tunables());
        let door = MemoryDoor::default();
        Desk {
            admin: Admin::new(env, settings, Arc::new(door), Arc::new(process)),
            agent: Mutex::default(),
        }
    }

    fn entry(&self) -> Result<Arc<PoolEntry>> {
        self.admin.find(POOL).ok_or(Kind::NotFound.into())
    }

    pub fn pool(&self) -> Result<Arc<pool::Pool>> {
        Ok(self.entry()?.pool.clone())
    }

    /// `zpool create` on the disks of a layout.
    pub fn create(&self, l: &Layout) -> Result<()> {
        let leaf = |i: usize, class| VdevSpec {
            kind: VdevKind::File,
            class,
            path: Some(path(i)),
            children: Vec::new(),
        };
        let data = || (0..l.disks).map(|i| leaf(i, VdevClass::Normal)).collect();
        let group = |kind| VdevSpec {
            kind,
            class: VdevClass::Normal,
            path: None,
            children: data(),
        };
        let mut vdevs: Vec<VdevSpec> = match l.kind {
            GroupKind::Mirror => vec![group(VdevKind::Mirror)],
            GroupKind::Raidz { nparity } => vec![group(VdevKind::Raidz {
                parity: nparity as u8,
            })],
            GroupKind::Draid {
                nparity,
                ndata,
                nspares,
            } => vec![group(VdevKind::Draid {
                parity: nparity as u8,
                data: ndata as u8,
                children: l.disks as u8,
                spares: nspares as u8,
            })],
            _ => data(),
        };
        if l.slog {
            vdevs.push(leaf(l.disks, VdevClass::Log));
        }
        let mut own = vec![("cachefile", "none".to_string())];
        own.push(("ashift", l.ashift.to_string()));
        match l.version {
            5000 if !l.log_spacemap => own.push(("feature@log_spacemap", "disabled".into())),
            5000 => {}
            old => own.push(("version", old.to_string())),
        }
        if l.version == 5000 && !l.projects {
            own.push(("feature@project_quota", "disabled".into()));
        }
        let ask = PoolCreate {
            name: POOL.into(),
            vdevs,
            props: own.into_iter().map(|(n, v)| (n.into(), v)).collect(),
            fs_props: vec![
                ("mountpoint".into(), "legacy".into()),
                ("recordsize".into(), l.recordsize.to_string()),
            ],
            command: format!("zpool create {POOL}"),
            ..PoolCreate::default()
        };
        pools::create::create(&self.admin, ROOT, ask).map_err(told)
    }

    /// `zpool import` from so many disks; `checkpoint`: with `--rewind-to-checkpoint`.
    pub fn import(&self, disks: usize, checkpoint: bool) -> Result<()> {
        let paths: Vec<String> = (0..disks).map(path).collect();
        let found = rig::newest(&self.admin.env, &paths);
        let guid = found.ok_or(Kind::NotFound)?.guid;
        let ask = PoolImport {
            pool: guid.to_string(),
            search: ImportScan {
                places: (0..disks).map(path).collect(),
                ..ImportScan::default()
            },
            props: vec![("cachefile".into(), "none".into())],
            checkpoint,
            command: format!("zpool import {POOL}"),
            ..PoolImport::default()
        };
        let done = pools::import::import(&self.admin, ROOT, ask, &|| false);
        done.map(drop).map_err(told)
    }

    /// `zpool checkpoint -d`
    pub fn discard_checkpoint(&self) -> Result<()> {
        let command = format!("zpool checkpoint -d {POOL}");
        let done = pools::checkpoint::checkpoint(&self.admin, ROOT, POOL, true, &command);
        done.map(drop).map_err(told)
    }

    /// `zpool reguid`
    pub fn reguid(&self) -> Result<()> {
        let command = format!("zpool reguid {POOL}");
        pools::reguid::reguid(&self.admin, ROOT, POOL, None, &command).map_err(told)
    }

    /// `zpool split`, with the devices that leave.
    pub fn split(&self, devices: Vec<String>) -> Result<()> {
        let ask = PoolSplit {
            pool: POOL.into(),
            name: HALF.into(),
            devices,
            command: format!("zpool split {POOL} {HALF}"),
            ..PoolSplit::default()
        };
        match pools::split::split(&self.admin, ROOT, &ask)
            .map_err(told)?
            .warning
        {
            None => Ok(()),
            Some(why) => bail!(Damaged, "{why}"),
        }
    }

    /// `zpool ddtprune -p`
    pub fn prune(&self, percent: u64) -> Result<()> {
        let command = format!("zpool ddtprune -p {percent} {POOL}");
        let what = api::Prune::Percent(percent);
        pools::dedup::prune(&self.admin, ROOT, POOL, what, &command).map_err(told)
    }

    /// `zpool set dedup_table_quota`
    pub fn table_quota(&self, bytes: u64) -> Result<()> {
        let value = match bytes {
            0 => "none".to_string(),
            n => n.to_string(),
        };
        let command = format!("zpool set dedup_table_quota={value} {POOL}");
        let list = vec![("dedup_table_quota".to_string(), value)];
        pools::set::set(&self.admin, ROOT, POOL, &list, &command).map_err(told)
    }

    /// `zpool scrub` with an action, or `zpool resilver`.
    pub fn scrub(&self, action: Option<ScrubAction>) -> Result<()> {
        let done = match action {
            Some(action) => {
                let ask = PoolScrub {
                    pool: POOL.into(),
                    action,
                    command: format!("zpool scrub {POOL}"),
                    ..PoolScrub::default()
                };
                pools::scan::scrub(&self.admin, ROOT, &ask)
            }
            None => {
                let command = format!("zpool resilver {POOL}");
                pools::scan::resilver(&self.admin, ROOT, POOL, &command)
            }
        };
        done.map_err(told)
    }

    /// `zpool trim` or `zpool initialize` of all devices.
    pub fn wear_all(&self, what: api::WearKind, action: api::WearAction) -> Result<()> {
        let ask = api::PoolWear {
            pool: POOL.into(),
            what,
            action,
            command: format!("zpool trim {POOL}"),
            ..api::PoolWear::default()
        };
        let done = pools::wear::wear(&self.admin, ROOT, &ask);
        done.map(drop).map_err(told)
    }

    /// `zpool replace POOL DISK SPARE`, with a distributed spare; sequentially with `-s`.
    pub fn spare(&self, disk: usize, spare: u64, sequential: bool) -> Result<()> {
        let tops = self.pool()?.tree().tops();
        let top = tops.first().map(|t| (t.kind(), t.id()));
        let Some((vdev::VdevKind::Draid { nparity, .. }, id)) = top else {
            return Err(Kind::Unsupported.into());
        };
        let ask = DeviceAttach {
            pool: POOL.into(),
            device: path(disk),
            new: Some(format!("draid{nparity}-{id}-{spare}")),
            replace: true,
            sequential,
            command: format!("zpool replace {POOL}"),
            ..DeviceAttach::default()
        };
        pools::devices::attach(&self.admin, ROOT, &ask).map_err(told)
    }

    /// `zpool attach POOL raidz1-0 DISK`
    pub fn expand(&self, raidz: &str, disk: usize) -> Result<()> {
        let ask = DeviceAttach {
            pool: POOL.into(),
            device: raidz.into(),
            new: Some(path(disk)),
            // What had left has a label still.
            force: true,
            command: format!("zpool attach {POOL}"),
            ..DeviceAttach::default()
        };
        pools::devices::attach(&self.admin, ROOT, &ask).map_err(told)
    }

    /// `zpool add -f POOL DISK…`, or `mirror DISK…`, or `draid… DISK…`.
    pub fn add(
        &self,
        kind: vdev::GroupKind,
        disks: std::ops::Range<usize>,
        ashift: u32,
    ) -> Result<()> {
        let children = disks.len() as u8;
        let leaf = |i: usize| VdevSpec {
            kind: VdevKind::File,
            class: VdevClass::Normal,
            path: Some(path(i)),
            children: Vec::new(),
        };
        let mut vdevs: Vec<VdevSpec> = disks.map(leaf).collect();
        if vdevs.len() > 1 {
            vdevs = vec![VdevSpec {
                kind: match kind {
                    vdev::GroupKind::Draid {
                        nparity,
                        ndata,
                        nspares,
                    } => VdevKind::Draid {
                        parity: nparity as u8,
                        data: ndata as u8,
                        children,
                        spares: nspares as u8,
                    },
                    _ => VdevKind::Mirror,
                },
                class: VdevClass::Normal,
                path: None,
                children: vdevs,
            }];
        }
        let ask = api::PoolAdd {
            pool: POOL.into(),
            vdevs,
            ashift: Some(ashift),
            allow_in_use: true,
            command: format!("zpool add {POOL}"),
            ..api::PoolAdd::default()
        };
        pools::devices::add(&self.admin, ROOT, &ask).map_err(told)
    }

    /// `zpool remove POOL VDEV`
    pub fn remove(&self, vdev: &str) -> Result<()> {
        let command = format!("zpool remove {POOL} {vdev}");
        pools::devices::remove(&self.admin, ROOT, POOL, vdev, &command).map_err(told)
    }

    /// `zpool remove -s POOL`
    pub fn cancel_removal(&self) -> Result<()> {
        let command = format!("zpool remove -s {POOL}");
        pools::devices::cancel_removal(&self.admin, ROOT, POOL, &command).map_err(told)
    }

    /// What the fault agent does by itself.
    pub fn look(&self) -> Result<()> {
        self.agent.acquire().look(&self.admin, &self.entry()?);
        Ok(())
    }

    /// `zpool export`
    pub fn export(&self) -> Result<()> {
        let command = format!("zpool export {POOL}");
        let how = pools::Leave::default();
        pools::leave(&self.admin, ROOT, POOL, how, &command)
            .map(drop)
            .map_err(told)
    }

    /// `zpool export -f`: what it says is lost.
    pub fn export_by_force(&self) -> Result<Option<String>> {
        let command = format!("zpool export -f {POOL}");
        let how = pools::Leave {
            force: true,
            ..pools::Leave::default()
        };
        pools::leave(&self.admin, ROOT, POOL, how, &command).map_err(told)
    }

    /// `zfs mount`: replays the intent log and cleans up.
    pub fn mount(&self, fs: &str, l: &Layout) -> Result<Fs> {
        let entry = self.entry()?;
        rig::tune(&entry.pool, l);
        let place = place(fs);
        mount::mount(
            &self.admin,
            ROOT,
            &full(fs),
            &[],
            false,
            false,
            Some(&place),
        )
        .map_err(told)?;
        let object = entry.pool.dsl().dataset(&full(fs))?.object();
        let mounted = entry.mounted(object).ok_or(Kind::NotFound)?;
        rig::tune_set(&mounted.set(), l);
        Ok(Fs {
            pool: entry.pool.clone(),
            zfs: mounted.zfs(),
            set: mounted.set(),
        })
    }

    /// `zfs unmount`: its log is empty afterwards.
    pub fn unmount(&self, fs: &str) -> Result<()> {
        mount::unmount(&self.admin, ROOT, &full(fs), false)
            .map(drop)
            .map_err(told)
    }

    /// The file system that is mounted now, after it went back.
    pub fn mounted(&self, fs: &str) -> Result<Fs> {
        let entry = self.entry()?;
        let object = entry.pool.dsl().dataset(&full(fs))?.object();
        let mounted = entry.mounted(object).ok_or(Kind::NotFound)?;
        Ok(Fs {
            pool: entry.pool.clone(),
            zfs: mounted.zfs(),
            set: mounted.set(),
        })
    }

    /// Commands on datasets, by full names.
    pub fn commands(&self) -> Commands {
        Commands(self.admin.clone())
    }

    /// `zfs create`
    pub fn create_fs(&self, fs: &str) -> Result<()> {
        self.commands().create(&full(fs), &[])
    }

    /// `zfs create` of an encrypted one.
    pub fn create_sealed(&self, fs: &str, cipher: u64) -> Result<()> {
        let ask = DatasetCreate {
            name: full(fs),
            props: keys::props(cipher),
            key: Some(keys::secret()),
            command: format!("zfs create {}", full(fs)),
            ..DatasetCreate::default()
        };
        create::create(&self.admin, ROOT, &ask)
            .map(drop)
            .map_err(told)
    }

    /// `zfs send` of all snapshots of a file system, each whole and as an increment of the one before. The first
    /// snapshot of which the two are not the same.
    pub fn streams(&self, fs: &str) -> Result<Option<String>> {
        let head = self.entry()?.pool.dsl().dataset(&full(fs))?;
        let name = |snap: &str| format!("{}@{snap}", full(fs));
        let sent = |snap: &str, from: Option<&String>| -> Result<Vec<u8>> {
            let ask = api::Send {
                target: name(snap),
                from: from.map(|f| name(f)),
                ..api::Send::default()
            };
            let mut out = Vec::new();
            send::send(&self.admin, ROOT, &ask, Some(&mut out), &mut |_| {}).map_err(told)?;
            Ok(out)
        };
        let (mut chain, mut before) = (Image::default(), None);
        for (snap, _) in head.snapshots()? {
            let mut whole = Image::default();
            whole.apply(&sent(&snap, None)?)?;
            chain.apply(&sent(&snap, before.as_ref())?)?;
            if chain != whole {
                return Ok(Some(snap));
            }
            before = Some(snap);
        }
        Ok(None)
    }

    /// `zfs send` with these options.
    pub fn sent(&self, ask: &api::Send) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        send::send(&self.admin, ROOT, ask, Some(&mut out), &mut |_| {}).map_err(told)?;
        Ok(out)
    }

    /// `zfs receive` of a stream, or a part of one.
    pub fn received(&self, ask: &api::Receive, stream: &[u8]) -> Result<()> {
        let done = receive::receive(&self.admin, ROOT, ask, stream, &mut |_| {});
        let done = done.map_err(told)?;
        match done.warnings.first() {
            None => Ok(()),
            Some(w) => base::bail!(Damaged, "{w}"),
        }
    }

    /// `zfs receive -A`
    pub fn receive_given_up(&self, fs: &str) -> Result<()> {
        receive::abort(&self.admin, ROOT, &full(fs), String::new()).map_err(told)
    }

    /// `zfs diff` of a snapshot and now.
    pub fn diff(&self, fs: &str, snap: &str) -> Result<Vec<Change>> {
        self.commands().diff(&format!("{}@{snap}", full(fs)), None)
    }

    /// `zfs allow -u UID snapshot`, or `zfs unallow`
    pub fn allow(&self, fs: &str, uid: u32, on: bool) -> Result<()> {
        let list = [Delegation {
            to: Delegate::User(uid.into()),
            local: false,
            descendent: false,
            permissions: vec![rights::PERMISSION.into()],
        }];
        let (admin, full) = (&self.admin, full(fs));
        let command = |word: &str| format!("zfs {word} -u {uid} snapshot {full}");
        match on {
            true => permissions::allow(admin, ROOT, &full, &list, command("allow")),
            false => permissions::unallow(admin, ROOT, &full, &list, false, command("unallow")),
        }
        .map_err(told)
    }

    /// `zfs snapshot`, by an ordinary user.
    pub fn snapshot_as(&self, fs: &str, name: &str, uid: u32) -> Result<()> {
        let full = format!("{}@{name}", full(fs));
        let ask = SnapshotCreate {
            command: format!("zfs snapshot {full}"),
            names: vec![full],
            ..SnapshotCreate::default()
        };
        let peer = Peer {
            uid,
            gid: uid,
            pid: 2,
        };
        snapshots::create(&self.admin, peer, &ask)
            .map(drop)
            .map_err(told)
    }

    /// `zfs set`
    pub fn set(&self, fs: &str, prop: &str, value: u64) -> Result<()> {
        let word = match props::dataset(prop).map(|p| p.kind) {
            Some(props::Kind::Index(words)) => words.iter().find(|w| w.1 == value).map(|w| w.0),
            _ => None,
        };
        let text = match (word, value) {
            (Some(word), _) => word.to_string(),
            (None, 0) => "none".into(),
            (None, n) => n.to_string(),
        };
        let command = format!("zfs set {prop}={text} {}", full(fs));
        let list = vec![(prop.to_string(), text)];
        let done = set::set(&self.admin, ROOT, &full(fs), &list, false, command);
        done.map(drop).map_err(told)
    }
}
