//! Ids of a view that clients have kept over a restart, of snapshots into which nobody has looked since.

use crate::view::{View, Within};
use std::sync::Arc;

impl<M: Within> View<M> {
    /// The file system and its node that such an id means. A client may have made it up: what no file system of the view shows in its
    /// `.zfs` is not met.
    pub(crate) fn met(&self, id: u64) -> Option<(u32, u64)> {
        let object = self.trees.unseen(id)?;
        let shows = |files: &Arc<M>| files.door().served.ctl.shows_object(object);
        let number = match shows(self.first()) {
            true => 0,
            false => {
                let others = self.numbered_others();
                others.into_iter().find(|(_, files)| shows(files))?.0
            }
        };
        self.trees.see(number, object);
        self.trees.inside(id)
    }
}
