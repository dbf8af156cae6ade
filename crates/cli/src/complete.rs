//! Completions for bash, zsh and fish, made from the tables.

use crate::daemon_table::DAEMON;
use crate::props::{Class, Info, DATASET, POOL};
use crate::table::{Complete, Flag, Sub, Tool};
use crate::zdb_table::ZDB;
use crate::zfs_table::ZFS;
use crate::zpool_table::ZPOOL;
use crate::zstream_table::ZSTREAM;

/// All files: path below the completion directory, contents.
pub fn files() -> Vec<(&'static str, String)> {
    vec![
        ("bash/zpool", bash_tool(&ZPOOL)),
        ("bash/zfs", bash_tool(&ZFS)),
        ("bash/zfs-fuse", bash_plain(&DAEMON)),
        ("bash/zdb", bash_plain(&ZDB)),
        ("bash/zstream", bash_tool(&ZSTREAM)),
        ("zsh/_zpool", zsh_tool(&ZPOOL)),
        ("zsh/_zfs", zsh_tool(&ZFS)),
        ("zsh/_zfs-fuse", zsh_plain(&DAEMON)),
        ("zsh/_zdb", zsh_plain(&ZDB)),
        ("zsh/_zstream", zsh_tool(&ZSTREAM)),
        ("fish/zpool.fish", fish_tool(&ZPOOL)),
        ("fish/zfs.fish", fish_tool(&ZFS)),
        ("fish/zfs-fuse.fish", fish_plain(&DAEMON)),
        ("fish/zdb.fish", fish_plain(&ZDB)),
        ("fish/zstream.fish", fish_tool(&ZSTREAM)),
    ]
}

fn built(flags: &'static [Flag]) -> impl Iterator<Item = &'static Flag> {
    flags.iter().filter(|f| f.built)
}

fn option_words(flags: &'static [Flag]) -> String {
    let mut words = Vec::new();
    for flag in built(flags) {
        words.extend(flag.short.map(|c| format!("-{c}")));
        words.extend(flag.long.map(|l| format!("--{l}")));
    }
    words.join(" ")
}

fn subs(tool: &Tool) -> impl Iterator<Item = &Sub> {
    tool.subs.iter().filter(|s| s.built)
}

fn table(tool: &Tool) -> &'static [Info] {
    if tool.name == "zpool" {
        POOL
    } else {
        DATASET
    }
}

/// Names of properties that can be shown, and those that can be set.
fn property_words(tool: &Tool, settable: bool) -> String {
    let words: Vec<&str> = table(tool)
        .iter()
        .filter(|p| p.visible)
        .filter(|p| !settable || matches!(p.class, Class::Local | Class::Inherit))
        .map(|p| p.name)
        .collect();
    words.join(" ")
}

/// Shell command that lists what the operands may be, if a daemon runs; empty for files.
fn lister(complete: Complete) -> &'static str {
    match complete {
        Complete::Pools | Complete::PoolThenDevices => {
            "env ZFS_FUSE_NO_START=1 zpool list -H -o name 2>/dev/null"
        }
        Complete::Datasets => "env ZFS_FUSE_NO_START=1 zfs list -H -t all -o name 2>/dev/null",
        Complete::Filesystems => {
            "env ZFS_FUSE_NO_START=1 zfs list -H -t filesystem -o name 2>/dev/null"
        }
        Complete::Files | Complete::Nothing => "",
    }
}

/// Shell command that lists the devices of the pool `$pool`, if a daemon runs.
const DEVICES: &str =
    "{ env ZFS_FUSE_NO_START=1 zpool list -vHP -o name \"$pool\" | awk 'NR > 1 { print $1 }'; } 2>/dev/null";

fn bash_operands(complete: Complete) -> String {
    match lister(complete) {
        list if complete == Complete::PoolThenDevices => format!(
            "        local pool= word\n        \
             for word in \"${{COMP_WORDS[@]:2:COMP_CWORD-2}}\"; do\n            \
             case \"$word\" in -* | *=*) ;; *) pool=$word; break ;; esac\n        done\n        \
             if [ -z \"$pool\" ]; then\n            \
             COMPREPLY=($(compgen -W \"$({list})\" -- \"$cur\"))\n        else\n            \
             COMPREPLY=($(compgen -f -W \"$({DEVICES})\" -- \"$cur\"))\n        fi\n"
        ),
        "" if complete == Complete::Nothing => "        :\n".into(),
        "" => "        COMPREPLY=($(compgen -f -- \"$cur\"))\n".into(),
        list => format!("        COMPREPLY=($(compgen -W \"$({list})\" -- \"$cur\"))\n"),
    }
}

fn bash_tool(tool: &Tool) -> String {
    let name = tool.name;
    let all: Vec<&str> = subs(tool).map(|s| s.name).collect();
    let mut out = format!(
        "# Completion of {name} for bash.\n_zfs_fuse_{name}() {{\n    \
         local cur=${{COMP_WORDS[COMP_CWORD]}} sub=${{COMP_WORDS[1]}}\n    COMPREPLY=()\n    \
         if [ \"$COMP_CWORD\" -eq 1 ]; then\n        \
         COMPREPLY=($(compgen -W \"{} help\" -- \"$cur\"))\n        return\n    fi\n    \
         case \"$sub\" in\n",
        all.join(" ")
    );
    for sub in subs(tool) {
        let mut names = vec![sub.name];
        names.extend(sub.aliases);
        out.push_str(&format!("    {})\n", names.join("|")));
        out.push_str(&format!(
            "        if [[ $cur == -* ]]; then\n            \
             COMPREPLY=($(compgen -W \"{}\" -- \"$cur\"))\n            return\n        fi\n",
            option_words(sub.flags)
        ));
        let first = match sub.name {
            "get" | "inherit" => Some((property_words(tool, sub.name == "inherit"), "")),
            "set" => Some((property_words(tool, true), "=")),
            _ => None,
        };
        if let Some((words, extra)) = first {
            let extra = if extra.is_empty() {
                String::new()
            } else {
                "            compopt -o nospace\n            COMPREPLY=(\"${COMPREPLY[@]/%/=}\")\n"
                    .to_string()
            };
            out.push_str(&format!(
                "        if [ \"$COMP_CWORD\" -eq 2 ]; then\n            \
                 COMPREPLY=($(compgen -W \"{words}\" -- \"$cur\"))\n{extra}            \
                 return\n        fi\n"
            ));
        }
        out.push_str(&bash_operands(sub.complete));
        out.push_str("        ;;\n");
    }
    out.push_str(&format!(
        "    esac\n}}\ncomplete -F _zfs_fuse_{name} {name}\n"
    ));
    out
}

fn bash_plain(sub: &Sub) -> String {
    let function = sub.name.replace('-', "_");
    format!(
        "# Completion of {name} for bash.\n_zfs_fuse_{function}() {{\n    \
         local cur=${{COMP_WORDS[COMP_CWORD]}}\n    COMPREPLY=()\n    \
         if [[ $cur == -* ]]; then\n        COMPREPLY=($(compgen -W \"{options}\" -- \"$cur\"))\n    \
         else\n{operands}    fi\n}}\ncomplete -F _zfs_fuse_{function} {name}\n",
        name = sub.name,
        options = option_words(sub.flags),
        operands = bash_operands(sub.complete),
    )
}

/// Text within single quotes, and without what zsh's specifications take for themselves.
fn zsh_text(text: &str) -> String {
    text.trim_end_matches('.')
        .replace('\'', "'\\''")
        .replace('[', "\\[")
        .replace(']', "\\]")
        .replace(':', "\\:")
}

fn zsh_arguments(sub: &Sub, indent: &str, first: Option<&str>) -> String {
    let mut specs = Vec::new();
    for flag in built(sub.flags) {
        let star = if flag.repeat { "*" } else { "" };
        let arg = match flag.arg {
            Some(a) => format!(":{}: ", zsh_text(a)),
            None => String::new(),
        };
        let text = zsh_text(flag.help);
        if let Some(c) = flag.short {
            specs.push(format!("'{star}-{c}[{text}]{arg}'"));
        }
        if let Some(l) = flag.long {
            let eq = if flag.arg.is_some() { "=" } else { "" };
            specs.push(format!("'{star}--{l}{eq}[{text}]{arg}'"));
        }
    }
    if let Some(words) = first {
        specs.push(format!("'1:property:({words})'"));
    }
    let rest = match (sub.complete, lister(sub.complete)) {
        (Complete::Nothing, _) => None,
        (_, "") => Some("'*:file:_files'".to_string()),
        (Complete::PoolThenDevices, _) => {
            specs.push(format!("'1:pool: {}'", zsh_lister(Complete::Pools)));
            Some(format!("'*:device: {}'", zsh_lister(sub.complete)))
        }
        // A blank before it: it takes no arguments.
        (kind, _) => Some(format!("'*:name: {}'", zsh_lister(kind))),
    };
    specs.extend(rest);
    let gap = format!(" \\\n{indent}    ");
    format!("{indent}_arguments -s{gap}{}\n", specs.join(&gap))
}

/// Name of the function that offers such names.
fn zsh_lister(complete: Complete) -> &'static str {
    match complete {
        Complete::Pools => "_zfs_fuse_pools",
        Complete::PoolThenDevices => "_zfs_fuse_devices",
        Complete::Datasets => "_zfs_fuse_datasets",
        Complete::Filesystems => "_zfs_fuse_filesystems",
        Complete::Files | Complete::Nothing => "_files",
    }
}

/// The functions that offer names of what there is: names may have colons and blanks in them.
fn zsh_listers() -> String {
    let devices = format!(
        "_zfs_fuse_devices() {{\n    local -a names operands\n    operands=(${{words[2,-1]:#-*}})\n    \
         local pool=${{operands[1]}}\n    names=(${{(f)\"$({DEVICES})\"}})\n    compadd -a names\n    \
         (( ${{+compstate}} )) && _files\n}}\n"
    );
    let names: String = [Complete::Pools, Complete::Datasets, Complete::Filesystems]
        .into_iter()
        .map(|kind| {
            format!(
                "{}() {{\n    local -a names\n    names=(${{(f)\"$({})\"}})\n    compadd -a names\n}}\n",
                zsh_lister(kind),
                lister(kind)
            )
        })
        .collect();
    names + &devices
}

fn zsh_tool(tool: &Tool) -> String {
    let name = tool.name;
    let mut out = format!(
        "#compdef {name}\n# Completion of {name} for zsh.\n{}\
         if (( CURRENT == 2 )); then\n    local -a commands\n    commands=(\n",
        zsh_listers()
    );
    for sub in subs(tool) {
        out.push_str(&format!("        '{}:{}'\n", sub.name, zsh_text(sub.about)));
    }
    out.push_str(
        "    )\n    _describe command commands\n    return\nfi\n\
         local sub=$words[2]\nshift words\n(( CURRENT-- ))\ncase $sub in\n",
    );
    for sub in subs(tool) {
        let mut names = vec![sub.name];
        names.extend(sub.aliases);
        let first = match sub.name {
            "get" => Some(property_words(tool, false)),
            "set" | "inherit" => Some(property_words(tool, true)),
            _ => None,
        };
        out.push_str(&format!(
            "{})\n{}    ;;\n",
            names.join("|"),
            zsh_arguments(sub, "    ", first.as_deref())
        ));
    }
    out.push_str("esac\n");
    out
}

fn zsh_plain(sub: &Sub) -> String {
    format!(
        "#compdef {name}\n# Completion of {name} for zsh.\n{}{}",
        zsh_listers(),
        zsh_arguments(sub, "", None),
        name = sub.name
    )
}

fn fish_text(text: &str) -> String {
    text.trim_end_matches('.')
        .replace('\\', "\\\\")
        .replace('\'', "\\'")
}

fn fish_flags(name: &str, condition: &str, flags: &'static [Flag]) -> String {
    let mut out = String::new();
    for flag in built(flags) {
        out.push_str(&format!("complete -c {name}{condition}"));
        if let Some(c) = flag.short {
            out.push_str(&format!(" -s {c}"));
        }
        if let Some(l) = flag.long {
            out.push_str(&format!(" -l {l}"));
        }
        if flag.arg.is_some() {
            out.push_str(" -r");
        }
        out.push_str(&format!(" -d '{}'\n", fish_text(flag.help)));
    }
    out
}

fn fish_tool(tool: &Tool) -> String {
    let name = tool.name;
    let mut out = format!("# Completion of {name} for fish.\ncomplete -c {name} -f\n");
    for sub in subs(tool) {
        out.push_str(&format!(
            "complete -c {name} -n __fish_use_subcommand -a {} -d '{}'\n",
            sub.name,
            fish_text(sub.about)
        ));
    }
    for sub in subs(tool) {
        let mut names = vec![sub.name];
        names.extend(sub.aliases);
        let condition = format!(" -n '__fish_seen_subcommand_from {}'", names.join(" "));
        out.push_str(&fish_flags(name, &condition, sub.flags));
        match (sub.complete, lister(sub.complete)) {
            (Complete::Nothing, _) => {}
            (_, "") => out.push_str(&format!("complete -c {name}{condition} -F\n")),
            (Complete::PoolThenDevices, list) => {
                let operands = "test (count (commandline -opc))";
                let seen = format!("__fish_seen_subcommand_from {}", names.join(" "));
                out.push_str(&format!(
                    "complete -c {name} -n '{seen}; and {operands} -le 2' -a '({list})'\n\
                     complete -c {name} -n '{seen}; and {operands} -gt 2' -F -a '(env ZFS_FUSE_NO_START=1 \
                     zpool list -vHP -o name (commandline -opc)[3] 2>/dev/null | tail -n +2 | string trim)'\n"
                ));
            }
            (_, list) => {
                out.push_str(&format!("complete -c {name}{condition} -a '({list})'\n"));
            }
        }
        if matches!(sub.name, "get" | "set" | "inherit") {
            let words = property_words(tool, sub.name != "get");
            out.push_str(&format!("complete -c {name}{condition} -a '{words}'\n"));
        }
    }
    out
}

fn fish_plain(sub: &'static Sub) -> String {
    format!(
        "# Completion of {name} for fish.\n{}",
        fish_flags(sub.name, "", sub.flags),
        name = sub.name
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cover_the_tables() {
        for (path, text) in files() {
            assert!(text.ends_with('\n') && text.lines().count() >= 1, "{path}");
            if path.ends_with("zpool") || path.ends_with("zpool.fish") {
                for sub in ZPOOL.subs {
                    // What is not built is not offered.
                    let offered = text
                        .split(|c: char| !c.is_ascii_alphanumeric())
                        .any(|w| w == sub.name);
                    if sub.built {
                        assert!(offered, "{path}: {}", sub.name);
                    }
                }
                assert!(!text.contains("labelcleared"));
            }
        }
        let bash = bash_tool(&ZPOOL);
        assert!(bash.contains("    ddtprune)") && bash.contains("    labelclear)"));
        assert_eq!(bash.matches("case ").count(), bash.matches("esac").count());
    }

    /// `zpool replace tank <TAB>` in bash: first pools, then the devices of that pool.
    #[test]
    fn devices_are_offered_behind_the_pool() {
        use std::process::Command;
        let script = bash_tool(&ZPOOL)
            + "env() { case \"$*\" in *-vHP*) printf 'tank\\n\\tmirror-0\\n\\t/dev/sda\\n' ;; *) echo tank ;; esac; }\n\
               try() { COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _zfs_fuse_zpool; echo \"${COMPREPLY[*]}\"; }\n\
               cd /proc/self/fdinfo; try zpool replace ''; try zpool replace tank /dev/sd; try zpool offline -t tank mir\n";
        let done = Command::new("bash").args(["-c", &script]).output();
        let Ok(done) = done else {
            println!("bash is not installed: its completion is not run");
            return;
        };
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines[0], "tank", "{done:?}");
        assert!(lines[1].split(' ').any(|w| w == "/dev/sda"), "{done:?}");
        assert_eq!(lines[2], "mirror-0", "{done:?}");
    }

    /// Pressing TAB lists what a running daemon has, and starts none.
    #[test]
    fn completion_never_starts_a_daemon() {
        for (path, text) in files() {
            for line in text.lines() {
                for command in ["zpool list", "zfs list"] {
                    let calls = line.matches(command).count();
                    let quiet = format!("env ZFS_FUSE_NO_START=1 {command}");
                    assert_eq!(line.matches(&quiet).count(), calls, "{path}: {line}");
                }
            }
        }
    }

    /// zsh finds the functions through compinit, and each subcommand's branch runs: parsing alone does
    /// not look into them.
    #[test]
    fn zsh_runs_every_branch() {
        use std::process::Command;
        let dir = std::env::temp_dir().join(format!("zfs-zsh-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        for (path, text) in files() {
            if let Some(name) = path.strip_prefix("zsh/") {
                std::fs::write(dir.join(name), text).unwrap();
            }
        }
        let mut script = String::from(
            "fpath=($DIR $fpath); autoload -Uz compinit && compinit -u -D || exit 1\n\
             for c in zpool zfs zdb zfs-fuse; do [[ $_comps[$c] == _$c ]] || exit 2; done\n\
             PATH=$DIR; _arguments() { (( $# > 1 )) || exit 3; local a; for a in \"$@\"; do\n\
             [[ $a == *:' '_zfs_fuse_* ]] && ${a##*: }; done; return 0 }\n\
             _describe() { (( ${(P)#2} > 3 )) || exit 4 }\ncompadd() { [[ $1 == -a ]] || exit 5 }\n",
        );
        for (tool, list) in [("zpool", ZPOOL.subs), ("zfs", ZFS.subs)] {
            script.push_str(&format!(
                "words=({tool} ''); CURRENT=2; _{tool} || exit 6\n"
            ));
            for sub in list.iter().filter(|s| s.built) {
                let name = sub.name;
                script.push_str(&format!(
                    "words=({tool} {name} ''); CURRENT=3; _{tool} || {{ print -u2 {tool} {name}; exit 7 }}\n"
                ));
            }
        }
        for plain in ["zdb", "zfs-fuse"] {
            script.push_str(&format!(
                "words=({plain} ''); CURRENT=2; _{plain} || exit 8\n"
            ));
        }
        let done = Command::new("zsh")
            .args(["-f", "-c", &script])
            .env("DIR", &dir)
            .output();
        let _ = std::fs::remove_dir_all(&dir);
        let Ok(done) = done else {
            println!("zsh is not installed: its completion is not run");
            return;
        };
        let complaint = String::from_utf8_lossy(&done.stderr);
        assert!(
            done.status.success() && complaint.is_empty(),
            "{}: {complaint}",
            done.status
        );
    }

    /// Where a shell is installed, it takes its file.
    #[test]
    fn shells_accept_them() {
        use std::io::Write;
        use std::process::{Command, Stdio};
        for (path, text) in files() {
            let shell = path.split('/').next().unwrap_or_default();
            let child = Command::new(shell)
                .arg("-n")
                .stdin(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn();
            let Ok(mut child) = child else {
                println!("{shell} is not installed: {path} not checked");
                continue;
            };
            if let Some(mut input) = child.stdin.take() {
                input.write_all(text.as_bytes()).unwrap();
            }
            let done = child.wait_with_output().unwrap();
            let complaint = String::from_utf8_lossy(&done.stderr).into_owned();
            assert!(
                done.status.success() && complaint.is_empty(),
                "{path}: {complaint}"
            );
        }
    }
}
