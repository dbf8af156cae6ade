//! Usage texts made from the tables.

use crate::props::{Class, Info, DATASET, POOL};
use crate::table::{Flag, Sub, Tool};

/// `-o property=value` and the like, as in a synopsis.
fn shown(flag: &Flag) -> String {
    match flag.arg {
        Some(arg) if flag.short.is_some() => format!("{} {arg}", flag.spelled()),
        Some(arg) => format!("{}={arg}", flag.spelled()),
        None => flag.spelled(),
    }
}

/// Words of a synopsis after the subcommand: `[-fn] [-o property=value]... pool vdev...`
pub fn synopsis_words(sub: &Sub) -> Vec<String> {
    let mut words = Vec::new();
    let mut letters: Vec<char> = sub
        .flags
        .iter()
        .filter(|f| f.arg.is_none())
        .filter_map(|f| f.short)
        .collect();
    letters.sort_by_key(|c| (c.to_ascii_lowercase(), c.is_ascii_uppercase()));
    if !letters.is_empty() {
        words.push(format!("[-{}]", letters.iter().collect::<String>()));
    }
    for flag in sub.flags {
        if flag.arg.is_none() && flag.short.is_some() {
            continue;
        }
        let dots = if flag.repeat { "..." } else { "" };
        words.push(format!("[{}]{dots}", shown(flag)));
    }
    words.extend(sub.operands.split_whitespace().map(str::to_string));
    words
}

/// Joins words into lines of at most `width` columns; `first` begins the first line, `next` the
/// others.
pub fn wrap(words: &[String], first: &str, next: &str, width: usize) -> String {
    let mut out = String::new();
    let mut line = first.to_string();
    let mut empty = true;
    for word in words {
        if !empty && line.chars().count() + 1 + word.chars().count() > width {
            out.push_str(line.trim_end());
            out.push('\n');
            line = next.to_string();
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    out.push_str(line.trim_end());
    out.push('\n');
    out
}

/// The synopsis lines of one subcommand, indented by a tab.
pub fn synopsis(sub: &Sub) -> String {
    let first = format!("\t{} ", sub.name);
    wrap(&synopsis_words(sub), &first, "\t    ", 72)
}

/// Usage of one subcommand: after a complaint on stderr.
pub fn usage(sub: &Sub) -> String {
    format!("usage:\n{}", synopsis(sub))
}

/// `--help` of one subcommand: usage, what it does, options.
pub fn full(tool: &Tool, sub: &Sub) -> String {
    let mut out = usage(sub);
    let about: Vec<String> = sub.about.split_whitespace().map(str::to_string).collect();
    out.push('\n');
    out.push_str(&wrap(&about, "", "", 78));
    if !sub.built {
        out.push_str(&format!(
            "{} {} is not available in this version yet.\n",
            tool.name, sub.name
        ));
    }
    out.push_str(&options(sub));
    out
}

/// The options with what they do.
fn options(sub: &Sub) -> String {
    let mut out = String::new();
    if !sub.flags.is_empty() {
        out.push('\n');
    }
    for flag in sub.flags {
        let mut name = String::new();
        if let Some(c) = flag.short {
            name = format!("-{c}");
        }
        if let Some(l) = flag.long {
            if !name.is_empty() {
                name.push_str(", ");
            }
            name.push_str(&format!("--{l}"));
        }
        if let Some(arg) = flag.arg {
            name.push_str(&format!(" {arg}"));
        }
        let mut help = flag.help.to_string();
        if !flag.built {
            help.push_str(" (not available in this version yet)");
        }
        let words: Vec<String> = help.split_whitespace().map(str::to_string).collect();
        let first = format!("  {name:<22}");
        if name.chars().count() >= 22 {
            out.push_str(&format!("  {name}\n"));
            out.push_str(&wrap(&words, &" ".repeat(24), &" ".repeat(24), 78));
        } else {
            out.push_str(&wrap(&words, &first, &" ".repeat(24), 78));
        }
    }
    out
}

/// `--help` of a program without subcommands.
pub fn program(sub: &Sub) -> String {
    let first = format!("usage: {} ", sub.name);
    let next = " ".repeat(first.len());
    let about = sub.about;
    format!(
        "{}\n{about}\n{}",
        wrap(&synopsis_words(sub), &first, &next, 78),
        options(sub)
    )
}

/// The table of properties after the usage of `get`, `set` and `inherit`; nothing after that of others. Scripts take
/// names, and whether they can be set and inherited, from its columns.
pub fn properties(tool: &Tool, sub: &Sub) -> String {
    if !["get", "set", "inherit"].contains(&sub.name) {
        return String::new();
    }
    let yes = |b: bool| if b { "YES" } else { "NO" };
    let mut out = String::from("\nThe following properties are supported:\n");
    if tool.name == "zpool" {
        out.push_str(&format!(
            "\n\t{:<19}  {:>4}   VALUES\n\n",
            "PROPERTY", "EDIT"
        ));
        for p in POOL.iter().filter(|p| p.visible) {
            let edit = yes(p.class != Class::ReadOnly);
            out.push_str(&format!("\t{:<19}  {edit:>4}   {}\n", p.name, p.values));
        }
        out.push_str("\nThe feature@ properties must be appended with a feature name.\n");
        return out;
    }
    out.push_str(&format!(
        "\n\t{:<20} EDIT  INHERIT   VALUES\n\n",
        "PROPERTY"
    ));
    let mut row = |name: &str, edit: bool, inherit: bool, values: &str| {
        let (edit, inherit) = (yes(edit), yes(inherit));
        out.push_str(&format!(
            "\t{name:<20} {edit:>4}  {inherit:>7}   {values}\n"
        ));
    };
    let mut list: Vec<&Info> = DATASET.iter().filter(|p| p.visible).collect();
    list.sort_by_key(|p| p.name);
    for p in list {
        let edit = p.class != Class::ReadOnly;
        row(p.name, edit, p.class == Class::Inherit, p.values);
    }
    for who in ["user", "group", "project"] {
        row(&format!("{who}used@..."), false, false, "<size>");
        row(&format!("{who}objused@..."), false, false, "<size>");
        row(&format!("{who}quota@..."), true, false, "<size> | none");
        row(&format!("{who}objquota@..."), true, false, "<size> | none");
    }
    row("written@<snap>", false, false, "<size>");
    row("written#<bookmark>", false, false, "<size>");
    out.push_str(
        "\nSizes are specified in bytes with standard units such as K, M, G, etc.\n\
         \nUser-defined properties can be specified by using a name containing a colon (:).\n\
         \nThe {user|group|project}[obj]{used|quota}@ properties must be appended with\n\
         a user|group|project specifier of one of these forms:\n    \
         POSIX name      (eg: \"matt\")\n    \
         POSIX id        (eg: \"126829\")\n",
    );
    out
}

/// Usage of a whole command.
pub fn overview(tool: &Tool) -> String {
    let mut out = format!("usage: {} command args ...\n", tool.name);
    out.push_str("where 'command' is one of the following:\n\n");
    for sub in tool.subs.iter().filter(|s| s.built) {
        out.push_str(&synopsis(sub));
    }
    let later = tool.subs.iter().filter(|s| !s.built);
    let later: Vec<String> = later.map(|s| s.name.to_string()).collect();
    if !later.is_empty() {
        out.push_str("\nNot available in this version yet:\n");
        out.push_str(&wrap(&later, "\t", "\t", 72));
    }
    out.push_str(&format!(
        "\nFor more about one of them, run: {} command --help, or {} help command\n",
        tool.name, tool.name
    ));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_definition_gives_the_usage() {
        let tool = &crate::zpool_table::ZPOOL;
        let sub = tool.find("destroy").unwrap();
        assert_eq!(usage(sub), "usage:\n\tdestroy [-f] [--yes] pool\n");
        let sub = tool.find("create").unwrap();
        assert_eq!(
            usage(sub),
            "usage:\n\tcreate [-dfn] [-o property=value]... \
             [-O file-system-property=value]...\n\
             \t    [-m mountpoint] [-R root] [-t tempname] pool vdev...\n"
        );
        assert!(full(tool, sub).contains("\n  -m mountpoint"));
        assert!(overview(tool).starts_with("usage: zpool command args ...\n"));
    }

    #[test]
    fn help_tells_what_is_not_built() {
        let zfs = &crate::zfs_table::ZFS;
        let text = overview(zfs);
        let (built, later) = text
            .split_once("Not available in this version yet:")
            .unwrap();
        assert!(built.contains("\n\tlist ") && !built.contains("\n\tprogram "));
        assert!(later.contains("program") && !later.contains("\tlist"));
    }

    /// As scripts read it: `zfs get 2>&1 | awk '$2 == "YES" && $3 == "YES" { print $1 }'`.
    #[test]
    fn the_table_of_properties_has_columns_that_scripts_read() {
        let zfs = &crate::zfs_table::ZFS;
        let table = properties(zfs, zfs.find("get").unwrap());
        let cells = |name: &str| {
            let mut rows = table.lines().map(|l| l.split_whitespace());
            let row = rows.find(|r| r.clone().next() == Some(name)).unwrap();
            row.take(4).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(cells("PROPERTY"), "PROPERTY EDIT INHERIT VALUES");
        assert_eq!(cells("available"), "available NO NO <size>");
        assert_eq!(cells("atime"), "atime YES YES on");
        assert_eq!(cells("canmount"), "canmount YES NO on");
        assert_eq!(cells("userquota@..."), "userquota@... YES NO <size>");
        let zpool = &crate::zpool_table::ZPOOL;
        let table = properties(zpool, zpool.find("set").unwrap());
        assert!(
            table.contains("\tallocated              NO   <size>\n"),
            "{table}"
        );
        assert!(properties(zpool, zpool.find("list").unwrap()).is_empty());
    }

    /// Tables are well formed: no letter twice, every option explained, text ends as sentences do.
    #[test]
    fn tables_are_sound() {
        for tool in [
            &crate::zpool_table::ZPOOL,
            &crate::zfs_table::ZFS,
            &crate::zstream_table::ZSTREAM,
        ] {
            let mut names = std::collections::HashSet::new();
            for sub in tool.subs {
                for name in std::iter::once(&sub.name).chain(sub.aliases) {
                    assert!(names.insert(*name), "{name} twice");
                }
                let mut keys = std::collections::HashSet::new();
                for flag in sub.flags {
                    let at = format!("{} {} {}", tool.name, sub.name, flag.spelled());
                    assert!(flag.help.ends_with('.'), "{at}: help");
                    assert!(flag.short != Some(' '), "{at}");
                    assert!(keys.insert(flag.spelled()), "{at} twice");
                }
                assert!(sub.about.ends_with('.'), "{} {}", tool.name, sub.name);
                assert!(
                    !sub.built || !sub.text.is_empty(),
                    "{} {}: text",
                    tool.name,
                    sub.name
                );
            }
        }
    }
}
