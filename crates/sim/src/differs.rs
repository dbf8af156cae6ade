//! The judge of `zfs diff`: it must name each object that came, went or changed exactly once.

use crate::found::What;
use crate::oracle::Frozen;
use api::{Change, ChangeKind};
use std::collections::{BTreeMap, BTreeSet};

/// Path of what has no name any more.
const QUEUE: &str = "(on_delete_queue)";

/// A path as the model has it; none for what the model knows nothing of: the delete queue, and objects that hold extended
/// attributes. The root is empty.
fn path(place: &str, bytes: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(bytes);
    let own = text.strip_prefix(place)?;
    match own.contains("<xattrdir>") || own == QUEUE {
        true => None,
        false => Some(own.trim_start_matches('/').to_string()),
    }
}

fn once(told: &mut BTreeMap<usize, u32>, id: usize) {
    *told.entry(id).or_default() += 1;
}

/// Whether these are the differences between two states of one file system, which is mounted at `place`.
///
/// # Errors
/// What is wrong, in words.
pub fn judge(from: &Frozen, to: &Frozen, changes: &[Change], place: &str) -> Result<(), String> {
    let (mut removed, mut created) = (BTreeMap::new(), BTreeMap::new());
    let mut changed = BTreeSet::new();
    let id = |state: &Frozen, path: &str, of: &Change| match state.names.get(path) {
        Some(id) => Ok(*id),
        None => Err(format!("diff: {of:?}: there is no such name")),
    };
    for c in changes {
        let first = path(place, &c.path.0);
        let second = c.to.as_ref().map(|t| path(place, &t.0));
        match (c.what, first, second) {
            // The root has no object in the model.
            (_, Some(p), _) if p.is_empty() => {}
            (ChangeKind::Removed, Some(p), _) => once(&mut removed, id(from, &p, c)?),
            (ChangeKind::Created, Some(p), _) => once(&mut created, id(to, &p, c)?),
            (ChangeKind::Renamed, Some(p), Some(None)) => once(&mut removed, id(from, &p, c)?),
            (ChangeKind::Renamed, Some(p), Some(Some(q))) => {
                let (old, new) = (id(from, &p, c)?, id(to, &q, c)?);
                if old != new {
                    return Err(format!("diff: {c:?}: not the same object"));
                }
                changed.insert(new);
            }
            (ChangeKind::Modified | ChangeKind::Links(_), Some(p), _) => {
                changed.insert(match to.names.get(&p) {
                    Some(id) => *id,
                    None => id(from, &p, c)?,
                });
            }
            _ => {}
        }
    }
    let gone = from
        .objects
        .keys()
        .filter(|id| !to.objects.contains_key(id));
    let new = to
        .objects
        .keys()
        .filter(|id| !from.objects.contains_key(id));
    compare("removed", gone, &removed)?;
    compare("created", new, &created)?;
    for (id, (what, state)) in &to.objects {
        let Some((_, before)) = from.objects.get(id) else {
            continue;
        };
        // Times of directories are no business of the model, nor is what is in them.
        if *what != What::Dir && before != state && !changed.contains(id) {
            return Err(format!("diff: the change of object {id} is not told"));
        }
    }
    Ok(())
}

fn compare<'a>(
    what: &str,
    must: impl Iterator<Item = &'a usize>,
    told: &BTreeMap<usize, u32>,
) -> Result<(), String> {
    let must: BTreeMap<usize, u32> = must.map(|id| (*id, 1)).collect();
    match must == *told {
        true => Ok(()),
        false => Err(format!("diff: {what} objects {told:?}, expected {must:?}")),
    }
}
