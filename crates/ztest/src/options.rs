//! The command line; letters as in the `ztest` of ZFS.

use std::path::PathBuf;

pub const USAGE: &str = "\
usage: ztest [-hVE] [-v vdevs] [-s size] [-a shift] [-m copies] [-r disks]
             [-K kind] [-R parity] [-D data] [-d sets] [-t threads] [-i pools] [-k percent]
             [-p pool] [-f folder] [-T seconds] [-P seconds] [-g bytes]
             [-S seed] [-z program]
  -v vdevs     Most top-level vdevs (default 3).
  -s size      Size of each image, with K, M or G (default 512M).
  -a shift     Sectors of 2^shift bytes (default 0: 9 or 12, by chance).
  -m copies    Mirrors of so many sides.
  -r disks     RAID-Z, or dRAID, of so many disks. Without -m, -r and -K: by chance.
  -K kind      raidz, draid or random (default random, or raidz with -r).
  -R parity    Parity of RAID-Z, or of dRAID (default 1).
  -D data      Data disks of a group of a dRAID (default: 2 or 3, by chance).
  -d sets      File systems (default 3).
  -t threads   Threads (default 8).
  -i pools     Begin anew with a new pool so many times (default 1).
  -k percent   Of the passes, so many end with a kill (default 70).
  -p pool      Name of the pool (default ztest).
  -f folder    Where the images lie (default /tmp). Only what the program made
               itself in there is removed again.
  -T seconds   Whole time (default 300).
  -P seconds   Longest pass (default 60).
  -g bytes     No free piece is larger: blocks above it become gangs.
  -S seed      Chance begins here (default: from the clock).
  -E           Go on with the pool that is in the folder.
  -z program   Let this zdb judge too, after every pass.
  -V           Say more.
";

/// What is asked for with `-K`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Raidz,
    Draid,
    /// Any layout, unless other letters say which.
    Random,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Options {
    pub vdevs: u64,
    pub size: u64,
    pub ashift: u32,
    pub mirror: Option<u64>,
    pub raidz: Option<u64>,
    pub kind: Kind,
    pub parity: u64,
    pub data: Option<u64>,
    pub sets: u64,
    pub threads: u64,
    pub pools: u64,
    pub kill: u64,
    pub pool: String,
    pub folder: PathBuf,
    pub time: u64,
    pub pass: u64,
    pub gang: Option<u64>,
    pub seed: Option<u64>,
    pub existing: bool,
    pub zdb: Option<PathBuf>,
    pub verbose: bool,
    /// What this process is to do, if it is a child.
    pub job: Option<String>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            vdevs: 3,
            size: 512 << 20,
            ashift: 0,
            mirror: None,
            raidz: None,
            kind: Kind::Random,
            parity: 1,
            data: None,
            sets: 3,
            threads: 8,
            pools: 1,
            kill: 70,
            pool: "ztest".into(),
            folder: "/tmp".into(),
            time: 300,
            pass: 60,
            gang: None,
            seed: None,
            existing: false,
            zdb: None,
            verbose: false,
            job: None,
        }
    }
}

fn number(letter: &str, text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.char_indices().last() {
        Some((i, 'k' | 'K')) => (&text[..i], 10),
        Some((i, 'm' | 'M')) => (&text[..i], 20),
        Some((i, 'g' | 'G')) => (&text[..i], 30),
        _ => (text, 0),
    };
    let n: u64 = digits
        .parse()
        .map_err(|_| format!("-{letter}: '{text}' is not a number"))?;
    n.checked_shl(shift)
        .filter(|v| v >> shift == n)
        .ok_or_else(|| format!("-{letter}: {text} is too large"))
}

impl Options {
    /// Reads the arguments; `Ok(None)` if help is asked for.
    pub fn read(args: &[String]) -> Result<Option<Options>, String> {
        let mut o = Options::default();
        let mut args = args.iter();
        while let Some(a) = args.next() {
            let letters = a
                .strip_prefix('-')
                .filter(|l| !l.is_empty())
                .ok_or_else(|| format!("unexpected argument '{a}'"))?;
            if letters == "-job" {
                o.job = args.next().cloned();
                continue;
            }
            let mut rest = letters;
            while let Some(c) = rest.chars().next() {
                let letter = &rest[..c.len_utf8()];
                rest = &rest[c.len_utf8()..];
                match c {
                    'h' => return Ok(None),
                    'V' => o.verbose = true,
                    'E' => o.existing = true,
                    _ if !"vsamrKRDdtikpfTPgSz".contains(c) => {
                        return Err(format!("invalid option '{letter}'"));
                    }
                    _ => {
                        let value = match std::mem::take(&mut rest) {
                            "" => args.next().map(String::as_str),
                            v => Some(v),
                        };
                        let value = value
                            .ok_or_else(|| format!("missing argument for '{letter}' option"))?;
                        o.set(c, letter, value)?;
                    }
                }
            }
        }
        o.check()?;
        Ok(Some(o))
    }

    fn set(&mut self, c: char, letter: &str, v: &str) -> Result<(), String> {
        let n = || number(letter, v);
        match c {
            'v' => self.vdevs = n()?,
            's' => self.size = n()?,
            'a' => self.ashift = n()? as u32,
            'm' => self.mirror = Some(n()?),
            'r' => self.raidz = Some(n()?),
            'K' => {
                self.kind = match v {
                    "raidz" => Kind::Raidz,
                    "draid" => Kind::Draid,
                    "random" => Kind::Random,
                    _ => return Err(format!("-K: '{v}' is none of raidz, draid and random")),
                }
            }
            'R' => self.parity = n()?,
            'D' => self.data = Some(n()?),
            'd' => self.sets = n()?,
            't' => self.threads = n()?,
            'i' => self.pools = n()?,
            'k' => self.kill = n()?,
            'p' => self.pool = v.into(),
            'f' => self.folder = v.into(),
            'T' => self.time = n()?,
            'P' => self.pass = n()?,
            'g' => self.gang = Some(n()?),
            'S' => self.seed = Some(n()?),
            _ => self.zdb = Some(v.into()),
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        let within = |letter: &str, n: u64, from: u64, to: u64| match (from..=to).contains(&n) {
            true => Ok(()),
            false => Err(format!("-{letter} must be between {from} and {to}")),
        };
        within("v", self.vdevs, 1, 64)?;
        within("s", self.size, 64 << 20, 1 << 40)?;
        if self.ashift != 0 {
            within("a", u64::from(self.ashift), 9, 16)?;
        }
        if self.mirror.is_some() && self.raidz.is_some() {
            return Err("-m and -r exclude each other".into());
        }
        if self.mirror.is_some() && self.kind != Kind::Random {
            return Err("-m and -K exclude each other".into());
        }
        if self.data.is_some() && self.kind != Kind::Draid {
            return Err("-D needs -K draid".into());
        }
        within("D", self.data.unwrap_or(1), 1, 32)?;
        within("m", self.mirror.unwrap_or(2), 2, 8)?;
        within("R", self.parity, 1, 3)?;
        let least = match self.kind {
            // One distributed spare at least.
            Kind::Draid => self.parity + self.data.unwrap_or(1) + 1,
            _ => self.parity + 1,
        };
        within("r", self.raidz.unwrap_or(64), least, 64)?;
        within("d", self.sets, 1, 100)?;
        within("t", self.threads, 1, 256)?;
        within("i", self.pools, 1, 1 << 20)?;
        within("k", self.kill, 0, 100)?;
        within("T", self.time, 1, 1 << 30)?;
        within("P", self.pass, 1, 1 << 30)?;
        if let Some(g) = self.gang {
            within("g", g, 4096, 16 << 20)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(s: &str) -> Result<Option<Options>, String> {
        let args: Vec<String> = s.split_whitespace().map(str::to_string).collect();
        Options::read(&args)
    }

    #[test]
    fn letters() {
        let o = read("-VE -T30 -P 5 -s 64M -r 5 -R2 -f /x")
            .unwrap()
            .unwrap();
        assert!(o.verbose && o.existing);
        assert_eq!((o.time, o.pass, o.size), (30, 5, 64 << 20));
        assert_eq!((o.raidz, o.parity), (Some(5), 2));
        assert_eq!(o.folder, PathBuf::from("/x"));
        let o = read("-K draid -R 2 -D3 -r 7").unwrap().unwrap();
        assert_eq!((o.kind, o.parity, o.data), (Kind::Draid, 2, Some(3)));
        assert!(read("-h").unwrap().is_none());
        for wrong in [
            "-q",
            "-T",
            "-T x",
            "word",
            "-m 2 -r 4",
            "-k 101",
            "-s 1M",
            "-a 8",
            "-r 2 -R 2",
            "-K mirror",
            "-K draid -m 2",
            "-K draid -D 2 -r 3",
            "-D 2",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
