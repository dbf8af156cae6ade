//! The administrator's table of file systems, fstab(5): which mounts it lets every user make. mount(8) looks there, and then runs its
//! helper as the user, so that the daemon has to look as well.

use std::path::Path;

/// Where it is.
pub const FILE: &str = "/etc/fstab";

/// A field without its escapes: a backslash and three octal digits.
fn plain(field: &str) -> Vec<u8> {
    let bytes = field.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(b) = bytes.get(at) {
        let digits = bytes.get(at + 1..at + 4);
        let octal = digits.filter(|d| *b == b'\\' && d.iter().all(|d| (b'0'..=b'7').contains(d)));
        match octal {
            Some(d) => {
                let value = d.iter().fold(0u32, |n, d| n * 8 + u32::from(d - b'0'));
                out.push(value as u8);
                at += 4;
            }
            None => {
                out.push(*b);
                at += 1;
            }
        }
    }
    out
}

/// The options of the line that lets users mount a dataset at a place.
pub fn lets_users_mount(table: &str, dataset: &str, place: &Path) -> Option<String> {
    let is_it = |line: &&str| {
        let mut fields = line.split([' ', '\t']).filter(|f| !f.is_empty());
        let (source, target) = (fields.next(), fields.next());
        let same = |field: Option<&str>, text: &[u8]| field.is_some_and(|f| plain(f) == text);
        same(source, dataset.as_bytes())
            && same(target, place.as_os_str().as_encoded_bytes())
            && matches!(fields.next(), Some("zfs" | "fuse.zfs"))
    };
    let lines = table.lines().map(str::trim).filter(|l| !l.starts_with('#'));
    // mount(8) takes the first one, too.
    let line = { lines }.find(is_it)?;
    let options = line.split([' ', '\t']).filter(|f| !f.is_empty()).nth(3)?;
    let lets = options.split(',').any(|o| matches!(o, "user" | "users"));
    lets.then(|| options.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_let_users_mount() {
        let table = "# a comment\n/dev/sda1 / ext4 defaults 0 1\n\
                     tank/a\t/srv/a  zfs noauto,user,ro 0 0\n\
                     tank/b /srv/b zfs defaults 0 0\n\
                     tank/my\\040files /srv/my\\040files fuse.zfs users\n\
                     tank/c /srv/c ext4 user 0 0\n\
                     tank/d /srv/d zfs\n\
                     #tank/e /srv/e zfs user 0 0\n\
                     tank/f /srv/f zfs owner,group,x-user=1 0 0\n";
        let lets = |dataset: &str, place: &str| {
            lets_users_mount(table, dataset, Path::new(place)).unwrap_or_default()
        };
        assert_eq!(lets("tank/a", "/srv/a"), "noauto,user,ro");
        assert_eq!(lets("tank/my files", "/srv/my files"), "users");
        for (dataset, place) in [
            ("tank/a", "/srv/b"),
            ("tank/a", "/srv/a/"),
            ("tank/b", "/srv/b"),
            ("tank/c", "/srv/c"),
            ("tank/d", "/srv/d"),
            ("tank/e", "/srv/e"),
            ("tank/f", "/srv/f"),
            ("/dev/sda1", "/"),
        ] {
            assert_eq!(lets(dataset, place), "", "{dataset} {place}");
        }
    }
}
