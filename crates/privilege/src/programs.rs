//! Runs other programs.

use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::acts::{Program, Ran};

/// How often it is looked whether a program with a limit has ended.
const TICK: Duration = Duration::from_millis(5);
/// How long one that was killed is waited for: it may be stuck in the kernel.
const END: Duration = Duration::from_millis(500);
/// Most bytes of what it prints.
const MOST: u64 = 64 << 20;

/// Runs a program to its end, or for as long as it may take.
pub(crate) fn run(program: &Program<'_>) -> io::Result<Ran> {
    let printed = || match program.output {
        true => Stdio::piped(),
        false => Stdio::null(),
    };
    let mut command = Command::new(program.path);
    command
        .args(&program.arguments)
        .stdin(Stdio::null())
        .stdout(printed())
        .stderr(printed());
    if let Some(all) = &program.environment {
        command.env_clear().envs(all.iter().map(|(n, v)| (n, v)));
    }
    let mut child = command.spawn()?;
    let (out, err) = (read(child.stdout.take()), read(child.stderr.take()));
    let Some(status) = ends(&mut child, program.limit)? else {
        // A process that others sent on a path that does not answer is left to itself.
        let _ = child.kill();
        let _ = ends(&mut child, Some(END));
        return Ok(Ran::TookTooLong);
    };
    Ok(Ran::Ended(Output {
        status,
        stdout: printed_by(out),
        stderr: printed_by(err),
    }))
}

/// How it ends; none: it does not in time.
fn ends(child: &mut Child, limit: Option<Duration>) -> io::Result<Option<ExitStatus>> {
    let Some(limit) = limit else {
        return child.wait().map(Some);
    };
    let begin = Instant::now();
    loop {
        match child.try_wait()? {
            None if begin.elapsed() < limit => std::thread::sleep(TICK),
            ended => return Ok(ended),
        }
    }
}

type Reader = Option<JoinHandle<Vec<u8>>>;

/// Reads to the end, beside the other one: a full pipe would stop the program.
fn read(from: Option<impl Read + Send + 'static>) -> Reader {
    let mut from = from?.take(MOST);
    let thread = std::thread::Builder::new().name("program".into());
    let read = move || {
        let mut bytes = Vec::new();
        // What could be read has been.
        let _ = from.read_to_end(&mut bytes);
        bytes
    };
    thread.spawn(read).ok()
}

fn printed_by(reader: Reader) -> Vec<u8> {
    reader.and_then(|r| r.join().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_program_has_what_it_is_given_and_no_longer_than_it_may() {
        let sh = Path::new("/bin/sh");
        let script = ["-c", "echo $A $HOME; cat; exit 3"];
        let mut program = Program::new(sh, &script);
        program.output = true;
        program.environment = Some(vec![("A".into(), "b".into())]);
        match run(&program).unwrap() {
            Ran::Ended(o) => {
                assert_eq!(o.status.code(), Some(3));
                assert_eq!(o.stdout, b"b\n");
            }
            Ran::TookTooLong => panic!("it has all the time"),
        }
        let script = ["-c", "exec sleep 1000"];
        let mut program = Program::new(sh, &script);
        program.limit = Some(Duration::from_millis(10));
        assert!(matches!(run(&program).unwrap(), Ran::TookTooLong));
        let none = Program::new(Path::new("/nonexistent/program"), &[]);
        assert_eq!(run(&none).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
