//! The first record of a stream: what it is of, and which features it uses (data format §30.2, §30.3, §30.7).

use super::SendSpec;
use base::{bail, Kind, Result};
use disk::crypt::keys;
use disk::dsl::ds_flags;
use disk::feature::guid;
use disk::nvlist::Value;
use disk::objset::ObjsetPhys;
use disk::stream::{begin_flag, feature, Begin};
use disk::{os_type, NvList};
use dmu::Objset;
use dsl::{Dataset, Features};
use zap::Zap;

/// Version of file systems from which on their objects may have spill blocks.
const VERSION_SA: u64 = 5;
/// Object of a file system that has its version.
const MASTER_NODE: u64 = 1;

/// BEGIN and its list.
pub(super) fn begin(
    ds: &Dataset,
    os: &Objset,
    spec: &SendSpec,
    pool: &dyn Features,
) -> Result<(Begin, NvList)> {
    let phys = ds.phys();
    let features = features(ds, os, spec, pool)?;
    let mut flags = begin_flag::FREERECORDS | begin_flag::SPILL_BLOCK;
    if spec.base.as_ref().is_some_and(|b| b.is_origin) {
        flags |= begin_flag::CLONE;
    }
    if phys.flags & ds_flags::CI_DATASET != 0 {
        flags |= begin_flag::CI_DATA;
    }
    let begin = Begin {
        features,
        creation_time: phys.creation_time,
        objset_type: os.os_type() as u32,
        flags,
        to_guid: spec.guid.unwrap_or(phys.guid),
        from_guid: spec.base.as_ref().map_or(0, |b| b.guid),
        to_name: spec.name.clone().into_bytes(),
        ..Begin::default()
    };
    let mut list = NvList::new();
    if features & feature::REDACTED != 0 {
        let snaps = match &spec.redact {
            Some(r) => r.snaps().to_vec(),
            None => ds.redact_snaps()?.unwrap_or_default(),
        };
        list.set("redact_snaps", Value::Uint64Array(snaps));
    }
    if let Some(snaps) = spec.base.as_ref().and_then(|b| b.redact_snaps.clone()) {
        list.set("redact_from_snaps", Value::Uint64Array(snaps));
    }
    if let Some((object, offset)) = spec.resume {
        list.set("resume_object", Value::Uint64(object));
        list.set("resume_offset", Value::Uint64(offset));
    }
    if features & feature::RAW != 0 {
        let from = spec.base.as_ref().map_or(0, |b| b.ivset_guid);
        list.set("crypt_keydata", Value::NvList(key_data(ds, os, from)?));
    }
    Ok((begin, list))
}

/// Feature flags of the stream.
fn features(ds: &Dataset, os: &Objset, spec: &SendSpec, pool: &dyn Features) -> Result<u64> {
    let encrypted = os.crypt().is_encrypted();
    let mut f = 0;
    if encrypted && spec.raw && ds.dir().has_old_keys()? {
        bail!(
            Unsupported,
            "raw streams of the first format of encryption are not sent (errata 3): send without -w"
        );
    }
    if encrypted && !spec.raw && os.crypt().key().is_none() {
        bail!(Access, "source key must be loaded");
    }
    if os.os_type() == os_type::ZFS {
        let master = os.hold(MASTER_NODE)?;
        if Zap::new(&master).get("VERSION")?.unwrap_or(0) >= VERSION_SA {
            f |= feature::SA_SPILL;
        }
    }
    if (spec.raw || spec.large_blocks) && ds.has_feature(guid::LARGE_BLOCKS) {
        f |= feature::LARGE_BLOCKS;
    }
    // Blocks of encrypted datasets are never embedded.
    if (spec.embedded || spec.raw) && !encrypted && pool.is_active(guid::EMBEDDED_DATA) {
        f |= feature::EMBED_DATA;
    }
    if spec.compressed || spec.raw {
        f |= feature::COMPRESSED;
    }
    if spec.raw && encrypted {
        f |= feature::RAW;
    }
    if f & (feature::EMBED_DATA | feature::COMPRESSED | feature::RAW) != 0
        && pool.is_active(guid::LZ4_COMPRESS)
    {
        f |= feature::LZ4;
    }
    if f & (feature::COMPRESSED | feature::RAW) != 0 && ds.has_feature(guid::ZSTD_COMPRESS) {
        f |= feature::ZSTD;
    }
    if spec.resume.is_some_and(|r| r != (0, 0)) {
        f |= feature::RESUMING;
    }
    if spec.redact.is_some() || ds.has_feature(guid::REDACTED_DATASETS) {
        f |= feature::REDACTED;
    }
    if ds.has_feature(guid::LARGE_DNODE) {
        f |= feature::LARGE_DNODE;
    }
    if ds.has_feature(guid::LONGNAME) {
        f |= feature::LONGNAME;
    }
    if ds.has_feature(guid::LARGE_MICROZAP) {
        // A micro-ZAP of that size cannot be sent in pieces.
        if f & feature::LARGE_BLOCKS == 0 {
            bail!(
                Unsupported,
                "source snapshot contains large microzaps, need -L (--large-block) or -w (--raw) to generate stream"
            );
        }
        f |= feature::LARGE_MICROZAP;
    }
    Ok(f)
}

/// What a receiver needs to use the keys of a raw stream, once it has the wrapping key.
fn key_data(ds: &Dataset, os: &Objset, from_ivset: u64) -> Result<NvList> {
    let dir = ds.dir();
    let (Some(key), Some(root)) = (dir.key_object()?, dir.encryption_root()?) else {
        return Err(Kind::Invalid.into());
    };
    // The format of the wrapping key is stored with each key under it; the root's counts.
    let params = root.key_object()?.map_or(key.params, |k| k.params);
    let block = os.dmu().zio.read(&os.root())?;
    let phys = ObjsetPhys::decode(&block)?;
    let w = &key.wrapped;
    let number = Value::Uint64;
    let bytes = |b: &[u8]| Value::Uint8Array(b.to_vec());
    let mut list = NvList::new();
    list.set(keys::SUITE, number(w.suite.number()))
        .set(keys::GUID, number(w.guid))
        .set(keys::VERSION, number(w.version))
        .set(keys::MASTER_KEY, bytes(&w.master))
        .set(keys::HMAC_KEY, bytes(&w.hmac))
        .set(keys::IV, bytes(&w.iv))
        .set(keys::MAC, bytes(&w.mac))
        .set(
            "portable_mac",
            bytes(&phys.macs[..disk::crypt::OBJSET_MAC_SIZE]),
        )
        .set(keys::KEYFORMAT, number(params.format))
        .set(keys::PBKDF2_ITERS, number(params.iterations))
        .set(keys::PBKDF2_SALT, number(params.salt))
        .set(
            "mdn_checksum",
            number(u64::from(phys.meta.checksum.number())),
        )
        .set(
            "mdn_compress",
            number(u64::from(phys.meta.compress.number())),
        )
        .set("mdn_nlevels", number(u64::from(phys.meta.nlevels)))
        .set("mdn_blksz", number(phys.meta.block_size() as u64))
        .set("mdn_indblkshift", number(u64::from(phys.meta.indblkshift)))
        .set("mdn_nblkptr", number(phys.meta.blkptr.len() as u64))
        .set("mdn_maxblkid", number(phys.meta.maxblkid))
        .set("to_ivset_guid", number(ds.ivset_guid()?.unwrap_or(0)))
        .set("from_ivset_guid", number(from_ivset));
    Ok(list)
}
