//! `-i`: intent logs.

use crate::fmt;
use crate::raw::Set;
use crate::Session;
use base::{Result, Txg};
use disk::zil::{Body, Create, CreateKind, WriteData, ZilHeader};
use std::cell::RefCell;
use std::io::Write;

/// Types of records.
const TYPES: usize = 25;

/// The log of a dataset. From the second degree on its records, from the third what they say, from the
/// fourth its blocks.
pub fn show(
    s: &Session,
    set: &Set,
    snapshot: bool,
    depth: usize,
    out: &mut dyn Write,
) -> Result<()> {
    let h = ZilHeader::decode(&set.phys.zil_header)?;
    if h.log.is_hole() || snapshot {
        return Ok(());
    }
    writeln!(
        out,
        "\n    ZIL header: claim_txg {}, claim_blk_seq {}, claim_lr_seq {} replay_seq {}, flags {:#x}\n",
        h.claim_txg, h.claim_blk_seq, h.claim_lr_seq, h.replay_seq, h.flags
    )?;
    if depth < 2 {
        return Ok(());
    }
    let first = s.pool.first_txg();
    let lines = RefCell::new(Vec::new());
    let counts = RefCell::new([0u64; TYPES]);
    zil::walk(
        &audit::ReadOnlyLog(&s.pool),
        &h.log,
        (u64::MAX, u64::MAX),
        &mut |bp| {
            let claim = match bp.logical_birth() >= first {
                true => "will claim",
                false => "won't claim",
            };
            let claim = match h.claim_txg {
                Txg::NONE => claim,
                _ => "already claimed",
            };
            let mut line = format!("\tBlock seqno {}, {claim}", bp.checksum()[3]);
            if depth >= 5 {
                line += &format!(", {}", fmt::bp(bp));
            }
            if depth >= 4 {
                lines.borrow_mut().push(line);
            }
            Ok(true)
        },
        &mut |r| {
            if let Some(n) = counts.borrow_mut().get_mut(r.ty as usize) {
                *n += 1;
            }
            let mut lines = lines.borrow_mut();
            match r.decode() {
                Ok(rec) => {
                    let ci = if rec.ignore_case { "CI-" } else { "" };
                    lines.push(format!(
                        "\t\t{ci}{:<18}  len {:6}, txg {}, seq {}",
                        rec.body.type_name(),
                        r.bytes.len(),
                        rec.txg,
                        rec.seq
                    ));
                    if depth >= 3 {
                        record(&rec.body, depth, &mut lines);
                    }
                }
                Err(e) => lines.push(format!("\t\trecord of type {}: {e}", r.ty)),
            }
            Ok(true)
        },
    )?;
    for line in lines.into_inner() {
        writeln!(out, "{line}")?;
    }
    let counts = counts.into_inner();
    let total: u64 = counts.iter().sum();
    if total > 0 {
        writeln!(out, "\n\t\t{:<18}{total:3}", "Total")?;
        for (ty, n) in counts.iter().enumerate().skip(1) {
            let unknown = Body::Unknown {
                txtype: ty as u64,
                body: Vec::new(),
            };
            if depth >= 3 || *n > 0 {
                writeln!(out, "\t\t{:<18}{n:3}", unknown.type_name())?;
            }
        }
    }
    Ok(writeln!(out)?)
}

fn line(out: &mut Vec<String>, text: String) {
    out.push(format!("\t\t\t{text}"));
}

fn create(c: &Create, out: &mut Vec<String>) {
    let name = fmt::text(&c.name);
    let first = match c.kind {
        CreateKind::Symlink => format!("{name} -> {}", fmt::text(&c.target)),
        _ => name,
    };
    line(out, first);
    line(out, fmt::time(c.crtime[0]));
    let (parent, object, slots, mode) = (c.parent, c.object, c.slots, c.mode);
    line(
        out,
        format!("doid {parent}, foid {object}, slots {slots}, mode {mode:o}"),
    );
    let (uid, gid, gen, rdev) = (c.uid, c.gid, c.gen, c.rdev);
    line(
        out,
        format!("uid {uid}, gid {gid}, gen {gen}, rdev {rdev:#x}"),
    );
}

fn written(data: &WriteData, depth: usize, out: &mut Vec<String>) {
    match data {
        WriteData::Indirect(bp) if depth >= 4 => line(out, format!("has blkptr, {}", fmt::bp(bp))),
        WriteData::Inline(b) if depth >= 5 => {
            let shown = b.get(..32).unwrap_or(b);
            line(out, fmt::hex(shown));
        }
        WriteData::Inline(_) | WriteData::Indirect(_) => {}
        WriteData::Zeros => line(out, "zeros".into()),
    }
}

fn attributes(body: &Body, out: &mut Vec<String>) {
    let Body::SetAttr {
        object,
        mask,
        mode,
        uid,
        gid,
        size,
        atime,
        mtime,
        ..
    } = body
    else {
        return;
    };
    line(out, format!("foid {object}, mask {mask:#x}"));
    // Bits of the mask (pool format §26): mode, uid, gid, size, atime, mtime.
    for (bit, text) in [
        (1, format!("VA_MODE  {mode:o}")),
        (2, format!("VA_UID   {uid}")),
        (4, format!("VA_GID   {gid}")),
        (8, format!("VA_SIZE  {size}")),
        (16, format!("VA_ATIME {}", fmt::time(atime[0]))),
        (32, format!("VA_MTIME {}", fmt::time(mtime[0]))),
    ] {
        if mask & bit != 0 {
            line(out, text);
        }
    }
}

fn record(body: &Body, depth: usize, out: &mut Vec<String>) {
    let name = fmt::text;
    match body {
        Body::Create(c) => create(c, out),
        Body::Remove {
            parent, name: n, ..
        } => line(out, format!("doid {parent}, name {}", name(n))),
        Body::Link {
            parent,
            object,
            name: n,
        } => line(
            out,
            format!("doid {parent}, link_obj {object}, name {}", name(n)),
        ),
        Body::Rename {
            source_dir,
            target_dir,
            source,
            target,
            ..
        }
        | Body::RenameWhiteout {
            source_dir,
            target_dir,
            source,
            target,
            ..
        } => {
            line(out, format!("sdoid {source_dir}, tdoid {target_dir}"));
            line(out, format!("src {} tgt {}", name(source), name(target)));
        }
        Body::Write {
            object,
            offset,
            length,
            data,
        } => {
            line(
                out,
                format!("foid {object}, offset {offset:x}, length {length:x}"),
            );
            written(data, depth, out);
        }
        Body::Extend {
            object,
            offset,
            length,
        }
        | Body::Truncate {
            object,
            offset,
            length,
        } => line(
            out,
            format!("foid {object}, offset {offset:#x}, length {length:#x}"),
        ),
        Body::SetAttr { .. } => attributes(body, out),
        Body::AclV0 {
            object, ace_count, ..
        } => line(out, format!("foid {object}, aclcnt {ace_count}")),
        Body::Acl { object, acl } => line(out, format!("foid {object}, aclcnt {}", acl.ace_count)),
        Body::SetSaXattr {
            object,
            name: n,
            value,
        } => {
            line(out, format!("foid {object}"));
            line(out, format!("XAT_NAME  {}", name(n)));
            match value.is_empty() {
                true => line(out, "XAT_VALUE NULL".into()),
                false => line(out, format!("XAT_VALUE {} bytes", value.len())),
            }
        }
        Body::CloneRange {
            object,
            offset,
            length,
            block_size,
            bps,
        } => {
            line(
                out,
                format!(
                    "foid {object}, offset {offset:x}, length {length:x}, blksize {block_size:x}"
                ),
            );
            for bp in bps.iter().filter(|_| depth >= 5) {
                line(out, fmt::bp(bp));
            }
        }
        Body::Unknown { txtype, body } => line(out, format!("type {txtype}, {} bytes", body.len())),
    }
}
