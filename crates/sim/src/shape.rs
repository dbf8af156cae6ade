//! Lines that change what a pool consists of: a RAID-Z grows by a disk, top-level vdevs come, and those that are no dRAID go with all
//! they hold.

use std::fmt;

/// A change of the top-level vdevs of a pool. Groups are numbered: 0 is the one the pool was made of, the others are
/// [`crate::rig::Layout::grow`] further ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A disk is attached to the RAID-Z.
    Expand(usize),
    /// The group becomes a top-level vdev.
    Add(usize),
    /// The removal of the group's top-level vdev begins.
    Remove(usize),
    /// The removal under way is given up.
    Cancel,
    /// One side of each mirror becomes a pool of its own.
    Split,
    /// Expansion and removal come to their ends. Then as many disks as may be missing are taken away.
    Finish,
}

impl Shape {
    /// The rest of a line, word by word.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(
        word: &mut dyn FnMut() -> Result<String, String>,
    ) -> std::result::Result<Shape, String> {
        let verb = word()?;
        let mut number = || {
            let w = word()?;
            w.parse().map_err(|_| format!("'{w}' is no such number"))
        };
        Ok(match verb.as_str() {
            "expand" => Shape::Expand(number()?),
            "add" => Shape::Add(number()?),
            "remove" => Shape::Remove(number()?),
            "cancel" => Shape::Cancel,
            "split" => Shape::Split,
            "finish" => Shape::Finish,
            w => return Err(format!("no change of a pool: {w}")),
        })
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shape::Expand(disk) => write!(f, "shape expand {disk}"),
            Shape::Add(group) => write!(f, "shape add {group}"),
            Shape::Remove(group) => write!(f, "shape remove {group}"),
            Shape::Cancel => write!(f, "shape cancel"),
            Shape::Split => write!(f, "shape split"),
            Shape::Finish => write!(f, "shape finish"),
        }
    }
}
