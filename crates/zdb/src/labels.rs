//! Labels and uberblocks.

use base::{Error, Result};
use cli::Parsed;
use disk::uberblock::Uberblock;
use disk::NvList;
use env::Access;
use pool::Pool;
use std::io::Write;
use vdev::label::{read_labels, read_uberblocks};

const RULE: &str = "------------------------------------";

/// `-l`: what the labels of a device say; equal ones once, unless asked for each.
pub fn show(args: &Parsed, path: &str, out: &mut dyn Write) -> Result<u8> {
    let path = match std::path::absolute(path) {
        Ok(p) if p.exists() => p.to_string_lossy().into_owned(),
        _ => env_linux::find::resolve(path)
            .ok_or_else(|| Error::new(base::Kind::NotFound, format!("no device '{path}'")))?,
    };
    let disk = env_linux::linux_env().disks.open(&path, Access::Read)?;
    let labels = read_labels(&*disk);
    let each = crate::times(args, "l") > 1;
    let mut shown: Vec<(&NvList, Vec<usize>)> = Vec::new();
    for (i, copy) in labels.copies.iter().enumerate() {
        match copy {
            None if labels.damaged[i] => writeln!(out, "label {i}: wrong checksum")?,
            None => writeln!(out, "failed to unpack label {i}")?,
            Some(c) => match shown.iter_mut().find(|(s, _)| !each && *s == c) {
                Some((_, at)) => at.push(i),
                None => shown.push((c, vec![i])),
            },
        }
    }
    for (config, at) in &shown {
        writeln!(out, "{RULE}\nLABEL {}\n{RULE}", at[0])?;
        write!(out, "{}", config.dump(4))?;
        let at: Vec<String> = at.iter().map(usize::to_string).collect();
        writeln!(out, "    labels = {}", at.join(" "))?;
    }
    if args.has("u") {
        let ashift = labels
            .best(u64::MAX)
            .and_then(|c| c.get_nvlist("vdev_tree")?.get_u64("ashift"))
            .unwrap_or(9);
        let mut list: Vec<(Uberblock, Vec<String>)> = Vec::new();
        for (label, slot, ub) in read_uberblocks(&*disk, ashift as u32) {
            let place = format!("{label}/{slot}");
            match list.iter_mut().find(|(u, _)| *u == ub) {
                Some((_, at)) => at.push(place),
                None => list.push((ub, vec![place])),
            }
        }
        list.sort_by_key(|(u, _)| u.rank());
        for (n, (ub, at)) in list.iter().enumerate() {
            writeln!(out, "Uberblock[{n}]")?;
            print(ub, out)?;
            writeln!(out, "\tlabel/slot = {}", at.join(" "))?;
        }
    }
    Ok(shown.is_empty() as u8)
}

/// The uberblock in use.
pub fn uberblock(pool: &Pool, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "\nUberblock:")?;
    match pool.tree.best_uberblock(pool.synced_txg()) {
        Some((ub, _)) => print(&ub, out),
        None => Err(Error::damaged("no valid uberblock")),
    }
}

fn print(ub: &Uberblock, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "\tmagic = 0000000000bab10c")?;
    writeln!(out, "\tversion = {}", ub.version)?;
    writeln!(out, "\ttxg = {}", ub.txg)?;
    writeln!(out, "\tguid_sum = {}", ub.guid_sum)?;
    writeln!(out, "\ttimestamp = {} UTC", ub.timestamp)?;
    writeln!(out, "\trootbp = {:?}", ub.rootbp)?;
    writeln!(out, "\tsoftware_version = {}", ub.software_version)?;
    if ub.mmp_valid() {
        writeln!(out, "\tmmp_delay = {}", ub.mmp_delay)?;
    }
    if ub.checkpoint_txg != 0 {
        writeln!(out, "\tcheckpoint_txg = {}", ub.checkpoint_txg)?;
    }
    Ok(())
}
