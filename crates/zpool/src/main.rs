//! The `zpool` command: reads the command line, asks the daemon, prints.
#![forbid(unsafe_code)]

mod common;
mod create;
mod dedup;
mod devices;
mod draid;
mod events;
mod get;
mod import;
mod iostat;
mod list;
mod manage;
mod scan;
mod scripts;
mod split;
mod status;
mod status_reason;
mod status_text;
#[cfg(test)]
mod testing;
mod upgrade;
mod vdev_props;
mod wear;

use cli::{Cx, Outcome, Parsed, Sub};
use std::process::ExitCode;

fn run(sub: &'static Sub, args: &Parsed, cx: &mut Cx<'_>) -> Outcome {
    match sub.name {
        "version" => manage::version(args, cx),
        "create" => create::create(args, cx),
        "destroy" => manage::destroy(args, cx),
        "labelclear" => manage::labelclear(args, cx),
        "list" => list::list(args, cx),
        "iostat" => iostat::iostat(args, cx),
        "status" => status::status(args, cx),
        "import" => import::import(args, cx),
        "export" => manage::export(args, cx),
        "upgrade" => upgrade::upgrade(args, cx),
        "history" => manage::history(args, cx),
        "get" => get::get(args, cx),
        "set" => get::set(args, cx),
        "sync" => manage::sync(args, cx),
        "reguid" => manage::reguid(args, cx),
        "split" => split::split(args, cx),
        "prefetch" => dedup::prefetch(args, cx),
        "ddtprune" => dedup::prune(args, cx),
        "clear" => manage::clear(args, cx),
        "wait" => manage::wait(args, cx),
        "events" => events::events(args, cx),
        "add" => devices::add(args, cx),
        "attach" => devices::attach(args, cx),
        "replace" => devices::replace(args, cx),
        "detach" => devices::detach(args, cx),
        "online" => devices::online(args, cx),
        "offline" => devices::offline(args, cx),
        "remove" => devices::remove(args, cx),
        "reopen" => devices::reopen(args, cx),
        "checkpoint" => scan::checkpoint(args, cx),
        "scrub" => scan::scrub(args, cx),
        "trim" => wear::trim(args, cx),
        "initialize" => wear::initialize(args, cx),
        "resilver" => scan::resilver(args, cx),
        other => Err(cli::Fail::Error(format!(
            "zpool {other}: not available in this version yet"
        ))),
    }
}

fn main() -> ExitCode {
    ExitCode::from(cli::run::main(&cli::zpool_table::ZPOOL, run))
}
