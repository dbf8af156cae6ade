//! One object as text: its dnode, what it holds by its type, its tree of blocks.

use crate::context::Ctx;
use crate::fmt;
use crate::{attrs, raw};
use base::{Error, RangeSet, Result};
use disk::dsl::{
    bpobj_entry_is_free, BpobjPhys, BptreePhys, DeadlistPhys, DslDatasetPhys, DslDirPhys,
};
use disk::history::HistoryPhys;
use disk::spacemap::SpaceMapPhys;
use disk::{dnode::flags, BlkPtr, DnodePhys, NvList, ObjType};
use disk::{mos_keys, Checksum, Compression};
use dmu::Dnode;
use std::io::Write;
use zap::Zap;

/// Most bytes of a packed nvlist that are believed.
const MAX_NVLIST: u64 = 64 << 20;
/// Most words of an array of numbers that are shown.
const MAX_WORDS: usize = 1 << 20;

fn name_of(c: Compression) -> &'static str {
    match c {
        Compression::OFF => "uncompressed",
        c => c.name().unwrap_or("unknown"),
    }
}

/// One object.
pub fn show(c: &Ctx, object: u64, dn: &DnodePhys, depth: usize, out: &mut dyn Write) -> Result<()> {
    let num = c.s.num;
    let n = |v: u64| num.nice(v);
    let block = dn.block_size() as u64;
    let lsize = dn.maxblkid.saturating_add(1).saturating_mul(block);
    let fill: u64 = dn.blkptr.iter().fold(0, |a, b| a.saturating_add(b.fill()));
    let per = if object == 0 { 32 } else { 1 };
    let full = 100.0 * fill as f64 * block as f64 / per as f64 / lsize.max(1) as f64;
    let mut aux = String::new();
    if dn.checksum != Checksum::INHERIT || depth >= 6 {
        let name = dn.checksum.name().unwrap_or("unknown");
        aux += &format!(" (K={name})");
    }
    if dn.compress != Compression::INHERIT {
        let name = name_of(dn.compress);
        aux += &format!(" (Z={name})");
    } else if depth >= 6 {
        aux += " (Z=inherit)";
    }
    writeln!(
        out,
        "{:10}  {:3}  {:>5}  {:>5}  {:>5}  {:>6}  {:>5}  {full:6.2}  {}{aux}",
        object as i64,
        dn.nlevels,
        n(1 << dn.indblkshift.min(63)),
        n(block),
        // In whole sectors, as stat(2) would say.
        n((dn.used_bytes().saturating_add(256) >> 9) << 9),
        n(dn.size() as u64),
        n(lsize),
        fmt::type_name(dn.obj_type),
    )?;
    if depth <= 3 {
        return Ok(());
    }
    if dn.bonus_type != ObjType::NONE {
        writeln!(
            out,
            "{:>48}   bonus  {}",
            n(dn.bonus.len() as u64),
            fmt::type_name(dn.bonus_type)
        )?;
    }
    let mut set = String::new();
    for (bit, name) in [
        (flags::USED_BYTES, "USED_BYTES "),
        (flags::USERUSED_ACCOUNTED, "USERUSED_ACCOUNTED "),
        (flags::USEROBJUSED_ACCOUNTED, "USEROBJUSED_ACCOUNTED "),
        (flags::SPILL_BLKPTR, "SPILL_BLKPTR"),
    ] {
        if dn.flags & bit != 0 {
            set += name;
        }
    }
    writeln!(out, "\tdnode flags: {set}")?;
    writeln!(out, "\tdnode maxblkid: {}", dn.maxblkid)?;
    let locked = c.is_locked();
    if locked && dn.bonus_type.is_encrypted() {
        writeln!(out, "\t\t(bonus encrypted)")?;
    } else if let Err(e) = bonus(c, object, dn, depth, out) {
        c.s.complain(out, &format!("\tbonus: {e}"), 2)?;
    }
    if locked && dn.obj_type.is_encrypted() {
        writeln!(out, "\t\t(object encrypted)")?;
    } else if let Err(e) = content(c, object, dn, depth, out) {
        c.s.complain(out, &format!("\tcontent: {e}"), 2)?;
    }
    if depth >= 5 {
        indirect(c, dn, depth, out)?;
        segments(c, dn, out)?;
    }
    Ok(())
}

fn bonus(c: &Ctx, object: u64, dn: &DnodePhys, depth: usize, out: &mut dyn Write) -> Result<()> {
    let b = &dn.bonus;
    let num = c.s.num;
    let n = |v: u64| num.nice(v);
    match dn.bonus_type {
        ObjType::DSL_DIR => {
            let d = DslDirPhys::decode(b)?;
            writeln!(out, "\t\tcreation_time = {}", fmt::time(d.creation_time))?;
            writeln!(out, "\t\thead_dataset_obj = {}", d.head_dataset_obj)?;
            writeln!(out, "\t\tparent_dir_obj = {}", d.parent_obj)?;
            writeln!(out, "\t\torigin_obj = {}", d.origin_obj)?;
            writeln!(out, "\t\tchild_dir_zapobj = {}", d.child_dir_zapobj)?;
            writeln!(out, "\t\tused_bytes = {}", n(d.used_bytes))?;
            writeln!(out, "\t\tcompressed_bytes = {}", n(d.compressed_bytes))?;
            writeln!(out, "\t\tuncompressed_bytes = {}", n(d.uncompressed_bytes))?;
            writeln!(out, "\t\tquota = {}", n(d.quota))?;
            writeln!(out, "\t\treserved = {}", n(d.reserved))?;
            writeln!(out, "\t\tprops_zapobj = {}", d.props_zapobj)?;
            writeln!(out, "\t\tdeleg_zapobj = {}", d.deleg_zapobj)?;
            writeln!(out, "\t\tflags = {:x}", d.flags)?;
            let parts = ["HEAD", "SNAP", "CHILD", "CHILD_RSRV", "REFRSRV"];
            for (name, v) in parts.iter().zip(d.used_breakdown) {
                writeln!(out, "\t\tused_breakdown[{name}] = {}", n(v))?;
            }
            writeln!(out, "\t\tclones = {}", d.clones)?;
        }
        ObjType::DSL_DATASET => {
            let d = DslDatasetPhys::decode(b)?;
            writeln!(out, "\t\tdir_obj = {}", d.dir_obj)?;
            writeln!(out, "\t\tprev_snap_obj = {}", d.prev_snap_obj)?;
            writeln!(out, "\t\tprev_snap_txg = {}", d.prev_snap_txg)?;
            writeln!(out, "\t\tnext_snap_obj = {}", d.next_snap_obj)?;
            writeln!(out, "\t\tsnapnames_zapobj = {}", d.snapnames_zapobj)?;
            writeln!(out, "\t\tnum_children = {}", d.num_children)?;
            writeln!(out, "\t\tuserrefs_obj = {}", d.userrefs_obj)?;
            writeln!(out, "\t\tcreation_time = {}", fmt::time(d.creation_time))?;
            writeln!(out, "\t\tcreation_txg = {}", d.creation_txg)?;
            writeln!(out, "\t\tdeadlist_obj = {}", d.deadlist_obj)?;
            writeln!(out, "\t\tused_bytes = {}", n(d.referenced_bytes))?;
            writeln!(out, "\t\tcompressed_bytes = {}", n(d.compressed_bytes))?;
            writeln!(out, "\t\tuncompressed_bytes = {}", n(d.uncompressed_bytes))?;
            writeln!(out, "\t\tunique = {}", n(d.unique_bytes))?;
            writeln!(out, "\t\tfsid_guid = {}", d.fsid_guid)?;
            writeln!(out, "\t\tguid = {}", d.guid)?;
            writeln!(out, "\t\tflags = {:x}", d.flags)?;
            writeln!(out, "\t\tnext_clones_obj = {}", d.next_clones_obj)?;
            writeln!(out, "\t\tprops_obj = {}", d.props_obj)?;
            writeln!(out, "\t\tbp = {}", fmt::bp(&d.bp))?;
        }
        ObjType::BPOBJ_HDR => {
            let p = BpobjPhys::decode(b)?;
            writeln!(out, "\t\tnum_blkptrs = {}", p.num_blkptrs)?;
            writeln!(out, "\t\tbytes = {}", n(p.bytes))?;
            // OpenZFS shows what a short bonus lacks as zero, too.
            writeln!(out, "\t\tcomp = {}", n(p.comp))?;
            writeln!(out, "\t\tuncomp = {}", n(p.uncomp))?;
            writeln!(out, "\t\tsubobjs = {}", p.subobjs)?;
            writeln!(out, "\t\tnum_subobjs = {}", p.num_subobjs)?;
            writeln!(out, "\t\tnum_freed = {}", p.num_freed)?;
            if depth >= 5 {
                pointers(c, dn, &p, depth, out)?;
            }
        }
        ObjType::DEADLIST_HDR if depth >= 6 => {
            let p = DeadlistPhys::decode(b)?;
            writeln!(out, "\t\tused = {}", n(p.used))?;
            writeln!(out, "\t\tcomp = {}", n(p.comp))?;
            writeln!(out, "\t\tuncomp = {}", n(p.uncomp))?;
        }
        ObjType::SPA_HISTORY_OFFSETS => {
            let h = HistoryPhys::decode(b)?;
            writeln!(out, "\t\tpool_create_len = {}", h.pool_create_len)?;
            writeln!(out, "\t\tphys_max_off = {}", h.phys_max_off)?;
            writeln!(out, "\t\tbof = {}", h.bof)?;
            writeln!(out, "\t\teof = {}", h.eof)?;
            writeln!(out, "\t\trecords_lost = {}", h.records_lost)?;
        }
        ObjType::SA | ObjType::ZNODE => attrs::show(c, object, dn, depth, out)?,
        ObjType::SPACE_MAP_HEADER => {
            let p = SpaceMapPhys::decode(b)?;
            writeln!(out, "\t\tsmp_length = {:#x}", p.length)?;
            writeln!(out, "\t\tsmp_alloc = {:#x}", p.alloc)?;
        }
        ObjType::PACKED_NVLIST_SIZE | ObjType::NONE | ObjType::DEADLIST_HDR => {}
        t if t.is_zap() => {}
        _ if b.is_empty() => {}
        t if t.swap_class() == disk::SwapClass::U64 => {
            let words: Vec<String> = b
                .chunks_exact(8)
                .map(|w| format!("{:x}", disk::bytes::u64_at(w, 0).unwrap_or(0)))
                .collect();
            writeln!(out, "\t\t[{}]", words.join(", "))?;
        }
        _ => writeln!(out, "\t\t{}", fmt::hex(b))?,
    }
    Ok(())
}

fn pointers(
    c: &Ctx,
    dn: &DnodePhys,
    p: &BpobjPhys,
    depth: usize,
    out: &mut dyn Write,
) -> Result<()> {
    let per = (dn.block_size() / disk::BP_SIZE).max(1) as u64;
    let copies = if depth > 5 { 3 } else { 1 };
    for i in 0..p
        .num_blkptrs
        .min(dn.maxblkid.saturating_add(1).saturating_mul(per))
    {
        let b = c.set.block(dn, i / per)?;
        let bp = BlkPtr::at(&b, (i % per) as usize)?;
        // Only lists of blocks of both kinds count those that were freed.
        let freed = p.num_freed > 0 && bpobj_entry_is_free(&bp);
        writeln!(out, "\t{}", fmt::bp_listed(&bp, copies, freed))?;
    }
    Ok(())
}

/// What an object holds, by its type.
fn content(c: &Ctx, object: u64, dn: &DnodePhys, depth: usize, out: &mut dyn Write) -> Result<()> {
    match dn.obj_type {
        t if t.is_zap() => zap_content(c, object, dn, out),
        ObjType::PACKED_NVLIST => {
            let dn = c.hold(object)?;
            Ok(write!(out, "{}", packed(&dn)?.dump(8))?)
        }
        t if t == ObjType::OBJECT_ARRAY
            || t.0 & 0x80 != 0 && t.swap_class() == disk::SwapClass::U64 =>
        {
            match depth >= 6 {
                true => words(c, dn, out),
                false => Ok(()),
            }
        }
        ObjType::BPOBJ if dn.bonus_type == ObjType::NONE && dn.bonus.len() >= 40 => {
            let p = BptreePhys::decode(&dn.bonus)?;
            writeln!(out, "\t\tbptree: begin {}, end {}", p.begin, p.end)?;
            Ok(())
        }
        ObjType::FUID if depth >= 4 => {
            let size = match disk::bytes::u64_at(&dn.bonus, 0) {
                Ok(n) if n <= 1 << 20 => n as usize,
                _ => return Ok(()),
            };
            let mut b = vec![0; size];
            c.hold(object)?.read(0, &mut b)?;
            let table = disk::fuid::FuidTable::unpack(&b)?;
            for i in 1.. {
                match table.domain(i) {
                    Some(d) => writeln!(out, "\t\t{i}: {}", fmt::text(d.as_bytes()))?,
                    None => break,
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// A packed nvlist, whose length is in the bonus.
pub fn packed(dn: &Dnode) -> Result<NvList> {
    let len = disk::bytes::u64_at(&dn.bonus(), 0)
        .map_err(|_| Error::damaged("packed nvlist without a length"))?;
    let i = dn.info();
    let room = (i.max_blkid.saturating_add(1)).saturating_mul(i.block_size as u64);
    if len > room.min(MAX_NVLIST) {
        return Err(Error::damaged(format!("packed nvlist of {len} bytes")));
    }
    let mut b = vec![0; len as usize];
    dn.read(0, &mut b)?;
    NvList::unpack(&b)
}

/// An array of 64-bit words, four in a line.
fn words(c: &Ctx, dn: &DnodePhys, out: &mut dyn Write) -> Result<()> {
    let mut all = Vec::new();
    for id in 0..=dn.maxblkid {
        let b = c.set.block(dn, id)?;
        if b.is_empty() {
            all.resize(all.len() + dn.block_size() / 8, 0);
        } else {
            all.extend(disk::bytes::u64s(&b));
        }
        if all.len() > MAX_WORDS {
            break;
        }
    }
    write!(out, "\t\t[")?;
    for (i, w) in all.iter().enumerate() {
        if i > 0 {
            write!(out, "{}", if i % 4 == 0 { ",\n\t\t" } else { ", " })?;
        }
        write!(out, "{w:x}")?;
    }
    Ok(writeln!(out, "]")?)
}

fn zap_content(c: &Ctx, object: u64, dn: &DnodePhys, out: &mut dyn Write) -> Result<()> {
    let held = c.hold(object)?;
    let zap = Zap::new(&*held).longname(true);
    let stats = zap.stats()?;
    match &stats.fat {
        None => writeln!(
            out,
            "\tmicrozap: {} bytes, {} entries\n",
            dn.block_size(),
            stats.entries
        )?,
        Some(f) => {
            writeln!(out, "\tFat ZAP stats:")?;
            writeln!(out, "\t\tPointer table:")?;
            writeln!(out, "\t\t\t{} elements", 1u64 << f.shift.min(63))?;
            writeln!(out, "\t\t\tzt_blk: {}", f.table_block)?;
            writeln!(out, "\t\t\tzt_numblks: {}", f.table_blocks)?;
            writeln!(out, "\t\t\tzt_shift: {}", f.shift)?;
            writeln!(out, "\t\t\tzt_blks_copied: {}", f.table_copied)?;
            writeln!(out, "\t\t\tzt_nextblk: {}", f.table_next)?;
            writeln!(out, "\t\tZAP entries: {}", stats.entries)?;
            writeln!(out, "\t\tLeaf blocks: {}", f.leaves)?;
            writeln!(out, "\t\tTotal blocks: {}", f.blocks)?;
            writeln!(out, "\t\tzap_block_type: {:#x}", f.block_type)?;
            writeln!(out, "\t\tzap_magic: {:#x}", f.magic)?;
            writeln!(out, "\t\tzap_salt: {:#x}", f.salt)?;
            for (title, counts) in [
                ("Leafs with 2^n pointers:", &f.leaf_pointers),
                ("Blocks with n*5 entries:", &f.leaf_entries),
                ("Blocks n/10 full:", &f.leaf_fullness),
                ("Entries with n chunks:", &f.entry_chunks),
                ("Buckets with n entries:", &f.bucket_entries),
            ] {
                writeln!(out, "\t\t{title}")?;
                fmt::histogram(out, counts, 0)?;
            }
            writeln!(out)?;
        }
    }
    for e in zap.iter() {
        let e = e?;
        let v = e.value.ints();
        let name = match stats.word_keys {
            true => {
                let w: Vec<String> = e.words().iter().map(|w| format!("{w:016x}")).collect();
                w.join(":")
            }
            false => fmt::text(&e.name),
        };
        match dn.obj_type {
            ObjType::DIRECTORY_CONTENTS => {
                let v = e.value.as_u64().unwrap_or(0);
                let kind = match v >> 60 {
                    0 => "not specified".to_string(),
                    1 => "FIFO".into(),
                    2 => "Character Device".into(),
                    4 => "Directory".into(),
                    6 => "Block Device".into(),
                    8 => "Regular File".into(),
                    10 => "Symbolic Link".into(),
                    12 => "Socket".into(),
                    13 => "Door".into(),
                    14 => "Event Port".into(),
                    n => format!("{n} (invalid)"),
                };
                let object = v & ((1 << 48) - 1);
                writeln!(out, "\t\t{name} = {object} (type: {kind})")?;
            }
            ObjType::SA_ATTR_REGISTRATION => {
                let v = v.first().copied().unwrap_or(0);
                let (length, swap, attr) = (v >> 24 & 0xffff, v >> 16 & 0xff, v & 0xffff);
                writeln!(out, "\t\t{name} = {v:x} : [{length}:{swap}:{attr}]")?;
            }
            ObjType::SA_ATTR_LAYOUTS => {
                let list: Vec<String> = v.iter().map(|n| format!("{n} ")).collect();
                writeln!(out, "\t\t{name} = [ {} ]", list.join(" "))?;
            }
            _ if e.value.size == 1 => {
                let secret = name == mos_keys::CHECKSUM_SALT || name.starts_with("DSL_CRYPTO_");
                let text = match secret || stats.word_keys {
                    true => fmt::hex(&e.value.data),
                    false => {
                        let end = e.value.data.iter().position(|b| *b == 0);
                        let end = end.unwrap_or(e.value.data.len());
                        fmt::text(&e.value.data[..end])
                    }
                };
                writeln!(out, "\t\t{name} = {text}")?;
            }
            _ => {
                let list: Vec<String> = v.iter().map(|n| format!("{} ", *n as i64)).collect();
                writeln!(out, "\t\t{name} = {}", list.concat())?;
            }
        }
    }
    Ok(())
}

/// `Indirect blocks:`, every pointer by the offset it is for.
fn indirect(c: &Ctx, dn: &DnodePhys, depth: usize, out: &mut dyn Write) -> Result<()> {
    let copies = if depth > 5 { 3 } else { 1 };
    let in_full = c.s.times('b') > 5;
    let pointer = |bp: &BlkPtr| match in_full {
        true => fmt::bp(bp),
        false => fmt::bp_short(bp, copies),
    };
    if let Some(bp) = dn.spill.filter(|b| !b.is_hole()) {
        writeln!(out, "\nSpill block: {}", pointer(&bp))?;
    }
    writeln!(out, "Indirect blocks:")?;
    let top = i64::from(dn.nlevels) - 1;
    let block = dn.block_size() as u64;
    let zstd = c.s.has('Z');
    let mut bad = Vec::new();
    raw::tree(
        c.set.zio,
        dn,
        &raw::with_holes(),
        &mut |bp, level, first| {
            write!(out, "{:16x} ", first.wrapping_mul(block))?;
            for l in (-1..=top).rev() {
                match l == i64::from(level) {
                    true => write!(out, "L{level:x}")?,
                    false => write!(out, " ")?,
                }
            }
            write!(out, "{}", pointer(bp))?;
            if zstd {
                write!(out, "{}", zstd_note(c, bp))?;
            }
            Ok(writeln!(out)?)
        },
        &mut |bp, e| bad.push(format!("{}: {e}", fmt::bp_short(bp, 3))),
    )?;
    for line in bad {
        c.s.complain(out, &line, 2)?;
    }
    writeln!(out)?;
    Ok(())
}

/// What the header of a block compressed with zstd says (`-Z`).
fn zstd_note(c: &Ctx, bp: &BlkPtr) -> String {
    if bp.compress() != Compression::ZSTD || bp.is_hole() {
        return String::new();
    }
    if bp.is_encrypted() {
        return " ZSTD:encrypted".into();
    }
    let raw = match bp.is_embedded() {
        true => Ok(bp.embedded_payload()),
        false => c.set.zio.read_raw(bp),
    };
    let word = |b: &[u8], at: usize| b.get(at..at + 4).and_then(|w| <[u8; 4]>::try_from(w).ok());
    match raw {
        Ok(b) => match (word(&b, 0), word(&b, 4)) {
            (Some(size), Some(info)) => {
                let (size, info) = (u32::from_be_bytes(size), u32::from_be_bytes(info));
                let (version, level) = (info >> 8, info & 0xff);
                let kind = if bp.is_embedded() {
                    "EMBEDDED"
                } else {
                    "NORMAL"
                };
                format!(" ZSTD:size={size}:version={version}:level={level}:{kind}")
            }
            _ => " ZSTD:invalid".into(),
        },
        Err(e) => format!(" ZSTD:{e}"),
    }
}

/// The ranges of an object that hold data.
fn segments(c: &Ctx, dn: &DnodePhys, out: &mut dyn Write) -> Result<()> {
    let block = dn.block_size() as u64;
    // Of dnodes, slots in use count; of all else, blocks.
    if dn.obj_type == ObjType::DNODE {
        let mut set = RangeSet::new();
        c.set.each(
            &mut |object, d| {
                let from = object.saturating_mul(512);
                set.insert(from, from.saturating_add(d.size() as u64));
                Ok(())
            },
            &mut |_, _| {},
        )?;
        for (start, end) in set.iter() {
            segment(c, start, end, out)?;
        }
        writeln!(out)?;
        return Ok(());
    }
    let mut set = RangeSet::new();
    // The only block of a small file has any size; whether it is a hole is not looked at.
    if !block.is_power_of_two() {
        set.insert(0, block);
    }
    raw::tree(
        c.set.zio,
        dn,
        &walk::Spec::all(walk::Order::ParentsFirst),
        &mut |_, level, first| {
            if level == 0 {
                let at = first.saturating_mul(block);
                set.insert(at, at.saturating_add(block));
            }
            Ok(())
        },
        &mut |_, _| {},
    )?;
    for (start, end) in set.iter() {
        segment(c, start, end, out)?;
    }
    Ok(writeln!(out)?)
}

fn segment(c: &Ctx, start: u64, end: u64, out: &mut dyn Write) -> Result<()> {
    Ok(writeln!(
        out,
        "\t\tsegment [{start:016x}, {end:016x}) size {:>5}",
        c.s.num.nice(end - start)
    )?)
}
