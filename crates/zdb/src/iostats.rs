//! `-s`: reads from the devices so far, and their errors.

use crate::Session;
use base::Result;
use std::io::Write;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use vdev::Vdev;

/// One line for the pool, one for each vdev.
pub fn show(s: &Session, out: &mut dyn Write) -> Result<()> {
    let head = "capacity   operations   bandwidth  ---- errors ----";
    writeln!(out, "\n                            {head}")?;
    let head = "used avail  read write  read write  read write cksum";
    writeln!(out, "description                {head}")?;
    let stats = s.pool.space().stats();
    let (used, size) = stats
        .vdevs
        .iter()
        .fold((0, 0), |a, v| (a.0 + v.allocated, a.1 + v.size));
    let name = s.pool.name();
    line(
        s,
        &name,
        0,
        Some((used, size)),
        &s.pool.tree().leaves(),
        out,
    )?;
    for top in s.pool.tree().tops().iter() {
        let space = stats.vdevs.iter().find(|v| v.id == top.id());
        vdev(s, top, 1, space.map(|v| (v.allocated, v.size)), out)?;
    }
    Ok(())
}

fn vdev(
    s: &Session,
    v: &Arc<Vdev>,
    depth: usize,
    space: Option<(u64, u64)>,
    out: &mut dyn Write,
) -> Result<()> {
    let name = v.path().unwrap_or_else(|| v.name());
    line(s, &name, depth, space, &v.leaves(), out)?;
    for child in v.children() {
        vdev(s, child, depth + 1, None, out)?;
    }
    Ok(())
}

fn line(
    s: &Session,
    name: &str,
    depth: usize,
    space: Option<(u64, u64)>,
    leaves: &[Arc<Vdev>],
    out: &mut dyn Write,
) -> Result<()> {
    let mut sums = [0u64; 7];
    for l in leaves {
        let c = &l.stats;
        let (read, write, checksum) = c.errors();
        let one = [
            c.read_ops.load(Relaxed),
            c.write_ops.load(Relaxed),
            c.read_bytes.load(Relaxed),
            c.write_bytes.load(Relaxed),
            read,
            write,
            checksum,
        ];
        for (a, b) in sums.iter_mut().zip(one) {
            *a += b;
        }
    }
    let n = |v: u64| s.num.nice(v);
    let (used, avail) = match space {
        Some((used, size)) => (n(used), n(size.saturating_sub(used))),
        None => (String::new(), String::new()),
    };
    let name = format!("{}{name}", "  ".repeat(depth));
    writeln!(
        out,
        "{name:<25} {used:>5} {avail:>5} {:>5} {:>5} {:>5} {:>5} {:>5} {:>5} {:>5}",
        n(sums[0]),
        n(sums[1]),
        n(sums[2]),
        n(sums[3]),
        n(sums[4]),
        n(sums[5]),
        n(sums[6])
    )?;
    Ok(())
}
