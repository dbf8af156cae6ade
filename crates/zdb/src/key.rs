//! `-K`: the key of the dataset looked at.

use base::{bail, Error, Kind, Result};
use codec::crypt::WrappingKey;
use dsl::crypto::keyformat;
use dsl::KeyParams;
use pool::Pool;
use std::io::Write;
use zeroize::Zeroizing;

/// The key that `text` stands for: a passphrase, or the digits of a key (raw ones, too).
fn wrapping(params: &KeyParams, text: &str) -> Result<WrappingKey> {
    match params.format {
        keyformat::PASSPHRASE => {
            WrappingKey::from_passphrase(text.as_bytes(), params.salt, params.iterations)
        }
        keyformat::HEX | keyformat::RAW => {
            let mut raw = Zeroizing::new(Vec::with_capacity(text.len() / 2));
            for pair in text.as_bytes().chunks(2) {
                let digit = |i: usize| pair.get(i).and_then(|c| char::from(*c).to_digit(16));
                match (digit(0), digit(1)) {
                    (Some(h), Some(l)) => raw.push((h << 4 | l) as u8),
                    _ => bail!(Access, "the key is not a row of hexadecimal digits"),
                }
            }
            WrappingKey::from_bytes(&raw)
        }
        n => bail!(Damaged, "unknown keyformat {n}"),
    }
}

/// Loads the key that the dataset takes, for all that have it from the same root.
pub fn unlock(pool: &Pool, target: &str, text: &str, out: &mut dyn Write) -> Result<()> {
    let name = target.strip_suffix('/').unwrap_or(target);
    let dir = pool.dsl().dataset(name)?.dir();
    let Some(root) = dir.encryption_root()? else {
        bail!(Unsupported, "'{name}' is not encrypted; -K is for nothing");
    };
    let Some(k) = root.key_object()? else {
        return Err(Error::damaged(format!("'{}' has no key", root.full_name())));
    };
    let key = wrapping(&k.params, text)?;
    match pool.dsl().load_key(&root, key, false) {
        Err(e) if e.kind != Kind::Exists => return Err(e),
        _ => {}
    }
    Ok(writeln!(
        out,
        "Unlocked encryption root: {}",
        root.full_name()
    )?)
}
