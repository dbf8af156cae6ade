//! `-O`: an object by its path. `-r`: its content copied out.

use crate::context::Ctx;
use crate::object;
use crate::raw::Set;
use crate::{fmt, sets, Session};
use base::{bail, Error, Result};
use std::io::Write;
use std::sync::Arc;
use zap::{Match, Zap};

/// Bytes copied at once.
const PIECE: u64 = 1 << 20;

fn lookup(s: &Session, dataset: &str, path: &str) -> Result<(Arc<dsl::Dataset>, u64)> {
    let ds = sets::find(s, dataset, false)?;
    let os = s.pool.open_dataset(&ds)?.os.clone();
    let full = format!("/{}", path.trim_start_matches('/'));
    let not_found = || {
        let text =
            format!("failed to lookup dataset={dataset} path={full}: No such file or directory");
        Error::new(base::Kind::NotFound, text)
    };
    let master = os.hold(1)?;
    let zap = Zap::new(&*master);
    let mut at = zap.lookup("ROOT")?;
    let fold = zap.get("casesensitivity")?.unwrap_or(0) == 1;
    let normal = zap.get("normalization")?.unwrap_or(0) != 0;
    let how = match (fold, normal) {
        (true, _) => Match::Normalized,
        (_, true) => Match::Normalized,
        _ => Match::Exact,
    };
    for part in path.split('/').filter(|p| !p.is_empty() && *p != ".") {
        let dir = os.hold(at)?;
        if !dir.info().obj_type.is_zap() {
            return Err(not_found());
        }
        let found = Zap::new(&*dir).longname(true).find(part.as_bytes(), how)?;
        let value = found
            .and_then(|f| f.value.as_u64().or(f.value.ints().first().copied()))
            .ok_or_else(not_found)?;
        at = value & ((1 << 48) - 1);
    }
    Ok((ds, at))
}

/// `-O dataset path`
pub fn show(s: &Session, dataset: &str, path: &str, out: &mut dyn Write) -> Result<()> {
    let (ds, object) = lookup(s, dataset, path)?;
    let set = Set::of(s.pool.zio(), &ds)?;
    let os = s.pool.open_dataset(&ds)?.os.clone();
    let c = Ctx::dataset(s, &set, Some(os));
    let dn = set
        .dnode(object)?
        .ok_or_else(|| Error::damaged(format!("no object {object}")))?;
    writeln!(
        out,
        "\n    Object  lvl   iblk   dblk  dsize  dnsize  lsize   %full  type"
    )?;
    object::show(&c, object, &dn, 5 + s.times('v'), out)
}

/// `-r dataset path destination`
pub fn copy(s: &Session, dataset: &str, path: &str, to: &str, out: &mut dyn Write) -> Result<()> {
    let (ds, object) = lookup(s, dataset, path)?;
    let set = Set::of(s.pool.zio(), &ds)?;
    let os = s.pool.open_dataset(&ds)?.os.clone();
    let c = Ctx::dataset(s, &set, Some(os.clone()));
    let phys = set
        .dnode(object)?
        .ok_or_else(|| Error::damaged(format!("no object {object}")))?;
    if phys.obj_type != disk::ObjType::PLAIN_FILE_CONTENTS {
        let kind = fmt::type_name(phys.obj_type);
        bail!(Invalid, "{path} is a {kind}: only files can be copied");
    }
    let file = crate::attrs::load(&c, &phys)?;
    if file.mode & 0o170000 != 0o100000 {
        bail!(Invalid, "{path} is not a regular file");
    }
    let dn = os.hold(object)?;
    let size = file.size;
    if s.has('v') {
        let size = s.num.nice(size);
        writeln!(out, "Copying object {object} to file {to} ({size})")?;
    }
    let mut target = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(to)
        .map_err(|e| Error::from(e).context(to))?;
    let mut at = 0;
    let mut b = vec![0; PIECE as usize];
    while at < size {
        // Holes stay holes.
        let next = dn.seek(at, true)?.filter(|n| *n < size);
        let Some(next) = next else { break };
        at = next.max(at);
        let n = PIECE.min(size - at) as usize;
        dn.read(at, &mut b[..n])?;
        std::io::Seek::seek(&mut target, std::io::SeekFrom::Start(at))?;
        target.write_all(&b[..n])?;
        at += n as u64;
    }
    target.set_len(size)?;
    Ok(())
}
