//! The procedures of NFS 3: which there are, and those that only look.

use crate::call::{Client, Garbled, Outcome, Results, Shared, Written};
use crate::context::{Asked, Cx, Held};
use crate::exports::status;
use crate::handle::MOST;
use crate::rpc::Call;
use crate::xdr::Reader;
use crate::{attributes, data, listing, names};
use base::{Kind, Result};
use vfs::{Dir, Entry, Lookup};
use zpl::attr::mode;

/// Number of the program.
pub const PROGRAM: u32 = 100_003;

/// Numbers of the procedures.
pub mod number {
    #![allow(missing_docs)]
    pub const GETATTR: u32 = 1;
    pub const SETATTR: u32 = 2;
    pub const LOOKUP: u32 = 3;
    pub const ACCESS: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const READ: u32 = 6;
    pub const WRITE: u32 = 7;
    pub const CREATE: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const SYMLINK: u32 = 10;
    pub const MKNOD: u32 = 11;
    pub const REMOVE: u32 = 12;
    pub const RMDIR: u32 = 13;
    pub const RENAME: u32 = 14;
    pub const LINK: u32 = 15;
    pub const READDIR: u32 = 16;
    pub const READDIRPLUS: u32 = 17;
    pub const FSSTAT: u32 = 18;
    pub const FSINFO: u32 = 19;
    pub const PATHCONF: u32 = 20;
    pub const COMMIT: u32 = 21;
}

/// Whether a procedure changes something, and so must not be carried out twice.
pub fn changes(procedure: u32) -> bool {
    use number::*;
    matches!(
        procedure,
        SETATTR | WRITE | CREATE | MKDIR | SYMLINK | MKNOD | REMOVE | RMDIR | RENAME | LINK
    )
}

/// Carries a call out.
pub fn call(
    shared: &Shared,
    client: &Client,
    call: &Call,
    args: &mut Reader<'_>,
    out: Results<'_>,
) -> Outcome {
    use number::*;
    let asked = Asked {
        shared,
        client,
        call,
    };
    let done = match call.procedure {
        0 => Ok(()),
        GETATTR => getattr(&asked, args, out),
        SETATTR => data::setattr(&asked, args, out),
        LOOKUP => lookup(&asked, args, out),
        ACCESS => access_bits(&asked, args, out),
        READLINK => readlink(&asked, args, out),
        READ => data::read(&asked, args, out),
        WRITE => data::write(&asked, args, out),
        CREATE => names::create(&asked, args, out),
        MKDIR => names::mkdir(&asked, args, out),
        SYMLINK => names::symlink(&asked, args, out),
        MKNOD => names::mknod(&asked, args, out),
        REMOVE => names::remove(&asked, args, out, false),
        RMDIR => names::remove(&asked, args, out, true),
        RENAME => names::rename(&asked, args, out),
        LINK => names::link(&asked, args, out),
        READDIR => listing::readdir(&asked, args, out),
        READDIRPLUS => listing::readdirplus(&asked, args, out),
        FSSTAT => fsstat(&asked, args, out),
        FSINFO => fsinfo(&asked, args, out),
        PATHCONF => pathconf(&asked, args, out),
        COMMIT => data::commit(&asked, args, out),
        _ => return Outcome::NoProcedure,
    };
    match done {
        Ok(()) => Outcome::Done,
        Err(Garbled) => Outcome::Garbage,
    }
}

fn getattr(asked: &Asked<'_>, args: &mut Reader<'_>, out: Results<'_>) -> Written {
    let handle = args.opaque(MOST)?;
    asked.on(handle, 0, out, |cx, h, out| match cx.attr(h) {
        Some(a) => attributes::write(out.u32(0), cx.fsid(), &a),
        None => drop(out.u32(status(Kind::Stale))),
    });
    Ok(())
}

/// What a name leads to; volumes are not served.
fn found(cx: &Cx<'_>, dir: &Held<'_>, name: &[u8]) -> Result<Entry> {
    let node = dir.entry.node;
    if node == vfs::dir_id(Dir::Root) && name == b"volumes" {
        return Err(Kind::NotFound.into());
    }
    match cx.door.lookup(&cx.by, node, name)? {
        Lookup::Found(e) => Ok(e),
        Lookup::Missing(_) => Err(Kind::NotFound.into()),
    }
}

fn lookup(asked: &Asked<'_>, args: &mut Reader<'_>, out: Results<'_>) -> Written {
    let handle = args.opaque(MOST)?;
    let name = args.opaque(names::MOST)?;
    asked.on(handle, 1, out, |cx, dir, out| {
        let found = found(cx, dir, name).map(|e| cx.held(e));
        // Permission to look the name up is asked for in the directory.
        let is_there = match &found {
            Ok(_) => true,
            Err(e) => e.kind == Kind::NotFound,
        };
        if let Some(c) = is_there.then(|| cx.cross(dir, name)).flatten() {
            out.u32(0).opaque(&c.handle.to_bytes());
            attributes::maybe(out, c.handle.fs.number(), Some(&c.attr));
            return cx.attributes_after(dir, out);
        }
        let handle = found.and_then(|h| Ok((cx.handle(&h.entry).ok_or(Kind::Stale)?, h)));
        match handle {
            Ok((handle, h)) => {
                out.u32(0).opaque(&handle.to_bytes());
                cx.attributes_after(&h, out);
            }
            Err(e) => drop(out.u32(status(e.kind))),
        }
        cx.attributes_after(dir, out);
    });
    Ok(())
}

/// Permissions as ACCESS has them.
mod bit {
    pub const READ: u32 = 1;
    pub const LOOKUP: u32 = 2;
    pub const MODIFY: u32 = 4;
    pub const EXTEND: u32 = 8;
    pub const DELETE: u32 = 0x10;
    pub const EXECUTE: u32 = 0x20;
}

fn access_bits(asked: &Asked<'_>, args: &mut Reader<'_>, out: Results<'_>) -> Written {
    let handle = args.opaque(MOST)?;
    let wanted = args.u32()?;
    asked.on(handle, 1, out, |cx, h, out| {
        let may = |mask| cx.door.access(&cx.by, h.entry.node, mask).is_ok();
        let dir = mode::is_dir(h.entry.attr.mode);
        let (read, write, execute) = match dir {
            true => (
                bit::READ,
                bit::MODIFY | bit::EXTEND | bit::DELETE,
                bit::LOOKUP,
            ),
            false => (bit::READ, bit::MODIFY | bit::EXTEND, bit::EXECUTE),
        };
        let mut granted = 0;
        for (bits, mask) in [(read, 4), (write, 2), (execute, 1)] {
            let changes = mask == 2;
            if wanted & bits != 0 && !(changes && cx.may_change(h).is_err()) && may(mask) {
                granted |= bits;
            }
        }
        out.u32(0);
        cx.attributes_after(h, out);
        out.u32(granted & wanted);
    });
    Ok(())
}

fn readlink(asked: &Asked<'_>, args: &mut Reader<'_>, out: Results<'_>) -> Written {
    let handle = args.opaque(MOST)?;
    asked.on(handle, 1, out, |cx, h, out| {
        let target = cx.door.readlink(&cx.by, h.entry.node);
        out.u32(target.as_ref().map_or_else(|e| status(e.kind), |_| 0));
        cx.attributes_after(h, out);
        if let Ok(target) = target {
            out.opaque(&target);
        }
    });
    Ok(())
}

fn fsstat(asked: &Asked<'_>, args: &mut Reader<'_>, out: Results<'_>) -> Written {
    let handle = args.opaque(MOST)?;
    asked.on(handle, 1, out, |cx, h, out| {
        let stat = cx.door.statfs(&cx.by, h.entry.node);
        out.u32(stat.as_ref().map_or_else(|e| status(e.kind), |_| 0));
        cx.attributes_after(h, out);
        if let Ok(s) = stat {
            for blocks in [s.blocks, s.bfree, s.bavail] {
                out.u64(blocks.saturating_mul(s.bsize));
            }
            out.u64(s.files).u64(s.ffree).u64(s.ffree).u32(0);
        }
    });
    Ok(())
}

fn fsinfo(asked: &Asked<'_>, args: &mut Reader<'_>, out: Results<'_>) -> Written {
    /// Links, symbolic links, the same for all objects, times can be set.
    const PROPERTIES: u32 = 0x1 | 0x2 | 0x8 | 0x10;
    /// Bytes of which lengths and offsets are best multiples.
    const MULTIPLE: u32 = 4096;
    let handle = args.opaque(MOST)?;
    asked.on(handle, 1, out, |cx, h, out| {
        out.u32(0);
        cx.attributes_after(h, out);
        for _ in ["read", "write"] {
            out.u32(data::MOST).u32(data::MOST).u32(MULTIPLE);
        }
        out.u32(listing::USUAL).u64(zpl::MAX_SIZE);
        // Times are kept to the nanosecond.
        out.u32(0).u32(1).u32(PROPERTIES);
    });
    Ok(())
}

fn pathconf(asked: &Asked<'_>, args: &mut Reader<'_>, out: Results<'_>) -> Written {
    let handle = args.opaque(MOST)?;
    asked.on(handle, 1, out, |cx, h, out| {
        let zfs = cx.door.served().zfs();
        out.u32(0);
        cx.attributes_after(h, out);
        let links = u32::try_from(zpl::LINK_MAX).unwrap_or(u32::MAX);
        out.u32(links).u32(zfs.name_max() as u32);
        // Names that are too long are refused; only root gives files away; case.
        out.bool(true).bool(true);
        out.bool(zfs.case == 1).bool(true);
    });
    Ok(())
}
