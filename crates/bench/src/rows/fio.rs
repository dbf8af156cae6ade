//! fio: what it measures is taken from its report.

use super::meta::succeed;
use super::Work;
use crate::measure::{Measure, Unit};
use crate::tools;
use base::{bail, Result};
use std::process::Command;

/// What is asked of one run.
struct Job {
    pattern: &'static str,
    block: &'static str,
    engine: &'static str,
    more: &'static [&'static str],
    /// Ends after a given time, not when the file's size is reached.
    timed: bool,
}

impl Job {
    fn run(&self, w: &Work) -> Result<serde_json::Value> {
        let mut c = Command::new(tools::FIO.path()?);
        let runtime = match self.timed {
            true => w.seconds,
            false => w.cap().as_secs(),
        };
        // Its contents repeat unless refilled, which would flatter whoever compresses. The caches are
        // dropped by us; its own hint would undo the warm rows.
        c.args(["--name=x", "--output-format=json", "--refill_buffers=1"])
            .args(["--fallocate=none", "--thread", "--randrepeat=1"])
            .args(["--invalidate=0"])
            .arg(format!("--filename={}", w.dir.join("fio").display()))
            .arg(format!("--size={}", w.size))
            .arg(format!("--rw={}", self.pattern))
            .arg(format!("--bs={}", self.block))
            .arg(format!("--ioengine={}", self.engine))
            .arg(format!("--runtime={runtime}"))
            .args(self.more);
        if self.timed {
            c.arg("--time_based");
        }
        parse(&succeed(&mut c)?)
    }

    fn bytes(&self, w: &Work, name: &str) -> Result<Vec<Measure>> {
        let v = self.run(w)?;
        let rate = rate(&v, self.pattern, "bw_bytes")?;
        let m = Measure::given(name, Unit::MegabytesPerSecond, rate / 1e6);
        Ok(vec![m])
    }

    fn ops(&self, w: &Work, name: &str) -> Result<Vec<Measure>> {
        let v = self.run(w)?;
        let rate = rate(&v, self.pattern, "iops")?;
        Ok(vec![Measure::given(name, Unit::PerSecond, rate)])
    }
}

/// Its report may follow a line of warning.
fn parse(text: &str) -> Result<serde_json::Value> {
    let from = text.find('{').unwrap_or(0);
    match serde_json::from_str(text.get(from..).unwrap_or("")) {
        Ok(v) => Ok(v),
        Err(e) => bail!(Invalid, "fio's report: {e}"),
    }
}

fn rate(v: &serde_json::Value, pattern: &str, field: &str) -> Result<f64> {
    let side = match pattern.contains("write") {
        true => "write",
        false => "read",
    };
    match v["jobs"][0][side][field].as_f64() {
        Some(r) if r > 0.0 => Ok(r),
        _ => bail!(Invalid, "fio reports no {side} {field}"),
    }
}

const fn job(pattern: &'static str, block: &'static str) -> Job {
    Job {
        pattern,
        block,
        engine: "psync",
        more: &[],
        timed: false,
    }
}

impl Job {
    const fn timed(mut self) -> Job {
        self.timed = true;
        self
    }

    const fn mapped(mut self) -> Job {
        self.engine = "mmap";
        self
    }

    const fn with(mut self, more: &'static [&'static str]) -> Job {
        self.more = more;
        self
    }
}

/// Until the device has it.
const DURABLE: &[&str] = &["--end_fsync=1"];

pub fn prepare(w: &Work) -> Result<Vec<Measure>> {
    job("write", "1M").with(DURABLE).run(w)?;
    Ok(Vec::new())
}

pub fn rand_read(w: &Work) -> Result<Vec<Measure>> {
    job("randread", "4k").timed().ops(w, "read")
}

pub fn rand_reread(w: &Work) -> Result<Vec<Measure>> {
    let file = std::fs::File::open(w.dir.join("fio"))?;
    std::io::copy(&mut &file, &mut std::io::sink())?;
    job("randread", "4k").timed().ops(w, "reread")
}

pub fn rand_write(w: &Work) -> Result<Vec<Measure>> {
    job("randwrite", "4k").timed().with(DURABLE).ops(w, "write")
}

pub fn rand_write_fsync(w: &Work) -> Result<Vec<Measure>> {
    let all = job("randwrite", "4k").timed().with(&["--fsync=1"]);
    all.ops(w, "write")
}

pub fn seq_write(w: &Work) -> Result<Vec<Measure>> {
    job("write", "1M").with(DURABLE).bytes(w, "write")
}

pub fn seq_read(w: &Work) -> Result<Vec<Measure>> {
    job("read", "1M").bytes(w, "read")
}

pub fn mmap_read(w: &Work) -> Result<Vec<Measure>> {
    job("randread", "4k").mapped().timed().ops(w, "read")
}

pub fn mmap_write(w: &Work) -> Result<Vec<Measure>> {
    let all = job("randwrite", "4k").mapped().timed();
    all.with(DURABLE).ops(w, "write")
}

pub fn mmap_seq_read(w: &Work) -> Result<Vec<Measure>> {
    job("read", "128k").mapped().bytes(w, "seq-read")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports() {
        let text = "note: x\n{\"jobs\": [{\"read\": {\"bw_bytes\": 5, \"iops\": 0.0},\
                    \"write\": {\"bw_bytes\": 0, \"iops\": 12.5}}]}";
        let v = parse(text).unwrap();
        assert_eq!(rate(&v, "randwrite", "iops").unwrap(), 12.5);
        assert_eq!(rate(&v, "read", "bw_bytes").unwrap(), 5.0);
        assert!(rate(&v, "read", "iops").is_err());
        assert!(parse("no").is_err());
    }
}
