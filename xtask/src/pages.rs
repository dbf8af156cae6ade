//! Manual pages and completions, written from the commands' own tables.

use std::path::Path;

fn write(dir: &Path, files: Vec<(&'static str, String)>) -> Result<usize, String> {
    let count = files.len();
    for (name, text) in files {
        let path = dir.join(name);
        let parent = path.parent().unwrap_or(dir);
        std::fs::create_dir_all(parent).map_err(|e| format!("{}: {e}", parent.display()))?;
        std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(count)
}

/// Writes `zpool.8` and the others into `dir`.
pub fn manual(dir: &Path) -> Result<usize, String> {
    write(dir, cli::manual::pages())
}

/// Writes `bash/`, `zsh/` and `fish/` into `dir`.
pub fn completions(dir: &Path) -> Result<usize, String> {
    write(dir, cli::complete::files())
}
