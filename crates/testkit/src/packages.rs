//! Programs of other implementations, from the distribution's package archive.
//!
//! The sources of the machine's own package manager are read to find the archive and the key that
//! signs it; a private configuration adds the suites and components needed. `apt-get download` and
//! `dpkg -x` put the files into the cache folder; nothing is installed, no system file changes.

use crate::run::{output, stdout, TempDir};
use base::{bail, Result};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Something to fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// OpenZFS's `zdb`, `zstream`, `zhack` and their libraries.
    OpenZfs,
    /// OpenZFS's `ztest` and test suite; needs the libraries of [`Set::OpenZfs`].
    Ztest,
    /// zfs-fuse 0.7 with its own `zfs`, `zpool`, `zdb`.
    ZfsFuse,
    /// `sanoid` with the Perl modules that it needs.
    Sanoid,
    /// `zfs-auto-snapshot`.
    AutoSnapshot,
    /// The Perl modules that znapzend needs.
    Mojolicious,
    /// The NFS server Ganesha, and the port mapper without which it does not begin.
    Ganesha,
}

impl Set {
    /// All sets.
    pub const ALL: [Set; 7] = [
        Set::OpenZfs,
        Set::Ztest,
        Set::ZfsFuse,
        Set::Sanoid,
        Set::AutoSnapshot,
        Set::Mojolicious,
        Set::Ganesha,
    ];

    /// Name of the folder in the cache, and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Set::OpenZfs => "openzfs",
            Set::Ztest => "ztest",
            Set::ZfsFuse => "zfs-fuse",
            Set::Sanoid => "sanoid",
            Set::AutoSnapshot => "zfs-auto-snapshot",
            Set::Mojolicious => "mojolicious",
            Set::Ganesha => "ganesha",
        }
    }

    fn package(self) -> &'static str {
        match self {
            Set::OpenZfs => "zfsutils-linux",
            Set::Ztest => "zfs-test",
            Set::ZfsFuse => "zfs-fuse",
            Set::Sanoid => "sanoid",
            Set::AutoSnapshot => "zfs-auto-snapshot",
            Set::Mojolicious => "libmojolicious-perl",
            Set::Ganesha => "nfs-ganesha",
        }
    }

    fn backports(self) -> bool {
        matches!(self, Set::OpenZfs | Set::Ztest)
    }

    /// Whether a dependency has to be fetched too: libraries that a machine without the package
    /// would not have.
    fn wants(self, dependency: &str) -> bool {
        let own = ["zfs", "zpool", "nvpair", "uutil"];
        let fuse = ["libfuse", "libaio"];
        match self {
            Set::OpenZfs => {
                dependency.starts_with("lib") && own.iter().any(|w| dependency.contains(w))
            }
            Set::Ztest | Set::AutoSnapshot => false,
            Set::Mojolicious => false,
            Set::Ganesha => {
                let own = [
                    "libntirpc",
                    "liburcu",
                    "libwbclient",
                    "libnfsidmap",
                    "libdbus",
                    "rpcbind",
                ];
                own.iter().any(|w| dependency.starts_with(w))
            }
            Set::Sanoid => matches!(
                dependency,
                "libconfig-inifiles-perl" | "libcapture-tiny-perl"
            ),
            Set::ZfsFuse => fuse.iter().any(|w| dependency.starts_with(w)),
        }
    }

    /// Further packages, on which the set's own does not depend.
    fn also(self) -> &'static [&'static str] {
        match self {
            Set::Mojolicious => &["librole-tiny-perl"],
            Set::Ganesha => &["nfs-ganesha-vfs", "libtirpc3", "libwrap0"],
            _ => &[],
        }
    }

    fn programs(self) -> &'static [&'static str] {
        match self {
            Set::OpenZfs => &["zdb", "zstream"],
            Set::Ztest => &["ztest"],
            Set::ZfsFuse => &["zfs-fuse", "zfs", "zpool"],
            Set::Sanoid => &["sanoid", "syncoid"],
            Set::AutoSnapshot => &["zfs-auto-snapshot"],
            Set::Mojolicious => &["mojo"],
            Set::Ganesha => &["ganesha.nfsd", "rpcbind"],
        }
    }
}

/// An unpacked set.
#[derive(Clone, Debug)]
pub struct Programs {
    root: PathBuf,
}

impl Programs {
    /// Path of a program, if the set has it.
    pub fn find(&self, name: &str) -> Option<PathBuf> {
        ["sbin", "usr/sbin", "bin", "usr/bin"]
            .iter()
            .map(|d| self.root.join(d).join(name))
            .find(|p| p.is_file())
    }

    /// The folder the packages are unpacked in, which stands for `/`.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Path of a file of the set, given from the root.
    ///
    /// Errors: not found.
    pub fn file(&self, path: &str) -> Result<PathBuf> {
        let file = self.root.join(path);
        if !file.is_file() {
            bail!(NotFound, "the packages have no {path}");
        }
        Ok(file)
    }

    /// Folders with the set's own shared libraries.
    pub fn libraries(&self) -> Vec<PathBuf> {
        let mut out = Vec::new();
        for lib in ["lib", "usr/lib"] {
            let lib = self.root.join(lib);
            let below = std::fs::read_dir(&lib)
                .into_iter()
                .flatten()
                .flatten()
                .map(|e| e.path())
                .filter(|p| p.to_string_lossy().ends_with("-linux-gnu"));
            out.extend(below);
            out.push(lib);
        }
        out.retain(|p| p.is_dir());
        out
    }
}

/// `$ZFS_FUSE_TEST_CACHE`, or `.cache/oracles` in the workspace.
pub fn cache() -> PathBuf {
    match std::env::var_os("ZFS_FUSE_TEST_CACHE") {
        Some(dir) => dir.into(),
        None => workspace().join(".cache/oracles"),
    }
}

/// The folder with the workspace's `Cargo.toml`.
pub fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

/// The set, fetched if the cache does not have it.
///
/// Errors: unsupported if this machine has no suitable package manager or archive, or it does not answer.
pub fn get(set: Set) -> Result<Programs> {
    let root = cache().join(set.name());
    if !root.is_dir() {
        fetch(set, &root)?;
    }
    let programs = Programs { root };
    for p in set.programs() {
        if programs.find(p).is_none() {
            bail!(Unsupported, "the packages for {} have no {p}", set.name());
        }
    }
    Ok(programs)
}

/// A folder for `PYTHONPATH` with a Python package of exactly this version (`name==1.2`) and what it needs, fetched
/// with pip if the cache does not have it.
///
/// Errors: unsupported if there is no pip, or it cannot fetch the package.
pub fn python(package: &str) -> Result<PathBuf> {
    let root = cache().join(format!("python-{package}"));
    if root.is_dir() {
        return Ok(root);
    }
    std::fs::create_dir_all(cache())?;
    let work = TempDir::inside(&cache(), "fetch")?;
    let tree = work.path().join("tree");
    let mut c = Command::new("python3");
    c.args(["-m", "pip", "install", "-q", "--no-compile", "--target"]);
    c.arg(&tree).arg(package);
    let fetched = output(&mut c).ok().filter(|out| out.status.success());
    if fetched.is_none() {
        bail!(Unsupported, "{package} could not be fetched with pip");
    }
    settle(&tree, &root)?;
    Ok(root)
}

/// Puts a fetched tree into its place. Another process may have been faster; its result is as good.
fn settle(tree: &Path, root: &Path) -> Result<()> {
    match std::fs::rename(tree, root) {
        Err(e) if !root.is_dir() => Err(e.into()),
        _ => Ok(()),
    }
}

fn fetch(set: Set, root: &Path) -> Result<()> {
    let cache = cache();
    std::fs::create_dir_all(&cache)?;
    let work = TempDir::inside(&cache, "fetch")?;
    let apt = Apt::new(work.path())?;
    apt.update()?;
    let mut names = vec![set.package().to_string()];
    names.extend(apt.depends(set)?.into_iter().filter(|d| set.wants(d)));
    names.extend(set.also().iter().map(|n| n.to_string()));
    apt.download(set, &names)?;
    let tree = work.path().join("tree");
    std::fs::create_dir_all(&tree)?;
    for entry in std::fs::read_dir(work.path().join("debs"))? {
        let deb = entry?.path();
        stdout(Command::new("dpkg").arg("-x").arg(&deb).arg(&tree))?;
    }
    settle(&tree, root)
}

/// apt with a state of its own.
struct Apt {
    dir: PathBuf,
    codename: String,
}

impl Apt {
    fn new(dir: &Path) -> Result<Apt> {
        let codename = codename()?;
        let Some(archive) = find_archive(&codename) else {
            bail!(Unsupported, "no package source of {codename} is configured");
        };
        for d in [
            "sources",
            "state/lists/partial",
            "cache/archives/partial",
            "debs",
        ] {
            std::fs::create_dir_all(dir.join(d))?;
        }
        let mut text = format!(
            "Types: deb\nURIs: {}\nSuites: {codename} {codename}-backports\nComponents: main contrib\n",
            archive.uris
        );
        if let Some(key) = &archive.signed_by {
            let _ = writeln!(text, "Signed-By: {key}");
        }
        std::fs::write(dir.join("sources/oracles.sources"), text)?;
        let d = dir.display();
        std::fs::write(
            dir.join("apt.conf"),
            format!(
                "Dir::State \"{d}/state\";\nDir::State::status \"/var/lib/dpkg/status\";\n\
                 Dir::Cache \"{d}/cache\";\nDir::Etc::sourcelist \"/dev/null\";\n\
                 Dir::Etc::sourceparts \"{d}/sources\";\nDebug::NoLocking \"1\";\n\
                 Acquire::Languages \"none\";\nAPT::Sandbox::User \"root\";\n"
            ),
        )?;
        Ok(Apt {
            dir: dir.to_path_buf(),
            codename,
        })
    }

    fn command(&self, program: &str) -> Command {
        let mut c = Command::new(program);
        c.env("APT_CONFIG", self.dir.join("apt.conf"))
            .env("LC_ALL", "C")
            .current_dir(self.dir.join("debs"));
        c
    }

    fn update(&self) -> Result<()> {
        let mut c = self.command("apt-get");
        let out = output(c.args(["-q", "update"]))?;
        if !out.status.success() {
            let text = crate::run::all_text(&c, &out);
            bail!(Unsupported, "the package archive cannot be read: {text}");
        }
        Ok(())
    }

    fn release(&self, set: Set) -> String {
        match set.backports() {
            true => format!("{}-backports", self.codename),
            false => self.codename.clone(),
        }
    }

    /// Direct dependencies of the set's package in the suite that will be used.
    fn depends(&self, set: Set) -> Result<Vec<String>> {
        let mut c = self.command("apt-cache");
        let want = format!("{}/{}", set.package(), self.release(set));
        let out = output(c.args(["-t", &self.release(set), "show", &want]))?;
        if !out.status.success() {
            bail!(Unsupported, "the package archive has no {want}");
        }
        Ok(parse_depends(&String::from_utf8_lossy(&out.stdout)))
    }

    fn download(&self, set: Set, names: &[String]) -> Result<()> {
        let mut c = self.command("apt-get");
        c.args(["-q", "-t", &self.release(set), "download"]);
        let out = output(c.args(names))?;
        if !out.status.success() {
            let text = crate::run::all_text(&c, &out);
            bail!(Unsupported, "{} could not be fetched: {text}", set.name());
        }
        Ok(())
    }
}

/// Package names in the `Depends:` field of the first paragraph.
fn parse_depends(paragraphs: &str) -> Vec<String> {
    let first = paragraphs.split("\n\n").next().unwrap_or("");
    first
        .lines()
        .filter_map(|l| l.strip_prefix("Depends:"))
        .flat_map(|l| l.split([',', '|']))
        .filter_map(|d| d.split_whitespace().next())
        .map(|d| d.split(':').next().unwrap_or(d).to_string())
        .collect()
}

fn codename() -> Result<String> {
    let text = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let value = text
        .lines()
        .find_map(|l| l.strip_prefix("VERSION_CODENAME="))
        .map(|v| v.trim_matches('"').to_string());
    match value {
        Some(v) if Path::new("/etc/apt").is_dir() => Ok(v),
        _ => bail!(Unsupported, "this system does not use apt"),
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Archive {
    uris: String,
    signed_by: Option<String>,
}

/// The configured source that has the suite of the running system.
fn find_archive(codename: &str) -> Option<Archive> {
    let etc = Path::new("/etc/apt");
    let mut files = vec![etc.join("sources.list")];
    let parts = std::fs::read_dir(etc.join("sources.list.d"));
    files.extend(parts.into_iter().flatten().flatten().map(|e| e.path()));
    files.sort();
    files.iter().find_map(|f| {
        let text = std::fs::read_to_string(f).ok()?;
        match f.extension()?.to_str()? {
            "sources" => from_stanzas(&text, codename),
            "list" => from_lines(&text, codename),
            _ => None,
        }
    })
}

/// The newer form: paragraphs of fields.
fn from_stanzas(text: &str, codename: &str) -> Option<Archive> {
    let lines: Vec<&str> = text.lines().filter(|l| !l.starts_with('#')).collect();
    lines.split(|l| l.trim().is_empty()).find_map(|stanza| {
        let field = |name: &str| {
            stanza.iter().find_map(|l| {
                let (key, value) = l.split_once(':')?;
                key.eq_ignore_ascii_case(name).then(|| value.trim())
            })
        };
        let has = |name: &str, word: &str| {
            field(name).is_some_and(|v| v.split_whitespace().any(|w| w == word))
        };
        if !has("Types", "deb") || !has("Suites", codename) || has("Enabled", "no") {
            return None;
        }
        Some(Archive {
            uris: field("URIs")?.to_string(),
            signed_by: field("Signed-By")
                .filter(|v| !v.is_empty())
                .map(str::to_string),
        })
    })
}

/// The older form: `deb [options] uri suite component…`.
fn from_lines(text: &str, codename: &str) -> Option<Archive> {
    text.lines().find_map(|l| {
        let mut rest = l.trim().strip_prefix("deb ")?.trim_start();
        let mut signed_by = None;
        if let Some((options, after)) = rest.strip_prefix('[').and_then(|r| r.split_once(']')) {
            signed_by = options
                .split_whitespace()
                .find_map(|o| o.strip_prefix("signed-by="))
                .map(str::to_string);
            rest = after;
        }
        let mut words = rest.split_whitespace();
        let uris = words.next()?.to_string();
        (words.next()? == codename).then_some(Archive { uris, signed_by })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_sources() {
        let want = Some(Archive {
            uris: "http://archive.invalid/d".into(),
            signed_by: Some("/k.gpg".into()),
        });
        let stanzas = "# x\nTypes: deb\nURIs: http://s.invalid/\nSuites: name-security\n\n\
                       Types: deb deb-src\n# y\nURIs: http://archive.invalid/d\n\
                       Suites: name name-updates\nSigned-By: /k.gpg\n";
        assert_eq!(from_stanzas(stanzas, "name"), want);
        assert_eq!(from_stanzas(stanzas, "nam"), None);
        let off = stanzas.replace("# y", "Enabled: no");
        assert_eq!(from_stanzas(&off, "name"), None);
        let lines = "# deb http://no.invalid name main\ndeb http://s.invalid name-security main\n\
                     deb [arch=amd64 signed-by=/k.gpg] http://archive.invalid/d name main\n";
        assert_eq!(from_lines(lines, "name"), want);
        assert_eq!(
            from_lines("deb http://u.invalid name main", "name")
                .unwrap()
                .signed_by,
            None
        );
        assert_eq!(from_lines(lines, "other"), None);
    }

    #[test]
    fn dependencies() {
        let text = "Package: zfsutils-linux\nDepends: libzfs6linux (= 2.3), libc6 (>= 2.34) | x, python3:any\n\n\
                    Package: zfsutils-linux\nDepends: libzfs4linux\n";
        let d = parse_depends(text);
        assert_eq!(d, ["libzfs6linux", "libc6", "x", "python3"]);
        assert!(Set::OpenZfs.wants(&d[0]) && !Set::OpenZfs.wants(&d[1]));
        assert!(Set::ZfsFuse.wants("libfuse2") && !Set::ZfsFuse.wants("libc6"));
    }
}
