//! `-C`: configurations. `-h`: the history.

use crate::{object, Session};
use base::{Error, Result};
use disk::history::keys;
use disk::NvList;
use std::io::Write;
use zap::Zap;

/// The configuration the pool itself holds.
pub fn trusted(s: &Session, out: &mut dyn Write) -> Result<()> {
    let mos = s.pool.mos();
    let object = Zap::new(&*mos.hold(1)?)
        .get("config")?
        .ok_or_else(|| Error::damaged("the object directory names no config"))?;
    writeln!(out, "\nMOS Configuration:")?;
    write!(out, "{}", object::packed(&*mos.hold(object)?)?.dump(8))?;
    Ok(())
}

/// The configuration the pool was found with.
pub fn found(s: &Session, out: &mut dyn Write) -> Result<()> {
    let what = match s.exported {
        true => "Configuration for import:",
        false => "Cached configuration:",
    };
    writeln!(out, "\n{what}")?;
    Ok(write!(out, "{}", s.config.dump(8))?)
}

/// All pools of a cache file.
pub fn cache(list: &NvList, out: &mut dyn Write) -> Result<()> {
    for (name, value) in &list.pairs {
        if let disk::Value::NvList(config) = value {
            writeln!(out, "{name}:")?;
            write!(out, "{}", config.dump(4))?;
        }
    }
    Ok(())
}

/// `-h`: all records.
pub fn history(s: &Session, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "\nHistory:")?;
    let zone = cli::time::zone();
    for r in &s.pool.history_records()? {
        let when = cli::time::history(r.get_u64(keys::TIME).unwrap_or(0), &zone);
        let text = |key: &str| r.get_str(key).unwrap_or_default().to_string();
        if r.contains(keys::COMMAND) {
            writeln!(out, "{when} {}", text(keys::COMMAND))?;
        } else if r.contains(keys::INTERNAL_NAME) {
            let txg = r.get_u64(keys::TXG).unwrap_or(0);
            let mut line = format!("{when} [txg:{txg}] {}", text(keys::INTERNAL_NAME));
            if r.contains(keys::DSNAME) {
                let id = r.get_u64(keys::DSID).unwrap_or(0);
                line += &format!(" {} ({id})", text(keys::DSNAME));
            }
            writeln!(out, "{line} {}", text(keys::INTERNAL_STR))?;
        } else if r.contains(keys::OLD_EVENT) {
            let txg = r.get_u64(keys::TXG).unwrap_or(0);
            let event = disk::history::old_event(r.get_u64(keys::OLD_EVENT).unwrap_or(0));
            let what = text(keys::INTERNAL_STR);
            writeln!(out, "{when} [internal {event} txg:{txg}] {what}")?;
        } else if r.contains(keys::IOCTL) {
            writeln!(out, "{when} ioctl {}", text(keys::IOCTL))?;
            for (key, title) in [(keys::IN_NVL, "input"), (keys::OUT_NVL, "output")] {
                if let Some(l) = r.get_nvlist(key) {
                    writeln!(out, "    {title}:")?;
                    write!(out, "{}", l.dump(8))?;
                }
            }
            if let Some(e) = r.get_i64(keys::ERRNO) {
                writeln!(out, "    errno: {e}")?;
            }
        } else {
            writeln!(out, "{when} unrecognized record:")?;
            write!(out, "{}", r.dump(4))?;
        }
    }
    Ok(())
}
