//! The configuration of a pool as nvlists: for labels, for the MOS, for the cache file (pool format §5).

use crate::configuration::Configuration;
use base::{Result, Txg};
use disk::{NvList, ObjType, Value};
use dmu::{NewObject, Objset, Tx};
use env::Env;
use std::sync::Arc;
use vdev::keys::pool as key;
use vdev::VdevTree;

/// Block size of packed nvlist objects of the MOS.
const CONFIG_BLOCK: usize = 16 << 10;

/// Writes a packed nvlist object: whole blocks, the length in the bonus.
pub(crate) fn write_nvlist(mos: &Arc<Objset>, tx: &Tx, object: u64, list: &NvList) -> Result<()> {
    let dn = mos.hold(object)?;
    let mut b = list.pack_xdr();
    let len = b.len() as u64;
    b.resize(base::roundup(len, CONFIG_BLOCK as u64) as usize, 0);
    let old_end = (dn.info().max_blkid + 1) * dn.info().block_size as u64;
    if old_end > b.len() as u64 {
        dn.free_range(tx, b.len() as u64, u64::MAX)?;
    }
    dn.write(tx, 0, &b)?;
    dn.set_bonus(tx, &len.to_le_bytes())
}

/// Reads a packed nvlist object.
pub(crate) fn read_nvlist(mos: &Arc<Objset>, object: u64) -> Result<NvList> {
    let dn = mos.hold(object)?;
    let bonus = dn.bonus();
    let len = bonus
        .get(..8)
        .and_then(|b| b.try_into().ok())
        .map(u64::from_le_bytes)
        .ok_or_else(|| base::Error::damaged(format!("packed nvlist {object} without length")))?;
    let i = dn.info();
    if len > (i.max_blkid + 1) * i.block_size as u64 || len > 64 << 20 {
        return Err(base::Error::damaged(format!(
            "packed nvlist {object} of {len} bytes"
        )));
    }
    let mut b = vec![0; len as usize];
    dn.read(0, &mut b)?;
    NvList::unpack(&b)
}

/// Makes an empty packed nvlist object.
pub(crate) fn create_nvlist(mos: &Arc<Objset>, tx: &Tx) -> Result<u64> {
    let dn = mos.alloc(
        tx,
        &NewObject {
            obj_type: ObjType::PACKED_NVLIST,
            block_size: CONFIG_BLOCK,
            bonus_type: ObjType::PACKED_NVLIST_SIZE,
            bonus: vec![0; 8],
            ..NewObject::default()
        },
    )?;
    Ok(dn.object())
}

impl Configuration {
    /// The keys that all forms share (pool format §5.2). `state`: 0 active, 1 exported, 2 destroyed.
    fn base(&self, env: &Env, tree: &VdevTree, state: u64, txg: Txg) -> NvList {
        let mut c = NvList::new();
        let s = self.shared();
        c.set(key::VERSION, s.version);
        c.set(key::NAME, s.label_name.as_deref().unwrap_or(&s.name));
        c.set(key::STATE, state);
        c.set(key::TXG, txg);
        c.set(key::POOL_GUID, tree.guid());
        c.set("errata", 0u64);
        for (k, v) in &s.extra {
            c.set(k, v.as_str());
        }
        if let Some(guid) = s.split_guid {
            c.set(key::SPLIT_GUID, guid);
        }
        let hostid = env.host.hostid();
        if hostid != 0 {
            c.set(key::HOSTID, hostid);
        }
        c.set(key::HOSTNAME, env.host.hostname().as_str());
        c
    }

    /// For labels: with the features without which the MOS cannot be read.
    pub fn for_labels(&self, env: &Env, tree: &VdevTree, state: u64, txg: Txg) -> NvList {
        let mut c = self.base(env, tree, state, txg);
        if let Some(f) = &self.store {
            let mut list = NvList::new();
            for guid in f.label_features() {
                list.set_flag(&guid);
            }
            c.set(key::FEATURES_FOR_READ, Value::NvList(list));
        }
        c
    }

    /// Adds the device tree to what the labels have; `mos` adds what only the MOS holds.
    pub fn add_devices(&self, c: &mut NvList, tree: &VdevTree, mos: bool) {
        c.set(key::VDEV_CHILDREN, tree.tops().len() as u64);
        let holes = tree.holes();
        if !holes.is_empty() {
            c.set(key::HOLE_ARRAY, holes);
        }
        c.set(key::VDEV_TREE, Value::NvList(tree.config(mos)));
        if mos && self.vdev_zaps {
            c.set_flag("com.delphix:has_per_vdev_zaps");
        }
    }
}
