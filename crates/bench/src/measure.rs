//! The measures that a workload reports, and the lines in which a worker process prints them.

use base::{bail, Result};

/// What a number means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Millions of bytes a second.
    MegabytesPerSecond,
    /// Operations (files, inserts, transactions, requests) a second.
    PerSecond,
    /// Milliseconds.
    Milliseconds,
    /// A quotient of sizes; says nothing about speed.
    Times,
}

impl Unit {
    const ALL: [Unit; 4] = [
        Unit::MegabytesPerSecond,
        Unit::PerSecond,
        Unit::Milliseconds,
        Unit::Times,
    ];

    pub fn text(self) -> &'static str {
        match self {
            Unit::MegabytesPerSecond => "MB/s",
            Unit::PerSecond => "1/s",
            Unit::Milliseconds => "ms",
            Unit::Times => "x",
        }
    }

    pub fn parse(text: &str) -> Option<Unit> {
        Unit::ALL.into_iter().find(|u| u.text() == text)
    }

    /// How many times as fast `value` is as `other`; none if the unit says nothing about speed.
    pub fn faster(self, value: f64, other: f64) -> Option<f64> {
        let quotient = match self {
            Unit::MegabytesPerSecond | Unit::PerSecond => value / other,
            Unit::Milliseconds => other / value,
            Unit::Times => return None,
        };
        (quotient.is_finite() && quotient > 0.0).then_some(quotient)
    }
}

/// One number of one phase.
#[derive(Clone, Debug, PartialEq)]
pub struct Measure {
    pub name: String,
    pub unit: Unit,
    /// Megabytes or operations for the rates; the value itself for the others.
    pub amount: f64,
    /// How long it took; only rates have it. What makes the data durable afterwards is added to it
    /// where a row says so.
    pub seconds: f64,
}

impl Measure {
    pub fn bytes(name: &str, bytes: u64, seconds: f64) -> Measure {
        Measure {
            name: name.into(),
            unit: Unit::MegabytesPerSecond,
            amount: bytes as f64 / 1e6,
            seconds,
        }
    }

    pub fn ops(name: &str, count: u64, seconds: f64) -> Measure {
        Measure {
            name: name.into(),
            unit: Unit::PerSecond,
            amount: count as f64,
            seconds,
        }
    }

    /// A number that is no rate, or a rate that a tool has computed.
    pub fn given(name: &str, unit: Unit, value: f64) -> Measure {
        Measure {
            name: name.into(),
            unit,
            amount: value,
            seconds: 1.0,
        }
    }

    pub fn value(&self) -> f64 {
        match self.unit {
            Unit::MegabytesPerSecond | Unit::PerSecond => self.amount / self.seconds.max(1e-9),
            Unit::Milliseconds | Unit::Times => self.amount,
        }
    }

    /// As one line of a worker's output.
    pub fn line(&self) -> String {
        format!(
            "measure {} {} {} {}",
            self.name,
            self.unit.text(),
            self.amount,
            self.seconds
        )
    }

    /// The measures in a worker's output; other lines are passed over.
    ///
    /// Errors: invalid if a line of ours is not of the form.
    pub fn parse_all(text: &str) -> Result<Vec<Measure>> {
        let mut out = Vec::new();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let ["measure", name, unit, amount, seconds] = words[..] else {
                continue;
            };
            let number = |t: &str| t.parse::<f64>().ok();
            let (Some(unit), Some(amount), Some(seconds)) =
                (Unit::parse(unit), number(amount), number(seconds))
            else {
                bail!(Invalid, "a worker said {line:?}");
            };
            out.push(Measure {
                name: name.into(),
                unit,
                amount,
                seconds,
            });
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_back() {
        let all = [
            Measure::bytes("write", 3_000_000, 1.5),
            Measure::ops("create", 7, 0.25),
            Measure::given("p99", Unit::Milliseconds, 2.5),
            Measure::given("ratio", Unit::Times, 1.75),
        ];
        let text: Vec<String> = all.iter().map(Measure::line).collect();
        let text = format!("noise\n{}\nmeasure\n", text.join("\n"));
        assert_eq!(Measure::parse_all(&text).unwrap(), all);
        assert!(Measure::parse_all("measure a b 1 2").is_err());
        let values: Vec<f64> = all.iter().map(Measure::value).collect();
        assert_eq!(values, [2.0, 28.0, 2.5, 1.75]);
    }

    #[test]
    fn which_way_is_better() {
        assert_eq!(Unit::PerSecond.faster(10.0, 5.0), Some(2.0));
        assert_eq!(Unit::Milliseconds.faster(10.0, 5.0), Some(0.5));
        assert_eq!(Unit::Times.faster(10.0, 5.0), None);
        assert_eq!(Unit::PerSecond.faster(10.0, 0.0), None);
    }
}
