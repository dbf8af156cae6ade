//! Whether every dRAID is counted by its feature, and its distributed spares are on the pool's list of spares.

use crate::finding::{Finding, Origin};
use base::Error;
use disk::feature::guid;
use dsl::Features;
use pool::Pool;
use vdev::{keys, VdevKind};

/// What is wrong goes to `sink`.
pub(crate) fn check(pool: &Pool, sink: &mut dyn FnMut(Finding)) {
    let mut wrong = |key, text: String| {
        sink(Finding::Malformed {
            origin: Origin::Directory(key),
            error: Error::damaged(text),
        });
    };
    let tops = pool.tree().tops();
    let aux = pool.aux_devices();
    let mut draids = 0;
    for top in tops.iter() {
        let VdevKind::Draid { nspares, .. } = top.kind() else {
            continue;
        };
        draids += 1;
        let mut listed: Vec<Option<u64>> = (aux.spares.iter())
            .filter(|s| s.get_u64(keys::pool::TOP_GUID) == Some(top.guid()))
            .map(|s| s.get_u64(keys::SPARE_ID))
            .collect();
        listed.sort_unstable();
        if !listed.into_iter().eq((0..nspares).map(Some)) {
            let name = top.name();
            wrong(
                "spares",
                format!("not the {nspares} distributed spares of {name}"),
            );
        }
    }
    let counted = pool.feature_store().and_then(|s| s.count(guid::DRAID));
    if counted.unwrap_or(0) != draids {
        let text = format!("{draids} dRAIDs, and feature draid counts {counted:?}");
        wrong("features_for_read", text);
    }
}
