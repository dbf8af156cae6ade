//! What the command line and a package say of properties and holds, and storing it.
//!
//! 1. What cannot be stored is no reason to leave out the rest, or to refuse the data.
//! 2. It is stored in the dataset that was filled, whatever has its name by then.
//! 3. For callers other than the owner, properties that they may not set are not cleared either.

use super::target::{Brought, Extra, Target};
use super::{words, Run};
use crate::datasets::create::NewFs;
use crate::datasets::keys::{self, CryptProps};
use crate::datasets::parse::Allowed;
use crate::datasets::{self, rights, set, Answer};
use crate::errors;
use crate::registry::PoolEntry;
use crate::setters;
use base::{Error, Kind, Result};
use disk::stream::{begin_flag, feature, Begin};
use disk::NvList;
use dsl::props::PropChange;
use dsl::{Caller, Dataset, PropSource, PropValue};
use std::sync::Arc;

/// What the command line says of properties.
#[derive(Clone)]
pub(super) struct Asked {
    pub(super) set: Vec<(String, PropValue)>,
    pub(super) exclude: Vec<String>,
    pub(super) crypt: CryptProps,
}

impl Asked {
    /// What is set is set at the top of a package; file systems below inherit it.
    pub(super) fn of(
        run: &Run,
        entry: &PoolEntry,
        begin: &Begin,
        extra: Option<&Extra>,
        what: &str,
    ) -> Answer<Asked> {
        let enabled = |guid: &str| entry.pool.has_feature(guid);
        let allowed = Allowed {
            version: entry.pool.version(),
            enabled: &enabled,
        };
        let below = extra.is_some_and(|e| e.is_below);
        // What is set is for the top, which may be a file system with volumes below it.
        let kind = match u64::from(begin.objset_type) == disk::os_type::ZVOL && !below {
            true => api::DatasetKind::Volume,
            false => api::DatasetKind::Filesystem,
        };
        let new = NewFs::of_received(kind, &allowed, &run.r.props)
            .map_err(|e| words::sentence(Kind::Invalid, what, e.message))?;
        let mut exclude = run.r.exclude.clone();
        if let Some(name) = exclude.iter().find(|n| disk::props::is_reserved(n)) {
            let why = format!("'{name}' is readonly");
            return Err(words::sentence(Kind::Invalid, what, why));
        }
        if below {
            exclude.extend(new.stored.into_iter().map(|(name, _)| name));
            return Ok(Asked {
                set: Vec::new(),
                exclude,
                crypt: CryptProps::default(),
            });
        }
        Ok(Asked {
            set: new.stored,
            exclude,
            crypt: new.crypt,
        })
    }

    /// How a new dataset is to be encrypted. One that is sent with its properties, and not raw, was not encrypted: it stays so
    /// also below an encrypted one, unless the command line says otherwise.
    pub(super) fn crypt(&self, run: &Run, extra: Option<&Extra>) -> CryptProps {
        let set = run.r.props.iter().map(|(name, _)| name);
        let mut named = set.chain(&run.r.exclude);
        let with_props = extra.is_some_and(|e| e.props.is_some());
        if with_props && !named.any(|name| name == "encryption") {
            return CryptProps {
                encryption: Some(keys::OFF),
                ..self.crypt.clone()
            };
        }
        self.crypt.clone()
    }
}

/// Properties by which a new file system is encrypted, and its key wrapped.
const ENCRYPTION: [&str; 3] = ["encryption", "keyformat", "pbkdf2iters"];

impl Asked {
    /// Refuses to change by `-o` or `-x` how a raw stream is encrypted, or by `-o` what is there already. Of a recursive
    /// package what is asked for is for the new file systems alone.
    pub(super) fn check_encryption(
        &self,
        run: &Run,
        begin: &Begin,
        recursive: bool,
        what: &str,
    ) -> Answer<()> {
        let raw = begin.features & feature::RAW != 0;
        let refuse = |name: &str, how: &str| {
            let why = format!("encryption property '{name}' cannot be {how} streams.");
            Err(words::sentence(Kind::Invalid, what, why))
        };
        let crypt = |name: &&str| ENCRYPTION.contains(name);
        let set = || run.r.props.iter().map(|(name, _)| name.as_str());
        let excluded = self.exclude.iter().map(String::as_str);
        if let Some(name) = set().chain(excluded).find(|n| raw && crypt(n)) {
            return refuse(name, "set or excluded for raw");
        }
        let incremental = begin.from_guid != 0 && begin.flags & begin_flag::CLONE == 0;
        match set().find(|n| incremental && !recursive && crypt(n)) {
            Some(name) => refuse(name, "set for incremental"),
            None => Ok(()),
        }
    }

    /// Leaves out how a new dataset is to be encrypted: what a stream of a recursive package goes into is there already, and
    /// may be encrypted so by the stream before. The place of its key alone may be another.
    pub(super) fn forget_encryption(&mut self) {
        let crypt = std::mem::take(&mut self.crypt);
        if crypt.encryption.is_none() && crypt.keyformat.is_none() {
            self.crypt.keylocation = crypt.keylocation;
        }
    }

    /// Refuses a place of the key (`-o keylocation=`) that the dataset cannot have: a dataset without a key of its own
    /// has none, one that comes raw has one.
    pub(super) fn check_location(&self, begin: &Begin, target: &Target) -> Answer<()> {
        let Some(location) = &self.crypt.keylocation else {
            return Ok(());
        };
        let refuse = |why: &str| Err(words::sentence(Kind::Invalid, target.what, why));
        let raw = begin.features & feature::RAW != 0;
        let old = match &target.head {
            Some(head) => Some(head.dir().is_encrypted().map_err(errors::answer)?),
            None => None,
        };
        match (location == "none", old) {
            (true, None) if raw => refuse(set::MUST_NOT_BE_NONE),
            (true, Some(true)) => refuse(set::MUST_NOT_BE_NONE),
            (false, Some(false)) => refuse(set::MUST_BE_NONE),
            (false, Some(true)) if !raw => refuse("Keyformat required for new encryption root."),
            _ => Ok(()),
        }
    }
}

/// Properties that are stored after the data, since they may refuse them or be changed by them.
const LATE: [&str; 3] = ["refquota", set::LOCATION, "sharesmb"];

/// Properties that were asked for and do not fit, and why.
pub(super) type Unset = Vec<(String, Error)>;

/// Stores what the package (`props`) and the command line say of properties, before the data (`early`) or after it.
/// What cannot be stored is no reason to leave out the rest; the first error is returned. Limits that do not fit are
/// no error, they go to `failed`.
///
/// The location of a key is always a local value. That of the stream comes last, as in OpenZFS, also with `-o` or `-x`.
pub(super) fn store(
    (pool, tx): (&pool::Pool, &dmu::Tx),
    ds: &Arc<Dataset>,
    props: Option<&NvList>,
    asked: &Asked,
    by: &By,
    early: bool,
    failed: &mut Unset,
) -> Result<()> {
    // What is not inherited cannot be made to be: it is left out.
    let stays_out = |name: &String| disk::props::dataset(name).is_some_and(|p| !p.inheritable());
    let mut done = match props {
        Some(props) => {
            let mut props = props.clone();
            for name in asked.exclude.iter().filter(|n| stays_out(n)) {
                props.remove(name);
            }
            set::store_received((pool, tx), ds, &props, early, &by.keeps(&LATE), by.user)
        }
        None => Ok(()),
    };
    let now = |(name, _): &&(String, PropValue)| LATE.contains(&name.as_str()) != early;
    let local: Vec<_> = asked.set.iter().filter(now).cloned().collect();
    if set::store_props(pool, tx, ds, &local, by.user).is_err() {
        // Together they do not fit: those that fit alone are stored.
        for one in local {
            let r = set::store_props(pool, tx, ds, std::slice::from_ref(&one), by.user);
            match r {
                Err(e) if matches!(e.kind, Kind::NoSpace | Kind::Quota) => {
                    failed.push((one.0, e));
                }
                r => done = done.and(r),
            }
        }
    }
    if !early {
        let locations = [
            asked.crypt.keylocation.clone(),
            props.and_then(set::received_location),
        ];
        for location in locations.into_iter().flatten() {
            done = done.and(set::store_location(pool, tx, ds, &location));
        }
    }
    for name in asked.exclude.iter().filter(|n| early && !stays_out(n)) {
        // What was set here goes before what is received anyway.
        let is_local = matches!(ds.prop(name, false)?, Some((_, PropSource::Local)));
        if !is_local {
            done = done.and(pool.dsl().set_prop(tx, ds, name, &PropChange::Inherit));
            done = done.and(setters::note((pool, tx), ds, name, by.user));
        }
    }
    done
}

/// Tells of properties that could not be set.
pub(super) fn warn(run: &mut Run, target: &Target, failed: Unset) {
    for (name, e) in failed {
        let fs = &target.fs;
        let why = datasets::plain(e, fs).message;
        let text = format!("cannot receive {name} property on {fs}: {why}");
        run.warnings.push(text);
    }
}

/// What the package and the command line say, as far as it waits for the data.
pub(super) struct Late {
    asked: Asked,
    /// Nothing was stored before the data: the target was there already, and stays as it is if the stream fails.
    all: bool,
    props: Option<NvList>,
    snap_props: Option<NvList>,
    holds: Vec<String>,
}

impl Late {
    pub(super) fn of(run: &Run, target: &Target, extra: Extra, asked: Asked) -> Late {
        Late {
            asked,
            all: target.head.is_some() || target.kept.is_some(),
            props: extra.props,
            snap_props: extra.snap_props,
            holds: match run.r.no_holds {
                true => Vec::new(),
                false => extra.holds,
            },
        }
    }

    /// What it brings, to ask again whether it is permitted.
    pub(super) fn brought(&self) -> Brought<'_> {
        Brought {
            lists: [self.props.as_ref(), self.snap_props.as_ref()],
            holds: !self.holds.is_empty(),
        }
    }

    /// Stores it, in the txg in which the snapshot `snap` of `ds` appears: nobody sees the snapshot without its holds, and no
    /// export or crash comes in between.
    pub(super) fn store(
        &self,
        (pool, tx): (&pool::Pool, &dmu::Tx),
        ds: &Arc<Dataset>,
        snap: &Arc<Dataset>,
        by: &By,
    ) -> Result<Unset> {
        // The holds first: what fails must not cost them.
        for tag in &self.holds {
            if pool.dsl().check_hold(snap, tag, false).is_ok() {
                pool.dsl().hold(tx, snap, tag, false)?;
            }
        }
        let mut failed = Unset::new();
        let mut store = |early| {
            let props = self.props.as_ref();
            store((pool, tx), ds, props, &self.asked, by, early, &mut failed)
        };
        let mut done = match self.all {
            true => store(true),
            false => Ok(()),
        };
        done = done.and(store(false));
        if let Some(p) = &self.snap_props {
            done = done.and(set::store_received((pool, tx), snap, p, true, &[], by.user));
        }
        done.map(|()| failed)
    }
}

/// On whose behalf properties are stored.
pub(super) struct By {
    /// Another user than the owner.
    pub(super) user: Option<u64>,
    /// Properties of an existing target that this user may not set: a stream without them does not clear them.
    stays: Vec<String>,
}

impl By {
    /// A user and what of `head`, if it is there, this user may not clear.
    pub(super) fn of(who: &Caller, head: Option<&Arc<Dataset>>) -> Result<By> {
        let user = setters::user(who);
        let mut stays = Vec::new();
        if let (Some(_), Some(head)) = (user, head) {
            for name in head.received_names(!head.has_received()?)? {
                if !head.permits(rights::of_property(&name), who)? {
                    stays.push(name);
                }
            }
        }
        Ok(By { user, stays })
    }

    /// Names of properties that are not cleared: `late` ones, and those.
    fn keeps<'a>(&'a self, late: &[&'a str]) -> Vec<&'a str> {
        let stays = self.stays.iter().map(String::as_str);
        late.iter().copied().chain(stays).collect()
    }
}
