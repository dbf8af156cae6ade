//! Which events are wanted, by level and by room.

use std::str::FromStr;
use tracing_subscriber::filter::{LevelFilter, Targets};

/// The environment variable that [`filter`] reads.
pub const VARIABLE: &str = "ZFS_FUSE_LOG";

/// Rooms that emit events.
const ROOMS: [&str; 13] = [
    "admin",
    "control",
    "daemon",
    "dmu",
    "dsl",
    "env-linux",
    "nfs",
    "pool",
    "vdev",
    "vfs",
    "zil",
    "zpl",
    "zvol",
];

/// Levels, as they are written.
const LEVELS: &str = "off, error, warn, info, debug or trace";

/// Which events are wanted: a level for all rooms, and levels for some of them.
///
/// Written as `LEVEL` and `ROOM=LEVEL`, separated by commas: `warn,pool=debug`. A room is the name of a crate. An event
/// passes if its level is the one of its room, or more severe.
#[derive(Clone, Debug)]
pub struct Filter {
    level: LevelFilter,
    rooms: Vec<(String, LevelFilter)>,
}

impl Filter {
    /// As a layer.
    pub(crate) fn targets(&self) -> Targets {
        // An event's target is the path of its module, in which a crate has underscores.
        let rooms = self.rooms.iter().map(|(r, l)| (r.replace('-', "_"), *l));
        Targets::new().with_default(self.level).with_targets(rooms)
    }

    /// Changes this filter by what `text` says. Errors name the part that is wrong.
    fn change(mut self, text: &str) -> Result<Filter, String> {
        for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let (room, level) = match part.split_once('=') {
                Some((room, level)) => (Some(room.trim()), level.trim()),
                None => (None, part),
            };
            let level = match LevelFilter::from_str(level) {
                // Numbers would do for the parser, but nobody writes them.
                Ok(l) if !level.starts_with(|c: char| c.is_ascii_digit()) => l,
                _ => return Err(format!("'{part}': a level is {LEVELS}")),
            };
            match room {
                None => self.level = level,
                Some(room) if ROOMS.contains(&room) => self.rooms.push((room.into(), level)),
                Some(room) => {
                    let known = ROOMS.join(", ");
                    return Err(format!("'{room}' is no room that logs; these do: {known}"));
                }
            }
        }
        Ok(self)
    }
}

/// The filter `default`, changed by what `ZFS_FUSE_LOG` asks for. The error is a sentence for the user.
pub fn filter(default: &str) -> Result<Filter, String> {
    let nothing = Filter {
        level: LevelFilter::OFF,
        rooms: Vec::new(),
    };
    let asked = std::env::var_os(VARIABLE).unwrap_or_default();
    nothing
        .change(default)?
        .change(&asked.to_string_lossy())
        .map_err(|e| format!("{VARIABLE}: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    fn info() -> Filter {
        Filter {
            level: LevelFilter::INFO,
            rooms: Vec::new(),
        }
    }

    fn would(text: &str, room: &str, level: Level) -> bool {
        let filter = info().change(text).unwrap();
        filter.targets().would_enable(room, &level)
    }

    #[test]
    fn a_room_has_its_own_level_and_the_others_the_general_one() {
        assert!(would("", "daemon::service", Level::INFO));
        assert!(!would("", "daemon::service", Level::DEBUG));
        let text = "warn, env-linux=debug,zil=off";
        assert!(would(text, "env_linux::uring", Level::DEBUG));
        assert!(!would(text, "env_linux::uring", Level::TRACE));
        assert!(!would(text, "daemon", Level::INFO));
        assert!(would(text, "daemon", Level::WARN));
        assert!(!would(text, "zil::log", Level::ERROR));
    }

    #[test]
    fn what_is_no_level_or_no_room_is_refused() {
        for (text, named) in [
            ("debgu", "debgu"),
            ("pool", "pool"),
            ("info,pool=loud", "pool=loud"),
            ("3", "'3'"),
            ("poool=debug", "poool"),
        ] {
            let e = info().change(text).unwrap_err();
            assert!(e.contains(named), "{text}: {e}");
        }
    }

    /// A room that is missing here could not be asked for.
    #[test]
    fn every_crate_that_emits_events_can_be_asked_for() {
        let crates = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        for dir in std::fs::read_dir(crates).unwrap().flatten() {
            let name = dir.file_name().into_string().unwrap();
            let Ok(manifest) = std::fs::read_to_string(dir.path().join("Cargo.toml")) else {
                continue;
            };
            let emits = manifest
                .lines()
                .any(|l| l.starts_with("tracing ") || l.starts_with("tracing."));
            assert!(
                !emits || name == "logging" || ROOMS.contains(&name.as_str()),
                "{name} is missing in ROOMS"
            );
        }
    }
}
