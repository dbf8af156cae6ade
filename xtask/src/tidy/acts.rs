//! Acts that need rights are done by the room `privilege` alone: the rooms of the daemon ask `privilege::acts()`.

use super::source::{is_colons, is_ident, split_tests};
use proc_macro2::{TokenStream, TokenTree};

/// The room that does them.
pub const ROOM: &str = "privilege";
/// The program whose rooms do none.
pub const PROGRAM: &str = "daemon";

/// Functions that do one: the last two words of their path.
const FUNCTIONS: [(&str, &str); 12] = [
    ("Command", "new"),
    ("UnixListener", "bind"),
    ("TcpListener", "bind"),
    ("rustix", "mount"),
    ("fs", "write"),
    ("fs", "rename"),
    ("fs", "create_dir"),
    ("fs", "create_dir_all"),
    ("File", "create"),
    ("File", "create_new"),
    ("File", "options"),
    ("OpenOptions", "new"),
];

/// The same for rooms that otherwise open files of others: what opens a device.
const DEVICES: (&str, (&str, &str)) = ("env-linux", ("File", "open"));

/// What a text begins with that leads to something which takes rights, or for which programs have them.
const TEXTS: [&str; 6] = [
    "/dev/cpu_dma_latency",
    "/sys/class/bdi",
    "/sys/fs/fuse",
    "/sys/module/fuse/parameters",
    "/proc/sys/vm",
    "fusermount",
];

/// Where they are done all the same, and why.
const ELSEWHERE: [(&str, &str); 3] = [
    // The program's own start: its lock, its pid file, itself in the background.
    ("crates/daemon/src/startup.rs", "its own files"),
    // Commands start the daemon.
    ("crates/control/src/client.rs", "commands"),
    // The folder of the control socket, made before there is anything else.
    ("crates/control/src/path.rs", "the folder of the socket"),
];

/// Rooms of which the daemon uses words and tables, and commands the rest.
const COMMANDS: [&str; 1] = ["cli"];

/// The acts in a file of a room.
pub fn check(room: &str, path: &str, all: TokenStream) -> Vec<String> {
    let for_tests = path.ends_with("tests.rs") || path.ends_with("testing.rs");
    let elsewhere = ELSEWHERE.iter().any(|(file, _)| path == *file);
    if room == ROOM || COMMANDS.contains(&room) || for_tests || elsewhere {
        return Vec::new();
    }
    let mut found = Vec::new();
    look(room, split_tests(all).0, &mut found);
    let refused = |what: String| {
        format!("{path}: {what} is an act that needs rights: ask `{ROOM}::acts()` for it")
    };
    found.into_iter().map(refused).collect()
}

fn look(room: &str, all: TokenStream, found: &mut Vec<String>) {
    let list: Vec<TokenTree> = all.into_iter().collect();
    for (at, t) in list.iter().enumerate() {
        match t {
            TokenTree::Group(g) => look(room, g.stream(), found),
            TokenTree::Literal(text) => {
                let text = text.to_string();
                let begins = |w: &&&str| text.trim_start_matches(['c', '"']).starts_with(**w);
                found.extend(TEXTS.iter().find(begins).map(|w| format!("\"{w}…\"")));
            }
            TokenTree::Ident(_) if is_colons(&list, at + 1) => {
                let is = |(of, name): &(&str, &str)| {
                    is_ident(Some(t), of) && is_ident(list.get(at + 3), name)
                };
                let more = (room == DEVICES.0).then_some(&DEVICES.1);
                let act = FUNCTIONS.iter().chain(more).find(|f| is(f));
                found.extend(act.map(|(of, name)| format!("`{of}::{name}`")));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(room: &str, path: &str, text: &str) -> usize {
        check(room, path, text.parse().unwrap()).len()
    }

    #[test]
    fn acts_are_found_in_rooms_of_the_daemon_alone() {
        let text =
            "fn f() { std::process::Command::new(\"x\"); fs::write(\"/sys/class/bdi/1:2\", b); }\n\
                    #[cfg(test)] mod tests { fn g() { fs::write(p, b); } }";
        let file = "crates/admin/src/cache.rs";
        assert_eq!(found("admin", file, text), 3);
        assert_eq!(found(ROOM, "crates/privilege/src/direct.rs", text), 0);
        assert_eq!(found("cli", "crates/cli/src/keys.rs", text), 0);
        assert_eq!(found("admin", "crates/admin/src/pool_tests.rs", text), 0);
        let reads = "fn f() { File::open(p); pool::open(p); }";
        assert_eq!(found("admin", file, reads), 0);
        assert_eq!(found("env-linux", "crates/env-linux/src/disk.rs", reads), 1);
    }
}
