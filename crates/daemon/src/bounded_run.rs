//! Programs of others, run for a bounded time. They may walk paths that do not answer.

use base::{Error, Kind, Result};
use privilege::Program;
use std::path::Path;
use std::time::Duration;

/// How long a program may take.
pub const LONGEST: Duration = Duration::from_secs(30);

/// What a program printed, and whether it succeeded.
pub struct Ran {
    /// It exited with 0.
    pub success: bool,
    /// On its standard output.
    pub out: String,
    /// On its standard error.
    pub err: String,
}

/// Runs a program, for `longest` at most.
///
/// # Errors
/// It cannot be started; it takes too long, and is killed.
pub fn run(program: &Path, arguments: &[&str], longest: Duration) -> Result<Ran> {
    let failed = |text: String| Error::new(Kind::Io, text);
    let ran = privilege::acts().run(&Program {
        output: true,
        limit: Some(longest),
        ..Program::new(program, arguments)
    });
    match ran.map_err(|e| failed(base::io_text(&e)))? {
        privilege::Ran::Ended(o) => Ok(Ran {
            success: o.status.success(),
            out: String::from_utf8_lossy(&o.stdout).into_owned(),
            err: String::from_utf8_lossy(&o.stderr).into_owned(),
        }),
        privilege::Ran::TookTooLong => Err(failed(format!(
            "it took longer than {longest:?} and was ended"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, longest: Duration) -> Result<Ran> {
        run(Path::new("/bin/sh"), &["-c", script], longest)
    }

    #[test]
    fn a_program_that_does_not_end_is_ended() {
        let ran = shell("echo out; echo err >&2; exit 3", LONGEST).unwrap();
        assert_eq!(
            (ran.success, &*ran.out, &*ran.err),
            (false, "out\n", "err\n")
        );
        let ran = shell("head -c 300000 /dev/zero", LONGEST).unwrap();
        assert!(ran.success && ran.out.len() == 300_000);
        let slow = shell("exec sleep 100", Duration::from_millis(50));
        assert!(slow.is_err_and(|e| e.to_string().contains("took longer")));
        assert!(run(Path::new("/no/such/program"), &[], LONGEST).is_err());
    }
}
