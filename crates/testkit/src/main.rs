//! The oracles as a command; see `USAGE`.
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::{Command, ExitCode};
use testkit::packages::{self, Set};
use testkit::{fixture, suite, OldZfsFuse, OpenZfs};

const USAGE: &str = "\
usage: testkit COMMAND
  fetch [openzfs|ztest|zfs-fuse|sanoid|zfs-auto-snapshot]
                                   fill the cache ($ZFS_FUSE_TEST_CACHE or .cache/oracles)
  zdb-check DIR POOL               checksums and space of an exported pool; prints the report
  zdb-labels PATH                  labels and uberblocks of an image
  run PROGRAM [ARGUMENT]...        any program of OpenZFS: zdb, zstream, zhack, ztest
  old SCRIPT [ARGUMENT]...         shell script with a fresh daemon of zfs-fuse 0.7 and its
                                   zpool and zfs; what it mounts is seen in the script only
  fixtures                         names of the fixture pools
  unpack FIXTURE DIR               images of a fixture pool
  suite DIR                        images of the old pools of OpenZFS's test suite
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(code) => code,
        Err(e) => {
            eprintln!("testkit: {e}");
            ExitCode::from(if e.kind == base::Kind::Unsupported {
                77
            } else {
                1
            })
        }
    }
}

fn run(args: &[&str]) -> base::Result<ExitCode> {
    match args {
        ["fetch"] => {
            for set in Set::ALL {
                packages::get(set)?;
            }
        }
        ["fetch", name] => match Set::ALL.into_iter().find(|s| s.name() == *name) {
            Some(set) => drop(packages::get(set)?),
            None => return usage(),
        },
        ["zdb-check", dir, pool] => print!("{}", OpenZfs::get()?.check(Path::new(dir), pool)?),
        ["zdb-labels", path] => print!("{}", OpenZfs::get()?.labels(Path::new(path))?),
        ["run", program, rest @ ..] => {
            return status(OpenZfs::get()?.command(program)?.args(rest));
        }
        ["old", rest @ ..] if !rest.is_empty() => {
            let old = OldZfsFuse::start()?;
            let code = status(old.command("sh").arg("-ec").args(rest))?;
            let said = old.log();
            old.stop()?;
            eprint!("{said}");
            return Ok(code);
        }
        ["fixtures"] => fixture::names().iter().for_each(|n| println!("{n}")),
        ["suite", dir] => {
            for pool in suite::OLD_POOLS {
                pool.unpack_into(Path::new(dir))?;
            }
            suite::encrypted_13709(&Path::new(dir).join("13709.dat"))?;
        }
        ["unpack", name, dir] => fixture::unpack_into(name, Path::new(dir))?,
        _ => return usage(),
    }
    Ok(ExitCode::SUCCESS)
}

fn usage() -> base::Result<ExitCode> {
    eprint!("{USAGE}");
    Ok(ExitCode::from(2))
}

fn status(c: &mut Command) -> base::Result<ExitCode> {
    let s = c.status()?;
    Ok(ExitCode::from(s.code().map_or(1, |c| c as u8)))
}
