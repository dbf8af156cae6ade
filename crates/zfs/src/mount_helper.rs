//! `mount.fuse.zfs`: what mount(8) runs for file systems of type `fuse.zfs`, to mount them or to
//! change their options (`mount -o remount,… PLACE`). It is the `zfs` command under another name.
//!
//! Without it mount(8) takes `mount.fuse`, which does not know how to remount.

use std::ffi::OsStr;
use std::path::Path;

/// Exit statuses of mount(8).
pub const WRONG: u8 = 1;
pub const FAILED: u8 = 32;

/// Whether the command was called as the helper.
pub fn is_name(program: &OsStr) -> bool {
    let name = Path::new(program).file_name();
    name.is_some_and(|n| n == "mount.fuse.zfs" || n == "mount.zfs")
}

/// The command line of `zfs` for one of the helper:
/// `SOURCE PLACE [-nv] [-t TYPE] [-o OPTIONS]` (mount(8), "External helpers").
pub fn words(args: &[String]) -> Result<Vec<String>, String> {
    let mut operands = Vec::new();
    let mut options = Vec::new();
    let mut rest = args.iter();
    while let Some(word) = rest.next() {
        let Some(flags) = word.strip_prefix('-').filter(|f| !f.is_empty()) else {
            operands.push(word.clone());
            continue;
        };
        let mut flags = flags.chars();
        while let Some(flag) = flags.next() {
            match flag {
                // There is no /etc/mtab to leave alone, and nothing more to tell.
                'n' | 'v' => {}
                'o' | 't' => {
                    let attached = flags.as_str();
                    let value = match attached.is_empty() {
                        false => attached.to_string(),
                        true => rest
                            .next()
                            .cloned()
                            .ok_or(format!("-{flag} needs a value"))?,
                    };
                    match flag {
                        'o' => options.push(value),
                        _ if value == "fuse.zfs" || value == "zfs" => {}
                        _ => return Err(format!("'{value}' is no type of ZFS")),
                    }
                    break;
                }
                other => return Err(format!("option -{other} is not supported")),
            }
        }
    }
    let [source, place] = operands.as_slice() else {
        return Err("a file system and a directory are needed".into());
    };
    // mount(8) mounts over directories that are not empty.
    let mut out = vec!["mount".to_string(), "-O".into()];
    for o in options {
        out.extend(["-o".to_string(), o]);
    }
    out.extend([source.clone(), place.clone()]);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Result<String, String> {
        let words_in: Vec<String> = text.split_whitespace().map(str::to_string).collect();
        words(&words_in).map(|w| w.join(" "))
    }

    #[test]
    fn lines_of_mount_become_lines_of_zfs() {
        assert!(is_name(OsStr::new("/sbin/mount.fuse.zfs")));
        assert!(!is_name(OsStr::new("/sbin/zfs")));
        assert_eq!(
            line("tank/a /mnt -o rw,remount -t fuse.zfs").unwrap(),
            "mount -O -o rw,remount tank/a /mnt"
        );
        assert_eq!(line("tank /mnt -nv").unwrap(), "mount -O tank /mnt");
        assert_eq!(line("tank /mnt -oro").unwrap(), "mount -O -o ro tank /mnt");
        for wrong in [
            "tank",
            "tank /mnt -s",
            "tank /mnt -o",
            "tank /mnt -t ext4",
            "a b c",
        ] {
            assert!(line(wrong).is_err(), "{wrong}");
        }
    }
}
