//! Keys of encrypted datasets: `zfs load-key`, `unload-key`, `change-key`, and the encryption of new datasets.

use crate::datasets::rights::{self, Action};
use crate::datasets::{self, Answer};
use crate::process::Process;
use crate::registry::Admin;
use crate::{cancel, errors, values};
use api::{ApiError, Peer, Secret};
use base::sync::{MutexExt, RwLockExt};
use base::{bail, Error, Kind, Result};
use codec::crypt::{Suite, WrappingKey};
use dsl::crypto::{keyformat, ENCRYPTION};
use dsl::{Dir, KeyParams, NewKey, PropValue};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Iterations of PBKDF2: what is taken if nothing is said, and the least that may be.
const ITERATIONS: u64 = 350_000;
const ITERATIONS_MIN: u64 = 100_000;
/// How often, and how far apart, a key in use by nothing that is mounted is tried again: requests and threads
/// that are just ending let go of it in a moment.
const LET_GO: u32 = 200;
const LET_GO_STEP: Duration = Duration::from_millis(10);
/// `encryption=off`
pub const OFF: u64 = 2;
/// `encryption=on`
const ON: u64 = 1;

/// What was asked for a new dataset or a new key; `None`: nothing was said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CryptProps {
    /// Number of the cipher suite; 0 inherits, 1 the default suite, 2 off.
    pub encryption: Option<u64>,
    /// [`dsl::crypto::keyformat`].
    pub keyformat: Option<u64>,
    /// `prompt` or a URL.
    pub keylocation: Option<String>,
    /// Iterations of PBKDF2.
    pub iterations: Option<u64>,
}

impl CryptProps {
    /// Takes a property, if it is one of these.
    pub fn take(&mut self, name: &str, value: &PropValue) -> bool {
        match name {
            "encryption" => self.encryption = value.int(),
            "keyformat" => self.keyformat = value.int(),
            "pbkdf2iters" => self.iterations = value.int(),
            "keylocation" => self.keylocation = value.text().map(str::to_string),
            _ => return false,
        }
        true
    }

    /// Something beside `encryption` that only means something with it.
    fn more(&self) -> bool {
        self.keyformat.is_some_and(|f| f != 0)
            || self.iterations.is_some_and(|i| i != 0)
            || self.keylocation.as_ref().is_some_and(|l| l != "none")
    }
}

fn invalid(text: impl Into<String>) -> ApiError {
    ApiError::reason(Kind::Invalid, text)
}

/// An error of the engine with a full stop, as messages about keys have one.
fn told(e: Error) -> ApiError {
    let mut a = errors::answer(e);
    if !a.message.ends_with('.') {
        a.message.push('.');
    }
    a
}

/// Whether a `keylocation` can be one.
pub fn check_location(location: &str) -> Answer<()> {
    let file = location.strip_prefix("file://");
    if location == "prompt" || file.is_some_and(|p| p.starts_with('/')) {
        return Ok(());
    }
    if location.starts_with("https://") || location.starts_with("http://") {
        return Err(ApiError::reason(
            Kind::Unsupported,
            "keys are not fetched over the network: use 'prompt' or 'file:///path'",
        ));
    }
    Err(invalid(format!("invalid keylocation '{location}'")))
}

/// The wrapping key that material of a format makes. This may take long: the number of iterations
/// may come from a pool. It ends when the caller goes away, and must not be called with locks held.
pub(super) fn wrapping(params: &KeyParams, key: &Secret) -> Result<WrappingKey> {
    let b = key.bytes();
    match params.format {
        keyformat::RAW => WrappingKey::from_bytes(b),
        keyformat::HEX => {
            let mut raw = zeroize::Zeroizing::new(Vec::with_capacity(b.len() / 2));
            for pair in b.chunks(2) {
                let digit = |i: usize| pair.get(i).and_then(|c| char::from(*c).to_digit(16));
                match (digit(0), digit(1)) {
                    (Some(h), Some(l)) => raw.push((h << 4 | l) as u8),
                    _ => bail!(Invalid, "Invalid hex character detected"),
                }
            }
            WrappingKey::from_bytes(&raw)
        }
        keyformat::PASSPHRASE => {
            let (salt, iterations) = (params.salt, params.iterations);
            WrappingKey::from_passphrase_until(b, salt, iterations, &cancel::is_cancelled)
        }
        n => bail!(Damaged, "unknown keyformat {n}"),
    }
}

/// `zfs load-key`
pub fn load(
    admin: &Admin,
    peer: Peer,
    dataset: &str,
    key: &Secret,
    check_only: bool,
) -> Answer<()> {
    let entry = datasets::entry_of(admin, dataset)?;
    let look = || {
        let ds = datasets::find(&entry, dataset)?;
        rights::require(admin, &entry, peer, Action::LoadKey, &ds)?;
        let dir = ds.dir();
        match dir.key_object().map_err(told)? {
            Some(k) => Ok((dir, k.params)),
            None => Err(invalid(format!("'{dataset}' is not encrypted."))),
        }
    };
    let params = {
        let _gate = entry.gate.acquire_read();
        look()?.1
    };
    // A raw stream may have brought any number of iterations.
    let key = made_for(admin, peer, &bounded(admin, peer, params)?, key)?;
    let _gate = entry.gate.acquire_read();
    let _names = entry.names.write();
    let (dir, now) = look()?;
    if now != params {
        return Err(changed_meanwhile(dataset));
    }
    entry
        .pool
        .dsl()
        .load_key(&dir, key, check_only)
        .map_err(told)?;
    if !check_only {
        entry.replay_volumes();
    }
    Ok(())
}

fn changed_meanwhile(dataset: &str) -> ApiError {
    let text = format!("The key of '{dataset}' was changed meanwhile; try again.");
    ApiError::reason(Kind::Again, text)
}

/// `zfs unload-key`
pub fn unload(admin: &Admin, peer: Peer, dataset: &str) -> Answer<()> {
    let entry = datasets::entry_of(admin, dataset)?;
    let _gate = entry.gate.acquire_read();
    let _names = entry.names.write();
    let ds = datasets::find(&entry, dataset)?;
    rights::require(admin, &entry, peer, Action::LoadKey, &ds)?;
    let dir = ds.dir();
    if let Some(root) = dir.encryption_root().map_err(told)? {
        if root.object() != dir.object() {
            return Err(invalid(format!(
                "Keys must be unloaded for encryption root of '{dataset}' ({}).",
                root.full_name()
            )));
        }
    }
    // Snapshots and volumes that are open in some .zfs and have this key; those of others stay.
    let dsl = entry.pool.dsl();
    let has_it = |object: u64| -> bool {
        let root = dsl
            .dataset_by_object(object)
            .and_then(|ds| ds.dir().encryption_root());
        // What cannot be told is closed as well: it is opened again by who asks for it.
        root.map_or(true, |root| {
            root.is_some_and(|r| r.object() == dir.object())
        })
    };
    for m in entry.all_mounts() {
        m.mount.close_where(&has_it);
    }
    match dsl.unload_key(&dir) {
        Err(e) if e.kind == Kind::Busy => {}
        done => return done.map_err(told),
    }
    // Txgs that are not on disk yet hold what was unmounted just now.
    crate::suspended::not_suspended(&entry)?;
    entry.pool.sync().map_err(errors::answer)?;
    let mounted = entry.all_mounts().iter().any(|m| has_it(m.object));
    let mut tries = if mounted { 0 } else { LET_GO };
    loop {
        match dsl.unload_key(&dir) {
            Err(e) if e.kind == Kind::Busy && tries > 0 => {
                cancel::check()?;
                tries -= 1;
                std::thread::sleep(LET_GO_STEP);
            }
            done => return done.map_err(told),
        }
    }
}

/// How a key of `format` is to be made from what the user gives.
fn params(format: u64, iterations: Option<u64>, random: u64) -> Answer<KeyParams> {
    if format != keyformat::PASSPHRASE {
        if iterations.is_some_and(|i| i != 0) {
            return Err(invalid("pbkdf2iters only means something for passphrases"));
        }
        return Ok(KeyParams {
            format,
            ..KeyParams::default()
        });
    }
    let iterations = iterations.unwrap_or(ITERATIONS);
    if iterations < ITERATIONS_MIN {
        return Err(invalid(format!(
            "'pbkdf2iters' cannot be less than {ITERATIONS_MIN}"
        )));
    }
    Ok(KeyParams {
        format,
        salt: random,
        iterations,
    })
}

/// `zfs change-key`
pub fn change(
    admin: &Admin,
    peer: Peer,
    dataset: &str,
    inherit: bool,
    key: &Secret,
    props: &api::Props,
    command: String,
) -> Answer<()> {
    let entry = datasets::entry_of(admin, dataset)?;
    let _gate = entry.gate.acquire_read();
    datasets::need_writable(&entry)?;
    let _names = entry.names.write();
    let ds = datasets::find(&entry, dataset)?;
    rights::require(admin, &entry, peer, Action::ChangeKey, &ds)?;
    let dir = ds.dir();
    let Some(k) = dir.key_object().map_err(told)? else {
        return Err(invalid("Dataset not encrypted."));
    };
    if dir.origin().map_err(told)?.is_some() {
        return Err(invalid("A clone uses the key of its origin."));
    }
    if values::is_locked(&dir).map_err(told)? {
        return Err(ApiError::reason(Kind::Access, "Key must be loaded."));
    }
    let is_root = k.root == dir.object();
    let uid = u64::from(peer.uid);
    if inherit {
        let Some(parent) = dir.parent() else {
            return Err(invalid("Root dataset cannot inherit key."));
        };
        if !is_root {
            return Err(invalid(
                "Key inheriting can only be performed on encryption roots.",
            ));
        }
        match parent.key_loaded().map_err(told)? {
            None => return Err(invalid("Parent must be encrypted.")),
            Some(false) => {
                return Err(ApiError::reason(Kind::Access, "Parent key must be loaded."))
            }
            Some(true) => {}
        }
        return entry
            .pool
            .task(move |pool, tx| {
                pool.dsl().inherit_key(tx, &dir)?;
                pool.log_in(tx, &command, uid)
            })
            .map_err(told);
    }
    let mut want = CryptProps::default();
    for (name, text) in props {
        let enabled = |guid: &str| entry.pool.has_feature(guid);
        let allowed = crate::datasets::parse::Allowed {
            version: entry.pool.version(),
            enabled: &enabled,
        };
        let fs = disk::props::Types::FILESYSTEM;
        let (name, value) = crate::datasets::parse::parse(&allowed, name, text, fs, true)?;
        if name == "encryption" || !want.take(&name, &value) {
            return Err(invalid(format!("'{name}' cannot be changed with the key")));
        }
    }
    let format = match want.keyformat {
        Some(f) if f != 0 => f,
        _ if is_root => k.params.format,
        _ => return Err(invalid("Keyformat required for new encryption root.")),
    };
    let location = match &want.keylocation {
        Some(l) => Some(l.clone()),
        None if is_root => None,
        None => Some("prompt".to_string()),
    };
    if let Some(l) = &location {
        check_location(l)?;
    }
    let params = params(format, want.iterations, admin.env.rng.u64())?;
    let params = bounded(admin, peer, params)?;
    // Not with the locks held. What was looked at is looked at again afterwards.
    drop((_names, _gate));
    let wkey = made_for(admin, peer, &params, key)?;
    let _gate = entry.gate.acquire_read();
    datasets::need_writable(&entry)?;
    let _names = entry.names.write();
    let again = datasets::find(&entry, dataset)?;
    rights::require(admin, &entry, peer, Action::ChangeKey, &again)?;
    let again = again.dir();
    let still = again.key_object().map_err(told)?;
    let same = again.object() == dir.object() && still.is_some_and(|now| now == k);
    if !same || values::is_locked(&again).map_err(told)? || again.origin().map_err(told)?.is_some()
    {
        return Err(changed_meanwhile(dataset));
    }
    entry
        .pool
        .task(move |pool, tx| {
            pool.dsl()
                .change_key(tx, &dir, wkey, params, location.as_deref())?;
            pool.log_in(tx, &command, uid)
        })
        .map_err(told)
}

/// Most iterations of PBKDF2 that users other than the owner may ask for: ten times what is taken if nothing is said.
pub const ITERATIONS_OF_USERS: u64 = 10 * ITERATIONS;
/// How often it is asked whether another key of the same user is made.
const TURN: Duration = Duration::from_millis(20);

/// The users for whom a key is being made.
static MAKING: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// The right of a user to have a key made; the next one of the user waits for its end.
struct Turn(u32);

impl Drop for Turn {
    fn drop(&mut self) {
        MAKING.acquire().remove(&self.0);
    }
}

/// Waits until no other key is made for the same user; `None`: the owner does not wait.
///
/// Errors: the caller has gone away.
fn turn(admin: &Admin, peer: Peer) -> Answer<Option<Turn>> {
    if rights::is_owner(admin, peer) {
        return Ok(None);
    }
    let user = admin.process.account(peer.uid);
    loop {
        cancel::check()?;
        if MAKING.acquire().insert(user) {
            return Ok(Some(Turn(user)));
        }
        std::thread::sleep(TURN);
    }
}

/// The wrapping key that a caller's material makes, one at a time for each user. No lock may be held.
fn made_for(admin: &Admin, peer: Peer, params: &KeyParams, key: &Secret) -> Answer<WrappingKey> {
    let _turn = match params.format {
        keyformat::PASSPHRASE => turn(admin, peer)?,
        _ => None,
    };
    admin.process.no_dumps();
    wrapping(params, key).map_err(told)
}

/// Refuses more iterations than users other than the owner may ask for.
pub(super) fn bounded(admin: &Admin, peer: Peer, params: KeyParams) -> Answer<KeyParams> {
    if params.iterations > ITERATIONS_OF_USERS && !rights::is_owner(admin, peer) {
        return Err(invalid(format!(
            "'pbkdf2iters' cannot be more than {ITERATIONS_OF_USERS} for users other than root"
        )));
    }
    Ok(params)
}

/// [`prepare`], for a caller.
pub fn prepare_for(
    admin: &Admin,
    peer: Peer,
    want: &CryptProps,
    key: Option<&Secret>,
) -> Option<Prepared> {
    let format = want.keyformat.filter(|f| *f != 0)?;
    let key = key?;
    let made = || {
        let params = params(format, want.iterations, admin.env.rng.u64())?;
        let params = bounded(admin, peer, params)?;
        Ok((params, Arc::new(made_for(admin, peer, &params, key)?)))
    };
    Some(made())
}

/// A key made of what the user gave, and how; or why that failed.
pub type Prepared = Answer<(KeyParams, Arc<WrappingKey>)>;

/// Makes the key of a new dataset, if one was given and it is to have its own: before any lock is
/// taken, for it may take long.
pub fn prepare(
    process: &dyn Process,
    want: &CryptProps,
    key: Option<&Secret>,
    random: u64,
) -> Option<Prepared> {
    let format = want.keyformat.filter(|f| *f != 0)?;
    let key = key?;
    let made = || {
        let params = params(format, want.iterations, random)?;
        process.no_dumps();
        Ok((params, Arc::new(wrapping(&params, key).map_err(told)?)))
    };
    Some(made())
}

/// Refuses to make encrypted datasets whose snapshots would not have guids of their sets of IVs (errata 4).
pub fn need_ivsets(features: &dyn dsl::Features) -> Answer<()> {
    match features.is_enabled(disk::feature::guid::BOOKMARK_V2) {
        true => Ok(()),
        false => Err(ApiError::reason(
            Kind::Unsupported,
            "encrypted datasets are not made before the feature bookmark_v2 is enabled (errata 4): \
             zpool set feature@bookmark_v2=enabled",
        )),
    }
}

/// How a new dataset below `parent` (none: a new pool's root) is to be encrypted; `None`: not at all.
pub fn for_new(
    parent: Option<&Arc<Dir>>,
    enabled: bool,
    want: &CryptProps,
    prepared: Option<Prepared>,
) -> Answer<Option<NewKey>> {
    let above = match parent {
        Some(p) => p.key_object().map_err(errors::answer)?,
        None => None,
    };
    let suite = match (want.encryption, &above) {
        (Some(OFF), _) | (None, None) => {
            if want.more() {
                return Err(invalid(
                    "Encryption must be turned on to set encryption properties.",
                ));
            }
            return Ok(None);
        }
        (Some(ON), _) => Suite::DEFAULT,
        (Some(n), _) => Suite::new(n).map_err(errors::answer)?,
        (None, Some(k)) => k.wrapped.suite,
    };
    if !enabled {
        return Err(ApiError::reason(
            Kind::Unsupported,
            format!("Encryption feature not enabled ({ENCRYPTION})."),
        ));
    }
    if want.keyformat.is_none_or(|f| f == 0) {
        if above.is_none() || want.more() {
            return Err(invalid("Keyformat required for new encryption root."));
        }
        let loaded = match parent {
            Some(p) => p.key_loaded().map_err(errors::answer)?,
            None => None,
        };
        if loaded != Some(true) {
            return Err(ApiError::reason(Kind::Access, "Parent key must be loaded."));
        }
        return Ok(Some(NewKey::Inherit(suite)));
    }
    let location = want.keylocation.clone().unwrap_or_else(|| "prompt".into());
    check_location(&location)?;
    let Some(prepared) = prepared else {
        return Err(invalid("no key was given"));
    };
    let (params, key) = prepared?;
    Ok(Some(NewKey::Root {
        suite,
        key,
        params,
        location,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: usize) -> Secret {
        Secret::new(vec![b'a'; n])
    }

    #[test]
    fn a_user_has_one_key_made_at_a_time() {
        let (env, _) = env_sim::mem_env(7);
        let process = crate::alone::Alone::new(env.clone(), pool::Tunables::default());
        let door = Arc::new(crate::alone::MemoryDoor::default());
        let admin = Admin::new(env, crate::alone::settings(), door, Arc::new(process));
        let user = |uid| Peer {
            uid,
            gid: uid,
            pid: 1,
        };
        let (joe, mary) = (user(71_001), user(71_002));
        let p = KeyParams {
            format: keyformat::PASSPHRASE,
            salt: 1,
            iterations: 1,
        };
        let made = |who| made_for(&admin, who, &p, &key(9));
        // The command ends while it waits for its turn.
        let waits = |who| {
            let asked = std::cell::Cell::new(0);
            let gone = move || asked.replace(asked.get() + 1) > 5;
            cancel::with(Box::new(gone), || made(who))
        };
        let first = turn(&admin, joe).unwrap();
        assert!(first.is_some());
        let e = waits(joe).expect_err("a second key was made meanwhile");
        assert_eq!(e.code, Kind::Interrupted.errno());
        // Neither other users nor the owner wait; nor does material that is a key as it is.
        assert!(made(mary).is_ok());
        assert!(made(user(0)).is_ok());
        let raw = KeyParams {
            format: keyformat::RAW,
            ..p
        };
        assert!(made_for(&admin, joe, &raw, &key(32)).is_ok());
        std::thread::scope(|s| {
            let next = s.spawn(|| made(joe).is_ok());
            drop(first);
            assert!(next.join().unwrap());
        });
        assert!(made(joe).is_ok());
    }

    #[test]
    fn material_of_every_format() {
        let p = |format| KeyParams {
            format,
            salt: 1,
            iterations: 1,
        };
        assert!(wrapping(&p(1), &key(32)).is_ok());
        assert!(wrapping(&p(1), &key(31)).is_err());
        let hex = wrapping(&p(2), &key(64)).unwrap();
        assert_eq!(hex.bytes(), &[0xaa; 32]);
        assert!(wrapping(&p(2), &key(63)).is_err());
        assert!(wrapping(&p(2), &Secret::new(vec![b'x'; 64])).is_err());
        assert!(wrapping(&p(3), &key(9)).is_ok());
        assert!(wrapping(&p(9), &key(9)).is_err());
    }

    #[test]
    fn what_a_new_pool_may_ask_for() {
        let want = |e, f, l: Option<&str>, i| CryptProps {
            encryption: e,
            keyformat: f,
            keylocation: l.map(str::to_string),
            iterations: i,
        };
        let new = |w: &CryptProps| {
            for_new(
                None,
                true,
                w,
                prepare(
                    &crate::alone::Alone::new(env_sim::mem_env(1).0, Default::default()),
                    w,
                    Some(&key(32)),
                    7,
                ),
            )
        };
        assert!(new(&want(None, None, None, None)).unwrap().is_none());
        assert!(new(&want(Some(2), None, None, None)).unwrap().is_none());
        assert!(new(&want(None, Some(1), None, None)).is_err());
        assert!(new(&want(Some(2), Some(1), None, None)).is_err());
        assert!(new(&want(Some(1), None, None, None)).is_err());
        assert!(new(&want(Some(1), Some(1), Some("https://x"), None)).is_err());
        assert!(new(&want(Some(1), Some(1), None, Some(100_000))).is_err());
        assert!(new(&want(Some(1), Some(3), None, Some(99_999))).is_err());
        assert!(for_new(None, false, &want(Some(1), Some(1), None, None), None).is_err());
        match new(&want(Some(1), Some(3), Some("file:///k"), Some(100_000))) {
            Ok(Some(NewKey::Root {
                suite,
                params,
                location,
                ..
            })) => {
                assert_eq!(suite, Suite::DEFAULT);
                assert_eq!(
                    (params.format, params.salt, params.iterations),
                    (3, 7, 100_000)
                );
                assert_eq!(location, "file:///k");
            }
            _ => panic!(),
        }
    }
}
