//! The properties of an object set that concern reading: which blocks stay in the block cache
//! (`primarycache`), which of those go to cache devices (`secondarycache`), and which are read ahead (`prefetch`). The object set and its objects share them, so
//! later reads see a change.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use zio::Scope;

/// The properties, as they are stored.
#[derive(Debug)]
pub(crate) struct Reading {
    keep: AtomicU64,
    second: AtomicU64,
    ahead: AtomicU64,
}

fn number(s: Scope) -> u64 {
    match s {
        Scope::Nothing => 0,
        Scope::Metadata => 1,
        Scope::All => 2,
    }
}

impl Reading {
    /// From the properties `primarycache` (`keep`), `secondarycache` (`second`) and `prefetch` (`ahead`).
    pub fn new(keep: Scope, second: Scope, ahead: Scope) -> Reading {
        Reading {
            keep: AtomicU64::new(number(keep)),
            second: AtomicU64::new(number(second)),
            ahead: AtomicU64::new(number(ahead)),
        }
    }

    /// Takes over new values of the properties.
    pub fn set(&self, keep: Scope, second: Scope, ahead: Scope) {
        self.keep.store(number(keep), Relaxed);
        self.second.store(number(second), Relaxed);
        self.ahead.store(number(ahead), Relaxed);
    }

    /// What stays in the block cache.
    pub fn keep(&self) -> Scope {
        Scope::from_property(self.keep.load(Relaxed))
    }

    /// What goes to cache devices when it leaves the block cache.
    pub fn second(&self) -> Scope {
        Scope::from_property(self.second.load(Relaxed))
    }

    /// What is read ahead.
    pub fn ahead(&self) -> Scope {
        Scope::from_property(self.ahead.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Rig;
    use crate::{Dnode, NewObject, WritePolicy};
    use disk::ObjType;
    use std::sync::Arc;

    const BLOCK: u64 = 4096;
    const BLOCKS: u64 = 300;

    /// An object of that type with blocks that do not compress, nothing of it in memory.
    fn object(obj_type: ObjType) -> (Rig, Arc<Dnode>) {
        let rig = Rig::new(2, 64 << 20, WritePolicy::default());
        let tx = rig.tx();
        let new = NewObject {
            obj_type,
            block_size: BLOCK as usize,
            ..NewObject::default()
        };
        let dn = rig.os.alloc(&tx, &new).unwrap();
        let object = dn.object();
        for blk in 0..BLOCKS {
            let noise: Vec<u8> = (0..BLOCK)
                .map(|i| (i.wrapping_mul(blk * 2 + 1) >> 3) as u8 ^ blk as u8)
                .collect();
            dn.write(&tx, blk * BLOCK, &noise).unwrap();
        }
        drop((tx, dn));
        let rig = rig.reopen();
        rig.dmu.zio.cache.clear();
        let dn = rig.os.hold(object).unwrap();
        (rig, dn)
    }

    fn set(rig: &Rig, keep: Scope, ahead: Scope) {
        rig.os.set_policy(WritePolicy {
            keep,
            ahead,
            ..WritePolicy::default()
        });
    }

    /// Bytes in the cache after blocks here and there were read, which is no stream.
    fn kept(rig: &Rig, dn: &Dnode) -> u64 {
        rig.dmu.zio.cache.clear();
        let mut buf = vec![0; BLOCK as usize];
        for blk in [7, 200, 90, 11, 150] {
            dn.read(blk * BLOCK, &mut buf).unwrap();
        }
        rig.dmu.zio.cache.used()
    }

    #[test]
    fn primarycache_says_what_of_a_read_stays_in_memory() {
        let (rig, dn) = object(ObjType::PLAIN_FILE_CONTENTS);
        set(&rig, Scope::All, Scope::Nothing);
        let all = kept(&rig, &dn);
        set(&rig, Scope::Metadata, Scope::Nothing);
        let metadata = kept(&rig, &dn);
        set(&rig, Scope::Nothing, Scope::Nothing);
        assert_eq!(kept(&rig, &dn), 0);
        assert!(all >= 5 * BLOCK + metadata, "{all} {metadata}");
        assert!(metadata > 0, "indirect blocks are metadata");
        let (rig, dn) = object(ObjType::DIRECTORY_CONTENTS);
        set(&rig, Scope::Metadata, Scope::Nothing);
        assert!(kept(&rig, &dn) >= 5 * BLOCK, "so are directories");
    }

    /// Bytes in the cache after four blocks in a row were read.
    fn streamed(rig: &Rig, dn: &Dnode) -> u64 {
        rig.dmu.zio.cache.clear();
        let mut buf = vec![0; BLOCK as usize];
        for blk in 0..4 {
            dn.read(blk * BLOCK, &mut buf).unwrap();
        }
        rig.dmu.zio.cache.used()
    }

    #[test]
    fn prefetch_says_what_is_read_ahead() {
        for (kind, scope, ahead) in [
            (ObjType::PLAIN_FILE_CONTENTS, Scope::Nothing, false),
            (ObjType::PLAIN_FILE_CONTENTS, Scope::Metadata, false),
            (ObjType::PLAIN_FILE_CONTENTS, Scope::All, true),
            (ObjType::DIRECTORY_CONTENTS, Scope::Nothing, false),
            (ObjType::DIRECTORY_CONTENTS, Scope::Metadata, true),
        ] {
            let (rig, dn) = object(kind);
            set(&rig, Scope::All, Scope::Nothing);
            let plain = streamed(&rig, &dn);
            let (rig, dn) = object(kind);
            set(&rig, Scope::All, scope);
            let more = streamed(&rig, &dn) > plain;
            assert_eq!(more, ahead, "{kind:?} {scope:?}");
        }
        // The daemon's switch counts for all.
        let (rig, dn) = object(ObjType::PLAIN_FILE_CONTENTS);
        rig.dmu.set_read_ahead(false);
        let none = streamed(&rig, &dn);
        let (rig, dn) = object(ObjType::PLAIN_FILE_CONTENTS);
        assert!(streamed(&rig, &dn) > none);
    }
}
