//! `zfs-fuse`: serves pools as FUSE file systems, and `zpool` and `zfs` on the control socket.
#![forbid(unsafe_code)]

#[cfg(test)]
mod attack_tests;
mod bounded_run;
mod budget;
mod dirty;
mod door;
#[cfg(test)]
mod ending_tests;
mod faults;
mod health_watch;
mod kernel_exports;
mod list_cache;
mod log;
mod mount_parts;
mod named_paths;
mod nbd_door;
mod nfs_door;
mod nfs_slot;
mod options;
#[cfg(test)]
mod pool_tests;
#[cfg(test)]
mod privilege_tests;
mod process;
mod requests;
mod samba_shares;
mod scripts;
mod shared_paths;
mod snapdir_mount;
mod startup;
mod transport;
mod unimported;
mod view_door;
mod watching;

use base::{Kind, Result};
use options::{Asked, Options};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

/// Blocks of many sizes come and go on many threads; see docs/memory.md for what the system's
/// allocator makes of that. Settings are in `.cargo/config.toml`.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Version told to the commands.
const VERSION: &str = env!("CARGO_PKG_VERSION");

fn main() -> ExitCode {
    if std::env::args_os()
        .nth(1)
        .is_some_and(|a| a == fuse::path_helper::ARGUMENT)
    {
        fuse::serve_paths();
        return ExitCode::SUCCESS;
    }
    let first = std::env::args_os().nth(1);
    if first.is_some_and(|a| a == control::unimported::ARGUMENT) {
        let words = std::env::args_os().skip(2);
        let words: Vec<String> = words.map(|a| a.to_string_lossy().into_owned()).collect();
        return unimported::read(&words);
    }
    let child = startup::is_background_child();
    if child {
        env_linux::close_inherited();
    }
    let args: Vec<String> = std::env::args_os()
        .skip(1)
        .map(|a| a.to_string_lossy().into_owned())
        .collect();
    let options = match options::read(&args, Path::new(options::ZFSRC), options::memory()) {
        Asked::Run(options) => *options,
        Asked::Help => {
            print!("{}", cli::help::program(&cli::daemon_table::DAEMON));
            return ExitCode::SUCCESS;
        }
        Asked::Version => {
            println!("zfs-fuse-daemon-{VERSION}");
            return ExitCode::SUCCESS;
        }
        Asked::Wrong(what) => {
            eprintln!("zfs-fuse: {what}");
            eprint!("{}", cli::help::program(&cli::daemon_table::DAEMON));
            return ExitCode::from(2);
        }
    };
    if !child {
        for text in &options.warnings {
            eprintln!("zfs-fuse: {text}");
        }
    }
    let ended = if options.foreground || child {
        serve(options, child).map(|()| 0)
    } else {
        launch(&args)
    };
    match ended {
        Ok(status) => ExitCode::from(status),
        Err(e) => {
            eprintln!("zfs-fuse: {e}");
            ExitCode::from(match e.kind {
                Kind::Busy if control::client::started_by_command() => {
                    control::client::ALREADY_RUNNING
                }
                _ => 1,
            })
        }
    }
}

/// Hands over to a process in the background.
fn launch(args: &[String]) -> Result<u8> {
    let socket = control::path::socket_path();
    control::path::prepare_dir(&socket).map_err(startup::refusal)?;
    startup::launch(args, startup::lock(&socket)?)
}

/// Runs until somebody asks for the end.
fn serve(options: Options, child: bool) -> Result<()> {
    if child {
        startup::detach()?;
    }
    log::start(options.foreground)?;
    log::report_panics();
    startup::raise_limits();
    fuse::walk_in_processes();
    let socket = control::path::socket_path();
    control::path::prepare_dir(&socket).map_err(startup::refusal)?;
    let inherited = match child {
        true => startup::Lock::inherited(&socket)?,
        false => None,
    };
    let lock = match inherited {
        Some(lock) => lock,
        None => startup::lock(&socket)?,
    };
    let (stop, stopped) = startup::stop_switch(options.foreground)?;
    // Commands that come now wait in the queue of the socket until everything is in place.
    let listener = startup::listen(&socket, &lock)?;
    let pidfile = match &options.pidfile {
        Some(path) => Some(startup::PidFile::write(path)?),
        None => None,
    };
    let nbd_socket = options.nbd_socket.clone();
    let bound = nfs_door::bind(&options.nfs_listen)?;
    let remote = nbd_door::bind(&options.nbd)?;
    let control = Arc::new(requests::Control::start(options, stop)?);
    let shares = nfs_door::serve(control.admin(), bound)?;
    let volumes = match &nbd_socket {
        Some(path) => Some(nbd_door::listen(control.admin(), path)?),
        None => match nbd_door::listen(control.admin(), &nbd_door::usual_path(&socket)) {
            Ok(listening) => Some(listening),
            Err(e) => {
                log::warn(&format!("volumes are not served: {e}"));
                None
            }
        },
    };
    nbd_door::serve_remote(control.admin(), remote)?;
    let handler = control.clone();
    std::thread::Builder::new()
        .name("listener".into())
        .spawn(move || control::serve(listener, handler))?;
    startup::ready()?;
    stopped.wait();
    startup::notify("STOPPING=1");
    shares.stop();
    control.shutdown();
    drop(volumes);
    // The lock goes last: who gets it next finds nothing of ours in the way.
    startup::unlisten(&socket, &lock);
    drop(pidfile);
    drop(lock);
    Ok(())
}
