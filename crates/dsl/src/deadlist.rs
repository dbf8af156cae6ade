//! Deadlists: the blocks a dataset's previous snapshot refers to and the dataset no longer does
//! (data format §8.2, §8.3).
//!
//! The format requires a key for every snapshot before the dataset, also where the list of that key is empty: with
//! 10,000 snapshots, 10,000 keys. So these operations avoid reading all keys:
//!
//! 1. The sums of all lists are in the header (`Deadlist::space_of`).
//! 2. A caller that needs only space or blocks opens the deadlist without the keys of empty lists (`Deadlist::open_filled`).
//! 3. The syncing thread keeps the deadlists that it changes open from one txg to the next (`OpenLists`). To change
//!    one, it takes it from there (`Core::take_deadlist`), and gives it back when memory and disk agree. An error in
//!    between drops it.

use crate::bpobj::is_unreadable;
use crate::core::{born_in, bump, Core, Triple};
use crate::Bpobj;
use base::mutation::{mutated, Mutation};
use base::sync::MutexExt;
use base::{bail, Error, Result, Txg};
use disk::dsl::{DeadlistPhys, DEADLIST_SIZE};
use disk::{BlkPtr, ObjType};
use dmu::{Dnode, NewObject, Objset, Tx};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use zap::{hex_key, Zap};

const _: () = assert!(DEADLIST_SIZE == 320);

/// One entry of a livelist: a block, its space, and whether it was freed.
pub(crate) type Change = (BlkPtr, Triple, bool);

enum Form {
    /// Pool version < 26: one list for all births.
    Old(Bpobj),
    /// Lists by birth: key k holds blocks born after k, up to the next key.
    New {
        dn: Arc<Dnode>,
        phys: DeadlistPhys,
        tree: BTreeMap<Txg, u64>,
    },
}

/// Space that a header says.
fn total(phys: &DeadlistPhys) -> Triple {
    Triple {
        used: phys.used as i64,
        comp: phys.comp as i64,
        uncomp: phys.uncomp as i64,
    }
}

/// An open deadlist. Not shared: used under its dataset's lock or by the syncing thread.
pub struct Deadlist {
    object: u64,
    form: Form,
}

impl Deadlist {
    /// Opens the deadlist in MOS object `object`, of whichever form. `Damaged`: the object is none.
    pub fn open(mos: &Objset, object: u64) -> Result<Deadlist> {
        Deadlist::open_with(mos, object, |_| true)
    }

    fn open_with(mos: &Objset, object: u64, wanted: impl Fn(u64) -> bool) -> Result<Deadlist> {
        let dn = mos
            .hold(object)
            .map_err(|e| e.context(format!("deadlist {object}")))?;
        let form = match dn.info().bonus_type {
            ObjType::BPOBJ_HDR => Form::Old(Bpobj::open(mos, object)?),
            ObjType::DEADLIST_HDR => {
                let phys = DeadlistPhys::decode(&dn.bonus())?;
                let mut keys = Zap::new(&dn).int_keys()?;
                keys.retain(|(_, list)| wanted(*list));
                let tree = keys
                    .into_iter()
                    .map(|(k, list)| (Txg::new(k), list))
                    .collect();
                Form::New { dn, phys, tree }
            }
            t => {
                return Err(Error::damaged(format!(
                    "object {object} is no deadlist but {t:?}"
                )))
            }
        };
        Ok(Deadlist { object, form })
    }

    /// To be looked at only: keys under which nothing is are left out.
    pub(crate) fn open_filled(core: &Core, object: u64) -> Result<Deadlist> {
        let empty = core.empty_bpobj()?;
        Deadlist::open_with(&core.mos, object, |o| o != empty)
    }

    /// Space of all blocks on the deadlist `object`, by its header alone: no key is read.
    ///
    /// Errors: `Kind::Damaged` if it is no deadlist.
    pub(crate) fn space_of(mos: &Objset, object: u64) -> Result<Triple> {
        let dn = mos
            .hold(object)
            .map_err(|e| e.context(format!("deadlist {object}")))?;
        match dn.info().bonus_type {
            ObjType::DEADLIST_HDR => Ok(total(&DeadlistPhys::decode(&dn.bonus())?)),
            _ => Ok(Deadlist::open(mos, object)?.space()),
        }
    }

    /// A new one without keys, in the form of the pool's version.
    pub(crate) fn create(core: &Core, tx: &Tx) -> Result<Deadlist> {
        if core.version() < 26 {
            let b = core.new_bpobj(tx)?;
            return Ok(Deadlist {
                object: b.object(),
                form: Form::Old(b),
            });
        }
        let phys = DeadlistPhys::default();
        let new = NewObject {
            obj_type: ObjType::DEADLIST,
            bonus_type: ObjType::DEADLIST_HDR,
            bonus: phys.encode(),
            ..NewObject::default()
        };
        let dn = zap::create_with(&core.mos, tx, &new, 0)?;
        let object = dn.object();
        Ok(Deadlist {
            object,
            form: Form::New {
                dn,
                phys,
                tree: BTreeMap::new(),
            },
        })
    }

    /// Number of its MOS object.
    pub fn object(&self) -> u64 {
        self.object
    }

    /// Pool version < 26.
    pub fn is_old(&self) -> bool {
        matches!(self.form, Form::Old(_))
    }

    /// Whether there is this key; never in the old form.
    pub(crate) fn has_key(&self, k: Txg) -> bool {
        matches!(&self.form, Form::New { tree, .. } if tree.contains_key(&k))
    }

    /// Number of keys; 0 in the old form.
    fn key_count(&self) -> usize {
        match &self.form {
            Form::Old(_) => 0,
            Form::New { tree, .. } => tree.len(),
        }
    }

    /// Keys and their bpobjs; none in the old form.
    pub fn keys(&self) -> BTreeMap<Txg, u64> {
        match &self.form {
            Form::Old(_) => BTreeMap::new(),
            Form::New { tree, .. } => tree.clone(),
        }
    }

    /// Space of all blocks on it.
    pub fn space(&self) -> Triple {
        match &self.form {
            Form::Old(b) => b.space(),
            Form::New { phys, .. } => total(phys),
        }
    }

    /// Space of the blocks born after `min` (a key) and not after `max`.
    pub(crate) fn space_range(&self, core: &Core, min: Txg, max: Txg) -> Result<Triple> {
        let mut sum = Triple::default();
        match &self.form {
            Form::Old(b) => {
                b.for_each(&core.mos, &mut |bp, _| {
                    if born_in(bp, min, max) {
                        sum += core.triple(bp);
                    }
                    Ok(())
                })?;
            }
            Form::New { phys, .. } if min.is_none() && max == Txg::MAX => return Ok(total(phys)),
            Form::New { tree, .. } => {
                if min < max {
                    let empty = core.empty_bpobj()?;
                    for (_, &o) in tree.range(min..max) {
                        if o != empty {
                            sum += Bpobj::open(&core.mos, o)?.space();
                        }
                    }
                }
            }
        }
        Ok(sum)
    }

    /// Puts dead blocks on it.
    pub(crate) fn insert(&mut self, core: &Core, tx: &Tx, bps: &[(BlkPtr, Triple)]) -> Result<()> {
        if bps.is_empty() {
            return Ok(());
        }
        if let Form::Old(b) = &mut self.form {
            let total = bps.iter().fold(Triple::default(), |s, (_, t)| s + *t);
            let list: Vec<BlkPtr> = bps.iter().map(|(bp, _)| *bp).collect();
            return b.enqueue(tx, &list, total);
        }
        let object = self.object;
        let Form::New { tree, .. } = &self.form else {
            return Ok(());
        };
        let mut groups: BTreeMap<Txg, (Vec<BlkPtr>, Triple)> = BTreeMap::new();
        for (bp, t) in bps {
            let Some((&k, _)) = tree.range(..bp.birth()).next_back() else {
                return Err(Error::damaged(format!(
                    "deadlist {object} has no key below birth {}",
                    bp.birth()
                )));
            };
            let g = groups.entry(k).or_default();
            g.0.push(*bp);
            g.1 += *t;
        }
        for (k, (list, total)) in groups {
            let mut b = self.own_bpobj(core, tx, k)?;
            b.enqueue(tx, &list, total)?;
            self.add_total(tx, total)?;
        }
        Ok(())
    }

    /// Appends to a livelist, each change to the sub-list of its birth.
    pub(crate) fn insert_changes(
        &mut self,
        core: &Core,
        tx: &Tx,
        changes: &[Change],
    ) -> Result<()> {
        let object = self.object;
        let Form::New { tree, .. } = &self.form else {
            bail!(Damaged, "livelist {object} in an old form");
        };
        let mut groups: BTreeMap<Txg, (Vec<(BlkPtr, bool)>, Triple)> = BTreeMap::new();
        for (bp, t, freed) in changes {
            let Some((&k, _)) = tree.range(..bp.birth()).next_back() else {
                return Err(Error::damaged(format!(
                    "livelist {object} has no key below birth {}",
                    bp.birth()
                )));
            };
            let g = groups.entry(k).or_default();
            g.0.push((*bp, *freed));
            g.1 += if *freed { -*t } else { *t };
        }
        for (k, (list, total)) in groups {
            let mut b = self.own_bpobj(core, tx, k)?;
            b.enqueue_changes(tx, &list, total)?;
            self.add_total(tx, total)?;
        }
        Ok(())
    }

    /// Takes key `k` with its list away; the blocks are the caller's matter.
    pub(crate) fn remove_list(&mut self, core: &Core, tx: &Tx, k: Txg) -> Result<()> {
        let Form::New { dn, tree, .. } = &mut self.form else {
            bail!(Bug, "a deadlist without keys is asked for one");
        };
        let Some(o) = tree.remove(&k) else {
            bail!(Invalid, "no such key");
        };
        Zap::new(dn).remove(tx, &hex_key(k.number()))?;
        if o == core.empty_bpobj()? && o != 0 {
            return core.unuse_empty_bpobj(tx, 1);
        }
        let b = match Bpobj::open(&core.mos, o) {
            Err(e) if is_unreadable(&e) => return Ok(()),
            b => b?,
        };
        let gone = b.space();
        match b.free_now(&core.mos, tx) {
            Err(e) if is_unreadable(&e) => {}
            r => r?,
        }
        self.add_total(tx, -gone)
    }

    /// The bpobj of key `k`, a private one instead of the shared empty one.
    fn own_bpobj(&mut self, core: &Core, tx: &Tx, k: Txg) -> Result<Bpobj> {
        let Form::New { dn, tree, .. } = &mut self.form else {
            bail!(Bug, "a deadlist without keys is asked for one");
        };
        let Some(o) = tree.get_mut(&k) else {
            bail!(Invalid, "no such key");
        };
        if *o != core.empty_bpobj()? {
            return Bpobj::open(&core.mos, *o);
        }
        let b = core.new_bpobj(tx)?;
        *o = b.object();
        Zap::new(dn).update_int_key(tx, k.number(), b.object())?;
        core.unuse_empty_bpobj(tx, 1)?;
        Ok(b)
    }

    pub(crate) fn add_total(&mut self, tx: &Tx, t: Triple) -> Result<()> {
        if let Form::New { dn, phys, .. } = &mut self.form {
            bump(&mut phys.used, t.used);
            bump(&mut phys.comp, t.comp);
            bump(&mut phys.uncomp, t.uncomp);
            dn.set_bonus(tx, &phys.encode())?;
        }
        Ok(())
    }

    /// Adds a key larger than all, with nothing in it.
    pub(crate) fn add_key(&mut self, core: &Core, tx: &Tx, k: Txg) -> Result<()> {
        let Form::New { dn, tree, .. } = &mut self.form else {
            return Ok(());
        };
        if tree.contains_key(&k) {
            return Ok(());
        }
        let o = match core.use_empty_bpobj(tx, 1)? {
            Some(o) => o,
            None => core.new_bpobj(tx)?.object(),
        };
        Zap::new(dn).add_int_key(tx, k.number(), o)?;
        tree.insert(k, o);
        Ok(())
    }

    /// Puts what bpobj `o` lists under key `k`; `o` is used up.
    fn absorb(&mut self, core: &Core, tx: &Tx, k: Txg, o: u64) -> Result<()> {
        let empty = core.empty_bpobj()?;
        if o == empty && o != 0 {
            return core.unuse_empty_bpobj(tx, 1);
        }
        let Form::New { dn, tree, .. } = &mut self.form else {
            bail!(Bug, "a deadlist without keys is asked for one");
        };
        let Some(own) = tree.get_mut(&k) else {
            bail!(Invalid, "no such key");
        };
        if *own == empty {
            *own = o;
            Zap::new(dn).update_int_key(tx, k.number(), o)?;
            return core.unuse_empty_bpobj(tx, 1);
        }
        Bpobj::open(&core.mos, *own)?.enqueue_subobj(&core.mos, tx, o)
    }

    /// Takes key `k` away, if it is there; what it held goes to the key before it.
    pub(crate) fn remove_key(&mut self, core: &Core, tx: &Tx, k: Txg) -> Result<()> {
        let Form::New { dn, tree, .. } = &mut self.form else {
            return Ok(());
        };
        let Some(&o) = tree.get(&k) else {
            return Ok(());
        };
        let Some((&prev, _)) = tree.range(..k).next_back() else {
            return Err(Error::damaged(format!(
                "deadlist {}: key {k} is the first",
                self.object
            )));
        };
        tree.remove(&k);
        Zap::new(dn).remove(tx, &hex_key(k.number()))?;
        self.absorb(core, tx, prev, o)
    }

    /// A new, empty deadlist with the keys of this one below `max`, and `more` keys. `chain` gives the keys if
    /// this one is of the old form.
    pub(crate) fn clone_keys(
        &self,
        core: &Core,
        tx: &Tx,
        max: Txg,
        more: &[Txg],
        chain: impl FnOnce() -> Result<Vec<Txg>>,
    ) -> Result<Deadlist> {
        let mut new = Deadlist::create(core, tx)?;
        if new.is_old() {
            return Ok(new);
        }
        let mut keys: Vec<Txg> = match &self.form {
            Form::Old(_) => chain()?,
            Form::New { tree, .. } => tree.keys().copied().collect(),
        };
        keys.retain(|k| *k < max);
        keys.extend(more);
        keys.sort_unstable();
        keys.dedup();
        new.fill_keys(core, tx, &keys)?;
        Ok(new)
    }

    /// Gives a list without keys these, with nothing in them.
    fn fill_keys(&mut self, core: &Core, tx: &Tx, keys: &[Txg]) -> Result<()> {
        let Form::New { dn, tree, .. } = &mut self.form else {
            return Ok(());
        };
        if keys.is_empty() {
            return Ok(());
        }
        let list: Vec<(Txg, u64)> = match core.use_empty_bpobj(tx, keys.len() as u64)? {
            Some(o) => keys.iter().map(|k| (*k, o)).collect(),
            None => keys
                .iter()
                .map(|k| Ok((*k, core.new_bpobj(tx)?.object())))
                .collect::<Result<_>>()?,
        };
        let keys: Vec<(u64, u64)> = list.iter().map(|(k, o)| (k.number(), *o)).collect();
        Zap::new(dn).fill_int_keys(tx, &keys)?;
        *tree = list.into_iter().collect();
        Ok(())
    }

    /// Moves everything under keys ≥ `min` to `to`; returns its space.
    pub(crate) fn move_to(
        &mut self,
        core: &Core,
        tx: &Tx,
        min: Txg,
        to: &mut Bpobj,
    ) -> Result<Triple> {
        let empty = core.empty_bpobj()?;
        let Form::New { dn, tree, .. } = &mut self.form else {
            bail!(Bug, "a deadlist without keys is asked for one");
        };
        let (mut gone, mut empties) = (Triple::default(), 0);
        for (k, o) in tree.split_off(&min) {
            Zap::new(dn).remove(tx, &hex_key(k.number()))?;
            if o == empty && o != 0 {
                empties += 1;
            } else {
                gone += Bpobj::open(&core.mos, o)?.space();
                to.enqueue_subobj(&core.mos, tx, o)?;
            }
        }
        core.unuse_empty_bpobj(tx, empties)?;
        self.add_total(tx, -gone)?;
        Ok(gone)
    }

    /// Takes over everything another deadlist lists and frees that one.
    pub(crate) fn merge(&mut self, core: &Core, tx: &Tx, other: Deadlist) -> Result<()> {
        let object = other.object;
        match other.form {
            Form::Old(b) => {
                let mut all = Vec::new();
                b.for_each(&core.mos, &mut |bp, _| {
                    all.push((*bp, core.triple(bp)));
                    Ok(())
                })?;
                self.insert(core, tx, &all)?;
                b.free_now(&core.mos, tx)
            }
            Form::New { phys, tree, .. } => {
                let last = tree.keys().next_back().copied();
                let (empty, mut empties) = (core.empty_bpobj()?, 0);
                for (k, o) in tree {
                    if Some(k) == last && mutated(Mutation::DeadlistKeyLost) {
                        continue;
                    }
                    if o == empty && o != 0 {
                        empties += 1;
                        continue;
                    }
                    let own = match &self.form {
                        Form::New { tree, .. } => tree.range(..=k).next_back().map(|(k, _)| *k),
                        Form::Old(_) => None,
                    };
                    let Some(own) = own else {
                        return Err(Error::damaged(format!(
                            "deadlist {} has no key for {k}",
                            self.object
                        )));
                    };
                    self.absorb(core, tx, own, o)?;
                }
                core.unuse_empty_bpobj(tx, empties)?;
                self.add_total(tx, total(&phys))?;
                core.free_object(tx, object)
            }
        }
    }

    /// Every block on it.
    pub fn for_each(&self, mos: &Objset, f: &mut dyn FnMut(&BlkPtr) -> Result<()>) -> Result<()> {
        match &self.form {
            Form::Old(b) => b.for_each(mos, &mut |bp, _| f(bp)),
            Form::New { tree, .. } => {
                for o in tree.values() {
                    Bpobj::open(mos, *o)?.for_each(mos, &mut |bp, _| f(bp))?;
                }
                Ok(())
            }
        }
    }

    /// Frees the object and its lists, not the blocks.
    pub(crate) fn free(self, core: &Core, tx: &Tx) -> Result<()> {
        match self.form {
            Form::Old(b) => b.free_now(&core.mos, tx),
            Form::New { tree, .. } => {
                let (empty, mut empties) = (core.empty_bpobj()?, 0);
                for o in tree.into_values() {
                    if o == empty && o != 0 {
                        empties += 1;
                    } else {
                        Bpobj::open(&core.mos, o)?.free_now(&core.mos, tx)?;
                    }
                }
                core.unuse_empty_bpobj(tx, empties)?;
                core.free_object(tx, self.object)
            }
        }
    }
}

/// Keys of all lists together that stay open: some 10 MiB.
const KEYS_KEPT: usize = 1 << 18;
/// Lists that stay open.
const LISTS_KEPT: usize = 256;

/// Blocks of a clone that were born after its origin, not embedded, go into its livelist.
pub(crate) fn listed(bp: &BlkPtr, origin_txg: Txg) -> bool {
    !bp.is_hole() && !bp.is_embedded() && bp.birth() > origin_txg
}

/// Deadlists of datasets that the syncing thread has open, the one used last at the end.
#[derive(Default)]
pub(crate) struct OpenLists(Mutex<Vec<Deadlist>>);

impl Core {
    /// A deadlist of a dataset, to be changed. Nobody else has it until it is given back.
    pub(crate) fn take_deadlist(&self, object: u64) -> Result<Deadlist> {
        let kept = {
            let mut lists = self.open_lists.0.acquire();
            let at = lists.iter().rposition(|d| d.object == object);
            at.map(|at| lists.remove(at))
        };
        match kept {
            Some(list) => Ok(list),
            None => Deadlist::open(&self.mos, object),
        }
    }

    /// Keeps a deadlist open for the next change. It must be what the object is now.
    pub(crate) fn keep_deadlist(&self, list: Deadlist) {
        // One of the old form is opened at once, and has a header of its own.
        if list.is_old() {
            return;
        }
        let mut lists = self.open_lists.0.acquire();
        lists.retain(|d| d.object != list.object);
        lists.push(list);
        let mut keys: usize = lists.iter().map(Deadlist::key_count).sum();
        while lists.len() > 1 && (keys > KEYS_KEPT || lists.len() > LISTS_KEPT) {
            keys -= lists.remove(0).key_count();
        }
    }
}

#[cfg(test)]
impl Core {
    /// Every list that is kept open is what its object is.
    pub(crate) fn check_open_lists(&self) {
        for kept in self.open_lists.0.acquire().iter() {
            let now = Deadlist::open(&self.mos, kept.object).unwrap();
            assert_eq!(kept.keys(), now.keys(), "keys of {}", kept.object);
            assert_eq!(kept.space(), now.space(), "space of {}", kept.object);
        }
    }
}
