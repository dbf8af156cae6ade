//! The `zfs` command: reads the command line, asks the daemon, prints.
#![forbid(unsafe_code)]

mod allow;
mod change;
mod common;
mod create;
mod destroy;
mod diff;
mod files;
mod get;
mod keys;
mod list;
mod look;
mod mount;
mod mount_helper;
mod project;
mod receive;
mod send;
mod share;
mod snapshots;
mod space;
#[cfg(test)]
mod testing;
mod transport;
mod upgrade;

use cli::{Cx, Outcome, Parsed, Sub};
use std::process::ExitCode;

fn run(sub: &'static Sub, args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    match sub.name {
        "version" => cli::run::version("zfs version", env!("CARGO_PKG_VERSION"), args, cx),
        "create" => create::create(args, cx),
        "destroy" => destroy::destroy(args, cx),
        "rename" => change::rename(args, cx),
        "snapshot" => snapshots::snapshot(args, cx),
        "rollback" => snapshots::rollback(args, cx),
        "clone" => snapshots::clone(args, cx),
        "promote" => snapshots::promote(args, cx),
        "bookmark" => snapshots::bookmark(args, cx),
        "hold" => snapshots::hold(args, cx),
        "release" => snapshots::release(args, cx),
        "diff" => diff::diff(args, cx),
        "send" => send::send(args, cx),
        "redact" => send::redact(args, cx),
        "list" => list::list(args, cx),
        "set" => change::set(args, cx),
        "get" => get::get(args, cx),
        "inherit" => change::inherit(args, cx),
        "load-key" => keys::load(args, cx),
        "unload-key" => keys::unload(args, cx),
        "change-key" => keys::change(args, cx),
        "mount" => mount::mount(args, cx),
        "unmount" => mount::unmount(args, cx),
        "share" => share::share(args, cx),
        "unshare" => share::unshare(args, cx),
        "receive" => receive::receive(args, cx),
        "holds" => look::holds(args, cx),
        "allow" => allow::allow(args, cx),
        "unallow" => allow::unallow(args, cx),
        "userspace" => look::space(api::Whose::User, args, cx),
        "groupspace" => look::space(api::Whose::Group, args, cx),
        "projectspace" => look::space(api::Whose::Project, args, cx),
        "space" => space::space(args, cx),
        "read" => look::read(args, cx),
        "ls" => files::ls(args, cx),
        "cat" => files::cat(args, cx),
        "tar" => files::tar(args, cx),
        "cp" => files::cp(args, cx),
        "wait" => look::wait(args, cx),
        "project" => project::project_of(args, cx),
        "upgrade" => upgrade::upgrade(args, cx),
        other => Err(cli::Fail::Error(format!(
            "zfs {other}: not available in this version yet"
        ))),
    }
}

fn main() -> ExitCode {
    let name = std::env::args_os().next().unwrap_or_default();
    if mount_helper::is_name(&name) {
        let words = cli::run::words().and_then(|w| mount_helper::words(&w));
        return ExitCode::from(match words {
            Ok(words) => match cli::run::main_on(&cli::zfs_table::ZFS, &words, run) {
                0 => 0,
                _ => mount_helper::FAILED,
            },
            Err(what) => {
                eprintln!("mount: {what}");
                mount_helper::WRONG
            }
        });
    }
    ExitCode::from(cli::run::main(&cli::zfs_table::ZFS, run))
}
