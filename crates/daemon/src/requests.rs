//! Dispatch of requests from the control socket: who may make them, and which operation answers them.

use crate::door::FuseDoor;
use crate::kernel_exports;
use crate::named_paths;
use crate::nfs_door::{NoServer, OwnServer};
use crate::options::{Latency, Options};
use crate::process::{Starting, Threads};
use crate::samba_shares;
use crate::startup::Stop;
use crate::transport::{Input, Outlet};
use admin::datasets::{
    create, destroy, diff, files, get, keys, look, mount, permissions, receive, redact, rename,
    rights, send, set, share, snapshots, space,
};
use admin::pools::{self, checkpoint, damage, dedup, devices, import, scan, upgrade, wear};
use admin::{cancel, rations, values, Admin, Answer, Door, Paths, Settings};
use api::{ApiError, Peer, Reply, Request};
use base::{io_text, Kind, Result};
use control::{Handler, Sink};
use fuse_zpl::Caching;
use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// Environment variable that names another cache file.
const CACHE_VARIABLE: &str = "ZFS_FUSE_CACHE";
/// Environment variable that names another place for default mount points.
const MOUNT_ROOT_VARIABLE: &str = "ZFS_FUSE_MOUNT_ROOT";
/// Cache file of root's daemon.
const CACHE_FILE: &str = "/var/lib/zfs/zpool.cache";

/// Answers requests.
pub struct Control {
    admin: Arc<Admin>,
    stop: Stop,
    /// Somebody asked for the end; it begins when the answer is on its way.
    stopping: AtomicBool,
}

/// Whether everybody may make a request of root's daemon: it only looks, or the operation itself asks for
/// the permissions it needs ([`admin::datasets::rights`]).
fn for_everybody(request: &Request) -> bool {
    matches!(
        request,
        Request::Ping {}
            | Request::Version {}
            | Request::PoolGet(_)
            | Request::VdevGet(_)
            | Request::DatasetGet(_)
            | Request::Holds { .. }
            | Request::Permissions { .. }
            | Request::SpaceOf { .. }
            | Request::SpaceHeld { .. }
            | Request::MountList {}
            | Request::SupportedFeatures {}
            | Request::PoolActivity { .. }
            | Request::DatasetActivity { .. }
            | Request::DatasetCreate(_)
            | Request::DatasetDestroy(_)
            | Request::DatasetSet { .. }
            | Request::DatasetInherit { .. }
            | Request::DatasetRename { .. }
            | Request::SnapshotCreate(_)
            | Request::Rollback(_)
            | Request::DatasetClone(_)
            | Request::DatasetPromote { .. }
            | Request::BookmarkCreate { .. }
            | Request::Send(_)
            | Request::Diff { .. }
            | Request::Receive(_)
            | Request::ReceiveAbort { .. }
            | Request::HoldAdd(_)
            | Request::HoldRelease(_)
            | Request::KeyLoad { .. }
            | Request::KeyUnload { .. }
            | Request::KeyChange { .. }
            | Request::Mount { .. }
            | Request::MountAll { .. }
            | Request::Unmount { .. }
            | Request::UnmountAll { .. }
            | Request::Share { .. }
            | Request::Unshare { .. }
            | Request::ShareAll { .. }
            | Request::PermissionsGive { .. }
            | Request::PermissionsTake { .. }
            | Request::Events { .. }
            | Request::FileRead { .. }
    )
}

/// Whether a caller may make a request of the daemon of user `own`.
pub fn allowed(own: u32, peer: u32, request: &Request) -> bool {
    peer == 0 || peer == own || (own == 0 && for_everybody(request))
}

/// Where things are for this user.
fn paths() -> Paths {
    let variable = |name: &str| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    let absolute = |name: &str| variable(name).filter(|p| p.is_absolute());
    let root = rustix::process::geteuid().is_root();
    let home = || absolute("HOME").unwrap_or_else(|| "/".into());
    Paths {
        cache_file: variable(CACHE_VARIABLE)
            .map(control::path::from_here)
            .unwrap_or_else(|| {
                if root {
                    CACHE_FILE.into()
                } else {
                    absolute("XDG_STATE_HOME")
                        .unwrap_or_else(|| home().join(".local/state"))
                        .join("zfs-fuse/zpool.cache")
                }
            }),
        mount_root: absolute(MOUNT_ROOT_VARIABLE).unwrap_or_else(|| {
            if root {
                "/".into()
            } else {
                home().join("zfs")
            }
        }),
    }
}

/// Whether this is a virtual machine, as x86 processors tell.
fn is_virtual() -> bool {
    std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|t| {
        let mut flags = t.lines().filter(|l| l.starts_with("flags"));
        flags.any(|l| l.split_whitespace().any(|f| f == "hypervisor"))
    })
}

/// Has the kernel wake processors up fast while mounts are busy, as far as that is permitted.
fn keep_processors_awake(asked: Latency) {
    // Two microseconds leave real processors their lightest sleep; on a virtual one even that is an
    // exit to the host.
    let best = if is_virtual() { 0 } else { 2 };
    let (latency, insist) = match asked {
        Latency::Off => return fuse::let_processors_sleep(),
        Latency::Auto => (best, false),
        Latency::Within(us) => (us, true),
    };
    match fuse::limit_wakeup_latency(latency, env_linux::devices_used) {
        Ok(()) => crate::log::info(&format!(
            "while mounts are busy, processors wake up within {latency} microseconds"
        )),
        // It says itself what happens instead.
        Err(e) if insist && e.kind() == std::io::ErrorKind::Unsupported => {
            crate::log::warn(&format!("--wakeup-latency={latency} has no effect: {e}"));
        }
        Err(e) if insist => crate::log::warn(&format!(
            "--wakeup-latency={latency} is not possible: /dev/cpu_dma_latency: {}; threads look for requests before they sleep instead",
            io_text(&e)
        )),
        Err(_) => {}
    }
}

/// Keeps keys out of swap, as far as the limit of locked memory (RLIMIT_MEMLOCK) goes.
fn keep_in_memory(address: usize, len: usize) {
    if let Err(e) = env_linux::lock_memory(address, len) {
        not_kept(&e);
    }
}

/// Says once that memory with keys cannot be locked.
fn not_kept(e: &std::io::Error) {
    static TOLD: std::sync::Once = std::sync::Once::new();
    let why = io_text(e);
    TOLD.call_once(|| crate::log::warn(&format!("keys may be written to swap: {why}")));
}

/// Finds who serves shares: this process, the kernel, or nobody.
fn serve_shares(admin: &Arc<Admin>, own: bool) -> Result<()> {
    let samba = samba_shares::find(admin);
    samba_shares::watch(&samba)?;
    admin.set_smb(samba);
    if own {
        admin.set_sharer(Arc::new(OwnServer));
        return Ok(());
    }
    match kernel_exports::find(admin) {
        Some(kernel) => {
            kernel.begin()?;
            admin.set_sharer(kernel);
        }
        None => admin.set_sharer(Arc::new(NoServer)),
    }
    Ok(())
}

impl Control {
    /// Brings the engine up: pools of the cache file are imported and mounted.
    pub fn start(options: Options, stop: Stop) -> Result<Control> {
        values::options(&options.mount_options).map_err(|e| e.context("--fuse-mount-options"))?;
        base::keep::set_keeper(keep_in_memory);
        // Fails where a process starts a second one, as tests do: the first has seen to it.
        let _ = env_linux::keep_crypto_memory(not_kept);
        vfs::set_limit(crate::budget::znodes(options.arc_max));
        keep_processors_awake(options.wakeup_latency);
        if fuse::wants_uring(options.transport) {
            match fuse::enable_uring() {
                Ok(true) => crate::log::info("the kernel's fuse.enable_uring has been turned on"),
                Ok(false) => {}
                Err(why) => crate::log::info(&format!("no requests over io_uring: {why}")),
            }
        }
        let caching = Caching {
            attributes: options.attr_timeout,
            names: options.entry_timeout,
            direct: options.direct_files,
            no_ahead: !options.prefetch,
        };
        let door = Arc::new(FuseDoor {
            caching,
            transport: options.transport,
            views: Default::default(),
        });
        let settings = Settings {
            paths: paths(),
            mount_options: options.mount_options,
            multihost: options.multihost,
            ivsets_unchecked: options.ivsets_unchecked,
        };
        let process = Threads::new(options.arc_max, caching);
        let env = crate::faults::wrap(env_linux::linux_env());
        let admin = Admin::new(env, settings, door.clone(), process);
        // Whatever a daemon that died left mounted, also of pools that are in no cache file.
        let cleared = door.clear_dead(&|_, _| true);
        if cleared > 0 {
            crate::log::info(&format!(
                "{cleared} mounts of a daemon that is gone were taken away"
            ));
        }
        if let Some(folder) = options.event_scripts {
            crate::scripts::watch(&admin, folder);
        }
        if let Some(folder) = crate::list_cache::folder() {
            crate::list_cache::watch(&admin, folder)?;
        }
        serve_shares(&admin, !options.nfs_listen.is_empty())?;
        let starting = Starting::watch(&admin);
        admin.import_cached();
        drop(starting);
        Ok(Control {
            admin,
            stop,
            stopping: AtomicBool::new(false),
        })
    }

    /// The pools of this daemon.
    pub fn admin(&self) -> &Arc<Admin> {
        &self.admin
    }

    /// Writes everything, unmounts and closes the pools.
    pub fn shutdown(&self) {
        self.admin.shutdown();
        if let Err(e) = self.admin.shares_changed() {
            crate::log::warn(&e.to_string());
        }
    }

    fn route(
        &self,
        peer: Peer,
        request: Request,
        out: &mut dyn Sink,
    ) -> std::result::Result<Reply, ApiError> {
        match request {
            Request::Ping {} => Ok(Reply::Done),
            Request::Version {} => Ok(Reply::Version(api::Version {
                daemon: crate::VERSION.into(),
            })),
            Request::Stop {} => {
                self.stopping.store(true, Ordering::Release);
                Ok(Reply::Done)
            }
            Request::SetFaults { faults } => {
                crate::faults::set(faults)?;
                Ok(Reply::Done)
            }
            other => {
                named_paths::need_answers(&other)?;
                answer(&self.admin, peer, other, out)
            }
        }
    }
}

fn done((): ()) -> Reply {
    Reply::Done
}

/// Done; what is lost is told.
fn done_but(lost: Option<String>) -> Reply {
    lost.map_or(Reply::Done, Reply::DoneBut)
}

/// Carries a request out: which operation it is, and which reply its result.
pub fn answer(
    admin: &Arc<Admin>,
    peer: Peer,
    request: Request,
    out: &mut dyn Sink,
) -> Answer<Reply> {
    match request {
        Request::PoolCreate(r) => pools::create::create(admin, peer, r).map(done),
        Request::PoolDestroy {
            pool,
            force,
            command,
        } => {
            let how = pools::Leave {
                force,
                destroy: true,
                keep_active: false,
            };
            pools::leave(admin, peer, &pool, how, &command).map(done_but)
        }
        Request::PoolExport {
            pool,
            force,
            keep_active,
            command,
        } => {
            let how = pools::Leave {
                force,
                destroy: false,
                keep_active,
            };
            pools::leave(admin, peer, &pool, how, &command).map(done_but)
        }
        Request::PoolGet(r) => Ok(Reply::Pools(pools::get::get(admin, peer, &r))),
        Request::PoolSet {
            pool,
            props,
            command,
        } => pools::set::set(admin, peer, &pool, &props, &command).map(done),
        Request::ImportScan(search) => {
            import::scan(admin, &search, &|| out.cancelled()).map(Reply::Importable)
        }
        Request::PoolImport(r) => {
            import::import(admin, peer, r, &|| out.cancelled()).map(Reply::Imported)
        }
        Request::PoolHistory { pool, internal } => {
            let mut last = Vec::new();
            pools::history(admin, &pool, internal, &mut |part| {
                let before = std::mem::replace(&mut last, part);
                match before.is_empty() {
                    true => Ok(()),
                    false => out.send(Reply::History(before)),
                }
            })?;
            Ok(Reply::History(last))
        }
        Request::PoolUpgrade {
            pool,
            version,
            command,
        } => upgrade::upgrade(admin, peer, &pool, version, &command).map(Reply::Upgraded),
        Request::SupportedFeatures {} => Ok(Reply::Features(pools::supported_features())),
        Request::LabelClear { path, force } => {
            pools::create::label_clear(admin, &path, force).map(done)
        }
        Request::PoolSync { pool, force } => pools::sync(admin, &pool, force).map(done_but),
        Request::PoolClear(r) => damage::clear(admin, peer, &r).map(done),
        Request::PoolAdd(r) => devices::add(admin, peer, &r).map(done),
        Request::DeviceRemove {
            pool,
            device,
            estimate,
            command,
        } => match estimate {
            true => devices::removal_estimate(admin, &pool, &device).map(Reply::Bytes),
            false => devices::remove(admin, peer, &pool, &device, &command).map(done),
        },
        Request::RemovalCancel { pool, command } => {
            devices::cancel_removal(admin, peer, &pool, &command).map(done)
        }
        Request::DeviceOnline {
            pool,
            device,
            expand,
            command,
        } => devices::online(admin, peer, &pool, &device, expand, &command).map(done_but),
        Request::DeviceOffline {
            pool,
            device,
            temporary,
            fault,
            command,
        } => {
            let how = ::pool::Offline { temporary, fault };
            devices::offline(admin, peer, &pool, &device, how, &command).map(done)
        }
        Request::DeviceAttach(r) => devices::attach(admin, peer, &r).map(done),
        Request::DeviceDetach {
            pool,
            device,
            command,
        } => devices::detach(admin, peer, &pool, &device, &command).map(done),
        Request::PoolReopen { pool, command } => {
            devices::reopen(admin, peer, &pool, &command).map(done)
        }
        Request::Events { pool, after } => Ok(Reply::Events(events(admin, peer, pool, after))),
        Request::EventsClear {} => Ok(Reply::DoneBut(format!(
            "cleared {} events",
            admin.events.clear()
        ))),
        other => answer_of_work(admin, peer, other, out),
    }
}

/// Events behind a number, of one pool or all; the history is left out for others than the owner.
fn events(admin: &Arc<Admin>, peer: Peer, pool: Option<String>, after: u64) -> api::Events {
    let (mut list, dropped) = admin.events.after(after);
    if let Some(pool) = pool {
        let own = ("pool".to_string(), api::EventValue::Text(pool));
        list.retain(|e| e.pairs.contains(&own));
    }
    if !rights::is_owner(admin, peer) {
        list.iter_mut().for_each(admin::events::without_history);
    }
    api::Events { list, dropped }
}

/// Requests about the work of whole pools in the background, and the state they are in.
fn answer_of_work(
    admin: &Arc<Admin>,
    peer: Peer,
    request: Request,
    out: &mut dyn Sink,
) -> Answer<Reply> {
    match request {
        Request::PoolScrub(r) => scan::scrub(admin, peer, &r).map(done),
        Request::PoolWear(r) => wear::wear(admin, peer, &r).map(Reply::Batch),
        Request::PoolResilver { pool, command } => {
            scan::resilver(admin, peer, &pool, &command).map(done)
        }
        Request::PoolCheckpoint {
            pool,
            discard,
            command,
        } => checkpoint::checkpoint(admin, peer, &pool, discard, &command).map(done_but),
        Request::VdevGet(r) => pools::vdev_props::get(admin, &r).map(Reply::VdevProps),
        Request::VdevSet(r) => pools::vdev_props::set(admin, peer, &r).map(done),
        Request::PoolSplit(r) => pools::split::split(admin, peer, &r).map(Reply::Split),
        Request::PoolReguid {
            pool,
            guid,
            command,
        } => pools::reguid::reguid(admin, peer, &pool, guid, &command).map(done),
        Request::PoolPrefetch {
            pool,
            table,
            command,
        } => dedup::prefetch(admin, peer, &pool, table, &command).map(done),
        Request::PoolPrune {
            pool,
            what,
            command,
        } => dedup::prune(admin, peer, &pool, what, &command).map(done),
        Request::PoolActivity { pool, devices } => {
            pools::activity(admin, &pool, &devices).map(Reply::Activity)
        }
        other => answer_of_datasets(admin, peer, other, out),
    }
}

/// Requests about datasets, and what is in volumes.
fn answer_of_datasets(
    admin: &Arc<Admin>,
    peer: Peer,
    request: Request,
    out: &mut dyn Sink,
) -> Answer<Reply> {
    match request {
        Request::DatasetGet(r) => {
            get::get(admin, peer, &r, &mut |part| out.send(Reply::Datasets(part)))
                .map(Reply::Datasets)
        }
        Request::DatasetCreate(r) => create::create(admin, peer, &r).map(Reply::Created),
        Request::DatasetDestroy(r) => destroy::destroy(admin, peer, &r).map(Reply::Destroyed),
        Request::DatasetSet {
            dataset,
            props,
            no_remount,
            command,
        } => set::set(admin, peer, &dataset, &props, no_remount, command).map(|left| {
            let told = left
                .into_iter()
                .chain(set::warning(admin, &dataset, &props));
            let told: Vec<String> = told.collect();
            done_but((!told.is_empty()).then(|| told.join("\n")))
        }),
        Request::DatasetInherit {
            dataset,
            property,
            recursive,
            received,
            command,
        } => set::inherit(
            admin, peer, &dataset, &property, recursive, received, command,
        )
        .map(done_but),
        Request::DatasetRename {
            from,
            to,
            parents,
            force,
            no_remount,
            recursive,
            command,
        } => {
            let how = rename::How {
                parents,
                force,
                no_remount,
                recursive,
            };
            rename::rename(admin, peer, &from, &to, how, command).map(done_but)
        }
        Request::SnapshotCreate(r) => snapshots::create(admin, peer, &r).map(done_but),
        Request::Rollback(r) => snapshots::rollback(admin, peer, &r).map(done_but),
        Request::DatasetClone(r) => snapshots::clone(admin, peer, &r).map(Reply::Created),
        Request::DatasetPromote { dataset, command } => {
            snapshots::promote(admin, peer, &dataset, command).map(done)
        }
        Request::BookmarkCreate {
            source,
            name,
            command,
        } => snapshots::bookmark(admin, peer, &source, &name, command).map(done),
        Request::HoldAdd(r) => snapshots::hold(admin, peer, &r).map(Reply::Batch),
        Request::HoldRelease(r) => snapshots::release(admin, peer, &r).map(Reply::Batch),
        Request::VolumeRead {
            volume,
            offset,
            length,
        } => {
            let out = RefCell::new(out);
            let pass = |end: BorrowedFd<'_>| out.borrow_mut().pass(end);
            let mut to = Outlet::new(&pass, Box::new(cancel::is_cancelled));
            look::read_volume(admin, &volume, offset, length, &mut to).map(done)
        }
        Request::FileRead {
            dataset,
            path,
            wanted,
        } => {
            let out = RefCell::new(out);
            let pass = |end: BorrowedFd<'_>| out.borrow_mut().pass(end);
            let mut to = Outlet::new(&pass, Box::new(cancel::is_cancelled));
            files::read(admin, peer, &dataset, &path.0, wanted, &mut to).map(done)
        }
        Request::Holds {
            snapshots,
            recursive,
        } => look::holds(admin, &snapshots, recursive, &mut |part| {
            out.send(Reply::Holds(part))
        })
        .map(Reply::Holds),
        Request::Permissions { dataset } => {
            permissions::list(admin, &dataset).map(Reply::Permissions)
        }
        Request::PermissionsGive {
            dataset,
            list,
            command,
        } => permissions::allow(admin, peer, &dataset, &list, command).map(done),
        Request::PermissionsTake {
            dataset,
            list,
            recursive,
            command,
        } => permissions::unallow(admin, peer, &dataset, &list, recursive, command).map(done),
        Request::SpaceHeld { dataset, recursive } => {
            space::held(admin, &dataset, recursive).map(Reply::Held)
        }
        Request::DatasetActivity { dataset } => {
            look::activity(admin, &dataset).map(Reply::Activity)
        }
        Request::SpaceOf { dataset, who } => {
            look::space(admin, peer, &dataset, &who).map(Reply::Space)
        }
        other => answer_of_streams(admin, peer, other, out),
    }
}

/// Requests about streams and differences.
fn answer_of_streams(
    admin: &Arc<Admin>,
    peer: Peer,
    request: Request,
    out: &mut dyn Sink,
) -> Answer<Reply> {
    match request {
        Request::Receive(r) => {
            let out = RefCell::new(out);
            let pass = |end: BorrowedFd<'_>| out.borrow_mut().pass(end);
            // A caller who goes away ends it, and an export by force.
            let from = Input::new(&pass, Box::new(cancel::is_cancelled));
            let mut tell = |line: String| {
                // A caller who has gone is found out by the stream.
                let _ = out.borrow_mut().send(Reply::Progress(api::Progress {
                    what: line,
                    done: 0,
                    total: 0,
                }));
            };
            receive::receive(admin, peer, &r, from, &mut tell).map(Reply::Received)
        }
        Request::ReceiveAbort { dataset, command } => {
            receive::abort(admin, peer, &dataset, command).map(done)
        }
        Request::Diff { from, to } => diff::diff(admin, peer, &from, to.as_deref(), &mut |part| {
            out.send(Reply::Changes(part))
        })
        .map(Reply::Changes),
        Request::Send(r) => {
            let out = RefCell::new(out);
            let pass = |end: BorrowedFd<'_>| out.borrow_mut().pass(end);
            let mut to = Outlet::new(&pass, Box::new(cancel::is_cancelled));
            // Nobody listening is found out by asking whether the caller is gone.
            let mut tell = |p| drop(out.borrow_mut().send(Reply::Progress(p)));
            send::send(admin, peer, &r, Some(&mut to), &mut tell).map(Reply::SendPlan)
        }
        Request::Redact(r) => redact::redact(admin, peer, &r).map(done),
        other => answer_of_mounts(admin, peer, other, out),
    }
}

/// Requests about keys and mounts.
fn answer_of_mounts(
    admin: &Arc<Admin>,
    peer: Peer,
    request: Request,
    out: &mut dyn Sink,
) -> Answer<Reply> {
    match request {
        Request::KeyLoad {
            dataset,
            key,
            check_only,
        } => keys::load(admin, peer, &dataset, &key, check_only).map(done),
        Request::KeyUnload { dataset } => keys::unload(admin, peer, &dataset).map(done),
        Request::KeyChange {
            dataset,
            inherit,
            key,
            props,
            command,
        } => keys::change(admin, peer, &dataset, inherit, &key, &props, command).map(done),
        Request::MountList {} => Ok(Reply::Mounts(mount::list(admin))),
        Request::Mount {
            dataset,
            options,
            overlay,
            force,
            directory,
        } => mount::mount(
            admin,
            peer,
            &dataset,
            &options,
            overlay,
            force,
            directory.as_deref(),
        )
        .map(done),
        Request::MountAll {
            root,
            options,
            overlay,
            force,
        } => {
            // Nobody listening is found out by asking whether the caller is gone.
            let mut tell = |p| drop(out.send(Reply::Progress(p)));
            mount::mount_all(
                admin,
                peer,
                root.as_deref(),
                &options,
                overlay,
                force,
                &mut tell,
            )
            .map(Reply::Batch)
        }
        Request::Unmount { target, force } => {
            mount::refuse_legacy(admin, peer, &target)?;
            mount::unmount(admin, peer, &target, force).map(done_but)
        }
        Request::UnmountAll { force } => Ok(Reply::Batch(mount::unmount_all(admin, peer, force))),
        Request::Share { target } => share::share(admin, peer, &target).map(done),
        Request::Unshare { target } => share::unshare(admin, peer, &target).map(done),
        Request::ShareAll { share: on, only } => {
            Ok(Reply::Batch(share::share_all(admin, peer, on, only)))
        }
        _ => Err(ApiError::sentence(
            Kind::Unsupported,
            "the daemon cannot do this in this version yet",
        )),
    }
}

impl Handler for Control {
    fn handle(
        &self,
        peer: Peer,
        request: Request,
        out: &mut dyn Sink,
    ) -> std::result::Result<Reply, ApiError> {
        let own = rustix::process::geteuid().as_raw();
        if !allowed(own, peer.uid, &request) {
            return Err(ApiError::reason(Kind::NotPermitted, "permission denied"));
        }
        let gone = out.watch();
        // Only callers who need permissions are asked for their groups.
        let groups = match out.socket() {
            Some(socket) if peer.uid != 0 && peer.uid != own => {
                let more = env_linux::peer_groups(socket).map_err(ApiError::from)?;
                [vec![peer.gid], more].concat()
            }
            _ => Vec::new(),
        };
        let carried = || cancel::with(gone, || self.route(peer, request, out));
        let owner = peer.uid == 0 || peer.uid == own;
        rights::with_groups(groups, || match owner {
            true => carried(),
            false => {
                let user = control::accounts::account(peer.uid);
                rations::with_ration_of(Some(user), || rights::for_stranger(carried))
            }
        })
    }

    fn answered(&self) {
        if self.stopping.load(Ordering::Acquire) {
            self.stop.ask();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_what() {
        let look = Request::PoolGet(api::PoolGet::default());
        let change = Request::PoolSync {
            pool: "x".into(),
            force: false,
        };
        let scan = Request::ImportScan(api::ImportScan::default());
        for request in [&look, &change, &scan] {
            assert!(allowed(0, 0, request));
            assert!(allowed(7, 7, request) && allowed(7, 0, request));
            assert!(!allowed(7, 8, request));
        }
        assert!(allowed(0, 7, &look));
        assert!(!allowed(0, 7, &change) && !allowed(0, 7, &scan));
        assert!(!for_everybody(&Request::Stop {}));
    }
}
