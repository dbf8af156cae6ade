//! The main loop of a process that walks paths for another one ([`crate::path_helper`]).

use std::os::fd::OwnedFd;

use crate::path_helper::serve;
use crate::question::{run, Job};
use crate::{holders, mount, place};

/// Answers questions until the other process ends.
pub fn serve_paths() {
    serve(perform);
}

fn perform(name: &str, body: &str, files: Vec<OwnedFd>) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
    match name {
        place::Find::NAME => run::<place::Find>(body, files),
        place::IsEmpty::NAME => run::<place::IsEmpty>(body, files),
        place::ChangeRights::NAME => run::<place::ChangeRights>(body, files),
        place::Undo::NAME => run::<place::Undo>(body, files),
        place::RemoveDir::NAME => run::<place::RemoveDir>(body, files),
        place::IsDead::NAME => run::<place::IsDead>(body, files),
        place::Probe::NAME => run::<place::Probe>(body, files),
        place::Objection::NAME => run::<place::Objection>(body, files),
        mount::MountOn::NAME => run::<mount::MountOn>(body, files),
        mount::MountAgain::NAME => run::<mount::MountAgain>(body, files),
        mount::Reach::NAME => run::<mount::Reach>(body, files),
        mount::Way::NAME => run::<mount::Way>(body, files),
        mount::Root::NAME => run::<mount::Root>(body, files),
        mount::TakeAway::NAME => run::<mount::TakeAway>(body, files),
        mount::Remount::NAME => run::<mount::Remount>(body, files),
        holders::Search::NAME => run::<holders::Search>(body, files),
        _ => None,
    }
}
