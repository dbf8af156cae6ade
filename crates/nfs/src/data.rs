//! Reading, writing, committing, and setting attributes.

use crate::attributes;
use crate::call::{Garbled, Results, Written};
use crate::context::{Asked, By, Cx, Held};
use crate::exports::status;
use crate::handle::MOST as MOST_HANDLE;
use crate::xdr::{Reader, Writer};
use base::sync::MutexExt;
use base::{Kind, Result};
use vfs::{OpenHow, WriteHow};
use zpl::attr::mode;
use zpl::{Attr, SetAttr, Time};

/// Most bytes that are read or written at a time.
pub const MOST: u32 = 512 << 10;
/// NFS3ERR_NOT_SYNC
const NOT_SYNC: u32 = 10_002;
/// Bit of access(2): execute.
const X: u32 = 1;

/// The caller as whom a file is opened. Its owner has it open, perhaps, from when the mode was another one: the protocol knows
/// of no open files.
fn opener<'a>(cx: &Cx<'a>, h: &Held<'_>) -> By<'a> {
    cx.by.checked_if(cx.by.owns(&h.entry.attr))
}

/// Permission to read, which permission to execute is as well.
fn open_to_read(cx: &Cx<'_>, h: &Held<'_>) -> Result<()> {
    let how = OpenHow {
        read: true,
        ..OpenHow::default()
    };
    let node = h.entry.node;
    let opened = match cx.door.open(&opener(cx, h), node, how) {
        Err(e) if e.kind == Kind::Access => {
            cx.door.access(&cx.by, node, X)?;
            cx.door.open(&cx.by.checked_if(true), node, how)?
        }
        opened => opened?,
    };
    cx.door.release(node, opened.handle);
    Ok(())
}

pub fn read(asked: &Asked<'_>, args: &mut Reader<'_>, out: Results<'_>) -> Written {
    let handle = args.opaque(MOST_HANDLE)?;
    let (offset, count) = (args.u64()?, args.u32()?.min(MOST));
    asked.on(handle, 1, out, |cx, h, out| {
        let begin = out.len();
        // Attributes and counts come before the data.
        let head = 4 + 4 + attributes::LEN + 12;
        out.bytes().resize(begin + head, 0);
        let done = open_to_read(cx, h).and_then(|()| {
            let bytes = out.bytes();
            let range = (offset, count as usize);
            cx.door
                .read(&cx.by, h.entry.node, range, false, &mut |b, r| {
                    bytes.extend_from_slice(&b[r]);
                })?;
            let a = cx.door.getattr(&cx.by, h.entry.node)?;
            Ok((bytes.len() - begin - head, a.attr))
        });
        match done {
            Ok((n, a)) => {
                let mut w = Writer::default();
                attributes::maybe(w.u32(0), cx.fsid(), Some(&a));
                let eof = offset.saturating_add(n as u64) >= a.size;
                w.u32(n as u32).bool(eof).u32(n as u32);
                out.bytes()[begin..begin + head].copy_from_slice(&w.into_bytes());
                out.pad();
            }
            Err(e) => {
                out.bytes().truncate(begin);
                out.u32(status(e.kind));
                cx.attributes_after(h, out);
            }
        }
    });
    Ok(())
}

/// How stable what was written shall be.
#[derive(Clone, Copy, PartialEq)]
enum Stable {
    No,
    Yes,
}

pub fn write(asked: &Asked<'_>, args: &mut Reader<'_>, out: Results<'_>) -> Written {
    let handle = args.opaque(MOST_HANDLE)?;
    let (offset, count) = (args.u64()?, args.u32()?);
    let stable = match args.u32()? {
        0 => Stable::No,
        // DATA_SYNC, FILE_SYNC: the log has the attributes, too.
        1 | 2 => Stable::Yes,
        _ => return Err(Garbled),
    };
    let data = args.opaque(MOST as usize)?;
    if data.len() < count as usize {
        return Err(Garbled);
    }
    let data = &data[..count as usize];
    asked.on(handle, 2, out, |cx, h, out| {
        let verifier = cx.export.opened.verifier();
        let done = cx
            .may_change(h)
            .and_then(|()| write_data(cx, h, (offset, data), stable));
        out.u32(done.as_ref().map_or_else(|e| status(e.kind), |_| 0));
        cx.wcc(h, out);
        if let Ok(n) = done {
            out.u32(n as u32).u32(match stable {
                Stable::No => 0,
                Stable::Yes => 2,
            });
            out.fixed(&verifier);
        }
    });
    Ok(())
}

fn write_data(
    cx: &Cx<'_>,
    h: &Held<'_>,
    (offset, data): (u64, &[u8]),
    stable: Stable,
) -> Result<usize> {
    let node = h.entry.node;
    match h.entry.attr.mode {
        m if mode::is_reg(m) => {}
        m if mode::is_dir(m) => return Err(Kind::IsDir.into()),
        _ => return Err(Kind::Invalid.into()),
    }
    let to_write = OpenHow {
        write: true,
        ..OpenHow::default()
    };
    let opened = cx.door.open(&opener(cx, h), node, to_write)?;
    let how = WriteHow {
        sync: stable == Stable::Yes,
        kill_suidgid: !cx.by.is_privileged(),
        ..WriteHow::default()
    };
    let done = cx.door.write(&cx.by, node, offset, data.into(), how);
    cx.door.release(node, opened.handle);
    done
}

pub fn commit(asked: &Asked<'_>, args: &mut Reader<'_>, out: Results<'_>) -> Written {
    let handle = args.opaque(MOST_HANDLE)?;
    // Whatever part of the file is meant: all of it.
    args.u64()?;
    args.u32()?;
    asked.on(handle, 2, out, |cx, h, out| {
        let done = cx.stable(h.entry.node);
        out.u32(done.as_ref().map_or_else(|e| status(e.kind), |_| 0));
        cx.wcc(h, out);
        if done.is_ok() {
            out.fixed(&cx.export.opened.verifier());
        }
    });
    Ok(())
}

pub fn setattr(asked: &Asked<'_>, args: &mut Reader<'_>, out: Results<'_>) -> Written {
    let handle = args.opaque(MOST_HANDLE)?;
    let set = attributes::read_set(args)?;
    let guard = args.maybe(attributes::read_time)?;
    asked.on(handle, 2, out, |cx, h, out| {
        let done = cx.may_change(h).and_then(|()| change(cx, h, &set, guard));
        out.u32(match done {
            Ok(true) => 0,
            Ok(false) => NOT_SYNC,
            Err(e) => status(e.kind),
        });
        cx.wcc(h, out);
    });
    Ok(())
}

/// Sets attributes if the object was changed last at the time of `guard`; whether it was.
fn change(cx: &Cx<'_>, h: &Held<'_>, set: &SetAttr, guard: Option<Time>) -> Result<bool> {
    let _alone = guard.map(|_| cx.export.opened.guarded.acquire());
    if let Some(guard) = guard {
        let now: Attr = cx.door.getattr(&cx.by, h.entry.node)?.attr;
        let mut shown = Writer::default();
        attributes::time(&mut shown, now.ctime);
        let mut wanted = Writer::default();
        attributes::time(&mut wanted, guard);
        if shown.into_bytes() != wanted.into_bytes() {
            return Ok(false);
        }
    }
    set_attributes(cx, h, set)?;
    Ok(true)
}

/// Sets attributes, durably. The owner of a file may change its size as who has it open.
pub fn set_attributes(cx: &Cx<'_>, h: &Held<'_>, set: &SetAttr) -> Result<()> {
    let owner = cx.by.owns(&h.entry.attr);
    let set = SetAttr {
        through_handle: owner,
        ..*set
    };
    // Setting nothing changes nothing here; it does for chown(2) with two times -1.
    let nothing = SetAttr {
        through_handle: owner,
        ..SetAttr::default()
    };
    if set == nothing {
        return Ok(());
    }
    cx.door.setattr(&cx.by, h.entry.node, &set)?;
    cx.stable(h.entry.node)
}
