//! Claims: the names and guids of pools that are being created or imported.
//!
//! Whoever creates or imports a pool claims its name and guid first, and gives the claim up once the
//! pool is in service or the attempt has failed. Claims take the place of one lock for all pools: a
//! device that does not answer holds up the commands for its own pool only.
//!
//! # Invariants
//! 1. No two claims, and no claim and a pool in service, have the same name or guid. The exception is
//!    a pool that is closed and opened again: its own claim stands while it is out of service.
//! 2. [`Admin::adopt`] puts no pool beside one with the same name or guid.
//!
//! Lock order: claims, pools.

use crate::registry::{Admin, PoolEntry};
use base::sync::MutexExt;
use base::{Error, Kind, Result};
use std::sync::{Mutex, MutexGuard};

/// Name and guid; a guid of 0 is not known yet.
type Key = (String, u64);

/// Names and guids of pools that are being created or imported.
#[derive(Default)]
pub struct Claims(Mutex<Vec<Key>>);

impl Claims {
    fn lock(&self) -> MutexGuard<'_, Vec<Key>> {
        self.0.acquire()
    }
}

/// A claimed name and guid, free again when dropped.
pub struct Claim<'a> {
    claims: &'a Claims,
    key: Key,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut list = self.claims.lock();
        if let Some(at) = list.iter().position(|k| *k == self.key) {
            list.swap_remove(at);
        }
    }
}

fn clash(a: &Key, b: &Key) -> bool {
    a.0 == b.0 || (a.1 != 0 && a.1 == b.1)
}

impl Admin {
    /// Claims a name and a guid for a pool that is to be created or imported.
    ///
    /// Errors: exists, if a pool in service has one of them; busy, if somebody else has claimed it.
    pub fn claim(&self, name: &str, guid: u64) -> Result<Claim<'_>> {
        let key = (name.to_string(), guid);
        let mut list = self.claims.lock();
        if list.iter().any(|k| clash(k, &key)) {
            let text = "another command is creating or importing it";
            return Err(Error::new(Kind::Busy, text));
        }
        let taken = |e: &PoolEntry| clash(&(e.pool.name(), e.pool.guid()), &key);
        if self.pools().iter().any(|e| taken(e)) {
            return Err(Kind::Exists.into());
        }
        list.push(key.clone());
        let claims = &self.claims;
        Ok(Claim { claims, key })
    }

    /// Claims what a pool in service has, which is about to be closed and opened again.
    pub fn claim_again(&self, entry: &PoolEntry) -> Result<Claim<'_>> {
        let key = (entry.pool.name(), entry.pool.guid());
        let mut list = self.claims.lock();
        if list.iter().any(|k| clash(k, &key)) {
            return Err(Error::new(Kind::Busy, "another command changes it"));
        }
        list.push(key.clone());
        let claims = &self.claims;
        Ok(Claim { claims, key })
    }
}
