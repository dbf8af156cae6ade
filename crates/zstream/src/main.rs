//! The `zstream` command: shows send streams, and makes others of them. It needs no daemon.
//!
//! Start reading at [`records`]; each subcommand has a module.
#![forbid(unsafe_code)]

mod decompress;
mod dump;
mod recompress;
mod records;
mod redup;

use cli::args::{Bad, Parsed};
use cli::harmless::{harmless, Harmless};
use cli::help;
use cli::run::{Fail, Outcome};
use cli::zstream_table::ZSTREAM;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, IsTerminal, Read, Write};
use std::process::ExitCode;

/// Exit status with which OpenZFS's program complains of a command line.
const USAGE: u8 = 1;

fn main() -> ExitCode {
    let words = match cli::run::words() {
        Ok(words) => words,
        Err(e) => {
            eprintln!("{}", harmless(&e));
            return ExitCode::from(USAGE);
        }
    };
    // Called `zstreamdump` it is `zstream dump`, as before OpenZFS 2.0.
    let called = std::env::args_os().next().unwrap_or_default();
    let is_dump = std::path::Path::new(&called).file_name() == Some("zstreamdump".as_ref());
    let (name, args) = match words.split_first() {
        _ if is_dump => ("dump", &words[..]),
        Some((name, args)) => (name.as_str(), args),
        None => return usage(""),
    };
    match name {
        "--help" | "-?" | "-h" | "help" => {
            print!("{}", help::overview(&ZSTREAM));
            return ExitCode::SUCCESS;
        }
        "--version" | "-V" => {
            println!("zfs-fuse-zstream-{}", env!("CARGO_PKG_VERSION"));
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    let Some(sub) = ZSTREAM.find(name) else {
        return usage(&format!("unrecognized command '{name}'"));
    };
    let parsed = match Parsed::read(ZSTREAM.name, sub, args) {
        Ok(parsed) => parsed,
        Err(Bad::Help) => {
            print!("{}", help::full(&ZSTREAM, sub));
            return ExitCode::SUCCESS;
        }
        Err(Bad::ShortHelp) => return usage(""),
        Err(Bad::Usage(what) | Bad::NotBuilt(what)) => return usage(&what),
    };
    let done = match sub.name {
        "dump" => dump(&parsed),
        "token" => token(&parsed),
        "redup" => redup::run(&parsed),
        "decompress" => decompress::run(&parsed),
        _ => recompress::run(&parsed),
    };
    match done {
        Ok(status) => ExitCode::from(u8::try_from(status).unwrap_or(1)),
        Err(Fail::Usage(what)) => usage(&what),
        Err(Fail::Error(what)) => {
            if !what.is_empty() {
                eprintln!("{}", harmless(&what));
            }
            ExitCode::FAILURE
        }
        // Nobody reads any more (`zstream dump | head`): nothing to complain about.
        Err(Fail::Io(e)) if e.kind() == io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        Err(Fail::Io(e)) => {
            eprintln!("cannot write the output: {}", base::io_text(&e));
            ExitCode::FAILURE
        }
    }
}

/// A complaint, and the usage.
fn usage(complaint: &str) -> ExitCode {
    if !complaint.is_empty() {
        eprintln!("{}", harmless(complaint));
    }
    eprint!("{}", help::overview(&ZSTREAM));
    ExitCode::from(USAGE)
}

/// What is wrong with a stream or an operand.
fn error<T>(what: impl Into<String>) -> Result<T, Fail> {
    Err(Fail::Error(what.into()))
}

/// Opens the file of a stream.
///
/// Errors: OpenZFS's sentence.
fn open(path: &str) -> Result<File, Fail> {
    File::open(path).or_else(|e| {
        error(format!(
            "Error while opening file '{path}': {}",
            base::io_text(&e)
        ))
    })
}

/// Standard input, unless it is a terminal.
fn input(or_a_file: bool) -> Result<impl Read, Fail> {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        let rest = match or_a_file {
            true => "must be redirected, or a file must be\nspecified as a command-line argument.",
            false => "must be redirected.",
        };
        return error(format!(
            "Error: The send stream is a binary format and can not be read from a\n\
             terminal.  Standard input {rest}"
        ));
    }
    Ok(stdin.lock())
}

/// Standard output, unless it is a terminal.
fn output() -> Result<impl Write, Fail> {
    let stdout = io::stdout();
    if stdout.is_terminal() {
        return error(
            "Error: Stream can not be written to a terminal.\nYou must redirect standard output.",
        );
    }
    Ok(stdout.lock())
}

fn dump(args: &Parsed) -> Outcome {
    let options = dump::Options {
        verbose: args.in_order().filter(|(k, _)| *k == "v").count(),
        no_checksums: args.has("C"),
        data: args.has("d"),
    };
    let from: Box<dyn Read> = match args.operands.first() {
        Some(path) => Box::new(open(path)?),
        None => Box::new(input(true)?),
    };
    let mut out = Harmless(BufWriter::new(io::stdout().lock()));
    let status = dump::dump(BufReader::with_capacity(1 << 18, from), &options, &mut out);
    out.flush()?;
    status
}

fn token(args: &Parsed) -> Outcome {
    let Some(token) = args.operands.first() else {
        return Err(Fail::Usage("Need to pass the resume token".into()));
    };
    match stream::token::unpack(token) {
        Ok(list) => print!("{}", harmless(&list.dump(5))),
        Err(e) => return error(format!("Unable to parse resume token: {e}")),
    }
    Ok(0)
}
