//! Rows with data of a known ratio: compression and deduplication.

use super::Work;
use crate::data::{dedup_record, half_record, Numbers, COPIES, HALF_RECORD};
use crate::measure::{Measure, Unit};
use base::{bail, Result};
use std::fs::File;
use std::io::Write as _;
use std::time::Instant;

const FILE: &str = "ratio";
const BEFORE: &str = "before";

/// Free space. What is used would not do: ZFS counts shared blocks there once for each owner, and
/// gives back what they save as free space.
fn free(w: &Work) -> Result<u64> {
    let s = rustix::fs::statvfs(&w.dir).map_err(std::io::Error::from)?;
    Ok(s.f_bfree.saturating_mul(s.f_frsize))
}

fn write(w: &Work, record: &mut dyn FnMut(u64, u64, &mut Vec<u8>)) -> Result<Vec<Measure>> {
    let before = free(w)?;
    std::fs::write(w.dir.join(BEFORE), before.to_string())?;
    let total = (w.size / HALF_RECORD as u64).next_multiple_of(COPIES);
    let mut f = File::create(w.dir.join(FILE))?;
    let mut buf = Vec::new();
    let mut spent = 0.0;
    // A shorter file would have another ratio: no time limit here.
    for n in 0..total {
        record(n, total, &mut buf);
        let start = Instant::now();
        f.write_all(&buf)?;
        spent += start.elapsed().as_secs_f64();
    }
    let start = Instant::now();
    f.sync_all()?;
    spent += start.elapsed().as_secs_f64();
    let bytes = total * HALF_RECORD as u64;
    Ok(vec![Measure::bytes("write", bytes, spent)])
}

pub fn compressible(w: &Work) -> Result<Vec<Measure>> {
    let mut numbers = Numbers::new(77);
    write(w, &mut |_, _, buf| half_record(&mut numbers, buf))
}

pub fn duplicates(w: &Work) -> Result<Vec<Measure>> {
    write(w, &mut dedup_record)
}

/// Length of the file over the free space it has cost.
pub fn figure(w: &Work) -> Result<Vec<Measure>> {
    let before = std::fs::read_to_string(w.dir.join(BEFORE))?;
    let Ok(before) = before.trim().parse::<u64>() else {
        bail!(Damaged, "{BEFORE} does not hold what was written");
    };
    let taken = before.saturating_sub(free(w)?).max(1);
    let length = std::fs::metadata(w.dir.join(FILE))?.len();
    let ratio = length as f64 / taken as f64;
    Ok(vec![Measure::given("ratio", Unit::Times, ratio)])
}
