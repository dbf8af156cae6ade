//! Files of a pool that is not imported: `zfs ls -d`, `zfs cat -d` and the like start this program for each request, in place of asking a
//! daemon.
//!
//! 1. Nothing is written to devices. No mount is made, no socket is opened, and no daemon is needed.
//! 2. The process has the rights of whoever gave the command, and ends with the request.
//!
//! Start reading at [`read`].

use admin::datasets::files::{self, KeyWanted};
use admin::pools::import;
use admin::Answer;
use api::{ApiError, FileWanted, Secret};
use cli::keys::{Location, Prompt};
use control::unimported::Ask;
use std::cell::Cell;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// Answers one request: bytes to the standard output, complaints to standard error.
pub fn read(words: &[String]) -> ExitCode {
    let Some(ask) = Ask::from_words(words) else {
        eprintln!("zfs-fuse: these words are for the zfs command alone");
        return ExitCode::from(2);
    };
    let mut out = Out {
        closed: Cell::new(false),
    };
    match answer(&ask, &mut out) {
        Ok(()) => ExitCode::SUCCESS,
        // Nobody wants the rest.
        Err(_) if out.closed.get() => ExitCode::FAILURE,
        Err(e) => {
            let what = match ask.wanted {
                FileWanted::Names | FileWanted::Details => "list",
                FileWanted::Content | FileWanted::Archive => "read",
            };
            for line in &e.details {
                eprintln!("{line}");
            }
            match e.whole {
                true => eprintln!("{}", e.message),
                false => eprintln!("cannot {what} '{}': {}", ask.dataset, e.message),
            }
            if let Some(hint) = &e.hint {
                eprintln!("{hint}");
            }
            ExitCode::FAILURE
        }
    }
}

fn answer(ask: &Ask, out: &mut Out) -> Answer<()> {
    let plain = |e: base::Error| ApiError::reason(e.kind, e.to_string());
    let mut places = Vec::new();
    for place in &ask.places {
        places.extend(env_linux::find::candidates(place).map_err(plain)?);
    }
    let env = env_linux::linux_env();
    let pool = import::open_unimported(&env, &places, &ask.dataset)?;
    let mut key = |wanted: &KeyWanted| -> Answer<Secret> {
        let location = match &ask.key_location {
            Some(named) => Location::Named(named),
            None => Location::Stored(&wanted.location),
        };
        let read = cli::keys::read(wanted.format, location, &wanted.root, Prompt::Once);
        read.map_err(|why| ApiError::reason(base::Kind::Access, why))
    };
    let path = ask.path.as_bytes();
    files::read_unimported(&pool, &ask.dataset, path, ask.wanted, &mut key, out)
}

/// The standard output, and whether its reader has gone.
struct Out {
    closed: Cell<bool>,
}

impl Out {
    fn noted<T>(&self, done: std::io::Result<T>) -> std::io::Result<T> {
        let is_closed = |e: &std::io::Error| e.kind() == ErrorKind::BrokenPipe;
        if done.as_ref().err().is_some_and(is_closed) {
            self.closed.set(true);
        }
        done
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        // Without the buffer of lines that `Stdout` has: pieces are large.
        self.noted(rustix::io::write(rustix::stdio::stdout(), bytes).map_err(Into::into))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
