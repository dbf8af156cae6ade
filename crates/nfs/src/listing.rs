//! Listing directories. Positions are those of `vfs`: the hash of the name behind which the list goes on, so that they hold
//! while names come and go, and after a restart. The cookie verifier says which file system they are of.

use crate::attributes;
use crate::call::{Results, Written};
use crate::context::{Asked, Cx, Held};
use crate::crossing::{self, Point};
use crate::exports::status;
use crate::handle::MOST as MOST_HANDLE;
use crate::xdr::{opaque_len, Reader, Writer};
use base::{Kind, Result};
use std::collections::HashSet;
use vfs::{Dir, Entry, Listing, Lookup};
use zpl::attr::mode;
use zpl::DirEntry;

/// Bytes that a client best asks for at a time.
pub const USUAL: u32 = 64 << 10;
/// Bytes of a listing at most, whatever the client asks for.
const MOST: u32 = 512 << 10;
/// NFS3ERR_BAD_COOKIE
const BAD_COOKIE: u32 = 10_003;
/// NFS3ERR_TOOSMALL
const TOO_SMALL: u32 = 10_005;
/// Bytes of results beside the entries: status, attributes, verifier, the two ends.
const AROUND: usize = 4 + 4 + attributes::LEN + 8 + 8;
/// Bytes of an entry beside its name: that there is one, file id, cookie.
const ENTRY: usize = 4 + 8 + 8;

/// Entries that a reply has room for.
struct Entries<'a, 'b> {
    cx: &'a Cx<'b>,
    w: Writer,
    /// Bytes left, and those without attributes and handles.
    room: usize,
    plain_room: usize,
    /// With attributes and handles.
    plus: bool,
    /// `.zfs` itself: its volumes are not served.
    of_zfs: bool,
    full: bool,
    any: bool,
    /// Lookups to be given back.
    nodes: Vec<u64>,
    /// Names at which something else is mounted.
    points: HashSet<Vec<u8>>,
}

impl Entries<'_, '_> {
    fn put(&mut self, ino: u64, e: &DirEntry<'_>, entry: Option<&Entry>) -> bool {
        self.nodes.extend(entry.map(|e| e.node));
        let entry = entry.filter(|_| !self.points.contains(e.name));
        if self.of_zfs && e.name == b"volumes" {
            return true;
        }
        let plain = ENTRY + opaque_len(e.name.len());
        let mut more = Writer::default();
        if self.plus {
            attributes::maybe(&mut more, self.cx.fsid(), entry.map(|e| &e.attr));
            match entry.and_then(|e| self.cx.handle(e)) {
                Some(handle) => more.bool(true).opaque(&handle.to_bytes()),
                None => more.bool(false),
            };
        }
        let more = more.into_bytes();
        if plain + more.len() > self.room || plain > self.plain_room {
            self.full = true;
            return false;
        }
        self.room -= plain + more.len();
        self.plain_room -= plain;
        self.any = true;
        self.w.bool(true).u64(ino).opaque(e.name).u64(e.next);
        self.w.fixed(&more);
        true
    }
}

impl Listing for Entries<'_, '_> {
    fn fits(&mut self, name_len: usize) -> bool {
        let fits = ENTRY + opaque_len(name_len) <= self.room;
        self.full |= !fits;
        fits
    }

    fn add(&mut self, ino: u64, e: &DirEntry<'_>, entry: Option<&Entry>) -> bool {
        self.put(ino, e, entry)
    }
}

pub fn readdir(asked: &Asked<'_>, args: &mut Reader<'_>, out: Results<'_>) -> Written {
    let handle = args.opaque(MOST_HANDLE)?;
    let (cookie, verifier) = (args.u64()?, args.u64()?);
    let most = args.u32()?;
    asked.on(handle, 1, out, |cx, h, out| {
        list(cx, h, (cookie, verifier), (most, most), false, out);
    });
    Ok(())
}

pub fn readdirplus(asked: &Asked<'_>, args: &mut Reader<'_>, out: Results<'_>) -> Written {
    let handle = args.opaque(MOST_HANDLE)?;
    let (cookie, verifier) = (args.u64()?, args.u64()?);
    let (plain, most) = (args.u32()?, args.u32()?);
    asked.on(handle, 1, out, |cx, h, out| {
        list(cx, h, (cookie, verifier), (plain, most), true, out);
    });
    Ok(())
}

fn list(
    cx: &Cx<'_>,
    h: &Held<'_>,
    (cookie, verifier): (u64, u64),
    (plain, most): (u32, u32),
    plus: bool,
    out: Results<'_>,
) {
    let fsid = cx.fsid();
    if cookie != 0 && verifier != fsid {
        out.u32(BAD_COOKIE);
        return cx.attributes_after(h, out);
    }
    let mut points = match vfs::is_ours(h.entry.node) {
        true => Vec::new(),
        false => cx.points(h, None),
    };
    points.sort_by_key(Point::position);
    let mut entries = Entries {
        cx,
        w: Writer::default(),
        room: (most.min(MOST) as usize).saturating_sub(AROUND),
        plain_room: plain.min(MOST) as usize,
        plus,
        of_zfs: h.entry.node == vfs::dir_id(Dir::Root),
        full: false,
        any: false,
        nodes: Vec::new(),
        points: points.iter().map(|p| p.name.clone()).collect(),
    };
    let done = match cookie >> 62 == crossing::TAIL >> 62 {
        true => Ok(()),
        false => read(cx, h, cookie, &mut entries),
    };
    if done.is_ok() && !entries.full {
        list_points(cx, h, cookie, points, &mut entries);
    }
    let Entries {
        w,
        full,
        any,
        nodes,
        ..
    } = entries;
    nodes.into_iter().for_each(|n| cx.door.forget(n, 1));
    let failed = match done {
        Err(e) => Some(status(e.kind)),
        Ok(()) if full && !any => Some(TOO_SMALL),
        Ok(()) => None,
    };
    out.u32(failed.unwrap_or(0));
    cx.attributes_after(h, out);
    if failed.is_none() {
        out.u64(fsid).fixed(&w.into_bytes()).bool(false).bool(!full);
    }
}

/// What is mounted in a directory that does not have its name itself.
fn list_points(
    cx: &Cx<'_>,
    h: &Held<'_>,
    cookie: u64,
    points: Vec<Point>,
    entries: &mut Entries<'_, '_>,
) {
    for p in points.into_iter().filter(|p| p.position() > cookie) {
        let own = cx.door.lookup(&cx.by, h.entry.node, &p.name);
        if let Ok(Lookup::Found(own)) = &own {
            cx.door.forget(own.node, 1);
        }
        if !matches!(own, Ok(Lookup::Missing(_))) || !cx.can_cross(&p) {
            continue;
        }
        let e = DirEntry {
            name: &p.name,
            object: 0,
            dtype: 4,
            next: p.position(),
        };
        // A number that no object has.
        if !entries.put(p.fs.number() | 1 << 63, &e, None) {
            return;
        }
    }
}

fn read(cx: &Cx<'_>, h: &Held<'_>, cookie: u64, entries: &mut Entries<'_, '_>) -> Result<()> {
    let node = h.entry.node;
    if !mode::is_dir(h.entry.attr.mode) {
        return Err(Kind::NotDir.into());
    }
    let of_zfs = vfs::is_ours(node)
        && [Dir::Root, Dir::Shares, Dir::Snapshots]
            .map(vfs::dir_id)
            .contains(&node);
    if !of_zfs {
        let opened = cx.door.open_dir(&cx.by, node, true)?;
        cx.door.release_dir(node, opened.handle);
    }
    match entries.plus {
        true => cx
            .door
            .read_dir_plus(&cx.by, node, (0, cookie), false, entries),
        false => cx
            .door
            .read_dir(&cx.by, node, (0, cookie), false, |ino, e| {
                entries.put(ino, e, None)
            }),
    }
}
