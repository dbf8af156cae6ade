//! What a pool is split into ([`crate::Pool::split`]), and what its opening has to know of that.

use crate::Tunables;
use base::sync::MutexExt;
use base::Result;
use disk::NvList;
use dsl::PropValue;
use std::sync::Mutex;
use vdev::keys::pool as key;

/// What a pool is to be split into.
#[derive(Clone, Debug, Default)]
pub struct SplitSpec {
    /// Name of the new pool.
    pub name: String,
    /// Its guid.
    pub guid: u64,
    /// Guids of the leaves it takes, one of each mirror.
    pub members: Vec<u64>,
    /// Properties it gets.
    pub props: Vec<(String, PropValue)>,
    /// Its `comment`, if that is not to be the old pool's.
    pub comment: Option<String>,
    /// Command line and user, for its history.
    pub command: (String, u64),
    /// Memory it may take until it is exported.
    pub tunables: Tunables,
}

/// A pool that is about to be split off.
#[derive(Debug)]
pub struct Half {
    pub(crate) spec: SplitSpec,
    /// Guid and name of the old pool.
    pub(crate) of: u64,
    pub(crate) of_name: String,
    /// The old pool's configuration as it is on the sides.
    pub(crate) whole: Mutex<Option<NvList>>,
}

impl Half {
    /// The configuration of the new pool; `whole`: that of the old one, from the MOS.
    pub(crate) fn config_of(&self, whole: NvList) -> Result<NvList> {
        let tree = whole.need_nvlist(key::VDEV_TREE)?;
        let tree = vdev::split_tree(tree, &self.spec.members, self.spec.guid)?;
        let mut config = whole.clone();
        config.set(key::NAME, self.spec.name.as_str());
        config.set(key::POOL_GUID, self.spec.guid);
        config.set(key::VDEV_TREE, tree);
        *self.whole.acquire() = Some(whole);
        Ok(config)
    }
}
