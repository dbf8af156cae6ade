//! Finding programs on this machine; the error names the package of a missing one.

use base::{bail, Result};
use std::path::PathBuf;

/// A program and the Debian package that has it.
#[derive(Debug, PartialEq, Eq)]
pub struct Tool {
    /// Name of the program.
    pub name: &'static str,
    /// Name of the Debian package.
    pub package: &'static str,
}

/// A program and its package.
pub const fn tool(name: &'static str, package: &'static str) -> Tool {
    Tool { name, package }
}

impl Tool {
    /// Where it is.
    ///
    /// Errors: unsupported, with the package to install.
    pub fn path(&self) -> Result<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut dirs = postgres_folders();
        dirs.extend(std::env::split_paths(&path));
        dirs.extend(["/usr/sbin", "/usr/local/sbin", "/sbin"].map(PathBuf::from));
        let found = dirs
            .into_iter()
            .map(|d| d.join(self.name))
            .find(|p| p.is_file());
        match found {
            Some(p) => Ok(p),
            None => bail!(
                Unsupported,
                "there is no {} here (package {})",
                self.name,
                self.package
            ),
        }
    }
}

/// Debian keeps the programs of PostgreSQL apart, by version; the newest comes first.
fn postgres_folders() -> Vec<PathBuf> {
    let list = std::fs::read_dir("/usr/lib/postgresql");
    let mut versions: Vec<(u32, PathBuf)> = list
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|e| {
            let version = e.file_name().to_str()?.parse().ok()?;
            Some((version, e.path().join("bin")))
        })
        .collect();
    versions.sort();
    versions.into_iter().rev().map(|(_, p)| p).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn found_or_named() {
        assert!(tool("sh", "dash").path().is_ok());
        let e = tool("no-such-program", "some-package").path().unwrap_err();
        assert_eq!(e.kind, base::Kind::Unsupported);
        assert!(e.to_string().contains("some-package"));
    }
}
