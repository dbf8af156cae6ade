//! Making, removing and renaming.

use crate::attributes::{self, device};
use crate::call::{Garbled, Results, Written};
use crate::context::{Asked, Cx, Held};
use crate::data::set_attributes;
use crate::exports::status;
use crate::handle::MOST as MOST_HANDLE;
use crate::xdr::Reader;
use base::{Kind, Result};
use vfs::{Entry, Lookup};
use zpl::attr::mode;
use zpl::{New, SetAttr, SetTime, Time};

/// Most bytes of a name.
pub const MOST: usize = 1023;
/// Most bytes of the target of a symbolic link.
const MOST_TARGET: usize = zpl::SYMLINK_MAX;

/// What is mounted somewhere is in the way; there is no error for "busy" in the protocol that clients do not take for "try again".
const MOUNTED: Kind = Kind::Access;

/// The names of a directory itself and of the one above it are nobody's to change.
fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

fn refuse_dots(name: &[u8], kind: Kind) -> Result<()> {
    match is_dots(name) {
        true => Err(kind.into()),
        false => Ok(()),
    }
}

/// The permission bits a new object begins with. Others of what was asked for are set afterwards.
fn first_mode(set: &SetAttr) -> u32 {
    set.mode.unwrap_or(0) & mode::PERM
}

/// Makes an object and sets what `make` cannot.
fn made<'a>(
    cx: &Cx<'a>,
    dir: &Held<'_>,
    name: &[u8],
    new: &New<'_>,
    set: &SetAttr,
) -> Result<Held<'a>> {
    cx.may_change(dir)?;
    refuse_dots(name, Kind::Exists)?;
    cx.not_mounted(dir, name, Kind::Exists)?;
    let entry = cx.door.make(&cx.by, dir.entry.node, name, new)?;
    let h = cx.held(entry);
    let rest = SetAttr { mode: None, ..*set };
    // What is the same already is not asked for: only root may give files away.
    let a = &h.entry.attr;
    let rest = SetAttr {
        uid: rest.uid.filter(|u| *u != a.uid),
        gid: rest.gid.filter(|g| *g != a.gid),
        size: rest.size.filter(|s| *s != 0),
        ..rest
    };
    set_attributes(cx, &h, &rest)?;
    cx.stable(h.entry.node)?;
    Ok(h)
}

/// The results of what makes an object: its handle and attributes, then the directory.
fn tell(cx: &Cx<'_>, dir: &Held<'_>, done: Result<Held<'_>>, out: Results<'_>) {
    match done {
        Ok(h) => {
            out.u32(0);
            match cx.handle(&h.entry) {
                Some(handle) => out.bool(true).opaque(&handle.to_bytes()),
                None => out.bool(false),
            };
            cx.attributes_after(&h, out);
        }
        Err(e) => drop(out.u32(status(e.kind))),
    }
    cx.wcc(dir, out);
}

/// How a file is made.
enum How {
    /// One that is there will do.
    Unchecked(SetAttr),
    /// There must be none.
    Guarded(SetAttr),
    /// There must be none but one that was made with this number.
    Exclusive([u8; 8]),
}

pub fn create(asked: &Asked<'_>, args: &mut Reader<'_>, out: Results<'_>) -> Written {
    let handle = args.opaque(MOST_HANDLE)?;
    let name = args.opaque(MOST)?;
    let how = match args.u32()? {
        0 => How::Unchecked(attributes::read_set(args)?),
        1 => How::Guarded(attributes::read_set(args)?),
        2 => How::Exclusive(args.fixed()?),
        _ => return Err(Garbled),
    };
    asked.on(handle, 2, out, |cx, dir, out| {
        let done = create_file(cx, dir, name, &how);
        tell(cx, dir, done, out);
    });
    Ok(())
}

/// The times that mark a file as made with a number.
fn mark(number: &[u8; 8]) -> (Time, Time) {
    let part = |b: [u8; 4]| Time::new((u32::from_be_bytes(b) & 0x7fff_ffff).into(), 0);
    let [a, b, c, d, e, f, g, h] = *number;
    (part([a, b, c, d]), part([e, f, g, h]))
}

fn create_file<'a>(cx: &Cx<'a>, dir: &Held<'_>, name: &[u8], how: &How) -> Result<Held<'a>> {
    let marked;
    let set = match how {
        How::Unchecked(set) | How::Guarded(set) => set,
        How::Exclusive(number) => {
            let (atime, mtime) = mark(number);
            marked = SetAttr {
                atime: Some(SetTime::To(atime)),
                mtime: Some(SetTime::To(mtime)),
                ..SetAttr::default()
            };
            &marked
        }
    };
    let new = New::file(mode::REG | first_mode(set), 0);
    match (made(cx, dir, name, &new, set), how) {
        (Err(e), How::Unchecked(set)) if e.kind == Kind::Exists && !is_dots(name) => {
            there(cx, dir, name, set)
        }
        (Err(e), How::Exclusive(number)) if e.kind == Kind::Exists && !is_dots(name) => {
            let h = cx.held(existing(cx, dir, name)?);
            let a = &h.entry.attr;
            match mode::is_reg(a.mode) && (a.atime, a.mtime) == mark(number) {
                true => Ok(h),
                false => Err(e),
            }
        }
        (done, _) => done,
    }
}

fn existing(cx: &Cx<'_>, dir: &Held<'_>, name: &[u8]) -> Result<Entry> {
    match cx.door.lookup(&cx.by, dir.entry.node, name)? {
        Lookup::Found(e) => Ok(e),
        Lookup::Missing(_) => Err(Kind::Exists.into()),
    }
}

/// A file that is there already, of which only the size is set.
fn there<'a>(cx: &Cx<'a>, dir: &Held<'_>, name: &[u8], set: &SetAttr) -> Result<Held<'a>> {
    let h = cx.held(existing(cx, dir, name)?);
    if !mode::is_reg(h.entry.attr.mode) {
        return Err(Kind::Exists.into());
    }
    let size = SetAttr {
        size: set.size,
        ..SetAttr::default()
    };
    set_attributes(cx, &h, &size)?;
    let entry = existing(cx, dir, name)?;
    Ok(cx.held(entry))
}

pub fn mkdir(asked: &Asked<'_>, args: &mut Reader<'_>, out: Results<'_>) -> Written {
    let handle = args.opaque(MOST_HANDLE)?;
    let name = args.opaque(MOST)?;
    let set = attributes::read_set(args)?;
    asked.on(handle, 2, out, |cx, dir, out| {
        let set = SetAttr { size: None, ..set };
        let new = New::dir(first_mode(&set), 0);
        let done = made(cx, dir, name, &new, &set);
        tell(cx, dir, done, out);
    });
    Ok(())
}

pub fn symlink(asked: &Asked<'_>, args: &mut Reader<'_>, out: Results<'_>) -> Written {
    let handle = args.opaque(MOST_HANDLE)?;
    let name = args.opaque(MOST)?;
    let set = attributes::read_set(args)?;
    let target = args.opaque(MOST_TARGET)?;
    asked.on(handle, 2, out, |cx, dir, out| {
        let set = SetAttr { size: None, ..set };
        let done = match target.is_empty() || target.contains(&0) {
            true => Err(Kind::Invalid.into()),
            false => made(cx, dir, name, &New::symlink(target), &set),
        };
        tell(cx, dir, done, out);
    });
    Ok(())
}

pub fn mknod(asked: &Asked<'_>, args: &mut Reader<'_>, out: Results<'_>) -> Written {
    let handle = args.opaque(MOST_HANDLE)?;
    let name = args.opaque(MOST)?;
    let kind = match args.u32()? {
        3 => mode::BLK,
        4 => mode::CHR,
        6 => mode::SOCK,
        7 => mode::FIFO,
        // Others are made by other procedures; there is nothing behind the kind then.
        n => {
            /// NFS3ERR_BADTYPE
            const BAD_TYPE: u32 = 10_007;
            if !(1..=7).contains(&n) {
                return Err(Garbled);
            }
            asked.on(handle, 2, out, |cx, dir, out| {
                out.u32(BAD_TYPE);
                cx.wcc(dir, out);
            });
            return Ok(());
        }
    };
    let set = attributes::read_set(args)?;
    let is_device = kind == mode::BLK || kind == mode::CHR;
    let rdev = match is_device {
        true => device(args.u32()?, args.u32()?),
        false => 0,
    };
    asked.on(handle, 2, out, |cx, dir, out| {
        let set = SetAttr { size: None, ..set };
        let new = New::device(kind | first_mode(&set), 0, rdev);
        let done = match is_device && !cx.by.is_privileged() {
            true => Err(Kind::NotPermitted.into()),
            false => made(cx, dir, name, &new, &set),
        };
        tell(cx, dir, done, out);
    });
    Ok(())
}

pub fn remove(
    asked: &Asked<'_>,
    args: &mut Reader<'_>,
    out: Results<'_>,
    directory: bool,
) -> Written {
    let handle = args.opaque(MOST_HANDLE)?;
    let name = args.opaque(MOST)?;
    asked.on(handle, 2, out, |cx, dir, out| {
        let node = dir.entry.node;
        let removed = || {
            cx.may_change(dir)?;
            refuse_dots(name, Kind::Invalid)?;
            cx.not_mounted(dir, name, MOUNTED)?;
            match directory {
                true => {
                    cx.holds_nothing(dir, name, MOUNTED)?;
                    cx.door.rmdir(&cx.by, node, name)?;
                }
                false => cx.door.unlink(&cx.by, node, name)?,
            }
            cx.stable(node)
        };
        out.u32(removed().map_or_else(|e| status(e.kind), |()| 0));
        cx.wcc(dir, out);
    });
    Ok(())
}

pub fn rename(asked: &Asked<'_>, args: &mut Reader<'_>, out: Results<'_>) -> Written {
    let handle = args.opaque(MOST_HANDLE)?;
    let name = args.opaque(MOST)?;
    let to_handle = args.opaque(MOST_HANDLE)?;
    let to_name = args.opaque(MOST)?;
    asked.on(handle, 4, out, |cx, dir, out| {
        let to = cx.also(to_handle);
        let renamed = || {
            let to = to.as_ref().map_err(|e| e.kind)?;
            cx.may_change(dir)?;
            cx.may_change(to)?;
            refuse_dots(name, Kind::Invalid)?;
            refuse_dots(to_name, Kind::Invalid)?;
            cx.not_mounted(dir, name, MOUNTED)?;
            cx.not_mounted(to, to_name, MOUNTED)?;
            cx.holds_nothing(to, to_name, MOUNTED)?;
            let (from, onto) = ((dir.entry.node, name), (to.entry.node, to_name));
            cx.door.rename(&cx.by, from, onto, 0)?;
            cx.stable(to.entry.node)
        };
        out.u32(renamed().map_or_else(|e: base::Error| status(e.kind), |()| 0));
        cx.wcc(dir, out);
        match &to {
            Ok(to) => cx.wcc(to, out),
            Err(_) => drop(out.bool(false).bool(false)),
        }
    });
    Ok(())
}

pub fn link(asked: &Asked<'_>, args: &mut Reader<'_>, out: Results<'_>) -> Written {
    let handle = args.opaque(MOST_HANDLE)?;
    let dir_handle = args.opaque(MOST_HANDLE)?;
    let name = args.opaque(MOST)?;
    asked.on(handle, 3, out, |cx, h, out| {
        let dir = cx.also(dir_handle);
        let linked = || {
            let dir = dir.as_ref().map_err(|e| e.kind)?;
            cx.may_change(dir)?;
            cx.may_change(h)?;
            refuse_dots(name, Kind::Exists)?;
            cx.not_mounted(dir, name, Kind::Exists)?;
            let e = cx.door.link(&cx.by, h.entry.node, dir.entry.node, name)?;
            drop(cx.held(e));
            cx.stable(h.entry.node)
        };
        out.u32(linked().map_or_else(|e: base::Error| status(e.kind), |()| 0));
        cx.attributes_after(h, out);
        match &dir {
            Ok(dir) => cx.wcc(dir, out),
            Err(_) => drop(out.bool(false).bool(false)),
        }
    });
    Ok(())
}
