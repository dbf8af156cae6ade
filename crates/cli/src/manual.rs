//! Manual pages, made from the tables, as roff with the `man` macros.

use crate::daemon_table::{DAEMON, ENVIRONMENT, FILES};
use crate::examples::{self, Example};
use crate::help::synopsis_words;
use crate::props::{Class, Info, DATASET, POOL, POOL_CACHE, POOL_SPACE, VDEV};
use crate::table::{Flag, Sub, Tool};
use crate::zdb_table::ZDB;
use crate::zfs_table::ZFS;
use crate::zpool_table::ZPOOL;
use crate::zstream_table::ZSTREAM;

/// All pages: file name and contents.
pub fn pages() -> Vec<(&'static str, String)> {
    vec![
        ("zpool.8", tool(&ZPOOL)),
        ("zfs.8", tool(&ZFS)),
        ("zfs-fuse.8", daemon()),
        ("zdb.8", zdb()),
        ("zstream.8", zstream()),
        ("zfsprops.7", zfsprops()),
        ("zpoolprops.7", zpoolprops()),
        ("vdevprops.7", vdevprops()),
    ]
}

/// Text safe within a line: backslashes and hyphens are not roff's.
fn escape(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

struct Page(String);

impl Page {
    fn new(name: &str, section: u8, about: &str) -> Page {
        let upper = name.to_uppercase();
        let mut page = Page(format!(
            ".TH {} {section} \"\" \"zfs-fuse\" \"zfs-fuse\"\n.nh\n.ad l\n",
            escape(&upper)
        ));
        page.section("NAME");
        page.line(&format!(
            "{} \\- {}",
            escape(name),
            escape(about.trim_end_matches('.'))
        ));
        page
    }

    /// A line as it is; one that begins like a request is kept from being one.
    fn line(&mut self, text: &str) {
        if text.starts_with(['.', '\'']) {
            self.0.push_str("\\&");
        }
        self.0.push_str(text);
        self.0.push('\n');
    }

    fn request(&mut self, text: &str) {
        self.0.push_str(text);
        self.0.push('\n');
    }

    fn section(&mut self, name: &str) {
        self.request(&format!(".SH {name}"));
    }

    fn subsection(&mut self, name: &str) {
        self.request(&format!(".SS \"{}\"", escape(name)));
    }

    fn paragraph(&mut self, text: &str) {
        self.request(".PP");
        self.line(&escape(text));
    }

    fn item(&mut self, tag: &str, text: &str) {
        self.request(".TP");
        self.line(tag);
        self.line(&escape(text));
    }

    fn flags(&mut self, flags: &[Flag]) {
        for flag in flags {
            let mut names = Vec::new();
            if let Some(c) = flag.short {
                names.push(format!("\\fB\\-{}\\fR", escape(&c.to_string())));
            }
            if let Some(l) = flag.long {
                names.push(format!("\\fB\\-\\-{}\\fR", escape(l)));
            }
            let mut tag = names.join(", ");
            if let Some(arg) = flag.arg {
                tag.push_str(&format!(" \\fI{}\\fR", escape(arg)));
            }
            let mut text = flag.help.to_string();
            if flag.repeat && flag.arg.is_some() {
                text.push_str(" May be given several times.");
            }
            if !flag.built {
                text.push_str(" Not available in this version yet.");
            }
            self.item(&tag, &text);
        }
    }

    fn synopsis(&mut self, program: &str, sub: &Sub) {
        self.request(".HP");
        self.line(&format!(
            "\\fB{}\\fR {}",
            escape(program),
            escape(&synopsis_words(sub).join(" "))
        ));
    }

    fn environment(&mut self) {
        self.section("ENVIRONMENT");
        for (name, text) in ENVIRONMENT {
            self.item(&format!("\\fB{}\\fR", escape(name)), text);
        }
    }

    fn examples(&mut self, list: &[Example]) {
        self.section("EXAMPLES");
        for (what, lines) in list {
            self.paragraph(what);
            self.request(".PP\n.RS 4\n.nf");
            for line in *lines {
                self.line(&escape(line));
            }
            self.request(".fi\n.RE");
        }
    }

    fn see(&mut self, pages: &[&str]) {
        self.section("SEE ALSO");
        let list: Vec<String> = pages
            .iter()
            .map(|p| match p.split_once('(') {
                Some((name, section)) => format!("\\fB{}\\fR({section}", escape(name)),
                None => escape(p),
            })
            .collect();
        self.line(&list.join(", "));
    }
}

fn tool(tool: &Tool) -> String {
    let mut page = commands(tool);
    page.section("EXIT STATUS");
    page.item("\\fB0\\fR", "Success.");
    page.item(
        "\\fB1\\fR",
        "An error happened; part of the work may be done.",
    );
    page.item("\\fB2\\fR", "Wrong command line.");
    page.environment();
    page.examples(match tool.name {
        "zfs" => examples::ZFS,
        _ => examples::ZPOOL,
    });
    page.see(tool.see);
    page.0
}

fn zstream() -> String {
    let mut page = commands(&ZSTREAM);
    page.section("EXIT STATUS");
    page.item("\\fB0\\fR", "Success.");
    page.item(
        "\\fB1\\fR",
        "An error happened, or the command line is wrong.",
    );
    page.item("\\fB2\\fR", "A type of compression is unknown.");
    page.examples(examples::ZSTREAM);
    page.see(ZSTREAM.see);
    page.0
}

/// A page up to the descriptions of the subcommands.
fn commands(tool: &Tool) -> Page {
    let mut page = Page::new(tool.name, 8, tool.about);
    page.section("SYNOPSIS");
    for sub in tool.subs.iter().filter(|s| s.built) {
        page.synopsis(&format!("{} {}", tool.name, sub.name), sub);
    }
    page.section("DESCRIPTION");
    for text in tool.text {
        page.paragraph(text);
    }
    page.section("SUBCOMMANDS");
    for sub in tool.subs.iter().filter(|s| s.built) {
        page.subsection(&format!("{} {}", tool.name, sub.name));
        page.line(&escape(sub.about));
        if !sub.aliases.is_empty() {
            page.line(&escape(&format!("Also: {}.", sub.aliases.join(", "))));
        }
        for text in sub.text {
            page.paragraph(text);
        }
        page.flags(sub.flags);
    }
    let rest: Vec<&str> = tool
        .subs
        .iter()
        .filter(|s| !s.built)
        .map(|s| s.name)
        .collect();
    if !rest.is_empty() {
        page.section("NOT AVAILABLE IN THIS VERSION YET");
        page.paragraph(&format!("{}.", rest.join(", ")));
    }
    page
}

fn daemon() -> String {
    let mut page = Page::new("zfs-fuse", 8, DAEMON.about);
    page.section("SYNOPSIS");
    page.synopsis("zfs-fuse", &DAEMON);
    page.section("DESCRIPTION");
    for text in DAEMON.text {
        page.paragraph(text);
    }
    page.section("OPTIONS");
    page.flags(DAEMON.flags);
    page.section("FILES");
    for (path, text) in FILES {
        page.item(&format!("\\fI{}\\fR", escape(path)), text);
    }
    page.section("EXIT STATUS");
    page.item(
        "\\fB0\\fR",
        "Success; in the background: the daemon serves.",
    );
    page.item("\\fB1\\fR", "It could not start.");
    page.item("\\fB2\\fR", "Wrong command line.");
    page.item(
        "\\fB3\\fR",
        "Another daemon serves the control socket already.",
    );
    page.environment();
    page.examples(examples::DAEMON);
    page.see(&["zpool(8)", "zfs(8)", "zdb(8)", "fusermount3(1)"]);
    page.0
}

fn zdb() -> String {
    let mut page = Page::new("zdb", 8, ZDB.about);
    page.section("SYNOPSIS");
    page.synopsis("zdb", &ZDB);
    page.section("DESCRIPTION");
    for text in ZDB.text {
        page.paragraph(text);
    }
    page.section("OPTIONS");
    page.flags(ZDB.flags);
    page.examples(examples::ZDB);
    page.see(&["zpool(8)", "zfs(8)", "zfs-fuse(8)"]);
    page.0
}

fn properties(page: &mut Page, table: &[Info], class: &[Class]) {
    let mut list: Vec<&Info> = table
        .iter()
        .filter(|p| p.visible && class.contains(&p.class))
        .collect();
    list.sort_by_key(|p| p.name);
    for p in list {
        let values = if p.class == Class::ReadOnly {
            String::new()
        } else {
            format!("={}", p.values)
        };
        let tag = format!("\\fB{}\\fR{}", escape(p.name), escape(&values));
        let mut text = p.help.to_string();
        if !p.default.is_empty() && p.default != "-" {
            text.push_str(&format!(" Default: {}.", p.default));
        }
        let only = match p.kinds {
            "" => disk::props::pool(p.name).and_then(|s| s.only),
            _ => disk::props::dataset(p.name).and_then(|s| s.only),
        };
        if let Some(only) = only {
            text.push_str(&format!(
                " This version lets only {} be set.",
                only.join(", ")
            ));
        }
        page.item(&tag, &text);
    }
}

fn zfsprops() -> String {
    let mut page = Page::new("zfsprops", 7, "properties of ZFS datasets");
    page.section("DESCRIPTION");
    page.paragraph(
        "Properties are shown with zfs get and set with zfs set. Sizes may be given with the \
         suffixes K, M, G, T, P, E and Z. Columns of zfs list and options that name a property \
         also take the heading of its column, such as avail and refer.",
    );
    page.section("READ-ONLY PROPERTIES");
    properties(&mut page, DATASET, &[Class::ReadOnly]);
    page.section("PROPERTIES INHERITED BY DESCENDANTS");
    properties(&mut page, DATASET, &[Class::Inherit]);
    page.section("PROPERTIES OF THE DATASET ALONE");
    properties(&mut page, DATASET, &[Class::Local]);
    page.section("PROPERTIES FIXED AT CREATION");
    properties(&mut page, DATASET, &[Class::Once]);
    page.section("USER PROPERTIES");
    page.paragraph(
        "Names with a colon, of lower-case letters, digits and - _ . : up to 255 characters, by \
         convention beginning with a reversed domain (com.example:name). Values are texts of up \
         to 8191 bytes. They are inherited and have no effect.",
    );
    page.section("TEMPORARY MOUNT OPTIONS");
    page.paragraph("zfs mount -o sets a property until the file system is unmounted:");
    for (option, property) in [
        ("atime, noatime", "atime"),
        ("relatime, norelatime", "relatime"),
        ("dev, nodev", "devices"),
        ("exec, noexec", "exec"),
        ("ro, rw", "readonly"),
        ("suid, nosuid", "setuid"),
        ("xattr, noxattr", "xattr"),
    ] {
        page.item(&format!("\\fB{option}\\fR"), property);
    }
    page.see(&["zfs(8)", "zpoolprops(7)"]);
    page.0
}

fn zpoolprops() -> String {
    let mut page = Page::new("zpoolprops", 7, "properties of ZFS pools");
    page.section("DESCRIPTION");
    page.paragraph(
        "Properties are shown with zpool get and set with zpool set, or with -o when a pool is \
         created or imported.",
    );
    page.section("READ-ONLY PROPERTIES");
    properties(&mut page, POOL, &[Class::ReadOnly]);
    page.section("PROPERTIES SET AT CREATION OR IMPORT");
    properties(&mut page, POOL, &[Class::Once]);
    page.section("OTHER PROPERTIES");
    properties(&mut page, POOL, &[Class::Local]);
    page.section("SPACE");
    page.paragraph(
        "These read-only properties are shown when they are named; all leaves them out.",
    );
    for p in POOL_SPACE {
        page.item(&format!("\\fB{}\\fR", escape(p.name)), p.help);
    }
    page.section("CACHE DEVICES");
    page.paragraph(
        "These read-only properties are shown when they are named, too. They have the names of the same counters in OpenZFS's arcstats. \
         zpool list -o name,l2_hits,l2_misses,l2_asize POOL 5 shows them every five seconds; zpool iostat -v shows what each \
         cache device reads and writes.",
    );
    for p in POOL_CACHE {
        page.item(&format!("\\fB{}\\fR", escape(p.name)), p.help);
    }
    page.section("FEATURES");
    page.paragraph(
        "feature@NAME shows disabled, enabled or active and can be set to enabled. An active \
         feature changes what is on disk: software without it cannot use the pool, or only read \
         it. unsupported@GUID shows features of the pool that are not known here.",
    );
    page.see(&["zpool(8)", "zfsprops(7)", "vdevprops(7)"]);
    page.0
}

fn vdevprops() -> String {
    let mut page = Page::new("vdevprops", 7, "properties of the vdevs of ZFS pools");
    page.section("DESCRIPTION");
    page.paragraph(
        "Properties of vdevs are shown with zpool get and set with zpool set, with the pool and the vdev as \
         operands. What is set is stored in the pool. A property that a vdev does not have is shown as a dash.",
    );
    page.paragraph(
        "Thresholds for errors count for all devices below the vdev they are set on: of a device its own value \
         counts, else that of its top-level vdev, else that of the root. Where none is set, 10 errors within 600 seconds \
         count. A value that is set on a device is lost when the device is replaced. none takes a value away.",
    );
    page.section("READ-ONLY PROPERTIES");
    properties(&mut page, VDEV, &[Class::ReadOnly]);
    for p in VDEV.iter().filter(|p| !p.visible && p.name != "name") {
        page.item(&format!("\\fB{}\\fR", escape(p.name)), p.help);
    }
    page.section("OTHER PROPERTIES");
    properties(&mut page, VDEV, &[Class::Local]);
    page.section("USER PROPERTIES");
    page.paragraph(
        "Names with a colon hold any text of less than 8192 bytes. An empty value takes the property away.",
    );
    page.see(&["zpool(8)", "zpoolprops(7)"]);
    page.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_sound_roff() {
        const REQUESTS: [&str; 13] = [
            ".TH", ".nh", ".ad", ".SH", ".SS", ".PP", ".TP", ".HP", ".RS", ".RE", ".nf", ".fi",
            ".\\\"",
        ];
        for (name, text) in pages() {
            assert!(text.starts_with(".TH "), "{name}");
            for line in text.lines() {
                assert!(!line.is_empty(), "{name}: empty line");
                if line.starts_with('.') {
                    let word = line.split(' ').next().unwrap_or_default();
                    assert!(REQUESTS.contains(&word), "{name}: {line}");
                }
                // Bold and italics end where they begin.
                let on = line.matches("\\fB").count() + line.matches("\\fI").count();
                assert_eq!(on, line.matches("\\fR").count(), "{name}: {line}");
            }
        }
    }

    #[test]
    fn a_section_in_full() {
        let text = tool(&ZPOOL);
        assert!(
            text.contains(".SS \"zpool destroy\"\nDestroy a pool.\n.PP\nUnmounts all file systems")
        );
        assert!(text.contains("\n.TP\n\\fB\\-f\\fR\nUnmount by force.\n"));
        assert!(text.contains(
            "\n.TP\n\\fB\\-o\\fR \\fIproperty=value\\fR\nSet a pool property, ashift, version or a feature. May be given several times.\n"
        ));
        assert!(zfsprops().contains("\n.TP\n\\fBatime\\fR=on | off\nWhether reading"));
    }
}
