//! The least version of Rust: what `rust-version` of the workspace says must hold for every dependency, and for the code.
//!
//! Dependencies say themselves what they need. The code is compiled with that version where rustup has it; elsewhere
//! clippy's `incompatible_msrv` and CI must do.

use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// What was found.
pub struct Report {
    /// One line for each mistake.
    pub errors: Vec<String>,
    /// The least version.
    pub version: String,
    /// Packages that say what they need.
    pub packages: usize,
    /// The code was compiled with the least version.
    pub built: bool,
}

/// A version of Rust: major, minor, patch.
type Version = (u64, u64, u64);

/// `1.88` or `1.88.0`.
fn version(text: &str) -> Option<Version> {
    let mut parts = text.split('.').map(|p| p.parse().ok());
    let version = (
        parts.next()??,
        parts.next()??,
        parts.next().unwrap_or(Some(0))?,
    );
    parts.next().is_none().then_some(version)
}

/// Checks the workspace at `root`.
pub fn check(root: &Path) -> Result<Report, String> {
    let metadata = crate::licences::metadata(root)?;
    let packages = metadata["packages"].as_array();
    let mut report = compare(packages.ok_or("cargo metadata names no packages")?)?;
    let toolchain = minor(&report.version);
    if has_toolchain(&toolchain) {
        report.built = true;
        if !builds(root, &toolchain)? {
            let what = format!("the workspace does not compile with Rust {toolchain}");
            report.errors.push(what);
        }
    }
    Ok(report)
}

/// `1.88` of `1.88.0`.
fn minor(text: &str) -> String {
    let parts: Vec<&str> = text.split('.').take(2).collect();
    parts.join(".")
}

fn compare(packages: &[Value]) -> Result<Report, String> {
    let said = |p: &Value| p["rust_version"].as_str().map(String::from);
    // Members have no source.
    let (members, others): (Vec<&Value>, Vec<&Value>) =
        packages.iter().partition(|p| p["source"].is_null());
    let mut report = Report {
        errors: Vec::new(),
        version: String::new(),
        packages: 0,
        built: false,
    };
    for member in members {
        let name = member["name"].as_str().unwrap_or("");
        match said(member) {
            None => report
                .errors
                .push(format!("{name}: has no rust-version.workspace = true")),
            Some(v) if report.version.is_empty() => report.version = v,
            Some(v) if v != report.version => {
                let other = &report.version;
                let what =
                    format!("{name}: rust-version {v}, others of the workspace have {other}");
                report.errors.push(what);
            }
            Some(_) => {}
        }
    }
    let Some(least) = version(&report.version) else {
        return Err("the workspace has no rust-version".into());
    };
    for package in others {
        let Some(needs) = said(package) else { continue };
        report.packages += 1;
        let name = package["name"].as_str().unwrap_or("");
        match version(&needs) {
            Some(v) if v <= least => {}
            _ => report.errors.push(format!(
                "{name} {}: needs Rust {needs}, the workspace promises {}; raise rust-version in \
                 Cargo.toml, or take an older version of it",
                package["version"].as_str().unwrap_or(""),
                report.version
            )),
        }
    }
    Ok(report)
}

/// Whether rustup has this toolchain already.
fn has_toolchain(version: &str) -> bool {
    let Ok(out) = Command::new("rustup").args(["toolchain", "list"]).output() else {
        return false;
    };
    let list = String::from_utf8_lossy(&out.stdout).into_owned();
    list.lines().any(|l| names(l, version))
}

/// Whether a line of rustup's list is of this version: `1.88-x86_64-…` or `1.88.0-x86_64-…`.
fn names(line: &str, version: &str) -> bool {
    line.strip_prefix(version)
        .is_some_and(|rest| rest.starts_with(['-', '.']) || rest.is_empty())
}

/// Compiles everything with that toolchain, in a folder of its own.
fn builds(root: &Path, toolchain: &str) -> Result<bool, String> {
    Command::new("rustup")
        .args([
            "run",
            toolchain,
            "cargo",
            "check",
            "--workspace",
            "--all-targets",
        ])
        .args(["--locked", "--quiet", "--target-dir", "target/msrv"])
        .current_dir(root)
        // These belong to the toolchain that runs this.
        .env_remove("CARGO")
        .env_remove("RUSTC")
        .env_remove("RUSTUP_TOOLCHAIN")
        .status()
        .map(|s| s.success())
        .map_err(|e| format!("cannot run rustup: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_dependency_that_needs_more_is_named() {
        let member = |v: &str| json!({"name": "base", "rust_version": v, "source": null});
        let other = |v: Value| json!({"name": "dep", "version": "2.0.1", "rust_version": v, "source": "registry"});
        let errors = |needs: Value| compare(&[member("1.88"), other(needs)]).unwrap().errors;
        for good in [json!("1.88"), json!("1.88.0"), json!("1.9.3"), json!(null)] {
            assert!(errors(good.clone()).is_empty(), "{good}");
        }
        for bad in [
            json!("1.88.1"),
            json!("1.100"),
            json!("2.0"),
            json!("nightly"),
        ] {
            let e = errors(bad.clone());
            assert_eq!(e.len(), 1, "{bad}");
            assert!(e[0].starts_with("dep 2.0.1: needs Rust"), "{e:?}");
        }
        let e = compare(&[member("1.88"), member("1.89")]).unwrap().errors;
        assert!(e[0].contains("rust-version 1.89"), "{e:?}");
        let none = json!({"name": "base", "source": null});
        assert!(compare(&[member("1.88"), none.clone()]).unwrap().errors[0].contains("has no"));
        assert!(compare(&[none]).is_err());
    }

    #[test]
    fn toolchains_are_known_by_their_version() {
        assert!(names("1.88.0-x86_64-unknown-linux-gnu (default)", "1.88"));
        assert!(names("1.88-x86_64-unknown-linux-gnu", "1.88"));
        assert!(!names("1.8-x86_64-unknown-linux-gnu", "1.88"));
        assert!(!names("1.880-x86_64-unknown-linux-gnu", "1.88"));
        assert!(!names("stable-x86_64-unknown-linux-gnu", "1.88"));
        assert_eq!(minor("1.88.0"), "1.88");
    }
}
