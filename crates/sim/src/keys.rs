//! Encrypted file systems: all encryption roots of a world have one key, which is loaded wherever a pool is opened.

use api::Secret;
use base::{Kind, Result};
use codec::crypt::WrappingKey;
use pool::Pool;

/// The key.
const KEY: [u8; 32] = *b"one key for all encryption roots";

/// Values of the property `encryption` that file systems are made with.
pub const CIPHERS: [&str; 4] = ["on", "aes-128-ccm", "aes-192-gcm", "aes-256-ccm"];

/// The key as a user gives it.
pub fn secret() -> Secret {
    Secret::new(KEY.to_vec())
}

/// Properties of a new encryption root.
pub fn props(cipher: u64) -> Vec<(String, String)> {
    let cipher = CIPHERS[(cipher % CIPHERS.len() as u64) as usize];
    [
        ("encryption", cipher),
        ("keyformat", "raw"),
        ("keylocation", "prompt"),
    ]
    .map(|(name, value)| (name.to_string(), value.to_string()))
    .to_vec()
}

/// Loads the key of every encryption root that lacks it.
pub fn load(pool: &Pool) -> Result<()> {
    let (dsl, mut locked) = (pool.dsl(), Vec::new());
    dsl.walk(&dsl.root()?, &mut |dir| {
        let is_root = dir.key_object()?.is_some_and(|k| k.root == dir.object());
        if is_root && dir.key_loaded()? == Some(false) {
            locked.push(dir.clone());
        }
        Ok(())
    })?;
    let key = || WrappingKey::from_bytes(&KEY);
    locked
        .iter()
        .try_for_each(|d| dsl.load_key(d, key()?, false))
}

/// Forgets the key of a file system whose data nobody uses, if it is loaded; false: others use the key.
pub fn unload(pool: &Pool, name: &str) -> Result<bool> {
    let dir = pool.dsl().dir(name)?;
    let own = dir.key_object()?.is_some_and(|k| k.root == dir.object());
    if !own || dir.key_loaded()? == Some(false) {
        return Ok(own);
    }
    match pool.dsl().unload_key(&dir) {
        Err(e) if e.kind == Kind::Busy => Ok(false),
        done => done.map(|()| true),
    }
}
