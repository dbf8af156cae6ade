//! `-l`: labels and uberblocks of a device. `-u`: the uberblock of a pool.

use crate::{fmt, Session};
use base::{Error, Result, Txg};
use cli::Parsed;
use codec::{checksum, compress};
use disk::label::{label_offset, psize, LABELS, NVLIST_MAX};
use disk::uberblock::Uberblock;
use disk::{l2arc, Checksum, Compression, NvList, Value};
use env::{Access, Disk};
use std::collections::BTreeSet;
use std::io::Write;
use vdev::label::{read_labels, read_uberblocks};

const RULE: &str = "------------------------------------";
/// Bytes of the header of a cache device that are looked at.
const L2ARC_HEADER: usize = 4096;

/// Those that are in this label first, and in which others; with more detail the slots that hold none,
/// and with more still all of them. `head` is what the label begins with, if it is not written yet.
fn show_uberblocks(
    blocks: &[(Uberblock, usize, Vec<usize>)],
    label: usize,
    (slots, depth): (usize, usize),
    mut head: Option<String>,
    out: &mut dyn Write,
) -> Result<()> {
    for slot in 0..slots {
        let here = (blocks.iter()).find(|b| b.1 == slot && b.2.contains(&label));
        match here {
            Some(b) if depth < 3 && b.2[0] != label => continue,
            None if depth < 2 => continue,
            _ => {}
        }
        if let Some(head) = head.take() {
            writeln!(out, "{head}")?;
        }
        let Some((ub, _, at)) = here else {
            writeln!(out, "    Uberblock[{slot}] invalid")?;
            continue;
        };
        writeln!(out, "    Uberblock[{slot}]")?;
        print(ub, depth, out)?;
        let at: Vec<String> = at.iter().map(usize::to_string).collect();
        writeln!(out, "        labels = {} ", at.join(" "))?;
    }
    Ok(())
}

/// `-l`: gives the exit status: 2 if there is no label, 1 if one is not whole.
pub fn show(args: &Parsed, path: &str, out: &mut dyn Write) -> Result<u8> {
    let path = match std::path::absolute(path) {
        Ok(p) if p.exists() => p.to_string_lossy().into_owned(),
        _ => env_linux::find::resolve(path)
            .ok_or_else(|| Error::new(base::Kind::NotFound, format!("no device '{path}'")))?,
    };
    let disk = env_linux::linux_env().disks.open(&path, Access::Read)?;
    let labels = read_labels(&*disk);
    let depth = crate::times(args, "l");
    let uberblocks = crate::times(args, "u");
    let quiet = args.has("q");
    let mut blocks: Vec<(Uberblock, usize, Vec<usize>)> = Vec::new();
    let ashift = labels
        .best(Txg::MAX)
        .and_then(|c| c.get_nvlist("vdev_tree")?.get_u64("ashift"))
        .unwrap_or(9);
    let mut slots = 0;
    if uberblocks > 0 {
        slots = disk::uberblock::slot_count(ashift as u32);
        for (label, slot, ub) in read_uberblocks(&*disk, ashift as u32) {
            let same = |b: &&mut (Uberblock, usize, Vec<usize>)| b.1 == slot && b.0 == ub;
            match blocks.iter_mut().find(same) {
                Some((_, _, at)) => at.push(label),
                None => blocks.push((ub, slot, vec![label])),
            }
        }
        blocks.sort_by_key(|b| (b.2[0], b.1));
    }
    let mut shown: Vec<&NvList> = Vec::new();
    let intact = labels.good();
    let copies: Vec<Option<NvList>> = (0..LABELS)
        .map(|i| labels.copies[i].clone().or_else(|| unverified(&*disk, i)))
        .collect();
    for (i, copy) in copies.iter().enumerate() {
        let Some(config) = copy else {
            if !quiet {
                writeln!(out, "failed to unpack label {i}")?;
            }
            // Its uberblocks may be whole all the same.
            let head = (!quiet).then(|| head(i, true));
            show_uberblocks(&blocks, i, (slots, uberblocks), head, out)?;
            continue;
        };
        let seen = shown.contains(&config);
        let mut head = (!quiet).then(|| head(i, labels.damaged[i]));
        if let (Some(text), true) = (&head, !seen || depth > 2) {
            shown.push(config);
            writeln!(out, "{text}")?;
            head = None;
            write!(out, "{}", config.dump(4))?;
            let same: Vec<String> = (0..LABELS)
                .filter(|j| copies[*j].as_ref() == Some(config))
                .map(|j| j.to_string())
                .collect();
            writeln!(out, "    labels = {} ", same.join(" "))?;
            if depth > 1 {
                space(config, out)?;
            }
        }
        show_uberblocks(&blocks, i, (slots, uberblocks), head, out)?;
    }
    l2arc(&*disk, quiet, out)?;
    Ok(match intact {
        0 => 2,
        LABELS if labels.damaged.iter().all(|d| !d) => 0,
        _ => 1,
    })
}

/// The configuration of a label whose checksum is wrong, if it can be unpacked all the same.
fn unverified(disk: &dyn Disk, label: usize) -> Option<NvList> {
    let at = label_offset(label, disk.geometry().size)? + disk::label::NVLIST_OFFSET;
    let mut area = vec![0; disk::label::NVLIST_SIZE];
    disk.read(at, &mut area).ok()?;
    let config = disk::label::unpack_config(&area).ok()?;
    (!config.pairs.is_empty()).then_some(config)
}

fn head(label: usize, damaged: bool) -> String {
    let bad = match damaged {
        true => " (Bad label cksum)",
        false => " ",
    };
    format!("{RULE}\nLABEL {label}{bad}\n{RULE}")
}

/// How much of the room of a label its configuration takes, and what for.
fn space(config: &NvList, out: &mut dyn Write) -> Result<()> {
    #[derive(Default)]
    struct Part(usize, usize);
    let mut parts: [Part; 4] = Default::default();
    // Size of a pair: 12 bytes of head and 4 of padding, the name, the value, all by fours.
    fn add(list: &NvList, parts: &mut [Part; 4]) {
        parts[3].0 += 1;
        parts[3].1 += 12;
        for (name, value) in &list.pairs {
            let head = 20 + name.len().div_ceil(4) * 4;
            let (i, len) = match value {
                Value::String(s) => (1, 4 + s.len().div_ceil(4) * 4),
                Value::RawString(s) => (1, 4 + s.len().div_ceil(4) * 4),
                Value::Boolean => (2, 0),
                Value::NvList(l) => {
                    add(l, parts);
                    parts[3].1 += head;
                    continue;
                }
                Value::NvListArray(a) => {
                    for l in a {
                        add(l, parts);
                    }
                    parts[3].1 += head;
                    continue;
                }
                Value::Uint64Array(a) => (0, 4 + 8 * a.len()),
                _ => (0, 8),
            };
            parts[i].0 += 1;
            parts[i].1 += head + len;
        }
    }
    let used = config.pack_xdr().len();
    add(config, &mut parts);
    let percent = |n: usize, of: usize| 100.0 * n as f64 / of.max(1) as f64;
    writeln!(out, "\n\nZFS Label NVList Config Stats:")?;
    writeln!(
        out,
        "  {used} bytes used, {} bytes free (using {:4.1}%)\n",
        NVLIST_MAX.saturating_sub(used),
        percent(used, NVLIST_MAX)
    )?;
    for (name, p) in ["integers", "strings", "booleans", "nvlists"]
        .iter()
        .zip(&parts)
    {
        if p.0 > 0 {
            writeln!(
                out,
                "{:>12} {:4} {:6} bytes ({:5.2}%)",
                format!("{name}:"),
                p.0,
                p.1,
                percent(p.1, used)
            )?;
        }
    }
    Ok(writeln!(out, "\n")?)
}

/// The header of a cache device, if there is one, and its log blocks.
fn l2arc(disk: &dyn Disk, quiet: bool, out: &mut dyn Write) -> Result<()> {
    let size = psize(disk.geometry().size);
    if label_offset(0, size).is_none() || size < disk::label::DATA_START + 4096 {
        return Ok(());
    }
    let mut buf = vec![0; L2ARC_HEADER];
    let read = disk.read(l2arc::HEADER_AT, &mut buf);
    let word = |i: usize| disk::bytes::u64_at(&buf, 8 * i).unwrap_or(0);
    if read.is_err() || word(0) != l2arc::HEADER_MAGIC || quiet {
        return Ok(());
    }
    writeln!(out, "{RULE}\nL2ARC device header\n{RULE}")?;
    for (name, i) in [
        ("magic", 0),
        ("version", 1),
        ("pool_guid", 2),
        ("flags", 6),
        // Where the two newest blocks of its log are.
        ("start_lbps[0]", 9),
        ("start_lbps[1]", 17),
        ("log_blk_ent", 4),
        ("start", 7),
        ("end", 8),
        ("evict", 5),
        ("lb_asize_refcount", 25),
        ("lb_count_refcount", 26),
        ("trim_action_time", 27),
        ("trim_state", 28),
    ] {
        writeln!(out, "    {name}: {}", word(i))?;
    }
    writeln!(out, "\n{RULE}\nL2ARC device log blocks\n{RULE}")?;
    let header = match l2arc::Header::decode(&buf) {
        Ok(h) if h.log_count > 0 => h,
        _ => return Ok(writeln!(out, "No log blocks to read\n")?),
    };
    let (mut good, mut bytes, mut bad) = (0, 0, 0);
    let mut next = header.newest;
    let mut seen = BTreeSet::new();
    while !next[0].is_none() && good < header.log_count && seen.insert(next[0].at) {
        let Ok(older) = log_block(disk, &next[0], header.entries) else {
            bad += 1;
            break;
        };
        good += 1;
        bytes += next[0].asize();
        next = [next[1], older];
    }
    writeln!(out, "log_blk_count:\t {good} with valid cksum")?;
    writeln!(out, "\t\t {bad} with invalid cksum")?;
    Ok(writeln!(out, "log_blk_asize:\t {bytes}\n")?)
}

/// Reads a log block; the place of the one before the previous one.
fn log_block(disk: &dyn Disk, l: &l2arc::LogPtr, entries: u64) -> Result<l2arc::LogPtr> {
    let size = l.asize().min(l2arc::LOG_SIZE as u64) as usize;
    let mut b = vec![0; size];
    disk.read(l.at, &mut b)?;
    if checksum::compute(Checksum::FLETCHER4, &b, false, &[0; 32])? != l.checksum {
        return Err(Error::damaged("log block of a cache device"));
    }
    let plain = match l.compression() {
        Compression::OFF => b,
        alg => compress::decompress(alg, &b, l2arc::LOG_SIZE)?,
    };
    l2arc::decode_log(&plain, entries).map(|(older, _)| older)
}

/// The uberblock in use.
pub fn uberblock(s: &Session, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "\nUberblock:")?;
    let newest = || Some(s.pool.tree().best_uberblock(s.pool.synced_txg())?.0);
    match s.kept.clone().or_else(newest) {
        Some(ub) => {
            print(&ub, s.depth('u').max(1), out)?;
            Ok(writeln!(out)?)
        }
        None => Err(Error::damaged("no valid uberblock")),
    }
}

/// The uberblock of the checkpoint, if there is one.
pub fn checkpoint(s: &Session, out: &mut dyn Write) -> Result<()> {
    let Some(ub) = s.checkpoint()? else {
        return Ok(());
    };
    writeln!(out, "\n\nCheckpointed uberblock found:")?;
    print(&ub, 1, out)?;
    Ok(writeln!(out)?)
}

pub fn print(ub: &Uberblock, depth: usize, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "\tmagic = {:016x}", disk::uberblock::MAGIC)?;
    writeln!(out, "\tversion = {}", ub.version)?;
    writeln!(out, "\ttxg = {}", ub.txg)?;
    writeln!(out, "\tguid_sum = {}", ub.guid_sum)?;
    let t = ub.timestamp;
    writeln!(out, "\ttimestamp = {t} UTC = {}", fmt::time(t))?;
    writeln!(out, "\tbp = {}", fmt::bp(&ub.rootbp))?;
    writeln!(out, "\tmmp_magic = {:016x}", ub.mmp_magic)?;
    let mmp = ub.mmp_valid();
    if mmp {
        writeln!(out, "\tmmp_delay = {}", ub.mmp_delay)?;
        if let Some(n) = ub.mmp_seq() {
            writeln!(out, "\tmmp_seq = {n}")?;
        }
        if let Some(n) = ub.mmp_fail_intervals() {
            writeln!(out, "\tmmp_fail = {n}")?;
        }
        if let Some(n) = ub.mmp_interval_ms() {
            writeln!(out, "\tmmp_write = {n}")?;
        }
        let bits = [
            ub.mmp_interval_ms().is_some(),
            ub.mmp_seq().is_some(),
            ub.mmp_fail_intervals().is_some(),
        ];
        let bits = bits.iter().rev().fold(0, |v, b| v << 1 | u8::from(*b));
        writeln!(out, "\tmmp_valid = {bits:x}")?;
    }
    if depth >= 4 {
        writeln!(out, "\trootbp = {}", fmt::bp(&ub.rootbp))?;
    }
    writeln!(out, "\tcheckpoint_txg = {}", ub.checkpoint_txg)?;
    writeln!(
        out,
        "\traidz_reflow state={} off={}",
        ub.scratch_state(),
        ub.reflow_offset()
    )?;
    Ok(())
}
