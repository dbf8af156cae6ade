//! Sharing over SMB: what the property `sharesmb` says, and who serves it ([`SmbServer`]).

use base::{bail, Result};
use dsl::Dataset;

/// Name of the property.
pub const PROPERTY: &str = "sharesmb";

/// Has shares served over SMB.
pub trait SmbServer: Send + Sync {
    /// Refuses if it is not installed.
    ///
    /// # Errors
    /// What is missing.
    fn is_installed(&self) -> Result<()>;

    /// Refuses if nothing can be shared, by asking it.
    ///
    /// # Errors
    /// What is missing.
    fn check(&self) -> Result<()>;

    /// Shares have come or gone. Returns when clients have them. No lock of a pool is held.
    ///
    /// # Errors
    /// Why clients may not have them.
    fn changed(&self) -> Result<()>;

    /// The same from within a mount or unmount: it must not wait.
    fn will_change(&self);

    /// Why clients did not get a file system that is shared, when it was looked at for the last time.
    fn refusal(&self, _dataset: &str) -> Option<String> {
        None
    }
}

/// What the property says: shared or not.
///
/// # Errors
/// It is neither `on` nor `off`.
pub fn parse(text: &str) -> Result<bool> {
    match text {
        "off" => Ok(false),
        "on" => Ok(true),
        other => bail!(
            Invalid,
            "'{other}' in sharesmb: it is on or off; give a share other options in smb.conf(5)"
        ),
    }
}

/// What the property of a dataset says, in effect.
///
/// # Errors
/// It cannot be read, or is no value: of a pool that another system wrote, say.
pub fn wanted(ds: &Dataset) -> Result<bool> {
    if ds.is_snapshot() {
        return Ok(false);
    }
    match ds.prop(PROPERTY, true)? {
        Some((value, _)) => parse(value.text().unwrap_or("off")),
        None => Ok(false),
    }
}

/// The name of the share of a dataset: letters, digits, `-` and `.` of its name in lower case, and `_` for all others.
pub fn share_name(dataset: &str) -> String {
    let is_kept = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    let chars = dataset.chars();
    let kept = chars.map(|c| if is_kept(c) { c } else { '_' });
    kept.map(|c| c.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values() {
        assert_eq!(share_name("tank/My files/a-b.c_d"), "tank_my_files_a-b.c_d");
        assert_eq!((parse("on").unwrap(), parse("off").unwrap()), (true, false));
        assert!(parse("name=x").is_err());
    }
}
