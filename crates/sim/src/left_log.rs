//! A file system whose intent log a crash left behind goes back to its snapshot, or takes a stream, before anybody mounts it. The
//! plug is pulled at every flush meanwhile: the log has been replayed, or it is gone with the content it belongs to.

use crate::check::env;
use crate::cut::{Cutter, FATES};
use crate::desk::Desk;
use crate::rig::{self, full, Fs, Layout};
use base::Result;
use env_sim::{Event, ManualClock, MemDisk, SeededRng};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

/// The file system.
const SET: &str = "a";
/// A file of the newest txg, and one that is in the log alone.
const FILES: [&str; 2] = ["synced", "logged"];

/// What happens to the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// `zfs rollback`
    Back,
    /// `zfs receive -F` of an increment.
    Received,
}

fn put(fs: &Fs, name: &str) -> Result<()> {
    let (root, new, cred) = (
        fs.zfs.root()?,
        zpl::New::file(0o100644, 0),
        zpl::Cred::root(),
    );
    let z = fs.zfs.create(&root, name.as_bytes(), &new, &cred)?;
    fs.zfs.write(&z, 0, &[5; 9000], Default::default())?;
    fs.zfs.fsync(Some(&z))
}

fn snap(name: &str) -> String {
    format!("{}@{name}", full(SET))
}

/// The disks after the crash, and a stream from the snapshot `s1` to what was once `s2`.
fn left(l: &Layout, clock: &Arc<ManualClock>) -> Result<(Vec<Arc<MemDisk>>, Vec<u8>)> {
    let disks: Vec<_> = (0..l.devices()).map(|_| MemDisk::new(l.size)).collect();
    let desk = Desk::new(env(&disks, 1, clock));
    desk.create(l)?;
    desk.create_fs(SET)?;
    let fs = desk.mount(SET, l)?;
    let commands = desk.commands();
    commands.snapshot(&snap("s1"))?;
    put(&fs, "sent")?;
    commands.snapshot(&snap("s2"))?;
    let ask = api::Send {
        target: snap("s2"),
        from: Some(snap("s1")),
        ..api::Send::default()
    };
    let stream = desk.sent(&ask)?;
    drop(fs);
    commands.rollback(&snap("s1"))?;
    let fs = desk.mounted(SET)?;
    put(&fs, FILES[0])?;
    fs.pool.sync()?;
    put(&fs, FILES[1])?;
    put(&fs, "logged too")?;
    Ok((disks.iter().map(|d| d.fork()).collect(), stream))
}

/// Does it, and judges what each cut leaves. An error is a finding.
pub fn run(l: &Layout, way: Way) -> std::result::Result<(), String> {
    let clock = Arc::new(ManualClock::default());
    clock.seconds.store(1_700_000_000, Relaxed);
    let text = |e: base::Error| e.to_string();
    let (disks, stream) = left(l, &clock).map_err(text)?;
    let desk = Desk::new(env(&disks, 2, &clock));
    desk.import(disks.len(), false).map_err(text)?;
    let (journal, base) = rig::start_journal(&disks);
    let done = match way {
        Way::Back => desk.commands().rollback(&snap("s1")),
        Way::Received => {
            let ask = api::Receive {
                target: full(SET),
                force: true,
                command: format!("zfs receive -F {}", full(SET)),
                ..api::Receive::default()
            };
            desk.received(&ask, &stream)
        }
    };
    done.map_err(text)?;
    let events = journal.take();
    let flush = |(n, e): (usize, &Event)| matches!(e, Event::Flush { .. }).then_some(n + 1);
    let moments: Vec<usize> = events.iter().enumerate().filter_map(flush).collect();
    let rng = SeededRng::new(3);
    let mut cutter = Cutter::new(&base, events);
    let mut seen = [false; 2];
    for (n, at) in moments.into_iter().enumerate() {
        cutter.forward(at);
        let image = cutter.image(FATES[n % FATES.len()], &rng);
        let what = |e: String| format!("{way:?}, cut at event {at}: {e}");
        let there = judge(&image, l, &clock).map_err(what)?;
        seen[usize::from(there)] = true;
    }
    match seen {
        [true, true] => Ok(()),
        _ => Err(format!("{way:?}: no cut before it, or none behind it")),
    }
}

/// Whether the content that the log belongs to is there.
fn judge(
    image: &[Arc<MemDisk>],
    l: &Layout,
    clock: &Arc<ManualClock>,
) -> std::result::Result<bool, String> {
    let text = |e: base::Error| e.to_string();
    let opts = pool::OpenOptions {
        tunables: rig::tunables(),
        ..pool::OpenOptions::default()
    };
    let pool = crate::check::import(image, 4, clock, opts).map_err(text)?;
    let fs = rig::mount_named(&pool, &full(SET), l).map_err(text)?;
    let root = fs.zfs.root().map_err(text)?;
    let [synced, logged] = FILES.map(|name| {
        let z = fs.zfs.lookup(&root, name.as_bytes(), &zpl::Cred::root());
        z.is_ok()
    });
    pool.sync().map_err(text)?;
    drop((root, fs));
    rig::check(&pool)?;
    pool.close().map_err(text)?;
    match synced == logged {
        true => Ok(synced),
        false => Err("the log is gone, and the content it belongs to is there".into()),
    }
}
