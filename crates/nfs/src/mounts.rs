//! The protocol of mounts (RFC 1813, appendix I): which file systems there are, and the handle of a root.

use crate::call::{Client, Garbled, Outcome, Results, Shared, Written};
use crate::context::By;
use crate::exports::{access, group, Export};
use crate::handle::Handle;
use crate::rpc::{Call, AUTH_SYS};
use crate::xdr::Reader;
use base::Kind;
use vfs::ROOT;

/// Number of the program.
pub const PROGRAM: u32 = 100_005;
/// Most bytes of a path.
const MOST_PATH: usize = 1024;

/// Carries a call out. Versions 1 and 2 are answered as far as they are the same: not a mount, whose handles are shorter there.
pub fn call(
    shared: &Shared,
    client: &Client,
    call: &Call,
    args: &mut Reader<'_>,
    out: Results<'_>,
) -> Outcome {
    let done = match call.procedure {
        0 => Ok(()),
        1 if call.version == 3 => mount(shared, client, args, out),
        1 => {
            // EACCES
            out.u32(13);
            Ok(())
        }
        // DUMP: what clients have mounted is not kept, since they need not say when they are done.
        2 => {
            out.bool(false);
            Ok(())
        }
        // UMNT
        3 => args.opaque(MOST_PATH).map(drop).map_err(Garbled::from),
        // UMNTALL
        4 => Ok(()),
        5 => {
            list(shared, out);
            Ok(())
        }
        _ => return Outcome::NoProcedure,
    };
    match done {
        Ok(()) => Outcome::Done,
        Err(Garbled) => Outcome::Garbage,
    }
}

fn mount(shared: &Shared, client: &Client, args: &mut Reader<'_>, out: Results<'_>) -> Written {
    let path = args.opaque(MOST_PATH)?;
    match root(shared, client, path) {
        Ok(handle) => {
            out.u32(0).opaque(&handle.to_bytes()).u32(1).u32(AUTH_SYS);
        }
        Err(kind) => {
            tracing::debug!(
                "{} may not mount '{}'",
                client.address,
                String::from_utf8_lossy(path)
            );
            // There are fewer errors than in NFS.
            out.u32(match kind {
                Kind::Access => 13,
                Kind::NotFound => 2,
                _ => 10_006,
            });
        }
    }
    Ok(())
}

/// A path without a slash at its end.
fn trimmed(path: &[u8]) -> &[u8] {
    match path {
        [rest @ .., b'/'] if !rest.is_empty() => trimmed(rest),
        _ => path,
    }
}

/// The root of what is mounted at a path. Whether it exists is told to nobody who may not have it.
fn root(shared: &Shared, client: &Client, path: &[u8]) -> Result<Handle, Kind> {
    let path = trimmed(path);
    let exports = shared.exports.list();
    let of_path = |e: &&Export| e.path == path;
    let export = exports.iter().find(of_path).ok_or(Kind::Access)?;
    access(&export.share, client.address, &shared.names).ok_or(Kind::Access)?;
    let door = export.opened.enter().ok_or(Kind::Access)?;
    let by = By::nobody(client, &export.opened);
    match door.lookup(&by, ROOT, b".").map_err(|e| e.kind)? {
        vfs::Lookup::Found(e) => {
            let place = door.place(&e);
            door.forget(e.node, 1);
            let fs = export.fs;
            let place = place.ok_or(Kind::Stale)?;
            Ok(Handle { fs, place })
        }
        vfs::Lookup::Missing(_) => Err(Kind::NotFound),
    }
}

fn list(shared: &Shared, out: Results<'_>) {
    for e in shared.exports.list() {
        out.bool(true).opaque(&e.path);
        let mut groups: Vec<String> = e.share.rules.iter().map(group).collect();
        groups.sort();
        groups.dedup();
        // Without any it would be for everybody.
        for g in groups {
            out.bool(true).opaque(g.as_bytes());
        }
        out.bool(false);
    }
    out.bool(false);
}
