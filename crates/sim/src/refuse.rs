//! The line of a trace that makes all devices refuse writes: `refuse WHAT ATTEMPTS wait|continue clear|export`.

use pool::Failmode;
use std::fmt;

/// What all devices refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Writes,
    Flushes,
    /// Both, after so many of them on each device.
    After(u64),
}

/// How the waiting for them ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// They are well again.
    Clear,
    /// The pool is exported by force. Where it would not be known whether the operation at hand was done,
    /// they are well again.
    Export,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refuse {
    pub what: What,
    /// Attempts of the pool until it ends.
    pub attempts: u64,
    pub failmode: Failmode,
    pub ending: Ending,
}

impl fmt::Display for Refuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            What::Writes => write!(f, "refuse writes")?,
            What::Flushes => write!(f, "refuse flushes")?,
            What::After(n) => write!(f, "refuse after {n}")?,
        }
        let mode = match self.failmode {
            Failmode::Wait => "wait",
            _ => "continue",
        };
        let ending = match self.ending {
            Ending::Clear => "clear",
            Ending::Export => "export",
        };
        write!(f, " {} {mode} {ending}", self.attempts)
    }
}

impl Refuse {
    /// From the words behind the first.
    pub fn parse(word: &mut dyn FnMut() -> Result<String, String>) -> Result<Refuse, String> {
        let bad = |w: &str| format!("'{w}' in a line 'refuse'");
        let number = |w: String| w.parse().map_err(|_| bad(&w));
        Ok(Refuse {
            what: match word()?.as_str() {
                "writes" => What::Writes,
                "flushes" => What::Flushes,
                "after" => What::After(number(word()?)?),
                w => return Err(bad(w)),
            },
            attempts: number(word()?)?,
            failmode: match word()?.as_str() {
                "wait" => Failmode::Wait,
                "continue" => Failmode::Continue,
                w => return Err(bad(w)),
            },
            ending: match word()?.as_str() {
                "clear" => Ending::Clear,
                "export" => Ending::Export,
                w => return Err(bad(w)),
            },
        })
    }
}
