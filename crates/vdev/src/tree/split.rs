//! The device tree of a pool that is split off another: one leaf of each mirror (pool format §6.5).
//!
//! Labels of the new pool name the old one (`split_guid`), until the old one has let go of the leaf. The new pool exists from the
//! moment when any of its devices has an uberblock of the txg of those labels. Before, a power cut leaves labels that belong to a
//! txg that is not on disk; the leaf is a member of the old pool then ([`VdevTree::take_back_torn`]).

use super::edit::TOP_KEYS;
use super::open::is_split_off;
use crate::keys;
use crate::label;
use crate::state::{Aux, State};
use crate::VdevTree;
use base::{bail, Result, Txg};
use disk::{NvList, Value};
use env::Disk;
use std::sync::Arc;

/// The vdev tree, as the MOS has it, of a pool with guid `guid` that takes the leaves `members` out of the mirrors of `tree`. Logs
/// become holes; holes and removed vdevs stay what they are, since pointers name vdevs by number.
///
/// # Errors
/// A top-level vdev that holds data is no mirror, or has not exactly one of the members as its child.
pub fn split_tree(tree: &NvList, members: &[u64], guid: u64) -> Result<NvList> {
    let mut out = tree.clone();
    out.set(keys::GUID, guid);
    let tops = tree.get_nvlist_array(keys::CHILDREN).unwrap_or(&[]);
    let list = tops
        .iter()
        .enumerate()
        .map(|(id, top)| split_top(top, id as u64, members))
        .collect::<Result<Vec<_>>>()?;
    out.set(keys::CHILDREN, Value::NvListArray(list));
    Ok(out)
}

fn split_top(top: &NvList, id: u64, members: &[u64]) -> Result<NvList> {
    let kind = top.need_str(keys::TYPE)?;
    if top.get_u64(keys::IS_LOG).unwrap_or(0) != 0 {
        let mut hole = NvList::new();
        hole.set(keys::TYPE, "hole");
        hole.set(keys::ID, id);
        hole.set(keys::GUID, 0u64);
        hole.set(keys::IS_HOLE, 1u64);
        return Ok(hole);
    }
    if matches!(kind, "hole" | "indirect" | "missing") {
        return Ok(top.clone());
    }
    if kind != "mirror" {
        bail!(Invalid, "Source pool must be composed only of mirrors");
    }
    let leaves = top.get_nvlist_array(keys::CHILDREN).unwrap_or(&[]);
    let is_member = |c: &&NvList| c.get_u64(keys::GUID).is_some_and(|g| members.contains(&g));
    let mut mine = leaves.iter().filter(is_member);
    let (Some(leaf), None) = (mine.next(), mine.next()) else {
        bail!(
            Invalid,
            "Device list must include at most one disk from each mirror"
        );
    };
    if leaf.get_nvlist_array(keys::CHILDREN).is_some() {
        bail!(Busy, "a device is being replaced");
    }
    let mut new = leaf.clone();
    for (key, value) in top.iter().filter(|(k, _)| TOP_KEYS.contains(k)) {
        new.set(key, value.clone());
    }
    new.set(keys::ID, id);
    Ok(new)
}

impl VdevTree {
    /// Leaves that were closed as split off, although the pool they were to make never came to be, are members again: all devices
    /// are there, and none has an uberblock of the txg of its new labels. `limit` is the txg of the uberblock in use.
    pub(crate) fn take_back_torn(&self, limit: Txg, trusted: bool) {
        let tops = self.tops();
        let data = tops.iter().filter(|t| t.is_concrete() && !t.is_log());
        let leaves: Vec<_> = data
            .flat_map(|t| t.leaves().into_iter().map(move |l| (t.clone(), l)))
            .collect();
        if !leaves.iter().any(|(_, l)| l.aux() == Aux::SplitPool) {
            return;
        }
        let mut torn: Vec<(usize, Arc<dyn Disk>)> = Vec::new();
        for (i, (top, leaf)) in leaves.iter().enumerate() {
            if leaf.aux() != Aux::SplitPool {
                if leaf.usable_device().is_none() {
                    return;
                }
                continue;
            }
            let path = leaf.path().unwrap_or_default();
            let Ok(device) = self.env.disks.open(&path, self.access()) else {
                return;
            };
            let labels = label::read_labels(&*device);
            let new = labels.best(Txg::MAX);
            let written = new.and_then(|c| c.get_txg(keys::pool::TXG));
            let newest = label::best_uberblock(&*device, top.ashift(), Txg::MAX);
            match (written, newest) {
                (Some(written), Some(ub)) if ub.txg < written => torn.push((i, device)),
                _ => return,
            }
        }
        for (i, device) in torn {
            let (top, leaf) = &leaves[i];
            let labels = label::read_labels(&*device);
            let own = labels
                .copies
                .iter()
                .flatten()
                .filter(|c| !is_split_off(c, self.guid()))
                .max_by_key(|c| c.get_txg(keys::pool::TXG).filter(|t| *t <= limit));
            let fits = own.is_some_and(|c| self.mismatch(top, leaf, c, trusted).is_none());
            if fits {
                leaf.set_device(Some(device));
                leaf.set_state(State::Healthy, Aux::None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(guid: u64) -> NvList {
        let mut l = NvList::new();
        l.set(keys::TYPE, "file");
        l.set(keys::GUID, guid);
        l.set(keys::PATH, format!("/d{guid}"));
        l
    }

    fn mirror(guid: u64, leaves: &[u64]) -> NvList {
        let mut m = NvList::new();
        m.set(keys::TYPE, "mirror");
        m.set(keys::GUID, guid);
        m.set(keys::METASLAB_ARRAY, 70 + guid);
        m.set(keys::ASHIFT, 12u64);
        m.set(keys::IS_LOG, 0u64);
        let list = leaves.iter().map(|g| leaf(*g)).collect();
        m.set(keys::CHILDREN, Value::NvListArray(list));
        m
    }

    fn root(tops: Vec<NvList>) -> NvList {
        let mut r = NvList::new();
        r.set(keys::TYPE, "root");
        r.set(keys::GUID, 5u64);
        r.set(keys::CHILDREN, Value::NvListArray(tops));
        r
    }

    #[test]
    fn members_become_top_level_and_logs_holes() {
        let mut log = mirror(30, &[31, 32]);
        log.set(keys::IS_LOG, 1u64);
        let tree = root(vec![mirror(10, &[11, 12]), log, mirror(20, &[21, 22, 23])]);
        let new = split_tree(&tree, &[12, 22], 6).unwrap();
        assert_eq!(new.get_u64(keys::GUID), Some(6));
        let tops = new.get_nvlist_array(keys::CHILDREN).unwrap();
        let seen: Vec<_> = tops
            .iter()
            .map(|t| {
                (
                    t.get_str(keys::TYPE).unwrap(),
                    t.get_u64(keys::GUID).unwrap(),
                )
            })
            .collect();
        assert_eq!(seen, [("file", 12), ("hole", 0), ("file", 22)]);
        assert_eq!(tops[2].get_u64(keys::METASLAB_ARRAY), Some(90));
        assert_eq!(tops[2].get_u64(keys::ID), Some(2));
    }

    #[test]
    fn what_is_no_side_of_every_mirror_is_refused() {
        let tree = root(vec![mirror(10, &[11, 12]), mirror(20, &[21, 22])]);
        for members in [&[11][..], &[11, 12, 21], &[11, 99], &[]] {
            let e = split_tree(&tree, members, 6).unwrap_err();
            assert!(e.to_string().contains("at most one disk"), "{members:?}");
        }
        let e = split_tree(&root(vec![leaf(1)]), &[1], 6).unwrap_err();
        assert!(e.to_string().contains("only of mirrors"));
    }
}
