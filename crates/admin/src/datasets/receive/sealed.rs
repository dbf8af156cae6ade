//! The encryption parameters that a raw stream carries for its dataset (data format §30.7).

use crate::registry::PoolEntry;
use base::mutation::{mutated, Mutation};
use base::{Error, Kind, Result};
use disk::{Checksum, Compression};
use dmu::Objset;
use dsl::Dataset;
use std::sync::Arc;
use stream::BeginList;

/// What a raw stream says of its dataset as a whole.
#[derive(Clone, Debug)]
pub(super) struct Sealed {
    pub(super) key: dsl::ReceivedKey,
    pub(super) meta: dmu::RawMeta,
    pub(super) mac: [u8; disk::crypt::OBJSET_MAC_SIZE],
    pub(super) from_ivset: Option<u64>,
    pub(super) to_ivset: Option<u64>,
}

impl Sealed {
    pub(super) fn from_list(list: &BeginList) -> Result<Sealed> {
        let bad = |name: &str| Error::new(Kind::Invalid, format!("raw stream: no valid {name}"));
        let list = list
            .crypt_keydata
            .as_ref()
            .ok_or_else(|| bad("crypt_keydata"))?;
        let small = |name: &str| {
            let n = list.get_u64(name).ok_or_else(|| bad(name))?;
            u8::try_from(n).map_err(|_| bad(name))
        };
        let mac: &[u8] = match list.get("portable_mac") {
            Some(disk::nvlist::Value::Uint8Array(b)) => b,
            Some(disk::nvlist::Value::ByteArray(b)) => b,
            _ => &[],
        };
        if list.get_u64("mdn_blksz") != Some(disk::dnode::DNODE_BLOCK as u64) {
            return Err(bad("mdn_blksz"));
        }
        if list.get_u64("mdn_nblkptr") != Some(3) {
            return Err(bad("mdn_nblkptr"));
        }
        let small_enough = |name: &str, most: u8| {
            small(name).and_then(|n| match n <= most {
                true => Ok(n),
                false => Err(bad(name)),
            })
        };
        let last = disk::dnode::MAX_OBJECT / disk::dnode::DNODES_PER_BLOCK;
        Ok(Sealed {
            key: dsl::ReceivedKey::from_list(list)?,
            meta: dmu::RawMeta {
                nlevels: small("mdn_nlevels")?,
                indblkshift: small("mdn_indblkshift")?,
                maxblkid: list
                    .get_u64("mdn_maxblkid")
                    .filter(|n| *n <= last)
                    .ok_or_else(|| bad("mdn_maxblkid"))?,
                checksum: Checksum::new(small_enough("mdn_checksum", 14)?),
                compress: Compression::new(small_enough("mdn_compress", 16)?),
            },
            mac: mac.try_into().map_err(|_| bad("portable_mac"))?,
            from_ivset: list.get_u64("from_ivset_guid").filter(|guid| *guid != 0),
            to_ivset: list.get_u64("to_ivset_guid").filter(|guid| *guid != 0),
        })
    }

    /// Whether the stream is based on this very snapshot, with its keys and its set of IVs. `unchecked`: the set of IVs
    /// may be another, or is not known.
    pub(super) fn check_base(&self, base: &Dataset, unchecked: bool) -> Result<()> {
        if mutated(Mutation::RawBaseUnchecked) {
            return Ok(());
        }
        let have = base.dir().key_object()?;
        if have.is_none_or(|k| k.wrapped.guid != self.key.wrapped.guid) {
            return Err(Error::new(
                Kind::Access,
                "the raw stream is encrypted with other keys than the destination",
            ));
        }
        match (base.ivset_guid()?, self.from_ivset) {
            _ if unchecked => Ok(()),
            (Some(have), Some(from)) if have == from => Ok(()),
            // Software of before 2019 knew no such sets.
            (None, _) | (_, None) => Err(Error::new(
                Kind::Invalid,
                "IV set guid missing. See errata 4 at https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-ER.\n\
                 The daemon receives it when started with --zfs-disable-ivset-guid-check.",
            )),
            _ => Err(Error::new(
                Kind::Invalid,
                "IV set guid mismatch. See the 'zfs receive' man page section\n discussing the limitations of raw encrypted send streams.",
            )),
        }
    }

    /// Sets the same once more, for a stream that is resumed.
    pub(super) fn apply(&self, entry: &PoolEntry, os: &Arc<Objset>) -> Result<()> {
        let (me, os) = (self.clone(), os.clone());
        entry
            .pool
            .task(move |_, tx| os.set_raw(tx, &me.meta, &me.mac))
    }
}
