//! Which file systems of a tree are to be renamed or destroyed so that it becomes like the sender's, and in which order.
//!
//! 1. A file system is known by its snapshots, not by its name. So what an interrupted command moved aside is found again.
//! 2. A name that somebody else has is waited for. Only where names are exchanged in a circle, or a parent goes below its
//!    own child, one of the circle is moved aside: to `recv-GUID-N`, beside it or at the top of the tree.
//! 3. Nothing is destroyed while something below it has another place to go to.

use crate::datasets::is_below;
use std::collections::{HashMap, HashSet};

/// A local file system, as far as its place in the tree goes.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) name: String,
    /// Guid of its head.
    pub(super) guid: u64,
    pub(super) fate: Fate,
}

/// What becomes of a local file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It stays as it is: the top, or one that the sender does not have.
    Stays,
    /// It is gone on the sending side.
    Goes,
    /// It belongs below the file system that is called so now, with that last name.
    Belongs { parent: String, last: String },
}

/// One change of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// With all below it.
    Destroy(String),
    Rename {
        from: String,
        to: String,
    },
}

impl Item {
    /// Where it belongs, if it is somewhere else.
    fn target(&self) -> Option<String> {
        match &self.fate {
            Fate::Belongs { parent, last } => {
                Some(format!("{parent}/{last}")).filter(|to| *to != self.name)
            }
            Fate::Stays | Fate::Goes => None,
        }
    }

    fn parent(&self) -> &str {
        self.name.rsplit_once('/').map_or("", |(up, _)| up)
    }

    /// How names begin that it has for a while.
    fn aside(&self) -> String {
        format!("recv-{:x}-", self.guid)
    }

    fn is_aside(&self) -> bool {
        let last = self.name.rsplit('/').next().unwrap_or_default();
        last.starts_with(&self.aside())
    }
}

/// The file systems below `top`, looked at together.
struct Tree<'a> {
    items: &'a [Item],
    top: &'a str,
    at: HashMap<&'a str, usize>,
    /// Where each belongs, if it is somewhere else.
    targets: Vec<Option<String>>,
}

/// What can be done now, the best first. The caller does the first that succeeds, looks again, and ends when there is
/// nothing, or nothing succeeds.
pub(super) fn steps(items: &[Item], top: &str) -> Vec<Step> {
    let tree = Tree {
        items,
        top,
        at: items
            .iter()
            .enumerate()
            .map(|(i, x)| (x.name.as_str(), i))
            .collect(),
        targets: items.iter().map(Item::target).collect(),
    };
    let mut out = tree.destroys();
    let (free, blocked): (Vec<_>, Vec<_>) = tree
        .renames()
        .partition(|(i, to)| !tree.at.contains_key(to.as_str()) && !is_below(to, &items[*i].name));
    let step = |(i, to): (usize, String)| Step::Rename {
        from: items[i].name.clone(),
        to,
    };
    out.extend(free.into_iter().map(step));
    out.extend(tree.asides());
    // These fail. What they say is what is told.
    out.extend(blocked.into_iter().map(step));
    out
}

impl Tree<'_> {
    fn renames(&self) -> impl Iterator<Item = (usize, String)> + '_ {
        let misplaced = self.targets.iter().enumerate();
        misplaced.filter_map(|(i, to)| Some((i, to.clone()?)))
    }

    /// Those that are gone on the sending side, where all below them is gone, too.
    fn destroys(&self) -> Vec<Step> {
        // All names above something that is not to be destroyed.
        let mut above: HashSet<&str> = HashSet::new();
        for item in self.items.iter().filter(|x| x.fate != Fate::Goes) {
            let mut name = item.parent();
            while !name.is_empty() && above.insert(name) {
                name = name.rsplit_once('/').map_or("", |(up, _)| up);
            }
        }
        let gone = self.items.iter().filter(|x| x.fate == Fate::Goes);
        gone.filter(|x| !above.contains(x.name.as_str()))
            .map(|x| Step::Destroy(x.name.clone()))
            .collect()
    }

    /// Those that must leave their names before others can have them.
    fn asides(&self) -> Vec<Step> {
        // Those that are to go below something that is below them now.
        let inward: Vec<(&Item, &str)> = self
            .renames()
            .filter_map(|(i, _)| match &self.items[i].fate {
                Fate::Belongs { parent, .. } if is_below(parent, &self.items[i].name) => {
                    Some((&self.items[i], parent.as_str()))
                }
                _ => None,
            })
            .collect();
        let mut out = Vec::new();
        for (i, _) in self.renames() {
            let item = &self.items[i];
            let is_between = |(outer, inner): &(&Item, &str)| {
                item.name != outer.name
                    && is_below(&item.name, &outer.name)
                    && is_below(inner, &item.name)
            };
            let out_of_it = self.is_below_gone(item) || inward.iter().any(is_between);
            let up = match (out_of_it, item.is_aside()) {
                (true, true) if item.parent() == self.top => continue,
                (true, _) => self.top,
                (false, false) if self.is_in_circle(i) => item.parent(),
                (false, _) => continue,
            };
            out.push(Step::Rename {
                from: item.name.clone(),
                to: self.free_name(item, up),
            });
        }
        out
    }

    /// Whether something above it is to be destroyed.
    fn is_below_gone(&self, item: &Item) -> bool {
        let mut name = item.parent();
        while let Some(&i) = self.at.get(name) {
            if self.items[i].fate == Fate::Goes {
                return true;
            }
            name = self.items[i].parent();
        }
        false
    }

    /// Whether it waits for a name that another has, which waits for another, and so on, and that one for this.
    fn is_in_circle(&self, first: usize) -> bool {
        let mut seen = HashSet::new();
        let mut at = first;
        while seen.insert(at) {
            let to = self.targets[at].as_deref();
            match to.and_then(|to| self.at.get(to)) {
                Some(next) => at = *next,
                None => return false,
            }
        }
        at == first
    }

    fn free_name(&self, item: &Item, up: &str) -> String {
        let begin = item.aside();
        let names = (1..=self.items.len() + 1).map(|n| format!("{up}/{begin}{n}"));
        let mut free = names.filter(|name| !self.at.contains_key(name.as_str()));
        free.next().unwrap_or_else(|| format!("{up}/{begin}0"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree of (name, guid of the parent on the sender's side, last name there); guid 0 is the top, and 'gone' what the
    /// sender has no more. Guids count from 1.
    struct Model {
        items: Vec<(String, Option<(u64, &'static str)>)>,
    }

    impl Model {
        fn new(list: &[(&str, Option<(u64, &'static str)>)]) -> Model {
            let items = list.iter().map(|(n, w)| (format!("p/{n}"), *w));
            Model {
                items: items.collect(),
            }
        }

        fn items(&self) -> Vec<Item> {
            let top = Item {
                name: "p".into(),
                guid: 0,
                fate: Fate::Stays,
            };
            let rest = self.items.iter().enumerate();
            let rest = rest.filter(|(_, (name, _))| !name.is_empty());
            let rest = rest.map(|(i, (name, want))| Item {
                name: name.clone(),
                guid: i as u64 + 1,
                fate: match want {
                    None => Fate::Goes,
                    Some((0, last)) => Fate::Belongs {
                        parent: "p".into(),
                        last: last.to_string(),
                    },
                    Some((n, last)) => Fate::Belongs {
                        parent: self.items[*n as usize - 1].0.clone(),
                        last: last.to_string(),
                    },
                },
            });
            let mut all: Vec<Item> = std::iter::once(top).chain(rest).collect();
            all.sort_by(|a, b| a.name.cmp(&b.name));
            all
        }

        /// Does a step as a pool does; false where a pool refuses it.
        fn apply(&mut self, step: &Step) -> bool {
            match step {
                Step::Destroy(name) => {
                    for (n, want) in &mut self.items {
                        if is_below(n, name) {
                            assert!(want.is_none(), "{n} was destroyed with {name}");
                            n.clear();
                        }
                    }
                    true
                }
                Step::Rename { from, to } => {
                    let up = to.rsplit_once('/').unwrap().0;
                    let taken = |name: &str| self.items.iter().any(|(n, _)| n == name);
                    if taken(to) || is_below(to, from) || up != "p" && !taken(up) {
                        return false;
                    }
                    for (n, _) in &mut self.items {
                        if is_below(n, from) {
                            *n = format!("{to}{}", &n[from.len()..]);
                        }
                    }
                    true
                }
            }
        }

        /// The names at the end, in the order of the list; empty: destroyed. Every first choice must succeed.
        fn arranged(&mut self) -> Vec<String> {
            for _ in 0..100 {
                let Some(step) = steps(&self.items(), "p").into_iter().next() else {
                    let cut = |n: &String| n.strip_prefix("p/").unwrap_or_default().to_string();
                    return self.items.iter().map(|(n, _)| cut(n)).collect();
                };
                assert!(self.apply(&step), "{step:?} of {:?}", self.items);
            }
            panic!("no end: {:?}", self.items);
        }
    }

    #[test]
    fn names_exchanged_before_and_behind_those_for_a_while_come_to_their_places() {
        for (a, b) in [("a", "b"), ("y", "z"), ("a", "z"), ("q", "s")] {
            let mut m = Model::new(&[(a, Some((0, b))), (b, Some((0, a)))]);
            assert_eq!(m.arranged(), [b, a]);
        }
        let mut m = Model::new(&[
            ("x", Some((0, "y"))),
            ("y", Some((0, "z"))),
            ("z", Some((0, "x"))),
            ("w", Some((0, "v"))),
        ]);
        assert_eq!(m.arranged(), ["y", "z", "x", "v"]);
    }

    #[test]
    fn a_parent_and_its_child_change_places() {
        // By name, too: the child gets the parent's name, and the parent the child's.
        let mut m = Model::new(&[("a", Some((2, "a"))), ("a/b", Some((0, "b")))]);
        assert_eq!(m.arranged(), ["b/a", "b"]);
        let mut m = Model::new(&[("a", Some((2, "b"))), ("a/b", Some((0, "a")))]);
        assert_eq!(m.arranged(), ["a/b", "a"]);
        let mut m = Model::new(&[
            ("a", Some((3, "b"))),
            ("a/b", Some((1, "c"))),
            ("a/b/c", Some((0, "a"))),
        ]);
        assert_eq!(m.arranged(), ["a/b", "a/b/c", "a"]);
    }

    #[test]
    fn what_is_destroyed_goes_after_what_leaves_it() {
        let mut m = Model::new(&[("a", None), ("a/b", Some((0, "a"))), ("a/c", None)]);
        assert_eq!(m.arranged(), ["", "a", ""]);
        let mut m = Model::new(&[("a", None), ("b", Some((0, "a"))), ("a/c", Some((2, "c")))]);
        assert_eq!(m.arranged(), ["", "a", "a/c"]);
    }

    #[test]
    fn what_an_interrupted_command_moved_aside_is_taken_up_again() {
        let mut m = Model::new(&[("recv-1-1", Some((0, "z"))), ("z", Some((0, "y")))]);
        assert_eq!(m.arranged(), ["z", "y"]);
        let mut m = Model::new(&[
            ("recv-1-1", Some((0, "y"))),
            ("y", Some((0, "z"))),
            ("z", Some((0, "recv-2-1"))),
        ]);
        assert_eq!(m.arranged(), ["y", "z", "recv-2-1"]);
    }

    /// Its name is taken by one that the sender never had: nobody is moved aside in vain.
    #[test]
    fn whoever_waits_for_a_name_that_stays_taken_keeps_its_own() {
        let stays = Item {
            name: "p/z".into(),
            guid: 9,
            fate: Fate::Stays,
        };
        let belongs = |name: &str, guid, last: &str| Item {
            name: name.into(),
            guid,
            fate: Fate::Belongs {
                parent: "p".into(),
                last: last.into(),
            },
        };
        let items = [belongs("p/x", 1, "y"), belongs("p/y", 2, "z"), stays];
        let renames = [("p/x", "p/y"), ("p/y", "p/z")].map(|(a, b)| Step::Rename {
            from: a.into(),
            to: b.into(),
        });
        assert_eq!(steps(&items, "p"), renames);
    }
}
