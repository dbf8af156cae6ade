//! The registry of damage: each way in which the content of a pool can be wrong has a number, a name, a meaning and a remedy.
//!
//! The rooms that find damage (`walk`, `audit`) name it by this type, and the programs that show it (`zdb -b`) print number and name.
//! `docs/damage.md` has the table for users; a test keeps it complete. A number is never used again for something else.

use std::fmt;

/// One kind of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum Damage {
    /// No copy of a block can be read and verified.
    BlockUnreadable = 1,
    /// One copy of a block cannot be read and verified, or is not what the others are.
    CopyUnreadable = 2,
    /// A block verifies, and is not what its place demands.
    BlockMalformed = 3,
    /// The content of an object makes no sense.
    ObjectMalformed = 10,
    /// An object set makes no sense.
    ObjsetMalformed = 11,
    /// What the MOS says of a dataset makes no sense.
    DatasetMalformed = 12,
    /// An intent log makes no sense.
    LogMalformed = 13,
    /// A list or tree that the directory of the MOS names makes no sense.
    DirectoryMalformed = 14,
    /// Space belongs to two blocks.
    SpaceShared = 20,
    /// Space is allocated, and no block is there.
    SpaceLeaked = 21,
    /// Space of a block is free.
    SpaceFree = 22,
}

impl Damage {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Damage; 11] = [
        Damage::BlockUnreadable,
        Damage::CopyUnreadable,
        Damage::BlockMalformed,
        Damage::ObjectMalformed,
        Damage::ObjsetMalformed,
        Damage::DatasetMalformed,
        Damage::LogMalformed,
        Damage::DirectoryMalformed,
        Damage::SpaceShared,
        Damage::SpaceLeaked,
        Damage::SpaceFree,
    ];

    /// The number by which users and documents refer to it.
    pub const fn number(self) -> u16 {
        self as u16
    }

    /// The kind with that number.
    pub fn of_number(number: u16) -> Option<Damage> {
        Damage::ALL.into_iter().find(|d| d.number() == number)
    }

    /// A name in lower case, without spaces.
    pub const fn name(self) -> &'static str {
        match self {
            Damage::BlockUnreadable => "block-unreadable",
            Damage::CopyUnreadable => "copy-unreadable",
            Damage::BlockMalformed => "block-malformed",
            Damage::ObjectMalformed => "object-malformed",
            Damage::ObjsetMalformed => "objset-malformed",
            Damage::DatasetMalformed => "dataset-malformed",
            Damage::LogMalformed => "log-malformed",
            Damage::DirectoryMalformed => "directory-malformed",
            Damage::SpaceShared => "space-shared",
            Damage::SpaceLeaked => "space-leaked",
            Damage::SpaceFree => "space-free",
        }
    }

    /// Whether a scrub can mend it, from other copies or parity.
    pub const fn is_mended_by_scrub(self) -> bool {
        matches!(self, Damage::CopyUnreadable)
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "D{} {}", self.number(), self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_told_apart() {
        for (i, d) in Damage::ALL.into_iter().enumerate() {
            assert_eq!(Damage::of_number(d.number()), Some(d));
            let others = Damage::ALL.iter().skip(i + 1);
            assert!(others.clone().all(|o| o.number() > d.number()), "{d}");
            assert!(others.clone().all(|o| o.name() != d.name()), "{d}");
        }
        assert_eq!(Damage::of_number(0), None);
        assert_eq!(Damage::SpaceLeaked.to_string(), "D21 space-leaked");
    }

    #[test]
    fn the_page_for_users_has_every_kind_and_no_other() {
        let page = include_str!("../../../docs/damage.md");
        let rows = page.lines().filter(|l| l.starts_with("| D"));
        let found: Vec<&str> = rows
            .filter_map(|l| l.split('|').nth(1).map(str::trim))
            .collect();
        let all: Vec<String> = Damage::ALL.iter().map(Damage::to_string).collect();
        assert_eq!(found, all);
    }
}
